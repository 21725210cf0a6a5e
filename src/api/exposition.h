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

/* A histogram whose edges and sum are whole numbers of 1/DIVISOR: COUNTS[i] values in bucket i, EDGE_COUNT + 1 of them. */
struct exposition_histogram {
	const char     *name, *help;
	uint64_t        divisor;
	uint32_t        edge_count;
	const uint64_t *edges, *counts;
	uint64_t        sum;
};
enum status exposition_append_histogram(struct buf *out, const struct exposition_histogram *histogram);

#endif
