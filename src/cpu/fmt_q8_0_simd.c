/* fmt_q8_0_simd.c: owns the vector product with Q8_0 tiles (layout: fmt_q8_0.c; shape of a kernel: linear_simd.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_simd.h"

enum { COLUMNS = 32, Q_AT = 2 * FORMAT_TILE, BYTES = Q_AT + COLUMNS * FORMAT_TILE, UNROLL = 8 };

SIMD_INLINE void q8_0_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * BYTES;
	const float   *x = call->x;
	const uint8_t *group = call->tile, *end = group + tile_bytes;

	(void)unused;
	simd_clear_totals(call, first, vectors, rows);
	for (; group < end; group += BYTES, x += COLUMNS * stride) {
		simd_f sum[SIMD_CHAINS_MAX];

		simd_prefetch(group, BYTES, tile_bytes, first, vectors, rows);
		simd_zero(sum, vectors * rows);
		for (unsigned k = 0; k < COLUMNS; k += UNROLL) {
			SIMD_UNROLL
			for (unsigned p = 0; p < UNROLL; p++) {
				const uint8_t *values = group + Q_AT + FORMAT_TILE * (k + p) + SIMD_LANES * first;
				simd_f         q[SIMD_VECTORS];

				SIMD_UNROLL
				for (unsigned v = 0; v < vectors; v++)
					q[v] = simd_signed_bytes(values + SIMD_LANES * v);
				simd_multiply(sum, q, x + (k + p) * stride, vectors, rows);
			}
		}
		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			simd_fold(call, sum, simd_halves(group + 2 * SIMD_LANES * (first + v)), first, v, rows);
	}
}

LINEAR_SIMD(format_q8_0, q8_0_body, 0)

#endif
