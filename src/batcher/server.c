/* server.c: owns the control connections and the life of the process.  Does not touch records, events or the model.
 *
 * A connection is either a child's (it has a lane, and its end is the child's death notice) or a tool's (one question, one
 * answer).  A child's lane closes with its connection and its connection with its lane, whichever ends first.
 *
 * Invariant: an OPEN lane has exactly one connection. */
#include "batcher/server.h"

#include "base/clock.h"
#include "base/log.h"
#include "batcher/service.h"
#include "ipc/control.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	CONNECTIONS_MAX = LANE_COUNT_MAX + 64,
	LANES_PER_PROCESS = 4,    /* a child has one, and perhaps one that has not been seen to end */
	EVENTS_MAX = 64,
	TICK_MS = 250,
	ACCEPT_PAUSE_MS = 250,    /* when descriptors have run out */
	HELLO_TIMEOUT_MS = 5000,  /* from connect to the first message */
	LOAD_NOTICE_MS = 5000,    /* how often loading says that it goes on */
	LOAD_EXTEND_US = 30000000
};

/* What epoll reports. */
enum source { SOURCE_LISTEN, SOURCE_SIGNAL, SOURCE_WAKE, SOURCE_CONNECTION };

struct connection {
	int                 fd; /* −1 = free */
	struct lanes_entry *lane;
	pid_t               peer; /* as the kernel knows it; 0 = of another pid namespace */
	uint64_t            since_ns;
};

struct server {
	struct batcher   *b;
	int               epoll_fd, signal_fd;
	struct connection connections[CONNECTIONS_MAX];
	uint64_t          load_notice_ns;
	uint64_t          drain_until_ns, stuck_at_ns; /* 0 = not draining, not past the drain */
	uint64_t          deaf_until_ns;               /* the listening socket is not watched before; 0 = it is */
	bool              look;                        /* a lane may have closed */
};

static void fill_mask(sigset_t *ret)
{
	sigemptyset(ret);
	sigaddset(ret, SIGTERM);
	sigaddset(ret, SIGINT);
	sigaddset(ret, SIGHUP);
	sigaddset(ret, SIGUSR1);
}

void server_block_signals(void)
{
	sigset_t mask;

	fill_mask(&mask);
	pthread_sigmask(SIG_BLOCK, &mask, NULL);
}

/* ---- drain -------------------------------------------------------------------------------------------------------- */

static void wish(struct server *s, enum batcher_wish what)
{
	atomic_store_explicit(&s->b->wish, what, memory_order_release);
	queue_poke(&s->b->queue);
}

/* The first time drains, the second time ends at once. */
static void drain(struct server *s, const char *reason)
{
	uint64_t now = clock_now_ns();

	if (s->drain_until_ns) {
		log_info("%s again: ending now", reason);
		s->drain_until_ns = now;
		return;
	}
	log_info("%s: no new requests, at most %lld ms for those inside", reason, (long long)s->b->conf.batcher_drain_timeout_ms);
	s->drain_until_ns = now + (uint64_t)s->b->conf.batcher_drain_timeout_ms * CLOCK_NS_PER_MS;
	if (batcher_phase(s->b) == BATCHER_LOADING)
		s->drain_until_ns = now; /* nobody is inside */
	wish(s, BATCHER_DRAIN);
}

/* ---- connections -------------------------------------------------------------------------------------------------- */

static void close_connection(struct server *s, struct connection *c)
{
	struct lanes_entry *lane = c->lane;

	close(c->fd); /* epoll forgets it with its last descriptor */
	*c = (struct connection){ .fd = -1 };
	if (!lane)
		return;
	if (lanes_close(lane))
		batcher_wake_intake(s->b);
	lane->held = false; /* only now may the entry be another child's */
}

static void answer(struct connection *c, struct control_message *message, enum control_type type)
{
	(void)control_send(c->fd, message, type, NULL, 0); /* a tool that has gone needs no answer */
}

/* The fingerprint travels along (0 while loading): a front that has another one must load the other model. */
static void __attribute__((format(printf, 4, 5))) refuse(struct server *s, struct connection *c, enum status status,
    const char *format, ...)
{
	struct control_message message = { .status = (uint32_t)status };
	va_list                args;

	va_start(args, format);
	vsnprintf(message.text, sizeof message.text, format, args);
	va_end(args);
	if (batcher_phase(s->b) != BATCHER_LOADING)
		message.vocab_fingerprint = s->b->model.fingerprint;
	answer(c, &message, CONTROL_REFUSE);
}

static uint32_t grant(uint32_t wanted, int64_t most) { return wanted == 0 || wanted > most ? (uint32_t)most : wanted; }

/* Has the process behind C as many lanes as one may have?  Else a mad child could take those of all others. */
static bool has_enough(const struct server *s, const struct connection *c)
{
	unsigned lanes = 0;

	for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
		lanes += s->connections[i].fd >= 0 && s->connections[i].lane && s->connections[i].peer == c->peer;
	return c->peer > 0 && lanes >= LANES_PER_PROCESS;
}

/* Gives a child its lane; true when the connection stays. */
static bool attach(struct server *s, struct connection *c, const struct control_message *hello)
{
	struct batcher        *b = s->b;
	struct lane_geometry   geometry;
	struct control_message welcome = { .epoch = b->header.shared->epoch };
	struct lanes_entry    *lane;
	struct error           error;
	enum status            status;

	if (batcher_phase(b) != BATCHER_READY) {
		refuse(s, c, STATUS_UNAVAILABLE, batcher_phase(b) == BATCHER_LOADING ? "the model is loading" : "draining");
		return false;
	}
	if (hello->vocab_fingerprint != b->model.fingerprint) {
		refuse(s, c, STATUS_INVALID, "the vocabulary here is %016llx, the front's %016llx: they serve different models",
		    (unsigned long long)b->model.fingerprint, (unsigned long long)hello->vocab_fingerprint);
		log_warn("child %u is refused: its vocabulary is %016llx, ours %016llx", hello->pid,
		    (unsigned long long)hello->vocab_fingerprint, (unsigned long long)b->model.fingerprint);
		return false;
	}
	welcome.vocab_fingerprint = b->model.fingerprint;
	if (has_enough(s, c)) {
		refuse(s, c, STATUS_LIMIT, "process %d has %d lanes already, as many as one process may have", (int)c->peer,
		    LANES_PER_PROCESS);
		return false;
	}
	welcome.slots = grant(hello->slots, b->conf.front_streams_per_front);
	welcome.stream_window = grant(hello->stream_window, b->conf.front_stream_window);
	status = lane_geometry_plan(welcome.slots, welcome.stream_window, &geometry);
	if (status)
		error_set(&error, status, "%u slots with a window of %u bytes are not possible", welcome.slots, welcome.stream_window);
	else
		status = lanes_make(&b->lanes, &geometry, hello->pid, &lane, &error);
	if (status) {
		refuse(s, c, status == STATUS_IO ? STATUS_NOMEM : status, "no lane: %.200s", error.message);
		log_error("child %u gets no lane: %s", hello->pid, error.message);
		return false;
	}
	welcome.lane = lane->index;
	status = control_send(c->fd, &welcome, CONTROL_WELCOME,
	    (int[CONTROL_FDS_MAX]){ [CONTROL_FD_LANE] = lane->lane.fd, [CONTROL_FD_WAKE] = lane->wake.wait_fd,
	        [CONTROL_FD_DOORBELL] = b->doorbell.fd },
	    CONTROL_FDS_MAX);
	if (status) {
		lanes_recycle(lane);
		lane->held = false;
		return false;
	}
	log_debug("child %u has lane %u: %u slots, window %u", hello->pid, lane->index, welcome.slots, welcome.stream_window);
	c->lane = lane;
	metrics_add(&b->metrics, METRIC_lanes_attached, 1);
	lanes_open(&b->lanes, lane);
	batcher_wake_intake(b); /* what the child has sent before that */
	return true;
}

static void tell_status(struct server *s, struct connection *c)
{
	static const char *const phases[] = { "loading", "ready", "draining", "stopped", "failed" };
	struct batcher          *b = s->b;
	const struct metrics    *m = &b->metrics;
	struct control_message   message = { .epoch = b->header.shared->epoch };

	snprintf(message.text, sizeof message.text, "%s: running %llu, waiting %llu, KV blocks %llu/%llu, children %llu, epoch %llu",
	    phases[batcher_phase(b)], (unsigned long long)metrics_get(m, METRIC_sequences_running),
	    (unsigned long long)metrics_get(m, METRIC_sequences_waiting), (unsigned long long)metrics_get(m, METRIC_kv_blocks_used),
	    (unsigned long long)metrics_get(m, METRIC_kv_blocks_total), (unsigned long long)metrics_get(m, METRIC_lanes_attached),
	    (unsigned long long)message.epoch);
	answer(c, &message, CONTROL_DONE);
}

static struct ucred peer_of(int fd)
{
	struct ucred peer = { .pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1 };
	socklen_t    size = sizeof peer;

	(void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size); /* left as it is: nobody */
	return peer;
}

/* Only the same user or root may end the service. */
static void ask_drain(struct server *s, struct connection *c)
{
	struct control_message message = { .status = STATUS_OK };
	uid_t                  uid = peer_of(c->fd).uid;

	if (uid != 0 && uid != geteuid()) {
		refuse(s, c, STATUS_FORBIDDEN, "only the user of penstockd and root may drain it");
		return;
	}
	drain(s, "drain is asked for");
	snprintf(message.text, sizeof message.text, "draining %u requests, at most %lld ms", admission_inside(&s->b->admission),
	    (long long)s->b->conf.batcher_drain_timeout_ms);
	answer(c, &message, CONTROL_DONE);
}

static void on_message(struct server *s, struct connection *c)
{
	struct control_message message;
	struct error           error;
	int                    fds[CONTROL_FDS_MAX], fd_count = 0;
	enum status            status = control_receive(c->fd, &message, fds, &fd_count, &error);

	if (status == STATUS_AGAIN)
		return;
	for (int i = 0; i < fd_count; i++) /* nobody sends us any */
		close(fds[i]);
	if (status == STATUS_INVALID && !c->lane) {
		refuse(s, c, status, "%s", error.message);
		log_warn("control: %s", error.message);
	}
	if (!status && !c->lane) {
		if (message.type == CONTROL_HELLO && attach(s, c, &message))
			return;
		if (message.type == CONTROL_STATUS)
			tell_status(s, c);
		else if (message.type == CONTROL_DRAIN)
			ask_drain(s, c);
	}
	/* A child has nothing to say after HELLO: whatever it says is its end. */
	if (c->lane && status == STATUS_GONE)
		log_debug("child %u has gone", c->lane->pid);
	close_connection(s, c);
}

/* Watches the listening socket for EVENTS; −1 when that is not possible. */
static int listen_for(struct server *s, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.u64 = SOURCE_LISTEN };

	return epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, s->b->listen_fd, &event);
}

static void on_connect(struct server *s)
{
	struct error error;
	int          fd;
	enum status  status;

	while (!(status = control_accept(s->b->listen_fd, &fd, &error))) {
		struct connection *c = NULL;
		struct epoll_event event = { .events = EPOLLIN };

		for (unsigned i = 0; i < CONNECTIONS_MAX && !c; i++)
			if (s->connections[i].fd < 0)
				c = &s->connections[i];
		if (!c) {
			close(fd);
			continue;
		}
		*c = (struct connection){ .fd = fd, .peer = peer_of(fd).pid, .since_ns = clock_now_ns() };
		event.data.u64 = SOURCE_CONNECTION + (uint64_t)(c - s->connections);
		if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event))
			close_connection(s, c);
	}
	if (status == STATUS_AGAIN)
		return;
	/* The connection stays in the backlog and the socket readable: looking again at once would be a busy loop. */
	log_warn("%s; listening again in %d ms", error.message, ACCEPT_PAUSE_MS);
	if (!listen_for(s, 0))
		s->deaf_until_ns = clock_now_ns() + ACCEPT_PAUSE_MS * CLOCK_NS_PER_MS;
}

/* Connections whose lane was closed by another thread, or that never said what they want. */
static void sweep(struct server *s, uint64_t now)
{
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &s->connections[i];

		if (c->fd < 0)
			continue;
		if (c->lane ? lanes_state(c->lane) != LANES_OPEN : now - c->since_ns > HELLO_TIMEOUT_MS * CLOCK_NS_PER_MS)
			close_connection(s, c);
	}
	s->look = false;
}

/* ---- the loop ----------------------------------------------------------------------------------------------------- */

static void on_signal(struct server *s)
{
	struct signalfd_siginfo info;

	while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
		struct error error;

		switch (info.ssi_signo) {
		case SIGTERM:
		case SIGINT:
			drain(s, info.ssi_signo == SIGTERM ? "TERM" : "INT");
			break;
		case SIGUSR1:
			if (*s->b->conf.service_log_file && log_open(s->b->conf.service_log_file, &error))
				log_error("%s", error.message);
			else
				log_info("USR1: the log is open again");
			break;
		default:
			log_info("HUP: nothing to read again; restart to change the configuration");
		}
	}
}

static void on_event(struct server *s, uint64_t source)
{
	uint64_t count;

	switch (source) {
	case SOURCE_LISTEN:
		on_connect(s);
		break;
	case SOURCE_SIGNAL:
		on_signal(s);
		break;
	case SOURCE_WAKE:
		if (read(s->b->control_fd, &count, sizeof count) > 0)
			s->look = true;
		break;
	default:
		if (s->connections[source - SOURCE_CONNECTION].fd >= 0) /* it may have been closed in this batch */
			on_message(s, &s->connections[source - SOURCE_CONNECTION]);
	}
}

/* Time passes.  True when the step thread is given up: it is then in a call that takes longer than anybody waits. */
static bool on_tick(struct server *s, uint64_t now, enum server_end *ret)
{
	const struct conf *conf = &s->b->conf;
	bool               loading = batcher_phase(s->b) == BATCHER_LOADING;

	if (loading && now - s->load_notice_ns >= LOAD_NOTICE_MS * CLOCK_NS_PER_MS) {
		service_notify("EXTEND_TIMEOUT_USEC=%d\nSTATUS=loading the model", LOAD_EXTEND_US);
		s->load_notice_ns = now;
	}
	if (!s->drain_until_ns || now < s->drain_until_ns)
		return false;
	if (!s->stuck_at_ns) {
		if (admission_inside(&s->b->admission))
			log_warn("%u requests are ended by the drain", admission_inside(&s->b->admission));
		wish(s, BATCHER_STOP);
		s->stuck_at_ns = now + (uint64_t)conf->batcher_watchdog_ms * CLOCK_NS_PER_MS;
	}
	*ret = loading ? SERVER_ABANDONED : SERVER_STUCK;
	return loading || now >= s->stuck_at_ns;
}

static int timeout_ms(const struct server *s, uint64_t now)
{
	uint64_t left;

	if (!s->drain_until_ns || s->stuck_at_ns || now >= s->drain_until_ns)
		return TICK_MS;
	left = (s->drain_until_ns - now) / CLOCK_NS_PER_MS + 1;
	return left < TICK_MS ? (int)left : TICK_MS;
}

static enum server_end serve(struct server *s)
{
	struct epoll_event events[EVENTS_MAX];

	for (;;) {
		int                n = epoll_wait(s->epoll_fd, events, EVENTS_MAX, timeout_ms(s, clock_now_ns()));
		enum batcher_phase phase;
		enum server_end    end;
		uint64_t           now;

		for (int i = 0; i < n; i++)
			on_event(s, events[i].data.u64);
		now = clock_now_ns();
		phase = batcher_phase(s->b);
		if (phase == BATCHER_STOPPED || phase == BATCHER_FAILED)
			return phase == BATCHER_STOPPED ? SERVER_STOPPED : SERVER_FAILED;
		if (on_tick(s, now, &end))
			return end;
		if (s->look || n == 0)
			sweep(s, now);
		if (s->deaf_until_ns && now >= s->deaf_until_ns && !listen_for(s, EPOLLIN))
			s->deaf_until_ns = 0;
	}
}

static enum status watch(struct server *s, int fd, enum source source, struct error *error)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = source };

	if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event))
		return error_set(error, STATUS_IO, "epoll_ctl: %s", strerror(errno));
	return STATUS_OK;
}

enum status server_run(struct batcher *batcher, enum server_end *ret, struct error *error)
{
	struct server *s = calloc(1, sizeof *s);
	sigset_t       mask;
	enum status    status = STATUS_OK;

	if (!s)
		return error_set(error, STATUS_NOMEM, "no memory for %d connections", CONNECTIONS_MAX);
	s->b = batcher;
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
		s->connections[i].fd = -1;
	fill_mask(&mask);
	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	s->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (s->epoll_fd < 0 || s->signal_fd < 0)
		status = error_set(error, STATUS_IO, "cannot make epoll and signal descriptors: %s", strerror(errno));
	if (!status)
		status = watch(s, batcher->listen_fd, SOURCE_LISTEN, error);
	if (!status)
		status = watch(s, s->signal_fd, SOURCE_SIGNAL, error);
	if (!status)
		status = watch(s, batcher->control_fd, SOURCE_WAKE, error);
	if (!status)
		*ret = serve(s);
	for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
		if (s->connections[i].fd >= 0)
			close_connection(s, &s->connections[i]);
	if (s->signal_fd >= 0)
		close(s->signal_fd);
	if (s->epoll_fd >= 0)
		close(s->epoll_fd);
	free(s);
	return status;
}
