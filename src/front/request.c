/* request.c: owns a client's connection from accept to close: reading the head and the body, the small routes, writing,
 * and every way to end.  Does not own lanes (generate.c) or the loop (child.c).  Invariant: a request that is not FREE
 * is in exactly one state and always has something that will end it: an event, a deadline, or the helper. */
#include "front/child.h"

#include "api/exposition.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

enum { RETRY_AFTER_AWAY_S = 2 };

static const char *const route_names[API_ROUTE_COUNT] = {
	[API_ROUTE_NONE] = "-",
	[API_ROUTE_OPTIONS] = "OPTIONS",
#define ROUTE(NAME, match, path, method, key) [API_ROUTE_##NAME] = path,
#include "api/routes.def"
#undef ROUTE
};

static uint64_t ms(int64_t value) { return (uint64_t)value * CLOCK_NS_PER_MS; }

static void count(const struct request *request, enum counter id, uint64_t n)
{
	scoreboard_add(request->child->counters, id, n);
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

/* What the loop wants to hear of the client: EVENTS and always hang-ups. */
static void arm(struct request *request, uint32_t events)
{
	struct epoll_event event = { .events = events | EPOLLRDHUP,
		.data.u64 = (uint64_t)request->serial << 32 | (uint64_t)request->index << 8 | 1 };

	if (request->armed == event.events)
		return;
	epoll_ctl(request->child->epoll, request->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fcgi_fd(request->connection),
	    &event);
	request->armed = event.events;
}

void request_open(struct child *child, struct fcgi *connection, uint64_t now_ns)
{
	struct request *request = child->requests;

	while (request->state != REQUEST_FREE) /* the caller accepts only while one is free */
		request++;
	*request = (struct request){ .child = child, .state = REQUEST_HEAD, .index = (uint16_t)(request - child->requests),
		.serial = ++child->serial, .connection = connection, .accepted_ns = now_ns, .progress_ns = now_ns, .slot = -1,
		.outcome = "done", .deadline_ns = now_ns + ms(child->conf->front_header_timeout_ms) };
	buf_init(&request->body, (size_t)child->conf->front_max_body);
	buf_init(&request->events, (size_t)child->conf->front_stream_window * 2 + 2 * CHILD_EVENT_SLACK);
	buf_init(&request->out, CHILD_OUT_MAX);
	child->requests_open++;
	count(request, COUNTER_CONNECTIONS, 1);
	count(request, COUNTER_OPEN, 1);
	arm(request, EPOLLIN);
}

static void log_access(const struct request *request, uint64_t now_ns)
{
	int status = api_call_http_status(request->call);

	enum counter class = status < 400 ? COUNTER_RESPONSES_2XX : COUNTER_RESPONSES_4XX;

	count(request, status < 500 ? class : COUNTER_RESPONSES_5XX, 1);
	enum log_level level = api_call_wants_body(request->call) || status >= 400 ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG;
	log_write(level, 0,
	    "request %s key %016llx route %s status %d %s in %.1f ms, first token %.1f ms, tokens %u in %u out, job %llx",
	    api_call_request_id(request->call), (unsigned long long)api_call_key(request->call),
	    route_names[api_call_route(request->call)], status, request->outcome,
	    (double)(now_ns - request->accepted_ns) / 1e6,
	    request->first_token_ns ? (double)(request->first_token_ns - request->accepted_ns) / 1e6 : 0.0,
	    request->prompt_tokens, request->answer_tokens, (unsigned long long)request->id);
}

/* Frees everything; the descriptor leaves the epoll set by being closed. */
static void release(struct request *request)
{
	struct child *child = request->child;

	generate_release(request);
	fcgi_close(request->connection);
	request->connection = NULL;
	if (request->in_helper) { /* the helper still works on call and body */
		request->state = REQUEST_ABANDONED;
		return;
	}
	if (request->call) {
		log_access(request, clock_now_ns());
		count(request, COUNTER_PROMPT_TOKENS, request->prompt_tokens);
		count(request, COUNTER_ANSWER_TOKENS, request->answer_tokens);
		api_call_free(request->call);
	}
	child->trim |= request->large;
	buf_free(&request->body);
	buf_free(&request->events);
	buf_free(&request->out);
	request->call = NULL;
	request->state = REQUEST_FREE;
	child->requests_open--;
	scoreboard_sub(child->counters, COUNTER_OPEN, 1);
}

void request_drop(struct request *request, const char *outcome)
{
	if (!request->call)
		count(request, COUNTER_REFUSED, 1);
	else if (request->state != REQUEST_LINGER) /* there the answer was given: whatever ends it is no news */
		request->outcome = outcome;
	release(request);
}

static void drop_gone(struct request *request)
{
	if (request->state != REQUEST_LINGER && request->call)
		count(request, COUNTER_CLIENTS_GONE, 1);
	request_drop(request, "gone");
}

/* The last byte is on its way: says so to libfcgi and to the peer. */
static void finish(struct request *request, uint64_t now_ns)
{
	if (fcgi_finish(request->connection) || fcgi_body_ended(request->connection)) {
		release(request);
		return;
	}
	/* Closing now would reset the peer while it writes, and it would lose the answer. */
	request->state = REQUEST_LINGER;
	request->deadline_ns = now_ns + ms(request->child->conf->front_header_timeout_ms);
	arm(request, EPOLLIN);
}

/* ---- answering ------------------------------------------------------------------------------------------------- */

/* The whole answer is in `out`. */
static void answered(struct request *request, enum status status, uint64_t now_ns)
{
	if (status) {
		request_drop(request, "out of memory");
		return;
	}
	request->state = REQUEST_FLUSH;
	request->progress_ns = now_ns;
	request_flush(request, now_ns);
}

void request_fail(struct request *request, const struct error *error, uint32_t retry_after_s, uint64_t now_ns)
{
	generate_release(request);
	buf_free(&request->events);
	request->events_at = 0;
	request->outcome = status_name(error->status);
	answered(request, api_call_fail(request->call, error, retry_after_s, &request->out), now_ns);
}

static enum status answer_metrics(struct request *request)
{
	struct buf  text;
	enum status status;

	buf_init(&text, 1 << 20);
	status = scoreboard_render(request->child->options.board, request->child->conf->service_instance, &text);
	if (!status)
		status = api_call_text(request->call, STATUS_OK, EXPOSITION_CONTENT_TYPE, text.data, text.len, &request->out);
	buf_free(&text);
	return status;
}

static enum status answer_line(struct request *request, enum status status, const char *line)
{
	return api_call_text(request->call, status, "text/plain; charset=utf-8", line, strlen(line), &request->out);
}

/* The body has been read to its end: answers, or starts to generate. */
static void dispatch(struct request *request, uint64_t now_ns)
{
	struct child *child = request->child;

	if (!request->failure.status && request->has_declared && request->declared != request->body_bytes)
		error_set(&request->failure, STATUS_INVALID, "CONTENT_LENGTH is %llu, but the body has %llu bytes",
		    (unsigned long long)request->declared, (unsigned long long)request->body_bytes);
	if (request->failure.status) {
		request_fail(request, &request->failure, request->retry_after_s, now_ns);
		return;
	}
	switch (api_call_route(request->call)) {
	case API_ROUTE_CHAT:
		generate_begin(request, now_ns);
		return;
	case API_ROUTE_LIVEZ:
		answered(request, answer_line(request, STATUS_OK, "ok\n"), now_ns);
		return;
	case API_ROUTE_READYZ:
		if (!child->draining && attach_ready(&child->attach, now_ns))
			answered(request, answer_line(request, STATUS_OK, "ready\n"), now_ns);
		else
			answered(request, answer_line(request, STATUS_UNAVAILABLE, "not ready\n"), now_ns);
		return;
	case API_ROUTE_METRICS:
		answered(request, answer_metrics(request), now_ns);
		return;
	default:
		answered(request, api_call_answer(request->call, &request->out), now_ns);
	}
}

/* ---- head ------------------------------------------------------------------------------------------------------ */

/* Parameters that must not come twice: which one counts would depend on who reads them. */
static const char *const single_params[] = { "REQUEST_METHOD", "DOCUMENT_URI", "SCRIPT_NAME", "CONTENT_LENGTH",
	"CONTENT_TYPE", "HTTP_AUTHORIZATION", "HTTP_X_REQUEST_ID", "HTTP_X_REQUEST_TIMEOUT" };

static enum status check_params(const struct request *request, struct error *error)
{
	for (size_t i = 0; i < sizeof single_params / sizeof *single_params; i++) {
		unsigned times = 0;
		fcgi_param(request->connection, single_params[i], &times);
		if (times > 1)
			return error_set(error, STATUS_INVALID, "%s was sent %u times, once is allowed", single_params[i], times);
	}
	return STATUS_OK;
}

/* CONTENT_LENGTH: absent and empty mean not declared; anything but digits is an error. */
static enum status read_declared(struct request *request, const char *text, struct error *error)
{
	uint64_t value = 0;

	if (!text || !*text)
		return STATUS_OK;
	for (const char *c = text; *c; c++) {
		if (*c < '0' || *c > '9' || value > (UINT64_MAX - 9) / 10)
			return error_set(error, STATUS_INVALID, "CONTENT_LENGTH = %.40s: not a number of bytes", text);
		value = value * 10 + (uint64_t)(*c - '0');
	}
	request->declared = value;
	request->has_declared = true;
	return STATUS_OK;
}

static enum status too_large(const struct request *request, uint64_t bytes, struct error *error)
{
	return error_set(error, STATUS_TOO_LARGE, "the body has %s%llu bytes, at most %lld are allowed",
	    request->has_declared ? "" : "at least ", (unsigned long long)bytes,
	    (long long)request->child->conf->front_max_body);
}

/* The parameters are there: who is it, what is wanted, may it be. */
static void start(struct request *request, uint64_t now_ns)
{
	struct child     *child = request->child;
	struct fcgi      *connection = request->connection;
	struct timespec   clock;
	unsigned char     seed[16];
	struct error      error = { 0 }, why;
	enum status       status;
	const char       *path = fcgi_param(connection, "DOCUMENT_URI", NULL);

	clock_gettime(CLOCK_REALTIME, &clock);
	if (getrandom(seed, sizeof seed, 0) != (ssize_t)sizeof seed)
		memcpy(seed, &clock, sizeof seed); /* never seen once the pool is ready; a weak id is better than none */
	struct api_http http = {
		.method = fcgi_param(connection, "REQUEST_METHOD", NULL),
		.path = path ? path : fcgi_param(connection, "SCRIPT_NAME", NULL),
		.authorization = fcgi_param(connection, "HTTP_AUTHORIZATION", NULL),
		.content_type = fcgi_param(connection, "CONTENT_TYPE", NULL),
		.content_length = fcgi_param(connection, "CONTENT_LENGTH", NULL),
		.request_id = fcgi_param(connection, "HTTP_X_REQUEST_ID", NULL),
		.request_timeout = fcgi_param(connection, "HTTP_X_REQUEST_TIMEOUT", NULL),
		.remote_address = fcgi_param(connection, "REMOTE_ADDR", NULL),
		.now = (int64_t)clock.tv_sec,
	};
	status = api_call_create(&child->api, &http, seed, &request->call, &error);
	if (!request->call) {
		request_drop(request, "out of memory");
		return;
	}
	request->state = REQUEST_BODY;
	arm(request, EPOLLIN);
	if (!status)
		status = check_params(request, &error);
	if (read_declared(request, http.content_length, &why) && !status) {
		error = why;
		status = why.status;
	}
	if (!status && request->declared > (uint64_t)child->conf->front_max_body)
		status = too_large(request, request->declared, &error);
	if (status == STATUS_TOO_LARGE) { /* the one answer that does not wait for the body's end */
		request_fail(request, &error, 0, now_ns);
		return;
	}
	if (!status && api_call_wants_body(request->call)) {
		if (!attach_ready(&child->attach, now_ns))
			status = error_set(&error, STATUS_UNAVAILABLE, "the model is not ready; try again soon");
		else if (request->declared && buf_reserve(&request->body, (size_t)request->declared))
			status = error_set(&error, STATUS_NOMEM, "out of memory");
		request->retry_after_s = status == STATUS_UNAVAILABLE ? RETRY_AFTER_AWAY_S : 0;
	}
	if (status)
		request->failure = error; /* answered when the body is through: a proxy reads no answer while it writes */
}

static void read_head(struct request *request, uint64_t now_ns)
{
	struct error error = { 0 };

	switch (fcgi_read_head(request->connection, request->child->scratch, &error)) {
	case STATUS_OK:
		start(request, now_ns);
		return;
	case STATUS_AGAIN:
		return;
	case STATUS_GONE:
		request_drop(request, "gone");
		return;
	default:
		log_warn("connection closed: %s", error.message);
		request_drop(request, "refused");
	}
}

/* ---- body ------------------------------------------------------------------------------------------------------ */

/* One read.  Also in the states after BODY, where only ABORT or a hang-up can come, and in LINGER, which drops the
 * bytes. */
static void read_body(struct request *request, uint64_t now_ns)
{
	struct error error = { 0 };
	size_t       len = 0;
	enum status  status = fcgi_read_body(request->connection, request->child->scratch, &len, &error);

	switch (status) {
	case STATUS_OK:
		break;
	case STATUS_AGAIN:
		return;
	case STATUS_GONE:
		drop_gone(request);
		return;
	default:
		log_warn("request %s closed: %s", api_call_request_id(request->call), error.message);
		request_drop(request, "refused");
		return;
	}
	if (request->state == REQUEST_LINGER) {
		if (fcgi_body_ended(request->connection))
			release(request);
		return;
	}
	if (request->state != REQUEST_BODY)
		return; /* the rest of a body that was refused: dropped */
	request->body_bytes += len;
	if (!request->failure.status && api_call_wants_body(request->call)) {
		status = buf_append(&request->body, request->child->scratch, len);
		if (status == STATUS_LIMIT) {
			too_large(request, request->body_bytes, &error);
			request_fail(request, &error, 0, now_ns);
			return;
		}
		if (status)
			error_set(&request->failure, status, "out of memory");
	}
	if (fcgi_body_ended(request->connection))
		dispatch(request, now_ns);
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

/* Writes one record if the client can take it, renders more when all has been written, and asks to be called again
 * while anything is left.  One record per turn keeps a child's clients equal. */
void request_flush(struct request *request, uint64_t now_ns)
{
	size_t len;

	if (request->out_at == request->out.len && request->state == REQUEST_STREAM) {
		generate_render(request, now_ns);
		if (request->state == REQUEST_FREE || !request->connection)
			return;
	}
	len = request->out.len - request->out_at;
	if (len > 0) {
		if (len > FCGI_WRITE_MAX)
			len = FCGI_WRITE_MAX;
		if (!fcgi_writable(request->connection)) {
			arm(request, EPOLLIN | EPOLLOUT);
			return;
		}
		if (fcgi_write(request->connection, request->out.data + request->out_at, len)) {
			drop_gone(request);
			return;
		}
		request->progress_ns = now_ns;
		request->out_at += len;
		if (request->out_at < request->out.len) {
			arm(request, EPOLLIN | EPOLLOUT);
			return;
		}
		request->out_at = 0;
		if (request->out.capacity > 4 * CHILD_RENDER_BYTES)
			buf_free(&request->out);
		else
			buf_clear(&request->out);
		generate_written(request);
	}
	if (request->state == REQUEST_FLUSH) {
		if (fcgi_writable(request->connection))
			finish(request, now_ns);
		else
			arm(request, EPOLLIN | EPOLLOUT);
		return;
	}
	/* Level-triggered: with events left to render the descriptor is writable again at once or when the client has
	 * read. */
	arm(request, request->events_at < request->events.len ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* ---- what the loop calls --------------------------------------------------------------------------------------- */

void request_on_ready(struct request *request, uint32_t epoll_events, uint64_t now_ns)
{
	if (request->state == REQUEST_HEAD) {
		if (epoll_events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP))
			request_drop(request, "gone");
		else
			read_head(request, now_ns);
		return;
	}
	if (epoll_events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) {
		drop_gone(request);
		return;
	}
	if (epoll_events & EPOLLIN) {
		uint32_t serial = request->serial;
		read_body(request, now_ns);
		if (request->state == REQUEST_FREE || request->serial != serial || !request->connection)
			return;
	}
	if ((epoll_events & EPOLLOUT) && request->state != REQUEST_LINGER)
		request_flush(request, now_ns);
}

void request_on_job(struct request *request, uint64_t now_ns)
{
	request->in_helper = false;
	if (request->state == REQUEST_ABANDONED) {
		release(request);
		return;
	}
	generate_on_job(request, now_ns);
}

static bool may_ping(const struct request *request)
{
	return request->state >= REQUEST_RESERVE && request->state <= REQUEST_STREAM && !request->in_helper &&
	    request->out_at == request->out.len && request->events_at == request->events.len &&
	    api_call_job(request->call)->stream;
}

static bool is_writing(const struct request *request)
{
	return request->state == REQUEST_FLUSH || request->out_at < request->out.len ||
	    request->events_at < request->events.len;
}

/* Until the request is penstockd's its deadline is watched here, from then on there. */
static bool waits_for_admission(const struct request *request)
{
	return request->answer_by_ns && !request->submitted &&
	    (request->state == REQUEST_RESERVE || request->state == REQUEST_SUBMIT);
}

static uint64_t next_ping(const struct request *request)
{
	return may_ping(request) ? request->progress_ns + ms(request->child->conf->front_keepalive_ms) : UINT64_MAX;
}

uint64_t request_next_time(const struct request *request)
{
	switch (request->state) {
	case REQUEST_FREE:
	case REQUEST_ABANDONED:
		return UINT64_MAX;
	case REQUEST_HEAD:
	case REQUEST_BODY:
	case REQUEST_LINGER:
		return request->deadline_ns;
	default:
		if (is_writing(request))
			return request->progress_ns + ms(request->child->conf->batcher_slow_client_timeout_ms);
		if (waits_for_admission(request) && request->answer_by_ns < next_ping(request))
			return request->answer_by_ns;
		return next_ping(request);
	}
}

void request_on_time(struct request *request, uint64_t now_ns)
{
	struct error error;

	if (now_ns < request_next_time(request))
		return;
	switch (request->state) {
	case REQUEST_HEAD:
		log_warn("connection closed: the FastCGI parameters did not come within %lld ms",
		    (long long)request->child->conf->front_header_timeout_ms);
		request_drop(request, "refused");
		return;
	case REQUEST_BODY:
		error_set(&error, STATUS_REQUEST_TIMEOUT, "the body did not come within %lld ms, %llu bytes of it did",
		    (long long)request->child->conf->front_header_timeout_ms, (unsigned long long)request->body_bytes);
		request_fail(request, &error, 0, now_ns);
		return;
	case REQUEST_LINGER:
		release(request);
		return;
	default:
		if (is_writing(request)) {
			count(request, COUNTER_SLOW_CLIENTS, 1);
			request_drop(request, "slow");
			return;
		}
		if (waits_for_admission(request) && now_ns >= request->answer_by_ns) {
			generate_expire(request, now_ns);
			return;
		}
		request->progress_ns = now_ns;
		if (!api_call_ping(request->call, &request->out) && request->out.len > 0) {
			count(request, COUNTER_KEEPALIVES, 1);
			request_flush(request, now_ns);
		}
	}
}
