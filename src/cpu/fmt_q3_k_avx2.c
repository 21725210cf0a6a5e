/* fmt_q3_k_avx2.c: owns the AVX2 product with Q3_K tiles (layout: fmt_q3_k.c; shape of a kernel: linear_avx2.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

enum {
	COLUMNS = 256, GROUP = 16, WORDS = 3, FIELDS = 10, D_BYTES = 2 * FORMAT_TILE, PAIR = 2 * GROUP, PAIRS = COLUMNS / PAIR,
	PAIR_BYTES = 2 * FORMAT_TILE + WORDS * FORMAT_TILE * 4, SUPER_BYTES = D_BYTES + PAIRS * PAIR_BYTES
};

/* Adds columns FROM…TO of word A's; WORDS points to the first row's. */
AVX2_INLINE void add_fields(__m256 *sum, const uint8_t *words, const float *x, const unsigned a, const unsigned from,
    const unsigned to, unsigned vectors, unsigned rows)
{
	static const int32_t masks[FIELDS][8] __attribute__((aligned(32))) = {
		AVX2_LANES(7), AVX2_LANES(7 << 3), AVX2_LANES(7 << 6), AVX2_LANES(7 << 9), AVX2_LANES(7 << 12), AVX2_LANES(7 << 15),
		AVX2_LANES(7 << 18), AVX2_LANES(7 << 21), AVX2_LANES(7 << 24), AVX2_LANES(7 << 27),
	};
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const int32_t *mask = masks[0];

	AVX2_UNROLL
	for (unsigned p = from; p < to; p++) {
		__m256 q[AVX2_VECTORS];

		AVX2_FORGET(mask, words); /* as in avx2_nibbles */
		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			q[v] = _mm256_cvtepi32_ps(_mm256_and_si256(avx2_words(words, a, v, 0), *(const __m256i *)(mask + 8 * p)));
		avx2_multiply(sum, q, x + (FIELDS * a + p) * stride, vectors, rows);
	}
}

/* Adds columns 30 and 31. */
AVX2_INLINE void add_last(__m256 *sum, const uint8_t *words, const float *x, unsigned vectors, unsigned rows)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	__m256         q[AVX2_VECTORS], last[AVX2_VECTORS];

	AVX2_UNROLL
	for (unsigned v = 0; v < vectors; v++) {
		__m256i top = _mm256_srli_epi32(avx2_words(words, 0, v, 0), 30);

		top = _mm256_or_si256(top, _mm256_slli_epi32(_mm256_srli_epi32(avx2_words(words, 1, v, 0), 30), 2));
		top = _mm256_or_si256(top, _mm256_slli_epi32(_mm256_srli_epi32(avx2_words(words, 2, v, 0), 30), 4));
		q[v] = _mm256_cvtepi32_ps(_mm256_and_si256(top, _mm256_set1_epi32(7)));
		last[v] = _mm256_cvtepi32_ps(_mm256_srli_epi32(top, 3));
	}
	avx2_multiply(sum, q, x + (PAIR - 2) * stride, vectors, rows);
	avx2_multiply(sum, last, x + (PAIR - 1) * stride, vectors, rows);
}

AVX2_INLINE void fold_group(const struct avx2_call *call, __m256 *sum, const uint8_t *super, const uint8_t *scales,
    const float *sums, unsigned first, unsigned vectors, unsigned rows)
{
	AVX2_UNROLL
	for (unsigned v = 0; v < vectors; v++) {
		__m256 scale = _mm256_mul_ps(avx2_halves(super + 16 * (first + v)), avx2_signed_bytes(scales, first + v));

		avx2_shift(sum, _mm256_set1_ps(4), sums, v, rows);
		avx2_fold(call, sum, scale, first, v, rows);
	}
}

AVX2_INLINE void q3_k_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	avx2_clear_totals(call, first, vectors, rows);
	for (; super < end; super += SUPER_BYTES) {
		const uint8_t *pair = super + D_BYTES;

		for (unsigned g = 0; g < PAIRS; g++, pair += PAIR_BYTES, x += PAIR * stride, sums += 2 * stride) {
			const uint8_t *words = pair + 2 * FORMAT_TILE + 32 * first;
			__m256         sum[AVX2_CHAINS_MAX];

			avx2_prefetch(pair, PAIR_BYTES, tile_bytes, first, vectors, rows);
			avx2_zero(sum, vectors * rows);
			add_fields(sum, words, x, 0, 0, FIELDS, vectors, rows);
			add_fields(sum, words, x, 1, 0, GROUP - FIELDS, vectors, rows);
			fold_group(call, sum, super, pair, sums, first, vectors, rows);
			avx2_zero(sum, vectors * rows);
			add_fields(sum, words, x, 1, GROUP - FIELDS, FIELDS, vectors, rows);
			add_fields(sum, words, x, 2, 0, FIELDS, vectors, rows);
			add_last(sum, words, x, vectors, rows);
			fold_group(call, sum, super, pair + FORMAT_TILE, sums + stride, first, vectors, rows);
		}
	}
}

LINEAR_AVX2(format_q3_k_avx2, q3_k_body, 0)

#endif
