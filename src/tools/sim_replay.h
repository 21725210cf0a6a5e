/* sim_replay.h: gives a recording (engine/sched_trace.h) to the scheduler again. */
#ifndef PENSTOCK_TOOLS_SIM_REPLAY_H
#define PENSTOCK_TOOLS_SIM_REPLAY_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct sim_replay {
	uint64_t plans, calls; /* calls: all of them, plans too */
	bool     cut;          /* the recording had reached its limit */
};

/* Every plan must be as it was: STATUS_OK.  STATUS_INTERNAL says which one differs, and how; STATUS_INVALID, at which line
 * the recording is none; then and before, *ret is untouched. */
enum status sim_replay(FILE *stream, const char *name, struct sim_replay *ret, struct error *error);

#endif
