/* bench_html.c: owns the HTML report: one page that loads nothing: its style, tables and SVG charts are in it.  Does not
 * compute a figure.  Invariant: every text that came from outside is escaped (bench_chart_text). */
#include "tools/bench_chart.h"
#include "tools/bench_report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NOTE_MAX = 64, NAME_MAX_BYTES = BENCH_NAME_MAX + NOTE_MAX + 8 };

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>penstock bench serve</title>\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>\n"
    ":root { --ink: #222; --paper: #fff; --soft: #ddd; --faint: #f4f4f4; }\n"
    "@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #181a1b; --soft: #444; --faint: #232628; } }\n"
    "body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2em auto;"
    " max-width: 86em; padding: 0 1em; }\n"
    "table { border-collapse: collapse; font-variant-numeric: tabular-nums; } .scroll { overflow-x: auto; }\n"
    "th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid var(--soft); white-space: nowrap; }\n"
    "th:first-child, td:first-child, td.text { text-align: left; } tbody tr:hover { background: var(--faint); }\n"
    ".charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26em, 1fr)); gap: 1em; }\n"
    "figure { margin: 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }\n"
    "svg text { font-size: 12px; fill: var(--ink); } svg text.note { font-size: 10px; opacity: .75; }\n"
    ".grid { stroke: var(--soft); stroke-width: 1; } "
    ".line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }\n"
    ".dashed { stroke-dasharray: 5 4; } .dot { fill: currentColor; } .legend { font-size: 13px; margin: .2em 0 1em; }\n"
    ".c0 { color: #0072b2; } .c1 { color: #d55e00; } .c2 { color: #009e73; } .c3 { color: #cc79a7; }\n"
    ".c4 { color: #e69f00; } .c5 { color: #56b4e9; } .c6 { color: #8c6bb1; } .c7 { color: #8c8c8c; }\n"
    "</style></head><body>\n";

/* ---- tables ---------------------------------------------------------------------------------------------------------- */

static void cell(FILE *file, int digits, double value) { fprintf(file, "<td>%.*f</td>", digits, value); }

static void run_name(const struct bench_run *run, char *ret_name, size_t size)
{
	char load[NOTE_MAX];

	bench_report_load(run, load, sizeof load);
	snprintf(ret_name, size, "%s%s%s", run->label, *run->label ? " · " : "", load);
}

static void write_throughput(FILE *file, const struct bench_report *report)
{
	fputs("<h2>Throughput</h2><div class=\"scroll\"><table><thead><tr><th>run</th>"
	      "<th>requests</th><th>successful</th><th>failed</th>"
	      "<th>duration, s</th><th>input tokens</th><th>output tokens</th><th>requests/s</th>", file);
	if (report->options->has_goals)
		fputs("<th>goodput, requests/s</th>", file);
	fputs("<th>output tokens/s</th><th>peak</th><th>total tokens/s</th><th>peak concurrency</th></tr></thead><tbody>\n", file);
	for (unsigned i = 0; i < report->count; i++) {
		const struct bench_run     *run = &report->runs[i];
		const struct bench_figures *figures = &run->figures;
		char                        name[NAME_MAX_BYTES];

		run_name(run, name, sizeof name);
		fputs("<tr><td>", file);
		bench_chart_text(file, name);
		fprintf(file, "%s</td>", run->interrupted ? " (interrupted)" : "");
		cell(file, 0, (double)run->count);
		cell(file, 0, figures->completed);
		cell(file, 0, figures->failed);
		cell(file, 2, figures->duration_s);
		cell(file, 0, (double)figures->input_tokens);
		cell(file, 0, (double)figures->output_tokens);
		cell(file, 2, figures->request_throughput);
		if (report->options->has_goals)
			cell(file, 2, figures->request_goodput);
		cell(file, 1, figures->output_throughput);
		cell(file, 1, figures->peak_output_throughput);
		cell(file, 1, figures->total_throughput);
		cell(file, 0, figures->peak_concurrency);
		fputs("</tr>\n", file);
	}
	fputs("</tbody></table></div>\n", file);
}

static void write_latency(FILE *file, const struct bench_report *report)
{
	const struct bench_options *options = report->options;

	fputs("<h2>Latency, milliseconds</h2><div class=\"scroll\"><table><thead><tr><th>run</th>"
	      "<th>metric</th><th>samples</th><th>mean</th>"
	      "<th>median</th><th>std</th><th>min</th>", file);
	for (unsigned p = 0; p < options->percentile_count; p++)
		fprintf(file, "<th>p%g</th>", options->percentiles[p]);
	fputs("<th>max</th></tr></thead><tbody>\n", file);
	for (unsigned i = 0; i < report->count; i++) {
		for (unsigned m = 0; m < BENCH_METRIC_COUNT; m++) {
			const struct bench_summary *summary = &report->runs[i].figures.metrics[m];
			char                        name[NAME_MAX_BYTES];

			if (!options->metrics[m])
				continue;
			run_name(&report->runs[i], name, sizeof name);
			fputs("<tr><td>", file);
			bench_chart_text(file, name);
			fprintf(file, "</td><td class=\"text\">%s</td>", bench_metric_name((enum bench_metric)m));
			cell(file, 0, (double)summary->count);
			cell(file, 2, summary->mean);
			cell(file, 2, summary->median);
			cell(file, 2, summary->std);
			cell(file, 2, summary->min);
			for (unsigned p = 0; p < options->percentile_count; p++)
				cell(file, 2, summary->percentiles[p]);
			cell(file, 2, summary->max);
			fputs("</tr>\n", file);
		}
	}
	fputs("</tbody></table></div>\n", file);
}

static void write_failures(FILE *file, const struct bench_report *report)
{
	bool any = false;

	for (unsigned i = 0; i < report->count; i++)
		any |= report->runs[i].figures.failure_count > 0;
	if (!any)
		return;
	fputs("<h2>Failures</h2><div class=\"scroll\"><table><thead><tr><th>run</th>"
	      "<th>kind</th><th>count</th><th>the first says</th></tr></thead>"
	      "<tbody>\n", file);
	for (unsigned i = 0; i < report->count; i++) {
		const struct bench_figures *figures = &report->runs[i].figures;
		char                        name[NAME_MAX_BYTES];

		run_name(&report->runs[i], name, sizeof name);
		for (unsigned k = 0; k < figures->failure_count; k++) {
			const struct bench_failures *failure = &figures->failures[k];

			fputs("<tr><td>", file);
			bench_chart_text(file, name);
			fprintf(file, "</td><td class=\"text\">%s", bench_outcome_name(failure->outcome));
			if (failure->http)
				fprintf(file, " %d", failure->http);
			fprintf(file, "</td><td>%u</td><td class=\"text\">", failure->count);
			bench_chart_text(file, failure->message);
			fputs("</td></tr>\n", file);
		}
	}
	fputs("</tbody></table></div>\n", file);
}

/* ---- charts ---------------------------------------------------------------------------------------------------------- */

/* Room for every series of a chart of the sweep: per server two lines of at most BENCH_POINTS_MAX points. */
struct sweep {
	double              x[BENCH_TARGETS_MAX][BENCH_POINTS_MAX], y[2][BENCH_TARGETS_MAX][BENCH_POINTS_MAX];
	char                notes[BENCH_TARGETS_MAX][BENCH_POINTS_MAX][NOTE_MAX];
	const char         *note_list[BENCH_TARGETS_MAX][BENCH_POINTS_MAX];
	char                names[2][BENCH_TARGETS_MAX][NAME_MAX_BYTES];
	struct bench_series series[2 * BENCH_TARGETS_MAX];
};

/* METRIC over output throughput, median and the last percentile; or, for BENCH_METRIC_COUNT, output throughput over the load. */
static void write_sweep_chart(FILE *file, const struct bench_report *report, struct sweep *sweep, enum bench_metric metric)
{
	const struct bench_options *options = report->options;
	bool        load = metric == BENCH_METRIC_COUNT, by_rate = options->rates.count > 1;
	unsigned    counts[BENCH_TARGETS_MAX] = { 0 }, lines = load ? 1 : 2, last = options->percentile_count - 1;
	const char *titles[] = { "Throughput and time to first token", "Throughput and time per output token",
		"Throughput and inter-token latency", "Throughput and end-to-end latency", "Throughput over load" };
	struct bench_chart chart = { titles[metric], load ? by_rate ? "requests per second asked for" : "concurrent requests"
		: "output tokens per second", load ? "output tokens per second" : "milliseconds", false, !load, sweep->series, 0 };

	for (unsigned i = 0; i < report->count; i++) {
		const struct bench_run *run = &report->runs[i];
		unsigned                target = run->target, at = counts[target];

		if (!run->figures.completed || at == BENCH_POINTS_MAX)
			continue;
		sweep->x[target][at] = load ? by_rate ? run->rate : run->concurrency : run->figures.output_throughput;
		sweep->y[0][target][at] = load ? run->figures.output_throughput : run->figures.metrics[metric].median;
		sweep->y[1][target][at] = load ? 0 : run->figures.metrics[metric].percentiles[last];
		snprintf(sweep->notes[target][at], NOTE_MAX, "%g", by_rate ? run->rate : run->concurrency);
		sweep->note_list[target][at] = sweep->notes[target][at];
		for (unsigned line = 0; line < lines; line++) {
			char percentile[NOTE_MAX];
			snprintf(percentile, sizeof percentile, "p%g", options->percentiles[last]);
			snprintf(sweep->names[line][target], NAME_MAX_BYTES, "%s%s%s", run->label, *run->label && !load ? " · " : "",
			    load ? "" : line ? percentile : "median");
		}
		counts[target]++;
	}
	for (unsigned target = 0; target < BENCH_TARGETS_MAX; target++)
		for (unsigned line = 0; line < lines && counts[target]; line++)
			sweep->series[chart.series_count++] = (struct bench_series){ sweep->names[line][target], sweep->x[target],
				sweep->y[line][target], counts[target], target, line == 1, true, sweep->note_list[target] };
	bench_chart_write(file, &chart);
}

static void write_distribution(FILE *file, const struct bench_report *report, enum bench_metric metric)
{
	static const char *const titles[BENCH_METRIC_COUNT] = { "Time to first token", "Time per output token", "Inter-token latency",
		"End-to-end latency" };
	struct bench_series *series = calloc(report->count ? report->count : 1, sizeof *series);
	char (*names)[NAME_MAX_BYTES] = calloc(report->count ? report->count : 1, sizeof *names);
	double               shares[BENCH_QUANTILES];
	struct bench_chart   chart = { titles[metric], "milliseconds", "share of samples at or below, %", true, false, series, 0 };

	for (unsigned i = 0; i < BENCH_QUANTILES; i++)
		shares[i] = 100.0 * i / (BENCH_QUANTILES - 1);
	for (unsigned i = 0; series && names && i < report->count; i++) {
		const struct bench_summary *summary = &report->runs[i].figures.metrics[metric];

		if (!summary->count)
			continue;
		run_name(&report->runs[i], names[i], sizeof *names);
		series[chart.series_count] = (struct bench_series){ .name = names[i], .x = summary->quantiles, .y = shares,
			.count = BENCH_QUANTILES, .colour = i, .dashed = i / BENCH_CHART_COLOURS % 2 };
		chart.series_count++;
	}
	bench_chart_write(file, &chart);
	free(series);
	free(names);
}

static void write_charts(FILE *file, const struct bench_report *report)
{
	struct sweep *sweep = calloc(1, sizeof *sweep);

	if (sweep && report->count > 1) {
		fprintf(file, "<h2>The sweep</h2><p>The number beside a point: %s.</p><div class=\"charts\">\n",
		    report->options->rates.count > 1 ? "requests per second asked for" : "concurrent requests");
		write_sweep_chart(file, report, sweep, BENCH_TTFT);
		write_sweep_chart(file, report, sweep, BENCH_TPOT);
		write_sweep_chart(file, report, sweep, BENCH_E2EL);
		write_sweep_chart(file, report, sweep, BENCH_METRIC_COUNT);
		fputs("</div>\n", file);
	}
	fputs("<h2>Distributions</h2><div class=\"charts\">\n", file);
	for (unsigned m = 0; m < BENCH_METRIC_COUNT; m++)
		if (report->options->metrics[m])
			write_distribution(file, report, (enum bench_metric)m);
	fputs("</div>\n", file);
	free(sweep);
}

enum status bench_report_html(const struct bench_report *report, const char *path, struct error *error)
{
	FILE *file = fopen(path, "w");
	bool  failed;

	if (!file)
		return error_set(error, STATUS_IO, "cannot write %s: %s", path, strerror(errno));
	fputs(head, file);
	fputs("<h1>penstock bench serve</h1>\n<p>", file);
	bench_chart_text(file, report->date);
	for (unsigned i = 0; i < report->count; i++) {
		if (i && report->runs[i].target == report->runs[i - 1].target)
			continue;
		fputs("<br>", file);
		bench_chart_text(file, report->runs[i].label);
		fputs(*report->runs[i].label ? ": " : "", file);
		bench_chart_text(file, report->runs[i].url);
		fputs(", ", file);
		bench_chart_text(file, report->runs[i].model);
	}
	for (unsigned i = 0; i < report->options->metadata.count; i++) {
		fputs("<br>", file);
		bench_chart_text(file, report->options->metadata.values[i]);
	}
	fputs("</p>\n", file);
	write_charts(file, report);
	write_throughput(file, report);
	write_latency(file, report);
	write_failures(file, report);
	fputs("<p>Percentiles interpolate linearly between the sorted samples. Time per output token leaves the first token out; "
	      "inter-token latency is the gap between two pieces of text, however many tokens each holds.</p>\n</body></html>\n", file);
	failed = ferror(file) != 0;
	if (fclose(file) || failed)
		return error_set(error, STATUS_IO, "cannot write %s: %s", path, strerror(errno));
	return STATUS_OK;
}
