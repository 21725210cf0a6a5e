/* tokenizer.h: text → token ids, as the model's own tokenizer file says, whatever its format.
 *
 * Text reaches the tokenizer as spans with provenance: only template literals may produce control tokens, the data of a
 * message never does (its "<|im_end|>" is ten characters of text).  Added tokens that are text (VOCAB_USER) are recognised in
 * data too, as the reference does.
 *
 * Reference: the `tokenizers` library 0.23 for tokenizer.json, SentencePiece for tokenizer.model.
 */
#ifndef PENSTOCK_TEXT_TOKENIZER_H
#define PENSTOCK_TEXT_TOKENIZER_H

#include "base/status.h"
#include "file/gguf.h"
#include "text/token_list.h"
#include "vocab/token_file.h"
#include "vocab/vocab.h"

struct tokenizer; /* opaque, immutable after load */

struct text_span {
	const char *bytes;
	size_t      len;
	bool        literal; /* written by the template: special tokens in it are recognised */
};

/* Refuses components it does not implement exactly, by name.  FILE may go afterwards. */
enum status tokenizer_from_file(const struct token_file *file, struct tokenizer **ret, struct error *error);
/* The same from GGUF metadata; VOCAB, of the same file, says which tokenizer is meant. */
enum status tokenizer_from_gguf(const struct gguf *gguf, const struct vocab *vocab, struct tokenizer **ret, struct error *error);
void        tokenizer_free(struct tokenizer *tokenizer);
/* Tells VOCAB, of the same FILE and not in use yet, how added tokens that the normalizer changes are shown. */
enum status tokenizer_respell(const struct tokenizer *tokenizer, const struct token_file *file, struct vocab *vocab,
    struct error *error);

/* Appends the ids of the joined spans to *list, which is as before on failure.  Between special tokens the spans are one text
 * for normalizer and pre-tokenizer, whatever their provenance: so the ids are those of the whole prompt.  Bytes that are not
 * UTF-8 are encoded byte by byte where the vocabulary is byte-level and read by a hand-written split, elsewhere each maximal
 * ill-formed part is U+FFFD; what the vocabulary has no token for is left out where it has no unknown token, as the reference
 * does.  STATUS_LIMIT (with the count so far in the message) when *list would pass MAX_TOKENS; n log n in the worst case.
 * Working memory: a copy of the text, and 32 bytes per byte of the longest piece. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const struct text_span *spans, size_t span_count,
    size_t max_tokens, struct token_list *list, struct error *error);

/* The ids that stand before and behind a text when its special tokens are asked for (post-processor); owned by the tokenizer. */
const int32_t *tokenizer_before(const struct tokenizer *tokenizer, size_t *ret_count);
const int32_t *tokenizer_behind(const struct tokenizer *tokenizer, size_t *ret_count);

#endif
