/* Linear layers of quantised checkpoints on the CPU backend, from the tensors of a file to y, against float64.
 *
 * usage: test_fmt_linear [FILE…]
 *
 * Without arguments the committed tests/data/linear.safetensors (made by make_linear.py beside it) is run: a case C
 * is the tensors C.weight or C.qweight …, C.x, C.y and, where the scheme rounds activations, C.y_aq, with its
 * quantization_config as a string of metadata named C.  Files named as arguments hold one case: w.weight …, x, y,
 * y_aq, metadata "scheme".
 *
 * For every case, instruction set and kind of input: each output within 1e-6 of the largest of its row; a row's bits
 * are the same alone and among others, of a window of rows the same as those of the whole; windows of columns add up.
 */
#include "cpu/cpu.h"
#include "file/hf_config.h"
#include "file/safetensors.h"
#include "model/quant.h"
#include "model/weight.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 16, WIDTH_MAX = 1024, CASES_MAX = 128, NAME_BYTES = 128 };

/* Instruction sets, and the plain C code of what else only processors with VNNI use. */
enum { INTEGERS = CPU_ISA_COUNT, SETS };
static const char *set_name(int set) { return set == INTEGERS ? "integers" : cpu_isa_name((enum cpu_isa)set); }

struct test_case {
	const char *path, *scheme;
	char        layer[NAME_BYTES], x[NAME_BYTES], y[NAME_BYTES], y_aq[NAME_BYTES];
};

struct run {
	struct backend *backend;
	const char     *isa, *label;
	const float    *x, *y;
	uint32_t        rows, inputs, outputs;
	double          worst; /* largest error relative to the largest output of the row */
	int             failures;
};

static float *copy_floats(const struct checkpoint_tensor *tensor)
{
	float *values = malloc(tensor->bytes);
	memcpy(values, tensor->data, tensor->bytes);
	return values;
}

/* y [rows][desc->rows] of x [rows][stride] */
static bool multiply(struct run *run, const struct weight_desc *desc, const float *x, uint32_t rows, float *ret)
{
	struct backend_weight *w;
	struct error           error;
	enum status            status = run->backend->ops->weight_load(run->backend, desc, 1, &w, &error);

	if (!status) {
		status = cpu_linear((struct cpu_backend *)run->backend, w, NULL, x, run->inputs, rows, ret, desc->rows);
		run->backend->ops->weight_free(run->backend, w);
	}
	if (status) {
		printf("FAIL %s %s: %s\n", run->label, run->isa, error.message);
		run->failures++;
	}
	return !status;
}

static void compare(struct run *run, const char *what, const float *y, double tolerance)
{
	for (uint32_t r = 0; r < run->rows; r++) {
		double largest = 0, error = 0;

		for (uint32_t i = 0; i < run->outputs; i++) {
			double difference = fabs((double)y[r * run->outputs + i] - (double)run->y[r * run->outputs + i]);

			largest = fmax(largest, fabs((double)run->y[r * run->outputs + i]));
			error = isnan(difference) ? INFINITY : fmax(error, difference);
		}
		if (strcmp(what, "whole") == 0)
			run->worst = fmax(run->worst, error / largest);
		if (!(error <= tolerance * largest)) {
			printf("FAIL %s %s %s: row %u is wrong by %.3g of its largest value\n", run->label, run->isa, what, r,
			    error / largest);
			run->failures++;
		}
	}
}

/* A window of rows gives the bits of the whole, wherever it begins. */
static void check_row_windows(struct run *run, const struct weight_desc *desc, const float *whole)
{
	const uint32_t starts[] = { 1, run->outputs / 3, run->outputs - 1 };
	static float   part[ROWS_MAX * WIDTH_MAX];

	for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
		struct weight_desc window = *desc;

		window.stored_rows = desc->rows;
		window.stored_columns = desc->columns;
		window.first_row = starts[s];
		window.rows = desc->rows - starts[s];
		if (window.rows < 2 || !multiply(run, &window, run->x, run->rows, part)) /* one row would be a vector */
			continue;
		for (uint32_t r = 0; r < run->rows; r++) {
			if (memcmp(part + r * window.rows, whole + r * run->outputs + starts[s], window.rows * sizeof *part)) {
				printf("FAIL %s %s: rows from %u on differ from those of the whole\n", run->label, run->isa, starts[s]);
				run->failures++;
			}
		}
	}
}

/* Windows of columns add up to the whole. */
static void check_column_windows(struct run *run, const struct weight_desc *desc)
{
	const uint32_t ends[] = { 32, run->inputs / 2, run->inputs / 3, run->inputs - 1 };
	static float   part[ROWS_MAX * WIDTH_MAX], sum[ROWS_MAX * WIDTH_MAX];

	for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
		struct weight_desc window = *desc;
		bool               good = true;

		memset(sum, 0, sizeof sum);
		window.stored_rows = desc->rows;
		window.stored_columns = desc->columns;
		for (int half = 0; half < 2 && good; half++) {
			window.first_column = half ? ends[e] : 0;
			window.columns = half ? run->inputs - ends[e] : ends[e];
			good = multiply(run, &window, run->x + window.first_column, run->rows, part);
			for (uint32_t i = 0; i < run->rows * run->outputs; i++)
				sum[i] += part[i];
		}
		if (good)
			compare(run, "in two windows of columns", sum, 2e-6);
	}
}

static void check_case(struct run *run, const struct weight_desc *desc)
{
	static float y[ROWS_MAX * WIDTH_MAX], alone[WIDTH_MAX], many[ROWS_MAX * WIDTH_MAX];
	float       *repeated = malloc(sizeof *repeated * ROWS_MAX * run->inputs);

	run->worst = 0;
	if (multiply(run, desc, run->x, run->rows, y)) {
		compare(run, "whole", y, 1e-6);
		for (uint32_t r = 0; r < run->rows; r++) {
			if (multiply(run, desc, run->x + (size_t)r * run->inputs, 1, alone) &&
			    memcmp(alone, y + r * run->outputs, run->outputs * sizeof *y)) {
				printf("FAIL %s %s: row %u alone has other bits\n", run->label, run->isa, r);
				run->failures++;
			}
		}
		for (uint32_t r = 0; r < ROWS_MAX; r++)
			memcpy(repeated + (size_t)r * run->inputs, run->x + (size_t)(r % run->rows) * run->inputs,
			    sizeof *repeated * run->inputs);
		if (multiply(run, desc, repeated, ROWS_MAX, many))
			for (uint32_t r = 0; r < ROWS_MAX; r++)
				if (memcmp(many + r * run->outputs, y + r % run->rows * run->outputs, run->outputs * sizeof *y)) {
					printf("FAIL %s %s: row %u of %d has other bits\n", run->label, run->isa, r, ROWS_MAX);
					run->failures++;
				}
		check_row_windows(run, desc, y);
		if (desc->input == WEIGHT_INPUT_FLOAT)
			check_column_windows(run, desc);
	}
	free(repeated);
	printf("%-24s %-8s %-6s %.2e\n", run->label, run->isa, desc->input == WEIGHT_INPUT_FLOAT ? "y" : "y_aq",
	    run->worst);
}

/* Reads the layer with or without the checkpoint's rounding of inputs and compares with tensor NAME. */
static int check_kind(const struct test_case *c, bool rounded, struct backend *backend, const char *isa)
{
	struct checkpoint              *checkpoint = NULL;
	const struct checkpoint_tensor *x, *y;
	struct hf_config                config = { 0 };
	struct quant                    quant;
	struct weight_desc              desc;
	struct error                    error;
	char                            text[4096], name[NAME_BYTES + 8];
	struct run  run = { .backend = backend, .isa = isa, .label = strcmp(c->layer, "w") ? c->layer : c->path };
	float      *xs = NULL, *ys = NULL;
	enum status status = checkpoint_open(c->path, &checkpoint, &error);

	snprintf(text, sizeof text, "{\"quantization_config\": %s}", c->scheme);
	snprintf(name, sizeof name, "%s.weight", c->layer);
	status = status ? status : hf_config_parse(text, strlen(text), "scheme", &config, &error);
	status = status ? status : quant_read(&config, rounded, &quant, &error);
	status = status ? status : checkpoint_take(checkpoint, c->x, &x, &error);
	if (!status && rounded && !checkpoint_find(checkpoint, c->y_aq))
		goto done;
	status = status ? status : checkpoint_take(checkpoint, rounded ? c->y_aq : c->y, &y, &error);
	status = status ? status : quant_take(checkpoint, &quant, name, y->dims[1], x->dims[1], &desc, &error);
	if (!status && rounded == (desc.input == WEIGHT_INPUT_FLOAT))
		status = error_set(&error, STATUS_INTERNAL, "inputs are%s rounded", rounded ? " not" : "");
	if (status) {
		printf("FAIL %s: %s\n", run.label, error.message);
		run.failures++;
		goto done;
	}
	xs = copy_floats(x);
	ys = copy_floats(y);
	run.x = xs;
	run.y = ys;
	run.rows = (uint32_t)x->dims[0];
	run.inputs = (uint32_t)x->dims[1];
	run.outputs = (uint32_t)y->dims[1];
	check_case(&run, &desc);
done:
	free(xs);
	free(ys);
	hf_config_close(&config);
	checkpoint_close(checkpoint);
	return run.failures;
}

/* A weight that is not a number makes its output one, and no other; a row of zeros stays zero when inputs are
 * rounded. */
static int check_nan(struct backend *backend, const char *isa)
{
	enum { OUTPUTS = 40, INPUTS = 96, BAD = 33 };
	static uint8_t     values[OUTPUTS * INPUTS];
	static float       x[2 * INPUTS], y[2 * OUTPUTS];
	const float        scales[3] = { 1, 2, 4 };
	struct run         run = { .backend = backend, .isa = isa, .label = "NaN", .x = x, .rows = 2, .inputs = INPUTS,
	    .outputs = OUTPUTS };
	struct weight_desc desc = { .name = "w", .format = WEIGHT_F8_E4M3, .rows = OUTPUTS, .columns = INPUTS,
	    .data = values,
		.bytes = sizeof values, .scales = { .data = scales, .bytes = sizeof scales, .block_columns = 32,
		    .row_blocks = 1,
		.column_blocks = 3 }, .input = WEIGHT_INPUT_F8_GROUP };

	memset(values, 0x38, sizeof values); /* 1 */
	values[BAD * INPUTS + 70] = 0xff;
	for (int k = 0; k < INPUTS; k++)
		x[k] = 1;
	if (!multiply(&run, &desc, x, 2, y))
		return run.failures;
	for (int i = 0; i < OUTPUTS; i++) {
		if (i == BAD ? !isnan(y[i]) : fabsf(y[i] - 32 * 7) > 1e-3f || y[OUTPUTS + i] != 0) {
			printf("FAIL NaN %s: output %d is %g and %g\n", isa, i, (double)y[i], (double)y[OUTPUTS + i]);
			run.failures++;
		}
	}
	return run.failures;
}

/* Cases of a file; 0 when it cannot be read. */
static unsigned find_cases(const char *path, struct safetensors *file, struct test_case *ret)
{
	unsigned count = 0;

	if (safetensors_find(file, "x")) {
		ret[0] = (struct test_case){ .path = path, .scheme = safetensors_metadata(file, "scheme"), .layer = "w",
		    .x = "x",
			.y = "y", .y_aq = "y_aq" };
		return ret[0].scheme != NULL;
	}
	for (size_t i = 0; i < safetensors_count(file) && count < CASES_MAX; i++) {
		const char *name = safetensors_at(file, i)->name;
		size_t      length = strlen(name);
		struct test_case *c = &ret[count];

		if (length < 3 || length > NAME_BYTES - 4 || strcmp(name + length - 2, ".x"))
			continue;
		c->path = path;
		snprintf(c->layer, sizeof c->layer, "%.*s", (int)length - 2, name);
		snprintf(c->x, sizeof c->x, "%.*s.x", (int)length - 2, name);
		snprintf(c->y, sizeof c->y, "%.*s.y", (int)length - 2, name);
		snprintf(c->y_aq, sizeof c->y_aq, "%.*s.y_aq", (int)length - 2, name);
		c->scheme = safetensors_metadata(file, c->layer);
		count += c->scheme != NULL;
	}
	return count;
}

static int check_file(const char *path, struct backend *const *backends)
{
	static struct test_case cases[CASES_MAX];
	struct safetensors     *file;
	struct error            error;
	int                     failures = 0;
	unsigned                count;

	if (safetensors_open(path, &file, &error)) {
		printf("FAIL %s\n", error.message);
		return 1;
	}
	count = find_cases(path, file, cases);
	if (count == 0) {
		printf("FAIL %s holds no case\n", path);
		failures++;
	}
	for (unsigned i = 0; i < count; i++)
		for (int set = 0; set < SETS; set++)
			for (int rounded = 0; rounded < 2; rounded++)
				failures += backends[set] ? check_kind(&cases[i], rounded, backends[set], set_name(set)) : 0;
	safetensors_close(file);
	return failures;
}

int main(int argc, char **argv)
{
	const struct backend_limits limits = { .rows = ROWS_MAX, .logit_rows = 1, .vocab = 32, .width = WIDTH_MAX,
	    .q_heads = 1,
		.head_dim = 32 };
	const char     *top = getenv("abs_top_srcdir");
	struct backend *backends[SETS] = { NULL };
	struct error    error;
	char            path[4096];
	int             failures = 0;

	for (int i = CPU_ISA_GENERIC; i < SETS; i++) {
		enum cpu_isa isa = i == INTEGERS ? CPU_ISA_GENERIC : (enum cpu_isa)i;

		if (!cpu_isa_available(isa)) {
			printf("without %s kernels: this processor has not all they need\n", set_name(i));
			continue;
		}
		if (cpu_backend_create_isa(2, isa, &backends[i], &error) ||
		    backends[i]->ops->scratch_alloc(backends[i], &limits, &error))
			return 1;
		if (i == INTEGERS)
			((struct cpu_backend *)backends[i])->integers = true;
		failures += check_nan(backends[i], set_name(i));
	}
	snprintf(path, sizeof path, "%s/tests/data/linear.safetensors", top ? top : ".");
	if (argc < 2)
		failures += check_file(path, backends);
	for (int i = 1; i < argc; i++)
		failures += check_file(argv[i], backends);
	for (int i = 0; i < SETS; i++)
		if (backends[i])
			backends[i]->ops->destroy(backends[i]);
	printf("%d failures\n", failures);
	return failures != 0;
}
