/* bench_read: how fast threads get a file into their memory, by pread and through a map, in pieces of several sizes: what the
 * loading of weights cannot be faster than on this machine.
 *
 *   bench_read FILE [THREADS,…]
 *
 * Every cell reads all of FILE once, in GB/s; the first pass, which may come from the disk, is a line of its own. */
#include "base/clock.h"
#include "file/map.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS_MAX = 64, PIECE_MAX = 8 << 20 };

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

enum way { WAY_PREAD, WAY_MAP, WAY_POPULATE };

struct pass {
	struct map       map;
	enum way         way;
	size_t           piece;
	_Atomic uint64_t next;
	_Atomic int      failed;
};

static void *run(void *argument)
{
	struct pass *pass = argument;
	uint8_t     *buffer = aligned_alloc(4096, PIECE_MAX);
	uint64_t     at;

	if (!buffer) {
		pass->failed = 1;
		return NULL;
	}
	memset(buffer, 1, PIECE_MAX);
	while (!pass->failed && (at = pass->piece * atomic_fetch_add(&pass->next, 1)) < pass->map.size) {
		size_t bytes = pass->map.size - at < pass->piece ? (size_t)(pass->map.size - at) : pass->piece;

		if (pass->way == WAY_PREAD) {
			pass->failed |= pread(pass->map.fd, buffer, bytes, (off_t)at) != (ssize_t)bytes;
			continue;
		}
		if (pass->way == WAY_POPULATE)
			(void)madvise((void *)(pass->map.bytes + at), bytes, MADV_POPULATE_READ);
		memcpy(buffer, pass->map.bytes + at, bytes);
	}
	free(buffer);
	return NULL;
}

/* GB/s; 0 after an error. */
static double measure(const char *path, enum way way, size_t piece, unsigned threads)
{
	struct pass  pass = { .way = way, .piece = piece };
	pthread_t    ids[THREADS_MAX];
	struct error error;
	uint64_t     begin;
	unsigned     begun = 0;
	double       rate;

	if (map_open(path, SIZE_MAX, &pass.map, &error)) { /* anew, so that its pages are not mapped yet */
		fprintf(stderr, "%s\n", error.message);
		return 0;
	}
	begin = clock_now_ns();
	for (; begun < threads; begun++)
		if (pthread_create(&ids[begun], NULL, run, &pass))
			break;
	for (unsigned i = 0; i < begun; i++)
		pthread_join(ids[i], NULL);
	rate = (double)pass.map.size / (double)(clock_now_ns() - begin);
	map_close(&pass.map);
	return pass.failed || begun < threads ? 0 : rate;
}

int main(int argc, char **argv)
{
	static const char *const ways[] = { "pread", "map", "map, pages asked for" };
	static const size_t      pieces[] = { 256 << 10, 1 << 20, 2 << 20, 8 << 20 };
	const char              *at = argc > 2 ? argv[2] : "1,4,16";

	if (argc < 2) {
		fprintf(stderr, "usage: bench_read FILE [THREADS,…]\n");
		return 2;
	}
	printf("first pass: %.2f GB/s\n", measure(argv[1], WAY_PREAD, 2 << 20, 4));
	printf("%-22s %7s %8s %8s %8s %8s\n", "GB/s", "threads", "256 KB", "1 MB", "2 MB", "8 MB");
	while (*at) {
		char         *end;
		unsigned long threads = strtoul(at, &end, 10);

		if (end == at || threads < 1 || threads > THREADS_MAX || (*end && *end != ','))
			return fprintf(stderr, "threads: numbers from 1 to %d\n", THREADS_MAX), 2;
		for (int way = 0; way < 3; way++) {
			printf("%-22s %7lu", ways[way], threads);
			for (unsigned p = 0; p < sizeof pieces / sizeof *pieces; p++) {
				double rate = measure(argv[1], (enum way)way, pieces[p], (unsigned)threads);

				if (rate == 0)
					return 1;
				printf(" %8.2f", rate);
			}
			printf("\n");
		}
		at = *end ? end + 1 : end;
	}
	return 0;
}
