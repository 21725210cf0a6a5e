/* helper.h: the one helper thread of a front child: pure work (bytes in, ids out) that would hold up its streams.
 *
 * The event loop submits jobs and takes them back when the event descriptor is readable; in between a job and all it
 * points to belong to the thread.  The thread is started by the first job: a child that never sees a large body has
 * none.
 */
#ifndef PENSTOCK_FRONT_HELPER_H
#define PENSTOCK_FRONT_HELPER_H

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>

struct helper_job {
	void (*run)(struct helper_job *job);
	struct helper_job *next; /* the helper's */
};

struct helper {
	int               event_fd; /* readable when a job is done */
	bool              started, stop;
	unsigned          pending;  /* submitted and not taken back; the event loop's */
	pthread_t         thread;
	pthread_mutex_t   mutex;
	pthread_cond_t    wake;
	struct helper_job *waiting, **waiting_end, *done, **done_end; /* under the mutex */
};

enum status helper_init(struct helper *helper, struct error *error);
void        helper_stop(struct helper *helper); /* waits for the running job; the others are dropped */

enum status helper_submit(struct helper *helper, struct helper_job *job);
/* The next finished job, NULL when there is none.  Call until NULL after the event descriptor was readable. */
struct helper_job *helper_take(struct helper *helper);

#endif
