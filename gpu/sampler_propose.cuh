/* sampler_propose.cuh: ids drawn from a whole row, and which of them top_p keeps, without looking for where what is kept ends.
 * All functions are called by all threads of a block of DRAW_THREADS.
 *
 * Whether an id is kept says the weight of what is larger.  What sample_scan left of pieces says between which bounds that lies,
 * and is enough where few ids have most of the weight; else a pass over the pieces that hold something larger sums it.  That an id
 * is kept is known as soon as what is not larger weighs enough, which is most often after a part of the pieces, and then the pass
 * ends: where it does differs from run to run, what is drawn does not. */
#ifndef PENSTOCK_GPU_SAMPLER_PROPOSE_CUH
#define PENSTOCK_GPU_SAMPLER_PROPOSE_CUH

#include "gpu/sampler_select.cuh"

enum { PROPOSED = DRAW_WARPS, PROPOSE_ROUNDS = (int)SAMPLE_PROPOSALS / (int)PROPOSED, PASSED = BINS };
static_assert(PROPOSE_ROUNDS * PROPOSED == (int)SAMPLE_PROPOSALS, "a proposal for each warp and round");

/* Each warp has a ring of pieces, where the list will be: of logits, of an adjusted row with the entries of its slot behind. */
template <bool adjusted> struct ring {
	static constexpr uint32_t stages = adjusted ? 3 : 4, stage = PIECE * (adjusted ? 6 : 4), bytes = stages * stage;
	static_assert(bytes * DRAW_WARPS <= DRAW_SHARED_BYTES, "rings have room");
};

#define MASS_LEAST   0.5f      /* a top_p of less keeps too few of the first proposals for a pass of their own */
#define NOT_PROPOSED ((word)0) /* instead of an id that min_p does not keep */

/* By all warps, one each: proposals of ROUND, as words of a list.  BEFORE: the weight of the pieces before this thread's, of TOTAL;
 * sums of pieces are those of sample_scan, scaled. */
template <bool adjusted> static DEVICE_NOINLINE __device__ void propose(const struct row *row, float min_p, uint32_t round,
    word before, word total, struct sample_shared *shared)
{
	constexpr uint32_t step = DRAW_THREADS / 32;
	uint32_t each = (row->pieces + DRAW_THREADS - 1) / DRAW_THREADS, lane = threadIdx.x % 32, warp = threadIdx.x / 32, thread, p;
	word    *starts = (word *)shared_memory(), left = target_at(shared->random[round * PROPOSED + warp], total);
	struct picked picked;

	starts[threadIdx.x] = before;
	__syncthreads();
	/* The last thread whose pieces begin there or before it: among every STEP-th one, then among those that follow. */
	thread = step * ((uint32_t)__popc(__ballot_sync(~0u, starts[lane * step] <= left)) - 1);
	thread += (uint32_t)__popc(__ballot_sync(~0u, lane < step && starts[thread + lane % step] <= left)) - 1;
	left -= starts[thread];
	for (p = thread * each; left >= row->sums[p]; p++)
		left -= row->sums[p];
	picked = pick_in<adjusted, true>(row, { KEY_LEAST, UINT32_MAX }, p, left, row->sums[p], false, true);
	if (threadIdx.x % 32 == 0) {
		shared->proposals[round * PROPOSED + warp] = share_of(logit_of(picked.key), row->top, row->scale) >= min_p
		    ? (word)picked.key << 32 | ~(uint32_t)picked.id : NOT_PROPOSED;
		shared->ties[warp] = picked.ties;
	}
	__syncthreads();
}

/* The first of COUNT proposals that is among what is KEPT; −1: none is. */
static __device__ int32_t first_kept(struct kept kept, uint32_t count, const struct sample_shared *shared)
{
	for (uint32_t i = 0; i < count; i++) {
		word one = shared->proposals[i];

		if (one != NOT_PROPOSED && is_kept(kept, (uint32_t)(one >> 32), ~(uint32_t)one))
			return (int32_t)~(uint32_t)one;
	}
	return -1;
}

static __device__ inline struct bound bound_of(word one)
{
	uint32_t key = (uint32_t)(one >> 32);

	return { logit_of(key), logit_of(key + 1), ~(uint32_t)one / PIECE };
}

static __device__ inline float least_in(const struct bound *bound, uint32_t p)
{
	return p < bound->piece ? bound->least : bound->above;
}

/* By one warp: what the weight of what is larger than a proposal is less than, or not less than, by what is known of pieces. */
enum verdict { KEPT, REFUSED, UNKNOWN };
static __device__ enum verdict judge(const struct row *row, word one, uint32_t ties, word target)
{
	struct bound bound = bound_of(one);
	word         weight = weight_of(bound.least, row->top, row->scale), others = (PIECE - 1) * weight, low = 0, high = 0;

#pragma unroll 4
	for (uint32_t base = 0; base < row->pieces; base += 32) { /* without a branch: loads that do not wait for each other */
		uint32_t p = min(base + threadIdx.x % 32, row->pieces - 1);
		float    most = row->most[p];
		bool     some = base + threadIdx.x % 32 < row->pieces && most >= least_in(&bound, p);
		word     sum = some ? row->sums[p] : 0, largest = some ? weight_of(most, row->top, row->scale) : 0;

		high += sum;
		sum -= min(sum, others); /* others are no larger */
		low += max(sum, largest);
	}
	for (int o = 16; o; o >>= 1) {
		low += __shfl_xor_sync(~0u, low, o);
		high += __shfl_xor_sync(~0u, high, o);
	}
	return high + ties * weight < target ? KEPT : low + ties * weight >= target ? REFUSED : UNKNOWN;
}

/* A lane's part of piece P on its way to STAGE; −INFINITY where there is none. */
static __device__ inline void copy_piece(const struct row *row, uint32_t p, char *stage)
{
	uint32_t first = p * PIECE + threadIdx.x % 32 * 4;
	char    *to = stage + threadIdx.x % 32 * 16;

	if ((p + 1) * PIECE <= row->count) {
		cp_async_16(to, row->logits + first, 16);
		cp_async_16(to + PIECE * 2, row->logits + first + PIECE / 2, 16);
	} else {
#pragma unroll
		for (uint32_t h = 0; h < 2; h++)
			load4_plain(row, first + h * (PIECE / 2), (float *)(to + h * (PIECE * 2)));
	}
}

/* The entries of eight ids that follow each other, for each lane; 0 where there is none. */
static __device__ inline void copy_entries(const struct row *row, uint32_t p, char *stage)
{
	uint32_t first = p * PIECE + threadIdx.x % 32 * 8, some = first < row->count ? min(row->count - first, 8u) : 0;

	cp_async_16(stage + PIECE * 4 + threadIdx.x % 32 * 16, some ? row->table + first : row->table, some * 2);
}

/* Logits V, of FIRST … FIRST + 7, by entries LOW and HIGH: lanes look at their next ones at the same time. */
static DEVICE_NOINLINE __device__ void adjust_stage(const struct row *row, uint32_t first, uint64_t low, uint64_t high, float *v)
{
	const struct sample_params *params = row->params;
	uint32_t touched = 0;
	int      bans = row->bans;

	if (row->guess_count) {
		low = count_guesses(row->guesses, row->guess_count, first, low);
		high = count_guesses(row->guesses, row->guess_count, first + 4, high);
	}
#pragma unroll
	for (uint32_t i = 0; i < 8; i++)
		touched |= (i < 4 ? low : high) >> i % 4 * 16 & 0xffff ? 1u << i : 0;
	for (; touched; touched &= touched - 1) {
		uint32_t at = (uint32_t)__ffs((int)touched) - 1;
		uint16_t entry = (uint16_t)((at < 4 ? low : high) >> at % 4 * 16);

		if (sampling_touches(entry, bans) && first + at < row->count)
			v[at] = sampling_adjust(v[at], entry, entry & SAMPLING_BIASED
			    ? sampling_bias(row->bias, row->bias_count, (int32_t)(first + at)) : 0, bans, params);
	}
}

/* A sum of numbers from 0 to 8: of their multiples of 2⁻¹⁹, exactly, and of what is left of them, none above half of that. */
struct long_sum {
	uint32_t multiples;
	float    rest;
};

static __device__ inline void add_to(struct long_sum *sum, float x)
{
	float rounded = x + 16; /* up to 32 a float is a multiple of 2⁻¹⁹ */

	sum->multiples += __float_as_uint(rounded) - __float_as_uint(16.0f);
	sum->rest += x - (rounded - 16);
}

/* What is not larger than a proposal is summed in units of 2⁻¹¹, rounded down, every TOLD_EACH pieces of a warp. */
enum { TOLD_EACH = 4, TOLD_SHIFT = 44 - 11, MULTIPLE_SHIFT = 19 - 11 };
static_assert((uint64_t)PASSED * PIECE << 11 <= 1u << 30, "sums of them fit 31 bits");

/* By a pass: does what is larger than ONE, a proposal whose logit has TIES, weigh less than TARGET of TOTAL?  Pieces are no more
 * than PASSED.  Not larger are all of the pieces without anything larger, and of others their sums less what is larger: rounding in
 * any of these is less than 2⁻¹⁴ of TOTAL, so where they say that it does, what is larger would have said so in the end. */
template <bool adjusted> __device__ static inline bool is_in_mass(const struct row *from, word one, uint32_t ties,
    word target, word total, struct sample_shared *shared)
{
	constexpr uint32_t stages = ring<adjusted>::stages, ahead = stages - 1, bytes = ring<adjusted>::bytes;
	struct row row = *from; /* in registers */
	struct bound    bound = bound_of(one);
	struct long_sum above = {};
	uint32_t   lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = 0, *pieces = shared->bins + warp * (PASSED / DRAW_WARPS);
	uint32_t   begin = warp * bytes, at = 0; /* of the ring; the next stage in it */
	uint32_t   words[2], next[2] = {};       /* of the mask */
	uint32_t   told = 0u - 2;                /* of this lane; what is rounded off, and rests, are less than 2 */
	bool       decided;
	word       all = 0, sum, equal = ties * weight_of_entry(from, (uint32_t)(one >> 32));
	word       room = target > equal ? target - equal : 0; /* for what is larger */
	int        enough = (int)((total - room + (total >> 14)) >> TOLD_SHIFT) + 1;

	if (threadIdx.x == 0) {
		shared->below = 0;
		shared->left = room;
	}
	__syncthreads();
	for (uint32_t base = warp; base < row.pieces; base += 32 * DRAW_WARPS) { /* this warp's pieces that hold something larger */
		uint32_t p = base + lane * DRAW_WARPS;
		bool     some = p < row.pieces && row.most[p] >= least_in(&bound, p);
		uint32_t lanes = __ballot_sync(~0u, some);

		if (some)
			pieces[n + (uint32_t)__popc(lanes & ((1u << lane) - 1))] = p;
		else if (p < row.pieces)
			told += (uint32_t)(row.sums[p] >> TOLD_SHIFT);
		n += (uint32_t)__popc(lanes);
	}
	__syncwarp();
	for (uint32_t i = 0; i < n + ahead; i++) {
		uint32_t now;
		float    v[8], larger = 0, least;
		char    *stage = shared_memory() + begin + at;

		if (i < n) {
			copy_piece(&row, pieces[i], stage);
			if (adjusted && row.table)
				copy_entries(&row, pieces[i], stage);
		}
		cp_async_commit();
		at = at == bytes - ring<adjusted>::stage ? 0 : at + ring<adjusted>::stage; /* the oldest one */
		stage = shared_memory() + begin + at;
		if (adjusted && row.mask) {
			words[0] = next[0];
			words[1] = next[1];
			if (i + 1 >= ahead && i + 1 < n + ahead)
				for (uint32_t h = 0; h < 2; h++)
					next[h] = mask_word(&row, pieces[i + 1 - ahead] * PIECE + h * (PIECE / 2) + lane * 4);
		}
		if (i < ahead)
			continue;
		now = pieces[i - ahead];
		cp_async_wait<ahead>();
		if (adjusted && row.table) {
			const struct pack<uint64_t> entries = *(const struct pack<uint64_t> *)(stage + PIECE * 4 + lane * 16);

			__syncwarp();
			if (entries.v[0] | entries.v[1] | row.guess_count)
				adjust_stage(from, now * PIECE + lane * 8, entries.v[0], entries.v[1], (float *)stage + lane * 8);
			__syncwarp();
		}
#pragma unroll
		for (uint32_t h = 0; h < 2; h++) {
			struct pack<float> half = *(const struct pack<float> *)(stage + h * (PIECE * 2) + lane * 16);

#pragma unroll
			for (uint32_t j = 0; j < 4; j++)
				v[h * 4 + j] = half.v[j];
		}
		if (adjusted && row.mask)
#pragma unroll
			for (uint32_t j = 0; j < 8; j++)
				v[j] = words[j / 4] >> lane * 4 % 32 & 1u << j % 4 ? v[j] : SAMPLE_BANNED;
		least = least_in(&bound, now);
#pragma unroll
		for (uint32_t j = 0; j < 8; j++) /* exact, and without predicates, which are few; of −INFINITY 0 */
			larger = fmaf(share_of(v[j], row.top, row.scale), v[j] >= least ? 1.0f : 0.0f, larger);
		add_to(&above, larger);
		if ((i - ahead) % TOLD_EACH == TOLD_EACH - 1) {
			uint32_t more = told - (above.multiples >> MULTIPLE_SHIFT);
			int      below = 0; /* of all warps */

			told = above.multiples >> MULTIPLE_SHIFT;
			if (lane < TOLD_EACH)
				more += (uint32_t)(row.sums[pieces[i - ahead - lane]] >> TOLD_SHIFT);
			more = __reduce_add_sync(~0u, more);
			if (lane == 0)
				below = atomicAdd(&shared->below, (int)more) + (int)more;
			if (__shfl_sync(~0u, below, 0) >= enough)
				break;
		}
	}
	cp_async_wait<0>();
	sum = ((word)above.multiples << 25) + (word)(int64_t)(above.rest * UNIT);
	for (int o = 16; o; o >>= 1)
		sum += __shfl_xor_sync(~0u, sum, o);
	if (lane == 0)
		shared->sums[warp] = sum;
	__syncthreads();
	for (uint32_t other = 0; other < DRAW_WARPS; other++)
		all += shared->sums[other];
	decided = shared->below >= enough;
	decided = decided || all < shared->left;
	__syncthreads();
	return decided;
}

/* The first proposal of the first round that top_p keeps: what is larger weighs less than TARGET of TOTAL; −1: it is not among the
 * few that are looked at, or not to be found without a pass while PASSES is false.  It is larger than all before it, so only such
 * need be looked at; each of them is kept if one before it is. */
template <bool adjusted> static __device__ int32_t first_in_mass(const struct row *row, word target, word total, bool passes,
    struct sample_shared *shared)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, lanes, rank, count, first = 0;
	word     one = lane < PROPOSED ? shared->proposals[lane] : NOT_PROPOSED, largest = one, before;

	for (uint32_t o = 1; o < 32; o *= 2) {
		word other = __shfl_up_sync(~0u, largest, o);
		largest = lane >= o && other > largest ? other : largest;
	}
	before = __shfl_up_sync(~0u, largest, 1);
	before = lane == 0 ? NOT_PROPOSED : before;
	lanes = __ballot_sync(~0u, one > before);
	rank = (uint32_t)__popc(lanes & ((1u << lane) - 1));
	count = min((uint32_t)__popc(lanes), (uint32_t)JUDGED);
	if (warp == 0 && one > before && rank < JUDGED) {
		shared->judged[rank] = one;
		shared->judged_ties[rank] = shared->ties[lane];
	}
	__syncthreads();
	if (warp < count) {
		enum verdict verdict = judge(row, shared->judged[warp], shared->judged_ties[warp], target);

		if (lane == 0)
			shared->verdicts[warp] = verdict;
	}
	__syncthreads();
	while (first < count && shared->verdicts[first] == REFUSED)
		first++;
	for (; first < count; first++) {
		one = shared->judged[first];
		if (shared->verdicts[first] != KEPT && (!passes || row->pieces > PASSED))
			return -1;
		if (shared->verdicts[first] == KEPT || is_in_mass<adjusted>(row, one, shared->judged_ties[first], target, total, shared))
			return (int32_t)~(uint32_t)one;
	}
	return -1;
}

#endif
