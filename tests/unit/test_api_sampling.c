/* The fields that say how tokens are drawn, from body to job, and log probabilities from token to response: entries of the
 * kept tokens and no others, with their exact bytes, however the answer was split, cut and streamed. */
#include "support/api_fixture.h"

#include <check.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 640 }; /* of the tiny model */

static struct api_fixture fixture;
static const unsigned char seed[16] = { 1 };
static const struct api_http chat_http = { .method = "POST", .path = "/v1/chat/completions", .content_type = "application/json" };

static void setup(void)
{
	const char  *root = getenv("abs_top_srcdir");
	struct error error;

	ck_assert_msg(api_fixture_load(root ? root : ".", NULL, &fixture, &error) == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(vocab_size(fixture.vocab), VOCAB);
	fixture.conf.batcher_max_running = 16;
}

static void teardown(void) { api_fixture_free(&fixture); }

/* FIELDS after model and messages, ' for ". */
static struct api_call *parse(const char *fields, enum status *ret_status, struct error *error)
{
	static const char begin[] = "{'model':'tiny','messages':[{'role':'user','content':'Hi'}]";
	size_t            len = sizeof begin - 1 + strlen(fields) + 1;
	char             *body = malloc(len + 1);
	struct api_call  *call;

	ck_assert_ptr_nonnull(body);
	snprintf(body, len + 1, "%s%s}", begin, fields);
	for (size_t i = 0; i < len; i++)
		body[i] = body[i] == '\'' ? '"' : body[i];
	ck_assert_int_eq(api_call_create(&fixture.api, &chat_http, seed, &call, error), STATUS_OK);
	*ret_status = api_call_parse(call, body, len, error);
	free(body);
	return call;
}

static const struct {
	const char *fields, *param, *words;
} bad[] = {
	{ ",'frequency_penalty':2.5", "frequency_penalty", "= 2.5: outside the allowed range -2…2" },
	{ ",'presence_penalty':-3", "presence_penalty", "= -3: outside" },
	{ ",'repetition_penalty':0", "repetition_penalty", "= 0: outside the allowed range 0.01…10" },
	{ ",'logit_bias':[]", "logit_bias", "an object is expected, not an array" },
	{ ",'logit_bias':{'640':1}", "logit_bias", "\"640\" is not a token id 0…639" },
	{ ",'logit_bias':{'-1':1}", "logit_bias", "\"-1\" is not a token id" },
	{ ",'logit_bias':{'05':1}", "logit_bias", "\"05\" is not a token id" },
	{ ",'logit_bias':{'':1}", "logit_bias", "\"\" is not a token id" },
	{ ",'logit_bias':{'99999999999999999999':1}", "logit_bias", "is not a token id" },
	{ ",'logit_bias':{'the':1}", "logit_bias", "\"the\" is not a token id" },
	{ ",'logit_bias':{'5':101}", "logit_bias", "[\"5\"] = 101: outside the allowed range -100…100" },
	{ ",'logit_bias':{'5':'1'}", "logit_bias", "[\"5\"]: a number is expected, not a string" },
	{ ",'logit_bias':{'5':null}", "logit_bias", "a number is expected, not null" },
	{ ",'allowed_token_ids':[]", "allowed_token_ids", "0 ids, 1…1024 are allowed" },
	{ ",'allowed_token_ids':[640]", "allowed_token_ids", "[0] = 640: token ids are 0…639" },
	{ ",'allowed_token_ids':[1,'2']", "allowed_token_ids", "[1]: a token id is expected, not a string" },
	{ ",'stop_token_ids':5", "stop_token_ids", "an array of token ids is expected, not an integer" },
	{ ",'stop_token_ids':[-1]", "stop_token_ids", "[0] = -1: token ids are 0…639" },
	{ ",'stop_token_ids':[1.5]", "stop_token_ids", "[0]: a token id is expected" },
	{ ",'stop_token_ids':[7],'allowed_token_ids':[7],'min_tokens':1", "allowed_token_ids", "all of them end the answer" },
	{ ",'min_tokens':-1", "min_tokens", "= -1: outside the allowed range 0…" },
	{ ",'min_tokens':6,'max_tokens':5", "min_tokens", "= 6: more than max_tokens = 5" },
	{ ",'min_tokens':6,'max_completion_tokens':5", "min_tokens", "= 6: more than max_completion_tokens = 5" },
	{ ",'logprobs':5", "logprobs", "a boolean is expected" },
	{ ",'logprobs':true,'top_logprobs':21", "top_logprobs", "= 21: outside the allowed range 0…20" },
	{ ",'top_logprobs':1", "top_logprobs", "only with logprobs" },
	{ ",'logprobs':false,'top_logprobs':2", "top_logprobs", "only with logprobs" },
	{ ",'skip_special_tokens':0", "skip_special_tokens", "a boolean is expected" },
};

START_TEST(bad_values)
{
	struct error     error = { 0 };
	enum status      status;
	struct api_call *call = parse(bad[_i].fields, &status, &error);

	ck_assert_msg(status == STATUS_INVALID, "%s: status %d", bad[_i].fields, status);
	ck_assert_str_eq(error.param, bad[_i].param);
	ck_assert_msg(strstr(error.message, bad[_i].words), "%s\nhas no\n%s", error.message, bad[_i].words);
	ck_assert_msg(!strncmp(error.message, bad[_i].param, strlen(bad[_i].param)), "%s", error.message);
	api_call_free(call);
}
END_TEST

START_TEST(jobs)
{
	struct error          error = { 0 };
	const struct api_job *job;
	struct api_call      *call;
	enum status           status;

	call = parse(",'frequency_penalty':-2,'presence_penalty':0.5,'repetition_penalty':1.25,"
	             "'logit_bias':{'639':-100,'0':2,'17':0.5},"
	             "'stop_token_ids':[9,8],'allowed_token_ids':[5,639],'min_tokens':3,'logprobs':true,'top_logprobs':20",
	    &status, &error);
	ck_assert_msg(!status, "%s", error.message);
	job = api_call_job(call);
	ck_assert(job->sampling.frequency == -2 && job->sampling.presence == 0.5f && job->sampling.repetition == 1.25f);
	ck_assert_uint_eq(job->sampling.min_tokens, 3);
	ck_assert_uint_eq(job->sampling.logprobs, 21);
	ck_assert_uint_eq(job->bias_count, 3);
	ck_assert(job->bias[0].id == 0 && job->bias[0].add == 2 && job->bias[1].id == 17 && job->bias[2].id == 639 &&
	    job->bias[2].add == -100);
	ck_assert(job->stop_count == 2 && job->stop_ids[0] == 9 && job->stop_ids[1] == 8);
	ck_assert(job->allowed_count == 2 && job->allowed_ids[1] == 639);
	ck_assert_int_eq(api_call_tokenize(call, &error), STATUS_OK);
	ck_assert(job->bias[2].id == 639 && job->stop_ids[1] == 8); /* they outlive the body */
	api_call_free(call);

	/* What is off is off, whichever way it is said. */
	call = parse(",'frequency_penalty':0,'presence_penalty':0.0,'repetition_penalty':1,'logit_bias':{},'stop_token_ids':[],"
	             "'min_tokens':0,'logprobs':false,'top_logprobs':0,'allowed_token_ids':null,'skip_special_tokens':true",
	    &status, &error);
	ck_assert_msg(!status, "%s", error.message);
	job = api_call_job(call);
	ck_assert(!sample_params_need_slot(&job->sampling) && job->sampling.repetition == 0 && job->sampling.logprobs == 0);
	ck_assert_uint_eq(job->bias_count + job->stop_count + job->allowed_count, 0);
	api_call_free(call);
}
END_TEST

/* Limits on counts, and on what all answers together have on their way. */
START_TEST(limits)
{
	struct error     error = { 0 };
	struct buf       fields;
	struct api_call *call;
	enum status      status;
	int64_t          window = fixture.conf.front_stream_window;

	buf_init(&fields, 1 << 20);
	for (int count = 64; count <= 65; count++) {
		buf_clear(&fields);
		buf_append_string(&fields, ",'stop_token_ids':[0");
		for (int i = 1; i < count; i++)
			buf_append_string(&fields, ",0");
		buf_append_string(&fields, "]");
		call = parse(fields.data, &status, &error);
		ck_assert_int_eq(status, count == 64 ? STATUS_OK : STATUS_INVALID);
		api_call_free(call);
	}
	ck_assert_ptr_nonnull(strstr(error.message, "65 ids, 0…64 are allowed"));
	buf_free(&fields);
	fixture.conf.front_stream_window = 4096;
	call = parse(",'n':16,'logprobs':true,'top_logprobs':20", &status, &error);
	ck_assert_int_eq(status, STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "top_logprobs = 20 with n = 16: such answers need front.stream_window = "));
	api_call_free(call);
	call = parse(",'n':6,'logprobs':true,'top_logprobs':20", &status, &error);
	ck_assert_int_eq(status, STATUS_OK);
	api_call_free(call);
	fixture.conf.front_stream_window = window;
}
END_TEST

/* ---- log probabilities ------------------------------------------------------------------------------------------------- */

struct entries {
	json_t *list;   /* of all entries, in order */
	int64_t tokens; /* usage */
	char    finish[16];
	struct buf content;
};

static void take_choice(const json_t *choice, const char *where, int64_t index, struct entries *ret)
{
	const json_t *text = json_object_get(json_object_get(choice, where), "content");
	const json_t *logprobs = json_object_get(choice, "logprobs");
	const char   *finish = json_string_value(json_object_get(choice, "finish_reason"));

	if (json_integer_value(json_object_get(choice, "index")) != index)
		return;
	ck_assert_ptr_nonnull(logprobs);
	if (json_is_string(text))
		buf_append(&ret->content, json_string_value(text), json_string_length(text));
	if (finish)
		snprintf(ret->finish, sizeof ret->finish, "%s", finish);
	if (json_is_null(logprobs))
		return;
	ck_assert(json_is_null(json_object_get(logprobs, "refusal")));
	ck_assert_uint_gt(json_array_size(json_object_get(logprobs, "content")), 0);
	json_array_extend(ret->list, json_object_get(logprobs, "content"));
}

static void take_object(const char *bytes, size_t len, const char *where, int64_t index, struct entries *ret)
{
	json_t       *object = json_loadb(bytes, len, JSON_ALLOW_NUL, NULL);
	const json_t *usage = json_object_get(object, "usage"), *choices = json_object_get(object, "choices");

	ck_assert_msg(json_is_object(object), "%.*s", len < 500 ? (int)len : 500, bytes);
	for (size_t i = 0; i < json_array_size(choices); i++)
		take_choice(json_array_get(choices, i), where, index, ret);
	if (json_is_object(usage))
		ret->tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
	json_decref(object);
}

static struct entries read_entries(const struct buf *out, int64_t index)
{
	struct entries ret = { .list = json_array() };
	const char    *at = strstr(out->data, "\r\n\r\n") + 4;

	buf_init(&ret.content, 1 << 20);
	if (*at == '{') {
		take_object(at, strlen(at), "message", index, &ret);
		return ret;
	}
	for (; *at; at = strstr(at, "\n\n") + 2)
		if (strncmp(at, "data: [DONE]", 12))
			take_object(at + 6, (size_t)(strstr(at, "\n\n") - at - 6), "delta", index, &ret);
	return ret;
}

static void free_entries(struct entries *entries)
{
	json_decref(entries->list);
	buf_free(&entries->content);
}

static unsigned draw(uint64_t *state, unsigned below)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (unsigned)(*state >> 33) % below;
}

static struct sample_logprobs made(int32_t id, uint32_t at, uint32_t top)
{
	struct sample_logprobs ret = { .drawn = -(float)at - 0.125f, .count = top };

	for (uint32_t i = 0; i < top; i++) {
		ret.top[i].id = (id + (int32_t)i) % VOCAB;
		ret.top[i].logprob = i == 0 ? ret.drawn : -FLT_MAX;
	}
	return ret;
}

/* An answer of COUNT ids in pieces of at most PIECE, from all N choices in turn. */
static void answer(const char *fields, const int32_t *ids, uint32_t count, uint32_t piece, uint32_t n, uint32_t top,
    struct buf *out)
{
	struct error     error = { 0 };
	enum status      status;
	struct api_call *call = parse(fields, &status, &error);
	bool             stopped[16] = { false };

	ck_assert_msg(!status, "%s", error.message);
	ck_assert_int_eq(api_call_tokenize(call, &error), STATUS_OK);
	for (uint32_t at = 0; at < count; at += piece) {
		for (uint32_t c = 0; c < n; c++) {
			struct sample_logprobs logprobs[64];
			uint32_t               keep = 0, length = count - at < piece ? count - at : piece;
			bool                   stop = false;

			for (uint32_t i = 0; i < length; i++)
				logprobs[i] = made(ids[at + i], at + i, top);
			if (stopped[c])
				continue;
			ck_assert_int_eq(api_call_logprobs(call, c, ids + at, logprobs, length), STATUS_OK);
			ck_assert_int_eq(api_call_tokens(call, c, ids + at, length, out, &stop, &keep), STATUS_OK);
			stopped[c] = stop;
		}
	}
	for (uint32_t c = 0; c < n; c++) {
		struct wire_end end = { .finish = WIRE_FINISH_LENGTH, .choice = (uint16_t)c, .completion_tokens = count };
		ck_assert_int_eq(api_call_end(call, &end, out), STATUS_OK);
	}
	api_call_free(call);
}

/* ENTRIES are those of the first tokens, as usage counts them. */
static void check_entries(const struct entries *entries, const int32_t *ids, uint32_t n, uint32_t top)
{
	ck_assert_int_eq((int64_t)json_array_size(entries->list) * n, entries->tokens);
	for (size_t i = 0; i < json_array_size(entries->list); i++) {
		const json_t *entry = json_array_get(entries->list, i), *bytes = json_object_get(entry, "bytes"),
		             *tops = json_object_get(entry, "top_logprobs");
		size_t        len;
		const char   *expected = vocab_bytes(fixture.vocab, (uint32_t)ids[i], &len);

		ck_assert(json_is_string(json_object_get(entry, "token")));
		ck_assert(json_real_value(json_object_get(entry, "logprob")) == -(double)i - 0.125);
		ck_assert_uint_eq(json_array_size(bytes), len);
		for (size_t k = 0; k < len; k++)
			ck_assert_int_eq(json_integer_value(json_array_get(bytes, k)), (unsigned char)expected[k]);
		ck_assert_uint_eq(json_array_size(tops), top);
		for (size_t k = 0; k < top; k++) {
			const json_t *logprob = json_object_get(json_array_get(tops, k), "logprob");
			ck_assert(k == 0 ? json_equal(logprob, json_object_get(entry, "logprob")) : json_number_value(logprob) == -9999);
		}
	}
}

START_TEST(entries_of_kept_tokens)
{
	static const char *const stops[] = { "", ",'stop':'e'", ",'stop':['the','\xc3\xa9','ab','aba']", ",'stop':'\xef\xbf\xbd'" };
	uint64_t state = 5;
	unsigned cut = 0;

	for (int round = 0; round < 200; round++) {
		int32_t        ids[40];
		uint32_t       count = 1 + draw(&state, 40), top = draw(&state, 21), n = round % 5 ? 1 : 3;
		char           fields[2][300];
		struct buf     out[2];

		for (uint32_t i = 0; i < count; i++) /* bytes, halves of characters among them; then anything, control tokens too */
			ids[i] = (int32_t)draw(&state, round % 2 ? VOCAB : 270);
		for (int s = 0; s < 2; s++) {
			snprintf(fields[s], sizeof fields[s], "%s,'logprobs':true,'top_logprobs':%u,'n':%u%s", stops[round % 4], top, n,
			    s ? ",'stream':true,'stream_options':{'include_usage':true}" : "");
			buf_init(&out[s], 1 << 22);
			answer(fields[s], ids, count, s ? 1 + draw(&state, 5) : 40, n, top, &out[s]);
		}
		for (uint32_t c = 0; c < n; c++) {
			struct entries whole = read_entries(&out[0], c), stream = read_entries(&out[1], c);

			check_entries(&whole, ids, n, top);
			check_entries(&stream, ids, n, top);
			ck_assert(json_equal(whole.list, stream.list));
			ck_assert_uint_eq(whole.content.len, stream.content.len);
			ck_assert_str_eq(whole.finish, stream.finish);
			cut += !strcmp(whole.finish, "stop");
			free_entries(&whole);
			free_entries(&stream);
		}
		buf_free(&out[0]);
		buf_free(&out[1]);
	}
	ck_assert_uint_gt(cut, 50);
}
END_TEST

/* Who asks for none gets none, and null where they would be. */
START_TEST(none_unless_asked)
{
	struct error     error = { 0 };
	enum status      status;
	const int32_t    id = 40;
	struct wire_end  end = { .finish = WIRE_FINISH_STOP, .completion_tokens = 1 };
	bool             stop;
	uint32_t         keep;
	struct buf       out;

	for (int s = 0; s < 2; s++) {
		struct api_call *call = parse(s ? ",'stream':true" : "", &status, &error);

		buf_init(&out, 1 << 20);
		ck_assert_int_eq(api_call_tokenize(call, &error), STATUS_OK);
		ck_assert_int_eq(api_call_tokens(call, 0, &id, 1, &out, &stop, &keep), STATUS_OK);
		ck_assert_int_eq(api_call_end(call, &end, &out), STATUS_OK);
		ck_assert_ptr_nonnull(strstr(out.data, "\"logprobs\":null"));
		ck_assert_ptr_null(strstr(out.data, "\"logprobs\":{"));
		api_call_free(call);
		buf_free(&out);
	}
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("api_sampling");
	TCase   *tcase = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_set_timeout(tcase, 120);
	tcase_add_loop_test(tcase, bad_values, 0, sizeof bad / sizeof *bad);
	tcase_add_test(tcase, jobs);
	tcase_add_test(tcase, limits);
	tcase_add_test(tcase, entries_of_kept_tokens);
	tcase_add_test(tcase, none_unless_asked);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
