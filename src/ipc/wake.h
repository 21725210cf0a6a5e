/* wake.h: how penstockd wakes a child that sleeps in epoll: a pair of descriptors, one to wait on, one to wake with.
 *
 * The obvious pair is one eventfd held by both.  But both would share one open file description, and with it O_NONBLOCK
 * and the counter: a mad child could clear the flag, fill the counter, and the notifier thread would block in write(2)
 * for ever, with every other child's wake-ups behind it.  So the pair is a socket pair: the batcher's end is its own,
 * never blocks (MSG_DONTWAIT per call), never raises SIGPIPE, and a child that does not read costs itself only.
 */
#ifndef PENSTOCK_IPC_WAKE_H
#define PENSTOCK_IPC_WAKE_H

#include "base/status.h"

/* Both ends are close-on-exec and non-blocking and belong to the caller, who hands *ret_wait_fd to the child. */
enum status wake_create(int *ret_wait_fd, int *ret_wake_fd, struct error *error);

/* Batcher: the other end becomes readable.  Wakes that the child has not drained yet run together; never blocks. */
void wake_send(int wake_fd);

/* Child: after its epoll reported WAIT_FD: swallows all wakes so far.  Drain first, then read the lane. */
void wake_drain(int wait_fd);

#endif
