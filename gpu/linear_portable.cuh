/* linear_portable.cuh: y = x · Wᵀ for any number of rows by cp.async and mma.sync, which every device from sm_80 on has.  Owns the
 * kernel; linear_own.cu launches it.
 *
 * A block has 64 rows of W and TOKENS rows of x, a warp 16 of those of W, which are the side of 16 of mma; k goes by 64, through
 * a ring of stages in shared memory:
 *
 *      a stage   W: [64][64 k]   x: [TOKENS][64 k]      chunks of 16 bytes lie at their place xor the row's low three bits
 *
 * Invariant: one accumulator over ascending k, 16 at a time, whatever TOKENS is: a row's bits do not depend on the others. */
#ifndef PENSTOCK_GPU_LINEAR_PORTABLE_CUH
#define PENSTOCK_GPU_LINEAR_PORTABLE_CUH

#include "gpu/convert.cuh"

enum { PORTABLE_THREADS = 128, PORTABLE_ROWS = 64, PORTABLE_K = 64, PORTABLE_LINE = PORTABLE_K * 2,
	PORTABLE_CHUNKS = PORTABLE_LINE / 16 };

struct portable_args {
	const void *w, *x;
	void       *y;
	uint32_t    w_stride, x_stride, y_stride; /* of W and x: multiples of 8 */
	uint32_t    n, k, rows;
	int         to_float;
	uint32_t   *mark; /* where to say that the kernel began; NULL = nowhere */
	uint32_t    mark_value;
};

/* Stages that leave shared memory at 48 KB, which needs no asking. */
template <int TOKENS> struct portable_ring {
	static constexpr int stage_bytes = (PORTABLE_ROWS + TOKENS) * PORTABLE_LINE;
	static constexpr int stages = 49152 / stage_bytes, bytes = stages * stage_bytes;
	static_assert(stages >= 3, "one is read, one has come, one is on its way");
};

/* COUNT rows from FIRST on of a matrix [rows][stride], 64 of k from K on; what lies beyond it is zero. */
template <class T> __device__ static inline void portable_fetch(uint32_t smem, int count, const T *from, uint32_t stride,
    uint32_t first, uint32_t rows, uint32_t k, uint32_t k_end)
{
	for (int i = (int)threadIdx.x; i < count * PORTABLE_CHUNKS; i += PORTABLE_THREADS) {
		uint32_t line = (uint32_t)i / PORTABLE_CHUNKS, chunk = (uint32_t)i % PORTABLE_CHUNKS;
		uint32_t row = first + line, at = k + chunk * 8;
		uint32_t left = row < rows && at < k_end ? k_end - at : 0;

		cp_async_16(smem + line * PORTABLE_LINE + ((chunk ^ (line & 7)) << 4), left ? from + (size_t)row * stride + at : from,
		    (left < 8 ? left : 8) * 2);
	}
}

/* Address of a row of an 8 × 8 matrix: LINE of the tile, 8 of k from CHUNK on. */
__device__ static inline uint32_t portable_at(uint32_t tile, uint32_t line, uint32_t chunk)
{
	return tile + line * PORTABLE_LINE + ((chunk ^ (line & 7)) << 4);
}

template <class T, int TOKENS> __device__ static inline void portable_multiply(float (&acc)[TOKENS / 8][4], uint32_t w, uint32_t x)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
	for (uint32_t chunk = 0; chunk < PORTABLE_CHUNKS; chunk += 2) {
		uint32_t a[4], b[4];

		/* Matrices: rows 0…7 and 8…15 at the first eight of k, then at the second. */
		ldmatrix_x4(a, portable_at(w, warp * 16 + lane % 16, chunk + lane / 16));
#pragma unroll
		for (int j = 0; j < TOKENS / 8; j += 2) {
			if constexpr (TOKENS == 8) {
				ldmatrix_x2(b, portable_at(x, lane % 8, chunk + lane / 8 % 2));
				mma_m16n8k16<T>(acc[0], a, b);
			} else { /* two columns of tiles */
				ldmatrix_x4(b, portable_at(x, (uint32_t)j * 8 + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2));
				mma_m16n8k16<T>(acc[j], a, b);
				mma_m16n8k16<T>(acc[j + 1], a, b + 2);
			}
		}
	}
}

template <class T, int TOKENS> static __global__ void __launch_bounds__(PORTABLE_THREADS) portable_kernel(
    const __grid_constant__ portable_args p)
{
	typedef portable_ring<TOKENS> ring;
	uint32_t shared = shared_address(shared_memory()), first = blockIdx.x * PORTABLE_ROWS, first_token = blockIdx.y * TOKENS;
	uint32_t steps = (p.k + PORTABLE_K - 1) / PORTABLE_K, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float    acc[TOKENS / 8][4] = {};

	if (p.mark && (threadIdx.x | blockIdx.x | blockIdx.y) == 0)
		*(volatile uint32_t *)p.mark = p.mark_value;
	for (uint32_t step = 0; step < steps + ring::stages - 1; step++) {
		if (step < steps) {
			uint32_t stage = shared + step % ring::stages * ring::stage_bytes;

			portable_fetch<T>(stage, PORTABLE_ROWS, (const T *)p.w, p.w_stride, first, p.n, step * PORTABLE_K, p.k);
			portable_fetch<T>(stage + PORTABLE_ROWS * PORTABLE_LINE, TOKENS, (const T *)p.x, p.x_stride, first_token, p.rows,
			    step * PORTABLE_K, p.k);
		}
		cp_async_commit(); /* empty ones keep the count */
		if (step + 1 < ring::stages)
			continue;
		cp_async_wait<ring::stages - 1>();
		__syncthreads(); /* it has come for all */
		uint32_t stage = shared + (step + 1 - ring::stages) % ring::stages * ring::stage_bytes;

		portable_multiply<T, TOKENS>(acc, stage, stage + PORTABLE_ROWS * PORTABLE_LINE);
		__syncthreads(); /* and may be overwritten */
	}
#pragma unroll
	for (int j = 0; j < TOKENS / 8; j++) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint32_t row = first_token + (uint32_t)j * 8 + lane % 4 * 2 + i % 2, out = first + warp * 16 + lane / 4 + i / 2 * 8;
			size_t   at = (size_t)row * p.y_stride + out;

			if (row >= p.rows || out >= p.n)
				continue;
			if (p.to_float)
				((float *)p.y)[at] = acc[j][i];
			else
				((T *)p.y)[at] = from_float<T>(acc[j][i]);
		}
	}
}

#endif
