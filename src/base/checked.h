/* checked.h: arithmetic on sizes that come from outside.  Each but the divisor returns true and stores the result, or false
 * on overflow and stores nothing. */
#ifndef PENSTOCK_BASE_CHECKED_H
#define PENSTOCK_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool checked_add_size(size_t a, size_t b, size_t *ret)
{
	size_t sum;
	if (__builtin_add_overflow(a, b, &sum))
		return false;
	*ret = sum;
	return true;
}

static inline bool checked_mul_size(size_t a, size_t b, size_t *ret)
{
	size_t product;
	if (__builtin_mul_overflow(a, b, &product))
		return false;
	*ret = product;
	return true;
}

static inline bool checked_add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
	uint64_t sum;
	if (__builtin_add_overflow(a, b, &sum))
		return false;
	*ret = sum;
	return true;
}

static inline bool checked_mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
	uint64_t product;
	if (__builtin_mul_overflow(a, b, &product))
		return false;
	*ret = product;
	return true;
}

/* Rounds up to a multiple of a power of two; false on overflow or when ALIGNMENT is no power of two. */
static inline bool checked_align_up(uint64_t value, uint64_t alignment, uint64_t *ret)
{
	uint64_t sum;
	if (alignment == 0 || (alignment & (alignment - 1)) || !checked_add_u64(value, alignment - 1, &sum))
		return false;
	*ret = sum & ~(alignment - 1);
	return true;
}

/* Greatest common divisor; of a number and 0 that number. */
static inline uint64_t checked_gcd_u64(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

#endif
