/* sampler_select.cuh: what a block does to find what of a row is kept: a list in shared memory, sums over pieces, and the largest
 * logits whose number or weight reaches a target.  All functions are called by all threads of a block of DRAW_THREADS.
 *
 * A pass over a flat row takes as long as its bytes, and there is time for one: a range that is likely to hold the end of what is
 * kept comes from a sixteenth of the row (guess); then one pass (gather) lists that range, sums what is above it, and says
 * whether the guess was right.  Where it was not, narrow() looks at all of the row until it is. */
#ifndef PENSTOCK_GPU_SAMPLER_SELECT_CUH
#define PENSTOCK_GPU_SAMPLER_SELECT_CUH

#include "gpu/sampler_row.cuh"

enum { DRAW_THREADS = 512, DRAW_WARPS = DRAW_THREADS / 32, LIST_ROOM = 6144, SORT_ROOM = 8192, BINS = 2048, STAGED = 1024,
	SORT_FEW = 256, SORT_EACH = 12, SORT_MOST = SORT_EACH * DRAW_THREADS, BIN_MAX = 64, JUDGED = 4,
	DRAW_SHARED_BYTES = 73728 };
static_assert(SORT_ROOM * 8 <= DRAW_SHARED_BYTES, "a draw has room to sort");
static_assert(LIST_ROOM * 8 + SORT_MOST * 2 <= SORT_ROOM * 8 && LIST_ROOM + BINS / 2 <= SORT_ROOM,
    "behind the list lie the places of a sort, or the weights of bins");

/* What of a piece is larger than an id's logit: logits from LEAST on if the piece lies before the id's, PIECE, from ABOVE on if
 * not; in PIECE itself equal logits of lower ids lack. */
struct bound {
	float    least, above;
	uint32_t piece;
};

struct sample_shared {
	uint32_t bins[BINS];
	float    most[STAGED]; /* of pieces, where they are no more */
	word     piece_sums[STAGED];
	word     sums[DRAW_WARPS];
	word     left;
	uint32_t count, index, high_bin, low_bin;
	int32_t  found;
	/* Of proposals (sampler_propose.cuh), of those of a round, and of those that are looked at. */
	double   random[SAMPLE_PROPOSALS + 1];
	word     proposals[SAMPLE_PROPOSALS];
	uint32_t ties[DRAW_WARPS], judged_ties[JUDGED], verdicts[JUDGED];
	word     judged[JUDGED];
	int      below; /* the weight of what is not larger than one that is tested, as far as it is known: see is_in_mass */
};

/* ---- Sums over a block ---- */

/* Weights of lanes, none above 8, in units of 2⁻⁴⁴: the sums of both halves fit 32 bits. */
static __device__ inline word warp_weight(float x)
{
	uint32_t high = (uint32_t)(x * 0x1p18f), low = (uint32_t)(fmaf((float)high, -0x1p-18f, x) * UNIT);

	return ((word)__reduce_add_sync(~0u, high) << 26) + __reduce_add_sync(~0u, low);
}

/* The sum of the lanes before this one, and of all. */
static __device__ inline word warp_before(word x, word *ret_total)
{
	word up = x;

	for (uint32_t o = 1; o < 32; o *= 2) {
		word other = __shfl_up_sync(~0u, up, o);
		up += threadIdx.x % 32 >= o ? other : 0;
	}
	*ret_total = __shfl_sync(~0u, up, 31);
	return up - x;
}

/* The sum of the threads before this one, and of all. */
static __device__ word before_of(word x, struct sample_shared *shared, word *ret_total)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	word     own = x, before = 0, total = 0;

	for (uint32_t o = 1; o < 32; o *= 2) {
		word other = __shfl_up_sync(~0u, x, o);
		x += lane >= o ? other : 0;
	}
	__syncthreads();
	if (lane == 31)
		shared->sums[warp] = x;
	__syncthreads();
	for (uint32_t i = 0; i < DRAW_WARPS; i++) {
		before += i < warp ? shared->sums[i] : 0;
		total += shared->sums[i];
	}
	*ret_total = total;
	return before + x - own;
}

static __device__ word total_of(word x, struct sample_shared *shared)
{
	word total;

	before_of(x, shared, &total);
	return total;
}

/* ---- The list ---- */

/* Puts the N words of the list, all of them different, in falling order; there is room for a power of two of them. */
static DEVICE_NOINLINE __device__ void sort_bitonic(uint32_t n)
{
	word    *list = (word *)shared_memory();
	uint32_t size = 64, before = PIECE;

	while (size < n)
		size *= 2;
	for (uint32_t i = n + threadIdx.x; i < size; i += DRAW_THREADS)
		list[i] = 0;
	for (uint32_t k = 2; k <= size; k *= 2) {
		for (uint32_t j = k / 2; j; j /= 2) {
			if (j > 32 || before > 32)
				__syncthreads();
			else
				__syncwarp(); /* a warp has 64 words to itself */
			before = j;
			for (uint32_t t = threadIdx.x; t < size / 2; t += DRAW_THREADS) {
				uint32_t i = 2 * t - (t & (j - 1));
				word     a = list[i], b = list[i + j];

				if ((a < b) == !(i & k)) {
					list[i] = b;
					list[i + j] = a;
				}
			}
		}
	}
	__syncthreads();
}

/* Puts the N words of the list, all of them different, in falling order.  Few: each goes to where
 * the number of larger ones says; no more than SORT_MOST: likewise among those of a bin of their upper halves.  More, or
 * bins that are too full: sort_bitonic. */
static DEVICE_NOINLINE __device__ void sort_falling(uint32_t n, struct sample_shared *shared)
{
	constexpr uint32_t each = BINS / DRAW_THREADS;
	word     *list = (word *)shared_memory(), mine[SORT_EACH], total;
	uint16_t *places = (uint16_t *)(list + LIST_ROOM); /* of words, bin by bin */
	uint32_t  to[SORT_EACH], least = UINT32_MAX, most = 0, first = threadIdx.x * each, shift = 0, own = 0, fullest = 0;

	if (n <= SORT_FEW) {
		word     one = threadIdx.x < n ? list[threadIdx.x] : 0;
		uint32_t at = 0;

		if (threadIdx.x < n)
#pragma unroll 4
			for (uint32_t i = 0; i < n; i++)
				at += list[i] > one;
		__syncthreads();
		if (threadIdx.x < n)
			list[at] = one;
		__syncthreads();
		return;
	}
	if (n > SORT_MOST) {
		sort_bitonic(n);
		return;
	}
	for (uint32_t i = threadIdx.x; i < n; i += DRAW_THREADS) {
		least = min(least, (uint32_t)(list[i] >> 32));
		most = max(most, (uint32_t)(list[i] >> 32));
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		shared->low_bin = UINT32_MAX;
		shared->high_bin = shared->index = 0;
	}
	for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS)
		shared->bins[i] = 0;
	__syncthreads();
	least = __reduce_min_sync(~0u, least);
	most = __reduce_max_sync(~0u, most);
	if (threadIdx.x % 32 == 0) {
		atomicMin(&shared->low_bin, least);
		atomicMax(&shared->high_bin, most);
	}
	__syncthreads();
	least = shared->low_bin;
	most = shared->high_bin;
	while ((most - least) >> shift >= BINS)
		shift++;
	for (uint32_t i = threadIdx.x; i < n; i += DRAW_THREADS)
		atomicAdd(&shared->bins[(most - (uint32_t)(list[i] >> 32)) >> shift], 1);
	__syncthreads();
	for (uint32_t i = 0; i < each; i++) {
		fullest = max(fullest, shared->bins[first + i]);
		own += shared->bins[first + i];
	}
	if (fullest > BIN_MAX)
		shared->index = 1;
	own = (uint32_t)before_of(own, shared, &total);
	for (uint32_t i = 0; i < each; i++) {
		uint32_t number = shared->bins[first + i];

		shared->bins[first + i] = own;
		own += number;
	}
	__syncthreads();
	if (shared->index) {
		sort_bitonic(n);
		return;
	}
	for (uint32_t i = threadIdx.x; i < n; i += DRAW_THREADS)
		places[atomicAdd(&shared->bins[(most - (uint32_t)(list[i] >> 32)) >> shift], 1)] = (uint16_t)i;
	__syncthreads(); /* a bin now says where the next one begins */
#pragma unroll
	for (uint32_t k = 0; k < SORT_EACH; k++) {
		uint32_t place = k * DRAW_THREADS + threadIdx.x, bin;

		mine[k] = to[k] = 0;
		if (place >= n)
			continue;
		mine[k] = list[places[place]];
		bin = (most - (uint32_t)(mine[k] >> 32)) >> shift;
		to[k] = bin ? shared->bins[bin - 1] : 0;
		for (uint32_t i = to[k], end = shared->bins[bin]; i < end; i++)
			to[k] += list[places[i]] > mine[k];
	}
	__syncthreads();
#pragma unroll
	for (uint32_t k = 0; k < SORT_EACH; k++)
		if (k * DRAW_THREADS + threadIdx.x < n)
			list[to[k]] = mine[k];
	__syncthreads();
}

static __device__ inline word weight_of_entry(const struct row *row, uint32_t key)
{
	return weight_of(logit_of(key), row->top, row->scale);
}

/* The weight of all N entries together. */
static __device__ word list_weight(const struct row *row, uint32_t n, struct sample_shared *shared)
{
	word own = 0;

	for (uint32_t i = threadIdx.x; i < n; i += DRAW_THREADS)
		own += weight_of_entry(row, (uint32_t)(row->list[i] >> 32));
	return total_of(own, shared);
}

/* How many of the first N entries have weights that reach TARGET > 0 together; N where all do not.  Their keys lie SHIFT bits
 * up. */
static __device__ uint32_t reach(const struct row *row, uint32_t n, int shift, word target, struct sample_shared *shared)
{
	uint32_t each = (n + DRAW_THREADS - 1) / DRAW_THREADS, first = threadIdx.x * each;
	word     own = 0, before, total;

	for (uint32_t i = first; i < first + each && i < n; i++)
		own += weight_of_entry(row, (uint32_t)(row->list[i] >> shift));
	if (threadIdx.x == 0)
		shared->index = n;
	before = before_of(own, shared, &total); /* a barrier is in it */
	if (before < target && before + own >= target) {
		for (uint32_t i = first; i < first + each && i < n; i++) {
			before += weight_of_entry(row, (uint32_t)(row->list[i] >> shift));
			if (before >= target) {
				shared->index = i + 1;
				break;
			}
		}
	}
	__syncthreads();
	return shared->index;
}

/* Where the N entries of the list, which are in no order, reach TARGET > 0 from the top, by number or weight: the last entry up
 * to there.  Keys lie between LOW and HIGH; all entries together reach it.  By bins of keys, and then of those of the bin in
 * which it is; false where too many of them are equal. */
static DEVICE_NOINLINE __device__ bool find_last(const struct row *row, uint32_t n, uint32_t low, uint32_t high, word target,
    bool by_weight, struct sample_shared *shared, word *ret_last)
{
	constexpr uint32_t bins = BINS / 2, each = bins / DRAW_THREADS;
	word    *mass = (word *)(row->list + LIST_ROOM), *few = (word *)shared->bins, own, before, total;
	uint32_t shift, first = threadIdx.x * each, bin, number;

	for (;;) {
		shift = 0;
		while ((high - low) >> shift >= bins)
			shift++;
		__syncthreads();
		for (uint32_t i = threadIdx.x; i < bins; i += DRAW_THREADS)
			mass[i] = 0;
		if (threadIdx.x == 0)
			shared->count = 0;
		__syncthreads();
		for (uint32_t i = threadIdx.x; i < n; i += DRAW_THREADS) {
			uint32_t key = (uint32_t)(row->list[i] >> 32);

			if (key >= low && key <= high)
				atomicAdd(&mass[(high - key) >> shift], by_weight ? weight_of_entry(row, key) : 1);
		}
		__syncthreads();
		own = 0;
		for (uint32_t i = 0; i < each; i++)
			own += mass[first + i];
		before = before_of(own, shared, &total);
		for (uint32_t i = 0; i < each; i++) {
			if (before < target && before + mass[first + i] >= target) {
				shared->index = first + i;
				shared->left = target - before;
			}
			before += mass[first + i];
		}
		__syncthreads();
		bin = shared->index;
		target = shared->left;
		high -= bin << shift;
		low = max(low, high - min(high, (1u << shift) - 1));
		for (uint32_t i = threadIdx.x; i < n; i += DRAW_THREADS) {
			uint32_t key = (uint32_t)(row->list[i] >> 32), at;

			if (key >= low && key <= high && (at = atomicAdd(&shared->count, 1)) < SORT_FEW)
				few[at] = row->list[i];
		}
		__syncthreads();
		number = shared->count;
		if (number <= SORT_FEW)
			break;
		if (low == high)
			return false;
	}
	if (threadIdx.x < number) {
		word one = few[threadIdx.x], weight = by_weight ? weight_of_entry(row, (uint32_t)(one >> 32)) : 1;

		before = 0;
		for (uint32_t i = 0; i < number; i++)
			before += few[i] > one ? by_weight ? weight_of_entry(row, (uint32_t)(few[i] >> 32)) : 1 : 0;
		if (before < target && before + weight >= target)
			shared->left = one;
	}
	__syncthreads();
	*ret_last = shared->left;
	__syncthreads();
	return true;
}

/* What is in the list from LAST on goes to its begin; returns its number. */
static __device__ uint32_t keep_to(const struct row *row, uint32_t n, word last, struct sample_shared *shared)
{
	uint32_t kept = 0;

	for (uint32_t base = 0; base < n; base += DRAW_THREADS) { /* what is read lies before what is written */
		word     one = base + threadIdx.x < n ? row->list[base + threadIdx.x] : 0, total;
		uint32_t at = kept + (uint32_t)before_of(one >= last, shared, &total);

		if (one >= last)
			row->list[at] = one;
		kept += (uint32_t)total;
	}
	__syncthreads();
	return kept;
}

/* How many of the N entries in falling order have keys of KEY or more. */
static __device__ uint32_t count_from(const struct row *row, uint32_t n, uint32_t key)
{
	uint32_t low = 0;

	while (low < n) {
		uint32_t middle = low + (n - low) / 2;

		if ((uint32_t)(row->list[middle] >> 32) >= key)
			low = middle + 1;
		else
			n = middle;
	}
	return low;
}

/* ---- What is kept ---- */

/* Logits whose keys are above KEY, and of those equal to it the ids below TIES. */
struct kept {
	uint32_t key;
	uint32_t ties;
};

static __device__ inline bool is_kept(struct kept kept, uint32_t key, uint32_t id)
{
	return key > kept.key || (key == kept.key && id < kept.ties);
}

/* What the filters have left so far: the first N of the list, in falling order, and nothing else if LISTED; else all that KEPT
 * says, and the sums of pieces are those of its weights. */
struct selection {
	struct kept kept;
	uint32_t    n;
	bool        listed;
};

struct gathered {
	uint32_t n;             /* entries; more than there is room for: then nothing else is known */
	word     above, inside; /* numbers, or weights, of what is kept above HIGH, and of the entries */
};

/* Lists what is kept with keys from LOW to HIGH, in no order; what is above HIGH is summed for each piece, in an order of its
 * own.  Without LISTS all that is kept from LOW on is summed. */
template <bool adjusted, bool lists> static DEVICE_NOINLINE __device__ struct gathered gather(const struct row *from,
    struct kept kept, uint32_t low, uint32_t high, bool by_weight, struct sample_shared *shared)
{
	struct row row = *from; /* in registers */
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float    least = logit_of(low), most = logit_of(!lists ? low : high == KEY_ZERO - 1 ? high - 1 : high); /* −0 is no logit */
	word     above = 0;
	struct gathered ret = {};

	__syncthreads();
	if (threadIdx.x == 0)
		shared->count = 0;
	__syncthreads();
	for (uint32_t base = warp; base < row.pieces; base += DRAW_WARPS * 32) {
		uint32_t mine = base + lane * DRAW_WARPS;
		bool     active = mine < row.pieces && row.most[mine] >= least;
		uint32_t todo = __ballot_sync(~0u, active);

		if (mine < row.pieces && !active)
			row.sums[mine] = 0;
		while (todo) {
			uint32_t piece[2], count = todo & (todo - 1) ? 2 : 1, hits = 0;
			struct changes<2> changes[2];
			float    v[2][8];

			piece[0] = base + ((uint32_t)__ffs((int)todo) - 1) * DRAW_WARPS;
			todo &= todo - 1;
			piece[1] = count == 2 ? base + ((uint32_t)__ffs((int)todo) - 1) * DRAW_WARPS : piece[0];
			todo &= todo - 1;
#pragma unroll
			for (uint32_t n = 0; n < 2; n++) {
				load_piece(&row, piece[n], v[n]);
				if (adjusted)
					changes[n] = load_piece_changes(&row, piece[n]);
			}
#pragma unroll
			for (uint32_t n = 0; n < 2; n++) {
				uint32_t first = piece[n] * PIECE + lane * 4, number = 0;
				float    w[8];
				word     sum;

				if (n >= count)
					break;
				if (adjusted)
					adjust_piece(&row, piece[n], changes[n], v[n]);
#pragma unroll
				for (uint32_t j = 0; j < 8; j++) { /* without a branch */
					bool over = v[n][j] > most;

					if (!lists)
						over |= (v[n][j] == most) & (first + j / 4 * (PIECE / 2) + j % 4 < kept.ties);
					else
						hits |= (uint32_t)((v[n][j] >= least) & !over) << (n * 8 + j);
					number += over;
					w[j] = share_of(over ? v[n][j] : -INFINITY, row.top, row.scale);
				}
				sum = warp_weight(((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7])));
				if (lane == 0)
					row.sums[piece[n]] = sum;
				above += !by_weight ? number : lane == 0 ? sum : 0;
			}
			if (!lists)
				continue;
			if (kept.ties != UINT32_MAX && kept.key >= low)
#pragma unroll
				for (uint32_t j = 0; j < 16; j++)
					if (key_of(v[j / 8][j % 8]) == kept.key &&
					    piece[j / 8] * PIECE + j / 4 % 2 * (PIECE / 2) + lane * 4 + j % 4 >= kept.ties)
						hits &= ~(1u << j);
			if (hits) {
				uint32_t at = atomicAdd(&shared->count, (uint32_t)__popc(hits));

				if (at + (uint32_t)__popc(hits) > row.room)
					hits = 0;
				while (!adjusted && hits) { /* few of many: read again */
					uint32_t j = (uint32_t)__ffs((int)hits) - 1;
					uint32_t id = (j < 8 ? piece[0] : piece[1]) * PIECE + j / 4 % 2 * (PIECE / 2) + lane * 4 + j % 4;

					hits &= hits - 1;
					row.list[at++] = (word)key_of(row.logits[id]) << 32 | ~id;
				}
#pragma unroll
				for (uint32_t j = 0; j < 16; j++)
					if (adjusted && hits >> j & 1)
						row.list[at++] = (word)key_of(v[j / 8][j % 8]) << 32 |
						                 ~(piece[j / 8] * PIECE + j / 4 % 2 * (PIECE / 2) + lane * 4 + j % 4);
			}
			if (__any_sync(~0u, *(volatile uint32_t *)&shared->count > row.room))
				break;
		}
	}
	ret.above = total_of(above, shared);
	ret.n = lists ? shared->count : 0;
	ret.inside = !by_weight ? ret.n : ret.n <= row.room ? list_weight(from, ret.n, shared) : 0;
	return ret;
}

/* The bins from the top: where the sum reaches LOW, and where it reaches HIGH ≥ LOW; the last one where it does not. */
static __device__ void find_bins(struct sample_shared *shared, word low, word high)
{
	constexpr uint32_t each = BINS / DRAW_THREADS;
	uint32_t           first = threadIdx.x * each;
	word               own = 0, before, total;

	for (uint32_t i = 0; i < each; i++)
		own += shared->bins[first + i];
	if (threadIdx.x == 0)
		shared->high_bin = shared->low_bin = BINS - 1;
	before = before_of(own, shared, &total);
	for (uint32_t i = 0; i < each; i++) {
		word after = before + shared->bins[first + i];

		if (before < low && after >= low)
			shared->high_bin = first + i;
		if (before < high && after >= high)
			shared->low_bin = first + i;
		before = after;
	}
	__syncthreads();
}

/* Keys from LOW to HIGH. */
struct range {
	uint32_t low, high;
};

/* The part of WHOLE in which the sum of what is kept, from the top, reaches TARGET of TOTAL, found by a look at RANGE, which is
 * likely to hold it, in bins of keys. */
template <bool adjusted> static DEVICE_NOINLINE __device__ struct range narrow(const struct row *from, struct kept kept,
    struct range whole, struct range range, word target, word total, bool by_weight, struct sample_shared *shared)
{
	struct row row = *from; /* in registers */
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, shift = 0;
	float    unit = by_weight ? (float)(0x1p31 / (double)total) * UNIT : 1;
	word     above = 0, inside = 0, below = 0, all, goal, margin, first, last;
	struct range ret;

	while ((range.high - range.low) >> shift >= BINS)
		shift++;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS)
		shared->bins[i] = 0;
	__syncthreads();
	for (uint32_t p = warp; p < row.pieces; p += 2 * DRAW_WARPS) {
		float v[16]; /* of two pieces: nothing where the second one is none */

#pragma unroll
		for (uint32_t n = 0; n < 2; n++) {
			load_piece(&row, p + n * DRAW_WARPS, v + 8 * n);
			if (adjusted)
				adjust_piece(&row, p + n * DRAW_WARPS, load_piece_changes(&row, p + n * DRAW_WARPS), v + 8 * n);
		}
#pragma unroll
		for (uint32_t j = 0; j < 16; j++) {
			uint32_t key = key_of(v[j]), added;

			if (!is_kept(kept, key, (p + j / 8 * DRAW_WARPS) * PIECE + j / 4 % 2 * (PIECE / 2) + lane * 4 + j % 4))
				continue;
			added = by_weight ? (uint32_t)(share_of(v[j], row.top, row.scale) * unit) : 1;
			if (key > range.high)
				above += added;
			else if (key < range.low)
				below += added;
			else if (added)
				atomicAdd(&shared->bins[(range.high - key) >> shift], added);
		}
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS)
		inside += shared->bins[i];
	all = total_of(above + inside + below, shared);
	above = total_of(above, shared);
	inside = total_of(inside, shared);
	goal = by_weight ? (word)((double)target / (double)total * (double)all) : target;
	margin = by_weight ? row.count : 0;
	first = goal > margin ? goal - margin : 1;
	last = goal + margin;
	find_bins(shared, first > above ? first - above : 1, last > above ? last - above : 1);
	ret.low = last <= above ? range.high + 1 : last > above + inside ? whole.low
	        : shared->low_bin == BINS - 1 ? range.low : max(range.low, range.high - (((shared->low_bin + 1) << shift) - 1));
	ret.high = first <= above ? whole.high : first > above + inside ? range.low - 1
	         : shared->high_bin == 0 ? range.high : min(range.high, range.high - (shared->high_bin << shift));
	return ret;
}

/* A part of WHOLE, what is kept, in which the sum from the top is likely to reach TARGET of TOTAL: by a look at GUESS_EACH ids of
 * each piece, in bins of one width from the largest logit down to the least of them, or to DEPTH below.  Of weights, those below
 * the cut are what is estimated, since the total is known and they are many and light; of numbers, those above it.  Either way
 * the estimate is off by about the root of the sum of squares, and the range is 4.5 times that to both sides. */
enum { GUESS_EACH = 16, NUMBER_DEPTH = 64 };
template <bool adjusted> static DEVICE_NOINLINE __device__ struct range guess(const struct row *from, struct kept kept,
    struct range whole, word target, word total, bool by_weight, float depth, struct sample_shared *shared)
{
	constexpr uint32_t each = BINS / DRAW_THREADS;
	struct row row = *from;
	float     *sample = (float *)shared_memory(), bins_a_unit, least = row.top;
	uint32_t   step = 1 + row.pieces * GUESS_EACH / (2 * row.room), pieces = (row.pieces + step - 1) / step, key;
	uint32_t   last = (pieces - 1) * step * PIECE + ((pieces - 1) * 2654435761u >> 28) * GUESS_EACH; /* not all there, perhaps */
	uint32_t   valid = (pieces - 1) * GUESS_EACH + (last < row.count ? min(row.count - last, (uint32_t)GUESS_EACH) : 0);
	uint32_t   first = threadIdx.x * each, lane = threadIdx.x % 4;
	word       mass[each], square[each], own = 0, own_squares = 0, before, squares_before, all, all_squares;
	double     share, goal, margin;
	struct range ret = whole;

	__syncthreads();
	if (threadIdx.x == 0)
		shared->count = key_of(row.top);
	for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS)
		shared->bins[i] = 0;
#pragma unroll 5
	for (uint32_t i = threadIdx.x / 4; i < pieces; i += DRAW_THREADS / 4) {
		uint32_t id = i * step * PIECE + (i * 2654435761u >> 28) * GUESS_EACH + lane * 4; /* anywhere in the piece */
		float    v[4];

		load4<adjusted>(&row, id, v);
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			bool some = id + j < row.count;

			least = some ? fminf(least, v[j]) : least;
			sample[i * GUESS_EACH + lane * 4 + j] = v[j];
		}
	}
	share = (double)valid / (double)row.count;
	key = __reduce_min_sync(~0u, key_of(least));
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		atomicMin(&shared->count, key);
	__syncthreads();
	bins_a_unit = (BINS - 1) / fmaxf(fminf(row.top - logit_of(shared->count), depth), 1e-30f);
	for (uint32_t i = threadIdx.x; i < pieces * GUESS_EACH; i += DRAW_THREADS)
		if (key_of(sample[i]) >= max(kept.key, KEY_LEAST))
			atomicAdd(&shared->bins[(uint32_t)fminf((row.top - sample[i]) * bins_a_unit, BINS - 1)], 1);
	__syncthreads();
	for (uint32_t i = 0; i < each; i++) {
		float w = by_weight ? exp2_approximate(-((float)(first + i) + 0.5f) / bins_a_unit * row.scale) : 1;

		mass[i] = (word)((float)shared->bins[first + i] * w * 0x1p40f);
		square[i] = (word)((float)shared->bins[first + i] * w * w * 0x1p40f);
		own += mass[i];
		own_squares += square[i];
	}
	before = before_of(own, shared, &all);
	squares_before = before_of(own_squares, shared, &all_squares);
	goal = by_weight ? (double)all - (double)(total - target) / (double)UNIT * share * 0x1p40 : (double)target * share * 0x1p40;
	if (threadIdx.x == 0)
		shared->left = all_squares;
	__syncthreads();
	own = before;
	own_squares = squares_before;
	for (uint32_t i = 0; i < each; i++) {
		if ((double)own < goal && (double)(own + mass[i]) >= goal) { /* one bin of all; two more of its kind */
			float w = by_weight ? exp2_approximate(-((float)(first + i) + 0.5f) / bins_a_unit * row.scale) : 1;

			shared->left = (by_weight ? all_squares - own_squares : own_squares + square[i]) + (word)(2 * w * w * 0x1p40f);
		}
		own += mass[i];
		own_squares += square[i];
	}
	__syncthreads();
	margin = 4.5 * sqrt((double)shared->left * 0x1p40);
	if (threadIdx.x == 0) {
		shared->high_bin = 0;
		shared->low_bin = BINS - 1;
	}
	__syncthreads();
	for (uint32_t i = 0; i < each; i++) {
		if ((double)before < goal - margin && (double)(before + mass[i]) >= goal - margin)
			shared->high_bin = first + i;
		if ((double)before < goal + margin && (double)(before + mass[i]) >= goal + margin)
			shared->low_bin = first + i;
		before += mass[i];
	}
	__syncthreads();
	if (shared->low_bin < BINS - 1)
		ret.low = max(whole.low, key_of(row.top - (float)(shared->low_bin + 1) / bins_a_unit));
	if (shared->high_bin > 0)
		ret.high = max(ret.low, min(whole.high, key_of(row.top - (float)shared->high_bin / bins_a_unit)));
	return ret;
}

/* An id; with DETAILS the key of its logit, and how many lower ids of its piece have the same one. */
struct picked {
	int32_t  id;
	uint32_t key, ties;
};

/* By one warp: of piece P, the id with which the weights of what is kept come to more than LEFT of SUM.  TIES: as below; PLAIN: SUM
 * was made by sample_scan and scaled. */
template <bool adjusted, bool details> static __device__ struct picked pick_in(const struct row *row, struct kept kept, uint32_t p,
    word left, word sum, bool ties, bool plain)
{
	uint32_t lane = threadIdx.x % 32, id = p * PIECE + lane * 8, found, equal = 0; /* a lane has eight that follow each other */
	float    v[8], top = plain ? row->most[p] : row->top;
	word     weights[8], own = 0, up, total;
	struct picked ret = {};

#pragma unroll
	for (uint32_t h = 0; h < 2; h++)
		load4<adjusted>(row, id + h * 4, v + h * 4);
#pragma unroll
	for (uint32_t j = 0; j < 8; j++) {
		uint32_t key = key_of(v[j]);

		weights[j] = ties ? key == kept.key : is_kept(kept, key, id + j) ? weight_of(v[j], top, row->scale) : 0;
		own += weights[j];
	}
	up = warp_before(own, &total);
	if (!ties && total > 0) { /* the sum was made in another order */
		left = (word)((double)left / (double)sum * (double)total);
		left = left < total ? left : total - 1;
	}
	found = up <= left && up + own > left ? 8 : 0;
#pragma unroll
	for (uint32_t j = 0; j < 8; j++) {
		up += weights[j];
		ret.key = found == 8 && up > left ? key_of(v[j]) : ret.key;
		found = found == 8 && up > left ? 16 + j : found;
	}
	lane = ((uint32_t)__ffs((int)__ballot_sync(~0u, found >= 16)) - 1) % 32;
	ret.id = (int32_t)__shfl_sync(~0u, id + found - 16, (int)lane);
	if (!details)
		return ret;
	ret.key = __shfl_sync(~0u, ret.key, (int)lane);
#pragma unroll
	for (uint32_t j = 0; j < 8; j++)
		equal += id + j < (uint32_t)ret.id && key_of(v[j]) == ret.key;
	ret.ties = __reduce_add_sync(~0u, equal);
	return ret;
}

/* The first id, in their order, with which the weights of what is kept come to more than TARGET, which is less than all of them
 * together.  Sums of pieces are there; TIES: they are numbers of logits whose key is KEPT.key. */
template <bool adjusted> static DEVICE_NOINLINE __device__ int32_t pick(const struct row *row, struct kept kept, word target,
    bool ties, struct sample_shared *shared)
{
	uint32_t each = (row->pieces + DRAW_THREADS - 1) / DRAW_THREADS, first = threadIdx.x * each;
	word     own = 0, before, total;

	__syncthreads();
	for (uint32_t p = first; p < first + each && p < row->pieces; p++)
		own += row->sums[p];
	before = before_of(own, shared, &total);
	if (before <= target && before + own > target) {
		for (uint32_t p = first; p < first + each && p < row->pieces; p++) {
			word sum = row->sums[p];

			if (before + sum > target) {
				shared->index = p;
				shared->left = target - before;
				break;
			}
			before += sum;
		}
	}
	__syncthreads();
	if (threadIdx.x < 32) {
		int32_t id = pick_in<adjusted, false>(row, kept, shared->index, shared->left, row->sums[shared->index], ties, false).id;

		if (threadIdx.x == 0)
			shared->found = id;
	}
	__syncthreads();
	return shared->found;
}

static __device__ word sum_sums(const struct row *row, struct sample_shared *shared)
{
	word own = 0;

	for (uint32_t p = threadIdx.x; p < row->pieces; p += DRAW_THREADS)
		own += row->sums[p];
	return total_of(own, shared);
}

/* Cuts what is kept where TARGET is reached, if that is among logits whose key is KEY, which are more than the list holds: true;
 * else says where it is: above them, or below. */
enum cut { CUT, CUT_ABOVE, CUT_BELOW };
template <bool adjusted> static DEVICE_NOINLINE __device__ enum cut cut_ties(const struct row *row, struct kept *kept, uint32_t key,
    word target, bool by_weight, struct sample_shared *shared)
{
	word     above = gather<adjusted, true>(row, *kept, key + 1, key, by_weight, shared).above;
	word     weight = by_weight ? weight_of_entry(row, key) : 1;
	word     left = target - above, total;
	uint32_t lane = threadIdx.x % 32, ties = kept->key == key ? kept->ties : UINT32_MAX;

	if (above >= target)
		return CUT_ABOVE;
	__syncthreads();
	for (uint32_t p = threadIdx.x / 32; p < row->pieces; p += DRAW_WARPS) {
		uint32_t number = 0;
		float    v[8];

		load_piece(row, p, v);
		if (adjusted)
			adjust_piece(row, p, load_piece_changes(row, p), v);
		for (uint32_t j = 0; j < 8; j++)
			number += key_of(v[j]) == key && is_kept(*kept, key, p * PIECE + j / 4 * (PIECE / 2) + lane * 4 + j % 4);
		number = __reduce_add_sync(~0u, number);
		if (lane == 0)
			row->sums[p] = number;
	}
	__syncthreads();
	total = sum_sums(row, shared);
	if (left > total * weight)
		return CUT_BELOW;
	kept->key = key;
	kept->ties = min(ties, (uint32_t)pick<adjusted>(row, *kept, (left + weight - 1) / weight - 1, true, shared) + 1);
	return CUT;
}

/* All that S says is kept: sums of pieces; LISTED where there is room for a list. */
template <bool adjusted> static DEVICE_NOINLINE __device__ void settle(const struct row *row, struct selection *s, bool lists,
    struct sample_shared *shared)
{
	s->listed = false;
	if (lists) {
		s->n = gather<adjusted, true>(row, s->kept, s->kept.key, UINT32_MAX, false, shared).n;
		s->listed = s->n <= row->room;
	}
	if (s->listed)
		sort_falling(s->n, shared);
	else
		gather<adjusted, false>(row, s->kept, s->kept.key, s->kept.key, true, shared);
}

/* How many pieces have a logit whose key is KEY or more. */
static __device__ uint32_t count_pieces(const struct row *row, uint32_t key)
{
	uint32_t reached = 0;

	for (uint32_t base = 0; base < row->pieces; base += DRAW_THREADS)
		reached += (uint32_t)__syncthreads_count(base + threadIdx.x < row->pieces &&
		                                         key_of(row->most[base + threadIdx.x]) >= key);
	return reached;
}

enum { LISTED_PIECES = 64 };

/* Narrows what is kept to its largest ones whose number (BY_WEIGHT: weight) reaches TARGET > 0 of TOTAL.  LOW: a key that the
 * last of them is likely to have or to exceed. */
template <bool adjusted> static DEVICE_NOINLINE __device__ void select(const struct row *row, struct selection *s, uint32_t low,
    word target, word total, bool by_weight, float depth, struct sample_shared *shared)
{
	struct range    whole = { s->kept.key, key_of(row->top) }, range = { max(low, s->kept.key), whole.high };
	struct gathered found;
	uint32_t        reached = count_pieces(row, range.low);
	word            last;

	/* Few pieces, or surely few logits: all of them into the list. */
	if (reached * PIECE > row->room && (by_weight ? reached > LISTED_PIECES : target > row->pieces / 2))
		range = guess<adjusted>(row, s->kept, whole, target, total, by_weight, depth, shared);
	for (int attempt = 0;;) { /* WHOLE holds the last one kept; RANGE may */
		if (whole.low > whole.high) { /* rounding: it is the last one above */
			s->kept = { whole.low, UINT32_MAX };
			settle<adjusted>(row, s, true, shared);
			return;
		}
		found = gather<adjusted, true>(row, s->kept, range.low, range.high, by_weight, shared);
		if (found.n <= row->room) {
			if (target > found.above && target <= found.above + found.inside)
				break;
			if (target > found.above && range.low <= whole.low) { /* rounding: there is no more */
				target = found.above + found.inside;
				break;
			}
			if (target > found.above)
				whole.high = range.low - 1;
			else
				whole.low = range.high + 1;
			range = whole;
		} else if (range.low == range.high) {
			enum cut cut = cut_ties<adjusted>(row, &s->kept, range.low, target, by_weight, shared);

			if (cut == CUT || (cut == CUT_BELOW && range.low <= whole.low)) { /* rounding: there is no more */
				settle<adjusted>(row, s, true, shared);
				return;
			}
			if (cut == CUT_BELOW)
				whole.high = range.low - 1;
			else
				whole.low = range.high + 1;
			range = whole;
		} else if (attempt < 4) {
			range = narrow<adjusted>(row, s->kept, whole, range, target, total, by_weight, shared);
			attempt++;
		} else { /* sure and slow: what weighs next to nothing has no bins */
			uint32_t middle = range.low + (range.high - range.low) / 2;

			if (gather<adjusted, true>(row, s->kept, middle + 1, middle, by_weight, shared).above >= target)
				range.low = middle + 1;
			else
				range.high = middle;
		}
	}
	s->listed = range.high == key_of(row->top);
	if (found.n == 0) {
		s->n = 0;
	} else if (found.n > SORT_FEW &&
	           find_last(row, found.n, range.low, range.high, target - found.above, by_weight, shared, &last)) {
		s->kept = { (uint32_t)(last >> 32), ~(uint32_t)last + 1 };
		s->n = keep_to(row, found.n, last, shared);
		if (s->listed)
			sort_falling(s->n, shared);
	} else {
		sort_falling(found.n, shared);
		s->n = by_weight ? reach(row, found.n, 32, target - found.above, shared) : (uint32_t)(target - found.above);
		last = row->list[s->n - 1];
		s->kept = { (uint32_t)(last >> 32), ~(uint32_t)last + 1 };
	}
	__syncthreads();
	if (!s->listed && !by_weight && target <= SORT_FEW)
		settle<adjusted>(row, s, true, shared);
	else if (!s->listed) /* the sums of pieces lack what is in the list */
		for (uint32_t i = threadIdx.x; i < s->n; i += DRAW_THREADS)
			atomicAdd(&row->sums[~(uint32_t)row->list[i] / PIECE], weight_of_entry(row, (uint32_t)(row->list[i] >> 32)));
	__syncthreads();
}

/* A key that the K largest logits reach: that many pieces hold one, and not many more. */
static __device__ uint32_t least_of_number(const struct row *row, uint32_t k)
{
	uint32_t low = KEY_LEAST, high = key_of(row->top);

	if (k > row->pieces)
		return low;
	while (low < high) { /* LOW: reached by K pieces or more */
		uint32_t middle = low + (high - low + 1) / 2, reached = count_pieces(row, middle);

		if (reached < k)
			high = middle - 1;
		else
			low = middle;
		if (reached >= k && reached <= k + k / 8)
			break;
	}
	return low;
}

/* A key so that what is below it weighs no more than about ALLOWED: of pieces whose largest logit is less all, of others what is
 * not their largest logit, and each logit less than the key says.  Sums of pieces are there.  A warp looks at one level of 16,
 * then of 16 between two of them: of powers of two below the largest weight. */
static __device__ uint32_t least_of_weight(const struct row *row, word allowed, struct sample_shared *shared)
{
	struct level {
		float depth, sum;
	} *pieces = (struct level *)shared_memory();
	uint32_t warp = threadIdx.x / 32;
	float    from = 0, step = 46.0f / (float)DRAW_WARPS; /* what is less has no weight */

	if (row->pieces > LIST_ROOM)
		return KEY_LEAST;
	for (uint32_t p = threadIdx.x; p < row->pieces; p += DRAW_THREADS)
		pieces[p] = { (row->top - row->most[p]) * row->scale, (float)row->sums[p] };
	for (int round = 0; round < 2; round++) {
		float    depth = from + step * (float)(warp + 1), others = (PIECE - 1) * exp2_approximate(-depth) * UNIT, sum = 0;
		uint32_t level = 0;

		__syncthreads();
		for (uint32_t p = threadIdx.x % 32; p < row->pieces; p += 32) {
			float rest = fmaxf(pieces[p].sum - exp2_approximate(-pieces[p].depth) * UNIT, 0);

			sum += pieces[p].depth > depth ? pieces[p].sum : fminf(rest, others);
		}
		for (int o = 16; o; o >>= 1)
			sum += __shfl_xor_sync(~0u, sum, o);
		if (threadIdx.x % 32 == 0)
			shared->sums[warp] = sum <= (float)allowed;
		__syncthreads();
		while (level < DRAW_WARPS - 1 && !shared->sums[level])
			level++;
		from += step * (float)level;
		step /= (float)DRAW_WARPS;
	}
	__syncthreads();
	return max(KEY_LEAST, key_of(row->top - (from + step * (float)DRAW_WARPS) / row->scale));
}

/* The least key whose share of the largest weight is MIN_P or more. */
static __device__ uint32_t least_of_share(const struct row *row, float min_p)
{
	uint32_t low = KEY_LEAST, high = key_of(row->top); /* it is */

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (share_of(logit_of(middle), row->top, row->scale) >= min_p)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* What sample_scan has summed of piece P, by the row's largest logit. */
static __device__ inline word scaled_sum(const struct row *row, uint32_t p)
{
	return (word)((double)row->sums[p] * (double)share_of(row->most[p], row->top, row->scale));
}

/* Sums of pieces by sample_scan become those by the row's largest logit; returns that of all, and in *ret_before that of the pieces
 * before this thread's. */
static __device__ word scale_sums(const struct row *row, struct sample_shared *shared, word *ret_before)
{
	uint32_t each = (row->pieces + DRAW_THREADS - 1) / DRAW_THREADS, first = threadIdx.x * each;
	word     own = 0, total;

	for (uint32_t p = first; p < first + each && p < row->pieces; p++) {
		word sum = (word)((double)row->sums[p] * (double)share_of(row->most[p], row->top, row->scale));

		row->sums[p] = sum;
		own += sum;
	}
	*ret_before = before_of(own, shared, &total);
	return total;
}

/* Where in TOTAL a uniform number lies. */
static __device__ inline word target_at(double random, word total)
{
	word target = (word)(random * (double)total);

	return target < total ? target : total - 1;
}

static __device__ inline word target_of(double share, word total)
{
	word target = (word)ceil(share * (double)total);

	return target < 1 ? 1 : target > total ? total : target;
}

#endif
