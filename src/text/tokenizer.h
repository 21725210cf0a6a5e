/* tokenizer.h: text → token ids.  Byte-level BPE (Sennrich et al. 2016; byte mapping of GPT-2) from GGUF metadata.
 *
 * Text reaches the tokenizer as spans with provenance: only template literals may produce control tokens, the data of a
 * message never does (its "<|im_end|>" is ten characters of text).  Added tokens that are text (VOCAB_USER) are recognised in
 * data too, as the reference does.
 */
#ifndef PENSTOCK_TEXT_TOKENIZER_H
#define PENSTOCK_TEXT_TOKENIZER_H

#include "base/status.h"
#include "file/gguf.h"
#include "vocab/vocab.h"

struct tokenizer; /* opaque, immutable after load */

struct text_span {
	const char *bytes;
	size_t      len;
	bool        literal; /* written by the template: special tokens in it are recognised */
};

struct token_list {
	int32_t *ids; /* owned; free with token_list_free */
	size_t   count, capacity;
};
void token_list_free(struct token_list *list);

/* Refuses tokenizer models and pre-tokenizer types it does not implement exactly, by name.  VOCAB is borrowed and must
 * outlive the tokenizer. */
enum status tokenizer_from_gguf(const struct gguf *gguf, const struct vocab *vocab, struct tokenizer **ret, struct error *error);
void        tokenizer_free(struct tokenizer *tokenizer);

/* Appends the ids of the joined spans to *list, which is as before on failure.  Between special tokens the spans are one text
 * for the pre-tokenizer, whatever their provenance: so the ids are those of the whole prompt.  Bytes that are not UTF-8 are
 * encoded byte by byte; bytes the vocabulary has no token for are left out, as the reference does.  STATUS_LIMIT (with the
 * count so far in the message) when *list would pass MAX_TOKENS; n log n in the worst case.  Working memory: a copy of the
 * text, and 32 bytes per byte of the longest piece. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const struct text_span *spans, size_t span_count,
    size_t max_tokens, struct token_list *list, struct error *error);

#endif
