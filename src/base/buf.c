/* buf.c: owns the memory of struct buf.  Invariant: len < capacity ≤ max + 1, so the terminating NUL always fits. */
#include "base/buf.h"
#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *buf, size_t max) { *buf = (struct buf){ .max = max }; }

void buf_free(struct buf *buf)
{
	if (!buf)
		return;
	free(buf->data);
	*buf = (struct buf){ .max = buf->max };
}

void buf_clear(struct buf *buf)
{
	buf->len = 0;
	if (buf->data)
		buf->data[0] = '\0';
}

enum status buf_reserve(struct buf *buf, size_t more)
{
	size_t need, capacity;
	char  *data;

	if (!checked_add_size(buf->len, more, &need) || need > buf->max)
		return STATUS_LIMIT;
	if (need < buf->capacity)
		return STATUS_OK;
	capacity = buf->capacity ? buf->capacity : 64;
	while (capacity <= need)
		capacity = capacity > buf->max / 2 ? buf->max + 1 : capacity * 2;
	data = realloc(buf->data, capacity);
	if (!data)
		return STATUS_NOMEM;
	buf->data = data;
	buf->capacity = capacity;
	return STATUS_OK;
}

enum status buf_append(struct buf *buf, const void *bytes, size_t len)
{
	enum status status = buf_reserve(buf, len);
	if (status)
		return status;
	if (len)
		memcpy(buf->data + buf->len, bytes, len);
	buf->len += len;
	buf->data[buf->len] = '\0';
	return STATUS_OK;
}

enum status buf_append_string(struct buf *buf, const char *string) { return buf_append(buf, string, strlen(string)); }

enum status buf_append_format(struct buf *buf, const char *format, ...)
{
	va_list     args;
	enum status status;
	int         n;

	va_start(args, format);
	n = vsnprintf(NULL, 0, format, args);
	va_end(args);
	if (n < 0)
		return STATUS_INTERNAL;
	status = buf_reserve(buf, (size_t)n);
	if (status)
		return status;
	va_start(args, format);
	vsnprintf(buf->data + buf->len, (size_t)n + 1, format, args);
	va_end(args);
	buf->len += (size_t)n;
	return STATUS_OK;
}

void buf_consume(struct buf *buf, size_t len)
{
	if (len == 0)
		return;
	memmove(buf->data, buf->data + len, buf->len - len);
	buf->len -= len;
	buf->data[buf->len] = '\0';
}

char *buf_take(struct buf *buf, size_t *ret_len)
{
	char *data = buf->data;
	if (ret_len)
		*ret_len = buf->len;
	*buf = (struct buf){ .max = buf->max };
	return data;
}
