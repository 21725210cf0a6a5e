/* Unit tests of src/base/program: the daemons' command line. */
#include "base/program.h"

#include <check.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

static const struct program program = { .name = "penstock-test", .summary = "Tests.",
	.default_conf = "/nonexistent/penstock.conf", .version = "1.0", .loads_model = true, .takes_listen_fd = true };

/* Starts with "--config FILE" (a file that holds TEXT) and the arguments given, NULL at the end. */
static enum program_action start(const char *text, struct conf *ret, int *ret_fd, const char *const *arguments)
{
	char  path[] = "/tmp/penstock-test-program-XXXXXX", *argv[20];
	int   fd = mkstemp(path), argc = 0;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	argv[argc++] = strdup("penstock-test");
	argv[argc++] = strdup("--config");
	argv[argc++] = strdup(path);
	for (; *arguments; arguments++)
		argv[argc++] = strdup(*arguments);
	argv[argc] = NULL;
	optind = 0; /* getopt starts anew */
	enum program_action action = program_start(&program, argc, argv, ret, ret_fd);
	while (argc > 0)
		free(argv[--argc]);
	unlink(path);
	return action;
}

#define ARGUMENTS(...) ((const char *const[]){ __VA_ARGS__, NULL })

START_TEST(sets_go_over_the_file)
{
	struct conf conf;
	int         fd = 7;

	ck_assert_int_eq(start("[batcher]\nmax_running = 4\n", &conf, &fd,
	    ARGUMENTS("--set", "batcher.max_running=5", "--set=model.name=a=b")), PROGRAM_RUN);
	ck_assert_int_eq(conf.batcher_max_running, 5);
	ck_assert_str_eq(conf.model_name, "a=b");
	ck_assert_int_eq(fd, -1);
	ck_assert_int_eq(start("", &conf, &fd, ARGUMENTS("--listen-fd", "12")), PROGRAM_RUN);
	ck_assert_int_eq(fd, 12);
	ck_assert(!conf.model_check_weights);
	ck_assert_int_eq(start("", &conf, &fd, ARGUMENTS("--check-weights")), PROGRAM_RUN);
	ck_assert(conf.model_check_weights);
}
END_TEST

START_TEST(wrong_arguments_fail_and_leave_conf)
{
	const char *const *cases[] = { ARGUMENTS("--set", "batcher.max_running=0"),
		ARGUMENTS("--set", "batcher.max_running"), ARGUMENTS("--set", "nothing.here=1"),
		ARGUMENTS("--set", "batcher.block_size=17"), ARGUMENTS("--listen-fd", "x"), ARGUMENTS("--listen-fd", "2"),
		ARGUMENTS("--unknown"), ARGUMENTS("argument") };
	struct conf conf;

	memset(&conf, 0x5a, sizeof conf);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		ck_assert_msg(start("", &conf, NULL, cases[i]) == PROGRAM_FAILED, "case %zu", i);
	ck_assert_int_eq(((unsigned char *)&conf)[0], 0x5a);
	ck_assert_int_eq(start("[batcher]\nmax_running = 0\n", &conf, NULL, ARGUMENTS("--check-config")), PROGRAM_FAILED);
}
END_TEST

START_TEST(questions_are_answered)
{
	struct conf conf;

	ck_assert_int_eq(start("", &conf, NULL, ARGUMENTS("--check-config")), PROGRAM_DONE);
	ck_assert_int_eq(start("", &conf, NULL, ARGUMENTS("--dump-config")), PROGRAM_DONE);
	ck_assert_int_eq(start("", &conf, NULL, ARGUMENTS("--version")), PROGRAM_DONE);
	ck_assert_int_eq(start("", &conf, NULL, ARGUMENTS("--help")), PROGRAM_DONE);
}
END_TEST

START_TEST(hardened)
{
	struct rlimit limit;

	close(STDIN_FILENO);
	program_harden();
	ck_assert_int_eq(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_CORE, &limit), 0);
	ck_assert_uint_eq(limit.rlim_cur, 0);
	int fd = dup(STDOUT_FILENO);
	ck_assert_int_gt(fd, STDERR_FILENO);
	close(fd);
}
END_TEST

START_TEST(too_few_descriptors_are_an_error_at_start)
{
	struct error  error;
	struct rlimit limit = { 60, 100 };

	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_int_eq(program_need_files(100, "a test", &error), STATUS_OK);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_uint_eq(limit.rlim_cur, 100);
	ck_assert_int_eq(program_need_files(101, "a test", &error), STATUS_LIMIT);
	ck_assert_ptr_nonnull(strstr(error.message, "may open 100 descriptors, 101 are needed for a test"));
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("program");
	TCase   *tcase = tcase_create("program");
	SRunner *runner = srunner_create(suite);

	tcase_add_test(tcase, sets_go_over_the_file);
	tcase_add_test(tcase, wrong_arguments_fail_and_leave_conf);
	tcase_add_test(tcase, questions_are_answered);
	tcase_add_test(tcase, hardened);
	tcase_add_test(tcase, too_few_descriptors_are_an_error_at_start);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
