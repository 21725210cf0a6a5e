/* lanes.c: owns the table of lanes and the changes of their state (the picture is in lanes.h).  Does not own what the
 * threads do with a lane.  Invariant: a mapping exists exactly while the state is not FREE. */
#include "batcher/lanes.h"

#include "batcher/intake.h"

#include <stdlib.h>

void lanes_init(struct lanes *lanes)
{
	for (uint32_t i = 0; i < LANE_COUNT_MAX; i++) {
		struct lanes_entry *entry = &lanes->entries[i];
		*entry = (struct lanes_entry){ .index = i, .lane = { .fd = -1 }, .wake = { -1, -1 } };
	}
	atomic_init(&lanes->used, 0);
}

enum status lanes_make(struct lanes *lanes, const struct lane_geometry *geometry, uint32_t pid, struct lanes_entry **ret,
    struct error *error)
{
	struct lanes_entry *entry = NULL;
	struct lane         lane = { .fd = -1 };
	struct wake         wake = { -1, -1 };
	struct intake_slot *slots = NULL;
	enum status         status;

	for (uint32_t i = 0; i < LANE_COUNT_MAX && !entry; i++)
		if (lanes_state(&lanes->entries[i]) == LANES_FREE && !lanes->entries[i].held)
			entry = &lanes->entries[i];
	if (!entry)
		return error_set(error, STATUS_FULL, "all %d lanes are taken", LANE_COUNT_MAX);
	status = lane_create(geometry, &lane, error);
	if (!status)
		status = wake_create(&wake, error);
	if (!status && !(slots = intake_slots_new(geometry->slot_count)))
		status = error_set(error, STATUS_NOMEM, "no memory for %u request slots", geometry->slot_count);
	if (status) {
		wake_close(&wake);
		lane_close(&lane);
		return status;
	}
	entry->lane = lane;
	entry->wake = wake;
	entry->pid = pid;
	entry->slots = slots;
	entry->held = true;
	entry->active = 0;
	entry->gone = false;
	entry->farewell = (struct queue_message){ .kind = QUEUE_FAREWELL, .lane = entry };
	atomic_store_explicit(&entry->queued, 0, memory_order_relaxed);
	*ret = entry;
	return STATUS_OK;
}

void lanes_open(struct lanes *lanes, struct lanes_entry *entry)
{
	atomic_store_explicit(&entry->state, LANES_OPEN, memory_order_release);
	if (entry->index >= lanes_used(lanes))
		atomic_store_explicit(&lanes->used, entry->index + 1, memory_order_release);
}

bool lanes_close(struct lanes_entry *entry)
{
	uint32_t open = LANES_OPEN;
	return atomic_compare_exchange_strong_explicit(&entry->state, &open, LANES_CLOSING, memory_order_acq_rel,
	    memory_order_acquire);
}

void lanes_let_go(struct lanes_entry *entry) { atomic_store_explicit(&entry->state, LANES_LET_GO, memory_order_release); }

void lanes_retire(struct lanes_entry *entry) { atomic_store_explicit(&entry->state, LANES_RETIRED, memory_order_release); }

void lanes_recycle(struct lanes_entry *entry)
{
	lane_close(&entry->lane);
	wake_close(&entry->wake);
	intake_slots_free(entry->slots);
	entry->slots = NULL;
	atomic_store_explicit(&entry->state, LANES_FREE, memory_order_release);
}

void lanes_free(struct lanes *lanes)
{
	for (uint32_t i = 0; i < LANE_COUNT_MAX; i++)
		if (lanes_state(&lanes->entries[i]) != LANES_FREE)
			lanes_recycle(&lanes->entries[i]);
}
