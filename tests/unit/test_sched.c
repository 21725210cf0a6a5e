/* Tests of the pure half of the engine: kv (block pool) and sched (who runs), alone and together.
 *
 * The property test drives both with random operations and keeps a naive model beside them: a list of requests in order
 * of arrival and a bitmap of blocks.  PENSTOCK_TEST_ROUNDS (default 40) is the number of random runs. */
#include "engine/kv.h"
#include "engine/sched.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* ---- kv ----------------------------------------------------------------------------------------------------------- */

START_TEST(kv_counts)
{
	struct kv_pool *pool = NULL;
	struct kv_table a = { 0 }, b = { 0 };

	ck_assert_int_eq(kv_pool_create(0, 16, &pool), STATUS_LIMIT);
	ck_assert_int_eq(kv_pool_create(1 << 30, 64, &pool), STATUS_LIMIT); /* slots would pass int32 */
	ck_assert_ptr_null(pool);
	ck_assert_int_eq(kv_pool_create(10, 16, &pool), STATUS_OK);
	ck_assert_uint_eq(kv_pool_blocks_for(pool, 0), 0);
	ck_assert_uint_eq(kv_pool_blocks_for(pool, 16), 1);
	ck_assert_uint_eq(kv_pool_blocks_for(pool, 17), 2);
	ck_assert_uint_eq(kv_pool_blocks_for(pool, UINT64_MAX), UINT32_MAX);

	ck_assert_int_eq(kv_table_grow(pool, &a, 33), STATUS_OK);
	ck_assert_uint_eq(a.count, 3);
	ck_assert_int_eq(kv_table_grow(pool, &a, 20), STATUS_OK); /* never shrinks */
	ck_assert_uint_eq(a.count, 3);
	ck_assert_int_eq(kv_table_grow(pool, &b, 16 * 8), STATUS_FULL); /* all or nothing */
	ck_assert_uint_eq(b.count, 0);
	ck_assert_uint_eq(kv_pool_free_blocks(pool), 7);
	ck_assert_int_eq(kv_table_grow(pool, &b, 16 * 7), STATUS_OK);
	ck_assert_uint_eq(kv_pool_free_blocks(pool), 0);
	ck_assert_int_eq(kv_table_slot(pool, &a, 17), a.blocks[1] * 16 + 1);
	kv_table_free(pool, &a);
	kv_table_free(pool, &a);
	ck_assert_uint_eq(kv_pool_free_blocks(pool), 3);
	kv_table_free(pool, &b);
	ck_assert_uint_eq(kv_pool_free_blocks(pool), kv_pool_total_blocks(pool));
	kv_pool_destroy(pool);
	kv_pool_destroy(NULL);
}
END_TEST

/* ---- sched alone --------------------------------------------------------------------------------------------------- */

static struct sched *make_sched(uint32_t capacity, uint32_t max_running, uint32_t step_tokens)
{
	struct sched *sched = NULL;
	ck_assert_int_eq(sched_create(&(struct sched_options){ capacity, max_running, step_tokens }, &sched), STATUS_OK);
	return sched;
}

static void add(struct sched *sched, uint32_t handle, uint32_t length, uint32_t blocks)
{
	sched_add(sched, handle, &(struct sched_job){ .length = length, .blocks = blocks });
}

START_TEST(sched_refuses_nonsense)
{
	struct sched *sched = NULL;
	ck_assert_int_eq(sched_create(&(struct sched_options){ 4, 0, 16 }, &sched), STATUS_INVALID);
	ck_assert_int_eq(sched_create(&(struct sched_options){ 40, 20, 16 }, &sched), STATUS_INVALID);
	ck_assert_int_eq(sched_create(&(struct sched_options){ 4, 8, 16 }, &sched), STATUS_INVALID);
	ck_assert_ptr_null(sched);
	sched_destroy(NULL);
}
END_TEST

/* A long prompt is cut into chunks beside a running decode, which gets its row in every step. */
START_TEST(sched_chunks_beside_decodes)
{
	struct sched     *sched = make_sched(4, 4, 16);
	struct sched_plan plan;

	add(sched, 0, 4, 1);
	sched_plan(sched, 10, 0, &plan);
	ck_assert_uint_eq(plan.count, 1);
	ck_assert(plan.items[0].admitted && plan.items[0].sampled);
	sched_confirm(sched, 0, 1);

	add(sched, 1, 40, 3);
	for (uint32_t step = 0, start = 0; step < 3; step++) {
		uint32_t rows = step < 2 ? 15 : 10;
		sched_plan(sched, 9, 0, &plan);
		ck_assert_uint_eq(plan.count, 2);
		ck_assert_uint_eq(plan.items[0].handle, 0);
		ck_assert_uint_eq(plan.items[0].rows, 1);
		ck_assert_uint_eq(plan.items[0].start, 4 + step);
		ck_assert_uint_eq(plan.items[1].handle, 1);
		ck_assert_uint_eq(plan.items[1].start, start);
		ck_assert_uint_eq(plan.items[1].rows, rows);
		ck_assert_int_eq(plan.items[1].admitted, step == 0);
		ck_assert_int_eq(plan.items[1].sampled, step == 2);
		sched_confirm(sched, 0, 1);
		sched_confirm(sched, 1, step == 2);
		start += rows;
	}
	sched_destroy(sched);
}
END_TEST

/* A head that does not fit waits, and a small request behind it does not overtake. */
START_TEST(sched_nobody_overtakes)
{
	struct sched     *sched = make_sched(4, 4, 64);
	struct sched_plan plan;

	add(sched, 0, 8, 6);
	add(sched, 1, 8, 5);
	add(sched, 2, 8, 1);
	sched_plan(sched, 10, 0, &plan);
	ck_assert_uint_eq(plan.count, 1);
	sched_confirm(sched, 0, 1);
	sched_plan(sched, 4, 0, &plan);
	ck_assert_uint_eq(plan.count, 1);
	ck_assert_uint_eq(sched_waiting(sched), 2);
	sched_remove(sched, 0);
	sched_plan(sched, 10, 0, &plan);
	ck_assert_uint_eq(plan.count, 2);
	ck_assert_uint_eq(plan.items[0].handle, 1);
	ck_assert_uint_eq(plan.items[1].handle, 2);
	sched_destroy(sched);
}
END_TEST

START_TEST(sched_paused_is_left_out)
{
	struct sched     *sched = make_sched(4, 4, 64);
	struct sched_plan plan;

	add(sched, 3, 8, 1);
	sched_plan(sched, 10, 0, &plan);
	sched_confirm(sched, 3, 1);
	sched_set_paused(sched, 3, true);
	sched_plan(sched, 9, 0, &plan);
	ck_assert_uint_eq(plan.count, 0);
	ck_assert_uint_eq(sched_running(sched), 1);
	sched_set_paused(sched, 3, false);
	sched_plan(sched, 9, 0, &plan);
	ck_assert_uint_eq(plan.count, 1);
	sched_destroy(sched);
}
END_TEST

/* ---- both against a naive model ------------------------------------------------------------------------------------ */

/* As ck_assert, which writes to a file every time it holds: too slow for millions of checks. */
#define check(condition) \
	do { \
		if (!(condition)) \
			ck_abort_msg("%s", #condition); \
	} while (0)

enum { CAPACITY = 24, REQUESTS = 300 };

enum phase { PHASE_NONE, PHASE_WAITING, PHASE_RUNNING };

struct request {
	enum phase      phase;
	bool            paused;
	uint64_t        order; /* of arrival */
	uint32_t        length, computed, target; /* target: length at which it ends */
	uint32_t        blocks, ends;
	struct kv_table table;
};

struct world {
	unsigned         seed;
	uint32_t         max_running, step_tokens, block_size, total;
	struct sched    *sched;
	struct kv_pool  *pool;
	struct request   requests[CAPACITY];
	uint64_t         arrivals, accepted, ended;
};

static uint32_t below(struct world *w, uint32_t n)
{
	w->seed = w->seed * 1664525u + 1013904223u;
	return (uint32_t)((uint64_t)(w->seed >> 8) * n >> 24);
}

static uint32_t count_phase(const struct world *w, enum phase phase)
{
	uint32_t n = 0;
	for (uint32_t h = 0; h < CAPACITY; h++)
		n += w->requests[h].phase == phase;
	return n;
}

/* Every block is free or in exactly one table, and the counts agree. */
static void check_blocks(const struct world *w)
{
	unsigned char owner[4096] = { 0 };
	uint32_t      used = 0;

	for (uint32_t h = 0; h < CAPACITY; h++)
		for (uint32_t i = 0; i < w->requests[h].table.count; i++) {
			int32_t block = w->requests[h].table.blocks[i];
			check(block >= 0);
			check((uint32_t)block < w->total);
			check(owner[block]++ == 0);
			used++;
		}
	check(used + kv_pool_free_blocks(w->pool) == w->total);
}

static void world_add(struct world *w)
{
	uint32_t        prompt = 1 + below(w, 3 * w->step_tokens), most = w->total * w->block_size, max;
	struct request *r = NULL;
	uint32_t        h;

	for (h = 0; h < CAPACITY; h++)
		if (w->requests[h].phase == PHASE_NONE) {
			r = &w->requests[h];
			break;
		}
	if (!r)
		return;
	if (prompt >= most)
		prompt = most - 1;
	max = 1 + below(w, most - prompt < 40 ? most - prompt : 40);
	*r = (struct request){ .phase = PHASE_WAITING, .order = w->arrivals++, .length = prompt, .target = prompt + max };
	r->blocks = kv_pool_blocks_for(w->pool, r->target);
	sched_add(w->sched, h, &(struct sched_job){ .length = prompt, .blocks = r->blocks, .arrival_ns = r->order });
	w->accepted++;
}

static void world_end(struct world *w, uint32_t h)
{
	struct request *r = &w->requests[h];

	check(r->ends++ == 0);
	kv_table_free(w->pool, &r->table);
	sched_remove(w->sched, h);
	r->phase = PHASE_NONE;
	w->ended++;
}

static const struct request *oldest_waiting(const struct world *w)
{
	const struct request *oldest = NULL;
	for (uint32_t h = 0; h < CAPACITY; h++)
		if (w->requests[h].phase == PHASE_WAITING && (!oldest || w->requests[h].order < oldest->order))
			oldest = &w->requests[h];
	return oldest;
}

static void world_step(struct world *w)
{
	struct sched_plan     plan;
	bool                  planned[CAPACITY] = { false };
	uint32_t              rows = 0, sampled = 0;
	bool                  chunks = false;
	const struct request *head;

	sched_plan(w->sched, kv_pool_free_blocks(w->pool), 0, &plan);
	check(plan.evicted_count == 0);
	for (uint32_t i = 0; i < plan.count; i++) {
		const struct sched_item *item = &plan.items[i];
		struct request          *r = &w->requests[item->handle];
		bool                     decode = r->computed > 0 && r->length - r->computed == 1;

		check(item->handle < CAPACITY);
		check(!planned[item->handle]);
		planned[item->handle] = true;
		check(!r->paused);
		check(item->start == r->computed);
		check(item->rows >= 1);
		check(item->start + item->rows <= r->length);
		check(item->sampled == (item->start + item->rows == r->length));
		check(item->admitted == (r->phase == PHASE_WAITING));
		check(!(decode && chunks)); /* decodes first */
		chunks = chunks || !decode;
		if (item->admitted) {
			check(r == oldest_waiting(w)); /* first come, first served */
			r->phase = PHASE_RUNNING;
			check(kv_table_grow(w->pool, &r->table, r->target) == STATUS_OK);
			check(r->table.count == r->blocks);
		}
		rows += item->rows;
		sampled += item->sampled;
	}
	check(rows == plan.rows);
	check(sampled == plan.sampled);
	check(rows <= w->step_tokens);
	check(count_phase(w, PHASE_RUNNING) <= w->max_running);
	check(count_phase(w, PHASE_RUNNING) == sched_running(w->sched));
	check(count_phase(w, PHASE_WAITING) == sched_waiting(w->sched));
	check_blocks(w);

	/* Nothing that could run is left out. */
	for (uint32_t h = 0; h < CAPACITY; h++) {
		const struct request *r = &w->requests[h];
		if (r->phase == PHASE_RUNNING && !r->paused && !planned[h]) {
			check(rows == w->step_tokens);
			check(r->length - r->computed > 1); /* a decode always has its row */
		}
	}
	head = oldest_waiting(w);
	if (head && rows < w->step_tokens && count_phase(w, PHASE_RUNNING) < w->max_running)
		check(head->blocks > kv_pool_free_blocks(w->pool));

	for (uint32_t i = 0; i < plan.count; i++) {
		struct sched_item item = plan.items[i];
		struct request   *r = &w->requests[item.handle];

		r->computed += item.rows;
		if (item.sampled && below(w, 20) == 0) { /* an end-of-sequence id: no token, no confirmation */
			world_end(w, item.handle);
			continue;
		}
		r->length += item.sampled;
		sched_confirm(w->sched, item.handle, item.sampled);
		if (r->length == r->target)
			world_end(w, item.handle);
	}
}

static void run_world(unsigned seed)
{
	struct world w = { .seed = seed * 2654435761u + 1 };
	uint32_t     guard = 0;

	w.max_running = 1 + below(&w, 8);
	w.step_tokens = w.max_running + below(&w, 64);
	w.block_size = 1u << (2 + below(&w, 4));
	w.total = 2 + below(&w, 60);
	w.sched = make_sched(CAPACITY, w.max_running, w.step_tokens);
	check(kv_pool_create(w.total, w.block_size, &w.pool) == STATUS_OK);
	while (w.accepted < REQUESTS || w.accepted != w.ended) {
		uint32_t h = below(&w, CAPACITY);
		switch (below(&w, 6)) {
		case 0:
			if (w.accepted < REQUESTS)
				world_add(&w);
			break;
		case 1: /* cancel */
			if (w.requests[h].phase != PHASE_NONE && below(&w, 4) == 0)
				world_end(&w, h);
			break;
		case 2: /* credit comes and goes */
			if (w.requests[h].phase == PHASE_RUNNING) {
				w.requests[h].paused = !w.requests[h].paused;
				sched_set_paused(w.sched, h, w.requests[h].paused);
			}
			break;
		default:
			world_step(&w);
		}
		check_blocks(&w);
		check(guard++ < 10000000);
	}
	check(w.accepted == w.ended);
	check(kv_pool_free_blocks(w.pool) == w.total);
	check(sched_running(w.sched) + sched_waiting(w.sched) == 0);
	sched_destroy(w.sched);
	kv_pool_destroy(w.pool);
}

START_TEST(random_operations)
{
	const char *text = getenv("PENSTOCK_TEST_ROUNDS");
	unsigned    rounds = text ? (unsigned)strtoul(text, NULL, 10) : 40;

	for (unsigned seed = 0; seed < rounds; seed++)
		run_world(seed);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("sched");
	TCase   *tcase = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 600);
	tcase_add_test(tcase, kv_counts);
	tcase_add_test(tcase, sched_refuses_nonsense);
	tcase_add_test(tcase, sched_chunks_beside_decodes);
	tcase_add_test(tcase, sched_nobody_overtakes);
	tcase_add_test(tcase, sched_paused_is_left_out);
	tcase_add_test(tcase, random_operations);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
