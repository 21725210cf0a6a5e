/* random.h: reproducible numbers for tests. */
#ifndef PENSTOCK_TESTS_RANDOM_H
#define PENSTOCK_TESTS_RANDOM_H

#include <stdint.h>

struct random {
	uint64_t state; /* any */
};

/* SplitMix64. */
static inline uint64_t random_u64(struct random *random)
{
	uint64_t z = random->state += UINT64_C(0x9E3779B97F4A7C15);

	z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
	return z ^ z >> 31;
}

static inline uint32_t random_below(struct random *random, uint32_t bound) { return (uint32_t)(random_u64(random) % bound); }

/* Uniform in [−1, 1). */
static inline float random_float(struct random *random)
{
	return (float)((double)(random_u64(random) >> 11) * 0x1p-52 - 1);
}

#endif
