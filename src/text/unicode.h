/* unicode.h: what the reference implementation takes each code point for (see make_unicode_ranges.py), and the normal forms,
 * which utf8proc computes.
 */
#ifndef PENSTOCK_TEXT_UNICODE_H
#define PENSTOCK_TEXT_UNICODE_H

#include "base/buf.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdint.h>

/* The class by which texts are split; in the low bits of the properties. */
enum unicode_class {
	UNICODE_OTHER,  /* none of these */
	UNICODE_UPPER,  /* \p{Lu} \p{Lt} */
	UNICODE_LOWER,  /* \p{Ll} */
	UNICODE_LETTER, /* \p{Lm} \p{Lo} */
	UNICODE_MARK,   /* \p{M} */
	UNICODE_NUMBER, /* \p{N} */
	UNICODE_SPACE,  /* \s: property White_Space */
	UNICODE_CLASSES
};

enum unicode_property {
	UNICODE_CLASS_MASK = 0x7,
	UNICODE_PUNCTUATION = 0x8, /* of Punctuation and BertPreTokenizer */
	UNICODE_NUMERIC = 0x10,    /* of Digits */
	UNICODE_WORD = 0x20,       /* \w of Whitespace and of single_word */
	UNICODE_ACCENT = 0x40,     /* StripAccents removes it */
	UNICODE_CONTROL = 0x80,    /* BertNormalizer's clean_text removes it */
	UNICODE_NONSPACING = 0x100 /* BertNormalizer's strip_accents removes it */
};

enum { UNICODE_BLOCK = 128, UNICODE_BLOCKS = 0x110000 / UNICODE_BLOCK };

/* A table of all properties: one look-up per character, no search.  About 100 KB, immutable. */
struct unicode {
	uint16_t *blocks; /* owned */
	uint16_t  index[UNICODE_BLOCKS];
};

enum status unicode_init(struct unicode *unicode);
void        unicode_free(struct unicode *unicode);

/* Of a code point ≤ 0x10ffff. */
static inline unsigned unicode_properties(const struct unicode *unicode, uint32_t code)
{
	return unicode->blocks[unicode->index[code / UNICODE_BLOCK] * (uint32_t)UNICODE_BLOCK + code % UNICODE_BLOCK];
}

static inline bool unicode_is_space(const struct unicode *unicode, uint32_t code)
{
	return (unicode_properties(unicode, code) & UNICODE_CLASS_MASK) == UNICODE_SPACE;
}

/* Full lower case of one code point: one or two of them; returns how many. */
unsigned unicode_lower(uint32_t code, uint32_t ret[2]);

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* Appends the normal form of TEXT, well-formed UTF-8, to OUT.  Linear but for runs of marks, which are limited (a run of a
 * million marks sorts in n log n). */
enum status unicode_normalize(const struct unicode *unicode, enum unicode_form form, const char *text, size_t len,
    struct buf *out);

#endif
