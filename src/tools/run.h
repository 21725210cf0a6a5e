/* run.h: one sequence through a model without an engine, for the commands that look at numbers: whole prompts in, chosen
 * rows of logits or an embedding out. */
#ifndef PENSTOCK_TOOLS_RUN_H
#define PENSTOCK_TOOLS_RUN_H

#include "tools/ranks.h"

enum { TOOL_RUN_ROWS = 256, TOOL_RUN_LOGITS = 32, TOOL_RUN_BLOCK = 64 };

struct tool_run {
	struct tool_ranks       *ranks;
	const struct model_info *info; /* rank 0's */
	uint32_t        capacity; /* tokens that fit */
	int32_t        *table;    /* block numbers: 0, 1, 2, … */
	int32_t        *tokens, *positions, *slots, *logit_rows, *hidden_rows; /* of a step */
};

/* Plans the model of RANKS, which is borrowed, for one sequence of up to CAPACITY tokens. */
enum status tool_run_open(struct tool_ranks *ranks, uint32_t capacity, struct tool_run *ret, struct error *error);
void        tool_run_close(struct tool_run *run); /* half-open ones are fine */

/* Tokens at positions [FROM, FROM + COUNT), of which WANTED (ascending, relative to FROM) give logits:
 * ret [wanted_count][vocab].  What was at FROM and after it is forgotten.  In pieces of at most TOOL_RUN_ROWS. */
enum status tool_run_logits(struct tool_run *run, const int32_t *tokens, uint32_t from, uint32_t count,
    const uint32_t *wanted, uint32_t wanted_count, float *ret, struct error *error);
/* The same for logits of the layer that drafts, of a model that has one, with a sequence that begins with TOKENS: at a WANTED
 * position p < COUNT − 1 it sees the hidden state at p and the token after it. */
enum status tool_run_drafts(struct tool_run *run, const int32_t *tokens, uint32_t count, const uint32_t *wanted,
    uint32_t wanted_count, float *ret, struct error *error);
/* A whole sequence through an encoder: ret [width]. */
enum status tool_run_embedding(struct tool_run *run, const int32_t *tokens, uint32_t count, float *ret,
    struct error *error);

#endif
