/* fmt_i4_simd.c: owns the vector product with four-bit tiles (layout: fmt_i4.c; shape of a kernel: linear_simd.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_simd.h"

enum { PART = FORMAT_GROUP_MAX, PART_BYTES = PART / 8 * FORMAT_TILE * 4 };

SIMD_INLINE simd_f load_scales(const uint8_t *scales, unsigned v, uint32_t type)
{
	if (type == WEIGHT_F16)
		return simd_halves(scales + 2 * SIMD_LANES * v);
	if (type == WEIGHT_BF16)
		return simd_bfloats(scales + 2 * SIMD_LANES * v);
	return SIMD(loadu_ps)((const float *)(scales + 4 * SIMD_LANES * v));
}

#if defined __AVX512F__
/* SPANS parts of PART columns, all of the group of scales at GROUP. */
SIMD_INLINE void i4_parts(const struct simd_call *call, const struct format_layout *layout, const uint8_t *group,
    const uint8_t *at, const float *x, const float *sums, unsigned spans, unsigned first, unsigned vectors, unsigned rows)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const uint8_t *zeros = group + format_i4_head_bytes(layout) - FORMAT_TILE + SIMD_LANES * first;
	simd_f         sum[SIMD_CHAINS_MAX];

	SIMD_UNROLL
	for (unsigned span = 0; span < spans; span++)
		simd_prefetch(at + span * PART_BYTES, PART_BYTES, layout->tile_bytes, first, vectors, rows);
	simd_zero(sum, spans * vectors * rows);
	simd_nibbles(sum, at + 4 * SIMD_LANES * first, PART_BYTES, x, PART, spans, vectors, rows);
	SIMD_UNROLL
	for (unsigned v = 0; v < vectors; v++) {
		const simd_f scale = load_scales(group, first + v, layout->scale_type);
		const simd_f zero = layout->zeros ? simd_unsigned_bytes(zeros + SIMD_LANES * v) : SIMD(set1_ps)(8);

		SIMD_UNROLL
		for (unsigned span = 0; span < spans; span++) {
			simd_shift(sum + span * vectors * rows, zero, sums + span * stride, v, rows);
			simd_fold(call, sum + span * vectors * rows, scale, first, v, rows);
		}
	}
}

SIMD_INLINE void i4_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned             stride = rows == 1 ? 1 : FORMAT_ROWS;
	const struct format_layout layout = format_layout_of(call->tile);
	const float               *x = call->x, *sums = call->sums;
	const uint8_t             *at = call->tile + FORMAT_LAYOUT_BYTES, *group = at;

	(void)unused;
	simd_clear_totals(call, first, vectors, rows);
	for (uint32_t k = 0; k < call->columns;) {
		uint32_t end = call->columns - k < layout.group ? call->columns : k + layout.group;

		group = at;
		at += format_i4_head_bytes(&layout);
		for (; rows == 1 && k + SIMD_SPANS * PART <= end; k += SIMD_SPANS * PART) {
			i4_parts(call, &layout, group, at, x, sums, SIMD_SPANS, first, vectors, rows);
			at += SIMD_SPANS * PART_BYTES;
			x += SIMD_SPANS * PART;
			sums += SIMD_SPANS;
		}
		for (; k < end; k += PART, x += PART * stride, sums += stride, at += PART_BYTES)
			i4_parts(call, &layout, group, at, x, sums, 1, first, vectors, rows);
	}
}

LINEAR_SIMD(format_i4, i4_body, 0)
#else
#include "cpu/limbs_simd.h"

/* y += scale · Σ (q − zero) · x of a group; TOTALS are high and rest of Σ x. */
SIMD_INLINE void i4_fold(const struct simd_call *call, const struct format_layout *layout, const uint8_t *group,
    struct limbs_sums *sums, const float (*totals)[2], unsigned rows)
{
	const uint8_t *zeros = group + format_i4_head_bytes(layout) - FORMAT_TILE;

	for (unsigned v = 0; v < SIMD_VECTORS; v++) {
		const simd_f scale = load_scales(group, v, layout->scale_type);
		const simd_f zero = layout->zeros ? simd_unsigned_bytes(zeros + SIMD_LANES * v) : SIMD(set1_ps)(8);

		for (unsigned r = 0; r < rows; r++) {
			const simd_f sum = limbs_take(sums, v, r, zero, totals[r]);
			float       *y = simd_total(call, 0, v, r);

			SIMD(storeu_ps)(y, SIMD(fmadd_ps)(scale, sum, SIMD(loadu_ps)(y)));
		}
	}
}

SIMD_INLINE void i4_body(const struct simd_call *call, unsigned rows, int unused)
{
	const unsigned             stride = rows == 1 ? 1 : FORMAT_ROWS;
	const struct format_layout layout = format_layout_of(call->tile);
	const struct format_limbs *x = (const struct format_limbs *)call->x;
	const uint8_t             *at = call->tile + FORMAT_LAYOUT_BYTES, *group;
	struct limbs_sums          sums;

	(void)unused;
	simd_clear_totals(call, 0, SIMD_VECTORS, rows);
	limbs_clear(&sums, rows);
	for (uint32_t k = 0; k < call->columns;) {
		uint32_t end = call->columns - k < layout.group ? call->columns : k + layout.group;
		float    totals[FORMAT_ROWS][2] = { 0 };

		group = at;
		at += format_i4_head_bytes(&layout);
		for (; k < end; k += FORMAT_LIMB_COLUMNS, x += stride, at += LIMBS_BYTES) {
			simd_prefetch(at, LIMBS_BYTES, layout.tile_bytes, 0, SIMD_VECTORS, rows);
			limbs_columns(at, x, rows, &sums);
			for (unsigned r = 0; r < rows; r++) {
				totals[r][0] += x[r].high;
				totals[r][1] += x[r].rest;
			}
		}
		i4_fold(call, &layout, group, &sums, totals, rows);
	}
}

LIMBS_LINEAR(format_i4, i4_body, 0)
#endif

#endif
