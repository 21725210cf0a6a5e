/* model.h: a loaded model: hyper-parameters, weights on a backend, KV groups, and forward().
 *
 * An architecture is one file in src/model/arch/ that reads like its paper; its name is in one list (arch.list, from
 * which the registry is generated at build time).  Nothing outside those files switches on the architecture.
 */
#ifndef PENSTOCK_MODEL_MODEL_H
#define PENSTOCK_MODEL_MODEL_H

#include "file/checkpoint.h"
#include "file/gguf.h"
#include "model/backend.h"

#include <stdbool.h>

struct hf_config;
struct model; /* opaque; owns its weights on the backend */

/* What a model is made from.  CONFIG is NULL for a GGUF file, whose metadata say the same.  ROUND_INPUTS, false after
 * opening: inputs of linear layers are rounded as the checkpoint asks (int8, fp8). */
struct model_source {
	struct checkpoint *checkpoint;
	struct hf_config  *config;
	bool               round_inputs;
};

/* Opens PATH: a GGUF file, or a directory with config.json and safetensors, or one such safetensors file. */
enum status model_source_open(const char *path, struct model_source *ret, struct error *error);
void        model_source_close(struct model_source *source); /* leaves it empty; empty ones are fine */

struct model_info {
	char     architecture[32];
	bool     encoder;        /* gives an embedding per sequence, no logits */
	uint32_t vocab;          /* rows of the output matrix, for encoders of the embedding */
	uint32_t max_context;    /* the model's trained context */
	uint32_t layers, width;
	int32_t  pad;            /* of an encoder: the id that takes no position, −1 = none */
	uint64_t parameters;     /* elements of all weights */
	uint64_t weight_bytes;   /* on the backend */
	uint32_t kv_group_count;
	struct kv_group_desc kv_groups[BACKEND_KV_GROUPS_MAX]; /* block_size and blocks are 0: the engine's plan sets them */
};

/* Every tensor of the source is consumed exactly once or the load stops naming it; an unknown architecture names the
 * known ones.  BACKEND is borrowed; the source may be closed afterwards, and cannot be loaded from again. */
enum status model_load(const struct model_source *source, struct backend *backend, struct model **ret,
    struct error *error);
/* The same from a GGUF file that is already open. */
enum status model_load_gguf(const struct gguf *gguf, struct backend *backend, struct model **ret, struct error *error);
/* The same, but goes on after an error in a tensor: PROBLEM is called with each.  For looking at files, with a backend that
 * only counts; the model that comes out must not run unless there was no problem. */
typedef void model_problem(void *context, const struct error *error);
enum status model_load_all(const struct model_source *source, struct backend *backend, model_problem *problem,
    void *context, struct model **ret, struct error *error);
void        model_free(struct model *model);
const struct model_info *model_info(const struct model *model);

/* Takes scratch for steps of up to MAX_ROWS tokens and MAX_LOGIT_ROWS logits, and makes the KV pools.  Called once. */
enum status model_plan(struct model *model, uint32_t max_rows, uint32_t max_logit_rows, uint32_t block_size,
    uint32_t blocks, struct error *error);
/* Bytes model_plan will take besides the KV pools. */
uint64_t model_scratch_bytes(const struct model *model, uint32_t max_rows, uint32_t max_logit_rows);

/* Positions of a whole sequence, as batch.positions wants them: 0, 1, 2, …; encoders with a pad id skip it (−1). */
void model_positions(const struct model *model, const int32_t *tokens, uint32_t count, int32_t *ret);

/* Enqueues the forward pass of one batch.  Only enqueues.  An encoder pools the rows batch.logit_rows (each sequence's
 * first), for read_pooled. */
enum status model_forward(struct model *model, const struct batch *batch);

#endif
