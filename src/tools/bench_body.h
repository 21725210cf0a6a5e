/* bench_body.h: the JSON body of a request. */
#ifndef PENSTOCK_TOOLS_BENCH_BODY_H
#define PENSTOCK_TOOLS_BENCH_BODY_H

#include "tools/bench_options.h"

/* *ret_text is the caller's to free; members of --extra-body replace those the tool sets. */
enum status bench_body_make(const struct bench_options *options, const struct bench_dataset *dataset,
    const struct bench_item *item, const char *model, char **ret_text, size_t *ret_len, struct error *error);

#endif
