/* fmt_q6_k_simd.c: owns the vector product with Q6_K tiles (layout: fmt_q6_k.c; shape of a kernel: linear_simd.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_simd.h"

enum {
	COLUMNS = 256, GROUP = 16, GROUPS = COLUMNS / GROUP, WORDS = 3, FIELDS = 5, D_BYTES = 2 * FORMAT_TILE,
	GROUP_BYTES = FORMAT_TILE + WORDS * FORMAT_TILE * 4, SUPER_BYTES = D_BYTES + GROUPS * GROUP_BYTES
};

/* Adds the 16 columns of one group; VALUES points to its scales, X to its first column. */
SIMD_INLINE void q6_k_group(simd_f *sum, const uint8_t *values, const float *x, unsigned stride, unsigned first,
    unsigned vectors, unsigned rows)
{
	static const int32_t masks[FIELDS][SIMD_LANES] __attribute__((aligned(4 * SIMD_LANES))) = {
		SIMD_WORDS(0x3f), SIMD_WORDS(0x3f << 6), SIMD_WORDS(0x3f << 12), SIMD_WORDS(0x3f << 18), SIMD_WORDS(0x3f << 24),
	};
	const uint8_t *words = values + FORMAT_TILE + 4 * SIMD_LANES * first;
	const int32_t *mask = masks[0];
	simd_f         q[SIMD_VECTORS];

	SIMD_UNROLL
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
		simd_i last = SIMD(srli_epi32)(simd_words(words, 0, v), 30);

		last = simd_or(last, SIMD(slli_epi32)(SIMD(srli_epi32)(simd_words(words, 1, v), 30), 2));
		last = simd_or(last, SIMD(slli_epi32)(SIMD(srli_epi32)(simd_words(words, 2, v), 30), 4));
		q[v] = SIMD(cvtepi32_ps)(last);
	}
	simd_multiply(sum, q, x + (GROUP - 1) * stride, vectors, rows);
}

SIMD_INLINE void q6_k_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	simd_clear_totals(call, first, vectors, rows);
	for (; super < end; super += SUPER_BYTES) {
		const uint8_t *values = super + D_BYTES;

		for (unsigned g = 0; g < GROUPS; g++, values += GROUP_BYTES, x += GROUP * stride, sums += stride) {
			simd_f sum[SIMD_CHAINS_MAX];

			simd_prefetch(values, GROUP_BYTES, tile_bytes, first, vectors, rows);
			simd_zero(sum, vectors * rows);
			q6_k_group(sum, values, x, stride, first, vectors, rows);
			SIMD_UNROLL
			for (unsigned v = 0; v < vectors; v++) {
				simd_f scale = SIMD(mul_ps)(simd_halves(super + 2 * SIMD_LANES * (first + v)),
				    simd_signed_bytes(values + SIMD_LANES * (first + v)));

				simd_shift(sum, SIMD(set1_ps)(32), sums, v, rows);
				simd_fold(call, sum, scale, first, v, rows);
			}
		}
	}
}

LINEAR_SIMD(format_q6_k, q6_k_body, 0)

#endif
