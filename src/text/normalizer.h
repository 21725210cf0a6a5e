/* normalizer.h: the normalizer of a tokenizer: what is done to a text before it is split. */
#ifndef PENSTOCK_TEXT_NORMALIZER_H
#define PENSTOCK_TEXT_NORMALIZER_H

#include "base/buf.h"
#include "text/added.h"
#include "text/charsmap.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "vocab/token_file.h"

enum { NORMALIZER_STEPS_MAX = 32, NORMALIZER_TEXT_MAX = 1 << 30 };

enum normalizer_type {
	NORMALIZER_NFC, NORMALIZER_NFD, NORMALIZER_NFKC, NORMALIZER_NFKD, NORMALIZER_LOWERCASE, NORMALIZER_STRIP_ACCENTS,
	NORMALIZER_NMT, NORMALIZER_REPLACE, NORMALIZER_PREPEND, NORMALIZER_STRIP, NORMALIZER_BERT, NORMALIZER_PRECOMPILED,
	NORMALIZER_BYTE_LEVEL, NORMALIZER_SENTENCEPIECE
};

struct normalizer_step {
	enum normalizer_type type;
	bool                 left, right;                                /* STRIP */
	bool                 clean, chinese, accents, lowercase;         /* BERT */
	bool                 prefix, collapse;                           /* SENTENCEPIECE */
	char                *pattern, *content; /* owned; REPLACE of a string, PREPEND's content */
	size_t               pattern_len, content_len;
	struct regex        *regex;             /* owned; REPLACE of an expression */
	struct charsmap      map;               /* PRECOMPILED, SENTENCEPIECE */
};

struct normalizer {
	const struct unicode   *unicode;  /* borrowed */
	const struct added_set *verbatim; /* borrowed: tokens that SentencePiece's normalizer leaves as they are; NULL: none */
	struct normalizer_step steps[NORMALIZER_STEPS_MAX];
	size_t                 count;
};

/* Refuses by name what it does not know. */
enum status normalizer_init(struct normalizer *normalizer, const struct token_file *file, const struct unicode *unicode,
    struct error *error);
void        normalizer_free(struct normalizer *normalizer);

/* TEXT is well-formed UTF-8.  The result lies in TEXT itself or in one of the two buffers.  *HEAD (or NULL): so many bytes of
 * TEXT, whole characters, come from the very first character of a prompt; set to how many of the result do. */
enum status normalizer_apply(const struct normalizer *normalizer, const char *text, size_t len, struct buf scratch[2],
    size_t *head, const char **ret, size_t *ret_len);

#endif
