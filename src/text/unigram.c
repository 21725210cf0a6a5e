/* unigram.c: owns the trie of pieces and the search for the best path.
 *
 * Forward: for every character place that can be reached, all pieces that begin there are tried; a place remembers the best
 * way to reach it, the first of equal ones.  A character that is no piece itself may be passed as unknown, at a price below
 * every piece.  Backward: the path is read off.  A place costs one walk down the trie, at most the longest piece: linear.
 *
 * Invariant: every place that is reached lies on a character's boundary. */
#include "text/unigram.h"
#include "base/bytes.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define UNKNOWN_PENALTY 10.0
enum { UNIGRAM_NODES_MAX = 1 << 26, FEW = 128 };

struct unigram_node {
	uint32_t      first;    /* child */
	int32_t       id;       /* −1: no piece ends here */
	unsigned char byte;     /* by which it is reached */
	unsigned char children; /* − 1; 0 with first == 0: none */
};

struct piece {
	const char *bytes;
	uint32_t    len;
	int32_t     id;
};

static int by_bytes(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;
	int                 order = bytes_compare(x->bytes, x->len, y->bytes, y->len);
	return order ? order : (x->id > y->id) - (x->id < y->id);
}

/* Nodes in breadth-first order, so that children are neighbours; each carries its range of pieces while it waits. */
struct building {
	struct unigram_node *nodes;
	struct range {
		uint32_t low, high, depth;
	}                  *ranges;
	uint32_t            count, capacity;
	const struct piece *pieces;
};

static enum status add_node(struct building *b, unsigned char byte, uint32_t low, uint32_t high, uint32_t depth)
{
	if (b->count == b->capacity) {
		uint32_t             capacity = b->capacity ? b->capacity * 2 : 1024;
		struct unigram_node *nodes = capacity <= UNIGRAM_NODES_MAX ? realloc(b->nodes, capacity * sizeof *nodes) : NULL;
		struct range        *ranges;
		if (!nodes)
			return STATUS_NOMEM;
		b->nodes = nodes;
		ranges = realloc(b->ranges, capacity * sizeof *ranges);
		if (!ranges)
			return STATUS_NOMEM;
		b->ranges = ranges;
		b->capacity = capacity;
	}
	b->nodes[b->count] = (struct unigram_node){ .id = -1, .byte = byte };
	b->ranges[b->count++] = (struct range){ low, high, depth };
	return STATUS_OK;
}

static enum status build(struct building *b, uint32_t piece_count)
{
	enum status status = add_node(b, 0, 0, piece_count, 0);

	for (uint32_t at = 0; at < b->count && !status; at++) {
		struct range range = b->ranges[at];
		while (range.low < range.high && b->pieces[range.low].len == range.depth)
			b->nodes[at].id = b->pieces[range.low++].id; /* of equal spellings the last one */
		if (range.low < range.high)
			b->nodes[at].first = b->count;
		while (range.low < range.high && !status) {
			unsigned char byte = (unsigned char)b->pieces[range.low].bytes[range.depth];
			uint32_t      end = range.low + 1;
			while (end < range.high && (unsigned char)b->pieces[end].bytes[range.depth] == byte)
				end++;
			b->nodes[at].children = (unsigned char)(b->count - b->nodes[at].first);
			status = add_node(b, byte, range.low, end, range.depth + 1);
			range.low = end;
		}
	}
	return status;
}

enum status unigram_init(struct unigram *unigram, const struct token_file *file, const struct token_index *index,
    struct error *error)
{
	struct piece   *pieces = malloc((file->model_size + (size_t)1) * sizeof *pieces);
	struct building b = { .pieces = pieces };
	double          least = 0;
	bool            ranged = false;
	uint32_t        count = 0;
	enum status     status;

	*unigram = (struct unigram){ .index = index, .unk = file->unk, .byte_fallback = file->byte_fallback,
		.single = file->sentencepiece };
	unigram->scores = malloc((file->model_size + (size_t)1) * sizeof *unigram->scores);
	if (!pieces || !unigram->scores) {
		free(pieces);
		return error_set(error, STATUS_NOMEM, "no memory for %u pieces", file->model_size);
	}
	for (uint32_t id = 0; id < file->model_size; id++) {
		size_t      len;
		const char *bytes = token_file_spelling(file, id, &len);
		unigram->scores[id] = file->scores[id];
		if (unigram->single && file->kinds[id] != TOKEN_NORMAL)
			; /* SentencePiece takes the least score of the normal ones */
		else if (!ranged || file->scores[id] < least) {
			least = file->scores[id];
			ranged = true;
		}
		/* Text never spells a control token, nor SentencePiece's byte pieces. */
		if (!bytes || !len || file->kinds[id] == TOKEN_PADDING || file->kinds[id] == TOKEN_CONTROL ||
		    (file->sentencepiece && file->kinds[id] == TOKEN_BYTE))
			continue;
		pieces[count++] = (struct piece){ bytes, (uint32_t)len, (int32_t)id };
	}
	unigram->unk_score = unigram->single ? (double)(float)(least - UNKNOWN_PENALTY) : least - UNKNOWN_PENALTY;
	qsort(pieces, count, sizeof *pieces, by_bytes);
	status = build(&b, count);
	free(pieces);
	free(b.ranges);
	unigram->nodes = b.nodes;
	unigram->node_count = b.count;
	for (unsigned i = 0; i < 256; i++) {
		char name[8] = "<0x00>";
		name[3] = "0123456789ABCDEF"[i >> 4];
		name[4] = "0123456789ABCDEF"[i & 15];
		unigram->byte_ids[i] = token_index_find(index, name, 6);
	}
	return status ? error_set(error, status, "no memory for a trie of %u pieces", count) : STATUS_OK;
}

void unigram_free(struct unigram *unigram)
{
	free(unigram->nodes);
	free(unigram->scores);
	*unigram = (struct unigram){ .nodes = NULL };
}

static const struct unigram_node *child(const struct unigram *unigram, const struct unigram_node *node, unsigned char byte)
{
	const struct unigram_node *low = unigram->nodes + node->first, *high = low + node->children + 1;

	if (!node->first)
		return NULL;
	while (low < high) {
		const struct unigram_node *middle = low + (high - low) / 2;
		if (middle->byte == byte)
			return middle;
		if (middle->byte < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

/* The best way to reach a place. */
struct place {
	double   score;
	uint32_t from; /* PLACE_NONE: it is not reached */
	int32_t  id;
};
#define PLACE_NONE UINT32_MAX

static void offer(const struct unigram *unigram, struct place *place, double score, size_t from, int32_t id)
{
	if (unigram->single)
		score = (double)(float)score;
	if (place->from == PLACE_NONE || score > place->score)
		*place = (struct place){ score, (uint32_t)from, id };
}

static void forward(const struct unigram *unigram, const char *piece, size_t len, struct place *places)
{
	uint32_t code;

	for (size_t i = 0; i <= len; i++)
		places[i].from = PLACE_NONE;
	places[0].score = 0;
	for (size_t at = 0; at < len;) {
		const struct unigram_node *node = unigram->nodes;
		double                     score = places[at].score;
		size_t                     n = (size_t)utf8_decode(piece + at, len - at, &code);
		bool                       single = false;
		for (size_t i = at; i < len && (node = child(unigram, node, (unsigned char)piece[i])); i++)
			if (node->id >= 0) {
				offer(unigram, &places[i + 1], score + unigram->scores[node->id], at, node->id);
				single = single || i + 1 - at == n;
			}
		if (!single)
			offer(unigram, &places[at + n], score + unigram->unk_score, at, unigram->unk);
		at += n;
	}
}

/* The stretch of unknown characters BYTES: a token of that spelling, its bytes, or the unknown one. */
static enum status emit_unknown(const struct unigram *unigram, const char *bytes, size_t len, size_t max_tokens,
    struct token_list *list)
{
	int32_t     id = token_index_find(unigram->index, bytes, len);
	bool        fallback = unigram->byte_fallback;
	enum status status = STATUS_OK;

	if (id >= 0)
		return token_list_add(list, max_tokens, id);
	for (size_t i = 0; i < len && fallback; i++)
		fallback = unigram->byte_ids[(unsigned char)bytes[i]] >= 0;
	if (!fallback) /* the reference fails where there is no unknown token; here the text loses what cannot be said */
		return unigram->unk < 0 ? STATUS_OK : token_list_add(list, max_tokens, unigram->unk);
	for (size_t i = 0; i < len && !status; i++)
		status = token_list_add(list, max_tokens, unigram->byte_ids[(unsigned char)bytes[i]]);
	return status;
}

/* Turns the path round in place (from: where the next step ends), then walks it. */
static enum status backward(const struct unigram *unigram, const char *piece, size_t len, struct place *places, size_t max_tokens,
    struct token_list *list)
{
	uint32_t    end = (uint32_t)len, next = PLACE_NONE;
	int32_t     id = 0;
	size_t      unknown = SIZE_MAX;
	enum status status = STATUS_OK;

	for (;;) {
		struct place place = places[end];
		places[end] = (struct place){ .from = next, .id = id };
		if (end == 0)
			break;
		next = end;
		id = place.id;
		end = place.from;
	}
	for (uint32_t at = 0; at < len && !status; at = places[at].from) {
		if (places[at].id == unigram->unk) {
			if (unknown == SIZE_MAX)
				unknown = at;
			continue;
		}
		if (unknown != SIZE_MAX)
			status = emit_unknown(unigram, piece + unknown, at - unknown, max_tokens, list);
		unknown = SIZE_MAX;
		if (!status)
			status = token_list_add(list, max_tokens, places[at].id);
	}
	if (!status && unknown != SIZE_MAX)
		status = emit_unknown(unigram, piece + unknown, len - unknown, max_tokens, list);
	return status;
}

enum status unigram_encode(const struct unigram *unigram, const char *piece, size_t len, size_t max_tokens, struct token_list *list)
{
	struct place few[FEW + 1], *places = few;
	enum status  status;

	if (len >= PLACE_NONE)
		return STATUS_LIMIT;
	if (len > FEW && !(places = malloc((len + 1) * sizeof *places)))
		return STATUS_NOMEM;
	forward(unigram, piece, len, places);
	status = backward(unigram, piece, len, places, max_tokens, list);
	if (places != few)
		free(places);
	return status;
}
