/* model.c: owns a loaded model: which architecture it is, the scratch of a step, and the call of forward().  Does not own
 * the loading of tensors (load.c) nor the mathematics (arch/, backend).  Invariant: a model that was returned has every
 * weight its architecture needs. */
#include "model/arch.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_TEXT_MAX = 256 };

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
	if (status)
		return status;
	model->weights = calloc((size_t)model->arch->weight_count * model->info.layers, sizeof *model->weights);
	return model->weights ? STATUS_OK : error_set(error, STATUS_NOMEM, "out of memory for the weight table");
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
	for (size_t i = 0; model->weights && i < (size_t)model->arch->weight_count * model->info.layers; i++)
		if (model->weights[i])
			model->backend->ops->weight_free(model->backend, model->weights[i]);
	free(model->weights);
	free(model->rope.frequencies);
	free(model);
}

const struct model_info *model_info(const struct model *model) { return &model->info; }

static struct backend_limits limits_of(const struct model *model, uint32_t max_rows, uint32_t max_logit_rows)
{
	struct backend_limits limits = { .rows = max_rows, .logit_rows = max_logit_rows,
		.vocab = model->info.encoder ? 1 : model->info.vocab, .q_heads = model->heads, .head_dim = model->head_dim };

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
		if (!checked_add_u64(bytes, ops->activation_bytes(model->backend, max_rows,
		    model->dims[model->arch->activations[i]]), &bytes))
			return UINT64_MAX;
	return bytes;
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
	return STATUS_OK;
}

enum status model_forward(struct model *model, const struct batch *batch)
{
	enum status status;

	if (batch->rows < 1 || batch->rows > model->max_rows || batch->logit_row_count > model->max_logit_rows)
		return STATUS_INVALID;
	status = model->backend->ops->step_begin(model->backend, batch);
	return status ? status : model->arch->forward(model, batch);
}

void model_positions(const struct model *model, const int32_t *tokens, uint32_t count, int32_t *ret)
{
	int32_t next = 0;

	for (uint32_t i = 0; i < count; i++)
		ret[i] = model->info.pad >= 0 && tokens[i] == model->info.pad ? -1 : next++;
}
