/* census.h: who runs and who waits, by class and key, as the step thread counts it a few times a second; part of the metrics
 * object, for `penstock top`. */
#ifndef PENSTOCK_IPC_CENSUS_H
#define PENSTOCK_IPC_CENSUS_H

#include "ipc/seqlock.h"

enum { CENSUS_GROUPS = 64 };

struct census_group {
	uint64_t key; /* 0 = requests without one */
	int32_t  priority;
	uint32_t running, waiting;
	uint32_t reserved;
};

struct census {
	uint32_t count;   /* of groups */
	uint32_t running, waiting; /* of those that found no group */
	uint32_t reserved;
	struct census_group groups[CENSUS_GROUPS];
};

struct census_shared {
	_Atomic uint64_t turn;
	_Atomic uint64_t words[SEQLOCK_WORDS(struct census)];
};

/* One more of (KEY, PRIORITY). */
void census_count(struct census *census, uint64_t key, int32_t priority, bool running);
/* Step thread. */
void census_write(struct census_shared *shared, const struct census *census);
/* An empty one where nothing was written yet. */
void census_read(const struct census_shared *shared, struct census *ret);

#endif
