/* sim_histogram.h: percentiles of very many durations in little memory: 128 bins for every power of two, so a percentile is
 * right within 0.4 %.  Bins of a power of two are allocated when the first value falls into it. */
#ifndef PENSTOCK_TOOLS_SIM_HISTOGRAM_H
#define PENSTOCK_TOOLS_SIM_HISTOGRAM_H

#include <stdbool.h>
#include <stdint.h>

enum { SIM_OCTAVES = 48, SIM_BINS = 128 };

struct sim_histogram {
	uint64_t  count;
	uint64_t *octaves[SIM_OCTAVES]; /* [SIM_BINS] each, or NULL */
};

void sim_histogram_free(struct sim_histogram *histogram);
/* Values beyond 2^54 count as that.  False when there is no memory. */
bool sim_histogram_add(struct sim_histogram *histogram, uint64_t value);
bool sim_histogram_merge(struct sim_histogram *to, const struct sim_histogram *from);
/* The smallest value that at least SHARE of all are no larger than; 0 when there are none. */
uint64_t sim_histogram_percentile(const struct sim_histogram *histogram, double share);

#endif
