/* normalizer_spm.c: owns the two readings of a SentencePiece character map.  Does not own the map.  Invariant: bytes that no
 * key matches are copied character by character. */
#include "text/normalizer_spm.h"
#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

enum { GRAPHEME_MAX = 6 };

/* Bytes of the grapheme cluster at TEXT. */
static size_t grapheme_length(const char *text, size_t len)
{
	uint32_t         before, code;
	utf8proc_int32_t state = 0;
	size_t           at = (size_t)utf8_decode(text, len, &before);

	while (at < len) {
		size_t n = (size_t)utf8_decode(text + at, len - at, &code);
		if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)code, &state))
			break;
		at += n;
		before = code;
	}
	return at;
}

enum status normalizer_precompiled(const struct charsmap *map, const char *text, size_t len, struct buf *out)
{
	enum status status = STATUS_OK;
	uint32_t    code;

	for (size_t at = 0; at < len && !status;) {
		size_t      cluster = grapheme_length(text + at, len - at), key, end = at + cluster;
		const char *replacement = NULL;
		if (cluster < GRAPHEME_MAX)
			replacement = charsmap_shortest(map, text + at, cluster, &key);
		if (replacement) {
			status = buf_append_string(out, replacement);
			at = end;
		}
		while (at < end && !status) {
			size_t n = (size_t)utf8_decode(text + at, end - at, &code);
			replacement = charsmap_shortest(map, text + at, n, &key);
			status = replacement ? buf_append_string(out, replacement) : buf_append(out, text + at, n);
			at += n;
		}
	}
	return status;
}

static const char mark[] = "\xe2\x96\x81"; /* U+2581 */
enum { MARK_LEN = 3 };

/* Appends one mapped unit; blanks in front of it go when there was one before. */
static enum status put_unit(struct buf *out, const char *unit, size_t len, bool collapse, bool *space_before)
{
	enum status status = STATUS_OK;

	while (*space_before && len && *unit == ' ') {
		unit++;
		len--;
	}
	if (!len)
		return STATUS_OK;
	for (size_t i = 0; i < len && !status; i++)
		status = unit[i] == ' ' ? buf_append(out, mark, MARK_LEN) : buf_append(out, unit + i, 1);
	*space_before = collapse && unit[len - 1] == ' ';
	return status;
}

enum status normalizer_sentencepiece(const struct charsmap *map, const struct added_set *verbatim, bool prefix, bool collapse,
    const char *text, size_t len, struct buf *out)
{
	bool        begun = false, space_before = collapse;
	enum status status = STATUS_OK;
	uint32_t    code;

	for (size_t at = 0; at < len && !status;) {
		size_t      key = 0, unit_len;
		const char *unit = NULL;
		size_t      kept = verbatim ? added_length(verbatim, text + at, len - at) : 0;
		if (kept) {
			unit = text + at;
			unit_len = key = kept;
		} else if ((unit = charsmap_longest(map, text + at, len - at, &key))) {
			unit_len = strlen(unit);
		} else {
			unit = text + at;
			unit_len = key = (size_t)utf8_decode(text + at, len - at, &code);
		}
		at += key;
		if (!begun) {
			if (collapse && unit_len == 1 && *unit == ' ')
				continue; /* heading space */
			begun = true;
			if (prefix)
				status = buf_append(out, mark, MARK_LEN);
		}
		if (!status)
			status = put_unit(out, unit, unit_len, collapse, &space_before);
	}
	while (collapse && out->len >= MARK_LEN && memcmp(out->data + out->len - MARK_LEN, mark, MARK_LEN) == 0)
		out->len -= MARK_LEN;
	return status;
}
