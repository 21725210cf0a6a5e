/* gguf_builder.h: GGUF files in memory for tests, also wrong ones: nothing is checked. */
#ifndef PENSTOCK_TESTS_GGUF_BUILDER_H
#define PENSTOCK_TESTS_GGUF_BUILDER_H

#include "base/buf.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BUILD_U8, BUILD_I8, BUILD_U16, BUILD_I16, BUILD_U32, BUILD_I32, BUILD_F32, BUILD_BOOL, BUILD_STRING, BUILD_ARRAY,
	BUILD_U64, BUILD_I64, BUILD_F64 };

static inline void build_bytes(struct buf *buf, const void *bytes, size_t len)
{
	if (buf_append(buf, bytes, len))
		abort();
}

static inline void build_u32(struct buf *buf, uint32_t value) { build_bytes(buf, &value, 4); }
static inline void build_u64(struct buf *buf, uint64_t value) { build_bytes(buf, &value, 8); }

static inline void build_text(struct buf *buf, const char *text)
{
	build_u64(buf, strlen(text));
	build_bytes(buf, text, strlen(text));
}

static inline void build_header(struct buf *buf, uint32_t version, uint64_t tensors, uint64_t keys)
{
	buf_init(buf, 1 << 24);
	build_bytes(buf, "GGUF", 4);
	build_u32(buf, version);
	build_u64(buf, tensors);
	build_u64(buf, keys);
}

/* A key with a value of LEN bytes. */
static inline void build_key(struct buf *buf, const char *key, uint32_t type, const void *value, size_t len)
{
	build_text(buf, key);
	build_u32(buf, type);
	build_bytes(buf, value, len);
}

static inline void build_key_u32(struct buf *buf, const char *key, uint32_t value) { build_key(buf, key, BUILD_U32, &value, 4); }

static inline void build_key_text(struct buf *buf, const char *key, const char *value)
{
	build_text(buf, key);
	build_u32(buf, BUILD_STRING);
	build_text(buf, value);
}

/* The head of an array; its elements follow. */
static inline void build_array(struct buf *buf, const char *key, uint32_t element, uint64_t count)
{
	build_text(buf, key);
	build_u32(buf, BUILD_ARRAY);
	build_u32(buf, element);
	build_u64(buf, count);
}

static inline void build_key_texts(struct buf *buf, const char *key, uint64_t count, const char *const *values)
{
	build_array(buf, key, BUILD_STRING, count);
	for (uint64_t i = 0; i < count; i++)
		build_text(buf, values[i]);
}

static inline void build_key_i32s(struct buf *buf, const char *key, uint64_t count, const int32_t *values)
{
	build_array(buf, key, BUILD_I32, count);
	build_bytes(buf, values, count * sizeof *values);
}

static inline void build_tensor(struct buf *buf, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims,
    uint64_t offset)
{
	build_text(buf, name);
	build_u32(buf, n_dims);
	build_bytes(buf, dims, n_dims * sizeof *dims);
	build_u32(buf, type);
	build_u64(buf, offset);
}

static inline void build_pad(struct buf *buf, size_t alignment)
{
	while (buf->len % alignment)
		build_bytes(buf, "", 1);
}

/* COUNT zero bytes. */
static inline void build_zeros(struct buf *buf, size_t count)
{
	while (count--)
		build_bytes(buf, "", 1);
}

#endif
