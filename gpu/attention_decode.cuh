/* attention_decode.cuh: attention of one to eight rows of a sequence over its pages.
 *
 * A work item is a run of a context (attention_run says how long), one KV head, and up to 16 rows of (query, head of the
 * group); blocks go through the list of items with a fixed stride.  In a block four warps take 16 tokens each of every 64:
 *
 *      warp w: tokens 16w…16w + 15 of a tile     s [16, 16] = q kᵀ ─► softmax ─► o [16, DIM] += p v
 *      block:  the four (m, l, o) in order of warps ─► the run's
 *      last block of a head to arrive: the runs in order ─► y
 *
 * Who arrives last varies, what it computes does not.  Counters return to 0 for the next launch.
 *
 * It may be launched dependently (launch.cuh): lists of work, and pages whose tokens are all older than the step's rows, are
 * there before the kernels of the step have ended, as attention_hopper.cuh explains; the rest is read after the wait. */
#ifndef PENSTOCK_GPU_ATTENTION_DECODE_CUH
#define PENSTOCK_GPU_ATTENTION_DECODE_CUH

#include "gpu/attention.cuh"

enum { DECODE_THREADS = 128, DECODE_WARPS = DECODE_THREADS / 32, DECODE_ROWS = 16 };

/* Tiles on their way; afterwards the warps' results lie there: o [4][16][DIM], m and l [4][16]. */
template <class E> constexpr int decode_stages = kv_is_byte<E> ? 4 : 3;
/* Blocks that share a multiprocessor: what becomes of bytes in registers takes more warps than of 16 bits. */
template <class E> constexpr int decode_each = kv_is_byte<E> ? 3 : 2;
template <class E, int DIM> constexpr size_t decode_shared(void)
{
	size_t tiles = decode_stages<E> * attention_stage<E, DIM>::bytes;
	size_t results = DECODE_WARPS * DECODE_ROWS * (DIM + 2) * sizeof(float);
	return tiles > results ? tiles : results;
}

/* Where row ROW of a work item lies in the batch. */
struct decode_rows {
	struct step_sequence sequence;
	uint32_t kv_head, first, count; /* rows of (query, head of the group) from FIRST on; COUNT in all */
};

__device__ static inline size_t decode_vector(const struct attention_job *job, const struct decode_rows *rows, uint32_t row,
    uint32_t stride, uint32_t dim)
{
	uint32_t r = rows->first + row, query = r / job->group, head = rows->kv_head * job->group + r % job->group;

	return (size_t)((uint32_t)rows->sequence.first_row + query) * stride + (size_t)head * dim;
}

/* The warps' results of a run become one, at [0] of each array. */
template <int DIM> __device__ static inline void decode_combine(float *shared_o, float *shared_m, float *shared_l)
{
	float most = -INFINITY, weights = 0;

	if (threadIdx.x < DECODE_ROWS) {
#pragma unroll
		for (int w = 0; w < DECODE_WARPS; w++)
			most = fmaxf(most, shared_m[w * DECODE_ROWS + threadIdx.x]);
#pragma unroll
		for (int w = 0; w < DECODE_WARPS; w++) { /* maxima become factors */
			float factor = most > -INFINITY ? exp2f(shared_m[w * DECODE_ROWS + threadIdx.x] - most) : 0;

			weights += shared_l[w * DECODE_ROWS + threadIdx.x] * factor;
			shared_m[w * DECODE_ROWS + threadIdx.x] = factor;
		}
	}
	__syncthreads();
#pragma unroll
	for (uint32_t i = 0; i < DECODE_ROWS * DIM / DECODE_THREADS; i++) {
		uint32_t at = threadIdx.x + i * DECODE_THREADS, r = at / DIM;
		float    sum = 0;

#pragma unroll
		for (int w = 0; w < DECODE_WARPS; w++)
			sum += shared_o[w * DECODE_ROWS * DIM + at] * shared_m[w * DECODE_ROWS + r];
		shared_o[at] = sum;
	}
	__syncthreads();
	if (threadIdx.x < DECODE_ROWS) {
		shared_m[threadIdx.x] = most;
		shared_l[threadIdx.x] = weights;
	}
	__syncthreads();
}

__device__ static inline void decode_wait(const struct attention_job *job, bool *waited)
{
	if (*waited)
		return;
	dependency_wait();
	mark_begin(job->mark);
	*waited = true;
}

/* One run through the tiles: leaves its (m, l, o) in shared memory. */
template <class T, int DIM, class E> __device__ static inline void decode_run(const struct attention_job *job,
    const struct decode_rows *rows,
    const struct step_item *item, char *stages, bool *waited)
{
	constexpr int        count = decode_stages<E>;
	constexpr uint32_t   stage_bytes = attention_stage<E, DIM>::bytes;
	struct softmax_state state = { { -INFINITY, -INFINITY }, { 0, 0 } };
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, base = shared_address(stages), q[DIM / 16][4];
	float    o[DIM / 8][4], factor = job->scale * 1.44269504088896f;
	float   *shared_o = (float *)stages, *shared_m = shared_o + DECODE_WARPS * DECODE_ROWS * DIM;
	float   *shared_l = shared_m + DECODE_WARPS * DECODE_ROWS;
	int32_t  limit[2], ahead = item->begin;
	const T *from[2];
	const struct step_sequence *sequence = &rows->sequence;
	struct tile_blocks<E, DIM, DECODE_THREADS> blocks;

	/* Each tile is a group of copies, and what would lie behind the end is one of none. */
	find_blocks(job, sequence, item->begin, item->end, &blocks);
#pragma unroll
	for (int i = 0; i < count - 1; i++, ahead += CUDA_TILE) {
		if (ahead + CUDA_TILE > sequence->context - sequence->rows)
			decode_wait(job, waited);
		if (ahead < item->end)
			load_tiles(job, rows->kv_head, ahead, item->end, &blocks, base + (uint32_t)i * stage_bytes);
		else
			cp_async_commit();
		find_blocks(job, sequence, ahead + CUDA_TILE, item->end, &blocks);
	}
	decode_wait(job, waited);
	for (int r = 0; r < 2; r++) {
		uint32_t row = lane / 4 + 8 * (uint32_t)r, query = (rows->first + row) / job->group;
		bool     there = rows->first + row < rows->count;

		limit[r] = !there ? 0 : job->full ? rows->sequence.context :
		    rows->sequence.context - rows->sequence.rows + (int32_t)query + 1;
		limit[r] = limit[r] < item->end ? limit[r] : item->end;
		from[r] = there ? (const T *)job->qkv + decode_vector(job, rows, row, job->stride, DIM) : NULL;
	}
	load_queries<T, E, DIM>(from[0], from[1], q);
#pragma unroll
	for (int d = 0; d < DIM / 8; d++)
		for (int i = 0; i < 4; i++)
			o[d][i] = 0;
	for (int32_t first = item->begin, stage = 0; first < item->end; first += CUDA_TILE, stage = (stage + 1) % count) {
		const char *now = stages + (uint32_t)stage * stage_bytes;
		float       s[2][4];

		cp_async_wait<count - 2>();
		__syncthreads(); /* the tile is there, and nobody reads the one before it any more */
		if (ahead < item->end)
			load_tiles(job, rows->kv_head, ahead, item->end, &blocks, base + (uint32_t)((stage + count - 1) % count) * stage_bytes);
		else
			cp_async_commit();
		ahead += CUDA_TILE;
		find_blocks(job, sequence, ahead, item->end, &blocks);
		stage_scores<T, E, DIM>(q, now, warp * 16, factor, s);
#pragma unroll
		for (int j = 0; j < 2; j++) {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int32_t token = first + (int32_t)(warp * 16 + (uint32_t)j * 8 + lane % 4 * 2) + i % 2;

				s[j][i] = token < limit[i / 2] ? s[j][i] : -INFINITY;
			}
		}
		softmax_step<2, DIM / 8>(s, o, &state);
		stage_values<T, E, DIM>(s, now, warp * 16, o);
	}
	__syncthreads();
#pragma unroll
	for (int r = 0; r < 2; r++) {
		uint32_t at = warp * DECODE_ROWS + lane / 4 + 8 * (uint32_t)r;
		float    l = state.l[r];

		l += __shfl_xor_sync(~0u, l, 1);
		l += __shfl_xor_sync(~0u, l, 2);
		if (lane % 4 == 0) {
			shared_m[at] = state.m[r];
			shared_l[at] = l;
		}
#pragma unroll
		for (int j = 0; j < DIM / 8; j++)
			*(float2 *)(shared_o + at * DIM + sum_place<E>(j)) = sum_pair<E, DIM>(o, j, r);
	}
	__syncthreads();
	decode_combine<DIM>(shared_o, shared_m, shared_l);
}

/* All runs of a head's rows, in their order, into y.  FACTORS [items][16] is shared memory.  Loads of all rows of a run are
 * under way at once: what takes time here is latency. */
template <class T, int DIM> __device__ static inline void decode_finish(const struct attention_job *job,
    const struct decode_rows *rows,
    float *factors)
{
	constexpr uint32_t          each = DECODE_ROWS * DIM / DECODE_THREADS;
	const struct step_sequence *sequence = &rows->sequence;
	uint32_t live = rows->count - rows->first < DECODE_ROWS ? rows->count - rows->first : (uint32_t)DECODE_ROWS;
	size_t   first = (size_t)job->items[sequence->first_item].partial + (size_t)rows->kv_head * rows->count + rows->first;
	size_t   step = (size_t)sequence->rows * job->partial_heads; /* between runs */
	uint32_t runs = (uint32_t)sequence->items;
	float   *sums = factors + CUDA_RUNS_MAX * DECODE_ROWS, *shared_l = sums + CUDA_RUNS_MAX * DECODE_ROWS, acc[each];

	for (uint32_t i = threadIdx.x; i < runs * DECODE_ROWS; i += DECODE_THREADS) {
		uint32_t r = i % DECODE_ROWS;
		float2   sum = make_float2(-INFINITY, 0);

		if (r < live)
			sum = __ldcg((const float2 *)job->sums + first + (size_t)(i / DECODE_ROWS) * step + r);
		factors[i] = sum.x;
		sums[i] = sum.y;
	}
	__syncthreads();
	if (threadIdx.x < DECODE_ROWS) {
		float most = -INFINITY, weights = 0;

		for (uint32_t run = 0; run < runs; run++)
			most = fmaxf(most, factors[run * DECODE_ROWS + threadIdx.x]);
		for (uint32_t run = 0; run < runs; run++) {
			float factor = most > -INFINITY ? exp2f(factors[run * DECODE_ROWS + threadIdx.x] - most) : 0;

			weights += sums[run * DECODE_ROWS + threadIdx.x] * factor;
			factors[run * DECODE_ROWS + threadIdx.x] = factor;
		}
		shared_l[threadIdx.x] = weights;
	}
	__syncthreads();
#pragma unroll
	for (uint32_t i = 0; i < each; i++)
		acc[i] = 0;
#pragma unroll 2
	for (uint32_t run = 0; run < runs; run++) {
		const float *from = job->partials + (first + (size_t)run * step) * DIM;
		float        v[each];

#pragma unroll
		for (uint32_t i = 0; i < each; i++) {
			uint32_t at = threadIdx.x + i * DECODE_THREADS;
			v[i] = at < live * DIM ? __ldcg(from + at) : 0;
		}
#pragma unroll
		for (uint32_t i = 0; i < each; i++)
			acc[i] += v[i] * factors[run * DECODE_ROWS + (threadIdx.x + i * DECODE_THREADS) / DIM];
	}
#pragma unroll
	for (uint32_t i = 0; i < each; i++) {
		uint32_t at = threadIdx.x + i * DECODE_THREADS, r = at / DIM;

		if (r < live)
			((T *)job->y)[decode_vector(job, rows, r, job->y_stride, DIM) + at % DIM] = from_float<T>(acc[i] / shared_l[r]);
	}
}

/* E: what pages hold, T or bytes. */
template <class T, int DIM, class E = T> static __global__ void __launch_bounds__(DECODE_THREADS,
    decode_each<E>) decode_kernel(struct attention_job job)
{
	DYNAMIC_SHARED(stages);
	__shared__ int         last;
	float   *shared_o = (float *)stages, *shared_m = shared_o + DECODE_WARPS * DECODE_ROWS * DIM;
	float   *shared_l = shared_m + DECODE_WARPS * DECODE_ROWS;
	uint32_t each = job.kv_heads * job.row_tiles, work = (uint32_t)job.counts[0] * each;
	bool     waited = false;

	dependents_launch();
	for (uint32_t w = blockIdx.x; w < work; w += gridDim.x) {
		struct step_item   item = job.items[w / each];
		struct decode_rows rows = { job.sequences[item.sequence], w % each / job.row_tiles, w % job.row_tiles * DECODE_ROWS, 0 };
		int32_t           *arrived;
		size_t             at;
		uint32_t           live;

		rows.count = (uint32_t)rows.sequence.rows * job.group;
		if (rows.first >= rows.count)
			continue;
		live = rows.count - rows.first < DECODE_ROWS ? rows.count - rows.first : (uint32_t)DECODE_ROWS;
		decode_run<T, DIM, E>(&job, &rows, &item, stages, &waited);
		at = (size_t)item.partial + (size_t)rows.kv_head * rows.count + rows.first;
		for (uint32_t i = threadIdx.x; i < live * DIM; i += DECODE_THREADS)
			job.partials[at * DIM + i] = shared_o[i];
		if (threadIdx.x < live) {
			job.sums[2 * (at + threadIdx.x)] = shared_m[threadIdx.x];
			job.sums[2 * (at + threadIdx.x) + 1] = shared_l[threadIdx.x];
		}
		__threadfence();
		__syncthreads();
		arrived = job.arrived + (size_t)rows.sequence.first_row * job.q_heads + (size_t)rows.kv_head * rows.count + rows.first;
		if (threadIdx.x == 0)
			last = atomicAdd(arrived, 1) == rows.sequence.items - 1;
		__syncthreads();
		if (last) {
			__threadfence();
			decode_finish<T, DIM>(&job, &rows, shared_o);
			if (threadIdx.x == 0)
				*arrived = 0;
		}
		__syncthreads();
	}
	decode_wait(&job, &waited);
	/* Rows of padding get zeroes: what they hold must not be NaN for ever. */
	for (uint32_t row = blockIdx.x; row < (uint32_t)job.counts[3]; row += gridDim.x)
		for (uint32_t i = threadIdx.x; job.row_sequence[row] < 0 && i < job.q_heads * DIM; i += DECODE_THREADS)
			((T *)job.y)[(size_t)row * job.y_stride + i] = from_float<T>(0);
}

#endif
