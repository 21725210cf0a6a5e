/* Unit tests of the CPU backend's operations: each against plain double precision on odd shapes, with both instruction
 * sets and 1, 2 and 3 threads; and that bits depend neither on threads, nor on neighbours, nor on blocks and steps. */
#include "cpu/cpu.h"

#include "support/weights.h"

#include <check.h>
#include <stdbool.h>

enum { ROWS = 70, LAYERS = 2 };

/* ---- A backend and its activations ---- */

struct bench {
	struct backend           *b;
	const struct backend_ops *op;
};

static const struct {
	enum cpu_isa isa;
	unsigned     threads;
} variants[] = { { CPU_ISA_GENERIC, 1 }, { CPU_ISA_GENERIC, 3 }, { CPU_ISA_AVX2, 1 }, { CPU_ISA_AVX2, 2 },
    { CPU_ISA_AVX2, 3 }, { CPU_ISA_AVX512, 1 }, { CPU_ISA_AVX512, 3 } };
enum { VARIANTS = sizeof variants / sizeof *variants };

static bool start(struct bench *bench, int variant, uint32_t rows, uint32_t vocab, uint32_t width, uint32_t q_heads,
    uint32_t head_dim)
{
	struct backend_limits limits = { .rows = rows, .logit_rows = rows, .vocab = vocab, .width = width,
		.q_heads = q_heads, .head_dim = head_dim };
	struct error          error;
	enum status status = cpu_backend_create_isa(variants[variant].threads, variants[variant].isa, &bench->b, &error);

	if (status == STATUS_UNSUPPORTED)
		return false; /* this processor lacks the instruction set */
	ck_assert_msg(status == STATUS_OK, "%s", error.message);
	bench->op = bench->b->ops;
	ck_assert_uint_eq(bench->op->version, BACKEND_VERSION);
	ck_assert_int_eq(bench->op->scratch_alloc(bench->b, &limits, &error), STATUS_OK);
	ck_assert_uint_gt(bench->op->scratch_bytes(bench->b, &limits), 0);
	return true;
}

static void stop(struct bench *bench) { bench->op->destroy(bench->b); }

static struct activation make(struct bench *bench, uint32_t rows, uint32_t width, struct random *random)
{
	struct activation a;

	ck_assert_int_eq(bench->op->activation_alloc(bench->b, rows, width, &a), STATUS_OK);
	for (size_t i = 0; random && i < (size_t)rows * width; i++)
		((float *)a.data)[i] = random_float(random);
	return a;
}

static void drop(struct bench *bench, struct activation *a) { bench->op->activation_free(bench->b, a); }

static float at(const struct activation *a, uint32_t row,
    uint32_t column) { return ((float *)a->data)[(size_t)row * a->width + column]; }

static void near(double value, double expected, double size, const char *what, uint32_t row, uint32_t column)
{
	ck_assert_msg(fabs(value - expected) <= 1e-6 * size + 1e-7, "%s [%u, %u]: %.9g is not %.9g", what, row, column,
	    value, expected);
}

static struct backend_weight *vector(struct bench *bench, const float *values, uint32_t count)
{
	struct weight_desc     desc = weights_desc("vector", WEIGHT_F32, 1, count, values, count * sizeof *values);
	struct backend_weight *w;

	ck_assert_int_eq(bench->op->weight_load(bench->b, &desc, 1, &w, NULL), STATUS_OK);
	return w;
}

/* A step without sequences: enough for operations on rows. */
static void begin_rows(struct bench *bench, struct batch *batch, uint32_t rows, const int32_t *tokens)
{
	*batch = (struct batch){ .rows = rows, .tokens = tokens };
	ck_assert_int_eq(bench->op->step_begin(bench->b, batch), STATUS_OK);
}

/* ---- Norm, gate, embedding ---- */

START_TEST(norm_and_gate)
{
	static const uint32_t widths[] = { 5, 8, 63, 576 };

	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
		uint32_t          width = widths[i], rows = i == 2 ? ROWS : 3;
		struct bench      bench;
		struct random     random = { 3 };
		struct activation x, residual, y, gate, before;
		struct backend_weight *w;
		struct batch      batch;
		float             weight[576];

		if (!start(&bench, _i, ROWS, 8, 576, 1, 2))
			return;
		x = make(&bench, rows, width, &random);
		residual = make(&bench, rows, width, &random);
		before = make(&bench, rows, width, NULL);
		y = make(&bench, rows, width, NULL);
		gate = make(&bench, rows, 2 * width, &random);
		for (uint32_t k = 0; k < width; k++)
			weight[k] = 1 + random_float(&random);
		memcpy(before.data, x.data, sizeof(float) * rows * width);
		((float *)gate.data)[0] = 120; /* the ends of exp */
		((float *)gate.data)[1] = -120;
		w = vector(&bench, weight, width);
		begin_rows(&bench, &batch, rows, NULL);
		for (int with_residual = 0; with_residual < 2; with_residual++) {
			ck_assert_int_eq(bench.op->rms_norm(bench.b, &x, with_residual ? &residual : NULL, w, 1e-5f, &y),
			    STATUS_OK);
			for (uint32_t r = 0; r < rows; r++) {
				double squares = 0;

				for (uint32_t k = 0; k < width; k++) {
					double value = (double)at(&before, r, k) + (with_residual ? (double)at(&residual, r, k) : 0);
					near((double)at(&x, r, k), value, 1, "residual sum", r, k);
					squares += value * value;
				}
				for (uint32_t k = 0; k < width; k++) {
					double value = (double)at(&x, r, k) / sqrt(squares / width + 1e-5) * (double)weight[k];
					near((double)at(&y, r, k), value, fabs(value), "norm", r, k);
				}
			}
		}
		ck_assert_int_eq(bench.op->silu_gate(bench.b, &gate, &y), STATUS_OK);
		for (uint32_t r = 0; r < rows; r++) {
			for (uint32_t k = 0; k < width; k++) {
				double g = (double)at(&gate, r, k), value = g / (1 + exp(-g)) * (double)at(&gate, r, width + k);
				near((double)at(&y, r, k), value, fabs(value), "gate", r, k);
			}
		}
		ck_assert_int_eq(bench.op->silu_gate(bench.b, &y, &gate), STATUS_INVALID);
		bench.op->weight_free(bench.b, w);
		drop(&bench, &x);
		drop(&bench, &residual);
		drop(&bench, &before);
		drop(&bench, &y);
		drop(&bench, &gate);
		stop(&bench);
	}
}
END_TEST

START_TEST(embedding)
{
	enum { VOCAB = 75, WIDTH = 256 };
	const int32_t tokens[] = { 74, 0, 31, 32, 33, 74, 5 };

	for (int format = 0; format < WEIGHTS_FORMATS; format++) {
		struct bench       bench;
		struct random      random = { 4 };
		uint8_t           *data = weights_make(&random, (enum weight_format)format, VOCAB, WIDTH);
		struct weight_desc desc = weights_desc("e", (enum weight_format)format, VOCAB, WIDTH, data,
		    VOCAB * weights_row_bytes((enum weight_format)format, WIDTH));
		struct activation  y;
		struct backend_weight *w;
		struct batch       batch;
		int32_t            wrong[] = { 0, VOCAB };

		if (!start(&bench, _i, 8, VOCAB, WIDTH, 1, 2)) {
			free(data);
			return;
		}
		y = make(&bench, 7, WIDTH, NULL);
		ck_assert_int_eq(bench.op->weight_load(bench.b, &desc, 1, &w, NULL), STATUS_OK);
		begin_rows(&bench, &batch, 7, tokens);
		ck_assert_int_eq(bench.op->embed(bench.b, w, &y), STATUS_OK);
		for (uint32_t r = 0; r < 7; r++) {
			for (uint32_t k = 0; k < WIDTH; k++) {
				double value = weights_value((enum weight_format)format, data, WIDTH, (uint32_t)tokens[r], k);
				near((double)at(&y, r, k), value, fabs(value), "embedding", r, k);
			}
		}
		begin_rows(&bench, &batch, 2, wrong);
		ck_assert_int_eq(bench.op->embed(bench.b, w, &y), STATUS_INVALID);
		bench.op->weight_free(bench.b, w);
		drop(&bench, &y);
		stop(&bench);
		free(data);
	}
}
END_TEST

/* ---- Linear ---- */

/* A stack of three parts of different formats and odd row counts, with bias, on 1 … 70 rows. */
START_TEST(linear_stack)
{
	enum { WIDTH = 512, PARTS = 3 };
	const enum weight_format formats[][PARTS] = { { WEIGHT_Q4_1, WEIGHT_Q6_K, WEIGHT_Q4_0 }, { WEIGHT_F16, WEIGHT_F32,
	    WEIGHT_BF16 },
		{ WEIGHT_Q8_0, WEIGHT_Q4_1, WEIGHT_Q8_0 } };
	const uint32_t part_rows[PARTS] = { 45, 32, 7 }, total = 84;

	for (size_t set = 0; set < 3; set++) {
		struct bench       bench;
		struct random      random = { 5 + set };
		uint8_t           *data[PARTS];
		struct weight_desc desc[PARTS];
		struct activation  x, y, whole;
		struct backend_weight *w, *bias;
		struct batch       batch;
		float              biases[84];

		if (!start(&bench, _i, ROWS, 8, WIDTH, 1, 2))
			return;
		for (int p = 0; p < PARTS; p++) {
			data[p] = weights_make(&random, formats[set][p], part_rows[p], WIDTH);
			desc[p] = weights_desc("part", formats[set][p], part_rows[p], WIDTH, data[p],
			    part_rows[p] * weights_row_bytes(formats[set][p], WIDTH));
		}
		for (uint32_t i = 0; i < total; i++)
			biases[i] = random_float(&random);
		ck_assert_int_eq(bench.op->weight_load(bench.b, desc, PARTS, &w, NULL), STATUS_OK);
		bias = vector(&bench, biases, total);
		x = make(&bench, ROWS, WIDTH, &random);
		y = make(&bench, ROWS, total, NULL);
		whole = make(&bench, ROWS, total, NULL);
		begin_rows(&bench, &batch, ROWS, NULL);
		ck_assert_int_eq(bench.op->linear(bench.b, w, bias, &x, &whole), STATUS_OK);
		for (uint32_t r = 0; r < ROWS; r += 23) {
			for (uint32_t i = 0, first = 0, p = 0; i < total; i++) {
				double value = (double)biases[i], size = fabs(value);

				if (i - first >= part_rows[p])
					first += part_rows[p++];
				for (uint32_t k = 0; k < WIDTH; k++) {
					double product = weights_value(formats[set][p], data[p], WIDTH, i - first, k) * (double)at(&x, r,
					    k);
					value += product;
					size += fabs(product);
				}
				near((double)at(&whole, r, i), value, size, "linear", r, i);
			}
		}
		/* The first n rows alone give the same bits. */
		for (uint32_t n = 1; n < ROWS; n += n < 10 ? 1 : 13) {
			begin_rows(&bench, &batch, n, NULL);
			ck_assert_int_eq(bench.op->linear(bench.b, w, bias, &x, &y), STATUS_OK);
			ck_assert_msg(memcmp(y.data, whole.data, sizeof(float) * n * total) == 0, "%u rows differ from %d", n,
			    ROWS);
		}
		ck_assert_int_eq(bench.op->linear(bench.b, w, bias, &y, &x), STATUS_INVALID);
		ck_assert_int_eq(bench.op->linear(bench.b, bias, NULL, &x, &y), STATUS_INVALID);
		bench.op->weight_free(bench.b, w);
		bench.op->weight_free(bench.b, bias);
		drop(&bench, &x);
		drop(&bench, &y);
		drop(&bench, &whole);
		stop(&bench);
		for (int p = 0; p < PARTS; p++)
			free(data[p]);
	}
}
END_TEST

START_TEST(weights_refused)
{
	struct backend        *b;
	struct backend_weight *w = NULL;
	struct error           error;
	float                  data[4096] = { 0 };
	struct weight_desc     good = weights_desc("good", WEIGHT_F32, 2, 32, data, 256);
	struct weight_desc     wrong[] = {
		weights_desc("short", WEIGHT_F32, 2, 32, data, 255), weights_desc("part", WEIGHT_Q4_0, 2, 33, data, 36),
		weights_desc("part", WEIGHT_Q6_K, 2, 128, data, 210), weights_desc("none", WEIGHT_F32, 0, 32, data, 0),
		weights_desc("none", WEIGHT_F32, 2, 0, data, 0), weights_desc("format", (enum weight_format)99, 2, 32, data,
		    256),
		weights_desc("huge", WEIGHT_F32, UINT64_C(1) << 40, UINT64_C(1) << 40, data, 0),
		weights_desc("vector", WEIGHT_Q8_0, 1, 32, data, 34) };
	struct weight_desc     stack[2] = { good, weights_desc("narrow", WEIGHT_F32, 2, 16, data, 128) };

	ck_assert_int_eq(cpu_backend_create(1, &b, &error), STATUS_OK);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		ck_assert_int_ne(b->ops->weight_load(b, &wrong[i], 1, &w, &error), STATUS_OK);
		ck_assert_msg(strstr(error.message, wrong[i].name) != NULL, "%s", error.message);
	}
	ck_assert_int_eq(b->ops->weight_load(b, stack, 2, &w, &error), STATUS_INVALID);
	ck_assert_int_eq(b->ops->weight_load(b, stack, 0, &w, &error), STATUS_LIMIT);
	ck_assert_int_eq(b->ops->weight_load(b, stack, 9, &w, &error), STATUS_LIMIT);
	ck_assert_ptr_null(w);
	b->ops->weight_free(b, NULL);
	ck_assert_int_eq(b->ops->weight_load(b, &good, 1, &w, &error), STATUS_OK);
	ck_assert_uint_eq(b->ops->weight_bytes(b, w), 32 * 32 * 4); /* a whole tile */
	b->ops->weight_free(b, w);
	b->ops->destroy(b);
	ck_assert_int_eq(cpu_backend_create(CPU_THREADS_MAX + 1, &b, &error), STATUS_INVALID);
}
END_TEST

/* ---- Rotary embedding, KV cache, attention ---- */

enum { Q_HEADS = 6, KV_HEADS = 2, TOKENS = 520 /* three chunks of 256 */ };

struct scene {
	uint32_t dim, dims; /* of a head; rotated */
	float   *qkv;       /* [TOKENS][(Q_HEADS + 2 KV_HEADS) dim], before rotation */
	float    frequencies[64];
	enum rope_style style;
};

static void scene_make(struct scene *scene, uint32_t dim, uint32_t dims, enum rope_style style)
{
	struct random random = { 6 };

	*scene = (struct scene){ .dim = dim, .dims = dims, .style = style };
	scene->qkv = malloc(sizeof(float) * TOKENS * (Q_HEADS + 2 * KV_HEADS) * dim);
	for (size_t i = 0; i < (size_t)TOKENS * (Q_HEADS + 2 * KV_HEADS) * dim; i++)
		scene->qkv[i] = 2 * random_float(&random);
	for (uint32_t i = 0; i < dims / 2; i++)
		scene->frequencies[i] = (float)pow(10000, -2.0 * i / dims);
}

/* How the tokens of one sequence are laid out and cut into steps. */
struct layout {
	uint32_t block_size, step; /* tokens per step */
	bool     backwards;        /* blocks from the end of the pool */
	bool     neighbour;        /* another sequence and padding rows in every step */
	enum kv_type type;
};

/* Runs all tokens through LAYERS layers (the same input in each) and returns y of the last layer, [TOKENS][Q_HEADS ·
 * dim]. */
static float *attend(const struct scene *scene, int variant, const struct layout *layout)
{
	const uint32_t   width = (Q_HEADS + 2 * KV_HEADS) * scene->dim, y_width = Q_HEADS * scene->dim, padding = 3;
	const uint32_t   each = (TOKENS + layout->block_size - 1) / layout->block_size, blocks = 2 * each;
	struct kv_group_desc group = { LAYERS, KV_HEADS, scene->dim, layout->block_size, blocks, KV_PAIRS, layout->type };
	struct rope_desc rope = { scene->style, scene->dims, scene->frequencies, 1.25f };
	struct bench     bench;
	struct activation qkv, y;
	int32_t  *table[2] = { malloc(each * sizeof(int32_t)), malloc(each * sizeof(int32_t)) };
	int32_t   positions[2 * TOKENS + 8], slots[2 * TOKENS + 8];
	float    *ret = malloc(sizeof(float) * TOKENS * y_width);
	struct error error;

	if (!start(&bench, variant, 2 * TOKENS + 8, 8, width, Q_HEADS, scene->dim)) {
		free(table[0]);
		free(table[1]);
		free(ret);
		return NULL;
	}
	ck_assert_msg(bench.op->kv_alloc(bench.b, 0, &group, &error) == STATUS_OK, "%s", error.message);
	qkv = make(&bench, 2 * TOKENS + 8, width, NULL);
	y = make(&bench, 2 * TOKENS + 8, y_width, NULL);
	for (uint32_t i = 0; i < each; i++) {
		table[0][i] = (int32_t)(layout->backwards ? blocks - 1 - 2 * i : i);
		table[1][i] = (int32_t)(layout->backwards ? blocks - 2 - 2 * i : each + i);
	}
	for (uint32_t done = 0; done < TOKENS; done += layout->step) {
		uint32_t count = TOKENS - done < layout->step ? TOKENS - done : layout->step, sequences = layout->neighbour ?
		    2 : 1;
		struct batch_sequence parts[2];
		struct batch batch = { .sequence_count = sequences, .positions = positions, .kv_slots = { slots }, .sequences =
		    parts };

		/* The neighbour comes first, so that our rows are not the first of the batch; then padding between them. */
		for (uint32_t s = 0; s < sequences; s++) {
			uint32_t which = sequences - 1 - s;

			parts[s] = (struct batch_sequence){ batch.rows, count, done + count, each, { table[which] } };
			for (uint32_t t = done; t < done + count; t++, batch.rows++) {
				memcpy((float *)qkv.data + (size_t)batch.rows * width,
				    scene->qkv + (size_t)(which ? TOKENS - 1 - t : t) * width, width * sizeof(float));
				positions[batch.rows] = (int32_t)t;
				slots[batch.rows] = table[which][t / layout->block_size] * (int32_t)layout->block_size +
				                    (int32_t)(t % layout->block_size);
			}
			for (uint32_t i = 0; layout->neighbour && i < padding; i++, batch.rows++) {
				memset((float *)qkv.data + (size_t)batch.rows * width, 0xff, width * sizeof(float)); /* NaN */
				positions[batch.rows] = 0;
				slots[batch.rows] = -1;
			}
		}
		ck_assert_int_eq(bench.op->step_begin(bench.b, &batch), STATUS_OK);
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			if (layer) /* rotation is in place: start again from the input */
				for (uint32_t s = 0, row = 0; s < sequences; s++, row += layout->neighbour ? padding : 0)
					for (uint32_t t = done; t < done + count; t++, row++)
						memcpy((float *)qkv.data + (size_t)row * width,
						    scene->qkv + (size_t)(s + 1 < sequences ? TOKENS - 1 - t : t) * width,
						    width * sizeof(float));
			ck_assert_int_eq(bench.op->rope_kv_write(bench.b, &qkv, 0, layer, Q_HEADS, &rope), STATUS_OK);
			ck_assert_int_eq(bench.op->attention(bench.b, &qkv, 0, layer, Q_HEADS, 0.25f, &y), STATUS_OK);
		}
		memcpy(ret + (size_t)done * y_width, (float *)y.data + (size_t)parts[sequences - 1].first_row * y_width,
		    sizeof(float) * count * y_width);
	}
	drop(&bench, &qkv);
	drop(&bench, &y);
	stop(&bench);
	free(table[0]);
	free(table[1]);
	return ret;
}

static void rotate(const struct scene *scene, const float *head, uint32_t position, double *ret)
{
	for (uint32_t d = 0; d < scene->dim; d++)
		ret[d] = (double)head[d];
	for (uint32_t i = 0; i < scene->dims / 2; i++) {
		uint32_t a = scene->style == ROPE_HALF ? i : 2 * i, b = scene->style == ROPE_HALF ? i + scene->dims / 2 :
		    2 * i + 1;
		double   angle = (double)((float)position * scene->frequencies[i]), x = (double)head[a], y = (double)head[b];

		ret[a] = 1.25 * (x * cos(angle) - y * sin(angle));
		ret[b] = 1.25 * (y * cos(angle) + x * sin(angle));
	}
}

/* Row T in plain double precision; the largest error, which must be within BOUND. */
static double check_row(const struct scene *scene, const float *y, uint32_t t, double bound)
{
	const uint32_t width = (Q_HEADS + 2 * KV_HEADS) * scene->dim;
	double         q[64], k[64], score[TOKENS], expected[64], largest = 0;

	for (uint32_t h = 0; h < Q_HEADS; h++) {
		uint32_t kv = h / (Q_HEADS / KV_HEADS);
		double   max = -INFINITY, sum = 0;

		rotate(scene, scene->qkv + (size_t)t * width + h * scene->dim, t, q);
		for (uint32_t s = 0; s <= t; s++) {
			rotate(scene, scene->qkv + (size_t)s * width + (Q_HEADS + kv) * scene->dim, s, k);
			score[s] = 0;
			for (uint32_t d = 0; d < scene->dim; d++)
				score[s] += 0.25 * q[d] * k[d];
			max = fmax(max, score[s]);
		}
		memset(expected, 0, sizeof expected);
		for (uint32_t s = 0; s <= t; s++) {
			const float *v = scene->qkv + (size_t)s * width + (Q_HEADS + KV_HEADS + kv) * scene->dim;
			double       p = exp(score[s] - max);

			sum += p;
			for (uint32_t d = 0; d < scene->dim; d++)
				expected[d] += p * (double)v[d];
		}
		for (uint32_t d = 0; d < scene->dim; d++) {
			double got = (double)y[((size_t)t * Q_HEADS + h) * scene->dim + d];

			ck_assert_msg(fabs(got - expected[d] / sum) <= bound, "attention row %u head %u: %g is not %g", t, h, got,
			    expected[d] / sum);
			largest = fmax(largest, fabs(got - expected[d] / sum));
		}
	}
	return largest;
}

START_TEST(attention_values)
{
	static const struct {
		uint32_t dim, dims;
		enum rope_style style;
	} shapes[] = { { 64, 64, ROPE_INTERLEAVED }, { 12, 8, ROPE_HALF }, { 40, 40, ROPE_HALF } };
	static const uint32_t rows[] = { 0, 1, 100, 255, 256, TOKENS - 1 };
	static const double   bounds[] = { [KV_FLOAT] = 2e-5, [KV_F8] = 0.25, [KV_I8] = 0.05 };

	for (size_t i = 0; i < 3 * sizeof shapes / sizeof *shapes; i++) {
		enum kv_type  type = (enum kv_type)(i / (sizeof shapes / sizeof *shapes));
		struct layout layout = { 32, TOKENS, false, false, type };
		struct scene  scene;
		double        largest = 0;
		float        *y;

		scene_make(&scene, shapes[i % 3].dim, shapes[i % 3].dims, shapes[i % 3].style);
		y = attend(&scene, _i, &layout);
		for (size_t r = 0; y && r < sizeof rows / sizeof *rows; r++)
			largest = fmax(largest, check_row(&scene, y, rows[r], bounds[type]));
		ck_assert_msg(!y || type == KV_FLOAT || largest > 1e-3, "%g: nothing was rounded", largest);
		free(y);
		free(scene.qkv);
	}
}
END_TEST

/* One prompt, whatever the blocks, the steps, the neighbours and the threads: the same bits. */
START_TEST(attention_bits)
{
	static const struct layout layouts[] = {
		{ 64, TOKENS, false, false, KV_FLOAT }, { 16, TOKENS, true, false, KV_FLOAT }, { 32, 100, true, true, KV_FLOAT },
		{ 64, 1, false, false, KV_FLOAT }, { 4, 37, true, true, KV_FLOAT }, { 256, 256, false, true, KV_FLOAT },
		{ 1, TOKENS, false, false, KV_FLOAT }, { 64, 7, true, false, KV_FLOAT },
	};
	struct scene scene;
	float       *first[3] = { NULL };

	scene_make(&scene, 20, 20, ROPE_INTERLEAVED);
	for (int v = 0; v < VARIANTS; v++) {
		if (variants[v].isa != (enum cpu_isa)_i)
			continue;
		for (size_t n = 0; n < 3 * sizeof layouts / sizeof *layouts; n++) {
			size_t        i = n / 3, type = n % 3;
			struct layout layout = layouts[i];
			float        *y;

			if (i % 2 && variants[v].threads == 2)
				continue; /* one and three threads are enough for half of them */
			layout.type = (enum kv_type)type;
			y = attend(&scene, v, &layout);

			if (!y)
				continue;
			if (first[type])
				ck_assert_msg(memcmp(first[type], y, sizeof(float) * TOKENS * Q_HEADS * scene.dim) == 0,
				    "layout %zu, type %zu with %u threads gives other bits", i, type, variants[v].threads);
			if (first[type])
				free(y);
			else
				first[type] = y;
		}
	}
	for (unsigned type = 0; type < 3; type++)
		free(first[type]);
	free(scene.qkv);
}
END_TEST

static void copy_blocks(int variant, enum kv_type type)
{
	const int32_t    from[] = { 0, 2 }, to[] = { 3, 2 }, wrong[] = { 4, 0 };
	struct kv_group_desc group = { LAYERS, KV_HEADS, 8, 8, 4, KV_PAIRS, type };
	struct kv_group_desc odd = { LAYERS, KV_HEADS, 8, 24, 4, KV_PAIRS, KV_FLOAT };
	struct rope_desc rope = { ROPE_HALF, 8, (const float[]){ 1, 0.1f, 0.01f, 0.001f }, 1 };
	const uint32_t   width = (Q_HEADS + 2 * KV_HEADS) * 8;
	int32_t          positions[8], slots[8], tables[2][1] = { { 0 }, { 3 } };
	struct batch_sequence part = { 0, 8, 8, 1, { tables[0] } };
	struct batch     batch = { .rows = 8, .sequence_count = 1, .positions = positions, .kv_slots = { slots },
	    .sequences = &part };
	struct random    random = { 8 };
	struct bench     bench;
	struct activation qkv, y, again;
	struct error     error;

	if (!start(&bench, variant, 8, 8, width, Q_HEADS, 8))
		return;
	ck_assert_int_eq(bench.op->kv_alloc(bench.b, 0, &odd, &error), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "24"));
	ck_assert_int_eq(bench.op->kv_copy(bench.b, 0, from, to, 1), STATUS_INVALID);
	ck_assert_uint_eq(bench.op->kv_bytes(bench.b, &group), type == KV_FLOAT ? LAYERS * KV_HEADS * 8 * (KV_KEYS + 8) *
	    sizeof(float) : LAYERS * KV_HEADS * 8 * 2 * (8 + sizeof(float)));
	ck_assert_int_eq(bench.op->kv_alloc(bench.b, 0, &group, &error), STATUS_OK);
	ck_assert_int_eq(bench.op->kv_alloc(bench.b, 0, &group, &error), STATUS_INVALID);
	qkv = make(&bench, 8, width, &random);
	y = make(&bench, 8, Q_HEADS * 8, NULL);
	again = make(&bench, 8, Q_HEADS * 8, NULL);
	for (int32_t i = 0; i < 8; i++)
		positions[i] = slots[i] = i;
	ck_assert_int_eq(bench.op->step_begin(bench.b, &batch), STATUS_OK);
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		ck_assert_int_eq(bench.op->rope_kv_write(bench.b, &qkv, 0, layer, Q_HEADS, &rope), STATUS_OK);
	ck_assert_int_eq(bench.op->attention(bench.b, &qkv, 0, 1, Q_HEADS, 1, &y), STATUS_OK);
	ck_assert_int_eq(bench.op->kv_copy(bench.b, 0, from, to, 2), STATUS_OK);
	ck_assert_int_eq(bench.op->kv_copy(bench.b, 0, wrong, to, 1), STATUS_INVALID);
	part.block_table[0] = tables[1];
	ck_assert_int_eq(bench.op->step_begin(bench.b, &batch), STATUS_OK);
	ck_assert_int_eq(bench.op->attention(bench.b, &qkv, 0, 1, Q_HEADS, 1, &again), STATUS_OK);
	ck_assert_int_eq(memcmp(y.data, again.data, sizeof(float) * 8 * Q_HEADS * 8), 0);
	drop(&bench, &qkv);
	drop(&bench, &y);
	drop(&bench, &again);
	stop(&bench);
}

START_TEST(kv_copies)
{
	for (int type = KV_FLOAT; type <= KV_I8; type++)
		copy_blocks(_i, (enum kv_type)type);
}
END_TEST

/* A plan that names rows, blocks or slots outside its pools is refused before anything is read or written. */
START_TEST(batches_refused)
{
	struct kv_group_desc group = { 1, 1, 8, 8, 4, KV_PAIRS, KV_FLOAT };
	int32_t          positions[8] = { 0 }, slots[8] = { 0 }, table[] = { 0, 3 }, logit_rows[8] = { 0 };
	struct batch_sequence part = { 0, 4, 12, 2, { table } }, good_part = part;
	struct batch     good = { .rows = 8, .sequence_count = 1, .positions = positions, .kv_slots = { slots },
	    .sequences = &part,
		.logit_row_count = 1, .logit_rows = logit_rows }, batch = good;
	struct bench     bench;

	if (!start(&bench, _i, 8, 8, 64, 1, 8))
		return;
	ck_assert_int_eq(bench.op->kv_alloc(bench.b, 0, &group, NULL), STATUS_OK);
	ck_assert_int_eq(bench.op->step_begin(bench.b, &batch), STATUS_OK);
#define REFUSED(change, undo)                                                                \
	do {                                                                                 \
		change;                                                                      \
		ck_assert_int_eq(bench.op->step_begin(bench.b, &batch), STATUS_INVALID);     \
		undo;                                                                        \
		batch = good;                                                                \
		part = good_part;                                                            \
		ck_assert_int_eq(bench.op->step_begin(bench.b, &batch), STATUS_OK);          \
	} while (0)
	REFUSED(batch.rows = 9, );
	REFUSED(batch.logit_row_count = 9, );
	REFUSED(part.rows = 0, );
	REFUSED(part.rows = 9, );
	REFUSED(part.first_row = 5, );
	REFUSED(part.first_row = 9, );
	REFUSED(part.context = 3, );
	REFUSED(part.context = 17, );
	REFUSED(part.blocks = 1, );
	REFUSED((part.context = UINT32_MAX - 3, part.blocks = UINT32_MAX / 8 + 1), );
	REFUSED(table[1] = 4, table[1] = 3);
	REFUSED(table[0] = -1, table[0] = 0);
	REFUSED(slots[7] = 32, slots[7] = 0);
	REFUSED(slots[7] = -2, slots[7] = 0);
	REFUSED(logit_rows[0] = 8, logit_rows[0] = 0);
	REFUSED(logit_rows[0] = -1, logit_rows[0] = 0);
#undef REFUSED
	stop(&bench);
}
END_TEST

/* Logits and pooled rows of the step can be read when its batch is gone, and no others. */
START_TEST(results_outlive_the_batch)
{
	enum { VOCAB = 32, WIDTH = 64, WANTED = 2 };
	const int32_t          tokens[] = { 1, 2, 3 }, logit_rows[] = { 2, 0 };
	struct random          random = { 8 };
	float                  ones[WIDTH], values[VOCAB * WIDTH], got[WIDTH];
	struct weight_desc     desc = weights_desc("w", WEIGHT_F32, VOCAB, WIDTH, values, sizeof values);
	struct batch           batch = { .rows = 3, .tokens = tokens, .logit_rows = logit_rows, .logit_row_count = WANTED };
	struct bench           bench;
	struct activation      x;
	struct backend_weight *w, *norm;

	for (unsigned i = 0; i < VOCAB * WIDTH; i++)
		values[i] = random_float(&random);
	for (unsigned i = 0; i < WIDTH; i++)
		ones[i] = 1;
	start(&bench, 0, 4, VOCAB, WIDTH, 1, 2);
	x = make(&bench, 4, WIDTH, &random);
	norm = vector(&bench, ones, WIDTH);
	ck_assert_int_eq(bench.op->weight_load(bench.b, &desc, 1, &w, NULL), STATUS_OK);
	ck_assert_int_eq(bench.op->step_begin(bench.b, &batch), STATUS_OK);
	ck_assert_int_eq(bench.op->logits(bench.b, &x, NULL, norm, 1e-5f, w), STATUS_OK);
	batch.logit_row_count = 0;
	ck_assert_int_eq(bench.op->read_logits(bench.b, WANTED - 1, got, VOCAB), STATUS_OK);
	batch.logit_row_count = 4;
	ck_assert_int_eq(bench.op->read_logits(bench.b, WANTED, got, VOCAB), STATUS_INVALID);
	batch.logit_row_count = WANTED;
	ck_assert_int_eq(bench.op->step_begin(bench.b, &batch), STATUS_OK);
	ck_assert_int_eq(bench.op->pool(bench.b, &x), STATUS_OK);
	batch.logit_row_count = 0;
	ck_assert_int_eq(bench.op->read_pooled(bench.b, WANTED - 1, got, WIDTH), STATUS_OK);
	batch.logit_row_count = 4;
	ck_assert_int_eq(bench.op->read_pooled(bench.b, WANTED, got, WIDTH), STATUS_INVALID);
	bench.op->weight_free(bench.b, w);
	bench.op->weight_free(bench.b, norm);
	drop(&bench, &x);
	stop(&bench);
}
END_TEST

START_TEST(memory_and_words)
{
	struct backend_memory memory = { 0, 0 };
	struct backend       *b;

	ck_assert_int_eq(cpu_backend_create(0, &b, NULL), STATUS_OK);
	ck_assert_int_eq(b->ops->memory(b, &memory), STATUS_OK);
	ck_assert_uint_gt(memory.available, 1 << 20);
	ck_assert_uint_ge(memory.total, memory.available);
	ck_assert_ptr_nonnull(strstr(b->ops->describe(b), "threads"));
	b->ops->destroy(b);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("cpu");
	TCase   *tcase = tcase_create("operations");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 900);
	tcase_add_loop_test(tcase, norm_and_gate, 0, VARIANTS);
	tcase_add_loop_test(tcase, embedding, 0, VARIANTS);
	tcase_add_loop_test(tcase, linear_stack, 0, VARIANTS);
	tcase_add_test(tcase, weights_refused);
	tcase_add_loop_test(tcase, attention_values, 0, VARIANTS);
	tcase_add_loop_test(tcase, attention_bits, CPU_ISA_GENERIC, CPU_ISA_COUNT);
	tcase_add_loop_test(tcase, kv_copies, 0, VARIANTS);
	tcase_add_loop_test(tcase, batches_refused, 0, VARIANTS);
	tcase_add_test(tcase, results_outlive_the_batch);
	tcase_add_test(tcase, memory_and_words);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
