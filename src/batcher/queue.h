/* queue.h: the process-private queue from the intake thread to the step thread, and the step thread's sleep.
 *
 * Order is kept: what a lane sent is taken in the order it was sent, and its farewell comes last.  Bounded by the sender:
 * no lane has more than QUEUE_LANE_MAX messages in it (lanes.h counts them), so a lane that floods only blocks itself.
 */
#ifndef PENSTOCK_BATCHER_QUEUE_H
#define PENSTOCK_BATCHER_QUEUE_H

#include "batcher/admission.h"
#include "engine/engine.h"

#include <pthread.h>
#include <stdbool.h>

enum { QUEUE_LANE_MAX = 128 };

struct lanes_entry;

enum queue_kind {
	QUEUE_SUBMIT,  /* a whole request */
	QUEUE_REFUSE,  /* a request that ends before it began: tell the child */
	QUEUE_FAREWELL /* the intake thread has let go of the lane: nothing more comes from it */
};

struct queue_message {
	struct queue_message *next;
	enum queue_kind       kind;
	struct lanes_entry   *lane;
	uint64_t              req;
	uint32_t              generation;
	uint16_t              slot;
	enum status           status;        /* REFUSE */
	uint32_t              retry_after_s; /* REFUSE, 0 = none */
	uint64_t              arrival_ns;    /* SUBMIT: of the reservation */
	struct admission_ticket ticket;      /* SUBMIT */
	struct engine_request request;       /* SUBMIT: owns its prompt */
};

struct queue {
	pthread_mutex_t       mutex;
	pthread_cond_t        wake; /* CLOCK_MONOTONIC */
	struct queue_message *first, *last;
	bool                  poked;
};

enum status queue_init(struct queue *queue);
void        queue_free(struct queue *queue); /* frees what is left in it */

/* Any thread.  MESSAGE is the receiver's from now on. */
void queue_push(struct queue *queue, struct queue_message *message);
/* Any thread: the step thread should look round (a control word, a shutdown). */
void queue_poke(struct queue *queue);

/* Step thread: everything there is, as a list; waits up to TIMEOUT_NS for a message or a poke when there is nothing. */
struct queue_message *queue_take(struct queue *queue, uint64_t timeout_ns);

#endif
