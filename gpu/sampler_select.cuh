/* sampler_select.cuh: what a block does to find what of a row is kept: a list in shared memory, sums over pieces, and the largest
 * logits whose number or weight reaches a target.  All functions are called by all threads of a block of DRAW_THREADS. */
#ifndef PENSTOCK_GPU_SAMPLER_SELECT_CUH
#define PENSTOCK_GPU_SAMPLER_SELECT_CUH

#include "gpu/sampler_row.cuh"

enum { DRAW_THREADS = 512, DRAW_WARPS = DRAW_THREADS / 32, LIST_ROOM = 8192, BINS = 2048 };

struct sample_shared {
	uint32_t bins[BINS];
	word     sums[DRAW_WARPS];
	word     left;
	uint32_t count, index, high_bin, low_bin;
	int32_t  found;
};

/* ---- Sums over a block ---- */

static __device__ inline word warp_sum(word x)
{
	for (int o = 16; o; o >>= 1)
		x += __shfl_xor_sync(~0u, x, o);
	return x;
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

/* Puts the N words of the list, all of them different, in falling order; it has room for a power of two. */
static DEVICE_NOINLINE __device__ void sort_falling(uint32_t n)
{
	word    *list = (word *)shared_memory();
	uint32_t size = 64, before = PIECE;

	if (n <= 256) { /* each goes to where the number of larger ones says */
		word     own = threadIdx.x < n ? list[threadIdx.x] : 0;
		uint32_t at = 0;

		if (threadIdx.x < n)
#pragma unroll 4
			for (uint32_t i = 0; i < n; i++)
				at += list[i] > own;
		__syncthreads();
		if (threadIdx.x < n)
			list[at] = own;
		__syncthreads();
		return;
	}

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

/* Lists what is kept with keys from LOW to HIGH, in no order; what is above HIGH is summed for each piece.  HIGH ≥ LOW − 1. */
template <bool adjusted> static DEVICE_NOINLINE __device__ struct gathered gather(const struct row *from, struct kept kept,
    uint32_t low, uint32_t high, bool by_weight, struct sample_shared *shared)
{
	struct row row = *from; /* in registers */
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	word     above = 0, inside = 0;
	struct gathered ret;

	__syncthreads();
	if (threadIdx.x == 0)
		shared->count = 0;
	__syncthreads();
	for (uint32_t base = warp; base < row.pieces; base += DRAW_WARPS * 32) {
		uint32_t mine = base + lane * DRAW_WARPS;
		bool     active = mine < row.pieces && key_of(row.most[mine]) >= low;
		uint32_t todo = __ballot_sync(~0u, active);

		if (mine < row.pieces && !active)
			row.sums[mine] = 0;
		while (todo) {
			uint32_t piece[2], count = todo & (todo - 1) ? 2 : 1;
			float    v[2][8];

			piece[0] = base + ((uint32_t)__ffs((int)todo) - 1) * DRAW_WARPS;
			todo &= todo - 1;
			piece[1] = count == 2 ? base + ((uint32_t)__ffs((int)todo) - 1) * DRAW_WARPS : piece[0];
			todo &= todo - 1;
#pragma unroll
			for (uint32_t h = 0; h < 4; h++)
				load4<adjusted>(&row, piece[h / 2] * PIECE + h % 2 * (PIECE / 2) + lane * 4, v[h / 2] + h % 2 * 4);
#pragma unroll
			for (uint32_t n = 0; n < 2; n++) {
				word mass = 0;
				bool some = false;

				if (n >= count)
					break;
#pragma unroll
				for (uint32_t j = 0; j < 8; j++) {
					uint32_t id = piece[n] * PIECE + j / 4 * (PIECE / 2) + lane * 4 + j % 4, key = key_of(v[n][j]);
					bool     keeps = key >= low && is_kept(kept, key, id), over = keeps && key > high;
					word     weight = weight_of(v[n][j], row.top, row.scale);

					mass += over ? weight : 0;
					above += over ? by_weight ? weight : 1 : 0;
					some = some || over;
					if (keeps && !over) {
						uint32_t at = atomicAdd(&shared->count, 1);

						if (at < row.room)
							row.list[at] = (word)key << 32 | ~id;
						inside += by_weight ? weight : 1;
					}
				}
				if (__any_sync(~0u, some))
					mass = warp_sum(mass);
				if (lane == 0)
					row.sums[piece[n]] = mass;
			}
			if (__any_sync(~0u, *(volatile uint32_t *)&shared->count > row.room))
				break;
		}
	}
	ret.above = total_of(above, shared);
	ret.inside = total_of(inside, shared);
	ret.n = shared->count;
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

/* The least, or the largest, key of a bin of narrow(); of a ROUGH one about that. */
static __device__ inline uint32_t edge_of_bin(const struct row *row, struct range range, uint32_t bin, bool rough, uint32_t shift,
    float bins_a_unit, bool least)
{
	if (least)
		return bin == BINS - 1 ? range.low : max(range.low, rough ? key_of(row->top - (float)(bin + 1) / bins_a_unit)
		                                                          : range.high - (((bin + 1) << shift) - 1));
	return bin == 0 ? range.high : min(range.high, rough ? key_of(row->top - (float)bin / bins_a_unit)
	                                                     : range.high - (bin << shift));
}

/* The part of WHOLE in which the sum of what is kept, from the top, reaches TARGET of TOTAL, found by a look at RANGE, which is
 * likely to hold it.  ROUGH: by one piece of ROUGH_STEP, in bins of one width from the largest logit down to DEPTH below it:
 * likely right.  Else by all of them, in bins of keys: right. */
enum { ROUGH_STEP = 4, NUMBER_DEPTH = 24 };
#define ROUGH_MARGIN 0.006
template <bool adjusted> static DEVICE_NOINLINE __device__ struct range narrow(const struct row *from, struct kept kept,
    struct range whole, struct range range, word target, word total, bool by_weight, bool rough, float depth,
    struct sample_shared *shared)
{
	struct row row = *from; /* in registers */
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, step = rough ? ROUGH_STEP : 1, shift = 0;
	float    bins_a_unit = (BINS - 1) / depth, unit = by_weight ? (float)(0x1p31 / (double)total) * UNIT : 1;
	word     above = 0, inside = 0, below = 0, all, goal, margin, first, last;
	struct range ret;

	while ((range.high - range.low) >> shift >= BINS)
		shift++;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS)
		shared->bins[i] = 0;
	__syncthreads();
	for (uint32_t p = warp * step; p < row.pieces; p += 2 * DRAW_WARPS * step) {
		float v[16]; /* of two pieces: nothing where the second one is none */

#pragma unroll
		for (uint32_t h = 0; h < 4; h++)
			load4<adjusted>(&row, (p + h / 2 * DRAW_WARPS * step) * PIECE + h % 2 * (PIECE / 2) + lane * 4, v + 4 * h);
#pragma unroll
		for (uint32_t j = 0; j < 16; j++) {
			uint32_t key = key_of(v[j]), bin, added;

			if (!is_kept(kept, key, (p + j / 8 * DRAW_WARPS * step) * PIECE + j / 4 % 2 * (PIECE / 2) + lane * 4 + j % 4))
				continue;
			added = by_weight ? (uint32_t)(share_of(v[j], row.top, row.scale) * unit) : 1;
			if (key > range.high) {
				above += added;
			} else if (key < range.low) {
				below += added;
			} else {
				bin = rough ? (uint32_t)fminf((row.top - v[j]) * bins_a_unit, BINS - 1) : (range.high - key) >> shift;
				if (added)
					atomicAdd(&shared->bins[bin], added);
			}
		}
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS)
		inside += shared->bins[i];
	all = total_of(above + inside + below, shared);
	above = total_of(above, shared);
	inside = total_of(inside, shared);
	goal = rough || by_weight ? (word)((double)target / (double)total * (double)all) : target;
	margin = rough ? (word)(ROUGH_MARGIN * (double)all) : by_weight ? row.count : 0;
	first = goal > margin ? goal - margin : 1;
	last = goal + margin;
	find_bins(shared, first > above ? first - above : 1, last > above ? last - above : 1);
	ret.low = last <= above ? range.high + 1 : last > above + inside ? whole.low
	                        : edge_of_bin(&row, range, shared->low_bin, rough, shift, bins_a_unit, true);
	ret.high = first <= above ? whole.high : first > above + inside ? range.low - 1
	                          : edge_of_bin(&row, range, shared->high_bin, rough, shift, bins_a_unit, false);
	return ret;
}

/* By one warp: of piece P, the id with which the weights of what is kept come to more than LEFT of SUM.  TIES, PLAIN: as below. */
template <bool adjusted> static __device__ int32_t pick_in(const struct row *row, struct kept kept, uint32_t p, word left, word sum,
    bool ties, bool plain)
{
	uint32_t lane = threadIdx.x % 32, id = p * PIECE + lane * 8, found; /* eight ids that follow each other to a lane */
	float    v[8], top = plain ? row->most[p] : row->top;
	word     weights[8], own = 0, up, total;

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
	if (plain && total > 0) {
		left = (word)((double)left / (double)sum * (double)total);
		left = left < total ? left : total - 1;
	}
	found = up <= left && up + own > left ? 8 : 0;
#pragma unroll
	for (uint32_t j = 0; j < 8; j++) {
		up += weights[j];
		found = found == 8 && up > left ? 16 + j : found;
	}
	lane = (uint32_t)__ffs((int)__ballot_sync(~0u, found >= 16)) - 1;
	return (int32_t)__shfl_sync(~0u, id + found - 16, (int)(lane % 32));
}

/* The first id, in their order, with which the weights of what is kept come to more than TARGET, which is less than all of them
 * together.  Sums of pieces are there; TIES: they are numbers of logits whose key is KEPT.key.  PLAIN: they were made by
 * sample_scan and scaled. */
template <bool adjusted> static DEVICE_NOINLINE __device__ int32_t pick(const struct row *row, struct kept kept, word target,
    bool ties, bool plain, struct sample_shared *shared)
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
		int32_t id = pick_in<adjusted>(row, kept, shared->index, shared->left, row->sums[shared->index], ties, plain);

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
	word     above = gather<adjusted>(row, *kept, key + 1, key, by_weight, shared).above;
	word     weight = by_weight ? weight_of_entry(row, key) : 1;
	word     left = target - above, total;
	uint32_t lane = threadIdx.x % 32, ties = kept->key == key ? kept->ties : UINT32_MAX;

	if (above >= target)
		return CUT_ABOVE;
	__syncthreads();
	for (uint32_t p = threadIdx.x / 32; p < row->pieces; p += DRAW_WARPS) {
		uint32_t number = 0;

		for (uint32_t h = 0; h < 2; h++) {
			uint32_t first = p * PIECE + h * (PIECE / 2) + lane * 4;
			float    v[4];

			load4<adjusted>(row, first, v);
			for (uint32_t j = 0; j < 4; j++)
				number += key_of(v[j]) == key && is_kept(*kept, key, first + j);
		}
		number = __reduce_add_sync(~0u, number);
		if (lane == 0)
			row->sums[p] = number;
	}
	__syncthreads();
	total = sum_sums(row, shared);
	if (left > total * weight)
		return CUT_BELOW;
	kept->key = key;
	kept->ties = min(ties, (uint32_t)pick<adjusted>(row, *kept, (left + weight - 1) / weight - 1, true, false, shared) + 1);
	return CUT;
}

/* All that S says is kept into the list if there is room, else its sums into those of pieces. */
template <bool adjusted> static DEVICE_NOINLINE __device__ void settle(const struct row *row, struct selection *s,
    struct sample_shared *shared)
{
	struct gathered found = gather<adjusted>(row, s->kept, s->kept.key, UINT32_MAX, true, shared);

	s->listed = found.n <= row->room;
	s->n = found.n;
	if (s->listed)
		sort_falling(s->n);
	else
		gather<adjusted>(row, s->kept, s->kept.key, s->kept.key - 1, true, shared);
}

/* Narrows what is kept to its largest ones whose number (BY_WEIGHT: weight) reaches TARGET > 0 of TOTAL.  LOW: a key that the
 * last of them is likely to have or to exceed. */
template <bool adjusted> static DEVICE_NOINLINE __device__ void select(const struct row *row, struct selection *s, uint32_t low,
    word target, word total, bool by_weight, float depth, struct sample_shared *shared)
{
	struct range    whole = { s->kept.key, key_of(row->top) }, range = { max(low, s->kept.key), whole.high };
	struct gathered found;

	for (int attempt = 0;;) { /* WHOLE holds the last one kept; RANGE may */
		found = gather<adjusted>(row, s->kept, range.low, range.high, by_weight, shared);
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
			attempt = max(attempt, 1);
		} else if (range.low == range.high) {
			enum cut cut = cut_ties<adjusted>(row, &s->kept, range.low, target, by_weight, shared);

			if (cut == CUT || (cut == CUT_BELOW && range.low <= whole.low)) { /* rounding: there is no more */
				settle<adjusted>(row, s, shared);
				return;
			}
			if (cut == CUT_BELOW)
				whole.high = range.low - 1;
			else
				whole.low = range.high + 1;
			range = whole;
			attempt = max(attempt, 1);
		} else if (attempt < 4) {
			range = narrow<adjusted>(row, s->kept, whole, range, target, total, by_weight, attempt == 0 && row->pieces >= 64,
			    depth, shared);
			attempt++;
		} else { /* sure and slow: what weighs next to nothing has no bins */
			uint32_t middle = range.low + (range.high - range.low) / 2;

			if (gather<adjusted>(row, s->kept, middle + 1, middle, by_weight, shared).above >= target)
				range.low = middle + 1;
			else
				range.high = middle;
		}
	}
	sort_falling(found.n);
	s->n = by_weight ? reach(row, found.n, 32, target - found.above, shared) : (uint32_t)(target - found.above);
	s->listed = range.high == key_of(row->top);
	if (s->n > 0)
		s->kept = { (uint32_t)(row->list[s->n - 1] >> 32), ~(uint32_t)row->list[s->n - 1] + 1 };
	__syncthreads();
	if (!s->listed && !by_weight && target <= row->room)
		settle<adjusted>(row, s, shared);
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
		uint32_t middle = low + (high - low + 1) / 2, own = 0, reached = 0;

		for (uint32_t base = 0; base < row->pieces; base += DRAW_THREADS) {
			own = base + threadIdx.x < row->pieces ? key_of(row->most[base + threadIdx.x]) : 0;
			reached += (uint32_t)__syncthreads_count(own >= middle);
		}
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
 * not their largest logit, and each logit less than the key says.  Sums of pieces are there. */
static __device__ uint32_t least_of_weight(const struct row *row, word allowed, struct sample_shared *shared)
{
	uint32_t high = key_of(row->top), low = max(KEY_LEAST, key_of(row->top - 45 / row->scale)); /* what is less has no weight */

	for (int i = 0; i < 12 && low < high; i++) { /* LOW: allowed */
		uint32_t middle = low + (high - low + 1) / 2;
		float    limit = share_of(logit_of(middle), row->top, row->scale) * UNIT;
		word     own = 0;

		for (uint32_t p = threadIdx.x; p < row->pieces; p += DRAW_THREADS) {
			float most = row->most[p];
			word  sum = row->sums[p], weight = weight_of(most, row->top, row->scale);
			word  rest = sum > weight ? sum - weight : 0, others = (word)((PIECE - 1) * limit);

			own += key_of(most) < middle ? sum : min(rest, others);
		}
		if (total_of(own, shared) <= allowed)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
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

/* Sums of pieces by sample_scan become those by the row's largest logit; returns that of all. */
static __device__ word scale_sums(const struct row *row, struct sample_shared *shared)
{
	word own = 0;

	for (uint32_t p = threadIdx.x; p < row->pieces; p += DRAW_THREADS) {
		word sum = scaled_sum(row, p);

		row->sums[p] = sum;
		own += sum;
	}
	return total_of(own, shared);
}

static __device__ inline word target_of(double share, word total)
{
	word target = (word)ceil(share * (double)total);

	return target < 1 ? 1 : target > total ? total : target;
}

#endif
