/* blackbox.h: the last BLACKBOX_PLANS step plans of penstockd, readable in shared memory even when the process is gone.
 *
 * A named object like the header (/penstock.INSTANCE.blackbox, read-only to others), written by the step thread before it
 * launches a step, so that the last plan is that of the step which was under way.  Numbers only: ids of requests, never ids of
 * tokens.  An end in good order takes it away; after any other it stays until the next start, which keeps it as
 * /penstock.INSTANCE.blackbox.prev in place of an older one.
 */
#ifndef PENSTOCK_IPC_BLACKBOX_H
#define PENSTOCK_IPC_BLACKBOX_H

#include "base/status.h"
#include "ipc/object.h"
#include "ipc/seqlock.h"

enum { BLACKBOX_PLANS = 4096, BLACKBOX_ITEMS = 24 };

enum blackbox_kind { BLACKBOX_PREFILL, BLACKBOX_DECODE, BLACKBOX_EVICTED, BLACKBOX_EXPIRED };
enum { BLACKBOX_ADMITTED = 1, BLACKBOX_SAMPLED = 2 }; /* flags */

/* What was decided for one sequence. */
struct blackbox_item {
	uint64_t request;    /* its id, as in the lane's records */
	uint32_t start;      /* first position computed */
	uint16_t rows;       /* positions, at most 65,535 are shown */
	uint8_t  kind, flags;
};

struct blackbox_plan {
	uint64_t time_ns; /* CLOCK_REALTIME */
	uint32_t rows, sequences, decodes, prefills, sampled, admitted, evicted, expired;
	uint32_t running, waiting, paused, free_blocks; /* after the decision, before it was carried out */
	uint32_t item_count; /* kept here; there may have been more: decisions against a sequence come first, then the plan's order */
	struct blackbox_item items[BLACKBOX_ITEMS];
};

struct blackbox_entry {
	_Atomic uint64_t turn;
	_Atomic uint64_t step_ns; /* how long it took; 0 while it is under way */
	_Atomic uint64_t words[SEQLOCK_WORDS(struct blackbox_plan)];
};

struct blackbox_shared {
	struct object_head head;
	int64_t            pid;
	uint64_t           start_ns; /* CLOCK_REALTIME */
	uint32_t           step_tokens, max_running, blocks, block_size; /* blocks: of the KV pool, 0 until it is planned */
	_Atomic uint64_t   count;    /* plans ever written; number n is in entries[n % BLACKBOX_PLANS] */
	struct blackbox_entry entries[BLACKBOX_PLANS];
};

struct blackbox {
	struct blackbox_shared *shared;
	char                    name[OBJECT_NAME_MAX];
	uint64_t                finished; /* the next plan whose step ends, or a later one: writer's */
};

/* penstockd: keeps what a predecessor left behind, and makes a new one. */
enum status blackbox_create(const char *instance, int gid, struct blackbox *ret, struct error *error);
void        blackbox_close(struct blackbox *box); /* creator: takes the name away; zeroed handles are fine */
void        blackbox_leave(struct blackbox *box); /* unmaps, and leaves the object for whoever asks what happened */

/* Step thread: a plan, before it is carried out.  LAUNCHED: blackbox_finish follows, in the order of the plans. */
void blackbox_write(struct blackbox *box, const struct blackbox_plan *plan, bool launched);
void blackbox_finish(struct blackbox *box, uint64_t step_ns);

/* Readers: the one of the running or dead penstockd, or with PREVIOUS its predecessor's.  STATUS_UNAVAILABLE: there is none. */
enum status blackbox_open(const char *instance, bool previous, struct blackbox *ret, struct error *error);
/* Plan NUMBER (counted from 0) and how long its step took, 0 = it did not end, or nothing was launched.  False when it is
 * overwritten, not written yet, or was just being written. */
bool        blackbox_read(const struct blackbox *box, uint64_t number, struct blackbox_plan *ret, uint64_t *ret_step_ns);

#endif
