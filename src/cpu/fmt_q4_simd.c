/* fmt_q4_simd.c: owns the vector product with Q4_0 and Q4_1 tiles (layout: fmt_q4.c; shape of a kernel: linear_simd.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_simd.h"

enum { COLUMNS = 32, SLICES = 4, HALVES = 2 * FORMAT_TILE, Q_BYTES = SLICES * FORMAT_TILE * 4 };

#if defined __AVX512F__
SIMD_INLINE void q4_groups(const struct simd_call *call, const uint8_t *group, size_t tile_bytes, const float *x,
    const float *sums, unsigned spans, unsigned first, unsigned vectors, unsigned rows, bool with_minimum)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS, q_at = with_minimum ? 2 * HALVES : HALVES, bytes = q_at + Q_BYTES;
	simd_f         sum[SIMD_CHAINS_MAX];

	SIMD_UNROLL
	for (unsigned span = 0; span < spans; span++)
		simd_prefetch(group + span * bytes, bytes, tile_bytes, first, vectors, rows);
	simd_zero(sum, spans * vectors * rows);
	simd_nibbles(sum, group + q_at + 4 * SIMD_LANES * first, bytes, x, COLUMNS, spans, vectors, rows);
	SIMD_UNROLL
	for (unsigned i = 0; i < spans * vectors; i++) {
		const unsigned v = i % vectors, span = i / vectors;
		const uint8_t *halves = group + span * bytes + 2 * SIMD_LANES * (first + v);
		simd_f        *these = sum + span * vectors * rows;
		const float   *totals = sums + span * stride;

		if (with_minimum) {
			simd_fold_offset(call, these, simd_halves(halves), simd_halves(halves + HALVES), totals, first, v, rows);
		} else {
			simd_shift(these, SIMD(set1_ps)(8), totals, v, rows);
			simd_fold(call, these, simd_halves(halves), first, v, rows);
		}
	}
}

SIMD_INLINE void q4_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows,
    bool with_minimum)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   bytes = (with_minimum ? 2 * HALVES : HALVES) + Q_BYTES;
	const size_t   tile_bytes = call->columns / COLUMNS * bytes;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *group = call->tile, *end = group + tile_bytes;

	simd_clear_totals(call, first, vectors, rows);
	if (rows == 1) {
		for (; group + SIMD_SPANS * bytes <= end; group += SIMD_SPANS * bytes) {
			q4_groups(call, group, tile_bytes, x, sums, SIMD_SPANS, first, vectors, rows, with_minimum);
			x += SIMD_SPANS * COLUMNS;
			sums += SIMD_SPANS;
		}
	}
	for (; group < end; group += bytes, x += COLUMNS * stride, sums += stride)
		q4_groups(call, group, tile_bytes, x, sums, 1, first, vectors, rows, with_minimum);
}

LINEAR_SIMD(format_q4_0, q4_body, false)
LINEAR_SIMD(format_q4_1, q4_body, true)
#else
#include "cpu/limbs_simd.h"

/* A group: value = scale · q + offset. */
struct q4_head {
	float scale[FORMAT_TILE], offset[FORMAT_TILE];
} __attribute__((aligned(FORMAT_ALIGN)));

SIMD_INLINE void q4_read_head(const uint8_t *group, struct q4_head *ret, bool with_minimum)
{
	SIMD_UNROLL
	for (unsigned v = 0; v < SIMD_VECTORS; v++) {
		const uint8_t *halves = group + 2 * SIMD_LANES * v;
		const simd_f   scale = simd_halves(halves);

		SIMD(store_ps)(ret->scale + SIMD_LANES * v, scale);
		SIMD(store_ps)(ret->offset + SIMD_LANES * v,
		    with_minimum ? simd_halves(halves + HALVES) : SIMD(mul_ps)(scale, SIMD(set1_ps)(-8)));
	}
}

/* y += offset · Σ x + scale · Σ q · x of registers from FIRST on, and ROWS rows from FIRST_ROW on. */
SIMD_INLINE void q4_add(const struct simd_call *call, const struct q4_head *head, const uint8_t *words,
    const struct format_limbs *x, unsigned first, unsigned first_row, unsigned rows)
{
	simd_i sum[2][LIMBS_VECTORS][3];

	limbs_multiply(words + 4 * SIMD_LANES * first, x, rows, sum);
	SIMD_UNROLL
	for (unsigned j = 0; j < LIMBS_VECTORS * rows; j++) {
		const unsigned v = j % LIMBS_VECTORS, r = j / LIMBS_VECTORS, lane = SIMD_LANES * (first + v);
		float         *y = simd_total(call, first, v, first_row + r);
		const simd_f   total = SIMD(fmadd_ps)(SIMD(load_ps)(head->offset + lane), simd_broadcast(&x[r].sum), SIMD(loadu_ps)(y));

		SIMD(storeu_ps)(y, SIMD(fmadd_ps)(SIMD(load_ps)(head->scale + lane), limbs_join(sum[r][v], x + r), total));
	}
}

SIMD_INLINE void q4_body(const struct simd_call *call, unsigned rows, bool with_minimum)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS, q_at = with_minimum ? 2 * HALVES : HALVES, bytes = q_at + Q_BYTES;
	const size_t   tile_bytes = call->columns / COLUMNS * bytes;
	const uint8_t *group = call->tile, *end = group + tile_bytes;
	const struct format_limbs *x = (const struct format_limbs *)call->x;
	struct q4_head             head;

	simd_clear_totals(call, 0, SIMD_VECTORS, rows);
	for (; group < end; group += bytes, x += stride) {
		simd_prefetch(group, bytes, tile_bytes, 0, SIMD_VECTORS, rows);
		q4_read_head(group, &head, with_minimum);
		for (unsigned first = 0; first < SIMD_VECTORS; first += LIMBS_VECTORS) {
			unsigned r = 0;

			for (; r + 2 <= rows; r += 2)
				q4_add(call, &head, group + q_at, x + r, first, r, 2);
			if (r < rows)
				q4_add(call, &head, group + q_at, x + r, first, r, 1);
		}
	}
}

LIMBS_LINEAR(format_q4_0, q4_body, false)
LIMBS_LINEAR(format_q4_1, q4_body, true)
#endif

#endif
