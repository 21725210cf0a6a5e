/* team.c: owns the worker threads and the one job word they share.  Does not own the jobs' data.
 *
 * A step of a small model is some hundred jobs of ten to a hundred microseconds, so starting and ending one must cost
 * well under a microsecond, and a worker that the kernel has put aside must never hold up a job it has not touched.
 * Hence no barrier: the caller publishes a job and works on it itself; whoever is awake claims pieces of it; the job
 * is over when all items are done, no matter who did them.
 *
 *      word   [ generation : 40 | next item : 24 ]
 *
 *   caller (team_run)                               worker
 *   ─────────────────                               ──────
 *   function, context, items := job        (C0)     loop: w := word                              (W1, pairs with C1)
 *   done := 0                                             stop when w's generation is old or next ≥ items
 *   word := [generation + 1 : 0]           (C1)           read function, context, items          (W2, pairs with C0)
 *   wake sleepers                                         word: w → w + count, else loop         (W3: the claim)
 *   claim and work like a worker                          work
 *   wait until done = items                (C2)           done += count                          (W4, pairs with C2)
 *   word := [generation + 2 : closed]      (C3)
 *
 * Invariant: whoever claims (W3) has read the job that belongs to the generation in the word.  The caller overwrites a
 * job only after closing its generation (C3); a worker that read any part of a later job (W2 acquires what C0
 * released) also sees the closing, so that its compare-exchange on the older word fails.  Forty bits of generation
 * last half a year at 30,000 jobs a second; a worker would have to sleep through exactly that between W1 and W3.
 *
 * Sleeping.  A worker polls for some tens of microseconds, then sleeps on `wake`.  It announces itself in `sleepers`,
 * then looks at the word again (S1, S2); the caller publishes the word, then looks at `sleepers` (C1, C4).  All four
 * are sequentially consistent: with less, both sides could miss each other.  The caller sleeps on `done` in the same
 * manner (C5 and C6 here, W4 and W5 there).
 */
#include "cpu/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ITEM_BITS = 24, POLLS = 2000, CACHE_LINE = 64 };
#define ITEM_MASK ((UINT64_C(1) << ITEM_BITS) - 1)

struct worker {
	struct team *team;
	pthread_t    thread;
	unsigned     number;
};

struct team {
	/* Written by the caller, read by workers: the job. */
	_Alignas(CACHE_LINE) _Atomic(team_function *) function;
	_Atomic(void *)  context;
	_Atomic uint32_t items;
	atomic_bool      stop;
	/* Written by all. */
	_Alignas(CACHE_LINE) _Atomic uint64_t word;
	_Alignas(CACHE_LINE) _Atomic uint32_t done; /* futex of the caller */
	_Atomic uint32_t caller_sleeps;
	_Alignas(CACHE_LINE) _Atomic uint32_t wake; /* futex of the workers */
	_Atomic uint32_t sleepers;
	/* The caller's own. */
	_Alignas(CACHE_LINE) uint64_t generation;
	unsigned      threads, started; /* threads counts the caller */
	struct worker workers[TEAM_THREADS_MAX];
};

static void futex_sleep(_Atomic uint32_t *word, uint32_t expected)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void pause_briefly(void)
{
#if defined __x86_64__ || defined __i386__
	__builtin_ia32_pause();
#endif
}

/* Claims and works until nothing of GENERATION is left. */
static void work(struct team *team, uint64_t generation, unsigned number)
{
	for (;;) {
		uint64_t       w = atomic_load_explicit(&team->word, memory_order_seq_cst); /* W1 */
		uint32_t       items, next, count, done;
		team_function *function;
		void          *context;

		if (w >> ITEM_BITS != generation)
			return;
		function = atomic_load_explicit(&team->function, memory_order_acquire);   /* W2 */
		context = atomic_load_explicit(&team->context, memory_order_acquire);
		items = atomic_load_explicit(&team->items, memory_order_acquire);
		next = (uint32_t)(w & ITEM_MASK);
		if (next >= items)
			return;
		/* Large pieces first, single items at the end: few claims, yet an even finish. */
		count = (items - next) / (2 * team->threads);
		count = count ? count : 1;
		if (!atomic_compare_exchange_weak_explicit(&team->word, &w, w + count, memory_order_acq_rel,
			memory_order_relaxed)) /* W3 */
			continue;
		function(context, number, next, count);
		done = atomic_fetch_add_explicit(&team->done, count, memory_order_seq_cst) + count; /* W4 */
		if (done == items) {
			if (atomic_load_explicit(&team->caller_sleeps, memory_order_seq_cst)) /* W5, pairs with C5 */
				futex_wake(&team->done, 1);
			return;
		}
	}
}

static void *worker_main(void *argument)
{
	struct worker *worker = argument;
	struct team   *team = worker->team;
	uint64_t       seen = 0;

	for (;;) {
		uint64_t generation = seen;

		for (unsigned poll = 0; generation == seen && poll < POLLS; poll++) {
			generation = atomic_load_explicit(&team->word, memory_order_acquire) >> ITEM_BITS;
			pause_briefly();
		}
		if (generation == seen) {
			uint32_t ticket = atomic_load_explicit(&team->wake, memory_order_acquire);
			atomic_fetch_add_explicit(&team->sleepers, 1, memory_order_seq_cst);                    /* S1 */
			if (atomic_load_explicit(&team->word, memory_order_seq_cst) >> ITEM_BITS == seen) /* S2 */
				futex_sleep(&team->wake, ticket);
			atomic_fetch_sub_explicit(&team->sleepers, 1, memory_order_seq_cst);
			continue;
		}
		seen = generation;
		if (atomic_load_explicit(&team->stop, memory_order_relaxed)) /* ordered by the word */
			return NULL;
		work(team, generation, worker->number);
	}
}

/* Nothing can be claimed from now on, and the job may be overwritten. */
static void close_job(struct team *team)
{
	team->generation++;
	atomic_store_explicit(&team->word, team->generation << ITEM_BITS | ITEM_MASK, memory_order_seq_cst); /* C3 */
}

static void publish(struct team *team, team_function *function, void *context, uint32_t items)
{
	atomic_store_explicit(&team->function, function, memory_order_release); /* C0 */
	atomic_store_explicit(&team->context, context, memory_order_release);
	atomic_store_explicit(&team->items, items, memory_order_release);
	atomic_store_explicit(&team->done, 0, memory_order_relaxed);
	team->generation++;
	atomic_store_explicit(&team->word, team->generation << ITEM_BITS, memory_order_seq_cst); /* C1 */
	if (atomic_load_explicit(&team->sleepers, memory_order_seq_cst)) {                       /* C4, pairs with S1 */
		atomic_fetch_add_explicit(&team->wake, 1, memory_order_release);
		futex_wake(&team->wake, TEAM_THREADS_MAX);
	}
}

void team_run(struct team *team, team_function *function, void *context, uint32_t items)
{
	uint32_t done;
	bool     over = false;

	if (items == 0)
		return;
	if (items == 1 || team->threads == 1) {
		function(context, 0, 0, items);
		return;
	}
	publish(team, function, context, items);
	work(team, team->generation, 0);
	for (unsigned poll = 0; !over && poll < POLLS; poll++) {
		over = atomic_load_explicit(&team->done, memory_order_acquire) == items; /* C2 */
		pause_briefly();
	}
	if (!over) {
		atomic_store_explicit(&team->caller_sleeps, 1, memory_order_seq_cst); /* C5 */
		while ((done = atomic_load_explicit(&team->done, memory_order_seq_cst)) != items) /* C6 */
			futex_sleep(&team->done, done);
		atomic_store_explicit(&team->caller_sleeps, 0, memory_order_relaxed);
	}
	close_job(team);
}

enum status team_create(unsigned threads, struct team **ret, struct error *error)
{
	struct team *team;
	sigset_t     all, before;

	if (threads < 1 || threads > TEAM_THREADS_MAX)
		return error_set(error, STATUS_INVALID, "threads = %u is outside 1…%d", threads, TEAM_THREADS_MAX);
	team = aligned_alloc(CACHE_LINE, sizeof *team);
	if (!team)
		return error_set(error, STATUS_NOMEM, "out of memory for the thread team");
	memset(team, 0, sizeof *team);
	team->threads = threads;
	/* Signals belong to the program's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (team->started = 1; team->started < threads; team->started++) {
		struct worker *worker = &team->workers[team->started];
		int            failed;

		worker->team = team;
		worker->number = team->started;
		failed = pthread_create(&worker->thread, NULL, worker_main, worker);
		if (failed) {
			pthread_sigmask(SIG_SETMASK, &before, NULL);
			error_set(error, STATUS_NOMEM, "cannot start thread %u of %u: %s", team->started, threads,
			    strerror(failed));
			team_destroy(team);
			return STATUS_NOMEM;
		}
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	*ret = team;
	return STATUS_OK;
}

void team_destroy(struct team *team)
{
	if (!team)
		return;
	atomic_store_explicit(&team->stop, true, memory_order_relaxed);
	publish(team, NULL, NULL, 0);
	for (unsigned i = 1; i < team->started; i++)
		pthread_join(team->workers[i].thread, NULL);
	free(team);
}

unsigned team_threads(const struct team *team) { return team->threads; }
