/* lane.h: one lane = one shared object between one front child and penstockd: two rings and a table of request slots.
 *
 *   memfd, sealed SHRINK | GROW | SEAL, posix_fallocated; made by penstockd, handed over on the control socket
 *   ┌────────────────┬───────────────────────┬──────────────────────┬─────────────────────┐
 *   │ struct         │ slots[slot_count]     │ record ring          │ event ring          │
 *   │ lane_shared    │ control consumed│reply│ front → batcher      │ batcher → front     │
 *   └────────────────┴───────────────────────┴──────────────────────┴─────────────────────┘
 *
 * Who writes what (every word has exactly one writer):
 *
 *   word                 writer   readers                  meaning
 *   record ring tail     front    intake thread            records published
 *   record ring head     intake   front                    records copied out
 *   event ring tail      step     front                    events published
 *   event ring head      front    step                     events copied out
 *   front_waiting        both     (the only exception)     1 = the child sleeps in epoll and wants its eventfd written;
 *                                                          the child sets it, whoever takes it (exchange to 0) must wake
 *   slot.control         front    step, intake             {generation, CANCEL | STOP, keep}
 *   slot.consumed        front    step                     {generation, event bytes already written to the client}
 *   slot.reply           intake   front                    {generation, ACCEPT | WAIT | REJECT, value}
 *
 * A generation counts the uses of a slot, starting at 1.  The child starts a request by storing control =
 * {generation + 1, 0, 0}; that by itself cancels whatever the batcher still holds for the old generation.  Control
 * words beside the rings mean that cancel and stop never queue behind a long prompt.
 *
 * Credit: the child drains the event ring always, into bounded memory per request, and publishes in `consumed` the
 * event bytes of that request whose text has been written to the client.  The batcher plans a sequence only while
 * published − consumed + two steps' worst case ≤ stream_window, and event rings hold slots × window, so a ring fills
 * only if the child is stopped.  Event bytes are the sum of header.bytes of the request's events (what lane_front_read
 * returns, not what the ring stores); both sides count them from 0 for every generation.
 *
 * Replies: ACCEPT and WAIT both admit the request (WAIT(n): n requests are before it in the queue): the child goes on
 * and submits.  REJECT(s) does not: the slot's generation is over, try again after s seconds.  Whoever sets a reply wakes the
 * child like after an event; the child re-reads the replies it waits for after lane_front_prepare_wait.
 *
 * The child rings the doorbell after every record and after CANCEL and STOP; publishing `consumed` needs no ring (a
 * paused sequence is looked at again within 10 ms).
 *
 * Trust: the batcher copies before it validates and keeps its own indices (ring.h); truncating the object is
 * impossible (seals: ftruncate gives EPERM).  Nothing is allocated in shared memory, so nothing can leak there.
 *
 * Waking the child (the thread that published takes the flag, a notifier thread writes the eventfd: a wake is a system
 * call, and a thousand of them must not hold up a step):
 *   child:   front_waiting.store(1, seq_cst) ; re-read event tail (seq_cst) ; epoll_wait     [W1 W2]
 *   batcher: event tail.store(release) ; fence(seq_cst) ; front_waiting.load ; exchange(0) ; eventfd write  [N1 N2]
 * Either the child sees the new tail or the batcher sees front_waiting: both are sequentially consistent.
 */
#ifndef PENSTOCK_IPC_LANE_H
#define PENSTOCK_IPC_LANE_H

#include "ipc/ring.h"

#include <stdbool.h>

enum { LANE_SLOTS_MAX = 64, LANE_COUNT_MAX = 1024, LANE_RECORD_RING = 1 << 18 };

/* Words of one request slot; the front's and the batcher's on their own cache lines. */
struct lane_slot_shared {
	_Alignas(RING_CACHE_LINE) _Atomic uint64_t control;
	_Atomic uint64_t consumed;
	_Alignas(RING_CACHE_LINE) _Atomic uint64_t reply;
};

struct lane_shared {
	uint64_t magic, layout_hash;
	uint64_t bytes;           /* of the whole object */
	uint32_t slot_count, record_ring_bytes, event_ring_bytes, stream_window;
	_Alignas(RING_CACHE_LINE) _Atomic uint32_t front_waiting;
	struct ring_shared records, events;
	struct lane_slot_shared slots[LANE_SLOTS_MAX];
};

/* What both sides agree on when the lane is made. */
struct lane_geometry {
	uint32_t slot_count;        /* 1…LANE_SLOTS_MAX */
	uint32_t stream_window;     /* bytes */
	uint32_t record_ring_bytes; /* power of two */
	uint32_t event_ring_bytes;  /* power of two ≥ slot_count × stream_window */
};

/* A mapped lane; the same handle type on both sides (which functions it calls tells the side). */
struct lane {
	struct lane_shared  *shared; /* mapped; owned by the handle */
	size_t               bytes;
	struct lane_geometry geometry; /* private copy, the truth */
	struct ring          records, events;
	int                  fd;     /* the memfd on the batcher's side (handed to the child), −1 on the front's */
};

/* Control word. */
enum { LANE_CONTROL_CANCEL = 1, LANE_CONTROL_STOP = 2 };
#define LANE_CONTROL(generation, flags, keep) ((uint64_t)(generation) << 32 | (uint64_t)(flags) << 30 | (uint64_t)(keep))
static inline uint32_t lane_control_generation(uint64_t word) { return (uint32_t)(word >> 32); }
static inline uint32_t lane_control_flags(uint64_t word) { return (uint32_t)(word >> 30) & 3; }
static inline uint32_t lane_control_keep(uint64_t word) { return (uint32_t)word & 0x3fffffff; } /* generated tokens kept */

/* Reply word. */
enum lane_reply { LANE_REPLY_NONE, LANE_REPLY_ACCEPT, LANE_REPLY_WAIT, LANE_REPLY_REJECT };
#define LANE_REPLY(generation, reply, value) \
	((uint64_t)(generation) << 32 | (uint64_t)(reply) << 24 | ((uint64_t)(value) & 0xffffff))
static inline uint32_t        lane_reply_generation(uint64_t word) { return (uint32_t)(word >> 32); }
static inline enum lane_reply lane_reply_kind(uint64_t word) { return (enum lane_reply)(word >> 24 & 0xff); }
static inline uint32_t        lane_reply_value(uint64_t word) { return (uint32_t)word & 0xffffff; } /* position | seconds */

/* Smallest geometry for SLOT_COUNT slots with STREAM_WINDOW bytes each; STATUS_LIMIT when out of range. */
enum status lane_geometry_plan(uint32_t slot_count, uint32_t stream_window, struct lane_geometry *ret);

/* Batcher: makes, fills (posix_fallocate), seals and maps the object.  The handle owns fd and mapping. */
enum status lane_create(const struct lane_geometry *geometry, struct lane *ret, struct error *error);

/* Front: maps the object received as FD (which stays the caller's) and checks magic, hash, sizes and seals. */
enum status lane_attach(int fd, struct lane *ret, struct error *error);

void lane_close(struct lane *lane); /* unmaps; NULL and zeroed handles are fine */

/* ---- front ---------------------------------------------------------------------------------------------------- */

/* Starts a new use of SLOT: bumps the generation, clears its credit, returns the generation. */
uint32_t lane_front_open_slot(struct lane *lane, uint32_t slot);

/* Posts CANCEL, or STOP with KEEP generated tokens kept, for the current generation of SLOT. */
void lane_front_cancel(struct lane *lane, uint32_t slot);
void lane_front_stop(struct lane *lane, uint32_t slot, uint32_t keep);

/* Publishes the event bytes of the current generation that have reached the client (running total). */
void lane_front_consumed(struct lane *lane, uint32_t slot, uint32_t bytes);

/* The reply for the current generation of SLOT, LANE_REPLY_NONE while there is none. */
enum lane_reply lane_front_reply(struct lane *lane, uint32_t slot, uint32_t *ret_value);

/* Writes one record; STATUS_FULL when the ring has no room now (keep the record and try after the next wake).
 * The caller rings the doorbell afterwards (doorbell_ring). */
enum status lane_front_write(struct lane *lane, void *record, size_t bytes, const int32_t *ids, size_t count);

/* Reads one event (a wire_token with ids, or a wire_end). STATUS_OK, STATUS_AGAIN, STATUS_INVALID. */
enum status lane_front_read(struct lane *lane, void *buffer, size_t capacity, size_t *ret_bytes);

/* Before the child waits: announces it and re-checks.  Returns false when an event is there (do not wait). */
bool lane_front_prepare_wait(struct lane *lane);
void lane_front_end_wait(struct lane *lane);

/* ---- batcher -------------------------------------------------------------------------------------------------- */

/* Intake thread: reads one record into BUFFER (WIRE_RECORD_MAX bytes).  Also checks that type and counts fit `bytes`.
 * STATUS_OK, STATUS_AGAIN, STATUS_INVALID (reset the lane). */
enum status lane_batcher_read(struct lane *lane, void *buffer, size_t capacity, size_t *ret_bytes);
uint64_t    lane_batcher_control(const struct lane *lane, uint32_t slot);
void        lane_batcher_reply(struct lane *lane, uint32_t slot, uint32_t generation, enum lane_reply kind, uint32_t value);

/* Step thread: writes one event; STATUS_FULL when the child has stopped draining. */
enum status lane_batcher_write(struct lane *lane, void *event, size_t bytes, const int32_t *ids, size_t count);

/* Event bytes of (slot, generation) that have reached the client; 0 while another generation stands there. */
uint32_t lane_batcher_consumed(const struct lane *lane, uint32_t slot, uint32_t generation);

/* After an event (step thread) or a reply (intake): true when the child announced that it waits; its eventfd must then be
 * written. */
bool lane_batcher_take_waiting(struct lane *lane);

/* Unread records at a reset are dropped: counts them, for the metric. */
uint64_t lane_batcher_drop_records(struct lane *lane);

#endif
