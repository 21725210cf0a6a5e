/* dry.h: a backend that loads nothing and counts what another would take: for looking at checkpoints of any size. */
#ifndef PENSTOCK_TOOLS_DRY_H
#define PENSTOCK_TOOLS_DRY_H

#include "model/backend.h"

/* What was loaded, by stored format. */
struct dry_count {
	uint64_t weights, values, bytes; /* parts, their values, and their bytes in the file (scales and zero points too) */
};

/* Sizes and refusals are those of REAL, which is borrowed.  *ret is freed with ret->ops->destroy, after the model. */
enum status             dry_create(struct backend *real, struct backend **ret, struct error *error);
/* Calls EACH with every weight that is loaded from now on. */
typedef enum status     dry_weight(void *context, const struct weight_desc *parts, uint32_t count, struct error *error);
void                    dry_watch(struct backend *dry, dry_weight *each, void *context);
const struct dry_count *dry_counts(const struct backend *dry); /* [WEIGHT_FORMAT_COUNT] */

/* "18.80 GiB", "512 bytes". */
enum { DRY_SIZE_MAX = 32 };
const char *dry_size(char ret[DRY_SIZE_MAX], uint64_t bytes);

#endif
