/* fmt_q4_avx2.c: owns the AVX2 product with Q4_0 and Q4_1 tiles (layout: fmt_q4.c; shape of a kernel: linear_avx2.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

enum { COLUMNS = 32, SLICES = 4, HALVES = 2 * FORMAT_TILE, Q_BYTES = SLICES * FORMAT_TILE * 4 };

AVX2_INLINE void q4_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows,
    bool with_minimum)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   q_at = with_minimum ? 2 * HALVES : HALVES, bytes = q_at + Q_BYTES;
	const size_t   tile_bytes = call->columns / COLUMNS * bytes;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *group = call->tile, *end = group + tile_bytes;

	avx2_clear_totals(call, first, vectors, rows);
	for (; group < end; group += bytes, x += COLUMNS * stride, sums += stride) {
		__m256 sum[AVX2_CHAINS_MAX];

		avx2_prefetch(group, bytes, tile_bytes, first, vectors, rows);
		avx2_zero(sum, vectors * rows);
		avx2_nibbles(sum, group + q_at + 32 * first, x, COLUMNS, vectors, rows);
		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			__m256 scale = avx2_halves(group + 16 * (first + v));

			if (with_minimum) {
				__m256 minimum = avx2_halves(group + HALVES + 16 * (first + v));
				avx2_fold_offset(call, sum, scale, minimum, sums, first, v, rows);
			} else {
				avx2_shift(sum, _mm256_set1_ps(8), sums, v, rows);
				avx2_fold(call, sum, scale, first, v, rows);
			}
		}
	}
}

LINEAR_AVX2(format_q4_0_avx2, q4_body, false)
LINEAR_AVX2(format_q4_1_avx2, q4_body, true)

#endif
