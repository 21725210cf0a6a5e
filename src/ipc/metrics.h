/* metrics.h: the counter block of penstockd (metrics.def) in shared memory: made by penstockd, others only
 * read it. */
#ifndef PENSTOCK_IPC_METRICS_H
#define PENSTOCK_IPC_METRICS_H

#include "base/status.h"
#include "ipc/object.h"

#include <stdatomic.h>
#include <stdint.h>

enum metric {
#define METRIC(kind, name, help) METRIC_##name,
#include "ipc/metrics.def"
#undef METRIC
	METRIC_COUNT
};

struct metrics_shared {
	struct object_head head;
	_Atomic uint64_t   values[METRIC_COUNT];
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

const char *metrics_name(enum metric id); /* without the prefix penstock_ */
const char *metrics_kind(enum metric id); /* "counter" | "gauge" */
const char *metrics_help(enum metric id);

#endif
