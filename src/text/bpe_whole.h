/* bpe_whole.h: which tokens merging makes of their own text, found while the rules are added. */
#ifndef PENSTOCK_TEXT_BPE_WHOLE_H
#define PENSTOCK_TEXT_BPE_WHOLE_H

#include "base/status.h"
#include "text/bpe.h"

#include <stdbool.h>
#include <stdint.h>

/* How a token comes about. */
struct bpe_made {
	uint32_t time;        /* 0: text begins as it; 1 + the rank of the merge that made it; BPE_NONE: not known to be whole */
	uint32_t left, right; /* ids of its parts, where a merge made it */
	bool     asked;       /* a rule had it as a part when it was not whole */
};

struct bpe_whole {
	struct bpe_made *made; /* owned, [size]; NULL: nothing is known */
	bool             all;  /* no other token is whole, but in vocabularies where affixes or lost bytes make one */
};

/* Of SIZE tokens. */
enum status bpe_whole_init(struct bpe_whole *whole, uint32_t size);
void        bpe_whole_free(struct bpe_whole *whole); /* forgets everything too */

/* Text begins as token ID, one symbol. */
void bpe_whole_symbol(struct bpe_whole *whole, uint32_t id);
/* The rule that BPE was given last, ranks ascending.  Where one replaces another, all that is known is void. */
void bpe_whole_rule(struct bpe_whole *whole, const struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);

static inline bool bpe_whole_has(const struct bpe_whole *whole, uint32_t id)
{
	return whole->made && whole->made[id].time != BPE_NONE;
}

#endif
