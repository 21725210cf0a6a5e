/* status.c: `penstock status` and `penstock drain`: what an operator asks a running penstockd.
 *
 * Status reads the header and metrics objects, which works while penstockd is too busy to talk, and asks on the control
 * socket whether somebody still answers; drain only uses the socket.  Nothing here can disturb the daemon: the objects
 * are mapped read-only. */
#include "base/clock.h"
#include "base/conf.h"
#include "ipc/control.h"
#include "ipc/header.h"
#include "ipc/metrics.h"
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_TIMEOUT_MS = 2000 };

static const char status_help[] =
    "usage: penstock status [--config FILE] [--json]\n"
    "\n"
    "Shows state, requests, KV cache and speed of the instance of FILE (default " PENSTOCK_CONF ").\n"
    "Exit status 0: ready; 1: anything else.\n";

static const char drain_help[] =
    "usage: penstock drain [--config FILE]\n"
    "\n"
    "Tells penstockd to refuse new requests, finish the running ones (at most batcher.drain_timeout_ms) and end.\n";

static const struct option options[] = {
	{ "config", required_argument, NULL, 'c' },
	{ "json", no_argument, NULL, 'j' },
	{ "help", no_argument, NULL, 'h' },
	{ NULL, 0, NULL, 0 },
};

/* Sends TYPE on the control socket and waits for the one answer. */
static enum status ask(const struct conf *conf, enum control_type type, struct control_message *ret, struct error *error)
{
	struct control_message message;
	char                   path[CONF_TEXT_MAX + 16];
	int                    fd, fds[CONTROL_FDS_MAX], fd_count = 0;
	enum status            status;

	conf_control_socket(conf, path, sizeof path);
	status = control_connect(path, ANSWER_TIMEOUT_MS, &fd, error);
	if (status)
		return status;
	memset(&message, 0, sizeof message);
	message.pid = (uint32_t)getpid();
	status = control_send(fd, &message, type, NULL, 0);
	if (status) {
		error_set(error, status, "%s: cannot send: %s", path, status_text(status));
		goto out;
	}
	for (uint64_t end = clock_now_ns() + ANSWER_TIMEOUT_MS * CLOCK_NS_PER_MS;;) {
		struct pollfd ready = { .fd = fd, .events = POLLIN };
		uint64_t      now = clock_now_ns();

		if (now >= end || poll(&ready, 1, (int)((end - now) / CLOCK_NS_PER_MS) + 1) == 0) {
			status = error_set(error, STATUS_TIMEOUT, "%s: no answer within %d ms", path, ANSWER_TIMEOUT_MS);
			break;
		}
		status = control_receive(fd, ret, fds, &fd_count, error);
		for (int i = 0; i < fd_count; i++)
			close(fds[i]);
		if (status == STATUS_GONE)
			error_set(error, status, "%s: penstockd closed the connection without an answer", path);
		if (status != STATUS_AGAIN)
			break;
	}
	if (!status && ret->type == CONTROL_REFUSE)
		status = error_set(error, ret->status ? (enum status)ret->status : STATUS_UNAVAILABLE, "penstockd refuses: %.255s",
		    ret->text);
out:
	close(fd);
	return status;
}

/* What both outputs show. */
struct report {
	const char *state; /* loading, ready, draining, stopped, hung, gone */
	bool        answers;
	char        words[256]; /* of the control socket: the daemon's own text, or why there is none */
	double      uptime_s, heartbeat_age_s;
	double      tokens_per_s;      /* since the start */
	double      step_tokens_per_s; /* of the time spent in steps */
	uint64_t    values[METRIC_COUNT];
};

/* ANSWERS: the control socket does.  A dead process leaves a fresh heartbeat behind, so its pid is looked at too. */
static const char *state_word(const struct header_shared *header, const struct conf *conf, bool answers, uint64_t now_ns)
{
	if (!answers && header->pid > 0 && kill((pid_t)header->pid, 0) < 0 && errno == ESRCH)
		return "gone";
	if (header_alive(header, now_ns, (uint64_t)conf->batcher_watchdog_ms * CLOCK_NS_PER_MS)) {
		switch (atomic_load_explicit(&header->state, memory_order_acquire)) {
		case HEADER_LOADING:
			return "loading";
		case HEADER_READY:
			return "ready";
		case HEADER_DRAINING:
			return "draining";
		default:
			return "stopped";
		}
	}
	return atomic_load_explicit(&header->state, memory_order_acquire) == HEADER_STOPPED ? "stopped" : "hung";
}

static void fill_report(const struct conf *conf, const struct header_shared *header, const struct metrics *metrics,
    struct report *ret)
{
	uint64_t               now = clock_now_ns(), beat;
	struct control_message answer;
	struct error           why;

	memset(ret, 0, sizeof *ret);
	for (unsigned i = 0; i < METRIC_COUNT; i++)
		ret->values[i] = metrics_get(metrics, (enum metric)i);
	beat = atomic_load_explicit(&header->heartbeat_ns, memory_order_acquire);
	ret->heartbeat_age_s = beat && now > beat ? (double)(now - beat) / 1e9 : 0;
	ret->uptime_s = difftime(time(NULL), (time_t)header->start_time_s);
	if (ret->uptime_s > 0)
		ret->tokens_per_s = (double)ret->values[METRIC_generated_tokens_total] / ret->uptime_s;
	if (ret->values[METRIC_step_time_ns_total])
		ret->step_tokens_per_s =
		    (double)ret->values[METRIC_generated_tokens_total] * 1e9 / (double)ret->values[METRIC_step_time_ns_total];
	ret->answers = !ask(conf, CONTROL_STATUS, &answer, &why);
	ret->state = state_word(header, conf, ret->answers, now);
	snprintf(ret->words, sizeof ret->words, "%.255s", ret->answers ? answer.text : why.message);
}

static void print_json(const struct conf *conf, const struct header_shared *header, const struct report *report)
{
	json_t *counters = json_object();
	json_t *root;

	for (unsigned i = 0; i < METRIC_COUNT; i++)
		json_object_set_new(counters, metrics_id((enum metric)i), json_integer((json_int_t)report->values[i]));
	root = json_pack("{s:s, s:s, s:b, s:s, s:I, s:f, s:f, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:o}",
	    "instance", conf->service_instance, "state", report->state, "answers", (int)report->answers, "message", report->words,
	    "pid", (json_int_t)header->pid, "uptime_s", report->uptime_s, "heartbeat_age_s", report->heartbeat_age_s,
	    "model", header->model_name, "architecture", header->architecture, "max_context", (json_int_t)header->max_context,
	    "max_running", (json_int_t)header->max_running, "max_queued", (json_int_t)header->max_queued,
	    "kv_tokens", (json_int_t)header->kv_tokens, "tokens_per_s", report->tokens_per_s,
	    "step_tokens_per_s", report->step_tokens_per_s, "metrics", counters);
	json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(root);
}

static double percent(uint64_t part, uint64_t whole) { return whole ? 100.0 * (double)part / (double)whole : 0; }

static void print_text(const struct conf *conf, const struct header_shared *header, const struct report *report)
{
	const uint64_t *v = report->values;
	long            up = (long)report->uptime_s;

	printf("instance   %s\n", conf->service_instance);
	printf("state      %s, heartbeat %.1f s ago%s%s\n", report->state, report->heartbeat_age_s, *report->words ? "; " : "",
	    report->words);
	printf("process    pid %" PRId64 ", up %ld d %02ld:%02ld:%02ld\n", header->pid, up / 86400, up / 3600 % 24, up / 60 % 60,
	    up % 60);
	printf("model      %s (%s), context %u tokens\n", *header->model_name ? header->model_name : "not loaded yet",
	    *header->architecture ? header->architecture : "unknown", header->max_context);
	printf("requests   %" PRIu64 " running (of %u), %" PRIu64 " waiting (of %u), %" PRIu64 " paused\n",
	    v[METRIC_sequences_running], header->max_running, v[METRIC_sequences_waiting], header->max_queued,
	    v[METRIC_sequences_paused]);
	printf("           %" PRIu64 " submitted, %" PRIu64 " finished, %" PRIu64 " cancelled, %" PRIu64 " failed, ",
	    v[METRIC_requests_total], v[METRIC_requests_finished_total], v[METRIC_requests_cancelled_total],
	    v[METRIC_requests_failed_total]);
	printf("%" PRIu64 " rejected\n", v[METRIC_requests_rejected_total]);
	printf("KV cache   %" PRIu64 " of %" PRIu64 " blocks in use (%.1f %%), %" PRIu64 " tokens in all\n", v[METRIC_kv_blocks_used],
	    v[METRIC_kv_blocks_total], percent(v[METRIC_kv_blocks_used], v[METRIC_kv_blocks_total]), header->kv_tokens);
	printf("tokens     %" PRIu64 " generated, %" PRIu64 " of prompts\n", v[METRIC_generated_tokens_total],
	    v[METRIC_prompt_tokens_total]);
	printf("speed      %.1f tokens/s since the start, %.1f while stepping\n", report->tokens_per_s,
	    report->step_tokens_per_s);
	printf("steps      %" PRIu64 ", the last one %.2f ms, %.1f %% overhead\n", v[METRIC_steps_total],
	    (double)atomic_load_explicit(&header->step_time_ns, memory_order_relaxed) / 1e6,
	    percent(v[METRIC_overhead_time_ns_total], v[METRIC_step_time_ns_total]));
	printf("fronts     %" PRIu64 " children attached, %" PRIu64 " slots in use\n", v[METRIC_lanes_attached],
	    v[METRIC_slots_in_use]);
}

/* Common to both commands; false means: return *ret_code. */
static bool parse(const char *command, const char *help, int argc, char **argv, struct conf *ret, bool *ret_json, int *ret_code)
{
	const char *path = NULL;
	int         c;

	*ret_code = TOOL_OK;
	while ((c = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
		switch (c) {
		case 'c':
			path = optarg;
			break;
		case 'j':
			if (ret_json) {
				*ret_json = true;
				break;
			} /* fall through */
		default:
			*ret_code = tool_usage(command, "wrong option");
			return false;
		case 'h':
			fputs(help, stdout);
			return false;
		}
	}
	if (optind < argc) {
		*ret_code = tool_usage(command, "unexpected argument %s", argv[optind]);
		return false;
	}
	*ret_code = TOOL_FAILED;
	return tool_load_conf(command, path, ret);
}

int tool_status(int argc, char **argv)
{
	struct conf    conf;
	struct header  header;
	struct metrics metrics;
	struct report  report;
	struct error   error;
	bool           json = false;
	int            code;

	if (!parse("status", status_help, argc, argv, &conf, &json, &code))
		return code;
	if (header_open(conf.service_instance, &header, &error)) {
		if (json)
			printf("{\"instance\": \"%s\", \"state\": \"gone\"}\n", conf.service_instance);
		return tool_fail("status", &error);
	}
	if (metrics_open(conf.service_instance, &metrics, &error)) {
		header_close(&header);
		return tool_fail("status", &error);
	}
	fill_report(&conf, header.shared, &metrics, &report);
	if (json)
		print_json(&conf, header.shared, &report);
	else
		print_text(&conf, header.shared, &report);
	metrics_close(&metrics);
	header_close(&header);
	return strcmp(report.state, "ready") ? TOOL_FAILED : TOOL_OK;
}

int tool_drain(int argc, char **argv)
{
	struct conf            conf;
	struct control_message answer;
	struct error           error;
	int                    code;

	if (!parse("drain", drain_help, argc, argv, &conf, NULL, &code))
		return code;
	if (ask(&conf, CONTROL_DRAIN, &answer, &error))
		return tool_fail("drain", &error);
	printf("%.255s\n", *answer.text ? answer.text : "draining");
	return TOOL_OK;
}
