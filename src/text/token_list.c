/* token_list.c: owns the growing of id lists.  Invariant: on failure the list is as before. */
#include "text/token_list.h"
#include "base/checked.h"

#include <stdlib.h>

enum { TOKENS_START = 128 };

void token_list_free(struct token_list *list)
{
	if (!list)
		return;
	free(list->ids);
	*list = (struct token_list){ 0 };
}

enum status token_list_grow(struct token_list *list)
{
	size_t   capacity = list->capacity ? list->capacity : TOKENS_START, bytes;
	int32_t *ids;

	if (!checked_mul_size(capacity, 2, &capacity) || !checked_mul_size(capacity, sizeof *ids, &bytes))
		return STATUS_LIMIT;
	ids = realloc(list->ids, bytes);
	if (!ids)
		return STATUS_NOMEM;
	list->ids = ids;
	list->capacity = capacity;
	return STATUS_OK;
}
