/* attention_plain.cuh: attention of any type and head size: a block takes one head of a row. */
#ifndef PENSTOCK_GPU_ATTENTION_PLAIN_CUH
#define PENSTOCK_GPU_ATTENTION_PLAIN_CUH

#include "gpu/attention.cuh"

#include <math.h>

enum { PLAIN_WARPS = 4, PLAIN_EACH = CUDA_HEAD_DIM_MAX / 32, PLAIN_CHUNK = 16 };

/* A warp takes chunks of 16 tokens, every fourth; the four results are put together in order. */
template <class T, class E = T> static __global__ void __launch_bounds__(32 * PLAIN_WARPS) plain_kernel(struct attention_job job)
{
	__shared__ float shared_m[PLAIN_WARPS], shared_l[PLAIN_WARPS], shared_o[PLAIN_WARPS][CUDA_HEAD_DIM_MAX];
	uint32_t row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = job.head_dim;
	int32_t  s = job.row_sequence[row], limit;
	float    q[PLAIN_EACH], o[PLAIN_EACH], m = -INFINITY, l = 0;
	T       *y = (T *)job.y + (size_t)row * job.y_stride + (size_t)head * dim;
	struct step_sequence sequence;

	mark_begin(job.mark);
	if (s < 0) { /* padding */
		for (uint32_t d = threadIdx.x; d < dim; d += 32 * PLAIN_WARPS)
			y[d] = from_float<T>(0);
		return;
	}
	sequence = job.sequences[s];
	limit = job.full ? sequence.context : sequence.context - sequence.rows + ((int32_t)row - sequence.first_row) + 1;
	for (int i = 0; i < PLAIN_EACH; i++) {
		uint32_t d = lane + 32 * (uint32_t)i;
		q[i] = d < dim ? to_float(((const T *)job.qkv)[(size_t)row * job.stride + (size_t)head * dim + d]) : 0;
		o[i] = 0;
	}
	for (int32_t t = 0; t < limit; t++) {
		size_t   at;
		const E *k, *v;
		float    dot = 0, factor, p, larger, weight;

		if (t / PLAIN_CHUNK % PLAIN_WARPS != (int32_t)warp)
			continue;
		at = attention_slot(&job, &sequence, t, head / job.group);
		k = (const E *)job.keys + at * dim;
		v = (const E *)job.values + at * dim;
#pragma unroll
		for (int i = 0; i < PLAIN_EACH; i++)
			if (lane + 32 * (uint32_t)i < dim)
				dot += q[i] * kv_value(k[lane + 32 * (uint32_t)i]);
		for (int w = 16; w; w >>= 1)
			dot += __shfl_xor_sync(~0u, dot, w);
		dot *= job.scale;
		if (kv_is_byte<E>)
			dot *= job.scales[attention_scale(&job, at)];
		larger = fmaxf(m, dot);
		factor = expf(m - larger);
		p = expf(dot - larger);
		m = larger;
		l = l * factor + p;
		weight = kv_is_byte<E> ? p * job.scales[attention_scale(&job, at) + (1u << job.block_shift)] : p;
#pragma unroll
		for (int i = 0; i < PLAIN_EACH; i++)
			if (lane + 32 * (uint32_t)i < dim)
				o[i] = o[i] * factor + weight * kv_value(v[lane + 32 * (uint32_t)i]);
	}
	if (lane == 0) {
		shared_m[warp] = m;
		shared_l[warp] = l;
	}
	for (int i = 0; i < PLAIN_EACH; i++)
		if (lane + 32 * (uint32_t)i < dim)
			shared_o[warp][lane + 32 * (uint32_t)i] = o[i];
	__syncthreads();
	m = -INFINITY;
	for (int w = 0; w < PLAIN_WARPS; w++)
		m = fmaxf(m, shared_m[w]);
	for (uint32_t d = threadIdx.x; d < dim; d += 32 * PLAIN_WARPS) {
		float sum = 0, weights = 0;

		for (int w = 0; w < PLAIN_WARPS; w++) {
			float factor = shared_l[w] > 0 || shared_m[w] > -INFINITY ? expf(shared_m[w] - m) : 0;

			sum += shared_o[w][d] * factor;
			weights += shared_l[w] * factor;
		}
		y[d] = from_float<T>(sum / weights);
	}
}

#endif
