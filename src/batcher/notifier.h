/* notifier.h: the thread that pays for wake-ups.  A wake is a system call of a few microseconds; a thousand of them must
 * not stand between two steps.  It is also the last to let go of a lane (lanes.h).
 */
#ifndef PENSTOCK_BATCHER_NOTIFIER_H
#define PENSTOCK_BATCHER_NOTIFIER_H

#include "batcher/lanes.h"
#include "ipc/metrics.h"

#include <pthread.h>

enum { NOTIFIER_WORDS = LANE_COUNT_MAX / 64 };

/* A set of lanes. */
struct notifier_set {
	uint64_t words[NOTIFIER_WORDS];
};

static inline void notifier_set_add(struct notifier_set *set, uint32_t lane) { set->words[lane / 64] |= UINT64_C(1) << lane % 64; }
static inline void notifier_set_remove(struct notifier_set *set, uint32_t lane)
{
	set->words[lane / 64] &= ~(UINT64_C(1) << lane % 64);
}

struct notifier {
	struct lanes       *lanes;
	struct metrics     *metrics;
	pthread_mutex_t     mutex;
	pthread_cond_t      wake;
	pthread_t           thread;
	bool                started, stopping;
	struct notifier_set children, retired; /* to wake, to unmap */
};

enum status notifier_start(struct notifier *notifier, struct lanes *lanes, struct metrics *metrics, struct error *error);
/* Does what was asked before it, then ends the thread.  A notifier that never started is fine. */
void notifier_stop(struct notifier *notifier);

/* Any thread: the children of CHILDREN are to be woken. */
void notifier_wake(struct notifier *notifier, const struct notifier_set *children);
void notifier_wake_one(struct notifier *notifier, uint32_t lane);
/* Step thread: LANE is RETIRED; no wake for it follows. */
void notifier_recycle(struct notifier *notifier, uint32_t lane);

#endif
