/* lane.h: one lane = one shared object between one front child and penstockd: two rings and a table of request slots.
 *
 *   memfd, sealed SHRINK | GROW | SEAL, posix_fallocated; made by penstockd, handed over on the control socket
 *   ┌────────────────┬────────────────────────┬──────────────────────┬─────────────────────┐
 *   │ struct         │ slots[LANE_SLOTS_MAX]  │ record ring          │ event ring          │
 *   │ lane_shared    │ control consumed│reply │ front → batcher      │ batcher → front     │
 *   └────────────────┴────────────────────────┴──────────────────────┴─────────────────────┘
 *
 * Who writes what (every word has exactly one writer, but one):
 *
 *   word                 writer   readers                  meaning
 *   record ring tail     front    intake thread            records published
 *   record ring head     intake   front                    records copied out
 *   event ring tail      step     front                    events published
 *   event ring head      front    step                     events copied out
 *   replies              intake   front                    counts stores to any slot.reply
 *   front_waiting        both     (the only exception)     what the child, asleep in epoll, wants to be woken for; the
 *                                                          child sets it, whoever takes it (exchange to 0) must wake
 *   slot.control         front    step, intake             {generation, CANCEL | STOP, keep}; STOP is of choice 0
 *   slot.stops           front    step                     {generation, STOP, keep} of choices 1, 2, …
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
 * returns, not what the ring stores); both sides count them from 0 for every generation, mod 2^32.  A child that lies
 * (consumed beyond published) makes a difference that looks enormous and pauses itself.
 *
 * Replies: ACCEPT and WAIT both admit the request (WAIT(n): n requests are before it in the queue): the child goes on
 * and submits.  REJECT(s) does not: the slot's generation is over, try again after s seconds.  Whoever sets a reply
 * wakes the child like after an event; lane_front_prepare_wait tells the child to look again when any reply is new.
 *
 * The child rings the doorbell after every record and after CANCEL and STOP; publishing `consumed` needs no ring (a
 * paused sequence is looked at again within 10 ms).
 *
 * Trust: the batcher copies before it validates and keeps its own indices (ring.h); truncating the object is
 * impossible (seals: ftruncate gives EPERM; punching holes only makes zeros, which are checked like any bytes).
 * Nothing is allocated in shared memory, so nothing can leak there.
 *
 * Reset: a lane object serves one attachment of one child and is never used again: its bytes are zero by birth, and
 * what an old child still maps nobody reads any more.  When the child dies, hangs or misbehaves, the intake thread lets
 * go of the lane (it reads no more), the step thread cancels its sequences, and once the last step that carries them
 * has retired it counts what is unread (lane_batcher_drop_records) and closes the lane; the next child gets a new
 * object.  Slot generations start again at 1 then, so whoever keeps (slot, generation) beyond that keeps the lane's own
 * count too.
 *
 * Waking the child (wake.h; the thread that published takes the flag, a notifier thread sends the wake: that is a system
 * call, and a thousand of them must not hold up a step):
 *
 *   child                                             batcher
 *   W1 front_waiting.store(wants, seq_cst)            N1 publish: event tail (P1), replies, record head (C2): seq_cst
 *   W2 re-read event tail, replies, and record head   N2 front_waiting.load(seq_cst); if it wants that kind:
 *      if a record found no room (seq_cst)            N3 exchange(0, seq_cst), wake_send
 *   W3 nothing new → epoll_wait
 *   W4 front_waiting.store(0), wake_drain, read all
 *
 * The argument is that of doorbell.h: in the one order of these operations either N1 precedes W2 and the child sees it,
 * or W1 precedes N2 and the batcher sees the wish.  N1 may be another thread than N2 (step and notifier) as long as N1
 * happens before N2, which the queue between them provides.
 */
#ifndef PENSTOCK_IPC_LANE_H
#define PENSTOCK_IPC_LANE_H

#include "base/status.h"
#include "ipc/ring.h"

#include <stdbool.h>

enum {
	LANE_SLOTS_MAX = 64,
	LANE_CHOICES_MAX = 16, /* WIRE_CHOICES_MAX */
	LANE_COUNT_MAX = 1024,
	LANE_RECORD_RING = 1 << 18, /* bytes; a longer prompt streams through */
	LANE_WINDOW_MIN = 1024,
	LANE_WINDOW_MAX = 1 << 20
};

/* Words of one request slot; the front's and the batcher's on their own cache lines. */
struct lane_slot_shared {
	_Alignas(RING_CACHE_LINE) _Atomic uint64_t control;
	_Atomic uint64_t consumed;
	_Atomic uint64_t stops[LANE_CHOICES_MAX - 1];
	_Alignas(RING_CACHE_LINE) _Atomic uint64_t reply;
};

/* What the child wants to be woken for (front_waiting): bits. */
enum { LANE_WANTS_EVENTS = 1, LANE_WANTS_ROOM = 2 };

struct lane_shared {
	uint64_t magic, layout_hash;
	uint64_t bytes;           /* of the whole object */
	uint32_t slot_count, record_ring_bytes, event_ring_bytes, stream_window;
	_Alignas(RING_CACHE_LINE) _Atomic uint32_t front_waiting;
	_Alignas(RING_CACHE_LINE) _Atomic uint32_t replies;
	struct ring_shared records, events;
	struct lane_slot_shared slots[LANE_SLOTS_MAX];
};

/* What both sides agree on when the lane is made. */
struct lane_geometry {
	uint32_t slot_count;        /* 1…LANE_SLOTS_MAX */
	uint32_t stream_window;     /* bytes, LANE_WINDOW_MIN…LANE_WINDOW_MAX */
	uint32_t record_ring_bytes; /* power of two */
	uint32_t event_ring_bytes;  /* power of two ≥ slot_count × stream_window */
};

/* A mapped lane; the same handle type on both sides (which functions it calls tells the side).  The two rings and the
 * rest may be used by different threads of the batcher as the table above says: they share no private word, and the two
 * rings' words no cache line. */
struct lane {
	struct lane_shared  *shared; /* mapped; owned by the handle */
	size_t               bytes;
	struct lane_geometry geometry; /* private copy, the truth */
	struct ring          records;
	char                 apart[RING_CACHE_LINE];
	struct ring          events;
	int                  fd;     /* the memfd on the batcher's side (handed to the child), −1 on the front's */
	/* Front's side only. */
	uint32_t             replies_seen; /* `replies` when prepare_wait looked last */
	uint32_t             room_wanted;  /* stored bytes of the record that found no room, 0 = none */
};

/* Control word; keep counts generated tokens. */
enum { LANE_CONTROL_CANCEL = 1, LANE_CONTROL_STOP = 2, LANE_KEEP_MAX = 0x3fffffff };
#define LANE_CONTROL(generation, flags, keep) \
	((uint64_t)(generation) << 32 | (uint64_t)(flags) << 30 | (uint64_t)(keep))
static inline uint32_t lane_control_generation(uint64_t word) { return (uint32_t)(word >> 32); }
static inline uint32_t lane_control_flags(uint64_t word) { return (uint32_t)(word >> 30) & 3; }
static inline uint32_t lane_control_keep(uint64_t word) { return (uint32_t)word & LANE_KEEP_MAX; }

/* Reply word; value is the position in the queue (WAIT) or a LANE_REJECTION (REJECT): why, an enum status that is answered
 * with 429 or 503, and seconds until a retry makes sense. */
enum lane_reply { LANE_REPLY_NONE, LANE_REPLY_ACCEPT, LANE_REPLY_WAIT, LANE_REPLY_REJECT };
enum { LANE_REPLY_VALUE_MAX = 0xffffff };
#define LANE_REPLY(generation, reply, value) \
	((uint64_t)(generation) << 32 | (uint64_t)(reply) << 24 | ((uint64_t)(value) & LANE_REPLY_VALUE_MAX))
static inline uint32_t        lane_reply_generation(uint64_t word) { return (uint32_t)(word >> 32); }
static inline enum lane_reply lane_reply_kind(uint64_t word) { return (enum lane_reply)(word >> 24 & 0xff); }
static inline uint32_t        lane_reply_value(uint64_t word) { return (uint32_t)word & LANE_REPLY_VALUE_MAX; }
enum { LANE_REJECTION_SECONDS_MAX = 0xffff };
#define LANE_REJECTION(status, seconds) ((uint32_t)(status) << 16 | ((uint32_t)(seconds) & LANE_REJECTION_SECONDS_MAX))
static inline enum status lane_rejection_status(uint32_t value)
{
	return value >> 16 > STATUS_OK && value >> 16 < STATUS_COUNT ? (enum status)(value >> 16) : STATUS_FULL;
}
static inline uint32_t lane_rejection_seconds(uint32_t value) { return value & LANE_REJECTION_SECONDS_MAX; }

/* Smallest geometry for SLOT_COUNT slots with STREAM_WINDOW bytes each; STATUS_LIMIT when out of range. */
enum status lane_geometry_plan(uint32_t slot_count, uint32_t stream_window, struct lane_geometry *ret);

/* Batcher: makes, fills (posix_fallocate), seals and maps the object.  The handle owns fd and mapping.  STATUS_IO with
 * words when the system refuses (no memory, no descriptors), STATUS_INVALID for an impossible geometry. */
enum status lane_create(const struct lane_geometry *geometry, struct lane *ret, struct error *error);

/* Front: maps the object received as FD (which stays the caller's) and checks magic, hash, sizes and seals, and that
 * nobody has used it before.  STATUS_INVALID with words. */
enum status lane_attach(int fd, struct lane *ret, struct error *error);

void lane_close(struct lane *lane); /* unmaps, closes its fd; NULL and zeroed handles are fine */

/* ---- front ---------------------------------------------------------------------------------------------------- */

/* Starts a new use of SLOT: bumps the generation, clears its credit, returns the generation (never 0). */
uint32_t lane_front_open_slot(struct lane *lane, uint32_t slot);

/* Posts CANCEL, or STOP for CHOICE with KEEP of its generated tokens kept, for the current generation of SLOT. */
void lane_front_cancel(struct lane *lane, uint32_t slot);
void lane_front_stop(struct lane *lane, uint32_t slot, uint32_t choice, uint32_t keep);

/* Publishes the event bytes (header.bytes each) of the current generation that have reached the client: a running total,
 * mod 2^32. */
void lane_front_consumed(struct lane *lane, uint32_t slot, uint32_t bytes);

/* The reply for the current generation of SLOT, LANE_REPLY_NONE while there is none. */
enum lane_reply lane_front_reply(struct lane *lane, uint32_t slot, uint32_t *ret_value);

/* Writes one record; STATUS_FULL when the ring has no room now (keep the record and try after the next wake: the wait
 * that follows is ended when there is room).  STATUS_INVALID: the batcher's index is impossible, detach.  The caller
 * rings the doorbell afterwards (doorbell_ring), once for several records if it likes. */
enum status lane_front_write(struct lane *lane, void *record, size_t bytes, const int32_t *ids, size_t count);

/* The child gave up the record that found no room: do not wake for it. */
void lane_front_forget_room(struct lane *lane);

/* Reads one event (a wire_token with ids, or a wire_end) into BUFFER (WIRE_EVENT_MAX bytes, 8-byte aligned).
 * STATUS_OK, STATUS_AGAIN, STATUS_INVALID (detach). */
enum status lane_front_read(struct lane *lane, void *buffer, size_t capacity, size_t *ret_bytes);

/* Before the child waits: announces it and re-checks (W1, W2).  Returns false when there is an event, a new reply in
 * any slot, or room for the record that found none: look again instead of waiting. */
bool lane_front_prepare_wait(struct lane *lane);
void lane_front_end_wait(struct lane *lane); /* W4, whatever ended the wait */

/* ---- batcher -------------------------------------------------------------------------------------------------- */

/* Intake thread: reads one record into BUFFER (WIRE_RECORD_MAX bytes, 8-byte aligned) and checks its shape
 * (wire_check_record) and slot.  STATUS_OK, STATUS_AGAIN, STATUS_INVALID (reset the lane). */
enum status lane_batcher_read(struct lane *lane, void *buffer, size_t capacity, size_t *ret_bytes);

/* Intake thread: is a record there?  For doorbell_sleep's re-check (S2). */
bool lane_batcher_pending_seq_cst(const struct lane *lane);

/* Intake thread: after it has read what it wanted from this lane: true when the child waits for room and there is more
 * now; the caller must then wake it (wake_send). */
bool lane_batcher_take_room_waiting(struct lane *lane);

/* Step and intake threads: the control word of SLOT; 0 (no generation) for a slot that is not there. */
uint64_t lane_batcher_control(const struct lane *lane, uint32_t slot);
/* Step thread: was STOP posted for CHOICE ≥ 1 of (SLOT, GENERATION)?  *ret_keep is set then. */
bool     lane_batcher_stop(const struct lane *lane, uint32_t slot, uint32_t generation, uint32_t choice, uint32_t *ret_keep);

/* Intake thread: answers (SLOT, GENERATION); VALUE is cut to LANE_REPLY_VALUE_MAX.  Then lane_batcher_take_waiting. */
void lane_batcher_reply(struct lane *lane, uint32_t slot, uint32_t generation, enum lane_reply kind, uint32_t value);

/* Step thread: writes one event; STATUS_FULL when the child has stopped draining, STATUS_INVALID when its index is
 * impossible (reset the lane). */
enum status lane_batcher_write(struct lane *lane, void *event, size_t bytes, const int32_t *ids, size_t count);

/* Step thread: event bytes of (slot, generation) that have reached the client; 0 while another generation stands
 * there. */
uint32_t lane_batcher_consumed(const struct lane *lane, uint32_t slot, uint32_t generation);

/* After events (step thread) or a reply (intake): true when the child announced that it waits; it must then be woken
 * (wake_send, by the notifier). */
bool lane_batcher_take_waiting(struct lane *lane);

/* Step thread, at a reset and only after intake has let go: drops the unread records and counts them, for the
 * metric. */
uint64_t lane_batcher_drop_records(struct lane *lane);

#endif
