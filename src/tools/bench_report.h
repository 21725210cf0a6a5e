/* bench_report.h: the figures of all runs: tables on standard output, JSON, CSV and HTML files. */
#ifndef PENSTOCK_TOOLS_BENCH_REPORT_H
#define PENSTOCK_TOOLS_BENCH_REPORT_H

#include "tools/bench_options.h"

enum { BENCH_RUNS_MAX = BENCH_TARGETS_MAX * BENCH_POINTS_MAX };

struct bench_run {
	char                 label[BENCH_NAME_MAX]; /* of the server, "" when there is one */
	unsigned             target;      /* number of the server */
	const char          *url;
	char                 model[BENCH_NAME_MAX + 1];
	double               rate;        /* INFINITY = all at once */
	uint32_t             concurrency; /* 0 = no limit */
	size_t               count;
	bool                 interrupted, timed; /* by Ctrl-C; arrival times are the dataset's */
	struct bench_figures figures;
	struct bench_result *results; /* owned; kept for --save-detailed, else NULL */
};

struct bench_report {
	const struct bench_options *options;
	char              date[32];  /* when it began, ISO 8601, UTC */
	struct bench_run *runs;      /* BENCH_RUNS_MAX */
	unsigned          count;
};

/* "streams 8", "4 req/s", … : what distinguishes a run in a sweep. */
void bench_report_load(const struct bench_run *run, char *ret_text, size_t size);

void bench_report_run(const struct bench_report *report, const struct bench_run *run); /* the table of one run */
void bench_report_sweep(const struct bench_report *report);                            /* one line per run */

/* STATUS_IO with file and reason. */
enum status bench_report_json(const struct bench_report *report, const char *path, struct error *error);
enum status bench_report_csv(const struct bench_report *report, const char *path, struct error *error);
enum status bench_report_html(const struct bench_report *report, const char *path, struct error *error);

#endif
