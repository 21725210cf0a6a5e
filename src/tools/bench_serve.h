/* bench_serve.h: `penstock bench serve`. */
#ifndef PENSTOCK_TOOLS_BENCH_SERVE_H
#define PENSTOCK_TOOLS_BENCH_SERVE_H

int bench_serve(int argc, char **argv); /* argv[0] is "serve"; an exit code of tool.h */

#endif
