/* linear.c: owns y = x · Wᵀ: prepares activations and shares tiles out to the team.  Does not own the arithmetic
 * (fmt_*.c).  Invariant: what a row's result is does not depend on the other rows: rows only share decoded weights.
 *
 *                rows of x, eight by eight, column-major           tiles of W
 *      block 0   [columns][8]                                      tile 0, 1, 2, …
 *      block 1   [columns][8]                                      item: one tile times up to 64 rows (SUPER blocks),
 *      …                                                           so that both stay in the caches
 */
#include "cpu/cpu.h"

#include <string.h>

enum { SUPER = 8, PREPARE_ALONE = 16384 /* floats the calling thread prepares faster than it can share out */ };

struct linear_job {
	const struct cpu_backend    *cpu;
	const struct backend_weight *w;
	const struct cpu_part       *part; /* parts with its kind of input take part */
	const float *x, *bias;
	size_t       x_stride, y_stride;
	uint32_t     rows, tiles; /* tiles of all parts that take part */
	float       *y;
};

static inline uint32_t groups_of(const struct cpu_part *part)
{
	return (part->input->columns + part->format->group - 1) / part->format->group;
}

/* Blocks are as far apart as full ones, also where the only one has a single row. */
static inline float *block_input(const struct linear_job *job, uint32_t block)
{
	return job->cpu->scratch.input + (size_t)block * FORMAT_ROWS * job->part->input->columns;
}

static inline float *block_sums(const struct linear_job *job, uint32_t block)
{
	return job->cpu->scratch.sums + (size_t)block * FORMAT_ROWS * groups_of(job->part);
}

static inline uint32_t block_rows(const struct linear_job *job, uint32_t block)
{
	uint32_t left = job->rows - block * FORMAT_ROWS;
	return left < FORMAT_ROWS ? left : FORMAT_ROWS;
}

static inline bool has_limbs(const struct cpu_backend *cpu, const struct format *format) { return format->limbs[cpu->isa]; }

static inline const float *prescale_of(const struct cpu_backend *cpu, const struct format *format)
{
	return format->linear[cpu->isa] ? format->prescale : NULL;
}

/* Two parts that want the same input are served by one preparation. */
static bool same_input(const struct cpu_backend *cpu, const struct cpu_part *a, const struct cpu_part *b)
{
	return a->input == b->input && a->format->group == b->format->group && a->format->scaled == b->format->scaled &&
	       a->format->integers == b->format->integers && has_limbs(cpu, a->format) == has_limbs(cpu, b->format) &&
	       prescale_of(cpu, a->format) == prescale_of(cpu, b->format);
}

/* The largest |x| of a row of a block, where ranks share them. */
static inline const float *row_amax(const struct linear_job *job, uint32_t block, uint32_t r)
{
	return job->cpu->scratch.amax + ((size_t)block * FORMAT_ROWS + r) * job->part->input->scales;
}

/* Rounded inputs as they are. */
static void prepare_integers(const struct linear_job *job, uint32_t block)
{
	uint32_t n = block_rows(job, block);
	unsigned stride = n == 1 ? 1 : FORMAT_ROWS;
	uint8_t *to = (uint8_t *)block_input(job, block);
	float   *scales = block_sums(job, block);

	if (n > 1 && n < FORMAT_ROWS) { /* rows that are not there */
		memset(to, 0, (size_t)FORMAT_ROWS * job->part->input->columns);
		memset(scales, 0, FORMAT_ROWS * sizeof *scales);
	}
	for (uint32_t r = 0; r < n; r++)
		cpu_input_bytes(job->part->input, job->x + ((size_t)block * FORMAT_ROWS + r) * job->x_stride, job->w->columns,
		    row_amax(job, block, r), stride, to + 4 * r, scales + r);
}

static void prepare_blocks(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct linear_job *job = context;
	const struct format     *format = job->part->format;
	const struct cpu_input  *input = job->part->input;
	const bool               plain = cpu_input_is_plain(input, job->w->columns);

	for (uint32_t block = first; block < first + count; block++) {
		const float *rows[FORMAT_ROWS] = { NULL };
		uint32_t     n = block_rows(job, block);

		if (format->integers) {
			prepare_integers(job, block);
			continue;
		}
		for (uint32_t r = 0; r < n; r++) {
			float *changed = job->cpu->scratch.threads[thread].rows + (size_t)r * input->columns;

			rows[r] = job->x + ((size_t)block * FORMAT_ROWS + r) * job->x_stride;
			if (!plain) {
				cpu_input_row(input, rows[r], job->w->columns, row_amax(job, block, r), changed);
				rows[r] = changed;
			}
		}
		if (has_limbs(job->cpu, format)) {
			job->cpu->kernels->prepare_limbs(rows, n, input->columns, (struct format_limbs *)block_input(job, block));
			continue;
		}
		job->cpu->kernels->prepare(rows, n, input->columns, format->group, prescale_of(job->cpu, format),
		    block_input(job, block), format->scaled ? block_sums(job, block) : NULL);
	}
}

static void store(const struct linear_job *job, float out[FORMAT_ROWS][FORMAT_TILE], uint32_t block,
    uint32_t first_output, uint32_t outputs)
{
	for (uint32_t r = 0; r < block_rows(job, block); r++) {
		float *y = job->y + ((size_t)block * FORMAT_ROWS + r) * job->y_stride + first_output;

		if (job->bias)
			for (uint32_t i = 0; i < outputs; i++)
				out[r][i] += job->bias[first_output + i];
		memcpy(y, out[r], outputs * sizeof *y);
	}
}

static void multiply_tile(const struct linear_job *job, unsigned thread, const struct cpu_part *part, uint32_t tile,
    uint32_t first_block)
{
	uint32_t       blocks = (job->rows + FORMAT_ROWS - 1) / FORMAT_ROWS;
	uint32_t       end = blocks - first_block < SUPER ? blocks : first_block + SUPER;
	uint32_t       left = part->rows - tile * FORMAT_TILE;
	uint8_t       *made = job->cpu->scratch.threads[thread].tile;
	const uint8_t *data = part->mapped ? made : part->data + tile * part->tile_bytes;
	format_linear_function *linear = part->format->linear[job->cpu->isa];

	if (part->mapped)
		cpu_weight_make_tile(part, job->w->columns, tile, made);
	for (uint32_t block = first_block; block < end; block++) {
		struct format_input input = { block_input(job, block), part->format->scaled ? block_sums(job, block) : NULL };
		float               out[FORMAT_ROWS][FORMAT_TILE] __attribute__((aligned(FORMAT_ALIGN)));

		if (linear)
			linear(data, part->input->columns, &input, block_rows(job, block), out);
		else
			format_linear_generic(part->format, data, part->input->columns, &input, block_rows(job, block), out);
		store(job, out, block, part->first_row + tile * FORMAT_TILE, left < FORMAT_TILE ? left : FORMAT_TILE);
	}
}

static void multiply_items(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct linear_job *job = context;

	for (uint32_t item = first; item < first + count; item++) {
		uint32_t               tile = item % job->tiles, super = item / job->tiles;
		const struct cpu_part *part = job->w->parts;

		/* The item's part: among those whose input this is. */
		while (!same_input(job->cpu, part, job->part) || tile >= part->tiles) {
			if (same_input(job->cpu, part, job->part))
				tile -= part->tiles;
			part++;
		}
		multiply_tile(job, thread, part, tile, super * SUPER);
	}
}

/* The largest |x| of each row, or group of its columns, over all ranks: each has some of the columns. */
static enum status share_amax(const struct linear_job *job)
{
	const struct cpu_backend *cpu = job->cpu;
	const struct cpu_input   *input = job->part->input;

	if (!input->scales)
		return STATUS_OK;
	for (uint32_t row = 0; row < job->rows; row++)
		cpu_input_amax(input, job->x + row * job->x_stride, job->w->columns, cpu->scratch.amax + (size_t)row * input->scales);
	return cpu_group_max(&cpu->seat, cpu->scratch.amax, (size_t)job->rows * input->scales);
}

enum status cpu_linear(struct cpu_backend *cpu, const struct backend_weight *w, const float *bias, const float *x,
    size_t x_stride, uint32_t rows, float *y, size_t y_stride)
{
	struct linear_job job = { .cpu = cpu, .w = w, .x = x, .bias = bias, .x_stride = x_stride, .y_stride = y_stride,
	    .rows = rows, .y = y };
	uint32_t          blocks = (rows + FORMAT_ROWS - 1) / FORMAT_ROWS;

	if (w->vector || w->columns > cpu->scratch.limits.width || (w->parts[0].mapped && !cpu->scratch.threads[0].tile))
		return STATUS_INVALID;
	if (rows == 0)
		return STATUS_OK;
	for (uint32_t p = 0; p < w->count; p++) {
		bool        done = false;
		uint64_t    items;
		enum status status;

		job.part = &w->parts[p];
		for (uint32_t earlier = 0; earlier < p; earlier++)
			done = done || same_input(cpu, &w->parts[earlier], job.part);
		if (done)
			continue;
		job.tiles = 0;
		for (uint32_t other = p; other < w->count; other++)
			job.tiles += same_input(cpu, &w->parts[other], job.part) ? w->parts[other].tiles : 0;
		items = (uint64_t)job.tiles * ((blocks + SUPER - 1) / SUPER);
		cpu->work.tiles += w->parts[p].mapped ? items : 0;
		if (items > TEAM_ITEMS_MAX)
			return STATUS_LIMIT;
		status = share_amax(&job);
		if (status)
			return status;
		if ((uint64_t)rows * w->columns <= PREPARE_ALONE)
			prepare_blocks(&job, 0, 0, blocks);
		else
			team_run(cpu->team, prepare_blocks, &job, blocks);
		team_run(cpu->team, multiply_items, &job, (uint32_t)items);
	}
	return STATUS_OK;
}

size_t cpu_linear_input_floats(uint32_t rows, uint32_t width)
{
	return ((size_t)rows + FORMAT_ROWS - 1) / FORMAT_ROWS * FORMAT_ROWS * cpu_input_padded(width);
}

size_t cpu_linear_amax_floats(uint32_t rows, uint32_t width, uint32_t ranks)
{
	return (size_t)rows * (cpu_input_scales(WEIGHT_INPUT_F8_GROUP, width) * (size_t)ranks + 1); /* no other has as many scales */
}

size_t cpu_linear_sum_floats(uint32_t rows, uint32_t width)
{
	return cpu_linear_input_floats(rows, width / 16 + 1); /* the smallest group */
}
