/* seqlock.h: a small struct that one thread writes now and then and other processes read, without locks.
 *
 * The struct lives in shared memory as atomic words beside a turn, which is odd while they are being written.  Both orders are
 * needed, and no fences (the thread sanitizer does not know them):
 *
 *   writer                                        reader
 *   Q1 turn.store(odd, relaxed)                   Q4 turn.load(acquire): odd or 0 → nothing to read now
 *   Q2 words.store(release): after Q1             Q5 words.load(acquire)
 *   Q3 turn.store(even, release): after Q2        Q6 turn.load(relaxed): after Q5; another one → read again
 *
 * A reader that finds one of the new words (Q2/Q5) also sees the odd turn or a later one at Q6.  On x86-64 all of them are plain
 * moves.  The reader of a dead writer's memory finds at most one struct with an odd turn.
 */
#ifndef PENSTOCK_IPC_SEQLOCK_H
#define PENSTOCK_IPC_SEQLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SEQLOCK_TRIES = 100 };

#define SEQLOCK_WORDS(type) ((sizeof(type) + 7) / 8)

static inline void seqlock_write(_Atomic uint64_t *turn, uint64_t next_turn, _Atomic uint64_t *words, const void *from,
    size_t bytes)
{
	atomic_store_explicit(turn, next_turn | 1, memory_order_relaxed);
	for (size_t i = 0; i * 8 < bytes; i++) {
		uint64_t word = 0;
		size_t   rest = bytes - i * 8;
		memcpy(&word, (const char *)from + i * 8, rest < 8 ? rest : 8);
		atomic_store_explicit(&words[i], word, memory_order_release);
	}
	atomic_store_explicit(turn, (next_turn | 1) + 1, memory_order_release);
}

/* False when there is nothing, or a writer that never ends.  *RET is then undefined. */
static inline bool seqlock_read(const _Atomic uint64_t *turn, const _Atomic uint64_t *words, void *ret, size_t bytes,
    uint64_t *ret_turn)
{
	for (int i = 0; i < SEQLOCK_TRIES; i++) {
		uint64_t before = atomic_load_explicit(turn, memory_order_acquire);

		if (before == 0 || before & 1)
			continue;
		for (size_t w = 0; w * 8 < bytes; w++) {
			uint64_t word = atomic_load_explicit(&words[w], memory_order_acquire);
			size_t   rest = bytes - w * 8;
			memcpy((char *)ret + w * 8, &word, rest < 8 ? rest : 8);
		}
		if (atomic_load_explicit(turn, memory_order_relaxed) == before) {
			*ret_turn = before;
			return true;
		}
	}
	return false;
}

#endif
