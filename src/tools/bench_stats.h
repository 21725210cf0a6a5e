/* bench_stats.h: the figures of a measured run: percentiles, goodput, throughput.
 *
 * A percentile is numpy's default: with the n values sorted, percentile p lies at position p / 100 × (n − 1), between two
 * values by linear interpolation.  The standard deviation is that of the values themselves (divided by n).  Of no values
 * everything is 0.
 */
#ifndef PENSTOCK_TOOLS_BENCH_STATS_H
#define PENSTOCK_TOOLS_BENCH_STATS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	BENCH_PERCENTILES_MAX = 16,
	BENCH_QUANTILES = 201, /* points of a distribution's curve: 0 %, 0.5 %, …, 100 % */
	BENCH_MESSAGE_MAX = 240,
	BENCH_FAILURES_MAX = 64 /* kinds told apart in one run; what is beyond is counted as "other" */
};

enum bench_metric { BENCH_TTFT, BENCH_TPOT, BENCH_ITL, BENCH_E2EL, BENCH_METRIC_COUNT };

/* What became of a request.  BENCH_PENDING to BENCH_INTERRUPTED are no failures. */
enum bench_outcome {
	BENCH_PENDING,     /* never sent: the run was interrupted before */
	BENCH_SUCCESS,     /* text and [DONE] came */
	BENCH_CANCELLED,   /* by us, as the trace says */
	BENCH_INTERRUPTED, /* by us, at Ctrl-C */
	BENCH_CONNECT,     /* no connection: refused, unreachable, unknown host */
	BENCH_TLS,         /* the certificate or the handshake */
	BENCH_TIMEOUT,     /* --connect-timeout or --request-timeout */
	BENCH_HTTP,        /* a status other than 200 */
	BENCH_REFUSED,     /* an error event in the stream */
	BENCH_TRUNCATED,   /* the stream ended without [DONE] */
	BENCH_PROTOCOL,    /* what came is no event stream of this API */
	BENCH_EMPTY,       /* an answer without a token */
	BENCH_OTHER,       /* everything else that goes wrong on this side */
	BENCH_OUTCOME_COUNT
};

struct bench_result {
	enum bench_outcome outcome;
	int                http;                       /* status, 0 when none came */
	char              *message;                    /* owned; what went wrong, or NULL */
	double             due_s, start_s;             /* since the run began: when it was to start, when it did */
	double             ttft_s, e2el_s;             /* since start_s */
	double            *itl_s;                      /* owned */
	uint32_t           itl_count, chunks;
	uint32_t           input_tokens, output_tokens, cached_tokens;
	bool               has_usage;                  /* the token counts are the server's */
};

struct bench_summary {
	size_t count;
	double mean, median, std, min, max; /* milliseconds */
	double percentiles[BENCH_PERCENTILES_MAX];
	double quantiles[BENCH_QUANTILES];
};

struct bench_failures { /* one kind */
	enum bench_outcome outcome;
	int                http;
	uint32_t           count;
	char               message[BENCH_MESSAGE_MAX]; /* of the first */
};

struct bench_figures {
	uint32_t              completed, failed, cancelled, interrupted, without_usage;
	uint64_t              input_tokens, output_tokens, cached_tokens; /* of the completed ones */
	uint64_t              chunks;
	double                duration_s;
	double                request_throughput, request_goodput, output_throughput, total_throughput; /* per second */
	double                peak_output_throughput; /* most tokens in one second */
	uint32_t              peak_concurrency, good;
	double                lag_max_ms;       /* a request left this much after it was due and a place was free */
	struct bench_summary  metrics[BENCH_METRIC_COUNT];
	struct bench_failures failures[BENCH_FAILURES_MAX];
	unsigned              failure_count;
};

struct bench_goals { /* service level objectives, milliseconds; < 0 = none */
	double limit_ms[BENCH_METRIC_COUNT];
};

const char *bench_metric_name(enum bench_metric metric);    /* "ttft" */
const char *bench_outcome_name(enum bench_outcome outcome); /* "timeout"; BENCH_HTTP is "http" */

/* SORTED ascending; P in 0…100. */
double bench_percentile(const double *sorted, size_t count, double p);

/* Sorts VALUES (seconds) and describes them in milliseconds. */
void bench_summarise(double *values, size_t count, const double *percentiles, unsigned percentile_count,
    struct bench_summary *ret);

/* The figures of COUNT results over DURATION_S; peak_concurrency and lag_max_ms stay as they are in *ret. */
enum status bench_figures_make(const struct bench_result *results, size_t count, double duration_s, const double *percentiles,
    unsigned percentile_count, const struct bench_goals *goals, struct bench_figures *ret, struct error *error);

void bench_results_free(struct bench_result *results, size_t count); /* NULL is fine */

#endif
