/* fmt_byte_avx2.c: owns the AVX2 product with float8 e4m3 and int8 tiles (layout: fmt_byte.c; shape of a kernel:
 * linear_avx2.h).  Invariant: per output and activation row the sequence of operations is the same for every number of
 * rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

enum { SCALES = 4 * FORMAT_TILE, PART = FORMAT_GROUP_MAX, PART_BYTES = PART * FORMAT_TILE, UNROLL = 8 };

/* VECTORS · 8 values.  e4m3: the seven bits below the sign are those of a half of 2⁻⁸ times the value, also below the
 * normal numbers, where a conversion by way of float32 bits would cost assists. */
AVX2_INLINE void load_bytes(__m256 *q, const uint8_t *values, unsigned vectors, enum weight_format format)
{
	AVX2_UNROLL
	for (unsigned v = 0; v < vectors; v += 2) {
		if (format == WEIGHT_I8) {
			q[v] = avx2_signed_bytes(values, v);
			q[v + 1] = avx2_signed_bytes(values, v + 1);
		} else {
			__m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(values + 8 * v)));

			/* The sign came along to bits 14 and 15; 14 is to be clear. */
			wide = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff));
			q[v] = _mm256_cvtph_ps(_mm256_castsi256_si128(wide));
			q[v + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(wide, 1));
		}
	}
}

AVX2_INLINE void byte_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows,
    enum weight_format format)
{
	const unsigned             stride = rows == 1 ? 1 : FORMAT_ROWS;
	const struct format_layout layout = format_layout_of(call->tile);
	const __m256               unit = _mm256_set1_ps(format == WEIGHT_I8 ? 1 : 0x1p8f);
	const float               *x = call->x;
	const uint8_t             *at = call->tile + FORMAT_LAYOUT_BYTES, *scales = at;

	avx2_clear_totals(call, first, vectors, rows);
	for (uint32_t k = 0; k < call->columns; k += PART, x += PART * stride, at += PART_BYTES) {
		__m256 sum[AVX2_CHAINS_MAX];

		if (k % layout.group == 0) {
			scales = at;
			at += SCALES;
		}
		avx2_prefetch(at, PART_BYTES, layout.tile_bytes, first, vectors, rows);
		avx2_zero(sum, vectors * rows);
		for (unsigned i = 0; i < PART; i += UNROLL) {
			AVX2_UNROLL
			for (unsigned p = 0; p < UNROLL; p++) {
				__m256 q[AVX2_VECTORS];

				load_bytes(q, at + FORMAT_TILE * (i + p) + 8 * first, vectors, format);
				avx2_multiply(sum, q, x + (i + p) * stride, vectors, rows);
			}
		}
		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			__m256 scale = _mm256_mul_ps(unit, _mm256_loadu_ps((const float *)(scales + 32 * (first + v))));
			avx2_fold(call, sum, scale, first, v, rows);
		}
	}
}

LINEAR_AVX2(format_f8_e4m3_avx2, byte_body, WEIGHT_F8_E4M3)
LINEAR_AVX2(format_i8_avx2, byte_body, WEIGHT_I8)

#endif
