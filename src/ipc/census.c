/* census.c: owns how groups are counted and published.  Does not own requests.
 * Invariant: what a reader gets has at most CENSUS_GROUPS groups, whatever the memory holds. */
#include "ipc/census.h"

void census_count(struct census *census, uint64_t key, int32_t priority, bool running)
{
	struct census_group *group = census->groups, *end = census->groups + census->count;

	while (group < end && (group->key != key || group->priority != priority))
		group++;
	if (group == end && census->count < CENSUS_GROUPS) {
		*group = (struct census_group){ .key = key, .priority = priority };
		census->count++;
		end++;
	}
	if (group < end) {
		group->running += running;
		group->waiting += !running;
	} else {
		census->running += running;
		census->waiting += !running;
	}
}

void census_write(struct census_shared *shared, const struct census *census)
{
	uint64_t turn = atomic_load_explicit(&shared->turn, memory_order_relaxed);
	size_t   bytes = offsetof(struct census, groups) + census->count * sizeof census->groups[0];

	seqlock_write(&shared->turn, turn, shared->words, census, bytes);
}

void census_read(const struct census_shared *shared, struct census *ret)
{
	uint64_t turn;

	if (!seqlock_read(&shared->turn, shared->words, ret, sizeof *ret, &turn) || ret->count > CENSUS_GROUPS)
		*ret = (struct census){ 0 };
}
