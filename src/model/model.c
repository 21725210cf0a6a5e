/* model.c: owns a loaded model: which tensor went where, the scratch of a step, and the call of forward().  Does not
 * own the mathematics (arch/, backend).  Invariant: a model that was returned has used every tensor of its file
 * exactly once, each with the shape its architecture expects. */
#include "model/arch.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_TEXT_MAX = 256 };

static enum status find_arch(const struct gguf *gguf, struct model *model, struct error *error)
{
	const char *name;
	char        known[NAMES_TEXT_MAX] = "";
	size_t      length, at = 0;
	enum status status = gguf_get_string(gguf, "general.architecture", &name, &length, error);

	if (status == STATUS_NOT_FOUND)
		return error_set(error, STATUS_INVALID, "the file lacks general.architecture");
	if (status)
		return status;
	for (size_t i = 0; i < model_arch_count; i++) {
		if (strlen(model_archs[i]->name) == length && memcmp(model_archs[i]->name, name, length) == 0) {
			model->arch = model_archs[i];
			snprintf(model->info.architecture, sizeof model->info.architecture, "%s", model_archs[i]->name);
			return STATUS_OK;
		}
		if (at < sizeof known) {
			int n = snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", model_archs[i]->name);
			at += n > 0 ? (size_t)n : 0;
		}
	}
	return error_set(error, STATUS_UNSUPPORTED, "general.architecture = \"%.*s\" is not known; known are: %s",
	    length > 40 ? 40 : (int)length, name, known);
}

static bool format_of(enum gguf_type type, enum weight_format *ret)
{
	switch (type) {
	case GGUF_F32: *ret = WEIGHT_F32; return true;
	case GGUF_F16: *ret = WEIGHT_F16; return true;
	case GGUF_BF16: *ret = WEIGHT_BF16; return true;
	case GGUF_Q8_0: *ret = WEIGHT_Q8_0; return true;
	case GGUF_Q4_0: *ret = WEIGHT_Q4_0; return true;
	case GGUF_Q4_1: *ret = WEIGHT_Q4_1; return true;
	case GGUF_Q6_K: *ret = WEIGHT_Q6_K; return true;
	default: return false;
	}
}

/* The load in progress. */
struct loader {
	struct model              *model;
	const struct gguf         *gguf;
	const struct gguf_tensor **used; /* [used_count] */
	size_t                     used_count, used_capacity;
	struct error              *error;
};

static enum status mark_used(struct loader *loader, const struct gguf_tensor *tensor)
{
	if (loader->used_count == loader->used_capacity)
		return error_set(loader->error, STATUS_INTERNAL, "%s is used twice", tensor->name);
	loader->used[loader->used_count++] = tensor;
	return STATUS_OK;
}

static int compare_pointers(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)*(const void *const *)a, y = (uintptr_t)*(const void *const *)b;
	return x < y ? -1 : x > y;
}

/* Every tensor of the file must have been used, none twice. */
static enum status check_all_used(struct loader *loader)
{
	size_t count = gguf_tensor_count(loader->gguf);

	qsort(loader->used, loader->used_count, sizeof *loader->used, compare_pointers);
	for (size_t i = 1; i < loader->used_count; i++)
		if (loader->used[i] == loader->used[i - 1])
			return error_set(loader->error, STATUS_INTERNAL, "%s is used twice", loader->used[i]->name);
	for (size_t i = 0; i < count && loader->used_count != count; i++) {
		const struct gguf_tensor *tensor = gguf_tensor_at(loader->gguf, i);

		if (!bsearch(&tensor, loader->used, loader->used_count, sizeof *loader->used, compare_pointers))
			return error_set(loader->error, STATUS_UNSUPPORTED,
			    "tensor %s (%zu of %zu) has no place in a %s of %u layers",
			    tensor->name, i + 1, count, loader->model->info.architecture, loader->model->info.layers);
	}
	return STATUS_OK;
}

/* One tensor as part of a weight; *ret_found is false when it is absent. */
static enum status find_part(struct loader *loader, const struct model_weight *weight, const struct model_tensor *part,
    uint32_t layer, struct weight_desc *ret, bool *ret_found)
{
	const struct model       *model = loader->model;
	const struct gguf_tensor *tensor;
	uint64_t rows = part->rows == DIM_ONE ? 1 : model->dims[part->rows], columns = model->dims[weight->columns];
	char     name[GGUF_NAME_MAX + 1];
	enum weight_format format;

	if (weight->per_layer)
		snprintf(name, sizeof name, "blk.%u.%s", layer, part->name);
	else
		snprintf(name, sizeof name, "%s", part->name);
	tensor = gguf_tensor_find(loader->gguf, name);
	*ret_found = tensor != NULL;
	if (!tensor)
		return STATUS_OK;
	/* A vector's length is its row count in the table: stacked biases differ in it. */
	if (weight->columns == DIM_ONE) {
		columns = rows;
		rows = 1;
	}
	if (tensor->n_dims < 1 || tensor->n_dims > 2 || tensor->dims[0] != columns || tensor->dims[1] != rows)
		return error_set(loader->error, STATUS_INVALID,
		    "%s is %" PRIu64 " × %" PRIu64 "%s, expected %" PRIu64 " × %" PRIu64, name,
		    tensor->dims[1], tensor->dims[0], tensor->n_dims > 2 ? " × …" : "", rows, columns);
	if (!format_of(tensor->type, &format))
		return error_set(loader->error, STATUS_UNSUPPORTED,
		    "%s is stored as %s (type %d); known are F32, F16, BF16, Q8_0, Q4_0, Q4_1 and Q6_K", name,
		    gguf_type_name(tensor->type), (int)tensor->type);
	*ret = (struct weight_desc){ .name = tensor->name, .format = format, .rows = rows, .columns = columns,
		.data = tensor->data, .bytes = tensor->bytes };
	return mark_used(loader, tensor);
}

static enum status load_weight(struct loader *loader, uint32_t index, uint32_t layer)
{
	struct model              *model = loader->model;
	const struct backend_ops  *ops = model->backend->ops;
	const struct model_weight *weight = &model->arch->weights[index];
	struct weight_desc         parts[MODEL_PARTS_MAX];
	struct backend_weight    **place = &model->weights[(size_t)index * model->info.layers + layer];
	uint32_t                   count = 0, found = 0;
	enum status                status;

	for (; count < MODEL_PARTS_MAX && weight->parts[count].name; count++) {
		bool there;

		status = find_part(loader, weight, &weight->parts[count], layer, &parts[found], &there);
		if (status)
			return status;
		if (!there && (!weight->optional || found))
			return error_set(loader->error, STATUS_INVALID, "the file lacks tensor %s%s (layer %u of %u)",
			    weight->per_layer ? "blk.N." : "", weight->parts[count].name, layer, model->info.layers);
		found += there;
		if (there && found <= count)
			return error_set(loader->error, STATUS_INVALID, "the file has %s but lacks %s", parts[found - 1].name,
			    weight->parts[0].name);
	}
	if (found == 0)
		return STATUS_OK;
	status = ops->weight_load(model->backend, parts, found, place, loader->error);
	if (status)
		return status;
	for (uint32_t i = 0; i < found; i++)
		model->info.parameters += parts[i].rows * parts[i].columns;
	model->info.weight_bytes += ops->weight_bytes(model->backend, *place);
	return STATUS_OK;
}

static enum status load_weights(struct loader *loader)
{
	struct model             *model = loader->model;
	const struct gguf_tensor *factors = gguf_tensor_find(loader->gguf, "rope_freqs.weight");
	enum status               status = factors ? mark_used(loader, factors) : STATUS_OK; /* by rope_read */

	for (uint32_t index = 0; index < model->arch->weight_count && status == STATUS_OK; index++) {
		uint32_t layers = model->arch->weights[index].per_layer ? model->info.layers : 1;

		for (uint32_t layer = 0; layer < layers && status == STATUS_OK; layer++)
			status = load_weight(loader, index, layer);
	}
	return status ? status : check_all_used(loader);
}

enum status model_load(const struct gguf *gguf, struct backend *backend, struct model **ret, struct error *error)
{
	struct model *model = calloc(1, sizeof *model);
	struct loader loader = { .model = model, .gguf = gguf, .error = error };
	enum status   status;

	if (!model)
		return error_set(error, STATUS_NOMEM, "out of memory for the model");
	model->backend = backend;
	status = find_arch(gguf, model, error);
	if (status == STATUS_OK)
		status = model->arch->read(model, gguf, error);
	if (status)
		goto fail;
	loader.used_capacity = gguf_tensor_count(gguf) + 1;
	loader.used = calloc(loader.used_capacity, sizeof *loader.used);
	model->weights = calloc((size_t)model->arch->weight_count * model->info.layers, sizeof *model->weights);
	if (!loader.used || !model->weights) {
		status = error_set(error, STATUS_NOMEM, "out of memory for the weight table");
		goto fail;
	}
	status = load_weights(&loader);
	if (status)
		goto fail;
	free(loader.used);
	*ret = model;
	return STATUS_OK;
fail:
	free(loader.used);
	model_free(model);
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
	struct backend_limits limits = { .rows = max_rows, .logit_rows = max_logit_rows, .vocab = model->info.vocab,
		.q_heads = model->heads, .head_dim = model->head_dim };

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
