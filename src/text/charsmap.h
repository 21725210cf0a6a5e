/* charsmap.h: the character map of SentencePiece normalizers (a double-array trie and the replacements it points to). */
#ifndef PENSTOCK_TEXT_CHARSMAP_H
#define PENSTOCK_TEXT_CHARSMAP_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct charsmap {
	uint32_t *units; /* owned */
	size_t    unit_count;
	char     *text;  /* owned; every replacement ends with a NUL */
	size_t    text_len;
};

/* BYTES may go afterwards. */
enum status charsmap_init(struct charsmap *map, const char *bytes, size_t len, struct error *error);
void        charsmap_free(struct charsmap *map);

/* The replacement (terminated) of the shortest or the longest key that TEXT begins with; NULL when there is none. */
const char *charsmap_shortest(const struct charsmap *map, const char *text, size_t len, size_t *ret_key_len);
const char *charsmap_longest(const struct charsmap *map, const char *text, size_t len, size_t *ret_key_len);

#endif
