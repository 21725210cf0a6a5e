/* fmt_byte_simd.c: owns the vector product with float8 e4m3 and int8 tiles (layout: fmt_byte.c; shape of a kernel:
 * linear_simd.h).  Invariant: per output and activation row the sequence of operations is the same for every number of
 * rows. */
#if defined __x86_64__
#include "cpu/linear_simd.h"

enum { SCALES = 4 * FORMAT_TILE, PART = FORMAT_GROUP_MAX, PART_BYTES = PART * FORMAT_TILE, UNROLL = 8 };

/* VECTORS registers of values.  e4m3: the seven bits below the sign are those of a half of 2⁻⁸ times the value, also below the
 * normal numbers, where a conversion by way of float32 bits would cost assists. */
SIMD_INLINE void load_bytes(simd_f *q, const uint8_t *values, unsigned vectors, enum weight_format format)
{
	if (format == WEIGHT_I8) {
		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			q[v] = simd_signed_bytes(values + SIMD_LANES * v);
		return;
	}
	SIMD_UNROLL
	for (unsigned v = 0; v < vectors; v += 16 / SIMD_LANES) {
		__m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(values + SIMD_LANES * v)));

		/* The sign came along to bits 14 and 15; 14 is to be clear. */
		wide = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff));
#if defined __AVX512F__
		q[v] = _mm512_cvtph_ps(wide);
#else
		q[v] = _mm256_cvtph_ps(_mm256_castsi256_si128(wide));
		q[v + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(wide, 1));
#endif
	}
}

SIMD_INLINE void byte_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows,
    enum weight_format format)
{
	const unsigned             stride = rows == 1 ? 1 : FORMAT_ROWS;
	const struct format_layout layout = format_layout_of(call->tile);
	const simd_f               unit = SIMD(set1_ps)(format == WEIGHT_I8 ? 1 : 0x1p8f);
	const float               *x = call->x;
	const uint8_t             *at = call->tile + FORMAT_LAYOUT_BYTES, *scales = at;

	simd_clear_totals(call, first, vectors, rows);
	for (uint32_t k = 0; k < call->columns; k += PART, x += PART * stride, at += PART_BYTES) {
		simd_f sum[SIMD_CHAINS_MAX];

		if (k % layout.group == 0) {
			scales = at;
			at += SCALES;
		}
		simd_prefetch(at, PART_BYTES, layout.tile_bytes, first, vectors, rows);
		simd_zero(sum, vectors * rows);
		for (unsigned i = 0; i < PART; i += UNROLL) {
			SIMD_UNROLL
			for (unsigned p = 0; p < UNROLL; p++) {
				simd_f q[SIMD_VECTORS];

				load_bytes(q, at + FORMAT_TILE * (i + p) + SIMD_LANES * first, vectors, format);
				simd_multiply(sum, q, x + (i + p) * stride, vectors, rows);
			}
		}
		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			simd_f scale = SIMD(mul_ps)(unit, SIMD(loadu_ps)((const float *)(scales + 4 * SIMD_LANES * (first + v))));
			simd_fold(call, sum, scale, first, v, rows);
		}
	}
}

LINEAR_SIMD(format_f8_e4m3, byte_body, WEIGHT_F8_E4M3)
LINEAR_SIMD(format_i8, byte_body, WEIGHT_I8)

#endif
