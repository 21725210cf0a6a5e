/* fmt_q2_k_simd.c: owns the vector product with Q2_K tiles (layout: fmt_q2_k.c; shape of a kernel: linear_simd.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_simd.h"

enum {
	COLUMNS = 256, GROUP = 16, GROUPS = COLUMNS / GROUP, FIELDS = 8, HALVES = 2 * FORMAT_TILE,
	GROUP_BYTES = FORMAT_TILE + 4 * FORMAT_TILE, SUPER_BYTES = 2 * HALVES + GROUPS * GROUP_BYTES
};

/* Adds the 16 columns of a group; WORDS points to the first row's word. */
SIMD_INLINE void q2_k_group(simd_f *sum, const uint8_t *words, const float *x, unsigned vectors, unsigned rows)
{
	static const int32_t masks[FIELDS][SIMD_LANES] __attribute__((aligned(4 * SIMD_LANES))) = {
		SIMD_WORDS(3), SIMD_WORDS(3 << 2), SIMD_WORDS(3 << 4), SIMD_WORDS(3 << 6), SIMD_WORDS(3 << 8),
		SIMD_WORDS(3 << 10), SIMD_WORDS(3 << 12), SIMD_WORDS(3 << 14),
	};
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const int32_t *mask = masks[0];

	SIMD_UNROLL
	for (unsigned half = 0; half < 2; half++) {
		SIMD_UNROLL
		for (unsigned p = 0; p < FIELDS; p++) {
			simd_f q[SIMD_VECTORS];

			SIMD_FORGET(mask, words); /* as in simd_nibbles */
			SIMD_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				q[v] = simd_field(simd_half_words(words, v, half), mask, p);
			simd_multiply(sum, q, x + (FIELDS * half + p) * stride, vectors, rows);
		}
	}
}

SIMD_INLINE void q2_k_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	simd_clear_totals(call, first, vectors, rows);
	for (; super < end; super += SUPER_BYTES) {
		const uint8_t *group = super + 2 * HALVES;

		for (unsigned g = 0; g < GROUPS; g++, group += GROUP_BYTES, x += GROUP * stride, sums += stride) {
			simd_f sum[SIMD_CHAINS_MAX];

			simd_prefetch(group, GROUP_BYTES, tile_bytes, first, vectors, rows);
			simd_zero(sum, vectors * rows);
			q2_k_group(sum, group + FORMAT_TILE + 4 * SIMD_LANES * first, x, vectors, rows);
			SIMD_UNROLL
			for (unsigned v = 0; v < vectors; v++) {
				simd_i both = simd_unsigned_words(group + SIMD_LANES * (first + v));
				simd_f  s = SIMD(cvtepi32_ps)(simd_and(both, SIMD(set1_epi32)(0xf)));
				simd_f  m = SIMD(cvtepi32_ps)(SIMD(srli_epi32)(both, 4));
				simd_f  scale = SIMD(mul_ps)(simd_halves(super + 2 * SIMD_LANES * (first + v)), s);
				simd_f  minimum = SIMD(mul_ps)(simd_halves(super + HALVES + 2 * SIMD_LANES * (first + v)), m);

				simd_fold_offset(call, sum, scale, SIMD(sub_ps)(SIMD(setzero_ps)(), minimum), sums, first, v, rows);
			}
		}
	}
}

LINEAR_SIMD(format_q2_k, q2_k_body, 0)

#endif
