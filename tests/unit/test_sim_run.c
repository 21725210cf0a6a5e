/* Tests of the scheduler under traces, in the simulator: everything here is exact, for time is invented.  The bars of the
 * scheduler are here, too, but for its CPU time. */
#include "engine/sched_trace.h"
#include "tools/sim_generate.h"
#include "tools/sim_replay.h"
#include "tools/sim_report.h"
#include "tools/sim_run.h"

#include "base/random.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A small GPU and a large one. */
static const struct sim_cost machines[] = {
	{ .fixed_us = 9000, .prefill_us_per_token = 60, .decode_us_per_seq = 60, .context_us_per_ktoken = 6, .kv_tokens = 400000,
	    .block = 64, .max_batch = 64, .step_tokens = 1024, .long_prompt_tokens = 8192, .max_queue_wait_s = 3600,
	    .itl_target_ms = 50 },
	{ .fixed_us = 12000, .prefill_us_per_token = 20, .decode_us_per_seq = 15, .context_us_per_ktoken = 1.2, .kv_tokens = 3000000,
	    .block = 16, .max_batch = 256, .step_tokens = 4096, .long_prompt_tokens = 16384, .max_queue_wait_s = 3600 },
};
enum { MACHINE_COUNT = sizeof machines / sizeof machines[0], POLICY_COUNT = SCHED_FAIR + 1 };

static void generate(const char *kind, uint32_t requests, void (*change)(struct sim_generate *), struct sim_trace *ret)
{
	struct sim_generate values;
	struct error        error;

	ck_assert(sim_generate_preset(kind, &values));
	values.requests = requests;
	if (change)
		change(&values);
	ck_assert_int_eq(sim_trace_init(ret), STATUS_OK);
	ck_assert_int_eq(sim_generate(&values, ret, &error), STATUS_OK);
}

static struct sim_result run_recorded(const struct sim_trace *trace, const struct sim_cost *cost, enum sched_policy policy,
    double scale, FILE *record)
{
	struct sim_result  result;
	struct error       error;
	struct sim_options options = { .cost = cost, .policy = policy, .time_scale = scale, .record = record };
	uint64_t           groups[4] = { 0 };

	ck_assert_msg(sim_run(trace, &options, &result, &error) == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(result.finished + result.rejected + result.cancelled, trace->count);
	for (uint32_t i = 0; i < result.group_count; i++)
		groups[result.groups[i].kind] += result.groups[i].requests;
	ck_assert_uint_eq(groups[SIM_GROUP_SHORT] + groups[SIM_GROUP_LONG], trace->count);
	ck_assert_uint_eq(groups[SIM_GROUP_KEY], trace->count);
	ck_assert_uint_eq(groups[SIM_GROUP_CLASS], trace->count);
	return result;
}

static struct sim_result run(const struct sim_trace *trace, const struct sim_cost *cost, enum sched_policy policy, double scale)
{
	return run_recorded(trace, cost, policy, scale, NULL);
}

static void count_tokens(const struct sim_trace *trace, uint64_t *ret_prompt, uint64_t *ret_output)
{
	*ret_prompt = *ret_output = 0;
	for (uint32_t i = 0; i < trace->count; i++) {
		*ret_prompt += trace->requests[i].prompt_tokens;
		*ret_output += trace->requests[i].output_tokens;
	}
}

static const struct sim_group *group_of(const struct sim_result *result, enum sim_group_kind kind, const char *key)
{
	for (uint32_t i = 0; i < result->group_count; i++)
		if (result->groups[i].kind == kind && (!key || strcmp(result->groups[i].key, key) == 0))
			return &result->groups[i];
	ck_abort_msg("no group of kind %d", kind);
	return NULL;
}

static bool near(double a, double b, double part) { return fabs(a - b) <= part * fabs(b); }

static void add(struct sim_trace *trace, struct sim_request request)
{
	if (!request.cancel_ns)
		request.cancel_ns = SIM_NEVER;
	ck_assert_int_eq(sim_trace_append(trace, &request), STATUS_OK);
}

#define SECOND UINT64_C(1000000000)

START_TEST(a_lone_request_takes_what_the_cost_file_says)
{
	struct sim_cost   cost = { .fixed_us = 1000, .prefill_us_per_token = 10, .decode_us_per_seq = 100, .context_us_per_ktoken = 50,
		.kv_tokens = 6400, .block = 64, .max_batch = 4, .step_tokens = 4000 };
	struct sim_trace  trace;
	struct sim_result result;

	ck_assert_int_eq(sim_trace_init(&trace), STATUS_OK);
	add(&trace, (struct sim_request){ .arrival_ns = 5 * SECOND, .prompt_tokens = 1000, .output_tokens = 3 });
	add(&trace, (struct sim_request){ .arrival_ns = 5000000 * SECOND, .prompt_tokens = 1000, .output_tokens = 1 });
	for (int policy = 0; policy < POLICY_COUNT; policy++) {
		result = run(&trace, &cost, (enum sched_policy)policy, 1);
		ck_assert_uint_eq(result.steps, 4); /* idle time is skipped */
		ck_assert_uint_eq(result.finished, 2);
		ck_assert_uint_eq(result.prefill_tokens, 2000);
		ck_assert_uint_eq(result.generated_tokens, 4);
		ck_assert_uint_eq(result.kv_peak_tokens, 16 * 64);
		/* 1000 + 1000 · 10 + 50 = 11,050 us; then 1000 + 100 + 50 · 1.001 */
		ck_assert(near((double)group_of(&result, SIM_GROUP_SHORT, NULL)->ttft_p99_ns, 11050e3, 0.005));
		ck_assert(near((double)group_of(&result, SIM_GROUP_SHORT, NULL)->itl_p99_ns, 1150.1e3, 0.005));
		ck_assert(near(result.duration_s, 4999995 + 0.01105, 1e-9));
		ck_assert(result.jain == 1);
		sim_result_free(&result);
	}
	sim_trace_free(&trace);
}
END_TEST

START_TEST(what_cannot_be_served_is_rejected_or_cancelled_once)
{
	struct sim_cost   cost = { .fixed_us = 100000, .prefill_us_per_token = 0, .decode_us_per_seq = 0, .kv_tokens = 640,
		.block = 64, .max_batch = 1, .step_tokens = 1000, .max_queue_wait_s = 10 };
	struct sim_trace  trace;
	struct sim_result result;

	ck_assert_int_eq(sim_trace_init(&trace), STATUS_OK);
	add(&trace, (struct sim_request){ .prompt_tokens = 640, .output_tokens = 1 });                          /* too long */
	add(&trace, (struct sim_request){ .prompt_tokens = 100, .output_tokens = 200 });                        /* 20 s */
	add(&trace, (struct sim_request){ .prompt_tokens = 100, .output_tokens = 1, .cancel_ns = 5 * SECOND }); /* in the queue */
	add(&trace, (struct sim_request){ .prompt_tokens = 101, .output_tokens = 1 });                          /* waits too long */
	add(&trace, (struct sim_request){ .arrival_ns = 30 * SECOND, .prompt_tokens = 100, .output_tokens = 200, .cancel_ns = SECOND });
	add(&trace, (struct sim_request){ .arrival_ns = 60 * SECOND, .prompt_tokens = 639, .output_tokens = 50 }); /* cut: context */
	for (int policy = 0; policy < POLICY_COUNT; policy++) {
		result = run(&trace, &cost, (enum sched_policy)policy, 1);
		ck_assert_uint_eq(result.finished, 2);
		ck_assert_uint_eq(result.rejected, 2);
		ck_assert_uint_eq(result.cancelled, 2);
		ck_assert_uint_eq(result.generated_tokens, 200 + 10 + 1);
		ck_assert_uint_le(group_of(&result, SIM_GROUP_SHORT, NULL)->wait_max_ns, 10 * SECOND + SECOND / 10);
		sim_result_free(&result);
	}
	sim_trace_free(&trace);
}
END_TEST

static void same_results(const struct sim_result *a, const struct sim_result *b)
{
	ck_assert_uint_eq(a->finished, b->finished);
	ck_assert_uint_eq(a->steps, b->steps);
	ck_assert_uint_eq(a->preempted_tokens, b->preempted_tokens);
	ck_assert(a->duration_s == b->duration_s && a->jain == b->jain);
	for (uint32_t i = 0; i < a->group_count; i++) {
		ck_assert_uint_eq(a->groups[i].ttft_p99_ns, b->groups[i].ttft_p99_ns);
		ck_assert_uint_eq(a->groups[i].service_tokens, b->groups[i].service_tokens);
	}
}

static void crowd(struct sim_generate *values)
{
	values->keys = 3;
	values->classes = 3;
	values->cancel_share = 0.1;
	values->cancel_s = 3;
	values->rate = 20;
}

/* A recording of any run gives the same plans again; one that was changed is caught or refused. */
START_TEST(a_run_is_repeatable_and_its_recording_replays)
{
	struct sim_cost   cost = machines[0];
	struct sim_trace  trace;
	struct sim_result first, second;
	struct sim_replay replay;
	struct random     random = { 21 };
	struct error      error;
	char             *text;
	size_t            size, refused = 0;
	FILE             *stream = open_memstream(&text, &size);

	cost.kv_tokens = 20000; /* so that there is preemption */
	cost.max_queue_wait_s = 20;
	generate("chat", 300, crowd, &trace);
	first = run_recorded(&trace, &cost, (enum sched_policy)_i, 1, stream);
	second = run(&trace, &cost, (enum sched_policy)_i, 1);
	same_results(&first, &second);
	stream = fmemopen(text, size, "r");
	ck_assert_msg(sim_replay(stream, "r", &replay, &error) == STATUS_OK, "%s", error.message);
	fclose(stream);
	ck_assert_uint_ge(replay.plans, first.steps);
	ck_assert(!replay.cut);
	for (int round = 0; round < 150; round++) {
		size_t at = random_below(&random, (uint32_t)size);
		char   was = text[at];

		text[at] = "0123456789 -\nARPEXICFT"[random_below(&random, 22)];
		error.message[0] = '\0';
		stream = fmemopen(text, size, "r");
		if (sim_replay(stream, "r", &replay, &error)) {
			refused++;
			ck_assert(strstr(error.message, "r: ") == error.message && !strchr(error.message, '\n'));
		}
		fclose(stream);
		text[at] = was;
	}
	ck_assert_uint_gt(refused, 100);
	free(text);
	sim_result_free(&first);
	sim_result_free(&second);
	sim_trace_free(&trace);
}
END_TEST

START_TEST(a_recording_ends_at_its_limit)
{
	struct sched_options options = { .capacity = 2, .max_running = 1, .step_tokens = 8, .block_size = 16, .blocks = 8, .depth = 1 };
	struct sched_trace  *trace;
	struct sched        *sched;
	struct sched_plan    plan;
	struct sim_replay    replay;
	struct error         error;
	char                *text;
	size_t               size;
	FILE                *stream = open_memstream(&text, &size);

	ck_assert_int_eq(sched_create(&options, &sched), STATUS_OK);
	ck_assert_int_eq(sched_trace_create(stream, 4096, &options, &trace), STATUS_OK);
	for (uint64_t i = 0; i < 1000; i++) {
		sched_trace_add(trace, sched, 0, &(struct sched_job){ .length = 4, .max_new = 2, .arrival_ns = i });
		sched_trace_plan(trace, sched, 8, i, &plan);
		ck_assert_uint_eq(plan.count, 1);
		sched_trace_confirm(trace, sched, 0, 1);
		sched_trace_feedback(trace, sched, plan.rows, plan.count, 1000);
		sched_trace_set_paused(trace, sched, 0, true);
		sched_trace_remove(trace, sched, 0);
	}
	ck_assert_int_eq(sched_trace_destroy(trace), STATUS_OK);
	sched_destroy(sched);
	ck_assert_uint_le(size, 4096);
	stream = fmemopen(text, size, "r");
	ck_assert_msg(sim_replay(stream, "r", &replay, &error) == STATUS_OK, "%s", error.message);
	fclose(stream);
	ck_assert(replay.cut);
	ck_assert_uint_gt(replay.plans, 10);
	free(text);
}
END_TEST

/* ---- the bars -------------------------------------------------------------------------------------------------------- */

static void five_percent_long(struct sim_generate *values)
{
	values->long_share = 0.05;
	values->long_prompt = (struct sim_length){ 40000, 0.3 };
}

static const char *const shapes[] = { "poisson", "bursty", "onoff", "chat" };
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0] };

/* Of short requests beside 5 % long prompts at 80 % of what fcfs can do. */
START_TEST(time_to_first_token_is_four_times_lower_than_with_fcfs)
{
	const struct sim_cost *cost = &machines[_i / SHAPE_COUNT];
	struct sim_trace       trace;
	struct sim_result      all, results[POLICY_COUNT];
	uint64_t               prompt, output, first;
	double                 scale;

	generate(shapes[_i % SHAPE_COUNT], 1500, five_percent_long, &trace);
	count_tokens(&trace, &prompt, &output);
	all = run(&trace, cost, SCHED_FCFS, 0);
	scale = (double)output / ((double)trace.requests[trace.count - 1].arrival_ns / 1e9) / (0.8 * all.throughput_tok_s);
	for (int policy = 0; policy < POLICY_COUNT; policy++)
		results[policy] = run(&trace, cost, (enum sched_policy)policy, scale);
	first = group_of(&results[SCHED_FCFS], SIM_GROUP_SHORT, NULL)->ttft_p99_ns;
	for (int policy = SCHED_PRIORITY; policy < POLICY_COUNT; policy++) {
		uint64_t ttft = group_of(&results[policy], SIM_GROUP_SHORT, NULL)->ttft_p99_ns;

		ck_assert_msg(4 * ttft <= first, "%s: %g s, fcfs %g s", sim_policy_name((enum sched_policy)policy), (double)ttft / 1e9,
		    (double)first / 1e9);
		ck_assert(results[policy].throughput_tok_s >= 0.98 * results[SCHED_FCFS].throughput_tok_s);
		sim_result_free(&results[policy]);
	}
	sim_result_free(&results[SCHED_FCFS]);
	sim_result_free(&all);
	sim_trace_free(&trace);
}
END_TEST

static void one_asks_four_times_as_much(struct sim_generate *values) { values->key_skew = 2; }

START_TEST(two_backlogged_keys_get_the_same_under_fair)
{
	struct sim_cost   cost = machines[_i];
	struct sim_trace  trace;
	struct sim_result fair, fcfs;
	double            a, b;

	cost.max_queue_wait_s = 0;
	generate("backlog", 5000, one_asks_four_times_as_much, &trace);
	fair = run(&trace, &cost, SCHED_FAIR, 1);
	fcfs = run(&trace, &cost, SCHED_FCFS, 1);
	a = (double)group_of(&fair, SIM_GROUP_KEY, "k1")->service_tokens;
	b = (double)group_of(&fair, SIM_GROUP_KEY, "k2")->service_tokens;
	ck_assert_msg(fmin(a, b) >= 0.95 * fmax(a, b), "%g and %g", a, b);
	ck_assert(fair.jain > 0.999 && fcfs.jain < 0.8);
	sim_result_free(&fair);
	sim_result_free(&fcfs);
	sim_trace_free(&trace);
}
END_TEST

static void classes_and_keys(struct sim_generate *values)
{
	values->classes = 2;
	values->keys = 5;
}

START_TEST(a_pool_of_30_percent_completes_everything)
{
	struct sim_cost   cost = machines[_i / POLICY_COUNT];
	enum sched_policy policy = (enum sched_policy)(_i % POLICY_COUNT);
	struct sim_trace  trace;
	struct sim_result result;
	uint64_t          prompt, output;

	cost.max_queue_wait_s = 0;
	cost.kv_tokens = 1 << 30;
	generate("poisson", 2000, classes_and_keys, &trace);
	count_tokens(&trace, &prompt, &output);
	result = run(&trace, &cost, policy, 0);
	ck_assert_uint_eq(result.preempted_tokens, 0);
	cost.kv_tokens = (uint32_t)(3 * result.kv_peak_tokens / 10);
	sim_result_free(&result);
	result = run(&trace, &cost, policy, 0);
	ck_assert_uint_eq(result.finished, trace.count);
	ck_assert_uint_eq(result.prefill_tokens, prompt);
	ck_assert_uint_eq(result.generated_tokens, output);
	ck_assert_uint_le(result.kv_peak_tokens, cost.kv_tokens + cost.block);
	ck_assert_msg((double)result.preempted_tokens < 0.15 * (double)(prompt + output), "%llu of %llu",
	    (unsigned long long)result.preempted_tokens, (unsigned long long)(prompt + output));
	sim_result_free(&result);
	sim_trace_free(&trace);
}
END_TEST

/* ---- the result ------------------------------------------------------------------------------------------------------ */

START_TEST(the_json_result_has_the_documented_fields)
{
	static const char *const fields[] = { "policy", "finished", "rejected", "cancelled", "throughput_tok_s", "prefill_tokens",
		"cached_tokens", "preempted_tokens", "jain", "step_cpu_us_p50", "step_cpu_us_p99", "groups" };
	static const char *const group_fields[] = { "group", "requests", "finished", "rejected", "ttft_p50_s", "ttft_p99_s",
		"itl_p99_s", "wait_max_s", "service_tokens" };
	struct sim_trace  trace;
	struct sim_result result;
	char             *text;
	size_t            size;
	FILE             *stream = open_memstream(&text, &size);
	uint32_t          key;
	json_t           *root, *groups;

	ck_assert_int_eq(sim_trace_init(&trace), STATUS_OK);
	ck_assert_int_eq(sim_names_number(&trace.keys, "a\"b\\", 4, &key), STATUS_OK);
	add(&trace, (struct sim_request){ .key = key, .class = -2, .prompt_tokens = 10, .output_tokens = 5 });
	result = run(&trace, &machines[0], SCHED_FAIR, 1);
	ck_assert_int_eq(sim_report_json(&result, stream), STATUS_OK);
	fclose(stream);
	root = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	ck_assert_ptr_nonnull(root);
	for (unsigned i = 0; i < sizeof fields / sizeof fields[0]; i++)
		ck_assert_msg(json_object_get(root, fields[i]), "%s is missing", fields[i]);
	groups = json_object_get(root, "groups");
	ck_assert_uint_eq(json_array_size(groups), 4);
	for (unsigned i = 0; i < sizeof group_fields / sizeof group_fields[0]; i++)
		ck_assert_msg(json_object_get(json_array_get(groups, 0), group_fields[i]), "%s is missing", group_fields[i]);
	ck_assert_str_eq(json_string_value(json_object_get(root, "policy")), "fair");
	ck_assert_str_eq(json_string_value(json_object_get(json_array_get(groups, 0), "group")), "short");
	ck_assert_str_eq(json_string_value(json_object_get(json_array_get(groups, 1), "group")), "long");
	ck_assert_str_eq(json_string_value(json_object_get(json_array_get(groups, 2), "group")), "key:a\"b\\");
	ck_assert_str_eq(json_string_value(json_object_get(json_array_get(groups, 3), "group")), "class:-2");
	json_decref(root);
	free(text);
	stream = open_memstream(&text, &size);
	sim_report_table(&result, stream);
	fclose(stream);
	ck_assert_ptr_nonnull(strstr(text, "1 finished, 0 rejected, 0 cancelled"));
	free(text);
	sim_result_free(&result);
	sim_trace_free(&trace);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("sim_run");
	TCase   *tcase = tcase_create("runs");
	SRunner *runner;
	int      failed;

	tcase_set_timeout(tcase, 240);
	tcase_add_test(tcase, a_lone_request_takes_what_the_cost_file_says);
	tcase_add_test(tcase, what_cannot_be_served_is_rejected_or_cancelled_once);
	tcase_add_loop_test(tcase, a_run_is_repeatable_and_its_recording_replays, 0, POLICY_COUNT);
	tcase_add_test(tcase, a_recording_ends_at_its_limit);
	tcase_add_loop_test(tcase, time_to_first_token_is_four_times_lower_than_with_fcfs, 0, MACHINE_COUNT * SHAPE_COUNT);
	tcase_add_loop_test(tcase, two_backlogged_keys_get_the_same_under_fair, 0, MACHINE_COUNT);
	tcase_add_loop_test(tcase, a_pool_of_30_percent_completes_everything, 0, MACHINE_COUNT * POLICY_COUNT);
	tcase_add_test(tcase, the_json_result_has_the_documented_fields);
	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
