/* bench_stream.c: owns the meaning of a streamed answer's events.  Does not know sockets, requests or statistics.
 * Invariant: counts and the order of times depend on the bytes alone; nothing a server sends is trusted to be small. */
#include "tools/bench_stream.h"

#include "api/json_text.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

void bench_stream_init(struct bench_stream *stream)
{
	memset(stream, 0, sizeof *stream);
	bench_sse_init(&stream->sse);
}

void bench_stream_free(struct bench_stream *stream)
{
	bench_sse_free(&stream->sse);
	free(stream->itl_s);
	stream->itl_s = NULL;
}

static bool has_text(const json_t *object, const char *name)
{
	return json_string_length(json_object_get(object, name)) > 0;
}

/* Does the choice carry a piece of the answer? */
static bool choice_has_text(const json_t *choice)
{
	const json_t *delta = json_object_get(choice, "delta");

	return has_text(choice, "text") || has_text(delta, "content") || has_text(delta, "reasoning_content") ||
	    has_text(delta, "reasoning") || json_array_size(json_object_get(delta, "tool_calls")) > 0;
}

static enum status take_count(const json_t *usage, const char *name, uint32_t *ret, struct error *error)
{
	const json_t *value = json_object_get(usage, name);

	if (!value || json_is_null(value))
		return STATUS_OK;
	if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > BENCH_STREAM_TOKENS_MAX)
		return error_set(error, STATUS_INVALID, "usage.%s is not a whole number in 0…%d", name, BENCH_STREAM_TOKENS_MAX);
	*ret = (uint32_t)json_integer_value(value);
	return STATUS_OK;
}

static enum status take_usage(struct bench_stream *stream, const json_t *usage, struct error *error)
{
	enum status status;

	if (!json_is_object(usage))
		return STATUS_OK; /* null in all chunks but one */
	status = take_count(usage, "prompt_tokens", &stream->prompt_tokens, error);
	if (!status)
		status = take_count(usage, "completion_tokens", &stream->output_tokens, error);
	if (!status)
		status = take_count(json_object_get(usage, "prompt_tokens_details"), "cached_tokens", &stream->cached_tokens, error);
	stream->has_usage = true;
	return status;
}

/* A piece of text arrived. */
static enum status take_text(struct bench_stream *stream, struct error *error)
{
	if (stream->chunks == 0) {
		stream->first_ns = stream->now_ns;
	} else {
		uint32_t gaps = stream->chunks - 1;
		if (gaps == stream->itl_capacity) {
			uint32_t capacity = gaps ? gaps * 2 : 128;
			double  *grown = realloc(stream->itl_s, capacity * sizeof *grown);
			if (!grown)
				return error_set(error, STATUS_NOMEM, "out of memory");
			stream->itl_s = grown;
			stream->itl_capacity = capacity;
		}
		stream->itl_s[gaps] = (double)(stream->now_ns - stream->last_text_ns) / (double)CLOCK_NS_PER_S;
	}
	stream->last_text_ns = stream->now_ns;
	stream->chunks++;
	return STATUS_OK;
}

/* The words of an "error", "message" or "detail" member, whatever shape it has. */
static void error_words(const json_t *root, char *ret_text, size_t size)
{
	static const char *const names[] = { "error", "message", "detail" };

	*ret_text = '\0';
	for (size_t i = 0; i < sizeof names / sizeof names[0] && !*ret_text; i++) {
		const json_t *value = json_object_get(root, names[i]);
		if (json_is_object(value))
			value = json_object_get(value, "message");
		if (json_is_string(value))
			snprintf(ret_text, size, "%s", json_string_value(value));
	}
}

static enum status take_event(struct bench_stream *stream, const json_t *root, struct error *error)
{
	const json_t *failure = json_object_get(root, "error"), *choices = json_object_get(root, "choices");
	bool          text = false;

	if (failure && !json_is_null(failure)) {
		char words[ERROR_MESSAGE_MAX / 2];
		error_words(root, words, sizeof words);
		stream->refused = true;
		return error_set(error, STATUS_UNAVAILABLE, "%s", *words ? words : "an error event without a message");
	}
	if (choices && !json_is_null(choices) && !json_is_array(choices))
		return error_set(error, STATUS_INVALID, "choices is %s, not an array", json_text_type(choices));
	for (size_t i = 0; i < json_array_size(choices); i++) {
		const json_t *choice = json_array_get(choices, i);
		text |= choice_has_text(choice);
		stream->finished |= json_is_string(json_object_get(choice, "finish_reason"));
	}
	stream->last_ns = stream->now_ns;
	if (text) {
		enum status status = take_text(stream, error);
		if (status)
			return status;
	}
	return take_usage(stream, json_object_get(root, "usage"), error);
}

static enum status on_event(void *context, const char *data, size_t len, struct error *error)
{
	struct bench_stream *stream = context;
	json_t              *root;
	enum status          status;

	if (stream->done)
		return STATUS_OK;
	if (len == 6 && !memcmp(data, "[DONE]", 6)) {
		stream->done = true;
		return STATUS_OK;
	}
	if (++stream->events > BENCH_STREAM_EVENTS_MAX)
		return error_set(error, STATUS_LIMIT, "the answer has more than %d events", BENCH_STREAM_EVENTS_MAX);
	status = json_text_load(data, len, BENCH_STREAM_DEPTH_MAX, &root, error);
	if (status) {
		char why[ERROR_MESSAGE_MAX / 2];
		snprintf(why, sizeof why, "%.200s", error ? error->message : "");
		return error_set(error, status, "event %u: %s", stream->events, why);
	}
	status = take_event(stream, root, error);
	json_decref(root);
	return status;
}

enum status bench_stream_push(struct bench_stream *stream, const char *bytes, size_t len, uint64_t now_ns, struct error *error)
{
	if (stream->done)
		return STATUS_OK;
	stream->now_ns = now_ns;
	return bench_sse_push(&stream->sse, bytes, len, on_event, stream, error);
}

void bench_stream_error_text(const char *body, size_t len, char *ret_text, size_t size)
{
	struct error error;
	json_t      *root;

	*ret_text = '\0';
	if (json_text_load(body, len, BENCH_STREAM_DEPTH_MAX, &root, &error))
		return;
	error_words(root, ret_text, size);
	json_decref(root);
}
