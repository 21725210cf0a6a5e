/* random.h: reproducible numbers for generators, tools and tests.  Not for secrets, and not what sampling draws from.
 *
 * The whole state is one word, so that a stream can be started anywhere from a seed, and two streams with different seeds
 * are independent for every purpose here.  The distributions are the same on every machine up to the last digits of libm.
 */
#ifndef PENSTOCK_BASE_RANDOM_H
#define PENSTOCK_BASE_RANDOM_H

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

/* Uniform in [0, 1). */
static inline double random_unit(struct random *random) { return (double)(random_u64(random) >> 11) * 0x1p-53; }

/* A stream of its own for each pair (SEED, WHICH). */
static inline struct random random_stream(uint64_t seed, uint64_t which)
{
	struct random outer = { seed }, inner;

	inner.state = random_u64(&outer) ^ which * UINT64_C(0xD1342543DE82EF95);
	inner.state = random_u64(&inner);
	return inner;
}

/* A standard normal number. */
double random_normal(struct random *random);

/* The gamma distribution: mean shape × scale, variance shape × scale².  Shape 1 is the exponential distribution.  Both
 * above 0. */
double random_gamma(struct random *random, double shape, double scale);

#endif
