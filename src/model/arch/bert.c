/* bert.c: BERT (Devlin et al. 2018) as an encoder of texts, whose embedding is the first token's vector, normalised:
 *
 *      x = norm(embed(tokens) + embed_position(0, 1, 2, …) + embed_type(0))
 *      for each layer:
 *          x = norm(x + Wo · attention(Wq · x + bq, Wk · x + bk, Wv · x + bv) + bo)
 *          x = norm(x + Wdown · gelu(Wup · x + bup) + bdown)
 *      embedding = x[0] / ‖x[0]‖
 *
 * norm is LayerNorm, after each sum; every token sees all tokens of its text.  The pooler of the original, which was
 * trained for another task, takes no part.
 */
#include "model/arch/bert.h"

#include <math.h>

enum { EMBEDDING, POSITIONS, TYPES, EMBEDDING_NORM, EMBEDDING_NORM_BIAS, QKV, QKV_BIAS, ATTENTION_OUTPUT,
    ATTENTION_OUTPUT_BIAS, ATTENTION_NORM, ATTENTION_NORM_BIAS, UP, UP_BIAS, DOWN, DOWN_BIAS, OUTPUT_NORM,
    OUTPUT_NORM_BIAS, WEIGHT_COUNT };

const struct model_weight bert_weights[WEIGHT_COUNT] = {
	[EMBEDDING] = { { { "embeddings.word_embeddings.weight", "token_embd.weight", DIM_VOCAB } }, DIM_WIDTH, SHARD_REPLICATED },
	[POSITIONS] = { { { "embeddings.position_embeddings.weight", "position_embd.weight", DIM_POSITIONS } }, DIM_WIDTH,
	    SHARD_REPLICATED },
	[TYPES] = { { { "embeddings.token_type_embeddings.weight", "token_types.weight", DIM_TYPES } }, DIM_WIDTH,
	    SHARD_REPLICATED },
	[EMBEDDING_NORM] = { { { "embeddings.LayerNorm.weight", "token_embd_norm.weight", DIM_WIDTH } }, DIM_ONE,
	    SHARD_REPLICATED },
	[EMBEDDING_NORM_BIAS] = { { { "embeddings.LayerNorm.bias", "token_embd_norm.bias", DIM_WIDTH } }, DIM_ONE,
	    SHARD_REPLICATED },

	[QKV] = { { { "attention.self.query.weight", "attn_q.weight", DIM_Q },
	            { "attention.self.key.weight", "attn_k.weight", DIM_KV },
	            { "attention.self.value.weight", "attn_v.weight", DIM_KV } }, DIM_WIDTH, SHARD_HEAD, WEIGHT_LAYER },
	[QKV_BIAS] = { { { "attention.self.query.bias", "attn_q.bias", DIM_Q },
	                 { "attention.self.key.bias", "attn_k.bias", DIM_KV },
	                 { "attention.self.value.bias", "attn_v.bias", DIM_KV } }, DIM_ONE, SHARD_HEAD, WEIGHT_LAYER },
	[ATTENTION_OUTPUT] = { { { "attention.output.dense.weight", "attn_output.weight", DIM_WIDTH } }, DIM_Q, SHARD_COLUMN,
	    WEIGHT_LAYER },
	[ATTENTION_OUTPUT_BIAS] = { { { "attention.output.dense.bias", "attn_output.bias", DIM_WIDTH } }, DIM_ONE, SHARD_COLUMN,
	    WEIGHT_LAYER },
	[ATTENTION_NORM] = { { { "attention.output.LayerNorm.weight", "attn_output_norm.weight", DIM_WIDTH } }, DIM_ONE,
	    SHARD_REPLICATED, WEIGHT_LAYER },
	[ATTENTION_NORM_BIAS] = { { { "attention.output.LayerNorm.bias", "attn_output_norm.bias", DIM_WIDTH } }, DIM_ONE,
	    SHARD_REPLICATED, WEIGHT_LAYER },

	[UP] = { { { "intermediate.dense.weight", "ffn_up.weight", DIM_FFN } }, DIM_WIDTH, SHARD_ROW, WEIGHT_LAYER },
	[UP_BIAS] = { { { "intermediate.dense.bias", "ffn_up.bias", DIM_FFN } }, DIM_ONE, SHARD_ROW, WEIGHT_LAYER },
	[DOWN] = { { { "output.dense.weight", "ffn_down.weight", DIM_WIDTH } }, DIM_FFN, SHARD_COLUMN, WEIGHT_LAYER },
	[DOWN_BIAS] = { { { "output.dense.bias", "ffn_down.bias", DIM_WIDTH } }, DIM_ONE, SHARD_COLUMN, WEIGHT_LAYER },
	[OUTPUT_NORM] = { { { "output.LayerNorm.weight", "layer_output_norm.weight", DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED,
	    WEIGHT_LAYER },
	[OUTPUT_NORM_BIAS] = { { { "output.LayerNorm.bias", "layer_output_norm.bias", DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED,
	    WEIGHT_LAYER },
};
_Static_assert((int)WEIGHT_COUNT == (int)BERT_WEIGHT_COUNT, "bert.h says how many there are");

const struct model_ignored bert_ignored[] = {
	{ "pooler.dense.weight", WEIGHT_MODEL },
	{ "pooler.dense.bias", WEIGHT_MODEL },
	{ "embeddings.position_ids", WEIGHT_MODEL }, /* 0, 1, 2, … in old checkpoints */
	{ "embeddings.token_type_ids", WEIGHT_MODEL },
	{ NULL, WEIGHT_MODEL },
};

enum { X, QKV_ROWS, ATTENDED, DELTA, WIDE, ACTIVATION_COUNT };

const enum model_dim bert_activations[ACTIVATION_COUNT] = {
	[X] = DIM_WIDTH, [QKV_ROWS] = DIM_QKV, [ATTENDED] = DIM_Q, [DELTA] = DIM_WIDTH, [WIDE] = DIM_FFN,
};
_Static_assert((int)ACTIVATION_COUNT == (int)BERT_ACTIVATION_COUNT, "bert.h says how many there are");

/* The rows of a table: config.json says how many, a GGUF file's tensor does. */
static enum status read_rows(const struct model *model, const char *hub, const char *gguf, uint32_t max, uint32_t *ret,
    struct error *error)
{
	const struct checkpoint_tensor *tensor;

	if (!model_is_gguf(model))
		return hparam_u32(model, hub, NULL, true, 1, max, ret, error);
	tensor = checkpoint_find(model->source.checkpoint, gguf);
	if (!tensor || tensor->n_dims != 2 || tensor->dims[0] < 1 || tensor->dims[0] > max)
		return error_set(error, STATUS_INVALID, "%s is missing or has not 1…%u rows", gguf, max);
	*ret = (uint32_t)tensor->dims[0];
	return STATUS_OK;
}

/* What other encoders of this model_type compute, and how a GGUF file says that the first token is what counts. */
static enum status check_variant(const struct model *model, struct error *error)
{
	enum { POOLING_FIRST = 2 };
	bool        causal = false;
	uint32_t    pooling = POOLING_FIRST;
	enum status status;

	if ((status = hparam_expect(model, "hidden_act", "gelu", error)) ||
	    (status = hparam_expect(model, "position_embedding_type", "absolute", error)) ||
	    (status = hparam_bool(model, "is_decoder", "attention.causal", &causal, error)) ||
	    (status = hparam_u32(model, NULL, "pooling_type", false, 0, UINT32_MAX, &pooling, error)))
		return status;
	if (causal)
		return error_set(error, STATUS_UNSUPPORTED, "%s with causal attention is not supported", model->info.architecture);
	if (pooling != POOLING_FIRST)
		return error_set(error, STATUS_UNSUPPORTED, "%s.pooling_type = %u: only %d, the first token, is supported",
		    model->info.architecture, pooling, POOLING_FIRST);
	return STATUS_OK;
}

enum status bert_read(struct model *model, uint32_t position_offset, struct error *error)
{
	struct model_info *info = &model->info;
	uint32_t          *dims = model->dims, positions = 0, types = 0, ffn = 0;
	double             eps = 0;
	enum status        status;

	if ((status = check_variant(model, error)) ||
	    (status = hparam_u32(model, "num_hidden_layers", "block_count", true, 1, MODEL_LAYERS_MAX, &info->layers, error)) ||
	    (status = hparam_u32(model, "hidden_size", "embedding_length", true, 1, MODEL_WIDTH_MAX, &info->width, error)) ||
	    (status = hparam_u32(model, "intermediate_size", "feed_forward_length", true, 1, MODEL_FFN_MAX, &ffn, error)) ||
	    (status = hparam_u32(model, "num_attention_heads", "attention.head_count", true, 1, MODEL_HEADS_MAX, &model->heads,
	        error)) ||
	    (status = hparam_f64(model, "layer_norm_eps", "attention.layer_norm_epsilon", true, 0, 1, &eps, error)) ||
	    (status = read_rows(model, "vocab_size", "token_embd.weight", MODEL_VOCAB_MAX, &info->vocab, error)) ||
	    (status = read_rows(model, "max_position_embeddings", "position_embd.weight", MODEL_CONTEXT_MAX, &positions,
	        error)) ||
	    (status = read_rows(model, "type_vocab_size", "token_types.weight", MODEL_TYPES_MAX, &types, error)))
		return status;
	model->kv_heads = model->heads;
	model->head_dim = info->width / model->heads;
	if (info->width % model->heads || model->head_dim < 2 || model->head_dim > MODEL_HEAD_DIM_MAX ||
	    positions <= position_offset)
		return error_set(error, STATUS_INVALID, "width %u over %u heads, %u positions of which %u come before the first: "
		    "heads must divide into 2…%d dimensions, positions must be left", info->width, model->heads, positions,
		    position_offset, MODEL_HEAD_DIM_MAX);
	model->eps = (float)eps;
	model->position_offset = position_offset;
	info->max_context = positions - position_offset;
	dims[DIM_ONE] = 1;
	dims[DIM_VOCAB] = info->vocab;
	dims[DIM_WIDTH] = dims[DIM_Q] = dims[DIM_KV] = info->width;
	dims[DIM_QKV] = 3 * info->width;
	dims[DIM_HEAD] = model->head_dim;
	dims[DIM_FFN] = ffn;
	dims[DIM_POSITIONS] = positions;
	dims[DIM_TYPES] = types;
	/* Keys and values live for one layer of one step only. */
	info->kv_group_count = 1;
	info->kv_groups[0] = (struct kv_group_desc){ .layers = 1, .kv_heads = model->kv_heads, .head_dim = model->head_dim };
	return STATUS_OK;
}

enum status bert_forward(struct model *model, const struct batch *batch)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	float                     scale = 1 / sqrtf((float)model->head_dim), eps = model->eps;
	enum status               status;

#define W(name) model_weight_at(model, name, bert_weights[name].place == WEIGHT_LAYER ? layer : 0)
	uint32_t layer = 0;
	if ((status = op->embed(b, W(EMBEDDING), &a[X])) ||
	    (status = op->embed_add(b, W(POSITIONS), EMBED_POSITION, model->position_offset, &a[X])) ||
	    (status = op->embed_add(b, W(TYPES), EMBED_CONSTANT, 0, &a[X])) ||
	    (status = op->layer_norm(b, &a[X], NULL, W(EMBEDDING_NORM), W(EMBEDDING_NORM_BIAS), eps, &a[X])))
		return status;
	for (; layer < model->info.layers; layer++)
		if ((status = op->linear(b, W(QKV), W(QKV_BIAS), &a[X], &a[QKV_ROWS])) ||
		    (status = op->rope_kv_write(b, &a[QKV_ROWS], 0, 0, model->heads, NULL)) ||
		    (status = op->attention_full(b, &a[QKV_ROWS], 0, 0, model->heads, scale, &a[ATTENDED])) ||
		    (status = op->linear(b, W(ATTENTION_OUTPUT), W(ATTENTION_OUTPUT_BIAS), &a[ATTENDED], &a[DELTA])) ||
		    (status = model_all_reduce(model, &a[DELTA])) ||
		    (status = op->layer_norm(b, &a[X], &a[DELTA], W(ATTENTION_NORM), W(ATTENTION_NORM_BIAS), eps, &a[X])) ||
		    (status = op->linear(b, W(UP), W(UP_BIAS), &a[X], &a[WIDE])) ||
		    (status = op->gelu(b, &a[WIDE])) ||
		    (status = op->linear(b, W(DOWN), W(DOWN_BIAS), &a[WIDE], &a[DELTA])) ||
		    (status = model_all_reduce(model, &a[DELTA])) ||
		    (status = op->layer_norm(b, &a[X], &a[DELTA], W(OUTPUT_NORM), W(OUTPUT_NORM_BIAS), eps, &a[X])))
			return status;
#undef W
	return batch->logit_row_count ? op->pool(b, &a[X]) : STATUS_OK;
}

static enum status read_hparams(struct model *model, struct error *error) { return bert_read(model, 0, error); }

const struct model_arch model_arch_bert = { .name = { "bert", "bert" }, .read = read_hparams, BERT_ARCH };
