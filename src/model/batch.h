/* batch.h: the check of a step's input that every backend makes before anything else. */
#ifndef PENSTOCK_MODEL_BATCH_H
#define PENSTOCK_MODEL_BATCH_H

#include "model/backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sizes within LIMITS, sequences one after the other, block numbers and slots inside the pools GROUPS (NULL where there is
 * none): after this no operation can read or write outside.  Tokens are checked by embed. */
bool batch_is_valid(const struct batch *batch, const struct backend_limits *limits,
    const struct kv_group_desc *const groups[BACKEND_KV_GROUPS_MAX]);

#ifdef __cplusplus
}
#endif
#endif
