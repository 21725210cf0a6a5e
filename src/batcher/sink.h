/* sink.h: the engine's sink over lanes: events, credit, control words.  Step thread only.
 *
 * Credit.  What a request may have on its way to its client is its window:
 *
 *   published ──────────────────────────────────────────►  event bytes written by this thread
 *   consumed  ───────────────►                             event bytes the child has written to the client
 *              └── in flight ──┘  + what steps under way and the next may add + ENDs  ≤  stream_window
 *
 * and the ring must have room for the same of every answer of the lane, so that the END of a stopped child's request always
 * finds room, and a ring that is full all the same means a child that breaks the rules.
 */
#ifndef PENSTOCK_BATCHER_SINK_H
#define PENSTOCK_BATCHER_SINK_H

#include "batcher/batcher.h"
#include "engine/engine.h"

/* The time between tokens of a choice, as it is observed.  A step may give several tokens (speculation), all at its end: each
 * of them took an equal part of the time since the step before.  How many there are is known when the next step's first one or
 * the end comes, so the latest ones wait here. */
struct sink_gap {
	uint64_t last_ns; /* of the latest token; 0 = none yet */
	uint64_t gap_ns;  /* since the step before */
	uint32_t tokens;  /* not yet observed */
};

/* A request in the engine; the engine's tag is its index. */
struct sink_request {
	struct lanes_entry *lane; /* NULL = free */
	uint64_t            req, key;
	int32_t             priority;
	uint32_t            answers;                       /* choices not yet ended */
	uint32_t            token_bytes, answer_bytes;     /* of an event with a token, at most; that a choice may want in the ring */
	uint64_t            arrival_ns, first_ns;          /* of the reservation, of the first token of any choice; 0 = none yet */
	uint64_t            begun_ns[LANE_CHOICES_MAX]; /* first token of each choice */
	struct sink_gap     gaps[LANE_CHOICES_MAX];
	uint64_t            generated; /* tokens of choices that have ended */
	struct admission_ticket ticket;
	uint32_t            generation, published;
	uint32_t            next_free;
	uint16_t            slot;
};

struct sink {
	struct batcher      *batcher;
	struct sink_request *requests; /* [count] */
	uint32_t             count, first_free;
	struct notifier_set  dirty; /* lanes with new events */
	uint64_t             now_ns; /* of the tokens of one step; 0 = to be asked */
	/* Called before a launch, and before that with the plan; set by the step thread. */
	void (*launch)(void *context, uint32_t rows);
	void (*planned)(void *context, const struct sched_plan *plan);
	void *step_context;
};

enum status sink_init(struct sink *sink, struct batcher *batcher, struct error *error);
void        sink_free(struct sink *sink);
/* The callbacks to give to engine_create. */
struct engine_sink sink_callbacks(struct sink *sink);

/* Begins a request: its handle goes to the engine as the tag.  STATUS_FULL when all are taken. */
enum status sink_begin(struct sink *sink, const struct queue_message *message, uint64_t *ret_tag);
/* Ends a begun request that the engine did not accept. */
void sink_fail(struct sink *sink, uint64_t tag, enum status status, uint32_t prompt_tokens);
/* Tells the child of a request that was never begun. */
void sink_refuse(struct sink *sink, const struct queue_message *message);
/* The farewell of LANE came: it is retired as soon as none of its requests is left. */
void sink_farewell(struct sink *sink, struct lanes_entry *lane);
/* Counts the request TAG in CENSUS (for engine_census). */
void sink_count(const struct sink *sink, uint64_t tag, bool running, struct census *census);
/* A token came at NOW_NS, the same for all of a step; the first one has nothing before it. */
void sink_gap_add(struct sink_gap *gap, uint64_t now_ns, struct metrics *metrics);
/* No token of this step comes any more. */
void sink_gap_end(struct sink_gap *gap, struct metrics *metrics);
/* Hands the children that wait for what was published since the last call to the notifier. */
void sink_flush(struct sink *sink);

#endif
