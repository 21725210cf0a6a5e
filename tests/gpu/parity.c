/* parity.c: every operation of the CUDA backend against the CPU backend, on odd shapes, in all three types.
 *
 *      parity DIRECTORY [WORD [KERNELS [SHARE/SHARES]]]      DIRECTORY holds penstock-cuda.so; only cases whose name holds
 *      WORD ("": all); KERNELS as in batcher.kernels; of the cases each SHARES-th, from the SHARE-th on (1/1: all), so that
 *      several processes do them side by side
 *
 * Both backends get the same weights and inputs, rounded to the type before.  A result is right when each row's error is
 * small against the row: |Δ| ≤ tolerance of the type.  Exit status 77 where there is no device. */
#include "base/floats.h"
#include "cpu/cpu_backend.h"
#include "model/plugin.h"
#include "support/random.h"
#include "support/stored.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 2200, BLOCKS_MAX = 4096, SEQUENCES_MAX = 64, SKIP = 77 };

static const struct {
	const char *name;
	double      tolerance;
} dtypes[] = { { "float32", 3e-5 }, { "bfloat16", 1.2e-2 }, { "float16", 2e-3 } };
enum { F32, BF16, F16, DTYPES };

struct pair {
	struct backend *b[2]; /* CPU, CUDA */
	int             dtype;
};

struct totals {
	const char *word, *directory, *kernels;
	struct plugin *plugin;
	unsigned    turn, share, shares; /* case TURN is ours when TURN % SHARES is SHARE */
	unsigned    passed, failed;
	double      worst[DTYPES];
};

static struct backend *watched; /* that of CUDA while one is open: after a fault it says what the device was doing */

static void fatal(const char *what, enum status status, const struct error *error)
{
	struct error own;

	if (!error && watched && watched->ops->wait(watched, NULL, 0, &own))
		error = &own;
	printf("FAILED: %s: %s%s%s\n", what, status_name(status), error ? ": " : "", error ? error->message : "");
	exit(1);
}

#define MUST(call) do { enum status status_ = (call); if (status_) fatal(#call, status_, NULL); } while (0)
#define MUST_SAY(call, error) do { enum status status_ = (call); if (status_) fatal(#call, status_, &(error)); } while (0)

/* ---- Values ---- */

/* The nearest half, ties to even. */
static uint16_t to_half(float value)
{
	uint32_t bits = floats_to_bits(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;

	if (size >= 0x47800000)
		return (uint16_t)(sign | 0x7bff); /* the largest, as the backend does */
	if (size < 0x38800000)
		return (uint16_t)(sign | (uint32_t)lrintf(floats_from_bits(size) * 0x1p24f));
	size = ((size + 0xfff + (size >> 13 & 1)) >> 13) - (112 << 10);
	return (uint16_t)(sign | (size < 0x7c00 ? size : 0x7bff));
}

static float rounded(float value, int dtype)
{
	uint32_t bits = floats_to_bits(value);

	if (dtype == BF16)
		return floats_from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
	return dtype == F16 ? floats_from_half(to_half(value)) : value;
}

static float *random_values(struct random *random, size_t count, float size, float middle, int dtype)
{
	float *values = malloc((count + 1) * sizeof *values);

	for (size_t i = 0; i < count; i++)
		values[i] = rounded(random_float(random) * size + middle, dtype);
	return values;
}

/* ---- Both backends ---- */

static struct pair open_pair(const struct totals *totals, int dtype, const struct backend_limits *limits)
{
	struct pair           pair = { .dtype = dtype };
	struct plugin_options options = { .device = "", .dtype = dtypes[dtype].name, .kernels = totals->kernels };
	struct error          error;

	MUST_SAY(cpu_backend_create(0, &pair.b[0], &error), error);
	MUST_SAY(plugin_entry_of(totals->plugin)->create(&options, &pair.b[1], &error), error);
	watched = pair.b[1];
	for (int i = 0; i < 2; i++)
		MUST_SAY(pair.b[i]->ops->scratch_alloc(pair.b[i], limits, &error), error);
	return pair;
}

static void close_pair(struct pair *pair)
{
	watched = NULL;
	for (int i = 0; i < 2; i++)
		pair->b[i]->ops->destroy(pair->b[i]);
}

struct both {
	struct activation      a[2];
	struct backend_weight *w[2];
};

static struct both make_activation(const struct pair *pair, uint32_t rows, uint32_t width, const float *values)
{
	struct both both;

	for (int i = 0; i < 2; i++) {
		MUST(pair->b[i]->ops->activation_alloc(pair->b[i], rows, width, &both.a[i]));
		if (values)
			MUST(pair->b[i]->ops->activation_put(pair->b[i], &both.a[i], values, rows));
	}
	return both;
}

static struct both make_weight(const struct pair *pair, uint32_t rows, uint32_t columns, const float *values)
{
	struct weight_desc desc = { .name = "w", .format = WEIGHT_F32, .rows = rows, .columns = columns, .data = values,
		.bytes = (size_t)rows * columns * sizeof *values };
	struct error error;
	struct both  both;

	for (int i = 0; i < 2; i++)
		MUST_SAY(pair->b[i]->ops->weight_load(pair->b[i], &desc, 1, &both.w[i], &error), error);
	return both;
}

#define BOTH(pair, op, ...) do { for (int i_ = 0; i_ < 2; i_++) { struct backend *b = (pair)->b[i_]; const int i = i_; \
	(void)i; MUST(b->ops->op(b, __VA_ARGS__)); } } while (0)

/* Frees what they point to. */
static void drop_activation(const struct pair *pair, struct both *both)
{
	for (int i = 0; i < 2; i++)
		pair->b[i]->ops->activation_free(pair->b[i], &both->a[i]);
}

/* ---- Comparing ---- */

static void note(struct totals *totals, const char *name, const struct pair *pair, double error, double tolerance)
{
	bool fine = error <= tolerance; /* NaN is not */

	totals->passed += fine;
	totals->failed += !fine;
	if (error > totals->worst[pair->dtype] || isnan(error))
		totals->worst[pair->dtype] = error;
	if (!fine)
		printf("FAILED: %s, %s: error %.2e, allowed %.1e\n", name, dtypes[pair->dtype].name, error, tolerance);
}

static double rows_error(const float *a, const float *b, uint32_t rows, uint32_t width)
{
	double worst = 0;

	for (uint32_t r = 0; r < rows; r++) {
		double squares = 0, error = 0;

		for (uint32_t k = 0; k < width; k++) {
			double x = (double)a[(size_t)r * width + k], d = (double)b[(size_t)r * width + k] - x;

			squares += x * x;
			error += d * d;
		}
		error = squares > 0 ? sqrt(error / squares) : sqrt(error);
		if (!isnan(worst) && !(error <= worst)) /* a NaN stays */
			worst = error;
	}
	return worst;
}

/* TOLERANCE of 0: the type's. */
static void compare_within(struct totals *totals, const char *name, const struct pair *pair, const struct both *both, uint32_t rows,
    double tolerance)
{
	size_t count = (size_t)rows * both->a[0].width;
	float *values[2];

	for (int i = 0; i < 2; i++) {
		values[i] = malloc((count + 1) * sizeof **values);
		MUST(pair->b[i]->ops->activation_get(pair->b[i], &both->a[i], values[i], rows));
	}
	note(totals, name, pair, rows_error(values[0], values[1], rows, both->a[0].width),
	    tolerance > 0 ? tolerance : dtypes[pair->dtype].tolerance);
	free(values[0]);
	free(values[1]);
}

static void compare(struct totals *totals, const char *name, const struct pair *pair, const struct both *both, uint32_t rows)
{
	compare_within(totals, name, pair, both, rows, 0);
}

/* Whether the next case, of those called NAME, is to be done here. */
static bool wanted(struct totals *totals, const char *name)
{
	if (totals->word && !strstr(name, totals->word))
		return false;
	return totals->turn++ % totals->shares == totals->share;
}

/* A step without sequences. */
static struct batch rows_batch(uint32_t rows)
{
	static int32_t tokens[ROWS_MAX], positions[ROWS_MAX], slots[ROWS_MAX], logit_rows[ROWS_MAX];
	struct batch   batch = { .rows = rows, .tokens = tokens, .positions = positions, .logit_rows = logit_rows };

	for (uint32_t r = 0; r < rows; r++) {
		tokens[r] = (int32_t)(r * 7 % 50);
		positions[r] = (int32_t)(r % 20);
		slots[r] = -1;
		logit_rows[r] = (int32_t)(rows - 1 - r);
	}
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		batch.kv_slots[g] = slots;
	return batch;
}

/* ---- Operations on rows ---- */

static void case_rows(struct totals *totals, int dtype, uint32_t width, uint32_t rows)
{
	struct random random = { width * 31 + rows };
	struct pair   pair = open_pair(totals, dtype, &(struct backend_limits){ .rows = rows, .logit_rows = rows,
	    .vocab = 64, .width = width, .q_heads = 1, .head_dim = 64, .stream = width });
	struct batch  batch = rows_batch(rows);
	float        *xv = random_values(&random, (size_t)rows * width, 2, 0.1f, dtype);
	float        *dv = random_values(&random, (size_t)rows * width, 1, 0, dtype), *wv = random_values(&random, width, 1, 1, F32);
	float        *bv = random_values(&random, width, 1, 0, F32), *ev = random_values(&random, (size_t)50 * width, 1, 0, dtype);
	struct both   x = make_activation(&pair, rows, width, xv), d = make_activation(&pair, rows, width, dv);
	struct both   y = make_activation(&pair, rows, width, NULL), w = make_weight(&pair, 1, width, wv);
	struct both   bias = make_weight(&pair, 1, width, bv), e = make_weight(&pair, 50, width, ev);

	BOTH(&pair, step_begin, &batch);
	BOTH(&pair, rms_norm, &x.a[i], NULL, w.w[i], 1e-5f, &y.a[i]);
	compare(totals, "rms_norm", &pair, &y, rows);
	BOTH(&pair, rms_norm, &x.a[i], &d.a[i], w.w[i], 1e-5f, &y.a[i]);
	compare(totals, "rms_norm with residual", &pair, &y, rows);
	compare(totals, "sum with residual", &pair, &x, rows);
	BOTH(&pair, activation_put, &d.a[i], dv, rows);
	BOTH(&pair, rms_norm, &d.a[i], NULL, w.w[i], 1e-5f, &d.a[i]);
	compare(totals, "rms_norm in place", &pair, &d, rows);
	BOTH(&pair, activation_put, &d.a[i], dv, rows);
	BOTH(&pair, rms_norm, &d.a[i], NULL, w.w[i], 1e-5f, &d.a[i]);
	BOTH(&pair, rms_norm, &x.a[i], &d.a[i], w.w[i], 1e-5f, &y.a[i]);
	compare(totals, "rms_norm of a normed residual", &pair, &y, rows);
	BOTH(&pair, activation_put, &d.a[i], dv, rows);
	BOTH(&pair, layer_norm, &x.a[i], &d.a[i], w.w[i], bias.w[i], 1e-5f, &x.a[i]);
	compare(totals, "layer_norm", &pair, &x, rows);
	BOTH(&pair, embed, e.w[i], &y.a[i]);
	compare(totals, "embed", &pair, &y, rows);
	BOTH(&pair, embed_add, e.w[i], EMBED_POSITION, 3, &y.a[i]);
	BOTH(&pair, embed_add, e.w[i], EMBED_CONSTANT, 2, &y.a[i]);
	BOTH(&pair, rms_norm, &y.a[i], NULL, w.w[i], 1e-5f, &x.a[i]);
	compare(totals, "rms_norm of an embedding", &pair, &x, rows);
	BOTH(&pair, rms_norm, &y.a[i], &x.a[i], w.w[i], 1e-5f, &d.a[i]);
	compare(totals, "rms_norm of an embedding and a residual", &pair, &d, rows);
	compare(totals, "embed_add", &pair, &y, rows);
	BOTH(&pair, activation_put, &x.a[i], xv, rows);
	BOTH(&pair, gelu, &y.a[i]);
	compare(totals, "gelu", &pair, &y, rows);
	if (width % 2 == 0) {
		struct both half = make_activation(&pair, rows, width / 2, NULL);

		BOTH(&pair, activation_put, &x.a[i], xv, rows);
		BOTH(&pair, silu_gate, &x.a[i], &half.a[i]);
		compare(totals, "silu_gate", &pair, &half, rows);
		drop_activation(&pair, &half);
	}
	batch.logit_row_count = rows;
	BOTH(&pair, step_begin, &batch);
	BOTH(&pair, activation_put, &x.a[i], xv, rows);
	BOTH(&pair, pool, &x.a[i]);
	for (uint32_t r = 0; r < rows; r++) {
		BOTH(&pair, read_pooled, r, i ? dv : ev, width);
		note(totals, "pool", &pair, rows_error(ev, dv, 1, width), dtypes[dtype].tolerance);
	}
	free(xv), free(dv), free(wv), free(bv), free(ev);
	close_pair(&pair);
}

/* ---- Linear layers ---- */

static void case_linear(struct totals *totals, int dtype, uint32_t n, uint32_t k, uint32_t rows, bool with_bias)
{
	struct random random = { n * 31 + k * 7 + rows };
	struct pair   pair = open_pair(totals, dtype, &(struct backend_limits){ .rows = rows, .logit_rows = 1, .vocab = 64, .width = k,
	    .q_heads = 1, .head_dim = 64 });
	struct batch  batch = rows_batch(rows);
	float        *wv = random_values(&random, (size_t)n * k, 1, 0, dtype), *xv = random_values(&random, (size_t)rows * k, 1, 0,
	    dtype);
	float        *bv = random_values(&random, n, 1, 0, F32);
	struct both   w = make_weight(&pair, n, k, wv), x = make_activation(&pair, rows, k, xv), y = make_activation(&pair, rows, n,
	    NULL);
	struct both   bias = make_weight(&pair, 1, n, bv);
	char          name[64];

	snprintf(name, sizeof name, "linear %u × %u, %u rows%s", n, k, rows, with_bias ? ", bias" : "");
	BOTH(&pair, step_begin, &batch);
	BOTH(&pair, linear, w.w[i], with_bias ? bias.w[i] : NULL, &x.a[i], &y.a[i]);
	compare(totals, name, &pair, &y, rows);
	free(wv), free(xv), free(bv);
	close_pair(&pair);
}

/* linear_silu against linear and silu_gate; in a rehearsal before, as at a start, so that a kernel for both may be chosen. */
static void case_gated(struct totals *totals, int dtype, uint32_t width, uint32_t k, uint32_t rows)
{
	struct random random = { width * 31 + k * 7 + rows };
	struct pair   pair = open_pair(totals, dtype, &(struct backend_limits){ .rows = rows, .logit_rows = 1, .vocab = 64,
	    .width = k > 2 * width ? k : 2 * width, .q_heads = 1, .head_dim = 64 });
	struct batch  batch = rows_batch(rows);
	float        *wv = random_values(&random, (size_t)2 * width * k, 0.2f, 0, dtype);
	float        *xv = random_values(&random, (size_t)rows * k, 1, 0, dtype);
	struct both   w = make_weight(&pair, 2 * width, k, wv), x = make_activation(&pair, rows, k, xv);
	struct both   gated = make_activation(&pair, rows, 2 * width, NULL), y = make_activation(&pair, rows, width, NULL);
	struct backend *cuda = pair.b[1];
	uint32_t        ignored[2];
	char            name[80];

	snprintf(name, sizeof name, "linear with silu %u × %u, %u rows", width, k, rows);
	cuda->ops->rehearsal(cuda, 0, &ignored[0], &ignored[1]);
	MUST(cuda->ops->step_begin(cuda, &batch));
	MUST(cuda->ops->linear_silu(cuda, w.w[1], &x.a[1], &gated.a[1], &y.a[1]));
	cuda->ops->rehearsal(cuda, UINT32_MAX / 2, &ignored[0], &ignored[1]);
	BOTH(&pair, activation_put, &x.a[i], xv, rows); /* a rehearsal leaves random values */
	BOTH(&pair, step_begin, &batch);
	MUST(pair.b[0]->ops->linear(pair.b[0], w.w[0], NULL, &x.a[0], &gated.a[0]));
	MUST(pair.b[0]->ops->silu_gate(pair.b[0], &gated.a[0], &y.a[0]));
	MUST(cuda->ops->linear_silu(cuda, w.w[1], &x.a[1], &gated.a[1], &y.a[1]));
	compare(totals, name, &pair, &y, rows);
	free(wv), free(xv);
	close_pair(&pair);
}

/* ---- Stored weights ---- */

/* How many values of PARTS, loaded as one stack, are not those that the file means, rounded to the type. */
static double stored_differences(const struct pair *pair, const struct weight_desc *parts, uint32_t count)
{
	static float           got[256 * 1024], row[1024];
	struct backend        *b = pair->b[1];
	struct backend_weight *w;
	struct activation      y;
	struct batch           batch = { 0 };
	struct error           error;
	int32_t                tokens[256], positions[256] = { 0 };
	uint32_t               rows = 0, at = 0;
	double                 different = 0;
	enum status            status;

	for (uint32_t i = 0; i < count; i++)
		rows += (uint32_t)parts[i].rows;
	batch = rows_batch(rows);
	for (uint32_t r = 0; r < rows; r++)
		tokens[r] = (int32_t)r;
	batch.tokens = tokens;
	batch.positions = positions;
	MUST_SAY(b->ops->weight_load(b, parts, count, &w, &error), error);
	MUST(b->ops->activation_alloc(b, rows, (uint32_t)parts[0].columns, &y));
	MUST(b->ops->step_begin(b, &batch));
	status = b->ops->embed(b, w, &y);
	if (status == STATUS_UNSUPPORTED) { /* a layout that is only multiplied with */
		b->ops->activation_free(b, &y);
		b->ops->weight_free(b, w);
		return -1;
	}
	MUST(status);
	MUST(b->ops->activation_get(b, &y, got, rows));
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t r = 0; r < parts[i].rows; r++, at++) {
			weight_read_row(&parts[i], r, row);
			for (uint32_t k = 0; k < parts[i].columns; k++)
				different += got[(size_t)at * parts[i].columns + k] != rounded(row[k], pair->dtype);
		}
	b->ops->activation_free(b, &y);
	b->ops->weight_free(b, w);
	return different;
}

/* Every stored format, bit for bit; alone, and stacks of several; and again after memory for loading was given back. */
static void case_stored(struct totals *totals, int dtype)
{
	struct pair          pair = open_pair(totals, dtype, &(struct backend_limits){ .rows = 256, .logit_rows = 1, .vocab = 64,
	    .width = 1024, .q_heads = 1, .head_dim = 64 });
	struct weight_desc   stack[8];
	struct stored_matrix made[STORED_CASES];
	struct backend_memory memory;
	uint32_t             count = 0;
	char                 name[96], label[128];

	for (unsigned i = 0; i < STORED_CASES; i++) {
		double different;

		made[i] = stored_make(&stored_cases[i], 500 + i);
		different = stored_differences(&pair, &made[i].w, 1);
		snprintf(label, sizeof label, "values of %s", stored_name(&stored_cases[i], name));
		if (different >= 0)
			note(totals, label, &pair, different, 0);
		if (made[i].w.columns == 64 && count < 8)
			stack[count++] = made[i].w;
	}
	MUST(pair.b[1]->ops->memory(pair.b[1], &memory)); /* gives back what loading took */
	for (uint32_t n = 2; n <= count; n++) {
		double different = stored_differences(&pair, stack, n);

		if (different >= 0)
			note(totals, "values of a stack", &pair, different, 0);
	}
	for (unsigned i = 0; i < STORED_CASES; i++)
		free(made[i].bytes);
	close_pair(&pair);
}

enum { MIXED_PARTS = 3 };

/* Products with weights of four bits: with kernels = own they stay so. */
static const struct stored_case four_bits[] = {
	{ .format = WEIGHT_Q4_0, .rows = 257, .columns = 512 }, { .format = WEIGHT_Q4_1, .rows = 576, .columns = 576 },
	{ .format = WEIGHT_Q4_K, .rows = 33, .columns = 1536 },
	{ .format = WEIGHT_I4, .rows = 1000, .columns = 203, .zeros = WEIGHT_ZEROS_ROWS, .scale_type = WEIGHT_BF16, .block_rows = 1,
		.block_columns = 32 },
	{ .format = WEIGHT_I4, .rows = 129, .columns = 640, .packing = WEIGHT_PACKED_GPTQ, .zeros = WEIGHT_ZEROS_GPTQ, .add = 1,
		.scale_type = WEIGHT_F16, .block_rows = 1, .block_columns = 128, .transposed = 1 },
	{ .format = WEIGHT_I4, .rows = 4608, .columns = 1024, .packing = WEIGHT_PACKED_AWQ, .zeros = WEIGHT_ZEROS_AWQ,
		.scale_type = WEIGHT_F16, .block_rows = 1, .block_columns = 64, .transposed = 1 },
	/* Panels of 5 to 8 tiles, of 9 to 16, of more, on 132 multiprocessors. */
	{ .format = WEIGHT_I4, .rows = 13000, .columns = 160, .scale_type = WEIGHT_F32, .block_rows = 1, .block_columns = 32 },
	{ .format = WEIGHT_I4, .rows = 27000, .columns = 384, .scale_type = WEIGHT_BF16, .block_rows = 1, .block_columns = 128 },
	{ .format = WEIGHT_I4, .rows = 40000, .columns = 256, .zeros = WEIGHT_ZEROS_ROWS, .scale_type = WEIGHT_BF16, .block_rows = 1,
		.block_columns = 128 },
};

/* Formats of GGUF that lie in eight bits. */
static const struct stored_case eight_bits[] = {
	{ .format = WEIGHT_Q8_0, .rows = 257, .columns = 512 }, { .format = WEIGHT_Q5_0, .rows = 576, .columns = 576 },
	{ .format = WEIGHT_Q5_1, .rows = 100, .columns = 1056 }, { .format = WEIGHT_Q5_K, .rows = 33, .columns = 1536 },
	{ .format = WEIGHT_Q6_K, .rows = 131, .columns = 768 }, { .format = WEIGHT_Q6_K, .rows = 13000, .columns = 256 },
	{ .format = WEIGHT_Q8_0, .rows = 24000, .columns = 160 }, { .format = WEIGHT_Q8_0, .rows = 4608, .columns = 1024 },
};

/* Stacks whose parts are stored in different ways: each keeps its own where its rows begin at multiples of 8. */
static const struct stored_case mixed[][MIXED_PARTS] = {
	{ { .format = WEIGHT_Q4_K, .rows = 128, .columns = 512 }, { .format = WEIGHT_Q4_K, .rows = 72, .columns = 512 },
		{ .format = WEIGHT_Q6_K, .rows = 57, .columns = 512 } },
	{ { .format = WEIGHT_BF16, .rows = 40, .columns = 256 }, { .format = WEIGHT_Q8_0, .rows = 64, .columns = 256 },
		{ .format = WEIGHT_Q4_1, .rows = 16, .columns = 256 } },
	{ { .format = WEIGHT_Q4_0, .rows = 576, .columns = 576 }, { .format = WEIGHT_Q4_1, .rows = 192, .columns = 576 },
		{ .format = WEIGHT_Q4_0, .rows = 192, .columns = 576 } },
	{ { .format = WEIGHT_Q4_0, .rows = 20, .columns = 64 }, { .format = WEIGHT_Q4_1, .rows = 21, .columns = 64 },
		{ .format = WEIGHT_Q8_0, .rows = 5, .columns = 64 } },
};

/* A product with COUNT parts in a stack. */
static void case_stack(struct totals *totals, int dtype, const struct stored_case *c, uint32_t count, uint32_t rows)
{
	struct random        random = { c->rows * 31 + c->columns * 7 + rows };
	struct pair          pair = open_pair(totals, dtype, &(struct backend_limits){ .rows = rows, .logit_rows = 1, .vocab = 64,
	    .width = c->columns, .q_heads = 1, .head_dim = 64 });
	struct stored_matrix made[MIXED_PARTS];
	struct weight_desc   parts[MIXED_PARTS];
	struct batch         batch = rows_batch(rows);
	/* Scales of all sizes: sums of float16 would not be numbers. */
	float               *values = random_values(&random, (size_t)rows * c->columns, dtype == F16 ? 1.0f / 64 : 1, 0, dtype);
	struct both          x = make_activation(&pair, rows, c->columns, values), y, w;
	struct error         error;
	uint32_t             width = 0;
	char                 name[96], label[160];

	for (uint32_t i = 0; i < count; i++) {
		made[i] = stored_make(&c[i], rows + i);
		parts[i] = made[i].w;
		width += c[i].rows;
	}
	y = make_activation(&pair, rows, width, NULL);
	for (int i = 0; i < 2; i++)
		MUST_SAY(pair.b[i]->ops->weight_load(pair.b[i], parts, count, &w.w[i], &error), error);
	snprintf(label, sizeof label, "linear %u × %u of %s%s, %u rows", width, c->columns, stored_name(c, name),
	    count > 1 ? " and others" : "", rows);
	BOTH(&pair, step_begin, &batch);
	BOTH(&pair, linear, w.w[i], NULL, &x.a[i], &y.a[i]);
	compare(totals, label, &pair, &y, rows);
	for (uint32_t i = 0; i < count; i++)
		free(made[i].bytes);
	free(values);
	close_pair(&pair);
}

/* Gate and up in a stack, which may lie row by row beside each other: the product as a whole; and silu(gate) · up in one operation,
 * with the bits of two. */
static const struct stored_case gate_ups[] = {
	{ .format = WEIGHT_I4, .rows = 1008, .columns = 640, .packing = WEIGHT_PACKED_AWQ, .zeros = WEIGHT_ZEROS_AWQ,
		.scale_type = WEIGHT_F16, .block_rows = 1, .block_columns = 128, .transposed = 1 },
	{ .format = WEIGHT_I4, .rows = 16000, .columns = 384, .scale_type = WEIGHT_BF16, .block_rows = 1, .block_columns = 128 },
	{ .format = WEIGHT_I4, .rows = 23200, .columns = 160, .scale_type = WEIGHT_F32, .block_rows = 1, .block_columns = 32 },
	{ .format = WEIGHT_Q4_1, .rows = 576, .columns = 576 }, { .format = WEIGHT_Q4_K, .rows = 48, .columns = 1536 },
	{ .format = WEIGHT_Q8_0, .rows = 1536, .columns = 576 }, { .format = WEIGHT_Q6_K, .rows = 80, .columns = 768 },
	{ .format = WEIGHT_Q4_0, .rows = 72, .columns = 512 }, /* not whole tiles */
};

static void case_gate_up(struct totals *totals, int dtype, const struct stored_case *c, uint32_t rows)
{
	struct random        random = { c->rows * 37 + c->columns * 7 + rows };
	struct pair          pair = open_pair(totals, dtype, &(struct backend_limits){ .rows = rows, .logit_rows = 1, .vocab = 64,
	    .width = c->columns > 2 * c->rows ? c->columns : 2 * c->rows, .q_heads = 1, .head_dim = 64 });
	struct stored_matrix made[2] = { stored_make(c, rows), stored_make(c, rows + 1) };
	struct weight_desc   parts[2] = { made[0].w, made[1].w };
	struct batch         batch = rows_batch(rows);
	struct backend      *cuda = pair.b[1];
	float               *values = random_values(&random, (size_t)rows * c->columns, dtype == F16 ? 1.0f / 64 : 1, 0, dtype);
	size_t               count = (size_t)rows * c->rows;
	float               *two = malloc(count * sizeof *two), *one = malloc(count * sizeof *one);
	struct both          x = make_activation(&pair, rows, c->columns, values), gate_up, y, w;
	double               different = 0;
	struct error         error;
	char                 name[96], label[160];

	gate_up = make_activation(&pair, rows, 2 * c->rows, NULL);
	y = make_activation(&pair, rows, c->rows, NULL);
	for (int i = 0; i < 2; i++)
		MUST_SAY(pair.b[i]->ops->weight_load(pair.b[i], parts, 2, &w.w[i], &error), error);
	snprintf(label, sizeof label, "gate and up %u × %u of %s, %u rows", c->rows, c->columns, stored_name(c, name), rows);
	BOTH(&pair, step_begin, &batch);
	BOTH(&pair, linear, w.w[i], NULL, &x.a[i], &gate_up.a[i]);
	compare(totals, label, &pair, &gate_up, rows);
	MUST(cuda->ops->silu_gate(cuda, &gate_up.a[1], &y.a[1]));
	MUST(cuda->ops->activation_get(cuda, &y.a[1], two, rows));
	MUST(cuda->ops->linear_silu(cuda, w.w[1], &x.a[1], &gate_up.a[1], &y.a[1]));
	MUST(cuda->ops->activation_get(cuda, &y.a[1], one, rows));
	for (size_t i = 0; i < count; i++)
		different += memcmp(&one[i], &two[i], sizeof *one) != 0;
	snprintf(label, sizeof label, "gate and up with silu %u × %u of %s, %u rows: other bits", c->rows, c->columns,
	    stored_name(c, name), rows);
	note(totals, label, &pair, different, 0);
	for (int i = 0; i < 2; i++)
		free(made[i].bytes);
	free(values), free(one), free(two);
	close_pair(&pair);
}

/* Weights that read a normed stream of one row: the product does the norm there (norm_take), and leaves the stream as a kernel of
 * its own leaves it. */
static const struct stored_case postponed[] = {
	{ .format = WEIGHT_I4, .rows = 1000, .columns = 4096, .packing = WEIGHT_PACKED_AWQ, .zeros = WEIGHT_ZEROS_AWQ,
		.scale_type = WEIGHT_F16, .block_rows = 1, .block_columns = 128, .transposed = 1 },
	{ .format = WEIGHT_I4, .rows = 7000, .columns = 1152, .scale_type = WEIGHT_BF16, .block_rows = 1, .block_columns = 128 },
	{ .format = WEIGHT_I4, .rows = 36000, .columns = 128, .scale_type = WEIGHT_F32, .block_rows = 1, .block_columns = 32 },
	{ .format = WEIGHT_Q4_0, .rows = 129, .columns = 6144 }, { .format = WEIGHT_Q4_K, .rows = 80, .columns = 8192 },
	{ .format = WEIGHT_Q8_0, .rows = 300, .columns = 4736 },
};

static void case_postponed(struct totals *totals, int dtype, const struct stored_case *c)
{
	const uint32_t       width = c->columns;
	struct random        random = { c->rows * 41 + width };
	struct pair          pair = open_pair(totals, dtype, &(struct backend_limits){ .rows = 1, .logit_rows = 1, .vocab = 64,
	    .width = width, .q_heads = 1, .head_dim = 64, .stream = width });
	struct stored_matrix made = stored_make(c, 1);
	struct batch         batch = rows_batch(1);
	struct backend      *cuda = pair.b[1];
	float               *dv = random_values(&random, width, 1, 0, dtype);
	float               *ev = random_values(&random, (size_t)50 * width, 1, 0, dtype);
	float               *wv = random_values(&random, width, dtype == F16 ? 1.0f / 64 : 1, 0, F32);
	float               *one = malloc(c->rows * sizeof *one), *two = malloc(c->rows * sizeof *two);
	struct both          d = make_activation(&pair, 1, width, NULL), x = make_activation(&pair, 1, width, NULL);
	struct both          y = make_activation(&pair, 1, width, NULL), z = make_activation(&pair, 1, c->rows, NULL);
	struct both          e = make_weight(&pair, 50, width, ev), norm = make_weight(&pair, 1, width, wv), w;
	struct error         error;
	char                 name[96], label[160];

	for (int i = 0; i < 2; i++)
		MUST_SAY(pair.b[i]->ops->weight_load(pair.b[i], &made.w, 1, &w.w[i], &error), error);
	for (int inner = 0; inner < 2; inner++) {
		double different = 0;

		for (int alone = 1; alone >= 0; alone--) { /* reading y asks for the norm before the product comes */
			BOTH(&pair, step_begin, &batch);
			BOTH(&pair, embed, e.w[i], &x.a[i]);
			BOTH(&pair, activation_put, &d.a[i], dv, 1);
			if (inner)
				BOTH(&pair, rms_norm, &d.a[i], NULL, norm.w[i], 1e-5f, &d.a[i]);
			BOTH(&pair, rms_norm, &x.a[i], &d.a[i], norm.w[i], 1e-5f, &y.a[i]);
			if (alone)
				compare(totals, "a norm before a product", &pair, &y, 1);
			BOTH(&pair, linear, w.w[i], NULL, &y.a[i], &z.a[i]);
			MUST(cuda->ops->activation_get(cuda, &z.a[1], alone ? two : one, 1));
		}
		snprintf(label, sizeof label, "normed product %u × %u of %s", c->rows, width, stored_name(c, name));
		compare(totals, label, &pair, &z, 1);
		compare(totals, "a product's norm", &pair, &y, 1);
		compare(totals, "the stream behind a product's norm", &pair, &x, 1);
		for (uint32_t i = 0; i < c->rows; i++)
			different += memcmp(&one[i], &two[i], sizeof *one) != 0;
		note(totals, "a product with its norm: other bits", &pair, different, 0);
	}
	free(made.bytes);
	free(dv), free(ev), free(wv), free(one), free(two);
	close_pair(&pair);
}

/* ---- What the host reads and writes ---- */

/* Logits of the rows that were asked for, and of no others, whatever became of the caller's batch. */
static void case_reading(struct totals *totals, int dtype)
{
	enum { ROWS = 5, VOCAB = 200, WIDTH = 64 };
	struct random random = { 17 };
	struct pair   pair = open_pair(totals, dtype, &(struct backend_limits){ .rows = 8, .logit_rows = 8, .vocab = VOCAB,
	    .width = WIDTH, .q_heads = 1, .head_dim = 64 });
	float        *xv = random_values(&random, ROWS * WIDTH, 1, 0, dtype), *wv = random_values(&random, VOCAB * WIDTH, 1, 0, dtype);
	float        *nv = random_values(&random, WIDTH, 0.5f, 1, F32), got[2][VOCAB];
	struct both   x = make_activation(&pair, 8, WIDTH, NULL), w = make_weight(&pair, VOCAB, WIDTH, wv);
	struct both   norm = make_weight(&pair, 1, WIDTH, nv);
	struct batch  batch = rows_batch(ROWS);
	struct error  error;

	batch.logit_row_count = 3;
	BOTH(&pair, step_begin, &batch);
	BOTH(&pair, activation_put, &x.a[i], xv, ROWS);
	BOTH(&pair, logits, &x.a[i], NULL, norm.w[i], 1e-5f, w.w[i]);
	for (int i = 0; i < 2; i++)
		MUST_SAY(pair.b[i]->ops->wait(pair.b[i], NULL, 0, &error), error);
	memset(&batch, 0xff, sizeof batch); /* it was the caller's until then */
	for (uint32_t r = 0; r < 3; r++) {
		BOTH(&pair, read_logits, r, got[i], VOCAB);
		note(totals, "logits read", &pair, rows_error(got[0], got[1], 1, VOCAB), dtypes[dtype].tolerance);
	}
	for (uint32_t r = 3; r < 9; r++)
		note(totals, "logits that nobody asked for", &pair, pair.b[1]->ops->read_logits(pair.b[1], r, got[1], VOCAB) !=
		    STATUS_INVALID, 0);
	note(totals, "more logits than there are", &pair, pair.b[1]->ops->read_logits(pair.b[1], 0, got[1], VOCAB + 64) !=
	    STATUS_INVALID, 0);
	free(xv), free(wv), free(nv);
	close_pair(&pair);
}

/* Values that tests put are there for what is enqueued after them, and not for what was enqueued before. */
static void case_putting(struct totals *totals, int dtype)
{
	enum { ROWS = 1024, WIDTH = 4096, BUSY = 200 };
	struct random random = { 23 };
	struct pair   pair = open_pair(totals, dtype, &(struct backend_limits){ .rows = ROWS, .logit_rows = 1, .vocab = 64,
	    .width = WIDTH, .q_heads = 1, .head_dim = 64 });
	size_t        count = (size_t)ROWS * WIDTH;
	float        *first = random_values(&random, count, 1, 0, dtype), *second = random_values(&random, count, 2, 0.5f, dtype);
	float        *nv = random_values(&random, WIDTH, 0.5f, 1, F32);
	struct both   x = make_activation(&pair, ROWS, WIDTH, first), y = make_activation(&pair, ROWS, WIDTH, NULL);
	struct both   norm = make_weight(&pair, 1, WIDTH, nv);
	struct batch  batch = rows_batch(ROWS);

	BOTH(&pair, step_begin, &batch);
	BOTH(&pair, rms_norm, &x.a[i], NULL, norm.w[i], 1e-5f, &y.a[i]);
	for (int n = 0; n < BUSY; n++) /* the device has enough to do when the next values come */
		MUST(pair.b[1]->ops->rms_norm(pair.b[1], &x.a[1], NULL, norm.w[1], 1e-5f, &y.a[1]));
	BOTH(&pair, activation_put, &x.a[i], second, ROWS);
	compare(totals, "what was enqueued before values were put", &pair, &y, ROWS);
	for (int n = 0; n < 4; n++) {
		BOTH(&pair, activation_put, &x.a[i], n % 2 ? first : second, ROWS);
		BOTH(&pair, rms_norm, &x.a[i], NULL, norm.w[i], 1e-5f, &y.a[i]);
		compare(totals, "values that were put just before", &pair, &y, ROWS);
	}
	free(first), free(second), free(nv);
	close_pair(&pair);
}

/* Weights of one byte: stored formats with scales, and what checkpoints want done to inputs. */
static const struct byte_case {
	enum weight_format format;
	enum weight_input  input;
	uint32_t n, k, block_rows, block_columns; /* of a scale; 0: all there are */
	float    size;                            /* of scales */
	bool     subnormal;                       /* all weights are: whoever flushes one gets zeroes */
} byte_cases[] = {
	{ WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_GROUP, 576, 576, 128, 128, 1e-2f, false },
	{ WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_GROUP, 129, 1100, 128, 128, 1e-6f, false },
	{ WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_GROUP, 9001, 200, 128, 128, 1e-2f, false }, /* more than a tile has */
	{ WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_TOKEN, 200, 4104, 1, 0, 1e-2f, false },
	{ WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_TOKEN, 77, 77, 0, 0, 1e3f, false },
	{ WEIGHT_F8_E4M3, WEIGHT_INPUT_FLOAT, 576, 576, 128, 128, 1e-2f, false },
	{ WEIGHT_F8_E4M3, WEIGHT_INPUT_FLOAT, 1001, 77, 1, 0, 1e-2f, false },
	{ WEIGHT_F8_E4M3, WEIGHT_INPUT_FLOAT, 200, 1100, 1, 0, 1, true },
	{ WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_TOKEN, 200, 1100, 1, 0, 1, true },
	{ WEIGHT_I8, WEIGHT_INPUT_I8_TOKEN, 576, 576, 1, 0, 1e-2f, false },
	{ WEIGHT_I8, WEIGHT_INPUT_I8_TOKEN, 9001, 129, 1, 0, 1e-2f, false },
	{ WEIGHT_I8, WEIGHT_INPUT_FLOAT, 200, 1100, 1, 0, 1e-2f, false },
	{ WEIGHT_I8, WEIGHT_INPUT_FLOAT, 200, 1100, 128, 128, 1e-2f, false }, /* int8 in groups that kernels have */
	{ WEIGHT_I8, WEIGHT_INPUT_FLOAT, 64, 256, 1, 32, 1e-2f, false },      /* … and have not */
};

static void case_bytes(struct totals *totals, int dtype, const struct byte_case *c, uint32_t rows)
{
	struct random      random = { c->n * 31 + c->k * 7 + rows };
	struct pair        pair = open_pair(totals, dtype, &(struct backend_limits){ .rows = rows, .logit_rows = 1, .vocab = 64,
	    .width = c->k,
	    .q_heads = 1, .head_dim = 64 });
	struct batch       batch = rows_batch(rows);
	uint64_t           row_blocks = c->block_rows ? (c->n + c->block_rows - 1) / c->block_rows : 1;
	uint64_t           column_blocks = c->block_columns ? (c->k + c->block_columns - 1) / c->block_columns : 1;
	uint8_t           *values = malloc((size_t)c->n * c->k);
	float              size = dtype == F16 && c->size > 1 ? 1 : c->size; /* neither weights nor results would be float16 */
	float             *scales = random_values(&random, row_blocks * column_blocks, size / 2, size, F32);
	float             *xv = random_values(&random, (size_t)rows * c->k, 1, 0, dtype);
	struct weight_desc desc = { .name = "w", .format = c->format, .input = c->input, .rows = c->n, .columns = c->k, .data = values,
		.bytes = (size_t)c->n * c->k, .scales = { .data = scales, .bytes = row_blocks * column_blocks * sizeof *scales,
		.type = WEIGHT_F32, .block_rows = c->block_rows, .block_columns = c->block_columns, .row_blocks = row_blocks,
		.column_blocks = column_blocks } };
	struct both  w, x, y;
	struct error error;
	char         name[128];
	float       *got[2];

	for (size_t i = 0; i < (size_t)c->n * c->k; i++) {
		values[i] = (uint8_t)random_u64(&random);
		if (c->format == WEIGHT_F8_E4M3 && (values[i] & 0x7f) == 0x7f)
			values[i] = 0;
		if (c->subnormal)
			values[i] &= 0x87;
	}
	if (rows > 2) /* a row of zeroes */
		memset(xv + 2 * (size_t)c->k, 0, c->k * sizeof *xv);
	snprintf(name, sizeof name, "bytes: %s%s, inputs %d, %u × %u, scales %u × %u, %u rows", c->subnormal ? "subnormal " : "",
	    c->format == WEIGHT_I8 ? "int8" : "e4m3", c->input,
	    c->n, c->k, c->block_rows, c->block_columns, rows);
	for (int i = 0; i < 2; i++)
		MUST_SAY(pair.b[i]->ops->weight_load(pair.b[i], &desc, 1, &w.w[i], &error), error);
	x = make_activation(&pair, rows, c->k, xv);
	y = make_activation(&pair, rows, c->n, NULL);
	BOTH(&pair, step_begin, &batch);
	BOTH(&pair, linear, w.w[i], NULL, &x.a[i], &y.a[i]);
	for (int i = 0; i < 2; i++) {
		got[i] = malloc(((size_t)rows * c->n + 1) * sizeof **got);
		MUST(pair.b[i]->ops->activation_get(pair.b[i], &y.a[i], got[i], rows));
	}
	/* Tensor cores add up e4m3 in fewer bits than float32 has. */
	note(totals, name, &pair, rows_error(got[0], got[1], rows, c->n),
	    c->input == WEIGHT_INPUT_F8_GROUP || c->input == WEIGHT_INPUT_F8_TOKEN ? fmax(dtypes[dtype].tolerance, 1e-3) :
	    dtypes[dtype].tolerance);
	free(values), free(scales), free(xv), free(got[0]), free(got[1]);
	close_pair(&pair);
}

/* ---- Attention ---- */

struct attention_case {
	uint32_t head_dim, q_heads, kv_heads, block_size, dims;
	bool     interleaved, bias, norms, full;
	uint32_t count;
	struct {
		uint32_t rows, context;
	} sequences[8];
};

/* What the cache holds, and where q, k and v come from: a product, norms and rotation, or the same values put into both
 * backends, so that bytes are the same too.  What comes of a product may be rounded to another byte. */
struct cache_kind {
	const char  *name;
	enum kv_type type;
	bool         put;
	double       tolerance[DTYPES]; /* 0: as ever */
};
static const struct cache_kind cache_float = { "", KV_FLOAT, false, { 0 } };
static const struct cache_kind cache_bytes[] = {
	{ ", fp8 cache", KV_F8, true, { 0 } }, { ", int8 cache", KV_I8, true, { 0 } },
	{ ", fp8 cache of a product", KV_F8, false, { 2e-2, 5e-2, 3e-2 } },
	{ ", int8 cache of a product", KV_I8, false, { 1e-2, 3e-2, 2e-2 } },
};

struct attention_world {
	struct pair          pair;
	struct both          w, bias, q_norm, k_norm, qkv, x, y;
	float               *xv;
	struct rope_desc     rope;
	bool                 put;
	struct batch         batch;
	struct batch_sequence sequences[SEQUENCES_MAX];
	int32_t table[8][BLOCKS_MAX / 8], positions[ROWS_MAX], slots[ROWS_MAX], tokens[ROWS_MAX];
};

enum { INPUTS = 40 };

/* A step of the given rows of each sequence. */
static void attention_step(struct attention_world *world, const struct attention_case *c, const uint32_t *rows,
    const uint32_t *context, struct random *random)
{
	const struct pair *pair = &world->pair;
	uint32_t           total = 0, used = 0;

	for (uint32_t s = 0; s < c->count; s++) {
		if (rows[s] == 0)
			continue;
		world->sequences[used] = (struct batch_sequence){ .first_row = total, .rows = rows[s], .context = context[s],
			.blocks = (context[s] + c->block_size - 1) / c->block_size };
		for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
			world->sequences[used].block_table[g] = world->table[s];
		used++;
		for (uint32_t r = 0; r < rows[s]; r++, total++) {
			uint32_t position = context[s] - rows[s] + r;

			world->positions[total] = (int32_t)position;
			world->slots[total] = world->table[s][position / c->block_size] * (int32_t)c->block_size +
			                      (int32_t)(position % c->block_size);
		}
	}
	world->batch = (struct batch){ .rows = total, .sequence_count = used, .tokens = world->tokens, .positions = world->positions,
		.sequences = world->sequences };
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		world->batch.kv_slots[g] = world->slots;
	for (uint32_t i = 0; i < total * (world->put ? world->qkv.a[0].width : INPUTS); i++)
		world->xv[i] = rounded(random_float(random), pair->dtype);
	BOTH(pair, step_begin, &world->batch);
	if (world->put) {
		BOTH(pair, activation_put, &world->qkv.a[i], world->xv, total);
		BOTH(pair, rope_kv_write, &world->qkv.a[i], 0, 1, c->q_heads, NULL);
		return;
	}
	BOTH(pair, activation_put, &world->x.a[i], world->xv, total);
	BOTH(pair, linear, world->w.w[i], c->bias ? world->bias.w[i] : NULL, &world->x.a[i], &world->qkv.a[i]);
	if (c->norms)
		BOTH(pair, head_norm, &world->qkv.a[i], c->q_heads, c->kv_heads, world->q_norm.w[i], world->k_norm.w[i], 1e-5f);
	BOTH(pair, rope_kv_write, &world->qkv.a[i], 0, 1, c->q_heads, c->dims ? &world->rope : NULL);
}

static void case_attention(struct totals *totals, int dtype, const struct attention_case *c, const struct cache_kind *kind)
{
	struct random           random = { c->head_dim * 131 + c->q_heads };
	struct attention_world *world = calloc(1, sizeof *world);
	struct backend_limits   limits = { .rows = ROWS_MAX, .logit_rows = 8, .vocab = 64, .width = INPUTS, .q_heads = c->q_heads,
		.head_dim = c->head_dim };
	struct kv_group_desc    desc = { 2, c->kv_heads, c->head_dim, c->block_size, 0, KV_PAIRS, kind->type };
	uint32_t                width = (c->q_heads + 2 * c->kv_heads) * c->head_dim, rows[8] = { 0 }, context[8] = { 0 }, total = 0;
	uint32_t                blocks = 0; /* of the longest sequence */
	float                   frequencies[256], *wv, *bv, *nv;
	struct error            error;
	char                    name[160];
	int                     at;

	for (uint32_t s = 0; s < c->count; s++) {
		uint32_t own = (c->sequences[s].context + c->block_size - 1) / c->block_size;

		blocks = own > blocks ? own : blocks;
	}
	desc.blocks = 8 * blocks;
	world->pair = open_pair(totals, dtype, &limits);
	for (int i = 0; i < 2; i++)
		MUST_SAY(world->pair.b[i]->ops->kv_alloc(world->pair.b[i], 0, &desc, &error), error);
	wv = random_values(&random, (size_t)width * INPUTS, 0.5f, 0, dtype);
	bv = random_values(&random, width, 0.5f, 0, F32);
	nv = random_values(&random, c->head_dim, 0.5f, 1, F32);
	world->put = kind->put;
	world->xv = malloc((size_t)ROWS_MAX * (kind->put ? width : INPUTS) * sizeof(float));
	world->w = make_weight(&world->pair, width, INPUTS, wv);
	world->bias = make_weight(&world->pair, 1, width, bv);
	world->q_norm = world->k_norm = make_weight(&world->pair, 1, c->head_dim, nv);
	world->qkv = make_activation(&world->pair, ROWS_MAX, width, NULL);
	world->x = make_activation(&world->pair, ROWS_MAX, INPUTS, NULL);
	world->y = make_activation(&world->pair, ROWS_MAX, c->q_heads * c->head_dim, NULL);
	for (uint32_t i = 0; i < c->dims / 2; i++)
		frequencies[i] = (float)pow(10000, -2.0 * i / c->dims);
	world->rope = (struct rope_desc){ c->interleaved ? ROPE_INTERLEAVED : ROPE_HALF, c->dims, frequencies, 1 };
	for (uint32_t s = 0; s < 8; s++) /* blocks lie apart and backwards */
		for (uint32_t i = 0; i < blocks; i++)
			world->table[s][i] = (int32_t)(desc.blocks - 1 - (i * 8 + s));
	at = snprintf(name, sizeof name, "attention%s of %u over %u heads of %u, pages of %u%s%s:", c->full ? ", full," : "",
	    c->q_heads, c->kv_heads, c->head_dim, c->block_size, c->norms ? ", norms" : "", kind->name);
	for (uint32_t s = 0; s < c->count; s++) {
		at += snprintf(name + at, sizeof name - (size_t)at, " %u of %u", c->sequences[s].rows, c->sequences[s].context);
		/* What came before, alone. */
		for (uint32_t done = 0, before = c->sequences[s].context - c->sequences[s].rows; done < before; done += rows[s]) {
			memset(rows, 0, sizeof rows);
			rows[s] = before - done < ROWS_MAX ? before - done : ROWS_MAX;
			context[s] = done + rows[s];
			attention_step(world, c, rows, context, &random);
		}
	}
	for (uint32_t s = 0; s < c->count; s++) {
		rows[s] = c->sequences[s].rows;
		context[s] = c->sequences[s].context;
		total += rows[s];
	}
	for (int repeat = 0; repeat < 2; repeat++) { /* counters of the first must have come back to 0 */
		attention_step(world, c, rows, context, &random);
		compare(totals, name, &world->pair, &world->qkv, total);
		if (c->full)
			BOTH(&world->pair, attention_full, &world->qkv.a[i], 0, 1, c->q_heads, 1 / sqrtf((float)c->head_dim), &world->y.a[i]);
		else
			BOTH(&world->pair, attention, &world->qkv.a[i], 0, 1, c->q_heads, 1 / sqrtf((float)c->head_dim), &world->y.a[i]);
		compare_within(totals, name, &world->pair, &world->y, total, kind->tolerance[dtype]);
	}
	free(wv), free(bv), free(nv), free(world->xv);
	close_pair(&world->pair);
	free(world);
}

/* ---- A product and what rope_kv_write makes of it ---- */

static const struct heads_case {
	uint32_t q_heads, kv_heads, head_dim, block_size, dims, k;
	bool     bias;
	enum weight_format format; /* of what is stored otherwise only bits are compared */
	enum weight_input  input;
} heads_cases[] = {
	{ 4, 1, 16, 4, 8, 64, true, WEIGHT_F32, WEIGHT_INPUT_FLOAT }, { 4, 2, 64, 64, 32, 72, false, WEIGHT_F32, WEIGHT_INPUT_FLOAT },
	{ 2, 1, 66, 4, 66, 128, true, WEIGHT_F32, WEIGHT_INPUT_FLOAT }, { 9, 3, 24, 16, 10, 64, true, WEIGHT_F32, WEIGHT_INPUT_FLOAT },
	{ 6, 2, 64, 64, 0, 64, true, WEIGHT_F32, WEIGHT_INPUT_FLOAT },
	{ 32, 2, 128, 64, 64, 192, true, WEIGHT_F32, WEIGHT_INPUT_FLOAT },
	{ 48, 8, 128, 64, 64, 128, false, WEIGHT_F32, WEIGHT_INPUT_FLOAT },
	{ 96, 8, 128, 16, 64, 64, true, WEIGHT_F32, WEIGHT_INPUT_FLOAT },
	{ 4, 2, 64, 64, 32, 256, true, WEIGHT_Q4_0, WEIGHT_INPUT_FLOAT },
	{ 32, 2, 128, 64, 64, 256, true, WEIGHT_Q4_K, WEIGHT_INPUT_FLOAT },
	{ 6, 3, 24, 16, 10, 256, true, WEIGHT_Q8_0, WEIGHT_INPUT_FLOAT },
	{ 48, 8, 128, 64, 64, 64, false, WEIGHT_Q4_0, WEIGHT_INPUT_FLOAT },
	{ 4, 2, 64, 64, 32, 256, true, WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_GROUP },
	{ 32, 2, 128, 64, 64, 128, true, WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_TOKEN },
	{ 9, 3, 24, 16, 10, 200, false, WEIGHT_I8, WEIGHT_INPUT_I8_TOKEN },
	{ 48, 8, 128, 64, 64, 128, true, WEIGHT_F8_E4M3, WEIGHT_INPUT_FLOAT },
};

enum { HEADS_ROWS = 64 };

/* ROWS of one sequence from its beginning, which begin and end blocks; the last row is one of padding. */
static struct batch heads_batch(const struct heads_case *c, uint32_t rows, struct batch_sequence *sequence)
{
	static int32_t table[HEADS_ROWS], positions[HEADS_ROWS], slots[HEADS_ROWS];
	struct batch   batch = rows_batch(rows);
	uint32_t       used = rows > 2 ? rows - 1 : rows, blocks = (used + c->block_size - 1) / c->block_size;

	*sequence = (struct batch_sequence){ .rows = used, .context = used, .blocks = blocks };
	for (uint32_t r = 0; r < rows; r++) {
		table[r / c->block_size] = (int32_t)(blocks - 1 - r / c->block_size);
		positions[r] = (int32_t)r;
		slots[r] = r < used ? table[r / c->block_size] * (int32_t)c->block_size + (int32_t)(r % c->block_size) : -1;
	}
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++) {
		sequence->block_table[g] = table;
		batch.kv_slots[g] = slots;
	}
	batch.positions = positions;
	batch.sequences = sequence;
	batch.sequence_count = 1;
	return batch;
}

static struct both heads_weight(const struct pair *pair, const struct heads_case *c, uint32_t width, struct random *random)
{
	float               *values = random_values(random, (size_t)width * c->k, 0.3f, 0, pair->dtype);
	bool                 blocks = c->input == WEIGHT_INPUT_F8_GROUP, bytes = c->format == WEIGHT_F8_E4M3 || c->format == WEIGHT_I8;
	struct stored_case   stored = { .format = c->format, .rows = width, .columns = c->k, .scale_type = WEIGHT_F32,
		.block_rows = blocks ? 128 : 1, .block_columns = blocks ? 128 : 0 };
	struct both          both;

	if (c->format == WEIGHT_F32) {
		both = make_weight(pair, width, c->k, values);
	} else {
		struct stored_matrix made = stored_make(&stored, width);
		struct error         error;

		made.w.input = c->input;
		for (size_t i = 0; bytes && i < (size_t)width * c->k; i++) /* numbers */
			((uint8_t *)made.w.data)[i] = (uint8_t)(random_u64(random) & 0xbf);
		for (int i = 0; i < 2; i++)
			MUST_SAY(pair->b[i]->ops->weight_load(pair->b[i], &made.w, 1, &both.w[i], &error), error);
		free(made.bytes);
	}
	free(values);
	return both;
}

/* The second time in one kernel, where there is one: the bits of two, in qkv and in the pages of another layer. */
static void case_heads(struct totals *totals, int dtype, const struct heads_case *c)
{
	static const uint32_t counts[] = { 1, 2, 4, 9, 16, 33, HEADS_ROWS };
	uint32_t              width = (c->q_heads + 2 * c->kv_heads) * c->head_dim;
	struct random         random = { width };
	struct pair           pair = open_pair(totals, dtype,
	    &(struct backend_limits){ .rows = HEADS_ROWS, .logit_rows = 1, .vocab = 64,
	    .width = c->k, .q_heads = c->q_heads, .head_dim = c->head_dim });
	struct kv_group_desc  desc = { 2, c->kv_heads, c->head_dim, c->block_size, HEADS_ROWS, KV_PAIRS, KV_FLOAT };
	float                *bv = random_values(&random, width, 0.5f, 0, F32);
	float                *xv = random_values(&random, (size_t)HEADS_ROWS * c->k, 1, 0, dtype), frequencies[64], *got[2][2];
	struct both           w = heads_weight(&pair, c, width, &random), bias = make_weight(&pair, 1, width, bv);
	struct both           x = make_activation(&pair, HEADS_ROWS, c->k, xv);
	struct both           y = make_activation(&pair, HEADS_ROWS, c->q_heads * c->head_dim, NULL);
	struct rope_desc      rope = { ROPE_INTERLEAVED, c->dims, frequencies, 1.25f };
	struct error          error;
	char                  name[128];

	for (uint32_t i = 0; i < c->dims / 2; i++)
		frequencies[i] = (float)pow(100, -2.0 * i / c->dims);
	for (int i = 0; i < 2; i++)
		MUST_SAY(pair.b[i]->ops->kv_alloc(pair.b[i], 0, &desc, &error), error);
	for (int i = 0; i < 4; i++)
		got[i / 2][i % 2] = calloc((size_t)HEADS_ROWS * width, sizeof(float));
	for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
		struct batch_sequence sequence;
		struct batch          batch = heads_batch(c, counts[n], &sequence);
		struct both           qkv = make_activation(&pair, HEADS_ROWS, width, NULL);

		snprintf(name, sizeof name, "heads of a product of format %d, %u over %u of %u, %u rotated, pages of %u%s, %u rows",
		    c->format, c->q_heads, c->kv_heads, c->head_dim, c->dims, c->block_size, c->bias ? ", bias" : "", counts[n]);
		for (uint32_t layer = 0; layer < 2; layer++) {
			BOTH(&pair, step_begin, &batch);
			BOTH(&pair, linear, w.w[i], c->bias ? bias.w[i] : NULL, &x.a[i], &qkv.a[i]);
			BOTH(&pair, rope_kv_write, &qkv.a[i], 0, layer, c->q_heads, c->dims ? &rope : NULL);
			if (c->format == WEIGHT_F32)
				compare(totals, name, &pair, &qkv, counts[n]);
			BOTH(&pair, attention, &qkv.a[i], 0, layer, c->q_heads, 0.1f, &y.a[i]);
			if (c->format == WEIGHT_F32)
				compare(totals, name, &pair, &y, sequence.rows);
			MUST(pair.b[1]->ops->activation_get(pair.b[1], &qkv.a[1], got[layer][0], counts[n]));
			MUST(pair.b[1]->ops->activation_get(pair.b[1], &y.a[1], got[layer][1], sequence.rows));
		}
		for (int i = 0; i < 2; i++)
			note(totals, name, &pair, memcmp(got[0][i], got[1][i], (size_t)HEADS_ROWS * width * sizeof(float)) != 0, 0);
		drop_activation(&pair, &qkv);
	}
	free(bv), free(xv), free(got[0][0]), free(got[0][1]), free(got[1][0]), free(got[1][1]);
	close_pair(&pair);
}

/* ---- Sampling ---- */

enum { SAMPLE_WIDTH = 64, SAMPLE_VOCAB = 30011, SAMPLE_LIMIT = 30000 };

/* Both backends with the same logits, to the bit: each is one product.  Some rows have ties, one is steep, one has nothing
 * finite about it. */
struct sample_world {
	struct pair   pair;
	struct batch  batch;
	struct random random;
	float        *xv, *wv;
};

static void open_samples(struct sample_world *world, const struct totals *totals)
{
	struct both x, w, norm;
	float       nv[SAMPLE_WIDTH];

	world->random.state = 99;
	world->pair = open_pair(totals, F32, &(struct backend_limits){ .rows = SAMPLE_WIDTH, .logit_rows = SAMPLE_WIDTH,
	    .vocab = SAMPLE_VOCAB, .width = SAMPLE_WIDTH, .q_heads = 1, .head_dim = 8 });
	world->batch = rows_batch(SAMPLE_WIDTH);
	world->xv = calloc(SAMPLE_WIDTH * SAMPLE_WIDTH, sizeof *world->xv);
	world->wv = random_values(&world->random, (size_t)SAMPLE_VOCAB * SAMPLE_WIDTH, 8, 0, F32);
	for (uint32_t r = 0; r < SAMPLE_WIDTH; r++) {
		world->xv[r * SAMPLE_WIDTH + r] = 8; /* mean of squares 1 */
		nv[r] = 0.125f;
	}
	for (uint32_t v = 0; v < SAMPLE_VOCAB; v++) {
		world->wv[v * SAMPLE_WIDTH] = (float)(v % 5);
		world->wv[v * SAMPLE_WIDTH + 1] *= 6;
		world->wv[v * SAMPLE_WIDTH + 2] = floorf(world->wv[v * SAMPLE_WIDTH + 2]);
	}
	world->wv[777 * SAMPLE_WIDTH + 3] = INFINITY;
	x = make_activation(&world->pair, SAMPLE_WIDTH, SAMPLE_WIDTH, world->xv);
	w = make_weight(&world->pair, SAMPLE_VOCAB, SAMPLE_WIDTH, world->wv);
	norm = make_weight(&world->pair, 1, SAMPLE_WIDTH, nv);
	world->batch.logit_row_count = SAMPLE_WIDTH;
	BOTH(&world->pair, step_begin, &world->batch);
	BOTH(&world->pair, logits, &x.a[i], NULL, norm.w[i], 0, w.w[i]);
}

static void close_samples(struct sample_world *world)
{
	free(world->xv), free(world->wv);
	close_pair(&world->pair);
}

static void draw_samples(struct sample_world *world, const struct sample_row rows[SAMPLE_WIDTH], int32_t ids[2][SAMPLE_WIDTH])
{
	struct error error;

	BOTH(&world->pair, sample, rows, SAMPLE_WIDTH, SAMPLE_LIMIT);
	for (int i = 0; i < 2; i++)
		MUST_SAY(world->pair.b[i]->ops->wait(world->pair.b[i], ids[i], SAMPLE_WIDTH, &error), error);
}

/* Draws: random numbers, filters in every combination, ties, greedy, logits that are not finite. */
static void case_sample(struct totals *totals)
{
	static const float temperatures[] = { 0, 0.3f, 1, 1.7f }, top_ps[] = { 1, 0.9f, 0.5f, 0.01f }, min_ps[] = { 0, 0.05f, 0.5f };
	static const int32_t top_ks[] = { 0, 1, 2, 40, 1000, 60000 };
	struct sample_world world;
	struct sample_row   rows[SAMPLE_WIDTH];
	int32_t             ids[2][SAMPLE_WIDTH];
	unsigned            different = 0, drawn = 0;
	uint64_t            position = 0;

	open_samples(&world, totals);
	for (size_t t = 0; t < 4; t++) for (size_t k = 0; k < 6; k++) for (size_t p = 0; p < 4; p++) for (size_t m = 0; m < 3; m++) {
		for (uint32_t r = 0; r < SAMPLE_WIDTH; r++)
			rows[r] = (struct sample_row){ .logit_row = SAMPLE_WIDTH - 1 - r, .choice = r % 3, .position = position++,
				.params = { .temperature = temperatures[t], .top_p = top_ps[p], .min_p = min_ps[m], .top_k = top_ks[k],
					.seed = random_u64(&world.random) } };
		draw_samples(&world, rows, ids);
		for (uint32_t r = 0; r < SAMPLE_WIDTH; r++) {
			if (ids[0][r] != ids[1][r] && different++ < 5)
				printf("sample: temperature %g top_k %d top_p %g min_p %g row %u: %d on the CPU, %d\n", (double)temperatures[t],
				    top_ks[k], (double)top_ps[p], (double)min_ps[m], rows[r].logit_row, ids[0][r], ids[1][r]);
			drawn++;
		}
	}
	printf("sample: %u of %u draws differ from the CPU's\n", different, drawn);
	note(totals, "share of draws that differ", &world.pair, different / (double)drawn, 5e-4);
	close_samples(&world);
}

/* What a slot of this test holds, and a mask: of random sizes, from nothing to more than one upload. */
enum { SLOT_PROMPT = 70000, SLOT_STEPS = 24 };
struct slot_case {
	int32_t           *prompt, drawn[SLOT_STEPS], bans[SAMPLE_BANS_MAX];
	struct sample_bias bias[SAMPLE_BIAS_MAX];
	struct sample_slot slot;
	uint32_t           mask[(SAMPLE_VOCAB + 31) / 32];
};

static void make_slot(struct slot_case *c, struct random *random, uint32_t number)
{
	static const uint32_t prompts[] = { 0, 1, 300, SLOT_PROMPT }, biases[] = { 0, 1, 37, SAMPLE_BIAS_MAX };

	c->prompt = malloc(SLOT_PROMPT * sizeof *c->prompt);
	c->slot = (struct sample_slot){ .prompt = c->prompt, .drawn = c->drawn, .bias = c->bias, .bans = c->bans,
		.prompt_tokens = prompts[number % 4], .bias_count = biases[number / 4 % 4],
		.ban_count = number % 3 ? number % SAMPLE_BANS_MAX : 0 };
	for (uint32_t i = 0; i < c->slot.prompt_tokens; i++)
		c->prompt[i] = (int32_t)(random_u64(random) % SAMPLE_VOCAB);
	for (uint32_t i = 0; i < c->slot.bias_count; i++) /* each id once, in no order */
		c->bias[i] = (struct sample_bias){ (int32_t)(i * 7919 % SAMPLE_VOCAB), random_float(random) * 20 };
	for (uint32_t i = 0; i < c->slot.ban_count; i++)
		c->bans[i] = (int32_t)(random_u64(random) % SAMPLE_VOCAB);
	for (size_t i = 0; i < sizeof c->mask / sizeof *c->mask; i++)
		c->mask[i] = number % 8 == 7 ? 1u << i % 32 : (uint32_t)random_u64(random) | (uint32_t)random_u64(random);
}

static struct sample_row slot_row(struct slot_case *c, uint32_t r, uint32_t step)
{
	struct sample_row row = { .logit_row = r, .position = step, .generated = step, .slot = r % 5 == 4 ? 0 : 1 + r,
		.mask = r / 2 % 3 == 2 ? c->mask : NULL };

	row.params = (struct sample_params){ .temperature = (float)(r % 4) * 0.5f, .top_p = r % 3 ? 1 : 0.9f, .top_k = r % 7 ? 0 : 50,
		.min_p = r % 11 ? 0 : 0.02f, .seed = r, .min_tokens = r % 6 == 1 ? SLOT_STEPS / 2 : 0, .logprobs = (r + step) % 22 };
	if (row.slot) {
		row.params.repetition = r % 2 ? 1.2f : r % 8 == 2 ? 0.8f : 0;
		row.params.presence = r % 3 ? 0 : 1.5f;
		row.params.frequency = r % 5 == 1 ? 0.9f : r % 5 == 2 ? -0.3f : 0;
	}
	return row;
}

/* The log probabilities of row R, which both drew alike: how far the values are apart, and how many ids are others. */
static double compare_logprobs(const struct sample_world *world, const struct sample_row *row, uint32_t r, unsigned *other)
{
	struct sample_logprobs got[2];
	double                 worst = 0;

	for (int i = 0; i < 2; i++) {
		enum status status = world->pair.b[i]->ops->read_logprobs(world->pair.b[i], r, &got[i]);
		if (status != (row->params.logprobs ? STATUS_OK : STATUS_INVALID))
			*other += 1;
	}
	if (row->params.logprobs == 0)
		return 0;
	*other += got[0].count != got[1].count;
	for (uint32_t k = 0; k < got[0].count && k < got[1].count; k++) {
		*other += got[0].top[k].id != got[1].top[k].id;
		worst = fmax(worst, fabs((double)got[0].top[k].logprob - (double)got[1].top[k].logprob));
	}
	return fmax(worst, fabs((double)got[0].drawn - (double)got[1].drawn));
}

/* Guesses: rows of one slot that follow each other count them as drawn, and the slot counts what was drawn as far as the next
 * row guessed it; then a plain row shows what the slot has counted. */
static void case_guesses(struct totals *totals)
{
	enum { EACH = 4, SLOTS = SAMPLE_WIDTH / EACH, ROUNDS = 6 };
	struct sample_world world;
	struct sample_row   rows[SAMPLE_WIDTH];
	int32_t             ids[2][SAMPLE_WIDTH], before[SAMPLE_WIDTH] = { 0 }, guesses[SLOTS][EACH];
	unsigned            different = 0, drawn = 0;

	open_samples(&world, totals);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		for (uint32_t s = 0; s < SLOTS; s++)
			BOTH(&world.pair, sample_slot, s, &(struct sample_slot){ 0 });
		for (uint32_t r = 0; r < SAMPLE_WIDTH; r++) {
			uint32_t s = r / EACH, i = r % EACH;

			/* As many guesses are right as the round says: what the round before drew. */
			guesses[s][i] = round > i ? before[r] : (int32_t)(random_u64(&world.random) % 50);
			rows[r] = (struct sample_row){ .logit_row = (r + 4) % SAMPLE_WIDTH, .position = i, .generated = i, .slot = 1 + s,
				.guesses = guesses[s], .guess_count = i,
				.params = { .top_p = 1, .seed = s, .temperature = s % 2 ? 0.7f : 0, .presence = 9, .frequency = 3 } };
		}
		draw_samples(&world, rows, ids);
		memcpy(before, ids[0], sizeof before);
		for (uint32_t r = 0; r < SAMPLE_WIDTH; r++, drawn++)
			different += ids[0][r] != ids[1][r];
		for (uint32_t r = 0; r < SAMPLE_WIDTH; r++) { /* one row for each slot, the others draw plainly */
			rows[r].guess_count = 0;
			rows[r].position = 100;
			rows[r].slot = r % EACH ? 0 : rows[r].slot;
		}
		draw_samples(&world, rows, ids);
		for (uint32_t r = 0; r < SAMPLE_WIDTH; r++, drawn++)
			different += ids[0][r] != ids[1][r];
	}
	printf("guesses: %u of %u draws differ from the CPU's\n", different, drawn);
	note(totals, "share of draws beside guesses that differ", &world.pair, different / (double)drawn, 2e-3);
	close_samples(&world);
}

/* Slots: penalties, biases, bans and masks over several steps in which each backend counts by itself; and log probabilities.
 * A draw that differs is put right, so that the next one can be compared. */
static void case_slots(struct totals *totals)
{
	struct sample_world world;
	struct slot_case   *cases = calloc(SAMPLE_WIDTH, sizeof *cases);
	struct sample_row   rows[SAMPLE_WIDTH];
	int32_t             ids[2][SAMPLE_WIDTH];
	unsigned            different = 0, drawn = 0, other = 0;
	double              worst = 0;

	open_samples(&world, totals);
	for (uint32_t r = 0; r < SAMPLE_WIDTH; r++) {
		make_slot(&cases[r], &world.random, r);
		BOTH(&world.pair, sample_slot, r, &cases[r].slot);
	}
	for (uint32_t step = 0; step < SLOT_STEPS; step++) {
		for (uint32_t r = 0; r < SAMPLE_WIDTH; r++)
			rows[r] = slot_row(&cases[r], r, step);
		draw_samples(&world, rows, ids);
		for (uint32_t r = 0; r < SAMPLE_WIDTH; r++) {
			bool same = ids[0][r] == ids[1][r];

			drawn++;
			if (!same && different++ < 5)
				printf("slots: row %u step %u: %d on the CPU, %d\n", r, step, ids[0][r], ids[1][r]);
			if (ids[0][r] < 0)
				continue;
			if (same)
				worst = fmax(worst, compare_logprobs(&world, &rows[r], r, &other));
			cases[r].drawn[cases[r].slot.drawn_tokens++] = ids[0][r];
			if (!same || (r + step) % 13 == 0) /* as after a preemption */
				BOTH(&world.pair, sample_slot, r, &cases[r].slot);
		}
	}
	printf("slots: %u of %u draws differ from the CPU's, %u ids of log probabilities, which differ by %.1e\n", different, drawn,
	    other, worst);
	note(totals, "share of draws from slots that differ", &world.pair, different / (double)drawn, 2e-3);
	note(totals, "ids of log probabilities", &world.pair, other, 0);
	note(totals, "log probabilities", &world.pair, worst, 2e-5);
	for (uint32_t r = 0; r < SAMPLE_WIDTH; r++)
		free(cases[r].prompt);
	free(cases);
	close_samples(&world);
}

/* ---- Copies of blocks ---- */

static void case_copy(struct totals *totals, int dtype, uint32_t block_size, const struct cache_kind *kind)
{
	struct attention_case c = { .head_dim = 64, .q_heads = 4, .kv_heads = 2, .block_size = block_size, .dims = 64, .count = 1 };
	struct random           random = { 3 };
	struct attention_world *world = calloc(1, sizeof *world);
	struct kv_group_desc    desc = { 2, 2, 64, block_size, BLOCKS_MAX, KV_PAIRS, kind->type };
	uint32_t                width = 8 * 64, rows[8] = { 40 }, context[8] = { 40 };
	int32_t                 from[3], to[3] = { 9, 8, 7 };
	float                   frequencies[32] = { 1, 0.5f }, *wv;
	struct error            error;
	char                    name[80];

	world->pair = open_pair(totals, dtype, &(struct backend_limits){ .rows = ROWS_MAX, .logit_rows = 8, .vocab = 64,
	    .width = INPUTS, .q_heads = 4, .head_dim = 64 });
	for (int i = 0; i < 2; i++)
		MUST_SAY(world->pair.b[i]->ops->kv_alloc(world->pair.b[i], 0, &desc, &error), error);
	wv = random_values(&random, (size_t)width * INPUTS, 0.5f, 0, dtype);
	world->put = kind->put;
	world->xv = malloc((size_t)ROWS_MAX * (kind->put ? width : INPUTS) * sizeof(float));
	world->w = make_weight(&world->pair, width, INPUTS, wv);
	world->qkv = make_activation(&world->pair, ROWS_MAX, width, NULL);
	world->x = make_activation(&world->pair, ROWS_MAX, INPUTS, NULL);
	world->y = make_activation(&world->pair, ROWS_MAX, 4 * 64, NULL);
	world->rope = (struct rope_desc){ ROPE_HALF, 64, frequencies, 1 };
	for (uint32_t i = 0; i < BLOCKS_MAX / 8; i++)
		world->table[0][i] = (int32_t)(i + 100);
	attention_step(world, &c, rows, context, &random);
	for (int k = 0; k < 3; k++)
		from[k] = world->table[0][k];
	BOTH(&world->pair, kv_copy, 0, from, to, 3);
	for (int k = 0; k < 3; k++)
		world->table[0][k] = to[k];
	rows[0] = 1;
	context[0] = 41;
	attention_step(world, &c, rows, context, &random);
	BOTH(&world->pair, attention, &world->qkv.a[i], 0, 1, 4, 0.125f, &world->y.a[i]);
	snprintf(name, sizeof name, "attention over copied blocks%s", kind->name);
	compare(totals, name, &world->pair, &world->y, 1);
	free(wv), free(world->xv);
	close_pair(&world->pair);
	free(world);
}

static const struct attention_case attention_cases[] = {
	{ 64, 4, 2, 16, 64, false, false, false, false, 3, { { 1, 1 }, { 1, 37 }, { 1, 300 } } },
	{ 64, 8, 8, 32, 32, true, true, false, false, 4, { { 2, 2 }, { 8, 100 }, { 3, 129 }, { 1, 2049 } } },
	{ 64, 6, 2, 64, 64, false, true, true, false, 2, { { 70, 70 }, { 130, 500 } } },
	{ 64, 4, 1, 16, 48, true, false, false, false, 4, { { 9, 9 }, { 1, 64 }, { 200, 201 }, { 5, 70 } } },
	{ 64, 4, 4, 64, 0, false, true, false, true, 3, { { 5, 5 }, { 64, 64 }, { 201, 201 } } },
	{ 128, 4, 2, 64, 64, true, true, false, false, 4, { { 1, 65 }, { 1, 200 }, { 1, 1000 }, { 1, 4097 } } },
	{ 128, 16, 1, 16, 128, false, false, true, false, 2, { { 1, 130 }, { 4, 777 } } },
	{ 128, 24, 1, 64, 64, true, false, false, false, 3, { { 1, 200 }, { 8, 260 }, { 100, 333 } } },
	{ 128, 48, 2, 32, 64, true, false, false, false, 2, { { 1, 511 }, { 65, 1100 } } },
	{ 128, 2, 2, 64, 128, false, false, false, true, 2, { { 128, 128 }, { 3, 3 } } },
	{ 12, 4, 2, 16, 12, false, true, false, false, 3, { { 1, 5 }, { 20, 40 }, { 1, 100 } } },
	{ 80, 4, 1, 64, 40, true, false, true, false, 2, { { 1, 70 }, { 33, 90 } } },
	{ 256, 2, 1, 64, 128, false, false, false, false, 2, { { 1, 70 }, { 10, 90 } } },
	{ 33, 3, 3, 16, 32, false, false, false, true, 2, { { 7, 7 }, { 18, 18 } } },
	/* Pages of 64, which own kernels take: ends of pages and of runs, one to eight queries beside each other and beside a
	 * prompt, groups of one and two tiles, more runs than are put together at once. */
	{ 128, 32, 2, 64, 64, true, false, false, false, 8, { { 1, 1 }, { 1, 63 }, { 1, 64 }, { 1, 65 }, { 1, 256 }, { 1, 257 },
	    { 1, 200 }, { 1, 2047 } } },
	{ 128, 8, 2, 64, 64, false, true, false, false, 6, { { 8, 8 }, { 3, 66 }, { 8, 259 }, { 2, 65 }, { 70, 200 }, { 7, 263 } } },
	{ 64, 24, 1, 64, 64, true, false, true, false, 3, { { 1, 700 }, { 8, 300 }, { 1, 1 } } },
	{ 64, 15, 3, 64, 0, false, false, false, false, 3, { { 1, 190 }, { 4, 193 }, { 1, 70 } } },
	{ 128, 4, 4, 64, 64, false, false, false, false, 2, { { 1, 100 }, { 8, 257 } } },
	{ 64, 2, 1, 64, 64, false, false, false, false, 3, { { 1, 17000 }, { 1, 4096 }, { 8, 4100 } } },
	{ 128, 6, 2, 64, 0, false, false, false, true, 3, { { 5, 5 }, { 8, 8 }, { 1, 1 } } },
	/* So much that blocks take whole groups of runs. */
	{ 64, 16, 16, 64, 64, false, false, false, false, 8, { { 1, 320 }, { 1, 319 }, { 1, 320 }, { 1, 317 }, { 1, 320 }, { 2, 320 },
	    { 1, 318 }, { 1, 320 } } },
	/* So much that they take whole contexts of several groups, in passes of up to 16, 24 and 32 rows. */
	{ 128, 16, 16, 64, 64, false, false, false, false, 8, { { 1, 1090 }, { 1, 1152 }, { 1, 1089 }, { 1, 1110 }, { 1, 1100 },
	    { 1, 1120 }, { 1, 1151 }, { 1, 1149 } } },
	{ 128, 48, 16, 64, 64, false, false, false, false, 8, { { 8, 1090 }, { 7, 1152 }, { 6, 1089 }, { 8, 1110 }, { 6, 1100 },
	    { 8, 1120 }, { 6, 1151 }, { 8, 1149 } } },
	{ 64, 64, 16, 64, 0, false, false, false, false, 8, { { 8, 1090 }, { 7, 1152 }, { 6, 1089 }, { 8, 1110 }, { 5, 1100 },
	    { 8, 1120 }, { 5, 1151 }, { 8, 1149 } } },
	/* Results that all blocks put together: of several units a block, of two tiles; and two tiles whose last block does. */
	{ 64, 8, 8, 64, 0, false, false, false, false, 1, { { 1, 17000 } } },
	{ 128, 48, 2, 64, 0, false, false, false, false, 1, { { 8, 4100 } } },
	{ 128, 48, 2, 64, 64, true, false, false, false, 2, { { 8, 4096 }, { 1, 300 } } },
	/* So many runs that 24 rows are one pass: of one query, and of three. */
	{ 128, 48, 2, 64, 64, false, true, false, false, 8, { { 1, 1100 }, { 1, 1089 }, { 1, 1024 }, { 1, 1025 }, { 1, 1153 },
	    { 1, 1280 }, { 1, 1216 }, { 1, 1100 } } },
	{ 64, 16, 2, 64, 0, false, false, false, false, 8, { { 3, 1100 }, { 2, 1089 }, { 1, 1026 }, { 3, 1025 }, { 3, 1153 },
	    { 3, 1280 }, { 3, 1217 }, { 3, 1100 } } },
};

/* Steps of more than 32 sequences are rehearsed from the most down: several sizes share what is chosen, at the first of them. */
static void case_rehearsal(struct totals *totals)
{
	struct pair     pair = open_pair(totals, BF16, &(struct backend_limits){ .rows = 512, .logit_rows = 200, .vocab = 64,
	    .width = 64, .q_heads = 1, .head_dim = 64 });
	struct backend *cuda = pair.b[1];
	uint32_t        rows, count, few = 0, many = 201;
	bool            fine = true;

	for (uint32_t i = 0; cuda->ops->rehearsal(cuda, i, &rows, &count); i++) {
		if (count == 1 && rows > 1) /* a prompt */
			continue;
		fine = fine && count == rows && (rows > 32 ? few == 32 && rows <= many && (many < 201 || rows == 200) : rows >= few);
		few = rows > few && rows <= 32 ? rows : few;
		many = rows > 32 ? rows : many;
	}
	note(totals, "rehearsal", &pair, fine && many == 40 ? 0 : 1, 0);
	close_pair(&pair);
}

static void run_all(struct totals *totals)
{
	static const struct {
		uint32_t n, k, rows;
	} linear[] = { { 2, 1, 1 }, { 3, 5, 2 }, { 7, 64, 3 }, { 17, 33, 5 }, { 64, 64, 8 }, { 129, 77, 9 }, { 257, 512, 33 }, { 576,
	    576, 70 },
		{ 192, 1536, 130 }, { 1000, 200, 16 }, { 4608, 1024, 1 }, { 96, 4104, 17 }, { 35000, 320, 64 }, { 70001, 136, 8 },
		{ 131, 64, 1 }, { 4096, 4096, 32 } };
	static const struct {
		uint32_t n, k, rows;
	} gated[] = { { 8, 64, 1 }, { 1536, 576, 5 }, { 1704, 192, 64 }, { 2304, 512, 16 }, { 100, 200, 9 }, { 512, 128, 70 },
		{ 1000, 192, 130 }, { 104, 128, 300 }, { 13696, 64, 100 }, { 13696, 64, 256 } }; /* of more than 64 rows by linear_wide */
	static const uint32_t byte_rows[] = { 1, 5, 16, 33, 64, 70, 130, 300, 1030 }; /* the last two for int8's kernel of many rows */
	static const uint32_t four_bit_rows[] = { 1, 9, 20, 40, 70, 300 }; /* by mma.sync, by wgmma, rounded first */
	static const uint32_t widths[] = { 8, 24, 77, 128, 576, 4096, 6144, 13700 };

	if (wanted(totals, "rehearsal"))
		case_rehearsal(totals);
	for (int dtype = 0; dtype < DTYPES; dtype++) {
		for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
			if (wanted(totals, "rows"))
				case_rows(totals, dtype, widths[i], i % 2 ? 5 : 33);
		for (size_t i = 0; i < sizeof linear / sizeof *linear; i++)
			if (wanted(totals, "linear"))
				case_linear(totals, dtype, linear[i].n, linear[i].k, linear[i].rows, i % 2);
		for (size_t i = 0; i < sizeof gated / sizeof *gated; i++)
			if (wanted(totals, "linear with silu"))
				case_gated(totals, dtype, gated[i].n, gated[i].k, gated[i].rows);
		for (size_t i = 0; i < sizeof byte_cases / sizeof *byte_cases; i++)
			for (size_t r = 0; r < sizeof byte_rows / sizeof *byte_rows; r++)
				if ((byte_rows[r] <= 130 || (byte_cases[i].input == WEIGHT_INPUT_I8_TOKEN &&
				    byte_rows[r] * byte_cases[i].n < 3000000)) && wanted(totals, "bytes"))
					case_bytes(totals, dtype, &byte_cases[i], byte_rows[r]);
		for (size_t i = 0; i < sizeof four_bits / sizeof *four_bits; i++)
			for (size_t r = 0; r < sizeof four_bit_rows / sizeof *four_bit_rows; r++)
				if (wanted(totals, "four bits"))
					case_stack(totals, dtype, &four_bits[i], 1, four_bit_rows[r]);
		for (size_t i = 0; i < sizeof eight_bits / sizeof *eight_bits; i++)
			for (size_t r = 0; r < sizeof four_bit_rows / sizeof *four_bit_rows; r++)
				if (wanted(totals, "eight bits"))
					case_stack(totals, dtype, &eight_bits[i], 1, four_bit_rows[r]);
		for (size_t i = 0; i < sizeof gate_ups / sizeof *gate_ups; i++)
			for (size_t r = 0; r < sizeof four_bit_rows / sizeof *four_bit_rows; r++)
				if (wanted(totals, "gate and up"))
					case_gate_up(totals, dtype, &gate_ups[i], four_bit_rows[r]);
		for (size_t i = 0; i < sizeof postponed / sizeof *postponed; i++)
			if (wanted(totals, "postponed norms"))
				case_postponed(totals, dtype, &postponed[i]);
		for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++)
			for (size_t r = 0; r < sizeof four_bit_rows / sizeof *four_bit_rows; r++)
				if (wanted(totals, "mixed"))
					case_stack(totals, dtype, mixed[i], MIXED_PARTS, four_bit_rows[r]);
		for (size_t i = 0; i < sizeof heads_cases / sizeof *heads_cases; i++)
			if (wanted(totals, "heads"))
				case_heads(totals, dtype, &heads_cases[i]);
		for (size_t i = 0; i < sizeof attention_cases / sizeof *attention_cases; i++)
			if (wanted(totals, "attention"))
				case_attention(totals, dtype, &attention_cases[i], &cache_float);
		for (size_t i = 0; i < sizeof attention_cases / sizeof *attention_cases; i++) {
			if (wanted(totals, "attention, bytes"))
				case_attention(totals, dtype, &attention_cases[i], &cache_bytes[i % 2]);
			if (i % 4 == 0 && wanted(totals, "attention, bytes"))
				case_attention(totals, dtype, &attention_cases[i], &cache_bytes[2 + i / 4 % 2]);
		}
		for (uint32_t block_size = 16; block_size <= 64; block_size *= 4) {
			if (wanted(totals, "copy"))
				case_copy(totals, dtype, block_size, &cache_float);
			if (wanted(totals, "copy"))
				case_copy(totals, dtype, block_size, &cache_bytes[block_size / 64]);
		}
		if (wanted(totals, "stored"))
			case_stored(totals, dtype);
		if (wanted(totals, "reading"))
			case_reading(totals, dtype);
		if (wanted(totals, "putting"))
			case_putting(totals, dtype);
	}
	if (wanted(totals, "sample"))
		case_sample(totals);
	if (wanted(totals, "slots"))
		case_slots(totals);
	if (wanted(totals, "guesses"))
		case_guesses(totals);
}

int main(int argc, char **argv)
{
	const char    *built = getenv("abs_top_builddir");
	struct totals  totals = { .directory = argc > 1 ? argv[1] : built ? built : ".", .word = argc > 2 && *argv[2] ? argv[2] : NULL,
		.kernels = argc > 3 ? argv[3] : "", .shares = 1 };
	struct backend *backend;
	struct error   error;
	char           path[4096], end;
	enum status    status;

	if (argc > 4 && (sscanf(argv[4], "%u/%u%c", &totals.share, &totals.shares, &end) != 2 || totals.share-- < 1 ||
	    totals.share >= totals.shares)) {
		fprintf(stderr, "%s: a share is 1/1 to N/N\n", argv[4]);
		return 2;
	}
	snprintf(path, sizeof path, "%s/penstock-cuda.so", totals.directory);
	status = plugin_open(path, &totals.plugin, &error);
	if (!status)
		status = plugin_entry_of(totals.plugin)->create(&(struct plugin_options){ "", "", totals.kernels }, &backend, &error);
	if (status) {
		printf("skipped: %s\n", error.message);
		return SKIP;
	}
	printf("%s\n", backend->ops->describe(backend));
	backend->ops->destroy(backend);
	run_all(&totals);
	printf("parity: %u passed, %u failed; largest error float32 %.1e, bfloat16 %.1e, float16 %.1e\n", totals.passed, totals.failed,
	    totals.worst[F32], totals.worst[BF16], totals.worst[F16]);
	return totals.failed || !totals.passed ? 1 : 0;
}
