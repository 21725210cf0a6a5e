/* ring.c: owns the moves of one ring: append, copy out, drop.  Does not own the memory (lane.c), sleeping (lane.h,
 * doorbell.h) or the meaning of a record (wire.c).
 * Invariant: own − peer (producer) and peer − own (consumer), mod 2^32, are multiples of 8 in [0, size] whatever stands
 * in shared memory, and every copy is bounded by them. */
#include "ipc/ring.h"

#include <string.h>

_Static_assert(sizeof(struct wire_header) == 8, "a record's header is one aligned 8-byte word of the ring");
_Static_assert(sizeof(struct ring_shared) == 2 * RING_CACHE_LINE, "one cache line per index");

enum status ring_init(struct ring *ring, struct ring_shared *shared, void *data, uint32_t size)
{
	if (size < RING_SIZE_MIN || size > RING_SIZE_MAX || (size & (size - 1)))
		return STATUS_INVALID;
	*ring = (struct ring) { .shared = shared, .data = data, .size = size };
	return STATUS_OK;
}

/* The two halves of a copy that may wrap at the end of the area. */
static void copy_in(struct ring *ring, uint32_t index, const void *from, size_t bytes)
{
	uint32_t at = index & (ring->size - 1);
	size_t   first = bytes < ring->size - at ? bytes : ring->size - at;

	if (bytes == 0)
		return;
	memcpy(ring->data + at, from, first);
	memcpy(ring->data, (const unsigned char *)from + first, bytes - first);
}

static void copy_out(const struct ring *ring, uint32_t index, void *to, size_t bytes)
{
	uint32_t at = index & (ring->size - 1);
	size_t   first = bytes < ring->size - at ? bytes : ring->size - at;

	memcpy(to, ring->data + at, first);
	memcpy((unsigned char *)to + first, ring->data, bytes - first);
	/* What was copied is what counts: the compiler may not fetch a byte a second time from where the peer can change
	 * it. */
	atomic_signal_fence(memory_order_seq_cst);
}

/* ---- producer ------------------------------------------------------------------------------------------------- */

/* Takes a newly loaded head; false when it is impossible. */
static bool accept_head(struct ring *ring, uint32_t head)
{
	/* Not before the last one seen, not beyond our own tail: the used part can only have shrunk. */
	if (ring->own - head > ring->own - ring->peer || head % 8)
		return false;
	ring->peer = head;
	return true;
}

uint32_t ring_writable(struct ring *ring)
{
	/* P2: acquire, pairs with C2: the consumer has finished copying the bytes that are written over next. */
	if (!accept_head(ring, atomic_load_explicit(&ring->shared->head, memory_order_acquire)))
		return 0;
	return ring->size - (ring->own - ring->peer);
}

uint32_t ring_writable_seq_cst(struct ring *ring)
{
	/* P2 as the re-check of a producer that is about to sleep. */
	if (!accept_head(ring, atomic_load_explicit(&ring->shared->head, memory_order_seq_cst)))
		return 0;
	return ring->size - (ring->own - ring->peer);
}

enum status ring_write(struct ring *ring, void *fixed, size_t fixed_bytes, const void *extra, size_t extra_bytes)
{
	static const unsigned char zeros[8];
	struct wire_header        *header = fixed;
	uint32_t                   bytes, stored;

	if (fixed_bytes < sizeof *header || fixed_bytes > ring->size || extra_bytes > ring->size - fixed_bytes)
		return STATUS_LIMIT;
	bytes = (uint32_t)(fixed_bytes + extra_bytes);
	stored = wire_stored_bytes(bytes);
	if (ring->size - (ring->own - ring->peer) < stored) {
		/* P2: acquire, pairs with C2. */
		if (!accept_head(ring, atomic_load_explicit(&ring->shared->head, memory_order_acquire)))
			return STATUS_INVALID;
		if (ring->size - (ring->own - ring->peer) < stored)
			return STATUS_FULL;
	}
	header->bytes = bytes;
	copy_in(ring, ring->own, fixed, fixed_bytes);
	copy_in(ring, ring->own + (uint32_t)fixed_bytes, extra, extra_bytes);
	copy_in(ring, ring->own + bytes, zeros, stored - bytes);
	ring->own += stored;
	/* P1: release, pairs with C1: the record is whole before it is visible.  Sequentially consistent for the
	 * sleepers. */
	atomic_store_explicit(&ring->shared->tail, ring->own, memory_order_seq_cst);
	return STATUS_OK;
}

/* ---- consumer ------------------------------------------------------------------------------------------------- */

/* Takes a newly loaded tail; false when it is impossible. */
static bool accept_tail(struct ring *ring, uint32_t tail)
{
	/* Not before the last one seen, not more than a ring ahead of us. */
	if (tail - ring->own < ring->peer - ring->own || tail - ring->own > ring->size || tail % 8)
		return false;
	ring->peer = tail;
	return true;
}

/* Finds the next record: STATUS_OK with its size, STATUS_AGAIN, STATUS_INVALID. */
static enum status next_record(struct ring *ring, uint64_t *ret_header, uint32_t *ret_bytes)
{
	struct wire_header header;
	uint64_t           word;

	if (ring->peer == ring->own) {
		/* C1: acquire, pairs with P1: what the tail covers has been written. */
		if (!accept_tail(ring, atomic_load_explicit(&ring->shared->tail, memory_order_acquire)))
			return STATUS_INVALID;
		if (ring->peer == ring->own)
			return STATUS_AGAIN;
	}
	/* One load decides the size; relaxed, as C1 ordered it already. */
	word = atomic_load_explicit((_Atomic uint64_t *)(void *)(ring->data + (ring->own & (ring->size - 1))),
	    memory_order_relaxed);
	memcpy(&header, &word, sizeof header);
	/* First against the used bytes, which are ≤ 2^30, so that rounding up cannot overflow. */
	if (header.bytes < sizeof header || header.bytes > ring->peer - ring->own)
		return STATUS_INVALID;
	*ret_header = word;
	*ret_bytes = header.bytes;
	return STATUS_OK;
}

/* Gives the bytes up to the private index back to the producer. */
static void publish_head(struct ring *ring)
{
	/* C2: release, pairs with P2: the bytes have been copied.  Sequentially consistent for a producer that sleeps. */
	atomic_store_explicit(&ring->shared->head, ring->own, memory_order_seq_cst);
}

enum status ring_read(struct ring *ring, void *buffer, size_t capacity, size_t *ret_bytes)
{
	uint64_t    word;
	uint32_t    bytes;
	enum status status = next_record(ring, &word, &bytes);

	if (status != STATUS_OK)
		return status;
	if (bytes > capacity)
		return STATUS_INVALID;
	memcpy(buffer, &word, sizeof word);
	copy_out(ring, ring->own + (uint32_t)sizeof word, (unsigned char *)buffer + sizeof word, bytes - sizeof word);
	ring->own += wire_stored_bytes(bytes);
	publish_head(ring);
	*ret_bytes = bytes;
	return STATUS_OK;
}

bool ring_pending(const struct ring *ring)
{
	/* C1 without taking anything. */
	return ring->peer != ring->own || atomic_load_explicit(&ring->shared->tail, memory_order_acquire) != ring->own;
}

bool ring_pending_seq_cst(const struct ring *ring)
{
	/* C1 as the re-check of a consumer that is about to sleep. */
	return ring->peer != ring->own || atomic_load_explicit(&ring->shared->tail, memory_order_seq_cst) != ring->own;
}

uint64_t ring_drop(struct ring *ring)
{
	uint64_t dropped = 0, word;
	uint32_t bytes;

	/* C1 once: a producer that goes on writing cannot keep us here. */
	accept_tail(ring, atomic_load_explicit(&ring->shared->tail, memory_order_acquire));
	while (ring->own != ring->peer && next_record(ring, &word, &bytes) == STATUS_OK) {
		ring->own += wire_stored_bytes(bytes);
		dropped++;
	}
	ring->own = ring->peer;
	publish_head(ring);
	return dropped;
}
