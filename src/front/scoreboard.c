/* scoreboard.c: owns the mapping of the counters and their text form.  Does not decide what is counted.  Invariant: a
 * slot has one writer at a time (its child; the master once the child is dead), so relaxed atomics suffice. */
#include "front/scoreboard.h"

#include "api/exposition.h"
#include "ipc/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct row {
	const char *kind, *name, *labels, *help;
};

static const struct row rows[COUNTER_COUNT] = {
#define COUNTER(kind, ID, name, labels, help) { #kind, "penstock_front_" name, labels, help },
#include "front/counters.def"
#undef COUNTER
};

static size_t board_bytes(uint32_t children)
{
	return sizeof(struct scoreboard) + children * sizeof(struct scoreboard_slot);
}

enum status scoreboard_create(uint32_t children, struct scoreboard **ret, struct error *error)
{
	struct scoreboard *board =
	    mmap(NULL, board_bytes(children), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED)
		return error_set(error, STATUS_NOMEM, "no memory for the counters of %u children: %s", children,
		    strerror(errno));
	board->children = children;
	*ret = board;
	return STATUS_OK;
}

void scoreboard_free(struct scoreboard *board)
{
	if (board)
		munmap(board, board_bytes(board->children));
}

void scoreboard_fold(struct scoreboard *board, uint32_t slot)
{
	for (int id = 0; id < COUNTER_COUNT; id++) {
		uint64_t value = atomic_exchange_explicit(&board->slots[slot].values[id], 0, memory_order_relaxed);
		if (strcmp(rows[id].kind, "gauge"))
			scoreboard_add(&board->total, (enum counter)id, value);
	}
}

uint64_t scoreboard_sum(const struct scoreboard *board, enum counter id)
{
	uint64_t sum = atomic_load_explicit(&board->total.values[id], memory_order_relaxed);
	for (uint32_t i = 0; i < board->children; i++)
		sum += atomic_load_explicit(&board->slots[i].values[id], memory_order_relaxed);
	return sum;
}

static enum status render_histogram(const struct metrics *metrics, enum histogram id, struct buf *out)
{
	const struct metrics_buckets *buckets = metrics_histogram_buckets(id);
	struct metrics_reading        reading;
	char                          name[80];

	metrics_read(metrics, id, &reading);
	snprintf(name, sizeof name, "penstock_%s", metrics_histogram_name(id));
	return exposition_append_histogram(out,
	    &(struct exposition_histogram){ .name = name, .help = metrics_histogram_help(id), .divisor = buckets->divisor,
	        .edge_count = buckets->edge_count, .edges = buckets->edges, .counts = reading.counts, .sum = reading.sum });
}

enum status scoreboard_render(const struct scoreboard *board, const char *instance, struct buf *out)
{
	struct exposition_row lines[COUNTER_COUNT + 2];
	struct metrics        metrics;
	enum status           status;
	size_t                n = 0;

	for (; n < COUNTER_COUNT; n++)
		lines[n] = (struct exposition_row){ rows[n].name, rows[n].kind, rows[n].help, rows[n].labels,
			scoreboard_sum(board, (enum counter)n) };
	lines[n++] = (struct exposition_row){ "penstock_front_children", "gauge", "Front children running", "",
		atomic_load_explicit(&board->running, memory_order_relaxed) };
	lines[n++] = (struct exposition_row){ "penstock_front_respawns_total", "counter",
		"Front children started in place of dead ones", "",
		atomic_load_explicit(&board->respawns, memory_order_relaxed) };
	status = exposition_append(out, lines, n);
	if (status || metrics_open(instance, &metrics, NULL))
		return status; /* penstockd is not there: its block is left out */

	struct exposition_row block[METRIC_COUNT];
	char                  names[METRIC_COUNT][80];
	for (int id = 0; id < METRIC_COUNT; id++) {
		snprintf(names[id], sizeof names[id], "penstock_%s", metrics_name((enum metric)id));
		block[id] = (struct exposition_row){ names[id], metrics_kind((enum metric)id), metrics_help((enum metric)id),
			metrics_labels((enum metric)id), metrics_get(&metrics, (enum metric)id) };
	}
	status = exposition_append(out, block, METRIC_COUNT);
	for (int id = 0; id < HISTOGRAM_COUNT && !status; id++)
		status = render_histogram(&metrics, (enum histogram)id, out);
	metrics_close(&metrics);
	return status;
}
