/* safetensors.c: owns the map of a safetensors file and the index over it.  Does not know what the tensors mean.
 *
 * The JSON tree of the header is kept only while opening; what remains is one array in the order of the data, one array
 * of pointers in the order of the names (n log n for every file; a hash could be forced to n²) and the names.
 *
 * Invariant: a handle exists only when the tensors, in the order of the data, cover the data section from its first to
 * its last byte, each once, and each has exactly the bytes that its shape and dtype need.
 */
#include "file/safetensors.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "file/jsonfile.h"
#include "file/map.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Data is used as it stands in the file. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the safetensors reader needs a little-endian machine");

static const struct {
	const char *name;
	unsigned    bytes;
} dtypes[SAFETENSORS_DTYPE_COUNT] = {
	[SAFETENSORS_F32] = { "F32", 4 },         [SAFETENSORS_F16] = { "F16", 2 },         [SAFETENSORS_BF16] = { "BF16", 2 },
	[SAFETENSORS_F8_E4M3] = { "F8_E4M3", 1 }, [SAFETENSORS_F8_E5M2] = { "F8_E5M2", 1 }, [SAFETENSORS_I8] = { "I8", 1 },
	[SAFETENSORS_U8] = { "U8", 1 },           [SAFETENSORS_I32] = { "I32", 4 },         [SAFETENSORS_I64] = { "I64", 8 },
};

struct safetensors {
	struct map                  map; /* of our own; empty when the bytes are the caller's */
	char                       *label;
	struct safetensors_tensor  *tensors; /* in the order of the data */
	struct safetensors_tensor **by_name;
	size_t                      count;
	char                       *names;
	json_t                     *metadata; /* NULL: none */
};

static enum status bad(const struct safetensors *file, struct error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum status bad(const struct safetensors *file, struct error *error, const char *format, ...)
{
	char    text[320];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	return error_set(error, STATUS_INVALID, "%.160s: %s", file->label, text);
}

static enum status no_memory(const struct safetensors *file, struct error *error)
{
	return error_set(error, STATUS_NOMEM, "%.160s: no memory for %zu tensors", file->label, file->count);
}

/* A whole number ≥ 0 (jansson has refused what passes 63 bits). */
static bool get_u64(const json_t *value, uint64_t *ret)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*ret = (uint64_t)json_integer_value(value);
	return true;
}

static enum status read_dtype(const struct safetensors *file, const char *quoted, const json_t *value,
    enum safetensors_dtype *ret, struct error *error)
{
	const char *name = json_string_value(value);
	char        quoted_dtype[BYTES_QUOTE_MAX];

	if (!name)
		return bad(file, error, "tensor %s: \"dtype\" is missing or no string", quoted);
	for (unsigned i = 0; i < SAFETENSORS_DTYPE_COUNT; i++)
		if (strcmp(name, dtypes[i].name) == 0) {
			*ret = (enum safetensors_dtype)i;
			return STATUS_OK;
		}
	return error_set(error, STATUS_UNSUPPORTED,
	    "%.160s: tensor %s: dtype %s is not supported%s (supported: F32 F16 BF16 F8_E4M3 F8_E5M2 I8 U8 I32 I64)", file->label,
	    quoted, bytes_quote(quoted_dtype, name, json_string_length(value)),
	    strcmp(name, "F64") == 0 ? ": store the checkpoint in F32 or BF16" : "");
}

/* Shape and dtype → bytes. */
static enum status read_shape(const struct safetensors *file, const char *quoted, const json_t *shape,
    struct safetensors_tensor *tensor, struct error *error)
{
	uint64_t bytes = dtypes[tensor->dtype].bytes;

	if (!json_is_array(shape))
		return bad(file, error, "tensor %s: \"shape\" is missing or no list", quoted);
	if (json_array_size(shape) > SAFETENSORS_DIMENSIONS_MAX)
		return bad(file, error, "tensor %s: %zu dimensions, the limit is %d", quoted, json_array_size(shape),
		    SAFETENSORS_DIMENSIONS_MAX);
	tensor->n_dims = (unsigned)json_array_size(shape);
	for (unsigned i = 0; i < SAFETENSORS_DIMENSIONS_MAX; i++) {
		tensor->dims[i] = 1;
		if (i >= tensor->n_dims)
			continue;
		if (!get_u64(json_array_get(shape, i), &tensor->dims[i]))
			return bad(file, error, "tensor %s: dimension %u is no whole number from 0", quoted, i);
		if (!checked_mul_u64(bytes, tensor->dims[i], &bytes) || bytes > SIZE_MAX)
			return bad(file, error, "tensor %s: the size overflows at dimension %u, %llu", quoted, i,
			    (unsigned long long)tensor->dims[i]);
	}
	tensor->bytes = (size_t)bytes;
	return STATUS_OK;
}

static enum status read_tensor(const struct safetensors *file, const char *name, size_t name_len, const json_t *entry,
    const unsigned char *data, size_t data_bytes, struct safetensors_tensor *tensor, struct error *error)
{
	const json_t *offsets, *value;
	const char   *key;
	uint64_t      begin = 0, end = 0;
	char          quoted[BYTES_QUOTE_MAX], quoted_key[BYTES_QUOTE_MAX];
	enum status   status;

	bytes_quote(quoted, name, name_len);
	if (name_len == 0 || name_len > SAFETENSORS_NAME_MAX)
		return bad(file, error, "tensor %s: a name of %zu bytes, allowed are 1 to %d", quoted, name_len, SAFETENSORS_NAME_MAX);
	if (!json_is_object(entry))
		return bad(file, error, "tensor %s: its entry is no object", quoted);
	/* A key that this program does not know might change what the bytes mean. */
	json_object_foreach((json_t *)entry, key, value)
		if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 && strcmp(key, "data_offsets") != 0)
			return bad(file, error, "tensor %s: unknown key %s", quoted, bytes_quote(quoted_key, key, strlen(key)));
	status = read_dtype(file, quoted, json_object_get(entry, "dtype"), &tensor->dtype, error);
	if (!status)
		status = read_shape(file, quoted, json_object_get(entry, "shape"), tensor, error);
	if (status)
		return status;
	offsets = json_object_get(entry, "data_offsets");
	if (json_array_size(offsets) != 2 || !get_u64(json_array_get(offsets, 0), &begin) ||
	    !get_u64(json_array_get(offsets, 1), &end))
		return bad(file, error, "tensor %s: \"data_offsets\" is no list of two whole numbers from 0", quoted);
	if (begin > end || end > data_bytes)
		return bad(file, error, "tensor %s: data_offsets [%llu, %llu], the data section has %zu bytes: %s", quoted,
		    (unsigned long long)begin, (unsigned long long)end, data_bytes,
		    begin > end ? "they run backwards" : "the file is too short or the header damaged");
	if (end - begin != tensor->bytes)
		return bad(file, error, "tensor %s: data_offsets [%llu, %llu] hold %llu bytes, shape and dtype %s need %zu", quoted,
		    (unsigned long long)begin, (unsigned long long)end, (unsigned long long)(end - begin),
		    dtypes[tensor->dtype].name, tensor->bytes);
	tensor->data = data + begin;
	return STATUS_OK;
}

/* Empty tensors sort before the one that begins where they stand. */
static int compare_data(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;
	if (x->data != y->data)
		return x->data < y->data ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp((*(struct safetensors_tensor *const *)a)->name, (*(struct safetensors_tensor *const *)b)->name);
}

/* The tensors in order must lie end to end from the first byte of the data section to its last. */
static enum status check_coverage(const struct safetensors *file, const unsigned char *data, size_t data_bytes, struct error *error)
{
	size_t at = 0;
	char   quoted[BYTES_QUOTE_MAX];

	for (size_t i = 0; i < file->count; i++) {
		const struct safetensors_tensor *tensor = &file->tensors[i];
		size_t                           begin = (size_t)((const unsigned char *)tensor->data - data);
		if (begin != at)
			return bad(file, error, "tensor %s begins at byte %zu of the data section, the one before it ends at %zu: %s",
			    bytes_quote(quoted, tensor->name, strlen(tensor->name)), begin, at, begin < at ? "they overlap" : "a gap");
		at += tensor->bytes;
	}
	if (at != data_bytes)
		return bad(file, error, "the tensors end at byte %zu of the data section, the file goes on to %zu", at, data_bytes);
	return STATUS_OK;
}

static enum status read_metadata(struct safetensors *file, json_t *metadata, struct error *error)
{
	const char *key;
	json_t     *value;
	char        quoted[BYTES_QUOTE_MAX];

	if (!json_is_object(metadata))
		return bad(file, error, "__metadata__ is no object");
	json_object_foreach(metadata, key, value)
		if (!json_is_string(value))
			return bad(file, error, "__metadata__: the value of %s is no string", bytes_quote(quoted, key, strlen(key)));
	file->metadata = json_incref(metadata);
	return STATUS_OK;
}

static enum status read_header(struct safetensors *file, json_t *header, const unsigned char *data, size_t data_bytes,
    struct error *error)
{
	json_t     *metadata = json_object_get(header, "__metadata__");
	const char *name;
	json_t     *entry;
	size_t      total = json_object_size(header) - (metadata ? 1 : 0), names_len = 1;
	char       *at;
	enum status status;

	if (metadata) {
		status = read_metadata(file, metadata, error);
		if (status)
			return status;
	}
	if (total > SAFETENSORS_TENSORS_MAX)
		return bad(file, error, "%zu tensors, the limit is %d", total, SAFETENSORS_TENSORS_MAX);
	json_object_foreach(header, name, entry)
		names_len += strlen(name) + 1; /* less than the header has bytes */
	file->tensors = calloc(total + 1, sizeof *file->tensors);
	file->by_name = calloc(total + 1, sizeof *file->by_name);
	file->names = at = malloc(names_len);
	if (!file->tensors || !file->by_name || !file->names)
		return no_memory(file, error);
	json_object_foreach(header, name, entry) {
		struct safetensors_tensor *tensor = &file->tensors[file->count];
		size_t                     len = strlen(name);
		if (entry == metadata)
			continue;
		status = read_tensor(file, name, len, entry, data, data_bytes, tensor, error);
		if (status)
			return status;
		memcpy(at, name, len + 1);
		tensor->name = at;
		at += len + 1;
		file->count++;
	}
	qsort(file->tensors, file->count, sizeof *file->tensors, compare_data);
	for (size_t i = 0; i < file->count; i++)
		file->by_name[i] = &file->tensors[i];
	qsort(file->by_name, file->count, sizeof *file->by_name, compare_names);
	return check_coverage(file, data, data_bytes, error);
}

static enum status parse(struct safetensors *file, const unsigned char *bytes, size_t size, struct error *error)
{
	uint64_t    header_len;
	json_t     *header = NULL;
	enum status status;

	if (size < 8)
		return bad(file, error, "%zu bytes are no safetensors file, the header's length alone has 8", size);
	memcpy(&header_len, bytes, 8);
	if (header_len > SAFETENSORS_HEADER_MAX)
		return bad(file, error, "a header of %llu bytes, the limit is %d: no safetensors file, or a damaged one",
		    (unsigned long long)header_len, SAFETENSORS_HEADER_MAX);
	if (header_len > size - 8)
		return bad(file, error, "a header of %llu bytes passes the end of the file after %zu",
		    (unsigned long long)header_len, size);
	if (header_len == 0 || bytes[8] != '{')
		return bad(file, error, "the header does not begin with '{'");
	status = jsonfile_parse(file->label, bytes + 8, (size_t)header_len, &header, error);
	if (status)
		return status;
	status = read_header(file, header, bytes + 8 + header_len, size - 8 - (size_t)header_len, error);
	json_decref(header);
	return status;
}

/* Takes over the map, in success and failure. */
static enum status make(const unsigned char *bytes, size_t size, struct map map, const char *label, struct safetensors **ret,
    struct error *error)
{
	struct safetensors *file = calloc(1, sizeof *file);
	enum status         status;

	if (!file) {
		map_close(&map);
		return error_set(error, STATUS_NOMEM, "%.160s: no memory", label);
	}
	file->map = map;
	file->label = strdup(label);
	if (!file->label)
		status = error_set(error, STATUS_NOMEM, "%.160s: no memory", label);
	else
		status = parse(file, bytes, size, error);
	if (status) {
		safetensors_close(file);
		return status;
	}
	*ret = file;
	return STATUS_OK;
}

enum status safetensors_open(const char *path, struct safetensors **ret, struct error *error)
{
	struct map  map;
	enum status status = map_open(path, SIZE_MAX, &map, error);
	return status ? status : make(map.bytes, map.size, map, path, ret, error);
}

enum status safetensors_parse(const void *bytes, size_t size, const char *label, struct safetensors **ret, struct error *error)
{
	return make(bytes, size, (struct map){ .fd = -1 }, label, ret, error);
}

const struct map *safetensors_map(const struct safetensors *file) { return file->map.size ? &file->map : NULL; }

void safetensors_close(struct safetensors *file)
{
	if (!file)
		return;
	map_close(&file->map);
	json_decref(file->metadata);
	free(file->label);
	free(file->tensors);
	free(file->by_name);
	free(file->names);
	free(file);
}

size_t safetensors_count(const struct safetensors *file) { return file->count; }

const struct safetensors_tensor *safetensors_at(const struct safetensors *file, size_t index)
{
	return index < file->count ? &file->tensors[index] : NULL;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
	const struct safetensors_tensor        key = { .name = name }, *key_at = &key;
	struct safetensors_tensor *const *found =
	    bsearch(&key_at, file->by_name, file->count, sizeof *file->by_name, compare_names);
	return found ? *found : NULL;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key)
{
	return json_string_value(json_object_get(file->metadata, key));
}

const char *safetensors_dtype_name(enum safetensors_dtype dtype)
{
	return (unsigned)dtype < SAFETENSORS_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

unsigned safetensors_dtype_bytes(enum safetensors_dtype dtype)
{
	return (unsigned)dtype < SAFETENSORS_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}
