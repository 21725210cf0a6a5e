/* kv.cu: owns the KV pools and what happens to q, k and v between their product and attention: bias, norms of heads,
 * rotation, and the write into pages, in one kernel.  Does not own block tables.  Invariant: a row of padding (slot −1) is
 * written nowhere, and a head's result depends on its row only.
 *
 *      keys, values   [layers][blocks][kv_heads][block_size][head_dim], apart; chunks of a row swapped for own attention
 *      scales         [layers][blocks][kv_heads][2][block_size], of keys and of values, where these are bytes
 *      records        [layers][blocks][kv_heads] of keys, values, scales, where own attention reads bytes
 */
#include "base/checked.h"
#include "gpu/kv.cuh"
#include "gpu/launch.cuh"
#include "gpu/types.cuh"

#include <string.h>

/* ---- Pools ---- */

/* Bytes of BLOCKS blocks of all layers in the pool of keys, which is as large as that of values, and in that of scales. */
static bool pool_bytes(const struct cuda_backend *cuda, const struct kv_group_desc *desc, uint32_t blocks, uint64_t *ret,
    uint64_t *ret_scales)
{
	uint64_t rows, element = desc->type == KV_FLOAT ? element_bytes(cuda) : 1;

	return checked_mul_u64((uint64_t)desc->layers * desc->kv_heads, desc->block_size, &rows) &&
	       checked_mul_u64(rows, blocks, &rows) && checked_mul_u64(rows, element * desc->head_dim, ret) &&
	       checked_mul_u64(rows, desc->type == KV_FLOAT ? 0 : 2 * sizeof(float), ret_scales) && *ret < UINT64_MAX / 4 &&
	       *ret_scales < UINT64_MAX / 4;
}

uint64_t cuda_kv_bytes(const struct backend *b, const struct kv_group_desc *group)
{
	uint64_t bytes, scales;
	return pool_bytes((const struct cuda_backend *)b, group, 1, &bytes, &scales) ? 2 * bytes + scales : UINT64_MAX;
}

/* Pools of BYTES of keys and of values in a group's memory, and scales behind them; or records. */
static void place_pools(struct cuda_backend *cuda, struct cuda_kv *kv, const struct kv_group_desc *desc, uint64_t bytes)
{
	bool own = attention_is_own(cuda, desc), is_bytes = desc->type != KV_FLOAT;

	kv->desc = *desc;
	kv->keys = kv->block.data;
	kv->unit = (size_t)desc->block_size * desc->head_dim * (is_bytes ? 1 : element_bytes(cuda));
	kv->scale_unit = is_bytes ? 2 * desc->block_size : 0;
	kv->swizzle = !own ? 0 : is_bytes ? desc->head_dim / 16 - 1 : 7;
	kv->values = (char *)kv->keys + (own && is_bytes ? kv->unit : bytes);
	kv->scales = is_bytes ? (float *)((char *)kv->values + (own ? kv->unit : bytes)) : NULL;
	if (own && is_bytes) {
		kv->unit = 2 * kv->unit + kv->scale_unit * sizeof(float);
		kv->scale_unit = kv->unit / sizeof(float);
	}
}

enum status cuda_kv_alloc(struct backend *b, uint32_t group, const struct kv_group_desc *desc, struct error *error)
{
	struct cuda_backend *cuda = cuda_of(b);
	uint64_t             bytes, scales, all;
	enum status          status;

	if (group >= BACKEND_KV_GROUPS_MAX || cuda->kv[group].keys)
		return error_set(error, STATUS_INVALID, "KV group %u is taken or outside 0…%d", group, BACKEND_KV_GROUPS_MAX - 1);
	if (cuda->arrays.counts)
		return error_set(error, STATUS_INVALID, "KV group %u comes after the first step", group);
	if (desc->block_size < 1 || desc->block_size & (desc->block_size - 1) || desc->layers < 1 || desc->kv_heads < 1 ||
	    desc->head_dim < 1 ||
	    desc->head_dim > CUDA_HEAD_DIM_MAX ||
	    desc->blocks < 1)
		return error_set(error, STATUS_INVALID, "KV group of %u layers, %u heads of %u, %u blocks of %u: all must be positive, "
		    "blocks a power of two, heads ≤ %d",
		    desc->layers, desc->kv_heads, desc->head_dim, desc->blocks, desc->block_size, (int)CUDA_HEAD_DIM_MAX);
	if ((uint64_t)desc->blocks * desc->block_size > INT32_MAX || !pool_bytes(cuda, desc, desc->blocks, &bytes, &scales))
		return error_set(error, STATUS_LIMIT, "%u blocks of %u tokens are more than slots can number", desc->blocks,
		    desc->block_size);
	bytes = (bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
	all = 2 * bytes + scales;
	status = arena_take(cuda, all, &cuda->kv[group].block);
	if (status) {
		size_t   available = 0, total = 0;
		uint64_t token = all / ((uint64_t)desc->blocks * desc->block_size);

		cudaMemGetInfo(&available, &total);
		return error_set(error, status, "device %d: no memory for a KV cache of %llu MiB: %llu of %llu MiB are free, enough for "
		    "%llu tokens of this group of layers; lower kv_tokens", cuda->device, (unsigned long long)(all >> 20),
		    (unsigned long long)(available >> 20), (unsigned long long)(total >> 20),
		    (unsigned long long)(available / (token + 1)));
	}
	place_pools(cuda, &cuda->kv[group], desc, bytes);
	if (cuda_check(cuda, cudaMemsetAsync(cuda->kv[group].keys, 0, all, cuda->stream), "clearing the KV cache")) {
		*error = cuda->fault_error;
		return cuda->fault;
	}
	return STATUS_OK;
}

enum status cuda_kv_copy(struct backend *b, uint32_t group, const int32_t *from, const int32_t *to, uint32_t count)
{
	struct cuda_backend  *cuda = cuda_of(b);
	const struct cuda_kv *kv = &cuda->kv[group < BACKEND_KV_GROUPS_MAX ? group : 0];
	struct copy_pools     pools = { { (char *)kv->keys, (char *)kv->values, (char *)kv->scales }, {} };

	if (group >= BACKEND_KV_GROUPS_MAX || !kv->keys)
		return STATUS_INVALID;
	for (uint32_t i = 0; i < count; i++)
		if ((uint32_t)from[i] >= kv->desc.blocks || (uint32_t)to[i] >= kv->desc.blocks)
			return STATUS_INVALID;
	if (cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice"))
		return cuda->fault;
	pools.block_bytes[0] = pools.block_bytes[1] = kv->unit * kv->desc.kv_heads;
	pools.block_bytes[2] = kv->scale_unit * kv->desc.kv_heads * sizeof(float);
	if (kv->scales && kv->swizzle) /* records */
		pools.block_bytes[1] = pools.block_bytes[2] = 0;
	for (uint32_t done = 0; done < count;) {
		struct copy_pairs pairs;
		uint32_t          n = 0;

		for (; done < count && n < COPY_PAIRS; done++) {
			if (from[done] == to[done])
				continue;
			pairs.from[n] = from[done];
			pairs.to[n++] = to[done];
		}
		if (n)
			copy_kernel<<<dim3(n, kv->desc.layers), COPY_THREADS, 0, cuda->stream>>>(pairs, pools, kv->desc.blocks);
		if (n && cuda_launched(cuda, "kv_copy"))
			return cuda->fault;
	}
	return STATUS_OK;
}

/* ---- Launches ---- */

static enum status launch_heads(struct cuda_backend *cuda, struct head_job *job)
{
	uint32_t    heads = job->to.q_heads + job->to.kv_heads * (job->to.keys ? 2 : 1);
	dim3        grid(cuda->step.rows, (heads + HEAD_WARPS - 1) / HEAD_WARPS);
	enum status status = STATUS_OK;

	job->mark = mark_next(cuda, FAULT_HEADS);
	FOR_DTYPE(cuda, T,
	    status = launch(cuda, "rope_kv_write", cuda->step.dependent, head_kernel<T>, grid, 32 * HEAD_WARPS, 0, *job));
	return status;
}

/* ---- Operations ---- */

enum status cuda_head_norm(struct backend *b, struct activation *qkv, uint32_t q_heads, uint32_t kv_heads,
    const struct backend_weight *q_weight, const struct backend_weight *k_weight, float eps)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct cuda_rows    *rows = rows_of(qkv);

	if (!cuda->step.batch || !q_weight->vector || !k_weight->vector || q_weight->columns != k_weight->columns ||
	    cuda->step.rows > rows->rows || rows->width != ((uint64_t)q_heads + 2 * (uint64_t)kv_heads) * q_weight->columns)
		return STATUS_INVALID;
	if (rows->norm || rows->q_norm ? rows_settle(cuda, rows) : norm_settle(cuda))
		return cuda->fault;
	rows->q_norm = q_weight->vector;
	rows->k_norm = k_weight->vector;
	rows->head_eps = eps;
	rows->q_heads = q_heads;
	rows->kv_heads = kv_heads;
	return cuda->fault;
}

enum status kv_settle_heads(struct cuda_backend *cuda, struct cuda_rows *qkv)
{
	struct head_job job = { .qkv = qkv->data, .q_norm = qkv->q_norm, .k_norm = qkv->k_norm, .eps = qkv->head_eps,
	    .stride = qkv->stride };

	job.to.q_heads = qkv->q_heads;
	job.to.kv_heads = qkv->kv_heads;
	job.to.head_dim = qkv->width / (qkv->q_heads + 2 * qkv->kv_heads);
	qkv->q_norm = qkv->k_norm = NULL;
	return launch_heads(cuda, &job);
}

static bool same_rotation(const struct rope_desc *a, const struct rope_desc *b)
{
	return a->frequencies == b->frequencies && a->dims == b->dims && a->scale == b->scale;
}

static enum status prepare_rotation(struct cuda_backend *cuda, const struct rope_desc *rope)
{
	struct rope_frequencies frequencies = {};

	if (cuda->step.rotation_ready && same_rotation(&cuda->step.rotation, rope))
		return STATUS_OK;
	memcpy(frequencies.f, rope->frequencies, rope->dims / 2 * sizeof(float));
	rotation_kernel<<<cuda->step.rows, 64, 0, cuda->stream>>>(frequencies, cuda->arrays.positions, rope->scale, rope->dims / 2,
	    cuda->scratch.limits.head_dim / 2, cuda->scratch.rotation);
	cuda->step.rotation = *rope;
	cuda->step.rotation_ready = 1;
	return cuda_launched(cuda, "rotation");
}

enum status cuda_rope_kv_write(struct backend *b, struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, const struct rope_desc *rope)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct cuda_rows    *rows = rows_of(qkv);
	struct head_job      job = { .qkv = rows->data };
	const struct cuda_kv *kv;
	bool                  fused;
	enum status           status = STATUS_OK;

	if (!cuda->step.batch || group >= BACKEND_KV_GROUPS_MAX || !cuda->kv[group].keys)
		return STATUS_INVALID;
	kv = &cuda->kv[group];
	if (rope && (rope->dims > kv->desc.head_dim || rope->dims % 2 || rope->dims > cuda->scratch.limits.head_dim))
		return STATUS_INVALID;
	if (layer >= kv->desc.layers || cuda->step.rows > rows->rows ||
	    rows->width != ((uint64_t)q_heads + 2 * (uint64_t)kv->desc.kv_heads) * kv->desc.head_dim)
		return STATUS_INVALID;
	rows->heads_follow = kv->desc.type == KV_FLOAT && kv->desc.head_dim % 2 == 0 && !rows->norm && !rows->q_norm &&
	    (!rope || rope->style == ROPE_INTERLEAVED);
	fused = rows->heads_follow && cuda->step.product.w && cuda->step.product.to == rows;
	if ((!fused && norm_settle(cuda)) || (rows->norm && rows_settle(cuda, rows)))
		return cuda->fault;
	if (rope && prepare_rotation(cuda, rope))
		return cuda->fault;
	job.to = { (char *)kv->keys + layer * kv_layer_bytes(kv), (char *)kv->values + layer * kv_layer_bytes(kv),
		cuda->arrays.slots[group], rope ? cuda->scratch.rotation : NULL, rows->bias, q_heads, kv->desc.kv_heads, kv->desc.head_dim,
		kv->desc.block_size, rope ? rope->dims / 2 : 0, cuda->scratch.limits.head_dim / 2, kv->swizzle };
	job.scales = kv->scales ? kv->scales + layer * kv_layer_scales(kv) : NULL;
	job.type = kv->desc.type;
	job.q_norm = rows->q_norm;
	job.k_norm = rows->k_norm;
	job.eps = rows->head_eps;
	job.stride = rows->stride;
	job.unit = kv->unit;
	job.scale_unit = kv->scale_unit;
	job.interleaved = rope && rope->style == ROPE_INTERLEAVED;
	if (fused) {
		cuda->step.heads = &job.to;
		cuda->step.heads_of = rows;
		status = linear_settle(cuda);
		fused = !cuda->step.heads;
		cuda->step.heads = NULL;
	}
	if (!fused && !status)
		status = launch_heads(cuda, &job);
	rows_written(rows);
	return status;
}
