/* Unit tests of activations in limbs and of the products that read them (src/cpu/limbs_simd.h): what the integers stand
 * for, extreme activations, shapes and groups at random against double precision, and bits that do not depend on the rows
 * beside a row.  Nothing to test on processors without AVX2. */
#include "cpu/cpu.h"
#include "model/weight.h"

#include "support/random.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { ROWS = 11, INPUTS_MAX = 544, OUTPUTS_MAX = 70, SHAPES = 60 };

#if defined __x86_64__
/* Limb 0…2 (least significant first) of a column of a block. */
static int limb_of(const struct format_limbs *x, unsigned column, unsigned limb)
{
	uint32_t word = (uint32_t)x->words[column / 8][column % 2][limb];
	return (int8_t)(word >> 8 * (column % 8 / 2));
}

static void check_block(const struct format_limbs *limbs, const float *x)
{
	double amax = 0, scale = (double)limbs->scale, high = 0, rest = 0;

	for (unsigned k = 0; k < FORMAT_LIMB_COLUMNS; k++)
		amax = fmax(amax, fabs((double)x[k]));
	for (unsigned k = 0; k < FORMAT_LIMB_COLUMNS; k++) {
		int    low = limb_of(limbs, k, 0) + 256 * limb_of(limbs, k, 1);
		double value = scale * (low + 65536.0 * limb_of(limbs, k, 2)), error = fabs(value - (double)x[k]);

		ck_assert_msg(error <= fmax(amax * 1.004 * 0x1p-23, 0x1p-127), "%g became %g, the largest is %g", (double)x[k], value,
		    amax);
		high += limb_of(limbs, k, 2);
		rest += low;
	}
	ck_assert(scale == exp2(rint(log2(scale)))); /* a power of two */
	ck_assert((double)limbs->high == scale * high);
	ck_assert((double)limbs->rest == scale * rest);
	ck_assert(fabs((double)limbs->sum - scale * (65536 * high + rest)) <= fabs((double)limbs->sum) * 0x1p-23);
}

START_TEST(what_limbs_mean)
{
	struct random       random = { 1 };
	struct format_limbs limbs;
	float               x[FORMAT_LIMB_COLUMNS];
	const float        *row = x;

	if (!cpu_isa_available(CPU_ISA_AVX2))
		return;
	for (int exponent = -149; exponent <= 127; exponent++) {
		for (unsigned round = 0; round < 20; round++) {
			for (unsigned k = 0; k < FORMAT_LIMB_COLUMNS; k++)
				x[k] = ldexpf(random_float(&random), exponent - (int)random_below(&random, round + 1));
			x[round] = round % 2 ? ldexpf(nextafterf(2, 1), exponent) : -ldexpf(1, exponent); /* the ends of a range */
			cpu_kernels_avx2.prepare_limbs(&row, 1, FORMAT_LIMB_COLUMNS, &limbs);
			check_block(&limbs, x);
		}
	}
	for (unsigned k = 0; k < FORMAT_LIMB_COLUMNS; k++)
		x[k] = k % 2 ? FLT_MAX : -FLT_MAX;
	cpu_kernels_avx2.prepare_limbs(&row, 1, FORMAT_LIMB_COLUMNS, &limbs);
	check_block(&limbs, x);
	memset(x, 0, sizeof x);
	cpu_kernels_avx2.prepare_limbs(&row, 1, FORMAT_LIMB_COLUMNS, &limbs);
	check_block(&limbs, x);
	for (unsigned k = 0; k < FORMAT_LIMB_COLUMNS; k++) {
		memset(x, 0, sizeof x);
		x[k] = k % 3 == 0 ? NAN : k % 3 == 1 ? INFINITY : -INFINITY;
		cpu_kernels_avx2.prepare_limbs(&row, 1, FORMAT_LIMB_COLUMNS, &limbs);
		ck_assert_msg(isnan(limbs.scale), "column %u", k);
	}
}
END_TEST
#endif

/* What a row of activations is like. */
enum kind { ORDINARY, LARGE, SMALL, DENORMAL, ZERO, OUTLIER, POSITIVE, UNEVEN, LARGEST_KIND, NOT_A_NUMBER, INFINITE_ONE };

static float make_input(struct random *random, enum kind kind, uint32_t k, uint32_t special)
{
	float x = random_float(random);

	switch (kind) {
	case LARGE: return x * 1e30f;
	case SMALL: return x * 1e-30f;
	case DENORMAL: return x * 1e-40f;
	case ZERO: return 0;
	case OUTLIER: return k == special ? 3e4f : x;
	case POSITIVE: return 1 + x / 8; /* the zero point takes most of the sum away */
	case UNEVEN: return ldexpf(x, -(int)random_below(random, 40));
	case LARGEST_KIND: return ldexpf(1, 20) * (1 - 0x1p-24f) * (k % 2 ? -1 : 1); /* the largest integers */
	case NOT_A_NUMBER: return k == special ? NAN : x;
	case INFINITE_ONE: return k == special ? INFINITY : x;
	default: return x;
	}
}

struct fixture {
	struct weight_desc desc;
	bool    equal; /* all q are 15 */
	uint8_t values[OUTPUTS_MAX * (INPUTS_MAX + 8) / 2];
	int8_t  zeros[OUTPUTS_MAX * INPUTS_MAX];
	float   scales[OUTPUTS_MAX * INPUTS_MAX];
	int32_t group_index[INPUTS_MAX];
	float   x[ROWS][INPUTS_MAX], y[ROWS][OUTPUTS_MAX], alone[OUTPUTS_MAX];
};

/* Random weights of a random shape: groups of 32 to 128 or one, with or without zero points and an order of columns. */
static void make_weight(struct fixture *f, struct random *random, unsigned number)
{
	static const uint32_t groups[] = { 0, 32, 64, 96, 128 };
	uint32_t group = groups[number % 5], outputs = 2 + (uint32_t)random_below(random, OUTPUTS_MAX - 1);
	uint32_t inputs = 1 + (uint32_t)random_below(random, INPUTS_MAX);
	uint32_t blocks = group ? (inputs + group - 1) / group : 1;

	f->equal = number % 4 == 3;
	for (size_t i = 0; i < sizeof f->values; i++)
		f->values[i] = f->equal ? 0xff : (uint8_t)random_u64(random);
	for (size_t i = 0; i < (size_t)outputs * blocks; i++) {
		f->scales[i] = random_float(random) + 1.25f;
		f->zeros[i] = (int8_t)((int)random_below(random, 16) - 8);
	}
	for (uint32_t k = 0; k < inputs; k++)
		f->group_index[k] = (int32_t)((inputs - 1 - k) / (group ? group : inputs));
	f->desc = (struct weight_desc){ .name = "w", .format = WEIGHT_I4, .rows = outputs, .columns = inputs, .data = f->values,
		.bytes = (size_t)outputs * ((inputs + 7) / 8) * 4, .packing = WEIGHT_PACKED_COLUMNS,
		.scales = { .data = f->scales, .bytes = (size_t)outputs * blocks * 4, .block_rows = 1, .block_columns = group,
			.row_blocks = outputs, .column_blocks = blocks } };
	if (number % 2)
		f->desc.zeros = (struct weight_zeros){ .data = f->zeros, .bytes = (size_t)outputs * blocks, .packing = WEIGHT_ZEROS_I8 };
	if (number % 3 == 0 && group && inputs % group == 0)
		f->desc.group_index = f->group_index;
}

static void check_row(struct fixture *f, enum cpu_isa isa, uint32_t r, const float *y)
{
	const bool   limbs = isa == CPU_ISA_AVX2;
	static float w[INPUTS_MAX];
	uint32_t     inputs = (uint32_t)f->desc.columns, outputs = (uint32_t)f->desc.rows;
	double       expected[OUTPUTS_MAX], largest = 0, weights = 0, products = 0, bound;

	for (uint32_t i = 0; i < outputs; i++) {
		double size = 0, product = 0;

		expected[i] = 0;
		weight_read_row(&f->desc, i, w);
		for (uint32_t k = 0; k < inputs; k++) {
			expected[i] += (double)w[k] * (double)f->x[r][k];
			size += fabs((double)w[k]);
			product += fabs((double)w[k] * (double)f->x[r][k]);
		}
		largest = fmax(largest, fabs(expected[i]));
		weights = fmax(weights, size);
		products = fmax(products, product);
	}
	/* Equal weights times inputs of either sign leave nothing but the errors: those are small against the products, and so
	 * they are where few outputs happen to be small.  A block of tiny activations is resolved to 2^−126.  Instruction sets
	 * that go without limbs round once per column, before a zero point takes most of the sum away. */
	bound = (f->equal ? 5e-7 * products : fmax((limbs ? 1e-6 : 4e-6) * largest, 0x1p-23 * products)) + 0x1p-126 * weights;
	for (uint32_t i = 0; i < outputs; i++) {
		if (r == NOT_A_NUMBER || r == INFINITE_ONE) {
			ck_assert_msg(!isfinite(y[i]), "row %u, output %u: %g", r, i, (double)y[i]);
			continue;
		}
		ck_assert_msg(fabs((double)y[i] - expected[i]) <= bound,
		    "%s, %u outputs of %u inputs, groups of %u%s%s, row %u, output %u: %.9g is not %.9g (largest %g)", cpu_isa_name(isa),
		    outputs, inputs, (unsigned)f->desc.scales.block_columns, f->desc.group_index ? " in disorder" : "",
		    f->desc.zeros.data ? ", zero points" : "", r, i, (double)y[i], expected[i], largest);
	}
}

/* Every number of rows from 1 to ROWS gives the bits of a row alone, and those are right. */
static void check_isa(struct fixture *f, struct cpu_backend *cpu)
{
	struct backend_weight *w;
	struct error           error = { 0 };
	uint32_t               outputs = (uint32_t)f->desc.rows;

	ck_assert_msg(cpu->base.ops->weight_load(&cpu->base, &f->desc, 1, &w, &error) == STATUS_OK, "%s", error.message);
	for (uint32_t count = ROWS; count > 0; count--) {
		ck_assert(cpu_linear(cpu, w, NULL, f->x[0], INPUTS_MAX, count, f->y[0], OUTPUTS_MAX) == STATUS_OK);
		for (uint32_t r = 0; r < count; r++) {
			ck_assert(cpu_linear(cpu, w, NULL, f->x[r], INPUTS_MAX, 1, f->alone, OUTPUTS_MAX) == STATUS_OK);
			ck_assert_msg(memcmp(f->alone, f->y[r], outputs * sizeof *f->alone) == 0, "row %u of %u", r, count);
			if (count == ROWS)
				check_row(f, cpu->isa, r, f->alone);
		}
	}
	cpu->base.ops->weight_free(&cpu->base, w);
}

START_TEST(random_shapes)
{
	const struct backend_limits limits = { .rows = ROWS, .logit_rows = 1, .vocab = 32, .width = INPUTS_MAX, .q_heads = 1,
		.head_dim = 32 };
	struct fixture *f = calloc(1, sizeof *f);
	struct random   random = { 2 };

	ck_assert_ptr_nonnull(f);
	for (int isa = CPU_ISA_GENERIC; isa < CPU_ISA_COUNT; isa++) {
		struct backend *backend;
		struct error    error;

		if (!cpu_isa_available((enum cpu_isa)isa))
			continue;
		ck_assert(cpu_backend_create_isa(2, (enum cpu_isa)isa, &backend, &error) == STATUS_OK);
		ck_assert(backend->ops->scratch_alloc(backend, &limits, &error) == STATUS_OK);
		for (unsigned i = 0; i < (isa == CPU_ISA_GENERIC ? SHAPES / 10 : SHAPES); i++) {
			uint32_t special;

			make_weight(f, &random, i);
			special = (uint32_t)random_below(&random, f->desc.columns);
			for (unsigned r = 0; r < ROWS; r++)
				for (uint32_t k = 0; k < f->desc.columns; k++)
					f->x[r][k] = make_input(&random, (enum kind)r, k, special);
			check_isa(f, (struct cpu_backend *)backend);
		}
		backend->ops->destroy(backend);
	}
	free(f);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("cpu limbs");
	TCase   *tcase = tcase_create("limbs");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 900);
#if defined __x86_64__
	tcase_add_test(tcase, what_limbs_mean);
#endif
	tcase_add_test(tcase, random_shapes);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
