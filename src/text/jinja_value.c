/* jinja_value.c: owns the arena of a compilation or rendering and Python's values in it: making, comparing, ordering,
 * walking.  Does not own their text (jinja_string.c) or what can be called on them (jinja_call.c).
 *
 * Invariants: values are never changed after somebody else has seen them, but for namespaces, cyclers, joiners and generators
 * that were walked; everything is zeroed when it is made. */
#include "text/jinja_parts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arena and errors ----------------------------------------------------------------- */

enum { CHUNK_BYTES = 1 << 16, DICT_LINEAR_MAX = 8 };

struct jinja_chunk {
	struct jinja_chunk *next;
};

/* A template's own words may be in a message, which is one line. */
void jinja_one_line(char *message)
{
	for (; *message; message++)
		if ((unsigned char)*message < 0x20)
			*message = ' ';
}

void jinja_raise(struct jinja_run *run, enum status status, const char *format, ...)
{
	char    message[ERROR_MESSAGE_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	jinja_one_line(message);
	run->status = run->line ? error_set(run->error, status, "%s, line %u: %s", run->label, run->line, message)
	                        : error_set(run->error, status, "%s", message);
	longjmp(run->leave, 1);
}

void *jinja_alloc(struct jinja_run *run, size_t size)
{
	struct jinja_arena *arena = &run->arena;
	void               *memory;

	if (size > arena->max || arena->total > arena->max - size)
		jinja_raise(run, STATUS_LIMIT, "the template needs more than %zu bytes of memory", arena->max);
	size = (size + 15) & ~(size_t)15;
	if (arena->capacity - arena->used < size) {
		size_t              capacity = size > CHUNK_BYTES / 4 ? size + 16 : CHUNK_BYTES;
		struct jinja_chunk *chunk = malloc(capacity);

		if (!chunk)
			jinja_raise(run, STATUS_NOMEM, "no memory for %zu bytes", capacity);
		arena->total += capacity;
		if (capacity != CHUNK_BYTES && arena->chunks) { /* a chunk of its own; the current one goes on */
			chunk->next = arena->chunks->next;
			arena->chunks->next = chunk;
			return memset((char *)chunk + 16, 0, size);
		}
		chunk->next = arena->chunks;
		arena->chunks = chunk;
		arena->used = 16;
		arena->capacity = capacity;
	}
	memory = (char *)arena->chunks + arena->used;
	arena->used += size;
	return memset(memory, 0, size);
}

void *jinja_grow(struct jinja_run *run, void *items, size_t count, size_t *capacity, size_t size, size_t first)
{
	void *more;

	if (count < *capacity)
		return items;
	*capacity = *capacity ? 2 * *capacity : first;
	more = jinja_alloc(run, *capacity * size);
	if (count)
		memcpy(more, items, count * size);
	return more;
}

void jinja_arena_free(struct jinja_arena *arena)
{
	while (arena->chunks) {
		struct jinja_chunk *next = arena->chunks->next;
		free(arena->chunks);
		arena->chunks = next;
	}
	*arena = (struct jinja_arena){ 0 };
}

void jinja_spend(struct jinja_run *run, uint64_t steps)
{
	if (run->steps < steps)
		jinja_raise(run, STATUS_LIMIT, "the template takes too many steps");
	run->steps -= steps;
}

void jinja_enter(struct jinja_run *run)
{
	if (++run->depth > JINJA_DEPTH_MAX)
		jinja_raise(run, STATUS_LIMIT, "the template nests deeper than %d levels", JINJA_DEPTH_MAX);
	jinja_spend(run, 1);
}

/* ---- making ----------------------------------------------------------------- */

struct jinja_value jinja_none(void) { return (struct jinja_value){ .kind = JINJA_NONE }; }
struct jinja_value jinja_bool(bool b) { return (struct jinja_value){ .kind = JINJA_BOOL, .boolean = b }; }
struct jinja_value jinja_int(int64_t i) { return (struct jinja_value){ .kind = JINJA_INT, .integer = i }; }
struct jinja_value jinja_float(double f) { return (struct jinja_value){ .kind = JINJA_FLOAT, .real = f }; }

struct jinja_value jinja_undefined(struct jinja_run *run, const char *format, ...)
{
	char    message[160];
	va_list args;
	char   *copy;

	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	copy = jinja_alloc(run, strlen(message) + 1);
	memcpy(copy, message, strlen(message));
	return (struct jinja_value){ .kind = JINJA_UNDEFINED, .missing = copy };
}

struct jinja_value jinja_string_value(struct jinja_run *run, struct jinja_string string)
{
	struct jinja_value value = { .kind = JINJA_STRING, .string = jinja_alloc(run, sizeof string) };

	*value.string = string;
	return value;
}

struct jinja_value jinja_literal(struct jinja_run *run, const char *text)
{
	return jinja_string_value(run, (struct jinja_string){ .bytes = text, .len = strlen(text) });
}

struct jinja_value jinja_list_value(struct jinja_run *run, enum jinja_list_kind kind, size_t capacity)
{
	struct jinja_value value = { .kind = kind == JINJA_LIST_GROUP ? JINJA_TUPLE : JINJA_LIST,
		.list = jinja_alloc(run, sizeof *value.list) };

	jinja_spend(run, capacity / 4);
	value.list->kind = kind;
	value.list->capacity = capacity;
	value.list->items = capacity ? jinja_alloc(run, capacity * sizeof *value.list->items) : NULL;
	return value;
}

struct jinja_value jinja_tuple_value(struct jinja_run *run, size_t capacity)
{
	struct jinja_value value = jinja_list_value(run, JINJA_LIST_PLAIN, capacity);

	value.kind = JINJA_TUPLE;
	return value;
}

void jinja_list_add(struct jinja_run *run, struct jinja_list *list, struct jinja_value value)
{
	bool full = list->count == list->capacity;

	list->items = jinja_grow(run, list->items, list->count, &list->capacity, sizeof *list->items, 8);
	if (full)
		jinja_spend(run, list->capacity / 4);
	list->items[list->count++] = value;
}

struct jinja_value jinja_dict_value(struct jinja_run *run)
{
	return (struct jinja_value){ .kind = JINJA_DICT, .dict = jinja_alloc(run, sizeof(struct jinja_dict)) };
}

struct jinja_value jinja_function_value(struct jinja_run *run, enum jinja_function_kind kind, uint32_t id,
    struct jinja_value self)
{
	struct jinja_value value = { .kind = JINJA_FUNCTION, .function = jinja_alloc(run, sizeof *value.function) };

	value.function->kind = kind;
	value.function->id = id;
	value.function->self = self;
	return value;
}

struct jinja_value jinja_from_json(struct jinja_run *run, const json_t *json, bool data)
{
	struct jinja_value value = { .kind = JINJA_NONE, .data = data };

	jinja_enter(run);
	switch (json_typeof(json)) {
	case JSON_STRING:
		value = jinja_string_value(run, (struct jinja_string){ .bytes = json_string_value(json),
		    .len = json_string_length(json), .data = data });
		break;
	case JSON_INTEGER:
		value.kind = JINJA_INT;
		value.integer = json_integer_value(json);
		break;
	case JSON_REAL:
		value.kind = JINJA_FLOAT;
		value.real = json_real_value(json);
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		value.kind = JINJA_BOOL;
		value.boolean = json_is_true(json);
		break;
	case JSON_ARRAY:
		value = jinja_list_value(run, JINJA_LIST_PLAIN, json_array_size(json));
		for (size_t i = 0; i < json_array_size(json); i++)
			jinja_list_add(run, value.list, jinja_from_json(run, json_array_get(json, i), data));
		break;
	case JSON_OBJECT: {
		const char   *name;
		const json_t *member;

		value = jinja_dict_value(run);
		/* jansson's iterators take no const, and change nothing */
		for (void *at = json_object_iter((json_t *)(uintptr_t)json); at; at = json_object_iter_next((json_t *)(uintptr_t)json,
		    at)) {
			bool literal;

			name = json_object_iter_key(at);
			member = json_object_iter_value(at);
			literal = json_is_string(member) && run->variables->literal &&
			    run->variables->literal(name, json_string_value(member));
			jinja_dict_set(run, value.dict, jinja_string_value(run, (struct jinja_string){ .bytes = name, .len = strlen(name),
			    .data = data }),
			    jinja_from_json(run, member, data && !literal));
		}
		break;
	}
	case JSON_NULL:
		break;
	}
	value.data = data;
	run->depth--;
	return value;
}

/* ---- dictionaries ----------------------------------------------------------------- */

/* Equal values have equal hashes: 1, 1.0 and true are one key. */
static uint64_t hash_bytes(const char *bytes, size_t len)
{
	uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ (uint8_t)bytes[i]) * UINT64_C(1099511628211);
	return hash;
}

static uint64_t hash_value(struct jinja_run *run, struct jinja_value key)
{
	uint64_t hash = 7;
	double   number;

	switch (key.kind) {
	case JINJA_STRING:
		return hash_bytes(key.string->bytes, key.string->len);
	case JINJA_BOOL:
	case JINJA_INT:
	case JINJA_FLOAT:
		number = jinja_as_float(key) + 0.0;
		return hash_bytes((const char *)&number, sizeof number);
	case JINJA_TUPLE:
		jinja_enter(run);
		for (size_t i = 0; i < key.list->count; i++)
			hash = hash * 31 + hash_value(run, key.list->items[i]);
		run->depth--;
		return hash;
	case JINJA_NONE:
	case JINJA_UNDEFINED:
	case JINJA_FUNCTION:
	case JINJA_LOOP:
	case JINJA_NAMESPACE:
		return hash;
	case JINJA_LIST:
	case JINJA_DICT:
		break;
	}
	jinja_raise(run, STATUS_INVALID, "unhashable type: '%s'", jinja_type_name(key));
}

static void index_entry(struct jinja_dict *dict, uint64_t hash, uint32_t entry)
{
	size_t at = hash & (dict->index_size - 1);

	while (dict->index[at])
		at = (at + 1) & (dict->index_size - 1);
	dict->index[at] = entry + 1;
}

static struct jinja_entry *find(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_value key)
{
	uint64_t hash = hash_value(run, key);

	if (!dict->index) {
		for (size_t i = 0; i < dict->count; i++)
			if (jinja_equal(run, dict->entries[i].key, key))
				return &dict->entries[i];
		return NULL;
	}
	for (size_t at = hash & (dict->index_size - 1); dict->index[at]; at = (at + 1) & (dict->index_size - 1)) {
		struct jinja_entry *entry = &dict->entries[dict->index[at] - 1];
		jinja_spend(run, 1);
		if (jinja_equal(run, entry->key, key))
			return entry;
	}
	return NULL;
}

const struct jinja_value *jinja_dict_get(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_value key)
{
	const struct jinja_entry *entry = find(run, dict, key);

	return entry ? &entry->value : NULL;
}

const struct jinja_value *jinja_dict_get_name(const struct jinja_dict *dict, const char *name, size_t len)
{
	const struct jinja_entry *entry;

	if (!dict->index) {
		for (size_t i = 0; i < dict->count; i++) {
			entry = &dict->entries[i];
			if (entry->key.kind == JINJA_STRING && entry->key.string->len == len &&
			    memcmp(entry->key.string->bytes, name, len) == 0)
				return &entry->value;
		}
		return NULL;
	}
	for (size_t at = hash_bytes(name, len) & (dict->index_size - 1); dict->index[at]; at = (at + 1) & (dict->index_size - 1)) {
		entry = &dict->entries[dict->index[at] - 1];
		if (entry->key.kind == JINJA_STRING && entry->key.string->len == len && memcmp(entry->key.string->bytes, name, len) == 0)
			return &entry->value;
	}
	return NULL;
}

void jinja_dict_set(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key, struct jinja_value value)
{
	struct jinja_entry *entry = find(run, dict, key);
	bool                full = dict->count == dict->capacity;

	if (entry) {
		entry->value = value;
		return;
	}
	dict->entries = jinja_grow(run, dict->entries, dict->count, &dict->capacity, sizeof *dict->entries, 4);
	if (full && dict->capacity > DICT_LINEAR_MAX) {
		dict->index_size = 2 * dict->capacity;
		dict->index = jinja_alloc(run, dict->index_size * sizeof *dict->index);
		for (size_t i = 0; i < dict->count; i++)
			index_entry(dict, hash_value(run, dict->entries[i].key), (uint32_t)i);
	}
	dict->entries[dict->count] = (struct jinja_entry){ key, value };
	if (dict->index)
		index_entry(dict, hash_value(run, key), (uint32_t)dict->count);
	dict->count++;
}

/* ---- looking ----------------------------------------------------------------- */

const char *jinja_type_name(struct jinja_value value)
{
	switch (value.kind) {
	case JINJA_UNDEFINED: return "Undefined";
	case JINJA_NONE: return "NoneType";
	case JINJA_BOOL: return "bool";
	case JINJA_INT: return "int";
	case JINJA_FLOAT: return "float";
	case JINJA_STRING: return "str";
	case JINJA_LIST:
		switch (value.list->kind) {
		case JINJA_LIST_RANGE: return "range";
		case JINJA_LIST_VIEW: return "dict view";
		case JINJA_LIST_GENERATOR: return "generator";
		case JINJA_LIST_PLAIN:
		case JINJA_LIST_GROUP: break;
		}
		return "list";
	case JINJA_TUPLE: return "tuple";
	case JINJA_DICT: return "dict";
	case JINJA_NAMESPACE: return "Namespace";
	case JINJA_FUNCTION: return "function";
	case JINJA_LOOP: return "LoopContext";
	}
	return "object";
}

bool jinja_truth(struct jinja_value value)
{
	switch (value.kind) {
	case JINJA_UNDEFINED:
	case JINJA_NONE: return false;
	case JINJA_BOOL: return value.boolean;
	case JINJA_INT: return value.integer != 0;
	case JINJA_FLOAT: return value.real != 0;
	case JINJA_STRING: return value.string->len > 0;
	case JINJA_LIST:
	case JINJA_TUPLE: return value.list->kind == JINJA_LIST_GENERATOR || value.list->count > 0;
	case JINJA_DICT: return value.dict->count > 0;
	case JINJA_NAMESPACE:
	case JINJA_FUNCTION:
	case JINJA_LOOP: break;
	}
	return true;
}

bool jinja_is_number(struct jinja_value value)
{
	return value.kind == JINJA_BOOL || value.kind == JINJA_INT || value.kind == JINJA_FLOAT;
}

bool jinja_is_concrete(struct jinja_value value)
{
	return jinja_is_sequence(value) && (value.list->kind == JINJA_LIST_PLAIN || value.list->kind == JINJA_LIST_GROUP);
}

bool jinja_is_sequence(struct jinja_value value) { return value.kind == JINJA_LIST || value.kind == JINJA_TUPLE; }

int64_t jinja_as_int(struct jinja_run *run, struct jinja_value value, const char *what)
{
	if (value.kind == JINJA_BOOL)
		return value.boolean;
	if (value.kind != JINJA_INT)
		jinja_raise(run, STATUS_INVALID, "%s must be an integer, not '%s'", what, jinja_type_name(value));
	return value.integer;
}

double jinja_as_float(struct jinja_value number)
{
	return number.kind == JINJA_FLOAT ? number.real : number.kind == JINJA_BOOL ? number.boolean : (double)number.integer;
}

static int order_numbers(struct jinja_value a, struct jinja_value b)
{
	if (a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT) {
		int64_t x = a.kind == JINJA_BOOL ? a.boolean : a.integer, y = b.kind == JINJA_BOOL ? b.boolean : b.integer;
		return (x > y) - (x < y);
	}
	return (jinja_as_float(a) > jinja_as_float(b)) - (jinja_as_float(a) < jinja_as_float(b));
}

static bool equal_dicts(struct jinja_run *run, const struct jinja_dict *a, const struct jinja_dict *b)
{
	if (a->count != b->count)
		return false;
	for (size_t i = 0; i < a->count; i++) {
		const struct jinja_value *other = jinja_dict_get(run, b, a->entries[i].key);
		if (!other || !jinja_equal(run, a->entries[i].value, *other))
			return false;
	}
	return true;
}

bool jinja_equal(struct jinja_run *run, struct jinja_value a, struct jinja_value b)
{
	bool equal = true;

	if (jinja_is_number(a) && jinja_is_number(b)) {
		if ((a.kind == JINJA_FLOAT && isnan(a.real)) || (b.kind == JINJA_FLOAT && isnan(b.real)))
			return false;
		return order_numbers(a, b) == 0;
	}
	if (a.kind != b.kind)
		return false;
	switch (a.kind) {
	case JINJA_STRING:
		jinja_spend(run, a.string->len / 64);
		return jinja_string_same(*a.string, *b.string);
	case JINJA_LIST:
	case JINJA_TUPLE:
		if (a.list == b.list)
			return true;
		if (a.list->kind == JINJA_LIST_GENERATOR || b.list->kind == JINJA_LIST_GENERATOR || a.list->count != b.list->count)
			return false;
		jinja_enter(run);
		for (size_t i = 0; i < a.list->count && equal; i++)
			equal = jinja_equal(run, a.list->items[i], b.list->items[i]);
		run->depth--;
		return equal;
	case JINJA_DICT:
		jinja_enter(run);
		equal = equal_dicts(run, a.dict, b.dict);
		run->depth--;
		return equal;
	case JINJA_NAMESPACE:
		return a.dict == b.dict;
	case JINJA_FUNCTION:
		return a.function == b.function;
	case JINJA_LOOP:
		return a.loop == b.loop;
	case JINJA_UNDEFINED:
	case JINJA_NONE:
	case JINJA_BOOL:
	case JINJA_INT:
	case JINJA_FLOAT:
		break;
	}
	return true;
}

int jinja_order(struct jinja_run *run, struct jinja_value a, struct jinja_value b)
{
	if (jinja_is_number(a) && jinja_is_number(b))
		return order_numbers(a, b);
	if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) { /* the order of UTF-8 is that of code points */
		size_t len = a.string->len < b.string->len ? a.string->len : b.string->len;
		int    order = len ? memcmp(a.string->bytes, b.string->bytes, len) : 0;

		jinja_spend(run, len / 64);
		return order ? order : (a.string->len > b.string->len) - (a.string->len < b.string->len);
	}
	if (jinja_is_concrete(a) && jinja_is_concrete(b) && a.kind == b.kind) {
		int order = 0;

		jinja_enter(run);
		for (size_t i = 0; i < a.list->count && i < b.list->count && order == 0; i++)
			if (!jinja_equal(run, a.list->items[i], b.list->items[i]))
				order = jinja_order(run, a.list->items[i], b.list->items[i]);
		run->depth--;
		return order ? order : (a.list->count > b.list->count) - (a.list->count < b.list->count);
	}
	if (a.kind == JINJA_UNDEFINED && a.missing)
		jinja_raise(run, STATUS_INVALID, "%s", a.missing);
	if (b.kind == JINJA_UNDEFINED && b.missing)
		jinja_raise(run, STATUS_INVALID, "%s", b.missing);
	jinja_raise(run, STATUS_INVALID, "'%s' and '%s' have no order", jinja_type_name(a), jinja_type_name(b));
}

/* ---- walking ----------------------------------------------------------------- */

struct jinja_list *jinja_iterate(struct jinja_run *run, struct jinja_value value)
{
	struct jinja_list *list;

	switch (value.kind) {
	case JINJA_LIST:
	case JINJA_TUPLE:
		if (value.list->kind != JINJA_LIST_GENERATOR)
			return value.list;
		list = jinja_alloc(run, sizeof *list);
		*list = *value.list;
		value.list->count = 0;
		return list;
	case JINJA_STRING:
		list = jinja_list_value(run, JINJA_LIST_PLAIN, jinja_characters(*value.string)).list;
		for (size_t at = 0, bytes; at < value.string->len; at += bytes) {
			bytes = jinja_character_bytes(*value.string, at);
			jinja_list_add(run, list, jinja_string_value(run, jinja_part(*value.string, at, at + bytes)));
		}
		return list;
	case JINJA_DICT:
		list = jinja_list_value(run, JINJA_LIST_PLAIN, value.dict->count).list;
		for (size_t i = 0; i < value.dict->count; i++)
			jinja_list_add(run, list, value.dict->entries[i].key);
		return list;
	case JINJA_UNDEFINED:
		return jinja_list_value(run, JINJA_LIST_PLAIN, 0).list;
	case JINJA_NONE:
	case JINJA_BOOL:
	case JINJA_INT:
	case JINJA_FLOAT:
	case JINJA_NAMESPACE:
	case JINJA_FUNCTION:
	case JINJA_LOOP:
		break;
	}
	jinja_raise(run, STATUS_INVALID, "'%s' object is not iterable", jinja_type_name(value));
}

size_t jinja_length(struct jinja_run *run, struct jinja_value value)
{
	if (value.kind == JINJA_STRING)
		return jinja_characters(*value.string);
	if (jinja_is_sequence(value) && value.list->kind != JINJA_LIST_GENERATOR)
		return value.list->count;
	if (value.kind == JINJA_DICT)
		return value.dict->count;
	if (value.kind == JINJA_LOOP)
		return value.loop->items->count;
	if (value.kind == JINJA_UNDEFINED)
		return 0;
	jinja_raise(run, STATUS_INVALID, "object of type '%s' has no length", jinja_type_name(value));
}

bool jinja_contains(struct jinja_run *run, struct jinja_value container, struct jinja_value item)
{
	struct jinja_list *list;

	if (container.kind == JINJA_STRING) {
		if (item.kind != JINJA_STRING)
			jinja_raise(run, STATUS_INVALID, "'in <string>' requires string as left operand, not '%s'", jinja_type_name(item));
		jinja_spend(run, container.string->len / 64);
		return jinja_find(*container.string, *item.string, 0) != SIZE_MAX;
	}
	if (container.kind == JINJA_DICT)
		return jinja_dict_get(run, container.dict, item) != NULL;
	list = jinja_iterate(run, container);
	for (size_t i = 0; i < list->count; i++) {
		jinja_spend(run, 1);
		if (!jinja_equal(run, list->items[i], item))
			continue;
		if (jinja_is_sequence(container) && container.list->kind == JINJA_LIST_GENERATOR) { /* walked so far */
			container.list->items = list->items + i + 1;
			container.list->capacity = container.list->count = list->count - i - 1;
		}
		return true;
	}
	return false;
}

/* Merge sort of ORDER by keys; equal keys stay in order, with REVERSE too. */
static void merge_sort(struct jinja_run *run, size_t *order, size_t *scratch, size_t count, const struct jinja_value *keys,
    bool reverse)
{
	size_t half = count / 2, left = 0, right = half;

	if (count < 2)
		return;
	merge_sort(run, order, scratch, half, keys, reverse);
	merge_sort(run, order + half, scratch, count - half, keys, reverse);
	for (size_t i = 0; i < count; i++) {
		bool take_right = left == half;

		if (left < half && right < count) {
			int compared = jinja_order(run, keys[order[right]], keys[order[left]]);
			take_right = reverse ? compared > 0 : compared < 0;
		}
		scratch[i] = order[take_right ? right++ : left++];
	}
	jinja_spend(run, count);
	memcpy(order, scratch, count * sizeof *order);
}

void jinja_sort(struct jinja_run *run, struct jinja_list *list, const struct jinja_list *keys, bool reverse)
{
	size_t              count = list->count;
	size_t             *order = jinja_alloc(run, 2 * count * sizeof *order + 1);
	struct jinja_value *items = jinja_alloc(run, count * sizeof *items + 1);

	for (size_t i = 0; i < count; i++)
		order[i] = i;
	merge_sort(run, order, order + count, count, keys->items, reverse);
	for (size_t i = 0; i < count; i++)
		items[i] = list->items[order[i]];
	list->items = items;
	list->capacity = count;
}
