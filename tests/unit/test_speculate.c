/* Tests of speculate.h: n-grams against a naive search, what is remembered of guesses and of times, and the choice of how
 * many guesses to check. */
#include "engine/speculate.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static uint32_t look_up(const int32_t *ids, uint32_t prompt, uint32_t count, uint32_t least, uint32_t most, uint32_t want,
    int32_t *ret)
{
	struct speculate_history history = { ids, ids + prompt, prompt, count - prompt };
	return speculate_ngram(&history, least, most, want, ret);
}

START_TEST(the_longest_then_the_latest_place)
{
	/*                    0  1  2  3  4  5  6  7  8  9 10 11 12 */
	const int32_t ids[] = { 1, 2, 3, 9, 2, 3, 7, 5, 3, 8, 1, 2, 3 };
	int32_t       next[3];

	ck_assert_uint_eq(look_up(ids, 4, 13, 1, 8, 3, next), 3); /* 1 2 3, not the later 2 3 nor 3 */
	ck_assert(next[0] == 9 && next[1] == 2 && next[2] == 3);
	ck_assert_uint_eq(look_up(ids, 4, 13, 1, 2, 3, next), 2); /* no more than two may count: the later place */
	ck_assert(next[0] == 7 && next[1] == 5 && next[2] == 3);
	ck_assert_uint_eq(look_up(ids, 13, 13, 1, 1, 2, next), 1);
	ck_assert(next[0] == 8 && next[1] == 1);
	ck_assert_uint_eq(look_up(ids, 0, 13, 4, 8, 3, next), 0);
	ck_assert_uint_eq(look_up(ids, 1, 1, 1, 8, 3, next), 0);
	ck_assert_uint_eq(look_up(ids, 0, 0, 1, 8, 3, next), 0);
}
END_TEST

START_TEST(a_period_goes_on)
{
	const int32_t ids[] = { 5, 1, 2, 3, 1, 2, 3, 1 };
	int32_t       next[7];

	ck_assert_uint_eq(look_up(ids, 3, 8, 2, 4, 7, next), 4);
	for (int i = 0; i < 7; i++)
		ck_assert_int_eq(next[i], 1 + (i + 1) % 3);
}
END_TEST

START_TEST(what_is_far_back_is_not_looked_at)
{
	const uint32_t length = SPECULATE_WINDOW + 100;
	int32_t       *ids = malloc(length * sizeof *ids), next[1];

	ck_assert_ptr_nonnull(ids);
	for (uint32_t i = 0; i < length; i++)
		ids[i] = (int32_t)i;
	ids[50] = ids[length - 1]; /* before the window */
	ck_assert_uint_eq(look_up(ids, length / 2, length, 1, 4, 1, next), 0);
	ids[150] = ids[length - 1];
	ck_assert_uint_eq(look_up(ids, length / 2, length, 1, 4, 1, next), 1);
	ck_assert_int_eq(next[0], 151);
	free(ids);
}
END_TEST

START_TEST(ngrams_are_those_of_a_naive_search)
{
	unsigned seed = 7;

	for (int round = 0; round < 20000; round++) {
		int32_t  ids[40], next[SPECULATE_MOST], naive[40 + SPECULATE_MOST];
		uint32_t count = (uint32_t)rand_r(&seed) % 40, prompt = count ? (uint32_t)rand_r(&seed) % count : 0;
		uint32_t least = 1 + (uint32_t)rand_r(&seed) % 3, most = least + (uint32_t)rand_r(&seed) % 4;
		uint32_t want = 1 + (uint32_t)rand_r(&seed) % SPECULATE_MOST, best = 0, from = 0;

		for (uint32_t i = 0; i < count; i++)
			ids[i] = rand_r(&seed) % 3;
		for (uint32_t end = 1; end < count; end++) {
			uint32_t n = 0;
			while (n < most && n < end && ids[end - 1 - n] == ids[count - 1 - n])
				n++;
			if (n > 0 && n >= best) {
				best = n;
				from = end;
			}
		}
		best = best < least ? 0 : best;
		if (look_up(ids, prompt, count, least, most, want, next) != best)
			ck_abort_msg("round %d: not the longest", round);
		memcpy(naive, ids, count * sizeof *ids);
		for (uint32_t i = 0; best && i < want; i++) {
			naive[count + i] = naive[from + i];
			if (next[i] != naive[count + i])
				ck_abort_msg("round %d: id %u", round, i);
		}
	}
}
END_TEST

START_TEST(rates_follow_what_was_right)
{
	struct speculate_rate all = { 0, 0 }, one = { 0, 0 };

	ck_assert_float_eq_tol(speculate_rate_of(&all), 0.5f, 1e-6f);
	for (int i = 0; i < 200; i++)
		speculate_rate_add(&all, 7, 7);
	ck_assert_float_gt(speculate_rate_of(&all), 0.95f);
	ck_assert_float_eq_tol(speculate_rate_among(&one, &all), speculate_rate_of(&all), 1e-6f);
	for (int i = 0; i < 20; i++)
		speculate_rate_add(&one, 0, 1);
	ck_assert_float_lt(speculate_rate_among(&one, &all), 0.25f);
	for (int i = 0; i < 200; i++)
		speculate_rate_add(&all, 0, 1);
	ck_assert_float_lt(speculate_rate_of(&all), 0.1f);
}
END_TEST

START_TEST(times_are_learned_and_interpolated)
{
	struct speculate_cost cost = { { 0 } };

	ck_assert_double_eq(speculate_cost_ns(&cost, 5), 0);
	speculate_cost_add(&cost, 1, 1000);
	ck_assert_double_eq(speculate_cost_ns(&cost, 64), 1000); /* not known: it is tried */
	speculate_cost_add(&cost, 8, 8000);
	ck_assert_double_eq_tol(speculate_cost_ns(&cost, 4), 4000, 1e-6);
	ck_assert_double_eq_tol(speculate_cost_ns(&cost, 100000), 8000, 1e-6);
	for (int i = 0; i < 100; i++)
		speculate_cost_add(&cost, 8, 4000);
	ck_assert_double_eq_tol(speculate_cost_ns(&cost, 8), 4000, 100);
	ck_assert_double_lt(speculate_cost_ns(&cost, 1), 1000); /* everything got faster, it seems */
	speculate_cost_add(&cost, 8, UINT64_C(1) << 60); /* a step that hung */
	ck_assert_double_lt(speculate_cost_ns(&cost, 8), 5000);
	for (uint32_t rows = 1; rows < 70000; rows = rows * 5 / 4 + 1)
		speculate_cost_add(&cost, rows, 1000 + rows * 10);
}
END_TEST

/* Steps of 1 … 512 rows take STEP + rows · ROW. */
static struct speculate_cost straight(uint64_t step, uint64_t row)
{
	static const uint32_t sizes[] = { 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512 };
	struct speculate_cost cost = { { 0 } };

	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		speculate_cost_add(&cost, sizes[i], step + sizes[i] * row);
	return cost;
}

static uint32_t taken(const struct speculate_offer *offers, uint32_t count)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < count; i++)
		sum += offers[i].take;
	return sum;
}

START_TEST(guesses_are_taken_while_they_pay)
{
	struct speculate_cost  flat = straight(1000000, 1), steep = straight(1, 1000000), half = straight(1000000, 500000);
	struct speculate_cost  none = { { 0 } };
	struct speculate_offer offer = { .rate = 0.9f, .most = 7 };

	speculate_choose(&flat, 1, 0, 0, &offer, 1, 64);
	ck_assert_uint_eq(offer.take, 7); /* rows cost nothing */
	speculate_choose(&steep, 1, 0, 0, &offer, 1, 64);
	ck_assert_uint_eq(offer.take, 0); /* as many rows as tokens: nothing is gained */
	speculate_choose(&none, 1, 0, 0, &offer, 1, 64);
	ck_assert_uint_eq(offer.take, 0); /* nothing is known */
	speculate_choose(&half, 1, 0, 0, &offer, 1, 64);
	ck_assert_uint_ge(offer.take, 4);
	offer.rate = 0.5f;
	speculate_choose(&half, 1, 0, 0, &offer, 1, 64);
	ck_assert_uint_le(offer.take, 1);
	offer.rate = 0.2f;
	speculate_choose(&half, 1, 0, 0, &offer, 1, 64);
	ck_assert_uint_eq(offer.take, 0);
	offer.rate = 0.9f;
	speculate_choose(&flat, 1, 0, 300000, &offer, 1, 64); /* making them takes time, too */
	ck_assert(offer.take > 0 && offer.take < 7);
	speculate_choose(&half, 1, 60, 0, &offer, 1, 64); /* beside a chunk of 60 rows, which makes the step long anyway */
	ck_assert_uint_eq(offer.take, 7);
}
END_TEST

START_TEST(fewer_guesses_under_load)
{
	struct speculate_cost  cost = straight(4000000, 500000);
	struct speculate_offer offers[40];
	uint32_t               before = UINT32_MAX;

	for (uint32_t load = 1; load <= 40; load += 13) {
		for (uint32_t i = 0; i < load; i++)
			offers[i] = (struct speculate_offer){ .rate = 0.6f, .most = 7 };
		speculate_choose(&cost, load, 0, 0, offers, load, 1000);
		ck_assert_uint_le(taken(offers, load) / load, before);
		before = taken(offers, load) / load;
	}
	ck_assert_uint_eq(before, 0);
	for (uint32_t i = 0; i < 40; i++) /* the better ones go first, and no more than there is room for */
		offers[i] = (struct speculate_offer){ .rate = i == 20 ? 0.99f : 0.3f, .most = 7 };
	cost = straight(4000000, 1);
	speculate_choose(&cost, 40, 0, 0, offers, 40, 30);
	ck_assert_uint_eq(offers[20].take, 7);
	ck_assert_uint_le(taken(offers, 40), 30);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("speculate");
	TCase   *tcase = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_test(tcase, the_longest_then_the_latest_place);
	tcase_add_test(tcase, a_period_goes_on);
	tcase_add_test(tcase, what_is_far_back_is_not_looked_at);
	tcase_add_test(tcase, ngrams_are_those_of_a_naive_search);
	tcase_add_test(tcase, rates_follow_what_was_right);
	tcase_add_test(tcase, times_are_learned_and_interpolated);
	tcase_add_test(tcase, guesses_are_taken_while_they_pay);
	tcase_add_test(tcase, fewer_guesses_under_load);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
