/* sampler.cuh: the kernels of the sampler: one token per row, and slots.  Invariant: a draw depends on its row's logits,
 * parameters, mask and slot only, and has the same bits each time: what is summed in no fixed order are whole numbers.
 *
 * Order of filters and draw as in model/backend.h: temperature, top_k, top_p, min_p; among equal logits the lower id is the larger.
 *
 * Biases, penalties, bans and masks are applied where a logit is read (adjust), by the arithmetic that the CPU backend
 * compiles too: logits stay as they are, rows without them run code that knows nothing of it, and nothing is stored twice.
 * The table of a slot lies beside the logits: two bytes more for each id, read in the same order.  A kernel after the draws
 * adds to it; the host only ever fills it whole, in stream order, so that it may hand a slot on at once.
 *
 * Two kernels.  The first, sample_scan, reads all logits once: of each piece of PIECE ids it leaves the largest logit and,
 * for rows that need it, the sum of weights.  The second, sample_draw, has a block for each row, which looks only at the
 * pieces that matter: one that holds the largest logit; those in which proposals lie, and those that hold something larger than one
 * of which top_p asks (sampler_propose.cuh).  With top_k, or where no proposal is kept, it looks for where what is kept ends
 * (sampler_select.cuh): at the pieces whose largest logit can be among the top_k or in the mass top_p.  What it finds there goes
 * into a list in shared memory, which is sorted and cut.  Where that would be many pieces (flat distributions), a sample of the row
 * says which range of logits the end is likely to lie in, only that range is listed, and what is above it is summed for each piece.
 *
 * A weight exp((l − max) / T) ≤ 1 is taken in units of 2⁻⁴⁴, so that the sum of a vocabulary fits 64 bits and does not
 * depend on the order.  Only within a lane are floats added, in an order that is the same for every batch; sums by sample_scan are
 * relative to the piece's own largest logit. */
#ifndef PENSTOCK_GPU_SAMPLER_CUH
#define PENSTOCK_GPU_SAMPLER_CUH

#include "gpu/sampler_propose.cuh"

#include <float.h>

enum { SCAN_THREADS = 256, SCAN_WARPS = SCAN_THREADS / 32, SCAN_BLOCKS = 8, SCAN_EACH_MAX = 4, AT_ONCE = 2,
	FILL_THREADS = 256, PLAIN_THREADS = 256, PLAIN_WARPS = PLAIN_THREADS / 32, PLAIN_EACH = 4,
	PLAIN_PIECES_MAX = PLAIN_THREADS * PLAIN_EACH };

/* ---- The scan ---- */

/* The largest of a warp's values and, where it is wanted, the sum of their weights by it, of piece P. */
static __device__ inline void note_piece(const struct row *row, uint32_t p, const float v[8], float bad, bool sums)
{
	float  most = fmaxf(fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])), fmaxf(fmaxf(v[4], v[5]), fmaxf(v[6], v[7])));
	double sum = 0;

	most = logit_of(__reduce_max_sync(~0u, key_of(most)));
	if (sums) {
		float w[8];

		for (int j = 0; j < 8; j++)
			w[j] = share_of(v[j], most, row->scale);
		sum = (double)(((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7])));
		for (int o = 16; o; o >>= 1)
			sum += __shfl_xor_sync(~0u, sum, o);
	}
	bad = __any_sync(~0u, !(bad == 0)) ? NAN : most;
	if (threadIdx.x % 32 == 0) {
		row->most[p] = bad;
		if (sums)
			row->sums[p] = (word)(sum * 0x1p44);
	}
}

/* Block (x, y): EACH pieces for each warp of row y, a multiple of AT_ONCE. */
template <bool extras> static __global__ void __launch_bounds__(SCAN_THREADS, extras ? SCAN_BLOCKS / 2 : SCAN_BLOCKS)
    sample_scan(
    const struct sample_job *jobs, struct sample_arrays arrays, uint32_t count, uint32_t each, struct step_mark mark,
    struct backend_step_times *times)
{
	const struct sample_job *job = &jobs[blockIdx.y];
	struct row row = row_of(job, blockIdx.y, &arrays, count), plain = row;
	uint32_t   lane = threadIdx.x % 32, first = (blockIdx.x * SCAN_WARPS + threadIdx.x / 32) * each;
	bool       sums = wants_sums(&job->params, count), adjusted = extras && (job->slot || job->mask >= 0);

	dependents_launch();
	mark_begin(mark);
	if ((threadIdx.x | blockIdx.x | blockIdx.y) == 0)
		times->computed = device_clock();
	if (extras) {
		adjust_by(&row, job, &arrays);
		make_plain(&plain, &arrays);
	}
	for (uint32_t p = first; p < first + each && p < row.pieces; p += AT_ONCE) {
		struct changes<2> changes[AT_ONCE];
		float v[AT_ONCE][8]; /* of the last ones nothing, perhaps: then it is written nowhere */

#pragma unroll
		for (uint32_t n = 0; n < AT_ONCE; n++) {
			for (uint32_t h = 0; h < 2; h++)
				load4_plain(&row, (p + n) * PIECE + h * (PIECE / 2) + lane * 4, v[n] + h * 4);
			if (extras && adjusted)
				changes[n] = load_piece_changes(&row, p + n);
		}
#pragma unroll
		for (uint32_t n = 0; n < AT_ONCE; n++) {
			float bad = 0;

			if (p + n >= row.pieces)
				break;
			if ((p + n + 1) * PIECE <= count)
				for (int j = 0; j < 8; j++)
					bad = fmaf(v[n][j], 0, bad);
			else
				for (uint32_t j = 0; j < 8; j++)
					bad = (p + n) * PIECE + j / 4 * (PIECE / 2) + lane * 4 + j % 4 < count ? fmaf(v[n][j], 0, bad) : bad;
			if (extras && job->params.logprobs)
				note_piece(&plain, p + n, v[n], bad, true);
			if (extras && adjusted)
				adjust_piece(&row, p + n, changes[n], v[n]);
			note_piece(&row, p + n, v[n], bad, sums);
		}
	}
}

/* ---- The draw ---- */

/* How far below the largest logit rough bins of weights begin: what is below them weighs next to nothing. */
static __device__ inline float depth_of(const struct row *row, word rest, word total)
{
	return log2f(64 * (float)row->count * UNIT / fmaxf((float)rest, (float)total * 0x1p-24f)) / row->scale + 1e-20f;
}

static __device__ void philox(uint64_t seed, const uint32_t counter[4], uint32_t ret[4])
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
	for (int i = 0; i < 4; i++)
		ret[i] = c[i];
}

/* The row's random number NUMBER: below 1, 53 bits. */
static __device__ double random_of(const struct sample_job *job, uint32_t number)
{
	uint32_t counter[4] = { (uint32_t)job->position, (uint32_t)(job->position >> 32), job->choice, number / 2 }, random[4];

	philox(job->params.seed, counter, random);
	return (double)((number % 2 ? (uint64_t)random[3] << 32 | random[2] : (uint64_t)random[1] << 32 | random[0]) >> 11) * 0x1p-53;
}

/* By one warp: the lowest id of the largest logit, which piece P holds. */
template <bool adjusted> static __device__ int32_t first_in(const struct row *row, uint32_t p)
{
	uint32_t id = p * PIECE + threadIdx.x % 32 * 8, at = 8, lanes;
	float    v[8];

#pragma unroll
	for (uint32_t h = 0; h < 2; h++)
		load4<adjusted>(row, id + h * 4, v + h * 4);
#pragma unroll
	for (uint32_t j = 8; j-- > 0;)
		at = v[j] == row->top ? j : at;
	lanes = __ballot_sync(~0u, at < 8);
	return (int32_t)__shfl_sync(~0u, id + at, (__ffs((int)lanes) - 1) % 32);
}

template <bool adjusted> static __device__ int32_t first_of(const struct row *row, uint32_t p, struct sample_shared *shared)
{
	if (threadIdx.x < 32) {
		int32_t id = first_in<adjusted>(row, p);

		if (threadIdx.x == 0)
			shared->found = id;
	}
	__syncthreads();
	return shared->found;
}

/* The largest logit, and the first piece with it; false when one is not finite.  From then on MOST and SUMS are in shared memory,
 * if there is room; what sample_scan left of sums, if SCANNED. */
static __device__ bool find_top(struct row *row, bool scanned, struct sample_shared *shared, uint32_t *ret_piece)
{
	word own = 0;
	bool finite = true, staged = row->pieces <= STAGED;

	for (uint32_t base = threadIdx.x; base < row->pieces; base += 2 * DRAW_THREADS) {
		float most[2];
		word  sums[2];

#pragma unroll
		for (uint32_t n = 0; n < 2; n++) { /* loads that do not wait for each other */
			bool some = base + n * DRAW_THREADS < row->pieces;

			most[n] = some ? row->most[base + n * DRAW_THREADS] : -FLT_MAX;
			sums[n] = some && staged && scanned ? row->sums[base + n * DRAW_THREADS] : 0;
		}
#pragma unroll
		for (uint32_t n = 0; n < 2; n++) {
			uint32_t p = base + n * DRAW_THREADS;
			word     entry = (word)key_of(most[n]) << 32 | ~p;

			if (p >= row->pieces)
				break;
			finite = finite && isfinite(most[n]);
			own = entry > own ? entry : own;
			if (staged)
				shared->most[p] = most[n];
			if (staged && scanned)
				shared->piece_sums[p] = sums[n];
		}
	}
	for (int o = 16; o; o >>= 1) {
		word other = __shfl_xor_sync(~0u, own, o);
		own = other > own ? other : own;
	}
	__syncthreads();
	row->most = staged ? shared->most : row->most;
	row->sums = staged ? shared->piece_sums : row->sums;
	if (threadIdx.x % 32 == 0)
		shared->sums[threadIdx.x / 32] = own;
	finite = __syncthreads_and(finite);
	for (int i = 0; i < DRAW_WARPS; i++)
		own = shared->sums[i] > own ? shared->sums[i] : own;
	row->top = logit_of((uint32_t)(own >> 32));
	*ret_piece = ~(uint32_t)own;
	__syncthreads();
	return finite;
}

/* The first proposal that is kept, of a row without top_k, if that is found out sooner than all that is kept; −1: all proposals
 * are there for what will be kept.  *ret_total: the weight of all. */
template <bool adjusted> static DEVICE_NOINLINE __device__ int32_t draw_proposal(const struct row *row,
    const struct sample_params *params, word *ret_total, struct sample_shared *shared)
{
	word    before, total = scale_sums(row, shared, &before);
	int32_t id = -1;

	for (uint32_t round = 0; id < 0 && round < PROPOSE_ROUNDS; round++) {
		propose<adjusted>(row, fminf(params->min_p, 1), round, before, total, shared);
		if (!(params->top_p < 1))
			id = first_kept({ KEY_LEAST, UINT32_MAX }, (round + 1) * PROPOSED, shared);
		else if (round == 0)
			id = first_in_mass<adjusted>(row, target_of((double)params->top_p, total), total, params->top_p >= MASS_LEAST,
			    shared);
	}
	*ret_total = total;
	return id;
}

/* One draw; −1 when every id is banned. */
template <bool adjusted> static __device__ int32_t draw(struct row *row, const struct sample_job *job, uint32_t piece,
    struct sample_shared *shared)
{
	const struct sample_params *params = &job->params;
	struct selection s = { { KEY_LEAST, UINT32_MAX }, 0, false };
	bool    number = cuts_number(params, row->count);
	word    total = 0;
	double  random = shared->random[number ? 0 : SAMPLE_PROPOSALS];
	int32_t id;

	if (adjusted && row->top == SAMPLE_BANNED)
		return -1;
	if (is_greedy(params))
		return first_of<adjusted>(row, piece, shared);
	if (number) {
		uint32_t k = (uint32_t)params->top_k;

		select<adjusted>(row, &s, least_of_number(row, k), k, row->count, false, NUMBER_DEPTH, shared);
	} else if ((id = draw_proposal<adjusted>(row, params, &total, shared)) >= 0) {
		return id;
	}
	if (params->top_p < 1 && s.listed) {
		s.n = reach(row, s.n, 32, target_of((double)params->top_p, list_weight(row, s.n, shared)), shared);
	} else if (params->top_p < 1) {
		word target;

		total = number ? sum_sums(row, shared) : total;
		target = target_of((double)params->top_p, total);
		select<adjusted>(row, &s, number ? KEY_LEAST : least_of_weight(row, (total - target) / 1024 * 1023, shared), target, total,
		    true, depth_of(row, total - target, total), shared);
		if (!number && (id = first_kept(s.kept, SAMPLE_PROPOSALS, shared)) >= 0)
			return id;
	}
	if (params->min_p > 0) {
		uint32_t key = least_of_share(row, fminf(params->min_p, 1));

		if (s.listed) {
			s.n = min(s.n, max(count_from(row, s.n, key), 1u));
		} else if (key > s.kept.key) {
			s.kept = { key, UINT32_MAX };
			settle<adjusted>(row, &s, false, shared);
		}
	}
	if (!s.listed)
		return pick<adjusted>(row, s.kept, target_at(random, sum_sums(row, shared)), false, shared);
	total = list_weight(row, s.n, shared);
	for (uint32_t i = threadIdx.x; i < s.n; i += DRAW_THREADS) /* in the order of ids */
		row->list[i] = row->list[i] << 32 | row->list[i] >> 32;
	__syncthreads();
	sort_falling(s.n, shared);
	return (int32_t)~(uint32_t)(row->list[reach(row, s.n, 0, target_at(random, total) + 1, shared) - 1] >> 32);
}

/* Log probabilities of the logits as they are: the logarithm of the sum, for every thread, and RET's K most likely ids. */
static __device__ double most_likely(struct row *row, uint32_t k, struct sample_shared *shared, struct sample_logprobs *ret)
{
	struct selection s = { { KEY_LEAST, UINT32_MAX }, 0, false };
	word             before;
	double           log_sum = (double)row->top + log((double)scale_sums(row, shared, &before) * 0x1p-44);

	k = k < row->count ? k : row->count;
	if (k > 0)
		select<false>(row, &s, least_of_number(row, k), k, row->count, false, NUMBER_DEPTH, shared);
	if (threadIdx.x < k) {
		ret->top[threadIdx.x].id = (int32_t)~(uint32_t)row->list[threadIdx.x];
		ret->top[threadIdx.x].logprob = (float)((double)logit_of((uint32_t)(row->list[threadIdx.x] >> 32)) - log_sum);
	}
	if (threadIdx.x == 0)
		ret->count = k;
	__syncthreads();
	return log_sum;
}

/* A block for each row.  EXTRAS: some row wants more than a plain draw.  A sample without such rows runs code without any of
 * it. */
template <bool extras> static __global__ void __launch_bounds__(DRAW_THREADS, 2) sample_draw(const struct sample_job *jobs,
    struct sample_arrays arrays, uint32_t count, struct step_mark mark, struct backend_step_times *times)
{
	__shared__ struct sample_shared shared;
	const struct sample_job *job = &jobs[blockIdx.x];
	struct row row = row_of(job, blockIdx.x, &arrays, count);
	uint32_t   piece;
	int32_t    id = -1;

	if (threadIdx.x <= SAMPLE_PROPOSALS)
		shared.random[threadIdx.x] = random_of(job, threadIdx.x);
	dependency_wait(); /* the scan began when the jobs were there */
	mark_begin(mark);
	row.list = (word *)shared_memory();
	if (find_top(&row, wants_sums(&job->params, count), &shared, &piece)) {
		if (extras && (job->slot || job->mask >= 0)) {
			adjust_by(&row, job, &arrays);
			id = draw<true>(&row, job, piece, &shared);
		} else {
			id = draw<false>(&row, job, piece, &shared);
		}
		if (extras && job->params.logprobs) {
			struct row plain = row_of(job, blockIdx.x, &arrays, count);
			double     log_sum;

			plain.list = row.list;
			make_plain(&plain, &arrays);
			find_top(&plain, true, &shared, &piece);
			log_sum = most_likely(&plain, job->params.logprobs - 1, &shared, &arrays.logprobs[blockIdx.x]);
			if (threadIdx.x == 0 && id >= 0)
				arrays.logprobs[blockIdx.x].drawn = (float)((double)row.logits[id] - log_sum);
		}
	}
	if (threadIdx.x == 0) {
		arrays.ids[blockIdx.x] = id;
		arrays.host_ids[blockIdx.x] = id;
		atomicMax((unsigned long long *)&times->end, device_clock());
	}
}

/* What the threads of sample_draw_plain tell each other. */
struct plain_shared {
	word     tops[PLAIN_WARPS], sums[PLAIN_WARPS], left, sum;
	uint32_t piece;
};

/* One draw without filters, of pieces with MOST and SUMS, from FIRST on; by those threads' first warp,
 * others get −1.  −1 when every id is banned. */
template <bool adjusted> static __device__ int32_t draw_plain(const struct row *row, const struct sample_job *job, uint32_t piece,
    uint32_t first, const float *most, const word *sums, double random, struct plain_shared *shared)
{
	word own = 0, before, total, all = 0, target, scaled[PLAIN_EACH]; /* of none 0 */

	if (adjusted && row->top == SAMPLE_BANNED)
		return -1;
	if (is_greedy(&job->params))
		return threadIdx.x < 32 ? first_in<adjusted>(row, piece) : -1;
#pragma unroll
	for (uint32_t i = 0; i < PLAIN_EACH; i++) {
		scaled[i] = (word)((double)sums[i] * (double)share_of(most[i], row->top, row->scale));
		own += scaled[i];
	}
	before = warp_before(own, &total);
	if (threadIdx.x % 32 == 0)
		shared->sums[threadIdx.x / 32] = total;
	__syncthreads();
#pragma unroll
	for (uint32_t i = 0; i < PLAIN_WARPS; i++) {
		before += i < threadIdx.x / 32 ? shared->sums[i] : 0;
		all += shared->sums[i];
	}
	target = target_at(random, all);
#pragma unroll
	for (uint32_t i = 0; i < PLAIN_EACH; i++) {
		if (before <= target && before + scaled[i] > target) { /* one of all */
			shared->piece = first + i;
			shared->left = target - before;
			shared->sum = scaled[i];
		}
		before += scaled[i];
	}
	__syncthreads();
	if (threadIdx.x >= 32)
		return -1;
	return pick_in<adjusted, false>(row, { KEY_LEAST, UINT32_MAX }, shared->piece, shared->left, shared->sum, false, true).id;
}

/* A block for each row, of samples in which no row has filters or wants log probabilities, and of no more than PLAIN_PIECES_MAX
 * pieces: ids as by sample_draw, sooner. */
template <bool extras> static __global__ void __launch_bounds__(PLAIN_THREADS) sample_draw_plain(const struct sample_job *jobs,
    struct sample_arrays arrays, uint32_t count, struct step_mark mark, struct backend_step_times *times)
{
	__shared__ struct plain_shared shared;
	const struct sample_job *job = &jobs[blockIdx.x];
	struct row row = row_of(job, blockIdx.x, &arrays, count);
	uint32_t   each = (row.pieces + PLAIN_THREADS - 1) / PLAIN_THREADS, first = threadIdx.x * each;
	double     random = random_of(job, 0);
	bool       weights = !is_greedy(&job->params), finite = true;
	float      most[PLAIN_EACH];
	word       sums[PLAIN_EACH], top = 0;
	int32_t    id = -1;

	dependency_wait(); /* the scan began when the jobs were there */
	mark_begin(mark);
#pragma unroll
	for (uint32_t i = 0; i < PLAIN_EACH; i++) {
		bool some = i < each && first + i < row.pieces;

		most[i] = some ? row.most[first + i] : -FLT_MAX;
		sums[i] = some && weights ? row.sums[first + i] : 0;
	}
#pragma unroll
	for (uint32_t i = 0; i < PLAIN_EACH; i++) {
		word entry = (word)key_of(most[i]) << 32 | ~(first + i);

		finite = finite && isfinite(most[i]);
		top = entry > top ? entry : top;
	}
	for (int o = 16; o; o >>= 1) {
		word other = __shfl_xor_sync(~0u, top, o);
		top = other > top ? other : top;
	}
	if (threadIdx.x % 32 == 0)
		shared.tops[threadIdx.x / 32] = top;
	finite = __syncthreads_and(finite);
#pragma unroll
	for (uint32_t i = 0; i < PLAIN_WARPS; i++)
		top = shared.tops[i] > top ? shared.tops[i] : top;
	row.top = logit_of((uint32_t)(top >> 32));
	if (finite && extras && (job->slot || job->mask >= 0)) {
		adjust_by(&row, job, &arrays);
		id = draw_plain<true>(&row, job, ~(uint32_t)top, first, most, sums, random, &shared);
	} else if (finite) {
		id = draw_plain<false>(&row, job, ~(uint32_t)top, first, most, sums, random, &shared);
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
