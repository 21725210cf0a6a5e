/* wake.c: owns the descriptor pair that wakes a child.  Does not own the decision to wake (lane.h: front_waiting).
 * Invariant: nothing a child does to its end can block or kill the side that wakes. */
#include "ipc/wake.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum status wake_create(int *ret_wait_fd, int *ret_wake_fd, struct error *error)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends))
		return error_set(error, STATUS_IO, "cannot make a wake-up pair: socketpair: %s", strerror(errno));
	*ret_wait_fd = ends[0];
	*ret_wake_fd = ends[1];
	return STATUS_OK;
}

void wake_send(int wake_fd)
{
	/* A full buffer means undrained wakes, a broken pipe a dead child: nothing to do in either case. */
	while (send(wake_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR)
		;
}

void wake_drain(int wait_fd)
{
	char    bytes[256];
	ssize_t n;

	do
		n = recv(wait_fd, bytes, sizeof bytes, MSG_DONTWAIT);
	while (n == (ssize_t)sizeof bytes || (n < 0 && errno == EINTR));
}
