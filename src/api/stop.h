/* stop.h: stop strings on the text of an answer, whatever pieces it comes in.
 *
 * The answer is cut exactly where a stop string begins.  The stop string that is complete first wins; of several that end
 * with the same byte, the longest.  Only bytes that may still become a stop string are held back.  The outcome depends on
 * the text alone, never on how it was split into tokens or calls.
 *
 * Tokens kept: the fewest leading tokens whose text covers what was kept.  A token whose text is cut in the middle counts;
 * one that holds nothing but (part of) the stop string does not, unless `include` is set.
 */
#ifndef PENSTOCK_API_STOP_H
#define PENSTOCK_API_STOP_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

enum { STOP_STRINGS_MAX = 16, STOP_BYTES_MAX = 256 };

struct stop_string; /* opaque: a string and how far it is matched */

struct stop_matcher {
	struct stop_string *strings; /* owned; NULL without stop strings */
	unsigned            count, longest;
	struct buf          pending;                     /* held bytes and, during a call, the new ones */
	uint32_t            held_tokens[STOP_BYTES_MAX]; /* per held byte: tokens up to the one that brought it */
	uint32_t            released_tokens;             /* the same for the last byte released */
	bool                matched;
	bool                include; /* what is kept ends with the stop string, not before it */
};

void stop_init(struct stop_matcher *matcher);
void stop_free(struct stop_matcher *matcher);

/* Adds a string of 1 to STOP_BYTES_MAX bytes: STATUS_LIMIT beyond STOP_STRINGS_MAX, STATUS_INVALID for other lengths. */
enum status stop_add(struct stop_matcher *matcher, const char *bytes, size_t len);

/* Takes the next text of the answer, brought by the token that makes TOKENS so far; appends to OUT what is safe to show.
 * On a match *ret_keep is set, matcher->matched becomes true, and later text is ignored. */
enum status stop_feed(struct stop_matcher *matcher, const char *text, size_t len, uint32_t tokens, struct buf *out,
    uint32_t *ret_keep);

/* Something that is not text of the answer came in between, up to token number TOKENS: no stop string reaches across it. */
enum status stop_gap(struct stop_matcher *matcher, uint32_t tokens, struct buf *out);

/* The text has ended: what was held back is shown after all. */
enum status stop_finish(struct stop_matcher *matcher, struct buf *out);

#endif
