/* Unit tests of the CPU backend's stored formats: re-packing, decoding, products, and that a row's bits do not depend
 * on the rows beside it. */
#include "cpu/format.h"
#include "cpu/cpu.h"

#include "support/weights.h"

#include <check.h>

enum { MAX_COLUMNS = 1536 };

static const uint32_t widths[] = { 256, 512, MAX_COLUMNS }, odd_widths[] = { 1, 7, 8, 31, 33, 100, 257 };

static const struct cpu_kernels *const kernel_tables[CPU_ISA_COUNT] = {
	[CPU_ISA_GENERIC] = &cpu_kernels_generic,
#if defined __x86_64__
	[CPU_ISA_AVX2] = &cpu_kernels_avx2, [CPU_ISA_AVX512] = &cpu_kernels_avx512,
#endif
};

/* A tile of ROWS ≤ 32 rows. */
static uint8_t *pack_tile(const struct format *format, enum weight_format id, const uint8_t *data, uint32_t rows,
    uint32_t columns)
{
	size_t         bytes = format->tile_bytes(columns);
	uint8_t       *tile = calloc(1, bytes + 64);
	const uint8_t *each[FORMAT_TILE];

	for (uint32_t i = 0; i < FORMAT_TILE; i++)
		each[i] = i < rows ? data + i * weights_row_bytes(id, columns) : NULL;
	format->pack(tile, each, columns);
	return tile;
}

static void check_format(enum weight_format id, uint32_t columns, uint32_t rows, struct random *random)
{
	const struct format *format = format_find(id);
	uint8_t *data = weights_make(random, id, rows, columns), *tile = pack_tile(format, id, data, rows, columns);
	float   *decoded = malloc(columns * sizeof *decoded);
	float   *x[FORMAT_ROWS], *input = malloc(sizeof *input * FORMAT_ROWS * columns);
	float   *sums = malloc(sizeof *sums * FORMAT_ROWS * (columns / 16 + 1));
	float    alone[CPU_ISA_COUNT][FORMAT_ROWS][FORMAT_TILE], out[FORMAT_ROWS][FORMAT_TILE];

	for (uint32_t i = 0; i < rows; i++) {
		format->row(tile, columns, i, decoded);
		for (uint32_t k = 0; k < columns; k++) {
			double expected = weights_value(id, data, columns, i, k);
			ck_assert_msg(fabs((double)decoded[k] - expected) <= 1e-7 * fabs(expected),
			    "%s row %u column %u: %g is not %g", format->name, i, k, (double)decoded[k], expected);
		}
	}
	for (unsigned r = 0; r < FORMAT_ROWS; r++) {
		x[r] = malloc(columns * sizeof *x[r]);
		for (uint32_t k = 0; k < columns; k++)
			x[r][k] = random_float(random) * (r == 3 ? 1000 : 1);
	}
	for (int isa = CPU_ISA_GENERIC; isa < CPU_ISA_COUNT; isa++) {
		format_linear_function *linear = format->linear[isa];

		if (!cpu_isa_available((enum cpu_isa)isa))
			continue;
		ck_assert((linear != NULL) == (isa != CPU_ISA_GENERIC)); /* every format has a kernel of each set */
		for (unsigned n = 1; n <= FORMAT_ROWS; n++) {
			for (unsigned start = 0; start < (n == 1 ? FORMAT_ROWS : 1); start++) {
				struct format_input in = { input, format->scaled ? sums : NULL };

				if (format->limbs[isa])
					kernel_tables[isa]->prepare_limbs((const float *const *)x + start, n, columns, (struct format_limbs *)input);
				else
					kernel_tables[isa]->prepare((const float *const *)x + start, n, columns, format->group,
					    linear ? format->prescale : NULL, input, format->scaled ? sums : NULL);
				memset(out, 0xff, sizeof out);
				if (linear)
					linear(tile, columns, &in, n, out);
				else
					format_linear_generic(format, tile, columns, &in, n, out);
				if (n == 1)
					memcpy(alone[isa][start], out[0], sizeof out[0]);
				/* The same bits whatever the number of rows. */
				for (unsigned r = 0; r < n; r++)
					ck_assert_msg(memcmp(out[r], alone[isa][start + r], rows * sizeof out[r][0]) == 0,
					    "%s %s: row %u of %u differs from the row alone", format->name, cpu_isa_name((enum cpu_isa)isa), r, n);
			}
		}
		for (unsigned r = 0; r < FORMAT_ROWS; r++) {
			for (uint32_t i = 0; i < rows; i++) {
				double expected = 0, size = 0;

				for (uint32_t k = 0; k < columns; k++) {
					double product = weights_value(id, data, columns, i, k) * (double)x[r][k];
					expected += product;
					size += fabs(product);
				}
				ck_assert_msg(fabs((double)alone[isa][r][i] - expected) <= 1e-6 * size + 1e-12,
				    "%s %s, %u columns, row %u output %u: %g is not %g", format->name,
				    cpu_isa_name((enum cpu_isa)isa), columns, r, i, (double)alone[isa][r][i], expected);
			}
		}
	}
	for (unsigned r = 0; r < FORMAT_ROWS; r++)
		free(x[r]);
	free(sums);
	free(input);
	free(decoded);
	free(tile);
	free(data);
}

START_TEST(every_format)
{
	struct random random = { 1 };

	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
		check_format((enum weight_format)_i, widths[i], i == 0 ? 5 : FORMAT_TILE, &random);
}
END_TEST

START_TEST(odd_columns)
{
	struct random random = { 2 };

	/* Formats without blocks take any number of columns, the others multiples of 32. */
	if (weights_blocks[_i].columns == 1)
		for (size_t i = 0; i < sizeof odd_widths / sizeof *odd_widths; i++)
			check_format((enum weight_format)_i, odd_widths[i], 9, &random);
	else if (weights_blocks[_i].columns == 32)
		for (uint32_t columns = 32; columns <= 32 * 9; columns += 64)
			check_format((enum weight_format)_i, columns, 31, &random);
}
END_TEST

START_TEST(halves)
{
	for (uint32_t bits = 0; bits < 0x10000; bits++) {
		uint8_t bytes[2] = { (uint8_t)bits, (uint8_t)(bits >> 8) };
		float   value = floats_from_half((uint16_t)bits);

		if ((bits & 0x7c00) != 0x7c00)
			ck_assert_msg((double)value == weights_half_value(bytes), "half %04x", bits);
		else
			ck_assert_msg((bits & 0x3ff) ? isnan(value) : isinf(value) && (value < 0) == (bits >> 15), "half %04x",
			    bits);
	}
}
END_TEST

/* Numbers of 16 bits are themselves; between two neighbours to the nearer one, halfway to the even pattern. */
START_TEST(narrowing)
{
	for (unsigned half = 0; half < 2; half++) {
		uint16_t infinity = half ? 0x7c00 : 0x7f80;

		for (uint32_t bits = 0; bits < infinity; bits++) {
			float    value = half ? floats_from_half((uint16_t)bits) : floats_from_bfloat((uint16_t)bits);
			float    next = half ? floats_from_half((uint16_t)(bits + 1)) : floats_from_bfloat((uint16_t)(bits + 1));
			float    middle, near[4];
			uint32_t wanted[4] = { bits, bits, bits + (bits & 1), bits + 1 };

			if (isinf(next)) /* as if there were one number more */
				next = half ? 65536 : INFINITY;
			middle = isinf(next) ? floats_from_bits((bits << 16) + 0x8000) : value + (next - value) / 2;
			near[0] = value, near[1] = nextafterf(middle, 0), near[2] = middle, near[3] = nextafterf(middle, INFINITY);
			for (unsigned i = 0; i < 4; i++)
				for (unsigned sign = 0; sign < 2; sign++) {
					uint16_t got = half ? floats_to_half(sign ? -near[i] : near[i]) : floats_to_bfloat(sign ? -near[i] : near[i]);

					ck_assert_msg(got == (wanted[i] | sign << 15), "%a: %04x, not %04x", (double)near[i], got, wanted[i]);
				}
		}
		ck_assert_uint_eq(half ? floats_to_half(INFINITY) : floats_to_bfloat(INFINITY), infinity);
		ck_assert(isnan(half ? floats_from_half(floats_to_half(NAN)) : floats_from_bfloat(floats_to_bfloat(NAN))));
	}
	ck_assert_uint_eq(floats_to_half(1e9f), 0x7c00);
}
END_TEST

START_TEST(table)
{
	for (int i = 0; i < WEIGHTS_FORMATS; i++) {
		const struct format *format = format_find((enum weight_format)i);

		ck_assert_ptr_nonnull(format);
		ck_assert_uint_eq(format->block_columns, weights_blocks[i].columns);
		ck_assert_uint_eq(format->block_bytes, weights_blocks[i].bytes);
		/* Re-packing keeps the bits per weight. */
		ck_assert_uint_eq(format->tile_bytes(256), FORMAT_TILE * weights_row_bytes((enum weight_format)i, 256));
	}
	ck_assert_ptr_null(format_find(WEIGHT_FORMAT_COUNT));
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("cpu formats");
	TCase   *tcase = tcase_create("formats");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 900);
	tcase_add_loop_test(tcase, every_format, 0, WEIGHTS_FORMATS);
	tcase_add_loop_test(tcase, odd_columns, 0, WEIGHTS_FORMATS);
	tcase_add_test(tcase, halves);
	tcase_add_test(tcase, narrowing);
	tcase_add_test(tcase, table);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
