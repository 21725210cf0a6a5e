/* model.h: a loaded model: hyper-parameters, weights on a backend, KV groups, and forward().
 *
 * An architecture is one file in src/model/arch/ that reads like its paper; its name is in one list (arch.list, from
 * which the registry is generated at build time).  Nothing outside those files switches on the architecture.
 */
#ifndef PENSTOCK_MODEL_MODEL_H
#define PENSTOCK_MODEL_MODEL_H

#include "file/gguf.h"
#include "model/backend.h"

struct model; /* opaque; owns its weights on the backend */

struct model_info {
	char     architecture[32];
	uint32_t vocab;          /* rows of the output matrix */
	uint32_t max_context;    /* the model's trained context */
	uint32_t layers, width;
	uint64_t parameters;     /* elements of all weights */
	uint64_t weight_bytes;   /* on the backend */
	uint32_t kv_group_count;
	struct kv_group_desc kv_groups[BACKEND_KV_GROUPS_MAX]; /* block_size and blocks are 0: the engine's plan sets them */
};

/* Loads from GGUF.  Every tensor is consumed exactly once or the load stops naming it; an unknown architecture names the
 * known ones.  BACKEND and GGUF are borrowed (the file must stay open while the model lives). */
enum status model_load(const struct gguf *gguf, struct backend *backend, struct model **ret, struct error *error);
void        model_free(struct model *model);
const struct model_info *model_info(const struct model *model);

/* Takes scratch for steps of up to MAX_ROWS tokens and MAX_LOGIT_ROWS logits, and makes the KV pools.  Called once. */
enum status model_plan(struct model *model, uint32_t max_rows, uint32_t max_logit_rows, uint32_t block_size,
    uint32_t blocks, struct error *error);
/* Bytes model_plan will take besides the KV pools. */
uint64_t model_scratch_bytes(const struct model *model, uint32_t max_rows, uint32_t max_logit_rows);

/* Enqueues the forward pass of one batch.  Only enqueues. */
enum status model_forward(struct model *model, const struct batch *batch);

#endif
