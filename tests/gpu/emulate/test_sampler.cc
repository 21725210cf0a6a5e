/* test_sampler.cc: the kernels of gpu/sampler.cuh against a sampler that sorts: greedy and drawn ids, filters alone and together,
 * ties, penalties, biases, bans, masks, guesses, log probabilities, slots.  Ids must be the same, not nearly so. */
#include "expect.h"
#include "gpu/sampler.cuh"

#include <algorithm>

constexpr int VOCAB = 1537, STRIDE = 1544, SLOTS = 4;

/* Of the rows of this test; then of wide ones. */
static int vocab = VOCAB, stride = STRIDE;

/* ---- The reference ---- */

/* Philox4x32-10 as in Salmon et al. 2011: a round multiplies, swaps and xors; the key is bumped between rounds. */
static void reference_philox(uint32_t counter[4], uint32_t key0, uint32_t key1)
{
	for (int round = 0; round < 10; round++) {
		uint64_t first = 0xD2511F53ull * counter[0], second = 0xCD9E8D57ull * counter[2];

		counter[0] = (uint32_t)(second >> 32) ^ counter[1] ^ key0;
		counter[1] = (uint32_t)second;
		counter[2] = (uint32_t)(first >> 32) ^ counter[3] ^ key1;
		counter[3] = (uint32_t)first;
		key0 += 0x9E3779B9;
		key1 += 0xBB67AE85;
	}
}

struct slot {
	std::vector<uint16_t>    table = std::vector<uint16_t>(stride);
	std::vector<sample_bias> bias;
};

/* The logits as they are filtered: model/backend.h's words about slots, once more. */
static std::vector<float> adjusted(const float *logits, const struct sample_job *job, const struct slot *slot, const uint32_t *mask)
{
	std::vector<float> ret(logits, logits + vocab);

	for (int32_t i = 0; i < vocab; i++) {
		const struct sample_params *p = &job->params;
		uint32_t entry = slot ? slot->table[i] : 0, count = entry & SAMPLE_COUNT_MAX;

		if (slot)
			for (uint32_t g = 0; g < job->guess_count; g++)
				count += job->guesses[g] == i;
		if (slot && entry & SAMPLING_BIASED)
			for (const sample_bias &bias : slot->bias)
				ret[i] += bias.id == i ? bias.add : 0;
		if (slot && p->repetition != 0 && (count || entry & SAMPLING_PROMPT))
			ret[i] = ret[i] > 0 ? ret[i] / p->repetition : ret[i] * p->repetition;
		if (slot && count)
			ret[i] = (float)((double)ret[i] - (double)count * (double)p->frequency - (double)p->presence);
		if ((mask && !(mask[i / 32] >> i % 32 & 1)) || (slot && job->bans && entry & SAMPLING_BAN))
			ret[i] = SAMPLE_BANNED;
	}
	return ret;
}

/* The uniform number NUMBER of a row, times TOTAL. */
static uint64_t reference_target(const struct sample_job *job, uint32_t number, uint64_t total)
{
	uint32_t random[4] = { (uint32_t)job->position, (uint32_t)(job->position >> 32), job->choice, number / 2 };
	uint32_t low = number % 2 * 2;

	reference_philox(random, (uint32_t)job->params.seed, (uint32_t)(job->params.seed >> 32));
	return std::min((uint64_t)((double)(((uint64_t)random[low + 1] << 32 | random[low]) >> 11) * 0x1p-53 * (double)total),
	    total - 1);
}

/* The id at TARGET, in the order of ids. */
static int32_t reference_find(const std::vector<uint64_t> &weights, uint64_t target)
{
	uint64_t sum = 0;
	int32_t  id = 0;

	while ((sum += weights[id]) <= target)
		id++;
	return id;
}

/* How many draws were of the first proposal, of a later one, and of none. */
static int drawn_first, drawn_later, drawn_walking;

static int32_t reference_draw(const std::vector<float> &logits, const struct sample_job *job)
{
	const struct sample_params *p = &job->params;
	std::vector<int32_t>  ids(vocab);
	std::vector<uint64_t> weights(vocab), kept(vocab);
	uint64_t total = 0, all = 0, sum = 0, target;
	size_t   count = vocab;
	float    most;
	bool     number = p->top_k > 0 && p->top_k < vocab;

	for (int32_t i = 0; i < vocab; i++)
		ids[i] = i;
	std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
	most = logits[ids[0]];
	if (most == SAMPLE_BANNED)
		return -1;
	if (!(p->temperature > 0) || p->top_k == 1)
		return ids[0];
	for (int32_t i = 0; i < vocab; i++)
		all += weights[i] = (uint64_t)((double)expf((logits[i] - most) * (1 / p->temperature)) * 0x1p44);
	if (number)
		count = (size_t)p->top_k;
	if (p->top_p < 1) {
		for (size_t i = 0; i < count; i++)
			total += weights[ids[i]];
		target = std::max((uint64_t)1, std::min(total, (uint64_t)ceil((double)p->top_p * (double)total)));
		for (size_t i = 0; i < count; i++)
			if ((sum += weights[ids[i]]) >= target)
				count = i + 1;
	}
	total = 0;
	for (size_t i = 0; i < count; i++)
		if (expf((logits[ids[i]] - most) * (1 / p->temperature)) >= fminf(p->min_p, 1))
			total += kept[ids[i]] = weights[ids[i]];
	for (uint32_t n = 0; !number && n < SAMPLE_PROPOSALS; n++) {
		int32_t id = reference_find(weights, reference_target(job, n, all));

		if (kept[id]) {
			(n ? drawn_later : drawn_first)++;
			return id;
		}
	}
	drawn_walking++;
	return reference_find(kept, reference_target(job, number ? 0 : SAMPLE_PROPOSALS, total));
}

static void check_logprobs(const float *logits, const struct sample_job *job, int32_t id, const struct sample_logprobs *got,
    int row)
{
	std::vector<int32_t> ids(vocab);
	uint32_t             count = std::min(job->params.logprobs - 1, (uint32_t)vocab);
	double               sum = 0;

	for (int32_t i = 0; i < vocab; i++) {
		ids[i] = i;
		sum += exp((double)logits[i]);
	}
	std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
	expect(got->count == count, "row %d: %u log probabilities, not %u", row, got->count, count);
	expect(is_close((double)got->drawn, (double)logits[id] - log(sum), 2e-6, 2e-6), "row %d: log probability of the drawn id", row);
	for (uint32_t i = 0; i < count && i < got->count; i++)
		expect(got->top[i].id == ids[i] && is_close((double)got->top[i].logprob, (double)logits[ids[i]] - log(sum), 2e-6, 2e-6),
		    "row %d: number %u of the most likely ids is %d, not %d", row, i, got->top[i].id, ids[i]);
}

/* ---- Rows ---- */

struct batch_of_rows {
	std::vector<float>      logits;
	std::vector<sample_job> jobs;
	std::vector<slot>       slots = std::vector<slot>(SLOTS);
	std::vector<uint32_t>   masks;
};

static struct sample_job *add(batch_of_rows *batch, uint64_t *random, float spread)
{
	struct sample_job job = {};
	size_t            first = batch->logits.size();

	job.params.top_p = 1;
	job.params.seed = random_word(random);
	job.position = (uint64_t)random_word(random) << 8;
	job.choice = random_word(random) % 3;
	job.logit_row = (uint32_t)(first / stride);
	job.mask = -1;
	batch->logits.resize(first + stride, NAN);
	for (size_t i = first; i < first + vocab; i++) /* many equal ones */
		batch->logits[i] = rintf(random_value(random) * spread * 8) / 8;
	batch->jobs.push_back(job);
	return &batch->jobs.back();
}

static int32_t add_mask(batch_of_rows *batch, uint64_t *random, uint32_t share)
{
	size_t first = batch->masks.size(), words = (vocab + 31) / 32;

	batch->masks.resize(first + words);
	for (size_t i = 0; i < (size_t)vocab; i++)
		batch->masks[first + i / 32] |= (uint32_t)(random_word(random) % 100 < share) << i % 32;
	return (int32_t)(first / words);
}

static void fill_slots(batch_of_rows *batch, uint64_t *random)
{
	for (slot &slot : batch->slots) {
		for (int i = 0; i < 200; i++)
			slot.table[random_word(random) % vocab] = (uint16_t)(random_word(random) % 5 |
			    (random_word(random) % 2 ? SAMPLING_PROMPT : 0) | (random_word(random) % 3 ? 0 : SAMPLING_BAN));
		for (int32_t id = 3; id < vocab; id += 97) {
			slot.table[id] |= SAMPLING_BIASED;
			slot.bias.push_back({ id, random_value(random) * 4 });
		}
	}
}

static void fill_rows(batch_of_rows *batch, bool extras)
{
	uint64_t random = extras ? 5 : 4;
	struct sample_job *job;

	fill_slots(batch, &random);
	add(batch, &random, 2); /* greedy */
	add(batch, &random, 2)->params.temperature = 1;
	job = add(batch, &random, 2);
	job->params.temperature = 0.7f;
	job->params.top_k = 40;
	job = add(batch, &random, 2);
	job->params.temperature = 1.3f;
	job->params.top_p = 0.9f;
	job = add(batch, &random, 1);
	job->params.temperature = 1;
	job->params.min_p = 0.05f;
	job = add(batch, &random, 1);
	job->params = { 0.9f, 0.8f, 0.02f, 100, 77, 0, 0, 0, 0, 0 };
	job = add(batch, &random, 2);
	job->params.temperature = 1;
	job->params.top_k = 1;
	job = add(batch, &random, 0.01f); /* nearly all equal: cut by number */
	job->params = { 1, 0.5f, 0, 700, 78, 0, 0, 0, 0, 0 };
	job = add(batch, &random, 1);
	job->params.temperature = 1e-30f;
	job = add(batch, &random, 2); /* not finite */
	job->params.temperature = 1;
	batch->logits[(size_t)job->logit_row * stride + 1536] = INFINITY;
	for (int i = 0; i < (extras ? 6 : 0); i++) {
		job = add(batch, &random, 2);
		job->params = { i % 2 ? 1.0f : 0.0f, i % 3 ? 1.0f : 0.95f, 0, i == 4 ? 50 : 0, (uint64_t)i, i % 2 ? 1.2f : 0, 0.5f, 0.25f,
			0, (uint32_t)(i == 2 ? 1 + SAMPLE_TOP_MAX : i == 3 ? 6 : i == 5 ? 1 : 0) };
		job->slot = 1 + (uint32_t)i % SLOTS;
		job->bias_count = (uint32_t)batch->slots[job->slot - 1].bias.size();
		job->bans = i % 2;
		if (i >= 3)
			job->mask = add_mask(batch, &random, i == 4 ? 1 : 50);
		for (job->guess_count = 0; job->guess_count < (uint32_t)(i == 5 ? 3 : 0); job->guess_count++)
			job->guesses[job->guess_count] = (int32_t)(random_word(&random) % vocab);
	}
	if (extras) { /* nothing is allowed */
		job = add(batch, &random, 2);
		job->params.temperature = 1;
		job->mask = add_mask(batch, &random, 0);
	}
}

/* Rows that are wide enough to be looked at in parts: flat and steep ones, of equal and of distinct logits.  EXTRAS: by turns with
 * penalties, a mask, both and log probabilities. */
static void fill_wide_rows(batch_of_rows *batch, bool extras)
{
	static const struct sample_params ways[] = {
		{ 1, 1, 0, 50 }, { 1, 1, 0, 700 }, { 1, 1, 0, 5000 }, { 1, 0.95f, 0, 0 }, { 0.5f, 0.5f, 0, 0 }, { 1, 0.9999999f, 0, 0 },
		{ 1, 1e-6f, 0, 0 }, { 1, 1, 0.05f, 0 }, { 1, 1, 1e-9f, 0 }, { 1, 0.9f, 0.01f, 5000 }, { 2, 0.99f, 0.3f, 0 }, { 1, 1, 0, 0 },
	};
	uint64_t random = 77;

	fill_slots(batch, &random);
	for (float spread : { 0.0f, 1.0f, 3.0f }) {
		for (const struct sample_params &way : ways) {
			for (int fine = 0; fine < (spread > 0 ? 2 : 1); fine++) {
				struct sample_job *job = add(batch, &random, spread);
				float             *logits = &batch->logits[(size_t)job->logit_row * stride];

				job->params = way;
				job->params.seed = random_word(&random);
				if (extras && batch->jobs.size() % 4 != 1) {
					job->params.repetition = 1.2f;
					job->params.presence = 0.5f;
					job->params.frequency = 0.25f;
					job->slot = 1 + (uint32_t)batch->jobs.size() % SLOTS;
					job->bias_count = (uint32_t)batch->slots[job->slot - 1].bias.size();
				}
				if (extras && batch->jobs.size() % 4 < 2)
					job->mask = add_mask(batch, &random, batch->jobs.size() % 3 ? 50 : 1);
				if (extras && batch->jobs.size() % 5 == 0)
					job->params.logprobs = 1 + SAMPLE_TOP_MAX;
				for (int i = 0; fine && i < vocab; i++)
					logits[i] = random_value(&random) * spread;
				for (int i = 0; fine && spread > 2 && i < 30; i++)
					logits[random_word(&random) % (uint32_t)vocab] = 20 - (float)i * 0.7f;
			}
		}
	}
}

/* Rows without top_k, by ways that keep most, some and next to nothing of what is proposed: of equal logits, flat, steep, with a
 * few that stand out, and with all weight in one id.  EXTRAS: with penalties, or what has most weight due to slot 2 and to guesses;
 * with masks of half of all ids and of one. */
static void fill_proposed_rows(batch_of_rows *batch, bool extras)
{
	static const struct sample_params ways[] = {
		{ 1, 0.95f, 0, 0 }, { 1, 0.6f, 0, 0 }, { 0.8f, 0.3f, 0, 0 }, { 1, 1e-6f, 0, 0 }, { 1, 0.9f, 0.3f, 0 },
		{ 1, 0.5f, 1e-3f, 0 }, { 1, 1, 0.05f, 0 }, { 1, 1, 0.97f, 0 }, { 1, 1, 1, 0 }, { 1, 0.999999f, 0, 0 }, { 1, 1, 0, 0 },
		{ 1, 0.9f, 1, 0 },
	};
	uint64_t random = 99;

	fill_slots(batch, &random);
	for (int i = 0; extras && i < vocab / 4; i++)
		batch->slots[1].table[random_word(&random) % (uint32_t)vocab] = (uint16_t)(1 + i % 3);
	for (int shape = 0; shape < 5; shape++) {
		for (const struct sample_params &way : ways) {
			for (int i = 0; i < 4; i++) {
				struct sample_job *job = add(batch, &random, shape == 0 ? 0 : shape == 1 ? 0.5f : shape == 2 ? 6 : 1);
				float             *logits = &batch->logits[(size_t)job->logit_row * stride];

				job->params = way;
				job->params.seed = random_word(&random);
				for (int n = 0; n < (shape == 3 ? 20 : shape == 4 ? 1 : 0); n++)
					logits[random_word(&random) % (uint32_t)vocab] = shape == 3 ? 9 - (float)n * 0.4f : 200;
				if (extras && i % 2) {
					job->params.repetition = 1.2f;
					job->params.presence = i == 1 ? -3 : 0.5f;
					job->params.frequency = i == 1 ? -1 : 0;
					job->slot = 1 + (uint32_t)i % SLOTS;
					job->bias_count = (uint32_t)batch->slots[job->slot - 1].bias.size();
				}
				for (job->guess_count = 0; extras && i == 1 && shape % 2 && job->guess_count < 5; job->guess_count++)
					job->guesses[job->guess_count] = (int32_t)(random_word(&random) % (uint32_t)vocab);
				for (uint32_t g = 0; g < job->guess_count; g++)
					logits[job->guesses[g]] = 6;
				if (extras && i >= 2) {
					job->mask = add_mask(batch, &random, i == 2 ? 50 : 0);
					if (i == 3) {
						uint32_t id = random_word(&random) % (uint32_t)vocab;

						batch->masks[(size_t)job->mask * ((size_t)(vocab + 31) / 32) + id / 32] |= 1u << id % 32;
					}
				}
				if (shape == 1 && i == 3 && way.top_p == 0.9f)
					logits[vocab - 1] = NAN;
			}
		}
	}
}

/* Rows of two logits in all pieces, each with half of the weight, of which top_p keeps the larger one and half of the other, in the
 * order of ids: a proposal on either side of its middle says whether it is kept, and when that is known. */
static void fill_halved_rows(batch_of_rows *batch)
{
	uint64_t random = 31;

	fill_slots(batch, &random);
	for (int i = 0; i < 48; i++) {
		struct sample_job *job = add(batch, &random, 0);

		job->params.temperature = i % 3 ? 1 : 0.5f;
		job->params.top_p = 0.75f;
		for (int id = 0; id < vocab; id++) /* e times as many zeroes */
			batch->logits[(size_t)job->logit_row * stride + id] = random_word(&random) % 3718 < 1000 ? job->params.temperature : 0;
		if (i % 4 == 2) {
			job->params.presence = 0.5f;
			job->slot = 1 + (uint32_t)i % SLOTS;
			job->bias_count = (uint32_t)batch->slots[job->slot - 1].bias.size();
		} else if (i % 4 == 3) {
			job->mask = add_mask(batch, &random, 50);
		}
	}
}

/* The scan once more: a draw has changed what it left. */
static const char *rescan(const batch_of_rows *batch, const struct sample_arrays *arrays, bool extras, uint32_t each,
    uint32_t pieces, uint32_t rows)
{
	struct backend_step_times times = {};

	return emulate(dim3((pieces + SCAN_WARPS * each - 1) / (SCAN_WARPS * each), rows), SCAN_THREADS, 0, {}, [&] {
		if (extras)
			sample_scan<true>(batch->jobs.data(), *arrays, (uint32_t)vocab, each, {}, &times);
		else
			sample_scan<false>(batch->jobs.data(), *arrays, (uint32_t)vocab, each, {}, &times);
	});
}

enum kind { SMALL, WIDE, PROPOSED_ROWS, HALVED };
static void test_draws(bool extras, enum kind kind, uint32_t room, uint64_t seed)
{
	batch_of_rows            batch;
	uint32_t                 rows, words = (vocab + 31) / 32, pieces = sample_pieces(stride), mark = 0, each = seed % 2 ? 2 : 4;
	std::vector<uint16_t>    tables(SLOTS * stride);
	std::vector<sample_bias> biases(SLOTS * SAMPLE_BIAS_MAX);
	struct backend_step_times times = {};

	if (kind == WIDE)
		fill_wide_rows(&batch, extras);
	else if (kind == PROPOSED_ROWS)
		fill_proposed_rows(&batch, extras);
	else if (kind == HALVED)
		fill_halved_rows(&batch);
	else
		fill_rows(&batch, extras);
	rows = (uint32_t)batch.jobs.size();
	for (size_t s = 0; s < SLOTS; s++) {
		memcpy(&tables[s * stride], batch.slots[s].table.data(), stride * 2);
		memcpy(&biases[s * SAMPLE_BIAS_MAX], batch.slots[s].bias.data(), batch.slots[s].bias.size() * sizeof(sample_bias));
	}
	std::vector<int32_t>         ids(rows, -77), host_ids(rows, -77);
	std::vector<sample_logprobs> logprobs(rows);
	std::vector<float>           most(2 * rows * pieces, NAN);
	std::vector<word>            sums(2 * rows * pieces, ~(word)0);
	struct sample_arrays arrays = { batch.logits.data(), tables.data(), biases.data(), batch.masks.data(), ids.data(),
		host_ids.data(), logprobs.data(), most.data(), sums.data(), (uint32_t)stride, (uint32_t)stride, words, pieces, rows, room };

	expect_runs(emulate(dim3((pieces + SCAN_WARPS * each - 1) / (SCAN_WARPS * each), rows), SCAN_THREADS, 0, { .seed = seed }, [&] {
		if (extras)
			sample_scan<true>(batch.jobs.data(), arrays, vocab, each, { &mark, 8 }, &times);
		else
			sample_scan<false>(batch.jobs.data(), arrays, vocab, each, { &mark, 8 }, &times);
	}), extras, seed);
	expect(mark == 8, "mark of the scan");
	expect_runs(emulate(rows, DRAW_THREADS, DRAW_SHARED_BYTES, { .seed = seed, .before = {
	    { most.data(), most.size() * sizeof most[0] }, { sums.data(), sums.size() * sizeof sums[0] } } }, [&] {
		if (extras)
			sample_draw<true>(batch.jobs.data(), arrays, vocab, { &mark, 9 }, &times);
		else
			sample_draw<false>(batch.jobs.data(), arrays, vocab, { &mark, 9 }, &times);
	}), extras, seed);
	if (kind == SMALL || kind == PROPOSED_ROWS) { /* the other kernel draws rows without filters alike */
		std::vector<int32_t>     plain(rows, -77), host(rows, -77);
		struct sample_arrays     others = arrays;

		others.ids = plain.data();
		others.host_ids = host.data();
		expect_runs(rescan(&batch, &others, extras, each, pieces, rows));
		expect_runs(emulate(rows, PLAIN_THREADS, 0, { .seed = seed }, [&] {
			if (extras)
				sample_draw_plain<true>(batch.jobs.data(), others, vocab, { &mark, 9 }, &times);
			else
				sample_draw_plain<false>(batch.jobs.data(), others, vocab, { &mark, 9 }, &times);
		}));
		for (uint32_t r = 0; r < rows; r++) {
			const struct sample_params *p = &batch.jobs[r].params;
			bool filters = p->temperature > 0 && p->top_k != 1 && ((p->top_k > 0 && p->top_k < vocab) || p->top_p < 1 ||
			    p->min_p > 0);

			expect(filters || (plain[r] == ids[r] && host[r] == ids[r]), "row %u, plain: %d, not %d", r, plain[r], ids[r]);
		}
	}
	expect(mark == 9 && times.computed > 0 && times.end > times.computed, "mark and clocks");
	for (uint32_t r = 0; r < rows; r++) {
		const struct sample_job *job = &batch.jobs[r];
		const float             *logits = &batch.logits[(size_t)job->logit_row * stride];
		const struct slot       *slot = job->slot ? &batch.slots[job->slot - 1] : NULL;
		const uint32_t          *mask = job->mask >= 0 ? &batch.masks[(size_t)job->mask * words] : NULL;
		bool                     finite = std::all_of(logits, logits + vocab, [](float x) { return std::isfinite(x); });
		int32_t                  want = finite ? reference_draw(adjusted(logits, job, slot, mask), job) : -1;

		expect(ids[r] == want && host_ids[r] == want, "extras %d, room %u, seed %d, row %u: drew %d, not %d", extras, room,
		    (int)seed, r, ids[r], want);
		if (job->params.logprobs && ids[r] >= 0)
			check_logprobs(logits, job, ids[r], &logprobs[r], (int)r);
	}
}

/* ---- Slots ---- */

static void test_slots(void)
{
	alignas(4) static uint16_t table[STRIDE];
	static struct sample_bias  bias[SAMPLE_BIAS_MAX];
	std::vector<int32_t>       words = { 5, __float_as_int(1.5f), 900, __float_as_int(-2.0f) };
	struct slot_words          count = { 2, 3, 1000, 1500 };
	std::vector<uint16_t>      want(STRIDE);
	uint64_t                   random = 8;

	want[5] = want[900] = SAMPLING_BIASED;
	for (uint32_t i = 0; i < count.bans; i++) {
		words.push_back((int32_t)(4 + i));
		want[4 + i] |= SAMPLING_BAN;
	}
	for (uint32_t i = 0; i < count.prompt; i++) {
		words.push_back((int32_t)(random_word(&random) % VOCAB));
		want[words.back()] |= SAMPLING_PROMPT;
	}
	for (uint32_t i = 0; i < count.drawn; i++) {
		words.push_back((int32_t)(random_word(&random) % 40));
		want[words.back()]++;
	}
	expect_runs(emulate((uint32_t)(words.size() + FILL_THREADS - 1) / FILL_THREADS, FILL_THREADS, 0, { .seed = 3 },
	    [&] { fill_slot(table, bias, count, words.data(), {}); }));
	for (uint32_t i = 0; i < VOCAB; i++)
		expect(table[i] == want[i], "entry %u is %04x, not %04x", i, table[i], want[i]);
	expect(bias[1].id == 900 && bias[1].add == -2, "biases");
}

/* Rows of one slot with guesses: counted up to the first that is not what the next one guessed. */
static void test_notes(void)
{
	static uint16_t      tables[2 * STRIDE];
	struct sample_job    jobs[5] = {};
	int32_t              ids[5] = { 11, 12, 99, 13, 7 };
	struct sample_arrays arrays = {};

	arrays.tables = tables;
	arrays.table_stride = STRIDE;
	arrays.ids = ids;
	for (uint32_t i = 0; i < 4; i++) {
		jobs[i].slot = 1;
		jobs[i].guess_count = i;
		for (uint32_t g = 0; g < i; g++)
			jobs[i].guesses[g] = (int32_t)(11 + g);
	}
	jobs[4].slot = 2;
	expect_runs(emulate(1, FILL_THREADS, 0, { .seed = 1 }, [&] { note_draws(jobs, arrays, 5); }));
	expect(tables[11] == 1 && tables[12] == 1 && tables[99] == 1 && tables[13] == 0 && tables[STRIDE + 7] == 1,
	    "rows are counted up to the first wrong guess: %d %d %d %d %d", tables[11], tables[12], tables[99], tables[13],
	    tables[STRIDE + 7]);
}

int main(void)
{
	uint32_t counter[4] = {};

	SKIP_UNDER_THREAD_SANITIZER;
	reference_philox(counter, 0, 0);
	expect(counter[0] == 0x6627e8d5 && counter[3] == 0x9b00dbd8, "the reference's Philox");
	for (uint64_t seed = 0; seed < 3; seed++) {
		for (uint32_t room = 64; room <= LIST_ROOM; room *= LIST_ROOM / 64) {
			test_draws(false, SMALL, room, seed);
			test_draws(true, SMALL, room, seed);
		}
	}
	for (int extras = 0; extras < 2; extras++)
		test_draws(extras, PROPOSED_ROWS, LIST_ROOM, 7);
	expect(drawn_first > 100 && drawn_later > 20 && drawn_walking > 20, "%d first proposals, %d later ones, %d draws of none",
	    drawn_first, drawn_later, drawn_walking);
	vocab = 20001;
	stride = 20008;
	for (uint32_t room : { 64, 1024, (int)LIST_ROOM })
		for (int extras = 0; extras < 2; extras++)
			test_draws(extras, WIDE, room, room);
	test_draws(true, PROPOSED_ROWS, LIST_ROOM, 8);
	vocab = 60001;
	stride = 60008;
	for (uint64_t seed = 9; seed < 11; seed++) /* what a pass has seen when it ends differs */
		test_draws(true, HALVED, LIST_ROOM, seed);
	test_slots();
	test_notes();
	return finish("sampler");
}
