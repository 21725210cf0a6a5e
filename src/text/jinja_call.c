/* jinja_call.c: what values answer to: attributes, indexes, Python's methods of str, dict and list, the global functions.
 * Does not own filters and tests (jinja_filter.c).
 *
 * The sandbox: methods that change their object (append, update, …) and names that begin with an underscore do not exist
 * here; there is nothing else to reach. */
#include "text/jinja_parts.h"

#include <stdio.h>
#include <string.h>
#include <unicode/uchar.h>

enum { TIME_MAX = 512 };

void jinja_bind(struct jinja_run *run, const char *what, const struct jinja_arguments *arguments, const char *const *names,
    size_t count, size_t required, const struct jinja_value **ret)
{
	if (arguments->count > count)
		jinja_raise(run, STATUS_INVALID, "%s takes at most %zu arguments, %zu were given", what, count, arguments->count);
	for (size_t i = 0; i < count; i++)
		ret[i] = i < arguments->count ? &arguments->values[i] : NULL;
	for (size_t i = 0; i < arguments->named_count; i++) {
		size_t at = 0;

		while (at < count && (!names[at] || strcmp(names[at], arguments->names[i]) != 0))
			at++;
		if (at == count || ret[at])
			jinja_raise(run, STATUS_INVALID, "%s: the argument '%.60s' is %s", what, arguments->names[i],
			    at == count ? "unknown" : "given twice");
		ret[at] = &arguments->named[i];
	}
	for (size_t i = 0; i < required; i++)
		if (!ret[i])
			jinja_raise(run, STATUS_INVALID, "%s: argument %zu (%s) is missing", what, i + 1, names[i] ? names[i] : "positional");
}

/* ---- methods of str ----------------------------------------------------------------- */

/* Where a method finds its object and arguments. */
struct call {
	struct jinja_run              *run;
	struct jinja_value             self;
	const struct jinja_arguments  *arguments;
	const struct jinja_value      *args[4]; /* bound to the names in the table below */
	const char                    *name;
	int                            variant; /* what the table says of methods that share a function */
};

static struct jinja_string need_string(struct call *c, size_t i)
{
	if (c->args[i]->kind != JINJA_STRING)
		jinja_raise(c->run, STATUS_INVALID, "%s: a string is needed, not '%s'", c->name, jinja_type_name(*c->args[i]));
	return *c->args[i]->string;
}

static int64_t optional_int(struct call *c, size_t i, int64_t otherwise)
{
	return c->args[i] && c->args[i]->kind != JINJA_NONE ? jinja_as_int(c->run, *c->args[i], c->name) : otherwise;
}

static struct jinja_value str_strip(struct call *c)
{
	struct jinja_string chars;
	bool                given = c->args[0] && c->args[0]->kind != JINJA_NONE;

	if (given)
		chars = need_string(c, 0);
	jinja_spend(c->run, c->self.string->len / 64);
	return jinja_string_value(c->run, jinja_strip(*c->self.string, given ? &chars : NULL, (enum jinja_strip)c->variant));
}

static struct jinja_value str_case(struct call *c)
{
	return jinja_string_value(c->run, jinja_change_case(c->run, *c->self.string, (enum jinja_case)c->variant));
}

/* By white space: runs of it separate, and there are no empty parts. */
static struct jinja_value split_space(struct call *c, int64_t limit, bool from_right)
{
	struct jinja_run   *run = c->run;
	struct jinja_string rest = jinja_strip(*c->self.string, NULL, JINJA_STRIP_BOTH);
	struct jinja_value  parts = jinja_list_value(run, JINJA_LIST_PLAIN, 0);

	while (rest.len) {
		size_t at = 0, word = SIZE_MAX; /* start of the last word */

		if (limit == 0) {
			jinja_list_add(run, parts.list, jinja_string_value(run, rest));
			break;
		}
		limit -= limit > 0;
		if (!from_right) {
			while (at < rest.len && !jinja_is_space(jinja_code_point(rest, at)))
				at += jinja_character_bytes(rest, at);
			jinja_list_add(run, parts.list, jinja_string_value(run, jinja_part(rest, 0, at)));
			rest = jinja_strip(jinja_part(rest, at, rest.len), NULL, JINJA_STRIP_LEFT);
			continue;
		}
		for (bool space = true; at < rest.len; at += jinja_character_bytes(rest, at)) {
			bool now = jinja_is_space(jinja_code_point(rest, at));
			if (space && !now)
				word = at;
			space = now;
		}
		jinja_spend(run, rest.len / 16);
		jinja_list_add(run, parts.list, jinja_string_value(run, jinja_part(rest, word, rest.len)));
		rest = jinja_strip(jinja_part(rest, 0, word), NULL, JINJA_STRIP_RIGHT);
	}
	return parts;
}

static void reverse(struct jinja_list *list)
{
	for (size_t i = 0; i < list->count / 2; i++) {
		struct jinja_value swap = list->items[i];
		list->items[i] = list->items[list->count - 1 - i];
		list->items[list->count - 1 - i] = swap;
	}
}

static size_t find_last(struct jinja_string string, struct jinja_string what)
{
	for (size_t at = string.len < what.len ? 0 : string.len - what.len + 1; at-- > 0;)
		if (memcmp(string.bytes + at, what.bytes, what.len) == 0)
			return at;
	return SIZE_MAX;
}

/* split and rsplit (variant 1): sep, maxsplit */
static struct jinja_value str_split(struct call *c)
{
	int64_t             limit = optional_int(c, 1, -1);
	struct jinja_string separator, rest = *c->self.string;
	struct jinja_value  parts;
	bool                from_right = c->variant;

	if (!c->args[0] || c->args[0]->kind == JINJA_NONE) {
		parts = split_space(c, limit, from_right);
	} else {
		separator = need_string(c, 0);
		if (separator.len == 0)
			jinja_raise(c->run, STATUS_INVALID, "empty separator");
		parts = jinja_list_value(c->run, JINJA_LIST_PLAIN, 0);
		jinja_spend(c->run, rest.len / 32);
		for (; limit != 0; limit -= limit > 0) {
			size_t at = from_right ? find_last(rest, separator) : jinja_find(rest, separator, 0);

			if (at == SIZE_MAX)
				break;
			jinja_spend(c->run, 1);
			jinja_list_add(c->run, parts.list,
			    jinja_string_value(c->run, from_right ? jinja_part(rest, at + separator.len, rest.len) : jinja_part(rest, 0, at)));
			rest = from_right ? jinja_part(rest, 0, at) : jinja_part(rest, at + separator.len, rest.len);
		}
		jinja_list_add(c->run, parts.list, jinja_string_value(c->run, rest));
	}
	if (from_right)
		reverse(parts.list);
	return parts;
}

static struct jinja_value str_splitlines(struct call *c)
{
	return jinja_split_lines(c->run, *c->self.string, c->args[0] && jinja_as_int(c->run, *c->args[0], c->name) != 0);
}

static bool has_affix(struct jinja_string string, struct jinja_string affix, bool end)
{
	return affix.len <= string.len &&
	    memcmp(string.bytes + (end ? string.len - affix.len : 0), affix.bytes, affix.len) == 0;
}

/* The part of a string from character ARGS[from] to ARGS[from + 1]. */
static struct jinja_string window(struct call *c, size_t from, size_t *ret_offset)
{
	struct jinja_string string = *c->self.string;
	int64_t             length, start, end;
	size_t              first;

	*ret_offset = 0;
	if (!c->args[from] && !c->args[from + 1])
		return string;
	length = (int64_t)jinja_characters(string);
	start = optional_int(c, from, 0);
	end = optional_int(c, from + 1, length);
	start = start < 0 ? (start + length < 0 ? 0 : start + length) : start > length ? length : start;
	end = end < 0 ? (end + length < 0 ? 0 : end + length) : end > length ? length : end;
	first = jinja_character_at(string, (size_t)start);
	*ret_offset = (size_t)start;
	return jinja_part(string, first, end > start ? jinja_character_at(string, (size_t)end) : first);
}

static struct jinja_value str_affix(struct call *c)
{
	size_t              offset;
	struct jinja_string string = window(c, 1, &offset);

	if (c->args[0]->kind == JINJA_TUPLE) {
		for (size_t i = 0; i < c->args[0]->list->count; i++) {
			struct jinja_value item = c->args[0]->list->items[i];
			if (item.kind == JINJA_STRING && has_affix(string, *item.string, c->variant))
				return jinja_bool(true);
		}
		return jinja_bool(false);
	}
	return jinja_bool(has_affix(string, need_string(c, 0), c->variant));
}

static struct jinja_value str_remove(struct call *c)
{
	struct jinja_string string = *c->self.string, affix = need_string(c, 0);

	if (has_affix(string, affix, c->variant))
		string = c->variant ? jinja_part(string, 0, string.len - affix.len) : jinja_part(string, affix.len, string.len);
	return jinja_string_value(c->run, string);
}

static struct jinja_value str_replace(struct call *c)
{
	return jinja_string_value(c->run,
	    jinja_replace(c->run, *c->self.string, need_string(c, 0), need_string(c, 1), optional_int(c, 2, -1)));
}

static struct jinja_value str_join(struct call *c)
{
	const struct jinja_list *items = jinja_iterate(c->run, *c->args[0]);

	for (size_t i = 0; i < items->count; i++)
		if (items->items[i].kind != JINJA_STRING)
			jinja_raise(c->run, STATUS_INVALID, "join: item %zu is '%s', not a string", i, jinja_type_name(items->items[i]));
	return jinja_join(c->run, *c->self.string, items);
}

/* find, index (bit 0: it must be there), from the right (bit 1) */
static struct jinja_value str_find(struct call *c)
{
	size_t              offset, at;
	struct jinja_string string = window(c, 1, &offset), what = need_string(c, 0);

	jinja_spend(c->run, string.len / 32);
	at = c->variant & 2 ? find_last(string, what) : jinja_find(string, what, 0);
	if (at == SIZE_MAX) {
		if (c->variant & 1)
			jinja_raise(c->run, STATUS_INVALID, "substring not found");
		return jinja_int(-1);
	}
	return jinja_int((int64_t)(offset + jinja_characters(jinja_part(string, 0, at))));
}

static struct jinja_value str_count(struct call *c)
{
	size_t              offset, at = 0;
	struct jinja_string string = window(c, 1, &offset), what = need_string(c, 0);
	int64_t             count = 0;

	if (what.len == 0)
		return jinja_int((int64_t)jinja_characters(string) + 1);
	jinja_spend(c->run, string.len / 32);
	while ((at = jinja_find(string, what, at)) != SIZE_MAX) {
		count++;
		at += what.len;
	}
	return jinja_int(count);
}

enum { IS_DIGIT, IS_ALPHA, IS_ALNUM, IS_SPACE, IS_UPPER, IS_LOWER, IS_ASCII, IS_NUMERIC, IS_TITLE };

static bool is_digit(UChar32 code)
{
	return u_getIntPropertyValue(code, UCHAR_NUMERIC_TYPE) == U_NT_DECIMAL || u_getIntPropertyValue(code,
	    UCHAR_NUMERIC_TYPE) == U_NT_DIGIT;
}

static bool is_numeric(UChar32 code) { return u_getIntPropertyValue(code, UCHAR_NUMERIC_TYPE) != U_NT_NONE; }
static bool is_alpha(UChar32 code) { return U_GET_GC_MASK(code) & U_GC_L_MASK; }

static struct jinja_value str_is(struct call *c)
{
	struct jinja_string string = *c->self.string;
	bool                cased = false, result = true, inside = false;

	for (size_t at = 0; at < string.len && result; at += jinja_character_bytes(string, at)) {
		UChar32 code = (UChar32)jinja_code_point(string, at);
		bool    upper = u_isUUppercase(code) || u_istitle(code), lower = u_isULowercase(code);

		cased = cased || upper || lower;
		switch (c->variant) {
		case IS_DIGIT: result = is_digit(code); break;
		case IS_NUMERIC: result = is_numeric(code); break;
		case IS_ALPHA: result = is_alpha(code); break;
		case IS_ALNUM: result = is_alpha(code) || is_numeric(code); break;
		case IS_SPACE: result = jinja_is_space((uint32_t)code); break;
		case IS_UPPER: result = !lower && !u_istitle(code); break;
		case IS_LOWER: result = !upper; break;
		case IS_TITLE: result = !(upper && inside) && !(lower && !inside); break;
		default: result = code < 0x80; break;
		}
		inside = upper || lower;
	}
	jinja_spend(c->run, string.len / 16);
	if (c->variant == IS_UPPER || c->variant == IS_LOWER || c->variant == IS_TITLE)
		return jinja_bool(result && cased);
	return jinja_bool(result && (string.len > 0 || c->variant == IS_ASCII));
}

/* center (0), ljust (1), rjust (2), zfill (3) */
static struct jinja_value str_pad(struct call *c)
{
	struct jinja_string  string = *c->self.string, fill = { .bytes = c->variant == 3 ? "0" : " ", .len = 1 };
	int64_t              width = jinja_as_int(c->run, *c->args[0], c->name);
	int64_t              missing = width - (int64_t)jinja_characters(string), left, sign = 0;
	struct jinja_builder builder = { 0 };

	if (c->variant != 3 && c->args[1]) {
		fill = need_string(c, 1);
		if (jinja_characters(fill) != 1)
			jinja_raise(c->run, STATUS_INVALID, "%s: the fill character must be exactly one character", c->name);
	}
	if (missing <= 0)
		return c->self;
	left = c->variant == 0 ? missing / 2 + (missing & width & 1) : c->variant == 1 ? 0 : missing;
	if (c->variant == 3 && string.len && (*string.bytes == '-' || *string.bytes == '+'))
		sign = 1;
	jinja_put_string(c->run, &builder, jinja_part(string, 0, (size_t)sign));
	for (int64_t i = 0; i < left; i++)
		jinja_put_string(c->run, &builder, fill);
	jinja_put_string(c->run, &builder, jinja_part(string, (size_t)sign, string.len));
	for (int64_t i = left; i < missing; i++)
		jinja_put_string(c->run, &builder, fill);
	jinja_spend(c->run, (uint64_t)missing);
	return jinja_built_value(c->run, &builder);
}

static struct jinja_value str_partition(struct call *c)
{
	struct jinja_string string = *c->self.string, separator = need_string(c, 0);
	size_t              at = c->variant ? find_last(string, separator) : jinja_find(string, separator, 0);
	struct jinja_value  tuple = jinja_tuple_value(c->run, 3);
	size_t              first, second;

	if (separator.len == 0)
		jinja_raise(c->run, STATUS_INVALID, "empty separator");
	first = at != SIZE_MAX ? at : c->variant ? 0 : string.len;
	second = at != SIZE_MAX ? at + separator.len : first;
	jinja_list_add(c->run, tuple.list, jinja_string_value(c->run, jinja_part(string, 0, first)));
	jinja_list_add(c->run, tuple.list, jinja_string_value(c->run, jinja_part(string, first, second)));
	jinja_list_add(c->run, tuple.list, jinja_string_value(c->run, jinja_part(string, second, string.len)));
	return tuple;
}

/* {} {0} {name} {{ }}; no attributes, no format specifications. */
static struct jinja_value str_format(struct call *c)
{
	struct jinja_string           format = *c->self.string;
	const struct jinja_arguments *a = c->arguments;
	struct jinja_builder          builder = { 0 };
	size_t                        next = 0;

	for (size_t at = 0; at < format.len;) {
		char                      brace = format.bytes[at];
		size_t                    end = at + 1, index = 0;
		const struct jinja_value *value = NULL;

		if (brace != '{' && brace != '}') {
			while (end < format.len && format.bytes[end] != '{' && format.bytes[end] != '}')
				end++;
			jinja_put_string(c->run, &builder, jinja_part(format, at, end));
			at = end;
			continue;
		}
		if (end < format.len && format.bytes[end] == brace) {
			jinja_put_string(c->run, &builder, jinja_part(format, end, end + 1));
			at = end + 1;
			continue;
		}
		while (end < format.len && format.bytes[end] != '}')
			end++;
		if (brace == '}' || end == format.len)
			jinja_raise(c->run, STATUS_INVALID, "format: a single '%c'", brace);
		at++;
		for (size_t i = at; i < end; i++)
			index = index < 1000 && format.bytes[i] >= '0' &&
			    format.bytes[i] <= '9' ? index * 10 + (size_t)(format.bytes[i] - '0') : 1000;
		if (at == end)
			index = next++;
		if (index < a->count)
			value = &a->values[index];
		for (size_t i = 0; i < a->named_count && !value; i++)
			if (strlen(a->names[i]) == end - at && memcmp(a->names[i], format.bytes + at, end - at) == 0)
				value = &a->named[i];
		if (!value)
			jinja_raise(c->run, STATUS_UNSUPPORTED, "format: no value for {%.*s}", (int)(end - at > 40 ? 40 : end - at),
			    format.bytes + at);
		jinja_put_text(c->run, &builder, *value);
		at = end + 1;
	}
	return jinja_built_value(c->run, &builder);
}

/* ---- methods of dict and list ----------------------------------------------------------------- */

enum { DICT_ITEMS, DICT_KEYS, DICT_VALUES };

static struct jinja_value dict_view(struct call *c)
{
	struct jinja_value view = jinja_list_value(c->run, JINJA_LIST_VIEW, c->self.dict->count);

	for (size_t i = 0; i < c->self.dict->count; i++) {
		const struct jinja_entry *entry = &c->self.dict->entries[i];
		struct jinja_value        pair;

		if (c->variant == DICT_ITEMS) {
			pair = jinja_tuple_value(c->run, 2);
			jinja_list_add(c->run, pair.list, entry->key);
			jinja_list_add(c->run, pair.list, entry->value);
			jinja_list_add(c->run, view.list, pair);
		} else {
			jinja_list_add(c->run, view.list, c->variant == DICT_KEYS ? entry->key : entry->value);
		}
	}
	return view;
}

static struct jinja_value dict_get(struct call *c)
{
	const struct jinja_value *found = jinja_dict_get(c->run, c->self.dict, *c->args[0]);

	return found ? *found : c->args[1] ? *c->args[1] : jinja_none();
}

static struct jinja_value dict_copy(struct call *c)
{
	struct jinja_value copy = jinja_dict_value(c->run);

	for (size_t i = 0; i < c->self.dict->count; i++)
		jinja_dict_set(c->run, copy.dict, c->self.dict->entries[i].key, c->self.dict->entries[i].value);
	return copy;
}

/* index (0), which may say where to look, and count (1) */
static struct jinja_value list_find(struct call *c)
{
	int64_t count = 0, length = (int64_t)c->self.list->count, start = optional_int(c, 1, 0), end = optional_int(c, 2, length);

	start = start < 0 ? (start + length < 0 ? 0 : start + length) : start;
	end = end < 0 ? end + length : end > length ? length : end;
	for (int64_t i = start; i < end; i++) {
		jinja_spend(c->run, 1);
		if (!jinja_equal(c->run, c->self.list->items[i], *c->args[0]))
			continue;
		if (c->variant == 0)
			return jinja_int(i);
		count++;
	}
	if (c->variant == 0)
		jinja_raise(c->run, STATUS_INVALID, "the value is not in the list");
	return jinja_int(count);
}

static struct jinja_value list_copy(struct call *c)
{
	struct jinja_value copy = jinja_list_value(c->run, JINJA_LIST_PLAIN, c->self.list->count);

	for (size_t i = 0; i < c->self.list->count; i++)
		jinja_list_add(c->run, copy.list, c->self.list->items[i]);
	return copy;
}

static struct jinja_value loop_cycle(struct call *c)
{
	if (c->arguments->count == 0)
		jinja_raise(c->run, STATUS_INVALID, "no items for cycling given");
	return c->arguments->values[c->self.loop->at % c->arguments->count];
}

static struct jinja_value loop_changed(struct call *c)
{
	struct jinja_value now = jinja_tuple_value(c->run, c->arguments->count);
	struct jinja_loop *loop = c->self.loop;
	bool               changed;

	for (size_t i = 0; i < c->arguments->count; i++)
		jinja_list_add(c->run, now.list, c->arguments->values[i]);
	changed = !loop->changed_once || !jinja_equal(c->run, loop->last_changed, now);
	loop->changed_once = true;
	loop->last_changed = now;
	return jinja_bool(changed);
}

static struct jinja_value cycler_next(struct call *c)
{
	struct jinja_function *cycler = c->self.function;
	struct jinja_value     item = cycler->self.list->items[cycler->at % cycler->self.list->count];

	cycler->at++;
	return item;
}

static struct jinja_value cycler_reset(struct call *c)
{
	c->self.function->at = 0;
	return jinja_none();
}

/* ---- globals ----------------------------------------------------------------- */

static struct jinja_value global_range(struct call *c)
{
	int64_t            from = jinja_as_int(c->run, *c->args[0], c->name), to = from, step = optional_int(c, 2, 1);
	struct jinja_value list;
	uint64_t           count;

	if (c->args[1])
		to = jinja_as_int(c->run, *c->args[1], c->name);
	else
		from = 0;
	if (step == 0)
		jinja_raise(c->run, STATUS_INVALID, "range() arg 3 must not be zero");
	if (step == INT64_MIN || (step > 0 ? to <= from : to >= from))
		count = 0;
	else
		count = step > 0 ? ((uint64_t)to - (uint64_t)from - 1) / (uint64_t)step + 1
		    : ((uint64_t)from - (uint64_t)to - 1) / (uint64_t)-step + 1;
	if (count > JINJA_RANGE_MAX)
		jinja_raise(c->run, STATUS_LIMIT, "range of %llu; the limit is %d", (unsigned long long)count, JINJA_RANGE_MAX);
	list = jinja_list_value(c->run, JINJA_LIST_RANGE, count);
	for (uint64_t i = 0; i < count; i++)
		jinja_list_add(c->run, list.list, jinja_int(from + (int64_t)i * step));
	return list;
}

/* dict (0), namespace (1): another dict or pairs, and named values */
static struct jinja_value global_dict(struct call *c)
{
	struct jinja_value            dict = jinja_dict_value(c->run);
	const struct jinja_arguments *a = c->arguments;

	if (a->count > 1)
		jinja_raise(c->run, STATUS_INVALID, "%s takes one positional argument, %zu were given", c->name, a->count);
	if (a->count == 1 && a->values[0].kind == JINJA_DICT) {
		for (size_t i = 0; i < a->values[0].dict->count; i++)
			jinja_dict_set(c->run, dict.dict, a->values[0].dict->entries[i].key, a->values[0].dict->entries[i].value);
	} else if (a->count == 1) {
		const struct jinja_list *pairs = jinja_iterate(c->run, a->values[0]);

		for (size_t i = 0; i < pairs->count; i++) {
			const struct jinja_list *pair = jinja_iterate(c->run, pairs->items[i]);
			if (pair->count != 2)
				jinja_raise(c->run, STATUS_INVALID, "%s: item %zu has %zu values, not 2", c->name, i, pair->count);
			jinja_dict_set(c->run, dict.dict, pair->items[0], pair->items[1]);
		}
	}
	for (size_t i = 0; i < a->named_count; i++)
		jinja_dict_set(c->run, dict.dict, jinja_literal(c->run, a->names[i]), a->named[i]);
	dict.kind = c->variant ? JINJA_NAMESPACE : JINJA_DICT;
	return dict;
}

static struct jinja_value global_raise(struct call *c)
{
	struct jinja_string message = jinja_text(c->run, *c->args[0]);

	c->run->line = 0; /* the template's own words */
	jinja_raise(c->run, STATUS_INVALID, "%.*s", (int)(message.len > 400 ? 400 : message.len), message.bytes);
}

static struct jinja_value global_strftime(struct call *c)
{
	struct jinja_string format = need_string(c, 0);
	struct tm           tm;
	char               *text = jinja_alloc(c->run, TIME_MAX + 1);
	size_t              len;

	if (!localtime_r(&c->run->variables->now, &tm))
		jinja_raise(c->run, STATUS_INTERNAL, "the time has no date");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* strftime reads nothing but TM, whatever the format */
	len = strftime(text, TIME_MAX, jinja_terminated(c->run, format), &tm);
#pragma GCC diagnostic pop
	if (len == 0 && format.len)
		jinja_raise(c->run, STATUS_INVALID, "strftime_now: the result is empty or longer than %d bytes", TIME_MAX);
	return jinja_string_value(c->run, (struct jinja_string){ .bytes = text, .len = len });
}

/* cycler (0) and joiner (1) */
static struct jinja_value global_object(struct call *c)
{
	struct jinja_value self = jinja_list_value(c->run, JINJA_LIST_PLAIN, 0);

	for (size_t i = 0; i < c->arguments->count; i++)
		jinja_list_add(c->run, self.list, c->arguments->values[i]);
	if (c->variant == 0 && self.list->count == 0)
		jinja_raise(c->run, STATUS_INVALID, "at least one item has to be provided");
	if (c->variant == 1 && self.list->count == 0)
		jinja_list_add(c->run, self.list, c->arguments->named_count ? c->arguments->named[0] : jinja_literal(c->run, ", "));
	return jinja_function_value(c->run, JINJA_FUNCTION_OBJECT, (uint32_t)c->variant, self);
}

/* ---- the table ----------------------------------------------------------------- */

enum owner { OF_STR, OF_DICT, OF_LIST, OF_TUPLE, OF_LOOP, OF_CYCLER, GLOBAL };

/* COUNT < 0: the function takes its arguments itself. */
static const struct method {
	enum owner  owner;
	const char *name;
	struct jinja_value (*call)(struct call *c);
	int         variant, required, count;
	const char *names[3];
} methods[] = {
	{ OF_STR, "strip", str_strip, JINJA_STRIP_BOTH, 0, 1, { NULL } },
	{ OF_STR, "lstrip", str_strip, JINJA_STRIP_LEFT, 0, 1, { NULL } },
	{ OF_STR, "rstrip", str_strip, JINJA_STRIP_RIGHT, 0, 1, { NULL } },
	{ OF_STR, "split", str_split, 0, 0, 2, { "sep", "maxsplit" } },
	{ OF_STR, "rsplit", str_split, 1, 0, 2, { "sep", "maxsplit" } },
	{ OF_STR, "splitlines", str_splitlines, 0, 0, 1, { "keepends" } },
	{ OF_STR, "startswith", str_affix, 0, 1, 3, { NULL } },
	{ OF_STR, "endswith", str_affix, 1, 1, 3, { NULL } },
	{ OF_STR, "removeprefix", str_remove, 0, 1, 1, { NULL } },
	{ OF_STR, "removesuffix", str_remove, 1, 1, 1, { NULL } },
	{ OF_STR, "replace", str_replace, 0, 2, 3, { NULL, NULL, "count" } },
	{ OF_STR, "upper", str_case, JINJA_UPPER, 0, 0, { NULL } },
	{ OF_STR, "lower", str_case, JINJA_LOWER, 0, 0, { NULL } },
	{ OF_STR, "title", str_case, JINJA_TITLE, 0, 0, { NULL } },
	{ OF_STR, "capitalize", str_case, JINJA_CAPITALIZE, 0, 0, { NULL } },
	{ OF_STR, "swapcase", str_case, JINJA_SWAP, 0, 0, { NULL } },
	{ OF_STR, "join", str_join, 0, 1, 1, { NULL } },
	{ OF_STR, "find", str_find, 0, 1, 3, { NULL } },
	{ OF_STR, "index", str_find, 1, 1, 3, { NULL } },
	{ OF_STR, "rfind", str_find, 2, 1, 3, { NULL } },
	{ OF_STR, "rindex", str_find, 3, 1, 3, { NULL } },
	{ OF_STR, "count", str_count, 0, 1, 3, { NULL } },
	{ OF_STR, "isdigit", str_is, IS_DIGIT, 0, 0, { NULL } },
	{ OF_STR, "isnumeric", str_is, IS_NUMERIC, 0, 0, { NULL } },
	{ OF_STR, "isalpha", str_is, IS_ALPHA, 0, 0, { NULL } },
	{ OF_STR, "isalnum", str_is, IS_ALNUM, 0, 0, { NULL } },
	{ OF_STR, "isspace", str_is, IS_SPACE, 0, 0, { NULL } },
	{ OF_STR, "isupper", str_is, IS_UPPER, 0, 0, { NULL } },
	{ OF_STR, "islower", str_is, IS_LOWER, 0, 0, { NULL } },
	{ OF_STR, "istitle", str_is, IS_TITLE, 0, 0, { NULL } },
	{ OF_STR, "isascii", str_is, IS_ASCII, 0, 0, { NULL } },
	{ OF_STR, "center", str_pad, 0, 1, 2, { NULL } },
	{ OF_STR, "ljust", str_pad, 1, 1, 2, { NULL } },
	{ OF_STR, "rjust", str_pad, 2, 1, 2, { NULL } },
	{ OF_STR, "zfill", str_pad, 3, 1, 1, { NULL } },
	{ OF_STR, "partition", str_partition, 0, 1, 1, { NULL } },
	{ OF_STR, "rpartition", str_partition, 1, 1, 1, { NULL } },
	{ OF_STR, "format", str_format, 0, 0, -1, { NULL } },
	{ OF_DICT, "items", dict_view, DICT_ITEMS, 0, 0, { NULL } },
	{ OF_DICT, "keys", dict_view, DICT_KEYS, 0, 0, { NULL } },
	{ OF_DICT, "values", dict_view, DICT_VALUES, 0, 0, { NULL } },
	{ OF_DICT, "get", dict_get, 0, 1, 2, { NULL } },
	{ OF_DICT, "copy", dict_copy, 0, 0, 0, { NULL } },
	{ OF_LIST, "index", list_find, 0, 1, 3, { NULL } },
	{ OF_LIST, "count", list_find, 1, 1, 1, { NULL } },
	{ OF_LIST, "copy", list_copy, 0, 0, 0, { NULL } },
	{ OF_TUPLE, "index", list_find, 0, 1, 3, { NULL } },
	{ OF_TUPLE, "count", list_find, 1, 1, 1, { NULL } },
	{ OF_LOOP, "cycle", loop_cycle, 0, 0, -1, { NULL } },
	{ OF_LOOP, "changed", loop_changed, 0, 0, -1, { NULL } },
	{ OF_CYCLER, "next", cycler_next, 0, 0, 0, { NULL } },
	{ OF_CYCLER, "reset", cycler_reset, 0, 0, 0, { NULL } },
	{ GLOBAL, "range", global_range, 0, 1, 3, { NULL } },
	{ GLOBAL, "dict", global_dict, 0, 0, -1, { NULL } },
	{ GLOBAL, "namespace", global_dict, 1, 0, -1, { NULL } },
	{ GLOBAL, "raise_exception", global_raise, 0, 1, 1, { "message" } },
	{ GLOBAL, "strftime_now", global_strftime, 0, 1, 1, { "format" } },
	{ GLOBAL, "cycler", global_object, 0, 0, -1, { NULL } },
	{ GLOBAL, "joiner", global_object, 1, 0, -1, { "sep" } },
};

static bool find_method(enum owner owner, const char *name, uint32_t *ret)
{
	for (uint32_t i = 0; i < sizeof methods / sizeof *methods; i++)
		if (methods[i].owner == owner && strcmp(methods[i].name, name) == 0) {
			*ret = i;
			return true;
		}
	return false;
}

bool jinja_global(struct jinja_run *run, const char *name, struct jinja_value *ret)
{
	uint32_t id;

	if (!find_method(GLOBAL, name, &id))
		return false;
	*ret = jinja_function_value(run, JINJA_FUNCTION_GLOBAL, id, jinja_none());
	return true;
}

struct jinja_value jinja_call(struct jinja_run *run, struct jinja_value callee, struct jinja_arguments *arguments)
{
	const struct jinja_function *function = callee.function;
	const struct method         *method;
	struct call                  call = { .run = run, .arguments = arguments };
	struct jinja_value           joined;

	jinja_spend(run, 1);
	if (callee.kind == JINJA_UNDEFINED)
		jinja_raise(run, STATUS_INVALID, "%s", callee.missing ? callee.missing : "an undefined value is called");
	if (callee.kind == JINJA_LOOP && callee.loop->node->flag) { /* a recursive loop */
		struct jinja_builder  builder = { 0 }, *out = run->out;
		struct jinja_scope   *scope = run->scope;

		if (arguments->count != 1)
			jinja_raise(run, STATUS_INVALID, "loop() takes one argument");
		run->out = &builder;
		run->scope = callee.loop->scope;
		jinja_run_loop(run, callee.loop->node, arguments->values[0], callee.loop->depth + 1);
		run->scope = scope;
		run->out = out;
		return jinja_built_value(run, &builder);
	}
	if (callee.kind != JINJA_FUNCTION)
		jinja_raise(run, STATUS_INVALID, "'%s' object is not callable", jinja_type_name(callee));
	if (function->kind == JINJA_FUNCTION_MACRO)
		return jinja_call_macro(run, function, arguments);
	if (function->kind == JINJA_FUNCTION_OBJECT) { /* a joiner: nothing the first time */
		if (function->id == 0)
			jinja_raise(run, STATUS_INVALID, "'Cycler' object is not callable");
		joined = callee.function->at++ ? function->self.list->items[0] : jinja_literal(run, "");
		return joined;
	}
	method = &methods[function->id];
	call.self = function->self;
	call.name = method->name;
	call.variant = method->variant;
	if (method->count >= 0)
		jinja_bind(run, method->name, arguments, method->names, (size_t)method->count, (size_t)method->required, call.args);
	return method->call(&call);
}

/* ---- attributes and items ----------------------------------------------------------------- */

static struct jinja_value loop_attribute(struct jinja_run *run, struct jinja_value object, const char *name)
{
	const struct jinja_loop *loop = object.loop;
	size_t                   count = loop->items->count;
	const struct {
		const char *name;
		int64_t     value;
	} numbers[] = { { "index", (int64_t)loop->at + 1 }, { "index0", (int64_t)loop->at }, { "revindex",
	    (int64_t)(count - loop->at) },
		{ "revindex0", (int64_t)(count - loop->at) - 1 }, { "length", (int64_t)count }, { "depth", loop->depth + 1 },
		{ "depth0", loop->depth } };

	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (strcmp(numbers[i].name, name) == 0)
			return jinja_int(numbers[i].value);
	if (strcmp(name, "first") == 0)
		return jinja_bool(loop->at == 0);
	if (strcmp(name, "last") == 0)
		return jinja_bool(loop->at + 1 == count);
	if (strcmp(name, "previtem") == 0)
		return loop->at ? loop->items->items[loop->at - 1] : jinja_undefined(run, "there is no previous item");
	if (strcmp(name, "nextitem") == 0)
		return loop->at + 1 < count ? loop->items->items[loop->at + 1] : jinja_undefined(run, "there is no next item");
	return jinja_undefined(run, "the loop has no attribute '%.60s'", name);
}

/* What Python calls an attribute: methods, and the members of our own objects. */
static bool own_attribute(struct jinja_run *run, struct jinja_value object, const char *name, struct jinja_value *ret)
{
	const struct jinja_value *found;
	enum owner                owner;
	uint32_t                  id;

	switch (object.kind) {
	case JINJA_STRING: owner = OF_STR; break;
	case JINJA_DICT: owner = OF_DICT; break;
	case JINJA_LIST: owner = OF_LIST; break;
	case JINJA_TUPLE: owner = OF_TUPLE; break;
	case JINJA_LOOP: owner = OF_LOOP; break;
	case JINJA_FUNCTION:
		if (object.function->kind != JINJA_FUNCTION_OBJECT || object.function->id != 0)
			return false;
		if (strcmp(name, "current") == 0) {
			*ret = object.function->self.list->items[object.function->at % object.function->self.list->count];
			return true;
		}
		owner = OF_CYCLER;
		break;
	case JINJA_NAMESPACE:
		found = jinja_dict_get_name(object.dict, name, strlen(name));
		if (found)
			*ret = *found;
		return found != NULL;
	case JINJA_UNDEFINED:
	case JINJA_NONE:
	case JINJA_BOOL:
	case JINJA_INT:
	case JINJA_FLOAT:
	default:
		return false;
	}
	if (jinja_is_sequence(object) && object.list->kind == JINJA_LIST_GROUP && (strcmp(name, "grouper") == 0 || strcmp(name,
	    "list") == 0)) {
		*ret = object.list->items[*name == 'l'];
		return true;
	}
	if (jinja_is_sequence(object) && object.list->kind != JINJA_LIST_PLAIN && object.list->kind != JINJA_LIST_GROUP)
		return false;
	if (!find_method(owner, name, &id))
		return false;
	*ret = jinja_function_value(run, JINJA_FUNCTION_METHOD, id, object);
	return true;
}

static struct jinja_value no_attribute(struct jinja_run *run, struct jinja_value object, const char *name)
{
	if (object.kind == JINJA_UNDEFINED)
		jinja_raise(run, STATUS_INVALID, "%s", object.missing ? object.missing : "a value is undefined");
	return jinja_undefined(run, "'%s object' has no attribute '%.60s'", jinja_type_name(object), name);
}

struct jinja_value jinja_attribute(struct jinja_run *run, struct jinja_value object, const char *name)
{
	struct jinja_value        value;
	const struct jinja_value *found;

	if (own_attribute(run, object, name, &value))
		return value;
	if (object.kind == JINJA_LOOP)
		return loop_attribute(run, object, name);
	if (object.kind == JINJA_DICT && (found = jinja_dict_get_name(object.dict, name, strlen(name))))
		return *found;
	return no_attribute(run, object, name);
}

struct jinja_value jinja_item(struct jinja_run *run, struct jinja_value object, struct jinja_value key)
{
	const struct jinja_value *found;
	struct jinja_value        value;
	const char               *name;

	if (object.kind == JINJA_DICT) {
		if (key.kind != JINJA_LIST && key.kind != JINJA_DICT && (found = jinja_dict_get(run, object.dict, key)))
			return *found;
	} else if ((object.kind == JINJA_STRING || jinja_is_sequence(object)) && (key.kind == JINJA_INT || key.kind == JINJA_BOOL) &&
	           !(jinja_is_sequence(object) && (object.list->kind == JINJA_LIST_GENERATOR ||
	    object.list->kind == JINJA_LIST_VIEW))) {
		int64_t length = (int64_t)jinja_length(run, object), at = jinja_as_int(run, key, "an index");

		if (at < 0)
			at += length;
		if (at < 0 || at >= length)
			return jinja_undefined(run, "'%s object' has no element %lld", jinja_type_name(object), (long long)jinja_as_int(run,
			    key, "an index"));
		if (object.kind == JINJA_STRING) {
			size_t first = jinja_character_at(*object.string, (size_t)at);

			jinja_spend(run, first / 64);
			return jinja_string_value(run, jinja_part(*object.string, first, first + jinja_character_bytes(*object.string, first)));
		}
		return object.list->items[at];
	}
	if (key.kind != JINJA_STRING)
		return no_attribute(run, object, jinja_type_name(key));
	name = jinja_terminated(run, *key.string);
	if (own_attribute(run, object, name, &value))
		return value;
	if (object.kind == JINJA_LOOP)
		return loop_attribute(run, object, name);
	return no_attribute(run, object, name);
}
