/* sim_stats.c: owns cells, backlog windows and groups.  Does not own time: durations come from the run.
 *
 * Invariants: a lane (key and class) is backlogged exactly while requests of it wait; class.backlogged counts those lanes. */
#include "tools/sim_stats.h"

#include <stdlib.h>

enum { OWED_SHARE = 20 };

struct cell {
	uint32_t key, class_at, lane;
	bool     is_long;
	uint64_t requests, finished, rejected, cancelled, service, wait_max_ns;
	struct sim_histogram ttft, itl;
};

struct lane {
	uint32_t class_at;
	uint64_t waiting, service;
	double   share_then, owed; /* the class's share when it became backlogged; what it was owed in earlier windows */
};

struct class {
	int32_t  value;
	uint32_t backlogged; /* lanes */
	uint64_t tokens;     /* of backlogged lanes in this step */
	double   share;      /* what a lane that was always backlogged has been owed so far */
};

struct sim_stats {
	const struct sim_trace *trace;
	struct cell  *cells;
	struct lane  *lanes; /* [cell_count] are more than enough */
	struct class *classes; /* [SIM_CLASSES_MAX], by value once all are known */
	uint32_t      cell_count, cell_capacity, lane_count, class_count;
	uint32_t     *slots; /* hash table of cell + 1, twice cell_capacity */
};

/* ---- cells --------------------------------------------------------------------------------------------------------- */

static enum status find_class(struct sim_stats *stats, int32_t value, uint32_t *ret)
{
	for (uint32_t i = 0; i < stats->class_count; i++)
		if (stats->classes[i].value == value) {
			*ret = i;
			return STATUS_OK;
		}
	if (stats->class_count == SIM_CLASSES_MAX)
		return STATUS_LIMIT;
	stats->classes[stats->class_count].value = value;
	*ret = stats->class_count++;
	return STATUS_OK;
}

static uint32_t slot_of(uint32_t key, uint32_t class_at, bool is_long)
{
	uint64_t mixed = ((uint64_t)key << 32 | class_at << 1 | is_long) * UINT64_C(0x9E3779B97F4A7C15);
	return (uint32_t)(mixed >> 32);
}

static enum status grow_cells(struct sim_stats *stats)
{
	uint32_t     capacity = stats->cell_capacity ? 2 * stats->cell_capacity : 64, mask = 2 * capacity - 1;
	struct cell *cells;
	uint32_t    *slots;

	if (stats->cell_capacity == SIM_CELLS_MAX)
		return STATUS_LIMIT;
	slots = calloc(2 * (size_t)capacity, sizeof *slots);
	if (!slots)
		return STATUS_NOMEM;
	cells = realloc(stats->cells, capacity * sizeof *cells);
	if (!cells) {
		free(slots);
		return STATUS_NOMEM;
	}
	for (uint32_t i = 0; i < stats->cell_count; i++) {
		uint32_t slot = slot_of(cells[i].key, cells[i].class_at, cells[i].is_long);
		while (slots[slot & mask])
			slot++;
		slots[slot & mask] = i + 1;
	}
	free(stats->slots);
	stats->slots = slots;
	stats->cells = cells;
	stats->cell_capacity = capacity;
	return STATUS_OK;
}

static enum status find_cell(struct sim_stats *stats, const struct sim_request *request, bool is_long, uint32_t *ret)
{
	uint32_t    class_at, slot, mask;
	enum status status = find_class(stats, request->class, &class_at);

	if (!status && stats->cell_count == stats->cell_capacity)
		status = grow_cells(stats);
	if (status)
		return status;
	mask = 2 * stats->cell_capacity - 1;
	for (slot = slot_of(request->key, class_at, is_long); stats->slots[slot & mask]; slot++) {
		const struct cell *cell = &stats->cells[stats->slots[slot & mask] - 1];
		if (cell->key == request->key && cell->class_at == class_at && cell->is_long == is_long) {
			*ret = stats->slots[slot & mask] - 1;
			return STATUS_OK;
		}
	}
	stats->cells[stats->cell_count] = (struct cell){ .key = request->key, .class_at = class_at, .is_long = is_long };
	*ret = stats->cell_count++;
	stats->slots[slot & mask] = stats->cell_count;
	return STATUS_OK;
}

static int by_key_and_class(const void *left, const void *right, void *context)
{
	const struct cell *cells = context, *a = &cells[*(const uint32_t *)left], *b = &cells[*(const uint32_t *)right];

	if (a->key != b->key)
		return a->key < b->key ? -1 : 1;
	return a->class_at < b->class_at ? -1 : a->class_at > b->class_at;
}

/* Short and long requests of a key and class wait in the same lane. */
static enum status make_lanes(struct sim_stats *stats)
{
	uint32_t *order = malloc((stats->cell_count + 1) * sizeof *order);

	stats->lanes = calloc(stats->cell_count + 1, sizeof *stats->lanes);
	if (!order || !stats->lanes) {
		free(order);
		return STATUS_NOMEM;
	}
	for (uint32_t i = 0; i < stats->cell_count; i++)
		order[i] = i;
	qsort_r(order, stats->cell_count, sizeof *order, by_key_and_class, stats->cells);
	for (uint32_t i = 0; i < stats->cell_count; i++) {
		struct cell *cell = &stats->cells[order[i]];

		if (i == 0 || by_key_and_class(&order[i - 1], &order[i], stats->cells))
			stats->lanes[stats->lane_count++].class_at = cell->class_at;
		cell->lane = stats->lane_count - 1;
	}
	free(order);
	return STATUS_OK;
}

enum status sim_stats_create(const struct sim_trace *trace, uint32_t long_prompt_tokens, struct sim_stats **ret,
    uint32_t **ret_cells, struct error *error)
{
	struct sim_stats *stats = calloc(1, sizeof *stats);
	uint32_t         *cells = malloc((trace->count + 1) * sizeof *cells);
	enum status       status = STATUS_NOMEM;

	if (!stats || !cells)
		goto fail;
	stats->trace = trace;
	stats->classes = calloc(SIM_CLASSES_MAX, sizeof *stats->classes);
	if (!stats->classes)
		goto fail;
	for (uint32_t i = 0; i < trace->count; i++) {
		const struct sim_request *request = &trace->requests[i];

		status = find_cell(stats, request, long_prompt_tokens && request->prompt_tokens > long_prompt_tokens, &cells[i]);
		if (status)
			goto fail;
		stats->cells[cells[i]].requests++;
	}
	status = make_lanes(stats);
	if (status)
		goto fail;
	*ret = stats;
	*ret_cells = cells;
	return STATUS_OK;
fail:
	free(cells);
	sim_stats_destroy(stats);
	if (status == STATUS_LIMIT)
		return error_set(error, status, "the trace has more than %d classes, or more than %d pairs of key and class",
		    SIM_CLASSES_MAX, SIM_CELLS_MAX / 2);
	return error_set(error, status, "no memory for the statistics of %u requests", trace->count);
}

void sim_stats_destroy(struct sim_stats *stats)
{
	if (!stats)
		return;
	for (uint32_t i = 0; i < stats->cell_count; i++) {
		sim_histogram_free(&stats->cells[i].ttft);
		sim_histogram_free(&stats->cells[i].itl);
	}
	free(stats->cells);
	free(stats->lanes);
	free(stats->classes);
	free(stats->slots);
	free(stats);
}

/* ---- counting ------------------------------------------------------------------------------------------------------ */

void sim_stats_wait(struct sim_stats *stats, uint32_t cell)
{
	struct lane  *lane = &stats->lanes[stats->cells[cell].lane];
	struct class *class = &stats->classes[lane->class_at];

	if (lane->waiting++ == 0) {
		class->backlogged++;
		lane->share_then = class->share;
	}
}

void sim_stats_wait_over(struct sim_stats *stats, uint32_t cell)
{
	struct lane  *lane = &stats->lanes[stats->cells[cell].lane];
	struct class *class = &stats->classes[lane->class_at];

	if (--lane->waiting == 0) {
		class->backlogged--;
		lane->owed += class->share - lane->share_then;
	}
}

void sim_stats_waited(struct sim_stats *stats, uint32_t cell, uint64_t ns)
{
	if (ns > stats->cells[cell].wait_max_ns)
		stats->cells[cell].wait_max_ns = ns;
}

void sim_stats_served(struct sim_stats *stats, uint32_t cell, uint32_t tokens)
{
	struct lane  *lane = &stats->lanes[stats->cells[cell].lane];
	struct class *class = &stats->classes[lane->class_at];

	if (lane->waiting == 0 || class->backlogged < 2)
		return;
	stats->cells[cell].service += tokens;
	lane->service += tokens;
	class->tokens += tokens;
}

void sim_stats_step_over(struct sim_stats *stats)
{
	for (uint32_t i = 0; i < stats->class_count; i++) {
		struct class *class = &stats->classes[i];

		if (class->tokens)
			class->share += (double)class->tokens / class->backlogged;
		class->tokens = 0;
	}
}

bool sim_stats_first_token(struct sim_stats *stats, uint32_t cell, uint64_t ttft_ns)
{
	return sim_histogram_add(&stats->cells[cell].ttft, ttft_ns);
}

bool sim_stats_next_token(struct sim_stats *stats, uint32_t cell, uint64_t gap_ns)
{
	return sim_histogram_add(&stats->cells[cell].itl, gap_ns);
}

void sim_stats_end(struct sim_stats *stats, uint32_t cell, enum sim_end end)
{
	struct cell *of = &stats->cells[cell];

	*(end == SIM_FINISHED ? &of->finished : end == SIM_REJECTED ? &of->rejected : &of->cancelled) += 1;
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

static double owed(const struct sim_stats *stats, const struct lane *lane)
{
	return lane->owed + (lane->waiting ? stats->classes[lane->class_at].share - lane->share_then : 0);
}

double sim_stats_jain(const struct sim_stats *stats)
{
	double   most = 0, sum = 0, squares = 0;
	uint32_t count = 0;

	for (uint32_t i = 0; i < stats->lane_count; i++)
		if (owed(stats, &stats->lanes[i]) > most)
			most = owed(stats, &stats->lanes[i]);
	for (uint32_t i = 0; i < stats->lane_count; i++) {
		double demand = owed(stats, &stats->lanes[i]), x;

		if (demand <= 0 || demand < most / OWED_SHARE)
			continue;
		x = (double)stats->lanes[i].service / demand;
		sum += x;
		squares += x * x;
		count++;
	}
	return squares > 0 ? sum * sum / (count * squares) : 1;
}

static bool belongs(const struct sim_stats *stats, const struct cell *cell, const struct sim_group *group, uint32_t key)
{
	switch (group->kind) {
	case SIM_GROUP_SHORT:
	case SIM_GROUP_LONG:
		return cell->is_long == (group->kind == SIM_GROUP_LONG);
	case SIM_GROUP_KEY:
		return cell->key == key;
	case SIM_GROUP_CLASS:
		return stats->classes[cell->class_at].value == group->class;
	}
	return false;
}

/* Sums cells ORDER[0 … count − 1], those of them that belong to GROUP (number KEY). */
static enum status sum_group(const struct sim_stats *stats, const uint32_t *order, uint32_t count, uint32_t key,
    struct sim_group *group)
{
	struct sim_histogram ttft = { .count = 0 }, itl = { .count = 0 };
	bool                 good = true;

	for (uint32_t i = 0; i < count && good; i++) {
		const struct cell *cell = &stats->cells[order[i]];

		if (!belongs(stats, cell, group, key))
			continue;
		group->requests += cell->requests;
		group->finished += cell->finished;
		group->rejected += cell->rejected;
		group->service_tokens += cell->service;
		if (cell->wait_max_ns > group->wait_max_ns)
			group->wait_max_ns = cell->wait_max_ns;
		good = sim_histogram_merge(&ttft, &cell->ttft) && sim_histogram_merge(&itl, &cell->itl);
	}
	group->ttft_p50_ns = sim_histogram_percentile(&ttft, 0.50);
	group->ttft_p99_ns = sim_histogram_percentile(&ttft, 0.99);
	group->itl_p99_ns = sim_histogram_percentile(&itl, 0.99);
	sim_histogram_free(&ttft);
	sim_histogram_free(&itl);
	return good ? STATUS_OK : STATUS_NOMEM;
}

static int by_value(const void *left, const void *right)
{
	int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
	return a < b ? -1 : a > b;
}

enum status sim_stats_groups(const struct sim_stats *stats, struct sim_group **ret, uint32_t *ret_count)
{
	uint32_t          max = 2 + stats->trace->keys.count + stats->class_count, count = 0;
	uint32_t         *order = malloc((stats->cell_count + 1) * sizeof *order);
	struct sim_group *groups = calloc(max, sizeof *groups);
	int32_t           values[SIM_CLASSES_MAX];
	enum status       status = order && groups ? STATUS_OK : STATUS_NOMEM;

	for (uint32_t i = 0; i < stats->cell_count && !status; i++)
		order[i] = i;
	for (int kind = SIM_GROUP_SHORT; kind <= SIM_GROUP_LONG && !status; kind++) {
		groups[count].kind = (enum sim_group_kind)kind;
		status = sum_group(stats, order, stats->cell_count, 0, &groups[count++]);
	}
	if (!status)
		qsort_r(order, stats->cell_count, sizeof *order, by_key_and_class, stats->cells);
	for (uint32_t i = 0, end; i < stats->cell_count && !status; i = end) {
		uint32_t key = stats->cells[order[i]].key;

		for (end = i; end < stats->cell_count && stats->cells[order[end]].key == key; end++)
			continue;
		groups[count].kind = SIM_GROUP_KEY;
		groups[count].key = stats->trace->keys.names[key];
		status = sum_group(stats, order + i, end - i, key, &groups[count++]);
	}
	for (uint32_t i = 0; i < stats->class_count; i++)
		values[i] = stats->classes[i].value;
	qsort(values, stats->class_count, sizeof *values, by_value);
	for (uint32_t i = 0; i < stats->class_count && !status; i++) {
		groups[count].kind = SIM_GROUP_CLASS;
		groups[count].class = values[i];
		status = sum_group(stats, order, stats->cell_count, 0, &groups[count++]);
	}
	free(order);
	if (status) {
		free(groups);
		return status;
	}
	*ret = groups;
	*ret_count = count;
	return STATUS_OK;
}
