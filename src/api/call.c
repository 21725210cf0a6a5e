/* call.c: owns the life of one request: what may happen in which order, and the way from generated ids to text.  Fields and
 * prompt are request.c's, response bytes respond.c's.  Invariants: nothing is answered twice; text leaves in whole characters
 * and never past a stop string; a call whose last byte was appended ignores everything that comes later. */
#include "api/call.h"
#include "api/keys.h"
#include "api/route.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TIMEOUT_HEADER "X-Request-Timeout"

enum { TOKEN_TEXT_MAX = VOCAB_TOKEN_MAX * 3 + 16 }; /* every byte of a token ill-formed, and what was held before it */

/* ---- create ------------------------------------------------------------------------------------------------------- */

static void set_ids(struct api_call *call, const struct api_http *http, const unsigned char seed[16])
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	static const char hex[] = "0123456789abcdef";
	const char       *id = http->request_id;
	size_t            len = id ? strlen(id) : 0;

	for (size_t i = 0; i < 16; i++) {
		call->id[2 * i] = hex[seed[i] >> 4];
		call->id[2 * i + 1] = hex[seed[i] & 15];
	}
	memcpy(&call->seed, seed, sizeof call->seed);
	if (len == 0 || len > CALL_REQUEST_ID_MAX || strspn(id, allowed) != len) {
		id = call->id;
		len = CALL_ID_CHARS;
	}
	memcpy(call->request_id, id, len + 1);
}

static enum status check_key(struct api_call *call, const char *authorization, struct error *error)
{
	static const char scheme[] = "Bearer ";
	const char       *key;
	size_t            len;

	if (!authorization || !*authorization)
		return error_set(error, STATUS_UNAUTHORIZED, "an API key is missing; send it as Authorization: Bearer KEY");
	if (strncasecmp(authorization, scheme, sizeof scheme - 1))
		return error_set(error, STATUS_UNAUTHORIZED, "the Authorization header must read Bearer KEY");
	key = authorization + sizeof scheme - 1;
	key += strspn(key, " ");
	len = strcspn(key, " ");
	if (len == 0 || key[len + strspn(key + len, " ")] != '\0')
		return error_set(error, STATUS_UNAUTHORIZED, "the Authorization header must read Bearer KEY");
	if (keys_check(call->api->keys, key, len, &call->key, &call->limits))
		return error_set(error, STATUS_UNAUTHORIZED, "the API key is not known here");
	return STATUS_OK;
}

/* An absent type is taken for JSON; parameters (charset) are not looked at, since JSON is UTF-8. */
static enum status check_media_type(const char *type, struct error *error)
{
	static const char json[] = "application/json";
	size_t            len = type ? strcspn(type, "; \t") : 0;

	if (!type || !*type || (len == sizeof json - 1 && !strncasecmp(type, json, len)))
		return STATUS_OK;
	return error_set_param(error, STATUS_MEDIA_TYPE, "Content-Type", "Content-Type: %.80s; only application/json is taken", type);
}

static enum status check_length(struct api_call *call, const char *length, struct error *error)
{
	int64_t max = call->api->conf->front_max_body;
	size_t  digits = length ? strspn(length, "0123456789") : 0;

	if (!length || !*length)
		return STATUS_OK;
	if (length[digits] != '\0')
		return error_set_param(error, STATUS_INVALID, "Content-Length", "Content-Length: %.40s is not a number of bytes", length);
	if (digits > 18 || strtoll(length, NULL, 10) > max)
		return error_set(error, STATUS_TOO_LARGE, "the body has %.40s bytes, at most %lld are allowed", length, (long long)max);
	call->content_length = strtoll(length, NULL, 10);
	return STATUS_OK;
}

/* Seconds with or without a fraction, in the range of the field `timeout`. */
static enum status check_timeout(struct api_call *call, const char *text, struct error *error)
{
	const struct param *row = params_find("timeout");
	double              seconds;
	char               *end;

	if (!text || !*text)
		return STATUS_OK;
	seconds = strtod(text, &end);
	if (strspn(text, "0123456789.") != strlen(text) || *end || !(seconds >= row->real_min && seconds <= row->real_max))
		return error_set_param(error, STATUS_INVALID, TIMEOUT_HEADER, TIMEOUT_HEADER ": %.40s is not a number of seconds in %g…%g",
		    text, row->real_min, row->real_max);
	call->timeout_s = seconds;
	return STATUS_OK;
}

static enum status accept_http(struct api_call *call, const struct api_http *http, struct error *error)
{
	const char         *method = http->method ? http->method : "", *rest = "";
	const struct route *row;
	enum status         status = STATUS_OK;

	call->head = !strcmp(method, "HEAD");
	call->matched = http->path ? route_find(http->path, &rest) : API_ROUTE_NONE;
	row = route_row(call->matched);
	if (!row)
		return error_set(error, STATUS_NOT_FOUND, "%.20s %.100s: there is no such path here", method,
		    http->path ? http->path : "");
	if (!strcmp(method, "OPTIONS")) {
		call->route = API_ROUTE_OPTIONS;
		return STATUS_OK;
	}
	if (!route_allows(row, method))
		return error_set(error, STATUS_METHOD, "%.20s is not allowed on %s; allowed: %s", method, row->path, route_allow(row));
	call->route = call->matched;
	if (row->key && call->api->keys)
		status = check_key(call, http->authorization, error);
	if (!status && row->method == ROUTE_POST)
		status = check_media_type(http->content_type, error);
	if (!status && row->method == ROUTE_POST)
		status = check_length(call, http->content_length, error);
	if (!status && row->method == ROUTE_POST)
		status = check_timeout(call, http->request_timeout, error);
	if (!status && call->route == API_ROUTE_MODEL && strcmp(rest, call->api->model_name))
		status = error_set_param(error, STATUS_MODEL_NOT_FOUND, "model", "%.100s: no such model; served: %s", rest,
		    call->api->model_name);
	return status;
}

enum status api_call_create(const struct api *api, const struct api_http *http, const unsigned char request_id_seed[16],
    struct api_call **ret, struct error *error)
{
	struct api_call *call = calloc(1, sizeof *call);
	enum status      status;

	if (!call)
		return error_set(error, STATUS_NOMEM, "out of memory");
	call->api = api;
	call->now = http->now;
	call->content_length = -1;
	call->limits.ceiling = keys_setting(KEY_SETTING_ceiling)->min; /* without keys there is nobody to bow to */
	call->max_context = api->max_context;
	set_ids(call, http, request_id_seed);
	buf_init(&call->text, TOKEN_TEXT_MAX);
	buf_init(&call->chunk_head, API_ERROR_BODY_MAX);
	status = accept_http(call, http, error);
	call->accepted = !status;
	*ret = call;
	return status;
}

void api_call_free(struct api_call *call)
{
	if (!call)
		return;
	call_release_request(call);
	for (uint32_t i = 0; i < call->job.choices; i++) {
		answer_free(&call->choices[i].answer);
		logprobs_free(&call->choices[i].logprobs);
	}
	free(call->choices);
	free(call->bias);
	token_list_free(&call->think_open);
	token_list_free(&call->think_close);
	free(call->stop_ids);
	free(call->allowed_ids);
	output_tools_free(call->tools);
	token_list_free(&call->prompt);
	buf_free(&call->text);
	buf_free(&call->chunk_head);
	free(call);
}

enum api_route        api_call_route(const struct api_call *call) { return call->route; }
const char           *api_call_request_id(const struct api_call *call) { return call->request_id; }
uint64_t              api_call_key(const struct api_call *call) { return call->key; }
bool                  api_call_wants_body(const struct api_call *call) { return call->accepted && call->route == API_ROUTE_CHAT; }
const struct api_job *api_call_job(const struct api_call *call) { return &call->job; }
bool                  api_call_headers_sent(const struct api_call *call) { return call->headers_sent; }
bool                  api_call_done(const struct api_call *call) { return call->done; }
int                   api_call_http_status(const struct api_call *call) { return call->http_status; }

/* ---- small answers ------------------------------------------------------------------------------------------------ */

enum status api_call_answer(struct api_call *call, struct buf *out)
{
	if (!call->accepted || call->done)
		return STATUS_INVALID;
	switch (call->route) {
	case API_ROUTE_OPTIONS:
		return respond_options(call, out);
	case API_ROUTE_MODELS:
	case API_ROUTE_MODEL:
		return respond_models(call, out);
	default:
		return STATUS_INVALID;
	}
}

enum status api_call_text(struct api_call *call, enum status status, const char *content_type, const char *body,
    size_t len, struct buf *out)
{
	if (call->done)
		return STATUS_INVALID;
	return respond_whole(call, status_http(status), content_type, body, len, out);
}

enum status api_call_ping(struct api_call *call, struct buf *out)
{
	if (!call->job.stream || call->done)
		return STATUS_OK;
	return respond_ping(call, out);
}

/* Has every answer all its text?  A stop string, or its last call, ends one before its END event comes. */
static bool complete(const struct api_call *call)
{
	for (uint32_t i = 0; i < call->job.choices; i++)
		if (!call->choices[i].finish && !answer_ended(&call->choices[i].answer))
			return false;
	return call->job.choices > 0;
}

/* STOPPED: by itself, a stop string or its last call; not by its length. */
static enum status finish_choice(struct api_call *call, struct call_choice *choice, bool stopped, uint32_t completion_tokens,
    struct buf *out)
{
	enum status status;

	choice->finish = !stopped ? "length" : choice->answer.call_count && !choice->answer.stop.matched ? "tool_calls" : "stop";
	choice->completion_tokens = completion_tokens;
	status = respond_finish(call, choice, out);
	if (status)
		choice->finish = NULL;
	return status;
}

enum status api_call_fail(struct api_call *call, const struct error *error, uint32_t retry_after_s, struct buf *out)
{
	enum status status = STATUS_OK;

	/* The answers were complete, only their last lines were missing: whatever went wrong since is no concern of the client. */
	if (call->done || !complete(call) || error->status == STATUS_LIMIT || error->status == STATUS_NOMEM)
		return respond_error(call, error, retry_after_s, out);
	for (uint32_t i = 0; i < call->job.choices && !status; i++)
		if (!call->choices[i].finish)
			status = finish_choice(call, &call->choices[i], true, call->choices[i].answer.keep, out);
	return status;
}

/* ---- the answer --------------------------------------------------------------------------------------------------- */

/* The marker that ID is, where it means anything to this answer; OUTPUT_MARKER_COUNT: it is a token like others. */
static enum output_marker marker_of(const struct api_call *call, int32_t id)
{
	enum output_marker marker = output_format_marker(&call->api->output, id);

	return marker > OUTPUT_THINK_CLOSE && !call->tools ? OUTPUT_MARKER_COUNT : marker;
}

/* Text of one more id into the choice's answer. */
static enum status take_id(struct api_call *call, struct call_choice *c, int32_t id)
{
	enum output_marker marker = marker_of(call, id);
	enum status        status;

	c->tokens++;
	buf_clear(&call->text);
	if (marker == OUTPUT_MARKER_COUNT) {
		status = detokenizer_push(&c->detokenizer, id, &call->text);
		return status ? status : answer_text(&c->answer, call->text.data, call->text.len, c->tokens);
	}
	status = detokenizer_finish(&c->detokenizer, &call->text); /* half a character before it stays half */
	if (!status)
		status = answer_text(&c->answer, call->text.data, call->text.len, c->tokens);
	buf_clear(&call->text);
	if (!status)
		status = detokenizer_push(&c->detokenizer, id, &call->text); /* which knows now that this is not the first token */
	return status ? status : answer_marker(&c->answer, marker, c->tokens);
}

enum status api_call_logprobs(struct api_call *call, uint32_t choice, const int32_t *ids, const struct sample_logprobs *logprobs,
    size_t count)
{
	enum status status = choice < call->job.choices ? STATUS_OK : STATUS_INVALID;

	for (size_t i = 0; i < count && !status && !answer_ended(&call->choices[choice].answer); i++)
		status = logprobs_add(&call->choices[choice].logprobs, call->api->vocab, ids[i], &logprobs[i]);
	return status;
}

enum status api_call_tokens(struct api_call *call, uint32_t choice, const int32_t *ids, size_t count, struct buf *out,
    bool *ret_stop, uint32_t *ret_keep)
{
	struct call_choice *c;
	enum status         status = STATUS_OK;

	if (choice >= call->job.choices)
		return STATUS_INVALID;
	c = &call->choices[choice];
	if (call->done || answer_ended(&c->answer) || c->finish || count == 0) {
		*ret_stop = false;
		return STATUS_OK;
	}
	for (size_t i = 0; i < count && !status && !answer_ended(&c->answer); i++)
		status = take_id(call, c, ids[i]);
	if (!status && call->job.stream)
		status = respond_delta(call, c, out);
	if (status)
		return status;
	*ret_stop = answer_ended(&c->answer);
	if (*ret_stop)
		*ret_keep = c->answer.keep;
	return STATUS_OK;
}

/* What was held back: the rest of a character, the beginning of a marker or of a stop string that did not come. */
static enum status flush_text(struct api_call *call, struct call_choice *c, bool stopped)
{
	enum status status;

	if (answer_ended(&c->answer))
		return STATUS_OK;
	buf_clear(&call->text);
	status = detokenizer_finish(&c->detokenizer, &call->text);
	if (!status)
		status = answer_text(&c->answer, call->text.data, call->text.len, c->tokens);
	return status ? status : answer_finish(&c->answer, stopped);
}

static enum status end_badly(struct api_call *call, const struct wire_end *end, struct buf *out)
{
	enum status  status = end->status < STATUS_COUNT ? (enum status)end->status : STATUS_INTERNAL;
	struct error error;

	if (status == STATUS_OK)
		status = end->finish == WIRE_FINISH_CANCELLED ? STATUS_UNAVAILABLE : STATUS_INTERNAL;
	error_set(&error, status, "the answer was ended by the server: %s", status_text(status));
	return api_call_fail(call, &error, end->retry_after_s, out);
}

enum status api_call_end(struct api_call *call, const struct wire_end *end, struct buf *out)
{
	bool                good = end->finish == WIRE_FINISH_STOP || end->finish == WIRE_FINISH_LENGTH;
	struct call_choice *c;
	enum status         status;

	if (end->choice >= call->job.choices)
		return STATUS_INVALID;
	c = &call->choices[end->choice];
	if (call->done || c->finish)
		return STATUS_OK;
	if (!good && !answer_ended(&c->answer))
		return end_badly(call, end, out);
	status = flush_text(call, c, end->finish == WIRE_FINISH_STOP);
	if (status)
		return status;
	if (answer_ended(&c->answer))
		return finish_choice(call, c, true, c->answer.keep, out);
	return finish_choice(call, c, end->finish == WIRE_FINISH_STOP, end->completion_tokens, out);
}
