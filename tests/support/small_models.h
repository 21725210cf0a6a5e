/* small_models.h: what unit tests of the small checkpoints in tests/data share: opening one, and that a row's logits have the
 * same bits however a prompt is cut into steps, wherever its blocks lie, whatever else is in the batch, with one thread or
 * three.  Failures are Check's. */
#ifndef PENSTOCK_TESTS_SMALL_MODELS_H
#define PENSTOCK_TESTS_SMALL_MODELS_H

#include "support/model_runner.h"

enum { PROMPT = 290, BATCH = 8, BLOCK = 16, VOCAB = 96 };
enum { MAPPED = 1, EXPANDED = 2, WITHOUT_DRAFT = 4 }; /* flags */

/* The path of tests/data/NAME, FILE after it; NAME: dense/llama, … */
void small_model_path(const char *name, const char *file, char ret[512]);

/* To be closed by small_model_close. */
struct runner *small_model_open(const char *name, unsigned flags, const struct runner_options *options);
void           small_model_close(struct runner *runner);

/* Tokens [PROMPT] that depend on SEED. */
void small_model_prompt(int32_t *ret, uint32_t seed);

/* One piece of one sequence; its last row's logits [VOCAB] go to RET where that is not NULL. */
void small_model_run(struct runner *runner, uint32_t sequence, const int32_t *tokens, uint32_t count, float *ret);

/* One thread, one sequence, a whole prompt in a step. */
struct runner_options small_model_whole_options(enum cpu_isa isa);

/* The last row's logits of a whole prompt in one step, the measure of the others. */
void small_model_whole(const char *name, unsigned flags, enum cpu_isa isa, const int32_t *prompt, float *ret);

/* The checks: a prompt in pieces, in scattered blocks, by three threads; eight sequences in a step. */
void small_model_check_pieces(const char *name, enum cpu_isa isa);
void small_model_check_batch(const char *name, enum cpu_isa isa);

#endif
