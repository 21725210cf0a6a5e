/* model.c: owns a loaded model: which architecture it is, the scratch of a step, and the call of forward().  Does not own
 * the loading of tensors (load.c) nor the mathematics (arch/, backend).  Invariant: a model that was returned has every
 * weight its architecture needs. */
#include "model/arch.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_TEXT_MAX = 256 };

/* Arrays of a step whose values do not matter; [max_rows] each. */
struct rehearsal {
	int32_t               *zeroes, *slots, *logit_rows;
	struct batch_sequence *sequences;
	uint32_t               blocks;
};

/* The name of the source's architecture, and the key it stands under. */
static enum status read_name(const struct model *model, const char **ret, size_t *ret_length, const char **ret_key,
    struct error *error)
{
	enum status status;

	if (!model_is_gguf(model)) {
		*ret_key = "model_type";
		status = hf_config_string(model->source.config, *ret_key, ret, error);
		*ret_length = status ? 0 : strlen(*ret);
		return status;
	}
	*ret_key = "general.architecture";
	status = gguf_get_string(checkpoint_gguf(model->source.checkpoint), *ret_key, ret, ret_length, error);
	if (status == STATUS_NOT_FOUND)
		return error_set(error, STATUS_INVALID, "the file lacks general.architecture");
	return status;
}

static enum status find_arch(struct model *model, struct error *error)
{
	const char *name, *key;
	char        known[NAMES_TEXT_MAX] = "";
	size_t      length, at = 0;
	enum status status = read_name(model, &name, &length, &key, error);

	if (status)
		return status;
	for (size_t i = 0; i < model_arch_count; i++) {
		const char *its = model_is_gguf(model) ? model_archs[i]->name.gguf : model_archs[i]->name.hub;

		if (!its)
			continue;
		if (strlen(its) == length && memcmp(its, name, length) == 0) {
			model->arch = model_archs[i];
			snprintf(model->info.architecture, sizeof model->info.architecture, "%s", its);
			return STATUS_OK;
		}
		if (at < sizeof known) {
			int n = snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", its);
			at += n > 0 ? (size_t)n : 0;
		}
	}
	return error_set(error, STATUS_UNSUPPORTED, "%s = \"%.*s\" is not known; known are: %s", key,
	    length > 40 ? 40 : (int)length, name, known);
}

/* What the backend must be able to do, now that it is known what the model is. */
static enum status check_operations(const struct model *model, struct error *error)
{
	const struct backend_ops *ops = model->backend->ops;
	const char               *what = NULL;

	if (model->moe.router.experts && !ops->experts)
		what = "mixtures of experts";
	else if (model->latent.desc.heads && !ops->latent_attention)
		what = "latent attention";
	else if (model->latent.index.heads && !ops->index_select)
		what = "sparse attention";
	else if (model->info.draft_layers && !ops->draft_input)
		what = "layers that draft";
	return what ? error_set(error, STATUS_UNSUPPORTED, "%s: the backend %s has no operations for %s", model->info.architecture,
	    ops->name, what) : STATUS_OK;
}

/* Where each weight's begin in model->weights, which is taken here. */
static enum status place_weights(struct model *model, struct error *error)
{
	size_t at = 0, experts = model->moe.router.experts;

	for (uint32_t i = 0; i < model->arch->weight_count; i++) {
		enum model_place place = model->arch->weights[i].place;

		model->place[i] = at;
		at += place == WEIGHT_MODEL ? 1 : model->layers * (place == WEIGHT_EXPERT ? experts : 1);
	}
	model->place[model->arch->weight_count] = at;
	model->weights = calloc(at, sizeof *model->weights);
	return model->weights ? STATUS_OK : error_set(error, STATUS_NOMEM, "out of memory for the weight table");
}

static enum status read_model(struct model *model, struct error *error)
{
	enum status status = find_arch(model, error);

	if (status)
		return status;
	model->info.encoder = model->arch->encoder;
	model->info.pad = -1;
	if (model->info.encoder && !model->backend->ops->pool)
		return error_set(error, STATUS_UNSUPPORTED, "%s is an encoder: the backend %s has no operations for these",
		    model->info.architecture, model->backend->ops->name);
	status = model->arch->read(model, error);
	if (!model->layers)
		model->layers = model->info.layers;
	status = status ? status : check_operations(model, error);
	return status ? status : place_weights(model, error);
}

enum status model_load_all(const struct model_source *source, struct backend *backend, model_problem *problem,
    void *context, struct model **ret, struct error *error)
{
	struct model *model = calloc(1, sizeof *model);
	enum status   status;

	if (!model)
		return error_set(error, STATUS_NOMEM, "out of memory for the model");
	model->backend = backend;
	model->source = *source;
	status = read_model(model, error);
	if (!status)
		status = model_load_weights(model, problem, context, error);
	model->source = (struct model_source){ .checkpoint = NULL };
	if (status && !(problem && model->weights)) {
		model_free(model);
		return status;
	}
	*ret = model;
	return status;
}

enum status model_load(const struct model_source *source, struct backend *backend, struct model **ret,
    struct error *error)
{
	return model_load_all(source, backend, NULL, NULL, ret, error);
}

enum status model_load_gguf(const struct gguf *gguf, struct backend *backend, struct model **ret, struct error *error)
{
	struct model_source source = { .checkpoint = NULL };
	enum status         status = checkpoint_from_gguf(gguf, &source.checkpoint, error);

	if (!status)
		status = model_load(&source, backend, ret, error);
	checkpoint_close(source.checkpoint);
	return status;
}

void model_free(struct model *model)
{
	if (!model)
		return;
	for (uint32_t i = 0; i < MODEL_ACTIVATIONS_MAX; i++)
		if (model->activations[i].data)
			model->backend->ops->activation_free(model->backend, &model->activations[i]);
	for (size_t i = 0; model->weights && i < model->place[model->arch->weight_count]; i++)
		if (model->weights[i])
			model->backend->ops->weight_free(model->backend, model->weights[i]);
	checkpoint_close(model->mapped);
	free(model->weights);
	free(model->rope.frequencies);
	free(model->latent.index_rope.frequencies);
	free(model->latent.index_layer);
	free(model->traits);
	free(model);
}

const struct model_info *model_info(const struct model *model) { return &model->info; }

static struct backend_limits limits_of(const struct model *model, uint32_t max_rows, uint32_t max_logit_rows)
{
	struct backend_limits limits = { .rows = max_rows, .logit_rows = max_logit_rows,
		.vocab = model->info.encoder ? 1 : model->info.vocab, .q_heads = model->heads, .head_dim = model->head_dim,
		.stream = model->info.width, .experts = model->moe.router.experts, .top_k = model->moe.router.top_k,
		.expert_width = model->dims[DIM_EXPERT_FFN], .latent = model->dims[DIM_LATENT_ROW],
		.latent_value = model->latent.desc.value, .index_heads = model->latent.index.heads,
		.index_top_k = model->latent.index.heads ? model->latent.index.top_k : 0 };

	if (model->latent.index.dim > limits.latent)
		limits.latent = model->latent.index.dim;
	for (uint32_t i = 0; i < model->arch->weight_count; i++) {
		uint32_t columns = model->dims[model->arch->weights[i].columns];
		limits.width = columns > limits.width ? columns : limits.width;
	}
	return limits;
}

uint64_t model_scratch_bytes(const struct model *model, uint32_t max_rows, uint32_t max_logit_rows)
{
	const struct backend_ops *ops = model->backend->ops;
	struct backend_limits     limits = limits_of(model, max_rows, max_logit_rows);
	uint64_t                  bytes = ops->scratch_bytes(model->backend, &limits);

	for (uint32_t i = 0; i < model->arch->activation_count; i++)
		if (model->dims[model->arch->activations[i]] && !checked_add_u64(bytes, ops->activation_bytes(model->backend, max_rows,
		    model->dims[model->arch->activations[i]]), &bytes))
			return UINT64_MAX;
	return bytes;
}

/* One step of ROWS tokens in COUNT sequences whose values do not matter. */
static enum status rehearse_step(struct model *model, uint32_t rows, uint32_t count, struct rehearsal *memory)
{
	struct batch batch = { .rows = rows, .sequence_count = count, .tokens = memory->zeroes, .positions = memory->zeroes,
		.sequences = memory->sequences, .logit_row_count = count, .logit_rows = memory->logit_rows };

	for (uint32_t i = 0; i < count; i++) {
		struct batch_sequence *sequence = &memory->sequences[i];

		*sequence = (struct batch_sequence){ .first_row = i * (rows / count), .rows = rows / count, .context = rows / count,
			.blocks = memory->blocks };
		for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
			sequence->block_table[g] = memory->zeroes;
		memory->logit_rows[i] = (int32_t)(sequence->first_row + sequence->rows - 1);
	}
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		batch.kv_slots[g] = memory->slots;
	return model_forward(model, &batch);
}

/* Lets the backend see the steps it asks for. */
static enum status rehearse(struct model *model, uint32_t block_size, struct error *error)
{
	const struct backend_ops *ops = model->backend->ops;
	struct rehearsal          memory = { .blocks = (model->max_rows + block_size - 1) / block_size };
	uint32_t                  rows = 0, count = 0;
	enum status               status = STATUS_OK;

	memory.zeroes = calloc(model->max_rows, sizeof *memory.zeroes);
	memory.slots = malloc(model->max_rows * sizeof *memory.slots);
	memory.logit_rows = calloc(model->max_rows, sizeof *memory.logit_rows);
	memory.sequences = calloc(model->max_rows, sizeof *memory.sequences);
	if (!memory.zeroes || !memory.slots || !memory.logit_rows || !memory.sequences)
		status = error_set(error, STATUS_NOMEM, "out of memory for a rehearsal of %u rows", model->max_rows);
	else
		memset(memory.slots, 0xff, model->max_rows * sizeof *memory.slots); /* −1: nothing is written */
	for (uint32_t i = 0; !status && ops->rehearsal(model->backend, i, &rows, &count); i++) {
		if (rows < 1 || rows > model->max_rows || count < 1 || count > rows || count > model->max_logit_rows || rows % count)
			status = error_set(error, STATUS_INTERNAL, "backend %s wants to rehearse %u rows in %u sequences", ops->name, rows,
			    count);
		else if ((status = rehearse_step(model, rows, count, &memory)))
			/* The backend knows the words. */
			if (ops->wait(model->backend, NULL, 0, error) == STATUS_OK)
				error_set(error, status, "a rehearsal of %u rows: %s", rows, status_text(status));
	}
	if (!status)
		status = ops->wait(model->backend, NULL, 0, error);
	free(memory.zeroes);
	free(memory.slots);
	free(memory.logit_rows);
	free(memory.sequences);
	return status;
}

bool model_kv_type(const char *word, enum kv_type *ret)
{
	*ret = strcmp(word, "fp8") == 0 ? KV_F8 : strcmp(word, "int8") == 0 ? KV_I8 : KV_FLOAT;
	return *ret != KV_FLOAT || strcmp(word, "auto") == 0;
}

enum status model_set_kv_type(struct model *model, const char *word, struct error *error)
{
	struct model_info *info = &model->info;
	enum kv_type       type;

	if (!model_kv_type(word, &type))
		return error_set_param(error, STATUS_INVALID, "kv_dtype", "kv_dtype = %.32s: auto, fp8 or int8 is needed", word);
	if (type == KV_FLOAT)
		return STATUS_OK;
	if (strcmp(model->backend->ops->name, "cpu") != 0 && strcmp(model->backend->ops->name, "cuda") != 0)
		return error_set_param(error, STATUS_UNSUPPORTED, "kv_dtype", "kv_dtype = %s: the backend %s keeps keys and values in its "
		    "own type; cpu and cuda have fp8 and int8", word, model->backend->ops->name);
	if (info->encoder)
		return error_set_param(error, STATUS_UNSUPPORTED, "kv_dtype", "kv_dtype = %s: %s keeps none between texts", word,
		    info->architecture);
	for (uint32_t g = 0; g < info->kv_group_count; g++)
		if (info->kv_groups[g].kind != KV_PAIRS)
			return error_set_param(error, STATUS_UNSUPPORTED, "kv_dtype", "kv_dtype = %s: the cache of %s holds latents, which "
			    "stay in float", word, info->architecture);
	for (uint32_t g = 0; g < info->kv_group_count; g++)
		info->kv_groups[g].type = type;
	return STATUS_OK;
}

enum status model_plan(struct model *model, uint32_t max_rows, uint32_t max_logit_rows, uint32_t block_size,
    uint32_t blocks, struct error *error)
{
	const struct backend_ops *ops = model->backend->ops;
	struct backend_limits     limits = limits_of(model, max_rows, max_logit_rows);
	enum status               status;

	if (model->max_rows || max_rows < 1 || max_logit_rows < 1)
		return error_set(error, STATUS_INVALID, "a plan of %u rows and %u logit rows: both positive, and made once",
		    max_rows, max_logit_rows);
	status = ops->scratch_alloc(model->backend, &limits, error);
	for (uint32_t i = 0; i < model->arch->activation_count && status == STATUS_OK; i++) {
		uint32_t width = model->dims[model->arch->activations[i]];

		if (!width) /* of a part that this model lacks */
			continue;
		status = ops->activation_alloc(model->backend, max_rows, width, &model->activations[i]);
		if (status)
			error_set(error, status, "cannot take an activation of %u × %u: %s", max_rows, width, status_text(status));
	}
	for (uint32_t i = 0; i < model->info.kv_group_count && status == STATUS_OK; i++) {
		struct kv_group_desc group = model->info.kv_groups[i];

		group.block_size = block_size;
		group.blocks = blocks;
		status = ops->kv_alloc(model->backend, i, &group, error);
	}
	if (status)
		return status;
	model->max_rows = max_rows;
	model->max_logit_rows = max_logit_rows;
	return ops->rehearsal ? rehearse(model, block_size, error) : STATUS_OK;
}

enum status model_forward(struct model *model, const struct batch *batch)
{
	const struct backend_ops *ops = model->backend->ops;
	int                       done = 0;
	enum status               status;

	if (batch->rows < 1 || batch->rows > model->max_rows || batch->logit_row_count > model->max_logit_rows)
		return STATUS_INVALID;
	status = ops->step_begin(model->backend, batch);
	model->kept_rows[0] = status ? 0 : batch->rows;
	if (status || !ops->forward_begin)
		return status ? status : model->arch->forward(model, batch);
	status = ops->forward_begin(model->backend, model, &done);
	if (status || done)
		return status;
	return ops->forward_end(model->backend, model->arch->forward(model, batch));
}

enum status model_draft(struct model *model, const struct batch *batch, const int32_t *hidden_rows, bool first)
{
	enum status status;

	if (!model->info.draft_layers)
		return STATUS_UNSUPPORTED;
	if (batch->rows < 1 || batch->rows > model->max_rows || batch->logit_row_count > model->max_logit_rows)
		return STATUS_INVALID;
	for (uint32_t row = 0; row < batch->rows; row++)
		if (hidden_rows[row] < 0 || (uint32_t)hidden_rows[row] >= model->kept_rows[first ? 0 : 1])
			return STATUS_INVALID;
	status = model->backend->ops->step_begin(model->backend, batch);
	status = status ? status : model->arch->draft(model, batch, hidden_rows, first);
	model->kept_rows[1] = status ? 0 : batch->rows;
	return status;
}

void model_positions(const struct model *model, const int32_t *tokens, uint32_t count, int32_t *ret)
{
	int32_t next = 0;

	for (uint32_t i = 0; i < count; i++)
		ret[i] = model->info.pad >= 0 && tokens[i] == model->info.pad ? -1 : next++;
}
