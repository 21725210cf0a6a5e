/* rope.c: owns the frequencies of rotary position embedding and the ways they are stretched for longer contexts.  Does
 * not own the rotation (the backend's).  Invariant: frequencies are finite and positive.
 *
 *      pair i of n:  f = base^(−i / n)                                              Su et al. 2021
 *      linear        f / factor                                                     Chen et al. 2023
 *      dynamic       f within max_position_embeddings, which is the context here: beyond it the frequencies would change
 *                    while a sequence grows, and what is in the cache would not
 *      llama 3       with wavelength w = 2π / f and original context c:
 *                    f / factor where w > c / low; f where w < c / high; between them ((1 − s) / factor + s) · f,
 *                    s = (c / w − low) / (high − low)                               Llama 3.1
 *                    (GGUF: f / rope_freqs.weight[i], computed by whoever made the file)
 *      YaRN          f / factor · ramp + f · (1 − ramp), ramp over i from 0 (fast pairs stay) to 1 (slow ones are
 *                    stretched), cos and sin times the attention factor             Peng et al. 2023
 */
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The pair that makes TURNS turns over the original context. */
static double ramp_end(double turns, const struct hf_rope *rope, uint32_t dims)
{
	return dims * log(rope->original_context / (turns * 2 * M_PI)) / (2 * log(rope->theta));
}

static double ramp_at(const struct hf_rope *rope, uint32_t dims, uint32_t pair)
{
	double low = ramp_end(rope->beta_fast, rope, dims), high = ramp_end(rope->beta_slow, rope, dims), ramp;

	if (rope->truncate) {
		low = floor(low);
		high = ceil(high);
	}
	low = fmax(low, 0);
	high = fmin(high, dims - 1);
	ramp = (pair - low) / fmax(high - low, 0.001);
	return fmin(fmax(ramp, 0), 1);
}

static double stretch_llama3(const struct hf_rope *rope, double frequency)
{
	double turns = rope->original_context * frequency / (2 * M_PI); /* over the original context */
	double share = (turns - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);

	share = fmin(fmax(share, 0), 1);
	return frequency * ((1 - share) / rope->factor + share);
}

static double stretch(const struct hf_rope *rope, double frequency, uint32_t dims, uint32_t pair)
{
	double ramp;

	switch (rope->type) {
	case HF_ROPE_LINEAR:
		return frequency / rope->factor;
	case HF_ROPE_LLAMA3:
		return stretch_llama3(rope, frequency);
	case HF_ROPE_YARN:
		ramp = ramp_at(rope, dims, pair);
		return frequency / rope->factor * ramp + frequency * (1 - ramp);
	case HF_ROPE_DEFAULT:
	case HF_ROPE_DYNAMIC:
		break;
	}
	return frequency;
}

static enum status set(struct model *model, const struct hf_rope *rope, uint32_t dims, enum rope_style style,
    struct error *error)
{
	if (dims < 2 || dims % 2 || dims > model->head_dim)
		return error_set(error, STATUS_INVALID, "%u of %u dimensions of a head are rotated: an even number in 2…%u is needed",
		    dims, model->head_dim, model->head_dim);
	model->rope.frequencies = malloc(dims / 2 * sizeof *model->rope.frequencies);
	if (!model->rope.frequencies)
		return error_set(error, STATUS_NOMEM, "out of memory for rope frequencies");
	for (uint32_t i = 0; i < dims / 2; i++)
		model->rope.frequencies[i] = (float)stretch(rope, pow(rope->theta, -2.0 * i / dims), dims, i);
	model->rope.desc = (struct rope_desc){ .style = style, .dims = dims, .frequencies = model->rope.frequencies,
	    .scale = rope->type == HF_ROPE_YARN ? (float)rope->attention_factor : 1 };
	return STATUS_OK;
}

/* ---- GGUF ---- */

static enum status read_kind(const struct model *model, enum hf_rope_type *ret, struct error *error)
{
	char        key[64];
	const char *kind;
	size_t      length;
	enum status status;

	snprintf(key, sizeof key, "%s.rope.scaling.type", model->info.architecture);
	status = gguf_get_string(checkpoint_gguf(model->source.checkpoint), key, &kind, &length, error);
	if (status == STATUS_NOT_FOUND)
		return STATUS_OK;
	if (status)
		return status;
	if (length == 4 && memcmp(kind, "none", 4) == 0)
		*ret = HF_ROPE_DEFAULT;
	else if (length == 6 && memcmp(kind, "linear", 6) == 0)
		*ret = HF_ROPE_LINEAR;
	else if (length == 4 && memcmp(kind, "yarn", 4) == 0)
		*ret = HF_ROPE_YARN;
	else
		return error_set(error, STATUS_UNSUPPORTED, "%s = \"%.*s\": known are none, linear and yarn", key,
		    length > 40 ? 40 : (int)length, kind);
	return STATUS_OK;
}

static enum status read_gguf(const struct model *model, struct hf_rope *ret, struct error *error)
{
	double      old_linear = 0, log_multiplier = 0;
	enum status status;

	*ret = (struct hf_rope){ .type = HF_ROPE_DEFAULT, .theta = 10000, .factor = 1, .attention_factor = 1, .beta_fast = 32,
		.beta_slow = 1, .original_context = model->info.max_context, .truncate = true };
	if ((status = hparam_f64(model, NULL, "rope.freq_base", false, 1.001, 1e12, &ret->theta, error)) ||
	    (status = hparam_f64(model, NULL, "rope.scale_linear", false, 1e-3, 1e6, &old_linear, error)) ||
	    (status = read_kind(model, &ret->type, error)) ||
	    (status = hparam_f64(model, NULL, "rope.scaling.factor", ret->type != HF_ROPE_DEFAULT, 1e-3, 1e6, &ret->factor,
	        error)) ||
	    (status = hparam_f64(model, NULL, "rope.scaling.attn_factor", false, 1e-3, 1e3, &ret->attention_factor, error)) ||
	    (status = hparam_f64(model, NULL, "rope.scaling.yarn_attn_factor", false, 1e-3, 1e3, &ret->attention_factor,
	        error)) ||
	    (status = hparam_f64(model, NULL, "rope.scaling.yarn_beta_fast", false, 1e-3, 1e6, &ret->beta_fast, error)) ||
	    (status = hparam_f64(model, NULL, "rope.scaling.yarn_beta_slow", false, 1e-3, 1e6, &ret->beta_slow, error)) ||
	    (status = hparam_f64(model, NULL, "rope.scaling.yarn_log_multiplier", false, 0, 1e3, &log_multiplier, error)) ||
	    (status = hparam_u32(model, NULL, "rope.scaling.original_context_length", ret->type == HF_ROPE_YARN, 1,
	        MODEL_CONTEXT_MAX, &ret->original_context, error)))
		return status;
	if (log_multiplier > 0)
		return error_set(error, STATUS_UNSUPPORTED, "%s.rope.scaling.yarn_log_multiplier = %g is not supported",
		    model->info.architecture, log_multiplier);
	if (ret->type == HF_ROPE_DEFAULT && old_linear > 0) {
		ret->type = HF_ROPE_LINEAR; /* how files before rope.scaling.* said it */
		ret->factor = old_linear;
	}
	if (ret->type == HF_ROPE_YARN && ret->factor > 1) /* the file's factor is relative to YaRN's own */
		ret->attention_factor *= 1 + 0.1 * log(ret->factor);
	return STATUS_OK;
}

/* Divides by rope_freqs.weight. */
static enum status apply_factors(struct model *model, struct error *error)
{
	const struct checkpoint_tensor *factors;
	uint64_t                        pairs = model->rope.desc.dims / 2;
	enum status                     status;

	if (!checkpoint_find(model->source.checkpoint, "rope_freqs.weight"))
		return STATUS_OK;
	if ((status = checkpoint_take(model->source.checkpoint, "rope_freqs.weight", &factors, error)) ||
	    (status = checkpoint_check_shape(factors, &pairs, 1, error)))
		return status;
	if (factors->dtype != CHECKPOINT_F32)
		return error_set(error, STATUS_INVALID, "rope_freqs.weight is %s, F32 is needed",
		    checkpoint_dtype_name(factors->dtype));
	for (uint32_t i = 0; i < pairs; i++) {
		float factor;

		memcpy(&factor, (const uint8_t *)factors->data + 4 * (size_t)i, 4);
		if (!(factor >= 1e-6f && factor <= 1e6f))
			return error_set(error, STATUS_INVALID, "rope_freqs.weight[%u] = %g is outside 1e-6…1e6", i,
			    (double)factor);
		model->rope.frequencies[i] /= factor;
	}
	return STATUS_OK;
}

/* ---- Either ---- */

enum status rope_set(struct model *model, const struct hf_rope *rope, enum rope_style style, struct error *error)
{
	return set(model, rope, (uint32_t)(model->head_dim * rope->partial), style, error);
}

enum status rope_read(struct model *model, double theta, double partial, enum rope_style style, struct error *error)
{
	struct hf_rope rope;
	uint32_t       dims = model->head_dim;
	enum status    status;

	if (!model_is_gguf(model)) {
		status = hf_config_rope(model->source.config, theta, partial, &rope, error);
		return status ? status : rope_set(model, &rope, style, error);
	}
	if ((status = read_gguf(model, &rope, error)) ||
	    (status = hparam_u32(model, NULL, "rope.dimension_count", false, 2, model->head_dim, &dims, error)) ||
	    (status = set(model, &rope, dims, style, error)))
		return status;
	return apply_factors(model, error);
}
