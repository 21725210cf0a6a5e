/* kernels_generic.c: owns the row kernels in plain C, the reference of the others.  Does not own the order of
 * operations of a step.  Invariant: a kernel's sums depend on its lengths only, never on other rows. */
#include "cpu/cpu.h"

#include <math.h>

static void prepare(const float *const rows[FORMAT_ROWS], unsigned count, uint32_t columns, unsigned group,
    const float *prescale, float *x, float *sums)
{
	unsigned stride = count == 1 ? 1 : FORMAT_ROWS;

	for (unsigned r = 0; r < stride; r++) {
		float sum = 0;

		for (uint32_t k = 0; k < columns; k++) {
			float value = r < count ? rows[r][k] : 0;

			x[(size_t)k * stride + r] = prescale ? value * prescale[k % FORMAT_PRESCALE] : value;
			sum += value;
			if (sums && (k + 1) % group == 0) {
				sums[(size_t)(k / group) * stride + r] = sum;
				sum = 0;
			}
		}
	}
}

static void norm(float *x, const float *residual, const float *weight, uint32_t width, float eps, float *y)
{
	float squares[8] = { 0 }, scale;

	for (uint32_t k = 0; k < width; k++) {
		if (residual)
			x[k] += residual[k];
		squares[k % 8] += x[k] * x[k];
	}
	scale = ((squares[0] + squares[4]) + (squares[2] + squares[6])) +
	    ((squares[1] + squares[5]) + (squares[3] + squares[7]));
	scale = 1 / sqrtf(scale / (float)width + eps);
	for (uint32_t k = 0; k < width; k++)
		y[k] = x[k] * scale * weight[k];
}

static void silu(const float *gate, const float *up, uint32_t width, float *y)
{
	for (uint32_t k = 0; k < width; k++)
		y[k] = gate[k] / (1 + expf(-gate[k])) * up[k];
}

static void scores(const float *const q[ATTENTION_HEADS], unsigned heads, const float *keys, uint32_t key_stride,
    uint32_t tokens, uint32_t head_dim, float *const ret[ATTENTION_HEADS])
{
	for (unsigned h = 0; h < heads; h++) {
		for (uint32_t t = 0; t < tokens; t++)
			ret[h][t] = 0;
		for (uint32_t d = 0; d < head_dim; d++)
			for (uint32_t t = 0; t < tokens; t++)
				ret[h][t] += q[h][d] * keys[(size_t)d * key_stride + t];
	}
}

static void softmax(float *s, uint32_t count, float scale, float *ret_max, float *ret_sum)
{
	float max = -INFINITY, sum[8] = { 0 };

	for (uint32_t t = 0; t < count; t++) {
		s[t] *= scale;
		max = s[t] > max ? s[t] : max;
	}
	for (uint32_t t = 0; t < count; t++) {
		s[t] = expf(s[t] - max); /* a NaN stays one, and makes the sum one */
		sum[t % 8] += s[t];
	}
	*ret_max = max;
	*ret_sum = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

static void values(const float *const p[ATTENTION_HEADS], unsigned heads, const float *v, uint32_t tokens,
    uint32_t head_dim, float *const o[ATTENTION_HEADS])
{
	for (uint32_t t = 0; t < tokens; t++)
		for (unsigned h = 0; h < heads; h++)
			for (uint32_t d = 0; d < head_dim; d++)
				o[h][d] += p[h][t] * v[(size_t)t * head_dim + d];
}

static bool scan(const float *logits, uint32_t count, float *ret_max)
{
	float max = -INFINITY;
	bool  finite = true;

	for (uint32_t i = 0; i < count; i++) {
		finite = finite && isfinite(logits[i]);
		max = logits[i] > max ? logits[i] : max;
	}
	*ret_max = max;
	return finite;
}

static void weights(const float *logits, uint32_t count, float max, float factor, float *ret)
{
	for (uint32_t i = 0; i < count; i++)
		ret[i] = expf((logits[i] - max) * factor);
}

const struct cpu_kernels cpu_kernels_generic = {
	.name = "generic", .prepare = prepare, .norm = norm, .silu = silu, .scores = scores, .softmax = softmax,
	.values = values, .scan = scan, .weights = weights,
};
