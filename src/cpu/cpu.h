/* cpu.h: the inside of the CPU backend: the instance, its scratch, the kernels that depend on the instruction set. */
#ifndef PENSTOCK_CPU_CPU_H
#define PENSTOCK_CPU_CPU_H

#include "cpu/cpu_backend.h"
#include "cpu/format.h"
#include "cpu/team.h"

#include <stdbool.h>

enum {
	ATTENTION_CHUNK = 256, /* positions that share one maximum; the unit of the order of sums */
	ATTENTION_HEADS = 4,   /* query heads that share a pass over keys */
	ATTENTION_ROWS = 16,   /* query rows of one item */
	CPU_WEIGHT_PARTS_MAX = 8,
	CPU_HEAD_DIM_MAX = 1024
};

/* Kernels on whole rows, one table per instruction set.  Sums are taken in an order that depends on lengths only. */
struct cpu_kernels {
	const char *name;
	/* Brings COUNT ≤ FORMAT_ROWS rows into the shape of struct format_input.  GROUP columns per sum. */
	void (*prepare)(const float *const rows[FORMAT_ROWS], unsigned count, uint32_t columns, unsigned group,
	    const float *prescale, float *x, float *sums);
	/* x += residual (may be NULL); y = x · rsqrt(mean(x²) + eps) · weight */
	void (*norm)(float *x, const float *residual, const float *weight, uint32_t width, float eps, float *y);
	/* y = gate / (1 + exp(−gate)) · up */
	void (*silu)(const float *gate, const float *up, uint32_t width, float *y);
	/* scores[h][t] = q[h] · k[t] for t < tokens rounded up to 8; keys [head_dim][key_stride] */
	void (*scores)(const float *const q[ATTENTION_HEADS], unsigned heads, const float *keys, uint32_t key_stride,
	    uint32_t tokens, uint32_t head_dim, float *const scores[ATTENTION_HEADS]);
	/* In place over COUNT ≤ ATTENTION_CHUNK scores: s = exp(scale · s − max), *ret_max = max(scale · s), *ret_sum = Σ
	 * s.  Writes up to the next multiple of 8. */
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
extern const struct cpu_kernels cpu_kernels_avx2;
#endif

/* Pages for large things: huge ones where the system gives them.  Zeroed; NULL when there is no memory.  POPULATE takes
 * them at once. */
void    *cpu_pages_alloc(size_t bytes, bool populate);
void     cpu_pages_free(void *pages, size_t bytes);
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
};

struct backend_weight {
	uint32_t        rows, columns, count, tiles;
	uint64_t        bytes;
	float          *vector; /* rows = 1: float32 [columns], owned; no parts then */
	struct cpu_part parts[CPU_WEIGHT_PARTS_MAX];
	uint32_t        input_count;
	struct cpu_input inputs[CPU_WEIGHT_PARTS_MAX];
};

/* Keys lie transposed so that a register holds eight tokens of one dimension:
 * keys [layers][blocks][kv_heads][head_dim][key_stride], values [layers][blocks][kv_heads][block_size][head_dim]. */
struct cpu_kv {
	struct kv_group_desc desc;
	uint32_t key_stride; /* block_size rounded up to 8 */
	float   *keys, *values;
	size_t   key_bytes, value_bytes;
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

/* Scratch of one thread. */
struct cpu_thread {
	float *attention; /* see attention.c */
	struct sample_candidate *candidates; /* [vocab] */
	float *weights;                      /* [vocab] */
	float *rows;                         /* [FORMAT_ROWS][width, padded]: rows on their way into `input` */
};

struct cpu_scratch {
	struct backend_limits limits;
	void    *pages; /* everything below is inside */
	size_t   bytes;
	float   *input, *sums;  /* prepared activations of a linear layer */
	float   *normed;        /* [logit_rows][width] */
	float   *logits;        /* [logit_rows][vocab] */
	float   *rotation;      /* [rows][head_dim]: cosines, then sines */
	float   *partials;      /* attention whose chunks are shared out */
	int32_t *ids;           /* [logit_rows] */
	struct attention_item *items;
	struct cpu_thread threads[CPU_THREADS_MAX];
};

struct cpu_backend {
	struct backend base;
	struct team   *team;
	bool           avx2;
	const struct cpu_kernels *kernels;
	char           description[96];
	struct cpu_chunk *chunk; /* the one that still has room */
	struct cpu_kv    kv[BACKEND_KV_GROUPS_MAX];
	struct cpu_scratch scratch;
	/* The step. */
	const struct batch *batch;
	uint32_t logits_vocab;  /* width of the logits of this step */
	uint32_t pooled_width;  /* width of the pooled rows of this step, in scratch.normed; 0 = none */
	uint32_t sampled;       /* ids in scratch.ids */
	struct rope_desc rotation_of; /* what scratch.rotation was computed for; frequencies NULL = nothing */
};

/* weight.c */
enum status cpu_weight_load(struct backend *b, const struct weight_desc *parts, uint32_t count,
    struct backend_weight **ret, struct error *error);
enum status cpu_weight_size(struct backend *b, const struct weight_desc *parts, uint32_t count, uint64_t *ret,
    struct error *error);
void        cpu_weight_free(struct backend *b, struct backend_weight *w);
uint64_t    cpu_weight_bytes(const struct backend *b, const struct backend_weight *w);
void        cpu_weight_row(const struct backend_weight *w, uint32_t row, float *ret);

/* layout.c: all but tile_bytes of a checkpoint weight's layout; `group` is 0 when its groups are not whole multiples of 32
 * columns.  *ret_order [columns] says which column is the k-th, NULL when they stay as they are; freed by the caller. */
enum status cpu_layout_choose(const struct weight_desc *w, struct format_layout *ret, uint32_t **ret_order,
    struct error *error);

/* linear.c: y[row][0…w->rows) = x[row] · Wᵀ + bias; BIAS (may be NULL) is a vector */
enum status cpu_linear(struct cpu_backend *cpu, const struct backend_weight *w, const float *bias, const float *x,
    size_t x_stride, uint32_t rows, float *y, size_t y_stride);
size_t cpu_linear_input_floats(uint32_t rows, uint32_t width);
size_t cpu_linear_sum_floats(uint32_t rows, uint32_t width);

/* input.c */
bool cpu_input_is_plain(const struct cpu_input *input, uint32_t columns); /* nothing happens */
bool cpu_input_equal(const struct cpu_input *a, const struct cpu_input *b, uint32_t columns);
/* ret [input->columns] from x [columns] */
void cpu_input_row(const struct cpu_input *input, const float *x, uint32_t columns, float *ret);
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

/* encoder.c: what only encoders need */
enum status cpu_embed_add(struct backend *b, const struct backend_weight *w, enum embed_index index, uint32_t offset,
    struct activation *y);
enum status cpu_layer_norm(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *w, const struct backend_weight *bias, float eps, struct activation *y);
enum status cpu_gelu(struct backend *b, struct activation *x);
enum status cpu_pool(struct backend *b, const struct activation *x);
enum status cpu_read_pooled(struct backend *b, uint32_t index, float *ret, uint32_t width);

/* sampler.c */
void        cpu_philox4x32(uint64_t seed, const uint32_t counter[4], uint32_t ret[4]);
enum status cpu_sample(struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit);

#endif
