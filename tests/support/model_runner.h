/* model_runner.h: runs a model without an engine, for tests and benchmarks: sequences with block tables of their own,
 * steps made of arbitrary pieces of them. */
#ifndef PENSTOCK_TESTS_MODEL_RUNNER_H
#define PENSTOCK_TESTS_MODEL_RUNNER_H

#include "cpu/cpu_backend.h"
#include "model/model.h"

#include <stdbool.h>

enum { RUNNER_SEQUENCES_MAX = 64, RUNNER_ROWS_MAX = 4096 };

struct runner_options {
	unsigned      threads;
	enum cpu_isa  isa;
	uint32_t      max_rows, block_size;
	uint32_t      sequences, max_context; /* of each */
	bool          scattered;              /* blocks of a sequence lie apart and backwards */
};

struct runner {
	struct backend *backend;
	struct model   *model;
	const struct model_info *info;
	uint32_t        block_size, blocks_each, sequences;
	uint32_t        length[RUNNER_SEQUENCES_MAX]; /* tokens in the cache */
	int32_t        *table[RUNNER_SEQUENCES_MAX];
	/* The last step's; the backend borrows them. */
	struct batch          batch;
	struct batch_sequence parts[RUNNER_SEQUENCES_MAX];
	int32_t tokens[RUNNER_ROWS_MAX], positions[RUNNER_ROWS_MAX], slots[RUNNER_ROWS_MAX], logit_rows[RUNNER_ROWS_MAX];
};

/* The next COUNT tokens of one sequence; the logits of the last LOGITS of them are wanted. */
struct runner_piece {
	uint32_t       sequence;
	const int32_t *tokens;
	uint32_t       count, logits;
};

/* From an open GGUF file, or from what model_source_open opened (once).  On failure nothing is left behind. */
enum status runner_open(const struct gguf *gguf, const struct runner_options *options, struct runner *ret,
    struct error *error);
enum status runner_open_source(const struct model_source *source, const struct runner_options *options,
    struct runner *ret, struct error *error);
void        runner_close(struct runner *runner);
void        runner_reset(struct runner *runner, uint32_t sequence); /* to length 0 */
/* One step; logits are then read with runner_logits, numbered in the order of pieces. */
enum status runner_step(struct runner *runner, const struct runner_piece *pieces, uint32_t count);
/* A draft over rows whose tokens are each the one after their position: piece i begins at position FROM[i]; see model_draft. */
enum status runner_draft(struct runner *runner, const struct runner_piece *pieces, const uint32_t *from, uint32_t count,
    const int32_t *hidden_rows, bool first);
void        runner_logits(struct runner *runner, uint32_t index, float *ret);
/* The lowest id of the largest. */
int32_t     runner_best(const float *logits, uint32_t vocab);

#endif
