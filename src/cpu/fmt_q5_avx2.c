/* fmt_q5_avx2.c: owns the AVX2 product with Q5_0, Q5_1 and Q5_K tiles (layout: fmt_q5.c; shape of a kernel:
 * linear_avx2.h).  Invariant: per output and activation row the sequence of operations is the same for every number of
 * rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

enum {
	COLUMNS = 32, WORDS = 5, FIELDS = 6, Q_BYTES = WORDS * FORMAT_TILE * 4, HALVES = 2 * FORMAT_TILE,
	K_COLUMNS = 256, K_GROUPS = K_COLUMNS / COLUMNS, K_HEAD = 2 * FORMAT_TILE, K_GROUP_BYTES = K_HEAD + Q_BYTES,
	K_SUPER_BYTES = 2 * HALVES + K_GROUPS * K_GROUP_BYTES
};

/* The top two bits of word A, at bit AT. */
AVX2_INLINE __m256i top_bits(const uint8_t *words, unsigned a, unsigned v, unsigned at)
{
	return _mm256_slli_epi32(_mm256_srli_epi32(avx2_words(words, a, v, 0), 30), (int)at);
}

/* Adds the 32 columns of a group; WORDS_AT points to the first row's words. */
AVX2_INLINE void five_bits(__m256 *sum, const uint8_t *words, const float *x, unsigned vectors, unsigned rows)
{
	static const int32_t masks[FIELDS][8] __attribute__((aligned(32))) = {
		AVX2_LANES(0x1f), AVX2_LANES(0x1f << 5), AVX2_LANES(0x1f << 10), AVX2_LANES(0x1f << 15), AVX2_LANES(0x1f << 20),
		AVX2_LANES(0x1f << 25),
	};
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const int32_t *mask = masks[0];
	__m256         q[AVX2_VECTORS], last[AVX2_VECTORS];

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
		__m256i top = _mm256_or_si256(_mm256_or_si256(top_bits(words, 0, v, 0), top_bits(words, 1, v, 2)),
		    _mm256_or_si256(_mm256_or_si256(top_bits(words, 2, v, 4), top_bits(words, 3, v, 6)), top_bits(words, 4, v, 8)));

		q[v] = _mm256_cvtepi32_ps(_mm256_and_si256(top, _mm256_set1_epi32(0x1f)));
		last[v] = _mm256_cvtepi32_ps(_mm256_srli_epi32(top, 5));
	}
	avx2_multiply(sum, q, x + (COLUMNS - 2) * stride, vectors, rows);
	avx2_multiply(sum, last, x + (COLUMNS - 1) * stride, vectors, rows);
}

AVX2_INLINE void q5_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows,
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
		five_bits(sum, group + q_at + 32 * first, x, vectors, rows);
		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			__m256 scale = avx2_halves(group + 16 * (first + v));

			if (with_minimum) {
				__m256 minimum = avx2_halves(group + HALVES + 16 * (first + v));
				avx2_fold_offset(call, sum, scale, minimum, sums, first, v, rows);
			} else {
				avx2_shift(sum, _mm256_set1_ps(16), sums, v, rows);
				avx2_fold(call, sum, scale, first, v, rows);
			}
		}
	}
}

AVX2_INLINE void q5_k_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / K_COLUMNS) * K_SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	avx2_clear_totals(call, first, vectors, rows);
	for (; super < end; super += K_SUPER_BYTES) {
		const uint8_t *group = super + 2 * HALVES;

		for (unsigned g = 0; g < K_GROUPS; g++, group += K_GROUP_BYTES, x += COLUMNS * stride, sums += stride) {
			__m256 sum[AVX2_CHAINS_MAX];

			avx2_prefetch(group, K_GROUP_BYTES, tile_bytes, first, vectors, rows);
			avx2_zero(sum, vectors * rows);
			five_bits(sum, group + K_HEAD + 32 * first, x, vectors, rows);
			AVX2_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				avx2_fold_k(call, sum, super, group, sums, first, v, rows);
		}
	}
}

LINEAR_AVX2(format_q5_0_avx2, q5_body, false)
LINEAR_AVX2(format_q5_1_avx2, q5_body, true)
LINEAR_AVX2(format_q5_k_avx2, q5_k_body, 0)

#endif
