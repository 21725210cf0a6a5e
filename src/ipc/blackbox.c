/* blackbox.c: owns the object of the last plans.  Does not own when one is written.
 * Invariant: what a reader believes was written whole, whatever the writer died of. */
#include "ipc/blackbox.h"

#include "base/clock.h"
#include "base/hash.h"

#include <time.h>
#include <unistd.h>

#define BLACKBOX_MAGIC UINT64_C(0x706e7374626c6b31)
#define NOT_LAUNCHED UINT64_MAX /* as step_ns: no step belongs to this plan */
#define KIND "blackbox"
#define KIND_PREVIOUS "blackbox.prev"

static uint64_t layout_hash(void)
{
	const uint64_t layout[] = { sizeof(struct blackbox_shared), sizeof(struct blackbox_plan), BLACKBOX_PLANS, BLACKBOX_ITEMS,
		offsetof(struct blackbox_plan, items), offsetof(struct blackbox_plan, item_count),
		offsetof(struct blackbox_shared, count) };

	return hash_fnv1a(HASH_FNV1A_START, layout, sizeof layout);
}

enum status blackbox_create(const char *instance, int gid, struct blackbox *ret, struct error *error)
{
	struct blackbox box = { 0 };
	struct timespec now;
	void           *map = NULL;
	enum status     status = object_keep(instance, KIND, KIND_PREVIOUS, error);

	if (!status)
		status = object_create(instance, KIND, sizeof *box.shared, 0640, gid, box.name, &map, error);
	if (status)
		return status;
	box.shared = map;
	clock_gettime(CLOCK_REALTIME, &now);
	box.shared->start_ns = (uint64_t)now.tv_sec * CLOCK_NS_PER_S + (uint64_t)now.tv_nsec;
	box.shared->pid = getpid();
	object_publish(map, BLACKBOX_MAGIC, layout_hash());
	*ret = box;
	return STATUS_OK;
}

void blackbox_leave(struct blackbox *box)
{
	object_unmap(box->shared, sizeof *box->shared);
	*box = (struct blackbox){ 0 };
}

void blackbox_close(struct blackbox *box)
{
	if (!box)
		return;
	object_unlink(box->name);
	blackbox_leave(box);
}

void blackbox_write(struct blackbox *box, const struct blackbox_plan *plan, bool launched)
{
	uint64_t               number = atomic_load_explicit(&box->shared->count, memory_order_relaxed);
	struct blackbox_entry *entry = &box->shared->entries[number % BLACKBOX_PLANS];

	atomic_store_explicit(&entry->step_ns, launched ? 0 : NOT_LAUNCHED, memory_order_relaxed);
	/* Turns tell the laps apart: number n ends at 2n + 2. */
	seqlock_write(&entry->turn, 2 * number, entry->words, plan, sizeof *plan);
	/* Pairs with the acquire in blackbox_read's callers by way of the turn; the count is only where to look. */
	atomic_store_explicit(&box->shared->count, number + 1, memory_order_release);
}

void blackbox_finish(struct blackbox *box, uint64_t step_ns)
{
	uint64_t               count = atomic_load_explicit(&box->shared->count, memory_order_relaxed);
	struct blackbox_entry *entry;

	do {
		if (box->finished == count)
			return; /* nothing is under way */
		entry = &box->shared->entries[box->finished++ % BLACKBOX_PLANS];
	} while (atomic_load_explicit(&entry->step_ns, memory_order_relaxed) == NOT_LAUNCHED);
	atomic_store_explicit(&entry->step_ns, step_ns ? step_ns : 1, memory_order_relaxed);
}

enum status blackbox_open(const char *instance, bool previous, struct blackbox *ret, struct error *error)
{
	void       *map = NULL;
	enum status status = object_open(instance, previous ? KIND_PREVIOUS : KIND, sizeof *ret->shared, BLACKBOX_MAGIC, layout_hash(),
	    &map, error);

	if (!status)
		*ret = (struct blackbox){ .shared = map };
	return status;
}

bool blackbox_read(const struct blackbox *box, uint64_t number, struct blackbox_plan *ret, uint64_t *ret_step_ns)
{
	const struct blackbox_entry *entry = &box->shared->entries[number % BLACKBOX_PLANS];
	uint64_t                     turn = 0;

	*ret_step_ns = atomic_load_explicit(&entry->step_ns, memory_order_relaxed);
	if (*ret_step_ns == NOT_LAUNCHED)
		*ret_step_ns = 0;
	if (!seqlock_read(&entry->turn, entry->words, ret, sizeof *ret, &turn) || turn != 2 * number + 2)
		return false;
	if (ret->item_count > BLACKBOX_ITEMS) /* nobody writes that */
		ret->item_count = BLACKBOX_ITEMS;
	return true;
}
