/* gguf.c: owns the index over a mapped GGUF file.  Does not know what the tensors or keys mean.
 *
 * The file is hostile until proven otherwise.  Opening walks the header, the metadata and the tensor table once, with a
 * cursor that never passes the end; afterwards every struct value and every tensor points at bytes that are known to lie
 * inside the map, so that the getters need no bounds checks of their own.  Memory is taken only after a count was held
 * against the bytes that are left for it: a file of N bytes costs O(N), whatever its counts claim.  Lookups use sorted
 * arrays (n log n for every file; a hash could be forced to n²).
 *
 * Invariant: a gguf handle exists only when all of this holds: names and keys are unique and free of NUL, every tensor
 * has its exact size inside the data section, aligned, and no two tensors share a byte.
 *
 * What happens when a file shrinks while it is mapped: see map.c.
 */
#include "file/gguf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "file/map.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers are little-endian in the file and read with memcpy. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the GGUF reader needs a little-endian machine");

/* Value types of the metadata; the numbers are those of the file format. */
enum value_type {
	VALUE_U8, VALUE_I8, VALUE_U16, VALUE_I16, VALUE_U32, VALUE_I32, VALUE_F32, VALUE_BOOL, VALUE_STRING, VALUE_ARRAY,
	VALUE_U64, VALUE_I64, VALUE_F64, VALUE_TYPES
};

static const struct {
	const char *name;
	unsigned    bytes; /* 0: variable */
} value_types[VALUE_TYPES] = {
	{ "u8", 1 }, { "i8", 1 }, { "u16", 2 }, { "i16", 2 }, { "u32", 4 }, { "i32", 4 }, { "f32", 4 }, { "bool", 1 },
	{ "string", 0 }, { "array", 0 }, { "u64", 8 }, { "i64", 8 }, { "f64", 8 },
};

static const struct {
	enum gguf_type type;
	const char    *name;
	unsigned       elements, bytes; /* of one block */
} tensor_types[] = {
	{ GGUF_F32, "F32", 1, 4 },        { GGUF_F16, "F16", 1, 2 },        { GGUF_BF16, "BF16", 1, 2 },
	{ GGUF_Q4_0, "Q4_0", 32, 18 },    { GGUF_Q4_1, "Q4_1", 32, 20 },    { GGUF_Q5_0, "Q5_0", 32, 22 },
	{ GGUF_Q5_1, "Q5_1", 32, 24 },    { GGUF_Q8_0, "Q8_0", 32, 34 },    { GGUF_Q2_K, "Q2_K", 256, 84 },
	{ GGUF_Q3_K, "Q3_K", 256, 110 },  { GGUF_Q4_K, "Q4_K", 256, 144 },  { GGUF_Q5_K, "Q5_K", 256, 176 },
	{ GGUF_Q6_K, "Q6_K", 256, 210 },  { GGUF_IQ4_NL, "IQ4_NL", 32, 18 }, { GGUF_IQ4_XS, "IQ4_XS", 256, 136 },
};

/* Bytes of the path that a message shows: the rest of its room is for the words. */
enum { LABEL_MAX = 160 };

struct value {
	const char          *key; /* into the map, not terminated */
	size_t               key_len;
	enum value_type      type, element; /* element: of an array */
	size_t               count;         /* bytes of a string, elements of an array, else 1 */
	const unsigned char *at;            /* first byte of the payload */
	size_t               offset;        /* of the key, for messages */
};

struct entry {
	struct gguf_tensor tensor;
	size_t             name_at, name_len, offset; /* in the file; offset: of this table row, for messages */
	uint64_t           data_at;                   /* relative to the data section */
};

struct gguf {
	const unsigned char *bytes;
	size_t               size;
	struct map           map; /* of the file; empty when the bytes are the caller's */
	char                *label;
	struct value        *values; /* sorted by key */
	size_t               value_count;
	struct entry        *entries; /* in file order */
	size_t               entry_count;
	struct entry       **by_name;
	char                *names; /* the tensors' names, terminated */
	size_t               data_offset, data_bytes;
};

struct cursor {
	const struct gguf *gguf;
	size_t             at;
	struct error      *error;
};

static enum status bad(const struct gguf *gguf, size_t at, struct error *error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static enum status bad(const struct gguf *gguf, size_t at, struct error *error, const char *format, ...)
{
	char    text[300];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	return error_set(error, STATUS_INVALID, "%.*s: %s, at byte %zu", LABEL_MAX, gguf->label, text, at);
}

static enum status no_memory(const struct gguf *gguf, struct error *error)
{
	return error_set(error, STATUS_NOMEM, "%.*s: no memory for the index of its keys and tensors", LABEL_MAX, gguf->label);
}

static size_t left(const struct cursor *c) { return c->gguf->size - c->at; }

static enum status read_bytes(struct cursor *c, const char *what, void *ret, size_t len)
{
	if (left(c) < len)
		return bad(c->gguf, c->at, c->error, "the file ends inside %s", what);
	memcpy(ret, c->gguf->bytes + c->at, len);
	c->at += len;
	return STATUS_OK;
}

static enum status read_u32(struct cursor *c, const char *what, uint32_t *ret) { return read_bytes(c, what, ret, 4); }
static enum status read_u64(struct cursor *c, const char *what, uint64_t *ret) { return read_bytes(c, what, ret, 8); }

/* A length and that many bytes. */
static enum status read_string(struct cursor *c, const char *what, size_t max, const char **ret, size_t *ret_len)
{
	size_t      start = c->at;
	uint64_t    len = 0;
	enum status status = read_u64(c, what, &len);

	if (status)
		return status;
	if (len > max)
		return bad(c->gguf, start, c->error, "%s has %llu bytes, the limit is %zu", what,
		    (unsigned long long)len, max);
	if (len > left(c))
		return bad(c->gguf, start, c->error, "%s has %llu bytes but the file ends after %zu", what,
		    (unsigned long long)len, left(c));
	*ret = (const char *)c->gguf->bytes + c->at;
	*ret_len = (size_t)len;
	c->at += (size_t)len;
	return STATUS_OK;
}

/* A tensor name or key: not empty, no NUL (it would be cut where C reads it). */
static enum status read_name(struct cursor *c, const char *what, const char **ret, size_t *ret_len)
{
	size_t      start = c->at, len = 0;
	const char *name = NULL;
	enum status status = read_string(c, what, GGUF_NAME_MAX, &name, &len);

	if (status)
		return status;
	if (len == 0 || memchr(name, '\0', len))
		return bad(c->gguf, start, c->error, "%s is empty or contains a NUL", what);
	*ret = name;
	*ret_len = len;
	return STATUS_OK;
}

static enum status read_array(struct cursor *c, struct value *value)
{
	size_t      start = c->at;
	uint32_t    element = 0;
	uint64_t    count = 0;
	enum status status = read_u32(c, "an array's type", &element);

	if (!status)
		status = read_u64(c, "an array's length", &count);
	if (status)
		return status;
	if (element >= VALUE_TYPES || element == VALUE_ARRAY)
		return bad(c->gguf, start, c->error, element == VALUE_ARRAY ? "arrays of arrays are not supported (type %u)" :
		    "an array has unknown element type %u", element);
	if (count > GGUF_ARRAY_MAX)
		return bad(c->gguf, start, c->error, "an array has %llu elements, the limit is %d",
		    (unsigned long long)count, GGUF_ARRAY_MAX);
	if (count > left(c) / (element == VALUE_STRING ? 8 : value_types[element].bytes))
		return bad(c->gguf, start, c->error, "an array of %llu elements passes the end of the file",
		    (unsigned long long)count);
	value->element = (enum value_type)element;
	value->count = (size_t)count;
	value->at = c->gguf->bytes + c->at;
	if (element != VALUE_STRING) {
		c->at += (size_t)count * value_types[element].bytes; /* fits: checked above */
		return STATUS_OK;
	}
	for (uint64_t i = 0; i < count; i++) {
		const char *string;
		size_t      len;
		status = read_string(c, "a string of an array", GGUF_STRING_MAX, &string, &len);
		if (status)
			return status;
	}
	return STATUS_OK;
}

static enum status read_value(struct cursor *c, struct value *value)
{
	uint32_t    type = 0;
	size_t      start;
	enum status status;

	value->offset = c->at;
	status = read_name(c, "a key", &value->key, &value->key_len);
	start = c->at;
	if (!status)
		status = read_u32(c, "a value's type", &type);
	if (status)
		return status;
	if (type >= VALUE_TYPES)
		return bad(c->gguf, start, c->error, "unknown value type %u", type);
	value->type = (enum value_type)type;
	if (type == VALUE_ARRAY)
		return read_array(c, value);
	if (type == VALUE_STRING) {
		const char *string;
		status = read_string(c, "a string value", GGUF_STRING_MAX, &string, &value->count);
		if (!status)
			value->at = (const unsigned char *)string;
		return status;
	}
	if (left(c) < value_types[type].bytes)
		return bad(c->gguf, c->at, c->error, "the file ends inside a value");
	value->count = 1;
	value->at = c->gguf->bytes + c->at;
	c->at += value_types[type].bytes;
	if (type == VALUE_BOOL && *value->at > 1)
		return bad(c->gguf, c->at - 1, c->error, "a bool is %u, neither 0 nor 1", *value->at);
	return STATUS_OK;
}

static int compare_values(const void *a, const void *b)
{
	const struct value *x = a, *y = b;
	int                 order = bytes_compare(x->key, x->key_len, y->key, y->key_len);
	return order ? order : (x->offset > y->offset) - (x->offset < y->offset);
}

static enum status read_metadata(struct cursor *c, struct gguf *gguf, uint64_t count)
{
	char quoted[BYTES_QUOTE_MAX];

	/* The smallest pair: a length, one byte, a type, one byte. */
	if (count > GGUF_KEYS_MAX)
		return bad(gguf, 16, c->error, "%llu metadata keys, the limit is %d", (unsigned long long)count,
		    GGUF_KEYS_MAX);
	if (count > left(c) / 14)
		return bad(gguf, 16, c->error, "%llu metadata keys do not fit into the file", (unsigned long long)count);
	gguf->values = calloc((size_t)count + 1, sizeof *gguf->values);
	if (!gguf->values)
		return no_memory(gguf, c->error);
	for (; gguf->value_count < count; gguf->value_count++) {
		enum status status = read_value(c, &gguf->values[gguf->value_count]);
		if (status)
			return status;
	}
	qsort(gguf->values, gguf->value_count, sizeof *gguf->values, compare_values);
	for (size_t i = 1; i < gguf->value_count; i++) {
		const struct value *x = &gguf->values[i - 1], *y = &gguf->values[i];
		if (bytes_compare(x->key, x->key_len, y->key, y->key_len) == 0)
			return bad(gguf, y->offset, c->error, "key %s appears twice", bytes_quote(quoted, y->key, y->key_len));
	}
	return STATUS_OK;
}

/* Shape and type of one tensor → its size in bytes. */
static enum status measure_tensor(struct cursor *c, struct entry *entry, uint32_t type)
{
	struct gguf_tensor *tensor = &entry->tensor;
	const char         *name = (const char *)c->gguf->bytes + entry->name_at;
	char                quoted[BYTES_QUOTE_MAX];
	unsigned            block = 1, block_bytes = 0;
	uint64_t            elements = 1, bytes;

	bytes_quote(quoted, name, entry->name_len);
	tensor->type = (enum gguf_type)type;
	if (!gguf_type_block(tensor->type, &block, &block_bytes))
		return bad(c->gguf, entry->offset, c->error, "tensor %s has type %u, which this program does not read",
		    quoted, type);
	for (unsigned i = 0; i < tensor->n_dims; i++) {
		if (tensor->dims[i] == 0)
			return bad(c->gguf, entry->offset, c->error, "dimension %u of tensor %s is 0", i, quoted);
		if (!checked_mul_u64(elements, tensor->dims[i], &elements))
			return bad(c->gguf, entry->offset, c->error, "the dimensions of tensor %s overflow", quoted);
	}
	if (tensor->dims[0] % block)
		return bad(c->gguf, entry->offset, c->error, "rows of %llu elements of tensor %s are no multiple of the %s block, %u",
		    (unsigned long long)tensor->dims[0], quoted, gguf_type_name(tensor->type), block);
	if (!checked_mul_u64(elements / block, block_bytes, &bytes) || bytes > SIZE_MAX)
		return bad(c->gguf, entry->offset, c->error, "the size of tensor %s overflows", quoted);
	tensor->bytes = (size_t)bytes;
	return STATUS_OK;
}

static enum status read_tensor(struct cursor *c, struct entry *entry)
{
	const char *name = NULL;
	uint32_t    n_dims = 0, type = 0;
	enum status status;

	entry->offset = c->at;
	status = read_name(c, "a tensor name", &name, &entry->name_len);
	if (status)
		return status;
	entry->name_at = c->at - entry->name_len;
	status = read_u32(c, "a tensor's number of dimensions", &n_dims);
	if (status)
		return status;
	if (n_dims < 1 || n_dims > GGUF_DIMENSIONS_MAX)
		return bad(c->gguf, entry->offset, c->error, "a tensor has %u dimensions, allowed are 1 to %d", n_dims,
		    GGUF_DIMENSIONS_MAX);
	entry->tensor.n_dims = n_dims;
	for (unsigned i = 0; i < GGUF_DIMENSIONS_MAX; i++)
		entry->tensor.dims[i] = 1;
	for (unsigned i = 0; !status && i < n_dims; i++)
		status = read_u64(c, "a tensor's dimensions", &entry->tensor.dims[i]);
	if (!status)
		status = read_u32(c, "a tensor's type", &type);
	if (!status)
		status = read_u64(c, "a tensor's offset", &entry->data_at);
	return status ? status : measure_tensor(c, entry, type);
}

static int compare_names(const void *a, const void *b)
{
	const struct entry *x = *(struct entry *const *)a, *y = *(struct entry *const *)b;
	int                 order = strcmp(x->tensor.name, y->tensor.name);
	return order ? order : (x->offset > y->offset) - (x->offset < y->offset);
}

static int compare_data(const void *a, const void *b)
{
	const struct entry *x = *(struct entry *const *)a, *y = *(struct entry *const *)b;
	return (x->data_at > y->data_at) - (x->data_at < y->data_at);
}

/* Terminated copies of the names, and the index by name. */
static enum status index_tensors(struct gguf *gguf, struct error *error)
{
	size_t total = 1;
	char  *at;
	char   quoted[BYTES_QUOTE_MAX];

	for (size_t i = 0; i < gguf->entry_count; i++)
		total += gguf->entries[i].name_len + 1; /* at most twice the file: cannot wrap */
	gguf->names = malloc(total);
	gguf->by_name = calloc(gguf->entry_count + 1, sizeof *gguf->by_name);
	if (!gguf->names || !gguf->by_name)
		return no_memory(gguf, error);
	at = gguf->names;
	for (size_t i = 0; i < gguf->entry_count; i++) {
		struct entry *entry = &gguf->entries[i];
		memcpy(at, gguf->bytes + entry->name_at, entry->name_len);
		at[entry->name_len] = '\0';
		entry->tensor.name = at;
		at += entry->name_len + 1;
		gguf->by_name[i] = entry;
	}
	qsort(gguf->by_name, gguf->entry_count, sizeof *gguf->by_name, compare_names);
	for (size_t i = 1; i < gguf->entry_count; i++)
		if (strcmp(gguf->by_name[i - 1]->tensor.name, gguf->by_name[i]->tensor.name) == 0)
			return bad(gguf, gguf->by_name[i]->offset, error, "tensor %s appears twice",
			    bytes_quote(quoted, gguf->by_name[i]->tensor.name, gguf->by_name[i]->name_len));
	return STATUS_OK;
}

/* Every tensor inside the data section, aligned, apart from the others. */
static enum status place_tensors(struct gguf *gguf, uint64_t alignment, struct error *error)
{
	size_t         section = gguf->size - gguf->data_offset;
	struct entry **order = calloc(gguf->entry_count + 1, sizeof *order);
	enum status    status = STATUS_OK;
	char           quoted[BYTES_QUOTE_MAX], other[BYTES_QUOTE_MAX];

	if (!order)
		return no_memory(gguf, error);
	for (size_t i = 0; !status && i < gguf->entry_count; i++) {
		struct entry *entry = order[i] = &gguf->entries[i];
		bytes_quote(quoted, entry->tensor.name, entry->name_len);
		if (entry->data_at % alignment)
			status = bad(gguf, entry->offset, error, "offset %llu of tensor %s is no multiple of the alignment, %llu",
			    (unsigned long long)entry->data_at, quoted, (unsigned long long)alignment);
		else if (entry->data_at > section || entry->tensor.bytes > section - entry->data_at)
			status = bad(gguf, entry->offset, error,
			    "tensor %s (offset %llu, %zu bytes) passes the end of the data section of %zu bytes", quoted,
			    (unsigned long long)entry->data_at, entry->tensor.bytes, section);
		else {
			entry->tensor.data = gguf->bytes + gguf->data_offset + entry->data_at;
			gguf->data_bytes += entry->tensor.bytes; /* the sum is bounded below: overlaps are refused */
		}
	}
	if (!status)
		qsort(order, gguf->entry_count, sizeof *order, compare_data);
	for (size_t i = 1; !status && i < gguf->entry_count; i++) {
		struct entry *x = order[i - 1], *y = order[i];
		if (x->data_at + x->tensor.bytes > y->data_at)
			status = bad(gguf, y->offset, error, "tensors %s and %s overlap",
			    bytes_quote(other, x->tensor.name, x->name_len), bytes_quote(quoted, y->tensor.name, y->name_len));
	}
	free(order);
	return status;
}

static enum status read_tensors(struct cursor *c, struct gguf *gguf, uint64_t count)
{
	uint64_t     alignment = 32, aligned;
	struct error ignored;
	enum status  status;

	status = gguf_get_u64(gguf, "general.alignment", &alignment, &ignored);
	if (status && status != STATUS_NOT_FOUND)
		return bad(gguf, c->at, c->error, "general.alignment is not an integer");
	/* Multiples of 8 by the format's definition; the kernels rely on at least 4. */
	if (alignment < 8 || alignment > GGUF_ALIGNMENT_MAX || (alignment & (alignment - 1)))
		return bad(gguf, c->at, c->error, "general.alignment is %llu, not a power of two from 8 to %d",
		    (unsigned long long)alignment, GGUF_ALIGNMENT_MAX);
	/* The smallest row: a length, one byte, dimension count, one dimension, type, offset. */
	if (count > GGUF_TENSORS_MAX)
		return bad(gguf, 8, c->error, "%llu tensors, the limit is %d", (unsigned long long)count, GGUF_TENSORS_MAX);
	if (count > left(c) / 33)
		return bad(gguf, 8, c->error, "%llu tensors do not fit into the file", (unsigned long long)count);
	gguf->entries = calloc((size_t)count + 1, sizeof *gguf->entries);
	if (!gguf->entries)
		return no_memory(gguf, c->error);
	for (; gguf->entry_count < count; gguf->entry_count++) {
		status = read_tensor(c, &gguf->entries[gguf->entry_count]);
		if (status)
			return status;
	}
	status = index_tensors(gguf, c->error);
	if (status)
		return status;
	/* A file without tensors may end right after its tables. */
	if (!checked_align_up(c->at, alignment, &aligned) || aligned > gguf->size)
		aligned = gguf->size;
	gguf->data_offset = (size_t)aligned;
	return place_tensors(gguf, alignment, c->error);
}

static enum status parse(struct gguf *gguf, struct error *error)
{
	struct cursor c = { .gguf = gguf, .error = error };
	char          magic[4];
	uint32_t      version = 0;
	uint64_t      tensors = 0, keys = 0;
	enum status   status = read_bytes(&c, "the header", magic, sizeof magic);

	if (!status && memcmp(magic, "GGUF", 4) != 0)
		return bad(gguf, 0, error, "not a GGUF file (it does not begin with \"GGUF\")");
	if (!status)
		status = read_u32(&c, "the header", &version);
	if (!status && version != 2 && version != 3)
		return bad(gguf, 4, error, version && !(version & 0xffff) ? "a big-endian GGUF file (version field %u)" :
		    "GGUF version %u, this program reads 2 and 3", version);
	if (!status)
		status = read_u64(&c, "the header", &tensors);
	if (!status)
		status = read_u64(&c, "the header", &keys);
	if (!status)
		status = read_metadata(&c, gguf, keys);
	return status ? status : read_tensors(&c, gguf, tensors);
}

/* Takes over MAP, in success and failure; it is empty when the bytes are the caller's. */
static enum status make(const void *bytes, size_t size, struct map map, const char *label, struct gguf **ret, struct error *error)
{
	struct gguf *gguf = calloc(1, sizeof *gguf);
	enum status  status;

	if (!gguf) {
		map_close(&map);
		return error_set(error, STATUS_NOMEM, "%.*s: no memory", LABEL_MAX, label);
	}
	gguf->bytes = bytes;
	gguf->size = size;
	gguf->map = map;
	gguf->label = strdup(label);
	if (!gguf->label) {
		status = error_set(error, STATUS_NOMEM, "%.*s: no memory", LABEL_MAX, label);
		goto fail;
	}
	status = parse(gguf, error);
	if (status)
		goto fail;
	*ret = gguf;
	return STATUS_OK;
fail:
	gguf_close(gguf);
	return status;
}

enum status gguf_parse(const void *bytes, size_t size, const char *label, struct gguf **ret, struct error *error)
{
	return make(bytes, size, (struct map){ .fd = -1 }, label, ret, error);
}

enum status gguf_open(const char *path, struct gguf **ret, struct error *error)
{
	struct map  map;
	enum status status = map_open(path, SIZE_MAX, &map, error);

	return status ? status : make(map.bytes, map.size, map, path, ret, error);
}

const struct map *gguf_map(const struct gguf *gguf) { return gguf->map.size ? &gguf->map : NULL; }

void gguf_close(struct gguf *gguf)
{
	if (!gguf)
		return;
	map_close(&gguf->map);
	free(gguf->label);
	free(gguf->values);
	free(gguf->entries);
	free(gguf->by_name);
	free(gguf->names);
	free(gguf);
}

enum status gguf_error_prefix(const struct gguf *gguf, enum status status, struct error *error)
{
	char   words[ERROR_MESSAGE_MAX];
	size_t len = strnlen(gguf->label, LABEL_MAX);

	if (error && (strncmp(error->message, gguf->label, len) != 0 || error->message[len] != ':')) {
		memcpy(words, error->message, sizeof words);
		snprintf(error->message, sizeof error->message, "%.*s: %.*s", LABEL_MAX, gguf->label,
		    ERROR_MESSAGE_MAX - LABEL_MAX - 3, words);
	}
	return status;
}

size_t gguf_tensor_count(const struct gguf *gguf) { return gguf->entry_count; }
size_t gguf_data_bytes(const struct gguf *gguf) { return gguf->data_bytes; }

const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t index)
{
	return index < gguf->entry_count ? &gguf->entries[index].tensor : NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name)
{
	size_t low = 0, high = gguf->entry_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int    order = strcmp(name, gguf->by_name[middle]->tensor.name);
		if (order == 0)
			return &gguf->by_name[middle]->tensor;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

bool gguf_type_block(enum gguf_type type, unsigned *ret_elements, unsigned *ret_bytes)
{
	for (size_t i = 0; i < sizeof tensor_types / sizeof tensor_types[0]; i++)
		if (tensor_types[i].type == type) {
			*ret_elements = tensor_types[i].elements;
			*ret_bytes = tensor_types[i].bytes;
			return true;
		}
	return false;
}

const char *gguf_type_name(enum gguf_type type)
{
	for (size_t i = 0; i < sizeof tensor_types / sizeof tensor_types[0]; i++)
		if (tensor_types[i].type == type)
			return tensor_types[i].name;
	return "unknown";
}

/* The value of KEY, or an error with words. */
static enum status find(const struct gguf *gguf, const char *key, const struct value **ret, struct error *error)
{
	size_t low = 0, high = gguf->value_count, len = strlen(key);
	char   quoted[BYTES_QUOTE_MAX];

	while (low < high) {
		size_t              middle = low + (high - low) / 2;
		const struct value *value = &gguf->values[middle];
		int                 order = bytes_compare(key, len, value->key, value->key_len);
		if (order == 0) {
			*ret = value;
			return STATUS_OK;
		}
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return error_set(error, STATUS_NOT_FOUND, "%.*s: key %s is missing", LABEL_MAX, gguf->label,
	    bytes_quote(quoted, key, len));
}

static enum status wrong(const struct gguf *gguf, const struct value *value, struct error *error, const char *wanted)
{
	char quoted[BYTES_QUOTE_MAX];
	bool array = value->type == VALUE_ARRAY;

	return bad(gguf, value->offset, error, "key %s is of type %s%s, not %s",
	    bytes_quote(quoted, value->key, value->key_len), array ? "array of " : "",
	    value_types[array ? value->element : value->type].name, wanted);
}

/* Element INDEX of TYPE at BYTES, sign-extended; false when TYPE is no integer.  *ret_wide: a u64 beyond INT64_MAX. */
static bool integer(enum value_type type, const unsigned char *bytes, size_t index, int64_t *ret, bool *ret_wide)
{
	union { uint8_t u8; int8_t i8; uint16_t u16; int16_t i16; uint32_t u32; int32_t i32; uint64_t u64; int64_t i64; } v;

	*ret_wide = false;
	if (type == VALUE_F32 || type == VALUE_F64 || type == VALUE_BOOL || type == VALUE_STRING || type == VALUE_ARRAY)
		return false;
	memcpy(&v, bytes + index * value_types[type].bytes, value_types[type].bytes);
	switch (type) {
	case VALUE_U8:  *ret = v.u8; break;
	case VALUE_I8:  *ret = v.i8; break;
	case VALUE_U16: *ret = v.u16; break;
	case VALUE_I16: *ret = v.i16; break;
	case VALUE_U32: *ret = v.u32; break;
	case VALUE_I32: *ret = v.i32; break;
	default:        *ret = v.i64; *ret_wide = type == VALUE_U64 && v.i64 < 0; break;
	}
	return true;
}

enum status gguf_get_u64(const struct gguf *gguf, const char *key, uint64_t *ret, struct error *error)
{
	const struct value *value = NULL;
	int64_t             number;
	bool                wide;
	char                quoted[BYTES_QUOTE_MAX];
	enum status         status = find(gguf, key, &value, error);

	if (status)
		return status;
	if (!integer(value->type, value->at, 0, &number, &wide))
		return wrong(gguf, value, error, "an integer");
	if (number < 0 && !wide)
		return bad(gguf, value->offset, error, "key %s is %lld, which must not be negative",
		    bytes_quote(quoted, value->key, value->key_len), (long long)number);
	*ret = (uint64_t)number;
	return STATUS_OK;
}

enum status gguf_get_f64(const struct gguf *gguf, const char *key, double *ret, struct error *error)
{
	const struct value *value = NULL;
	double              number;
	float               narrow;
	char                quoted[BYTES_QUOTE_MAX];
	enum status         status = find(gguf, key, &value, error);

	if (status)
		return status;
	if (value->type == VALUE_F32) {
		memcpy(&narrow, value->at, sizeof narrow);
		number = narrow;
	} else if (value->type == VALUE_F64)
		memcpy(&number, value->at, sizeof number);
	else
		return wrong(gguf, value, error, "a floating-point number");
	if (!isfinite(number))
		return bad(gguf, value->offset, error, "key %s is not a finite number",
		    bytes_quote(quoted, value->key, value->key_len));
	*ret = number;
	return STATUS_OK;
}

enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool *ret, struct error *error)
{
	const struct value *value = NULL;
	enum status         status = find(gguf, key, &value, error);

	if (status)
		return status;
	if (value->type != VALUE_BOOL)
		return wrong(gguf, value, error, "a bool");
	*ret = *value->at;
	return STATUS_OK;
}

enum status gguf_get_string(const struct gguf *gguf, const char *key, const char **ret, size_t *ret_len, struct error *error)
{
	const struct value *value = NULL;
	enum status         status = find(gguf, key, &value, error);

	if (status)
		return status;
	if (value->type != VALUE_STRING)
		return wrong(gguf, value, error, "a string");
	*ret = (const char *)value->at;
	*ret_len = value->count;
	return STATUS_OK;
}

static enum status find_array(const struct gguf *gguf, const char *key, const struct value **ret, struct error *error)
{
	const struct value *value = NULL;
	enum status         status = find(gguf, key, &value, error);

	if (status)
		return status;
	if (value->type != VALUE_ARRAY)
		return wrong(gguf, value, error, "an array");
	*ret = value;
	return STATUS_OK;
}

enum status gguf_array_count(const struct gguf *gguf, const char *key, size_t *ret, struct error *error)
{
	const struct value *value = NULL;
	enum status         status = find_array(gguf, key, &value, error);

	if (!status)
		*ret = value->count;
	return status;
}

enum status gguf_array_strings(const struct gguf *gguf, const char *key,
    enum status (*each)(void *context, size_t index, const char *string, size_t len), void *context, struct error *error)
{
	const struct value  *value = NULL;
	const unsigned char *at;
	enum status          status = find_array(gguf, key, &value, error);

	if (status)
		return status;
	if (value->element != VALUE_STRING)
		return wrong(gguf, value, error, "an array of strings");
	at = value->at;
	for (size_t i = 0; i < value->count; i++) {
		uint64_t len;
		memcpy(&len, at, sizeof len); /* checked when the file was opened */
		status = each(context, i, (const char *)at + sizeof len, (size_t)len);
		if (status)
			return status;
		at += sizeof len + len;
	}
	return STATUS_OK;
}

static enum status check_count(const struct gguf *gguf, const struct value *value, size_t count, struct error *error)
{
	char quoted[BYTES_QUOTE_MAX];

	if (value->count == count)
		return STATUS_OK;
	return bad(gguf, value->offset, error, "key %s has %zu elements, expected are %zu",
	    bytes_quote(quoted, value->key, value->key_len), value->count, count);
}

enum status gguf_array_i32(const struct gguf *gguf, const char *key, int32_t *ret, size_t count, struct error *error)
{
	const struct value *value = NULL;
	char                quoted[BYTES_QUOTE_MAX];
	enum status         status = find_array(gguf, key, &value, error);

	if (!status)
		status = check_count(gguf, value, count, error);
	if (status)
		return status;
	/* Two passes: nothing is stored unless all of it fits. */
	for (int pass = 0; pass < 2; pass++)
		for (size_t i = 0; i < count; i++) {
			int64_t number;
			bool    wide;
			if (value_types[value->element].bytes > 4 || !integer(value->element, value->at, i, &number, &wide))
				return wrong(gguf, value, error, "an array of integers of at most 32 bits");
			if (number > INT32_MAX)
				return bad(gguf, value->offset, error, "element %zu of key %s is %lld, the limit is %d", i,
				    bytes_quote(quoted, value->key, value->key_len), (long long)number, INT32_MAX);
			if (pass)
				ret[i] = (int32_t)number;
		}
	return STATUS_OK;
}

enum status gguf_array_f32(const struct gguf *gguf, const char *key, float *ret, size_t count, struct error *error)
{
	const struct value *value = NULL;
	enum status         status = find_array(gguf, key, &value, error);

	if (!status && value->element != VALUE_F32)
		status = wrong(gguf, value, error, "an array of f32");
	if (!status)
		status = check_count(gguf, value, count, error);
	if (!status && count)
		memcpy(ret, value->at, count * sizeof *ret);
	return status;
}
