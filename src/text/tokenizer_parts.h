/* tokenizer_parts.h: the inside of struct tokenizer, shared by tokenizer.c and tokenizer_load.c only. */
#ifndef PENSTOCK_TEXT_TOKENIZER_PARTS_H
#define PENSTOCK_TEXT_TOKENIZER_PARTS_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/unigram.h"
#include "text/wordpiece.h"

enum { TOKENIZER_TEXT_MAX = 1 << 30, FRAME_MAX = 16 };

struct tokenizer {
	struct unicode      unicode;
	struct normalizer   normalizer;
	struct pretokenizer pretokenizer;
	enum token_model    model;
	char               *text;  /* owned: what the two indexes point to */
	struct token_index  index; /* spelling → id, of what the model may give for text */
	struct token_index  whole; /* of BPE: pieces that are one token */
	size_t              longest; /* bytes of the longest piece in it */
	struct bpe          bpe;
	struct wordpiece    wordpiece;
	struct unigram      unigram;
	struct added_set    raw, normalized; /* found before and after normalizing */
	struct added_set    verbatim;        /* SentencePiece's own symbols: its normalizer leaves them, a Unigram finds them itself */
	bool                whole_words;     /* pieces may be cut where U+2581 begins: no token crosses that */
	int32_t             before[FRAME_MAX], behind[FRAME_MAX];
	size_t              before_count, behind_count;
};

#endif
