/* encoder.c: owns the operations that only encoders need, in plain C: an encoder reads a text once, so what counts are
 * its linear layers and its attention, and those are shared with the decoders.  Invariant: a row's sums depend on its
 * width only, never on other rows. */
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { ROWS_ALONE = 32768 /* floats that one thread does faster than it shares out */ };

/* Work on whole rows of one or two activations. */
struct encoder_job {
	const struct backend_weight *w;
	float       *x, *y;
	const float *residual, *weight, *bias;
	const int32_t *positions; /* NULL: every row's is 0 */
	uint32_t     width, offset;
	float        eps;
};

static void run(struct cpu_backend *cpu, team_function *function, struct encoder_job *job, uint32_t rows)
{
	if ((uint64_t)rows * job->width <= ROWS_ALONE)
		function(job, 0, 0, rows);
	else
		team_run(cpu->team, function, job, rows);
}

static void embed_add_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct encoder_job *job = context;

	(void)thread;
	for (uint32_t r = first; r < first + count; r++) {
		uint32_t row = job->positions ? (uint32_t)((int64_t)job->offset + job->positions[r]) : job->offset;
		float   *sum = job->y + (size_t)r * job->width, *add = job->x + (size_t)r * job->width;

		cpu_weight_row(job->w, row, add);
		for (uint32_t k = 0; k < job->width; k++)
			sum[k] += add[k];
	}
}

enum status cpu_embed_add(struct backend *b, const struct backend_weight *w, enum embed_index index, uint32_t offset,
    struct activation *y)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	/* Each row is decoded into the scratch of linear layers, which holds rows × width floats, and is free now. */
	struct encoder_job  job = { .w = w, .x = cpu->scratch.input, .y = y->data, .width = y->width, .offset = offset };

	if (!cpu->batch || w->columns != y->width || cpu->batch->rows > y->rows || y->width > cpu->scratch.limits.width)
		return STATUS_INVALID;
	if (index == EMBED_POSITION)
		job.positions = cpu->batch->positions;
	for (uint32_t r = 0; r < cpu->batch->rows; r++) {
		int64_t row = (int64_t)offset + (job.positions ? job.positions[r] : 0);

		if (row < 0 || row >= w->rows)
			return STATUS_INVALID;
	}
	run(cpu, embed_add_rows, &job, cpu->batch->rows);
	return STATUS_OK;
}

/* Mean and variance in double precision: the sums of a row are short, and no order of them shows in the result. */
static void layer_norm_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct encoder_job *job = context;

	(void)thread;
	for (uint32_t r = first; r < first + count; r++) {
		float *x = job->x + (size_t)r * job->width, *y = job->y + (size_t)r * job->width;
		double sum = 0, squares = 0, mean;
		float  scale;

		for (uint32_t k = 0; k < job->width; k++) {
			if (job->residual)
				x[k] += job->residual[(size_t)r * job->width + k];
			sum += (double)x[k];
		}
		mean = sum / job->width;
		for (uint32_t k = 0; k < job->width; k++)
			squares += ((double)x[k] - mean) * ((double)x[k] - mean);
		scale = (float)(1 / sqrt(squares / job->width + (double)job->eps));
		for (uint32_t k = 0; k < job->width; k++)
			y[k] = (float)((double)x[k] - mean) * scale * job->weight[k] + job->bias[k];
	}
}

enum status cpu_layer_norm(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *w, const struct backend_weight *bias, float eps, struct activation *y)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct encoder_job  job = { .x = x->data, .y = y->data, .residual = residual_in ? residual_in->data : NULL,
		.weight = w->vector, .bias = bias->vector, .width = x->width, .eps = eps };

	if (!cpu->batch || !w->vector || !bias->vector || w->columns != x->width || bias->columns != x->width ||
	    y->width != x->width || cpu->batch->rows > x->rows || cpu->batch->rows > y->rows ||
	    (residual_in && (residual_in->width != x->width || residual_in->rows < cpu->batch->rows)))
		return STATUS_INVALID;
	run(cpu, layer_norm_rows, &job, cpu->batch->rows);
	return STATUS_OK;
}

static void gelu_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct encoder_job *job = context;

	(void)thread;
	for (size_t i = (size_t)first * job->width; i < ((size_t)first + count) * job->width; i++)
		job->x[i] *= 0.5f * (1 + erff(job->x[i] * (float)M_SQRT1_2));
}

enum status cpu_gelu(struct backend *b, struct activation *x)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct encoder_job  job = { .x = x->data, .width = x->width };

	if (!cpu->batch || cpu->batch->rows > x->rows)
		return STATUS_INVALID;
	run(cpu, gelu_rows, &job, cpu->batch->rows);
	return STATUS_OK;
}

enum status cpu_pool(struct backend *b, const struct activation *x)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	const struct batch *batch = cpu->batch;

	if (!batch || batch->rows > x->rows || x->width > cpu->scratch.limits.width)
		return STATUS_INVALID;
	for (uint32_t i = 0; i < batch->logit_row_count; i++) {
		const float *row = (const float *)x->data + (size_t)batch->logit_rows[i] * x->width;
		float       *pooled = cpu->scratch.normed + (size_t)i * x->width;
		double       squares = 0;

		for (uint32_t k = 0; k < x->width; k++)
			squares += (double)row[k] * (double)row[k];
		for (uint32_t k = 0; k < x->width; k++) /* a row of zeroes stays one */
			pooled[k] = squares > 0 ? (float)((double)row[k] / sqrt(squares)) : row[k];
	}
	cpu->pooled_width = x->width;
	return STATUS_OK;
}

enum status cpu_read_pooled(struct backend *b, uint32_t index, float *ret, uint32_t width)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;

	if (index >= cpu->wanted || width == 0 || width != cpu->pooled_width)
		return STATUS_INVALID;
	memcpy(ret, cpu->scratch.normed + (size_t)index * width, width * sizeof *ret);
	return STATUS_OK;
}
