/* load.c: owns the way of tensors from a checkpoint to the backend: names, shapes, stored formats, what must be there.
 * Does not own hyper-parameters (arch/, hparam.c) nor the ledger of tensors (file/checkpoint.c).  Invariant: after a load
 * without an error every tensor of the source was taken exactly once, each with the shape its architecture expects. */
#include "model/arch.h"
#include "model/quant.h"

#include <stdio.h>

enum { TENSOR_NAME_MAX = 256 };

/* The load in progress. */
struct loader {
	struct model  *model;
	struct quant   quant;
	model_problem *problem; /* NULL: the first error ends it */
	void          *context;
	enum status    first; /* error that was handed to problem */
	struct error  *error;
};

/* What to do about an error: end with it, or tell it and go on. */
static enum status tell(struct loader *loader, enum status status)
{
	if (!status || !loader->problem || status == STATUS_NOMEM)
		return status;
	loader->problem(loader->context, loader->error);
	loader->first = loader->first ? loader->first : status;
	return STATUS_OK;
}

static inline const char *spelled(const struct loader *loader, const char *hub, const char *gguf)
{
	return model_is_gguf(loader->model) ? gguf : hub;
}

/* The name in the source of what the table calls NAME; false when that would be too long. */
static bool full_name(const struct loader *loader, const char *name, enum model_place place, uint32_t layer,
    char ret[TENSOR_NAME_MAX])
{
	const struct model_name *layers = &loader->model->arch->layers;
	int length = place == WEIGHT_LAYER ?
	    snprintf(ret, TENSOR_NAME_MAX, "%s%u.%s", spelled(loader, layers->hub, layers->gguf), layer, name) :
	    snprintf(ret, TENSOR_NAME_MAX, "%s", name);

	return length >= 0 && length < TENSOR_NAME_MAX;
}

/* Takes a tensor, or those of a quantised one, of ROWS × COLUMNS; COLUMNS = 0: a vector of ROWS values. */
static enum status take(struct loader *loader, const char *name, uint64_t rows, uint64_t columns, struct weight_desc *ret)
{
	enum status status = quant_take(loader->model->source.checkpoint, &loader->quant, name, rows, columns, ret, loader->error);

	if (status == STATUS_NOT_FOUND) /* to whoever named the file, it is there and wrong */
		status = error_set(loader->error, STATUS_INVALID, "tensor %.200s is missing from a %s of %u layers", name,
		    loader->model->info.architecture, loader->model->info.layers);
	return status;
}

/* Finds the parts of a weight.  *ret_count is 0 when it is optional and not there. */
static enum status take_parts(struct loader *loader, const struct model_weight *weight, bool required, uint32_t layer,
    struct weight_desc ret[MODEL_PARTS_MAX], uint32_t *ret_count)
{
	struct model      *model = loader->model;
	struct checkpoint *checkpoint = model->source.checkpoint;
	const char        *whole = spelled(loader, weight->whole.hub, weight->whole.gguf);
	uint64_t           columns = weight->columns == DIM_ONE ? 0 : model->dims[weight->columns], rows = 0;
	char               name[MODEL_PARTS_MAX][TENSOR_NAME_MAX], whole_name[TENSOR_NAME_MAX] = "";
	uint32_t           count = 0, spellings = 0, found = 0;
	bool               fits = !whole || full_name(loader, whole, weight->place, layer, whole_name);
	enum status        status = STATUS_OK;

	for (; count < MODEL_PARTS_MAX && weight->parts[count].rows != DIM_NONE; count++) {
		const struct model_part *part = &weight->parts[count];
		const char              *short_name = spelled(loader, part->hub, part->gguf);

		rows += model->dims[part->rows];
		if (!short_name)
			continue;
		fits = full_name(loader, short_name, weight->place, layer, name[spellings]) && fits;
		found += fits && quant_has(checkpoint, name[spellings]);
		spellings++;
	}
	if (!fits)
		return error_set(loader->error, STATUS_LIMIT, "a tensor name of %s is over %d bytes", model->info.architecture,
		    TENSOR_NAME_MAX - 1);
	*ret_count = 0;
	if (whole && (quant_has(checkpoint, whole_name) || (required && spellings == 0))) {
		status = take(loader, whole_name, rows, columns, &ret[0]);
		*ret_count = status ? 0 : 1;
		return status;
	}
	if (!found && !required)
		return STATUS_OK;
	if (spellings < count) /* this spelling has no name for it */
		return required ? error_set(loader->error, STATUS_UNSUPPORTED, "%s: the file cannot hold weight %s",
		    model->info.architecture, weight->parts[0].hub ? weight->parts[0].hub : weight->parts[0].gguf) : STATUS_OK;
	for (uint32_t i = 0; i < count && !status; i++)
		status = take(loader, name[i], model->dims[weight->parts[i].rows], columns, &ret[i]);
	*ret_count = status ? 0 : count;
	return status;
}

static enum status load_weight(struct loader *loader, uint32_t index, uint32_t layer)
{
	struct model              *model = loader->model;
	const struct backend_ops  *ops = model->backend->ops;
	const struct model_weight *weight = &model->arch->weights[index];
	struct weight_desc         parts[MODEL_PARTS_MAX];
	struct backend_weight    **place = &model->weights[(size_t)index * model->info.layers + layer];
	bool                       required = !weight->optional || model->required >> index & 1;
	uint32_t                   count = 0;
	enum status status = take_parts(loader, weight, required, layer, parts, &count);

	if (!status && count)
		status = ops->weight_load(model->backend, parts, count, place, loader->error);
	if (status || !count)
		return status;
	for (uint32_t i = 0; i < count; i++) {
		model->info.parameters += parts[i].rows * parts[i].columns;
		checkpoint_release(model->source.checkpoint, parts[i].data, parts[i].bytes);
		checkpoint_release(model->source.checkpoint, parts[i].scales.data, parts[i].scales.bytes);
		checkpoint_release(model->source.checkpoint, parts[i].zeros.data, parts[i].zeros.bytes);
	}
	model->info.weight_bytes += ops->weight_bytes(model->backend, *place);
	return STATUS_OK;
}

/* Scales of a quantised KV cache: the cache here is not. */
static const struct model_ignored cache_scales[] = {
	{ "self_attn.k_scale", WEIGHT_LAYER }, { "self_attn.v_scale", WEIGHT_LAYER }, { "self_attn.q_scale", WEIGHT_LAYER },
	{ "self_attn.k_proj.k_scale", WEIGHT_LAYER }, { "self_attn.v_proj.v_scale", WEIGHT_LAYER },
	{ "self_attn.k_proj.output_scale", WEIGHT_LAYER }, { "self_attn.v_proj.output_scale", WEIGHT_LAYER },
	{ NULL, WEIGHT_MODEL },
};

/* Takes what is there and has no use. */
static enum status take_ignored(struct loader *loader, const struct model_ignored *ignored)
{
	struct checkpoint              *checkpoint = loader->model->source.checkpoint;
	const struct checkpoint_tensor *tensor;
	char                            name[TENSOR_NAME_MAX];
	enum status                     status = STATUS_OK;

	for (; ignored && ignored->name && !model_is_gguf(loader->model); ignored++)
		for (uint32_t layer = 0; !status && layer < (ignored->place == WEIGHT_LAYER ? loader->model->info.layers : 1); layer++)
			if (full_name(loader, ignored->name, ignored->place, layer, name) && checkpoint_find(checkpoint, name))
				status = checkpoint_take(checkpoint, name, &tensor, loader->error);
	return status;
}

static enum status check_rest(struct loader *loader)
{
	const struct checkpoint *checkpoint = loader->model->source.checkpoint;
	enum status              status = STATUS_OK;

	if (!loader->problem)
		return checkpoint_finish(checkpoint, loader->error);
	for (size_t i = 0; i < checkpoint_count(checkpoint) && !status; i++)
		if (!checkpoint_taken(checkpoint, i))
			status = tell(loader, error_set(loader->error, STATUS_INVALID, "tensor %.200s is not part of a %s of %u layers",
			    checkpoint_at(checkpoint, i)->name, loader->model->info.architecture, loader->model->info.layers));
	return status;
}

enum status model_load_weights(struct model *model, model_problem *problem, void *context, struct error *error)
{
	struct loader loader = { .model = model, .problem = problem, .context = context, .error = error };
	enum status   status = STATUS_OK;

	if (model->source.config)
		status = quant_read(model->source.config, model->source.round_inputs, &loader.quant, error);
	for (uint32_t index = 0; index < model->arch->weight_count && !status; index++) {
		uint32_t layers = model->arch->weights[index].place == WEIGHT_LAYER ? model->info.layers : 1;

		for (uint32_t layer = 0; layer < layers && !status; layer++)
			status = tell(&loader, load_weight(&loader, index, layer));
	}
	if (!status)
		status = take_ignored(&loader, model->arch->ignored);
	if (!status)
		status = take_ignored(&loader, cache_scales);
	if (!status)
		status = check_rest(&loader);
	return status ? status : loader.first;
}
