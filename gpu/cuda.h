/* cuda.h: the inside of the CUDA backend: the instance, weights, activations, a step's metadata.
 *
 * One stream computes; a second one carries metadata of the next step to the device while the last one still runs:
 *
 *      host      step_begin N+1 ──► pinned staging ─┐                       sample rows ─┐
 *      copies                                       └► device staging                    └► device staging
 *      compute   … forward N, sample N │ take N+1, forward N+1 (a replayed graph) │ sample N+1 ──► ids: device, pinned
 *
 * "take" is a kernel that puts the staged arrays where kernels and recorded graphs expect them, and tokens that the last
 * sample drew into their rows.  Nothing in a step takes memory or waits for the device; the one wait is `wait`.
 *
 * Postponed work.  A bias, a norm of a delta and the norms of heads are not launched where they are asked for: they are
 * noted beside the activation, and the operation that reads it next does them on the way (rope_kv_write, rms_norm with a
 * residual, layer_norm, gelu, logits).  Whoever else reads the activation calls rows_settle first.
 *
 * At one row a norm of the stream with a residual is postponed, too (cuda_backend.postponed): a product whose kernel can do it
 * itself takes it (norm_take), so that between two products no kernel's start and end are waited for.  It reads and writes
 * more than one activation, so every other operation begins with norm_settle.
 * A product is postponed where rope_kv_write came next the last time (step.product), which many kernels do in their epilogue;
 * norm_settle launches it, too.
 */
#ifndef PENSTOCK_GPU_CUDA_H
#define PENSTOCK_GPU_CUDA_H

#include "gpu/fault.h"
#include "gpu/metadata.h"
#include "gpu/postponed.h"
#include "gpu/stored.h"
#include "model/backend.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
/* Whose kernels (option batcher.kernels).  LIBRARY: cuBLASLt and the plain ones; OWN: those written for sm_90a, where one
 * exists for the shape; PORTABLE: those of mma.sync and cp.async, for sm_80 and later, where one exists. */
enum kernels { KERNELS_LIBRARY, KERNELS_OWN, KERNELS_PORTABLE };

enum {
	CUDA_ALIGN = 256,          /* of everything in the arena */
	CUDA_STRIDE = 8,           /* rows are padded to whole multiples of so many elements */
	CUDA_SLOTS = 2,            /* of staging: one step is read while the next is written */
	CUDA_DECODE_ROWS = BACKEND_DECODE_QUERIES_MAX, /* rows of a sequence that decode attention takes at most */
	CUDA_RUNGS_MAX = 64,       /* batch sizes that are recorded */
	CUDA_MODELS_MAX = 32,
	CUDA_RECORD_WAYS = 3,      /* plainly, with dependent launches, and with those and own products wherever there are */
	CUDA_SLOT_STAGES = 4,      /* fills of sampler slots on their way */
	CUDA_SLOT_WORDS = 1 << 15  /* ids of one fill; ≥ all biases and bans */
};

/* ---- Memory ---- */

struct arena_chunk {
	struct arena_chunk *next;
	char   *data;
	size_t  bytes, used;
	uint32_t users;
};

struct arena_block {
	struct arena_chunk *chunk;
	void  *data;
	size_t bytes;
};

/* ---- Weights and activations ---- */

/* How a matrix lies on the device, and how it gets there.  The way of the stored bytes to the device is the same for all
 * (load.cu); a layout says what becomes of them.  For a new one: a struct weight_layout beside its kernels, a line in the table
 * of weight.cu before those that are to be taken when it cannot be, its pointers in struct backend_weight, and, in the
 * operations that read it, a look at `layout`. */
struct weight_layout {
	const char *name;
	/* Pieces begin at such rows of a part or, of int4 that is stored transposed, columns; the rest of each is whole. */
	uint32_t row_unit, column_unit;
	/* Whether the stack of PARTS, which passed the checks, can lie so, and is wanted so (cuda->kernels). */
	int (*takes)(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count);
	uint64_t (*bytes)(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count);
	/* W has its sizes and memory of so many bytes, not cleared: sets the pointers.  What it enqueues is on the compute stream. */
	enum status (*set)(struct cuda_backend *cuda, struct backend_weight *w, const struct weight_desc *parts, uint32_t count);
	/* Enqueues, on the compute stream, what puts a piece into its place; scales are complete. */
	cudaError_t (*place)(struct cuda_backend *cuda, struct backend_weight *w, const struct stored_piece *piece);
	/* Where the bytes of PART go as they are, without a kernel; NULL: they have to be placed.  May be NULL. */
	uint8_t *(*straight)(const struct cuda_backend *cuda, const struct backend_weight *w, const struct weight_desc *part,
	    uint32_t stack_row);
	/* Fills W with random values so that outputs are as large as inputs. */
	enum status (*random)(struct cuda_backend *cuda, struct backend_weight *w);
};

struct int4_slab; /* fmt_int4.cuh */

/* A matrix of bytes (fmt_byte.cu). */
struct byte_matrix {
	uint8_t *values; /* [rows][stride]; NULL: it is none */
	float   *scales; /* [rows], or [granules of rows][scale_stride groups of inputs] */
	uint32_t granule, scale_stride; /* granule 0: for each row */
	uint64_t scale_count;
	int      kind;   /* enum byte_kind */
};

struct backend_weight {
	struct backend_weight *next, *previous; /* of all matrices of the backend */
	uint32_t rows, columns, stride;         /* of a matrix [rows][stride], in elements of the backend's type */
	uint64_t bytes;
	void    *data;
	float   *vector;                        /* device float32 [columns]; no matrix then */
	enum weight_input input;
	float    input_scale;
	struct arena_block block;
	const struct weight_layout *layout;     /* of a matrix */
	struct byte_matrix byte;                /* with values, DATA is NULL and STRIDE in bytes */
	struct int4_slab *int4;                 /* where it lies in codes of four or eight bits: DATA is no plain matrix then,
	    STRIDE that of a decoded one */
	struct backend_weight **cut;            /* a stack whose parts lie in different ways: CUT_COUNT matrices one below the
	    other, whose first rows are multiples of CUDA_STRIDE; it has no memory itself then */
	uint32_t cut_count;
};

/* Weights of formats that slabs have, where they are to stay so: those that do, those that become 16 bits, why the first of
 * these. */
struct int4_totals {
	uint32_t slabs, decoded;
	char     why[128];
};

/* How weights came to the device. */
struct upload_totals {
	uint64_t stored_bytes, sent_bytes; /* in files, on the device */
	uint64_t ns;                       /* of the loader */
	uint64_t fill_ns, wait_ns;         /* of all threads: reading, and decoding unless ON_DEVICE; waiting for buffers */
	uint64_t link_ns, place_ns;        /* of the device, ON_DEVICE: copies, and kernels that decode or re-pack */
	unsigned threads;
	int      on_device;                /* what is stored otherwise is decoded by the device */
	uint32_t narrow, widened;          /* matrices stored as float8 or int8; those of them that lie as rows of T */
	char     first_widened[80];
};

/* Vectors on their way: pinned [VECTOR_VALUES], the first USED of which may still be read. */
struct vector_staging {
	float      *host;
	uint64_t    used;
	cudaEvent_t sent;
};

/* What struct activation's data points to.  What layers add to, from embed on, is kept in float32 beside it: WIDE is then
 * where it lies and DATA is stale.  Norms read either; whoever needs DATA calls rows_settle. */
struct cuda_rows {
	void    *data;
	float   *wide;
	uint32_t rows, width, stride;
	struct arena_block block;
	/* Postponed: bias first, then one of the norms. */
	const float *bias, *norm, *q_norm, *k_norm;
	float        norm_eps, head_eps;
	uint32_t     q_heads, kv_heads;
	int          heads_follow; /* rope_kv_write, as a product may do it, came next the last time */
	enum weight_input wants;   /* what the last product with weights of one byte wanted done to it */
	enum weight_input rounded; /* what was done: the bytes are in scratch if it is cuda_backend.rounded */
};

struct cuda_kv {
	struct kv_group_desc desc;
	void  *keys, *values; /* [layers][blocks][kv_heads][block_size][head_dim] */
	float *scales;        /* of keys and values of one byte: [layers][blocks][kv_heads][2][block_size], keys' first; else NULL */
	/* From a block's head to the next, in bytes of keys and of values, and in scales.  Where own attention reads bytes, all that
	 * a head has of a block is one record: keys, values, scales (attention_hopper_byte.cuh). */
	size_t unit, scale_unit;
	/* Not 0 where the 16-byte chunks of a row lie swapped by its number, as own attention wants them in shared memory.  With 7,
	 * element d of row r is at d ^ (r & 7) << 3; bytes lie as byte_tile_at says, and swizzle is 1 less than chunks of a row. */
	uint32_t swizzle;
	struct arena_block block;
};

/* ---- A step's metadata: its entries are in metadata.h ---- */

/* Device arrays with fixed places. */
struct step_arrays {
	int32_t *counts;     /* [4]: items, tiles, sequences, rows */
	int32_t *tokens, *positions, *row_sequence; /* [rows]; −1: a row of padding */
	int32_t *slots[BACKEND_KV_GROUPS_MAX];      /* [rows] */
	int32_t *logit_rows; /* [logit_rows] */
	struct step_sequence *sequences;
	struct step_item     *items;
	struct step_tile     *tiles;
	int32_t *tables;
	struct attention_unit *units[BACKEND_KV_GROUPS_MAX]; /* of groups whose pages lie swapped */
};

/* The same in a staging buffer: words from the beginning of each array, and how many. */
enum { SECTION_COUNTS, SECTION_TOKENS, SECTION_POSITIONS, SECTION_ROW_SEQUENCE, SECTION_LOGIT_ROWS, SECTION_SEQUENCES,
	SECTION_ITEMS, SECTION_TILES, SECTION_TABLES, SECTION_SLOTS, SECTION_UNITS = SECTION_SLOTS + BACKEND_KV_GROUPS_MAX,
	SECTION_COUNT = SECTION_UNITS + BACKEND_KV_GROUPS_MAX };

struct step_sections {
	int32_t *to[SECTION_COUNT];
	uint32_t at[SECTION_COUNT], words[SECTION_COUNT];
};

struct step_staging {
	int32_t    *host, *device;
	cudaEvent_t copied, taken;
	int         used; /* `taken` was recorded */
};

struct sample_staging {
	struct sample_job *host, *device;
	int32_t    *ids;   /* pinned; written by the kernel */
	struct sample_logprobs *logprobs; /* likewise */
	uint32_t   *masks; /* pinned: [logit_rows][mask_words], as many as there are */
	cudaEvent_t copied, done;
	uint32_t    count;
	int         used;
};

/* Words on their way to a sampler's slot. */
struct slot_staging {
	int32_t    *host, *device; /* [CUDA_SLOT_WORDS] */
	cudaEvent_t copied, taken;
	int         used; /* `taken` was recorded */
};

/* The step under way, as the host sees it. */
struct step {
	const struct batch *batch;  /* the caller's, until the step was waited for: not to be read afterwards */
	uint32_t wanted;            /* its rows of logits, which may be read then */
	uint64_t number;
	uint32_t rows, logit_rows;       /* padding included */
	uint32_t decode_rows_max, tiles; /* most rows of a decode sequence; tiles of prefill attention */
	uint32_t uncovered;              /* rows that belong to no sequence */
	uint32_t launches;               /* of kernels, so far */
	uint32_t work_max;               /* items at most: what launches of decode attention are sized by */
	uint32_t pass_parts[BACKEND_KV_GROUPS_MAX]; /* of eight rows, that passes of the group's units have at most: 2 to 4 */
	uint32_t rung;                   /* index of the recorded size it was padded to; CUDA_RUNGS_MAX = none */
	int      recording;
	int      dependent;              /* kernels that can are launched as launch.cuh says */
	int      own;                    /* products that have an own kernel with the right bits are its, whatever took less time */
	uint32_t vocab, pooled_width;    /* of the logits and pooled rows that lie in scratch; 0 = none */
	int      rotation_ready;
	struct rope_desc rotation;
	/* A product that is postponed; without W there is none. */
	struct {
		const struct backend_weight *w;
		struct cuda_rows *from, *to;
	} product;
	/* What rope_kv_write makes of HEADS_OF while its product is launched; NULL once a kernel does it. */
	const struct head_target *heads;
	const struct cuda_rows   *heads_of;
};

/* ---- Recorded steps ---- */

struct rung {
	uint32_t rows;
	int      seen; /* in a rehearsal */
	struct {
		const void     *model;
		cudaGraphExec_t graph;
		uint32_t        ways;                /* that were recorded; of several the graph is that of the fastest */
		float           us[CUDA_RECORD_WAYS]; /* of replays, where there are several; 0: it could not be recorded */
		uint32_t        vocab, pooled_width;
	} recorded[CUDA_MODELS_MAX];
};

/* ---- Linear layers ---- */

struct linear_plan; /* linear.cu */

struct cuda_scratch {
	struct backend_limits limits;
	struct arena_block    block;
	void    *normed;    /* [logit_rows][width] */
	float   *stream;    /* [rows][stream_stride] */
	float   *stream_next; /* [stream_stride]: where a postponed norm puts one row of it, and the next one puts it back */
	void    *rounded;   /* [rows][width]: inputs that were rounded for a weight */
	float   *logits;    /* [logit_rows][vocab_stride] */
	float   *pooled;    /* [logit_rows][width] */
	float2  *rotation;  /* [rows][head_dim / 2]: cosine, sine */
	float   *partials;  /* decode attention: [partial_rows][head_dim + 2] */
	int32_t *arrived;   /* [rows][q_heads]: parts of a head that are done; zero between launches */
	int32_t *arrived_runs; /* [partial_rows]: the same in attention_hopper.cuh, which alone has it */
	int32_t *ids;       /* [logit_rows]: the last sample */
	void    *workspace; /* of cuBLASLt */
	void    *int4;      /* decoded slices of slabs */
	uint16_t *tables;   /* [logit_rows][table_stride]: the sampler's slots */
	struct sample_bias *bias; /* [logit_rows][SAMPLE_BIAS_MAX], each slot's in the order of ids */
	uint32_t *masks;    /* [BACKEND_SAMPLES_MAX][logit_rows][mask_words] */
	float    *piece_most; /* [2][logit_rows][sample_pieces(vocab_stride)]: what sample_scan leaves of each piece of logits */
	uint64_t *piece_sums; /* likewise */
	uint32_t vocab_stride, stream_stride, table_stride, mask_words;
	uint64_t partial_rows;
};

struct cuda_backend {
	struct backend base;
	enum dtype     dtype;
	enum kernels   kernels;
	int            fastest; /* KERNELS_OWN, but products that cuBLASLt is faster at, with the same bits, are its own (auto) */
	int            device, multiprocessors, major, minor;
	char           description[256], note[200]; /* note: the last one of step_note */
	cudaStream_t   stream, copies;
	cublasLtHandle_t blas;
	struct arena_chunk    *chunks;
	struct backend_weight *weights; /* all matrices, for choosing kernels */
	struct cuda_kv         kv[BACKEND_KV_GROUPS_MAX];
	struct cuda_scratch    scratch;
	struct linear_plan    *linear;
	struct byte_plans     *byte_plans; /* fmt_byte.cu */
	const struct cuda_rows *rounded;   /* whose rows scratch.rounded has as bytes; NULL: nobody's */
	struct cuda_rows       *postponed; /* whose only row a norm is to write that is not launched yet; NULL: there is none */
	struct norm_prologue    norm;      /* that one */
	struct upload         *upload;
	struct load           *load;
	struct vector_staging  vectors;
	char                   load_words[128];
	struct upload_totals   uploaded;
	struct int4_totals     int4;
	/* Steps. */
	struct step_arrays   arrays;
	struct step_staging  staging[CUDA_SLOTS];
	uint32_t             staging_words, tables_max, tables_group, units_max[BACKEND_KV_GROUPS_MAX];
	struct attention_planner *planner;
	struct sample_staging samples[BACKEND_SAMPLES_MAX];
	struct slot_staging  slot_staging[CUDA_SLOT_STAGES];
	uint16_t            *slot_biases; /* [logit_rows]: biases of each slot */
	uint64_t             slot_fills;
	uint64_t             sampled, waited, steps;
	struct step          step;
	struct rung          rungs[CUDA_RUNGS_MAX];
	uint32_t             rung_count;
	int                  rehearsing;
	/* What the device says about steps: marks in host memory, clocks in its own. */
	struct fault_marks  *marks, *marks_device; /* the same words, as the host and as the device see them */
	struct fault_step    history[FAULT_STEPS];
	struct backend_step_times *times;          /* device [BACKEND_TIMES_MAX]: of step number % BACKEND_TIMES_MAX */
	/* The first error; everything after it is refused. */
	enum status  fault;
	struct error fault_error;
};

static inline struct cuda_backend *cuda_of(struct backend *b) { return (struct cuda_backend *)b; }
static inline struct cuda_rows *rows_of(const struct activation *a) { return (struct cuda_rows *)a->data; }
static inline uint32_t stride_of(uint32_t width) { return (width + CUDA_STRIDE - 1) / CUDA_STRIDE * CUDA_STRIDE; }
static inline size_t element_bytes(const struct cuda_backend *cuda) { return cuda->dtype == DTYPE_F32 ? 4 : 2; }
/* Of a layer: bytes of its keys, which are as many as those of its values, and scales in number. */
static inline size_t kv_layer_bytes(const struct cuda_kv *kv)
{
	return kv->desc.blocks * kv->desc.kv_heads * kv->unit;
}
static inline size_t kv_layer_scales(const struct cuda_kv *kv)
{
	return kv->desc.blocks * kv->desc.kv_heads * kv->scale_unit;
}

/* backend.cu */

/* STATUS_OK, or keeps the first error with its words: WHAT failed in which step. */
enum status cuda_check(struct cuda_backend *cuda, cudaError_t code, const char *what);
/* After a launch. */
static inline enum status cuda_launched(struct cuda_backend *cuda, const char *kernel)
{
	cudaError_t code = cudaPeekAtLastError();
	return code == cudaSuccess && cuda->fault == STATUS_OK ? STATUS_OK : cuda_check(cuda, code, kernel);
}
/* The mark of the next launch of the step. */
static inline struct step_mark mark_next(struct cuda_backend *cuda, enum fault_kernel kernel)
{
	struct step_mark mark = { cuda->marks_device ? &cuda->marks_device->begun : NULL, fault_mark(kernel, ++cuda->step.launches) };
	return mark;
}
enum status arena_take(struct cuda_backend *cuda, size_t bytes, struct arena_block *ret);
void        arena_drop(struct cuda_backend *cuda, struct arena_block *block); /* leaves it empty */

/* weight.cu */
enum status cuda_weight_load(struct backend *b, const struct weight_desc *parts, uint32_t count,
    struct backend_weight **ret, struct error *error);
enum status cuda_weight_dummy(struct backend *b, const struct weight_desc *parts, uint32_t count,
    struct backend_weight **ret, struct error *error);
enum status cuda_weight_size(struct backend *b, const struct weight_desc *parts, uint32_t count, uint64_t *ret,
    struct error *error);
void        cuda_weight_free(struct backend *b, struct backend_weight *w);
uint64_t    cuda_weight_bytes(const struct backend *b, const struct backend_weight *w);
/* Until weights are complete: what loading took is given back. */
void        weights_loaded(struct cuda_backend *cuda);
const char *cuda_load_words(struct backend *b);

/* load_host.cu */
enum status load_host_matrix(struct cuda_backend *cuda, struct backend_weight *w, const struct weight_desc *parts, uint32_t count,
    struct error *error);
void        load_host_destroy(struct cuda_backend *cuda);

/* load.cu */
/* Brings the matrices PARTS to W, whose memory is there. */
enum status load_matrix(struct cuda_backend *cuda, struct backend_weight *w, const struct weight_desc *parts, uint32_t count,
    struct error *error);
void        load_destroy(struct cuda_backend *cuda);

/* step.cu */
enum status step_alloc(struct cuda_backend *cuda, struct error *error);
void        step_free(struct cuda_backend *cuda);
/* Of rungs that were recorded with and without dependent launches; NULL after the last. */
const char *step_note(struct cuda_backend *cuda, uint32_t index);
enum status cuda_step_times(struct backend *b, struct backend_step_times *ret, uint32_t *ret_count);
enum status cuda_step_begin(struct backend *b, const struct batch *batch);
int         cuda_rehearsal(struct backend *b, uint32_t index, uint32_t *ret_rows, uint32_t *ret_sequences);
enum status cuda_forward_begin(struct backend *b, const void *model, int *ret_done);
enum status cuda_forward_end(struct backend *b, enum status status);
enum status cuda_wait(struct backend *b, int32_t *ret_ids, uint32_t count, struct error *error);

/* linear.cu */
enum status linear_create(struct cuda_backend *cuda, struct error *error);
void        linear_destroy(struct cuda_backend *cuda);
size_t      linear_workspace_bytes(void);
const char *cuda_notes(struct backend *b, uint32_t index);
enum status cuda_library(struct backend *b, const struct backend_weight *w, uint32_t rows, int to_float, double *ret);
enum status cuda_product_way(struct backend *b, const struct backend_weight *w, uint32_t rows, int to_float, uint32_t way,
    char words[BACKEND_WAY_MAX], double *ret);
/* y [rows][y_stride] = x · Wᵀ; float32 output when TO_FLOAT. */
enum status linear_run(struct cuda_backend *cuda, const struct backend_weight *w, const void *x, uint32_t x_stride,
    uint32_t rows, void *y, uint32_t y_stride, int to_float);
enum status cuda_linear(struct backend *b, const struct backend_weight *w, const struct backend_weight *bias,
    const struct activation *x, struct activation *y);
/* The postponed product, if there is one, is launched. */
enum status linear_settle(struct cuda_backend *cuda);
/* What a product that writes N outputs to Y may do in its epilogue (heads.cuh); NULL: nothing.  Who does it sets step.heads to
 * NULL. */
const struct head_target *heads_wanted(const struct cuda_backend *cuda, const void *y, uint32_t n);
enum status cuda_linear_silu(struct backend *b, const struct backend_weight *w, const struct activation *x,
    struct activation *gate_up, struct activation *y);
enum status cuda_logits(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *norm, float eps, const struct backend_weight *w);

/* fmt_int4.cu */
extern const struct weight_layout layout_int4;
size_t      int4_workspace_bytes(const struct cuda_backend *cuda);
/* Adds a stack to the totals. */
void        int4_note(struct cuda_backend *cuda, const struct backend_weight *w, const struct weight_desc *parts, uint32_t count);
/* As linear_run, of a slab.  GATED: y = silu(gate) · up, W = gate | up, of what int4_is_gated. */
enum status int4_run(struct cuda_backend *cuda, const struct backend_weight *w, const void *x, uint32_t x_stride, uint32_t rows,
    void *y, uint32_t y_stride, int to_float, int gated);
/* Whether a product with one row does its postponed norm (norm_take). */
bool        int4_takes_norm(const struct cuda_backend *cuda, const struct backend_weight *w);
bool        int4_is_gated(const struct cuda_backend *cuda, const struct backend_weight *w, uint32_t rows);
/* TO[i] = row OFFSET + INDEX[i] of a slab (OFFSET without an index), or is added to, for the rows of the step. */
enum status int4_embed(struct cuda_backend *cuda, const struct backend_weight *w, const int32_t *index, uint32_t offset, int add,
    struct cuda_rows *to);

/* fmt_byte.cu */
extern const struct weight_layout layout_bytes;
/* What ROWS inputs of linear layers take at most when they were rounded to bytes. */
uint64_t    byte_scratch_bytes(const struct cuda_backend *cuda, uint64_t rows, uint32_t width);
/* As linear_run, of a matrix of bytes; rounds X itself where the checkpoint wants that, unless it is that of OF, which may be
 * NULL, and was rounded before.  Y has room for Y_ROWS rows, of which those behind ROWS get anything. */
enum status byte_run(struct cuda_backend *cuda, const struct backend_weight *w, struct cuda_rows *of, const void *x,
    uint32_t x_stride, uint32_t rows, void *y, uint32_t y_stride, uint32_t y_rows, int to_float);
/* Where a kernel that writes all of ROWS, for the rows of the step, rounds them to as well: nowhere if nobody wants that.  When
 * it was launched, and rows_written, byte_rounded_by. */
struct byte_target;
struct byte_target byte_target_of(struct cuda_backend *cuda, const struct cuda_rows *rows);
void        byte_rounded_by(struct cuda_backend *cuda, struct cuda_rows *rows, const struct byte_target *target);
/* The same product by cuBLASLt, by ALGO or, NULL, its own choice, of inputs that are rounded once: rows are padded to a multiple of
 * 4, Y [padded rows][y_stride] has room for 4 bytes each, and of int8 it gets unscaled sums.  False: it has none. */
struct byte_library {
	cublasLtMatmulDesc_t   operation;
	cublasLtMatrixLayout_t a, b, d;
	cublasLtMatmulAlgo_t   algo;
	struct {
		uint8_t *q;
		float   *scales;
	} rounded;
};
bool        byte_library_begin(struct cuda_backend *cuda, const struct backend_weight *w, struct cuda_rows *of, const void *x,
    uint32_t x_stride, uint32_t rows, uint32_t y_stride, int to_float, const cublasLtMatmulAlgo_t *algo, struct byte_library *ret);
bool        byte_library_run(struct cuda_backend *cuda, const struct byte_library *library, const struct backend_weight *w,
    void *y);
void        byte_library_end(struct byte_library *library);
void        byte_destroy(struct cuda_backend *cuda);
/* What was chosen: so many notes, and one of them in words; false: there are not so many. */
uint32_t    byte_notes(const struct cuda_backend *cuda);
bool        byte_note(const struct cuda_backend *cuda, uint32_t index, char *ret, size_t size);
/* TO[i] = row OFFSET + INDEX[i] of it (OFFSET without an index), or is added to, for the rows of the step. */
enum status byte_embed(struct cuda_backend *cuda, const struct backend_weight *w, const int32_t *index, uint32_t offset, int add,
    struct cuda_rows *to);

/* rows.cu */
enum status rows_settle(struct cuda_backend *cuda, struct cuda_rows *rows);
/* The postponed norm of the stream, if there is one, is launched. */
enum status norm_settle(struct cuda_backend *cuda);
/* Whether X is what a postponed norm writes; if so, RET is for the caller's kernel to do. */
bool        norm_take(struct cuda_backend *cuda, const void *x, struct norm_prologue *ret);
void        rows_written(struct cuda_rows *rows); /* DATA holds all of it */
enum status rows_norm(struct cuda_backend *cuda, struct cuda_rows *x, struct cuda_rows *residual, const float *w,
    float eps, void *y, uint32_t y_stride, uint32_t rows, const int32_t *chosen, const struct byte_target *round);
enum status rows_round(struct cuda_backend *cuda, const struct backend_weight *w, const void *x, uint32_t stride,
    uint32_t rows, void *ret);
enum status cuda_read_bandwidth(struct backend *b, double *ret);
enum status rows_random(struct cuda_backend *cuda, void *data, uint64_t count, float scale, uint64_t seed);
enum status cuda_embed(struct backend *b, const struct backend_weight *w, struct activation *y);
enum status cuda_embed_add(struct backend *b, const struct backend_weight *w, enum embed_index index, uint32_t offset,
    struct activation *y);
enum status cuda_rms_norm(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *w, float eps, struct activation *y);
enum status cuda_layer_norm(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *w, const struct backend_weight *bias, float eps, struct activation *y);
enum status cuda_silu_gate(struct backend *b, const struct activation *gate_up, struct activation *y);
enum status cuda_gelu(struct backend *b, struct activation *x);
enum status cuda_pool(struct backend *b, const struct activation *x);
enum status cuda_activation_put(struct backend *b, struct activation *a, const float *values, uint32_t rows);
enum status cuda_activation_get(struct backend *b, const struct activation *a, float *ret, uint32_t rows);

/* kv.cu */
uint64_t    cuda_kv_bytes(const struct backend *b, const struct kv_group_desc *group);
enum status cuda_kv_alloc(struct backend *b, uint32_t group, const struct kv_group_desc *desc, struct error *error);
enum status cuda_kv_copy(struct backend *b, uint32_t group, const int32_t *from, const int32_t *to, uint32_t count);
enum status cuda_head_norm(struct backend *b, struct activation *qkv, uint32_t q_heads, uint32_t kv_heads,
    const struct backend_weight *q_weight, const struct backend_weight *k_weight, float eps);
enum status cuda_rope_kv_write(struct backend *b, struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, const struct rope_desc *rope);
/* The postponed norms of heads, when nothing rotates. */
enum status kv_settle_heads(struct cuda_backend *cuda, struct cuda_rows *qkv);

/* attention.cu */
enum status attention_prepare(struct cuda_backend *cuda);
/* Whether decode attention of this group is that of attention_hopper.cuh: never changes, since bits do. */
bool        attention_is_own(const struct cuda_backend *cuda, const struct kv_group_desc *desc);
enum status cuda_attention(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, float scale, struct activation *y);
enum status cuda_attention_full(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, float scale, struct activation *y);

/* sampler.cu */
enum status sample_prepare(struct cuda_backend *cuda); /* once, at start */
enum status cuda_sample_slot(struct backend *b, uint32_t slot, const struct sample_slot *from);
enum status cuda_read_logprobs(struct backend *b, uint32_t index, struct sample_logprobs *ret);
enum status cuda_sample(struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit);

#endif
