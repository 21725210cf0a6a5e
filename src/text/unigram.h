/* unigram.h: Unigram: of all ways to spell a text with known pieces, the most probable one (Kudo 2018; Viterbi). */
#ifndef PENSTOCK_TEXT_UNIGRAM_H
#define PENSTOCK_TEXT_UNIGRAM_H

#include "text/token_list.h"
#include "vocab/token_file.h"
#include "vocab/token_index.h"

struct unigram_node;

struct unigram {
	struct unigram_node      *nodes;  /* owned: a trie; the children of a node lie side by side, ordered by byte */
	uint32_t                  node_count;
	double                   *scores; /* owned, [model_size] */
	double                    unk_score;
	int32_t                   unk, byte_ids[256];
	bool                      byte_fallback;
	bool                      single; /* sums are rounded to single precision, as SentencePiece's are: it decides ties */
	const struct token_index *index;  /* borrowed */
};

enum status unigram_init(struct unigram *unigram, const struct token_file *file, const struct token_index *index,
    struct error *error);
void        unigram_free(struct unigram *unigram);

/* Appends the ids of PIECE, well-formed UTF-8.  24 bytes of working memory per byte. */
enum status unigram_encode(const struct unigram *unigram, const char *piece, size_t len, size_t max_tokens,
    struct token_list *list);

#endif
