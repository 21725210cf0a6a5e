/* doorbell.h: how many fronts wake the one intake thread, and how that thread sleeps.
 *
 * One named object (shm_open, posix_fallocated), written by every front and therefore only a hint: every tick of the
 * intake thread (≤ 100 ms) scans all lanes anyway, so a mad front costs the others at most one tick.
 *
 *   front                                        intake thread
 *   ─────                                        ─────────────
 *   F1 write record, tail.store(release)         S1 sleeping.store(1, seq_cst)
 *   F2 ready[lane/64].fetch_or(bit, seq_cst)     S2 re-read ready bitmap and all record tails (seq_cst)
 *   F3 sleeping.load(seq_cst)                    S3 nothing there → sem_clockwait(CLOCK_MONOTONIC, ≤ 100 ms)
 *   F4 if 1 → sem_post                           S4 sleeping.store(0)   (only the sleeper clears the flag)
 *
 * F1/F2 before F3 and S1 before S2 are sequentially consistent, so of (front, sleeper) at least one sees the other.
 * With release/acquire alone both may read the old value (store buffering) and the wake-up is lost until the tick:
 * contrib/doorbell.pml is a Promela model of exactly this with explicit store buffers.
 * Surplus posts (several fronts saw sleeping = 1) are drained with sem_trywait, at most one per lane.  sem_post's
 * EOVERFLOW counts as success: the sleeper is awake anyway.
 */
#ifndef PENSTOCK_IPC_DOORBELL_H
#define PENSTOCK_IPC_DOORBELL_H

#include "base/status.h"
#include "ipc/lane.h"

#include <semaphore.h>

enum { DOORBELL_TICK_MS = 100 };

struct doorbell_shared {
	uint64_t         magic, layout_hash;
	sem_t            semaphore; /* process-shared */
	_Alignas(RING_CACHE_LINE) _Atomic uint32_t sleeping;
	_Alignas(RING_CACHE_LINE) _Atomic uint64_t ready[LANE_COUNT_MAX / 64];
};

struct doorbell {
	struct doorbell_shared *shared; /* mapped; owned */
	char                    name[80]; /* set on the creator's side: unlinked by doorbell_close */
};

/* Batcher: creates /penstock.INSTANCE.doorbell anew (a stale one is unlinked), mode 0660, group GID (−1 = leave). */
enum status doorbell_create(const char *instance, int gid, struct doorbell *ret, struct error *error);
/* Front: maps the existing one; STATUS_UNAVAILABLE when there is none. */
enum status doorbell_open(const char *instance, struct doorbell *ret, struct error *error);
void        doorbell_close(struct doorbell *doorbell);

/* Front (and the control thread, on an end-of-file): after publishing into lane LANE (−1: no lane, only wake). */
void doorbell_ring(struct doorbell *doorbell, int lane);

/* Intake: takes the ready bits of word WORD (exchange 0). */
uint64_t doorbell_take_ready(struct doorbell *doorbell, unsigned word);

/* Intake: sleeps until rung or TIMEOUT_NS has passed, unless ANY_PENDING(context) — called between S1 and S3, it must
 * use sequentially consistent loads — or a ready bit says that there is work.  LANES bounds the drained posts. */
void doorbell_sleep(struct doorbell *doorbell, uint64_t timeout_ns, unsigned lanes, bool (*any_pending)(void *), void *context);

#endif
