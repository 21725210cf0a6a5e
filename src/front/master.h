/* master.h: the master of the fronts: forks the children, keeps their number (a dead child is replaced, a hung one is
 * killed first), passes signals on, and drains.
 *
 *   TERM, INT, QUIT   children finish their requests within front.drain_timeout_ms, then everything ends
 *   HUP               keys are read anew, here and in every child
 *   USR1              logs are opened anew (after rotation)
 *   USR2              this program is executed anew with the same socket: new binary, new configuration, new model;
 *                     old children finish their requests.  Also done by itself when penstockd serves another vocabulary
 *                     than the one loaded here.
 */
#ifndef PENSTOCK_FRONT_MASTER_H
#define PENSTOCK_FRONT_MASTER_H

#include "front/load.h"

struct master_options {
	const struct conf *conf;
	struct load       *load;
	int                listen_fd;
	char             **argv; /* of this program, for executing it anew */
};

/* Runs until drained; STATUS_OK, or why it could not start. */
enum status master_run(const struct master_options *options, struct error *error);

#endif
