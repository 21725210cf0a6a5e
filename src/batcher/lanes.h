/* lanes.h: the table of attached front children, and how a dead one is let go.
 *
 * A lane is used by four threads.  Nobody asks "does anyone still use it?": it is handed from one to the next, and each
 * has finished with it before it hands it on.
 *
 *   FREE ──► OPEN        control   the child has its WELCOME
 *   OPEN ──► CLOSING     any       end of file (control), records without sense (intake), events not drained (step)
 *   CLOSING ──► LET_GO   intake    it reads no more; its farewell follows all it had sent through the queue
 *   LET_GO ──► RETIRED   step      its sequences have ended, its unread records are counted
 *   RETIRED ──► FREE     notifier  the last wake was sent; it is unmapped
 *
 * Who touches what:
 *   control   held; everything while the state is FREE
 *   intake    the record ring, slots, replies, in OPEN and CLOSING
 *   step      the event ring, active, gone, until it is RETIRED
 *   notifier  the wake-up pipe, until it is FREE
 *
 * Only the thread named moves the state on, so a thread that reads the state it has to act on may rely on it.  Every store
 * is a release, every load an acquire: who sees OPEN sees the lane, who sees FREE sees that it is gone.
 */
#ifndef PENSTOCK_BATCHER_LANES_H
#define PENSTOCK_BATCHER_LANES_H

#include "batcher/queue.h"
#include "ipc/lane.h"
#include "ipc/wake.h"

#include <stdatomic.h>

enum lanes_state { LANES_FREE, LANES_OPEN, LANES_CLOSING, LANES_LET_GO, LANES_RETIRED };

struct intake_slot;

struct lanes_entry {
	uint32_t             index;
	_Atomic uint32_t     state;  /* enum lanes_state */
	_Atomic uint32_t     queued; /* messages of this lane in the queue: intake adds, step subtracts (relaxed: a bound) */
	struct lane          lane;
	struct wake          wake;
	uint32_t             pid;    /* as the child says, for the log */
	struct intake_slot  *slots;  /* intake's, [slot_count] */
	bool                 held;   /* control's: a connection points here, even if the lane is gone by now */
	uint32_t             active; /* step's: requests not yet ended */
	uint32_t             answer_bytes; /* step's: what their choices may want in the ring */
	bool                 gone;   /* step's: the farewell has come */
	struct queue_message farewell;
};

struct lanes {
	struct lanes_entry entries[LANE_COUNT_MAX];
	_Atomic uint32_t   used; /* entries from here on were never used */
};

void lanes_init(struct lanes *lanes);

/* Control thread: makes a lane for child PID in an entry that is free and not held; it is held then.  STATUS_FULL when there
 * is none.  Still FREE: lanes_open makes it public once the child has its descriptors, lanes_recycle undoes it. */
enum status lanes_make(struct lanes *lanes, const struct lane_geometry *geometry, uint32_t pid, struct lanes_entry **ret,
    struct error *error);
void        lanes_open(struct lanes *lanes, struct lanes_entry *entry);

/* Any thread: OPEN → CLOSING.  True for the caller that did it. */
bool lanes_close(struct lanes_entry *entry);

/* Intake thread: CLOSING → LET_GO. */
void lanes_let_go(struct lanes_entry *entry);

/* Step thread: LET_GO → RETIRED, nothing of it runs any more. */
void lanes_retire(struct lanes_entry *entry);

/* Notifier, after RETIRED: unmaps; the entry is free. */
void lanes_recycle(struct lanes_entry *entry);

/* At the end of the process, when no other thread runs: every lane whatever its state. */
void lanes_free(struct lanes *lanes);

static inline enum lanes_state lanes_state(const struct lanes_entry *entry)
{
	return (enum lanes_state)atomic_load_explicit(&entry->state, memory_order_acquire);
}

static inline uint32_t lanes_used(const struct lanes *lanes)
{
	return atomic_load_explicit(&lanes->used, memory_order_acquire);
}

#endif
