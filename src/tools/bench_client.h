/* bench_client.h: sends the requests of a run when they are due and measures the answers.  One thread, one epoll set, libcurl
 * for HTTP and TLS.  Connections are kept from request to request and from run to run; HTTP/1.1, no proxy, no redirects,
 * no retries: what a server refuses is a failure of that request and is counted. */
#ifndef PENSTOCK_TOOLS_BENCH_CLIENT_H
#define PENSTOCK_TOOLS_BENCH_CLIENT_H

#include "tools/bench_options.h"

struct bench_client; /* one server */

struct bench_progress {
	size_t   count, started, ended, failed;
	uint64_t tokens;   /* pieces of text so far */
	double   seconds;  /* since the run began */
};

struct bench_plan {
	const struct bench_dataset *dataset;
	const struct bench_item    *items;
	size_t        count;
	const double *due_s;       /* ascending, since the run begins */
	uint32_t      concurrency; /* 0 = no limit */
	const char   *model;
	const char *const *api_keys; /* by an item's key; NULL entries and NULL: the server's */
	void (*progress)(void *context, const struct bench_progress *progress); /* may be NULL */
	void         *context;
};

/* URL is the base, without the endpoint; API_KEY may be NULL.  SIGNAL_FD, a signalfd or −1, ends a run when it is readable.
 * Call curl_global_init before. */
enum status bench_client_open(const struct bench_options *options, const char *url, const char *api_key, int signal_fd,
    struct bench_client **ret, struct error *error);
void bench_client_close(struct bench_client *client); /* NULL is fine */

/* The first model of GET /v1/models.  STATUS_CANCELLED: interrupted, without words. */
enum status bench_client_find_model(struct bench_client *client, char ret_model[BENCH_NAME_MAX + 1], struct error *error);

/* Runs PLAN to its end.  RESULTS (plan->count, zeroed) tells what became of each request, *ret_figures gets duration_s,
 * peak_concurrency and lag_max_ms.  STATUS_CANCELLED: interrupted; results and figures are good all the same. */
enum status bench_client_run(struct bench_client *client, const struct bench_plan *plan, struct bench_result *results,
    struct bench_figures *ret_figures, struct error *error);

/* Makes words of a stranger safe for a terminal: ill-formed UTF-8 and control characters become '?'. */
void bench_clean_text(char *text);

#endif
