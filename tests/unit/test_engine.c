/* Tests of the engine with its own scheduler over a fake model and backend (test_engine_fake.h). */
#include "test_engine_fake.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct fake_backend backend;
static struct model        model;
static struct fake_sink    sink;
static struct engine      *engine;

static void setup(void)
{
	fake_init(&backend, &model);
	fake_sink_init(&sink);
	engine = fake_engine(&backend, &model, &sink, NULL);
}

static void teardown(void)
{
	ck_assert_str_eq(backend.complaint, "");
	engine_destroy(engine);
	fake_free(&backend);
	fake_sink_free(&sink);
}

static enum status step(uint64_t now_ns)
{
	struct engine_step_stats stats;
	struct error             error;
	return engine_step(engine, now_ns, &stats, &error);
}

static void run_idle(uint64_t now_ns)
{
	for (int guard = 0; step(now_ns) == STATUS_OK; guard++)
		ck_assert_int_lt(guard, 100000);
}

/* A request that ends with its MAX_TOKENS only. */
static void submit_plain(uint32_t tag, uint32_t prompt_tokens, uint32_t max_tokens, uint64_t deadline_ns)
{
	struct engine_request request = { .id = tag, .tag = tag, .prompt_tokens = prompt_tokens, .max_tokens = max_tokens,
		.ignore_eos = true, .deadline_ns = deadline_ns };
	struct error          error;

	request.prompt = calloc(prompt_tokens, sizeof *request.prompt);
	ck_assert_int_eq(engine_submit(engine, &request, 0, &error), STATUS_OK);
}

static uint64_t metric(enum metric id) { return metrics_get(&sink.metrics, id); }

static void check_idle(void)
{
	ck_assert_uint_eq(engine_running(engine) + engine_waiting(engine), 0);
	ck_assert_uint_eq(metric(METRIC_kv_blocks_used), 0);
	ck_assert_uint_eq(metric(METRIC_sequences_running), 0);
	ck_assert_uint_eq(metric(METRIC_requests_total), metric(METRIC_requests_finished_total) +
	    metric(METRIC_requests_cancelled_total) + metric(METRIC_requests_failed_total));
}

START_TEST(answers_are_those_of_the_naive_model)
{
	static int32_t prompts[12][FAKE_CONTEXT];
	uint32_t       lengths[12];

	for (uint32_t i = 0; i < 12; i++) {
		lengths[i] = 1 + i * 7;
		ck_assert_int_eq(fake_submit(engine, i, lengths[i], 30, i, 0, prompts[i]), STATUS_OK);
	}
	ck_assert_int_eq(fake_submit(engine, 12, 3, 3, 0, 0, NULL), STATUS_FULL);
	run_idle(0);
	for (uint32_t i = 0; i < 12; i++) {
		int32_t          ids[FAKE_CONTEXT];
		enum wire_finish finish;
		uint32_t         n = fake_answer(prompts[i], lengths[i], i, 30, false, ids, &finish);

		ck_assert_uint_eq(sink.records[i].ends, 1);
		ck_assert_uint_eq(sink.records[i].count, n);
		ck_assert_int_eq(memcmp(sink.records[i].ids, ids, n * sizeof *ids), 0);
		ck_assert_int_eq(sink.records[i].end.finish, finish);
		ck_assert_uint_eq(sink.records[i].end.prompt_tokens, lengths[i]);
		ck_assert_uint_eq(sink.records[i].end.completion_tokens, n);
	}
	ck_assert_uint_gt(sink.launches, 0);
	ck_assert_uint_eq(metric(METRIC_prompt_tokens_total), 12 + 7 * 66);
	check_idle();
}
END_TEST

START_TEST(max_tokens_zero_means_up_to_the_context)
{
	submit_plain(0, 10, 0, 0);
	run_idle(0);
	ck_assert_uint_eq(sink.records[0].count, 190); /* the cache holds 200 tokens, so that is the context */
	ck_assert_int_eq(sink.records[0].end.finish, WIRE_FINISH_LENGTH);
	check_idle();
}
END_TEST

START_TEST(refusals_have_words_and_no_end)
{
	struct error          error;
	struct engine_request request = { .prompt_tokens = 0 };

	ck_assert_int_eq(engine_submit(engine, &request, 0, &error), STATUS_INVALID);
	ck_assert_str_ne(error.message, "");
	ck_assert_int_eq(fake_submit(engine, 0, 200, 0, 1, 0, NULL), STATUS_CONTEXT_LENGTH);
	ck_assert_int_eq(fake_submit(engine, 0, 150, 51, 1, 0, NULL), STATUS_CONTEXT_LENGTH);
	ck_assert_int_eq(fake_submit(engine, 0, 150, UINT32_MAX, 1, 0, NULL), STATUS_CONTEXT_LENGTH);
	ck_assert_int_eq(fake_submit(engine, 1, 150, 50, 1, 0, NULL), STATUS_OK);
	request = (struct engine_request){ .prompt = calloc(2, 4), .prompt_tokens = 2 };
	request.prompt[1] = FAKE_VOCAB;
	ck_assert_int_eq(engine_submit(engine, &request, 0, &error), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "97"));
	request = (struct engine_request){ .prompt = calloc(2, 4), .prompt_tokens = 2 };
	request.prompt[0] = -1;
	ck_assert_int_eq(engine_submit(engine, &request, 0, &error), STATUS_INVALID);
	ck_assert_ptr_null(request.prompt);
	run_idle(0);
	ck_assert_uint_eq(sink.records[0].ends, 0);
	ck_assert_uint_eq(sink.records[1].ends, 1);
	check_idle();
}
END_TEST

START_TEST(cancel_in_every_phase)
{
	for (uint32_t i = 0; i < 6; i++) /* four run, two wait; a prompt of 40 takes several steps */
		submit_plain(i, i == 3 ? 40 : 3, 20, 0);
	ck_assert_int_eq(step(0), STATUS_OK);
	ck_assert_uint_eq(engine_running(engine), 4);
	ck_assert_uint_eq(engine_waiting(engine), 2);
	sink.records[0].control = ENGINE_CONTROL_CANCEL; /* decode */
	sink.records[3].control = ENGINE_CONTROL_CANCEL; /* prefill */
	sink.records[5].control = ENGINE_CONTROL_CANCEL; /* queued */
	step(0);
	ck_assert_uint_eq(sink.records[0].ends, 1);
	ck_assert_uint_eq(sink.records[3].ends, 1);
	ck_assert_uint_eq(sink.records[3].count, 0);
	ck_assert_uint_eq(sink.records[5].ends, 1);
	ck_assert_int_eq(sink.records[5].end.finish, WIRE_FINISH_CANCELLED);
	ck_assert_uint_eq(metric(METRIC_requests_cancelled_total), 3);
	run_idle(0);
	check_idle();
}
END_TEST

START_TEST(stop_keeps_what_it_says)
{
	submit_plain(0, 4, 50, 0);
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(step(0), STATUS_OK);
	ck_assert_uint_eq(sink.records[0].count, 10);
	sink.records[0].control = ENGINE_CONTROL_STOP;
	sink.records[0].keep = 7;
	ck_assert_int_eq(step(0), STATUS_AGAIN);
	ck_assert_int_eq(sink.records[0].end.finish, WIRE_FINISH_STOP);
	ck_assert_uint_eq(sink.records[0].end.completion_tokens, 7);
	ck_assert_uint_eq(metric(METRIC_overshoot_tokens_total), 3);

	/* A front that claims to keep more than there is gets what there is. */
	ck_assert_int_eq(fake_submit(engine, 1, 4, 50, 3, 0, NULL), STATUS_OK);
	step(0);
	sink.records[1].control = ENGINE_CONTROL_STOP;
	sink.records[1].keep = 0x3fffffff;
	step(0);
	ck_assert_uint_eq(sink.records[1].end.completion_tokens, sink.records[1].count);
	check_idle();
}
END_TEST

START_TEST(credit_pauses_one_and_then_ends_it)
{
	submit_plain(0, 4, 90, 0);
	submit_plain(1, 4, 90, 0);
	step(100);
	step(100);
	sink.records[0].no_credit = true;
	uint32_t paused_at = sink.records[0].count, other = sink.records[1].count;
	for (uint64_t now = 101; now < 111; now++)
		step(now);
	ck_assert_uint_eq(engine_paused(engine), 1);
	ck_assert_uint_eq(metric(METRIC_sequences_paused), 1);
	ck_assert_uint_eq(sink.records[0].count, paused_at);
	ck_assert_uint_gt(sink.records[1].count, other);
	sink.records[0].no_credit = false; /* it reads again: the clock starts anew */
	step(900);
	ck_assert_uint_eq(engine_paused(engine), 0);
	sink.records[0].no_credit = true;
	step(1000);
	step(1999);
	ck_assert_uint_eq(sink.records[0].ends, 0);
	step(2000);
	ck_assert_uint_eq(sink.records[0].ends, 1);
	ck_assert_int_eq(sink.records[0].end.status, STATUS_SLOW_CLIENT);
	ck_assert_uint_eq(metric(METRIC_slow_clients_total), 1);
	run_idle(2001);
	check_idle();
}
END_TEST

/* All running ones paused: nothing can run, and that is not an error. */
START_TEST(all_paused_is_again)
{
	submit_plain(0, 4, 10, 0);
	submit_plain(1, 4, 10, 0);
	ck_assert_int_eq(step(0), STATUS_OK);
	sink.records[0].no_credit = sink.records[1].no_credit = true;
	submit_plain(2, 4, 10, 0);
	sink.records[2].no_credit = true; /* waits, and does not hold up the one behind it */
	ck_assert_int_eq(step(1), STATUS_AGAIN);
	ck_assert_uint_eq(engine_running(engine), 2);
	ck_assert_uint_eq(engine_paused(engine), 3);
	submit_plain(3, 4, 10, 0);
	run_idle(1);
	ck_assert_uint_eq(sink.records[3].ends, 1);
	sink.records[0].no_credit = sink.records[1].no_credit = sink.records[2].no_credit = false;
	run_idle(2);
	check_idle();
}
END_TEST

START_TEST(deadlines_and_the_queue_have_limits)
{
	submit_plain(0, 140, 20, 50);
	step(0);
	ck_assert_int_eq(fake_submit(engine, 1, 140, 20, 5, 10, NULL), STATUS_OK); /* no room beside the first */
	step(10);
	ck_assert_uint_eq(engine_waiting(engine), 1);
	step(50);
	ck_assert_int_eq(sink.records[0].end.finish, WIRE_FINISH_ERROR);
	ck_assert_int_eq(sink.records[0].end.status, STATUS_TIMEOUT);
	ck_assert_uint_eq(engine_running(engine), 1);
	ck_assert_int_eq(fake_submit(engine, 2, 4, 190, 5, 60, NULL), STATUS_OK);
	sink.records[1].no_credit = true;
	step(5059); /* pauses the first */
	ck_assert_uint_eq(sink.records[2].ends, 0);
	step(5060);
	ck_assert_int_eq(sink.records[2].end.status, STATUS_UNAVAILABLE);
	engine_cancel_all(engine, STATUS_UNAVAILABLE);
	ck_assert_int_eq(sink.records[1].end.finish, WIRE_FINISH_ERROR);
	ck_assert_uint_eq(sink.blocks_used_at_end, 0); /* free before anybody hears of it */
	check_idle();
}
END_TEST

START_TEST(logits_that_are_not_finite_end_one_request)
{
	backend.nan_seed = 77;
	ck_assert_int_eq(fake_submit(engine, 0, 4, 10, 77, 0, NULL), STATUS_OK);
	ck_assert_int_eq(fake_submit(engine, 1, 4, 10, 78, 0, NULL), STATUS_OK);
	run_idle(0);
	ck_assert_int_eq(sink.records[0].end.finish, WIRE_FINISH_ERROR);
	ck_assert_int_eq(sink.records[0].end.status, STATUS_INTERNAL);
	ck_assert_int_ne(sink.records[1].end.finish, WIRE_FINISH_ERROR);
	check_idle();
}
END_TEST

START_TEST(a_backend_fault_is_reported)
{
	struct engine_step_stats stats;
	struct error             error;

	ck_assert_int_eq(fake_submit(engine, 0, 4, 10, 1, 0, NULL), STATUS_OK);
	backend.broken = true;
	ck_assert_int_eq(engine_step(engine, 0, &stats, &error), STATUS_IO);
	ck_assert_str_eq(error.message, "the fake device failed");
	ck_assert_uint_eq(sink.records[0].ends, 0);
	engine_cancel_all(engine, STATUS_INTERNAL);
	ck_assert_uint_eq(sink.records[0].ends, 1);
}
END_TEST

START_TEST(warm_up_leaves_no_trace)
{
	struct error error;
	uint64_t     row_ns = 0;

	ck_assert_int_eq(engine_warm_up(engine, 1000, &row_ns, &error), STATUS_OK);
	ck_assert_uint_eq(backend.steps, 3); /* a chunk, a decode, a batch of decodes */
	ck_assert_uint_eq(metric(METRIC_kv_blocks_used) + metric(METRIC_prompt_tokens_total), 0);
	backend.broken = true;
	ck_assert_int_eq(engine_warm_up(engine, 3, &row_ns, &error), STATUS_IO);
	backend.broken = false;
	ck_assert_int_eq(fake_submit(engine, 0, 190, 10, 3, 0, NULL), STATUS_OK); /* all blocks are there */
	run_idle(0);
	check_idle();
}
END_TEST

START_TEST(memory_plan)
{
	struct engine_options options = fake_options();
	struct engine        *other = NULL;
	struct engine_plan    plan;
	struct error          error;

	/* A block is 4 tokens × 100 bytes; scratch is 16 × 10 + 4. */
	options.kv_tokens = 0;
	backend.memory = 164 + 400 * 20;
	fake_free(&backend);
	ck_assert_int_eq(engine_create(&model, &backend.base, &options, &sink.sink, NULL, &other, &plan, &error), STATUS_OK);
	ck_assert_uint_eq(plan.blocks, 10);
	ck_assert_uint_eq(plan.kv_tokens, 40);
	ck_assert_uint_eq(plan.max_context, 40);
	ck_assert_uint_eq(plan.scratch_bytes, 164);
	engine_destroy(other);

	backend.memory = 1 << 30; /* never more than four running sequences of full length */
	fake_free(&backend);
	ck_assert_int_eq(engine_create(&model, &backend.base, &options, &sink.sink, NULL, &other, &plan, &error), STATUS_OK);
	ck_assert_uint_eq(plan.kv_tokens, 4 * FAKE_CONTEXT);
	ck_assert_uint_eq(plan.max_context, FAKE_CONTEXT);
	engine_destroy(other);

	other = NULL;
	backend.memory = 500;
	ck_assert_int_eq(engine_create(&model, &backend.base, &options, &sink.sink, NULL, &other, NULL, &error), STATUS_NOMEM);
	options.kv_tokens = 100;
	ck_assert_int_eq(engine_create(&model, &backend.base, &options, &sink.sink, NULL, &other, NULL, &error), STATUS_NOMEM);
	ck_assert_ptr_nonnull(strstr(error.message, "kv_tokens = 100"));
	options.max_context = FAKE_CONTEXT + 1;
	ck_assert_int_eq(engine_create(&model, &backend.base, &options, &sink.sink, NULL, &other, NULL, &error), STATUS_INVALID);
	options.max_running = 0;
	ck_assert_int_eq(engine_create(&model, &backend.base, &options, &sink.sink, NULL, &other, NULL, &error), STATUS_INVALID);
	ck_assert_ptr_null(other);
	engine_destroy(NULL);
}
END_TEST

/* A thousand requests that come, go, pause and are stopped at random: each ends once, nothing stays in use, and what was
 * said is a prefix of what the naive model says. */
START_TEST(random_disconnects_leave_nothing)
{
	static int32_t prompts[1000][64];
	uint32_t       lengths[1000], submitted = 0;
	unsigned       seed = 12345;

	for (uint64_t now = 0; submitted < 1000 || engine_running(engine) + engine_waiting(engine) > 0; now++) {
		if (submitted < 1000 && rand_r(&seed) % 2) {
			lengths[submitted] = 1 + (uint32_t)rand_r(&seed) % 60;
			if (fake_submit(engine, submitted, lengths[submitted], 1 + (uint32_t)rand_r(&seed) % 40, submitted, now,
			        prompts[submitted]) == STATUS_OK)
				submitted++;
		}
		if (submitted > 0) {
			struct fake_record *r = &sink.records[submitted - 1 - (uint32_t)rand_r(&seed) % (submitted < 12 ? submitted : 12)];
			switch (rand_r(&seed) % 8) {
			case 0: r->control = ENGINE_CONTROL_CANCEL; break;
			case 1: r->control = ENGINE_CONTROL_STOP; r->keep = (uint32_t)rand_r(&seed) % 50; break;
			case 2: r->no_credit = true; break;
			default: r->no_credit = false;
			}
		}
		ck_assert_int_ne(step(now), STATUS_IO);
		ck_assert_uint_lt(now, 1000000);
	}
	for (uint32_t i = 0; i < submitted; i++) {
		int32_t          ids[FAKE_CONTEXT];
		enum wire_finish finish;
		uint32_t         n = fake_answer(prompts[i], lengths[i], i, 40, false, ids, &finish);

		ck_assert_uint_eq(sink.records[i].ends, 1);
		ck_assert_uint_le(sink.records[i].count, n);
		ck_assert_int_eq(memcmp(sink.records[i].ids, ids, sink.records[i].count * sizeof *ids), 0);
		ck_assert_uint_le(sink.records[i].end.completion_tokens, sink.records[i].count);
	}
	ck_assert_uint_gt(metric(METRIC_requests_finished_total), 100);
	ck_assert_uint_gt(metric(METRIC_requests_cancelled_total), 100);
	check_idle();
}
END_TEST

/* A request with STOP_ID among its stop ids, and ALLOWED as its only allowed id (−1: all); what engine_submit says. */
static enum status submit_lists(uint32_t tag, uint64_t draws, int32_t stop_id, int32_t allowed, int32_t bias_id,
    struct error *error)
{
	struct engine_request request = { .id = tag, .tag = tag, .prompt_tokens = 5, .max_tokens = 30, .ignore_eos = true,
		.sampling = { .top_p = 1, .seed = draws } };

	request.prompt = calloc(5, sizeof *request.prompt);
	request.lists.stop_ids = malloc(2 * sizeof(int32_t));
	request.lists.stop_ids[0] = 0;
	request.lists.stop_ids[1] = stop_id;
	request.lists.stop_count = 2;
	if (allowed >= 0) {
		request.lists.allowed_ids = malloc(sizeof(int32_t));
		request.lists.allowed_ids[0] = allowed;
		request.lists.allowed_count = 1;
	}
	if (bias_id >= 0) {
		request.lists.bias = malloc(sizeof *request.lists.bias);
		request.lists.bias[0] = (struct sample_bias){ bias_id, 5 };
		request.lists.bias_count = 1;
	}
	return engine_submit(engine, &request, 0, error);
}

/* The first of them ends the answer, whatever eos does, and is not part of it. */
START_TEST(stop_ids_end_an_answer)
{
	int32_t          prompt[5] = { 0 }, ids[FAKE_CONTEXT];
	struct error     error;
	enum wire_finish finish;
	uint32_t         n = fake_answer(prompt, 5, 6, 30, true, ids, &finish), at = 0;

	ck_assert_uint_eq(n, 30);
	while (ids[at] != ids[17] && ids[at] != 0)
		at++;
	ck_assert_int_eq(submit_lists(0, 6, ids[17], -1, -1, &error), STATUS_OK);
	run_idle(0);
	ck_assert_uint_eq(sink.records[0].ends, 1);
	ck_assert_int_eq(sink.records[0].end.finish, WIRE_FINISH_STOP);
	ck_assert_uint_eq(sink.records[0].count, at);
	ck_assert_uint_eq(sink.records[0].end.completion_tokens, at);
	ck_assert_int_eq(memcmp(sink.records[0].ids, ids, at * sizeof *ids), 0);
	check_idle();
}
END_TEST

START_TEST(lists_are_checked)
{
	struct engine_request request = { .id = 1, .prompt_tokens = 5, .sampling = { .top_p = 1, .logprobs = SAMPLE_TOP_MAX + 2 } };
	struct error          error;

	ck_assert_int_eq(submit_lists(0, 1, FAKE_VOCAB, -1, -1, &error), STATUS_INVALID);
	ck_assert_str_eq(error.param, "stop_token_ids");
	ck_assert_ptr_nonnull(strstr(error.message, "id 97, allowed are 0…96"));
	ck_assert_int_eq(submit_lists(0, 1, 1, FAKE_VOCAB, -1, &error), STATUS_INVALID);
	ck_assert_str_eq(error.param, "allowed_token_ids");
	ck_assert_int_eq(submit_lists(0, 1, 1, 1, FAKE_VOCAB, &error), STATUS_INVALID);
	ck_assert_str_eq(error.param, "logit_bias");
	request.prompt = calloc(5, sizeof *request.prompt);
	ck_assert_int_eq(engine_submit(engine, &request, 0, &error), STATUS_INVALID);
	ck_assert_str_eq(error.param, "top_logprobs");
	check_idle();
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("engine");
	TCase   *tcase = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 300);
	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, answers_are_those_of_the_naive_model);
	tcase_add_test(tcase, max_tokens_zero_means_up_to_the_context);
	tcase_add_test(tcase, refusals_have_words_and_no_end);
	tcase_add_test(tcase, cancel_in_every_phase);
	tcase_add_test(tcase, stop_keeps_what_it_says);
	tcase_add_test(tcase, credit_pauses_one_and_then_ends_it);
	tcase_add_test(tcase, all_paused_is_again);
	tcase_add_test(tcase, deadlines_and_the_queue_have_limits);
	tcase_add_test(tcase, logits_that_are_not_finite_end_one_request);
	tcase_add_test(tcase, a_backend_fault_is_reported);
	tcase_add_test(tcase, warm_up_leaves_no_trace);
	tcase_add_test(tcase, memory_plan);
	tcase_add_test(tcase, random_disconnects_leave_nothing);
	tcase_add_test(tcase, stop_ids_end_an_answer);
	tcase_add_test(tcase, lists_are_checked);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
