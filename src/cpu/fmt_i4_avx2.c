/* fmt_i4_avx2.c: owns the AVX2 product with four-bit tiles (layout: fmt_i4.c; shape of a kernel: linear_avx2.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

enum { PART = FORMAT_GROUP_MAX, PART_BYTES = PART / 8 * FORMAT_TILE * 4 };

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
		avx2_nibbles(sum, at + 32 * first, x, PART, vectors, rows);
		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			avx2_shift(sum, layout.zeros ? avx2_unsigned_bytes(group + head - FORMAT_TILE, first + v) :
			    _mm256_set1_ps(8), sums, v, rows);
			avx2_fold(call, sum, load_scales(group, first + v, layout.scale_type), first, v, rows);
		}
	}
}

LINEAR_AVX2(format_i4_avx2, i4_body, 0)

#endif
