/* control.h: the control socket of penstockd: RUN_DIR/control.sock, SOCK_SEQPACKET, one fixed-size message per packet.
 *
 * A child connects after fork, sends HELLO, and gets WELCOME with two descriptors (SCM_RIGHTS): its lane's memfd and the
 * eventfd that wakes it; only then may it submit.  The connection stays open: end-of-file is the death notice in both
 * directions.  The tool connects with a QUERY instead and is answered once.  All sockets are close-on-exec.
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

enum { CONTROL_FDS_MAX = 2 };

/* Listens on PATH (an old socket there is unlinked), mode 0660, group GID (−1 = leave).  Returns a non-blocking fd. */
enum status control_listen(const char *path, int gid, int *ret_fd, struct error *error);

/* Connects; blocking up to TIMEOUT_MS, afterwards the fd is non-blocking.  STATUS_UNAVAILABLE when nobody listens. */
enum status control_connect(const char *path, int timeout_ms, int *ret_fd, struct error *error);

/* Fills magic, hash and type of MESSAGE before it is sent with FDS (fd_count ≤ CONTROL_FDS_MAX; stay the caller's). */
enum status control_send(int fd, struct control_message *message, enum control_type type, const int *fds, int fd_count);

/* STATUS_OK, STATUS_AGAIN, STATUS_GONE (end-of-file), STATUS_INVALID (size, magic or hash; the words in *error).
 * Received descriptors are the caller's (close-on-exec); unexpected ones are closed here. */
enum status control_receive(int fd, struct control_message *ret, int *ret_fds, int *ret_fd_count, struct error *error);

/* The whole attach of a child: connect, HELLO, WELCOME within TIMEOUT_MS.  On success the caller owns *ret_fd, ret_fds[0]
 * (lane) and ret_fds[1] (eventfd).  STATUS_UNAVAILABLE: nobody there or still loading; STATUS_INVALID: mismatch. */
enum status control_attach(const char *path, const struct control_message *hello, int timeout_ms, int *ret_fd,
    struct control_message *ret_welcome, int ret_fds[CONTROL_FDS_MAX], struct error *error);

#endif
