/* kernels_simd.c: owns the row kernels in vectors (simd.h).  Does not own the order of operations of a step.
 * Invariant: a kernel's sums depend on its lengths only, never on other rows or on how many rows or heads are handled
 * at once. */
#if defined __x86_64__
#include "cpu/linear_simd.h"

#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

/* exp(x) to about one unit in the last place: x = n·ln 2 + r, |r| ≤ ln 2 / 2, a polynomial for exp(r) (minimax, Cephes'
 * expf), times 2ⁿ.  Below −87.3 the result is 0, above 88.3 it stays at exp(88.3); NaN stays NaN (the bounds come
 * first: min and max return their second operand when one is NaN). */
SIMD_INLINE simd_f exp_lanes(simd_f x)
{
	const simd_f low = SIMD(set1_ps)(-87.3f);
	const simd_f given = x;
	simd_f       n, r, p;

	x = SIMD(min_ps)(SIMD(set1_ps)(88.3f), SIMD(max_ps)(low, x));
	n = simd_round(SIMD(mul_ps)(x, SIMD(set1_ps)(1.44269504088896341f)));
	r = SIMD(fnmadd_ps)(n, SIMD(set1_ps)(0.693359375f), x);
	r = SIMD(fnmadd_ps)(n, SIMD(set1_ps)(-2.12194440e-4f), r);
	p = SIMD(set1_ps)(1.9875691500e-4f);
	p = SIMD(fmadd_ps)(p, r, SIMD(set1_ps)(1.3981999507e-3f));
	p = SIMD(fmadd_ps)(p, r, SIMD(set1_ps)(8.3334519073e-3f));
	p = SIMD(fmadd_ps)(p, r, SIMD(set1_ps)(4.1665795894e-2f));
	p = SIMD(fmadd_ps)(p, r, SIMD(set1_ps)(1.6666665459e-1f));
	p = SIMD(fmadd_ps)(p, r, SIMD(set1_ps)(5.0000001201e-1f));
	p = SIMD(fmadd_ps)(p, SIMD(mul_ps)(r, r), SIMD(add_ps)(r, SIMD(set1_ps)(1)));
	/* n ∈ −126…127: the exponent field cannot overflow. */
	p = SIMD(mul_ps)(p, simd_as_float(SIMD(slli_epi32)(SIMD(add_epi32)(SIMD(cvtps_epi32)(n),
	    SIMD(set1_epi32)(127)), 23)));
	return simd_unless_less(given, low, p);
}

/* ---- Activations of linear layers: bound by memory, and eight rows are eight lanes, so eight lanes everywhere ---- */

/* Eight rows by eight columns → eight columns by eight rows. */
SIMD_INLINE void transpose8(__m256 m[8])
{
	__m256 a[8], b[8];

	SIMD_UNROLL
	for (unsigned i = 0; i < 8; i += 2) {
		a[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
		a[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
	}
	SIMD_UNROLL
	for (unsigned i = 0; i < 8; i += 4) {
		b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
		b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
		b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
		b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
	}
	SIMD_UNROLL
	for (unsigned i = 0; i < 4; i++) {
		m[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
		m[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
	}
}

/* Both shapes add a group's columns in the same order: t[i] = Σ x[i + 8j], then the tree of simd_add_eight. */
static void prepare_one(const float *row, uint32_t columns, unsigned group, const float *prescale, float *x,
    float *sums)
{
	__m256   t = _mm256_setzero_ps();
	uint32_t k = 0;

	for (; k + 8 <= columns; k += 8) {
		__m256 value = _mm256_loadu_ps(row + k);

		_mm256_storeu_ps(x + k, prescale ? _mm256_mul_ps(value, _mm256_loadu_ps(prescale + k % FORMAT_PRESCALE)) : value);
		t = k % group == 0 ? value : _mm256_add_ps(t, value);
		if (sums && (k + 8) % group == 0)
			sums[k / group] = simd_add_eight(t);
	}
	for (; k < columns; k++)
		x[k] = row[k]; /* only formats without blocks have a tail; they have no prescale */
}

static void prepare_many(const float *const rows[FORMAT_ROWS], unsigned count, uint32_t columns, unsigned group,
    const float *prescale, float *x, float *sums)
{
	__m256   t[8];
	uint32_t k = 0;

	SIMD_UNROLL
	for (unsigned i = 0; i < 8; i++)
		t[i] = _mm256_setzero_ps();
	for (; k + 8 <= columns; k += 8) {
		__m256 m[8];

		SIMD_UNROLL
		for (unsigned r = 0; r < 8; r++)
			m[r] = r < count ? _mm256_loadu_ps(rows[r] + k) : _mm256_setzero_ps();
		transpose8(m);
		SIMD_UNROLL
		for (unsigned i = 0; i < 8; i++) {
			t[i] = k % group == 0 ? m[i] : _mm256_add_ps(t[i], m[i]);
			_mm256_storeu_ps(x + (size_t)(k + i) * FORMAT_ROWS,
			    prescale ? _mm256_mul_ps(m[i], _mm256_set1_ps(prescale[(k + i) % FORMAT_PRESCALE])) : m[i]);
		}
		if (sums && (k + 8) % group == 0) {
			__m256 even = _mm256_add_ps(_mm256_add_ps(t[0], t[4]), _mm256_add_ps(t[2], t[6]));
			__m256 odd = _mm256_add_ps(_mm256_add_ps(t[1], t[5]), _mm256_add_ps(t[3], t[7]));
			_mm256_storeu_ps(sums + (size_t)(k / group) * FORMAT_ROWS, _mm256_add_ps(even, odd));
		}
	}
	for (; k < columns; k++)
		for (unsigned r = 0; r < FORMAT_ROWS; r++)
			x[(size_t)k * FORMAT_ROWS + r] = r < count ? rows[r][k] : 0;
}

static void prepare(const float *const rows[FORMAT_ROWS], unsigned count, uint32_t columns, unsigned group,
    const float *prescale, float *x, float *sums)
{
	if (count == 1)
		prepare_one(rows[0], columns, group, prescale, x, sums);
	else
		prepare_many(rows, count, columns, group, prescale, x, sums);
}

#if !defined __AVX512F__ /* whose kernels read no limbs */
/* The scale of 32 columns whose largest magnitude has the bits AMAX: the least power of two that is at least 2^−126 and
 * leaves integers that three limbs can hold, up to 127 · 65793; 1.004 keeps those just below 2^23 out.  *RET_INVERSE = 1 /
 * scale. */
static inline float limbs_scale(uint32_t amax, float *ret_inverse)
{
	float    size, scale;
	uint32_t exponent, bits;

	memcpy(&size, &amax, 4);
	size *= 1.004f;
	memcpy(&bits, &size, 4);
	exponent = bits >> 23; /* 0…255: an infinite one is right, too */
	exponent = exponent > 22 ? exponent - 22 : 1;
	bits = exponent << 23;
	memcpy(&scale, &bits, 4);
	bits = (254 - exponent) << 23;
	memcpy(ret_inverse, &bits, 4);
	return scale;
}

static inline int32_t add_words(__m256i v)
{
	__m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
	__m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
	return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

static inline uint32_t max_words(__m256i v)
{
	__m128i four = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
	__m128i two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
	return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 1)));
}

/* With 2^7 + 2^15 + 2^23 added, the bytes of an integer are its limbs + 128, and the carries are done. */
static void limbs_of(const float *x, struct format_limbs *ret)
{
	enum { SLICES = FORMAT_LIMB_COLUMNS / 8, INFINITE = 0x7f800000 };
	const __m256i middle = _mm256_set1_epi32(0x808080), no_high = _mm256_set1_epi32(0x8080);
	/* Even columns by limbs, then odd ones: two bytes of each half of the register. */
	const __m256i order = _mm256_broadcastsi128_si256(
	    _mm_setr_epi8(0, 8, 1, 9, 2, 10, 4, 12, 5, 13, 6, 14, -1, -1, -1, -1));
	__m256i  amax = _mm256_setzero_si256(), sum = amax, high = amax;
	float    inverse;
	uint32_t size;

	SIMD_UNROLL
	for (unsigned s = 0; s < SLICES; s++)
		amax = _mm256_max_epu32(amax, _mm256_and_si256(simd_load_words(x + 8 * s), _mm256_set1_epi32(0x7fffffff)));
	size = max_words(amax);
	if (size >= INFINITE) {
		memset(ret, 0, sizeof *ret);
		ret->scale = NAN;
		ret->sum = NAN;
		return;
	}
	ret->scale = limbs_scale(size, &inverse);
	SIMD_UNROLL
	for (unsigned s = 0; s < SLICES; s++) {
		__m256i value = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * s), _mm256_set1_ps(inverse)));
		__m256i limbs = _mm256_shuffle_epi8(_mm256_xor_si256(_mm256_add_epi32(value, middle), middle), order);
		__m128i lower = _mm256_castsi256_si128(limbs), upper = _mm256_extracti128_si256(limbs, 1);

		_mm_storeu_si128((__m128i *)ret->words[s], _mm_unpacklo_epi16(lower, upper));
		_mm_storel_epi64((__m128i *)&ret->words[s][1][1], _mm_unpackhi_epi16(lower, upper));
		sum = _mm256_add_epi32(sum, value);
		high = _mm256_add_epi32(high, _mm256_srai_epi32(_mm256_add_epi32(value, no_high), 16));
	}
	ret->high = (float)add_words(high) * ret->scale;
	ret->rest = (float)(add_words(sum) - 65536 * add_words(high)) * ret->scale;
	ret->sum = (float)add_words(sum) * ret->scale;
	memset(ret->unused, 0, sizeof ret->unused);
}

static void prepare_limbs(const float *const rows[FORMAT_ROWS], unsigned count, uint32_t columns, struct format_limbs *ret)
{
	for (uint32_t k = 0; k < columns; k += FORMAT_LIMB_COLUMNS, ret += count == 1 ? 1 : FORMAT_ROWS)
		for (unsigned r = 0; r < count; r++)
			limbs_of(rows[r] + k, ret + r);
}
#define PREPARE_LIMBS prepare_limbs
#else
#define PREPARE_LIMBS NULL
#endif

/* ---- Rows ---- */

static void norm(float *x, const float *residual, const float *weight, uint32_t width, float eps, float *y)
{
	simd_f   squares = SIMD(setzero_ps)(), factor;
	uint32_t k = 0;
	float    scale, tail = 0;

	for (; k + SIMD_LANES <= width; k += SIMD_LANES) {
		simd_f value = SIMD(loadu_ps)(x + k);

		if (residual) {
			value = SIMD(add_ps)(value, SIMD(loadu_ps)(residual + k));
			SIMD(storeu_ps)(x + k, value);
		}
		squares = SIMD(fmadd_ps)(value, value, squares);
	}
	for (; k < width; k++) {
		x[k] += residual ? residual[k] : 0;
		tail += x[k] * x[k];
	}
	scale = 1 / sqrtf((simd_add_lanes(squares) + tail) / (float)width + eps);
	factor = SIMD(set1_ps)(scale);
	for (k = 0; k + SIMD_LANES <= width; k += SIMD_LANES)
		SIMD(storeu_ps)(y + k,
		    SIMD(mul_ps)(SIMD(mul_ps)(SIMD(loadu_ps)(x + k), factor), SIMD(loadu_ps)(weight + k)));
	for (; k < width; k++)
		y[k] = x[k] * scale * weight[k];
}

SIMD_INLINE simd_f silu_lanes(simd_f gate, simd_f up)
{
	simd_f down = SIMD(add_ps)(SIMD(set1_ps)(1), exp_lanes(SIMD(sub_ps)(SIMD(setzero_ps)(), gate)));
	return SIMD(mul_ps)(SIMD(div_ps)(gate, down), up);
}

static void silu(const float *gate, const float *up, uint32_t width, float *y)
{
	uint32_t k = 0;

	for (; k + SIMD_LANES <= width; k += SIMD_LANES)
		SIMD(storeu_ps)(y + k, silu_lanes(SIMD(loadu_ps)(gate + k), SIMD(loadu_ps)(up + k)));
	if (k < width) {
		simd_first first = simd_first_lanes(width - k);
		simd_store_first(y + k, first, silu_lanes(simd_load_first(gate + k, first), simd_load_first(up + k, first)));
	}
}

/* ---- Attention ---- */

/* One register of tokens per (vector, head); dimensions ascending.  Keys and values come from memory once per step:
 * rows some steps ahead are asked for. */
enum { ROWS_AHEAD = 8 };

/* Registers of tokens, or of dimensions, that HEADS heads share in one pass: sums, and what they are made of, must fit
 * the registers, and a block of 64 tokens should divide by them. */
#if defined __AVX512F__
#define WIDE(heads) 4
#else
#define WIDE(heads) ((heads) == 1 ? 8 : (heads) == 4 ? 2 : 4)
#endif

SIMD_INLINE void scores_body(const float *const *q, const float *keys, uint32_t key_stride, uint32_t head_dim,
    float *const *ret, uint32_t at, const unsigned vectors, const unsigned heads)
{
	simd_f sum[SIMD_CHAINS_MAX];

	simd_zero(sum, vectors * heads);
	for (uint32_t d = 0; d < head_dim; d++) {
		const float *row = keys + (size_t)d * key_stride + at;
		simd_f       qd[ATTENTION_HEADS];

		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v += 16 / SIMD_LANES)
			_mm_prefetch((const char *)(row + (size_t)ROWS_AHEAD * key_stride + SIMD_LANES * v), _MM_HINT_T0);
		SIMD_UNROLL
		for (unsigned h = 0; h < heads; h++)
			qd[h] = simd_broadcast(q[h] + d);
		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			simd_f key = SIMD(loadu_ps)(row + SIMD_LANES * v);

			SIMD_UNROLL
			for (unsigned h = 0; h < heads; h++)
				sum[v * heads + h] = SIMD(fmadd_ps)(key, qd[h], sum[v * heads + h]);
		}
	}
	SIMD_UNROLL
	for (unsigned h = 0; h < heads; h++) {
		SIMD_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			SIMD(storeu_ps)(ret[h] + at + SIMD_LANES * v, sum[v * heads + h]);
	}
}

#define SCORES(heads)                                                                                                     \
	static __attribute__((noinline)) void scores_##heads(const float *const *q, const float *keys, uint32_t stride,   \
	    uint32_t tokens, uint32_t head_dim, float *const *ret)                                                        \
	{                                                                                                                 \
		uint32_t at = 0;                                                                                          \
                                                                                                                          \
		for (; at + SIMD_LANES * WIDE(heads) <= tokens; at += SIMD_LANES * WIDE(heads))                           \
			scores_body(q, keys, stride, head_dim, ret, at, WIDE(heads), heads);                              \
		for (; at < tokens; at += SIMD_LANES)                                                                     \
			scores_body(q, keys, stride, head_dim, ret, at, 1, heads);                                        \
	}
SCORES(1)
SCORES(2)
SCORES(3)
SCORES(4)

static void scores(const float *const q[ATTENTION_HEADS], unsigned heads, const float *keys, uint32_t key_stride,
    uint32_t tokens, uint32_t head_dim, float *const ret[ATTENTION_HEADS])
{
	switch (heads) {
	case 1: scores_1(q, keys, key_stride, tokens, head_dim, ret); break;
	case 2: scores_2(q, keys, key_stride, tokens, head_dim, ret); break;
	case 3: scores_3(q, keys, key_stride, tokens, head_dim, ret); break;
	default: scores_4(q, keys, key_stride, tokens, head_dim, ret); break;
	}
}

static void softmax(float *s, uint32_t count, float scale, float *ret_max, float *ret_sum)
{
	const simd_f factor = SIMD(set1_ps)(scale);
	simd_f       max = SIMD(set1_ps)(-INFINITY), sum = SIMD(setzero_ps)();
	float        top;

	for (uint32_t t = 0; t < count; t += SIMD_LANES) {
		simd_f value = SIMD(mul_ps)(SIMD(loadu_ps)(s + t), factor);

		value = simd_select_first(simd_first_lanes(count - t), value, SIMD(set1_ps)(-INFINITY));
		SIMD(storeu_ps)(s + t, value);
		max = SIMD(max_ps)(value, max); /* a NaN score is left out here; it comes back through exp_lanes */
	}
	top = simd_max_lanes(max);
	for (uint32_t t = 0; t < count; t += SIMD_LANES) {
		simd_f value = exp_lanes(SIMD(sub_ps)(SIMD(loadu_ps)(s + t), SIMD(set1_ps)(top)));

		SIMD(storeu_ps)(s + t, value);
		sum = SIMD(add_ps)(sum, value);
	}
	*ret_max = top;
	*ret_sum = simd_add_lanes(sum);
}

SIMD_INLINE void values_body(const float *const *p, const float *v, uint32_t tokens, uint32_t head_dim, float *const *o,
    uint32_t at, const unsigned vectors, const unsigned heads)
{
	simd_f sum[SIMD_CHAINS_MAX];

	SIMD_UNROLL
	for (unsigned h = 0; h < heads; h++) {
		SIMD_UNROLL
		for (unsigned i = 0; i < vectors; i++)
			sum[i * heads + h] = SIMD(loadu_ps)(o[h] + at + SIMD_LANES * i);
	}
	for (uint32_t t = 0; t < tokens; t++, v += head_dim) {
		simd_f weight[ATTENTION_HEADS];

		SIMD_UNROLL
		for (unsigned i = 0; i < vectors; i += 16 / SIMD_LANES)
			_mm_prefetch((const char *)(v + (size_t)ROWS_AHEAD * head_dim + at + SIMD_LANES * i), _MM_HINT_T0);
		SIMD_UNROLL
		for (unsigned h = 0; h < heads; h++)
			weight[h] = simd_broadcast(p[h] + t);
		SIMD_UNROLL
		for (unsigned i = 0; i < vectors; i++) {
			simd_f value = SIMD(loadu_ps)(v + at + SIMD_LANES * i);

			SIMD_UNROLL
			for (unsigned h = 0; h < heads; h++)
				sum[i * heads + h] = SIMD(fmadd_ps)(value, weight[h], sum[i * heads + h]);
		}
	}
	SIMD_UNROLL
	for (unsigned h = 0; h < heads; h++) {
		SIMD_UNROLL
		for (unsigned i = 0; i < vectors; i++)
			SIMD(storeu_ps)(o[h] + at + SIMD_LANES * i, sum[i * heads + h]);
	}
}

#define VALUES(heads)                                                                                                     \
	static __attribute__((noinline)) void values_##heads(const float *const *p, const float *v, uint32_t tokens,      \
	    uint32_t head_dim, float *const *o)                                                                           \
	{                                                                                                                 \
		uint32_t at = 0;                                                                                          \
                                                                                                                          \
		for (; at + SIMD_LANES * WIDE(heads) <= head_dim; at += SIMD_LANES * WIDE(heads))                         \
			values_body(p, v, tokens, head_dim, o, at, WIDE(heads), heads);                                   \
		for (; at + SIMD_LANES <= head_dim; at += SIMD_LANES)                                                     \
			values_body(p, v, tokens, head_dim, o, at, 1, heads);                                             \
		for (; at < head_dim; at++)                                                                               \
			for (unsigned h = 0; h < heads; h++)                                                              \
				for (uint32_t t = 0; t < tokens; t++)                                                     \
					o[h][at] = fmaf(v[(size_t)t * head_dim + at], p[h][t], o[h][at]);                 \
	}
VALUES(1)
VALUES(2)
VALUES(3)
VALUES(4)

static void values(const float *const p[ATTENTION_HEADS], unsigned heads, const float *v, uint32_t tokens,
    uint32_t head_dim, float *const o[ATTENTION_HEADS])
{
	switch (heads) {
	case 1: values_1(p, v, tokens, head_dim, o); break;
	case 2: values_2(p, v, tokens, head_dim, o); break;
	case 3: values_3(p, v, tokens, head_dim, o); break;
	default: values_4(p, v, tokens, head_dim, o); break;
	}
}

static bool scan(const float *logits, uint32_t count, float *ret_max)
{
	simd_f   max = SIMD(set1_ps)(-INFINITY);
	uint32_t i = 0;
	float    top;
	bool     good = true;

	for (; i + SIMD_LANES <= count; i += SIMD_LANES) {
		simd_f value = SIMD(loadu_ps)(logits + i);

		max = SIMD(max_ps)(value, max);
		good = simd_all_finite(value) && good;
	}
	top = simd_max_lanes(max);
	for (; i < count; i++) {
		good = good && isfinite(logits[i]);
		top = logits[i] > top ? logits[i] : top;
	}
	*ret_max = top;
	return good;
}

static void weights(const float *logits, uint32_t count, float max, float factor, float *ret)
{
	const simd_f top = SIMD(set1_ps)(max), by = SIMD(set1_ps)(factor);
	uint32_t     i = 0;

	for (; i + SIMD_LANES <= count; i += SIMD_LANES)
		SIMD(storeu_ps)(ret + i, exp_lanes(SIMD(mul_ps)(SIMD(sub_ps)(SIMD(loadu_ps)(logits + i), top), by)));
	if (i < count) {
		simd_first first = simd_first_lanes(count - i);
		simd_store_first(ret + i, first, exp_lanes(SIMD(mul_ps)(SIMD(sub_ps)(simd_load_first(logits + i, first), top), by)));
	}
}

const struct cpu_kernels SIMD_NAME(cpu_kernels) = {
	.name = SIMD_ISA_NAME, .prepare = prepare, .prepare_limbs = PREPARE_LIMBS, .norm = norm, .silu = silu, .scores = scores,
	.softmax = softmax, .values = values, .scan = scan, .weights = weights,
};

#endif
