/* bpe.h: byte-pair encoding of one piece of text. */
#ifndef PENSTOCK_TEXT_BPE_H
#define PENSTOCK_TEXT_BPE_H

#include "base/status.h"
#include "text/token_list.h"
#include "vocab/token_file.h"
#include "vocab/token_index.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BPE_MERGES_MAX = 1 << 23, BPE_FEW = 96 };

struct bpe_merge {
	uint32_t left, right; /* ids */
	uint32_t rank;        /* lower merges first; BPE_NONE: an empty table slot */
	uint32_t merged;      /* id */
};
#define BPE_NONE UINT32_MAX

/* The rules, immutable after loading. */
struct bpe {
	int32_t           byte_ids[256]; /* of a byte-level vocabulary, or of <0xXX>; −1: there is none */
	struct bpe_merge *table;         /* owned; open addressing, at most two thirds full */
	uint32_t          mask;          /* slots − 1 */
	uint64_t         *filter;        /* owned; a bit for each rule: most pairs have none, and this lies nearer than the table */
	uint64_t         *byte_pairs;    /* owned, [256][256] or NULL: rank << 32 | merged of two bytes; all ones: they do not merge */
	size_t            longest;       /* bytes of the longest token */
	struct bpe_merge *controls;      /* owned; results that must not leave the model, sorted: they are taken apart again */
	size_t            control_count;
	bool              lossy;         /* some bytes have no token: a text may have fewer tokens than its length says */

	/* Pieces that are characters, not bytes. */
	bool                      characters;
	const struct token_index *index; /* borrowed: spelling → id */
	bool                      byte_fallback, fuse_unk;
	size_t                    symbols_per_byte; /* at most so many come of one byte on the way in */
	int32_t                   unk; /* −1: unknown characters are left out */
	char                      prefix[TOKEN_FILE_AFFIX_MAX + 1], suffix[TOKEN_FILE_AFFIX_MAX + 1];
};

/* Room for MERGES rules. */
enum status bpe_init(struct bpe *bpe, size_t merges);
void        bpe_free(struct bpe *bpe);
/* After the last rule and the byte_ids, of a vocabulary that works on bytes and has a token for each. */
enum status bpe_index_bytes(struct bpe *bpe);

/* STATUS_INVALID: the pair is there already; with REPLACE its rule is replaced.  STATUS_LIMIT: the pairs collide beyond
 * reason, the file is crafted. */
enum status bpe_add(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged, bool replace);

/* Of the pair's rule, BPE_NONE when there is none. */
uint32_t bpe_rank(const struct bpe *bpe, uint32_t left, uint32_t right);

/* MERGED is a control token: where merging would give it, its parts are given. */
enum status bpe_add_control(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t merged);

/* Working memory of one encoding, grown to the longest piece (32 bytes per byte of it). */
struct bpe_scratch {
	struct bpe_symbol *symbols;
	uint64_t          *heap;
	size_t             capacity;
};
void bpe_scratch_free(struct bpe_scratch *scratch);

/* Appends the ids of PIECE to LIST, which may grow to MAX_TOKENS: STATUS_LIMIT beyond.  Bytes the vocabulary cannot express
 * are left out, as the reference does.  O(n log n). */
enum status bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *piece, size_t len, size_t max_tokens,
    struct token_list *list);

#endif
