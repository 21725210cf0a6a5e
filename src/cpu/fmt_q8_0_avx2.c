/* fmt_q8_0_avx2.c: owns the AVX2 product with Q8_0 tiles (layout: fmt_q8_0.c; shape of a kernel: linear_avx2.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

enum { COLUMNS = 32, Q_AT = 2 * FORMAT_TILE, BYTES = Q_AT + COLUMNS * FORMAT_TILE, UNROLL = 8 };

AVX2_INLINE void q8_0_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * BYTES;
	const float   *x = call->x;
	const uint8_t *group = call->tile, *end = group + tile_bytes;

	(void)unused;
	avx2_clear_totals(call, first, vectors, rows);
	for (; group < end; group += BYTES, x += COLUMNS * stride) {
		__m256 sum[AVX2_CHAINS_MAX];

		avx2_prefetch(group, BYTES, tile_bytes, first, vectors, rows);
		avx2_zero(sum, vectors * rows);
		for (unsigned k = 0; k < COLUMNS; k += UNROLL) {
			AVX2_UNROLL
			for (unsigned p = 0; p < UNROLL; p++) {
				const uint8_t *values = group + Q_AT + FORMAT_TILE * (k + p) + 8 * first;
				__m256         q[AVX2_VECTORS];

				AVX2_UNROLL
				for (unsigned v = 0; v < vectors; v++)
					q[v] = avx2_signed_bytes(values, v);
				avx2_multiply(sum, q, x + (k + p) * stride, vectors, rows);
			}
		}
		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			avx2_fold(call, sum, avx2_halves(group + 16 * (first + v)), first, v, rows);
	}
}

LINEAR_AVX2(format_q8_0_avx2, q8_0_body, 0)

#endif
