/* The seam between engine and policy: this file brings a scheduler of its own (the linker takes it instead of sched.c)
 * that picks, cuts and evicts at random.  Whatever it does within the contract of sched.h, every answer must stay what
 * the naive model says, be emitted once, and leave no block in use. */
#include "engine/sched.h"
#include "test_engine_fake.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* ---- a policy without sense ------------------------------------------------------------------------------------------ */

enum state { STATE_FREE, STATE_WAITING, STATE_RUNNING };

struct sched {
	struct sched_options options;
	unsigned             seed;
	uint32_t             evictions;
	struct {
		enum state state;
		bool       paused;
		uint32_t   length, computed, planned, blocks;
	} entries[64];
	uint32_t          evicted[64];
	struct sched_item items[64];
};

static uint32_t total_evictions;

enum status sched_create(const struct sched_options *options, struct sched **ret)
{
	struct sched *sched = calloc(1, sizeof *sched);

	ck_assert_ptr_nonnull(sched);
	ck_assert_uint_le(options->capacity, 64);
	sched->options = *options;
	sched->seed = 99;
	*ret = sched;
	return STATUS_OK;
}

void sched_destroy(struct sched *sched) { free(sched); }

void sched_add(struct sched *sched, uint32_t handle, const struct sched_job *job)
{
	memset(&sched->entries[handle], 0, sizeof sched->entries[handle]);
	sched->entries[handle].state = STATE_WAITING;
	sched->entries[handle].length = job->length;
	sched->entries[handle].blocks = job->blocks;
}

void sched_remove(struct sched *sched, uint32_t handle) { sched->entries[handle].state = STATE_FREE; }

void sched_set_paused(struct sched *sched, uint32_t handle, bool paused) { sched->entries[handle].paused = paused; }

static uint32_t count_state(const struct sched *sched, enum state state)
{
	uint32_t n = 0;
	for (uint32_t h = 0; h < sched->options.capacity; h++)
		n += sched->entries[h].state == state;
	return n;
}

void sched_plan(struct sched *sched, uint32_t free_blocks, uint64_t now_ns, struct sched_plan *ret)
{
	struct sched_plan plan = { .evicted = sched->evicted, .items = sched->items };
	uint32_t          budget = sched->options.step_tokens, n = sched->options.capacity, first;

	(void)now_ns;
	first = (uint32_t)rand_r(&sched->seed) % n;
	for (uint32_t h = 0; h < n; h++)
		if (sched->entries[h].state == STATE_RUNNING && rand_r(&sched->seed) % 16 == 0) {
			sched->entries[h].state = STATE_WAITING;
			sched->entries[h].computed = 0;
			free_blocks += sched->entries[h].blocks;
			sched->evicted[plan.evicted_count++] = h;
			total_evictions++;
		}
	for (uint32_t i = 0; i < n && budget > 0; i++) {
		uint32_t h = (first + i) % n, pending = sched->entries[h].length - sched->entries[h].computed, rows;
		bool     waits = sched->entries[h].state == STATE_WAITING;

		if (sched->entries[h].state == STATE_FREE || sched->entries[h].paused || rand_r(&sched->seed) % 4 == 0)
			continue;
		if (waits && (sched->entries[h].blocks > free_blocks || count_state(sched, STATE_RUNNING) == sched->options.max_running))
			continue;
		if (waits)
			free_blocks -= sched->entries[h].blocks;
		sched->entries[h].state = STATE_RUNNING;
		rows = 1 + (uint32_t)rand_r(&sched->seed) % (pending < budget ? pending : budget);
		sched->entries[h].planned = rows;
		sched->items[plan.count++] = (struct sched_item){
			.handle = h, .start = sched->entries[h].computed, .rows = rows, .admitted = waits, .sampled = rows == pending
		};
		budget -= rows;
		plan.rows += rows;
		plan.sampled += rows == pending;
	}
	*ret = plan;
}

void sched_confirm(struct sched *sched, uint32_t handle, uint32_t new_tokens)
{
	sched->entries[handle].computed += sched->entries[handle].planned;
	sched->entries[handle].length += new_tokens;
}

uint32_t sched_running(const struct sched *sched) { return count_state(sched, STATE_RUNNING); }
uint32_t sched_waiting(const struct sched *sched) { return count_state(sched, STATE_WAITING); }

/* ---- the test --------------------------------------------------------------------------------------------------------- */

START_TEST(answers_do_not_depend_on_the_policy)
{
	static int32_t           prompts[400][64];
	uint32_t                 lengths[400], submitted = 0;
	struct fake_backend      backend;
	struct model             model;
	struct fake_sink         sink;
	struct engine           *engine;
	struct engine_step_stats stats;
	struct error             error;
	unsigned                 seed = 5;

	fake_init(&backend, &model);
	fake_sink_init(&sink);
	engine = fake_engine(&backend, &model, &sink, NULL);
	for (uint64_t guard = 0; submitted < 400 || engine_running(engine) + engine_waiting(engine) > 0; guard++) {
		ck_assert_uint_lt(guard, 1000000);
		if (submitted < 400) {
			lengths[submitted] = 1 + (uint32_t)rand_r(&seed) % 60;
			if (fake_submit(engine, submitted, lengths[submitted], 20, submitted, 0, prompts[submitted]) == STATUS_OK)
				submitted++;
		}
		if (submitted > 0) {
			struct fake_record *r = &sink.records[(uint32_t)rand_r(&seed) % submitted];
			r->no_credit = !r->no_credit && rand_r(&seed) % 2;
		}
		if (submitted == 400)
			for (uint32_t i = 0; i < submitted; i++)
				sink.records[i].no_credit = false;
		ck_assert_int_ne(engine_step(engine, 0, &stats, &error), STATUS_IO);
	}
	for (uint32_t i = 0; i < submitted; i++) {
		int32_t          ids[FAKE_CONTEXT];
		enum wire_finish finish;
		uint32_t         n = fake_answer(prompts[i], lengths[i], i, 20, false, ids, &finish);

		ck_assert_uint_eq(sink.records[i].ends, 1);
		ck_assert_int_eq(sink.records[i].end.finish, finish);
		ck_assert_uint_eq(sink.records[i].count, n);
		ck_assert_int_eq(memcmp(sink.records[i].ids, ids, n * sizeof *ids), 0);
	}
	ck_assert_uint_gt(total_evictions, 100);
	ck_assert_uint_eq(metrics_get(&sink.metrics, METRIC_kv_blocks_used), 0);
	ck_assert_str_eq(backend.complaint, "");
	engine_destroy(engine);
	fake_free(&backend);
	fake_sink_free(&sink);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("engine_policy");
	TCase   *tcase = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 300);
	tcase_add_test(tcase, answers_do_not_depend_on_the_policy);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
