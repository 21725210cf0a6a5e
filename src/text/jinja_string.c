/* jinja_string.c: owns strings with provenance: building, cutting, case, Python's str(), repr() and % and json.dumps.  Does
 * not own what templates call (jinja_call.c, jinja_filter.c).
 *
 * Invariant: all strings are well-formed UTF-8 (sources and JSON are checked on the way in), and a byte's provenance goes
 * with it: parts keep it, what is written around data (quotes, separators) has that of the container. */
#include "text/jinja_parts.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unicode/uchar.h>
#include <unicode/ustring.h>

/* ---- building ----------------------------------------------------------------- */

static void reserve(struct jinja_run *run, struct jinja_builder *builder, size_t more)
{
	size_t   capacity = builder->capacity ? builder->capacity : 64;
	char    *bytes;
	uint8_t *mask;

	jinja_spend(run, more / 32);
	if (more <= builder->capacity - builder->len)
		return;
	if (more > run->arena.max)
		jinja_raise(run, STATUS_LIMIT, "the template needs more than %zu bytes of memory", run->arena.max);
	while (capacity - builder->len < more)
		capacity *= 2;
	bytes = jinja_alloc(run, capacity);
	if (builder->len)
		memcpy(bytes, builder->bytes, builder->len);
	if (builder->mask) {
		mask = jinja_alloc(run, capacity);
		memcpy(mask, builder->mask, builder->len);
		builder->mask = mask;
	}
	builder->bytes = bytes;
	builder->capacity = capacity;
}

static void need_mask(struct jinja_run *run, struct jinja_builder *builder)
{
	if (builder->mask)
		return;
	builder->mask = jinja_alloc(run, builder->capacity);
	memset(builder->mask, builder->data, builder->len);
}

void jinja_put(struct jinja_run *run, struct jinja_builder *builder, const char *bytes, size_t len, bool data)
{
	if (len == 0)
		return;
	reserve(run, builder, len);
	if (builder->len == 0)
		builder->data = data;
	else if (data != builder->data)
		need_mask(run, builder);
	memcpy(builder->bytes + builder->len, bytes, len);
	if (builder->mask)
		memset(builder->mask + builder->len, data, len);
	builder->len += len;
}

void jinja_put_string(struct jinja_run *run, struct jinja_builder *builder, struct jinja_string string)
{
	if (!string.mask || string.len == 0) {
		jinja_put(run, builder, string.bytes, string.len, string.data);
		return;
	}
	reserve(run, builder, string.len);
	need_mask(run, builder);
	memcpy(builder->bytes + builder->len, string.bytes, string.len);
	memcpy(builder->mask + builder->len, string.mask, string.len);
	builder->len += string.len;
}

struct jinja_string jinja_built(const struct jinja_builder *builder)
{
	return (struct jinja_string){ .bytes = builder->len ? builder->bytes : "", .len = builder->len, .mask = builder->mask,
		.data = builder->data };
}

struct jinja_value jinja_built_value(struct jinja_run *run, const struct jinja_builder *builder)
{
	return jinja_string_value(run, jinja_built(builder));
}

/* ---- cutting and finding ----------------------------------------------------------------- */

struct jinja_string jinja_part(struct jinja_string string, size_t from, size_t to)
{
	return (struct jinja_string){ .bytes = string.bytes + from, .len = to - from,
		.mask = string.mask ? string.mask + from : NULL, .data = string.data };
}

bool jinja_string_is(struct jinja_string string, const char *text)
{
	return strlen(text) == string.len && memcmp(string.bytes, text, string.len) == 0;
}

bool jinja_string_same(struct jinja_string a, struct jinja_string b)
{
	return a.len == b.len && (a.len == 0 || memcmp(a.bytes, b.bytes, a.len) == 0);
}

const char *jinja_terminated(struct jinja_run *run, struct jinja_string string)
{
	char *copy = jinja_alloc(run, string.len + 1);

	if (string.len)
		memcpy(copy, string.bytes, string.len);
	return copy;
}

size_t jinja_find(struct jinja_string string, struct jinja_string what, size_t from)
{
	const char *found;

	if (what.len == 0)
		return from <= string.len ? from : SIZE_MAX;
	if (from >= string.len)
		return SIZE_MAX;
	found = memmem(string.bytes + from, string.len - from, what.bytes, what.len);
	return found ? (size_t)(found - string.bytes) : SIZE_MAX;
}

size_t jinja_characters(struct jinja_string string)
{
	size_t count = 0;

	for (size_t i = 0; i < string.len; i++)
		count += ((uint8_t)string.bytes[i] & 0xC0) != 0x80;
	return count;
}

size_t jinja_character_bytes(struct jinja_string string, size_t offset)
{
	size_t bytes = 1;

	while (offset + bytes < string.len && ((uint8_t)string.bytes[offset + bytes] & 0xC0) == 0x80)
		bytes++;
	return bytes;
}

size_t jinja_character_at(struct jinja_string string, size_t character)
{
	size_t at = 0;

	for (; character > 0 && at < string.len; character--)
		at += jinja_character_bytes(string, at);
	return at;
}

uint32_t jinja_code_point(struct jinja_string string, size_t offset)
{
	uint32_t code = 0xFFFD;

	if (utf8_decode(string.bytes + offset, string.len - offset, &code) <= 0)
		return 0xFFFD;
	return code;
}

bool jinja_is_space(uint32_t code)
{
	return code == ' ' || (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x1F) || code == 0x85 ||
	    (code >= 0xA0 && (u_isUWhiteSpace((UChar32)code)));
}

static bool stripped(struct jinja_string string, size_t at, const struct jinja_string *chars)
{
	size_t bytes = jinja_character_bytes(string, at);

	if (!chars)
		return jinja_is_space(jinja_code_point(string, at));
	for (size_t i = 0; i < chars->len; i += jinja_character_bytes(*chars, i))
		if (jinja_character_bytes(*chars, i) == bytes && memcmp(chars->bytes + i, string.bytes + at, bytes) == 0)
			return true;
	return false;
}

struct jinja_string jinja_strip(struct jinja_string string, const struct jinja_string *chars, enum jinja_strip side)
{
	size_t from = 0, to = string.len;

	if (side & JINJA_STRIP_LEFT)
		while (from < to && stripped(string, from, chars))
			from += jinja_character_bytes(string, from);
	while ((side & JINJA_STRIP_RIGHT) && to > from) {
		size_t last = to - 1;
		while (last > from && ((uint8_t)string.bytes[last] & 0xC0) == 0x80)
			last--;
		if (!stripped(string, last, chars))
			break;
		to = last;
	}
	return jinja_part(string, from, to);
}

struct jinja_string jinja_replace(struct jinja_run *run, struct jinja_string string, struct jinja_string from,
    struct jinja_string to, int64_t limit)
{
	struct jinja_builder builder = { 0 };
	size_t               at = 0, found;

	while (limit != 0 && (found = jinja_find(string, from, at)) != SIZE_MAX) {
		jinja_spend(run, 1);
		jinja_put_string(run, &builder, jinja_part(string, at, found));
		jinja_put_string(run, &builder, to);
		at = found + from.len;
		limit -= limit > 0;
		if (from.len == 0) { /* between all characters */
			size_t bytes = found < string.len ? jinja_character_bytes(string, found) : 0;
			if (bytes == 0)
				break;
			jinja_put_string(run, &builder, jinja_part(string, found, found + bytes));
			at = found + bytes;
		}
	}
	jinja_put_string(run, &builder, jinja_part(string, at, string.len));
	return jinja_built(&builder);
}

struct jinja_value jinja_join(struct jinja_run *run, struct jinja_string separator, const struct jinja_list *items)
{
	struct jinja_builder builder = { 0 };

	for (size_t i = 0; i < items->count; i++) {
		jinja_spend(run, 1);
		if (i)
			jinja_put_string(run, &builder, separator);
		jinja_put_text(run, &builder, items->items[i]);
	}
	return jinja_built_value(run, &builder);
}

/* The line boundaries of str.splitlines: bytes of the one at AT, 0 = none. */
static size_t line_end(struct jinja_string string, size_t at)
{
	uint32_t code = jinja_code_point(string, at);

	if (code == '\r')
		return at + 1 < string.len && string.bytes[at + 1] == '\n' ? 2 : 1;
	if ((code >= 0x0A && code <= 0x0C) || (code >= 0x1C && code <= 0x1E))
		return 1;
	return code == 0x85 ? 2 : code == 0x2028 || code == 0x2029 ? 3 : 0;
}

struct jinja_value jinja_split_lines(struct jinja_run *run, struct jinja_string string, bool keep_ends)
{
	struct jinja_value lines = jinja_list_value(run, JINJA_LIST_PLAIN, 0);
	size_t             start = 0, at = 0, end;

	while (at < string.len) {
		end = line_end(string, at);
		if (end) {
			jinja_list_add(run, lines.list, jinja_string_value(run, jinja_part(string, start, keep_ends ? at + end : at)));
			start = at + end;
		}
		at += end ? end : jinja_character_bytes(string, at);
	}
	if (start < string.len)
		jinja_list_add(run, lines.list, jinja_string_value(run, jinja_part(string, start, string.len)));
	jinja_spend(run, string.len / 16);
	return lines;
}

/* ---- case ----------------------------------------------------------------- */

/* Full case mapping of a stretch of one provenance to JINJA_LOWER, JINJA_UPPER or, of one character, JINJA_TITLE. */
static void put_mapped(struct jinja_run *run, struct jinja_builder *builder, struct jinja_string string, enum jinja_case to,
    bool data)
{
	bool       ascii = true, upper = to != JINJA_LOWER;
	UChar     *wide, *mapped;
	char      *bytes;
	int32_t    wide_len = 0, mapped_len, bytes_len = 0;
	UErrorCode error = U_ZERO_ERROR;

	for (size_t i = 0; i < string.len; i++)
		ascii = ascii && (uint8_t)string.bytes[i] < 0x80;
	if (ascii) {
		bytes = jinja_alloc(run, string.len + 1);
		for (size_t i = 0; i < string.len; i++) {
			char c = string.bytes[i];
			bool changes = upper ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z';
			bytes[i] = changes ? (char)(c ^ 0x20) : c;
		}
		jinja_put(run, builder, bytes, string.len, data);
		return;
	}
	if (string.len > INT32_MAX / 12)
		jinja_raise(run, STATUS_LIMIT, "a string of %zu bytes is too long for a change of case", string.len);
	wide = jinja_alloc(run, (string.len + 1) * sizeof *wide);
	u_strFromUTF8(wide, (int32_t)string.len, &wide_len, string.bytes, (int32_t)string.len, &error);
	mapped_len = 3 * wide_len; /* no mapping is longer */
	mapped = jinja_alloc(run, ((size_t)mapped_len + 1) * sizeof *mapped);
	mapped_len = to == JINJA_LOWER ? u_strToLower(mapped, mapped_len, wide, wide_len, "", &error)
	    : to == JINJA_UPPER        ? u_strToUpper(mapped, mapped_len, wide, wide_len, "", &error)
	                               : u_strToTitle(mapped, mapped_len, wide, wide_len, NULL, "", &error);
	bytes = jinja_alloc(run, 3 * (size_t)(mapped_len > 0 ? mapped_len : 0) + 1);
	u_strToUTF8(bytes, 3 * mapped_len, &bytes_len, mapped, mapped_len, &error);
	if (U_FAILURE(error))
		jinja_raise(run, STATUS_INTERNAL, "case mapping failed: %s", u_errorName(error));
	jinja_put(run, builder, bytes, (size_t)bytes_len, data);
}

/* The same, stretch by stretch. */
static void put_case(struct jinja_run *run, struct jinja_builder *builder, struct jinja_string string, enum jinja_case to)
{
	size_t end;

	for (size_t at = 0; at < string.len; at = end) {
		bool data = string.mask ? string.mask[at] : string.data;

		for (end = at + 1; end < string.len && string.mask && string.mask[end] == data;)
			end++;
		if (!string.mask)
			end = string.len;
		put_mapped(run, builder, jinja_part(string, at, end), to, data);
	}
}

struct jinja_string jinja_change_case(struct jinja_run *run, struct jinja_string string, enum jinja_case to)
{
	struct jinja_builder builder = { 0 };
	bool                 inside = false; /* a word */

	jinja_spend(run, string.len / 8);
	if (to == JINJA_LOWER || to == JINJA_UPPER) {
		put_case(run, &builder, string, to);
		return jinja_built(&builder);
	}
	if (to == JINJA_CAPITALIZE) {
		size_t first = string.len ? jinja_character_bytes(string, 0) : 0;
		put_case(run, &builder, jinja_part(string, 0, first), JINJA_TITLE);
		put_case(run, &builder, jinja_part(string, first, string.len), JINJA_LOWER);
		return jinja_built(&builder);
	}
	for (size_t at = 0, bytes; at < string.len; at += bytes) {
		uint32_t code = jinja_code_point(string, at);
		bool     cased = u_hasBinaryProperty((UChar32)code, UCHAR_CASED);
		bool     raised = to == JINJA_SWAP ? u_islower((UChar32)code) : cased && !inside;

		bytes = jinja_character_bytes(string, at);
		put_case(run, &builder, jinja_part(string, at, at + bytes), !raised ? JINJA_LOWER : to == JINJA_SWAP
		    ? JINJA_UPPER : JINJA_TITLE);
		inside = cased;
	}
	return jinja_built(&builder);
}

/* ---- str() and repr() ----------------------------------------------------------------- */

/* The shortest digits that read back as F, as Python's repr writes them. */
static void put_float(struct jinja_run *run, struct jinja_builder *builder, double f, bool data, bool json)
{
	char  text[40], digits[40], *exponent;
	int   power, precision = 1, len;

	if (!isfinite(f)) {
		const char *word = isnan(f) ? (json ? "NaN" : "nan") : json ? (f < 0 ? "-Infinity" : "Infinity") : f < 0 ? "-inf" : "inf";
		jinja_put(run, builder, word, strlen(word), data);
		return;
	}
	do
		snprintf(text, sizeof text, "%.*e", precision - 1, f);
	while (strtod(text, NULL) != f && ++precision <= 17);
	exponent = strchr(text, 'e');
	power = exponent ? (int)strtol(exponent + 1, NULL, 10) : 0;
	if (power < -4 || power >= 16) {
		len = snprintf(digits, sizeof digits, "%.*s%s%c%02d", (int)(exponent - text), text, "e", power < 0 ? '-' : '+', abs(power));
	} else {
		int decimals = precision - 1 - power;
		len = snprintf(digits, sizeof digits, "%.*f", decimals > 0 ? decimals : 0, f);
		if (decimals <= 0)
			len += snprintf(digits + len, sizeof digits - (size_t)len, ".0");
	}
	jinja_put(run, builder, digits, (size_t)len, data);
}

static void put_int(struct jinja_run *run, struct jinja_builder *builder, int64_t i, bool data)
{
	char text[32];

	jinja_put(run, builder, text, (size_t)snprintf(text, sizeof text, "%" PRId64, i), data);
}

static bool is_printable(uint32_t code)
{
	uint32_t mask = U_GET_GC_MASK((UChar32)code);

	return code == ' ' || !(mask & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CS_MASK | U_GC_CO_MASK | U_GC_CN_MASK | U_GC_Z_MASK));
}

static void put_string_repr(struct jinja_run *run, struct jinja_builder *builder, struct jinja_string string, bool data)
{
	bool        apostrophe = memchr(string.bytes, '\'', string.len) && !memchr(string.bytes, '"', string.len);
	const char *quote = apostrophe ? "\"" : "'";
	char        escape[12];

	jinja_put(run, builder, quote, 1, data);
	for (size_t at = 0, bytes; at < string.len; at += bytes) {
		uint32_t code = jinja_code_point(string, at);
		bool     from_data = string.mask ? string.mask[at] : string.data;
		int      len = 0;

		bytes = jinja_character_bytes(string, at);
		if (code == '\\' || code == (uint32_t)*quote)
			len = snprintf(escape, sizeof escape, "\\%c", (char)code);
		else if (code == '\n' || code == '\r' || code == '\t')
			len = snprintf(escape, sizeof escape, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
		else if (!is_printable(code))
			len = snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
		if (len)
			jinja_put(run, builder, escape, (size_t)len, from_data);
		else
			jinja_put_string(run, builder, jinja_part(string, at, at + bytes));
	}
	jinja_put(run, builder, quote, 1, data);
}

static void put_word(struct jinja_run *run, struct jinja_builder *builder, const char *word, bool data)
{
	jinja_put(run, builder, word, strlen(word), data);
}

static void put_dict_repr(struct jinja_run *run, struct jinja_builder *builder, struct jinja_value value)
{
	put_word(run, builder, value.kind == JINJA_NAMESPACE ? "<Namespace {" : "{", value.data);
	for (size_t i = 0; i < value.dict->count; i++) {
		put_word(run, builder, i ? ", " : "", value.data);
		jinja_put_repr(run, builder, value.dict->entries[i].key);
		put_word(run, builder, ": ", value.data);
		jinja_put_repr(run, builder, value.dict->entries[i].value);
	}
	put_word(run, builder, value.kind == JINJA_NAMESPACE ? "}>" : "}", value.data);
}

static void put_list_repr(struct jinja_run *run, struct jinja_builder *builder, struct jinja_value value)
{
	const struct jinja_list *list = value.list;
	bool                     tuple = value.kind == JINJA_TUPLE, view = list->kind == JINJA_LIST_VIEW;

	if (list->kind == JINJA_LIST_GENERATOR) /* an address in the reference */
		jinja_raise(run, STATUS_INVALID, "a generator has no text; make it a list");
	if (list->kind == JINJA_LIST_RANGE) {
		int64_t first = list->count ? list->items[0].integer : 0;
		int64_t step = list->count > 1 ? list->items[1].integer - first : 1;

		put_word(run, builder, "range(", value.data);
		put_int(run, builder, first, value.data);
		put_word(run, builder, ", ", value.data);
		put_int(run, builder, first + step * (int64_t)list->count, value.data);
		if (step != 1) {
			put_word(run, builder, ", ", value.data);
			put_int(run, builder, step, value.data);
		}
		put_word(run, builder, ")", value.data);
		return;
	}
	if (view)
		put_word(run, builder, list->count && list->items[0].kind == JINJA_TUPLE ? "dict_items(" : "dict_keys(", value.data);
	put_word(run, builder, tuple ? "(" : "[", value.data);
	for (size_t i = 0; i < list->count; i++) {
		put_word(run, builder, i ? ", " : "", value.data);
		jinja_put_repr(run, builder, list->items[i]);
	}
	put_word(run, builder, tuple ? (list->count == 1 ? ",)" : ")") : "]", value.data);
	if (view)
		put_word(run, builder, ")", value.data);
}

void jinja_put_repr(struct jinja_run *run, struct jinja_builder *builder, struct jinja_value value)
{
	jinja_enter(run);
	switch (value.kind) {
	case JINJA_STRING: put_string_repr(run, builder, *value.string, value.data || (!value.string->mask &&
	    value.string->data)); break;
	case JINJA_LIST:
	case JINJA_TUPLE: put_list_repr(run, builder, value); break;
	case JINJA_DICT:
	case JINJA_NAMESPACE: put_dict_repr(run, builder, value); break;
	case JINJA_UNDEFINED: put_word(run, builder, "Undefined", false); break;
	case JINJA_NONE:
	case JINJA_BOOL:
	case JINJA_INT:
	case JINJA_FLOAT:
	case JINJA_FUNCTION:
	case JINJA_LOOP: jinja_put_text(run, builder, value); break;
	}
	run->depth--;
}

void jinja_put_text(struct jinja_run *run, struct jinja_builder *builder, struct jinja_value value)
{
	switch (value.kind) {
	case JINJA_UNDEFINED: break;
	case JINJA_NONE: put_word(run, builder, "None", value.data); break;
	case JINJA_BOOL: put_word(run, builder, value.boolean ? "True" : "False", value.data); break;
	case JINJA_INT: put_int(run, builder, value.integer, value.data); break;
	case JINJA_FLOAT: put_float(run, builder, value.real, value.data, false); break;
	case JINJA_STRING: jinja_put_string(run, builder, *value.string); break;
	case JINJA_LIST:
	case JINJA_TUPLE:
	case JINJA_DICT:
	case JINJA_NAMESPACE: jinja_put_repr(run, builder, value); break;
	case JINJA_FUNCTION:
	case JINJA_LOOP: jinja_raise(run, STATUS_INVALID, "a '%s' has no text", jinja_type_name(value));
	}
}

struct jinja_string jinja_text(struct jinja_run *run, struct jinja_value value)
{
	struct jinja_builder builder = { 0 };

	if (value.kind == JINJA_STRING)
		return *value.string;
	jinja_put_text(run, &builder, value);
	return jinja_built(&builder);
}

/* ---- json.dumps ----------------------------------------------------------------- */

static void put_json_string(struct jinja_run *run, struct jinja_builder *builder, struct jinja_string string, bool data,
    bool ensure_ascii)
{
	size_t plain = 0; /* start of what needs no escape */

	jinja_put(run, builder, "\"", 1, data);
	for (size_t at = 0, bytes; at < string.len; at += bytes) {
		uint8_t  byte = (uint8_t)string.bytes[at];
		char     escape[16];
		int      len = 0;
		uint32_t code;

		bytes = 1;
		if (byte == '"' || byte == '\\') {
			len = snprintf(escape, sizeof escape, "\\%c", byte);
		} else if (byte < 0x20) {
			const char *names = "btn\0fr", *name = byte >= 8 && byte <= 13 && names[byte - 8] ? &names[byte - 8] : NULL;
			len = name ? snprintf(escape, sizeof escape, "\\%c", *name) : snprintf(escape, sizeof escape, "\\u%04x", byte);
		} else if (ensure_ascii && byte >= 0x80) {
			bytes = jinja_character_bytes(string, at);
			code = jinja_code_point(string, at);
			len = code < 0x10000 ? snprintf(escape, sizeof escape, "\\u%04x", code)
			                     : snprintf(escape, sizeof escape, "\\u%04x\\u%04x", (0xD7C0 + (code >> 10)) & 0xFFFF,
			                           0xDC00 + (code & 0x3FF));
		}
		if (len == 0)
			continue;
		jinja_put_string(run, builder, jinja_part(string, plain, at));
		jinja_put(run, builder, escape, (size_t)len, string.mask ? string.mask[at] : string.data);
		plain = at + bytes;
	}
	jinja_put_string(run, builder, jinja_part(string, plain, string.len));
	jinja_put(run, builder, "\"", 1, data);
}

static void put_break(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_json_style *style, uint32_t level)
{
	if (!style->pretty)
		return;
	jinja_put(run, builder, "\n", 1, false);
	for (uint32_t i = 0; i < level; i++)
		jinja_put_string(run, builder, style->indent);
}

static void put_json_dict(struct jinja_run *run, struct jinja_builder *builder, struct jinja_value value,
    const struct jinja_json_style *style, uint32_t level)
{
	struct jinja_list *keys = jinja_list_value(run, JINJA_LIST_PLAIN, value.dict->count).list;

	for (size_t i = 0; i < value.dict->count; i++)
		jinja_list_add(run, keys, value.dict->entries[i].key);
	if (style->sort_keys)
		jinja_sort(run, keys, keys, false);
	jinja_put(run, builder, "{", 1, value.data);
	for (size_t i = 0; i < keys->count; i++) {
		struct jinja_value        key = keys->items[i];
		const struct jinja_value *item = jinja_dict_get(run, value.dict, key);

		if (i)
			jinja_put_string(run, builder, style->item_separator);
		put_break(run, builder, style, level + 1);
		if (key.kind == JINJA_STRING) {
			put_json_string(run, builder, *key.string, key.string->data, style->ensure_ascii);
		} else if (key.kind == JINJA_NONE || jinja_is_number(key)) {
			jinja_put(run, builder, "\"", 1, key.data);
			jinja_put_json(run, builder, key, style, level);
			jinja_put(run, builder, "\"", 1, key.data);
		} else {
			jinja_raise(run, STATUS_INVALID, "a key of type '%s' cannot be written as JSON", jinja_type_name(key));
		}
		jinja_put_string(run, builder, style->key_separator);
		jinja_put_json(run, builder, *item, style, level + 1);
	}
	if (keys->count)
		put_break(run, builder, style, level);
	jinja_put(run, builder, "}", 1, value.data);
}

void jinja_put_json(struct jinja_run *run, struct jinja_builder *builder, struct jinja_value value,
    const struct jinja_json_style *style, uint32_t level)
{
	jinja_enter(run);
	switch (value.kind) {
	case JINJA_NONE: put_word(run, builder, "null", value.data); break;
	case JINJA_BOOL: put_word(run, builder, value.boolean ? "true" : "false", value.data); break;
	case JINJA_INT: put_int(run, builder, value.integer, value.data); break;
	case JINJA_FLOAT: put_float(run, builder, value.real, value.data, true); break;
	case JINJA_STRING: put_json_string(run, builder, *value.string, value.string->data, style->ensure_ascii); break;
	case JINJA_DICT: put_json_dict(run, builder, value, style, level); break;
	case JINJA_LIST:
	case JINJA_TUPLE:
		if (jinja_is_concrete(value)) {
			jinja_put(run, builder, "[", 1, value.data);
			for (size_t i = 0; i < value.list->count; i++) {
				if (i)
					jinja_put_string(run, builder, style->item_separator);
				put_break(run, builder, style, level + 1);
				jinja_put_json(run, builder, value.list->items[i], style, level + 1);
			}
			if (value.list->count)
				put_break(run, builder, style, level);
			jinja_put(run, builder, "]", 1, value.data);
			break;
		} /* fall through */
	case JINJA_UNDEFINED:
	case JINJA_NAMESPACE:
	case JINJA_FUNCTION:
	case JINJA_LOOP:
		jinja_raise(run, STATUS_INVALID, "Object of type %s is not JSON serializable", jinja_type_name(value));
	}
	run->depth--;
}

/* ---- % -------------------------------------------------------------------------------------------------------------------- */

/* One conversion of at most 100 characters, from % to its letter at SPEC[LEN − 1]. */
static void put_conversion(struct jinja_run *run, struct jinja_builder *builder, const char *spec, size_t len,
    struct jinja_value value)
{
	char   format[32], text[512];
	char   letter = spec[len - 1];
	size_t digits = 0;
	int    written;

	for (size_t i = 1; i + 1 < len; i++)
		digits = spec[i] >= '0' && spec[i] <= '9' ? digits * 10 + (size_t)(spec[i] - '0') : 0;
	if (len > 12 || digits > 100 || memchr(spec, '*', len))
		jinja_raise(run, STATUS_UNSUPPORTED, "the conversion %.*s is not supported", (int)(len > 40 ? 40 : len), spec);
	if (letter == 's' || letter == 'r') {
		struct jinja_builder piece = { 0 };
		struct jinja_string  string;
		size_t               width = 0, precision = SIZE_MAX, characters, i = 1;
		bool                 left = false;

		for (; i + 1 < len && (spec[i] == '-' || spec[i] == ' ' || spec[i] == '0' || spec[i] == '+'); i++)
			left = left || spec[i] == '-';
		for (; i + 1 < len && spec[i] != '.'; i++)
			width = width * 10 + (size_t)(spec[i] - '0');
		if (spec[i] == '.')
			for (precision = 0, i++; i + 1 < len; i++)
				precision = precision * 10 + (size_t)(spec[i] - '0');
		if (letter == 's')
			jinja_put_text(run, &piece, value);
		else
			jinja_put_repr(run, &piece, value);
		string = jinja_built(&piece);
		if (precision != SIZE_MAX)
			string = jinja_part(string, 0, jinja_character_at(string, precision));
		characters = jinja_characters(string);
		for (size_t pad = characters; !left && pad < width; pad++)
			jinja_put(run, builder, " ", 1, false);
		jinja_put_string(run, builder, string);
		for (size_t pad = characters; left && pad < width; pad++)
			jinja_put(run, builder, " ", 1, false);
		return;
	}
	if (!jinja_is_number(value))
		jinja_raise(run, STATUS_INVALID, "%%%c needs a number, not '%s'", letter, jinja_type_name(value));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* flags and digits were checked above, the letter here */
	if (memchr("diuxXo", letter, 6)) {
		int64_t i = value.kind == JINJA_FLOAT ? (int64_t)value.real : value.kind == JINJA_BOOL ? value.boolean : value.integer;
		snprintf(format, sizeof format, "%.*sl%c", (int)len - 1, spec, letter == 'u' ? 'd' : letter);
		written = snprintf(text, sizeof text, format, (long)i);
	} else if (memchr("eEfFgG", letter, 6)) {
		snprintf(format, sizeof format, "%.*s", (int)len, spec);
		written = snprintf(text, sizeof text, format, jinja_as_float(value));
	} else {
		jinja_raise(run, STATUS_UNSUPPORTED, "the conversion %.*s is not supported", (int)len, spec);
	}
#pragma GCC diagnostic pop
	jinja_put(run, builder, text, (size_t)written < sizeof text ? (size_t)written : sizeof text - 1, value.data);
}

struct jinja_value jinja_percent(struct jinja_run *run, struct jinja_string format, struct jinja_value arguments)
{
	struct jinja_builder builder = { 0 };
	bool                 tuple = arguments.kind == JINJA_TUPLE;
	size_t               count = tuple ? arguments.list->count : 1, next = 0, at = 0;

	while (at < format.len) {
		size_t             start = at, end;
		struct jinja_value value;

		while (at < format.len && format.bytes[at] != '%')
			at++;
		jinja_put_string(run, &builder, jinja_part(format, start, at));
		if (at == format.len)
			break;
		start = at++;
		if (at < format.len && format.bytes[at] == '%') {
			jinja_put_string(run, &builder, jinja_part(format, at, at + 1));
			at++;
			continue;
		}
		value = jinja_none();
		if (at < format.len && format.bytes[at] == '(' && arguments.kind == JINJA_DICT) {
			const struct jinja_value *found;

			for (end = ++at; end < format.len && format.bytes[end] != ')';)
				end++;
			found = jinja_dict_get_name(arguments.dict, format.bytes + at, end - at);
			if (!found || end == format.len)
				jinja_raise(run, STATUS_INVALID, "no value for %%(%.*s)", (int)(end - at > 40 ? 40 : end - at), format.bytes + at);
			value = *found;
			start = end;
			at = end + 1;
		} else {
			if (next == count)
				jinja_raise(run, STATUS_INVALID, "not enough arguments for format string");
			value = tuple ? arguments.list->items[next] : arguments;
			next++;
		}
		while (at < format.len && strchr("-+ #0123456789.*", format.bytes[at]) && format.bytes[at])
			at++;
		if (at == format.len)
			jinja_raise(run, STATUS_INVALID, "incomplete format");
		at++;
		{
			char   spec[16] = "%";
			size_t len = at - start - 1;

			if (len > sizeof spec - 2)
				jinja_raise(run, STATUS_UNSUPPORTED, "a conversion of %zu characters is not supported", len);
			memcpy(spec + 1, format.bytes + start + 1, len);
			put_conversion(run, &builder, spec, len + 1, value);
		}
	}
	/* Python lets what has an index pass */
	if (next < count && arguments.kind != JINJA_DICT && arguments.kind != JINJA_UNDEFINED &&
	    !(arguments.kind == JINJA_LIST && arguments.list->kind != JINJA_LIST_GENERATOR && arguments.list->kind != JINJA_LIST_VIEW))
		jinja_raise(run, STATUS_INVALID, "not all arguments converted during string formatting");
	return jinja_built_value(run, &builder);
}
