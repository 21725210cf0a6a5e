/* fmt_byte.cu: owns weights of one byte on the device: the layout of their memory, the launches of products with them, and the
 * rounding of activations that goes before.  Does not own the kernels (fmt_byte.cuh) nor the way of stored bytes to the device
 * (load.cu).  Invariant: values are those of the file, never decoded: a byte a weight, and its scales.
 *
 * The layout is taken where own kernels are wanted (option batcher.kernels) and suit: e4m3 or int8, scales of whole rows or of
 * 128 inputs.  What the checkpoint wants done to activations decides the kind: rounded ones meet the weights as bytes, others
 * as they are.  Everything else stays with the layout of rows.
 *
 * Where the kernels have run: on an H200, and on the host under the emulator of tests/gpu/emulate. */
#include "gpu/fmt_byte_large.cuh"
#include "gpu/fmt_byte_load.cuh"
#include "gpu/launch.cuh"
#include "gpu/linear_own.h"
#include "gpu/types.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN_THREADS = 256 };

/* ---- The layout ---- */

static bool layout_of(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count, struct byte_layout *ret)
{
	return cuda->kernels == KERNELS_OWN && cuda->major == 9 && byte_layout_of(parts, count, cuda->dtype == DTYPE_BF16, ret);
}

static int byte_takes(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count)
{
	struct byte_layout layout;

	return layout_of(cuda, parts, count, &layout);
}

static uint64_t scales_at(const struct byte_layout *layout)
{
	return (layout->value_bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
}

static uint64_t byte_bytes(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count)
{
	struct byte_layout layout = {};

	layout_of(cuda, parts, count, &layout);
	return scales_at(&layout) + layout.scale_count * sizeof(float);
}

static enum status byte_set(struct cuda_backend *cuda, struct backend_weight *w, const struct weight_desc *parts, uint32_t count)
{
	struct byte_layout layout = {};

	layout_of(cuda, parts, count, &layout);
	w->stride = layout.stride;
	w->byte.kind = layout.kind;
	w->byte.granule = layout.granule;
	w->byte.scale_stride = layout.scale_stride;
	w->byte.scale_count = layout.scale_count;
	w->byte.values = (uint8_t *)w->block.data;
	w->byte.scales = (float *)(w->byte.values + scales_at(&layout));
	return STATUS_OK;
}

static cudaError_t byte_place(struct cuda_backend *cuda, struct backend_weight *w, const struct stored_piece *piece)
{
	const struct byte_matrix *m = &w->byte;
	uint64_t scales = m->granule ? (uint64_t)(piece->rows + m->granule - 1) / m->granule * m->scale_stride : piece->rows;
	uint64_t packs = (uint64_t)piece->rows * (w->stride / BYTE_LOAD_PACK);

	byte_scales_kernel<<<(unsigned)((scales + BYTE_LOAD_THREADS - 1) / BYTE_LOAD_THREADS), BYTE_LOAD_THREADS, 0,
	    cuda->stream>>>(*piece,
	    m->scales, m->granule, m->scale_stride);
	byte_place_kernel<<<(unsigned)((packs + BYTE_LOAD_THREADS - 1) / BYTE_LOAD_THREADS), BYTE_LOAD_THREADS, 0,
	    cuda->stream>>>(*piece,
	    m->values, w->stride, m->scales, m->granule, m->scale_stride, byte_wide((enum byte_kind)m->kind));
	return cudaPeekAtLastError();
}

/* Random bytes that are numbers, and scales for outputs as large as inputs: the root of the mean of squares of random e4m3
 * patterns is 99.7, of int8 73.9. */
static __global__ void byte_random_kernel(uint8_t *values, uint64_t count, int is_f8, uint64_t seed)
{
	for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x) {
		uint64_t z = (i + seed) * 0x9E3779B97F4A7C15ull;

		z = (z ^ z >> 32) * 0xD6E8FEB86659FD93ull;
		values[i] = (uint8_t)(z >> 40);
		if (is_f8 && (values[i] & 0x7f) == 0x7f)
			values[i] = 0;
	}
}

static __global__ void byte_fill_kernel(float *scales, uint64_t count, float value)
{
	for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
		scales[i] = value;
}

static enum status byte_random(struct cuda_backend *cuda, struct backend_weight *w)
{
	const struct byte_matrix *m = &w->byte;
	int                       is_f8 = m->kind == BYTE_F8 || m->kind == BYTE_F8_WIDE;

	byte_random_kernel<<<2048, PLAIN_THREADS, 0, cuda->stream>>>(m->values, (uint64_t)w->rows * w->stride, is_f8,
	    (uint64_t)(uintptr_t)m->values);
	byte_fill_kernel<<<256, PLAIN_THREADS, 0, cuda->stream>>>(m->scales, m->scale_count,
	    (is_f8 ? 1 / 99.7f : 1 / 73.9f) / sqrtf((float)w->columns));
	return cuda_launched(cuda, "random values");
}

const struct weight_layout layout_bytes = { "bytes", BYTE_PIECE_ROWS, 1, byte_takes, byte_bytes, byte_set, byte_place, NULL,
	byte_random };

/* ---- Products ---- */

typedef void byte_function(const tensor_map, const tensor_map, const tensor_map, const struct byte_product);

/* NULL: no such size is built. */
template <enum byte_kind KIND> static byte_function *kernel_of(const struct byte_product *p)
{
#define BYTE_CASE(token_count, tile_count)                                  \
	if (p->token_tile == token_count && p->tiles == tile_count)         \
		return byte_kernel<KIND, token_count, tile_count>;
	BYTE_CASE(8, 1)
	BYTE_CASE(16, 1)
	BYTE_CASE(32, 1)
	BYTE_CASE(64, 1)
	BYTE_CASE(8, BYTE_TALL_TILES)
	BYTE_CASE(16, BYTE_TALL_TILES)
	BYTE_CASE(32, BYTE_TALL_TILES)
	BYTE_CASE(64, BYTE_TALL_TILES)
	BYTE_CASE(BYTE_TOKENS_MAX, 1)
	BYTE_CASE(BYTE_TOKENS_MAX, BYTE_LARGE_TILES)
	return NULL;
}

static byte_function *find_kernel(enum byte_kind kind, const struct byte_product *p)
{
	switch (kind) {
	case BYTE_F8: return kernel_of<BYTE_F8>(p);
	case BYTE_I8: return kernel_of<BYTE_I8>(p);
	case BYTE_F8_WIDE: return kernel_of<BYTE_F8_WIDE>(p);
	case BYTE_I8_WIDE: return kernel_of<BYTE_I8_WIDE>(p);
	}
	return NULL;
}

/* ROWS rows of activations rounded as INPUT says: where they go. */
static struct byte_rounding rounding_of(const struct cuda_backend *cuda, enum weight_input input, uint32_t rows, uint32_t width)
{
	struct byte_rounding r = {};

	r.q = (uint8_t *)cuda->scratch.rounded;
	r.scales = (float *)(r.q + byte_rounded_scales(rows, width));
	r.rows = rows;
	r.width = width;
	r.q_stride = byte_round_up(width, BYTE_ALIGN);
	r.scale_stride = input == WEIGHT_INPUT_F8_GROUP ? (rows + 3) / 4 * 4 : 0;
	return r;
}

struct byte_target byte_target_of(struct cuda_backend *cuda, const struct cuda_rows *rows)
{
	struct byte_rounding r = rounding_of(cuda, rows->wants, cuda->step.rows, rows->width);
	struct byte_target   target = { r.q, r.scales, r.q_stride, r.scale_stride, rows->wants == WEIGHT_INPUT_I8_TOKEN };

	if (rows->wants == WEIGHT_INPUT_FLOAT || rows->width > cuda->scratch.limits.width || r.rows > cuda->scratch.limits.rows)
		target = {};
	return target;
}

void byte_rounded_by(struct cuda_backend *cuda, struct cuda_rows *rows, const struct byte_target *target)
{
	if (target->q) {
		rows->rounded = rows->wants;
		cuda->rounded = rows;
	}
}

/* Rounds ROWS rows of X, which are those of OF if it is not NULL, for W: bytes in the step's scratch, and scales behind them. */
static enum status round_rows(struct cuda_backend *cuda, const struct backend_weight *w, struct cuda_rows *of, const void *x,
    uint32_t x_stride, uint32_t rows, struct byte_rounding *ret)
{
	struct byte_rounding r = rounding_of(cuda, w->input, rows, w->columns);
	dim3                 grid(rows, byte_round_blocks(&r));
	/* Of those with a scale every weight has its own. */
	enum weight_input    wanted = w->input_scale > 0 ? WEIGHT_INPUT_FLOAT : w->input;
	enum status          status = STATUS_INTERNAL;

	r.x = x;
	r.x_stride = x_stride;
	r.fixed = w->input_scale;
	*ret = r;
	if (of && of == cuda->rounded && of->rounded != WEIGHT_INPUT_FLOAT && of->rounded == wanted)
		return STATUS_OK;
	r.mark = cuda->marks_device ? &cuda->marks_device->begun : NULL;
	r.mark_value = fault_mark(FAULT_ROUND, ++cuda->step.launches);
	if (w->byte.kind == BYTE_I8)
		FOR_DTYPE(cuda, T, status = launch(cuda, "rounding of inputs", cuda->step.dependent, byte_round_kernel<T, true>, grid,
		    byte_round_threads(&r), 0, r));
	else
		FOR_DTYPE(cuda, T, status = launch(cuda, "rounding of inputs", cuda->step.dependent, byte_round_kernel<T, false>, grid,
		    byte_round_threads(&r), 0, r));
	cuda->rounded = of;
	if (of)
		of->rounded = of->wants = wanted;
	return status;
}

/* ---- The library's products ---- */

enum { LIBRARY_LEAST = 65 }; /* rows that it may serve */

void byte_library_end(struct byte_library *library)
{
	if (library->operation)
		cublasLtMatmulDescDestroy(library->operation);
	if (library->a)
		cublasLtMatrixLayoutDestroy(library->a);
	if (library->b)
		cublasLtMatrixLayoutDestroy(library->b);
	if (library->d)
		cublasLtMatrixLayoutDestroy(library->d);
	*library = {};
}

template <class T> static bool set_attribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value)
{
	return cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
}

/* How cuBLASLt would scale; false: it cannot.  int8: not at all, its sums are int32. */
static bool set_scales(const struct backend_weight *w, const struct byte_library *library)
{
	bool blocks = w->byte.granule == BYTE_GROUP && w->input == WEIGHT_INPUT_F8_GROUP;
	bool rows = w->byte.granule == 0 && w->input == WEIGHT_INPUT_F8_TOKEN;

	if (w->byte.kind == BYTE_I8)
		return true;
	if (w->byte.kind != BYTE_F8 || (!blocks && !rows))
		return false;
	return set_attribute(library->operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
	        blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F) &&
	    set_attribute(library->operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
	        blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F) &&
	    set_attribute(library->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, (const void *)w->byte.scales) &&
	    set_attribute(library->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, (const void *)library->rounded.scales) &&
	    set_attribute(library->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, (int8_t)0); /* it would lose a digit */
}

/* The library's first choice for the product of LIBRARY, of A to D. */
static bool first_choice(struct cuda_backend *cuda, const struct byte_library *library, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t d, cublasLtMatmulAlgo_t *ret)
{
	size_t   bytes = linear_workspace_bytes();
	uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
	int      found = 0;
	cublasLtMatmulPreference_t      preference;
	cublasLtMatmulHeuristicResult_t result;

	if (cublasLtMatmulPreferenceCreate(&preference))
		return false;
	cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
	cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
	if (cublasLtMatmulAlgoGetHeuristic(cuda->blas, library->operation, a, library->b, d, d, preference, 1, &result, &found))
		found = 0;
	cublasLtMatmulPreferenceDestroy(preference);
	if (found != 1 || result.state != CUBLAS_STATUS_SUCCESS)
		return false;
	*ret = result.algo;
	return true;
}

/* What it would take for more outputs: where blocks would be few it knows nothing that does not split sums. */
static bool donated_choice(struct cuda_backend *cuda, const struct byte_library *library, const struct backend_weight *w,
    cudaDataType_t type, cudaDataType_t output, uint32_t rows, cublasLtMatmulAlgo_t *ret)
{
	bool found = false;

	for (uint32_t more = 2; more <= 16 && !found; more *= 2) {
		cublasLtMatrixLayout_t a = NULL, d = NULL;
		uint64_t               n = (uint64_t)w->rows * more;

		found = !cublasLtMatrixLayoutCreate(&a, type, w->stride, n, w->stride) &&
		    !cublasLtMatrixLayoutCreate(&d, output, n, rows, (int64_t)n) && first_choice(cuda, library, a, d, ret);
		if (a)
			cublasLtMatrixLayoutDestroy(a);
		if (d)
			cublasLtMatrixLayoutDestroy(d);
	}
	return found;
}

bool byte_library_begin(struct cuda_backend *cuda, const struct backend_weight *w, struct cuda_rows *of, const void *x,
    uint32_t x_stride, uint32_t rows, uint32_t y_stride, int to_float, const cublasLtMatmulAlgo_t *algo, struct byte_library *ret)
{
	bool              i8 = w->byte.kind == BYTE_I8;
	cudaDataType_t    type = i8 ? CUDA_R_8I : CUDA_R_8F_E4M3, output = i8 ? CUDA_R_32I : to_float || cuda->dtype == DTYPE_F32 ?
	    CUDA_R_32F :
	    cuda->dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
	uint32_t             padded = (rows + 3) / 4 * 4; /* it knows no blocks for fewer */
	struct byte_rounding rounded;

	*ret = {};
	if (byte_wide((enum byte_kind)w->byte.kind) || round_rows(cuda, w, of, x, x_stride, rows, &rounded))
		return false;
	ret->rounded.q = rounded.q;
	ret->rounded.scales = rounded.scales;
	if (cublasLtMatmulDescCreate(&ret->operation, i8 ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F, i8 ? CUDA_R_32I : CUDA_R_32F) ||
	    !set_attribute(ret->operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T) || !set_scales(w, ret) ||
	    cublasLtMatrixLayoutCreate(&ret->a, type, w->stride, w->rows, w->stride) ||
	    cublasLtMatrixLayoutCreate(&ret->b, type, w->stride, padded, w->stride) ||
	    cublasLtMatrixLayoutCreate(&ret->d, output, w->rows, padded, y_stride)) {
		byte_library_end(ret);
		return false;
	}
	if (algo) {
		ret->algo = *algo;
	} else if (!first_choice(cuda, ret, ret->a, ret->d, &ret->algo) &&
	    !(rows >= LIBRARY_LEAST && donated_choice(cuda, ret, w, type, output, padded, &ret->algo))) {
		byte_library_end(ret);
		return false;
	}
	return true;
}

bool byte_library_run(struct cuda_backend *cuda, const struct byte_library *library, const struct backend_weight *w, void *y)
{
	const float   one = 1, zero = 0;
	const int32_t one_i8 = 1, zero_i8 = 0;
	bool          i8 = w->byte.kind == BYTE_I8;

	return set_scales(w, library) && cublasLtMatmul(cuda->blas, library->operation, i8 ? (const void *)&one_i8 : &one,
	    w->byte.values,
	    library->a, library->rounded.q, library->b, i8 ? (const void *)&zero_i8 : &zero, y, library->d, y, library->d,
	    &library->algo,
	    cuda->scratch.workspace, linear_workspace_bytes(), cuda->stream) == CUBLAS_STATUS_SUCCESS;
}

uint64_t byte_scratch_bytes(const struct cuda_backend *cuda, uint64_t rows, uint32_t width)
{
	return cuda->kernels == KERNELS_OWN ? byte_rounded_bytes(rows, width) : 0;
}

/* Of inputs X, or of those that were ROUNDED if the kind wants that. */
static enum status run_rounded(struct cuda_backend *cuda, const struct backend_weight *w, const struct byte_rounding &rounded,
    const void *x, uint32_t x_stride, uint32_t rows, void *y, uint32_t y_stride, int to_float)
{
	enum byte_kind       kind = (enum byte_kind)w->byte.kind;
	struct byte_product  p = {};
	byte_function       *kernel;
	struct tensor_layout layouts[3];
	tensor_map           maps[3];

	p.w_scales = w->byte.scales;
	p.x_scales = rounded.scales;
	p.x_scale_stride = rounded.scale_stride;
	p.y = y;
	p.output = to_float || cuda->dtype == DTYPE_F32 ? BYTE_OUT_F32 : cuda->dtype == DTYPE_BF16 ? BYTE_OUT_BF16 : BYTE_OUT_F16;
	p.n = w->rows;
	p.k = w->columns;
	p.rows = rows;
	p.y_stride = y_stride;
	p.granule = w->byte.granule;
	p.mark = cuda->marks_device ? &cuda->marks_device->begun : NULL;
	p.mark_value = fault_mark(FAULT_LINEAR, ++cuda->step.launches);
	if (!byte_cut(kind, (uint32_t)cuda->multiprocessors, &p) || !(kernel = find_kernel(kind, &p)))
		return STATUS_INTERNAL; /* byte_layout_of has asked */
	if (kind == BYTE_I8 && rows >= LARGE_ROWS_LEAST && large_takes(p.output, y, y_stride))
		return byte_large(cuda, w, &p, rounded.q, rounded.q_stride);
	if (p.token_tile <= BYTE_HEADS_TOKENS && p.output != BYTE_OUT_F32 && heads_wanted(cuda, y, w->rows)) {
		p.heads = *cuda->step.heads;
		cuda->step.heads = NULL;
	}
	layouts[0] = byte_weight_map(&p, w->byte.values, w->stride);
	layouts[1] = byte_input_map(kind, &p, byte_wide(kind) ? x : rounded.q, byte_wide(kind) ? x_stride * 2 : rounded.q_stride);
	layouts[2] = p.x_scale_stride ? byte_scale_map(&p) : layouts[1]; /* one that is not read */
	for (int i = 0; i < 3; i++)
		if (tensor_map_encode(&layouts[i], &maps[i]))
			return cuda_check(cuda, cudaErrorInvalidValue, "the tensor map of a linear layer");
	if (allow_shared(cuda, kernel, BYTE_SHARED_MAX, "shared memory of a linear layer"))
		return cuda->fault;
	return launch(cuda, "linear", cuda->step.dependent, kernel, byte_blocks(&p, (uint32_t)cuda->multiprocessors),
	    (p.warpgroups + 1) * 128, p.shared_bytes, maps[0], maps[1], maps[2], p);
}

static enum status run_own(struct cuda_backend *cuda, const struct backend_weight *w, struct cuda_rows *of, const void *x,
    uint32_t x_stride, uint32_t rows, void *y, uint32_t y_stride, int to_float)
{
	struct byte_rounding rounded = {};

	if (!byte_wide((enum byte_kind)w->byte.kind) && round_rows(cuda, w, of, x, x_stride, rows, &rounded))
		return cuda->fault;
	return run_rounded(cuda, w, rounded, x, x_stride, rows, y, y_stride, to_float);
}

/* Whether the library serves products of LIBRARY_LEAST rows and more: it is asked once for each shape and bucket of rows, in a
 * rehearsal, and serves where row 0 has the bits of our own kernel which takes longer. */
enum { PLANS_MAX = 256 };

struct byte_plan {
	uint32_t n, k, granule, bucket;
	int      to_float;
	enum weight_input    input;
	bool                 agrees, serves;
	float                us, own_us; /* of the library and of our own kernel, if it agrees; rounding is in neither */
	cublasLtMatmulAlgo_t algo;
};

struct byte_plans {
	struct byte_plan plans[PLANS_MAX];
	uint32_t         count;
};

void byte_destroy(struct cuda_backend *cuda)
{
	free(cuda->byte_plans);
	cuda->byte_plans = NULL;
}

static uint32_t bucket_of(uint32_t rows)
{
	uint32_t bucket = 1;

	while (bucket < rows)
		bucket *= 2;
	return bucket;
}

static const struct byte_plan *find_plan(const struct cuda_backend *cuda, const struct backend_weight *w, uint32_t rows,
    int to_float)
{
	for (uint32_t i = 0; cuda->byte_plans && i < cuda->byte_plans->count; i++) {
		const struct byte_plan *plan = &cuda->byte_plans->plans[i];

		if (plan->n == w->rows && plan->k == w->columns && plan->granule == w->byte.granule && plan->input == w->input &&
		    plan->to_float == to_float && plan->bucket == bucket_of(rows))
			return plan;
	}
	return NULL;
}

uint32_t byte_notes(const struct cuda_backend *cuda) { return cuda->byte_plans ? cuda->byte_plans->count : 0; }

bool byte_note(const struct cuda_backend *cuda, uint32_t index, char *ret, size_t size)
{
	const struct byte_plan *plan;

	if (index >= byte_notes(cuda))
		return false;
	plan = &cuda->byte_plans->plans[index];
	snprintf(ret, size, "linear %u x %u of bytes%s, up to %u rows: %s; cuBLASLt %.1f us%s, own %.1f us", plan->n, plan->k,
	    plan->to_float ? " to float32" : "", plan->bucket, plan->serves ? "cuBLASLt" : "own kernel",
	    (double)plan->us, plan->agrees ? "" : ", which there is not or has other bits", (double)plan->own_us);
	return true;
}

/* Both multiply random rows, since in a rehearsal X holds nothing of worth, and row 0 is compared. */
static enum status ask_library(struct cuda_backend *cuda, const struct backend_weight *w, const void *x, uint32_t x_stride,
    uint32_t rows, void *y, uint32_t y_stride, int to_float)
{
	const struct backend_weight *weights[LINEAR_ROTATE_MAX];
	size_t               bytes = w->rows * (to_float ? sizeof(float) : element_bytes(cuda));
	char                *row = (char *)malloc(2 * bytes);
	uint32_t             count = linear_same_shape(cuda, w, weights), launches = linear_launches(rows);
	struct byte_plan     plan = { w->rows, w->columns, w->byte.granule, bucket_of(rows), to_float, w->input };
	struct byte_library  library = {};
	struct byte_rounding rounded = {};

	if (!cuda->byte_plans)
		cuda->byte_plans = (struct byte_plans *)calloc(1, sizeof *cuda->byte_plans);
	if (!row || !cuda->byte_plans || cuda->byte_plans->count == PLANS_MAX) {
		free(row);
		return STATUS_OK; /* ours serves */
	}
	rows_random(cuda, (void *)x, (uint64_t)rows * x_stride, 1, 42);
	if (!round_rows(cuda, w, NULL, x, x_stride, rows, &rounded) &&
	    !run_rounded(cuda, w, rounded, x, x_stride, rows, y, y_stride, to_float) &&
	    !cuda_check(cuda, cudaMemcpyAsync(row, y, bytes, cudaMemcpyDeviceToHost, cuda->stream), "comparing bits") &&
	    byte_library_begin(cuda, w, NULL, x, x_stride, rows, y_stride, to_float, NULL, &library)) {
		plan.algo = library.algo;
		plan.agrees = byte_library_run(cuda, &library, w, y) &&
		    !cuda_check(cuda, cudaMemcpyAsync(row + bytes, y, bytes, cudaMemcpyDeviceToHost, cuda->stream), "comparing bits") &&
		    !cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "comparing bits") && memcmp(row, row + bytes, bytes) == 0;
		if (plan.agrees) {
			plan.us = time_launches(cuda, launches, [&](uint32_t i) {
				return byte_library_run(cuda, &library, weights[i % count], y);
			});
			plan.own_us = time_launches(cuda, launches, [&](uint32_t i) {
				return run_rounded(cuda, weights[i % count], rounded, x, x_stride, rows, y, y_stride, to_float) == STATUS_OK;
			});
			plan.serves = plan.us > 0 && plan.us < plan.own_us;
		}
		byte_library_end(&library);
	}
	cudaStreamSynchronize(cuda->stream);
	free(row);
	cuda->byte_plans->plans[cuda->byte_plans->count++] = plan;
	return cuda->fault;
}

enum status byte_run(struct cuda_backend *cuda, const struct backend_weight *w, struct cuda_rows *of, const void *x,
    uint32_t x_stride, uint32_t rows, void *y, uint32_t y_stride, uint32_t y_rows, int to_float)
{
	const struct backend_limits *limits = &cuda->scratch.limits;
	const struct byte_plan      *plan = find_plan(cuda, w, rows, to_float);
	/* The library wants rows by fours. */
	bool                         may = w->byte.kind == BYTE_F8 && rows >= LIBRARY_LEAST && (rows + 3) / 4 * 4 <= y_rows;
	struct byte_library          library;
	enum status                  status;

	if (rows == 0)
		return STATUS_OK;
	if (!byte_wide((enum byte_kind)w->byte.kind) &&
	    (w->columns > limits->width || (rows > limits->rows && rows > limits->logit_rows)))
		return STATUS_INVALID;
	if (may && plan && plan->serves &&
	    byte_library_begin(cuda, w, of, x, x_stride, rows, y_stride, to_float, &plan->algo, &library)) {
		bool done = byte_library_run(cuda, &library, w, y);

		byte_library_end(&library);
		if (done)
			return cuda_launched(cuda, "linear");
	}
	status = run_own(cuda, w, of, x, x_stride, rows, y, y_stride, to_float);
	if (!status && may && !plan && cuda->rehearsing && !cuda->step.recording)
		status = ask_library(cuda, w, x, x_stride, rows, y, y_stride, to_float);
	return status;
}

/* ---- Rows of an embedding ---- */

template <class Y> static __global__ void __launch_bounds__(PLAIN_THREADS) byte_rows_kernel(struct byte_matrix m, uint32_t stride,
    uint32_t w_rows, const int32_t *index, uint32_t offset, int add, Y *to, uint32_t to_stride, uint32_t width)
{
	int64_t        row = (int64_t)offset + (index ? index[blockIdx.x] : 0);
	bool           known = row >= 0 && row < w_rows; /* a row of padding is not */
	const uint8_t *values = m.values + (known ? row : 0) * stride;

	to += (size_t)blockIdx.x * to_stride;
	for (uint32_t k = threadIdx.x; k < width; k += PLAIN_THREADS) {
		float scale = m.scales[m.granule ? (known ? row : 0) / m.granule * m.scale_stride + k / BYTE_GROUP : known ? row : 0];
		float value = known ? byte_value_at((enum byte_kind)m.kind, values, k) * scale : 0;

		to[k] = from_float<Y>(add ? to_float(to[k]) + value : value);
	}
}

enum status byte_embed(struct cuda_backend *cuda, const struct backend_weight *w, const int32_t *index, uint32_t offset, int add,
    struct cuda_rows *to)
{
	uint32_t rows = cuda->step.rows;

	cuda->step.launches++;
	if (to->wide)
		byte_rows_kernel<float><<<rows, PLAIN_THREADS, 0, cuda->stream>>>(w->byte, w->stride, w->rows, index, offset, add, to->wide,
		    cuda->scratch.stream_stride, to->width);
	else
		FOR_DTYPE(cuda, T, byte_rows_kernel<T><<<rows, PLAIN_THREADS, 0, cuda->stream>>>(w->byte, w->stride, w->rows, index,
		    offset, add,
		    (T *)to->data, to->stride, to->width));
	return cuda_launched(cuda, "rows of a weight of bytes");
}
