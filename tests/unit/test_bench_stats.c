/* The load tool's figures: percentiles as numpy computes them, throughput, goodput, failures by kind. */
#include "base/random.h"
#include "tools/bench_stats.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_stats_numpy.h"

enum { NUMPY_CASES = sizeof numpy_cases / sizeof numpy_cases[0] };

static void near(double got, double wanted, double scale, const char *what)
{
	ck_assert_msg(fabs(got - wanted) <= 1e-12 * fmax(scale, fabs(wanted)), "%s: got %.17g, wanted %.17g", what, got, wanted);
}

START_TEST(as_numpy)
{
	const struct numpy_case *c = &numpy_cases[_i];
	struct bench_summary     summary;
	struct random            random = { (uint64_t)_i };
	double                  *values = malloc(c->count * sizeof *values);

	for (int round = 0; round < 3; round++) {
		memcpy(values, c->values, c->count * sizeof *values);
		for (size_t i = c->count; i > 1; i--) { /* the order does not matter */
			size_t at = random_below(&random, (uint32_t)i);
			double other = values[at];
			values[at] = values[i - 1];
			values[i - 1] = other;
		}
		bench_summarise(values, c->count, numpy_percentiles, NUMPY_PERCENTILES, &summary);
		ck_assert_uint_eq(summary.count, c->count);
		near(summary.mean, c->mean * 1e3, 1e-9, "mean");
		near(summary.std, c->std * 1e3, 1e3 * c->mean, "std");
		near(summary.median, c->median * 1e3, 1e-9, "median");
		for (unsigned p = 0; p < NUMPY_PERCENTILES; p++)
			near(summary.percentiles[p], c->percentiles[p] * 1e3, 1e-9, c->name);
		near(summary.min, c->percentiles[0] * 1e3, 0, "min");
		near(summary.max, c->percentiles[NUMPY_PERCENTILES - 1] * 1e3, 0, "max");
		ck_assert(summary.quantiles[0] == summary.min && summary.quantiles[BENCH_QUANTILES - 1] == summary.max);
		for (unsigned q = 1; q < BENCH_QUANTILES; q++)
			ck_assert(summary.quantiles[q] >= summary.quantiles[q - 1]);
	}
	free(values);
}
END_TEST

START_TEST(nothing_is_zero)
{
	struct bench_summary summary;
	double               p = 99;

	bench_summarise(NULL, 0, &p, 1, &summary);
	ck_assert(summary.count == 0 && summary.mean == 0 && summary.std == 0 && summary.percentiles[0] == 0 && summary.max == 0);
	ck_assert(bench_percentile(NULL, 0, 50) == 0);
}
END_TEST

static const struct bench_goals no_goals = { { -1, -1, -1, -1 } };
static const double             percentiles[] = { 50, 99 };

static void make(const struct bench_result *results, size_t count, double duration, const struct bench_goals *goals,
    struct bench_figures *ret)
{
	struct error error;

	ck_assert_int_eq(bench_figures_make(results, count, duration, percentiles, 2, goals, ret, &error), STATUS_OK);
}

START_TEST(run_figures)
{
	double              gaps[] = { 0.1, 0.3 };
	struct bench_result results[] = {
		{ .outcome = BENCH_SUCCESS, .ttft_s = 0.2, .e2el_s = 0.6, .start_s = 0, .itl_s = gaps, .itl_count = 2, .chunks = 3,
		    .input_tokens = 10, .output_tokens = 5, .cached_tokens = 4, .has_usage = true },
		{ .outcome = BENCH_SUCCESS, .ttft_s = 0.4, .e2el_s = 0.4, .start_s = 1.5, .chunks = 1, .input_tokens = 20,
		    .output_tokens = 1 },
		{ .outcome = BENCH_CANCELLED, .ttft_s = 9, .output_tokens = 1000 },
		{ .outcome = BENCH_INTERRUPTED },
		{ .outcome = BENCH_PENDING },
		{ .outcome = BENCH_HTTP, .http = 429, .message = "busy" },
		{ .outcome = BENCH_HTTP, .http = 503 },
		{ .outcome = BENCH_HTTP, .http = 429, .message = "still busy" },
		{ .outcome = BENCH_TIMEOUT, .http = 200, .message = "late" },
		{ .outcome = BENCH_TIMEOUT, .http = 0 },
	};
	const size_t         count = sizeof results / sizeof results[0];
	struct bench_figures figures = { .peak_concurrency = 7, .lag_max_ms = 3 };
	struct bench_goals   goals = { { [BENCH_TTFT] = 300, [BENCH_TPOT] = -1, [BENCH_ITL] = -1, [BENCH_E2EL] = -1 } };

	make(results, count, 2, &no_goals, &figures);
	ck_assert_uint_eq(figures.completed, 2);
	ck_assert_uint_eq(figures.failed, 5);
	ck_assert_uint_eq(figures.cancelled, 1);
	ck_assert_uint_eq(figures.interrupted, 2);
	ck_assert_uint_eq(figures.without_usage, 1);
	ck_assert_uint_eq(figures.input_tokens, 30);
	ck_assert_uint_eq(figures.output_tokens, 6);
	ck_assert_uint_eq(figures.cached_tokens, 4);
	ck_assert(figures.peak_concurrency == 7 && figures.lag_max_ms == 3);
	near(figures.request_throughput, 1, 1, "requests");
	near(figures.request_goodput, 1, 1, "goodput without goals");
	near(figures.output_throughput, 3, 1, "output");
	near(figures.total_throughput, 18, 1, "total");
	near(figures.peak_output_throughput, 5, 1, "all five tokens of the first within one second");
	near(figures.metrics[BENCH_TTFT].mean, 300, 1, "ttft");
	near(figures.metrics[BENCH_E2EL].mean, 500, 1, "e2el");
	ck_assert_uint_eq(figures.metrics[BENCH_TPOT].count, 1); /* one token has no time per output token */
	near(figures.metrics[BENCH_TPOT].mean, 100, 1, "tpot");
	ck_assert_uint_eq(figures.metrics[BENCH_ITL].count, 2);
	near(figures.metrics[BENCH_ITL].median, 200, 1, "itl");
	ck_assert_uint_eq(figures.failure_count, 3);
	ck_assert(figures.failures[0].http == 429 && figures.failures[0].count == 2);
	ck_assert_str_eq(figures.failures[0].message, "busy");
	ck_assert(figures.failures[1].http == 503 && figures.failures[1].count == 1);
	ck_assert(figures.failures[2].outcome == BENCH_TIMEOUT && figures.failures[2].count == 2 && figures.failures[2].http == 0);

	make(results, count, 2, &goals, &figures);
	near(figures.request_goodput, 0.5, 1, "ttft keeps the first only");
	goals.limit_ms[BENCH_TTFT] = 400;
	make(results, count, 2, &goals, &figures);
	near(figures.request_goodput, 1, 1, "a limit that is just kept counts");
	goals.limit_ms[BENCH_TPOT] = 99;
	make(results, count, 2, &goals, &figures);
	near(figures.request_goodput, 0.5, 1, "one token has tpot 0");
	goals.limit_ms[BENCH_E2EL] = 100;
	make(results, count, 2, &goals, &figures);
	near(figures.request_goodput, 0, 1, "all must hold");
}
END_TEST

START_TEST(no_results)
{
	struct bench_figures figures = { 0 };

	make(NULL, 0, 0, &no_goals, &figures);
	ck_assert(figures.completed == 0 && figures.request_throughput == 0 && figures.peak_output_throughput == 0);
}
END_TEST

START_TEST(many_kinds_of_failures_are_all_counted)
{
	struct bench_result  results[BENCH_FAILURES_MAX * 3];
	struct bench_figures figures = { 0 };
	uint32_t             sum = 0;

	memset(results, 0, sizeof results);
	for (int i = 0; i < BENCH_FAILURES_MAX * 3; i++)
		results[i] = (struct bench_result){ .outcome = BENCH_HTTP, .http = 300 + i };
	make(results, BENCH_FAILURES_MAX * 3, 1, &no_goals, &figures);
	ck_assert_uint_eq(figures.failed, BENCH_FAILURES_MAX * 3);
	ck_assert_uint_eq(figures.failure_count, BENCH_FAILURES_MAX);
	for (unsigned i = 0; i < figures.failure_count; i++)
		sum += figures.failures[i].count;
	ck_assert_uint_eq(sum, BENCH_FAILURES_MAX * 3);
	ck_assert_int_eq(figures.failures[BENCH_FAILURES_MAX - 1].outcome, BENCH_OTHER);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("bench_stats");
	TCase   *tcase = tcase_create("core");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_loop_test(tcase, as_numpy, 0, NUMPY_CASES);
	tcase_add_test(tcase, nothing_is_zero);
	tcase_add_test(tcase, run_figures);
	tcase_add_test(tcase, no_results);
	tcase_add_test(tcase, many_kinds_of_failures_are_all_counted);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
