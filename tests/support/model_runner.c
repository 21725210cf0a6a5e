/* model_runner.c: see model_runner.h. */
#include "support/model_runner.h"

#include <stdlib.h>
#include <string.h>

enum status runner_open_source(const struct model_source *source, const struct runner_options *options,
    struct runner *ret, struct error *error)
{
	uint32_t    blocks;
	enum status status;

	memset(ret, 0, sizeof *ret);
	ret->block_size = options->block_size;
	ret->blocks_each = (options->max_context + options->block_size - 1) / options->block_size;
	ret->sequences = options->sequences;
	blocks = ret->blocks_each * options->sequences;
	status = cpu_backend_create_isa(options->threads, options->isa, &ret->backend, error);
	if (status == STATUS_OK)
		status = model_load(source, ret->backend, &ret->model, error);
	if (status == STATUS_OK)
		status = model_plan(ret->model, options->max_rows, options->max_rows, options->block_size, blocks, error);
	for (uint32_t s = 0; status == STATUS_OK && s < options->sequences; s++) {
		ret->table[s] = malloc(ret->blocks_each * sizeof(int32_t));
		for (uint32_t i = 0; ret->table[s] && i < ret->blocks_each; i++)
			ret->table[s][i] = options->scattered ? (int32_t)(blocks - 1 - (i * options->sequences + s))
			                                      : (int32_t)(s * ret->blocks_each + i);
		status = ret->table[s] ? STATUS_OK : error_set(error, STATUS_NOMEM, "out of memory");
	}
	if (status)
		runner_close(ret);
	else
		ret->info = model_info(ret->model);
	return status;
}

enum status runner_open(const struct gguf *gguf, const struct runner_options *options, struct runner *ret,
    struct error *error)
{
	struct model_source source = { .checkpoint = NULL };
	enum status         status = checkpoint_from_gguf(gguf, &source.checkpoint, error);

	if (status == STATUS_OK)
		status = runner_open_source(&source, options, ret, error);
	checkpoint_close(source.checkpoint);
	return status;
}

void runner_close(struct runner *runner)
{
	for (uint32_t s = 0; s < RUNNER_SEQUENCES_MAX; s++)
		free(runner->table[s]);
	model_free(runner->model);
	if (runner->backend)
		runner->backend->ops->destroy(runner->backend);
	memset(runner, 0, sizeof *runner);
}

void runner_reset(struct runner *runner, uint32_t sequence) { runner->length[sequence] = 0; }

/* The batch of PIECES, each from position FROM[i] on. */
static enum status make_batch(struct runner *runner, const struct runner_piece *pieces, const uint32_t *from, uint32_t count)
{
	struct batch *batch = &runner->batch;

	*batch = (struct batch){ .sequence_count = count, .tokens = runner->tokens, .positions = runner->positions,
		.sequences = runner->parts, .logit_rows = runner->logit_rows };
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		batch->kv_slots[g] = runner->slots;
	for (uint32_t i = 0; i < count; i++) {
		const struct runner_piece *piece = &pieces[i];

		if (batch->rows + piece->count > RUNNER_ROWS_MAX)
			return STATUS_LIMIT;
		runner->parts[i] = (struct batch_sequence){ .first_row = batch->rows, .rows = piece->count,
			.context = from[i] + piece->count, .blocks = runner->blocks_each };
		for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
			runner->parts[i].block_table[g] = runner->table[piece->sequence];
		for (uint32_t t = 0; t < piece->count; t++) {
			uint32_t position = from[i] + t, row = batch->rows++;
			int32_t  block = runner->table[piece->sequence][position / runner->block_size];

			runner->tokens[row] = piece->tokens[t];
			runner->positions[row] = (int32_t)position;
			runner->slots[row] = block * (int32_t)runner->block_size + (int32_t)(position % runner->block_size);
			if (t + piece->logits >= piece->count)
				runner->logit_rows[batch->logit_row_count++] = (int32_t)row;
		}
	}
	return STATUS_OK;
}

enum status runner_step(struct runner *runner, const struct runner_piece *pieces, uint32_t count)
{
	uint32_t    from[RUNNER_SEQUENCES_MAX];
	enum status status;

	for (uint32_t i = 0; i < count; i++)
		from[i] = runner->length[pieces[i].sequence];
	status = make_batch(runner, pieces, from, count);
	status = status ? status : model_forward(runner->model, &runner->batch);
	if (status)
		return status;
	for (uint32_t i = 0; i < count; i++)
		runner->length[pieces[i].sequence] += pieces[i].count;
	return runner->backend->ops->wait(runner->backend, NULL, 0, NULL);
}

enum status runner_draft(struct runner *runner, const struct runner_piece *pieces, const uint32_t *from, uint32_t count,
    const int32_t *hidden_rows, bool first)
{
	enum status status = make_batch(runner, pieces, from, count);

	status = status ? status : model_draft(runner->model, &runner->batch, hidden_rows, first);
	return status ? status : runner->backend->ops->wait(runner->backend, NULL, 0, NULL);
}

void runner_logits(struct runner *runner, uint32_t index, float *ret)
{
	if (runner->backend->ops->read_logits(runner->backend, index, ret, runner->info->vocab))
		abort();
}

int32_t runner_best(const float *logits, uint32_t vocab)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}
