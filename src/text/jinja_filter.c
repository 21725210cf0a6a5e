/* jinja_filter.c: Jinja's filters and tests, one row each in the tables at the end.  Does not own what Python's values can do by
 * themselves (jinja_call.c).  Filters of HTML (urlize, xmlattr, …) are none of a chat template's and are not here. */
#include "text/jinja_parts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct call {
	struct jinja_run              *run;
	struct jinja_value             value;
	const struct jinja_arguments  *arguments;
	const struct jinja_value      *args[5];
	const char                    *name;
	int                            variant;
};

static bool given(const struct call *c, size_t i) { return c->args[i] && c->args[i]->kind != JINJA_NONE; }
static bool flag(const struct call *c, size_t i, bool otherwise) { return c->args[i] ? jinja_truth(*c->args[i]) : otherwise; }

static int64_t integer(struct call *c, size_t i, int64_t otherwise)
{
	return given(c, i) ? jinja_as_int(c->run, *c->args[i], c->name) : otherwise;
}

static struct jinja_string string(struct call *c, size_t i, const char *otherwise)
{
	if (!c->args[i])
		return (struct jinja_string){ .bytes = otherwise, .len = strlen(otherwise) };
	return jinja_text(c->run, *c->args[i]);
}

static struct jinja_value from_string(struct call *c, struct jinja_string result) { return jinja_string_value(c->run, result); }
static struct jinja_string text(struct call *c) { return jinja_text(c->run, c->value); }

static void defined(struct call *c)
{
	if (c->value.kind == JINJA_UNDEFINED)
		jinja_raise(c->run, STATUS_INVALID, "%s", c->value.missing ? c->value.missing : "a value is undefined");
}

/* ---- attributes of items ----------------------------------------------------------------- */

/* "a.b.0" of ITEM; an integer is an index. */
static struct jinja_value item_attribute(struct jinja_run *run, struct jinja_value item, struct jinja_value path)
{
	struct jinja_string rest;

	if (path.kind != JINJA_STRING)
		return jinja_item(run, item, path);
	for (rest = *path.string;;) {
		size_t              dot = jinja_find(rest, (struct jinja_string){ .bytes = ".", .len = 1 }, 0), digits = 0;
		struct jinja_string part = jinja_part(rest, 0, dot == SIZE_MAX ? rest.len : dot);

		while (digits < part.len && part.bytes[digits] >= '0' && part.bytes[digits] <= '9')
			digits++;
		if (digits && digits == part.len && digits < 10)
			item = jinja_item(run, item, jinja_int(strtol(jinja_terminated(run, part), NULL, 10)));
		else
			item = jinja_item(run, item, jinja_string_value(run, part));
		if (dot == SIZE_MAX)
			return item;
		rest = jinja_part(rest, dot + 1, rest.len);
	}
}

static struct jinja_value folded(struct jinja_run *run, struct jinja_value value, bool case_sensitive)
{
	return value.kind == JINJA_STRING && !case_sensitive ? jinja_string_value(run, jinja_change_case(run, *value.string,
	    JINJA_LOWER))
	                                                     : value;
}

/* What a list is grouped or compared by: ATTRIBUTE (may be absent) of each item. */
static struct jinja_list *keys_of(struct call *c, const struct jinja_list *items, const struct jinja_value *attribute,
    bool case_sensitive)
{
	struct jinja_list *keys = jinja_list_value(c->run, JINJA_LIST_PLAIN, items->count).list;

	for (size_t i = 0; i < items->count; i++) {
		struct jinja_value key = items->items[i];

		if (attribute && attribute->kind != JINJA_NONE)
			key = item_attribute(c->run, key, *attribute);
		jinja_list_add(c->run, keys, folded(c->run, key, case_sensitive));
	}
	return keys;
}

/* What a list is sorted by: the attributes that ATTRIBUTE names with commas, as a tuple (so that two of what has no order are
 * equal, as in the reference). */
static struct jinja_list *sort_keys(struct call *c, const struct jinja_list *items, const struct jinja_value *attribute,
    bool case_sensitive)
{
	struct jinja_list  *keys = jinja_list_value(c->run, JINJA_LIST_PLAIN, items->count).list, *parts;
	struct jinja_string rest = { .bytes = "" };
	size_t              comma = SIZE_MAX;

	for (size_t i = 0; i < items->count; i++)
		jinja_list_add(c->run, keys, jinja_tuple_value(c->run, 1));
	if (attribute && attribute->kind == JINJA_STRING)
		rest = *attribute->string;
	do {
		struct jinja_value part = attribute ? *attribute : jinja_none();

		if (part.kind == JINJA_STRING) {
			comma = jinja_find(rest, (struct jinja_string){ .bytes = ",", .len = 1 }, 0);
			part = jinja_string_value(c->run, jinja_part(rest, 0, comma == SIZE_MAX ? rest.len : comma));
			rest = comma == SIZE_MAX ? rest : jinja_part(rest, comma + 1, rest.len);
		}
		parts = keys_of(c, items, &part, case_sensitive);
		for (size_t i = 0; i < items->count; i++)
			jinja_list_add(c->run, keys->items[i].list, parts->items[i]);
	} while (comma != SIZE_MAX);
	return keys;
}

static struct jinja_value plain_copy(struct call *c, const struct jinja_list *items)
{
	struct jinja_value list = jinja_list_value(c->run, JINJA_LIST_PLAIN, items->count);

	for (size_t i = 0; i < items->count; i++)
		jinja_list_add(c->run, list.list, items->items[i]);
	return list;
}

/* ---- filters of text ----------------------------------------------------------------- */

static struct jinja_value filter_case(struct call *c)
{
	return from_string(c, jinja_change_case(c->run, text(c), (enum jinja_case)c->variant));
}

/* Words begin behind - ( { [ < and white space. */
static struct jinja_value filter_title(struct call *c)
{
	struct jinja_string  s = text(c);
	struct jinja_builder builder = { 0 };
	size_t               start = 0;
	int                  before = -1;

	for (size_t at = 0; at <= s.len; at += at < s.len ? jinja_character_bytes(s, at) : 1) {
		int separator = at < s.len ? (strchr("-({[<", s.bytes[at]) && s.bytes[at]) || jinja_is_space(jinja_code_point(s, at)) : -2;

		if (separator != before && at > start) {
			jinja_put_string(c->run, &builder, jinja_change_case(c->run, jinja_part(s, start, at), JINJA_CAPITALIZE));
			start = at;
		}
		before = separator;
	}
	return jinja_built_value(c->run, &builder);
}

static struct jinja_value filter_trim(struct call *c)
{
	struct jinja_string chars;

	if (given(c, 0))
		chars = string(c, 0, "");
	return from_string(c, jinja_strip(text(c), given(c, 0) ? &chars : NULL, JINJA_STRIP_BOTH));
}

static struct jinja_value filter_replace(struct call *c)
{
	return from_string(c, jinja_replace(c->run, text(c), string(c, 0, ""), string(c, 1, ""), integer(c, 2, -1)));
}

static struct jinja_value filter_string(struct call *c) { return from_string(c, text(c)); }

static struct jinja_value filter_escape(struct call *c)
{
	static const char *const pairs[][2] = { { "&", "&amp;" }, { "<", "&lt;" }, { ">", "&gt;" }, { "'", "&#39;" }, { "\"",
	    "&#34;" } };
	struct jinja_string      s = text(c);

	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
		s = jinja_replace(c->run, s, (struct jinja_string){ .bytes = pairs[i][0], .len = 1 },
		    (struct jinja_string){ .bytes = pairs[i][1], .len = strlen(pairs[i][1]) }, -1);
	return from_string(c, s);
}

static struct jinja_value filter_indent(struct call *c)
{
	struct jinja_string  s = text(c), indent;
	struct jinja_builder spaces = { 0 }, padded = { 0 }, builder = { 0 };
	bool                 first = flag(c, 1, false), blank = flag(c, 2, false);
	struct jinja_list   *lines;

	if (c->value.kind != JINJA_STRING) {
		defined(c);
		jinja_raise(c->run, STATUS_INVALID, "indent: a string is needed, not '%s'", jinja_type_name(c->value));
	}
	if (c->args[0] && c->args[0]->kind == JINJA_STRING) {
		indent = *c->args[0]->string;
	} else {
		for (int64_t i = integer(c, 0, 4); i > 0; i--) {
			jinja_spend(c->run, 1);
			jinja_put(c->run, &spaces, " ", 1, false);
		}
		indent = jinja_built(&spaces);
	}
	jinja_put_string(c->run, &padded, s);
	jinja_put(c->run, &padded, "\n", 1, s.len && !s.mask && s.data);
	lines = jinja_split_lines(c->run, jinja_built(&padded), false).list;
	if (first)
		jinja_put_string(c->run, &builder, indent);
	for (size_t i = 0; i < lines->count; i++) {
		if (i) {
			jinja_put(c->run, &builder, "\n", 1, s.data);
			if (blank || lines->items[i].string->len)
				jinja_put_string(c->run, &builder, indent);
		}
		jinja_put_string(c->run, &builder, *lines->items[i].string);
	}
	return jinja_built_value(c->run, &builder);
}

static struct jinja_value filter_center(struct call *c)
{
	struct jinja_string  s = text(c);
	int64_t              width = integer(c, 0, 80), missing = width - (int64_t)jinja_characters(s),
	    left = missing / 2 + (missing & width & 1);
	struct jinja_builder builder = { 0 };

	for (int64_t i = 0; i < missing && i < left; i++)
		jinja_put(c->run, &builder, " ", 1, false);
	jinja_put_string(c->run, &builder, s);
	for (int64_t i = left; i < missing; i++)
		jinja_put(c->run, &builder, " ", 1, false);
	if (missing > 0)
		jinja_spend(c->run, (uint64_t)missing);
	return jinja_built_value(c->run, &builder);
}

static struct jinja_value filter_truncate(struct call *c)
{
	struct jinja_string  s = { .bytes = "" }, end = string(c, 2, "..."), cut;
	int64_t              length = integer(c, 0, 255), leeway = integer(c, 3, 5), tail = (int64_t)jinja_characters(end);
	struct jinja_builder builder = { 0 };

	if (length < tail || leeway < 0)
		jinja_raise(c->run, STATUS_INVALID, "truncate: length %lld is shorter than the end, or leeway %lld below 0",
		    (long long)length,
		    (long long)leeway);
	if ((int64_t)jinja_length(c->run, c->value) <= length + leeway)
		return c->value;
	if (c->value.kind != JINJA_STRING)
		jinja_raise(c->run, STATUS_INVALID, "truncate: a string is needed, not '%s'", jinja_type_name(c->value));
	s = *c->value.string;
	cut = jinja_part(s, 0, jinja_character_at(s, (size_t)(length - tail)));
	if (!flag(c, 1, false)) { /* back to the last space */
		size_t space = cut.len;

		while (space > 0 && cut.bytes[space - 1] != ' ')
			space--;
		if (space > 0)
			cut = jinja_part(cut, 0, space - 1);
	}
	jinja_put_string(c->run, &builder, cut);
	jinja_put_string(c->run, &builder, end);
	return jinja_built_value(c->run, &builder);
}

static struct jinja_value filter_wordcount(struct call *c)
{
	struct jinja_string s = text(c);
	int64_t             count = 0;
	bool                inside = false;

	for (size_t at = 0; at < s.len; at += jinja_character_bytes(s, at)) { /* \w+ */
		uint32_t           code = jinja_code_point(s, at);
		struct jinja_value one = jinja_string_value(c->run, jinja_part(s, at, at + jinja_character_bytes(s, at)));
		struct jinja_arguments none = { 0 };
		bool               word = code == '_' || jinja_truth(jinja_call(c->run, jinja_attribute(c->run, one, "isalnum"), &none));

		count += word && !inside;
		inside = word;
	}
	return jinja_int(count);
}

static struct jinja_value filter_format(struct call *c)
{
	struct jinja_value tuple = jinja_tuple_value(c->run, c->arguments->count), dict = jinja_dict_value(c->run);

	if (c->arguments->count && c->arguments->named_count)
		jinja_raise(c->run, STATUS_INVALID, "format: positional and named arguments cannot be mixed");
	for (size_t i = 0; i < c->arguments->count; i++)
		jinja_list_add(c->run, tuple.list, c->arguments->values[i]);
	for (size_t i = 0; i < c->arguments->named_count; i++)
		jinja_dict_set(c->run, dict.dict, jinja_literal(c->run, c->arguments->names[i]), c->arguments->named[i]);
	return jinja_percent(c->run, text(c), c->arguments->named_count ? dict : tuple);
}

static struct jinja_value filter_urlencode(struct call *c)
{
	static const char    hex[] = "0123456789ABCDEF";
	struct jinja_string  s = text(c);
	struct jinja_builder builder = { 0 };

	if (jinja_is_sequence(c->value) || c->value.kind == JINJA_DICT)
		jinja_raise(c->run, STATUS_UNSUPPORTED, "urlencode of a '%s' is not supported", jinja_type_name(c->value));
	for (size_t at = 0; at < s.len; at++) {
		uint8_t byte = (uint8_t)s.bytes[at];
		char    escape[3] = { '%', hex[byte >> 4], hex[byte & 15] };
		bool    plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
		    (byte && strchr("-_.~/", byte));

		jinja_put(c->run, &builder, plain ? (const char *)&s.bytes[at] : escape, plain ? 1 : 3, s.mask ? s.mask[at] : s.data);
	}
	return jinja_built_value(c->run, &builder);
}

static struct jinja_value filter_tojson(struct call *c)
{
	struct jinja_json_style  style = { .ensure_ascii = flag(c, 0, false), .pretty = given(c, 1), .sort_keys = flag(c, 3, false) };
	struct jinja_builder     builder = { 0 }, spaces = { 0 };
	const struct jinja_list *separators;

	if (style.pretty && c->args[1]->kind == JINJA_STRING) {
		style.indent = *c->args[1]->string;
	} else if (style.pretty) {
		for (int64_t i = integer(c, 1, 0); i > 0; i--) {
			jinja_spend(c->run, 1);
			jinja_put(c->run, &spaces, " ", 1, false);
		}
		style.indent = jinja_built(&spaces);
	}
	style.item_separator = (struct jinja_string){ .bytes = ", ", .len = style.pretty ? 1 : 2 };
	style.key_separator = (struct jinja_string){ .bytes = ": ", .len = 2 };
	if (given(c, 2)) {
		separators = jinja_iterate(c->run, *c->args[2]);
		if (separators->count != 2)
			jinja_raise(c->run, STATUS_INVALID, "tojson: separators must be two strings");
		style.item_separator = jinja_text(c->run, separators->items[0]);
		style.key_separator = jinja_text(c->run, separators->items[1]);
	}
	jinja_put_json(c->run, &builder, c->value, &style, 0);
	return jinja_built_value(c->run, &builder);
}

/* ---- filters of numbers ----------------------------------------------------------------- */

static struct jinja_value filter_abs(struct call *c)
{
	defined(c);
	if (!jinja_is_number(c->value))
		jinja_raise(c->run, STATUS_INVALID, "abs: bad operand type '%s'", jinja_type_name(c->value));
	if (c->value.kind == JINJA_FLOAT)
		return jinja_float(fabs(c->value.real));
	return jinja_as_int(c->run, c->value, "abs") < 0 ? jinja_binary(c->run, JINJA_OP_SUB, jinja_int(0), c->value)
	                                                 : jinja_int(jinja_as_int(c->run, c->value, "abs"));
}

/* The whole of a string as a number; false when it is none. */
static bool parse_float(struct jinja_run *run, struct jinja_string s, double *ret)
{
	struct jinja_string trimmed = jinja_strip(s, NULL, JINJA_STRIP_BOTH);
	const char         *start = jinja_terminated(run, trimmed);
	char               *end;

	if (trimmed.len == 0 || memchr(start, 'x', trimmed.len) || memchr(start, 'X', trimmed.len) || memchr(start, '(', trimmed.len))
		return false;
	*ret = strtod(start, &end);
	return (size_t)(end - start) == trimmed.len;
}

static struct jinja_value filter_int(struct call *c)
{
	struct jinja_value otherwise = c->args[0] ? *c->args[0] : jinja_int(0);
	double             real = 0;

	defined(c);
	if (c->value.kind == JINJA_STRING) {
		const char *start = jinja_terminated(c->run, jinja_strip(*c->value.string, NULL, JINJA_STRIP_BOTH));
		int64_t     base = integer(c, 1, 10);
		char       *end;
		long long   result;

		if (base != 0 && (base < 2 || base > 36))
			jinja_raise(c->run, STATUS_INVALID, "int: the base must be 0 or 2 to 36, not %lld", (long long)base);
		errno = 0;
		result = strtoll(start, &end, (int)base);
		if (*start && !*end && errno == 0)
			return jinja_int(result);
		if (errno == ERANGE)
			jinja_raise(c->run, STATUS_LIMIT, "an integer does not fit 64 bits");
		if (!parse_float(c->run, *c->value.string, &real))
			return otherwise;
	} else if (c->value.kind == JINJA_FLOAT) {
		real = c->value.real;
	} else if (jinja_is_number(c->value)) {
		return jinja_int(jinja_as_int(c->run, c->value, "int"));
	} else {
		return otherwise;
	}
	if (!(fabs(real) < 9.2e18)) { /* NaN too */
		if (isnan(real))
			return otherwise;
		jinja_raise(c->run, STATUS_LIMIT, "an integer does not fit 64 bits");
	}
	return jinja_int((int64_t)real);
}

static struct jinja_value filter_float(struct call *c)
{
	double real;

	defined(c);
	if (jinja_is_number(c->value))
		return jinja_float(jinja_as_float(c->value));
	if (c->value.kind == JINJA_STRING && parse_float(c->run, *c->value.string, &real))
		return jinja_float(real);
	return c->args[0] ? *c->args[0] : jinja_float(0);
}

static struct jinja_value filter_round(struct call *c)
{
	int64_t             precision = integer(c, 0, 0);
	struct jinja_string method = string(c, 1, "common");
	double              value, scale;

	defined(c);
	if (!jinja_is_number(c->value))
		jinja_raise(c->run, STATUS_INVALID, "round: a number is needed, not '%s'", jinja_type_name(c->value));
	value = jinja_as_float(c->value);
	scale = pow(10, (double)precision);
	if (jinja_string_is(method, "common")) {
		char text_of[400];

		if (precision < 0)
			return c->value.kind == JINJA_FLOAT ? jinja_float(nearbyint(value * scale) / scale)
			                                    : jinja_int((int64_t)(nearbyint(value * scale) / scale));
		/* correctly rounded, half to even */
		snprintf(text_of, sizeof text_of, "%.*f", precision > 30 ? 30 : (int)precision, value);
		value = strtod(text_of, NULL);
		return c->value.kind == JINJA_FLOAT ? jinja_float(value) : jinja_int(jinja_as_int(c->run, c->value, "round"));
	}
	if (!jinja_string_is(method, "ceil") && !jinja_string_is(method, "floor"))
		jinja_raise(c->run, STATUS_INVALID, "round: the method must be common, ceil or floor");
	return jinja_float((*method.bytes == 'c' ? ceil(value * scale) : floor(value * scale)) / scale);
}

/* ---- filters of sequences ----------------------------------------------------------------- */

static struct jinja_value filter_default(struct call *c)
{
	if (c->value.kind == JINJA_UNDEFINED || (flag(c, 1, false) && !jinja_truth(c->value)))
		return c->args[0] ? *c->args[0] : jinja_literal(c->run, "");
	return c->value;
}

static struct jinja_value filter_length(struct call *c) { return jinja_int((int64_t)jinja_length(c->run, c->value)); }

/* first (0) and last (1) */
static struct jinja_value filter_end(struct call *c)
{
	struct jinja_list *items;

	if (c->variant && jinja_is_sequence(c->value) && c->value.list->kind == JINJA_LIST_GENERATOR)
		jinja_raise(c->run, STATUS_INVALID, "'generator' object is not reversible");
	if (!c->variant && jinja_is_sequence(c->value) && c->value.list->kind == JINJA_LIST_GENERATOR && c->value.list->count) {
		struct jinja_list *list = c->value.list; /* takes one */

		list->count--;
		list->capacity = list->count;
		return *list->items++;
	}
	items = jinja_iterate(c->run, c->value);
	if (items->count == 0)
		return jinja_undefined(c->run, "No %s item, sequence was empty.", c->name);
	return items->items[c->variant ? items->count - 1 : 0];
}

static struct jinja_value filter_list(struct call *c) { return plain_copy(c, jinja_iterate(c->run, c->value)); }

static struct jinja_value filter_join(struct call *c)
{
	struct jinja_list *items = jinja_iterate(c->run, c->value);

	if (given(c, 1)) {
		items = plain_copy(c, items).list;
		for (size_t i = 0; i < items->count; i++)
			items->items[i] = item_attribute(c->run, items->items[i], *c->args[1]);
	}
	return jinja_join(c->run, string(c, 0, ""), items);
}

static struct jinja_value filter_reverse(struct call *c)
{
	struct jinja_list   *items = jinja_iterate(c->run, c->value);
	struct jinja_value   list = jinja_list_value(c->run, JINJA_LIST_GENERATOR, items->count);
	struct jinja_builder builder = { 0 };

	for (size_t i = items->count; i-- > 0;) {
		if (c->value.kind == JINJA_STRING)
			jinja_put_string(c->run, &builder, *items->items[i].string);
		else
			jinja_list_add(c->run, list.list, items->items[i]);
	}
	return c->value.kind == JINJA_STRING ? jinja_built_value(c->run, &builder) : list;
}

static struct jinja_value filter_sort(struct call *c)
{
	struct jinja_value list = plain_copy(c, jinja_iterate(c->run, c->value));

	jinja_sort(c->run, list.list, sort_keys(c, list.list, c->args[2], flag(c, 1, false)), flag(c, 0, false));
	return list;
}

static struct jinja_value pairs_of(struct call *c)
{
	struct jinja_value     list = jinja_list_value(c->run, JINJA_LIST_PLAIN, 0);
	struct jinja_arguments none = { 0 };

	if (c->value.kind == JINJA_UNDEFINED)
		return list;
	if (c->value.kind != JINJA_DICT)
		jinja_raise(c->run, STATUS_INVALID, "%s: can only get item pairs from a mapping, not '%s'", c->name,
		    jinja_type_name(c->value));
	return plain_copy(c, jinja_iterate(c->run, jinja_call(c->run, jinja_attribute(c->run, c->value, "items"), &none)));
}

static struct jinja_value filter_items(struct call *c)
{
	struct jinja_value pairs = pairs_of(c);

	pairs.list->kind = JINJA_LIST_GENERATOR;
	return pairs;
}

/* case_sensitive, by, reverse */
static struct jinja_value filter_dictsort(struct call *c)
{
	struct jinja_value  pairs, by;
	struct jinja_string what = string(c, 1, "key");

	defined(c);
	pairs = pairs_of(c);
	by = jinja_int(jinja_string_is(what, "value"));
	if (!by.integer && !jinja_string_is(what, "key"))
		jinja_raise(c->run, STATUS_INVALID, "dictsort: you can only sort by either \"key\" or \"value\"");
	jinja_sort(c->run, pairs.list, keys_of(c, pairs.list, &by, flag(c, 0, false)), flag(c, 2, false));
	return pairs;
}

static bool seen_before(struct jinja_run *run, const struct jinja_list *keys, size_t at)
{
	for (size_t i = 0; i < at; i++) {
		jinja_spend(run, 1);
		if (jinja_equal(run, keys->items[i], keys->items[at]))
			return true;
	}
	return false;
}

static struct jinja_value filter_unique(struct call *c)
{
	struct jinja_list *items = jinja_iterate(c->run, c->value), *keys = keys_of(c, items, c->args[1], flag(c, 0, false));
	struct jinja_value list = jinja_list_value(c->run, JINJA_LIST_GENERATOR, 0);

	for (size_t i = 0; i < items->count; i++)
		if (!seen_before(c->run, keys, i))
			jinja_list_add(c->run, list.list, items->items[i]);
	return list;
}

/* attribute, default, case_sensitive */
static struct jinja_value filter_groupby(struct call *c)
{
	struct jinja_value list = plain_copy(c, jinja_iterate(c->run, c->value)), groups = jinja_list_value(c->run, JINJA_LIST_PLAIN,
	    0), group;
	struct jinja_list *keys;

	for (int pass = 0; pass < 2; pass++) { /* sort by the keys, then their order is that of the items */
		keys = keys_of(c, list.list, c->args[0], flag(c, 2, false));
		for (size_t i = 0; i < keys->count; i++)
			if (keys->items[i].kind == JINJA_UNDEFINED && c->args[1])
				keys->items[i] = folded(c->run, *c->args[1], flag(c, 2, false));
		if (pass == 0)
			jinja_sort(c->run, list.list, keys, false);
	}
	for (size_t i = 0; i < keys->count; i++) {
		if (i == 0 || !jinja_equal(c->run, keys->items[i - 1], keys->items[i])) {
			struct jinja_value grouper = item_attribute(c->run, list.list->items[i], *c->args[0]);

			group = jinja_list_value(c->run, JINJA_LIST_GROUP, 2);
			jinja_list_add(c->run, group.list, grouper.kind == JINJA_UNDEFINED && c->args[1] ? *c->args[1] : grouper);
			jinja_list_add(c->run, group.list, jinja_list_value(c->run, JINJA_LIST_PLAIN, 0));
			jinja_list_add(c->run, groups.list, group);
		}
		jinja_list_add(c->run, group.list->items[1].list, list.list->items[i]);
	}
	return groups;
}

/* max (1) and min (−1): case_sensitive, attribute */
static struct jinja_value filter_extreme(struct call *c)
{
	struct jinja_list *items = jinja_iterate(c->run, c->value), *keys = keys_of(c, items, c->args[1], flag(c, 0, false));
	size_t             best = 0;

	if (items->count == 0)
		return jinja_undefined(c->run, "No aggregated item, sequence was empty.");
	for (size_t i = 1; i < items->count; i++)
		if (c->variant * jinja_order(c->run, keys->items[i], keys->items[best]) > 0)
			best = i;
	return items->items[best];
}

/* attribute, start */
static struct jinja_value filter_sum(struct call *c)
{
	struct jinja_list *items = jinja_iterate(c->run, c->value);
	struct jinja_value sum = c->args[1] ? *c->args[1] : jinja_int(0);

	for (size_t i = 0; i < items->count; i++)
		sum = jinja_binary(c->run, JINJA_OP_ADD, sum, given(c, 0) ? item_attribute(c->run, items->items[i],
		    *c->args[0]) : items->items[i]);
	return sum;
}

/* linecount, fill_with */
static struct jinja_value filter_batch(struct call *c)
{
	struct jinja_list *items = jinja_iterate(c->run, c->value);
	struct jinja_value batches = jinja_list_value(c->run, JINJA_LIST_GENERATOR, 0), batch = jinja_none();
	int64_t            size = integer(c, 0, 0);

	if (size < 1)
		jinja_raise(c->run, STATUS_INVALID, "batch: the size must be at least 1, not %lld", (long long)size);
	for (size_t i = 0; i < items->count; i++) {
		if (i % (uint64_t)size == 0) {
			batch = jinja_list_value(c->run, JINJA_LIST_PLAIN, 0);
			jinja_list_add(c->run, batches.list, batch);
		}
		jinja_list_add(c->run, batch.list, items->items[i]);
	}
	while (given(c, 1) && batch.kind == JINJA_LIST && batch.list->count < (uint64_t)size)
		jinja_list_add(c->run, batch.list, *c->args[1]);
	return batches;
}

/* slices, fill_with */
static struct jinja_value filter_slice(struct call *c)
{
	struct jinja_list *items = jinja_iterate(c->run, c->value);
	struct jinja_value slices = jinja_list_value(c->run, JINJA_LIST_GENERATOR, 0);
	int64_t            count = integer(c, 0, 0);
	size_t             at = 0, per, extra;

	if (count < 1 || count > JINJA_RANGE_MAX)
		jinja_raise(c->run, STATUS_INVALID, "slice: the number of slices must be 1 to %d, not %lld", JINJA_RANGE_MAX,
		    (long long)count);
	per = items->count / (uint64_t)count;
	extra = items->count % (uint64_t)count;
	for (size_t i = 0; i < (uint64_t)count; i++) {
		struct jinja_value slice = jinja_list_value(c->run, JINJA_LIST_PLAIN, 0);

		for (size_t end = at + per + (i < extra); at < end; at++)
			jinja_list_add(c->run, slice.list, items->items[at]);
		if (given(c, 1) && i >= extra && extra)
			jinja_list_add(c->run, slice.list, *c->args[1]);
		jinja_list_add(c->run, slices.list, slice);
	}
	return slices;
}

static struct jinja_value filter_attr(struct call *c)
{
	defined(c);
	if (c->value.kind == JINJA_DICT) /* only attributes: methods, no keys */
		return jinja_attribute(c->run, (struct jinja_value){ .kind = JINJA_DICT, .dict = jinja_dict_value(c->run).dict },
		    jinja_terminated(c->run, string(c, 0, "")));
	return jinja_attribute(c->run, c->value, jinja_terminated(c->run, string(c, 0, "")));
}

/* The arguments from FIRST on. */
static struct jinja_arguments rest_of(const struct jinja_arguments *arguments, size_t first)
{
	struct jinja_arguments rest = *arguments;

	rest.values += first;
	rest.count -= first;
	return rest;
}

static const char *name_argument(struct call *c, size_t i)
{
	if (i >= c->arguments->count || c->arguments->values[i].kind != JINJA_STRING)
		jinja_raise(c->run, STATUS_INVALID, "%s: argument %zu must be a name", c->name, i + 1);
	return jinja_terminated(c->run, *c->arguments->values[i].string);
}

/* The reference does not even look at what is false: none gives nothing. */
static struct jinja_list *items_if_true(struct call *c)
{
	return jinja_truth(c->value) ? jinja_iterate(c->run, c->value) : jinja_list_value(c->run, JINJA_LIST_PLAIN, 0).list;
}

/* map('filter', …) or map(attribute=…, default=…) */
static struct jinja_value filter_map(struct call *c)
{
	struct jinja_list               *items = items_if_true(c);
	struct jinja_value               list = jinja_list_value(c->run, JINJA_LIST_GENERATOR, items->count);
	static const char *const         names[] = { "attribute", "default" };
	const struct jinja_value        *args[2];
	uint32_t                         id;
	struct jinja_arguments           rest;

	if (c->arguments->count == 0) {
		jinja_bind(c->run, c->name, c->arguments, names, 2, 1, args);
		for (size_t i = 0; i < items->count; i++) {
			struct jinja_value value = item_attribute(c->run, items->items[i], *args[0]);
			jinja_list_add(c->run, list.list, value.kind == JINJA_UNDEFINED && args[1] ? *args[1] : value);
		}
		return list;
	}
	id = jinja_filter_id(name_argument(c, 0));
	if (id == UINT32_MAX)
		jinja_raise(c->run, STATUS_INVALID, "map: there is no filter \"%.60s\"", name_argument(c, 0));
	rest = rest_of(c->arguments, 1);
	for (size_t i = 0; i < items->count; i++)
		jinja_list_add(c->run, list.list, jinja_filter(c->run, id, items->items[i], &rest));
	return list;
}

/* select (0), reject (1), selectattr (2), rejectattr (3) */
static struct jinja_value filter_select(struct call *c)
{
	struct jinja_list     *items = items_if_true(c);
	struct jinja_value     list = jinja_list_value(c->run, JINJA_LIST_GENERATOR, 0);
	bool                   by_attribute = c->variant & 2, negated = c->variant & 1;
	uint32_t               id = UINT32_MAX;
	struct jinja_arguments rest = { 0 };

	if (by_attribute && c->arguments->count == 0)
		jinja_raise(c->run, STATUS_INVALID, "%s: an attribute is missing", c->name);
	if (c->arguments->count > (size_t)by_attribute) {
		id = jinja_test_id(name_argument(c, by_attribute));
		if (id == UINT32_MAX)
			jinja_raise(c->run, STATUS_INVALID, "%s: there is no test \"%.60s\"", c->name, name_argument(c, by_attribute));
		rest = rest_of(c->arguments, 1 + (size_t)by_attribute);
	}
	for (size_t i = 0; i < items->count; i++) {
		struct jinja_value value = by_attribute ? item_attribute(c->run, items->items[i],
		    c->arguments->values[0]) : items->items[i];
		bool               passes = id == UINT32_MAX ? jinja_truth(value) : jinja_test(c->run, id, value, &rest);

		if (passes != negated)
			jinja_list_add(c->run, list.list, items->items[i]);
	}
	return list;
}

/* COUNT < 0: the filter takes its arguments itself. */
static const struct filter {
	const char *name;
	struct jinja_value (*call)(struct call *c);
	int         variant, required, count;
	const char *names[5];
} filters[] = {
	{ "abs", filter_abs, 0, 0, 0, { NULL } },
	{ "attr", filter_attr, 0, 1, 1, { "name" } },
	{ "batch", filter_batch, 0, 1, 2, { "linecount", "fill_with" } },
	{ "capitalize", filter_case, JINJA_CAPITALIZE, 0, 0, { NULL } },
	{ "center", filter_center, 0, 0, 1, { "width" } },
	{ "count", filter_length, 0, 0, 0, { NULL } },
	{ "d", filter_default, 0, 0, 2, { "default_value", "boolean" } },
	{ "default", filter_default, 0, 0, 2, { "default_value", "boolean" } },
	{ "dictsort", filter_dictsort, 0, 0, 3, { "case_sensitive", "by", "reverse" } },
	{ "e", filter_escape, 0, 0, 0, { NULL } },
	{ "escape", filter_escape, 0, 0, 0, { NULL } },
	{ "first", filter_end, 0, 0, 0, { NULL } },
	{ "float", filter_float, 0, 0, 1, { "default" } },
	{ "forceescape", filter_escape, 0, 0, 0, { NULL } },
	{ "format", filter_format, 0, 0, -1, { NULL } },
	{ "groupby", filter_groupby, 0, 1, 3, { "attribute", "default", "case_sensitive" } },
	{ "indent", filter_indent, 0, 0, 3, { "width", "first", "blank" } },
	{ "int", filter_int, 0, 0, 2, { "default", "base" } },
	{ "items", filter_items, 0, 0, 0, { NULL } },
	{ "join", filter_join, 0, 0, 2, { "d", "attribute" } },
	{ "last", filter_end, 1, 0, 0, { NULL } },
	{ "length", filter_length, 0, 0, 0, { NULL } },
	{ "list", filter_list, 0, 0, 0, { NULL } },
	{ "lower", filter_case, JINJA_LOWER, 0, 0, { NULL } },
	{ "map", filter_map, 0, 0, -1, { NULL } },
	{ "max", filter_extreme, 1, 0, 2, { "case_sensitive", "attribute" } },
	{ "min", filter_extreme, -1, 0, 2, { "case_sensitive", "attribute" } },
	{ "reject", filter_select, 1, 0, -1, { NULL } },
	{ "rejectattr", filter_select, 3, 0, -1, { NULL } },
	{ "replace", filter_replace, 0, 2, 3, { "old", "new", "count" } },
	{ "reverse", filter_reverse, 0, 0, 0, { NULL } },
	{ "round", filter_round, 0, 0, 2, { "precision", "method" } },
	{ "safe", filter_string, 0, 0, 0, { NULL } },
	{ "select", filter_select, 0, 0, -1, { NULL } },
	{ "selectattr", filter_select, 2, 0, -1, { NULL } },
	{ "slice", filter_slice, 0, 1, 2, { "slices", "fill_with" } },
	{ "sort", filter_sort, 0, 0, 3, { "reverse", "case_sensitive", "attribute" } },
	{ "string", filter_string, 0, 0, 0, { NULL } },
	{ "sum", filter_sum, 0, 0, 2, { "attribute", "start" } },
	{ "title", filter_title, 0, 0, 0, { NULL } },
	{ "tojson", filter_tojson, 0, 0, 4, { "ensure_ascii", "indent", "separators", "sort_keys" } },
	{ "trim", filter_trim, 0, 0, 1, { "chars" } },
	{ "truncate", filter_truncate, 0, 0, 4, { "length", "killwords", "end", "leeway" } },
	{ "unique", filter_unique, 0, 0, 2, { "case_sensitive", "attribute" } },
	{ "upper", filter_case, JINJA_UPPER, 0, 0, { NULL } },
	{ "urlencode", filter_urlencode, 0, 0, 0, { NULL } },
	{ "wordcount", filter_wordcount, 0, 0, 0, { NULL } },
};

uint32_t jinja_filter_id(const char *name)
{
	for (uint32_t i = 0; i < sizeof filters / sizeof *filters; i++)
		if (strcmp(filters[i].name, name) == 0)
			return i;
	return UINT32_MAX;
}

struct jinja_value jinja_filter(struct jinja_run *run, uint32_t id, struct jinja_value value, struct jinja_arguments *arguments)
{
	const struct filter *filter = &filters[id];
	struct call          call = { .run = run, .value = value, .arguments = arguments, .name = filter->name,
	    .variant = filter->variant };
	struct jinja_value   result;

	jinja_enter(run); /* map and select come back here */
	if (filter->count >= 0)
		jinja_bind(run, filter->name, arguments, filter->names, (size_t)filter->count, (size_t)filter->required, call.args);
	result = filter->call(&call);
	run->depth--;
	return result;
}

/* ---- tests ----------------------------------------------------------------- */

enum test {
	TEST_BOOLEAN, TEST_CALLABLE, TEST_DEFINED, TEST_DIVISIBLE, TEST_EQ, TEST_ESCAPED, TEST_EVEN, TEST_FALSE, TEST_FILTER,
	    TEST_FLOAT,
	TEST_GE, TEST_GT, TEST_IN, TEST_INTEGER, TEST_ITERABLE, TEST_LE, TEST_LOWER, TEST_LT, TEST_MAPPING, TEST_NE, TEST_NONE,
	    TEST_NUMBER,
	TEST_ODD, TEST_SAME, TEST_SEQUENCE, TEST_STRING, TEST_TEST, TEST_TRUE, TEST_UNDEFINED, TEST_UPPER
};

static const struct {
	const char *name;
	enum test   test;
	bool        argument;
} tests[] = {
	{ "boolean", TEST_BOOLEAN, false }, { "callable", TEST_CALLABLE, false }, { "defined", TEST_DEFINED, false },
	{ "divisibleby", TEST_DIVISIBLE, true }, { "eq", TEST_EQ, true }, { "equalto", TEST_EQ, true }, { "==", TEST_EQ, true },
	{ "escaped", TEST_ESCAPED, false }, { "even", TEST_EVEN, false }, { "false", TEST_FALSE, false }, { "filter", TEST_FILTER,
	    false },
	{ "float", TEST_FLOAT, false }, { "ge", TEST_GE, true }, { ">=", TEST_GE, true }, { "gt", TEST_GT, true },
	{ "greaterthan", TEST_GT, true }, { ">", TEST_GT, true }, { "in", TEST_IN, true }, { "integer", TEST_INTEGER, false },
	{ "iterable", TEST_ITERABLE, false }, { "le", TEST_LE, true }, { "<=", TEST_LE, true }, { "lower", TEST_LOWER, false },
	{ "lt", TEST_LT, true }, { "lessthan", TEST_LT, true }, { "<", TEST_LT, true }, { "mapping", TEST_MAPPING, false },
	{ "ne", TEST_NE, true }, { "!=", TEST_NE, true }, { "none", TEST_NONE, false }, { "number", TEST_NUMBER, false },
	{ "odd", TEST_ODD, false }, { "sameas", TEST_SAME, true }, { "sequence", TEST_SEQUENCE, false }, { "string", TEST_STRING,
	    false },
	{ "test", TEST_TEST, false }, { "true", TEST_TRUE, false }, { "undefined", TEST_UNDEFINED, false }, { "upper", TEST_UPPER,
	    false },
};

uint32_t jinja_test_id(const char *name)
{
	for (uint32_t i = 0; i < sizeof tests / sizeof *tests; i++)
		if (strcmp(tests[i].name, name) == 0)
			return i;
	return UINT32_MAX;
}

static bool same_object(struct jinja_run *run, struct jinja_value a, struct jinja_value b)
{
	if (a.kind != b.kind)
		return false;
	if (jinja_is_sequence(a))
		return a.list == b.list;
	return a.kind == JINJA_DICT ? a.dict == b.dict : jinja_equal(run, a, b);
}

static bool sized(struct jinja_value value)
{
	return value.kind == JINJA_STRING || value.kind == JINJA_DICT || value.kind == JINJA_UNDEFINED ||
	    (jinja_is_sequence(value) && value.list->kind != JINJA_LIST_GENERATOR && value.list->kind != JINJA_LIST_VIEW);
}

static bool has_remainder(struct jinja_run *run, struct jinja_value value, int64_t divisor, int64_t remainder)
{
	return jinja_equal(run, jinja_binary(run, JINJA_OP_MOD, value, jinja_int(divisor)), jinja_int(remainder));
}

bool jinja_test(struct jinja_run *run, uint32_t id, struct jinja_value value, struct jinja_arguments *arguments)
{
	struct jinja_value     other = arguments->count ? arguments->values[0] : jinja_none();
	struct jinja_arguments none = { 0 };

	if (arguments->count != tests[id].argument || arguments->named_count)
		jinja_raise(run, STATUS_INVALID, "the test %s takes %s argument", tests[id].name, tests[id].argument ? "one" : "no");
	switch (tests[id].test) {
	case TEST_BOOLEAN: return value.kind == JINJA_BOOL;
	case TEST_CALLABLE: return value.kind == JINJA_FUNCTION || value.kind == JINJA_UNDEFINED || value.kind == JINJA_LOOP;
	case TEST_DEFINED: return value.kind != JINJA_UNDEFINED;
	case TEST_DIVISIBLE: return jinja_equal(run, jinja_binary(run, JINJA_OP_MOD, value, other), jinja_int(0));
	case TEST_EQ: return jinja_equal(run, value, other);
	case TEST_NE: return !jinja_equal(run, value, other);
	case TEST_ESCAPED: return false;
	case TEST_EVEN: return has_remainder(run, value, 2, 0);
	case TEST_ODD: return has_remainder(run, value, 2, 1);
	case TEST_FALSE: return value.kind == JINJA_BOOL && !value.boolean;
	case TEST_TRUE: return value.kind == JINJA_BOOL && value.boolean;
	case TEST_FILTER: return value.kind == JINJA_STRING && jinja_filter_id(jinja_terminated(run, *value.string)) != UINT32_MAX;
	case TEST_TEST: return value.kind == JINJA_STRING && jinja_test_id(jinja_terminated(run, *value.string)) != UINT32_MAX;
	case TEST_FLOAT: return value.kind == JINJA_FLOAT;
	case TEST_INTEGER: return value.kind == JINJA_INT;
	case TEST_NUMBER: return jinja_is_number(value);
	case TEST_GE: return jinja_order(run, value, other) >= 0;
	case TEST_GT: return jinja_order(run, value, other) > 0;
	case TEST_LE: return jinja_order(run, value, other) <= 0;
	case TEST_LT: return jinja_order(run, value, other) < 0;
	case TEST_IN: return jinja_contains(run, other, value);
	case TEST_ITERABLE: return sized(value) || jinja_is_sequence(value);
	case TEST_SEQUENCE: return sized(value);
	case TEST_MAPPING: return value.kind == JINJA_DICT;
	case TEST_NONE: return value.kind == JINJA_NONE;
	case TEST_SAME: return same_object(run, value, other);
	case TEST_STRING: return value.kind == JINJA_STRING;
	case TEST_UNDEFINED: return value.kind == JINJA_UNDEFINED;
	case TEST_LOWER:
	case TEST_UPPER:
		value = jinja_string_value(run, jinja_text(run, value));
		return jinja_truth(jinja_call(run, jinja_attribute(run, value, tests[id].test == TEST_LOWER ? "islower" : "isupper"),
		    &none));
	}
	return false;
}
