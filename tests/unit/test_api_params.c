/* Request fields: the range test made from the table itself (below, at, and above each limit, wrong type, null), neutral
 * values, unknown fields, limits of the JSON reader, escaping, routes, metrics text. */
#include "api/exposition.h"
#include "api/json_text.h"
#include "api/params.h"
#include "api/route.h"

#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Parses a body that holds the required fields and, when VALUE is not NULL, NAME: VALUE (given away). */
static enum status parse_with(const char *name, json_t *value, struct params *ret, struct error *error)
{
	json_t               *body = json_pack("{s:s, s:[]}", "model", "m", "messages");
	struct params_ignored ignored;
	enum status           status;

	if (value)
		ck_assert_int_eq(json_object_set_new(body, name, value), 0);
	status = params_parse(body, PARAMS_CHAT, true, ret, &ignored, error);
	json_decref(body); /* borrowed members of *ret are not looked at below */
	return status;
}

static void accepts(const struct param *row, json_t *value, struct params *ret)
{
	struct error error = { 0 };
	ck_assert_msg(parse_with(row->name, value, ret, &error) == STATUS_OK, "%s: %s", row->name, error.message);
}

static void refuses(const struct param *row, json_t *value, const char *words)
{
	struct params untouched = { .n = { true, 4711 } };
	struct error  error = { 0 };
	enum status   status = parse_with(row->name, value, &untouched, &error);

	ck_assert_msg(status == STATUS_INVALID || status == STATUS_UNSUPPORTED, "%s: %s", row->name, status_name(status));
	ck_assert_str_eq(error.param, row->name);
	ck_assert_msg(strstr(error.message, row->name) && strstr(error.message, words), "\"%s\" lacks \"%s\"", error.message, words);
	ck_assert_int_eq(untouched.n.value, 4711);
}

static void check_int_row(const struct param *row)
{
	struct params     params;
	struct param_int *target = (struct param_int *)((char *)&params + row->offset);
	char              range[60];

	snprintf(range, sizeof range, "%" PRId64 "…%" PRId64, row->int_min, row->int_max);
	accepts(row, json_integer(row->int_min), &params);
	ck_assert(target->set && target->value == row->int_min);
	accepts(row, json_integer(row->int_max), &params);
	ck_assert(target->set && target->value == row->int_max);
	accepts(row, json_real(1.0), &params);
	ck_assert(target->set && target->value == 1);
	if (row->int_min > INT64_MIN)
		refuses(row, json_integer(row->int_min - 1), range);
	if (row->int_max < INT64_MAX)
		refuses(row, json_integer(row->int_max + 1), range);
	refuses(row, json_real(1.5), "a whole number is expected");
	refuses(row, json_real(1e300), "a whole number is expected");
	refuses(row, json_string("1"), "a whole number is expected, not a string");
	refuses(row, json_true(), "not a boolean");
	accepts(row, json_null(), &params);
	ck_assert(!target->set && target->value == row->int_initial);
	accepts(row, NULL, &params);
	ck_assert(!target->set && target->value == row->int_initial);
}

static void check_real_row(const struct param *row)
{
	struct params      params;
	struct param_real *target = (struct param_real *)((char *)&params + row->offset);
	char               range[60];

	snprintf(range, sizeof range, "%g…%g", row->real_min, row->real_max);
	accepts(row, json_real(row->real_min), &params);
	ck_assert(target->set && target->value == row->real_min);
	accepts(row, json_real(row->real_max), &params);
	ck_assert(target->set && target->value == row->real_max);
	if (row->real_min <= 0) { /* absent and zero differ */
		accepts(row, json_integer(0), &params);
		ck_assert(target->set && target->value == 0);
	} else {
		refuses(row, json_integer(0), range);
	}
	refuses(row, json_real(row->real_min - 1e-9), range);
	refuses(row, json_real(row->real_max + 1e-9), range);
	refuses(row, json_integer(1000000), range);
	refuses(row, json_string("1"), "a number is expected, not a string");
	refuses(row, json_array(), "not an array");
	accepts(row, json_null(), &params);
	ck_assert(!target->set && target->value == row->real_initial);
}

static void check_text_row(const struct param *row)
{
	struct params params;
	char          text[1024];

	memset(text, 'x', sizeof text);
	accepts(row, json_stringn(text, (size_t)row->int_max), &params);
	accepts(row, json_string(""), &params);
	refuses(row, json_stringn(text, (size_t)row->int_max + 1), "bytes, at most");
	refuses(row, json_integer(1), "a string is expected, not an integer");
	if (row->required)
		refuses(row, json_null(), "required");
	else
		accepts(row, json_null(), &params);
}

static void check_neutral_row(const struct param *row)
{
	struct params params;
	json_t       *values = json_loads(row->shape, 0, NULL);

	ck_assert_msg(json_is_array(values), "%s: %s is no JSON array", row->name, row->shape);
	for (size_t i = 0; i < json_array_size(values); i++)
		accepts(row, json_incref(json_array_get(values, i)), &params);
	if (json_is_integer(json_array_get(values, 0)))
		accepts(row, json_real((double)json_integer_value(json_array_get(values, 0))), &params);
	accepts(row, json_null(), &params);
	refuses(row, json_string("something else"), "not supported");
	refuses(row, json_pack("{s:[i]}", "a", 1), "not supported");
	refuses(row, json_real(0.5), "not supported");
	json_decref(values);
}

START_TEST(every_row)
{
	size_t              count;
	const struct param *rows = params_table(&count);
	struct params       params;

	ck_assert_uint_gt(count, 40);
	for (size_t i = 0; i < count; i++) {
		for (size_t j = 0; j < i; j++)
			ck_assert_str_ne(rows[i].name, rows[j].name);
		switch (rows[i].kind) {
		case PARAM_KIND_INT:
			check_int_row(&rows[i]);
			break;
		case PARAM_KIND_REAL:
			check_real_row(&rows[i]);
			break;
		case PARAM_KIND_TEXT:
			check_text_row(&rows[i]);
			break;
		case PARAM_KIND_BOOL:
			accepts(&rows[i], json_true(), &params);
			accepts(&rows[i], json_false(), &params);
			accepts(&rows[i], json_null(), &params);
			refuses(&rows[i], json_integer(1), "a boolean is expected, not an integer");
			refuses(&rows[i], json_string("true"), "a boolean is expected, not a string");
			break;
		case PARAM_KIND_JSON:
			if (rows[i].required)
				refuses(&rows[i], json_null(), "required");
			else
				accepts(&rows[i], json_null(), &params);
			break;
		case PARAM_KIND_NEUTRAL:
			check_neutral_row(&rows[i]);
			break;
		}
	}
}
END_TEST

START_TEST(unknown_fields)
{
	json_t               *body = json_pack("{s:s, s:[], s:i, s:i, s:i, s:i}", "model", "m", "messages", "foo", 1, "b_2", 1,
	    "bad name\r\nX: y", 1, "", 1);
	struct params         params;
	struct params_ignored ignored;
	struct error          error;
	char                  text[PARAMS_IGNORED_BYTES], name[64];

	ck_assert_int_eq(params_parse(body, PARAMS_CHAT, false, &params, &ignored, &error), STATUS_OK);
	params_ignored_text(&ignored, text);
	ck_assert_str_eq(text, "foo,b_2,+2");
	for (int i = 0; i < 1000; i++) { /* 40-byte names */
		snprintf(name, sizeof name, "%040d", i);
		json_object_set_new(body, name, json_null());
	}
	ck_assert_int_eq(params_parse(body, PARAMS_CHAT, false, &params, &ignored, &error), STATUS_OK);
	params_ignored_text(&ignored, text);
	ck_assert_uint_eq(ignored.named, PARAMS_IGNORED_MAX);
	ck_assert_ptr_nonnull(strstr(text, ",+996"));
	ck_assert_uint_eq(strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_,+"), strlen(text));
	ck_assert_int_eq(params_parse(body, PARAMS_CHAT, true, &params, &ignored, &error), STATUS_INVALID);
	ck_assert_str_eq(error.param, "foo");
	json_decref(body);
	ignored = (struct params_ignored){ .rest = UINT32_MAX };
	params_ignored_text(&ignored, text);
	ck_assert_str_eq(text, "+4294967295");
}
END_TEST

static const struct {
	const char *text;
	enum status status;
	const char *words;
} bad_bodies[] = {
	{ "", STATUS_BAD_JSON, "empty" },
	{ " \r\n", STATUS_BAD_JSON, "empty" },
	{ "5", STATUS_BAD_JSON, "not an integer" },
	{ "\"x\"", STATUS_BAD_JSON, "not a string" },
	{ "[]", STATUS_BAD_JSON, "not an array" },
	{ "null", STATUS_BAD_JSON, "not null" },
	{ "{", STATUS_BAD_JSON, "at byte 1 " },
	{ "{\"a\":1,}", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\":1} x", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\":1}{}", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\":1,\"a\":2}", STATUS_BAD_JSON, "duplicate" },
	{ "{\"a\":{\"b\":1,\"b\":2}}", STATUS_BAD_JSON, "duplicate" },
	{ "{\"a\":\"\\ud83d\"}", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\":\"\\udf78x\"}", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\":\"\xff\"}", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\":\"\xed\xa0\xbd\"}", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\":1e999}", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\":99999999999999999999}", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\":01}", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\":\"x\ny\"}", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\\u0000b\":1}", STATUS_BAD_JSON, "at byte" },
	{ "{\"a\":[[[[]]]]}", STATUS_LIMIT, "deeper than 4 levels at byte 8" },
	{ "{\"a\":[[[[", STATUS_LIMIT, "deeper than 4 levels" },
};

START_TEST(bad_json)
{
	struct error error = { 0 };
	json_t      *root = NULL;
	enum status  status = json_text_load(bad_bodies[_i].text, strlen(bad_bodies[_i].text), 4, &root, &error);

	ck_assert_int_eq(status, bad_bodies[_i].status);
	ck_assert_ptr_null(root);
	ck_assert_msg(strstr(error.message, bad_bodies[_i].words), "\"%s\" lacks \"%s\"", error.message, bad_bodies[_i].words);
}
END_TEST

START_TEST(json_limits)
{
	struct buf   body;
	struct error error;
	json_t      *root = NULL;

	/* Brackets in strings are no levels, commas in strings no values. */
	const char *fine = "{\"a\":\"[[[[[[[[{{{{\\\"[[[,,,\",\"b\":\"\\ud83c\\udf78\",\"c\":\"x\\u0000y\"}";
	ck_assert_int_eq(json_text_load(fine, strlen(fine), 4, &root, &error), STATUS_OK);
	ck_assert_str_eq(json_string_value(json_object_get(root, "b")), "\xf0\x9f\x8d\xb8"); /* one code point, not two halves */
	ck_assert_uint_eq(json_string_length(json_object_get(root, "c")), 3);
	json_decref(root);

	buf_init(&body, 1 << 20);
	buf_append_string(&body, "{\"a\":[0");
	for (int i = 0; i < JSON_TEXT_VALUES_MAX; i++)
		buf_append_string(&body, ",0");
	buf_append_string(&body, "]}");
	ck_assert_int_eq(json_text_load(body.data, body.len, 4, &root, &error), STATUS_LIMIT);
	ck_assert_ptr_nonnull(strstr(error.message, "more than 65536 values at byte"));
	buf_clear(&body);
	for (int i = 0; i < 100000; i++)
		buf_append_string(&body, "[");
	ck_assert_int_eq(json_text_load(body.data, body.len, 1u << 30, &root, &error), STATUS_LIMIT);
	buf_free(&body);
}
END_TEST

/* Any bytes come out as one JSON string; well-formed ones come back as they were. */
START_TEST(json_escaping)
{
	struct buf   out;
	struct error error;
	uint64_t     state = 1;

	buf_init(&out, 1 << 16);
	for (int round = 0; round < 20000; round++) {
		char    bytes[24];
		size_t  len = round % sizeof bytes;
		json_t *root = NULL;

		for (size_t i = 0; i < len; i++) {
			state = state * UINT64_C(6364136223846793005) + 1;
			bytes[i] = (char)(state >> 56);
			if (round & 1)
				bytes[i] &= 0x7f;
		}
		buf_clear(&out);
		buf_append_string(&out, "{\"a\":");
		ck_assert_int_eq(json_text_append_string(&out, bytes, len), STATUS_OK);
		ck_assert_uint_le(out.len, 5 + 2 + 6 * len);
		buf_append_string(&out, "}");
		ck_assert_msg(json_text_load(out.data, out.len, 4, &root, &error) == STATUS_OK, "%s", error.message);
		if (round & 1) {
			const json_t *back = json_object_get(root, "a");
			ck_assert_uint_eq(json_string_length(back), len);
			ck_assert_int_eq(memcmp(json_string_value(back), bytes, len), 0);
		}
		json_decref(root);
	}
	buf_clear(&out);
	ck_assert_int_eq(json_text_append_string(&out, NULL, 0), STATUS_OK); /* an answer without a token */
	ck_assert_str_eq(out.data, "\"\"");
	buf_clear(&out);
	ck_assert_int_eq(json_text_append_string(&out, "a\xe4\xb8", 3), STATUS_OK); /* cut in a character */
	ck_assert_str_eq(out.data, "\"a\xef\xbf\xbd\"");
	buf_free(&out);
}
END_TEST

START_TEST(routes)
{
	const char *rest = NULL;

	ck_assert_int_eq(route_find("/v1/chat/completions", &rest), API_ROUTE_CHAT);
	ck_assert_int_eq(route_find("/v1/models", &rest), API_ROUTE_MODELS);
	ck_assert_int_eq(route_find("/v1/models/a/b", &rest), API_ROUTE_MODEL);
	ck_assert_str_eq(rest, "a/b");
	ck_assert_int_eq(route_find("/livez", &rest), API_ROUTE_LIVEZ);
	static const char *const none[] = { "", "/", "/v1/models/", "/v1/chat/completions/", "/v1/chat", "/livezz", "v1/models",
		"//livez", "/LIVEZ", "/v1/chat/completions?x" };
	for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
		ck_assert_int_eq(route_find(none[i], &rest), API_ROUTE_NONE);
	ck_assert_ptr_null(route_row(API_ROUTE_NONE));
	ck_assert_ptr_null(route_row(API_ROUTE_OPTIONS));
	ck_assert_ptr_null(route_row((enum api_route)999));
}
END_TEST

START_TEST(exposition)
{
	static const struct exposition_row rows[] = {
		{ "penstock_a_total", "counter", "Help \\ of\na", NULL, UINT64_MAX },
		{ "penstock_b", "gauge", "B", "x=\"1\"", 1 },
		{ "penstock_b", "gauge", "B", "x=\"2\"", 2 },
	};
	static const struct exposition_row bad[] = { { "penstock_a", "gauge", "", "", 0 }, { "0 bad", "gauge", "", "", 0 } };
	struct buf                         out;

	buf_init(&out, 1000);
	ck_assert_int_eq(exposition_append(&out, rows, 3), STATUS_OK);
	ck_assert_str_eq(out.data, "# HELP penstock_a_total Help \\\\ of\\na\n# TYPE penstock_a_total counter\n"
	                           "penstock_a_total 18446744073709551615\n# HELP penstock_b B\n# TYPE penstock_b gauge\n"
	                           "penstock_b{x=\"1\"} 1\npenstock_b{x=\"2\"} 2\n");
	size_t len = out.len;
	ck_assert_int_eq(exposition_append(&out, bad, 2), STATUS_INVALID);
	ck_assert_uint_eq(out.len, len);
	buf_free(&out);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("api_params");
	TCase   *tcase = tcase_create("api_params");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 120);
	tcase_add_test(tcase, every_row);
	tcase_add_test(tcase, unknown_fields);
	tcase_add_loop_test(tcase, bad_json, 0, sizeof bad_bodies / sizeof bad_bodies[0]);
	tcase_add_test(tcase, json_limits);
	tcase_add_test(tcase, json_escaping);
	tcase_add_test(tcase, routes);
	tcase_add_test(tcase, exposition);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
