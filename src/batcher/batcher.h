/* batcher.h: what the threads of penstockd share.
 *
 *   control thread (main)    sockets, signals, attach, drain                            server.c
 *   intake thread            records → requests; answers reservations                   intake.c
 *   step thread              loads the model; requests → engine → events; heartbeat     stepper.c
 *   notifier thread          wakes children                                             notifier.c
 *
 *   child ──records──► intake ──queue──► step ──events──► child
 *     ▲                   │                │                ▲
 *     └──── reply word ───┘                └──► notifier ───┘ (a byte in its pipe)
 *
 * Each thread has its own context; here is only what crosses from one to another.
 */
#ifndef PENSTOCK_BATCHER_BATCHER_H
#define PENSTOCK_BATCHER_BATCHER_H

#include "base/conf.h"
#include "batcher/admission.h"
#include "batcher/lanes.h"
#include "batcher/notifier.h"
#include "batcher/queue.h"
#include "ipc/blackbox.h"
#include "ipc/doorbell.h"
#include "ipc/header.h"
#include "ipc/metrics.h"

/* Where the process stands.  Stored by the step thread (release), read by all (acquire): who sees READY sees `model`,
 * who sees FAILED sees `failure`. */
enum batcher_phase { BATCHER_LOADING, BATCHER_READY, BATCHER_DRAINING, BATCHER_STOPPED, BATCHER_FAILED };

/* What the control thread wants of the step thread. */
enum batcher_wish { BATCHER_SERVE, BATCHER_DRAIN, BATCHER_STOP };

/* Facts about the loaded model; final before READY. */
struct batcher_model {
	uint64_t fingerprint, kv_tokens;
	uint32_t vocab, max_context;
};

struct batcher {
	struct conf conf;

	/* Made by batcher_open, before there are threads. */
	struct header    header;
	struct metrics   metrics;
	struct blackbox  blackbox;
	struct doorbell  doorbell;
	struct lanes     lanes;
	struct queue     queue;
	struct admission admission;
	struct notifier  notifier;
	int              lock_fd, listen_fd;
	int              control_fd; /* eventfd: wakes the control thread */

	_Atomic uint32_t     phase;     /* enum batcher_phase; step thread */
	_Atomic uint32_t     wish;      /* enum batcher_wish; control thread, only ever grows */
	_Atomic bool         attention; /* control or step → intake: a lane is closing, or the end (seq_cst: part of S2) */
	struct batcher_model model;
	struct error         failure;   /* why FAILED */
};

/* Checks that nobody else serves this instance, then makes lock, shared objects and control socket.  On failure
 * batcher_close undoes the rest. */
enum status batcher_open(struct batcher *batcher, const struct conf *conf, struct error *error);
void        batcher_close(struct batcher *batcher); /* the black box stays after a failure */
/* Takes away the names and leaves the memory and the black box: for an end while other threads still run. */
void        batcher_unlink(struct batcher *batcher);

/* Any thread: the control thread should look round. */
void batcher_wake_control(struct batcher *batcher);
/* Any thread: the intake thread should look at every lane. */
void batcher_wake_intake(struct batcher *batcher);
/* Any thread: LANE is of no use any more; the reason goes to the log. */
void batcher_drop_lane(struct batcher *batcher, struct lanes_entry *lane, const char *reason);

static inline enum batcher_phase batcher_phase(const struct batcher *batcher)
{
	return (enum batcher_phase)atomic_load_explicit(&batcher->phase, memory_order_acquire);
}

#endif
