/* scanner.h: the splits of the known tokenizer families, written by hand; tests/unit/test_scanner proves them equal to their
 * expressions. */
#ifndef PENSTOCK_TEXT_SCANNER_H
#define PENSTOCK_TEXT_SCANNER_H

#include "base/status.h"
#include "text/unicode.h"

#include <stdbool.h>
#include <stddef.h>

enum scanner {
	SCANNER_GPT2,     /* GPT-2 and its many heirs */
	SCANNER_CL100K_1, /* Qwen2 and 3: one number character at a time */
	SCANNER_CL100K_3, /* GPT-4, GLM-4 and 5, Llama 3: up to three */
	SCANNER_O200K,    /* GPT-4o */
	SCANNER_TEKKEN,   /* Mistral: as O200K without contractions, one number character at a time */
	SCANNER_COUNT
};

/* The scanner that does what EXPRESSION says; false when there is none. */
bool scanner_find(const char *expression, size_t len, enum scanner *ret);
const char *scanner_expression(enum scanner scanner);

/* Bytes of the first piece of TEXT (LEN ≥ 1), at least 1.  The end of TEXT is an end of text for look-ahead.  A byte that
 * is not part of well-formed UTF-8 is a piece of its own. */
size_t scanner_next(enum scanner scanner, const struct unicode *unicode, const char *text, size_t len);
/* All pieces of TEXT in order; a status other than OK of SINK stops. */
enum status scanner_split(enum scanner scanner, const struct unicode *unicode, const char *text, size_t len,
    enum status sink(void *context, const char *piece, size_t len), void *context);

#endif
