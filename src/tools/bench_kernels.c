/* bench_kernels.c: `penstock bench kernels`: each operation of a decode step alone, at the sizes of a model.  An operation is
 * recorded twelve times in a row over different weights, as in a step of so many layers, and the recording is replayed.
 *
 * Invariant: no operation is timed that reads what is still in the cache from the launch before. */
#include "tools/bench_engine.h"

#include "base/clock.h"
#include "model/arch.h"
#include "model/weight.h"
#include "tools/backend.h"
#include "tools/bench_products.h"
#include "tools/bench_sample.h"
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCHES = 12, WEIGHTS = 6, REPLAYS = 60, ROWS_MAX = 256, PRODUCT_ROWS = 64, PRODUCT_ROWS_MAX = 8192, BLOCK = 64, ROUNDS =
    5 };

static const char help[] =
    "usage: penstock bench kernels --model DIR [OPTION…]\n"
    "       penstock bench kernels --attention [OPTION…]\n"
    "       penstock bench kernels --sample [OPTION…]\n"
    "\n"
    "Times the operations of a decode step at the sizes that DIR/config.json says, with random weights.  Beside each product:\n"
    "the device's library with its own first choice, in the same kind of graph over the same weights.  With --attention: decode\n"
    "attention alone, over contexts of the same and of mixed lengths, for heads as known models have them.  With --sample: the\n"
    "sampler alone, over a vocabulary of 151552, for 1, 16, 64 and 256 rows or one of these.\n"
    "\n"
    "  --rows N           sequences in the step (default 1)\n"
    "  --context N        tokens of each (default 200)\n"
    "  --products         only the products, by the library and by our own kernels, plainly and with dependent launches; for\n"
    "                     1, 4, 8, 16, 32 and 64 rows where --rows is not given\n"
    "  --sweep            --products, and the best of all variants of our own kernel\n"
    "  --weights KIND     --products, and those of weights of one byte: f8-block (scales and rounded inputs of 128), f8-row\n"
    "                     (of rows), f8 (inputs as they are), i8-row, i8; the library's are those of float8 and int8 then,\n"
    "                     without the rounding of inputs, ours with it and, in the last column, with inputs rounded before,\n"
    "                     as a step's norms and gates do it; or of four bits, for which it has none: int4 (groups of 128),\n"
    "                     q4_0, q4_1, q4_k; or of GGUF in eight: q8_0, q5_0, q5_1, q5_k, q6_k; --rows may be up to 8192\n"
    "  --backend NAME, --dtype T, --kernels K, --kv-dtype T, --backend-dir DIR as for bench engine\n";

struct sizes {
	uint32_t width, ffn, heads, kv_heads, head_dim, vocab;
};

struct kernels {
	struct backend       *b;
	struct sizes          size;
	uint32_t              rows, context, blocks;
	enum kv_type          kv;
	uint32_t              product_rows; /* the most that a product gets alone; 0: ROWS */
	double                bandwidth;
	struct backend_weight *norm, *qkv[WEIGHTS], *out[WEIGHTS], *gate_up[WEIGHTS], *down[WEIGHTS], *head, *embedding;
	struct activation     x, hidden, qkv_rows, attended, delta, gated, activated;
	struct batch          batch;
	struct batch_sequence sequences[ROWS_MAX];
	struct sample_row     samples[ROWS_MAX];
	int32_t               tokens[ROWS_MAX], positions[ROWS_MAX], slots[ROWS_MAX], logit_rows[ROWS_MAX], *table;
	float                 frequencies[MODEL_HEAD_DIM_MAX / 2];
	struct rope_desc      rope;
	uint64_t              tokens_read; /* of all contexts together */
};

/* Weights of one byte or less, as a checkpoint may have them. */
static const struct weight_kind {
	const char        *name;
	enum weight_format format;
	enum weight_input  input;
	uint32_t           block; /* rows and columns of a scale; 0: one row */
} weight_kinds[] = {
	{ "f8-block", WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_GROUP, 128 }, { "f8-row", WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_TOKEN, 0 },
	{ "f8", WEIGHT_F8_E4M3, WEIGHT_INPUT_FLOAT, 128 }, { "i8-row", WEIGHT_I8, WEIGHT_INPUT_I8_TOKEN, 0 },
	{ "i8", WEIGHT_I8, WEIGHT_INPUT_FLOAT, 0 }, { "int4", WEIGHT_I4, WEIGHT_INPUT_FLOAT, 128 },
	{ "q4_0", WEIGHT_Q4_0, WEIGHT_INPUT_FLOAT, 0 }, { "q4_1", WEIGHT_Q4_1, WEIGHT_INPUT_FLOAT, 0 },
	{ "q4_k", WEIGHT_Q4_K, WEIGHT_INPUT_FLOAT, 0 }, { "q5_0", WEIGHT_Q5_0, WEIGHT_INPUT_FLOAT, 0 },
	{ "q5_1", WEIGHT_Q5_1, WEIGHT_INPUT_FLOAT, 0 }, { "q5_k", WEIGHT_Q5_K, WEIGHT_INPUT_FLOAT, 0 },
	{ "q6_k", WEIGHT_Q6_K, WEIGHT_INPUT_FLOAT, 0 }, { "q8_0", WEIGHT_Q8_0, WEIGHT_INPUT_FLOAT, 0 },
};

enum operation { OP_RMS_NORM, OP_SANDWICH, OP_QKV, OP_ROPE, OP_QKV_ROPE, OP_ATTENTION, OP_OUT, OP_GATE_UP, OP_SILU, OP_DOWN,
	OP_LOGITS,
    OP_COUNT };

static const char *const names[OP_COUNT] = { "rms_norm + residual", "two norms + residual", "linear qkv", "rope_kv_write",
	"qkv, rope_kv_write", "attention",
	"linear out", "linear gate, up", "silu_gate", "linear down", "norm, logits" };

static enum status one(struct kernels *k, enum operation operation, uint32_t i)
{
	const struct backend_ops *op = k->b->ops;
	struct backend           *b = k->b;
	uint32_t                  w = i % WEIGHTS;
	enum status               status;

	switch (operation) {
	case OP_RMS_NORM: return op->rms_norm(b, &k->x, &k->delta, k->norm, 1e-5f, &k->hidden);
	case OP_SANDWICH:
		status = op->rms_norm(b, &k->delta, NULL, k->norm, 1e-5f, &k->delta);
		return status ? status : op->rms_norm(b, &k->x, &k->delta, k->norm, 1e-5f, &k->hidden);
	case OP_QKV: return op->linear(b, k->qkv[w], NULL, &k->hidden, &k->qkv_rows);
	case OP_ROPE: return op->rope_kv_write(b, &k->qkv_rows, 0, w, k->size.heads, &k->rope);
	case OP_QKV_ROPE:
		status = op->linear(b, k->qkv[w], NULL, &k->hidden, &k->qkv_rows);
		return status ? status : op->rope_kv_write(b, &k->qkv_rows, 0, w, k->size.heads, &k->rope);
	case OP_ATTENTION: return op->attention(b, &k->qkv_rows, 0, w, k->size.heads, 0.088f, &k->attended);
	case OP_OUT: return op->linear(b, k->out[w], NULL, &k->attended, &k->delta);
	case OP_GATE_UP: return op->linear(b, k->gate_up[w], NULL, &k->hidden, &k->gated);
	case OP_SILU: return op->silu_gate(b, &k->gated, &k->activated);
	case OP_DOWN: return op->linear(b, k->down[w], NULL, &k->activated, &k->delta);
	case OP_LOGITS: return op->logits(b, &k->x, NULL, k->norm, 1e-5f, k->head);
	case OP_COUNT: break;
	}
	return STATUS_INTERNAL;
}

/* A step of LAUNCHES times OPERATION (OP_COUNT: none); recorded at its second time. */
static enum status step(struct kernels *k, enum operation operation, const void *key)
{
	int         done = 0;
	enum status status = k->b->ops->step_begin(k->b, &k->batch);

	if (!status)
		status = k->b->ops->forward_begin(k->b, key, &done);
	if (status || done)
		return status;
	status = k->b->ops->embed(k->b, k->embedding, &k->x);
	for (uint32_t i = 0; i < LAUNCHES && operation != OP_COUNT && !status; i++)
		status = one(k, operation, i);
	return k->b->ops->forward_end(k->b, status);
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* Microseconds of a replay. */
static enum status replay(struct kernels *k, enum operation operation, const void *key, double *ret, struct error *error)
{
	double      us[ROUNDS];
	enum status status = STATUS_OK;

	for (int round = 0; round < ROUNDS && !status; round++) {
		uint64_t begin = clock_now_ns();

		for (int i = 0; i < REPLAYS && !status; i++)
			status = step(k, operation, key);
		if (!status)
			status = k->b->ops->wait(k->b, NULL, 0, error);
		us[round] = (double)(clock_now_ns() - begin) * 1e-3 / REPLAYS;
	}
	qsort(us, ROUNDS, sizeof *us, compare_doubles);
	*ret = us[ROUNDS / 2];
	return status;
}

static enum status weight(struct kernels *k, uint32_t rows, uint32_t columns, struct backend_weight **ret, struct error *error)
{
	struct weight_desc desc = { .name = "w", .format = WEIGHT_BF16, .rows = rows, .columns = columns };

	return k->b->ops->weight_dummy(k->b, &desc, 1, ret, error);
}

static enum status prepare(struct kernels *k, struct error *error)
{
	const struct backend_ops *op = k->b->ops;
	const struct sizes       *size = &k->size;
	uint32_t             q = size->heads * size->head_dim, qkv = q + 2 * size->kv_heads * size->head_dim, rows = k->rows;
	struct backend_limits limits = { .rows = rows > k->product_rows ? rows : k->product_rows, .logit_rows = rows, .vocab =
	    size->vocab,
		.width = size->ffn > q ? size->ffn : q, .q_heads = size->heads, .head_dim = size->head_dim, .stream = size->width };
	struct kv_group_desc group = { WEIGHTS, size->kv_heads, size->head_dim, BLOCK, k->blocks * rows, KV_PAIRS, k->kv };
	enum status          status;

	limits.width = limits.width > size->width ? limits.width : size->width;
	if ((status = weight(k, 1, size->width, &k->norm, error)) || (status = weight(k, size->vocab, size->width, &k->head, error)) ||
	    (status = weight(k, 1024, size->width, &k->embedding, error)))
		return status;
	for (int i = 0; i < WEIGHTS; i++)
		if ((status = weight(k, qkv, size->width, &k->qkv[i], error)) || (status = weight(k, size->width, q, &k->out[i], error)) ||
		    (status = weight(k, 2 * size->ffn, size->width, &k->gate_up[i], error)) ||
		    (status = weight(k, size->width, size->ffn, &k->down[i], error)))
			return status;
	if ((status = op->scratch_alloc(k->b, &limits, error)) || (status = op->kv_alloc(k->b, 0, &group, error)))
		return status;
	if ((status = op->activation_alloc(k->b, rows, size->width, &k->x)) ||
	    (status = op->activation_alloc(k->b, rows, size->width, &k->hidden)) ||
	    (status = op->activation_alloc(k->b, rows, qkv, &k->qkv_rows)) ||
	    (status = op->activation_alloc(k->b, rows, q, &k->attended)) ||
	    (status = op->activation_alloc(k->b, rows, size->width, &k->delta)) ||
	    (status = op->activation_alloc(k->b, rows, 2 * size->ffn, &k->gated)) ||
	    (status = op->activation_alloc(k->b, rows, size->ffn, &k->activated)))
		return error_set(error, status, "no memory for activations");
	for (uint32_t i = 0; i < size->head_dim / 4; i++)
		k->frequencies[i] = 1.0f / (float)(i + 1);
	k->rope = (struct rope_desc){ ROPE_INTERLEAVED, size->head_dim / 2, k->frequencies, 1 };
	k->batch = (struct batch){ .rows = rows, .sequence_count = rows, .tokens = k->tokens, .positions = k->positions,
		.sequences = k->sequences, .logit_row_count = rows, .logit_rows = k->logit_rows };
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		k->batch.kv_slots[g] = k->slots;
	for (uint32_t r = 0; r < rows; r++) {
		k->sequences[r] = (struct batch_sequence){ .first_row = r, .rows = 1, .context = k->context, .blocks = k->blocks };
		for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
			k->sequences[r].block_table[g] = k->table + (size_t)r * k->blocks;
		k->positions[r] = (int32_t)k->context - 1;
		k->slots[r] = k->table[(size_t)r * k->blocks + (k->context - 1) / BLOCK] * BLOCK + (int32_t)((k->context - 1) % BLOCK);
		k->logit_rows[r] = (int32_t)r;
	}
	k->tokens_read = (uint64_t)k->context * rows;
	return STATUS_OK;
}

/* Bytes that one launch must read. */
static double bytes_of(const struct kernels *k, enum operation operation)
{
	const struct sizes *s = &k->size;
	double q = (double)s->heads * s->head_dim, kv = (double)s->kv_heads * s->head_dim, element = 2;

	switch (operation) {
	case OP_QKV:
	case OP_QKV_ROPE: return (q + 2 * kv) * s->width * element;
	case OP_OUT: return q * s->width * element;
	case OP_GATE_UP: return 2.0 * s->ffn * s->width * element;
	case OP_DOWN: return (double)s->ffn * s->width * element;
	case OP_LOGITS: return (double)s->vocab * s->width * element;
	case OP_ATTENTION:
		return 2 * (double)k->tokens_read * (k->kv == KV_FLOAT ? kv * element : kv + s->kv_heads * (double)sizeof(float));
	default: return 0;
	}
}

/* Microseconds that the vendor's library takes for the product of OPERATION by its own choice; 0: there is nothing to compare. */
static double library_us(const struct kernels *k, enum operation operation)
{
	const struct backend_weight *w = operation == OP_QKV ? k->qkv[0] : operation == OP_OUT ? k->out[0] :
	    operation == OP_GATE_UP ? k->gate_up[0] : operation == OP_DOWN ? k->down[0] : operation == OP_LOGITS ? k->head : NULL;
	double seconds = 0;

	if (!w || !k->b->ops->library || k->b->ops->library(k->b, w, k->rows, operation == OP_LOGITS, &seconds))
		return 0;
	return seconds * 1e6;
}

static void print_operation(const struct kernels *k, enum operation operation, double us)
{
	double floor_us = k->bandwidth > 0 ? bytes_of(k, operation) / k->bandwidth * 1e6 : 0, library = library_us(k, operation);

	printf("%-22s %10.2f", names[operation], us);
	if (floor_us > 0)
		printf(" %10.2f %6.1f %%", floor_us, 100 * floor_us / us);
	else
		printf(" %10s %8s", "-", "-");
	if (library > 0)
		printf(" %10.2f\n", library);
	else
		printf(" %10s\n", "-");
}

/* The products of the same shapes with weights of KIND. */
static enum status run_kind(struct kernels *k, const struct weight_kind *kind, const struct bench_product *like, uint32_t count,
    uint32_t rows, struct error *error)
{
	struct bench_product products[OP_COUNT];
	enum status          status = STATUS_OK;

	for (uint32_t i = 0; i < count; i++) {
		/* Gate and up are two, where the backend may write silu of the one times the other. */
		bool               bytes = kind->format == WEIGHT_F8_E4M3 || kind->format == WEIGHT_I8;
		uint32_t           parts = like[i].w == k->gate_up[0] && !bytes ? 2 : 1;
		struct weight_desc desc = { .name = "w", .format = kind->format, .input = kind->input, .rows = like[i].rows / parts,
			.columns = like[i].columns, .scales = { .type = WEIGHT_F32, .block_rows = kind->block ? kind->block : 1,
			.block_columns = kind->block } };

		if (kind->format == WEIGHT_I4)
			desc.scales = (struct weight_scales){ .type = WEIGHT_F16, .block_rows = 1, .block_columns = kind->block };
		else if (!weight_format_has_scales(kind->format))
			desc.scales = (struct weight_scales){ .type = WEIGHT_F32 };

		products[i] = like[i];
		products[i].rounds = kind->input != WEIGHT_INPUT_FLOAT;
		for (int w = 0; w < WEIGHTS && !status; w++) /* the product of the first goes over all of them */
			status = k->b->ops->weight_dummy(k->b, (struct weight_desc[]){ desc, desc }, parts, &products[i].w, error);
		if (!status)
			products[i].weight_bytes = (double)k->b->ops->weight_bytes(k->b,
			    products[i].w) / ((double)like[i].rows * like[i].columns);
	}
	if (!status)
		printf("weights of the kind %s\n", kind->name);
	return status ? status : bench_products(k->b, products, count, rows, k->bandwidth, false, error);
}

static enum status run_products(struct kernels *k, const struct weight_kind *kind, uint32_t rows, bool sweep, struct error *error)
{
	const struct sizes        *s = &k->size;
	uint32_t                   q = s->heads * s->head_dim, qkv = q + 2 * s->kv_heads * s->head_dim;
	enum status                status = prepare(k, error);
	const struct bench_product products[] = { { names[OP_QKV], k->qkv[0], qkv, s->width, false, 2, false },
		{ names[OP_OUT], k->out[0], s->width, q, false, 2, false },
		{ names[OP_GATE_UP], k->gate_up[0], 2 * s->ffn, s->width, false, 2, false },
		{ names[OP_DOWN], k->down[0], s->width, s->ffn, false, 2, false },
		{ names[OP_LOGITS], k->head, s->vocab, s->width, true, 2, false } };

	if (!status)
		status = bench_products(k->b, products, sizeof products / sizeof *products, rows, k->bandwidth, sweep, error);
	/* The output matrix stays as it is in such checkpoints. */
	return status || !kind ? status : run_kind(k, kind, products, sizeof products / sizeof *products - 1, rows, error);
}

static enum status run(struct kernels *k, struct error *error)
{
	static const char keys[OP_COUNT + 1];
	uint32_t          rows, count;
	double            empty = 0, us = 0;
	enum status       status = prepare(k, error);

	if (status)
		return status;
	k->b->ops->rehearsal(k->b, 0, &rows, &count);
	for (int operation = OP_COUNT; operation >= 0 && !status; operation--) /* chosen, recorded, recorded in another way */
		for (int i = 0; i < 3 && !status; i++)
			status = step(k, (enum operation)operation, &keys[operation]);
	k->b->ops->rehearsal(k->b, UINT32_MAX / 2, &rows, &count);
	if (!status)
		status = replay(k, OP_COUNT, &keys[OP_COUNT], &empty, error);
	if (!status)
		printf("%u rows at %u tokens of context; a step with nothing but embed: %.1f us\n%-22s %10s %10s %8s %10s\n", k->rows,
		    k->context, empty,
		    "operation", "us", "floor us", "share", "library us");
	for (int operation = 0; operation < OP_COUNT && !status; operation++) {
		status = replay(k, (enum operation)operation, &keys[operation], &us, error);
		us = (us - empty) / LAUNCHES;
		if (!status)
			print_operation(k, (enum operation)operation, us);
	}
	if (status && k->b->ops->wait(k->b, NULL, 0, error) == STATUS_OK)
		error_set(error, status, "a step of %u rows: %s", k->rows, status_text(status));
	return status;
}

/* ---- Attention alone ---- */

/* Heads, and steps of ROWS sequences: the first of FIRST tokens, the others of OTHERS. */
struct shape {
	uint32_t q_heads, kv_heads, rows, first, others;
};
static const struct shape shapes[] = {
	{ 32, 2, 1, 4096, 0 }, { 32, 2, 16, 200, 200 }, { 32, 2, 16, 4096, 4096 }, { 32, 2, 32, 4096, 4096 },
	{ 32, 2, 8, 32768, 32768 }, { 32, 2, 1, 131072, 0 }, { 32, 2, 32, 131072, 4096 }, { 32, 2, 64, 2000, 2000 },
	{ 32, 2, 128, 2000, 2000 }, { 32, 2, 256, 1024, 1024 },
	{ 48, 2, 1, 4096, 0 }, { 48, 2, 16, 200, 200 }, { 48, 2, 32, 4096, 4096 }, { 48, 2, 8, 32768, 32768 }, { 48, 2, 1, 131072, 0 },
	{ 48, 2, 32, 131072, 4096 },
	{ 32, 8, 1, 4096, 0 }, { 32, 8, 16, 200, 200 }, { 32, 8, 16, 4096, 4096 },
};
enum { SHAPES = sizeof shapes / sizeof *shapes, HEAD_DIM = 128 };

static uint32_t blocks_of(const struct shape *shape)
{
	return (shape->first + BLOCK - 1) / BLOCK + (shape->rows - 1) * ((shape->others + BLOCK - 1) / BLOCK);
}

/* Random keys and values in all of the pool: a device takes less power over zeroes. */
static enum status fill_pool(struct kernels *k)
{
	struct batch batch = { .rows = ROWS_MAX, .tokens = k->tokens, .positions = k->positions };
	uint32_t     width = k->qkv_rows.width, state = 1;
	float       *values = malloc((size_t)ROWS_MAX * width * sizeof *values);
	enum status  status;

	if (!values)
		return STATUS_NOMEM;
	for (size_t i = 0; i < (size_t)ROWS_MAX * width; i++) {
		state = state * 1664525u + 1013904223u;
		values[i] = (float)(state >> 8) / 8388608.0f - 1;
	}
	status = k->b->ops->activation_put(k->b, &k->qkv_rows, values, ROWS_MAX);
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		batch.kv_slots[g] = k->slots;
	for (uint32_t first = 0; first < k->blocks * BLOCK && !status; first += ROWS_MAX) {
		for (uint32_t r = 0; r < ROWS_MAX; r++)
			k->slots[r] = first + r < k->blocks * BLOCK ? (int32_t)(first + r) : -1;
		status = k->b->ops->step_begin(k->b, &batch);
		for (uint32_t layer = 0; layer < WEIGHTS && !status; layer++)
			status = k->b->ops->rope_kv_write(k->b, &k->qkv_rows, 0, layer, k->size.heads, NULL);
	}
	free(values);
	return status;
}

/* The batch of SHAPE; pages of the pool are given out in strides, so that those of a sequence lie apart. */
static void lay_out(struct kernels *k, const struct shape *shape)
{
	uint32_t stride = 7919, block = 0;

	while (k->blocks % stride == 0)
		stride++;
	k->rows = shape->rows;
	k->tokens_read = 0;
	k->batch = (struct batch){ .rows = k->rows, .sequence_count = k->rows, .tokens = k->tokens, .positions = k->positions,
		.sequences = k->sequences, .logit_row_count = k->rows, .logit_rows = k->logit_rows };
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		k->batch.kv_slots[g] = k->slots;
	for (uint32_t r = 0; r < k->rows; r++) {
		uint32_t context = r ? shape->others : shape->first, blocks = (context + BLOCK - 1) / BLOCK;

		k->sequences[r] = (struct batch_sequence){ .first_row = r, .rows = 1, .context = context, .blocks = blocks };
		for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
			k->sequences[r].block_table[g] = k->table + block;
		for (uint32_t i = 0; i < blocks; i++, block++)
			k->table[block] = (int32_t)((uint64_t)block * stride % k->blocks);
		k->positions[r] = (int32_t)context - 1;
		k->slots[r] = -1;
		k->logit_rows[r] = (int32_t)r;
		k->tokens_read += context;
	}
}

/* All shapes with the heads of shape FIRST; returns the first one with others in *RET_NEXT. */
static enum status run_heads(struct kernels *k, size_t first, size_t *ret_next, struct error *error)
{
	static const char         keys[SHAPES + 1];
	const struct backend_ops *op = k->b->ops;
	uint32_t                  q = shapes[first].q_heads, kv = shapes[first].kv_heads, ignored;
	struct backend_limits     limits = { .rows = ROWS_MAX, .logit_rows = ROWS_MAX, .vocab = 64, .width = q * HEAD_DIM, .q_heads = q,
		.head_dim = HEAD_DIM, .stream = 64 };
	struct kv_group_desc group = { WEIGHTS, kv, HEAD_DIM, BLOCK, 0, KV_PAIRS, k->kv };
	enum status          status;

	for (*ret_next = first; *ret_next < SHAPES && shapes[*ret_next].q_heads == q && shapes[*ret_next].kv_heads == kv; ++*ret_next)
		group.blocks = blocks_of(&shapes[*ret_next]) > group.blocks ? blocks_of(&shapes[*ret_next]) : group.blocks;
	k->size = (struct sizes){ .heads = q, .kv_heads = kv, .head_dim = HEAD_DIM };
	k->blocks = group.blocks;
	k->table = calloc(k->blocks, sizeof *k->table);
	if (!k->table)
		return error_set(error, STATUS_NOMEM, "out of memory");
	if ((status = weight(k, 1024, 64, &k->embedding, error)) || (status = op->scratch_alloc(k->b, &limits, error)) ||
	    (status = op->kv_alloc(k->b, 0, &group, error)))
		return status;
	if ((status = op->activation_alloc(k->b, ROWS_MAX, 64, &k->x)) ||
	    (status = op->activation_alloc(k->b, ROWS_MAX, (q + 2 * kv) * HEAD_DIM, &k->qkv_rows)) ||
	    (status = op->activation_alloc(k->b, ROWS_MAX, q * HEAD_DIM, &k->attended)) || (status = fill_pool(k)))
		return error_set(error, status, "no memory for activations");
	printf("%u heads over %u of %d\n%10s %10s %10s %10s %10s %10s %8s %8s\n", q, kv, HEAD_DIM, "sequences", "first", "others", "MB",
	    "us", "floor us", "share", "TB/s");
	for (size_t s = first; s < *ret_next && !status; s++) {
		double empty = 0, us = 0, bytes, floor_us;

		lay_out(k, &shapes[s]);
		k->b->ops->rehearsal(k->b, 0, &ignored, &ignored);
		for (int i = 0; i < 6 && !status; i++) /* chosen, recorded, recorded in another way: without attention and with it */
			status = step(k, i / 3 ? OP_ATTENTION : OP_COUNT, i / 3 ? &keys[s] : &keys[SHAPES]);
		k->b->ops->rehearsal(k->b, UINT32_MAX / 2, &ignored, &ignored);
		status = status ? status : replay(k, OP_COUNT, &keys[SHAPES], &empty, error);
		status = status ? status : replay(k, OP_ATTENTION, &keys[s], &us, error);
		us = (us - empty) / LAUNCHES;
		bytes = bytes_of(k, OP_ATTENTION);
		floor_us = k->bandwidth > 0 ? bytes / k->bandwidth * 1e6 : 0;
		if (!status)
			printf("%10u %10u %10u %10.1f %10.2f %10.2f %6.1f %% %8.2f\n", shapes[s].rows, shapes[s].first, shapes[s].others,
			    bytes * 1e-6, us, floor_us, 100 * floor_us / us, bytes / us * 1e-6);
	}
	return status;
}

/* A backend for each of the models' heads: it has one KV cache. */
static enum status run_attention(const char *backend, const char *dtype, const char *kernels, const char *directory,
    enum kv_type kv, struct error *error)
{
	enum status status = STATUS_OK;

	for (size_t first = 0, next = 0; first < SHAPES && !status; first = next) {
		struct tool_backend opened = { NULL, NULL };
		struct kernels     *k = calloc(1, sizeof *k);

		status = k ? tool_backend_open(backend, dtype, kernels, directory, 0, &opened, error)
		           : error_set(error, STATUS_NOMEM, "out of memory");
		if (!status && !opened.backend->ops->forward_begin)
			status = error_set(error, STATUS_UNSUPPORTED, "the backend %s records no steps", backend);
		if (!status) {
			k->b = opened.backend;
			k->kv = kv;
			printf("%s\n", k->b->ops->describe(k->b));
			if (k->b->ops->read_bandwidth && !k->b->ops->read_bandwidth(k->b, &k->bandwidth))
				printf("reads %.2f TB/s\n", k->bandwidth * 1e-12);
			status = run_heads(k, first, &next, error);
		}
		tool_backend_close(&opened);
		free(k ? k->table : NULL);
		free(k);
	}
	return status;
}

static enum status run_sample(const char *backend, const char *dtype, const char *kernels, const char *directory,
    uint32_t rows, struct error *error)
{
	struct tool_backend opened = { NULL, NULL };
	double              bandwidth = 0;
	enum status         status = tool_backend_open(backend, dtype, kernels, directory, 0, &opened, error);

	if (!status) {
		printf("%s\n", opened.backend->ops->describe(opened.backend));
		if (opened.backend->ops->read_bandwidth && !opened.backend->ops->read_bandwidth(opened.backend, &bandwidth))
			printf("reads %.2f TB/s\n", bandwidth * 1e-12);
		status = bench_sample(opened.backend, rows, bandwidth, error);
	}
	tool_backend_close(&opened);
	return status;
}

static enum status read_sizes(const char *path, struct sizes *ret, struct error *error)
{
	struct model_source source;
	enum status         status = model_source_open_dummy(path, &source, error);

	if (status)
		return status;
	(void)((status = hf_config_u32(source.config, "hidden_size", 8, MODEL_WIDTH_MAX, &ret->width, error)) ||
	    (status = hf_config_u32(source.config, "intermediate_size", 8, MODEL_FFN_MAX, &ret->ffn, error)) ||
	    (status = hf_config_u32(source.config, "num_attention_heads", 1, MODEL_HEADS_MAX, &ret->heads, error)) ||
	    (status = hf_config_u32(source.config, "num_key_value_heads", 1, MODEL_HEADS_MAX, &ret->kv_heads, error)) ||
	    (status = hf_config_u32(source.config, "head_dim", 8, MODEL_HEAD_DIM_MAX, &ret->head_dim, error)) ||
	    (status = hf_config_u32(source.config, "vocab_size", 8, MODEL_VOCAB_MAX, &ret->vocab, error)));
	model_source_close(&source);
	return status;
}

int bench_kernels(int argc, char **argv)
{
	enum { OPTION_ROWS = 256, OPTION_CONTEXT, OPTION_BACKEND, OPTION_DTYPE, OPTION_KERNELS, OPTION_BACKEND_DIR, OPTION_PRODUCTS,
		OPTION_SWEEP, OPTION_ATTENTION, OPTION_SAMPLE, OPTION_WEIGHTS, OPTION_KV_DTYPE };
	static const struct option options[] = {
		{ "model", required_argument, NULL, 'm' }, { "rows", required_argument, NULL, OPTION_ROWS },
		{ "attention", no_argument, NULL, OPTION_ATTENTION }, { "sample", no_argument, NULL, OPTION_SAMPLE },
		{ "context", required_argument, NULL, OPTION_CONTEXT }, { "backend", required_argument, NULL, OPTION_BACKEND },
		{ "dtype", required_argument, NULL, OPTION_DTYPE }, { "kernels", required_argument, NULL, OPTION_KERNELS },
		{ "backend-dir", required_argument, NULL, OPTION_BACKEND_DIR },
		{ "products", no_argument, NULL, OPTION_PRODUCTS }, { "sweep", no_argument, NULL, OPTION_SWEEP },
		{ "weights", required_argument, NULL, OPTION_WEIGHTS }, { "kv-dtype", required_argument, NULL, OPTION_KV_DTYPE },
		{ "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 },
	};
	const char          *model = NULL, *backend = "cuda", *dtype = "", *kernels = "", *directory = NULL;
	struct tool_backend  opened = { NULL, NULL };
	struct kernels      *k;
	struct error         error;
	int64_t              rows = 0, context = 200;
	const struct weight_kind *kind = NULL;
	enum kv_type         kv = KV_FLOAT;
	bool                 fine = true, products = false, sweep = false, attention = false, sample = false;
	enum status          status;
	int                  c;

	while (fine && (c = getopt_long(argc, argv, "m:h", options, NULL)) != -1) {
		switch (c) {
		case 'm': model = optarg; break;
		case OPTION_ATTENTION: attention = true; break;
		case OPTION_SAMPLE: sample = true; break;
		case OPTION_ROWS: fine = tool_int("bench kernels", "--rows", optarg, 1, PRODUCT_ROWS_MAX, &rows); break;
		case OPTION_CONTEXT: fine = tool_int("bench kernels", "--context", optarg, 1, 1 << 20, &context); break;
		case OPTION_BACKEND: backend = optarg; break;
		case OPTION_DTYPE: dtype = optarg; break;
		case OPTION_KERNELS: kernels = optarg; break;
		case OPTION_BACKEND_DIR: directory = optarg; break;
		case OPTION_WEIGHTS:
			products = true;
			for (size_t i = 0; i < sizeof weight_kinds / sizeof *weight_kinds; i++)
				kind = strcmp(optarg, weight_kinds[i].name) ? kind : &weight_kinds[i];
			if (!kind)
				return tool_usage("bench kernels",
				    "--weights: f8-block, f8-row, f8, i8-row, i8, int4, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k or q8_0 is "
				    "needed");
			break;
		case OPTION_KV_DTYPE:
			if (!model_kv_type(optarg, &kv))
				return tool_usage("bench kernels", "--kv-dtype: auto, fp8 or int8 is needed");
			break;
		case OPTION_PRODUCTS: products = true; break;
		case OPTION_SWEEP: products = sweep = true; break;
		case 'h': fputs(help, stdout); return TOOL_OK;
		default: return tool_usage("bench kernels", "wrong option");
		}
	}
	if (!fine)
		return TOOL_USAGE;
	if (attention)
		return run_attention(backend, dtype, kernels, directory, kv, &error) ? tool_fail("bench kernels", &error) : TOOL_OK;
	if (sample && rows && rows != 1 && rows != 16 && rows != 64 && rows != 256)
		return tool_usage("bench kernels", "--rows %lld: with --sample 1, 16, 64 or 256", (long long)rows);
	if (sample)
		return run_sample(backend, dtype, kernels, directory, (uint32_t)rows, &error) ? tool_fail("bench kernels", &error)
		                                                                              : TOOL_OK;
	if (!model)
		return tool_usage("bench kernels", "--model DIR, --attention or --sample is needed");
	if (!products && rows > ROWS_MAX)
		return tool_usage("bench kernels", "--rows: at most 256, or 8192 with --products");
	k = calloc(1, sizeof *k);
	if (!k)
		return TOOL_FAILED;
	k->product_rows = (uint32_t)(rows ? rows : PRODUCT_ROWS);
	k->rows = rows && rows <= ROWS_MAX ? (uint32_t)rows : 1;
	k->kv = kv;
	k->context = (uint32_t)context;
	k->blocks = (k->context + BLOCK - 1) / BLOCK;
	k->table = calloc((size_t)k->blocks * k->rows, sizeof *k->table);
	for (uint32_t i = 0; k->table && i < k->blocks * k->rows; i++)
		k->table[i] = (int32_t)i;
	status = k->table ? read_sizes(model, &k->size, &error) : error_set(&error, STATUS_NOMEM, "out of memory");
	if (!status)
		status = tool_backend_open(backend, dtype, kernels, directory, 0, &opened, &error);
	if (!status && !opened.backend->ops->forward_begin)
		status = error_set(&error, STATUS_UNSUPPORTED, "the backend %s records no steps", backend);
	if (!status) {
		k->b = opened.backend;
		printf("%s\n", k->b->ops->describe(k->b));
		if (k->b->ops->read_bandwidth && !k->b->ops->read_bandwidth(k->b, &k->bandwidth))
			printf("reads %.2f TB/s\n", k->bandwidth * 1e-12);
		status = products ? run_products(k, kind, (uint32_t)rows, sweep, &error) : run(k, &error);
	}
	tool_backend_close(&opened);
	free(k->table);
	free(k);
	return status ? tool_fail("bench kernels", &error) : TOOL_OK;
}
