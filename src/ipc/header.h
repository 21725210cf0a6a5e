/* header.h: what penstockd tells everybody: who it is, what it serves, whether it lives, and its counters.
 *
 * Two named objects made by penstockd and mapped read-only by everyone else: /penstock.INSTANCE.header and
 * /penstock.INSTANCE.metrics (both posix_fallocated, so that a full /dev/shm is an error at start and not a SIGBUS).
 * A reader checks magic, layout hash and size before it believes a word, and epoch to notice a restart.
 */
#ifndef PENSTOCK_IPC_HEADER_H
#define PENSTOCK_IPC_HEADER_H

#include "base/status.h"
#include "ipc/ring.h"

#include <stdbool.h>

enum header_state { HEADER_LOADING, HEADER_READY, HEADER_DRAINING, HEADER_STOPPED };
enum { HEADER_NAME_MAX = 160 };

struct header_shared {
	uint64_t magic, layout_hash;
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
	char                  name[80]; /* creator: unlinked by header_close */
};

enum status header_create(const char *instance, int gid, struct header *ret, struct error *error);
enum status header_open(const char *instance, struct header *ret, struct error *error); /* read-only */
void        header_close(struct header *header);

/* Is this batcher alive and willing?  NOW_NS is CLOCK_MONOTONIC, WATCHDOG_NS the age that counts as gone.  Loading and
 * announced long steps are alive. */
bool header_alive(const struct header_shared *shared, uint64_t now_ns, uint64_t watchdog_ns);
bool header_ready(const struct header_shared *shared, uint64_t now_ns, uint64_t watchdog_ns); /* alive and HEADER_READY */

#endif
