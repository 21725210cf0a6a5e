/* sampler_propose.cuh: ids drawn from a whole row, and which of them top_p keeps, without looking for where what is kept ends.
 * All functions are called by all threads of a block of DRAW_THREADS.
 *
 * Whether an id is kept says the weight of what is larger.  What sample_scan left of pieces says between which bounds that lies,
 * and is enough where few ids have most of the weight; else one pass over the pieces that hold something larger sums it, for a
 * few ids at a time. */
#ifndef PENSTOCK_GPU_SAMPLER_PROPOSE_CUH
#define PENSTOCK_GPU_SAMPLER_PROPOSE_CUH

#include "gpu/sampler_select.cuh"

/* Each warp has a ring of RING_STAGES pieces, where the list will be. */
enum { PROPOSED = DRAW_WARPS, PROPOSE_ROUNDS = (int)SAMPLE_PROPOSALS / (int)PROPOSED, RING_STAGES = 4, RING_AHEAD = RING_STAGES - 1,
	RING_STAGE = (int)PIECE * 4 };
static_assert(PROPOSE_ROUNDS * PROPOSED == (int)SAMPLE_PROPOSALS && RING_STAGES * RING_STAGE <= SORT_ROOM / (int)DRAW_WARPS * 8,
    "a proposal for each warp and round; rings have room");

#define MASS_LEAST   0.5f      /* a top_p of less keeps too few of the first proposals for a pass of their own */
#define NOT_PROPOSED ((word)0) /* instead of an id that min_p does not keep */

/* By all warps, one each: proposals of ROUND, as words of a list.  BEFORE: the weight of the pieces before this thread's, of TOTAL;
 * sums of pieces are those of sample_scan, scaled. */
template <bool adjusted> static DEVICE_NOINLINE __device__ void propose(const struct row *row, float min_p, uint32_t round,
    word before, word total, struct sample_shared *shared)
{
	uint32_t each = (row->pieces + DRAW_THREADS - 1) / DRAW_THREADS, first = threadIdx.x * each, warp = threadIdx.x / 32;
	word     own = 0;
	struct picked picked;

	if (threadIdx.x < PROPOSED)
		shared->targets[threadIdx.x] = target_at(shared->random[round * PROPOSED + threadIdx.x], total);
	__syncthreads();
	for (uint32_t p = first; p < first + each && p < row->pieces; p++)
		own += row->sums[p];
	for (uint32_t i = 0; i < PROPOSED; i++) {
		word left = shared->targets[i];

		if (before <= left && before + own > left) { /* one thread of all */
			uint32_t p = first;

			left -= before;
			for (; left >= row->sums[p]; p++)
				left -= row->sums[p];
			shared->found_left[i] = left;
			shared->found_piece[i] = p;
		}
	}
	__syncthreads();
	picked = pick_in<adjusted, true>(row, { KEY_LEAST, UINT32_MAX }, shared->found_piece[warp], shared->found_left[warp],
	    row->sums[shared->found_piece[warp]], false, true);
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

#define NOTHING bound { INFINITY, INFINITY, 0 }

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
	word         weight = weight_of(bound.least, row->top, row->scale), low = 0, high = 0;

	for (uint32_t p = threadIdx.x % 32; p < row->pieces; p += 32) {
		word sum, most;

		if (!(row->most[p] >= least_in(&bound, p)))
			continue;
		sum = row->sums[p];
		most = weight_of(row->most[p], row->top, row->scale);
		high += sum;
		sum -= sum < (PIECE - 1) * weight ? sum : (PIECE - 1) * weight; /* others are no larger */
		low += sum > most ? sum : most;
	}
	for (int o = 16; o; o >>= 1) {
		low += __shfl_xor_sync(~0u, low, o);
		high += __shfl_xor_sync(~0u, high, o);
	}
	return high + ties * weight < target ? KEPT : low + ties * weight >= target ? REFUSED : UNKNOWN;
}

/* A lane's part of piece P on its way to where the lane, and no other, will read it. */
static __device__ inline void copy_piece(const struct row *row, uint32_t p, char *to)
{
	uint32_t     first = p * PIECE + threadIdx.x % 32 * 4;
	const float *from = row->logits + first;

	if ((p + 1) * PIECE <= row->count) {
		cp_async_16(to, from, 16);
		cp_async_16(to + PIECE * 2, from + PIECE / 2, 16);
	} else {
#pragma unroll
		for (uint32_t h = 0; h < 2; h++) {
			uint32_t id = first + h * (PIECE / 2), some = id < row->count ? min(row->count - id, 4u) : 0;

			cp_async_16(to + h * (PIECE * 2), some ? from + h * (PIECE / 2) : row->logits, some * 4);
		}
	}
}

/* The weights of all that is larger than each of shared->bounds, the first of which is the least one; equal logits in a bound's own
 * piece lack. */
template <bool adjusted> static DEVICE_NOINLINE __device__ void sum_above(const struct row *from, word ret[TESTED],
    struct sample_shared *shared)
{
	struct row row = *from; /* in registers */
	uint32_t   lane = threadIdx.x % 32, warp = threadIdx.x / 32, wanted = 0; /* bit n: piece NOW + n * DRAW_WARPS is */
	char      *ring = shared_memory() + warp * (RING_STAGES * RING_STAGE) + lane * 16;
	word       sums[TESTED] = {};
	struct changes<2> changes, next = {};

	for (uint32_t p = warp, turn = 0; p < row.pieces + RING_AHEAD * DRAW_WARPS; p += DRAW_WARPS, turn++) {
		uint32_t now = p - RING_AHEAD * DRAW_WARPS;

		if (p < row.pieces && row.most[p] >= least_in(&shared->bounds[0], p)) {
			copy_piece(&row, p, ring + turn % RING_STAGES * RING_STAGE);
			wanted |= 1u << RING_AHEAD;
		}
		cp_async_commit();
		changes = next;
		if (adjusted && wanted & 2)
			next = load_piece_changes(&row, now + DRAW_WARPS);
		cp_async_wait<RING_AHEAD>();
		if (wanted & 1) {
			const char *stage = ring + (turn - RING_AHEAD) % RING_STAGES * RING_STAGE;
			float       v[8], w[8];

#pragma unroll
			for (uint32_t h = 0; h < 2; h++) {
				struct pack<float> half = *(const struct pack<float> *)(stage + h * (PIECE * 2));

#pragma unroll
				for (uint32_t j = 0; j < 4; j++)
					v[h * 4 + j] = half.v[j];
			}
			if (adjusted)
				adjust_piece(&row, now, changes, v);
#pragma unroll
			for (uint32_t j = 0; j < 8; j++)
				w[j] = share_of(v[j], row.top, row.scale);
			if ((now + 1) * PIECE > row.count)
#pragma unroll
				for (uint32_t j = 0; j < 8; j++)
					w[j] = now * PIECE + j / 4 * (PIECE / 2) + lane * 4 + j % 4 < row.count ? w[j] : 0;
#pragma unroll
			for (uint32_t i = 0; i < TESTED; i++) {
				struct bound bound = shared->bounds[i];
				float        least = least_in(&bound, now), sum = 0;

#pragma unroll
				for (uint32_t j = 0; j < 8; j++)
					sum = fmaf(w[j], v[j] >= least ? 1.0f : 0.0f, sum); /* exact, and without predicates, which are few */
				sums[i] += (word)(sum * UNIT);
			}
		}
		wanted >>= 1;
	}
	cp_async_wait<0>();
#pragma unroll
	for (uint32_t i = 0; i < TESTED; i++) {
		for (int o = 16; o; o >>= 1)
			sums[i] += __shfl_xor_sync(~0u, sums[i], o);
		if (lane == 0)
			shared->above[i][warp] = sums[i];
	}
	__syncthreads();
	for (uint32_t i = 0; i < TESTED; i++) {
		ret[i] = 0;
		for (uint32_t other = 0; other < DRAW_WARPS; other++)
			ret[i] += shared->above[i][other];
	}
	__syncthreads();
}

/* The first proposal of the first round that top_p keeps: what is larger weighs less than TARGET; −1: it is not among the few that
 * are looked at, or not to be found without a pass while PASSES is false.  It is larger than all before it, so only such need be
 * looked at. */
template <bool adjusted> static __device__ int32_t first_in_mass(const struct row *row, word target, bool passes,
    struct sample_shared *shared)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, lanes, rank, count, first = 0;
	word     one = lane < PROPOSED ? shared->proposals[lane] : NOT_PROPOSED, largest = one, before, above[TESTED];

	for (uint32_t o = 1; o < 32; o *= 2) {
		word other = __shfl_up_sync(~0u, largest, o);
		largest = lane >= o && other > largest ? other : largest;
	}
	before = __shfl_up_sync(~0u, largest, 1);
	before = lane == 0 ? NOT_PROPOSED : before;
	lanes = __ballot_sync(~0u, one > before);
	rank = (uint32_t)__popc(lanes & ((1u << lane) - 1));
	count = min((uint32_t)__popc(lanes), (uint32_t)TESTED);
	if (warp == 0 && one > before && rank < TESTED) {
		shared->tested[rank] = one;
		shared->tested_ties[rank] = shared->ties[lane];
	}
	__syncthreads();
	if (warp < count) {
		enum verdict verdict = judge(row, shared->tested[warp], shared->tested_ties[warp], target);

		if (lane == 0)
			shared->verdicts[warp] = verdict;
	}
	__syncthreads();
	while (first < count && shared->verdicts[first] == REFUSED)
		first++;
	if (first < count && shared->verdicts[first] == KEPT)
		return (int32_t)~(uint32_t)shared->tested[first];
	if (first == count || !passes)
		return -1;
	if (threadIdx.x < TESTED)
		shared->bounds[threadIdx.x] = first + threadIdx.x < count ? bound_of(shared->tested[first + threadIdx.x]) : NOTHING;
	__syncthreads();
	sum_above<adjusted>(row, above, shared);
#pragma unroll
	for (uint32_t i = 0; i < TESTED; i++) {
		if (first + i == count)
			break;
		one = shared->tested[first + i];
		if (above[i] + shared->tested_ties[first + i] * weight_of_entry(row, (uint32_t)(one >> 32)) < target)
			return (int32_t)~(uint32_t)one;
	}
	return -1;
}

#endif
