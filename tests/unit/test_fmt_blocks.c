/* GGUF's quantised blocks on the CPU backend: what they decode to, bit for bit as the gguf package does
 * (tests/data/blocks.safetensors, made by make_blocks.py beside it), and products with them. */
#include "cpu/cpu.h"
#include "file/safetensors.h"
#include "model/weight.h"
#include "support/random.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS_MAX = 19, OUTPUTS = 45, INPUTS_MAX = 1280 };

static const enum weight_format formats[] = {
	WEIGHT_Q4_0, WEIGHT_Q4_1, WEIGHT_Q5_0, WEIGHT_Q5_1, WEIGHT_Q8_0, WEIGHT_Q2_K, WEIGHT_Q3_K, WEIGHT_Q4_K, WEIGHT_Q5_K,
	WEIGHT_Q6_K, WEIGHT_IQ4_NL, WEIGHT_IQ4_XS,
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

static struct safetensors *open_data(void)
{
	const char         *top = getenv("abs_top_srcdir");
	struct safetensors *file;
	struct error        error;
	char                path[4096];

	snprintf(path, sizeof path, "%s/tests/data/blocks.safetensors", top ? top : ".");
	ck_assert_msg(safetensors_open(path, &file, &error) == STATUS_OK, "%s", error.message);
	return file;
}

static const struct safetensors_tensor *find(struct safetensors *file, enum weight_format format, const char *what)
{
	char name[64];

	snprintf(name, sizeof name, "%s.%s", weight_format_name(format), what);
	ck_assert_msg(safetensors_find(file, name) != NULL, "%s", name);
	return safetensors_find(file, name);
}

START_TEST(decoded)
{
	struct safetensors              *file = open_data();
	const struct safetensors_tensor *blocks = find(file, formats[_i], "blocks");
	const struct safetensors_tensor *values = find(file, formats[_i], "values");
	const struct weight_desc desc = { .name = "w", .format = formats[_i], .rows = 2, .columns = values->dims[1],
		.data = blocks->data, .bytes = blocks->bytes };
	struct backend        *backend;
	struct backend_weight *w;
	struct error           error;
	float                  row[512], expected[512];

	ck_assert_int_eq(cpu_backend_create(1, &backend, &error), STATUS_OK);
	ck_assert_msg(backend->ops->weight_load(backend, &desc, 1, &w, &error) == STATUS_OK, "%s", error.message);
	for (uint32_t r = 0; r < 2; r++) {
		cpu_weight_row(w, r, row);
		memcpy(expected, (const uint8_t *)values->data + r * sizeof expected, sizeof expected);
		for (unsigned k = 0; k < 512; k++)
			ck_assert_msg(row[k] == expected[k], "%s row %u column %u: %.9g is not %.9g",
			    weight_format_name(formats[_i]), r, k, (double)row[k], (double)expected[k]);
		weight_read_row(&desc, r, row);
		ck_assert_msg(memcmp(row, expected, sizeof row) == 0, "%s row %u read from the file", weight_format_name(formats[_i]), r);
	}
	backend->ops->weight_free(backend, w);
	backend->ops->destroy(backend);
	safetensors_close(file);
}
END_TEST

/* A NaN or an infinity anywhere in a block is found where, and only where, decoding gives one. */
START_TEST(faults_are_those_of_decoding)
{
	enum { BLOCKS = 3 };
	static const uint16_t  halves[] = { 0x7c00, 0xfe01 };
	uint32_t               columns, bytes, found = 0;
	struct backend        *backend;
	struct backend_weight *w;
	struct error           error;

	ck_assert(weight_format_block(formats[_i], &columns, &bytes));
	ck_assert_int_eq(cpu_backend_create(1, &backend, &error), STATUS_OK);
	for (uint32_t at = 0; at + 2 <= bytes; at += 2) {
		uint8_t             data[2 * BLOCKS * 256] = { 0 };
		struct weight_desc  desc = { .name = "w", .format = formats[_i], .rows = 2, .columns = (uint64_t)BLOCKS * columns,
		    .data = data, .bytes = (size_t)2 * BLOCKS * bytes };
		struct weight_fault fault = { 0 };
		float               row[BLOCKS * 256];
		bool                bad = false;

		memcpy(data + (BLOCKS + 1) * bytes + at, &halves[at / 2 % 2], 2); /* row 1, block 1 */
		ck_assert_msg(backend->ops->weight_load(backend, &desc, 1, &w, &error) == STATUS_OK, "%s", error.message);
		cpu_weight_row(w, 1, row);
		for (uint32_t k = 0; k < BLOCKS * columns; k++)
			bad = bad || !isfinite(row[k]);
		ck_assert_msg(weight_find_fault(&desc, &fault) == bad, "%s, byte %u", weight_format_name(formats[_i]), at);
		found += bad;
		if (bad)
			ck_assert(fault.row == 1 && fault.column == columns && fault.count == columns && fault.scale &&
			    fault.nan == (at / 2 % 2 == 1));
		backend->ops->weight_free(backend, w);
	}
	ck_assert(found == 1 || found == 2);
	backend->ops->destroy(backend);
}
END_TEST

/* OUTPUTS rows of blocks taken at random from the file's. */
static uint8_t *make_blocks(struct safetensors *file, enum weight_format format, uint32_t inputs, size_t *ret_bytes)
{
	const struct safetensors_tensor *blocks = find(file, format, "blocks");
	struct random                    random = { format };
	uint32_t                         columns, bytes;
	uint8_t                         *data;
	size_t                           count;

	ck_assert(weight_format_block(format, &columns, &bytes));
	count = (size_t)OUTPUTS * (inputs / columns);
	data = malloc(count * bytes);
	for (size_t i = 0; i < count; i++)
		memcpy(data + i * bytes, (const uint8_t *)blocks->data +
		    random_below(&random, (uint32_t)(blocks->bytes / bytes)) * (size_t)bytes, bytes);
	*ret_bytes = count * bytes;
	return data;
}

/* Against float64 of the decoded weights; a row alone, among 2…8 and among ROWS_MAX others. */
static void check_product(struct backend *backend, const struct weight_desc *desc, const float *x)
{
	static float           y[ROWS_MAX * OUTPUTS], some[FORMAT_ROWS * OUTPUTS], row[INPUTS_MAX];
	struct cpu_backend    *cpu = (struct cpu_backend *)backend;
	struct backend_weight *w;
	struct error           error;

	ck_assert_msg(backend->ops->weight_load(backend, desc, 1, &w, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(cpu_linear(cpu, w, NULL, x, desc->columns, ROWS_MAX, y, OUTPUTS), STATUS_OK);
	for (uint32_t n = 1; n <= FORMAT_ROWS; n++) {
		for (uint32_t first = 0; first + n <= ROWS_MAX; first++) {
			ck_assert_int_eq(cpu_linear(cpu, w, NULL, x + first * desc->columns, desc->columns, n, some, OUTPUTS),
			    STATUS_OK);
			ck_assert_msg(memcmp(some, y + first * OUTPUTS, n * OUTPUTS * sizeof *y) == 0, "%s: rows %u…%u",
			    weight_format_name(desc->format), first, first + n);
		}
	}
	for (uint32_t i = 0; i < OUTPUTS; i++) {
		cpu_weight_row(w, i, row);
		for (uint32_t r = 0; r < ROWS_MAX; r++) {
			double expected = 0, size = 0;

			for (uint32_t k = 0; k < desc->columns; k++) {
				double product = (double)row[k] * (double)x[r * desc->columns + k];
				expected += product;
				size += fabs(product);
			}
			ck_assert_msg(fabs((double)y[r * OUTPUTS + i] - expected) <= 2e-6 * size,
			    "%s, %llu inputs, row %u output %u: "
			    "%g is not %g", weight_format_name(desc->format), (unsigned long long)desc->columns, r, i,
			    (double)y[r * OUTPUTS + i], expected);
		}
	}
	backend->ops->weight_free(backend, w);
}

START_TEST(products)
{
	const struct backend_limits limits = { .rows = ROWS_MAX, .logit_rows = 1, .vocab = 32, .width = INPUTS_MAX,
	    .q_heads = 1,
		.head_dim = 32 };
	static float        x[ROWS_MAX * INPUTS_MAX];
	const uint32_t      widths[] = { 32, 96, 256, INPUTS_MAX };
	struct safetensors *file = open_data();
	struct random       random = { 5 };

	for (unsigned i = 0; i < ROWS_MAX * INPUTS_MAX; i++)
		x[i] = random_float(&random) * (i % 997 == 0 ? 100 : 1);
	for (int isa = CPU_ISA_GENERIC; isa < CPU_ISA_COUNT; isa++) {
		struct backend *backend;
		struct error    error;

		if (cpu_backend_create_isa(2, (enum cpu_isa)isa, &backend, &error))
			continue;
		ck_assert_int_eq(backend->ops->scratch_alloc(backend, &limits, &error), STATUS_OK);
		for (unsigned i = 0; i < sizeof widths / sizeof *widths; i++) {
			uint32_t           columns, block_bytes;
			struct weight_desc desc = { .name = "w", .format = formats[_i], .rows = OUTPUTS, .columns = widths[i] };
			uint8_t           *data;

			weight_format_block(formats[_i], &columns, &block_bytes);
			if (widths[i] % columns)
				continue;
			data = make_blocks(file, formats[_i], widths[i], &desc.bytes);
			desc.data = data;
			check_product(backend, &desc, x);
			free(data);
		}
		backend->ops->destroy(backend);
	}
	safetensors_close(file);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("GGUF blocks on the CPU");
	TCase   *tcase = tcase_create("blocks");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 300);
	tcase_add_loop_test(tcase, decoded, 0, FORMATS);
	tcase_add_loop_test(tcase, faults_are_those_of_decoding, 0, FORMATS);
	tcase_add_loop_test(tcase, products, 0, FORMATS);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
