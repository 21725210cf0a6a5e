/* safetensors.h: reader of one safetensors file (https://github.com/huggingface/safetensors, "Format").
 *
 *   8 bytes      N, little-endian
 *   N bytes      JSON object: "name": {"dtype", "shape", "data_offsets": [begin, end)}, "__metadata__": {string: string}
 *   the rest     the data section; offsets count from its first byte
 *
 * The file is mapped read-only and never trusted.  Refused with one line that names file, tensor and value: a header that
 * passes the end of the file, names that appear twice, sizes that differ from shape times dtype, a data section that the
 * tensors do not cover exactly once (so a file cut short, or one with something appended, never loads).  Tensor data is
 * not touched by opening the file.
 */
#ifndef PENSTOCK_FILE_SAFETENSORS_H
#define PENSTOCK_FILE_SAFETENSORS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum safetensors_limits {
	SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000, /* bytes, as in the format's reference implementation */
	SAFETENSORS_TENSORS_MAX = 1 << 20,
	SAFETENSORS_NAME_MAX = 256, /* bytes */
	SAFETENSORS_DIMENSIONS_MAX = 8
};

enum safetensors_dtype {
	SAFETENSORS_F32, SAFETENSORS_F16, SAFETENSORS_BF16, SAFETENSORS_F8_E4M3, SAFETENSORS_F8_E5M2, SAFETENSORS_I8,
	SAFETENSORS_U8, SAFETENSORS_I32, SAFETENSORS_I64, SAFETENSORS_DTYPE_COUNT
};

struct safetensors_tensor {
	const char            *name; /* terminated; owned by the file handle */
	enum safetensors_dtype dtype;
	unsigned               n_dims;                           /* 0: a scalar */
	uint64_t               dims[SAFETENSORS_DIMENSIONS_MAX]; /* the last one is contiguous; unused ones are 1 */
	const void            *data;                             /* into the map, at any address: read it with memcpy */
	size_t                 bytes;                            /* 0 when a dimension is 0 */
};

struct safetensors; /* opaque */
struct map;

enum status safetensors_open(const char *path, struct safetensors **ret, struct error *error);
/* The same over bytes in memory (fuzzing, tests); BYTES stay the caller's and must outlive the handle. */
enum status safetensors_parse(const void *bytes, size_t size, const char *label, struct safetensors **ret, struct error *error);
void        safetensors_close(struct safetensors *file);
/* The file that tensors lie in; NULL when the bytes are the caller's. */
const struct map *safetensors_map(const struct safetensors *file);

/* Tensors in the order of their data. */
size_t                           safetensors_count(const struct safetensors *file);
const struct safetensors_tensor *safetensors_at(const struct safetensors *file, size_t index);
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name); /* NULL when absent */

/* A string of __metadata__, owned by the handle; NULL when absent. */
const char *safetensors_metadata(const struct safetensors *file, const char *key);

const char *safetensors_dtype_name(enum safetensors_dtype dtype); /* "BF16" */
unsigned    safetensors_dtype_bytes(enum safetensors_dtype dtype);

/* Writes a file of COUNT tensors, data in their order; the file at PATH is replaced once the new one is whole. */
struct safetensors_item {
	const char            *name; /* UTF-8, each once */
	enum safetensors_dtype dtype;
	unsigned               n_dims;
	uint64_t               dims[SAFETENSORS_DIMENSIONS_MAX];
	const void            *data;
};
enum status safetensors_write(const char *path, const struct safetensors_item *items, size_t count, struct error *error);

/* The same where not all data fit into memory: first the items, whose DATA is not looked at, then the data of each in their
 * order, in one piece each.  close: the file is there once this returned STATUS_OK; else, and after abandon, it is as before. */
struct safetensors_writer; /* opaque */
enum status safetensors_writer_open(const char *path, const struct safetensors_item *items, size_t count,
    struct safetensors_writer **ret, struct error *error);
/* BYTES must be those of the item whose turn it is. */
enum status safetensors_writer_add(struct safetensors_writer *writer, const void *data, size_t bytes, struct error *error);
enum status safetensors_writer_close(struct safetensors_writer *writer, struct error *error);
void        safetensors_writer_abandon(struct safetensors_writer *writer); /* NULL is fine */

#endif
