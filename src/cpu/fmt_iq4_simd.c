/* fmt_iq4_simd.c: owns the vector product with IQ4_NL and IQ4_XS tiles (layout: fmt_iq4.c; shape of a kernel:
 * linear_simd.h).  Invariant: per output and activation row the sequence of operations is the same for every number of
 * rows. */
#if defined __x86_64__
#include "cpu/linear_simd.h"
#include "model/weight.h"

enum {
	COLUMNS = 32, SLICES = COLUMNS / 8, Q_BYTES = SLICES * FORMAT_TILE * 4, HALVES = 2 * FORMAT_TILE,
	NL_BYTES = HALVES + Q_BYTES,
	XS_COLUMNS = 256, XS_GROUPS = XS_COLUMNS / COLUMNS, XS_GROUP_BYTES = FORMAT_TILE + Q_BYTES,
	XS_SUPER_BYTES = HALVES + XS_GROUPS * XS_GROUP_BYTES
};

/* Adds the 32 columns of a group, every value counted from −128 so that bytes have no sign; WORDS points to the first
 * row's words. */
#if defined __AVX512F__
/* An index finds its value in a register of 16, those of columns whose activations are prescaled in larger ones. */
SIMD_INLINE void add_group(simd_f *sum, const uint8_t *words, const float *x, unsigned vectors, unsigned rows)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const simd_f   counted = _mm512_add_ps(simd_signed_bytes((const uint8_t *)weight_iq4_values), _mm512_set1_ps(128));
	const simd_f   tables[4] = { counted, _mm512_mul_ps(counted, _mm512_set1_ps(0x1p8f)),
		_mm512_mul_ps(counted, _mm512_set1_ps(0x1p16f)), counted };

	for (unsigned s = 0; s < SLICES; s++, words += 4 * FORMAT_TILE) {
		SIMD_UNROLL
		for (unsigned p = 0; p < 8; p++) {
			simd_f q[SIMD_VECTORS];

			SIMD_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				q[v] = _mm512_permutexvar_ps(_mm512_srli_epi32(simd_words(words, 0, v), 4 * p), tables[p / 2]);
			simd_multiply(sum, q, x + (8 * s + p) * stride, vectors, rows);
		}
	}
}
#else
/* Nibbles look up bytes: those of even columns become one word of four bytes, those of odd columns another. */
SIMD_INLINE void add_group(simd_f *sum, const uint8_t *words, const float *x, unsigned vectors, unsigned rows)
{
	static const int32_t masks[3][SIMD_LANES] __attribute__((aligned(4 * SIMD_LANES))) = {
		SIMD_WORDS(0xff), SIMD_WORDS(0xff00), SIMD_WORDS(0xff0000),
	};
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const simd_i   low = _mm256_set1_epi8(0xf);
	const simd_i   table = _mm256_xor_si256(_mm256_broadcastsi128_si256(_mm_loadu_si128(
	      (const __m128i *)weight_iq4_values)), _mm256_set1_epi8((char)0x80));

	for (unsigned s = 0; s < SLICES; s++, words += 4 * FORMAT_TILE) {
		simd_i         values[2][SIMD_VECTORS];
		const simd_i  *value = values[0];
		const int32_t *mask = masks[0];

		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			simd_i word = simd_words(words, 0, v);

			values[0][v] = _mm256_shuffle_epi8(table, simd_and(word, low));
			values[1][v] = _mm256_shuffle_epi8(table, simd_and(_mm256_srli_epi32(word, 4), low));
		}
		__asm__("" : : "m"(values)); /* in memory on purpose: see simd_nibbles */
		SIMD_UNROLL
		for (unsigned p = 0; p < 8; p++) {
			simd_f q[SIMD_VECTORS];

			SIMD_FORGET(mask, value);
			SIMD_UNROLL
			for (unsigned v = 0; v < vectors; v++) {
				simd_i word = value[p % 2 * SIMD_VECTORS + v];

				q[v] = p < 6 ? simd_field(word, mask, p / 2 % 3) : _mm256_cvtepi32_ps(_mm256_srli_epi32(word, 24));
			}
			simd_multiply(sum, q, x + (8 * s + p) * stride, vectors, rows);
		}
	}
}
#endif

SIMD_INLINE void iq4_nl_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / COLUMNS) * NL_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *group = call->tile, *end = group + tile_bytes;

	(void)unused;
	simd_clear_totals(call, first, vectors, rows);
	for (; group < end; group += NL_BYTES, x += COLUMNS * stride, sums += stride) {
		simd_f sum[SIMD_CHAINS_MAX];

		simd_prefetch(group, NL_BYTES, tile_bytes, first, vectors, rows);
		simd_zero(sum, vectors * rows);
		add_group(sum, group + HALVES + 4 * SIMD_LANES * first, x, vectors, rows);
		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			simd_shift(sum, SIMD(set1_ps)(128), sums, v, rows);
			simd_fold(call, sum, simd_halves(group + 2 * SIMD_LANES * (first + v)), first, v, rows);
		}
	}
}

SIMD_INLINE void iq4_xs_body(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows, int unused)
{
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;
	const size_t   tile_bytes = (size_t)(call->columns / XS_COLUMNS) * XS_SUPER_BYTES;
	const float   *x = call->x, *sums = call->sums;
	const uint8_t *super = call->tile, *end = super + tile_bytes;

	(void)unused;
	simd_clear_totals(call, first, vectors, rows);
	for (; super < end; super += XS_SUPER_BYTES) {
		const uint8_t *group = super + HALVES;

		for (unsigned g = 0; g < XS_GROUPS; g++, group += XS_GROUP_BYTES, x += COLUMNS * stride, sums += stride) {
			simd_f sum[SIMD_CHAINS_MAX];

			simd_prefetch(group, XS_GROUP_BYTES, tile_bytes, first, vectors, rows);
			simd_zero(sum, vectors * rows);
			add_group(sum, group + FORMAT_TILE + 4 * SIMD_LANES * first, x, vectors, rows);
			SIMD_UNROLL
			for (unsigned v = 0; v < vectors; v++) {
				simd_f scale = SIMD(mul_ps)(simd_halves(super + 2 * SIMD_LANES * (first + v)),
				    simd_signed_bytes(group + SIMD_LANES * (first + v)));

				simd_shift(sum, SIMD(set1_ps)(128), sums, v, rows);
				simd_fold(call, sum, scale, first, v, rows);
			}
		}
	}
}

LINEAR_SIMD(format_iq4_nl, iq4_nl_body, 0)
LINEAR_SIMD(format_iq4_xs, iq4_xs_body, 0)

#endif
