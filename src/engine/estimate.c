/* estimate.c: owns the histogram of answer lengths.  Does not know requests, models or time.
 *
 * Invariant: total is the sum of counts and never 0 after estimate_init. */
#include "engine/estimate.h"

#include <string.h>

/* Lengths below 16 have a bin each; above, every power of two has four. */
enum { SMALL = 16, SMALL_LOG2 = 4, PER_OCTAVE_LOG2 = 2, UNIT = 16 };

static unsigned log2_floor(uint32_t n) { return 31 - (unsigned)__builtin_clz(n); }

static unsigned bin_of(uint32_t n)
{
	unsigned octave;

	if (n < SMALL)
		return n;
	octave = log2_floor(n);
	return SMALL + ((octave - SMALL_LOG2) << PER_OCTAVE_LOG2) +
	    (n >> (octave - PER_OCTAVE_LOG2) & ((1u << PER_OCTAVE_LOG2) - 1));
}

/* The middle of a bin. */
static uint64_t bin_value(unsigned bin)
{
	unsigned octave, part;

	if (bin < SMALL)
		return bin;
	octave = SMALL_LOG2 + ((bin - SMALL) >> PER_OCTAVE_LOG2);
	part = (bin - SMALL) & ((1u << PER_OCTAVE_LOG2) - 1);
	return ((UINT64_C(1) << octave) + ((uint64_t)part << (octave - PER_OCTAVE_LOG2))) +
	    (UINT64_C(1) << (octave - PER_OCTAVE_LOG2)) / 2;
}

static void refresh(struct estimate *estimate)
{
	uint64_t sum = 0, count = 0;

	for (unsigned i = ESTIMATE_BINS; i-- > 0;) {
		uint64_t mean;

		sum += estimate->counts[i] * bin_value(i);
		count += estimate->counts[i];
		mean = count ? (sum + count / 2) / count : 0;
		estimate->beyond[i] = mean < UINT32_MAX ? (uint32_t)mean : UINT32_MAX;
	}
	estimate->stale = 0;
}

void estimate_init(struct estimate *estimate)
{
	memset(estimate, 0, sizeof *estimate);
	estimate->counts[bin_of(ESTIMATE_PRIOR)] = estimate->total = ESTIMATE_PRIOR_WEIGHT * UNIT;
	refresh(estimate);
}

void estimate_learn(struct estimate *estimate, uint32_t generated)
{
	estimate->counts[bin_of(generated)] += UNIT; /* units, so that halving does not round single requests away at once */
	estimate->total += UNIT;
	if (estimate->total > ESTIMATE_WINDOW * UNIT) {
		estimate->total = 0;
		for (unsigned i = 0; i < ESTIMATE_BINS; i++)
			estimate->total += estimate->counts[i] /= 2;
	}
	if (++estimate->stale >= ESTIMATE_FRESH || estimate->total < ESTIMATE_FRESH * ESTIMATE_FRESH * UNIT)
		refresh(estimate);
}

uint32_t estimate_tokens(const struct estimate *estimate, uint32_t max_new)
{
	uint64_t sum = 0, mean;

	for (unsigned i = 0; i < ESTIMATE_BINS; i++) {
		uint64_t value = bin_value(i);
		sum += estimate->counts[i] * (value < max_new ? value : max_new);
	}
	mean = (sum + estimate->total / 2) / estimate->total;
	if (mean > max_new)
		mean = max_new;
	return mean < 1 ? 1 : (uint32_t)mean;
}

uint32_t estimate_total(const struct estimate *estimate, uint32_t generated, uint32_t max_new)
{
	enum { STEP = 8, PART = 4 }; /* longer than all that was learned: it grows on */
	uint64_t total = estimate->beyond[bin_of(generated)];

	if (total <= generated)
		total = (uint64_t)generated + generated / PART + STEP;
	return total < max_new ? (uint32_t)total : max_new;
}
