/* sink.c: owns requests while the engine has them, and is the only writer of event rings.  Does not own sequences.
 *
 * Invariant: a request holds its lane entry until its end, and an entry is retired only when `active` is 0 and its
 * farewell has come, so a request's lane is always mapped; nothing is written to a lane that is not OPEN. */
#include "batcher/sink.h"

#include "base/clock.h"

#include <stdlib.h>

enum { NONE = UINT32_MAX };

/* Event bytes as both sides count them (header.bytes), and as the ring stores them. */
enum {
	TOKEN_BYTES = (int)sizeof(struct wire_token) + 4,
	END_BYTES = (int)sizeof(struct wire_end),
	TOKEN_STORED = (TOKEN_BYTES + 7) / 8 * 8,
	END_STORED = (END_BYTES + 7) / 8 * 8
};

enum status sink_init(struct sink *sink, struct batcher *batcher, struct error *error)
{
	uint32_t count = batcher->admission.max_inside;

	*sink = (struct sink){ .batcher = batcher, .count = count, .first_free = 0 };
	sink->requests = calloc(count, sizeof *sink->requests);
	if (!sink->requests)
		return error_set(error, STATUS_NOMEM, "no memory for %u requests", count);
	for (uint32_t i = 0; i < count; i++)
		sink->requests[i].next_free = i + 1 < count ? i + 1 : NONE;
	return STATUS_OK;
}

void sink_free(struct sink *sink)
{
	free(sink->requests);
	sink->requests = NULL;
}

/* ---- lanes -------------------------------------------------------------------------------------------------------- */

static void try_retire(struct sink *sink, struct lanes_entry *lane)
{
	struct batcher *b = sink->batcher;

	if (!lane->gone || lane->active > 0)
		return;
	metrics_add(&b->metrics, METRIC_records_dropped_total, lane_batcher_drop_records(&lane->lane));
	metrics_add(&b->metrics, METRIC_lanes_reset_total, 1);
	metrics_add(&b->metrics, METRIC_lanes_attached, UINT64_MAX); /* − 1 */
	notifier_set_remove(&sink->dirty, lane->index);
	lanes_retire(lane);
	notifier_recycle(&b->notifier, lane->index);
}

void sink_farewell(struct sink *sink, struct lanes_entry *lane)
{
	lane->gone = true;
	try_retire(sink, lane);
}

/* Writes one event.  An honest child's ring always has room (sink.h). */
static void write_event(struct sink *sink, struct lanes_entry *lane, void *event, size_t bytes, const int32_t *ids, size_t count)
{
	enum status status;

	if (lanes_state(lane) != LANES_OPEN)
		return;
	status = lane_batcher_write(&lane->lane, event, bytes, ids, count);
	if (status)
		batcher_drop_lane(sink->batcher, lane,
		    status == STATUS_FULL ? "it does not drain its events" : "its event index makes no sense");
	else
		notifier_set_add(&sink->dirty, lane->index);
}

void sink_flush(struct sink *sink)
{
	struct notifier_set waiting = { { 0 } };

	for (unsigned w = 0; w < NOTIFIER_WORDS; w++) {
		for (uint64_t bits = sink->dirty.words[w]; bits; bits &= bits - 1) {
			uint32_t index = w * 64 + (uint32_t)__builtin_ctzll(bits);
			if (lane_batcher_take_waiting(&sink->batcher->lanes.entries[index].lane))
				notifier_set_add(&waiting, index);
		}
		sink->dirty.words[w] = 0;
	}
	notifier_wake(&sink->batcher->notifier, &waiting);
}

/* ---- the engine's callbacks --------------------------------------------------------------------------------------- */

static enum engine_control control(void *context, uint64_t tag, uint32_t *ret_keep)
{
	struct sink               *sink = context;
	const struct sink_request *r = &sink->requests[tag];
	uint64_t                   word;

	if (lanes_state(r->lane) != LANES_OPEN)
		return ENGINE_CONTROL_CANCEL;
	word = lane_batcher_control(&r->lane->lane, r->slot);
	if (lane_control_generation(word) != r->generation || lane_control_flags(word) & LANE_CONTROL_CANCEL)
		return ENGINE_CONTROL_CANCEL;
	if (lane_control_flags(word) & LANE_CONTROL_STOP) {
		*ret_keep = lane_control_keep(word);
		return ENGINE_CONTROL_STOP;
	}
	return ENGINE_CONTROL_NONE;
}

static bool may_publish(void *context, uint64_t tag, uint32_t events)
{
	struct sink               *sink = context;
	const struct sink_request *r = &sink->requests[tag];
	struct lane               *lane = &r->lane->lane;
	uint32_t                   step = events * TOKEN_STORED;
	uint64_t                   in_flight = r->published - lane_batcher_consumed(lane, r->slot, r->generation);

	return in_flight + 2 * events * TOKEN_BYTES + END_BYTES <= lane->geometry.stream_window &&
	    ring_writable(&lane->events) >= lane->geometry.slot_count * (step + END_STORED);
}

static void token(void *context, uint64_t tag, uint32_t seq, int32_t id)
{
	struct sink         *sink = context;
	struct sink_request *r = &sink->requests[tag];
	struct wire_token    event = {
		.header.type = WIRE_TOKEN, .req = r->req, .generation = r->generation, .slot = r->slot, .seq = seq, .count = 1
	};

	write_event(sink, r->lane, &event, sizeof event, &id, 1);
	r->published += TOKEN_BYTES;
}

static void write_end(struct sink *sink, struct lanes_entry *lane, struct wire_end *event)
{
	event->header.type = WIRE_END;
	if (event->status == STATUS_FULL || event->status == STATUS_UNAVAILABLE)
		event->retry_after_s = admission_retry_after(&sink->batcher->admission);
	write_event(sink, lane, event, sizeof *event, NULL, 0);
}

/* Everything is given back before the child hears of the end. */
static void end_request(struct sink *sink, uint64_t tag, struct wire_end *event)
{
	struct sink_request *r = &sink->requests[tag];
	struct lanes_entry  *lane = r->lane;

	event->req = r->req;
	event->generation = r->generation;
	event->slot = r->slot;
	admission_ended(&sink->batcher->admission, clock_now_ns());
	admission_release(&sink->batcher->admission, r->tokens);
	*r = (struct sink_request){ .next_free = sink->first_free };
	sink->first_free = (uint32_t)tag;
	write_end(sink, lane, event);
	lane->active--;
	try_retire(sink, lane);
}

static void end(void *context, uint64_t tag, uint32_t seq, const struct engine_end *e)
{
	end_request(context, tag,
	    &(struct wire_end){
	        .seq = seq,
	        .finish = e->finish,
	        .status = e->status,
	        .prompt_tokens = e->prompt_tokens,
	        .completion_tokens = e->completion_tokens,
	    });
}

static void launch(void *context, uint32_t rows)
{
	struct sink *sink = context;
	sink->launch(sink->launch_context, rows);
}

struct engine_sink sink_callbacks(struct sink *sink)
{
	return (struct engine_sink){
		.context = sink, .control = control, .may_publish = may_publish, .token = token, .end = end, .launch = launch
	};
}

/* ---- from the queue ------------------------------------------------------------------------------------------------ */

enum status sink_begin(struct sink *sink, const struct queue_message *message, uint64_t *ret_tag)
{
	uint32_t             tag = sink->first_free;
	struct sink_request *r;

	if (tag == NONE)
		return STATUS_FULL;
	r = &sink->requests[tag];
	sink->first_free = r->next_free;
	*r = (struct sink_request){
		.lane = message->lane,
		.req = message->req,
		.tokens = message->tokens,
		.generation = message->generation,
		.slot = message->slot,
	};
	message->lane->active++;
	*ret_tag = tag;
	return STATUS_OK;
}

void sink_fail(struct sink *sink, uint64_t tag, enum status status, uint32_t prompt_tokens)
{
	end_request(sink, tag,
	    &(struct wire_end){ .finish = WIRE_FINISH_ERROR, .status = (uint32_t)status, .prompt_tokens = prompt_tokens });
}

void sink_refuse(struct sink *sink, const struct queue_message *message)
{
	struct wire_end event = {
		.req = message->req,
		.generation = message->generation,
		.slot = message->slot,
		.finish = WIRE_FINISH_ERROR,
		.status = (uint32_t)message->status,
		.retry_after_s = message->retry_after_s,
	};

	write_end(sink, message->lane, &event);
}
