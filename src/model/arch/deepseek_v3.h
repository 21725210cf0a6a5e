/* deepseek_v3.h: what the architectures with latent attention share with DeepSeek-V3. */
#ifndef PENSTOCK_MODEL_ARCH_DEEPSEEK_V3_H
#define PENSTOCK_MODEL_ARCH_DEEPSEEK_V3_H

#include "model/arch.h"

enum { DEEPSEEK_WEIGHTS = 35, DEEPSEEK_ACTIVATIONS = 19 };

extern const struct model_weight deepseek_v3_weights[DEEPSEEK_WEIGHTS];
extern const enum model_dim      deepseek_v3_activations[DEEPSEEK_ACTIVATIONS];

/* Sizes, layers and rotation; FIRST_DENSE as for moe_read.  KEYS as for dense_read. */
enum status deepseek_v3_read(struct model *model, const struct dense_keys *keys, uint32_t first_dense, struct error *error);
enum status deepseek_v3_forward(struct model *model, const struct batch *batch);
enum status deepseek_v3_draft(struct model *model, const struct batch *batch, const int32_t *hidden_rows, bool first);

#endif
