/* cpu.h: the inside of the CPU backend: the instance, its scratch, the kernels that depend on the instruction set. */
#ifndef PENSTOCK_CPU_CPU_H
#define PENSTOCK_CPU_CPU_H

#include "cpu/cpu_backend.h"
#include "cpu/format.h"
#include "cpu/group.h"
#include "cpu/team.h"

#include <stdbool.h>

enum {
	ATTENTION_CHUNK = 256, /* positions that share one maximum; the unit of the order of sums */
	ATTENTION_HEADS = 4,   /* query heads that share a pass over keys */
	ATTENTION_ROWS = 16,   /* query rows of one item */
	KV_KEYS = 16,          /* keys are handled by so many, the lanes of the widest register */
	CPU_WEIGHT_PARTS_MAX = 8,
	CPU_HEAD_DIM_MAX = 1024,
	CPU_LATENT_MAX = 4096
};

/* Kernels on whole rows, one table per instruction set.  Sums are taken in an order that depends on lengths only. */
struct cpu_kernels {
	const char *name;
	/* Brings COUNT ≤ FORMAT_ROWS rows into the shape of struct format_input.  GROUP columns per sum. */
	void (*prepare)(const float *const rows[FORMAT_ROWS], unsigned count, uint32_t columns, unsigned group,
	    const float *prescale, float *x, float *sums);
	/* The same as limbs, ret [columns / 32][1 or FORMAT_ROWS]; rows that are not there are left as they are.  NULL where no
	 * kernel reads them. */
	void (*prepare_limbs)(const float *const rows[FORMAT_ROWS], unsigned count, uint32_t columns, struct format_limbs *ret);
	/* x += residual (may be NULL); y = x · rsqrt(mean(x²) + eps) · weight */
	void (*norm)(float *x, const float *residual, const float *weight, uint32_t width, float eps, float *y);
	/* y = gate / (1 + exp(−gate)) · up */
	void (*silu)(const float *gate, const float *up, uint32_t width, float *y);
	/* scores[h][t] = q[h] · k[t] for t < tokens rounded up to KV_KEYS; keys [head_dim][key_stride] */
	void (*scores)(const float *const q[ATTENTION_HEADS], unsigned heads, const float *keys, uint32_t key_stride,
	    uint32_t tokens, uint32_t head_dim, float *const scores[ATTENTION_HEADS]);
	/* In place over COUNT ≤ ATTENTION_CHUNK scores: s = exp(scale · s − max), *ret_max = max(scale · s), *ret_sum = Σ
	 * s.  Writes up to the next multiple of KV_KEYS. */
	void (*softmax)(float *scores, uint32_t count, float scale, float *ret_max, float *ret_sum);
	/* o[h] += Σ p[h][t] · v[t], t ascending; values [tokens][head_dim] */
	void (*values)(const float *const p[ATTENTION_HEADS], unsigned heads, const float *values, uint32_t tokens,
	    uint32_t head_dim, float *const o[ATTENTION_HEADS]);
	/* The largest of COUNT logits; false when one is not finite. */
	bool (*scan)(const float *logits, uint32_t count, float *ret_max);
	/* ret[i] = exp((logits[i] − max) · factor), argument ≤ 0 */
	void (*weights)(const float *logits, uint32_t count, float max, float factor, float *ret);
};

extern const struct cpu_kernels cpu_kernels_generic;
#if defined __x86_64__
extern const struct cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512;
#endif

/* Pages for large things: huge ones where the system gives them.  Zeroed; NULL when there is no memory.  They count as
 * taken from now on (Committed_AS); POPULATE also touches them, so that they are resident. */
void    *cpu_pages_alloc(size_t bytes, bool populate);
void     cpu_pages_free(void *pages, size_t bytes);
void     cpu_pages_trim(void *pages, size_t used, size_t bytes); /* what is behind USED is no longer resident */
uint64_t cpu_pages_round(uint64_t bytes); /* what an allocation takes */
/* Of this process: the machine's memory within its control groups' limits. */
enum status cpu_memory_read(struct backend_memory *ret);

/* A large allocation that several weights share. */
struct cpu_chunk {
	uint8_t *data;
	size_t   bytes, used;
	uint32_t users;
};

/* What happens to a row before a product: see input.c. */
struct cpu_input {
	uint32_t          columns;  /* of the result: those of the weight, padded with zeros */
	enum weight_input quantise;
	float             scale;    /* the fixed one; 0 = from each row */
	uint32_t         *order;    /* column k of the result is this one of the row; NULL = k; owned */
	uint32_t          scales;   /* of a whole row, of which this one is a part, shared by all ranks; 0 = each has its own */
	uint32_t          first;    /* where the part begins in it */
};

/* One re-packed weight. */
struct cpu_part {
	const struct format *format;
	uint32_t rows, first_row; /* of the stack */
	uint32_t tiles;
	size_t   tile_bytes;
	uint8_t *data; /* [tiles][tile_bytes], in a chunk */
	struct cpu_chunk *chunk;
	const struct cpu_input *input; /* of the weight; parts with equal ones share it */
	/* A weight that stays in its file: no data; tiles are made of this whenever they are needed.  NULL = not so. */
	struct weight_desc  *mapped; /* owned */
	struct format_layout layout; /* of formats that have one */
};

struct backend_weight {
	uint32_t        rows, columns, count, tiles;
	uint64_t        bytes;
	float          *vector; /* rows = 1: float32 [columns], owned; no parts then */
	struct cpu_part parts[CPU_WEIGHT_PARTS_MAX];
	uint32_t        input_count;
	struct cpu_input inputs[CPU_WEIGHT_PARTS_MAX];
};

/* Keys lie transposed so that a register holds tokens of one dimension:
 * keys [blocks][layers][kv_heads][head_dim][key_stride], values [blocks][layers][kv_heads][block_size][head_dim].  All
 * layers of a block lie together, so that pages are touched as blocks are first used.  Of one byte each (KV_F8, KV_I8)
 * both are [blocks][layers][kv_heads] of float32 scales [block_size] and bytes [block_size][head_dim]; a thread decodes the
 * chunk that it works on. */
struct cpu_kv {
	struct kv_group_desc desc;
	uint32_t key_stride; /* block_size rounded up to KV_KEYS */
	float   *keys, *values; /* of one byte each: untyped */
	size_t   key_bytes, value_bytes;
	float   *decoded; /* [threads][decoded_floats]: of a chunk keys [blocks][head_dim][key_stride], values [tokens][head_dim] */
	size_t   decoded_floats, decoded_bytes;
};

/* A piece of attention: some rows of one sequence at one KV head. */
struct attention_item {
	uint32_t sequence, kv_head, first_row, rows; /* rows of the batch */
	uint32_t chunks;      /* that its last row sees */
	uint32_t first_chunk; /* number of chunks of the items before it */
	uint64_t partial;     /* where its partial results begin, when chunks are shared out */
};

/* A token that may still be drawn. */
struct sample_candidate {
	float   logit, weight;
	int32_t id;
};

/* A slot beside its table. */
struct cpu_slot {
	struct sample_bias bias[SAMPLE_BIAS_MAX]; /* in the order of ids */
	uint32_t           bias_count;
};

/* Scratch of one thread. */
struct cpu_thread {
	float *attention; /* see attention.c */
	struct sample_candidate *candidates; /* [vocab] */
	float *weights;                      /* [vocab] */
	float *adjusted;                     /* [vocab]: logits of a row with a slot or a mask */
	float *rows;                         /* [FORMAT_ROWS][width, padded]: rows on their way into `input` */
	float *routing;                      /* see experts.c */
	float *latent;                       /* see latent.c */
	uint64_t *collected;                 /* see indexer.c */
	uint8_t  *tile;                      /* one of a weight that stays in its file */
};

struct cpu_scratch {
	struct backend_limits limits;
	void    *pages; /* everything below is inside */
	size_t   bytes;
	float   *input, *sums;  /* prepared activations of a linear layer */
	float   *amax;          /* [rows][scales]: of inputs whose scales all ranks share */
	float   *normed;        /* [logit_rows][width] */
	float   *logits;        /* [logit_rows][vocab] */
	float   *rotation;      /* [rows][head_dim]: cosines, then sines */
	float   *partials;      /* attention whose chunks are shared out */
	int32_t *ids;           /* [BACKEND_SAMPLES_MAX][logit_rows] */
	int32_t *tokens;        /* [rows] of the step */
	uint16_t *counts;       /* [logit_rows][vocab]: the table of each slot (model/sampling.h) */
	struct cpu_slot *slots; /* [logit_rows] */
	struct sample_logprobs *logprobs; /* [BACKEND_SAMPLES_MAX][logit_rows] */
	struct attention_item *items;
	/* Mixtures of experts. */
	float    *router;                            /* [rows][experts]: scores without bias */
	uint32_t *chosen;                            /* [rows][top_k] */
	float    *chosen_weights;
	uint32_t *expert_starts, *expert_rows;       /* [experts + 2], [rows · top_k]: see sort_rows */
	float    *expert_weights;
	float    *expert_in, *expert_gated, *expert_activated, *expert_out; /* [rows] of one expert */
	/* Sparse attention: what row r sees is that of entry selection_of[r]: the positions selected[entry][0…counts[entry]),
	 * ascending; count 0: all before prefixes[entry]. */
	uint32_t *selected;                          /* [rows][index_top_k] */
	uint32_t *selected_counts, *selected_prefixes, *selection_of, *selection_new; /* [rows] */
	struct cpu_thread threads[CPU_THREADS_MAX];
};

struct cpu_backend {
	struct backend base;
	struct cpu_seat seat;
	struct team   *team;
	enum cpu_isa   isa; /* never CPU_ISA_BEST */
	bool           integers; /* the processor multiplies bytes */
	bool           prefault;
	const struct cpu_kernels *kernels;
	char           description[96];
	struct cpu_chunk *chunk; /* the one that still has room */
	struct cpu_kv    kv[BACKEND_KV_GROUPS_MAX];
	struct cpu_scratch scratch;
	/* The step. */
	const struct batch *batch;  /* the caller's, until the step was waited for: not to be read afterwards */
	uint32_t wanted;        /* its rows of logits, which may be read then */
	uint32_t logits_vocab;  /* width of the logits of this step */
	uint32_t pooled_width;  /* width of the pooled rows of this step, in scratch.normed; 0 = none */
	/* Samples are numbered; ids of number N are in part N % BACKEND_SAMPLES_MAX of scratch.ids. */
	uint64_t samples, waited;               /* drawn, and given out */
	uint32_t sampled[BACKEND_SAMPLES_MAX];  /* ids of each part */
	struct rope_desc rotation_of; /* what scratch.rotation was computed for; frequencies NULL = nothing */
	struct router_desc routed;    /* what `chosen` holds; experts = 0: nothing */
	uint32_t selection_rows;      /* rows that selection_of speaks of */
	size_t   mapped_tile;         /* bytes of the largest tile of weights that stay in their files */
	struct cpu_work work;
};

/* weight.c */
enum status cpu_weight_load(struct backend *b, const struct weight_desc *parts, uint32_t count,
    struct backend_weight **ret, struct error *error);
enum status cpu_weight_map(struct backend *b, const struct weight_desc *parts, uint32_t count,
    struct backend_weight **ret, struct error *error);
/* Tile TILE of a part that stays in its file, made in DATA [tile_bytes]. */
void        cpu_weight_make_tile(const struct cpu_part *part, uint32_t columns, uint32_t tile, uint8_t *data);
enum status cpu_weight_size(struct backend *b, const struct weight_desc *parts, uint32_t count, uint64_t *ret,
    struct error *error);
void        cpu_weight_free(struct backend *b, struct backend_weight *w);
uint64_t    cpu_weight_bytes(const struct backend *b, const struct backend_weight *w);
void        cpu_weight_row(const struct backend_weight *w, uint32_t row, float *ret);

/* layout.c: all but tile_bytes of a checkpoint weight's layout; `group` is 0 when its groups are not whole multiples
 * of 32 columns.  *ret_order [columns] says which column is the k-th, NULL when they stay as they are; freed by the
 * caller. */
enum status cpu_layout_choose(const struct weight_desc *w, struct format_layout *ret, uint32_t **ret_order,
    struct error *error);

/* linear.c: y[row][0…w->rows) = x[row] · Wᵀ + bias; BIAS (may be NULL) is a vector.  ROWS is at most limits.rows. */
enum status cpu_linear(struct cpu_backend *cpu, const struct backend_weight *w, const float *bias, const float *x,
    size_t x_stride, uint32_t rows, float *y, size_t y_stride);
size_t cpu_linear_input_floats(uint32_t rows, uint32_t width);
size_t cpu_linear_sum_floats(uint32_t rows, uint32_t width);
size_t cpu_linear_amax_floats(uint32_t rows, uint32_t width, uint32_t ranks);

/* input.c */
bool cpu_input_is_plain(const struct cpu_input *input, uint32_t columns); /* nothing happens */
bool cpu_input_equal(const struct cpu_input *a, const struct cpu_input *b, uint32_t columns);
uint32_t cpu_input_scales(enum weight_input quantise, uint32_t columns); /* of a row of COLUMNS */
/* max |x| of what has one scale: ret [input->scales], 0 where the row has no part in it. */
void cpu_input_amax(const struct cpu_input *input, const float *x, uint32_t columns, float *ret);
/* ret [input->columns] from x [columns].  AMAX, of all ranks, counts only where they share the row's scales. */
void cpu_input_row(const struct cpu_input *input, const float *x, uint32_t columns, const float *amax, float *ret);
/* The same as integers, for inputs rounded to int8: four columns of each row beside each other, with 128 added, in
 * ret [input->columns / 4][stride][4]; *ret_scale is their scale, NaN when the row is not finite. */
void cpu_input_bytes(const struct cpu_input *input, const float *x, uint32_t columns, const float *amax, unsigned stride,
    uint8_t *ret, float *ret_scale);
static inline uint32_t cpu_input_padded(uint32_t columns) /* at most */
{
	return (columns + FORMAT_GROUP_MAX - 1) / FORMAT_GROUP_MAX * FORMAT_GROUP_MAX;
}

/* attention.c */
uint64_t    cpu_kv_bytes(const struct backend *b, const struct kv_group_desc *group);
enum status cpu_kv_alloc(struct backend *b, uint32_t group, const struct kv_group_desc *desc, struct error *error);
void        cpu_kv_free(struct cpu_kv *kv);
enum status cpu_kv_copy(struct backend *b, uint32_t group, const int32_t *from, const int32_t *to, uint32_t count);
enum status cpu_rope_kv_write(struct backend *b, struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, const struct rope_desc *rope);
enum status cpu_attention(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, float scale, struct activation *y);
enum status cpu_attention_full(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, float scale, struct activation *y);
size_t cpu_attention_thread_floats(uint32_t head_dim);
size_t cpu_attention_partial_floats(void);

/* Cosines and sines of every row's position into scratch.rotation, unless they are there. */
enum status cpu_rotation(struct cpu_backend *cpu, const struct rope_desc *rope);
/* Rotates the first rope->dims of HEAD as its row wants. */
void        cpu_rotate(const struct cpu_backend *cpu, uint32_t row, const struct rope_desc *rope, float *head);
/* Of a KV_ROWS group: where the row of a slot lies. */
float      *cpu_kv_row(const struct cpu_kv *kv, uint32_t layer, uint32_t block, uint32_t offset);
/* The group, if it is there and of that kind and has that layer; else NULL. */
const struct cpu_kv *cpu_kv_of(const struct cpu_backend *cpu, uint32_t group, uint32_t layer, enum kv_kind kind);

/* experts.c */
enum status cpu_route(struct backend *b, const struct backend_weight *w, const struct backend_weight *bias,
    const struct router_desc *router, const struct activation *x);
enum status cpu_experts(struct backend *b, const struct expert_desc *experts, const struct activation *x, struct activation *y);
size_t cpu_routing_thread_floats(uint32_t experts);

/* latent.c */
enum status cpu_latent_write(struct backend *b, struct activation *q, struct activation *kv,
    const struct backend_weight *norm, float eps, uint32_t group, uint32_t layer, const struct latent_desc *latent,
    const struct rope_desc *rope);
enum status cpu_latent_query(struct backend *b, const struct activation *q, const struct backend_weight *w,
    const struct latent_desc *latent, struct activation *y);
enum status cpu_latent_attention(struct backend *b, const struct activation *q, uint32_t group, uint32_t layer,
    const struct latent_desc *latent, struct activation *y);
enum status cpu_latent_value(struct backend *b, const struct activation *x, const struct backend_weight *w,
    const struct latent_desc *latent, struct activation *y);
enum status cpu_latent_expanded(struct backend *b, const struct activation *q, const struct backend_weight *w,
    uint32_t group, uint32_t layer, const struct latent_desc *latent, struct activation *y);
size_t cpu_latent_thread_floats(const struct backend_limits *limits);
/* COUNT ≤ ATTENTION_CHUNK rows of a sequence's cache, at positions[i] or from FIRST on (NULL), as they are in ROWS
 * [count][head_dim] (NULL: not wanted) and transposed in COLUMNS [head_dim][ATTENTION_CHUNK]. */
void cpu_latent_gather(const struct cpu_kv *kv, uint32_t layer, const int32_t *table, const uint32_t *positions,
    uint32_t first, uint32_t count, float *rows, float *columns);

/* indexer.c */
enum status cpu_index_write(struct backend *b, struct activation *q, struct activation *k, uint32_t group, uint32_t layer,
    const struct index_desc *index, const struct rope_desc *rope);
enum status cpu_index_select(struct backend *b, const struct activation *q, const struct activation *weights,
    uint32_t group, uint32_t layer, const struct index_desc *index);
enum status cpu_index_follow(struct backend *b, const int32_t *rows);
size_t cpu_index_thread_keys(uint32_t top_k);

/* encoder.c: what only encoders need */
enum status cpu_embed_add(struct backend *b, const struct backend_weight *w, enum embed_index index, uint32_t offset,
    struct activation *y);
enum status cpu_layer_norm(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *w, const struct backend_weight *bias, float eps, struct activation *y);
enum status cpu_gelu(struct backend *b, struct activation *x);
enum status cpu_pool(struct backend *b, const struct activation *x);
enum status cpu_read_pooled(struct backend *b, uint32_t index, float *ret, uint32_t width);

/* sample_slots.c */
enum status cpu_sample_slot(struct backend *b, uint32_t slot, const struct sample_slot *from);
enum status cpu_read_logprobs(struct backend *b, uint32_t index, struct sample_logprobs *ret);
/* LOGITS with the row's bias, penalties, bans and mask: RET [count]. */
void cpu_sample_adjust(const struct cpu_backend *cpu, const float *logits, uint32_t count, const struct sample_row *row,
    float *ret);
void cpu_sample_note(struct cpu_backend *cpu, uint32_t slot, int32_t id); /* ID was drawn */
/* MAX: the largest of the logits.  WEIGHTS [count] is scratch. */
void cpu_sample_logprobs(const struct cpu_kernels *kernels, const float *logits, uint32_t count, float max, uint32_t k,
    float *weights, int32_t drawn, struct sample_logprobs *ret);

/* sampler.c */
void        cpu_philox4x32(uint64_t seed, const uint32_t counter[4], uint32_t ret[4]);
enum status cpu_sample(struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit);

#endif
