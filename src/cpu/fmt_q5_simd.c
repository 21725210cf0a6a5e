/* fmt_q5_simd.c: owns the vector product with Q5_0, Q5_1 and Q5_K tiles (layout: fmt_q5.c; shape of a kernel:
 * linear_simd.h).  Invariant: per output and activation row the sequence of operations is the same for every number of
 * rows. */
#if defined __x86_64__
#include "cpu/linear_simd.h"

enum {
	COLUMNS = 32, WORDS = 5, FIELDS = 6, Q_BYTES = WORDS * FORMAT_TILE * 4, HALVES = 2 * FORMAT_TILE,
	K_COLUMNS = 256, K_GROUPS = K_COLUMNS / COLUMNS, K_HEAD = 2 * FORMAT_TILE, K_GROUP_BYTES = K_HEAD + Q_BYTES,
	K_SUPER_BYTES = 2 * HALVES + K_GROUPS * K_GROUP_BYTES
};

/* The top two bits of word A, at bit AT. */
SIMD_INLINE simd_i top_bits(const uint8_t *words, unsigned a, unsigned v, unsigned at)
{
	return SIMD(slli_epi32)(SIMD(srli_epi32)(simd_words(words, a, v), 30), (int)at);
}

/* Adds the 32 columns of a group; WORDS_AT points to the first row's words. */
SIMD_INLINE void five_bits(simd_f *sum, const uint8_t *words, const float *x, unsigned vectors, unsigned rows)
{
	static const int32_t masks[FIELDS][SIMD_LANES] __attribute__((aligned(4 * SIMD_LANES))) = {
		SIMD_WORDS(0x1f), SIMD_WORDS(0x1f << 5), SIMD_WORDS(0x1f << 10), SIMD_WORDS(0x1f << 15), SIMD_WORDS(0x1f << 20),
		SIMD_WORDS(0x1f << 25),
	};
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const int32_t *mask = masks[0];
	simd_f         q[SIMD_VECTORS], last[SIMD_VECTORS];

	for (unsigned a = 0; a < WORDS; a++) {
		SIMD_UNROLL
		for (unsigned p = 0; p < FIELDS; p++) {
			SIMD_FORGET(mask, words); /* as in simd_nibbles */
			SIMD_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				q[v] = simd_field(simd_words(words, a, v), mask, p);
			simd_multiply(sum, q, x + (FIELDS * a + p) * stride, vectors, rows);
		}
	}
	SIMD_UNROLL
	for (unsigned v = 0; v < vectors; v++) {
		simd_i top = top_bits(words, 0, v, 0);

		SIMD_UNROLL
		for (unsigned a = 1; a < WORDS; a++)
			top = simd_or(top, top_bits(words, a, v, 2 * a));
		q[v] = SIMD(cvtepi32_ps)(simd_and(top, SIMD(set1_epi32)(0x1f)));
		last[v] = SIMD(cvtepi32_ps)(SIMD(srli_epi32)(top, 5));
	}
	simd_multiply(sum, q, x + (COLUMNS - 2) * stride, vectors, rows);
	simd_multiply(sum, last, x + (COLUMNS - 1) * stride, vectors, rows);
}

SIMD_INLINE void q5_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows,
    bool with_minimum)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   q_at = with_minimum ? 2 * HALVES : HALVES, bytes = q_at + Q_BYTES;
	const size_t   tile_bytes = call->columns / COLUMNS * bytes;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *group = call->tile, *end = group + tile_bytes;

	simd_clear_totals(call, first, vectors, rows);
	for (; group < end; group += bytes, x += COLUMNS * stride, sums += stride) {
		simd_f sum[SIMD_CHAINS_MAX];

		simd_prefetch(group, bytes, tile_bytes, first, vectors, rows);
		simd_zero(sum, vectors * rows);
		five_bits(sum, group + q_at + 4 * SIMD_LANES * first, x, vectors, rows);
		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			simd_f scale = simd_halves(group + 2 * SIMD_LANES * (first + v));

			if (with_minimum) {
				simd_f minimum = simd_halves(group + HALVES + 2 * SIMD_LANES * (first + v));
				simd_fold_offset(call, sum, scale, minimum, sums, first, v, rows);
			} else {
				simd_shift(sum, SIMD(set1_ps)(16), sums, v, rows);
				simd_fold(call, sum, scale, first, v, rows);
			}
		}
	}
}

SIMD_INLINE void q5_k_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / K_COLUMNS) * K_SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	simd_clear_totals(call, first, vectors, rows);
	for (; super < end; super += K_SUPER_BYTES) {
		const uint8_t *group = super + 2 * HALVES;

		for (unsigned g = 0; g < K_GROUPS; g++, group += K_GROUP_BYTES, x += COLUMNS * stride, sums += stride) {
			simd_f sum[SIMD_CHAINS_MAX];

			simd_prefetch(group, K_GROUP_BYTES, tile_bytes, first, vectors, rows);
			simd_zero(sum, vectors * rows);
			five_bits(sum, group + K_HEAD + 4 * SIMD_LANES * first, x, vectors, rows);
			SIMD_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				simd_fold_k(call, sum, super, group, sums, first, v, rows);
		}
	}
}

LINEAR_SIMD(format_q5_0, q5_body, false)
LINEAR_SIMD(format_q5_1, q5_body, true)
LINEAR_SIMD(format_q5_k, q5_k_body, 0)

#endif
