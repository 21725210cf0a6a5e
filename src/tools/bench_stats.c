/* bench_stats.c: owns the arithmetic of a run's figures.  Does not know where results come from or how figures are shown.
 * Invariant: the same results give the same figures in any order of requests. */
#include "tools/bench_stats.h"

#include "base/checked.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#define MS_PER_S 1e3

const char *bench_metric_name(enum bench_metric metric)
{
	static const char *const names[BENCH_METRIC_COUNT] = { "ttft", "tpot", "itl", "e2el" };

	return metric < BENCH_METRIC_COUNT ? names[metric] : "unknown";
}

const char *bench_outcome_name(enum bench_outcome outcome)
{
	static const char *const names[BENCH_OUTCOME_COUNT] = { "pending", "success", "cancelled", "interrupted", "connect", "tls",
		"timeout", "http", "server", "truncated", "protocol", "empty", "other" };

	return outcome < BENCH_OUTCOME_COUNT ? names[outcome] : "unknown";
}

double bench_percentile(const double *sorted, size_t count, double p)
{
	double position, share;
	size_t below;

	if (!count)
		return 0;
	position = p / 100 * (double)(count - 1);
	if (!(position > 0))
		return sorted[0];
	if (position >= (double)(count - 1))
		return sorted[count - 1];
	below = (size_t)position;
	share = position - (double)below;
	/* From the nearer end, as numpy does, so that both ends are exact. */
	if (share >= 0.5)
		return sorted[below + 1] - (sorted[below + 1] - sorted[below]) * (1 - share);
	return sorted[below] + (sorted[below + 1] - sorted[below]) * share;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

void bench_summarise(double *values, size_t count, const double *percentiles, unsigned percentile_count,
    struct bench_summary *ret)
{
	double sum = 0, squares = 0, mean;

	memset(ret, 0, sizeof *ret);
	if (!count)
		return;
	qsort(values, count, sizeof *values, compare);
	for (size_t i = 0; i < count; i++)
		sum += values[i];
	mean = sum / (double)count;
	for (size_t i = 0; i < count; i++)
		squares += (values[i] - mean) * (values[i] - mean);
	ret->count = count;
	ret->mean = mean * MS_PER_S;
	ret->std = sqrt(squares / (double)count) * MS_PER_S;
	ret->min = values[0] * MS_PER_S;
	ret->max = values[count - 1] * MS_PER_S;
	ret->median = bench_percentile(values, count, 50) * MS_PER_S;
	for (unsigned i = 0; i < percentile_count && i < BENCH_PERCENTILES_MAX; i++)
		ret->percentiles[i] = bench_percentile(values, count, percentiles[i]) * MS_PER_S;
	for (unsigned i = 0; i < BENCH_QUANTILES; i++)
		ret->quantiles[i] = bench_percentile(values, count, 100.0 * i / (BENCH_QUANTILES - 1)) * MS_PER_S;
}

static void count_failure(struct bench_figures *figures, const struct bench_result *result)
{
	enum bench_outcome outcome = result->outcome;
	int                http = outcome == BENCH_HTTP ? result->http : 0;
	unsigned           i;

	figures->failed++;
	for (i = 0; i < figures->failure_count; i++)
		if (figures->failures[i].outcome == outcome && figures->failures[i].http == http)
			break;
	if (i == BENCH_FAILURES_MAX)
		i--; /* the last row takes the rest */
	if (i == figures->failure_count) {
		figures->failure_count++;
		figures->failures[i] = (struct bench_failures){ outcome, http, 0, "" };
		snprintf(figures->failures[i].message, BENCH_MESSAGE_MAX, "%s", result->message ? result->message : "");
	} else if (figures->failures[i].outcome != outcome || figures->failures[i].http != http) {
		figures->failures[i].outcome = BENCH_OTHER;
		figures->failures[i].http = 0;
	}
	figures->failures[i].count++;
}

static double tpot_of(const struct bench_result *result)
{
	return result->output_tokens > 1 ? (result->e2el_s - result->ttft_s) / (result->output_tokens - 1) : 0;
}

static bool good(const struct bench_result *result, const struct bench_goals *goals)
{
	const double seconds[BENCH_METRIC_COUNT] = { [BENCH_TTFT] = result->ttft_s, [BENCH_TPOT] = tpot_of(result),
		[BENCH_E2EL] = result->e2el_s };

	for (unsigned m = 0; m < BENCH_METRIC_COUNT; m++)
		if (goals->limit_ms[m] >= 0 && seconds[m] * MS_PER_S > goals->limit_ms[m])
			return false;
	return true;
}

/* The second with the most tokens.  A piece of text stands for its share of the request's tokens. */
static enum status peak_output(const struct bench_result *results, size_t count, double *ret, struct error *error)
{
	double  last = 0, most = 0;
	double *seconds;
	size_t  buckets;

	for (size_t i = 0; i < count; i++)
		if (results[i].outcome == BENCH_SUCCESS)
			last = fmax(last, results[i].start_s + results[i].e2el_s);
	buckets = last < 1e8 ? (size_t)last + 1 : 1;
	seconds = calloc(buckets, sizeof *seconds);
	if (!seconds)
		return error_set(error, STATUS_NOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		const struct bench_result *result = &results[i];
		double at = result->start_s + result->ttft_s, share = result->output_tokens / fmax(1, result->chunks);

		if (result->outcome != BENCH_SUCCESS)
			continue;
		for (uint32_t piece = 0; piece <= result->itl_count; piece++) {
			size_t bucket = at > 0 ? (size_t)at : 0;
			seconds[bucket < buckets ? bucket : buckets - 1] += share;
			if (piece < result->itl_count)
				at += result->itl_s[piece];
		}
	}
	for (size_t i = 0; i < buckets; i++)
		most = fmax(most, seconds[i]);
	free(seconds);
	*ret = most;
	return STATUS_OK;
}

static void count_result(const struct bench_result *result, const struct bench_goals *goals, struct bench_figures *figures)
{
	switch (result->outcome) {
	case BENCH_SUCCESS:
		figures->completed++;
		figures->without_usage += !result->has_usage;
		figures->input_tokens += result->input_tokens;
		figures->output_tokens += result->output_tokens;
		figures->cached_tokens += result->cached_tokens;
		figures->chunks += result->chunks;
		figures->good += good(result, goals);
		break;
	case BENCH_CANCELLED:
		figures->cancelled++;
		break;
	case BENCH_PENDING:
	case BENCH_INTERRUPTED:
		figures->interrupted++;
		break;
	default:
		count_failure(figures, result);
	}
}

enum status bench_figures_make(const struct bench_result *results, size_t count, double duration_s, const double *percentiles,
    unsigned percentile_count, const struct bench_goals *goals, struct bench_figures *ret, struct error *error)
{
	struct bench_figures *figures = calloc(1, sizeof *figures);
	double               *samples = NULL;
	size_t                gaps = 0, n = 0, bytes;
	enum status           status = STATUS_NOMEM;

	if (!figures)
		goto fail;
	for (size_t i = 0; i < count; i++)
		gaps += results[i].outcome == BENCH_SUCCESS ? results[i].itl_count : 0;
	if (!checked_mul_size((gaps > count ? gaps : count) + 1, sizeof *samples, &bytes))
		goto fail;
	samples = malloc(bytes);
	if (!samples)
		goto fail;
	for (size_t i = 0; i < count; i++)
		count_result(&results[i], goals, figures);
	for (unsigned m = 0; m < BENCH_METRIC_COUNT; m++) {
		n = 0;
		for (size_t i = 0; i < count; i++) {
			const struct bench_result *result = &results[i];

			if (result->outcome != BENCH_SUCCESS)
				continue;
			if (m == BENCH_TTFT)
				samples[n++] = result->ttft_s;
			else if (m == BENCH_E2EL)
				samples[n++] = result->e2el_s;
			else if (m == BENCH_TPOT && result->output_tokens > 1)
				samples[n++] = tpot_of(result);
			else if (m == BENCH_ITL)
				for (uint32_t k = 0; k < result->itl_count; k++)
					samples[n++] = result->itl_s[k];
		}
		bench_summarise(samples, n, percentiles, percentile_count, &figures->metrics[m]);
	}
	figures->duration_s = duration_s;
	if (duration_s > 0) {
		figures->request_throughput = figures->completed / duration_s;
		figures->request_goodput = figures->good / duration_s;
		figures->output_throughput = (double)figures->output_tokens / duration_s;
		figures->total_throughput = (double)(figures->input_tokens + figures->output_tokens) / duration_s;
	}
	status = peak_output(results, count, &figures->peak_output_throughput, error);
	if (status)
		goto fail;
	figures->peak_concurrency = ret->peak_concurrency;
	figures->lag_max_ms = ret->lag_max_ms;
	*ret = *figures;
fail:
	free(samples);
	free(figures);
	return status == STATUS_NOMEM ? error_set(error, status, "out of memory") : status;
}

void bench_results_free(struct bench_result *results, size_t count)
{
	for (size_t i = 0; results && i < count; i++) {
		free(results[i].message);
		free(results[i].itl_s);
	}
	free(results);
}
