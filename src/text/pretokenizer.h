/* pretokenizer.h: the pre-tokenizer of a tokenizer: cuts a normalized text into the pieces that the model sees. */
#ifndef PENSTOCK_TEXT_PRETOKENIZER_H
#define PENSTOCK_TEXT_PRETOKENIZER_H

#include "base/buf.h"
#include "text/regex.h"
#include "text/scanner.h"
#include "text/unicode.h"
#include "vocab/token_file.h"

enum { PRETOKENIZER_STEPS_MAX = 32 };

enum pretokenizer_type {
	PRETOKENIZER_SCANNER, PRETOKENIZER_REGEX, PRETOKENIZER_STRING, PRETOKENIZER_DIGITS, PRETOKENIZER_PUNCTUATION,
	PRETOKENIZER_WHITESPACE, PRETOKENIZER_WHITESPACE_SPLIT, PRETOKENIZER_METASPACE, PRETOKENIZER_BERT, PRETOKENIZER_BYTE_LEVEL
};

enum split_behavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_MERGED_WITH_PREVIOUS, SPLIT_MERGED_WITH_NEXT, SPLIT_CONTIGUOUS };
enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct pretokenizer_step {
	enum pretokenizer_type type;
	enum scanner           scanner;
	struct regex          *regex;   /* owned */
	char                  *pattern; /* owned: STRING, METASPACE's replacement */
	size_t                 pattern_len;
	enum split_behavior    behavior;
	bool                   invert, individual, split;
	enum prepend_scheme    scheme; /* METASPACE */
	bool                   prefix; /* BYTE_LEVEL: a space stands before every text */
	bool                   map;    /* BYTE_LEVEL that others follow: bytes become characters here */
};

struct pretokenizer {
	const struct unicode    *unicode; /* borrowed */
	struct pretokenizer_step steps[PRETOKENIZER_STEPS_MAX];
	size_t                   count;
	bool                     any_bytes;   /* every step takes text that is not UTF-8 */
	bool                     asks_first;  /* is a piece the first of a prompt?  It matters to some step */
};

/* Takes the pieces in order; a status other than OK stops. */
typedef enum status pretokenizer_sink(void *context, const char *piece, size_t len);

/* Refuses by name what it does not know.  BYTES: the model takes bytes where ByteLevel, the last step, would give characters. */
enum status pretokenizer_init(struct pretokenizer *pretokenizer, const struct token_file *file, const struct unicode *unicode,
    bool bytes, struct error *error);
void        pretokenizer_free(struct pretokenizer *pretokenizer);

/* So many bytes of TEXT as HEAD says come from the very first character of a prompt (none: 0).  Pieces are not empty. */
enum status pretokenizer_run(const struct pretokenizer *pretokenizer, const char *text, size_t len, size_t head,
    pretokenizer_sink *sink, void *context);

#endif
