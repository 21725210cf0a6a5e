/* Unit tests of the configuration readers: getters and their messages, spellings of rotary embedding and quantisation,
 * and what a model says about generating. */
#include "file/hf_config.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct hf_config parse(const char *text)
{
	struct hf_config config;
	struct error     error;

	ck_assert_msg(hf_config_parse(text, strlen(text), "dir/config.json", &config, &error) == STATUS_OK, "%s: %s", text,
	    error.message);
	return config;
}

static const char values[] = "{\"size\": 64, \"whole\": 8.0, \"half\": 0.5, \"minus\": -1, \"yes\": true, \"no\": "
    "false, \"null\": null,"
    "\"act\": \"silu\", \"list\": [3, 1.0, 2], \"words\": [\"a\", \"b\"], \"mixed\": [1, \"a\"], \"huge\": 9007199254740993,"
    "\"big\": 4294967296, \"object\": {\"inner\": {\"bits\": 4, \"x\": null}}, \"wide\": 1e30, \"quoted\": \"a\\n\\\"b\"}";

START_TEST(getters)
{
	struct hf_config config = parse(values), object, inner, none;
	struct error     error;
	uint32_t         u32, list[4] = { 9, 9, 9, 9 };
	int64_t          i64;
	double           f64;
	bool             boolean;
	const char      *string;
	size_t           count;
	unsigned         word;
	static const char *const acts[] = { "gelu", "silu", NULL };

	ck_assert_int_eq(hf_config_u32(&config, "size", 1, 64, &u32, &error), STATUS_OK);
	ck_assert_uint_eq(u32, 64);
	ck_assert_int_eq(hf_config_u32(&config, "whole", 1, 64, &u32, &error), STATUS_OK);
	ck_assert_uint_eq(u32, 8);
	ck_assert_int_eq(hf_config_u32_or(&config, "null", 1, 64, 77, &u32, &error), STATUS_OK);
	ck_assert_uint_eq(u32, 77); /* fallbacks are the caller's and need no range */
	ck_assert_int_eq(hf_config_i64(&config, "minus", -1, 128, &i64, &error), STATUS_OK);
	ck_assert_int_eq(i64, -1);
	ck_assert_int_eq(hf_config_i64(&config, "huge", 0, INT64_MAX, &i64, &error), STATUS_OK);
	ck_assert_int_eq(i64, INT64_C(9007199254740993));
	ck_assert_int_eq(hf_config_i64_or(&config, "absent", -1, 128, 5, &i64, &error), STATUS_OK);
	ck_assert_int_eq(i64, 5);
	ck_assert_int_eq(hf_config_f64(&config, "half", 0, 1, &f64, &error), STATUS_OK);
	ck_assert_double_eq(f64, 0.5);
	ck_assert_int_eq(hf_config_f64(&config, "size", 0, 100, &f64, &error), STATUS_OK);
	ck_assert_double_eq(f64, 64);
	ck_assert_int_eq(hf_config_f64_or(&config, "absent", 0, 1, 1e-5, &f64, &error), STATUS_OK);
	ck_assert_double_eq(f64, 1e-5);
	ck_assert_int_eq(hf_config_bool(&config, "yes", &boolean, &error), STATUS_OK);
	ck_assert(boolean);
	ck_assert_int_eq(hf_config_bool_or(&config, "no", true, &boolean, &error), STATUS_OK);
	ck_assert(!boolean);
	ck_assert_int_eq(hf_config_bool_or(&config, "null", true, &boolean, &error), STATUS_OK);
	ck_assert(boolean);
	ck_assert_int_eq(hf_config_string(&config, "act", &string, &error), STATUS_OK);
	ck_assert_str_eq(string, "silu");
	ck_assert_int_eq(hf_config_string_or(&config, "absent", "gelu", &string, &error), STATUS_OK);
	ck_assert_str_eq(string, "gelu");
	ck_assert_int_eq(hf_config_word(&config, "act", acts, &word, &error), STATUS_OK);
	ck_assert_uint_eq(word, 1);
	ck_assert_int_eq(hf_config_word_or(&config, "absent", acts, 0, &word, &error), STATUS_OK);
	ck_assert_uint_eq(word, 0);

	ck_assert_int_eq(hf_config_u32_list(&config, "list", 1, 3, list, 4, &count, &error), STATUS_OK);
	ck_assert_uint_eq(count, 3);
	ck_assert(list[0] == 3 && list[1] == 1 && list[2] == 2 && list[3] == 9);
	ck_assert_int_eq(hf_config_u32_list(&config, "size", 1, 64, list, 4, &count, &error), STATUS_OK);
	ck_assert(count == 1 && list[0] == 64);
	ck_assert_int_eq(hf_config_u32_list(&config, "absent", 1, 64, list, 4, &count, &error), STATUS_OK);
	ck_assert_uint_eq(count, 0);
	ck_assert_int_eq(hf_config_string_count(&config, "words", 2, &count, &error), STATUS_OK);
	ck_assert_uint_eq(count, 2);
	ck_assert_int_eq(hf_config_string_at(&config, "words", 1, &string, &error), STATUS_OK);
	ck_assert_str_eq(string, "b");
	ck_assert_int_eq(hf_config_string_count(&config, "act", 2, &count, &error), STATUS_OK);
	ck_assert_uint_eq(count, 1);
	ck_assert_int_eq(hf_config_string_at(&config, "act", 0, &string, &error), STATUS_OK);
	ck_assert_str_eq(string, "silu");

	ck_assert_int_eq(hf_config_object(&config, "object", &object, &error), STATUS_OK);
	ck_assert_int_eq(hf_config_object(&object, "inner", &inner, &error), STATUS_OK);
	ck_assert_int_eq(hf_config_u32(&inner, "bits", 1, 8, &u32, &error), STATUS_OK);
	ck_assert_str_eq(hf_config_next_key(&inner, NULL), "bits");
	ck_assert_str_eq(hf_config_next_key(&inner, "bits"), "x");
	ck_assert_ptr_null(hf_config_next_key(&inner, "x"));
	ck_assert_int_eq(hf_config_object(&config, "absent", &none, &error), STATUS_OK);
	ck_assert_ptr_null(hf_config_next_key(&none, NULL));
	ck_assert_int_eq(hf_config_kind(&none, "x"), HF_ABSENT);
	ck_assert_int_eq(hf_config_u32_or(&none, "x", 1, 2, 3, &u32, &error), STATUS_OK);

	ck_assert_int_eq(hf_config_kind(&config, "size"), HF_NUMBER);
	ck_assert_int_eq(hf_config_kind(&config, "null"), HF_ABSENT);
	ck_assert_int_eq(hf_config_kind(&config, "yes"), HF_BOOL);
	ck_assert_int_eq(hf_config_kind(&config, "act"), HF_STRING);
	ck_assert_int_eq(hf_config_kind(&config, "list"), HF_LIST);
	ck_assert_int_eq(hf_config_kind(&config, "object"), HF_OBJECT);
	hf_config_close(&inner);
	hf_config_close(&config);
	hf_config_close(&config);
	hf_config_close(NULL);
}
END_TEST

enum getter { U32, I64, F64, BOOL, STRING, WORD, LIST, STRINGS, STRING_AT, OBJECT };
static const struct refusal {
	enum getter getter;
	const char *key, *message;
} refusals[] = {
	{ U32, "absent", "dir/config.json: absent is missing: a whole number in 1…100 is needed" },
	{ U32, "null", "dir/config.json: null is missing: a whole number in 1…100 is needed" },
	{ U32, "minus", "dir/config.json: minus = -1: a whole number in 1…100 is needed" },
	{ U32, "big", "dir/config.json: big = 4294967296: a whole number in 1…100 is needed" },
	{ U32, "half", "dir/config.json: half = 0.5: a whole number in 1…100 is needed" },
	{ U32, "wide", "dir/config.json: wide = 1e+30: a whole number in 1…100 is needed" },
	{ U32, "act", "dir/config.json: act = \"silu\": a whole number in 1…100 is needed" },
	{ U32, "yes", "dir/config.json: yes = true: a whole number in 1…100 is needed" },
	{ U32, "list", "dir/config.json: list = a list of 3: a whole number in 1…100 is needed" },
	{ I64, "huge", "dir/config.json: huge = 9007199254740993: a whole number in -1…128 is needed" },
	{ F64, "size", "dir/config.json: size = 64: a number in 0.25…10 is needed" },
	{ F64, "object", "dir/config.json: object = an object: a number in 0.25…10 is needed" },
	{ BOOL, "size", "dir/config.json: size = 64: true or false is needed" },
	{ STRING, "no", "dir/config.json: no = false: a string is needed" },
	{ WORD, "quoted", "dir/config.json: quoted = \"a\\x0a\\x22b\": supported: gelu, relu" },
	{ WORD, "act", "dir/config.json: act = \"silu\": supported: gelu, relu" },
	{ LIST, "mixed", "dir/config.json: mixed[1] = \"a\": a whole number in 1…100 is needed" },
	{ LIST, "act", "dir/config.json: act = \"silu\": a whole number in 1…100 is needed" },
	{ LIST, "list", "dir/config.json: list = a list of 3: at most 2 are allowed" },
	{ STRINGS, "size", "dir/config.json: size = 64: a list of strings is needed" },
	{ STRINGS, "words", "dir/config.json: words = a list of 2: at most 1 are allowed" },
	{ STRING_AT, "mixed", "dir/config.json: mixed[0] = 1: a string is needed" },
	{ OBJECT, "size", "dir/config.json: size = 64: an object is needed" },
};

START_TEST(refuses)
{
	const struct refusal *refusal = &refusals[_i];
	struct hf_config      config = parse(values), object = { .path = "untouched" };
	struct error          error = { .status = STATUS_OK };
	const char           *key = refusal->key, *string = "untouched";
	uint32_t              u32 = 7, list[2] = { 7, 7 };
	int64_t               i64 = 7;
	double                f64 = 7;
	bool                  boolean = true;
	size_t                count = 7;
	unsigned              word = 7;
	static const char *const acts[] = { "gelu", "relu", NULL };
	enum status           status = STATUS_OK;

	switch (refusal->getter) {
	case U32:
		status = hf_config_u32(&config, key, 1, 100, &u32, &error);
		break;
	case I64:
		status = hf_config_i64(&config, key, -1, 128, &i64, &error);
		break;
	case F64:
		status = hf_config_f64(&config, key, 0.25, 10, &f64, &error);
		break;
	case BOOL:
		status = hf_config_bool(&config, key, &boolean, &error);
		break;
	case STRING:
		status = hf_config_string(&config, key, &string, &error);
		break;
	case WORD:
		status = hf_config_word(&config, key, acts, &word, &error);
		break;
	case LIST:
		status = hf_config_u32_list(&config, key, 1, 100, list, 2, &count, &error);
		break;
	case STRINGS:
		status = hf_config_string_count(&config, key, 1, &count, &error);
		break;
	case STRING_AT:
		status = hf_config_string_at(&config, key, 0, &string, &error);
		break;
	case OBJECT:
		status = hf_config_object(&config, key, &object, &error);
		break;
	}
	ck_assert_int_eq(status, strstr(refusal->message, "missing") ? STATUS_NOT_FOUND : STATUS_INVALID);
	ck_assert_int_eq(error.status, status);
	ck_assert_str_eq(error.message, refusal->message);
	ck_assert(u32 == 7 && list[0] == 7 && i64 == 7 && f64 == 7 && boolean && count == 7 && word == 7);
	ck_assert_str_eq(string, "untouched");
	ck_assert_str_eq(object.path, "untouched");
	hf_config_close(&config);
}
END_TEST

START_TEST(messages_have_the_path)
{
	struct hf_config config = parse("{\"a\": {\"b\\nc\": {\"bits\": 4}}}"), a, b;
	struct error     error;
	uint32_t         u32;
	char             label[400], text[] = "{\"x\": 0}";

	ck_assert_int_eq(hf_config_object(&config, "a", &a, &error), STATUS_OK);
	ck_assert_int_eq(hf_config_object(&a, hf_config_next_key(&a, NULL), &b, &error), STATUS_OK);
	ck_assert_int_eq(hf_config_u32(&b, "bits", 8, 8, &u32, &error), STATUS_INVALID);
	ck_assert_str_eq(error.message, "dir/config.json: a.b?c.bits = 4: a whole number in 8…8 is needed");
	ck_assert_str_eq(error.param, "bits");
	hf_config_close(&config);

	memset(label, 'd', sizeof label);
	strcpy(label + sizeof label - 13, "/config.json");
	ck_assert_int_eq(hf_config_parse(text, strlen(text), label, &config, &error), STATUS_OK);
	ck_assert_int_eq(hf_config_u32(&config, "x", 1, 1, &u32, &error), STATUS_INVALID);
	ck_assert_msg(strncmp(error.message, "...ddd", 6) == 0 && strstr(error.message, "/config.json: x = 0"), "%s", error.message);
	hf_config_close(&config);
}
END_TEST

static const struct {
	const char *text, *words;
} bad_documents[] = {
	{ "", "dir/config.json: line 1, column 0: '[' or '{' expected near end of file" },
	{ "[1]", "dir/config.json: a JSON list stands where an object is needed" },
	{ "{\"a\": 1, \"a\": 2}", "duplicate object key near '\"a\"'" },
	{ "{\"a\": 1e999}", "real number overflow" },
	{ "{\"a\": NaN}", "invalid token near 'NaN'" },
	{ "{\"a\": 1}x", "end of file expected near 'x'" },
	{ "{\"a\":\n \"b\nc\"}", "dir/config.json: line 2" },
};

START_TEST(refuses_documents)
{
	struct hf_config config = { .owner = false };
	struct error     error;

	ck_assert_int_eq(hf_config_parse(bad_documents[_i].text, strlen(bad_documents[_i].text), "dir/config.json", &config, &error),
	    STATUS_INVALID);
	ck_assert_msg(strstr(error.message, bad_documents[_i].words) && !strchr(error.message, '\n'), "\"%s\" lacks \"%s\"",
	    error.message, bad_documents[_i].words);
	ck_assert(!config.owner);
}
END_TEST

/* ---- rotary embedding --------------------------------------------------------------------------------------------- */

static const struct rope_case {
	const char    *text;
	struct hf_rope rope;
} ropes[] = {
	{ "{}", { HF_ROPE_DEFAULT, 10000, 0.5, 1, 0, 0, 0, 0, 0, 0, 1, 0, true } },
	{ "{\"rope_theta\": 500000, \"max_position_embeddings\": 4096, \"rope_scaling\": null, \"partial_rotary_factor\": 1.0}",
	    { HF_ROPE_DEFAULT, 500000, 1, 1, 0, 4096, 0, 0, 0, 0, 1, 0, true } },
	{ "{\"rope_parameters\": {\"rope_theta\": 1e6, \"rope_type\": \"default\", \"partial_rotary_factor\": 0.25}, "
	    "\"rope_theta\": 7}",
	    { HF_ROPE_DEFAULT, 1e6, 0.25, 1, 0, 0, 0, 0, 0, 0, 1, 0, true } },
	{ "{\"rope_theta\": 20000, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
	    { HF_ROPE_LINEAR, 20000, 0.5, 2, 0, 0, 0, 0, 0, 0, 1, 0, true } },
	{ "{\"max_position_embeddings\": 512, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4.0}}",
	    { HF_ROPE_DYNAMIC, 10000, 0.5, 4, 0, 512, 0, 0, 0, 0, 1, 0, true } },
	{ "{\"max_position_embeddings\": 4096, \"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 5e5, \"factor\": 8.0,"
	  "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 64}}",
	    { HF_ROPE_LLAMA3, 5e5, 0.5, 8, 64, 4096, 1, 4, 0, 0, 1, 0, true } },
	{ "{\"max_position_embeddings\": 256, \"rope_scaling\": {\"rope_type\": \"yarn\", \"type\": \"linear\", \"factor\": 4.0,"
	  "\"original_max_position_embeddings\": 64, \"truncate\": false, \"beta_fast\": 16}}",
	    { HF_ROPE_YARN, 10000, 0.5, 4, 64, 256, 0, 0, 16, 1, 1.1386294361119891, 0, false } },
	/* The factor left out; mscale over mscale_all_dim; the older place of the original context wins. */
	{ "{\"max_position_embeddings\": 256, \"original_max_position_embeddings\": 128, \"rope_parameters\": "
	    "{\"rope_type\": \"yarn\","
	  "\"original_max_position_embeddings\": 64, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"factor\": null}}",
	    { HF_ROPE_YARN, 10000, 0.5, 2, 128, 256, 0, 0, 32, 1, 1, 1, true } },
	{ "{\"max_position_embeddings\": 256, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"attention_factor\": 1.5}}",
	    { HF_ROPE_YARN, 10000, 0.5, 4, 256, 256, 0, 0, 32, 1, 1.5, 0, true } },
	/* A scaling added by hand to a checkpoint of transformers 5 keeps that one's theta. */
	{ "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_parameters\": {\"rope_type\": \"default\", "
	    "\"rope_theta\": 1e6}}",
	    { HF_ROPE_LINEAR, 1e6, 0.5, 2, 0, 0, 0, 0, 0, 0, 1, 0, true } },
	{ "{\"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 1e6}}", { HF_ROPE_DEFAULT, 1e6, 0.5, 1, 0, 0, 0, 0,
	    0, 0, 1, 0, true } },
};

START_TEST(rope_spellings)
{
	const struct hf_rope *want = &ropes[_i].rope;
	struct hf_config      config = parse(ropes[_i].text);
	struct hf_rope        got;
	struct error          error;

	ck_assert_msg(hf_config_rope(&config, 10000, 0.5, &got, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(got.type, want->type);
	ck_assert_double_eq(got.theta, want->theta);
	ck_assert_double_eq(got.partial, want->partial);
	ck_assert_double_eq(got.factor, want->factor);
	ck_assert_uint_eq(got.original_context, want->original_context);
	ck_assert_uint_eq(got.max_context, want->max_context);
	ck_assert_double_eq(got.low_freq_factor, want->low_freq_factor);
	ck_assert_double_eq(got.high_freq_factor, want->high_freq_factor);
	ck_assert_double_eq(got.beta_fast, want->beta_fast);
	ck_assert_double_eq(got.beta_slow, want->beta_slow);
	ck_assert_double_eq_tol(got.attention_factor, want->attention_factor, 1e-15);
	ck_assert_double_eq(got.mscale_all_dim, want->mscale_all_dim);
	ck_assert_int_eq(got.truncate, want->truncate);
	hf_config_close(&config);
}
END_TEST

static const struct {
	const char *text;
	enum status status;
	const char *words;
} bad_ropes[] = {
	{ "{\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 2}}", STATUS_UNSUPPORTED,
	    "rope_scaling.type = \"longrope\": supported: default, linear, dynamic, llama3, yarn" },
	{ "{\"rope_parameters\": {\"rope_type\": 3}}", STATUS_INVALID, "rope_parameters.rope_type = 3: supported: default" },
	{ "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6}}}", STATUS_UNSUPPORTED,
	    "rope_parameters.full_attention: rotary" },
	{ "{\"rope_parameters\": 1}", STATUS_INVALID, "rope_parameters = 1: an object is needed" },
	{ "{\"rope_theta\": 0}", STATUS_INVALID, "config.json: rope_theta = 0: a number in 2…1e+15 is needed" },
	{ "{\"partial_rotary_factor\": 1.5}", STATUS_INVALID, "partial_rotary_factor = 1.5: a number in 0.001…1 is needed" },
	{ "{\"rope_scaling\": {\"type\": \"linear\"}}", STATUS_NOT_FOUND, "rope_scaling.factor is missing: a number in 1…1e+06" },
	{ "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}}", STATUS_INVALID,
	    "rope_scaling.factor = 0.5: a number in 1…1e+06 is needed" },
	{ "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}", STATUS_NOT_FOUND,
	    "config.json: max_position_embeddings is missing" },
	{ "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}}", STATUS_NOT_FOUND,
	    "original_max_position_embeddings is missing" },
	{ "{\"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": \"yarn\"}}", STATUS_NOT_FOUND,
	    "rope_scaling.factor is missing" },
	{ "{\"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_fast\": 1, "
	    "\"beta_slow\": 2}}",
	    STATUS_INVALID, "rope_scaling.beta_fast = 1: must not be under beta_slow = 2" },
	{ "{\"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 2, \"low_freq_factor\": 4,"
	  "\"high_freq_factor\": 4}}", STATUS_INVALID, "rope_scaling.high_freq_factor = 4: must be over low_freq_factor = 4" },
	{ "{\"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 2}}", STATUS_NOT_FOUND,
	    "rope_scaling.low_freq_factor is missing" },
};

START_TEST(refuses_ropes)
{
	struct hf_config config = parse(bad_ropes[_i].text);
	struct hf_rope   rope = { .theta = -5 };
	struct error     error;

	ck_assert_int_eq(hf_config_rope(&config, 10000, 1, &rope, &error), bad_ropes[_i].status);
	ck_assert_int_eq(error.status, bad_ropes[_i].status);
	ck_assert_msg(strstr(error.message, bad_ropes[_i].words), "\"%s\" lacks \"%s\"", error.message, bad_ropes[_i].words);
	ck_assert_double_eq(rope.theta, -5);
	hf_config_close(&config);
}
END_TEST

/* ---- other spellings ---------------------------------------------------------------------------------------------- */

START_TEST(dtype_and_text_config)
{
	static const char *const texts[][2] = {
		{ "{\"dtype\": \"bfloat16\", \"torch_dtype\": \"float32\"}", "bfloat16" },
		{ "{\"torch_dtype\": \"float16\"}", "float16" },
		{ "{\"torch_dtype\": \"torch.float16\"}", "float16" },
		{ "{\"dtype\": null}", "" },
	};
	struct hf_config config, text;
	struct error     error;
	const char      *dtype;
	uint32_t         hidden;

	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		config = parse(texts[i][0]);
		ck_assert_int_eq(hf_config_dtype(&config, &dtype, &error), STATUS_OK);
		ck_assert_str_eq(dtype, texts[i][1]);
		hf_config_close(&config);
	}
	config = parse("{\"dtype\": 1}");
	ck_assert_int_eq(hf_config_dtype(&config, &dtype, &error), STATUS_INVALID);
	hf_config_close(&config);

	config = parse("{\"text_config\": {\"hidden_size\": 0}}");
	ck_assert_int_eq(hf_config_text(&config, &text, &error), STATUS_OK);
	ck_assert_int_eq(hf_config_u32(&text, "hidden_size", 1, 2, &hidden, &error), STATUS_INVALID);
	ck_assert(strstr(error.message, "config.json: text_config.hidden_size = 0"));
	hf_config_close(&config);
	config = parse("{\"hidden_size\": 2}");
	ck_assert_int_eq(hf_config_text(&config, &text, &error), STATUS_OK);
	ck_assert_int_eq(hf_config_u32(&text, "hidden_size", 1, 2, &hidden, &error), STATUS_OK);
	hf_config_close(&text);
	hf_config_close(&config);
}
END_TEST

START_TEST(quantization_spellings)
{
	static const struct {
		const char *text, *method; /* NULL: refused */
		const char *words;
	} cases[] = {
		{ "{}", "", NULL },
		{ "{\"quantization_config\": null}", "", NULL },
		{ "{\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4}}", "awq", NULL },
		{ "{\"compression_config\": {\"format\": \"pack-quantized\"}}", "compressed-tensors", NULL },
		{ "{\"quantization_config\": {\"bits\": 4}}", NULL, "quantization_config.quant_method is missing" },
		{ "{\"quantization_config\": 4}", NULL, "quantization_config = 4: an object is needed" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct hf_config config = parse(cases[i].text), quantization;
		struct error     error;
		const char      *method = NULL;
		enum status      status = hf_config_quantization(&config, &quantization, &method, &error);
		ck_assert_int_eq(status == STATUS_OK, cases[i].method != NULL);
		if (status)
			ck_assert_msg(strstr(error.message, cases[i].words), "%s", error.message);
		else
			ck_assert_str_eq(method, cases[i].method);
		ck_assert(status || !*method == !quantization.object);
		hf_config_close(&config);
	}
}
END_TEST

/* ---- generation --------------------------------------------------------------------------------------------------- */

/* Documents may be NULL: there is no such file. */
static enum status generation_of(const char *config_text, const char *generation_text, const char *tokenizer_text,
    struct hf_generation *ret, struct error *error)
{
	struct hf_config config = parse(config_text), generation = { .owner = false }, tokenizer = { .owner = false };
	enum status      status;

	if (generation_text)
		ck_assert_int_eq(hf_config_parse(generation_text, strlen(generation_text), "g", &generation, error), STATUS_OK);
	if (tokenizer_text)
		ck_assert_int_eq(hf_config_parse(tokenizer_text, strlen(tokenizer_text), "t", &tokenizer, error), STATUS_OK);
	status = hf_generation_from(&config, generation_text ? &generation : NULL, tokenizer_text ? &tokenizer : NULL, 1000,
	    ret, error);
	hf_config_close(&config);
	hf_config_close(&generation);
	hf_config_close(&tokenizer);
	return status;
}

static const struct {
	const char *config, *generation, *tokenizer;
	size_t      count;
	uint32_t    eos[5];
	const char *text;
} eos_cases[] = {
	{ "{}", NULL, NULL, 0, { 0 }, "" },
	{ "{\"eos_token_id\": 1}", "{\"eos_token_id\": [1, 106]}", NULL, 2, { 1, 106 }, "" },
	{ "{\"eos_token_id\": [7, 8, 9]}", "{\"eos_token_id\": null}", "{\"eos_token\": null}", 3, { 7, 8, 9 }, "" },
	{ "{\"eos_token_id\": null, \"text_config\": {\"eos_token_id\": 3}}", "{\"eos_token_id\": 4}",
	    "{\"eos_token\": \"<e>\"}", 2, { 3, 4 }, "<e>" },
	{ "{\"eos_token_id\": 1}", "{}",
	    "{\"eos_token\": {\"content\": \"<e>\"}, \"added_tokens_decoder\": {\"5\": {\"content\": \"<s>\"}, \"6\": "
	    "{\"content\": \"<e>\"}}}", 2,
	    { 1, 6 }, "" },
	{ "{\"eos_token_id\": 6}", NULL, "{\"eos_token\": \"<e>\", \"added_tokens_decoder\": {\"6\": {\"content\": "
	    "\"<e>\"}}}", 1, { 6 }, "" },
};

START_TEST(eos_is_a_union)
{
	struct hf_generation generation;
	struct error         error;

	ck_assert_msg(generation_of(eos_cases[_i].config, eos_cases[_i].generation, eos_cases[_i].tokenizer, &generation,
	    &error) == STATUS_OK,
	    "%s", error.message);
	ck_assert_uint_eq(generation.eos_count, eos_cases[_i].count);
	for (size_t i = 0; i < generation.eos_count; i++)
		ck_assert_uint_eq(generation.eos[i], eos_cases[_i].eos[i]);
	ck_assert_str_eq(generation.eos_text, eos_cases[_i].text);
}
END_TEST

START_TEST(sampling_defaults)
{
	struct hf_generation generation;
	struct error         error;

	ck_assert_int_eq(generation_of("{}", NULL, NULL, &generation, &error), STATUS_OK);
	ck_assert(!generation.has_temperature && !generation.has_top_p && !generation.has_top_k && !generation.has_min_p);
	ck_assert(!generation.has_do_sample && !generation.has_repetition_penalty && !generation.has_max_new_tokens);
	ck_assert_str_eq(generation.unapplied, "");
	ck_assert_int_eq(generation_of("{}", "{\"do_sample\": true, \"temperature\": 0.6, \"top_p\": 0.95, \"top_k\": 40, "
	    "\"min_p\": 0,"
	    "\"repetition_penalty\": 1.05, \"max_new_tokens\": 2048, \"typical_p\": 1.0, \"no_repeat_ngram_size\": 0, "
	    "\"bad_words_ids\": null,"
	    "\"num_beams\": 1, \"suppress_tokens\": [], \"transformers_version\": \"5.17.0\"}", NULL, &generation, &error),
	    STATUS_OK);
	ck_assert(generation.has_do_sample && generation.do_sample && generation.has_min_p && generation.min_p == 0);
	ck_assert(generation.has_temperature && generation.temperature == 0.6 && generation.has_top_p && generation.top_p == 0.95);
	ck_assert(generation.has_top_k && generation.top_k == 40);
	ck_assert(generation.has_repetition_penalty && generation.repetition_penalty == 1.05);
	ck_assert(generation.has_max_new_tokens && generation.max_new_tokens == 2048);
	ck_assert_str_eq(generation.unapplied, "");
	ck_assert_int_eq(generation_of("{}", "{\"top_k\": -1, \"temperature\": null, \"no_repeat_ngram_size\": 3, "
	    "\"suppress_tokens\": [1],"
	    "\"forced_eos_token_id\": 2, \"stop_strings\": \"x\"}", NULL, &generation, &error), STATUS_OK);
	ck_assert(generation.has_top_k && generation.top_k == 0 && !generation.has_temperature);
	ck_assert_str_eq(generation.unapplied, "no_repeat_ngram_size, suppress_tokens, forced_eos_token_id, stop_strings");
}
END_TEST

static const struct {
	const char *config, *generation, *tokenizer, *words;
} bad_generations[] = {
	{ "{\"eos_token_id\": 1000}", NULL, NULL, "dir/config.json: eos_token_id = 1000: a whole number in 0…999 is needed" },
	{ "{\"eos_token_id\": [1, -2]}", NULL, NULL, "eos_token_id[1] = -2: a whole number in 0…999" },
	{ "{\"eos_token_id\": \"1\"}", NULL, NULL, "eos_token_id = \"1\": a whole number" },
	{ "{\"eos_token_id\": "
	    "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,"
	  "40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64]}", "{\"eos_token_id\": 65}", NULL,
	    "g: more than 64 end-of-sequence tokens in all" },
	{ "{}", "{\"temperature\": -0.5}", NULL, "g: temperature = -0.5: a number in 0…100 is needed" },
	{ "{}", "{\"top_p\": 0}", NULL, "g: top_p = 0: a number in 1e-09…1 is needed" },
	{ "{}", "{\"top_k\": -2}", NULL, "g: top_k = -2" },
	{ "{}", "{\"min_p\": 1.5}", NULL, "g: min_p = 1.5" },
	{ "{}", "{\"repetition_penalty\": 0}", NULL, "g: repetition_penalty = 0" },
	{ "{}", "{\"max_new_tokens\": 0}", NULL, "g: max_new_tokens = 0" },
	{ "{}", "{\"do_sample\": 1}", NULL, "g: do_sample = 1: true or false" },
	{ "{}", NULL, "{\"eos_token\": 1}", "t: eos_token = 1: a string is needed" },
	{ "{}", NULL, "{\"eos_token\": {\"id\": 1}}", "t: eos_token.content is missing" },
	{ "{}", NULL, "{\"eos_token\": \"e\", \"added_tokens_decoder\": {\"1000\": {\"content\": \"e\"}}}",
	    "added_tokens_decoder.1000: a token id in 0…999" },
	{ "{}", NULL, "{\"eos_token\": \"e\", \"added_tokens_decoder\": {\"-1\": {\"content\": \"e\"}}}",
	    "added_tokens_decoder.-1: a token id" },
	{ "{}", NULL, "{\"eos_token\": \"e\", \"added_tokens_decoder\": {\"99999999999999999999\": {\"content\": \"e\"}}}",
	    "a token id" },
};

START_TEST(refuses_generations)
{
	struct hf_generation generation = { .eos_count = 77 };
	struct error         error;

	ck_assert_int_ne(generation_of(bad_generations[_i].config, bad_generations[_i].generation,
	    bad_generations[_i].tokenizer, &generation,
	                     &error), STATUS_OK);
	ck_assert_msg(strstr(error.message, bad_generations[_i].words), "\"%s\" lacks \"%s\"", error.message,
	    bad_generations[_i].words);
	ck_assert_uint_eq(generation.eos_count, 77);
}
END_TEST

START_TEST(reads_a_directory)
{
	char                 directory[] = "/tmp/penstock-test-hf-XXXXXX", path[64];
	struct hf_config     config;
	struct hf_generation generation;
	struct error         error;
	FILE                *stream;

	ck_assert_ptr_nonnull(mkdtemp(directory));
	snprintf(path, sizeof path, "%s/config.json", directory);
	ck_assert_int_eq(hf_config_open(path, &config, &error), STATUS_NOT_FOUND);
	ck_assert(strstr(error.message, path));
	stream = fopen(path, "w");
	fputs("{\"eos_token_id\": 2}", stream);
	fclose(stream);
	ck_assert_int_eq(hf_config_open(path, &config, &error), STATUS_OK);
	unlink(path);
	ck_assert_int_eq(hf_generation_read(directory, &config, 10, &generation, &error), STATUS_OK);
	ck_assert_uint_eq(generation.eos_count, 1);
	snprintf(path, sizeof path, "%s/generation_config.json", directory);
	stream = fopen(path, "w");
	fputs("{\"eos_token_id\": 3}", stream);
	fclose(stream);
	ck_assert_int_eq(hf_generation_read(directory, &config, 10, &generation, &error), STATUS_OK);
	ck_assert_uint_eq(generation.eos_count, 2);
	ck_assert_int_eq(hf_generation_read(directory, &config, 3, &generation, &error), STATUS_INVALID);
	ck_assert_msg(strstr(error.message, path), "%s", error.message);
	unlink(path);
	rmdir(directory);
	hf_config_close(&config);
}
END_TEST

#define COUNT(array) (int)(sizeof(array) / sizeof(array)[0])

int main(void)
{
	Suite   *suite = suite_create("hf_config");
	TCase   *tcase = tcase_create("hf_config");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_test(tcase, getters);
	tcase_add_loop_test(tcase, refuses, 0, COUNT(refusals));
	tcase_add_test(tcase, messages_have_the_path);
	tcase_add_loop_test(tcase, refuses_documents, 0, COUNT(bad_documents));
	tcase_add_loop_test(tcase, rope_spellings, 0, COUNT(ropes));
	tcase_add_loop_test(tcase, refuses_ropes, 0, COUNT(bad_ropes));
	tcase_add_test(tcase, dtype_and_text_config);
	tcase_add_test(tcase, quantization_spellings);
	tcase_add_loop_test(tcase, eos_is_a_union, 0, COUNT(eos_cases));
	tcase_add_test(tcase, sampling_defaults);
	tcase_add_loop_test(tcase, refuses_generations, 0, COUNT(bad_generations));
	tcase_add_test(tcase, reads_a_directory);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
