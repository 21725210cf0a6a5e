/* glm4_moe.c: GLM-4.5, 4.6 and 4.7 (GLM-4.5 2025), as their published files hold them:
 *
 *      x = embed(tokens)
 *      for each layer:
 *          x += Wo · attention(rope(q), rope(k), v)      q, k, v = Wq · h + bq, …,            h = norm(x)
 *          x += FFN(h)                                   h = norm(x)
 *      logits = Wout · norm(x)
 *
 *      FFN(h) = Wdown · (silu(gate) · up)                in the first layers, and in each expert
 *      FFN(h) = FFN_shared(h) + Σ w · FFN_expert(h)      in the others, over the experts that the router chose for the token
 *
 * norm is RMSNorm; attention is causal and grouped-query; q and k of each head are normalised before the rotation where the
 * file has weights for that.  Only the first half of a head is rotated, each dimension with the one half of that apart,
 * unlike other GLM-4.  The router: DeepSeek-V3 2024.
 *
 * A layer behind the others drafts (DeepSeek-V3's multi-token prediction): an ordinary layer over
 * Weh · (norm(embed(next token)) | norm(h)), where h is what the output matrix sees.
 */
#include "model/arch.h"

#include <math.h>

enum { EMBEDDING, OUTPUT_NORM, OUTPUT, ATTENTION_NORM, QKV, QKV_BIAS, Q_NORM, K_NORM, ATTENTION_OUTPUT, FFN_NORM, GATE_UP, DOWN,
    ROUTER, ROUTER_BIAS, SHARED_GATE_UP, SHARED_DOWN, EXPERT_GATE_UP, EXPERT_DOWN, DRAFT_EMBEDDING, DRAFT_TOKEN_NORM,
    DRAFT_HIDDEN_NORM, DRAFT_INPUT, DRAFT_NORM, DRAFT_OUTPUT, WEIGHT_COUNT };

static const struct model_weight weights[WEIGHT_COUNT] = {
	[EMBEDDING] = { { { "model.embed_tokens.weight", NULL, DIM_VOCAB } }, DIM_WIDTH, SHARD_REPLICATED },
	[OUTPUT_NORM] = { { { "model.norm.weight", NULL, DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED },
	[OUTPUT] = { { { "lm_head.weight", NULL, DIM_VOCAB } }, DIM_WIDTH, SHARD_ROW, .optional = true },

	[ATTENTION_NORM] = { { { "input_layernorm.weight", NULL, DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED, WEIGHT_LAYER },
	[QKV] = { { { "self_attn.q_proj.weight", NULL, DIM_Q }, { "self_attn.k_proj.weight", NULL, DIM_KV },
	            { "self_attn.v_proj.weight", NULL, DIM_KV } }, DIM_WIDTH, SHARD_HEAD, WEIGHT_LAYER },
	[QKV_BIAS] = { { { "self_attn.q_proj.bias", NULL, DIM_Q }, { "self_attn.k_proj.bias", NULL, DIM_KV },
	                 { "self_attn.v_proj.bias", NULL, DIM_KV } }, DIM_ONE, SHARD_HEAD, WEIGHT_LAYER, .optional = true },
	[Q_NORM] = { { { "self_attn.q_norm.weight", NULL, DIM_HEAD } }, DIM_ONE, SHARD_REPLICATED, WEIGHT_LAYER, .optional = true },
	[K_NORM] = { { { "self_attn.k_norm.weight", NULL, DIM_HEAD } }, DIM_ONE, SHARD_REPLICATED, WEIGHT_LAYER, .optional = true },
	[ATTENTION_OUTPUT] = { { { "self_attn.o_proj.weight", NULL, DIM_WIDTH } }, DIM_Q, SHARD_COLUMN, WEIGHT_LAYER },

	[FFN_NORM] = { { { "post_attention_layernorm.weight", NULL, DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED, WEIGHT_LAYER },
#include "model/arch/moe_weights.def"
};

static const struct moe_weights ffn = { GATE_UP, DOWN, ROUTER, ROUTER_BIAS, SHARED_GATE_UP, SHARED_DOWN, EXPERT_GATE_UP,
	EXPERT_DOWN };

enum { X, HIDDEN, QKV_ROWS, ATTENDED, DELTA, GATED, ACTIVATED, SHARED_GATED, SHARED_ACTIVATED, FINAL, DRAFT_PAIR, DRAFT_FINAL,
    ACTIVATION_COUNT };

static const enum model_dim activations[ACTIVATION_COUNT] = {
	[X] = DIM_WIDTH, [HIDDEN] = DIM_WIDTH, [QKV_ROWS] = DIM_QKV, [ATTENDED] = DIM_Q, [DELTA] = DIM_WIDTH,
	[GATED] = DIM_GATE_UP, [ACTIVATED] = DIM_FFN, [SHARED_GATED] = DIM_SHARED_GATE_UP, [SHARED_ACTIVATED] = DIM_SHARED,
	[FINAL] = DIM_WIDTH, [DRAFT_PAIR] = DIM_TWICE, [DRAFT_FINAL] = DIM_WIDTH,
};

static const struct moe_activations inner = { GATED, ACTIVATED, SHARED_GATED, SHARED_ACTIVATED };

/* KV groups: the layers', and that of the layer that drafts. */
enum { GROUP_LAYERS, GROUP_DRAFT };

static enum status read_hparams(struct model *model, struct error *error)
{
	struct model_info *info = &model->info;
	bool               normed = false;
	enum status        status;

	if ((status = dense_read(model, &dense_keys_usual, error)) || (status = dense_read_tied(model, OUTPUT, error)) ||
	    (status = dense_read_bias(model, "attention_bias", QKV_BIAS, error)) ||
	    (status = hparam_bool(model, "use_qk_norm", NULL, &normed, error)) || (status = moe_read(model, 1, error)))
		return status;
	if (normed)
		model->required |= UINT64_C(1) << Q_NORM | UINT64_C(1) << K_NORM;
	if (info->draft_layers) {
		info->kv_groups[GROUP_DRAFT] = info->kv_groups[GROUP_LAYERS];
		info->kv_groups[GROUP_DRAFT].layers = info->draft_layers;
		info->kv_group_count = 2;
	}
	return rope_read(model, 10000, 0.5, ROPE_HALF, error);
}

/* LAYER, which is CACHED in the KV group GROUP.  PENDING, if any, is still to be added to x; what the layer adds to it comes
 * out in DELTA. */
static enum status decode_layer(struct model *model, uint32_t layer, uint32_t group, uint32_t cached,
    const struct activation *pending)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	float                     scale = 1 / sqrtf((float)model->head_dim);
	enum status               status;

#define W(name) model_weight_at(model, name, layer)
	if ((status = op->rms_norm(b, &a[X], pending, W(ATTENTION_NORM), model->eps, &a[HIDDEN])) ||
	    (status = op->linear(b, W(QKV), W(QKV_BIAS), &a[HIDDEN], &a[QKV_ROWS])))
		return status;
	if (W(Q_NORM))
		status = op->head_norm(b, &a[QKV_ROWS], model->heads, model->kv_heads, W(Q_NORM), W(K_NORM), model->eps);
	if (status || (status = op->rope_kv_write(b, &a[QKV_ROWS], group, cached, model->heads, &model->rope.desc)) ||
	    (status = op->attention(b, &a[QKV_ROWS], group, cached, model->heads, scale, &a[ATTENDED])) ||
	    (status = op->linear(b, W(ATTENTION_OUTPUT), NULL, &a[ATTENDED], &a[DELTA])) ||
	    (status = model_all_reduce(model, &a[DELTA])) ||
	    (status = op->rms_norm(b, &a[X], &a[DELTA], W(FFN_NORM), model->eps, &a[HIDDEN])) ||
	    (status = moe_forward(model, layer, &ffn, &inner, &a[HIDDEN], &a[DELTA])))
		return status;
	return model_all_reduce(model, &a[DELTA]);
#undef W
}

static enum status forward(struct model *model, const struct batch *batch)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	struct backend_weight    *embedding = model_weight_at(model, EMBEDDING, 0), *output = model_weight_at(model, OUTPUT, 0);
	struct backend_weight    *norm = model_weight_at(model, OUTPUT_NORM, 0);
	enum status               status = op->embed(b, embedding, &a[X]);

	for (uint32_t layer = 0; layer < model->info.layers && !status; layer++)
		status = decode_layer(model, layer, GROUP_LAYERS, layer, layer ? &a[DELTA] : NULL);
	if (!status && model->info.draft_layers) /* drafts will want it of every row */
		status = op->rms_norm(b, &a[X], &a[DELTA], norm, model->eps, &a[FINAL]);
	if (status || batch->logit_row_count == 0)
		return status;
	return op->logits(b, &a[X], model->info.draft_layers ? NULL : &a[DELTA], norm, model->eps, output ? output : embedding);
}

static enum status draft(struct model *model, const struct batch *batch, const int32_t *hidden_rows, bool first)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	uint32_t                  layer = model->info.layers;
	struct backend_weight    *embedding = model_weight_at(model, DRAFT_EMBEDDING, layer);
	struct backend_weight    *output = model_weight_at(model, DRAFT_OUTPUT, layer);
	enum status               status;

#define W(name) model_weight_at(model, name, layer)
	embedding = embedding ? embedding : model_weight_at(model, EMBEDDING, 0);
	output = output ? output : model_weight_at(model, OUTPUT, 0);
	if ((status = op->embed(b, embedding, &a[X])) ||
	    (status = op->draft_input(b, &a[X], W(DRAFT_TOKEN_NORM), &a[first ? FINAL : DRAFT_FINAL], hidden_rows,
	        W(DRAFT_HIDDEN_NORM), model->eps, &a[DRAFT_PAIR])) ||
	    (status = op->linear(b, W(DRAFT_INPUT), NULL, &a[DRAFT_PAIR], &a[X])) ||
	    (status = decode_layer(model, layer, GROUP_DRAFT, 0, NULL)) ||
	    (status = op->rms_norm(b, &a[X], &a[DELTA], W(DRAFT_NORM), model->eps, &a[DRAFT_FINAL])) || batch->logit_row_count == 0)
		return status;
	return op->logits(b, &a[X], NULL, W(DRAFT_NORM), model->eps, output ? output : model_weight_at(model, EMBEDDING, 0));
#undef W
}

const struct model_arch model_arch_glm4_moe = {
	.name = { "glm4_moe", NULL }, .layers = { "model.layers.", NULL }, .experts = { "mlp.experts.", NULL }, .read = read_hparams,
	.weights = weights, .weight_count = WEIGHT_COUNT, .activations = activations, .activation_count = ACTIVATION_COUNT,
	.forward = forward, .draft = draft,
};
