/* rows.cu: owns operations on whole rows: gather, norms, gates, pooling, and what was postponed for them (cuda.h).  Does not own
 * products, nor the kernels (rows.cuh).  Invariant: a block's shape depends on the row's width only, so a row's bits depend on
 * nothing but the row. */
#include "gpu/launch.cuh"
#include "gpu/rows.cuh"
#include "gpu/types.cuh"

#include <stdlib.h>

enum status cuda_embed(struct backend *b, const struct backend_weight *w, struct activation *y)
{
	struct cuda_backend *cuda = cuda_of(b);
	const struct step   *step = &cuda->step;
	struct cuda_rows    *to = rows_of(y);

	if (!step->batch || !step->batch->tokens || w->vector || w->columns != to->width || step->rows > to->rows)
		return STATUS_INVALID;
	for (uint32_t r = 0; r < step->batch->rows; r++)
		if (step->batch->tokens[r] >= 0 && (uint32_t)step->batch->tokens[r] >= w->rows)
			return STATUS_INVALID;
	if (w->cut)
		return STATUS_UNSUPPORTED;
	if (norm_settle(cuda))
		return cuda->fault;
	rows_written(to);
	if (cuda->dtype != DTYPE_F32 && to->width == cuda->scratch.limits.stream)
		to->wide = cuda->scratch.stream;
	if (w->byte.values)
		return byte_embed(cuda, w, cuda->arrays.tokens, 0, 0, to);
	if (w->int4)
		return int4_embed(cuda, w, cuda->arrays.tokens, 0, 0, to);
	if (to->wide) {
		FOR_DTYPE(cuda, T, embed_kernel<T, float><<<step->rows, PLAIN_THREADS, 0, cuda->stream>>>((const T *)w->data, w->stride,
		    cuda->arrays.tokens, w->rows, to->wide, cuda->scratch.stream_stride, to->width, mark_next(cuda, FAULT_EMBED)));
	} else {
		FOR_DTYPE(cuda, T, embed_kernel<T, T><<<step->rows, PLAIN_THREADS, 0, cuda->stream>>>((const T *)w->data, w->stride,
		    cuda->arrays.tokens, w->rows, (T *)to->data, to->stride, to->width, mark_next(cuda, FAULT_EMBED)));
	}
	return cuda_launched(cuda, "embed");
}

enum status cuda_embed_add(struct backend *b, const struct backend_weight *w, enum embed_index index, uint32_t offset,
    struct activation *y)
{
	struct cuda_backend *cuda = cuda_of(b);
	const struct step   *step = &cuda->step;
	struct cuda_rows    *to = rows_of(y);
	bool                 by_position = index == EMBED_POSITION;

	if (!step->batch || w->columns != to->width || step->rows > to->rows || (by_position && !step->batch->positions))
		return STATUS_INVALID;
	for (uint32_t r = 0; r < (by_position ? step->batch->rows : 1); r++) {
		int64_t at = (int64_t)offset + (by_position ? step->batch->positions[r] : 0);

		if (at < 0 || at >= w->rows)
			return STATUS_INVALID;
	}
	if (w->cut)
		return STATUS_UNSUPPORTED;
	if (to->wide ? norm_settle(cuda) : rows_settle(cuda, to))
		return cuda->fault;
	if (w->byte.values)
		return byte_embed(cuda, w, by_position ? cuda->arrays.positions : NULL, offset, 1, to);
	if (w->int4)
		return int4_embed(cuda, w, by_position ? cuda->arrays.positions : NULL, offset, 1, to);
	if (to->wide)
		FOR_DTYPE(cuda, T, embed_add_kernel<T, float><<<step->rows, PLAIN_THREADS, 0, cuda->stream>>>((const T *)w->data, w->vector,
		    w->stride, by_position ? cuda->arrays.positions : NULL, offset, w->rows, to->wide, cuda->scratch.stream_stride,
		    to->width));
	else
		FOR_DTYPE(cuda, T, embed_add_kernel<T, T><<<step->rows, PLAIN_THREADS, 0, cuda->stream>>>((const T *)w->data, w->vector,
		    w->stride, by_position ? cuda->arrays.positions : NULL, offset, w->rows, (T *)to->data, to->stride, to->width));
	return cuda_launched(cuda, "embed_add");
}

/* ---- Norms ---- */

template <class T, class X, bool LAYER> static bool launch_norm_of(const struct cuda_backend *cuda, const struct norm_job *job,
    uint32_t rows)
{
	uint32_t packs = (job->width + pack<T>::count - 1) / pack<T>::count;
	uint32_t each = packs <= NORM_THREADS_MAX ? 1 : packs <= 4 * NORM_THREADS_MAX ? 4 : 8;
	uint32_t threads = ((packs + each - 1) / each + 31) / 32 * 32;

	switch (each) {
	case 1: launch_kernel(cuda, cuda->step.dependent, norm_kernel<T, X, 1, LAYER>, rows, threads, 0, *job); break;
	case 4: launch_kernel(cuda, cuda->step.dependent, norm_kernel<T, X, 4, LAYER>, rows, threads, 0, *job); break;
	default:
		if (threads > NORM_THREADS_MAX)
			return false;
		launch_kernel(cuda, cuda->step.dependent, norm_kernel<T, X, 8, LAYER>, rows, threads, 0, *job);
	}
	return true;
}

template <class T, bool LAYER> static bool launch_norm(const struct cuda_backend *cuda, const struct norm_job *job, uint32_t rows)
{
	return job->x_is_wide ? launch_norm_of<T, float, LAYER>(cuda, job, rows) : launch_norm_of<T, T, LAYER>(cuda, job, rows);
}

/* X as a norm reads it. */
static void take_input(const struct cuda_backend *cuda, struct norm_job *job, struct cuda_rows *x)
{
	job->x_is_wide = x->wide != NULL;
	job->x = x->wide ? (const void *)x->wide : x->data;
	job->x_stride = x->wide ? cuda->scratch.stream_stride : x->stride;
}

/* Takes over what was postponed for a residual. */
static void take_postponed(struct norm_job *job, struct cuda_rows *residual)
{
	if (!residual)
		return;
	job->residual = residual->data;
	job->residual_stride = residual->stride;
	job->inner_bias = residual->bias;
	job->inner_norm = residual->norm;
	job->inner_eps = residual->norm_eps;
	rows_written(residual);
}

enum status rows_norm(struct cuda_backend *cuda, struct cuda_rows *x, struct cuda_rows *residual, const float *w,
    float eps, void *y, uint32_t y_stride, uint32_t rows, const int32_t *chosen, const struct byte_target *round)
{
	struct norm_job job = { .y = y, .chosen = chosen, .w = w, .eps = eps, .width = x->width, .y_stride = y_stride };
	bool fits = true;

	if (rows == 0)
		return STATUS_OK;
	if (norm_settle(cuda))
		return cuda->fault;
	if ((residual && (residual->q_norm || residual->wide) && rows_settle(cuda, residual)) || (!x->wide && rows_settle(cuda, x)))
		return cuda->fault;
	job.mark = mark_next(cuda, FAULT_NORM);
	take_input(cuda, &job, x);
	take_postponed(&job, residual);
	job.sum = residual && !chosen && job.x != y ? (void *)job.x : NULL;
	if (round)
		job.round = *round;
	FOR_DTYPE(cuda, T, fits = launch_norm<T, false>(cuda, &job, rows));
	return fits ? cuda_launched(cuda, "rms_norm") : STATUS_UNSUPPORTED;
}

/* Whether a norm of X with RESIDUAL, to TO, is left to the product that reads it.  Not in a recording that launches plainly: there
 * kernels meet one another's ends anyway, and the time of either way is seen (step.cu). */
static bool postpones(const struct cuda_backend *cuda, const struct cuda_rows *x, const struct cuda_rows *residual,
    const struct cuda_rows *to)
{
	const struct step *step = &cuda->step;

	return step->rows == 1 && cuda->kernels == KERNELS_OWN && cuda->major == 9 && !(step->recording && !step->dependent) &&
	    residual && residual != to && x != to && x->wide && !residual->wide && !residual->bias && !residual->q_norm;
}

static enum status postpone(struct cuda_backend *cuda, struct cuda_rows *x, struct cuda_rows *residual, const float *w, float eps,
    struct cuda_rows *to)
{
	if (norm_settle(cuda))
		return cuda->fault;
	cuda->norm = { x->wide, x->wide == cuda->scratch.stream ? cuda->scratch.stream_next : cuda->scratch.stream, residual->data,
		to->data, w, residual->norm, residual->norm_eps, eps, x->width };
	cuda->postponed = to;
	x->wide = cuda->norm.sum;
	rows_written(residual);
	rows_written(to);
	return cuda->fault;
}

bool norm_take(struct cuda_backend *cuda, const void *x, struct norm_prologue *ret)
{
	if (!cuda->postponed || cuda->postponed->data != x)
		return false;
	cuda->postponed = NULL;
	*ret = cuda->norm;
	return true;
}

enum status norm_settle(struct cuda_backend *cuda)
{
	const struct norm_prologue *norm = &cuda->norm;
	struct cuda_rows           *to;
	struct norm_job job = { .x = norm->x, .sum = norm->sum, .residual = norm->delta, .y = norm->y, .w = norm->w,
		.inner_norm = norm->inner_norm, .inner_eps = norm->inner_eps, .eps = norm->eps, .width = norm->width, .x_is_wide = 1 };
	bool fits = true;

	if (linear_settle(cuda)) /* which takes its norm along */
		return cuda->fault;
	to = cuda->postponed;
	if (!to)
		return STATUS_OK;
	cuda->postponed = NULL;
	job.mark = mark_next(cuda, FAULT_NORM);
	job.round = byte_target_of(cuda, to);
	FOR_DTYPE(cuda, T, fits = launch_norm<T, false>(cuda, &job, 1));
	byte_rounded_by(cuda, to, &job.round);
	return fits ? cuda_launched(cuda, "rms_norm") : STATUS_UNSUPPORTED;
}

/* A norm in place of something without a residual is postponed: what it belongs to is added to a residual stream next. */
enum status cuda_rms_norm(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *w, float eps, struct activation *y)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct cuda_rows    *from = rows_of(x), *to = rows_of(y), *residual = residual_in ? rows_of(residual_in) : NULL;
	struct byte_target   round;
	enum status          status;

	if (!cuda->step.batch || !w->vector || w->columns != from->width || to->width != from->width || cuda->step.rows > from->rows ||
	    cuda->step.rows > to->rows || (residual && (residual->width != from->width || residual->rows < cuda->step.rows)))
		return STATUS_INVALID;
	if (from == to && !residual) {
		if (norm_settle(cuda))
			return cuda->fault;
		if ((from->norm || from->q_norm || from->wide) && rows_settle(cuda, from))
			return cuda->fault;
		from->norm = w->vector;
		from->norm_eps = eps;
		return cuda->fault;
	}
	if (postpones(cuda, from, residual, to))
		return postpone(cuda, from, residual, w->vector, eps, to);
	round = byte_target_of(cuda, to);
	status = rows_norm(cuda, from, residual, w->vector, eps, to->data, to->stride, cuda->step.rows, NULL, &round);
	rows_written(to);
	byte_rounded_by(cuda, to, &round);
	return status;
}

enum status cuda_layer_norm(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *w, const struct backend_weight *bias, float eps, struct activation *y)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct cuda_rows    *from = rows_of(x), *to = rows_of(y), *residual = residual_in ? rows_of(residual_in) : NULL;
	struct norm_job      job = { .y = to->data, .w = w->vector, .bias = bias->vector, .eps = eps, .width = from->width,
		.y_stride = to->stride };
	bool                 fits = true;

	if (!cuda->step.batch || !w->vector || !bias->vector || w->columns != from->width || bias->columns != from->width ||
	    to->width != from->width || cuda->step.rows > from->rows || cuda->step.rows > to->rows ||
	    (residual && (residual->width != from->width || residual->rows < cuda->step.rows)))
		return STATUS_INVALID;
	if (norm_settle(cuda))
		return cuda->fault;
	if ((residual && (residual->q_norm || residual->wide) && rows_settle(cuda, residual)) || (!from->wide && rows_settle(cuda,
	    from)))
		return cuda->fault;
	job.mark = mark_next(cuda, FAULT_NORM);
	take_input(cuda, &job, from);
	take_postponed(&job, residual);
	job.sum = residual && job.x != job.y ? (void *)job.x : NULL;
	FOR_DTYPE(cuda, T, fits = launch_norm<T, true>(cuda, &job, cuda->step.rows));
	rows_written(to);
	return fits ? cuda_launched(cuda, "layer_norm") : STATUS_UNSUPPORTED;
}

/* ---- What was postponed ---- */

void rows_written(struct cuda_rows *rows)
{
	rows->bias = rows->norm = rows->q_norm = rows->k_norm = NULL;
	rows->wide = NULL;
	rows->rounded = WEIGHT_INPUT_FLOAT;
}

/* Every activation is settled over the rows of the step: what was postponed was so in this step. */
enum status rows_settle(struct cuda_backend *cuda, struct cuda_rows *rows)
{
	struct norm_job job = { .x = rows->data, .y = rows->data, .w = rows->norm, .eps = rows->norm_eps, .width = rows->width,
		.x_stride = rows->stride, .y_stride = rows->stride };
	bool fits = true;

	if (norm_settle(cuda))
		return cuda->fault;
	if (rows->wide) {
		FOR_DTYPE(cuda, T, narrow_kernel<T><<<cuda->step.rows, PLAIN_THREADS, 0, cuda->stream>>>(rows->wide,
		    cuda->scratch.stream_stride, (T *)rows->data, rows->stride, rows->width));
		rows->wide = NULL;
		if (cuda_launched(cuda, "narrow"))
			return cuda->fault;
	}
	if (rows->bias) {
		FOR_DTYPE(cuda, T, bias_kernel<T><<<cuda->step.rows, PLAIN_THREADS, 0, cuda->stream>>>((T *)rows->data, rows->stride,
		    rows->bias,
		    rows->width));
		rows->bias = NULL;
		if (cuda_launched(cuda, "bias"))
			return cuda->fault;
	}
	if (rows->norm) {
		rows->norm = NULL;
		job.mark = mark_next(cuda, FAULT_NORM);
		FOR_DTYPE(cuda, T, fits = launch_norm<T, false>(cuda, &job, cuda->step.rows));
		if (!fits || cuda_launched(cuda, "rms_norm"))
			return fits ? cuda->fault : STATUS_UNSUPPORTED;
	}
	return rows->q_norm ? kv_settle_heads(cuda, rows) : STATUS_OK;
}

/* ---- Gates ---- */

enum status cuda_silu_gate(struct backend *b, const struct activation *gate_up, struct activation *y)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct cuda_rows    *from = rows_of(gate_up), *to = rows_of(y);
	struct byte_target   round = {};

	if (!cuda->step.batch || from->width != 2 * (uint64_t)to->width || cuda->step.rows > from->rows || cuda->step.rows > to->rows)
		return STATUS_INVALID;
	if (rows_settle(cuda, from))
		return cuda->fault;
	if (to->width % BYTE_GROUP == 0 && to->wants == WEIGHT_INPUT_F8_GROUP)
		round = byte_target_of(cuda, to);
	FOR_DTYPE(cuda, T, launch_kernel(cuda, cuda->step.dependent, silu_kernel<T>,
	    dim3((to->width + PLAIN_THREADS * pack<T>::count - 1) / (PLAIN_THREADS * pack<T>::count), cuda->step.rows),
	    PLAIN_THREADS, 0, (const T *)from->data, from->stride, (T *)to->data, to->stride, to->width, round,
	    mark_next(cuda, FAULT_SILU)));
	rows_written(to);
	byte_rounded_by(cuda, to, &round);
	return cuda_launched(cuda, "silu_gate");
}

enum status cuda_gelu(struct backend *b, struct activation *x)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct cuda_rows    *rows = rows_of(x);
	const float         *bias = rows->norm || rows->q_norm ? NULL : rows->bias;

	if (!cuda->step.batch || cuda->step.rows > rows->rows)
		return STATUS_INVALID;
	if (bias ? norm_settle(cuda) : rows_settle(cuda, rows))
		return cuda->fault;
	rows_written(rows);
	FOR_DTYPE(cuda, T, gelu_kernel<T><<<dim3((rows->width + PLAIN_THREADS - 1) / PLAIN_THREADS, cuda->step.rows), PLAIN_THREADS, 0,
	    cuda->stream>>>((T *)rows->data, rows->stride, bias, rows->width, mark_next(cuda, FAULT_GELU)));
	return cuda_launched(cuda, "gelu");
}

/* ---- Pooling ---- */

enum status cuda_pool(struct backend *b, const struct activation *x)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct cuda_rows    *rows = rows_of(x);

	if (!cuda->step.batch || cuda->step.rows > rows->rows || rows->width > cuda->scratch.limits.width)
		return STATUS_INVALID;
	if (rows_settle(cuda, rows))
		return cuda->fault;
	cuda->step.pooled_width = rows->width;
	if (cuda->step.logit_rows == 0)
		return STATUS_OK;
	FOR_DTYPE(cuda, T, pool_kernel<T><<<cuda->step.logit_rows, PLAIN_THREADS, 0, cuda->stream>>>((const T *)rows->data,
	    rows->stride,
	    cuda->arrays.logit_rows, cuda->scratch.pooled, rows->width, mark_next(cuda, FAULT_POOL)));
	return cuda_launched(cuda, "pool");
}

/* ---- Inputs that a checkpoint wants rounded ---- */

enum status rows_round(struct cuda_backend *cuda, const struct backend_weight *w, const void *x, uint32_t stride,
    uint32_t rows, void *ret)
{
	uint32_t group = w->input == WEIGHT_INPUT_F8_GROUP ? 128 : w->columns;

	if (rows == 0)
		return STATUS_OK;
	FOR_DTYPE(cuda, T, round_kernel<T><<<dim3((w->columns + group - 1) / group, rows), PLAIN_THREADS, 0,
	    cuda->stream>>>((const T *)x,
	    (T *)ret, stride, w->columns, group, w->input == WEIGHT_INPUT_I8_TOKEN ? 127.0f : 448.0f, w->input_scale,
	    mark_next(cuda, FAULT_ROUND)));
	return cuda_launched(cuda, "rounding of inputs");
}

/* ---- Random values ---- */

static __device__ uint32_t hash(uint64_t i, uint64_t seed)
{
	uint64_t z = (i + seed) * 0x9E3779B97F4A7C15ull;

	z = (z ^ z >> 32) * 0xD6E8FEB86659FD93ull;
	z = (z ^ z >> 32) * 0xD6E8FEB86659FD93ull;
	return (uint32_t)(z >> 32);
}

/* Nearly normal: a sum of four bytes has the standard deviation 147.8. */
template <class T> static __global__ void random_kernel(T *data, uint64_t count, float scale, uint64_t seed)
{
	for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x) {
		uint32_t h = hash(i, seed);
		float    sum = (float)(h & 255) + (float)(h >> 8 & 255) + (float)(h >> 16 & 255) + (float)(h >> 24);

		data[i] = from_float<T>((sum - 510) / 147.8f * scale);
	}
}

static __global__ void random_vector_kernel(float *data, uint64_t count, uint64_t seed)
{
	for (uint64_t i = threadIdx.x; i < count; i += blockDim.x)
		data[i] = 0.75f + 0.5f * (float)(hash(i, seed) >> 8) / 16777216.0f;
}

/* SCALE of 0: a float vector around 1. */
enum status rows_random(struct cuda_backend *cuda, void *data, uint64_t count, float scale, uint64_t seed)
{
	if (scale == 0)
		random_vector_kernel<<<1, NORM_THREADS_MAX, 0, cuda->stream>>>((float *)data, count, seed);
	else
		FOR_DTYPE(cuda, T, random_kernel<T><<<2048, PLAIN_THREADS, 0, cuda->stream>>>((T *)data, count, scale, seed));
	return cuda_launched(cuda, "random values");
}

/* ---- Bandwidth ---- */

enum { READ_THREADS = 512, READ_EACH = 8, READ_LAUNCHES = 12, READ_REPLAYS = 7 };

static __global__ void __launch_bounds__(READ_THREADS) read_kernel(const uint4 *data, size_t count, uint32_t *ret)
{
	uint32_t sum = 0;

	for (size_t i = blockIdx.x * (size_t)READ_THREADS * READ_EACH +
	    threadIdx.x; i < count; i += (size_t)gridDim.x * READ_THREADS * READ_EACH) {
		uint4 v[READ_EACH];

#pragma unroll
		for (int k = 0; k < READ_EACH; k++)
			v[k] = __ldcs(data + i + (size_t)k * READ_THREADS);
#pragma unroll
		for (int k = 0; k < READ_EACH; k++)
			sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
	}
	if (sum == 0x12345678) /* never, but who knows */
		*ret = sum;
}

/* A graph of reads of four buffers of 512 MiB in turn, the median of its replays. */
enum status cuda_read_bandwidth(struct backend *b, double *ret)
{
	constexpr size_t     bytes = (size_t)512 << 20, buffers = 4;
	struct cuda_backend *cuda = cuda_of(b);
	char                *data = NULL;
	cudaGraph_t          graph = NULL;
	cudaGraphExec_t      exec = NULL;
	cudaEvent_t          begin = NULL, end = NULL;
	float                ms[READ_REPLAYS + 1] = {};

	if (cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice"))
		return cuda->fault;
	if (cudaMalloc((void **)&data, bytes * buffers + 256)) {
		cudaGetLastError();
		return STATUS_NOMEM;
	}
	random_kernel<float><<<2048, PLAIN_THREADS, 0, cuda->stream>>>((float *)data, bytes * buffers / 4, 1, 7);
	cuda_check(cuda, cudaEventCreate(&begin), "cudaEventCreate");
	cuda_check(cuda, cudaEventCreate(&end), "cudaEventCreate");
	if (!cuda_check(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal), "measuring")) {
		for (int i = 0; i < READ_LAUNCHES; i++)
			read_kernel<<<(uint32_t)cuda->multiprocessors * 4, READ_THREADS, 0, cuda->stream>>>(
			    (const uint4 *)(data + i % buffers * bytes), bytes / 16, (uint32_t *)(data + bytes * buffers));
		cuda_check(cuda, cudaStreamEndCapture(cuda->stream, &graph), "measuring");
	}
	if (!cuda->fault)
		cuda_check(cuda, cudaGraphInstantiate(&exec, graph, 0), "measuring");
	for (int i = 0; i <= READ_REPLAYS && !cuda->fault; i++) {
		cuda_check(cuda, cudaEventRecord(begin, cuda->stream), "measuring");
		cuda_check(cuda, cudaGraphLaunch(exec, cuda->stream), "measuring");
		cuda_check(cuda, cudaEventRecord(end, cuda->stream), "measuring");
		cuda_check(cuda, cudaEventSynchronize(end), "measuring");
		cuda_check(cuda, cudaEventElapsedTime(&ms[i], begin, end), "measuring");
	}
	for (int i = 1; i <= READ_REPLAYS; i++) /* the first one warmed up */
		for (int j = i; j > 1 && ms[j] < ms[j - 1]; j--) {
			float t = ms[j];
			ms[j] = ms[j - 1];
			ms[j - 1] = t;
		}
	if (exec)
		cudaGraphExecDestroy(exec);
	if (graph)
		cudaGraphDestroy(graph);
	cudaEventDestroy(begin);
	cudaEventDestroy(end);
	cudaFree(data);
	*ret = (double)(bytes * (size_t)READ_LAUNCHES) / ((double)ms[1 + READ_REPLAYS / 2] * 1e-3);
	return cuda->fault;
}

/* ---- For tests ---- */

enum status cuda_activation_put(struct backend *b, struct activation *a, const float *values, uint32_t rows)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct cuda_rows    *to = rows_of(a);
	size_t               row_bytes = to->stride * element_bytes(cuda);
	char                *host;
	enum status          status;

	if (rows > to->rows)
		return STATUS_INVALID;
	if (norm_settle(cuda))
		return cuda->fault;
	host = (char *)calloc(rows + 1, row_bytes);
	if (!host)
		return STATUS_NOMEM;
	for (size_t i = 0; i < (size_t)rows * to->width; i++)
		FOR_DTYPE(cuda, T, ((T *)(host + i / to->width * row_bytes))[i % to->width] = from_float<T>(values[i]));
	/* On the stream: cudaMemcpy may return before bytes from pageable memory have arrived, and kernels would not wait. */
	status = cuda_check(cuda, cudaMemcpyAsync(to->data, host, rows * row_bytes, cudaMemcpyHostToDevice, cuda->stream),
	    "activation_put");
	status = status ? status : cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "activation_put");
	rows_written(to);
	free(host);
	return status;
}

enum status cuda_activation_get(struct backend *b, const struct activation *a, float *ret, uint32_t rows)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct cuda_rows    *from = rows_of(a);
	size_t               row_bytes = from->stride * element_bytes(cuda);
	char                *host;
	enum status          status;

	if (rows > from->rows)
		return STATUS_INVALID;
	host = (char *)calloc(rows + 1, row_bytes);
	if (!host)
		return STATUS_NOMEM;
	status = rows_settle(cuda, from);
	status = status ? status : cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "activation_get");
	status = status ? status : cuda_check(cuda, cudaMemcpy(host, from->data, rows * row_bytes, cudaMemcpyDeviceToHost),
	    "activation_get");
	for (size_t i = 0; !status && i < (size_t)rows * from->width; i++)
		FOR_DTYPE(cuda, T, ret[i] = to_float(((T *)(host + i / from->width * row_bytes))[i % from->width]));
	free(host);
	return status;
}
