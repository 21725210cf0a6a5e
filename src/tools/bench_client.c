/* bench_client.c: owns the sockets of one server, the event loop of a run and the times that are taken.  Does not know what a
 * stream's bytes mean (bench_stream.c) nor what the results are for (bench_stats.c).
 *
 * A call is one request on its way.  It is made ahead of its time (its body may be megabytes), started when it is due and
 * the run has a free place, and ended by libcurl, by a deadline of ours (cancel_after_s; LINGER_NS after [DONE], for
 * servers that never close the body), or by Ctrl-C.
 *
 * Invariant: every request of a run ends exactly once, in finish(), with one outcome; and the loop always has something that
 * will wake it: a socket with libcurl's time-out, a deadline, or the next request's time. */
#include "config.h"

#include "tools/bench_client.h"

#include "api/json_text.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "tools/bench_body.h"
#include "tools/bench_stream.h"

#include <curl/curl.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LINGER_NS (2 * CLOCK_NS_PER_S)
#define PROGRESS_NS (100 * CLOCK_NS_PER_MS)

enum {
	EVENTS = 64,
	BODY_KEPT = 4096,           /* of an answer that is no stream, for the message */
	BODY_MAX = 1 << 20,         /* such an answer is broken off beyond this */
	HEADERS_BYTES_MAX = 1 << 18,
	MODELS_MAX = 1 << 22        /* bytes of GET /v1/models */
};

struct call {
	struct bench_client *client;
	CURL                *easy;
	struct curl_slist   *headers; /* owned, NULL: the client's */
	size_t               index;   /* of the request; and of the call in run.calls */
	size_t               place;
	char                *body;
	struct bench_stream  stream;
	struct buf           other;   /* the beginning of an answer that is no stream */
	size_t               other_len, header_len;
	long                 http;
	bool                 is_stream, known; /* what the answer is, once its first byte came */
	uint64_t             start_ns, deadline_ns; /* UINT64_MAX = none */
	enum status          failure; /* of the stream */
	struct error         error;
	char                 words[CURL_ERROR_SIZE];
};

struct bench_client {
	const struct bench_options *options;
	char               *url, *models_url;
	struct curl_slist  *headers, *headers_without_key;
	CURLM              *multi;
	int                 epoll, timer, signal_fd;
	uint64_t            curl_ns; /* when libcurl wants to be called; UINT64_MAX = not */
	struct run         *run;     /* the one in progress */
};

struct run {
	const struct bench_plan *plan;
	struct bench_result     *results;
	struct call            **calls; /* on their way: the first ACTIVE */
	struct call             *ready; /* made, not started: request NEXT */
	size_t                   active, capacity, next, ended, failed, peak;
	uint64_t                 begun_ns, room_ns, deadline_ns, progress_ns, ended_ns, pieces;
	double                   lag_max_ms;
};

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

static void call_free(struct call *call)
{
	if (!call)
		return;
	curl_easy_cleanup(call->easy);
	curl_slist_free_all(call->headers);
	free(call->body);
	bench_stream_free(&call->stream);
	buf_free(&call->other);
	free(call);
}

/* What the answer is, at its first byte. */
static void look(struct call *call)
{
	const char *type = NULL;

	call->known = true;
	curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &call->http);
	curl_easy_getinfo(call->easy, CURLINFO_CONTENT_TYPE, &type);
	call->is_stream = call->http == 200 && type && !strncasecmp(type, "text/event-stream", 17);
}

/* libcurl's write function: anything but LEN breaks the transfer off. */
static size_t on_body(char *bytes, size_t size, size_t count, void *context)
{
	struct call *call = context;
	uint64_t     now = clock_now_ns();
	size_t       len = size * count, room;
	uint32_t     before = call->stream.chunks;

	if (!len)
		return 0;
	if (!call->known)
		look(call);
	if (!call->is_stream) {
		room = BODY_KEPT - call->other.len;
		(void)buf_append(&call->other, bytes, len < room ? len : room); /* for a message only */
		call->other_len += len;
		return call->other_len > BODY_MAX ? 0 : len;
	}
	call->failure = bench_stream_push(&call->stream, bytes, len, now, &call->error);
	if (call->client->run)
		call->client->run->pieces += call->stream.chunks - before;
	if (call->failure)
		return 0;
	if (call->stream.done && now + LINGER_NS < call->deadline_ns) {
		call->deadline_ns = now + LINGER_NS;
		if (call->client->run && call->deadline_ns < call->client->run->deadline_ns)
			call->client->run->deadline_ns = call->deadline_ns;
	}
	return len;
}

static size_t on_header(char *bytes, size_t size, size_t count, void *context)
{
	struct call *call = context;

	(void)bytes;
	call->header_len += size * count;
	return call->header_len > HEADERS_BYTES_MAX ? 0 : size * count;
}

/* Options that every transfer has. */
static CURL *make_easy(const struct bench_client *client, const char *url, double timeout_s)
{
	const struct bench_options *options = client->options;
	CURL                       *easy = curl_easy_init();

	if (!easy)
		return NULL;
	curl_easy_setopt(easy, CURLOPT_URL, url);
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(easy, CURLOPT_PROXY, "");
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_USERAGENT, "penstock-bench/" VERSION);
	curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)ceil(options->connect_timeout_s * 1e3));
	curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)ceil(timeout_s * 1e3));
	if (options->cacert)
		curl_easy_setopt(easy, CURLOPT_CAINFO, options->cacert);
	if (options->insecure) {
		curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
		curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
	}
	return easy;
}

/* LIST with one more line; NULL (and LIST freed) when out of memory. */
static struct curl_slist *add_header(struct curl_slist *list, const char *line)
{
	struct curl_slist *longer = curl_slist_append(list, line);

	if (!longer)
		curl_slist_free_all(list);
	return longer;
}

static struct curl_slist *with_key(const struct curl_slist *plain, const char *api_key)
{
	char               line[BENCH_NAME_MAX + 32];
	struct curl_slist *list;

	snprintf(line, sizeof line, "Authorization: Bearer %s", api_key);
	list = curl_slist_append(NULL, line);
	for (; list && plain; plain = plain->next)
		list = add_header(list, plain->data);
	return list;
}

static enum status call_make(struct bench_client *client, const struct bench_plan *plan, size_t index, struct call **ret,
    struct error *error)
{
	const struct bench_item *item = &plan->items[index];
	const char              *key = plan->api_keys ? plan->api_keys[item->key] : NULL;
	struct call             *call = calloc(1, sizeof *call);
	enum status              status;
	size_t                   len = 0;

	if (!call)
		return error_set(error, STATUS_NOMEM, "out of memory");
	call->client = client;
	call->index = index;
	call->deadline_ns = UINT64_MAX;
	bench_stream_init(&call->stream);
	buf_init(&call->other, BODY_KEPT);
	status = bench_body_make(client->options, plan->dataset, item, plan->model, &call->body, &len, error);
	if (status) {
		call_free(call);
		return status;
	}
	call->easy = make_easy(client, client->url, client->options->request_timeout_s);
	if (key)
		call->headers = with_key(client->headers_without_key, key);
	if (!call->easy || (key && !call->headers)) {
		call_free(call);
		return error_set(error, STATUS_NOMEM, "out of memory");
	}
	curl_easy_setopt(call->easy, CURLOPT_HTTPHEADER, key ? call->headers : client->headers);
	curl_easy_setopt(call->easy, CURLOPT_POST, 1L);
	curl_easy_setopt(call->easy, CURLOPT_POSTFIELDS, call->body);
	curl_easy_setopt(call->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len);
	curl_easy_setopt(call->easy, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(call->easy, CURLOPT_WRITEDATA, call);
	curl_easy_setopt(call->easy, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(call->easy, CURLOPT_HEADERDATA, call);
	curl_easy_setopt(call->easy, CURLOPT_ERRORBUFFER, call->words);
	curl_easy_setopt(call->easy, CURLOPT_PRIVATE, (char *)call);
	*ret = call;
	return STATUS_OK;
}

/* ---- outcomes ------------------------------------------------------------------------------------------------------- */

void bench_clean_text(char *text)
{
	size_t len = strlen(text), to = 0;

	for (size_t at = 0; at < len;) {
		uint32_t code;
		int      n = utf8_decode(text + at, len - at, &code);

		if (n > 0 && code >= 0x20 && (code < 0x7f || code > 0x9f)) {
			memmove(text + to, text + at, (size_t)n);
			to += (size_t)n;
		} else {
			text[to++] = '?';
		}
		at += n > 0 ? (size_t)n : n < 0 ? (size_t)-n : len - at;
	}
	text[to] = '\0';
}

static enum bench_outcome outcome_of(CURLcode code)
{
	switch (code) {
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_RESOLVE_PROXY:
	case CURLE_COULDNT_CONNECT:
		return BENCH_CONNECT;
	case CURLE_SSL_CONNECT_ERROR:
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CERTPROBLEM:
	case CURLE_SSL_CIPHER:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_ISSUER_ERROR:
		return BENCH_TLS;
	case CURLE_OPERATION_TIMEDOUT:
		return BENCH_TIMEOUT;
	case CURLE_OK:
	case CURLE_GOT_NOTHING:
	case CURLE_PARTIAL_FILE:
	case CURLE_RECV_ERROR:
	case CURLE_SEND_ERROR:
		return BENCH_TRUNCATED;
	case CURLE_WRITE_ERROR:
	case CURLE_WEIRD_SERVER_REPLY:
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_BAD_CONTENT_ENCODING:
	case CURLE_HTTP2:
		return BENCH_PROTOCOL;
	default:
		return BENCH_OTHER;
	}
}

/* The message of an answer that is no stream: the server's own words, else its first bytes. */
static void other_words(struct call *call, char *ret_text, size_t size)
{
	bench_stream_error_text(call->other.len ? call->other.data : "", call->other.len, ret_text, size);
	if (!*ret_text && call->other.len)
		snprintf(ret_text, size, "%.120s", call->other.data);
}

static enum bench_outcome judge(struct call *call, CURLcode code, char *ret_text, size_t size)
{
	const char *type = NULL;
	char        words[BENCH_MESSAGE_MAX];

	if (call->failure) {
		snprintf(ret_text, size, "%.200s", call->error.message);
		return call->stream.refused ? BENCH_REFUSED : call->failure == STATUS_NOMEM ? BENCH_OTHER : BENCH_PROTOCOL;
	}
	if (call->stream.done)
		return BENCH_SUCCESS;
	if (code && (code != CURLE_WRITE_ERROR || call->header_len > HEADERS_BYTES_MAX)) {
		snprintf(ret_text, size, "%.200s", call->header_len > HEADERS_BYTES_MAX ? "headers without end"
		    : *call->words ? call->words : curl_easy_strerror(code));
		return outcome_of(code);
	}
	if (!call->known)
		look(call);
	other_words(call, words, sizeof words);
	if (call->http != 200) {
		snprintf(ret_text, size, "HTTP %ld%s%.200s", call->http, *words ? ": " : "", words);
		return BENCH_HTTP;
	}
	if (!call->is_stream) {
		curl_easy_getinfo(call->easy, CURLINFO_CONTENT_TYPE, &type);
		snprintf(ret_text, size, "the answer is %.60s, not text/event-stream%s%.120s", type ? type : "of no type",
		    *words ? ": " : "", words);
		return BENCH_PROTOCOL;
	}
	snprintf(ret_text, size, "the stream ended without [DONE]");
	return BENCH_TRUNCATED;
}

/* Takes the figures of a whole answer over; false when it holds no token. */
static bool take_answer(struct call *call, const struct bench_item *item, struct bench_result *result)
{
	struct bench_stream *stream = &call->stream;
	uint64_t             first = stream->first_ns;

	if (!first && stream->has_usage && stream->output_tokens)
		first = stream->last_ns; /* tokens without text: the end is when the client knew */
	if (!first)
		return false;
	result->ttft_s = (double)(first - call->start_ns) / (double)CLOCK_NS_PER_S;
	result->e2el_s = (double)(stream->last_ns - call->start_ns) / (double)CLOCK_NS_PER_S;
	result->chunks = stream->chunks;
	result->itl_count = stream->chunks ? stream->chunks - 1 : 0;
	result->itl_s = stream->itl_s;
	stream->itl_s = NULL;
	result->has_usage = stream->has_usage;
	result->input_tokens = stream->has_usage ? stream->prompt_tokens : item->input_tokens;
	result->output_tokens = stream->has_usage ? stream->output_tokens : stream->chunks;
	result->cached_tokens = stream->cached_tokens;
	return true;
}

/* The one end of a call.  OUTCOME is BENCH_PENDING where libcurl ended it with CODE. */
static void finish(struct bench_client *client, struct call *call, enum bench_outcome outcome, CURLcode code)
{
	struct run          *run = client->run;
	struct bench_result *result = &run->results[call->index];
	char                 text[BENCH_MESSAGE_MAX] = "";

	run->ended_ns = clock_now_ns();
	curl_multi_remove_handle(client->multi, call->easy);
	if (outcome == BENCH_PENDING || call->stream.done)
		outcome = judge(call, code, text, sizeof text);
	if (outcome == BENCH_SUCCESS && !take_answer(call, &run->plan->items[call->index], result)) {
		outcome = BENCH_EMPTY;
		snprintf(text, sizeof text, "the answer holds no token");
	}
	result->outcome = outcome;
	result->http = (int)call->http;
	bench_clean_text(text);
	if (*text)
		result->message = strdup(text); /* NULL: a failure without words */
	run->failed += outcome > BENCH_INTERRUPTED;
	run->ended++;
	if (run->active == run->capacity)
		run->room_ns = run->ended_ns;
	run->calls[call->place] = run->calls[--run->active];
	run->calls[call->place]->place = call->place;
	call_free(call);
}

/* ---- the loop ------------------------------------------------------------------------------------------------------- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *context, void *known)
{
	struct bench_client *client = context;
	struct epoll_event   event = { .data.fd = fd };

	(void)easy;
	if (what == CURL_POLL_REMOVE) {
		epoll_ctl(client->epoll, EPOLL_CTL_DEL, fd, NULL);
		return 0;
	}
	event.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
	if (epoll_ctl(client->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) && errno == ENOENT)
		epoll_ctl(client->epoll, EPOLL_CTL_ADD, fd, &event);
	curl_multi_assign(client->multi, fd, client); /* known from now on */
	return 0;
}

static int on_timer(CURLM *multi, long timeout_ms, void *context)
{
	struct bench_client *client = context;

	(void)multi;
	client->curl_ns = timeout_ms < 0 ? UINT64_MAX : clock_now_ns() + (uint64_t)timeout_ms * CLOCK_NS_PER_MS;
	return 0;
}

static uint64_t due_ns(const struct run *run, size_t index)
{
	return run->begun_ns + (uint64_t)(run->plan->due_s[index] * (double)CLOCK_NS_PER_S);
}

/* Starts what is due and has a place. */
static enum status start_calls(struct bench_client *client, struct run *run, struct error *error)
{
	while (run->next < run->plan->count && run->active < run->capacity) {
		uint64_t     now = clock_now_ns(), due = due_ns(run, run->next), could = due > run->room_ns ? due : run->room_ns;
		struct call *call;
		enum status  status;

		if (due > now)
			return STATUS_OK;
		if (!run->ready) {
			status = call_make(client, run->plan, run->next, &run->ready, error);
			if (status)
				return status;
		}
		call = run->ready;
		run->ready = NULL;
		call->start_ns = clock_now_ns();
		run->results[run->next].due_s = run->plan->due_s[run->next];
		run->results[run->next].start_s = (double)(call->start_ns - run->begun_ns) / (double)CLOCK_NS_PER_S;
		run->lag_max_ms = fmax(run->lag_max_ms, (double)(call->start_ns - could) / (double)CLOCK_NS_PER_MS);
		if (run->plan->items[run->next].cancel_after_s >= 0) {
			call->deadline_ns = due + (uint64_t)(run->plan->items[run->next].cancel_after_s * (double)CLOCK_NS_PER_S);
			if (call->deadline_ns < run->deadline_ns)
				run->deadline_ns = call->deadline_ns;
		}
		call->place = run->active;
		run->calls[run->active++] = call;
		if (run->active > run->peak)
			run->peak = run->active;
		run->next++;
		if (curl_multi_add_handle(client->multi, call->easy))
			return error_set(error, STATUS_INTERNAL, "libcurl does not take a request");
		if (run->next < run->plan->count) {
			status = call_make(client, run->plan, run->next, &run->ready, error);
			if (status)
				return status;
		}
	}
	return STATUS_OK;
}

/* Ends what has passed its deadline and finds the next one. */
static void check_deadlines(struct bench_client *client, struct run *run)
{
	uint64_t now = clock_now_ns();

	if (now < run->deadline_ns)
		return;
	for (size_t i = run->active; i-- > 0;)
		if (run->calls[i]->deadline_ns <= now)
			finish(client, run->calls[i], BENCH_CANCELLED, CURLE_OK);
	run->deadline_ns = UINT64_MAX;
	for (size_t i = 0; i < run->active; i++)
		if (run->calls[i]->deadline_ns < run->deadline_ns)
			run->deadline_ns = run->calls[i]->deadline_ns;
}

static void reap(struct bench_client *client)
{
	CURLMsg *message;
	int      left;

	while ((message = curl_multi_info_read(client->multi, &left))) {
		char    *call = NULL;
		CURLcode code = message->data.result;

		if (message->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call);
		finish(client, (struct call *)(void *)call, BENCH_PENDING, code);
	}
}

static void show_progress(struct run *run, bool last)
{
	uint64_t              now = clock_now_ns();
	struct bench_progress progress = { run->plan->count, run->next, run->ended, run->failed, run->pieces,
		(double)(now - run->begun_ns) / (double)CLOCK_NS_PER_S };

	if (!run->plan->progress || (!last && now < run->progress_ns))
		return;
	run->progress_ns = now + PROGRESS_NS;
	run->plan->progress(run->plan->context, &progress);
}

/* Sleeps until a socket, a signal or a time, and lets libcurl work.  STATUS_CANCELLED: a signal came. */
static enum status wait_and_work(struct bench_client *client, struct run *run, struct error *error)
{
	struct epoll_event events[EVENTS];
	uint64_t           wake = client->curl_ns < run->deadline_ns ? client->curl_ns : run->deadline_ns;
	struct itimerspec  at = { { 0, 0 }, { 0, 0 } };
	int                running, count;

	if (run->next < run->plan->count && run->active < run->capacity && due_ns(run, run->next) < wake)
		wake = due_ns(run, run->next);
	if (run->plan->progress && run->progress_ns < wake)
		wake = run->progress_ns;
	if (wake != UINT64_MAX) {
		at.it_value.tv_sec = (time_t)(wake / CLOCK_NS_PER_S);
		at.it_value.tv_nsec = (long)(wake % CLOCK_NS_PER_S);
	}
	timerfd_settime(client->timer, TFD_TIMER_ABSTIME, &at, NULL);
	count = epoll_wait(client->epoll, events, EVENTS, wake <= clock_now_ns() ? 0 : -1);
	if (count < 0 && errno != EINTR)
		return error_set(error, STATUS_IO, "epoll_wait: %s", strerror(errno));
	for (int i = 0; i < count; i++) {
		int fd = events[i].data.fd, what;

		if (fd == client->signal_fd)
			return STATUS_CANCELLED;
		if (fd == client->timer) {
			uint64_t expirations;
			(void)!read(client->timer, &expirations, sizeof expirations);
			continue;
		}
		what = (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) | (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
		    (events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
		curl_multi_socket_action(client->multi, fd, what, &running);
	}
	if (client->curl_ns <= clock_now_ns()) {
		client->curl_ns = UINT64_MAX;
		curl_multi_socket_action(client->multi, CURL_SOCKET_TIMEOUT, 0, &running);
	}
	return STATUS_OK;
}

enum status bench_client_run(struct bench_client *client, const struct bench_plan *plan, struct bench_result *results,
    struct bench_figures *ret_figures, struct error *error)
{
	struct run  run = { .plan = plan, .results = results, .deadline_ns = UINT64_MAX };
	enum status status = STATUS_OK;

	run.capacity = plan->concurrency && plan->concurrency < plan->count ? plan->concurrency : plan->count;
	run.calls = calloc(run.capacity ? run.capacity : 1, sizeof *run.calls);
	if (!run.calls)
		return error_set(error, STATUS_NOMEM, "out of memory");
	client->run = &run;
	curl_multi_setopt(client->multi, CURLMOPT_MAXCONNECTS, (long)run.capacity + 1);
	if (plan->count)
		status = call_make(client, plan, 0, &run.ready, error);
	run.begun_ns = run.progress_ns = run.ended_ns = clock_now_ns();
	while (!status && run.ended < plan->count) {
		status = start_calls(client, &run, error);
		if (status)
			break;
		status = wait_and_work(client, &run, error);
		reap(client);
		check_deadlines(client, &run);
		show_progress(&run, false);
	}
	show_progress(&run, true);
	if (status)
		run.ended_ns = clock_now_ns();
	while (run.active)
		finish(client, run.calls[0], BENCH_INTERRUPTED, CURLE_OK);
	ret_figures->duration_s = (double)(run.ended_ns - run.begun_ns) / (double)CLOCK_NS_PER_S;
	ret_figures->peak_concurrency = (uint32_t)run.peak;
	ret_figures->lag_max_ms = run.lag_max_ms;
	call_free(run.ready);
	free(run.calls);
	client->run = NULL;
	return status;
}

/* ---- the client ----------------------------------------------------------------------------------------------------- */

struct small_body { /* of GET /v1/models */
	struct buf  buf;
	enum status status;
};

static size_t on_small_body(char *bytes, size_t size, size_t count, void *context)
{
	struct small_body *body = context;

	body->status = buf_append(&body->buf, bytes, size * count);
	return body->status ? 0 : size * count;
}

/* A blocking transfer looks for Ctrl-C too. */
static int on_blocked(void *context, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up)
{
	const struct bench_client *client = context;
	struct pollfd              waits = { .fd = client->signal_fd, .events = POLLIN };

	(void)total, (void)now, (void)up_total, (void)up;
	return client->signal_fd >= 0 && poll(&waits, 1, 0) > 0;
}

enum status bench_client_find_model(struct bench_client *client, char ret_model[BENCH_NAME_MAX + 1], struct error *error)
{
	struct small_body body = { .status = STATUS_OK };
	char              words[CURL_ERROR_SIZE] = "", text[BENCH_MESSAGE_MAX] = "";
	double            timeout = client->options->connect_timeout_s * 2;
	CURL             *easy = make_easy(client, client->models_url, timeout);
	json_t           *root = NULL;
	const char       *name = NULL;
	long              http = 0;
	enum status       status;
	CURLcode          code;

	if (!easy)
		return error_set(error, STATUS_NOMEM, "out of memory");
	buf_init(&body.buf, MODELS_MAX);
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, client->headers);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_small_body);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, &body);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, words);
	curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_blocked);
	curl_easy_setopt(easy, CURLOPT_XFERINFODATA, client);
	curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
	code = curl_easy_perform(easy);
	curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &http);
	if (code == CURLE_ABORTED_BY_CALLBACK) {
		status = STATUS_CANCELLED;
	} else if (code) {
		status = error_set(error, STATUS_UNAVAILABLE, "GET %.200s: %.200s", client->models_url,
		    body.status ? "more than 4 MB" : *words ? words : curl_easy_strerror(code));
	} else if (http != 200) {
		bench_stream_error_text(body.buf.len ? body.buf.data : "", body.buf.len, text, sizeof text);
		bench_clean_text(text);
		status = error_set(error, STATUS_UNAVAILABLE, "GET %.200s: HTTP %ld%s%s", client->models_url, http,
		    *text ? ": " : "", text);
	} else {
		struct error why;
		if (!json_text_load(body.buf.len ? body.buf.data : "", body.buf.len, BENCH_STREAM_DEPTH_MAX, &root, &why))
			name = json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
		status = STATUS_OK;
		if (!name || !*name || strlen(name) > BENCH_NAME_MAX)
			status = error_set(error, STATUS_INVALID, "GET %.200s: no model in the answer; name one with --model",
			    client->models_url);
		else
			snprintf(ret_model, BENCH_NAME_MAX + 1, "%s", name);
	}
	json_decref(root);
	buf_free(&body.buf);
	curl_easy_cleanup(easy);
	return status;
}

/* The headers of every request, without the key.  "NAME=VALUE" and "NAME: VALUE" are the same. */
static struct curl_slist *make_headers(const struct bench_options *options)
{
	/* No "Expect: 100-continue": some servers let the client wait for it. */
	struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");

	if (list)
		list = add_header(list, "Accept: text/event-stream");
	if (list)
		list = add_header(list, "Expect:");
	for (unsigned i = 0; list && i < options->headers.count; i++) {
		const char *text = options->headers.values[i], *value = text + strcspn(text, "=:") + 1;
		char        line[BENCH_URL_MAX + 8];

		snprintf(line, sizeof line, "%.*s: %s", (int)(value - text - 1), text, value + strspn(value, " "));
		list = add_header(list, line);
	}
	return list;
}

/* BASE without its last slashes and with PATH; "/v1" at the end of BASE is not doubled. */
static char *join_url(const char *base, const char *path)
{
	size_t len = strlen(base);
	char  *url = NULL;

	while (len && base[len - 1] == '/')
		len--;
	if (len > 3 && !memcmp(base + len - 3, "/v1", 3) && !strncmp(path, "/v1/", 4))
		len -= 3;
	return asprintf(&url, "%.*s%s", (int)len, base, path) < 0 ? NULL : url;
}

static bool watch(struct bench_client *client, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	return !epoll_ctl(client->epoll, EPOLL_CTL_ADD, fd, &event);
}

enum status bench_client_open(const struct bench_options *options, const char *url, const char *api_key, int signal_fd,
    struct bench_client **ret, struct error *error)
{
	struct bench_client *client = calloc(1, sizeof *client);

	if (!client)
		return error_set(error, STATUS_NOMEM, "out of memory");
	client->options = options;
	client->signal_fd = signal_fd;
	client->curl_ns = UINT64_MAX;
	client->epoll = epoll_create1(EPOLL_CLOEXEC);
	client->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (client->epoll < 0 || client->timer < 0 || !watch(client, client->timer) || (signal_fd >= 0 && !watch(client, signal_fd))) {
		error_set(error, STATUS_IO, "cannot make an event loop: %s", strerror(errno));
		bench_client_close(client);
		return STATUS_IO;
	}
	client->url = join_url(url, options->endpoint);
	client->models_url = join_url(url, "/v1/models");
	client->headers_without_key = make_headers(options);
	client->headers = api_key ? with_key(client->headers_without_key, api_key) : make_headers(options);
	client->multi = curl_multi_init();
	if (!client->url || !client->models_url || !client->headers_without_key || !client->headers || !client->multi) {
		bench_client_close(client);
		return error_set(error, STATUS_NOMEM, "out of memory");
	}
	curl_multi_setopt(client->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
	curl_multi_setopt(client->multi, CURLMOPT_SOCKETDATA, client);
	curl_multi_setopt(client->multi, CURLMOPT_TIMERFUNCTION, on_timer);
	curl_multi_setopt(client->multi, CURLMOPT_TIMERDATA, client);
	*ret = client;
	return STATUS_OK;
}

void bench_client_close(struct bench_client *client)
{
	if (!client)
		return;
	curl_multi_cleanup(client->multi);
	curl_slist_free_all(client->headers);
	curl_slist_free_all(client->headers_without_key);
	free(client->url);
	free(client->models_url);
	if (client->epoll >= 0)
		close(client->epoll);
	if (client->timer >= 0)
		close(client->timer);
	free(client);
}
