/* bench_dataset_file.h: reads the rows of a dataset from a file; private to bench_dataset*.c and their tests. */
#ifndef PENSTOCK_TOOLS_BENCH_DATASET_FILE_H
#define PENSTOCK_TOOLS_BENCH_DATASET_FILE_H

#include "tools/bench_dataset.h"

/* Adds the rows of LEN bytes of JSON lines, or of a trace; NAME is what messages call it.  On failure *dataset holds some rows
 * and is to be closed. */
enum status bench_dataset_read_custom(struct bench_dataset *dataset, const char *name, const char *bytes, size_t len,
    struct error *error);
enum status bench_dataset_read_trace(struct bench_dataset *dataset, const char *name, FILE *stream, struct error *error);

#endif
