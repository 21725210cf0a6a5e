/* token_index.c: owns the table of spellings.  Does not own their bytes.  Invariant: there is always an empty slot, so that
 * a look-up ends. */
#include "vocab/token_index.h"

#include <stdlib.h>

enum status token_index_init(struct token_index *index, size_t count, const char *text)
{
	size_t slots = 16;

	while (slots / 3 * 2 <= count)
		slots *= 2;
	*index = (struct token_index){ .mask = slots - 1, .text = text };
	index->entries = calloc(slots, sizeof *index->entries);
	return index->entries ? STATUS_OK : STATUS_NOMEM;
}

void token_index_free(struct token_index *index)
{
	free(index->entries);
	*index = (struct token_index){ .entries = NULL };
}

uint64_t token_hash_long(const char *bytes, size_t len)
{
	uint64_t hash = len;

	while (len > TOKEN_INDEX_INLINE) {
		struct token_key key = token_key_of(bytes, TOKEN_INDEX_INLINE);
		hash = token_hash_mix(hash ^ key.low, key.high);
		bytes += TOKEN_INDEX_INLINE;
		len -= TOKEN_INDEX_INLINE;
	}
	struct token_key last = token_key_of(bytes, len);
	return token_hash_mix(hash ^ last.low, last.high ^ len);
}

int32_t token_index_find_long(const struct token_index *index, const char *bytes, size_t len)
{
	uint64_t hash = token_hash_long(bytes, len);

	for (uint64_t slot = hash & index->mask;; slot = (slot + 1) & index->mask) {
		const struct token_index_entry *entry = &index->entries[slot];
		if (entry->len == 0)
			return -1;
		if (entry->len == len && entry->key.low == hash && memcmp(index->text + entry->key.high, bytes, len) == 0)
			return entry->id;
	}
}

enum status token_index_add(struct token_index *index, size_t at, size_t len, int32_t id, int32_t *ret_id)
{
	const char                     *bytes = index->text + at;
	bool                            long_one = len > TOKEN_INDEX_INLINE;
	uint64_t                        slot;
	struct token_key                key;
	const struct token_index_entry *entry;

	if (long_one) {
		slot = token_hash_long(bytes, len);
		key = (struct token_key){ slot, at };
	} else {
		key = token_key_of(bytes, len);
		slot = token_key_hash(key, len);
	}
	slot &= index->mask;
	for (int probes = 0; (entry = &index->entries[slot])->len; probes++) {
		if (entry->len == len && entry->key.low == key.low &&
		    (long_one ? memcmp(index->text + entry->key.high, bytes, len) == 0 : entry->key.high == key.high)) {
			*ret_id = entry->id;
			return STATUS_INVALID;
		}
		if (probes == TOKEN_INDEX_PROBES_MAX)
			return STATUS_LIMIT;
		slot = (slot + 1) & index->mask;
	}
	index->entries[slot] = (struct token_index_entry){ key, (uint32_t)len, id };
	return STATUS_OK;
}
