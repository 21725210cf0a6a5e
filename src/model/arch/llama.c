/* llama.c: LLaMA and the models of its shape (Touvron et al. 2023; Llama 2 and 3, SmolLM2, Mistral without window):
 *
 *      x = embed(tokens)
 *      for each layer:
 *          x += Wo · attention(rope(Wq · h), rope(Wk · h), Wv · h)      h = norm(x)
 *          x += Wdown · (silu(Wgate · h) · Wup · h)                     h = norm(x)
 *      logits = Wout · norm(x)
 *
 * norm is RMSNorm; attention is causal and grouped-query; Wout is the embedding when the file has none of its own; every
 * W inside a layer may have a bias.  Hub checkpoints rotate dimension i of a head with i + n; GGUF files store the rows
 * of Wq and Wk with these two side by side.
 */
#include "model/arch.h"

#include <math.h>

enum { EMBEDDING, OUTPUT_NORM, OUTPUT, ATTENTION_NORM, QKV, QKV_BIAS, ATTENTION_OUTPUT, ATTENTION_OUTPUT_BIAS, FFN_NORM,
    GATE_UP, GATE_UP_BIAS, DOWN, DOWN_BIAS, WEIGHT_COUNT };

static const struct model_weight weights[WEIGHT_COUNT] = {
	[EMBEDDING] = { { { "model.embed_tokens.weight", "token_embd.weight", DIM_VOCAB } }, DIM_WIDTH, SHARD_REPLICATED },
	[OUTPUT_NORM] = { { { "model.norm.weight", "output_norm.weight", DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED },
	[OUTPUT] = { { { "lm_head.weight", "output.weight", DIM_VOCAB } }, DIM_WIDTH, SHARD_ROW, .optional = true },

	[ATTENTION_NORM] = { { { "input_layernorm.weight", "attn_norm.weight", DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED,
	    WEIGHT_LAYER },
	[QKV] = { { { "self_attn.q_proj.weight", "attn_q.weight", DIM_Q },
	            { "self_attn.k_proj.weight", "attn_k.weight", DIM_KV },
	            { "self_attn.v_proj.weight", "attn_v.weight", DIM_KV } }, DIM_WIDTH, SHARD_HEAD, WEIGHT_LAYER },
	[QKV_BIAS] = { { { "self_attn.q_proj.bias", "attn_q.bias", DIM_Q },
	                 { "self_attn.k_proj.bias", "attn_k.bias", DIM_KV },
	                 { "self_attn.v_proj.bias", "attn_v.bias", DIM_KV } }, DIM_ONE, SHARD_HEAD, WEIGHT_LAYER,
	    .optional = true },
	[ATTENTION_OUTPUT] = { { { "self_attn.o_proj.weight", "attn_output.weight", DIM_WIDTH } }, DIM_Q, SHARD_COLUMN,
	    WEIGHT_LAYER },
	[ATTENTION_OUTPUT_BIAS] = { { { "self_attn.o_proj.bias", "attn_output.bias", DIM_WIDTH } }, DIM_ONE, SHARD_COLUMN,
	    WEIGHT_LAYER, .optional = true },

	[FFN_NORM] = { { { "post_attention_layernorm.weight", "ffn_norm.weight", DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED,
	    WEIGHT_LAYER },
	[GATE_UP] = { { { "mlp.gate_proj.weight", "ffn_gate.weight", DIM_FFN },
	                { "mlp.up_proj.weight", "ffn_up.weight", DIM_FFN } }, DIM_WIDTH, SHARD_ROW, WEIGHT_LAYER },
	[GATE_UP_BIAS] = { { { "mlp.gate_proj.bias", "ffn_gate.bias", DIM_FFN },
	                     { "mlp.up_proj.bias", "ffn_up.bias", DIM_FFN } }, DIM_ONE, SHARD_ROW, WEIGHT_LAYER,
	    .optional = true },
	[DOWN] = { { { "mlp.down_proj.weight", "ffn_down.weight", DIM_WIDTH } }, DIM_FFN, SHARD_COLUMN, WEIGHT_LAYER },
	[DOWN_BIAS] = { { { "mlp.down_proj.bias", "ffn_down.bias", DIM_WIDTH } }, DIM_ONE, SHARD_COLUMN, WEIGHT_LAYER,
	    .optional = true },
};

enum { X, HIDDEN, QKV_ROWS, ATTENDED, DELTA, GATED, ACTIVATED, ACTIVATION_COUNT };

static const enum model_dim activations[ACTIVATION_COUNT] = {
	[X] = DIM_WIDTH, [HIDDEN] = DIM_WIDTH, [QKV_ROWS] = DIM_QKV, [ATTENDED] = DIM_Q, [DELTA] = DIM_WIDTH,
	[GATED] = DIM_GATE_UP, [ACTIVATED] = DIM_FFN,
};

static enum status read_hparams(struct model *model, struct error *error)
{
	enum status status = dense_read(model, &dense_keys_usual, error);

	if (status || (status = dense_read_tied(model, OUTPUT, error)) ||
	    (status = dense_read_bias(model, "attention_bias", QKV_BIAS, error)) ||
	    (status = dense_read_bias(model, "attention_bias", ATTENTION_OUTPUT_BIAS, error)) ||
	    (status = dense_read_bias(model, "mlp_bias", GATE_UP_BIAS, error)) ||
	    (status = dense_read_bias(model, "mlp_bias", DOWN_BIAS, error)))
		return status;
	return rope_read(model, 10000, 1, model_is_gguf(model) ? ROPE_INTERLEAVED : ROPE_HALF, error);
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
		    (status = op->linear(b, W(ATTENTION_OUTPUT), W(ATTENTION_OUTPUT_BIAS), &a[ATTENDED], &a[DELTA])) ||
		    (status = model_all_reduce(model, &a[DELTA])) ||
		    (status = op->rms_norm(b, &a[X], &a[DELTA], W(FFN_NORM), model->eps, &a[HIDDEN])) ||
		    (status = model_gate(model, W(GATE_UP), W(GATE_UP_BIAS), &a[HIDDEN], &a[GATED], &a[ACTIVATED])) ||
		    (status = op->linear(b, W(DOWN), W(DOWN_BIAS), &a[ACTIVATED], &a[DELTA])) ||
		    (status = model_all_reduce(model, &a[DELTA])))
			return status;
#undef W
	}
	if (status || batch->logit_row_count == 0)
		return status;
	return op->logits(b, &a[X], &a[DELTA], model_weight_at(model, OUTPUT_NORM, 0), model->eps,
	    output ? output : embedding);
}

const struct model_arch model_arch_llama = {
	.name = { "llama", "llama" }, .layers = { "model.layers.", "blk." }, .read = read_hparams, .weights = weights,
	.weight_count = WEIGHT_COUNT, .activations = activations, .activation_count = ACTIVATION_COUNT,
	.forward = forward,
};
