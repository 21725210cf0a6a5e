/* bench_sample.c: `penstock bench kernels --sample`: the sampler alone, over logits of a large vocabulary: rows, ways of drawing
 * and kinds of distributions.
 *
 * Invariant: a sample reads more logits than a cache holds, or none is said to be faster than its floor. */
#include "tools/bench_sample.h"

#include "base/clock.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 151552, WIDTH = 64, NORMALS = 32, PEAKS = 31, ROWS_MAX = 256, SAMPLES = 40, ROUNDS = 5, PROMPT = 1000 };

static const uint32_t row_counts[] = { 1, 16, 64, 256 };

/* Distributions.  FLAT: normal, of deviation 1.  OPEN: of deviation 2, and 40 ids that stand out and have half of the mass.
 * PEAKED: those have all of it. */
enum shape { FLAT, OPEN, PEAKED, SHAPES };
static const char *const shape_names[SHAPES] = { "flat", "open", "peaked" };
static const float deviations[SHAPES] = { 1, 2, 2 }, heights[SHAPES] = { 0, 0.5625f, 1 };

static const struct way {
	const char          *name;
	struct sample_params params;
	bool                 slot, mask;
} ways[] = {
	{ "greedy", { .top_p = 1 }, false, false },
	{ "temperature 1", { .temperature = 1, .top_p = 1 }, false, false },
	{ "top-k 50", { .temperature = 1, .top_p = 1, .top_k = 50 }, false, false },
	{ "top-p 0.95", { .temperature = 1, .top_p = 0.95f }, false, false },
	{ "min-p 0.05", { .temperature = 1, .top_p = 1, .min_p = 0.05f }, false, false },
	{ "top-k 50, top-p 0.95", { .temperature = 0.7f, .top_p = 0.95f, .top_k = 50 }, false, false },
	{ "top-k 5000", { .temperature = 1, .top_p = 1, .top_k = 5000 }, false, false },
	{ "penalties, top-p 0.95", { .temperature = 1, .top_p = 0.95f, .repetition = 1.1f, .presence = 0.5f, .frequency = 0.001f },
	    true, false },
	{ "mask, top-p 0.95", { .temperature = 1, .top_p = 0.95f }, false, true },
	{ "top-p 0.95, 20 logprobs", { .temperature = 1, .top_p = 0.95f, .logprobs = 21 }, false, false },
};

struct samples {
	struct backend       *b;
	double                bandwidth;
	struct batch          batch;
	struct batch_sequence sequences[ROWS_MAX];
	int32_t               tokens[ROWS_MAX], positions[ROWS_MAX], slots[ROWS_MAX], logit_rows[ROWS_MAX], prompt[PROMPT];
	struct sample_row     rows[ROWS_MAX];
	uint32_t              mask[(VOCAB + 31) / 32], state;
	struct activation     x;
	struct backend_weight *norm, *head;
};

/* Nearly normal, deviation 1. */
static float random_normal(struct samples *s)
{
	float sum = 0;

	for (int i = 0; i < 12; i++) {
		s->state = s->state * 1664525u + 1013904223u;
		sum += (float)(s->state >> 8) / 16777216.0f;
	}
	return sum - 6;
}

/* Columns: NORMALS of normal values; PEAKS of zeroes with 40 large values, falling by 0.7; one of zeroes. */
static enum status load_head(struct samples *s, struct error *error)
{
	float             *values = calloc((size_t)VOCAB * WIDTH, sizeof *values), ones[WIDTH];
	struct weight_desc head = { .name = "head", .format = WEIGHT_F32, .rows = VOCAB, .columns = WIDTH, .data = values,
		.bytes = (size_t)VOCAB * WIDTH * sizeof *values };
	struct weight_desc norm = { .name = "norm", .format = WEIGHT_F32, .rows = 1, .columns = WIDTH, .data = ones,
		.bytes = sizeof ones };
	enum status        status;

	if (!values)
		return error_set(error, STATUS_NOMEM, "out of memory");
	for (uint32_t v = 0; v < VOCAB; v++)
		for (uint32_t c = 0; c < 8; c++)
			values[(size_t)v * WIDTH + c] = random_normal(s);
	for (uint32_t v = 0; v < VOCAB; v++)
		for (uint32_t c = 8; c < NORMALS; c++)
			values[(size_t)v * WIDTH + c] = values[(size_t)((v + 7919 * c) % VOCAB) * WIDTH + c % 8];
	for (uint32_t p = 0; p < PEAKS; p++)
		for (uint32_t i = 0; i < 40; i++)
			values[(size_t)((p * 5003 + i * 3571) % VOCAB) * WIDTH + NORMALS + p] = 24 - 0.7f * (float)i;
	for (int c = 0; c < WIDTH; c++)
		ones[c] = 1;
	status = s->b->ops->weight_load(s->b, &norm, 1, &s->norm, error);
	status = status ? status : s->b->ops->weight_load(s->b, &head, 1, &s->head, error);
	free(values);
	return status;
}

/* Logits of all rows by SHAPE. */
static enum status make_logits(struct samples *s, enum shape shape)
{
	float      *x = calloc((size_t)ROWS_MAX * WIDTH, sizeof *x);
	enum status status;

	if (!x)
		return STATUS_NOMEM;
	for (uint32_t r = 0; r < ROWS_MAX; r++) {
		float *row = x + (size_t)r * WIDTH, squares = 0;

		row[r % NORMALS] = deviations[shape];
		row[(r + 1 + r / NORMALS) % NORMALS] = 0.03125f; /* finer than values of 16 bits */
		row[NORMALS + r % PEAKS] = heights[shape];
		for (int c = 0; c < WIDTH; c++)
			squares += row[c] * row[c];
		row[WIDTH - 1] = sqrtf(WIDTH - squares); /* mean of squares 1 */
	}
	status = s->b->ops->activation_put(s->b, &s->x, x, ROWS_MAX);
	status = status ? status : s->b->ops->step_begin(s->b, &s->batch);
	status = status ? status : s->b->ops->logits(s->b, &s->x, NULL, s->norm, 0, s->head);
	free(x);
	return status;
}

static enum status prepare(struct samples *s, struct error *error)
{
	const struct backend_ops *op = s->b->ops;
	struct backend_limits     limits = { .rows = ROWS_MAX, .logit_rows = ROWS_MAX, .vocab = VOCAB, .width = WIDTH, .q_heads = 1,
		.head_dim = 8, .stream = WIDTH };
	enum status status = load_head(s, error);

	if (status || (status = op->scratch_alloc(s->b, &limits, error)))
		return status;
	if ((status = op->activation_alloc(s->b, ROWS_MAX, WIDTH, &s->x)))
		return error_set(error, status, "no memory for activations");
	s->batch = (struct batch){ .rows = ROWS_MAX, .sequence_count = ROWS_MAX, .tokens = s->tokens, .positions = s->positions,
		.sequences = s->sequences, .logit_row_count = ROWS_MAX, .logit_rows = s->logit_rows };
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		s->batch.kv_slots[g] = s->slots;
	for (uint32_t r = 0; r < ROWS_MAX; r++) {
		s->sequences[r] = (struct batch_sequence){ .first_row = r, .rows = 1, .context = 1 };
		s->slots[r] = -1;
		s->logit_rows[r] = (int32_t)r;
	}
	for (uint32_t i = 0; i < PROMPT; i++)
		s->prompt[i] = (int32_t)(i * 7919 % VOCAB);
	for (size_t i = 0; i < sizeof s->mask / sizeof *s->mask; i++)
		s->mask[i] = 0x5555aaaa;
	for (uint32_t r = 0; r < ROWS_MAX; r++) {
		struct sample_slot slot = { .prompt = s->prompt, .prompt_tokens = PROMPT, .drawn = s->prompt, .drawn_tokens = PROMPT / 5 };

		if ((status = op->sample_slot(s->b, r, &slot)))
			return error_set(error, status, "a sampler slot: %s", status_text(status));
	}
	return STATUS_OK;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* Microseconds of a sample in a row of SAMPLES, and of the device's clock from the begin of one to its end (0: unknown). */
static enum status time_samples(struct samples *s, const struct way *way, uint32_t rows, double *ret_us, double *ret_device_us,
    struct error *error)
{
	double      us[ROUNDS], device[ROUNDS];
	enum status status = STATUS_OK;

	for (uint32_t r = 0; r < rows; r++)
		s->rows[r] = (struct sample_row){ .logit_row = r, .slot = way->slot ? 1 + r : 0, .mask = way->mask ? s->mask : NULL,
			.params = way->params };
	for (int round = -1; round < ROUNDS && !status; round++) { /* the first is not counted */
		struct backend_step_times times[BACKEND_TIMES_MAX];
		uint64_t                  begin = clock_now_ns();
		uint32_t                  count = 0;

		for (uint32_t i = 0; i < SAMPLES && !status; i++) {
			for (uint32_t r = 0; r < rows; r++)
				s->rows[r].position++;
			status = s->b->ops->sample(s->b, s->rows, rows, VOCAB);
		}
		if (status && s->b->ops->wait(s->b, NULL, 0, error) == STATUS_OK)
			return error_set(error, status, "a sample of %u rows: %s", rows, status_text(status));
		status = status ? status : s->b->ops->wait(s->b, NULL, 0, error);
		us[round < 0 ? 0 : round] = (double)(clock_now_ns() - begin) * 1e-3 / SAMPLES;
		if (!status && s->b->ops->step_times)
			s->b->ops->step_times(s->b, times, &count);
		device[round < 0 ? 0 : round] = count ? (double)(times[count - 1].end - times[count - 1].computed) * 1e-3 : 0;
	}
	qsort(us, ROUNDS, sizeof *us, compare_doubles);
	qsort(device, ROUNDS, sizeof *device, compare_doubles);
	*ret_us = us[ROUNDS / 2];
	*ret_device_us = device[ROUNDS / 2];
	return status;
}

enum status bench_sample(struct backend *b, uint32_t rows, double bandwidth, struct error *error)
{
	struct samples *s = calloc(1, sizeof *s);
	enum status     status;

	if (!s)
		return error_set(error, STATUS_NOMEM, "out of memory");
	s->b = b;
	s->bandwidth = bandwidth;
	status = prepare(s, error);
	if (!status)
		printf("float32 logits of %d ids, one after the other in a stream\n%-24s %-7s %5s %10s %10s %10s %8s\n", VOCAB,
		    "draw", "logits", "rows", "us", "device us", "floor us", "share");
	for (int shape = 0; shape < SHAPES && !status; shape++) {
		if ((status = make_logits(s, (enum shape)shape)))
			error_set(error, status, "logits: %s", status_text(status));
		for (size_t w = 0; w < sizeof ways / sizeof *ways && !status; w++) {
			for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts && !status; i++) {
				if (rows && row_counts[i] != rows)
					continue;
				double us = 0, device_us = 0, bytes = row_counts[i] * (double)VOCAB * (ways[w].slot ? 6 : ways[w].mask ? 4.125 : 4);
				double floor_us = bandwidth > 0 ? bytes / bandwidth * 1e6 : 0;

				status = time_samples(s, &ways[w], row_counts[i], &us, &device_us, error);
				if (!status)
					printf("%-24s %-7s %5u %10.2f %10.2f %10.2f %6.1f %%\n", ways[w].name, shape_names[shape], row_counts[i], us,
					    device_us, floor_us, 100 * floor_us / us);
			}
		}
	}
	free(s);
	return status;
}
