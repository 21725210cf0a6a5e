/* sink.c: owns requests while the engine has them, and is the only writer of event rings.  Does not own sequences.
 *
 * Invariant: a request holds its lane entry until its end, and an entry is retired only when `active` is 0 and its
 * farewell has come, so a request's lane is always mapped; nothing is written to a lane that is not OPEN. */
#include "batcher/sink.h"

#include "base/clock.h"
#include "base/floats.h"
#include "base/log.h"

#include <stdlib.h>

enum {
	NONE = UINT32_MAX,
	EVENTS_AT_ONCE = 3 /* of one choice: two steps under way and the next */
};

/* Event bytes as both sides count them (header.bytes), and as the ring stores them. */
enum {
	END_BYTES = (int)sizeof(struct wire_end),
	END_STORED = (END_BYTES + 7) / 8 * 8
};

enum status sink_init(struct sink *sink, struct batcher *batcher, struct error *error)
{
	uint32_t count = batcher->admission.limits.max_running + batcher->admission.limits.max_queued;

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
	sink->now_ns = 0;
}

/* ---- the engine's callbacks --------------------------------------------------------------------------------------- */

static enum engine_control control(void *context, uint64_t tag, uint32_t choice, uint32_t *ret_keep)
{
	struct sink               *sink = context;
	const struct sink_request *r = &sink->requests[tag];
	uint64_t                   word;

	if (lanes_state(r->lane) != LANES_OPEN)
		return ENGINE_CONTROL_CANCEL;
	word = lane_batcher_control(&r->lane->lane, r->slot);
	if (lane_control_generation(word) != r->generation || lane_control_flags(word) & LANE_CONTROL_CANCEL)
		return ENGINE_CONTROL_CANCEL;
	if (choice > 0)
		return lane_batcher_stop(&r->lane->lane, r->slot, r->generation, choice, ret_keep) ? ENGINE_CONTROL_STOP
		                                                                                     : ENGINE_CONTROL_NONE;
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
	uint32_t                   in_flight = r->published - lane_batcher_consumed(lane, r->slot, r->generation);
	uint32_t                   each = (events + r->answers - 1) / r->answers;

	if (each < EVENTS_AT_ONCE) /* more with guesses */
		each = EVENTS_AT_ONCE;
	return in_flight <= lane->geometry.stream_window &&
	    in_flight + events * r->token_bytes + r->answers * END_BYTES <= lane->geometry.stream_window &&
	    ring_writable(&lane->events) >= (uint64_t)r->lane->answer_bytes * each / EVENTS_AT_ONCE;
}

/* All tokens of a step have one time: that of the first one. */
static uint64_t step_time(struct sink *sink)
{
	if (!sink->now_ns)
		sink->now_ns = clock_now_ns();
	return sink->now_ns;
}

void sink_gap_end(struct sink_gap *gap, struct metrics *metrics)
{
	uint64_t each = gap->tokens ? gap->gap_ns / gap->tokens : 0;

	for (; gap->tokens > 0; gap->tokens--) {
		metrics_observe(metrics, HISTOGRAM_inter_token_latency_seconds, gap->tokens > 1 ? each : gap->gap_ns);
		gap->gap_ns -= each;
	}
}

void sink_gap_add(struct sink_gap *gap, uint64_t now_ns, struct metrics *metrics)
{
	if (gap->last_ns && now_ns != gap->last_ns) {
		sink_gap_end(gap, metrics);
		gap->gap_ns = now_ns - gap->last_ns;
	}
	gap->tokens += gap->last_ns != 0;
	gap->last_ns = now_ns;
}

static void measure_token(struct sink *sink, struct sink_request *r, uint32_t choice)
{
	struct metrics *m = &sink->batcher->metrics;
	uint64_t        now = step_time(sink);

	if (!r->first_ns) {
		metrics_observe(m, HISTOGRAM_time_to_first_token_seconds, now - r->arrival_ns);
		r->first_ns = now;
	}
	if (!r->begun_ns[choice])
		r->begun_ns[choice] = now;
	sink_gap_add(&r->gaps[choice], now, m);
}

/* A choice has come to its end by itself. */
static void measure_choice(struct sink *sink, const struct sink_request *r, const struct engine_end *e)
{
	struct metrics *m = &sink->batcher->metrics;
	uint64_t        time_ns = r->gaps[e->choice].last_ns - r->begun_ns[e->choice];

	admission_learn(&sink->batcher->admission, e->completion_tokens);
	metrics_observe(m, HISTOGRAM_request_decode_time_seconds, time_ns);
	metrics_observe(m, HISTOGRAM_request_generation_tokens, e->completion_tokens);
	if (e->completion_tokens > 1)
		metrics_observe(m, HISTOGRAM_request_time_per_output_token_seconds, time_ns / (e->completion_tokens - 1));
}

/* A request has, with its last choice. */
static void measure_request(struct sink *sink, const struct sink_request *r, const struct engine_end *e)
{
	struct metrics *m = &sink->batcher->metrics;

	if (e->finish == WIRE_FINISH_ERROR && e->status == STATUS_TIMEOUT)
		metrics_add(m, METRIC_expired_deadline, 1);
	if (e->finish == WIRE_FINISH_ERROR && e->status == STATUS_UNAVAILABLE && !r->first_ns &&
	    batcher_phase(sink->batcher) == BATCHER_READY)
		metrics_add(m, METRIC_expired_queue_wait, 1);
	if (e->finish != WIRE_FINISH_STOP && e->finish != WIRE_FINISH_LENGTH)
		return; /* times of requests that failed say nothing */
	metrics_observe(m, HISTOGRAM_e2e_request_latency_seconds, step_time(sink) - r->arrival_ns);
	metrics_observe(m, HISTOGRAM_request_queue_time_seconds, e->stats.queue_ns);
	metrics_observe(m, HISTOGRAM_request_prefill_time_seconds, e->stats.prefill_ns);
	metrics_observe(m, HISTOGRAM_request_prompt_tokens, e->prompt_tokens);
	metrics_add(m, METRIC_prompt_tokens_cached_total, e->stats.cached_tokens);
}

/* The words of a token; returns their number. */
static uint32_t put_token(int32_t id, const struct sample_logprobs *logprobs, int32_t ret[WIRE_EVENT_IDS_MAX])
{
	ret[0] = id;
	if (!logprobs)
		return 1;
	ret[1] = (int32_t)floats_to_bits(logprobs->drawn);
	for (uint32_t i = 0; i < logprobs->count; i++) {
		ret[2 + 2 * i] = logprobs->top[i].id;
		ret[3 + 2 * i] = (int32_t)floats_to_bits(logprobs->top[i].logprob);
	}
	return 2 + 2 * logprobs->count;
}

static void token(void *context, uint64_t tag, uint32_t choice, uint32_t seq, int32_t id, const struct sample_logprobs *logprobs)
{
	struct sink         *sink = context;
	struct sink_request *r = &sink->requests[tag];
	struct wire_token    event = {
		.header.type = WIRE_TOKEN, .req = r->req, .generation = r->generation, .slot = r->slot, .choice = (uint16_t)choice,
		.seq = seq, .count = 1, .logprobs = (uint16_t)(logprobs ? 1 + logprobs->count : 0)
	};
	int32_t  words[WIRE_EVENT_IDS_MAX];
	uint32_t count = put_token(id, logprobs, words);

	measure_token(sink, r, choice);
	write_event(sink, r->lane, &event, sizeof event, words, count);
	r->published += (uint32_t)sizeof event + count * 4;
}

static void write_end(struct sink *sink, struct lanes_entry *lane, struct wire_end *event)
{
	event->header.type = WIRE_END;
	if (event->status == STATUS_FULL || event->status == STATUS_UNAVAILABLE || event->status == STATUS_DRAINED)
		event->retry_after_s = admission_retry_after(&sink->batcher->admission, 0);
	write_event(sink, lane, event, sizeof *event, NULL, 0);
}

/* Everything is given back before the child hears of the end of its last choice. */
static void end(void *context, uint64_t tag, uint32_t seq, const struct engine_end *e)
{
	struct sink         *sink = context;
	struct sink_request *r = &sink->requests[tag];
	struct lanes_entry  *lane = r->lane;
	struct wire_end      event = {
		.req = r->req,
		.generation = r->generation,
		.slot = r->slot,
		.choice = (uint16_t)e->choice,
		.seq = seq,
		.finish = e->finish,
		.status = e->status,
		.prompt_tokens = e->prompt_tokens,
		.completion_tokens = e->completion_tokens,
		.step = e->step,
	};

	if (e->step)
		log_error("request %llx: the logits of step %llu are not finite", (unsigned long long)r->req, (unsigned long long)e->step);
	sink_gap_end(&r->gaps[e->choice], &sink->batcher->metrics);
	if (e->finish == WIRE_FINISH_STOP || e->finish == WIRE_FINISH_LENGTH)
		measure_choice(sink, r, e);
	r->generated += e->completion_tokens;
	if (!e->last) {
		r->answers--;
		lane->answer_bytes -= r->answer_bytes;
		r->published += END_BYTES;
		write_end(sink, lane, &event);
		return;
	}
	lane->answer_bytes -= r->answers * r->answer_bytes; /* all of them, if the engine did not take the request */
	measure_request(sink, r, e);
	admission_release(&sink->batcher->admission, &r->ticket,
	    r->first_ns || e->stats.queue_ns ? e->prompt_tokens + r->generated : 0, step_time(sink));
	*r = (struct sink_request){ .next_free = sink->first_free };
	sink->first_free = (uint32_t)tag;
	write_end(sink, lane, &event);
	lane->active--;
	try_retire(sink, lane);
}

static void launch(void *context, uint32_t rows)
{
	struct sink *sink = context;
	sink->launch(sink->step_context, rows);
}

static void planned(void *context, const struct sched_plan *plan)
{
	struct sink *sink = context;
	sink->planned(sink->step_context, plan);
}

void sink_count(const struct sink *sink, uint64_t tag, bool running, struct census *census)
{
	census_count(census, sink->requests[tag].key, sink->requests[tag].priority, running);
}

struct engine_sink sink_callbacks(struct sink *sink)
{
	return (struct engine_sink){
		.context = sink, .control = control, .may_publish = may_publish, .token = token, .end = end, .launch = launch,
		.planned = planned
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
		.key = message->request.key,
		.priority = message->request.priority,
		.arrival_ns = message->arrival_ns,
		.ticket = message->ticket,
		.answers = message->request.choices ? message->request.choices : 1,
		.generation = message->generation,
		.slot = message->slot,
	};
	r->token_bytes = (uint32_t)sizeof(struct wire_token) + 4 * wire_token_words(message->request.sampling.logprobs);
	r->answer_bytes = EVENTS_AT_ONCE * wire_stored_bytes(r->token_bytes) + END_STORED;
	message->lane->active++;
	message->lane->answer_bytes += r->answers * r->answer_bytes;
	*ret_tag = tag;
	return STATUS_OK;
}

void sink_fail(struct sink *sink, uint64_t tag, enum status status, uint32_t prompt_tokens)
{
	end(sink, tag, 0,
	    &(struct engine_end){ .finish = WIRE_FINISH_ERROR, .status = status, .prompt_tokens = prompt_tokens, .last = true });
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
