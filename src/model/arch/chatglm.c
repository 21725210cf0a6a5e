/* chatglm.c: ChatGLM2, ChatGLM3 and GLM-4-9B in their original files (Zeng et al. 2022, Du et al. 2024), and both kinds of
 * GLM-4-9B as GGUF:
 *
 *      x = embed(tokens)
 *      for each layer:
 *          x += Wo · attention(rope(q), rope(k), v)      q, k, v = parts of Wqkv · h + bqkv,      h = norm(x)
 *          x += Wdown · (silu(gate) · up)                gate, up = halves of Wgate_up · h,       h = norm(x)
 *      logits = Wout · norm(x)
 *
 * norm is RMSNorm; attention is causal and grouped-query; Wqkv has all heads of q, then those of k, then those of v.  Only
 * the first half of a head is rotated, neighbouring dimensions with each other; the base is 10000 · rope_ratio.
 */
#include "model/arch.h"

#include <math.h>

enum { EMBEDDING, OUTPUT_NORM, OUTPUT, ATTENTION_NORM, QKV, QKV_BIAS, ATTENTION_OUTPUT, FFN_NORM, GATE_UP, DOWN,
    WEIGHT_COUNT };

static const struct model_weight weights[WEIGHT_COUNT] = {
	[EMBEDDING] = { { { "transformer.embedding.word_embeddings.weight", "token_embd.weight", DIM_VOCAB } }, DIM_WIDTH,
	    SHARD_REPLICATED },
	[OUTPUT_NORM] = { { { "transformer.encoder.final_layernorm.weight", "output_norm.weight", DIM_WIDTH } }, DIM_ONE,
	    SHARD_REPLICATED },
	[OUTPUT] = { { { "transformer.output_layer.weight", "output.weight", DIM_VOCAB } }, DIM_WIDTH, SHARD_ROW,
	    .optional = true },

	[ATTENTION_NORM] = { { { "input_layernorm.weight", "attn_norm.weight", DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED,
	    WEIGHT_LAYER },
	[QKV] = { { { NULL, "attn_q.weight", DIM_Q }, { NULL, "attn_k.weight", DIM_KV }, { NULL, "attn_v.weight", DIM_KV } },
	    DIM_WIDTH, SHARD_HEAD, WEIGHT_LAYER, .whole = { "self_attention.query_key_value.weight", "attn_qkv.weight" } },
	[QKV_BIAS] = { { { NULL, "attn_q.bias", DIM_Q }, { NULL, "attn_k.bias", DIM_KV }, { NULL, "attn_v.bias", DIM_KV } },
	    DIM_ONE, SHARD_HEAD, WEIGHT_LAYER, .optional = true,
	    .whole = { "self_attention.query_key_value.bias", "attn_qkv.bias" } },
	[ATTENTION_OUTPUT] = { { { "self_attention.dense.weight", "attn_output.weight", DIM_WIDTH } }, DIM_Q, SHARD_COLUMN,
	    WEIGHT_LAYER },

	[FFN_NORM] = { { { "post_attention_layernorm.weight", "ffn_norm.weight", DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED,
	    WEIGHT_LAYER },
	[GATE_UP] = { { { NULL, NULL, DIM_FFN }, { NULL, NULL, DIM_FFN } }, DIM_WIDTH, SHARD_ROW, WEIGHT_LAYER,
	    .whole = { "mlp.dense_h_to_4h.weight", "ffn_up.weight" } },
	[DOWN] = { { { "mlp.dense_4h_to_h.weight", "ffn_down.weight", DIM_WIDTH } }, DIM_FFN, SHARD_COLUMN, WEIGHT_LAYER },
};

static const struct model_ignored ignored[] = {
	{ "transformer.rotary_pos_emb.inv_freq", WEIGHT_MODEL }, /* follows from the configuration, rounded to half precision */
	{ NULL, WEIGHT_MODEL },
};

static const struct dense_keys keys = {
	.layers = "num_layers", .context = "seq_length", .width = "hidden_size", .ffn = "ffn_hidden_size",
	.heads = "num_attention_heads", .head_dim = "kv_channels", .eps = "layernorm_epsilon", .vocab = "padded_vocab_size",
};

enum { X, HIDDEN, QKV_ROWS, ATTENDED, DELTA, GATED, ACTIVATED, ACTIVATION_COUNT };

static const enum model_dim activations[ACTIVATION_COUNT] = {
	[X] = DIM_WIDTH, [HIDDEN] = DIM_WIDTH, [QKV_ROWS] = DIM_QKV, [ATTENDED] = DIM_Q, [DELTA] = DIM_WIDTH,
	[GATED] = DIM_GATE_UP, [ACTIVATED] = DIM_FFN,
};

/* What other settings of the original code would compute is not computed here. */
static enum status check_variant(const struct model *model, struct error *error)
{
	bool        original_rope = true, rms_norm = true, final_norm = true;
	enum status status;

	if ((status = hparam_bool(model, "original_rope", NULL, &original_rope, error)) ||
	    (status = hparam_bool(model, "rmsnorm", NULL, &rms_norm, error)) ||
	    (status = hparam_bool(model, "post_layer_norm", NULL, &final_norm, error)) ||
	    (status = hparam_refuse(model, "add_bias_linear", NULL, "a bias of every linear layer", error)) ||
	    (status = hparam_refuse(model, "apply_residual_connection_post_layernorm", NULL, "a residual after the norm",
	        error)) ||
	    (status = hparam_refuse(model, "quantization_bit", NULL, "quantisation by the original code", error)) ||
	    (status = hparam_refuse(model, "pre_seq_len", NULL, "a trained prefix", error)))
		return status;
	if (!original_rope || !rms_norm || !final_norm)
		return error_set(error, STATUS_UNSUPPORTED, "%s: %s = false is not supported", model->source.config->label,
		    !original_rope ? "original_rope" : !rms_norm ? "rmsnorm" : "post_layer_norm");
	return STATUS_OK;
}

static enum status read_hparams(struct model *model, struct error *error)
{
	struct dense_keys its = keys;
	struct hf_rope    rope = { .type = HF_ROPE_DEFAULT, .theta = 10000, .partial = 0.5, .factor = 1, .attention_factor = 1 };
	bool              grouped = false;
	double            ratio = 1;
	enum status       status;

	if ((status = check_variant(model, error)) ||
	    (status = hparam_bool(model, "multi_query_attention", NULL, &grouped, error)))
		return status;
	its.kv_heads = grouped ? "multi_query_group_num" : NULL;
	if ((status = dense_read(model, &its, error)) || (status = dense_read_tied(model, OUTPUT, error)) ||
	    (status = dense_read_bias(model, "add_qkv_bias", QKV_BIAS, error)) ||
	    (status = hparam_f64(model, "rope_ratio", NULL, false, 1e-3, 1e6, &ratio, error)))
		return status;
	if (model_is_gguf(model))
		return rope_read(model, 10000, 0.5, ROPE_INTERLEAVED, error);
	rope.theta *= ratio;
	return rope_set(model, &rope, ROPE_INTERLEAVED, error);
}

static enum status forward(struct model *model, const struct batch *batch)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	struct backend_weight    *embedding = model_weight_at(model, EMBEDDING, 0);
	struct backend_weight    *output = model_weight_at(model, OUTPUT, 0);
	float                     scale = 1 / sqrtf((float)model->head_dim);
	enum status               status = op->embed(b, embedding, &a[X]);

	for (uint32_t layer = 0; layer < model->info.layers && status == STATUS_OK; layer++) {
#define W(name) model_weight_at(model, name, layer)
		if ((status = op->rms_norm(b, &a[X], layer ? &a[DELTA] : NULL, W(ATTENTION_NORM), model->eps, &a[HIDDEN])) ||
		    (status = op->linear(b, W(QKV), W(QKV_BIAS), &a[HIDDEN], &a[QKV_ROWS])) ||
		    (status = op->rope_kv_write(b, &a[QKV_ROWS], 0, layer, model->heads, &model->rope.desc)) ||
		    (status = op->attention(b, &a[QKV_ROWS], 0, layer, model->heads, scale, &a[ATTENDED])) ||
		    (status = op->linear(b, W(ATTENTION_OUTPUT), NULL, &a[ATTENDED], &a[DELTA])) ||
		    (status = model_all_reduce(model, &a[DELTA])) ||
		    (status = op->rms_norm(b, &a[X], &a[DELTA], W(FFN_NORM), model->eps, &a[HIDDEN])) ||
		    (status = model_gate(model, W(GATE_UP), NULL, &a[HIDDEN], &a[GATED], &a[ACTIVATED])) ||
		    (status = op->linear(b, W(DOWN), NULL, &a[ACTIVATED], &a[DELTA])) ||
		    (status = model_all_reduce(model, &a[DELTA])))
			return status;
#undef W
	}
	if (status || batch->logit_row_count == 0)
		return status;
	return op->logits(b, &a[X], &a[DELTA], model_weight_at(model, OUTPUT_NORM, 0), model->eps,
	    output ? output : embedding);
}

const struct model_arch model_arch_chatglm = {
	.name = { "chatglm", "chatglm" }, .layers = { "transformer.encoder.layers.", "blk." }, .read = read_hparams,
	.weights = weights, .weight_count = WEIGHT_COUNT, .ignored = ignored, .activations = activations,
	.activation_count = ACTIVATION_COUNT, .forward = forward,
};
