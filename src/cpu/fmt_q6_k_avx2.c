/* fmt_q6_k_avx2.c: owns the AVX2 product with Q6_K tiles (layout: fmt_q6_k.c; shape of a kernel: linear_avx2.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

enum {
	COLUMNS = 256, GROUP = 16, GROUPS = COLUMNS / GROUP, WORDS = 3, FIELDS = 5, D_BYTES = 2 * FORMAT_TILE,
	GROUP_BYTES = FORMAT_TILE + WORDS * FORMAT_TILE * 4, SUPER_BYTES = D_BYTES + GROUPS * GROUP_BYTES
};

/* Adds the 16 columns of one group; VALUES points to its scales, X to its first column. */
AVX2_INLINE void q6_k_group(__m256 *sum, const uint8_t *values, const float *x, unsigned stride, unsigned first,
    unsigned vectors, unsigned rows)
{
	static const int32_t masks[FIELDS][8] __attribute__((aligned(32))) = {
		AVX2_LANES(0x3f), AVX2_LANES(0x3f << 6), AVX2_LANES(0x3f << 12), AVX2_LANES(0x3f << 18), AVX2_LANES(0x3f << 24),
	};
	const uint8_t *words = values + FORMAT_TILE + 32 * first;
	const int32_t *mask = masks[0];
	__m256         q[AVX2_VECTORS];

	AVX2_UNROLL
	for (unsigned a = 0; a < WORDS; a++) {
		AVX2_UNROLL
		for (unsigned p = 0; p < FIELDS; p++) {
			AVX2_FORGET(mask, words); /* as in avx2_nibbles */
			AVX2_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				q[v] = _mm256_cvtepi32_ps(_mm256_and_si256(avx2_words(words, a, v, 0), *(const __m256i *)(mask + 8 * p)));
			avx2_multiply(sum, q, x + (FIELDS * a + p) * stride, vectors, rows);
		}
	}
	AVX2_UNROLL
	for (unsigned v = 0; v < vectors; v++) {
		__m256i last = _mm256_srli_epi32(avx2_words(words, 0, v, 0), 30);

		last = _mm256_or_si256(last, _mm256_slli_epi32(_mm256_srli_epi32(avx2_words(words, 1, v, 0), 30), 2));
		last = _mm256_or_si256(last, _mm256_slli_epi32(_mm256_srli_epi32(avx2_words(words, 2, v, 0), 30), 4));
		q[v] = _mm256_cvtepi32_ps(last);
	}
	avx2_multiply(sum, q, x + (GROUP - 1) * stride, vectors, rows);
}

AVX2_INLINE void q6_k_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	avx2_clear_totals(call, first, vectors, rows);
	for (; super < end; super += SUPER_BYTES) {
		const uint8_t *values = super + D_BYTES;

		for (unsigned g = 0; g < GROUPS; g++, values += GROUP_BYTES, x += GROUP * stride, sums += stride) {
			__m256 sum[AVX2_CHAINS_MAX];

			avx2_prefetch(values, GROUP_BYTES, tile_bytes, first, vectors, rows);
			avx2_zero(sum, vectors * rows);
			q6_k_group(sum, values, x, stride, first, vectors, rows);
			AVX2_UNROLL
			for (unsigned v = 0; v < vectors; v++) {
				__m256 scale = _mm256_mul_ps(avx2_halves(super + 16 * (first + v)), avx2_signed_bytes(values, first + v));

				avx2_shift(sum, _mm256_set1_ps(32), sums, v, rows);
				avx2_fold(call, sum, scale, first, v, rows);
			}
		}
	}
}

LINEAR_AVX2(format_q6_k_avx2, q6_k_body, 0)

#endif
