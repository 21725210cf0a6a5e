/* Unit tests of what is done to logits before they are filtered: each formula against float64, counts that the sampler
 * keeps by itself, bans, masks, and log probabilities of the model's own distribution. */
#include "cpu/cpu.h"

#include "model/sampling.h"
#include "support/random.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 203, ROWS = 16, PROMPT = 60, DRAWN = 90 };

struct table {
	struct backend     *b;
	struct cpu_backend *cpu;
	struct batch        batch;
	float              *logits; /* [ROWS][VOCAB] */
};

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

static void draw(struct table *table, const struct sample_row *rows, uint32_t count, int32_t *ret)
{
	ck_assert_int_eq(table->b->ops->sample(table->b, rows, count, VOCAB), STATUS_OK);
	ck_assert_int_eq(table->b->ops->wait(table->b, ret, count, NULL), STATUS_OK);
}

static void fill(struct table *table, struct random *random, float scale)
{
	for (size_t i = 0; i < (size_t)ROWS * VOCAB; i++)
		table->logits[i] = scale * random_float(random);
}

static void random_ids(struct random *random, int32_t *ids, uint32_t count, uint32_t below)
{
	for (uint32_t i = 0; i < count; i++)
		ids[i] = (int32_t)(random_u64(random) % below);
}

static uint32_t times(const int32_t *ids, uint32_t count, int32_t id)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < count; i++)
		n += ids[i] == id;
	return n;
}

/* The definition in float64: bias, repetition, frequency, presence, bans. */
static double define(double logit, int32_t id, const struct sample_slot *slot, const struct sample_params *p, uint64_t generated)
{
	uint32_t drawn = times(slot->drawn, slot->drawn_tokens, id);

	for (uint32_t i = 0; i < slot->bias_count; i++)
		logit += slot->bias[i].id == id ? (double)slot->bias[i].add : 0;
	if (p->repetition > 0 && (drawn || times(slot->prompt, slot->prompt_tokens, id)))
		logit = logit > 0 ? logit / (double)p->repetition : logit * (double)p->repetition;
	logit -= drawn * (double)p->frequency + (drawn > 0) * (double)p->presence;
	return generated < p->min_tokens && times(slot->bans, slot->ban_count, id) ? (double)SAMPLE_BANNED : logit;
}

START_TEST(formulas)
{
	static const float repetitions[] = { 0, 1, 1.3f, 0.7f, 2 }, penalties[] = { 0, 0.6f, 2, -1.5f };
	struct random      random = { 11 };
	struct table       table;
	int32_t            prompt[PROMPT], drawn[DRAWN], bans[3] = { 7, 8, 100 };
	struct sample_bias bias[4] = { { 150, 100 }, { 7, -3.5f }, { 0, 1 }, { VOCAB - 1, -100 } }; /* in any order */

	if (!start(&table, CPU_ISA_BEST, 1))
		return;
	for (unsigned round = 0; round < 5 * 4 * 4 * 8; round++) {
		struct sample_params params = { .top_p = 1, .repetition = repetitions[round % 5], .presence = penalties[round / 5 % 4],
			.frequency = penalties[round / 20 % 4], .min_tokens = round % 3 ? 10 : 0 };
		struct sample_slot slot = { .prompt = prompt, .drawn = drawn, .prompt_tokens = round % PROMPT,
			.drawn_tokens = round % DRAWN, .bias = bias, .bias_count = round % 5, .bans = bans, .ban_count = round % 4 };
		struct sample_row  row = { .slot = 1 + round % ROWS, .generated = round % 20, .params = params };
		float              adjusted[VOCAB];

		fill(&table, &random, 10);
		random_ids(&random, prompt, PROMPT, VOCAB);
		random_ids(&random, drawn, DRAWN, 40);
		ck_assert_int_eq(table.b->ops->sample_slot(table.b, row.slot - 1, &slot), STATUS_OK);
		cpu_sample_adjust(table.cpu, table.logits, VOCAB, &row, adjusted);
		for (int32_t id = 0; id < VOCAB; id++) {
			double expected = define((double)table.logits[id], id, &slot, &params, row.generated);
			ck_assert_msg(fabs((double)adjusted[id] - expected) <= 4e-7 * fmax(fabs(expected), 10),
			    "round %u id %d: %.9g, not %.9g", round, id, (double)adjusted[id], expected);
		}
	}
	stop(&table);
}
END_TEST

/* A draw from penalised logits is what the plain sampler draws from logits that were changed by hand. */
START_TEST(draws_follow_the_formulas)
{
	struct random      random = { 12 };
	struct table       table;
	int32_t            prompt[PROMPT], drawn[DRAWN], bans[2] = { 3, 5 };
	struct sample_bias bias[2] = { { 20, 2 }, { 5, 9 } };
	uint32_t           mask[(VOCAB + 31) / 32];

	if (!start(&table, (enum cpu_isa)_i, 2))
		return;
	for (unsigned round = 0; round < 120; round++) {
		struct sample_slot slot = { .prompt = prompt, .drawn = drawn, .prompt_tokens = PROMPT, .drawn_tokens = round % DRAWN,
			.bias = bias, .bias_count = 2, .bans = bans, .ban_count = 2 };
		struct sample_row  rows[2] = { { .logit_row = 2, .position = round, .slot = 4, .generated = round % 8,
			.mask = round % 2 ? mask : NULL,
			.params = { .temperature = (float)(round % 4) * 0.6f, .top_p = round % 3 ? 0.9f : 1, .min_p = round % 5 ? 0 : 0.05f,
				.top_k = round % 7 ? 0 : 25, .seed = round, .repetition = 1.2f, .presence = 0.5f, .frequency = 0.25f,
				.min_tokens = 5 } } };
		int32_t            ids[2], plain;

		fill(&table, &random, 4);
		random_ids(&random, prompt, PROMPT, VOCAB);
		random_ids(&random, drawn, DRAWN, VOCAB);
		for (size_t i = 0; i < sizeof mask / sizeof *mask; i++)
			mask[i] = (uint32_t)random_u64(&random);
		ck_assert_int_eq(table.b->ops->sample_slot(table.b, 3, &slot), STATUS_OK);
		cpu_sample_adjust(table.cpu, table.logits + 2 * VOCAB, VOCAB, &rows[0], table.logits + 3 * VOCAB);
		rows[1] = rows[0];
		rows[1].logit_row = 3;
		rows[1].slot = 0;
		rows[1].mask = NULL;
		draw(&table, &rows[1], 1, &plain);
		draw(&table, &rows[0], 1, ids);
		ck_assert_int_eq(ids[0], plain);
		ck_assert(sampling_allows(rows[0].mask, (uint32_t)ids[0]));
		ck_assert(rows[0].generated >= 5 || !times(bans, 2, ids[0]));
	}
	stop(&table);
}
END_TEST

/* Neutral values with a slot, and a slot with something in it that the row does not ask for, change no bit. */
START_TEST(off_is_off)
{
	struct random random = { 13 };
	struct table  table;
	int32_t       prompt[PROMPT], with, without;
	uint32_t      all[(VOCAB + 31) / 32];

	memset(all, 0xff, sizeof all);
	if (!start(&table, (enum cpu_isa)_i, 1))
		return;
	for (unsigned round = 0; round < 200; round++) {
		struct sample_slot slot = { .prompt = prompt, .prompt_tokens = PROMPT };
		struct sample_row  row = { .logit_row = round % ROWS, .position = round,
			.params = { .temperature = 0.7f, .top_p = 0.95f, .top_k = round % 2 ? 30 : 0, .seed = 5 } };

		fill(&table, &random, 5);
		random_ids(&random, prompt, PROMPT, VOCAB);
		draw(&table, &row, 1, &without);
		ck_assert_int_eq(table.b->ops->sample_slot(table.b, 0, &slot), STATUS_OK);
		row.slot = 1;
		row.mask = all;
		row.params.logprobs = round % 22;
		row.params.repetition = round % 3 ? 0 : 1;
		draw(&table, &row, 1, &with);
		ck_assert_int_eq(with, without);
	}
	stop(&table);
}
END_TEST

/* The sampler counts what it draws: a slot that is set anew with all that was drawn before (as after a preemption) goes on
 * with the same draws, whoever its neighbours are, in whatever slot, with any number of threads. */
START_TEST(counts_are_kept)
{
	enum { LENGTH = 120 };
	struct sample_params params = { .temperature = 0.9f, .top_p = 0.98f, .seed = 77, .repetition = 1.15f, .presence = 0.4f,
		.frequency = 0.3f };
	int32_t              prompt[PROMPT], first[LENGTH];
	struct random        random;

	for (unsigned way = 0; way < 4; way++) {
		unsigned      threads = 1 + way % 3;
		int32_t       ids[LENGTH], drawn[ROWS];
		struct table  table;
		struct sample_slot slot = { .prompt = prompt, .drawn = ids, .prompt_tokens = PROMPT };

		if (!start(&table, (enum cpu_isa)_i, threads))
			return;
		random.state = 14;
		random_ids(&random, prompt, PROMPT, VOCAB);
		ck_assert_int_eq(table.b->ops->sample_slot(table.b, way, &slot), STATUS_OK);
		for (uint32_t n = 0; n < LENGTH; n++) {
			struct sample_row rows[ROWS];
			uint32_t          at = way ? n % ROWS : 0, number = way;

			fill(&table, &random, 3);
			memcpy(table.logits + at * VOCAB, table.logits, VOCAB * sizeof(float));
			if (way == 2 && n % 7 == 0) { /* lost its slot, and got another one */
				slot.drawn_tokens = n;
				number = 2;
				ck_assert_int_eq(table.b->ops->sample_slot(table.b, number, &slot), STATUS_OK);
			}
			for (uint32_t r = 0; r < ROWS; r++) /* neighbours with other slots */
				rows[r] = (struct sample_row){ .logit_row = r, .position = n, .params = params,
					.slot = r == at ? 1 + number : way == 3 && r != way ? 1 + r : 0 };
			for (uint32_t r = 0; r < ROWS; r++)
				if (r != at && rows[r].slot == 1 + number)
					rows[r].slot = 0;
			rows[at].position = PROMPT + n;
			draw(&table, way ? rows : rows + at, way ? ROWS : 1, drawn);
			ids[n] = drawn[at];
			ck_assert_int_ge(ids[n], 0);
		}
		if (way == 0)
			memcpy(first, ids, sizeof ids);
		ck_assert_mem_eq(first, ids, sizeof ids);
		stop(&table);
	}
}
END_TEST

/* Two equal logits that are always the largest: a presence penalty makes a greedy draw alternate, and frequency goes on
 * to count. */
START_TEST(greedy_with_penalties)
{
	struct sample_row  row = { .slot = 1, .params = { .top_p = 1, .presence = 1 } };
	struct sample_slot slot = { 0 };
	struct table       table;
	int32_t            id;

	if (!start(&table, CPU_ISA_BEST, 1))
		return;
	for (uint32_t i = 0; i < VOCAB; i++)
		table.logits[i] = i == 10 || i == 20 ? 5 : 4.5f;
	ck_assert_int_eq(table.b->ops->sample_slot(table.b, 0, &slot), STATUS_OK);
	draw(&table, &row, 1, &id);
	ck_assert_int_eq(id, 10);
	draw(&table, &row, 1, &id);
	ck_assert_int_eq(id, 20);
	draw(&table, &row, 1, &id);
	ck_assert_int_eq(id, 0); /* 4 < 4.5 */
	row.params = (struct sample_params){ .top_p = 1, .frequency = 0.2f };
	ck_assert_int_eq(table.b->ops->sample_slot(table.b, 0, &slot), STATUS_OK);
	for (unsigned n = 0; n < 6; n++) {
		draw(&table, &row, 1, &id);
		ck_assert_int_eq(id, n % 2 ? 20 : 10);
	}
	draw(&table, &row, 1, &id);
	ck_assert_int_eq(id, 0); /* 5 − 3 · 0.2 < 4.5 */
	stop(&table);
}
END_TEST

/* What is banned is never drawn, not even where filters want more ids than there are. */
START_TEST(bans_and_masks)
{
	struct random random = { 15 };
	struct table  table;
	uint32_t      mask[(VOCAB + 31) / 32];
	int32_t       bans[2] = { 50, 200 };

	if (!start(&table, (enum cpu_isa)_i, 1))
		return;
	fill(&table, &random, 3);
	for (unsigned round = 0; round < 400; round++) {
		struct sample_row  row = { .position = round, .mask = mask, .slot = round % 2,
			.params = { .temperature = (float)(round % 3) * 0.8f, .top_p = round % 4 ? 1 : 0.999f, .top_k = round % 5 ? 60 : 0,
				.min_p = round % 7 ? 0 : 1e-9f, .seed = 1, .min_tokens = 3 } };
		struct sample_slot slot = { .bans = bans, .ban_count = 2 };
		int32_t            id;

		memset(mask, 0, sizeof mask);
		for (int32_t i = 50; i < 53; i++)
			mask[i / 32] |= UINT32_C(1) << i % 32;
		ck_assert_int_eq(table.b->ops->sample_slot(table.b, 0, &slot), STATUS_OK);
		draw(&table, &row, 1, &id);
		ck_assert(id == 51 || id == 52 || (id == 50 && !row.slot));
		row.generated = 3;
		draw(&table, &row, 1, &id);
		ck_assert(id >= 50 && id <= 52);
		row.generated = 2;
		mask[1] = UINT32_C(1) << (50 - 32); /* nothing is left where the slot's bans hold */
		draw(&table, &row, 1, &id);
		ck_assert_int_eq(id, row.slot ? -1 : 50);
	}
	stop(&table);
}
END_TEST

static int compare_tops(const void *a, const void *b)
{
	const float *x = *(const float *const *)a, *y = *(const float *const *)b;
	return *x > *y ? -1 : *x < *y ? 1 : x < y ? -1 : 1;
}

START_TEST(logprobs)
{
	struct random random = { 16 };
	struct table  table;

	if (!start(&table, (enum cpu_isa)_i, 2))
		return;
	for (unsigned round = 0; round < 100; round++) {
		struct sample_row      rows[ROWS];
		struct sample_logprobs got;
		struct sample_bias     bias = { 5, 30 };
		int32_t                ids[ROWS];

		fill(&table, &random, round % 10 ? 8 : 60);
		for (uint32_t r = 0; r < ROWS; r++) {
			for (uint32_t i = 0; i < VOCAB && r % 3 == 0; i++) /* ties */
				table.logits[r * VOCAB + i] = floorf(table.logits[r * VOCAB + i]);
			ck_assert_int_eq(table.b->ops->sample_slot(table.b, r, &(struct sample_slot){ .bias = &bias, .bias_count = 1 }),
			    STATUS_OK);
			rows[r] = (struct sample_row){ .logit_row = r, .position = round, .slot = r % 2 ? 1 + r : 0,
				.params = { .temperature = 0.5f, .top_p = 0.5f, .logprobs = (round + r) % (SAMPLE_TOP_MAX + 2) } };
		}
		draw(&table, rows, ROWS, ids);
		for (uint32_t r = 0; r < ROWS; r++) {
			const float *logits = table.logits + r * VOCAB, *order[VOCAB];
			double       sum = 0;

			if (rows[r].params.logprobs == 0) {
				ck_assert_int_eq(table.b->ops->read_logprobs(table.b, r, &got), STATUS_INVALID);
				continue;
			}
			ck_assert_int_eq(table.b->ops->read_logprobs(table.b, r, &got), STATUS_OK);
			for (uint32_t i = 0; i < VOCAB; i++) {
				sum += exp((double)logits[i]);
				order[i] = &logits[i];
			}
			qsort(order, VOCAB, sizeof *order, compare_tops);
			ck_assert_uint_eq(got.count, rows[r].params.logprobs - 1);
			ck_assert(fabs((double)got.drawn - ((double)logits[ids[r]] - log(sum))) < 2e-5);
			for (uint32_t i = 0; i < got.count; i++) {
				ck_assert_int_eq(got.top[i].id, (int32_t)(order[i] - logits));
				ck_assert(fabs((double)got.top[i].logprob - ((double)*order[i] - log(sum))) < 2e-5);
				ck_assert(got.top[i].id != ids[r] || got.top[i].logprob == got.drawn);
			}
		}
		ck_assert_int_eq(table.b->ops->read_logprobs(table.b, ROWS, &got), STATUS_INVALID);
	}
	/* With a depth of two, the next sample is enqueued before this one is read. */
	{
		struct sample_row      row = { .params = { .top_p = 1, .logprobs = 3 } };
		struct sample_logprobs first, second;
		int32_t                id;

		ck_assert_int_eq(table.b->ops->sample(table.b, &row, 1, VOCAB), STATUS_OK);
		row.logit_row = 1;
		ck_assert_int_eq(table.b->ops->sample(table.b, &row, 1, VOCAB), STATUS_OK);
		ck_assert_int_eq(table.b->ops->wait(table.b, &id, 1, NULL), STATUS_OK);
		ck_assert_int_eq(table.b->ops->read_logprobs(table.b, 0, &first), STATUS_OK);
		ck_assert_int_eq(first.top[0].id, id);
		ck_assert_int_eq(table.b->ops->wait(table.b, &id, 1, NULL), STATUS_OK);
		ck_assert_int_eq(table.b->ops->read_logprobs(table.b, 0, &second), STATUS_OK);
		ck_assert_int_eq(second.top[0].id, id);
	}
	/* A vocabulary smaller than the wish; logits that are not finite have none. */
	{
		struct sample_row      row = { .params = { .top_p = 1, .logprobs = 21 } };
		struct sample_logprobs got;
		int32_t                id;

		ck_assert_int_eq(table.b->ops->sample(table.b, &row, 1, 5), STATUS_OK);
		ck_assert_int_eq(table.b->ops->wait(table.b, &id, 1, NULL), STATUS_OK);
		ck_assert_int_eq(table.b->ops->read_logprobs(table.b, 0, &got), STATUS_OK);
		ck_assert_uint_eq(got.count, 5);
		table.logits[2] = NAN;
		draw(&table, &row, 1, &id);
		ck_assert_int_eq(id, -1);
		ck_assert_int_eq(table.b->ops->read_logprobs(table.b, 0, &got), STATUS_INVALID);
	}
	stop(&table);
}
END_TEST

START_TEST(refused)
{
	int32_t            below = -1, beyond = VOCAB, good = 0;
	struct sample_bias bias = { VOCAB, 1 }, endless = { 0, INFINITY };
	struct sample_row  row = { .slot = ROWS + 1 };
	struct table       table;

	const struct sample_slot bad[] = {
		{ .prompt = &below, .prompt_tokens = 1 }, { .drawn = &beyond, .drawn_tokens = 1 }, { .bans = &beyond, .ban_count = 1 },
		{ .bias = &bias, .bias_count = 1 }, { .bias = &endless, .bias_count = 1 },
		{ .bans = &good, .ban_count = SAMPLE_BANS_MAX + 1 },
	};

	if (!start(&table, CPU_ISA_BEST, 1))
		return;
	ck_assert_int_eq(table.b->ops->sample_slot(table.b, ROWS, &(struct sample_slot){ 0 }), STATUS_INVALID);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		ck_assert_int_eq(table.b->ops->sample_slot(table.b, 0, &bad[i]), STATUS_INVALID);
	ck_assert_int_eq(table.b->ops->sample(table.b, &row, 1, VOCAB), STATUS_INVALID);
	row = (struct sample_row){ .params.logprobs = SAMPLE_TOP_MAX + 2 };
	ck_assert_int_eq(table.b->ops->sample(table.b, &row, 1, VOCAB), STATUS_INVALID);
	stop(&table);
}
END_TEST

/* Counts stop at their largest value and never run into the flags beside them. */
START_TEST(counts_saturate)
{
	uint16_t entry = SAMPLING_PROMPT | SAMPLING_BAN;

	for (int i = 0; i < 20000; i++)
		entry = sampling_count(entry);
	ck_assert_uint_eq(entry, SAMPLING_PROMPT | SAMPLING_BAN | SAMPLE_COUNT_MAX);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("cpu sample slots");
	TCase   *tcase = tcase_create("slots");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 300);
	tcase_add_test(tcase, formulas);
	tcase_add_loop_test(tcase, draws_follow_the_formulas, CPU_ISA_GENERIC, CPU_ISA_COUNT);
	tcase_add_loop_test(tcase, off_is_off, CPU_ISA_GENERIC, CPU_ISA_COUNT);
	tcase_add_loop_test(tcase, counts_are_kept, CPU_ISA_GENERIC, CPU_ISA_COUNT);
	tcase_add_test(tcase, greedy_with_penalties);
	tcase_add_loop_test(tcase, bans_and_masks, CPU_ISA_GENERIC, CPU_ISA_COUNT);
	tcase_add_loop_test(tcase, logprobs, CPU_ISA_GENERIC, CPU_ISA_COUNT);
	tcase_add_test(tcase, refused);
	tcase_add_test(tcase, counts_saturate);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
