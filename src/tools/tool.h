/* tool.h: what the commands of `penstock` share.  Exit codes: 0 done, 1 failed, 2 wrong usage. */
#ifndef PENSTOCK_TOOLS_TOOL_H
#define PENSTOCK_TOOLS_TOOL_H

#include "base/conf.h"
#include "base/status.h"

#include <stdbool.h>

enum { TOOL_OK, TOOL_FAILED, TOOL_USAGE };

/* A command gets its own argv (argv[0] is its name) and returns an exit code. */
int tool_bench(int argc, char **argv);
int tool_blackbox(int argc, char **argv);
int tool_config(int argc, char **argv);
int tool_detokenize(int argc, char **argv);
int tool_drain(int argc, char **argv);
int tool_eval(int argc, char **argv);
int tool_generate(int argc, char **argv);
int tool_inspect(int argc, char **argv);
int tool_key(int argc, char **argv);
int tool_plan(int argc, char **argv);
int tool_quantise(int argc, char **argv);
int tool_sim(int argc, char **argv);
int tool_status(int argc, char **argv);
int tool_render(int argc, char **argv);
int tool_tokenize(int argc, char **argv);
int tool_top(int argc, char **argv);

/* Prints "penstock COMMAND: message" to standard error and returns TOOL_FAILED / TOOL_USAGE.  The usage variant adds a
 * pointer to --help. */
int tool_fail(const char *command, const struct error *error);
int tool_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Loads PATH (NULL: the installed penstock.conf); complains itself. */
bool tool_load_conf(const char *command, const char *path, struct conf *ret);

/* Whole numbers and reals from the command line, with the range in the complaint; false after it complained. */
bool tool_int(const char *command, const char *option, const char *text, int64_t min, int64_t max, int64_t *ret);
/* Bytes: a number that may end in K, M, G or T (powers of 1024). */
bool tool_size(const char *command, const char *option, const char *text, uint64_t *ret);
bool tool_real(const char *command, const char *option, const char *text, double min, double max, double *ret);

#endif
