/* scoreboard.h: the counters of all front children, in memory the master maps before it forks.
 *
 * One slot per child, written by that child alone and read by everyone; when a child dies the master folds its counters
 * into the totals and clears its gauges, so nothing is lost and nothing stays "open" for ever.  Any child renders
 * /metrics from it, with penstockd up or down.
 */
#ifndef PENSTOCK_FRONT_SCOREBOARD_H
#define PENSTOCK_FRONT_SCOREBOARD_H

#include "base/buf.h"

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

enum counter {
#define COUNTER(kind, ID, name, labels, help) COUNTER_##ID,
#include "front/counters.def"
#undef COUNTER
	COUNTER_COUNT
};

struct scoreboard_slot {
	_Alignas(64) _Atomic uint64_t values[COUNTER_COUNT];
	_Atomic uint64_t beat_ns; /* CLOCK_MONOTONIC of the child's last turn, at least one a second */
};

struct scoreboard {
	uint32_t         children;
	_Atomic uint32_t running;         /* children alive: written by the master */
	_Atomic uint64_t respawns;        /* children started in place of a dead one */
	struct scoreboard_slot total;     /* of dead children: written by the master */
	struct scoreboard_slot slots[];   /* [children] */
};

/* Maps a zeroed scoreboard that forked children share. */
enum status scoreboard_create(uint32_t children, struct scoreboard **ret, struct error *error);
void        scoreboard_free(struct scoreboard *board);

/* Master: child SLOT is dead. */
void scoreboard_fold(struct scoreboard *board, uint32_t slot);

/* The owner of a slot. */
static inline void scoreboard_add(struct scoreboard_slot *slot, enum counter id, uint64_t n)
{
	atomic_fetch_add_explicit(&slot->values[id], n, memory_order_relaxed);
}
static inline void scoreboard_sub(struct scoreboard_slot *slot, enum counter id, uint64_t n)
{
	atomic_fetch_sub_explicit(&slot->values[id], n, memory_order_relaxed);
}
static inline void scoreboard_set(struct scoreboard_slot *slot, enum counter id, uint64_t n)
{
	atomic_store_explicit(&slot->values[id], n, memory_order_relaxed);
}

uint64_t scoreboard_sum(const struct scoreboard *board, enum counter id);

/* Appends all of it as /metrics text, then penstockd's own block when INSTANCE has one. */
enum status scoreboard_render(const struct scoreboard *board, const char *instance, struct buf *out);

#endif
