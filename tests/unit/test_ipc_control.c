/* Unit tests of src/ipc/control.c: listening, framing, passing descriptors, the attach handshake with a child
 * process. */
#include "ipc/control.h"
#include "ipc/doorbell.h"
#include "ipc/lane.h"
#include "ipc/wake.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT_MS = 20000 }; /* never reached unless the test fails */

static char directory[64], path[96];

static void make_directory(void)
{
	snprintf(directory, sizeof directory, "/tmp/penstock-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(directory));
	snprintf(path, sizeof path, "%s/control.sock", directory);
}

static void remove_directory(void)
{
	unlink(path);
	rmdir(directory);
}

static int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int  count = 0;

	ck_assert_ptr_nonnull(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static void await_input(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	ck_assert_int_eq(poll(&p, 1, TIMEOUT_MS), 1);
}

static int accept_one(int listener)
{
	struct error error;
	int          fd = -1;

	await_input(listener);
	ck_assert_int_eq(control_accept(listener, &fd, &error), STATUS_OK);
	return fd;
}

static enum status receive(int fd, struct control_message *ret, struct error *error)
{
	int fds[CONTROL_FDS_MAX], count = 0;

	await_input(fd);
	return control_receive(fd, ret, fds, &count, error);
}

/* ---- listening and connecting ---------------------------------------------------------------------------------- */

START_TEST(listening)
{
	struct error error;
	struct stat  stat;
	int          fd = -1, old = -1, client = -1;
	char         longer[200];
	const mode_t mask = umask(077);

	ck_assert_int_eq(control_connect(path, 100, &client, &error), STATUS_UNAVAILABLE); /* no such file */
	ck_assert_int_eq(control_listen(path, (int)getgid(), &old, &error), STATUS_OK);
	ck_assert_int_eq(lstat(path, &stat), 0);
	ck_assert_uint_eq(stat.st_mode & 07777, 0660);
	umask(mask);
	ck_assert_int_eq(control_accept(old, &client, &error), STATUS_AGAIN); /* does not block */
	/* A dead listener's socket: refused, then replaced. */
	close(old);
	ck_assert_int_eq(control_connect(path, 100, &client, &error), STATUS_UNAVAILABLE);
	ck_assert_ptr_nonnull(strstr(error.message, "is penstockd running"));
	ck_assert_int_eq(control_listen(path, -1, &fd, &error), STATUS_OK);
	ck_assert_int_eq(control_connect(path, 100, &client, &error), STATUS_OK);
	ck_assert_int_ne(fcntl(client, F_GETFL) & O_NONBLOCK, 0);
	ck_assert_int_ne(fcntl(client, F_GETFD) & FD_CLOEXEC, 0);
	ck_assert_int_ne(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
	close(client);
	close(fd);
	/* A file that is no socket is not ours to remove. */
	unlink(path);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	ck_assert_int_ge(fd, 0);
	close(fd);
	ck_assert_int_eq(control_listen(path, -1, &fd, &error), STATUS_INVALID);
	ck_assert_int_eq(access(path, F_OK), 0);
	memset(longer, 'x', sizeof longer - 1);
	longer[sizeof longer - 1] = '\0';
	ck_assert_int_eq(control_listen(longer, -1, &fd, &error), STATUS_INVALID);
	ck_assert_int_eq(control_listen("", -1, &fd, &error), STATUS_INVALID);
	ck_assert_int_eq(control_connect(longer, 100, &fd, &error), STATUS_INVALID);
	ck_assert_int_eq(control_listen("/nonexistent-directory/control.sock", -1, &fd, &error), STATUS_IO);
}
END_TEST

/* ---- framing --------------------------------------------------------------------------------------------------- */

static void make_pair(int ends[2])
{
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
}

START_TEST(messages)
{
	struct control_message sent = { .pid = 5, .slots = 16, .vocab_fingerprint = 99 }, got;
	struct error           error;
	int                    ends[2], fds[CONTROL_FDS_MAX], count = 7;

	make_pair(ends);
	ck_assert_int_eq(control_receive(ends[1], &got, fds, &count, &error), STATUS_AGAIN);
	memset(sent.text, 'x', sizeof sent.text); /* not terminated */
	ck_assert_int_eq(control_send(ends[0], &sent, CONTROL_HELLO, NULL, 0), STATUS_OK);
	ck_assert_int_eq(control_receive(ends[1], &got, fds, &count, &error), STATUS_OK);
	ck_assert_int_eq(count, 0);
	ck_assert_uint_eq(got.type, CONTROL_HELLO);
	ck_assert_uint_eq(got.slots, 16);
	ck_assert_uint_eq(got.vocab_fingerprint, 99);
	ck_assert_uint_eq(strlen(got.text), sizeof got.text - 1);
	ck_assert_int_eq(control_send(ends[0], &sent, CONTROL_WELCOME, fds, CONTROL_FDS_MAX + 1), STATUS_INVALID);
	/* End-of-file and what sending into it says. */
	close(ends[0]);
	ck_assert_int_eq(control_receive(ends[1], &got, fds, &count, &error), STATUS_GONE);
	ck_assert_int_eq(control_send(ends[1], &sent, CONTROL_HELLO, NULL, 0), STATUS_GONE);
	close(ends[1]);
	/* A peer that does not read. */
	make_pair(ends);
	for (int i = 0; i < 100000; i++) {
		enum status status = control_send(ends[0], &sent, CONTROL_HELLO, NULL, 0);
		if (status == STATUS_OK)
			continue;
		ck_assert_int_eq(status, STATUS_FULL);
		break;
	}
	ck_assert_int_eq(control_send(ends[0], &sent, CONTROL_HELLO, NULL, 0), STATUS_FULL);
	close(ends[0]);
	close(ends[1]);
}
END_TEST

/* Sends BYTES of MESSAGE as it is, with COUNT descriptors. */
static void send_raw(int fd, const void *message, size_t bytes, int count)
{
	union {
		struct cmsghdr align;
		char           space[CMSG_SPACE(sizeof(int) * 64)];
	} ancillary;
	struct iovec  part = { .iov_base = (void *)(uintptr_t)message, .iov_len = bytes };
	struct msghdr packet = { .msg_iov = &part, .msg_iovlen = 1 };

	memset(&ancillary, 0, sizeof ancillary);
	if (count) {
		packet.msg_control = ancillary.space;
		packet.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
		struct cmsghdr *rights = CMSG_FIRSTHDR(&packet);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
		for (int i = 0; i < count; i++)
			memcpy(CMSG_DATA(rights) + sizeof(int) * (size_t)i, &fd, sizeof fd);
	}
	ck_assert_int_eq(sendmsg(fd, &packet, 0), (ssize_t)bytes);
}

/* Every way to be wrong is STATUS_INVALID with words, keeps no descriptor, and leaves the outputs alone. */
START_TEST(refused_messages)
{
	struct control_message good = { .pid = 1 }, bad, got = { .pid = 4321 };
	struct error           error;
	char                   large[sizeof good + 8] = { 0 };
	int                    ends[2], fds[CONTROL_FDS_MAX] = { -5, -5 }, count = 7, before;

	make_pair(ends);
	ck_assert_int_eq(control_send(ends[0], &good, CONTROL_HELLO, NULL, 0), STATUS_OK); /* fills the fixed words */
	ck_assert_int_eq(receive(ends[1], &bad, &error), STATUS_OK);
	before = open_descriptors();
	for (int what = 0; what < 11; what++) {
		size_t bytes = sizeof bad;
		int    descriptors = 0;

		bad = good;
		memcpy(large, &good, sizeof good);
		switch (what) {
		case 0: bad.magic ^= 1; break;
		case 1: bad.layout_hash ^= 1; break;
		case 2: bad.type = 0; break;
		case 3: bad.type = CONTROL_DONE + 1; break;
		case 4: bytes = 1; break;
		case 5: bytes = sizeof bad - 1; break;
		case 6: bytes = sizeof large; break;
		case 7: descriptors = 1; break;                            /* HELLO carries none */
		case 8: descriptors = 64; break;                           /* more than there is room for */
		case 9: bad.type = CONTROL_WELCOME; descriptors = CONTROL_FDS_MAX - 1; break; /* needs exactly that many */
		case 10: bad.type = CONTROL_WELCOME; descriptors = CONTROL_FDS_MAX + 1; break;
		}
		send_raw(ends[0], bytes > sizeof bad ? (const void *)large : &bad, bytes, descriptors);
		ck_assert_msg(control_receive(ends[1], &got, fds, &count, &error) == STATUS_INVALID, "case %d", what);
		ck_assert_uint_gt(strlen(error.message), 10);
		ck_assert_msg(open_descriptors() == before, "case %d leaks", what);
	}
	ck_assert_uint_eq(got.pid, 4321);
	ck_assert_int_eq(count, 7);
	ck_assert_int_eq(fds[0], -5);
	close(ends[0]);
	close(ends[1]);
}
END_TEST

/* ---- the handshake --------------------------------------------------------------------------------------------- */

enum { FINGERPRINT = 0x1234567 };

/* Runs BODY in a child process and returns what it exits with after BATCHER has played its part. */
static int with_child(int (*body)(void), void (*batcher)(int listener))
{
	struct error error;
	int          listener, result = 0;
	pid_t        child;

	ck_assert_int_eq(control_listen(path, -1, &listener, &error), STATUS_OK);
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		close(listener);
		_exit(body());
	}
	batcher(listener);
	ck_assert_int_eq(waitpid(child, &result, 0), child);
	close(listener);
	ck_assert(WIFEXITED(result));
	return WEXITSTATUS(result);
}

static enum status attach(int *ret_fd, struct control_message *welcome, int fds[CONTROL_FDS_MAX], struct error *error)
{
	const struct control_message hello = { .vocab_fingerprint = FINGERPRINT, .slots = 4, .stream_window = 4096,
		.pid = (uint32_t)getpid() };

	return control_attach(path, &hello, TIMEOUT_MS, ret_fd, welcome, fds, error);
}

/* The child attaches, writes a record, is woken for an event, and sees the batcher go. */
static int attach_and_talk(void)
{
	struct control_message welcome;
	struct wire_reserve    record = { .header = { .type = WIRE_RESERVE }, .req = 88, .slot = 1 };
	struct lane            lane;
	struct doorbell        bell;
	struct error           error;
	_Alignas(8) char       buffer[WIRE_EVENT_MAX];
	size_t                 bytes;
	int                    fd, fds[CONTROL_FDS_MAX];

	if (attach(&fd, &welcome, fds, &error) != STATUS_OK || welcome.lane != 6 || welcome.epoch != 77 ||
	    welcome.slots != 4)
		return 1;
	if (lane_attach(fds[CONTROL_FD_LANE], &lane, &error) != STATUS_OK || !(fcntl(fds[CONTROL_FD_LANE], F_GETFD) & FD_CLOEXEC))
		return 2;
	if (doorbell_attach(fds[CONTROL_FD_DOORBELL], &bell, &error) != STATUS_OK)
		return 7;
	close(fds[CONTROL_FD_LANE]);
	close(fds[CONTROL_FD_DOORBELL]);
	record.generation = lane_front_open_slot(&lane, 1);
	if (lane_front_write(&lane, &record, sizeof record, NULL, 0) != STATUS_OK)
		return 3;
	/* The batcher of this test reads the lane when it hears from us. */
	if (control_send(fd, &welcome, CONTROL_STATUS, NULL, 0) != STATUS_OK)
		return 4;
	while (lane_front_read(&lane, buffer, sizeof buffer, &bytes) == STATUS_AGAIN) {
		if (lane_front_prepare_wait(&lane)) {
			struct pollfd p = { .fd = fds[CONTROL_FD_WAKE], .events = POLLIN };
			if (poll(&p, 1, TIMEOUT_MS) != 1)
				return 5;
			wake_drain(fds[CONTROL_FD_WAKE]);
		}
		lane_front_end_wait(&lane);
	}
	if (receive(fd, &welcome, &error) != STATUS_GONE)
		return 6;
	doorbell_close(&bell);
	lane_close(&lane);
	return 0;
}

static void welcome_and_talk(int listener)
{
	struct control_message message, welcome = { .vocab_fingerprint = FINGERPRINT, .epoch = 77, .slots = 4, .lane = 6 };
	struct lane_geometry   geometry;
	struct wire_reserve    record;
	struct wire_end        end = { .header = { .type = WIRE_END }, .req = 88, .generation = 1, .slot = 1 };
	struct lane            lane;
	struct wake            wake;
	struct doorbell        bell;
	struct error           error;
	_Alignas(8) char       buffer[WIRE_RECORD_MAX];
	size_t                 bytes;
	int                    fd = accept_one(listener);

	ck_assert_int_eq(receive(fd, &message, &error), STATUS_OK);
	ck_assert_uint_eq(message.type, CONTROL_HELLO);
	ck_assert_int_eq(lane_geometry_plan(message.slots, message.stream_window, &geometry), STATUS_OK);
	ck_assert_int_eq(lane_create(&geometry, &lane, &error), STATUS_OK);
	ck_assert_int_eq(wake_create(&wake, &error), STATUS_OK);
	ck_assert_int_eq(doorbell_create(&bell, &error), STATUS_OK);
	ck_assert_int_eq(control_send(fd, &welcome, CONTROL_WELCOME, (const int[]) { lane.fd, wake.wait_fd, bell.fd }, CONTROL_FDS_MAX),
	    STATUS_OK);
	ck_assert_int_eq(receive(fd, &message, &error), STATUS_OK);
	ck_assert_int_eq(lane_batcher_read(&lane, buffer, sizeof buffer, &bytes), STATUS_OK);
	memcpy(&record, buffer, sizeof record);
	ck_assert_uint_eq(record.header.type, WIRE_RESERVE);
	ck_assert_uint_eq(record.req, 88);
	ck_assert_uint_eq(lane_control_generation(lane_batcher_control(&lane, 1)), record.generation);
	ck_assert_int_eq(lane_batcher_write(&lane, &end, sizeof end, NULL, 0), STATUS_OK);
	if (lane_batcher_take_waiting(&lane))
		wake_send(&wake);
	close(fd);
	wake_close(&wake);
	doorbell_close(&bell);
	lane_close(&lane);
}

START_TEST(handshake)
{
	ck_assert_int_eq(with_child(attach_and_talk, welcome_and_talk), 0);
}
END_TEST

static int expect_loading(void)
{
	struct control_message welcome;
	struct error           error;
	int                    fd = -7, fds[CONTROL_FDS_MAX] = { -7, -7 }, before = open_descriptors();

	if (attach(&fd, &welcome, fds, &error) != STATUS_UNAVAILABLE || !strstr(error.message, "still loading"))
		return 1;
	return fd == -7 && fds[0] == -7 && open_descriptors() == before ? 0 : 2;
}

static void refuse_loading(int listener)
{
	struct control_message message, refusal = { .status = STATUS_UNAVAILABLE, .text = "still loading" };
	struct error           error;
	int                    fd = accept_one(listener);

	ck_assert_int_eq(receive(fd, &message, &error), STATUS_OK);
	ck_assert_int_eq(control_send(fd, &refusal, CONTROL_REFUSE, NULL, 0), STATUS_OK);
	ck_assert_int_eq(receive(fd, &message, &error), STATUS_GONE);
	close(fd);
}

START_TEST(refused_hello)
{
	ck_assert_int_eq(with_child(expect_loading, refuse_loading), 0);
}
END_TEST

/* A refusal never reads as success, whatever number it carries. */
static int expect_invalid(void)
{
	struct control_message welcome;
	struct error           error;
	int                    fd, fds[CONTROL_FDS_MAX];

	return attach(&fd, &welcome, fds, &error) == STATUS_INVALID ? 0 : 1;
}

static void refuse_nonsense(int listener)
{
	struct control_message message, refusal = { .status = STATUS_OK };
	struct error           error;
	int                    fd = accept_one(listener);

	ck_assert_int_eq(receive(fd, &message, &error), STATUS_OK);
	ck_assert_int_eq(control_send(fd, &refusal, CONTROL_REFUSE, NULL, 0), STATUS_OK);
	close(fd);
}

START_TEST(refused_with_nonsense)
{
	ck_assert_int_eq(with_child(expect_invalid, refuse_nonsense), 0);
}
END_TEST

static int expect_other_model(void)
{
	struct control_message welcome;
	struct error           error;
	int                    fd, fds[CONTROL_FDS_MAX], before = open_descriptors();

	if (attach(&fd, &welcome, fds, &error) != STATUS_INVALID || !strstr(error.message,
	    "vocabulary is 0000000000000005"))
		return 1;
	return strstr(error.message, "ours 0000000001234567") && open_descriptors() == before ? 0 : 2;
}

static void welcome_other_model(int listener)
{
	struct control_message message, welcome = { .vocab_fingerprint = 5 };
	struct error           error;
	int                    fd = accept_one(listener);

	ck_assert_int_eq(receive(fd, &message, &error), STATUS_OK);
	ck_assert_int_eq(control_send(fd, &welcome, CONTROL_WELCOME, (const int[CONTROL_FDS_MAX]) { 0 }, CONTROL_FDS_MAX), STATUS_OK);
	close(fd);
}

START_TEST(other_vocabulary)
{
	ck_assert_int_eq(with_child(expect_other_model, welcome_other_model), 0);
}
END_TEST

static int expect_gone(void)
{
	struct control_message welcome;
	struct error           error;
	int                    fd, fds[CONTROL_FDS_MAX];

	return attach(&fd, &welcome, fds, &error) == STATUS_GONE ? 0 : 1;
}

static void close_after_hello(int listener)
{
	struct control_message message;
	struct error           error;
	int                    fd = accept_one(listener);

	ck_assert_int_eq(receive(fd, &message, &error), STATUS_OK);
	close(fd);
}

START_TEST(gone_during_handshake)
{
	ck_assert_int_eq(with_child(expect_gone, close_after_hello), 0);
}
END_TEST

START_TEST(silent_batcher)
{
	const struct control_message hello = { .pid = 1 };
	struct control_message       welcome;
	struct error                 error;
	int                          listener, fd = -7, fds[CONTROL_FDS_MAX], before;

	ck_assert_int_eq(control_listen(path, -1, &listener, &error), STATUS_OK);
	before = open_descriptors();
	ck_assert_int_eq(control_attach(path, &hello, 20, &fd, &welcome, fds, &error), STATUS_TIMEOUT);
	ck_assert_int_eq(control_attach(path, &hello, 0, &fd, &welcome, fds, &error), STATUS_TIMEOUT);
	ck_assert_int_eq(fd, -7);
	ck_assert_int_eq(open_descriptors(), before);
	close(listener);
	ck_assert_int_eq(control_attach(path, &hello, 20, &fd, &welcome, fds, &error), STATUS_UNAVAILABLE);
}
END_TEST

static int ask_status(void)
{
	struct control_message answer;
	struct error           error;

	if (control_ask(path, CONTROL_STATUS, TIMEOUT_MS, &answer, &error) != STATUS_OK || strcmp(answer.text, "ready"))
		return 1;
	return control_ask(path, CONTROL_DRAIN, TIMEOUT_MS, &answer, &error) == STATUS_FORBIDDEN &&
	        strstr(error.message, "not you") ? 0 : 2;
}

static void answer_status(int listener)
{
	struct control_message message, done = { .text = "ready" }, refusal = { .status = STATUS_FORBIDDEN,
	    .text = "not you" };
	struct error           error;
	int                    fd = accept_one(listener);

	ck_assert_int_eq(receive(fd, &message, &error), STATUS_OK);
	ck_assert_uint_eq(message.type, CONTROL_STATUS);
	ck_assert_int_eq(control_send(fd, &done, CONTROL_DONE, NULL, 0), STATUS_OK);
	close(fd);
	fd = accept_one(listener);
	ck_assert_int_eq(receive(fd, &message, &error), STATUS_OK);
	ck_assert_uint_eq(message.type, CONTROL_DRAIN);
	ck_assert_int_eq(control_send(fd, &refusal, CONTROL_REFUSE, NULL, 0), STATUS_OK);
	close(fd);
}

START_TEST(tool_asks)
{
	ck_assert_int_eq(with_child(ask_status, answer_status), 0);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("ipc control");
	TCase   *tcase = tcase_create("control");
	SRunner *runner = srunner_create(suite);
	int      failed;

	suite_add_tcase(suite, tcase);
	tcase_set_timeout(tcase, 60);
	tcase_add_checked_fixture(tcase, make_directory, remove_directory);
	tcase_add_test(tcase, listening);
	tcase_add_test(tcase, messages);
	tcase_add_test(tcase, refused_messages);
	tcase_add_test(tcase, handshake);
	tcase_add_test(tcase, refused_hello);
	tcase_add_test(tcase, refused_with_nonsense);
	tcase_add_test(tcase, other_vocabulary);
	tcase_add_test(tcase, gone_during_handshake);
	tcase_add_test(tcase, silent_batcher);
	tcase_add_test(tcase, tool_asks);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
