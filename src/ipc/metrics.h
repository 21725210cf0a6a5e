/* metrics.h: the counter block of penstockd (metrics.def) in shared memory: made by penstockd, others only
 * read it. */
#ifndef PENSTOCK_IPC_METRICS_H
#define PENSTOCK_IPC_METRICS_H

#include "base/status.h"
#include "ipc/census.h"
#include "ipc/object.h"

#include <stdatomic.h>
#include <stdint.h>

enum metric {
#define METRIC(kind, name, help) METRIC_##name,
#define METRIC_LABELLED(kind, id, name, labels, help) METRIC_##id,
#define HISTOGRAM(name, buckets, help)
#include "ipc/metrics.def"
#undef METRIC
#undef METRIC_LABELLED
#undef HISTOGRAM
	METRIC_COUNT
};

enum histogram {
#define METRIC(kind, name, help)
#define METRIC_LABELLED(kind, id, name, labels, help)
#define HISTOGRAM(name, buckets, help) HISTOGRAM_##name,
#include "ipc/metrics.def"
#undef METRIC
#undef METRIC_LABELLED
#undef HISTOGRAM
	HISTOGRAM_COUNT
};

enum { METRICS_EDGES_MAX = 24 };

/* Values up to and including edges[i] that are above edges[i − 1] are in counts[i], those above the last edge in
 * counts[edge_count].  Edges and sums are whole numbers of a unit: shown divided by `divisor`. */
struct metrics_histogram {
	_Atomic uint64_t counts[METRICS_EDGES_MAX + 1];
	_Atomic uint64_t sum;
};

struct metrics_buckets {
	uint64_t divisor; /* 10⁹ for seconds kept in nanoseconds, 1 for counts */
	uint32_t edge_count;
	uint64_t edges[METRICS_EDGES_MAX];
};

struct metrics_shared {
	struct object_head       head;
	_Atomic uint64_t         values[METRIC_COUNT];
	struct metrics_histogram histograms[HISTOGRAM_COUNT];
	struct census_shared     census;
};

struct metrics {
	struct metrics_shared *shared; /* mapped; writable only on the creator's side */
	char                   name[OBJECT_NAME_MAX]; /* creator: unlinked by metrics_close */
};

enum status metrics_create(const char *instance, int gid, struct metrics *ret, struct error *error);
enum status metrics_open(const char *instance, struct metrics *ret, struct error *error); /* read-only */
void        metrics_close(struct metrics *metrics); /* zeroed handles are fine */

/* Counters have many readers and, per value, few writers: relaxed atomics, each value on its own, no order among
 * them. */
static inline void metrics_add(struct metrics *m, enum metric id, uint64_t n)
{
	atomic_fetch_add_explicit(&m->shared->values[id], n, memory_order_relaxed);
}
static inline void metrics_set(struct metrics *m, enum metric id, uint64_t n)
{
	atomic_store_explicit(&m->shared->values[id], n, memory_order_relaxed);
}
static inline uint64_t metrics_get(const struct metrics *m, enum metric id)
{
	return atomic_load_explicit(&m->shared->values[id], memory_order_relaxed);
}

/* Counts VALUE, in the unit of the buckets. */
void metrics_observe(struct metrics *m, enum histogram id, uint64_t value);

/* A histogram at one time: counts as they were read one after the other, so they may differ from the sum by what was counted
 * meanwhile. */
struct metrics_reading {
	uint64_t counts[METRICS_EDGES_MAX + 1], sum, total;
};
void metrics_read(const struct metrics *m, enum histogram id, struct metrics_reading *ret);
/* What came between two readings. */
void metrics_since(const struct metrics_reading *before, const struct metrics_reading *after, struct metrics_reading *ret);
/* The value below which a share Q of them lies, by straight lines inside a bucket; the last edge for what lies above it, 0 where
 * there is none.  In shown units (seconds, tokens). */
double metrics_quantile(enum histogram id, const struct metrics_reading *reading, double q);

const char *metrics_name(enum metric id); /* without the prefix penstock_; several ids may share one */
const char *metrics_id(enum metric id);     /* the name, or where several share one, what tells them apart */
const char *metrics_labels(enum metric id); /* as between the braces, "" = none */
const char *metrics_kind(enum metric id); /* "counter" | "gauge" */
const char *metrics_help(enum metric id);
const char *metrics_histogram_name(enum histogram id);
const char *metrics_histogram_help(enum histogram id);
const struct metrics_buckets *metrics_histogram_buckets(enum histogram id);

#endif
