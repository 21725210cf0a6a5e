/* daemon.c: see daemon.h. */
#include "daemon.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

uint64_t daemon_now_ms(void) { return clock_now_ns() / CLOCK_NS_PER_MS; }

void daemon_nap(void) { nanosleep(&(struct timespec){ 0, 2000000 }, NULL); }

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	abort();
}

static void write_file(const struct daemon *d, const char *name, const char *text)
{
	char  path[128];
	FILE *file;

	snprintf(path, sizeof path, "%s/%s", d->dir, name);
	file = fopen(path, "we");
	if (!file || fputs(text, file) < 0 || fclose(file))
		die(path);
}

void daemon_make(struct daemon *d, const char *script, const char *const *sets)
{
	const char *source = getenv("abs_top_srcdir");
	char        conf[2048];
	unsigned    n = 0;

	*d = (struct daemon){ .pid = -1 };
	snprintf(d->dir, sizeof d->dir, "/tmp/penstock-test-XXXXXX");
	if (!mkdtemp(d->dir))
		die("mkdtemp");
	snprintf(d->instance, sizeof d->instance, "test-%s", strrchr(d->dir, '-') + 1);
	write_file(d, "tokens.script", script);
	snprintf(conf, sizeof conf,
	    "[service]\ninstance = %s\nrun_dir = %s\nlog_file = %s/log\nlog_level = debug\n"
	    "[model]\npath = %s/tests/data/tiny.gguf\n"
	    "[batcher]\nbackend = script\nscript_file = %s/tokens.script\nmax_running = 4\nmax_queued = 4\nstep_tokens = 16\n"
	    "block_size = 16\nkv_tokens = 4096\n[front]\nstreams_per_front = 8\n",
	    d->instance, d->dir, d->dir, source ? source : "..", d->dir);
	write_file(d, "penstock.conf", conf);
	for (; sets && sets[n] && n + 1 < DAEMON_SETS_MAX; n++)
		d->sets[n] = sets[n];
}

void daemon_spawn(struct daemon *d)
{
	const char *build = getenv("abs_top_builddir");
	char        program[512], conf[128];
	const char *argv[2 * DAEMON_SETS_MAX + 4];
	unsigned    n = 0;

	snprintf(program, sizeof program, "%s/penstockd", build ? build : ".");
	snprintf(conf, sizeof conf, "%s/penstock.conf", d->dir);
	argv[n++] = program;
	argv[n++] = "--config";
	argv[n++] = conf;
	for (unsigned i = 0; d->sets[i]; i++) {
		argv[n++] = "--set";
		argv[n++] = d->sets[i];
	}
	argv[n] = NULL;
	d->pid = fork();
	if (d->pid < 0)
		die("fork");
	if (d->pid == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves no daemon behind */
		execv(program, (char *const *)(uintptr_t)argv);
		die(program);
	}
}

bool daemon_map(struct daemon *d)
{
	struct header  header = { NULL, "" };
	struct metrics metrics = { NULL, "" };

	if (header_open(d->instance, &header, NULL))
		return false;
	if (header.shared->pid != d->pid || !header_ready(header.shared, clock_now_ns(), UINT64_C(60000000000)) ||
	    metrics_open(d->instance, &metrics, NULL)) {
		header_close(&header);
		return false;
	}
	header_close(&d->header);
	metrics_close(&d->metrics);
	d->header = header;
	d->metrics = metrics;
	return true;
}

void daemon_start(struct daemon *d)
{
	uint64_t until = daemon_now_ms() + DAEMON_DEADLINE_MS;
	int      status;

	daemon_spawn(d);
	while (!daemon_map(d)) {
		if (daemon_now_ms() > until || waitpid(d->pid, &status, WNOHANG) == d->pid) {
			char log[4096];
			daemon_log(d, log, sizeof log);
			fprintf(stderr, "penstockd does not become ready:\n%s", log);
			abort();
		}
		daemon_nap();
	}
}

int daemon_end(struct daemon *d, int sig)
{
	uint64_t until = daemon_now_ms() + DAEMON_DEADLINE_MS;
	int      status = 0;

	if (sig)
		kill(d->pid, sig);
	while (waitpid(d->pid, &status, WNOHANG) == 0) {
		if (daemon_now_ms() > until) {
			kill(d->pid, SIGABRT);
			waitpid(d->pid, &status, 0);
			fprintf(stderr, "penstockd does not end\n");
			break;
		}
		daemon_nap();
	}
	d->pid = -1;
	return status;
}

void daemon_free(struct daemon *d)
{
	static const char *const names[] = { "tokens.script", "penstock.conf", "log", "penstockd.lock", "control.sock" };

	if (d->pid > 0)
		daemon_end(d, SIGKILL);
	header_close(&d->header);
	metrics_close(&d->metrics);
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		char path[128];
		snprintf(path, sizeof path, "%s/%s", d->dir, names[i]);
		unlink(path);
	}
	rmdir(d->dir);
	for (unsigned i = 0; i < 4; i++) { /* left by a kill -9 */
		static const char *const objects[] = { "header", "metrics", "blackbox", "blackbox.prev" };
		char                     path[128];
		snprintf(path, sizeof path, "/dev/shm/penstock.%s.%s", d->instance, objects[i]);
		unlink(path);
	}
}

void daemon_log(const struct daemon *d, char *ret, size_t size)
{
	char   path[128];
	FILE  *file;
	size_t n = 0;

	snprintf(path, sizeof path, "%s/log", d->dir);
	file = fopen(path, "re");
	if (file) {
		n = fread(ret, 1, size - 1, file);
		fclose(file);
	}
	ret[n] = '\0';
}

uint64_t daemon_metric(const struct daemon *d, enum metric id) { return metrics_get(&d->metrics, id); }

bool daemon_wait_metric(const struct daemon *d, enum metric id, uint64_t value)
{
	uint64_t until = daemon_now_ms() + DAEMON_DEADLINE_MS;

	while (daemon_metric(d, id) != value) {
		if (daemon_now_ms() > until)
			return false;
		daemon_nap();
	}
	return true;
}
