/* wake.c: owns the pipe that wakes a child.  Does not own the decision to wake (lane.h: front_waiting).
 * Invariant: nothing a child does to its end can block or kill the side that wakes. */
#include "ipc/wake.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum status wake_create(struct wake *ret, struct error *error)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return error_set(error, STATUS_IO, "cannot make a pipe to wake a child: %s", strerror(errno));
	*ret = (struct wake) { .wait_fd = ends[0], .wake_fd = ends[1] };
	return STATUS_OK;
}

void wake_close(struct wake *wake)
{
	if (!wake)
		return;
	if (wake->wait_fd >= 0)
		close(wake->wait_fd);
	if (wake->wake_fd >= 0)
		close(wake->wake_fd);
	*wake = (struct wake) { .wait_fd = -1, .wake_fd = -1 };
}

void wake_send(const struct wake *wake)
{
	/* EAGAIN: a full pipe, that is 65,536 wakes the child has not drained; one more changes nothing. */
	while (write(wake->wake_fd, "", 1) < 0 && errno == EINTR)
		;
}

void wake_drain(int wait_fd)
{
	char    bytes[64];
	ssize_t n;

	do
		n = read(wait_fd, bytes, sizeof bytes);
	while (n == (ssize_t)sizeof bytes || (n < 0 && errno == EINTR));
}
