/* attention.cu: owns attention over pages: which kernel takes which rows, and the launches.  Does not own pages (kv.cu) nor
 * the lists of work (step.cu).  Invariant: what a row's result is made of depends on the row's own sequence only.
 *
 * Four kernels.  Rows of sequences with few rows in the step (decode) are taken by attention_decode.cuh: a context is cut
 * into parts whose length depends on the context's length only, a block works on each, the last one to finish puts the
 * parts together in their order.  Longer pieces of prompts are cut into tiles of 64 rows for attention_prefill.cuh, which
 * sees a context 64 tokens at a time from its beginning.  Both use tensor cores on 16-bit types with heads of 64 or 128, whether
 * pages hold that type or bytes (attention_byte.cuh).
 * With own kernels and pages of 64 tokens, decode goes through attention_hopper.cuh instead, of bytes attention_hopper_byte.cuh.
 * Everything else, float32 among it, goes through a plain kernel, one block for a head of a row.
 */
#include "gpu/attention_decode.cuh"
#include "gpu/attention_hopper_byte.cuh"
#include "gpu/attention_plain.cuh"
#include "gpu/attention_prefill.cuh"
#include "gpu/types.cuh"
#include "gpu/launch.cuh"

bool attention_is_own(const struct cuda_backend *cuda, const struct kv_group_desc *desc)
{
	uint32_t heads = cuda->scratch.limits.q_heads;

	return cuda->kernels == KERNELS_OWN && cuda->dtype != DTYPE_F32 && desc->kind == KV_PAIRS &&
	    desc->block_size == ATTENTION_PAGE && (desc->head_dim == 64 || desc->head_dim == 128) && desc->kv_heads <= UINT8_MAX &&
	    heads % desc->kv_heads == 0 && heads / desc->kv_heads <= HOPPER_GROUP_MAX &&
	    cuda->multiprocessors <= ATTENTION_BLOCKS_MAX;
}

/* ---- Launches ---- */

template <class T, int DIM, class E> static enum status launch_tiles(struct cuda_backend *cuda, struct attention_job *job)
{
	job->mark = mark_next(cuda, FAULT_ATTENTION_PROMPTS);
	prefill_kernel<T, DIM, E><<<dim3(job->q_heads, cuda->step.tiles), PREFILL_THREADS, prefill_shared<E, DIM>(),
	    cuda->stream>>>(*job);
	return cuda_launched(cuda, "attention of prompts");
}

template <class T, int DIM, class E> static enum status launch_decode(struct cuda_backend *cuda, struct attention_job *job)
{
	const struct step *step = &cuda->step;
	uint64_t work, blocks = decode_each<E> * (uint64_t)cuda->multiprocessors;
	uint32_t rows_max = step->decode_rows_max ? step->decode_rows_max : 1;

	job->row_tiles = (rows_max * job->group + 15) / 16;
	/* A recorded launch serves contexts of any length. */
	work = (step->rung != CUDA_RUNGS_MAX ? (uint64_t)step->rows * CUDA_RUNS_MAX : step->work_max) * job->kv_heads * job->row_tiles;
	if (work == 0 && !step->uncovered)
		return STATUS_OK;
	work = work ? work : 1;
	job->mark = mark_next(cuda, FAULT_ATTENTION_DECODES);
	return launch(cuda, "attention of decodes", step->dependent, decode_kernel<T, DIM, E>,
	    (uint32_t)(work < blocks ? work : blocks), DECODE_THREADS, decode_shared<E, DIM>(), *job);
}

template <class T, int DIM, int PARTS> static enum status launch_parts(struct cuda_backend *cuda, const struct hopper_job *own)
{
	return launch(cuda, "own attention of decodes", cuda->step.dependent, hopper_kernel<T, DIM, PARTS>,
	    (uint32_t)cuda->multiprocessors, HOPPER_THREADS, hopper_sizes<T, DIM, PARTS>::shared, *own);
}

template <class T, int DIM, class E> static enum status launch_own(struct cuda_backend *cuda, const struct attention_job *job)
{
	const struct step *step = &cuda->step;

	if (step->rung == CUDA_RUNGS_MAX && step->work_max == 0 && !step->uncovered)
		return STATUS_OK;
	struct hopper_job own = { .qkv = job->qkv, .keys = job->keys, .values = job->values, .y = job->y,
		.units = cuda->arrays.units[job->kv_group], .tables = job->tables, .row_sequence = job->row_sequence,
		.rows = job->counts + 3, .partials = job->partials, .sums = job->sums, .arrived = cuda->scratch.arrived_runs,
		.stride = job->stride, .y_stride = job->y_stride, .q_heads = job->q_heads, .kv_heads = job->kv_heads,
		.group = job->group, .partial_heads = job->partial_heads, .scale = job->scale, .full = job->full,
		.mark = mark_next(cuda, FAULT_ATTENTION_DECODES) };
	if constexpr (kv_is_byte<E>)
		return attention_byte_launch(cuda, &own, DIM, step->pass_parts[job->kv_group], cuda->kv[job->kv_group].desc.type);
	else if (step->pass_parts[job->kv_group] == 2)
		return launch_parts<T, DIM, 2>(cuda, &own);
	else if (step->pass_parts[job->kv_group] == 3)
		return launch_parts<T, DIM, 3>(cuda, &own);
	else
		return launch_parts<T, DIM, 4>(cuda, &own);
}

template <class T, int DIM, class E> static enum status launch_pages(struct cuda_backend *cuda, struct attention_job *job)
{
	enum status status = cuda->step.tiles ? launch_tiles<T, DIM, E>(cuda, job) : STATUS_OK;

	return status ? status : job->swizzle ? launch_own<T, DIM, E>(cuda, job) : launch_decode<T, DIM, E>(cuda, job);
}

template <class T, int DIM> static enum status launch_fast(struct cuda_backend *cuda, struct attention_job *job, enum kv_type type)
{
	switch (type) {
	case KV_F8: return launch_pages<T, DIM, kv_f8>(cuda, job);
	case KV_I8: return launch_pages<T, DIM, kv_i8>(cuda, job);
	default: return launch_pages<T, DIM, T>(cuda, job);
	}
}

template <class T> static void launch_plain(struct cuda_backend *cuda, struct attention_job *job, enum kv_type type)
{
	dim3 grid(cuda->step.rows, job->q_heads);

	job->mark = mark_next(cuda, FAULT_ATTENTION);
	switch (type) {
	case KV_F8: plain_kernel<T, kv_f8><<<grid, 32 * PLAIN_WARPS, 0, cuda->stream>>>(*job); break;
	case KV_I8: plain_kernel<T, kv_i8><<<grid, 32 * PLAIN_WARPS, 0, cuda->stream>>>(*job); break;
	default: plain_kernel<T><<<grid, 32 * PLAIN_WARPS, 0, cuda->stream>>>(*job);
	}
}

template <class T, int DIM, class E> static enum status allow_pages(struct cuda_backend *cuda)
{
	enum status status = allow_shared(cuda, prefill_kernel<T, DIM, E>, (int)prefill_shared<E, DIM>(), "cudaFuncSetAttribute");

	return status ? status : allow_shared(cuda, decode_kernel<T, DIM, E>, (int)decode_shared<E, DIM>(), "cudaFuncSetAttribute");
}

template <class T, int DIM, int PARTS> static enum status allow_parts(struct cuda_backend *cuda)
{
	return allow_shared(cuda, hopper_kernel<T, DIM, PARTS>, (int)hopper_sizes<T, DIM, PARTS>::shared,
	    "cudaFuncSetAttribute");
}

template <class T, int DIM> static enum status prepare(struct cuda_backend *cuda)
{
	if (allow_pages<T, DIM, T>(cuda) || allow_pages<T, DIM, kv_f8>(cuda) || allow_pages<T, DIM, kv_i8>(cuda))
		return cuda->fault;
	if (cuda->kernels == KERNELS_OWN &&
	    (allow_parts<T, DIM, 2>(cuda) || allow_parts<T, DIM, 3>(cuda) || allow_parts<T, DIM, 4>(cuda)))
		return cuda->fault;
	return STATUS_OK;
}

enum status attention_prepare(struct cuda_backend *cuda)
{
	enum status status;

	(status = prepare<__nv_bfloat16, 64>(cuda)) || (status = prepare<__nv_bfloat16, 128>(cuda)) ||
	    (status = prepare<__half, 64>(cuda)) || (status = prepare<__half, 128>(cuda)) ||
	    (cuda->kernels == KERNELS_OWN && (status = attention_byte_prepare(cuda)));
	return status;
}

static enum status attend(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer, uint32_t q_heads,
    float scale, struct activation *y, int full)
{
	struct cuda_backend  *cuda = cuda_of(b);
	struct cuda_rows     *from = rows_of(qkv), *to = rows_of(y);
	const struct cuda_kv *kv = &cuda->kv[group < BACKEND_KV_GROUPS_MAX ? group : 0];
	struct attention_job  job = { .qkv = from->data, .y = to->data };
	enum kv_type          type = kv->desc.type;
	enum status           status = STATUS_UNSUPPORTED;

	if (!cuda->step.batch || group >= BACKEND_KV_GROUPS_MAX || !kv->keys || layer >= kv->desc.layers ||
	    q_heads % kv->desc.kv_heads ||
	    q_heads > cuda->scratch.limits.q_heads || kv->desc.head_dim > cuda->scratch.limits.head_dim ||
	    cuda->step.rows > from->rows ||
	    cuda->step.rows > to->rows || to->width != (uint64_t)q_heads * kv->desc.head_dim || from->width < to->width)
		return STATUS_INVALID;
	if (rows_settle(cuda, from))
		return cuda->fault;
	job.keys = (const char *)kv->keys + layer * kv_layer_bytes(kv);
	job.values = (const char *)kv->values + layer * kv_layer_bytes(kv);
	job.scales = kv->scales ? kv->scales + layer * kv_layer_scales(kv) : NULL;
	job.sequences = cuda->arrays.sequences;
	job.items = cuda->arrays.items;
	job.tiles = cuda->arrays.tiles;
	job.tables = cuda->arrays.tables;
	job.row_sequence = cuda->arrays.row_sequence;
	job.counts = cuda->arrays.counts;
	job.partials = cuda->scratch.partials;
	job.sums = cuda->scratch.partials + cuda->scratch.partial_rows * kv->desc.head_dim;
	job.arrived = cuda->scratch.arrived;
	job.stride = from->stride;
	job.y_stride = to->stride;
	job.q_heads = q_heads;
	job.kv_heads = kv->desc.kv_heads;
	job.group = q_heads / kv->desc.kv_heads;
	job.head_dim = kv->desc.head_dim;
	while (1u << job.block_shift < kv->desc.block_size)
		job.block_shift++;
	job.kv_group = group;
	job.partial_heads = cuda->scratch.limits.q_heads;
	job.swizzle = kv->swizzle;
	job.unit = (uint32_t)kv->unit;
	job.scale_unit = (uint32_t)kv->scale_unit;
	job.scale = scale;
	job.full = full;
	if (type != KV_FLOAT && kv->desc.block_size < 4) /* scales are copied four at a time */
		status = STATUS_UNSUPPORTED;
	else if (cuda->dtype == DTYPE_BF16 && job.head_dim == 128)
		status = launch_fast<__nv_bfloat16, 128>(cuda, &job, type);
	else if (cuda->dtype == DTYPE_BF16 && job.head_dim == 64)
		status = launch_fast<__nv_bfloat16, 64>(cuda, &job, type);
	else if (cuda->dtype == DTYPE_F16 && job.head_dim == 128)
		status = launch_fast<__half, 128>(cuda, &job, type);
	else if (cuda->dtype == DTYPE_F16 && job.head_dim == 64)
		status = launch_fast<__half, 64>(cuda, &job, type);
	if (status == STATUS_UNSUPPORTED) {
		FOR_DTYPE(cuda, T, launch_plain<T>(cuda, &job, type));
		status = cuda_launched(cuda, "attention");
	}
	rows_written(to);
	return status;
}

enum status cuda_attention(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, float scale, struct activation *y)
{
	return attend(b, qkv, group, layer, q_heads, scale, y, 0);
}

enum status cuda_attention_full(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, float scale, struct activation *y)
{
	return attend(b, qkv, group, layer, q_heads, scale, y, 1);
}
