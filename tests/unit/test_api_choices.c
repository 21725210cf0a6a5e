/* n answers to one request: whatever order and pieces their tokens come in, each answer is the one that a request of its own
 * would have got; streams carry it under its index, whole answers wait for all of them, usage is a sum. */
#include "api/api.h"
#include "base/random.h"
#include "support/api_fixture.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { CHOICES_MAX = 16, IDS = 24, TEXT_MAX = 4096, ROUNDS = 60 };

static struct api_fixture fixture;
static const unsigned char seed[16] = { 1, 2, 3 };

static void setup(void)
{
	struct error error;
	const char  *root = getenv("abs_top_srcdir");

	ck_assert_msg(api_fixture_load(root ? root : ".", NULL, &fixture, &error) == STATUS_OK, "%s", error.message);
}

static void teardown(void) { api_fixture_free(&fixture); }

static struct api_call *begin(const char *fields)
{
	const struct api_http http = { .method = "POST", .path = "/v1/chat/completions", .now = 1700000000 };
	struct api_call      *call;
	struct error          error;
	char                  body[1024];
	int                   len;

	len = snprintf(body, sizeof body, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]%s}", fields);
	ck_assert_int_eq(api_call_create(&fixture.api, &http, seed, &call, &error), STATUS_OK);
	if (api_call_parse(call, body, (size_t)len, &error) || api_call_tokenize(call, &error))
		ck_abort_msg("%s", error.message);
	return call;
}

/* What the answers said, by index. */
struct answers {
	char    text[CHOICES_MAX][TEXT_MAX], finish[CHOICES_MAX][16];
	bool    role[CHOICES_MAX];
	int64_t prompt_tokens, completion_tokens;
	bool    usage, done;
};

static void add_text(struct answers *a, json_int_t index, const json_t *content)
{
	size_t at, len = json_string_length(content);

	ck_assert(index >= 0 && index < CHOICES_MAX);
	at = strlen(a->text[index]);
	ck_assert_uint_lt(at + len, TEXT_MAX);
	for (size_t i = 0; i < len; i++) /* a token may be a NUL */
		a->text[index][at + i] = json_string_value(content)[i] ? json_string_value(content)[i] : '?';
}

static void add_usage(struct answers *a, const json_t *usage)
{
	a->usage = true;
	a->prompt_tokens = json_integer_value(json_object_get(usage, "prompt_tokens"));
	a->completion_tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
	ck_assert_int_eq(json_integer_value(json_object_get(usage, "total_tokens")), a->prompt_tokens + a->completion_tokens);
}

static void add_chunk(struct answers *a, const json_t *root)
{
	const json_t *choices = json_object_get(root, "choices"), *choice = json_array_get(choices, 0);
	const json_t *delta = json_object_get(choice, "delta"), *finish = json_object_get(choice, "finish_reason");
	json_int_t    index = json_integer_value(json_object_get(choice, "index"));

	ck_assert(!a->done && !a->usage);
	if (json_array_size(choices) == 0) {
		add_usage(a, json_object_get(root, "usage"));
		return;
	}
	ck_assert_uint_eq(json_array_size(choices), 1);
	ck_assert_str_eq(a->finish[index], ""); /* nothing follows the finish of a choice */
	ck_assert_int_eq(json_is_string(json_object_get(delta, "role")), !a->role[index]);
	a->role[index] = true;
	add_text(a, index, json_object_get(delta, "content"));
	if (json_is_string(finish))
		snprintf(a->finish[index], sizeof a->finish[index], "%s", json_string_value(finish));
}

static void read_stream(const char *body, struct answers *a)
{
	for (const char *at = body, *end; (end = strstr(at, "\n\n")); at = end + 2) {
		json_t *root;

		if (!strncmp(at, "data: [DONE]", 12)) {
			a->done = true;
			continue;
		}
		root = json_loadb(at + 6, (size_t)(end - at - 6), JSON_ALLOW_NUL, NULL);
		ck_assert_ptr_nonnull(root);
		add_chunk(a, root);
		json_decref(root);
	}
}

static void read_whole(const char *body, struct answers *a)
{
	json_t       *root = json_loads(body, JSON_ALLOW_NUL, NULL);
	const json_t *choices = json_object_get(root, "choices");

	ck_assert_ptr_nonnull(root);
	for (size_t i = 0; i < json_array_size(choices); i++) {
		const json_t *choice = json_array_get(choices, i);

		ck_assert_int_eq(json_integer_value(json_object_get(choice, "index")), (json_int_t)i);
		add_text(a, (json_int_t)i, json_object_get(json_object_get(choice, "message"), "content"));
		snprintf(a->finish[i], sizeof a->finish[i], "%s", json_string_value(json_object_get(choice, "finish_reason")));
	}
	add_usage(a, json_object_get(root, "usage"));
	a->done = true;
	json_decref(root);
}

static void read_answers(const struct buf *out, struct answers *ret)
{
	const char *body = strstr(out->data, "\r\n\r\n") + 4;

	memset(ret, 0, sizeof *ret);
	if (!strncmp(body, "data: ", 6))
		read_stream(body, ret);
	else
		read_whole(body, ret);
	ck_assert(ret->done);
}

/* Ids of short words, so that stop strings of two letters occur. */
static void draw_ids(struct random *random, int32_t ids[IDS])
{
	for (int i = 0; i < IDS; i++)
		ids[i] = (int32_t)random_below(random, vocab_size(fixture.vocab) - 4) + 4;
}

/* Gives ID after ID of N lists to one call in any order, END after the last or after a stop. */
static void run(struct random *random, struct api_call *call, uint32_t n, int32_t ids[][IDS], const bool *length, struct buf *out)
{
	uint32_t at[CHOICES_MAX] = { 0 }, left = n;
	bool     ended[CHOICES_MAX] = { false }, stop;

	while (left > 0) {
		uint32_t c = random_below(random, n), keep = 0, count = 1 + random_below(random, 5);

		if (ended[c])
			continue;
		count = count < IDS - at[c] ? count : IDS - at[c];
		if (count > 0) {
			stop = false;
			ck_assert_int_eq(api_call_tokens(call, c, ids[c] + at[c], count, out, &stop, &keep), STATUS_OK);
			at[c] += count;
			if (!stop)
				continue;
			ck_assert_uint_le(keep, at[c]);
		}
		struct wire_end end = { .choice = (uint16_t)c, .completion_tokens = at[c],
			.finish = length[c] ? WIRE_FINISH_LENGTH : WIRE_FINISH_STOP };
		ck_assert(!api_call_done(call));
		ck_assert_int_eq(api_call_end(call, &end, out), STATUS_OK);
		ended[c] = true;
		left--;
	}
	ck_assert(api_call_done(call));
}

START_TEST(each_is_an_answer_of_its_own)
{
	static struct answers together, alone;
	struct random         random;
	bool                  stream = _i % 2, length[CHOICES_MAX];
	int32_t               ids[CHOICES_MAX][IDS];
	char                  fields[256];
	struct buf            out;

	random = random_stream((uint64_t)_i, 1);
	for (int round = 0; round < ROUNDS; round++) {
		uint32_t         n = 1 + random_below(&random, CHOICES_MAX);
		int64_t          completion_tokens = 0;
		struct api_call *call;

		fixture.conf.batcher_max_running = CHOICES_MAX;
		for (uint32_t c = 0; c < n; c++) {
			draw_ids(&random, ids[c]);
			length[c] = random_below(&random, 2) == 1;
		}
		snprintf(fields, sizeof fields, ",\"n\":%u,\"stop\":[\"e\",\"st\",\"zq\"]%s", n,
		    stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
		buf_init(&out, 1 << 22);
		call = begin(fields);
		ck_assert_uint_eq(api_call_job(call)->choices, n);
		run(&random, call, n, ids, length, &out);
		read_answers(&out, &together);
		buf_free(&out);
		api_call_free(call);
		for (uint32_t c = 0; c < n; c++) {
			buf_init(&out, 1 << 22);
			call = begin(",\"stop\":[\"e\",\"st\",\"zq\"]");
			run(&random, call, 1, ids + c, length + c, &out);
			read_answers(&out, &alone);
			ck_assert_str_eq(together.text[c], alone.text[0]);
			ck_assert_str_eq(together.finish[c], alone.finish[0]);
			completion_tokens += alone.completion_tokens;
			ck_assert_int_eq(together.prompt_tokens, alone.prompt_tokens);
			buf_free(&out);
			api_call_free(call);
		}
		ck_assert_int_eq(together.completion_tokens, completion_tokens);
		for (uint32_t c = n; c < CHOICES_MAX; c++)
			ck_assert(!*together.finish[c] && !*together.text[c]);
	}
}
END_TEST

/* A failure ends all of them, unless all have their text already. */
START_TEST(failures)
{
	const struct wire_end stop = { .choice = 1, .finish = WIRE_FINISH_STOP, .completion_tokens = 1 };
	static struct answers answers;
	struct api_call      *call;
	struct error          error;
	struct buf            out;
	bool                  stopped = false;
	uint32_t              keep = 0;
	int32_t               ids[IDS];
	struct random         random;

	fixture.conf.batcher_max_running = 2;
	random = random_stream(7, 1);
	draw_ids(&random, ids);
	error_set(&error, STATUS_INTERNAL, "broken");
	buf_init(&out, 1 << 20);
	call = begin(",\"n\":2");
	ck_assert_int_eq(api_call_end(call, &stop, &out), STATUS_OK);
	ck_assert_uint_eq(out.len, 0); /* whole: nothing before all have ended */
	ck_assert_int_eq(api_call_fail(call, &error, 0, &out), STATUS_OK);
	ck_assert_int_eq(api_call_http_status(call), 500);
	api_call_free(call);
	buf_free(&out);

	buf_init(&out, 1 << 20);
	call = begin(",\"n\":2,\"stop\":[\"e\",\"a\",\"i\",\"o\",\"u\",\"t\",\"n\",\" \"]");
	for (int i = 0; i < IDS && !stopped; i++)
		ck_assert_int_eq(api_call_tokens(call, 0, ids + i, 1, &out, &stopped, &keep), STATUS_OK);
	ck_assert(stopped);
	ck_assert_int_eq(api_call_end(call, &stop, &out), STATUS_OK);
	ck_assert_int_eq(api_call_fail(call, &error, 0, &out), STATUS_OK); /* choice 0 only lacked its END */
	ck_assert_int_eq(api_call_http_status(call), 200);
	read_answers(&out, &answers);
	ck_assert_str_eq(answers.finish[0], "stop");
	ck_assert_int_eq(answers.completion_tokens, 1 + keep);
	api_call_free(call);
	buf_free(&out);

	const struct api_http http = { .method = "POST", .path = "/v1/chat/completions" };
	static const char     three[] = "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"n\":3}";
	ck_assert_int_eq(api_call_create(&fixture.api, &http, seed, &call, &error), STATUS_OK);
	ck_assert_int_eq(api_call_parse(call, three, sizeof three - 1, &error), STATUS_INVALID);
	ck_assert_str_eq(error.param, "n");
	ck_assert_msg(strstr(error.message, "n = 3") && strstr(error.message, "most 2"), "%s", error.message);
	api_call_free(call);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("api choices");
	TCase   *tcase = tcase_create("choices");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_set_timeout(tcase, 60);
	tcase_add_loop_test(tcase, each_is_an_answer_of_its_own, 0, 4);
	tcase_add_test(tcase, failures);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
