/* The plan of decode attention: every run of every head once, and no block with more to do than it must have. */
#include "gpu/attention_plan.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { UNITS_MAX = 1 << 16, PARTS_MAX = 256 };

static struct attention_unit units[UNITS_MAX];

static uint32_t pages(const struct attention_unit *unit) { return (uint32_t)(unit->end - unit->begin + 63) / 64; }

START_TEST(runs_depend_on_the_context_only)
{
	for (uint32_t context = 1; context < 3000000; context += context < 40000 ? 1 : 977) {
		uint32_t run = attention_run(context), own = attention_run_own(context);

		ck_assert_uint_eq(run % ATTENTION_PAGE, 0);
		ck_assert_uint_eq(own % ATTENTION_PAGE, 0);
		ck_assert_uint_le((context + run - 1) / run, ATTENTION_RUNS_MAX);
		ck_assert_uint_le((context + own - 1) / own, (context + run - 1) / run);
	}
}
END_TEST

/* What the blocks do, counted by (part, unit, head, pass); returns how many pages the block that has most to do reads. */
static uint32_t check_plan(const struct attention_shape *shape, const struct attention_part *parts, uint32_t count, uint32_t used)
{
	static uint8_t seen[PARTS_MAX][ATTENTION_RUNS_MAX][16][16];
	uint32_t       results[PARTS_MAX] = { 0 };
	int            shared[PARTS_MAX] = { 0 }; /* 1: no, 2: yes */
	uint32_t       most = 0, found = 0, wide = 0, pass_rows;

	memset(seen, 0, sizeof seen);
	for (uint32_t b = 0; b < shape->blocks; b++) {
		uint32_t sum = 0;

		for (int32_t u = (int32_t)b; u >= 0 && units[u].results; u = units[u].next) {
			const struct attention_unit *unit = &units[u];
			uint32_t part = 0, context = (uint32_t)unit->context, whole = (context + 63) / 64 * 64;
			uint32_t span = unit->results == 1 ? whole : attention_span(context, unit->results);

			while (part < count && parts[part].first_row != unit->first_row)
				part++;
			if ((uint32_t)u >= used || part >= count || unit->context != parts[part].context || unit->first != parts[part].first ||
			    unit->rows != parts[part].rows || unit->table != parts[part].table + unit->begin / ATTENTION_PAGE ||
			    (uint32_t)unit->begin % span || unit->end <= unit->begin ||
			    ((uint32_t)unit->end != (uint32_t)unit->begin + span && unit->end != unit->context) ||
			    unit->results != (context + span - 1) / span ||
			    (!shape->whole && context > ATTENTION_GROUP * attention_run_own(context) && unit->results == 1) ||
			    (results[part] && unit->results != results[part]) || unit->head >= shape->kv_heads ||
			    unit->pass * (16u << unit->wide) >= unit->rows * shape->group || (unit->wide && shape->pass_rows == 16) ||
			    (unit->shared ? unit->results < 2 : unit->results > ATTENTION_FEW) ||
			    (shared[part] && shared[part] != 1 + (int)unit->shared) ||
			    (!unit->shared && !unit->wide && shape->pass_rows > 16 && unit->results > 1) ||
			    seen[part][(uint32_t)unit->begin / span][unit->head][unit->pass]++)
				ck_abort_msg("unit %d of block %u: tokens %d…%d of %d, head %u, pass %u", u, b, unit->begin, unit->end,
				    unit->context, unit->head, unit->pass);
			found++;
			wide += unit->wide;
			shared[part] = 1 + (int)unit->shared;
			results[part] = unit->results;
			sum += pages(unit);
		}
		most = sum > most ? sum : most;
	}
	ck_assert(wide == 0 || wide == found);
	pass_rows = wide ? shape->pass_rows : 16;
	ck_assert(wide || shape->pass_rows == 16 || used == shape->blocks);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t run = attention_run_own((uint32_t)parts[i].context), runs = ((uint32_t)parts[i].context + run - 1) / run;

		ck_assert(results[i] == runs || results[i] == (runs + ATTENTION_GROUP - 1) / ATTENTION_GROUP || results[i] == 1);
		found -= results[i] * shape->kv_heads *
		    (((uint32_t)parts[i].rows * shape->group + pass_rows - 1) / pass_rows);
	}
	ck_assert_uint_eq(found, 0);
	return most;
}

static struct attention_part part_of(uint32_t i, int32_t rows, int32_t context)
{
	return (struct attention_part){ (int32_t)i * 8, rows, context, (int32_t)i * 10000, (int32_t)i * 3000 };
}

START_TEST(every_unit_once)
{
	static const struct attention_shape shapes[] = { { 132, 2, 16, 16, 1 }, { 132, 2, 24, 32, 1 }, { 5, 8, 4, 16, 0 },
		{ 1, 1, 1, 16, 1 }, { 132, 2, 16, 32, 0 }, { 5, 8, 4, 16, 1 }, { 132, 2, 24, 32, 0 } };
	struct attention_planner *planner;
	struct attention_part    *parts;
	uint64_t                  random = 7;

	ck_assert_int_eq(attention_planner_create(PARTS_MAX, &planner), STATUS_OK);
	parts = attention_planner_parts(planner);
	for (int trial = 0; trial < 56; trial++) {
		const struct attention_shape *shape = &shapes[trial % 7];
		uint32_t                      count = (uint32_t)(trial * 7 % 30), used;

		for (uint32_t i = 0; i < count; i++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			parts[i] = part_of(i, 1 + (int32_t)(random >> 33) % 8, 8 + (int32_t)((random >> 40) % (i % 4 ? 3000 : 90000)));
		}
		used = attention_plan(planner, shape, count, units, UNITS_MAX);
		ck_assert_uint_ge(used, shape->blocks);
		check_plan(shape, parts, count, used);
	}
	attention_planner_destroy(planner);
}
END_TEST

/* Long and short contexts beside each other: the block with most to do has little more than its share. */
START_TEST(blocks_have_the_same_to_do)
{
	static const struct {
		uint32_t count;
		int32_t  first, others;
		uint32_t kv_heads;
		double   share;
	} cases[] = { { 32, 131072, 4096, 2, 0.95 }, { 16, 4096, 4096, 8, 0.96 }, { 8, 32768, 32768, 2, 0.96 },
		{ 32, 32768, 1024, 2, 0.84 },
	    { 1, 131072, 0, 2, 0.96 }, { 200, 60000, 700, 2, 0.95 }, { 32, 4096, 4096, 2, 0.96 }, { 20, 4096, 4096, 2, 0.95 },
	    { 16, 4096, 4096, 2, 0.96 }, { 8, 4096, 4096, 2, 0.96 }, { 256, 1024, 1024, 2, 0.96 },
		{ 48, 131072, 4096, 2, 0.94 }, { 128, 2000, 2000, 2, 0.96 } };
	struct attention_planner *planner;

	ck_assert_int_eq(attention_planner_create(PARTS_MAX, &planner), STATUS_OK);
	for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
		size_t                 c = i / 2;
		struct attention_shape shape = { 132, cases[c].kv_heads, 16, 16, i % 2 };
		struct attention_part *parts = attention_planner_parts(planner);
		uint32_t               used, most;
		double                 total = 0;

		for (uint32_t p = 0; p < cases[c].count; p++) {
			parts[p] = part_of(p, 1, p ? cases[c].others : cases[c].first);
			total += (parts[p].context + 63) / 64 * (double)shape.kv_heads;
		}
		used = attention_plan(planner, &shape, cases[c].count, units, UNITS_MAX);
		ck_assert_uint_gt(used, 0);
		most = check_plan(&shape, parts, cases[c].count, used);
		ck_assert_msg(total / shape.blocks / most > cases[c].share, "case %zu: %g pages a block, at most %u", c,
		    total / shape.blocks, most);
	}
	attention_planner_destroy(planner);
}
END_TEST

/* Where whole contexts fit beside the others they are units, where blocks would have more to do they are not. */
START_TEST(whole_contexts_where_they_fit)
{
	static const struct {
		uint32_t count;
		int32_t  first, others;
		uint32_t kv_heads, results; /* of the last one */
	} cases[] = { { 32, 131072, 4096, 2, 1 }, { 16, 4096, 4096, 8, 1 }, { 64, 2000, 2000, 2, 1 }, { 32, 4096, 4096, 2, 4 },
		{ 48, 131072, 4096, 2, 4 }, { 1, 4096, 0, 2, 16 } };
	struct attention_planner *planner;

	ck_assert_int_eq(attention_planner_create(PARTS_MAX, &planner), STATUS_OK);
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		struct attention_shape shape = { 132, cases[c].kv_heads, 16, 16, 1 };
		struct attention_part *parts = attention_planner_parts(planner);
		uint32_t               used, last = cases[c].count - 1;

		for (uint32_t i = 0; i <= last; i++)
			parts[i] = part_of(i, 1, i ? cases[c].others : cases[c].first);
		used = attention_plan(planner, &shape, cases[c].count, units, UNITS_MAX);
		check_plan(&shape, parts, cases[c].count, used);
		for (uint32_t u = 0; u < used; u++)
			if (units[u].results && units[u].first_row == parts[last].first_row)
				ck_assert_msg(units[u].results == cases[c].results, "case %zu: %u results", c, units[u].results);
	}
	attention_planner_destroy(planner);
}
END_TEST

/* The longest context that there can be: its last run would end beyond 2^31. */
START_TEST(the_longest_context_is_planned)
{
	struct attention_shape    shape = { 132, 2, 16, 16, 1 };
	struct attention_planner *planner;
	struct attention_part    *parts;

	ck_assert_int_eq(attention_planner_create(1, &planner), STATUS_OK);
	parts = attention_planner_parts(planner);
	parts[0] = part_of(0, 1, INT32_MAX);
	check_plan(&shape, parts, 1, attention_plan(planner, &shape, 1, units, UNITS_MAX));
	attention_planner_destroy(planner);
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
	struct attention_planner *planner;
	struct attention_shape    shape = { 4, 2, 16, 16, 0 };
	struct attention_part    *parts;

	ck_assert_int_eq(attention_planner_create(2, &planner), STATUS_OK);
	parts = attention_planner_parts(planner);
	parts[0] = part_of(0, 1, 4096);
	parts[1] = part_of(1, 8, 200);
	shape.blocks = 64;
	/* 16 runs of two heads, one run of two heads and eight passes, and the blocks. */
	ck_assert_uint_eq(attention_plan(planner, &shape, 2, units, 32 + 16 + 64 - 1), 0);
	ck_assert_uint_eq(attention_plan(planner, &shape, 2, units, 32 + 16 + 64), 64);
	shape.blocks = 4;
	ck_assert_uint_eq(attention_plan(planner, &shape, 3, units, UNITS_MAX), 0);
	shape.blocks = ATTENTION_BLOCKS_MAX + 1;
	ck_assert_uint_eq(attention_plan(planner, &shape, 2, units, UNITS_MAX), 0);
	shape.blocks = 4;
	shape.kv_heads = 256;
	ck_assert_uint_eq(attention_plan(planner, &shape, 2, units, UNITS_MAX), 0);
	shape.kv_heads = 2;
	parts[1].context = 7; /* fewer than its rows */
	ck_assert_uint_eq(attention_plan(planner, &shape, 2, units, UNITS_MAX), 0);
	attention_planner_destroy(planner);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("gpu_attention_plan");
	TCase   *tcase = tcase_create("plan");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_add_test(tcase, runs_depend_on_the_context_only);
	tcase_add_test(tcase, every_unit_once);
	tcase_add_test(tcase, blocks_have_the_same_to_do);
	tcase_add_test(tcase, whole_contexts_where_they_fit);
	tcase_add_test(tcase, the_longest_context_is_planned);
	tcase_add_test(tcase, what_does_not_fit_is_refused);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
