/* kernels_avx2.c: owns the row kernels for AVX2 + FMA + F16C.  Does not own the order of operations of a step.
 * Invariant: a kernel's sums depend on its lengths only, never on other rows or on how many rows or heads are handled
 * at once. */
#if defined __x86_64__
#include "cpu/linear_avx2.h"

#include "cpu/cpu.h"

#include <math.h>

/* ((0+4)+(2+6)) + ((1+5)+(3+7)) of eight lanes. */
AVX2_INLINE float add_lanes(__m256 v)
{
	__m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
	__m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
	return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* NaN in any lane gives NaN or another lane's value: callers that care check finiteness apart. */
AVX2_INLINE float max_lanes(__m256 v)
{
	__m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
	__m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
	return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* The first COUNT of eight lanes. */
AVX2_INLINE __m256i lane_mask(uint32_t count)
{
	return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* exp(x) to about one unit in the last place: x = n·ln 2 + r, |r| ≤ ln 2 / 2, a polynomial for exp(r) (minimax, Cephes'
 * expf), times 2ⁿ.  Below −87.3 the result is 0, above 88.3 it stays at exp(88.3); NaN stays NaN (the bounds come
 * first: min and max return their second operand when one is NaN). */
AVX2_INLINE __m256 exp8(__m256 x)
{
	const __m256 low = _mm256_set1_ps(-87.3f);
	__m256       tiny = _mm256_cmp_ps(x, low, _CMP_LT_OQ);
	__m256       n, r, p;

	x = _mm256_min_ps(_mm256_set1_ps(88.3f), _mm256_max_ps(low, x));
	n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)), _MM_FROUND_TO_NEAREST_INT |
	    _MM_FROUND_NO_EXC);
	r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
	r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
	p = _mm256_set1_ps(1.9875691500e-4f);
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
	p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
	p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1)));
	/* n ∈ −126…127: the exponent field cannot overflow. */
	p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n),
	    _mm256_set1_epi32(127)), 23)));
	return _mm256_andnot_ps(tiny, p);
}

/* Eight rows by eight columns → eight columns by eight rows. */
AVX2_INLINE void transpose8(__m256 m[8])
{
	__m256 a[8], b[8];

	AVX2_UNROLL
	for (unsigned i = 0; i < 8; i += 2) {
		a[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
		a[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
	}
	AVX2_UNROLL
	for (unsigned i = 0; i < 8; i += 4) {
		b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
		b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
		b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
		b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
	}
	AVX2_UNROLL
	for (unsigned i = 0; i < 4; i++) {
		m[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
		m[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
	}
}

/* Both shapes add a group's columns in the same order: t[i] = Σ x[i + 8j], then the tree of add_lanes. */
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
			sums[k / group] = add_lanes(t);
	}
	for (; k < columns; k++)
		x[k] = row[k]; /* only formats without blocks have a tail; they have no prescale */
}

static void prepare_many(const float *const rows[FORMAT_ROWS], unsigned count, uint32_t columns, unsigned group,
    const float *prescale, float *x, float *sums)
{
	__m256   t[8];
	uint32_t k = 0;

	avx2_zero(t, 8);
	for (; k + 8 <= columns; k += 8) {
		__m256 m[8];

		AVX2_UNROLL
		for (unsigned r = 0; r < 8; r++)
			m[r] = r < count ? _mm256_loadu_ps(rows[r] + k) : _mm256_setzero_ps();
		transpose8(m);
		AVX2_UNROLL
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

static void norm(float *x, const float *residual, const float *weight, uint32_t width, float eps, float *y)
{
	__m256   squares = _mm256_setzero_ps(), factor;
	uint32_t k = 0;
	float    scale, tail = 0;

	for (; k + 8 <= width; k += 8) {
		__m256 value = _mm256_loadu_ps(x + k);

		if (residual) {
			value = _mm256_add_ps(value, _mm256_loadu_ps(residual + k));
			_mm256_storeu_ps(x + k, value);
		}
		squares = _mm256_fmadd_ps(value, value, squares);
	}
	for (; k < width; k++) {
		x[k] += residual ? residual[k] : 0;
		tail += x[k] * x[k];
	}
	scale = 1 / sqrtf((add_lanes(squares) + tail) / (float)width + eps);
	factor = _mm256_set1_ps(scale);
	for (k = 0; k + 8 <= width; k += 8)
		_mm256_storeu_ps(y + k,
		    _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + k), factor), _mm256_loadu_ps(weight + k)));
	for (; k < width; k++)
		y[k] = x[k] * scale * weight[k];
}

AVX2_INLINE __m256 silu8(__m256 gate, __m256 up)
{
	__m256 down = _mm256_add_ps(_mm256_set1_ps(1), exp8(_mm256_sub_ps(_mm256_setzero_ps(), gate)));
	return _mm256_mul_ps(_mm256_div_ps(gate, down), up);
}

static void silu(const float *gate, const float *up, uint32_t width, float *y)
{
	uint32_t k = 0;

	for (; k + 8 <= width; k += 8)
		_mm256_storeu_ps(y + k, silu8(_mm256_loadu_ps(gate + k), _mm256_loadu_ps(up + k)));
	if (k < width) {
		__m256i mask = lane_mask(width - k);
		_mm256_maskstore_ps(y + k, mask, silu8(_mm256_maskload_ps(gate + k, mask), _mm256_maskload_ps(up + k, mask)));
	}
}

/* One register of eight tokens per (vector, head); dimensions ascending.  Keys and values come from memory once per step:
 * rows some steps ahead are asked for. */
enum { ROWS_AHEAD = 8 };

AVX2_INLINE void scores_body(const float *const *q, const float *keys, uint32_t key_stride, uint32_t head_dim,
    float *const *ret, uint32_t at, const unsigned vectors, const unsigned heads)
{
	__m256 sum[AVX2_CHAINS_MAX];

	avx2_zero(sum, vectors * heads);
	for (uint32_t d = 0; d < head_dim; d++) {
		const float *row = keys + (size_t)d * key_stride + at;
		__m256       qd[ATTENTION_HEADS];

		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v += 2)
			_mm_prefetch((const char *)(row + (size_t)ROWS_AHEAD * key_stride + 8 * v), _MM_HINT_T0);
		AVX2_UNROLL
		for (unsigned h = 0; h < heads; h++)
			qd[h] = _mm256_broadcast_ss(q[h] + d);
		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++) {
			__m256 key = _mm256_loadu_ps(row + 8 * v);

			AVX2_UNROLL
			for (unsigned h = 0; h < heads; h++)
				sum[v * heads + h] = _mm256_fmadd_ps(key, qd[h], sum[v * heads + h]);
		}
	}
	AVX2_UNROLL
	for (unsigned h = 0; h < heads; h++) {
		AVX2_UNROLL
		for (unsigned v = 0; v < vectors; v++)
			_mm256_storeu_ps(ret[h] + at + 8 * v, sum[v * heads + h]);
	}
}

#define SCORES(heads, wide)                                                                                               \
	static __attribute__((noinline)) void scores_##heads(const float *const *q, const float *keys, uint32_t stride,   \
	    uint32_t tokens, uint32_t head_dim, float *const *ret)                                                        \
	{                                                                                                                 \
		uint32_t at = 0;                                                                                          \
                                                                                                                          \
		for (; at + 8 * wide <= tokens; at += 8 * wide)                                                           \
			scores_body(q, keys, stride, head_dim, ret, at, wide, heads);                                     \
		for (; at < tokens; at += 8)                                                                              \
			scores_body(q, keys, stride, head_dim, ret, at, 1, heads);                                        \
	}
SCORES(1, 8)
SCORES(2, 4)
SCORES(3, 4)
SCORES(4, 2)

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
	const __m256 factor = _mm256_set1_ps(scale);
	__m256       max = _mm256_set1_ps(-INFINITY), sum = _mm256_setzero_ps();
	float        top;

	for (uint32_t t = 0; t < count; t += 8) {
		__m256 value = _mm256_mul_ps(_mm256_loadu_ps(s + t), factor);

		if (count - t < 8)
			value = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), value, _mm256_castsi256_ps(lane_mask(count - t)));
		_mm256_storeu_ps(s + t, value);
		max = _mm256_max_ps(value, max); /* a NaN score is left out here; it comes back through exp8 */
	}
	top = max_lanes(max);
	for (uint32_t t = 0; t < count; t += 8) {
		__m256 value = exp8(_mm256_sub_ps(_mm256_loadu_ps(s + t), _mm256_set1_ps(top)));

		_mm256_storeu_ps(s + t, value);
		sum = _mm256_add_ps(sum, value);
	}
	*ret_max = top;
	*ret_sum = add_lanes(sum);
}

AVX2_INLINE void values_body(const float *const *p, const float *v, uint32_t tokens, uint32_t head_dim, float *const *o,
    uint32_t at, const unsigned vectors, const unsigned heads)
{
	__m256 sum[AVX2_CHAINS_MAX];

	AVX2_UNROLL
	for (unsigned h = 0; h < heads; h++) {
		AVX2_UNROLL
		for (unsigned i = 0; i < vectors; i++)
			sum[i * heads + h] = _mm256_loadu_ps(o[h] + at + 8 * i);
	}
	for (uint32_t t = 0; t < tokens; t++, v += head_dim) {
		__m256 weight[ATTENTION_HEADS];

		AVX2_UNROLL
		for (unsigned i = 0; i < vectors; i += 2)
			_mm_prefetch((const char *)(v + (size_t)ROWS_AHEAD * head_dim + at + 8 * i), _MM_HINT_T0);
		AVX2_UNROLL
		for (unsigned h = 0; h < heads; h++)
			weight[h] = _mm256_broadcast_ss(p[h] + t);
		AVX2_UNROLL
		for (unsigned i = 0; i < vectors; i++) {
			__m256 value = _mm256_loadu_ps(v + at + 8 * i);

			AVX2_UNROLL
			for (unsigned h = 0; h < heads; h++)
				sum[i * heads + h] = _mm256_fmadd_ps(value, weight[h], sum[i * heads + h]);
		}
	}
	AVX2_UNROLL
	for (unsigned h = 0; h < heads; h++) {
		AVX2_UNROLL
		for (unsigned i = 0; i < vectors; i++)
			_mm256_storeu_ps(o[h] + at + 8 * i, sum[i * heads + h]);
	}
}

#define VALUES(heads, wide)                                                                                               \
	static __attribute__((noinline)) void values_##heads(const float *const *p, const float *v, uint32_t tokens,      \
	    uint32_t head_dim, float *const *o)                                                                           \
	{                                                                                                                 \
		uint32_t at = 0;                                                                                          \
                                                                                                                          \
		for (; at + 8 * wide <= head_dim; at += 8 * wide)                                                         \
			values_body(p, v, tokens, head_dim, o, at, wide, heads);                                          \
		for (; at + 8 <= head_dim; at += 8)                                                                       \
			values_body(p, v, tokens, head_dim, o, at, 1, heads);                                             \
		for (; at < head_dim; at++)                                                                               \
			for (unsigned h = 0; h < heads; h++)                                                              \
				for (uint32_t t = 0; t < tokens; t++)                                                     \
					o[h][at] = fmaf(v[(size_t)t * head_dim + at], p[h][t], o[h][at]);                 \
	}
VALUES(1, 8)
VALUES(2, 4)
VALUES(3, 4)
VALUES(4, 2)

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
	const __m256 infinity = _mm256_set1_ps(INFINITY), sign = _mm256_set1_ps(-0.0f);
	__m256       max = _mm256_set1_ps(-INFINITY), finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
	uint32_t     i = 0;
	float        top;
	bool         good;

	for (; i + 8 <= count; i += 8) {
		__m256 value = _mm256_loadu_ps(logits + i);

		max = _mm256_max_ps(value, max);
		finite = _mm256_and_ps(finite, _mm256_cmp_ps(_mm256_andnot_ps(sign, value), infinity, _CMP_LT_OQ));
	}
	good = _mm256_movemask_ps(finite) == 0xff;
	top = max_lanes(max);
	for (; i < count; i++) {
		good = good && isfinite(logits[i]);
		top = logits[i] > top ? logits[i] : top;
	}
	*ret_max = top;
	return good;
}

static void weights(const float *logits, uint32_t count, float max, float factor, float *ret)
{
	const __m256 top = _mm256_set1_ps(max), by = _mm256_set1_ps(factor);
	uint32_t     i = 0;

	for (; i + 8 <= count; i += 8)
		_mm256_storeu_ps(ret + i, exp8(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(logits + i), top), by)));
	if (i < count) {
		__m256i mask = lane_mask(count - i);
		_mm256_maskstore_ps(ret + i, mask, exp8(_mm256_mul_ps(_mm256_sub_ps(_mm256_maskload_ps(logits + i, mask), top),
		    by)));
	}
}

const struct cpu_kernels cpu_kernels_avx2 = {
	.name = "avx2", .prepare = prepare, .norm = norm, .silu = silu, .scores = scores, .softmax = softmax,
	.values = values, .scan = scan, .weights = weights,
};

#endif
