/* attention_prefill.cuh: attention of pieces of prompts: a block takes 64 rows of a sequence at one head and goes through the
 * context 64 tokens at a time, the next tile on its way while this one is multiplied.
 *
 *      warp w: rows 16w…16w + 15        s [16, 64] = q kᵀ ─► softmax ─► o [16, DIM] += p v       (online, Milakov 2018)
 *
 * Tiles begin at the context's beginning, whatever the piece, and a tile that a row does not see changes nothing of it:
 * so a row's bits do not depend on how a prompt is cut. */
#ifndef PENSTOCK_GPU_ATTENTION_PREFILL_CUH
#define PENSTOCK_GPU_ATTENTION_PREFILL_CUH

#include "gpu/attention.cuh"

enum { PREFILL_THREADS = 128, PREFILL_STAGES = 2 };

template <class E, int DIM> constexpr size_t prefill_shared(void) { return PREFILL_STAGES * attention_stage<E, DIM>::bytes; }

/* E: what pages hold, T or bytes. */
template <class T, int DIM, class E = T> static __global__ void __launch_bounds__(PREFILL_THREADS,
    kv_is_byte<E> ? DIM == 64 ? 3 : 2 : 1) prefill_kernel(struct attention_job job)
{
	DYNAMIC_SHARED(stages);
	constexpr uint32_t     stage_bytes = attention_stage<E, DIM>::bytes;
	struct step_tile       tile = job.tiles[blockIdx.y];
	struct step_sequence   sequence = job.sequences[tile.sequence];
	struct softmax_state   state = { { -INFINITY, -INFINITY }, { 0, 0 } };
	uint32_t head = blockIdx.x, kv_head = head / job.group, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int32_t  row[2], limit[2], end, before = sequence.context - sequence.rows;
	uint32_t q[DIM / 16][4], base = shared_address(stages);
	float    o[DIM / 8][4], factor = job.scale * 1.44269504088896f; /* exponents are of 2 */
	const T *from[2];
	struct tile_blocks<E, DIM, PREFILL_THREADS> blocks;

	mark_begin(job.mark);
	end = tile.first_row + CUDA_TILE < sequence.rows ? tile.first_row + CUDA_TILE : sequence.rows;
	end = job.full ? sequence.context : before + end;
	for (int r = 0; r < 2; r++) {
		row[r] = tile.first_row + (int32_t)(warp * 16 + lane / 4) + 8 * r;
		limit[r] = row[r] >= sequence.rows ? 0 : job.full ? sequence.context : before + row[r] + 1;
		from[r] = row[r] >= sequence.rows ? NULL :
		    (const T *)job.qkv + (size_t)(sequence.first_row + row[r]) * job.stride + (size_t)head * DIM;
	}
	load_queries<T, E, DIM>(from[0], from[1], q);
#pragma unroll
	for (int d = 0; d < DIM / 8; d++)
		for (int i = 0; i < 4; i++)
			o[d][i] = 0;
	find_blocks(&job, &sequence, 0, end, &blocks);
	load_tiles(&job, kv_head, 0, end, &blocks, base);
	find_blocks(&job, &sequence, CUDA_TILE, end, &blocks);
	for (int32_t first = 0, stage = 0; first < end; first += CUDA_TILE, stage ^= 1) {
		const char *now = stages + (uint32_t)stage * stage_bytes;
		float       s[CUDA_TILE / 8][4];

		if (first + CUDA_TILE < end) {
			load_tiles(&job, kv_head, first + CUDA_TILE, end, &blocks, base + (uint32_t)(stage ^ 1) * stage_bytes);
			find_blocks(&job, &sequence, first + 2 * CUDA_TILE, end, &blocks);
			cp_async_wait<1>();
		} else {
			cp_async_wait<0>();
		}
		__syncthreads();
#pragma unroll
		for (uint32_t t = 0; t < CUDA_TILE / 16; t++)
			stage_scores<T, E, DIM>(q, now, t * 16, factor, &s[2 * t]);
#pragma unroll
		for (int j = 0; j < CUDA_TILE / 8; j++) {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int32_t token = first + j * 8 + (int32_t)(lane % 4) * 2 + i % 2;

				s[j][i] = token < limit[i / 2] ? s[j][i] : -INFINITY;
			}
		}
		softmax_step<CUDA_TILE / 8, DIM / 8>(s, o, &state);
#pragma unroll
		for (uint32_t t = 0; t < CUDA_TILE / 16; t++)
			stage_values<T, E, DIM>(&s[2 * t], now, t * 16, o);
		__syncthreads();
	}
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float l = state.l[r];
		T    *to = (T *)job.y + (size_t)(sequence.first_row + row[r]) * job.y_stride + (size_t)head * DIM;

		l += __shfl_xor_sync(~0u, l, 1);
		l += __shfl_xor_sync(~0u, l, 2);
		if (row[r] >= sequence.rows)
			continue;
#pragma unroll
		for (int j = 0; j < DIM / 8; j++) {
			float2 sum = sum_pair<E, DIM>(o, j, r);

			*(uint32_t *)(to + sum_place<E>(j)) = pair_of<T>(sum.x / l, sum.y / l);
		}
	}
}

#endif
