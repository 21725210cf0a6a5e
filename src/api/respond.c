/* respond.c: owns every byte of a response: header lines, error bodies, whole answers, stream chunks.  Does not decide what
 * is answered.  Invariants: header lines have fixed names and values without CR or LF; a failed call leaves OUT as it was;
 * a stream ends with [DONE] if and only if its finish_reason was sent. */
#include "api/call.h"
#include "api/json_text.h"
#include "api/route.h"

#include <inttypes.h>
#include <string.h>

enum { BODY_MAX = API_ANSWER_MAX * 6 + API_ERROR_BODY_MAX }; /* every byte of the answer escaped, and what surrounds it */

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

static void put_role(struct writer *w, struct api_call *call)
{
	if (call->role_sent)
		return;
	put_chunk_head(w, call);
	put(w, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}");
	put_chunk_end(w, call);
}

static void put_content(struct writer *w, struct api_call *call)
{
	if (call->answer.len == 0)
		return;
	put_chunk_head(w, call);
	put(w, "{\"index\":0,\"delta\":{\"content\":");
	put_json(w, call->answer.data, call->answer.len);
	put(w, "},\"logprobs\":null,\"finish_reason\":null}");
	put_chunk_end(w, call);
}

static void put_usage(struct writer *w, const struct api_call *call, uint32_t completion_tokens)
{
	put(w, "\"usage\":{\"prompt_tokens\":");
	put_number(w, call->job.prompt_tokens);
	put(w, ",\"completion_tokens\":");
	put_number(w, completion_tokens);
	put(w, ",\"total_tokens\":");
	put_number(w, (int64_t)call->job.prompt_tokens + completion_tokens);
	put(w, "}}");
}

enum status respond_delta(struct api_call *call, struct buf *out)
{
	struct writer w = writer_start(out);
	enum status   status;

	put_stream_headers(&w, call);
	put_role(&w, call);
	put_content(&w, call);
	status = sent_stream(call, &w);
	call->role_sent |= !status;
	return status;
}

static enum status finish_stream(struct api_call *call, const char *finish_reason, uint32_t completion_tokens, struct buf *out)
{
	struct writer w = writer_start(out);
	enum status   status;

	put_stream_headers(&w, call);
	put_role(&w, call);
	put_content(&w, call);
	put_chunk_head(&w, call);
	put(&w, "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"");
	put(&w, finish_reason);
	put(&w, "\"}");
	put_chunk_end(&w, call);
	if (call->include_usage) {
		put_chunk_head(&w, call);
		put(&w, "],");
		put_usage(&w, call, completion_tokens);
		put(&w, "\n\n");
	}
	put(&w, "data: [DONE]\n\n");
	status = sent_stream(call, &w);
	call->done = !status;
	return status;
}

static enum status finish_whole(struct api_call *call, const char *finish_reason, uint32_t completion_tokens, struct buf *out)
{
	struct buf    body;
	struct writer w;
	enum status   status;

	buf_init(&body, BODY_MAX);
	w = writer_start(&body);
	put_answer_head(&w, call, "chat.completion");
	put(&w, "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
	put_json(&w, call->answer.data, call->answer.len);
	put(&w, ",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"");
	put(&w, finish_reason);
	put(&w, "\"}],");
	put_usage(&w, call, completion_tokens);
	status = writer_end(&w);
	if (!status)
		status = respond_whole(call, 200, "application/json", body.data, body.len, out);
	buf_free(&body);
	return status;
}

enum status respond_finish(struct api_call *call, const char *finish_reason, uint32_t completion_tokens, struct buf *out)
{
	if (call->job.stream)
		return finish_stream(call, finish_reason, completion_tokens, out);
	return finish_whole(call, finish_reason, completion_tokens, out);
}
