/* bench.c: `penstock bench`: names its subcommands and hands over. */
#include "tools/bench_engine.h"
#include "tools/bench_serve.h"
#include "tools/tool.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: penstock bench serve | engine | kernels [OPTION…]\n"
    "\n"
    "  serve   measure a running server over HTTP: latencies, throughput, goodput\n"
    "  engine  time the steps of a model on a backend, against what its memory allows\n"
    "  kernels time the operations of a decode step, one by one\n"
    "\n"
    "`penstock bench serve --help`, and so on, explain their options.\n";

int tool_bench(int argc, char **argv)
{
	if (argc < 2)
		return tool_usage("bench", "name what to measure: serve, engine or kernels");
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
		fputs(help, stdout);
		return TOOL_OK;
	}
	if (!strcmp(argv[1], "serve"))
		return bench_serve(argc - 1, argv + 1);
	if (!strcmp(argv[1], "engine"))
		return bench_engine(argc - 1, argv + 1);
	if (!strcmp(argv[1], "kernels"))
		return bench_kernels(argc - 1, argv + 1);
	return tool_usage("bench", "unknown subcommand %.64s", argv[1]);
}
