/* metrics.h: the counter block of penstockd (metrics.def) in shared memory. */
#ifndef PENSTOCK_IPC_METRICS_H
#define PENSTOCK_IPC_METRICS_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdint.h>

enum metric {
#define METRIC(kind, name, help) METRIC_##name,
#include "ipc/metrics.def"
#undef METRIC
	METRIC_COUNT
};

struct metrics_shared {
	uint64_t         magic, layout_hash;
	_Atomic uint64_t values[METRIC_COUNT];
};

struct metrics {
	struct metrics_shared *shared;
	char                   name[80];
};

enum status metrics_create(const char *instance, int gid, struct metrics *ret, struct error *error);
enum status metrics_open(const char *instance, struct metrics *ret, struct error *error); /* read-only */
void        metrics_close(struct metrics *metrics);

/* Counters have many readers and, per value, few writers: relaxed atomics. */
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

const char *metrics_name(enum metric id);
const char *metrics_kind(enum metric id); /* "counter" | "gauge" */
const char *metrics_help(enum metric id);

#endif
