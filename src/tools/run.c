/* run.c: owns the arrays of a step and the one sequence's block table.  Does not own model and backend.  Invariant: blocks
 * 0, 1, 2, … of every KV group are the sequence's, in this order, so a position is its own slot. */
#include "tools/run.h"

#include <stdlib.h>
#include <string.h>

enum status tool_run_open(struct tool_ranks *ranks, uint32_t capacity, struct tool_run *ret, struct error *error)
{
	struct tool_run run = { .ranks = ranks, .info = model_info(ranks->models[0]), .capacity = capacity };
	uint32_t        blocks = (capacity + TOOL_RUN_BLOCK - 1) / TOOL_RUN_BLOCK, rows = capacity;
	enum status     status;

	/* An encoder sees a sequence whole. */
	if (!run.info->encoder && rows > TOOL_RUN_ROWS)
		rows = TOOL_RUN_ROWS;
	status = tool_ranks_plan(ranks, rows, TOOL_RUN_LOGITS < rows ? TOOL_RUN_LOGITS : rows, TOOL_RUN_BLOCK, blocks, error);
	if (status)
		return status;
	run.table = calloc(blocks, sizeof *run.table);
	run.tokens = calloc(rows, sizeof *run.tokens);
	run.positions = calloc(rows, sizeof *run.positions);
	run.slots = calloc(rows, sizeof *run.slots);
	run.logit_rows = calloc(TOOL_RUN_LOGITS, sizeof *run.logit_rows);
	run.hidden_rows = calloc(rows, sizeof *run.hidden_rows);
	if (!run.hidden_rows || !run.table || !run.tokens || !run.positions || !run.slots || !run.logit_rows) {
		tool_run_close(&run);
		return error_set(error, STATUS_NOMEM, "out of memory for a step of %u tokens", rows);
	}
	for (uint32_t i = 0; i < rows; i++)
		run.hidden_rows[i] = (int32_t)i;
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
	free(run->hidden_rows);
	memset(run, 0, sizeof *run);
}

static inline struct backend *backend_of(const struct tool_run *run) { return tool_ranks_backend(run->ranks); }

/* One step of ROWS tokens after FROM others, or a first draft after such a one; positions are filled in. */
static enum status step(struct tool_run *run, const int32_t *tokens, uint32_t from, uint32_t rows, uint32_t logit_rows,
    bool draft, struct error *error)
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
	status = draft ? tool_ranks_draft(run->ranks, &batch, run->hidden_rows, true) : tool_ranks_forward(run->ranks, &batch);
	if (status)
		return error_set(error, status, "a step of %u tokens at %u: %s", rows, from, status_text(status));
	return backend_of(run)->ops->wait(backend_of(run), NULL, 0, error);
}

static enum status check_length(const struct tool_run *run, uint32_t from, uint32_t count, struct error *error)
{
	if (count >= 1 && from <= run->capacity && count <= run->capacity - from)
		return STATUS_OK;
	return error_set(error, STATUS_INVALID, "%u tokens at %u: the sequence has room for %u", count, from, run->capacity);
}

/* Tokens in pieces, those WANTED giving logits; DRAFT: of the layer that drafts, for which TOKENS [count + 1]. */
static enum status run_pieces(struct tool_run *run, const int32_t *tokens, uint32_t from, uint32_t count,
    const uint32_t *wanted, uint32_t wanted_count, bool draft, float *ret, struct error *error)
{
	uint32_t    vocab = run->info->vocab, next = 0;
	enum status status = STATUS_OK;

	for (uint32_t done = 0, rows; done < count && !status; done += rows) {
		uint32_t logits = 0;

		for (rows = 0; rows < TOOL_RUN_ROWS && done + rows < count && logits < TOOL_RUN_LOGITS; rows++) {
			run->positions[rows] = (int32_t)(from + done + rows);
			if (next + logits < wanted_count && wanted[next + logits] == done + rows)
				run->logit_rows[logits++] = (int32_t)rows;
		}
		status = step(run, tokens + done, from + done, rows, draft ? 0 : logits, false, error);
		if (!status && draft)
			status = step(run, tokens + done + 1, from + done, rows, logits, true, error);
		for (uint32_t i = 0; i < logits && !status; i++) {
			status = backend_of(run)->ops->read_logits(backend_of(run), i, ret + (size_t)(next + i) * vocab, vocab);
			if (status)
				error_set(error, status, "cannot read logits: %s", status_text(status));
		}
		next += logits;
	}
	return status;
}

enum status tool_run_logits(struct tool_run *run, const int32_t *tokens, uint32_t from, uint32_t count,
    const uint32_t *wanted, uint32_t wanted_count, float *ret, struct error *error)
{
	enum status status = check_length(run, from, count, error);

	return status ? status : run_pieces(run, tokens, from, count, wanted, wanted_count, false, ret, error);
}

enum status tool_run_drafts(struct tool_run *run, const int32_t *tokens, uint32_t count, const uint32_t *wanted,
    uint32_t wanted_count, float *ret, struct error *error)
{
	enum status status = count < 2 || !run->info->draft_layers ? error_set(error, STATUS_INVALID,
	    "drafts for %u tokens: two are needed, and a layer that drafts", count) : check_length(run, 0, count, error);

	return status ? status : run_pieces(run, tokens, 0, count - 1, wanted, wanted_count, true, ret, error);
}

enum status tool_run_embedding(struct tool_run *run, const int32_t *tokens, uint32_t count, float *ret,
    struct error *error)
{
	enum status status = check_length(run, 0, count, error);

	if (status)
		return status;
	model_positions(run->ranks->models[0], tokens, count, run->positions);
	run->logit_rows[0] = 0;
	status = step(run, tokens, 0, count, 1, false, error);
	if (status)
		return status;
	status = backend_of(run)->ops->read_pooled(backend_of(run), 0, ret, run->info->width);
	return status ? error_set(error, status, "cannot read the embedding: %s", status_text(status)) : STATUS_OK;
}
