/* child.c: owns the event loop of one front child: what is waited for, in which order it is served, and when the child
 * ends.  Does not own requests (request.c, generate.c) or the tie to penstockd (attach.c).
 *
 * Invariants:
 *  - Nothing in a turn of the loop waits, but for the one epoll_wait.
 *  - The child sleeps only after lane_front_prepare_wait has said that nothing is there.
 *  - The listen socket is in the set exactly while a slot is free and the child is not draining. */
#include "front/child.h"

#include "api/keys.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* The low byte of an epoll tag; a request's tag carries its serial and index above it. */
enum tag { TAG_REQUEST = 1, TAG_LISTEN, TAG_SIGNAL, TAG_MASTER, TAG_CONTROL, TAG_WAKE, TAG_HELPER };

enum { EVENTS_AT_ONCE = 64 };

/* A child holds little memory for long and much for a moment: large blocks come from mmap and go back to the system
 * when freed, whatever was freed before (glibc would raise the threshold with every large block it sees). */
enum { MMAP_THRESHOLD = 128 << 10, ARENAS = 2 };

#define SETTLE_NS       (200 * CLOCK_NS_PER_MS) /* for the first try to attach */
#define ACCEPT_PAUSE_NS (100 * CLOCK_NS_PER_MS) /* when descriptors or memory have run out */
#define LAST_WORDS_NS   (1 * CLOCK_NS_PER_S)    /* after the drain time-out: for error events to be written */

static bool watch(const struct child *child, int fd, uint32_t events, enum tag tag)
{
	struct epoll_event event = { .events = events, .data.u64 = tag };
	return epoll_ctl(child->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* ---- listening ------------------------------------------------------------------------------------------------- */

static void update_listening(struct child *child, uint64_t now_ns)
{
	bool want = !child->draining && child->requests_open < child->request_count && now_ns >= child->listen_after_ns;

	/* A child that replaces a dead one while penstockd is up takes a millisecond to attach: no 503 for that. */
	if (!child->attach.tried && now_ns < child->started_ns + SETTLE_NS)
		want = false;

	if (want == child->listening)
		return;
	/* EPOLLEXCLUSIVE: one waiting child is woken per connection, not all.  It cannot be modified, only removed. */
	if (want)
		child->listening = watch(child, child->options.listen_fd, EPOLLIN | EPOLLEXCLUSIVE, TAG_LISTEN);
	else
		child->listening = epoll_ctl(child->epoll, EPOLL_CTL_DEL, child->options.listen_fd, NULL) != 0;
}

/* One connection per turn: what else waits wakes a sibling or comes next turn. */
static void accept_one(struct child *child, uint64_t now_ns)
{
	struct fcgi *connection;

	if (child->draining || child->requests_open == child->request_count)
		return;
	switch (fcgi_accept(child->options.listen_fd, &connection)) {
	case STATUS_OK:
		request_open(child, connection, now_ns);
		break;
	case STATUS_LIMIT:
		log_warn("no descriptor or memory for another connection; listening again in 100 ms");
		child->listen_after_ns = now_ns + ACCEPT_PAUSE_NS;
		break;
	default: /* a sibling was faster */
		break;
	}
}

/* ---- penstockd ------------------------------------------------------------------------------------------------- */

/* Shared with the helper thread, so it changes only while the helper has nothing. */
static void update_context(struct child *child)
{
	if (child->attach.state == ATTACH_UP && child->helper.pending == 0)
		child->api.max_context = child->attach.header.shared->max_context;
}

static void on_attach(struct child *child, enum attach_event event, const struct error *error, uint64_t now_ns)
{
	switch (event) {
	case ATTACH_NOTHING:
		return;
	case ATTACH_CAME:
		log_info("attached to penstockd: lane %u, %u slots", child->attach.lane_index, child->attach.slots);
		scoreboard_add(child->counters, COUNTER_ATTACHES, 1);
		scoreboard_set(child->counters, COUNTER_ATTACHED, 1);
		update_context(child);
		return;
	case ATTACH_LEFT:
		log_warn("detached: %s", error->message);
		scoreboard_add(child->counters, COUNTER_DETACHES, 1);
		scoreboard_set(child->counters, COUNTER_ATTACHED, 0);
		child->lane_broken = false;
		generate_lost(child, error, now_ns);
		return;
	case ATTACH_MISMATCH:
		log_error("%s", error->message);
		eventfd_write(child->options.mismatch_fd, 1);
		return;
	}
}

/* The lane's other side broke its rules: nothing it says can be believed, so this child starts anew with another
 * lane. */
static void give_up_lane(struct child *child, uint64_t now_ns)
{
	struct error error;

	error_set(&error, STATUS_UNAVAILABLE, "penstockd broke the rules of its lane");
	attach_leave(&child->attach, now_ns);
	on_attach(child, ATTACH_LEFT, &error, now_ns);
}

static void serve_lane(struct child *child, uint64_t now_ns)
{
	if (child->attach.state == ATTACH_UP)
		generate_pump(child, now_ns);
	if (child->attach.state == ATTACH_UP && (generate_drain(child, now_ns) || child->lane_broken))
		give_up_lane(child, now_ns);
}

/* ---- signals --------------------------------------------------------------------------------------------------- */

static void begin_drain(struct child *child, uint64_t now_ns)
{
	if (child->draining)
		return;
	child->draining = true;
	child->drain_deadline_ns = now_ns + (uint64_t)child->conf->front_drain_timeout_ms * CLOCK_NS_PER_MS;
	update_listening(child, now_ns);
	close(child->options.listen_fd);
	/* Connections that have not asked anything yet get no long wait. */
	for (uint32_t i = 0; i < child->request_count; i++)
		if (child->requests[i].state == REQUEST_HEAD && child->requests[i].deadline_ns > now_ns + LAST_WORDS_NS)
			child->requests[i].deadline_ns = now_ns + LAST_WORDS_NS;
	log_info("draining %u requests", child->requests_open);
}

static void reload_keys(struct child *child)
{
	struct keys *keys;
	struct error error;

	if (!*child->conf->front_keys_file)
		return;
	if (keys_load(child->conf->front_keys_file, &keys, &error)) {
		log_error("keys stay as they were: %s", error.message);
		return;
	}
	if (child->api.keys != child->options.api->keys) /* the master's are shared memory pages: left alone */
		keys_free(child->api.keys);
	child->api.keys = keys;
	log_info("keys read: %zu", keys_count(keys));
}

static void on_signal(struct child *child, uint64_t now_ns)
{
	struct signalfd_siginfo info;
	struct error            error;

	while (read(child->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
		switch (info.ssi_signo) {
		case SIGTERM:
			begin_drain(child, now_ns);
			break;
		case SIGHUP:
			reload_keys(child);
			break;
		case SIGUSR1:
			if (*child->conf->service_log_file && log_open(child->conf->service_log_file, &error))
				log_error("%s", error.message);
			break;
		}
	}
}

/* ---- time ------------------------------------------------------------------------------------------------------ */

static void on_time(struct child *child, uint64_t now_ns)
{
	struct error error = { 0 };

	for (uint32_t i = 0; i < child->request_count; i++)
		request_on_time(&child->requests[i], now_ns);
	if (!child->draining || now_ns < child->drain_deadline_ns)
		return;
	error_set(&error, STATUS_UNAVAILABLE, "the server is shutting down");
	for (uint32_t i = 0; i < child->request_count; i++) {
		struct request *request = &child->requests[i];
		if (request->state == REQUEST_FREE || request->state == REQUEST_FLUSH || request->state == REQUEST_ABANDONED)
			continue;
		if (request->call && !request->in_helper && request->state != REQUEST_LINGER)
			request_fail(request, &error, 0, now_ns);
		else
			request_drop(request, "shutdown");
	}
}

/* Milliseconds the loop may sleep. */
static int sleep_ms(const struct child *child, uint64_t now_ns)
{
	uint64_t next = child->attach.next_ns;

	if (child->more)
		return 0;
	for (uint32_t i = 0; i < child->request_count; i++) {
		uint64_t t = request_next_time(&child->requests[i]);
		next = t < next ? t : next;
	}
	if (child->draining && child->drain_deadline_ns < next)
		next = now_ns < child->drain_deadline_ns ? child->drain_deadline_ns : child->drain_deadline_ns + LAST_WORDS_NS;
	if (!child->draining && !child->listening && child->listen_after_ns > now_ns && child->listen_after_ns < next)
		next = child->listen_after_ns;
	if (!child->attach.tried && now_ns < child->started_ns + SETTLE_NS && child->started_ns + SETTLE_NS < next)
		next = child->started_ns + SETTLE_NS;
	return next <= now_ns ? 0 : (int)((next - now_ns + CLOCK_NS_PER_MS - 1) / CLOCK_NS_PER_MS);
}

/* ---- loop ------------------------------------------------------------------------------------------------------ */

static void on_helper(struct child *child, uint64_t now_ns)
{
	for (struct helper_job *job; (job = helper_take(&child->helper));)
		request_on_job((struct request *)((char *)job - offsetof(struct request, job)), now_ns);
	update_context(child);
}

static void on_event(struct child *child, const struct epoll_event *event, uint64_t now_ns)
{
	struct error error = { 0 };

	switch ((enum tag)(event->data.u64 & 0xff)) {
	case TAG_REQUEST: {
		struct request *request = &child->requests[event->data.u64 >> 8 & 0xffffff];
		if (request->state != REQUEST_FREE && request->connection &&
		    request->serial == (uint32_t)(event->data.u64 >> 32))
			request_on_ready(request, event->events, now_ns);
		break;
	}
	case TAG_LISTEN:
		accept_one(child, now_ns);
		break;
	case TAG_SIGNAL:
		on_signal(child, now_ns);
		break;
	case TAG_MASTER:
		epoll_ctl(child->epoll, EPOLL_CTL_DEL, child->options.master_fd, NULL);
		log_warn("the master is gone");
		begin_drain(child, now_ns);
		break;
	case TAG_CONTROL:
		on_attach(child, attach_on_control(&child->attach, now_ns, &error), &error, now_ns);
		break;
	case TAG_WAKE:
		attach_on_wake(&child->attach);
		break;
	case TAG_HELPER:
		on_helper(child, now_ns);
		break;
	}
}

/* Sleeps until something is there; returns the number of events. */
static int wait_events(struct child *child, struct epoll_event *events)
{
	int  timeout = sleep_ms(child, clock_now_ns()), n;
	bool attached = child->attach.state == ATTACH_UP;

	if (attached && timeout != 0 && !lane_front_prepare_wait(&child->attach.lane))
		timeout = 0;
	n = epoll_wait(child->epoll, events, EVENTS_AT_ONCE, timeout);
	if (attached)
		lane_front_end_wait(&child->attach.lane);
	return n;
}

static void turn(struct child *child)
{
	struct epoll_event events[EVENTS_AT_ONCE];
	struct error       error = { 0 };
	int                n = wait_events(child, events);
	uint64_t           now_ns = clock_now_ns();

	atomic_store_explicit(&child->counters->beat_ns, now_ns, memory_order_relaxed);
	serve_lane(child, now_ns); /* streams first: a token that is here goes out before new work is looked at */
	for (int i = 0; i < n; i++)
		on_event(child, &events[i], now_ns);
	serve_lane(child, now_ns);
	on_attach(child, attach_tick(&child->attach, now_ns, &error), &error, now_ns);
	on_time(child, now_ns);
	update_listening(child, now_ns);
	if (child->trim && child->helper.pending == 0) {
		child->trim = false;
		malloc_trim(0);
	}
}

static enum status set_up(struct child *child, const struct child_options *options, struct error *error)
{
	sigset_t signals;

	mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD);
	mallopt(M_ARENA_MAX, ARENAS);
	*child = (struct child){ .options = *options,
		.conf = options->conf,
		.api = *options->api,
		.epoll = -1,
		.signal_fd = -1,
		.counters = &options->board->slots[options->slot],
		.request_count = (uint32_t)options->conf->front_streams_per_front };
	child->requests = calloc(child->request_count, sizeof *child->requests);
	if (!child->requests)
		return error_set(error, STATUS_NOMEM, "no memory for %u requests", child->request_count);
	for (uint32_t i = 0; i < child->request_count; i++)
		child->requests[i] = (struct request){ .child = child, .state = REQUEST_FREE, .slot = -1 };
	sigfillset(&signals);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	sigaddset(&signals, SIGUSR1);
	child->signal_fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
	child->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (child->signal_fd < 0 || child->epoll < 0)
		return error_set(error, STATUS_IO, "signalfd or epoll: %s", strerror(errno));
	enum status status = helper_init(&child->helper, error);
	if (!status)
		status = fcgi_init(error);
	if (status)
		return status;
	child->started_ns = clock_now_ns();
	attach_init(&child->attach, child->conf, vocab_fingerprint(child->api.vocab), child->epoll, TAG_CONTROL, TAG_WAKE);
	if (!watch(child, child->signal_fd, EPOLLIN, TAG_SIGNAL) ||
	    !watch(child, options->master_fd, EPOLLIN, TAG_MASTER) ||
	    !watch(child, child->helper.event_fd, EPOLLIN, TAG_HELPER))
		return error_set(error, STATUS_IO, "epoll_ctl: %s", strerror(errno));
	return STATUS_OK;
}

enum child_status child_run(const struct child_options *options)
{
	struct child *child = malloc(sizeof *child);
	struct error  error = { 0 };
	bool          failed = !child || set_up(child, options, &error);

	if (failed)
		log_error("cannot start a child: %s", error.message);
	while (!failed) {
		if (child->draining &&
		    (child->requests_open == 0 || clock_now_ns() >= child->drain_deadline_ns + LAST_WORDS_NS))
			break;
		turn(child);
	}
	if (child && !failed)
		attach_close(&child->attach); /* penstockd sees the end of the connection and resets the lane */
	return failed ? CHILD_FAILED : CHILD_DONE; /* the process ends now: its memory and descriptors go with it */
}
