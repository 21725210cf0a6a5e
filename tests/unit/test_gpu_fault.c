/* The words about a device that failed, from marks as a device leaves them. */
#include "gpu/fault.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const struct fault_step steps[FAULT_STEPS] = { { 20, 1, 1 }, { 21, 300, 4 }, { 18, 2, 2 }, { 19, 2, 2 } };

static void says(uint32_t step, uint32_t begun, const char *words)
{
	struct fault_marks marks = { step, begun };
	char               said[FAULT_WORDS_MAX];

	fault_words(&marks, steps, said);
	ck_assert_msg(strcmp(said, words) == 0, "%s, not %s", said, words);
}

START_TEST(names_kernel_step_and_batch)
{
	says(20, fault_mark(FAULT_NORM, 3),
	    "step 20 of 1 rows in 1 sequences, kernel norm (launch 3 of the step) or a product after it");
	says(21, fault_mark(FAULT_ATTENTION_PROMPTS, 488),
	    "step 21 of 300 rows in 4 sequences, kernel attention of prompts (launch 488 of the step) or a product after it");
	says(19, fault_mark(FAULT_SAMPLE, 1 << 30),
	    "step 19 of 2 rows in 2 sequences, kernel sample (launch 16777215 of the step) or a product after it");
}
END_TEST

START_TEST(says_nothing_that_was_not_enqueued)
{
	says(0, 0, "no kernel of a step had begun");
	says(20, 0, "no kernel of a step had begun");
	says(24, fault_mark(FAULT_NORM, 3), "no kernel of a step had begun"); /* a step that is not in the list */
	says(20, fault_mark(FAULT_KERNELS, 3), "no kernel of a step had begun");
	says(20, UINT32_MAX, "no kernel of a step had begun");
}
END_TEST

/* Every kernel that can leave a mark has a name. */
START_TEST(all_have_names)
{
	for (int kernel = FAULT_NOTHING + 1; kernel < FAULT_KERNELS; kernel++) {
		struct fault_marks marks = { 20, fault_mark((enum fault_kernel)kernel, 1) };
		char               said[FAULT_WORDS_MAX];

		fault_words(&marks, steps, said);
		ck_assert_msg(strstr(said, "kernel ") && !strstr(said, "kernel  ") && !strstr(said, "(null)"), "%d: %s", kernel, said);
	}
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("gpu_fault");
	TCase   *tcase = tcase_create("words");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_test(tcase, names_kernel_step_and_batch);
	tcase_add_test(tcase, says_nothing_that_was_not_enqueued);
	tcase_add_test(tcase, all_have_names);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
