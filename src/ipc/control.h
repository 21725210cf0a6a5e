/* control.h: the control socket of penstockd: RUN_DIR/control.sock, SOCK_SEQPACKET, one fixed-size message per packet.
 *
 *   child                      penstockd                     tool                    penstockd
 *   HELLO       ─────────────►                               STATUS or DRAIN ──────►
 *               ◄─────────────  WELCOME + 3 descriptors                      ◄──────  DONE (words)
 *               ◄─────────────  or REFUSE (status, words)
 *   the connection stays open
 *
 * A child connects after fork and gets with WELCOME three descriptors (SCM_RIGHTS): its lane's memfd, the descriptor it
 * waits on (wake.h) and the doorbell's memfd; only then may it submit.  The connection stays open: end-of-file is the
 * death notice in both directions.  The tool is answered once.  All sockets are close-on-exec and, once connected, never
 * block.
 */
#ifndef PENSTOCK_IPC_CONTROL_H
#define PENSTOCK_IPC_CONTROL_H

#include "base/status.h"

#include <stdint.h>

enum control_type { CONTROL_HELLO = 1, CONTROL_WELCOME, CONTROL_REFUSE, CONTROL_STATUS, CONTROL_DRAIN, CONTROL_DONE };

struct control_message {
	uint64_t magic;
	uint64_t layout_hash;       /* wire_layout_hash() of the sender */
	uint32_t type;              /* enum control_type */
	uint32_t status;            /* enum status, in REFUSE and DONE */
	uint64_t vocab_fingerprint; /* HELLO: the child's; WELCOME: the batcher's */
	uint64_t epoch;             /* WELCOME */
	uint32_t slots;             /* HELLO: wanted; WELCOME: granted */
	uint32_t stream_window;     /* HELLO: wanted; WELCOME: granted */
	uint32_t lane;              /* WELCOME: index of the lane (doorbell bit) */
	uint32_t pid;               /* HELLO */
	char     text[256];         /* REFUSE, DONE: words for a person; always terminated by the receiver */
};

/* The descriptors of WELCOME, in this order. */
enum { CONTROL_FD_LANE, CONTROL_FD_WAKE, CONTROL_FD_DOORBELL, CONTROL_FDS_MAX };

enum { CONTROL_BACKLOG = 1024 };

/* Listens on PATH (an old socket there is unlinked, anything else is an error), mode 0660, group GID (−1 = leave).
 * Returns a non-blocking fd. */
enum status control_listen(const char *path, int gid, int *ret_fd, struct error *error);

/* The next waiting connection of a listening FD, non-blocking: STATUS_OK, STATUS_AGAIN when there is none. */
enum status control_accept(int fd, int *ret_fd, struct error *error);

/* Connects; blocking up to TIMEOUT_MS, afterwards the fd is non-blocking.  STATUS_UNAVAILABLE when nobody listens. */
enum status control_connect(const char *path, int timeout_ms, int *ret_fd, struct error *error);

/* Fills magic, hash and type of MESSAGE and sends it with FDS (fd_count ≤ CONTROL_FDS_MAX; they stay the caller's).
 * STATUS_OK, STATUS_FULL (the peer does not read: treat it as gone), STATUS_GONE, STATUS_IO. */
enum status control_send(int fd, struct control_message *message, enum control_type type, const int *fds, int fd_count);

/* STATUS_OK, STATUS_AGAIN, STATUS_GONE (end-of-file), STATUS_INVALID (size, magic, hash or type; the words in *error).
 * Received descriptors are the caller's (close-on-exec).  Only WELCOME carries any, and exactly CONTROL_FDS_MAX: with
 * any other number the message is STATUS_INVALID and they are closed here.  RET_FDS has room for CONTROL_FDS_MAX. */
enum status control_receive(int fd, struct control_message *ret, int *ret_fds, int *ret_fd_count, struct error *error);

/* The whole attach of a child: connect, HELLO, WELCOME within TIMEOUT_MS.  On success the caller owns *ret_fd and
 * the descriptors.  STATUS_UNAVAILABLE: nobody there or still loading; STATUS_TIMEOUT; STATUS_GONE; STATUS_INVALID:
 * mismatch; or the status of a REFUSE with its words. */
enum status control_attach(const char *path, const struct control_message *hello, int timeout_ms, int *ret_fd,
    struct control_message *ret_welcome, int ret_fds[CONTROL_FDS_MAX], struct error *error);

/* The tool: connect, send TYPE (STATUS or DRAIN), wait for DONE within TIMEOUT_MS. */
enum status control_ask(const char *path, enum control_type type, int timeout_ms, struct control_message *ret,
    struct error *error);

#endif
