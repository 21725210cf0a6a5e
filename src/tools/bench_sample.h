/* bench_sample.h: the sampler alone, for `penstock bench kernels --sample`. */
#ifndef PENSTOCK_TOOLS_BENCH_SAMPLE_H
#define PENSTOCK_TOOLS_BENCH_SAMPLE_H

#include "base/status.h"
#include "model/backend.h"

/* Prints a table of draws × distributions × rows, of ROWS = 1, 16, 64 or 256 alone where it is not 0.  BANDWIDTH: bytes a
 * second that the device reads, 0 = unknown.  Takes the scratch of B, which has none yet; STATUS_NOMEM and what its
 * operations return, with words. */
enum status bench_sample(struct backend *b, uint32_t rows, double bandwidth, struct error *error);

#endif
