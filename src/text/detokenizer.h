/* detokenizer.h: token ids → text, one token at a time.
 *
 * Never emits half a character, never holds back more than 3 bytes, replaces each maximal ill-formed part by one U+FFFD;
 * joining all deltas equals decoding all ids at once.  Control tokens produce nothing.
 */
#ifndef PENSTOCK_TEXT_DETOKENIZER_H
#define PENSTOCK_TEXT_DETOKENIZER_H

#include "base/buf.h"
#include "vocab/vocab.h"

struct detokenizer {
	const struct vocab *vocab; /* borrowed */
	char     held[4];          /* proper prefix of a character */
	unsigned held_len;
	unsigned strip;            /* characters that may still be dropped from the beginning */
	bool     begun;            /* the next token is not the first */
	bool     with_special;     /* control tokens are text too */
};

void detokenizer_init(struct detokenizer *detokenizer, const struct vocab *vocab);
/* From now on control tokens give the text they are spelled by. */
void detokenizer_show_special(struct detokenizer *detokenizer);

/* Appends the text that ID completes (possibly none) to OUT. */
enum status detokenizer_push(struct detokenizer *detokenizer, int32_t id, struct buf *out);

/* End of the sequence: held bytes become U+FFFD. */
enum status detokenizer_finish(struct detokenizer *detokenizer, struct buf *out);

#endif
