/* status.c: owns the table behind enum status and the formatting of struct error.  Knows nothing of HTTP beyond the
 * numbers in status.def.  Invariant: every row of status.def is reachable by its enum value. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

static const struct row {
	const char *name;
	int         http;
	const char *type, *code, *text;
} rows[] = {
#define STATUS(name, http, type, code, text) { #name, http, type, code, text },
#include "base/status.def"
#undef STATUS
};

static const struct row *row(enum status status)
{
	return (unsigned)status < STATUS_COUNT ? &rows[status] : &rows[STATUS_INTERNAL];
}

const char *status_name(enum status status) { return row(status)->name; }
const char *status_text(enum status status) { return row(status)->text; }
int         status_http(enum status status) { return row(status)->http; }
const char *status_api_type(enum status status) { return row(status)->type; }
const char *status_api_code(enum status status) { return row(status)->code; }

static void fill(struct error *error, enum status status, const char *param, const char *format, va_list args)
{
	if (!error)
		return;
	error->status = status;
	snprintf(error->param, sizeof error->param, "%s", param);
	vsnprintf(error->message, sizeof error->message, format, args);
}

enum status error_set(struct error *error, enum status status, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fill(error, status, "", format, args);
	va_end(args);
	return status;
}

enum status error_set_param(struct error *error, enum status status, const char *param, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fill(error, status, param, format, args);
	va_end(args);
	return status;
}
