/* engine.h: continuous batching: requests in, tokens out, one step at a time.
 *
 * The engine owns sequences, KV blocks and the step loop's body; it knows neither lanes nor sockets: whoever drives it
 * (penstockd, the penstock tool, a test) supplies a sink.  One thread calls all functions.  Sequences join and leave at
 * every step; prompts are prefilled in chunks beside running decodes under a token budget, in the order of the policy
 * (sched.h).
 *
 * A request whose worst case (prompt + max_tokens) does not fit the whole pool is refused at submit; one that does not
 * fit now waits.  Blocks are taken as tokens come; a sequence that finds none may lose what it has and be computed again,
 * of which nobody outside sees more than the time it takes.
 */
#ifndef PENSTOCK_ENGINE_ENGINE_H
#define PENSTOCK_ENGINE_ENGINE_H

#include "base/status.h"
#include "engine/sched.h"
#include "ipc/metrics.h"
#include "ipc/wire.h"
#include "model/model.h"

#include <stdbool.h>

struct engine; /* opaque */

#define ENGINE_RECORD_MAX (UINT64_C(4) << 30) /* bytes of a recording; there it ends, and the engine goes on */

/* Guesses at further tokens, checked by the step that computes the one before them. */
enum engine_speculation {
	ENGINE_SPECULATION_OFF,
	ENGINE_SPECULATION_NGRAM, /* of this kind, as many as there are, whether it pays or not */
	ENGINE_SPECULATION_MTP,   /* the same; of the model's layers that draft */
	ENGINE_SPECULATION_AUTO   /* whatever there is, as many as pay; none when they do not */
};

/* off, ngram, mtp or auto; false when WORD is none of them. */
bool engine_speculation_parse(const char *word, enum engine_speculation *ret);

struct engine_options {
	uint32_t max_running;  /* sequences in one batch */
	uint32_t max_waiting;  /* requests that may wait beside them */
	uint32_t step_tokens;  /* token budget of one step, ≥ max_running */
	uint32_t block_size;
	uint32_t max_context;  /* 0 = the model's */
	uint64_t kv_tokens;    /* 0 = plan from cache_share */
	double   cache_share;  /* of the memory left after weights and scratch */
	uint64_t slow_client_timeout_ns, max_queue_wait_ns;
	enum sched_policy policy;
	uint32_t long_prompt_tokens; /* 0 = none are long */
	uint64_t itl_target_ns;      /* 0 = off */
	uint32_t vocab_limit;  /* ids at and beyond it are never sampled (padding rows) */
	enum engine_speculation speculation; /* off where steps overlap */
	uint32_t draft_tokens; /* guesses of one sequence in a step, ≤ SPECULATE_MOST */
	uint32_t ngram_least, ngram_most; /* latest tokens that must and may agree, 1 ≤ least ≤ most ≤ SPECULATE_NGRAM_MOST */
	uint32_t depth;        /* steps under way at a time, 1 or 2; 0 = 2 if the backend overlaps */
	const char *record;    /* a file that every call to the scheduler goes to (engine/sched_trace.h); NULL or "" = none */
	const int32_t *eos;    /* borrowed, must live as long as the engine */
	size_t   eos_count;
};

/* What the memory plan took, for the start-up lines. */
struct engine_plan {
	uint64_t weight_bytes, kv_bytes, scratch_bytes, memory_available;
	uint64_t kv_tokens;
	uint32_t blocks, max_context;
	uint32_t depth, draft_rows; /* steps under way at a time; guesses that a step may check, 0 = none */
	bool     mtp;               /* the model's drafting layer makes some */
};

/* Lists of a request that few requests have: malloc'ed, each NULL when its count is 0. */
struct engine_lists {
	struct sample_bias *bias;        /* added to logits; each id once, at most SAMPLE_BIAS_MAX */
	int32_t            *stop_ids;    /* end an answer as the model's own eos does, at most WIRE_STOP_IDS_MAX */
	int32_t            *allowed_ids; /* nothing else is drawn */
	int32_t            *think_open;  /* what opens a thought; NULL: the answer begins inside one */
	int32_t            *think_close; /* what closes it: drawn one after the other when it has had think_budget tokens */
	uint32_t            bias_count, stop_count, allowed_count, think_open_count, think_close_count, think_budget;
};
struct engine_request {
	uint64_t id;          /* never reused */
	uint64_t tag;         /* the sink's own handle, passed back in every call */
	int32_t *prompt;      /* malloc'ed; owned by the engine from submit on, also when submit fails */
	uint32_t prompt_tokens;
	uint32_t max_tokens;  /* of each choice; 0 = up to the context */
	uint32_t choices;     /* answers to the one prompt, ≤ max_running; 0 = 1 */
	bool     ignore_eos;
	uint64_t deadline_ns; /* 0 = none */
	uint64_t key;         /* who asks; 0 = nobody in particular */
	int32_t  priority;    /* class: lower is served first, 0 is the default */
	struct sample_params sampling;
	struct engine_lists  lists; /* owned like the prompt */
};

/* Frees what a request owns, if it never came to engine_submit. */
void engine_request_clear(struct engine_request *request);

/* What the driver's control word says of a request. */
enum engine_control { ENGINE_CONTROL_NONE, ENGINE_CONTROL_CANCEL, ENGINE_CONTROL_STOP };

/* Where a request's time went, for the metrics.  A part that it never reached is 0. */
struct engine_request_stats {
	uint64_t queue_ns;   /* submit → first planned */
	uint64_t prefill_ns; /* first planned → first token */
	uint64_t decode_ns;  /* first token → last token */
	uint32_t preemptions, preempted_tokens; /* times it lost its blocks, tokens computed again because of that */
	uint32_t cached_tokens;                 /* prompt tokens that were in the cache already */
};

struct engine_end {
	enum wire_finish finish;
	enum status      status; /* STATUS_OK unless finish is WIRE_FINISH_ERROR */
	uint32_t         prompt_tokens;
	uint32_t         completion_tokens; /* token() calls of the choice; with STOP the kept ones, never more than those */
	uint32_t         choice;
	uint64_t         step;              /* whose logits were not finite, counted from 1; 0: it ended for another reason */
	bool             last;              /* of its request: the sink will hear no more of the tag */
	struct engine_request_stats stats;
};

/* Called from engine_step and engine_submit, on the caller's thread. */
struct engine_sink {
	void *context;
	/* Polled once per step and choice; CANCEL is for the whole request; *ret_keep (tokens kept) is set with STOP. */
	enum engine_control (*control)(void *context, uint64_t tag, uint32_t choice, uint32_t *ret_keep);
	/* May EVENTS more token events be published for this request (credit)? */
	bool (*may_publish)(void *context, uint64_t tag, uint32_t events);
	/* One generated token.  Only called after may_publish said yes for the step that drew it.  SEQ counts from 0 in each
	 * choice.  LOGPROBS: NULL where the request asked for none. */
	void (*token)(void *context, uint64_t tag, uint32_t choice, uint32_t seq, int32_t id,
	    const struct sample_logprobs *logprobs);
	/* Exactly once per choice of an accepted request, after its last token; its blocks are free by then, or when the step
	 * under way that names them has come back.  The end-of-sequence id is not passed to token() unless the request ignores
	 * it; one of the request's stop_ids never is. */
	void (*end)(void *context, uint64_t tag, uint32_t seq, const struct engine_end *end);
	/* A step of ROWS rows is about to be launched (the driver announces long ones).  May be NULL. */
	void (*launch)(void *context, uint32_t rows);
	/* What the scheduler decided for the next step, before it is carried out; engine_request_id names its handles.  Not
	 * called for a plan without items, evictions and expiries.  May be NULL. */
	void (*planned)(void *context, const struct sched_plan *plan);
};

/* MODEL and SINK are borrowed.  Takes all memory of the plan (model_plan); *ret_plan may be NULL. METRICS may be NULL. */
enum status engine_create(struct model *model, struct backend *backend, const struct engine_options *options,
    const struct engine_sink *sink, struct metrics *metrics, struct engine **ret, struct engine_plan *ret_plan,
    struct error *error);
void        engine_destroy(struct engine *engine);

/* Runs a chunk of up to ROWS rows and some decodes that belong to nobody, before the first request: what a step touches has
 * been touched then, and a backend that cannot run is known.  *ret_row_ns is the time of one row of the chunk. */
enum status engine_warm_up(struct engine *engine, uint32_t rows, uint64_t *ret_row_ns, struct error *error);

/* Accepts a request at NOW_NS.  STATUS_FULL (queue), STATUS_CONTEXT_LENGTH, STATUS_INVALID (an id outside the vocabulary,
 * empty prompt), STATUS_UNSUPPORTED (a backend without slots), each with words; nothing reaches the sink then. */
enum status engine_submit(struct engine *engine, struct engine_request *request, uint64_t now_ns, struct error *error);

struct engine_step_stats {
	uint32_t rows, sequences, tokens; /* rows computed, sequences in the batch, tokens generated */
	uint32_t retired;                 /* steps that have come back */
	uint64_t model_ns, overhead_ns;
};

/* One step: polls controls, ends what is cancelled, late or slow, admits, plans, launches, and publishes what has come back:
 * with a depth of 2 that is the step before the one it launches, which runs on meanwhile.  RET is of the step that was
 * launched, its tokens those that were published.  STATUS_OK: something ran.  STATUS_AGAIN: nothing can run now (idle, or
 * all paused by credit).  Anything else is a backend fault: the process must end. */
enum status engine_step(struct engine *engine, uint64_t now_ns, struct engine_step_stats *ret, struct error *error);

uint32_t engine_running(const struct engine *engine);
uint32_t engine_waiting(const struct engine *engine);
/* Ends every request (shutdown): CANCELLED for STATUS_CANCELLED, an error with STATUS otherwise. */
void     engine_cancel_all(struct engine *engine, enum status status);
/* Number of sequences paused by credit at the last step. */
uint32_t engine_paused(const struct engine *engine);
uint32_t engine_free_blocks(const struct engine *engine);
void     engine_sched_stats(const struct engine *engine, struct sched_stats *ret);

/* The id of the request under a scheduler's handle, while a plan that names it is shown to the sink. */
uint64_t engine_request_id(const struct engine *engine, uint32_t handle);
/* Calls VISIT for every accepted request that has not ended, in no particular order; RUNNING: it holds KV blocks. */
void     engine_census(const struct engine *engine, void (*visit)(void *context, uint64_t tag, bool running), void *context);

#endif
