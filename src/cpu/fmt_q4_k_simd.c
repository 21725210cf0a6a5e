/* fmt_q4_k_simd.c: owns the vector product with Q4_K tiles (layout: fmt_q4_k.c; shape of a kernel: linear_simd.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_simd.h"

enum {
	COLUMNS = 256, GROUP = 32, GROUPS = COLUMNS / GROUP, HALVES = 2 * FORMAT_TILE, HEAD = 2 * FORMAT_TILE,
	GROUP_BYTES = HEAD + GROUP / 8 * FORMAT_TILE * 4, SUPER_BYTES = 2 * HALVES + GROUPS * GROUP_BYTES
};

SIMD_INLINE void q4_k_groups(const struct simd_call *call, const uint8_t *super, const uint8_t *group, const float *x,
    const float *sums, unsigned spans, unsigned first, unsigned vectors, unsigned rows)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * SUPER_BYTES;
	simd_f         sum[SIMD_CHAINS_MAX];

	SIMD_UNROLL
	for (unsigned span = 0; span < spans; span++)
		simd_prefetch(group + span * GROUP_BYTES, GROUP_BYTES, tile_bytes, first, vectors, rows);
	simd_zero(sum, spans * vectors * rows);
	simd_nibbles(sum, group + HEAD + 4 * SIMD_LANES * first, GROUP_BYTES, x, GROUP, spans, vectors, rows);
	SIMD_UNROLL
	for (unsigned i = 0; i < spans * vectors; i++) {
		const unsigned v = i % vectors, span = i / vectors;
		simd_fold_k(call, sum + span * vectors * rows, super, group + span * GROUP_BYTES, sums + span * stride, first, v, rows);
	}
}

SIMD_INLINE void q4_k_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS, spans = rows == 1 ? SIMD_SPANS : 1;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	simd_clear_totals(call, first, vectors, rows);
	for (; super < end; super += SUPER_BYTES) {
		const uint8_t *group = super + 2 * HALVES;

		for (unsigned g = 0; g < GROUPS; g += spans) {
			q4_k_groups(call, super, group, x, sums, spans, first, vectors, rows);
			group += spans * GROUP_BYTES;
			x += spans * GROUP * stride;
			sums += spans * stride;
		}
	}
}

LINEAR_SIMD(format_q4_k, q4_k_body, 0)

#endif
