/* status.h: the one status enum of penstock and the error record that carries a sentence with it.
 *
 * Library code returns an enum status and, where the caller needs words, fills a struct error; only programs log.
 * A message reads: fact, then detail (call, values), then a hint.  Outputs (ret_*) stay untouched on failure.
 */
#ifndef PENSTOCK_BASE_STATUS_H
#define PENSTOCK_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum status {
#define STATUS(name, http, type, code, text) STATUS_##name,
#include "base/status.def"
#undef STATUS
	STATUS_COUNT
};

/* Rows of status.def.  An out-of-range value reads as STATUS_INTERNAL. */
const char *status_name(enum status status);     /* "CONTEXT_LENGTH" */
const char *status_text(enum status status);     /* a short English phrase */
int         status_http(enum status status);     /* HTTP status code */
const char *status_api_type(enum status status); /* "invalid_request_error", … */
const char *status_api_code(enum status status); /* "context_length_exceeded", … */

enum { ERROR_MESSAGE_MAX = 512, ERROR_PARAM_MAX = 64 };

/* An error with its words.  Owned by the caller, usually on its stack; message and param are always terminated. */
struct error {
	enum status status;
	char        param[ERROR_PARAM_MAX]; /* offending request field or option, "" where none */
	char        message[ERROR_MESSAGE_MAX];
};

/* Fills *error (may be NULL) and returns STATUS, so that a failing path reads `return error_set(…)`.
 * Over-long messages are cut, never overflow.  error_set clears param; error_set_param sets it. */
enum status error_set(struct error *error, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
enum status error_set_param(struct error *error, enum status status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#ifdef __cplusplus
}
#endif
#endif
