/* added.c: owns the finding of added tokens: leftmost, and of those at one place the longest.  Does not know what lies between
 * them.
 *
 * The tokens are sorted, so those that begin with the bytes at a place are neighbours, and each byte narrows the range.
 * Most places are passed by one look at the byte, or by memchr where all tokens begin alike ("<").
 *
 * Invariant: a match never begins before the end of the last one's own bytes; the white space that rstrip took may hold
 * further tokens, as in the reference. */
#include "text/added.h"
#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_TOKENS = 16 };

enum status added_add(struct added_set *set, const char *bytes, size_t len, const struct added_token *like)
{
	struct added_token token = *like;

	if (set->count == set->capacity) {
		size_t              capacity = set->capacity ? set->capacity * 2 : FIRST_TOKENS;
		struct added_token *tokens = realloc(set->tokens, capacity * sizeof *tokens);
		if (!tokens)
			return STATUS_NOMEM;
		set->tokens = tokens;
		set->capacity = capacity;
	}
	token.bytes = malloc(len + 1);
	if (!token.bytes)
		return STATUS_NOMEM;
	memcpy(token.bytes, bytes, len);
	token.len = len;
	set->tokens[set->count++] = token;
	return STATUS_OK;
}

static int by_bytes(const void *a, const void *b)
{
	const struct added_token *x = a, *y = b;
	int                       order = bytes_compare(x->bytes, x->len, y->bytes, y->len);
	return order ? order : (x->id > y->id) - (x->id < y->id);
}

static int only(const bool first[256])
{
	int found = -1;

	for (int i = 0; i < 256; i++)
		if (first[i]) {
			if (found >= 0)
				return -1;
			found = i;
		}
	return found;
}

void added_finish(struct added_set *set)
{
	size_t kept = 0;

	if (set->count)
		qsort(set->tokens, set->count, sizeof *set->tokens, by_bytes);
	for (size_t i = 0; i < set->count; i++) {
		struct added_token *token = &set->tokens[i];
		if (token->len == 0 || (kept && token->len == set->tokens[kept - 1].len &&
		                        memcmp(token->bytes, set->tokens[kept - 1].bytes, token->len) == 0)) {
			free(token->bytes);
			continue;
		}
		set->first_literal[(unsigned char)token->bytes[0]] = true;
		if (!token->control)
			set->first_data[(unsigned char)token->bytes[0]] = true;
		set->tokens[kept++] = *token;
	}
	set->count = kept;
	set->only_literal = only(set->first_literal);
	set->only_data = only(set->first_data);
}

void added_free(struct added_set *set)
{
	for (size_t i = 0; i < set->count; i++)
		free(set->tokens[i].bytes);
	free(set->tokens);
	*set = (struct added_set){ .tokens = NULL };
}

/* First token in [low, high) whose byte at DEPTH is at least (or, with ABOVE, greater than) BYTE. */
static size_t bound(const struct added_set *set, size_t low, size_t high, size_t depth, unsigned char byte, bool above)
{
	while (low < high) {
		size_t                    middle = low + (high - low) / 2;
		const struct added_token *token = &set->tokens[middle];
		int                       there = token->len > depth ? (unsigned char)token->bytes[depth] : -1;
		if (there < byte || (above && there == byte))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The longest token at the start of TEXT, NULL when there is none. */
static const struct added_token *match(const struct added_set *set, const char *text, size_t len, bool literal)
{
	const struct added_token *best = NULL;
	size_t                    low = 0, high = set->count;

	for (size_t depth = 0; depth < len && low < high; depth++) {
		low = bound(set, low, high, depth, (unsigned char)text[depth], false);
		high = bound(set, low, high, depth, (unsigned char)text[depth], true);
		/* All in [low, high) begin with text[0…depth]; the one that ends here, if any, comes first. */
		if (low < high && set->tokens[low].len == depth + 1 && (literal || !set->tokens[low].control))
			best = &set->tokens[low];
	}
	return best;
}

size_t added_length(const struct added_set *set, const char *text, size_t len)
{
	const struct added_token *token = len && set->first_literal[(unsigned char)*text] ? match(set, text, len, true) : NULL;

	return token ? token->len : 0;
}

/* Properties of the character before AT; 0 at the beginning and where there is no character. */
static unsigned before(const struct unicode *unicode, const char *text, size_t at, size_t *ret_bytes)
{
	uint32_t code = 0;
	size_t   n = 1;

	*ret_bytes = 0;
	if (at == 0)
		return 0;
	while (n < 4 && n < at && ((unsigned char)text[at - n] & 0xc0) == 0x80)
		n++;
	if ((size_t)utf8_decode(text + at - n, n, &code) != n)
		return 0;
	*ret_bytes = n;
	return unicode_properties(unicode, code);
}

static unsigned behind(const struct unicode *unicode, const char *text, size_t at, size_t len, size_t *ret_bytes)
{
	uint32_t code = 0;
	int      n = at < len ? utf8_decode(text + at, len - at, &code) : 0;

	*ret_bytes = n > 0 ? (size_t)n : 0;
	return n > 0 ? unicode_properties(unicode, code) : 0;
}

static bool is_space(unsigned properties) { return (properties & UNICODE_CLASS_MASK) == UNICODE_SPACE; }

bool added_find(const struct added_set *set, const struct unicode *unicode, const char *text, size_t len, size_t whole,
    bool literal, size_t from, size_t *at, struct added_match *ret)
{
	const bool *first = literal ? set->first_literal : set->first_data;
	int         only_byte = literal ? set->only_literal : set->only_data;
	size_t      n;

	while (set->count && *at < len) {
		const struct added_token *token;
		size_t                    start;
		if (only_byte >= 0) {
			const char *found = memchr(text + *at, only_byte, len - *at);
			*at = found ? (size_t)(found - text) : len;
		} else {
			while (*at < len && !first[(unsigned char)text[*at]])
				++*at;
		}
		if (*at == len || !(token = match(set, text + *at, len - *at, literal))) {
			*at += *at < len;
			continue;
		}
		start = *at;
		*at += token->len;
		if (token->single_word && ((before(unicode, text, start, &n) & UNICODE_WORD) ||
		                           (behind(unicode, text, *at, whole, &n) & UNICODE_WORD)))
			continue; /* passed, as in the reference: nothing inside it is looked for */
		ret->token = token;
		ret->end = *at;
		if (token->lstrip)
			while (start > from && is_space(before(unicode, text, start, &n)) && start - n >= from)
				start -= n;
		if (token->rstrip)
			while (is_space(behind(unicode, text, ret->end, whole, &n)))
				ret->end += n;
		if (token->lstrip && start < from)
			start = from;
		if (token->lstrip && start >= ret->end)
			continue; /* the last one took all of it: the reference drops what is left empty */
		ret->start = start;
		return true;
	}
	return false;
}
