/* linear_avx2.h: the skeleton of the AVX2 kernels of fmt_*_avx2.c.
 *
 * A kernel handles VECTORS registers of eight weight rows at once against ROWS rows of activations.  Decoding costs
 * two or three instructions per register and serves all rows; the product is one fused multiply-add per register and
 * row.  Each (register, row) pair is one dependent chain over the columns of a group; with a latency of four cycles
 * and two units, eight chains keep the units busy, and accumulators, decoded values and activations must fit 16
 * registers:
 *
 *      rows     1   2   3   4   5   6           (7 = 4 + 3, 8 = 6 + 2)
 *      vectors  4   4   2   2   2   2
 *      chains   4   8   6   8  10  12          (one row is bound by memory, not by chains)
 *
 * More than FORMAT_ROWS rows are handled eight at a time while the tile stays in the caches.
 *
 * A format writes its body as an always-inlined function of constants (vectors, rows) and instantiates all eight
 * kernels with LINEAR_AVX2.  Loops over vectors and rows must be unrolled completely, so that the arrays become
 * registers.
 */
#ifndef PENSTOCK_CPU_LINEAR_AVX2_H
#define PENSTOCK_CPU_LINEAR_AVX2_H

#include "cpu/format.h"

#include <immintrin.h>

#define AVX2_INLINE static inline __attribute__((always_inline))
#define AVX2_UNROLL _Pragma("GCC unroll 16")
#define AVX2_LANES(value) { value, value, value, value, value, value, value, value }
/* The compiler no longer knows where two pointers point, so it loads anew. */
#define AVX2_FORGET(a, b) __asm__("" : "+r"(a), "+r"(b))

enum { AVX2_CHAINS_MAX = 12, AVX2_VECTORS = FORMAT_TILE / 8 };

/* What one kernel call works on. */
struct avx2_call {
	const uint8_t *tile;
	uint32_t       columns;
	const float   *x, *sums;
	float        (*out)[FORMAT_TILE];
};

AVX2_INLINE void avx2_zero(__m256 *values, unsigned count)
{
	AVX2_UNROLL
	for (unsigned i = 0; i < count; i++)
		values[i] = _mm256_setzero_ps();
}

/* sum[v][r] += q[v] · x[r] at one column; X points to that column. */
AVX2_INLINE void avx2_multiply(__m256 *sum, const __m256 *q, const float *x, unsigned vectors, unsigned rows)
{
	AVX2_UNROLL
	for (unsigned r = 0; r < rows; r++) {
		__m256 xr = _mm256_broadcast_ss(x + r);

		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			sum[v * rows + r] = _mm256_fmadd_ps(q[v], xr, sum[v * rows + r]);
	}
}

/* Where the total of register V and row R lives.  Totals are touched once per group and stay in memory on purpose: as
 * local variables they compete with the sums for registers, and the compiler puts the wrong ones aside. */
AVX2_INLINE float *avx2_total(const struct avx2_call *call, unsigned first, unsigned v, unsigned r)
{
	return &call->out[r][8 * (first + v)];
}

AVX2_INLINE void avx2_clear_totals(const struct avx2_call *call, unsigned first, unsigned vectors, unsigned rows)
{
	for (unsigned r = 0; r < rows; r++)
		for (unsigned v = 0; v < vectors; v++)
			_mm256_storeu_ps(avx2_total(call, first, v, r), _mm256_setzero_ps());
}

/* total[v][r] += scale · sum[v][r], for register V. */
AVX2_INLINE void avx2_fold(const struct avx2_call *call, const __m256 *sum, __m256 scale, unsigned first, unsigned v,
    unsigned rows)
{
	AVX2_UNROLL
	for (unsigned r = 0; r < rows; r++) {
		float *total = avx2_total(call, first, v, r);
		_mm256_storeu_ps(total, _mm256_fmadd_ps(scale, sum[v * rows + r], _mm256_loadu_ps(total)));
	}
}

/* total[v][r] += scale · sum[v][r] + offset · sums[r], for register V. */
AVX2_INLINE void avx2_fold_offset(const struct avx2_call *call, const __m256 *sum, __m256 scale, __m256 offset,
    const float *sums, unsigned first, unsigned v, unsigned rows)
{
	AVX2_UNROLL
	for (unsigned r = 0; r < rows; r++) {
		float *total = avx2_total(call, first, v, r);
		__m256 scaled = _mm256_fmadd_ps(scale, sum[v * rows + r], _mm256_loadu_ps(total));
		_mm256_storeu_ps(total, _mm256_fmadd_ps(offset, _mm256_broadcast_ss(sums + r), scaled));
	}
}

/* sum[v][r] −= zero · sums[r]: the values were counted from 0 instead of from ZERO. */
AVX2_INLINE void avx2_shift(__m256 *sum, __m256 zero, const float *sums, unsigned v, unsigned rows)
{
	AVX2_UNROLL
	for (unsigned r = 0; r < rows; r++)
		sum[v * rows + r] = _mm256_fnmadd_ps(zero, _mm256_broadcast_ss(sums + r), sum[v * rows + r]);
}

AVX2_INLINE __m256 avx2_halves(const uint8_t *halves)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves));
}

/* Eight bytes, of register V of an array of one per row. */
AVX2_INLINE __m256 avx2_unsigned_bytes(const uint8_t *bytes, unsigned v)
{
	return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(bytes + 8 * v))));
}

AVX2_INLINE __m256 avx2_signed_bytes(const uint8_t *bytes, unsigned v)
{
	return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(bytes + 8 * v))));
}

/* The same for register V of a group of Q4_K or Q5_K: d and dmin at the head of SUPER, s and m at the head of GROUP. */
AVX2_INLINE void avx2_fold_k(const struct avx2_call *call, const __m256 *sum, const uint8_t *super, const uint8_t *group,
    const float *sums, unsigned first, unsigned v, unsigned rows)
{
	__m256 scale = _mm256_mul_ps(avx2_halves(super + 16 * (first + v)), avx2_unsigned_bytes(group, first + v));
	__m256 minimum = _mm256_mul_ps(avx2_halves(super + 2 * FORMAT_TILE + 16 * (first + v)),
	    avx2_unsigned_bytes(group + FORMAT_TILE, first + v));

	avx2_fold_offset(call, sum, scale, _mm256_sub_ps(_mm256_setzero_ps(), minimum), sums, first, v, rows);
}

/* Register V of word A of every row, or the same from AT bytes into it. */
AVX2_INLINE __m256i avx2_words(const uint8_t *words, unsigned a, unsigned v, unsigned at)
{
	return _mm256_loadu_si256((const __m256i *)(words + 4 * FORMAT_TILE * a + 32 * v + at));
}

/* Adds COLUMNS columns, eight nibbles to a word; WORDS points to the first row's. */
AVX2_INLINE void avx2_nibbles(__m256 *sum, const uint8_t *words, const float *x, unsigned columns, unsigned vectors,
    unsigned rows)
{
	static const int32_t masks[4][8] __attribute__((aligned(32))) = {
		AVX2_LANES(0xf), AVX2_LANES(0xf0), AVX2_LANES(0xf00), AVX2_LANES(0xf000),
	};
	const unsigned stride = rows == 1 ? 1 : FORMAT_ROWS;

	for (unsigned s = 0; s < columns / 8; s++, words += 4 * FORMAT_TILE) {
		const int32_t *mask = masks[0];

		AVX2_UNROLL
		for (unsigned p = 0; p < 8; p++) {
			__m256 q[AVX2_VECTORS];

			/* Words and masks are read from memory each time: kept in registers they would push accumulators
			 * out.  Two bytes further on, the upper half of a word is its lower half. */
			AVX2_FORGET(mask, words);
			AVX2_UNROLL
			for (unsigned v = 0; v < vectors; v++)
				q[v] = _mm256_cvtepi32_ps(_mm256_and_si256(avx2_words(words, 0, v, p < 4 ? 0 : 2),
				    *(const __m256i *)(mask + 8 * (p % 4))));
			avx2_multiply(sum, q, x + (8 * s + p) * stride, vectors, rows);
		}
	}
}

/* Asks for what will be read soon.  One row: BYTES of this tile a few groups ahead.  More rows: arithmetic takes so
 * long that the hardware forgets the stream; each pass over the tile asks for its share of the next one. */
AVX2_INLINE void avx2_prefetch(const uint8_t *group, size_t bytes, size_t tile_bytes, unsigned first, unsigned vectors,
    unsigned rows)
{
	const uint8_t *from = rows == 1 ? group + 4 * bytes : group + tile_bytes + first * (bytes / AVX2_VECTORS);
	size_t         share = rows == 1 ? bytes : vectors * (bytes / AVX2_VECTORS);

	AVX2_UNROLL
	for (size_t at = 0; at < share; at += 64)
		_mm_prefetch((const char *)(from + at), _MM_HINT_T0);
}

static inline void avx2_skip_rows(struct avx2_call *call, unsigned rows)
{
	call->x += rows;
	call->sums += call->sums ? rows : 0;
	call->out += rows;
}

/* Defines NAME, a format_linear_function, from BODY(call, first vector, vectors, rows, option).  Each (vectors, rows)
 * is a function of its own: inlined into one, they share a register allocation that serves none. */
#define AVX2_KERNEL(name, body, vectors, rows, option)                                              \
	static __attribute__((noinline)) void name##_##rows(const struct avx2_call *call)           \
	{                                                                                           \
		for (unsigned first = 0; first < AVX2_VECTORS; first += vectors)                    \
			body(call, first, vectors, rows, option);                                   \
	}

#define LINEAR_AVX2(name, body, option)                                                                           \
	AVX2_KERNEL(name, body, 4, 1, option)                                                                     \
	AVX2_KERNEL(name, body, 4, 2, option)                                                                     \
	AVX2_KERNEL(name, body, 2, 3, option)                                                                     \
	AVX2_KERNEL(name, body, 2, 4, option)                                                                     \
	AVX2_KERNEL(name, body, 2, 5, option)                                                                     \
	AVX2_KERNEL(name, body, 2, 6, option)                                                                     \
	void name(const uint8_t *tile, uint32_t columns, const struct format_input *input, unsigned rows,         \
	    float out[FORMAT_ROWS][FORMAT_TILE])                                                                  \
	{                                                                                                         \
		struct avx2_call call = { tile, columns, input->x, input->sums, out }; \
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
			avx2_skip_rows(&call, 4);                                                                 \
			name##_3(&call);                                                                          \
			return;                                                                                   \
		default:                                                                                          \
			name##_6(&call);                                                                          \
			avx2_skip_rows(&call, 6);                                                                 \
			name##_2(&call);                                                                          \
		}                                                                                                 \
	}

#endif
