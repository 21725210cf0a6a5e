/* attention_hopper_unit.cuh: what the warps of own decode attention (attention_hopper.cuh) know of units and of each other, and how
 * results of units become y. */
#ifndef PENSTOCK_GPU_ATTENTION_HOPPER_UNIT_CUH
#define PENSTOCK_GPU_ATTENTION_HOPPER_UNIT_CUH

#include "gpu/attention_plan.h"
#include "gpu/attention_tile.cuh"
#include "gpu/block.cuh"

#include <math.h>

enum {
	HOPPER_WARPS = 8, HOPPER_CONSUMERS = 32 * HOPPER_WARPS,
	HOPPER_ASSISTANTS = 2,                  /* warps */
	HOPPER_THREADS = HOPPER_CONSUMERS + 64 + 32 * HOPPER_ASSISTANTS, /* the producer's warp and the clerk's among them */
	HOPPER_REGISTERS = 208, HOPPER_REGISTERS_OTHERS = 88, /* of a thread; 168 on average */
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
	static constexpr uint32_t totals = (PARTS < 3 ? 0 : PARTS < 4 ? 4 : 4 * PARTS) * HOPPER_CONSUMERS * sizeof(float);
	static constexpr uint32_t shared = stages * 2 * page + HOPPER_SLOTS * slot + weights + 2 * words + totals +
	    (2 * stages + 2 * HOPPER_SLOTS + 4) * sizeof(mbarrier) + 8 + sizeof(struct attention_unit);
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
	uint32_t              sharing;   /* the block takes a share when it has done its units */
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
	float    *totals;                 /* for which there are no registers: [floats of a thread][HOPPER_CONSUMERS] */
	mbarrier *full, *empty;           /* pages, [stages] */
	mbarrier *known, *forgotten;      /* units, [HOPPER_SLOTS] */
	mbarrier *stored, *decided;       /* partial results, and whether they were the last: [2] */
	int32_t  *last;                   /* [2] */
	struct attention_unit *first;     /* the block's: where its shares begin, when all units have been done */
};

/* What follows the parts of both kinds of kernels, from AT on. */
__device__ static inline void hopper_place_barriers(struct hopper_shared_parts *parts, float *at, uint32_t stages)
{
	parts->full = (mbarrier *)at;
	parts->empty = parts->full + stages;
	parts->known = parts->empty + stages;
	parts->forgotten = parts->known + HOPPER_SLOTS;
	parts->stored = parts->forgotten + HOPPER_SLOTS;
	parts->decided = parts->stored + 2;
	parts->last = (int32_t *)(parts->decided + 2);
	parts->first = (struct attention_unit *)(parts->last + 2);
}

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
	hopper_place_barriers(&parts, parts.totals + sizes::totals / sizeof(float), sizes::stages);
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

/* ---- Results become one ---- */

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
	constexpr uint32_t each = GROUP == 1 ? 4 : 2; /* groups whose loads are under way */
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

/* Of shared units every second one's block takes a share, of twice as much: the other half leave a few microseconds earlier, and
 * pages of the next kernel come in their place.  INDEX: of the unit among its sequence's. */
__device__ static inline bool hopper_takes(const struct attention_unit *unit, uint32_t index)
{
#ifdef __CUDA_ARCH__
	return unit->shared && index % 2 == 0;
#else
	(void)index;
	return unit->shared;
#endif
}

/* The block's shares of what its WAITING units that take one belong to, after all its units: pages have been read, and their ring
 * is free.  Counters go to the number of results and of shares: each has arrived, then blocks have taken what they wanted. */
template <class T, int DIM> __device__ static inline void hopper_share(const struct hopper_job *job,
    const struct hopper_shared_parts &shared, uint32_t waiting)
{
	for (struct attention_unit unit = *shared.first;; hopper_next(job, &unit)) {
		uint32_t *counter = (uint32_t *)job->arrived + hopper_results(job, &unit), shares = (unit.results + 1u) / 2;
		uint32_t  all = hopper_live(job, &unit) * (DIM / 4), each = (all + shares - 1) / shares, span, share, end;

		if (!unit.shared)
			continue;
		span = attention_span((uint32_t)unit.context, unit.results);
		share = (uint32_t)unit.begin / span;
		if (!hopper_takes(&unit, share))
			continue;
#ifdef __CUDA_ARCH__
		share /= 2;
		end = share + 1;
		if (threadIdx.x == 0)
			while (load_acquire(counter) < unit.results)
				;
#else
		share = 0;
		end = load_acquire(counter) == unit.results ? shares : 0;
#endif
		for (; share < end; share++) {
			uint32_t from = min(share * each, all), to = min(from + each, all);

			named_barrier_sync(1, HOPPER_CONSUMERS);
			if (span > attention_run_own((uint32_t)unit.context))
				hopper_combine_share<T, DIM, 1>(job, &unit, shared.ring, from, to);
			else
				hopper_combine_share<T, DIM, ATTENTION_GROUP>(job, &unit, shared.ring, from, to);
		}
#ifdef __CUDA_ARCH__
		if (threadIdx.x == 0)
			atomicInc(counter, unit.results + shares - 1);
#else
		if (end && threadIdx.x == 0)
			*counter = 0;
#endif
		if (--waiting == 0)
			break;
		named_barrier_sync(1, HOPPER_CONSUMERS); /* the ring is free again */
	}
}

#endif
