/* Tests of the script backend: its file format, which id comes when, pace as a sleep, and that it is deterministic. */
#include "base/clock.h"
#include "engine/script_backend.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const struct script_options options = { .vocab = 1000, .eos = 2 };

static struct backend *parse(const char *text)
{
	struct backend *b = NULL;
	struct error    error;

	ck_assert_msg(script_backend_parse(text, strlen(text), "test", &options, &b, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(b->ops->scratch_alloc(b, &(struct backend_limits){ .logit_rows = 8 }, &error), STATUS_OK);
	return b;
}

static void refused(const char *text, unsigned line, const char *value)
{
	struct backend *b = NULL;
	struct error    error;
	char            where[40];

	snprintf(where, sizeof where, "test:%u: ", line);
	ck_assert_int_ne(script_backend_parse(text, strlen(text), "test", &options, &b, &error), STATUS_OK);
	ck_assert_ptr_null(b);
	ck_assert_msg(!strncmp(error.message, where, strlen(where)), "%s", error.message);
	ck_assert_msg(strstr(error.message, value) != NULL, "%s", error.message);
}

static enum status draw(struct backend *b, uint64_t seed, uint64_t generated, int32_t *ret)
{
	struct batch      batch = { .rows = 1, .sequence_count = 1, .logit_row_count = 1 };
	struct sample_row row = { .generated = generated, .params.seed = seed };
	struct error      error;

	ck_assert_int_eq(b->ops->step_begin(b, &batch), STATUS_OK);
	ck_assert_int_eq(b->ops->sample(b, &row, 1, 1000), STATUS_OK);
	return b->ops->wait(b, ret, 1, &error);
}

static int32_t id(struct backend *b, uint64_t seed, uint64_t generated)
{
	int32_t ret = -7;
	ck_assert_int_eq(draw(b, seed, generated, &ret), STATUS_OK);
	return ret;
}

START_TEST(which_id_comes_when)
{
	struct backend *b = parse("# two scripts\n"
	                          "script a # the first\n"
	                          "  pace 0\n"
	                          "\n"
	                          "ids 10 11\n"
	                          "ids 12\r\n"
	                          "repeat 2\n"
	                          "script b\npace 0\nids 20\neos 30\nrepeat 1\n"
	                          "script c\npace 0\nids 5 nan\nrepeat 0\n"
	                          "script d\npace 0");
	static const int32_t a[] = { 10, 11, 12, 10, 11, 12, 2, 2 };

	for (uint64_t i = 0; i < 8; i++)
		ck_assert_int_eq(id(b, 4, i), a[i]); /* seed 4 of 4 scripts is the first */
	ck_assert_int_eq(id(b, 1, 0), 20);
	ck_assert_int_eq(id(b, 1, 1), 30);
	ck_assert_int_eq(id(b, 2, 1000001), -1);
	ck_assert_int_eq(id(b, UINT64_MAX, 0), 2); /* no ids: the end at once */
	ck_assert_str_eq(b->ops->name, "script");
	b->ops->destroy(b);
}
END_TEST

/* The ids' log probabilities are those of the file, in order, as many as are wanted. */
START_TEST(likely_ids)
{
	struct backend        *b = parse("script a\npace 0\nids 10\nlikely 250 12 3000 20 250 9 500\nids 11\nids 12\nrepeat 2\n");
	struct sample_logprobs got;
	struct batch           batch = { .rows = 1, .sequence_count = 1, .logit_row_count = 1 };

	for (uint64_t at = 0; at < 7; at++) {
		for (uint32_t logprobs = 0; logprobs < 6; logprobs++) {
			struct sample_row row = { .generated = at, .params.logprobs = logprobs };
			struct error      error;
			int32_t           drawn;

			ck_assert_int_eq(b->ops->step_begin(b, &batch), STATUS_OK);
			ck_assert_int_eq(b->ops->sample(b, &row, 1, 1000), STATUS_OK);
			ck_assert_int_eq(b->ops->wait(b, &drawn, 1, &error), STATUS_OK);
			ck_assert_int_eq(b->ops->read_logprobs(b, 0, &got), logprobs ? STATUS_OK : STATUS_INVALID);
			if (logprobs == 0)
				continue;
			if (at == 1 || at == 4) {
				ck_assert(got.drawn == -0.25f);
				ck_assert_uint_eq(got.count, logprobs - 1 < 4 ? logprobs - 1 : 4);
				ck_assert(got.count < 3 || (got.top[2].id == 9 && got.top[2].logprob == -0.5f));
				ck_assert(got.count < 4 || (got.top[3].id == 12 && got.top[3].logprob == -3));
			} else {
				ck_assert(got.drawn == 0 && got.count == (logprobs > 1) && (got.count == 0 || got.top[0].id == drawn));
			}
		}
	}
	ck_assert_int_eq(b->ops->sample_slot(b, 0, &(struct sample_slot){ 0 }), STATUS_OK);
	b->ops->destroy(b);
}
END_TEST

START_TEST(mistakes_are_named)
{
	refused("script a\nlikely\nids 1\n", 2, "begins with a number");
	refused("script a\nlikely x\nids 1\n", 2, "\"x\"");
	refused("script a\nlikely 5 1000 5\nids 1\n", 2, "\"1000\"");
	refused("script a\nlikely 5 10\nids 1\n", 2, "pairs");
	refused("script a\nlikely 5\nlikely 6\nids 1\n", 3, "one likely");
	refused("script a\nlikely 5\n", 3, "followed by ids");
	refused("likely 5\n", 1, "likely");
	refused("", 1, "");
	refused("# nothing\n", 2, "script");
	refused("ids 1\n", 1, "ids");
	refused("script\n", 1, "name");
	refused("script a b\n", 1, "\"b\"");
	refused("script a/b\n", 1, "a/b");
	refused("script a\nids 1\nscript a\n", 3, "unique");
	refused("script a\n\nids 1 2 1000\n", 3, "\"1000\"");
	refused("script a\nids 1 2 -1\n", 2, "\"-1\"");
	refused("script a\nids 0x10\n", 2, "0…999");
	refused("script a\nids 99999999999999999999\n", 2, "99999");
	refused("script a\nids\n", 2, "at least one");
	refused("script a\nids # 1\n", 2, "at least one");
	refused("script a\npace 60000001\n", 2, "60000001");
	refused("script a\npace\n", 2, "pace");
	refused("script a\npace 1 2\n", 2, "\"2\"");
	refused("script a\nrepeat -1\n", 2, "-1");
	refused("script a\neos 1000\n", 2, "1000");
	refused("script a\ndelay 5\n", 3, "delay");
	refused("script a\ndelay 5\nscript b\n", 3, "delay");
	refused("script a\nids 1\nprefill 5\n", 3, "prefill");
	refused("script a\nids 1\noverlap\n", 3, "overlap");
	refused("overlap on\n", 1, "overlap");
	refused("script a\nrepeat 0\n", 3, "ids");
	refused("script a\nwobble 5\n", 2, "wobble");
	refused("script aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", 1, "aaaa");
}
END_TEST

/* Two steps may be on their way; each ends a pace after the one before, and its ids come in order. */
START_TEST(steps_overlap)
{
	struct backend   *b = parse("overlap\nscript a\npace 20000\nids 1 2 fault\n");
	struct batch      batch = { .rows = 1, .sequence_count = 1, .logit_row_count = 1 };
	struct sample_row row = { .generated = 0 };
	struct error      error;
	uint64_t          begin = clock_now_ns();
	int32_t           ret = 0;

	ck_assert_int_eq(b->ops->overlaps, 1);
	for (uint64_t i = 0; i < 3; i++) {
		row.generated = i;
		ck_assert_int_eq(b->ops->step_begin(b, &batch), STATUS_OK);
		ck_assert_int_eq(b->ops->sample(b, &row, 1, 1000), i < 2 ? STATUS_OK : STATUS_LIMIT);
	}
	ck_assert_int_eq(b->ops->wait(b, &ret, 1, &error), STATUS_OK);
	ck_assert_uint_ge(clock_now_ns() - begin, 20000000);
	ck_assert_int_eq(ret, 1);
	ck_assert_int_eq(b->ops->step_begin(b, &batch), STATUS_OK);
	ck_assert_int_eq(b->ops->sample(b, &row, 1, 1000), STATUS_OK);
	ck_assert_int_eq(b->ops->wait(b, &ret, 1, &error), STATUS_OK); /* the fault belongs to the next */
	ck_assert_int_eq(ret, 2);
	ck_assert_int_eq(b->ops->wait(b, &ret, 1, &error), STATUS_IO);
	ck_assert_uint_ge(clock_now_ns() - begin, 60000000);
	b->ops->destroy(b);
}
END_TEST

START_TEST(no_eos_in_the_model)
{
	struct script_options without = { .vocab = 1000, .eos = -1 };
	struct backend       *b = NULL;
	struct error          error;
	const char           *text = "script a\nids 1\n";

	ck_assert_int_eq(script_backend_parse(text, strlen(text), "test", &without, &b, &error), STATUS_INVALID);
	text = "script a\nids 1\neos 3\n";
	ck_assert_int_eq(script_backend_parse(text, strlen(text), "test", &without, &b, &error), STATUS_OK);
	b->ops->destroy(b);
}
END_TEST

/* The whole step sleeps: as long as the slowest stream in it, plus a delay once; and it costs no processor time. */
START_TEST(pace_is_shared_and_sleeps)
{
	struct backend *b = parse("prefill 30000\n"
	                          "script fast\npace 1000\nids 1\nrepeat 0\n"
	                          "script slow\npace 40000\ndelay 60000\nids 3\nids 4\nrepeat 0\n");
	struct batch      batch = { .rows = 2, .sequence_count = 2, .logit_row_count = 2 };
	struct sample_row rows[2] = { { .logit_row = 0, .params.seed = 0 }, { .logit_row = 1, .params.seed = 1 } };
	struct rusage     before, after;
	int32_t           ids[2];
	struct error      error;
	uint64_t          begin = clock_now_ns(), cpu_us;

	getrusage(RUSAGE_SELF, &before);
	for (uint64_t g = 0; g < 3; g++) {
		rows[0].generated = rows[1].generated = g;
		b->ops->step_begin(b, &batch);
		b->ops->sample(b, rows, 2, 1000);
		ck_assert_int_eq(b->ops->wait(b, ids, 2, &error), STATUS_OK);
		ck_assert_int_eq(ids[0], 1);
		ck_assert_int_eq(ids[1], g % 2 ? 4 : 3);
	}
	ck_assert_uint_ge(clock_now_ns() - begin, 180 * CLOCK_NS_PER_MS); /* 40 + 60, 40, 40 */

	batch.logit_row_count = 0;
	begin = clock_now_ns();
	b->ops->step_begin(b, &batch);
	ck_assert_int_eq(b->ops->wait(b, NULL, 0, &error), STATUS_OK);
	ck_assert_uint_ge(clock_now_ns() - begin, 30 * CLOCK_NS_PER_MS);
	getrusage(RUSAGE_SELF, &after);
	cpu_us = (uint64_t)((after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000) + (uint64_t)after.ru_utime.tv_usec -
	    (uint64_t)before.ru_utime.tv_usec;
	ck_assert_uint_lt(cpu_us, 100000); /* a busy wait would have used 210 ms */
	b->ops->destroy(b);
}
END_TEST

START_TEST(a_fault_fails_the_step)
{
	struct backend *b = parse("script a\npace 0\nids 1 fault\n");
	int32_t         got = -7;

	ck_assert_int_eq(id(b, 0, 0), 1);
	ck_assert_int_eq(draw(b, 0, 1, &got), STATUS_IO);
	ck_assert_int_eq(got, -7);
	b->ops->destroy(b);
}
END_TEST

START_TEST(long_scripts)
{
	enum { IDS = 100000 };
	char           *text = malloc(IDS * 5 + 100);
	size_t          len = (size_t)snprintf(text, 100, "script long\npace 0\nids");
	struct backend *b;

	for (int i = 0; i < IDS; i++)
		len += (size_t)snprintf(text + len, 6, " %d", i % 997 % 1000);
	b = parse(text);
	for (uint64_t i = 0; i < IDS; i += 777)
		ck_assert_int_eq(id(b, 0, i), (int32_t)(i % 997));
	ck_assert_int_eq(id(b, 0, IDS), 2);
	b->ops->destroy(b);
	free(text);
}
END_TEST

/* Whatever the text, it is parsed or refused with a place. */
START_TEST(mutations)
{
	static const char good[] = "prefill 10\nscript a # x\npace 5\nids 1 2 nan\ndelay 3\nlikely 5 1 7\nids 4 fault\n"
	                           "repeat 2\neos 9\n";
	unsigned          seed = 3;

	for (int round = 0; round < 20000; round++) {
		char            text[sizeof good];
		struct backend *b = NULL;
		struct error    error = { 0 };

		memcpy(text, good, sizeof good);
		for (int i = rand_r(&seed) % 4; i >= 0; i--) {
			char likely = " \n019-#a"[rand_r(&seed) % 8];
			text[(unsigned)rand_r(&seed) % (sizeof good - 1)] = rand_r(&seed) % 2 ? (char)rand_r(&seed) : likely;
		}
		if (script_backend_parse(text, (unsigned)rand_r(&seed) % sizeof good, "test", &options, &b, &error))
			ck_assert(!strncmp(error.message, "test:", 5) && !b);
		else
			b->ops->destroy(b);
	}
}
END_TEST

START_TEST(files)
{
	char            path[] = "/tmp/penstock-test-script-XXXXXX";
	int             fd = mkstemp(path);
	struct backend *b = NULL;
	struct error    error;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, "script a\nids 7\n", 15), 15);
	close(fd);
	ck_assert_int_eq(script_backend_open(path, &options, &b, &error), STATUS_OK);
	b->ops->destroy(b);
	unlink(path);
	b = NULL;
	ck_assert_int_eq(script_backend_open(path, &options, &b, &error), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(error.message, path));
	ck_assert_ptr_null(b);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("script");
	TCase   *tcase = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 120);
	tcase_add_test(tcase, which_id_comes_when);
	tcase_add_test(tcase, likely_ids);
	tcase_add_test(tcase, mistakes_are_named);
	tcase_add_test(tcase, steps_overlap);
	tcase_add_test(tcase, no_eos_in_the_model);
	tcase_add_test(tcase, pace_is_shared_and_sleeps);
	tcase_add_test(tcase, a_fault_fails_the_step);
	tcase_add_test(tcase, long_scripts);
	tcase_add_test(tcase, mutations);
	tcase_add_test(tcase, files);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
