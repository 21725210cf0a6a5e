/* unicode.c: owns the class of every code point, Unicode 16.0.  The tables are ours and not a library's because token ids
 * depend on them: they must not change with the machine penstock runs on.  Invariant: the ranges ascend and are disjoint. */
#include "text/unicode.h"

#include <stddef.h>

static const struct range {
	uint32_t           first, last;
	enum unicode_class class;
} ranges[] = {
#define RANGE(class, first, last) { first, last, UNICODE_##class },
#include "text/unicode_ranges.def"
#undef RANGE
};

static int is_space(uint32_t c)
{
	return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
	       c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

enum unicode_class unicode_class_of(uint32_t code_point)
{
	size_t low = 0, high = sizeof ranges / sizeof ranges[0];

	if (is_space(code_point))
		return UNICODE_SPACE;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (code_point < ranges[middle].first)
			high = middle;
		else if (code_point > ranges[middle].last)
			low = middle + 1;
		else
			return ranges[middle].class;
	}
	return UNICODE_OTHER;
}
