/* fmt_float_avx2.c: owns the AVX2 product with float32, float16 and bfloat16 tiles (layout: fmt_float.c; shape of a
 * kernel: linear_avx2.h).  Invariant: per output and activation row the sequence of operations is the same for every
 * number of rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

AVX2_INLINE __m256 load_values(const uint8_t *at, enum weight_format format)
{
	switch (format) {
	case WEIGHT_F32: return _mm256_loadu_ps((const float *)at);
	case WEIGHT_F16: return avx2_halves(at);
	default: return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at)),
	    16));
	}
}

AVX2_INLINE void float_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows,
    enum weight_format format)
{
	const unsigned size = format == WEIGHT_F32 ? 4 : 2, stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   group_bytes = (size_t)FORMAT_GROUP_MAX * FORMAT_TILE * size;
	const uint8_t *group = call->tile;

	avx2_clear_totals(call, first, vectors, rows);
	for (uint32_t k = 0; k < call->columns; k += FORMAT_GROUP_MAX, group += group_bytes) {
		uint32_t       width = call->columns - k < FORMAT_GROUP_MAX ? call->columns - k : FORMAT_GROUP_MAX;
		const uint8_t *values = group + 8 * first * size;
		const float   *x = call->x + (size_t)k * stride;
		__m256         sum[AVX2_CHAINS_MAX];

		avx2_zero(sum, vectors * rows);
		for (uint32_t i = 0; i < width; i++, values += FORMAT_TILE * size, x += stride) {
			__m256 q[AVX2_VECTORS];

			AVX2_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				q[v] = load_values(values + 8 * v * size, format);
			avx2_multiply(sum, q, x, vectors, rows);
		}
		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			avx2_fold(call, sum, _mm256_set1_ps(1), first, v, rows);
	}
}

LINEAR_AVX2(format_f32_avx2, float_body, WEIGHT_F32)
LINEAR_AVX2(format_f16_avx2, float_body, WEIGHT_F16)
LINEAR_AVX2(format_bf16_avx2, float_body, WEIGHT_BF16)

#endif
