/* header.c: owns the header object and the judgement "alive, ready".  Does not own when penstockd changes its state.
 * Invariant: a reader never calls a batcher ready whose write-once fields it could not see. */
#include "ipc/header.h"

#include "base/clock.h"
#include "base/hash.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define HEADER_MAGIC UINT64_C(0x706e737468647231)

/* The header has no table of its own: its layout is what the compiler made of the struct. */
static uint64_t layout_hash(void)
{
	const uint64_t layout[] = { sizeof(struct header_shared), offsetof(struct header_shared, vocab_fingerprint),
		offsetof(struct header_shared, stream_window), offsetof(struct header_shared, kv_tokens),
		offsetof(struct header_shared, model_name), offsetof(struct header_shared, architecture),
		offsetof(struct header_shared, state), offsetof(struct header_shared, heartbeat_ns),
		offsetof(struct header_shared, long_step_until_ns), offsetof(struct header_shared, step_time_ns),
		    wire_layout_hash() };

	return hash_fnv1a(HASH_FNV1A_START, layout, sizeof layout);
}

enum status header_create(const char *instance, int gid, struct header *ret, struct error *error)
{
	struct header   header = { 0 };
	struct timespec now;
	void           *map = NULL;
	enum status     status = object_create(instance, "header", sizeof *header.shared, 0640, gid, header.name, &map,
	    error);

	if (status != STATUS_OK)
		return status;
	header.shared = map;
	clock_gettime(CLOCK_REALTIME, &now);
	header.shared->epoch = (uint64_t)now.tv_sec * CLOCK_NS_PER_S + (uint64_t)now.tv_nsec;
	header.shared->pid = getpid();
	header.shared->start_time_s = now.tv_sec;
	header_beat(&header, clock_now_ns());
	object_publish(map, HEADER_MAGIC, layout_hash());
	*ret = header;
	return STATUS_OK;
}

enum status header_open(const char *instance, struct header *ret, struct error *error)
{
	void       *map = NULL;
	enum status status = object_open(instance, "header", sizeof *ret->shared, HEADER_MAGIC, layout_hash(), &map,
	    error);

	if (status == STATUS_OK)
		*ret = (struct header) { .shared = map };
	return status;
}

void header_close(struct header *header)
{
	if (!header)
		return;
	object_unmap(header->shared, sizeof *header->shared);
	object_unlink(header->name);
	*header = (struct header) { 0 };
}

void header_set_state(struct header *header, enum header_state state)
{
	/* H1: release, pairs with H2. */
	atomic_store_explicit(&header->shared->state, (uint32_t)state, memory_order_release);
}

void header_beat(struct header *header, uint64_t now_ns)
{
	/* H3: release, so that an announcement made before this beat is seen with it. */
	atomic_store_explicit(&header->shared->heartbeat_ns, now_ns, memory_order_release);
}

void header_announce_long_step(struct header *header, uint64_t until_ns)
{
	/* H3: release: when a reader sees the end of an announcement (0), it sees the beat before it. */
	atomic_store_explicit(&header->shared->long_step_until_ns, until_ns, memory_order_release);
}

bool header_alive(const struct header_shared *shared, uint64_t now_ns, uint64_t watchdog_ns)
{
	/* H2: acquire, pairs with H1. */
	uint32_t state = atomic_load_explicit(&shared->state, memory_order_acquire);
	uint64_t until, beat;

	if (state == HEADER_LOADING)
		return true;
	if (state != HEADER_READY && state != HEADER_DRAINING)
		return false;
	/* H3: the announcement first: if it is over, the beat that ended it is seen next. */
	until = atomic_load_explicit(&shared->long_step_until_ns, memory_order_acquire);
	beat = atomic_load_explicit(&shared->heartbeat_ns, memory_order_acquire);
	/* A beat later than our own clock reading is fresh. */
	return beat >= now_ns || now_ns - beat <= watchdog_ns || until > now_ns;
}

bool header_ready(const struct header_shared *shared, uint64_t now_ns, uint64_t watchdog_ns)
{
	/* H2: acquire, pairs with H1. */
	return atomic_load_explicit(&shared->state, memory_order_acquire) == HEADER_READY &&
	    header_alive(shared, now_ns, watchdog_ns);
}
