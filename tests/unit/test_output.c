/* Reading answers: thoughts, content and calls of every format; the same whatever pieces they come in. */
#include "api/answer.h"
#include "base/random.h"
#include "support/output_cases.h"
#include "support/output_reader.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct output_tools *tools;

static void setup(void)
{
	json_t *list = json_loads(OUTPUT_CASE_TOOLS, 0, NULL);

	ck_assert_ptr_nonnull(list);
	ck_assert_int_eq(output_tools_create(list, &tools), STATUS_OK);
	json_decref(list);
}

static void teardown(void) { output_tools_free(tools); }

static void begin(struct answer *a, const struct output_case *c, struct output_format *format)
{
	static const char *const calls[] = { "none", "glm4", "glm45", "hermes", "llama3", "mistral", "deepseek" };
	static const char *const thoughts[] = { "none", "think", "mistral" };
	struct error             error;

	ck_assert_int_eq(output_format_detect(NULL, NULL, calls[c->calls], thoughts[c->thought], format, &error), STATUS_OK);
	answer_init(a, 1 << 20);
	answer_begin(a, format, tools, c->start, true);
}

static void compare(const struct output_case *c, const struct output_said *said, const char *how)
{
	ck_assert_msg(!strcmp(said->thought.data, c->want_thought), "%s, %s: thought \"%s\", wanted \"%s\"", c->name, how,
	    said->thought.data, c->want_thought);
	ck_assert_msg(!strcmp(said->content.data, c->want_content), "%s, %s: content \"%s\", wanted \"%s\"", c->name, how,
	    said->content.data, c->want_content);
	ck_assert_msg(!strcmp(said->calls.data, c->want_calls), "%s, %s: calls \"%s\", wanted \"%s\"", c->name, how, said->calls.data,
	    c->want_calls);
	ck_assert_msg(said->valid || c->cut, "%s, %s: arguments are no JSON: %s", c->name, how, said->calls.data);
}

/* Feeds the text of C cut before the bytes CUTS (ascending, ended by SIZE_MAX); STREAM: taken away after each piece. */
static void run(const struct output_case *c, const size_t *cuts, bool stream, const char *how)
{
	struct output_format format;
	struct answer        a;
	struct output_said   said;
	size_t               at = 0, len = strlen(c->text);
	uint32_t             tokens = 0;

	begin(&a, c, &format);
	output_said_init(&said);
	while (at < len) {
		size_t end = *cuts < len ? *cuts++ : len;

		if (end > at)
			ck_assert_int_eq(answer_text(&a, c->text + at, end - at, ++tokens), STATUS_OK);
		at = end > at ? end : at;
		if (stream)
			ck_assert_ptr_null(output_said_take(&said, &a));
	}
	ck_assert_int_eq(answer_finish(&a, !c->cut), STATUS_OK);
	ck_assert_ptr_null(output_said_take(&said, &a));
	output_said_end(&said);
	compare(c, &said, how);
	output_said_free(&said);
	answer_free(&a);
}

START_TEST(whole)
{
	const size_t none[] = { SIZE_MAX };

	run(&output_cases[_i], none, false, "whole");
}
END_TEST

START_TEST(bytes)
{
	size_t cuts[2048], n = 0;

	for (; n < strlen(output_cases[_i].text); n++)
		cuts[n] = n;
	cuts[n] = SIZE_MAX;
	run(&output_cases[_i], cuts, true, "byte by byte, streamed");
	run(&output_cases[_i], cuts, false, "byte by byte, whole");
}
END_TEST

START_TEST(one_cut)
{
	for (size_t i = 0; i < strlen(output_cases[_i].text); i++) {
		const size_t cuts[] = { i, SIZE_MAX };
		char         how[64];

		snprintf(how, sizeof how, "cut at %zu", i);
		run(&output_cases[_i], cuts, true, how);
	}
}
END_TEST

START_TEST(two_cuts)
{
	for (size_t i = 0; i < strlen(output_cases[_i].text); i++) {
		for (size_t k = i + 1; k < strlen(output_cases[_i].text); k++) {
			const size_t cuts[] = { i, k, SIZE_MAX };
			char         how[64];

			snprintf(how, sizeof how, "cut at %zu and %zu", i, k);
			run(&output_cases[_i], cuts, true, how);
		}
	}
}
END_TEST

/* 20,000 random cuts of the whole table; PENSTOCK_OUTPUT_CUTS for more. */
START_TEST(random_cuts)
{
	const char   *wanted = getenv("PENSTOCK_OUTPUT_CUTS");
	unsigned long count = wanted ? strtoul(wanted, NULL, 10) : 20000;
	struct random random = { 10 };

	for (unsigned long i = 0; i < count; i++) {
		const struct output_case *c = &output_cases[random_below(&random, OUTPUT_CASES)];
		size_t                    cuts[64], n = 0, at = 0, step = 1 + random_below(&random, 24);

		while (n < 62 && at < strlen(c->text)) {
			at += random_below(&random, (uint32_t)step) + 1;
			cuts[n++] = at;
		}
		cuts[n] = SIZE_MAX;
		run(c, cuts, random_below(&random, 2), "random cuts");
	}
}
END_TEST

/* ---- which format ---- */

/* The formats that a directory with TEMPLATE as its chat template is found to have. */
static struct output_format detect(const char *template)
{
	char                  directory[] = "/tmp/penstock-output-XXXXXX", path[128];
	struct output_format  format;
	struct chat_template *chat;
	struct error          error;
	FILE                 *file;

	ck_assert_ptr_nonnull(mkdtemp(directory));
	snprintf(path, sizeof path, "%s/chat_template.jinja", directory);
	file = fopen(path, "we");
	ck_assert_ptr_nonnull(file);
	fputs(template, file);
	fclose(file);
	ck_assert_msg(chat_template_from_directory(directory, NULL, &chat, &error) == STATUS_OK, "%s", error.message);
	ck_assert_msg(output_format_detect(chat, NULL, "auto", "auto", &format, &error) == STATUS_OK, "%s", error.message);
	chat_template_free(chat);
	unlink(path);
	rmdir(directory);
	return format;
}

START_TEST(formats_are_found_in_the_models_templates)
{
	static const struct {
		const char *file, *calls, *thought;
	} shipped[] = { { "glm-4-9b-chat", "glm4", "none" }, { "glm-4-0414", "glm4", "none" }, { "glm-z1", "glm4", "think" },
		{ "glm-4.5", "glm45", "think" }, { "glm-4.7", "glm45", "think" }, { "glm-5.1", "glm45", "think" },
		{ "glm-5.2", "glm45", "think" } };
	const char *root = getenv("abs_top_srcdir");

	for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
		static char          text[1 << 16];
		char                 path[4096];
		struct output_format format;
		FILE                *file;

		snprintf(path, sizeof path, "%s/src/text/templates/%s.jinja", root ? root : ".", shipped[i].file);
		file = fopen(path, "re");
		ck_assert_msg(file != NULL, "%s", path);
		text[fread(text, 1, sizeof text - 1, file)] = '\0';
		fclose(file);
		format = detect(text);
		ck_assert_str_eq(output_format_calls_name(&format), shipped[i].calls);
		ck_assert_str_eq(output_format_thought_name(&format), shipped[i].thought);
	}
}
END_TEST

START_TEST(formats_are_found_by_their_marks)
{
	static const struct {
		const char *template, *calls, *thought;
	} known[] = { { "{{ '<tool_call>\\n{\"name\": <function-name>}\\n</tool_call>' }}", "hermes", "none" },
		{ "{{ '<|start_header_id|>' }}{{ tools }}{{ '<|python_tag|>' }}", "llama3", "none" },
		{ "{{ '[TOOL_CALLS]' }}{{ '[THINK]' }}", "mistral", "mistral" },
		{ "{{ '" DS_CALL "' }}{{ '</think>' }}", "deepseek", "think" }, { "{{ 'hello' }}", "hermes", "none" } };
	struct output_format format;
	struct error         error;

	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		format = detect(known[i].template);
		ck_assert_str_eq(output_format_calls_name(&format), known[i].calls);
		ck_assert_str_eq(output_format_thought_name(&format), known[i].thought);
	}
	ck_assert_int_eq(output_format_detect(NULL, NULL, "glm46", "auto", &format, &error), STATUS_INVALID);
	ck_assert_int_eq(output_format_detect(NULL, NULL, "auto", "thick", &format, &error), STATUS_INVALID);
}
END_TEST

/* ---- stop strings, tokens, markers that are tokens ---- */

/* An answer in FORMAT with one stop string. */
static void begin_with_stop(struct answer *a, struct output_format *format, const char *calls, const char *stop,
    enum chat_reasoning start)
{
	struct error error;

	ck_assert_int_eq(output_format_detect(NULL, NULL, calls, "think", format, &error), STATUS_OK);
	answer_init(a, 1 << 20);
	if (stop)
		ck_assert_int_eq(stop_add(&a->stop, stop, strlen(stop)), STATUS_OK);
	answer_begin(a, format, tools, start, true);
}

static uint32_t feed_tokens(struct answer *a, const char *const *tokens)
{
	uint32_t count = 0;

	for (; *tokens; tokens++)
		ck_assert_int_eq(answer_text(a, *tokens, strlen(*tokens), ++count), STATUS_OK);
	return count;
}

START_TEST(r13_stops_do_not_look_into_the_thought)
{
	static const char *const tokens[] = { "a,", "b,c", "</th", "ink>", "x ", "b", ",c", " y", NULL };
	struct output_format     format;
	struct answer            a;

	begin_with_stop(&a, &format, "hermes", "b,c", CHAT_REASONING_OPEN);
	feed_tokens(&a, tokens);
	ck_assert(a.stop.matched);
	ck_assert_str_eq(a.thought.data, "a,b,c");
	ck_assert_str_eq(a.content.data, "x ");
	ck_assert_uint_eq(a.keep, 5);
	ck_assert_uint_eq(a.output.thought_tokens, 2);
	answer_free(&a);
}
END_TEST

/* What is kept begins behind the thought, though no content does. */
START_TEST(a_stop_at_once_keeps_the_thought)
{
	static const char *const tokens[] = { "Hm", "</think>", "\n\n", "b,", "c", NULL };
	struct output_format     format;
	struct answer            a;

	begin_with_stop(&a, &format, "hermes", "b,c", CHAT_REASONING_OPEN);
	feed_tokens(&a, tokens);
	ck_assert(a.stop.matched);
	ck_assert_uint_eq(a.content.len, 0);
	ck_assert_uint_eq(a.keep, 3);
	answer_free(&a);
}
END_TEST

/* A stop string that is the white space behind a thought does not end the answer before it begins. */
START_TEST(a_stop_of_newlines_behind_the_thought)
{
	static const char *const tokens[] = { "Hm", "</think>", "\n\n", "Yes.", "\n\n", "More", NULL };
	struct output_format     format;
	struct answer            a;

	begin_with_stop(&a, &format, "hermes", "\n\n", CHAT_REASONING_OPEN);
	feed_tokens(&a, tokens);
	ck_assert(a.stop.matched);
	ck_assert_str_eq(a.content.data, "Yes.");
	ck_assert_uint_eq(a.keep, 4);
	answer_free(&a);
}
END_TEST

START_TEST(stops_do_not_look_into_calls_nor_across)
{
	static const char *const tokens[] = { "ab", "<tool_call>", "fx<arg_key>path</arg_key><arg_value>abab",
		"</arg_value></tool_call>", "ab a", "ba", "b", NULL };
	struct output_format     format;
	struct answer            a;

	begin_with_stop(&a, &format, "glm45", "abab", CHAT_REASONING_NONE);
	feed_tokens(&a, tokens);
	ck_assert(a.stop.matched);
	ck_assert_str_eq(a.content.data, "abab ");
	ck_assert_uint_eq(a.call_count, 1);
	ck_assert_str_eq(a.calls[0].arguments.data, "{\"path\": \"abab\"}");
	ck_assert_uint_eq(a.keep, 5);
	answer_free(&a);
}
END_TEST

/* Bytes that were held as the beginning of a marker belong to the token that brought them. */
START_TEST(held_bytes_keep_their_token)
{
	static const char *const tokens[] = { "a", " <", "STOP", NULL };
	struct output_format     format;
	struct answer            a;

	begin_with_stop(&a, &format, "hermes", "STOP", CHAT_REASONING_NONE);
	feed_tokens(&a, tokens);
	ck_assert(a.stop.matched);
	ck_assert_str_eq(a.content.data, "a <");
	ck_assert_uint_eq(a.keep, 2);
	answer_free(&a);
}
END_TEST

START_TEST(the_stop_string_may_be_included)
{
	static const char *const tokens[] = { "ab", "cST", "OPx", NULL };
	struct output_format     format;
	struct answer            a;

	begin_with_stop(&a, &format, "hermes", "STOP", CHAT_REASONING_NONE);
	a.stop.include = true;
	feed_tokens(&a, tokens);
	ck_assert(a.stop.matched);
	ck_assert_str_eq(a.content.data, "abcSTOP");
	ck_assert_uint_eq(a.keep, 3);
	answer_free(&a);
}
END_TEST

START_TEST(a_long_stop_string_does_not_delay_text)
{
	char                 stop[201];
	struct output_format format;
	struct answer        a;

	memset(stop, 's', 200);
	stop[200] = '\0';
	begin_with_stop(&a, &format, "hermes", stop, CHAT_REASONING_NONE);
	ck_assert_int_eq(answer_text(&a, "Hello", 5, 1), STATUS_OK);
	ck_assert_uint_eq(a.content_ready, 5);
	ck_assert_int_eq(answer_text(&a, " sss", 4, 2), STATUS_OK);
	ck_assert_uint_eq(a.content_ready, 5); /* the blank: a call may follow */
	ck_assert_int_eq(answer_text(&a, "t", 1, 3), STATUS_OK);
	ck_assert_uint_eq(a.content_ready, 10);
	answer_free(&a);
}
END_TEST

/* Once a mark came as a token, its family is no longer looked for in spelled text. */
START_TEST(marks_that_came_as_tokens)
{
	static const char    value[] = "</arg_value></tool_call>";
	struct output_format format;
	struct answer        a;

	begin_with_stop(&a, &format, "glm45", NULL, CHAT_REASONING_NONE);
	answer_marker(&a, OUTPUT_THINK_OPEN, 1);
	answer_text(&a, "a </think> b", 12, 2);
	answer_marker(&a, OUTPUT_THINK_CLOSE, 3);
	answer_marker(&a, OUTPUT_CALL_OPEN, 4);
	answer_text(&a, "fx", 2, 5);
	answer_marker(&a, OUTPUT_KEY_OPEN, 6);
	answer_text(&a, "path", 4, 7);
	answer_marker(&a, OUTPUT_KEY_CLOSE, 8);
	answer_marker(&a, OUTPUT_VALUE_OPEN, 9);
	answer_text(&a, value, strlen(value), 10);
	answer_marker(&a, OUTPUT_VALUE_CLOSE, 11);
	answer_marker(&a, OUTPUT_CALL_CLOSE, 12);
	ck_assert_int_eq(answer_finish(&a, true), STATUS_OK);
	ck_assert_str_eq(a.thought.data, "a </think> b");
	ck_assert_uint_eq(a.content.len, 0);
	ck_assert_uint_eq(a.call_count, 1);
	ck_assert_str_eq(a.calls[0].arguments.data, "{\"path\": \"</arg_value></tool_call>\"}");
	ck_assert_uint_eq(a.output.thought_tokens, 1);
	answer_free(&a);
}
END_TEST

/* A model that forgets to close its thought before it calls. */
START_TEST(a_call_token_ends_the_thought)
{
	struct output_format format;
	struct answer        a;

	begin_with_stop(&a, &format, "glm45", NULL, CHAT_REASONING_OPEN);
	answer_text(&a, "I look.\n", 8, 1);
	answer_marker(&a, OUTPUT_CALL_OPEN, 2);
	answer_text(&a, "now", 3, 3);
	answer_marker(&a, OUTPUT_CALL_CLOSE, 4);
	ck_assert_int_eq(answer_finish(&a, true), STATUS_OK);
	ck_assert_str_eq(a.thought.data, "I look.");
	ck_assert_uint_eq(a.call_count, 1);
	ck_assert_str_eq(a.calls[0].name, "now");
	answer_free(&a);
}
END_TEST

START_TEST(one_call_only)
{
	static const char *const tokens[] = { "<tool_call>now</tool", "_call>", "<tool_call>fx", "</tool_call> text", NULL };
	struct output_format     format;
	struct answer            a;

	begin_with_stop(&a, &format, "glm45", NULL, CHAT_REASONING_NONE);
	a.calls_max = 1;
	feed_tokens(&a, tokens);
	ck_assert(answer_ended(&a) && !a.stop.matched);
	ck_assert_uint_eq(a.call_count, 1);
	ck_assert_uint_eq(a.content.len, 0);
	ck_assert_uint_eq(a.keep, 2);
	answer_free(&a);
}
END_TEST

/* As many calls as an answer may make, and then its end. */
START_TEST(many_calls)
{
	struct output_format format;
	struct answer        a;

	begin_with_stop(&a, &format, "glm45", NULL, CHAT_REASONING_NONE);
	for (uint32_t i = 0; i < ANSWER_CALLS_MAX + 10; i++)
		ck_assert_int_eq(answer_text(&a, "<tool_call>now</tool_call>", 26, i + 1), STATUS_OK);
	ck_assert(answer_ended(&a));
	ck_assert_uint_eq(a.call_count, ANSWER_CALLS_MAX);
	ck_assert_uint_eq(a.keep, ANSWER_CALLS_MAX);
	answer_free(&a);
}
END_TEST

/* More than a call may hold before it is one: it is text. */
START_TEST(a_call_that_never_is_one)
{
	static char          blanks[1 << 16];
	struct output_format format;
	struct answer        a;

	memset(blanks, ' ', sizeof blanks);
	begin_with_stop(&a, &format, "hermes", NULL, CHAT_REASONING_NONE);
	a.content.max = 8 << 20;
	ck_assert_int_eq(answer_text(&a, "<tool_call>", 11, 1), STATUS_OK);
	for (uint32_t i = 0; i < 20; i++)
		ck_assert_int_eq(answer_text(&a, blanks, sizeof blanks, i + 2), STATUS_OK);
	ck_assert_int_eq(answer_finish(&a, true), STATUS_OK);
	ck_assert_uint_eq(a.call_count, 0);
	ck_assert_uint_eq(a.content.len, 11 + 20 * sizeof blanks);
	answer_free(&a);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("output");
	TCase   *cases = tcase_create("table");
	SRunner *runner;
	int      failed;

	tcase_add_checked_fixture(cases, setup, teardown);
	tcase_set_timeout(cases, 120);
	tcase_add_loop_test(cases, whole, 0, OUTPUT_CASES);
	tcase_add_loop_test(cases, bytes, 0, OUTPUT_CASES);
	tcase_add_loop_test(cases, one_cut, 0, OUTPUT_CASES);
	tcase_add_loop_test(cases, two_cuts, 0, OUTPUT_CASES);
	tcase_add_test(cases, random_cuts);
	tcase_add_test(cases, formats_are_found_in_the_models_templates);
	tcase_add_test(cases, formats_are_found_by_their_marks);
	tcase_add_test(cases, r13_stops_do_not_look_into_the_thought);
	tcase_add_test(cases, a_stop_at_once_keeps_the_thought);
	tcase_add_test(cases, a_stop_of_newlines_behind_the_thought);
	tcase_add_test(cases, stops_do_not_look_into_calls_nor_across);
	tcase_add_test(cases, held_bytes_keep_their_token);
	tcase_add_test(cases, the_stop_string_may_be_included);
	tcase_add_test(cases, a_long_stop_string_does_not_delay_text);
	tcase_add_test(cases, marks_that_came_as_tokens);
	tcase_add_test(cases, a_call_token_ends_the_thought);
	tcase_add_test(cases, one_call_only);
	tcase_add_test(cases, many_calls);
	tcase_add_test(cases, a_call_that_never_is_one);
	suite_add_tcase(suite, cases);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
