/* Unit tests of the small parts of src/front: scoreboard, listening socket, helper thread, loading. */
#include "front/helper.h"
#include "front/listen.h"
#include "front/load.h"
#include "front/scoreboard.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[64];

static void make_directory(void)
{
	snprintf(directory, sizeof directory, "/tmp/penstock-test-parts-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void remove_directory(void) { rmdir(directory); }

static char *in_directory(const char *name)
{
	static char path[128];
	snprintf(path, sizeof path, "%s/%s", directory, name);
	return path;
}

/* ---- scoreboard ------------------------------------------------------------------------------------------------ */

START_TEST(dead_child_is_folded)
{
	struct scoreboard *board;
	struct error       error;
	struct buf         text;

	ck_assert_int_eq(scoreboard_create(3, &board, &error), STATUS_OK);
	pid_t pid = fork(); /* shared: what a child counts is seen here */
	if (pid == 0) {
		scoreboard_add(&board->slots[1], COUNTER_CONNECTIONS, 7);
		scoreboard_add(&board->slots[1], COUNTER_OPEN, 2);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	scoreboard_add(&board->slots[2], COUNTER_CONNECTIONS, 3);
	scoreboard_set(&board->slots[2], COUNTER_OPEN, 1);
	ck_assert_uint_eq(scoreboard_sum(board, COUNTER_OPEN), 3);
	scoreboard_fold(board, 1);
	ck_assert_uint_eq(scoreboard_sum(board, COUNTER_CONNECTIONS), 10); /* kept */
	ck_assert_uint_eq(scoreboard_sum(board, COUNTER_OPEN), 1);         /* gone with the child */
	scoreboard_add(&board->slots[1], COUNTER_CONNECTIONS, 1);          /* its successor */
	ck_assert_uint_eq(scoreboard_sum(board, COUNTER_CONNECTIONS), 11);

	buf_init(&text, 1 << 20);
	ck_assert_int_eq(scoreboard_render(board, "nobody-here", &text), STATUS_OK);
	ck_assert_ptr_nonnull(strstr(text.data, "\npenstock_front_connections_total 11\n"));
	ck_assert_ptr_nonnull(strstr(text.data, "penstock_front_responses_total{class=\"2xx\"} 0\n"));
	ck_assert_ptr_null(strstr(text.data, "penstock_steps_total"));
	buf_free(&text);
	buf_init(&text, 100); /* too small for it */
	ck_assert_int_eq(scoreboard_render(board, "nobody-here", &text), STATUS_LIMIT);
	buf_free(&text);
	scoreboard_free(board);
	scoreboard_free(NULL);
}
END_TEST

/* ---- listening socket ------------------------------------------------------------------------------------------ */

static int connect_to(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int                fd = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%.100s", path);
	if (connect(fd, (struct sockaddr *)&address, sizeof address)) {
		close(fd);
		return -1;
	}
	return fd;
}

static bool has_connection(int listen_fd)
{
	int fd = accept(listen_fd, NULL, NULL);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

START_TEST(name_is_taken_over)
{
	struct error error;
	struct stat  info;
	int          old, new, client;
	char        *path = in_directory("front.sock");

	ck_assert(!listen_is_served(path));
	ck_assert_msg(listen_open(path, 5, &old, &error) == STATUS_OK, "%s", error.message);
	ck_assert(listen_is_served(path));
	ck_assert(has_connection(old)); /* that was the question */
	ck_assert_int_eq(stat(path, &info), 0);
	ck_assert_uint_eq(info.st_mode & 0777, 0660);
	client = connect_to(path);
	ck_assert(has_connection(old));
	close(client);
	ck_assert_int_eq(listen_open(path, 5, &new, &error), STATUS_OK);
	client = connect_to(path);
	ck_assert(has_connection(new) && !has_connection(old));
	close(client);
	close(old);
	ck_assert_int_eq(stat(path, &info), 0); /* the old one's end does not take the name along */
	ck_assert_int_eq(listen_inherit(new, &error), STATUS_OK);
	ck_assert_int_eq(listen_inherit(client, &error), STATUS_INVALID);
	close(new);
	ck_assert(!listen_is_served(path)); /* the name alone is nobody */
	unlink(path);
}
END_TEST

START_TEST(names_that_cannot_be)
{
	struct error error;
	char         long_name[200];
	int          fd;
	char        *path = in_directory("file");
	FILE        *file = fopen(path, "w");

	fclose(file);
	ck_assert_int_eq(listen_open(path, 5, &fd, &error), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, path));
	ck_assert_int_eq(access(path, F_OK), 0);
	unlink(path);
	memset(long_name, 'x', sizeof long_name);
	long_name[0] = '/';
	long_name[sizeof long_name - 1] = '\0';
	ck_assert_int_eq(listen_open(long_name, 5, &fd, &error), STATUS_INVALID);
	ck_assert_int_eq(listen_open(in_directory("none/front.sock"), 5, &fd, &error), STATUS_IO);
}
END_TEST

/* ---- helper ------------------------------------------------------------------------------------------------------ */

enum { JOBS = 1000 };

struct numbered {
	struct helper_job job;
	int               number, result;
};

static void square(struct helper_job *job)
{
	struct numbered *n = (struct numbered *)job;
	n->result = n->number * n->number;
}

START_TEST(jobs_come_back_in_order)
{
	static struct numbered jobs[JOBS];
	struct helper          helper;
	struct error           error;
	int                    back = 0;

	ck_assert_int_eq(helper_init(&helper, &error), STATUS_OK);
	ck_assert_ptr_null(helper_take(&helper));
	for (int i = 0; i < JOBS; i++) {
		jobs[i] = (struct numbered){ .job.run = square, .number = i };
		ck_assert_int_eq(helper_submit(&helper, &jobs[i].job), STATUS_OK);
		ck_assert_uint_le(helper.pending, JOBS);
	}
	while (back < JOBS) { /* the descriptor says when there is something, and is quiet again when all is taken */
		struct pollfd p = { .fd = helper.event_fd, .events = POLLIN };
		ck_assert_int_eq(poll(&p, 1, 60000), 1);
		for (struct helper_job *job; (job = helper_take(&helper)); back++) {
			ck_assert_ptr_eq(job, &jobs[back].job);
			ck_assert_int_eq(jobs[back].result, back * back);
		}
	}
	struct pollfd p = { .fd = helper.event_fd, .events = POLLIN };
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	ck_assert_uint_eq(helper.pending, 0);
	helper_stop(&helper);
	helper_stop(&helper);
}
END_TEST

/* ---- loading ----------------------------------------------------------------------------------------------------- */

START_TEST(loading)
{
	struct conf  conf;
	struct load  load;
	struct error error;
	const char  *root = getenv("abs_top_srcdir");
	char        *keys = in_directory("keys");
	FILE        *file;

	conf_defaults(&conf);
	ck_assert_int_eq(load_open(&conf, &load, &error), STATUS_INVALID); /* no model */
	snprintf(conf.model_path, sizeof conf.model_path, "%s", in_directory("none.gguf"));
	ck_assert_int_eq(load_open(&conf, &load, &error), STATUS_IO);
	snprintf(conf.model_path, sizeof conf.model_path, "%.100s/tests/data/tiny.gguf", root ? root : ".");
	keys = in_directory("keys");
	snprintf(conf.front_keys_file, sizeof conf.front_keys_file, "%s", keys);
	ck_assert_int_ne(load_open(&conf, &load, &error), STATUS_OK); /* no key file */
	file = fopen(keys, "w");
	fclose(file);
	ck_assert_msg(load_open(&conf, &load, &error) == STATUS_OK, "%s", error.message);
	ck_assert_str_eq(load.api.model_name, "tiny");
	ck_assert_uint_gt(load.api.max_context, 0);
	ck_assert_ptr_nonnull(load.api.keys);
	ck_assert(!load_is_stale(&load));
	file = fopen(keys, "w");
	fputs("damage\n", file);
	fclose(file);
	struct keys *before = load.api.keys;
	ck_assert_int_ne(load_keys(&load, &error), STATUS_OK);
	ck_assert_ptr_eq(load.api.keys, before);
	load.file.st_size++; /* as if it had been another file */
	ck_assert(load_is_stale(&load));
	load_close(&load);
	load_close(NULL);
	unlink(keys);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("front parts");
	TCase   *tcase = tcase_create("parts");
	SRunner *runner = srunner_create(suite);

	tcase_add_checked_fixture(tcase, make_directory, remove_directory);
	tcase_set_timeout(tcase, 120);
	tcase_add_test(tcase, dead_child_is_folded);
	tcase_add_test(tcase, name_is_taken_over);
	tcase_add_test(tcase, names_that_cannot_be);
	tcase_add_test(tcase, jobs_come_back_in_order);
	tcase_add_test(tcase, loading);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
