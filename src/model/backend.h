/* backend.h: what a device can do: a table of coarse, asynchronous operations.
 *
 * This header and all it includes compile as C11 and as C++17.  The CPU backend (src/cpu/) is the plain reference and
 * the embedded default; the CUDA backend is a loadable object with the same table; the script backend (src/engine/)
 * answers from a file for tests.  Backends agree op by op within abs + eps·|ref|.
 *
 * Order.  Operations are enqueued in program order on one queue per backend and may return before they ran; results are
 * read after `wait`.  A backend that computes at once (CPU) simply has nothing to wait for.  An operation that cannot be
 * carried out returns a status; a device fault shows at the next `wait`.
 *
 * Shapes.  Row-major, rows = tokens.  x [rows, width] means width is contiguous.  Activations are float32 on the CPU; the
 * type is the backend's own business: callers handle them only through struct activation.
 *
 * Capture-safe.  forward() branches on shapes, never on values; padded rows write to KV slot −1 (ignored).
 *
 * Reproducible.  One reduction order per (instruction set, operation, format, K), whatever the batch: a row's bits do
 * not depend on which other rows are in the batch, on chunking or on paging.
 */
#ifndef PENSTOCK_MODEL_BACKEND_H
#define PENSTOCK_MODEL_BACKEND_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BACKEND_VERSION = 3, BACKEND_KV_GROUPS_MAX = 4, BACKEND_DECODE_QUERIES_MAX = 8 };

struct backend;        /* instance on one device (each backend's struct starts with a struct backend_ops pointer) */
struct backend_weight; /* a weight in the backend's own layout, made once at load */

/* Stored formats of weights.  Values are internal.  WEIGHT_F8_E4M3, WEIGHT_I8 and WEIGHT_I4 are those of quantised
 * checkpoints: their scales are tensors of their own (struct weight_scales).  The others say everything themselves. */
enum weight_format {
	WEIGHT_F32, WEIGHT_F16, WEIGHT_BF16, WEIGHT_Q8_0, WEIGHT_Q4_0, WEIGHT_Q4_1, WEIGHT_Q6_K,
	WEIGHT_Q5_0, WEIGHT_Q5_1, WEIGHT_Q4_K, WEIGHT_Q5_K, WEIGHT_Q2_K, WEIGHT_Q3_K, WEIGHT_IQ4_NL, WEIGHT_IQ4_XS,
	WEIGHT_F8_E4M3, WEIGHT_I8, WEIGHT_I4, WEIGHT_FORMAT_COUNT
};

/* Scales [row_blocks][column_blocks] (transposed: [column_blocks][row_blocks]) of a stored matrix [N, K]: the value at
 * (n, k) is multiplied by the scale at (n / block_rows, k / block_columns), whatever the tensor's name.  A block size of
 * 0 is one block over everything.  Per tensor 0 × 0, per output channel 1 × 0, groups of g inputs 1 × g. */
struct weight_scales {
	const void        *data; /* NULL: every scale is 1 */
	size_t             bytes;
	enum weight_format type; /* WEIGHT_F32, WEIGHT_F16 or WEIGHT_BF16 */
	uint64_t           block_rows, block_columns, row_blocks, column_blocks;
	int                transposed;
};

/* Where the values of WEIGHT_I4, [N, K], lie: eight to a 32-bit word, nibble i in bits 4i…4i + 3. */
enum weight_packing {
	WEIGHT_PACKED_COLUMNS, /* words [N][ceil(K / 8)]: nibble i of word j is column 8j + i (compressed-tensors) */
	WEIGHT_PACKED_GPTQ,    /* words [ceil(K / 8)][N]: the same, transposed */
	WEIGHT_PACKED_AWQ      /* words [K][N / 8]: nibble i of word j is row 8j + (0, 2, 4, 6, 1, 3, 5, 7)[i] */
};

/* Zero points of WEIGHT_I4, for N rows and G = scales.column_blocks groups. */
enum weight_zero_packing {
	WEIGHT_ZEROS_NONE, /* 8 everywhere */
	WEIGHT_ZEROS_ROWS, /* words [ceil(N / 8)][G]: nibble i of word j is row 8j + i (compressed-tensors) */
	WEIGHT_ZEROS_GPTQ, /* words [G][ceil(N / 8)]: the same, transposed */
	WEIGHT_ZEROS_AWQ,  /* words [G][N / 8], rows in the order of WEIGHT_PACKED_AWQ */
	WEIGHT_ZEROS_I8    /* int8 [N][G], counted from 8 */
};
struct weight_zeros {
	const void              *data;
	size_t                   bytes;
	enum weight_zero_packing packing;
	unsigned                 add; /* zero point = (stored + add) mod 16; 1 for GPTQ files of version 1 */
};

/* What a checkpoint does to the inputs x of a linear layer before the product: s = amax(|x|) / largest, x = round to
 * nearest even (x / s) · s.  Token: one s for the row; group: one for every 128 columns. */
enum weight_input {
	WEIGHT_INPUT_FLOAT,    /* nothing */
	WEIGHT_INPUT_F8_TOKEN, /* to e4m3, largest 448 */
	WEIGHT_INPUT_F8_GROUP,
	WEIGHT_INPUT_I8_TOKEN  /* to −128…127, largest 127 */
};

/* A weight as the file stores it: [rows, columns], columns contiguous unless `packing` says otherwise (for a linear
 * layer: rows = outputs N, columns = inputs K).  rows = 1 is a vector (norm weight, bias): the backend keeps it in
 * float32.  All pointers are read by weight_load only, and may be unaligned.  Value of WEIGHT_I4: (q − zero) · scale. */
struct weight_desc {
	const char        *name;
	enum weight_format format;
	uint64_t           rows, columns;
	const void        *data;
	size_t             bytes;
	/* A window into a larger matrix (a rank's shard, a slice of a fused tensor): ROWS × COLUMNS values from (first_row,
	 * first_column) of the stored [stored_rows, stored_columns].  Then data, scales, zeros and group_index are those of
	 * the stored matrix.  Stored sizes of 0: there is no more than the window. */
	uint64_t stored_rows, stored_columns, first_row, first_column;
	struct weight_scales scales;
	enum weight_packing  packing;
	struct weight_zeros  zeros;
	const void          *group_index; /* int32 [K]: column k has the scales and zeros of this group; NULL: k / block */
	enum weight_input    input;
	float                input_scale; /* the fixed s of all rows; 0: from each row */
};

/* A device buffer for activations, allocated at start from the memory plan. */
struct activation {
	void    *data; /* the backend's */
	uint32_t rows, width;
};

/* KV cache of one group: layers that share a block table.  Pool layout is the backend's own. */
struct kv_group_desc {
	uint32_t layers, kv_heads, head_dim;
	uint32_t block_size; /* tokens per block */
	uint32_t blocks;     /* in the pool */
};

/* One sequence's part of a batch: rows [first_row, first_row + rows) are its tokens at positions
 * [context − rows, context); context counts the tokens in the cache once this step's rows are written. */
struct batch_sequence {
	uint32_t first_row, rows, context;
	uint32_t blocks;                                    /* entries in each table, ≥ ceil(context / block_size) */
	const int32_t *block_table[BACKEND_KV_GROUPS_MAX];  /* block numbers, one table per KV group */
};

/* A step's input; arrays are the caller's and stay valid until the step was waited for. */
struct batch {
	uint32_t rows;                          /* tokens, padding included */
	uint32_t sequence_count;
	const int32_t *tokens;                  /* [rows] ids */
	const int32_t *positions;               /* [rows] */
	const int32_t *kv_slots[BACKEND_KV_GROUPS_MAX]; /* [rows] block × block_size + offset; −1 = do not write */
	const struct batch_sequence *sequences; /* [sequence_count], ascending first_row */
	uint32_t logit_row_count;
	const int32_t *logit_rows;              /* [logit_row_count] rows whose logits are wanted */
};

/* Rotary position embedding (Su et al. 2021). */
enum rope_style { ROPE_HALF, ROPE_INTERLEAVED };
struct rope_desc {
	enum rope_style style;
	uint32_t        dims;        /* rotated dimensions of each head, ≤ head_dim */
	const float    *frequencies; /* [dims / 2] radians per position, scaling applied; the caller's, lives with the model */
	float           scale;       /* of cos and sin (YaRN's attention factor); 1 otherwise */
};

/* How embed_add finds a row's row of the weight. */
enum embed_index { EMBED_CONSTANT, EMBED_POSITION };

/* Everything the API lets a request say about sampling.  Keyed randomness: see sample_desc. */
struct sample_params {
	float    temperature; /* 0 = greedy (lowest id among equals) */
	float    top_p;       /* (0, 1], 1 = off */
	float    min_p;       /* [0, 1], 0 = off */
	int32_t  top_k;       /* 0 = off */
	uint64_t seed;
};

/* One row to sample: row ROW of the logits of this step.  The random number is Philox4x32-10 (Salmon et al. 2011) of key
 * seed and counter (position, choice, purpose), so a draw never depends on neighbours and a resubmitted request
 * continues the same stream.  Filters in this order: temperature, top_k, top_p, min_p. */
struct sample_row {
	uint32_t             logit_row; /* index into batch.logit_rows */
	uint32_t             choice;
	uint64_t             position;  /* of the token being drawn: the sequence's length before it */
	uint64_t             generated; /* tokens of this choice drawn before it: position − prompt length */
	uint64_t             tag;       /* the engine's request id, for messages */
	struct sample_params params;
};

/* The largest step, for which a backend takes its own scratch once, at start. */
struct backend_limits {
	uint32_t rows, logit_rows;  /* tokens, and rows whose logits are wanted, of one step */
	uint32_t vocab;             /* rows of the output matrix */
	uint32_t width;             /* the widest input of a linear layer */
	uint32_t q_heads, head_dim; /* of the widest attention */
};

struct backend_memory {
	uint64_t total, available; /* bytes of the device (for the CPU: this process's share) */
};

/* The table.  `b` is the instance; "enqueues" means: may return before the work is done. */
struct backend_ops {
	uint32_t    version; /* BACKEND_VERSION */
	const char *name;    /* "cpu", … */

	void (*destroy)(struct backend *b);
	enum status (*memory)(struct backend *b, struct backend_memory *ret);
	const char *(*describe)(struct backend *b); /* one line for the log: instruction set, threads */

	/* Load time.  Re-packs one weight; several weights of equal width may be stacked by rows into one (fused QKV,
	 * gate + up): COUNT descriptors with equal columns and any formats.  Vectors (rows = 1) are put end to end. */
	enum status (*weight_load)(struct backend *b, const struct weight_desc *parts, uint32_t count,
	    struct backend_weight **ret, struct error *error);
	/* What weight_load would take for the same parts, or the error it would give; values are not read.  NULL in a backend
	 * that cannot say. */
	enum status (*weight_size)(struct backend *b, const struct weight_desc *parts, uint32_t count, uint64_t *ret,
	    struct error *error);
	void (*weight_free)(struct backend *b, struct backend_weight *w);
	uint64_t (*weight_bytes)(const struct backend *b, const struct backend_weight *w);

	/* Start time: memory is taken here and never later. */
	uint64_t (*activation_bytes)(const struct backend *b, uint32_t rows, uint32_t width);
	enum status (*activation_alloc)(struct backend *b, uint32_t rows, uint32_t width, struct activation *ret);
	void (*activation_free)(struct backend *b, struct activation *a);
	uint64_t (*kv_bytes)(const struct backend *b, const struct kv_group_desc *group); /* of one block over all layers */
	enum status (*kv_alloc)(struct backend *b, uint32_t group, const struct kv_group_desc *desc, struct error *error);
	uint64_t (*scratch_bytes)(const struct backend *b, const struct backend_limits *limits);
	enum status (*scratch_alloc)(struct backend *b, const struct backend_limits *limits, struct error *error);

	/* A step.  All enqueue. */
	enum status (*step_begin)(struct backend *b, const struct batch *batch);
	/* y[r] = W[tokens[r]] */
	enum status (*embed)(struct backend *b, const struct backend_weight *w, struct activation *y);
	/* x += residual_in (if not NULL); y = x · rsqrt(mean(x²) + eps) · w    (RMSNorm, Zhang & Sennrich 2019)
	 * y may be x. */
	enum status (*rms_norm)(struct backend *b, struct activation *x, const struct activation *residual_in,
	    const struct backend_weight *w, float eps, struct activation *y);
	/* The same in place over each of the q_heads + kv_heads heads of q and k in qkv (as in rope_kv_write):
	 * Q_WEIGHT and K_WEIGHT are vectors of head_dim values. */
	enum status (*head_norm)(struct backend *b, struct activation *qkv, uint32_t q_heads, uint32_t kv_heads,
	    const struct backend_weight *q_weight, const struct backend_weight *k_weight, float eps);
	/* y = x · Wᵀ + bias (bias may be NULL) */
	enum status (*linear)(struct backend *b, const struct backend_weight *w, const struct backend_weight *bias,
	    const struct activation *x, struct activation *y);
	/* qkv [rows, (q_heads + 2·kv_heads)·head_dim]: rotates q and k in place (not when ROPE is NULL), writes k and v of
	 * LAYER into group GROUP. */
	enum status (*rope_kv_write)(struct backend *b, struct activation *qkv, uint32_t group, uint32_t layer,
	    uint32_t q_heads, const struct rope_desc *rope);
	/* Causal attention of the q part of qkv over the paged cache: y [rows, q_heads·head_dim]
	 * y = softmax(scale · q kᵀ + causal) v, grouped-query (Ainslie et al. 2023). */
	enum status (*attention)(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer,
	    uint32_t q_heads, float scale, struct activation *y);
	/* y = silu(gate) · up, gate_up [rows, 2·width] = gate | up    (SwiGLU, Shazeer 2020) */
	enum status (*silu_gate)(struct backend *b, const struct activation *gate_up, struct activation *y);
	/* logits of batch.logit_rows: norm (as rms_norm, on those rows only) and the output matrix; kept for sample. */
	enum status (*logits)(struct backend *b, struct activation *x, const struct activation *residual_in,
	    const struct backend_weight *norm, float eps, const struct backend_weight *w);
	/* Encoders; NULL in a backend that has none.  A sequence of an encoder is one piece of one step: rows = context.
	 *
	 * y[r] += W[OFFSET + positions[r]], or W[OFFSET] for EMBED_CONSTANT.  W may be a vector (one row). */
	enum status (*embed_add)(struct backend *b, const struct backend_weight *w, enum embed_index index, uint32_t offset,
	    struct activation *y);
	/* x += residual_in (if not NULL); y = (x − mean(x)) · rsqrt(var(x) + eps) · w + bias    (Ba et al. 2016)
	 * y may be x. */
	enum status (*layer_norm)(struct backend *b, struct activation *x, const struct activation *residual_in,
	    const struct backend_weight *w, const struct backend_weight *bias, float eps, struct activation *y);
	/* As attention, but every row sees all tokens of its sequence. */
	enum status (*attention_full)(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer,
	    uint32_t q_heads, float scale, struct activation *y);
	/* x = x · Φ(x), Φ by erf    (GELU, Hendrycks & Gimpel 2016) */
	enum status (*gelu)(struct backend *b, struct activation *x);
	/* x / ‖x‖ of the rows batch.logit_rows, kept for read_pooled. */
	enum status (*pool)(struct backend *b, const struct activation *x);
	/* After wait: copies row INDEX of batch.logit_rows [width]. */
	enum status (*read_pooled)(struct backend *b, uint32_t index, float *ret, uint32_t width);

	/* Copies blocks inside a group (copy-on-write of partial blocks). */
	enum status (*kv_copy)(struct backend *b, uint32_t group, const int32_t *from, const int32_t *to, uint32_t count);

	/* The second launch of a step: draws one id per row into device memory.  Ids ≥ VOCAB_LIMIT are masked. */
	enum status (*sample)(struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit);
	/* Waits for everything enqueued; *ret_ids (may be NULL) gets the ids of the last sample; −1 for a row whose logits
	 * hold a NaN or an infinity: that request must end with an error, its neighbours go on. */
	enum status (*wait)(struct backend *b, int32_t *ret_ids, uint32_t count, struct error *error);
	/* After wait: copies the float32 logits of row INDEX of batch.logit_rows [vocab] (tests, evaluation, logprobs). */
	enum status (*read_logits)(struct backend *b, uint32_t index, float *ret, uint32_t vocab);
};

/* Every backend instance begins with this. */
struct backend {
	const struct backend_ops *ops;
};

#ifdef __cplusplus
}
#endif
#endif
