/* Unit tests of the CPU sampler: known random numbers, the order and edges of the filters, distributions, and that a
 * draw depends on nothing but its row. */
#include "cpu/cpu.h"

#include "support/random.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 200, ROWS = 64, DRAWS = 8000 };

#define PARAMS(t, p, m, k, s) { .temperature = (t), .top_p = (p), .min_p = (m), .top_k = (k), .seed = (s) }

struct table {
	struct backend     *b;
	struct cpu_backend *cpu;
	struct batch        batch;
	float              *logits; /* [ROWS][VOCAB] */
};

/* LOGITS are put where `logits` would leave them. */
static bool start(struct table *table, enum cpu_isa isa, unsigned threads)
{
	struct backend_limits limits = { .rows = ROWS, .logit_rows = ROWS, .vocab = VOCAB, .width = 8, .q_heads = 1, .head_dim = 8 };
	static int32_t        rows[ROWS];

	if (cpu_backend_create_isa(threads, isa, &table->b, NULL))
		return false;
	table->cpu = (struct cpu_backend *)table->b;
	ck_assert_int_eq(table->b->ops->scratch_alloc(table->b, &limits, NULL), STATUS_OK);
	table->batch = (struct batch){ .rows = ROWS, .logit_row_count = ROWS, .logit_rows = rows };
	ck_assert_int_eq(table->b->ops->step_begin(table->b, &table->batch), STATUS_OK);
	table->cpu->logits_vocab = VOCAB;
	table->logits = table->cpu->scratch.logits;
	return true;
}

static void stop(struct table *table) { table->b->ops->destroy(table->b); }

static void draw(struct table *table, const struct sample_row *rows, uint32_t count, uint32_t limit, int32_t *ret)
{
	ck_assert_int_eq(table->b->ops->sample(table->b, rows, count, limit), STATUS_OK);
	ck_assert_int_eq(table->b->ops->wait(table->b, ret, count, NULL), STATUS_OK);
}

static int32_t draw_one(struct table *table, struct sample_params params, uint32_t row, uint64_t position,
    uint32_t choice)
{
	struct sample_row sample = { .logit_row = row, .choice = choice, .position = position, .params = params };
	int32_t           id;

	draw(table, &sample, 1, VOCAB, &id);
	return id;
}

static const struct sample_params plain = PARAMS(1, 1, 0, 0, 1);

START_TEST(philox)
{
	/* From the authors' known-answer file (Random123, philox 4x32 10). */
	static const struct {
		uint64_t seed;
		uint32_t counter[4], expected[4];
	} cases[] = {
		{ 0, { 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
		{ UINT64_MAX, { ~0u, ~0u, ~0u, ~0u }, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
		{ UINT64_C(0x299f31d0a4093822), { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
		    { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint32_t word[4];

		cpu_philox4x32(cases[i].seed, cases[i].counter, word);
		ck_assert_mem_eq(word, cases[i].expected, sizeof word);
	}
}
END_TEST

START_TEST(greedy)
{
	struct sample_params zero = PARAMS(0, 1, 0, 0, 7), top1 = PARAMS(1, 1, 0, 1, 7), tiny = PARAMS(1e-42f, 1, 0, 0, 7);
	struct sample_row    limited = { .params = zero };
	struct table         table;
	int32_t              id;

	if (!start(&table, (enum cpu_isa)_i, 2))
		return;
	for (uint32_t best = 0; best < VOCAB; best++) {
		for (uint32_t i = 0; i < VOCAB; i++)
			table.logits[i] = i == best || i + 1 == VOCAB ? 3 : -1;
		/* The lowest id among equals. */
		ck_assert_int_eq(draw_one(&table, zero, 0, best, 0), (int32_t)best);
		ck_assert_int_eq(draw_one(&table, top1, 0, best, 0), (int32_t)best);
		ck_assert_int_eq(draw_one(&table, tiny, 0, best, 0), (int32_t)best);
	}
	/* Ids at the limit and beyond do not exist, whatever their logits. */
	table.logits[150] = INFINITY;
	table.logits[160] = 100;
	table.logits[17] = 4;
	draw(&table, &limited, 1, 150, &id);
	ck_assert_int_eq(id, 17);
	draw(&table, &limited, 1, 151, &id);
	ck_assert_int_eq(id, -1);
	ck_assert_int_eq(table.b->ops->sample(table.b, &limited, 1, 0), STATUS_INVALID);
	limited.logit_row = ROWS;
	ck_assert_int_eq(table.b->ops->sample(table.b, &limited, 1, VOCAB), STATUS_INVALID);
	ck_assert_int_eq(table.b->ops->sample(table.b, &limited, ROWS + 1, VOCAB), STATUS_INVALID);
	stop(&table);
}
END_TEST

START_TEST(not_finite)
{
	const float       bad[] = { NAN, INFINITY, -INFINITY };
	struct sample_row rows[5];
	struct random     random = { 1 };
	struct table      table;
	int32_t           ids[5], clean[5];

	if (!start(&table, (enum cpu_isa)_i, 2))
		return;
	for (size_t i = 0; i < 5 * VOCAB; i++)
		table.logits[i] = random_float(&random);
	for (uint32_t r = 0; r < 5; r++)
		rows[r] = (struct sample_row){ .logit_row = r, .position = r, .params = plain };
	draw(&table, rows, 5, VOCAB, clean);
	for (uint32_t where = 0; where < VOCAB; where += 7) {
		for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
			float before = table.logits[2 * VOCAB + where];

			table.logits[2 * VOCAB + where] = bad[b];
			draw(&table, rows, 5, VOCAB, ids);
			for (uint32_t r = 0; r < 5; r++)
				ck_assert_int_eq(ids[r], r == 2 ? -1 : clean[r]);
			table.logits[2 * VOCAB + where] = before;
		}
	}
	stop(&table);
}
END_TEST

/* The same row gives the same id: alone, among others, elsewhere in the batch, with any number of threads. */
START_TEST(neighbours)
{
	struct sample_params params = PARAMS(0.8f, 0.9f, 0.02f, 40, 12345);
	struct sample_row    rows[ROWS];
	struct random        random = { 2 };
	int32_t              ids[ROWS], first[ROWS], distinct = 0;

	for (unsigned threads = 1; threads <= 3; threads++) {
		struct table table;

		if (!start(&table, (enum cpu_isa)_i, threads))
			return;
		random.state = 2;
		for (size_t i = 0; i < (size_t)ROWS * VOCAB; i++)
			table.logits[i] = 3 * random_float(&random);
		for (uint32_t r = 0; r < ROWS; r++)
			rows[r] = (struct sample_row){ .logit_row = r, .choice = r % 3, .position = 1000 + r, .params = params };
		draw(&table, rows, ROWS, VOCAB, ids);
		if (threads == 1)
			memcpy(first, ids, sizeof ids);
		ck_assert_mem_eq(first, ids, sizeof ids);
		for (uint32_t r = 0; r < ROWS; r += 5)
			ck_assert_int_eq(draw_one(&table, params, r, 1000 + r, r % 3), first[r]);
		/* Seed, position and choice all matter. */
		for (uint32_t i = 0; i < 50; i++) {
			struct sample_params other = params;

			other.seed = i;
			distinct += draw_one(&table, other, 0, 1000, 0) != first[0];
			distinct += draw_one(&table, params, 0, i, 0) != first[0];
			distinct += draw_one(&table, params, 0, 1000, i + 1) != first[0];
		}
		stop(&table);
	}
	ck_assert_int_gt(distinct, 150);
}
END_TEST

struct entry {
	double  weight;
	float   logit;
	int32_t id;
};

static int compare_entries(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	return x->logit > y->logit ? -1 : x->logit < y->logit ? 1 : x->id < y->id ? -1 : 1;
}

/* The distribution as the definition reads: sort, temperature, top_k, top_p, min_p. */
static void define(const float *logits, const struct sample_params *params, double *ret)
{
	struct entry entries[VOCAB];
	double       sum = 0, mass = 0;
	int          n = VOCAB, kept = 0;

	for (int32_t i = 0; i < VOCAB; i++)
		entries[i] = (struct entry){ 0, logits[i], i };
	qsort(entries, VOCAB, sizeof *entries, compare_entries);
	if (params->top_k > 0 && params->top_k < n)
		n = params->top_k;
	for (int i = 0; i < n; i++)
		sum += entries[i].weight = exp(((double)entries[i].logit - (double)entries[0].logit) / (double)params->temperature);
	if (params->top_p < 1)
		for (; kept < n && (kept == 0 || mass < (double)params->top_p * sum); kept++)
			mass += entries[kept].weight;
	else
		kept = n;
	memset(ret, 0, VOCAB * sizeof *ret);
	sum = 0;
	for (int i = 0; i < kept; i++)
		if (entries[i].weight >= (double)params->min_p)
			sum += ret[entries[i].id] = entries[i].weight;
	for (int i = 0; i < VOCAB; i++)
		ret[i] /= sum;
}

static const struct sample_params cases[] = {
	PARAMS(1, 1, 0, 0, 1), PARAMS(0.5f, 1, 0, 0, 2), PARAMS(3, 1, 0, 0, 3), PARAMS(1, 1, 0, 10, 4),
	PARAMS(1, 0.7f, 0, 0, 5), PARAMS(1, 1, 0.2f, 0, 6), PARAMS(0.7f, 0.9f, 0.05f, 50, 7), PARAMS(2, 0.3f, 0, 100, 8),
	PARAMS(1, 0.999f, 0, 0, 9), PARAMS(1, 1, 0, VOCAB + 5, 10), PARAMS(1, 1, 1, 0, 11), PARAMS(1, 1e-9f, 0, 0, 12),
	PARAMS(1, 0, 0, 0, 13), PARAMS(1, 1, 0, 2, 14), PARAMS(1e-6f, 0.9f, 0.1f, 5, 15), PARAMS(1e6f, 0.5f, 0, 20, 16),
	PARAMS(1, 0.02f, 0, 0, 17), PARAMS(0.8f, 0.8f, 0.1f, 0, 18), PARAMS(3, 1, 0.99f, 0, 19),
};

/* Many equal logits, where the lower id must win. */
static void fill_logits(struct random *random, float logits[VOCAB])
{
	for (int i = 0; i < VOCAB; i++)
		logits[i] = 4 * random_float(random);
	for (int i = 0; i < 30; i++)
		logits[100 + i] = logits[100];
}

/* The draw of model/backend.h, by the book: KEPT as define() has it. */
static int32_t replay(const float *logits, const double *kept, const struct sample_row *row)
{
	bool     proposes = row->params.top_k <= 0 || row->params.top_k >= VOCAB;
	double   all[VOCAB], sum = 0, max = -INFINITY;
	uint32_t last = proposes ? SAMPLE_PROPOSALS : 0;

	for (int i = 0; i < VOCAB; i++)
		max = fmax(max, (double)logits[i]);
	for (int i = 0; i < VOCAB; i++)
		sum += all[i] = exp(((double)logits[i] - max) / (double)row->params.temperature);
	for (uint32_t n = 0;; n++) {
		uint32_t counter[4] = { (uint32_t)row->position, (uint32_t)(row->position >> 32), row->choice, n / 2 }, word[4];
		double   left;
		int32_t  id = -1;

		cpu_philox4x32(row->params.seed, counter, word);
		left = ((double)(word[n % 2 ? 3 : 1] * UINT64_C(0x100000000) + word[n % 2 ? 2 : 0])) / 0x1p64;
		while (left >= 0 && ++id < VOCAB - 1)
			left -= n == last ? kept[id] : all[id] / sum;
		if (n == last || kept[id] > 0)
			return id;
	}
}

START_TEST(replays)
{
	struct random random = { 5 };
	struct table  table;
	unsigned      different = 0, drawn = 0;

	if (!start(&table, (enum cpu_isa)_i, 2))
		return;
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		for (uint32_t step = 0; step < 30; step++) {
			struct sample_row rows[ROWS];
			int32_t           ids[ROWS];

			for (uint32_t r = 0; r < ROWS; r++) {
				fill_logits(&random, table.logits + (size_t)r * VOCAB);
				rows[r] = (struct sample_row){ .logit_row = r, .choice = r % 3, .position = random_u64(&random),
				    .params = cases[c] };
			}
			draw(&table, rows, ROWS, VOCAB, ids);
			for (uint32_t r = 0; r < ROWS; r++, drawn++) {
				double kept[VOCAB];

				define(table.logits + (size_t)r * VOCAB, &cases[c], kept);
				different += ids[r] != replay(table.logits + (size_t)r * VOCAB, kept, &rows[r]);
			}
		}
	}
	/* Weights are float32 there. */
	ck_assert_msg(different <= drawn / 5000, "%u of %u draws differ", different, drawn);
	stop(&table);
}
END_TEST

START_TEST(distributions)
{
	struct random random = { 3 };
	struct table  table;

	if (!start(&table, (enum cpu_isa)_i, 2))
		return;
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		double            expected[VOCAB], square = 0;
		unsigned          seen[VOCAB] = { 0 }, freedom = 0, rest = 0;
		double            rest_expected = 0;
		struct sample_row rows[ROWS];
		int32_t           ids[ROWS];

		fill_logits(&random, table.logits);
		for (size_t i = VOCAB; i < (size_t)ROWS * VOCAB; i++)
			table.logits[i] = table.logits[i % VOCAB];
		define(table.logits, &cases[c], expected);
		for (uint32_t done = 0; done < DRAWS; done += ROWS) {
			for (uint32_t r = 0; r < ROWS; r++)
				rows[r] = (struct sample_row){ .logit_row = r, .position = done + r, .params = cases[c] };
			draw(&table, rows, ROWS, VOCAB, ids);
			for (uint32_t r = 0; r < ROWS; r++) {
				ck_assert_msg(ids[r] >= 0 && expected[ids[r]] > 0, "case %zu: id %d is filtered out", c, ids[r]);
				seen[ids[r]]++;
			}
		}
		for (int i = 0; i < VOCAB; i++) {
			double count = expected[i] * DRAWS;

			if (count < 5) {
				rest += seen[i];
				rest_expected += count;
				continue;
			}
			square += (seen[i] - count) * (seen[i] - count) / count;
			freedom++;
		}
		/* Chi square: mean f, variance 2f; six standard deviations.  The draws are fixed, so this never flickers. */
		ck_assert_msg(square <= freedom + 6 * sqrt(2.0 * freedom) + 1, "case %zu: chi square %.1f at %u degrees", c,
		    square, freedom);
		ck_assert_msg(fabs(rest - rest_expected) <= 6 * sqrt(rest_expected) + 1,
		    "case %zu: rare ids %u times, not %.1f", c, rest,
		    rest_expected);
	}
	stop(&table);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("cpu sampler");
	TCase   *tcase = tcase_create("sampler");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 900);
	tcase_add_test(tcase, philox);
	tcase_add_loop_test(tcase, greedy, CPU_ISA_GENERIC, CPU_ISA_COUNT);
	tcase_add_loop_test(tcase, not_finite, CPU_ISA_GENERIC, CPU_ISA_COUNT);
	tcase_add_loop_test(tcase, neighbours, CPU_ISA_GENERIC, CPU_ISA_COUNT);
	tcase_add_loop_test(tcase, replays, CPU_ISA_GENERIC, CPU_ISA_COUNT);
	tcase_add_loop_test(tcase, distributions, CPU_ISA_GENERIC, CPU_ISA_COUNT);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
