/* lane_stress.c: a lane under load, with everything checked: each record once, whole and in order, in both directions.
 *
 *   lane_stress [exchange | threads | stream | handshake | handshake-threads | kill]   (without an argument: all in
 *   turn)
 *
 *   exchange   two processes; the batcher has an intake and a step thread.  Random sizes, bursts and stalls; the front
 *              waits through front_waiting and poll, the intake thread through the doorbell; events are written on
 *              credit
 *   threads    the same with the front as a thread of the same process over the same mapping, so that a race detector
 *              sees both sides
 *   stream     records only, through a ring that is full most of the time: the front is woken for room alone
 *   handshake  one record and one event in turn, each side going to sleep after a random, mostly short spin, so that
 *              sleeping and publishing meet: no wake-up may be lost
 *   kill       a supervisor kills the front or the batcher at random moments and starts it again; both attach through
 *              the control socket.  Nothing torn, repeated or given to another attachment; what a dead front left
 *              unread is dropped by the reset and counted exactly
 *
 * The content of record n is a function of (attachment, n): the reader makes it again and compares every byte.
 *
 * A lost wake-up is a time-out of a sleeper while something is there whose wake-up had been completed:
 *   front    the batcher had finished taking front_waiting for that event (or after reading the last record, when the
 *            front waits for room), yet there is nothing in the pipe.
 *   intake   doorbell_ring for that record had returned 20 ms before the tick, yet the wait timed out.  A post at that
 *            time would have ended the wait, whatever the scheduler did afterwards.
 * Neither depends on how fast the machine is.  Time-outs are safety nets otherwise and decide nothing.
 *
 * Environment: LANE_STRESS_RECORDS (each way; default 100000), LANE_STRESS_ROUNDS (handshakes; default 20000),
 * LANE_STRESS_KILLS (default 40).  The full sizes are 10000000, 1000000 and 2000.
 */
#include "base/clock.h"
#include "ipc/control.h"
#include "ipc/doorbell.h"
#include "ipc/lane.h"
#include "ipc/wake.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	SLOTS = 8,
	WINDOW = 4096,
	RECORD_RING = 16384,                /* two of the largest records: full often */
	CREDIT_MARGIN = 2 * WIRE_EVENT_MAX, /* "two steps' worst case" */
	RUNG_TIMES = 8192,                  /* more than the records that fit the record ring */
	ATTACHMENTS_MAX = 65536,
	WAIT_MS = 100
};

/* What one attachment of a front to a batcher went through.  `writing` is stored before a write and `written` after it,
 * so that what a killed process published is known up to one. */
struct attachment {
	_Atomic uint64_t records_writing, records_written, events_writing, events_written;
};

/* Shared by all processes and threads of a test. */
struct shared {
	_Atomic uint64_t  violations;
	_Atomic uint64_t  lost_doorbell, lost_wake;              /* lost wake-ups */
	_Atomic uint64_t  intake_sleeps, intake_rechecks;        /* went to sleep; found work between S1 and S3 */
	_Atomic uint64_t  front_sleeps, front_rechecks;          /* W3 reached; W2 found news */
	_Atomic uint64_t  records_read, events_read, dropped, resets; /* resets: those that dropped something */
	_Atomic uint64_t  rung_upto, rung_at[RUNG_TIMES];        /* doorbell_ring has returned for records below; when */
	_Atomic uint64_t  notified_upto, room_notified_upto;     /* front_waiting was taken for events, records below */
	_Atomic uint32_t  attachments, stop;
	struct attachment attachment[ATTACHMENTS_MAX];
};

/* What a test is to do. */
struct load {
	uint64_t records, events;
	bool     handshake; /* one record, one event, in turn */
};

static void violation(struct shared *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void violation(struct shared *s, const char *format, ...)
{
	va_list args;

	if (atomic_fetch_add(&s->violations, 1) > 20)
		return;
	va_start(args, format);
	fprintf(stderr, "lane_stress[%d]: ", (int)getpid());
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
}

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "lane_stress: %s: %s\n", what, why);
	exit(99);
}

/* ---- content --------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static uint64_t next_random(uint64_t *state)
{
	*state += UINT64_C(0x9e3779b97f4a7c15);
	return mix(*state);
}

/* Number of ids, and the ids, of item N of KEY; at most MAX, mostly few. */
static uint32_t make_content(uint64_t key, uint64_t n, uint32_t max, int32_t *ids)
{
	uint64_t x = mix(key * UINT64_C(0x9e3779b97f4a7c15) + n);
	uint32_t count = x % 256 == 0 ? 1 + (uint32_t)(x >> 32) % max : 1 + (uint32_t)(x >> 32) % (max < 32 ? max : 32);

	for (uint32_t i = 0; i < count; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		ids[i] = (int32_t)(x >> 16);
	}
	return count;
}

static uint64_t record_key(uint32_t attachment) { return 2 * (uint64_t)attachment; }
static uint64_t event_key(uint32_t attachment) { return 2 * (uint64_t)attachment + 1; }

/* Every now and then: gives the core away, or is gone for a while. */
static void stall(uint64_t *random)
{
	uint64_t        x = next_random(random);
	struct timespec nap = { .tv_nsec = (long)(x >> 32) % 200000 };

	if (x % 64 == 0)
		sched_yield();
	else if (x % 2048 == 1)
		nanosleep(&nap, NULL);
}

static void spin(uint64_t rounds)
{
	for (uint64_t i = 0; i < rounds; i++)
		atomic_signal_fence(memory_order_seq_cst);
}

/* ---- the front's side ------------------------------------------------------------------------------------------- */

struct front {
	struct lane      lane;
	struct doorbell *doorbell;
	struct shared   *s;
	int              wait_fd, control_fd; /* control_fd −1: none */
	uint32_t         attachment;          /* also the generation in every record and event */
	uint64_t         sent, rung, got, random;
	uint32_t         consumed[SLOTS];
	bool             gone;
};

static enum status front_send(struct front *f)
{
	int32_t            ids[WIRE_TOKENS_MAX];
	struct attachment *a = &f->s->attachment[f->attachment];
	struct wire_tokens record = { .header = { .type = WIRE_TOKENS }, .req = f->sent, .generation = f->attachment,
		.slot = (uint16_t)(f->sent % SLOTS), .offset = (uint32_t)mix(f->sent) };
	enum status        status;

	record.count = make_content(record_key(f->attachment), f->sent, WIRE_TOKENS_MAX, ids);
	atomic_store_explicit(&a->records_writing, f->sent + 1, memory_order_relaxed);
	status = lane_front_write(&f->lane, &record, sizeof record, ids, record.count);
	if (status == STATUS_OK)
		atomic_store_explicit(&a->records_written, ++f->sent, memory_order_release);
	else if (status != STATUS_FULL)
		violation(f->s, "front: write: %s", status_name(status));
	return status;
}

static void front_ring(struct front *f)
{
	uint64_t now;

	if (f->rung == f->sent)
		return;
	doorbell_ring(f->doorbell, 0);
	now = clock_now_ns();
	while (f->rung < f->sent)
		atomic_store_explicit(&f->s->rung_at[f->rung++ % RUNG_TIMES], now, memory_order_relaxed);
	atomic_store_explicit(&f->s->rung_upto, f->rung, memory_order_release);
}

static enum status front_take(struct front *f)
{
	_Alignas(8) char  buffer[WIRE_EVENT_MAX];
	int32_t           ids[WIRE_EVENT_IDS_MAX];
	struct wire_token event;
	size_t            bytes = 0;
	enum status       status = lane_front_read(&f->lane, buffer, sizeof buffer, &bytes);
	uint32_t          count;

	if (status == STATUS_AGAIN)
		return status;
	if (status != STATUS_OK) {
		violation(f->s, "front: event %" PRIu64 ": %s", f->got, status_name(status));
		return STATUS_INVALID;
	}
	memcpy(&event, buffer, sizeof event);
	count = make_content(event_key(f->attachment), f->got, WIRE_EVENT_IDS_MAX, ids);
	if (event.header.type != WIRE_TOKEN || event.req != f->got || event.generation != f->attachment ||
	    event.slot != f->got % SLOTS || event.seq != (uint32_t)f->got)
		violation(f->s, "front: event %" PRIu64 " of attachment %u came as event %" PRIu64 " of %u", f->got,
		    f->attachment,
		    event.req, event.generation);
	else if (event.count != count || memcmp(buffer + sizeof event, ids, count * sizeof *ids))
		violation(f->s, "front: event %" PRIu64 " is torn", f->got);
	f->consumed[event.slot] += event.header.bytes;
	/* Late, but not so late that the slot's credit is used up while this side polls. */
	if (next_random(&f->random) % 4 == 0 || f->got % 32 < SLOTS)
		lane_front_consumed(&f->lane, event.slot, f->consumed[event.slot]);
	f->got++;
	atomic_fetch_add_explicit(&f->s->events_read, 1, memory_order_relaxed);
	return STATUS_OK;
}

static bool is_readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* Waits for whatever the lane may bring, or the end of the control socket. */
static void front_wait(struct front *f)
{
	struct pollfd fds[2] = { { .fd = f->wait_fd, .events = POLLIN }, { .fd = f->control_fd, .events = POLLIN } };

	for (uint32_t slot = 0; slot < SLOTS; slot++)
		lane_front_consumed(&f->lane, slot, f->consumed[slot]);
	if (!lane_front_prepare_wait(&f->lane)) {
		atomic_fetch_add_explicit(&f->s->front_rechecks, 1, memory_order_relaxed);
		return;
	}
	atomic_fetch_add_explicit(&f->s->front_sleeps, 1, memory_order_relaxed);
	if (poll(fds, 2, WAIT_MS) == 0) {
		bool event = atomic_load(&f->s->notified_upto) > f->got && ring_pending(&f->lane.events);
		bool room = f->lane.room_wanted && atomic_load(&f->s->room_notified_upto) == f->sent;

		if ((event || room) && !is_readable(f->wait_fd))
			atomic_fetch_add(&f->s->lost_wake, 1);
	}
	if (fds[0].revents)
		wake_drain(f->wait_fd);
	if (fds[1].revents)
		f->gone = true;
	lane_front_end_wait(&f->lane);
}

/* One turn of sending and receiving in random bursts; true when anything moved. */
static bool front_turn(struct front *f, uint64_t limit)
{
	bool moved = false;

	/* At least one attempt: only a full ring may send the front to sleep while it has something to say. */
	for (uint64_t burst = 1 + next_random(&f->random) % 40; burst > 0 && f->sent < limit; burst--) {
		if (front_send(f) != STATUS_OK)
			break;
		moved = true;
		if (next_random(&f->random) % 8 == 0)
			front_ring(f);
	}
	front_ring(f);
	for (uint64_t burst = next_random(&f->random) % 60; burst > 0; burst--) {
		if (front_take(f) != STATUS_OK)
			break;
		moved = true;
	}
	return moved;
}

static void front_exchange(struct front *f, const struct load *load)
{
	while ((f->sent < load->records || f->got < load->events) && !atomic_load(&f->s->violations)) {
		if (!front_turn(f, load->records))
			front_wait(f);
		stall(&f->random);
	}
}

/* ---- the batcher's side ----------------------------------------------------------------------------------------- */

struct batcher {
	struct lane      lane;
	struct doorbell *doorbell;
	struct wake      wake;
	struct shared   *s;
	uint32_t         attachment;
	struct load      load;
	uint64_t         got, intake_random;  /* intake thread */
	uint64_t         sent, step_random;   /* step thread */
	uint32_t         published[SLOTS];
};

static enum status intake_take(struct batcher *b)
{
	_Alignas(8) char   buffer[WIRE_RECORD_MAX];
	int32_t            ids[WIRE_TOKENS_MAX];
	struct wire_tokens record;
	size_t             bytes = 0;
	enum status        status = lane_batcher_read(&b->lane, buffer, sizeof buffer, &bytes);
	uint32_t           count;

	if (status == STATUS_AGAIN)
		return status;
	if (status != STATUS_OK) {
		violation(b->s, "intake: record %" PRIu64 ": %s", b->got, status_name(status));
		return STATUS_INVALID;
	}
	memcpy(&record, buffer, sizeof record);
	count = make_content(record_key(b->attachment), b->got, WIRE_TOKENS_MAX, ids);
	if (record.header.type != WIRE_TOKENS || record.req != b->got || record.generation != b->attachment ||
	    record.slot != b->got % SLOTS || record.offset != (uint32_t)mix(b->got))
		violation(b->s, "intake: record %" PRIu64 " of attachment %u came as record %" PRIu64 " of %u", b->got,
		    b->attachment,
		    record.req, record.generation);
	else if (record.count != count || memcmp(buffer + sizeof record, ids, count * sizeof *ids))
		violation(b->s, "intake: record %" PRIu64 " is torn", b->got);
	b->got++;
	atomic_fetch_add_explicit(&b->s->records_read, 1, memory_order_relaxed);
	return STATUS_OK;
}

static enum status make_lane(uint32_t slots, uint32_t window, struct lane *ret, struct error *error)
{
	struct lane_geometry geometry;
	enum status          status = lane_geometry_plan(slots, window, &geometry);

	if (status != STATUS_OK)
		return error_set(error, status, "geometry");
	geometry.record_ring_bytes = RECORD_RING;
	return lane_create(&geometry, ret, error);
}

static bool lane_pending(void *context)
{
	return lane_batcher_pending_seq_cst(&((struct batcher *)context)->lane);
}

static void intake_sleep(struct batcher *b)
{
	struct shared     *s = b->s;
	uint64_t           start = clock_now_ns();
	enum doorbell_wake wake = doorbell_sleep(b->doorbell, WAIT_MS * CLOCK_NS_PER_MS, lane_pending, b);

	if (wake == DOORBELL_TICK && ring_pending(&b->lane.records) && atomic_load(&s->rung_upto) > b->got &&
	    atomic_load(&s->rung_at[b->got % RUNG_TIMES]) < start + (WAIT_MS - 20) * CLOCK_NS_PER_MS)
		atomic_fetch_add(&s->lost_doorbell, 1);
	atomic_fetch_add_explicit(wake == DOORBELL_PENDING ? &s->intake_rechecks : &s->intake_sleeps, 1,
	    memory_order_relaxed);
}

/* One burst of reading; true when anything was there. */
static bool intake_turn(struct batcher *b)
{
	bool moved = false;

	(void)doorbell_take_ready(b->doorbell, 0);
	for (uint64_t burst = 1 + next_random(&b->intake_random) % 60; burst > 0; burst--) {
		if (intake_take(b) != STATUS_OK)
			break;
		moved = true;
	}
	if (lane_batcher_take_room_waiting(&b->lane))
		wake_send(&b->wake);
	atomic_store(&b->s->room_notified_upto, b->got);
	return moved;
}

static enum status step_send(struct batcher *b)
{
	int32_t            ids[WIRE_EVENT_IDS_MAX];
	struct attachment *a = &b->s->attachment[b->attachment];
	uint16_t           slot = (uint16_t)(b->sent % SLOTS);
	struct wire_token  event = { .header = { .type = WIRE_TOKEN }, .req = b->sent, .generation = b->attachment,
	    .slot = slot,
		.seq = (uint32_t)b->sent };
	enum status        status;

	/* Credit: slot generations are 1 throughout, nobody opens a slot twice here. */
	if (b->published[slot] - lane_batcher_consumed(&b->lane, slot, 1) + CREDIT_MARGIN > WINDOW)
		return STATUS_AGAIN;
	event.count = make_content(event_key(b->attachment), b->sent, WIRE_EVENT_IDS_MAX, ids);
	atomic_store_explicit(&a->events_writing, b->sent + 1, memory_order_relaxed);
	status = lane_batcher_write(&b->lane, &event, sizeof event, ids, event.count);
	if (status == STATUS_OK) {
		b->published[slot] += event.header.bytes;
		atomic_store_explicit(&a->events_written, ++b->sent, memory_order_release);
	} else if (status != STATUS_FULL) {
		violation(b->s, "step: write: %s", status_name(status));
	}
	return status;
}

static void step_notify(struct batcher *b)
{
	if (lane_batcher_take_waiting(&b->lane))
		wake_send(&b->wake);
	atomic_store(&b->s->notified_upto, b->sent);
}

static bool step_turn(struct batcher *b, uint64_t limit)
{
	bool moved = false;

	for (uint64_t burst = next_random(&b->step_random) % 40; burst > 0 && b->sent < limit; burst--) {
		if (step_send(b) != STATUS_OK)
			break;
		moved = true;
		if (next_random(&b->step_random) % 8 == 0)
			step_notify(b);
	}
	step_notify(b);
	return moved;
}

static void *intake_exchange(void *context)
{
	struct batcher *b = context;

	while (b->got < b->load.records && !atomic_load(&b->s->violations)) {
		if (!intake_turn(b))
			intake_sleep(b);
		stall(&b->intake_random);
	}
	return NULL;
}

static void *step_exchange(void *context)
{
	struct batcher *b = context;

	while (b->sent < b->load.events && !atomic_load(&b->s->violations)) {
		if (!step_turn(b, b->load.events))
			sched_yield(); /* no credit: penstockd looks again within 10 ms */
		stall(&b->step_random);
	}
	return NULL;
}

/* ---- exchange and handshake -------------------------------------------------------------------------------------- */

struct test {
	struct shared  *s;
	struct doorbell doorbell;
	struct batcher  b;
	struct front    f;
	struct load     load;
};

static void test_begin(struct test *t, bool share_mapping)
{
	struct error error;

	t->s = mmap(NULL, sizeof *t->s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (t->s == MAP_FAILED)
		fail("mmap", strerror(errno));
	t->b = (struct batcher) { .s = t->s, .doorbell = &t->doorbell, .attachment = 1, .load = t->load,
	    .intake_random = 1, .step_random = 2 };
	t->f = (struct front) { .s = t->s, .doorbell = &t->doorbell, .attachment = 1, .control_fd = -1, .random = 3 };
	if (make_lane(SLOTS, WINDOW, &t->b.lane, &error) != STATUS_OK ||
	    doorbell_create(&t->doorbell, &error) != STATUS_OK ||
	    wake_create(&t->b.wake, &error) != STATUS_OK)
		fail("set-up", error.message);
	t->f.wait_fd = t->b.wake.wait_fd;
	if (share_mapping) {
		t->f.lane = t->b.lane; /* fresh: both sides' private indices are 0 */
		t->f.lane.fd = -1;
	} else if (lane_attach(t->b.lane.fd, &t->f.lane, &error) != STATUS_OK) {
		fail("attach", error.message);
	}
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		lane_front_open_slot(&t->f.lane, slot);
}

static int test_end(struct test *t, const char *name, bool share_mapping)
{
	struct shared *s = t->s;
	uint64_t       lost = s->lost_doorbell + s->lost_wake, wrong = s->violations;
	bool           complete = s->records_read == t->load.records && s->events_read == t->load.events;

	printf("%s: %" PRIu64 " records, %" PRIu64 " events; intake slept %" PRIu64 " (work found on the way %" PRIu64
	       "), front slept %" PRIu64 " (%" PRIu64 "); lost wake-ups %" PRIu64 " + %" PRIu64 "; violations %" PRIu64 "%s\n",
	    name, s->records_read, s->events_read, s->intake_sleeps, s->intake_rechecks, s->front_sleeps, s->front_rechecks,
	    s->lost_doorbell, s->lost_wake, wrong, complete ? "" : "; INCOMPLETE");
	fflush(stdout);
	wake_close(&t->b.wake);
	if (!share_mapping)
		lane_close(&t->f.lane);
	lane_close(&t->b.lane);
	doorbell_close(&t->doorbell);
	munmap(s, sizeof *s);
	return lost || wrong || !complete;
}

struct thread_front {
	struct front      *f;
	const struct load *load;
};

/* A wake-up takes far longer than the window in which it could get lost.  So in one block of rounds the batcher sleeps
 * and the front polls, which makes its next record arrive just when the batcher goes to sleep; in the next block the
 * other way round. */
static bool batcher_sleeps(uint64_t round)
{
	return round / 64 % 2;
}

/* Polls for a while, giving the core away now and then in case there is only one. */
static bool poll_ring(const struct ring *ring)
{
	for (int i = 0; i < 20000; i++)
		if (ring_pending(ring))
			return true;
	sched_yield();
	return false;
}

/* The two sides on different cores: the scheduler likes to put a waker and its sleeper on one, where nothing overlaps.
 * With one core there is nothing to do. */
static void take_core(int which)
{
	cpu_set_t allowed, one;
	int       cores = 0;

	if (sched_getaffinity(0, sizeof allowed, &allowed))
		return;
	for (int core = 0; core < CPU_SETSIZE; core++) {
		if (!CPU_ISSET(core, &allowed) || cores++ != which)
			continue;
		CPU_ZERO(&one);
		CPU_SET(core, &one);
		(void)sched_setaffinity(0, sizeof one, &one); /* of the calling thread */
	}
}

static void front_handshake(struct front *f, uint64_t rounds)
{
	take_core(0);
	while (f->got < rounds && !atomic_load(&f->s->violations)) {
		spin(next_random(&f->random) % 1024);
		if (front_send(f) != STATUS_OK)
			violation(f->s, "front: no room in a handshake");
		front_ring(f);
		if (!batcher_sleeps(f->got))
			spin(next_random(&f->random) % 1024);
		while (front_take(f) == STATUS_AGAIN && !atomic_load(&f->s->violations)) {
			if (!batcher_sleeps(f->got))
				front_wait(f);
			else
				poll_ring(&f->lane.events);
		}
	}
}

static void batcher_handshake(struct batcher *b, uint64_t rounds)
{
	cpu_set_t before;

	(void)sched_getaffinity(0, sizeof before, &before);
	take_core(1);
	while (b->sent < rounds && !atomic_load(&b->s->violations)) {
		(void)doorbell_take_ready(b->doorbell, 0);
		while (intake_take(b) == STATUS_AGAIN && !atomic_load(&b->s->violations)) {
			if (batcher_sleeps(b->got)) {
				spin(next_random(&b->intake_random) % 1024);
				intake_sleep(b);
				(void)doorbell_take_ready(b->doorbell, 0);
			} else {
				poll_ring(&b->lane.records);
			}
		}
		spin(next_random(&b->step_random) % 1024);
		/* The front has read every event before; it publishes what it consumed at random, and before it sleeps. */
		while (step_send(b) == STATUS_AGAIN && !atomic_load(&b->s->violations))
			sched_yield();
		step_notify(b);
	}
	(void)sched_setaffinity(0, sizeof before, &before);
}

static void *front_thread(void *context)
{
	struct thread_front *t = context;

	if (t->load->handshake)
		front_handshake(t->f, t->load->records);
	else
		front_exchange(t->f, t->load);
	return NULL;
}

static void batcher_run(struct batcher *b)
{
	pthread_t step;

	if (b->load.handshake) {
		batcher_handshake(b, b->load.records);
		return;
	}
	if (pthread_create(&step, NULL, step_exchange, b))
		fail("pthread_create", "step");
	intake_exchange(b);
	pthread_join(step, NULL);
}

static int run_test(const char *name, const struct load *load, bool threads)
{
	struct test         t = { .load = *load };
	struct thread_front front = { &t.f, load };
	pthread_t           thread;
	pid_t               child;
	int                 result = 0;

	test_begin(&t, threads);
	if (threads) {
		if (pthread_create(&thread, NULL, front_thread, &front))
			fail("pthread_create", "front");
		batcher_run(&t.b);
		pthread_join(thread, NULL);
		return test_end(&t, name, threads);
	}
	child = fork();
	if (child < 0)
		fail("fork", strerror(errno));
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		front_thread(&front);
		_exit(0);
	}
	batcher_run(&t.b);
	if (waitpid(child, &result, 0) != child || result)
		violation(t.s, "the front ended with status 0x%x", (unsigned)result);
	return test_end(&t, name, threads);
}

/* ---- kill: the front --------------------------------------------------------------------------------------------- */

struct kill_test {
	struct shared *s;
	char           directory[64], path[96];
};

/* Attaches with the number ATTACHMENT until a batcher is there; false when the test is over. */
static bool front_attach(const struct kill_test *k, struct front *f, struct doorbell *doorbell)
{
	const struct control_message hello = { .pid = (uint32_t)getpid(), .epoch = f->attachment, .slots = SLOTS,
		.stream_window = WINDOW };
	struct control_message       welcome;
	struct error                 error;
	int                          fds[CONTROL_FDS_MAX];

	while (!atomic_load(&k->s->stop)) {
		enum status status = control_attach(k->path, &hello, 60000, &f->control_fd, &welcome, fds, &error);

		if (status == STATUS_UNAVAILABLE || status == STATUS_GONE) {
			sched_yield(); /* none there yet, or killed meanwhile */
			continue;
		}
		if (status != STATUS_OK)
			fail("front attach", error.message);
		if (lane_attach(fds[CONTROL_FD_LANE], &f->lane, &error) != STATUS_OK ||
		    doorbell_attach(fds[CONTROL_FD_DOORBELL], doorbell, &error) != STATUS_OK)
			fail("front attach", error.message);
		close(fds[CONTROL_FD_LANE]);
		close(fds[CONTROL_FD_DOORBELL]);
		f->wait_fd = fds[CONTROL_FD_WAKE];
		for (uint32_t slot = 0; slot < SLOTS; slot++)
			lane_front_open_slot(&f->lane, slot);
		return true;
	}
	return false;
}

static int kill_front(const struct kill_test *k)
{
	while (!atomic_load(&k->s->stop)) {
		struct doorbell doorbell = { 0 };
		struct front    f = { .s = k->s, .doorbell = &doorbell, .attachment = 1 + atomic_fetch_add(&k->s->attachments,
		    1) };

		if (f.attachment >= ATTACHMENTS_MAX)
			fail("front", "too many attachments");
		f.random = mix(f.attachment);
		if (!front_attach(k, &f, &doorbell))
			break;
		while (!f.gone && !atomic_load(&k->s->stop)) {
			if (!front_turn(&f, UINT64_MAX))
				front_wait(&f);
			stall(&f.random);
			if (next_random(&f.random) % 16 == 0)
				f.gone = is_readable(f.control_fd);
		}
		/* What the batcher had published and we read cannot be more than it began to write. */
		if (f.got > atomic_load(&k->s->attachment[f.attachment].events_writing))
			violation(k->s, "front: read %" PRIu64 " events of attachment %u, more than were written", f.got,
			    f.attachment);
		lane_close(&f.lane);
		doorbell_close(&doorbell);
		close(f.wait_fd);
		close(f.control_fd);
	}
	return 0;
}

/* ---- kill: the batcher ------------------------------------------------------------------------------------------- */

enum link_state { LINK_NONE, LINK_ATTACHED, LINK_DEAD };

/* What the control thread and the worker (intake and step in one) share: b belongs to the worker while state is not
 * LINK_NONE, to the control thread otherwise. */
struct link {
	const struct kill_test *k;
	struct doorbell         doorbell;
	struct batcher          b;
	_Atomic int             state;
};

/* Everything the front of this attachment published is either read or dropped, and the drop count says so. */
static void reset_lane(struct link *l)
{
	struct batcher    *b = &l->b;
	struct attachment *a = &b->s->attachment[b->attachment];
	uint64_t           dropped = lane_batcher_drop_records(&b->lane);
	uint64_t           written = atomic_load(&a->records_written), writing = atomic_load(&a->records_writing);

	if (b->got + dropped < written || b->got + dropped > writing)
		violation(b->s,
		    "reset of attachment %u: read %" PRIu64 " + dropped %" PRIu64 ", but written %" PRIu64 " to %" PRIu64,
		    b->attachment, b->got, dropped, written, writing);
	atomic_fetch_add(&b->s->dropped, dropped);
	atomic_fetch_add(&b->s->resets, dropped > 0);
	lane_close(&b->lane);
	wake_close(&b->wake);
	atomic_store(&l->state, LINK_NONE);
}

static bool link_pending(void *context)
{
	struct link *l = context;
	int          state = atomic_load(&l->state);

	return state == LINK_DEAD || (state == LINK_ATTACHED && lane_batcher_pending_seq_cst(&l->b.lane));
}

static void *kill_worker(void *context)
{
	struct link *l = context;
	bool         moved;

	while (!atomic_load(&l->k->s->stop) || atomic_load(&l->state) != LINK_NONE) {
		switch (atomic_load(&l->state)) {
		case LINK_ATTACHED:
			moved = intake_turn(&l->b);
			moved |= step_turn(&l->b, UINT64_MAX);
			stall(&l->b.intake_random);
			break;
		case LINK_DEAD:
			reset_lane(l);
			moved = true;
			break;
		default:
			moved = false;
		}
		/* Credit comes without a ring, so the tick is short. */
		if (!moved)
			doorbell_sleep(&l->doorbell, CLOCK_NS_PER_MS, link_pending, l);
	}
	return NULL;
}

/* A front said HELLO on FD: gives it a lane.  False when it is gone already. */
static bool welcome_front(struct link *l, int fd)
{
	struct control_message message, welcome = { .slots = SLOTS, .stream_window = WINDOW };
	struct error           error;
	struct pollfd          p = { .fd = fd, .events = POLLIN };
	int                    fds[CONTROL_FDS_MAX], count;
	enum status            status;

	while ((status = control_receive(fd, &message, fds, &count, &error)) == STATUS_AGAIN)
		if (poll(&p, 1, 60000) != 1)
			fail("batcher", "a front connected and said nothing for a minute");
	if (status == STATUS_GONE)
		return false;
	if (status != STATUS_OK || message.type != CONTROL_HELLO || message.epoch == 0 || message.epoch >= ATTACHMENTS_MAX)
		fail("batcher", "bad hello");
	l->b = (struct batcher) { .s = l->k->s, .doorbell = &l->doorbell, .attachment = (uint32_t)message.epoch,
		.intake_random = message.epoch, .step_random = ~message.epoch };
	if (make_lane(message.slots, message.stream_window, &l->b.lane, &error) != STATUS_OK ||
	    wake_create(&l->b.wake, &error) != STATUS_OK)
		fail("batcher", error.message);
	fds[CONTROL_FD_LANE] = l->b.lane.fd;
	fds[CONTROL_FD_WAKE] = l->b.wake.wait_fd;
	fds[CONTROL_FD_DOORBELL] = l->doorbell.fd;
	/* A front that is gone by now shows up as end-of-file on the connection. */
	(void)control_send(fd, &welcome, CONTROL_WELCOME, fds, CONTROL_FDS_MAX);
	atomic_store(&l->state, LINK_ATTACHED);
	doorbell_ring(&l->doorbell, -1);
	return true;
}

static int kill_batcher(const struct kill_test *k)
{
	struct link  l = { .k = k };
	struct error error;
	pthread_t    worker;
	int          listener, fd = -1;

	if (doorbell_create(&l.doorbell, &error) != STATUS_OK ||
	    control_listen(k->path, -1, &listener, &error) != STATUS_OK)
		fail("batcher", error.message);
	if (pthread_create(&worker, NULL, kill_worker, &l))
		fail("pthread_create", "worker");
	/* At the end the front leaves first, so that its lane is reset and counted. */
	while (!atomic_load(&k->s->stop) || fd >= 0) {
		struct pollfd p = { .fd = fd >= 0 ? fd : listener, .events = POLLIN };

		if (poll(&p, 1, 50) != 1)
			continue;
		if (fd < 0) {
			if (control_accept(listener, &fd, &error) == STATUS_OK && !welcome_front(&l, fd)) {
				close(fd);
				fd = -1;
			}
			continue;
		}
		/* The front sends nothing after HELLO: this is its end. */
		atomic_store(&l.state, LINK_DEAD);
		doorbell_ring(&l.doorbell, -1);
		while (atomic_load(&l.state) != LINK_NONE)
			sched_yield();
		close(fd);
		fd = -1;
	}
	pthread_join(worker, NULL);
	close(listener);
	doorbell_close(&l.doorbell);
	return 0;
}

/* ---- kill: the supervisor ---------------------------------------------------------------------------------------- */

static pid_t start(const struct kill_test *k, int (*body)(const struct kill_test *))
{
	pid_t child = fork();

	if (child < 0)
		fail("fork", strerror(errno));
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(body(k));
	}
	return child;
}

static bool still_runs(struct shared *s, pid_t child, const char *name)
{
	int result = 0;

	if (waitpid(child, &result, WNOHANG) != child)
		return true;
	violation(s, "the %s ended by itself with status 0x%x", name, (unsigned)result);
	return false;
}

/* Waits until RECORDS and EVENTS more have been read: both directions work again after the last kill. */
static bool await_progress(struct shared *s, uint64_t records, uint64_t events, const pid_t children[2])
{
	const struct timespec nap = { .tv_nsec = 100000 };
	const uint64_t        records_from = atomic_load(&s->records_read), events_from = atomic_load(&s->events_read);

	while (atomic_load(&s->records_read) - records_from < records ||
	    atomic_load(&s->events_read) - events_from < events) {
		if (atomic_load(&s->violations) || !still_runs(s, children[0], "front") || !still_runs(s, children[1],
		    "batcher"))
			return false;
		nanosleep(&nap, NULL);
	}
	return true;
}

static int run_kill(const char *name, uint64_t kills)
{
	struct kill_test k = { .directory = "/tmp/penstock-stress-XXXXXX" };
	int (*const bodies[2])(const struct kill_test *) = { kill_front, kill_batcher };
	pid_t            children[2];
	uint64_t         random = 4, killed[2] = { 0, 0 }, written = 0;
	struct shared   *s;
	int              result, failed;

	s = k.s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED || !mkdtemp(k.directory))
		fail("set-up", strerror(errno));
	snprintf(k.path, sizeof k.path, "%s/control.sock", k.directory);
	for (int i = 0; i < 2; i++)
		children[i] = start(&k, bodies[i]);
	for (uint64_t i = 0; i < kills; i++) {
		uint64_t x = next_random(&random);
		int      which = (int)(x & 1);

		if (!await_progress(s, 1 + (x >> 8) % 2000, 1 + (x >> 32) % 2000, children))
			break;
		spin(next_random(&random) % 100000);
		kill(children[which], SIGKILL);
		waitpid(children[which], &result, 0);
		killed[which]++;
		children[which] = start(&k, bodies[which]);
	}
	await_progress(s, 1000, 1000, children);
	atomic_store(&s->stop, 1);
	for (int i = 0; i < 2; i++) {
		if (atomic_load(&s->violations))
			kill(children[i], SIGKILL);
		if (waitpid(children[i], &result, 0) != children[i] || (result && !atomic_load(&s->violations)))
			violation(s, "process %d ended with status 0x%x", i, (unsigned)result);
	}
	for (uint32_t i = 1; i <= s->attachments; i++)
		written += s->attachment[i].records_written;
	printf("%s: %" PRIu64 " fronts and %" PRIu64 " batchers killed, %u attachments; %" PRIu64 " records written, %" PRIu64
	       " read, %" PRIu64 " dropped by %" PRIu64 " resets; %" PRIu64 " events read; violations %" PRIu64 "\n",
	    name, killed[0], killed[1], s->attachments, written, s->records_read, s->dropped, s->resets, s->events_read,
	    s->violations);
	fflush(stdout);
	unlink(k.path);
	rmdir(k.directory);
	failed = s->violations != 0 || killed[0] + killed[1] != kills;
	munmap(s, sizeof *s);
	return failed;
}

static uint64_t parameter(const char *name, uint64_t fallback)
{
	const char *text = getenv(name);
	char       *end;
	uint64_t    value;

	if (!text)
		return fallback;
	value = strtoull(text, &end, 10);
	if (*end || end == text)
		fail(name, "is not a number");
	return value;
}

int main(int argc, char **argv)
{
	const uint64_t records = parameter("LANE_STRESS_RECORDS", 100000), rounds = parameter("LANE_STRESS_ROUNDS", 20000);
	const struct {
		const char *name;
		struct load load;
		bool        threads;
	} tests[] = {
		{ "exchange", { records, records, false }, false },
		{ "threads", { records, records, false }, true },
		{ "stream", { records, 0, false }, false },
		{ "handshake", { rounds, rounds, true }, false },
		{ "handshake-threads", { rounds, rounds, true }, true },
		{ "kill", { parameter("LANE_STRESS_KILLS", 40), 0, false }, false },
	};
	bool known = false;
	int  failed = 0;

	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name))
			continue;
		known = true;
		alarm(3600); /* a test that hangs ends, and its children with it */
		if (strcmp(tests[i].name, "kill"))
			failed |= run_test(tests[i].name, &tests[i].load, tests[i].threads);
		else
			failed |= run_kill(tests[i].name, tests[i].load.records);
	}
	if (!known)
		fail(argv[1], "exchange, threads, stream, handshake, handshake-threads or kill was expected");
	return failed;
}
