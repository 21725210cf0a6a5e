/* safetensors_write.c: owns the writing of safetensors files.  Does not own the tensors' data.  Invariant: a file that is
 * there under its name is whole, and safetensors.c reads it. */
#include "base/checked.h"
#include "file/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status failed(const char *path, struct error *error)
{
	return error_set(error, STATUS_IO, "%.160s: cannot write: %s", path, strerror(errno));
}

/* Bytes of an item; false on overflow. */
static bool item_bytes(const struct safetensors_item *item, uint64_t *ret)
{
	uint64_t bytes = safetensors_dtype_bytes(item->dtype);

	for (unsigned i = 0; i < item->n_dims; i++)
		if (!checked_mul_u64(bytes, item->dims[i], &bytes))
			return false;
	*ret = bytes;
	return true;
}

/* The header's text; the caller frees it. */
static enum status make_header(const char *path, const struct safetensors_item *items, size_t count, char **ret,
    struct error *error)
{
	json_t  *header = json_object();
	uint64_t at = 0, bytes, end;
	char    *text = NULL;

	for (size_t i = 0; i < count && header; i++) {
		json_t *shape = json_array(), *tensor;

		if (!item_bytes(&items[i], &bytes) || !checked_add_u64(at, bytes, &end) || end > INT64_MAX) {
			json_decref(shape);
			json_decref(header);
			return error_set(error, STATUS_LIMIT, "%.160s: tensor %.64s is too large", path, items[i].name);
		}
		for (unsigned d = 0; d < items[i].n_dims; d++)
			json_array_append_new(shape, json_integer((json_int_t)items[i].dims[d]));
		tensor = json_pack("{s:s, s:o, s:[I, I]}", "dtype", safetensors_dtype_name(items[i].dtype), "shape", shape,
		    "data_offsets", (json_int_t)at, (json_int_t)end);
		if (!tensor || json_object_set_new(header, items[i].name, tensor)) {
			json_decref(header);
			return error_set(error, STATUS_INVALID, "%.160s: tensor %.64s has no name that can be written", path,
			    items[i].name);
		}
		at = end;
	}
	if (header)
		text = json_dumps(header, JSON_COMPACT);
	json_decref(header);
	if (!text)
		return error_set(error, STATUS_NOMEM, "%.160s: no memory", path);
	*ret = text;
	return STATUS_OK;
}

struct safetensors_writer {
	char     *path, *temporary;
	FILE     *file;
	uint64_t *sizes; /* [count] bytes of the items */
	size_t    count, next;
};

void safetensors_writer_abandon(struct safetensors_writer *writer)
{
	if (!writer)
		return;
	if (writer->file) {
		fclose(writer->file);
		remove(writer->temporary);
	}
	free(writer->path);
	free(writer->temporary);
	free(writer->sizes);
	free(writer);
}

/* The size of the header, the header, blanks up to a multiple of eight. */
static enum status write_header(struct safetensors_writer *writer, const char *header, struct error *error)
{
	static const char blanks[8] = "        ";
	size_t            length = strlen(header), padded = (length + 7) / 8 * 8;
	unsigned char     size[8];

	for (unsigned i = 0; i < 8; i++)
		size[i] = (unsigned char)((uint64_t)padded >> 8 * i);
	fwrite(size, 1, sizeof size, writer->file);
	fwrite(header, 1, length, writer->file);
	fwrite(blanks, 1, padded - length, writer->file);
	return ferror(writer->file) ? failed(writer->temporary, error) : STATUS_OK;
}

enum status safetensors_writer_open(const char *path, const struct safetensors_item *items, size_t count,
    struct safetensors_writer **ret, struct error *error)
{
	struct safetensors_writer *writer;
	char                      *header = NULL;
	enum status                status = make_header(path, items, count, &header, error);

	if (status)
		return status;
	writer = calloc(1, sizeof *writer);
	if (writer) {
		writer->count = count;
		writer->path = strdup(path);
		writer->sizes = calloc(count + 1, sizeof *writer->sizes);
		if (asprintf(&writer->temporary, "%s.new", path) < 0)
			writer->temporary = NULL;
	}
	if (!writer || !writer->path || !writer->sizes || !writer->temporary) {
		status = error_set(error, STATUS_NOMEM, "%.160s: no memory", path);
		goto fail;
	}
	for (size_t i = 0; i < count; i++)
		item_bytes(&items[i], &writer->sizes[i]);
	writer->file = fopen(writer->temporary, "wb");
	status = writer->file ? write_header(writer, header, error) : failed(writer->temporary, error);
	if (status)
		goto fail;
	free(header);
	*ret = writer;
	return STATUS_OK;
fail:
	free(header);
	safetensors_writer_abandon(writer);
	return status;
}

enum status safetensors_writer_add(struct safetensors_writer *writer, const void *data, size_t bytes, struct error *error)
{
	if (writer->next == writer->count || bytes != writer->sizes[writer->next])
		return error_set(error, STATUS_INTERNAL, "%.160s: %zu bytes are not those of item %zu of %zu", writer->path, bytes,
		    writer->next, writer->count);
	if (bytes && fwrite(data, 1, bytes, writer->file) != bytes)
		return failed(writer->temporary, error);
	writer->next++;
	return STATUS_OK;
}

enum status safetensors_writer_close(struct safetensors_writer *writer, struct error *error)
{
	enum status status = STATUS_OK;

	if (writer->next != writer->count)
		status = error_set(error, STATUS_INTERNAL, "%.160s: %zu of %zu items were written", writer->path, writer->next,
		    writer->count);
	else if (fflush(writer->file))
		status = failed(writer->temporary, error);
	if (!status) {
		if (fclose(writer->file))
			status = failed(writer->temporary, error);
		writer->file = NULL;
		if (!status && rename(writer->temporary, writer->path))
			status = failed(writer->path, error);
		if (status)
			remove(writer->temporary);
	}
	safetensors_writer_abandon(writer);
	return status;
}

enum status safetensors_write(const char *path, const struct safetensors_item *items, size_t count, struct error *error)
{
	struct safetensors_writer *writer;
	enum status                status = safetensors_writer_open(path, items, count, &writer, error);

	if (status)
		return status;
	for (size_t i = 0; i < count && !status; i++)
		status = safetensors_writer_add(writer, items[i].data, writer->sizes[i], error);
	if (!status)
		return safetensors_writer_close(writer, error);
	safetensors_writer_abandon(writer);
	return status;
}
