/* sink.h: the engine's sink over lanes: events, credit, control words.  Step thread only.
 *
 * Credit.  What a request may have on its way to its client is its window:
 *
 *   published ──────────────────────────────────────────►  event bytes written by this thread
 *   consumed  ───────────────►                             event bytes the child has written to the client
 *              └── in flight ──┘  + two steps' worst case + END  ≤  stream_window
 *
 * and the ring must have room for a step of every slot of the lane and every END besides, so that the END of a stopped
 * child's request always finds room, and a ring that is full all the same means a child that breaks the rules.
 */
#ifndef PENSTOCK_BATCHER_SINK_H
#define PENSTOCK_BATCHER_SINK_H

#include "batcher/batcher.h"
#include "engine/engine.h"

/* A request in the engine; the engine's tag is its index. */
struct sink_request {
	struct lanes_entry *lane; /* NULL = free */
	uint64_t            req, tokens; /* tokens: counted in admission */
	uint32_t            generation, published;
	uint32_t            next_free;
	uint16_t            slot;
};

struct sink {
	struct batcher      *batcher;
	struct sink_request *requests; /* [count] */
	uint32_t             count, first_free;
	struct notifier_set  dirty; /* lanes with new events */
	/* Called before a launch; set by the step thread. */
	void (*launch)(void *context, uint32_t rows);
	void *launch_context;
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
/* Hands the children that wait for what was published since the last call to the notifier. */
void sink_flush(struct sink *sink);

#endif
