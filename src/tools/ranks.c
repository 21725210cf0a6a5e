/* ranks.c: owns the loaded model of a command and the threads of its ranks, which live for one step each.  Does not own how
 * weights are cut (model/rank.c) nor how ranks add up (cpu/group.c).  Invariant: a rank whose step fails breaks the group, so
 * that no thread waits for it for ever. */
#include "tools/ranks.h"

#include <pthread.h>
#include <string.h>

/* Each rank reads the checkpoint for itself: what of it was taken is noted there. */
static enum status open_rank(const struct tool_ranks_options *options, uint32_t rank, struct tool_ranks *ranks,
    struct error *error)
{
	struct model_source  source = { .checkpoint = NULL };
	struct tool_backend *backend = &ranks->backends[rank];
	enum status          status = model_source_open(options->path, &source, error);

	if (status)
		return status;
	source.round_inputs = options->round_inputs;
	source.check_weights = options->check_weights;
	source.map_weights = options->map_weights;
	if (ranks->group)
		status = cpu_backend_create_rank(options->threads ? (options->threads + ranks->count - 1) / ranks->count : 1,
		    CPU_ISA_BEST, ranks->group, rank, &backend->backend, error);
	else
		status = tool_backend_open(options->backend, options->dtype, options->kernels, options->backend_dir, options->threads,
		    backend, error);
	if (!status)
		status = model_load(&source, backend->backend, &ranks->models[rank], error);
	if (!status && options->kv_dtype)
		status = model_set_kv_type(ranks->models[rank], options->kv_dtype, error);
	model_source_close(&source);
	return status;
}

enum status tool_ranks_open(const struct tool_ranks_options *options, struct tool_ranks *ret, struct error *error)
{
	struct tool_ranks ranks = { .count = options->ranks ? options->ranks : 1 };
	enum status       status = STATUS_OK;

	if (ranks.count > CPU_RANKS_MAX)
		return error_set(error, STATUS_LIMIT, "%u ranks, at most %d", ranks.count, CPU_RANKS_MAX);
	if (ranks.count > 1 && (strcmp(options->backend, "cpu") != 0 || (*options->dtype && strcmp(options->dtype, "float32") != 0)))
		return error_set(error, STATUS_UNSUPPORTED, "%u ranks in one process: only the CPU backend in float32 has them",
		    ranks.count);
	if (ranks.count > 1)
		status = cpu_group_create(ranks.count, &ranks.group, error);
	for (uint32_t rank = 0; rank < ranks.count && !status; rank++)
		status = open_rank(options, rank, &ranks, error);
	if (status) {
		tool_ranks_close(&ranks);
		return status;
	}
	*ret = ranks;
	return STATUS_OK;
}

void tool_ranks_close(struct tool_ranks *ranks)
{
	for (uint32_t rank = 0; rank < CPU_RANKS_MAX; rank++) {
		model_free(ranks->models[rank]);
		tool_backend_close(&ranks->backends[rank]);
	}
	cpu_group_destroy(ranks->group);
	memset(ranks, 0, sizeof *ranks);
}

enum status tool_ranks_plan(struct tool_ranks *ranks, uint32_t max_rows, uint32_t max_logit_rows, uint32_t block_size,
    uint32_t blocks, struct error *error)
{
	enum status status = STATUS_OK;

	for (uint32_t rank = 0; rank < ranks->count && !status; rank++)
		status = model_plan(ranks->models[rank], max_rows, max_logit_rows, block_size, blocks, error);
	return status;
}

struct rank_step {
	struct tool_ranks  *ranks;
	const struct batch *batch;
	const int32_t      *hidden_rows; /* NULL: a forward, else a draft */
	bool                first;
	uint32_t            rank;
	pthread_t           thread;
	enum status         status;
};

static void *run_rank(void *argument)
{
	struct rank_step *step = argument;

	struct model     *model = step->ranks->models[step->rank];

	step->status = step->hidden_rows ? model_draft(model, step->batch, step->hidden_rows, step->first) :
	    model_forward(model, step->batch);
	if (step->status && step->ranks->group)
		cpu_group_break(step->ranks->group);
	return NULL;
}

static enum status run_step(struct tool_ranks *ranks, const struct batch *batch, const int32_t *hidden_rows, bool first)
{
	struct rank_step steps[CPU_RANKS_MAX];
	uint32_t         started = 1;
	enum status      status = STATUS_OK;

	for (uint32_t rank = 0; rank < ranks->count; rank++)
		steps[rank] = (struct rank_step){ .ranks = ranks, .batch = batch, .hidden_rows = hidden_rows, .first = first,
			.rank = rank };
	for (; started < ranks->count; started++)
		if (pthread_create(&steps[started].thread, NULL, run_rank, &steps[started]))
			break;
	if (started < ranks->count) { /* they would wait for it */
		cpu_group_break(ranks->group);
		status = STATUS_NOMEM;
	}
	run_rank(&steps[0]);
	for (uint32_t rank = 1; rank < started; rank++)
		pthread_join(steps[rank].thread, NULL);
	/* The first reason, not that another rank had one. */
	for (uint32_t rank = 0; rank < started; rank++)
		if (steps[rank].status && (!status || status == STATUS_UNAVAILABLE))
			status = steps[rank].status;
	return status;
}

enum status tool_ranks_forward(struct tool_ranks *ranks, const struct batch *batch)
{
	return run_step(ranks, batch, NULL, false);
}

enum status tool_ranks_draft(struct tool_ranks *ranks, const struct batch *batch, const int32_t *hidden_rows, bool first)
{
	return run_step(ranks, batch, hidden_rows, first);
}
