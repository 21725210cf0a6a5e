/* attention_hopper.cuh: decode attention that reads pages with bulk copies (sm_90): one to eight rows of a sequence.
 *
 * A block stays on each multiprocessor and goes through its units (attention_plan.h).  One warp brings pages of 64 tokens, keys
 * and values of a KV head in one copy each, into a ring that fills shared memory.  Eight warps take two pages at a time, for a
 * pass of up to 32 rows of (query, head of the group):
 *
 *      producer     block tables ─► [ K | V ] [ K | V ] …       a ring of pages
 *      clerk        units, their q ─► [ slot ] [ slot ] [ slot ]
 *      warp w       tokens 16w…16w + 15 of 128: s = q kᵀ ─► its maxima ─► (barrier) ─► p = 2^(s − m), to shared memory ─► (barrier)
 *      warp w       columns DIM/8 · w…: o += p v over all 128 tokens
 *      run          put together with those of the group before it (attention_plan.h)
 *      unit         o / l into y if it is the only one, else a partial result (m, l, o)
 *      clerk        counts units of which all has been written: a round trip to L2, while the others are in the next unit
 *      last block of a sequence to arrive: partial results in the order of the context ─► y; by two warps that assist, beside
 *                   the next unit's work, or, when there is none, by the eight
 *      or, of units that are shared, each block of the sequence, when it has done its units: waits for all, its columns ─► y
 *
 * Warps share scores and divide columns, so that no warp has more than its own columns of o: a run ends without putting warps'
 * results together, and few registers hold a pass.  How many rows it has changes no bit: in passes of 16 they are the first operand
 * of mma, in others the second, in parts of eight, but what is added up, and in which order, is the same.  What is slow (a round
 * trip to memory) has been asked for a unit ahead, or is waited for a unit later; the ring covers what is left.
 *
 * A block waits for others only when nothing that they could wait for is left to do, and all blocks of the grid are on the
 * device together, since each has a multiprocessor to itself.  Who arrives last varies, what it computes does not.
 * Counters return to 0 for the next launch.
 *
 * Pages lie in the pool as in shared memory, 16-byte chunks of a row swapped by its number (struct cuda_kv, swizzle): whoever
 * writes a row does that, and a page of one head is one contiguous copy without a tensor map.  Of a page that is not full
 * only the rows of the context are copied; what lies behind them in the ring may be anything, NaN too: scores are masked, values
 * become zeroes.
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
	HOPPER_ASSISTANTS = 2,                  /* warps */
	HOPPER_THREADS = HOPPER_CONSUMERS + 64 + 32 * HOPPER_ASSISTANTS, /* the producer's warp and the clerk's among them */
	HOPPER_REGISTERS = 200, HOPPER_REGISTERS_OTHERS = 104, /* of a thread; 168 on average */
	HOPPER_TOKENS = 16 * HOPPER_WARPS,      /* at a time: two pages */
	HOPPER_SLOTS = 3,                       /* units that wait for the last word about them, are worked on, and come next */
	HOPPER_UNROLL = 4,                      /* results whose loads are under way, of those that are put together */
	HOPPER_GROUP_MAX = 32                   /* query heads of a KV head */
};
static_assert(HOPPER_TOKENS == 2 * ATTENTION_PAGE, "warps 0 to 3 have the first page, the others the second");

/* Bytes, for passes of up to 8 · PARTS rows. */
template <class T, int DIM> constexpr uint32_t hopper_q_row = DIM * sizeof(T) + 16; /* eight of them lie in different banks */
template <class T, int DIM, int PARTS> struct hopper_sizes {
	static constexpr uint32_t page = ATTENTION_PAGE * DIM * sizeof(T); /* keys, or values, of a KV head */
	static constexpr uint32_t stages = (PARTS < 4 ? 192 << 10 : 160 << 10) / (2 * page); /* of the ring, in number */
	static constexpr uint32_t q = 64 + 8 * PARTS * 8, slot = q + 8 * PARTS * hopper_q_row<T, DIM>; /* where q lies in a slot */
	static constexpr uint32_t weights = (PARTS == 2 ? 16 : 32) * HOPPER_TOKENS * sizeof(T);
	static constexpr uint32_t words = (PARTS == 2 ? 16 : 32) * HOPPER_WARPS * sizeof(float); /* one of each row and warp */
	static constexpr uint32_t totals = (PARTS < 4 ? 0 : 4 * PARTS) * HOPPER_CONSUMERS * sizeof(float);
	static constexpr uint32_t shared = stages * 2 * page + HOPPER_SLOTS * slot + weights + 2 * words + totals +
	    (2 * stages + 2 * HOPPER_SLOTS + 4) * sizeof(mbarrier) + 16;
};

/* A row of a pass: where it goes in y, in elements, and how many tokens it sees. */
struct hopper_row {
	uint32_t y;
	int32_t  limit; /* 0: the row is not there */
};

/* A unit as the clerk hands it over: with all that takes a division. */
struct hopper_unit {
	struct attention_unit unit;
	size_t                first, at; /* results of the sequence's first unit and of this one, in rows of heads */
	uint32_t              run;       /* tokens */
	uint32_t              grouped;   /* units are groups of runs */
};
static_assert(sizeof(struct hopper_unit) <= 64 && sizeof(struct hopper_row) == 8, "a slot has room for these");

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
	float    *totals;                 /* of a group's runs so far: [floats of a thread][HOPPER_CONSUMERS] */
	mbarrier *full, *empty;           /* pages, [stages] */
	mbarrier *known, *forgotten;      /* units, [HOPPER_SLOTS] */
	mbarrier *stored, *decided;       /* partial results, and whether they were the last: [2] */
	int32_t  *last;                   /* [2] */
};

template <class T, int DIM, int PARTS> __device__ static inline struct hopper_shared_parts hopper_parts(char *shared)
{
	typedef hopper_sizes<T, DIM, PARTS> sizes;
	struct hopper_shared_parts          parts;

	parts.ring = shared;
	parts.slots = parts.ring + sizes::stages * 2 * sizes::page;
	parts.weights = parts.slots + HOPPER_SLOTS * sizes::slot;
	parts.maxima = (float *)(parts.weights + sizes::weights);
	parts.sums = parts.maxima + sizes::words / sizeof(float);
	parts.totals = parts.sums + sizes::words / sizeof(float);
	parts.full = (mbarrier *)(parts.totals + sizes::totals / sizeof(float));
	parts.empty = parts.full + sizes::stages;
	parts.known = parts.empty + sizes::stages;
	parts.forgotten = parts.known + HOPPER_SLOTS;
	parts.stored = parts.forgotten + HOPPER_SLOTS;
	parts.decided = parts.stored + 2;
	parts.last = (int32_t *)(parts.decided + 2);
	return parts;
}

/* The first row of the unit's pass. */
__device__ static inline uint32_t hopper_row_of(const struct attention_unit *unit) { return unit->pass * 16u << unit->wide; }

/* Has the unit rows, for so many heads? */
__device__ static inline bool hopper_has_rows(const struct hopper_job *job, const struct attention_unit *unit)
{
	return hopper_row_of(unit) < unit->rows * job->group && unit->head < job->kv_heads;
}

/* Rows of the pass that are there. */
__device__ static inline uint32_t hopper_live(const struct hopper_job *job, const struct attention_unit *unit)
{
	uint32_t left = unit->rows * job->group - hopper_row_of(unit), most = 16u << unit->wide;

	return left < most ? left : most;
}

/* The block's next unit that has rows; one of no results, if there is none. */
__device__ static inline void hopper_next(const struct hopper_job *job, struct attention_unit *unit)
{
	do {
		if (unit->next < 0)
			unit->results = 0;
		else
			*unit = job->units[unit->next];
	} while (unit->results && !hopper_has_rows(job, unit));
}

__device__ static inline struct attention_unit hopper_first(const struct hopper_job *job)
{
	struct attention_unit unit = job->units[blockIdx.x];

	if (unit.results && !hopper_has_rows(job, &unit))
		hopper_next(job, &unit);
	return unit;
}

/* ---- The producer ---- */

/* Blocks of the first 32 pages of a unit, one a lane. */
__device__ static inline int32_t hopper_blocks(const struct hopper_job *job, const struct attention_unit *unit, uint32_t first)
{
	uint32_t at = first + threadIdx.x % 32, pages = (uint32_t)(unit->end - unit->begin + ATTENTION_PAGE - 1) / ATTENTION_PAGE;

	return at < pages ? job->tables[unit->table + (int32_t)at] : 0;
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_produce(const struct hopper_job *job,
    const struct hopper_shared_parts &shared)
{
	typedef hopper_sizes<T, DIM, PARTS> sizes;
	uint32_t              lane = threadIdx.x % 32, brought = 0;
	uint64_t              policy = cache_evict_first(); /* partial results stay in L2 */
	bool                  waited = false;
	struct attention_unit unit = hopper_first(job), next;
	int32_t               mine, ahead = hopper_blocks(job, &unit, 0);

	for (; unit.results; unit = next) {
		uint32_t pages = (uint32_t)(unit.end - unit.begin + ATTENTION_PAGE - 1) / ATTENTION_PAGE;
		int32_t  old = (unit.context - unit.rows - unit.begin) / ATTENTION_PAGE; /* pages that no row of the step is in */

		next = unit;
		hopper_next(job, &next);
		mine = ahead;
		for (uint32_t p = 0; p < pages; p++, brought++) {
			int32_t page;

			if (p % 32 == 0 && p > 0)
				mine = hopper_blocks(job, &unit, p);
			page = __shfl_sync(~0u, mine, (int)(p % 32));
			if (p + 1 == pages && next.results) /* what `next` is has come meanwhile, unless there is one page */
				ahead = hopper_blocks(job, &next, 0);
			if (!waited && (int32_t)p >= old) {
				dependency_wait();
				waited = true;
			}
			if (lane == 0) {
				uint32_t  stage = brought % sizes::stages, left = (uint32_t)(unit.end - unit.begin) - p * ATTENTION_PAGE;
				uint32_t  bytes = (left < ATTENTION_PAGE ? left : (uint32_t)ATTENTION_PAGE) * DIM * (uint32_t)sizeof(T);
				size_t    at = ((size_t)page * job->kv_heads + unit.head) * sizes::page;
				char     *to = shared.ring + stage * 2 * sizes::page;

				if (brought >= sizes::stages)
					barrier_wait(&shared.empty[stage], (brought / sizes::stages + 1) % 2);
				barrier_expect(&shared.full[stage], 2 * bytes);
				bulk_copy(to, (const char *)job->keys + at, bytes, &shared.full[stage], policy);
				bulk_copy(to + sizes::page, (const char *)job->values + at, bytes, &shared.full[stage], policy);
			}
			__syncwarp();
		}
	}
}

/* ---- Consumers ---- */

/* Two results become one, x · A + y · B: so much is spelled out, to have the same bits wherever it is done.  M becomes the larger
 * maximum. */
__device__ static inline void hopper_factors(float *m, float other, float *a, float *b)
{
	float factor = fmaxf(*m, other) > -INFINITY ? exp2_approximate(-fabsf(__fsub_rn(*m, other))) : 0;

	*a = other > *m ? factor : 1;
	*b = other > *m ? 1 : factor;
	*m = fmaxf(*m, other);
}

__device__ static inline float hopper_sum(float x, float a, float y, float b) { return __fmaf_rn(x, a, __fmul_rn(y, b)); }

/* COUNT results of a sequence, STEP rows apart from FIRST on, for ROWS rows, of which LIVE are there, become y: those of GROUP
 * one after the other, then those of the groups.  By THREADS threads, which have four columns each. */
template <class T, int DIM, int THREADS, int ROWS, int GROUP> __device__ static inline void hopper_combine(
    const struct hopper_job *job, const struct hopper_row *rows, uint32_t live, size_t first, size_t step, uint32_t count)
{
	constexpr uint32_t lanes = DIM / 4, apart = THREADS / lanes, each = (ROWS + apart - 1) / apart;
	uint32_t           column = threadIdx.x % lanes * 4, mine = threadIdx.x % THREADS / lanes;
	float              m[each] = {}, l[each] = {}, o[each][4] = {}; /* of the groups so far */

	for (uint32_t j = 0; j < count; j += HOPPER_UNROLL) {
		float4 v[each][HOPPER_UNROLL];
		float2 sums[each]; /* lanes hold that of one result each */

#pragma unroll
		for (uint32_t i = 0; i < each; i++) {
			uint32_t r = mine + i * apart, of = threadIdx.x % HOPPER_UNROLL;

			sums[i] = make_float2(-INFINITY, 0);
			if (j + of < count && r < live)
				sums[i] = __ldcg((const float2 *)job->sums + first + (j + of) * step + r);
#pragma unroll
			for (uint32_t n = 0; n < HOPPER_UNROLL; n++) {
				v[i][n] = make_float4(0, 0, 0, 0);
				if (j + n < count && r < live)
					v[i][n] = __ldcg((const float4 *)(job->partials + (first + (j + n) * step + r) * DIM + column));
			}
		}
#pragma unroll
		for (uint32_t i = 0; i < each; i++) {
			float so_far = sums[i].x, before, its_a = 0, its_b = 1;

			/* Each lane: the factors of its result and of those of the group before it. */
#pragma unroll
			for (uint32_t n = 1; n < GROUP; n++) {
				before = __shfl_up_sync(~0u, so_far, 1, GROUP);
				if (threadIdx.x % GROUP == n)
					hopper_factors(&before, sums[i].x, &its_a, &its_b);
				so_far = threadIdx.x % GROUP == n ? before : so_far;
			}
#pragma unroll
			for (uint32_t g = 0; g < HOPPER_UNROLL; g += GROUP) {
				uint32_t last = j + g + GROUP <= count ? g + GROUP - 1 : j + g < count ? count - 1 - j : g;
				float    x[4] = { v[i][g].x, v[i][g].y, v[i][g].z, v[i][g].w }, a, b;
				float    its_m = __shfl_sync(~0u, so_far, (int)last, HOPPER_UNROLL);
				float    its_l = __shfl_sync(~0u, sums[i].y, (int)g, HOPPER_UNROLL);

#pragma unroll
				for (uint32_t n = g + 1; n < g + GROUP; n++) {
					bool there = j + n < count;

					a = __shfl_sync(~0u, its_a, (int)n, HOPPER_UNROLL);
					b = __shfl_sync(~0u, its_b, (int)n, HOPPER_UNROLL);
					its_l = there ? hopper_sum(its_l, a, __shfl_sync(~0u, sums[i].y, (int)n, HOPPER_UNROLL), b) : its_l;
					x[0] = there ? hopper_sum(x[0], a, v[i][n].x, b) : x[0];
					x[1] = there ? hopper_sum(x[1], a, v[i][n].y, b) : x[1];
					x[2] = there ? hopper_sum(x[2], a, v[i][n].z, b) : x[2];
					x[3] = there ? hopper_sum(x[3], a, v[i][n].w, b) : x[3];
				}
				if (j + g == 0) {
					m[i] = its_m;
					l[i] = its_l;
					for (int c = 0; c < 4; c++)
						o[i][c] = x[c];
				} else if (j + g < count) {
					hopper_factors(&m[i], its_m, &a, &b);
					l[i] = hopper_sum(l[i], a, its_l, b);
					for (int c = 0; c < 4; c++)
						o[i][c] = hopper_sum(o[i][c], a, x[c], b);
				}
			}
		}
	}
#pragma unroll
	for (uint32_t i = 0; i < each; i++) {
		uint32_t r = mine + i * apart;
		float    part = 1 / l[i];
		uint2    words;

		words.x = pair_of<T>(o[i][0] * part, o[i][1] * part);
		words.y = pair_of<T>(o[i][2] * part, o[i][3] * part);
		if (r < live)
			*(uint2 *)((T *)job->y + rows[r].y + column) = words;
	}
}

/* What is left to do for a unit whose result is one of several, the HANDED-th of this block: if it was the last to arrive,
 * puts them together. */
template <class T, int DIM, int THREADS, int ROWS> __device__ static inline void hopper_finish(const struct hopper_job *job,
    const struct hopper_unit *unit, const struct hopper_shared_parts &shared, uint32_t handed)
{
	const struct hopper_row *rows = (const struct hopper_row *)((const char *)unit + 64);
	uint32_t                 live = hopper_live(job, &unit->unit), count = unit->unit.results;
	size_t                   step = (size_t)unit->unit.rows * job->partial_heads;

	barrier_wait(&shared.decided[handed % 2], handed / 2 % 2);
	if (unit->unit.shared || !shared.last[handed % 2])
		return;
	for (uint32_t r = 0; r < live; r += ROWS)
		if (unit->grouped)
			hopper_combine<T, DIM, THREADS, ROWS, 1>(job, rows + r, live - r, unit->first + r, step, count);
		else
			hopper_combine<T, DIM, THREADS, ROWS, ATTENTION_GROUP>(job, rows + r, live - r, unit->first + r, step, count);
}

/* Where the results of a sequence begin, for the unit's head and pass, in rows of heads. */
__device__ static inline size_t hopper_results(const struct hopper_job *job, const struct attention_unit *unit)
{
	return (size_t)unit->first + (size_t)unit->head * unit->rows * job->group + hopper_row_of(unit);
}

/* Groups of four columns [FROM, END) of the unit's rows, counted through all rows, become y as in hopper_combine; results of a
 * group of GROUP side by side, at SCRATCH.  By all consumers. */
template <class T, int DIM, int GROUP> __device__ static inline void hopper_combine_share(const struct hopper_job *job,
    const struct attention_unit *unit, char *scratch, uint32_t from, uint32_t end)
{
	constexpr uint32_t each = HOPPER_UNROLL / GROUP > 2 ? 2 : 1; /* groups whose loads are under way */
	uint32_t count = unit->results, groups = (count + GROUP - 1) / GROUP, wanted = end - from;
	size_t   first = hopper_results(job, unit), step = (size_t)unit->rows * job->partial_heads;
	float4  *x = (float4 *)scratch; /* [groups][wanted] */
	float2  *sums = (float2 *)(x + wanted * groups);
	float    a, b;

	for (uint32_t task = threadIdx.x; task < wanted * groups; task += each * HOPPER_CONSUMERS) {
		float4 v[each][GROUP];
		float2 its[each][GROUP];

#pragma unroll
		for (uint32_t i = 0; i < each; i++) {
			uint32_t mine = task + i * HOPPER_CONSUMERS, j = mine / wanted * GROUP, at = from + mine % wanted;

#pragma unroll
			for (uint32_t n = 0; n < GROUP; n++)
				if (j + n < count) {
					size_t row = first + (j + n) * step + at / (DIM / 4);

					v[i][n] = __ldcg((const float4 *)(job->partials + row * DIM + at % (DIM / 4) * 4));
					its[i][n] = __ldcg((const float2 *)job->sums + row);
				}
		}
#pragma unroll
		for (uint32_t i = 0; i < each; i++) {
			uint32_t mine = task + i * HOPPER_CONSUMERS, j = mine / wanted * GROUP;

			if (j >= count)
				break;
#pragma unroll
			for (uint32_t n = 1; n < GROUP; n++)
				if (j + n < count) {
					hopper_factors(&its[i][0].x, its[i][n].x, &a, &b);
					its[i][0].y = hopper_sum(its[i][0].y, a, its[i][n].y, b);
					v[i][0].x = hopper_sum(v[i][0].x, a, v[i][n].x, b);
					v[i][0].y = hopper_sum(v[i][0].y, a, v[i][n].y, b);
					v[i][0].z = hopper_sum(v[i][0].z, a, v[i][n].z, b);
					v[i][0].w = hopper_sum(v[i][0].w, a, v[i][n].w, b);
				}
			x[mine] = v[i][0];
			sums[mine] = its[i][0];
		}
	}
	named_barrier_sync(1, HOPPER_CONSUMERS);
	for (uint32_t at = threadIdx.x; at < wanted; at += HOPPER_CONSUMERS) {
		uint32_t row = hopper_row_of(unit) + (from + at) / (DIM / 4), query = row / job->group;
		uint32_t head = unit->head * job->group + row - query * job->group;
		float4   o = x[at];
		float2   sum = sums[at];
		uint2    words;
		float    part;

#pragma unroll 4
		for (uint32_t g = 1; g < groups; g++) {
			float4 v = x[g * wanted + at];
			float2 its = sums[g * wanted + at];

			hopper_factors(&sum.x, its.x, &a, &b);
			sum.y = hopper_sum(sum.y, a, its.y, b);
			o.x = hopper_sum(o.x, a, v.x, b);
			o.y = hopper_sum(o.y, a, v.y, b);
			o.z = hopper_sum(o.z, a, v.z, b);
			o.w = hopper_sum(o.w, a, v.w, b);
		}
		part = 1 / sum.y;
		words.x = pair_of<T>(o.x * part, o.y * part);
		words.y = pair_of<T>(o.z * part, o.w * part);
		*(uint2 *)((T *)job->y + (size_t)((uint32_t)unit->first_row + query) * job->y_stride + head * DIM +
		    (from + at) % (DIM / 4) * 4) = words;
	}
}

/* Blocks that wait for each other: where they run one after the other, a block that has been counted and finds all counted is the
 * last one, and takes all shares. */
__device__ static inline void hopper_counted(const struct hopper_shared_parts &shared, uint32_t handed)
{
#ifndef __CUDA_ARCH__
	barrier_wait(&shared.decided[handed % 2], handed / 2 % 2);
#else
	(void)shared;
	(void)handed;
#endif
}

/* The block's shares of what its WAITING shared units belong to, after all its units: pages have been read, and their ring is free.
 * Counters go to twice the number of results: each has arrived, then its block has taken what it wanted. */
template <class T, int DIM> __device__ static inline void hopper_share(const struct hopper_job *job,
    const struct hopper_shared_parts &shared, uint32_t waiting)
{
	for (struct attention_unit unit = hopper_first(job);; hopper_next(job, &unit)) {
		uint32_t *counter = (uint32_t *)job->arrived + hopper_results(job, &unit), run = attention_run_own((uint32_t)unit.context);
		uint32_t  all = hopper_live(job, &unit) * (DIM / 4), from = 0, end = all, span;
		bool      complete = true;

		if (!unit.shared)
			continue;
		span = attention_span((uint32_t)unit.context, unit.results);
#ifdef __CUDA_ARCH__
		end = (all + unit.results - 1) / unit.results;
		from = min((uint32_t)unit.begin / span * end, all);
		end = min(from + end, all);
		if (threadIdx.x == 0)
			while (load_acquire(counter) < unit.results)
				;
#else
		complete = load_acquire(counter) == unit.results;
#endif
		named_barrier_sync(1, HOPPER_CONSUMERS);
		if (complete && span > run)
			hopper_combine_share<T, DIM, 1>(job, &unit, shared.ring, from, end);
		else if (complete)
			hopper_combine_share<T, DIM, ATTENTION_GROUP>(job, &unit, shared.ring, from, end);
#ifdef __CUDA_ARCH__
		if (threadIdx.x == 0)
			atomicInc(counter, 2 * unit.results - 1);
#else
		if (complete && threadIdx.x == 0)
			*counter = 0;
#endif
		if (--waiting == 0)
			break;
		named_barrier_sync(1, HOPPER_CONSUMERS); /* the ring is free again */
	}
}

/* Fragments of the warp's columns of a page of values, 16 · 128 / DIM tokens each; COLUMNS: columns are the rows of products. */
template <int DIM> constexpr uint32_t hopper_fragments = ATTENTION_PAGE * DIM / 128 / 16;
template <int DIM, bool COLUMNS> __device__ static inline void hopper_fetch(uint32_t values, uint32_t ret[hopper_fragments<DIM>][4])
{
	constexpr uint32_t tokens = 16 * 128 / DIM;
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = lane % tokens, chunk = warp;

	if (DIM == 128) {
		token = COLUMNS ? lane / 16 * 8 + lane % 8 : token;
		chunk = warp * 2 + (COLUMNS ? lane / 8 % 2 : lane / 16);
	}
#pragma unroll
	for (uint32_t i = 0; i < hopper_fragments<DIM>; i++)
		ldmatrix_x4_trans(ret[i], values + tile_at<DIM>(token, chunk) + i * tokens * DIM * 2);
}

/* Rows [FROM, 64) of the values of a page become zeroes, each by the warp that has the token: WARP of four.  Their weights are
 * 0, but 0 · NaN is NaN. */
template <class T, int DIM> __device__ static inline void hopper_clear(char *values, uint32_t warp, uint32_t from)
{
	for (uint32_t i = threadIdx.x % 32; i < 16 * DIM / 8; i += 32)
		if (warp * 16 + i / (DIM / 8) >= from)
			*(uint4 *)(values + (warp * 16 * (DIM / 8) + i) * 16) = make_uint4(0, 0, 0, 0);
	fence_async_proxy(); /* before the next page comes to this place */
}

/* ---- Passes of 16 rows: rows are the first operand's ---- */

/* What a warp knows of a unit: all rows' scores of its tokens, and its columns of the results.  m is that of rows g and g + 8;
 * sums l are those of tokens 2t and 2t + 8, and of 2t + 1 and 2t + 9, that a lane has. */
template <int DIM> struct hopper_narrow {
	static constexpr uint32_t parts = 2; /* of scores: eight tokens each */
	static constexpr bool     columns = false;
	uint32_t q[DIM / 16][4];
	float    o[2][DIM / 64][4], m[2], l[2][2]; /* o of first pages, and of second ones */
	float    total[DIM / 64][4], total_m[2], total_l[2]; /* of a group's runs so far */
	int32_t  limit[2];                   /* tokens that a row sees end here */
};

template <class T, int DIM> __device__ static inline void hopper_begin(const struct hopper_job *job,
    const struct hopper_unit *unit, uint32_t q, struct hopper_narrow<DIM> *state)
{
	const struct hopper_row *rows = (const struct hopper_row *)((const char *)unit + 64);
	uint32_t                 lane = threadIdx.x % 32;

	(void)job;
	state->limit[0] = rows[lane / 4].limit;
	state->limit[1] = rows[lane / 4 + 8].limit;
#pragma unroll
	for (uint32_t k = 0; k < DIM / 16; k++)
		ldmatrix_x4(state->q[k], q + lane % 16 * hopper_q_row<T, DIM> + (2 * k + lane / 16) * 16);
}

template <int DIM> __device__ static inline void hopper_begin_run(struct hopper_narrow<DIM> *state)
{
	for (uint32_t r = 0; r < 2; r++) {
		state->m[r] = -INFINITY;
		state->l[r][0] = state->l[r][1] = 0;
	}
#pragma unroll
	for (uint32_t d = 0; d < DIM / 64; d++)
		for (uint32_t i = 0; i < 4; i++)
			state->o[0][d][i] = state->o[1][d][i] = 0;
}

/* s, without its scale, of the warp's 16 tokens, of which FIRST is the context's token that lies 16 · warp before, those before
 * END; KEYS: their page, 0: there is none.  Maxima go to shared memory. */
template <class T, int DIM> __device__ static inline void hopper_scores(const struct hopper_shared_parts &shared,
    const struct hopper_narrow<DIM> *state, uint32_t keys, int32_t first, int32_t end, float scale, float s[2][4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = warp % 4 * 16 + lane / 16 * 8 + lane % 8;

#pragma unroll
	for (uint32_t i = 0; i < 8; i++)
		s[i / 4][i % 4] = 0;
	if (keys) { /* sums over both halves of the dimensions: twice as many products are under way */
		uint32_t b[DIM / 16][4];
		float    other[2][4] = {};

#pragma unroll
		for (uint32_t k = 0; k < DIM / 16; k++)
			ldmatrix_x4(b[k], keys + tile_at<DIM>(token, k % 4 * 2 + lane / 8 % 2) + k / 4 * 128);
#pragma unroll
		for (uint32_t i = 0; i < DIM / 16; i++) {
			uint32_t k = i % 2 * (DIM / 32) + i / 2;

			mma_m16n8k16<T>(k < DIM / 32 ? s[0] : other[0], state->q[k], b[k]);
			mma_m16n8k16<T>(k < DIM / 32 ? s[1] : other[1], state->q[k], b[k] + 2);
		}
#pragma unroll
		for (uint32_t i = 0; i < 8; i++)
			s[i / 4][i % 4] += other[i / 4][i % 4];
	}
#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		int32_t limit = state->limit[r] < end ? state->limit[r] : end;
		int32_t left = limit - first - (int32_t)(warp * 16 + lane % 4 * 2); /* from this lane's first token on */
		float   most = -INFINITY;

#pragma unroll
		for (uint32_t i = 0; i < 4; i++) {
			float *score = &s[i / 2][2 * r + i % 2];

			*score = left > (int32_t)(i / 2 * 8 + i % 2) ? *score : -INFINITY;
			most = fmaxf(most, *score);
		}
		most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
		most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
		if (lane % 4 == 0)
			shared.maxima[(lane / 4 + 8 * r) * HOPPER_WARPS + warp] = most * scale;
	}
}

/* The online softmax: scores become weights in shared memory, by all warps' maxima; O is brought to the new ones. */
template <class T, int DIM> __device__ static inline void hopper_weigh(const struct hopper_shared_parts &shared,
    struct hopper_narrow<DIM> *state, float scale, const float s[2][4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float    factor[2];

#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		uint32_t mine = lane / 4 + 8 * r;
		float4   a = *(const float4 *)(shared.maxima + mine * HOPPER_WARPS);
		float4   b = *(const float4 *)(shared.maxima + mine * HOPPER_WARPS + 4);
		float    larger, base, weight[4];

		larger = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
		larger = fmaxf(larger, state->m[r]);
		/* A row that has seen nothing yet keeps weights of 0, not exp2(−∞ + ∞). */
		base = larger == -INFINITY ? 0 : larger;
		factor[r] = exp2_approximate(state->m[r] - base);
		state->m[r] = larger;
#pragma unroll
		for (uint32_t i = 0; i < 4; i++)
			weight[i] = exp2_approximate(__fmaf_rn(s[i / 2][2 * r + i % 2], scale, -base));
#pragma unroll
		for (uint32_t j = 0; j < 2; j++) {
			*(uint32_t *)(shared.weights + tile_at<HOPPER_TOKENS>(mine, warp * 2 + j) + lane % 4 * 4) =
			    pair_of<T>(weight[2 * j], weight[2 * j + 1]);
			state->l[r][j] = __fadd_rn(__fmul_rn(state->l[r][j], factor[r]), __fadd_rn(weight[j], weight[j + 2]));
		}
	}
#pragma unroll
	for (uint32_t d = 0; d < DIM / 64; d++)
#pragma unroll
		for (uint32_t i = 0; i < 4; i++) {
			state->o[0][d][i] *= factor[i / 2];
			state->o[1][d][i] *= factor[i / 2];
		}
}

/* o += p · v for a page whose values are V, and whose tokens' weights those from token FIRST on. */
template <class T, int DIM> __device__ static inline void hopper_values(const struct hopper_shared_parts &shared, uint32_t first,
    const uint32_t v[hopper_fragments<DIM>][4], struct hopper_narrow<DIM> *state)
{
	constexpr uint32_t parts = 128 / DIM; /* of 16 tokens */
	uint32_t lane = threadIdx.x % 32, weights = shared_address(shared.weights);
	float  (*o)[4] = state->o[first / ATTENTION_PAGE];

#pragma unroll
	for (uint32_t i = 0; i < ATTENTION_PAGE / 16; i++) {
		const uint32_t *b = v[i / parts] + 2 * (i % parts);
		uint32_t        p[4];

		ldmatrix_x4(p, weights + tile_at<HOPPER_TOKENS>(lane % 16, first / 8 + 2 * i + lane / 16));
		mma_m16n8k16<T>(o[0], p, b);
		if (parts == 1)
			mma_m16n8k16<T>(o[DIM / 64 - 1], p, b + 2);
	}
}

/* The sums of all warps.  The run is put together with those of the group before it, unless it is the FIRST. */
template <int DIM> __device__ static inline void hopper_end_run(const struct hopper_shared_parts &shared,
    struct hopper_narrow<DIM> *state, bool first)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		float l = state->l[r][0] + state->l[r][1];

		l += __shfl_xor_sync(~0u, l, 1);
		l += __shfl_xor_sync(~0u, l, 2);
		if (lane % 4 == 0)
			shared.sums[(lane / 4 + 8 * r) * HOPPER_WARPS + warp] = l;
	}
	named_barrier_sync(1, HOPPER_CONSUMERS);
#pragma unroll
	for (uint32_t d = 0; d < DIM / 64; d++)
		for (uint32_t i = 0; i < 4; i++)
			state->o[0][d][i] += state->o[1][d][i];
#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		const float *sums = shared.sums + (lane / 4 + 8 * r) * HOPPER_WARPS;
		float       *m = &state->m[r], *l = &state->l[r][0], a, b;

		*l = 0;
#pragma unroll
		for (uint32_t w = 0; w < HOPPER_WARPS; w++)
			*l += sums[w];
		if (!first) {
			float mine = *m;

			*m = state->total_m[r];
			hopper_factors(m, mine, &a, &b);
			*l = hopper_sum(state->total_l[r], a, *l, b);
#pragma unroll
			for (uint32_t d = 0; d < DIM / 64; d++)
				for (uint32_t i = 2 * r; i < 2 * r + 2; i++)
					state->o[0][d][i] = hopper_sum(state->total[d][i], a, state->o[0][d][i], b);
		}
		state->total_m[r] = *m;
		state->total_l[r] = *l;
	}
#pragma unroll
	for (uint32_t d = 0; d < DIM / 64; d++)
		for (uint32_t i = 0; i < 4; i++)
			state->total[d][i] = state->o[0][d][i];
}

/* The result of a unit: y if it is the only one, else a partial result. */
template <class T, int DIM> __device__ static inline void hopper_store(const struct hopper_job *job,
    const struct hopper_unit *unit, const struct hopper_narrow<DIM> *state)
{
	const struct hopper_row *rows = (const struct hopper_row *)((const char *)unit + 64);
	uint32_t lane = threadIdx.x % 32, column = threadIdx.x / 32 * (DIM / 8) + lane % 4 * 2;

#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		uint32_t     mine = lane / 4 + 8 * r;
		const float *o = &state->o[0][0][2 * r], l = state->l[r][0], part = 1 / l;
		size_t       at = unit->at + mine;

		if (state->limit[r] == 0)
			continue;
		if (unit->unit.results == 1) {
			T *y = (T *)job->y + rows[mine].y + column;

#pragma unroll
			for (uint32_t d = 0; d < DIM / 64; d++)
				*(uint32_t *)(y + 8 * d) = pair_of<T>(o[4 * d] * part, o[4 * d + 1] * part);
			continue;
		}
#pragma unroll
		for (uint32_t d = 0; d < DIM / 64; d++)
			*(float2 *)(job->partials + at * DIM + column + 8 * d) = make_float2(o[4 * d], o[4 * d + 1]);
		if (column == 0)
			*(float2 *)(job->sums + 2 * at) = make_float2(state->m[r], l);
	}
}

/* ---- Passes of up to 32 rows: rows are the second operand's ---- */

/* The same numbers with the same bits, but tokens, then columns of values, are the 16 rows of a tile, and rows its columns, which
 * come in parts of eight: 24 heads take three of them, where tiles of 16 rows would be two.  m and l, of the run and of those
 * before it in its group, are those of row `lane`; sums and o those of rows 2t and 2t + 1 of each part, sums of tokens g and g + 8,
 * o of columns g and g + 8. */
template <int DIM, int PARTS> struct hopper_wide {
	static constexpr uint32_t parts = PARTS;
	static constexpr bool     columns = true;
	uint32_t at, q[DIM / 16][PARTS][2]; /* where this lane's q lies; three parts of it are in registers, four are too many */
	float    o[2][PARTS][4], sums[PARTS][2], m, l; /* o of first pages, and of second ones */
	float    total[PARTS < 4 ? PARTS : 1][4], total_m, total_l; /* of four parts totals are in shared memory, too */
	const struct hopper_row *rows;
	int32_t  least; /* tokens that every row sees end here */
};

/* Of values [PARTS][2] of each lane, for rows 2t and 2t + 1 of each part, lanes keep one each, put together over all of a row, NONE
 * where there is no such part: that of row hopper_row_kept. */
template <int PARTS, class OP> __device__ static inline float hopper_keep(const float (*x)[2], float none, OP op)
{
	uint32_t lane = threadIdx.x % 32;
	bool     odd = lane & 4, upper = lane & 8, second = lane & 16;
	float    y[4] = { none, none, none, none }, z[2];

#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
		y[p] = op(odd ? x[p][1] : x[p][0], __shfl_xor_sync(~0u, odd ? x[p][0] : x[p][1], 4));
#pragma unroll
	for (uint32_t i = 0; i < 2; i++)
		z[i] = op(upper ? y[2 + i] : y[i], __shfl_xor_sync(~0u, upper ? y[i] : y[2 + i], 8));
	return op(second ? z[1] : z[0], __shfl_xor_sync(~0u, second ? z[0] : z[1], 16));
}

__device__ static inline uint32_t hopper_row_kept(void)
{
	uint32_t lane = threadIdx.x % 32;

	return (lane / 8 % 2 * 2 + lane / 16) * 8 + lane % 4 * 2 + lane / 4 % 2;
}

/* X of row `lane` for row E of this lane's in part P. */
__device__ static inline float hopper_spread(float x, uint32_t p, uint32_t e)
{
	return __shfl_sync(~0u, x, (int)(8 * p + threadIdx.x % 4 * 2 + e));
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_query(const struct hopper_wide<DIM, PARTS> *state,
    uint32_t k, uint32_t (*ret)[2])
{
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p += 2) {
		uint32_t b[4];

		ldmatrix_x4(b, state->at + 8 * p * hopper_q_row<T, DIM> + 32 * k);
#pragma unroll
		for (uint32_t n = 0; n < 4; n++)
			if (p + n / 2 < PARTS)
				ret[p + n / 2][n % 2] = b[n];
	}
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_begin(const struct hopper_job *job,
    const struct hopper_unit *unit, uint32_t q, struct hopper_wide<DIM, PARTS> *state)
{
	uint32_t lane = threadIdx.x % 32;

	state->at = q + (lane / 16 * 8 + lane % 8) * hopper_q_row<T, DIM> + lane / 8 % 2 * 16;
	state->rows = (const struct hopper_row *)((const char *)unit + 64);
	state->least = job->full ? unit->unit.context : unit->unit.context - (int32_t)unit->unit.rows + 1;
#pragma unroll
	for (uint32_t k = 0; k < DIM / 16 && PARTS < 4; k++)
		hopper_query<T>(state, k, state->q[k]);
}

template <int DIM, int PARTS> __device__ static inline void hopper_begin_run(struct hopper_wide<DIM, PARTS> *state)
{
	state->m = -INFINITY;
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++) {
		state->sums[p][0] = state->sums[p][1] = 0;
		for (uint32_t i = 0; i < 4; i++)
			state->o[0][p][i] = state->o[1][p][i] = 0;
	}
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_scores(const struct hopper_shared_parts &shared,
    const struct hopper_wide<DIM, PARTS> *state, uint32_t keys, int32_t first, int32_t end, float scale, float (*s)[4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float    most[PARTS][2];

#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
		for (uint32_t i = 0; i < 4; i++)
			s[p][i] = 0;
	if (keys) {
		uint32_t a[DIM / 16][4];
		float    other[PARTS][4] = {};

#pragma unroll
		for (uint32_t k = 0; k < DIM / 16; k++)
			ldmatrix_x4(a[k], keys + tile_at<DIM>(warp % 4 * 16 + lane % 16, k % 4 * 2 + lane / 16) + k / 4 * 128);
#pragma unroll
		for (uint32_t i = 0; i < DIM / 16; i++) {
			uint32_t k = i % 2 * (DIM / 32) + i / 2, more[PARTS][2];
			const uint32_t(*q)[2] = PARTS < 4 ? state->q[k] : more;

			if (PARTS == 4)
				hopper_query<T>(state, k, more);
#pragma unroll
			for (uint32_t p = 0; p < PARTS; p++)
				mma_m16n8k16<T>(k < DIM / 32 ? s[p] : other[p], a[k], q[p]);
		}
#pragma unroll
		for (uint32_t p = 0; p < PARTS; p++)
			for (uint32_t i = 0; i < 4; i++)
				s[p][i] += other[p][i];
	}
	if (first + HOPPER_TOKENS > min(end, state->least)) {
#pragma unroll
		for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
			for (uint32_t i = 0; i < 4; i++) {
				int32_t limit = min(state->rows[8 * p + lane % 4 * 2 + i % 2].limit, end);

				s[p][i] = limit - first > (int32_t)(warp * 16 + lane / 4 + i / 2 * 8) ? s[p][i] : -INFINITY;
			}
	}
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
		for (uint32_t e = 0; e < 2; e++)
			most[p][e] = fmaxf(s[p][e], s[p][2 + e]);
	shared.maxima[warp * 32 + hopper_row_kept()] =
	    scale * hopper_keep<PARTS>(most, -INFINITY, [](float x, float y) { return fmaxf(x, y); });
}

/* Where the weights of TOKEN for a part lie in shared memory: [HOPPER_TOKENS][32], chunks swapped so that those of eight tokens
 * lie in different banks. */
__device__ static inline uint32_t hopper_weight_at(uint32_t token, uint32_t part)
{
	return token * 64 + (part ^ token / 2 % 4) * 16;
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_weigh(const struct hopper_shared_parts &shared,
    struct hopper_wide<DIM, PARTS> *state, float scale, const float (*s)[4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float    larger = state->m, base, factor;
	bool     grown;

#pragma unroll
	for (uint32_t w = 0; w < HOPPER_WARPS; w++)
		larger = fmaxf(larger, shared.maxima[w * 32 + lane]);
	base = larger == -INFINITY ? 0 : larger;
	factor = exp2_approximate(state->m - base);
	grown = __any_sync(~0u, larger > state->m); /* else all factors are 1, or of what is 0 */
	state->m = larger;
	if (grown) {
#pragma unroll
		for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
			for (uint32_t e = 0; e < 2; e++) {
				float its = hopper_spread(factor, p, e);

				state->sums[p][e] = __fmul_rn(state->sums[p][e], its);
#pragma unroll
				for (uint32_t n = 0; n < 2; n++) {
					state->o[n][p][e] *= its;
					state->o[n][p][2 + e] *= its;
				}
			}
	}
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++) {
		float weight[4];

#pragma unroll
		for (uint32_t e = 0; e < 2; e++) {
			float its = hopper_spread(base, p, e);

			weight[e] = exp2_approximate(__fmaf_rn(s[p][e], scale, -its));
			weight[2 + e] = exp2_approximate(__fmaf_rn(s[p][2 + e], scale, -its));
			state->sums[p][e] = __fadd_rn(state->sums[p][e], __fadd_rn(weight[e], weight[2 + e]));
		}
#pragma unroll
		for (uint32_t j = 0; j < 2; j++)
			*(uint32_t *)(shared.weights + hopper_weight_at(warp * 16 + 8 * j + lane / 4, p) + lane % 4 * 4) =
			    pair_of<T>(weight[2 * j], weight[2 * j + 1]);
	}
}

/* Weights of 32 tokens from TOKEN on, of 16 each: a part's two words after the other's. */
template <int PARTS> __device__ static inline void hopper_fetch_weights(uint32_t weights, uint32_t token,
    uint32_t ret[2][2 * PARTS])
{
	uint32_t lane = threadIdx.x % 32;

#pragma unroll
	for (uint32_t p = 0; p + 1 < PARTS; p += 2)
#pragma unroll
		for (uint32_t n = 0; n < 2; n++)
			ldmatrix_x4_trans(ret[n] + 2 * p, weights + hopper_weight_at(token + 16 * n + lane % 16, p + lane / 16));
	if (PARTS % 2) { /* the last one of all 32 */
		uint32_t both[4];

		ldmatrix_x4_trans(both, weights + hopper_weight_at(token + lane, PARTS - 1));
		for (uint32_t n = 0; n < 4; n++)
			ret[n / 2][2 * PARTS - 2 + n % 2] = both[n];
	}
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_values(const struct hopper_shared_parts &shared,
    uint32_t first, const uint32_t v[hopper_fragments<DIM>][4], struct hopper_wide<DIM, PARTS> *state)
{
#pragma unroll
	for (uint32_t i = 0; i < ATTENTION_PAGE / 16; i += 2) {
		uint32_t b[2][2 * PARTS];

		hopper_fetch_weights<PARTS>(shared_address(shared.weights), first + 16 * i, b);
#pragma unroll
		for (uint32_t n = 0; n < 2; n++) {
			const uint32_t *from = DIM == 128 ? v[i + n] : v[i / 2] + 2 * n;
			/* Heads of 64 fill eight rows. */
			const uint32_t a[4] = { from[0], DIM == 128 ? from[1] : 0, DIM == 128 ? from[2] : from[1], DIM == 128 ? from[3] : 0 };

#pragma unroll
			for (uint32_t p = 0; p < PARTS; p++)
				mma_m16n8k16<T>(state->o[first / ATTENTION_PAGE][p], a, b[n] + 2 * p);
		}
	}
}

template <int DIM, int PARTS> __device__ static inline float *hopper_total(const struct hopper_shared_parts &shared,
    struct hopper_wide<DIM, PARTS> *state, uint32_t p, uint32_t i)
{
	if constexpr (PARTS < 4)
		return &state->total[p][i];
	else
		return shared.totals + (4 * p + i) * HOPPER_CONSUMERS + threadIdx.x;
}

template <int DIM, int PARTS> __device__ static inline void hopper_end_run(const struct hopper_shared_parts &shared,
    struct hopper_wide<DIM, PARTS> *state, bool first)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

	shared.sums[warp * 32 + hopper_row_kept()] = hopper_keep<PARTS>(state->sums, 0, [](float x, float y) { return x + y; });
	named_barrier_sync(1, HOPPER_CONSUMERS);
	state->l = 0;
#pragma unroll
	for (uint32_t w = 0; w < HOPPER_WARPS; w++)
		state->l += shared.sums[w * 32 + lane];
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
		for (uint32_t i = 0; i < 4; i++)
			state->o[0][p][i] += state->o[1][p][i];
	if (!first) {
		float a, b, mine = state->m;

		state->m = state->total_m;
		hopper_factors(&state->m, mine, &a, &b);
		state->l = hopper_sum(state->total_l, a, state->l, b);
#pragma unroll
		for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
			for (uint32_t e = 0; e < 2; e++) {
				float its_a = hopper_spread(a, p, e), its_b = hopper_spread(b, p, e);

#pragma unroll
				for (uint32_t i = e; i < 4; i += 2)
					state->o[0][p][i] = hopper_sum(*hopper_total(shared, state, p, i), its_a, state->o[0][p][i], its_b);
			}
	}
	state->total_m = state->m;
	state->total_l = state->l;
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
		for (uint32_t i = 0; i < 4; i++)
			*hopper_total(shared, state, p, i) = state->o[0][p][i];
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_store(const struct hopper_job *job,
    const struct hopper_unit *unit, const struct hopper_wide<DIM, PARTS> *state)
{
	uint32_t lane = threadIdx.x % 32, column = threadIdx.x / 32 * (DIM / 8) + lane / 4;
	float    part = 1 / state->l;

#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
		for (uint32_t e = 0; e < 2; e++) {
			uint32_t          mine = 8 * p + lane % 4 * 2 + e;
			float             its_part = hopper_spread(part, p, e);
			struct hopper_row row = state->rows[mine];

			if (row.limit == 0)
				continue;
#pragma unroll
			for (uint32_t d = 0; d < DIM / 64; d++)
				if (unit->unit.results == 1)
					((T *)job->y)[row.y + column + 8 * d] = from_float<T>(state->o[0][p][2 * d + e] * its_part);
				else
					job->partials[(unit->at + mine) * DIM + column + 8 * d] = state->o[0][p][2 * d + e];
		}
	if (unit->unit.results > 1 && threadIdx.x < 8 * PARTS && state->rows[lane].limit)
		*(float2 *)(job->sums + 2 * (unit->at + lane)) = make_float2(state->m, state->l);
}

/* ---- Pages ---- */

/* The pages of a run as they come; tokens [BEGIN, END).  BROUGHT counts pages of all units. */
template <class T, int DIM, int PARTS, class STATE> __device__ static inline void hopper_run(
    const struct hopper_shared_parts &shared, STATE *state, int32_t begin, int32_t end, float scale, uint32_t *brought)
{
	typedef hopper_sizes<T, DIM, PARTS> sizes;
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

	for (int32_t first = begin; first < end; first += HOPPER_TOKENS) {
		uint32_t count = (uint32_t)(end - first), pages = count > ATTENTION_PAGE ? 2 : 1, own = warp / 4, number = *brought;
		char    *keys = shared.ring + (number + own) % sizes::stages * 2 * sizes::page;
		float    s[STATE::parts][4];
		uint32_t values[2], v[2][hopper_fragments<DIM>][4];
		constexpr uint32_t early = STATE::parts == 2 ? 2 : 1;

		/* By every warp, every time: none falls a phase behind. */
		for (uint32_t p = 0; p < pages; p++)
			barrier_wait(&shared.full[(number + p) % sizes::stages], (number + p) / sizes::stages % 2);
		*brought += pages;
		hopper_scores<T>(shared, state, own < pages ? shared_address(keys) : 0, first, end, scale, s);
		if (own < pages && count < (own + 1) * ATTENTION_PAGE)
			hopper_clear<T, DIM>(keys + sizes::page, warp % 4, count - own * ATTENTION_PAGE);
		named_barrier_sync(1, HOPPER_CONSUMERS);
#pragma unroll
		for (uint32_t p = 0; p < 2; p++) { /* values come while weights are computed, as far as there are registers */
			values[p] = shared_address(shared.ring + ((number + p) % sizes::stages * 2 + 1) * sizes::page);
			if (p < early && p < pages)
				hopper_fetch<DIM, STATE::columns>(values[p], v[p]);
		}
		hopper_weigh<T>(shared, state, scale, s);
		named_barrier_sync(1, HOPPER_CONSUMERS);
#pragma unroll
		for (uint32_t p = 0; p < 2; p++) {
			if (p >= pages)
				break;
			if (p >= early)
				hopper_fetch<DIM, STATE::columns>(values[p], v[p]);
			hopper_values<T>(shared, p * ATTENTION_PAGE, v[p], state);
		}
		__syncwarp();
		if (lane == 0)
			for (uint32_t p = 0; p < pages; p++)
				barrier_arrive(&shared.empty[(number + p) % sizes::stages]);
	}
}

/* A unit's result. */
template <class T, int DIM, int PARTS, class STATE> __device__ static inline void hopper_result(const struct hopper_job *job,
    const struct hopper_unit *unit, const struct hopper_shared_parts &shared, uint32_t *brought)
{
	int32_t first = unit->unit.begin, last = unit->unit.end, run = (int32_t)unit->run;
	STATE   state;

	hopper_begin<T>(job, unit, shared_address((const char *)unit + hopper_sizes<T, DIM, PARTS>::q), &state);
	for (int32_t begin = first; begin < last; begin += run) {
		int32_t end = last - begin < run ? last : begin + run;

		hopper_begin_run(&state);
		hopper_run<T, DIM, PARTS>(shared, &state, begin, end, job->scale * 1.44269504088896f, brought);
		hopper_end_run(shared, &state, begin == first);
	}
	hopper_store<T>(job, unit, &state);
}

/* What hopper_work asks of pages: a unit's result from them, in passes of 8 · WIDTH rows, `parts` or 2. */
template <class T, int DIM, int PARTS> struct hopper_pages {
	static constexpr int parts = PARTS;
	template <int WIDTH> __device__ static inline void consume(const struct hopper_job *job, const struct hopper_unit *unit,
	    const struct hopper_shared_parts &shared, uint32_t *brought)
	{
		if constexpr (WIDTH == 2)
			hopper_result<T, DIM, PARTS, hopper_narrow<DIM>>(job, unit, shared, brought);
		else
			hopper_result<T, DIM, PARTS, hopper_wide<DIM, PARTS>>(job, unit, shared, brought);
	}
};

/* All units of the block. */
template <class T, int DIM, int PARTS, int WIDTH, class PAGES> __device__ static inline void hopper_work(
    const struct hopper_job *job, const struct hopper_shared_parts &shared)
{
	typedef hopper_sizes<T, DIM, PARTS> sizes;
	uint32_t lane = threadIdx.x % 32, brought = 0, handed = 0, waiting = 0;
	const struct hopper_unit *unit;

	for (uint32_t number = 0, slot = 0;; number++, slot = (slot + 1) % HOPPER_SLOTS) {
		unit = (const struct hopper_unit *)(shared.slots + slot * sizes::slot);
		barrier_wait(&shared.known[slot], number / HOPPER_SLOTS % 2);
		if (!unit->unit.results)
			return;
		PAGES::template consume<WIDTH>(job, unit, shared, &brought);
		if (unit->unit.results > 1 && handed > 1) /* long known: that no warp falls a phase behind */
			barrier_wait(&shared.decided[handed % 2], (handed / 2 + 1) % 2);
		__syncwarp();
		if (unit->unit.results > 1 && lane == 0)
			barrier_arrive(&shared.stored[handed % 2]);
		if (unit->unit.shared)
			hopper_counted(shared, handed);
		waiting += unit->unit.shared;
		handed += unit->unit.results > 1;
		if (unit->unit.next < 0)
			break;
		__syncwarp();
		if (lane == 0)
			barrier_arrive(&shared.forgotten[slot]);
	}
	if (waiting)
		hopper_share<T, DIM>(job, shared, waiting); /* while the last word about the last unit comes */
	if (WIDTH == PAGES::parts && unit->unit.results > 1 && !unit->unit.shared) /* narrow units are shared */
		hopper_finish<T, DIM, HOPPER_CONSUMERS, 8 * WIDTH>(job, unit, shared, handed - 1);
}

/* ---- Assistants ---- */

/* Finish units but the block's last one, beside the others' work: nobody waits for them. */
template <class T, int DIM, int PARTS> __device__ static inline void hopper_assist(const struct hopper_job *job,
    const struct hopper_shared_parts &shared)
{
	uint32_t handed = 0;

	for (uint32_t number = 0, slot = 0;; number++, slot = (slot + 1) % HOPPER_SLOTS) {
		const struct hopper_unit *unit = (const struct hopper_unit *)(shared.slots + slot * hopper_sizes<T, DIM, PARTS>::slot);

		barrier_wait(&shared.known[slot], number / HOPPER_SLOTS % 2);
		if (!unit->unit.results || unit->unit.next < 0)
			return;
		if (unit->unit.results > 1)
			hopper_finish<T, DIM, 32 * HOPPER_ASSISTANTS, 4>(job, unit, shared, handed);
		handed += unit->unit.results > 1;
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			barrier_arrive(&shared.forgotten[slot]);
	}
}

/* ---- The clerk ---- */

/* The unit and its q into slot NUMBER; a unit of no results, without q, is the end.  Returns where the sequence's results
 * begin. */
template <class T, int DIM, int PARTS> __device__ static inline size_t hopper_tell(const struct hopper_job *job,
    const struct hopper_shared_parts &shared, const struct attention_unit *unit, uint32_t number)
{
	typedef hopper_sizes<T, DIM, PARTS> sizes;
	constexpr uint32_t chunks = DIM / 8, apart = 32 / chunks; /* of a row; rows at once */
	uint32_t slot = number % HOPPER_SLOTS, lane = threadIdx.x % 32, live = unit->results ? hopper_live(job, unit) : 0;
	uint32_t row = hopper_row_of(unit) + lane, query = row / job->group, head = row - query * job->group, span;
	char    *to = shared.slots + slot * sizes::slot;
	struct hopper_unit told = { *unit, 0, 0, attention_run_own((uint32_t)unit->context), 0 };
	struct hopper_row  its = { 0, 0 };
	uint32_t from[8 * PARTS / apart]; /* in chunks */

	query += (uint32_t)unit->first_row;
	head = (unit->head * job->group + head) * DIM;
#pragma unroll
	for (uint32_t i = 0; i < 8 * PARTS / apart; i++) {
		uint32_t r = lane / chunks + i * apart;

		from[i] = __shfl_sync(~0u, query, (int)r) * (job->stride / 8) + __shfl_sync(~0u, head, (int)r) / 8 + lane % chunks;
	}
	if (lane < live) {
		its.y = query * job->y_stride + head;
		its.limit = job->full ? unit->context : unit->context - unit->rows + 1 + (int32_t)query - unit->first_row;
	}
	if (live) {
		span = attention_span((uint32_t)unit->context, unit->results);
		told.first = hopper_results(job, unit);
		told.at = told.first + (size_t)((uint32_t)unit->begin / span) * unit->rows * job->partial_heads;
		told.grouped = span > told.run;
	}
	if (number >= HOPPER_SLOTS)
		barrier_wait(&shared.forgotten[slot], (number / HOPPER_SLOTS + 1) % 2);
	dependency_wait(); /* nothing is left to do but to read q */
#pragma unroll
	for (uint32_t i = 0; i < 8 * PARTS / apart; i++)
		cp_async_16(shared_address(to + sizes::q + (lane / chunks + i * apart) * hopper_q_row<T, DIM> + lane % chunks * 16),
		    (const uint4 *)job->qkv + from[i], lane / chunks + i * apart < live ? 16 : 0);
	cp_async_commit();
	if (lane == 0)
		*(struct hopper_unit *)to = told;
	if (lane < 8 * PARTS)
		((struct hopper_row *)(to + 64))[lane] = its;
	cp_async_wait<0>();
	__syncwarp();
	if (lane == 0)
		barrier_arrive(&shared.known[slot]);
	return told.first;
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_manage(const struct hopper_job *job,
    const struct hopper_shared_parts &shared)
{
	uint32_t              lane = threadIdx.x % 32, handed = 0;
	size_t                first, next_first;
	struct attention_unit unit = hopper_first(job), next;

	first = hopper_tell<T, DIM, PARTS>(job, shared, &unit, 0);
	/* Rows of padding get zeroes: what they hold must not be NaN for ever. */
	for (uint32_t row = blockIdx.x; row < (uint32_t)*job->rows; row += gridDim.x)
		for (uint32_t i = lane * 8; job->row_sequence[row] < 0 && i < job->q_heads * DIM; i += 32 * 8)
			*(uint4 *)((T *)job->y + (size_t)row * job->y_stride + i) = make_uint4(0, 0, 0, 0);
	for (uint32_t number = 0; unit.results; number++, unit = next, first = next_first) {
		next = unit;
		hopper_next(job, &next);
		next_first = hopper_tell<T, DIM, PARTS>(job, shared, &next, number + 1);
		if (unit.results == 1)
			continue;
		if (lane == 0) {
			int32_t *counter = job->arrived + first;

			barrier_wait(&shared.stored[handed % 2], handed / 2 % 2);
			shared.last[handed % 2] = 0;
			if (unit.shared)
				add_release((uint32_t *)counter, 1);
			else {
				__threadfence();
				if (atomicAdd(counter, 1) == (int32_t)unit.results - 1) {
					shared.last[handed % 2] = 1;
					*counter = 0;
					__threadfence(); /* what the others wrote before is seen */
				}
			}
			barrier_arrive(&shared.decided[handed % 2]);
		}
		__syncwarp();
		handed++;
	}
}

/* ---- The kernel ---- */

/* A page is free again when READERS warps have said so. */
__device__ static inline void hopper_init(const struct hopper_shared_parts &shared, uint32_t stages, uint32_t readers)
{
	if (threadIdx.x == 0) {
		for (uint32_t s = 0; s < stages; s++) {
			barrier_init(&shared.full[s], 1);
			barrier_init(&shared.empty[s], readers);
		}
		for (uint32_t s = 0; s < HOPPER_SLOTS; s++) {
			barrier_init(&shared.known[s], 1);
			barrier_init(&shared.forgotten[s], HOPPER_WARPS + HOPPER_ASSISTANTS);
		}
		for (uint32_t s = 0; s < 2; s++) {
			barrier_init(&shared.stored[s], HOPPER_WARPS);
			barrier_init(&shared.decided[s], 1);
		}
		fence_barrier_init();
	}
	__syncthreads();
}

/* What warps behind the producer's do. */
template <class T, int DIM, int PARTS> __device__ static inline void hopper_serve(const struct hopper_job *job,
    const struct hopper_shared_parts &shared)
{
	if (threadIdx.x / 32 == HOPPER_WARPS + 1)
		hopper_manage<T, DIM, PARTS>(job, shared);
	else
		hopper_assist<T, DIM, PARTS>(job, shared);
}

/* What consumers do from the beginning to the end. */
template <class T, int DIM, int PARTS, class PAGES> __device__ static inline void hopper_consume(const struct hopper_job *job,
    const struct hopper_shared_parts &shared)
{
	bool narrow = PAGES::parts > 2 && !hopper_first(job).wide; /* then all units are */

	dependency_wait();
	mark_begin(job->mark);
	if (narrow)
		hopper_work<T, DIM, PARTS, 2, PAGES>(job, shared);
	else
		hopper_work<T, DIM, PARTS, PAGES::parts, PAGES>(job, shared);
}

/* As many blocks as `units` were planned for, in passes of up to 8 · PARTS rows. */
template <class T, int DIM, int PARTS> static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_kernel(struct hopper_job job)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	struct hopper_shared_parts shared = hopper_parts<T, DIM, PARTS>(shared_memory());

	hopper_init(shared, hopper_sizes<T, DIM, PARTS>::stages, HOPPER_WARPS);
	dependents_launch();
	if (threadIdx.x < HOPPER_CONSUMERS) {
		registers_raise<HOPPER_REGISTERS>();
		hopper_consume<T, DIM, PARTS, hopper_pages<T, DIM, PARTS>>(&job, shared);
		return;
	}
	registers_lower<HOPPER_REGISTERS_OTHERS>();
	if (threadIdx.x / 32 == HOPPER_WARPS)
		hopper_produce<T, DIM, PARTS>(&job, shared);
	else
		hopper_serve<T, DIM, PARTS>(&job, shared);
#endif
}

#endif
