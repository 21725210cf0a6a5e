/* Tests of the engine with steps under way: the fake device does nothing before somebody waits for it, so that whatever is
 * used too early, given away too early or written over too early shows in an answer.  And of what comes with it: stops that
 * are seen one step late, requests of several choices, a pool that is far too small. */
#include "test_engine_fake.h"

#include "tools/sim_replay.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct fake_backend backend;
static struct model        model;
static struct fake_sink    sink;
static struct engine      *engine;

static void begin(const struct engine_options *options)
{
	fake_init(&backend, &model);
	fake_sink_init(&sink);
	backend.late = options->depth == 2;
	engine = fake_engine(&backend, &model, &sink, options);
}

static void finish(void)
{
	ck_assert_str_eq(backend.complaint, "");
	ck_assert_uint_eq(metrics_get(&sink.metrics, METRIC_kv_blocks_used), 0);
	engine_destroy(engine);
	fake_free(&backend);
	fake_sink_free(&sink);
}

static struct engine_options overlapped(void)
{
	struct engine_options options = fake_options();
	options.depth = 2;
	return options;
}

static enum status step(uint64_t now_ns)
{
	struct engine_step_stats stats;
	struct error             error;
	return engine_step(engine, now_ns, &stats, &error);
}

static void run_idle(void)
{
	for (int guard = 0; step(0) == STATUS_OK; guard++)
		ck_assert_int_lt(guard, 100000);
}

/* The record of TAG is what the naive model says, as far as it goes (WHOLE: to the end). */
static void check_answer(uint32_t tag, const int32_t *prompt, uint32_t prompt_tokens, uint64_t seed, uint32_t max, bool whole)
{
	const struct fake_record *r = &sink.records[tag];
	int32_t                   ids[FAKE_CONTEXT];
	enum wire_finish          finish;
	uint32_t                  n = fake_answer(prompt, prompt_tokens, seed, max, false, ids, &finish);

	ck_assert_uint_eq(r->ends, 1);
	ck_assert_uint_eq(r->with_logprobs, (uint32_t)seed % 3 ? r->count : 0);
	ck_assert_uint_le(r->count, n);
	ck_assert_int_eq(memcmp(r->ids, ids, r->count * sizeof *ids), 0);
	ck_assert_uint_le(r->end.completion_tokens, r->count);
	if (whole) {
		ck_assert_uint_eq(r->count, n);
		ck_assert_int_eq(r->end.finish, finish);
	}
}

/* A token is published by the call that launches the step after the one that drew it. */
START_TEST(the_device_always_has_a_step)
{
	struct engine_options options = overlapped();
	int32_t               prompt[4];

	begin(&options);
	ck_assert_int_eq(fake_submit(engine, 0, 4, 3, 7, 0, prompt), STATUS_OK);
	ck_assert_int_eq(step(0), STATUS_OK);
	ck_assert_uint_eq(backend.enqueued, 2);
	ck_assert_uint_eq(backend.done, 0);
	ck_assert_uint_eq(sink.records[0].count, 0);
	ck_assert_int_eq(step(0), STATUS_OK);
	ck_assert_uint_eq(backend.enqueued, 4); /* the next step was there before the first was waited for */
	ck_assert_uint_eq(backend.done, 2);
	ck_assert_uint_eq(sink.records[0].count, 1);
	run_idle();
	ck_assert_uint_gt(backend.tokens_ahead, 0);
	ck_assert_uint_eq(backend.steps, 3); /* max_tokens is known beforehand: no step too many */
	check_answer(0, prompt, 4, 7, 3, true);
	finish();
}
END_TEST

/* A stop, a cancel and a deadline find a step under way: what it draws is dropped, and its blocks are kept until then. */
START_TEST(ends_find_a_step_under_way)
{
	struct engine_options options = overlapped();
	int32_t               prompt[8];
	uint64_t              steps;

	begin(&options);
	for (uint64_t seed = 0;; seed++) { /* one that ends by itself before the limit */
		int32_t          ids[FAKE_CONTEXT];
		enum wire_finish f;
		uint32_t         n;

		ck_assert_int_eq(fake_submit(engine, 0, 8, 40, seed, 0, prompt), STATUS_OK);
		n = fake_answer(prompt, 8, seed, 40, false, ids, &f);
		steps = backend.steps;
		run_idle();
		check_answer(0, prompt, 8, seed, 40, true);
		ck_assert_uint_eq(metrics_get(&sink.metrics, METRIC_kv_blocks_used), 0);
		sink.records[0] = (struct fake_record){ 0 };
		if (f == WIRE_FINISH_STOP && n > 0) {
			ck_assert_uint_eq(backend.steps - steps, n + 2); /* the end's own draw, and one step too many */
			break;
		}
	}
	ck_assert_int_eq(fake_submit(engine, 1, 8, 40, 3, 0, prompt), STATUS_OK);
	step(0);
	step(0);
	sink.records[1].control = ENGINE_CONTROL_CANCEL;
	ck_assert_int_eq(step(0), STATUS_OK); /* only what comes back */
	ck_assert_uint_eq(sink.records[1].ends, 1);
	ck_assert_uint_eq(engine_free_blocks(engine), 50);
	ck_assert_int_eq(step(0), STATUS_AGAIN);

	ck_assert_int_eq(fake_submit(engine, 2, 8, 40, 3, 0, prompt), STATUS_OK);
	step(0);
	step(0);
	engine_cancel_all(engine, STATUS_UNAVAILABLE);
	ck_assert_uint_eq(sink.records[2].ends, 1);
	ck_assert_uint_eq(engine_free_blocks(engine), 50);
	ck_assert_int_eq(fake_submit(engine, 3, 8, 40, 3, 0, prompt), STATUS_OK); /* and it goes on as if nothing was */
	run_idle();
	check_answer(3, prompt, 8, 3, 40, true);
	finish();
}
END_TEST

START_TEST(a_fault_under_way_is_reported)
{
	struct engine_options    options = overlapped();
	struct engine_step_stats stats;
	struct error             error;

	begin(&options);
	ck_assert_int_eq(fake_submit(engine, 0, 4, 10, 1, 0, NULL), STATUS_OK);
	step(0);
	backend.broken = true;
	ck_assert_int_eq(engine_step(engine, 0, &stats, &error), STATUS_IO);
	engine_cancel_all(engine, STATUS_INTERNAL);
	ck_assert_uint_eq(sink.records[0].ends, 1);
	finish();
}
END_TEST

/* Choices share the prompt: it is computed once, and each draws what it would draw alone. */
START_TEST(choices_share_a_prompt)
{
	static const uint32_t lengths[] = { 1, 2, 4, 5, 7, 8, 9, 33, 64, 65 };

	for (uint32_t depth = 1; depth <= 2; depth++) {
		struct engine_options options = fake_options();
		uint64_t              prompt_rows = 0;

		options.depth = depth;
		begin(&options);
		for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
			int32_t  prompt[FAKE_CONTEXT];
			uint32_t tag = i * 8;

			ck_assert_int_eq(fake_submit_choices(engine, tag, lengths[i], 20, 4, i, 0, prompt), STATUS_OK);
			run_idle();
			for (uint32_t c = 0; c < 4; c++)
				check_answer(tag + c, prompt, lengths[i], FAKE_SEED((uint64_t)i, c), 20, true);
			ck_assert(sink.records[tag].told_last);
			prompt_rows += lengths[i];
			ck_assert_uint_eq(metrics_get(&sink.metrics, METRIC_prompt_tokens_total), prompt_rows);
			ck_assert_uint_eq(metrics_get(&sink.metrics, METRIC_kv_blocks_used), 0);
		}
		ck_assert_uint_gt(backend.copies, 0);

		/* Cancelled before and after it forked; every choice has its end. */
		ck_assert_int_eq(fake_submit_choices(engine, 200, 40, 20, 3, 5, 0, NULL), STATUS_OK);
		step(0);
		sink.records[200].control = ENGINE_CONTROL_CANCEL;
		run_idle();
		ck_assert_int_eq(fake_submit_choices(engine, 210, 4, 20, 3, 5, 0, NULL), STATUS_OK);
		for (int k = 0; k < 4; k++)
			step(0);
		ck_assert_uint_gt(sink.records[212].count, 0);
		sink.records[210].control = ENGINE_CONTROL_CANCEL;
		run_idle();
		for (uint32_t c = 0; c < 3; c++) {
			ck_assert_int_eq(sink.records[200 + c].end.finish, WIRE_FINISH_CANCELLED);
			ck_assert_int_eq(sink.records[210 + c].end.finish, WIRE_FINISH_CANCELLED);
		}
		ck_assert(sink.records[200].told_last && sink.records[210].told_last);
		finish();
	}
}
END_TEST

START_TEST(too_many_choices_are_refused)
{
	struct engine_options options = fake_options();

	begin(&options);
	ck_assert_int_eq(fake_submit_choices(engine, 0, 4, 4, 5, 1, 0, NULL), STATUS_LIMIT); /* four run at a time */
	for (uint32_t i = 0; i < 7; i++)
		ck_assert_int_eq(fake_submit_choices(engine, i * 8, 4, 4, 4, 1, 0, NULL), STATUS_OK);
	ck_assert_int_eq(fake_submit_choices(engine, 100, 4, 4, 4, 1, 0, NULL), STATUS_FULL);
	run_idle();
	finish();
}
END_TEST

static const char record_path[] = "test_engine_overlap.record";

/* What the scheduler was asked and answered during the run gives the same plans again, without an engine. */
static void replay(void)
{
	struct sim_replay result;
	struct error      error;
	FILE             *stream = fopen(record_path, "r");

	ck_assert_ptr_nonnull(stream);
	if (sim_replay(stream, "record", &result, &error))
		ck_abort_msg("%s", error.message);
	ck_assert_uint_gt(result.plans, 100);
	fclose(stream);
	remove(record_path);
}

/* Everything at once, at random, in a pool that holds a fraction of what is asked for: each choice ends once, nothing stays
 * in use, and what was said is what the naive model says. */
static uint64_t storm(uint32_t depth, enum sched_policy policy, uint64_t kv_tokens, bool calm, uint32_t drafts, unsigned seed)
{
	enum { REQUESTS = 400, CHOICES = 4 };
	static int32_t        prompts[REQUESTS][64];
	static uint32_t       lengths[REQUESTS], choices[REQUESTS];
	struct engine_options    options = fake_options();
	struct engine_step_stats stats;
	struct sched_stats       decisions;
	struct error             error;
	enum status              status;
	uint32_t                 submitted = 0;
	uint64_t                 kind = drafts ? FAKE_REPEATS : 0;

	options.depth = depth;
	options.policy = policy;
	options.kv_tokens = kv_tokens;
	options.long_prompt_tokens = 30;
	options.max_queue_wait_ns = UINT64_MAX / 2;
	options.record = record_path;
	options.speculation = drafts ? ENGINE_SPECULATION_NGRAM : ENGINE_SPECULATION_OFF;
	options.draft_tokens = drafts;
	options.ngram_least = 1;
	options.ngram_most = 3;
	begin(&options);
	for (uint64_t now = 0; submitted < REQUESTS || engine_running(engine) + engine_waiting(engine) > 0; now++) {
		if (submitted < REQUESTS && rand_r(&seed) % 2) {
			lengths[submitted] = 1 + (uint32_t)rand_r(&seed) % 60;
			choices[submitted] = rand_r(&seed) % 4 ? 1 : 1 + (uint32_t)rand_r(&seed) % CHOICES;
			if (fake_submit_choices(engine, submitted * CHOICES, lengths[submitted], 1 + (uint32_t)rand_r(&seed) % 40,
			        choices[submitted], kind + submitted, now, prompts[submitted]) == STATUS_OK)
				submitted++;
		}
		if (submitted > 0 && !calm) {
			uint32_t            back = 1 + (uint32_t)rand_r(&seed) % (submitted < 12 ? submitted : 12);
			struct fake_record *r = &sink.records[(submitted - back) * CHOICES];
			switch (rand_r(&seed) % 16) {
			case 0: r->control = ENGINE_CONTROL_CANCEL; break;
			case 1: r->control = ENGINE_CONTROL_STOP; r->keep = (uint32_t)rand_r(&seed) % 50; break;
			case 2: case 3: r->no_credit = true; break;
			default: r->no_credit = false;
			}
		}
		status = engine_step(engine, now, &stats, &error);
		if ((status && status != STATUS_AGAIN) || *backend.complaint || now > 1000000) /* ck_assert is slow when it holds */
			ck_abort_msg("step %llu: status %d %s, %s", (unsigned long long)now, status,
			    status && status != STATUS_AGAIN ? error.message : "", backend.complaint);
	}
	while (step(0) == STATUS_OK)
		;
	for (uint32_t i = 0; i < submitted; i++)
		for (uint32_t c = 0; c < choices[i]; c++)
			check_answer(i * CHOICES + c, prompts[i], lengths[i], FAKE_SEED(kind + i, c), 40,
			    calm && sink.records[i * CHOICES + c].end.finish == WIRE_FINISH_STOP);
	engine_sched_stats(engine, &decisions);
	ck_assert_uint_gt(backend.slots_set, submitted / 16);
	ck_assert(depth == 2 || drafts == 0 || backend.guesses > 100);
	finish();
	replay();
	return decisions.preempted;
}

START_TEST(storms)
{
	uint64_t preempted = 0;

	for (unsigned seed = 1; seed <= 4; seed++)
		for (uint32_t depth = 1; depth <= 2; depth++)
			for (int policy = SCHED_FCFS; policy <= SCHED_FAIR; policy++)
				for (int calm = 0; calm < 2; calm++) {
					preempted += storm(depth, (enum sched_policy)policy, 104, calm, 0, seed);
					preempted += storm(depth, (enum sched_policy)policy, 104, calm, 7, seed);
					storm(depth, (enum sched_policy)policy, 400, calm, seed % 4, seed);
				}
	ck_assert_uint_gt(preempted, 200);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("engine_overlap");
	TCase   *tcase = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 300);
	tcase_add_test(tcase, the_device_always_has_a_step);
	tcase_add_test(tcase, ends_find_a_step_under_way);
	tcase_add_test(tcase, a_fault_under_way_is_reported);
	tcase_add_test(tcase, choices_share_a_prompt);
	tcase_add_test(tcase, too_many_choices_are_refused);
	tcase_add_test(tcase, storms);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
