/* wordpiece.c: owns the greedy matching of one word.  Invariant: a word gives its parts or one unknown token, never both. */
#include "text/wordpiece.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_FEW = 512 };

static size_t count_chars(const char *text, size_t len)
{
	size_t count = 0;

	for (size_t i = 0; i < len; i++)
		count += ((unsigned char)text[i] & 0xc0) != 0x80;
	return count;
}

static enum status add_unknown(const struct wordpiece *w, size_t max_tokens, struct token_list *list)
{
	return w->unk < 0 ? STATUS_OK : token_list_add(list, max_tokens, w->unk);
}

/* WORD has room for the prefix in front of it; what was matched is overwritten by it. */
static enum status match(const struct wordpiece *w, char *word, size_t len, size_t max_tokens, struct token_list *list)
{
	size_t at = 0, before = list->count;

	while (at < len) {
		size_t  prefix = at ? w->prefix_len : 0, end = len;
		int32_t id = -1;

		if (prefix)
			memcpy(word + at - prefix, w->prefix, prefix);
		if (end - at + prefix > w->longest)
			end = at + (w->longest > prefix ? w->longest - prefix : 0);
		for (; end > at; end--) {
			if (end < len && ((unsigned char)word[end] & 0xc0) == 0x80)
				continue;
			id = token_index_find(w->index, word + at - prefix, end - at + prefix);
			if (id >= 0)
				break;
		}
		if (id < 0) {
			list->count = before;
			return add_unknown(w, max_tokens, list);
		}
		if (token_list_add(list, max_tokens, id))
			return STATUS_LIMIT;
		at = end;
	}
	return STATUS_OK;
}

enum status wordpiece_encode(const struct wordpiece *w, const char *word, size_t len, size_t max_tokens, struct token_list *list)
{
	char        few[WORD_FEW + TOKEN_FILE_AFFIX_MAX], *copy = few;
	enum status status;

	if (len > w->max_chars && count_chars(word, len) > w->max_chars)
		return add_unknown(w, max_tokens, list);
	if (len > WORD_FEW && !(copy = malloc(len + TOKEN_FILE_AFFIX_MAX)))
		return STATUS_NOMEM;
	memcpy(copy + w->prefix_len, word, len);
	status = match(w, copy + w->prefix_len, len, max_tokens, list);
	if (copy != few)
		free(copy);
	return status;
}
