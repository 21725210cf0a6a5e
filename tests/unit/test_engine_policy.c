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
	struct {
		enum state state;
		bool       paused;
		uint32_t   length, computed, limit, held, kept, outstanding; /* upper bounds, as sched.h says */
		bool       sampled[SCHED_DEPTH_MAX];
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
	sched->entries[handle].limit = job->length + job->max_new;
	sched->entries[handle].computed = job->cached;
	sched->entries[handle].held = sched->entries[handle].kept = job->cached / sched->options.block_size;
}

void sched_share(struct sched *sched, uint32_t handle, uint32_t tokens)
{
	sched->entries[handle].kept = (tokens + sched->options.block_size - 1) / sched->options.block_size;
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

/* Evicts some at random, and everybody else when KEEP finds no block. */
static void evict(struct sched *sched, uint32_t keep, uint32_t *free_blocks, struct sched_plan *plan)
{
	for (uint32_t h = 0; h < sched->options.capacity; h++) {
		if (sched->entries[h].state == STATE_FREE || h == keep || sched->entries[h].held + sched->entries[h].computed == 0 ||
		    (keep == UINT32_MAX && rand_r(&sched->seed) % 16 != 0))
			continue;
		if (sched->entries[h].state == STATE_RUNNING && sched->entries[h].outstanding == 0)
			*free_blocks += sched->entries[h].held - sched->entries[h].kept;
		sched->entries[h].state = STATE_WAITING;
		sched->entries[h].computed = sched->entries[h].held = sched->entries[h].kept = 0;
		sched->evicted[plan->evicted_count++] = h;
		total_evictions++;
	}
}

void sched_plan(struct sched *sched, uint32_t free_blocks, uint64_t now_ns, struct sched_plan *ret)
{
	struct sched_plan plan = { .evicted = sched->evicted, .items = sched->items };
	uint32_t          budget = sched->options.step_tokens, n = sched->options.capacity, first, stuck = UINT32_MAX;
	uint32_t          size = sched->options.block_size;

	(void)now_ns;
	first = (uint32_t)rand_r(&sched->seed) % n;
	evict(sched, UINT32_MAX, &free_blocks, &plan);
	for (uint32_t i = 0; i < n && budget > 0; i++) {
		uint32_t h = (first + i) % n, pending = sched->entries[h].length - sched->entries[h].computed, rows, blocks, room;
		bool     waits = sched->entries[h].state == STATE_WAITING;

		if (sched->entries[h].state == STATE_FREE || sched->entries[h].paused || rand_r(&sched->seed) % 4 == 0 ||
		    sched->entries[h].length == sched->entries[h].limit || pending == 0 || (waits && sched->entries[h].outstanding) ||
		    (waits && count_state(sched, STATE_RUNNING) == sched->options.max_running))
			continue;
		rows = 1 + (uint32_t)rand_r(&sched->seed) % (pending < budget ? pending : budget);
		room = (sched->entries[h].held + free_blocks) * size;
		room = room > sched->entries[h].computed ? room - sched->entries[h].computed : 0;
		rows = rows < room ? rows : room;
		if (rows == 0) {
			stuck = h;
			continue;
		}
		sched->entries[h].state = STATE_RUNNING;
		blocks = (sched->entries[h].computed + rows + size - 1) / size;
		if (blocks > sched->entries[h].held) {
			free_blocks -= blocks - sched->entries[h].held;
			sched->entries[h].held = blocks;
		}
		sched->items[plan.count++] = (struct sched_item){ .handle = h, .start = sched->entries[h].computed, .rows = rows,
			.blocks = blocks, .admitted = waits, .sampled = rows == pending };
		sched->entries[h].computed += rows;
		sched->entries[h].length += rows == pending;
		sched->entries[h].sampled[sched->entries[h].outstanding++] = rows == pending;
		budget -= rows;
		plan.rows += rows;
		plan.sampled += rows == pending;
	}
	if (plan.count == 0 && stuck != UINT32_MAX)
		evict(sched, stuck, &free_blocks, &plan);
	*ret = plan;
}

void sched_confirm(struct sched *sched, uint32_t handle, uint32_t new_tokens)
{
	sched->entries[handle].length += new_tokens - sched->entries[handle].sampled[0];
	sched->entries[handle].sampled[0] = sched->entries[handle].sampled[1];
	sched->entries[handle].outstanding--;
}

void sched_learn(struct sched *sched, uint32_t generated)
{
	(void)sched;
	(void)generated;
}

void sched_feedback(struct sched *sched, uint32_t rows, uint32_t sequences, uint64_t step_ns)
{
	(void)sched, (void)rows, (void)sequences, (void)step_ns;
}

uint32_t sched_running(const struct sched *sched) { return count_state(sched, STATE_RUNNING); }
uint32_t sched_waiting(const struct sched *sched) { return count_state(sched, STATE_WAITING); }

void sched_set_drafts(struct sched *sched, uint32_t handle, uint32_t drafts) { (void)sched, (void)handle, (void)drafts; }

void sched_stats(const struct sched *sched, struct sched_stats *ret)
{
	(void)sched;
	*ret = (struct sched_stats){ .preempted = total_evictions };
}

/* ---- the test --------------------------------------------------------------------------------------------------------- */

static void answers_with(uint32_t depth)
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

	struct engine_options    options = fake_options();

	options.depth = depth;
	fake_init(&backend, &model);
	fake_sink_init(&sink);
	backend.late = depth == 2;
	engine = fake_engine(&backend, &model, &sink, &options);
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

START_TEST(answers_do_not_depend_on_the_policy)
{
	answers_with(1);
	answers_with(2);
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
