/* Unit tests of the thread team: every item once, results visible, idle and busy teams, more threads than processors. */
#include "cpu/team.h"

#include "base/clock.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ITEMS_MAX = 300 };

struct counts {
	uint32_t seen[ITEMS_MAX]; /* plain on purpose: the thread sanitizer must find no race */
	uint32_t input;
	unsigned threads;
};

static void count_items(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	struct counts *counts = context;

	if (thread >= counts->threads)
		abort();
	for (uint32_t i = first; i < first + count; i++)
		counts->seen[i] += counts->input;
}

START_TEST(each_item_once)
{
	struct counts counts = { .threads = (unsigned)_i };
	struct team  *team;
	uint32_t      expected = 0;

	ck_assert_int_eq(team_create((unsigned)_i, &team, NULL), STATUS_OK);
	ck_assert_uint_eq(team_threads(team), (unsigned)_i);
	for (uint32_t round = 0; round < 800; round++) {
		uint32_t items = round % 7 == 0 ? ITEMS_MAX : 1 + round % ITEMS_MAX;

		memset(counts.seen, 0, sizeof counts.seen);
		counts.input = round + 1;
		expected = round + 1;
		team_run(team, count_items, &counts, items);
		for (uint32_t i = 0; i < ITEMS_MAX; i++)
			ck_assert_uint_eq(counts.seen[i], i < items ? expected : 0);
	}
	team_run(team, count_items, &counts, 0);
	team_destroy(team);
}
END_TEST

/* Workers fall asleep between jobs; nothing is lost. */
START_TEST(after_sleep)
{
	struct counts counts = { .threads = 3, .input = 1 };
	struct team  *team;

	ck_assert_int_eq(team_create(3, &team, NULL), STATUS_OK);
	for (uint32_t round = 0; round < 100; round++) {
		struct timespec pause = { 0, 1000000 };

		nanosleep(&pause, NULL); /* lets the workers sleep; nothing waits for it */
		team_run(team, count_items, &counts, ITEMS_MAX);
	}
	for (uint32_t i = 0; i < ITEMS_MAX; i++)
		ck_assert_uint_eq(counts.seen[i], 100);
	team_destroy(team);
}
END_TEST

static void long_item(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	struct counts  *counts = context;
	struct timespec pause = { 0, 3000000 };

	(void)thread;
	nanosleep(&pause, NULL);
	for (uint32_t i = first; i < first + count; i++)
		counts->seen[i]++;
}

/* The caller sleeps until the last item is done. */
START_TEST(caller_sleeps)
{
	struct counts counts = { .threads = 3 };
	struct team  *team;

	ck_assert_int_eq(team_create(3, &team, NULL), STATUS_OK);
	for (uint32_t round = 1; round <= 20; round++) {
		team_run(team, long_item, &counts, 3);
		for (uint32_t i = 0; i < 3; i++)
			ck_assert_uint_eq(counts.seen[i], round);
	}
	team_destroy(team);
}
END_TEST

START_TEST(bounds)
{
	struct team *team = NULL;
	struct error error;

	ck_assert_int_eq(team_create(0, &team, &error), STATUS_INVALID);
	ck_assert_int_eq(team_create(TEAM_THREADS_MAX + 1, &team, &error), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "257"));
	ck_assert_ptr_null(team);
	team_destroy(NULL);
	for (int i = 0; i < 50; i++) { /* a team that never worked */
		ck_assert_int_eq(team_create(1 + (unsigned)i % 5, &team, &error), STATUS_OK);
		team_destroy(team);
	}
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("cpu team");
	TCase   *tcase = tcase_create("team");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 900);
	tcase_add_loop_test(tcase, each_item_once, 1, 6);
	tcase_add_test(tcase, after_sleep);
	tcase_add_test(tcase, caller_sleeps);
	tcase_add_test(tcase, bounds);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
