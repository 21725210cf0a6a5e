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
	MODEL_WEIGHTS_MAX = 64,    /* rows of a weight table */
	MODEL_ACTIVATIONS_MAX = 24,
	MODEL_EXPERTS_MAX = 4096,
	MODEL_LATENT_MAX = 2048,
	MODEL_INDEX_TOP_K_MAX = 1 << 16
};

/* Sizes named in tables.  DIM_NONE ends a list, DIM_ONE marks a vector. */
enum model_dim {
	DIM_NONE, DIM_ONE, DIM_VOCAB, DIM_WIDTH, DIM_HEAD, DIM_Q, DIM_KV, DIM_QKV, DIM_FFN, DIM_GATE_UP, DIM_POSITIONS,
	DIM_TYPES,
	/* Mixtures of experts: all of them, the inner width of one and of the shared one, and twice that. */
	DIM_EXPERTS, DIM_EXPERT_FFN, DIM_EXPERT_GATE_UP, DIM_SHARED, DIM_SHARED_GATE_UP,
	/* Latent attention: q before its second product, c, c | k, keys and values of all heads made of c, values alone; q and
	 * its results in the absorbed form. */
	DIM_Q_LATENT, DIM_LATENT, DIM_LATENT_ROW, DIM_LATENT_KV, DIM_VALUES, DIM_ABSORBED_Q, DIM_ABSORBED,
	DIM_INDEX_Q, DIM_INDEX_HEAD, DIM_INDEX_HEADS,
	DIM_TWICE, /* the width, two times */
	DIM_COUNT
};

/* How a weight is cut for tensor parallelism (rank.c says where).  Embeddings are replicated: a look-up costs no time, and
 * where the output matrix is the embedding every rank computes all logits. */
enum model_shard {
	SHARD_REPLICATED, /* whole on every rank */
	SHARD_ROW,        /* outputs are divided */
	SHARD_COLUMN,     /* inputs are divided, results added up (model_all_reduce); a bias of the outputs is added once */
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

enum model_place { WEIGHT_MODEL, WEIGHT_LAYER, WEIGHT_EXPERT }; /* once, once per layer, or once per expert of a layer */

/* What tells the layers of a model apart. */
enum model_trait {
	TRAIT_DENSE = 1, TRAIT_SPARSE = 2, /* a plain FFN, a mixture of experts */
	TRAIT_INDEXED = 4,                 /* chooses for itself what its attention sees */
	TRAIT_DRAFT = 8                    /* beyond the last: predicts one token more */
};

/* One weight of the model: one or more parts of equal columns, stacked by rows; each part is cut for itself.  WHOLE names
 * the tensor of files that hold all parts as one; of a WEIGHT_EXPERT those of all experts as one, [experts, rows, columns].
 * An optional weight is there with all its parts or is NULL.  With TRAITS only layers that have all of them have the
 * weight; where such a layer's SURPLUS may be in a file nonetheless, it is left unread.  Of a weight BY_ROWS single rows are
 * read, in the file's order of columns: one with act-order is refused. */
struct model_weight {
	struct model_part parts[MODEL_PARTS_MAX];
	enum model_dim    columns;
	enum model_shard  shard;
	enum model_place  place;
	bool              optional;
	struct model_name whole;
	uint8_t           traits;
	bool              surplus, by_rows;
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
	struct model_name experts; /* in a layer, before the number of an expert */
	bool              encoder;
	/* Fills model->dims, info, eps, rope and whatever forward() needs, from model->source. */
	enum status (*read)(struct model *model, struct error *error);
	const struct model_weight  *weights;
	uint32_t                    weight_count;
	const struct model_ignored *ignored; /* until name is NULL; NULL = none */
	const enum model_dim       *activations; /* width of each */
	uint32_t                    activation_count;
	enum status (*forward)(struct model *model, const struct batch *batch);
	/* One more token; NULL in an architecture that drafts none.  See model_draft. */
	enum status (*draft)(struct model *model, const struct batch *batch, const int32_t *hidden_rows, bool first);
};

/* The part of a model that is a mixture of experts. */
struct model_moe {
	struct router_desc router; /* experts = 0: there is none */
	uint32_t           first, count; /* this rank's experts */
};

/* Latent attention and its indexer. */
struct model_latent {
	struct latent_desc desc;  /* of this rank's heads; heads = 0: there is none */
	struct index_desc  index; /* heads = 0: there is none */
	struct model_rope  index_rope;
	bool               expanded;    /* computes as the definition says */
	bool               draft_share; /* drafts after the first see what the first one chose */
	uint32_t          *index_layer; /* [layers] of a layer in its group of index keys */
};

struct model {
	const struct model_arch *arch;
	struct backend          *backend;
	struct model_source      source; /* while loading */
	struct model_info        info;
	uint32_t                 dims[DIM_COUNT];  /* of this rank's part: what forward() works on */
	uint32_t                 whole[DIM_COUNT]; /* of the whole: what the files hold */
	uint32_t                 first[DIM_COUNT]; /* where the part begins in the whole */
	uint32_t                 heads, kv_heads, head_dim; /* of this rank's part */
	uint64_t                 required; /* bit i: the optional weight i must be there, as the configuration says */
	uint32_t                 layers;   /* info.layers, and those that draft */
	uint8_t                 *traits;   /* [layers]; NULL: no layer has any */
	struct model_moe         moe;
	struct model_latent      latent;
	uint32_t                 kept_rows[2]; /* of the hidden states of the last forward, of the last draft */
	uint32_t                 position_offset; /* of an encoder: row of position 0 in its position embedding */
	float                    eps;
	struct model_rope        rope;
	struct backend_weight  **weights; /* of each weight: [layers], [layers][experts], or one */
	size_t                   place[MODEL_WEIGHTS_MAX + 1]; /* where those of a weight begin */
	struct checkpoint       *mapped; /* what weights that stay in their files need; NULL = none */
	struct activation        activations[MODEL_ACTIVATIONS_MAX];
	uint32_t                 max_rows, max_logit_rows; /* of the plan; 0 = none yet */
};

static inline struct backend_weight *model_weight_at(const struct model *model, uint32_t weight, uint32_t layer)
{
	return model->weights[model->place[weight] + (model->arch->weights[weight].place == WEIGHT_LAYER ? layer : 0)];
}

/* Those of a layer's experts that this rank has: [moe.count]. */
static inline struct backend_weight *const *model_experts_at(const struct model *model, uint32_t weight, uint32_t layer)
{
	return model->weights + model->place[weight] + (size_t)layer * model->moe.router.experts + model->moe.first;
}

static inline bool model_has_trait(const struct model *model, uint32_t layer, enum model_trait trait)
{
	return model->traits && (model->traits[layer] & trait);
}

/* After a product with a weight that is cut by columns: the sum over ranks.  Alone, x is that already. */
static inline enum status model_all_reduce(const struct model *model, struct activation *x)
{
	return model->backend->ranks > 1 ? model->backend->ops->all_reduce(model->backend, x) : STATUS_OK;
}

/* y = silu(gate) · up of x · Wᵀ + BIAS = gate | up, in one operation where the backend has it; GATE_UP is room for the product,
 * of no use afterwards. */
static inline enum status model_gate(const struct model *model, const struct backend_weight *w, const struct backend_weight *bias,
    const struct activation *x, struct activation *gate_up, struct activation *y)
{
	struct backend           *b = model->backend;
	const struct backend_ops *op = b->ops;
	enum status               status;

	if (!bias && op->linear_silu)
		return op->linear_silu(b, w, x, gate_up, y);
	status = op->linear(b, w, bias, x, gate_up);
	return status ? status : op->silu_gate(b, gate_up, y);
}

static inline bool model_is_gguf(const struct model *model) { return model->source.config == NULL; }

/* Made from arch.list. */
extern const struct model_arch *const model_archs[];
extern const size_t                   model_arch_count;

/* load.c: puts every tensor of the source, or the rank's part of it, into its place on the backend.  With PROBLEM, an error
 * is handed to it, what it concerns is left out, and loading goes on; the status is then that of the first error. */
enum status model_load_weights(struct model *model, model_problem *problem, void *context, struct error *error);

/* rank.c: what a cut must not go through: multiples of NEEDED can be loaded, of WANTED lie well (groups of scales stay
 * whole).  NAME is the tensor that is to blame, for messages. */
struct rank_units {
	uint64_t    wanted, needed;
	const char *name;
};
/* From dims and heads of the whole model to those of the backend's rank; units of the inputs of attention's output, of the
 * FFN's, and of those of an expert that all tokens go through.  STATUS_UNSUPPORTED, with sizes and ranks, where there are not
 * enough pieces to go round. */
enum status rank_cut(struct model *model, const struct rank_units *attention, const struct rank_units *ffn,
    const struct rank_units *shared, struct error *error);

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
	const char *const *layer_types; /* what layer_types may name, until NULL */
};
extern const struct dense_keys dense_keys_usual;
/* Reads these and fills dims, info and eps; refuses what no dense decoder here computes: experts, windowed attention,
 * another activation function. */
enum status dense_read(struct model *model, const struct dense_keys *keys, struct error *error);
/* OUTPUT must be there unless the file may leave it out: tie_word_embeddings; any GGUF. */
enum status dense_read_tied(struct model *model, uint32_t output, struct error *error);
/* Weight BIAS must be there when the boolean KEY of config.json is true. */
enum status dense_read_bias(struct model *model, const char *key, uint32_t bias, struct error *error);

/* moe.c: mixtures of experts, and the layers that have them. */
struct moe_weights { /* their numbers in the weight table */
	uint32_t gate_up, down;                          /* of a layer without */
	uint32_t router, router_bias;
	uint32_t shared_gate_up, shared_down;            /* of the expert that all tokens go through */
	uint32_t expert_gate_up, expert_down;
};
struct moe_activations { /* theirs */
	uint32_t gated, activated, shared_gated, shared_activated;
};
/* Reads router and sizes; makes model->layers and the traits DENSE, SPARSE and DRAFT.  FIRST_DENSE: layers without experts
 * where config.json does not say. */
enum status moe_read(struct model *model, uint32_t first_dense, struct error *error);
/* delta = FFN(hidden) of LAYER, on this rank: to be added up over ranks. */
enum status moe_forward(struct model *model, uint32_t layer, const struct moe_weights *weights,
    const struct moe_activations *activations, const struct activation *hidden, struct activation *delta);

#endif
