/* server.h: the control thread of penstockd: the control socket, signals, attach, status, drain.
 */
#ifndef PENSTOCK_BATCHER_SERVER_H
#define PENSTOCK_BATCHER_SERVER_H

#include "batcher/batcher.h"

enum server_end {
	SERVER_STOPPED,   /* drained, or told to */
	SERVER_FAILED,    /* batcher.failure says why */
	SERVER_ABANDONED, /* told to end while the model was loading: the step thread is left behind */
	SERVER_STUCK      /* the step thread does not come back: likewise, and that is an error */
};

/* Blocks TERM, INT, HUP and USR1 for all threads made later. */
void server_block_signals(void);

/* Serves until the step thread has ended.  All connections are closed when it returns. */
enum status server_run(struct batcher *batcher, enum server_end *ret, struct error *error);

#endif
