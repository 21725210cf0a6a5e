/* doorbell.c: owns the doorbell object and both halves of the intake thread's sleep handshake (the essay and the labels
 * are in doorbell.h).  Does not own the lanes, nor what the intake thread does when it is awake.
 * Invariant: a record published before doorbell_ring is either seen by doorbell_sleep's re-check or its sleep ends. */
#include "ipc/doorbell.h"

#include "base/clock.h"
#include "base/hash.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define DOORBELL_MAGIC UINT64_C(0x706e7374646f6f31)

static uint64_t layout_hash(void)
{
	const uint64_t layout[] = { sizeof(struct doorbell_shared), offsetof(struct doorbell_shared, semaphore),
	    sizeof(sem_t),
		offsetof(struct doorbell_shared, sleeping), offsetof(struct doorbell_shared, ready), wire_layout_hash() };

	return hash_fnv1a(HASH_FNV1A_START, layout, sizeof layout);
}

enum status doorbell_create(const char *instance, int gid, struct doorbell *ret, struct error *error)
{
	struct doorbell doorbell = { 0 };
	void           *map = NULL;
	enum status     status = object_create(instance, "doorbell", sizeof *doorbell.shared, 0660, gid, doorbell.name,
	    &map, error);

	if (status != STATUS_OK)
		return status;
	doorbell.shared = map;
	if (sem_init(&doorbell.shared->semaphore, 1, 0)) {
		status = error_set(error, STATUS_IO, "cannot make the doorbell's semaphore: %s", strerror(errno));
		doorbell_close(&doorbell);
		return status;
	}
	object_publish(map, DOORBELL_MAGIC, layout_hash());
	*ret = doorbell;
	return STATUS_OK;
}

enum status doorbell_open(const char *instance, struct doorbell *ret, struct error *error)
{
	void       *map = NULL;
	enum status status = object_open(instance, "doorbell", sizeof *ret->shared, true, DOORBELL_MAGIC, layout_hash(),
	    &map, error);

	if (status == STATUS_OK)
		*ret = (struct doorbell) { .shared = map };
	return status;
}

void doorbell_close(struct doorbell *doorbell)
{
	if (!doorbell)
		return;
	/* The semaphore is not destroyed: fronts may still post to it; it is plain memory and goes with the object. */
	object_unmap(doorbell->shared, sizeof *doorbell->shared);
	object_unlink(doorbell->name);
	*doorbell = (struct doorbell) { 0 };
}

void doorbell_ring(struct doorbell *doorbell, int lane)
{
	struct doorbell_shared *shared = doorbell->shared;

	if (lane >= 0 && lane < LANE_COUNT_MAX) {
		/* F2: seq_cst, pairs with S2. */
		atomic_fetch_or_explicit(&shared->ready[lane / 64], UINT64_C(1) << lane % 64, memory_order_seq_cst);
		/* F3: seq_cst, pairs with S1. */
		if (!atomic_load_explicit(&shared->sleeping, memory_order_seq_cst))
			return;
	}
	/* F4.  The only failure of a valid semaphore is EOVERFLOW: it has posts enough. */
	(void)sem_post(&shared->semaphore);
}

uint64_t doorbell_take_ready(struct doorbell *doorbell, unsigned word)
{
	_Atomic uint64_t *ready = &doorbell->shared->ready[word % (LANE_COUNT_MAX / 64)];

	/* S5: a cold word is only read.  The exchange pairs with F2 and carries F1's record with the bit. */
	if (atomic_load_explicit(ready, memory_order_relaxed) == 0)
		return 0;
	return atomic_exchange_explicit(ready, 0, memory_order_seq_cst);
}

static bool any_ready(struct doorbell_shared *shared)
{
	for (size_t i = 0; i < LANE_COUNT_MAX / 64; i++)
		/* S2: seq_cst, pairs with F2. */
		if (atomic_load_explicit(&shared->ready[i], memory_order_seq_cst))
			return true;
	return false;
}

enum doorbell_wake doorbell_sleep(struct doorbell *doorbell, uint64_t timeout_ns, unsigned lanes,
    bool (*any_pending)(void *), void *context)
{
	struct doorbell_shared *shared = doorbell->shared;
	enum doorbell_wake      wake = DOORBELL_PENDING;

	/* S1: seq_cst, pairs with F3. */
	atomic_store_explicit(&shared->sleeping, 1, memory_order_seq_cst);
	if (!any_ready(shared) && !any_pending(context)) {
		uint64_t        until = clock_now_ns() + timeout_ns;
		struct timespec deadline = { .tv_sec = (time_t)(until / CLOCK_NS_PER_S),
		    .tv_nsec = (long)(until % CLOCK_NS_PER_S) };

		/* S3.  Absolute monotonic time: setting the wall clock moves nothing. */
		wake = sem_clockwait(&shared->semaphore, CLOCK_MONOTONIC, &deadline) && errno == ETIMEDOUT ? DOORBELL_TICK :
		    DOORBELL_RUNG;
	}
	/* S4: seq_cst, so that it stays before the reads of S5. */
	atomic_store_explicit(&shared->sleeping, 0, memory_order_seq_cst);
	/* S5. */
	for (unsigned i = 0; i < lanes && sem_trywait(&shared->semaphore) == 0; i++)
		if (wake == DOORBELL_TICK)
			wake = DOORBELL_RUNG;
	return wake;
}
