/* lines.h: commands that read JSON lines and write one line for each. */
#ifndef PENSTOCK_TOOLS_LINES_H
#define PENSTOCK_TOOLS_LINES_H

#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdio.h>

enum { TOOL_LINE_MAX = 64 << 20 };

/* Reads one line into LINE (its max is TOOL_LINE_MAX), without its newline.  STATUS_OK; STATUS_GONE at the end. */
enum status tool_read_line(FILE *stream, struct buf *line, struct error *error);

#endif
