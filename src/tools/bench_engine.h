/* bench_engine.h: `penstock bench engine` and `penstock bench kernels`: steps of a model on a backend, and the operations
 * they are made of, without daemons or HTTP. */
#ifndef PENSTOCK_TOOLS_BENCH_ENGINE_H
#define PENSTOCK_TOOLS_BENCH_ENGINE_H

int bench_engine(int argc, char **argv);
int bench_kernels(int argc, char **argv);

#endif
