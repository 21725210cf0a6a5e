/* expect.h: what programs of emulated tests share: a count of failures, random values, comparison with a reference. */
#ifndef PENSTOCK_TESTS_GPU_EXPECT_H
#define PENSTOCK_TESTS_GPU_EXPECT_H

#include "gpu/device.cuh"

#include <stdlib.h>

#include <vector>

static int failures;

/* CONDITION, or words and one failure more. */
#define expect(condition, ...)                                     \
	do {                                                       \
		if (!(condition)) {                                \
			failures++;                                \
			printf("%s:%d: ", __FILE__, __LINE__);     \
			printf(__VA_ARGS__);                       \
			printf("\n");                              \
		}                                                  \
	} while (0)

/* A launch without errors. */
#define expect_runs(error, ...)                                                    \
	do {                                                                       \
		const char *error_ = (error);                                      \
		expect(!error_, "%s (" #__VA_ARGS__ ")", error_ ? error_ : "");    \
	} while (0)

static inline uint32_t random_word(uint64_t *state)
{
	uint64_t z = *state += 0x9E3779B97F4A7C15ull;

	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ z >> 27) * 0x94D049BB133111EBull;
	return (uint32_t)(z >> 32);
}

/* Nearly normal, deviation 1. */
static inline float random_value(uint64_t *state)
{
	uint32_t h = random_word(state);

	return ((float)(h & 255) + (float)(h >> 8 & 255) + (float)(h >> 16 & 255) + (float)(h >> 24) - 510) / 147.8f;
}

/* |x − y| ≤ absolute + relative · |y|; a NaN is never close. */
static inline bool is_close(double x, double y, double absolute, double relative)
{
	return fabs(x - y) <= absolute + relative * fabs(y);
}

/* What tests of emulated kernels return: ThreadSanitizer does not know fibers. */
static inline int finish(const char *name)
{
	printf("%s: %d failure(s)\n", name, failures);
	return failures ? 1 : 0;
}
#if defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_THREAD_SANITIZER return 77
#else
#define SKIP_UNDER_THREAD_SANITIZER (void)0
#endif

#endif
