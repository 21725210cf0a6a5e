/* fmt_q2_k_avx2.c: owns the AVX2 product with Q2_K tiles (layout: fmt_q2_k.c; shape of a kernel: linear_avx2.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

enum {
	COLUMNS = 256, GROUP = 16, GROUPS = COLUMNS / GROUP, FIELDS = 8, HALVES = 2 * FORMAT_TILE,
	GROUP_BYTES = FORMAT_TILE + 4 * FORMAT_TILE, SUPER_BYTES = 2 * HALVES + GROUPS * GROUP_BYTES
};

/* Adds the 16 columns of a group; WORDS points to the first row's word. */
AVX2_INLINE void q2_k_group(__m256 *sum, const uint8_t *words, const float *x, unsigned vectors, unsigned rows)
{
	static const int32_t masks[FIELDS][8] __attribute__((aligned(32))) = {
		AVX2_LANES(3), AVX2_LANES(3 << 2), AVX2_LANES(3 << 4), AVX2_LANES(3 << 6), AVX2_LANES(3 << 8), AVX2_LANES(3 << 10),
		AVX2_LANES(3 << 12), AVX2_LANES(3 << 14),
	};
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const int32_t *mask = masks[0];

	for (unsigned half = 0; half < 2; half++) {
		AVX2_UNROLL
		for (unsigned p = 0; p < FIELDS; p++) {
			__m256 q[AVX2_VECTORS];

			AVX2_FORGET(mask, words); /* as in avx2_nibbles */
			AVX2_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				q[v] = _mm256_cvtepi32_ps(_mm256_and_si256(avx2_words(words, 0, v, 2 * half),
				    *(const __m256i *)(mask + 8 * p)));
			avx2_multiply(sum, q, x + (FIELDS * half + p) * stride, vectors, rows);
		}
	}
}

AVX2_INLINE void q2_k_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	avx2_clear_totals(call, first, vectors, rows);
	for (; super < end; super += SUPER_BYTES) {
		const uint8_t *group = super + 2 * HALVES;

		for (unsigned g = 0; g < GROUPS; g++, group += GROUP_BYTES, x += GROUP * stride, sums += stride) {
			__m256 sum[AVX2_CHAINS_MAX];

			avx2_prefetch(group, GROUP_BYTES, tile_bytes, first, vectors, rows);
			avx2_zero(sum, vectors * rows);
			q2_k_group(sum, group + FORMAT_TILE + 32 * first, x, vectors, rows);
			AVX2_UNROLL
			for (unsigned v = 0; v < vectors; v++) {
				__m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(group + 8 * (first + v))));
				__m256  s = _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(0xf)));
				__m256  m = _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4));
				__m256  scale = _mm256_mul_ps(avx2_halves(super + 16 * (first + v)), s);
				__m256  minimum = _mm256_mul_ps(avx2_halves(super + HALVES + 16 * (first + v)), m);

				avx2_fold_offset(call, sum, scale, _mm256_sub_ps(_mm256_setzero_ps(), minimum), sums, first, v, rows);
			}
		}
	}
}

LINEAR_AVX2(format_q2_k_avx2, q2_k_body, 0)

#endif
