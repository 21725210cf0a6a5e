/* fmt_q3_k_simd.c: owns the vector product with Q3_K tiles (layout: fmt_q3_k.c; shape of a kernel: linear_simd.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_simd.h"

enum {
	COLUMNS = 256, GROUP = 16, WORDS = 3, FIELDS = 10, D_BYTES = 2 * FORMAT_TILE, PAIR = 2 * GROUP,
	PAIRS = COLUMNS / PAIR,
	PAIR_BYTES = 2 * FORMAT_TILE + WORDS * FORMAT_TILE * 4, SUPER_BYTES = D_BYTES + PAIRS * PAIR_BYTES
};

/* Adds columns FROM…TO of word A's; WORDS points to the first row's. */
SIMD_INLINE void add_fields(simd_f *sum, const uint8_t *words, const float *x, const unsigned a, const unsigned from,
    const unsigned to, unsigned vectors, unsigned rows)
{
	static const int32_t masks[FIELDS][SIMD_LANES] __attribute__((aligned(4 * SIMD_LANES))) = {
		SIMD_WORDS(7), SIMD_WORDS(7 << 3), SIMD_WORDS(7 << 6), SIMD_WORDS(7 << 9), SIMD_WORDS(7 << 12),
		SIMD_WORDS(7 << 15), SIMD_WORDS(7 << 18), SIMD_WORDS(7 << 21), SIMD_WORDS(7 << 24), SIMD_WORDS(7 << 27),
	};
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const int32_t *mask = masks[0];

	SIMD_UNROLL
	for (unsigned p = from; p < to; p++) {
		simd_f q[SIMD_VECTORS];

		SIMD_FORGET(mask, words); /* as in simd_nibbles */
		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			q[v] = simd_field(simd_words(words, a, v), mask, p);
		simd_multiply(sum, q, x + (FIELDS * a + p) * stride, vectors, rows);
	}
}

/* Adds columns 30 and 31. */
SIMD_INLINE void add_last(simd_f *sum, const uint8_t *words, const float *x, unsigned vectors, unsigned rows)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	simd_f         q[SIMD_VECTORS], last[SIMD_VECTORS];

	SIMD_UNROLL
	for (unsigned v = 0; v < vectors; v++) {
		simd_i top = SIMD(srli_epi32)(simd_words(words, 0, v), 30);

		top = simd_or(top, SIMD(slli_epi32)(SIMD(srli_epi32)(simd_words(words, 1, v), 30), 2));
		top = simd_or(top, SIMD(slli_epi32)(SIMD(srli_epi32)(simd_words(words, 2, v), 30), 4));
		q[v] = SIMD(cvtepi32_ps)(simd_and(top, SIMD(set1_epi32)(7)));
		last[v] = SIMD(cvtepi32_ps)(SIMD(srli_epi32)(top, 3));
	}
	simd_multiply(sum, q, x + (PAIR - 2) * stride, vectors, rows);
	simd_multiply(sum, last, x + (PAIR - 1) * stride, vectors, rows);
}

SIMD_INLINE void fold_group(const struct simd_call *call, simd_f *sum, const uint8_t *super, const uint8_t *scales,
    const float *sums, unsigned first, unsigned vectors, unsigned rows)
{
	SIMD_UNROLL
	for (unsigned v = 0; v < vectors; v++) {
		const unsigned lane = SIMD_LANES * (first + v);
		simd_f scale = SIMD(mul_ps)(simd_halves(super + 2 * lane), simd_signed_bytes(scales + lane));

		simd_shift(sum, SIMD(set1_ps)(4), sums, v, rows);
		simd_fold(call, sum, scale, first, v, rows);
	}
}

SIMD_INLINE void q3_k_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	simd_clear_totals(call, first, vectors, rows);
	for (; super < end; super += SUPER_BYTES) {
		const uint8_t *pair = super + D_BYTES;

		for (unsigned g = 0; g < PAIRS; g++, pair += PAIR_BYTES, x += PAIR * stride, sums += 2 * stride) {
			const uint8_t *words = pair + 2 * FORMAT_TILE + 4 * SIMD_LANES * first;
			simd_f         sum[SIMD_CHAINS_MAX];

			simd_prefetch(pair, PAIR_BYTES, tile_bytes, first, vectors, rows);
			simd_zero(sum, vectors * rows);
			add_fields(sum, words, x, 0, 0, FIELDS, vectors, rows);
			add_fields(sum, words, x, 1, 0, GROUP - FIELDS, vectors, rows);
			fold_group(call, sum, super, pair, sums, first, vectors, rows);
			simd_zero(sum, vectors * rows);
			add_fields(sum, words, x, 1, GROUP - FIELDS, FIELDS, vectors, rows);
			add_fields(sum, words, x, 2, 0, FIELDS, vectors, rows);
			add_last(sum, words, x, vectors, rows);
			fold_group(call, sum, super, pair + FORMAT_TILE, sums + stride, first, vectors, rows);
		}
	}
}

LINEAR_SIMD(format_q3_k, q3_k_body, 0)

#endif
