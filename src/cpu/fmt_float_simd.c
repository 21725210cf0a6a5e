/* fmt_float_simd.c: owns the vector product with float32, float16 and bfloat16 tiles (layout: fmt_float.c; shape of a
 * kernel: linear_simd.h).  Invariant: per output and activation row the sequence of operations is the same for every
 * number of rows. */
#if defined __x86_64__
#include "cpu/linear_simd.h"

SIMD_INLINE simd_f load_values(const uint8_t *at, enum weight_format format)
{
	switch (format) {
	case WEIGHT_F32: return SIMD(loadu_ps)((const float *)at);
	case WEIGHT_F16: return simd_halves(at);
	default: return simd_bfloats(at);
	}
}

SIMD_INLINE void float_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows,
    enum weight_format format)
{
	const unsigned size = format == WEIGHT_F32 ? 4 : 2, stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   group_bytes = (size_t)FORMAT_GROUP_MAX * FORMAT_TILE * size;
	const size_t   tile_bytes = (size_t)call->columns * FORMAT_TILE * size;
	const uint8_t *group = call->tile;

	simd_clear_totals(call, first, vectors, rows);
	for (uint32_t k = 0; k < call->columns; k += FORMAT_GROUP_MAX, group += group_bytes) {
		uint32_t       width = call->columns - k < FORMAT_GROUP_MAX ? call->columns - k : FORMAT_GROUP_MAX;
		const uint8_t *values = group + SIMD_LANES * first * size;
		const float   *x = call->x + (size_t)k * stride;
		simd_f         sum[SIMD_CHAINS_MAX];

		if (rows > 1 && size == 2) /* the hardware keeps up with a stream of one row, and four bytes are too much to ask for */
			simd_prefetch(group, group_bytes, tile_bytes, first, vectors, rows);
		simd_zero(sum, vectors * rows);
		for (uint32_t i = 0; i < width; i++, values += FORMAT_TILE * size, x += stride) {
			simd_f q[SIMD_VECTORS];

			SIMD_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				q[v] = load_values(values + SIMD_LANES * v * size, format);
			simd_multiply(sum, q, x, vectors, rows);
		}
		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			simd_fold(call, sum, SIMD(set1_ps)(1), first, v, rows);
	}
}

LINEAR_SIMD(format_f32, float_body, WEIGHT_F32)
LINEAR_SIMD(format_f16, float_body, WEIGHT_F16)
LINEAR_SIMD(format_bf16, float_body, WEIGHT_BF16)

#endif
