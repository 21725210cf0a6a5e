/* attention_hopper.cuh: decode attention that reads pages with bulk copies (sm_90): one to eight rows of a sequence.
 *
 * A block stays on each multiprocessor and goes through its units (attention_plan.h).  One warp brings pages of 64 tokens, keys
 * and values of a KV head in one copy each, into a ring that fills shared memory.  Eight warps take two pages at a time, for a
 * pass of one or two tiles of 16 rows of (query, head of the group):
 *
 *      producer     units, their q ─► [ slot ] [ slot ] [ slot ]; block tables ─► [ K | V ] [ K | V ] …   a ring of pages
 *      warp w       tokens 16w…16w + 15 of 128: s = q kᵀ ─► its maxima ─► (barrier) ─► p = 2^(s − m), to shared memory ─► (barrier)
 *      warp w       columns DIM/8 · w…: o += p v over all 128 tokens
 *      run          o / l into y if it is the only one, else a partial result (m, l, o)
 *      arriver      counts runs of which all has been written: a round trip to L2, while the others are in the next unit
 *      last block of FAN runs to arrive: these in their order; the last of those, of the whole sequence: the same ─► y
 *
 * Warps share scores and divide columns, so that no warp has more than its own columns of o: a run ends without putting warps'
 * results together, few registers hold two tiles, and whether a pass has one or two changes no bit.  What is slow (a round trip
 * to memory) has been asked for a unit ahead, or is waited for a unit later; the ring covers what is left.
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
	HOPPER_WARPS = 8, HOPPER_CONSUMERS = 32 * HOPPER_WARPS,
	HOPPER_THREADS = HOPPER_CONSUMERS + 64, /* and the producer's warp, and the arriver's */
	HOPPER_TOKENS = 16 * HOPPER_WARPS,      /* at a time: two pages */
	HOPPER_SLOTS = 3,                       /* units that wait for the last word about them, are worked on, and come next */
	HOPPER_FAN = 16,                        /* runs that are put together at once */
	HOPPER_UNROLL = 8,                      /* of them, loads of so many are under way */
	HOPPER_GROUP_MAX = 32                   /* query heads of a KV head */
};
static_assert(HOPPER_TOKENS == 2 * ATTENTION_PAGE, "warps 0 to 3 have the first page, the others the second");

/* Bytes. */
template <class T, int DIM, int TILES> struct hopper_sizes {
	static constexpr uint32_t page = ATTENTION_PAGE * DIM * sizeof(T); /* keys, or values, of a KV head */
	static constexpr uint32_t stages = (TILES == 1 ? 192 << 10 : 160 << 10) / (2 * page); /* of the ring, in number */
	static constexpr uint32_t q_row = DIM * sizeof(T) + 16; /* eight of them lie in different banks */
	static constexpr uint32_t slot = 64 + 16 * TILES * q_row; /* a unit and its q */
	static constexpr uint32_t weights = 16 * TILES * HOPPER_TOKENS * sizeof(T);
	static constexpr uint32_t words = 16 * TILES * HOPPER_WARPS * sizeof(float); /* one of each row and warp */
	static constexpr uint32_t shared = stages * 2 * page + HOPPER_SLOTS * slot + weights + 2 * words +
	    (2 * stages + 2 * HOPPER_SLOTS + 4) * sizeof(mbarrier) + 16;
};
static_assert(sizeof(struct attention_unit) <= 64, "a slot has 64 bytes for a unit");

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
struct hopper_shared_parts {
	char     *ring, *slots, *weights; /* weights [tile][16][HOPPER_TOKENS], chunks swapped as in a page */
	float    *maxima, *sums;          /* [rows of the pass][HOPPER_WARPS] */
	mbarrier *full, *empty;           /* pages, [stages] */
	mbarrier *known, *forgotten;      /* units, [HOPPER_SLOTS] */
	mbarrier *stored, *decided;       /* partial results, and whether they were the last: [2] */
	int32_t  *last;                   /* [2], and one for the consumers' own use */
};

template <class T, int DIM, int TILES> __device__ static inline struct hopper_shared_parts hopper_parts(char *shared)
{
	typedef hopper_sizes<T, DIM, TILES> sizes;
	struct hopper_shared_parts          parts;

	parts.ring = shared;
	parts.slots = parts.ring + sizes::stages * 2 * sizes::page;
	parts.weights = parts.slots + HOPPER_SLOTS * sizes::slot;
	parts.maxima = (float *)(parts.weights + sizes::weights);
	parts.sums = parts.maxima + sizes::words / sizeof(float);
	parts.full = (mbarrier *)(parts.sums + sizes::words / sizeof(float));
	parts.empty = parts.full + sizes::stages;
	parts.known = parts.empty + sizes::stages;
	parts.forgotten = parts.known + HOPPER_SLOTS;
	parts.stored = parts.forgotten + HOPPER_SLOTS;
	parts.decided = parts.stored + 2;
	parts.last = (int32_t *)(parts.decided + 2);
	return parts;
}

/* Has the unit rows, for so many heads? */
template <int TILES> __device__ static inline bool hopper_has_rows(const struct hopper_job *job, const struct attention_unit *unit)
{
	return (uint32_t)unit->pass * 16 * TILES < unit->rows * job->group && unit->head < job->kv_heads;
}

/* Rows of the pass that are there. */
template <int TILES> __device__ static inline uint32_t hopper_live(const struct hopper_job *job, const struct attention_unit *unit)
{
	uint32_t left = unit->rows * job->group - (uint32_t)unit->pass * 16 * TILES;

	return left < 16 * TILES ? left : 16 * TILES;
}

/* Row ROW of (query, head of the group) of a unit's sequence in an array of rows STRIDE apart. */
__device__ static inline size_t hopper_vector(const struct hopper_job *job, const struct attention_unit *unit, uint32_t row,
    uint32_t stride, uint32_t dim)
{
	uint32_t query = row / job->group, head = unit->head * job->group + row % job->group;

	return (size_t)((uint32_t)unit->first_row + query) * stride + (size_t)head * dim;
}

/* ---- The producer ---- */

/* The unit and its q into slot NUMBER; a unit of no runs, without q, is the end.  By the whole warp. */
template <class T, int DIM, int TILES> __device__ static inline void hopper_tell(const struct hopper_job *job,
    const struct hopper_shared_parts &shared, const struct attention_unit *unit, uint32_t number)
{
	typedef hopper_sizes<T, DIM, TILES> sizes;
	uint32_t slot = number % HOPPER_SLOTS, lane = threadIdx.x % 32, rows = unit->runs ? hopper_live<TILES>(job, unit) : 0;
	char    *to = shared.slots + slot * sizes::slot;

	if (number >= HOPPER_SLOTS)
		barrier_wait(&shared.forgotten[slot], (number / HOPPER_SLOTS + 1) % 2);
	if (lane == 0) {
		*(struct attention_unit *)to = *unit;
		barrier_expect(&shared.known[slot], rows * DIM * (uint32_t)sizeof(T));
	}
	__syncwarp();
	if (lane < rows)
		bulk_copy(to + 64 + lane * sizes::q_row, (const T *)job->qkv + hopper_vector(job, unit,
		    (uint32_t)unit->pass * 16 * TILES + lane, job->stride, DIM), DIM * sizeof(T), &shared.known[slot]);
}

/* Blocks of the first 32 pages of a unit, one a lane. */
__device__ static inline int32_t hopper_blocks(const struct hopper_job *job, const struct attention_unit *unit, uint32_t first)
{
	uint32_t at = first + threadIdx.x % 32, pages = (uint32_t)(unit->end - unit->begin + ATTENTION_PAGE - 1) / ATTENTION_PAGE;

	return at < pages ? job->tables[unit->table + (int32_t)at] : 0;
}

template <class T, int DIM, int TILES> __device__ static inline void hopper_produce(const struct hopper_job *job,
    const struct hopper_shared_parts &shared)
{
	typedef hopper_sizes<T, DIM, TILES> sizes;
	uint32_t              lane = threadIdx.x % 32, brought = 0, told = 0;
	bool                  waited = false;
	struct attention_unit unit = job->units[blockIdx.x], next = unit;
	int32_t               mine, ahead = hopper_blocks(job, &unit, 0);

	for (bool more = unit.runs != 0; more; unit = next) {
		uint32_t pages = (uint32_t)(unit.end - unit.begin + ATTENTION_PAGE - 1) / ATTENTION_PAGE;
		int32_t  old = (unit.context - unit.rows - unit.begin) / ATTENTION_PAGE; /* pages that no row of the step is in */
		bool     known = false;

		more = unit.next >= 0;
		if (more)
			next = job->units[unit.next];
		mine = ahead;
		for (uint32_t p = 0; p < pages && hopper_has_rows<TILES>(job, &unit); p++, brought++) {
			int32_t page;

			if (p % 32 == 0 && p > 0)
				mine = hopper_blocks(job, &unit, p);
			page = __shfl_sync(~0u, mine, (int)(p % 32));
			if (!known && (waited || (int32_t)p >= old || p == sizes::stages)) {
				if (!waited)
					dependency_wait();
				known = waited = true;
				hopper_tell<T, DIM, TILES>(job, shared, &unit, told++);
			}
			if (lane == 0) {
				uint32_t  stage = brought % sizes::stages, left = (uint32_t)(unit.end - unit.begin) - p * ATTENTION_PAGE;
				uint32_t  bytes = (left < ATTENTION_PAGE ? left : (uint32_t)ATTENTION_PAGE) * DIM * (uint32_t)sizeof(T);
				size_t    at = ((size_t)page * job->kv_heads + unit.head) * sizes::page;
				char     *to = shared.ring + stage * 2 * sizes::page;

				if (brought >= sizes::stages)
					barrier_wait(&shared.empty[stage], (brought / sizes::stages + 1) % 2);
				barrier_expect(&shared.full[stage], 2 * bytes);
				bulk_copy(to, (const char *)job->keys + at, bytes, &shared.full[stage]);
				bulk_copy(to + sizes::page, (const char *)job->values + at, bytes, &shared.full[stage]);
			}
			__syncwarp();
			if (p + 1 == pages && !known) {
				dependency_wait();
				known = waited = true;
				hopper_tell<T, DIM, TILES>(job, shared, &unit, told++);
			}
		}
		if (more)
			ahead = hopper_blocks(job, &next, 0);
	}
	unit.runs = 0;
	hopper_tell<T, DIM, TILES>(job, shared, &unit, told);
}

/* ---- Consumers ---- */

/* A run and those that it is put together with, in rows of heads of the partial results. */
struct hopper_run {
	uint32_t members, fans; /* runs of its FAN; how many of those the sequence has */
	size_t   step;          /* from a run to the next */
	size_t   first, group, at; /* of the sequence's first run, of its FAN's, and its own */
};

template <int TILES> __device__ static inline struct hopper_run hopper_run_of(const struct hopper_job *job,
    const struct attention_unit *unit)
{
	uint32_t          run = (uint32_t)unit->begin / attention_run_own((uint32_t)unit->context), fan = run / HOPPER_FAN;
	struct hopper_run ret;

	ret.fans = (unit->runs + HOPPER_FAN - 1u) / HOPPER_FAN;
	ret.members = unit->runs - fan * HOPPER_FAN;
	ret.members = ret.members < HOPPER_FAN ? ret.members : (uint32_t)HOPPER_FAN;
	ret.step = (size_t)unit->rows * job->partial_heads;
	ret.first = (size_t)unit->first + (size_t)unit->head * unit->rows * job->group + (size_t)unit->pass * 16 * TILES;
	ret.group = ret.first + fan * HOPPER_FAN * ret.step;
	ret.at = ret.first + run * ret.step;
	return ret;
}

/* Four columns of as many rows of a tile as each consumer has. */
template <int DIM> struct hopper_columns {
	static constexpr uint32_t lanes = DIM / 4, apart = HOPPER_CONSUMERS / lanes, each = 16 / apart;
};

/* COUNT partial results STEP rows apart from FIRST on become one, in their order: in place of the first, or y (IN_PLACE of
 * false).  Of a tile whose first row is ROW, by all consumers.  Lanes hold a row's (m, l) of one partial result each. */
template <class T, int DIM> __device__ static inline void hopper_combine(const struct hopper_job *job,
    const struct attention_unit *unit, uint32_t row, uint32_t live, size_t first, size_t step, uint32_t count, bool in_place)
{
	typedef hopper_columns<DIM> columns;
	uint32_t column = threadIdx.x % columns::lanes * 4, lane = threadIdx.x % 32;
	uint32_t mine = threadIdx.x / columns::lanes;
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
		m[i] = most[i] > -INFINITY ? exp2_approximate(m[i] - most[i]) : 0; /* maxima become factors */
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
			uint2 words;

			words.x = pair_of<T>(acc[i][0] / l[i], acc[i][1] / l[i]);
			words.y = pair_of<T>(acc[i][2] / l[i], acc[i][3] / l[i]);
			*(uint2 *)((T *)job->y + hopper_vector(job, unit, row + r, job->y_stride, DIM) + column) = words;
			continue;
		}
		*(float4 *)(job->partials + (first + r) * DIM + column) = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
		if (column == 0)
			*(float2 *)(job->sums + 2 * (first + r)) = make_float2(most[i], l[i]);
	}
}

/* Whether this block is the last of COUNT to come to COUNTER, which then is 0 again; what the others wrote before is seen. */
__device__ static inline bool hopper_arrive(int32_t *counter, uint32_t count)
{
	bool last;

	__threadfence();
	last = atomicAdd(counter, 1) == (int32_t)count - 1;
	if (last)
		*counter = 0;
	__threadfence();
	return last;
}

/* What is left to do for a unit whose run is one of several, the HANDED-th of this block: puts together what nobody else is
 * still working on. */
template <class T, int DIM, int TILES> __device__ static inline void hopper_finish(const struct hopper_job *job,
    const struct attention_unit *unit, const struct hopper_shared_parts &shared, uint32_t handed)
{
	struct hopper_run run = hopper_run_of<TILES>(job, unit);
	uint32_t          row = (uint32_t)unit->pass * 16 * TILES, live = hopper_live<TILES>(job, unit);

	barrier_wait(&shared.decided[handed % 2], handed / 2 % 2);
	if (!shared.last[handed % 2])
		return;
	for (uint32_t t = 0; t < live; t += 16)
		hopper_combine<T, DIM>(job, unit, row + t, live - t, run.group + t, run.step, run.members, run.fans > 1);
	if (run.fans == 1)
		return;
	named_barrier_sync(1, HOPPER_CONSUMERS);
	if (threadIdx.x == 0) /* the counter of the second run is that of no FAN */
		shared.last[2] = hopper_arrive(job->arrived + run.first + run.step, run.fans);
	named_barrier_sync(1, HOPPER_CONSUMERS);
	for (uint32_t t = 0; t < live && shared.last[2]; t += 16)
		hopper_combine<T, DIM>(job, unit, row + t, live - t, run.first + t, HOPPER_FAN * run.step, run.fans, false);
}

/* What a warp knows of a unit: all rows' scores of its tokens, and its columns of the results.  m and l are those of rows g and
 * g + 8 of a tile; sums l are of each lane's own tokens. */
template <int DIM, int TILES> struct hopper_state {
	uint32_t q[TILES][DIM / 16][4];
	float    o[TILES][DIM / 64][4], m[TILES][2], l[TILES][2];
	int32_t  limit[TILES][2]; /* tokens that a row sees end here */
};

template <class T, int DIM, int TILES> __device__ static inline void hopper_begin(const struct hopper_job *job,
    const struct attention_unit *unit, uint32_t q_at, struct hopper_state<DIM, TILES> *state)
{
	uint32_t lane = threadIdx.x % 32, live = hopper_live<TILES>(job, unit);

#pragma unroll
	for (uint32_t t = 0; t < TILES; t++) {
#pragma unroll
		for (uint32_t r = 0; r < 2; r++) {
			uint32_t mine = 16 * t + lane / 4 + 8 * r;
			int32_t  limit = unit->context;

			if (mine >= live)
				limit = 0;
			else if (!job->full)
				limit += 1 - unit->rows + (int32_t)(((uint32_t)unit->pass * 16 * TILES + mine) / job->group);
			state->limit[t][r] = limit < unit->end ? limit : unit->end;
			state->m[t][r] = -INFINITY;
			state->l[t][r] = 0;
		}
#pragma unroll
		for (uint32_t k = 0; k < DIM / 16; k++) /* rows that are not there: anything, their scores are masked */
			ldmatrix_x4(state->q[t][k], q_at + (16 * t + lane % 16) * hopper_sizes<T, DIM, TILES>::q_row +
			    (2 * k + lane / 16) * 16);
#pragma unroll
		for (uint32_t d = 0; d < DIM / 64; d++)
			for (uint32_t i = 0; i < 4; i++)
				state->o[t][d][i] = 0;
	}
}

/* s of the warp's 16 tokens, of which FIRST is the context's token that lies 16 · warp before; KEYS: their page, 0: there is
 * none.  Maxima go to shared memory. */
template <class T, int DIM, int TILES> __device__ static inline void hopper_scores(const struct hopper_shared_parts &shared,
    const struct hopper_state<DIM, TILES> *state, uint32_t keys, int32_t first, float scale, float s[TILES][2][4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = warp % 4 * 16 + lane / 16 * 8 + lane % 8;

#pragma unroll
	for (uint32_t t = 0; t < TILES; t++)
#pragma unroll
		for (uint32_t i = 0; i < 8; i++)
			s[t][i / 4][i % 4] = 0;
	if (keys) {
#pragma unroll
		for (uint32_t k = 0; k < DIM / 16; k++) {
			uint32_t b[4];

			ldmatrix_x4(b, keys + tile_at<DIM>(token, k * 2 + lane / 8 % 2));
#pragma unroll
			for (uint32_t t = 0; t < TILES; t++) {
				mma_m16n8k16<T>(s[t][0], state->q[t][k], b);
				mma_m16n8k16<T>(s[t][1], state->q[t][k], b + 2);
			}
		}
	}
#pragma unroll
	for (uint32_t t = 0; t < TILES; t++)
#pragma unroll
		for (uint32_t r = 0; r < 2; r++) {
			int32_t left = state->limit[t][r] - first - (int32_t)(warp * 16 + lane % 4 * 2); /* from this lane's first token on */
			float   most = -INFINITY;

#pragma unroll
			for (uint32_t i = 0; i < 4; i++) {
				float *score = &s[t][i / 2][2 * r + i % 2];

				*score = left > (int32_t)(i / 2 * 8 + i % 2) ? *score * scale : -INFINITY;
				most = fmaxf(most, *score);
			}
			most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
			most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
			if (lane % 4 == 0)
				shared.maxima[(16 * t + lane / 4 + 8 * r) * HOPPER_WARPS + warp] = most;
		}
}

/* The online softmax: scores become weights in shared memory, by all warps' maxima; O is brought to the new ones. */
template <class T, int DIM, int TILES> __device__ static inline void hopper_weigh(const struct hopper_shared_parts &shared,
    struct hopper_state<DIM, TILES> *state, const float s[TILES][2][4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
	for (uint32_t t = 0; t < TILES; t++)
#pragma unroll
		for (uint32_t r = 0; r < 2; r++) {
			uint32_t mine = 16 * t + lane / 4 + 8 * r;
			float4   a = *(const float4 *)(shared.maxima + mine * HOPPER_WARPS);
			float4   b = *(const float4 *)(shared.maxima + mine * HOPPER_WARPS + 4);
			float    larger = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
			float    base, factor, sum = 0;

			larger = fmaxf(larger, state->m[t][r]);
			/* A row that has seen nothing yet keeps weights of 0, not exp2(−∞ + ∞). */
			base = larger == -INFINITY ? 0 : larger;
			factor = exp2_approximate(state->m[t][r] - base);
			state->m[t][r] = larger;
#pragma unroll
			for (uint32_t j = 0; j < 2; j++) {
				float low = exp2_approximate(s[t][j][2 * r] - base), high = exp2_approximate(s[t][j][2 * r + 1] - base);

				*(uint32_t *)(shared.weights + tile_at<HOPPER_TOKENS>(mine, warp * 2 + j) + lane % 4 * 4) = pair_of<T>(low, high);
				sum += low + high;
			}
			state->l[t][r] = state->l[t][r] * factor + sum;
#pragma unroll
			for (uint32_t d = 0; d < DIM / 64; d++) {
				state->o[t][d][2 * r] *= factor;
				state->o[t][d][2 * r + 1] *= factor;
			}
		}
}

/* o += p · v for 16 · 128 / DIM tokens from TOKEN on, of those COUNT that are there; VALUES are those of the page.  MASKED:
 * some may be missing. */
template <class T, int DIM, int TILES, bool MASKED> __device__ static inline void hopper_values(uint32_t weights, uint32_t values,
    uint32_t token, uint32_t count, struct hopper_state<DIM, TILES> *state)
{
	constexpr uint32_t parts = 128 / DIM; /* of 16 tokens */
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, b[4];

	ldmatrix_x4_trans(b, values + tile_at<DIM>(token % ATTENTION_PAGE + lane % (16 * parts),
	    parts == 1 ? warp * 2 + lane / 16 : warp));
	if (MASKED)
#pragma unroll
		for (uint32_t i = 0; i < 4; i++) { /* of the tokens that a lane has of each eight */
			uint32_t first = token + i % (2 * parts) * 8 + lane % 4 * 2;

			b[i] &= (first < count ? 0xffff : 0) | (first + 1 < count ? 0xffff0000 : 0);
		}
#pragma unroll
	for (uint32_t i = 0; i < parts; i++)
#pragma unroll
		for (uint32_t t = 0; t < TILES; t++) {
			uint32_t p[4];

			ldmatrix_x4(p, weights + tile_at<HOPPER_TOKENS>(16 * t + lane % 16, token / 8 + 2 * i + lane / 16));
			mma_m16n8k16<T>(state->o[t][0], p, b + 2 * i);
			if (parts == 1)
				mma_m16n8k16<T>(state->o[t][DIM / 64 - 1], p, b + 2);
		}
}

/* The result of a run: y if it is the only one, else a partial result. */
template <class T, int DIM, int TILES> __device__ static inline void hopper_store(const struct hopper_job *job,
    const struct attention_unit *unit, const struct hopper_shared_parts &shared, struct hopper_state<DIM, TILES> *state)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, live = hopper_live<TILES>(job, unit);
	uint32_t row = (uint32_t)unit->pass * 16 * TILES, column = warp * (DIM / 8) + lane % 4 * 2;
	size_t   at = hopper_run_of<TILES>(job, unit).at;

#pragma unroll
	for (uint32_t t = 0; t < TILES; t++)
#pragma unroll
		for (uint32_t r = 0; r < 2; r++) {
			float l = state->l[t][r];

			l += __shfl_xor_sync(~0u, l, 1);
			l += __shfl_xor_sync(~0u, l, 2);
			if (lane % 4 == 0)
				shared.sums[(16 * t + lane / 4 + 8 * r) * HOPPER_WARPS + warp] = l;
		}
	named_barrier_sync(1, HOPPER_CONSUMERS);
#pragma unroll
	for (uint32_t t = 0; t < TILES; t++)
#pragma unroll
		for (uint32_t r = 0; r < 2; r++) {
			uint32_t mine = 16 * t + lane / 4 + 8 * r;
			float    sum = 0, *o = &state->o[t][0][2 * r];

			if (mine >= live)
				continue;
#pragma unroll
			for (uint32_t w = 0; w < HOPPER_WARPS; w++)
				sum += shared.sums[mine * HOPPER_WARPS + w];
			if (unit->runs == 1) {
				T *y = (T *)job->y + hopper_vector(job, unit, row + mine, job->y_stride, DIM) + column;

#pragma unroll
				for (uint32_t d = 0; d < DIM / 64; d++)
					*(uint32_t *)(y + 8 * d) = pair_of<T>(o[4 * d] / sum, o[4 * d + 1] / sum);
				continue;
			}
#pragma unroll
			for (uint32_t d = 0; d < DIM / 64; d++)
				*(float2 *)(job->partials + (at + mine) * DIM + column + 8 * d) = make_float2(o[4 * d], o[4 * d + 1]);
			if (column == 0)
				*(float2 *)(job->sums + 2 * (at + mine)) = make_float2(state->m[t][r], sum);
		}
}

/* Pages of a unit as they come, and the result of its run; q lies at Q_AT.  BROUGHT counts pages of all units. */
template <class T, int DIM, int TILES> __device__ static inline void hopper_consume(const struct hopper_job *job,
    const struct attention_unit *unit, uint32_t q_at, const struct hopper_shared_parts &shared, uint32_t *brought)
{
	typedef hopper_sizes<T, DIM, TILES> sizes;
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, weights = shared_address(shared.weights);
	struct hopper_state<DIM, TILES> state;

	hopper_begin<T, DIM, TILES>(job, unit, q_at, &state);
	for (int32_t first = unit->begin; first < unit->end; first += HOPPER_TOKENS) {
		uint32_t count = (uint32_t)(unit->end - first), pages = count > ATTENTION_PAGE ? 2 : 1, at[2], stage[2];
		float    s[TILES][2][4];

		/* By every warp, every time: none falls a phase behind. */
#pragma unroll
		for (uint32_t p = 0; p < 2; p++) {
			stage[p] = (*brought + p) % sizes::stages;
			at[p] = shared_address(shared.ring + stage[p] * 2 * sizes::page);
			if (p < pages)
				barrier_wait(&shared.full[stage[p]], (*brought + p) / sizes::stages % 2);
		}
		*brought += pages;
		hopper_scores<T, DIM, TILES>(shared, &state, warp / 4 >= pages ? 0 : warp < 4 ? at[0] : at[1], first,
		    job->scale * 1.44269504088896f, s);
		named_barrier_sync(1, HOPPER_CONSUMERS);
		hopper_weigh<T, DIM, TILES>(shared, &state, s);
		named_barrier_sync(1, HOPPER_CONSUMERS);
		if (count >= HOPPER_TOKENS) {
#pragma unroll
			for (uint32_t token = 0; token < HOPPER_TOKENS; token += 16 * 128 / DIM)
				hopper_values<T, DIM, TILES, false>(weights, at[token / ATTENTION_PAGE] + sizes::page, token, count, &state);
		} else {
#pragma unroll 1
			for (uint32_t token = 0; token < count; token += 16 * 128 / DIM)
				hopper_values<T, DIM, TILES, true>(weights, (token < ATTENTION_PAGE ? at[0] : at[1]) + sizes::page, token, count,
				    &state);
		}
		__syncwarp();
		if (lane == 0)
			for (uint32_t p = 0; p < pages; p++)
				barrier_arrive(&shared.empty[stage[p]]);
	}
	hopper_store<T, DIM, TILES>(job, unit, shared, &state);
}

/* All units of the block. */
template <class T, int DIM, int TILES> __device__ static inline void hopper_work(const struct hopper_job *job,
    const struct hopper_shared_parts &shared)
{
	typedef hopper_sizes<T, DIM, TILES> sizes;
	uint32_t lane = threadIdx.x % 32, brought = 0, handed = 0;

	for (uint32_t number = 0, slot = 0, before = 0;; number++, before = slot, slot = (slot + 1) % HOPPER_SLOTS) {
		const struct attention_unit *last = (const struct attention_unit *)(shared.slots + before * sizes::slot);
		struct attention_unit        unit;
		bool                         more;

		barrier_wait(&shared.known[slot], number / HOPPER_SLOTS % 2);
		unit = *(const struct attention_unit *)(shared.slots + slot * sizes::slot);
		more = unit.runs != 0;
		if (more)
			hopper_consume<T, DIM, TILES>(job, &unit, shared_address(shared.slots + slot * sizes::slot + 64), shared, &brought);
		if (more && unit.runs > 1) {
			__syncwarp();
			if (lane == 0)
				barrier_arrive(&shared.stored[handed % 2]);
		}
		if (number > 0) {
			if (last->runs > 1)
				hopper_finish<T, DIM, TILES>(job, last, shared, handed - 1);
			__syncwarp();
			if (lane == 0)
				barrier_arrive(&shared.forgotten[before]);
		}
		if (!more)
			return;
		handed += unit.runs > 1;
	}
}

/* ---- The arriver ---- */

template <class T, int DIM, int TILES> __device__ static inline void hopper_count(const struct hopper_job *job,
    const struct hopper_shared_parts &shared)
{
	uint32_t lane = threadIdx.x % 32, handed = 0;

	/* Rows of padding get zeroes: what they hold must not be NaN for ever. */
	for (uint32_t row = blockIdx.x; row < (uint32_t)*job->rows; row += gridDim.x)
		for (uint32_t i = lane * 8; job->row_sequence[row] < 0 && i < job->q_heads * DIM; i += 32 * 8)
			*(uint4 *)((T *)job->y + (size_t)row * job->y_stride + i) = make_uint4(0, 0, 0, 0);
	for (uint32_t number = 0; lane == 0; number++) {
		uint32_t                     slot = number % HOPPER_SLOTS;
		const struct attention_unit *unit;

		barrier_wait(&shared.known[slot], number / HOPPER_SLOTS % 2);
		unit = (const struct attention_unit *)(shared.slots + slot * hopper_sizes<T, DIM, TILES>::slot);
		if (unit->runs == 0)
			break;
		if (unit->runs > 1) {
			struct hopper_run run = hopper_run_of<TILES>(job, unit);

			barrier_wait(&shared.stored[handed % 2], handed / 2 % 2);
			shared.last[handed % 2] = hopper_arrive(job->arrived + run.group, run.members);
			barrier_arrive(&shared.decided[handed % 2]);
			handed++;
		}
		barrier_arrive(&shared.forgotten[slot]);
	}
}

/* As many blocks as `units` were planned for. */
template <class T, int DIM, int TILES> static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_kernel(struct hopper_job job)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	struct hopper_shared_parts shared = hopper_parts<T, DIM, TILES>(shared_memory());

	if (threadIdx.x == 0) {
		for (uint32_t s = 0; s < hopper_sizes<T, DIM, TILES>::stages; s++) {
			barrier_init(&shared.full[s], 1);
			barrier_init(&shared.empty[s], HOPPER_WARPS);
		}
		for (uint32_t s = 0; s < HOPPER_SLOTS; s++) {
			barrier_init(&shared.known[s], 1);
			barrier_init(&shared.forgotten[s], HOPPER_WARPS + 1);
		}
		for (uint32_t s = 0; s < 2; s++) {
			barrier_init(&shared.stored[s], HOPPER_WARPS);
			barrier_init(&shared.decided[s], 1);
		}
		fence_barrier_init();
	}
	__syncthreads();
	dependents_launch();
	if (threadIdx.x / 32 == HOPPER_WARPS) {
		hopper_produce<T, DIM, TILES>(&job, shared);
		return;
	}
	dependency_wait();
	mark_begin(job.mark);
	if (threadIdx.x / 32 < HOPPER_WARPS)
		hopper_work<T, DIM, TILES>(&job, shared);
	else
		hopper_count<T, DIM, TILES>(&job, shared);
#endif
}

#endif
