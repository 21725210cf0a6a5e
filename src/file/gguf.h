/* gguf.h: reader of GGUF files, versions 2 and 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
 *
 * The file is mapped read-only and never trusted: every length, count, offset, type and alignment is checked before
 * use, every size is computed with overflow checks, and an error says what is wrong and at which byte offset.  Limits
 * are named below.  Tensor data is not touched by opening the file.
 */
#ifndef PENSTOCK_FILE_GGUF_H
#define PENSTOCK_FILE_GGUF_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gguf_limits {
	GGUF_TENSORS_MAX = 1 << 20,
	GGUF_KEYS_MAX = 1 << 16,
	GGUF_NAME_MAX = 256,          /* bytes of a tensor name or key */
	GGUF_STRING_MAX = 1 << 24,    /* bytes of one string value */
	GGUF_ARRAY_MAX = 1 << 24,     /* elements of one array */
	GGUF_DIMENSIONS_MAX = 4,
	GGUF_ALIGNMENT_MAX = 1 << 20
};

/* ggml tensor types; values are those of the file format. */
enum gguf_type {
	GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q4_0 = 2, GGUF_Q4_1 = 3, GGUF_Q5_0 = 6, GGUF_Q5_1 = 7, GGUF_Q8_0 = 8,
	GGUF_Q2_K = 10, GGUF_Q3_K = 11, GGUF_Q4_K = 12, GGUF_Q5_K = 13, GGUF_Q6_K = 14, GGUF_IQ4_NL = 20, GGUF_IQ4_XS = 23,
	GGUF_BF16 = 30
};

struct gguf_tensor {
	const char    *name;       /* terminated; owned by the file handle */
	enum gguf_type type;
	unsigned       n_dims;
	uint64_t       dims[GGUF_DIMENSIONS_MAX]; /* dims[0] is the contiguous one (columns); unused ones are 1 */
	const void    *data;       /* into the map */
	size_t         bytes;
};

struct gguf; /* opaque */
struct map;

/* Opens and checks PATH.  On failure *error holds one line "PATH: what, where". */
enum status gguf_open(const char *path, struct gguf **ret, struct error *error);
/* The same over bytes in memory (fuzzing, tests); BYTES stay the caller's and must outlive the handle. */
enum status gguf_parse(const void *bytes, size_t size, const char *label, struct gguf **ret, struct error *error);
void        gguf_close(struct gguf *gguf);
/* The file that tensors lie in; NULL when the bytes are the caller's. */
const struct map *gguf_map(const struct gguf *gguf);

/* Puts "PATH: " before the message, for those who read the file through this handle; returns STATUS. */
enum status gguf_error_prefix(const struct gguf *gguf, enum status status, struct error *error);

size_t                    gguf_tensor_count(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t index);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name); /* NULL when absent */
size_t                    gguf_data_bytes(const struct gguf *gguf); /* of all tensors together */

/* Block geometry of a tensor type: elements and bytes per block; false for types this reader does not know. */
bool        gguf_type_block(enum gguf_type type, unsigned *ret_elements, unsigned *ret_bytes);
const char *gguf_type_name(enum gguf_type type); /* "Q4_1"; "unknown" */

/* Metadata.  STATUS_OK; STATUS_NOT_FOUND when the key is absent; STATUS_INVALID when it has another type or does not fit
 * (the error names key, type and value).  Integers of any width and sign are read as u64 when they fit. */
enum status gguf_get_u64(const struct gguf *gguf, const char *key, uint64_t *ret, struct error *error);
enum status gguf_get_f64(const struct gguf *gguf, const char *key, double *ret, struct error *error);
enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool *ret, struct error *error);
/* Points into the map; NOT terminated. */
enum status gguf_get_string(const struct gguf *gguf, const char *key, const char **ret, size_t *ret_len, struct error *error);
/* Number of elements of an array. */
enum status gguf_array_count(const struct gguf *gguf, const char *key, size_t *ret, struct error *error);
/* Walks an array of strings / of 32-bit or narrower integers / of floats in order; the callback returns a status to
 * go on (OK) or stop with it. */
enum status gguf_array_strings(const struct gguf *gguf, const char *key,
    enum status (*each)(void *context, size_t index, const char *string, size_t len), void *context, struct error *error);
enum status gguf_array_i32(const struct gguf *gguf, const char *key, int32_t *ret, size_t count, struct error *error);
enum status gguf_array_f32(const struct gguf *gguf, const char *key, float *ret, size_t count, struct error *error);

#endif
