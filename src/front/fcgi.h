/* fcgi.h: one FastCGI connection of a front: accepted, read, answered and closed without ever waiting.
 *
 * Every call returns at once.  The owner keeps the descriptor in an epoll set and calls:
 *
 *   readable, head not there   fcgi_read_head    until it says STATUS_OK; then parameters can be asked for
 *   readable, afterwards       fcgi_read_body    one read of ≤ FCGI_PIECE bytes; also later, to hear ABORT and hang-ups
 *   writable                   fcgi_write        one record of ≤ FCGI_WRITE_MAX bytes, only after fcgi_writable
 *                              fcgi_finish       the end records, only after fcgi_writable
 *   any time                   fcgi_close        silently, in any state
 */
#ifndef PENSTOCK_FRONT_FCGI_H
#define PENSTOCK_FRONT_FCGI_H

#include "base/status.h"
#include "front/records.h"

#include <stdbool.h>
#include <stddef.h>

enum { FCGI_PIECE = 8192, FCGI_WRITE_MAX = FCGI_PIECE - RECORDS_HEADER };

struct fcgi; /* opaque: one connection */

/* Prepares the library; once per process, with every signal blocked (it would take over SIGPIPE, SIGUSR1 and SIGTERM)
 * and descriptors 0 to 2 open. */
enum status fcgi_init(struct error *error);

/* Takes a connection from the non-blocking LISTEN_FD.  STATUS_AGAIN: none there.  STATUS_LIMIT: no descriptor or memory
 * left, try later. */
enum status fcgi_accept(int listen_fd, struct fcgi **ret);
int         fcgi_fd(const struct fcgi *connection);

/* Looks for the whole head; SCRATCH is the caller's and holds nothing between calls.  STATUS_OK once,
 * STATUS_AGAIN, STATUS_GONE (hang-up), STATUS_INVALID (close it; the words in *error). */
enum status fcgi_read_head(struct fcgi *connection, unsigned char scratch[RECORDS_HEAD_MAX], struct error *error);

/* Value of a parameter, NULL when absent; borrowed until fcgi_finish or fcgi_close.  *ret_count (may be NULL) says how
 * often it was sent: a header that came twice comes twice. */
const char *fcgi_param(const struct fcgi *connection, const char *name, unsigned *ret_count);

/* Reads once.  STATUS_OK: *ret_len bytes of STDIN (possibly 0) lie in BUFFER.  STATUS_AGAIN, STATUS_GONE (hang-up or
 * ABORT), STATUS_INVALID.  fcgi_body_ended tells when STDIN is complete. */
enum status fcgi_read_body(struct fcgi *connection, unsigned char buffer[FCGI_PIECE], size_t *ret_len,
    struct error *error);
bool        fcgi_body_ended(const struct fcgi *connection);

bool fcgi_writable(const struct fcgi *connection); /* room for one record */
bool fcgi_gone(const struct fcgi *connection);     /* the peer has hung up, whatever is still unread */

/* One STDOUT record in one write.  STATUS_OK, STATUS_GONE. */
enum status fcgi_write(struct fcgi *connection, const char *bytes, size_t len);

/* Ends STDOUT and the request and tells the peer that no more comes; the descriptor stays open (the peer may still be
 * sending a body nobody wants) until fcgi_close. */
enum status fcgi_finish(struct fcgi *connection);

void fcgi_close(struct fcgi *connection); /* NULL is fine */

#endif
