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
 *      run          put together with those of the group before it, then groups (attention_plan.h)
 *      unit         o / l into y if it is the only one, else a partial result (m, l, o)
 *      clerk        counts units of which all has been written: a round trip to L2, while the others are in the next unit
 *      last block of a sequence to arrive: partial results in the order of the context ─► y; by two warps that assist, beside
 *                   the next unit's work, or, when there is none, by the eight
 *      or, of units that are shared, every second one's block, when it has done its units: waits for all, its columns ─► y
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

#include "gpu/attention_hopper_pass.cuh"

/* ---- The producer ---- */

/* Blocks of the first 32 pages of a unit, one a lane. */
__device__ static inline int32_t hopper_blocks(const struct hopper_job *job, const struct attention_unit *unit, uint32_t first)
{
	uint32_t at = first + threadIdx.x % 32, pages = (uint32_t)(unit->end - unit->begin + ATTENTION_PAGE - 1) / ATTENTION_PAGE;

	return at < pages ? job->tables[unit->table + (int32_t)at] : 0;
}

template <class PAGES> __device__ static inline void hopper_produce(const struct hopper_job *job,
    const struct hopper_shared_parts &shared)
{
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
				uint32_t stage = brought % PAGES::stages;

				if (brought >= PAGES::stages)
					barrier_wait(&shared.empty[stage], (brought / PAGES::stages + 1) % 2);
				PAGES::bring(job, shared, stage, (size_t)page * job->kv_heads + unit.head,
				    (uint32_t)(unit.end - unit.begin) - p * ATTENTION_PAGE, policy);
			}
			__syncwarp();
		}
	}
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
	int32_t  last = unit->unit.end, run = (int32_t)unit->run;
	uint32_t runs = 0;
	STATE    state;

	hopper_begin<T>(job, unit, shared_address((const char *)unit + hopper_sizes<T, DIM, PARTS>::q), &state);
	for (int32_t begin = unit->unit.begin, end; begin < last; begin = end, runs++) {
		end = last - begin < run ? last : begin + run;
		hopper_begin_run(&state);
		hopper_run<T, DIM, PARTS>(shared, &state, begin, end, job->scale * 1.44269504088896f, brought);
		hopper_end_run(shared, &state, runs % ATTENTION_GROUP == 0);
		if (end == last || (runs + 1) % ATTENTION_GROUP == 0)
			hopper_end_group(shared, &state, runs < ATTENTION_GROUP);
	}
	hopper_store<T>(job, unit, &state);
}

/* What is asked of pages: that they come, and a unit's result from them, in passes of 8 · WIDTH rows, `parts` or 2. */
template <class T, int DIM, int PARTS> struct hopper_pages {
	typedef hopper_sizes<T, DIM, PARTS> sizes;
	static constexpr int      parts = PARTS;
	static constexpr uint32_t stages = sizes::stages;
	/* Has the page of a head, UNIT of the pool, copied to STAGE, its first LEFT tokens if it has more. */
	__device__ static inline void bring(const struct hopper_job *job, const struct hopper_shared_parts &shared, uint32_t stage,
	    size_t unit, uint32_t left, uint64_t policy)
	{
		uint32_t bytes = (left < ATTENTION_PAGE ? left : (uint32_t)ATTENTION_PAGE) * DIM * (uint32_t)sizeof(T);
		char    *to = shared.ring + stage * 2 * sizes::page;

		barrier_expect(&shared.full[stage], 2 * bytes);
		bulk_copy(to, (const char *)job->keys + unit * sizes::page, bytes, &shared.full[stage], policy);
		bulk_copy(to + sizes::page, (const char *)job->values + unit * sizes::page, bytes, &shared.full[stage], policy);
	}
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
		waiting += unit->sharing;
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
			hopper_finish<T, DIM, 32 * HOPPER_ASSISTANTS, 2>(job, unit, shared, handed);
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
	uint32_t row = hopper_row_of(unit) + lane, query = row / job->group, head = row - query * job->group, span, index;
	char    *to = shared.slots + slot * sizes::slot;
	struct hopper_unit told = { *unit, 0, 0, attention_run_own((uint32_t)unit->context), 0, 0 };
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
		index = (uint32_t)unit->begin / span;
		told.at = told.first + (size_t)index * unit->rows * job->partial_heads;
		told.grouped = span > told.run;
		told.sharing = hopper_takes(unit, index);
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
	struct attention_unit first = hopper_first(job);
	bool                  narrow = PAGES::parts > 2 && !first.wide; /* then all units are */

	if (threadIdx.x == 0)
		*shared.first = first;
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
		hopper_produce<hopper_pages<T, DIM, PARTS>>(&job, shared);
	else
		hopper_serve<T, DIM, PARTS>(&job, shared);
#endif
}

#endif
