/* kv.cuh: the kernels of kv.cu: copies of blocks, the table of rotations, and bias, norm, rotation and write of every head. */
#ifndef PENSTOCK_GPU_KV_CUH
#define PENSTOCK_GPU_KV_CUH

#include "gpu/block.cuh"

#include <math.h>

enum { ROPE_DIMS_MAX = CUDA_HEAD_DIM_MAX, HEAD_WARPS = 4, COPY_PAIRS = 128, COPY_THREADS = 256 };

/* ---- Copies of blocks ---- */

struct copy_pairs {
	int32_t from[COPY_PAIRS], to[COPY_PAIRS];
};

/* One block of the grid for a layer of a pair; 16 bytes a thread. */
static __global__ void __launch_bounds__(COPY_THREADS) copy_kernel(struct copy_pairs pairs, char *keys, char *values,
    size_t block_bytes,
    uint32_t blocks)
{
	size_t layer = (size_t)blockIdx.y * blocks;
	char  *pools[2] = { keys, values };

	for (int p = 0; p < 2; p++) {
		const char *from = pools[p] + (layer + (size_t)pairs.from[blockIdx.x]) * block_bytes;
		char       *to = pools[p] + (layer + (size_t)pairs.to[blockIdx.x]) * block_bytes;

		if (block_bytes % 16 == 0)
			for (size_t i = threadIdx.x * 16; i < block_bytes; i += COPY_THREADS * 16)
				*(uint4 *)(to + i) = *(const uint4 *)(from + i);
		else
			for (size_t i = threadIdx.x; i < block_bytes; i += COPY_THREADS)
				to[i] = from[i];
	}
}

/* ---- Heads ---- */

struct rope_frequencies {
	float f[ROPE_DIMS_MAX / 2];
};

/* Cosines and sines of every row's position, once for all layers.  The angle is a float32 product, as the models were
 * trained with. */
static __global__ void rotation_kernel(struct rope_frequencies frequencies, const int32_t *positions, float scale, uint32_t pairs,
    uint32_t stride, float2 *ret)
{
	for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) {
		float angle = __fmul_rn((float)positions[blockIdx.x], frequencies.f[i]), s, c;

		sincosf(angle, &s, &c);
		ret[(size_t)blockIdx.x * stride + i] = make_float2(c * scale, s * scale);
	}
}

struct head_job {
	void       *qkv;
	void       *keys, *values; /* of the layer; NULL: nothing is written */
	const int32_t *slots;
	const float2  *rotation;   /* [rows][rotation_stride]; NULL: none */
	const float   *bias, *q_norm, *k_norm;
	float    eps;
	uint32_t stride, q_heads, kv_heads, head_dim, block_size, pairs, rotation_stride;
	uint32_t swizzle; /* of the pools (struct cuda_kv) */
	int      interleaved;
	struct step_mark mark;
};

/* A warp for each head of a row: q heads, then k heads, then v heads. */
template <class T> static __global__ void __launch_bounds__(32 * HEAD_WARPS) head_kernel(struct head_job job)
{
	uint32_t head = blockIdx.y * HEAD_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x, dim = job.head_dim;
	uint32_t heads = job.q_heads + job.kv_heads * (job.keys ? 2 : 1), rotated, swap = 0;
	const float *bias = job.bias ? job.bias + (size_t)head * dim : NULL, *norm;
	int32_t  slot = job.keys ? job.slots[row] : -1; /* of `take`: there before dependency_wait (launch.cuh) */
	float    factor = 1;
	T       *x, *page = NULL;

	dependents_launch();
	dependency_wait();
	mark_begin(job.mark);
	if (head >= heads)
		return;
	x = (T *)job.qkv + (size_t)row * job.stride + (size_t)head * dim;
	norm = head < job.q_heads ? job.q_norm : head < job.q_heads + job.kv_heads ? job.k_norm : NULL;
	rotated = job.rotation && head < job.q_heads + job.kv_heads ? job.pairs : 0;
	if (slot >= 0 && head >= job.q_heads) {
		uint32_t kv_head = (head - job.q_heads) % job.kv_heads;
		size_t   at = ((size_t)(slot / (int32_t)job.block_size) * job.kv_heads + kv_head) * job.block_size +
		    slot % (int32_t)job.block_size;

		page = (T *)(head < job.q_heads + job.kv_heads ? job.keys : job.values) + at * dim;
		swap = ((uint32_t)slot & job.swizzle) << 3;
	}
	if (norm) {
		float sum = 0;

		for (uint32_t d = lane; d < dim; d += 32) {
			float v = to_float(x[d]) + (bias ? bias[d] : 0);
			sum += v * v;
		}
		for (int o = 16; o; o >>= 1)
			sum += __shfl_xor_sync(~0u, sum, o);
		factor = rsqrtf(sum / dim + job.eps);
		__syncwarp();
	}
	for (uint32_t i = lane; i < rotated; i += 32) {
		uint32_t at = job.interleaved ? 2 * i : i, other = job.interleaved ? at + 1 : i + rotated;
		float2   r = job.rotation[(size_t)row * job.rotation_stride + i];
		float    a = (to_float(x[at]) + (bias ? bias[at] : 0)) * (norm ? factor * norm[at] : 1);
		float    b = (to_float(x[other]) + (bias ? bias[other] : 0)) * (norm ? factor * norm[other] : 1);
		T        first = from_float<T>(a * r.x - b * r.y), second = from_float<T>(b * r.x + a * r.y);

		x[at] = first;
		x[other] = second;
		if (page) {
			page[at ^ swap] = first;
			page[other ^ swap] = second;
		}
	}
	for (uint32_t d = 2 * rotated + lane; d < dim; d += 32) {
		T v = from_float<T>((to_float(x[d]) + (bias ? bias[d] : 0)) * (norm ? factor * norm[d] : 1));

		if (bias || norm)
			x[d] = v;
		if (page)
			page[d ^ swap] = v;
	}
}

#endif
