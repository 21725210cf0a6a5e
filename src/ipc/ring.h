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
 *  - Records are stored whole and in order, padded to 8 bytes, and wrap byte-wise at the end of the area (no record
 *    has to be contiguous): a reader copies it out before it looks at it.
 *  - Each side owns one index and keeps it in private memory; the copy in shared memory is for the other side only.
 *    So a peer that scribbles over the shared words can stall its own lane and feed it garbage records, nothing else.
 *  - What the peer publishes is checked: used must be ≤ size and a multiple of 8, a record's `bytes` must be between
 *    sizeof(struct wire_header) and the used bytes.  A violation is STATUS_INVALID and the lane is reset.
 *  - A ring never blocks.  "No room" (STATUS_FULL), "nothing there" (STATUS_AGAIN) and "peer broken" (STATUS_INVALID)
 *    are three answers; "peer gone" is known from the control socket (control.h).
 *
 * Atomics (each labelled where it is used in ring.c):
 *   P1  producer: tail.store(release)   after the record's bytes    pairs with  C1  consumer: tail.load(acquire)
 *   C2  consumer: head.store(release)   after it copied the bytes   pairs with  P2  producer: head.load(acquire)
 * The sleep handshake adds sequentially consistent fences; it lives in lane.h and doorbell.h.
 */
#ifndef PENSTOCK_IPC_RING_H
#define PENSTOCK_IPC_RING_H

#include "base/status.h"
#include "ipc/wire.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { RING_CACHE_LINE = 64, RING_SIZE_MIN = 4096, RING_SIZE_MAX = 1 << 30 };

/* The shared words: producer's and consumer's on their own cache lines.  Lives in the lane object. */
struct ring_shared {
	_Alignas(RING_CACHE_LINE) _Atomic uint32_t tail; /* written by the producer, read by the consumer */
	_Alignas(RING_CACHE_LINE) _Atomic uint32_t head; /* written by the consumer, read by the producer */
};

/* One side's private handle: which side it is follows from the functions it calls. */
struct ring {
	struct ring_shared *shared; /* borrowed, in the lane object */
	unsigned char      *data;   /* borrowed, size bytes in the lane object */
	uint32_t            size;
	uint32_t            own;    /* this side's index, the truth */
	uint32_t            peer;   /* last seen index of the other side */
};

/* Prepares a handle over zeroed shared words.  SIZE is a power of two in [RING_SIZE_MIN, RING_SIZE_MAX]. */
enum status ring_init(struct ring *ring, struct ring_shared *shared, void *data, uint32_t size);

/* Producer: appends one record: FIXED (whose first member is a struct wire_header; `bytes` is set here) followed by
 * EXTRA.  STATUS_OK, STATUS_FULL, or STATUS_INVALID when the peer's index is impossible. */
enum status ring_write(struct ring *ring, void *fixed, size_t fixed_bytes, const void *extra, size_t extra_bytes);

/* Producer: bytes that can be written now (records round up to 8). */
uint32_t ring_writable(struct ring *ring);

/* Consumer: copies the next record to BUFFER (CAPACITY bytes).  STATUS_OK, STATUS_AGAIN (empty), STATUS_INVALID (the
 * producer wrote an impossible index or size, or a record over CAPACITY). */
enum status ring_read(struct ring *ring, void *buffer, size_t capacity, size_t *ret_bytes);

/* Consumer: true when a record is there.  ring_pending_seq_cst does the same with a sequentially consistent load, for
 * the re-check of the sleep handshake. */
int ring_pending(struct ring *ring);
int ring_pending_seq_cst(struct ring *ring);

#endif
