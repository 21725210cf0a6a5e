/* admission.h: who is inside, and what a new request is told.
 *
 * A request counts from its reservation (or, without one, its SUBMIT) until its end: as one request, and with the tokens it
 * will take:
 *
 *                  prompt                                   answer
 *   RESERVE        bytes of the body / 4                    what requests with that limit took on average (estimate.h)
 *   SUBMIT         its tokens                               the same, for each choice
 *   end            given back; the key has used what was computed
 *
 * At most max_running + max_queued requests are inside, and max_queued_tokens beyond what the KV cache holds.  Beyond that the
 * answer is REJECT with the time in which enough tokens will have drained, at the rate of the recent steps.  A key's own limits
 * are looked at first, so that a key that floods learns of its limit and not of others' load.
 *
 * The intake thread asks, intake (before a request is handed on) and step (after) take away.  One lock guards it all; it is
 * held for a few additions.
 */
#ifndef PENSTOCK_BATCHER_ADMISSION_H
#define PENSTOCK_BATCHER_ADMISSION_H

#include "batcher/accounts.h"
#include "engine/estimate.h"
#include "ipc/lane.h"
#include "ipc/metrics.h"

#include <pthread.h>

enum { ADMISSION_RETRY_MAX_S = 60, ADMISSION_BYTES_PER_TOKEN = 4, ADMISSION_WINDOW_S = 10 };

struct admission_limits {
	uint32_t max_running, max_queued;
	uint64_t max_queued_tokens; /* 0 = no limit */
};

struct admission {
	struct metrics         *metrics;
	struct admission_limits limits;
	uint64_t                kv_tokens;
	uint32_t                max_context; /* 0 = not known yet */
	_Atomic uint32_t        inside;      /* written under the lock, read without */

	pthread_mutex_t         lock;
	struct accounts         accounts;
	struct estimate         answers;
	uint64_t                tokens;    /* of those inside */
	double                  drained, drained_ns; /* rows of recent steps, and the time they took */
};

/* What a request wants, as far as it is known. */
struct admission_ask {
	uint64_t key;
	uint32_t key_requests, key_tokens; /* limits; 0 = none */
	uint64_t prompt_tokens;
	uint32_t max_tokens, choices;      /* max_tokens of each choice, 0 = up to the context */
};

/* What one request counts; whoever holds the request holds its ticket, and gives it back once. */
struct admission_ticket {
	uint64_t        prompt, answer; /* tokens */
	struct account *account;        /* NULL = its key has no limits */
};

enum status admission_init(struct admission *admission, struct metrics *metrics, const struct admission_limits *limits);
void        admission_free(struct admission *admission);

/* ACCEPT (a place and cache are free), WAIT with *ret_value = requests before it; both fill *ret_ticket.  Or REJECT with a
 * LANE_REJECTION, counted by its reason. */
enum lane_reply admission_reserve(struct admission *admission, const struct admission_ask *ask, uint64_t now_ns,
    struct admission_ticket *ret_ticket, uint32_t *ret_value);
/* The REJECT of somebody who is not let in for REASON. */
uint32_t admission_reject(struct admission *admission, enum status reason);
/* The prompt's true length is known. */
void admission_correct(struct admission *admission, const struct admission_ask *ask, uint64_t now_ns,
    struct admission_ticket *ticket);
/* It is no longer inside and has USED so many tokens of its key. */
void admission_release(struct admission *admission, const struct admission_ticket *ticket, uint64_t used, uint64_t now_ns);
/* An answer came to its end by itself with so many tokens. */
void admission_learn(struct admission *admission, uint32_t answer_tokens);
/* A step computed ROWS tokens in STEP_NS. */
void admission_drained(struct admission *admission, uint32_t rows, uint64_t step_ns);

/* Seconds until TOKENS have drained, 1…ADMISSION_RETRY_MAX_S; 0 tokens: those of an average request. */
uint32_t admission_retry_after(struct admission *admission, uint64_t tokens);

static inline uint32_t admission_inside(const struct admission *admission)
{
	return atomic_load_explicit(&admission->inside, memory_order_relaxed);
}

#endif
