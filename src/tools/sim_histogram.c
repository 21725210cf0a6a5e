/* sim_histogram.c: owns bins and their memory.  Invariant: count is the sum of all bins. */
#include "tools/sim_histogram.h"

#include <math.h>
#include <stdlib.h>

enum { BINS_LOG2 = 7 };

/* Octave 0 holds 0 … 127 exactly; octave n ≥ 1 holds 2^(n + 6) … 2^(n + 7) − 1. */
static unsigned octave_of(uint64_t value)
{
	unsigned octave = value < SIM_BINS ? 0 : 63 - (unsigned)__builtin_clzll(value) - BINS_LOG2 + 1;

	return octave < SIM_OCTAVES ? octave : SIM_OCTAVES - 1;
}

static uint64_t middle(unsigned octave, unsigned bin)
{
	return octave == 0 ? bin : ((uint64_t)(SIM_BINS + bin) << (octave - 1)) + (UINT64_C(1) << (octave - 1)) / 2;
}

void sim_histogram_free(struct sim_histogram *histogram)
{
	for (unsigned i = 0; i < SIM_OCTAVES; i++)
		free(histogram->octaves[i]);
	*histogram = (struct sim_histogram){ .count = 0 };
}

static bool octave_there(struct sim_histogram *histogram, unsigned octave)
{
	if (!histogram->octaves[octave])
		histogram->octaves[octave] = calloc(SIM_BINS, sizeof **histogram->octaves);
	return histogram->octaves[octave] != NULL;
}

bool sim_histogram_add(struct sim_histogram *histogram, uint64_t value)
{
	unsigned octave = octave_of(value);
	uint64_t bin = octave == 0 ? value : (value >> (octave - 1)) - SIM_BINS;

	if (!octave_there(histogram, octave))
		return false;
	histogram->octaves[octave][bin < SIM_BINS ? bin : SIM_BINS - 1]++;
	histogram->count++;
	return true;
}

bool sim_histogram_merge(struct sim_histogram *to, const struct sim_histogram *from)
{
	for (unsigned octave = 0; octave < SIM_OCTAVES; octave++) {
		if (!from->octaves[octave])
			continue;
		if (!octave_there(to, octave))
			return false;
		for (unsigned bin = 0; bin < SIM_BINS; bin++)
			to->octaves[octave][bin] += from->octaves[octave][bin];
	}
	to->count += from->count;
	return true;
}

uint64_t sim_histogram_percentile(const struct sim_histogram *histogram, double share)
{
	uint64_t rank = (uint64_t)ceil(share * (double)histogram->count), seen = 0;

	if (histogram->count == 0)
		return 0;
	for (unsigned octave = 0; octave < SIM_OCTAVES; octave++)
		for (unsigned bin = 0; histogram->octaves[octave] && bin < SIM_BINS; bin++) {
			seen += histogram->octaves[octave][bin];
			if (seen >= (rank ? rank : 1))
				return middle(octave, bin);
		}
	return 0;
}
