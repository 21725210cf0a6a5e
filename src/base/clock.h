/* clock.h: monotonic time in nanoseconds.  Pure modules (kv, sched) take times as arguments and never include this. */
#ifndef PENSTOCK_BASE_CLOCK_H
#define PENSTOCK_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_NS_PER_S  UINT64_C(1000000000)
#define CLOCK_NS_PER_MS UINT64_C(1000000)

static inline uint64_t clock_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * CLOCK_NS_PER_S + (uint64_t)now.tv_nsec;
}

#endif
