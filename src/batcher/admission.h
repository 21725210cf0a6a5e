/* admission.h: how many requests are inside, and what a new one is told.
 *
 * A request counts from its reservation (or, without one, its SUBMIT) until its end; at most max_running + max_queued are
 * inside.  The intake thread is the only one that adds, so check and add need no lock; intake (before a request is handed
 * on) and step (after) take away.  All words are relaxed: they are counts, nothing is handed over with them.
 */
#ifndef PENSTOCK_BATCHER_ADMISSION_H
#define PENSTOCK_BATCHER_ADMISSION_H

#include "ipc/lane.h"
#include "ipc/metrics.h"

enum { ADMISSION_RETRY_MAX_S = 60, ADMISSION_BYTES_PER_TOKEN = 4 };

struct admission {
	struct metrics  *metrics;
	uint32_t         max_running, max_inside;
	uint64_t         kv_tokens;
	_Atomic uint32_t inside;
	_Atomic uint64_t tokens;   /* worst cases of those inside; guessed from bytes until the prompt's length is known */
	_Atomic uint64_t drain_ns; /* recent time between two ends; 0 = not known yet */
	uint64_t         last_end_ns; /* step's */
};

void admission_init(struct admission *admission, struct metrics *metrics, uint32_t max_running, uint32_t max_queued);

/* Intake: ACCEPT (a place and cache are free), WAIT with *ret_value = requests before it, or REJECT with seconds.  The
 * first two count it with TOKENS. */
enum lane_reply admission_reserve(struct admission *admission, uint64_t tokens, uint32_t *ret_value);
/* Intake: the true number of tokens is known. */
void admission_correct(struct admission *admission, uint64_t guessed, uint64_t tokens);
/* Intake or step: it is no longer inside. */
void admission_release(struct admission *admission, uint64_t tokens);
/* Step: a request has ended at NOW_NS: measures the drain rate. */
void admission_ended(struct admission *admission, uint64_t now_ns);

uint32_t admission_inside(const struct admission *admission);
/* Seconds after which a place is likely, 1…ADMISSION_RETRY_MAX_S. */
uint32_t admission_retry_after(const struct admission *admission);

#endif
