/* Unit tests of the estimate of answer lengths. */
#include "engine/estimate.h"

#include "base/random.h"

#include <check.h>
#include <stdlib.h>

START_TEST(before_anything_is_learned_the_prior_is_the_answer)
{
	struct estimate estimate;

	estimate_init(&estimate);
	ck_assert_uint_ge(estimate_tokens(&estimate, UINT32_MAX), ESTIMATE_PRIOR);
	ck_assert_uint_le(estimate_tokens(&estimate, UINT32_MAX), ESTIMATE_PRIOR * 5 / 4);
	ck_assert_uint_eq(estimate_tokens(&estimate, 20), 20);
	ck_assert_uint_eq(estimate_tokens(&estimate, 1), 1);
	ck_assert_uint_eq(estimate_tokens(&estimate, 0), 1);
}
END_TEST

/* Any length comes back within half a bin once it is all there is; the limit always binds. */
START_TEST(one_length_is_learned)
{
	for (uint64_t length = 1; length <= UINT32_MAX; length = length * 5 / 4 + 1) {
		struct estimate estimate;
		uint32_t        tokens;

		estimate_init(&estimate);
		for (int i = 0; i < 32 * ESTIMATE_WINDOW; i++)
			estimate_learn(&estimate, (uint32_t)length);
		tokens = estimate_tokens(&estimate, UINT32_MAX);
		ck_assert_msg(tokens >= length * 8 / 9 && tokens <= length * 9 / 8 + 1, "%llu tokens learned, %u estimated",
		    (unsigned long long)length, tokens);
		for (uint32_t limit = 1; limit < length; limit = limit * 2 + 1)
			ck_assert_uint_le(estimate_tokens(&estimate, limit), limit);
	}
}
END_TEST

START_TEST(the_mean_of_a_mix_is_learned_and_forgotten)
{
	struct estimate estimate;
	struct random   random = { 7 };
	uint32_t        tokens;

	estimate_init(&estimate);
	for (int i = 0; i < 20000; i++)
		estimate_learn(&estimate, random_below(&random, 4) ? 100 : 1100);
	tokens = estimate_tokens(&estimate, 100000);
	ck_assert_msg(tokens > 300 && tokens < 400, "%u", tokens); /* 0.75 × 100 + 0.25 × 1,100 = 350 */
	tokens = estimate_tokens(&estimate, 100);
	ck_assert_msg(tokens > 90 && tokens <= 100, "%u", tokens);
	for (int i = 0; i < 8 * ESTIMATE_WINDOW; i++)
		estimate_learn(&estimate, 10);
	tokens = estimate_tokens(&estimate, 100000);
	ck_assert_msg(tokens >= 9 && tokens <= 12, "%u", tokens);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("estimate");
	TCase   *tcase = tcase_create("estimate");
	SRunner *runner;
	int      failed;

	tcase_add_test(tcase, before_anything_is_learned_the_prior_is_the_answer);
	tcase_add_test(tcase, one_length_is_learned);
	tcase_add_test(tcase, the_mean_of_a_mix_is_learned_and_forgotten);
	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
