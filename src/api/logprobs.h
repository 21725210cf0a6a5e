/* logprobs.h: the log probabilities of an answer's tokens, from the time they come to the time they may be shown.
 *
 * Each token's entry is made at once, as JSON; a stop string may still take the token back, so entries wait until somebody
 * says how many tokens are certain.
 */
#ifndef PENSTOCK_API_LOGPROBS_H
#define PENSTOCK_API_LOGPROBS_H

#include "base/buf.h"
#include "model/backend.h"
#include "vocab/vocab.h"

struct logprobs {
	struct buf text;  /* entries, a comma before each */
	struct buf ends;  /* uint32_t each: where the entry ends in `text` */
	uint32_t   taken; /* entries given out: the first one that waits is this token's */
};

void logprobs_init(struct logprobs *logprobs, size_t max_bytes);
void logprobs_free(struct logprobs *logprobs);

/* Adds the entry of the next token, ID. */
enum status logprobs_add(struct logprobs *logprobs, const struct vocab *vocab, int32_t id, const struct sample_logprobs *from);

/* Appends {"content":[…],"refusal":null} with the entries that wait of the answer's first TOKENS tokens, or null when there
 * are none.  They go on waiting until logprobs_taken, so that a chunk that found no room can be written again. */
enum status logprobs_put(const struct logprobs *logprobs, uint32_t tokens, struct buf *out);
void        logprobs_taken(struct logprobs *logprobs, uint32_t tokens);

#endif
