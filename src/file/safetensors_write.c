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

static enum status write_all(FILE *file, const char *path, const char *header, const struct safetensors_item *items,
    size_t count, struct error *error)
{
	static const char blanks[8] = "        ";
	size_t            length = strlen(header), padded = (length + 7) / 8 * 8;
	unsigned char     size[8];

	for (unsigned i = 0; i < 8; i++)
		size[i] = (unsigned char)((uint64_t)padded >> 8 * i);
	fwrite(size, 1, sizeof size, file);
	fwrite(header, 1, length, file);
	fwrite(blanks, 1, padded - length, file);
	for (size_t i = 0; i < count; i++) {
		uint64_t bytes = 0;

		item_bytes(&items[i], &bytes);
		if (bytes)
			fwrite(items[i].data, 1, bytes, file);
	}
	return fflush(file) || ferror(file) ? failed(path, error) : STATUS_OK;
}

enum status safetensors_write(const char *path, const struct safetensors_item *items, size_t count, struct error *error)
{
	char       *header = NULL, *temporary;
	FILE       *file;
	enum status status = make_header(path, items, count, &header, error);

	if (status)
		return status;
	if (asprintf(&temporary, "%s.new", path) < 0) {
		free(header);
		return error_set(error, STATUS_NOMEM, "%.160s: no memory", path);
	}
	file = fopen(temporary, "wb");
	if (!file) {
		status = failed(temporary, error);
		goto out;
	}
	status = write_all(file, temporary, header, items, count, error);
	if (fclose(file) && !status)
		status = failed(temporary, error);
	if (!status && rename(temporary, path))
		status = failed(path, error);
	if (status)
		remove(temporary);
out:
	free(temporary);
	free(header);
	return status;
}
