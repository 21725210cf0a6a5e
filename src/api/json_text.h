/* json_text.h: JSON in and out, on top of jansson: bounded parsing of what a client sent, escaping of what it gets. */
#ifndef PENSTOCK_API_JSON_TEXT_H
#define PENSTOCK_API_JSON_TEXT_H

#include "base/buf.h"

#include <jansson.h>

#include <stdbool.h>
#include <string.h>

enum {
	JSON_TEXT_VALUES_MAX = 65536, /* values in one body: bounds what jansson allocates for a few bytes each */
	JSON_TEXT_DEPTH_MAX = 512     /* jansson recurses once per level; front.max_json_depth may not pass this */
};

/* Parses LEN bytes that must be one JSON object and nothing else: no duplicate keys, no lone surrogates, no ill-formed
 * UTF-8, at most MAX_DEPTH levels and JSON_TEXT_VALUES_MAX values.  Strings may hold NUL characters: use their lengths.
 * STATUS_BAD_JSON or STATUS_LIMIT with the byte where it went wrong; *ret is the caller's to json_decref. */
enum status json_text_load(const char *bytes, size_t len, size_t max_depth, json_t **ret, struct error *error);

/* The same for what a model wrote: of several values of one key the last one counts. */
enum status json_text_load_last(const char *bytes, size_t len, size_t max_depth, json_t **ret, struct error *error);

/* "an object", "a string", … of a value, for messages. */
const char *json_text_type(const json_t *value);

/* Appends BYTES as a JSON string in quotes; ill-formed UTF-8 becomes U+FFFD.  At most 6 × len + 2 bytes.
 * BYTES may be NULL when LEN is 0. */
enum status json_text_append_string(struct buf *out, const char *bytes, size_t len);

/* Is VALUE there, and not null? */
static inline bool json_text_present(const json_t *value) { return value && !json_is_null(value); }

/* Is STRING a string of exactly the bytes of TEXT? */
static inline bool json_text_equals(const json_t *string, const char *text)
{
	return json_string_length(string) == strlen(text) && !memcmp(json_string_value(string), text, strlen(text));
}

#endif
