/* attach.c: owns the control connection, the mapped lane, doorbell and header of one child.  Does not own requests: it
 * says when penstockd came and went, the child ends what was lost.  Invariant: lane, doorbell and header are mapped
 * exactly while the state is UP, and they belong to the epoch that welcomed this child. */
#include "front/attach.h"

#include "base/clock.h"
#include "base/log.h"
#include "ipc/wake.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define BACKOFF_FIRST_NS (20 * CLOCK_NS_PER_MS)
#define BACKOFF_MAX_NS   (1 * CLOCK_NS_PER_S)
#define HELLO_TIMEOUT_NS (5 * CLOCK_NS_PER_S)
#define HEARTBEAT_NS     (CLOCK_NS_PER_S / 2)

void attach_init(struct attach *attach, const struct conf *conf, uint64_t fingerprint, int epoll, uint64_t control_tag,
    uint64_t wake_tag)
{
	*attach = (struct attach){ .conf = conf, .fingerprint = fingerprint, .epoll = epoll, .control_tag = control_tag,
		.wake_tag = wake_tag, .backoff_ns = BACKOFF_FIRST_NS, .control_fd = -1, .wake_fd = -1 };
}

static void close_all(struct attach *attach)
{
	if (attach->state == ATTACH_UP) {
		lane_close(&attach->lane);
		doorbell_close(&attach->doorbell);
		header_close(&attach->header);
	}
	if (attach->control_fd >= 0)
		close(attach->control_fd);
	if (attach->wake_fd >= 0)
		close(attach->wake_fd);
	attach->control_fd = attach->wake_fd = -1;
	attach->state = ATTACH_AWAY;
}

void attach_close(struct attach *attach) { close_all(attach); }

/* Back to AWAY, to try again later and later. */
static void retreat(struct attach *attach, uint64_t now_ns)
{
	close_all(attach);
	attach->tried = true;
	attach->next_ns = now_ns + attach->backoff_ns;
	attach->backoff_ns *= 2;
	if (attach->backoff_ns > BACKOFF_MAX_NS)
		attach->backoff_ns = BACKOFF_MAX_NS;
}

/* Logs why there is no tie, unless the same reason was the last one logged. */
static void log_once(struct attach *attach, const struct error *error)
{
	if (attach->logged == error->status)
		return;
	attach->logged = error->status;
	log_info("penstockd cannot be reached: %s", error->message);
}

void attach_leave(struct attach *attach, uint64_t now_ns)
{
	attach->backoff_ns = BACKOFF_FIRST_NS;
	attach->logged = STATUS_OK;
	retreat(attach, now_ns);
}

static bool add(const struct attach *attach, int fd, uint64_t tag)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = tag };
	return epoll_ctl(attach->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void say_hello(struct attach *attach, uint64_t now_ns)
{
	struct control_message hello = { .vocab_fingerprint = attach->fingerprint,
		.slots = (uint32_t)attach->conf->front_streams_per_front,
		.stream_window = (uint32_t)attach->conf->front_stream_window,
		.pid = (uint32_t)getpid() };
	struct error           error;
	char                   path[128];

	conf_control_socket(attach->conf, path, sizeof path);
	if (control_connect(path, 0, &attach->control_fd, &error)) {
		attach->control_fd = -1;
		log_once(attach, &error);
		retreat(attach, now_ns);
		return;
	}
	if (control_send(attach->control_fd, &hello, CONTROL_HELLO, NULL, 0) ||
	    !add(attach, attach->control_fd, attach->control_tag)) {
		retreat(attach, now_ns);
		return;
	}
	attach->state = ATTACH_HELLO;
	attach->next_ns = now_ns + HELLO_TIMEOUT_NS;
}

/* WELCOME came with FDS {lane, wake-up}: maps everything. */
static enum status move_in(struct attach *attach, const struct control_message *welcome, const int *fds,
    uint64_t now_ns, struct error *error)
{
	struct lane     lane;
	struct doorbell doorbell;
	struct header   header;
	enum status     status;

	status = header_open(attach->conf->service_instance, &header, error);
	if (status)
		return status;
	if (header.shared->epoch != welcome->epoch) {
		status = error_set(error, STATUS_UNAVAILABLE, "the welcome is of another epoch than the header");
		goto fail_header;
	}
	status = doorbell_attach(fds[CONTROL_FD_DOORBELL], &doorbell, error);
	if (status)
		goto fail_header;
	status = lane_attach(fds[CONTROL_FD_LANE], &lane, error);
	if (status)
		goto fail_doorbell;
	if (welcome->slots != lane.geometry.slot_count || welcome->lane >= LANE_COUNT_MAX) {
		status = error_set(error, STATUS_INVALID, "welcome to lane %u with %u slots, the lane has %u", welcome->lane,
		    welcome->slots, lane.geometry.slot_count);
		goto fail_lane;
	}
	if (!add(attach, fds[CONTROL_FD_WAKE], attach->wake_tag)) {
		status = error_set(error, STATUS_IO, "epoll_ctl: %s", strerror(errno));
		goto fail_lane;
	}
	attach->lane = lane;
	attach->doorbell = doorbell;
	attach->header = header;
	attach->lane_index = welcome->lane;
	attach->slots = welcome->slots;
	attach->window = lane.geometry.stream_window;
	attach->epoch = welcome->epoch;
	attach->wake_fd = fds[CONTROL_FD_WAKE];
	attach->state = ATTACH_UP;
	attach->tried = true;
	attach->backoff_ns = BACKOFF_FIRST_NS;
	attach->next_ns = now_ns + HEARTBEAT_NS;
	attach->logged = STATUS_OK;
	return STATUS_OK;
fail_lane:
	lane_close(&lane);
fail_doorbell:
	doorbell_close(&doorbell);
fail_header:
	header_close(&header);
	return status;
}

static enum attach_event mismatch(struct attach *attach, uint64_t theirs, uint64_t now_ns, struct error *error)
{
	retreat(attach, now_ns);
	attach->next_ns = now_ns + BACKOFF_MAX_NS;
	error_set(error, STATUS_INVALID,
	    "penstockd's vocabulary has the fingerprint %016llx, this front loaded %016llx: they run different models",
	    (unsigned long long)theirs, (unsigned long long)attach->fingerprint);
	return ATTACH_MISMATCH;
}

static enum attach_event on_answer(struct attach *attach, const struct control_message *answer, int *fds, int fd_count,
    uint64_t now_ns, struct error *error)
{
	struct error why;
	bool         differs = answer->vocab_fingerprint != attach->fingerprint;

	/* A refusal without a fingerprint (0) has another reason. */
	if (differs &&
	    (answer->type == CONTROL_WELCOME || (answer->type == CONTROL_REFUSE && answer->vocab_fingerprint != 0))) {
		for (int i = 0; i < fd_count; i++)
			close(fds[i]);
		return mismatch(attach, answer->vocab_fingerprint, now_ns, error);
	}
	if (answer->type != CONTROL_WELCOME || fd_count != CONTROL_FDS_MAX)
		error_set(&why, answer->status && answer->status < STATUS_COUNT ? (enum status)answer->status : STATUS_INVALID,
		    "%s", answer->type == CONTROL_REFUSE ? answer->text : "penstockd answered HELLO with no WELCOME");
	else if (!move_in(attach, answer, fds, now_ns, &why)) {
		close(fds[CONTROL_FD_LANE]); /* mapped; the handles need no descriptors */
		close(fds[CONTROL_FD_DOORBELL]);
		return ATTACH_CAME;
	}
	for (int i = 0; i < fd_count; i++)
		close(fds[i]);
	log_once(attach, &why);
	retreat(attach, now_ns);
	return ATTACH_NOTHING;
}

enum attach_event attach_on_control(struct attach *attach, uint64_t now_ns, struct error *error)
{
	struct control_message message;
	int                    fds[CONTROL_FDS_MAX], fd_count = 0;
	struct error           why = { .status = STATUS_GONE, .message = "it closed the control socket" };
	enum status            status;

	if (attach->state == ATTACH_AWAY) /* an event that was fetched before the descriptor was closed */
		return ATTACH_NOTHING;
	status = control_receive(attach->control_fd, &message, fds, &fd_count, &why);
	if (status == STATUS_AGAIN)
		return ATTACH_NOTHING;
	if (!status && attach->state == ATTACH_HELLO)
		return on_answer(attach, &message, fds, fd_count, now_ns, error);
	for (int i = 0; i < fd_count && !status; i++)
		close(fds[i]);
	if (attach->state == ATTACH_HELLO) {
		log_once(attach, &why);
		retreat(attach, now_ns);
		return ATTACH_NOTHING;
	}
	/* UP: end-of-file, or a message that has no business here. */
	error_set(error, STATUS_UNAVAILABLE, "penstockd has gone");
	attach_leave(attach, now_ns);
	return ATTACH_LEFT;
}

enum attach_event attach_tick(struct attach *attach, uint64_t now_ns, struct error *error)
{
	struct error why;

	if (now_ns < attach->next_ns)
		return ATTACH_NOTHING;
	switch (attach->state) {
	case ATTACH_AWAY:
		say_hello(attach, now_ns);
		return ATTACH_NOTHING;
	case ATTACH_HELLO:
		error_set(&why, STATUS_TIMEOUT, "no answer to HELLO within %d s", (int)(HELLO_TIMEOUT_NS / CLOCK_NS_PER_S));
		log_once(attach, &why);
		retreat(attach, now_ns);
		return ATTACH_NOTHING;
	case ATTACH_UP:
		attach->next_ns = now_ns + HEARTBEAT_NS;
		if (header_alive(attach->header.shared, now_ns, (uint64_t)attach->conf->batcher_watchdog_ms * CLOCK_NS_PER_MS))
			return ATTACH_NOTHING;
		error_set(error, STATUS_UNAVAILABLE, "penstockd shows no sign of life");
		attach_leave(attach, now_ns);
		return ATTACH_LEFT;
	}
	return ATTACH_NOTHING;
}

void attach_on_wake(struct attach *attach)
{
	if (attach->wake_fd >= 0)
		wake_drain(attach->wake_fd);
}

bool attach_ready(const struct attach *attach, uint64_t now_ns)
{
	return attach->state == ATTACH_UP &&
	    header_ready(attach->header.shared, now_ns, (uint64_t)attach->conf->batcher_watchdog_ms * CLOCK_NS_PER_MS);
}

void attach_ring(struct attach *attach) { doorbell_ring(&attach->doorbell, (int)attach->lane_index); }

/* Ten bits of lane, 54 bits that start at the clock's microseconds (good until 2540) and count: another child that gets
 * this lane later starts higher, unless this one served over a million requests a second. */
uint64_t attach_next_id(struct attach *attach)
{
	struct timespec now;
	uint64_t        us;

	clock_gettime(CLOCK_REALTIME, &now);
	us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
	attach->last_id = us > attach->last_id ? us : attach->last_id + 1;
	return (uint64_t)attach->lane_index << 54 | (attach->last_id & ((UINT64_C(1) << 54) - 1));
}
