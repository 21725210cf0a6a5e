/* deepseek_v3.c: DeepSeek-V3 and what follows it (DeepSeek-V2 2024, DeepSeek-V3 2024, DeepSeek-V3.2 2025):
 *
 *      x = embed(tokens)
 *      for each layer:
 *          x += Wo · attention(q, c | k)                     h = norm(x)
 *          x += FFN(h)                                       h = norm(x), FFN as in glm4_moe.c
 *      logits = Wout · norm(x)
 *
 * Latent attention.  a = norm(Wqa · h); q = Wqb · a, a head of it [nope | rope]; (c | k) = Wkva · h, c = norm(c), and the rope
 * part of q and k are rotated, neighbouring dimensions with each other.  The rows of Wkvb are for each head those that make
 * its key of c, then those that make its value.  The cache holds c | k alone, one row for all heads:
 *
 *      score = (q_nope · Wkvb_key) · c + q_rope · k          o = Wkvb_value · Σ softmax(score) · c
 *
 * The norms of a and c have 1e-6, whatever rms_norm_eps says.
 *
 * Sparse attention (of glm_moe_dsa).  A layer with an indexer chooses what a token sees:
 *
 *      q' = rope(Wiq · a), k' = rope(layernorm(Wik · h)), w = Wiw · h        score = Σ over heads of w · relu(q' · k')
 *
 * The k' have a cache of their own, in layers that choose.  The others see what the nearest layer before them chose.
 *
 * A layer behind the others drafts, as in glm4_moe.c; it chooses for itself.
 */
#include "model/arch/deepseek_v3.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LATENT_EPS 1e-6f

enum { EMBEDDING, OUTPUT_NORM, OUTPUT, ATTENTION_NORM, Q, Q_DOWN, Q_DOWN_BIAS, Q_DOWN_NORM, Q_UP, KV_DOWN, KV_DOWN_BIAS,
    KV_DOWN_NORM, KV_UP, ATTENTION_OUTPUT, ATTENTION_OUTPUT_BIAS, INDEX_Q, INDEX_K, INDEX_K_NORM, INDEX_K_NORM_BIAS,
    INDEX_WEIGHT, FFN_NORM, GATE_UP, DOWN, ROUTER, ROUTER_BIAS, SHARED_GATE_UP, SHARED_DOWN, EXPERT_GATE_UP, EXPERT_DOWN,
    DRAFT_EMBEDDING, DRAFT_TOKEN_NORM, DRAFT_HIDDEN_NORM, DRAFT_INPUT, DRAFT_NORM, DRAFT_OUTPUT, WEIGHT_COUNT };
_Static_assert(WEIGHT_COUNT == (int)DEEPSEEK_WEIGHTS, "the table is as long as its declaration");

const struct model_weight deepseek_v3_weights[DEEPSEEK_WEIGHTS] = {
	[EMBEDDING] = { { { "model.embed_tokens.weight", NULL, DIM_VOCAB } }, DIM_WIDTH, SHARD_REPLICATED },
	[OUTPUT_NORM] = { { { "model.norm.weight", NULL, DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED },
	[OUTPUT] = { { { "lm_head.weight", NULL, DIM_VOCAB } }, DIM_WIDTH, SHARD_ROW, .optional = true },

	[ATTENTION_NORM] = { { { "input_layernorm.weight", NULL, DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED, WEIGHT_LAYER },
	[Q] = { { { "self_attn.q_proj.weight", NULL, DIM_Q } }, DIM_WIDTH, SHARD_HEAD, WEIGHT_LAYER, .optional = true },
	[Q_DOWN] = { { { "self_attn.q_a_proj.weight", NULL, DIM_Q_LATENT } }, DIM_WIDTH, SHARD_REPLICATED, WEIGHT_LAYER,
	    .optional = true },
	[Q_DOWN_BIAS] = { { { "self_attn.q_a_proj.bias", NULL, DIM_Q_LATENT } }, DIM_ONE, SHARD_REPLICATED, WEIGHT_LAYER,
	    .optional = true },
	[Q_DOWN_NORM] = { { { "self_attn.q_a_layernorm.weight", NULL, DIM_Q_LATENT } }, DIM_ONE, SHARD_REPLICATED, WEIGHT_LAYER,
	    .optional = true },
	[Q_UP] = { { { "self_attn.q_b_proj.weight", NULL, DIM_Q } }, DIM_Q_LATENT, SHARD_HEAD, WEIGHT_LAYER, .optional = true },
	[KV_DOWN] = { { { "self_attn.kv_a_proj_with_mqa.weight", NULL, DIM_LATENT_ROW } }, DIM_WIDTH, SHARD_REPLICATED,
	    WEIGHT_LAYER },
	[KV_DOWN_BIAS] = { { { "self_attn.kv_a_proj_with_mqa.bias", NULL, DIM_LATENT_ROW } }, DIM_ONE, SHARD_REPLICATED, WEIGHT_LAYER,
	    .optional = true },
	[KV_DOWN_NORM] = { { { "self_attn.kv_a_layernorm.weight", NULL, DIM_LATENT } }, DIM_ONE, SHARD_REPLICATED, WEIGHT_LAYER },
	[KV_UP] = { { { "self_attn.kv_b_proj.weight", NULL, DIM_LATENT_KV } }, DIM_LATENT, SHARD_HEAD, WEIGHT_LAYER,
	    .by_rows = true },
	[ATTENTION_OUTPUT] = { { { "self_attn.o_proj.weight", NULL, DIM_WIDTH } }, DIM_VALUES, SHARD_COLUMN, WEIGHT_LAYER },
	[ATTENTION_OUTPUT_BIAS] = { { { "self_attn.o_proj.bias", NULL, DIM_WIDTH } }, DIM_ONE, SHARD_COLUMN, WEIGHT_LAYER,
	    .optional = true },

	[INDEX_Q] = { { { "self_attn.indexer.wq_b.weight", NULL, DIM_INDEX_Q } }, DIM_Q_LATENT, SHARD_REPLICATED, WEIGHT_LAYER,
	    .traits = TRAIT_INDEXED, .surplus = true },
	[INDEX_K] = { { { "self_attn.indexer.wk.weight", NULL, DIM_INDEX_HEAD } }, DIM_WIDTH, SHARD_REPLICATED, WEIGHT_LAYER,
	    .traits = TRAIT_INDEXED, .surplus = true },
	[INDEX_K_NORM] = { { { "self_attn.indexer.k_norm.weight", NULL, DIM_INDEX_HEAD } }, DIM_ONE, SHARD_REPLICATED, WEIGHT_LAYER,
	    .traits = TRAIT_INDEXED, .surplus = true },
	[INDEX_K_NORM_BIAS] = { { { "self_attn.indexer.k_norm.bias", NULL, DIM_INDEX_HEAD } }, DIM_ONE, SHARD_REPLICATED,
	    WEIGHT_LAYER, .traits = TRAIT_INDEXED, .surplus = true },
	[INDEX_WEIGHT] = { { { "self_attn.indexer.weights_proj.weight", NULL, DIM_INDEX_HEADS } }, DIM_WIDTH, SHARD_REPLICATED,
	    WEIGHT_LAYER, .traits = TRAIT_INDEXED, .surplus = true },

	[FFN_NORM] = { { { "post_attention_layernorm.weight", NULL, DIM_WIDTH } }, DIM_ONE, SHARD_REPLICATED, WEIGHT_LAYER },
#include "model/arch/moe_weights.def"
};

static const struct moe_weights ffn = { GATE_UP, DOWN, ROUTER, ROUTER_BIAS, SHARED_GATE_UP, SHARED_DOWN, EXPERT_GATE_UP,
	EXPERT_DOWN };

enum { X, HIDDEN, Q_LATENT, Q_ROWS, KV_ROW, ABSORBED_Q, ABSORBED, ATTENDED, INDEX_Q_ROWS, INDEX_KEY, INDEX_WEIGHTS, DELTA, GATED,
    ACTIVATED, SHARED_GATED, SHARED_ACTIVATED, FINAL, DRAFT_PAIR, DRAFT_FINAL, ACTIVATION_COUNT };
_Static_assert(ACTIVATION_COUNT == (int)DEEPSEEK_ACTIVATIONS, "the table is as long as its declaration");

const enum model_dim deepseek_v3_activations[DEEPSEEK_ACTIVATIONS] = {
	[X] = DIM_WIDTH, [HIDDEN] = DIM_WIDTH, [Q_LATENT] = DIM_Q_LATENT, [Q_ROWS] = DIM_Q, [KV_ROW] = DIM_LATENT_ROW,
	[ABSORBED_Q] = DIM_ABSORBED_Q, [ABSORBED] = DIM_ABSORBED, [ATTENDED] = DIM_VALUES, [INDEX_Q_ROWS] = DIM_INDEX_Q,
	[INDEX_KEY] = DIM_INDEX_HEAD, [INDEX_WEIGHTS] = DIM_INDEX_HEADS, [DELTA] = DIM_WIDTH, [GATED] = DIM_GATE_UP,
	[ACTIVATED] = DIM_FFN, [SHARED_GATED] = DIM_SHARED_GATE_UP, [SHARED_ACTIVATED] = DIM_SHARED, [FINAL] = DIM_WIDTH,
	[DRAFT_PAIR] = DIM_TWICE, [DRAFT_FINAL] = DIM_WIDTH,
};

static const struct moe_activations inner = { GATED, ACTIVATED, SHARED_GATED, SHARED_ACTIVATED };

/* KV groups: rows of the layers and of the one that drafts, then keys of the indexers of either, as far as there are. */
static inline uint32_t group_of(const struct model *model, bool draft) { return draft && model->info.draft_layers ? 1 : 0; }
static inline uint32_t index_group_of(const struct model *model, bool draft)
{
	return 1 + model->info.draft_layers + (draft ? 1 : 0);
}

static enum status read_rope(struct model *model, struct error *error)
{
	struct hf_rope rope;
	bool           interleaved = true;
	double         mscale;
	enum status    status;

	if ((status = hf_config_rope(model->source.config, 10000, 1, &rope, error)) ||
	    (status = hparam_bool(model, "rope_interleave", NULL, &interleaved, error)))
		return status;
	rope.partial = (double)model->latent.desc.rope / model->head_dim;
	if (rope.type == HF_ROPE_YARN && rope.mscale_all_dim > 0 && rope.factor > 1) {
		mscale = 0.1 * rope.mscale_all_dim * log(rope.factor) + 1;
		model->latent.desc.scale *= (float)(mscale * mscale);
	}
	return rope_set(model, &rope, interleaved ? ROPE_INTERLEAVED : ROPE_HALF, error);
}

enum status deepseek_v3_read(struct model *model, const struct dense_keys *keys, uint32_t first_dense, struct error *error)
{
	struct latent_desc *latent = &model->latent.desc;
	struct model_info  *info = &model->info;
	uint32_t           *dims = model->dims;
	enum status         status;

	if ((status = dense_read(model, keys, error)) || (status = dense_read_tied(model, OUTPUT, error)) ||
	    (status = dense_read_bias(model, "attention_bias", KV_DOWN_BIAS, error)) ||
	    (status = dense_read_bias(model, "attention_bias", ATTENTION_OUTPUT_BIAS, error)) ||
	    (status = hparam_u32(model, "q_lora_rank", NULL, false, 1, MODEL_WIDTH_MAX, &dims[DIM_Q_LATENT], error)) ||
	    (status = hparam_u32(model, "kv_lora_rank", NULL, true, 1, MODEL_LATENT_MAX, &latent->latent, error)) ||
	    (status = hparam_u32(model, "qk_nope_head_dim", NULL, true, 1, MODEL_HEAD_DIM_MAX, &latent->nope, error)) ||
	    (status = hparam_u32(model, "qk_rope_head_dim", NULL, true, 2, MODEL_HEAD_DIM_MAX, &latent->rope, error)) ||
	    (status = hparam_u32(model, "v_head_dim", NULL, true, 1, MODEL_HEAD_DIM_MAX, &latent->value, error)) ||
	    (status = moe_read(model, first_dense, error)))
		return status;
	model->required |= dims[DIM_Q_LATENT] ? UINT64_C(1) << Q_DOWN | UINT64_C(1) << Q_DOWN_NORM | UINT64_C(1) << Q_UP :
	    UINT64_C(1) << Q;
	latent->heads = model->heads;
	model->kv_heads = model->heads; /* whatever config.json says: it means nothing here */
	model->head_dim = latent->nope + latent->rope;
	if (model->head_dim > MODEL_HEAD_DIM_MAX)
		return error_set(error, STATUS_INVALID, "%s: heads of %u + %u dimensions, at most %d", model->source.config->label,
		    latent->nope, latent->rope, MODEL_HEAD_DIM_MAX);
	latent->scale = 1 / sqrtf((float)model->head_dim);
	model->latent.expanded = model->source.expand_latent;
	dims[DIM_HEAD] = model->head_dim;
	dims[DIM_Q] = model->heads * model->head_dim;
	dims[DIM_KV] = dims[DIM_QKV] = 0;
	dims[DIM_LATENT] = latent->latent;
	dims[DIM_LATENT_ROW] = latent->latent + latent->rope;
	dims[DIM_LATENT_KV] = model->heads * (latent->nope + latent->value);
	dims[DIM_VALUES] = model->heads * latent->value;
	dims[DIM_ABSORBED_Q] = model->heads * dims[DIM_LATENT_ROW];
	dims[DIM_ABSORBED] = model->heads * latent->latent;
	info->kv_groups[0] = (struct kv_group_desc){ .layers = info->layers, .kv_heads = 1, .head_dim = dims[DIM_LATENT_ROW],
		.kind = KV_ROWS };
	info->kv_groups[1] = info->kv_groups[0];
	info->kv_groups[1].layers = info->draft_layers;
	info->kv_group_count = 1 + info->draft_layers;
	return read_rope(model, error);
}

/* What rows of HIDDEN see in LAYER. */
static enum status choose(struct model *model, uint32_t layer)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	uint32_t                  group = index_group_of(model, layer >= model->info.layers);
	uint32_t                  cached = model->latent.index_layer[layer];
	enum status               status;

#define W(name) model_weight_at(model, name, layer)
	if ((status = op->linear(b, W(INDEX_Q), NULL, &a[Q_LATENT], &a[INDEX_Q_ROWS])) ||
	    (status = op->linear(b, W(INDEX_K), NULL, &a[HIDDEN], &a[INDEX_KEY])) ||
	    (status = op->linear(b, W(INDEX_WEIGHT), NULL, &a[HIDDEN], &a[INDEX_WEIGHTS])) ||
	    (status = op->layer_norm(b, &a[INDEX_KEY], NULL, W(INDEX_K_NORM), W(INDEX_K_NORM_BIAS), LATENT_EPS, &a[INDEX_KEY])) ||
	    (status = op->index_write(b, &a[INDEX_Q_ROWS], &a[INDEX_KEY], group, cached, &model->latent.index,
	        &model->latent.index_rope.desc)))
		return status;
	return op->index_select(b, &a[INDEX_Q_ROWS], &a[INDEX_WEIGHTS], group, cached, &model->latent.index);
#undef W
}

/* LAYER, which is CACHED in its KV group, from HIDDEN to ATTENDED.  FOLLOW: it sees what was chosen before. */
static enum status attend(struct model *model, uint32_t layer, uint32_t cached, bool follow)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	const struct latent_desc *latent = &model->latent.desc;
	uint32_t                  group = group_of(model, layer >= model->info.layers);
	enum status               status;

#define W(name) model_weight_at(model, name, layer)
	if (!W(Q_DOWN))
		status = op->linear(b, W(Q), NULL, &a[HIDDEN], &a[Q_ROWS]);
	else if (!(status = op->linear(b, W(Q_DOWN), W(Q_DOWN_BIAS), &a[HIDDEN], &a[Q_LATENT])) &&
	    !(status = op->rms_norm(b, &a[Q_LATENT], NULL, W(Q_DOWN_NORM), LATENT_EPS, &a[Q_LATENT])))
		status = op->linear(b, W(Q_UP), NULL, &a[Q_LATENT], &a[Q_ROWS]);
	if (status || (status = op->linear(b, W(KV_DOWN), W(KV_DOWN_BIAS), &a[HIDDEN], &a[KV_ROW])) ||
	    (status = op->latent_write(b, &a[Q_ROWS], &a[KV_ROW], W(KV_DOWN_NORM), LATENT_EPS, group, cached, latent,
	        &model->rope.desc)))
		return status;
	if (model_has_trait(model, layer, TRAIT_INDEXED) && !follow && (status = choose(model, layer)))
		return status;
	if (model->latent.expanded)
		return op->latent_expanded(b, &a[Q_ROWS], W(KV_UP), group, cached, latent, &a[ATTENDED]);
	if ((status = op->latent_query(b, &a[Q_ROWS], W(KV_UP), latent, &a[ABSORBED_Q])) ||
	    (status = op->latent_attention(b, &a[ABSORBED_Q], group, cached, latent, &a[ABSORBED])))
		return status;
	return op->latent_value(b, &a[ABSORBED], W(KV_UP), latent, &a[ATTENDED]);
#undef W
}

/* PENDING, if any, is still to be added to x; what the layer adds to it comes out in DELTA. */
static enum status decode_layer(struct model *model, uint32_t layer, uint32_t cached, bool follow,
    const struct activation *pending)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	enum status               status;

#define W(name) model_weight_at(model, name, layer)
	if ((status = op->rms_norm(b, &a[X], pending, W(ATTENTION_NORM), model->eps, &a[HIDDEN])) ||
	    (status = attend(model, layer, cached, follow)) ||
	    (status = op->linear(b, W(ATTENTION_OUTPUT), W(ATTENTION_OUTPUT_BIAS), &a[ATTENDED], &a[DELTA])) ||
	    (status = model_all_reduce(model, &a[DELTA])) ||
	    (status = op->rms_norm(b, &a[X], &a[DELTA], W(FFN_NORM), model->eps, &a[HIDDEN])) ||
	    (status = moe_forward(model, layer, &ffn, &inner, &a[HIDDEN], &a[DELTA])))
		return status;
	return model_all_reduce(model, &a[DELTA]);
#undef W
}

enum status deepseek_v3_forward(struct model *model, const struct batch *batch)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	struct backend_weight    *embedding = model_weight_at(model, EMBEDDING, 0), *output = model_weight_at(model, OUTPUT, 0);
	struct backend_weight    *norm = model_weight_at(model, OUTPUT_NORM, 0);
	enum status               status = op->embed(b, embedding, &a[X]);

	for (uint32_t layer = 0; layer < model->info.layers && !status; layer++)
		status = decode_layer(model, layer, layer, false, layer ? &a[DELTA] : NULL);
	if (!status && model->info.draft_layers) /* drafts will want it of every row */
		status = op->rms_norm(b, &a[X], &a[DELTA], norm, model->eps, &a[FINAL]);
	if (status || batch->logit_row_count == 0)
		return status;
	return op->logits(b, &a[X], model->info.draft_layers ? NULL : &a[DELTA], norm, model->eps, output ? output : embedding);
}

enum status deepseek_v3_draft(struct model *model, const struct batch *batch, const int32_t *hidden_rows, bool first)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	uint32_t                  layer = model->info.layers;
	struct backend_weight    *embedding = model_weight_at(model, DRAFT_EMBEDDING, layer);
	struct backend_weight    *output = model_weight_at(model, DRAFT_OUTPUT, layer);
	bool                      follow = !first && model->latent.draft_share;
	enum status               status;

#define W(name) model_weight_at(model, name, layer)
	embedding = embedding ? embedding : model_weight_at(model, EMBEDDING, 0);
	output = output ? output : model_weight_at(model, OUTPUT, 0);
	if ((status = op->embed(b, embedding, &a[X])) ||
	    (status = op->draft_input(b, &a[X], W(DRAFT_TOKEN_NORM), &a[first ? FINAL : DRAFT_FINAL], hidden_rows,
	        W(DRAFT_HIDDEN_NORM), model->eps, &a[DRAFT_PAIR])) ||
	    (status = op->linear(b, W(DRAFT_INPUT), NULL, &a[DRAFT_PAIR], &a[X])) ||
	    (follow && (status = op->index_follow(b, hidden_rows))) ||
	    (status = decode_layer(model, layer, 0, follow, NULL)) ||
	    (status = op->rms_norm(b, &a[X], &a[DELTA], W(DRAFT_NORM), model->eps, &a[DRAFT_FINAL])) || batch->logit_row_count == 0)
		return status;
	return op->logits(b, &a[X], NULL, W(DRAFT_NORM), model->eps, output ? output : model_weight_at(model, EMBEDDING, 0));
#undef W
}

static enum status read_hparams(struct model *model, struct error *error)
{
	return deepseek_v3_read(model, &dense_keys_usual, 3, error);
}

const struct model_arch model_arch_deepseek_v3 = {
	.name = { "deepseek_v3", NULL }, .layers = { "model.layers.", NULL }, .experts = { "mlp.experts.", NULL },
	.read = read_hparams, .weights = deepseek_v3_weights, .weight_count = WEIGHT_COUNT, .activations = deepseek_v3_activations,
	.activation_count = ACTIVATION_COUNT, .forward = deepseek_v3_forward, .draft = deepseek_v3_draft,
};
