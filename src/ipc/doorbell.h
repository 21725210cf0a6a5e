/* doorbell.h: how many fronts wake the one intake thread, and how that thread sleeps.
 *
 * One sealed object (object.h), written by every front and therefore only a hint: every tick of the intake thread
 * (≤ 100 ms) scans all lanes anyway, so a mad front costs the others at most one tick.  For the same reason the thread
 * sleeps on a plain counter with futex(2) and not on a POSIX semaphore: glibc trusts what stands in a sem_t and aborts
 * the process when it does not make sense.
 *
 *   front                                           intake thread
 *   ─────                                           ─────────────
 *   F1 write record, tail.store(seq_cst)            S1 sleeping.store(1, seq_cst)
 *   F2 ready[lane/64].fetch_or(bit, seq_cst)        S2 ready words.load(seq_cst), all record tails.load(seq_cst)
 *   F3 sleeping.load(seq_cst)                       S3 nothing there → sleep while posts = seen (futex, ≤ 100 ms)
 *   F4 if 1 → posts.fetch_add(1), wake              S4 sleeping.store(0, seq_cst)   (only the sleeper clears the flag)
 *                                                   S5 seen = posts.load, then take ready bits and read the lanes
 *
 * Why nothing is lost.  All of F1, F2, F3, S1, S2 are sequentially consistent, so they stand in one order that every
 * thread agrees on.  If S2 stands before F1 in it, then so does S1, which comes before S2, and F3, which comes after
 * F1, reads sleeping = 1: the front posts, and posts ≠ seen keeps the post even when the sleeper has not reached S3
 * yet (the kernel compares under the lock that a wake takes).  If F1 stands before S2, the sleeper sees the tail and does
 * not sleep.  With release/acquire alone there is no such order: each store may still sit in its core's store buffer
 * while both loads read the old values, nobody posts, and the record lies there until the tick.  contrib/doorbell.pml is
 * a Promela model of exactly this with explicit store buffers.
 *
 * The order is carried by the words themselves, not by fences: it costs one locked instruction per store on x86-64, and
 * a race detector can follow it.  F1 is P1 of ring.h.
 *
 * F2 is for speed: bits tell which lanes to look at, so that a step need not scan a thousand cold ones.  S2 re-reads
 * the tails too, because a mad front may have cleared the bits of others.
 *
 * Surplus posts (several fronts saw sleeping = 1, or one saw it that S2 had answered already) are swallowed by S5; that is
 * harmless because the lanes are read after it: whoever posted has stored before.
 */
#ifndef PENSTOCK_IPC_DOORBELL_H
#define PENSTOCK_IPC_DOORBELL_H

#include "base/status.h"
#include "ipc/lane.h"

enum { DOORBELL_TICK_MS = 100 };

/* No magic and no layout hash: a mad front could damage them for every front that attaches later.  That both sides are of one
 * build is known from the control message that brings the descriptor (change WIRE_VERSION with this struct). */
struct doorbell_shared {
	_Alignas(RING_CACHE_LINE) _Atomic uint32_t sleeping;
	_Alignas(RING_CACHE_LINE) _Atomic uint32_t posts; /* counted, wrapping; the futex */
	_Alignas(RING_CACHE_LINE) _Atomic uint64_t ready[LANE_COUNT_MAX / 64];
};

struct doorbell {
	struct doorbell_shared *shared; /* mapped; owned */
	int                     fd;     /* on the creator's side, to be handed over; else −1 */
	uint32_t                seen;   /* the intake thread's: `posts` at S5 */
};

/* Batcher: makes the object. */
enum status doorbell_create(struct doorbell *ret, struct error *error);
/* Front: maps the object behind FD, which stays the caller's. */
enum status doorbell_attach(int fd, struct doorbell *ret, struct error *error);
void        doorbell_close(struct doorbell *doorbell); /* NULL and zeroed handles are fine */

/* Front: after publishing into lane LANE (any thread).
 * LANE −1 (the control thread on an end-of-file, a shutdown): posts in any case, since the caller's own words need not
 * be sequentially consistent then; the post is kept until the next sleep. */
void doorbell_ring(struct doorbell *doorbell, int lane);

/* Intake: takes the ready bits of word WORD (exchange 0). */
uint64_t doorbell_take_ready(struct doorbell *doorbell, unsigned word);

/* Why doorbell_sleep came back. */
enum doorbell_wake {
	DOORBELL_PENDING, /* it did not sleep: there was work */
	DOORBELL_RUNG,    /* a post, or a signal */
	DOORBELL_TICK     /* TIMEOUT_NS passed without a post */
};

/* Intake: sleeps until rung or TIMEOUT_NS has passed, unless ANY_PENDING(context) — called between S1 and S3, it must
 * use sequentially consistent loads (lane_batcher_pending_seq_cst) — or a ready bit says that there is work.  Whatever
 * it returns, the caller looks at the lanes next: at those with a ready bit, and at all when no bit is set (a tick, or a
 * mad front that clears bits). */
enum doorbell_wake doorbell_sleep(struct doorbell *doorbell, uint64_t timeout_ns, bool (*any_pending)(void *), void *context);

#endif
