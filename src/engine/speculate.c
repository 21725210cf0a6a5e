/* speculate.c: owns the search for n-grams, the bookkeeping of how often guesses are right, what rows cost, and the choice of
 * how many guesses to check.  Does not own sequences, nor what is done with a guess.
 *
 * How many.  A step of S decodes takes T(S) and gives S tokens.  With D guesses it takes T(S + D) and gives S + E, where E is
 * the sum over the guesses of the probability that they and all before them are right.  Guesses are taken from the most
 * probable down, and the D with the most tokens a second is kept.  Where weights are read once for all rows (a GPU, few
 * streams) T is flat and all but the most hopeless pay; where a row costs what it computes (a CPU) only those pay whose
 * probability is above the share of a row in a step.  Many streams fill the flat part by themselves, so fewer guesses pay.
 * Rows of prompts in the step are part of T: beside a long chunk a guess costs little of the step's time.
 *
 * Invariant: nothing here depends on anything but its arguments; a wrong time or rate costs speed and nothing else. */
#include "engine/speculate.h"

/* ---- n-grams ---- */

static inline int32_t token_at(const struct speculate_history *h, uint32_t i)
{
	return i < h->prompt_tokens ? h->prompt[i] : h->generated[i - h->prompt_tokens];
}

/* How many tokens before END agree with the latest ones, at most MOST; END > 0 is not the end itself. */
static uint32_t agree(const struct speculate_history *h, uint32_t length, uint32_t end, uint32_t most)
{
	uint32_t n = 0;

	most = most < end ? most : end;
	while (n < most && token_at(h, end - 1 - n) == token_at(h, length - 1 - n))
		n++;
	return n;
}

uint32_t speculate_ngram(const struct speculate_history *history, uint32_t least, uint32_t most, uint32_t want, int32_t *ret)
{
	uint32_t length = history->prompt_tokens + history->generated_tokens, best = 0, from = 0, first;
	int32_t  last;

	if (length < 2 || least == 0)
		return 0;
	last = token_at(history, length - 1);
	first = length > SPECULATE_WINDOW ? length - SPECULATE_WINDOW : 0;
	for (uint32_t end = length - 1; end > first && best < most; end--) {
		uint32_t n;

		if (token_at(history, end - 1) != last)
			continue;
		n = agree(history, length, end, most);
		if (n > best) {
			best = n;
			from = end;
		}
	}
	if (best < least)
		return 0;
	for (uint32_t i = 0; i < want; i++)
		ret[i] = from + i < length ? token_at(history, from + i) : ret[from + i - length];
	return best;
}

/* ---- how often guesses are right ---- */

enum { RATE_MEMORY = 64, PRIOR = 2, AMONG = 4 }; /* in guesses */

void speculate_rate_add(struct speculate_rate *rate, uint32_t right, uint32_t checked)
{
	float keep = 1 - (float)checked / RATE_MEMORY;

	rate->right = rate->right * keep + (float)right;
	rate->checked = rate->checked * keep + (float)checked;
}

float speculate_rate_of(const struct speculate_rate *all) { return (all->right + 0.5f * PRIOR) / (all->checked + PRIOR); }

float speculate_rate_among(const struct speculate_rate *one, const struct speculate_rate *all)
{
	return (one->right + AMONG * speculate_rate_of(all)) / (one->checked + AMONG);
}

/* ---- what rows cost ---- */

/* 1 … 8, then two to each doubling: 12, 16, 24, 32, … */
static uint32_t knot_rows(uint32_t knot) { return knot < 8 ? knot + 1 : (knot % 2 ? 16u : 12u) << (knot - 8) / 2; }

/* The largest knot that is not beyond ROWS. */
static uint32_t knot_below(uint32_t rows)
{
	uint32_t knot = 0;

	while (knot + 1 < SPECULATE_KNOTS && knot_rows(knot + 1) <= rows)
		knot++;
	return knot;
}

double speculate_cost_ns(const struct speculate_cost *cost, uint32_t rows)
{
	int    below = (int)knot_below(rows), above = below + 1;
	double low, high;

	while (below >= 0 && cost->ns[below] == 0)
		below--;
	while (above < SPECULATE_KNOTS && cost->ns[above] == 0)
		above++;
	if (above == SPECULATE_KNOTS)
		return below < 0 ? 0 : cost->ns[below];
	if (below < 0)
		return cost->ns[above];
	low = knot_rows((uint32_t)below);
	high = knot_rows((uint32_t)above);
	return cost->ns[below] + (cost->ns[above] - cost->ns[below]) * (rows - low) / (high - low);
}

void speculate_cost_add(struct speculate_cost *cost, uint32_t rows, uint64_t step_ns)
{
	const double near = 1.0 / 8, far = 1.0 / 32; /* contexts grow, machines get busy: what is true of one size is of others */
	uint32_t     knot = knot_below(rows);
	double       believed = speculate_cost_ns(cost, rows), ratio;

	if (rows == 0 || step_ns == 0)
		return;
	if (knot + 1 < SPECULATE_KNOTS && knot_rows(knot + 1) - rows < rows - knot_rows(knot))
		knot++;
	if (believed == 0 || cost->ns[knot] == 0) {
		cost->ns[knot] = (double)step_ns;
		return;
	}
	ratio = (double)step_ns / believed;
	ratio = ratio < 0.5 ? 0.5 : ratio > 2 ? 2 : ratio;
	for (uint32_t i = 0; i < SPECULATE_KNOTS; i++)
		cost->ns[i] *= 1 + (ratio - 1) * (i == knot ? near : far);
}

/* ---- how many ---- */

enum { BINS = 32 }; /* of probabilities */
static const double GAIN_LEAST = 1.03;

struct bin {
	uint32_t count, deepest;
	double   sum;
};

static uint32_t bin_of(double probability)
{
	uint32_t bin = (uint32_t)(probability * BINS);
	return bin < BINS ? bin : BINS - 1;
}

void speculate_choose(const struct speculate_cost *cost, uint32_t decodes, uint32_t prompts, double make_ns,
    struct speculate_offer *offers, uint32_t count, uint32_t room)
{
	struct bin bins[BINS] = { { 0, 0, 0 } };
	uint32_t   least = BINS, taken = 0, deepest = 0;
	double     tokens = decodes, best, plain_ns = speculate_cost_ns(cost, decodes + prompts);

	for (uint32_t i = 0; i < count; i++) {
		double probability = 1;

		for (uint32_t depth = 1; depth <= offers[i].most; depth++) {
			struct bin *bin = &bins[bin_of(probability *= (double)offers[i].rate)];
			bin->count++;
			bin->sum += probability;
			bin->deepest = depth > bin->deepest ? depth : bin->deepest;
		}
	}
	best = plain_ns > 0 ? decodes * GAIN_LEAST / plain_ns : 0;
	for (uint32_t bin = BINS; bin-- > 0 && taken < room && plain_ns > 0;) {
		uint32_t some = bins[bin].count < room - taken ? bins[bin].count : room - taken;
		double   rate;

		if (some == 0)
			continue;
		taken += some;
		tokens += bins[bin].sum * some / bins[bin].count;
		deepest = bins[bin].deepest > deepest ? bins[bin].deepest : deepest;
		rate = tokens / (speculate_cost_ns(cost, decodes + prompts + taken) + make_ns * deepest);
		if (rate > best) {
			best = rate;
			least = bin;
		}
	}
	for (uint32_t i = 0; i < count; i++) {
		double probability = (double)offers[i].rate;

		offers[i].take = 0;
		while (offers[i].take < offers[i].most && room > 0 && bin_of(probability) >= least) {
			probability *= (double)offers[i].rate;
			offers[i].take++;
			room--;
		}
	}
}
