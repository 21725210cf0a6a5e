/* header.h: what penstockd tells everybody: who it is, what it serves, and whether it lives.
 *
 * A named object made by penstockd and mapped read-only by everyone else: /penstock.INSTANCE.header (object.h); its
 * sibling with the counters is metrics.h.  A reader checks magic, layout hash and size before it believes a word, and
 * epoch to notice a restart: the new penstockd makes a new object, a reader that still maps the old one sees the
 * heartbeat grow stale (or the end of the control socket, which is sooner) and opens again.
 *
 * Atomics:
 *   H1  state.store(release)         by the step thread, after the fields above it     pairs with
 *   H2  state.load(acquire)          by readers: READY or DRAINING ⇒ those fields are final
 *   H3  long_step_until_ns is announced before the long step and set to 0 after the beat that follows it (both
 *       store(release)); a reader loads the announcement first, then the beat (both acquire): if it finds the
 *       announcement gone, it finds the beat that ended it.
 *   steps, step_time_ns: relaxed on both sides, each a value on its own.
 */
#ifndef PENSTOCK_IPC_HEADER_H
#define PENSTOCK_IPC_HEADER_H

#include "base/status.h"
#include "ipc/object.h"
#include "ipc/ring.h"

#include <stdbool.h>

enum header_state { HEADER_LOADING, HEADER_READY, HEADER_DRAINING, HEADER_STOPPED };
enum { HEADER_NAME_MAX = 160 };

struct header_shared {
	struct object_head head;
	uint64_t epoch;            /* differs for every start of penstockd (realtime ns at start) */
	int64_t  pid;
	int64_t  start_time_s;     /* Unix time */
	/* Written once before the state becomes HEADER_READY. */
	uint64_t vocab_fingerprint; /* vocab_fingerprint(): the front's must be equal */
	uint32_t vocab_size;
	uint32_t max_context;       /* prompt + answer, tokens */
	uint32_t max_running, max_queued;
	uint32_t stream_window, slots_per_lane;
	uint64_t kv_tokens;         /* capacity of the KV cache */
	char     model_name[HEADER_NAME_MAX];
	char     architecture[32];
	/* Written by the step thread. */
	_Alignas(RING_CACHE_LINE) _Atomic uint32_t state; /* enum header_state */
	_Atomic uint64_t heartbeat_ns;    /* CLOCK_MONOTONIC, at least every 100 ms, idle or not */
	_Atomic uint64_t long_step_until_ns; /* a step known to be long: not hung before this time */
	_Atomic uint64_t steps;
	_Atomic uint64_t step_time_ns;    /* of the last step */
};

struct header {
	struct header_shared *shared; /* mapped; writable only on the creator's side */
	char                  name[OBJECT_NAME_MAX]; /* creator: unlinked by header_close */
};

/* Batcher: makes the object in state HEADER_LOADING with epoch, pid, start time and a first heartbeat. */
enum status header_create(const char *instance, int gid, struct header *ret, struct error *error);
enum status header_open(const char *instance, struct header *ret, struct error *error); /* read-only */
void        header_close(struct header *header); /* zeroed handles are fine */

/* Step thread: HEADER_READY only after the fields that are written once. */
void header_set_state(struct header *header, enum header_state state);

/* Step thread: I live.  At least every 100 ms. */
void header_beat(struct header *header, uint64_t now_ns);

/* Step thread, around a step known to be long: not hung before UNTIL_NS; 0 after the next beat ends it. */
void header_announce_long_step(struct header *header, uint64_t until_ns);

/* Readers.  Is this batcher alive?  NOW_NS is CLOCK_MONOTONIC, WATCHDOG_NS the age that counts as gone.  Loading and
 * announced long steps are alive: a loader that has died is known from the end of its control socket, not from here.
 * Stopped and unknown states are not. */
bool header_alive(const struct header_shared *shared, uint64_t now_ns, uint64_t watchdog_ns);
/* Alive and HEADER_READY. */
bool header_ready(const struct header_shared *shared, uint64_t now_ns, uint64_t watchdog_ns);

#endif
