/* Tests of the pure half of the engine: kv (block pool) and sched (who runs), alone and together.
 *
 * The property test drives the scheduler with random operations and keeps a naive model beside it: lists of requests, a
 * count of blocks, plans that are outstanding.  PENSTOCK_TEST_ROUNDS (default 60) is the number of random runs. */
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

static struct sched *make_sched(const struct sched_options *options)
{
	struct sched *sched = NULL;
	ck_assert_int_eq(sched_create(options, &sched), STATUS_OK);
	return sched;
}

/* First come, first served, blocks of 16, a pool of 64 blocks. */
static struct sched *make_fcfs(uint32_t capacity, uint32_t max_running, uint32_t step_tokens, uint32_t blocks)
{
	return make_sched(&(struct sched_options){ .capacity = capacity, .max_running = max_running,
	    .step_tokens = step_tokens, .block_size = 16, .blocks = blocks });
}

static void add(struct sched *sched, uint32_t handle, uint32_t length, uint32_t max_new)
{
	sched_add(sched, handle, &(struct sched_job){ .length = length, .max_new = max_new });
}

static const struct sched_item *find(const struct sched_plan *plan, uint32_t handle)
{
	for (uint32_t i = 0; i < plan->count; i++)
		if (plan->items[i].handle == handle)
			return &plan->items[i];
	return NULL;
}

START_TEST(sched_refuses_nonsense)
{
	struct sched_options options = { .capacity = 4, .max_running = 4, .step_tokens = 16, .block_size = 16, .blocks = 4 };
	struct sched_options bad;
	struct sched        *sched = NULL;

	bad = options, bad.max_running = 0;
	ck_assert_int_eq(sched_create(&bad, &sched), STATUS_INVALID);
	bad = options, bad.step_tokens = 3;
	ck_assert_int_eq(sched_create(&bad, &sched), STATUS_INVALID);
	bad = options, bad.capacity = 3;
	ck_assert_int_eq(sched_create(&bad, &sched), STATUS_INVALID);
	bad = options, bad.depth = 3;
	ck_assert_int_eq(sched_create(&bad, &sched), STATUS_INVALID);
	bad = options, bad.block_size = 0;
	ck_assert_int_eq(sched_create(&bad, &sched), STATUS_INVALID);
	ck_assert_ptr_null(sched);
	sched_destroy(NULL);
}
END_TEST

/* A long prompt is cut into chunks beside a running decode, which gets its row in every step. */
START_TEST(sched_chunks_beside_decodes)
{
	struct sched     *sched = make_fcfs(4, 4, 16, 64);
	struct sched_plan plan;

	add(sched, 0, 4, 20);
	sched_plan(sched, 64, 0, &plan);
	ck_assert_uint_eq(plan.count, 1);
	ck_assert(plan.items[0].admitted && plan.items[0].sampled);
	sched_confirm(sched, 0, 1);

	add(sched, 1, 40, 20);
	for (uint32_t step = 0, start = 0; step < 3; step++) {
		uint32_t rows = step < 2 ? 15 : 10;
		sched_plan(sched, 60, 0, &plan);
		ck_assert_uint_eq(plan.count, 2);
		ck_assert_uint_eq(plan.items[0].handle, 0);
		ck_assert_uint_eq(plan.items[0].rows, 1);
		ck_assert_uint_eq(plan.items[0].start, 4 + step);
		ck_assert_uint_eq(plan.items[1].handle, 1);
		ck_assert_uint_eq(plan.items[1].start, start);
		ck_assert_uint_eq(plan.items[1].rows, rows);
		ck_assert_uint_eq(plan.items[1].blocks, (start + rows + 15) / 16);
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
	struct sched     *sched = make_fcfs(4, 4, 64, 10);
	struct sched_plan plan;

	add(sched, 0, 8, 88);
	add(sched, 1, 8, 72);
	add(sched, 2, 8, 8);
	sched_plan(sched, 10, 0, &plan);
	ck_assert_uint_eq(plan.count, 1);
	sched_confirm(sched, 0, 1);
	sched_plan(sched, 9, 0, &plan);
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
	struct sched     *sched = make_fcfs(4, 4, 64, 10);
	struct sched_plan plan;

	add(sched, 3, 8, 8);
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

/* The second plan goes on where the first, unconfirmed one will have ended, and no further than the limit. */
START_TEST(sched_plans_ahead)
{
	struct sched     *sched = make_sched(&(struct sched_options){ .capacity = 2, .max_running = 2, .step_tokens = 8,
	    .block_size = 4, .blocks = 20, .depth = 2 });
	struct sched_plan plan;

	add(sched, 0, 10, 2);
	sched_plan(sched, 20, 0, &plan);
	ck_assert_uint_eq(plan.items[0].rows, 8);
	ck_assert_uint_eq(plan.items[0].blocks, 2);
	sched_plan(sched, 18, 0, &plan);
	ck_assert_uint_eq(plan.items[0].start, 8);
	ck_assert_uint_eq(plan.items[0].rows, 2);
	ck_assert(plan.items[0].sampled);
	sched_confirm(sched, 0, 0);
	sched_plan(sched, 17, 0, &plan); /* a decode of a token that nobody knows yet */
	ck_assert_uint_eq(plan.items[0].start, 10);
	ck_assert_uint_eq(plan.items[0].rows, 1);
	sched_confirm(sched, 0, 1);
	sched_plan(sched, 17, 0, &plan); /* both tokens are drawn or on their way */
	ck_assert_uint_eq(plan.count, 0);
	sched_remove(sched, 0);
	sched_destroy(sched);
}
END_TEST

/* Guesses get rows and blocks that are there, are no more than may follow, and count as far as they were right. */
START_TEST(sched_takes_guesses_along)
{
	struct sched     *sched = make_sched(&(struct sched_options){ .capacity = 2, .max_running = 2, .step_tokens = 8,
	    .block_size = 4, .blocks = 20, .depth = 2, .draft_rows = 6 });
	struct sched_plan plan;

	add(sched, 0, 5, 9);
	sched_set_drafts(sched, 0, 3); /* it waits: void */
	sched_plan(sched, 20, 0, &plan);
	ck_assert(plan.items[0].rows == 5 && plan.items[0].drafts == 0);
	sched_confirm(sched, 0, 1);
	sched_set_drafts(sched, 0, 7);
	sched_plan(sched, 1, 0, &plan);
	ck_assert(plan.items[0].start == 5 && plan.items[0].rows == 7 && plan.items[0].drafts == 6 && plan.items[0].sampled);
	ck_assert(plan.rows == 7 && plan.drafts == 6 && plan.sampled == 1 && plan.items[0].blocks == 3);
	sched_plan(sched, 0, 0, &plan); /* where it goes on is not known */
	ck_assert_uint_eq(plan.count, 0);
	sched_confirm(sched, 0, 2); /* one was right */
	sched_set_drafts(sched, 0, 2);
	sched_set_drafts(sched, 0, 7);
	sched_plan(sched, 0, 0, &plan); /* 7 of 14 are computed, blocks for 12 are held, none is free */
	ck_assert(plan.items[0].start == 7 && plan.items[0].rows == 5 && plan.items[0].blocks == 3);
	sched_confirm(sched, 0, 5); /* all were */
	sched_plan(sched, 1, 0, &plan); /* no more were offered */
	ck_assert(plan.items[0].start == 12 && plan.items[0].rows == 1 && plan.items[0].blocks == 4);
	sched_confirm(sched, 0, 1);
	sched_set_drafts(sched, 0, 7);
	sched_plan(sched, 0, 0, &plan); /* fourteen tokens are all there may be */
	ck_assert_uint_eq(plan.count, 0);
	sched_remove(sched, 0);
	sched_destroy(sched);
}
END_TEST

/* When blocks are short the latest loses its own, waits, and goes on where it was. */
START_TEST(sched_evicts_the_latest)
{
	struct sched      *sched = make_fcfs(3, 3, 64, 4);
	struct sched_plan  plan;
	struct sched_stats stats;

	for (uint32_t h = 0; h < 2; h++)
		sched_add(sched, h, &(struct sched_job){ .length = 30, .max_new = 30, .expected = 1 });
	sched_plan(sched, 4, 0, &plan);
	ck_assert_uint_eq(plan.count, 1); /* 30 + 8 tokens of each are more than four blocks */
	sched_remove(sched, 0);
	sched_remove(sched, 1);
	for (uint32_t h = 0; h < 2; h++)
		sched_add(sched, h, &(struct sched_job){ .length = 20, .max_new = 40, .expected = 1 });
	sched_plan(sched, 4, 0, &plan);
	ck_assert_uint_eq(plan.count, 2);
	for (uint32_t step = 0; step < 12; step++) {
		sched_confirm(sched, 0, 1);
		sched_confirm(sched, 1, 1);
		sched_plan(sched, 0, 0, &plan);
		ck_assert_uint_eq(plan.evicted_count, 0);
	}
	sched_confirm(sched, 0, 1);
	sched_confirm(sched, 1, 1);
	sched_plan(sched, 0, 0, &plan);
	ck_assert_uint_eq(plan.evicted_count, 1);
	ck_assert_uint_eq(plan.evicted[0], 1);
	ck_assert_uint_eq(plan.count, 1);
	ck_assert_uint_eq(plan.items[0].blocks, 3);
	sched_stats(sched, &stats);
	ck_assert_uint_eq(stats.preempted, 1);
	ck_assert_uint_eq(stats.preempted_tokens, 32);
	sched_confirm(sched, 0, 1);
	sched_plan(sched, 1, 0, &plan);
	ck_assert_ptr_null(find(&plan, 1)); /* not at once: it would lose them again */
	sched_remove(sched, 0);
	sched_plan(sched, 4, 0, &plan);
	ck_assert_uint_eq(plan.items[0].rows, 33);
	ck_assert(plan.items[0].admitted && plan.items[0].sampled);
	sched_destroy(sched);
}
END_TEST

/* A better class takes the place of a worse one, also when it is the number of sequences that stops it; after a few plans. */
START_TEST(sched_class_preempts_at_the_cap)
{
	struct sched     *sched = make_sched(&(struct sched_options){ .policy = SCHED_FAIR, .capacity = 4, .max_running = 2,
	    .step_tokens = 16, .block_size = 16, .blocks = 100 });
	struct sched_plan plan;

	for (uint32_t h = 0; h < 2; h++)
		sched_add(sched, h, &(struct sched_job){ .length = 4, .max_new = 30, .class = h == 0 ? 5 : 3 });
	sched_plan(sched, 100, 0, &plan);
	ck_assert_uint_eq(plan.count, 2);
	sched_confirm(sched, 0, 1);
	sched_confirm(sched, 1, 1);
	sched_add(sched, 2, &(struct sched_job){ .length = 4, .max_new = 30, .class = 3 });
	for (int plans = 0; plans < 3; plans++) { /* one of them might have ended by itself */
		sched_plan(sched, 98, 0, &plan);
		ck_assert_uint_eq(plan.evicted_count, 0);
		sched_confirm(sched, 0, 1);
		sched_confirm(sched, 1, 1);
	}
	sched_plan(sched, 98, 0, &plan);
	ck_assert_uint_eq(plan.evicted_count, 1);
	ck_assert_uint_eq(plan.evicted[0], 0);
	ck_assert_ptr_nonnull(find(&plan, 2));
	sched_add(sched, 3, &(struct sched_job){ .length = 4, .max_new = 30, .class = 3 }); /* not of the same class */
	sched_confirm(sched, 1, 1);
	sched_confirm(sched, 2, 1);
	sched_plan(sched, 98, 0, &plan);
	ck_assert_uint_eq(plan.evicted_count, 0);
	ck_assert_ptr_null(find(&plan, 3));
	sched_destroy(sched);
}
END_TEST

/* Beside a prompt of many steps a short one has its first token in the step after it came, and the long one its share. */
START_TEST(sched_long_prompts_stand_aside)
{
	struct sched     *sched = make_sched(&(struct sched_options){ .policy = SCHED_FAIR, .capacity = 64, .max_running = 32,
	    .step_tokens = 64, .block_size = 16, .blocks = 10000, .long_prompt_tokens = 200 });
	struct sched_plan plan;
	uint32_t          free_blocks = 10000, steps = 0;

	sched_add(sched, 0, &(struct sched_job){ .length = 6400, .max_new = 1 });
	for (uint32_t h = 1;; h++) {
		const struct sched_item *item;
		bool                     last;

		sched_add(sched, h, &(struct sched_job){ .length = 40, .max_new = 1, .arrival_ns = h });
		sched_plan(sched, free_blocks, h, &plan);
		item = find(&plan, h);
		ck_assert(item && item->sampled);
		item = find(&plan, 0);
		ck_assert(item && item->rows >= 16);
		last = item->sampled;
		if (h == 1)
			ck_assert_uint_eq(item->rows, 24); /* what the short one leaves */
		steps++;
		sched_remove(sched, h);
		if (last)
			break;
		sched_confirm(sched, 0, 0);
		h %= 50;
	}
	ck_assert_uint_eq(steps, (6400 + 23) / 24);
	sched_destroy(sched);
}
END_TEST

/* Ageing: a big request is overtaken by smaller ones for as long as its size says, and not any longer. */
START_TEST(sched_shortest_first_with_ageing)
{
	struct sched     *sched = make_sched(&(struct sched_options){ .policy = SCHED_PRIORITY, .capacity = 8, .max_running = 1,
	    .step_tokens = 1000, .block_size = 16, .blocks = 10000 });
	struct sched_plan plan;

	sched_add(sched, 0, &(struct sched_job){ .length = 500, .max_new = 1, .arrival_ns = 0 });
	sched_add(sched, 1, &(struct sched_job){ .length = 100, .max_new = 1, .arrival_ns = 300000000 });
	sched_add(sched, 2, &(struct sched_job){ .length = 100, .max_new = 1, .arrival_ns = 450000000 });
	sched_add(sched, 3, &(struct sched_job){ .length = 900, .max_new = 1, .arrival_ns = 450000000, .class = -1 });
	for (uint32_t i = 0; i < 4; i++) {
		static const uint32_t order[] = { 3, 1, 0, 2 };
		sched_plan(sched, 10000, 500000000, &plan);
		ck_assert_uint_eq(plan.count, 1);
		ck_assert_uint_eq(plan.items[0].handle, order[i]);
		sched_remove(sched, order[i]);
	}
	sched_destroy(sched);
}
END_TEST

/* Served or rejected by max_queue_wait; a deadline counts in every state. */
START_TEST(sched_waits_have_an_end)
{
	struct sched     *sched = make_sched(&(struct sched_options){ .policy = SCHED_FAIR, .capacity = 4, .max_running = 1,
	    .step_tokens = 16, .block_size = 16, .blocks = 100, .max_queue_wait_ns = 1000 });
	struct sched_plan plan;

	sched_add(sched, 0, &(struct sched_job){ .length = 4, .max_new = 90, .arrival_ns = 100, .deadline_ns = 3000 });
	sched_add(sched, 1, &(struct sched_job){ .length = 4, .max_new = 9, .arrival_ns = 200 });
	sched_add(sched, 2, &(struct sched_job){ .length = 4, .max_new = 9, .arrival_ns = 2500, .deadline_ns = 2700 });
	sched_plan(sched, 100, 1099, &plan);
	sched_confirm(sched, 0, 1);
	sched_plan(sched, 99, 1199, &plan);
	ck_assert_uint_eq(plan.expired_count, 0);
	sched_confirm(sched, 0, 1);
	sched_plan(sched, 99, 1200, &plan);
	ck_assert_uint_eq(plan.expired_count, 1);
	ck_assert_uint_eq(plan.expired[0], 1);
	ck_assert_uint_eq(plan.count, 1);
	sched_remove(sched, 1);
	sched_confirm(sched, 0, 1);
	sched_plan(sched, 99, 2700, &plan);
	ck_assert_uint_eq(plan.expired_count, 1);
	ck_assert_uint_eq(plan.expired[0], 2);
	sched_remove(sched, 2);
	sched_confirm(sched, 0, 1);
	sched_plan(sched, 99, 3000, &plan);
	ck_assert_uint_eq(plan.expired_count, 1);
	ck_assert_uint_eq(plan.expired[0], 0);
	ck_assert_uint_eq(plan.count, 0);
	sched_remove(sched, 0);
	ck_assert_uint_eq(sched_running(sched) + sched_waiting(sched), 0);
	sched_destroy(sched);
}
END_TEST

/* Two keys that always have more to do are served alike, however unlike their requests are. */
START_TEST(sched_fair_keys_are_served_alike)
{
	struct sched     *sched = make_sched(&(struct sched_options){ .policy = SCHED_FAIR, .capacity = 64, .max_running = 8,
	    .step_tokens = 64, .block_size = 16, .blocks = 1000, .long_prompt_tokens = 500 });
	struct sched_plan plan;
	uint64_t          service[2] = { 0, 0 };
	uint32_t          owner[64], target[64], length[64], held[64] = { 0 }, free_blocks = 1000;

	for (uint32_t h = 0; h < 64; h++)
		owner[h] = UINT32_MAX;
	for (uint32_t step = 0; step < 20000; step++) {
		uint32_t waiting[2] = { 0, 0 };

		for (uint32_t h = 0; h < 64; h++)
			if (owner[h] != UINT32_MAX && held[h] == 0)
				waiting[owner[h]]++;
		for (uint32_t h = 0, key; h < 64; h++) {
			if (owner[h] != UINT32_MAX || (waiting[0] >= 20 && waiting[1] >= 3))
				continue;
			key = waiting[0] < 20 ? 0 : 1;
			owner[h] = key;
			waiting[key]++;
			length[h] = key ? 300 : 20 + step % 40; /* one sends long prompts with short answers, the other the opposite */
			target[h] = length[h] + (key ? 10 : 50 + step % 100);
			sched_add(sched, h, &(struct sched_job){ .length = length[h], .max_new = 200, .expected = 60, .key = 7 + key,
			    .arrival_ns = step });
		}
		sched_plan(sched, free_blocks, step, &plan);
		ck_assert_uint_eq(plan.evicted_count, 0);
		for (uint32_t i = 0; i < plan.count; i++) {
			struct sched_item item = plan.items[i];
			uint32_t          h = item.handle;

			free_blocks -= item.blocks - held[h];
			held[h] = item.blocks;
			service[owner[h]] += item.rows;
			if (item.sampled && ++length[h] == target[h]) {
				service[owner[h]]++; /* the last token has no row */
				sched_remove(sched, h);
				free_blocks += held[h];
				held[h] = 0;
				owner[h] = UINT32_MAX;
			} else {
				sched_confirm(sched, h, item.sampled);
			}
		}
	}
	ck_assert_uint_gt(service[0], 100000);
	ck_assert_msg(service[0] * 20 > service[1] * 19 && service[1] * 20 > service[0] * 19, "%llu and %llu tokens",
	    (unsigned long long)service[0], (unsigned long long)service[1]);
	sched_destroy(sched);
}
END_TEST

/* Steps of 1 ms + 10 µs a row + 20 µs a sequence: prompts beside decodes shrink so that the target is kept. */
START_TEST(sched_chunks_follow_the_target)
{
	struct sched      *sched = make_sched(&(struct sched_options){ .policy = SCHED_FAIR, .capacity = 64, .max_running = 32,
	    .step_tokens = 1024, .block_size = 16, .blocks = 100000, .itl_target_ns = 3000000 });
	struct sched_plan  plan;
	struct sched_stats stats;
	uint64_t           last_ns = 0;

	for (uint32_t h = 0; h < 8; h++)
		sched_add(sched, h, &(struct sched_job){ .length = 10 * h + 4, .max_new = 1000, .expected = 100 });
	sched_add(sched, 8, &(struct sched_job){ .length = 200000, .max_new = 10 });
	for (uint32_t step = 0; step < 60; step++) {
		sched_plan(sched, 90000, step, &plan);
		last_ns = 1000000 + plan.rows * 10000 + plan.count * 20000;
		sched_feedback(sched, plan.rows, plan.count, last_ns);
		for (uint32_t i = 0; i < plan.count; i++)
			sched_confirm(sched, plan.items[i].handle, plan.items[i].sampled);
		ck_assert_uint_eq(plan.count, 9);
	}
	sched_stats(sched, &stats);
	ck_assert_uint_gt(last_ns, 2800000);
	ck_assert_uint_le(last_ns, 3050000);
	ck_assert_uint_gt(stats.row_ns, 9000);
	ck_assert_uint_lt(stats.row_ns, 11000);
	sched_destroy(sched);
}
END_TEST

/* ---- against a naive model ------------------------------------------------------------------------------------------ */

/* As ck_assert, which writes to a file every time it holds: too slow for millions of checks. */
#define check(condition) \
	do { \
		if (!(condition)) \
			ck_abort_msg("%s (line %d, seed %u)", #condition, __LINE__, w->number); \
	} while (0)

enum { CAPACITY = 24, REQUESTS = 300, ITEMS_MAX = CAPACITY };
#define TOKEN_NS UINT64_C(1000000) /* what a token is worth in waiting time while nothing is known of costs */

enum phase { PHASE_NONE, PHASE_WAITING, PHASE_RUNNING, PHASE_LEFT /* ended, but a plan names it */ };

struct request {
	enum phase phase;
	bool       paused, started, evicted, settling;
	uint64_t   order, arrival_ns, deadline_ns, score;
	int32_t    class;
	uint32_t   length, computed; /* outstanding plans included */
	uint32_t   target, limit;    /* length at which it ends, and that it may reach */
	uint32_t   blocks, outstanding, ends;
	uint32_t   late_blocks;      /* lost, but a plan names them */
	bool       is_long;
	uint32_t   offered, drafts;  /* guesses that there are, and those of an outstanding plan */
};

struct outstanding {
	struct sched_item items[ITEMS_MAX];
	uint32_t          count;
};

struct world {
	unsigned             seed, number;
	struct sched_options options;
	struct sched        *sched;
	struct request       requests[CAPACITY];
	struct outstanding   plans[2];
	uint32_t             plan_count, free_blocks;
	uint64_t             now_ns, arrivals, accepted, ended, evictions, drafts;
	bool                 feedback, optimist; /* step times are told; estimates are always too low */
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

static uint32_t blocks_for(const struct world *w, uint32_t tokens)
{
	return (tokens + w->options.block_size - 1) / w->options.block_size;
}

static void check_blocks(const struct world *w)
{
	uint32_t used = 0;

	for (uint32_t h = 0; h < CAPACITY; h++)
		used += w->requests[h].blocks + w->requests[h].late_blocks;
	check(used + w->free_blocks == w->options.blocks);
}

static void world_add(struct world *w)
{
	uint32_t         most = w->options.blocks * w->options.block_size, prompt, max, cached = 0, h;
	struct request  *r = NULL;
	struct sched_job job;

	for (h = 0; h < CAPACITY; h++)
		if (w->requests[h].phase == PHASE_NONE) {
			r = &w->requests[h];
			break;
		}
	if (!r)
		return;
	prompt = 1 + below(w, below(w, 4) ? w->options.step_tokens : 6 * w->options.step_tokens);
	if (prompt >= most)
		prompt = most - 1;
	max = 1 + below(w, most - prompt < 60 ? most - prompt : 60);
	if (prompt > 1 && below(w, 8) == 0 && prompt / w->options.block_size < w->free_blocks)
		cached = below(w, prompt); /* < prompt */
	*r = (struct request){ .phase = PHASE_WAITING, .order = w->arrivals++, .arrival_ns = w->now_ns, .length = prompt,
		.computed = cached, .target = prompt + 1 + below(w, max), .limit = prompt + max };
	r->class = below(w, 3) ? 0 : (int32_t)below(w, 5) - 2;
	if (below(w, 6) == 0)
		r->deadline_ns = w->now_ns + below(w, 9000);
	r->blocks = cached / w->options.block_size;
	w->free_blocks -= r->blocks;
	r->is_long = w->options.policy != SCHED_FCFS && w->options.long_prompt_tokens &&
	    prompt - cached > w->options.long_prompt_tokens;
	job = (struct sched_job){ .length = prompt, .max_new = max, .expected = w->optimist ? 1 : 1 + below(w, max), .cached = cached,
		.class = r->class, .key = below(w, 3), .arrival_ns = r->arrival_ns, .deadline_ns = r->deadline_ns };
	if (w->options.policy == SCHED_FCFS)
		r->class = 0;
	r->score = (prompt - cached + job.expected) * TOKEN_NS;
	if (w->options.max_queue_wait_ns && r->score > w->options.max_queue_wait_ns / 2)
		r->score = w->options.max_queue_wait_ns / 2;
	r->score += r->arrival_ns;
	sched_add(w->sched, h, &job);
	w->accepted++;
}

/* Its blocks come back, but for those that a plan names. */
static void lose_blocks(struct world *w, struct request *r)
{
	if (r->outstanding)
		r->late_blocks += r->blocks;
	else
		w->free_blocks += r->blocks;
	r->blocks = 0;
}

static void world_end(struct world *w, uint32_t h)
{
	struct request *r = &w->requests[h];

	check(r->ends++ == 0);
	sched_remove(w->sched, h);
	lose_blocks(w, r);
	r->phase = r->outstanding ? PHASE_LEFT : PHASE_NONE;
	w->ended++;
}

static void check_evicted(struct world *w, const struct sched_plan *plan)
{
	for (uint32_t i = 0; i < plan->evicted_count; i++) {
		struct request *r = &w->requests[plan->evicted[i]];

		check(r->phase == PHASE_RUNNING || (r->phase == PHASE_WAITING && r->computed > 0));
		check(r->length < r->limit); /* not one that only waits for its last token */
		check(r->drafts == 0);
		if (r->phase == PHASE_RUNNING)
			r->evicted = true;
		r->phase = PHASE_WAITING;
		r->settling = r->outstanding > 0;
		r->is_long = w->options.policy != SCHED_FCFS && w->options.long_prompt_tokens &&
		    r->length > w->options.long_prompt_tokens;
		lose_blocks(w, r);
		r->computed = 0;
		w->evictions++;
	}
	for (uint32_t i = 0; i < plan->evicted_count; i++) /* no worse class keeps what a better one lost */
		for (uint32_t h = 0; h < CAPACITY; h++) {
			const struct request *v = &w->requests[plan->evicted[i]], *r = &w->requests[h];
			if (r->phase == PHASE_RUNNING && !v->paused && !r->paused && r->length < r->limit && plan->count > 1)
				check(r->class <= v->class || !find(plan, h) || find(plan, h)->admitted);
		}
}

static void check_expired(struct world *w, const struct sched_plan *plan)
{
	for (uint32_t i = 0; i < plan->expired_count; i++) {
		const struct request *r = &w->requests[plan->expired[i]];

		check(r->phase == PHASE_WAITING || r->phase == PHASE_RUNNING);
		check((!r->started && w->options.max_queue_wait_ns && w->now_ns - r->arrival_ns >= w->options.max_queue_wait_ns) ||
		    (r->deadline_ns && (w->feedback || w->now_ns >= r->deadline_ns)));
		world_end(w, plan->expired[i]);
	}
	for (uint32_t h = 0; h < CAPACITY; h++) {
		const struct request *r = &w->requests[h];

		if (r->phase == PHASE_WAITING && !r->started && w->options.max_queue_wait_ns)
			check(w->now_ns - r->arrival_ns < w->options.max_queue_wait_ns);
		if (r->phase == PHASE_RUNNING && r->deadline_ns)
			check(w->now_ns < r->deadline_ns);
	}
}

/* Nobody who might have been admitted instead of R should have been, by class, age or size. */
static void check_admission(struct world *w, const struct request *r, uint32_t handle)
{
	for (uint32_t h = 0; h < CAPACITY; h++) {
		const struct request *o = &w->requests[h];

		if (h == handle || o->phase != PHASE_WAITING || o->paused || o->settling || o->evicted || o->is_long != r->is_long)
			continue;
		check(o->class >= r->class);
		if (o->class > r->class || r->evicted || o->computed || r->computed)
			continue;
		if (w->options.policy == SCHED_FCFS)
			check(o->order > r->order);
		else if (w->options.policy == SCHED_PRIORITY && !w->feedback)
			check(o->score >= r->score);
	}
}

static void world_plan(struct world *w)
{
	struct sched_plan   plan;
	struct outstanding *copy = &w->plans[w->plan_count];
	bool                planned[CAPACITY] = { false }, chunks = false;
	uint32_t            rows = 0, sampled = 0, drafts = 0;

	for (uint32_t h = 0; h < CAPACITY; h++) {
		struct request *r = &w->requests[h];

		r->offered = r->phase == PHASE_RUNNING && below(w, 2) ? below(w, 8) : 0;
		if (r->offered)
			sched_set_drafts(w->sched, h, r->offered);
	}
	sched_plan(w->sched, w->free_blocks, w->now_ns, &plan);
	check(plan.count <= w->options.max_running);
	check_evicted(w, &plan);
	check_expired(w, &plan);
	for (uint32_t i = 0; i < plan.count; i++) {
		const struct sched_item *item = &plan.items[i];
		struct request          *r = &w->requests[item->handle];
		bool                     decode = r->phase == PHASE_RUNNING && r->computed > 0 && r->length - r->computed == 1;

		check(item->handle < CAPACITY && !planned[item->handle]);
		planned[item->handle] = true;
		check(!r->paused && !r->settling && r->drafts == 0);
		check(item->drafts == 0 || (decode && r->outstanding == 0 && item->rows == 1 + item->drafts));
		check(item->drafts <= r->offered);
		check(r->phase == PHASE_WAITING || r->phase == PHASE_RUNNING);
		check(item->start == r->computed);
		check(item->rows >= 1);
		check(item->start + item->rows - item->drafts <= r->length);
		check(item->sampled == (item->start + item->rows - item->drafts == r->length));
		check(item->admitted == (r->phase == PHASE_WAITING));
		check(item->blocks == blocks_for(w, item->start + item->rows));
		check(!(decode && chunks)); /* decodes first */
		chunks = chunks || !decode;
		if (item->blocks > r->blocks) { /* guesses that were wrong may have left it with more */
			check(item->blocks - r->blocks <= w->free_blocks);
			w->free_blocks -= item->blocks - r->blocks;
			r->blocks = item->blocks;
		}
		if (item->admitted) {
			r->phase = PHASE_RUNNING;
			r->started = true;
			check_admission(w, r, item->handle);
			r->evicted = false;
		}
		r->computed += item->rows;
		r->length += item->sampled + item->drafts;
		r->outstanding++;
		r->drafts = item->drafts;
		check(r->length <= r->limit);
		rows += item->rows;
		drafts += item->drafts;
		sampled += item->sampled;
		copy->items[i] = *item;
	}
	copy->count = plan.count;
	w->plan_count += plan.count > 0;
	check(rows == plan.rows);
	check(sampled == plan.sampled);
	check(drafts == plan.drafts && drafts <= w->options.draft_rows);
	w->drafts += drafts;
	check(rows <= w->options.step_tokens);
	check(count_phase(w, PHASE_RUNNING) <= w->options.max_running);
	check(count_phase(w, PHASE_RUNNING) == sched_running(w->sched));
	check(count_phase(w, PHASE_WAITING) == sched_waiting(w->sched));
	check_blocks(w);
	for (uint32_t h = 0; h < CAPACITY; h++) { /* a decode has its row unless there is no block for it */
		const struct request *r = &w->requests[h];
		if (r->phase == PHASE_RUNNING && !r->paused && !planned[h] && r->computed > 0 && r->length - r->computed == 1 &&
		    r->length < r->limit && !r->drafts && plan.evicted_count + plan.expired_count == 0)
			check(w->free_blocks == 0 && r->computed == r->blocks * w->options.block_size);
	}
	if (w->feedback)
		sched_feedback(w->sched, plan.rows, plan.count, 100 + 3 * plan.rows + below(w, 50));
}

/* The oldest plan has been computed. */
static void world_confirm(struct world *w)
{
	struct outstanding plan = w->plans[0];

	w->plans[0] = w->plans[1];
	w->plan_count--;
	for (uint32_t i = 0; i < plan.count; i++) {
		struct sched_item item = plan.items[i];
		struct request   *r = &w->requests[item.handle];
		uint32_t          given = item.sampled ? 1 + below(w, item.drafts + 1) : 0;

		r->drafts = 0; /* it is in no later plan if there were any */
		if (--r->outstanding == 0) {
			w->free_blocks += r->late_blocks;
			r->late_blocks = 0;
			if (r->phase == PHASE_LEFT) {
				r->phase = PHASE_NONE;
				continue;
			}
		}
		if (r->phase == PHASE_LEFT)
			continue;
		if (item.sampled && below(w, 60) == 0) { /* an end-of-sequence id: no token, no confirmation */
			world_end(w, item.handle);
			continue;
		}
		sched_confirm(w->sched, item.handle, given);
		if (item.drafts) {
			r->length -= 1 + item.drafts - given;
			r->computed -= 1 + item.drafts - given;
		}
		r->settling = r->settling && r->outstanding > 0;
		if (item.sampled && item.start + item.rows - item.drafts + given >= r->target)
			world_end(w, item.handle);
	}
}

static uint64_t run_world(unsigned number)
{
	struct world  world = { .seed = number * 2654435761u + 1, .number = number }, *w = &world;
	uint32_t      guard = 0;
	bool          calm = false;
	struct sched_stats stats;

	w->options = (struct sched_options){ .policy = (enum sched_policy)(number % 3), .capacity = CAPACITY };
	w->options.max_running = 1 + below(w, 8);
	w->options.step_tokens = w->options.max_running + below(w, 64);
	w->options.block_size = 1u << (2 + below(w, 4));
	w->options.blocks = w->free_blocks = 2 + below(w, 60);
	w->options.depth = 1 + number / 3 % 2;
	w->options.long_prompt_tokens = below(w, 2) ? below(w, 3 * w->options.step_tokens) : 0;
	w->options.max_queue_wait_ns = below(w, 2) ? 2000 + below(w, 30000) : 0;
	w->feedback = below(w, 2);
	w->options.itl_target_ns = w->feedback && below(w, 2) ? 200 : 0;
	w->optimist = below(w, 2);
	w->options.draft_rows = below(w, 2) ? below(w, 30) : 0;
	w->sched = make_sched(&w->options);
	while (w->accepted < REQUESTS || w->accepted != w->ended) {
		uint32_t h = below(w, CAPACITY);

		w->now_ns += below(w, 30);
		switch (below(w, 7)) {
		case 0:
			if (w->accepted < REQUESTS)
				world_add(w);
			break;
		case 1: /* cancel */
			if ((w->requests[h].phase == PHASE_WAITING || w->requests[h].phase == PHASE_RUNNING) && below(w, 40) == 0)
				world_end(w, h);
			break;
		case 2: /* credit comes and goes */
			if (w->requests[h].phase == PHASE_WAITING || w->requests[h].phase == PHASE_RUNNING) {
				w->requests[h].paused = !w->requests[h].paused && !calm;
				sched_set_paused(w->sched, h, w->requests[h].paused);
			}
			break;
		case 3:
			if (w->plan_count > 0)
				world_confirm(w);
			break;
		default:
			if (w->plan_count < w->options.depth)
				world_plan(w);
			else
				world_confirm(w);
		}
		check_blocks(w);
		check(guard++ < 2000000);
		calm = guard > 1000000; /* whatever is paused for ever holds nothing up */
	}
	while (w->plan_count > 0)
		world_confirm(w);
	check(w->free_blocks == w->options.blocks);
	check(sched_running(w->sched) + sched_waiting(w->sched) == 0);
	sched_stats(w->sched, &stats);
	check(stats.preempted <= w->evictions);
	sched_destroy(w->sched);
	return w->drafts;
}

START_TEST(random_operations)
{
	const char *text = getenv("PENSTOCK_TEST_ROUNDS");
	unsigned    rounds = text ? (unsigned)strtoul(text, NULL, 10) : 60;
	uint64_t    drafts = 0;

	for (unsigned number = 0; number < rounds; number++)
		drafts += run_world(number);
	ck_assert_uint_gt(drafts, rounds);
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
	tcase_add_test(tcase, sched_plans_ahead);
	tcase_add_test(tcase, sched_takes_guesses_along);
	tcase_add_test(tcase, sched_evicts_the_latest);
	tcase_add_test(tcase, sched_class_preempts_at_the_cap);
	tcase_add_test(tcase, sched_long_prompts_stand_aside);
	tcase_add_test(tcase, sched_shortest_first_with_ageing);
	tcase_add_test(tcase, sched_waits_have_an_end);
	tcase_add_test(tcase, sched_fair_keys_are_served_alike);
	tcase_add_test(tcase, sched_chunks_follow_the_target);
	tcase_add_test(tcase, random_operations);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
