/* bench_sse.c: owns the line and event state of one stream of server-sent events.  Does not know what an event means.
 * Invariant: the events depend on the bytes alone, never on how they were cut. */
#include "tools/bench_sse.h"

#include <string.h>

void bench_sse_init(struct bench_sse *sse)
{
	memset(sse, 0, sizeof *sse);
	buf_init(&sse->line, BENCH_SSE_EVENT_MAX);
	buf_init(&sse->data, BENCH_SSE_EVENT_MAX);
}

void bench_sse_free(struct bench_sse *sse)
{
	buf_free(&sse->line);
	buf_free(&sse->data);
}

static enum status too_long(const char *what, enum status status, struct error *error)
{
	if (status == STATUS_LIMIT)
		return error_set(error, status, "%s of the event stream is longer than %d bytes", what, BENCH_SSE_EVENT_MAX);
	return error_set(error, status, "out of memory");
}

static enum status end_line(struct bench_sse *sse, bench_sse_event event, void *context, struct error *error)
{
	static const char name[] = "data";
	const char       *line = sse->line.data, *value;
	size_t            len = sse->line.len;
	enum status       status = STATUS_OK;

	if (!sse->begun && len >= 3 && !memcmp(line, "\xef\xbb\xbf", 3))
		line += 3, len -= 3;
	sse->begun = true;
	if (!len) {
		bool had = sse->has_data;
		sse->has_data = false;
		if (had)
			status = event(context, sse->data.len ? sse->data.data : "", sse->data.len, error);
		buf_clear(&sse->data);
		return status;
	}
	if (len < sizeof name - 1 || memcmp(line, name, sizeof name - 1))
		return STATUS_OK;
	value = line + sizeof name - 1;
	len -= sizeof name - 1;
	if (len && *value != ':')
		return STATUS_OK; /* a field with a longer name */
	if (len)
		value++, len--;
	if (len && *value == ' ')
		value++, len--;
	if (sse->has_data)
		status = buf_append(&sse->data, "\n", 1);
	if (!status)
		status = buf_append(&sse->data, value, len);
	sse->has_data = true;
	return status ? too_long("an event", status, error) : STATUS_OK;
}

enum status bench_sse_push(struct bench_sse *sse, const char *bytes, size_t len, bench_sse_event event, void *context,
    struct error *error)
{
	size_t at = 0;

	while (at < len) {
		size_t      end = at;
		enum status status;

		if (sse->after_cr && bytes[at] == '\n') {
			sse->after_cr = false;
			at++;
			continue;
		}
		sse->after_cr = false;
		while (end < len && bytes[end] != '\n' && bytes[end] != '\r')
			end++;
		status = buf_append(&sse->line, bytes + at, end - at);
		if (status)
			return too_long("a line", status, error);
		if (end == len)
			break;
		sse->after_cr = bytes[end] == '\r';
		status = end_line(sse, event, context, error);
		buf_clear(&sse->line);
		if (status)
			return status;
		at = end + 1;
	}
	return STATUS_OK;
}
