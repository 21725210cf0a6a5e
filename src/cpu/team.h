/* team.h: a team of threads that shares out the items of one job at a time. */
#ifndef PENSTOCK_CPU_TEAM_H
#define PENSTOCK_CPU_TEAM_H

#include "base/status.h"

#include <stdint.h>

enum { TEAM_THREADS_MAX = 256, TEAM_ITEMS_MAX = (1 << 24) - 1 };

struct team; /* opaque */

/* Works on items [first, first + count).  THREAD < team_threads() numbers the calling thread: two calls that run at the
 * same time have different numbers, so it may index scratch. */
typedef void team_function(void *context, unsigned thread, uint32_t first, uint32_t count);

/* THREADS ≥ 1 counts the caller of team_run. */
enum status team_create(unsigned threads, struct team **ret, struct error *error);
void        team_destroy(struct team *team);
unsigned    team_threads(const struct team *team);

/* Runs FUNCTION over ITEMS ≤ TEAM_ITEMS_MAX items and returns when all are done; everything the items wrote is visible
 * to the caller.  Which thread gets which item is not fixed.  One caller at a time. */
void team_run(struct team *team, team_function *function, void *context, uint32_t items);

#endif
