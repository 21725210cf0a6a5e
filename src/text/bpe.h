/* bpe.h: byte-pair encoding of one piece of text. */
#ifndef PENSTOCK_TEXT_BPE_H
#define PENSTOCK_TEXT_BPE_H

#include "base/status.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BPE_MERGES_MAX = 1 << 21 };

struct bpe_merge {
	uint32_t left, right; /* ids */
	uint32_t rank;        /* lower merges first; BPE_NONE: an empty table slot */
	uint32_t merged;      /* id */
};
#define BPE_NONE UINT32_MAX

/* The rules, immutable after loading. */
struct bpe {
	int32_t           byte_ids[256]; /* −1: this vocabulary cannot express the byte */
	struct bpe_merge *table;         /* owned; open addressing, at most half full */
	uint32_t          mask;          /* slots − 1 */
	size_t            longest;       /* bytes of the longest token */
};

/* Room for MERGES rules. */
enum status bpe_init(struct bpe *bpe, size_t merges);
void        bpe_free(struct bpe *bpe);

/* STATUS_INVALID: the pair is there already.  STATUS_LIMIT: the pairs collide beyond reason, the file is crafted. */
enum status bpe_add(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);

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

/* Appends one id; STATUS_LIMIT when LIST has MAX_TOKENS already. */
enum status bpe_emit(struct token_list *list, size_t max_tokens, int32_t id);

#endif
