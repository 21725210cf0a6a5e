/* penstock.c: owns the command table, the usage texts of the whole tool and the helpers of tool.h.  Every command lives
 * in a file of its own.  Invariant: results go to standard output, everything else to standard error. */
#include "config.h"

#include "tools/tool.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary;
} commands[] = {
	{ "status", tool_status, "show whether penstockd lives and what it does" },
	{ "top", tool_top, "watch what penstockd does, second by second" },
	{ "blackbox", tool_blackbox, "show the last step plans, also of a penstockd that died" },
	{ "drain", tool_drain, "let penstockd finish its requests and end" },
	{ "key", tool_key, "make, list and revoke API keys" },
	{ "generate", tool_generate, "run a model in this process and print what it writes" },
	{ "tokenize", tool_tokenize, "text to token ids, JSON lines" },
	{ "detokenize", tool_detokenize, "token ids to text, JSON lines" },
	{ "render", tool_render, "chat template and messages to text, JSON lines" },
	{ "eval", tool_eval, "compare a checkpoint with reference outputs, or with another one on a text" },
	{ "quantise", tool_quantise, "round a checkpoint's layers to fewer bits" },
	{ "inspect", tool_inspect, "show what a checkpoint holds and whether it would load" },
	{ "bench", tool_bench, "measure a running server: latencies, throughput, goodput" },
	{ "plan", tool_plan, "show what fits beside a model's weights" },
	{ "sim", tool_sim, "run the scheduler under a trace of requests, with invented time" },
	{ "config", tool_config, "check, dump or sample penstock.conf" },
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void usage(FILE *stream)
{
	fputs("usage: penstock COMMAND [OPTION…]\n\n", stream);
	for (size_t i = 0; i < COMMAND_COUNT; i++)
		fprintf(stream, "  %-11s %s\n", commands[i].name, commands[i].summary);
	fputs("\n`penstock COMMAND --help` explains one command.  Exit status: 0 done, 1 failed, 2 wrong usage.\n", stream);
}

int tool_fail(const char *command, const struct error *error)
{
	fprintf(stderr, "penstock %s: %s\n", command, error->message);
	return TOOL_FAILED;
}

int tool_usage(const char *command, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "penstock %s: ", command);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, " (see `penstock %s --help`)\n", command);
	return TOOL_USAGE;
}

bool tool_load_conf(const char *command, const char *path, struct conf *ret)
{
	struct error error;

	if (!conf_load(path ? path : PENSTOCK_CONF, ret, &error))
		return true;
	tool_fail(command, &error);
	return false;
}

bool tool_int(const char *command, const char *option, const char *text, int64_t min, int64_t max, int64_t *ret)
{
	char     *end;
	long long value;

	errno = 0;
	value = strtoll(text, &end, 10);
	if (end == text || *end || errno || value < min || value > max) {
		tool_usage(command, "%s %s: not a whole number in %lld…%lld", option, text, (long long)min, (long long)max);
		return false;
	}
	*ret = value;
	return true;
}

bool tool_size(const char *command, const char *option, const char *text, uint64_t *ret)
{
	static const char suffixes[] = "KMGT";
	char             *end;
	double            value = strtod(text, &end);
	const char       *suffix = *end ? strchr(suffixes, *end & ~0x20) : NULL;

	if (suffix) {
		value = ldexp(value, 10 * (int)(suffix - suffixes + 1));
		end++;
	}
	if (end == text || *end || !(value >= 1 && value < 0x1p63)) {
		tool_usage(command, "%s %s: not a number of bytes; it may end in K, M, G or T", option, text);
		return false;
	}
	*ret = (uint64_t)value;
	return true;
}

bool tool_real(const char *command, const char *option, const char *text, double min, double max, double *ret)
{
	char  *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max)) {
		tool_usage(command, "%s %s: not a number in %g…%g", option, text, min, max);
		return false;
	}
	*ret = value;
	return true;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		usage(stderr);
		return TOOL_USAGE;
	}
	if (!strcmp(argv[1], "help") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
		usage(stdout);
		return TOOL_OK;
	}
	if (!strcmp(argv[1], "--version")) {
		puts("penstock " VERSION);
		return TOOL_OK;
	}
	for (size_t i = 0; i < COMMAND_COUNT; i++) {
		if (strcmp(argv[1], commands[i].name))
			continue;
		int code = commands[i].run(argc - 1, argv + 1);
		if ((fflush(stdout) || ferror(stdout)) && code == TOOL_OK) {
			fprintf(stderr, "penstock %s: cannot write the result: %s\n", argv[1], strerror(errno));
			return TOOL_FAILED;
		}
		return code;
	}
	fprintf(stderr, "penstock: unknown command %s\n\n", argv[1]);
	usage(stderr);
	return TOOL_USAGE;
}
