/* rope.c: owns the frequencies of rotary position embedding and the ways they are stretched for longer contexts.  Does
 * not own the rotation (the backend's).  Invariant: frequencies are finite and positive.
 *
 *      pair i of n:  f = base^(−i / n)                                              Su et al. 2021
 *      linear        f / factor                                                     Chen et al. 2023
 *      llama 3       f / rope_freqs.weight[i], computed by whoever made the file
 *      YaRN          f / factor · ramp + f · (1 − ramp), ramp over i from 0 (fast pairs stay) to 1 (slow ones are
 *                    stretched), cos and sin times 1 + 0.1 ln factor                Peng et al. 2023
 */
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum rope_scaling { SCALING_NONE, SCALING_LINEAR, SCALING_YARN };

struct scaling {
	enum rope_scaling kind;
	double   factor, attention_factor;
	double   beta_fast, beta_slow; /* turns over the original context at which the ramp begins and ends */
	uint32_t original_context;
};

/* The pair that makes TURNS turns over the original context. */
static double ramp_end(double turns, double base, uint32_t dims, uint32_t context)
{
	return dims * log(context / (turns * 2 * M_PI)) / (2 * log(base));
}

static double ramp_at(const struct scaling *scaling, double base, uint32_t dims, uint32_t pair)
{
	double low = floor(ramp_end(scaling->beta_fast, base, dims, scaling->original_context));
	double high = ceil(ramp_end(scaling->beta_slow, base, dims, scaling->original_context));
	double ramp;

	low = fmax(low, 0);
	high = fmin(high, dims - 1);
	ramp = (pair - low) / fmax(high - low, 0.001);
	return fmin(fmax(ramp, 0), 1);
}

static enum status read_kind(const struct gguf *gguf, const struct model *model, struct scaling *ret,
    struct error *error)
{
	char        key[64];
	const char *kind;
	size_t      length;
	enum status status;

	snprintf(key, sizeof key, "%s.rope.scaling.type", model->info.architecture);
	status = gguf_get_string(gguf, key, &kind, &length, error);
	if (status == STATUS_NOT_FOUND)
		return STATUS_OK;
	if (status)
		return status;
	if (length == 4 && memcmp(kind, "none", 4) == 0)
		ret->kind = SCALING_NONE;
	else if (length == 6 && memcmp(kind, "linear", 6) == 0)
		ret->kind = SCALING_LINEAR;
	else if (length == 4 && memcmp(kind, "yarn", 4) == 0)
		ret->kind = SCALING_YARN;
	else
		return error_set(error, STATUS_UNSUPPORTED, "%s = \"%.*s\": known are none, linear and yarn", key,
		    length > 40 ? 40 : (int)length, kind);
	return STATUS_OK;
}

static enum status read_scaling(const struct gguf *gguf, const struct model *model, struct scaling *ret,
    struct error *error)
{
	double      old_linear = 0, log_multiplier = 0;
	enum status status;

	*ret = (struct scaling){ .kind = SCALING_NONE, .factor = 1, .attention_factor = 1, .beta_fast = 32, .beta_slow = 1,
		.original_context = model->info.max_context };
	if ((status = hparam_f64(gguf, model, "rope.scale_linear", false, 1e-3, 1e6, &old_linear, error)) ||
	    (status = read_kind(gguf, model, ret, error)) ||
	    (status = hparam_f64(gguf, model, "rope.scaling.factor", ret->kind != SCALING_NONE, 1e-3, 1e6, &ret->factor,
	    error)) ||
	    (status = hparam_f64(gguf, model, "rope.scaling.attn_factor", false, 1e-3, 1e3, &ret->attention_factor,
	    error)) ||
	    (status = hparam_f64(gguf, model, "rope.scaling.yarn_attn_factor", false, 1e-3, 1e3, &ret->attention_factor,
	    error)) ||
	    (status = hparam_f64(gguf, model, "rope.scaling.yarn_beta_fast", false, 1e-3, 1e6, &ret->beta_fast, error)) ||
	    (status = hparam_f64(gguf, model, "rope.scaling.yarn_beta_slow", false, 1e-3, 1e6, &ret->beta_slow, error)) ||
	    (status = hparam_f64(gguf, model, "rope.scaling.yarn_log_multiplier", false, 0, 1e3, &log_multiplier, error)) ||
	    (status = hparam_u32(gguf, model, "rope.scaling.original_context_length", ret->kind == SCALING_YARN, 1,
	    MODEL_CONTEXT_MAX,
	        &ret->original_context, error)))
		return status;
	if (log_multiplier > 0)
		return error_set(error, STATUS_UNSUPPORTED, "%s.rope.scaling.yarn_log_multiplier = %g is not supported",
		    model->info.architecture, log_multiplier);
	if (ret->kind == SCALING_NONE && old_linear > 0) {
		ret->kind = SCALING_LINEAR; /* how files before rope.scaling.* said it */
		ret->factor = old_linear;
	}
	return STATUS_OK;
}

/* Divides by rope_freqs.weight, which model_load counts as used. */
static enum status apply_factors(const struct gguf *gguf, uint32_t pairs, float *frequencies, struct error *error)
{
	const struct gguf_tensor *factors = gguf_tensor_find(gguf, "rope_freqs.weight");

	if (!factors)
		return STATUS_OK;
	if (factors->type != GGUF_F32 || factors->n_dims != 1 || factors->dims[0] != pairs)
		return error_set(error, STATUS_INVALID, "rope_freqs.weight is %s with %llu values: expected F32 with %u",
		    gguf_type_name(factors->type), (unsigned long long)factors->dims[0], pairs);
	for (uint32_t i = 0; i < pairs; i++) {
		float factor;

		memcpy(&factor, (const uint8_t *)factors->data + 4 * (size_t)i, 4);
		if (!(factor >= 1e-6f && factor <= 1e6f))
			return error_set(error, STATUS_INVALID, "rope_freqs.weight[%u] = %g is outside 1e-6…1e6", i,
			    (double)factor);
		frequencies[i] /= factor;
	}
	return STATUS_OK;
}

enum status rope_read(struct model *model, const struct gguf *gguf, uint32_t dims, enum rope_style style,
    struct error *error)
{
	struct scaling scaling;
	double         base = 10000, attention = 1;
	enum status    status;

	if ((status = hparam_f64(gguf, model, "rope.freq_base", false, 1.001, 1e12, &base, error)) ||
	    (status = read_scaling(gguf, model, &scaling, error)))
		return status;
	model->rope.frequencies = malloc(dims / 2 * sizeof *model->rope.frequencies);
	if (!model->rope.frequencies)
		return error_set(error, STATUS_NOMEM, "out of memory for rope frequencies");
	for (uint32_t i = 0; i < dims / 2; i++) {
		double frequency = pow(base, -2.0 * i / dims);

		if (scaling.kind == SCALING_LINEAR)
			frequency /= scaling.factor;
		if (scaling.kind == SCALING_YARN) {
			double ramp = ramp_at(&scaling, base, dims, i);
			frequency = frequency / scaling.factor * ramp + frequency * (1 - ramp);
		}
		model->rope.frequencies[i] = (float)frequency;
	}
	if (scaling.kind == SCALING_YARN)
		attention = scaling.attention_factor * (scaling.factor > 1 ? 1 + 0.1 * log(scaling.factor) : 1);
	model->rope.desc = (struct rope_desc){ .style = style, .dims = dims, .frequencies = model->rope.frequencies,
	    .scale = (float)attention };
	return apply_factors(gguf, dims / 2, model->rope.frequencies, error);
}
