/* stop.c: owns the matching of stop strings (Knuth, Morris, Pratt 1977; one automaton per string, since there are few).
 * Does not know tokens beyond their count.  Invariant: between calls `pending` holds exactly the longest end of the text
 * that is a proper beginning of some stop string, so everything before it has been released. */
#include "api/stop.h"

#include <stdlib.h>
#include <string.h>

struct stop_string {
	unsigned len, state; /* state: bytes matched so far */
	char     bytes[STOP_BYTES_MAX];
	uint16_t border[STOP_BYTES_MAX]; /* [i]: longest proper border of bytes[0 … i] */
};

enum { PENDING_MAX = 1 << 20 }; /* far above one token's text */

void stop_init(struct stop_matcher *matcher)
{
	*matcher = (struct stop_matcher){ 0 };
	buf_init(&matcher->pending, PENDING_MAX);
}

void stop_free(struct stop_matcher *matcher)
{
	if (!matcher)
		return;
	free(matcher->strings);
	buf_free(&matcher->pending);
	matcher->strings = NULL;
	matcher->count = 0;
}

enum status stop_add(struct stop_matcher *matcher, const char *bytes, size_t len)
{
	struct stop_string *strings, *added;

	if (len == 0 || len > STOP_BYTES_MAX)
		return STATUS_INVALID;
	if (matcher->count == STOP_STRINGS_MAX)
		return STATUS_LIMIT;
	strings = realloc(matcher->strings, (matcher->count + 1) * sizeof *strings);
	if (!strings)
		return STATUS_NOMEM;
	matcher->strings = strings;
	added = &strings[matcher->count++];
	added->len = (unsigned)len;
	added->state = 0;
	memcpy(added->bytes, bytes, len);
	added->border[0] = 0;
	for (unsigned i = 1, k = 0; i < len; i++) {
		while (k > 0 && bytes[i] != bytes[k])
			k = added->border[k - 1];
		k += bytes[i] == bytes[k];
		added->border[i] = (uint16_t)k;
	}
	if (len > matcher->longest)
		matcher->longest = (unsigned)len;
	return STATUS_OK;
}

/* Advances every automaton by one byte.  Returns the length of the longest string that is now complete, or 0, and in
 * *ret_held how many of the last bytes may still become one. */
static unsigned advance(struct stop_matcher *matcher, char c, unsigned *ret_held)
{
	unsigned complete = 0, held = 0;

	for (unsigned i = 0; i < matcher->count; i++) {
		struct stop_string *s = &matcher->strings[i];

		while (s->state > 0 && s->bytes[s->state] != c)
			s->state = s->border[s->state - 1];
		s->state += s->bytes[s->state] == c;
		if (s->state > held)
			held = s->state;
		if (s->state == s->len) {
			if (s->len > complete)
				complete = s->len;
			s->state = s->border[s->len - 1];
		}
	}
	*ret_held = held;
	return complete;
}

/* Releases the first LEN pending bytes; the rest stays held. */
static enum status release(struct stop_matcher *matcher, size_t len, unsigned old_held, uint32_t tokens, struct buf *out)
{
	size_t      held = matcher->pending.len - len;
	enum status status = buf_append(out, matcher->pending.data, len);

	if (status)
		return status;
	if (len > 0)
		matcher->released_tokens = len <= old_held ? matcher->held_tokens[len - 1] : tokens;
	for (size_t i = 0; i < held; i++)
		matcher->held_tokens[i] = len + i < old_held ? matcher->held_tokens[len + i] : tokens;
	buf_consume(&matcher->pending, len);
	return STATUS_OK;
}

enum status stop_feed(struct stop_matcher *matcher, const char *text, size_t len, uint32_t tokens, struct buf *out,
    uint32_t *ret_keep)
{
	unsigned    old_held = (unsigned)matcher->pending.len, held = old_held;
	enum status status;

	if (matcher->matched || len == 0)
		return STATUS_OK;
	if (matcher->count == 0)
		return buf_append(out, text, len);
	status = buf_append(&matcher->pending, text, len);
	if (status)
		return status;
	for (size_t i = 0; i < len; i++) {
		unsigned complete = advance(matcher, text[i], &held);

		if (complete == 0)
			continue;
		matcher->pending.len = old_held + i + 1; /* what follows the stop string is nobody's */
		status = release(matcher, matcher->pending.len - (matcher->include ? 0 : complete), old_held, tokens, out);
		if (status)
			return status;
		matcher->matched = true;
		buf_free(&matcher->pending);
		*ret_keep = matcher->released_tokens;
		return STATUS_OK;
	}
	return release(matcher, matcher->pending.len - held, old_held, tokens, out);
}

enum status stop_gap(struct stop_matcher *matcher, uint32_t tokens, struct buf *out)
{
	enum status status = STATUS_OK;

	if (matcher->matched || matcher->count == 0)
		return STATUS_OK;
	if (matcher->pending.len > 0)
		status = buf_append(out, matcher->pending.data, matcher->pending.len);
	if (status)
		return status;
	buf_clear(&matcher->pending);
	for (unsigned i = 0; i < matcher->count; i++)
		matcher->strings[i].state = 0;
	matcher->released_tokens = tokens;
	return STATUS_OK;
}

enum status stop_finish(struct stop_matcher *matcher, struct buf *out)
{
	enum status status = STATUS_OK;

	if (!matcher->matched && matcher->pending.len > 0)
		status = buf_append(out, matcher->pending.data, matcher->pending.len);
	if (!status)
		buf_free(&matcher->pending);
	return status;
}
