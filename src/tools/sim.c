/* sim.c: `penstock sim`: the scheduler under a trace of requests, with invented time; traces for it; replay of recordings.
 *
 * Owns the options.  Invariant: the output depends on the input and the options only, but for the step times measured. */
#include "tools/sim_generate.h"
#include "tools/sim_replay.h"
#include "tools/sim_report.h"
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: penstock sim --trace FILE.csv --policy NAME --model-cost FILE.json [--json]\n"
    "       penstock sim --generate KIND [OPTION…] > FILE.csv\n"
    "       penstock sim --replay FILE\n"
    "\n"
    "Drives the scheduler of penstockd with requests from a trace and invented time, and shows what clients would see.\n"
    "\n"
    "  --trace FILE       CSV with a header line: arrival_s, prompt_tokens, output_tokens and, in any order, key, class,\n"
    "                     shared_prefix_id, shared_prefix_tokens, cancel_after_s; - is standard input\n"
    "  --policy NAME      fcfs, priority or fair (default)\n"
    "  --model-cost FILE  JSON object; a step takes fixed_us (0) + prefill_us_per_token a prompt token\n"
    "                     + decode_us_per_seq a decoding sequence + context_us_per_ktoken (0) a thousand tokens attended\n"
    "                     to; limits: kv_tokens, block (64), max_batch (64), step_tokens (2048), long_prompt_tokens\n"
    "                     (8192; 0 = none), max_queue_wait_s (300; 0 = none), itl_target_ms (0 = none)\n"
    "  --time-scale X     arrivals at X times their time (default 1; 0 = all at once)\n"
    "  --record FILE      writes down every call to the scheduler, for --replay\n"
    "  --json             one JSON object instead of a table\n"
    "\n"
    "  --generate KIND    writes a trace: poisson, bursty (gamma), onoff, chat (log-normal lengths, keys, classes, prefixes,\n"
    "                     cancels), mix (5 % long prompts), backlog (all at once, two keys)\n"
    "  --requests N       (default 10000)\n"
    "  --rate R           requests a second (default 10)\n"
    "  --seed S           (default 1); a run itself draws no random numbers\n"
    "  --burst X          bursty: squared coefficient of variation of the gaps (8); onoff: share of time that is on (0.3)\n"
    "  --prompt N[:S]     median and sigma of the log-normal number of prompt tokens\n"
    "  --output N[:S]     of output tokens\n"
    "  --long X[:N]       share of long prompts, and their median (32768)\n"
    "  --keys N[:S]       keys k1…kN; key i comes with weight 1 / i^S (default 0: evenly)\n"
    "  --classes N        classes 0…N−1, evenly\n"
    "  --prefixes N[:T]   prompts begin with T tokens more of one of N prefixes\n"
    "  --cancel X[:S]     share of requests whose client leaves, after S seconds on average\n"
    "\n"
    "  --replay FILE      gives the calls of a recording (penstockd's option record) to the scheduler again and compares\n"
    "                     every plan; exit status 1 when one differs\n";

enum { OPTION_TRACE = 256, OPTION_POLICY, OPTION_COST, OPTION_SCALE, OPTION_JSON, OPTION_GENERATE, OPTION_REQUESTS, OPTION_RATE,
    OPTION_SEED, OPTION_BURST, OPTION_PROMPT, OPTION_OUTPUT, OPTION_LONG, OPTION_KEYS, OPTION_CLASSES, OPTION_PREFIXES,
    OPTION_CANCEL, OPTION_REPLAY, OPTION_RECORD };

static const struct option options[] = {
	{ "trace", required_argument, NULL, OPTION_TRACE },
	{ "policy", required_argument, NULL, OPTION_POLICY },
	{ "model-cost", required_argument, NULL, OPTION_COST },
	{ "time-scale", required_argument, NULL, OPTION_SCALE },
	{ "json", no_argument, NULL, OPTION_JSON },
	{ "generate", required_argument, NULL, OPTION_GENERATE },
	{ "requests", required_argument, NULL, OPTION_REQUESTS },
	{ "rate", required_argument, NULL, OPTION_RATE },
	{ "seed", required_argument, NULL, OPTION_SEED },
	{ "burst", required_argument, NULL, OPTION_BURST },
	{ "prompt", required_argument, NULL, OPTION_PROMPT },
	{ "output", required_argument, NULL, OPTION_OUTPUT },
	{ "long", required_argument, NULL, OPTION_LONG },
	{ "keys", required_argument, NULL, OPTION_KEYS },
	{ "classes", required_argument, NULL, OPTION_CLASSES },
	{ "prefixes", required_argument, NULL, OPTION_PREFIXES },
	{ "cancel", required_argument, NULL, OPTION_CANCEL },
	{ "record", required_argument, NULL, OPTION_RECORD },
	{ "replay", required_argument, NULL, OPTION_REPLAY },
	{ "help", no_argument, NULL, 'h' },
	{ NULL, 0, NULL, 0 },
};

struct job {
	const char         *trace, *cost, *generate, *replay, *record;
	bool                json;
	double              time_scale;
	enum sched_policy   policy;
	struct sim_generate values;
};

/* "A" or "A:B"; the second may be missing (NULL: must be) and leaves *ret_b alone then. */
static bool parse_pair(const char *option, const char *text, double min_a, double max_a, double *ret_a, double min_b, double max_b,
    double *ret_b)
{
	char        first[64];
	const char *colon = strchr(text, ':');
	size_t      len = colon ? (size_t)(colon - text) : strlen(text);

	if (len >= sizeof first) {
		tool_usage("sim", "%s %.80s: too long", option, text);
		return false;
	}
	memcpy(first, text, len);
	first[len] = '\0';
	return tool_real("sim", option, first, min_a, max_a, ret_a) &&
	    (!colon || tool_real("sim", option, colon + 1, min_b, max_b, ret_b));
}

static bool parse_count(const char *option, const char *text, uint32_t max, uint32_t *ret)
{
	int64_t value;

	if (!tool_int("sim", option, text, 1, max, &value))
		return false;
	*ret = (uint32_t)value;
	return true;
}

/* One option of a generated trace; false after it complained. */
static bool set_value(int option, const char *text, struct sim_generate *values)
{
	double  count;
	int64_t seed;

	switch (option) {
	case OPTION_REQUESTS:
		return parse_count("--requests", text, SIM_REQUESTS_MAX, &values->requests);
	case OPTION_RATE:
		return tool_real("sim", "--rate", text, 1e-6, 1e9, &values->rate);
	case OPTION_SEED:
		if (!tool_int("sim", "--seed", text, 0, INT64_MAX, &seed))
			return false;
		values->seed = (uint64_t)seed;
		return true;
	case OPTION_BURST:
		if (!tool_real("sim", "--burst", text, 0.01, 1000, &values->burst))
			return false;
		if (values->arrivals != SIM_ON_OFF || values->burst <= 1)
			return true;
		tool_usage("sim", "--burst %s: the share of time that is on is at most 1", text);
		return false;
	case OPTION_PROMPT:
		return parse_pair("--prompt", text, 1, SIM_TOKENS_MAX, &values->prompt.median, 0, 5, &values->prompt.sigma);
	case OPTION_OUTPUT:
		return parse_pair("--output", text, 1, SIM_TOKENS_MAX, &values->output.median, 0, 5, &values->output.sigma);
	case OPTION_LONG:
		return parse_pair("--long", text, 0, 1, &values->long_share, 1, SIM_TOKENS_MAX, &values->long_prompt.median);
	case OPTION_KEYS:
		if (!parse_pair("--keys", text, 1, SIM_GENERATE_NAMES_MAX, &count, 0, 10, &values->key_skew))
			return false;
		values->keys = (uint32_t)count;
		return true;
	case OPTION_CLASSES:
		return parse_count("--classes", text, SIM_CLASSES_MAX, &values->classes);
	case OPTION_PREFIXES:
		if (!parse_pair("--prefixes", text, 0, SIM_GENERATE_NAMES_MAX, &count, 1, SIM_TOKENS_MAX, &values->prefix_tokens))
			return false;
		values->prefixes = (uint32_t)count;
		if (values->prefix_tokens < 1)
			values->prefix_tokens = 400;
		return true;
	case OPTION_CANCEL:
		if (values->cancel_s <= 0)
			values->cancel_s = 5;
		return parse_pair("--cancel", text, 0, 1, &values->cancel_share, 1e-6, SIM_SECONDS_MAX, &values->cancel_s);
	}
	return false;
}

static bool set_option(int option, const char *text, struct job *job)
{
	switch (option) {
	case OPTION_TRACE:
		job->trace = text;
		return true;
	case OPTION_COST:
		job->cost = text;
		return true;
	case OPTION_REPLAY:
		job->replay = text;
		return true;
	case OPTION_RECORD:
		job->record = text;
		return true;
	case OPTION_JSON:
		job->json = true;
		return true;
	case OPTION_GENERATE:
		return true; /* taken before all others */
	case OPTION_SCALE:
		return tool_real("sim", "--time-scale", text, 0, 1e6, &job->time_scale);
	case OPTION_POLICY:
		if (sim_policy_parse(text, &job->policy))
			return true;
		tool_usage("sim", "--policy %s: fcfs, priority or fair is needed", text);
		return false;
	}
	return set_value(option, text, &job->values);
}

static int out_of_memory(void)
{
	return tool_fail("sim", &(struct error){ .status = STATUS_NOMEM, .message = "out of memory" });
}

static int generate(const struct job *job)
{
	struct sim_trace trace;
	struct error     error;
	int              code = TOOL_OK;

	if (sim_trace_init(&trace))
		code = out_of_memory();
	else if (sim_generate(&job->values, &trace, &error) || sim_trace_write(&trace, stdout))
		code = ferror(stdout) ? TOOL_OK : tool_fail("sim", &error); /* main() complains of standard output */
	sim_trace_free(&trace);
	return code;
}

static int replay(const char *path)
{
	struct sim_replay result;
	struct error      error;
	FILE             *stream = fopen(path, "re");
	enum status       status;

	if (!stream) {
		error_set(&error, STATUS_IO, "%.160s: cannot open: %s", path, strerror(errno));
		return tool_fail("sim", &error);
	}
	status = sim_replay(stream, path, &result, &error);
	fclose(stream);
	if (status)
		return tool_fail("sim", &error);
	printf("%" PRIu64 " plans and %" PRIu64 " other calls: every plan is as it was%s\n", result.plans, result.calls - result.plans,
	    result.cut ? "; the recording had reached its limit" : "");
	return TOOL_OK;
}

static enum status read_trace(const char *path, struct sim_trace *ret, struct error *error)
{
	FILE       *stream = strcmp(path, "-") ? fopen(path, "re") : stdin;
	enum status status;

	if (!stream)
		return error_set(error, STATUS_IO, "%.160s: cannot open: %s", path, strerror(errno));
	status = sim_trace_read(stream, path, ret, error);
	if (stream != stdin)
		fclose(stream);
	return status;
}

static int simulate(const struct job *job)
{
	struct sim_trace  trace;
	struct sim_cost   cost;
	struct sim_result result = { .groups = NULL };
	struct error      error;
	enum status       status;
	struct sim_options run = { .cost = &cost, .policy = job->policy, .time_scale = job->time_scale };

	if (sim_trace_init(&trace))
		return out_of_memory();
	status = sim_cost_open(job->cost, &cost, &error);
	if (!status)
		status = read_trace(job->trace, &trace, &error);
	if (!status && job->record) {
		run.record = fopen(job->record, "we");
		if (!run.record)
			status = error_set(&error, STATUS_IO, "%.160s: cannot write: %s", job->record, strerror(errno));
	}
	if (!status)
		status = sim_run(&trace, &run, &result, &error);
	if (!status && !job->json)
		sim_report_table(&result, stdout);
	else if (!status && sim_report_json(&result, stdout))
		status = error_set(&error, STATUS_NOMEM, "out of memory");
	sim_result_free(&result);
	sim_trace_free(&trace);
	return status ? tool_fail("sim", &error) : TOOL_OK;
}

/* --generate sets the values that other options change, wherever it stands. */
static const char *find_kind(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--generate") == 0)
			return i + 1 < argc ? argv[i + 1] : "";
		if (strncmp(argv[i], "--generate=", strlen("--generate=")) == 0)
			return argv[i] + strlen("--generate=");
	}
	return NULL;
}

int tool_sim(int argc, char **argv)
{
	struct job job = { .policy = SCHED_FAIR, .time_scale = 1, .generate = find_kind(argc, argv) };
	int        c;

	if (!sim_generate_preset(job.generate ? job.generate : "poisson", &job.values))
		return tool_usage("sim", "--generate %.80s: poisson, bursty, onoff, chat, mix or backlog is needed", job.generate);
	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (c == 'h') {
			fputs(help, stdout);
			return TOOL_OK;
		}
		if (c == '?')
			return tool_usage("sim", "wrong option");
		if (!set_option(c, optarg, &job))
			return TOOL_USAGE;
	}
	if (optind != argc)
		return tool_usage("sim", "%.80s: only options are taken", argv[optind]);
	if (job.generate)
		return generate(&job);
	if (job.replay)
		return replay(job.replay);
	if (!job.trace || !job.cost)
		return tool_usage("sim", "--trace and --model-cost are needed, or --generate, or --replay");
	return simulate(&job);
}
