/* top.c: `penstock top`: what penstockd does now, from two readings of its shared memory.
 *
 * Everything shown is a difference: rates over the last interval, percentiles over the last WINDOW intervals.  Header and
 * metrics are opened anew for every reading, so that a restart shows as one and a dead daemon as gone.  Nothing is asked of
 * the daemon. */
#include "api/keys.h"
#include "base/clock.h"
#include "base/conf.h"
#include "ipc/header.h"
#include "ipc/metrics.h"
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 10, GROUPS_SHOWN = 20, NAMES_KEPT = 128 };

static const char help[] =
    "usage: penstock top [--config FILE] [--interval S] [--count N] [--once] [--json]\n"
    "\n"
    "Shows, once a second, what the penstockd of FILE (default " PENSTOCK_CONF ") does: tokens a second, requests by class\n"
    "and key, latencies, batch, KV cache, preemptions.  Rates are those of the last interval, percentiles those of the last\n"
    "10 intervals.\n"
    "\n"
    "  -i, --interval S  seconds between two readings, 0.1 to 60 (default 1)\n"
    "  -n, --count N     end after N screens\n"
    "  -1, --once        the same as --count 1, without moving the cursor\n"
    "  -j, --json        one JSON object a line instead of a screen\n";

/* One reading of everything. */
struct snapshot {
	uint64_t               now_ns, epoch, kv_tokens;
	int64_t                pid, start_time_s;
	enum header_state      state;
	bool                   alive;
	uint32_t               max_running, max_queued;
	char                   model[HEADER_NAME_MAX];
	uint64_t               values[METRIC_COUNT];
	struct metrics_reading histograms[HISTOGRAM_COUNT];
	struct census          census;
};

struct key_name {
	uint64_t key;
	char     name[KEY_NAME_MAX + 1];
};

struct top {
	struct conf     conf;
	bool            json, screen;
	double          interval_s;
	struct snapshot history[WINDOW + 1]; /* the newest last */
	unsigned        count;
	struct key_name names[NAMES_KEPT];
	unsigned        name_count;
};

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static enum status take(const struct conf *conf, struct snapshot *ret, struct error *error)
{
	struct header  header;
	struct metrics metrics;
	enum status    status = header_open(conf->service_instance, &header, error);

	if (status)
		return status;
	status = metrics_open(conf->service_instance, &metrics, error);
	if (status) {
		header_close(&header);
		return status;
	}
	ret->now_ns = clock_now_ns();
	ret->epoch = header.shared->epoch;
	ret->pid = header.shared->pid;
	ret->start_time_s = header.shared->start_time_s;
	ret->state = (enum header_state)atomic_load_explicit(&header.shared->state, memory_order_acquire);
	ret->alive = header_alive(header.shared, ret->now_ns, (uint64_t)conf->batcher_watchdog_ms * CLOCK_NS_PER_MS) &&
	    (kill((pid_t)ret->pid, 0) == 0 || errno == EPERM);
	ret->max_running = header.shared->max_running;
	ret->max_queued = header.shared->max_queued;
	ret->kv_tokens = header.shared->kv_tokens;
	snprintf(ret->model, sizeof ret->model, "%.*s", HEADER_NAME_MAX - 1, header.shared->model_name);
	for (unsigned i = 0; i < METRIC_COUNT; i++)
		ret->values[i] = metrics_get(&metrics, (enum metric)i);
	for (unsigned i = 0; i < HISTOGRAM_COUNT; i++)
		metrics_read(&metrics, (enum histogram)i, &ret->histograms[i]);
	census_read(&metrics.shared->census, &ret->census);
	metrics_close(&metrics);
	header_close(&header);
	return STATUS_OK;
}

/* Adds a reading; one of another process begins the history anew. */
static void add(struct top *top, const struct snapshot *snapshot)
{
	if (top->count > 0 && top->history[top->count - 1].epoch != snapshot->epoch)
		top->count = 0;
	if (top->count == WINDOW + 1)
		memmove(top->history, top->history + 1, WINDOW * sizeof top->history[0]);
	else
		top->count++;
	top->history[top->count - 1] = *snapshot;
}

static const struct snapshot *newest(const struct top *top) { return &top->history[top->count - 1]; }
static const struct snapshot *before(const struct top *top) { return &top->history[top->count > 1 ? top->count - 2 : 0]; }

static uint64_t change(const struct top *top, enum metric id) { return newest(top)->values[id] - before(top)->values[id]; }

static double per_second(const struct top *top, enum metric id)
{
	double seconds = (double)(newest(top)->now_ns - before(top)->now_ns) / 1e9;
	return seconds > 0 ? (double)change(top, id) / seconds : 0;
}

static double quantile(const struct top *top, enum histogram id, double q)
{
	struct metrics_reading window;

	metrics_since(&top->history[0].histograms[id], &newest(top)->histograms[id], &window);
	return metrics_quantile(id, &window, q);
}

/* Mean over the last interval. */
static double mean(const struct top *top, enum histogram id)
{
	struct metrics_reading last;

	metrics_since(&before(top)->histograms[id], &newest(top)->histograms[id], &last);
	return last.total ? (double)last.sum / (double)last.total / (double)metrics_histogram_buckets(id)->divisor : 0;
}

/* The name of a key, from the key file where this user may read it; else its hash, as the fronts' log has it. */
static void key_text(struct top *top, uint64_t key, char ret[KEY_NAME_MAX + 1])
{
	unsigned i = 0;

	if (key == 0) {
		snprintf(ret, KEY_NAME_MAX + 1, "-");
		return;
	}
	while (i < top->name_count && top->names[i].key != key)
		i++;
	if (i == top->name_count) {
		i = i < NAMES_KEPT ? top->name_count++ : 0;
		top->names[i].key = key;
		if (!*top->conf.front_keys_file || keys_name(top->conf.front_keys_file, key, top->names[i].name))
			snprintf(top->names[i].name, sizeof top->names[i].name, "%016" PRIx64, key);
	}
	memcpy(ret, top->names[i].name, sizeof top->names[i].name);
}

/* ---- showing -------------------------------------------------------------------------------------------------------- */

static const char *state_word(const struct snapshot *s)
{
	static const char *const words[] = { "loading", "ready", "draining", "stopped" };

	if (!s->alive)
		return "gone or hung";
	return (unsigned)s->state < sizeof words / sizeof *words ? words[s->state] : "?";
}

static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/* Seconds in a unit that reads well. */
static const char *seconds_text(double seconds, char ret[16])
{
	if (seconds < 0.9995)
		snprintf(ret, 16, "%.*f ms", seconds < 0.01 ? 2 : seconds < 0.1 ? 1 : 0, seconds * 1e3);
	else
		snprintf(ret, 16, "%.*f s", seconds < 10 ? 2 : 1, seconds);
	return ret;
}

static void end_line(const struct top *top) { fputs(top->screen ? "\033[K\n" : "\n", stdout); }

static void print_latency(const struct top *top, const char *name, enum histogram id)
{
	char text[3][16];

	printf("  %-4s p50 %s, p90 %s, p99 %s", name, seconds_text(quantile(top, id, 0.5), text[0]),
	    seconds_text(quantile(top, id, 0.9), text[1]), seconds_text(quantile(top, id, 0.99), text[2]));
}

static void print_groups(struct top *top)
{
	const struct census *census = &newest(top)->census;
	char                 key[KEY_NAME_MAX + 1];

	printf("  class  key                       running  waiting");
	end_line(top);
	for (uint32_t i = 0; i < census->count && i < GROUPS_SHOWN; i++) {
		key_text(top, census->groups[i].key, key);
		printf("  %5d  %-24.24s  %7u  %7u", census->groups[i].priority, key, census->groups[i].running, census->groups[i].waiting);
		end_line(top);
	}
	if (census->count > GROUPS_SHOWN || census->running + census->waiting > 0) {
		printf("  %u more groups", census->count > GROUPS_SHOWN ? census->count - GROUPS_SHOWN : 0);
		end_line(top);
	}
}

static uint64_t guesses_checked(const uint64_t *v) { return v[METRIC_ngram_draft_tokens] + v[METRIC_mtp_draft_tokens]; }

static uint64_t guesses_right(const uint64_t *v)
{
	uint64_t sum = 0;

	for (int id = METRIC_ngram_accepted_1; id <= METRIC_mtp_accepted_7; id++) /* they stand together in metrics.def */
		sum += v[id];
	return sum;
}

/* Nothing while no guess was ever checked. */
static void print_guesses(const struct top *top)
{
	const uint64_t *now = newest(top)->values, *then = before(top)->values;
	uint64_t        checked = guesses_checked(now) - guesses_checked(then), right = guesses_right(now) - guesses_right(then);

	if (guesses_checked(now) == 0)
		return;
	printf("  guesses   %" PRIu64 " checked, %" PRIu64 " right (%.0f %%), since the start %" PRIu64 " of %" PRIu64, checked, right,
	    percent((double)right, (double)checked), guesses_right(now), guesses_checked(now));
	end_line(top);
}

static void print_screen(struct top *top)
{
	const struct snapshot *s = newest(top);
	const uint64_t        *v = s->values;
	long                   up = (long)difftime(time(NULL), (time_t)s->start_time_s);

	if (top->screen)
		fputs("\033[H", stdout);
	printf("penstock %s: %s, %s, process %" PRId64 ", up %ld d %02ld:%02ld:%02ld", top->conf.service_instance, state_word(s),
	    *s->model ? s->model : "no model yet", s->pid, up / 86400, up / 3600 % 24, up / 60 % 60, up % 60);
	end_line(top);
	printf("  tokens/s  %.1f generated, %.1f of prompts; %.1f steps/s", per_second(top, METRIC_generated_tokens_total),
	    per_second(top, METRIC_prompt_tokens_total), per_second(top, METRIC_steps_total));
	end_line(top);
	printf("  requests  %" PRIu64 " running of %u, %" PRIu64 " waiting, %" PRIu64 " paused, %" PRIu64 " reserved; %" PRIu64
	       " inside of %u with %" PRIu64 " tokens",
	    v[METRIC_sequences_running], s->max_running, v[METRIC_sequences_waiting], v[METRIC_sequences_paused],
	    v[METRIC_reservations], v[METRIC_slots_in_use], s->max_running + s->max_queued, v[METRIC_tokens_inside]);
	end_line(top);
	printf("  ended     %" PRIu64 " finished, %" PRIu64 " cancelled, %" PRIu64 " failed, %" PRIu64 " expired, %" PRIu64
	       " rejected in %.1f s",
	    change(top, METRIC_requests_finished_total), change(top, METRIC_requests_cancelled_total),
	    change(top, METRIC_requests_failed_total), change(top, METRIC_expired_deadline) + change(top, METRIC_expired_queue_wait),
	    change(top, METRIC_requests_rejected_total), (double)(s->now_ns - before(top)->now_ns) / 1e9);
	end_line(top);
	print_latency(top, "TTFT", HISTOGRAM_time_to_first_token_seconds);
	end_line(top);
	print_latency(top, "ITL", HISTOGRAM_inter_token_latency_seconds);
	end_line(top);
	print_latency(top, "E2E", HISTOGRAM_e2e_request_latency_seconds);
	end_line(top);
	print_latency(top, "step", HISTOGRAM_step_time_seconds);
	end_line(top);
	printf("  batch     %.1f sequences, %.1f rows a step, budget used to %.0f %%", mean(top, HISTOGRAM_step_sequences),
	    mean(top, HISTOGRAM_step_tokens), 100 * mean(top, HISTOGRAM_step_budget_ratio));
	end_line(top);
	printf("  KV cache  %" PRIu64 " of %" PRIu64 " blocks (%.1f %%); preempted %" PRIu64 " sequences, %" PRIu64
	       " tokens; %" PRIu64 " prompt tokens cached",
	    v[METRIC_kv_blocks_used], v[METRIC_kv_blocks_total],
	    percent((double)v[METRIC_kv_blocks_used], (double)v[METRIC_kv_blocks_total]),
	    v[METRIC_preemptions_total], v[METRIC_preempted_tokens_total], v[METRIC_prompt_tokens_cached_total]);
	end_line(top);
	print_guesses(top);
	print_groups(top);
	if (top->screen)
		fputs("\033[J", stdout);
}

static json_t *latency_json(const struct top *top, enum histogram id)
{
	return json_pack("{s:f, s:f, s:f}", "p50_s", quantile(top, id, 0.5), "p90_s", quantile(top, id, 0.9), "p99_s",
	    quantile(top, id, 0.99));
}

static void print_json(struct top *top)
{
	const struct snapshot *s = newest(top);
	const uint64_t        *v = s->values;
	json_t                *groups = json_array(), *root;
	char                   key[KEY_NAME_MAX + 1];

	for (uint32_t i = 0; i < s->census.count; i++) {
		const struct census_group *group = &s->census.groups[i];

		key_text(top, group->key, key);
		json_array_append_new(groups,
		    json_pack("{s:i, s:s, s:I, s:I}", "class", group->priority, "key", key, "running", (json_int_t)group->running,
		        "waiting", (json_int_t)group->waiting));
	}
	root = json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
	    "instance", top->conf.service_instance, "state", state_word(s), "model", s->model, "pid", (json_int_t)s->pid, "interval_s",
	    (double)(s->now_ns - before(top)->now_ns) / 1e9, "generated_tokens_per_s", per_second(top, METRIC_generated_tokens_total),
	    "prompt_tokens_per_s", per_second(top, METRIC_prompt_tokens_total), "steps_per_s", per_second(top, METRIC_steps_total),
	    "running", (json_int_t)v[METRIC_sequences_running], "waiting", (json_int_t)v[METRIC_sequences_waiting], "paused",
	    (json_int_t)v[METRIC_sequences_paused], "inside", (json_int_t)v[METRIC_slots_in_use], "tokens_inside",
	    (json_int_t)v[METRIC_tokens_inside], "kv_blocks_used", (json_int_t)v[METRIC_kv_blocks_used], "kv_blocks",
	    (json_int_t)v[METRIC_kv_blocks_total], "rejected", (json_int_t)v[METRIC_requests_rejected_total], "expired",
	    (json_int_t)(v[METRIC_expired_deadline] + v[METRIC_expired_queue_wait]), "preemptions",
	    (json_int_t)v[METRIC_preemptions_total], "preempted_tokens", (json_int_t)v[METRIC_preempted_tokens_total],
	    "draft_tokens", (json_int_t)guesses_checked(v), "draft_tokens_accepted", (json_int_t)guesses_right(v));
	json_object_set_new(root, "ttft", latency_json(top, HISTOGRAM_time_to_first_token_seconds));
	json_object_set_new(root, "itl", latency_json(top, HISTOGRAM_inter_token_latency_seconds));
	json_object_set_new(root, "e2e", latency_json(top, HISTOGRAM_e2e_request_latency_seconds));
	json_object_set_new(root, "step", latency_json(top, HISTOGRAM_step_time_seconds));
	json_object_set_new(root, "batch_sequences", json_real(mean(top, HISTOGRAM_step_sequences)));
	json_object_set_new(root, "batch_rows", json_real(mean(top, HISTOGRAM_step_tokens)));
	json_object_set_new(root, "budget_used", json_real(mean(top, HISTOGRAM_step_budget_ratio)));
	json_object_set_new(root, "groups", groups);
	json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(root);
}

/* Readings until COUNT screens were shown (0 = for ever). */
static int watch(struct top *top, int64_t count)
{
	struct timespec interval = { (time_t)top->interval_s, (long)((top->interval_s - (double)(time_t)top->interval_s) * 1e9) };
	struct snapshot snapshot;
	struct error    error;

	if (take(&top->conf, &snapshot, &error))
		return tool_fail("top", &error);
	add(top, &snapshot);
	if (top->screen)
		fputs("\033[H\033[J", stdout);
	for (int64_t shown = 0; count == 0 || shown < count; shown++) {
		while (nanosleep(&interval, &interval) && errno == EINTR)
			;
		interval = (struct timespec){ (time_t)top->interval_s, (long)((top->interval_s - (double)(time_t)top->interval_s) * 1e9) };
		if (take(&top->conf, &snapshot, &error)) {
			if (count || top->json)
				return tool_fail("top", &error);
			printf("%s%s", top->screen ? "\033[H\033[J" : "", error.message);
			end_line(top);
			fflush(stdout);
			continue;
		}
		add(top, &snapshot);
		if (top->json)
			print_json(top);
		else
			print_screen(top);
		if (fflush(stdout))
			return TOOL_FAILED;
	}
	return TOOL_OK;
}

int tool_top(int argc, char **argv)
{
	static const struct option options[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "interval", required_argument, NULL, 'i' },
		{ "count", required_argument, NULL, 'n' },
		{ "once", no_argument, NULL, '1' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct top *top = calloc(1, sizeof *top);
	const char *path = NULL;
	bool        once = false;
	int64_t     count = 0;
	int         c, code = TOOL_USAGE;

	if (!top) {
		fputs("penstock top: no memory\n", stderr);
		return TOOL_FAILED;
	}
	top->interval_s = 1;
	while ((c = getopt_long(argc, argv, "c:i:n:1jh", options, NULL)) != -1) {
		switch (c) {
		case 'c':
			path = optarg;
			break;
		case 'i':
			if (!tool_real("top", "--interval", optarg, 0.1, 60, &top->interval_s))
				goto out;
			break;
		case 'n':
			if (!tool_int("top", "--count", optarg, 1, INT32_MAX, &count))
				goto out;
			break;
		case '1':
			once = true;
			break;
		case 'j':
			top->json = true;
			break;
		case 'h':
			fputs(help, stdout);
			code = TOOL_OK;
			goto out;
		default:
			code = tool_usage("top", "wrong option");
			goto out;
		}
	}
	if (optind < argc) {
		code = tool_usage("top", "unexpected argument %s", argv[optind]);
		goto out;
	}
	code = TOOL_FAILED;
	if (!tool_load_conf("top", path, &top->conf))
		goto out;
	top->screen = !top->json && !once && isatty(STDOUT_FILENO);
	code = watch(top, once ? 1 : count);
out:
	free(top);
	return code;
}
