/* dry.c: owns the counting backend.  Does not own sizes: those are the real backend's.  Invariant: no value of a weight is
 * read, and no operation of a step exists. */
#include "tools/dry.h"

#include <stdio.h>
#include <stdlib.h>

struct backend_weight {
	uint64_t bytes;
};

struct dry {
	struct backend     base; /* first */
	struct backend_ops ops;
	struct backend    *real;
	struct dry_count   counts[WEIGHT_FORMAT_COUNT];
	dry_weight        *each; /* NULL: nobody watches */
	void              *context;
};

static inline const struct dry *of(const struct backend *b) { return (const struct dry *)b; }

static void destroy(struct backend *b) { free(b); }

static enum status memory(struct backend *b, struct backend_memory *ret)
{
	return of(b)->real->ops->memory(of(b)->real, ret);
}

static const char *describe(struct backend *b) { return of(b)->real->ops->describe(of(b)->real); }

static uint64_t stored_bytes(const struct weight_desc *part) { return part->bytes + part->scales.bytes + part->zeros.bytes; }

static enum status weight_size(struct backend *b, const struct weight_desc *parts, uint32_t count, uint64_t *ret,
    struct error *error)
{
	struct backend *real = of(b)->real;

	if (real->ops->weight_size)
		return real->ops->weight_size(real, parts, count, ret, error);
	*ret = 0;
	for (uint32_t i = 0; i < count; i++)
		*ret += stored_bytes(&parts[i]);
	return STATUS_OK;
}

static enum status weight_load(struct backend *b, const struct weight_desc *parts, uint32_t count,
    struct backend_weight **ret, struct error *error)
{
	struct dry            *dry = (struct dry *)b;
	struct backend_weight *w;
	uint64_t               bytes;
	enum status            status = weight_size(b, parts, count, &bytes, error);

	if (!status && dry->each)
		status = dry->each(dry->context, parts, count, error);
	if (status)
		return status;
	w = malloc(sizeof *w);
	if (!w)
		return error_set(error, STATUS_NOMEM, "out of memory");
	w->bytes = bytes;
	for (uint32_t i = 0; i < count; i++) {
		struct dry_count *counted = &dry->counts[parts[i].format];

		counted->weights++;
		counted->values += parts[i].rows * parts[i].columns;
		counted->bytes += stored_bytes(&parts[i]);
	}
	*ret = w;
	return STATUS_OK;
}

static void weight_free(struct backend *b, struct backend_weight *w)
{
	(void)b;
	free(w);
}

static uint64_t weight_bytes(const struct backend *b, const struct backend_weight *w)
{
	(void)b;
	return w->bytes;
}

static uint64_t activation_bytes(const struct backend *b, uint32_t rows, uint32_t width)
{
	return of(b)->real->ops->activation_bytes(of(b)->real, rows, width);
}

static uint64_t kv_bytes(const struct backend *b, const struct kv_group_desc *group)
{
	return of(b)->real->ops->kv_bytes(of(b)->real, group);
}

static uint64_t scratch_bytes(const struct backend *b, const struct backend_limits *limits)
{
	return of(b)->real->ops->scratch_bytes(of(b)->real, limits);
}

/* Never called: a model that was loaded dry does not run.  They say what kinds of models the real one computes. */
static enum status pool(struct backend *b, const struct activation *x)
{
	(void)b, (void)x;
	return STATUS_UNSUPPORTED;
}

static enum status experts(struct backend *b, const struct expert_desc *desc, const struct activation *x, struct activation *y)
{
	(void)b, (void)desc, (void)x, (void)y;
	return STATUS_UNSUPPORTED;
}

static enum status latent_attention(struct backend *b, const struct activation *q, uint32_t group, uint32_t layer,
    const struct latent_desc *latent, struct activation *y)
{
	(void)b, (void)q, (void)group, (void)layer, (void)latent, (void)y;
	return STATUS_UNSUPPORTED;
}

static enum status index_select(struct backend *b, const struct activation *q, const struct activation *weights,
    uint32_t group, uint32_t layer, const struct index_desc *index)
{
	(void)b, (void)q, (void)weights, (void)group, (void)layer, (void)index;
	return STATUS_UNSUPPORTED;
}

static enum status draft_input(struct backend *b, const struct activation *x, const struct backend_weight *w,
    const struct activation *hidden, const int32_t *rows, const struct backend_weight *hidden_w, float eps,
    struct activation *y)
{
	(void)b, (void)x, (void)w, (void)hidden, (void)rows, (void)hidden_w, (void)eps, (void)y;
	return STATUS_UNSUPPORTED;
}

enum status dry_create(struct backend *real, struct backend **ret, struct error *error)
{
	struct dry *dry = calloc(1, sizeof *dry);

	if (!dry)
		return error_set(error, STATUS_NOMEM, "out of memory");
	dry->real = real;
	dry->ops = (struct backend_ops){ .version = BACKEND_VERSION, .name = real->ops->name, .destroy = destroy,
		.memory = memory, .describe = describe, .weight_load = weight_load, .weight_size = weight_size,
		.weight_free = weight_free, .weight_bytes = weight_bytes, .activation_bytes = activation_bytes,
		.kv_bytes = kv_bytes, .scratch_bytes = scratch_bytes, .pool = real->ops->pool ? pool : NULL,
		.experts = real->ops->experts ? experts : NULL,
		.latent_attention = real->ops->latent_attention ? latent_attention : NULL,
		.index_select = real->ops->index_select ? index_select : NULL,
		.draft_input = real->ops->draft_input ? draft_input : NULL };
	dry->base.ops = &dry->ops;
	*ret = &dry->base;
	return STATUS_OK;
}

void dry_watch(struct backend *dry, dry_weight *each, void *context)
{
	((struct dry *)dry)->each = each;
	((struct dry *)dry)->context = context;
}

const struct dry_count *dry_counts(const struct backend *dry) { return of(dry)->counts; }

const char *dry_size(char ret[DRY_SIZE_MAX], uint64_t bytes)
{
	static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB" };
	double   value = (double)bytes / 1024;
	unsigned unit = 0;

	if (bytes < 1024) {
		snprintf(ret, DRY_SIZE_MAX, "%llu bytes", (unsigned long long)bytes);
		return ret;
	}
	for (; value >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++)
		value /= 1024;
	snprintf(ret, DRY_SIZE_MAX, "%.2f %s", value, units[unit]);
	return ret;
}
