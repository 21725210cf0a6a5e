/* sched_heap.h: leftist heaps (Crane 1972) of numbers, their links in an array: inserting, taking the first and taking
 * any other are O(log n) in the worst case, not only on average, and many heaps can share the array, since a number is in
 * one of them at a time.  Pure; allocates nothing.
 *
 *      rank  length of the path of right children down to a hole.  A left child's rank is never less than its brother's,
 *            so that path has at most log2(n + 1) nodes, and merging two heaps walks only such paths.
 */
#ifndef PENSTOCK_ENGINE_SCHED_HEAP_H
#define PENSTOCK_ENGINE_SCHED_HEAP_H

#include <stdbool.h>
#include <stdint.h>

enum { SCHED_NONE = UINT32_MAX };

struct sched_node {
	uint32_t parent, left, right, rank;
};

/* What heaps over one array have in common. */
struct sched_heaps {
	struct sched_node *nodes;
	bool (*before)(const void *context, uint32_t a, uint32_t b); /* a strict order; equal numbers come in any order */
	const void *context;
};

/* *ROOT is the heap and its first number at once; SCHED_NONE when empty. */
void sched_heap_insert(const struct sched_heaps *heaps, uint32_t *root, uint32_t number);
/* NUMBER is in the heap; what `before` says of it may have changed since. */
void sched_heap_remove(const struct sched_heaps *heaps, uint32_t *root, uint32_t number);

#endif
