/* Unit tests of src/ipc: named objects, doorbell, header, metrics. */
#include "base/clock.h"
#include "ipc/doorbell.h"
#include "ipc/blackbox.h"
#include "ipc/header.h"
#include "ipc/metrics.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Every test has names of its own: tests may run beside each other. */
static char instance[OBJECT_INSTANCE_MAX + 1];

static void name_instance(void)
{
	snprintf(instance, sizeof instance, "test-%d", (int)getpid());
}

static int open_object(const char *kind, int flags)
{
	char name[OBJECT_NAME_MAX];

	snprintf(name, sizeof name, "/penstock.%s.%s", instance, kind);
	return shm_open(name, flags, 0600);
}

static bool exists(const char *kind)
{
	int fd = open_object(kind, O_RDONLY);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* ---- objects --------------------------------------------------------------------------------------------------- */

START_TEST(names)
{
	const char *const bad[] = { "", "a/b", "a b", "../x", "a.b", "ä", "01234567890123456789012345678901234567890" };
	struct metrics    metrics = { 0 };
	struct error      error;

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		ck_assert_int_eq(metrics_create(bad[i], -1, &metrics, &error), STATUS_INVALID);
		ck_assert_int_eq(metrics_open(bad[i], &metrics, &error), STATUS_INVALID);
		ck_assert_ptr_nonnull(strstr(error.message, "instance name"));
	}
	ck_assert_ptr_null(metrics.shared);
}
END_TEST

START_TEST(none_there)
{
	struct metrics  metrics = { 0 };
	struct header   header = { 0 };
	struct doorbell doorbell = { 0 };
	struct error    error;

	ck_assert_int_eq(metrics_open(instance, &metrics, &error), STATUS_UNAVAILABLE);
	ck_assert_int_eq(header_open(instance, &header, &error), STATUS_UNAVAILABLE);
	ck_assert_ptr_nonnull(strstr(error.message, "is penstockd running"));
	metrics_close(&metrics);
	header_close(&header);
	doorbell_close(&doorbell);
	metrics_close(NULL);
	header_close(NULL);
	doorbell_close(NULL);
}
END_TEST

/* What a killed predecessor left behind, whatever it is, is replaced; who still maps it keeps what it maps. */
START_TEST(stale_object_is_replaced)
{
	struct header old = { 0 }, reader = { 0 }, fresh = { 0 }, second = { 0 };
	struct error  error;
	int           fd = open_object("header", O_RDWR | O_CREAT | O_EXCL);
	uint64_t      old_epoch;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, 12345), 0);
	close(fd);
	ck_assert_int_eq(header_open(instance, &reader, &error), STATUS_INVALID);
	ck_assert_msg(header_create(instance, -1, &old, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(header_open(instance, &reader, &error), STATUS_OK);
	old_epoch = reader.shared->epoch;
	/* The old one is not closed: as after kill -9. */
	ck_assert_msg(header_create(instance, -1, &fresh, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(header_open(instance, &second, &error), STATUS_OK);
	ck_assert_uint_eq(reader.shared->epoch, old_epoch);
	ck_assert_uint_ne(second.shared->epoch, old_epoch);
	ck_assert_int_eq(second.shared->pid, getpid());
	header_close(&second);
	header_close(&reader);
	header_close(&fresh);
	ck_assert(!exists("header"));
	header_close(&old);
}
END_TEST

START_TEST(modes_and_size)
{
	struct header   header;
	struct metrics  metrics;
	struct error    error;
	struct stat     stat;
	const mode_t    mask = umask(077); /* the mode does not depend on it */
	const struct {
		const char *kind;
		mode_t      mode;
		size_t      bytes;
	} rows[] = {
		{ "header", 0640, sizeof(struct header_shared) },
		{ "metrics", 0640, sizeof(struct metrics_shared) },
	};

	ck_assert_int_eq(header_create(instance, (int)getgid(), &header, &error), STATUS_OK);
	ck_assert_int_eq(metrics_create(instance, (int)getgid(), &metrics, &error), STATUS_OK);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		int fd = open_object(rows[i].kind, O_RDONLY);
		ck_assert_int_eq(fstat(fd, &stat), 0);
		ck_assert_uint_eq(stat.st_mode & 07777, rows[i].mode);
		ck_assert_uint_eq((size_t)stat.st_size, rows[i].bytes);
		ck_assert_uint_ge((size_t)stat.st_blocks * 512, rows[i].bytes);
		close(fd);
	}
	umask(mask);
	header_close(&header);
	metrics_close(&metrics);
}
END_TEST

START_TEST(open_checks)
{
	struct header header, reader = { 0 };
	struct error  error;
	uint64_t      magic, hash;
	int           fd;

	ck_assert_int_eq(header_create(instance, -1, &header, &error), STATUS_OK);
	magic = header.shared->head.magic;
	hash = header.shared->head.layout_hash;
	header.shared->head.magic = 0; /* being made */
	ck_assert_int_eq(header_open(instance, &reader, &error), STATUS_UNAVAILABLE);
	header.shared->head.magic = magic + 1;
	ck_assert_int_eq(header_open(instance, &reader, &error), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "magic"));
	header.shared->head.magic = magic;
	header.shared->head.layout_hash = hash + 1;
	ck_assert_int_eq(header_open(instance, &reader, &error), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "layout"));
	header.shared->head.layout_hash = hash;
	ck_assert_int_eq(header_open(instance, &reader, &error), STATUS_OK);
	header_close(&reader);
	ck_assert(exists("header")); /* a reader does not unlink */
	fd = open_object("header", O_RDWR);
	ck_assert_int_eq(ftruncate(fd, 0), 0);
	ck_assert_int_eq(header_open(instance, &reader, &error), STATUS_UNAVAILABLE);
	ck_assert_int_eq(ftruncate(fd, (off_t)sizeof *header.shared + 8), 0);
	ck_assert_int_eq(header_open(instance, &reader, &error), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "another build"));
	ck_assert_ptr_null(reader.shared);
	close(fd);
	header_close(&header);
}
END_TEST

static int run_child(int (*body)(void))
{
	int   result = 0;
	pid_t child = fork();

	ck_assert_int_ge(child, 0);
	if (child == 0)
		_exit(body());
	ck_assert_int_eq(waitpid(child, &result, 0), child);
	return WIFEXITED(result) ? WEXITSTATUS(result) : 255;
}

/* A creation that fails for want of memory leaves the output alone and no name behind. */
static int create_must_fail(void)
{
	struct header  header = { .name = "untouched" };
	struct metrics metrics = { .name = "untouched" };
	struct error   error = { 0 };

	if (metrics_create(instance, -1, &metrics, &error) != STATUS_IO || !strstr(error.message, "is /dev/shm full?"))
		return 1;
	if (header_create(instance, -1, &header, &error) != STATUS_IO || !strstr(error.message, "cannot reserve"))
		return 2;
	if (strcmp(header.name, "untouched") || strcmp(metrics.name, "untouched") || exists("metrics") || exists("header"))
		return 3;
	return 0;
}

static int with_file_size_limit(void)
{
	struct rlimit   limit = { 64, 64 };
	struct doorbell doorbell = { .fd = 99 };
	struct error    error;

	signal(SIGXFSZ, SIG_IGN);
	if (setrlimit(RLIMIT_FSIZE, &limit))
		return 77;
	if (doorbell_create(&doorbell, &error) != STATUS_IO || !strstr(error.message, "cannot reserve") || doorbell.fd != 99)
		return 4;
	return create_must_fail();
}

START_TEST(fallocate_failure)
{
	ck_assert_int_eq(run_child(with_file_size_limit), 0);
}
END_TEST

/* The real thing: a /dev/shm of one page, in a mount namespace of its own; only where that may be made. */
static int with_full_shm(void)
{
	int fd;

	if (unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE,
	    NULL) ||
	    mount("penstock-test", "/dev/shm", "tmpfs", 0, "size=4096"))
		return 77;
	fd = shm_open("/full", O_RDWR | O_CREAT, 0600);
	if (fd < 0 || posix_fallocate(fd, 0, 4096))
		return 78;
	return create_must_fail();
}

START_TEST(full_dev_shm)
{
	int result = run_child(with_full_shm);

	ck_assert_msg(result == 0 || result == 77, "exit status %d", result);
}
END_TEST

/* ---- doorbell -------------------------------------------------------------------------------------------------- */

static bool nothing(void *context)
{
	(void)context;
	return false;
}

static bool something(void *context)
{
	(void)context;
	return true;
}

START_TEST(doorbell_bits_and_posts)
{
	struct doorbell doorbell, front;
	struct error    error;

	ck_assert_int_eq(doorbell_create(&doorbell, &error), STATUS_OK);
	ck_assert_int_eq(doorbell_attach(doorbell.fd, &front, &error), STATUS_OK);
	/* Nobody sleeps: the bit is set, nothing is posted. */
	doorbell_ring(&front, 3);
	doorbell_ring(&front, 700);
	doorbell_ring(&front, LANE_COUNT_MAX - 1);
	ck_assert_uint_eq(doorbell.shared->posts, 0);
	/* A ready bit keeps it awake. */
	ck_assert_int_eq(doorbell_sleep(&doorbell, CLOCK_NS_PER_S, nothing, NULL), DOORBELL_PENDING);
	ck_assert_uint_eq(doorbell_take_ready(&doorbell, 0), UINT64_C(1) << 3);
	ck_assert_uint_eq(doorbell_take_ready(&doorbell, 0), 0);
	ck_assert_uint_eq(doorbell_take_ready(&doorbell, 700 / 64), UINT64_C(1) << 700 % 64);
	ck_assert_uint_eq(doorbell_take_ready(&doorbell, LANE_COUNT_MAX / 64 - 1), UINT64_C(1) << 63);
	/* So does pending work without a bit, and nothing at all is a tick. */
	ck_assert_int_eq(doorbell_sleep(&doorbell, CLOCK_NS_PER_S, something, NULL), DOORBELL_PENDING);
	ck_assert_int_eq(doorbell_sleep(&doorbell, CLOCK_NS_PER_MS, nothing, NULL), DOORBELL_TICK);
	ck_assert_uint_eq(doorbell.shared->sleeping, 0);
	/* Without a lane it always posts, and lanes that cannot be are no lanes. */
	doorbell_ring(&front, -1);
	doorbell_ring(&front, LANE_COUNT_MAX);
	doorbell_ring(&front, INT_MIN);
	ck_assert_uint_eq(doorbell.shared->posts, 3);
	for (unsigned i = 0; i < LANE_COUNT_MAX / 64; i++)
		ck_assert_uint_eq(doorbell_take_ready(&doorbell, i), 0);
	/* However many posts came while it was awake, they keep it from sleeping once. */
	ck_assert_int_eq(doorbell_sleep(&doorbell, CLOCK_NS_PER_S, nothing, NULL), DOORBELL_RUNG);
	ck_assert_int_eq(doorbell_sleep(&doorbell, CLOCK_NS_PER_MS, nothing, NULL), DOORBELL_TICK);
	doorbell_close(&front);
	doorbell_close(&doorbell);
}
END_TEST

/* The count of posts wraps. */
START_TEST(doorbell_overflow)
{
	struct doorbell doorbell;
	struct error    error;

	ck_assert_int_eq(doorbell_create(&doorbell, &error), STATUS_OK);
	doorbell.shared->posts = doorbell.seen = UINT32_MAX;
	doorbell.shared->sleeping = 1;
	doorbell_ring(&doorbell, 5);
	ck_assert_uint_eq(doorbell_take_ready(&doorbell, 0), UINT64_C(1) << 5);
	ck_assert_int_eq(doorbell_sleep(&doorbell, CLOCK_NS_PER_S, nothing, NULL), DOORBELL_RUNG);
	ck_assert_uint_eq(doorbell.seen, 0);
	ck_assert_int_eq(doorbell_sleep(&doorbell, CLOCK_NS_PER_MS, nothing, NULL), DOORBELL_TICK);
	doorbell_close(&doorbell);
}
END_TEST

/* The whole object full of garbage: sleep and ring come back. */
START_TEST(doorbell_scribbled)
{
	struct doorbell doorbell;
	struct error    error;

	ck_assert_int_eq(doorbell_create(&doorbell, &error), STATUS_OK);
	srand(3);
	for (int round = 0; round < 200; round++) {
		unsigned char *bytes = (unsigned char *)doorbell.shared;
		for (size_t i = 0; i < sizeof *doorbell.shared; i++)
			bytes[i] = (unsigned char)(rand() % 4 ? 0 : rand());
		doorbell_sleep(&doorbell, CLOCK_NS_PER_MS / 10, nothing, NULL);
		doorbell_ring(&doorbell, rand() % LANE_COUNT_MAX);
		for (unsigned i = 0; i < LANE_COUNT_MAX / 64; i++)
			doorbell_take_ready(&doorbell, i);
	}
	doorbell_close(&doorbell);
}
END_TEST

/* A front that writes noise over all but the ready bits while the intake thread really sleeps and others ring: glibc's
 * semaphores abort the process then ("The futex facility returned an unexpected error code"). */
static int noise_beside_sleep(void)
{
	struct doorbell doorbell;
	struct error    error;
	pid_t           front;

	if (doorbell_create(&doorbell, &error))
		return 1;
	front = fork();
	if (front == 0) {
		const size_t words = offsetof(struct doorbell_shared, ready) / sizeof(uint32_t);
		srand(5);
		for (int round = 0; round < 200; round++) {
			for (int i = 0; i < 10; i++)
				((_Atomic uint32_t *)(void *)doorbell.shared)[(size_t)rand() % words] = (uint32_t)rand();
			doorbell_ring(&doorbell, -1);
			nanosleep(&(struct timespec){ 0, 200000 }, NULL);
		}
		_exit(0);
	}
	for (int sleeps = 0, status = 0; front > 0 && waitpid(front, &status, WNOHANG) == 0; sleeps++)
		doorbell_sleep(&doorbell, CLOCK_NS_PER_MS, nothing, NULL);
	doorbell_close(&doorbell);
	return front > 0 ? 0 : 2;
}

START_TEST(noise_in_the_doorbell_aborts_nobody)
{
	ck_assert_int_eq(run_child(noise_beside_sleep), 0);
}
END_TEST

/* What a mad front wrote must not keep others from attaching later: there was a magic number in there once. */
START_TEST(noise_in_the_doorbell_keeps_nobody_out)
{
	struct doorbell doorbell, front;
	struct error    error;

	ck_assert_int_eq(doorbell_create(&doorbell, &error), STATUS_OK);
	memset(doorbell.shared, 0xa5, sizeof *doorbell.shared);
	ck_assert_int_eq(doorbell_attach(doorbell.fd, &front, &error), STATUS_OK);
	doorbell_close(&front);
	doorbell_close(&doorbell);
}
END_TEST

/* Who may write the doorbell may not change its size: the others would die of a SIGBUS. */
START_TEST(the_doorbell_cannot_be_truncated)
{
	struct doorbell doorbell, other = { .fd = 99 };
	struct error    error;
	int             fd;

	ck_assert_int_eq(doorbell_create(&doorbell, &error), STATUS_OK);
	ck_assert(!exists("doorbell")); /* no name: nobody opens it but who was handed it */
	ck_assert_int_eq(ftruncate(doorbell.fd, 0), -1);
	ck_assert_int_eq(errno, EPERM);
	ck_assert_int_eq(ftruncate(doorbell.fd, 1 << 20), -1);
	ck_assert_int_eq(errno, EPERM);
	ck_assert_int_eq(fcntl(doorbell.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	doorbell_close(&doorbell);
	/* A front takes nothing else. */
	fd = memfd_create("test", MFD_ALLOW_SEALING);
	ck_assert_int_eq(ftruncate(fd, (off_t)sizeof(struct doorbell_shared)), 0);
	ck_assert_int_eq(doorbell_attach(fd, &other, &error), STATUS_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "seals"));
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
	ck_assert_int_eq(doorbell_attach(fd, &other, &error), STATUS_OK);
	doorbell_close(&other);
	other.fd = 99;
	close(fd);
	ck_assert_int_eq(doorbell_attach(fd, &other, &error), STATUS_INVALID);
	ck_assert_int_eq(doorbell_attach(STDIN_FILENO, &other, &error), STATUS_INVALID);
	ck_assert_int_eq(other.fd, 99);
}
END_TEST

static void *ring_when_asleep(void *context)
{
	struct doorbell *doorbell = context;

	while (!atomic_load(&doorbell->shared->sleeping))
		sched_yield();
	doorbell_ring(doorbell, 9);
	return NULL;
}

START_TEST(doorbell_wakes)
{
	struct doorbell    doorbell;
	struct error       error;
	pthread_t          thread;
	enum doorbell_wake wake;

	ck_assert_int_eq(doorbell_create(&doorbell, &error), STATUS_OK);
	ck_assert_int_eq(pthread_create(&thread, NULL, ring_when_asleep, &doorbell), 0);
	do /* the bit may be seen before the sleep, but no wait runs into its minute */
		wake = doorbell_sleep(&doorbell, 60 * CLOCK_NS_PER_S, nothing, NULL);
	while (doorbell_take_ready(&doorbell, 0) == 0);
	ck_assert_int_ne(wake, DOORBELL_TICK);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	doorbell_close(&doorbell);
}
END_TEST

/* ---- header ---------------------------------------------------------------------------------------------------- */

START_TEST(alive)
{
	const uint64_t now = UINT64_C(1000) * CLOCK_NS_PER_S, watchdog = 10 * CLOCK_NS_PER_S;
	struct header  header, reader;
	struct error   error;

	ck_assert_int_eq(header_create(instance, -1, &header, &error), STATUS_OK);
	ck_assert_int_eq(header_open(instance, &reader, &error), STATUS_OK);
	/* Loading takes as long as it takes. */
	header_beat(&header, 1);
	ck_assert(header_alive(reader.shared, now, watchdog));
	ck_assert(!header_ready(reader.shared, now, watchdog));
	header_set_state(&header, HEADER_READY);
	ck_assert(!header_alive(reader.shared, now, watchdog));
	ck_assert(!header_ready(reader.shared, now, watchdog));
	/* The edge of the watchdog. */
	header_beat(&header, now - watchdog);
	ck_assert(header_alive(reader.shared, now, watchdog));
	ck_assert(header_ready(reader.shared, now, watchdog));
	header_beat(&header, now - watchdog - 1);
	ck_assert(!header_alive(reader.shared, now, watchdog));
	/* A beat after the reader looked at its clock, and readings near zero. */
	header_beat(&header, now + 5);
	ck_assert(header_ready(reader.shared, now, watchdog));
	header_beat(&header, 0);
	ck_assert(header_ready(reader.shared, 5, watchdog));
	/* An announced long step is alive until its time, no longer. */
	header_beat(&header, 1);
	header_announce_long_step(&header, now + 1);
	ck_assert(header_alive(reader.shared, now, watchdog));
	ck_assert(header_ready(reader.shared, now, watchdog));
	ck_assert(!header_alive(reader.shared, now + 1, watchdog));
	header_announce_long_step(&header, 0);
	ck_assert(!header_alive(reader.shared, now, watchdog));
	/* Draining lives but takes nothing new; stopped and unknown states are gone, whatever the heart does. */
	header_beat(&header, now);
	header_set_state(&header, HEADER_DRAINING);
	ck_assert(header_alive(reader.shared, now, watchdog));
	ck_assert(!header_ready(reader.shared, now, watchdog));
	header_set_state(&header, HEADER_STOPPED);
	ck_assert(!header_alive(reader.shared, now, watchdog));
	atomic_store(&header.shared->state, 77);
	ck_assert(!header_alive(reader.shared, now, watchdog));
	ck_assert(!header_ready(reader.shared, now, watchdog));
	header_close(&reader);
	header_close(&header);
}
END_TEST

static int write_to_read_only(void)
{
	struct header reader;
	struct error  error;

	if (!freopen("/dev/null", "w", stderr) || header_open(instance, &reader, &error) != STATUS_OK)
		return 0;
	signal(SIGSEGV, SIG_DFL);
	atomic_store(&reader.shared->state, HEADER_READY);
	return 0;
}

START_TEST(readers_cannot_write)
{
	struct header header;
	struct error  error;

	ck_assert_int_eq(header_create(instance, -1, &header, &error), STATUS_OK);
	ck_assert_int_eq(run_child(write_to_read_only), 255); /* killed by SIGSEGV */
	header_close(&header);
}
END_TEST

/* ---- metrics --------------------------------------------------------------------------------------------------- */

START_TEST(metrics_rows)
{
	struct metrics metrics, reader;
	struct error   error;

	ck_assert_int_eq(metrics_create(instance, -1, &metrics, &error), STATUS_OK);
	ck_assert_int_eq(metrics_open(instance, &reader, &error), STATUS_OK);
	for (enum metric id = 0; id < METRIC_COUNT; id++) {
		ck_assert_uint_eq(metrics_get(&reader, id), 0);
		ck_assert(strcmp(metrics_kind(id), "counter") == 0 || strcmp(metrics_kind(id), "gauge") == 0);
		ck_assert_uint_gt(strlen(metrics_help(id)), 0);
		for (enum metric other = 0; other < id; other++)
			ck_assert_msg(strcmp(metrics_id(id), metrics_id(other)) && (strcmp(metrics_name(id), metrics_name(other)) ||
			                  strcmp(metrics_labels(id), metrics_labels(other))), "%s", metrics_id(id));
	}
	metrics_add(&metrics, METRIC_requests_total, 3);
	metrics_add(&metrics, METRIC_requests_total, 4);
	metrics_set(&metrics, METRIC_lanes_attached, 9);
	ck_assert_uint_eq(metrics_get(&reader, METRIC_requests_total), 7);
	ck_assert_uint_eq(metrics_get(&reader, METRIC_lanes_attached), 9);
	metrics_close(&reader);
	metrics_close(&metrics);
}
END_TEST

/* Every bucket takes what belongs to it, edges included; quantiles lie between the edges; readings subtract. */
START_TEST(histograms)
{
	const enum histogram   id = HISTOGRAM_time_to_first_token_seconds;
	struct metrics_reading before, after, change;
	struct metrics         metrics;
	struct error           error;

	ck_assert_int_eq(metrics_create(instance, -1, &metrics, &error), STATUS_OK);
	for (enum histogram h = 0; h < HISTOGRAM_COUNT; h++) {
		const struct metrics_buckets *buckets = metrics_histogram_buckets(h);
		uint64_t                      sum = 0;

		ck_assert(buckets->edge_count > 0 && buckets->edge_count <= METRICS_EDGES_MAX && buckets->divisor > 0);
		metrics_read(&metrics, h, &before);
		for (uint32_t i = 0; i < buckets->edge_count; i++) {
			ck_assert(i == 0 || buckets->edges[i] > buckets->edges[i - 1]);
			metrics_observe(&metrics, h, buckets->edges[i]);
			metrics_observe(&metrics, h, buckets->edges[i] + 1);
			sum += 2 * buckets->edges[i] + 1;
		}
		metrics_observe(&metrics, h, 0);
		metrics_read(&metrics, h, &after);
		metrics_since(&before, &after, &change);
		ck_assert_uint_eq(change.total, 2 * buckets->edge_count + 1);
		ck_assert_uint_eq(change.sum, sum);
		ck_assert_uint_eq(change.counts[buckets->edge_count], 1);
		ck_assert_uint_ge(change.counts[0], 2);
	}
	metrics_read(&metrics, id, &before);
	metrics_since(&before, &before, &change);
	ck_assert(metrics_quantile(id, &change, 0.5) == 0);
	for (int i = 0; i < 100; i++)
		metrics_observe(&metrics, id, i < 90 ? 15000000 : 300000000); /* 15 ms, 300 ms */
	metrics_read(&metrics, id, &after);
	metrics_since(&before, &after, &change);
	ck_assert(metrics_quantile(id, &change, 0.5) > 0.01 && metrics_quantile(id, &change, 0.5) < 0.02);
	ck_assert(metrics_quantile(id, &change, 0.99) > 0.25 && metrics_quantile(id, &change, 0.99) < 0.5);
	metrics_close(&metrics);
}
END_TEST

/* The ring of plans: the newest are there, the overwritten and half-written are not, times arrive in order past plans that
 * launched nothing; a predecessor's object is kept, a good end leaves none. */
START_TEST(black_box)
{
	struct blackbox      box, reader;
	struct blackbox_plan plan = { .rows = 1, .sequences = 1, .item_count = 1, .items = { { .request = 5, .rows = 1 } } };
	struct error         error;
	uint64_t             step_ns;

	ck_assert_int_eq(blackbox_open(instance, false, &reader, &error), STATUS_UNAVAILABLE);
	ck_assert_int_eq(blackbox_create(instance, -1, &box, &error), STATUS_OK);
	ck_assert_int_eq(blackbox_open(instance, false, &reader, &error), STATUS_OK);
	ck_assert(!blackbox_read(&reader, 0, &plan, &step_ns));
	for (uint32_t n = 0; n < BLACKBOX_PLANS + 10; n++) {
		plan = (struct blackbox_plan){ .rows = n, .item_count = 1, .items = { { .request = n } } };
		blackbox_write(&box, &plan, n % 3 != 0);
		if (n % 3)
			blackbox_finish(&box, 1000 + n);
	}
	ck_assert_uint_eq(atomic_load(&reader.shared->count), BLACKBOX_PLANS + 10);
	ck_assert(!blackbox_read(&reader, 9, &plan, &step_ns));
	ck_assert(!blackbox_read(&reader, BLACKBOX_PLANS + 10, &plan, &step_ns));
	for (uint32_t n = 10; n < BLACKBOX_PLANS + 10; n++) {
		ck_assert(blackbox_read(&reader, n, &plan, &step_ns));
		ck_assert(plan.rows == n && plan.items[0].request == n && step_ns == (n % 3 ? 1000 + n : 0));
	}
	/* Two under way, and one that launches nothing between them. */
	blackbox_write(&box, &plan, true);
	blackbox_write(&box, &plan, false);
	blackbox_write(&box, &plan, true);
	blackbox_finish(&box, 1);
	blackbox_finish(&box, 2);
	blackbox_finish(&box, 3); /* nothing is under way any more */
	for (uint64_t n = 0; n < 3; n++) {
		static const uint64_t times[] = { 1, 0, 2 };
		ck_assert(blackbox_read(&reader, BLACKBOX_PLANS + 10 + n, &plan, &step_ns));
		ck_assert_uint_eq(step_ns, times[n]);
	}
	/* Died in the middle of writing. */
	atomic_fetch_sub(&box.shared->entries[12].turn, 1);
	ck_assert(!blackbox_read(&reader, BLACKBOX_PLANS + 12, &plan, &step_ns));
	ck_assert(blackbox_read(&reader, BLACKBOX_PLANS + 11, &plan, &step_ns));
	blackbox_close(&reader);
	blackbox_leave(&box); /* as death does */

	ck_assert_int_eq(blackbox_create(instance, -1, &box, &error), STATUS_OK);
	ck_assert_int_eq(blackbox_open(instance, true, &reader, &error), STATUS_OK);
	ck_assert(blackbox_read(&reader, BLACKBOX_PLANS + 11, &plan, &step_ns));
	blackbox_close(&reader);
	blackbox_close(&box);
	ck_assert_int_eq(blackbox_open(instance, false, &reader, &error), STATUS_UNAVAILABLE);
	ck_assert_int_eq(blackbox_open(instance, true, &reader, &error), STATUS_OK);
	blackbox_leave(&reader);
	char previous[OBJECT_NAME_MAX];
	snprintf(previous, sizeof previous, "/penstock.%s.blackbox.prev", instance);
	object_unlink(previous);
}
END_TEST

START_TEST(groups_are_counted)
{
	struct census_shared shared = { 0 };
	struct census        census, read;

	census_read(&shared, &read);
	ck_assert_uint_eq(read.count, 0);
	for (int round = 1; round < 4; round++) {
		memset(&census, 0, sizeof census);
		for (uint32_t i = 0; i < CENSUS_GROUPS + 6; i++)
			for (int times = 0; times < round; times++)
				census_count(&census, i / 2, (int32_t)(i % 2), times > 0);
		census_write(&shared, &census);
		census_read(&shared, &read);
		ck_assert_uint_eq(read.count, CENSUS_GROUPS);
		ck_assert_uint_eq(read.waiting, 6);
		ck_assert_uint_eq(read.running, 6 * ((uint32_t)round - 1));
		ck_assert(read.groups[3].key == 1 && read.groups[3].priority == 1 && read.groups[3].waiting == 1);
		ck_assert_uint_eq(read.groups[3].running, (uint32_t)round - 1);
	}
	atomic_store(&shared.turn, 7); /* a writer that died */
	census_read(&shared, &read);
	ck_assert_uint_eq(read.count, 0);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("ipc objects");
	TCase   *tcase = tcase_create("objects");
	SRunner *runner = srunner_create(suite);
	int      failed;

	suite_add_tcase(suite, tcase);
	tcase_set_timeout(tcase, 60);
	tcase_add_checked_fixture(tcase, name_instance, NULL);
	tcase_add_test(tcase, names);
	tcase_add_test(tcase, none_there);
	tcase_add_test(tcase, stale_object_is_replaced);
	tcase_add_test(tcase, modes_and_size);
	tcase_add_test(tcase, open_checks);
	tcase_add_test(tcase, fallocate_failure);
	tcase_add_test(tcase, full_dev_shm);
	tcase_add_test(tcase, doorbell_bits_and_posts);
	tcase_add_test(tcase, doorbell_overflow);
	tcase_add_test(tcase, doorbell_scribbled);
	tcase_add_test(tcase, noise_in_the_doorbell_aborts_nobody);
	tcase_add_test(tcase, noise_in_the_doorbell_keeps_nobody_out);
	tcase_add_test(tcase, the_doorbell_cannot_be_truncated);
	tcase_add_test(tcase, doorbell_wakes);
	tcase_add_test(tcase, alive);
	tcase_add_test(tcase, readers_cannot_write);
	tcase_add_test(tcase, metrics_rows);
	tcase_add_test(tcase, histograms);
	tcase_add_test(tcase, black_box);
	tcase_add_test(tcase, groups_are_counted);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
