/* limbs_simd.h: four-bit weights times activations in limbs (format.h: struct format_limbs), for AVX2.
 *
 * Why.  In float32 a register of eight four-bit weights costs three or four instructions for each activation: mask, shift,
 * convert, multiply-add.  Two cores do that more slowly than they read memory.  The one product that is wide enough is
 * vpmaddubsw: 32 unsigned bytes by 32 signed ones.  Four-bit weights are unsigned bytes after one mask.  Activations are
 * floats, and rounding them to bytes is the checkpoint's decision, not ours; but a number of 24 bits is three bytes, and a
 * product with it three products:
 *
 *      x[k] = scale · (65536 · h[k] + 256 · m[k] + l[k])          h, m, l ∈ −128…127; 32 columns share a scale
 *      Σ q[k] · x[k] = scale · (65536 · Σ q·h  +  (256 · Σ q·m + Σ q·l))
 *                               ──── high ────    ──────── rest ────────
 *
 * Precision.  The sums are of integers, and exact.  The scale is a power of two, and an activation is off by at most 2^−23 of
 * the largest of its 32 columns: float32 itself is off by 2^−24 of it after the first sum.  Where float32 products round once
 * per column, to 2^−24 of what the sum has reached, a sum is rounded here once per 32 columns.  So the errors of y are no
 * larger than before, mostly smaller (tests/unit/test_fmt_linear holds both to one bound, tests/unit/test_cpu_limbs says what
 * becomes of extreme rows).  A block in which a column is not finite has a scale that is not a number, and so has every output
 * of its row.  Blocks below 2^−104 are resolved to 2^−126, the smallest normal number.
 *
 * Bounds.  A lane of 16 bits takes two products from each of eight instructions: at most 16 · 15 · 128 = 30,720 < 2^15,
 * nothing saturates.  |high| ≤ 61,440 and |rest| ≤ 257 · 61,440 < 2^24 are exact in float32.
 *
 * Cost, in instructions for vectors: 3 products, 3 sums less 1/8 and 1 to widen per 32 weights and row, 1.5 to decode for one
 * row or two; the multiply-adds of float32 are 4 on half of the units, and 12 to decode.  So one row takes three quarters of
 * the time, and eight take nine tenths: all numbers of rows must compute alike, or a row's bits would depend on its company.
 *
 * Registers.  Two registers of weights by two rows by three limbs are twelve sums; with two decoded values, an activation
 * and a product they fill the sixteen there are.  More rows go over 32 columns of a tile by twos.
 */
#ifndef PENSTOCK_CPU_LIMBS_SIMD_H
#define PENSTOCK_CPU_LIMBS_SIMD_H

#include "cpu/linear_simd.h"

enum {
	LIMBS_VECTORS = 2,
	LIMBS_STEPS = FORMAT_LIMB_COLUMNS / 4, /* instructions that add to a sum: even columns of eight, odd ones, … */
	LIMBS_BYTES = FORMAT_LIMB_COLUMNS / 2 * FORMAT_TILE /* of the words of 32 columns of a tile */
};

/* high and rest of each row, times scale, summed over a group's columns */
struct limbs_sums {
	float parts[FORMAT_ROWS][2][FORMAT_TILE];
} __attribute__((aligned(FORMAT_ALIGN)));

/* Step I of register V: four columns. */
SIMD_INLINE simd_i limbs_weights(const uint8_t *words, unsigned i, unsigned v)
{
	const simd_i word = simd_words(words, i / 2, v);
	return simd_and(i % 2 ? SIMD(srli_epi16)(word, 4) : word, SIMD(set1_epi8)(0xf));
}

SIMD_INLINE void limbs_add(float *to, simd_i value, simd_f scale)
{
	SIMD(store_ps)(to, SIMD(fmadd_ps)(SIMD(cvtepi32_ps)(value), scale, SIMD(load_ps)(to)));
}

/* Σ q · l, Σ q · m and Σ q · h over 32 columns, in pairs of halves of a word: of LIMBS_VECTORS registers of weights, whose
 * words begin at WORDS, by ROWS ≤ 2 rows from X on. */
SIMD_INLINE void limbs_multiply(const uint8_t *words, const struct format_limbs *x, unsigned rows,
    simd_i sum[2][LIMBS_VECTORS][3])
{
	SIMD_UNROLL
	for (unsigned i = 0; i < LIMBS_STEPS; i++) {
		simd_i q[LIMBS_VECTORS];

		SIMD_FORGET(words, x);
		SIMD_UNROLL
		for (unsigned v = 0; v < LIMBS_VECTORS; v++)
			q[v] = limbs_weights(words, i, v);
		SIMD_UNROLL
		for (unsigned j = 0; j < 3 * rows; j++) {
			const simd_i limb = SIMD(set1_epi32)(x[j / 3].words[i / 2][i % 2][j % 3]);

			SIMD_UNROLL
			for (unsigned v = 0; v < LIMBS_VECTORS; v++) {
				simd_i product = SIMD(maddubs_epi16)(q[v], limb), *to = &sum[j / 3][v][j % 3];

				*to = i ? SIMD(add_epi16)(*to, product) : product;
				/* One after the other: the compiler would make trees, which need more registers. */
				__asm__("" : "+x"(*to));
			}
		}
	}
}

/* Adds the same to SUMS, times scale. */
SIMD_INLINE void limbs_multiply_add(const uint8_t *words, const struct format_limbs *x, unsigned rows,
    float (*sums)[2][FORMAT_TILE])
{
	const simd_i one = SIMD(set1_epi16)(1), upper = SIMD(set1_epi16)(256);
	simd_i       sum[2][LIMBS_VECTORS][3];

	limbs_multiply(words, x, rows, sum);
	SIMD_UNROLL
	for (unsigned j = 0; j < LIMBS_VECTORS * rows; j++) {
		const unsigned v = j % LIMBS_VECTORS, r = j / LIMBS_VECTORS;
		const simd_i  *limbs = sum[r][v];
		const simd_f   scale = simd_broadcast(&x[r].scale);

		limbs_add(sums[r][0] + SIMD_LANES * v, SIMD(madd_epi16)(limbs[2], one), scale);
		limbs_add(sums[r][1] + SIMD_LANES * v,
		    SIMD(add_epi32)(SIMD(madd_epi16)(limbs[1], upper), SIMD(madd_epi16)(limbs[0], one)), scale);
	}
}

/* Adds 32 columns of a tile, whose words begin at WORDS, to SUMS. */
SIMD_INLINE void limbs_columns(const uint8_t *words, const struct format_limbs *x, unsigned rows, struct limbs_sums *sums)
{
	for (unsigned first = 0; first < SIMD_VECTORS; first += LIMBS_VECTORS, words += 4 * SIMD_LANES * LIMBS_VECTORS) {
		float  (*to)[2][FORMAT_TILE] = (float (*)[2][FORMAT_TILE])(sums->parts[0][0] + SIMD_LANES * first);
		unsigned r = 0;

		for (; r + 2 <= rows; r += 2)
			limbs_multiply_add(words, x + r, 2, to + r);
		if (r < rows)
			limbs_multiply_add(words, x + r, 1, to + r);
	}
}

SIMD_INLINE void limbs_clear(struct limbs_sums *sums, unsigned rows)
{
	for (unsigned r = 0; r < rows; r++) {
		float *to = sums->parts[r][0];

		SIMD_UNROLL
		for (unsigned i = 0; i < 2 * SIMD_VECTORS; i++) {
			SIMD_FORGET(to, sums); /* else it becomes a call of memset, which takes longer */
			SIMD(store_ps)(to + SIMD_LANES * i, SIMD(setzero_ps)());
		}
	}
}

/* Takes register V of row R out of SUMS, which begin anew: Σ (q − zero) · x, where TOTALS are high and rest of Σ x. */
SIMD_INLINE simd_f limbs_take(struct limbs_sums *sums, unsigned v, unsigned r, simd_f zero, const float totals[2])
{
	float *high = sums->parts[r][0] + SIMD_LANES * v, *rest = sums->parts[r][1] + SIMD_LANES * v;
	simd_f upper = SIMD(fnmadd_ps)(zero, simd_broadcast(totals), SIMD(load_ps)(high));
	simd_f lower = SIMD(fnmadd_ps)(zero, simd_broadcast(totals + 1), SIMD(load_ps)(rest));

	SIMD_FORGET(high, rest); /* as in limbs_clear */
	SIMD(store_ps)(high, SIMD(setzero_ps)());
	SIMD(store_ps)(rest, SIMD(setzero_ps)());
	return SIMD(fmadd_ps)(upper, SIMD(set1_ps)(65536), lower);
}

/* Σ q · x of a row and a register whose sums are SUM. */
SIMD_INLINE simd_f limbs_join(const simd_i sum[3], const struct format_limbs *x)
{
	const simd_i one = SIMD(set1_epi16)(1), upper = SIMD(set1_epi16)(256);
	const simd_i rest = SIMD(add_epi32)(SIMD(madd_epi16)(sum[1], upper), SIMD(madd_epi16)(sum[0], one));
	const simd_f high = SIMD(cvtepi32_ps)(SIMD(madd_epi16)(sum[2], one));

	return SIMD(mul_ps)(SIMD(fmadd_ps)(high, SIMD(set1_ps)(65536), SIMD(cvtepi32_ps)(rest)), simd_broadcast(&x->scale));
}

/* Defines SIMD_NAME(name), a format_linear_function, from BODY(call, rows, option), where ROWS is a constant
 * for one row and two. */
#define LIMBS_LINEAR(name, body, option)                                                                            \
	static __attribute__((noinline)) void name##_1(const struct simd_call *call) { body(call, 1, option); }     \
	static __attribute__((noinline)) void name##_2(const struct simd_call *call) { body(call, 2, option); }     \
	static __attribute__((noinline)) void name##_many(const struct simd_call *call, unsigned rows)      \
	{                                                                                                   \
		if (rows > 2)                                                                               \
			body(call, rows, option);                                                                   \
	}                                                                                                   \
	void SIMD_NAME(name)(const uint8_t *tile, uint32_t columns, const struct format_input *input,       \
	    unsigned rows, float out[FORMAT_ROWS][FORMAT_TILE])                                             \
	{                                                                                                   \
		const struct simd_call call = { tile, columns, input->x, NULL, out };                       \
                                                                                                            \
		switch (rows) {                                                                             \
		case 1: name##_1(&call); return;                                                            \
		case 2: name##_2(&call); return;                                                            \
		default: name##_many(&call, rows);                                                          \
		}                                                                                           \
	}

#endif
