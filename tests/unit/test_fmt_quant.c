/* Unit tests of quant.h: which tensors make a weight, what quantization_config says, and every refusal with its words.
 * What the values mean is tested by test_fmt_linear. */
#include "base/floats.h"
#include "file/hf_config.h"
#include "model/quant.h"
#include "model/weight.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 16, K = 64, FILE_MAX = 1 << 16 };

/* A tensor of the file to be made: "name dtype [shape]", filled with one byte. */
struct item {
	const char *name, *dtype, *shape;
	size_t      bytes;
	uint8_t     fill;
};

static char path[64];

static void setup(void)
{
	int fd;

	strcpy(path, "/tmp/penstock-test-quant-XXXXXX");
	fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	close(fd);
}

static void teardown(void) { unlink(path); }

static struct checkpoint *make(const struct item *items)
{
	static char        header[8192];
	static uint8_t     data[FILE_MAX];
	size_t             at = 1, end = 0;
	uint64_t           length;
	struct checkpoint *checkpoint;
	struct error       error;
	FILE              *stream = fopen(path, "wb");

	header[0] = '{';
	for (; items->name; items++) {
		at += (size_t)snprintf(header + at, sizeof header - at,
		    "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", end ? "," : "", items->name,
		    items->dtype,
		    items->shape, end, end + items->bytes);
		memset(data + end, items->fill, items->bytes);
		end += items->bytes;
	}
	length = at += (size_t)snprintf(header + at, sizeof header - at, "}");
	ck_assert_ptr_nonnull(stream);
	fwrite(&length, 8, 1, stream);
	fwrite(header, 1, at, stream);
	fwrite(data, 1, end, stream);
	fclose(stream);
	ck_assert_msg(checkpoint_open(path, &checkpoint, &error) == STATUS_OK, "%s", error.message);
	return checkpoint;
}

static enum status read_scheme(const char *scheme, bool rounded, struct quant *ret, struct error *error)
{
	struct hf_config config;
	char             text[2048];
	enum status      status;

	snprintf(text, sizeof text, "{\"quantization_config\": %s}", scheme);
	ck_assert_msg(hf_config_parse(text, strlen(text), "config.json", &config, error) == STATUS_OK, "%s",
	    error->message);
	status = quant_read(&config, rounded, ret, error);
	hf_config_close(&config);
	return status;
}

/* Takes w.weight [N, K] of ITEMS; with WORDS, that must fail and say them. */
static struct weight_desc take(const struct item *items, const char *scheme, const char *words)
{
	struct checkpoint *checkpoint = make(items);
	struct quant       quant;
	struct error       error = { 0 };
	struct weight_desc desc = { 0 };
	enum status        status;

	ck_assert_msg(read_scheme(scheme, false, &quant, &error) == STATUS_OK, "%s", error.message);
	status = quant_take(checkpoint, &quant, "w.weight", N, K, &desc, &error);
	if (words) {
		ck_assert_msg(status != STATUS_OK, "\"%s\" was not refused", words);
		ck_assert_msg(strstr(error.message, words) != NULL, "\"%s\" does not say \"%s\"", error.message, words);
	} else {
		ck_assert_msg(status == STATUS_OK, "%s", error.message);
		ck_assert_msg(checkpoint_finish(checkpoint, &error) == STATUS_OK, "%s", error.message);
		ck_assert_ptr_nonnull(desc.map);
		desc.data = NULL; /* goes with the file */
		desc.map = NULL;
	}
	checkpoint_close(checkpoint);
	return desc;
}

/* What weights that are made up would be. */
START_TEST(made_up)
{
	static const struct {
		const char        *scheme;
		enum weight_format format;
		enum weight_input  input;
		uint64_t           block_rows, block_columns;
	} cases[] = {
		{ "null", WEIGHT_BF16, WEIGHT_INPUT_FLOAT, 0, 0 },
		{ "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}", WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_GROUP, 128, 128 },
		{ "{\"quant_method\": \"fp8\"}", WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_TOKEN, 1, 0 },
		{ "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64}", WEIGHT_I4, WEIGHT_INPUT_FLOAT, 1, 64 },
		{ "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"a\": {\"weights\": {\"num_bits\": 8, \"type\": "
		  "\"int\"}, \"input_activations\": {\"num_bits\": 8, \"type\": \"int\", \"strategy\": \"token\", \"dynamic\": true}}}}",
		    WEIGHT_I8, WEIGHT_INPUT_I8_TOKEN, 1, 0 },
	};
	const size_t i = (size_t)_i;
	struct quant       quant;
	struct error       error = { 0 };
	struct weight_desc desc = { .format = WEIGHT_BF16, .rows = 256, .columns = 512 };

	ck_assert_msg(read_scheme(cases[i].scheme, true, &quant, &error) == STATUS_OK, "%s", error.message);
	quant_describe(&quant, &desc);
	ck_assert_int_eq(desc.format, cases[i].format);
	ck_assert_int_eq(desc.input, cases[i].input);
	ck_assert_uint_eq(desc.scales.block_rows, cases[i].block_rows);
	ck_assert_uint_eq(desc.scales.block_columns, cases[i].block_columns);
}
END_TEST

#define FP8 "{\"quant_method\": \"fp8\", \"weight_block_size\": [8, 32]}"
#define GPTQ "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32}"
#define NONE "null"
#define END { NULL, NULL, NULL, 0, 0 }

START_TEST(plain)
{
	struct weight_desc desc = take((struct item[]){ { "w.weight", "BF16", "[16,64]", 2048, 0 }, END }, FP8, NULL);

	/* Float layers of a quantised checkpoint. */
	ck_assert_int_eq(desc.format, WEIGHT_BF16);
	ck_assert_ptr_null(desc.scales.data);
	take((struct item[]){ { "w.weight", "F32", "[64,16]", 4096, 0 }, END }, NONE, "w.weight\" has the shape [64, 16]");
	take((struct item[]){ { "w.weight", "I32", "[16,64]", 4096, 0 }, END }, NONE, "w.weight is I32");
	take((struct item[]){ { "w.bias", "F32", "[16]", 64, 0 }, END }, NONE, "w.weight");
}
END_TEST

START_TEST(vectors)
{
	const struct item  items[] = { { "b", "F16", "[16]", 32, 0 }, { "i", "I8", "[16]", 16, 0 }, END };
	struct checkpoint *checkpoint = make(items);
	struct quant       quant;
	struct error       error;
	struct weight_desc desc;

	ck_assert_int_eq(read_scheme(NONE, true, &quant, &error), STATUS_OK);
	ck_assert_int_eq(quant_take(checkpoint, &quant, "b", 16, 0, &desc, &error), STATUS_OK);
	ck_assert_uint_eq(desc.rows, 1);
	ck_assert_uint_eq(desc.columns, 16);
	ck_assert_int_eq(quant_take(checkpoint, &quant, "i", 16, 0, &desc, &error), STATUS_UNSUPPORTED);
	ck_assert_int_eq(quant_take(checkpoint, &quant, "c", 16, 0, &desc, &error), STATUS_NOT_FOUND);
	ck_assert(quant_has(checkpoint, "b") && !quant_has(checkpoint, "c"));
	checkpoint_close(checkpoint);
}
END_TEST

START_TEST(float8)
{
	const struct item weight = { "w.weight", "F8_E4M3", "[16,64]", 1024, 0x38 };
	const struct {
		struct item scale;
		uint64_t    block_rows, block_columns;
		const char *words;
	} cases[] = {
		{ { "w.weight_scale_inv", "F32", "[2,2]", 16, 0 }, 8, 32, NULL },
		{ { "w.weight_scale", "BF16", "[16,1]", 32, 0 }, 1, 0, NULL },
		{ { "w.weight_scale", "F16", "[16]", 32, 0 }, 1, 0, NULL },
		{ { "w.weight_scale", "F32", "[16,2]", 128, 0 }, 1, 32, NULL },
		{ { "w.weight_scale", "F32", "[]", 4, 0 }, 0, 0, NULL },
		{ { "w.weight_scale_inv", "F32", "[1]", 4, 0 }, 0, 0, NULL },
		{ { "w.weight_scale_inv", "F32", "[3,2]", 24, 0 }, 0, 0, "w.weight_scale_inv has the shape [3, 2]" },
		{ { "w.weight_scale_inv", "F32", "[2,3]", 24, 0 }, 0, 0, "w.weight_scale_inv has the shape [2, 3]" },
		{ { "w.weight_scale", "F32", "[16,5]", 320, 0 }, 0, 0, "w.weight_scale has the shape [16, 5]" },
		{ { "w.weight_scale", "F8_E4M3", "[16,1]", 16, 0 }, 0, 0, "w.weight_scale is F8_E4M3, scales of F32" },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct weight_desc desc = take((struct item[]){ weight, cases[i].scale, END }, FP8, cases[i].words);

		if (cases[i].words)
			continue;
		ck_assert_int_eq(desc.format, WEIGHT_F8_E4M3);
		ck_assert_uint_eq(desc.scales.block_rows, cases[i].block_rows);
		ck_assert_uint_eq(desc.scales.block_columns, cases[i].block_columns);
	}
	ck_assert_ptr_null(take((struct item[]){ weight, END }, NONE, NULL).scales.data);
	/* Where the configuration says nothing, blocks are 128 × 128. */
	ck_assert_uint_eq(take((struct item[]){ weight, { "w.weight_scale_inv", "F32", "[1,1]", 4, 0 }, END }, NONE, NULL)
	    .scales.block_rows, 0);
}
END_TEST

START_TEST(int8)
{
	const struct item weight = { "w.weight", "I8", "[16,64]", 1024, 1 }, scale = { "w.weight_scale", "F32", "[16,1]",
	    64, 0 };

	ck_assert_int_eq(take((struct item[]){ weight, scale, END }, NONE, NULL).format, WEIGHT_I8);
	take((struct item[]){ weight, END }, NONE, "tensor w.weight_scale is missing beside w.weight");
	take((struct item[]){ weight, scale, { "w.weight_zero_point", "I8", "[16,1]", 16, 0 }, END }, NONE, NULL);
	take((struct item[]){ weight, scale, { "w.weight_zero_point", "I8", "[16,1]", 16, 1 }, END }, NONE,
	    "w.weight_zero_point: zero points beside 8-bit weights");
	take((struct item[]){ weight, scale, { "w.input_scale", "F32", "[1]", 4, 0x3f }, END }, NONE, NULL);
}
END_TEST

START_TEST(int4)
{
	const struct item gptq = { "w.qweight", "I32", "[8,16]", 512, 0x88 }, awq = { "w.qweight", "I32", "[64,2]", 512,
	    0x88 },
	    zeros = { "w.qzeros", "I32", "[2,2]", 16, 0x77 }, scales = { "w.scales", "F16", "[2,16]", 64, 0 },
	    index = { "w.g_idx", "I32", "[64]", 256, 0 };
	struct weight_desc desc = take((struct item[]){ gptq, zeros, scales, index, END }, GPTQ, NULL);

	ck_assert_int_eq(desc.format, WEIGHT_I4);
	ck_assert_int_eq(desc.packing, WEIGHT_PACKED_GPTQ);
	ck_assert_uint_eq(desc.zeros.add, 1);
	ck_assert_uint_eq(desc.scales.block_columns, 32);
	ck_assert_ptr_nonnull(desc.group_index); /* all columns in group 0 is not what a group size of 32 says */
	ck_assert_int_eq(take((struct item[]){ awq, zeros, scales, END }, NONE, NULL).packing, WEIGHT_PACKED_AWQ);
	ck_assert_int_eq(take((struct item[]){ gptq, scales, END }, GPTQ, NULL).zeros.packing, WEIGHT_ZEROS_NONE);
	take((struct item[]){ gptq, zeros, END }, GPTQ, "tensor w.scales is missing beside w.weight");
	take((struct item[]){ { "w.qweight", "I32", "[16,16]", 1024, 0 }, zeros, scales, END }, GPTQ,
	    "w.qweight has the shape [16, 16], which is not that of eight 4-bit values per word"); /* eight bits */
	take((struct item[]){ { "w.qweight", "I8", "[8,16]", 128, 0 }, zeros, scales, END }, GPTQ,
	    "w.qweight is I8, I32 is needed");
	take((struct item[]){ gptq, { "w.qzeros", "I32", "[2,1]", 8, 0 }, scales, END }, GPTQ, "8 bytes of zero points");
	take((struct item[]){ gptq, zeros, { "w.scales", "F16", "[3,16]", 96, 0 }, END }, GPTQ,
	    "w.scales has the shape [3, 16]");
	take((struct item[]){ gptq, zeros, scales, { "w.g_idx", "I32", "[32]", 128, 0 }, END }, GPTQ,
	    "w.g_idx has the shape [32");
	take((struct item[]){ gptq, zeros, scales, { "w.g_idx", "I32", "[64]", 256, 1 }, END }, GPTQ,
	    "group 16843009 of column 0 is outside 0…1");
}
END_TEST

START_TEST(packed)
{
	const struct item values = { "w.weight_packed", "I32", "[16,8]", 512, 0x88 },
	    scales = { "w.weight_scale", "BF16", "[16,2]", 64, 0 };
	int64_t           unset = -1;

	ck_assert_int_eq(take((struct item[]){ values, scales, END }, NONE, NULL).packing, WEIGHT_PACKED_COLUMNS);
	ck_assert_int_eq(take((struct item[]){ values, scales, { "w.weight_zero_point", "I32", "[2,2]", 16, 0x88 }, END },
	    NONE,
	    NULL).zeros.packing, WEIGHT_ZEROS_ROWS);
	ck_assert_int_eq(take((struct item[]){ values, scales, { "w.weight_zero_point", "I8", "[16,2]", 32, 0 }, END },
	    NONE,
	    NULL).zeros.packing, WEIGHT_ZEROS_I8);
	ck_assert_ptr_null(take((struct item[]){ values, scales, { "w.weight_g_idx", "I32", "[64]", 256, (uint8_t)unset },
	    END },
	    NONE, NULL).group_index);
	take((struct item[]){ values, END }, NONE, "tensor w.weight_scale is missing");
	take((struct item[]){ values, scales, { "w.weight_shape", "I64", "[2]", 16, 0 }, END }, NONE,
	    "tensor w.weight_shape says 0 × 0, 16 × 64 is needed");
	take((struct item[]){ { "w.weight_packed", "I64", "[16,4]", 512, 0 }, scales, END }, NONE,
	    "w.weight_packed is I64, I32 is needed");
	take((struct item[]){ { "w.weight_packed", "I32", "[16,16]", 1024, 0 }, scales, END }, NONE,
	    "w.weight_packed has the shape [16, 16]"); /* eight bits */
}
END_TEST

/* NVFP4 in both spellings: 0x5a is −1 (low half, first) and 3, 0x40 as e4m3 is 2, 0x40404040 as a float about 3. */
START_TEST(four_bit_floats)
{
	const struct item scales = { "w.weight_scale", "F8_E4M3", "[16,4]", 64, 0x40 },
	    values = { "w.weight", "U8", "[16,32]", 512, 0x5a }, packed_values = { "w.weight_packed", "U8", "[16,32]", 512, 0x5a },
	    common = { "w.weight_scale_2", "F32", "[]", 4, 0x40 }, divides = { "w.weight_global_scale", "F32", "[1]", 4, 0x40 },
	    input = { "w.input_scale", "F32", "[]", 4, 0x40 };
	uint8_t            bytes[512], scale_bytes[64];
	float              row[64], factor = 3.00392151f;
	struct weight_desc desc = take((struct item[]){ values, scales, common, input, END }, NONE, NULL);

	ck_assert_int_eq(desc.format, WEIGHT_F4_E2M1);
	ck_assert_uint_eq(desc.scales.block_columns, 16);
	ck_assert_float_eq_tol(desc.scales.common, factor, 1e-6f);
	memset(bytes, 0x5a, sizeof bytes);
	memset(scale_bytes, 0x40, sizeof scale_bytes);
	desc.data = bytes;
	desc.scales.data = scale_bytes;
	weight_read_row(&desc, 3, row);
	ck_assert_float_eq_tol(row[0], -1 * 2 * factor, 1e-5f);
	ck_assert_float_eq_tol(row[63], 3 * 2 * factor, 1e-5f);
	desc = take((struct item[]){ packed_values, scales, divides, END }, NONE, NULL);
	ck_assert_float_eq_tol(desc.scales.common, 1 / factor, 1e-6f);
	take((struct item[]){ values, scales, END }, NONE, "tensor w.weight_scale_2 is missing");
	take((struct item[]){ values, common, END }, NONE, "tensor w.weight_scale is missing");
	take((struct item[]){ values, common, { "w.weight_scale", "F8_E4M3", "[16,3]", 48, 0 }, END }, NONE,
	    "w.weight_scale has the shape [16, 3]");
	take((struct item[]){ { "w.weight", "U8", "[16,64]", 1024, 0 }, scales, common, END }, NONE,
	    "w.weight has the shape [16, 64]");
	take((struct item[]){ values, scales, { "w.weight_scale_2", "F32", "[]", 4, 0 }, END }, NONE, "a positive number is needed");
}
END_TEST

/* Layers of several precisions in one checkpoint: each is what its tensors say. */
START_TEST(mixed)
{
	const struct item items[] = {
		{ "a.weight", "BF16", "[16,64]", 2048, 0 }, { "b.weight", "F8_E4M3", "[16,64]", 1024, 0 },
		{ "b.weight_scale", "F32", "[16,1]", 64, 0 }, { "c.weight_packed", "I32", "[16,8]", 512, 0 },
		{ "c.weight_scale", "F32", "[16,1]", 64, 0 }, END,
	};
	const enum weight_format expected[] = { WEIGHT_BF16, WEIGHT_F8_E4M3, WEIGHT_I4 };
	const enum weight_input  inputs[] = { WEIGHT_INPUT_FLOAT, WEIGHT_INPUT_F8_TOKEN, WEIGHT_INPUT_FLOAT };
	struct checkpoint       *checkpoint = make(items);
	struct quant             quant;
	struct error             error;

	ck_assert_int_eq(read_scheme("{\"quant_method\": \"compressed-tensors\", \"config_groups\": {"
	    "\"group_0\": {\"weights\": {\"type\": \"float\", \"num_bits\": 8}, \"input_activations\": "
	    "{\"type\": \"float\", \"num_bits\": 8, \"strategy\": \"token\", \"dynamic\": true}}, "
	    "\"group_1\": {\"weights\": {\"type\": \"int\", \"num_bits\": 4, \"group_size\": null}, "
	    "\"input_activations\": null}}}", true, &quant, &error), STATUS_OK);
	for (int i = 0; i < 3; i++) {
		char               name[] = { (char)('a' + i), '.', 'w', 'e', 'i', 'g', 'h', 't', 0 };
		struct weight_desc desc;

		ck_assert(quant_has(checkpoint, name));
		ck_assert_msg(quant_take(checkpoint, &quant, name, N, K, &desc, &error) == STATUS_OK, "%s", error.message);
		ck_assert_int_eq(desc.format, expected[i]);
		ck_assert_int_eq(desc.input, inputs[i]);
		ck_assert_msg(quant_take(checkpoint, &quant, name, N, K, &desc, &error) == STATUS_INVALID, "taken twice");
	}
	ck_assert_int_eq(checkpoint_finish(checkpoint, &error), STATUS_OK);
	checkpoint_close(checkpoint);
}
END_TEST

#define CT(inputs)                                                                                                    \
	"{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"group_0\": {\"weights\": {\"type\": \"int\", "  \
	"\"num_bits\": 8}, \"input_activations\": " inputs "}}}"

START_TEST(configurations)
{
	const struct { const char *scheme, *words; } refused[] = {
		{ "{\"quant_method\": \"bitsandbytes\"}", "quant_method = \"bitsandbytes\" is not supported" },
		{ "{\"quant_method\": \"awq\", \"version\": \"gemv\"}", "version = \"gemv\"" },
		{ "{\"quant_method\": \"gptq\", \"checkpoint_format\": \"marlin\"}", "checkpoint_format" },
		{ "{\"quant_method\": \"gptq\", \"group_size\": -2}", "group_size" },
		{ "{\"quant_method\": \"fp8\", \"weight_block_size\": [0, 128]}", "weight_block_size" },
		{ "{\"bits\": 4}", "quant_method" },
		{ CT("{\"type\": \"int\", \"num_bits\": 4, \"dynamic\": true}"), "activations of 4 bits" },
		{ CT("{\"type\": \"int\", \"num_bits\": 8, \"symmetric\": false, \"dynamic\": true}"), "symmetric" },
		{ CT("{\"type\": \"int\", \"num_bits\": 8, \"strategy\": \"tensor\", \"dynamic\": true}"),
		    "by tensor, dynamic" },
		{ CT("{\"type\": \"float\", \"strategy\": \"group\", \"group_size\": 64, \"dynamic\": true}"),
		    "groups of 128" },
	};
	struct quant quant;
	struct error error;

	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		ck_assert_msg(read_scheme(refused[i].scheme, true, &quant, &error) != STATUS_OK, "%s", refused[i].scheme);
		ck_assert_msg(strstr(error.message, refused[i].words) != NULL, "\"%s\" does not say \"%s\"", error.message,
		    refused[i].words);
	}
	/* Only where activations are to be rounded does it matter how. */
	ck_assert_int_eq(read_scheme(refused[6].scheme, false, &quant, &error), STATUS_OK);
	ck_assert_int_eq(quant.i8_input, WEIGHT_INPUT_FLOAT);
	ck_assert_int_eq(read_scheme("{\"quant_method\": \"gptq\", \"checkpoint_format\": \"gptq_v2\"}", true, &quant,
	    &error),
	    STATUS_OK);
	ck_assert_uint_eq(quant.zero_add, 0);
}
END_TEST

/* e4m3: every pattern, every rounding boundary. */
START_TEST(e4m3)
{
	float previous = -1;

	ck_assert(isnan(floats_from_e4m3(0x7f)) && isnan(floats_from_e4m3(0xff)));
	for (unsigned bits = 0; bits < 0x7f; bits++) {
		float value = floats_from_e4m3((uint8_t)bits), expected = bits < 8 ? (float)bits * 0x1p-9f :
		    ldexpf(1 + (float)(bits & 7) / 8, (int)(bits >> 3) - 7);

		ck_assert(value == expected && value > previous && floats_from_e4m3((uint8_t)(bits | 0x80)) == -value);
		ck_assert(floats_round_e4m3(value) == value);
		ck_assert(floats_to_e4m3(value) == bits && floats_to_e4m3(-value) == (bits | 0x80));
		if (bits) { /* halfway to the one below: to the even pattern; beside it: to the nearer one */
			float half = (value + previous) / 2, even = bits & 1 ? previous : value;

			ck_assert_msg(floats_round_e4m3(half) == even, "%g", (double)half);
			ck_assert_msg(floats_round_e4m3(nextafterf(half, 0)) == previous, "%g", (double)half);
			ck_assert_msg(floats_round_e4m3(-nextafterf(half, 1000)) == -value, "%g", (double)half);
		}
		previous = value;
	}
	ck_assert(floats_round_e4m3(1e9f) == 448 && floats_round_e4m3(-449) == -448 && isnan(floats_round_e4m3(NAN)));
	ck_assert(floats_to_e4m3(1e9f) == 0x7e && floats_to_e4m3(-0x1p-11f) == 0x80 && floats_to_e4m3(NAN) == 0x7f);
}
END_TEST

/* Windows outside the stored matrix, and blocks cut by a window. */
START_TEST(windows)
{
	static const uint8_t data[1 << 16] = { 0 };
	struct weight_desc desc = { .name = "w", .format = WEIGHT_Q4_0, .rows = 4, .columns = 64, .data = data,
	    .bytes = 4 * 36 };
	struct error       error;

	ck_assert_int_eq(weight_check(&desc, &error), STATUS_OK);
	desc.stored_rows = 4;
	desc.stored_columns = 64;
	desc.first_row = 1;
	ck_assert_int_eq(weight_check(&desc, &error), STATUS_INVALID);
	desc.rows = 3;
	ck_assert_int_eq(weight_check(&desc, &error), STATUS_OK);
	ck_assert_ptr_eq(weight_row(&desc, 1), data + 2 * 36);
	desc.columns = 32;
	desc.first_column = 32;
	ck_assert_int_eq(weight_check(&desc, &error), STATUS_OK);
	ck_assert_ptr_eq(weight_row(&desc, 0), data + 36 + 18);
	desc.first_column = 16;
	ck_assert_int_eq(weight_check(&desc, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, "no multiple of the 32 of a Q4_0 block") != NULL, "%s", error.message);
	desc.first_column = UINT64_MAX - 15; /* sums that would wrap around */
	ck_assert_int_eq(weight_check(&desc, &error), STATUS_INVALID);
}
END_TEST

/* Where DESC's first fault is; it has COUNT values. */
static void check_fault(const struct weight_desc *desc, uint64_t row, uint64_t column, uint64_t count, bool nan, bool scale)
{
	struct weight_fault fault;
	struct error        error;

	ck_assert_msg(weight_check(desc, &error) == STATUS_OK, "%s", error.message);
	ck_assert(weight_find_fault(desc, &fault));
	ck_assert_msg(fault.row == row && fault.column == column && fault.count == count && fault.nan == nan && fault.scale == scale,
	    "%s: (%d, %d), %d values", weight_format_name(desc->format), (int)fault.row, (int)fault.column, (int)fault.count);
}

START_TEST(faults)
{
	uint16_t            halves[4 * 6] = { [2 * 6 + 1] = 0x7f80, [3 * 6 + 4] = 0xffc0 }; /* of bfloat16: infinity and NaN */
	uint8_t             bytes[4 * 64] = { [1 * 64 + 40] = 0xff, [3 * 64 + 3] = 0x7f };
	float               scales[4 * 2] = { 1, 1, 1, 1, 1, NAN, 1, 1 };
	uint32_t            words[8 * 4] = { 0 }; /* GPTQ: 64 inputs, 4 outputs */
	int32_t             index[64];
	struct weight_fault fault;
	struct weight_desc  bf16 = { .name = "w", .format = WEIGHT_BF16, .rows = 4, .columns = 6, .data = halves,
	    .bytes = sizeof halves };
	struct weight_desc  f8 = { .name = "w", .format = WEIGHT_F8_E4M3, .rows = 4, .columns = 64, .data = bytes,
	    .bytes = sizeof bytes };
	struct weight_desc  i8 = f8, i4 = f8;

	check_fault(&bf16, 2, 1, 2, false, false);
	bf16.format = WEIGHT_F16; /* 0xffc0 is one here, 0x7f80 too */
	check_fault(&bf16, 2, 1, 2, true, false);
	bf16.format = WEIGHT_BF16;
	bf16.stored_rows = 4; /* a window: places are those of the whole */
	bf16.stored_columns = 6;
	bf16.rows = 2;
	bf16.first_row = 2;
	bf16.columns = 4;
	bf16.first_column = 2;
	check_fault(&bf16, 3, 4, 1, true, false);
	bf16.first_row = 0;
	ck_assert(!weight_find_fault(&bf16, &fault));

	check_fault(&f8, 1, 40, 2, true, false);
	f8.scales = (struct weight_scales){ .data = scales, .bytes = sizeof scales, .type = WEIGHT_F32, .block_rows = 1,
		.block_columns = 32, .row_blocks = 4, .column_blocks = 2 };
	check_fault(&f8, 1, 40, 34, true, false); /* and what the scale of row 2 spoils */
	i8.format = WEIGHT_I8; /* any byte is a number */
	i8.scales = f8.scales;
	check_fault(&i8, 2, 32, 32, true, true);
	scales[5] = 3e38f; /* a number whose products are none */
	check_fault(&i8, 2, 32, 32, false, true);

	for (int k = 0; k < 64; k++)
		index[k] = k % 2;
	i4.format = WEIGHT_I4;
	i4.packing = WEIGHT_PACKED_GPTQ;
	i4.data = words;
	i4.bytes = sizeof words;
	i4.group_index = index;
	i4.scales = f8.scales;
	scales[5] = -INFINITY;
	check_fault(&i4, 2, 1, 32, false, true);
	scales[5] = 1;
	ck_assert(!weight_find_fault(&i4, &fault) && !weight_find_fault(&i8, &fault));
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("quantised checkpoints");
	TCase   *tcase = tcase_create("quant");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, plain);
	tcase_add_test(tcase, vectors);
	tcase_add_test(tcase, float8);
	tcase_add_test(tcase, int8);
	tcase_add_test(tcase, int4);
	tcase_add_test(tcase, packed);
	tcase_add_test(tcase, four_bit_floats);
	tcase_add_test(tcase, mixed);
	tcase_add_test(tcase, configurations);
	tcase_add_test(tcase, e4m3);
	tcase_add_test(tcase, windows);
	tcase_add_test(tcase, faults);
	tcase_add_loop_test(tcase, made_up, 0, 5);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
