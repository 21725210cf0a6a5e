/* llama.c: LLaMA and the models of its shape (Touvron et al. 2023; Llama 2 and 3, SmolLM2, Mistral without window):
 *
 *      x = embed(tokens)
 *      for each layer:
 *          x += Wo · attention(rope(Wq · h), rope(Wk · h), Wv · h)      h = norm(x)
 *          x += Wdown · (silu(Wgate · h) · Wup · h)                     h = norm(x)
 *      logits = Wout · norm(x)
 *
 * norm is RMSNorm; attention is causal and grouped-query; Wout is the embedding when the file has none of its own.
 * GGUF files store Wq and Wk with the two halves of each head interleaved, so pairs lie side by side.
 */
#include "model/arch.h"

#include <math.h>

enum { EMBEDDING, OUTPUT_NORM, OUTPUT, ATTENTION_NORM, QKV, QKV_BIAS, ATTENTION_OUTPUT, FFN_NORM, GATE_UP, DOWN,
    WEIGHT_COUNT };

static const struct model_weight weights[WEIGHT_COUNT] = {
	[EMBEDDING]        = { { { "token_embd.weight", DIM_VOCAB } }, DIM_WIDTH, SHARD_ROW, false, false },
	[OUTPUT_NORM]      = { { { "output_norm.weight", DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED, false, false },
	[OUTPUT]           = { { { "output.weight", DIM_VOCAB } }, DIM_WIDTH, SHARD_ROW, false, true },
	[ATTENTION_NORM]   = { { { "attn_norm.weight", DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED, true, false },
	[QKV]              = { { { "attn_q.weight", DIM_Q }, { "attn_k.weight", DIM_KV }, { "attn_v.weight", DIM_KV } },
	    DIM_WIDTH,
	                       SHARD_HEAD, true, false },
	[QKV_BIAS]         = { { { "attn_q.bias", DIM_Q }, { "attn_k.bias", DIM_KV }, { "attn_v.bias", DIM_KV } }, DIM_ONE,
	                       SHARD_HEAD, true, true },
	[ATTENTION_OUTPUT] = { { { "attn_output.weight", DIM_WIDTH } }, DIM_Q, SHARD_COLUMN, true, false },
	[FFN_NORM]         = { { { "ffn_norm.weight", DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED, true, false },
	[GATE_UP]          = { { { "ffn_gate.weight", DIM_FFN }, { "ffn_up.weight", DIM_FFN } }, DIM_WIDTH, SHARD_ROW,
	    true, false },
	[DOWN]             = { { { "ffn_down.weight", DIM_WIDTH } }, DIM_FFN, SHARD_COLUMN, true, false },
};

enum { X, HIDDEN, QKV_ROWS, ATTENDED, DELTA, GATED, ACTIVATED, ACTIVATION_COUNT };

static const enum model_dim activations[ACTIVATION_COUNT] = {
	[X] = DIM_WIDTH, [HIDDEN] = DIM_WIDTH, [QKV_ROWS] = DIM_QKV, [ATTENDED] = DIM_Q, [DELTA] = DIM_WIDTH,
	[GATED] = DIM_GATE_UP, [ACTIVATED] = DIM_FFN,
};

static enum status read_hparams(struct model *model, const struct gguf *gguf, struct error *error)
{
	const struct gguf_tensor *embedding = gguf_tensor_find(gguf, "token_embd.weight");
	struct model_info        *info = &model->info;
	uint32_t   *dims = model->dims, head_dim, value_dim, rope_dims, ffn = 0, vocab = 0;
	double      eps = 0;
	enum status status;

	if ((status = hparam_u32(gguf, model, "block_count", true, 1, MODEL_LAYERS_MAX, &info->layers, error)) ||
	    (status = hparam_u32(gguf, model, "context_length", true, 1, MODEL_CONTEXT_MAX, &info->max_context, error)) ||
	    (status = hparam_u32(gguf, model, "embedding_length", true, 1, MODEL_WIDTH_MAX, &info->width, error)) ||
	    (status = hparam_u32(gguf, model, "feed_forward_length", true, 1, MODEL_FFN_MAX, &ffn, error)) ||
	    (status = hparam_u32(gguf, model, "attention.head_count", true, 1, MODEL_HEADS_MAX, &model->heads, error)) ||
	    (status = hparam_f64(gguf, model, "attention.layer_norm_rms_epsilon", true, 0, 1, &eps, error)) ||
	    (status = hparam_refuse(gguf, model, "expert_count", "a mixture of experts", error)) ||
	    (status = hparam_refuse(gguf, model, "attention.sliding_window", "windowed attention", error)))
		return status;
	model->kv_heads = model->heads;
	head_dim = info->width / model->heads;
	if ((status = hparam_u32(gguf, model, "attention.head_count_kv", false, 1, model->heads, &model->kv_heads,
	    error)) ||
	    (status = hparam_u32(gguf, model, "attention.key_length", false, 2, MODEL_HEAD_DIM_MAX, &head_dim, error)))
		return status;
	value_dim = rope_dims = head_dim;
	if ((status = hparam_u32(gguf, model, "attention.value_length", false, head_dim, head_dim, &value_dim, error)) ||
	    (status = hparam_u32(gguf, model, "rope.dimension_count", false, 2, head_dim, &rope_dims, error)))
		return status;
	if (model->heads % model->kv_heads || head_dim < 2 || head_dim > MODEL_HEAD_DIM_MAX || rope_dims % 2)
		return error_set(error, STATUS_INVALID,
		    "%u heads over %u KV heads of %u dimensions, %u of them rotated: heads must divide, dimensions be 2…%d and even",
		    model->heads, model->kv_heads, head_dim, rope_dims, MODEL_HEAD_DIM_MAX);
	if (!embedding || embedding->dims[1] < 1 || embedding->dims[1] > MODEL_VOCAB_MAX)
		return error_set(error, STATUS_INVALID, "token_embd.weight is missing or has no row for 1…%d tokens",
		    MODEL_VOCAB_MAX);
	info->vocab = (uint32_t)embedding->dims[1];
	if ((status = hparam_u32(gguf, model, "vocab_size", false, info->vocab, info->vocab, &vocab, error)))
		return status;

	model->head_dim = head_dim;
	model->eps = (float)eps;
	dims[DIM_ONE] = 1;
	dims[DIM_VOCAB] = info->vocab;
	dims[DIM_WIDTH] = info->width;
	dims[DIM_Q] = model->heads * head_dim;
	dims[DIM_KV] = model->kv_heads * head_dim;
	dims[DIM_QKV] = dims[DIM_Q] + 2 * dims[DIM_KV];
	dims[DIM_FFN] = ffn;
	dims[DIM_GATE_UP] = 2 * ffn;
	info->kv_group_count = 1;
	info->kv_groups[0] = (struct kv_group_desc){ .layers = info->layers, .kv_heads = model->kv_heads,
	    .head_dim = head_dim };
	return rope_read(model, gguf, rope_dims, ROPE_INTERLEAVED, error);
}

static enum status forward(struct model *model, const struct batch *batch)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	struct backend_weight    *embedding = model_weight_at(model, EMBEDDING, 0), *output = model_weight_at(model,
	    OUTPUT, 0);
	float                     scale = 1 / sqrtf((float)model->head_dim);
	enum status               status = op->embed(b, embedding, &a[X]);

	for (uint32_t layer = 0; layer < model->info.layers && status == STATUS_OK; layer++) {
#define W(name) model_weight_at(model, name, layer)
		if ((status = op->rms_norm(b, &a[X], layer ? &a[DELTA] : NULL, W(ATTENTION_NORM), model->eps, &a[HIDDEN])) ||
		    (status = op->linear(b, W(QKV), W(QKV_BIAS), &a[HIDDEN], &a[QKV_ROWS])) ||
		    (status = op->rope_kv_write(b, &a[QKV_ROWS], 0, layer, model->heads, &model->rope.desc)) ||
		    (status = op->attention(b, &a[QKV_ROWS], 0, layer, model->heads, scale, &a[ATTENDED])) ||
		    (status = op->linear(b, W(ATTENTION_OUTPUT), NULL, &a[ATTENDED], &a[DELTA])) ||
		    (status = op->rms_norm(b, &a[X], &a[DELTA], W(FFN_NORM), model->eps, &a[HIDDEN])) ||
		    (status = op->linear(b, W(GATE_UP), NULL, &a[HIDDEN], &a[GATED])) ||
		    (status = op->silu_gate(b, &a[GATED], &a[ACTIVATED])) ||
		    (status = op->linear(b, W(DOWN), NULL, &a[ACTIVATED], &a[DELTA])))
			return status;
#undef W
	}
	if (status || batch->logit_row_count == 0)
		return status;
	return op->logits(b, &a[X], &a[DELTA], model_weight_at(model, OUTPUT_NORM, 0), model->eps,
	    output ? output : embedding);
}

const struct model_arch model_arch_llama = {
	.name = "llama", .read = read_hparams, .weights = weights, .weight_count = WEIGHT_COUNT, .activations = activations,
	.activation_count = ACTIVATION_COUNT, .forward = forward,
};
