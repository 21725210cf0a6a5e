/* lane.c: owns the lane object (making, sealing, mapping, checking) and the words beside its rings.  Does not own the
 * descriptors that wake a child (wake.h), the doorbell, or who gets a lane (penstockd).
 * Invariant: every address in the object is derived from the handle's private geometry, never from shared words read
 * later than lane_attach. */
#include "ipc/lane.h"

#include "base/checked.h"
#include "base/hash.h"
#include "ipc/object.h"

#include <sys/mman.h>
#include <unistd.h>

#define LANE_MAGIC UINT64_C(0x706e73746c616e31)

_Static_assert(sizeof(struct lane_shared) % RING_CACHE_LINE == 0, "the rings start on a cache line");
_Static_assert(sizeof(struct lane_slot_shared) == 4 * RING_CACHE_LINE, "the front's words of a slot, and the batcher's");
_Static_assert((int)LANE_CHOICES_MAX == (int)WIRE_CHOICES_MAX, "a STOP for every choice");

static uint64_t layout_hash(void)
{
	const uint64_t layout[] = { sizeof(struct lane_shared), sizeof(struct lane_slot_shared), LANE_SLOTS_MAX,
		offsetof(struct lane_shared, slot_count), offsetof(struct lane_shared, front_waiting),
		offsetof(struct lane_shared, replies), offsetof(struct lane_shared, records),
		offsetof(struct lane_shared, events), offsetof(struct lane_shared, slots), offsetof(struct lane_slot_shared, consumed),
		offsetof(struct lane_slot_shared, reply), wire_layout_hash() };

	return hash_fnv1a(HASH_FNV1A_START, layout, sizeof layout);
}

static bool ring_bytes_fit(uint32_t bytes)
{
	return bytes >= RING_SIZE_MIN && bytes <= RING_SIZE_MAX && (bytes & (bytes - 1)) == 0;
}

/* True when the geometry is possible; *ret is the size of its object. */
static bool geometry_bytes(const struct lane_geometry *g, size_t *ret)
{
	size_t bytes = sizeof(struct lane_shared), window;

	return g->slot_count >= 1 && g->slot_count <= LANE_SLOTS_MAX && g->stream_window >= LANE_WINDOW_MIN &&
	    g->stream_window <= LANE_WINDOW_MAX && ring_bytes_fit(g->record_ring_bytes) &&
	    ring_bytes_fit(g->event_ring_bytes) &&
	    checked_mul_size(g->slot_count, g->stream_window, &window) && window <= g->event_ring_bytes &&
	    checked_add_size(bytes, g->record_ring_bytes, &bytes) && checked_add_size(bytes, g->event_ring_bytes, ret);
}

enum status lane_geometry_plan(uint32_t slot_count, uint32_t stream_window, struct lane_geometry *ret)
{
	struct lane_geometry g = { .slot_count = slot_count, .stream_window = stream_window,
	    .record_ring_bytes = LANE_RECORD_RING };
	size_t               bytes;

	if (slot_count < 1 || slot_count > LANE_SLOTS_MAX || stream_window < LANE_WINDOW_MIN ||
	    stream_window > LANE_WINDOW_MAX)
		return STATUS_LIMIT;
	g.event_ring_bytes = RING_SIZE_MIN;
	while (g.event_ring_bytes < slot_count * stream_window)
		g.event_ring_bytes *= 2;
	if (!geometry_bytes(&g, &bytes))
		return STATUS_LIMIT;
	*ret = g;
	return STATUS_OK;
}

/* Fills the handle over a mapping whose geometry is checked (so ring_init has nothing to refuse). */
static void make_handle(struct lane_shared *shared, size_t bytes, const struct lane_geometry *g, int fd, struct lane *ret)
{
	unsigned char *rings = (unsigned char *)(shared + 1);

	*ret = (struct lane) { .shared = shared, .bytes = bytes, .geometry = *g, .fd = fd };
	(void)ring_init(&ret->records, &shared->records, rings, g->record_ring_bytes);
	(void)ring_init(&ret->events, &shared->events, rings + g->record_ring_bytes, g->event_ring_bytes);
}

enum status lane_create(const struct lane_geometry *geometry, struct lane *ret, struct error *error)
{
	struct lane_shared *shared;
	enum status         status;
	size_t              bytes;
	void               *map;
	int                 fd;

	if (!geometry_bytes(geometry, &bytes))
		return error_set(error, STATUS_INVALID, "impossible lane: %u slots, stream window %u, rings of %u and %u bytes",
		    geometry->slot_count, geometry->stream_window, geometry->record_ring_bytes, geometry->event_ring_bytes);
	status = object_create_sealed("lane", bytes, &fd, &map, error);
	if (status)
		return status;
	shared = map;
	/* Nobody else has the descriptor yet: plain stores; passing it over a socket orders them. */
	shared->magic = LANE_MAGIC;
	shared->layout_hash = layout_hash();
	shared->bytes = bytes;
	shared->slot_count = geometry->slot_count;
	shared->record_ring_bytes = geometry->record_ring_bytes;
	shared->event_ring_bytes = geometry->event_ring_bytes;
	shared->stream_window = geometry->stream_window;
	make_handle(shared, bytes, geometry, fd, ret);
	return STATUS_OK;
}

/* Checks the first words of a mapping of BYTES bytes. */
static enum status check_shared(const struct lane_shared *shared, size_t bytes, struct lane_geometry *ret,
    struct error *error)
{
	struct lane_geometry g = { .slot_count = shared->slot_count, .stream_window = shared->stream_window,
		.record_ring_bytes = shared->record_ring_bytes, .event_ring_bytes = shared->event_ring_bytes };
	size_t               expected;

	atomic_signal_fence(memory_order_seq_cst); /* the copy is what is checked */
	if (shared->magic != LANE_MAGIC)
		return error_set(error, STATUS_INVALID, "lane has magic %016jx, %016jx was expected: not a lane",
		    (uintmax_t)shared->magic, (uintmax_t)LANE_MAGIC);
	if (shared->layout_hash != layout_hash())
		return error_set(error, STATUS_INVALID, "lane has layout %016jx, this program %016jx: restart the older one",
		    (uintmax_t)shared->layout_hash, (uintmax_t)layout_hash());
	if (!geometry_bytes(&g, &expected) || expected != bytes || shared->bytes != bytes)
		return error_set(error, STATUS_INVALID,
		    "lane of %zu bytes claims %ju bytes, %u slots, stream window %u, rings of %u and %u bytes",
		    bytes, (uintmax_t)shared->bytes, g.slot_count, g.stream_window, g.record_ring_bytes, g.event_ring_bytes);
	/* The front's own words: a second front would start from indices that are not its own.  (The batcher's may have
	 * moved already.) */
	if (atomic_load_explicit(&shared->records.tail, memory_order_relaxed) ||
	    atomic_load_explicit(&shared->events.head, memory_order_relaxed))
		return error_set(error, STATUS_INVALID, "lane has been used before: each attachment needs a new one");
	*ret = g;
	return STATUS_OK;
}

enum status lane_attach(int fd, struct lane *ret, struct error *error)
{
	struct lane_shared  *shared;
	struct lane_geometry geometry;
	enum status          status;
	size_t               bytes;
	void                *map;

	status = object_attach_sealed(fd, "lane", sizeof *shared, sizeof *shared + 2 * (size_t)RING_SIZE_MAX, &map, &bytes, error);
	if (status)
		return status;
	shared = map;
	status = check_shared(shared, bytes, &geometry, error);
	if (status == STATUS_OK)
		make_handle(shared, bytes, &geometry, -1, ret);
	else
		munmap(shared, bytes);
	return status;
}

void lane_close(struct lane *lane)
{
	if (!lane || !lane->shared)
		return;
	munmap(lane->shared, lane->bytes);
	if (lane->fd >= 0)
		close(lane->fd);
	*lane = (struct lane) { .fd = -1 };
}

/* ---- front ---------------------------------------------------------------------------------------------------- */

/* The front is the only writer of control and consumed: it may read its own words relaxed. */
static uint64_t own_control(const struct lane *lane, uint32_t slot)
{
	return atomic_load_explicit(&lane->shared->slots[slot].control, memory_order_relaxed);
}

/* R1: control.store(release)   pairs with   R2: control.load(acquire) in lane_batcher_control: who sees a generation
 * sees the credit cleared for it. */
static void store_control(struct lane *lane, uint32_t slot, uint32_t generation, uint32_t flags, uint32_t keep)
{
	atomic_store_explicit(&lane->shared->slots[slot].control,
	    LANE_CONTROL(generation, flags, keep < LANE_KEEP_MAX ? keep : LANE_KEEP_MAX), memory_order_release);
}

uint32_t lane_front_open_slot(struct lane *lane, uint32_t slot)
{
	uint32_t generation = lane_control_generation(own_control(lane, slot)) + 1;

	if (generation == 0)
		generation = 1;
	atomic_store_explicit(&lane->shared->slots[slot].consumed, (uint64_t)generation << 32, memory_order_relaxed);
	store_control(lane, slot, generation, 0, 0);
	return generation;
}

void lane_front_cancel(struct lane *lane, uint32_t slot)
{
	uint64_t word = own_control(lane, slot);

	store_control(lane, slot, lane_control_generation(word), lane_control_flags(word) | LANE_CONTROL_CANCEL,
	    lane_control_keep(word));
}

void lane_front_stop(struct lane *lane, uint32_t slot, uint32_t choice, uint32_t keep)
{
	uint64_t word = own_control(lane, slot);

	if (choice == 0) {
		store_control(lane, slot, lane_control_generation(word), lane_control_flags(word) | LANE_CONTROL_STOP, keep);
		return;
	}
	if (choice >= LANE_CHOICES_MAX)
		return;
	/* Relaxed: the word carries everything, and its own generation, so that it need not be cleared. */
	atomic_store_explicit(&lane->shared->slots[slot].stops[choice - 1],
	    LANE_CONTROL(lane_control_generation(word), LANE_CONTROL_STOP, keep < LANE_KEEP_MAX ? keep : LANE_KEEP_MAX),
	    memory_order_relaxed);
}

void lane_front_consumed(struct lane *lane, uint32_t slot, uint32_t bytes)
{
	/* Relaxed: the batcher acts on the number alone, no memory is handed over with it. */
	atomic_store_explicit(&lane->shared->slots[slot].consumed,
	    (uint64_t)lane_control_generation(own_control(lane, slot)) << 32 | bytes, memory_order_relaxed);
}

enum lane_reply lane_front_reply(struct lane *lane, uint32_t slot, uint32_t *ret_value)
{
	/* R3: acquire, pairs with lane_batcher_reply; the word carries everything. */
	uint64_t word = atomic_load_explicit(&lane->shared->slots[slot].reply, memory_order_acquire);

	if (lane_reply_generation(word) != lane_control_generation(own_control(lane, slot)) ||
	    lane_reply_kind(word) > LANE_REPLY_REJECT)
		return LANE_REPLY_NONE;
	*ret_value = lane_reply_value(word);
	return lane_reply_kind(word);
}

enum status lane_front_write(struct lane *lane, void *record, size_t bytes, const int32_t *ids, size_t count)
{
	enum status status = STATUS_LIMIT;

	if (count <= WIRE_TOKENS_MAX)
		status = ring_write(&lane->records, record, bytes, ids, count * sizeof *ids);
	lane->room_wanted = status == STATUS_FULL ? wire_stored_bytes((uint32_t)(bytes + count * sizeof *ids)) : 0;
	return status;
}

void lane_front_forget_room(struct lane *lane)
{
	lane->room_wanted = 0;
}

enum status lane_front_read(struct lane *lane, void *buffer, size_t capacity, size_t *ret_bytes)
{
	size_t      bytes;
	enum status status = ring_read(&lane->events, buffer, capacity, &bytes);

	if (status == STATUS_OK)
		status = wire_check_event(buffer, bytes, lane->geometry.slot_count);
	if (status == STATUS_OK)
		*ret_bytes = bytes;
	return status;
}

bool lane_front_prepare_wait(struct lane *lane)
{
	struct lane_shared *shared = lane->shared;
	uint32_t            wants = LANE_WANTS_EVENTS | (lane->room_wanted ? LANE_WANTS_ROOM : 0), replies;
	bool                news;

	/* W1: seq_cst, pairs with N2. */
	atomic_store_explicit(&shared->front_waiting, wants, memory_order_seq_cst);
	/* W2: seq_cst, pairs with N1. */
	replies = atomic_load_explicit(&shared->replies, memory_order_seq_cst);
	news = replies != lane->replies_seen || ring_pending_seq_cst(&lane->events) ||
	    (lane->room_wanted && ring_writable_seq_cst(&lane->records) >= lane->room_wanted);
	lane->replies_seen = replies;
	if (news)
		lane_front_end_wait(lane);
	return !news;
}

void lane_front_end_wait(struct lane *lane)
{
	/* W4: relaxed would do: if the batcher takes the old wish meanwhile, the child gets one wake too many. */
	atomic_store_explicit(&lane->shared->front_waiting, 0, memory_order_relaxed);
}

/* ---- batcher -------------------------------------------------------------------------------------------------- */

enum status lane_batcher_read(struct lane *lane, void *buffer, size_t capacity, size_t *ret_bytes)
{
	size_t      bytes;
	enum status status = ring_read(&lane->records, buffer, capacity, &bytes);

	if (status == STATUS_OK)
		status = wire_check_record(buffer, bytes, lane->geometry.slot_count);
	if (status == STATUS_OK)
		*ret_bytes = bytes;
	return status;
}

bool lane_batcher_pending_seq_cst(const struct lane *lane)
{
	return ring_pending_seq_cst(&lane->records);
}

/* N2, N3: takes the child's wish if it wants any of KINDS.  Only a wish that is there is exchanged: the word stays in
 * the child's cache while it is busy. */
static bool take_waiting(struct lane *lane, uint32_t kinds)
{
	/* N2: seq_cst, pairs with W1. */
	if (!(atomic_load_explicit(&lane->shared->front_waiting, memory_order_seq_cst) & kinds))
		return false;
	return atomic_exchange_explicit(&lane->shared->front_waiting, 0, memory_order_seq_cst) != 0;
}

bool lane_batcher_take_waiting(struct lane *lane)
{
	return take_waiting(lane, LANE_WANTS_EVENTS);
}

bool lane_batcher_take_room_waiting(struct lane *lane)
{
	return take_waiting(lane, LANE_WANTS_ROOM);
}

uint64_t lane_batcher_control(const struct lane *lane, uint32_t slot)
{
	/* R2: acquire, pairs with R1. */
	return slot < LANE_SLOTS_MAX ? atomic_load_explicit(&lane->shared->slots[slot].control, memory_order_acquire) : 0;
}

bool lane_batcher_stop(const struct lane *lane, uint32_t slot, uint32_t generation, uint32_t choice, uint32_t *ret_keep)
{
	uint64_t word;

	if (slot >= LANE_SLOTS_MAX || choice == 0 || choice >= LANE_CHOICES_MAX)
		return false;
	word = atomic_load_explicit(&lane->shared->slots[slot].stops[choice - 1], memory_order_relaxed);
	if (lane_control_generation(word) != generation || !(lane_control_flags(word) & LANE_CONTROL_STOP))
		return false;
	*ret_keep = lane_control_keep(word);
	return true;
}

void lane_batcher_reply(struct lane *lane, uint32_t slot, uint32_t generation, enum lane_reply kind, uint32_t value)
{
	if (slot >= LANE_SLOTS_MAX)
		return;
	atomic_store_explicit(&lane->shared->slots[slot].reply,
	    LANE_REPLY(generation, kind, value < LANE_REPLY_VALUE_MAX ? value : LANE_REPLY_VALUE_MAX),
	    memory_order_release);
	/* N1: seq_cst, pairs with W2.  The intake thread is the only writer, but the child could scribble here: it then
	 * loses wake-ups of its own. */
	atomic_fetch_add_explicit(&lane->shared->replies, 1, memory_order_seq_cst);
}

enum status lane_batcher_write(struct lane *lane, void *event, size_t bytes, const int32_t *ids, size_t count)
{
	return count <= WIRE_EVENT_IDS_MAX ? ring_write(&lane->events, event, bytes, ids, count * sizeof *ids) : STATUS_LIMIT;
}

uint32_t lane_batcher_consumed(const struct lane *lane, uint32_t slot, uint32_t generation)
{
	uint64_t word;

	if (slot >= LANE_SLOTS_MAX)
		return 0;
	/* Relaxed, as its store. */
	word = atomic_load_explicit(&lane->shared->slots[slot].consumed, memory_order_relaxed);
	return (uint32_t)(word >> 32) == generation ? (uint32_t)word : 0;
}

uint64_t lane_batcher_drop_records(struct lane *lane)
{
	return ring_drop(&lane->records);
}
