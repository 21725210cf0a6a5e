/* attention_tile.cuh: what a warp does to a tile of attention, whichever kernel brought it: addresses, fragments, softmax.
 *
 * Tiles in shared memory are [64 tokens][DIM]; the 16-byte chunks of a row are swapped by its number (chunk ^ row % 8), so
 * that the eight rows an ldmatrix reads lie in different banks. */
#ifndef PENSTOCK_GPU_ATTENTION_TILE_CUH
#define PENSTOCK_GPU_ATTENTION_TILE_CUH

#include "gpu/convert.cuh"

/* Two elements in a word, as fragments of mma have them. */
template <class T> __device__ static inline uint32_t pair_of(float low, float high)
{
	union {
		T        v[2];
		uint32_t bits;
	} pair;

	pair.v[0] = from_float<T>(low);
	pair.v[1] = from_float<T>(high);
	return pair.bits;
}

/* Byte offset of 16-byte chunk CHUNK of row ROW in a tile. */
template <int DIM> __device__ static inline uint32_t tile_at(uint32_t row, uint32_t chunk)
{
	return (row * (DIM / 8) + (chunk ^ (row & 7))) * 16;
}

/* Fragments of q for rows g and g + 8 of a tile, whose vectors LOW and HIGH point to (NULL: zeroes). */
template <class T, int DIM> __device__ static inline void load_query(const T *low, const T *high, uint32_t ret[DIM / 16][4])
{
	uint32_t quad = threadIdx.x % 4;

#pragma unroll
	for (int k = 0; k < DIM / 16; k++) {
		uint32_t at = (uint32_t)k * 16 + quad * 2;

		ret[k][0] = low ? *(const uint32_t *)(low + at) : 0;
		ret[k][1] = high ? *(const uint32_t *)(high + at) : 0;
		ret[k][2] = low ? *(const uint32_t *)(low + at + 8) : 0;
		ret[k][3] = high ? *(const uint32_t *)(high + at + 8) : 0;
	}
}

/* The online softmax of a warp's 16 rows: maxima and sums of rows g and g + 8; sums are each lane's own. */
struct softmax_state {
	float m[2], l[2];
};

/* Takes in N scores columns of 8: scores become weights, O is brought to the new maxima. */
template <int N, int O> __device__ static inline void softmax_step(float s[N][4], float o[O][4], struct softmax_state *state)
{
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float larger = state->m[r], factor, sum = 0;

#pragma unroll
		for (int j = 0; j < N; j++)
			larger = fmaxf(larger, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
		larger = fmaxf(larger, __shfl_xor_sync(~0u, larger, 1));
		larger = fmaxf(larger, __shfl_xor_sync(~0u, larger, 2));
		/* A row that has seen nothing yet keeps weights of 0, not exp2(−∞ + ∞). */
		float base = larger == -INFINITY ? 0 : larger;

		factor = exp2f(state->m[r] - base);
#pragma unroll
		for (int j = 0; j < N; j++) {
			s[j][2 * r] = exp2f(s[j][2 * r] - base);
			s[j][2 * r + 1] = exp2f(s[j][2 * r + 1] - base);
			sum += s[j][2 * r] + s[j][2 * r + 1];
		}
		state->m[r] = larger;
		state->l[r] = state->l[r] * factor + sum;
#pragma unroll
		for (int d = 0; d < O; d++) {
			o[d][2 * r] *= factor;
			o[d][2 * r + 1] *= factor;
		}
	}
}

/* s [16, 16] = q · kᵀ for tokens [TOKEN, TOKEN + 16) of a tile of keys. */
template <class T, int DIM> __device__ static inline void multiply_keys(const uint32_t q[DIM / 16][4], uint32_t keys,
    uint32_t token, float s[2][4])
{
	uint32_t lane = threadIdx.x % 32, row = token + lane / 16 * 8 + lane % 8, half = lane / 8 % 2;

	for (int j = 0; j < 2; j++)
		for (int i = 0; i < 4; i++)
			s[j][i] = 0;
#pragma unroll
	for (int k = 0; k < DIM / 16; k++) {
		uint32_t b[4];

		ldmatrix_x4(b, keys + tile_at<DIM>(row, (uint32_t)k * 2 + half));
		mma_m16n8k16<T>(s[0], q[k], b);
		mma_m16n8k16<T>(s[1], q[k], b + 2);
	}
}

#endif
