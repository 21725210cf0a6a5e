/* exposition.h: rows → the Prometheus text format 0.0.4 (what /metrics answers with). */
#ifndef PENSTOCK_API_EXPOSITION_H
#define PENSTOCK_API_EXPOSITION_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

#define EXPOSITION_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

struct exposition_row {
	const char *name;   /* [a-zA-Z_:][a-zA-Z0-9_:]* with the penstock_ prefix */
	const char *kind;   /* "counter" | "gauge" */
	const char *help;   /* any text; escaped here */
	const char *labels; /* as between the braces, values escaped by the caller: `model="x"`; NULL or "" = none */
	uint64_t    value;
};

/* Appends the rows; HELP and TYPE appear once for neighbouring rows of one name.  STATUS_INVALID for a name that is none;
 * OUT is as it was on failure. */
enum status exposition_append(struct buf *out, const struct exposition_row *rows, size_t count);

#endif
