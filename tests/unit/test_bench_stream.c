/* Streamed answers as the load tool reads them: the events and the counts do not depend on how the bytes were cut, and no
 * bytes do harm.  PENSTOCK_ROUNDS (default 2000) is the number of random streams. */
#include "base/clock.h"
#include "base/random.h"
#include "tools/bench_client.h"
#include "tools/bench_stream.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static uint64_t rounds(void)
{
	const char *text = getenv("PENSTOCK_ROUNDS");

	return text ? strtoull(text, NULL, 10) : 2000;
}

/* ---- events ---------------------------------------------------------------------------------------------------------- */

static enum status note_event(void *context, const char *data, size_t len, struct error *error)
{
	struct buf *out = context;

	(void)error;
	ck_assert_int_eq(buf_append(out, "<", 1), STATUS_OK);
	ck_assert_int_eq(buf_append(out, data, len), STATUS_OK);
	return buf_append(out, ">", 1);
}

static const struct {
	const char *bytes, *events;
} sse_cases[] = {
	{ "data: a\n\n", "<a>" },
	{ "data:a\n\ndata:  b\n\n", "<a>< b>" },
	{ "data: a\r\n\r\ndata: b\r\rdata: c\n\n", "<a><b><c>" },
	{ "data: a\r\ndata: b\n\n", "<a\nb>" },
	{ "data\n\n", "<>" },
	{ "data:\n\ndata: \n\n", "<><>" },
	{ "data\ndata\n\n", "<\n>" },
	{ ": comment\n\n\n\ndata: a\n: inside\nevent: x\nid: 5\nretry\n\n", "<a>" },
	{ "database: no\ndatum: no\n\ndata: yes\n\n", "<yes>" },
	{ "data: cut off", "" },
	{ "data: cut off\n", "" },
	{ "\xef\xbb\xbf" "data: bom\n\n", "<bom>" },
	{ "data: a\n\xef\xbb\xbf" "data: b\n\n", "<a>" },
	{ "\n\ndata: a\n\n", "<a>" },
	{ "event: only\n\ndata: a\n\n", "<a>" },
};

START_TEST(sse_any_cut)
{
	size_t len = strlen(sse_cases[_i].bytes);

	for (size_t first = 0; first <= len; first++) {
		for (size_t second = first; second <= len; second++) {
			size_t           cuts[] = { 0, first, second, len };
			struct bench_sse sse;
			struct buf       out;

			bench_sse_init(&sse);
			buf_init(&out, 4096);
			for (unsigned i = 0; i < 3; i++)
				ck_assert_int_eq(bench_sse_push(&sse, sse_cases[_i].bytes + cuts[i], cuts[i + 1] - cuts[i], note_event, &out, NULL),
				    STATUS_OK);
			ck_assert_str_eq(out.len ? out.data : "", sse_cases[_i].events);
			buf_free(&out);
			bench_sse_free(&sse);
		}
	}
}
END_TEST

/* A line, or an event of many lines, without end is refused at the limit and costs no more than that. */
START_TEST(sse_limits)
{
	for (int lines = 0; lines < 2; lines++) {
		struct bench_sse sse;
		struct error     error;
		struct buf       out;
		char             piece[4096];
		size_t           pushed = 0;
		enum status      status = STATUS_OK;

		memset(piece, 'x', sizeof piece);
		memcpy(piece, "data: ", 6);
		if (lines)
			piece[sizeof piece - 1] = '\n';
		bench_sse_init(&sse);
		buf_init(&out, 4096);
		while (!status && pushed < 4u * BENCH_SSE_EVENT_MAX) {
			status = bench_sse_push(&sse, piece, sizeof piece, note_event, &out, &error);
			pushed += sizeof piece;
		}
		ck_assert_int_eq(status, STATUS_LIMIT);
		ck_assert_ptr_nonnull(strstr(error.message, lines ? "an event" : "a line"));
		ck_assert_uint_le(pushed, BENCH_SSE_EVENT_MAX + 16384);
		ck_assert_uint_le(sse.line.capacity + sse.data.capacity, 2u * BENCH_SSE_EVENT_MAX + 16);
		buf_free(&out);
		bench_sse_free(&sse);
	}
}
END_TEST

/* ---- answers --------------------------------------------------------------------------------------------------------- */

static const char answer[] =
    ": waiting\n\n"
    "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}], \"usage\": null}\n\n"
    "data: {\"choices\": [{\"delta\": {\"content\": \"caf\xc3\xa9\"}, \"finish_reason\": null}], \"usage\": null}\r\n\r\n"
    "data: {\"choices\": [{\"delta\": {\"content\": \"data: [DONE]\\n\\n\"}}]}\n\n"
    "data: {\"choices\": [{\"delta\": {\"reasoning_content\": \"r\"}}]}\n\n"
    "data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}\n\n"
    "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 11, \"completion_tokens\": 6, "
    "\"prompt_tokens_details\": {\"cached_tokens\": 4}}}\n\n"
    "data: [DONE]\n\n"
    "data: {\"error\": \"after the end\"}\n\n";

static void check_answer(const struct bench_stream *stream)
{
	ck_assert(stream->done && stream->has_usage && stream->finished && !stream->refused);
	ck_assert_uint_eq(stream->events, 6);
	ck_assert_uint_eq(stream->chunks, 3);
	ck_assert_uint_eq(stream->prompt_tokens, 11);
	ck_assert_uint_eq(stream->output_tokens, 6);
	ck_assert_uint_eq(stream->cached_tokens, 4);
}

START_TEST(answer_byte_by_byte)
{
	struct bench_stream stream;
	struct error        error;

	for (size_t step = 1; step < sizeof answer; step += step < 40 ? 1 : 37) {
		bench_stream_init(&stream);
		for (size_t at = 0; at < sizeof answer - 1; at += step) {
			size_t n = sizeof answer - 1 - at < step ? sizeof answer - 1 - at : step;
			ck_assert_int_eq(bench_stream_push(&stream, answer + at, n, CLOCK_NS_PER_S + at * 1000, &error), STATUS_OK);
		}
		check_answer(&stream);
		bench_stream_free(&stream);
	}
}
END_TEST

/* The times are those of the pushes that completed the events. */
START_TEST(answer_times)
{
	struct bench_stream stream;
	struct error        error;
	uint64_t            ends[7], now = 0;
	unsigned            count = 0;

	bench_stream_init(&stream);
	for (size_t at = 0; at < sizeof answer - 1; at++) {
		uint32_t before = stream.events;
		now = CLOCK_NS_PER_S * 5 + at * CLOCK_NS_PER_MS;
		ck_assert_int_eq(bench_stream_push(&stream, answer + at, 1, now, &error), STATUS_OK);
		if (stream.events > before)
			ends[count++] = now;
	}
	ck_assert_uint_eq(count, 6);
	ck_assert_uint_eq(stream.first_ns, ends[1]); /* not the role */
	ck_assert_uint_eq(stream.last_ns, ends[5]);  /* the usage, not [DONE] */
	ck_assert_double_eq_tol(stream.itl_s[0], (double)(ends[2] - ends[1]) / 1e9, 1e-12);
	ck_assert_double_eq_tol(stream.itl_s[1], (double)(ends[3] - ends[2]) / 1e9, 1e-12);
	bench_stream_free(&stream);
}
END_TEST

static const struct {
	const char *bytes, *says;
	enum status status;
	bool        refused;
} bad_answers[] = {
	{ "data: {\"error\": {\"message\": \"out of blocks\"}}\n\n", "out of blocks", STATUS_UNAVAILABLE, true },
	{ "data: {\"error\": \"short\"}\n\n", "short", STATUS_UNAVAILABLE, true },
	{ "data: {\"error\": {}}\n\n", "without a message", STATUS_UNAVAILABLE, true },
	{ "data: {\"error\": 5}\n\n", "without a message", STATUS_UNAVAILABLE, true },
	{ "data: nonsense\n\n", "event 1", STATUS_BAD_JSON, false },
	{ "data: \n\n", "event 1", STATUS_BAD_JSON, false },
	{ "data: {\"a\": 1} {}\n\n", "event 1", STATUS_BAD_JSON, false },
	{ "data: {\"a\": 1, \"a\": 2}\n\n", "duplicate", STATUS_BAD_JSON, false },
	{ "data: {\"a\": \"\xff\"}\n\n", "event 1", STATUS_BAD_JSON, false },
	{ "data: {\"choices\": {}}\n\n", "choices is an object", STATUS_INVALID, false },
	{ "data: {\"usage\": {\"prompt_tokens\": -1}}\n\n", "usage.prompt_tokens", STATUS_INVALID, false },
	{ "data: {\"usage\": {\"completion_tokens\": 1.5}}\n\n", "usage.completion_tokens", STATUS_INVALID, false },
	{ "data: {\"usage\": {\"completion_tokens\": 99999999999}}\n\n", "usage.completion_tokens", STATUS_INVALID, false },
	{ "data: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]\n\n", "nested deeper than 32",
	     STATUS_LIMIT, false },
};

START_TEST(answer_refused)
{
	struct bench_stream stream;
	struct error        error;

	bench_stream_init(&stream);
	ck_assert_int_eq(bench_stream_push(&stream, bad_answers[_i].bytes, strlen(bad_answers[_i].bytes), 1, &error),
	    bad_answers[_i].status);
	ck_assert_msg(strstr(error.message, bad_answers[_i].says) != NULL, "%s", error.message);
	ck_assert(stream.refused == bad_answers[_i].refused && !stream.done);
	bench_stream_free(&stream);
}
END_TEST

/* Odd shapes that are no errors. */
START_TEST(answer_odd_shapes)
{
	static const char bytes[] =
	    "data: {}\n\n"
	    "data: {\"error\": null, \"choices\": null, \"usage\": {\"prompt_tokens\": null}}\n\n"
	    "data: {\"choices\": [1, null, {}, {\"delta\": 5}, {\"delta\": {\"content\": 5, \"tool_calls\": {}}}]}\n\n"
	    "data: {\"choices\": [{\"text\": \"a\"}, {\"text\": \"b\"}]}\n\n"
	    "data: {\"choices\": [{\"delta\": {\"tool_calls\": [{}]}}]}\n\n"
	    "data: [DONE]\n\n";
	struct bench_stream stream;
	struct error        error;

	bench_stream_init(&stream);
	ck_assert_int_eq(bench_stream_push(&stream, bytes, sizeof bytes - 1, 1, &error), STATUS_OK);
	ck_assert(stream.done && stream.events == 5 && stream.chunks == 2);
	bench_stream_free(&stream);
}
END_TEST

/* A stream of random pieces, damaged here and there, in two random cuttings: the same end, and never a crash. */
START_TEST(any_bytes_any_cuts)
{
	static const char *const pieces[] = { "data: ", "data:", "{\"choices\": [{\"delta\": {\"content\": \"x\"}}]}", "\n", "\n\n",
		"\r\n\r\n", "\r", "[DONE]", ": c", "{}", "{", "{\"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": 2}}",
		"\xef\xbb\xbf", "{\"error\": 1}" };
	struct random random = { 5 };

	for (uint64_t round = 0; round < rounds(); round++) {
		char                bytes[4096];
		size_t              len = 0;
		struct bench_stream streams[2];
		enum status         ends[2];
		struct error        error;

		for (uint32_t n = random_below(&random, 40); n > 0 && len < sizeof bytes - 128; n--) {
			const char *piece = pieces[random_below(&random, sizeof pieces / sizeof pieces[0])];
			memcpy(bytes + len, piece, strlen(piece));
			len += strlen(piece);
			if (!random_below(&random, 30))
				bytes[len++] = (char)random_below(&random, 256);
		}
		for (int s = 0; s < 2; s++) {
			size_t at = 0;

			bench_stream_init(&streams[s]);
			ends[s] = STATUS_OK;
			while (at < len && !ends[s]) {
				size_t n = 1 + random_below(&random, s ? 64 : 3);
				n = n < len - at ? n : len - at;
				ends[s] = bench_stream_push(&streams[s], bytes + at, n, 1, &error);
				at += n;
			}
		}
		ck_assert_int_eq(ends[0], ends[1]);
		ck_assert_uint_eq(streams[0].events, streams[1].events);
		ck_assert_uint_eq(streams[0].chunks, streams[1].chunks);
		ck_assert_uint_eq(streams[0].output_tokens, streams[1].output_tokens);
		ck_assert(streams[0].done == streams[1].done && streams[0].refused == streams[1].refused);
		bench_stream_free(&streams[0]);
		bench_stream_free(&streams[1]);
	}
}
END_TEST

START_TEST(error_bodies)
{
	static const struct {
		const char *body, *text;
	} cases[] = {
		{ "{\"error\": {\"message\": \"m\", \"code\": 5}}", "m" }, { "{\"error\": \"e\"}", "e" }, { "{\"message\": \"x\"}", "x" },
		{ "{\"detail\": \"d\"}", "d" }, { "{\"detail\": [{\"loc\": 1}]}", "" }, { "{}", "" }, { "[]", "" }, { "", "" },
		{ "<html>", "" },
		{ "{\"error\": {\"message\": 5}}", "" },
	};
	char text[8];

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		bench_stream_error_text(cases[i].body, strlen(cases[i].body), text, sizeof text);
		ck_assert_str_eq(text, cases[i].text);
	}
	bench_stream_error_text("{\"error\": \"0123456789\"}", 23, text, sizeof text);
	ck_assert_str_eq(text, "0123456");
}
END_TEST

/* What a stranger says cannot steer a terminal. */
START_TEST(clean_text)
{
	static const char *const cases[][2] = {
		{ "plain caf\xc3\xa9 \xf0\x9f\x98\x80", "plain caf\xc3\xa9 \xf0\x9f\x98\x80" }, { "\x1b[31mred\x07\n", "?[31mred??" },
		{ "a\xff\xfe" "b", "a??b" }, { "\xc2\x9b" "31m", "?31m" }, { "cut \xe4\xbd", "cut ?" }, { "\x7f", "?" }, { "", "" },
	};

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char text[64];
		snprintf(text, sizeof text, "%s", cases[i][0]);
		bench_clean_text(text);
		ck_assert_str_eq(text, cases[i][1]);
	}
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("bench_stream");
	TCase   *tcase = tcase_create("core");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 120);
	tcase_add_loop_test(tcase, sse_any_cut, 0, sizeof sse_cases / sizeof sse_cases[0]);
	tcase_add_test(tcase, sse_limits);
	tcase_add_test(tcase, answer_byte_by_byte);
	tcase_add_test(tcase, answer_times);
	tcase_add_loop_test(tcase, answer_refused, 0, sizeof bad_answers / sizeof bad_answers[0]);
	tcase_add_test(tcase, answer_odd_shapes);
	tcase_add_test(tcase, any_bytes_any_cuts);
	tcase_add_test(tcase, error_bodies);
	tcase_add_test(tcase, clean_text);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
