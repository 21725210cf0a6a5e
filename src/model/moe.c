/* moe.c: owns the reading of what mixtures of experts have in common, and the FFN of a layer that may be one.  Does not own
 * their weights (arch/) nor the choice of experts (backend).  Invariant: a token's experts can be chosen: there are enough of
 * them, also within the groups that count. */
#include "model/arch.h"
#include "model/quant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status read_router(struct model *model, struct error *error)
{
	struct router_desc *router = &model->moe.router;
	bool                normalise = true;
	double              scale = 1;
	enum status         status;

	*router = (struct router_desc){ .groups = 1, .top_groups = 1 };
	if ((status = hparam_u32(model, "n_routed_experts", NULL, true, 1, MODEL_EXPERTS_MAX, &router->experts, error)) ||
	    (status = hparam_u32(model, "num_experts_per_tok", NULL, true, 1, router->experts, &router->top_k, error)) ||
	    (status = hparam_u32(model, "n_group", NULL, false, 1, router->experts, &router->groups, error)) ||
	    (status = hparam_u32(model, "topk_group", NULL, false, 1, router->groups, &router->top_groups, error)) ||
	    (status = hparam_bool(model, "norm_topk_prob", NULL, &normalise, error)) ||
	    (status = hparam_f64(model, "routed_scaling_factor", NULL, false, 0, 1e6, &scale, error)) ||
	    (status = hparam_expect(model, "scoring_func", "sigmoid", error)) ||
	    (status = hparam_expect(model, "topk_method", "noaux_tc", error)))
		return status;
	router->normalise = normalise;
	router->scale = (float)scale;
	if (router->groups > 1 && (router->experts % router->groups || router->experts / router->groups < 2 ||
	    router->top_k > router->experts / router->groups * router->top_groups))
		return error_set(error, STATUS_INVALID, "%s: %u experts in %u groups, %u of a token from %u of these: groups are equal, of "
		    "two or more, and hold enough", model->source.config->label, router->experts, router->groups, router->top_k,
		    router->top_groups);
	model->moe.count = router->experts;
	model->info.experts = router->experts;
	model->info.experts_used = router->top_k;
	return STATUS_OK;
}

/* A layer that drafts lies behind the others, where the files have one; config.json may speak of it without. */
static enum status count_layers(struct model *model, struct error *error)
{
	uint32_t    drafts = 0;
	char        name[64];
	enum status status = hparam_u32(model, "num_nextn_predict_layers", NULL, false, 0, MODEL_LAYERS_MAX, &drafts, error);

	if (!model->source.dummy) {
		snprintf(name, sizeof name, "%s%u.eh_proj.weight", model->arch->layers.hub, model->info.layers);
		drafts = quant_has(model->source.checkpoint, name);
	}
	if (!model->arch->draft || model->source.skip_draft)
		drafts = 0;
	model->info.draft_layers = drafts > 0;
	model->layers = model->info.layers + model->info.draft_layers;
	return status;
}

/* Which layers are mixtures: mlp_layer_types, else those after the first FIRST. */
static enum status read_layers(struct model *model, uint32_t first, struct error *error)
{
	const struct hf_config *config = model->source.config;
	uint32_t                every = 1;
	size_t                  count = 0;
	enum status             status;

	if ((status = hparam_u32(model, "first_k_dense_replace", NULL, false, 0, MODEL_LAYERS_MAX, &first, error)) ||
	    (status = hparam_u32(model, "moe_layer_freq", NULL, false, 1, MODEL_LAYERS_MAX, &every, error)) ||
	    (status = hf_config_string_count(config, "mlp_layer_types", MODEL_LAYERS_MAX, &count, error)))
		return status;
	if (count && count < model->info.layers)
		return error_set(error, STATUS_INVALID, "%s: mlp_layer_types has %zu entries for %u layers", config->label, count,
		    model->info.layers);
	model->traits = calloc(model->layers, sizeof *model->traits);
	if (!model->traits)
		return error_set(error, STATUS_NOMEM, "out of memory for %u layers", model->layers);
	for (uint32_t layer = 0; layer < model->info.layers && !status; layer++) {
		static const char *const words[] = { "dense", "sparse" };
		const char              *type = words[layer >= first && layer % every == 0];

		if (count)
			status = hf_config_string_at(config, "mlp_layer_types", layer, &type, error);
		if (!status && strcmp(type, words[0]) != 0 && strcmp(type, words[1]) != 0)
			status = error_set(error, STATUS_UNSUPPORTED, "%s: mlp_layer_types[%u] = \"%.40s\": dense and sparse are known",
			    config->label, layer, type);
		model->traits[layer] = !status && *type == 's' ? TRAIT_SPARSE : TRAIT_DENSE;
	}
	if (model->info.draft_layers)
		model->traits[model->info.layers] = TRAIT_SPARSE | TRAIT_DRAFT;
	return status;
}

enum status moe_read(struct model *model, uint32_t first_dense, struct error *error)
{
	uint32_t   *dims = model->dims, shared = 1;
	enum status status;

	if ((status = read_router(model, error)) ||
	    (status = hparam_u32(model, "moe_intermediate_size", NULL, true, 1, MODEL_FFN_MAX, &dims[DIM_EXPERT_FFN], error)) ||
	    (status = hparam_u32(model, "n_shared_experts", NULL, false, 0, MODEL_FFN_MAX / dims[DIM_EXPERT_FFN], &shared, error)) ||
	    (status = hparam_refuse(model, "mlp_bias", NULL, "a bias of the FFN", error)) ||
	    (status = count_layers(model, error)) || (status = read_layers(model, first_dense, error)))
		return status;
	dims[DIM_EXPERTS] = model->moe.router.experts;
	dims[DIM_EXPERT_GATE_UP] = 2 * dims[DIM_EXPERT_FFN];
	dims[DIM_SHARED] = shared * dims[DIM_EXPERT_FFN];
	dims[DIM_SHARED_GATE_UP] = 2 * dims[DIM_SHARED];
	dims[DIM_TWICE] = model->info.draft_layers ? 2 * model->info.width : 0;
	if (!shared)
		return error_set(error, STATUS_UNSUPPORTED, "%s: n_shared_experts = 0: an expert that all tokens go through is needed",
		    model->source.config->label);
	return STATUS_OK;
}

enum status moe_forward(struct model *model, uint32_t layer, const struct moe_weights *weights,
    const struct moe_activations *activations, const struct activation *hidden, struct activation *delta)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	struct activation        *a = model->activations;
	struct expert_desc        experts;
	enum status               status;

#define W(name) model_weight_at(model, weights->name, layer)
#define A(name) &a[activations->name]
	if (!model_has_trait(model, layer, TRAIT_SPARSE)) {
		if ((status = model_gate(model, W(gate_up), NULL, hidden, A(gated), A(activated))))
			return status;
		return op->linear(b, W(down), NULL, A(activated), delta);
	}
	experts = (struct expert_desc){ .gate_up = model_experts_at(model, weights->expert_gate_up, layer),
		.down = model_experts_at(model, weights->expert_down, layer), .first = model->moe.first, .count = model->moe.count };
	if ((status = op->route(b, W(router), W(router_bias), &model->moe.router, hidden)) ||
	    (status = model_gate(model, W(shared_gate_up), NULL, hidden, A(shared_gated), A(shared_activated))) ||
	    (status = op->linear(b, W(shared_down), NULL, A(shared_activated), delta)))
		return status;
	return op->experts(b, &experts, hidden, delta);
#undef W
#undef A
}
