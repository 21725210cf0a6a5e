/* eval_text.h: a checkpoint on a text: perplexity, and divergence from another checkpoint. */
#ifndef PENSTOCK_TOOLS_EVAL_TEXT_H
#define PENSTOCK_TOOLS_EVAL_TEXT_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { EVAL_TEXT_BYTES_MAX = 1 << 24, EVAL_CONTEXT_DEFAULT = 512, EVAL_CONTEXT_MIN = 4, EVAL_CONTEXT_MAX = 1 << 20 };

struct eval_text_options {
	const char *text, *model, *against; /* files; AGAINST NULL: none */
	const char *tokenizer;              /* NULL: the model's own */
	const char *state;                  /* file that an interrupted run goes on from; NULL: none */
	const char *backend, *dtype, *kernels, *backend_dir; /* as for tool_backend_open */
	const char *against_backend, *against_dtype, *against_kernels;
	const char *kv_dtype, *against_kv_dtype; /* what keys and values are kept in; NULL: auto */
	unsigned    threads;
	uint32_t    ranks;
	uint32_t    context, stride;        /* tokens of a window; 0: windows follow each other, their second half counts */
	uint32_t    windows;                /* at most; 0 = all */
	bool        check_weights, map_weights, round_inputs, json, quiet;
};

/* Prints what was found to standard output, and how far it is to standard error. */
enum status eval_text(const struct eval_text_options *options, struct error *error);

#endif
