/* json_scan.c: owns the grammar of JSON, one byte at a time.  Does not build values.  Invariant: after an error the scan is as
 * it was before the byte, so that what was read up to there can still be closed. */
#include "api/json_scan.h"

#include "base/utf8.h"

#include <string.h>

void json_scan_init(struct json_scan *scan) { *scan = (struct json_scan){ .state = JSON_SCAN_VALUE }; }

static bool blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
static bool digit(char c) { return c >= '0' && c <= '9'; }
static bool hexadecimal(char c) { return digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

static bool in_object(const struct json_scan *s) { return s->objects[(s->depth - 1) / 64] >> ((s->depth - 1) % 64) & 1; }

static enum json_scan_result go(struct json_scan *s, enum json_scan_state state)
{
	s->state = state;
	return JSON_SCAN_MORE;
}

/* A value is complete. */
static enum json_scan_result complete(struct json_scan *s)
{
	s->state = s->depth ? JSON_SCAN_AFTER : JSON_SCAN_END;
	return s->depth ? JSON_SCAN_MORE : JSON_SCAN_DONE;
}

static enum json_scan_result open_container(struct json_scan *s, bool object)
{
	uint64_t bit = UINT64_C(1) << (s->depth % 64), *word = &s->objects[s->depth / 64 % (JSON_SCAN_DEPTH_MAX / 64)];

	if (s->depth == JSON_SCAN_DEPTH_MAX)
		return JSON_SCAN_ERROR;
	*word = object ? *word | bit : *word & ~bit;
	s->depth++;
	return go(s, object ? JSON_SCAN_FIRST_KEY : JSON_SCAN_FIRST_ITEM);
}

static enum json_scan_result literal(struct json_scan *s, const char *rest)
{
	s->literal = rest;
	return go(s, JSON_SCAN_LITERAL);
}

static enum json_scan_result value(struct json_scan *s, char c)
{
	switch (c) {
	case '{':
	case '[':
		return open_container(s, c == '{');
	case '"':
		return go(s, JSON_SCAN_STRING);
	case '-':
		return go(s, JSON_SCAN_MINUS);
	case '0':
		return go(s, JSON_SCAN_ZERO);
	case 't':
		return literal(s, "rue");
	case 'f':
		return literal(s, "alse");
	case 'n':
		return literal(s, "ull");
	default:
		return digit(c) ? go(s, JSON_SCAN_INTEGER) : JSON_SCAN_ERROR;
	}
}

static enum json_scan_result after(struct json_scan *s, char c)
{
	if (c == ',')
		return go(s, in_object(s) ? JSON_SCAN_NEXT_KEY : JSON_SCAN_VALUE);
	if (c != (in_object(s) ? '}' : ']'))
		return JSON_SCAN_ERROR;
	s->depth--;
	return complete(s);
}

bool json_scan_number_ends(const struct json_scan *s)
{
	return s->state == JSON_SCAN_ZERO || s->state == JSON_SCAN_INTEGER || s->state == JSON_SCAN_FRACTION ||
	    s->state == JSON_SCAN_EXPONENT;
}

/* A number, and a byte that is not part of it. */
static enum json_scan_result number_end(struct json_scan *s, char c)
{
	enum json_scan_state state = s->state;

	if (!json_scan_number_ends(s))
		return JSON_SCAN_ERROR;
	if (s->depth == 0) {
		s->state = JSON_SCAN_END;
		return JSON_SCAN_BEFORE;
	}
	s->state = JSON_SCAN_AFTER;
	if (blank(c))
		return JSON_SCAN_MORE;
	enum json_scan_result result = after(s, c);
	if (result == JSON_SCAN_ERROR)
		s->state = state;
	return result;
}

static enum json_scan_result number(struct json_scan *s, char c)
{
	switch (s->state) {
	case JSON_SCAN_MINUS:
		return c == '0' ? go(s, JSON_SCAN_ZERO) : digit(c) ? go(s, JSON_SCAN_INTEGER) : JSON_SCAN_ERROR;
	case JSON_SCAN_INTEGER:
	case JSON_SCAN_ZERO:
		if (digit(c) && s->state == JSON_SCAN_INTEGER)
			return JSON_SCAN_MORE;
		return c == '.' ? go(s, JSON_SCAN_POINT) : c == 'e' || c == 'E' ? go(s, JSON_SCAN_E) : number_end(s, c);
	case JSON_SCAN_POINT:
	case JSON_SCAN_FRACTION:
		if (digit(c))
			return go(s, JSON_SCAN_FRACTION);
		return s->state == JSON_SCAN_FRACTION && (c == 'e' || c == 'E') ? go(s, JSON_SCAN_E) : number_end(s, c);
	case JSON_SCAN_E:
		if (c == '+' || c == '-')
			return go(s, JSON_SCAN_SIGN);
		return digit(c) ? go(s, JSON_SCAN_EXPONENT) : JSON_SCAN_ERROR;
	default: /* sign, exponent */
		return digit(c) ? go(s, JSON_SCAN_EXPONENT) : number_end(s, c);
	}
}

static enum json_scan_result escape(struct json_scan *s, char c, enum json_scan_state string)
{
	if (s->hex) {
		if (!hexadecimal(c))
			return JSON_SCAN_ERROR;
		return --s->hex ? JSON_SCAN_MORE : go(s, string);
	}
	if (c == 'u') {
		s->hex = 4;
		return JSON_SCAN_MORE;
	}
	return c && strchr("\"\\/bfnrt", c) ? go(s, string) : JSON_SCAN_ERROR;
}

enum json_scan_result json_scan_byte(struct json_scan *s, char c)
{
	switch (s->state) {
	case JSON_SCAN_STRING:
		return c == '"' ? complete(s) : c == '\\' ? go(s, JSON_SCAN_ESCAPE) : JSON_SCAN_MORE;
	case JSON_SCAN_KEY:
		return go(s, c == '"' ? JSON_SCAN_COLON : c == '\\' ? JSON_SCAN_KEY_ESCAPE : JSON_SCAN_KEY);
	case JSON_SCAN_ESCAPE:
		return escape(s, c, JSON_SCAN_STRING);
	case JSON_SCAN_KEY_ESCAPE:
		return escape(s, c, JSON_SCAN_KEY);
	case JSON_SCAN_LITERAL:
		if (c != *s->literal)
			return JSON_SCAN_ERROR;
		return *++s->literal ? JSON_SCAN_MORE : complete(s);
	case JSON_SCAN_END:
		return JSON_SCAN_ERROR;
	default:
		break;
	}
	if (s->state >= JSON_SCAN_MINUS && s->state <= JSON_SCAN_EXPONENT)
		return number(s, c);
	if (blank(c))
		return JSON_SCAN_MORE;
	switch (s->state) {
	case JSON_SCAN_FIRST_KEY:
		if (c == '}') {
			s->depth--;
			return complete(s);
		}
		return c == '"' ? go(s, JSON_SCAN_KEY) : JSON_SCAN_ERROR;
	case JSON_SCAN_NEXT_KEY:
		return c == '"' ? go(s, JSON_SCAN_KEY) : JSON_SCAN_ERROR;
	case JSON_SCAN_COLON:
		return c == ':' ? go(s, JSON_SCAN_VALUE) : JSON_SCAN_ERROR;
	case JSON_SCAN_FIRST_ITEM:
		if (c == ']') {
			s->depth--;
			return complete(s);
		}
		return value(s, c);
	case JSON_SCAN_AFTER:
		return after(s, c);
	default:
		return value(s, c);
	}
}

bool json_scan_valid(const char *text, size_t len)
{
	struct json_scan      scan;
	enum json_scan_result result = JSON_SCAN_MORE;
	size_t                i = 0;

	json_scan_init(&scan);
	for (; i < len && result == JSON_SCAN_MORE; i++)
		result = json_scan_byte(&scan, text[i]);
	if (result == JSON_SCAN_BEFORE)
		i--;
	else if (result == JSON_SCAN_MORE && (scan.depth || !json_scan_number_ends(&scan)))
		return false;
	for (; i < len; i++)
		if (!blank(text[i]))
			return false;
	return result != JSON_SCAN_ERROR;
}

enum status json_scan_close(const struct json_scan *s, struct buf *out)
{
	enum status status = s->state == JSON_SCAN_STRING || s->state == JSON_SCAN_ESCAPE ? buf_append(out, "\"", 1) : STATUS_OK;

	for (unsigned level = s->depth; level > 0 && !status; level--)
		status = buf_append(out, s->objects[(level - 1) / 64] >> ((level - 1) % 64) & 1 ? "}" : "]", 1);
	return status;
}

/* ---- strings ------------------------------------------------------------------------------------------------------------ */

enum status json_scan_escape(struct buf *out, const char *bytes, size_t len)
{
	static const char hex[] = "0123456789abcdef", names[] = "btn\0fr";
	enum status       status = STATUS_OK;
	size_t            from = 0;

	for (size_t i = 0; i < len && !status; i++) {
		unsigned char c = (unsigned char)bytes[i];
		char          text[6] = { '\\', (char)c };
		size_t        text_len = 2;

		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		if (c < 0x20 && c >= 8 && c <= 13 && names[c - 8]) {
			text[1] = names[c - 8];
		} else if (c < 0x20) {
			memcpy(text, (const char[6]){ '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] }, 6);
			text_len = 6;
		}
		status = buf_append(out, bytes + from, i - from);
		if (!status)
			status = buf_append(out, text, text_len);
		from = i + 1;
	}
	return status || from == len ? status : buf_append(out, bytes + from, len - from);
}

enum { UNESCAPE_PLAIN, UNESCAPE_BACKSLASH, UNESCAPE_HEX };

static const char replacement[] = "\xef\xbf\xbd";

/* A \u escape is complete. */
static void take_code(struct json_unescape *u, char ret[8], unsigned *len)
{
	u->state = UNESCAPE_PLAIN;
	if (u->high && u->code >= 0xdc00 && u->code < 0xe000) {
		*len += (unsigned)utf8_encode(0x10000 + ((u->high - 0xd800) << 10) + (u->code - 0xdc00), ret + *len);
		u->high = 0;
		return;
	}
	if (u->high) {
		memcpy(ret + *len, replacement, 3);
		*len += 3;
		u->high = 0;
	}
	if (u->code >= 0xd800 && u->code < 0xdc00)
		u->high = u->code;
	else
		*len += (unsigned)utf8_encode(u->code, ret + *len);
}

bool json_unescape_byte(struct json_unescape *u, char c, char ret[8], unsigned *ret_len)
{
	static const char names[] = "bfnrt\"\\/", values[] = "\b\f\n\r\t\"\\/";
	const char       *at;
	unsigned          len = 0;

	*ret_len = 0;
	if (u->state == UNESCAPE_HEX) {
		if (!hexadecimal(c))
			return false;
		u->code = u->code << 4 | (unsigned)(digit(c) ? c - '0' : (c | 32) - 'a' + 10);
		if (--u->hex == 0)
			take_code(u, ret, ret_len);
		return true;
	}
	if (u->state == UNESCAPE_BACKSLASH && c == 'u') {
		u->state = UNESCAPE_HEX;
		u->hex = 4;
		u->code = 0;
		return true;
	}
	if (u->state == UNESCAPE_PLAIN && c == '\\') {
		u->state = UNESCAPE_BACKSLASH;
		return true;
	}
	if (u->high) { /* its other half did not come */
		memcpy(ret, replacement, 3);
		len = 3;
		u->high = 0;
	}
	if (u->state == UNESCAPE_BACKSLASH) {
		at = c ? strchr(names, c) : NULL;
		if (!at)
			return false;
		c = values[at - names];
		u->state = UNESCAPE_PLAIN;
	}
	ret[len++] = c;
	*ret_len = len;
	return true;
}
