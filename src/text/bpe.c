/* bpe.c: owns the merge table and the merging of one piece.  Does not split text and knows no special tokens.
 *
 * A piece starts as one symbol per byte, or per character in vocabularies that are spelled in characters.
 *
 * Few symbols, the rule: three arrays (ids, ranks and results of the neighbour pairs).  The smallest rank is found by
 * looking at all of them, the pair is merged, the arrays close up: no pointers, and the whole piece lies in a few cache
 * lines.  Many symbols: a doubly linked list and a binary heap with one entry per mergeable neighbour pair, ordered by
 * (rank, place); the smallest is merged, its two new neighbour pairs are pushed.  A symbol remembers the rank of the pair it
 * begins, so an entry is stale exactly when its rank is no longer that one.  Each merge removes a symbol and pushes at most
 * two entries: n bytes cost O(n log n), whatever they are.
 *
 * Invariant: heap entries never exceed twice the symbols (one per pair at the start, each merge pops one and pushes two).
 */
#include "text/bpe.h"
#include "base/checked.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct bpe_symbol {
	uint32_t id;
	uint32_t rank;       /* of the pair (this, next); BPE_NONE when it does not merge */
	uint32_t prev, next; /* BPE_NONE at the ends */
};

/* A lookup that would pass more slots than this means a table built to be slow; honest ones stay below 50. */
enum { PROBES_MAX = 256, CONTROL_DEPTH_MAX = 64, FILTER_BITS = 1 << 21, BYTES = 256 };

static uint64_t hash_of(uint32_t left, uint32_t right)
{
	return ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
}

static uint32_t slot_of(const struct bpe *bpe, uint64_t hash) { return (uint32_t)(hash >> 32) & bpe->mask; }

static uint64_t *filter_of(const struct bpe *bpe, uint64_t hash, uint64_t *ret_bit)
{
	*ret_bit = UINT64_C(1) << (hash >> 43 & 63);
	return &bpe->filter[hash >> 49];
}

enum status bpe_init(struct bpe *bpe, size_t merges)
{
	size_t slots = 16;

	if (merges > BPE_MERGES_MAX)
		return STATUS_LIMIT;
	while (slots / 3 * 2 < merges + 1)
		slots *= 2;
	bpe->table = malloc(slots * sizeof *bpe->table);
	bpe->filter = calloc(FILTER_BITS / 64, sizeof *bpe->filter);
	if (!bpe->table || !bpe->filter)
		return STATUS_NOMEM;
	for (size_t i = 0; i < slots; i++)
		bpe->table[i].rank = BPE_NONE;
	bpe->mask = (uint32_t)(slots - 1);
	for (int i = 0; i < 256; i++)
		bpe->byte_ids[i] = -1;
	bpe->longest = bpe->symbols_per_byte = 1;
	return STATUS_OK;
}

void bpe_free(struct bpe *bpe)
{
	free(bpe->table);
	free(bpe->controls);
	free(bpe->filter);
	free(bpe->byte_pairs);
	bpe->filter = bpe->byte_pairs = NULL;
	bpe->table = NULL;
	bpe->controls = NULL;
	bpe->control_count = 0;
}

/* Of the first control token that is not below ID. */
static size_t control_place(const struct bpe *bpe, uint32_t id)
{
	size_t at = 0;

	for (size_t end = bpe->control_count; at < end;) {
		size_t middle = at + (end - at) / 2;

		if (bpe->controls[middle].merged < id)
			at = middle + 1;
		else
			end = middle;
	}
	return at;
}

enum status bpe_add_control(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t merged)
{
	struct bpe_merge *controls;
	size_t            at = control_place(bpe, merged);

	if (at < bpe->control_count && bpe->controls[at].merged == merged)
		return STATUS_OK; /* one way to take it apart is enough */
	controls = realloc(bpe->controls, (bpe->control_count + 1) * sizeof *controls);
	if (!controls)
		return STATUS_NOMEM;
	bpe->controls = controls;
	memmove(controls + at + 1, controls + at, (bpe->control_count++ - at) * sizeof *controls);
	controls[at] = (struct bpe_merge){ left, right, 0, merged };
	return STATUS_OK;
}

enum status bpe_add(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged, bool replace)
{
	uint64_t hash = hash_of(left, right), bit, *word = filter_of(bpe, hash, &bit);
	uint32_t slot = slot_of(bpe, hash);

	for (int probes = 0; bpe->table[slot].rank != BPE_NONE; probes++) {
		if (bpe->table[slot].left == left && bpe->table[slot].right == right) {
			if (replace)
				bpe->table[slot] = (struct bpe_merge){ left, right, rank, merged };
			return replace ? STATUS_OK : STATUS_INVALID;
		}
		if (probes == PROBES_MAX)
			return STATUS_LIMIT;
		slot = (slot + 1) & bpe->mask;
	}
	bpe->table[slot] = (struct bpe_merge){ left, right, rank, merged };
	*word |= bit;
	return STATUS_OK;
}

static const struct bpe_merge *find(const struct bpe *bpe, uint32_t left, uint32_t right)
{
	uint64_t hash = hash_of(left, right), bit;

	if (!(*filter_of(bpe, hash, &bit) & bit))
		return NULL;
	for (uint32_t slot = slot_of(bpe, hash);; slot = (slot + 1) & bpe->mask) {
		const struct bpe_merge *merge = &bpe->table[slot];
		if (merge->rank == BPE_NONE)
			return NULL;
		if (merge->left == left && merge->right == right)
			return merge;
	}
}

uint32_t bpe_rank(const struct bpe *bpe, uint32_t left, uint32_t right)
{
	const struct bpe_merge *merge = find(bpe, left, right);
	return merge ? merge->rank : BPE_NONE;
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

/* Symbols on the way in: of a byte-level piece one per byte that has a token. */
static size_t byte_symbols(const struct bpe *bpe, const char *piece, size_t len, uint32_t *ids)
{
	size_t count = 0;

	for (size_t i = 0; i < len; i++) {
		int32_t id = bpe->byte_ids[(unsigned char)piece[i]];
		ids[count] = (uint32_t)id;
		count += id >= 0;
	}
	return count;
}

struct unknown {
	bool pending;
};

static void flush_unknown(const struct bpe *bpe, struct unknown *unknown, uint32_t *ids, size_t *count)
{
	if (unknown->pending)
		ids[(*count)++] = (uint32_t)bpe->unk;
	unknown->pending = false;
}

/* One symbol per character; what has no token becomes its bytes, or the unknown token, or nothing.  An unknown character waits
 * for the next known one, as in the reference: fallback bytes in between overtake it. */
static size_t char_symbols(const struct bpe *bpe, const char *piece, size_t len, uint32_t *ids)
{
	struct unknown unknown = { false };
	size_t         count = 0, prefix = strlen(bpe->prefix), suffix = strlen(bpe->suffix);

	for (size_t at = 0; at < len;) {
		char     spelled[2 * TOKEN_FILE_AFFIX_MAX + 4];
		uint32_t code;
		int      bytes = utf8_decode(piece + at, len - at, &code);
		size_t   n = bytes > 0 ? (size_t)bytes : 1, from = at > 0 ? prefix : 0, to = at + n == len ? suffix : 0;
		int32_t  id;
		bool     fallback = bpe->byte_fallback;

		if (from)
			memcpy(spelled, bpe->prefix, from);
		memcpy(spelled + from, piece + at, n);
		if (to)
			memcpy(spelled + from + n, bpe->suffix, to);
		id = token_index_find(bpe->index, spelled, from + n + to);
		at += n;
		if (id >= 0) {
			flush_unknown(bpe, &unknown, ids, &count);
			ids[count++] = (uint32_t)id;
			continue;
		}
		for (size_t i = 0; fallback && i < from + n + to; i++)
			fallback = bpe->byte_ids[(unsigned char)spelled[i]] >= 0;
		if (fallback) {
			for (size_t i = 0; i < from + n + to; i++)
				ids[count++] = (uint32_t)bpe->byte_ids[(unsigned char)spelled[i]];
			continue;
		}
		if (bpe->unk < 0)
			continue;
		if (!bpe->fuse_unk)
			flush_unknown(bpe, &unknown, ids, &count);
		unknown.pending = true;
	}
	flush_unknown(bpe, &unknown, ids, &count);
	return count;
}

/* Place of the smallest of COUNT ranks, the first of equal ones. */
static size_t smallest(const uint32_t *ranks, size_t count)
{
	size_t   best = 0;
	uint32_t least = ranks[0];

	for (size_t i = 1; i < count; i++)
		if (ranks[i] < least) {
			least = ranks[i];
			best = i;
		}
	return best;
}

static void look_up(const struct bpe *bpe, const uint32_t *ids, uint32_t *ranks, uint32_t *merged, size_t at)
{
	const struct bpe_merge *merge = find(bpe, ids[at], ids[at + 1]);

	ranks[at] = merge ? merge->rank : BPE_NONE;
	merged[at] = merge ? merge->merged : 0;
}

enum status bpe_index_bytes(struct bpe *bpe)
{
	uint64_t *pairs = malloc(BYTES * BYTES * sizeof *pairs);

	if (!pairs)
		return STATUS_NOMEM;
	for (unsigned i = 0; i < BYTES * BYTES; i++) {
		const struct bpe_merge *merge = find(bpe, (uint32_t)bpe->byte_ids[i / BYTES], (uint32_t)bpe->byte_ids[i % BYTES]);
		pairs[i] = merge ? (uint64_t)merge->rank << 32 | merge->merged : UINT64_MAX;
	}
	free(bpe->byte_pairs);
	bpe->byte_pairs = pairs;
	return STATUS_OK;
}

/* Merges at most BPE_FEW symbols in place; returns how many are left.  PIECE: their bytes, where byte_pairs are there. */
static size_t merge_few(const struct bpe *bpe, const char *piece, uint32_t *ids, size_t count)
{
	uint32_t ranks[BPE_FEW], merged[BPE_FEW];
	size_t   pairs = count - 1;

	for (size_t i = 0; i < pairs; i++) {
		if (bpe->byte_pairs) {
			uint64_t pair = bpe->byte_pairs[(unsigned char)piece[i] * BYTES + (unsigned char)piece[i + 1]];
			ranks[i] = (uint32_t)(pair >> 32);
			merged[i] = (uint32_t)pair;
		} else {
			look_up(bpe, ids, ranks, merged, i);
		}
	}
	while (pairs) {
		size_t at = smallest(ranks, pairs);
		if (ranks[at] == BPE_NONE)
			break;
		ids[at] = merged[at];
		for (size_t i = at + 1; i < pairs; i++) {
			ids[i] = ids[i + 1];
			ranks[i - 1] = ranks[i];
			merged[i - 1] = merged[i];
		}
		pairs--;
		if (at < pairs)
			look_up(bpe, ids, ranks, merged, at);
		if (at > 0)
			look_up(bpe, ids, ranks, merged, at - 1);
	}
	return pairs + 1;
}

static const struct bpe_merge *find_control(const struct bpe *bpe, uint32_t id)
{
	size_t at = control_place(bpe, id);

	return at < bpe->control_count && bpe->controls[at].merged == id ? &bpe->controls[at] : NULL;
}

/* Appends ID, or what it is made of.  DEPTH: a crafted vocabulary could make a token of itself. */
static enum status emit(const struct bpe *bpe, size_t max_tokens, struct token_list *list, uint32_t id, unsigned depth)
{
	const struct bpe_merge *control = bpe->control_count ? find_control(bpe, id) : NULL;
	enum status             status;

	if (!control)
		return token_list_add(list, max_tokens, (int32_t)id);
	if (depth == CONTROL_DEPTH_MAX)
		return STATUS_OK;
	status = emit(bpe, max_tokens, list, control->left, depth + 1);
	return status ? status : emit(bpe, max_tokens, list, control->right, depth + 1);
}

static enum status encode_many(const struct bpe *bpe, struct bpe_scratch *scratch, const char *piece, size_t len,
    size_t max_tokens, struct token_list *list)
{
	uint32_t   *ids;
	size_t      count;
	enum status status = reserve(scratch, len * bpe->symbols_per_byte);

	if (status)
		return status;
	ids = (uint32_t *)scratch->heap; /* room for 2 · len entries of 8 bytes; free until the merging begins */
	count = bpe->characters ? char_symbols(bpe, piece, len, ids) : byte_symbols(bpe, piece, len, ids);
	if (count == 0)
		return STATUS_OK;
	for (size_t i = 0; i < count; i++)
		scratch->symbols[i] = (struct bpe_symbol){ ids[i], BPE_NONE, (uint32_t)i - 1, (uint32_t)i + 1 };
	scratch->symbols[0].prev = BPE_NONE; /* as it is: 0 − 1 */
	scratch->symbols[count - 1].next = BPE_NONE;
	merge_all(bpe, scratch, count);
	for (uint32_t at = 0; at != BPE_NONE && !status; at = scratch->symbols[at].next)
		status = emit(bpe, max_tokens, list, scratch->symbols[at].id, 0);
	return status;
}

enum status bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *piece, size_t len, size_t max_tokens,
    struct token_list *list)
{
	uint32_t    ids[BPE_FEW + 1];
	size_t      count;
	enum status status = STATUS_OK;

	if (len * bpe->symbols_per_byte <= BPE_FEW) {
		count = bpe->characters ? char_symbols(bpe, piece, len, ids) : byte_symbols(bpe, piece, len, ids);
		if (count > 1)
			count = merge_few(bpe, piece, ids, count);
		for (size_t i = 0; i < count && !status; i++)
			status = emit(bpe, max_tokens, list, ids[i], 0);
		return status;
	}
	/* Refused before any memory is taken: at best every token is the longest one. */
	if (len >= BPE_NONE / bpe->symbols_per_byte || list->count > max_tokens ||
	    (!bpe->characters && bpe->unk < 0 && len / bpe->longest > max_tokens - list->count && !bpe->lossy))
		return STATUS_LIMIT;
	return encode_many(bpe, scratch, piece, len, max_tokens, list);
}
