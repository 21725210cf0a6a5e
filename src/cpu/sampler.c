/* sampler.c: owns the draw of one token per row.  Does not own the logits (kept by the backend since `logits`), nor what is
 * done to them before they are filtered (sample_slots.c).
 * Invariant: a draw depends on its row's logits, its sample_row and its slot only; neighbours, threads and steps have no
 * part in it.
 *
 * Order of filters and draw as in model/backend.h: temperature, top_k, top_p, min_p.  Among equal logits the lower id is the
 * larger.
 *
 * Selection, where proposals do not do.  Sorting 50,000 logits for every token would take longer than the model's output layer.
 * Candidates are first narrowed to those within some temperatures of the maximum, far enough to hold k of them or the mass p;
 * then select_top() splits off the k largest, or the smallest set of largest that holds the mass, without sorting them.
 */
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { CHUNKS = 64 }; /* of a row */

void cpu_philox4x32(uint64_t seed, const uint32_t counter[4], uint32_t ret[4])
{
	uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, c[4];

	memcpy(c, counter, sizeof c);
	for (int round = 0; round < 10; round++) {
		uint64_t a = UINT64_C(0xD2511F53) * c[0], b = UINT64_C(0xCD9E8D57) * c[2];
		uint32_t next[4] = { (uint32_t)(b >> 32) ^ c[1] ^ key[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ key[1],
		    (uint32_t)a };

		memcpy(c, next, sizeof c);
		key[0] += 0x9E3779B9;
		key[1] += 0xBB67AE85;
	}
	memcpy(ret, c, sizeof c);
}

/* The row's random number NUMBER, uniform in [0, 1). */
static double uniform(const struct sample_row *row, uint32_t number)
{
	uint32_t counter[4] = { (uint32_t)row->position, (uint32_t)(row->position >> 32), row->choice, number / 2 }, word[4];

	cpu_philox4x32(row->params.seed, counter, word);
	return (double)(((uint64_t)word[number % 2 * 2 + 1] << 32 | word[number % 2 * 2]) >> 11) * 0x1p-53;
}

static inline bool larger(const struct sample_candidate *a, const struct sample_candidate *b)
{
	return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static inline void swap(struct sample_candidate *a, struct sample_candidate *b)
{
	struct sample_candidate t = *a;
	*a = *b;
	*b = t;
}

/* Moves the pivot of [low, high) to its place, larger ones before it; returns that place. */
static uint32_t partition(struct sample_candidate *c, uint32_t low, uint32_t high)
{
	uint32_t middle = low + (high - low) / 2, last = high - 1, at = low;

	if (larger(&c[middle], &c[low]))
		swap(&c[middle], &c[low]);
	if (larger(&c[last], &c[low]))
		swap(&c[last], &c[low]);
	if (larger(&c[middle], &c[last]))
		swap(&c[middle], &c[last]); /* the median of three is last */
	for (uint32_t i = low; i < last; i++)
		if (larger(&c[i], &c[last]))
			swap(&c[i], &c[at++]);
	swap(&c[at], &c[last]);
	return at;
}

/* Reorders so that the returned number of first candidates is the smallest set of largest ones whose count (BY_MASS:
 * whose weight) reaches TARGET; all of them when it is not reached.  Linear time on average. */
static uint32_t select_top(struct sample_candidate *c, uint32_t count, double target, bool by_mass)
{
	uint32_t low = 0, high = count;
	double   before = 0; /* of [0, low) */

	while (low < high) {
		uint32_t pivot = partition(c, low, high);
		double   upper = before;

		for (uint32_t i = low; i < pivot; i++)
			upper += by_mass ? (double)c[i].weight : 1;
		if (upper >= target) {
			high = pivot;
			continue;
		}
		upper += by_mass ? (double)c[pivot].weight : 1;
		if (upper >= target)
			return pivot + 1;
		before = upper;
		low = pivot + 1;
	}
	return low;
}

static double sum_weights(const float *weights, uint32_t count)
{
	double sum[4] = { 0 };

	for (uint32_t i = 0; i < count; i++)
		sum[i % 4] += (double)weights[i];
	return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

static uint32_t chunk_begin(uint32_t count, uint32_t chunk) { return (uint32_t)((uint64_t)count * chunk / CHUNKS); }

/* The weights of parts of a row, and of all of it. */
static double sum_chunks(const float *weights, uint32_t count, double ret[CHUNKS])
{
	double mass = 0;

	for (uint32_t i = 0; i < CHUNKS; i++) {
		uint32_t first = chunk_begin(count, i);

		ret[i] = sum_weights(weights + first, chunk_begin(count, i + 1) - first);
		mass += ret[i];
	}
	return mass;
}

/* The id at which the weights come to more than TARGET; the last with any where rounding says that they do not. */
static int32_t find_at(const float *weights, uint32_t count, const double chunks[CHUNKS], double target)
{
	uint32_t chunk = 0;
	double   before = 0, at = 0;
	int32_t  last = 0;

	for (uint32_t i = 0; i < CHUNKS; i++) {
		if (!(chunks[i] > 0))
			continue;
		chunk = i;
		before = at;
		at += chunks[i];
		if (at > target)
			break;
	}
	for (uint32_t i = chunk_begin(count, chunk); i < chunk_begin(count, chunk + 1); i++) {
		before += (double)weights[i];
		last = weights[i] > 0 ? (int32_t)i : last;
		if (before > target)
			break;
	}
	return last;
}

/* The weight of what is larger than ID. */
static double weight_above(const float *logits, const float *weights, uint32_t count, int32_t id)
{
	double sum[4] = { 0 };

	for (uint32_t i = 0; i < (uint32_t)id; i++)
		sum[i % 4] += logits[i] >= logits[id] ? (double)weights[i] : 0;
	for (uint32_t i = (uint32_t)id + 1; i < count; i++)
		sum[i % 4] += logits[i] > logits[id] ? (double)weights[i] : 0;
	return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* Lists the candidates whose weight is at least exp(−reach); returns their number. */
static uint32_t gather(const float *logits, const float *weights, uint32_t count, float floor_weight,
    struct sample_candidate *ret, double *ret_mass)
{
	uint32_t n = 0;
	double   mass = 0;

	for (uint32_t i = 0; i < count; i++) {
		if (weights[i] < floor_weight)
			continue;
		ret[n++] = (struct sample_candidate){ logits[i], weights[i], (int32_t)i };
		mass += (double)weights[i];
	}
	*ret_mass = mass;
	return n;
}

/* The k largest, in any order. */
static uint32_t keep_top_k(const float *logits, const float *weights, uint32_t count, uint32_t k,
    struct sample_candidate *c, double *ret_mass)
{
	uint32_t n = 0;

	for (float reach = 4; reach < 64; reach *= 2) {
		n = gather(logits, weights, count, expf(-reach), c, ret_mass);
		if (n >= k)
			break;
	}
	if (n < k)
		n = gather(logits, weights, count, 0, c, ret_mass);
	n = select_top(c, n, k, false);
	*ret_mass = 0;
	for (uint32_t i = 0; i < n; i++)
		*ret_mass += (double)c[i].weight;
	return n;
}

/* The N candidates that a selection left, in the order of ids: every backend walks them so. */
static uint32_t order_by_id(const float *logits, const float *weights, uint32_t count, struct sample_candidate *c,
    uint32_t n)
{
	struct sample_candidate least = c[0];
	uint32_t                kept = 0;
	double                  mass;

	for (uint32_t i = 1; i < n; i++)
		if (larger(&least, &c[i]))
			least = c[i];
	n = gather(logits, weights, count, least.weight, c, &mass);
	for (uint32_t i = 0; i < n; i++)
		if (!larger(&least, &c[i]))
			c[kept++] = c[i];
	return kept;
}

/* The first proposal that is kept, of a row without top_k; −1: none is.  MIN_P: least weight; TARGET: what that of all that is
 * larger must not reach. */
static int32_t propose(const float *logits, const float *weights, uint32_t count, float min_p, double target, bool bans,
    const struct sample_row *row, const double chunks[CHUNKS], double mass)
{
	int32_t refused = -1; /* what is smaller is not kept either */

	for (uint32_t n = 0; n < SAMPLE_PROPOSALS; n++) {
		int32_t id = find_at(weights, count, chunks, uniform(row, n) * mass);

		if (weights[id] < min_p || (bans && logits[id] == SAMPLE_BANNED))
			continue;
		if (refused >= 0 && (logits[id] < logits[refused] || (logits[id] == logits[refused] && id >= refused)))
			continue;
		if (!(row->params.top_p < 1) || weight_above(logits, weights, count, id) < target)
			return id;
		refused = id;
	}
	return -1;
}

/* Draws from logits that are finite, MAX the largest; those that are SAMPLE_BANNED are never drawn when BANS. */
static int32_t draw(struct cpu_thread *scratch, const struct cpu_kernels *kernels, const float *logits, uint32_t count, float max,
    bool bans, const struct sample_row *row)
{
	const struct sample_params *params = &row->params;
	struct sample_candidate    *c = scratch->candidates;
	float   *weights = scratch->weights, factor, min_p = fminf(params->min_p, 1);
	uint32_t n = 0, kept = 0;
	double   mass, target, u;
	bool     listed = false;

	factor = 1 / params->temperature;
	if (!(params->temperature > 0) || !isfinite(factor) || params->top_k == 1) {
		int32_t id = 0;
		while (logits[id] != max)
			id++;
		return id;
	}
	kernels->weights(logits, count, max, factor, weights);
	if (params->top_k > 0 && (uint32_t)params->top_k < count) {
		n = keep_top_k(logits, weights, count, (uint32_t)params->top_k, c, &mass);
		listed = true;
	} else {
		double  chunks[CHUNKS];
		int32_t id;

		mass = sum_chunks(weights, count, chunks);
		target = fmax((double)params->top_p * mass, 0x1p-1000);
		if ((id = propose(logits, weights, count, min_p, target, bans, row, chunks, mass)) >= 0)
			return id;
	}
	if (params->top_p < 1) {
		/* At least one is kept: the target is above 0. */
		target = fmax((double)params->top_p * mass, 0x1p-1000);
		if (!listed) {
			double held = 0;
			for (float reach = 4; held < target && reach < 64; reach *= 2)
				n = gather(logits, weights, count, expf(-reach), c, &held);
			if (held < target)
				n = gather(logits, weights, count, 0, c, &held);
		}
		n = select_top(c, n, target, true);
	}
	u = uniform(row, listed ? 0 : SAMPLE_PROPOSALS);
	if (listed || params->top_p < 1)
		n = order_by_id(logits, weights, count, c, n);
	else
		n = gather(logits, weights, count, min_p, c, &mass);
	/* The largest weight is 1, so min_p is a bound on weights as they are. */
	mass = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (c[i].weight < min_p || (bans && c[i].logit == SAMPLE_BANNED))
			continue;
		mass += (double)c[i].weight;
		c[kept++] = c[i];
	}
	for (uint32_t i = 0; i + 1 < kept; i++) {
		u -= (double)c[i].weight / mass;
		if (u < 0)
			return c[i].id;
	}
	return c[kept - 1].id;
}

/* The whole of one row: see the order in model/backend.h. */
static int32_t draw_row(struct cpu_backend *cpu, struct cpu_thread *scratch, const float *logits, uint32_t count,
    const struct sample_row *row, struct sample_logprobs *ret)
{
	const struct cpu_kernels *kernels = cpu->kernels;
	const float              *given = logits;
	bool                      adjusted = row->slot || row->mask;
	float                     top, max;
	int32_t                   id;

	ret->count = UINT32_MAX; /* none */
	if (!kernels->scan(logits, count, &top))
		return -1;
	max = top;
	if (adjusted) {
		cpu_sample_adjust(cpu, logits, count, row, scratch->adjusted);
		logits = scratch->adjusted;
		if (!kernels->scan(logits, count, &max) || max == SAMPLE_BANNED)
			return -1;
	}
	id = draw(scratch, kernels, logits, count, max, adjusted, row);
	if (row->params.logprobs)
		cpu_sample_logprobs(kernels, given, count, top, row->params.logprobs - 1, scratch->weights, id, ret);
	return id;
}

/* Adds what the rows drew to their slots: of rows of one slot, up to the first that is not what the next one guessed. */
static void note_draws(struct cpu_backend *cpu, const struct sample_row *rows, const int32_t *ids, uint32_t count)
{
	bool counts = true;

	for (uint32_t i = 0; i < count; i++) {
		counts = rows[i].guess_count == 0 || (counts && i > 0 && ids[i - 1] == rows[i].guesses[rows[i].guess_count - 1]);
		if (rows[i].slot && counts && ids[i] >= 0)
			cpu_sample_note(cpu, rows[i].slot - 1, ids[i]);
	}
}

struct sample_job {
	struct cpu_backend      *cpu;
	const struct sample_row *rows;
	int32_t                 *ids;
	struct sample_logprobs  *logprobs;
	uint32_t                 vocab_limit;
};

static void sample_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct sample_job *job = context;
	struct cpu_scratch      *scratch = &job->cpu->scratch;

	for (uint32_t i = first; i < first + count; i++)
		job->ids[i] = draw_row(job->cpu, &scratch->threads[thread],
		    scratch->logits + (size_t)job->rows[i].logit_row * job->cpu->logits_vocab, job->vocab_limit, &job->rows[i],
		    &job->logprobs[i]);
}

enum status cpu_sample(struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	uint32_t            part = (uint32_t)(cpu->samples % BACKEND_SAMPLES_MAX);
	struct sample_job   job = { cpu, rows, cpu->scratch.ids + (size_t)part * cpu->scratch.limits.logit_rows,
		cpu->scratch.logprobs + (size_t)part * cpu->scratch.limits.logit_rows,
		vocab_limit < cpu->logits_vocab ? vocab_limit : cpu->logits_vocab };

	if (cpu->samples - cpu->waited == BACKEND_SAMPLES_MAX) /* nobody asked for the oldest */
		cpu->waited++;
	if (!cpu->batch || count > cpu->scratch.limits.logit_rows || job.vocab_limit == 0)
		return STATUS_INVALID;
	for (uint32_t i = 0; i < count; i++)
		if (rows[i].logit_row >= cpu->batch->logit_row_count || rows[i].slot > cpu->scratch.limits.logit_rows ||
		    rows[i].params.logprobs > SAMPLE_TOP_MAX + 1)
			return STATUS_INVALID;
	team_run(cpu->team, sample_rows, &job, count);
	note_draws(cpu, rows, job.ids, count);
	cpu->sampled[part] = count;
	cpu->samples++;
	return STATUS_OK;
}
