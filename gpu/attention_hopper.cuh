/* attention_hopper.cuh: decode attention that reads pages with bulk copies (sm_90): one to eight rows of a sequence.
 *
 * Blocks stay: each goes through its units (attention_plan.h).  One warp brings pages of 64 tokens, keys and values of a KV
 * head in one copy each, into a ring that fills shared memory; four warps take 16 tokens of every page each, for a tile of
 * 16 rows of (query, head of the group); four more take a second tile of the same pages:
 *
 *      producer     units, block tables ─► [ K | V ] [ K | V ] …      a ring of pages, two mbarriers each: full, empty
 *      warp w       tokens 16w…16w + 15 of each page: s = q kᵀ ─► softmax ─► o += p v, all of it in registers
 *      tile         the four (m, l, o) in order of warps ─► the run's: y if it is the only one, else a partial result
 *      last block of FAN runs to arrive: these in their order; the last of those, of the whole sequence: the same ─► y
 *
 * Who arrives last varies, what it computes does not.  Counters return to 0 for the next launch.
 *
 * Pages lie in the pool as in shared memory, 16-byte chunks of a row swapped by its number (struct cuda_kv, swizzle): whoever
 * writes a row does that, and a page of one head is one contiguous copy without a tensor map.  Of a page that is not full
 * only the rows of the context are copied; what lies behind them in the ring may be anything, NaN too, and is masked where
 * keys become scores and where values become operands (0 · NaN is NaN).
 *
 * Before dependency_wait.  Units and block tables are constants of a step: `take` has ended before the step's first kernel
 * begins, which must not be launched as its dependent.  Pages whose tokens are all older than the step's rows were written in
 * an earlier step, or by kv_copy, which goes into the stream before `take`; nobody writes them in this step, because a block
 * that is shared is copied before its first write (engine/kv.h).  So both are read before the kernels of this step have ended.
 * The last pages, q, partial results and y come after it. */
#ifndef PENSTOCK_GPU_ATTENTION_HOPPER_CUH
#define PENSTOCK_GPU_ATTENTION_HOPPER_CUH

#include "gpu/attention_plan.h"
#include "gpu/attention_tile.cuh"
#include "gpu/block.cuh"

#include <math.h>

enum {
	HOPPER_WARPS = 4, HOPPER_TILE_THREADS = 32 * HOPPER_WARPS, /* of a tile; the producer is one more warp */
	HOPPER_FAN = 16,               /* runs that are put together at once */
	HOPPER_UNROLL = 4,             /* of them, loads of so many are under way */
	HOPPER_GROUP_MAX = 32          /* query heads of a KV head */
};

/* A row of a warp's result in shared memory is so many floats longer than DIM: 8 rows then lie in different banks. */
enum { HOPPER_PAD = 8 };

/* With one tile two blocks share a multiprocessor: while one puts results together, pages come to the other.  With two tiles
 * registers are enough for one block.  Not measured yet: rings of 64 KiB saturated memory in other kernels. */
template <int TILES> struct hopper_blocks {
	static constexpr uint32_t threads = HOPPER_TILE_THREADS * TILES + 32;
	static constexpr int each = TILES == 1 ? 2 : 1; /* of a multiprocessor */
	static constexpr uint32_t ring = TILES == 1 ? 64 << 10 : 192 << 10; /* bytes of shared memory for pages */
};

/* Bytes. */
template <class T, int DIM, int TILES> struct hopper_sizes {
	static constexpr uint32_t page = ATTENTION_PAGE * DIM * sizeof(T); /* keys, or values, of a KV head */
	static constexpr uint32_t stages = hopper_blocks<TILES>::ring / (2 * page); /* of the ring, in number */
	static constexpr uint32_t results = HOPPER_WARPS * 16 * (DIM + HOPPER_PAD + 2) * sizeof(float); /* each warp's o, m, l */
	static constexpr uint32_t shared = stages * (2 * page + 2 * sizeof(mbarrier)) + results + 16;
};

struct hopper_job {
	const void *qkv, *keys, *values; /* pools of the layer: [blocks][kv_heads][64][head_dim], chunks swapped */
	void       *y;
	const struct attention_unit *units; /* [blocks of the grid], then those they lead to */
	const int32_t *tables, *row_sequence;
	const int32_t *rows;                /* of the step, padding included */
	float    *partials, *sums;          /* [rows of heads][head_dim], and (max, sum) of each */
	int32_t  *arrived;                  /* [rows of heads]; zero between launches */
	uint32_t  stride, y_stride, q_heads, kv_heads, group;
	uint32_t  partial_heads;            /* rows of heads of a row's partial results */
	float     scale;
	int       full;                     /* every row sees its whole sequence */
	struct step_mark mark;
};

/* Where things lie in shared memory. */
template <class T, int DIM> struct hopper_shared_parts {
	char     *ring;
	float    *o, *m, *l; /* [HOPPER_WARPS][16][DIM + HOPPER_PAD], [HOPPER_WARPS][16] */
	mbarrier *full, *empty;
	int32_t  *last;
};

template <class T, int DIM, int TILES> __device__ static inline struct hopper_shared_parts<T, DIM> hopper_parts(char *shared)
{
	struct hopper_shared_parts<T, DIM> parts;
	constexpr uint32_t                 stages = hopper_sizes<T, DIM, TILES>::stages;

	parts.ring = shared;
	parts.o = (float *)(shared + stages * 2 * hopper_sizes<T, DIM, TILES>::page);
	parts.m = parts.o + HOPPER_WARPS * 16 * (DIM + HOPPER_PAD);
	parts.l = parts.m + HOPPER_WARPS * 16;
	parts.full = (mbarrier *)(parts.l + HOPPER_WARPS * 16);
	parts.empty = parts.full + stages;
	parts.last = (int32_t *)(parts.empty + stages);
	return parts;
}

/* Has the unit rows, for so many heads? */
template <int TILES> __device__ static inline bool hopper_has_rows(const struct hopper_job *job, const struct attention_unit *unit)
{
	return (uint32_t)unit->pass * 16 * TILES < unit->rows * job->group && unit->head < job->kv_heads;
}

/* ---- The producer ---- */

template <class T, int DIM, int TILES> __device__ static inline void hopper_produce(const struct hopper_job *job,
    const struct hopper_shared_parts<T, DIM> &shared)
{
	constexpr uint32_t    stages = hopper_sizes<T, DIM, TILES>::stages, page_bytes = hopper_sizes<T, DIM, TILES>::page;
	uint32_t              lane = threadIdx.x % 32, brought = 0;
	bool                  waited = false;
	struct attention_unit unit = job->units[blockIdx.x], next = unit;

	for (bool more = unit.runs != 0; more; unit = next) {
		uint32_t pages = (uint32_t)(unit.end - unit.begin + ATTENTION_PAGE - 1) / ATTENTION_PAGE;
		int32_t  old = (unit.context - unit.rows - unit.begin) / ATTENTION_PAGE, mine = 0; /* pages that no row of the step is in */

		more = unit.next >= 0;
		if (more)
			next = job->units[unit.next];
		for (uint32_t p = 0; p < pages && hopper_has_rows<TILES>(job, &unit); p++, brought++) {
			int32_t page;

			if (p % 32 == 0)
				mine = p + lane < pages ? job->tables[unit.table + (int32_t)(p + lane)] : 0;
			page = __shfl_sync(~0u, mine, (int)(p % 32));
			if (!waited && (int32_t)p >= old) {
				dependency_wait();
				waited = true;
			}
			if (lane == 0) {
				uint32_t  stage = brought % stages, left = (uint32_t)(unit.end - unit.begin) - p * ATTENTION_PAGE;
				uint32_t  bytes = (left < ATTENTION_PAGE ? left : (uint32_t)ATTENTION_PAGE) * DIM * (uint32_t)sizeof(T);
				size_t    at = ((size_t)page * job->kv_heads + unit.head) * page_bytes;
				char     *to = shared.ring + stage * 2 * page_bytes;

				if (brought >= stages)
					barrier_wait(&shared.empty[stage], (brought / stages + 1) % 2);
				barrier_expect(&shared.full[stage], 2 * bytes);
				bulk_copy(to, (const char *)job->keys + at, bytes, &shared.full[stage]);
				bulk_copy(to + page_bytes, (const char *)job->values + at, bytes, &shared.full[stage]);
			}
			__syncwarp();
		}
	}
}

/* ---- Consumers ---- */

/* Row ROW of (query, head of the group) of a unit's sequence in an array of rows STRIDE apart. */
__device__ static inline size_t hopper_vector(const struct hopper_job *job, const struct attention_unit *unit, uint32_t row,
    uint32_t stride, uint32_t dim)
{
	uint32_t query = row / job->group, head = unit->head * job->group + row % job->group;

	return (size_t)((uint32_t)unit->first_row + query) * stride + (size_t)head * dim;
}

/* o [16, DIM] += p [16, 16] · v for tokens [TOKEN, TOKEN + 16) of a page of which COUNT are there. */
template <class T, int DIM> __device__ static inline void hopper_values(const uint32_t p[4], uint32_t values, uint32_t token,
    uint32_t count, float o[DIM / 8][4])
{
	uint32_t lane = threadIdx.x % 32, row = token + lane / 8 % 2 * 8 + lane % 8, masks[2];

	for (uint32_t i = 0; i < 2; i++) { /* of the two tokens that a lane has of each eight */
		uint32_t first = token + i * 8 + lane % 4 * 2;

		masks[i] = (first < count ? 0xffff : 0) | (first + 1 < count ? 0xffff0000 : 0);
	}
#pragma unroll
	for (int d = 0; d < DIM / 16; d++) {
		uint32_t b[4];

		ldmatrix_x4_trans(b, values + tile_at<DIM>(row, (uint32_t)d * 2 + lane / 16));
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i] &= masks[i % 2];
		mma_m16n8k16<T>(o[2 * d], p, b);
		mma_m16n8k16<T>(o[2 * d + 1], p, b + 2);
	}
}

/* Four columns of as many rows of a tile as each of THREADS threads has. */
template <int DIM, int THREADS> struct hopper_columns {
	static constexpr uint32_t lanes = DIM / 4, apart = THREADS / lanes, each = 16 / apart;
};

template <class T> __device__ static inline void hopper_store(const struct hopper_job *job, const struct attention_unit *unit,
    uint32_t row, uint32_t dim, uint32_t column, const float v[4], float l)
{
	uint2 words;

	words.x = pair_of<T>(v[0] / l, v[1] / l);
	words.y = pair_of<T>(v[2] / l, v[3] / l);
	*(uint2 *)((T *)job->y + hopper_vector(job, unit, row, job->y_stride, dim) + column) = words;
}

/* The four warps' results of the tile whose first row is ROW, in order of warps: into y, or partial results from AT on.  By
 * all consumers. */
template <class T, int DIM, int TILES> __device__ static inline void hopper_reduce(const struct hopper_job *job,
    const struct attention_unit *unit, const struct hopper_shared_parts<T, DIM> &shared, uint32_t row, uint32_t live, size_t at)
{
	typedef hopper_columns<DIM, HOPPER_TILE_THREADS * TILES> columns;
	uint32_t column = threadIdx.x % columns::lanes * 4;

#pragma unroll
	for (uint32_t i = 0; i < columns::each; i++) {
		uint32_t r = threadIdx.x / columns::lanes + i * columns::apart;
		float    most = -INFINITY, weights = 0, sum[4] = { 0, 0, 0, 0 };

		if (r >= live)
			continue;
#pragma unroll
		for (int w = 0; w < HOPPER_WARPS; w++)
			most = fmaxf(most, shared.m[w * 16 + r]);
#pragma unroll
		for (int w = 0; w < HOPPER_WARPS; w++) {
			float  factor = most > -INFINITY ? exp2f(shared.m[w * 16 + r] - most) : 0;
			float4 v = *(const float4 *)(shared.o + (w * 16 + r) * (DIM + HOPPER_PAD) + column);

			weights += shared.l[w * 16 + r] * factor;
			sum[0] += v.x * factor;
			sum[1] += v.y * factor;
			sum[2] += v.z * factor;
			sum[3] += v.w * factor;
		}
		if (unit->runs == 1) {
			hopper_store<T>(job, unit, row + r, DIM, column, sum, weights);
			continue;
		}
		*(float4 *)(job->partials + (at + r) * DIM + column) = make_float4(sum[0], sum[1], sum[2], sum[3]);
		if (column == 0)
			*(float2 *)(job->sums + 2 * (at + r)) = make_float2(most, weights);
	}
}

/* COUNT partial results STEP rows apart from FIRST on become one, in their order: in place of the first, or y (IN_PLACE of
 * false).  Of a tile whose first row is ROW, by its threads.  Lanes hold a row's (m, l) of one partial result each. */
template <class T, int DIM> __device__ static inline void hopper_combine(const struct hopper_job *job,
    const struct attention_unit *unit, uint32_t row, uint32_t live, size_t first, size_t step, uint32_t count, bool in_place)
{
	typedef hopper_columns<DIM, HOPPER_TILE_THREADS> columns;
	uint32_t column = threadIdx.x % columns::lanes * 4, lane = threadIdx.x % 32;
	uint32_t mine = threadIdx.x % HOPPER_TILE_THREADS / columns::lanes;
	float    m[columns::each], l[columns::each], acc[columns::each][4], most[columns::each];

#pragma unroll
	for (uint32_t i = 0; i < columns::each; i++) {
		uint32_t r = mine + i * columns::apart, of = lane % HOPPER_FAN;
		float2   sum = make_float2(-INFINITY, 0);

		if (r < live && of < count)
			sum = __ldcg((const float2 *)job->sums + first + of * step + r);
		m[i] = sum.x;
		l[i] = sum.y;
		for (int c = 0; c < 4; c++)
			acc[i][c] = 0;
	}
#pragma unroll
	for (uint32_t i = 0; i < columns::each; i++) {
		most[i] = m[i];
		for (int o = HOPPER_FAN / 2; o; o >>= 1)
			most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], o));
		m[i] = most[i] > -INFINITY ? exp2f(m[i] - most[i]) : 0; /* maxima become factors */
		l[i] *= m[i];
		for (int o = HOPPER_FAN / 2; o; o >>= 1)
			l[i] += __shfl_xor_sync(~0u, l[i], o);
	}
	for (uint32_t j = 0; j < count; j += HOPPER_UNROLL) {
		float4 v[HOPPER_UNROLL][columns::each];

#pragma unroll
		for (uint32_t n = 0; n < HOPPER_UNROLL; n++)
#pragma unroll
			for (uint32_t i = 0; i < columns::each; i++) {
				uint32_t r = mine + i * columns::apart;

				v[n][i] = make_float4(0, 0, 0, 0);
				if (j + n < count && r < live)
					v[n][i] = __ldcg((const float4 *)(job->partials + (first + (j + n) * step + r) * DIM + column));
			}
#pragma unroll
		for (uint32_t n = 0; n < HOPPER_UNROLL; n++)
#pragma unroll
			for (uint32_t i = 0; i < columns::each; i++) {
				/* Factors of partial results that are not there are 0, as what was loaded for them. */
				float factor = __shfl_sync(~0u, m[i], (int)((j + n) % HOPPER_FAN + lane / HOPPER_FAN * HOPPER_FAN));

				acc[i][0] += v[n][i].x * factor;
				acc[i][1] += v[n][i].y * factor;
				acc[i][2] += v[n][i].z * factor;
				acc[i][3] += v[n][i].w * factor;
			}
	}
#pragma unroll
	for (uint32_t i = 0; i < columns::each; i++) {
		uint32_t r = mine + i * columns::apart;

		if (r >= live)
			continue;
		if (!in_place) {
			hopper_store<T>(job, unit, row + r, DIM, column, acc[i], l[i]);
			continue;
		}
		*(float4 *)(job->partials + (first + r) * DIM + column) = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
		if (column == 0)
			*(float2 *)(job->sums + 2 * (first + r)) = make_float2(most[i], l[i]);
	}
}

/* Whether this block is the last of COUNT to come to COUNTER, which then is 0 again; what the others wrote before is seen. */
template <int TILES> __device__ static inline bool hopper_arrive(int32_t *counter, uint32_t count, int32_t *last)
{
	bool ret;

	__threadfence();
	named_barrier_sync(1, HOPPER_TILE_THREADS * TILES);
	if (threadIdx.x == 0) {
		*last = atomicAdd(counter, 1) == (int32_t)count - 1;
		if (*last)
			*counter = 0;
	}
	named_barrier_sync(1, HOPPER_TILE_THREADS * TILES);
	ret = *last;
	__threadfence();
	return ret;
}

/* A run's results are there: puts together what nobody else is still working on. */
template <class T, int DIM, int TILES> __device__ static inline void hopper_finish(const struct hopper_job *job,
    const struct attention_unit *unit, const struct hopper_shared_parts<T, DIM> &shared)
{
	uint32_t count = unit->rows * job->group, row = (uint32_t)unit->pass * 16 * TILES;
	uint32_t mine = threadIdx.x / HOPPER_TILE_THREADS * 16; /* first row of this thread's tile */
	uint32_t live = row + mine >= count ? 0 : count - row - mine < 16 ? count - row - mine : 16;
	uint32_t run = (uint32_t)unit->begin / attention_run_own((uint32_t)unit->context), fan = run / HOPPER_FAN;
	uint32_t fans = (unit->runs + HOPPER_FAN - 1u) / HOPPER_FAN, members = unit->runs - fan * HOPPER_FAN;
	size_t   step = (size_t)unit->rows * job->partial_heads;
	size_t   first = (size_t)unit->first + (size_t)unit->head * count + row, group = first + fan * HOPPER_FAN * step;

	members = members < HOPPER_FAN ? members : (uint32_t)HOPPER_FAN;
	if (!hopper_arrive<TILES>(job->arrived + group, members, shared.last))
		return;
	if (live)
		hopper_combine<T, DIM>(job, unit, row + mine, live, group + mine, step, members, fans > 1);
	/* The counter of the second run is that of no FAN. */
	if (fans == 1 || !hopper_arrive<TILES>(job->arrived + first + step, fans, shared.last))
		return;
	if (live)
		hopper_combine<T, DIM>(job, unit, row + mine, live, first + mine, HOPPER_FAN * step, fans, false);
}

/* A unit: pages as they come, the warps' results together, then the runs'.  BROUGHT counts pages of all units. */
template <class T, int DIM, int TILES> __device__ static inline void hopper_consume(const struct hopper_job *job,
    const struct attention_unit *unit, const struct hopper_shared_parts<T, DIM> &shared, uint32_t *brought)
{
	constexpr uint32_t   stages = hopper_sizes<T, DIM, TILES>::stages, page_bytes = hopper_sizes<T, DIM, TILES>::page;
	struct softmax_state state = { { -INFINITY, -INFINITY }, { 0, 0 } };
	uint32_t lane = threadIdx.x % 32, tile = threadIdx.x / HOPPER_TILE_THREADS, warp = threadIdx.x / 32 % HOPPER_WARPS;
	uint32_t count = unit->rows * job->group, row = (uint32_t)unit->pass * 16 * TILES, q[DIM / 16][4];
	float    o[DIM / 8][4], factor = job->scale * 1.44269504088896f;
	int32_t  limit[2];
	const T *from[2];
	size_t   at;

#pragma unroll
	for (int r = 0; r < 2; r++) {
		uint32_t mine = row + tile * 16 + lane / 4 + 8 * (uint32_t)r;
		bool     there = mine < count;

		limit[r] = !there ? 0 : job->full ? unit->context : unit->context - unit->rows + (int32_t)(mine / job->group) + 1;
		limit[r] = limit[r] < unit->end ? limit[r] : unit->end;
		from[r] = there ? (const T *)job->qkv + hopper_vector(job, unit, mine, job->stride, DIM) : NULL;
	}
	load_query<T, DIM>(from[0], from[1], q);
#pragma unroll
	for (int d = 0; d < DIM / 8; d++)
		for (int i = 0; i < 4; i++)
			o[d][i] = 0;
	for (int32_t first = unit->begin; first < unit->end; first += ATTENTION_PAGE, ++*brought) {
		uint32_t stage = *brought % stages, keys = shared_address(shared.ring + stage * 2 * page_bytes), p[4];
		float    s[2][4];

		barrier_wait(&shared.full[stage], *brought / stages % 2); /* by every warp, every time: none falls a phase behind */
		if (row + tile * 16 < count) {
			multiply_keys<T, DIM>(q, keys, warp * 16, s);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				int32_t token = first + (int32_t)(warp * 16 + (uint32_t)i / 4 * 8 + lane % 4 * 2) + i % 2;
				float  *score = &s[i / 4][i % 4];

				*score = token < limit[i / 2 % 2] ? *score * factor : -INFINITY;
			}
			softmax_step<2, DIM / 8>(s, o, &state);
#pragma unroll
			for (int i = 0; i < 4; i++)
				p[i] = pair_of<T>(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
			hopper_values<T, DIM>(p, keys + page_bytes, warp * 16, (uint32_t)(unit->end - first), o);
		}
		__syncwarp();
		if (lane == 0)
			barrier_arrive(&shared.empty[stage]);
	}
	at = (size_t)unit->first + (size_t)((uint32_t)unit->begin / attention_run_own((uint32_t)unit->context)) * unit->rows *
	    job->partial_heads + (size_t)unit->head * count + row;
#pragma unroll
	for (int r = 0; r < 2; r++) {
		state.l[r] += __shfl_xor_sync(~0u, state.l[r], 1);
		state.l[r] += __shfl_xor_sync(~0u, state.l[r], 2);
	}
	for (uint32_t t = 0; t < TILES && row + 16 * t < count; t++) { /* shared memory has room for one */
		if (t > 0)
			named_barrier_sync(1, HOPPER_TILE_THREADS * TILES);
#pragma unroll
		for (int r = 0; r < 2; r++) {
			uint32_t to = warp * 16 + lane / 4 + 8 * (uint32_t)r;

			if (tile != t)
				break;
			if (lane % 4 == 0) {
				shared.m[to] = state.m[r];
				shared.l[to] = state.l[r];
			}
#pragma unroll
			for (int d = 0; d < DIM / 8; d++)
				*(float2 *)(shared.o + to * (DIM + HOPPER_PAD) + (uint32_t)d * 8 + lane % 4 * 2) =
				    make_float2(o[d][2 * r], o[d][2 * r + 1]);
		}
		named_barrier_sync(1, HOPPER_TILE_THREADS * TILES);
		hopper_reduce<T, DIM, TILES>(job, unit, shared, row + 16 * t, count - row - 16 * t < 16 ? count - row - 16 * t : 16,
		    at + 16 * t);
	}
	if (unit->runs > 1)
		hopper_finish<T, DIM, TILES>(job, unit, shared);
	named_barrier_sync(1, HOPPER_TILE_THREADS * TILES); /* shared results are free */
}

/* As many blocks as `units` were planned for. */
template <class T, int DIM, int TILES> static __global__ void __launch_bounds__(hopper_blocks<TILES>::threads,
    hopper_blocks<TILES>::each) hopper_kernel(struct hopper_job job)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	constexpr uint32_t                 consumers = HOPPER_TILE_THREADS * TILES;
	struct hopper_shared_parts<T, DIM> shared = hopper_parts<T, DIM, TILES>(shared_memory());
	uint32_t                           brought = 0;

	if (threadIdx.x == 0) {
		for (uint32_t s = 0; s < hopper_sizes<T, DIM, TILES>::stages; s++) {
			barrier_init(&shared.full[s], 1);
			barrier_init(&shared.empty[s], HOPPER_WARPS * TILES);
		}
		fence_barrier_init();
	}
	__syncthreads();
	dependents_launch();
	if (threadIdx.x >= consumers) {
		hopper_produce<T, DIM, TILES>(&job, shared);
		return;
	}
	dependency_wait();
	mark_begin(job.mark);
	/* Rows of padding get zeroes: what they hold must not be NaN for ever. */
	for (uint32_t row = blockIdx.x; row < (uint32_t)*job.rows; row += gridDim.x)
		for (uint32_t i = threadIdx.x; job.row_sequence[row] < 0 && i < job.q_heads * DIM; i += consumers)
			((T *)job.y)[(size_t)row * job.y_stride + i] = from_float<T>(0);
	for (int32_t u = (int32_t)blockIdx.x; u >= 0;) {
		struct attention_unit unit = job.units[u];

		if (unit.runs == 0)
			break;
		if (hopper_has_rows<TILES>(&job, &unit))
			hopper_consume<T, DIM, TILES>(&job, &unit, shared, &brought);
		u = unit.next;
	}
#endif
}

#endif
