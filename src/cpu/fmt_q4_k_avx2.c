/* fmt_q4_k_avx2.c: owns the AVX2 product with Q4_K tiles (layout: fmt_q4_k.c; shape of a kernel: linear_avx2.h).
 * Invariant: per output and activation row the sequence of operations is the same for every number of rows. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

enum {
	COLUMNS = 256, GROUP = 32, GROUPS = COLUMNS / GROUP, HALVES = 2 * FORMAT_TILE, HEAD = 2 * FORMAT_TILE,
	GROUP_BYTES = HEAD + GROUP / 8 * FORMAT_TILE * 4, SUPER_BYTES = 2 * HALVES + GROUPS * GROUP_BYTES
};

AVX2_INLINE void q4_k_body(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	avx2_clear_totals(call, first, vectors, rows);
	for (; super < end; super += SUPER_BYTES) {
		const uint8_t *group = super + 2 * HALVES;

		for (unsigned g = 0; g < GROUPS; g++, group += GROUP_BYTES, x += GROUP * stride, sums += stride) {
			__m256 sum[AVX2_CHAINS_MAX];

			avx2_prefetch(group, GROUP_BYTES, tile_bytes, first, vectors, rows);
			avx2_zero(sum, vectors * rows);
			avx2_nibbles(sum, group + HEAD + 32 * first, x, GROUP, vectors, rows);
			AVX2_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				avx2_fold_k(call, sum, super, group, sums, first, v, rows);
		}
	}
}

LINEAR_AVX2(format_q4_k_avx2, q4_k_body, 0)

#endif
