/* respond.c: owns every byte of a response: header lines, error bodies, whole answers, stream chunks.  Does not decide what
 * is answered.  Invariants: header lines have fixed names and values without CR or LF; a failed call leaves OUT as it was;
 * a stream ends with [DONE] if and only if its finish_reason was sent. */
#include "api/call.h"
#include "api/json_text.h"
#include "api/route.h"

#include "base/hash.h"

#include <inttypes.h>
#include <string.h>

/* Every byte of the answers escaped, and what surrounds each. */
enum {
	BODY_MAX = API_ANSWER_MAX * 24 + API_LOGPROBS_MAX + API_ERROR_BODY_MAX + WIRE_CHOICES_MAX * ANSWER_CALLS_MAX * 512
};

_Static_assert((ERROR_MESSAGE_MAX + ERROR_PARAM_MAX) * 6 + 512 < API_ERROR_BODY_MAX, "an error body fits when all is escaped");

#define CORS_ORIGIN "Access-Control-Allow-Origin: *\r\n"
#define CORS_EXPOSE "Access-Control-Expose-Headers: X-Request-Id, X-Penstock-Ignored, Retry-After\r\n"

/* ---- writing with one error check at the end --------------------------------------------------------------------- */

struct writer {
	struct buf *out;
	size_t      start; /* out->len before */
	enum status status;
};

static struct writer writer_start(struct buf *out) { return (struct writer){ out, out->len, STATUS_OK }; }

static void put(struct writer *w, const char *text)
{
	if (!w->status)
		w->status = buf_append_string(w->out, text);
}

static void put_bytes(struct writer *w, const char *bytes, size_t len)
{
	if (!w->status)
		w->status = buf_append(w->out, bytes, len);
}

static void put_json(struct writer *w, const char *bytes, size_t len)
{
	if (!w->status)
		w->status = json_text_append_string(w->out, bytes, len);
}

static void put_number(struct writer *w, int64_t number)
{
	if (!w->status)
		w->status = buf_append_format(w->out, "%" PRId64, number);
}

static enum status writer_end(struct writer *w)
{
	if (w->status && w->out->data) {
		w->out->len = w->start;
		w->out->data[w->start] = '\0';
	}
	return w->status;
}

/* ---- header lines ------------------------------------------------------------------------------------------------- */

static const char *reason(int http_status)
{
	switch (http_status) {
	case 200:
		return "OK";
	case 204:
		return "No Content";
	case 400:
		return "Bad Request";
	case 401:
		return "Unauthorized";
	case 403:
		return "Forbidden";
	case 404:
		return "Not Found";
	case 405:
		return "Method Not Allowed";
	case 408:
		return "Request Timeout";
	case 413:
		return "Content Too Large";
	case 415:
		return "Unsupported Media Type";
	case 429:
		return "Too Many Requests";
	case 499:
		return "Client Closed Request";
	case 503:
		return "Service Unavailable";
	case 504:
		return "Gateway Timeout";
	default:
		return "Internal Server Error";
	}
}

/* The lines every response has.  CONTENT_TYPE NULL: there is no body. */
static void put_headers(struct writer *w, const struct api_call *call, int http_status, const char *content_type)
{
	char ignored[PARAMS_IGNORED_BYTES];

	if (!w->status)
		w->status = buf_append_format(w->out, "Status: %d %s\r\n", http_status, reason(http_status));
	if (content_type) {
		put(w, "Content-Type: ");
		put(w, content_type);
		put(w, "\r\n");
	}
	put(w, "X-Request-Id: ");
	put(w, call->request_id);
	put(w, "\r\nCache-Control: no-store\r\n" CORS_ORIGIN CORS_EXPOSE);
	params_ignored_text(&call->ignored, ignored);
	if (*ignored) {
		put(w, "X-Penstock-Ignored: ");
		put(w, ignored);
		put(w, "\r\n");
	}
}

/* Length, end of the header lines, body. */
static void put_body(struct writer *w, const struct api_call *call, const char *body, size_t len)
{
	put(w, "Content-Length: ");
	put_number(w, (int64_t)len);
	put(w, "\r\n\r\n");
	if (!call->head)
		put_bytes(w, body, len);
}

static enum status sent_whole(struct api_call *call, struct writer *w, int http_status)
{
	enum status status = writer_end(w);

	if (status)
		return status;
	call->headers_sent = call->done = true;
	call->http_status = http_status;
	return STATUS_OK;
}

enum status respond_whole(struct api_call *call, int http_status, const char *content_type, const char *body, size_t len,
    struct buf *out)
{
	struct writer w = writer_start(out);

	put_headers(&w, call, http_status, content_type);
	put_body(&w, call, body, len);
	return sent_whole(call, &w, http_status);
}

/* A preflight (or a plain OPTIONS): what the route allows.  "*" stands for the many headers client libraries add; it
 * does not cover Authorization, which therefore has its own name. */
enum status respond_options(struct api_call *call, struct buf *out)
{
	const char   *allow = route_allow(route_row(call->matched));
	struct writer w = writer_start(out);

	put_headers(&w, call, 204, NULL);
	put(&w, "Allow: ");
	put(&w, allow);
	put(&w, "\r\nAccess-Control-Allow-Methods: ");
	put(&w, allow);
	put(&w, "\r\nAccess-Control-Allow-Headers: Authorization, Content-Type, X-Request-Id, *\r\n"
	        "Access-Control-Max-Age: 86400\r\n\r\n");
	return sent_whole(call, &w, 204);
}

/* ---- errors ------------------------------------------------------------------------------------------------------- */

static void put_error(struct writer *w, const struct error *error)
{
	put(w, "{\"error\":{\"message\":");
	put_json(w, error->message, strlen(error->message));
	put(w, ",\"type\":\"");
	put(w, status_api_type(error->status));
	put(w, "\",\"param\":");
	if (*error->param)
		put_json(w, error->param, strlen(error->param));
	else
		put(w, "null");
	put(w, ",\"code\":\"");
	put(w, status_api_code(error->status));
	put(w, "\"}}");
}

enum status respond_error(struct api_call *call, const struct error *error, uint32_t retry_after_s, struct buf *out)
{
	int           http_status = status_http(error->status);
	struct writer w = writer_start(out), inner;
	struct buf    body;
	enum status   status;

	if (call->done)
		return STATUS_OK;
	if (call->headers_sent) { /* a stream: its status is gone, its end is not [DONE] */
		put(&w, "data: ");
		put_error(&w, error);
		put(&w, "\n\n");
		status = writer_end(&w);
		call->done = !status;
		return status;
	}
	buf_init(&body, API_ERROR_BODY_MAX - 1);
	inner = writer_start(&body);
	put_error(&inner, error);
	w.status = writer_end(&inner);
	put_headers(&w, call, http_status, "application/json");
	if (http_status == 401)
		put(&w, "WWW-Authenticate: Bearer\r\n");
	if (http_status == 405 && route_row(call->matched)) {
		put(&w, "Allow: ");
		put(&w, route_allow(route_row(call->matched)));
		put(&w, "\r\n");
	}
	if (retry_after_s > 0) {
		put(&w, "Retry-After: ");
		put_number(&w, retry_after_s);
		put(&w, "\r\n");
	}
	put_body(&w, call, body.data ? body.data : "", body.len);
	buf_free(&body);
	return sent_whole(call, &w, http_status);
}

/* ---- models ------------------------------------------------------------------------------------------------------- */

enum status respond_models(struct api_call *call, struct buf *out)
{
	const struct api *api = call->api;
	bool              list = call->route == API_ROUTE_MODELS;
	struct buf        body;
	struct writer     w;
	enum status       status;

	buf_init(&body, API_ERROR_BODY_MAX);
	w = writer_start(&body);
	put(&w, list ? "{\"object\":\"list\",\"data\":[{\"id\":" : "{\"id\":");
	put_json(&w, api->model_name, strlen(api->model_name));
	put(&w, ",\"object\":\"model\",\"created\":");
	put_number(&w, api->created);
	put(&w, ",\"owned_by\":\"penstock\"");
	if (call->max_context) {
		put(&w, ",\"max_model_len\":");
		put_number(&w, call->max_context);
	}
	put(&w, list ? "}]}" : "}");
	status = writer_end(&w);
	if (!status)
		status = respond_whole(call, 200, "application/json", body.data, body.len, out);
	buf_free(&body);
	return status;
}

/* ---- streams ------------------------------------------------------------------------------------------------------ */

/* nginx holds header lines back until a body byte follows them, so whoever calls this writes one. */
static void put_stream_headers(struct writer *w, const struct api_call *call)
{
	if (call->headers_sent)
		return;
	put_headers(w, call, 200, "text/event-stream");
	put(w, "X-Accel-Buffering: no\r\n\r\n");
}

static enum status sent_stream(struct api_call *call, struct writer *w)
{
	enum status status = writer_end(w);

	if (status)
		return status;
	call->headers_sent = true;
	call->http_status = 200;
	return STATUS_OK;
}

enum status respond_ping(struct api_call *call, struct buf *out)
{
	struct writer w = writer_start(out);

	put_stream_headers(&w, call);
	put(&w, ": ping\n\n");
	return sent_stream(call, &w);
}

static void put_answer_head(struct writer *w, const struct api_call *call, const char *object)
{
	put(w, "{\"id\":\"chatcmpl-");
	put(w, call->id);
	put(w, "\",\"object\":\"");
	put(w, object);
	put(w, "\",\"created\":");
	put_number(w, call->now);
	put(w, ",\"model\":");
	put_json(w, call->api->model_name, strlen(call->api->model_name));
	put(w, ",\"choices\":[");
}

/* The same for all chunks of a stream, so it is made once. */
static void put_chunk_head(struct writer *w, struct api_call *call)
{
	if (call->chunk_head.len == 0 && !w->status) {
		struct writer head = writer_start(&call->chunk_head);

		put(&head, "data: ");
		put_answer_head(&head, call, "chat.completion.chunk");
		w->status = writer_end(&head);
	}
	put_bytes(w, call->chunk_head.data, call->chunk_head.len);
}

static void put_chunk_end(struct writer *w, const struct api_call *call)
{
	put(w, call->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

static void put_index(struct writer *w, const struct api_call *call, const struct call_choice *choice)
{
	put(w, "{\"index\":");
	put_number(w, choice - call->choices);
}

/* The tokens that no stop string, and no end after the first call, can take back. */
static uint32_t certain_tokens(const struct call_choice *choice)
{
	const struct answer *a = &choice->answer;

	if (choice->finish)
		return choice->completion_tokens;
	if (a->output.tools && a->calls_max == 1)
		return 0;
	return a->stop.count ? a->stop.released_tokens : choice->tokens;
}

/* ,"logprobs":… of the first TOKENS tokens, as far as they were not written yet; null where nobody asked. */
static void put_logprobs(struct writer *w, const struct call_choice *choice, uint32_t tokens)
{
	put(w, ",\"logprobs\":");
	if (!w->status)
		w->status = logprobs_put(&choice->logprobs, tokens, w->out);
}

static void put_role(struct writer *w, struct api_call *call, const struct call_choice *choice)
{
	if (choice->role_sent)
		return;
	put_chunk_head(w, call);
	put_index(w, call, choice);
	put(w, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}");
	put_chunk_end(w, call);
}

/* The id of a choice's call: unique, and the same in every chunk.  Mistral's templates take ids of nine letters and digits only. */
static void put_call_id(struct writer *w, const struct api_call *call, const struct call_choice *choice, unsigned index)
{
	static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
	uint32_t          number[2] = { (uint32_t)(choice - call->choices), index };
	uint64_t          hash;
	char              id[10] = "";

	if (w->status)
		return;
	if (call->api->output.calls != OUTPUT_CALLS_MISTRAL) {
		w->status = buf_append_format(w->out, "call_%.20s%02x%02x", call->id, number[0], number[1]);
		return;
	}
	hash = hash_fnv1a(hash_fnv1a(HASH_FNV1A_START, call->id, CALL_ID_CHARS), number, sizeof number);
	for (int i = 0; i < 9; i++, hash /= 62)
		id[i] = letters[hash % 62];
	put(w, id);
}

/* Calls from FIRST on.  DELTA: with the index, and with the name only where it was not sent. */
static void put_calls(struct writer *w, const struct api_call *call, const struct call_choice *choice, unsigned first, bool delta)
{
	put(w, "\"tool_calls\":[");
	for (unsigned i = first; i < choice->answer.call_count; i++) {
		const struct answer_call *c = &choice->answer.calls[i];

		put(w, i > first ? ",{" : "{");
		if (delta) {
			put(w, "\"index\":");
			put_number(w, i);
			put(w, ",");
		}
		if (!c->sent) {
			put(w, "\"id\":\"");
			put_call_id(w, call, choice, i);
			put(w, "\",\"type\":\"function\",\"function\":{\"name\":");
			put_json(w, c->name, c->name_len);
			put(w, ",\"arguments\":");
		} else {
			put(w, "\"function\":{\"arguments\":");
		}
		put_json(w, c->arguments.data, c->arguments.len);
		put(w, "}}");
	}
	put(w, "]");
}

/* Under the older and the newer name. */
static void put_thought(struct writer *w, const char *bytes, size_t len)
{
	put(w, "\"reasoning\":");
	put_json(w, bytes, len);
	put(w, ",\"reasoning_content\":");
	put_json(w, bytes, len);
}

/* What the choice has to say since the last chunk; false when there is nothing. */
static bool put_news(struct writer *w, struct api_call *call, const struct call_choice *choice)
{
	const struct answer *a = &choice->answer;
	const char          *comma = "";
	bool                 thought = a->thought_ready && !call->hide_reasoning;
	unsigned             first = a->first_open;

	while (first < a->call_count && a->calls[first].sent && !a->calls[first].arguments.len)
		first++;
	if (!thought && !a->content_ready && first == a->call_count)
		return false;
	put_chunk_head(w, call);
	put_index(w, call, choice);
	put(w, ",\"delta\":{");
	if (thought) {
		put_thought(w, a->thought.data, a->thought_ready);
		comma = ",";
	}
	if (a->content_ready) {
		put(w, comma);
		put(w, "\"content\":");
		put_json(w, a->content.data, a->content_ready);
		comma = ",";
	}
	if (first < a->call_count) {
		put(w, comma);
		put_calls(w, call, choice, first, true);
	}
	put(w, "}");
	put_logprobs(w, choice, certain_tokens(choice));
	put(w, ",\"finish_reason\":null}");
	put_chunk_end(w, call);
	return true;
}

/* The prompt counts once, whatever the number of answers. */
static void put_usage(struct writer *w, const struct api_call *call)
{
	int64_t completion_tokens = 0, thought_tokens = 0;

	for (uint32_t i = 0; i < call->job.choices; i++) {
		completion_tokens += call->choices[i].completion_tokens;
		thought_tokens += call->choices[i].answer.output.thought_tokens;
	}
	put(w, "\"usage\":{\"prompt_tokens\":");
	put_number(w, call->job.prompt_tokens);
	put(w, ",\"completion_tokens\":");
	put_number(w, completion_tokens);
	put(w, ",\"total_tokens\":");
	put_number(w, call->job.prompt_tokens + completion_tokens);
	if (call->api->output.thought != OUTPUT_THOUGHT_NONE) {
		put(w, ",\"completion_tokens_details\":{\"reasoning_tokens\":");
		put_number(w, thought_tokens);
		put(w, "}");
	}
	put(w, "}}");
}

enum status respond_delta(struct api_call *call, struct call_choice *choice, struct buf *out)
{
	struct writer w = writer_start(out);
	enum status   status;
	bool          news;

	put_stream_headers(&w, call);
	put_role(&w, call, choice);
	news = put_news(&w, call, choice);
	status = sent_stream(call, &w);
	choice->role_sent |= !status;
	if (!status && news)
		logprobs_taken(&choice->logprobs, certain_tokens(choice));
	if (!status)
		answer_taken(&choice->answer);
	return status;
}

static bool all_ended(const struct api_call *call)
{
	for (uint32_t i = 0; i < call->job.choices; i++)
		if (!call->choices[i].finish)
			return false;
	return true;
}

static enum status finish_stream(struct api_call *call, struct call_choice *choice, struct buf *out)
{
	struct writer w = writer_start(out);
	bool          last = all_ended(call), news;
	enum status   status;

	put_stream_headers(&w, call);
	put_role(&w, call, choice);
	news = put_news(&w, call, choice);
	put_chunk_head(&w, call);
	put_index(&w, call, choice);
	put(&w, ",\"delta\":{}");
	put_logprobs(&w, choice, news ? 0 : certain_tokens(choice)); /* the rest, unless the text took it along */
	put(&w, ",\"finish_reason\":\"");
	put(&w, choice->finish);
	put(&w, "\"}");
	put_chunk_end(&w, call);
	if (last && call->include_usage) {
		put_chunk_head(&w, call);
		put(&w, "],");
		put_usage(&w, call);
		put(&w, "\n\n");
	}
	if (last)
		put(&w, "data: [DONE]\n\n");
	status = sent_stream(call, &w);
	if (status)
		return status;
	choice->role_sent = true;
	call->done = last;
	return STATUS_OK;
}

static void put_message(struct writer *w, const struct api_call *call, const struct call_choice *choice)
{
	const struct answer *a = &choice->answer;

	put(w, ",\"message\":{\"role\":\"assistant\",\"content\":");
	if (a->content.len == 0 && a->call_count)
		put(w, "null");
	else
		put_json(w, a->content.data, a->content.len);
	put(w, ",\"refusal\":null");
	if (a->thought.len && !call->hide_reasoning) {
		put(w, ",");
		put_thought(w, a->thought.data, a->thought.len);
	}
	if (a->call_count) {
		put(w, ",");
		put_calls(w, call, choice, 0, false);
	}
	put(w, "}");
}

static enum status finish_whole(struct api_call *call, struct buf *out)
{
	struct buf    body;
	struct writer w;
	enum status   status;

	buf_init(&body, BODY_MAX);
	w = writer_start(&body);
	put_answer_head(&w, call, "chat.completion");
	for (uint32_t i = 0; i < call->job.choices; i++) {
		const struct call_choice *choice = &call->choices[i];

		put(&w, i ? "," : "");
		put_index(&w, call, choice);
		put_message(&w, call, choice);
		put_logprobs(&w, choice, choice->completion_tokens);
		put(&w, ",\"finish_reason\":\"");
		put(&w, choice->finish);
		put(&w, "\"}");
	}
	put(&w, "],");
	put_usage(&w, call);
	status = writer_end(&w);
	if (!status)
		status = respond_whole(call, 200, "application/json", body.data, body.len, out);
	buf_free(&body);
	return status;
}

enum status respond_finish(struct api_call *call, struct call_choice *choice, struct buf *out)
{
	if (call->job.stream)
		return finish_stream(call, choice, out);
	return all_ended(call) ? finish_whole(call, out) : STATUS_OK;
}
