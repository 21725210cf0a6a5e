/* fmt_iq4_avx2.c: owns the AVX2 product with IQ4_NL and IQ4_XS tiles (layout: fmt_iq4.c; shape of a kernel:
 * linear_avx2.h).  Invariant: per output and activation row the sequence of operations is the same for every number of
 * rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

enum {
	COLUMNS = 32, SLICES = COLUMNS / 8, Q_BYTES = SLICES * FORMAT_TILE * 4, HALVES = 2 * FORMAT_TILE,
	NL_BYTES = HALVES + Q_BYTES, XS_COLUMNS = 256, XS_GROUPS = XS_COLUMNS / COLUMNS, XS_GROUP_BYTES = FORMAT_TILE + Q_BYTES,
	XS_SUPER_BYTES = HALVES + XS_GROUPS * XS_GROUP_BYTES
};

/* Adds the 32 columns of a group, every value counted from −128 so that bytes have no sign; WORDS points to the first row's
 * words.  Nibbles look up bytes: those of even columns become one word of four bytes, those of odd columns another. */
AVX2_INLINE void add_group(__m256 *sum, const uint8_t *words, const float *x, unsigned vectors, unsigned rows)
{
	static const int32_t masks[3][8] __attribute__((aligned(32))) = {
		AVX2_LANES(0xff), AVX2_LANES(0xff00), AVX2_LANES(0xff0000),
	};
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const __m256i  low = _mm256_set1_epi8(0xf);
	const __m256i  table = _mm256_xor_si256(_mm256_broadcastsi128_si256(_mm_loadu_si128(
	    (const __m128i *)format_iq4_values)), _mm256_set1_epi8((char)0x80));

	for (unsigned s = 0; s < SLICES; s++, words += 4 * FORMAT_TILE) {
		__m256i        values[2][AVX2_VECTORS];
		const __m256i *value = values[0];
		const int32_t *mask = masks[0];

		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			__m256i word = avx2_words(words, 0, v, 0);

			values[0][v] = _mm256_shuffle_epi8(table, _mm256_and_si256(word, low));
			values[1][v] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi32(word, 4), low));
		}
		__asm__("" : : "m"(values)); /* in memory on purpose: see avx2_nibbles */
		AVX2_UNROLL
		for (unsigned p = 0; p < 8; p++) {
			__m256 q[AVX2_VECTORS];

			AVX2_FORGET(mask, value);
			AVX2_UNROLL
			for (unsigned v = 0; v < vectors; v++) {
				__m256i word = value[p % 2 * AVX2_VECTORS + v];
				q[v] = _mm256_cvtepi32_ps(p < 6 ? _mm256_and_si256(word, *(const __m256i *)(mask + p / 2 % 3 * 8)) :
				    _mm256_srli_epi32(word, 24));
			}
			avx2_multiply(sum, q, x + (8 * s + p) * stride, vectors, rows);
		}
	}
}

AVX2_INLINE void iq4_nl_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * NL_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *group = call->tile, *end = group + tile_bytes;

	(void)unused;
	avx2_clear_totals(call, first, vectors, rows);
	for (; group < end; group += NL_BYTES, x += COLUMNS * stride, sums += stride) {
		__m256 sum[AVX2_CHAINS_MAX];

		avx2_prefetch(group, NL_BYTES, tile_bytes, first, vectors, rows);
		avx2_zero(sum, vectors * rows);
		add_group(sum, group + HALVES + 32 * first, x, vectors, rows);
		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			avx2_shift(sum, _mm256_set1_ps(128), sums, v, rows);
			avx2_fold(call, sum, avx2_halves(group + 16 * (first + v)), first, v, rows);
		}
	}
}

AVX2_INLINE void iq4_xs_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / XS_COLUMNS) * XS_SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	avx2_clear_totals(call, first, vectors, rows);
	for (; super < end; super += XS_SUPER_BYTES) {
		const uint8_t *group = super + HALVES;

		for (unsigned g = 0; g < XS_GROUPS; g++, group += XS_GROUP_BYTES, x += COLUMNS * stride, sums += stride) {
			__m256 sum[AVX2_CHAINS_MAX];

			avx2_prefetch(group, XS_GROUP_BYTES, tile_bytes, first, vectors, rows);
			avx2_zero(sum, vectors * rows);
			add_group(sum, group + FORMAT_TILE + 32 * first, x, vectors, rows);
			AVX2_UNROLL
			for (unsigned v = 0; v < vectors; v++) {
				__m256 scale = _mm256_mul_ps(avx2_halves(super + 16 * (first + v)), avx2_signed_bytes(group, first + v));

				avx2_shift(sum, _mm256_set1_ps(128), sums, v, rows);
				avx2_fold(call, sum, scale, first, v, rows);
			}
		}
	}
}

LINEAR_AVX2(format_iq4_nl_avx2, iq4_nl_body, 0)
LINEAR_AVX2(format_iq4_xs_avx2, iq4_xs_body, 0)

#endif
