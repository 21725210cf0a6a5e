/* arch.h: what an architecture file supplies and what it may use.  Included by src/model/ only.
 *
 * An architecture is a struct model_arch in arch/NAME.c: how its hyper-parameters are read, a table of its weights, the
 * activations it needs, and forward().  Sizes that occur in tables are named by enum model_dim and filled in by read().
 * To add one: write the file, add its name to arch.list.
 *
 * Two spellings.  Checkpoints of the Hugging Face hub (safetensors and config.json) and GGUF files name the same things
 * differently; tables and the hparam functions take both names, hub first.  A name that is NULL does not exist in that
 * spelling.
 */
#ifndef PENSTOCK_MODEL_ARCH_H
#define PENSTOCK_MODEL_ARCH_H

#include "file/hf_config.h"
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
	MODEL_TYPES_MAX = 1 << 10, /* kinds of segments of an encoder */
	MODEL_PARTS_MAX = 4,       /* tensors stacked into one weight */
	MODEL_WEIGHTS_MAX = 32,    /* rows of a weight table */
	MODEL_ACTIVATIONS_MAX = 16
};

/* Sizes named in tables.  DIM_NONE ends a list, DIM_ONE marks a vector. */
enum model_dim {
	DIM_NONE, DIM_ONE, DIM_VOCAB, DIM_WIDTH, DIM_HEAD, DIM_Q, DIM_KV, DIM_QKV, DIM_FFN, DIM_GATE_UP, DIM_POSITIONS,
	DIM_TYPES, DIM_COUNT
};

/* How a weight is cut for tensor parallelism. */
enum model_shard {
	SHARD_REPLICATED, /* whole on every rank */
	SHARD_ROW,        /* outputs are divided */
	SHARD_COLUMN,     /* inputs are divided, results added up; a bias of the outputs is added once */
	SHARD_HEAD        /* outputs are divided at head boundaries */
};

struct model_name {
	const char *hub, *gguf;
};

/* A tensor, [rows, columns].  Names are without the layer's prefix ("model.layers.N.", "blk.N."). */
struct model_part {
	const char    *hub, *gguf;
	enum model_dim rows;
};

enum model_place { WEIGHT_MODEL, WEIGHT_LAYER }; /* once, or once per layer */

/* One weight of the model: one or more parts of equal columns, stacked by rows; each part is cut for itself.  WHOLE names
 * the tensor of files that hold all parts as one.  An optional weight is there with all its parts or is NULL. */
struct model_weight {
	struct model_part parts[MODEL_PARTS_MAX];
	enum model_dim    columns;
	enum model_shard  shard;
	enum model_place  place;
	bool              optional;
	struct model_name whole;
};

/* A tensor that hub checkpoints may hold and nothing computes with: tables that follow from config.json, heads of
 * another task. */
struct model_ignored {
	const char      *name;
	enum model_place place;
};

struct model_rope {
	struct rope_desc desc; /* frequencies points to the array below */
	float           *frequencies;
};

struct model_arch {
	struct model_name name;   /* model_type of config.json, general.architecture */
	struct model_name layers; /* what stands before the number of a layer */
	bool              encoder;
	/* Fills model->dims, info, eps, rope and whatever forward() needs, from model->source. */
	enum status (*read)(struct model *model, struct error *error);
	const struct model_weight  *weights;
	uint32_t                    weight_count;
	const struct model_ignored *ignored; /* until name is NULL; NULL = none */
	const enum model_dim       *activations; /* width of each */
	uint32_t                    activation_count;
	enum status (*forward)(struct model *model, const struct batch *batch);
};

struct model {
	const struct model_arch *arch;
	struct backend          *backend;
	struct model_source      source; /* while loading */
	struct model_info        info;
	uint32_t                 dims[DIM_COUNT];
	uint32_t                 heads, kv_heads, head_dim;
	uint32_t                 required; /* bit i: the optional weight i must be there, as the configuration says */
	uint32_t                 position_offset; /* of an encoder: row of position 0 in its position embedding */
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

static inline bool model_is_gguf(const struct model *model) { return model->source.config == NULL; }

/* Made from arch.list. */
extern const struct model_arch *const model_archs[];
extern const size_t                   model_arch_count;

/* load.c: puts every tensor of the source into its place on the backend.  With PROBLEM, an error is handed to it, what it
 * concerns is left out, and loading goes on; the status is then that of the first error. */
enum status model_load_weights(struct model *model, model_problem *problem, void *context, struct error *error);

/* hparam.c: a value of config.json or the metadata, with its range; errors name key, value and range.  GGUF keys are
 * without "ARCHITECTURE.".  *ret stays as it is when the key is absent and REQUIRED is false. */
enum status hparam_u32(const struct model *model, const char *hub, const char *gguf, bool required, uint32_t min,
    uint32_t max, uint32_t *ret, struct error *error);
enum status hparam_f64(const struct model *model, const char *hub, const char *gguf, bool required, double min, double max,
    double *ret, struct error *error);
enum status hparam_bool(const struct model *model, const char *hub, const char *gguf, bool *ret, struct error *error);
/* STATUS_UNSUPPORTED when the key is there and neither 0 nor false: a FEATURE this architecture file does not compute. */
enum status hparam_refuse(const struct model *model, const char *hub, const char *gguf, const char *feature,
    struct error *error);
/* STATUS_UNSUPPORTED unless the key of config.json is absent or WORD. */
enum status hparam_expect(const struct model *model, const char *hub, const char *word, struct error *error);

/* rope.c: frequencies of the rotated pairs of a head, into model->rope.  hub: config.json's rope keys, else THETA and the
 * share PARTIAL of head_dim; GGUF: rope.* keys and rope_freqs.weight, if any. */
enum status rope_read(struct model *model, double theta, double partial, enum rope_style style, struct error *error);
/* The same from values at hand. */
enum status rope_set(struct model *model, const struct hf_rope *rope, enum rope_style style, struct error *error);

/* dense.c: what decoders of the usual shape have in common. */
struct dense_keys { /* of config.json; those of GGUF are the same for all */
	const char *layers, *context, *width, *ffn, *heads, *kv_heads, *head_dim, *eps, *vocab;
};
extern const struct dense_keys dense_keys_usual;
/* Reads these and fills dims, info and eps; refuses what no dense decoder here computes: experts, windowed attention,
 * another activation function. */
enum status dense_read(struct model *model, const struct dense_keys *keys, struct error *error);
/* OUTPUT must be there unless the file may leave it out: tie_word_embeddings; any GGUF. */
enum status dense_read_tied(struct model *model, uint32_t output, struct error *error);
/* Weight BIAS must be there when the boolean KEY of config.json is true. */
enum status dense_read_bias(struct model *model, const char *key, uint32_t bias, struct error *error);

#endif
