/* added.h: tokens that are found in a text before the model sees it. */
#ifndef PENSTOCK_TEXT_ADDED_H
#define PENSTOCK_TEXT_ADDED_H

#include "text/unicode.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_token {
	char    *bytes; /* owned */
	size_t   len;
	int32_t  id;
	bool     control; /* only the template may write it */
	bool     single_word, lstrip, rstrip;
};

/* A set of them.  Immutable after added_finish. */
struct added_set {
	struct added_token *tokens; /* owned; sorted by bytes */
	size_t              count, capacity;
	bool                first_literal[256], first_data[256]; /* bytes that begin a token there */
	int                 only_literal, only_data;             /* the one byte that does; −1: several or none */
};

enum status added_add(struct added_set *set, const char *bytes, size_t len, const struct added_token *like);
/* Sorts.  Of tokens that are spelled alike (normalizing may do that) the first stays. */
void added_finish(struct added_set *set);
void added_free(struct added_set *set);

/* Bytes of the longest token that TEXT begins with, 0 when there is none. */
size_t added_length(const struct added_set *set, const char *text, size_t len);

struct added_match {
	const struct added_token *token;
	size_t                    start, end; /* with the white space that lstrip and rstrip take */
};

/* The next token in TEXT at or behind *AT, which moves behind what was looked at; FROM is where the last match ended.  WHOLE
 * bytes are there to be looked at by strip and single_word, matches begin and end before LEN.  LITERAL: written by the template.
 * False when there is none. */
bool added_find(const struct added_set *set, const struct unicode *unicode, const char *text, size_t len, size_t whole,
    bool literal, size_t from, size_t *at, struct added_match *ret);

#endif
