/* arch.h: what an architecture file supplies and what it may use.  Included by model.c and arch/ only.
 *
 * An architecture is a struct model_arch in arch/NAME.c: how its hyper-parameters are read, a table of its weights, the
 * activations it needs, and forward().  Sizes that occur in tables are named by enum model_dim and filled in by read().
 * To add one: write the file, add its name to arch.list.
 */
#ifndef PENSTOCK_MODEL_ARCH_H
#define PENSTOCK_MODEL_ARCH_H

#include "model/model.h"

#include <stdbool.h>

enum {
	MODEL_LAYERS_MAX = 1024,
	MODEL_WIDTH_MAX = 1 << 16,
	MODEL_FFN_MAX = 1 << 20,
	MODEL_HEADS_MAX = 1024,
	MODEL_HEAD_DIM_MAX = 512,
	MODEL_VOCAB_MAX = 1 << 20,
	MODEL_CONTEXT_MAX = 1 << 24,
	MODEL_PARTS_MAX = 4,       /* tensors stacked into one weight */
	MODEL_WEIGHTS_MAX = 24,    /* rows of a weight table */
	MODEL_ACTIVATIONS_MAX = 16
};

/* Sizes named in tables.  DIM_ONE marks a vector. */
enum model_dim {
	DIM_ONE, DIM_VOCAB, DIM_WIDTH, DIM_Q, DIM_KV, DIM_QKV, DIM_FFN, DIM_GATE_UP, DIM_COUNT
};

/* How a weight is cut for tensor parallelism. */
enum model_shard {
	SHARD_REPLICATED, /* whole on every rank */
	SHARD_ROW,        /* outputs are divided */
	SHARD_COLUMN,     /* inputs are divided, results added up */
	SHARD_HEAD        /* outputs are divided at head boundaries */
};

/* A tensor of the file, [rows, columns].  NAME is without the layer's prefix "blk.N.". */
struct model_tensor {
	const char    *name;
	enum model_dim rows;
};

/* One weight of the model: one or more tensors of equal columns, stacked by rows. */
struct model_weight {
	struct model_tensor parts[MODEL_PARTS_MAX]; /* until name is NULL */
	enum model_dim      columns;
	enum model_shard    shard;
	bool                per_layer;
	bool                optional; /* all parts or none; absent weights are NULL */
};

struct model_rope {
	struct rope_desc desc; /* frequencies points to the array below */
	float           *frequencies;
};

struct model_arch {
	const char *name; /* general.architecture */
	/* Fills model->dims, info, eps, rope and whatever forward() needs. */
	enum status (*read)(struct model *model, const struct gguf *gguf, struct error *error);
	const struct model_weight *weights;
	uint32_t                   weight_count;
	const enum model_dim      *activations; /* width of each */
	uint32_t                   activation_count;
	enum status (*forward)(struct model *model, const struct batch *batch);
};

struct model {
	const struct model_arch *arch;
	struct backend          *backend;
	struct model_info        info;
	uint32_t                 dims[DIM_COUNT];
	uint32_t                 heads, kv_heads, head_dim;
	float                    eps;
	struct model_rope        rope;
	struct backend_weight  **weights; /* [weight_count][layers]; one that is not per layer in layer 0 */
	struct activation        activations[MODEL_ACTIVATIONS_MAX];
	uint32_t                 max_rows, max_logit_rows; /* of the plan; 0 = none yet */
};

static inline struct backend_weight *model_weight_at(const struct model *model, uint32_t weight, uint32_t layer)
{
	return model->weights[(size_t)weight * model->info.layers + layer];
}

/* Made from arch.list. */
extern const struct model_arch *const model_archs[];
extern const size_t                   model_arch_count;

/* hparam.c: metadata "ARCHITECTURE.KEY" with its range; the error names key, value and range.  *ret holds the default
 * when the key is absent and REQUIRED is false. */
enum status hparam_u32(const struct gguf *gguf, const struct model *model, const char *key, bool required, uint32_t min,
    uint32_t max, uint32_t *ret, struct error *error);
enum status hparam_f64(const struct gguf *gguf, const struct model *model, const char *key, bool required, double min,
    double max, double *ret, struct error *error);
/* STATUS_UNSUPPORTED when the key is there and not 0: a feature this architecture file does not compute. */
enum status hparam_refuse(const struct gguf *gguf, const struct model *model, const char *key, const char *feature,
    struct error *error);

/* rope.c: frequencies of DIMS / 2 pairs from the file's rope.* keys and its rope_freqs.weight, if any. */
enum status rope_read(struct model *model, const struct gguf *gguf, uint32_t dims, enum rope_style style,
    struct error *error);

#endif
