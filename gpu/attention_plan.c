#include "gpu/attention_plan.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Costs are counted in pages, and in multiples of pages where runs are longer than COSTS pages. */
enum { COSTS = 1024, NONE = -1 };
_Static_assert(ATTENTION_RUNS_MAX < 128, "what a unit counts of results");

struct attention_planner {
	uint32_t parts_max;
	int32_t  by_cost[COSTS];                                      /* first class of each cost */
	int32_t  by_load[COSTS], block_next[ATTENTION_BLOCKS_MAX];    /* blocks by what they have to do, modulo COSTS */
	int32_t  last[ATTENTION_BLOCKS_MAX];                          /* unit of each block; NONE: it has none yet */
	uint32_t load, most;                                          /* of the blocks that have least, and most to do */
	uint32_t used;                                                /* units */
	uint32_t few;                                                 /* of more results, all units are shared */
	int32_t *class_next;                                          /* [2 · parts_max]; full units of part i: 2i, its last: 2i + 1 */
	uint32_t *spans;                                              /* [parts_max]: tokens of a unit */
	struct attention_part parts[];                                /* [parts_max] */
};

enum status attention_planner_create(uint32_t parts_max, struct attention_planner **ret)
{
	size_t each = sizeof *(*ret)->parts + 2 * sizeof *(*ret)->class_next + sizeof *(*ret)->spans;

	*ret = parts_max > INT32_MAX / 2 ? NULL : malloc(sizeof **ret + parts_max * each);
	if (!*ret)
		return STATUS_NOMEM;
	(*ret)->parts_max = parts_max;
	(*ret)->class_next = (int32_t *)((*ret)->parts + parts_max);
	(*ret)->spans = (uint32_t *)((*ret)->class_next + 2 * (size_t)parts_max);
	return STATUS_OK;
}

void attention_planner_destroy(struct attention_planner *planner) { free(planner); }
struct attention_part *attention_planner_parts(struct attention_planner *planner) { return planner->parts; }

static uint32_t passes_of(const struct attention_part *part, const struct attention_shape *shape)
{
	return ((uint32_t)part->rows * shape->group + shape->pass_rows - 1) / shape->pass_rows;
}

static uint32_t pages_of(uint32_t tokens) { return (tokens + ATTENTION_PAGE - 1) / ATTENTION_PAGE; }

/* The next unit of the block that has least to do, which gets COST more. */
static struct attention_unit *take_unit(struct attention_planner *planner, struct attention_unit *units, uint32_t cost)
{
	int32_t *list, block, at;

	while (planner->by_load[planner->load % COSTS] == NONE)
		planner->load++;
	list = &planner->by_load[planner->load % COSTS];
	block = *list;
	*list = planner->block_next[block];
	planner->most = planner->load + cost > planner->most ? planner->load + cost : planner->most;
	list = &planner->by_load[(planner->load + cost) % COSTS];
	planner->block_next[block] = *list;
	*list = block;
	if (planner->last[block] == NONE)
		at = block;
	else
		units[planner->last[block]].next = at = (int32_t)planner->used++;
	planner->last[block] = at;
	return &units[at];
}

/* All units [FIRST, END) of a part, of SPAN tokens. */
static void place_units(struct attention_planner *planner, const struct attention_shape *shape, const struct attention_part *part,
    uint32_t span, uint32_t first, uint32_t end, uint32_t cost, struct attention_unit *units)
{
	uint32_t results = ((uint32_t)part->context - 1) / span + 1;
	uint32_t passes = passes_of(part, shape);

	for (uint32_t i = first; i < end; i++)
		for (uint32_t head = 0; head < shape->kv_heads; head++)
			for (uint32_t pass = 0; pass < passes; pass++) {
				struct attention_unit *unit = take_unit(planner, units, cost);
				uint32_t               stop = (i + 1) * span; /* may be beyond 2^31 */

				*unit = (struct attention_unit){ .begin = (int32_t)(i * span),
					.end = stop < (uint32_t)part->context ? (int32_t)stop : part->context,
					.context = part->context, .first_row = part->first_row, .first = part->first,
					.table = part->table + (int32_t)(i * span / ATTENTION_PAGE), .next = NONE, .rows = (uint8_t)part->rows,
					.head = (uint8_t)head, .pass = pass & 127, .wide = shape->pass_rows > 16,
					.results = results & 127, .shared = results > planner->few };
			}
}

/* How long the units of each part are: whole contexts where they may be, or groups, as long as all of those fit beside each other
 * into what a block has to do on average and a little more, else runs.  PAGES are those of all units.  Returns whether a unit is
 * more than a group. */
static bool choose_spans(struct attention_planner *planner, const struct attention_shape *shape, uint32_t count, uint64_t pages,
    bool whole)
{
	uint64_t most = (pages + pages / 16) / shape->blocks, longer = 0;
	bool     found = false;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t context = (uint32_t)planner->parts[i].context, run = attention_run_own(context), group = run * ATTENTION_GROUP;
		uint32_t spans[] = { (context + run - 1) / run * run, group };
		uint64_t each = (uint64_t)passes_of(&planner->parts[i], shape) * shape->kv_heads;

		planner->spans[i] = run;
		for (int s = whole && context > group ? 0 : 1; s < 2 && planner->spans[i] == run; s++) {
			uint64_t units = ((context - 1) / spans[s] + 1) * each;

			if (longer + units > shape->blocks * (most / pages_of(context < spans[s] ? context : spans[s])))
				continue;
			planner->spans[i] = spans[s];
			longer += units;
			found |= s == 0;
		}
	}
	return found;
}

/* Units of runs. */
static uint64_t count_units(const struct attention_planner *planner, const struct attention_shape *shape, uint32_t count)
{
	uint64_t units = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t context = (uint32_t)planner->parts[i].context, run = attention_run_own(context);

		units += (uint64_t)((context + run - 1) / run) * passes_of(&planner->parts[i], shape) * shape->kv_heads;
	}
	return units;
}

/* Units of the spans that have been chosen; 0: they are more than MAX.  RET_COSTS: what all blocks have to do. */
static uint32_t place_parts(struct attention_planner *planner, const struct attention_shape *shape, uint32_t count, bool narrow,
    struct attention_unit *ret, uint32_t max, uint64_t *ret_costs)
{
	const struct attention_part *parts = planner->parts;
	uint32_t longest = 1, shift = 0;
	uint64_t total = shape->blocks, costs = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t context = (uint32_t)parts[i].context, span = planner->spans[i];

		total += (uint64_t)((context - 1) / span + 1) * passes_of(&parts[i], shape) * shape->kv_heads;
		longest = longest > pages_of(span) ? longest : pages_of(span);
	}
	if (total > max)
		return 0;
	/* Blocks that wait keep the next kernel's from beginning.  TOTAL counts the blocks, too. */
	planner->few = narrow ? 1 : total > 2 * shape->blocks ? ATTENTION_FEW : ATTENTION_FEW / 4;
	while (1 + (longest >> shift) >= COSTS)
		shift++;
	memset(planner->by_cost, 0xff, sizeof planner->by_cost);
	memset(planner->by_load, 0xff, sizeof planner->by_load);
	memset(planner->last, 0xff, sizeof planner->last);
	planner->load = planner->most = 0;
	planner->used = shape->blocks;
	for (uint32_t b = shape->blocks; b-- > 0;) {
		planner->block_next[b] = planner->by_load[0];
		planner->by_load[0] = (int32_t)b;
		ret[b] = (struct attention_unit){ .next = NONE };
	}
	/* A unit costs its pages, and as much as one more to begin and end. */
	for (uint32_t class = 2 * count; class-- > 0;) {
		uint32_t context = (uint32_t)parts[class / 2].context, span = planner->spans[class / 2];
		uint32_t last = (context - 1) % span + 1, cost;

		if (class % 2 == 0 && context <= span)
			continue;
		cost = 1 + (pages_of(class % 2 ? last : span) >> shift);
		planner->class_next[class] = planner->by_cost[cost];
		planner->by_cost[cost] = (int32_t)class;
	}
	for (uint32_t cost = COSTS; cost-- > 0;)
		for (int32_t class = planner->by_cost[cost]; class != NONE; class = planner->class_next[class]) {
			const struct attention_part *part = &parts[class / 2];
			uint32_t span = planner->spans[class / 2], results = ((uint32_t)part->context - 1) / span + 1;
			uint32_t first = class % 2 ? results - 1 : 0, end = class % 2 ? results : results - 1;

			place_units(planner, shape, part, span, first, end, cost, ret);
			costs += (uint64_t)cost * (end - first) * passes_of(part, shape) * shape->kv_heads;
		}
	*ret_costs = costs;
	return planner->used;
}

uint32_t attention_plan(struct attention_planner *planner, const struct attention_shape *shape, uint32_t count,
    struct attention_unit *ret, uint32_t max)
{
	const struct attention_part *parts = planner->parts;
	struct attention_shape narrow = *shape;
	uint64_t pages = 0, costs;
	uint32_t units;
	bool     whole;

	if (count > planner->parts_max || shape->blocks == 0 || shape->blocks > ATTENTION_BLOCKS_MAX || shape->kv_heads > UINT8_MAX ||
	    shape->pass_rows == 0 || shape->group > UINT8_MAX)
		return 0;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t passes = passes_of(&parts[i], shape);

		if (parts[i].rows < 1 || parts[i].rows > UINT8_MAX || parts[i].context < parts[i].rows || passes > 127)
			return 0;
		pages += pages_of((uint32_t)parts[i].context) * passes * shape->kv_heads;
	}
	narrow.pass_rows = narrow.pass_rows > 16 ? 16 : narrow.pass_rows;
	if (count_units(planner, &narrow, count) <= shape->blocks)
		shape = &narrow;
	whole = choose_spans(planner, shape, count, pages, shape->whole);
	units = place_parts(planner, shape, count, shape == &narrow, ret, max, &costs);
	if (!whole || !units || planner->most * (uint64_t)shape->blocks <= costs + costs / 16)
		return units;
	/* Among others whole contexts may be too long to give all blocks the same. */
	choose_spans(planner, shape, count, pages, false);
	return place_parts(planner, shape, count, shape == &narrow, ret, max, &costs);
}
