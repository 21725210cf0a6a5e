/* engine.h: continuous batching: requests in, tokens out, one step at a time.
 *
 * The engine owns sequences, KV blocks and the step loop's body; it knows neither lanes nor sockets: whoever drives it
 * (penstockd, the penstock tool, a test) supplies a sink.  One thread calls all functions.  Sequences join and leave at
 * every step; prompts are prefilled in chunks beside running decodes under a token budget; first come, first served.
 *
 * A request whose worst case (prompt + max_tokens) does not fit the whole pool is refused at submit; one that does not
 * fit now waits.  Blocks for the worst case are reserved at admission, so a running sequence never runs out.
 */
#ifndef PENSTOCK_ENGINE_ENGINE_H
#define PENSTOCK_ENGINE_ENGINE_H

#include "base/status.h"
#include "ipc/metrics.h"
#include "ipc/wire.h"
#include "model/model.h"

#include <stdbool.h>

struct engine; /* opaque */

struct engine_options {
	uint32_t max_running;  /* sequences in one batch */
	uint32_t max_waiting;  /* requests that may wait beside them */
	uint32_t step_tokens;  /* token budget of one step, ≥ max_running */
	uint32_t block_size;
	uint32_t max_context;  /* 0 = the model's */
	uint64_t kv_tokens;    /* 0 = plan from cache_share */
	double   cache_share;  /* of the memory left after weights and scratch */
	uint64_t slow_client_timeout_ns, max_queue_wait_ns;
	uint32_t vocab_limit;  /* ids at and beyond it are never sampled (padding rows) */
	const int32_t *eos;    /* borrowed, must live as long as the engine */
	size_t   eos_count;
};

/* What the memory plan took, for the start-up lines. */
struct engine_plan {
	uint64_t weight_bytes, kv_bytes, scratch_bytes, memory_available;
	uint64_t kv_tokens;
	uint32_t blocks, max_context;
};

struct engine_request {
	uint64_t id;          /* never reused */
	uint64_t tag;         /* the sink's own handle, passed back in every call */
	int32_t *prompt;      /* malloc'ed; owned by the engine from submit on, also when submit fails */
	uint32_t prompt_tokens;
	uint32_t max_tokens;  /* 0 = up to the context */
	bool     ignore_eos;
	uint64_t deadline_ns; /* 0 = none */
	struct sample_params sampling;
};

/* What the driver's control word says of a request. */
enum engine_control { ENGINE_CONTROL_NONE, ENGINE_CONTROL_CANCEL, ENGINE_CONTROL_STOP };

struct engine_end {
	enum wire_finish finish;
	enum status      status; /* STATUS_OK unless finish is WIRE_FINISH_ERROR */
	uint32_t         prompt_tokens;
	uint32_t         completion_tokens; /* token() calls of the request; with STOP the kept ones, never more than those */
};

/* Called from engine_step and engine_submit, on the caller's thread. */
struct engine_sink {
	void *context;
	/* Polled once per step and request; *ret_keep (tokens kept) is set with STOP. */
	enum engine_control (*control)(void *context, uint64_t tag, uint32_t *ret_keep);
	/* May EVENTS more token events be published for this request (credit)? */
	bool (*may_publish)(void *context, uint64_t tag, uint32_t events);
	/* One generated token.  Only called after may_publish said yes for this step. */
	void (*token)(void *context, uint64_t tag, uint32_t seq, int32_t id);
	/* Exactly once per accepted request, after its last token; its blocks are free by then.  The end-of-sequence id is
	 * not passed to token() unless the request ignores it. */
	void (*end)(void *context, uint64_t tag, uint32_t seq, const struct engine_end *end);
	/* A step of ROWS rows is about to be launched (the driver announces long ones).  May be NULL. */
	void (*launch)(void *context, uint32_t rows);
};

/* MODEL and SINK are borrowed.  Takes all memory of the plan (model_plan); *ret_plan may be NULL. METRICS may be NULL. */
enum status engine_create(struct model *model, struct backend *backend, const struct engine_options *options,
    const struct engine_sink *sink, struct metrics *metrics, struct engine **ret, struct engine_plan *ret_plan,
    struct error *error);
void        engine_destroy(struct engine *engine);

/* Runs a chunk of up to ROWS rows that belongs to nobody, before the first request: what a step touches has been touched
 * then, and a backend that cannot run is known.  *ret_row_ns is the time of one row. */
enum status engine_warm_up(struct engine *engine, uint32_t rows, uint64_t *ret_row_ns, struct error *error);

/* Accepts a request at NOW_NS.  STATUS_FULL (queue), STATUS_CONTEXT_LENGTH, STATUS_INVALID (an id outside the vocabulary,
 * empty prompt), each with words; nothing reaches the sink then. */
enum status engine_submit(struct engine *engine, struct engine_request *request, uint64_t now_ns, struct error *error);

struct engine_step_stats {
	uint32_t rows, sequences, tokens; /* rows computed, sequences in the batch, tokens generated */
	uint64_t model_ns, overhead_ns;
};

/* One step: polls controls, ends what is cancelled, late or slow, admits, plans, runs, samples, publishes.
 * STATUS_OK: something ran.  STATUS_AGAIN: nothing can run now (idle, or all paused by credit).  Anything else is a
 * backend fault: the process must end. */
enum status engine_step(struct engine *engine, uint64_t now_ns, struct engine_step_stats *ret, struct error *error);

uint32_t engine_running(const struct engine *engine);
uint32_t engine_waiting(const struct engine *engine);
/* Ends every request (shutdown): CANCELLED for STATUS_CANCELLED, an error with STATUS otherwise. */
void     engine_cancel_all(struct engine *engine, enum status status);
/* Number of sequences paused by credit at the last step. */
uint32_t engine_paused(const struct engine *engine);

#endif
