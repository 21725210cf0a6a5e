/* token_index.h: spelling → id, for loading and for every piece of text that is encoded.
 *
 * Open addressing, at most two thirds full.  Spellings of at most 16 bytes, nearly all of them, lie in the table itself:
 * one look-up touches one cache line and compares exactly.  A vocabulary built so that look-ups would be slow is refused.
 */
#ifndef PENSTOCK_VOCAB_TOKEN_INDEX_H
#define PENSTOCK_VOCAB_TOKEN_INDEX_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { TOKEN_INDEX_INLINE = 16, TOKEN_INDEX_PROBES_MAX = 256 };

struct token_key {
	uint64_t low, high; /* the bytes, zeros behind them; of a longer spelling its hash and where it lies */
};

struct token_index_entry {
	struct token_key key;
	uint32_t         len; /* 0: an empty slot */
	int32_t          id;
};

struct token_index {
	struct token_index_entry *entries; /* owned */
	uint64_t                  mask;
	const char               *text; /* borrowed: where the long spellings lie */
};

enum status token_index_init(struct token_index *index, size_t count, const char *text);
void        token_index_free(struct token_index *index);

/* Adds LEN ≥ 1 bytes at TEXT + AT.  STATUS_INVALID when they are there already (*ret_id says whose), STATUS_LIMIT when too
 * many collide. */
enum status token_index_add(struct token_index *index, size_t at, size_t len, int32_t id, int32_t *ret_id);

/* Of LEN ≤ TOKEN_INDEX_INLINE bytes; reads nothing beyond them. */
static inline struct token_key token_key_of(const char *bytes, size_t len)
{
	struct token_key key = { 0, 0 };
	uint32_t         a, b;

	if (len >= 8) {
		memcpy(&key.low, bytes, 8);
		if (len > 8) {
			memcpy(&key.high, bytes + len - 8, 8);
			key.high >>= 8 * (16 - len);
		}
	} else if (len >= 4) {
		memcpy(&a, bytes, 4);
		memcpy(&b, bytes + len - 4, 4);
		key.low = a;
		if (len > 4)
			key.low |= (uint64_t)(b >> 8 * (8 - len)) << 32;
	} else if (len > 0) {
		key.low = (unsigned char)bytes[0] | (uint64_t)(unsigned char)bytes[len / 2] << 8 * (len / 2) |
		          (uint64_t)(unsigned char)bytes[len - 1] << 8 * (len - 1);
	}
	return key;
}

/* The same where TOKEN_INDEX_INLINE bytes may be read, whatever LEN is: no branch depends on it. */
static inline struct token_key token_key_of_padded(const char *bytes, size_t len)
{
	static const struct token_key masks[TOKEN_INDEX_INLINE + 1] = {
#define M(bytes) (UINT64_MAX >> (64 - 8 * (bytes)))
		{ 0, 0 }, { M(1), 0 }, { M(2), 0 }, { M(3), 0 }, { M(4), 0 }, { M(5), 0 }, { M(6), 0 }, { M(7), 0 }, { M(8), 0 },
		{ M(8), M(1) }, { M(8), M(2) }, { M(8), M(3) }, { M(8), M(4) }, { M(8), M(5) }, { M(8), M(6) }, { M(8), M(7) },
		{ M(8), M(8) },
#undef M
	};
	struct token_key key;

	memcpy(&key.low, bytes, 8);
	memcpy(&key.high, bytes + 8, 8);
	key.low &= masks[len].low;
	key.high &= masks[len].high;
	return key;
}

static inline uint64_t token_hash_mix(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)(a ^ UINT64_C(0x9e3779b97f4a7c15)) * (b ^ UINT64_C(0xd6e8feb86659fd93));
	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t token_key_hash(struct token_key key, size_t len)
{
	return token_hash_mix(key.low ^ len, key.high ^ (key.low >> 31));
}

uint64_t token_hash_long(const char *bytes, size_t len);
int32_t  token_index_find_long(const struct token_index *index, const char *bytes, size_t len);

/* −1 when there is no such spelling. */
static inline int32_t token_index_find_key(const struct token_index *index, struct token_key key, uint64_t hash, size_t len)
{
	for (uint64_t slot = hash & index->mask;; slot = (slot + 1) & index->mask) {
		const struct token_index_entry *entry = &index->entries[slot];
		if (entry->len == len && entry->key.low == key.low && entry->key.high == key.high)
			return entry->id;
		if (entry->len == 0)
			return -1;
	}
}

static inline int32_t token_index_find(const struct token_index *index, const char *bytes, size_t len)
{
	struct token_key key;

	if (len == 0)
		return -1;
	if (len > TOKEN_INDEX_INLINE)
		return token_index_find_long(index, bytes, len);
	key = token_key_of(bytes, len);
	return token_index_find_key(index, key, token_key_hash(key, len), len);
}

#endif
