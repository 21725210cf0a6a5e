/* doorbell.c: owns the doorbell object and both halves of the intake thread's sleep handshake (the essay and the labels
 * are in doorbell.h).  Does not own the lanes, nor what the intake thread does when it is awake.
 * Invariants: a record published before doorbell_ring is either seen by doorbell_sleep's re-check or its sleep ends;
 * whatever stands in the object, no call fails, aborts, or sleeps longer than it was told. */
#include "ipc/doorbell.h"

#include "base/clock.h"
#include "ipc/object.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(_Atomic uint32_t) == 4, "a futex is 32 bits");

enum status doorbell_create(struct doorbell *ret, struct error *error)
{
	void       *map = NULL;
	int         fd = -1;
	enum status status = object_create_sealed("doorbell", sizeof *ret->shared, &fd, &map, error);

	if (status == STATUS_OK)
		*ret = (struct doorbell) { .shared = map, .fd = fd };
	return status;
}

enum status doorbell_attach(int fd, struct doorbell *ret, struct error *error)
{
	const size_t size = sizeof *ret->shared;
	void        *map = NULL;
	size_t       bytes;
	enum status  status = object_attach_sealed(fd, "doorbell", size, size, &map, &bytes, error);

	if (status == STATUS_OK)
		*ret = (struct doorbell) { .shared = map, .fd = -1 };
	return status;
}

void doorbell_close(struct doorbell *doorbell)
{
	if (!doorbell || !doorbell->shared)
		return;
	object_unmap(doorbell->shared, sizeof *doorbell->shared);
	if (doorbell->fd >= 0)
		close(doorbell->fd);
	*doorbell = (struct doorbell) { .fd = -1 };
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
	/* F4: seq_cst, pairs with S3 and S5. */
	atomic_fetch_add_explicit(&shared->posts, 1, memory_order_seq_cst);
	(void)syscall(SYS_futex, &shared->posts, FUTEX_WAKE, 1, NULL, NULL, 0);
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

/* S3.  True when the time has passed; false on a wake, a signal, or a post that is there already. */
static bool wait_for_post(struct doorbell *doorbell, uint64_t timeout_ns)
{
	uint64_t        until = clock_now_ns() + timeout_ns;
	struct timespec deadline = { .tv_sec = (time_t)(until / CLOCK_NS_PER_S), .tv_nsec = (long)(until % CLOCK_NS_PER_S) };

	/* FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC: setting the wall clock moves nothing. */
	return syscall(SYS_futex, &doorbell->shared->posts, FUTEX_WAIT_BITSET, doorbell->seen, &deadline, NULL,
	           FUTEX_BITSET_MATCH_ANY) != 0 &&
	    errno == ETIMEDOUT;
}

enum doorbell_wake doorbell_sleep(struct doorbell *doorbell, uint64_t timeout_ns, bool (*any_pending)(void *), void *context)
{
	struct doorbell_shared *shared = doorbell->shared;
	enum doorbell_wake      wake = DOORBELL_PENDING;

	/* S1: seq_cst, pairs with F3. */
	atomic_store_explicit(&shared->sleeping, 1, memory_order_seq_cst);
	if (!any_ready(shared) && !any_pending(context))
		wake = wait_for_post(doorbell, timeout_ns) ? DOORBELL_TICK : DOORBELL_RUNG;
	/* S4: seq_cst, so that it stays before the reads of S5. */
	atomic_store_explicit(&shared->sleeping, 0, memory_order_seq_cst);
	/* S5: seq_cst, pairs with F4: who posted before it has stored what the caller reads after it. */
	uint32_t posts = atomic_load_explicit(&shared->posts, memory_order_seq_cst);
	if (wake == DOORBELL_TICK && posts != doorbell->seen)
		wake = DOORBELL_RUNG;
	doorbell->seen = posts;
	return wake;
}
