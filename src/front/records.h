/* records.h: the FastCGI records a front reads, parsed from bytes and nothing else (no sockets, no libfcgi).
 *
 * A connection carries one request:
 *
 *   BEGIN | PARAMS … PARAMS | PARAMS (empty) | STDIN … STDIN | STDIN (empty)      [ABORT may follow or interrupt]
 *   └──────────── head ──────────────────────┘ └──────────── body ───────────┘
 *
 * The head is looked at as a whole (records_check_head, on bytes that were only peeked at), the body as it comes
 * (records_push_body).  Anything else, a management record (request id 0), another id, another role, another order, is
 * STATUS_INVALID with words: the connection is closed.  Nothing here allocates.
 */
#ifndef PENSTOCK_FRONT_RECORDS_H
#define PENSTOCK_FRONT_RECORDS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum records_limits {
	RECORDS_HEAD_MAX = 65536,   /* bytes of the whole head with record headers and padding */
	RECORDS_PARAMS_MAX = 49152, /* content bytes of its PARAMS records */
	RECORDS_PAIRS_MAX = 256,    /* name/value pairs in them */
	RECORDS_NAME_MAX = 255,
	RECORDS_VALUE_MAX = 32767
};

enum { RECORDS_HEADER = 8 }; /* bytes of a record's header; padding is at most 255, content at most 65,535 */

enum records_type { RECORDS_BEGIN = 1, RECORDS_ABORT, RECORDS_END, RECORDS_PARAMS, RECORDS_STDIN, RECORDS_STDOUT };

struct records_head {
	uint16_t request_id;
	size_t   bytes;        /* of the connection's stream that the head takes */
	size_t   params_bytes; /* name/value pairs, contiguous from the start of the buffer that was checked */
};

/* Looks at the first LEN bytes of a connection.  STATUS_AGAIN: more must come (LEN < RECORDS_HEAD_MAX).  STATUS_OK: the
 * head is there, every length in it is under its cap, every name is printable ASCII without '=', no value holds a NUL;
 * the content of the PARAMS records has been moved together at the start of BYTES. */
enum status records_check_head(unsigned char *bytes, size_t len, struct records_head *ret, struct error *error);

/* Writes the header of a record without padding. */
void records_put_header(unsigned char ret[RECORDS_HEADER], enum records_type type, uint16_t request_id, size_t content);

/* State of the body parser; zero it and set request_id. */
struct records_body {
	uint16_t      request_id;
	unsigned char header[RECORDS_HEADER];
	unsigned      header_len; /* bytes of `header` that have come */
	uint32_t      content, padding; /* still to come of the current record */
	bool          ended;   /* the empty STDIN record came */
	bool          aborted; /* ABORT came */
};

/* Takes the next LEN bytes of the stream.  The STDIN content among them is moved together at the start of BYTES; its
 * size is *ret_content. */
enum status records_push_body(struct records_body *body, unsigned char *bytes, size_t len, size_t *ret_content,
    struct error *error);

#endif
