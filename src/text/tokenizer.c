/* tokenizer.c: owns loading a byte-level BPE tokenizer from GGUF metadata and the walk over spans: special tokens, then
 * pieces (pretokenizer.h), then merges (bpe.h).  Does not render prompts.
 *
 * Spans are joined before they are split into pieces, because that is what the model saw in training: the line feed a
 * template writes before a message and white space at the message's start belong to one piece.  Provenance decides only
 * where special tokens may be: a control token must lie within literal text.  User tokens are text by definition and are
 * recognised in data too, as the reference does.
 *
 * Invariant: merges never produce a control token (checked at load), so data cannot, whatever it spells.
 */
#include "text/tokenizer.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "vocab/bytelevel.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENIZER_TEXT_MAX = 1 << 30, PROBES_MAX = 1024 };

struct special {
	const char *bytes; /* of the vocabulary */
	size_t      len;
	int32_t     id;
	bool        control;
};

struct tokenizer {
	const struct vocab *vocab; /* borrowed */
	enum pretokenizer   pretokenizer;
	struct bpe          bpe;
	struct special     *specials; /* sorted by bytes */
	size_t              special_count;
	bool                first_literal[256], first_data[256]; /* bytes that begin a special token there */
};

/* Token spellings of the file → ids, only while loading. */
struct words {
	const struct vocab *vocab;
	struct error       *error;
	const char        **strings;
	size_t             *lens;
	uint32_t           *slots; /* id + 1; 0 is empty */
	size_t              mask;
	struct bpe         *bpe;
};

void token_list_free(struct token_list *list)
{
	if (!list)
		return;
	free(list->ids);
	*list = (struct token_list){ 0 };
}

/* The slot of the spelling A followed by B, or the empty slot where it would go; NULL when they collide beyond reason. */
static uint32_t *word_slot(const struct words *words, const char *a, size_t a_len, const char *b, size_t b_len)
{
	uint64_t hash = hash_fnv1a(hash_fnv1a(HASH_FNV1A_START, a, a_len), b, b_len);
	size_t   slot = (hash ^ hash >> 32) & words->mask;

	for (int probes = 0; probes < PROBES_MAX; probes++) {
		uint32_t id = words->slots[slot];
		if (id == 0)
			return &words->slots[slot];
		id--;
		if (words->lens[id] == a_len + b_len && memcmp(words->strings[id], a, a_len) == 0 &&
		    memcmp(words->strings[id] + a_len, b, b_len) == 0)
			return &words->slots[slot];
		slot = (slot + 1) & words->mask;
	}
	return NULL;
}

/* −1 when there is no such token. */
static int32_t word_find(const struct words *words, const char *a, size_t a_len, const char *b, size_t b_len)
{
	const uint32_t *slot = word_slot(words, a, a_len, b, b_len);
	return slot ? (int32_t)*slot - 1 : -1;
}

static enum status add_word(void *context, size_t index, const char *string, size_t len)
{
	struct words *words = context;
	uint32_t     *slot;
	char          quoted[BYTES_QUOTE_MAX];

	words->strings[index] = string;
	words->lens[index] = len;
	if (vocab_kind(words->vocab, (uint32_t)index) == VOCAB_UNUSED)
		return STATUS_OK; /* padding rows may all be spelled alike */
	slot = word_slot(words, string, len, "", 0);
	if (!slot)
		return error_set(words->error, STATUS_LIMIT, "token %zu: too many spellings collide; the vocabulary looks crafted", index);
	if (*slot)
		return error_set(words->error, STATUS_INVALID, "tokens %u and %zu are both spelled %s", *slot - 1, index,
		    bytes_quote(quoted, string, len));
	*slot = (uint32_t)index + 1;
	return STATUS_OK;
}

static enum status add_merge(void *context, size_t index, const char *string, size_t len)
{
	struct words *words = context;
	const char   *space = len ? memchr(string, ' ', len) : NULL, *right;
	size_t        left_len, right_len;
	int32_t       left_id, right_id, merged;
	char          quoted[BYTES_QUOTE_MAX];

	bytes_quote(quoted, string, len);
	if (!space || space == string || space + 1 == string + len || memchr(space + 1, ' ', (size_t)(string + len - space - 1)))
		return error_set(words->error, STATUS_INVALID, "merge %zu %s is not two parts with one space between", index, quoted);
	left_len = (size_t)(space - string);
	right = space + 1;
	right_len = len - left_len - 1;
	left_id = word_find(words, string, left_len, "", 0);
	right_id = word_find(words, right, right_len, "", 0);
	merged = word_find(words, string, left_len, right, right_len);
	if (left_id < 0 || right_id < 0 || merged < 0)
		return error_set(words->error, STATUS_INVALID, "merge %zu %s: %s is not in the vocabulary", index, quoted,
		    left_id < 0 ? "its left part" : right_id < 0 ? "its right part" : "its result");
	if (vocab_kind(words->vocab, (uint32_t)merged) == VOCAB_CONTROL)
		return error_set(words->error, STATUS_INVALID, "merge %zu %s makes the control token %d", index, quoted, merged);
	switch (bpe_add(words->bpe, (uint32_t)left_id, (uint32_t)right_id, (uint32_t)index, (uint32_t)merged)) {
	case STATUS_OK:
		return STATUS_OK;
	case STATUS_INVALID:
		return error_set(words->error, STATUS_INVALID, "merge %zu %s appears twice", index, quoted);
	default:
		return error_set(words->error, STATUS_LIMIT, "merge %zu: too many merges collide; the file looks crafted", index);
	}
}

static enum status load_merges(const struct gguf *gguf, struct tokenizer *tokenizer, struct error *error)
{
	struct words words = { .vocab = tokenizer->vocab, .error = error, .bpe = &tokenizer->bpe };
	size_t       size = vocab_size(tokenizer->vocab), merges = 0, slots = 16, count = 0;
	enum status  status = gguf_array_count(gguf, "tokenizer.ggml.merges", &merges, error);

	if (!status)
		status = gguf_array_count(gguf, "tokenizer.ggml.tokens", &count, error);
	if (status)
		return status;
	if (count != size)
		return error_set(error, STATUS_INVALID, "the file has %zu tokens, the vocabulary %zu: not the same model", count, size);
	if (merges > BPE_MERGES_MAX)
		return error_set(error, STATUS_LIMIT, "tokenizer.ggml.merges has %zu elements, the limit is %d", merges, BPE_MERGES_MAX);
	while (slots < size * 2)
		slots *= 2;
	words.mask = slots - 1;
	words.strings = calloc(size, sizeof *words.strings);
	words.lens = calloc(size, sizeof *words.lens);
	words.slots = calloc(slots, sizeof *words.slots);
	if (!words.strings || !words.lens || !words.slots || bpe_init(&tokenizer->bpe, merges))
		status = error_set(error, STATUS_NOMEM, "no memory for a tokenizer of %zu tokens and %zu merges", size, merges);
	if (!status)
		status = gguf_array_strings(gguf, "tokenizer.ggml.tokens", add_word, &words, error);
	if (!status)
		status = gguf_array_strings(gguf, "tokenizer.ggml.merges", add_merge, &words, error);
	for (unsigned byte = 0; !status && byte < 256; byte++) {
		char   spelled[4];
		size_t len = utf8_encode(bytelevel_char((unsigned char)byte), spelled);
		int32_t id = word_find(&words, spelled, len, "", 0);
		if (id >= 0 && vocab_kind(tokenizer->vocab, (uint32_t)id) != VOCAB_CONTROL)
			tokenizer->bpe.byte_ids[byte] = id;
	}
	free(words.strings);
	free(words.lens);
	free(words.slots);
	return status;
}

static int compare_specials(const void *a, const void *b)
{
	const struct special *x = a, *y = b;
	return bytes_compare(x->bytes, x->len, y->bytes, y->len);
}

static enum status load_specials(struct tokenizer *tokenizer, struct error *error)
{
	uint32_t size = vocab_size(tokenizer->vocab);
	size_t   count = 0;

	for (uint32_t id = 0; id < size; id++) {
		enum vocab_kind kind = vocab_kind(tokenizer->vocab, id);
		size_t          len;
		vocab_bytes(tokenizer->vocab, id, &len);
		count += kind == VOCAB_CONTROL || kind == VOCAB_USER;
		if (kind != VOCAB_UNUSED && len > tokenizer->bpe.longest)
			tokenizer->bpe.longest = len;
	}
	tokenizer->specials = calloc(count + 1, sizeof *tokenizer->specials);
	if (!tokenizer->specials)
		return error_set(error, STATUS_NOMEM, "no memory for %zu special tokens", count);
	for (uint32_t id = 0; id < size; id++) {
		enum vocab_kind kind = vocab_kind(tokenizer->vocab, id);
		struct special *special = &tokenizer->specials[tokenizer->special_count];
		if (kind != VOCAB_CONTROL && kind != VOCAB_USER)
			continue;
		special->bytes = vocab_bytes(tokenizer->vocab, id, &special->len);
		special->id = (int32_t)id;
		special->control = kind == VOCAB_CONTROL;
		tokenizer->first_literal[(unsigned char)special->bytes[0]] = true;
		if (!special->control)
			tokenizer->first_data[(unsigned char)special->bytes[0]] = true;
		tokenizer->special_count++;
	}
	qsort(tokenizer->specials, tokenizer->special_count, sizeof *tokenizer->specials, compare_specials);
	return STATUS_OK;
}

enum status tokenizer_from_gguf(const struct gguf *gguf, const struct vocab *vocab, struct tokenizer **ret, struct error *error)
{
	struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
	const char       *name = "";
	size_t            len = 0;
	char              quoted[BYTES_QUOTE_MAX];
	enum status       status;

	if (!tokenizer)
		return error_set(error, STATUS_NOMEM, "no memory for a tokenizer");
	tokenizer->vocab = vocab;
	status = gguf_get_string(gguf, "tokenizer.ggml.model", &name, &len, error);
	if (!status && (len != 4 || memcmp(name, "gpt2", 4) != 0))
		status = error_set(error, STATUS_UNSUPPORTED, "tokenizer.ggml.model is %s; only \"gpt2\" (byte-level BPE) is supported",
		    bytes_quote(quoted, name, len));
	if (!status)
		status = gguf_get_string(gguf, "tokenizer.ggml.pre", &name, &len, error);
	if (!status && !pretokenizer_find(name, len, &tokenizer->pretokenizer))
		status = error_set(error, STATUS_UNSUPPORTED, "tokenizer.ggml.pre is %s; supported are \"gpt-2\" and \"smollm\"",
		    bytes_quote(quoted, name, len));
	if (!status)
		status = load_merges(gguf, tokenizer, error);
	if (!status)
		status = load_specials(tokenizer, error);
	if (status)
		goto fail;
	*ret = tokenizer;
	return STATUS_OK;
fail:
	tokenizer_free(tokenizer);
	return gguf_error_prefix(gguf, status, error);
}

void tokenizer_free(struct tokenizer *tokenizer)
{
	if (!tokenizer)
		return;
	bpe_free(&tokenizer->bpe);
	free(tokenizer->specials);
	free(tokenizer);
}

/* First special token in [low, high) whose byte at DEPTH is at least (or, with ABOVE, greater than) BYTE. */
static size_t bound(const struct tokenizer *tokenizer, size_t low, size_t high, size_t depth, unsigned char byte, bool above)
{
	while (low < high) {
		size_t                middle = low + (high - low) / 2;
		const struct special *special = &tokenizer->specials[middle];
		int                   there = special->len > depth ? (unsigned char)special->bytes[depth] : -1;
		if (there < byte || (above && there == byte))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The longest special token at the start of TEXT, NULL when there is none. */
static const struct special *match_special(const struct tokenizer *tokenizer, const char *text, size_t len, bool literal)
{
	const struct special *best = NULL;
	size_t                low = 0, high = tokenizer->special_count;

	for (size_t depth = 0; depth < len && low < high; depth++) {
		low = bound(tokenizer, low, high, depth, (unsigned char)text[depth], false);
		high = bound(tokenizer, low, high, depth, (unsigned char)text[depth], true);
		/* All in [low, high) begin with text[0…depth]; the one that ends here, if any, comes first. */
		if (low < high && tokenizer->specials[low].len == depth + 1 && (literal || !tokenizer->specials[low].control))
			best = &tokenizer->specials[low];
	}
	return best;
}

struct encoding {
	const struct tokenizer *tokenizer;
	struct bpe_scratch      scratch;
	struct token_list      *list;
	size_t                  max_tokens;
	size_t                  done; /* bytes of the text */
};

static enum status encode_text(struct encoding *encoding, const char *text, size_t len)
{
	const struct tokenizer *tokenizer = encoding->tokenizer;

	while (len) {
		size_t      n = pretokenizer_next(tokenizer->pretokenizer, text, len);
		enum status status = bpe_encode(&tokenizer->bpe, &encoding->scratch, text, n, encoding->max_tokens, encoding->list);
		if (status)
			return status;
		text += n;
		len -= n;
		encoding->done += n;
	}
	return STATUS_OK;
}

/* TEXT is all spans joined. */
static enum status encode_spans(struct encoding *encoding, const char *text, const struct text_span *spans, size_t span_count)
{
	const struct tokenizer *tokenizer = encoding->tokenizer;
	size_t                  start = 0, at = 0, end = 0;
	enum status             status = STATUS_OK;

	for (size_t i = 0; i < span_count;) {
		bool        literal = spans[i].literal;
		const bool *first = literal ? tokenizer->first_literal : tokenizer->first_data;

		for (; i < span_count && spans[i].literal == literal; i++)
			end += spans[i].len;
		while (at < end) {
			const struct special *special = NULL;
			if (first[(unsigned char)text[at]])
				special = match_special(tokenizer, text + at, end - at, literal);
			if (!special) {
				at++;
				continue;
			}
			status = encode_text(encoding, text + start, at - start);
			if (!status)
				status = bpe_emit(encoding->list, encoding->max_tokens, special->id);
			if (status)
				return status;
			encoding->done += special->len;
			at += special->len;
			start = at;
		}
	}
	return encode_text(encoding, text + start, end - start);
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const struct text_span *spans, size_t span_count,
    size_t max_tokens, struct token_list *list, struct error *error)
{
	struct encoding encoding = { .tokenizer = tokenizer, .list = list, .max_tokens = max_tokens };
	size_t          total = 0, before = list->count, so_far;
	char           *joined = NULL, *at;
	enum status     status;

	for (size_t i = 0; i < span_count; i++)
		if (!checked_add_size(total, spans[i].len, &total) || total > TOKENIZER_TEXT_MAX)
			return error_set(error, STATUS_LIMIT, "the text has more than %d bytes", TOKENIZER_TEXT_MAX);
	if (total == 0)
		return STATUS_OK;
	at = joined = malloc(total);
	if (!joined)
		return error_set(error, STATUS_NOMEM, "no memory for a text of %zu bytes", total);
	for (size_t i = 0; i < span_count; i++) {
		if (spans[i].len)
			memcpy(at, spans[i].bytes, spans[i].len);
		at += spans[i].len;
	}
	status = encode_spans(&encoding, joined, spans, span_count);
	bpe_scratch_free(&encoding.scratch);
	free(joined);
	if (!status)
		return STATUS_OK;
	so_far = list->count;
	list->count = before;
	if (status == STATUS_LIMIT)
		return error_set(error, STATUS_LIMIT, "the text has more than %zu tokens (%zu after %zu of %zu bytes)", max_tokens, so_far,
		    encoding.done, total);
	return error_set(error, status, "no memory to tokenise a text of %zu bytes", total);
}
