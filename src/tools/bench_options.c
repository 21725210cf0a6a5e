/* bench_options.c: owns the command line of `penstock bench serve`: one row per option, which makes parser, range check and
 * help.  Does not open files.  Invariant: what bench_options_parse lets through is within every limit named here. */
#include "tools/bench_options.h"

#include "api/json_text.h"
#include "tools/tool.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND "bench serve"
#define SECONDS_MAX 86400.0

enum kind {
	SECTION, FLAG, WHOLE, REAL, TEXT, STRINGS, LIST, BACKEND, DATASET, METRICS, PERCENTILES, GOODPUT, JSON_TEXT, TEMPERATURE
};

struct row {
	const char *name, *argument, *help;
	enum kind   kind;
	size_t      at; /* of the field in struct bench_options */
	double      min, max;
};

#define AT(field) offsetof(struct bench_options, field)
static const struct row rows[] = {
	{ NULL, NULL, "The server", SECTION, 0, 0, 0 },
	{ "base-url", "URL", "where it is (default http://HOST:PORT); repeat it to compare up to 4 servers",
	    STRINGS, AT(urls), 1, BENCH_TARGETS_MAX },
	{ "label", "NAME", "name of a server in the report, one per --base-url", STRINGS, AT(labels), 1, BENCH_TARGETS_MAX },
	{ "host", "HOST", "default 127.0.0.1", TEXT, AT(host), 1, 255 },
	{ "port", "N", "default 8000", WHOLE, AT(port), 1, 65535 },
	{ "backend", "NAME", "openai-chat (default) or openai: which route", BACKEND, AT(chat), 0, 0 },
	{ "endpoint", "PATH", "default /v1/chat/completions or /v1/completions", TEXT, AT(endpoint), 1, BENCH_URL_MAX },
	{ "model", "NAME", "default: the first of GET /v1/models", TEXT, AT(model), 1, BENCH_NAME_MAX },
	{ "api-key", "KEY", "sent as Authorization: Bearer KEY (others can see it in the process list)",
	    TEXT, AT(api_key), 1, BENCH_NAME_MAX },
	{ "api-key-file", "FILE", "file whose first line is the key", TEXT, AT(api_key_file), 1, 4095 },
	{ "header", "NAME=VALUE …", "more headers; NAME: VALUE is the same", STRINGS, AT(headers), 1, BENCH_HEADERS_MAX },
	{ "cacert", "FILE", "certificates to trust instead of the system's", TEXT, AT(cacert), 1, 4095 },
	{ "insecure", NULL, "do not verify the certificate", FLAG, AT(insecure), 0, 0 },
	{ "connect-timeout", "S", "seconds for a connection with TLS (default 10)", REAL, AT(connect_timeout_s), 0.001, SECONDS_MAX },
	{ "request-timeout", "S", "seconds for a whole answer (default 600)", REAL, AT(request_timeout_s), 0.001, SECONDS_MAX },
	{ "ready-check-timeout-sec", "S", "try one request until it works, so long (default 0: do not)",
	    REAL, AT(ready_timeout_s), 0, SECONDS_MAX },

	{ NULL, NULL, "The load", SECTION, 0, 0, 0 },
	{ "num-prompts", "N[,N…]", "requests of a run (default 1000; trace: all); a list has one per run",
	    LIST, AT(counts), 1, BENCH_REQUESTS_MAX },
	{ "request-rate", "R[,R…]", "requests per second, or inf (default); a list is a sweep", LIST, AT(rates), 1e-4, 1e6 },
	{ "burstiness", "B", "shape of the gamma distribution of intervals: 1 (default) Poisson, lower burstier",
	    REAL, AT(burstiness), 0.01, 1e6 },
	{ "max-concurrency", "N[,N…]", "most requests at a time (default: no limit); a list is a sweep",
	    LIST, AT(concurrencies), 1, BENCH_CONCURRENCY_MAX },
	{ "num-warmups", "N", "requests before each run that are not counted (default 0)", WHOLE, AT(warmups), 0, 10000 },
	{ "seed", "N", "of lengths, words, arrivals (default 0)", WHOLE, AT(seed), 0, (double)INT64_MAX },
	{ "preset", "NAME", "lmdeploy or agents: a workload; options given beside it win", TEXT, AT(preset), 1, 64 },

	{ NULL, NULL, "The requests", SECTION, 0, 0, 0 },
	{ "dataset-name", "NAME", "random (default), prefix_repetition, custom or trace", DATASET, AT(dataset), 0, 0 },
	{ "dataset-path", "FILE", "custom: JSON lines with prompt or messages; trace: CSV", TEXT, AT(dataset_path), 1, 4095 },
	{ "input-len", "N", "random: --random-input-len; prefix_repetition: the suffix", WHOLE, AT(input_len), 1, BENCH_WORDS_MAX },
	{ "output-len", "N", "output length of random, prefix_repetition and custom", WHOLE, AT(output_len), 1, BENCH_OUTPUT_MAX },
	{ "random-input-len", "N", "words of a prompt (default 1024)", WHOLE, AT(random_input_len), 1, BENCH_WORDS_MAX },
	{ "random-output-len", "N", "max_tokens of a request (default 128)", WHOLE, AT(random_output_len), 1, BENCH_OUTPUT_MAX },
	{ "random-range-ratio", "R", "lengths uniform in length × (1 ± R) (default 0)", REAL, AT(range_ratio), 0, 0.999 },
	{ "random-prefix-len", "N", "words before them, the same for all requests (default 0)",
	    WHOLE, AT(random_prefix_len), 0, BENCH_WORDS_MAX },
	{ "prefix-repetition-prefix-len", "N", "words of a shared prefix (default 256)", WHOLE, AT(prefix_len), 0, BENCH_WORDS_MAX },
	{ "prefix-repetition-suffix-len", "N", "words after it (default 256)", WHOLE, AT(suffix_len), 1, BENCH_WORDS_MAX },
	{ "prefix-repetition-num-prefixes", "N", "different prefixes (default 10)", WHOLE, AT(prefix_count), 1, 1e6 },
	{ "prefix-repetition-output-len", "N", "max_tokens of a request (default 128)",
	    WHOLE, AT(prefix_output_len), 1, BENCH_OUTPUT_MAX },
	{ "custom-output-len", "N", "max_tokens where a line names none (default 256)",
	    WHOLE, AT(custom_output_len), 1, BENCH_OUTPUT_MAX },
	{ "disable-shuffle", NULL, "custom: in the order of the file", FLAG, AT(disable_shuffle), 0, 0 },
	{ "no-oversample", NULL, "custom: no line twice in a run", FLAG, AT(no_oversample), 0, 0 },
	{ "trace-key-file", "FILE", "trace: lines `NAME API-KEY` for the key column", TEXT, AT(trace_key_file), 1, 4095 },
	{ "trace-priority", NULL, "trace: send the class column as priority", FLAG, AT(trace_priority), 0, 0 },
	{ "ignore-eos", NULL, "answers go on to max_tokens", FLAG, AT(ignore_eos), 0, 0 },
	{ "temperature", "T", "default 0; `server` sends none", TEMPERATURE, AT(temperature), 0, 100 },
	{ "top-p", "P", NULL, REAL, AT(top_p), 0, 1 },
	{ "top-k", "K", NULL, REAL, AT(top_k), -1, 1e9 },
	{ "min-p", "P", NULL, REAL, AT(min_p), 0, 1 },
	{ "frequency-penalty", "X", NULL, REAL, AT(frequency_penalty), -2, 2 },
	{ "presence-penalty", "X", NULL, REAL, AT(presence_penalty), -2, 2 },
	{ "repetition-penalty", "X", NULL, REAL, AT(repetition_penalty), 0, 10 },
	{ "extra-body", "JSON", "an object whose members go into each request's body", JSON_TEXT, AT(extra_body), 0, 0 },

	{ NULL, NULL, "The report", SECTION, 0, 0, 0 },
	{ "percentile-metrics", "M[,M…]", "of ttft, tpot, itl, e2el (default: all)", METRICS, AT(metrics), 0, 0 },
	{ "metric-percentiles", "P[,P…]", "default 50,90,99", PERCENTILES, AT(percentiles), 0, 100 },
	{ "goodput", "M:MS …", "count requests that keep ttft, tpot, e2el within so many milliseconds", GOODPUT, AT(goals), 0, 1e9 },
	{ "json", "FILE", "all figures", TEXT, AT(json), 1, 4095 },
	{ "csv", "FILE", "one line per run", TEXT, AT(csv), 1, 4095 },
	{ "html", "FILE", "a page with curves and distributions, nothing loaded from elsewhere", TEXT, AT(html), 1, 4095 },
	{ "save-detailed", NULL, "--json with the figures of every request", FLAG, AT(save_detailed), 0, 0 },
	{ "metadata", "NAME=VALUE …", "kept in the JSON file", STRINGS, AT(metadata), 1, BENCH_HEADERS_MAX },
	{ "no-progress", NULL, "no progress bar (there is none unless standard error is a terminal)", FLAG, AT(no_progress), 0, 0 },
	{ "disable-tqdm", NULL, NULL, FLAG, AT(no_progress), 0, 0 },
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0], OPTION_FIRST = 256, HELP_COLUMN = 36 };

static void print_help(void)
{
	fputs("usage: penstock bench serve [OPTION…]\n\n"
	      "Sends requests to an OpenAI-compatible server, measures its streamed answers and prints the figures; names and\n"
	      "meanings as in `vllm bench serve`.  docs/benchmarking.md defines every figure.\n", stdout);
	for (unsigned i = 0; i < ROW_COUNT; i++) {
		const struct row *row = &rows[i];
		int               width = 0;

		if (row->kind == SECTION) {
			printf("\n%s\n", row->help);
			continue;
		}
		if (row->help || row->argument)
			width = printf("  --%s%s%s", row->name, row->argument ? " " : "", row->argument ? row->argument : "");
		for (const char *c = row->argument; c && *c; c++)
			width -= (*c & 0xc0) == 0x80; /* bytes that take no column */
		if (row->help)
			printf("%*s%s\n", width < HELP_COLUMN ? HELP_COLUMN - width : 2, "", row->help);
		else if (row->argument)
			printf("%*sin each request\n", HELP_COLUMN - width, "");
	}
	fputs("\nOptions that end in … take several values.  Ctrl-C ends the run and reports what there is; a second one ends the\n"
	      "program.  Exit status: 0 every run has a successful request, 1 not so or interrupted, 2 wrong usage.\n", stdout);
}

static bool wrong(const struct row *row, const char *text, const char *what)
{
	tool_usage(COMMAND, "--%s %.200s: %s", row->name, text, what);
	return false;
}

/* "a,b,c": calls TAKE for each piece; false after a complaint. */
static bool each(const struct row *row, const char *text, struct bench_options *options,
    bool (*take)(const struct row *row, const char *whole, const char *piece, struct bench_options *options))
{
	char piece[64];

	for (const char *at = text;;) {
		size_t len = strcspn(at, ",");

		if (!len || len >= sizeof piece)
			return wrong(row, text, "not a list of values separated by commas");
		memcpy(piece, at, len);
		piece[len] = '\0';
		if (!take(row, text, piece, options))
			return false;
		if (!at[len])
			return true;
		at += len + 1;
	}
}

static bool parse_real(const struct row *row, const char *text, double *ret)
{
	char option[64];

	snprintf(option, sizeof option, "--%s", row->name);
	return tool_real(COMMAND, option, text, row->min, row->max, ret);
}

static bool take_list(const struct row *row, const char *whole, const char *piece, struct bench_options *options)
{
	struct bench_list *list = (struct bench_list *)((char *)options + row->at);
	double             value;
	int64_t            number;
	char               option[64];

	snprintf(option, sizeof option, "--%s", row->name);
	if (list->count == BENCH_POINTS_MAX)
		return wrong(row, whole, "more than 32 values");
	if (list == &options->rates) {
		if (!strcmp(piece, "inf"))
			value = INFINITY;
		else if (!parse_real(row, piece, &value))
			return false;
	} else {
		if (!tool_int(COMMAND, option, piece, (int64_t)row->min, (int64_t)row->max, &number))
			return false;
		value = (double)number;
	}
	list->values[list->count++] = value;
	return true;
}

static bool take_metric(const struct row *row, const char *whole, const char *piece, struct bench_options *options)
{
	for (unsigned m = 0; m < BENCH_METRIC_COUNT; m++)
		if (!strcmp(piece, bench_metric_name((enum bench_metric)m))) {
			options->metrics[m] = true;
			return true;
		}
	return wrong(row, whole, "not a list of ttft, tpot, itl and e2el");
}

static bool take_percentile(const struct row *row, const char *whole, const char *piece, struct bench_options *options)
{
	if (options->percentile_count == BENCH_PERCENTILES_MAX)
		return wrong(row, whole, "more than 16 values");
	return parse_real(row, piece, &options->percentiles[options->percentile_count++]);
}

static bool take_goal(const struct row *row, const char *text, struct bench_options *options)
{
	static const enum bench_metric may[] = { BENCH_TTFT, BENCH_TPOT, BENCH_E2EL };
	const char *colon = strchr(text, ':');

	for (size_t i = 0; colon && i < sizeof may / sizeof may[0]; i++) {
		const char *name = bench_metric_name(may[i]);
		if (strlen(name) != (size_t)(colon - text) || memcmp(name, text, strlen(name)))
			continue;
		options->has_goals = true;
		return parse_real(row, colon + 1, &options->goals.limit_ms[may[i]]);
	}
	return wrong(row, text, "not one of ttft:MS, tpot:MS, e2el:MS");
}

static bool take_string(const struct row *row, const char *text, struct bench_options *options)
{
	struct bench_strings *strings = (struct bench_strings *)((char *)options + row->at);
	const char           *end;

	if (strings->count == (unsigned)row->max) {
		tool_usage(COMMAND, "--%s %.200s: more than %.0f", row->name, text, row->max);
		return false;
	}
	if (strlen(text) > BENCH_URL_MAX)
		return wrong(row, text, "longer than 2048 bytes");
	if (strings == &options->urls && strncmp(text, "http://", 7) && strncmp(text, "https://", 8))
		return wrong(row, text, "not a URL that begins with http:// or https://");
	end = text + strcspn(text, "=:");
	if ((strings == &options->headers || strings == &options->metadata) && (end == text || !*end))
		return wrong(row, text, "not NAME=VALUE");
	if (strings == &options->headers && text[strcspn(text, "\r\n")])
		return wrong(row, "…", "a header is one line");
	strings->values[strings->count++] = text;
	return true;
}

static bool take_body(const struct row *row, const char *text, struct bench_options *options)
{
	static const char *const ours[] = { "stream", "messages", "prompt" };
	struct error error;
	json_t      *root;

	if (json_text_load(text, strlen(text), BENCH_LINE_DEPTH_MAX, &root, &error)) {
		tool_usage(COMMAND, "--%s: %s", row->name, error.message);
		return false;
	}
	json_decref(options->extra_body);
	options->extra_body = root;
	for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
		if (json_object_get(root, ours[i])) {
			tool_usage(COMMAND, "--%s: %s is set by the tool itself", row->name, ours[i]);
			return false;
		}
	return true;
}

static bool take_choice(const struct row *row, const char *text, const char *const *names, unsigned count, unsigned *ret)
{
	char   all[160] = "";
	size_t len = 0;

	for (unsigned i = 0; i < count; i++) {
		if (!strcmp(text, names[i])) {
			*ret = i;
			return true;
		}
		len += (size_t)snprintf(all + len, sizeof all - len, "%s%s", i ? ", " : "not one of ", names[i]);
	}
	return wrong(row, text, all);
}

static bool take(const struct row *row, const char *text, struct bench_options *options)
{
	static const char *const backends[] = { "openai", "openai-chat" };
	static const char *const datasets[] = { "random", "prefix_repetition", "custom", "trace" };
	void    *field = (char *)options + row->at;
	char     option[64];
	unsigned choice;

	snprintf(option, sizeof option, "--%s", row->name);
	switch (row->kind) {
	case SECTION:
		return true;
	case FLAG:
		*(bool *)field = true;
		return true;
	case WHOLE:
		return tool_int(COMMAND, option, text, (int64_t)row->min, row->max >= 0x1p63 ? INT64_MAX : (int64_t)row->max, field);
	case REAL:
		return parse_real(row, text, field);
	case TEMPERATURE:
		options->server_temperature = !strcmp(text, "server");
		return options->server_temperature || parse_real(row, text, field);
	case TEXT:
		if (!*text || strlen(text) > (size_t)row->max) {
			tool_usage(COMMAND, "%s %.200s: not 1 to %.0f bytes", option, text, row->max);
			return false;
		}
		*(const char **)field = text;
		return true;
	case STRINGS:
		return take_string(row, text, options);
	case LIST:
		((struct bench_list *)field)->count = 0;
		return each(row, text, options, take_list);
	case BACKEND:
		if (!take_choice(row, text, backends, 2, &choice))
			return false;
		options->chat = choice == 1;
		return true;
	case DATASET:
		if (!take_choice(row, text, datasets, 4, &choice))
			return false;
		options->dataset.kind = (enum bench_dataset_kind)choice;
		return true;
	case METRICS:
		memset(options->metrics, 0, sizeof options->metrics);
		return each(row, text, options, take_metric);
	case PERCENTILES:
		options->percentile_count = 0;
		return each(row, text, options, take_percentile);
	case GOODPUT:
		return take_goal(row, text, options);
	case JSON_TEXT:
		return take_body(row, text, options);
	}
	return false;
}

static void set_defaults(struct bench_options *options)
{
	*options = (struct bench_options){ .host = "127.0.0.1", .port = 8000, .chat = true, .connect_timeout_s = 10,
		.request_timeout_s = 600, .burstiness = 1, .input_len = -1, .output_len = -1, .random_input_len = -1,
		.random_output_len = -1, .prefix_len = 256, .suffix_len = -1, .prefix_count = 10, .prefix_output_len = -1,
		.custom_output_len = -1, .top_p = NAN, .top_k = NAN, .min_p = NAN, .frequency_penalty = NAN,
		.presence_penalty = NAN, .repetition_penalty = NAN, .percentiles = { 50, 90, 99 }, .percentile_count = 3 };
	for (unsigned m = 0; m < BENCH_METRIC_COUNT; m++) {
		options->metrics[m] = true;
		options->goals.limit_ms[m] = -1;
	}
}

/* A preset is a list of options that come before those of the command line. */
static bool apply_preset(const char *name, struct bench_options *options)
{
	static const struct preset {
		const char *name, *settings[8][2];
	} presets[] = {
		/* The profile of LMDeploy's published tables: prompts of 200, answers of 300 tokens, a fixed number of streams. */
		{ "lmdeploy", { { "dataset-name", "random" }, { "input-len", "200" }, { "output-len", "300" },
		    { "ignore-eos", "" }, { "max-concurrency", "1,4,8,16,32" }, { "num-warmups", "1" } } },
		/* Agents: a few long system prompts with tools, many short turns behind them. */
		{ "agents", { { "dataset-name", "prefix_repetition" }, { "prefix-repetition-prefix-len", "1500" },
		    { "input-len", "150" }, { "prefix-repetition-num-prefixes", "4" },
		    { "output-len", "100" }, { "ignore-eos", "" }, { "max-concurrency", "1,4,8,16" },
		    { "num-warmups", "1" } } },
	};
	for (size_t p = 0; p < sizeof presets / sizeof presets[0]; p++) {
		if (strcmp(presets[p].name, name))
			continue;
		for (unsigned s = 0; s < 8 && presets[p].settings[s][0]; s++)
			for (unsigned i = 0; i < ROW_COUNT; i++)
				if (rows[i].name && !strcmp(rows[i].name, presets[p].settings[s][0]) &&
				    !take(&rows[i], presets[p].settings[s][1], options))
					return false;
		options->per_stream = 3;
		return true;
	}
	tool_usage(COMMAND, "--preset %.64s: not one of lmdeploy, agents", name);
	return false;
}

static uint32_t first_given(int64_t a, int64_t b, int64_t fallback)
{
	return (uint32_t)(a >= 0 ? a : b >= 0 ? b : fallback);
}

/* What no single option can decide. */
static bool check(struct bench_options *options, bool has_url)
{
	struct bench_dataset_options *dataset = &options->dataset;
	bool     file = dataset->kind == BENCH_DATASET_CUSTOM || dataset->kind == BENCH_DATASET_TRACE;
	unsigned points = options->rates.count > options->concurrencies.count ? options->rates.count : options->concurrencies.count;

	if (file && !options->dataset_path)
		return !tool_usage(COMMAND, "--dataset-name custom and trace need --dataset-path FILE");
	if (!file && options->dataset_path)
		return !tool_usage(COMMAND, "--dataset-path %.200s: only for --dataset-name custom and trace", options->dataset_path);
	if (options->rates.count > 1 && options->concurrencies.count > 1)
		return !tool_usage(COMMAND, "only one of --request-rate and --max-concurrency may be a list");
	if (dataset->kind == BENCH_DATASET_TRACE && options->rates.count)
		return !tool_usage(COMMAND, "--request-rate: a trace has arrival times of its own");
	if (dataset->kind != BENCH_DATASET_TRACE && (options->trace_key_file || options->trace_priority))
		return !tool_usage(COMMAND, "--trace-key-file and --trace-priority need --dataset-name trace");
	if (options->counts.count > 1 && options->counts.count != (points ? points : 1))
		return !tool_usage(COMMAND, "--num-prompts: %u values for a sweep of %u runs", options->counts.count, points ? points : 1);
	if (options->labels.count && options->labels.count != (has_url ? options->urls.count : 1))
		return !tool_usage(COMMAND, "--label: %u values for %u servers", options->labels.count, has_url ? options->urls.count : 1);
	if (options->api_key && options->api_key_file)
		return !tool_usage(COMMAND, "one of --api-key and --api-key-file");
	if (options->endpoint && *options->endpoint != '/')
		return !tool_usage(COMMAND, "--endpoint %.200s: does not begin with /", options->endpoint);
	dataset->path = options->dataset_path;
	dataset->chat = options->chat;
	dataset->shuffle = !options->disable_shuffle;
	dataset->oversample = !options->no_oversample;
	dataset->classes = options->trace_priority;
	dataset->range_ratio = options->range_ratio;
	dataset->prefixes = (uint32_t)options->prefix_count;
	switch (dataset->kind) {
	case BENCH_DATASET_RANDOM:
		dataset->input_tokens = first_given(options->random_input_len, options->input_len, 1024);
		dataset->output_tokens = first_given(options->random_output_len, options->output_len, 128);
		dataset->prefix_tokens = (uint32_t)options->random_prefix_len;
		break;
	case BENCH_DATASET_PREFIX:
		dataset->input_tokens = first_given(options->suffix_len, options->input_len, 256);
		dataset->output_tokens = first_given(options->prefix_output_len, options->output_len, 128);
		dataset->prefix_tokens = (uint32_t)options->prefix_len;
		break;
	case BENCH_DATASET_CUSTOM:
	case BENCH_DATASET_TRACE:
		dataset->output_tokens = first_given(options->custom_output_len, options->output_len, 256);
	}
	if (!options->endpoint)
		options->endpoint = options->chat ? "/v1/chat/completions" : "/v1/completions";
	return true;
}

/* The value of --preset wherever it stands: its settings come first. */
static const char *find_preset(int argc, char **argv)
{
	const char *name = NULL;

	for (int i = 1; i < argc; i++) {
		if (!strncmp(argv[i], "--preset=", 9))
			name = argv[i] + 9;
		else if (!strcmp(argv[i], "--preset") && i + 1 < argc)
			name = argv[i + 1];
	}
	return name;
}

static bool takes_several(enum kind kind, const struct row *row)
{
	return kind == GOODPUT || (kind == STRINGS && (row->at == AT(headers) || row->at == AT(metadata)));
}

bool bench_options_parse(int argc, char **argv, struct bench_options *ret, int *ret_code)
{
	struct option     options[ROW_COUNT + 2] = { { "help", no_argument, NULL, 'h' } };
	const struct row *last = NULL; /* takes further values */
	const char       *preset = find_preset(argc, argv);
	unsigned          count = 1;
	int               c;

	set_defaults(ret);
	*ret_code = TOOL_USAGE;
	for (unsigned i = 0; i < ROW_COUNT; i++)
		if (rows[i].name)
			options[count++] = (struct option){ rows[i].name, rows[i].kind == FLAG ? no_argument : required_argument, NULL,
				(int)(OPTION_FIRST + i) };
	if (preset && !apply_preset(preset, ret))
		return false;
	/* "-": arguments that are no options come in their place, as option 1. */
	while ((c = getopt_long(argc, argv, "-h", options, NULL)) != -1) {
		if (c == 'h') {
			print_help();
			*ret_code = TOOL_OK;
			return false;
		}
		if (c == '?') {
			tool_usage(COMMAND, "wrong option");
			return false;
		}
		if (c == 1 && !last) {
			tool_usage(COMMAND, "unexpected argument %.200s", optarg);
			return false;
		}
		if (c != 1)
			last = &rows[c - OPTION_FIRST];
		if (!take(last, optarg ? optarg : "", ret))
			return false;
		if (!takes_several(last->kind, last))
			last = NULL;
	}
	if (optind < argc) {
		tool_usage(COMMAND, "unexpected argument %.200s", argv[optind]);
		return false;
	}
	return check(ret, ret->urls.count > 0);
}

void bench_options_free(struct bench_options *options)
{
	json_decref(options->extra_body);
	options->extra_body = NULL;
}
