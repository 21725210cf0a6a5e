/* sched.h: which sequences take part in the next step, and with how many tokens.  Pure: integers in, plan out; no clock,
 * no I/O, no backend.  The same code runs in a simulator with invented time, and the same calls always give the same plans.
 *
 * A sequence has LENGTH tokens (its prompt, then also what it generated) and COMPUTED ≤ LENGTH of them in the KV cache.  A
 * step computes some more; once computed = length, the last row's logits give the next token:
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
 * Overlap.  Up to `depth` plans may be outstanding (planned, not confirmed).  Planned rows count as computed at once, and a
 * sampled item counts as one more token to come: an upper bound, which sched_confirm settles, per handle in the order of
 * the plans.  So the start of a decode may be the position of a token that is still on the device.  A handle that is
 * removed while a plan names it is forgotten; the caller confirms nothing for it any more, and keeps its blocks (and does
 * not use the number again) until that plan has retired.
 *
 * Blocks are taken as rows are planned (item.blocks), not for the worst case at admission.
 *
 * Drafts.  A decode may have rows for guesses at the tokens that follow (sched_set_drafts): it is then planned with
 * 1 + drafts rows, all of them sampled, and gives 1 … 1 + drafts tokens.  They count as an upper bound until they are
 * confirmed; what was guessed wrong is not computed.  Guesses get rows and blocks that nobody else needs: nobody is evicted
 * for them.  While such a plan is outstanding the sequence is in no other: where it goes on is not known.
 *
 * What any scheduler behind this header owes the engine:
 *   - a plan's rows are at most step_tokens, its sequences at most max_running, each planned at most once;
 *   - new blocks of its items never exceed FREE_BLOCKS plus those of evicted and expired handles that no outstanding plan
 *     names (blocks of the others come back later, through FREE_BLOCKS);
 *   - a paused sequence is not planned, nor does it hold up others; one that was evicted waits and may be admitted again;
 *   - what waited max_queue_wait without a first plan is in `expired`, once;
 *   - while anything waits or runs unpaused and could fit an empty pool, repeated plans make progress.
 */
#ifndef PENSTOCK_ENGINE_SCHED_H
#define PENSTOCK_ENGINE_SCHED_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sched; /* opaque */

enum sched_policy {
	SCHED_FCFS,     /* in order of arrival; class, key and long_prompt_tokens say nothing */
	SCHED_PRIORITY, /* class, then shortest remaining with ageing */
	SCHED_FAIR      /* class, then the key least served, then shortest remaining with ageing */
};

enum { SCHED_DEPTH_MAX = 2 };

struct sched_options {
	enum sched_policy policy;
	uint32_t capacity;           /* handles 0 … capacity − 1 */
	uint32_t max_running;        /* sequences that hold blocks, ≤ step_tokens */
	uint32_t step_tokens;        /* rows of one step */
	uint32_t block_size, blocks; /* of the KV pool */
	uint32_t depth;              /* plans outstanding, 1 or 2; 0 = 1 */
	uint32_t long_prompt_tokens; /* prompts beyond it queue apart and have their own prefill share; 0 = none are long */
	uint64_t max_queue_wait_ns;  /* served (first planned) or in plan.expired by then; 0 = no limit */
	uint64_t itl_target_ns;      /* prompt rows beside decodes adapt to it by sched_feedback; 0 = off */
	uint32_t draft_rows;         /* rows for guesses in one plan; 0 = none */
};

/* A request as the policy sees it. */
struct sched_job {
	uint32_t length;      /* tokens known at the start: the prompt, ≥ 1 */
	uint32_t max_new;     /* upper bound of tokens to come, ≥ 1; length + max_new fits the pool */
	uint32_t expected;    /* estimate of them, 1 … max_new; 0 = by what sched_learn was told, also later */
	uint32_t cached;      /* < length: already in the cache, in blocks that are held already and shared with others */
	bool     begun;       /* more of a request that was served already: before others of its class, with no limit to wait */
	int32_t  class;       /* lower is served first; 0 = default */
	uint64_t key;         /* who pays (fair); 0 = nobody in particular, a key like others */
	uint64_t arrival_ns;  /* monotonic */
	uint64_t deadline_ns; /* 0 = none: expired when it cannot be met any more, in queue, prefill or decode */
};

struct sched_item {
	uint32_t handle;
	uint32_t start, rows; /* positions start … start + rows − 1 are computed in this step */
	uint32_t blocks;      /* the sequence must hold so many for this item: ceil((start + rows) / block_size) */
	uint32_t drafts;      /* the last rows of a decode, as many as this, are of guesses: rows = 1 + drafts */
	bool     admitted;    /* first plan since it waited */
	bool     sampled;     /* start + rows − drafts = length: the logits of the last 1 + drafts rows are wanted */
};

/* Owned by the scheduler, valid until its next call.  Evictions and expiries come first: they free blocks that items may
 * need. */
struct sched_plan {
	const uint32_t          *evicted; /* lose their blocks and wait again; may name a waiting one with `cached` tokens */
	uint32_t                 evicted_count;
	const uint32_t          *expired; /* waited too long, or too late for the deadline: the caller ends and removes them */
	uint32_t                 expired_count;
	const struct sched_item *items;   /* decodes first */
	uint32_t                 count, rows, sampled; /* items, their rows, items with `sampled` */
	uint32_t                 drafts; /* of the rows */
};

/* Since the start. */
struct sched_stats {
	uint64_t admitted, expired;
	uint64_t preempted;           /* times a sequence lost its blocks */
	uint64_t preempted_for_others; /* of them: for somebody of a better class who waited, or because paused too long */
	uint64_t preempted_tokens;    /* computed tokens that were lost */
	uint64_t row_ns, sequence_ns, step_ns; /* the cost model: a step takes step + rows · row + sequences · sequence */
	uint32_t prompt_budget;       /* prompt rows that the last plan might have had */
};

enum status sched_create(const struct sched_options *options, struct sched **ret);
void        sched_destroy(struct sched *sched);

/* A new request waits under HANDLE, which must be free. */
void sched_add(struct sched *sched, uint32_t handle, const struct sched_job *job);
/* Forgets HANDLE, whatever it does now; after a plan that names it, instead of sched_confirm. */
void sched_remove(struct sched *sched, uint32_t handle);
/* A paused sequence is left out of plans.  It keeps its blocks, unless others need them after a while. */
void sched_set_paused(struct sched *sched, uint32_t handle, bool paused);

/* From now on others hold the blocks of the first TOKENS tokens of HANDLE, too: it does not free them when it loses its own.
 * (What `cached` names in a job is shared from the start.) */
void sched_share(struct sched *sched, uint32_t handle, uint32_t tokens);

/* There are DRAFTS guesses at the tokens that follow those of HANDLE: the next plan, and only that one, may take them along. */
void sched_set_drafts(struct sched *sched, uint32_t handle, uint32_t drafts);

void sched_plan(struct sched *sched, uint32_t free_blocks, uint64_t now_ns, struct sched_plan *ret);
/* The rows of the oldest unconfirmed plan that names HANDLE have been computed and gave NEW_TOKENS tokens: 0 or 1, with
 * drafts 1 … 1 + drafts, and only the rows before the last of these tokens count as computed. */
void sched_confirm(struct sched *sched, uint32_t handle, uint32_t new_tokens);
/* A request ended by itself (a stop, its limit) after GENERATED tokens: what others are expected to take. */
void sched_learn(struct sched *sched, uint32_t generated);
/* A step of ROWS rows in SEQUENCES sequences took STEP_NS. */
void sched_feedback(struct sched *sched, uint32_t rows, uint32_t sequences, uint64_t step_ns);

uint32_t sched_running(const struct sched *sched);
uint32_t sched_waiting(const struct sched *sched);
void     sched_stats(const struct sched *sched, struct sched_stats *ret);

#endif
