/* linear.cu: owns products with weights: the choice among cuBLASLt's algorithms and a plain kernel for what it refuses.
 * Does not own weights.  Invariant: a row's bits do not depend on how many rows are multiplied with it.
 *
 * That holds because every product is one accumulator over ascending k: algorithms that split K are not accepted (reduction
 * scheme NONE, SPLITK 1), and on Hopper only those of one family, whose tiles of all sizes were seen to give equal bits.
 * It is checked too: when a shape is first met at start, in a rehearsal, the row 0 of every candidate is compared with
 * that of the first size met; who differs is out.
 *
 * Choice.  For each shape and bucket of rows, once, by timing candidates in a graph over several weights of the shape.
 * For few rows cuBLASLt's own list holds nobody acceptable, or slow ones (at 4096 × 13696 twice the time of the best), so
 * algorithms that it names for a square product of DONOR, and for other numbers of rows, are tried too if they accept the
 * shape.
 *
 * Own kernels (option batcher.kernels).  own: up to 64 rows go to linear_skinny, if it takes the shape and its row 0 has the
 * reference's bits, by the fastest of its variants, timed as dependent launches; the library's time stands beside its own in
 * the notes, and with auto the library is taken where it is faster.  Gate and up with silu are one kernel, linear_skinny or for
 * more rows linear_wide, where that has the bits of two, and with auto where it is faster than they are.  portable: all products
 * of 16-bit types go to linear_portable, which agrees with itself; no bits are compared with cuBLASLt's.
 */
#include "gpu/linear_own.h"
#include "gpu/linear_skinny.cuh"
#include "gpu/types.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_BYTES = 32 << 20, PLANS_MAX = 1024, ASK = 16, CANDIDATES_MAX = 16, OWN_MAX = 6, DONOR_MAX = 3,
    HOPPER_FAMILY = 66, DONOR = 6144,
	REPLAYS = 3, TIMED_BYTES = 4 << 20, TILE = 16, REFERENCES_MAX = 64 };
static const float SAVED_US = 1; /* of a kernel that another one does in passing, at least */

enum way { WAY_PLAIN, WAY_LIBRARY, WAY_SKINNY };

struct plan {
	uint32_t n, k, k_stride, bucket;
	int      to_float, decoded; /* DECODED: of slices of slabs */
	enum way way;
	cublasLtMatmulAlgo_t algo; /* cuBLASLt's, the best of those tried: kept beside WAY_SKINNY too */
	float    us;               /* its time; 0 = there is none */
	float    own_us;           /* of linear_skinny, not 0 if it was tried */
	struct skinny_variant variant; /* the fastest */
	int      own_differs;      /* its bits are not the reference's */
	int      gated_tried, gated; /* with silu in the epilogue; gated: its bits are those of two kernels, and it is no slower */
	float    gated_us;
	struct skinny_variant gated_variant;
	int      wide_tried, wide; /* the same of linear_wide, of more rows */
	float    two_us, wide_us;  /* of the two kernels, and of the one */
};

/* Row 0 of a shape's product with the random row 0, from the first size that was met. */
struct reference {
	uint32_t n, k;
	int      to_float, decoded;
	char    *bits;
};

struct linear_plan {
	char             note[800];
	struct plan      plans[PLANS_MAX];
	uint32_t         count, reference_count;
	struct reference references[REFERENCES_MAX];
	cudaEvent_t      begin, end;
};

size_t linear_workspace_bytes(void) { return WORKSPACE_BYTES; }

enum status linear_create(struct cuda_backend *cuda, struct error *error)
{
	cuda->linear = (struct linear_plan *)calloc(1, sizeof *cuda->linear);
	if (!cuda->linear)
		return error_set(error, STATUS_NOMEM, "out of memory for plans of linear layers");
	if (cuda_check(cuda, cudaEventCreate(&cuda->linear->begin), "cudaEventCreate") ||
	    cuda_check(cuda, cudaEventCreate(&cuda->linear->end), "cudaEventCreate"))
		*error = cuda->fault_error;
	return cuda->fault;
}

void linear_destroy(struct cuda_backend *cuda)
{
	if (!cuda->linear)
		return;
	for (uint32_t i = 0; i < cuda->linear->reference_count; i++)
		free(cuda->linear->references[i].bits);
	if (cuda->linear->begin)
		cudaEventDestroy(cuda->linear->begin);
	if (cuda->linear->end)
		cudaEventDestroy(cuda->linear->end);
	free(cuda->linear);
	cuda->linear = NULL;
}

/* ---- The plain kernel ---- */

template <class T, class Y> static __global__ void __launch_bounds__(TILE * TILE) plain_kernel(const T *w, uint32_t w_stride,
    const T *x,
    uint32_t x_stride, Y *y, uint32_t y_stride, uint32_t rows, uint32_t n, uint32_t k)
{
	__shared__ float ws[TILE][TILE + 1], xs[TILE][TILE + 1];
	uint32_t tx = threadIdx.x % TILE, ty = threadIdx.x / TILE, first_n = blockIdx.x * TILE, first_row = blockIdx.y * TILE;
	float    sum = 0;

	for (uint32_t at = 0; at < k; at += TILE) {
		ws[ty][tx] = first_n + ty < n && at + tx < k ? to_float(w[(size_t)(first_n + ty) * w_stride + at + tx]) : 0;
		xs[ty][tx] = first_row + ty < rows && at + tx < k ? to_float(x[(size_t)(first_row + ty) * x_stride + at + tx]) : 0;
		__syncthreads();
#pragma unroll
		for (int i = 0; i < TILE; i++)
			sum += ws[tx][i] * xs[ty][i];
		__syncthreads();
	}
	if (first_row + ty < rows && first_n + tx < n)
		y[(size_t)(first_row + ty) * y_stride + first_n + tx] = from_float<Y>(sum);
}

static enum status run_plain(struct cuda_backend *cuda, const struct backend_weight *w, const void *x, uint32_t x_stride,
    uint32_t rows, void *y, uint32_t y_stride, int to_float)
{
	dim3 grid((w->rows + TILE - 1) / TILE, (rows + TILE - 1) / TILE);

	FOR_DTYPE(cuda, T, if (to_float)
		plain_kernel<T, float><<<grid, TILE * TILE, 0, cuda->stream>>>((const T *)w->data, w->stride, (const T *)x, x_stride,
		    (float *)y, y_stride, rows, w->rows, w->columns);
	else
		plain_kernel<T, T><<<grid, TILE * TILE, 0, cuda->stream>>>((const T *)w->data, w->stride, (const T *)x, x_stride, (T *)y,
		    y_stride, rows, w->rows, w->columns));
	return cuda_launched(cuda, "linear");
}

/* ---- cuBLASLt ---- */

/* One product as cuBLASLt sees it: column-major D [n, rows] = A [k, n]ᵀ · B [k, rows]. */
struct product {
	cublasLtMatmulDesc_t   operation;
	cublasLtMatrixLayout_t a, b, d;
};

static void product_free(struct product *p)
{
	if (p->operation)
		cublasLtMatmulDescDestroy(p->operation);
	if (p->a)
		cublasLtMatrixLayoutDestroy(p->a);
	if (p->b)
		cublasLtMatrixLayoutDestroy(p->b);
	if (p->d)
		cublasLtMatrixLayoutDestroy(p->d);
}

static bool product_make(const struct cuda_backend *cuda, uint32_t n, uint32_t k, uint32_t w_stride, uint32_t x_stride,
    uint32_t rows,
    uint32_t y_stride, int to_float, struct product *ret)
{
	cudaDataType_t    type = cuda->dtype == DTYPE_F32 ? CUDA_R_32F : cuda->dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
	cublasOperation_t transposed = CUBLAS_OP_T;

	*ret = {};
	if (cublasLtMatmulDescCreate(&ret->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
	    cublasLtMatmulDescSetAttribute(ret->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) ||
	    cublasLtMatrixLayoutCreate(&ret->a, type, k, n, w_stride) || cublasLtMatrixLayoutCreate(&ret->b, type, k, rows, x_stride) ||
	    cublasLtMatrixLayoutCreate(&ret->d, to_float ? CUDA_R_32F : type, n, rows, y_stride)) {
		product_free(ret);
		return false;
	}
	return true;
}

static cublasStatus_t product_run(struct cuda_backend *cuda, const struct product *p, const cublasLtMatmulAlgo_t *algo,
    const void *w,
    const void *x, void *y)
{
	static const float one = 1, zero = 0;

	return cublasLtMatmul(cuda->blas, p->operation, &one, w, p->a, x, p->b, &zero, y, p->d, y, p->d, algo, cuda->scratch.workspace,
	    WORKSPACE_BYTES, cuda->stream);
}

/* One accumulator over the whole K, and on Hopper the family whose tiles agree. */
static bool acceptable(const struct cuda_backend *cuda, const cublasLtMatmulAlgo_t *algo)
{
	int32_t  split = 0, id = 0;
	uint32_t scheme = 0;
	size_t   written;

	if (cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &written) ||
	    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written) ||
	    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &written))
		return false;
	if (split > 1 || scheme != CUBLASLT_REDUCTION_SCHEME_NONE)
		return false;
	return cuda->major != 9 || cuda->dtype == DTYPE_F32 || id == HOPPER_FAMILY;
}

/* Algorithms to choose among. */
struct candidates {
	cublasLtMatmulAlgo_t algos[CANDIDATES_MAX];
	uint32_t             count;
};

/* Adds up to MOST acceptable algorithms that cuBLASLt names for ASKED and that P accepts. */
static void ask(struct cuda_backend *cuda, const struct product *asked, const struct product *p, uint32_t most,
    struct candidates *list)
{
	cublasLtMatmulHeuristicResult_t results[ASK], checked;
	cublasLtMatmulPreference_t      preference;
	size_t   bytes = WORKSPACE_BYTES;
	uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE, added = 0;
	int      found = 0;

	if (cublasLtMatmulPreferenceCreate(&preference))
		return;
	cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
	cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
	if (cublasLtMatmulAlgoGetHeuristic(cuda->blas, asked->operation, asked->a, asked->b, asked->d, asked->d, preference, ASK,
	    results,
	        &found))
		found = 0;
	cublasLtMatmulPreferenceDestroy(preference);
	for (int i = 0; i < found && added < most && list->count < CANDIDATES_MAX; i++) {
		const cublasLtMatmulAlgo_t *algo = &results[i].algo;
		bool                        known = false;

		if (results[i].state != CUBLAS_STATUS_SUCCESS || !acceptable(cuda, algo))
			continue;
		if (asked != p && (cublasLtMatmulAlgoCheck(cuda->blas, p->operation, p->a, p->b, p->d, p->d, algo, &checked) ||
		    checked.state != CUBLAS_STATUS_SUCCESS || checked.workspaceSize > WORKSPACE_BYTES))
			continue;
		for (uint32_t k = 0; k < list->count; k++)
			known = known || memcmp(&list->algos[k], algo, sizeof *algo) == 0;
		if (known)
			continue;
		list->algos[list->count++] = *algo;
		added++;
	}
}

/* The same for another product, [rows, n] of k inputs. */
static void ask_donor(struct cuda_backend *cuda, const struct product *p, uint32_t n, uint32_t k, uint32_t rows, int to_float,
    struct candidates *list)
{
	struct product donor;

	if (!product_make(cuda, n, k, stride_of(k), stride_of(k), rows, stride_of(n), to_float, &donor))
		return;
	ask(cuda, &donor, p, DONOR_MAX, list);
	product_free(&donor);
}

/* ---- Timing ---- */

float linear_time(struct cuda_backend *cuda, uint32_t launches, linear_launch *launch, void *context)
{
	struct linear_plan *linear = cuda->linear;
	cudaGraph_t         graph = NULL;
	cudaGraphExec_t     exec = NULL;
	float               us[REPLAYS + 1], result = 0;
	bool                fine = true;

	if (cuda_check(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal), "timing a linear layer"))
		return 0;
	for (uint32_t i = 0; i < launches && fine; i++)
		fine = launch(context, i);
	cuda_check(cuda, cudaStreamEndCapture(cuda->stream, &graph), "timing a linear layer");
	fine = fine && !cuda->fault && !cuda_check(cuda, cudaGraphInstantiate(&exec, graph, 0), "timing a linear layer");
	for (int i = 0; i <= REPLAYS && fine; i++) {
		float ms = 0;

		fine = !cuda_check(cuda, cudaEventRecord(linear->begin, cuda->stream), "timing a linear layer") &&
		       !cuda_check(cuda, cudaGraphLaunch(exec, cuda->stream), "timing a linear layer") &&
		       !cuda_check(cuda, cudaEventRecord(linear->end, cuda->stream), "timing a linear layer") &&
		       !cuda_check(cuda, cudaEventSynchronize(linear->end), "timing a linear layer") &&
		       !cuda_check(cuda, cudaEventElapsedTime(&ms, linear->begin, linear->end), "timing a linear layer");
		us[i] = ms * 1000 / launches;
	}
	if (fine) { /* the first one warmed up */
		for (int i = 1; i <= REPLAYS; i++)
			for (int j = i; j > 1 && us[j] < us[j - 1]; j--) {
				float t = us[j];
				us[j] = us[j - 1];
				us[j - 1] = t;
			}
		result = us[1 + REPLAYS / 2];
	}
	if (exec)
		cudaGraphExecDestroy(exec);
	if (graph)
		cudaGraphDestroy(graph);
	return result;
}

/* The same of one product over weights of the same shape. */
static float time_product(struct cuda_backend *cuda, const struct product *p, const cublasLtMatmulAlgo_t *algo,
    const struct backend_weight *const *weights, uint32_t count, uint32_t launches, const void *x, void *y)
{
	return time_launches(cuda, launches, [&](uint32_t i) {
		return product_run(cuda, p, algo, weights[i % count]->data, x, y) == CUBLAS_STATUS_SUCCESS;
	});
}

static float time_skinny(struct cuda_backend *cuda, const struct linear_job *job, const struct skinny_variant *variant,
    const struct backend_weight *const *weights, uint32_t count, uint32_t launches)
{
	return time_launches(cuda, launches, [&](uint32_t i) {
		struct linear_job each = *job;

		each.w = weights[i % count];
		return linear_skinny(cuda, &each, variant) == STATUS_OK;
	});
}

/* ---- Bits ---- */

/* A slice of a slab.  Slabs of other formats have slices of the same shape: in a rehearsal bits are compared with random values in
 * its place, the same for all. */
static int is_decoded(const struct cuda_backend *cuda, const struct backend_weight *w)
{
	return w->data && w->data == cuda->scratch.int4;
}

/* True when row 0 of Y has the bits of the shape's reference, or becomes it. */
static bool agrees(struct cuda_backend *cuda, const struct backend_weight *w, const void *y, int to_float)
{
	struct linear_plan *linear = cuda->linear;
	size_t              bytes = w->rows * (to_float ? sizeof(float) : element_bytes(cuda));
	char               *row = (char *)malloc(bytes);
	bool                same = true;

	if (!row || cuda_check(cuda, cudaMemcpyAsync(row, y, bytes, cudaMemcpyDeviceToHost, cuda->stream), "comparing bits") ||
	    cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "comparing bits")) {
		free(row);
		return false;
	}
	for (uint32_t i = 0; i < linear->reference_count; i++) {
		const struct reference *r = &linear->references[i];

		if (r->n != w->rows || r->k != w->columns || r->to_float != to_float || r->decoded != is_decoded(cuda, w))
			continue;
		same = memcmp(r->bits, row, bytes) == 0;
		free(row);
		return same;
	}
	if (linear->reference_count < REFERENCES_MAX)
		linear->references[linear->reference_count++] = { w->rows, w->columns, to_float, is_decoded(cuda, w), row };
	else
		free(row);
	return true;
}

/* ---- Plans ---- */

/* Sizes between which one algorithm serves: powers of two, and halfway between them from 32 on. */
static uint32_t bucket_of(uint32_t rows)
{
	uint32_t bucket = 1;

	while (bucket < rows)
		bucket *= 2;
	return bucket > 32 && bucket / 4 * 3 >= rows ? bucket / 4 * 3 : bucket;
}

uint32_t linear_same_shape(const struct cuda_backend *cuda, const struct backend_weight *w,
    const struct backend_weight *ret[LINEAR_ROTATE_MAX])
{
	uint32_t count = 1;

	ret[0] = w;
	for (const struct backend_weight *other = cuda->weights; other && count < LINEAR_ROTATE_MAX; other = other->next)
		if (other != w && !other->int4 == !w->int4 && !other->data == !w->data && other->rows == w->rows && other->columns ==
		    w->columns &&
		    (w->data || (other->byte.kind == w->byte.kind && other->byte.granule == w->byte.granule && other->input == w->input)))
			ret[count++] = other;
	return count;
}

/* Microseconds of a variant, launched as in recorded steps. */
static float time_variant(struct cuda_backend *cuda, const struct linear_job *job, const struct skinny_variant *variant,
    const struct backend_weight *const *weights, uint32_t count)
{
	struct linear_job dependent = *job;

	dependent.dependent = 1;
	return time_skinny(cuda, &dependent, variant, weights, count, (uint64_t)job->w->rows * job->w->columns > 1 << 27 ? 4 : 12);
}

/* The plan of another bucket by the same kernel, which is that of 8, 16, 32 or 64 rows; NULL: there is none. */
static const struct plan *same_kernel(const struct cuda_backend *cuda, const struct plan *plan, uint32_t rows)
{
	uint32_t tokens = rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;

	for (uint32_t i = 0; i < cuda->linear->count; i++) {
		const struct plan *other = &cuda->linear->plans[i];

		if (other->n == plan->n && other->k == plan->k && other->to_float == plan->to_float && other->bucket <= tokens &&
		    (tokens == 8 || other->bucket > tokens / 2) && other->own_us > 0)
			return other;
	}
	return NULL;
}

/* One variant of linear_skinny for W: does it take the shape and give the reference's bits, and is it faster than those before? */
static enum status try_variant(struct cuda_backend *cuda, const struct linear_job *job, const struct skinny_variant *variant,
    const struct backend_weight *const *weights, uint32_t count, bool timed, struct plan *plan)
{
	enum status status = linear_skinny(cuda, job, variant);
	float       us = 1;

	if (status)
		return status == STATUS_UNSUPPORTED ? STATUS_OK : status;
	if (cuda->rehearsing && !agrees(cuda, job->w, job->y, job->to_float)) {
		plan->own_differs = 1;
		return cuda->fault;
	}
	if (timed)
		us = time_variant(cuda, job, variant, weights, count);
	if (us > 0 && (plan->own_us == 0 || us < plan->own_us)) {
		plan->own_us = us;
		plan->variant = *variant;
	}
	return cuda->fault;
}

/* The fastest variant, and whether it is taken. */
static enum status consider_skinny(struct cuda_backend *cuda, const struct linear_job *job,
    const struct backend_weight *const *weights, uint32_t count, bool timed, struct plan *plan)
{
	const struct plan    *other = same_kernel(cuda, plan, job->rows);
	struct skinny_variant variants[SKINNY_VARIANTS_MAX];
	uint32_t variant_count = skinny_variants(job->w->rows, job->w->columns, job->rows, (uint32_t)cuda->multiprocessors, 0,
	    variants);
	enum status status = STATUS_OK;

	if (other) {
		variants[0] = other->variant;
		variant_count = 1;
	}
	for (uint32_t i = 0; i < (timed ? variant_count : 1) && !status && !plan->own_differs; i++)
		status = try_variant(cuda, job, &variants[i], weights, count, timed, plan);
	if (!status && !plan->own_differs && plan->own_us > 0 && (!cuda->fastest || !timed || !plan->us || plan->own_us <= plan->us))
		plan->way = WAY_SKINNY;
	return status;
}

/* Chooses the algorithm for W and this many rows.  In a rehearsal x holds nothing of worth: it is filled with random
 * values, and bits are compared. */
static enum status choose(struct cuda_backend *cuda, const struct backend_weight *w, const void *x, uint32_t x_stride,
    uint32_t rows,
    void *y, uint32_t y_stride, int to_float, struct plan *plan)
{
	const struct backend_weight *weights[LINEAR_ROTATE_MAX];
	struct candidates            list = {};
	struct product               p;
	uint64_t bytes = (uint64_t)w->rows * w->stride * element_bytes(cuda);
	uint32_t weight_count = linear_same_shape(cuda, w, weights), launches = linear_launches(rows);
	bool     timed = bytes >= TIMED_BYTES;

	*plan = { w->rows, w->columns, w->stride, bucket_of(rows), to_float, is_decoded(cuda, w) };
	if (!product_make(cuda, w->rows, w->columns, w->stride, x_stride, rows, y_stride, to_float, &p))
		return STATUS_NOMEM;
	ask(cuda, &p, &p, OWN_MAX, &list);
	/* Few rows: the list knows little of products that must not be split.  Others' algorithms do better. */
	if (timed && rows <= 128) {
		ask_donor(cuda, &p, DONOR, DONOR, rows, to_float, &list);
		ask_donor(cuda, &p, DONOR, DONOR, 16, to_float, &list);
		ask_donor(cuda, &p, w->rows, DONOR, 16, to_float, &list);
	}
	for (uint32_t more = 16; list.count == 0 && more <= 256; more *= 4)
		ask_donor(cuda, &p, w->rows, w->columns, more, to_float, &list);
	if (cuda->rehearsing)
		rows_random(cuda, (void *)x, (uint64_t)rows * x_stride, 1, 42);
	if (cuda->rehearsing && plan->decoded)
		rows_random(cuda, w->data, (uint64_t)w->rows * w->stride, 1 / sqrtf((float)w->columns), 43);
	for (uint32_t i = 0; i < list.count && !cuda->fault; i++) {
		float us = 1;

		if (product_run(cuda, &p, &list.algos[i], w->data, x, y) != CUBLAS_STATUS_SUCCESS ||
		    (cuda->rehearsing && !agrees(cuda, w, y, to_float)))
			continue;
		if (timed)
			us = time_product(cuda, &p, &list.algos[i], weights, weight_count, launches, x, y);
		if (us > 0 && (plan->way == WAY_PLAIN || us < plan->us)) {
			plan->algo = list.algos[i];
			plan->way = WAY_LIBRARY;
			plan->us = us;
		}
		if (!timed && plan->way != WAY_PLAIN)
			break;
	}
	product_free(&p);
	if (cuda->kernels == KERNELS_OWN && rows <= LINEAR_SKINNY_ROWS && !cuda->fault) {
		struct linear_job job = { w, x, y, x_stride, rows, y_stride, to_float };

		return consider_skinny(cuda, &job, weights, weight_count, timed, plan);
	}
	return cuda->fault;
}

static struct plan *find_plan(struct cuda_backend *cuda, const struct backend_weight *w, uint32_t rows, int to_float)
{
	uint32_t bucket = bucket_of(rows);

	for (uint32_t i = 0; i < cuda->linear->count; i++) {
		struct plan *plan = &cuda->linear->plans[i];

		if (plan->bucket == bucket && plan->n == w->rows && plan->k == w->columns && plan->to_float == to_float &&
		    plan->decoded == is_decoded(cuda, w))
			return plan;
	}
	return NULL;
}

const struct head_target *heads_wanted(const struct cuda_backend *cuda, const void *y, uint32_t n)
{
	const struct step *step = &cuda->step;

	return step->heads && step->heads_of->data == y && step->heads_of->width == n ? step->heads : NULL;
}

/* Whether a product by PLAN is our own kernel's. */
static bool is_own(const struct cuda_backend *cuda, const struct plan *plan, bool saves_kernel)
{
	return plan->own_us > 0 && !plan->own_differs &&
	    (plan->way == WAY_SKINNY || cuda->step.own || (saves_kernel && plan->own_us <= plan->us + SAVED_US));
}

/* The matrices of a stack that is cut, each to its columns of Y. */
static enum status run_cut(struct cuda_backend *cuda, const struct backend_weight *w, const void *x, uint32_t x_stride,
    uint32_t rows, void *y, uint32_t y_stride, int to_float)
{
	size_t      element = to_float ? sizeof(float) : element_bytes(cuda);
	char       *to = (char *)y;
	enum status status = STATUS_OK;

	for (uint32_t i = 0; i < w->cut_count && !status; i++) {
		status = linear_run(cuda, w->cut[i], x, x_stride, rows, to, y_stride, to_float);
		to += w->cut[i]->rows * element;
	}
	return status;
}

enum status linear_run(struct cuda_backend *cuda, const struct backend_weight *w, const void *x, uint32_t x_stride,
    uint32_t rows, void *y, uint32_t y_stride, int to_float)
{
	struct plan      *plan = find_plan(cuda, w, rows, to_float), made;
	struct linear_job job = { w, x, y, x_stride, rows, y_stride, to_float, 0, cuda->step.dependent };
	struct product    p;
	cublasStatus_t    code;

	if (rows == 0)
		return STATUS_OK;
	if (w->cut)
		return run_cut(cuda, w, x, x_stride, rows, y, y_stride, to_float);
	if (w->byte.values)
		return byte_run(cuda, w, NULL, x, x_stride, rows, y, y_stride, rows, to_float);
	if (w->int4)
		return int4_run(cuda, w, x, x_stride, rows, y, y_stride, to_float, 0);
	cuda->step.launches++;
	if (cuda->kernels == KERNELS_PORTABLE && cuda->dtype != DTYPE_F32)
		return linear_portable(cuda, &job);
	if (!plan) {
		enum status status;

		if (cuda->step.recording)
			return cuda_check(cuda, cudaErrorStreamCaptureUnsupported, "a linear layer that was never rehearsed");
		status = choose(cuda, w, x, x_stride, rows, y, y_stride, to_float, &made);
		if (status)
			return status;
		plan = &made;
		if (cuda->linear->count < PLANS_MAX) {
			plan = &cuda->linear->plans[cuda->linear->count++];
			*plan = made;
		}
	}
	job.heads = to_float ? NULL : heads_wanted(cuda, y, w->rows);
	if (is_own(cuda, plan, job.heads)) {
		enum status status = linear_skinny(cuda, &job, &plan->variant);

		if (!job.heads || status != STATUS_UNSUPPORTED) {
			cuda->step.heads = job.heads ? NULL : cuda->step.heads;
			return status;
		}
		job.heads = NULL;
		return linear_skinny(cuda, &job, &plan->variant);
	}
	if (plan->way == WAY_PLAIN)
		return run_plain(cuda, w, x, x_stride, rows, y, y_stride, to_float);
	if (!product_make(cuda, w->rows, w->columns, w->stride, x_stride, rows, y_stride, to_float, &p))
		return STATUS_NOMEM;
	code = product_run(cuda, &p, &plan->algo, w->data, x, y);
	product_free(&p);
	if (code == CUBLAS_STATUS_NOT_SUPPORTED || code == CUBLAS_STATUS_INVALID_VALUE) /* this size, though its bucket was fine */
		return run_plain(cuda, w, x, x_stride, rows, y, y_stride, to_float);
	return code == CUBLAS_STATUS_SUCCESS ? cuda_launched(cuda, "linear") : cuda_check(cuda, cudaErrorUnknown, "cublasLtMatmul");
}

static const char *words_of_variant(const struct skinny_variant *v, int dependent, char ret[BACKEND_WAY_MAX])
{
	snprintf(ret, BACKEND_WAY_MAX, "%u × %u tiles, %u panels%s, %u blocks%s", v->groups, v->tiles, v->panels,
	    v->exact ? " of exact boxes" : "", v->blocks, dependent ? ", dependent" : "");
	return ret;
}

/* How weights were loaded: the first note. */
static const char *upload_note(struct cuda_backend *cuda)
{
	const struct upload_totals *t = &cuda->uploaded;
	char   widened[160] = "";
	double seconds = (double)t->ns * 1e-9, thread_ns = (double)(t->fill_ns + t->wait_ns + 1);

	if (!t->ns)
		return "weights: none were loaded from files";
	if (t->widened)
		snprintf(widened, sizeof widened, "; of %u matrices of bytes %u became 16 bits, the first one %s", t->narrow, t->widened,
		    t->first_widened);
	snprintf(cuda->linear->note, sizeof cuda->linear->note, "weights: %.3f GB in files, %.3f GB on the device in %.2f s, "
	    "%.1f GB/s of the files by %u threads, which %s %.0f %% of their time and waited for the link %.0f %%; %s%s",
	    (double)t->stored_bytes * 1e-9, (double)t->sent_bytes * 1e-9, seconds, (double)t->stored_bytes * 1e-9 / seconds, t->threads,
	    t->on_device ? "read" : "read and decoded", 100 * (double)t->fill_ns / thread_ns, 100 * (double)t->wait_ns / thread_ns,
	    cuda_load_words(&cuda->base), widened);
	if (cuda->int4.slabs || cuda->int4.decoded) {
		size_t length = strlen(cuda->linear->note);

		snprintf(cuda->linear->note + length, sizeof cuda->linear->note - length,
		    "; of four to eight bits in groups %u stay so, %u became 16 bits%s%s",
		    cuda->int4.slabs, cuda->int4.decoded, cuda->int4.decoded ? ", the first one " : "", cuda->int4.why);
	}
	return cuda->linear->note;
}

/* What was chosen, for the log. */
const char *cuda_notes(struct backend *b, uint32_t index)
{
	static const char *const ways[] = { "plain kernel", "cuBLASLt", "own kernel" };
	struct linear_plan *linear = cuda_of(b)->linear;
	const struct plan  *plan = &linear->plans[index > 0 && index <= PLANS_MAX ? index - 1 : 0];
	char                words[BACKEND_WAY_MAX];
	int32_t             id = 0, tile = 0, stages = 0;
	size_t              written;

	if (index == 0)
		return upload_note(cuda_of(b));
	if (index > linear->count)
		return byte_note(cuda_of(b), index - linear->count - 1, linear->note, sizeof linear->note) ? linear->note :
		    step_note(cuda_of(b), index - linear->count - 1 - byte_notes(cuda_of(b)));
	if (plan->us > 0) {
		cublasLtMatmulAlgoConfigGetAttribute(&plan->algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written);
		cublasLtMatmulAlgoConfigGetAttribute(&plan->algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &written);
		cublasLtMatmulAlgoConfigGetAttribute(&plan->algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, sizeof stages, &written);
	}
	snprintf(linear->note, sizeof linear->note, "linear %u x %u%s, up to %u rows: %s; cuBLASLt's algorithm %d, tile %d, stages %d, "
	    "%.1f us; own %.1f us by %s%s", plan->n, plan->k, plan->to_float ? " to float32" : "", plan->bucket, ways[plan->way], id,
	    tile, stages, (double)plan->us, (double)plan->own_us, words_of_variant(&plan->variant, 1, words),
	    plan->own_differs ? ", whose bits differ" : "");
	if (plan->gated_tried)
		snprintf(linear->note + strlen(linear->note), sizeof linear->note - strlen(linear->note), "; %s, %.1f us by %s",
		    plan->gated ? "with silu" : "not with silu", (double)plan->gated_us, words_of_variant(&plan->gated_variant, 1, words));
	if (plan->wide_tried)
		snprintf(linear->note + strlen(linear->note), sizeof linear->note - strlen(linear->note),
		    "; %s, %.1f us, in two kernels %.1f us", plan->wide ? "with silu" : "not with silu", (double)plan->wide_us,
		    (double)plan->two_us);
	return linear->note;
}

/* ---- The library's own choice ---- */

/* Its first answer, whatever it splits: what one gets who asks for nothing. */
static bool first_answer(struct cuda_backend *cuda, const struct product *p, cublasLtMatmulAlgo_t *ret)
{
	cublasLtMatmulHeuristicResult_t result;
	cublasLtMatmulPreference_t      preference;
	size_t bytes = WORKSPACE_BYTES;
	int    found = 0;

	if (cublasLtMatmulPreferenceCreate(&preference))
		return false;
	cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
	if (cublasLtMatmulAlgoGetHeuristic(cuda->blas, p->operation, p->a, p->b, p->d, p->d, preference, 1, &result, &found))
		found = 0;
	cublasLtMatmulPreferenceDestroy(preference);
	if (found != 1 || result.state != CUBLAS_STATUS_SUCCESS)
		return false;
	*ret = result.algo;
	return true;
}

/* Times products of W with random rows: RET gets the seconds of TIME(job, weights, count), which gives microseconds. */
template <class F> static enum status time_ways(struct backend *b, const struct backend_weight *w, uint32_t rows, int to_float,
    double *ret, F time)
{
	struct cuda_backend         *cuda = cuda_of(b);
	const struct backend_weight *weights[LINEAR_ROTATE_MAX];
	struct linear_job            job = { w, NULL, NULL, stride_of(w->columns), rows, stride_of(w->rows), to_float };
	uint32_t count = w->data || w->byte.values ? linear_same_shape(cuda, w, weights) : 0;
	size_t   x_bytes = (size_t)rows * job.x_stride * element_bytes(cuda);
	size_t   y_bytes = (size_t)(rows + 3) * job.y_stride * sizeof(float); /* byte_library_begin rounds up to 4 rows */
	char    *data = NULL;
	float    us;

	if (cuda->fault || !count || !rows || !cuda->scratch.workspace)
		return cuda->fault ? cuda->fault : STATUS_INVALID;
	x_bytes = (x_bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
	if (cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice"))
		return cuda->fault;
	if (cudaMalloc((void **)&data, x_bytes + y_bytes)) {
		cudaGetLastError();
		return STATUS_NOMEM;
	}
	rows_random(cuda, data, (uint64_t)rows * job.x_stride, 1, 42);
	job.x = data;
	job.y = data + x_bytes;
	us = time(job, weights, count);
	cudaStreamSynchronize(cuda->stream);
	cudaFree(data);
	*ret = us * 1e-6;
	return cuda->fault ? cuda->fault : us > 0 ? STATUS_OK : STATUS_UNSUPPORTED;
}

/* Microseconds of the library's product with bytes; 0: it has none. */
static float time_byte_library(struct cuda_backend *cuda, const struct linear_job *job, const struct backend_weight *const *weights,
    uint32_t count)
{
	struct byte_library library;
	float               us = 0;

	if (byte_library_begin(cuda, job->w, NULL, job->x, job->x_stride, job->rows, job->y_stride, job->to_float, NULL, &library)) {
		us = time_launches(cuda, 12, [&](uint32_t i) { return byte_library_run(cuda, &library, weights[i % count], job->y); });
		byte_library_end(&library);
	}
	return us;
}

enum status cuda_library(struct backend *b, const struct backend_weight *w, uint32_t rows, int to_float, double *ret)
{
	enum status status = time_ways(b, w, rows, to_float, ret, [&](struct linear_job &job,
	    const struct backend_weight *const *weights, uint32_t count) -> float {
		struct product       p;
		cublasLtMatmulAlgo_t algo;
		float                us = 0;

		if (w->byte.values)
			return time_byte_library(cuda_of(b), &job, weights, count);
		if (w->int4)
			return 0;
		if (!product_make(cuda_of(b), w->rows, w->columns, w->stride, job.x_stride, rows, job.y_stride, to_float, &p))
			return us;
		if (first_answer(cuda_of(b), &p, &algo))
			us = time_product(cuda_of(b), &p, &algo, weights, count, 12, job.x, job.y);
		product_free(&p);
		return us;
	});

	return status == STATUS_UNSUPPORTED ? STATUS_NOT_FOUND : status;
}

/* ---- Own ways ---- */

/* Ways that the bench compares: 0 and 1 the fastest variant of linear_skinny, launched plainly and dependently; 2 linear_portable;
 * then every variant that is tried at start, both ways.  Of matrices of bytes 0 and 1 are what is taken, inputs rounded on the way
 * if they have to be; 2 is 1 with inputs that were rounded before, as a step's norms and gates do it. */
enum { WAY_DEPENDENT = 1, WAY_PORTABLE = 2, WAY_ROUNDED = 2, WAY_FIRST_VARIANT = 3 };

/* Microseconds of the product with bytes that is taken; ROUNDED: inputs are rounded once, before what is timed. */
static float time_bytes(struct cuda_backend *cuda, const struct linear_job *job, const struct backend_weight *const *weights,
    uint32_t count, bool rounded)
{
	struct cuda_rows rows = {}, *of = rounded ? &rows : NULL;
	float            us = 0;

	if (rounded && (job->w->input == WEIGHT_INPUT_FLOAT || job->w->input_scale > 0))
		return us; /* they are not, or each weight's are its own */
	cuda->step.dependent = job->dependent;
	if (!byte_run(cuda, job->w, of, job->x, job->x_stride, job->rows, job->y, job->y_stride, job->rows, job->to_float))
		us = time_launches(cuda, 12, [&](uint32_t i) {
			return byte_run(cuda, weights[i % count], of, job->x, job->x_stride, job->rows, job->y, job->y_stride,
			    job->rows, job->to_float) == STATUS_OK;
		});
	cuda->step.dependent = 0;
	cuda->rounded = NULL; /* which was of this function */
	return us;
}

static float time_int4(struct cuda_backend *cuda, const struct linear_job *job, const struct backend_weight *const *weights,
    uint32_t count)
{
	int   before = cuda->step.dependent, gated = int4_is_gated(cuda, weights[0], job->rows);
	float us = 0;

	cuda->step.dependent = job->dependent;
	/* Once outside of a recording: algorithms are chosen for slices that are decoded. */
	if (!int4_run(cuda, weights[0], job->x, job->x_stride, job->rows, job->y, job->y_stride, job->to_float, gated))
		us = time_launches(cuda, 12, [&](uint32_t i) {
			return int4_run(cuda, weights[i % count], job->x, job->x_stride, job->rows, job->y, job->y_stride, job->to_float,
			    gated) == STATUS_OK;
		});
	cuda->step.dependent = before;
	return us;
}

enum status cuda_product_way(struct backend *b, const struct backend_weight *w, uint32_t rows, int to_float, uint32_t way,
    char words[BACKEND_WAY_MAX], double *ret)
{
	struct cuda_backend  *cuda = cuda_of(b);
	struct skinny_variant variants[SKINNY_VARIANTS_MAX];
	bool     rounded = w->byte.values && way == WAY_ROUNDED;
	int      dependent = way < WAY_FIRST_VARIANT ? way == WAY_DEPENDENT || rounded : (way - WAY_FIRST_VARIANT) % 2;
	uint32_t count = skinny_variants(w->rows, w->columns, rows, (uint32_t)cuda->multiprocessors, 0, variants), first = 0;

	if (way >= WAY_FIRST_VARIANT) {
		first = (way - WAY_FIRST_VARIANT) / 2;
		count = first < count ? first + 1 : 0;
	}
	if ((way >= WAY_FIRST_VARIANT && !count) || ((w->byte.values || w->int4) && way >= WAY_FIRST_VARIANT))
		return STATUS_NOT_FOUND;
	if (w->byte.values)
		snprintf(words, BACKEND_WAY_MAX, "bytes%s%s", dependent ? ", dependent" : "", rounded ? ", rounded before" : "");
	else if (w->int4 && way != WAY_PORTABLE)
		snprintf(words, BACKEND_WAY_MAX, "slab%s", dependent ? ", dependent" : "");
	else if (way == WAY_PORTABLE)
		snprintf(words, BACKEND_WAY_MAX, "portable");
	else
		words_of_variant(&variants[first], dependent, words);
	return time_ways(b, w, rows, to_float, ret, [&](struct linear_job &job, const struct backend_weight *const *weights,
	    uint32_t weight_count) -> float {
		enum status status;
		float       us, least = 0;

		job.dependent = dependent;
		if (w->byte.values)
			return time_bytes(cuda, &job, weights, weight_count, rounded);
		if (w->int4)
			return way == WAY_PORTABLE ? 0 : time_int4(cuda, &job, weights, weight_count);
		for (uint32_t i = first; i < count && way != WAY_PORTABLE; i++) {
			if (linear_skinny(cuda, &job, &variants[i])) /* outside of a recording, where what does not suit may be refused */
				continue;
			us = time_skinny(cuda, &job, &variants[i], weights, weight_count, count - first == 1 ? 12 : 6);
			least = us > 0 && (least == 0 || us < least) ? us : least;
		}
		if (way != WAY_PORTABLE)
			return least;
		status = linear_portable(cuda, &job);
		return status ? 0 : time_launches(cuda, 12, [&](uint32_t i) {
			struct linear_job each = job;

			each.w = weights[i % weight_count];
			return linear_portable(cuda, &each) == STATUS_OK;
		});
	});
}

/* ---- Operations ---- */

/* Whether the product of the only row with W, to TO, can do the norm that is postponed for it: then its kernel takes it
 * (norm_take). */
static bool takes_norm(const struct cuda_backend *cuda, const struct backend_weight *w, const struct cuda_rows *to)
{
	return w->int4 && int4_takes_norm(cuda, w) && to->data != cuda->norm.delta; /* which other blocks still read */
}

/* What was postponed for FROM is done, but for a norm that the product's own kernel takes. */
static enum status settle_input(struct cuda_backend *cuda, const struct backend_weight *w, struct cuda_rows *from,
    const struct cuda_rows *to)
{
	return from == cuda->postponed && takes_norm(cuda, w, to) ? STATUS_OK : rows_settle(cuda, from);
}

static enum status run_product(struct cuda_backend *cuda, const struct backend_weight *w, struct cuda_rows *from,
    struct cuda_rows *to)
{
	const void *input = from->data;

	if (settle_input(cuda, w, from, to))
		return cuda->fault;
	if (w->input != WEIGHT_INPUT_FLOAT && w->data) {
		enum status status = from->width > cuda->scratch.limits.width ? STATUS_INVALID :
		    rows_round(cuda, w, from->data, from->stride, cuda->step.rows, cuda->scratch.rounded);

		if (status)
			return cuda->fault ? cuda->fault : STATUS_INVALID;
		input = cuda->scratch.rounded;
		cuda->rounded = NULL;
	}
	return w->byte.values ?
	    byte_run(cuda, w, from, input, from->stride, cuda->step.rows, to->data, to->stride, to->rows, 0) :
	    linear_run(cuda, w, input, from->stride, cuda->step.rows, to->data, to->stride, 0);
}

enum status linear_settle(struct cuda_backend *cuda)
{
	const struct backend_weight *w = cuda->step.product.w;
	enum status                  status;

	if (!w)
		return STATUS_OK;
	cuda->step.product.w = NULL;
	status = run_product(cuda, w, cuda->step.product.from, cuda->step.product.to);
	return status ? cuda_check(cuda, cudaErrorUnknown, "a postponed product") : STATUS_OK;
}

enum status cuda_linear(struct backend *b, const struct backend_weight *w, const struct backend_weight *bias,
    const struct activation *x, struct activation *y)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct cuda_rows    *from = rows_of(x), *to = rows_of(y);
	enum status          status = STATUS_OK;

	if (!cuda->step.batch || w->vector || w->columns != from->width || w->rows != to->width ||
	    cuda->step.rows > from->rows ||
	    cuda->step.rows > to->rows || (bias && (!bias->vector || bias->columns != w->rows)))
		return STATUS_INVALID;
	if (linear_settle(cuda) || (to->heads_follow && from != cuda->postponed && rows_settle(cuda, from)))
		return cuda->fault;
	if (to->heads_follow)
		cuda->step.product = { w, from, to };
	else
		status = run_product(cuda, w, from, to);
	rows_written(to);
	to->bias = bias ? bias->vector : NULL;
	return status;
}

/* Row 0 of Y, in memory of malloc; NULL when it fails. */
static char *first_row(struct cuda_backend *cuda, const void *y, size_t bytes)
{
	char *row = (char *)malloc(bytes);

	if (row && !cuda_check(cuda, cudaMemcpyAsync(row, y, bytes, cudaMemcpyDeviceToHost, cuda->stream), "comparing bits") &&
	    !cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "comparing bits"))
		return row;
	free(row);
	return NULL;
}

/* After the two kernels, in a rehearsal: the fastest variant that is one kernel, and whether it gives the same bits. */
static enum status consider_gated(struct cuda_backend *cuda, const struct linear_job *job, struct plan *plan)
{
	const struct plan           *other = same_kernel(cuda, plan, job->rows);
	const struct backend_weight *weights[LINEAR_ROTATE_MAX];
	struct skinny_variant        variants[SKINNY_VARIANTS_MAX];
	size_t      bytes = job->w->rows / 2 * element_bytes(cuda);
	char       *two = first_row(cuda, job->y, bytes);
	bool        timed = job->w->bytes >= TIMED_BYTES;
	uint32_t    weight_count = linear_same_shape(cuda, job->w, weights), count;
	enum status status = two ? STATUS_OK : STATUS_NOMEM;

	count = skinny_variants(job->w->rows, job->w->columns, job->rows, (uint32_t)cuda->multiprocessors, 1, variants);
	if (other && other->gated) {
		variants[0] = other->gated_variant;
		count = 1;
	}
	plan->gated_tried = 1;
	for (uint32_t i = 0; i < (timed ? count : 1) && !status; i++) {
		char *one;
		float us = 1;

		status = linear_skinny(cuda, job, &variants[i]);
		if (status)
			continue;
		one = first_row(cuda, job->y, bytes);
		if (one && memcmp(one, two, bytes) == 0) {
			us = timed ? time_variant(cuda, job, &variants[i], weights, weight_count) : us;
			if (us > 0 && (!plan->gated_us || us < plan->gated_us)) {
				plan->gated_us = us;
				plan->gated_variant = variants[i];
			}
		}
		free(one);
		status = cuda->fault;
	}
	plan->gated = plan->gated_us > 0 &&
	    (!cuda->fastest || !timed || plan->gated_us <= (plan->way == WAY_SKINNY ? plan->own_us : plan->us) + SAVED_US);
	free(two);
	return status == STATUS_UNSUPPORTED ? STATUS_OK : status;
}

/* The same for linear_wide, which has one variant. */
static enum status consider_wide(struct backend *b, const struct linear_job *job, struct activation *gate_up, struct activation *y,
    struct plan *plan)
{
	struct cuda_backend         *cuda = cuda_of(b);
	const struct backend_weight *weights[LINEAR_ROTATE_MAX];
	const struct cuda_rows      *both = rows_of(gate_up);
	const size_t   bytes = job->w->rows / 2 * element_bytes(cuda);
	const uint32_t count = linear_same_shape(cuda, job->w, weights), launches = linear_launches(job->rows);
	const bool     timed = job->w->bytes >= TIMED_BYTES;
	char          *two = first_row(cuda, job->y, bytes), *one;
	enum status    status = two ? linear_wide(cuda, job) : STATUS_NOMEM;

	plan->wide_tried = 1;
	one = status ? NULL : first_row(cuda, job->y, bytes);
	if (one && memcmp(one, two, bytes) == 0) {
		plan->wide_us = timed ? time_launches(cuda, launches, [&](uint32_t i) {
			struct linear_job each = *job;

			each.w = weights[i % count];
			return linear_wide(cuda, &each) == STATUS_OK;
		}) : 1;
		plan->two_us = timed ? time_launches(cuda, launches, [&](uint32_t i) {
			return !linear_run(cuda, weights[i % count], job->x, job->x_stride, job->rows, both->data, both->stride, 0) &&
			    !cuda_silu_gate(b, gate_up, y);
		}) : 1;
		plan->wide = plan->wide_us > 0 && (!cuda->fastest || plan->wide_us <= plan->two_us);
	}
	free(two);
	free(one);
	return status == STATUS_UNSUPPORTED || !status ? cuda->fault : status;
}

enum status cuda_linear_silu(struct backend *b, const struct backend_weight *w, const struct activation *x,
    struct activation *gate_up, struct activation *y)
{
	struct cuda_backend  *cuda = cuda_of(b);
	struct cuda_rows     *from = rows_of(x), *to = rows_of(y);
	struct linear_job     job = { w, from->data, to->data, from->stride, cuda->step.rows, to->stride, 0, 1, cuda->step.dependent };
	struct plan          *plan = find_plan(cuda, w, cuda->step.rows, 0);
	enum status           status;

	if (cuda->step.batch && w->data && !w->int4 && w->input == WEIGHT_INPUT_FLOAT && w->columns == from->width &&
	    w->rows == 2 * (uint64_t)to->width && job.rows && job.rows <= from->rows && job.rows <= to->rows && plan &&
	    (plan->gated || plan->wide || (cuda->step.own && plan->gated_us > 0))) {
		if (rows_settle(cuda, from))
			return cuda->fault;
		cuda->step.launches++;
		status = plan->wide ? linear_wide(cuda, &job) : linear_skinny(cuda, &job, &plan->gated_variant);
		if (status != STATUS_UNSUPPORTED) {
			rows_written(to);
			return status;
		}
	}
	if (cuda->step.batch && w->int4 && w->input == WEIGHT_INPUT_FLOAT && int4_is_gated(cuda, w, job.rows) &&
	    w->columns == from->width && w->rows == 2 * (uint64_t)to->width && job.rows && job.rows <= from->rows &&
	    job.rows <= to->rows) {
		if (linear_settle(cuda) || settle_input(cuda, w, from, to))
			return cuda->fault;
		status = int4_run(cuda, w, job.x, job.x_stride, job.rows, job.y, job.y_stride, 0, 1);
		rows_written(to);
		return status;
	}
	status = cuda_linear(b, w, NULL, x, gate_up);
	status = status ? status : cuda_silu_gate(b, gate_up, y);
	plan = find_plan(cuda, w, cuda->step.rows, 0);
	if (status || !cuda->rehearsing || cuda->step.recording || !w->data || w->int4 || !plan || w->input != WEIGHT_INPUT_FLOAT)
		return status;
	if (plan->own_us > 0 && !plan->own_differs && !plan->gated_tried)
		return consider_gated(cuda, &job, plan);
	if (cuda->kernels == KERNELS_OWN && plan->way == WAY_LIBRARY && job.rows > LINEAR_SKINNY_ROWS && !plan->wide_tried)
		return consider_wide(b, &job, gate_up, y, plan);
	return STATUS_OK;
}

enum status cuda_logits(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *norm, float eps, const struct backend_weight *w)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct cuda_rows    *from = rows_of(x), *residual = residual_in ? rows_of(residual_in) : NULL;
	const void          *input = cuda->scratch.normed;
	uint32_t             rows = cuda->step.logit_rows;
	enum status          status;

	if (!cuda->step.batch || !norm->vector || w->vector || norm->columns != from->width || w->columns !=
	    from->width ||
	    from->width > cuda->scratch.limits.width || w->rows > cuda->scratch.limits.vocab ||
	    (residual && residual->width != from->width))
		return STATUS_INVALID;
	status = rows_norm(cuda, from, residual, norm->vector, eps, cuda->scratch.normed, from->stride, rows, cuda->arrays.logit_rows,
	    NULL);
	if (!status && w->input != WEIGHT_INPUT_FLOAT && w->data) {
		cuda->rounded = NULL;
		status = rows_round(cuda, w, input, from->stride, rows, cuda->scratch.rounded);
		input = cuda->scratch.rounded;
	}
	if (!status)
		status = linear_run(cuda, w, input, from->stride, rows, cuda->scratch.logits, cuda->scratch.vocab_stride, 1);
	if (!status)
		cuda->step.vocab = w->rows;
	return status;
}
