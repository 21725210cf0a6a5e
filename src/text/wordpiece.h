/* wordpiece.h: WordPiece: the longest known beginning of a word, then the longest known continuation, … */
#ifndef PENSTOCK_TEXT_WORDPIECE_H
#define PENSTOCK_TEXT_WORDPIECE_H

#include "text/token_list.h"
#include "vocab/token_file.h"
#include "vocab/token_index.h"

struct wordpiece {
	const struct token_index *index; /* borrowed */
	char                      prefix[TOKEN_FILE_AFFIX_MAX + 1]; /* of continuations */
	size_t                    prefix_len, max_chars, longest;   /* bytes of the longest token */
	int32_t                   unk; /* −1: unknown words are left out */
};

/* A word with more than max_chars characters, or a part that is not known, is one unknown token. */
enum status wordpiece_encode(const struct wordpiece *wordpiece, const char *word, size_t len, size_t max_tokens,
    struct token_list *list);

#endif
