/* unicode.h: the four character classes by which pre-tokenizers split. */
#ifndef PENSTOCK_TEXT_UNICODE_H
#define PENSTOCK_TEXT_UNICODE_H

#include <stdint.h>

enum unicode_class {
	UNICODE_OTHER,  /* [^\s\p{L}\p{N}] */
	UNICODE_LETTER, /* \p{L} */
	UNICODE_NUMBER, /* \p{N} */
	UNICODE_SPACE   /* \s: property White_Space */
};

enum unicode_class unicode_class_of(uint32_t code_point);

#endif
