/* dense.c: owns the reading of what decoders of the usual shape have in common: sizes, KV group, what is refused.  Does
 * not own their weights or mathematics (arch/).  Invariant: dims that were filled in are positive, agree with each
 * other, and every product of two of them fits 64 bits. */
#include "model/arch.h"

#include <string.h>

static const char *const usual_types[] = { "full_attention", NULL };

const struct dense_keys dense_keys_usual = {
	.layers = "num_hidden_layers", .context = "max_position_embeddings", .width = "hidden_size",
	.ffn = "intermediate_size", .heads = "num_attention_heads", .kv_heads = "num_key_value_heads",
	.head_dim = "head_dim", .eps = "rms_norm_eps", .vocab = "vocab_size", .layer_types = usual_types,
};

/* Of GGUF files the embedding says the vocabulary. */
static enum status read_vocab(struct model *model, const char *key, struct error *error)
{
	const struct checkpoint_tensor *embedding;

	if (!model_is_gguf(model))
		return hparam_u32(model, key, NULL, true, 1, MODEL_VOCAB_MAX, &model->info.vocab, error);
	embedding = checkpoint_find(model->source.checkpoint, "token_embd.weight");
	if (!embedding || embedding->n_dims != 2 || embedding->dims[0] < 1 || embedding->dims[0] > MODEL_VOCAB_MAX)
		return error_set(error, STATUS_INVALID, "token_embd.weight is missing or has no row for 1…%d tokens",
		    MODEL_VOCAB_MAX);
	model->info.vocab = (uint32_t)embedding->dims[0];
	return hparam_u32(model, NULL, "vocab_size", false, model->info.vocab, model->info.vocab, &model->info.vocab, error);
}

static bool is_among(const char *word, const char *const *words)
{
	while (*words && strcmp(*words, word) != 0)
		words++;
	return *words != NULL;
}

/* Attention over the last tokens only; layer_types says it where it is there. */
static enum status refuse_window(const struct model *model, const char *const *allowed, struct error *error)
{
	const struct hf_config *config = model->source.config;
	uint32_t                window = 0, first = 0;
	bool                    use = false;
	size_t                  count = 0;
	const char             *type = NULL;
	enum status             status;

	if (model_is_gguf(model))
		return hparam_refuse(model, NULL, "attention.sliding_window", "windowed attention", error);
	status = hf_config_string_count(config, "layer_types", MODEL_LAYERS_MAX, &count, error);
	for (size_t i = 0; !status && i < count; i++) {
		status = hf_config_string_at(config, "layer_types", i, &type, error);
		if (!status && !is_among(type, allowed))
			status = error_set(error, STATUS_UNSUPPORTED, "%s: layer_types[%zu] = \"%.40s\": only \"%s\" is supported",
			    config->label, i, type, allowed[0]);
	}
	if (status || count)
		return status;
	if ((status = hparam_bool(model, "use_sliding_window", NULL, &use, error)) ||
	    (status = hparam_u32(model, "sliding_window", NULL, false, 0, UINT32_MAX, &window, error)) ||
	    (status = hparam_u32(model, "max_window_layers", NULL, false, 0, UINT32_MAX, &first, error)))
		return status;
	if (use && window && window < model->info.max_context && first < model->info.layers)
		return error_set(error, STATUS_UNSUPPORTED, "%s: sliding_window = %u: windowed attention is not supported",
		    config->label, window);
	return STATUS_OK;
}

enum status dense_read(struct model *model, const struct dense_keys *keys, struct error *error)
{
	struct model_info *info = &model->info;
	uint32_t          *dims = model->dims, ffn = 0, value_dim;
	double             eps = 0;
	enum status        status;

	if ((status = hparam_u32(model, keys->layers, "block_count", true, 1, MODEL_LAYERS_MAX, &info->layers, error)) ||
	    (status = hparam_u32(model, keys->context, "context_length", true, 1, MODEL_CONTEXT_MAX, &info->max_context,
	        error)) ||
	    (status = hparam_u32(model, keys->width, "embedding_length", true, 1, MODEL_WIDTH_MAX, &info->width, error)) ||
	    (status = hparam_u32(model, keys->ffn, "feed_forward_length", true, 1, MODEL_FFN_MAX, &ffn, error)) ||
	    (status = hparam_u32(model, keys->heads, "attention.head_count", true, 1, MODEL_HEADS_MAX, &model->heads,
	        error)) ||
	    (status = hparam_f64(model, keys->eps, "attention.layer_norm_rms_epsilon", true, 0, 1, &eps, error)) ||
	    (status = hparam_refuse(model, NULL, "expert_count", "a mixture of experts", error)) ||
	    (status = hparam_expect(model, "hidden_act", "silu", error)) ||
	    (status = refuse_window(model, keys->layer_types ? keys->layer_types : usual_types, error)))
		return status;
	model->kv_heads = model->heads;
	model->head_dim = info->width / model->heads;
	if ((status = hparam_u32(model, keys->kv_heads, "attention.head_count_kv", false, 1, model->heads, &model->kv_heads,
	        error)) ||
	    (status = hparam_u32(model, keys->head_dim, "attention.key_length", false, 2, MODEL_HEAD_DIM_MAX,
	        &model->head_dim, error)))
		return status;
	value_dim = model->head_dim;
	if ((status = hparam_u32(model, NULL, "attention.value_length", false, value_dim, value_dim, &value_dim, error)) ||
	    (status = read_vocab(model, keys->vocab, error)))
		return status;
	if (model->heads % model->kv_heads || model->head_dim < 2 || model->head_dim > MODEL_HEAD_DIM_MAX)
		return error_set(error, STATUS_INVALID,
		    "%u heads over %u KV heads of %u dimensions: heads must divide, dimensions be 2…%d", model->heads,
		    model->kv_heads, model->head_dim, MODEL_HEAD_DIM_MAX);
	model->eps = (float)eps;
	dims[DIM_ONE] = 1;
	dims[DIM_VOCAB] = info->vocab;
	dims[DIM_WIDTH] = info->width;
	dims[DIM_HEAD] = model->head_dim;
	dims[DIM_Q] = model->heads * model->head_dim;
	dims[DIM_KV] = model->kv_heads * model->head_dim;
	dims[DIM_QKV] = dims[DIM_Q] + 2 * dims[DIM_KV];
	dims[DIM_FFN] = ffn;
	dims[DIM_GATE_UP] = 2 * ffn;
	info->kv_group_count = 1;
	info->kv_groups[0] = (struct kv_group_desc){ .layers = info->layers, .kv_heads = model->kv_heads,
		.head_dim = model->head_dim };
	return STATUS_OK;
}

enum status dense_read_tied(struct model *model, uint32_t output, struct error *error)
{
	bool        tied = model_is_gguf(model);
	enum status status = hparam_bool(model, "tie_word_embeddings", NULL, &tied, error);

	if (!status && !tied)
		model->required |= UINT64_C(1) << output;
	return status;
}

enum status dense_read_bias(struct model *model, const char *key, uint32_t bias, struct error *error)
{
	bool        there = false;
	enum status status = hparam_bool(model, key, NULL, &there, error);

	if (!status && there)
		model->required |= UINT64_C(1) << bias;
	return status;
}
