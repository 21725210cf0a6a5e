/* attention.cuh: what the attention kernels of sm_80 and later share: the job, addresses in pages, tiles by asynchronous
 * copies, products of m16n8k16. */
#ifndef PENSTOCK_GPU_ATTENTION_CUH
#define PENSTOCK_GPU_ATTENTION_CUH

#include "gpu/attention_byte.cuh"
#include "gpu/attention_tile.cuh"
#include "gpu/block.cuh"

struct attention_job {
	const void *qkv, *keys, *values; /* pools of the layer: [blocks][kv_heads][block_size][head_dim] */
	const float *scales;             /* of bytes: [blocks][kv_heads][2][block_size] */
	void       *y;
	const struct step_sequence *sequences;
	const struct step_item     *items;
	const struct step_tile     *tiles;
	const int32_t *tables, *row_sequence, *counts;
	float    *partials, *sums; /* decode: [rows of heads][head_dim], and (max, sum) of each */
	int32_t  *arrived;
	uint32_t  stride, y_stride, q_heads, kv_heads, group, head_dim, block_shift, kv_group, row_tiles;
	uint32_t  partial_heads; /* rows of heads of a row's partial results: those of the largest layer */
	uint32_t  swizzle, unit, scale_unit; /* of the pools (struct cuda_kv) */
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

/* Where the scale of the key lies whose row of the pool is SLOT; that of the value lies a block size behind it. */
__device__ static inline size_t attention_scale(const struct attention_job *job, size_t slot)
{
	return 2 * slot - (slot & ((1u << job->block_shift) - 1));
}

/* A stage of copies in shared memory: tiles of keys and of values, then, of bytes, 64 scales of keys and of values. */
template <class E, int DIM> struct attention_stage {
	static constexpr uint32_t tile = CUDA_TILE * DIM * sizeof(E), bytes = 2 * tile + (kv_is_byte<E> ? 2 * CUDA_TILE * 4 : 0);
};

/* The blocks in which what a thread copies of a tile lies: known a tile ahead, as they are a round trip to memory away. */
template <class E, int DIM, int THREADS> struct tile_blocks {
	static constexpr uint32_t chunks = DIM * sizeof(E) / 16, each = CUDA_TILE * chunks / THREADS;
	int32_t block[each], scales;
};

template <class E, int DIM, int THREADS> __device__ static inline void find_blocks(const struct attention_job *job,
    const struct step_sequence *sequence, int32_t first, int32_t end, struct tile_blocks<E, DIM, THREADS> *ret)
{
	const int32_t *table = job->tables + sequence->table[job->kv_group];

#pragma unroll
	for (uint32_t i = 0; i < ret->each; i++) {
		int32_t token = first + (int32_t)((threadIdx.x + i * THREADS) / ret->chunks);

		ret->block[i] = token < end ? table[token >> job->block_shift] : 0;
	}
	if (kv_is_byte<E>) {
		int32_t token = first + (int32_t)(threadIdx.x % (CUDA_TILE / 4) * 4);

		ret->scales = token < end ? table[token >> job->block_shift] : 0;
	}
}

/* Starts the copy of 64 tokens from FIRST on, those before END, which lie in BLOCKS, into the stage at STAGE.  What lies beyond END
 * may be anything, and 0 · NaN is NaN: zeroes stand for it. */
template <class E, int DIM, int THREADS> __device__ static inline void load_tiles(const struct attention_job *job, uint32_t kv_head,
    int32_t first, int32_t end, const struct tile_blocks<E, DIM, THREADS> *blocks, uint32_t stage)
{
	uint32_t inside = (1u << job->block_shift) - 1;

#pragma unroll
	for (uint32_t i = 0; i < blocks->each; i++) {
		uint32_t at = threadIdx.x + i * THREADS, row = at / blocks->chunks, chunk = at % blocks->chunks, to = stage;
		int32_t  token = first + (int32_t)row;
		bool     wanted = token < end;
		size_t   unit = (size_t)blocks->block[i] * job->kv_heads + kv_head, from;

		if constexpr (kv_is_byte<E>) {
			uint32_t swapped = chunk ^ ((uint32_t)token * DIM / 128 & job->swizzle);

			from = unit * job->unit + ((uint32_t)token & inside) * DIM + swapped * 16;
			to += byte_tile_at<DIM>(row, chunk);
		} else {
			uint32_t swapped = chunk ^ ((uint32_t)token & job->swizzle);

			from = ((unit << job->block_shift) + ((uint32_t)token & inside)) * DIM + swapped * (16 / sizeof(E));
			to += tile_at<DIM>(row, chunk);
		}
		cp_async_16(to, (const E *)job->keys + from, wanted ? 16 : 0);
		cp_async_16(to + attention_stage<E, DIM>::tile, (const E *)job->values + from, wanted ? 16 : 0);
	}
	if (kv_is_byte<E> && threadIdx.x < 2 * CUDA_TILE / 4) { /* four scales each: blocks have four tokens or more */
		uint32_t row = threadIdx.x % (CUDA_TILE / 4) * 4, kind = threadIdx.x / (CUDA_TILE / 4);
		int32_t  token = first + (int32_t)row, left = end - token;
		size_t   unit = (size_t)blocks->scales * job->kv_heads + kv_head;
		size_t   from = unit * job->scale_unit + (kind << job->block_shift) + ((uint32_t)token & inside);

		cp_async_16(stage + 2 * attention_stage<E, DIM>::tile + (kind * CUDA_TILE + row) * 4, job->scales + from,
		    left <= 0 ? 0 : left < 4 ? (uint32_t)left * 4 : 16);
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

/* ---- Of either kind ---- */

template <class T, class E, int DIM> __device__ static inline void load_queries(const T *low, const T *high,
    uint32_t ret[DIM / 16][4])
{
	if constexpr (kv_is_byte<E>)
		load_query_bytes<T, DIM>(low, high, ret);
	else
		load_query<T, DIM>(low, high, ret);
}

/* Scores of tokens [TOKEN, TOKEN + 16) of a stage, times FACTOR. */
template <class T, class E, int DIM> __device__ static inline void stage_scores(const uint32_t q[DIM / 16][4], const char *stage,
    uint32_t token, float factor, float s[2][4])
{
	if constexpr (kv_is_byte<E>)
		multiply_byte_keys<T, E, DIM>(q, shared_address(stage), token, s);
	else
		multiply_keys<T, DIM>(q, shared_address(stage), token, s);
#pragma unroll
	for (uint32_t j = 0; j < 2; j++) {
		float2 scale = make_float2(factor, factor);

		if constexpr (kv_is_byte<E>) {
			scale = *(const float2 *)(stage + 2 * attention_stage<E, DIM>::tile + (token + j * 8 + threadIdx.x % 4 * 2) * 4);
			scale.x *= factor * kv_pairs<T, E>::factor;
			scale.y *= factor * kv_pairs<T, E>::factor;
		}
		s[j][0] *= scale.x;
		s[j][1] *= scale.y;
		s[j][2] *= scale.x;
		s[j][3] *= scale.y;
	}
}

/* o += weights S of tokens [TOKEN, TOKEN + 16) of a stage times their values.  A weight of 0 takes nothing in, whatever the scale
 * beside it. */
template <class T, class E, int DIM> __device__ static inline void stage_values(const float s[2][4], const char *stage,
    uint32_t token, float o[DIM / 8][4])
{
	uint32_t p[4];

#pragma unroll
	for (uint32_t j = 0; j < 2; j++) {
		float w[4] = { s[j][0], s[j][1], s[j][2], s[j][3] };

		if constexpr (kv_is_byte<E>) {
			float2 scale = *(const float2 *)(stage + 2 * attention_stage<E, DIM>::tile +
			    (CUDA_TILE + token + j * 8 + threadIdx.x % 4 * 2) * 4);

			scale.x *= kv_pairs<T, E>::factor;
			scale.y *= kv_pairs<T, E>::factor;
#pragma unroll
			for (int i = 0; i < 4; i++)
				w[i] = w[i] > 0 ? w[i] * (i % 2 ? scale.y : scale.x) : 0;
		}
		p[2 * j] = pair_of<T>(w[0], w[1]);
		p[2 * j + 1] = pair_of<T>(w[2], w[3]);
	}
	if constexpr (kv_is_byte<E>)
		multiply_byte_values<T, E, DIM>(p, shared_address(stage) + attention_stage<E, DIM>::tile, token, o);
	else
		multiply_values<T, DIM>(p, shared_address(stage) + attention_stage<E, DIM>::tile, token, o);
}

#endif
