/* ring.h: a single-producer single-consumer byte ring in memory shared by two processes that do not trust each other.
 *
 *            head (consumer reads here)              tail (producer writes here)
 *              │                                       │
 *   ┌──────────▼───────────────────────────────────────▼───────────────────────┐
 *   │ free     │ record │ record      │ record         │ free                   │  size: a power of two
 *   └───────────────────────────────────────────────────────────────────────────┘
 *
 * Essay, to be kept true by whoever changes ring.c:
 *
 *  - Indices are free-running 32-bit byte counts; the position is index & (size − 1); used = tail − head (mod 2^32).
 *    size ≤ 2^30, so a wrap of the index is never mistaken for a full ring.
 *  - Records are stored whole and in order, padded with zeros to 8 bytes, and wrap byte-wise at the end of the area (no
 *    record has to be contiguous): a reader copies it out before it looks at it.  Indices are multiples of 8, so the
 *    8 bytes of a record's header never wrap and are read with one load.
 *  - Each side owns one index and keeps it in private memory; the copy in shared memory is for the other side only.
 *    So a peer that scribbles over the shared words can stall its own lane and feed it garbage records, nothing else.
 *  - What the peer publishes is checked: an index is a multiple of 8, never runs backwards, and leaves used ≤ size; a
 *    record's `bytes` is between sizeof(struct wire_header) and the used bytes and fits the reader's buffer.  A
 *    violation is STATUS_INVALID and the lane is reset.
 *  - The size of a record is decided by one load and never read again: a peer that changes it while it is being copied
 *    changes the bytes the reader gets, not how many.
 *  - A ring never blocks.  "No room" (STATUS_FULL), "nothing there" (STATUS_AGAIN) and "peer broken" (STATUS_INVALID)
 *    are three answers; "peer gone" is known from the control socket (control.h).
 *  - The other side's index is read only when the last seen one does not suffice, so that a busy ring moves a cache
 *    line between cores once per batch and not once per record.
 *
 * Atomics (each labelled where it is used in ring.c):
 *   P1  producer: tail.store(seq_cst)   after the record's bytes    pairs with  C1  consumer: tail.load(acquire)
 *   C2  consumer: head.store(seq_cst)   after it copied the bytes   pairs with  P2  producer: head.load(acquire)
 * Acquire and release are all that the ring needs.  The stores are sequentially consistent because both sides sleep:
 * P1 and C2 are also the first half of the handshakes of doorbell.h and lane.h, whose other half loads the same words
 * with ring_pending_seq_cst and ring_writable_seq_cst.  The order lives in the variables themselves and not in fences,
 * so that a race detector (which does not model fences) checks the code that ships.
 */
#ifndef PENSTOCK_IPC_RING_H
#define PENSTOCK_IPC_RING_H

#include "base/status.h"
#include "ipc/wire.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RING_CACHE_LINE = 64, RING_SIZE_MIN = 4096, RING_SIZE_MAX = 1 << 30 };

/* The shared words: producer's and consumer's on their own cache lines.  Lives in the lane object. */
struct ring_shared {
	_Alignas(RING_CACHE_LINE) _Atomic uint32_t tail; /* written by the producer, read by the consumer */
	_Alignas(RING_CACHE_LINE) _Atomic uint32_t head; /* written by the consumer, read by the producer */
};

/* One side's private handle: which side it is follows from the functions it calls.  One thread uses it. */
struct ring {
	struct ring_shared *shared; /* borrowed, in the lane object */
	unsigned char      *data;   /* borrowed, size bytes in the lane object, 8-byte aligned */
	uint32_t            size;
	uint32_t            own;    /* this side's index, the truth */
	uint32_t            peer;   /* last seen index of the other side */
};

/* Prepares a handle that starts at index 0: over zeroed shared words, of which the peer may have moved its own meanwhile.
 * SIZE is a power of two in [RING_SIZE_MIN, RING_SIZE_MAX]; STATUS_INVALID otherwise. */
enum status ring_init(struct ring *ring, struct ring_shared *shared, void *data, uint32_t size);

/* Producer: appends one record: FIXED (whose first member is a struct wire_header; `bytes` is set here) followed by
 * EXTRA.  STATUS_OK, STATUS_FULL, STATUS_INVALID when the peer's index is impossible, or STATUS_LIMIT when the record
 * is shorter than its header or longer than the whole ring. */
enum status ring_write(struct ring *ring, void *fixed, size_t fixed_bytes, const void *extra, size_t extra_bytes);

/* Producer: bytes that can be written now (records round up to 8: wire_stored_bytes); 0 when the peer's index is
 * impossible.  ring_writable_seq_cst always loads the peer's index, sequentially consistent, for the re-check before
 * the producer sleeps. */
uint32_t ring_writable(struct ring *ring);
uint32_t ring_writable_seq_cst(struct ring *ring);

/* Consumer: copies the next record to BUFFER (CAPACITY bytes, 8-byte aligned).  STATUS_OK, STATUS_AGAIN (empty), or
 * STATUS_INVALID (the producer wrote an impossible index or size, or a record over CAPACITY; BUFFER is undefined). */
enum status ring_read(struct ring *ring, void *buffer, size_t capacity, size_t *ret_bytes);

/* Consumer: true when a record is there (or the producer's index is impossible: ring_read will say so).
 * ring_pending_seq_cst does the same with a sequentially consistent load, for the re-check before the consumer
 * sleeps. */
bool ring_pending(const struct ring *ring);
bool ring_pending_seq_cst(const struct ring *ring);

/* Consumer: drops what was unread when it was called and returns how many records that was.  At the first impossible
 * size it stops counting and drops the rest as bytes. */
uint64_t ring_drop(struct ring *ring);

#endif
