/* load.c: owns the way of tensors from a checkpoint to the backend: names, shapes, stored formats, what must be there.
 * Does not own hyper-parameters (arch/, hparam.c) nor the ledger of tensors (file/checkpoint.c).  Invariant: after a load
 * without an error every tensor of the source was taken exactly once, each with the shape its architecture expects.
 *
 * Matrices that do not fit into memory stay in their files and are read as they are needed, where the backend can do that:
 * first those of experts, of which a token needs few, then all. */
#include "base/floats.h"
#include "model/arch.h"
#include "model/quant.h"
#include "model/weight.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSOR_NAME_MAX = 256 };
#define MEMORY_SHARE 0.85 /* of what is available, to weights that are copied: the rest is for the cache and scratch */

/* The load in progress. */
struct loader {
	struct model  *model;
	struct quant   quant;
	model_problem *problem; /* NULL: the first error ends it */
	void          *context;
	bool           map_experts, map_all;
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

/* Which of a weight's many. */
struct spot {
	uint32_t layer, expert;
};

/* The name in the source of what the table calls NAME; false when that would be too long. */
static bool full_name(const struct loader *loader, const char *name, enum model_place place, struct spot spot,
    char ret[TENSOR_NAME_MAX])
{
	const struct model_arch *arch = loader->model->arch;
	const char              *layers = spelled(loader, arch->layers.hub, arch->layers.gguf);
	int length = place == WEIGHT_MODEL ? snprintf(ret, TENSOR_NAME_MAX, "%s", name) :
	    place == WEIGHT_LAYER ? snprintf(ret, TENSOR_NAME_MAX, "%s%u.%s", layers, spot.layer, name) :
	    snprintf(ret, TENSOR_NAME_MAX, "%s%u.%s%u.%s", layers, spot.layer, spelled(loader, arch->experts.hub, arch->experts.gguf),
	        spot.expert, name);

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

/* Takes the tensor NAME of all experts, of which that of SPOT is used. */
static enum status take_slice(struct loader *loader, const char *name, struct spot spot, uint64_t rows, uint64_t columns,
    struct weight_desc *ret)
{
	return quant_take_slice(loader->model->source.checkpoint, &loader->quant, name, spot.expert,
	    loader->model->moe.router.experts, rows, columns, ret, loader->error);
}

/* Finds the parts of a weight.  *ret_count is 0 when it is optional and not there. */
static enum status take_parts(struct loader *loader, const struct model_weight *weight, bool required, struct spot spot,
    struct weight_desc ret[MODEL_PARTS_MAX], uint32_t *ret_count)
{
	struct model      *model = loader->model;
	struct checkpoint *checkpoint = model->source.checkpoint;
	const char        *whole = spelled(loader, weight->whole.hub, weight->whole.gguf);
	uint64_t           columns = weight->columns == DIM_ONE ? 0 : model->whole[weight->columns], rows = 0;
	char               name[MODEL_PARTS_MAX][TENSOR_NAME_MAX], whole_name[TENSOR_NAME_MAX] = "";
	uint32_t           count = 0, spellings = 0, found = 0;
	enum model_place   whole_place = weight->place == WEIGHT_EXPERT ? WEIGHT_LAYER : weight->place;
	bool               fits = !whole || full_name(loader, whole, whole_place, spot, whole_name);
	enum status        status = STATUS_OK;

	for (; count < MODEL_PARTS_MAX && weight->parts[count].rows != DIM_NONE; count++) {
		const struct model_part *part = &weight->parts[count];
		const char              *short_name = spelled(loader, part->hub, part->gguf);

		rows += model->whole[part->rows];
		if (!short_name)
			continue;
		fits = full_name(loader, short_name, weight->place, spot, name[spellings]) && fits;
		found += fits && quant_has(checkpoint, name[spellings]);
		spellings++;
	}
	if (!fits)
		return error_set(loader->error, STATUS_LIMIT, "a tensor name of %s is over %d bytes", model->info.architecture,
		    TENSOR_NAME_MAX - 1);
	*ret_count = 0;
	if (whole && (quant_has(checkpoint, whole_name) || (required && spellings == 0))) {
		status = weight->place == WEIGHT_EXPERT ? take_slice(loader, whole_name, spot, rows, columns, &ret[0]) :
		    take(loader, whole_name, rows, columns, &ret[0]);
		*ret_count = status ? 0 : 1;
		return status;
	}
	if (!found && !required)
		return STATUS_OK;
	if (spellings < count) /* this spelling has no name for it */
		return required ? error_set(loader->error, STATUS_UNSUPPORTED, "%s: the file cannot hold weight %s",
		    model->info.architecture, weight->parts[0].hub ? weight->parts[0].hub : weight->parts[0].gguf) : STATUS_OK;
	for (uint32_t i = 0; i < count && !status; i++)
		status = take(loader, name[i], model->whole[weight->parts[i].rows], columns, &ret[i]);
	*ret_count = status ? 0 : count;
	return status;
}

/* Whether all values are numbers; every tensor of a weight is told about. */
static enum status check_values(struct loader *loader, const struct weight_desc *parts, uint32_t count)
{
	struct weight_fault fault;
	enum status         status = STATUS_OK;

	for (uint32_t i = 0; i < count && !status; i++) {
		if (!weight_find_fault(&parts[i], &fault))
			continue;
		status = tell(loader, error_set(loader->error, STATUS_INVALID,
		    "tensor %.200s: %s as the %s at row %llu, column %llu (%llu of %llu values are NaN or infinite)", parts[i].name,
		    fault.nan ? "NaN" : "infinity", fault.scale ? "scale" : "value",
		    (unsigned long long)fault.row, (unsigned long long)fault.column, (unsigned long long)fault.count,
		    (unsigned long long)(parts[i].rows * parts[i].columns)));
	}
	return status;
}

/* Makes of DESC, a tensor whose rows from BEFORE on are those of PART, a window on this rank's share of them. */
static void cut_part(const struct model *model, const struct model_weight *weight, const struct model_part *part,
    uint64_t before, struct weight_desc *desc)
{
	bool     by_rows = weight->shard == SHARD_ROW || weight->shard == SHARD_HEAD;
	uint64_t rows = by_rows ? model->dims[part->rows] : model->whole[part->rows];
	uint64_t first = before + (by_rows ? model->first[part->rows] : 0);

	desc->stored_rows = desc->rows;
	desc->stored_columns = desc->columns;
	if (weight->columns == DIM_ONE) {
		desc->first_column = first;
		desc->columns = rows;
		return;
	}
	desc->first_row = first;
	desc->rows = rows;
	if (weight->shard != SHARD_COLUMN)
		return;
	desc->first_column = model->first[weight->columns];
	desc->columns = model->dims[weight->columns];
	desc->input_over_ranks = 1;
}

/* This rank's share of the parts of a weight: a tensor that holds all of them becomes as many windows.  *RET_COUNT may
 * become 0: a bias of sums over ranks is the first one's. */
static void cut_parts(const struct model *model, const struct model_weight *weight,
    struct weight_desc parts[MODEL_PARTS_MAX], uint32_t *ret_count)
{
	struct weight_desc tensor = parts[0];
	uint32_t           count = 0;
	uint64_t           before = 0;

	if (weight->shard == SHARD_COLUMN && weight->columns == DIM_ONE) {
		*ret_count = model->backend->rank == 0 ? *ret_count : 0;
		return;
	}
	for (; count < MODEL_PARTS_MAX && weight->parts[count].rows != DIM_NONE; count++) {
		bool fused = *ret_count == 1;

		parts[count] = fused ? tensor : parts[count];
		cut_part(model, weight, &weight->parts[count], before, &parts[count]);
		before += fused ? model->whole[weight->parts[count].rows] : 0;
	}
	*ret_count = count;
}

/* ---- Weights that are made up ---- */

/* What the table says of a weight, without values; of what a layer multiplies by the configuration says what it is. */
static uint32_t dummy_parts(const struct loader *loader, const struct model_weight *weight, struct weight_desc ret[MODEL_PARTS_MAX])
{
	const struct model *model = loader->model;
	uint32_t            count = 0;

	for (; count < MODEL_PARTS_MAX && weight->parts[count].rows != DIM_NONE; count++) {
		const struct model_part *part = &weight->parts[count];
		uint64_t                 rows = model->dims[part->rows];
		bool                     vector = weight->columns == DIM_ONE;

		ret[count] = (struct weight_desc){ .name = part->hub ? part->hub : weight->whole.hub, .format = WEIGHT_BF16,
			.rows = vector ? 1 : rows, .columns = vector ? rows : model->dims[weight->columns] };
		if (!vector && weight->place != WEIGHT_MODEL && model->backend->ops->weight_dummy)
			quant_describe(&loader->quant, &ret[count]);
	}
	return count;
}

/* For backends without a way of their own: bfloat16 between −a and a, or around 1 for a vector. */
static enum status dummy_values(struct weight_desc *part, uint32_t seed, struct error *error)
{
	size_t    count = part->rows * part->columns; /* dims are small enough to multiply */
	uint16_t *values = malloc(count * sizeof *values);
	uint64_t  state = seed;
	float     size = part->rows == 1 ? 0.25f : 1.7f / sqrtf((float)part->columns);

	if (!values)
		return error_set(error, STATUS_NOMEM, "%s: out of memory for %zu random values", part->name, count);
	for (size_t i = 0; i < count; i++) {
		float value;

		state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		value = ((float)(state >> 40) * 0x1p-23f - 1) * size + (part->rows == 1 ? 1 : 0);
		values[i] = (uint16_t)(floats_to_bits(value) >> 16);
	}
	part->data = values;
	part->bytes = count * sizeof *values;
	return STATUS_OK;
}

/* Whether this rank has it: of experts some are others'. */
static bool is_ours(const struct model *model, const struct model_weight *weight, struct spot spot)
{
	return weight->place != WEIGHT_EXPERT || spot.expert - model->moe.first < model->moe.count;
}

static enum status load_dummy(struct loader *loader, uint32_t index, struct spot spot, struct backend_weight **place)
{
	struct model              *model = loader->model;
	const struct backend_ops  *ops = model->backend->ops;
	const struct model_weight *weight = &model->arch->weights[index];
	struct weight_desc         parts[MODEL_PARTS_MAX];
	uint32_t                   count = dummy_parts(loader, weight, parts);
	uint32_t                   seed = (spot.layer + 1) * MODEL_EXPERTS_MAX + spot.expert;
	enum status                status = STATUS_OK;

	if ((weight->optional && !(model->required >> index & 1)) || !is_ours(model, weight, spot))
		return STATUS_OK;
	if (ops->weight_dummy)
		status = ops->weight_dummy(model->backend, parts, count, place, loader->error);
	else {
		for (uint32_t i = 0; i < count && !status; i++)
			status = dummy_values(&parts[i], index * 2654435761u + seed + i, loader->error);
		if (!status)
			status = ops->weight_load(model->backend, parts, count, place, loader->error);
		for (uint32_t i = 0; i < count; i++)
			free((void *)parts[i].data);
	}
	if (status)
		return status;
	for (uint32_t i = 0; i < count; i++)
		model->info.parameters += parts[i].rows * parts[i].columns;
	model->info.weight_bytes += ops->weight_bytes(model->backend, *place);
	return STATUS_OK;
}

/* ---- Weights of a checkpoint ---- */

/* Onto the backend, or, where it stays in its file, noted there. */
static enum status place_parts(struct loader *loader, const struct model_weight *weight, const struct weight_desc *parts,
    uint32_t count, struct backend_weight **place)
{
	struct model             *model = loader->model;
	const struct backend_ops *ops = model->backend->ops;
	bool                      wanted = loader->map_all || (loader->map_experts && weight->place == WEIGHT_EXPERT);
	bool                      map = wanted && parts[0].rows > 1;
	enum status               status = map ? ops->weight_map(model->backend, parts, count, place, loader->error) :
	    ops->weight_load(model->backend, parts, count, place, loader->error);

	if (status)
		return status;
	for (uint32_t i = 0; i < count; i++) {
		model->info.parameters += parts[i].rows * parts[i].columns;
		model->info.mapped_bytes += map ? parts[i].bytes : 0;
		if (map)
			continue;
		checkpoint_release(model->source.checkpoint, parts[i].data, parts[i].bytes);
		checkpoint_release(model->source.checkpoint, parts[i].scales.data, parts[i].scales.bytes);
		checkpoint_release(model->source.checkpoint, parts[i].zeros.data, parts[i].zeros.bytes);
	}
	model->info.weight_bytes += ops->weight_bytes(model->backend, *place);
	return STATUS_OK;
}

static enum status load_weight(struct loader *loader, uint32_t index, struct spot spot, struct backend_weight **place)
{
	struct model              *model = loader->model;
	const struct model_weight *weight = &model->arch->weights[index];
	struct weight_desc         parts[MODEL_PARTS_MAX];
	bool                       required = !weight->optional || model->required >> index & 1;
	uint32_t                   count = 0;
	enum status status = take_parts(loader, weight, required, spot, parts, &count);

	for (uint32_t i = 0; i < count && weight->by_rows && !status; i++)
		if (parts[i].group_index)
			status = error_set(loader->error, STATUS_UNSUPPORTED, "tensor %.200s has groups of columns in an order of their own "
			    "(act-order, g_idx), which %s does not read in this weight", parts[i].name, model->info.architecture);
	if (!status && model->source.check_weights && model->backend->rank == 0)
		status = check_values(loader, parts, count);
	if (status || !count || !is_ours(model, weight, spot))
		return status;
	if (model->backend->ranks > 1 && weight->place != WEIGHT_EXPERT)
		cut_parts(model, weight, parts, &count);
	return count ? place_parts(loader, weight, parts, count, place) : STATUS_OK;
}

/* What a layer need not have, and a file may hold. */
static enum status skip_surplus(struct loader *loader, const struct model_weight *weight, struct spot spot)
{
	struct weight_desc parts[MODEL_PARTS_MAX];
	uint32_t           count;

	return weight->surplus && !loader->model->source.dummy ? take_parts(loader, weight, false, spot, parts, &count) : STATUS_OK;
}

/* All of weight INDEX. */
static enum status load_weights(struct loader *loader, uint32_t index)
{
	struct model              *model = loader->model;
	const struct model_weight *weight = &model->arch->weights[index];
	uint32_t                   layers = weight->place == WEIGHT_MODEL ? 1 : model->layers;
	uint32_t                   experts = weight->place == WEIGHT_EXPERT ? model->moe.router.experts : 1;
	enum status                status = STATUS_OK;

	for (uint32_t layer = 0; layer < layers && !status; layer++) {
		bool there = !weight->traits || (model->traits && (model->traits[layer] & weight->traits) == weight->traits);

		for (uint32_t expert = 0; expert < experts && !status; expert++) {
			struct spot             spot = { layer, expert };
			struct backend_weight **place = &model->weights[model->place[index] + (size_t)layer * experts + expert];

			status = tell(loader, !there ? skip_surplus(loader, weight, spot) :
			    model->source.dummy ? load_dummy(loader, index, spot, place) : load_weight(loader, index, spot, place));
		}
	}
	return status;
}

/* ---- What stays in its file ---- */

static uint64_t bytes_of_experts(const struct model *model)
{
	const struct checkpoint *checkpoint = model->source.checkpoint;
	const char              *experts = model->arch->experts.hub;
	uint64_t                 bytes = 0;

	for (size_t i = 0; experts && i < checkpoint_count(checkpoint); i++)
		bytes += strstr(checkpoint_at(checkpoint, i)->name, experts) ? checkpoint_at(checkpoint, i)->bytes : 0;
	return bytes;
}

/* Weights take about as much in memory as in their files. */
static void choose_mapped(struct loader *loader)
{
	struct model             *model = loader->model;
	const struct backend_ops *ops = model->backend->ops;
	struct backend_memory     memory;
	uint64_t                  experts, all = 0;
	double                    room;

	if (!ops->weight_map || model_is_gguf(model) || model->source.dummy || ops->memory(model->backend, &memory))
		return;
	for (size_t i = 0; i < checkpoint_count(model->source.checkpoint); i++)
		all += checkpoint_at(model->source.checkpoint, i)->bytes;
	experts = bytes_of_experts(model);
	room = MEMORY_SHARE * (double)memory.available * (model->backend->ranks > 1 ? model->backend->ranks : 1);
	loader->map_all = model->source.map_weights || (double)(all - experts) > room;
	loader->map_experts = loader->map_all || (double)all > room;
	if (loader->map_experts)
		model->mapped = checkpoint_share(model->source.checkpoint);
}

/* Scales of a quantised KV cache, which the cache here is not, and what old files hold though it follows from config.json. */
static const struct model_ignored unused[] = {
	{ "self_attn.rotary_emb.inv_freq", WEIGHT_LAYER },
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
		for (uint32_t layer = 0; !status && layer < (ignored->place == WEIGHT_LAYER ? loader->model->layers : 1); layer++) {
			struct spot spot = { layer, 0 };

			if (full_name(loader, ignored->name, ignored->place, spot, name) && checkpoint_find(checkpoint, name))
				status = checkpoint_take(checkpoint, name, &tensor, loader->error);
		}
	return status;
}

/* Layers that draft and are not used. */
static enum status take_drafts(struct loader *loader)
{
	const struct model             *model = loader->model;
	const char                     *prefix = model->arch->layers.hub;
	struct checkpoint              *checkpoint = model->source.checkpoint;
	const struct checkpoint_tensor *tensor;
	enum status                     status = STATUS_OK;

	for (size_t i = 0; model->arch->draft && i < checkpoint_count(checkpoint) && !status; i++) {
		const char   *name = checkpoint_at(checkpoint, i)->name;
		char         *end;
		unsigned long layer;

		if (checkpoint_taken(checkpoint, i) || strncmp(name, prefix, strlen(prefix)) != 0)
			continue;
		layer = strtoul(name + strlen(prefix), &end, 10);
		if (*end == '.' && layer >= model->layers)
			status = checkpoint_take(checkpoint, name, &tensor, loader->error);
	}
	return status;
}

static bool is_zero(const struct checkpoint_tensor *tensor)
{
	const uint8_t *bytes = tensor->data;
	size_t         i = 0;

	while (i < tensor->bytes && !bytes[i])
		i++;
	return i == tensor->bytes;
}

/* GPTQ's writers give every layer they quantise a bias, of zeros where the model has none. */
static enum status take_empty_biases(struct loader *loader)
{
	static const char               ending[] = ".bias", sibling_ending[] = ".qweight";
	struct checkpoint              *checkpoint = loader->model->source.checkpoint;
	const struct checkpoint_tensor *tensor;
	char                            sibling[TENSOR_NAME_MAX];
	enum status                     status = STATUS_OK;

	for (size_t i = 0; i < checkpoint_count(checkpoint) && !status; i++) {
		size_t length = strlen(checkpoint_at(checkpoint, i)->name), base = length - (sizeof ending - 1);

		tensor = checkpoint_at(checkpoint, i);
		if (checkpoint_taken(checkpoint, i) || length < sizeof ending || base + sizeof sibling_ending > sizeof sibling ||
		    strcmp(tensor->name + base, ending) != 0)
			continue;
		snprintf(sibling, sizeof sibling, "%.*s%s", (int)base, tensor->name, sibling_ending);
		if (checkpoint_find(checkpoint, sibling) && is_zero(tensor))
			status = checkpoint_take(checkpoint, tensor->name, &tensor, loader->error);
	}
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

/* What cuts of COLUMNS must not go through, in any layer. */
static struct rank_units find_units(struct loader *loader, enum model_dim columns, char name[TENSOR_NAME_MAX])
{
	const struct model *model = loader->model;
	struct rank_units   units = { 1, 1, name };
	char                its[TENSOR_NAME_MAX];

	*name = '\0';
	for (uint32_t i = 0; i < model->arch->weight_count; i++) {
		const struct model_weight *weight = &model->arch->weights[i];
		const char                *short_name = spelled(loader, weight->parts[0].hub, weight->parts[0].gguf);

		if (weight->shard != SHARD_COLUMN || weight->columns != columns || !short_name)
			continue;
		for (uint32_t layer = 0; layer < (weight->place == WEIGHT_LAYER ? model->layers : 1); layer++) {
			struct spot spot = { layer, 0 };
			uint64_t    wanted, needed;

			if (!full_name(loader, short_name, weight->place, spot, its))
				continue;
			quant_units(model->source.checkpoint, &loader->quant, its, model->dims[columns], &wanted, &needed);
			if (!*name || wanted > units.wanted || needed > units.needed)
				memcpy(name, its, TENSOR_NAME_MAX);
			/* Blocks are powers of two, so that the largest will do; whole groups are but a wish. */
			units.wanted = wanted > units.wanted ? wanted : units.wanted;
			units.needed = needed > units.needed ? needed : units.needed;
		}
	}
	return units;
}

/* What a step of one token does not read: an embedding table beside an output matrix is read row by row; a token goes to
 * few experts; layers that draft have steps of their own. */
static uint64_t idle_bytes(const struct model *model)
{
	const struct backend_weight *first = NULL, *second = NULL;
	double                       bytes = 0, idle_experts = 0;

	if (model->moe.router.experts)
		idle_experts = 1 - (double)model->moe.router.top_k / model->moe.router.experts;
	for (uint32_t i = 0; i < model->arch->weight_count; i++) {
		const struct model_weight *weight = &model->arch->weights[i];
		size_t                     each = weight->place == WEIGHT_EXPERT ? model->moe.router.experts : 1;

		if (weight->place == WEIGHT_MODEL && weight->parts[0].rows == DIM_VOCAB && weight->columns == DIM_WIDTH && !second)
			*(first ? &second : &first) = model_weight_at(model, i, 0);
		for (size_t at = model->place[i]; weight->place != WEIGHT_MODEL && at < model->place[i + 1]; at++) {
			uint32_t layer = (uint32_t)((at - model->place[i]) / each);

			if (model->weights[at])
				bytes += (layer >= model->info.layers ? 1 : weight->place == WEIGHT_EXPERT ? idle_experts : 0) *
				    (double)model->backend->ops->weight_bytes(model->backend, model->weights[at]);
		}
	}
	return (uint64_t)bytes + (first && second ? model->backend->ops->weight_bytes(model->backend, first) : 0);
}

enum status model_load_weights(struct model *model, model_problem *problem, void *context, struct error *error)
{
	struct loader loader = { .model = model, .problem = problem, .context = context, .error = error };
	char          names[3][TENSOR_NAME_MAX];
	enum status   status = STATUS_OK;

	if (model->source.config)
		status = quant_read(model->source.config, model->source.round_inputs, &loader.quant, error);
	if (!status && model->source.dummy) {
		struct rank_units any = { 1, 1, "" };
		status = rank_cut(model, &any, &any, &any, error);
	} else if (!status) {
		struct rank_units attention = find_units(&loader, model->latent.desc.heads ? DIM_VALUES : DIM_Q, names[0]);
		struct rank_units ffn = find_units(&loader, DIM_FFN, names[1]), shared = find_units(&loader, DIM_SHARED, names[2]);

		status = rank_cut(model, &attention, &ffn, &shared, error);
	}
	if (!status)
		choose_mapped(&loader);
	for (uint32_t index = 0; index < model->arch->weight_count && !status; index++)
		status = load_weights(&loader, index);
	if (!status)
		model->info.read_bytes = model->info.weight_bytes - idle_bytes(model);
	if (model->source.dummy)
		return status;
	if (!status)
		status = take_ignored(&loader, model->arch->ignored);
	if (!status)
		status = take_ignored(&loader, unused);
	if (!status)
		status = take_drafts(&loader);
	if (!status)
		status = take_empty_biases(&loader);
	if (!status)
		status = check_rest(&loader);
	return status ? status : loader.first;
}
