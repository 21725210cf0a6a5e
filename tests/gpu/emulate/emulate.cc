/* emulate.cc: owns blocks: fibers, the order in which warps run, collectives of warps, barriers, words about a deadlock.  Does
 * not own copies and mbarriers (emulate_copy.cc) nor matrices (emulate_matrix.cc).  Invariant: exactly one fiber runs, and it
 * runs until it waits; what it waits for, and the seed, decide who is next. */
#include "machine.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <numeric>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ADDRESS_SANITIZER 1
#else
#define ADDRESS_SANITIZER 0
#endif

enum { STACK_BYTES = 256 << 10, GUARD_BYTES = 4096, CANARY = 0xa5, YIELDS_MOST = 1000000 };

struct machine machine;
uint3 threadIdx, blockIdx;
dim3  blockDim, gridDim;

/* ---- Fibers ---- */

/* Leaves the stack at *FROM, goes on at TO. */
extern "C" void emulate_switch(void **from, void *to);
#ifndef __x86_64__
#error the switch of fibers is written for x86-64
#endif
asm(".text\n.globl emulate_switch\n.type emulate_switch, @function\nemulate_switch:\n"
    "\tpushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n"
    "\tmovq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n"
    "\tpopq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret\n"
    ".size emulate_switch, . - emulate_switch\n");

static char *stack_of(const struct thread *thread) { return machine.stacks + (size_t)thread->number * STACK_BYTES; }

/* From a fiber; ENDS: for good. */
static void to_scheduler(bool ends)
{
	struct thread *thread = machine.current;

#if ADDRESS_SANITIZER
	__sanitizer_start_switch_fiber(ends ? NULL : &thread->fake_stack, machine.scheduler_stack, machine.scheduler_stack_bytes);
#endif
	(void)ends;
	emulate_switch(&thread->stack_pointer, machine.scheduler);
#if ADDRESS_SANITIZER
	__sanitizer_finish_switch_fiber(thread->fake_stack, NULL, NULL);
#endif
}

static void run_fiber(struct thread *thread)
{
	machine.current = thread;
	threadIdx = thread->index;
#if ADDRESS_SANITIZER
	__sanitizer_start_switch_fiber(&machine.scheduler_fake, stack_of(thread) + GUARD_BYTES, STACK_BYTES - GUARD_BYTES);
#endif
	emulate_switch(&machine.scheduler, thread->stack_pointer);
#if ADDRESS_SANITIZER
	__sanitizer_finish_switch_fiber(machine.scheduler_fake, NULL, NULL);
#endif
	machine.current = NULL;
}

static void complete_barrier(uint32_t id);

static void lane_ended(struct thread *thread)
{
	struct warp    *warp = &machine.warp[thread->warp];
	struct barrier *all = &machine.barrier[0];

	thread_copies_end(thread);
	for (uint32_t i = thread->number - thread->lane; i < machine.threads && i < thread->number - thread->lane + 32; i++)
		if (machine.thread[i].state == THREAD_WARP && machine.thread[i].mask >> thread->lane & 1)
			emulate_fail("ends, but lane %u waits for it at %s", machine.thread[i].lane, machine.thread[i].what);
	warp->ended |= 1u << thread->lane;
	warp->ready &= ~(1u << thread->lane);
	if (warp->ended == warp->there)
		warp_end(warp);
	thread->state = THREAD_ENDED;
	machine.live--;
	if (all->arrived && all->expected == 0 && all->arrived == machine.live)
		complete_barrier(0);
}

static void fiber_main(void)
{
#if ADDRESS_SANITIZER
	__sanitizer_finish_switch_fiber(NULL, &machine.scheduler_stack, &machine.scheduler_stack_bytes);
#endif
	machine.body(machine.context);
	lane_ended(machine.current);
	to_scheduler(true);
	abort(); /* nobody comes back */
}

static void prepare_fiber(struct thread *thread)
{
	void **top = (void **)(stack_of(thread) + STACK_BYTES);

#if ADDRESS_SANITIZER
	__asan_unpoison_memory_region(stack_of(thread) + GUARD_BYTES, STACK_BYTES - GUARD_BYTES);
#endif
	*--top = NULL; /* at its entry a function's stack is 8 below a multiple of 16 */
	*--top = (void *)fiber_main;
	top -= 6;
	memset(top, 0, 6 * sizeof *top);
	thread->stack_pointer = top;
}

/* ---- Order ---- */

static uint64_t random_next(void)
{
	uint64_t z = machine.random += 0x9E3779B97F4A7C15ull;

	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ z >> 27) * 0x94D049BB133111EBull;
	return z ^ z >> 31;
}

uint64_t random_below(uint64_t count) { return random_next() % count; }

/* Mostly short, now and then long, and sometimes until nobody else can go on. */
uint64_t random_delay(void)
{
	uint64_t kind = random_below(32);

	return kind == 0 ? 1ull << 40 : kind == 1 ? random_below(200) : random_below(8);
}

void thread_block(enum thread_state state)
{
	struct thread *thread = machine.current;

	thread->state = state;
	machine.warp[thread->warp].ready &= ~(1u << thread->lane);
	to_scheduler(false);
}

void thread_wake(struct thread *thread)
{
	thread->state = THREAD_READY;
	machine.warp[thread->warp].ready |= 1u << thread->lane;
	machine.idle_yields = 0;
}

void emulate_yield(void)
{
	if (++machine.idle_yields > YIELDS_MOST)
		emulate_fail("spins: nothing else happens (a block cannot wait for a later one here)");
	to_scheduler(false);
}

void emulate_fail(const char *format, ...)
{
	struct thread *thread = machine.current;
	va_list        arguments;
	size_t         used = 0;

	if (machine.running && thread)
		used = (size_t)snprintf(machine.error, sizeof machine.error, "block (%u, %u, %u) thread %u (warp %u lane %u): ", blockIdx.x,
		    blockIdx.y, blockIdx.z, thread->number, thread->warp, thread->lane);
	va_start(arguments, format);
	vsnprintf(machine.error + used, sizeof machine.error - used, format, arguments);
	va_end(arguments);
	if (!machine.running || !thread) {
		fprintf(stderr, "emulator: %s\n", machine.error);
		abort();
	}
	machine.failed = true;
	to_scheduler(true);
	abort();
}

/* ---- Collectives of a warp ---- */

uint32_t emulate_lane(void) { return machine.current->lane; }

/* Lanes of MASK that are not at this collective yet; an error if one of them is at another that waits for this lane. */
static uint32_t missing_lanes(const struct thread *thread, const char *what, uint32_t key, uint32_t mask)
{
	const struct thread *lanes = thread - thread->lane;
	uint32_t             missing = 0;

	for (uint32_t i = 0; i < 32; i++) {
		const struct thread *other = lanes + i;

		if (!(mask >> i & 1) || other == thread)
			continue;
		if (other->state != THREAD_WARP || !(other->mask >> thread->lane & 1))
			missing |= 1u << i;
		else if (strcmp(other->what, what) || other->key != key || other->mask != mask)
			emulate_fail("%s (%u, mask %08x), but lane %u is at %s (%u, mask %08x)", what, key, mask, i, other->what, other->key,
			    other->mask);
	}
	return missing;
}

void emulate_warp(const char *what, uint32_t key, uint32_t mask, void *arg, emulate_apply *apply)
{
	struct thread *thread = machine.current, *lanes = thread - thread->lane;
	struct warp   *warp = &machine.warp[thread->warp];
	uint32_t       missing;
	void          *args[32] = {};

	if (!(mask >> thread->lane & 1))
		emulate_fail("%s: the mask %08x does not name the lane itself", what, mask);
	mask &= warp->there;
	if (mask & warp->ended)
		emulate_fail("%s: the mask %08x names lanes %08x, which have ended", what, mask, mask & warp->ended);
	if (warp->waiting == 0) { /* the usual case: all lanes come to the same one */
		warp->what = what;
		warp->key = key;
		warp->mask = mask;
		warp->met = 0;
	}
	if (warp->what == what && warp->key == key && warp->mask == mask && (warp->met || warp->waiting == 0)) {
		warp->met |= 1u << thread->lane;
		missing = mask & ~warp->met;
	} else {
		missing = missing_lanes(thread, what, key, mask);
	}
	thread->what = what;
	thread->key = key;
	thread->mask = mask;
	thread->arg = arg;
	if (missing) {
		warp->waiting++;
		thread_block(THREAD_WARP);
		return;
	}
	for (uint32_t i = 0; i < 32; i++)
		args[i] = mask >> i & 1 ? lanes[i].arg : NULL;
	if (warp->met & mask)
		warp->met = 0;
	apply(args, mask, key);
	for (uint32_t i = 0; i < 32; i++) {
		if (mask >> i & 1 && lanes + i != thread) {
			warp->waiting--;
			thread_wake(lanes + i);
		}
	}
}

void emulate_apply_nothing(void *const *, uint32_t, uint32_t) {}

void emulate_apply_shuffle(void *const args[32], uint32_t mask, uint32_t key)
{
	uint64_t before[32] = {};

	for (uint32_t i = 0; i < 32; i++)
		if (mask >> i & 1)
			before[i] = ((const emulate_shuffle *)args[i])->value;
	for (uint32_t i = 0; i < 32; i++) {
		emulate_shuffle *shuffle = (emulate_shuffle *)args[i];
		uint32_t         first, last, from;

		if (!(mask >> i & 1))
			continue;
		if (shuffle->width == 0 || shuffle->width > 32 || (shuffle->width & (shuffle->width - 1)))
			emulate_fail("a shuffle of width %u", shuffle->width);
		first = i & ~(shuffle->width - 1);
		last = first + shuffle->width - 1;
		from = key == EMULATE_INDEX ? first + (shuffle->argument & (shuffle->width - 1)) : key == EMULATE_UP ?
		    (i - first >= shuffle->argument ? i - shuffle->argument : i) : key == EMULATE_DOWN ?
		    (last - i >= shuffle->argument ? i + shuffle->argument : i) : (i ^ shuffle->argument);
		from = from > last ? i : from;
		if (!(mask >> from & 1))
			emulate_fail("a shuffle of lanes %08x reads lane %u, which takes no part", mask, from);
		shuffle->value = before[from];
	}
}

void emulate_apply_vote(void *const args[32], uint32_t mask, uint32_t key)
{
	uint64_t before[32] = {};

	for (uint32_t i = 0; i < 32; i++)
		if (mask >> i & 1)
			before[i] = *(const uint64_t *)args[i];
	for (uint32_t i = 0; i < 32; i++) {
		uint32_t word = 0;

		if (!(mask >> i & 1))
			continue;
		for (uint32_t j = 0; j < 32; j++)
			if (mask >> j & 1 && (key == EMULATE_BALLOT ? before[j] != 0 : before[j] == before[i]))
				word |= 1u << j;
		*(uint64_t *)args[i] = word;
	}
}

void emulate_apply_reduce(void *const args[32], uint32_t mask, uint32_t key)
{
	uint32_t ret = 0;
	bool     first = true;

	for (uint32_t i = 0; i < 32; i++) {
		uint32_t v;

		if (!(mask >> i & 1))
			continue;
		v = *(const uint32_t *)args[i];
		if (first)
			ret = v;
		else
			switch (key) {
			case EMULATE_ADD: ret += v; break;
			case EMULATE_MIN: ret = v < ret ? v : ret; break;
			case EMULATE_MAX: ret = v > ret ? v : ret; break;
			case EMULATE_SMIN: ret = (int32_t)v < (int32_t)ret ? v : ret; break;
			case EMULATE_SMAX: ret = (int32_t)v > (int32_t)ret ? v : ret; break;
			case EMULATE_AND: ret &= v; break;
			case EMULATE_OR: ret |= v; break;
			default: ret ^= v;
			}
		first = false;
	}
	for (uint32_t i = 0; i < 32; i++)
		if (mask >> i & 1)
			*(uint32_t *)args[i] = ret;
}

/* ---- Barriers of the block ---- */

static void complete_barrier(uint32_t id)
{
	struct barrier *barrier = &machine.barrier[id];

	for (uint32_t w = 0; w < machine.warps; w++) {
		const struct warp *warp = &machine.warp[w];

		if (barrier->lanes[w] && (barrier->lanes[w] | warp->ended) != warp->there)
			emulate_fail("barrier %u is complete with lanes %08x of warp %u: a warp comes whole", id, barrier->lanes[w], w);
		barrier->lanes[w] = 0;
	}
	barrier->result = barrier->value;
	barrier->arrived = barrier->value = 0;
	for (uint32_t i = 0; i < machine.threads; i++)
		if (machine.thread[i].state == THREAD_BARRIER && machine.thread[i].barrier == id)
			thread_wake(&machine.thread[i]);
}

uint32_t emulate_barrier(uint32_t id, uint32_t count, uint32_t value, bool waits)
{
	struct thread  *thread = machine.current;
	struct barrier *barrier = &machine.barrier[id < BARRIERS ? id : 0];

	if (id >= BARRIERS || count % 32 || count > machine.threads + 31)
		emulate_fail("barrier %u of %u threads: numbers below 16, whole warps of the block", id, count);
	if (barrier->arrived && barrier->expected != count)
		emulate_fail("barrier %u of %u threads, but others are there for one of %u", id, count, barrier->expected);
	if (barrier->lanes[thread->warp] >> thread->lane & 1)
		emulate_fail("comes to barrier %u again before it was complete", id);
	barrier->expected = count;
	barrier->arrived++;
	barrier->value += value;
	barrier->lanes[thread->warp] |= 1u << thread->lane;
	if (barrier->arrived == (count ? count : machine.live)) {
		complete_barrier(id);
		return barrier->result;
	}
	if (!waits)
		return 0;
	thread->barrier = id;
	thread_block(THREAD_BARRIER);
	return barrier->result;
}

/* ---- Shared memory ---- */

char *shared_memory(void) { return machine.shared; }

uint32_t shared_address(const void *p)
{
	const char *at = (const char *)p;

	if (at < machine.shared || at > machine.shared + machine.shared_bytes)
		emulate_fail("%p is not in dynamic shared memory", p);
	return (uint32_t)(at - machine.shared) + SHARED_BASE;
}

char *emulate_shared(const char *what, uint32_t address, size_t bytes, size_t align)
{
	if (address < SHARED_BASE || address - SHARED_BASE + bytes > machine.shared_bytes)
		emulate_fail("%s: %zu bytes at shared address %u, but shared memory has %zu from %d on", what, bytes, address,
		    machine.shared_bytes, SHARED_BASE);
	if (address % align)
		emulate_fail("%s: shared address %u is not a multiple of %zu", what, address, align);
	return machine.shared + (address - SHARED_BASE);
}

unsigned long long device_clock(void) { return ++machine.clock; }

/* ---- What kernels before this one read and write ---- */

void hide_before(void)
{
	machine.saved.clear();
	for (const emulate_range &range : machine.options.before) {
		machine.saved.insert(machine.saved.end(), (char *)range.at, (char *)range.at + range.bytes);
		memset(range.at, 0xff, range.bytes);
	}
	machine.hidden = !machine.options.before.empty();
}

bool show_before(void)
{
	size_t used = 0;
	bool   untouched = true;

	for (const emulate_range &range : machine.options.before) {
		for (size_t i = 0; i < range.bytes; i++)
			untouched = untouched && ((unsigned char *)range.at)[i] == 0xff;
		memcpy(range.at, &machine.saved[used], range.bytes);
		used += range.bytes;
	}
	machine.hidden = false;
	return untouched;
}

void dependency_wait(void)
{
	/* With most seeds the kernels before end only when nobody can go on without them. */
	if (machine.hidden && machine.options.seed % 4)
		thread_block(THREAD_DEPENDENCY);
	if (machine.hidden && !show_before())
		emulate_fail("memory of the kernels before was written before dependency_wait");
}

/* ---- Blocks ---- */

static void describe(const struct thread *thread, char *ret, size_t room)
{
	const mbarrier_state *state;

	switch (thread->state) {
	case THREAD_WARP: snprintf(ret, room, "%s of lanes %08x", thread->what, thread->mask); break;
	case THREAD_BARRIER:
		snprintf(ret, room, "barrier %u, where %u of %u are", thread->barrier, machine.barrier[thread->barrier].arrived,
		    machine.barrier[thread->barrier].expected ? machine.barrier[thread->barrier].expected : machine.live);
		break;
	case THREAD_MBARRIER:
		state = mbarrier_find(thread->mbar);
		snprintf(ret, room, "parity %u of the mbarrier at shared address %td, whose phase %d lacks %u arrivals and %lld bytes",
		    thread->parity, (const char *)thread->mbar - machine.shared + SHARED_BASE, state ? state->phase : -1,
		    state ? state->pending : 0, state ? (long long)state->bytes : 0);
		break;
	case THREAD_STORES: snprintf(ret, room, "its stores"); break;
	case THREAD_ENDED: snprintf(ret, room, "nothing: it has ended"); break;
	default: snprintf(ret, room, "nothing");
	}
}

static void report_deadlock(void)
{
	char   words[256], next[256];
	size_t used;

	used = (size_t)snprintf(machine.error, sizeof machine.error, "block (%u, %u, %u): deadlock", blockIdx.x, blockIdx.y,
	    blockIdx.z);
	for (uint32_t first = 0, end; first < machine.threads; first = end) {
		describe(&machine.thread[first], words, sizeof words);
		for (end = first + 1; end < machine.threads; end++) {
			describe(&machine.thread[end], next, sizeof next);
			if (strcmp(words, next))
				break;
		}
		if (used < sizeof machine.error)
			used += (size_t)snprintf(machine.error + used, sizeof machine.error - used, "%s threads %u to %u wait for %s",
			    first ? ";" : ":", first, end - 1, words);
	}
	machine.failed = true;
}

static void begin_block(void)
{
	machine.live = machine.threads;
	machine.idle_yields = 0;
	memset(machine.shared, 0xff, machine.shared_bytes);
	memset(machine.view, 0xff, machine.shared_bytes);
	memset(machine.shared + machine.shared_bytes, CANARY, SHARED_MOST - machine.shared_bytes);
#if ADDRESS_SANITIZER
	__asan_poison_memory_region(machine.shared + machine.shared_bytes, SHARED_MOST - machine.shared_bytes);
#endif
	memset(machine.barrier, 0, sizeof machine.barrier);
	machine.mbarriers.clear();
	machine.copies.clear();
	for (std::vector<wgmma_operation> &group : machine.groups)
		group.clear();
	for (uint32_t w = 0; w < machine.warps; w++) {
		uint32_t lanes = machine.threads - 32 * w;

		warp_begin(&machine.warp[w]);
		machine.warp[w].there = machine.warp[w].ready = lanes >= 32 ? ~0u : (1u << lanes) - 1;
		machine.warp[w].ended = 0;
		machine.warp[w].stalled_until = 0;
		machine.warp[w].waiting = machine.warp[w].met = 0;
	}
	for (uint32_t i = 0; i < machine.threads; i++) {
		struct thread *thread = &machine.thread[i];

		thread->state = THREAD_READY;
		thread->number = i;
		thread->lane = i % 32;
		thread->warp = i / 32;
		thread->index = { i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y };
		thread->stores = thread->copies = 0;
		thread->pending.clear();
		prepare_fiber(thread);
	}
}

/* A warp that may run, or NULL.  Stalls end when nobody else may. */
static struct warp *choose_warp(void)
{
	uint32_t ready[WARPS_MOST], count = 0, stalled = 0;

	for (uint32_t w = 0; w < machine.warps; w++) {
		if (!machine.warp[w].ready)
			continue;
		if (machine.warp[w].stalled_until > machine.tick)
			stalled++;
		else
			ready[count++] = w;
	}
	if (count == 0 && stalled) {
		for (uint32_t w = 0; w < machine.warps; w++) {
			machine.warp[w].stalled_until = 0;
			if (machine.warp[w].ready)
				ready[count++] = w;
		}
	}
	return count ? &machine.warp[ready[random_below(count)]] : NULL;
}

/* Nobody can go on: the kernels before have ended. */
static bool wake_dependents(void)
{
	bool any = false;

	for (uint32_t i = 0; i < machine.threads; i++) {
		if (machine.thread[i].state == THREAD_DEPENDENCY) {
			thread_wake(&machine.thread[i]);
			any = true;
		}
	}
	return any;
}

static void fail_block(const char *what, size_t count)
{
	snprintf(machine.error, sizeof machine.error, "block (%u, %u, %u) %s: %zu", blockIdx.x, blockIdx.y, blockIdx.z, what, count);
	machine.failed = true;
}

static void run_block(void)
{
	begin_block();
	hide_before();
	while (!machine.failed && machine.live) {
		struct warp *warp;
		uint32_t     ready, first;

		machine.tick++;
		copies_deliver(false);
		if (machine.failed || !(warp = choose_warp())) {
			if (!machine.failed && wake_dependents())
				continue;
			if (machine.failed || machine.copies.empty())
				break;
			machine.tick = machine.copies[0].due;
			for (const async_copy &copy : machine.copies)
				machine.tick = copy.due < machine.tick ? copy.due : machine.tick;
			machine.tick--;
			continue;
		}
		ready = warp->ready;
		first = (uint32_t)random_below(32);
		for (uint32_t i = 0; i < 32 && !machine.failed; i++) {
			uint32_t lane = (first + i) % 32;

			if (ready >> lane & 1)
				run_fiber(&machine.thread[(warp - machine.warp) * 32 + lane]);
		}
		if (random_below(4) == 0)
			warp->stalled_until = machine.tick + random_delay();
	}
	if (machine.hidden && !show_before() && !machine.failed)
		fail_block("wrote memory of the kernels before without dependency_wait; threads that had not ended", machine.live);
	if (!machine.failed && machine.live)
		report_deadlock();
	if (!machine.failed && !machine.copies.empty()) {
		copies_deliver(true);
		if (!machine.failed && !machine.copies.empty())
			fail_block("ended with copies into its shared memory on their way", machine.copies.size());
	}
#if ADDRESS_SANITIZER
	__asan_unpoison_memory_region(machine.shared + machine.shared_bytes, SHARED_MOST - machine.shared_bytes);
#endif
	for (size_t i = machine.shared_bytes; !machine.failed && i < SHARED_MOST; i++) {
		if ((unsigned char)machine.shared[i] != CANARY)
			fail_block("wrote shared memory so many bytes beyond its end", i - machine.shared_bytes);
	}
}

static bool take_memory(void)
{
	if (machine.stacks)
		return true;
	machine.shared = (char *)mmap(NULL, 2 * (256 << 10), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	machine.stacks = (char *)mmap(NULL, (size_t)THREADS_MOST * STACK_BYTES, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (machine.shared == MAP_FAILED || machine.stacks == MAP_FAILED)
		return false;
	machine.view = machine.shared + (256 << 10);
	for (size_t i = 0; i < THREADS_MOST; i++)
		mprotect(machine.stacks + i * STACK_BYTES, GUARD_BYTES, PROT_NONE);
	return true;
}

const char *emulate_blocks(dim3 grid, dim3 block, size_t shared_bytes, const emulate_options &options, void (*body)(void *),
    void *context)
{
	uint32_t blocks = grid.x * grid.y * grid.z, step;

	if (!take_memory())
		return "no memory for the emulator";
	if ((uint64_t)block.x * block.y * block.z > THREADS_MOST || block.x * block.y * block.z == 0 || shared_bytes > SHARED_MOST ||
	    blocks == 0)
		return "a launch of no blocks, or of more than 1024 threads or 227 KiB of shared memory";
	machine.options = options;
	machine.random = options.seed * 0xD6E8FEB86659FD93ull;
	machine.body = body;
	machine.context = context;
	machine.grid = gridDim = grid;
	machine.block = blockDim = block;
	machine.threads = block.x * block.y * block.z;
	machine.warps = (machine.threads + 31) / 32;
	machine.shared_bytes = shared_bytes;
	machine.failed = false;
	machine.running = true;
	/* Blocks one after another from a random one on, by a step that has no divisor in common with their number. */
	step = options.seed ? (uint32_t)random_below(blocks) + 1 : 1;
	while (std::gcd(step, blocks) != 1)
		step--;
	for (uint32_t i = 0, at = options.seed ? (uint32_t)random_below(blocks) : 0; i < blocks && !machine.failed; i++) {
		blockIdx = { at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y };
		run_block();
		at = (uint32_t)(((uint64_t)at + step) % blocks);
	}
	machine.running = false;
	return machine.failed ? machine.error : NULL;
}
