/* generate.c: owns a request between its body and its last event: parse, admission, prompt ids into the lane, events
 * out of it, and the credit.  Does not own connections or how text looks.
 *
 * Invariants:
 *  - A lane's slot has at most one owner, and an event is believed only if slot, generation and request id are its
 *    owner's.
 *  - The event ring is always drained, whatever clients do; what waits for a slow client is at most its stream window.
 *  - `consumed` never covers an event whose text has not been written. */
#include "front/child.h"

#include "base/clock.h"
#include "base/floats.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { RETRY_AFTER_LOST_S = 2, IDS_AT_ONCE = 256, LOGPROBS_AT_ONCE = 16 };

/* The records of an event buffer: as they came, each padded to 8 bytes so that the next one is aligned. */
static size_t padded(size_t bytes) { return (bytes + 7) & ~(size_t)7; }

static struct lane *lane_of(const struct request *request) { return &request->child->attach.lane; }

static void fail(struct request *request, enum status status, uint32_t retry_after_s, uint64_t now_ns, const char *text)
{
	struct error error;
	error_set(&error, status, "%s", text);
	request_fail(request, &error, retry_after_s, now_ns);
}

/* ---- slots ----------------------------------------------------------------------------------------------------- */

static bool take_slot(struct request *request)
{
	struct child *child = request->child;

	for (uint32_t slot = 0; slot < child->attach.slots; slot++) {
		if (child->slot_owner[slot])
			continue;
		child->slot_owner[slot] = request;
		request->slot = (int32_t)slot;
		request->generation = lane_front_open_slot(&child->attach.lane, slot);
		request->id = attach_next_id(&child->attach);
		scoreboard_add(child->counters, COUNTER_GENERATING, 1);
		return true;
	}
	return false;
}

static void leave_slot(struct request *request)
{
	request->child->slot_owner[request->slot] = NULL;
	request->slot = -1;
	scoreboard_sub(request->child->counters, COUNTER_GENERATING, 1);
}

void generate_release(struct request *request)
{
	if (request->slot < 0)
		return;
	/* The word first: every step reads it, so nothing the batcher still holds for this generation lives on. */
	lane_front_cancel(lane_of(request), (uint32_t)request->slot);
	if (request->reserved)
		attach_ring(&request->child->attach);
	leave_slot(request);
}

void generate_lost(struct child *child, const struct error *error, uint64_t now_ns)
{
	for (uint32_t i = 0; i < child->request_count; i++) {
		struct request *request = &child->requests[i];
		if (request->slot < 0)
			continue; /* never submitted, or all its events are here */
		leave_slot(request);
		if (!request->in_helper) /* otherwise found out when it comes back */
			request_fail(request, error, RETRY_AFTER_LOST_S, now_ns);
	}
}

/* ---- body → job ------------------------------------------------------------------------------------------------ */

static void run_parse(struct helper_job *job)
{
	struct request *request = (struct request *)((char *)job - offsetof(struct request, job));
	request->job_status = api_call_parse(request->call, request->body.data ? request->body.data : "", request->body.len,
	    &request->job_error);
}

static void run_tokenize(struct helper_job *job)
{
	struct request *request = (struct request *)((char *)job - offsetof(struct request, job));
	request->job_status = api_call_tokenize(request->call, &request->job_error);
}

/* Here for a small body, by the helper for a large one: a 4 MB prompt must not hold up the other streams of this
 * child. */
static void work(struct request *request, enum request_state state, void (*run)(struct helper_job *), uint64_t now_ns)
{
	request->state = state;
	request->job.run = run;
	if (request->large && !helper_submit(&request->child->helper, &request->job)) {
		request->in_helper = true;
		return;
	}
	run(&request->job);
	generate_on_job(request, now_ns);
}

void generate_begin(struct request *request, uint64_t now_ns)
{
	request->large = request->body.len > CHILD_LARGE_BODY;
	request->progress_ns = now_ns;
	work(request, REQUEST_PARSE, run_parse, now_ns);
}

/* ---- job → records --------------------------------------------------------------------------------------------- */

/* STATUS_OK, or STATUS_FULL: come back when there is room.  Once one record found no room, no other is tried in this
 * turn: the lane wakes the child for the last record that found none.  A broken ring is noted and found by the loop. */
static enum status write_record(struct request *request, void *record, size_t bytes, const int32_t *ids, size_t count)
{
	struct child *child = request->child;
	enum status   status;

	if (child->ring_full || child->lane_broken)
		return STATUS_FULL;
	status = lane_front_write(&child->attach.lane, record, bytes, ids, count);
	child->ring_full = status == STATUS_FULL;
	child->lane_broken = status && status != STATUS_FULL;
	return status ? STATUS_FULL : STATUS_OK;
}

static void write_reserve(struct request *request)
{
	const struct api_job *job = api_call_job(request->call);
	struct wire_reserve record = { .header.type = WIRE_RESERVE,
		.req = request->id,
		.key = job->key,
		.key_requests = job->key_requests,
		.key_tokens = job->key_tokens,
		.priority = (int16_t)job->priority,
		.choices = (uint16_t)job->choices,
		.generation = request->generation,
		.slot = (uint16_t)request->slot,
		.prompt_bytes = (uint32_t)request->body_bytes,
		.max_tokens = job->max_tokens };

	if (write_record(request, &record, sizeof record, NULL, 0))
		return;
	request->reserved = true;
	attach_ring(&request->child->attach);
}

void generate_expire(struct request *request, uint64_t now_ns)
{
	fail(request, STATUS_TIMEOUT, 0, now_ns, "the time this request may take is over; nothing was generated");
}

static bool expired(const struct request *request, uint64_t now_ns)
{
	return request->answer_by_ns && now_ns >= request->answer_by_ns;
}

static void reserve(struct request *request, uint64_t now_ns)
{
	struct child *child = request->child;
	uint64_t      timeout_ns = api_call_job(request->call)->timeout_ns;

	if (timeout_ns)
		request->answer_by_ns = request->accepted_ns + timeout_ns;
	if (expired(request, now_ns)) {
		generate_expire(request, now_ns);
		return;
	}

	if (!attach_ready(&child->attach, now_ns)) {
		fail(request, STATUS_UNAVAILABLE, RETRY_AFTER_LOST_S, now_ns, "the model is not ready; try again soon");
		return;
	}
	if (!take_slot(request)) {
		fail(request, STATUS_FULL, 1, now_ns, "no room for another request on this server; try again soon");
		return;
	}
	request->choices = request->ends_due = request->choices_open = api_call_job(request->call)->choices;
	request->state = REQUEST_RESERVE;
	write_reserve(request);
}

static enum status write_submit(struct request *request)
{
	const struct api_job *job = api_call_job(request->call);
	struct wire_submit    record = { .header.type = WIRE_SUBMIT, .req = request->id, .seed = job->sampling.seed,
		   .deadline_ns = request->answer_by_ns, .key = job->key, .priority = (int16_t)job->priority,
		   .generation = request->generation, .slot = (uint16_t)request->slot, .choices = (uint16_t)job->choices,
		   .prompt_tokens = job->prompt_tokens, .max_tokens = job->max_tokens, .temperature = job->sampling.temperature,
		   .top_p = job->sampling.top_p, .min_p = job->sampling.min_p, .top_k = job->sampling.top_k,
		   .flags = job->ignore_eos ? WIRE_FLAG_IGNORE_EOS : 0, .repetition = job->sampling.repetition,
		   .presence = job->sampling.presence, .frequency = job->sampling.frequency, .min_tokens = job->sampling.min_tokens,
		   .logprobs = (uint16_t)job->sampling.logprobs, .bias_count = (uint16_t)job->bias_count,
		   .stop_count = (uint16_t)job->stop_count, .allowed_count = (uint16_t)job->allowed_count,
		   .think_budget = job->think_budget, .think_open_count = (uint16_t)job->think_open_count,
		   .think_close_count = (uint16_t)job->think_close_count };

	return write_record(request, &record, sizeof record, NULL, 0);
}

/* The lists that are not empty, as far as the ring has room. */
static enum status write_lists(struct request *request)
{
	const struct api_job *job = api_call_job(request->call);
	const struct {
		const void *words;
		uint32_t    count;
	} lists[WIRE_LIST_COUNT] = {
		[WIRE_LIST_BIAS] = { job->bias, 2 * job->bias_count },
		[WIRE_LIST_STOP_IDS] = { job->stop_ids, job->stop_count },
		[WIRE_LIST_ALLOWED_IDS] = { job->allowed_ids, job->allowed_count },
		[WIRE_LIST_THINK_OPEN] = { job->think_open, job->think_open_count },
		[WIRE_LIST_THINK_CLOSE] = { job->think_close, job->think_close_count },
	};

	for (; request->lists < WIRE_LIST_COUNT; request->lists++) {
		struct wire_list record = { .header.type = WIRE_LIST, .req = request->id, .generation = request->generation,
			.slot = (uint16_t)request->slot, .kind = (uint16_t)request->lists, .count = lists[request->lists].count };

		if (record.count && write_record(request, &record, sizeof record, lists[request->lists].words, record.count))
			return STATUS_FULL;
	}
	return STATUS_OK;
}

/* SUBMIT, then the prompt in pieces, as far as the ring has room now and the others' turns allow. */
static void submit(struct request *request, uint64_t now_ns)
{
	const struct api_job *job = api_call_job(request->call);
	struct child         *child = request->child;
	unsigned              pieces = 0;

	if (!request->submitted) {
		if (fcgi_gone(request->connection)) { /* left while it waited: nothing is worth computing */
			scoreboard_add(child->counters, COUNTER_CLIENTS_GONE, 1);
			request_drop(request, "gone");
			return;
		}
		if (write_submit(request))
			return;
		request->submitted = true;
		scoreboard_add(child->counters, COUNTER_SUBMITTED, 1);
	}
	while (!write_lists(request) && request->sent < job->prompt_tokens && pieces < CHILD_PIECES) {
		uint32_t           count = job->prompt_tokens - request->sent;
		struct wire_tokens record = { .header.type = WIRE_TOKENS, .req = request->id, .generation = request->generation,
			.slot = (uint16_t)request->slot, .offset = request->sent };
		record.count = count = count < WIRE_TOKENS_MAX ? count : WIRE_TOKENS_MAX;
		if (write_record(request, &record, sizeof record, job->prompt + request->sent, count))
			break;
		request->sent += count;
		pieces++;
	}
	attach_ring(&child->attach);
	if (request->sent == job->prompt_tokens) {
		request->state = REQUEST_STREAM;
		request->prompt_tokens = job->prompt_tokens;
		request_flush(request, now_ns); /* writes what a ping left */
	} else if (pieces == CHILD_PIECES) {
		child->more = true;
	}
}

void generate_on_job(struct request *request, uint64_t now_ns)
{
	bool parsed = request->state == REQUEST_PARSE;

	if (request->job_status) {
		request_fail(request, &request->job_error, 0, now_ns);
		return;
	}
	if (parsed) {
		buf_free(&request->body);
		reserve(request, now_ns);
		return;
	}
	if (request->slot < 0 && request->events.len > 0) { /* ended while it was tokenised: the END says why */
		request->state = REQUEST_STREAM;
		request_flush(request, now_ns);
		return;
	}
	if (request->slot < 0) {
		fail(request, STATUS_UNAVAILABLE, RETRY_AFTER_LOST_S, now_ns, "the model has gone away; try again soon");
		return;
	}
	if (expired(request, now_ns)) {
		generate_expire(request, now_ns);
		return;
	}
	request->state = REQUEST_SUBMIT;
	submit(request, now_ns);
}

/* What a rejection means to its client. */
static void rejected(struct request *request, uint32_t value, uint64_t now_ns)
{
	const struct api_job *job = api_call_job(request->call);
	uint32_t              seconds = lane_rejection_seconds(value);
	struct error          error;

	seconds = seconds ? seconds : 1;
	switch (attach_ready(&request->child->attach, now_ns) ? lane_rejection_status(value) : STATUS_UNAVAILABLE) {
	case STATUS_KEY_REQUESTS:
		error_set(&error, STATUS_KEY_REQUESTS, "this API key may have %u requests at a time, and as many are running or waiting",
		    job->key_requests);
		break;
	case STATUS_KEY_TOKENS:
		error_set(&error, STATUS_KEY_TOKENS, "this API key may use %u tokens a minute, and this request would exceed them; "
		    "try again in %u s", job->key_tokens, seconds);
		break;
	case STATUS_QUEUE_TOKENS:
		error_set(&error, STATUS_QUEUE_TOKENS, "too many tokens are waiting to be computed; try again later");
		break;
	case STATUS_UNAVAILABLE: /* it began to drain after the request was taken on */
		error_set(&error, STATUS_UNAVAILABLE, "the service is ending; try again later");
		break;
	default:
		error_set(&error, STATUS_FULL, "too many requests are waiting; try again later");
	}
	request_fail(request, &error, seconds, now_ns);
}

static void look_at_reply(struct request *request, uint64_t now_ns)
{
	uint32_t value = 0;

	switch (lane_front_reply(lane_of(request), (uint32_t)request->slot, &value)) {
	case LANE_REPLY_ACCEPT:
	case LANE_REPLY_WAIT:
		work(request, REQUEST_TOKENIZE, run_tokenize, now_ns);
		return;
	case LANE_REPLY_REJECT:
		scoreboard_add(request->child->counters, COUNTER_REJECTED, 1);
		leave_slot(request); /* its generation is over */
		rejected(request, value, now_ns);
		return;
	case LANE_REPLY_NONE:
		return;
	}
}

void generate_pump(struct child *child, uint64_t now_ns)
{
	child->more = child->ring_full = false;
	child->turn++; /* who finds the ring full now is the first one next time */
	for (uint32_t i = 0; i < child->request_count && child->attach.state == ATTACH_UP; i++) {
		struct request *request = &child->requests[(i + child->turn) % child->request_count];
		if (request->state == REQUEST_RESERVE && !request->reserved)
			write_reserve(request);
		if (request->state == REQUEST_RESERVE && request->reserved)
			look_at_reply(request, now_ns);
		else if (request->state == REQUEST_SUBMIT)
			submit(request, now_ns);
	}
	if (!child->ring_full && child->attach.state == ATTACH_UP)
		lane_front_forget_room(&child->attach.lane); /* who wanted it has gone */
}

/* ---- events → text --------------------------------------------------------------------------------------------- */

/* An event of REQUEST was copied to EVENT: keeps it until its client can take it. */
static enum status take_event(struct request *request, const struct wire_token *event, size_t bytes, uint64_t now_ns)
{
	static const char pad[8];
	struct child     *child = request->child;

	if (event->choice >= request->choices)
		return STATUS_INVALID;
	request->received += (uint32_t)bytes;
	if (request->received - request->consumed > child->attach.window + CHILD_EVENT_SLACK)
		return STATUS_INVALID; /* the batcher does not keep to the credit */
	if (request->events_at == request->events.len && request->out_at == request->out.len)
		request->progress_ns = now_ns; /* from now on there is something to write */
	if (buf_append(&request->events, event, bytes) || buf_append(&request->events, pad, padded(bytes) - bytes))
		return STATUS_NOMEM;
	if (event->header.type == WIRE_TOKEN) {
		scoreboard_add(child->counters, COUNTER_TOKENS_RECEIVED, event->count);
		return STATUS_OK;
	}
	const struct wire_end *end = (const struct wire_end *)event;
	if (end->finish == WIRE_FINISH_ERROR && end->status == STATUS_SLOW_CLIENT) {
		scoreboard_add(child->counters, COUNTER_SLOW_CLIENTS, 1);
		leave_slot(request);
		request_drop(request, "slow"); /* nothing can be written to it anyway */
		return STATUS_OK;
	}
	if (request->ends_due == 0)
		return STATUS_INVALID;
	if (request->state == REQUEST_RESERVE || request->state == REQUEST_SUBMIT)
		request->state = REQUEST_STREAM; /* refused before all of it was sent: the rest is not wanted */
	if (--request->ends_due == 0)
		leave_slot(request); /* the batcher is through with it, though its client may not be */
	return STATUS_OK;
}

enum status generate_drain(struct child *child, uint64_t now_ns)
{
	union {
		struct wire_header header;
		struct wire_token  token;
		struct wire_end    end;
		unsigned char      bytes[sizeof(struct wire_token) + WIRE_EVENT_IDS_MAX * 4];
	} event;
	size_t bytes;

	for (;;) {
		enum status status = lane_front_read(&child->attach.lane, &event, sizeof event, &bytes);
		if (status == STATUS_AGAIN)
			break;
		if (status || (event.header.type != WIRE_TOKEN && event.header.type != WIRE_END))
			return STATUS_INVALID;
		/* TOKEN and END share their first fields: req, generation, slot, choice, seq. */
		struct request *owner = event.token.slot < LANE_SLOTS_MAX ? child->slot_owner[event.token.slot] : NULL;
		if (!owner || owner->generation != event.token.generation || owner->id != event.token.req) {
			scoreboard_add(child->counters, COUNTER_STALE_EVENTS, 1);
			continue;
		}
		status = take_event(owner, &event.token, bytes, now_ns);
		if (status == STATUS_NOMEM)
			fail(owner, STATUS_NOMEM, 0, now_ns, "out of memory");
		else if (status)
			return status;
	}
	for (uint32_t i = 0; i < child->request_count; i++) {
		struct request *request = &child->requests[i];
		if (request->state == REQUEST_STREAM && request->out_at == request->out.len &&
		    request->events_at < request->events.len)
			request_flush(request, now_ns);
	}
	return STATUS_OK;
}

/* The END of a choice, rendered.  An end that is an error ends the request: there is one response for all choices. */
static enum status render_end(struct request *request, const struct wire_end *end, uint64_t now_ns)
{
	struct error error;

	if (end->finish == WIRE_FINISH_STOP || end->finish == WIRE_FINISH_LENGTH) {
		request->answer_tokens += end->completion_tokens;
		request->choices_open--;
		return api_call_end(request->call, end, &request->out);
	}
	enum status status = STATUS_UNAVAILABLE;
	if (end->status != STATUS_OK && end->status < STATUS_COUNT)
		status = (enum status)end->status;
	if (end->step)
		error_set(&error, status, "%s: the logits of step %llu were not finite", status_text(status),
		    (unsigned long long)end->step);
	else
		error_set(&error, status, "%s",
		    end->finish == WIRE_FINISH_CANCELLED ? "the request was ended by the server" : status_text(status));
	request_fail(request, &error, end->retry_after_s, now_ns);
	return STATUS_OK;
}

/* The log probabilities behind an id of an event; *ret_words is their number. */
static void read_logprobs(const int32_t *words, uint32_t logprobs, struct sample_logprobs *ret)
{
	ret->drawn = floats_from_bits((uint32_t)words[0]);
	ret->count = logprobs - 1;
	for (uint32_t i = 0; i < ret->count; i++) {
		ret->top[i].id = words[1 + 2 * i];
		ret->top[i].logprob = floats_from_bits((uint32_t)words[2 + 2 * i]);
	}
}

/* Consecutive TOKEN events of one choice, given to the API at once: what has piled up becomes one piece of text. */
static enum status render_tokens(struct request *request, const struct wire_token *first)
{
	const bool        wanted = api_call_job(request->call)->sampling.logprobs > 0;
	const uint32_t    at_once = wanted ? LOGPROBS_AT_ONCE : IDS_AT_ONCE;
	struct sample_logprobs logprobs[LOGPROBS_AT_ONCE];
	int32_t           ids[IDS_AT_ONCE];
	uint32_t          count = 0, keep = 0;
	bool              stop = false;
	const char       *bytes = request->events.data;
	const uint16_t    choice = first->choice;
	enum status       status;

	while (request->events_at < request->events.len) {
		const struct wire_token *event = (const struct wire_token *)(const void *)(bytes + request->events_at);
		if (event->header.type != WIRE_TOKEN || event->choice != choice || count + event->count > at_once)
			break;
		if (wanted != (event->logprobs > 0))
			return STATUS_INTERNAL; /* the batcher sends what was not asked for */
		for (uint32_t i = 0, words = wire_token_words(event->logprobs); i < event->count; i++, count++) {
			const int32_t *token = (const int32_t *)(const void *)(event + 1) + i * words;
			ids[count] = token[0];
			if (wanted)
				read_logprobs(token + 1, event->logprobs, &logprobs[count]);
		}
		request->rendered += event->header.bytes;
		request->events_at += padded(event->header.bytes);
	}
	if (!request->first_token_ns)
		request->first_token_ns = clock_now_ns();
	status = wanted ? api_call_logprobs(request->call, choice, ids, logprobs, count) : STATUS_OK;
	if (!status)
		status = api_call_tokens(request->call, choice, ids, count, &request->out, &stop, &keep);
	if (!status && stop) {
		scoreboard_add(request->child->counters, COUNTER_STOPS, 1);
		if (request->slot >= 0) {
			lane_front_stop(lane_of(request), (uint32_t)request->slot, choice, keep);
			attach_ring(&request->child->attach);
		}
	}
	return status;
}

void generate_render(struct request *request, uint64_t now_ns)
{
	bool        first = !request->first_token_ns;
	enum status status = STATUS_OK;

	while (!status && request->events_at < request->events.len && request->out.len < CHILD_RENDER_BYTES) {
		const struct wire_token *event =
		    (const struct wire_token *)(const void *)(request->events.data + request->events_at);
		if (event->header.type == WIRE_TOKEN) {
			status = render_tokens(request, event);
			continue;
		}
		struct wire_end end = *(const struct wire_end *)(const void *)event;
		request->rendered += end.header.bytes;
		request->events_at += padded(end.header.bytes);
		status = render_end(request, &end, now_ns);
		if (request->state != REQUEST_STREAM)
			return;
	}
	if (first && request->first_token_ns) {
		scoreboard_add(request->child->counters, COUNTER_FIRST_TOKENS, 1);
		scoreboard_add(request->child->counters, COUNTER_FIRST_TOKEN_US,
		    (request->first_token_ns - request->accepted_ns) / 1000);
	}
	if (status) {
		fail(request, status, 0, now_ns, "the answer cannot be written");
		return;
	}
	if (request->events_at == request->events.len) {
		request->events_at = 0;
		if (request->events.capacity > CHILD_EVENT_SLACK)
			buf_free(&request->events);
		else
			buf_clear(&request->events);
	} else { /* where the batcher is the faster one there is always a rest: what was rendered must not stay before it */
		buf_consume(&request->events, request->events_at);
		request->events_at = 0;
	}
	if (request->choices_open == 0) {
		request->state = REQUEST_FLUSH;
		request->progress_ns = now_ns;
	}
	if (request->out.len == 0)
		generate_written(request); /* a whole answer: its events are kept as text, not as bytes on the way */
}

void generate_written(struct request *request)
{
	request->consumed = request->rendered;
	if (request->slot >= 0)
		lane_front_consumed(lane_of(request), (uint32_t)request->slot, request->consumed);
}
