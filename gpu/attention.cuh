/* attention.cuh: what the attention kernels of sm_80 and later share: the job, addresses in pages, tiles by asynchronous
 * copies, products of m16n8k16. */
#ifndef PENSTOCK_GPU_ATTENTION_CUH
#define PENSTOCK_GPU_ATTENTION_CUH

#include "gpu/attention_tile.cuh"
#include "gpu/block.cuh"

struct attention_job {
	const void *qkv, *keys, *values; /* pools of the layer: [blocks][kv_heads][block_size][head_dim] */
	void       *y;
	const struct step_sequence *sequences;
	const struct step_item     *items;
	const struct step_tile     *tiles;
	const int32_t *tables, *row_sequence, *counts;
	float    *partials, *sums; /* decode: [rows of heads][head_dim], and (max, sum) of each */
	int32_t  *arrived;
	uint32_t  stride, y_stride, q_heads, kv_heads, group, head_dim, block_shift, kv_group, row_tiles;
	uint32_t  partial_heads; /* rows of heads of a row's partial results: those of the largest layer */
	uint32_t  swizzle;       /* of the pools (struct cuda_kv) */
	float     scale;
	int       full; /* every row sees its whole sequence */
	struct step_mark mark;
};

/* Row of a page pool [rows][head_dim] where TOKEN of a sequence lies. */
__device__ static inline size_t attention_slot(const struct attention_job *job, const struct step_sequence *sequence, int32_t token,
    uint32_t kv_head)
{
	int32_t block = job->tables[sequence->table[job->kv_group] + (token >> job->block_shift)];

	return ((((size_t)block * job->kv_heads + kv_head) << job->block_shift) | ((uint32_t)token & ((1u << job->block_shift) - 1)));
}

/* Starts the copy of 64 tokens from FIRST on, those before END, into the tiles at KEYS and VALUES. */
template <class T, int DIM, int THREADS> __device__ static inline void load_tiles(const struct attention_job *job,
    const struct step_sequence *sequence, uint32_t kv_head, int32_t first, int32_t end, uint32_t keys, uint32_t values)
{
	constexpr uint32_t chunks = DIM / 8;

#pragma unroll
	for (uint32_t i = 0; i < CUDA_TILE * chunks / THREADS; i++) {
		uint32_t at = threadIdx.x + i * THREADS, row = at / chunks, chunk = at % chunks;
		int32_t  token = first + (int32_t)row;
		bool     wanted = token < end; /* what lies beyond may be anything, and 0 · NaN is NaN */
		uint32_t swapped = chunk ^ ((uint32_t)token & job->swizzle);
		size_t   from = wanted ? attention_slot(job, sequence, token, kv_head) * DIM + swapped * 8 : 0;

		cp_async_16(keys + tile_at<DIM>(row, chunk), (const T *)job->keys + from, wanted ? 16 : 0);
		cp_async_16(values + tile_at<DIM>(row, chunk), (const T *)job->values + from, wanted ? 16 : 0);
	}
	cp_async_commit();
}

/* o [16, DIM] += p [16, 16] · v for tokens [TOKEN, TOKEN + 16) of a tile. */
template <class T, int DIM> __device__ static inline void multiply_values(const uint32_t p[4], uint32_t values, uint32_t token,
    float o[DIM / 8][4])
{
	uint32_t lane = threadIdx.x % 32, row = token + lane / 8 % 2 * 8 + lane % 8;

#pragma unroll
	for (int d = 0; d < DIM / 16; d++) {
		uint32_t b[4];

		ldmatrix_x4_trans(b, values + tile_at<DIM>(row, (uint32_t)d * 2 + lane / 16));
		mma_m16n8k16<T>(o[2 * d], p, b);
		mma_m16n8k16<T>(o[2 * d + 1], p, b + 2);
	}
}

#endif
