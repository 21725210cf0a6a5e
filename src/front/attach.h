/* attach.h: a front child's tie to penstockd: the control socket, its lane, the doorbell, and the heartbeat.
 *
 *            tick, when due                WELCOME
 *   AWAY ───────────────────► HELLO ─────────────────────► UP
 *    ▲                          │ refused, time-out          │ end-of-file, stale heartbeat, broken lane
 *    └──────────────────────────┴────────────────────────────┘
 *
 * Nothing here waits for penstockd: connecting to a socket nobody listens on fails at once, and the answer to HELLO is
 * awaited in the child's epoll set.  While AWAY the child goes on accepting and answers what needs no batcher.
 */
#ifndef PENSTOCK_FRONT_ATTACH_H
#define PENSTOCK_FRONT_ATTACH_H

#include "base/conf.h"
#include "ipc/control.h"
#include "ipc/doorbell.h"
#include "ipc/header.h"
#include "ipc/lane.h"

enum attach_state { ATTACH_AWAY, ATTACH_HELLO, ATTACH_UP };

/* What happened in a call: the caller must act on each. */
enum attach_event {
	ATTACH_NOTHING,
	ATTACH_CAME,    /* UP now: requests may be submitted */
	ATTACH_LEFT,    /* AWAY now: all that was submitted is lost */
	ATTACH_MISMATCH /* AWAY: penstockd speaks another vocabulary; the words in *error */
};

struct attach {
	const struct conf *conf;        /* borrowed */
	uint64_t           fingerprint; /* of the vocabulary this process loaded */
	int                epoll;       /* borrowed; the descriptors below are in it under these tags */
	uint64_t           control_tag, wake_tag;

	enum attach_state  state;
	uint64_t           next_ns;     /* AWAY: next try; HELLO: give up; UP: next look at the heartbeat */
	uint64_t           backoff_ns;
	int                control_fd, wake_fd;
	bool               tried;       /* the first try has come to an end, one way or the other */
	enum status        logged;      /* last reason that was logged: a reason is logged once */
	/* Valid while UP. */
	struct lane        lane;
	struct doorbell    doorbell;
	struct header      header;
	uint32_t           lane_index, slots, window;
	uint64_t           epoch, last_id;
};

void attach_init(struct attach *attach, const struct conf *conf, uint64_t fingerprint, int epoll, uint64_t control_tag,
    uint64_t wake_tag);
void attach_close(struct attach *attach);

/* Does what is due at NOW_NS: a try to attach, giving one up, the look at the heartbeat. */
enum attach_event attach_tick(struct attach *attach, uint64_t now_ns, struct error *error);
/* The control socket is readable. */
enum attach_event attach_on_control(struct attach *attach, uint64_t now_ns, struct error *error);
/* The lane is broken (its other side wrote what it must not): gives it up. */
void attach_leave(struct attach *attach, uint64_t now_ns);
/* Empties the wake-up descriptor. */
void attach_on_wake(struct attach *attach);

/* May requests be submitted?  Attached, alive, ready and not draining. */
bool attach_ready(const struct attach *attach, uint64_t now_ns);
/* Rings for the lane's records, cancels and stops. */
void attach_ring(struct attach *attach);
/* A request id that was never used and never will be: (lane, microseconds of the clock, counting on). */
uint64_t attach_next_id(struct attach *attach);

#endif
