/* fmt_dot_simd.c: owns the product of int8 tiles with int8 inputs by AVX-512 VNNI (layout: fmt_dot.c; shape of a kernel:
 * linear_simd.h).  Invariant: sums are integers, so their order does not matter. */
#if defined __AVX512VNNI__
#include "cpu/linear_simd.h"

enum { FOUR = 4, STEP_BYTES = FOUR * FORMAT_TILE };

/* Four columns, bytes with 128 added, to every lane. */
SIMD_INLINE simd_i four_inputs(const float *at)
{
	int32_t four;
	__builtin_memcpy(&four, at, sizeof four);
	return _mm512_set1_epi32(four);
}

/* sum += the four products of each lane, unsigned bytes of X by signed ones of Q.  The intrinsic would do, but compilers
 * copy all sums once per step around it. */
SIMD_INLINE void add_products(simd_i *sum, simd_i x, simd_i q)
{
	__asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(x), "v"(q));
}

SIMD_INLINE void dot_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const uint8_t *head = call->tile + FORMAT_LAYOUT_BYTES, *at = head + FORMAT_DOT_HEAD_BYTES + FOUR * SIMD_LANES * first;
	const size_t   tile_bytes = FORMAT_LAYOUT_BYTES + FORMAT_DOT_HEAD_BYTES + (size_t)call->columns * FORMAT_TILE;
	const float   *x = call->x;
	simd_i         sum[SIMD_CHAINS_MAX];

	(void)unused;
	SIMD_UNROLL
	for (unsigned v = 0; v < vectors; v++) {
		SIMD_UNROLL
		for (unsigned r = 0; r < rows; r++)
			sum[v * rows + r] = simd_load_words(head + 4 * FORMAT_TILE + 4 * SIMD_LANES * (first + v));
	}
	for (uint32_t k = 0; k < call->columns; k += FOUR, at += STEP_BYTES, x += stride) {
		simd_i q[SIMD_VECTORS];

		simd_prefetch(at, STEP_BYTES, tile_bytes, 0, SIMD_VECTORS, rows);
		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			q[v] = simd_load_words(at + FOUR * SIMD_LANES * v);
		SIMD_UNROLL
		for (unsigned r = 0; r < rows; r++) {
			simd_i input = four_inputs(x + r);

			SIMD_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				add_products(&sum[v * rows + r], input, q[v]);
		}
	}
	SIMD_UNROLL
	for (unsigned v = 0; v < vectors; v++) {
		simd_f scale = SIMD(loadu_ps)((const float *)(head + 4 * SIMD_LANES * (first + v)));

		SIMD_UNROLL
		for (unsigned r = 0; r < rows; r++)
			SIMD(storeu_ps)(simd_total(call, first, v, r), SIMD(mul_ps)(SIMD(mul_ps)(
			    SIMD(cvtepi32_ps)(sum[v * rows + r]), simd_broadcast(call->sums + r)), scale));
	}
}

LINEAR_SIMD(format_i8_dot, dot_body, 0)

#endif
