/* bench_report.c: owns the tables and the JSON and CSV files.  Does not compute a figure.  Invariant: the names are those of
 * `vllm bench serve`, so that what reads its results reads these. */
#include "config.h"

#include "tools/bench_report.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const metric_titles[BENCH_METRIC_COUNT] = { "Time to First Token", "Time per Output Token (excl. 1st token)",
	"Inter-token Latency", "End-to-end Latency" };

void bench_report_load(const struct bench_run *run, char *ret_text, size_t size)
{
	char rate[32] = "";

	if (run->timed)
		snprintf(rate, sizeof rate, "trace");
	else if (isfinite(run->rate))
		snprintf(rate, sizeof rate, "%g req/s", run->rate);
	if (run->concurrency)
		snprintf(ret_text, size, "%s%s%u stream%s", rate, *rate ? ", " : "", run->concurrency, run->concurrency > 1 ? "s" : "");
	else
		snprintf(ret_text, size, "%s", *rate ? rate : "all at once");
}

/* ---- standard output ------------------------------------------------------------------------------------------------- */

enum { TABLE_WIDTH = 50, TABLE_NAME = 40 };

static void print_title(const char *title, char fill)
{
	int len = (int)strlen(title), left = len < TABLE_WIDTH ? (TABLE_WIDTH - len) / 2 : 0;

	for (int i = 0; i < left; i++)
		putchar(fill);
	fputs(title, stdout);
	for (int i = left + len; i < TABLE_WIDTH; i++)
		putchar(fill);
	putchar('\n');
}

static void print_whole(const char *name, uint64_t value) { printf("%-*s %-10" PRIu64 "\n", TABLE_NAME, name, value); }
static void print_real(const char *name, double value) { printf("%-*s %-10.2f\n", TABLE_NAME, name, value); }

static void print_failures(const struct bench_figures *figures)
{
	for (unsigned i = 0; i < figures->failure_count; i++) {
		const struct bench_failures *failure = &figures->failures[i];
		char                         name[TABLE_NAME];

		if (failure->http)
			snprintf(name, sizeof name, "  %s %d:", bench_outcome_name(failure->outcome), failure->http);
		else
			snprintf(name, sizeof name, "  %s:", bench_outcome_name(failure->outcome));
		printf("%-*s %-10u %s\n", TABLE_NAME, name, failure->count, failure->message);
	}
}

static void print_metric(const struct bench_options *options, enum bench_metric metric, const struct bench_summary *summary)
{
	char upper[8], name[TABLE_NAME];

	snprintf(upper, sizeof upper, "%s", bench_metric_name(metric));
	for (char *c = upper; *c; c++)
		*c = (char)toupper((unsigned char)*c);
	print_title(metric_titles[metric], '-');
	snprintf(name, sizeof name, "Mean %s (ms):", upper);
	print_real(name, summary->mean);
	snprintf(name, sizeof name, "Median %s (ms):", upper);
	print_real(name, summary->median);
	snprintf(name, sizeof name, "Std %s (ms):", upper);
	print_real(name, summary->std);
	for (unsigned p = 0; p < options->percentile_count; p++) {
		snprintf(name, sizeof name, "P%g %s (ms):", options->percentiles[p], upper);
		print_real(name, summary->percentiles[p]);
	}
}

void bench_report_run(const struct bench_report *report, const struct bench_run *run)
{
	const struct bench_figures *figures = &run->figures;

	print_title(run->interrupted ? " Serving Benchmark Result (interrupted) " : " Serving Benchmark Result ", '=');
	if (*run->label)
		printf("%-*s %s\n", TABLE_NAME, "Server:", run->label);
	print_whole("Successful requests:", figures->completed);
	print_whole("Failed requests:", figures->failed);
	print_failures(figures);
	if (figures->cancelled)
		print_whole("Cancelled requests:", figures->cancelled);
	if (figures->interrupted)
		print_whole("Requests not finished:", figures->interrupted);
	if (run->concurrency)
		print_whole("Maximum request concurrency:", run->concurrency);
	if (isfinite(run->rate))
		print_real("Request rate configured (RPS):", run->rate);
	print_real("Benchmark duration (s):", figures->duration_s);
	print_whole("Total input tokens:", figures->input_tokens);
	print_whole("Total generated tokens:", figures->output_tokens);
	if (figures->cached_tokens)
		print_whole("Cached input tokens:", figures->cached_tokens);
	if (figures->without_usage)
		print_whole("Requests without usage (estimated):", figures->without_usage);
	print_real("Request throughput (req/s):", figures->request_throughput);
	if (report->options->has_goals)
		print_real("Request goodput (req/s):", figures->request_goodput);
	print_real("Output token throughput (tok/s):", figures->output_throughput);
	print_real("Peak output token throughput (tok/s):", figures->peak_output_throughput);
	print_whole("Peak concurrent requests:", figures->peak_concurrency);
	print_real("Total token throughput (tok/s):", figures->total_throughput);
	print_real("Latest start of a request (ms late):", figures->lag_max_ms);
	for (unsigned m = 0; m < BENCH_METRIC_COUNT; m++)
		if (report->options->metrics[m])
			print_metric(report->options, (enum bench_metric)m, &figures->metrics[m]);
	print_title("", '=');
	fflush(stdout);
}

void bench_report_sweep(const struct bench_report *report)
{
	printf("%-28s %6s %6s %8s %9s %9s %17s %17s%s\n", "run", "ok", "failed", "req/s", "out tok/s", "tok/s", "TTFT median, mean",
	    "TPOT median, mean", report->options->has_goals ? "  goodput" : "");
	for (unsigned i = 0; i < report->count; i++) {
		const struct bench_run     *run = &report->runs[i];
		const struct bench_figures *figures = &run->figures;
		char                        load[64], name[BENCH_NAME_MAX + 70];

		bench_report_load(run, load, sizeof load);
		snprintf(name, sizeof name, "%s%s%s", run->label, *run->label ? " " : "", load);
		printf("%-28s %6u %6u %8.2f %9.1f %9.1f %8.1f %8.1f %8.2f %8.2f", name, figures->completed, figures->failed,
		    figures->request_throughput, figures->output_throughput, figures->total_throughput,
		    figures->metrics[BENCH_TTFT].median, figures->metrics[BENCH_TTFT].mean, figures->metrics[BENCH_TPOT].median,
		    figures->metrics[BENCH_TPOT].mean);
		if (report->options->has_goals)
			printf(" %8.2f", figures->request_goodput);
		puts(run->interrupted ? "  interrupted" : "");
	}
	fflush(stdout);
}

/* ---- files ----------------------------------------------------------------------------------------------------------- */

static enum status finish_file(FILE *file, const char *path, struct error *error)
{
	bool failed = ferror(file) != 0;

	if (fclose(file) || failed)
		return error_set(error, STATUS_IO, "cannot write %s: %s", path, strerror(errno));
	return STATUS_OK;
}

static void set_real(json_t *object, const char *name, double value) { json_object_set_new(object, name, json_real(value)); }
static void set_whole(json_t *object, const char *name, uint64_t value)
{
	json_object_set_new(object, name, json_integer((json_int_t)value));
}

/* "p99_ttft_ms", "p99.9_ttft_ms". */
static void percentile_name(double p, enum bench_metric metric, char *ret_name, size_t size)
{
	snprintf(ret_name, size, "p%g_%s_ms", p, bench_metric_name(metric));
}

static json_t *detail(const struct bench_result *result)
{
	json_t *object = json_object(), *itls = json_array();

	json_object_set_new(object, "outcome", json_string(bench_outcome_name(result->outcome)));
	if (result->http)
		set_whole(object, "http", (uint64_t)result->http);
	if (result->message)
		json_object_set_new(object, "error", json_string(result->message));
	set_real(object, "due_s", result->due_s);
	set_real(object, "start_s", result->start_s);
	if (result->outcome == BENCH_SUCCESS) {
		set_real(object, "ttft", result->ttft_s);
		set_real(object, "latency", result->e2el_s);
		set_whole(object, "input_len", result->input_tokens);
		set_whole(object, "output_len", result->output_tokens);
		for (uint32_t i = 0; i < result->itl_count; i++)
			json_array_append_new(itls, json_real(result->itl_s[i]));
		json_object_set(object, "itls", itls);
	}
	json_decref(itls);
	return object;
}

static json_t *run_object(const struct bench_options *options, const struct bench_run *run)
{
	const struct bench_figures *figures = &run->figures;
	json_t                     *object = json_object(), *errors = json_array();
	char                        name[64];

	if (*run->label)
		json_object_set_new(object, "label", json_string(run->label));
	json_object_set_new(object, "base_url", json_string(run->url));
	json_object_set_new(object, "backend", json_string(options->chat ? "openai-chat" : "openai"));
	json_object_set_new(object, "model_id", json_string(run->model));
	set_whole(object, "num_prompts", run->count);
	if (isfinite(run->rate))
		set_real(object, "request_rate", run->rate);
	else
		json_object_set_new(object, "request_rate", json_string(run->timed ? "trace" : "inf"));
	set_real(object, "burstiness", options->burstiness);
	json_object_set_new(object, "max_concurrency", run->concurrency ? json_integer(run->concurrency) : json_null());
	json_object_set_new(object, "interrupted", json_boolean(run->interrupted));
	set_real(object, "duration", figures->duration_s);
	set_whole(object, "completed", figures->completed);
	set_whole(object, "failed", figures->failed);
	set_whole(object, "cancelled", figures->cancelled);
	set_whole(object, "unfinished", figures->interrupted);
	set_whole(object, "without_usage", figures->without_usage);
	set_whole(object, "total_input_tokens", figures->input_tokens);
	set_whole(object, "total_output_tokens", figures->output_tokens);
	set_whole(object, "cached_input_tokens", figures->cached_tokens);
	set_whole(object, "text_chunks", figures->chunks);
	set_real(object, "request_throughput", figures->request_throughput);
	json_object_set_new(object, "request_goodput", options->has_goals ? json_real(figures->request_goodput) : json_null());
	set_real(object, "output_throughput", figures->output_throughput);
	set_real(object, "total_token_throughput", figures->total_throughput);
	set_real(object, "max_output_tokens_per_s", figures->peak_output_throughput);
	set_whole(object, "max_concurrent_requests", figures->peak_concurrency);
	set_real(object, "max_start_lag_ms", figures->lag_max_ms);
	for (unsigned m = 0; m < BENCH_METRIC_COUNT; m++) {
		const struct bench_summary *summary = &figures->metrics[m];
		const char                 *metric = bench_metric_name((enum bench_metric)m);

		if (!options->metrics[m])
			continue;
		snprintf(name, sizeof name, "mean_%s_ms", metric);
		set_real(object, name, summary->mean);
		snprintf(name, sizeof name, "median_%s_ms", metric);
		set_real(object, name, summary->median);
		snprintf(name, sizeof name, "std_%s_ms", metric);
		set_real(object, name, summary->std);
		for (unsigned p = 0; p < options->percentile_count; p++) {
			percentile_name(options->percentiles[p], (enum bench_metric)m, name, sizeof name);
			set_real(object, name, summary->percentiles[p]);
		}
	}
	for (unsigned i = 0; i < figures->failure_count; i++) {
		const struct bench_failures *failure = &figures->failures[i];
		json_t                      *one = json_object();

		json_object_set_new(one, "kind", json_string(bench_outcome_name(failure->outcome)));
		if (failure->http)
			set_whole(one, "http", (uint64_t)failure->http);
		set_whole(one, "count", failure->count);
		json_object_set_new(one, "message", json_string(failure->message));
		json_array_append_new(errors, one);
	}
	json_object_set_new(object, "errors", errors);
	if (run->results) {
		json_t *requests = json_array();
		for (size_t i = 0; i < run->count; i++)
			json_array_append_new(requests, detail(&run->results[i]));
		json_object_set_new(object, "requests", requests);
	}
	return object;
}

enum status bench_report_json(const struct bench_report *report, const char *path, struct error *error)
{
	FILE   *file = fopen(path, "w");
	json_t *root, *runs, *metadata;

	if (!file)
		return error_set(error, STATUS_IO, "cannot write %s: %s", path, strerror(errno));
	root = json_object();
	runs = json_array();
	metadata = json_object();
	json_object_set_new(root, "tool", json_string("penstock bench serve " VERSION));
	json_object_set_new(root, "date", json_string(report->date));
	for (unsigned i = 0; i < report->options->metadata.count; i++) {
		const char *text = report->options->metadata.values[i];
		size_t      len = strcspn(text, "=:");
		char        name[BENCH_NAME_MAX];

		snprintf(name, sizeof name, "%.*s", (int)len, text);
		json_object_set_new(metadata, name, json_string(text + len + 1));
	}
	json_object_set_new(root, "metadata", metadata);
	for (unsigned i = 0; i < report->count; i++)
		json_array_append_new(runs, run_object(report->options, &report->runs[i]));
	json_object_set_new(root, "runs", runs);
	(void)json_dumpf(root, file, JSON_INDENT(2) | JSON_REAL_PRECISION(9)); /* the stream remembers a failure */
	fputc('\n', file);
	json_decref(root);
	return finish_file(file, path, error);
}

/* A field of a CSV line; a text that a spreadsheet would compute is marked as text. */
static void csv_text(FILE *file, const char *text)
{
	fputc('"', file);
	if (strchr("=+-@", *text) && *text)
		fputc('\'', file);
	for (; *text; text++) {
		if (*text == '"')
			fputc('"', file);
		fputc(*text, file);
	}
	fputc('"', file);
}

enum status bench_report_csv(const struct bench_report *report, const char *path, struct error *error)
{
	const struct bench_options *options = report->options;
	FILE                       *file = fopen(path, "w");
	char                        name[64];

	if (!file)
		return error_set(error, STATUS_IO, "cannot write %s: %s", path, strerror(errno));
	fputs("label,base_url,model_id,num_prompts,request_rate,max_concurrency,duration,completed,failed,cancelled,total_input_tokens,"
	      "total_output_tokens,cached_input_tokens,request_throughput,request_goodput,output_throughput,total_token_throughput,"
	      "max_output_tokens_per_s,max_concurrent_requests", file);
	for (unsigned m = 0; m < BENCH_METRIC_COUNT; m++) {
		const char *metric = bench_metric_name((enum bench_metric)m);
		if (!options->metrics[m])
			continue;
		fprintf(file, ",mean_%s_ms,median_%s_ms,std_%s_ms", metric, metric, metric);
		for (unsigned p = 0; p < options->percentile_count; p++) {
			percentile_name(options->percentiles[p], (enum bench_metric)m, name, sizeof name);
			fprintf(file, ",%s", name);
		}
	}
	fputc('\n', file);
	for (unsigned i = 0; i < report->count; i++) {
		const struct bench_run     *run = &report->runs[i];
		const struct bench_figures *figures = &run->figures;

		csv_text(file, run->label);
		fputc(',', file);
		csv_text(file, run->url);
		fputc(',', file);
		csv_text(file, run->model);
		fprintf(file, ",%zu,", run->count);
		if (isfinite(run->rate))
			fprintf(file, "%g,", run->rate);
		else
			fputs(run->timed ? "trace," : "inf,", file);
		if (run->concurrency)
			fprintf(file, "%u", run->concurrency);
		fprintf(file, ",%.6f,%u,%u,%u,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.6f,", figures->duration_s, figures->completed,
		    figures->failed, figures->cancelled, figures->input_tokens, figures->output_tokens, figures->cached_tokens,
		    figures->request_throughput);
		if (options->has_goals)
			fprintf(file, "%.6f", figures->request_goodput);
		fprintf(file, ",%.6f,%.6f,%.6f,%u", figures->output_throughput, figures->total_throughput,
		    figures->peak_output_throughput, figures->peak_concurrency);
		for (unsigned m = 0; m < BENCH_METRIC_COUNT; m++) {
			const struct bench_summary *summary = &figures->metrics[m];
			if (!options->metrics[m])
				continue;
			fprintf(file, ",%.6f,%.6f,%.6f", summary->mean, summary->median, summary->std);
			for (unsigned p = 0; p < options->percentile_count; p++)
				fprintf(file, ",%.6f", summary->percentiles[p]);
		}
		fputc('\n', file);
	}
	return finish_file(file, path, error);
}
