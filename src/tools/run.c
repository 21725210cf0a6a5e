/* run.c: owns the arrays of a step and the one sequence's block table.  Does not own model and backend.  Invariant: blocks
 * 0, 1, 2, … of every KV group are the sequence's, in this order, so a position is its own slot. */
#include "tools/run.h"

#include <stdlib.h>
#include <string.h>

enum status tool_run_open(struct backend *backend, struct model *model, uint32_t capacity, struct tool_run *ret,
    struct error *error)
{
	struct tool_run run = { .backend = backend, .model = model, .info = model_info(model), .capacity = capacity };
	uint32_t        blocks = (capacity + TOOL_RUN_BLOCK - 1) / TOOL_RUN_BLOCK, rows = capacity;
	enum status     status;

	/* An encoder sees a sequence whole. */
	if (!run.info->encoder && rows > TOOL_RUN_ROWS)
		rows = TOOL_RUN_ROWS;
	status = model_plan(model, rows, TOOL_RUN_LOGITS < rows ? TOOL_RUN_LOGITS : rows, TOOL_RUN_BLOCK, blocks, error);
	if (status)
		return status;
	run.table = calloc(blocks, sizeof *run.table);
	run.tokens = calloc(rows, sizeof *run.tokens);
	run.positions = calloc(rows, sizeof *run.positions);
	run.slots = calloc(rows, sizeof *run.slots);
	run.logit_rows = calloc(TOOL_RUN_LOGITS, sizeof *run.logit_rows);
	if (!run.table || !run.tokens || !run.positions || !run.slots || !run.logit_rows) {
		tool_run_close(&run);
		return error_set(error, STATUS_NOMEM, "out of memory for a step of %u tokens", rows);
	}
	for (uint32_t i = 0; i < blocks; i++)
		run.table[i] = (int32_t)i;
	*ret = run;
	return STATUS_OK;
}

void tool_run_close(struct tool_run *run)
{
	free(run->table);
	free(run->tokens);
	free(run->positions);
	free(run->slots);
	free(run->logit_rows);
	memset(run, 0, sizeof *run);
}

/* One step of ROWS tokens after FROM others; positions are filled in. */
static enum status step(struct tool_run *run, const int32_t *tokens, uint32_t from, uint32_t rows, uint32_t logit_rows,
    struct error *error)
{
	struct batch_sequence sequence = { .rows = rows, .context = from + rows,
		.blocks = (run->capacity + TOOL_RUN_BLOCK - 1) / TOOL_RUN_BLOCK };
	struct batch          batch = { .rows = rows, .sequence_count = 1, .tokens = run->tokens, .positions = run->positions,
		.sequences = &sequence, .logit_row_count = logit_rows, .logit_rows = run->logit_rows };
	enum status           status;

	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++) {
		sequence.block_table[g] = run->table;
		batch.kv_slots[g] = run->slots;
	}
	memcpy(run->tokens, tokens, rows * sizeof *tokens);
	for (uint32_t i = 0; i < rows; i++)
		run->slots[i] = (int32_t)(from + i);
	status = model_forward(run->model, &batch);
	if (status)
		return error_set(error, status, "a step of %u tokens at %u: %s", rows, from, status_text(status));
	return run->backend->ops->wait(run->backend, NULL, 0, error);
}

static enum status check_length(const struct tool_run *run, uint32_t from, uint32_t count, struct error *error)
{
	if (count >= 1 && from <= run->capacity && count <= run->capacity - from)
		return STATUS_OK;
	return error_set(error, STATUS_INVALID, "%u tokens at %u: the sequence has room for %u", count, from, run->capacity);
}

enum status tool_run_logits(struct tool_run *run, const int32_t *tokens, uint32_t from, uint32_t count,
    const uint32_t *wanted, uint32_t wanted_count, float *ret, struct error *error)
{
	uint32_t    vocab = run->info->vocab, next = 0;
	enum status status = check_length(run, from, count, error);

	for (uint32_t done = 0, rows; done < count && !status; done += rows) {
		uint32_t logits = 0;

		for (rows = 0; rows < TOOL_RUN_ROWS && done + rows < count && logits < TOOL_RUN_LOGITS; rows++) {
			run->positions[rows] = (int32_t)(from + done + rows);
			if (next + logits < wanted_count && wanted[next + logits] == done + rows)
				run->logit_rows[logits++] = (int32_t)rows;
		}
		status = step(run, tokens + done, from + done, rows, logits, error);
		for (uint32_t i = 0; i < logits && !status; i++) {
			status = run->backend->ops->read_logits(run->backend, i, ret + (size_t)(next + i) * vocab, vocab);
			if (status)
				error_set(error, status, "cannot read logits: %s", status_text(status));
		}
		next += logits;
	}
	return status;
}

enum status tool_run_embedding(struct tool_run *run, const int32_t *tokens, uint32_t count, float *ret,
    struct error *error)
{
	enum status status = check_length(run, 0, count, error);

	if (status)
		return status;
	model_positions(run->model, tokens, count, run->positions);
	run->logit_rows[0] = 0;
	status = step(run, tokens, 0, count, 1, error);
	if (status)
		return status;
	status = run->backend->ops->read_pooled(run->backend, 0, ret, run->info->width);
	return status ? error_set(error, status, "cannot read the embedding: %s", status_text(status)) : STATUS_OK;
}
