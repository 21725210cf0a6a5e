/* wake.h: how penstockd wakes a child that sleeps in epoll: a pipe, one per child.
 *
 * The obvious thing is an eventfd held by both.  But both would share one open file description, and with it O_NONBLOCK
 * and the counter: a mad child could clear the flag, fill the counter, and the notifier thread would block in write(2)
 * for ever, with every other child's wake-ups behind it.  The two ends of a pipe are two descriptions; the batcher's
 * never blocks whatever the child does to its own, and costs the same to wake with (a socket pair costs 10 µs more).
 * The batcher keeps the child's end open too, so that a write to a dead child is no SIGPIPE.
 */
#ifndef PENSTOCK_IPC_WAKE_H
#define PENSTOCK_IPC_WAKE_H

#include "base/status.h"

struct wake {
	int wait_fd; /* the child's end: handed over, and kept open here */
	int wake_fd; /* the batcher's end: nobody else's */
};

/* Batcher: both ends are close-on-exec and non-blocking; STATUS_IO with words. */
enum status wake_create(struct wake *ret, struct error *error);
void        wake_close(struct wake *wake); /* NULL is fine; descriptors of −1 are skipped */

/* Batcher: the child's end becomes readable.  Wakes that the child has not drained yet run together; never blocks. */
void wake_send(const struct wake *wake);

/* Child: after its epoll reported WAIT_FD: swallows all wakes so far.  Drain first, then read the lane. */
void wake_drain(int wait_fd);

#endif
