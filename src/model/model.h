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

/* What a model is made from.  CONFIG is NULL for a GGUF file, whose metadata say the same.  False after opening:
 * ROUND_INPUTS, inputs of linear layers are rounded as the checkpoint asks (int8, fp8); CHECK_WEIGHTS, a NaN or an infinity
 * in a weight, or in its scales, is an error that says where. */
struct model_source {
	struct checkpoint *checkpoint;
	struct hf_config  *config;
	bool               round_inputs, check_weights;
	bool               map_weights;  /* leave matrices in their files, read as they are needed, though they would fit */
	bool               skip_draft;   /* leave out the layers that predict further tokens */
	bool               expand_latent; /* latent attention as its definition says instead of the absorbed form */
	bool               dummy; /* no checkpoint: weights are random values of the sizes that CONFIG says */
};

/* Opens PATH: a GGUF file, or a directory with config.json and safetensors, or one such safetensors file. */
enum status model_source_open(const char *path, struct model_source *ret, struct error *error);
/* config.json of the directory PATH alone: what comes out runs at the model's speed and writes noise. */
enum status model_source_open_dummy(const char *path, struct model_source *ret, struct error *error);
/* The arithmetic that a backend with a choice should be asked for: "float16" where config.json says that the checkpoint is, as
 * bfloat16 would cost its values three of their bits, more than all other roundings of a step together; else "", the backend's
 * own choice. */
const char *model_source_dtype(const struct model_source *source);
void        model_source_close(struct model_source *source); /* leaves it empty; empty ones are fine */

struct model_info {
	char     architecture[32];
	bool     encoder;        /* gives an embedding per sequence, no logits */
	uint32_t vocab;          /* rows of the output matrix, for encoders of the embedding */
	uint32_t max_context;    /* the model's trained context */
	uint32_t layers, width;
	int32_t  pad;            /* of an encoder: the id that takes no position, −1 = none */
	uint64_t parameters;     /* elements of all weights that this rank has */
	uint64_t weight_bytes;   /* of them on the backend */
	uint64_t mapped_bytes;   /* of these, what stays in the files and is read as it is needed */
	uint64_t read_bytes;     /* what a step of one token reads: not an embedding that is looked up, nor experts it does not
	                          * go to, nor layers that draft */
	uint32_t experts, experts_used; /* of a layer, and of a token; 0 = no mixture */
	uint32_t draft_layers;   /* 1: model_draft works */
	uint32_t index_top_k;    /* tokens that sparse attention sees at most; 0 = all */
	uint32_t kv_group_count;
	struct kv_group_desc kv_groups[BACKEND_KV_GROUPS_MAX]; /* this rank's; block_size and blocks are 0: a plan sets them */
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

/* What keys and values are kept in, by its word: auto, fp8 or int8.  False: there is no such word. */
bool model_kv_type(const char *word, enum kv_type *ret);

/* Before a plan: WORD is "auto", floats, or "fp8" or "int8", what keys and values are then kept in.  STATUS_UNSUPPORTED for a
 * backend that has none of these, and for models whose cache holds latents. */
enum status model_set_kv_type(struct model *model, const char *word, struct error *error);

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

/* Multi-token prediction (DeepSeek-V3 2024), of a model with info.draft_layers: one more token per call, from the hidden
 * state at a position and the token after it.  Row r of BATCH is position p = batch.positions[r], its slot that of p, and
 * its token is the one at p + 1.  Its hidden state is that of row hidden_rows[r] of the last model_forward when FIRST, else of
 * the last model_draft; these are kept until the next call of the same kind.  So, with a model_forward that ended in
 * position n − 1 and drew token n:
 *
 *      model_draft(first)    row: position n − 1, token n                        logits: token n + 1
 *      model_draft           row: position n, token n + 1, hidden row of that    logits: token n + 2
 *      …
 *
 * The drafting layer has KV groups of its own, which only these calls fill, in batch.kv_slots like the others (the same
 * block table will do): for a prompt call it FIRST with all rows of every forward but the last token's, which wait for the
 * token that follows them.  Slots of drafts that come to nothing are overwritten later; context counts as in a forward.
 * Sparse attention: a first draft chooses what it sees; where the model was trained so (index_share_for_mtp_iteration), the
 * others see what their hidden row saw.
 *
 * Logits, sample, wait and read_logits as after model_forward, whose logits they replace. */
enum status model_draft(struct model *model, const struct batch *batch, const int32_t *hidden_rows, bool first);

#endif
