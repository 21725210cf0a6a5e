/* speculate.h: guesses at the tokens that come next, and how many of them it pays to check.  Pure: ids, counts and times in;
 * no clock, no backend.
 *
 * Checking a guess is one more row of a step (Leviathan et al. 2023, Chen et al. 2023).  Whether a guess is right never
 * changes what is drawn (engine_draft.c says why), only how many tokens a step gives; so everything here may be as
 * approximate as it likes.
 */
#ifndef PENSTOCK_ENGINE_SPECULATE_H
#define PENSTOCK_ENGINE_SPECULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	SPECULATE_MOST = 7,        /* guesses of one sequence in a step */
	SPECULATE_NGRAM_MOST = 16, /* tokens that may have to agree */
	SPECULATE_WINDOW = 32768   /* latest tokens in which they are looked for */
};

enum speculate_kind {
	SPECULATE_NGRAM, /* what followed the same tokens before (prompt lookup) */
	SPECULATE_MTP,   /* what the model's layers for further tokens say */
	SPECULATE_KINDS
};

/* ---- n-grams ---- */

/* What a sequence has so far: prompt, then what it generated. */
struct speculate_history {
	const int32_t *prompt, *generated;
	uint32_t       prompt_tokens, generated_tokens;
};

/* Looks for the place where most of the latest tokens stood before, at least LEAST and at most MOST of them (of equal places
 * the latest), and gives the WANT ids that followed it; where these reach the end they go on with themselves, so that a
 * period repeats.  Returns how many tokens agreed, 0 when there is no such place.  Time: one comparison for each token of
 * the window. */
uint32_t speculate_ngram(const struct speculate_history *history, uint32_t least, uint32_t most, uint32_t want, int32_t *ret);

/* ---- how often guesses are right ---- */

/* Of guesses whose predecessors were right; older ones count less. */
struct speculate_rate {
	float right, checked;
};

void  speculate_rate_add(struct speculate_rate *rate, uint32_t right, uint32_t checked);
/* Of all guesses of a kind: 1/2 while nothing is known. */
float speculate_rate_of(const struct speculate_rate *all);
/* Of the guesses of one sequence, of which little is known, among ALL. */
float speculate_rate_among(const struct speculate_rate *one, const struct speculate_rate *all);

/* ---- what rows cost ---- */

enum { SPECULATE_KNOTS = 40 };

/* Time of a step by its rows, measured; in between, a straight line.  Beyond the largest step that was seen it is taken to
 * cost no more than that: so it is tried. */
struct speculate_cost {
	double ns[SPECULATE_KNOTS]; /* 0 = never seen */
};

void   speculate_cost_add(struct speculate_cost *cost, uint32_t rows, uint64_t step_ns);
/* 0 while nothing is known. */
double speculate_cost_ns(const struct speculate_cost *cost, uint32_t rows);

/* ---- how many ---- */

struct speculate_offer {
	float    rate; /* each guess is right so often if those before it are */
	uint32_t most; /* guesses there are, ≤ SPECULATE_MOST */
	uint32_t take; /* the answer */
};

/* Of the guesses of COUNT sequences takes those, at most ROOM, with which a step of DECODES decodes beside PROMPTS rows of
 * prompts gives the most tokens a second; none if that is hardly more than without.  A guess more in the longest row of
 * guesses costs MAKE_NS before the step. */
void speculate_choose(const struct speculate_cost *cost, uint32_t decodes, uint32_t prompts, double make_ns,
    struct speculate_offer *offers, uint32_t count, uint32_t room);

#endif
