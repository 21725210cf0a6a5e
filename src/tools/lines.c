/* lines.c: owns the reading of long lines. */
#include "tools/lines.h"

#include <string.h>

enum { CHUNK = 65536 };

enum status tool_read_line(FILE *stream, struct buf *line, struct error *error)
{
	char chunk[CHUNK];

	buf_clear(line);
	while (fgets(chunk, sizeof chunk, stream)) {
		size_t len = strlen(chunk);
		bool   end = len > 0 && chunk[len - 1] == '\n';

		if (buf_append(line, chunk, len - end))
			return error_set(error, STATUS_LIMIT, "the line is longer than %d bytes", TOOL_LINE_MAX);
		if (end)
			return STATUS_OK;
	}
	if (ferror(stream))
		return error_set(error, STATUS_IO, "cannot read the input");
	return line->len ? STATUS_OK : STATUS_GONE;
}
