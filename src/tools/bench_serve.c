/* bench_serve.c: owns the course of `penstock bench serve`: for each server and each point of the sweep draw requests, warm
 * up, run, compute, print; files at the end.  Does not know HTTP, statistics or formats: those are bench_client.c,
 * bench_stats.c and bench_report.c.
 *
 * Each point of a sweep asks with words of its own, so that no run profits from prompts that an earlier one left in the
 * server's cache; every server gets the same.  Invariant: what was measured is reported, also after Ctrl-C or an error. */
#include "tools/bench_serve.h"

#include "base/clock.h"
#include "base/program.h"
#include "tools/bench_client.h"
#include "tools/bench_report.h"
#include "tools/tool.h"

#include <curl/curl.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#define COMMAND "bench serve"

enum { DESCRIPTORS = 64, DEFAULT_PROMPTS = 1000, PRESET_PROMPTS_MIN = 8, BAR_WIDTH = 24, READY_RETRY_MS = 500 };

/* What streams of random numbers are for: (seed, point of the sweep, purpose). */
enum purpose { PURPOSE_REQUESTS, PURPOSE_ARRIVALS, PURPOSE_WARMUP, PURPOSE_READY, PURPOSES };

struct bench {
	struct bench_options options;
	struct bench_dataset dataset;
	struct bench_report  report;
	char                 api_key[BENCH_NAME_MAX + 1];
	char               **trace_keys; /* by the dataset's key; owned, entries may be NULL */
	char                 url[BENCH_URL_MAX + 1];
	int                  signal_fd;
	const char          *doing; /* for the progress bar */
	bool                 progress;
};

/* ---- keys ------------------------------------------------------------------------------------------------------------- */

static bool good_key(const char *key)
{
	for (const char *c = key; *c; c++)
		if (*c <= ' ' || *c > '~')
			return false;
	return *key && strlen(key) <= BENCH_NAME_MAX;
}

static enum status read_key_file(const char *path, char ret_key[BENCH_NAME_MAX + 1], struct error *error)
{
	char  line[BENCH_NAME_MAX + 3] = "";
	FILE *file = fopen(path, "r");

	if (!file)
		return error_set(error, STATUS_IO, "--api-key-file %s: %s", path, strerror(errno));
	if (!fgets(line, sizeof line, file))
		*line = '\0';
	fclose(file);
	line[strcspn(line, "\r\n")] = '\0';
	if (!good_key(line))
		return error_set(error, STATUS_INVALID, "--api-key-file %s: its first line is no key of 1 to %d printable characters", path,
		    BENCH_NAME_MAX);
	memcpy(ret_key, line, strlen(line) + 1);
	return STATUS_OK;
}

/* Lines "NAME KEY"; # begins a comment.  Every key of the trace that has a name must be there. */
static enum status read_trace_keys(struct bench *bench, struct error *error)
{
	const char *path = bench->options.trace_key_file;
	FILE       *file = fopen(path, "r");
	char        line[BENCH_NAME_MAX + SIM_NAME_MAX + 4];
	unsigned    number = 0;

	if (!file)
		return error_set(error, STATUS_IO, "--trace-key-file %s: %s", path, strerror(errno));
	bench->trace_keys = calloc(bench->dataset.trace.keys.count + 1, sizeof *bench->trace_keys);
	while (bench->trace_keys && fgets(line, sizeof line, file)) {
		char  *key = line + strcspn(line, " \t\r\n");
		size_t i = 0;

		number++;
		if (*line == '#' || key == line)
			continue;
		if (*key)
			*key++ = '\0';
		key += strspn(key, " \t");
		key[strcspn(key, "\r\n")] = '\0';
		if (!good_key(key)) {
			fclose(file);
			return error_set(error, STATUS_INVALID, "--trace-key-file %s:%u: not `NAME API-KEY`", path, number);
		}
		while (i < bench->dataset.trace.keys.count && strcmp(bench->dataset.trace.keys.names[i], line))
			i++;
		if (i < bench->dataset.trace.keys.count && !bench->trace_keys[i])
			bench->trace_keys[i] = strdup(key);
	}
	fclose(file);
	for (size_t i = 0; bench->trace_keys && i < bench->dataset.trace.keys.count; i++)
		if (!bench->trace_keys[i] && *bench->dataset.trace.keys.names[i])
			return error_set(error, STATUS_INVALID, "--trace-key-file %s: no line for the trace's key %.64s", path,
			    bench->dataset.trace.keys.names[i]);
	return bench->trace_keys ? STATUS_OK : error_set(error, STATUS_NOMEM, "out of memory");
}

/* ---- progress --------------------------------------------------------------------------------------------------------- */

static void show_bar(void *context, const struct bench_progress *progress)
{
	struct bench *bench = context;
	char          bar[BAR_WIDTH + 1];
	int           filled = progress->count ? (int)(BAR_WIDTH * progress->ended / progress->count) : BAR_WIDTH;

	memset(bar, ' ', BAR_WIDTH);
	memset(bar, '#', (size_t)filled);
	bar[BAR_WIDTH] = '\0';
	fprintf(stderr, "\r%s [%s] %zu/%zu, %zu running, %zu failed, %.1f pieces/s, %.0f s\033[K", bench->doing, bar, progress->ended,
	    progress->count, progress->started - progress->ended, progress->failed,
	    progress->seconds > 0 ? (double)progress->tokens / progress->seconds : 0, progress->seconds);
	fflush(stderr);
}

static void clear_bar(const struct bench *bench)
{
	if (bench->progress) {
		fputs("\r\033[K", stderr);
		fflush(stderr);
	}
}

/* ---- one run ---------------------------------------------------------------------------------------------------------- */

/* When each of COUNT requests is due.  Intervals are gamma-distributed; their sum is scaled to COUNT / rate, so that the
 * offered load is the one asked for whatever the seed. */
static void make_arrivals(const struct bench_run *run, const struct bench_item *items, double burstiness, struct random random,
    double *ret_due_s)
{
	double at = 0;

	for (size_t i = 0; i < run->count; i++) {
		if (run->timed) {
			ret_due_s[i] = items[i].arrival_s;
			continue;
		}
		at += isfinite(run->rate) ? random_gamma(&random, burstiness, 1 / (run->rate * burstiness)) : 0;
		ret_due_s[i] = at;
	}
	for (size_t i = 0; i < run->count && !run->timed && at > 0; i++)
		ret_due_s[i] *= (double)run->count / run->rate / at;
}

static struct random stream_of(const struct bench *bench, unsigned point, enum purpose purpose)
{
	return random_stream((uint64_t)bench->options.seed, (uint64_t)point * PURPOSES + purpose);
}

/* COUNT requests at once that are not reported; *ret_failure is the first failure, outcome BENCH_SUCCESS if none. */
static enum status send_unmeasured(struct bench *bench, struct bench_client *client, const struct bench_run *run, size_t count,
    struct random random, struct bench_result *ret_failure, struct error *error)
{
	struct bench_plan    plan = { .dataset = &bench->dataset, .concurrency = run->concurrency, .model = run->model,
		.api_keys = (const char *const *)bench->trace_keys, .progress = bench->progress ? show_bar : NULL, .context = bench };
	struct bench_item   *items = NULL;
	struct bench_result *results = NULL;
	struct bench_figures unused;
	double              *due = NULL;
	enum status          status = bench_dataset_draw(&bench->dataset, count, random_u64(&random), &items, &plan.count, error);

	if (status)
		return status;
	results = calloc(plan.count + 1, sizeof *results);
	due = calloc(plan.count + 1, sizeof *due);
	for (size_t i = 0; i < plan.count; i++)
		items[i].cancel_after_s = -1;
	plan.items = items;
	plan.due_s = due;
	status = results && due ? bench_client_run(client, &plan, results, &unused, error)
	                        : error_set(error, STATUS_NOMEM, "out of memory");
	ret_failure->outcome = BENCH_SUCCESS;
	for (size_t i = 0; results && i < plan.count && ret_failure->outcome == BENCH_SUCCESS; i++) {
		if (results[i].outcome == BENCH_SUCCESS)
			continue;
		*ret_failure = results[i];
		results[i].message = NULL; /* the caller's now */
	}
	bench_results_free(results, results ? plan.count : 0);
	free(due);
	free(items);
	return status;
}

/* Asks until an answer comes or the time is over. */
static enum status wait_ready(struct bench *bench, struct bench_client *client, const struct bench_run *run, struct error *error)
{
	uint64_t end = clock_now_ns() + (uint64_t)(bench->options.ready_timeout_s * 1e9);

	bench->doing = "waiting";
	for (;;) {
		struct bench_result failure = { .outcome = BENCH_SUCCESS };
		struct pollfd       signal_waits = { .fd = bench->signal_fd, .events = POLLIN };
		enum status         status = send_unmeasured(bench, client, run, 1, stream_of(bench, 0, PURPOSE_READY), &failure, error);

		if (!status && failure.outcome != BENCH_SUCCESS && clock_now_ns() >= end)
			status = error_set(error, STATUS_UNAVAILABLE, "%s: not ready after %g s: %s: %.300s", run->url,
			    bench->options.ready_timeout_s, bench_outcome_name(failure.outcome), failure.message ? failure.message : "");
		free(failure.message);
		if (status || failure.outcome == BENCH_SUCCESS)
			return status;
		if (poll(&signal_waits, 1, READY_RETRY_MS) > 0)
			return STATUS_CANCELLED;
	}
}

static enum status warm_up(struct bench *bench, struct bench_client *client, const struct bench_run *run, unsigned point,
    struct error *error)
{
	struct bench_result failure = { .outcome = BENCH_SUCCESS };
	enum status         status;

	if (!bench->options.warmups)
		return STATUS_OK;
	bench->doing = "warming up";
	status = send_unmeasured(bench, client, run, (size_t)bench->options.warmups, stream_of(bench, point, PURPOSE_WARMUP), &failure,
	    error);
	clear_bar(bench);
	if (!status && failure.outcome != BENCH_SUCCESS)
		fprintf(stderr, "penstock %s: a warm-up request failed: %s: %s\n", COMMAND, bench_outcome_name(failure.outcome),
		    failure.message ? failure.message : "");
	free(failure.message);
	return status;
}

/* STATUS_CANCELLED: interrupted, *run tells what there is. */
static enum status run_point(struct bench *bench, struct bench_client *client, struct bench_run *run, unsigned point,
    struct error *error)
{
	const struct bench_options *options = &bench->options;
	struct bench_plan    plan = { .dataset = &bench->dataset, .concurrency = run->concurrency, .model = run->model,
		.api_keys = (const char *const *)bench->trace_keys, .progress = bench->progress ? show_bar : NULL, .context = bench };
	struct random        random = stream_of(bench, point, PURPOSE_REQUESTS);
	struct bench_item   *items = NULL;
	double              *due = NULL;
	struct bench_result *results = NULL;
	struct error         why;
	enum status          status = warm_up(bench, client, run, point, error), computed;
	char                 doing[BENCH_NAME_MAX + 64], load[64];

	if (!status)
		status = bench_dataset_draw(&bench->dataset, run->count, random_u64(&random), &items, &run->count, error);
	if (status)
		return status;
	due = calloc(run->count + 1, sizeof *due);
	results = calloc(run->count + 1, sizeof *results);
	if (!due || !results) {
		status = error_set(error, STATUS_NOMEM, "out of memory");
		goto fail;
	}
	make_arrivals(run, items, options->burstiness, stream_of(bench, point, PURPOSE_ARRIVALS), due);
	bench_report_load(run, load, sizeof load);
	snprintf(doing, sizeof doing, "%s%s%s", run->label, *run->label ? " " : "", load);
	bench->doing = doing;
	plan.items = items;
	plan.count = run->count;
	plan.due_s = due;
	status = bench_client_run(client, &plan, results, &run->figures, error);
	run->interrupted = status == STATUS_CANCELLED;
	clear_bar(bench);
	computed = bench_figures_make(results, run->count, run->figures.duration_s, options->percentiles, options->percentile_count,
	    &options->goals, &run->figures, status ? &why : error);
	bench->report.count += !computed; /* the run is in the list now */
	if (!computed)
		bench_report_run(&bench->report, run);
	if (!status)
		status = computed;
	if (!computed && options->save_detailed) {
		run->results = results;
		results = NULL;
	}
fail:
	bench_results_free(results, results ? run->count : 0);
	free(due);
	free(items);
	return status;
}

/* ---- the sweep -------------------------------------------------------------------------------------------------------- */

static unsigned point_count(const struct bench_options *options)
{
	unsigned most = options->rates.count > options->concurrencies.count ? options->rates.count : options->concurrencies.count;

	return most ? most : 1;
}

/* A list's value for a point: the only one, or its own. */
static double value_at(const struct bench_list *list, unsigned point, double fallback)
{
	return !list->count ? fallback : list->values[list->count > 1 ? point : 0];
}

static void describe_run(const struct bench *bench, unsigned target, const char *url, const char *model, unsigned point,
    struct bench_run *ret)
{
	const struct bench_options *options = &bench->options;
	double                      prompts = DEFAULT_PROMPTS;

	*ret = (struct bench_run){ .target = target, .url = url };
	if (options->labels.count)
		snprintf(ret->label, sizeof ret->label, "%s", options->labels.values[target]);
	else if (options->urls.count > 1)
		snprintf(ret->label, sizeof ret->label, "%s", url);
	snprintf(ret->model, sizeof ret->model, "%s", model);
	ret->rate = value_at(&options->rates, point, INFINITY);
	ret->concurrency = (uint32_t)value_at(&options->concurrencies, point, 0);
	ret->timed = options->dataset.kind == BENCH_DATASET_TRACE;
	if (options->per_stream)
		prompts = fmax(PRESET_PROMPTS_MIN, (double)options->per_stream * ret->concurrency);
	if (ret->timed)
		prompts = (double)bench->dataset.row_count;
	ret->count = (size_t)value_at(&options->counts, point, prompts);
}

static enum status run_target(struct bench *bench, unsigned target, const char *url, struct error *error)
{
	const struct bench_options *options = &bench->options;
	struct bench_client        *client = NULL;
	char                        model[BENCH_NAME_MAX + 1];
	enum status                 status = bench_client_open(options, url, *bench->api_key ? bench->api_key : NULL, bench->signal_fd,
	    &client, error);

	if (!status && options->model)
		snprintf(model, sizeof model, "%s", options->model);
	else if (!status)
		status = bench_client_find_model(client, model, error);
	for (unsigned point = 0; !status && point < point_count(options); point++) {
		struct bench_run *run = &bench->report.runs[bench->report.count];

		describe_run(bench, target, url, model, point, run);
		if (point == 0 && options->ready_timeout_s > 0) {
			status = wait_ready(bench, client, run, error);
			clear_bar(bench);
		}
		if (!status)
			status = run_point(bench, client, run, point, error);
	}
	bench_client_close(client);
	return status;
}

/* Most requests at a time, for the limit of descriptors. */
static uint64_t most_parallel(const struct bench *bench)
{
	uint64_t most = 0;

	for (unsigned point = 0; point < point_count(&bench->options); point++) {
		struct bench_run run;
		describe_run(bench, 0, "", "", point, &run);
		uint64_t parallel = run.concurrency && run.concurrency < run.count ? run.concurrency : run.count;
		most = parallel > most ? parallel : most;
	}
	return most;
}

static int write_files(const struct bench *bench, int code)
{
	const struct bench_options *options = &bench->options;
	struct error                error;

	if (options->json && bench_report_json(&bench->report, options->json, &error))
		code = tool_fail(COMMAND, &error);
	if (options->csv && bench_report_csv(&bench->report, options->csv, &error))
		code = tool_fail(COMMAND, &error);
	if (options->html && bench_report_html(&bench->report, options->html, &error))
		code = tool_fail(COMMAND, &error);
	return code;
}

/* The first Ctrl-C (or TERM) is read from a descriptor and ends the run in order; the second finds the signals unblocked. */
static bool take_signals(struct bench *bench, sigset_t *ret_old)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, ret_old);
	bench->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return bench->signal_fd >= 0;
}

static void give_signals_back(struct bench *bench, const sigset_t *old)
{
	struct signalfd_siginfo info;

	if (bench->signal_fd >= 0) {
		(void)!read(bench->signal_fd, &info, sizeof info); /* the one that was obeyed */
		close(bench->signal_fd);
	}
	sigprocmask(SIG_SETMASK, old, NULL);
}

static int run_all(struct bench *bench)
{
	const struct bench_options *options = &bench->options;
	struct error                error;
	enum status                 status = STATUS_OK;
	sigset_t                    old;
	int                         code = TOOL_OK;

	if (!take_signals(bench, &old)) {
		error_set(&error, STATUS_IO, "signalfd: %s", strerror(errno));
		code = tool_fail(COMMAND, &error);
	}
	snprintf(bench->url, sizeof bench->url, "http://%s:%d", options->host, (int)options->port);
	for (unsigned target = 0; !status && !code && target < (options->urls.count ? options->urls.count : 1); target++)
		status = run_target(bench, target, options->urls.count ? options->urls.values[target] : bench->url, &error);
	give_signals_back(bench, &old);
	if (bench->report.count > 1)
		bench_report_sweep(&bench->report);
	if (status == STATUS_CANCELLED) {
		fprintf(stderr, "penstock %s: interrupted\n", COMMAND);
		code = TOOL_FAILED;
	} else if (status) {
		code = tool_fail(COMMAND, &error);
	}
	for (unsigned i = 0; i < bench->report.count; i++)
		if (!bench->report.runs[i].figures.completed)
			code = TOOL_FAILED;
	return write_files(bench, code);
}

static enum status prepare(struct bench *bench, struct error *error)
{
	struct bench_options *options = &bench->options;
	time_t                now = time(NULL);
	struct tm             parts;
	enum status           status = STATUS_OK;

	if (options->api_key_file)
		status = read_key_file(options->api_key_file, bench->api_key, error);
	else if (options->api_key && !good_key(options->api_key))
		status = error_set(error, STATUS_INVALID, "--api-key: not 1 to %d printable characters", BENCH_NAME_MAX);
	else if (options->api_key)
		snprintf(bench->api_key, sizeof bench->api_key, "%s", options->api_key);
	if (!status)
		status = bench_dataset_open(&options->dataset, &bench->dataset, error);
	if (!status && options->trace_key_file)
		status = read_trace_keys(bench, error);
	if (!status)
		status = program_need_files(most_parallel(bench) + DESCRIPTORS, "--max-concurrency, --num-prompts", error);
	if (status)
		return status;
	bench->progress = !options->no_progress && isatty(STDERR_FILENO);
	bench->report.options = options;
	gmtime_r(&now, &parts);
	strftime(bench->report.date, sizeof bench->report.date, "%Y-%m-%dT%H:%M:%SZ", &parts);
	bench->report.runs = calloc(BENCH_RUNS_MAX, sizeof *bench->report.runs);
	if (!bench->report.runs || curl_global_init(CURL_GLOBAL_DEFAULT))
		return error_set(error, STATUS_NOMEM, "out of memory");
	return STATUS_OK;
}

int bench_serve(int argc, char **argv)
{
	struct bench bench = { .signal_fd = -1 };
	struct error error;
	int          code;

	if (bench_options_parse(argc, argv, &bench.options, &code)) {
		if (prepare(&bench, &error))
			code = tool_fail(COMMAND, &error);
		else
			code = run_all(&bench);
		curl_global_cleanup();
	}
	for (unsigned i = 0; bench.report.runs && i < bench.report.count; i++)
		bench_results_free(bench.report.runs[i].results, bench.report.runs[i].count);
	free(bench.report.runs);
	for (size_t i = 0; bench.trace_keys && i < bench.dataset.trace.keys.count; i++)
		free(bench.trace_keys[i]);
	free(bench.trace_keys);
	bench_dataset_close(&bench.dataset);
	bench_options_free(&bench.options);
	return code;
}
