/* estimate.h: how many tokens will a request generate?  Learned from the requests that finished, one estimate per model.
 * Pure: integers in, integers out; the engine and the simulator use the same code, so that both schedule alike.
 *
 * Lengths are counted in a histogram of about 19 % wide bins that forgets: beyond ESTIMATE_WINDOW requests every count is
 * halved, so the newest one to two windows decide.  The answer is the mean of min(length, max_new): what a request with
 * that limit takes on average, which is what sums of many requests need.
 */
#ifndef PENSTOCK_ENGINE_ESTIMATE_H
#define PENSTOCK_ENGINE_ESTIMATE_H

#include <stdint.h>

enum {
	ESTIMATE_BINS = 128,
	ESTIMATE_WINDOW = 1024, /* requests */
	ESTIMATE_PRIOR = 256,   /* tokens: the guess before anything was learned */
	ESTIMATE_PRIOR_WEIGHT = 4,
	ESTIMATE_FRESH = 8 /* requests after which `beyond` is computed anew */
};

struct estimate {
	uint32_t counts[ESTIMATE_BINS], total;
	uint32_t beyond[ESTIMATE_BINS]; /* mean of lengths in this bin and those above; 0 where there are none */
	uint32_t stale;                 /* requests learned since it was computed */
};

void estimate_init(struct estimate *estimate);

/* A request ended by itself (a stop, its limit) after GENERATED tokens.  Not for cancelled or failed ones: their length says
 * nothing. */
void estimate_learn(struct estimate *estimate, uint32_t generated);

/* Tokens to expect of a request that may generate MAX_NEW: 1 … MAX_NEW; 1 when MAX_NEW is 0. */
uint32_t estimate_tokens(const struct estimate *estimate, uint32_t max_new);

/* The same for one that has GENERATED tokens already and goes on: GENERATED + 1 … MAX_NEW.  Costs no more than a look into
 * a table, and may be a few requests behind. */
uint32_t estimate_total(const struct estimate *estimate, uint32_t generated, uint32_t max_new);

#endif
