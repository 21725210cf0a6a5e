/* daemon.h: a real penstockd for C tests, on the script backend, in a directory of its own under /tmp.
 *
 * The program is abs_top_builddir/penstockd, the model abs_top_srcdir/tests/data/tiny.gguf; both variables come from
 * `make check`, and default to the current directory and its parent.  Nothing here sleeps for a fixed time: conditions
 * are polled up to DAEMON_DEADLINE_MS, which only decides when a hung test is given up. */
#ifndef PENSTOCK_TESTS_DAEMON_H
#define PENSTOCK_TESTS_DAEMON_H

#include "ipc/header.h"
#include "ipc/metrics.h"

#include <stdbool.h>
#include <sys/types.h>

enum { DAEMON_DEADLINE_MS = 60000, DAEMON_SETS_MAX = 32 };

struct daemon {
	char           dir[64], instance[40];
	pid_t          pid;
	struct header  header;  /* read-only */
	struct metrics metrics; /* read-only */
	const char    *sets[DAEMON_SETS_MAX]; /* "section.name=value", NULL-terminated */
};

/* Makes the directory with SCRIPT as its token script.  SETS (NULL-terminated, may be NULL) are --set options over:
 * 4 running, 4 queued, 16 tokens in a step, blocks of 16, 4096 tokens of cache, streams_per_front 8. */
void daemon_make(struct daemon *daemon, const char *script, const char *const *sets);
void daemon_start(struct daemon *daemon); /* and waits until it is ready */
void daemon_spawn(struct daemon *daemon); /* does not wait */
/* Sends SIG (0 = nothing) and waits for the end; the wait status. */
int  daemon_end(struct daemon *daemon, int sig);
/* Ends it if it runs and removes the directory. */
void daemon_free(struct daemon *daemon);
void daemon_log(const struct daemon *daemon, char *ret, size_t size); /* what it has logged */
/* Maps header and metrics of the running daemon anew; false when there is nothing ready to map. */
bool daemon_map(struct daemon *daemon);

uint64_t daemon_metric(const struct daemon *daemon, enum metric id);
/* Waits until the metric has VALUE; false when it never does. */
bool     daemon_wait_metric(const struct daemon *daemon, enum metric id, uint64_t value);

/* Monotonic milliseconds, and a short nap between two looks at a condition. */
uint64_t daemon_now_ms(void);
void     daemon_nap(void);

#endif
