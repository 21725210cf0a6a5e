/* json_scan.h: one JSON value, byte after byte: is it one, where does it end, and how would it be closed here.
 *
 * As RFC 8259 has it, but for control characters inside strings, which models write and which may be escaped on the way.
 */
#ifndef PENSTOCK_API_JSON_SCAN_H
#define PENSTOCK_API_JSON_SCAN_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

enum { JSON_SCAN_DEPTH_MAX = 128 };

enum json_scan_state {
	JSON_SCAN_VALUE,       /* a value begins */
	JSON_SCAN_FIRST_KEY,   /* behind { */
	JSON_SCAN_NEXT_KEY,    /* behind a comma */
	JSON_SCAN_KEY, JSON_SCAN_KEY_ESCAPE,
	JSON_SCAN_COLON,
	JSON_SCAN_FIRST_ITEM,  /* behind [ */
	JSON_SCAN_STRING, JSON_SCAN_ESCAPE,
	JSON_SCAN_MINUS, JSON_SCAN_ZERO, JSON_SCAN_INTEGER, JSON_SCAN_POINT, JSON_SCAN_FRACTION, JSON_SCAN_E, JSON_SCAN_SIGN,
	JSON_SCAN_EXPONENT,
	JSON_SCAN_LITERAL,     /* true, false, null */
	JSON_SCAN_AFTER,       /* a value is complete; a comma or the end of its container follows */
	JSON_SCAN_END          /* all is complete */
};

struct json_scan {
	enum json_scan_state state;
	const char          *literal; /* what is left of one */
	unsigned             hex;     /* digits that \u still needs */
	unsigned             depth;
	uint64_t             objects[JSON_SCAN_DEPTH_MAX / 64]; /* bit per level: an object, not an array */
};

enum json_scan_result {
	JSON_SCAN_ERROR,  /* no JSON value goes on like this; the scan is where it was */
	JSON_SCAN_MORE,
	JSON_SCAN_DONE,   /* the byte completed the value */
	JSON_SCAN_BEFORE  /* the value, a number, was complete before the byte, which is not part of it */
};

void                  json_scan_init(struct json_scan *scan);
enum json_scan_result json_scan_byte(struct json_scan *scan, char c);
/* A number is under way, and may end here. */
bool json_scan_number_ends(const struct json_scan *scan);
/* Is TEXT one value, white space around it allowed? */
bool json_scan_valid(const char *text, size_t len);

/* Appends what closes all that is open: a string, objects, arrays; to be called where a value, a key or a comma is awaited or in
 * a string, not inside of anything smaller. */
enum status json_scan_close(const struct json_scan *scan, struct buf *out);

/* Appends bytes of a string, escaped as JSON wants it, without quotes. */
enum status json_scan_escape(struct buf *out, const char *bytes, size_t len);

/* The other way: one byte of the inside of a JSON string; appends what it completes.  Lone surrogates become U+FFFD. */
struct json_unescape {
	unsigned state, hex, code, high;
};
bool json_unescape_byte(struct json_unescape *u, char c, char ret[8], unsigned *ret_len);

#endif
