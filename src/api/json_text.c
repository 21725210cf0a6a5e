/* json_text.c: owns the limits that hold before jansson sees a byte, and the only JSON escaping of penstock.  Does not know
 * any field.  Invariant: what json_text_append_string writes is always one well-formed JSON string in UTF-8. */
#include "api/json_text.h"

#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

/* jansson recurses for each level and allocates for each value, so both are counted first.  This pass knows only strings
 * and brackets; whatever else is wrong is found by the parser. */
static enum status check_limits(const char *bytes, size_t len, size_t max_depth, struct error *error)
{
	size_t depth = 0, values = 1;
	bool   in_string = false;

	for (size_t i = 0; i < len; i++) {
		char c = bytes[i];

		if (in_string) {
			if (c == '\\')
				i++;
			else if (c == '"')
				in_string = false;
			continue;
		}
		if (c == '"') {
			in_string = true;
		} else if (c == '[' || c == '{') {
			values++;
			if (++depth > max_depth)
				return error_set(error, STATUS_LIMIT, "the body is nested deeper than %zu levels at byte %zu", max_depth, i);
		} else if (c == ']' || c == '}') {
			depth -= depth > 0;
		} else if (c == ',' && ++values > JSON_TEXT_VALUES_MAX) {
			return error_set(error, STATUS_LIMIT, "the body holds more than %d values at byte %zu", JSON_TEXT_VALUES_MAX, i);
		}
	}
	return STATUS_OK;
}

const char *json_text_type(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "an array";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
		return "an integer";
	case JSON_REAL:
		return "a number";
	case JSON_TRUE:
	case JSON_FALSE:
		return "a boolean";
	case JSON_NULL:
		return "null";
	}
	return "something else";
}

static bool blank(const char *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!memchr(" \t\r\n", bytes[i], 4))
			return false;
	return true;
}

static enum status load(const char *bytes, size_t len, size_t max_depth, size_t flags, json_t **ret, struct error *error)
{
	json_error_t where;
	json_t      *root;
	enum status  status;

	if (blank(bytes, len))
		return error_set(error, STATUS_BAD_JSON, "the body is empty; a JSON object is expected");
	status = check_limits(bytes, len, max_depth < JSON_TEXT_DEPTH_MAX ? max_depth : JSON_TEXT_DEPTH_MAX, error);
	if (status)
		return status;
	root = json_loadb(bytes, len, flags | JSON_ALLOW_NUL | JSON_DECODE_ANY, &where);
	if (!root && json_error_code(&where) == json_error_out_of_memory)
		return error_set(error, STATUS_NOMEM, "out of memory while reading the body");
	if (!root)
		return error_set(error, STATUS_BAD_JSON, "the body is not valid JSON at byte %d (line %d, column %d): %s",
		    where.position, where.line, where.column, where.text);
	if (!json_is_object(root)) {
		error_set(error, STATUS_BAD_JSON, "the body must be a JSON object, not %s", json_text_type(root));
		json_decref(root);
		return STATUS_BAD_JSON;
	}
	*ret = root;
	return STATUS_OK;
}

enum status json_text_load(const char *bytes, size_t len, size_t max_depth, json_t **ret, struct error *error)
{
	return load(bytes, len, max_depth, JSON_REJECT_DUPLICATES, ret, error);
}

enum status json_text_load_last(const char *bytes, size_t len, size_t max_depth, json_t **ret, struct error *error)
{
	return load(bytes, len, max_depth, 0, ret, error);
}

static bool plain(char c) { return (unsigned char)c >= 0x20 && (unsigned char)c < 0x80 && c != '"' && c != '\\'; }

static enum status append_escape(struct buf *out, char c)
{
	static const char from[] = "\"\\\n\r\t", to[] = "\"\\nrt";
	const char       *at = c ? strchr(from, c) : NULL;

	if (at)
		return buf_append(out, (char[]){ '\\', to[at - from] }, 2);
	return buf_append_format(out, "\\u%04x", (unsigned)(unsigned char)c);
}

enum status json_text_append_string(struct buf *out, const char *bytes, size_t len)
{
	size_t      done = 0, at = 0; /* bytes[done … at) are copied as they are */
	enum status status = buf_append(out, "\"", 1);

	while (!status && at < len) {
		uint32_t code;
		int      n;

		if (plain(bytes[at])) {
			at++;
			continue;
		}
		n = utf8_decode(bytes + at, len - at, &code);
		if (n > 1) {
			at += (size_t)n;
			continue;
		}
		status = buf_append(out, bytes + done, at - done);
		if (status)
			break;
		if (n == 1)
			status = append_escape(out, bytes[at]);
		else
			status = buf_append(out, "\xef\xbf\xbd", 3);
		at = n > 0 ? at + 1 : n < 0 ? at + (size_t)-n : len;
		done = at;
	}
	if (!status && at > done)
		status = buf_append(out, bytes + done, at - done);
	return status ? status : buf_append(out, "\"", 1);
}
