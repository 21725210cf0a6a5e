/* tokenizer.c: owns the walk over spans: added tokens, then normalizer, pieces, model.  Does not load (tokenizer_load.c) and
 * does not render prompts.
 *
 * Spans are joined before they are cut into pieces, because that is what the model saw in training: the line feed a
 * template writes before a message and white space at the message's start belong to one piece.  Provenance decides only
 * where special tokens may be: a control token must lie within literal text.  User tokens are text by definition and are
 * recognised in data too, as the reference does.  Control tokens that are matched after normalizing (a flag few files set)
 * count only where the whole stretch between two tokens is literal: normalizing does not keep track of provenance.
 *
 * Speed: a small cache that lives as long as the call remembers pieces and their ids; it stays in the processor's own, where
 * the vocabulary does not.  Behind it, most pieces are one token, which one look-up finds.
 *
 * Invariant: models never give a control token for text (checked at load), so data cannot, whatever it spells.
 */
#include "base/checked.h"
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

enum { CACHE_FROM = 2048 /* bytes of a text for which a cache pays */, CACHE_MIN = 1 << 10, CACHE_MAX = 1 << 14 /* entries */,
	CACHE_BYTES = 16 /* of a text for each entry */, CACHE_IDS = 3, WHOLE_MAX = 1 << 16 };

/* A piece and its ids: half a cache line. */
struct cached {
	struct token_key key;
	uint16_t         len, count; /* len 0: empty */
	int32_t          ids[CACHE_IDS];
};

struct encoding {
	const struct tokenizer *tokenizer;
	struct bpe_scratch      scratch;
	struct buf              normal[2], repaired;
	struct cached          *cache; /* [cache_mask + 1], or NULL */
	uint64_t                cache_mask;
	const char             *text;  /* [text_len], and TOKEN_INDEX_INLINE bytes behind it may be read */
	size_t                  text_len;
	struct token_list      *list;
	size_t                  max_tokens;
	size_t                  done; /* bytes of the text */
};

static enum status run_model(struct encoding *e, const char *piece, size_t len)
{
	const struct tokenizer *t = e->tokenizer;

	switch (t->model) {
	case TOKEN_BPE:
		return bpe_encode(&t->bpe, &e->scratch, piece, len, e->max_tokens, e->list);
	case TOKEN_WORDPIECE:
		return wordpiece_encode(&t->wordpiece, piece, len, e->max_tokens, e->list);
	case TOKEN_UNIGRAM:
		return unigram_encode(&t->unigram, piece, len, e->max_tokens, e->list);
	case TOKEN_WORDLEVEL: {
		int32_t id = token_index_find(&t->index, piece, len);
		id = id >= 0 ? id : t->wordpiece.unk;
		return id >= 0 ? token_list_add(e->list, e->max_tokens, id) : STATUS_OK;
	}
	}
	return STATUS_INTERNAL;
}

static enum status short_piece(struct encoding *e, const char *piece, size_t len)
{
	bool             padded = (uintptr_t)piece - (uintptr_t)e->text < e->text_len;
	struct token_key key = padded ? token_key_of_padded(piece, len) : token_key_of(piece, len);
	uint64_t         hash = token_key_hash(key, len);
	struct cached   *cached = e->cache ? &e->cache[hash >> 40 & e->cache_mask] : NULL;
	size_t           before = e->list->count, count;
	int32_t          id;
	enum status      status = STATUS_OK;

	if (cached && cached->len == len && cached->key.low == key.low && cached->key.high == key.high) {
		for (unsigned i = 0; i < cached->count && !status; i++)
			status = token_list_add(e->list, e->max_tokens, cached->ids[i]);
		return status;
	}
	id = token_index_find_key(&e->tokenizer->whole, key, hash, len);
	status = id >= 0 ? token_list_add(e->list, e->max_tokens, id) : run_model(e, piece, len);
	count = e->list->count - before;
	if (cached && !status && count <= CACHE_IDS) {
		*cached = (struct cached){ .key = key, .len = (uint16_t)len, .count = (uint16_t)count };
		memcpy(cached->ids, e->list->ids + before, count * sizeof cached->ids[0]);
	}
	return status;
}

static enum status encode_piece(void *context, const char *piece, size_t len)
{
	struct encoding *e = context;

	e->done += len;
	if (len <= TOKEN_INDEX_INLINE)
		return short_piece(e, piece, len);
	if (len <= e->tokenizer->longest) {
		int32_t id = token_index_find_long(&e->tokenizer->whole, piece, len);
		if (id >= 0)
			return token_list_add(e->list, e->max_tokens, id);
	}
	return run_model(e, piece, len);
}

/* Vocabularies without a pre-tokenizer whose tokens hold U+2581 only at their beginning: cutting there changes nothing, and
 * words are short. */
static enum status encode_words(void *context, const char *piece, size_t len)
{
	static const char mark[] = "\xe2\x96\x81";
	enum { MARK_LEN = 3 };
	size_t      from = 0, at = 0;
	enum status status = STATUS_OK;

	while (at < len && !status) {
		const char *found;
		while (len - at >= MARK_LEN && memcmp(piece + at, mark, MARK_LEN) == 0)
			at += MARK_LEN;
		found = memmem(piece + at, len - at, mark, MARK_LEN);
		at = found ? (size_t)(found - piece) : len;
		status = encode_piece(context, piece + from, at - from);
		from = at;
	}
	return status;
}

static enum status encode_plain(struct encoding *e, const char *text, size_t len, size_t head)
{
	/* Rounded sums know the whole text: only a long one is cut. */
	bool words = e->tokenizer->whole_words && (!e->tokenizer->unigram.single || len > WHOLE_MAX);

	return pretokenizer_run(&e->tokenizer->pretokenizer, text, len, head, words ? encode_words : encode_piece, e);
}

/* Each maximal ill-formed part becomes U+FFFD. */
static enum status repair(const char *text, size_t len, struct buf *out)
{
	enum status status = STATUS_OK;
	uint32_t    code;

	buf_clear(out);
	for (size_t at = 0; at < len && !status;) {
		int n = utf8_decode(text + at, len - at, &code);
		if (n > 0)
			status = buf_append(out, text + at, (size_t)n);
		else
			status = buf_append(out, "\xef\xbf\xbd", 3);
		at += n > 0 ? (size_t)n : n < 0 ? (size_t)-n : len - at;
	}
	return status;
}

/* A stretch between two added tokens of the raw text. */
static enum status encode_section(struct encoding *e, const char *text, size_t len, bool first, bool literal)
{
	const struct tokenizer *t = e->tokenizer;
	struct added_match      found;
	size_t                  from = 0, at = 0, head = 0;
	enum status             status = STATUS_OK;
	uint32_t                code;

	if (!len)
		return STATUS_OK;
	if ((t->normalizer.count || !t->pretokenizer.any_bytes) && !utf8_valid(text, len, NULL)) {
		status = repair(text, len, &e->repaired);
		text = e->repaired.data;
		len = e->repaired.len;
	}
	if (first && t->pretokenizer.asks_first && !status) /* then the text is well-formed by now */
		head = (size_t)utf8_decode(text, len, &code);
	if (!status && t->normalizer.count)
		status = normalizer_apply(&t->normalizer, text, len, e->normal, head ? &head : NULL, &text, &len);
	while (!status && added_find(&t->normalized, &t->unicode, text, len, len, literal, from, &at, &found)) {
		status = found.start > from ? encode_plain(e, text + from, found.start - from, head > from ? head - from : 0) :
		    STATUS_OK;
		if (!status)
			status = token_list_add(e->list, e->max_tokens, found.token->id);
		from = found.end;
	}
	if (!status && from < len)
		status = encode_plain(e, text + from, len - from, head > from ? head - from : 0);
	return status;
}

/* TEXT is all spans joined. */
static enum status encode_spans(struct encoding *e, const char *text, const struct text_span *spans, size_t span_count,
    size_t total)
{
	const struct tokenizer *t = e->tokenizer;
	size_t                  from = 0, at = 0, end = 0, section_data = 0 /* end of the last data looked at */;
	enum status             status = STATUS_OK;

	for (size_t i = 0; i < span_count;) {
		bool               literal = spans[i].literal;
		struct added_match found;

		for (; i < span_count && spans[i].literal == literal; i++)
			end += spans[i].len;
		while (added_find(&t->raw, &t->unicode, text, end, total, literal, from, &at, &found)) {
			bool all_literal = literal && section_data <= from;
			status = found.start > from ? encode_section(e, text + from, found.start - from, from == 0, all_literal) : STATUS_OK;
			if (!status)
				status = token_list_add(e->list, e->max_tokens, found.token->id);
			if (status)
				return status;
			from = found.end;
			e->done = from;
		}
		if (!literal)
			section_data = end;
		if (at < end)
			at = end;
	}
	return from < total ? encode_section(e, text + from, total - from, from == 0, section_data <= from) : STATUS_OK;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const struct text_span *spans, size_t span_count,
    size_t max_tokens, struct token_list *list, struct error *error)
{
	struct encoding e = { .tokenizer = tokenizer, .list = list, .max_tokens = max_tokens };
	size_t          total = 0, before = list->count, so_far;
	char           *joined = NULL, *at;
	enum status     status;

	for (size_t i = 0; i < span_count; i++)
		if (!checked_add_size(total, spans[i].len, &total) || total > TOKENIZER_TEXT_MAX)
			return error_set(error, STATUS_LIMIT, "the text has more than %d bytes", TOKENIZER_TEXT_MAX);
	if (total == 0)
		return STATUS_OK;
	at = joined = malloc(total + TOKEN_INDEX_INLINE);
	if (!joined)
		return error_set(error, STATUS_NOMEM, "no memory for a text of %zu bytes", total);
	for (size_t i = 0; i < span_count; i++) {
		if (spans[i].len)
			memcpy(at, spans[i].bytes, spans[i].len);
		at += spans[i].len;
	}
	memset(at, 0, TOKEN_INDEX_INLINE);
	e.text = joined;
	e.text_len = total;
	buf_init(&e.normal[0], NORMALIZER_TEXT_MAX);
	buf_init(&e.normal[1], NORMALIZER_TEXT_MAX);
	buf_init(&e.repaired, NORMALIZER_TEXT_MAX);
	if (total >= CACHE_FROM) {
		size_t entries = CACHE_MIN;
		while (entries < CACHE_MAX && entries * CACHE_BYTES < total)
			entries *= 2;
		e.cache = calloc(entries, sizeof *e.cache); /* without it, it is only slower */
		e.cache_mask = entries - 1;
	}
	status = encode_spans(&e, joined, spans, span_count, total);
	bpe_scratch_free(&e.scratch);
	buf_free(&e.normal[0]);
	buf_free(&e.normal[1]);
	buf_free(&e.repaired);
	free(e.cache);
	free(joined);
	if (!status)
		return STATUS_OK;
	so_far = list->count;
	list->count = before;
	if (status == STATUS_LIMIT)
		return error_set(error, STATUS_LIMIT, "the text has more than %zu tokens (%zu after %zu of %zu bytes)", max_tokens, so_far,
		    e.done < total ? e.done : total, total);
	return error_set(error, status, "no memory to tokenise a text of %zu bytes", total);
}

const int32_t *tokenizer_before(const struct tokenizer *tokenizer, size_t *ret_count)
{
	*ret_count = tokenizer->before_count;
	return tokenizer->before;
}

const int32_t *tokenizer_behind(const struct tokenizer *tokenizer, size_t *ret_count)
{
	*ret_count = tokenizer->behind_count;
	return tokenizer->behind;
}
