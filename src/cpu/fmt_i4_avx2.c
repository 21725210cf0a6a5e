/* fmt_i4_avx2.c: owns the AVX2 product with four-bit tiles (layout: fmt_i4.c; shape of a kernel: linear_avx2.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

enum { PART = FORMAT_GROUP_MAX, SLICES = PART / 8, PART_BYTES = SLICES * FORMAT_TILE * 4 };

/* Eight lanes of one value. */
#define LANES(value) { value, value, value, value, value, value, value, value }

/* Adds 32 columns. */
AVX2_INLINE void i4_part(__m256 *sum, const uint8_t *part, const float *x, unsigned first, unsigned vectors,
    unsigned rows)
{
	static const int32_t masks[4][8] __attribute__((aligned(32))) = {
		LANES(0xf), LANES(0xf0), LANES(0xf00), LANES(0xf000),
	};
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;

	for (unsigned s = 0; s < SLICES; s++) {
		const uint8_t *words = part + 4 * (FORMAT_TILE * s + 8 * first);
		const int32_t *mask = masks[0];

		AVX2_UNROLL
		for (unsigned p = 0; p < 8; p++) {
			__m256 q[AVX2_VECTORS];

			__asm__("" : "+r"(mask), "+r"(words)); /* as in fmt_q4_avx2.c */
			AVX2_UNROLL
			for (unsigned v = 0; v < vectors; v++) {
				__m256i word = _mm256_loadu_si256((const __m256i *)(words + 32 * v + (p < 4 ? 0 : 2)));
				q[v] = _mm256_cvtepi32_ps(_mm256_and_si256(word, *(const __m256i *)(mask + 8 * (p % 4))));
			}
			avx2_multiply(sum, q, x + (8 * s + p) * stride, vectors, rows);
		}
	}
}

AVX2_INLINE __m256 load_scales(const uint8_t *scales, unsigned v, uint32_t type)
{
	if (type == WEIGHT_F16)
		return avx2_halves(scales + 16 * v);
	if (type == WEIGHT_BF16)
		return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(
		    (const __m128i *)(scales + 16 * v))), 16));
	return _mm256_loadu_ps((const float *)(scales + 32 * v));
}

AVX2_INLINE void i4_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned             stride = rows == 1 ? 1 : FORMAT_ROWS;
	const struct format_layout layout = format_layout_of(call->tile);
	const size_t               head = format_i4_head_bytes(&layout);
	const float               *x = call->x, *sums = call->sums;
	const uint8_t             *at = call->tile + FORMAT_LAYOUT_BYTES, *group = at;

	(void)unused;
	avx2_clear_totals(call, first, vectors, rows);
	for (uint32_t k = 0; k < call->columns; k += PART, x += PART * stride, sums += stride, at += PART_BYTES) {
		__m256 sum[AVX2_CHAINS_MAX];

		if (k % layout.group == 0) {
			group = at;
			at += head;
		}
		avx2_prefetch(at, PART_BYTES, layout.tile_bytes, first, vectors, rows);
		avx2_zero(sum, vectors * rows);
		i4_part(sum, at, x, first, vectors, rows);
		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			const uint8_t *zeros = group + head - FORMAT_TILE + 8 * (first + v);
			__m256         zero = _mm256_set1_ps(8);

			if (layout.zeros)
				zero = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)zeros)));
			avx2_shift(sum, zero, sums, v, rows);
			avx2_fold(call, sum, load_scales(group, first + v, layout.scale_type), first, v, rows);
		}
	}
}

LINEAR_AVX2(format_i4_avx2, i4_body, 0)

#endif
