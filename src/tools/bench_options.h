/* bench_options.h: what `penstock bench serve` is asked to do: the command line, read and checked once. */
#ifndef PENSTOCK_TOOLS_BENCH_OPTIONS_H
#define PENSTOCK_TOOLS_BENCH_OPTIONS_H

#include "tools/bench_dataset.h"
#include "tools/bench_stats.h"

#include <jansson.h>

enum {
	BENCH_TARGETS_MAX = 4,
	BENCH_POINTS_MAX = 32,  /* values of a sweep */
	BENCH_HEADERS_MAX = 32,
	BENCH_CONCURRENCY_MAX = 65536,
	BENCH_URL_MAX = 2048,
	BENCH_NAME_MAX = 256    /* of a model, a label, a key */
};

struct bench_list { /* of a sweep */
	double   values[BENCH_POINTS_MAX]; /* INFINITY for "inf" */
	unsigned count;
};

struct bench_strings {
	const char *values[BENCH_HEADERS_MAX]; /* argv's */
	unsigned    count;
};

struct bench_options {
	/* the server */
	struct bench_strings urls, labels, headers, metadata;
	const char *host, *endpoint, *model, *api_key, *api_key_file, *trace_key_file, *cacert;
	int64_t     port;
	bool        chat, insecure;
	double      connect_timeout_s, request_timeout_s, ready_timeout_s;
	/* the load */
	struct bench_list rates, concurrencies, counts;
	double            burstiness;
	int64_t           warmups, seed;
	unsigned          per_stream; /* of a preset: requests for each stream where --num-prompts says nothing; 0 = none */
	/* the dataset; lengths < 0 = not given */
	struct bench_dataset_options dataset;
	const char *dataset_path;
	int64_t     input_len, output_len, random_input_len, random_output_len, random_prefix_len, prefix_len, suffix_len,
	    prefix_count, prefix_output_len, custom_output_len;
	double      range_ratio;
	bool        disable_shuffle, no_oversample, trace_priority;
	/* the body; NAN = not given */
	bool        ignore_eos, server_temperature;
	double      temperature, top_p, top_k, min_p, frequency_penalty, presence_penalty, repetition_penalty;
	json_t     *extra_body; /* owned */
	/* the report */
	bool               metrics[BENCH_METRIC_COUNT];
	double             percentiles[BENCH_PERCENTILES_MAX];
	unsigned           percentile_count;
	struct bench_goals goals;
	bool               has_goals, save_detailed, no_progress;
	const char        *json, *csv, *html, *preset;
};

/* Reads the command line.  False: return *ret_code; what is to be said has been said (--help included).  The strings are
 * argv's.  bench_options_free takes what it filled, also after false. */
bool bench_options_parse(int argc, char **argv, struct bench_options *ret, int *ret_code);
void bench_options_free(struct bench_options *options);

#endif
