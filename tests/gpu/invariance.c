/* invariance.c: bits that must not depend on the batch, on a device.
 *
 *      invariance DIRECTORY SHAPES [linear|models|cache|all [KERNELS]]    DIRECTORY holds penstock-cuda.so, SHAPES directories with
 *      config.json; KERNELS as in batcher.kernels
 *
 * Linear layers: row 0 … 7 of a product, alone and among up to 2,048 rows, for the shapes of known models and odd ones; with
 * inputs as they are and rounded to fp8 and int8, with fp8 and int8 weights as files have them, and with random weights of four
 * bits and of GGUF's in eight, for which sizes up to 64 rows and those above are two families.
 * Models: 20 prompts alone, among 44 others, and beside a long prefill: the same logits.  Cache: models whose keys and values are
 * bytes.  Exit status 77 where there is no device. */
#include "base/random.h"
#include "model/model.h"
#include "model/plugin.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIP = 77, ROWS_MAX = 2048, CHECKED = 8, PROMPTS = 20, OTHERS = 44, SEQUENCES = PROMPTS + OTHERS + 1, PREFILL = 1900,
    STEPS = 3,
	BLOCK = 64, CONTEXT = 2112, STEP_ROWS = 2048 };

struct totals {
	struct plugin *plugin;
	const char    *shapes, *kernels;
	unsigned       passed, failed;
};

static void fatal(const char *what, enum status status, const char *words)
{
	printf("FAILED: %s: %s %s\n", what, status_name(status), words);
	exit(1);
}

#define MUST(call) do { enum status status_ = (call); if (status_) fatal(#call, status_, ""); } while (0)
#define MUST_SAY(call) do { enum status status_ = (call); if (status_) fatal(#call, status_, error.message); } while (0)

static void note(struct totals *totals, bool fine, const char *name, const char *detail)
{
	totals->passed += fine;
	totals->failed += !fine;
	if (!fine)
		printf("FAILED: %s: %s\n", name, detail);
}

/* ---- Linear layers ---- */

static void rehearse(struct backend *b, bool on)
{
	uint32_t rows, sequences;

	b->ops->rehearsal(b, on ? 0 : UINT32_MAX / 2, &rows, &sequences);
}

/* What a weight is given as: random values on the device with inputs rounded as a checkpoint may ask, or bytes as a file has
 * them, with a scale for each output or each block. */
static const struct kind {
	const char        *name;
	enum weight_format format;
	enum weight_input  input;
	uint64_t           block;  /* rows and columns of a scale; 0: one row */
	uint32_t           split;  /* sizes up to this one have bits of their own */
} kinds[] = {
	{ "", WEIGHT_BF16, WEIGHT_INPUT_FLOAT, 0, 0 },
	{ ", inputs to fp8 by row", WEIGHT_BF16, WEIGHT_INPUT_F8_TOKEN, 0, 0 },
	{ ", inputs to fp8 by group", WEIGHT_BF16, WEIGHT_INPUT_F8_GROUP, 0, 0 },
	{ ", inputs to int8 by row", WEIGHT_BF16, WEIGHT_INPUT_I8_TOKEN, 0, 0 },
	{ ", weights of four bits", WEIGHT_I4, WEIGHT_INPUT_FLOAT, 0, 64 },
	{ ", Q8_0", WEIGHT_Q8_0, WEIGHT_INPUT_FLOAT, 0, 64 },
	{ ", Q5_K", WEIGHT_Q5_K, WEIGHT_INPUT_FLOAT, 0, 64 },
	{ ", Q6_K", WEIGHT_Q6_K, WEIGHT_INPUT_FLOAT, 0, 64 },
	{ ", fp8 weights and inputs", WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_TOKEN, 0, 0 },
	{ ", int8 weights and inputs", WEIGHT_I8, WEIGHT_INPUT_I8_TOKEN, 0, 0 },
	{ ", fp8 weights and inputs in blocks", WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_GROUP, 128, 0 },
	{ ", fp8 weights in blocks", WEIGHT_F8_E4M3, WEIGHT_INPUT_FLOAT, 128, 0 },
	{ ", int8 weights", WEIGHT_I8, WEIGHT_INPUT_FLOAT, 0, 0 },
};
enum { KINDS = sizeof kinds / sizeof *kinds, STORED_VALUES = 32 << 20 /* of larger matrices no bytes are made up */ };

/* Weights are random values on the device; of slabs, slices are decoded for larger steps. */
static bool is_random(const struct kind *kind) { return kind->format != WEIGHT_F8_E4M3 && kind->format != WEIGHT_I8; }
static bool is_slab(const struct kind *kind) { return is_random(kind) && kind->format != WEIGHT_BF16; }

static const uint32_t sizes[] = { 2048, 512, 256, 128, 72, 64, 32, 16, 8, 4, 1 };
enum { SIZES = sizeof sizes / sizeof *sizes };

static enum status make_kind(struct backend *b, const struct kind *kind, uint32_t n, uint32_t k, struct backend_weight **ret,
    struct error *error)
{
	struct weight_desc desc = { .name = "w", .format = kind->format, .rows = n, .columns = k, .input = kind->input };
	struct random      random = { n * 31 + k };
	uint8_t           *bytes;
	float             *scales;
	uint64_t           count;
	enum status        status;

	if (kind->format == WEIGHT_I4)
		desc.scales = (struct weight_scales){ .type = WEIGHT_F16, .block_rows = 1, .block_columns = 128, .row_blocks = n,
			.column_blocks = (k + 127) / 128 };
	if (is_random(kind))
		return b->ops->weight_dummy(b, &desc, 1, ret, error);
	bytes = malloc((size_t)n * k);
	desc.scales = (struct weight_scales){ .type = WEIGHT_F32, .block_rows = kind->block ? kind->block : 1,
		.block_columns = kind->block, .row_blocks = kind->block ? (n + kind->block - 1) / kind->block : n,
		.column_blocks = kind->block ? (k + kind->block - 1) / kind->block : 1 };
	count = desc.scales.row_blocks * desc.scales.column_blocks;
	scales = malloc(count * sizeof *scales);
	for (size_t i = 0; i < (size_t)n * k; i++) {
		bytes[i] = (uint8_t)(random_unit(&random) * 256);
		if (kind->format == WEIGHT_F8_E4M3 && (bytes[i] & 0x7f) == 0x7f) /* NaN */
			bytes[i] ^= 1;
	}
	for (uint64_t r = 0; r < count; r++)
		scales[r] = (float)(0.5 + random_unit(&random)) / (kind->format == WEIGHT_I8 ? 4096.0f : 8192.0f);
	desc.data = bytes;
	desc.bytes = (size_t)n * k;
	desc.scales.data = scales;
	desc.scales.bytes = count * sizeof *scales;
	status = b->ops->weight_load(b, &desc, 1, ret, error);
	free(bytes), free(scales);
	return status;
}

/* The rows of X · Wᵀ among all sizes against those among the most; where sizes are SPLIT, those up to it among themselves. */
static void compare_sizes(struct totals *totals, struct backend *b, const struct backend_weight *w, const char *name,
    uint32_t split, const struct activation *x, struct activation *y)
{
	size_t row = y->width;
	float *reference = malloc(CHECKED * row * sizeof *reference), *output = malloc(CHECKED * row * sizeof *output);
	unsigned first = 0;
	char   detail[128];

	for (unsigned s = 0; s < SIZES; s++) {
		struct batch batch = { .rows = sizes[s] };
		uint32_t     rows = sizes[s] < CHECKED ? sizes[s] : CHECKED;
		size_t       different = 0;

		if (s == 0 || (sizes[s] <= split && sizes[s - 1] > split))
			first = s;
		MUST(b->ops->step_begin(b, &batch));
		MUST(b->ops->linear(b, w, NULL, x, y));
		MUST(b->ops->activation_get(b, y, s > first ? output : reference, rows));
		for (size_t i = 0; s > first && i < rows * row; i++)
			different += memcmp(&output[i], &reference[i], sizeof *output) != 0;
		snprintf(detail, sizeof detail, "%zu of %zu values of %u rows differ among %u from those among %u", different,
		    rows * row, rows, sizes[s], sizes[first]);
		note(totals, !different, name, detail);
	}
	free(reference), free(output);
}

static void linear_shape(struct totals *totals, const char *dtype, uint32_t n, uint32_t k)
{
	struct backend_limits  limits = { .rows = ROWS_MAX, .logit_rows = 1, .vocab = 64, .width = k, .q_heads = 1, .head_dim = 64 };
	struct random          random = { n + k };
	struct backend        *b;
	struct backend_weight *w[KINDS];
	struct activation      x, y;
	struct batch           batch = { .rows = 0 };
	struct error           error = { .message = "" };
	float *input = malloc((size_t)ROWS_MAX * k * sizeof *input);
	char   name[128];
	unsigned count = KINDS;

	while (count > 1 && !is_random(&kinds[count - 1]) && (uint64_t)n * k > STORED_VALUES)
		count--;
	MUST_SAY(plugin_entry_of(totals->plugin)->create(&(struct plugin_options){ "", dtype, totals->kernels }, &b, &error));
	for (unsigned i = 0; i < count; i++)
		MUST_SAY(make_kind(b, &kinds[i], n, k, &w[i], &error));
	MUST_SAY(b->ops->scratch_alloc(b, &limits, &error));
	MUST(b->ops->activation_alloc(b, ROWS_MAX, k, &x));
	MUST(b->ops->activation_alloc(b, ROWS_MAX, n, &y));
	for (size_t i = 0; i < (size_t)CHECKED * k; i++)
		input[i] = (float)(random_unit(&random) * 2 - 1);
	for (size_t i = (size_t)CHECKED * k; i < (size_t)ROWS_MAX * k; i++) /* the others: any values will do */
		input[i] = input[i % ((size_t)CHECKED * k)] * (float)(1 + i % 7);
	/* As at a start: algorithms are chosen, and compared, in the order of sizes. */
	rehearse(b, true);
	for (unsigned s = SIZES; s-- > 0;) {
		batch.rows = sizes[s];
		MUST(b->ops->step_begin(b, &batch));
		for (unsigned i = 0; i < count; i++)
			if (i == 0 || is_slab(&kinds[i])) /* its decoded slices are other shapes */
				MUST(b->ops->linear(b, w[i], NULL, &x, &y));
	}
	rehearse(b, false);
	MUST(b->ops->activation_put(b, &x, input, ROWS_MAX));
	for (unsigned i = 0; i < count; i++) {
		snprintf(name, sizeof name, "linear %u × %u, %s%s", n, k, dtype, kinds[i].name);
		compare_sizes(totals, b, w[i], name, kinds[i].split, &x, &y);
	}
	free(input);
	b->ops->destroy(b);
}

/* ---- Models ---- */

struct world {
	struct backend *b;
	struct model   *model;
	uint32_t        vocab, length[SEQUENCES];
	struct batch    batch;
	struct batch_sequence parts[SEQUENCES];
	int32_t table[SEQUENCES][CONTEXT / BLOCK], tokens[STEP_ROWS], positions[STEP_ROWS], slots[STEP_ROWS], logit_rows[SEQUENCES];
};

static uint32_t prompt_length(uint32_t s) { return s == SEQUENCES - 1 ? PREFILL : 3 + s * 37 % 290; }
static int32_t token_at(const struct world *world, uint32_t s, uint32_t position)
{
	return (int32_t)((s * 7919 + position * 104729 + 13) % world->vocab);
}

/* The next COUNTS[s] tokens of every sequence; the last one's logits into RET [SEQUENCES][vocab] of those that have any. */
static void step(struct world *world, const uint32_t *counts, float *ret)
{
	struct batch *batch = &world->batch;
	uint32_t      index = 0;

	*batch = (struct batch){ .tokens = world->tokens, .positions = world->positions, .sequences = world->parts,
		.logit_rows = world->logit_rows };
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		batch->kv_slots[g] = world->slots;
	for (uint32_t s = 0; s < SEQUENCES; s++) {
		struct batch_sequence *part = &world->parts[batch->sequence_count];

		if (!counts[s])
			continue;
		*part = (struct batch_sequence){ .first_row = batch->rows, .rows = counts[s], .context = world->length[s] + counts[s],
			.blocks = CONTEXT / BLOCK };
		for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
			part->block_table[g] = world->table[s];
		for (uint32_t i = 0; i < counts[s]; i++, batch->rows++, world->length[s]++) {
			uint32_t position = world->length[s];

			world->tokens[batch->rows] = token_at(world, s, position);
			world->positions[batch->rows] = (int32_t)position;
			world->slots[batch->rows] = world->table[s][position / BLOCK] * BLOCK + (int32_t)(position % BLOCK);
		}
		batch->sequence_count++;
		world->logit_rows[batch->logit_row_count++] = (int32_t)batch->rows - 1;
	}
	MUST(model_forward(world->model, batch));
	MUST(world->b->ops->wait(world->b, NULL, 0, NULL));
	for (uint32_t s = 0; s < SEQUENCES; s++)
		if (counts[s])
			MUST(world->b->ops->read_logits(world->b, index++, ret + (size_t)s * world->vocab, world->vocab));
}

/* Prompts of sequences [0, COUNT), each in a step of its own (TOGETHER: as many in a step as fit). */
static void prompts(struct world *world, uint32_t count, bool together, float *ret)
{
	uint32_t counts[SEQUENCES] = { 0 }, rows = 0;

	memset(world->length, 0, sizeof world->length);
	for (uint32_t s = 0; s < count; s++) {
		if (rows && (!together || rows + prompt_length(s) > STEP_ROWS)) {
			step(world, counts, ret);
			memset(counts, 0, sizeof counts);
			rows = 0;
		}
		counts[s] = prompt_length(s);
		rows += counts[s];
	}
	if (rows)
		step(world, counts, ret);
}

static void model_shape(struct totals *totals, const char *name, const char *dtype, const char *kv_dtype)
{
	struct model_source source = { .checkpoint = NULL };
	struct world       *world = calloc(1, sizeof *world);
	struct error        error = { .message = "" };
	float              *alone, *among, *ignored;
	char                path[1024], what[160], detail[96];
	size_t              size;

	snprintf(path, sizeof path, "%s/%s", totals->shapes, name);
	MUST_SAY(model_source_open_dummy(path, &source, &error));
	source.round_inputs = true;
	MUST_SAY(plugin_entry_of(totals->plugin)->create(&(struct plugin_options){ "", dtype, totals->kernels }, &world->b, &error));
	MUST_SAY(model_load(&source, world->b, &world->model, &error));
	model_source_close(&source);
	MUST_SAY(model_set_kv_type(world->model, kv_dtype, &error));
	MUST_SAY(model_plan(world->model, STEP_ROWS, SEQUENCES, BLOCK, SEQUENCES * (CONTEXT / BLOCK), &error));
	world->vocab = model_info(world->model)->vocab;
	size = (size_t)SEQUENCES * world->vocab;
	alone = calloc((STEPS + 1) * size, sizeof *alone);
	among = calloc(size, sizeof *among);
	ignored = calloc(size, sizeof *ignored);
	for (uint32_t s = 0; s < SEQUENCES; s++)
		for (uint32_t i = 0; i < CONTEXT / BLOCK; i++)
			world->table[s][i] = (int32_t)(SEQUENCES * (CONTEXT / BLOCK) - 1 - (i * SEQUENCES + s));
	/* Alone: each prompt and each decode in a step of its own. */
	prompts(world, PROMPTS, false, alone);
	for (uint32_t t = 1; t <= STEPS; t++)
		for (uint32_t s = 0; s < PROMPTS; s++) {
			uint32_t counts[SEQUENCES] = { 0 };

			counts[s] = 1;
			step(world, counts, alone + t * size);
		}
	/* Together; in the last step a long prompt comes beside. */
	for (int way = 0; way < 2; way++) {
		prompts(world, PROMPTS + OTHERS, true, among);
		for (uint32_t t = 0; t <= STEPS; t++) {
			uint32_t counts[SEQUENCES] = { 0 };

			for (uint32_t s = 0; s < PROMPTS + (way ? 0 : OTHERS); s++)
				counts[s] = 1;
			counts[SEQUENCES - 1] = way && t ? PREFILL / STEPS : 0;
			if (t)
				step(world, counts, among);
			for (uint32_t s = 0; s < PROMPTS; s++) {
				size_t different = 0;

				for (uint32_t v = 0; v < world->vocab; v++)
					different += memcmp(&among[s * world->vocab + v], &alone[t * size + s * world->vocab + v], sizeof *among) != 0;
				snprintf(what, sizeof what, "%s, %s, cache %s, %s, prompt %u, step %u", name, dtype, kv_dtype,
				    way ? "beside a prefill" : "among others", s, t);
				snprintf(detail, sizeof detail, "%zu of %u logits differ", different, world->vocab);
				note(totals, !different, what, detail);
			}
		}
	}
	free(alone), free(among), free(ignored);
	model_free(world->model);
	world->b->ops->destroy(world->b);
	free(world);
}

int main(int argc, char **argv)
{
	static const uint32_t shapes[][2] = { { 4096, 4096 }, { 4608, 4096 }, { 27392, 4096 }, { 4096, 13696 }, { 6144, 6144 },
	    { 6656, 6144 },
		{ 46080, 6144 }, { 6144, 23040 }, { 576, 576 }, { 1000, 1536 }, { 3072, 1024 } };
	struct totals   totals = { .shapes = argc > 2 ? argv[2] : "tests/gpu/shapes", .kernels = argc > 4 ? argv[4] : "" };
	const char     *part = argc > 3 ? argv[3] : "";
	struct backend *backend;
	struct error    error;
	char            path[4096];
	enum status     status;

	snprintf(path, sizeof path, "%s/penstock-cuda.so", argc > 1 ? argv[1] : ".");
	status = plugin_open(path, &totals.plugin, &error);
	if (!status)
		status = plugin_entry_of(totals.plugin)->create(&(struct plugin_options){ "", "", totals.kernels }, &backend, &error);
	if (status) {
		printf("skipped: %s\n", error.message);
		return SKIP;
	}
	backend->ops->destroy(backend);
	if (strcmp(part, "models") != 0 && strcmp(part, "cache") != 0) {
		for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
			linear_shape(&totals, "bfloat16", shapes[i][0], shapes[i][1]);
		linear_shape(&totals, "float16", 4096, 4096);
	}
	if (strcmp(part, "linear") != 0 && strcmp(part, "cache") != 0) {
		model_shape(&totals, "glm4-9b-2-layers", "bfloat16", "auto");
		model_shape(&totals, "glm4-32b-2-layers", "bfloat16", "auto");
		model_shape(&totals, "glm4-9b-2-layers", "float16", "auto");
		model_shape(&totals, "glm4-9b-2-layers-fp8", "bfloat16", "auto");
		model_shape(&totals, "glm4-9b-2-layers-int8", "bfloat16", "auto");
	}
	if (strcmp(part, "linear") != 0 && strcmp(part, "models") != 0) {
		model_shape(&totals, "glm4-9b-2-layers", "bfloat16", "fp8");
		model_shape(&totals, "glm4-9b-2-layers", "float16", "int8");
	}
	printf("invariance: %u passed, %u failed\n", totals.passed, totals.failed);
	return totals.failed || !totals.passed ? 1 : 0;
}
