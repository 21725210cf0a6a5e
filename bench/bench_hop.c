/* bench_hop.c: how long one hop over a lane takes, between two processes.  Run by hand: bench/bench_hop [HOPS].
 *
 *   spinning      both sides poll their rings: the cost of the ring itself (bar: under 1 µs)
 *   doorbell      front → batcher through doorbell_sleep, hops 500 µs apart, so that the core goes idle in between
 *   wake          batcher → front through front_waiting, wake_send and epoll, hops 500 µs apart
 *                 (bars for both: under 40 µs p50, under 100 µs p99)
 *
 * A record carries the time it was written in its `seed` (SUBMIT) or `req` (TOKEN) field; the reader subtracts that
 * from the time it has the record in private memory.  The two sides sit on different cores when there are two.
 */
#include "base/clock.h"
#include "ipc/doorbell.h"
#include "ipc/wake.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HOPS_DEFAULT = 20000, WARM_UP = 1000, GAP_NS = 500000 };

struct bench {
	struct lane     lane;     /* the batcher's handle; the front attaches in its own process */
	struct doorbell doorbell;
	struct wake     wake;
	uint64_t       *samples;  /* shared: [hops], ns, filled by whoever receives */
	uint32_t        hops;
};

static void fail(const char *what)
{
	fprintf(stderr, "bench_hop: %s\n", what);
	exit(1);
}

static void pin(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	/* One core only: then both sides share it and the figures say so. */
	if (sched_setaffinity(0, sizeof set, &set))
		fprintf(stderr, "bench_hop: cannot pin to core %d\n", core);
}

static void pause_until(uint64_t ns)
{
	struct timespec until = { .tv_sec = (time_t)(ns / CLOCK_NS_PER_S), .tv_nsec = (long)(ns % CLOCK_NS_PER_S) };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static void send_record(struct lane *lane)
{
	struct wire_submit record = { .header = { .type = WIRE_SUBMIT }, .generation = 1, .seed = clock_now_ns() };

	if (lane_front_write(lane, &record, sizeof record, NULL, 0) != STATUS_OK)
		fail("record ring full");
}

static void send_event(struct lane *lane)
{
	struct wire_token event = { .header = { .type = WIRE_TOKEN }, .generation = 1, .count = 1, .req = clock_now_ns() };
	const int32_t     id = 1;

	if (lane_batcher_write(lane, &event, sizeof event, &id, 1) != STATUS_OK)
		fail("event ring full");
}

/* True with the age of the record or event that was there. */
static bool take_record(struct lane *lane, uint64_t *ret_ns)
{
	_Alignas(8) char   buffer[WIRE_RECORD_MAX];
	struct wire_submit record;
	size_t             bytes;
	enum status        status = lane_batcher_read(lane, buffer, sizeof buffer, &bytes);

	if (status == STATUS_AGAIN)
		return false;
	if (status != STATUS_OK)
		fail("bad record");
	*ret_ns = clock_now_ns();
	memcpy(&record, buffer, sizeof record);
	*ret_ns -= record.seed;
	return true;
}

static bool take_event(struct lane *lane, uint64_t *ret_ns)
{
	_Alignas(8) char  buffer[WIRE_EVENT_MAX];
	struct wire_token event;
	size_t            bytes;
	enum status       status = lane_front_read(lane, buffer, sizeof buffer, &bytes);

	if (status == STATUS_AGAIN)
		return false;
	if (status != STATUS_OK)
		fail("bad event");
	*ret_ns = clock_now_ns();
	memcpy(&event, buffer, sizeof event);
	*ret_ns -= event.req;
	return true;
}

/* ---- spinning: a record and an event in turn -------------------------------------------------------------------- */

static void spin_front(struct bench *b, struct lane *lane)
{
	uint64_t ns;

	for (uint32_t i = 0; i < b->hops + WARM_UP; i++) {
		send_record(lane);
		while (!take_event(lane, &ns))
			;
	}
}

static void spin_batcher(struct bench *b)
{
	uint64_t ns = 0;

	for (uint32_t i = 0; i < b->hops + WARM_UP; i++) {
		while (!take_record(&b->lane, &ns))
			;
		if (i >= WARM_UP)
			b->samples[i - WARM_UP] = ns;
		send_event(&b->lane);
	}
}

/* ---- front → batcher through the doorbell ----------------------------------------------------------------------- */

static void doorbell_front(struct bench *b, struct lane *lane)
{
	uint64_t next = clock_now_ns();

	for (uint32_t i = 0; i < b->hops; i++) {
		pause_until(next += GAP_NS);
		send_record(lane);
		doorbell_ring(&b->doorbell, 0);
	}
}

static bool lane_pending(void *context)
{
	return lane_batcher_pending_seq_cst(context);
}

static void doorbell_batcher(struct bench *b)
{
	uint64_t ns;

	for (uint32_t got = 0; got < b->hops;) {
		doorbell_sleep(&b->doorbell, DOORBELL_TICK_MS * CLOCK_NS_PER_MS, lane_pending, &b->lane);
		(void)doorbell_take_ready(&b->doorbell, 0);
		while (got < b->hops && take_record(&b->lane, &ns))
			b->samples[got++] = ns;
	}
}

/* ---- batcher → front through epoll ------------------------------------------------------------------------------ */

static void wake_front(struct bench *b, struct lane *lane)
{
	struct epoll_event event = { .events = EPOLLIN };
	int                poll = epoll_create1(EPOLL_CLOEXEC);
	uint64_t           ns;

	if (poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, b->wake.wait_fd, &event))
		fail("epoll");
	for (uint32_t got = 0; got < b->hops;) {
		if (lane_front_prepare_wait(lane)) {
			if (epoll_wait(poll, &event, 1, 1000) == 1)
				wake_drain(b->wake.wait_fd);
			lane_front_end_wait(lane);
		}
		while (got < b->hops && take_event(lane, &ns))
			b->samples[got++] = ns;
	}
	close(poll);
}

static void wake_batcher(struct bench *b)
{
	uint64_t next = clock_now_ns();

	for (uint32_t i = 0; i < b->hops; i++) {
		pause_until(next += GAP_NS);
		send_event(&b->lane);
		if (lane_batcher_take_waiting(&b->lane))
			wake_send(&b->wake);
	}
}

/* ---- running and reporting --------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void run(struct bench *b, const char *name, uint32_t hops, void (*front)(struct bench *, struct lane *),
    void (*batcher)(struct bench *), const char *bar)
{
	struct lane_geometry geometry;
	struct lane          lane;
	struct error         error;
	int                  result = 0;
	pid_t                child;

	b->hops = hops;
	if (lane_geometry_plan(16, 32768, &geometry) != STATUS_OK || lane_create(&geometry, &b->lane,
	    &error) != STATUS_OK ||
	    doorbell_create(&b->doorbell, &error) != STATUS_OK ||
	    wake_create(&b->wake, &error) != STATUS_OK || lane_attach(b->lane.fd, &lane, &error) != STATUS_OK)
		fail(error.message);
	child = fork();
	if (child < 0)
		fail("fork");
	if (child == 0) {
		pin(0);
		front(b, &lane);
		lane_close(&lane);
		_exit(0);
	}
	pin(1);
	batcher(b);
	if (waitpid(child, &result, 0) != child || result != 0)
		fail("the front failed");
	qsort(b->samples, hops, sizeof *b->samples, by_value);
	printf("| %-9s | %8u | %9.2f | %9.2f | %9.2f | %10.2f | %s |\n", name, hops, (double)b->samples[hops / 2] / 1000,
	    (double)b->samples[hops * 9ull / 10] / 1000, (double)b->samples[hops * 99ull / 100] / 1000,
	    (double)b->samples[hops * 999ull / 1000] / 1000, bar);
	fflush(stdout);
	lane_close(&lane);
	wake_close(&b->wake);
	doorbell_close(&b->doorbell);
	lane_close(&b->lane);
}

int main(int argc, char **argv)
{
	struct bench b = { .hops = 0 };
	long         hops = argc > 1 ? strtol(argv[1], NULL, 10) : HOPS_DEFAULT;

	if (hops < 1000 || hops > 10000000)
		fail("HOPS must be 1000 to 10000000");
	b.samples = mmap(NULL, (size_t)hops * 10 * sizeof *b.samples, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
	    -1, 0);
	if (b.samples == MAP_FAILED)
		fail("mmap");
	printf("| hop       |    count |  p50 (µs) |  p90 (µs) |  p99 (µs) | p99.9 (µs) | bar |\n"
	       "|-----------|---------:|----------:|----------:|----------:|-----------:|-----|\n");
	run(&b, "spinning", (uint32_t)hops * 10, spin_front, spin_batcher, "< 1 µs");
	run(&b, "doorbell", (uint32_t)hops, doorbell_front, doorbell_batcher, "< 40 µs p50, < 100 µs p99");
	run(&b, "wake", (uint32_t)hops, wake_front, wake_batcher, "< 40 µs p50, < 100 µs p99");
	munmap(b.samples, (size_t)hops * 10 * sizeof *b.samples);
	return 0;
}
