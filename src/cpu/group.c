/* group.c: owns the meetings of ranks: a barrier at which each shows the others one array.  Does not own the arrays.
 *
 * An operation is two meetings.  At the first, everyone has published where its array is and is done writing it.  Between
 * them rank r alone touches piece r of all arrays (sums, maxima), or all read what its owner no longer writes (gathering).
 * After the second, everyone may use its own again.  So the arrays themselves need no lock, and nothing is copied twice.
 *
 * Invariant: between two meetings no element is written by one rank and touched by another. */
#include "cpu/group.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

struct cpu_group {
	pthread_mutex_t lock;
	pthread_cond_t  all_here;
	/* Under the lock. */
	uint32_t here;
	uint64_t meeting;
	bool     broken;
	/* Written before a meeting, read after it. */
	uint32_t ranks;
	float   *arrays[CPU_RANKS_MAX];
};

enum status cpu_group_create(uint32_t ranks, struct cpu_group **ret, struct error *error)
{
	struct cpu_group *group;

	if (ranks < 1 || ranks > CPU_RANKS_MAX)
		return error_set(error, STATUS_INVALID, "ranks = %u is outside 1…%d", ranks, CPU_RANKS_MAX);
	group = calloc(1, sizeof *group);
	if (!group)
		return error_set(error, STATUS_NOMEM, "out of memory for a group of ranks");
	group->ranks = ranks;
	pthread_mutex_init(&group->lock, NULL); /* neither fails with default attributes */
	pthread_cond_init(&group->all_here, NULL);
	*ret = group;
	return STATUS_OK;
}

void cpu_group_destroy(struct cpu_group *group)
{
	if (!group)
		return;
	pthread_cond_destroy(&group->all_here);
	pthread_mutex_destroy(&group->lock);
	free(group);
}

uint32_t cpu_group_ranks(const struct cpu_group *group) { return group->ranks; }

void cpu_group_break(struct cpu_group *group)
{
	pthread_mutex_lock(&group->lock);
	group->broken = true;
	pthread_cond_broadcast(&group->all_here);
	pthread_mutex_unlock(&group->lock);
}

/* Sleeps until all ranks are here; STATUS_UNAVAILABLE when one will never come. */
static enum status meet(struct cpu_group *group)
{
	uint64_t meeting;
	bool     over;

	pthread_mutex_lock(&group->lock);
	meeting = group->meeting;
	if (!group->broken && ++group->here == group->ranks) {
		group->here = 0;
		group->meeting++;
		pthread_cond_broadcast(&group->all_here);
	}
	while (group->meeting == meeting && !group->broken)
		pthread_cond_wait(&group->all_here, &group->lock);
	over = group->meeting != meeting;
	pthread_mutex_unlock(&group->lock);
	return over ? STATUS_OK : STATUS_UNAVAILABLE;
}

static enum status show(const struct cpu_seat *seat, float *array)
{
	seat->group->arrays[seat->rank] = array;
	return meet(seat->group);
}

static float sum_of(float a, float b) { return a + b; }

static float max_of(float a, float b) { return isnan(a) || a > b ? a : b; }

static enum status reduce(const struct cpu_seat *seat, float *x, size_t count, float (*combine)(float, float))
{
	float *const *arrays = seat->group->arrays;
	size_t        first = count * seat->rank / seat->ranks, end = count * (seat->rank + 1) / seat->ranks;
	enum status   status = show(seat, x);

	if (status)
		return status;
	for (size_t i = first; i < end; i++) {
		float value = arrays[0][i];

		for (uint32_t r = 1; r < seat->ranks; r++)
			value = combine(value, arrays[r][i]);
		for (uint32_t r = 0; r < seat->ranks; r++)
			arrays[r][i] = value;
	}
	return meet(seat->group);
}

enum status cpu_group_sum(const struct cpu_seat *seat, float *x, size_t count) { return reduce(seat, x, count, sum_of); }

enum status cpu_group_max(const struct cpu_seat *seat, float *x, size_t count) { return reduce(seat, x, count, max_of); }

enum status cpu_group_gather(const struct cpu_seat *seat, float *x, size_t rows, size_t width, size_t each)
{
	enum status status = show(seat, x);

	if (status)
		return status;
	for (size_t row = 0; row < rows; row++)
		for (size_t column = 0; column < width; column++)
			if (column / each != seat->rank)
				x[row * width + column] = seat->group->arrays[column / each][row * width + column];
	return meet(seat->group);
}
