/* bpe_whole.c: owns the proof that merging makes a token of its own text.  Does not merge.
 *
 * Encoding a token's text says it too, but a vocabulary has some 200,000 of them.  Where rules come in the order of their
 * ranks, a rule (left, right) makes its token out of the token's own text exactly when each part is made of its own text,
 * and no pair that lies across their border merges before.  Merges of a text happen in the order (rank, place): a merge that
 * another one makes possible has a higher rank, since its rule came later.  So the symbol before the border is, back in time,
 * LEFT, then its right part, then that one's right part …, the one behind it RIGHT, then its left part …; and the pair that
 * stands there until one of both is merged into something larger merges itself when its rank comes first.  Of equal ranks the
 * leftmost merges first: the pair across the border loses against a merge before it and wins against one behind it.
 *
 *	time   a b c | d e      rank 7: (ab, c), rank 5: (d, e), rank 3: (a, b); in doubt is rank 9: (abc, de)
 *	3      ab  c | d e      c, d alive up to 5: a rule (c, d) of rank 5 or less crosses
 *	5      ab  c | de       c, de alive up to 7: a rule (c, de) below 7 crosses
 *	7      abc   | de
 *
 * Invariant: parts have lower times than what is made of them. */
#include "text/bpe_whole.h"

#include <stdlib.h>

enum status bpe_whole_init(struct bpe_whole *whole, uint32_t size)
{
	*whole = (struct bpe_whole){ .made = malloc((size + (size_t)1) * sizeof *whole->made), .all = true };
	if (!whole->made)
		return STATUS_NOMEM;
	for (uint32_t id = 0; id < size; id++)
		whole->made[id] = (struct bpe_made){ .time = BPE_NONE };
	return STATUS_OK;
}

void bpe_whole_free(struct bpe_whole *whole)
{
	free(whole->made);
	*whole = (struct bpe_whole){ .made = NULL };
}

void bpe_whole_symbol(struct bpe_whole *whole, uint32_t id) { whole->made[id].time = 0; }

/* Does a pair across the border of LEFT and RIGHT merge before they are there? */
static bool crosses(const struct bpe_made *made, const struct bpe *bpe, uint32_t left, uint32_t right)
{
	for (;;) {
		const struct bpe_made *a = &made[left], *b = &made[right];
		uint32_t               below; /* a pair of such a rank is merged before what ends its life */
		if (a->time > b->time) {
			below = a->time - 1;
			left = a->right;
		} else if (b->time) {
			below = b->time;
			right = b->left;
		} else {
			return false;
		}
		if (bpe_rank(bpe, left, right) < below)
			return true;
	}
}

void bpe_whole_rule(struct bpe_whole *whole, const struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged)
{
	struct bpe_made *made = whole->made;

	if (!made || made[merged].time != BPE_NONE)
		return;
	if (made[left].time == BPE_NONE || made[right].time == BPE_NONE) {
		made[left].asked = made[right].asked = true;
		return;
	}
	if (crosses(made, bpe, left, right))
		return;
	if (made[merged].asked) /* what was made of it before is in doubt */
		whole->all = false;
	made[merged] = (struct bpe_made){ rank + 1, left, right, false };
}
