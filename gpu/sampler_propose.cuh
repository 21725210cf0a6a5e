/* sampler_propose.cuh: ids drawn from a whole row, and which of them top_p keeps, without looking for where what is kept ends.
 * All functions are called by all threads of a block of DRAW_THREADS.
 *
 * Whether an id is kept says the weight of what is larger.  What sample_scan left of pieces says between which bounds that lies,
 * and is enough where few ids have most of the weight; else one pass over the pieces that hold something larger sums it, for a
 * few ids at a time. */
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

/* The weights of all that is larger than each of COUNT bounds, the first of which is the least one; equal logits in a bound's own
 * piece lack.  Pieces are no more than PASSED. */
template <bool adjusted> static DEVICE_NOINLINE __device__ void sum_above(const struct row *from, const struct bound *of,
    uint32_t count, word ret[TESTED], struct sample_shared *shared)
{
	constexpr uint32_t stages = ring<adjusted>::stages, ahead = stages - 1, bytes = ring<adjusted>::bytes;
	struct row   row = *from; /* in registers */
	uint32_t     lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = 0, *pieces = shared->bins + warp * (PASSED / DRAW_WARPS);
	char        *stage = shared_memory() + warp * bytes, *last = stage + bytes - ring<adjusted>::stage;
	struct bound bounds[TESTED];
	struct long_sum sums[TESTED] = {};
	uint32_t     words[2], next[2] = {}; /* of the mask */

#pragma unroll
	for (uint32_t i = 0; i < TESTED; i++)
		bounds[i] = of[min(i, count - 1)];
	for (uint32_t first = warp; first < row.pieces; first += 32 * DRAW_WARPS) { /* this warp's pieces that hold something larger */
		uint32_t p = first + lane * DRAW_WARPS;
		bool     some = p < row.pieces && row.most[p] >= least_in(&bounds[0], p);
		uint32_t lanes = __ballot_sync(~0u, some);

		if (some)
			pieces[n + (uint32_t)__popc(lanes & ((1u << lane) - 1))] = p;
		n += (uint32_t)__popc(lanes);
	}
	__syncwarp();
	for (uint32_t i = 0; i < n + ahead; i++) {
		uint32_t now;
		float    v[8], w[8];

		if (i < n) {
			copy_piece(&row, pieces[i], stage);
			if (adjusted && row.table)
				copy_entries(&row, pieces[i], stage);
		}
		cp_async_commit();
		stage = stage == last ? last + ring<adjusted>::stage - bytes : stage + ring<adjusted>::stage; /* the oldest one */
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
#pragma unroll
		for (uint32_t j = 0; j < 8; j++)
			w[j] = share_of(v[j], row.top, row.scale); /* of −INFINITY 0 */
#pragma unroll
		for (uint32_t k = 0; k < TESTED; k++) {
			float least = least_in(adjusted ? &of[k] : &bounds[k], now), sum = 0; /* registers are few */

			if (k >= count)
				break;
#pragma unroll
			for (uint32_t j = 0; j < 8; j++)
				sum = fmaf(w[j], v[j] >= least ? 1.0f : 0.0f, sum); /* exact, and without predicates, which are few */
			add_to(&sums[k], sum);
		}
	}
	cp_async_wait<0>();
#pragma unroll
	for (uint32_t k = 0; k < TESTED; k++) {
		word sum = ((word)sums[k].multiples << 25) + (word)(int64_t)(sums[k].rest * UNIT);

		for (int o = 16; o; o >>= 1)
			sum += __shfl_xor_sync(~0u, sum, o);
		if (lane == 0)
			shared->above[k][warp] = sum;
	}
	__syncthreads();
	for (uint32_t k = 0; k < TESTED; k++) {
		ret[k] = 0;
		for (uint32_t other = 0; other < DRAW_WARPS; other++)
			ret[k] += shared->above[k][other];
	}
	__syncthreads();
}

/* The first proposal of the first round that top_p keeps: what is larger weighs less than TARGET; −1: it is not among the few that
 * are looked at, or not to be found without a pass while PASSES is false.  It is larger than all before it, so only such need be
 * looked at; each of them is kept if one before it is. */
template <bool adjusted> static __device__ int32_t first_in_mass(const struct row *row, word target, bool passes,
    struct sample_shared *shared)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, lanes, rank, count, first = 0, kept, tested;
	word     one = lane < PROPOSED ? shared->proposals[lane] : NOT_PROPOSED, largest = one, before, above[TESTED];

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
		shared->bounds[rank] = bound_of(one);
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
	for (kept = first; kept < count && shared->verdicts[kept] != KEPT;)
		kept++;
	tested = min(kept - first, (uint32_t)TESTED);
	if (tested > 0 && (!passes || row->pieces > PASSED))
		return -1;
	if (tested > 0) {
		sum_above<adjusted>(row, &shared->bounds[first], tested, above, shared);
#pragma unroll
		for (uint32_t i = 0; i < TESTED; i++) {
			if (i == tested)
				break;
			one = shared->judged[first + i];
			if (above[i] + shared->judged_ties[first + i] * weight_of_entry(row, (uint32_t)(one >> 32)) < target)
				return (int32_t)~(uint32_t)one;
		}
	}
	return first + tested == kept && kept < count ? (int32_t)~(uint32_t)shared->judged[kept] : -1;
}

#endif
