/* random.h: reproducible numbers for tests: base/random.h and what only tests want. */
#ifndef PENSTOCK_TESTS_RANDOM_H
#define PENSTOCK_TESTS_RANDOM_H

#include "base/random.h"

/* Uniform in [−1, 1). */
static inline float random_float(struct random *random)
{
	return (float)((double)(random_u64(random) >> 11) * 0x1p-52 - 1);
}

#endif
