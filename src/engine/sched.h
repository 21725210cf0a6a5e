/* sched.h: which sequences take part in the next step, and with how many tokens.  Pure: integers in, plan out; no clock,
 * no I/O, no backend.  The same code can run in a simulator, and the same calls always give the same plans.
 *
 * A sequence has LENGTH known tokens (its prompt, then also what it generated) and COMPUTED ≤ LENGTH of them in the KV
 * cache.  A step computes some more; once computed = length, the last row's logits give the next token:
 *
 *      prompt                         generated
 *   ┌──────────────────────────────┬───────────┐
 *   │ in the cache    │ next rows  │           │     decode   length − computed = 1
 *   └──────────────────────────────┴───────────┘     prefill  anything else
 *     0 ── computed ──┴── + rows ──►  length
 *
 * A sequence that lost its blocks is one with computed = 0 again: its prompt and what it generated are computed anew like
 * a prompt, nothing is emitted twice, and neither side needs a second code path.
 *
 * This header is the seam between engine and policy: another policy (priorities, shortest first with ageing, preemption)
 * is another sched.c.  What any policy owes the engine:
 *   - a plan's rows are at most step_tokens, its sequences at most max_running, each planned at most once;
 *   - the blocks of running sequences never exceed the pool: it admits only what fits FREE_BLOCKS plus what it evicts;
 *   - a paused sequence is not planned, nor does it hold up others; one that was evicted is waiting and may be admitted
 *     again later;
 *   - while anything waits or runs unpaused and could fit an empty pool, repeated plans make progress.
 */
#ifndef PENSTOCK_ENGINE_SCHED_H
#define PENSTOCK_ENGINE_SCHED_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sched; /* opaque */

struct sched_options {
	uint32_t capacity;    /* handles 0 … capacity − 1 */
	uint32_t max_running; /* sequences that hold blocks, ≤ step_tokens */
	uint32_t step_tokens; /* rows of one step */
};

/* A request as the policy sees it. */
struct sched_job {
	uint32_t length;     /* tokens known at the start: the prompt */
	uint32_t blocks;     /* KV blocks of its worst case, reserved when it is admitted */
	uint64_t arrival_ns; /* for policies that age what waits; first come, first served goes by the order of sched_add */
};

struct sched_item {
	uint32_t handle;
	uint32_t start, rows; /* positions start … start + rows − 1 are computed in this step */
	bool     admitted;    /* first plan since it waited: its blocks must be taken now */
	bool     sampled;     /* start + rows = length: the last row's logits are wanted */
};

/* Owned by the scheduler, valid until its next call.  Evictions come first: they free blocks that admissions may need. */
struct sched_plan {
	const uint32_t          *evicted; /* handles that lose their blocks and wait again */
	uint32_t                 evicted_count;
	const struct sched_item *items;   /* decodes first */
	uint32_t                 count, rows, sampled; /* items, their rows, items with `sampled` */
};

enum status sched_create(const struct sched_options *options, struct sched **ret);
void        sched_destroy(struct sched *sched);

/* A new request waits under HANDLE, which must be free. */
void sched_add(struct sched *sched, uint32_t handle, const struct sched_job *job);
/* Forgets HANDLE, whatever it does now; after a plan that names it, instead of sched_confirm. */
void sched_remove(struct sched *sched, uint32_t handle);
/* A paused sequence keeps its blocks, if it has any, and is left out of plans. */
void sched_set_paused(struct sched *sched, uint32_t handle, bool paused);

void sched_plan(struct sched *sched, uint32_t free_blocks, uint64_t now_ns, struct sched_plan *ret);
/* The rows planned for HANDLE have been computed and gave NEW_TOKENS tokens. */
void sched_confirm(struct sched *sched, uint32_t handle, uint32_t new_tokens);

uint32_t sched_running(const struct sched *sched);
uint32_t sched_waiting(const struct sched *sched);

#endif
