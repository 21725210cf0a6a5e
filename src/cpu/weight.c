/* weight.c: owns loaded weights: checks, re-packing into tiles, and the memory they lie in.  Does not own formats
 * (fmt_*.c).  Invariant: a weight that was returned has every part's size checked against its format, so kernels need
 * no checks. */
#include "cpu/cpu.h"

#include "base/checked.h"
#include "model/weight.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 64 << 20, CHUNK_SLACK = 64 /* kernels may load a few bytes past the last value */ };

/* Takes BYTES from the open chunk or from a new one. */
static bool chunk_take(struct cpu_backend *cpu, size_t bytes, struct cpu_part *part)
{
	struct cpu_chunk *chunk = cpu->chunk;
	uint64_t          aligned;

	if (!checked_align_up(bytes, FORMAT_ALIGN, &aligned) || !checked_add_u64(aligned, CHUNK_SLACK, &aligned))
		return false;
	if (!chunk || chunk->bytes - chunk->used < aligned) {
		chunk = calloc(1, sizeof *chunk);
		if (!chunk)
			return false;
		chunk->bytes = aligned > CHUNK_BYTES ? aligned : CHUNK_BYTES;
		chunk->data = cpu_pages_alloc(chunk->bytes, false); /* written at once below */
		if (!chunk->data) {
			free(chunk);
			return false;
		}
		/* A weight with a chunk of its own leaves the open one open. */
		if (aligned < CHUNK_BYTES) {
			if (cpu->chunk && cpu->chunk->users == 0) {
				cpu_pages_free(cpu->chunk->data, cpu->chunk->bytes);
				free(cpu->chunk);
			}
			cpu->chunk = chunk;
		}
	}
	part->data = chunk->data + chunk->used;
	part->chunk = chunk;
	chunk->used += aligned;
	chunk->users++;
	return true;
}

static void chunk_drop(struct cpu_backend *cpu, struct cpu_chunk *chunk)
{
	if (--chunk->users)
		return;
	if (chunk == cpu->chunk)
		cpu->chunk = NULL;
	cpu_pages_free(chunk->data, chunk->bytes);
	free(chunk);
}

static enum status check_part(const struct weight_desc *desc, uint32_t columns, struct error *error)
{
	enum status status = weight_check(desc, error);

	if (status)
		return status;
	if (!format_find(desc->format))
		return error_set(error, STATUS_UNSUPPORTED, "%s: the CPU backend does not compute with %s", desc->name,
		    weight_format_name(desc->format));
	if (desc->columns != columns)
		return error_set(error, STATUS_INVALID, "%s: %llu columns, the weights stacked with it have %u", desc->name,
		    (unsigned long long)desc->columns, columns);
	return STATUS_OK;
}

struct pack_job {
	const struct weight_desc *desc;
	struct format_layout      layout; /* of formats that have one */
	struct cpu_part          *part;
	uint32_t                  columns;
	_Atomic bool              failed; /* out of memory; read once all threads are done */
};

static uint32_t rows_of_tile(const struct cpu_part *part, uint32_t tile)
{
	uint32_t left = part->rows - tile * FORMAT_TILE;
	return left < FORMAT_TILE ? left : FORMAT_TILE;
}

/* Formats with scales that are kept as float32. */
static bool is_unpacked(const struct cpu_part *part, enum weight_format format)
{
	return weight_format_has_scales(format) && !part->format->pack_from;
}

static size_t unpacked_bytes(const struct cpu_part *part, enum weight_format format, uint32_t columns)
{
	return is_unpacked(part, format) ? FORMAT_TILE * sizeof(float) * columns : 0;
}

/* Makes tile TILE of DESC in DATA, which holds zeros.  VALUES has room for unpacked_bytes. */
static void pack_tile(const struct weight_desc *desc, const struct format_layout *layout, const struct cpu_part *part,
    uint32_t columns, uint32_t tile, float *values, uint8_t *data)
{
	const bool     unpacked = is_unpacked(part, desc->format);
	uint32_t       first = tile * FORMAT_TILE;
	const uint8_t *rows[FORMAT_TILE] = { NULL };

	if (part->format->pack_from) {
		part->format->pack_from(data, layout, desc, part->input->order, first, rows_of_tile(part, tile));
		return;
	}
	for (uint32_t i = 0; i < rows_of_tile(part, tile); i++) {
		if (unpacked)
			weight_read_row(desc, first + i, values + (size_t)i * columns);
		rows[i] = unpacked ? (const uint8_t *)(values + (size_t)i * columns) : weight_row(desc, first + i);
	}
	part->format->pack(data, rows, columns);
}

static void pack_tiles(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	struct pack_job       *job = context;
	const struct cpu_part *part = job->part;
	size_t                 bytes = unpacked_bytes(part, job->desc->format, job->columns);
	float                 *values = bytes ? malloc(bytes) : NULL;

	(void)thread;
	if (bytes && !values) {
		job->failed = true;
		return;
	}
	for (uint32_t tile = first; tile < first + count; tile++)
		pack_tile(job->desc, &job->layout, part, job->columns, tile, values, part->data + tile * part->tile_bytes);
	free(values);
}

void cpu_weight_make_tile(const struct cpu_part *part, uint32_t columns, uint32_t tile, uint8_t *data)
{
	size_t bytes = (part->tile_bytes + CHUNK_SLACK + FORMAT_ALIGN - 1) / FORMAT_ALIGN * FORMAT_ALIGN;

	memset(data, 0, bytes);
	pack_tile(part->mapped, &part->layout, part, columns, tile, (float *)(data + bytes), data);
}

/* The input of a new part: that of an earlier one, if it is the same.  Takes ORDER. */
static const struct cpu_input *share_input(struct backend_weight *w, uint32_t columns, const struct weight_desc *desc,
    bool alone, uint32_t *order)
{
	struct cpu_input input = { .columns = columns, .quantise = desc->input, .scale = desc->input_scale, .order = order };

	if (desc->input_over_ranks && !alone && !(desc->input_scale > 0)) {
		input.scales = cpu_input_scales(desc->input, (uint32_t)weight_stored_columns(desc));
		input.first = (uint32_t)desc->first_column;
	}

	for (uint32_t i = 0; i < w->input_count; i++) {
		if (cpu_input_equal(&w->inputs[i], &input, w->columns)) {
			free(order);
			return &w->inputs[i];
		}
	}
	w->inputs[w->input_count] = input;
	return &w->inputs[w->input_count++];
}

/* Chooses format and input of PART.  Weights with groups of scales that tiles cannot hold become float32. */
static enum status plan_part(const struct cpu_backend *cpu, const struct weight_desc *desc, struct backend_weight *w,
    struct cpu_part *part, struct format_layout *ret, struct error *error)
{
	struct format_layout layout = { 0 };
	uint32_t            *order = NULL;
	enum status          status;

	part->format = format_find(desc->format);
	if (part->format->layout_bytes) {
		status = cpu_layout_choose(desc, &layout, &order, error);
		if (status)
			return status;
		if (layout.group == 0) {
			part->format = &format_f32;
			free(order);
			order = NULL;
		} else if (cpu->integers && desc->format == WEIGHT_I8 && desc->input == WEIGHT_INPUT_I8_TOKEN && !order &&
		    layout.group == layout.columns && layout.columns <= FORMAT_DOT_COLUMNS_MAX) {
			part->format = &format_i8_dot;
		}
	}
	if (order && desc->input == WEIGHT_INPUT_F8_GROUP) {
		free(order);
		return error_set(error, STATUS_UNSUPPORTED, "%s: inputs rounded by groups beside columns grouped by an index",
		    desc->name);
	}
	if (part->format->layout_bytes) {
		layout.tile_bytes = part->format->layout_bytes(&layout);
		part->tile_bytes = layout.tile_bytes;
	} else {
		part->tile_bytes = part->format->tile_bytes(w->columns);
	}
	part->input = share_input(w, part->format->layout_bytes ? layout.columns : w->columns, desc, !cpu->seat.group, order);
	*ret = layout;
	return STATUS_OK;
}

static enum status load_matrix(struct cpu_backend *cpu, const struct weight_desc *desc, struct backend_weight *w,
    struct error *error)
{
	struct cpu_part *part = &w->parts[w->count];
	struct pack_job  job = { .desc = desc, .part = part, .columns = w->columns };
	size_t           bytes;
	enum status      status = plan_part(cpu, desc, w, part, &job.layout, error);

	if (status)
		return status;
	part->rows = (uint32_t)desc->rows;
	part->first_row = w->rows;
	part->tiles = (part->rows + FORMAT_TILE - 1) / FORMAT_TILE;
	if (!checked_mul_size(part->tiles, part->tile_bytes, &bytes) || !chunk_take(cpu, bytes, part))
		return error_set(error, STATUS_NOMEM, "%s: out of memory for %u rows of %u columns", desc->name, part->rows,
		    w->columns);
	w->count++; /* from here on weight_free finds it */
	team_run(cpu->team, pack_tiles, &job, part->tiles);
	if (job.failed)
		return error_set(error, STATUS_NOMEM, "%s: out of memory while it was re-packed", desc->name);
	w->rows += part->rows;
	w->tiles += part->tiles;
	w->bytes += bytes;
	return STATUS_OK;
}

/* A weight that stays in its file. */
static enum status map_matrix(struct cpu_backend *cpu, const struct weight_desc *desc, struct backend_weight *w,
    struct error *error)
{
	struct cpu_part *part = &w->parts[w->count];
	size_t           bytes;
	enum status      status = plan_part(cpu, desc, w, part, &part->layout, error);

	if (status)
		return status;
	part->mapped = malloc(sizeof *part->mapped);
	if (!part->mapped)
		return error_set(error, STATUS_NOMEM, "%s: out of memory", desc->name);
	*part->mapped = *desc;
	part->rows = (uint32_t)desc->rows;
	part->first_row = w->rows;
	part->tiles = (part->rows + FORMAT_TILE - 1) / FORMAT_TILE;
	w->count++;
	w->rows += part->rows;
	w->tiles += part->tiles;
	w->bytes += desc->bytes + desc->scales.bytes + desc->zeros.bytes;
	bytes = part->tile_bytes + CHUNK_SLACK + FORMAT_ALIGN + unpacked_bytes(part, desc->format, w->columns);
	cpu->mapped_tile = bytes > cpu->mapped_tile ? bytes : cpu->mapped_tile;
	return STATUS_OK;
}

/* Vectors are put end to end in float32. */
static enum status load_vector(const struct weight_desc *parts, uint32_t count, struct backend_weight *w,
    struct error *error)
{
	uint64_t columns = 0;
	uint32_t at = 0;

	for (uint32_t i = 0; i < count; i++) {
		enum weight_format format = parts[i].format;

		if (parts[i].rows != 1 || (format != WEIGHT_F32 && format != WEIGHT_F16 && format != WEIGHT_BF16))
			return error_set(error, STATUS_UNSUPPORTED, "%s: a vector must be F32, F16 or BF16", parts[i].name);
		columns += parts[i].columns; /* each ≤ 2³², few parts */
	}
	if (columns > UINT32_MAX)
		return error_set(error, STATUS_LIMIT, "%s: a vector of %llu values", parts[0].name,
		    (unsigned long long)columns);
	w->vector = malloc(columns * sizeof *w->vector);
	if (!w->vector)
		return error_set(error, STATUS_NOMEM, "%s: out of memory for a vector", parts[0].name);
	for (uint32_t i = 0; i < count; i++) {
		weight_read_row(&parts[i], 0, w->vector + at);
		at += (uint32_t)parts[i].columns;
	}
	w->rows = 1;
	w->columns = (uint32_t)columns;
	w->bytes = columns * sizeof *w->vector;
	return STATUS_OK;
}

/* Each part, and that they make a stack. */
static enum status check_stack(const struct weight_desc *parts, uint32_t count, struct error *error)
{
	enum status status;
	uint64_t    rows = 0;

	if (count < 1 || count > CPU_WEIGHT_PARTS_MAX)
		return error_set(error, STATUS_LIMIT, "%u weights in one stack, at most %d", count, CPU_WEIGHT_PARTS_MAX);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t columns = (uint32_t)(parts[0].rows == 1 ? parts[i].columns : parts[0].columns);

		status = check_part(&parts[i], columns, error);
		if (status)
			return status;
		rows += parts[i].rows;
	}
	if (rows > INT32_MAX)
		return error_set(error, STATUS_LIMIT, "%s: a stack of %llu rows", parts[0].name, (unsigned long long)rows);
	return STATUS_OK;
}

enum status cpu_weight_size(struct backend *b, const struct weight_desc *parts, uint32_t count, uint64_t *ret,
    struct error *error)
{
	struct backend_weight w = { .columns = count ? (uint32_t)parts[0].columns : 0 }; /* as far as a plan needs it */
	uint64_t              bytes = 0;
	enum status           status = check_stack(parts, count, error);

	for (uint32_t i = 0; i < count && !status; i++) {
		struct format_layout layout;
		uint64_t             part_bytes = parts[i].columns * sizeof(float); /* of a vector */

		if (parts[0].rows > 1) {
			status = plan_part((const struct cpu_backend *)b, &parts[i], &w, &w.parts[i], &layout, error);
			if (!status && !checked_mul_u64((parts[i].rows + FORMAT_TILE - 1) / FORMAT_TILE, w.parts[i].tile_bytes, &part_bytes))
				status = error_set(error, STATUS_LIMIT, "%s: more than 2^64 bytes", parts[i].name);
		}
		if (!status && !checked_add_u64(bytes, part_bytes, &bytes))
			status = error_set(error, STATUS_LIMIT, "%s: more than 2^64 bytes", parts[i].name);
	}
	for (uint32_t i = 0; i < w.input_count; i++)
		free(w.inputs[i].order);
	if (!status)
		*ret = bytes;
	return status;
}

/* Onto the backend, or (MAP) to stay where it is. */
static enum status make_weight(struct backend *b, const struct weight_desc *parts, uint32_t count, bool map,
    struct backend_weight **ret, struct error *error)
{
	struct cpu_backend    *cpu = (struct cpu_backend *)b;
	struct backend_weight *w;
	enum status            status = check_stack(parts, count, error);

	if (status)
		return status;
	w = calloc(1, sizeof *w);
	if (!w)
		return error_set(error, STATUS_NOMEM, "%s: out of memory", parts[0].name);
	if (parts[0].rows == 1) {
		status = load_vector(parts, count, w, error);
	} else {
		w->columns = (uint32_t)parts[0].columns;
		for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
			status = map ? map_matrix(cpu, &parts[i], w, error) : load_matrix(cpu, &parts[i], w, error);
	}
	if (status) {
		cpu_weight_free(b, w);
		return status;
	}
	*ret = w;
	return STATUS_OK;
}

enum status cpu_weight_load(struct backend *b, const struct weight_desc *parts, uint32_t count,
    struct backend_weight **ret, struct error *error)
{
	return make_weight(b, parts, count, false, ret, error);
}

enum status cpu_weight_map(struct backend *b, const struct weight_desc *parts, uint32_t count,
    struct backend_weight **ret, struct error *error)
{
	return make_weight(b, parts, count, true, ret, error);
}

void cpu_weight_free(struct backend *b, struct backend_weight *w)
{
	if (!w)
		return;
	for (uint32_t i = 0; i < w->count; i++) {
		free(w->parts[i].mapped);
		if (w->parts[i].chunk)
			chunk_drop((struct cpu_backend *)b, w->parts[i].chunk);
	}
	for (uint32_t i = 0; i < w->input_count; i++)
		free(w->inputs[i].order);
	free(w->vector);
	free(w);
}

uint64_t cpu_weight_bytes(const struct backend *b, const struct backend_weight *w)
{
	(void)b;
	return w->bytes;
}

void cpu_weight_row(const struct backend_weight *w, uint32_t row, float *ret)
{
	if (w->vector) {
		memcpy(ret, w->vector, w->columns * sizeof *ret);
		return;
	}
	for (uint32_t i = 0; i < w->count; i++) {
		const struct cpu_part *part = &w->parts[i];
		uint32_t               local = row - part->first_row;

		if (row < part->first_row + part->rows && part->mapped) {
			weight_read_row(part->mapped, local, ret);
			return;
		}
		if (row < part->first_row + part->rows) {
			part->format->row(part->data + local / FORMAT_TILE * part->tile_bytes, w->columns, local % FORMAT_TILE,
			    ret);
			return;
		}
	}
}
