/* Unit tests of the simulator's inputs: traces, cost files, generated traces, and of its histogram. */
#include "tools/sim_cost.h"
#include "tools/sim_generate.h"
#include "tools/sim_histogram.h"
#include "tools/sim_trace.h"

#include "base/random.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum status read_bytes(const char *bytes, size_t size, struct sim_trace *ret, struct error *error)
{
	FILE       *stream = fmemopen((void *)(uintptr_t)bytes, size ? size : 1, "r");
	enum status status;

	ck_assert_ptr_nonnull(stream);
	if (!size)
		ck_assert_int_eq(getc(stream), bytes[0]);
	ck_assert_int_eq(sim_trace_init(ret), STATUS_OK);
	status = sim_trace_read(stream, "t.csv", ret, error);
	fclose(stream);
	return status;
}

static enum status read_text(const char *text, struct sim_trace *ret, struct error *error)
{
	return read_bytes(text, strlen(text), ret, error);
}

START_TEST(columns_come_in_any_order_and_lines_in_any_time)
{
	struct sim_trace trace;
	struct error     error;

	ck_assert_msg(read_text("\xef\xbb\xbfkey, output_tokens,arrival_s,class,prompt_tokens,cancel_after_s,shared_prefix_id,"
	                        "shared_prefix_tokens\r\n"
	                        "\"a,\"\"b\"\"\",7,2.5,-3,100,0.25,sys,40\r\n"
	                        "\n"
	                        ",1,1e-3,,1,,,\n"
	                        "17,16777216,0.001,5,16777216,0,sys,0",
	                  &trace, &error) == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(trace.count, 3);
	ck_assert_uint_eq(trace.requests[0].arrival_ns, 1000000); /* equal times in the order of the file */
	ck_assert_uint_eq(trace.requests[0].key, 0);
	ck_assert_int_eq(trace.requests[0].class, 0);
	ck_assert_uint_eq(trace.requests[0].cancel_ns, SIM_NEVER);
	ck_assert_uint_eq(trace.requests[0].prefix, 0);
	ck_assert_str_eq(trace.keys.names[trace.requests[1].key], "17");
	ck_assert_uint_eq(trace.requests[1].cancel_ns, 0);
	ck_assert_uint_eq(trace.requests[1].output_tokens, SIM_TOKENS_MAX);
	ck_assert_uint_eq(trace.requests[2].arrival_ns, 2500000000);
	ck_assert_str_eq(trace.keys.names[trace.requests[2].key], "a,\"b\"");
	ck_assert_int_eq(trace.requests[2].class, -3);
	ck_assert_uint_eq(trace.requests[2].cancel_ns, 250000000);
	ck_assert_uint_eq(trace.requests[2].prefix_tokens, 40);
	ck_assert_uint_eq(trace.requests[2].prefix, trace.requests[1].prefix);
	sim_trace_free(&trace);
}
END_TEST

#define HEAD "arrival_s,prompt_tokens,output_tokens,key,class,shared_prefix_tokens,cancel_after_s\n"

static const struct {
	const char *text;
	const char *words; /* of the message, in this order, separated by | */
} bad_traces[] = {
	{ "", "t.csv|empty" },
	{ "arrival_s,prompt_tokens\n", "t.csv: line 1|output_tokens is missing" },
	{ "arrival_s,prompt_tokens,output_tokens,colour\n", "line 1, column 4|\"colour\"" },
	{ "arrival_s,key,key\n", "column 3|twice" },
	{ "a,b,c,d,e,f,g,h,i\n", "more than the 8" },
	{ HEAD "1,2,3\n", "line 2|3 fields|has 7" },
	{ HEAD "1,2,3,4,5,,,8,9\n", "line 2|more than 8 fields" },
	{ HEAD "\n0,1,1,,,,\n-1,2,3,,,,\n", "line 4, column arrival_s|\"-1\"|0…1e9" },
	{ HEAD "nan,2,3,,,,\n", "line 2, column arrival_s|\"nan\"" },
	{ HEAD "1e10,2,3,,,,\n", "column arrival_s|\"1e10\"" },
	{ HEAD "0x10,2,3,,,,\n", "column arrival_s|\"0x10\"" },
	{ HEAD "1,0,3,,,,\n", "column prompt_tokens|\"0\"|1…16777216" },
	{ HEAD "1,2,16777217,,,,\n", "column output_tokens|\"16777217\"|1…16777216" },
	{ HEAD "1,2.0,3,,,,\n", "column prompt_tokens|\"2.0\"" },
	{ HEAD "1,,3,,,,\n", "column prompt_tokens|\"\"" },
	{ HEAD "1,2,3,,2147483648,,\n", "column class|\"2147483648\"|2147483647" },
	{ HEAD "1,2,3,,,3,\n", "column shared_prefix_tokens: 3|prompt_tokens = 2" },
	{ HEAD "1,2,3,,,-1,\n", "column shared_prefix_tokens|\"-1\"|0…16777216" },
	{ HEAD "1,2,3,,,,soon\n", "column cancel_after_s|\"soon\"" },
	{ HEAD "1,2,3,\"k,,,\n", "line 2|no end" },
	{ HEAD "1,2,3,\"k\"x,,,\n", "line 2|after a quoted field" },
	{ HEAD "1,2,3,kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk,,,\n", "column key|64 bytes" },
};

static void find_words(const char *message, const char *words)
{
	const char *at = message;

	while (*words) {
		char   word[64];
		size_t len = strcspn(words, "|");

		memcpy(word, words, len);
		word[len] = '\0';
		at = strstr(at, word);
		ck_assert_msg(at, "\"%s\" is not in: %s", word, message);
		words += len + (words[len] == '|');
	}
}

START_TEST(a_bad_trace_is_refused_with_line_column_value_and_limit)
{
	struct sim_trace trace;
	struct error     error;

	ck_assert_int_ne(read_text(bad_traces[_i].text, &trace, &error), STATUS_OK);
	find_words(error.message, bad_traces[_i].words);
	ck_assert_ptr_null(strchr(error.message, '\n'));
	sim_trace_free(&trace);
}
END_TEST

START_TEST(a_long_line_and_a_nul_byte_are_refused)
{
	static const char head[] = "arrival_s,prompt_tokens,output_tokens,key\n0,1,1,";
	char             *text = malloc(sizeof head + SIM_LINE_MAX);
	struct sim_trace  trace;
	struct error      error;

	memcpy(text, head, sizeof head - 1);
	memset(text + sizeof head - 1, 'k', SIM_LINE_MAX);
	ck_assert_int_eq(read_bytes(text, sizeof head - 1 + SIM_LINE_MAX, &trace, &error), STATUS_LIMIT);
	find_words(error.message, "line 2|4096 bytes");
	sim_trace_free(&trace);
	ck_assert_int_eq(read_bytes("arrival_s,prompt_tokens,output_tokens\n1,2\0,3\n", 45, &trace, &error), STATUS_INVALID);
	find_words(error.message, "line 2|NUL");
	sim_trace_free(&trace);
	free(text);
}
END_TEST

static void same_traces(const struct sim_trace *a, const struct sim_trace *b)
{
	ck_assert_uint_eq(a->count, b->count);
	for (uint32_t i = 0; i < a->count; i++) {
		const struct sim_request *x = &a->requests[i], *y = &b->requests[i];

		ck_assert_uint_eq(x->arrival_ns, y->arrival_ns);
		ck_assert_uint_eq(x->cancel_ns, y->cancel_ns);
		ck_assert_uint_eq(x->prompt_tokens, y->prompt_tokens);
		ck_assert_uint_eq(x->prefix_tokens, y->prefix_tokens);
		ck_assert_uint_eq(x->output_tokens, y->output_tokens);
		ck_assert_int_eq(x->class, y->class);
		ck_assert_str_eq(a->keys.names[x->key], b->keys.names[y->key]);
		ck_assert_str_eq(a->prefixes.names[x->prefix], b->prefixes.names[y->prefix]);
	}
}

static void write_trace(const struct sim_trace *trace, char **ret, size_t *ret_size)
{
	FILE *stream = open_memstream(ret, ret_size);

	ck_assert_int_eq(sim_trace_write(trace, stream), STATUS_OK);
	ck_assert_int_eq(fclose(stream), 0);
}

static void generate_kind(const char *kind, uint64_t seed, uint32_t requests, struct sim_trace *ret)
{
	struct sim_generate values;
	struct error        error;

	ck_assert(sim_generate_preset(kind, &values));
	values.seed = seed;
	values.requests = requests;
	ck_assert_int_eq(sim_trace_init(ret), STATUS_OK);
	ck_assert_int_eq(sim_generate(&values, ret, &error), STATUS_OK);
}

static const char *const kinds[] = { "poisson", "bursty", "onoff", "chat", "mix", "backlog" };
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

START_TEST(a_generated_trace_reads_back_equal_and_depends_on_its_seed)
{
	struct sim_trace first, second, other;
	struct error     error;
	char            *text;
	size_t           size;

	generate_kind(kinds[_i], 5, 500, &first);
	write_trace(&first, &text, &size);
	ck_assert_int_eq(read_bytes(text, size, &second, &error), STATUS_OK);
	same_traces(&first, &second);
	sim_trace_free(&second);
	generate_kind(kinds[_i], 5, 500, &second);
	same_traces(&first, &second);
	generate_kind(kinds[_i], 6, 500, &other);
	ck_assert_uint_ne(first.requests[250].prompt_tokens * 1000003u + first.requests[251].prompt_tokens,
	    other.requests[250].prompt_tokens * 1000003u + other.requests[251].prompt_tokens);
	sim_trace_free(&first);
	sim_trace_free(&second);
	sim_trace_free(&other);
	free(text);
}
END_TEST

START_TEST(generated_traces_have_the_rate_and_shares_asked_for)
{
	struct sim_generate values;
	struct sim_trace    trace;
	struct error        error;
	uint32_t            long_ones = 0, cancelled = 0, first_key = 0;
	double              seconds;

	ck_assert(!sim_generate_preset("none", &values));
	ck_assert(sim_generate_preset(kinds[_i], &values));
	values.requests = 40000;
	values.rate = 50;
	values.long_share = 0.05;
	values.cancel_share = 0.1;
	values.cancel_s = 2;
	values.keys = 4;
	values.key_skew = 1;
	ck_assert_int_eq(sim_trace_init(&trace), STATUS_OK);
	ck_assert_int_eq(sim_generate(&values, &trace, &error), STATUS_OK);
	for (uint32_t i = 0; i < trace.count; i++) {
		const struct sim_request *request = &trace.requests[i];

		ck_assert(i == 0 || request->arrival_ns >= trace.requests[i - 1].arrival_ns);
		ck_assert_uint_ge(request->prompt_tokens, 1);
		ck_assert_uint_ge(request->output_tokens, 1);
		ck_assert_uint_le(request->prefix_tokens, request->prompt_tokens);
		long_ones += request->prompt_tokens > 11000;
		cancelled += request->cancel_ns != SIM_NEVER;
		first_key += strcmp(trace.keys.names[request->key], "k1") == 0;
	}
	seconds = (double)trace.requests[trace.count - 1].arrival_ns / 1e9;
	if (values.arrivals == SIM_AT_ONCE)
		ck_assert(seconds == 0);
	else
		ck_assert_msg(seconds > 600 && seconds < 1000, "%g s", seconds);
	ck_assert_msg(long_ones > 1700 && long_ones < 2300, "%u", long_ones);
	ck_assert_msg(cancelled > 3600 && cancelled < 4400, "%u", cancelled);
	ck_assert_msg(first_key > 18000 && first_key < 20500, "%u", first_key); /* 0.48 */
	sim_trace_free(&trace);
}
END_TEST

/* Files that were damaged at random are read or refused in one line; what is read keeps all limits and reads back equal. */
START_TEST(damaged_traces_are_refused_or_sound)
{
	struct random    random = { 11 };
	struct sim_trace trace;
	char            *text;
	size_t           size, accepted = 0;

	generate_kind("chat", 3, 12, &trace);
	write_trace(&trace, &text, &size);
	sim_trace_free(&trace);
	for (int round = 0; round < 4000; round++) {
		static const char bytes[] = ",,,\"\"\r\n\n\n0123456789.-+eE kx\t\xff\x80";
		size_t       part = random_below(&random, 8) ? size : random_below(&random, (uint32_t)size) + 1;
		char        *copy = malloc(part), *again;
		size_t       again_size;
		struct error error = { .message = "" };
		struct sim_trace back;

		memcpy(copy, text, part);
		for (uint32_t n = random_below(&random, 4); n > 0; n--)
			copy[random_below(&random, (uint32_t)part)] = bytes[random_below(&random, sizeof bytes)];
		if (read_bytes(copy, part, &trace, &error)) {
			ck_assert(strstr(error.message, "t.csv: ") == error.message && !strchr(error.message, '\n'));
		} else {
			accepted++;
			for (uint32_t i = 0; i < trace.count; i++) {
				const struct sim_request *request = &trace.requests[i];

				ck_assert(request->prompt_tokens >= 1 && request->prompt_tokens <= SIM_TOKENS_MAX);
				ck_assert(request->output_tokens >= 1 && request->output_tokens <= SIM_TOKENS_MAX);
				ck_assert(request->prefix_tokens <= request->prompt_tokens);
				ck_assert(request->arrival_ns <= (uint64_t)(SIM_SECONDS_MAX * 1e9));
				ck_assert(request->key < trace.keys.count && request->prefix < trace.prefixes.count);
			}
			write_trace(&trace, &again, &again_size);
			ck_assert_msg(read_bytes(again, again_size, &back, &error) == STATUS_OK, "%s\n%s", error.message, again);
			same_traces(&trace, &back);
			sim_trace_free(&back);
			free(again);
		}
		sim_trace_free(&trace);
		free(copy);
	}
	ck_assert_uint_gt(accepted, 400);
	free(text);
}
END_TEST

/* ---- cost files ------------------------------------------------------------------------------------------------------ */

static enum status parse_cost(const char *text, struct sim_cost *ret, struct error *error)
{
	return sim_cost_parse("c.json", text, strlen(text), ret, error);
}

#define COST "\"prefill_us_per_token\": 20, \"decode_us_per_seq\": 30.5, \"kv_tokens\": 100000"

START_TEST(a_cost_file_has_defaults_and_makes_time)
{
	struct sim_cost cost;
	struct error    error;

	ck_assert_int_eq(parse_cost("{" COST "}", &cost, &error), STATUS_OK);
	ck_assert(cost.fixed_us == 0 && cost.context_us_per_ktoken == 0 && cost.block == 64 && cost.max_batch == 64 &&
	    cost.step_tokens == 2048 && cost.long_prompt_tokens == 8192 && cost.max_queue_wait_s == 300 && cost.itl_target_ms == 0);
	ck_assert_uint_eq(sim_cost_step_ns(&cost, 100, 2, 5000), 2061000);
	cost.fixed_us = 1000;
	cost.context_us_per_ktoken = 4;
	ck_assert_uint_eq(sim_cost_step_ns(&cost, 100, 2, 5000), 3081000);
	ck_assert_int_eq(parse_cost("{" COST ", \"fixed_us\": 0, \"prefill_us_per_token\": 0}", &cost, &error), STATUS_INVALID);
	ck_assert_int_eq(parse_cost("{\"kv_tokens\": 64, \"decode_us_per_seq\": 0, \"prefill_us_per_token\": 0, \"max_batch\": 1,"
	                            "\"step_tokens\": 1, \"long_prompt_tokens\": 0, \"max_queue_wait_s\": 0}",
	                     &cost, &error), STATUS_OK);
	ck_assert_uint_eq(sim_cost_step_ns(&cost, 1, 1, 1), 1000); /* time goes on */
}
END_TEST

static const struct {
	const char *text, *words;
} bad_costs[] = {
	{ "", "c.json" },
	{ "[]", "c.json|object" },
	{ "{\"kv_tokens\": 1}", "c.json|missing" },
	{ "{" COST ", \"colour\\n\": 1}", "c.json: \"colour\\x0a\"" },
	{ "{" COST ", \"fixed_us\": -1}", "fixed_us = -1|0…10000000" },
	{ "{" COST ", \"fixed_us\": \"1\"}", "fixed_us is not a number" },
	{ "{" COST ", \"fixed_us\": null}", "fixed_us is not a number" },
	{ "{" COST ", \"block\": 0}", "block = 0|1…1024" },
	{ "{" COST ", \"block\": 16.5}", "block is not a whole number" },
	{ "{" COST ", \"max_batch\": 100, \"step_tokens\": 64}", "max_batch = 100|step_tokens = 64" },
	{ "{\"prefill_us_per_token\": 20, \"decode_us_per_seq\": 30.5, \"kv_tokens\": 63}", "kv_tokens = 63|64" },
	{ "{\"prefill_us_per_token\": 20, \"decode_us_per_seq\": 30.5, \"kv_tokens\": 1073741825}", "= 1073741825|1073741824" },
	{ "{" COST ", \"max_queue_wait_s\": 1e300}", "max_queue_wait_s = 1e+300|1000000" },
	{ "{" COST "} x", "c.json" },
};

START_TEST(a_bad_cost_file_is_refused_with_field_value_and_limit)
{
	struct sim_cost cost = { .block = 7 };
	struct error    error;

	ck_assert_int_ne(parse_cost(bad_costs[_i].text, &cost, &error), STATUS_OK);
	find_words(error.message, bad_costs[_i].words);
	ck_assert_uint_eq(cost.block, 7);
}
END_TEST

START_TEST(damaged_cost_files_are_refused_or_sound)
{
	static const char text[] = "{" COST ", \"block\": 16, \"max_batch\": 32, \"step_tokens\": 256, \"itl_target_ms\": 50}";
	static const char bytes[] = "0123456789.eE-+\",:{}[] \\untr\xff";
	struct random     random = { 5 };

	for (int round = 0; round < 20000; round++) {
		char            copy[sizeof text];
		struct sim_cost cost;
		struct error    error = { .message = "" };

		memcpy(copy, text, sizeof text);
		for (uint32_t n = random_below(&random, 3); n > 0; n--)
			copy[random_below(&random, sizeof text - 1)] = bytes[random_below(&random, sizeof bytes - 1)];
		if (sim_cost_parse("c.json", copy, sizeof copy - 1, &cost, &error))
			ck_assert(strstr(error.message, "c.json: ") == error.message && !strchr(error.message, '\n'));
		else
			ck_assert(cost.max_batch >= 1 && cost.max_batch <= cost.step_tokens && cost.block >= 1 &&
			    cost.kv_tokens >= cost.block && sim_cost_step_ns(&cost, cost.step_tokens, 0, UINT32_MAX) >= 1000);
	}
}
END_TEST

/* ---- the histogram --------------------------------------------------------------------------------------------------- */

static int by_size(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
	return a < b ? -1 : a > b;
}

START_TEST(percentiles_are_right_within_half_a_percent)
{
	enum { COUNT = 5000 };
	struct random        random = { 9 };
	struct sim_histogram one = { .count = 0 }, two = { .count = 0 };
	uint64_t            *values = malloc(COUNT * sizeof *values);
	static const double  shares[] = { 0, 0.01, 0.5, 0.9, 0.99, 1 };

	ck_assert_uint_eq(sim_histogram_percentile(&one, 0.5), 0);
	for (int i = 0; i < COUNT; i++) {
		values[i] = random_u64(&random) >> (12 + random_below(&random, 52));
		ck_assert(sim_histogram_add(i % 3 ? &one : &two, values[i]));
	}
	ck_assert(sim_histogram_merge(&one, &two));
	ck_assert_uint_eq(one.count, COUNT);
	qsort(values, COUNT, sizeof *values, by_size);
	for (unsigned i = 0; i < sizeof shares / sizeof shares[0]; i++) {
		size_t   rank = (size_t)ceil(shares[i] * COUNT);
		double   exact = (double)values[rank ? rank - 1 : 0], found = (double)sim_histogram_percentile(&one, shares[i]);

		ck_assert_msg(fabs(found - exact) <= 0.005 * exact, "%g: %g instead of %g", shares[i], found, exact);
	}
	ck_assert(sim_histogram_add(&one, UINT64_MAX));
	sim_histogram_free(&one);
	sim_histogram_free(&two);
	free(values);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("sim");
	TCase   *tcase = tcase_create("inputs");
	SRunner *runner;
	int      failed;

	tcase_set_timeout(tcase, 120);
	tcase_add_test(tcase, columns_come_in_any_order_and_lines_in_any_time);
	tcase_add_loop_test(tcase, a_bad_trace_is_refused_with_line_column_value_and_limit, 0,
	    sizeof bad_traces / sizeof bad_traces[0]);
	tcase_add_test(tcase, a_long_line_and_a_nul_byte_are_refused);
	tcase_add_loop_test(tcase, a_generated_trace_reads_back_equal_and_depends_on_its_seed, 0, KIND_COUNT);
	tcase_add_loop_test(tcase, generated_traces_have_the_rate_and_shares_asked_for, 0, KIND_COUNT);
	tcase_add_test(tcase, damaged_traces_are_refused_or_sound);
	tcase_add_test(tcase, a_cost_file_has_defaults_and_makes_time);
	tcase_add_loop_test(tcase, a_bad_cost_file_is_refused_with_field_value_and_limit, 0, sizeof bad_costs / sizeof bad_costs[0]);
	tcase_add_test(tcase, damaged_cost_files_are_refused_or_sound);
	tcase_add_test(tcase, percentiles_are_right_within_half_a_percent);
	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
