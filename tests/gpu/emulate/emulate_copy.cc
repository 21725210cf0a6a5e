/* emulate_copy.cc: owns what arrives later: bulk and tensor copies, cp.async, and the mbarriers that count them.  Invariant: from
 * its issue to its arrival the target of a copy holds poison (bytes of 0xff, NaN in every type). */
#include "machine.h"

/* ---- mbarriers ---- */

static uint64_t marker_of(const mbarrier *b) { return (uint64_t)(uintptr_t)b * 0x9E3779B97F4A7C15ull ^ 0x6d62617272696572ull; }

const mbarrier_state *mbarrier_find(const mbarrier *b)
{
	for (const mbarrier_state &state : machine.mbarriers)
		if (state.at == b)
			return &state;
	return NULL;
}

static mbarrier_state *mbarrier_of(const mbarrier *b, const char *what)
{
	mbarrier_state *state = (mbarrier_state *)mbarrier_find(b);

	if (!state)
		emulate_fail("%s: the mbarrier at %p was not begun (barrier_init)", what, (const void *)b);
	if (*b != marker_of(b))
		emulate_fail("%s: the mbarrier at %p was overwritten", what, (const void *)b);
	return state;
}

void barrier_init(mbarrier *b, uint32_t count)
{
	mbarrier_state *old = (mbarrier_state *)mbarrier_find(b);

	if ((uintptr_t)b % 8 || count == 0 || count >= 1 << 20)
		emulate_fail("barrier_init at %p with count %u: a multiple of 8, a count from 1 to 2^20 - 1", (void *)b, count);
	if (old && (old->pending != old->count || old->bytes))
		emulate_fail("barrier_init: the mbarrier at %p is in use", (void *)b);
	if (!old) {
		machine.mbarriers.push_back({});
		old = &machine.mbarriers.back();
	}
	old->at = b;
	old->count = old->pending = count;
	old->bytes = 0;
	old->phase = 0;
	old->seen.assign(machine.threads, -2);
	*b = marker_of(b);
}

/* A phase that lacks nothing completes. */
static void check_phase(mbarrier_state *state)
{
	if (state->pending || state->bytes)
		return;
	state->phase++;
	state->pending = state->count;
	for (uint32_t i = 0; i < machine.threads; i++) {
		struct thread *thread = &machine.thread[i];

		if (thread->state == THREAD_MBARRIER && thread->mbar == state->at && (state->phase & 1) != (int32_t)thread->parity)
			thread_wake(thread);
	}
}

void mbarrier_complete(mbarrier *b, int64_t bytes)
{
	mbarrier_state *state = (mbarrier_state *)mbarrier_find(b);

	state->bytes -= bytes;
	check_phase(state);
}

static void arrive(mbarrier_state *state, const char *what)
{
	if (state->pending == 0)
		emulate_fail("%s: phase %d of the mbarrier at %p has its %u arrivals, and waits for %lld bytes", what, state->phase,
		    (void *)state->at, state->count, (long long)state->bytes);
	state->pending--;
	check_phase(state);
}

void barrier_expect_more(mbarrier *b, uint32_t bytes)
{
	mbarrier_state *state = mbarrier_of(b, "barrier_expect_more");

	state->bytes += bytes;
	if (state->bytes >= 1 << 20)
		emulate_fail("barrier_expect: %lld bytes in a phase, at most 2^20 - 1", (long long)state->bytes);
}

void barrier_expect(mbarrier *b, uint32_t bytes)
{
	mbarrier_state *state = mbarrier_of(b, "barrier_expect");

	barrier_expect_more(b, bytes);
	arrive(state, "barrier_expect");
}

void barrier_arrive(mbarrier *b) { arrive(mbarrier_of(b, "barrier_arrive"), "barrier_arrive"); }

/* Notes that the thread knows phase PHASE to have completed, or waits for it: that it knew last, or the next one. */
static void note_phase(mbarrier_state *state, int32_t phase, const char *what)
{
	int32_t *seen = &state->seen[machine.current->number];

	if (!machine.options.skips_phases && (*seen == -2 ? phase > 0 : phase > *seen + 1))
		emulate_fail("%s: takes phase %d of the mbarrier at %p for another: it last knew %d, and a parity tells only two apart",
		    what, phase, (void *)state->at, *seen);
	*seen = phase;
}

void barrier_wait(mbarrier *b, uint32_t parity)
{
	mbarrier_state *state = mbarrier_of(b, "barrier_wait");
	size_t          which = (size_t)(state - machine.mbarriers.data());

	if (parity > 1)
		emulate_fail("barrier_wait: parity %u", parity);
	if ((state->phase & 1) != (int32_t)parity) {
		note_phase(state, state->phase - 1, "barrier_wait");
		if (random_below(8) == 0) /* it may take a while to see it */
			emulate_yield();
		return;
	}
	note_phase(state, state->phase, "barrier_wait");
	machine.current->mbar = b;
	machine.current->parity = parity;
	do {
		thread_block(THREAD_MBARRIER);
		state = &machine.mbarriers[which];
	} while (machine.options.skips_phases && (state->phase & 1) == (int32_t)parity);
	if ((state->phase & 1) == (int32_t)parity) /* it was slow, and the next phase has completed too */
		emulate_fail("barrier_wait: slept through a phase: the mbarrier at %p is in phase %d when parity %u of it is seen",
		    (void *)b, state->phase, parity);
}

bool barrier_test(mbarrier *b, uint32_t parity)
{
	mbarrier_state *state = mbarrier_of(b, "barrier_test");
	bool            done = (state->phase & 1) != (int32_t)parity;

	if (done)
		note_phase(state, state->phase - 1, "barrier_test");
	else
		emulate_yield();
	return done;
}

/* ---- The other proxy ---- */

void fence_async_proxy(void) { memcpy(machine.view, machine.shared, machine.shared_bytes); }

/* ---- Copies into shared memory ---- */

static bool is_shared(const void *p)
{
	return (const char *)p >= machine.shared && (const char *)p < machine.shared + SHARED_MOST;
}

/* Bytes at TO, in shared memory and in what the other proxy sees of it. */
static void put(char *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
	memcpy(machine.view + (to - machine.shared), from, bytes);
}

static void poison(char *to, size_t bytes)
{
	memset(to, 0xff, bytes);
	memset(machine.view + (to - machine.shared), 0xff, bytes);
}

static void enqueue(const async_copy &copy)
{
	machine.copies.push_back(copy);
	machine.copies.back().early = machine.hidden;
	machine.copies.back().due = machine.tick + 1 + random_delay();
}

void bulk_copy(void *smem, const void *global, uint32_t bytes, mbarrier *b, uint64_t)
{
	async_copy copy = {};

	mbarrier_of(b, "bulk_copy");
	if (bytes % 16 || bytes == 0 || (uintptr_t)global % 16)
		emulate_fail("bulk_copy of %u bytes from %p: multiples of 16", bytes, global);
	if (is_shared(global))
		emulate_fail("bulk_copy from %p, which is shared memory", global);
	copy.kind = COPY_BULK;
	copy.to = emulate_shared("bulk_copy", shared_address(smem), bytes, 16);
	copy.from = (const char *)global;
	copy.bytes = bytes;
	copy.mbar = b;
	poison(copy.to, bytes);
	enqueue(copy);
}

void bulk_prefetch(const void *global, uint32_t bytes)
{
	if (bytes % 16 || (uintptr_t)global % 16)
		emulate_fail("bulk_prefetch of %u bytes from %p: multiples of 16", bytes, global);
}

static uint32_t span_of(enum swizzle swizzle)
{
	return swizzle == SWIZZLE_128 ? 128 : swizzle == SWIZZLE_64 ? 64 : swizzle == SWIZZLE_32 ? 32 : 16;
}

/* Offset within a pattern whose address is a multiple of 8 spans. */
static uint32_t swizzled(enum swizzle swizzle, uint32_t offset)
{
	return offset ^ (offset >> 7 & (span_of(swizzle) / 16 - 1)) << 4;
}

static constexpr uint64_t MAP_VALID = 0x74656e736f726d70;

static uint32_t box_bytes(const tensor_map *map)
{
	uint32_t bytes = map->element;

	for (uint32_t d = 0; d < map->layout.rank; d++)
		bytes *= map->layout.box[d];
	return bytes;
}

void emulate_tensor_load(void *smem, const tensor_map *map, uint32_t rank, const int32_t at[5], mbarrier *b)
{
	async_copy copy = {};

	mbarrier_of(b, "tma_load");
	if (map->valid != MAP_VALID)
		emulate_fail("tma_load: the tensor map at %p was not encoded", (const void *)map);
	if (map->layout.rank != rank)
		emulate_fail("tma_load with %u coordinates of a tensor of rank %u", rank, map->layout.rank);
	copy.kind = COPY_TENSOR;
	copy.bytes = box_bytes(map);
	copy.to = emulate_shared("tma_load", shared_address(smem), copy.bytes,
	    map->layout.swizzle == SWIZZLE_NONE ? 128 : 8 * span_of(map->layout.swizzle));
	copy.map = *map;
	memcpy(copy.at, at, sizeof copy.at);
	copy.mbar = b;
	poison(copy.to, copy.bytes);
	enqueue(copy);
}

/* Runs of the innermost dimension, element by element where the box leaves the tensor. */
static void deliver_box(const async_copy *copy)
{
	const struct tensor_layout *layout = &copy->map.layout;
	uint32_t element = copy->map.element, row_bytes = layout->box[0] * element, rows = copy->bytes / row_bytes;

	for (uint32_t r = 0; r < rows; r++) {
		const char *from = (const char *)layout->address;
		uint32_t    left = r;
		bool        inside = true;

		for (uint32_t d = 1; d < layout->rank; d++) {
			int64_t at = (int64_t)copy->at[d] + left % layout->box[d];

			left /= layout->box[d];
			inside = inside && at >= 0 && (uint64_t)at < layout->dims[d];
			from += at * (int64_t)layout->strides[d];
		}
		for (uint32_t x = 0; x < row_bytes; x += 16) {
			int64_t at = (int64_t)copy->at[0] + x / element;
			char    chunk[16] = {};

			for (uint32_t i = 0; inside && i < 16 / element; i++)
				if (at + i >= 0 && (uint64_t)(at + i) < layout->dims[0])
					memcpy(chunk + i * element, from + (at + i) * element, element);
			put(copy->to + swizzled(layout->swizzle, r * row_bytes + x), chunk, 16);
		}
	}
}

int tensor_map_encode(const struct tensor_layout *layout, tensor_map *ret)
{
	static const uint32_t sizes[] = { 1, 2, 4, 2, 2, 4 };
	uint32_t element = layout->type <= TENSOR_F32 ? sizes[layout->type] : 0;
	uint32_t row = layout->box[0] * element;

	if (element == 0 || layout->rank < 1 || layout->rank > 5 || (uintptr_t)layout->address % 16 || row % 16 || row == 0 ||
	    (layout->swizzle != SWIZZLE_NONE && row > span_of(layout->swizzle)))
		return 1;
	for (uint32_t d = 0; d < layout->rank; d++)
		if (layout->box[d] == 0 || layout->box[d] > 256 || layout->dims[d] == 0 || layout->dims[d] > 1ull << 32 ||
		    (d > 0 && (layout->strides[d] % 16 || layout->strides[d] >= 1ull << 40)))
			return 1;
	ret->layout = *layout;
	ret->element = element;
	ret->valid = MAP_VALID;
	return 0;
}

/* ---- Stores ---- */

void bulk_store(void *global, const void *smem, uint32_t bytes)
{
	async_copy copy = {};
	uint32_t   address = shared_address(smem);

	if (bytes % 16 || bytes == 0 || (uintptr_t)global % 16)
		emulate_fail("bulk_store of %u bytes to %p: multiples of 16", bytes, global);
	copy.kind = COPY_STORE;
	copy.from = emulate_shared("bulk_store", address, bytes, 16);
	copy.to = (char *)global;
	copy.bytes = bytes;
	copy.thread = machine.current->number;
	copy.group = machine.current->stores;
	memset(global, 0xff, bytes);
	enqueue(copy);
}

/* What of a box lies in the tensor: from FROM in shared memory, or poison. */
static void store_box(const async_copy *copy, const char *from)
{
	static const char           nothing[8] = { -1, -1, -1, -1, -1, -1, -1, -1 };
	const struct tensor_layout *layout = &copy->map.layout;
	uint32_t                    element = copy->map.element, row_bytes = layout->box[0] * element;

	for (uint32_t offset = 0; offset < copy->bytes; offset += element) {
		uint32_t left = offset / row_bytes;
		int64_t  at = (int64_t)copy->at[0] + offset % row_bytes / element;
		char    *to = (char *)layout->address + at * element;
		bool     inside = at >= 0 && (uint64_t)at < layout->dims[0];

		for (uint32_t d = 1; d < layout->rank; d++) {
			at = (int64_t)copy->at[d] + left % layout->box[d];
			left /= layout->box[d];
			inside = inside && at >= 0 && (uint64_t)at < layout->dims[d];
			to += at * (int64_t)layout->strides[d];
		}
		if (inside)
			memcpy(to, from ? from + swizzled(layout->swizzle, offset) : nothing, element);
	}
}

void tma_store_2d(const tensor_map *map, int32_t x, int32_t y, const void *smem)
{
	async_copy copy = {};

	if (map->valid != MAP_VALID || map->layout.rank != 2)
		emulate_fail("tma_store_2d: the tensor map at %p was not encoded, or not of rank 2", (const void *)map);
	copy.kind = COPY_STORE;
	copy.bytes = box_bytes(map);
	copy.from = emulate_shared("tma_store_2d", shared_address(smem), copy.bytes,
	    map->layout.swizzle == SWIZZLE_NONE ? 128 : 8 * span_of(map->layout.swizzle));
	copy.map = *map;
	copy.at[0] = x;
	copy.at[1] = y;
	copy.thread = machine.current->number;
	copy.group = machine.current->stores;
	store_box(&copy, NULL);
	enqueue(copy);
}

void bulk_store_commit(void) { machine.current->stores++; }

static bool stores_pending(const struct thread *thread, uint32_t groups)
{
	for (const async_copy &copy : machine.copies)
		if (copy.kind == COPY_STORE && copy.thread == thread->number && copy.group + groups < thread->stores)
			return true;
	return false;
}

void emulate_store_wait(uint32_t groups, bool)
{
	while (stores_pending(machine.current, groups))
		thread_block(THREAD_STORES);
}

/* ---- Arrival ---- */

static const char *deliver(const async_copy *copy)
{
	bool again = copy->early && !machine.hidden && copy->kind != COPY_STORE; /* it sees what was there when it began */

	if (again)
		hide_before();
	if (copy->kind == COPY_BULK) {
		put(copy->to, copy->from, copy->bytes);
	} else if (copy->kind == COPY_TENSOR) {
		deliver_box(copy);
	} else {
		const char *seen = machine.view + (copy->from - machine.shared);

		if (memcmp(seen, copy->from, copy->bytes))
			return "a bulk store read shared memory that was written without fence_async_proxy, or during the store";
		if (copy->map.valid)
			store_box(copy, seen);
		else
			memcpy(copy->to, seen, copy->bytes);
	}
	if (again)
		show_before();
	if (copy->kind != COPY_STORE)
		mbarrier_complete(copy->mbar, copy->bytes);
	return NULL;
}

/* Copies that are due; ALL: those that a block's end does not stop, stores. */
void copies_deliver(bool all)
{
	for (size_t i = 0; i < machine.copies.size();) {
		async_copy  copy = machine.copies[i];
		const char *error;

		if (all ? copy.kind != COPY_STORE : copy.due > machine.tick) {
			i++;
			continue;
		}
		machine.copies[i] = machine.copies.back();
		machine.copies.pop_back();
		error = deliver(&copy);
		if (error) {
			snprintf(machine.error, sizeof machine.error, "block (%u, %u, %u) thread %u: %s", blockIdx.x, blockIdx.y, blockIdx.z,
			    copy.thread, error);
			machine.failed = true;
			return;
		}
		if (copy.kind == COPY_STORE && machine.thread[copy.thread].state == THREAD_STORES)
			thread_wake(&machine.thread[copy.thread]);
	}
}

/* ---- cp.async ---- */

static void deliver_small(const small_copy *copy)
{
	bool again = copy->early && !machine.hidden;

	if (again)
		hide_before();
	memset(copy->to, 0, 16);
	memcpy(copy->to, copy->from, copy->bytes);
	if (again)
		show_before();
}

void cp_async_16(uint32_t smem, const void *global, uint32_t bytes_valid)
{
	small_copy copy = { emulate_shared("cp_async_16", smem, 16, 16), global, bytes_valid, machine.current->copies,
		machine.hidden };

	if (bytes_valid > 16 || (uintptr_t)global % 16)
		emulate_fail("cp_async_16 of %u bytes from %p: at most 16, from a multiple of 16", bytes_valid, global);
	memset(copy.to, 0xff, 16);
	if (random_below(4) == 0)
		deliver_small(&copy);
	else
		machine.current->pending.push_back(copy);
}

void cp_async_16(void *smem, const void *global, uint32_t bytes_valid) { cp_async_16(shared_address(smem), global, bytes_valid); }

void cp_async_commit(void) { machine.current->copies++; }

void emulate_copy_wait(uint32_t groups)
{
	struct thread *thread = machine.current;
	size_t         kept = 0;

	for (size_t i = 0; i < thread->pending.size(); i++) {
		if (thread->pending[i].group + groups < thread->copies)
			deliver_small(&thread->pending[i]);
		else
			thread->pending[kept++] = thread->pending[i];
	}
	thread->pending.resize(kept);
}

void thread_copies_end(struct thread *thread)
{
	for (const small_copy &copy : thread->pending)
		deliver_small(&copy);
	thread->pending.clear();
}
