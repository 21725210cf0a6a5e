/* sampler.cuh: the kernels of the sampler: one token per row, and slots.  Invariant: a draw depends on its row's logits,
 * parameters, mask and slot only, and has the same bits each time: every sum is of whole numbers.
 *
 * Order of filters as in model/backend.h: temperature, top_k, top_p, min_p; among equal logits the lower id is the larger;
 * what is left is walked in the order of ids, as the CPU backend does.
 *
 * Biases, penalties, bans and masks are applied where a logit is read (logit_of), by the arithmetic that the CPU backend
 * compiles too: logits stay as they are, rows without them run code that knows nothing of it, and nothing is stored twice.
 * The table of a slot lies beside the logits: two bytes more for each id, read in the same order.  A kernel after the draws
 * adds to it; the host only ever fills it whole, in stream order, so that it may hand a slot on at once.
 *
 * One block for a row.  A weight exp((l − max) / T) ≤ 1 is taken in units of 2⁻⁴⁴, so that the sum of a vocabulary fits
 * 64 bits and does not depend on the order.  Selection is by bits: the sortable form of a logit is cut into 11, 11 and 10
 * bits, a histogram of counts (top_k) or of weights (top_p) over each finds the digit of the last one kept, so three passes
 * find the threshold without sorting.  Ties at the threshold go to the lowest ids.  The most likely ids of a row that wants
 * log probabilities are found the same way, and then sorted. */
#ifndef PENSTOCK_GPU_SAMPLER_CUH
#define PENSTOCK_GPU_SAMPLER_CUH

#include "gpu/block.cuh"

#include "model/sampling.h"

#include <math.h>

enum { SAMPLE_THREADS = 1024, SAMPLE_WARPS = SAMPLE_THREADS / 32, BINS = 2048, PURPOSE_TOKEN = 0, FILL_THREADS = 256 };

typedef unsigned long long word;

struct sample_shared {
	word    bins[BINS];
	word    sums[SAMPLE_WARPS];
	float   most[SAMPLE_WARPS];
	int32_t ids[SAMPLE_WARPS];
	word    before, total;
	uint32_t digit;
	int32_t  found;
	uint32_t top_count;
	float    top[SAMPLE_TOP_MAX];
	int32_t  top_ids[SAMPLE_TOP_MAX];
};

struct row {
	const float *logits;
	uint32_t     count;
	float        most, factor;
	/* Of a row that is adjusted: */
	const struct sample_params *params;
	const uint16_t             *table; /* NULL = no slot */
	const struct sample_bias   *bias;
	const uint32_t             *mask;  /* NULL = none */
	const int32_t              *guesses;
	uint32_t                    bias_count, guess_count;
	int                         bans;
};

/* The few ids of a slot that change: kept out of the loops. */
static DEVICE_NOINLINE __device__ float adjust_entry(const struct row *row, float logit, uint32_t i, uint16_t entry)
{
	return sampling_adjust(logit, entry,
	    entry & SAMPLING_BIASED ? sampling_bias(row->bias, row->bias_count, (int32_t)i) : 0, row->bans, row->params);
}

/* Logit number I as it is filtered. */
template <bool adjusted> static __device__ inline float logit_of(const struct row *row, uint32_t i)
{
	float    logit = row->logits[i];
	uint16_t entry;

	if (!adjusted)
		return logit;
	if (!sampling_allows(row->mask, i))
		return SAMPLE_BANNED;
	entry = row->table ? row->table[i] : 0;
	for (uint32_t g = 0; g < row->guess_count; g++) /* few, and none at all but for speculation; they count as drawn */
		if (row->guesses[g] == (int32_t)i)
			entry = sampling_count(entry);
	return sampling_touches(entry, row->bans) ? adjust_entry(row, logit, i, entry) : logit;
}

/* Larger floats have larger keys. */
static __device__ inline uint32_t key_of(float x)
{
	uint32_t bits = __float_as_uint(x == 0 ? 0.0f : x); /* −0 equals 0 */
	return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

static __device__ inline word weight_of(float logit, float most, float factor)
{
	return (word)((double)expf((logit - most) * factor) * 0x1p44);
}

static __device__ void philox(uint64_t seed, const uint32_t counter[4], uint32_t ret[2])
{
	uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32), c[4] = { counter[0], counter[1], counter[2], counter[3] };

	for (int round = 0; round < 10; round++) {
		uint64_t a = (uint64_t)0xD2511F53 * c[0], b = (uint64_t)0xCD9E8D57 * c[2];
		uint32_t next[4] = { (uint32_t)(b >> 32) ^ c[1] ^ key0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ key1, (uint32_t)a };

		for (int i = 0; i < 4; i++)
			c[i] = next[i];
		key0 += 0x9E3779B9;
		key1 += 0xBB67AE85;
	}
	ret[0] = c[0];
	ret[1] = c[1];
}

static __device__ inline word warp_sum(word x)
{
	for (int o = 16; o; o >>= 1)
		x += __shfl_xor_sync(~0u, x, o);
	return x;
}

/* The sum over the block. */
static __device__ word total_of(word x, struct sample_shared *shared)
{
	x = warp_sum(x);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		shared->sums[threadIdx.x / 32] = x;
	__syncthreads();
	x = 0;
	for (int i = 0; i < SAMPLE_WARPS; i++)
		x += shared->sums[i];
	return x;
}

/* The sum of the threads before this one. */
static __device__ word before_of(word x, struct sample_shared *shared)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	word     own = x, before = 0;

	for (uint32_t o = 1; o < 32; o *= 2) {
		word other = __shfl_up_sync(~0u, x, o);
		x += lane >= o ? other : 0;
	}
	__syncthreads();
	if (lane == 31)
		shared->sums[warp] = x;
	__syncthreads();
	for (uint32_t i = 0; i < warp; i++)
		before += shared->sums[i];
	return before + x - own;
}

/* The largest logit and its lowest id; false when one is not finite. */
template <bool adjusted> static __device__ bool find_largest(const struct row *row, struct sample_shared *shared, float *ret,
    int32_t *ret_id)
{
	float   most = -INFINITY;
	int32_t id = 0;
	bool    finite = true;

	for (uint32_t i = threadIdx.x; i < row->count; i += SAMPLE_THREADS) {
		float x = logit_of<adjusted>(row, i);

		finite = finite && isfinite(x);
		if (x > most) {
			most = x;
			id = (int32_t)i;
		}
	}
	for (int o = 16; o; o >>= 1) {
		float   other = __shfl_xor_sync(~0u, most, o);
		int32_t its = __shfl_xor_sync(~0u, id, o);

		if (other > most || (other == most && its < id)) {
			most = other;
			id = its;
		}
	}
	__syncthreads(); /* of the pass before */
	if (threadIdx.x % 32 == 0) {
		shared->most[threadIdx.x / 32] = most;
		shared->ids[threadIdx.x / 32] = id;
	}
	finite = __syncthreads_and(finite);
	most = shared->most[0];
	id = shared->ids[0];
	for (int i = 1; i < SAMPLE_WARPS; i++) {
		if (shared->most[i] > most || (shared->most[i] == most && shared->ids[i] < id)) {
			most = shared->most[i];
			id = shared->ids[i];
		}
	}
	*ret = most;
	*ret_id = id;
	return finite;
}

/* What is kept: logits above the threshold, and of those equal to it the ids below TIES. */
struct kept {
	uint32_t key;
	uint32_t ties;
};

static __device__ inline bool is_kept(struct kept kept, float logit, uint32_t id)
{
	uint32_t key = key_of(logit);
	return key > kept.key || (key == kept.key && id < kept.ties);
}

/* The bin where the sum from the top reaches TARGET, which the bins hold: shared->digit; the sum above it: before. */
static __device__ void find_digit(struct sample_shared *shared, word target)
{
	constexpr uint32_t each = BINS / SAMPLE_THREADS;
	uint32_t           first = BINS - (threadIdx.x + 1) * each; /* thread 0 has the top bins */
	word               own = 0, before;

	for (uint32_t i = 0; i < each; i++)
		own += shared->bins[first + i];
	before = before_of(own, shared);
	if (before < target && before + own >= target) {
		for (uint32_t i = each; i-- > 0;) {
			word bin = shared->bins[first + i];

			if (before + bin >= target) {
				shared->digit = first + i;
				shared->before = before;
				break;
			}
			before += bin;
		}
	}
	__syncthreads();
}

/* Narrows KEPT to its largest ones whose count (BY_WEIGHT: weight) reaches TARGET > 0, at least one of them. */
template <bool adjusted> static __device__ struct kept select_top(const struct row *row, struct kept kept, word target,
    bool by_weight, struct sample_shared *shared)
{
	uint32_t prefix = 0, known = 0; /* bits of the threshold, and which are known */
	word     left = target, own = 0, before;
	uint32_t each = (row->count + SAMPLE_THREADS - 1) / SAMPLE_THREADS, first, end;

	for (int pass = 0; pass < 3; pass++) {
		int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;

		__syncthreads();
		for (uint32_t i = threadIdx.x; i < BINS; i += SAMPLE_THREADS)
			shared->bins[i] = 0;
		__syncthreads();
		for (uint32_t i = threadIdx.x; i < row->count; i += SAMPLE_THREADS) {
			float    logit = logit_of<adjusted>(row, i);
			uint32_t key = key_of(logit);
			word     add = 1;

			if ((key & known) != prefix || !is_kept(kept, logit, i))
				continue;
			if (by_weight)
				add = weight_of(logit, row->most, row->factor);
			if (add)
				atomicAdd(&shared->bins[key >> shift & (pass == 2 ? 1023 : 2047)], add);
		}
		__syncthreads();
		find_digit(shared, left);
		prefix |= shared->digit << shift;
		known |= (pass == 2 ? 1023u : 2047u) << shift;
		left -= shared->before;
	}
	/* The threshold is found; of those equal to it, so many in the order of ids that LEFT is reached. */
	first = threadIdx.x * each < row->count ? threadIdx.x * each : row->count;
	end = first + each < row->count ? first + each : row->count;
	for (uint32_t i = first; i < end; i++) {
		float logit = logit_of<adjusted>(row, i);
		if (key_of(logit) == prefix && is_kept(kept, logit, i))
			own += by_weight ? weight_of(logit, row->most, row->factor) : 1;
	}
	before = before_of(own, shared);
	if (before < left && before + own >= left) {
		for (uint32_t i = first; i < end; i++) {
			float logit = logit_of<adjusted>(row, i);
			if (key_of(logit) != prefix || !is_kept(kept, logit, i))
				continue;
			before += by_weight ? weight_of(logit, row->most, row->factor) : 1;
			if (before >= left) {
				shared->digit = i + 1;
				break;
			}
		}
	}
	__syncthreads();
	kept = { prefix, shared->digit };
	__syncthreads();
	return kept;
}

/* The first id whose running sum of kept weights is above SHARE of all of them. */
template <bool adjusted> static __device__ int32_t walk(const struct row *row, struct kept kept, float min_p, double share,
    struct sample_shared *shared)
{
	uint32_t each = (row->count + SAMPLE_THREADS - 1) / SAMPLE_THREADS;
	uint32_t first = threadIdx.x * each < row->count ? threadIdx.x * each : row->count;
	uint32_t end = first + each < row->count ? first + each : row->count;
	word     own = 0, before, total, target;
	int32_t  last = -1;

	for (uint32_t i = first; i < end; i++) {
		float logit = logit_of<adjusted>(row, i), weight = expf((logit - row->most) * row->factor);

		if (is_kept(kept, logit, i) && weight >= min_p && (word)((double)weight * 0x1p44)) {
			own += (word)((double)weight * 0x1p44);
			last = (int32_t)i;
		}
	}
	before = before_of(own, shared);
	total = total_of(own, shared);
	target = (word)(share * (double)total);
	target = target < total ? target : total - 1;
	if (last >= 0 && before <= target && before + own > target) {
		for (uint32_t i = first; i < end; i++) {
			float logit = logit_of<adjusted>(row, i), weight = expf((logit - row->most) * row->factor);

			if (!is_kept(kept, logit, i) || !(weight >= min_p))
				continue;
			before += (word)((double)weight * 0x1p44);
			if (before > target) {
				shared->found = (int32_t)i;
				break;
			}
		}
	}
	__syncthreads();
	return shared->found;
}

/* One draw; −1 when every id is banned. */
template <bool adjusted> static __device__ int32_t draw(struct row *row, const struct sample_job *job, int32_t largest,
    struct sample_shared *shared)
{
	const struct sample_params *params = &job->params;
	uint32_t    counter[4] = { (uint32_t)job->position, (uint32_t)(job->position >> 32), job->choice, PURPOSE_TOKEN }, random[2];
	struct kept kept = { 0, UINT32_MAX };

	if (adjusted) {
		find_largest<true>(row, shared, &row->most, &largest);
		if (row->most == SAMPLE_BANNED)
			return -1;
	}
	row->factor = 1 / params->temperature;
	if (!(params->temperature > 0) || !isfinite(row->factor) || params->top_k == 1)
		return largest;
	if (params->top_k > 0 && (uint32_t)params->top_k < row->count)
		kept = select_top<adjusted>(row, kept, (word)params->top_k, false, shared);
	if (params->top_p < 1) {
		word own = 0, total, target;

		for (uint32_t i = threadIdx.x; i < row->count; i += SAMPLE_THREADS) {
			float logit = logit_of<adjusted>(row, i);
			own += is_kept(kept, logit, i) ? weight_of(logit, row->most, row->factor) : 0;
		}
		total = total_of(own, shared);
		target = (word)ceil((double)params->top_p * (double)total);
		target = target < 1 ? 1 : target > total ? total : target;
		kept = select_top<adjusted>(row, kept, target, true, shared);
	}
	philox(params->seed, counter, random);
	return walk<adjusted>(row, kept, fminf(params->min_p, 1), (double)(((uint64_t)random[1] << 32 | random[0]) >> 11) * 0x1p-53,
	    shared);
}

/* Log probabilities of the logits as they are, of which row->most is the largest: the logarithm of the sum, for every
 * thread, and RET's most likely ids. */
static __device__ double most_likely(struct row *row, uint32_t k, struct sample_shared *shared, struct sample_logprobs *ret)
{
	struct kept kept = { 0, UINT32_MAX };
	word        own = 0;
	double      log_sum;

	row->factor = 1;
	for (uint32_t i = threadIdx.x; i < row->count; i += SAMPLE_THREADS)
		own += weight_of(row->logits[i], row->most, 1);
	log_sum = (double)row->most + log((double)total_of(own, shared) * 0x1p-44);
	if (threadIdx.x == 0)
		shared->top_count = 0;
	k = k < row->count ? k : row->count;
	if (k > 0 && k < row->count)
		kept = select_top<false>(row, kept, k, false, shared);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < row->count && k > 0; i += SAMPLE_THREADS) {
		if (is_kept(kept, row->logits[i], i)) {
			uint32_t at = atomicAdd(&shared->top_count, 1);
			if (at < SAMPLE_TOP_MAX) {
				shared->top[at] = row->logits[i];
				shared->top_ids[at] = (int32_t)i;
			}
		}
	}
	__syncthreads();
	if (threadIdx.x > 0)
		return log_sum;
	for (uint32_t n = 0; n < k; n++) { /* insertion, falling; the lower id first among equals */
		float    logit = shared->top[n];
		int32_t  id = shared->top_ids[n];
		uint32_t at = n;

		for (; at > 0 && (shared->top[at - 1] < logit || (shared->top[at - 1] == logit && shared->top_ids[at - 1] > id)); at--) {
			shared->top[at] = shared->top[at - 1];
			shared->top_ids[at] = shared->top_ids[at - 1];
		}
		shared->top[at] = logit;
		shared->top_ids[at] = id;
	}
	ret->count = k;
	for (uint32_t n = 0; n < k; n++) {
		ret->top[n].id = shared->top_ids[n];
		ret->top[n].logprob = (float)((double)shared->top[n] - log_sum);
	}
	return log_sum;
}

/* What the kernel reads and writes beside the jobs. */
struct sample_arrays {
	const float              *logits;   /* [rows][stride] */
	uint16_t                 *tables;   /* [slots][table_stride] */
	const struct sample_bias *bias;     /* [slots][SAMPLE_BIAS_MAX] */
	const uint32_t           *masks;    /* [rows with one][mask_words] */
	int32_t                  *ids, *host_ids;
	struct sample_logprobs   *logprobs; /* the host's */
	uint32_t                  stride, table_stride, mask_words;
};

/* EXTRAS: some row wants more than a plain draw.  A sample without such rows runs code without any of it. */
template <bool extras> static __global__ void __launch_bounds__(SAMPLE_THREADS) sample_kernel(const struct sample_job *jobs,
    struct sample_arrays arrays, uint32_t count, struct step_mark mark, struct backend_step_times *times)
{
	__shared__ struct sample_shared shared;
	const struct sample_job *job = &jobs[blockIdx.x];
	struct row row = { arrays.logits + (size_t)job->logit_row * arrays.stride, count };
	int32_t    id;

	mark_begin(mark);
	if ((threadIdx.x | blockIdx.x) == 0)
		times->computed = device_clock();
	if (!find_largest<false>(&row, &shared, &row.most, &id)) {
		id = -1;
	} else {
		double log_sum = 0;

		if (extras && job->params.logprobs)
			log_sum = most_likely(&row, job->params.logprobs - 1, &shared, &arrays.logprobs[blockIdx.x]);
		if (extras && (job->slot || job->mask >= 0)) {
			row.params = &job->params;
			row.table = job->slot ? arrays.tables + (size_t)(job->slot - 1) * arrays.table_stride : NULL;
			row.bias = job->slot ? arrays.bias + (size_t)(job->slot - 1) * SAMPLE_BIAS_MAX : NULL;
			row.bias_count = job->bias_count;
			row.mask = job->mask >= 0 ? arrays.masks + (size_t)job->mask * arrays.mask_words : NULL;
			row.bans = job->bans;
			row.guesses = job->guesses;
			row.guess_count = job->slot ? job->guess_count : 0;
			id = draw<true>(&row, job, id, &shared);
		} else {
			id = draw<false>(&row, job, id, &shared);
		}
		if (extras && threadIdx.x == 0 && job->params.logprobs && id >= 0)
			arrays.logprobs[blockIdx.x].drawn = (float)((double)row.logits[id] - log_sum);
	}
	if (threadIdx.x == 0) {
		arrays.ids[blockIdx.x] = id;
		arrays.host_ids[blockIdx.x] = id;
		atomicMax((unsigned long long *)&times->end, device_clock());
	}
}

/* Adds what was drawn to the slots: of rows of one slot, which follow each other, up to the first that is not what the next
 * one guessed.  A kernel of its own, since such rows read one table at a time. */
static __global__ void __launch_bounds__(FILL_THREADS) note_draws(const struct sample_job *jobs, struct sample_arrays arrays,
    uint32_t rows)
{
	for (uint32_t first = threadIdx.x; first < rows; first += FILL_THREADS) {
		uint16_t *table;

		if (!jobs[first].slot || jobs[first].guess_count > 0)
			continue;
		table = arrays.tables + (size_t)(jobs[first].slot - 1) * arrays.table_stride;
		for (uint32_t r = first; r < rows; r++) {
			const struct sample_job *job = &jobs[r];

			if (r > first && (job->guess_count == 0 || arrays.ids[r - 1] != job->guesses[job->guess_count - 1]))
				break;
			if (arrays.ids[r] >= 0)
				table[arrays.ids[r]] = sampling_count(table[arrays.ids[r]]);
		}
	}
}

/* ---- Slots ---- */

/* Words of a staging buffer, in this order: pairs of biases, bans, ids of the prompt, ids that were drawn. */
struct slot_words {
	uint32_t biases, bans, prompt, drawn;
};

static __device__ void set_flag(uint16_t *table, int32_t id, uint32_t flag)
{
	atomicOr((uint32_t *)table + id / 2, flag << id % 2 * 16);
}

static __global__ void __launch_bounds__(FILL_THREADS) fill_slot(uint16_t *table, struct sample_bias *bias, struct slot_words count,
    const int32_t *words, struct step_mark mark)
{
	uint32_t       thread = blockIdx.x * FILL_THREADS + threadIdx.x, threads = FILL_THREADS * gridDim.x;
	const int32_t *bans = words + 2 * count.biases, *prompt = bans + count.bans, *drawn = prompt + count.prompt;

	mark_begin(mark);
	for (uint32_t i = thread; i < count.biases; i += threads) {
		bias[i] = { words[2 * i], __int_as_float(words[2 * i + 1]) };
		set_flag(table, words[2 * i], SAMPLING_BIASED);
	}
	for (uint32_t i = thread; i < count.bans; i += threads)
		set_flag(table, bans[i], SAMPLING_BAN);
	for (uint32_t i = thread; i < count.prompt; i += threads)
		set_flag(table, prompt[i], SAMPLING_PROMPT);
	for (uint32_t i = thread; i < count.drawn; i += threads) {
		uint32_t *word32 = (uint32_t *)table + drawn[i] / 2, shift = drawn[i] % 2 * 16, seen = *word32, before;

		do {
			uint16_t entry = sampling_count((uint16_t)(seen >> shift));

			before = seen;
			seen = atomicCAS(word32, before, (before & ~(0xffffu << shift)) | (uint32_t)entry << shift);
		} while (seen != before);
	}
}

#endif
