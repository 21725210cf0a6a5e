/* kv.cuh: the kernels of kv.cu: copies of blocks, the table of rotations, and bias, norm, rotation and write of every head.
 *
 * Keys and values of one byte are rounded as src/cpu/attention.c does, bit for bit, from what a cache of T would hold:
 * s = amax / largest, byte = round(x / s).  Where a value is no number, s is NaN; bytes never are, so that of a page only
 * scales can be. */
#ifndef PENSTOCK_GPU_KV_CUH
#define PENSTOCK_GPU_KV_CUH

#include "gpu/block.cuh"
#include "gpu/byte_round.cuh"
#include "gpu/heads.cuh"
#include "model/backend.h"

#include <math.h>

enum { ROPE_DIMS_MAX = CUDA_HEAD_DIM_MAX, HEAD_WARPS = 4, COPY_PAIRS = 128, COPY_THREADS = 256 };

/* ---- Copies of blocks ---- */

struct copy_pairs {
	int32_t from[COPY_PAIRS], to[COPY_PAIRS];
};

/* The pools of a group; a block of a layer has so many bytes in each, 0: there is no such pool. */
struct copy_pools {
	char  *data[3];
	size_t block_bytes[3];
};

/* One block of the grid for a layer of a pair; 16 bytes a thread. */
static __global__ void __launch_bounds__(COPY_THREADS) copy_kernel(struct copy_pairs pairs, struct copy_pools pools,
    uint32_t blocks)
{
	size_t layer = (size_t)blockIdx.y * blocks;

	for (int p = 0; p < 3; p++) {
		size_t      bytes = pools.block_bytes[p];
		const char *from = pools.data[p] + (layer + (size_t)pairs.from[blockIdx.x]) * bytes;
		char       *to = pools.data[p] + (layer + (size_t)pairs.to[blockIdx.x]) * bytes;

		if (bytes % 16 == 0)
			for (size_t i = threadIdx.x * 16; i < bytes; i += COPY_THREADS * 16)
				*(uint4 *)(to + i) = *(const uint4 *)(from + i);
		else
			for (size_t i = threadIdx.x; i < bytes; i += COPY_THREADS)
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
	void        *qkv;
	head_target  to;
	float       *scales; /* as the pools, of bytes (struct cuda_kv) */
	const float *q_norm, *k_norm;
	float        eps;
	uint32_t     stride;
	size_t       unit, scale_unit;
	int          interleaved;
	enum kv_type type;
	struct step_mark mark;
};

/* X [DIM] to bytes at TO, that of element d at d ^ SWAP, and their scale; by a warp. */
template <class T> __device__ static inline void write_bytes(const T *x, uint32_t dim, enum kv_type type, uint8_t *to,
    uint32_t swap, float *ret_scale)
{
	uint32_t lane = threadIdx.x % 32;
	float    largest = 0, scale;
	bool     none = false;

	for (uint32_t d = lane; d < dim; d += 32) {
		float size = fabsf(to_float(x[d]));

		largest = fmaxf(largest, size);
		none = none || !byte_finite(size);
	}
	for (int o = 16; o; o >>= 1)
		largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
	scale = __any_sync(~0u, none) ? __uint_as_float(0x7fc00000) : __fdiv_rn(largest, type == KV_F8 ? 448.0f : 127.0f);
	if (lane == 0)
		*ret_scale = scale;
	for (uint32_t d = lane; d < dim; d += 32) {
		float value = scale > 0 ? __fdiv_rn(to_float(x[d]), scale) : 1;

		to[d ^ swap] = type == KV_F8 ? byte_from_f8(value) : (uint8_t)(int8_t)fmaxf(-127, fminf(127, rintf(value)));
	}
}

/* A warp for each head of a row: q heads, then k heads, then v heads. */
template <class T> static __global__ void __launch_bounds__(32 * HEAD_WARPS) head_kernel(struct head_job job)
{
	const head_target &to = job.to;
	uint32_t head = blockIdx.y * HEAD_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x, dim = to.head_dim;
	uint32_t heads = to.q_heads + to.kv_heads * (to.keys ? 2 : 1), rotated, swap = 0, byte_swap = 0;
	const float *bias = to.bias ? to.bias + (size_t)head * dim : NULL, *norm;
	int32_t  slot = to.keys ? to.slots[row] : -1; /* of `take`: there before dependency_wait (launch.cuh) */
	float    factor = 1, *scale = NULL;
	T       *x, *page = NULL;
	uint8_t *bytes = NULL;
	__shared__ T kept[HEAD_WARPS][CUDA_HEAD_DIM_MAX]; /* what is to become bytes */

	dependents_launch();
	dependency_wait();
	mark_begin(job.mark);
	if (head >= heads)
		return;
	x = (T *)job.qkv + (size_t)row * job.stride + (size_t)head * dim;
	norm = head < to.q_heads ? job.q_norm : head < to.q_heads + to.kv_heads ? job.k_norm : NULL;
	rotated = to.rotation && head < to.q_heads + to.kv_heads ? to.pairs : 0;
	if (slot >= 0 && head >= to.q_heads) {
		bool   is_key = head < to.q_heads + to.kv_heads;
		size_t at = head_row(to, (uint32_t)slot, (head - to.q_heads) % to.kv_heads);
		void  *pool = is_key ? to.keys : to.values;

		if (job.type == KV_FLOAT) {
			page = (T *)pool + at * dim;
			swap = ((uint32_t)slot & to.swizzle) << 3;
		} else {
			page = kept[threadIdx.x / 32];
			bytes = (uint8_t *)pool + at / to.block_size * job.unit + at % to.block_size * dim;
			scale = job.scales + at / to.block_size * job.scale_unit + at % to.block_size + (is_key ? 0 : to.block_size);
			byte_swap = ((uint32_t)slot * dim / 128 & to.swizzle) << 4;
		}
	}
	if (norm) {
		float sum = 0;

		for (uint32_t d = lane; d < dim; d += 32) {
			float v = head_biased(x[d], bias, d);
			sum += v * v;
		}
		for (int o = 16; o; o >>= 1)
			sum += __shfl_xor_sync(~0u, sum, o);
		factor = rsqrtf(sum / dim + job.eps);
		__syncwarp();
	}
	for (uint32_t i = lane; i < rotated; i += 32) {
		uint32_t at = job.interleaved ? 2 * i : i, other = job.interleaved ? at + 1 : i + rotated;
		float    a = head_biased(x[at], bias, at) * (norm ? factor * norm[at] : 1);
		float    b = head_biased(x[other], bias, other) * (norm ? factor * norm[other] : 1);
		float2   turned = head_rotate(to.rotation[(size_t)row * to.rotation_stride + i], a, b);
		T        first = from_float<T>(turned.x), second = from_float<T>(turned.y);

		x[at] = first;
		x[other] = second;
		if (page) {
			page[at ^ swap] = first;
			page[other ^ swap] = second;
		}
	}
	for (uint32_t d = 2 * rotated + lane; d < dim; d += 32) {
		T v = from_float<T>(head_biased(x[d], bias, d) * (norm ? factor * norm[d] : 1));

		if (bias || norm)
			x[d] = v;
		if (page)
			page[d ^ swap] = v;
	}
	if (bytes) {
		__syncwarp();
		write_bytes(page, dim, job.type, bytes, byte_swap, scale);
	}
}

#endif
