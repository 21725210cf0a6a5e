/* token_list.h: a growing list of token ids with a maximum. */
#ifndef PENSTOCK_TEXT_TOKEN_LIST_H
#define PENSTOCK_TEXT_TOKEN_LIST_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct token_list {
	int32_t *ids; /* owned; free with token_list_free */
	size_t   count, capacity;
};

void        token_list_free(struct token_list *list);
enum status token_list_grow(struct token_list *list);

/* Appends one id; STATUS_LIMIT when LIST has MAX_TOKENS already. */
static inline enum status token_list_add(struct token_list *list, size_t max_tokens, int32_t id)
{
	if (list->count >= max_tokens)
		return STATUS_LIMIT;
	if (list->count == list->capacity) {
		enum status status = token_list_grow(list);
		if (status)
			return status;
	}
	list->ids[list->count++] = id;
	return STATUS_OK;
}

#endif
