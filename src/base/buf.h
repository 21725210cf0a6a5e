/* buf.h: a growing byte buffer with a named maximum.
 *
 * Every buffer states its ceiling when it is made; growing past it is STATUS_LIMIT and leaves the content as it was.
 * `data` is always NUL-terminated after the last byte once anything was appended (the NUL is not counted in `len`).
 */
#ifndef PENSTOCK_BASE_BUF_H
#define PENSTOCK_BASE_BUF_H

#include "base/status.h"

#include <stdarg.h>
#include <stddef.h>

struct buf {
	char  *data; /* owned; NULL while empty */
	size_t len, capacity, max;
};

void buf_init(struct buf *buf, size_t max);
void buf_free(struct buf *buf);  /* leaves it empty and usable; NULL is fine */
void buf_clear(struct buf *buf); /* keeps the memory */

/* STATUS_OK, STATUS_LIMIT (would pass max) or STATUS_NOMEM. */
enum status buf_reserve(struct buf *buf, size_t more);
enum status buf_append(struct buf *buf, const void *bytes, size_t len);
enum status buf_append_string(struct buf *buf, const char *string);
enum status buf_append_format(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Drops the first LEN (≤ len) bytes. */
void buf_consume(struct buf *buf, size_t len);

/* Moves the bytes out; the caller frees them.  The buffer is empty afterwards.  NULL when empty. */
char *buf_take(struct buf *buf, size_t *ret_len);

#endif
