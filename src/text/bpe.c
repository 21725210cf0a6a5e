/* bpe.c: owns the merge table and the merging of one piece.  Does not split text and knows no special tokens.
 *
 * A piece starts as one symbol per byte in a doubly linked list.  A binary heap holds one entry per mergeable neighbour
 * pair, ordered by (rank, place); the smallest is merged, its two new neighbour pairs are pushed.  A symbol remembers the
 * rank of the pair it begins, so an entry is stale exactly when its rank is no longer that one.  Each merge removes a
 * symbol and pushes at most two entries: n bytes cost O(n log n), whatever they are.
 *
 * Invariant: heap entries never exceed twice the symbols (one per pair at the start, each merge pops one and pushes two).
 */
#include "text/bpe.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

struct bpe_symbol {
	uint32_t id;
	uint32_t rank;       /* of the pair (this, next); BPE_NONE when it does not merge */
	uint32_t prev, next; /* BPE_NONE at the ends */
};

/* A lookup that would pass more slots than this means a table built to be slow; honest ones stay below 50. */
enum { PROBES_MAX = 256, TOKENS_START = 256 };

static uint32_t slot_of(const struct bpe *bpe, uint32_t left, uint32_t right)
{
	uint64_t key = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(key >> 32) & bpe->mask;
}

enum status bpe_init(struct bpe *bpe, size_t merges)
{
	size_t slots = 16;

	if (merges > BPE_MERGES_MAX)
		return STATUS_LIMIT;
	while (slots < merges * 2 + 1)
		slots *= 2;
	bpe->table = malloc(slots * sizeof *bpe->table);
	if (!bpe->table)
		return STATUS_NOMEM;
	for (size_t i = 0; i < slots; i++)
		bpe->table[i].rank = BPE_NONE;
	bpe->mask = (uint32_t)(slots - 1);
	for (int i = 0; i < 256; i++)
		bpe->byte_ids[i] = -1;
	bpe->longest = 1;
	return STATUS_OK;
}

void bpe_free(struct bpe *bpe)
{
	free(bpe->table);
	bpe->table = NULL;
}

enum status bpe_add(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged)
{
	uint32_t slot = slot_of(bpe, left, right);

	for (int probes = 0; bpe->table[slot].rank != BPE_NONE; probes++) {
		if (bpe->table[slot].left == left && bpe->table[slot].right == right)
			return STATUS_INVALID;
		if (probes == PROBES_MAX)
			return STATUS_LIMIT;
		slot = (slot + 1) & bpe->mask;
	}
	bpe->table[slot] = (struct bpe_merge){ left, right, rank, merged };
	return STATUS_OK;
}

static const struct bpe_merge *find(const struct bpe *bpe, uint32_t left, uint32_t right)
{
	for (uint32_t slot = slot_of(bpe, left, right);; slot = (slot + 1) & bpe->mask) {
		const struct bpe_merge *merge = &bpe->table[slot];
		if (merge->rank == BPE_NONE)
			return NULL;
		if (merge->left == left && merge->right == right)
			return merge;
	}
}

void bpe_scratch_free(struct bpe_scratch *scratch)
{
	free(scratch->symbols);
	free(scratch->heap);
	*scratch = (struct bpe_scratch){ 0 };
}

static enum status reserve(struct bpe_scratch *scratch, size_t count)
{
	size_t capacity = scratch->capacity ? scratch->capacity : 64, bytes;

	if (count <= scratch->capacity)
		return STATUS_OK;
	while (capacity < count)
		capacity *= 2; /* count < 2³², see bpe_encode */
	if (!checked_mul_size(capacity, 2 * sizeof *scratch->heap, &bytes))
		return STATUS_LIMIT;
	bpe_scratch_free(scratch);
	scratch->symbols = malloc(capacity * sizeof *scratch->symbols);
	scratch->heap = malloc(bytes);
	if (!scratch->symbols || !scratch->heap) {
		bpe_scratch_free(scratch);
		return STATUS_NOMEM;
	}
	scratch->capacity = capacity;
	return STATUS_OK;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t entry)
{
	size_t at = (*count)++;

	while (at > 0) {
		size_t parent = (at - 1) / 2;
		if (heap[parent] <= entry)
			break;
		heap[at] = heap[parent];
		at = parent;
	}
	heap[at] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count)
{
	uint64_t top = heap[0], last = heap[--*count];
	size_t   at = 0;

	for (;;) {
		size_t child = 2 * at + 1;
		if (child >= *count)
			break;
		if (child + 1 < *count && heap[child + 1] < heap[child])
			child++;
		if (last <= heap[child])
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = last;
	return top;
}

/* Looks up the pair that starts at symbol AT, remembers its rank and pushes it. */
static void push_pair(const struct bpe *bpe, struct bpe_scratch *scratch, size_t *heap_count, uint32_t at)
{
	struct bpe_symbol      *symbol = &scratch->symbols[at];
	const struct bpe_merge *merge =
	    symbol->next == BPE_NONE ? NULL : find(bpe, symbol->id, scratch->symbols[symbol->next].id);

	symbol->rank = merge ? merge->rank : BPE_NONE;
	if (merge)
		heap_push(scratch->heap, heap_count, (uint64_t)merge->rank << 32 | at);
}

static void merge_all(const struct bpe *bpe, struct bpe_scratch *scratch, size_t count)
{
	struct bpe_symbol *symbols = scratch->symbols;
	size_t             heap_count = 0;

	for (size_t i = 0; i < count; i++)
		push_pair(bpe, scratch, &heap_count, (uint32_t)i);
	while (heap_count) {
		uint64_t           entry = heap_pop(scratch->heap, &heap_count);
		uint32_t           at = (uint32_t)entry;
		struct bpe_symbol *symbol = &symbols[at], *gone;

		if (symbol->rank != entry >> 32)
			continue; /* one of the two was merged with somebody else meanwhile */
		gone = &symbols[symbol->next];
		symbol->id = find(bpe, symbol->id, gone->id)->merged;
		symbol->next = gone->next;
		gone->rank = BPE_NONE; /* its own entry, if any, is stale now */
		if (symbol->next != BPE_NONE)
			symbols[symbol->next].prev = at;
		push_pair(bpe, scratch, &heap_count, at);
		if (symbol->prev != BPE_NONE)
			push_pair(bpe, scratch, &heap_count, symbol->prev);
	}
}

enum status bpe_emit(struct token_list *list, size_t max_tokens, int32_t id)
{
	if (list->count >= max_tokens)
		return STATUS_LIMIT;
	if (list->count == list->capacity) {
		size_t   capacity = list->capacity ? list->capacity : TOKENS_START / 2, bytes;
		int32_t *ids;
		if (!checked_mul_size(capacity, 2, &capacity) || !checked_mul_size(capacity, sizeof *ids, &bytes))
			return STATUS_LIMIT;
		ids = realloc(list->ids, bytes);
		if (!ids)
			return STATUS_NOMEM;
		list->ids = ids;
		list->capacity = capacity;
	}
	list->ids[list->count++] = id;
	return STATUS_OK;
}

enum status bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *piece, size_t len, size_t max_tokens,
    struct token_list *list)
{
	size_t      count = 0;
	enum status status;

	if (len == 1) {
		int32_t id = bpe->byte_ids[(unsigned char)piece[0]];
		return id < 0 ? STATUS_OK : bpe_emit(list, max_tokens, id);
	}
	for (size_t i = 0; i < len; i++)
		count += bpe->byte_ids[(unsigned char)piece[i]] >= 0;
	/* Refused before any memory is taken: at best every token is the longest one. */
	if (count >= BPE_NONE || list->count > max_tokens || count / bpe->longest > max_tokens - list->count)
		return STATUS_LIMIT;
	status = reserve(scratch, count);
	if (status)
		return status;
	count = 0;
	for (size_t i = 0; i < len; i++) {
		int32_t id = bpe->byte_ids[(unsigned char)piece[i]];
		if (id < 0)
			continue;
		scratch->symbols[count] = (struct bpe_symbol){ (uint32_t)id, BPE_NONE, (uint32_t)count - 1, (uint32_t)count + 1 };
		count++;
	}
	if (count == 0)
		return STATUS_OK;
	scratch->symbols[0].prev = BPE_NONE; /* as it is: 0 − 1 */
	scratch->symbols[count - 1].next = BPE_NONE;
	merge_all(bpe, scratch, count);
	for (uint32_t at = 0; at != BPE_NONE; at = scratch->symbols[at].next) {
		status = bpe_emit(list, max_tokens, (int32_t)scratch->symbols[at].id);
		if (status)
			return status;
	}
	return STATUS_OK;
}
