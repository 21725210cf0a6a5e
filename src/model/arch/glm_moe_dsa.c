/* glm_moe_dsa.c: GLM-5, 5.1 and 5.2: DeepSeek-V3's layers with sparse attention (deepseek_v3.c).  Which layers choose what
 * they see ("full") and which see what the nearest one before them chose ("shared"):
 *
 *      indexer_types           a word for each layer, else
 *      index_topk_pattern      a letter for each layer, F or S, as a string or a list, else
 *      index_topk_freq         layer i is shared unless max(i − index_skip_topk_offset + 1, 0) is a multiple of it
 *
 * Files of third parties may hold indexers for shared layers too; they are not used. */
#include "model/arch/deepseek_v3.h"

#include <stdlib.h>
#include <string.h>

/* Whether layer LAYER of the list KEY is full. */
static enum status read_word(const struct model *model, const char *key, uint32_t layer, const char *full, const char *shared,
    bool *ret, struct error *error)
{
	const char *word = NULL;
	enum status status = hf_config_string_at(model->source.config, key, layer, &word, error);

	if (status)
		return status;
	if (strcmp(word, full) != 0 && strcmp(word, shared) != 0)
		return error_set(error, STATUS_UNSUPPORTED, "%s: %s[%u] = \"%.40s\": %s and %s are known", model->source.config->label, key,
		    layer, word, full, shared);
	*ret = strcmp(word, full) == 0;
	return STATUS_OK;
}

/* index_topk_pattern written as one string; STATUS_NOT_FOUND when it is not. */
static enum status read_letters(const struct model *model, bool *ret, struct error *error)
{
	const struct hf_config *config = model->source.config;
	const char             *letters = NULL;
	enum status             status;

	if (hf_config_kind(config, "index_topk_pattern") != HF_STRING)
		return STATUS_NOT_FOUND;
	status = hf_config_string(config, "index_topk_pattern", &letters, error);
	if (status)
		return status;
	if (strlen(letters) < model->info.layers || strspn(letters, "FS") != strlen(letters))
		return error_set(error, STATUS_INVALID, "%s: index_topk_pattern = \"%.80s\": F or S for each of %u layers is needed",
		    config->label, letters, model->info.layers);
	for (uint32_t layer = 0; layer < model->info.layers; layer++)
		ret[layer] = letters[layer] == 'F';
	return STATUS_OK;
}

static enum status read_full(const struct model *model, bool *ret, struct error *error)
{
	const struct hf_config *config = model->source.config;
	uint32_t                every = 1, offset = 2, layers = model->info.layers;
	size_t                  words = 0, letters = 0;
	enum status status = hf_config_string_count(config, "indexer_types", MODEL_LAYERS_MAX, &words, error);

	if (!status && !words && (status = read_letters(model, ret, error)) != STATUS_NOT_FOUND)
		return status;
	status = words ? status : hf_config_string_count(config, "index_topk_pattern", MODEL_LAYERS_MAX, &letters, error);
	if (!status && ((words && words < layers) || (letters && letters < layers)))
		return error_set(error, STATUS_INVALID, "%s: %s has %zu entries for %u layers", config->label,
		    words ? "indexer_types" : "index_topk_pattern", words ? words : letters, layers);
	if (status || (status = hparam_u32(model, "index_topk_freq", NULL, false, 1, MODEL_LAYERS_MAX, &every, error)) ||
	    (status = hparam_u32(model, "index_skip_topk_offset", NULL, false, 0, MODEL_LAYERS_MAX, &offset, error)))
		return status;
	for (uint32_t layer = 0; layer < layers && !status; layer++) {
		if (words)
			status = read_word(model, "indexer_types", layer, "full", "shared", &ret[layer], error);
		else if (letters)
			status = read_word(model, "index_topk_pattern", layer, "F", "S", &ret[layer], error);
		else
			ret[layer] = layer + 1 < offset || (layer + 1 - offset) % every == 0;
	}
	return status;
}

/* Traits, KV groups and the place of a layer's keys in its group. */
static enum status place_layers(struct model *model, const bool *full, struct error *error)
{
	struct model_info *info = &model->info;
	uint32_t           count = 0;

	if (!full[0])
		return error_set(error, STATUS_INVALID, "%s: layer 0 has no indexer, and no layer before it", model->source.config->label);
	model->latent.index_layer = calloc(model->layers, sizeof *model->latent.index_layer);
	if (!model->latent.index_layer)
		return error_set(error, STATUS_NOMEM, "out of memory for %u layers", model->layers);
	for (uint32_t layer = 0; layer < info->layers; layer++) {
		if (!full[layer])
			continue;
		model->traits[layer] |= TRAIT_INDEXED;
		model->latent.index_layer[layer] = count++;
	}
	info->kv_groups[info->kv_group_count++] = (struct kv_group_desc){ .layers = count, .kv_heads = 1,
		.head_dim = model->latent.index.dim, .kind = KV_ROWS };
	if (info->draft_layers) {
		model->traits[info->layers] |= TRAIT_INDEXED;
		info->kv_groups[info->kv_group_count++] = (struct kv_group_desc){ .layers = info->draft_layers, .kv_heads = 1,
			.head_dim = model->latent.index.dim, .kind = KV_ROWS };
	}
	return STATUS_OK;
}

/* The indexer turns the first dimensions of its heads as attention does the last of its own. */
static enum status read_index_rope(struct model *model, struct error *error)
{
	struct model_rope *rope = &model->latent.index_rope;
	bool               interleaved = true;
	size_t             bytes = model->rope.desc.dims / 2 * sizeof *rope->frequencies;
	enum status        status = hparam_bool(model, "indexer_rope_interleave", NULL, &interleaved, error);

	if (status)
		return status;
	if (model->rope.desc.dims > model->latent.index.dim)
		return error_set(error, STATUS_INVALID, "%s: index_head_dim = %u, of which %u are rotated", model->source.config->label,
		    model->latent.index.dim, model->rope.desc.dims);
	rope->frequencies = malloc(bytes);
	if (!rope->frequencies)
		return error_set(error, STATUS_NOMEM, "out of memory for rope frequencies");
	memcpy(rope->frequencies, model->rope.frequencies, bytes);
	rope->desc = model->rope.desc;
	rope->desc.style = interleaved ? ROPE_INTERLEAVED : ROPE_HALF;
	rope->desc.frequencies = rope->frequencies;
	return STATUS_OK;
}

static enum status read_hparams(struct model *model, struct error *error)
{
	/* One thing under the names that writers have given it. */
	static const char *const types[] = { "deepseek_sparse_attention", "indexed_attention", "full_attention", NULL };
	struct dense_keys  keys = dense_keys_usual;
	struct index_desc *index = &model->latent.index;
	bool               full[MODEL_LAYERS_MAX] = { false };
	enum status        status;

	keys.layer_types = types;
	if ((status = deepseek_v3_read(model, &keys, 3, error)) ||
	    (status = hparam_u32(model, "index_n_heads", NULL, true, 1, MODEL_HEADS_MAX, &index->heads, error)) ||
	    (status = hparam_u32(model, "index_head_dim", NULL, true, 2, MODEL_HEAD_DIM_MAX, &index->dim, error)) ||
	    (status = hparam_u32(model, "index_topk", NULL, true, 1, MODEL_INDEX_TOP_K_MAX, &index->top_k, error)) ||
	    (status = hparam_bool(model, "index_share_for_mtp_iteration", NULL, &model->latent.draft_share, error)) ||
	    (status = read_full(model, full, error)) || (status = place_layers(model, full, error)))
		return status;
	if (!model->dims[DIM_Q_LATENT])
		return error_set(error, STATUS_INVALID, "%s: q_lora_rank is needed: the indexer reads it", model->source.config->label);
	model->latent.desc.sparse = 1;
	model->info.index_top_k = index->top_k;
	model->dims[DIM_INDEX_Q] = index->heads * index->dim;
	model->dims[DIM_INDEX_HEAD] = index->dim;
	model->dims[DIM_INDEX_HEADS] = index->heads;
	return read_index_rope(model, error);
}

const struct model_arch model_arch_glm_moe_dsa = {
	.name = { "glm_moe_dsa", NULL }, .layers = { "model.layers.", NULL }, .experts = { "mlp.experts.", NULL },
	.read = read_hparams, .weights = deepseek_v3_weights, .weight_count = DEEPSEEK_WEIGHTS,
	.activations = deepseek_v3_activations, .activation_count = DEEPSEEK_ACTIVATIONS, .forward = deepseek_v3_forward,
	.draft = deepseek_v3_draft,
};
