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

enum { BACKEND_VERSION = 13, BACKEND_KV_GROUPS_MAX = 4, BACKEND_DECODE_QUERIES_MAX = 8,
	BACKEND_SAMPLES_MAX = 2, BACKEND_TIMES_MAX = 256, BACKEND_WAY_MAX = 80 };

struct map;            /* file/map.h */
struct backend;        /* instance on one device (each backend's struct starts with a struct backend_ops pointer) */
struct backend_weight; /* a weight in the backend's own layout, made once at load */

/* Stored formats of weights.  Values are internal.  WEIGHT_F8_E4M3, WEIGHT_I8, WEIGHT_I4 and WEIGHT_F4_E2M1 (two to a byte,
 * the first in the low half) are those of quantised checkpoints: their scales are tensors of their own (struct
 * weight_scales).  The others say everything themselves. */
enum weight_format {
	WEIGHT_F32, WEIGHT_F16, WEIGHT_BF16, WEIGHT_Q8_0, WEIGHT_Q4_0, WEIGHT_Q4_1, WEIGHT_Q6_K,
	WEIGHT_Q5_0, WEIGHT_Q5_1, WEIGHT_Q4_K, WEIGHT_Q5_K, WEIGHT_Q2_K, WEIGHT_Q3_K, WEIGHT_IQ4_NL, WEIGHT_IQ4_XS,
	WEIGHT_F8_E4M3, WEIGHT_I8, WEIGHT_I4, WEIGHT_F4_E2M1, WEIGHT_FORMAT_COUNT
};

/* Scales [row_blocks][column_blocks] (transposed: [column_blocks][row_blocks]) of a stored matrix [N, K]: the value at
 * (n, k) is multiplied by the scale at (n / block_rows, k / block_columns), whatever the tensor's name.  A block size of
 * 0 is one block over everything.  Per tensor 0 × 0, per output channel 1 × 0, groups of g inputs 1 × g. */
struct weight_scales {
	const void        *data; /* NULL: every scale is 1 */
	size_t             bytes;
	enum weight_format type; /* WEIGHT_F32, WEIGHT_F16 or WEIGHT_BF16; of WEIGHT_F4_E2M1 also WEIGHT_F8_E4M3 */
	float              common; /* every scale is multiplied by it; 0 = 1 */
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
	const struct map  *map; /* the file that DATA, and as a rule the rest, lies in; NULL: only in memory */
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
	int                  input_over_ranks; /* the window's columns are a rank's: s is that of the whole row, or group */
};

/* A device buffer for activations, allocated at start from the memory plan. */
struct activation {
	void    *data; /* the backend's */
	uint32_t rows, width;
};

/* What a token has in the cache of a layer: a key and a value of head_dim for each of the KV heads, or one row of head_dim
 * values (kv_heads = 1) that all query heads read: latents, keys of an indexer. */
enum kv_kind { KV_PAIRS, KV_ROWS };

/* What keys and values are kept in: the backend's own float, or one byte each beside a float32 scale for each key and each
 * value of a token and head: s = amax(|x|) / largest, x = round to nearest even (x / s) · s. */
enum kv_type {
	KV_FLOAT,
	KV_F8, /* e4m3, largest 448 */
	KV_I8  /* largest 127 */
};

/* KV cache of one group: layers that share a block table.  Pool layout is the backend's own. */
struct kv_group_desc {
	uint32_t layers, kv_heads, head_dim;
	uint32_t block_size; /* tokens per block */
	uint32_t blocks;     /* in the pool */
	enum kv_kind kind;
	enum kv_type type; /* of KV_PAIRS; KV_ROWS are KV_FLOAT */
};

/* Values of one token in all layers of GROUP. */
static inline uint64_t kv_group_values(const struct kv_group_desc *group)
{
	return (uint64_t)group->layers * group->kv_heads * group->head_dim * (group->kind == KV_PAIRS ? 2 : 1);
}

/* One sequence's part of a batch: rows [first_row, first_row + rows) are its tokens at positions
 * [context − rows, context); context counts the tokens in the cache once this step's rows are written. */
struct batch_sequence {
	uint32_t first_row, rows, context;
	uint32_t blocks;                                    /* entries in each table, ≥ ceil(context / block_size) */
	const int32_t *block_table[BACKEND_KV_GROUPS_MAX];  /* block numbers, one table per KV group */
};

/* A step's input; arrays are the caller's and stay valid until the step was waited for.  A token t < 0 is the id that row
 * −1 − t of the last sample drew: it may not have come back to the caller yet, so that step N + 1 can be enqueued while
 * step N runs. */
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

/* How a token's experts are chosen (DeepSeek-V3 2024; docs of route below). */
struct router_desc {
	uint32_t experts, top_k;
	uint32_t groups, top_groups; /* of equal size; 1 and 1: no groups */
	int      normalise;          /* weights of a token add up to 1 before SCALE */
	float    scale;
};

/* Experts FIRST, FIRST + 1, … of a layer, those of this rank: gate_up[i] [2·f, width] = gate | up, down[i] [width, f]. */
struct expert_desc {
	struct backend_weight *const *gate_up, *const *down;
	uint32_t first, count;
};

/* Multi-head latent attention (DeepSeek-V2 2024).  A head of q is [nope | rope]; a token's row of the cache is
 * [c: latent | k: rope], one for all heads.  The weight w [heads·(nope + value), latent] has for each head the rows that
 * make its key of c, then those that make its value. */
struct latent_desc {
	uint32_t heads, nope, rope, value, latent;
	float    scale;  /* of scores */
	int      sparse; /* a row sees only what index_select chose for it */
};

/* The indexer of sparse attention (DeepSeek-V3.2 2025). */
struct index_desc {
	uint32_t heads, dim, top_k;
};

/* How embed_add finds a row's row of the weight. */
enum embed_index { EMBED_CONSTANT, EMBED_POSITION };

/* Sampling.  What is done to the logits of a row, in this order:
 *
 *   log probabilities   of the model's own distribution, before anything below: log softmax of the logits as they are
 *   bias                l += add
 *   repetition          l = l > 0 ? l / r : l · r         ids of the prompt and of what was drawn (Keskar et al. 2019)
 *   frequency, presence l −= count · f + (count > 0 ? p : 0)   of what was drawn
 *   mask, bans          l = SAMPLE_BANNED
 *   temperature, top_k, top_p, min_p, the draw
 *
 * With everything off a row costs what it cost before there was any of it.  Arithmetic is float32 for bias and repetition;
 * frequency and presence are taken off in float64, frequency first, and rounded once, so that all backends have the same
 * bits.  What comes out is kept within ±SAMPLE_LOGIT_MAX. */
enum { SAMPLE_BIAS_MAX = 1024, SAMPLE_BANS_MAX = 128, SAMPLE_TOP_MAX = 20, SAMPLE_COUNT_MAX = 0x1fff };
#define SAMPLE_LOGIT_MAX 1e38f
#define SAMPLE_BANNED    (-3e38f) /* below all others; never drawn */

/* Everything the API lets a request say about sampling that fits in numbers.  0 is "off" for all from repetition on. */
struct sample_params {
	float    temperature; /* 0 = greedy (lowest id among equals) */
	float    top_p;       /* (0, 1], 1 = off */
	float    min_p;       /* [0, 1], 0 = off */
	int32_t  top_k;       /* 0 = off */
	uint64_t seed;
	float    repetition, presence, frequency; /* penalties; a repetition of 1 is off too */
	uint32_t min_tokens;  /* the slot's bans hold until so many were drawn */
	uint32_t logprobs;    /* 0 = none; 1 + k: of the drawn id, and of the k ≤ SAMPLE_TOP_MAX most likely ones */
};

/* What one answer needs beyond a row's numbers.  It lives with the backend, because the tokens of the last step may not
 * have come back to the host when the next sample is enqueued: sample adds what it draws to the counts by itself.  A
 * backend has as many slots as limits.logit_rows.  Which answers have one, and which, is the caller's business; whoever
 * gets a slot sets it before its first sample, with all that was drawn before (after a preemption, say).
 *
 * A slot is a table of 16 bits for each id of the vocabulary (model/sampling.h): whether the prompt has it, whether it has a
 * bias, how often it was drawn, up to SAMPLE_COUNT_MAX.  A list of distinct ids would be shorter at first, but must have
 * room for a context of them, which is more than the table where contexts are longer than a quarter of the vocabulary; and
 * a device adds to a table, reads it beside the logits, and never searches it. */
struct sample_bias {
	int32_t id;
	float   add;
};
struct sample_slot {
	const int32_t *prompt, *drawn;
	uint32_t       prompt_tokens, drawn_tokens;
	const struct sample_bias *bias; /* each id once */
	uint32_t       bias_count;      /* ≤ SAMPLE_BIAS_MAX */
	const int32_t *bans;            /* ids that are not drawn before params.min_tokens */
	uint32_t       ban_count;       /* ≤ SAMPLE_BANS_MAX */
};

/* Do these parameters need a slot?  So do biases. */
static inline int sample_params_need_slot(const struct sample_params *p)
{
	return (p->repetition != 0 && p->repetition != 1) || p->presence != 0 || p->frequency != 0 || p->min_tokens != 0;
}

/* One row to sample: row ROW of the logits of this step.
 *
 * The draw.  Each of a row's random numbers is uniform, below 1, of 53 bits: number n is the upper bits of words 2 (n mod 2) and
 * 2 (n mod 2) + 1, the higher one, of Philox4x32-10 (Salmon et al. 2011) of key seed and counter (position, choice, n / 2).  So a
 * draw never depends on neighbours, and a resubmitted request continues the same stream.
 *
 * Where a random number lies in a set of ids is where it, times the sum of their weights exp(l / T), lies among the sums of those
 * weights in the order of ids.  Where top_k leaves ids out, number 0 is looked up in what the filters keep.  Else numbers 0 to
 * SAMPLE_PROPOSALS − 1 are looked up in all ids: the first id so found that the filters keep is drawn; if they keep none of these,
 * number SAMPLE_PROPOSALS is looked up in what they keep.  Both ways ids have the probabilities that the filters leave them, but
 * whether they keep one id costs less to find out than all that they keep: with top_p, the weight of what is larger; with min_p,
 * nothing but its own. */
enum { SAMPLE_PROPOSALS = 32 };
struct sample_row {
	uint32_t             logit_row; /* index into batch.logit_rows */
	uint32_t             choice;
	uint64_t             position;  /* of the token being drawn: the sequence's length before it */
	uint64_t             generated; /* tokens of this choice drawn before it: position − prompt length */
	uint64_t             tag;       /* the engine's request id, for messages */
	uint32_t             slot;      /* 0 = none, else 1 + its number */
	const uint32_t      *mask;      /* bit id % 32 of word id / 32: may be drawn; NULL = all may.  The caller's, stays valid
	                                 * until the sample was waited for */
	/* Tokens that stand between what the choice has drawn and this row, as the step was told to guess them: they count as
	 * drawn.  Rows with the same slot follow each other, with 0, 1, 2, … guesses, the same ones as far as they go; their slot
	 * counts what was drawn up to the first that is not what the next row guessed.  The caller's, like the mask. */
	const int32_t       *guesses;
	uint32_t             guess_count;
	struct sample_params params;
};

/* Natural logarithms of probabilities, of one row. */
struct sample_logprobs {
	float    drawn;
	uint32_t count; /* ≤ SAMPLE_TOP_MAX; fewer than were asked for if the vocabulary has no more */
	struct {
		int32_t id;
		float   logprob;
	} top[SAMPLE_TOP_MAX]; /* falling; among equals the lower id first */
};

/* The largest step, for which a backend takes its own scratch once, at start. */
struct backend_limits {
	uint32_t rows, logit_rows;  /* tokens, and rows whose logits are wanted, of one step */
	uint32_t vocab;             /* rows of the output matrix, of all ranks together */
	uint32_t width;             /* the widest input of a linear layer */
	uint32_t q_heads, head_dim; /* of the widest attention */
	uint32_t stream;            /* width of what embed writes and layers add to */
	/* Of models that have them, else 0. */
	uint32_t experts, top_k, expert_width; /* experts of a layer, those of a token, width of their inner activation */
	uint32_t latent, latent_value;         /* widest row of a KV_ROWS group; widest head of latent_value's result */
	uint32_t index_heads, index_top_k;
};

struct backend_memory {
	uint64_t total, available; /* bytes of the device (for the CPU: this process's share) */
};

/* Nanoseconds of the device's own clock in a step: its first kernel began, its input was in place (a recorded step begins),
 * its logits were there and the draw began, the last id was drawn. */
struct backend_step_times {
	uint64_t begin, ready, computed, end;
};

/* The table.  `b` is the instance; "enqueues" means: may return before the work is done. */
struct backend_ops {
	uint32_t    version; /* BACKEND_VERSION */
	const char *name;    /* "cpu", … */
	int         overlaps; /* operations return before they ran: it pays to prepare step N + 1 while N runs */

	void (*destroy)(struct backend *b);
	enum status (*memory)(struct backend *b, struct backend_memory *ret);
	const char *(*describe)(struct backend *b); /* one line for the log: instruction set, threads */

	/* Load time.  Re-packs one weight; several weights of equal width may be stacked by rows into one (fused QKV,
	 * gate + up): COUNT descriptors with equal columns and any formats.  Vectors (rows = 1) are put end to end. */
	enum status (*weight_load)(struct backend *b, const struct weight_desc *parts, uint32_t count,
	    struct backend_weight **ret, struct error *error);
	/* As weight_load, with random values of a sensible size instead of those in PARTS, which hold names, formats and sizes
	 * only: for measuring.  NULL in a backend that has no quick way. */
	enum status (*weight_dummy)(struct backend *b, const struct weight_desc *parts, uint32_t count,
	    struct backend_weight **ret, struct error *error);
	/* What weight_load would take for the same parts, or the error it would give; values are not read.  NULL in a backend
	 * that cannot say. */
	enum status (*weight_size)(struct backend *b, const struct weight_desc *parts, uint32_t count, uint64_t *ret,
	    struct error *error);
	/* As weight_load, but the values stay where they are and are read each time they are needed: whatever PARTS points to
	 * lives as long as the weight.  For weights that do not fit into memory.  NULL in a backend that cannot. */
	enum status (*weight_map)(struct backend *b, const struct weight_desc *parts, uint32_t count,
	    struct backend_weight **ret, struct error *error);
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

	/* A step.  All enqueue.  An activation that was given as RESIDUAL_IN is used up: what it holds afterwards is
	 * undefined. */
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
	/* Both: y = silu(gate) · up, gate | up = x · Wᵀ, with the bits of linear and silu_gate; GATE_UP [rows, 2·width] is room for
	 * that, undefined afterwards.  NULL in a backend that has nothing better than the two. */
	enum status (*linear_silu)(struct backend *b, const struct backend_weight *w, const struct activation *x,
	    struct activation *gate_up, struct activation *y);
	/* logits of batch.logit_rows: norm (as rms_norm, on those rows only) and the output matrix; kept for sample.  With
	 * several ranks W may be a rank's part, that of rows from rank · ceil(limits.vocab / ranks) on: then every rank gets
	 * the logits of all. */
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

	/* Mixture of experts; both NULL in a backend that has none.
	 *
	 * s = sigmoid(x · Wᵀ) in float32 for each expert; those with the largest s + bias are chosen (equal ones: the lower
	 * number; bias may be NULL), with groups only among the experts of the groups whose two best s + bias add up to most.
	 * Their weights are s, divided by their sum if `normalise` says so, times `scale`.  Kept for experts. */
	enum status (*route)(struct backend *b, const struct backend_weight *w, const struct backend_weight *bias,
	    const struct router_desc *router, const struct activation *x);
	/* y += Σ weight · down · (silu(gate · x) · (up · x)) over those chosen experts of each row that are here, lower numbers
	 * first.  Only experts that some row chose are read. */
	enum status (*experts)(struct backend *b, const struct expert_desc *experts, const struct activation *x,
	    struct activation *y);

	/* Latent attention; all NULL in a backend that has none.  q [rows, heads·(nope + rope)], kv [rows, latent + rope].
	 *
	 * c = norm(c, NORM, EPS), rotates the rope part of kv and of each head of q in place, and writes kv's rows of LAYER into
	 * group GROUP. */
	enum status (*latent_write)(struct backend *b, struct activation *q, struct activation *kv,
	    const struct backend_weight *norm, float eps, uint32_t group, uint32_t layer, const struct latent_desc *latent,
	    const struct rope_desc *rope);
	/* The absorbed form, in three steps.  y [rows, heads·(latent + rope)]: each head's nope part times the rows of W that
	 * make its key, then its rope part. */
	enum status (*latent_query)(struct backend *b, const struct activation *q, const struct backend_weight *w,
	    const struct latent_desc *latent, struct activation *y);
	/* y [rows, heads·latent] = softmax(scale · q · row + causal) c */
	enum status (*latent_attention)(struct backend *b, const struct activation *q, uint32_t group, uint32_t layer,
	    const struct latent_desc *latent, struct activation *y);
	/* y [rows, heads·value]: the rows of W that make each head's value, times its x. */
	enum status (*latent_value)(struct backend *b, const struct activation *x, const struct backend_weight *w,
	    const struct latent_desc *latent, struct activation *y);
	/* All three as the definition says: keys and values of every head are made of the cache's rows, then attention. */
	enum status (*latent_expanded)(struct backend *b, const struct activation *q, const struct backend_weight *w,
	    uint32_t group, uint32_t layer, const struct latent_desc *latent, struct activation *y);

	/* Sparse attention; all NULL in a backend that has none.  q [rows, heads·dim], k [rows, dim]: rotates the first dims of
	 * each head of q and of k in place and writes k of LAYER into group GROUP. */
	enum status (*index_write)(struct backend *b, struct activation *q, struct activation *k, uint32_t group, uint32_t layer,
	    const struct index_desc *index, const struct rope_desc *rope);
	/* score[s] = Σ w[h] · relu(q[h] · k[s]) over heads h, for all s up to the row's own position; the top_k largest are chosen
	 * (equal ones: the lower position).  weights [rows, heads].  Kept, for latent_attention of any number of layers, until
	 * the next index_select. */
	enum status (*index_select)(struct backend *b, const struct activation *q, const struct activation *weights,
	    uint32_t group, uint32_t layer, const struct index_desc *index);
	/* From now on row r sees what row rows[r] did: [batch.rows] rows of the last batch. */
	enum status (*index_follow)(struct backend *b, const int32_t *rows);

	/* Drafts; NULL in a backend that has none.  y [rows, 2·width] = norm(x[r], W) | norm(hidden[rows[r]], HIDDEN_W). */
	enum status (*draft_input)(struct backend *b, const struct activation *x, const struct backend_weight *w,
	    const struct activation *hidden, const int32_t *rows, const struct backend_weight *hidden_w, float eps,
	    struct activation *y);

	/* Copies blocks inside a group (copy-on-write of partial blocks). */
	enum status (*kv_copy)(struct backend *b, uint32_t group, const int32_t *from, const int32_t *to, uint32_t count);

	/* Fills slot number SLOT (struct sample_slot); the arrays are read before it returns.  Ids outside the vocabulary of
	 * scratch_alloc are STATUS_INVALID.  NULL in a backend whose draws know no parameters. */
	enum status (*sample_slot)(struct backend *b, uint32_t slot, const struct sample_slot *from);
	/* The second launch of a step: draws one id per row into device memory.  Ids ≥ VOCAB_LIMIT are masked.  Logits stay
	 * as they are. */
	enum status (*sample)(struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit);
	/* Waits for the oldest sample that was not waited for yet, and *ret_ids gets its ids; −1 for a row whose logits hold a
	 * NaN or an infinity, or all of whose ids are banned: that request must end with an error, its neighbours go on.
	 * At most BACKEND_SAMPLES_MAX samples may be under way.  RET_IDS of NULL: waits for everything enqueued. */
	enum status (*wait)(struct backend *b, int32_t *ret_ids, uint32_t count, struct error *error);
	/* Of row INDEX of the sample that was waited for last, as long as no more than one sample was enqueued after it;
	 * STATUS_INVALID when that row asked for none.  NULL as sample_slot. */
	enum status (*read_logprobs)(struct backend *b, uint32_t index, struct sample_logprobs *ret);
	/* After wait: copies the float32 logits of row INDEX of batch.logit_rows [vocab] (tests, evaluation, logprobs). */
	enum status (*read_logits)(struct backend *b, uint32_t index, float *ret, uint32_t vocab);

	/* Recorded steps; all three NULL in a backend that has none.
	 *
	 * The steps that the backend wants to see once at start, after scratch and KV pools were taken, to choose kernels by
	 * their shapes and to record what it will replay: step INDEX has *ret_sequences sequences of *ret_rows rows
	 * together.  Values count for nothing: all slots are −1.  0 after the last. */
	int (*rehearsal)(struct backend *b, uint32_t index, uint32_t *ret_rows, uint32_t *ret_sequences);
	/* Between step_begin and the operations of MODEL's forward(); *ret_done = 1: a recording of them was enqueued instead
	 * and forward() is not called.  After forward(), with its STATUS, forward_end; it returns that, or what went wrong
	 * with the recording. */
	enum status (*forward_begin)(struct backend *b, const void *model, int *ret_done);
	enum status (*forward_end)(struct backend *b, enum status status);

	/* What the backend decided at start, line by line; NULL after the last.  NULL in a backend that decides nothing. */
	const char *(*notes)(struct backend *b, uint32_t index);
	/* What the stages of loading weights took, in seconds, for the line that says ready.  NULL: there is but one stage. */
	const char *(*load_words)(struct backend *b);

	/* Bytes per second that the device reads, measured now: what a step cannot be faster than.  NULL: not known. */
	enum status (*read_bandwidth)(struct backend *b, double *ret);

	/* The clocks of the last steps that drew something, oldest first, at most BACKEND_TIMES_MAX of them; waits for all of
	 * them.  NULL: the device has no clock. */
	enum status (*step_times)(struct backend *b, struct backend_step_times *ret, uint32_t *ret_count);

	/* Seconds of one product of W with ROWS rows by the vendor's library, its own first choice (to_float: with float32
	 * results), measured now as kernels are: what an own choice is to be held against.  STATUS_NOT_FOUND: it offers none.
	 * After scratch_alloc.  NULL: there is no library. */
	enum status (*library)(struct backend *b, const struct backend_weight *w, uint32_t rows, int to_float, double *ret);

	/* The same by one of the backend's own kernels, way 0, 1, 2, … of those there are to choose among, with its words; among the
	 * first are those that are taken unless another was measured to be faster.  STATUS_UNSUPPORTED: that way does not suit
	 * the product; STATUS_NOT_FOUND: after the last one.  NULL: there is nothing to choose. */
	enum status (*product_way)(struct backend *b, const struct backend_weight *w, uint32_t rows, int to_float, uint32_t way,
	    char words[BACKEND_WAY_MAX], double *ret);

	/* The first ROWS rows of an activation as float32 [rows][width], for tests of operations; both wait. */
	enum status (*activation_put)(struct backend *b, struct activation *a, const float *values, uint32_t rows);
	enum status (*activation_get)(struct backend *b, const struct activation *a, float *ret, uint32_t rows);

	/* Several ranks; NULL in a backend that is always alone.  All of them run the same steps, each on a thread or in a
	 * process of its own, and meet in this operation, in logits, and in linear where input_over_ranks says so.
	 *
	 * x = Σ x over all ranks, added up in the order of ranks, so that all of them get the same bits each time. */
	enum status (*all_reduce)(struct backend *b, struct activation *x);
};

/* Every backend instance begins with this.  It is number RANK of RANKS that compute one model together, each with its part
 * of the weights; ranks of 0 or 1: it is alone. */
struct backend {
	const struct backend_ops *ops;
	uint32_t rank, ranks;
};

#ifdef __cplusplus
}
#endif
#endif
