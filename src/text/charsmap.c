/* charsmap.c: owns the walk through a Darts-clone double array.  Does not know what is replaced for which reason.
 *
 * A unit holds: bits 0…7 the label by which it is reached (bit 31 clear) or, with bit 31 set, a value; bit 8: a value hangs
 * here; bits 10…30, shifted by 8 more when bit 9 is set: offset to the children.
 *
 * Invariant: no step leaves the array, whatever the file says. */
#include "text/charsmap.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static uint32_t little_endian(const unsigned char *b)
{
	return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

enum status charsmap_init(struct charsmap *map, const char *bytes, size_t len, struct error *error)
{
	const unsigned char *b = (const unsigned char *)bytes;
	uint32_t             trie = len >= 4 ? little_endian(b) : 0;

	*map = (struct charsmap){ .units = NULL };
	if (trie < 4 || trie % 4 || trie > len - 4)
		return error_set(error, STATUS_INVALID, "the normalizer's character map of %zu bytes says its trie has %u", len, trie);
	map->unit_count = trie / 4;
	map->text_len = len - 4 - trie;
	map->units = malloc(trie);
	map->text = malloc(map->text_len + 1);
	if (!map->units || !map->text) {
		charsmap_free(map);
		return error_set(error, STATUS_NOMEM, "no memory for a character map of %zu bytes", len);
	}
	for (size_t i = 0; i < map->unit_count; i++)
		map->units[i] = little_endian(b + 4 + 4 * i);
	memcpy(map->text, b + 4 + trie, map->text_len);
	map->text[map->text_len] = '\0';
	if (!utf8_valid(map->text, map->text_len, NULL)) {
		charsmap_free(map);
		return error_set(error, STATUS_INVALID, "the normalizer's character map is not UTF-8");
	}
	return STATUS_OK;
}

void charsmap_free(struct charsmap *map)
{
	free(map->units);
	free(map->text);
	*map = (struct charsmap){ .units = NULL };
}

static size_t offset_of(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6); }

static const char *find(const struct charsmap *map, const char *text, size_t len, bool shortest, size_t *ret_key_len)
{
	const char *found = NULL;
	size_t      node;

	if (!map->unit_count)
		return NULL;
	node = offset_of(map->units[0]);
	for (size_t i = 0; i < len; i++) {
		uint32_t unit, c = (unsigned char)text[i];
		node ^= c;
		if (c == 0 || node >= map->unit_count)
			break;
		unit = map->units[node];
		if ((unit & (1u << 31 | 0xff)) != c)
			break;
		node ^= offset_of(unit);
		if (unit >> 8 & 1 && node < map->unit_count) {
			size_t at = map->units[node] & ~(1u << 31);
			bool   whole = i + 1 == len || ((unsigned char)text[i + 1] & 0xc0) != 0x80;
			if (whole && at <= map->text_len && ((unsigned char)map->text[at] & 0xc0) != 0x80) { /* no half characters */
				found = map->text + at;
				*ret_key_len = i + 1;
				if (shortest)
					break;
			}
		}
	}
	return found;
}

const char *charsmap_shortest(const struct charsmap *map, const char *text, size_t len, size_t *ret_key_len)
{
	return find(map, text, len, true, ret_key_len);
}

const char *charsmap_longest(const struct charsmap *map, const char *text, size_t len, size_t *ret_key_len)
{
	return find(map, text, len, false, ret_key_len);
}
