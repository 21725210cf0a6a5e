/* Tests of the engine with guesses, over a fake model whose answers mostly repeat themselves (test_engine_fake.h): whatever
 * is guessed, an answer is what the naive model says. */
#include "test_engine_fake.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct fake_backend backend;
static struct model        model;
static struct fake_sink    sink;
static struct engine      *engine;

static struct engine_options drafting(enum engine_speculation speculation)
{
	struct engine_options options = fake_options();

	options.depth = 1;
	options.speculation = speculation;
	options.draft_tokens = 7;
	options.ngram_least = 1;
	options.ngram_most = 3;
	return options;
}

static void begin(const struct engine_options *options)
{
	fake_init(&backend, &model);
	fake_sink_init(&sink);
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

static uint64_t metric(enum metric id) { return metrics_get(&sink.metrics, id); }

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

static void check_answer(uint32_t tag, const int32_t *prompt, uint32_t prompt_tokens, uint64_t seed, uint32_t max)
{
	const struct fake_record *r = &sink.records[tag];
	int32_t                   ids[FAKE_CONTEXT];
	enum wire_finish          finish;
	uint32_t                  n = fake_answer(prompt, prompt_tokens, seed, max, false, ids, &finish);

	ck_assert_uint_eq(r->ends, 1);
	ck_assert_uint_eq(r->count, n);
	ck_assert_int_eq(memcmp(r->ids, ids, n * sizeof *ids), 0);
	ck_assert_uint_eq(r->end.completion_tokens, n);
	ck_assert_int_eq(r->end.finish, finish);
}

START_TEST(answers_are_the_same_and_take_fewer_steps)
{
	struct engine_options options = drafting(ENGINE_SPECULATION_NGRAM);
	int32_t               prompt[20];
	uint64_t              tokens = 0, accepted = 0;

	begin(&options);
	for (uint32_t i = 0; i < 40; i++) {
		ck_assert_int_eq(fake_submit(engine, i, 20, 100, FAKE_REPEATS + i, 0, prompt), STATUS_OK);
		run_idle();
		check_answer(i, prompt, 20, FAKE_REPEATS + i, 100);
		tokens += sink.records[i].count;
	}
	for (int i = 0; i < 7; i++) {
		if (i > 0)
			ck_assert_uint_le(metric((enum metric)(METRIC_ngram_accepted_1 + i)),
			    metric((enum metric)(METRIC_ngram_accepted_1 + i - 1)));
		accepted += metric((enum metric)(METRIC_ngram_accepted_1 + i));
	}
	ck_assert_uint_eq(metric(METRIC_generated_tokens_total), tokens);
	ck_assert_uint_eq(metric(METRIC_ngram_draft_tokens), backend.guesses);
	ck_assert_uint_gt(accepted, tokens / 4);
	ck_assert_uint_lt(backend.steps, tokens); /* prompts, ends and all */
	ck_assert_uint_eq(metric(METRIC_mtp_draft_tokens), 0);
	finish();
}
END_TEST

/* No guess goes beyond max_tokens, whose last token needs no successor. */
START_TEST(guesses_end_where_the_answer_does)
{
	struct engine_options options = drafting(ENGINE_SPECULATION_NGRAM);
	int32_t               prompt[12];

	options.kv_tokens = 20; /* five blocks of four: no token more */
	begin(&options);
	for (uint32_t max = 1; max <= 8; max++)
		for (uint64_t seed = 0; seed < 30; seed++) {
			ck_assert_int_eq(fake_submit(engine, 0, 12, max, FAKE_REPEATS + seed, 0, prompt), STATUS_OK);
			run_idle();
			check_answer(0, prompt, 12, FAKE_REPEATS + seed, max);
			sink.records[0] = (struct fake_record){ 0 };
		}
	ck_assert_uint_gt(backend.guesses, 0);
	finish();
}
END_TEST

/* Credit for one token but not for guesses: the answer goes on without. */
static bool little_credit(void *context, uint64_t tag, uint32_t events)
{
	struct fake_sink *s = context;

	s->records[tag].granted = events;
	return events <= 1;
}

START_TEST(guesses_need_credit)
{
	struct engine_options options = drafting(ENGINE_SPECULATION_NGRAM);
	int32_t               prompt[12];

	fake_init(&backend, &model);
	fake_sink_init(&sink);
	sink.sink.may_publish = little_credit;
	engine = fake_engine(&backend, &model, &sink, &options);
	ck_assert_int_eq(fake_submit(engine, 0, 12, 50, FAKE_REPEATS + 3, 0, prompt), STATUS_OK);
	run_idle();
	check_answer(0, prompt, 12, FAKE_REPEATS + 3, 50);
	ck_assert_uint_eq(backend.guesses, 0);
	finish();
}
END_TEST

START_TEST(no_guesses_where_steps_overlap)
{
	struct engine_options options = drafting(ENGINE_SPECULATION_NGRAM);
	struct engine_plan    plan;
	struct error          error;
	int32_t               prompt[12];

	options.depth = 2;
	fake_init(&backend, &model);
	fake_sink_init(&sink);
	ck_assert_int_eq(engine_create(&model, &backend.base, &options, &sink.sink, &sink.metrics, &engine, &plan, &error), STATUS_OK);
	ck_assert_uint_eq(plan.draft_rows, 0);
	ck_assert_int_eq(fake_submit(engine, 0, 12, 50, FAKE_REPEATS + 3, 0, prompt), STATUS_OK);
	run_idle();
	check_answer(0, prompt, 12, FAKE_REPEATS + 3, 50);
	ck_assert_uint_eq(backend.guesses, 0);
	finish();
}
END_TEST

START_TEST(nonsense_is_refused)
{
	static const struct {
		uint32_t drafts, least, most;
	} cases[] = { { 8, 1, 3 }, { 7, 0, 3 }, { 7, 4, 3 }, { 7, 3, 17 } };
	struct engine_options options = drafting(ENGINE_SPECULATION_NGRAM);
	struct error          error = { 0 };

	fake_init(&backend, &model);
	fake_sink_init(&sink);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		options.draft_tokens = cases[i].drafts;
		options.ngram_least = cases[i].least;
		options.ngram_most = cases[i].most;
		ck_assert_int_eq(engine_create(&model, &backend.base, &options, &sink.sink, &sink.metrics, &engine, NULL, &error),
		    STATUS_INVALID);
		ck_assert_str_ne(error.message, "");
	}
	fake_free(&backend);
	fake_sink_free(&sink);
}
END_TEST

/* Logits that are not finite behind a wrong guess are nobody's, those behind right ones end the answer. */
START_TEST(a_choice_whose_logits_fail_ends_alone)
{
	struct engine_options options = drafting(ENGINE_SPECULATION_NGRAM);
	int32_t               prompts[2][12];

	begin(&options);
	backend.nan_seed = FAKE_REPEATS + 1;
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(fake_submit(engine, i, 12, 30, FAKE_REPEATS + i, 0, prompts[i]), STATUS_OK);
	run_idle();
	check_answer(0, prompts[0], 12, FAKE_REPEATS, 30);
	ck_assert_int_eq(sink.records[1].end.finish, WIRE_FINISH_ERROR);
	finish();
}
END_TEST

/* Where a row costs what a decode costs, AUTO leaves guesses alone after it has seen that; the fake's steps cost next to
 * nothing, so this is about answers and bookkeeping only. */
START_TEST(automatic_changes_no_answer)
{
	struct engine_options options = drafting(ENGINE_SPECULATION_AUTO);
	static int32_t        prompts[8][20];

	begin(&options);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_int_eq(fake_submit(engine, i, 20, 100, FAKE_REPEATS + i, 0, prompts[i]), STATUS_OK);
	run_idle();
	for (uint32_t i = 0; i < 8; i++)
		check_answer(i, prompts[i], 20, FAKE_REPEATS + i, 100);
	finish();
}
END_TEST

/* A model with a drafting layer: what that has seen is every token that stayed, and most of its guesses are right. */
START_TEST(the_model_drafts)
{
	struct engine_options options = drafting(ENGINE_SPECULATION_MTP);
	static int32_t        prompts[8][40];
	uint64_t              tokens = 0, right = 0;

	fake_init(&backend, &model);
	model.info.draft_layers = 1;
	fake_sink_init(&sink);
	engine = fake_engine(&backend, &model, &sink, &options);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_int_eq(fake_submit(engine, i, 1 + 5 * i, 60, i, 0, prompts[i]), STATUS_OK);
	run_idle();
	for (uint32_t i = 0; i < 8; i++) {
		check_answer(i, prompts[i], 1 + 5 * i, i, 60);
		tokens += sink.records[i].count;
	}
	for (int i = 0; i < 7; i++)
		right += metric((enum metric)(METRIC_mtp_accepted_1 + i));
	ck_assert_uint_gt(right, tokens / 2); /* so its cache was whole, after every kind of step */
	ck_assert_uint_eq(metric(METRIC_mtp_draft_tokens), backend.guesses);
	ck_assert_uint_eq(metric(METRIC_ngram_draft_tokens), 0);
	finish();
}
END_TEST

/* Both kinds, choices that share a prompt, a pool that is too small, cancels: answers are what they are. */
START_TEST(the_model_drafts_in_a_storm)
{
	enum { ROUND = 60 };
	static int32_t prompts[ROUND][64];
	unsigned       seed = 11;

	for (int automatic = 0; automatic < 2; automatic++) {
		struct engine_options options = drafting(automatic ? ENGINE_SPECULATION_AUTO : ENGINE_SPECULATION_MTP);
		uint32_t              submitted = 0;
		uint32_t              lengths[ROUND], choices[ROUND];

		options.kv_tokens = 104;
		options.max_queue_wait_ns = UINT64_MAX / 2;
		fake_init(&backend, &model);
		model.info.draft_layers = 1;
		fake_sink_init(&sink);
		engine = fake_engine(&backend, &model, &sink, &options);
		while (submitted < ROUND || engine_running(engine) + engine_waiting(engine) > 0) {
			if (submitted < ROUND && rand_r(&seed) % 2) {
				lengths[submitted] = 1 + (uint32_t)rand_r(&seed) % 60;
				choices[submitted] = 1 + (uint32_t)rand_r(&seed) % 3;
				if (fake_submit_choices(engine, submitted * 4, lengths[submitted], 1 + (uint32_t)rand_r(&seed) % 40,
				        choices[submitted], (submitted % 2 ? FAKE_REPEATS : 0) + submitted, 0, prompts[submitted]) == STATUS_OK)
					submitted++;
			}
			if (submitted > 0 && rand_r(&seed) % 8 == 0)
				sink.records[(uint32_t)rand_r(&seed) % submitted * 4].control = ENGINE_CONTROL_CANCEL;
			step(0);
			if (*backend.complaint)
				ck_abort_msg("%s", backend.complaint);
		}
		for (uint32_t i = 0; i < submitted; i++)
			for (uint32_t c = 0; c < choices[i]; c++) {
				const struct fake_record *r = &sink.records[i * 4 + c];
				int32_t                   ids[FAKE_CONTEXT];
				enum wire_finish          f;
				uint32_t n = fake_answer(prompts[i], lengths[i], FAKE_SEED((i % 2 ? FAKE_REPEATS : 0) + i, c), 40, false, ids, &f);

				ck_assert_uint_eq(r->ends, 1);
				ck_assert_uint_le(r->count, n);
				ck_assert_int_eq(memcmp(r->ids, ids, r->count * sizeof *ids), 0);
			}
		ck_assert_uint_gt(backend.drafts, 0);
		finish();
	}
}
END_TEST

START_TEST(a_model_without_drafts_is_refused)
{
	struct engine_options options = drafting(ENGINE_SPECULATION_MTP);
	struct error          error = { 0 };

	fake_init(&backend, &model);
	fake_sink_init(&sink);
	ck_assert_int_eq(engine_create(&model, &backend.base, &options, &sink.sink, &sink.metrics, &engine, NULL, &error),
	    STATUS_UNSUPPORTED);
	ck_assert_str_ne(error.message, "");
	fake_free(&backend);
	fake_sink_free(&sink);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("engine_draft");
	TCase   *tcase = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 60);
	tcase_add_test(tcase, answers_are_the_same_and_take_fewer_steps);
	tcase_add_test(tcase, guesses_end_where_the_answer_does);
	tcase_add_test(tcase, guesses_need_credit);
	tcase_add_test(tcase, no_guesses_where_steps_overlap);
	tcase_add_test(tcase, nonsense_is_refused);
	tcase_add_test(tcase, a_choice_whose_logits_fail_ends_alone);
	tcase_add_test(tcase, automatic_changes_no_answer);
	tcase_add_test(tcase, the_model_drafts);
	tcase_add_test(tcase, the_model_drafts_in_a_storm);
	tcase_add_test(tcase, a_model_without_drafts_is_refused);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
