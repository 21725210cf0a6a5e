/* sched_heap.c: owns the shape of the heaps, not what they order.  Invariant: a node's rank is one more than its right
 * child's, and not more than one more than its left child's. */
#include "engine/sched_heap.h"

static uint32_t rank_of(const struct sched_heaps *heaps, uint32_t node)
{
	return node == SCHED_NONE ? 0 : heaps->nodes[node].rank;
}

/* Puts the higher child to the left; true when the rank of NODE changed. */
static bool settle(const struct sched_heaps *heaps, uint32_t node)
{
	struct sched_node *n = &heaps->nodes[node];
	uint32_t           rank;

	if (rank_of(heaps, n->left) < rank_of(heaps, n->right)) {
		uint32_t left = n->left;
		n->left = n->right;
		n->right = left;
	}
	rank = rank_of(heaps, n->right) + 1;
	if (rank == n->rank)
		return false;
	n->rank = rank;
	return true;
}

/* Recursion goes down right paths: at most 2 · log2(n) deep. */
static uint32_t merge(const struct sched_heaps *heaps, uint32_t a, uint32_t b)
{
	uint32_t right;

	if (a == SCHED_NONE)
		return b;
	if (b == SCHED_NONE)
		return a;
	if (heaps->before(heaps->context, b, a)) {
		uint32_t other = a;
		a = b;
		b = other;
	}
	right = merge(heaps, heaps->nodes[a].right, b);
	heaps->nodes[a].right = right;
	heaps->nodes[right].parent = a;
	settle(heaps, a);
	return a;
}

void sched_heap_insert(const struct sched_heaps *heaps, uint32_t *root, uint32_t number)
{
	heaps->nodes[number] = (struct sched_node){ SCHED_NONE, SCHED_NONE, SCHED_NONE, 1 };
	*root = merge(heaps, *root, number);
	heaps->nodes[*root].parent = SCHED_NONE;
}

void sched_heap_remove(const struct sched_heaps *heaps, uint32_t *root, uint32_t number)
{
	const struct sched_node *n = &heaps->nodes[number];
	uint32_t                 parent = n->parent, rest = merge(heaps, n->left, n->right);

	if (rest != SCHED_NONE)
		heaps->nodes[rest].parent = parent;
	if (parent == SCHED_NONE) {
		*root = rest;
		return;
	}
	if (heaps->nodes[parent].left == number)
		heaps->nodes[parent].left = rest;
	else
		heaps->nodes[parent].right = rest;
	/* A rank that changed may change those above; each time it does, it is the rank of a right path, so this ends soon. */
	while (parent != SCHED_NONE && settle(heaps, parent))
		parent = heaps->nodes[parent].parent;
}
