/* json_pull.c: owns the grammar of JSON for one pass over a text.  Keeps no tree and does not look for double keys.
 * Invariant: start ≤ at ≤ end; once `wrong` is set, `at` does not move. */
#include "file/json_pull.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_MAX = 64 };

void json_pull_init(struct json_pull *reader, const char *bytes, size_t len)
{
	*reader = (struct json_pull){ .start = bytes, .at = bytes, .end = bytes + len };
	buf_init(&reader->unescaped, JSON_PULL_STRING_MAX);
}

void json_pull_free(struct json_pull *reader) { buf_free(&reader->unescaped); }

bool json_pull_failed(const struct json_pull *reader) { return reader->wrong != NULL; }

enum status json_pull_error(const struct json_pull *reader, const char *label, struct error *error)
{
	return error_set(error, STATUS_INVALID, "%.160s: %s, at byte %zu", label, reader->wrong ? reader->wrong : "no error",
	    (size_t)(reader->at - reader->start));
}

void json_pull_refuse(struct json_pull *reader, const char *what)
{
	if (!reader->wrong)
		reader->wrong = what;
}

static bool fail(struct json_pull *reader, const char *what)
{
	json_pull_refuse(reader, what);
	return false;
}

static void skip_space(struct json_pull *reader)
{
	while (reader->at < reader->end && (*reader->at == ' ' || *reader->at == '\n' || *reader->at == '\t' || *reader->at == '\r'))
		reader->at++;
}

bool json_pull_at_end(struct json_pull *reader)
{
	skip_space(reader);
	return reader->at == reader->end;
}

static bool begins_value(char c)
{
	return c == '"' || c == '[' || c == '{' || c == 't' || c == 'f' || c == 'n' || c == '-' || (c >= '0' && c <= '9');
}

char json_pull_peek(struct json_pull *reader)
{
	if (reader->wrong)
		return 0;
	skip_space(reader);
	if (reader->at == reader->end)
		return fail(reader, "the JSON text is cut short");
	if (!begins_value(*reader->at))
		return fail(reader, "no JSON value stands here");
	return *reader->at;
}

bool json_pull_enter(struct json_pull *reader, char bracket)
{
	char here = json_pull_peek(reader);

	if (!here)
		return false;
	if (here != bracket)
		return fail(reader, bracket == '{' ? "an object is needed" : "a list is needed");
	if (reader->depth == JSON_PULL_DEPTH_MAX)
		return fail(reader, "the JSON text is nested too deeply");
	reader->depth++;
	reader->at++;
	reader->fresh = true;
	return true;
}

/* Steps over the comma before the next member, or over the closing bracket: then false. */
static bool more(struct json_pull *reader, char bracket)
{
	if (reader->wrong)
		return false;
	skip_space(reader);
	if (reader->at == reader->end)
		return fail(reader, "the JSON text is cut short");
	if (*reader->at == bracket) {
		reader->at++;
		reader->depth--;
		reader->fresh = false;
		return false;
	}
	if (!reader->fresh) {
		if (*reader->at != ',')
			return fail(reader, "a comma or a closing bracket is needed");
		reader->at++;
	}
	reader->fresh = false;
	return true;
}

bool json_pull_key(struct json_pull *reader, const char **ret, size_t *ret_len)
{
	if (!more(reader, '}') || !json_pull_string(reader, ret, ret_len))
		return false;
	skip_space(reader);
	if (reader->at == reader->end || *reader->at != ':')
		return fail(reader, "a colon is needed");
	reader->at++;
	return true;
}

bool json_pull_element(struct json_pull *reader) { return more(reader, ']') && json_pull_peek(reader); }

static int hex4(const char *at, const char *end)
{
	int value = 0;

	if (end - at < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		unsigned char c = (unsigned char)at[i];
		if (c >= '0' && c <= '9')
			value = value * 16 + c - '0';
		else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
			value = value * 16 + (c | 0x20) - 'a' + 10;
		else
			return -1;
	}
	return value;
}

/* The escape behind the backslash at AT: its length, 0 when it is none. */
static size_t unescape(const char *at, const char *end, char ret[4], size_t *ret_len)
{
	static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
	const char       *name;
	int               code, low;
	size_t            used = 5;

	if (at == end || !*at)
		return 0;
	name = strchr(names, *at);
	if (name) {
		ret[0] = values[name - names];
		*ret_len = 1;
		return 1;
	}
	if (*at != 'u' || (code = hex4(at + 1, end)) < 0)
		return 0;
	if (code >= 0xd800 && code < 0xdc00) {
		if (end - at < 11 || at[5] != '\\' || at[6] != 'u' || (low = hex4(at + 7, end)) < 0xdc00 || low > 0xdfff)
			return 0;
		code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
		used = 11;
	} else if (code >= 0xdc00 && code < 0xe000) {
		return 0;
	}
	*ret_len = utf8_encode((uint32_t)code, ret);
	return used;
}

/* The rest of a string that has an escape at AT. */
static bool escaped_string(struct json_pull *reader, const char *from, const char *at, const char **ret, size_t *ret_len)
{
	struct buf *out = &reader->unescaped;

	buf_clear(out);
	for (;;) {
		char   bytes[4];
		size_t len, used;
		if (buf_append(out, from, (size_t)(at - from)))
			return fail(reader, "the string is too long");
		if (at == reader->end)
			return fail(reader, "the string does not end");
		if (*at == '"')
			break;
		if ((unsigned char)*at < 0x20)
			return fail(reader, "a control character stands in a string");
		used = unescape(at + 1, reader->end, bytes, &len);
		if (!used)
			return fail(reader, "the string has a bad escape, or half of a surrogate pair");
		if (buf_append(out, bytes, len))
			return fail(reader, "the string is too long");
		from = at = at + 1 + used;
		while (at < reader->end && *at != '"' && *at != '\\' && (unsigned char)*at >= 0x20)
			at++;
	}
	if (!utf8_valid(out->data, out->len, NULL))
		return fail(reader, "the string is not UTF-8");
	reader->at = at + 1;
	*ret = out->data;
	*ret_len = out->len;
	return true;
}

bool json_pull_string(struct json_pull *reader, const char **ret, size_t *ret_len)
{
	const char   *from, *at;
	unsigned char high = 0;

	if (json_pull_peek(reader) != '"')
		return fail(reader, "a string is needed");
	from = at = reader->at + 1;
	while (at < reader->end && *at != '"' && *at != '\\' && (unsigned char)*at >= 0x20)
		high |= (unsigned char)*at++;
	if (at == reader->end || *at != '"')
		return escaped_string(reader, from, at, ret, ret_len);
	if (at - from > JSON_PULL_STRING_MAX)
		return fail(reader, "the string is too long");
	if (high >= 0x80 && !utf8_valid(from, (size_t)(at - from), NULL))
		return fail(reader, "the string is not UTF-8");
	reader->at = at + 1;
	*ret = from;
	*ret_len = (size_t)(at - from);
	return true;
}

/* The bytes of a number by the grammar: -?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?  0 when there is none. */
static size_t number_length(const char *at, const char *end, bool *ret_integer)
{
	const char *from = at, *digits;

	*ret_integer = true;
	if (at < end && *at == '-')
		at++;
	for (digits = at; at < end && *at >= '0' && *at <= '9';)
		at++;
	if (at == digits || (*digits == '0' && at - digits > 1))
		return 0;
	if (at < end && *at == '.') {
		*ret_integer = false;
		for (digits = ++at; at < end && *at >= '0' && *at <= '9';)
			at++;
		if (at == digits)
			return 0;
	}
	if (at < end && (*at | 0x20) == 'e') {
		*ret_integer = false;
		at++;
		if (at < end && (*at == '+' || *at == '-'))
			at++;
		for (digits = at; at < end && *at >= '0' && *at <= '9';)
			at++;
		if (at == digits)
			return 0;
	}
	return (size_t)(at - from);
}

bool json_pull_integer(struct json_pull *reader, int64_t min, int64_t max, int64_t *ret)
{
	bool    integer, negative;
	size_t  len;
	int64_t value = 0;

	if (!json_pull_peek(reader))
		return false;
	len = number_length(reader->at, reader->end, &integer);
	if (!len || !integer)
		return fail(reader, "a whole number is needed");
	negative = *reader->at == '-';
	for (size_t i = negative; i < len; i++)
		if (__builtin_mul_overflow(value, 10, &value) || __builtin_sub_overflow(value, reader->at[i] - '0', &value))
			return fail(reader, "the number is out of range");
	if (!negative && __builtin_sub_overflow(0, value, &value))
		return fail(reader, "the number is out of range");
	if (value < min || value > max)
		return fail(reader, "the number is out of range");
	reader->at += len;
	*ret = value;
	return true;
}

/* Exactly rounded: strtod reads the spelling, which powers of ten by multiplication would not reach. */
static double power_of_ten(unsigned exponent)
{
	char spelling[8] = "1e";

	spelling[2] = (char)('0' + exponent / 100);
	spelling[3] = (char)('0' + exponent / 10 % 10);
	spelling[4] = (char)('0' + exponent % 10);
	return strtod(spelling, NULL);
}

/* The value of a number as serde_json computes it: as many digits as fit 64 bits, rounded, times a power of ten, rounded
 * again.  It can be off by one unit in the last place, and that decides ties between the scores of a tokenizer. */
static double value_of(const char *at, const char *end)
{
	uint64_t digits = 0, more;
	int      exponent = 0, written = 0;
	bool     negative = *at == '-', full = false, fraction = false, down = false;
	double   value;

	for (at += negative; at < end && (*at | 0x20) != 'e'; at++) {
		if (*at == '.') {
			fraction = true;
		} else if (full || __builtin_mul_overflow(digits, 10, &more) || __builtin_add_overflow(more, *at - '0', &more)) {
			full = true;
			exponent += !fraction;
		} else {
			digits = more;
			exponent -= fraction;
		}
	}
	if (at < end) {
		at++;
		down = *at == '-';
		for (at += *at == '-' || *at == '+'; at < end; at++)
			written = written < 100000 ? written * 10 + *at - '0' : written;
	}
	exponent += down ? -written : written;
	value = (double)digits;
	if (exponent > 308 && digits)
		return negative ? -HUGE_VAL : HUGE_VAL;
	for (; exponent < -308; exponent += 308)
		value /= 1e308;
	value = exponent >= 0 ? value * power_of_ten((unsigned)exponent) : value / power_of_ten((unsigned)-exponent);
	return negative ? -value : value;
}

bool json_pull_number(struct json_pull *reader, double *ret)
{
	bool   integer;
	size_t len;
	double value;

	if (!json_pull_peek(reader))
		return false;
	len = number_length(reader->at, reader->end, &integer);
	if (!len || len >= NUMBER_MAX)
		return fail(reader, "a number is needed");
	value = value_of(reader->at, reader->at + len);
	if (!(value > -HUGE_VAL && value < HUGE_VAL))
		return fail(reader, "the number is out of range");
	reader->at += len;
	*ret = value;
	return true;
}

static bool word(struct json_pull *reader, const char *text)
{
	size_t len = strlen(text);

	if ((size_t)(reader->end - reader->at) < len || memcmp(reader->at, text, len) != 0)
		return false;
	reader->at += len;
	return true;
}

bool json_pull_bool(struct json_pull *reader, bool *ret)
{
	if (!json_pull_peek(reader))
		return false;
	if (word(reader, "true"))
		*ret = true;
	else if (word(reader, "false"))
		*ret = false;
	else
		return fail(reader, "true or false is needed");
	return true;
}

bool json_pull_null(struct json_pull *reader) { return json_pull_peek(reader) == 'n' && word(reader, "null"); }

/* One scalar, or the opening bracket of a value with members. */
static bool skip_one(struct json_pull *reader, char *ret_bracket)
{
	const char *bytes;
	size_t      len;
	bool        flag, integer;
	char        here = json_pull_peek(reader);

	*ret_bracket = 0;
	switch (here) {
	case 0:
		return false;
	case '{':
	case '[':
		*ret_bracket = here;
		return json_pull_enter(reader, here);
	case '"':
		return json_pull_string(reader, &bytes, &len);
	case 't':
	case 'f':
		return json_pull_bool(reader, &flag);
	case 'n':
		return json_pull_null(reader) || fail(reader, "no JSON value stands here");
	default:
		len = number_length(reader->at, reader->end, &integer);
		reader->at += len;
		return len || fail(reader, "no JSON value stands here");
	}
}

bool json_pull_skip(struct json_pull *reader, const char **ret, size_t *ret_len)
{
	char        open[JSON_PULL_DEPTH_MAX + 1], bracket;
	unsigned    depth = 0;
	const char *start, *key;
	size_t      len;

	if (!json_pull_peek(reader))
		return false;
	start = reader->at;
	do {
		if (!skip_one(reader, &bracket))
			return false;
		if (bracket)
			open[depth++] = bracket;
		while (depth && !(open[depth - 1] == '{' ? json_pull_key(reader, &key, &len) : json_pull_element(reader))) {
			if (reader->wrong)
				return false;
			depth--;
		}
	} while (depth);
	*ret = start;
	*ret_len = (size_t)(reader->at - start);
	return true;
}
