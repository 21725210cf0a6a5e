/* ranks.h: a checkpoint loaded for the commands that compute: onto one backend, or onto several ranks of the CPU backend in
 * this process, each with its part of the weights and a thread of its own. */
#ifndef PENSTOCK_TOOLS_RANKS_H
#define PENSTOCK_TOOLS_RANKS_H

#include "cpu/cpu_backend.h"
#include "model/model.h"
#include "tools/backend.h"

#include <stdbool.h>

struct tool_ranks_options {
	const char *path;
	const char *backend, *dtype, *kernels, *backend_dir; /* as for tool_backend_open */
	const char *kv_dtype;     /* as for model_set_kv_type; NULL = auto */
	unsigned    threads;      /* of all ranks together; 0 = one each, alone as many as the process may run on */
	uint32_t    ranks;        /* more than one: of the CPU backend only */
	bool        round_inputs, check_weights, map_weights; /* of struct model_source */
};

struct tool_ranks {
	uint32_t            count;
	struct cpu_group   *group; /* NULL for one rank */
	struct tool_backend backends[CPU_RANKS_MAX];
	struct model       *models[CPU_RANKS_MAX];
};

enum status tool_ranks_open(const struct tool_ranks_options *options, struct tool_ranks *ret, struct error *error);
void        tool_ranks_close(struct tool_ranks *ranks); /* leaves it empty; empty ones are fine */

/* model_plan and model_forward on all ranks.  Results are then read from rank 0. */
enum status tool_ranks_plan(struct tool_ranks *ranks, uint32_t max_rows, uint32_t max_logit_rows, uint32_t block_size,
    uint32_t blocks, struct error *error);
enum status tool_ranks_forward(struct tool_ranks *ranks, const struct batch *batch);
/* model_draft on all ranks. */
enum status tool_ranks_draft(struct tool_ranks *ranks, const struct batch *batch, const int32_t *hidden_rows, bool first);

static inline struct backend *tool_ranks_backend(const struct tool_ranks *ranks) { return ranks->backends[0].backend; }

#endif
