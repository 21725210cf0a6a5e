/* bench_sse.h: server-sent events out of bytes that arrive in any pieces.
 *
 * Lines end with LF, CR or CR LF; an event is the `data` lines up to an empty line, joined by LF; comments and other fields
 * are skipped, and so is an event that the end of the stream cuts off.  A line and an event have at most
 * BENCH_SSE_EVENT_MAX bytes: a server that never ends a line costs that much memory and no more.
 */
#ifndef PENSTOCK_TOOLS_BENCH_SSE_H
#define PENSTOCK_TOOLS_BENCH_SSE_H

#include "base/buf.h"

#include <stdbool.h>

enum { BENCH_SSE_EVENT_MAX = 1 << 20 };

struct bench_sse {
	struct buf line, data;
	bool       has_data, after_cr, begun;
};

/* DATA is not terminated and lives until the return.  A status other than STATUS_OK ends the push with it. */
typedef enum status (*bench_sse_event)(void *context, const char *data, size_t len, struct error *error);

void bench_sse_init(struct bench_sse *sse);
void bench_sse_free(struct bench_sse *sse);

/* STATUS_LIMIT when a line or an event is too long; after a failure nothing more may be pushed. */
enum status bench_sse_push(struct bench_sse *sse, const char *bytes, size_t len, bench_sse_event event, void *context,
    struct error *error);

#endif
