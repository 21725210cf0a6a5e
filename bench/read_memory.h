/* read_memory.h: how fast the threads of a CPU backend read memory, the bound of a decode step with few rows.
 *
 * No single pattern is the fastest everywhere (prefetchers, page sizes, number of threads), so several are tried and the
 * best counts.  A product that is faster than all of them raises the bound: see ceiling_raise. */
#ifndef PENSTOCK_BENCH_READ_MEMORY_H
#define PENSTOCK_BENCH_READ_MEMORY_H

#include "base/clock.h"
#include "cpu/cpu.h"

#include <stdio.h>
#include <string.h>

enum { READ_ROUNDS = 5, READ_LINE = 64 };

typedef uint64_t read_vector __attribute__((vector_size(16)));

struct read_pattern {
	const char *name;
	size_t      piece;   /* bytes; 0: a thread's whole share */
	unsigned    streams; /* that one thread reads beside each other */
	unsigned    ahead;   /* bytes ahead of the reader that are asked for */
};

struct read_job {
	struct read_pattern pattern;
	const uint8_t      *from;
	size_t              piece;
	read_vector         junk[CPU_THREADS_MAX][4];
};

static inline void read_pieces(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	struct read_job *job = context;
	size_t           stream = job->piece / job->pattern.streams;
	read_vector      sum[4] = { { 0 } };

	for (uint32_t item = first; item < first + count; item++) {
		const uint8_t *from = job->from + item * job->piece;

		for (size_t at = 0; at < stream; at += READ_LINE) {
			for (unsigned s = 0; s < job->pattern.streams; s++) {
				const read_vector *line = (const read_vector *)(from + s * stream + at);

				if (job->pattern.ahead)
					__builtin_prefetch((const uint8_t *)line + job->pattern.ahead);
				for (int k = 0; k < 4; k++)
					sum[k] ^= line[k];
			}
		}
	}
	for (int k = 0; k < 4; k++)
		job->junk[thread][k] ^= sum[k];
}

/* Bytes per second over BYTES of memory, and the name of the fastest pattern. */
static inline double read_memory(struct cpu_backend *cpu, size_t bytes, const char **ret_name)
{
	static const struct read_pattern patterns[] = {
		{ "pieces of 64 KB", 64 << 10, 1, 0 }, { "pieces of 64 KB, prefetched", 64 << 10, 1, 1024 },
		{ "pieces of 1 MB", 1 << 20, 1, 0 }, { "pieces of 1 MB in 4 streams", 1 << 20, 4, 0 },
		{ "pieces of 1 MB in 2 streams, prefetched", 1 << 20, 2, 512 }, { "whole shares", 0, 1, 0 },
		{ "whole shares, prefetched", 0, 1, 2048 }, { "whole shares in 2 streams", 0, 2, 0 },
	};
	unsigned threads = team_threads(cpu->team);
	size_t   unit = (size_t)threads << 22; /* whole pieces for all */
	uint8_t *area;
	double   best = 0;

	bytes = bytes / unit * unit;
	area = bytes ? cpu_pages_alloc(bytes, true) : NULL;
	if (!area)
		return 0;
	memset(area, 1, bytes);
	for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
		static struct read_job job;

		job.pattern = patterns[p];
		job.from = area;
		job.piece = patterns[p].piece ? patterns[p].piece : bytes / threads;
		for (int round = 0; round < READ_ROUNDS; round++) {
			uint64_t began = clock_now_ns();
			double   rate;

			team_run(cpu->team, read_pieces, &job, (uint32_t)(bytes / job.piece));
			rate = (double)bytes * 1e9 / (double)(clock_now_ns() - began);
			if (rate > best) {
				best = rate;
				*ret_name = patterns[p].name;
			}
		}
	}
	cpu_pages_free(area, bytes);
	return best;
}

/* What was measured cannot be above what is possible. */
static inline void ceiling_raise(double *ceiling, double rate, const char **name, const char *what)
{
	if (rate > *ceiling) {
		*ceiling = rate;
		*name = what;
	}
}

#endif
