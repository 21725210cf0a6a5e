/* linear_simd.h: the skeleton of the vector kernels of fmt_*_simd.c.
 *
 * A kernel handles VECTORS registers of weight rows at once against ROWS rows of activations.  Decoding costs two or
 * three instructions per register and serves all rows; the product is one fused multiply-add per register and row.
 * Each (register, row) pair is one dependent chain over the columns of a group; with a latency of four cycles and two
 * units, eight chains keep the units busy, and accumulators, decoded values and activations must fit the registers:
 *
 *      AVX2, 16 registers of eight rows             AVX-512, 32 registers of 16 rows
 *      rows     1   2   3   4   5   6               rows     1   2   3   4   5   6   8
 *      vectors  4   4   2   2   2   2               vectors  2   2   2   2   2   2   2
 *      chains   4   8   6   8  10  12               chains   2   4   6   8  10  12  16
 *      7 = 4 + 3, 8 = 6 + 2                         7 = 4 + 3
 *
 * One row is bound by memory as long as it is not by chains.  Its groups do not depend on each other: the processor
 * begins the next one while the last is still summed, and where that is not enough (four bits, little memory per
 * weight) a body handles two groups beside each other, SIMD_SPANS.  Each is summed as it would be alone.  More than
 * FORMAT_ROWS rows are handled eight at a time while the tile stays in the caches.
 *
 * Activations stay float32: AVX-512's products of bfloat16 would round them to eight bits of mantissa, and take four times
 * as long as what is used here (BENCHMARKS.md).
 *
 * A format writes its body as an always-inlined function of constants (vectors, rows) and instantiates the
 * kernels with LINEAR_SIMD.  Loops over vectors and rows must be unrolled completely, so that the arrays become
 * registers.
 */
#ifndef PENSTOCK_CPU_LINEAR_SIMD_H
#define PENSTOCK_CPU_LINEAR_SIMD_H

#include "cpu/format.h"
#include "cpu/simd.h"

enum { SIMD_SPANS = 2, SIMD_CHAINS_MAX = SIMD_LANES == 16 ? 16 : 12, SIMD_VECTORS = FORMAT_TILE / SIMD_LANES };

/* What one kernel call works on. */
struct simd_call {
	const uint8_t *tile;
	uint32_t       columns;
	const float   *x, *sums;
	float        (*out)[FORMAT_TILE];
};

SIMD_INLINE void simd_zero(simd_f *values, unsigned count)
{
	SIMD_UNROLL
	for (unsigned i = 0; i < count; i++)
		values[i] = SIMD(setzero_ps)();
}

/* sum[v][r] += q[v] · x[r] at one column; X points to that column. */
SIMD_INLINE void simd_multiply(simd_f *sum, const simd_f *q, const float *x, unsigned vectors, unsigned rows)
{
	SIMD_UNROLL
	for (unsigned r = 0; r < rows; r++) {
		simd_f xr = simd_broadcast(x + r);

		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			sum[v * rows + r] = SIMD(fmadd_ps)(q[v], xr, sum[v * rows + r]);
	}
}

/* Where the total of register V and row R lives.  Totals are touched once per group and stay in memory on purpose: as
 * local variables they compete with the sums for registers, and the compiler puts the wrong ones aside. */
SIMD_INLINE float *simd_total(const struct simd_call *call, unsigned first, unsigned v, unsigned r)
{
	return &call->out[r][SIMD_LANES * (first + v)];
}

SIMD_INLINE void simd_clear_totals(const struct simd_call *call, unsigned first, unsigned vectors, unsigned rows)
{
	for (unsigned r = 0; r < rows; r++)
		for (unsigned v = 0; v < vectors; v++)
			SIMD(storeu_ps)(simd_total(call, first, v, r), SIMD(setzero_ps)());
}

/* total[v][r] += scale · sum[v][r], for register V. */
SIMD_INLINE void simd_fold(const struct simd_call *call, const simd_f *sum, simd_f scale, unsigned first, unsigned v,
    unsigned rows)
{
	SIMD_UNROLL
	for (unsigned r = 0; r < rows; r++) {
		float *total = simd_total(call, first, v, r);
		SIMD(storeu_ps)(total, SIMD(fmadd_ps)(scale, sum[v * rows + r], SIMD(loadu_ps)(total)));
	}
}

/* total[v][r] += scale · sum[v][r] + offset · sums[r], for register V. */
SIMD_INLINE void simd_fold_offset(const struct simd_call *call, const simd_f *sum, simd_f scale, simd_f offset,
    const float *sums, unsigned first, unsigned v, unsigned rows)
{
	SIMD_UNROLL
	for (unsigned r = 0; r < rows; r++) {
		float *total = simd_total(call, first, v, r);
		simd_f scaled = SIMD(fmadd_ps)(scale, sum[v * rows + r], SIMD(loadu_ps)(total));
		SIMD(storeu_ps)(total, SIMD(fmadd_ps)(offset, simd_broadcast(sums + r), scaled));
	}
}

/* sum[v][r] −= zero · sums[r]: the values were counted from 0 instead of from ZERO. */
SIMD_INLINE void simd_shift(simd_f *sum, simd_f zero, const float *sums, unsigned v, unsigned rows)
{
	SIMD_UNROLL
	for (unsigned r = 0; r < rows; r++)
		sum[v * rows + r] = SIMD(fnmadd_ps)(zero, simd_broadcast(sums + r), sum[v * rows + r]);
}

/* simd_fold_offset for register V of a group of Q4_K or Q5_K: d and dmin at the head of SUPER, s and m at the head of GROUP. */
SIMD_INLINE void simd_fold_k(const struct simd_call *call, const simd_f *sum, const uint8_t *super,
    const uint8_t *group, const float *sums, unsigned first, unsigned v, unsigned rows)
{
	const unsigned lane = SIMD_LANES * (first + v);
	simd_f scale = SIMD(mul_ps)(simd_halves(super + 2 * lane), simd_unsigned_bytes(group + lane));
	simd_f minimum = SIMD(mul_ps)(simd_halves(super + 2 * FORMAT_TILE + 2 * lane),
	    simd_unsigned_bytes(group + FORMAT_TILE + lane));

	simd_fold_offset(call, sum, scale, SIMD(sub_ps)(SIMD(setzero_ps)(), minimum), sums, first, v, rows);
}

/* Register V of word A of every row. */
SIMD_INLINE simd_i simd_words(const uint8_t *words, unsigned a, unsigned v)
{
	return simd_load_words(words + 4 * FORMAT_TILE * a + 4 * SIMD_LANES * v);
}

/* Register V of every row's word, or with its upper half below.  Two bytes further on in memory, the upper half of a
 * word is its lower half; 64 bytes from there would always touch two cache lines. */
SIMD_INLINE simd_i simd_half_words(const uint8_t *words, unsigned v, bool upper)
{
#if defined __AVX512F__
	return upper ? SIMD(srli_epi32)(simd_words(words, 0, v), 16) : simd_words(words, 0, v);
#else
	return simd_load_words(words + 4 * SIMD_LANES * v + (upper ? 2 : 0));
#endif
}

/* The bits of WORD that mask P selects, where they stand. */
SIMD_INLINE simd_f simd_field(simd_i word, const int32_t *masks, unsigned p)
{
	return SIMD(cvtepi32_ps)(simd_and(word, simd_load_words(masks + SIMD_LANES * p)));
}

/* Adds COLUMNS columns, eight nibbles to a word, of each of SPANS groups whose words lie APART bytes from each other;
 * WORDS points to the first row's. */
SIMD_INLINE void simd_nibbles(simd_f *sum, const uint8_t *words, size_t apart, const float *x, unsigned columns,
    unsigned spans, unsigned vectors, unsigned rows)
{
	enum { LAST = 7 };
	static const int32_t masks[LAST][SIMD_LANES] __attribute__((aligned(4 * SIMD_LANES))) = {
		SIMD_WORDS(0xf), SIMD_WORDS(0xf0), SIMD_WORDS(0xf00), SIMD_WORDS(0xf000), SIMD_WORDS(0xf0000), SIMD_WORDS(0xf00000),
		SIMD_WORDS(0xf000000),
	};
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;

	for (unsigned s = 0; s < columns / 8; s++, words += 4 * FORMAT_TILE) {
		const int32_t *mask = masks[0];

		SIMD_UNROLL
		for (unsigned i = 0; i < 8 * spans; i++) {
			const unsigned p = i / spans, span = i % spans;
			simd_f         q[SIMD_VECTORS];

			/* With 16 registers, words and masks are read from memory each time: kept in registers they would
			 * push accumulators out. */
			SIMD_FORGET(mask, words);
			SIMD_UNROLL
			for (unsigned v = 0; v < vectors; v++) {
				simd_i word = simd_words(words + span * apart, 0, v);
				q[v] = p < LAST ? simd_field(word, mask, p) : SIMD(cvtepi32_ps)(SIMD(srli_epi32)(word, 28));
			}
			simd_multiply(sum + span * vectors * rows, q, x + (span * columns + 8 * s + p) * stride, vectors, rows);
		}
	}
}

/* Asks for what will be read soon.  One row: BYTES of this tile a few groups ahead.  More rows: arithmetic takes so
 * long that the hardware forgets the stream; each pass over the tile asks for its share of the next one. */
SIMD_INLINE void simd_prefetch(const uint8_t *group, size_t bytes, size_t tile_bytes, unsigned first, unsigned vectors,
    unsigned rows)
{
	const uint8_t *from = rows == 1 ? group + 4 * bytes : group + tile_bytes + first * (bytes / SIMD_VECTORS);
	size_t         share = rows == 1 ? bytes : vectors * (bytes / SIMD_VECTORS);

	SIMD_UNROLL
	for (size_t at = 0; at < share; at += 64)
		_mm_prefetch((const char *)(from + at), _MM_HINT_T0);
}

static inline void simd_skip_rows(struct simd_call *call, unsigned rows)
{
	call->x += rows;
	call->sums += call->sums ? rows : 0;
	call->out += rows;
}

/* Defines SIMD_NAME(name), a format_linear_function, from BODY(call, first vector, vectors, rows, option).  Each (vectors, rows)
 * is a function of its own: inlined into one, they share a register allocation that serves none. */
#define SIMD_KERNEL(name, body, vectors, rows, option)                                              \
	static __attribute__((noinline)) void name##_##rows(const struct simd_call *call)           \
	{                                                                                           \
		for (unsigned first = 0; first < SIMD_VECTORS; first += vectors)                    \
			body(call, first, vectors, rows, option);                                   \
	}

#if defined __AVX512F__
#define LINEAR_SIMD(name, body, option)                                                                           \
	SIMD_KERNEL(name, body, 2, 1, option)                                                                     \
	SIMD_KERNEL(name, body, 2, 2, option)                                                                     \
	SIMD_KERNEL(name, body, 2, 3, option)                                                                     \
	SIMD_KERNEL(name, body, 2, 4, option)                                                                     \
	SIMD_KERNEL(name, body, 2, 5, option)                                                                     \
	SIMD_KERNEL(name, body, 2, 6, option)                                                                     \
	SIMD_KERNEL(name, body, 2, 8, option)                                                                     \
	SIMD_ENTRY(name, name##_8(&call))
#else
#define LINEAR_SIMD(name, body, option)                                                                           \
	SIMD_KERNEL(name, body, 4, 1, option)                                                                     \
	SIMD_KERNEL(name, body, 4, 2, option)                                                                     \
	SIMD_KERNEL(name, body, 2, 3, option)                                                                     \
	SIMD_KERNEL(name, body, 2, 4, option)                                                                     \
	SIMD_KERNEL(name, body, 2, 5, option)                                                                     \
	SIMD_KERNEL(name, body, 2, 6, option)                                                                     \
	SIMD_ENTRY(name, (name##_6(&call), simd_skip_rows(&call, 6), name##_2(&call)))
#endif

#define SIMD_ENTRY(name, eight)                                                                                   \
	void SIMD_NAME(name)(const uint8_t *tile, uint32_t columns, const struct format_input *input,             \
	    unsigned rows, float out[FORMAT_ROWS][FORMAT_TILE])                                                   \
	{                                                                                                         \
		struct simd_call call = { tile, columns, input->x, input->sums, out };                            \
                                                                                                                  \
		switch (rows) {                                                                                   \
		case 1: name##_1(&call); return;                                                                  \
		case 2: name##_2(&call); return;                                                                  \
		case 3: name##_3(&call); return;                                                                  \
		case 4: name##_4(&call); return;                                                                  \
		case 5: name##_5(&call); return;                                                                  \
		case 6: name##_6(&call); return;                                                                  \
		case 7:                                                                                           \
			name##_4(&call);                                                                          \
			simd_skip_rows(&call, 4);                                                                 \
			name##_3(&call);                                                                          \
			return;                                                                                   \
		default: eight;                                                                                   \
		}                                                                                                 \
	}

#endif
