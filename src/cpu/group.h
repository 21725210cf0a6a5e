/* group.h: several CPU backends in one process that compute one model together, and what they hand each other. */
#ifndef PENSTOCK_CPU_GROUP_H
#define PENSTOCK_CPU_GROUP_H

#include "cpu/cpu_backend.h"

#include <stdbool.h>
#include <stddef.h>

/* The place of one backend in its group. */
struct cpu_seat {
	struct cpu_group *group; /* NULL: alone */
	uint32_t          rank, ranks;
};

/* The operations below are called by all ranks, each on a thread of its own, with equal sizes and in the same order.
 * STATUS_UNAVAILABLE when the group is broken.
 *
 * x[i] = Σ x[i] over ranks, in their order: every rank gets the same bits. */
enum status cpu_group_sum(const struct cpu_seat *seat, float *x, size_t count);
/* x[i] = the largest x[i] of all ranks; NaN when one is. */
enum status cpu_group_max(const struct cpu_seat *seat, float *x, size_t count);
/* x [rows][width]: rank r has filled the columns from r · EACH on, EACH of them or what is left; all are filled after. */
enum status cpu_group_gather(const struct cpu_seat *seat, float *x, size_t rows, size_t width, size_t each);

#endif
