/* pretokenizer.h: cuts text into the pieces inside which byte-pair merges happen. */
#ifndef PENSTOCK_TEXT_PRETOKENIZER_H
#define PENSTOCK_TEXT_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

enum pretokenizer {
	PRETOKENIZER_GPT2,  /* the expression of GPT-2, see pretokenizer.c */
	PRETOKENIZER_SMOLLM /* every number character alone; between them as GPT-2 */
};

/* By the name in tokenizer.ggml.pre; false when it is not implemented exactly. */
bool pretokenizer_find(const char *name, size_t len, enum pretokenizer *ret);

/* Bytes of the first piece of TEXT (LEN ≥ 1), at least 1.  The end of TEXT is an end of text for look-ahead.  A byte that
 * is not part of well-formed UTF-8 is a piece of its own. */
size_t pretokenizer_next(enum pretokenizer type, const char *text, size_t len);

#endif
