/* master.c: owns the processes: which children run, when a dead one is replaced, which signal goes where.  Does not
 * serve requests and keeps away from shared memory, but for the scoreboard.
 *
 * Invariants:
 *  - A child that dies is folded into the scoreboard's totals before its slot is used again.
 *  - A slot whose children keep dying is filled more and more seldom (at most every RESPAWN_MAX_NS).
 *  - After TERM no child is started, and none outlives the drain time-out by more than GRACE_NS. */
#include "config.h"

#include "front/master.h"

#include "api/keys.h"
#include "base/clock.h"
#include "base/log.h"
#include "front/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#define RESPAWN_FIRST_NS (100 * CLOCK_NS_PER_MS)
#define RESPAWN_MAX_NS   (10 * CLOCK_NS_PER_S)
#define HEALTHY_NS       (10 * CLOCK_NS_PER_S) /* a child that lived so long is replaced at once */
#define LOOK_NS          (1 * CLOCK_NS_PER_S)  /* how often children are looked at */
#define GRACE_NS         (3 * CLOCK_NS_PER_S)
#define REEXECUTE_NS     (30 * CLOCK_NS_PER_S) /* least age for executing anew when the model file is the same */

struct slot {
	pid_t    pid; /* 0 = empty */
	uint64_t started_ns, start_ns, backoff_ns;
};

struct master {
	struct master_options options;
	struct scoreboard    *board;
	struct slot          *slots; /* [count] */
	uint32_t              count, running;
	int                   signal_fd, mismatch_fd, life[2]; /* life: the children's end reads end-of-file when we die */
	bool                  draining;
	uint64_t              tried_ns; /* of the start, or of the last try to execute anew */
	uint64_t              kill_ns, watchdog_ns, next_watchdog_ns, looked_ns, look_after_ns;
};

static void notify(const char *state)
{
#ifdef HAVE_SYSTEMD
	sd_notify(0, state);
#else
	(void)state;
#endif
}

/* ---- children -------------------------------------------------------------------------------------------------- */

static void start_child(struct master *master, uint32_t index, uint64_t now_ns)
{
	struct slot         *slot = &master->slots[index];
	struct child_options options = { .conf = master->options.conf,
		.api = &master->options.load->api,
		.board = master->board,
		.slot = index,
		.listen_fd = master->options.listen_fd,
		.master_fd = master->life[0],
		.mismatch_fd = master->mismatch_fd };
	pid_t                pid = fork();

	if (pid == 0) {
		close(master->signal_fd);
		close(master->life[1]);
		_exit(child_run(&options));
	}
	if (pid < 0) {
		log_errno(LOG_LEVEL_ERROR, "fork of child %u", index);
		slot->start_ns = now_ns + RESPAWN_MAX_NS;
		return;
	}
	slot->pid = pid;
	slot->started_ns = now_ns;
	atomic_store_explicit(&master->board->slots[index].beat_ns, now_ns, memory_order_relaxed);
	master->running++;
	atomic_store_explicit(&master->board->running, master->running, memory_order_relaxed);
}

static void start_due(struct master *master, uint64_t now_ns)
{
	for (uint32_t i = 0; i < master->count && !master->draining; i++)
		if (master->slots[i].pid == 0 && now_ns >= master->slots[i].start_ns)
			start_child(master, i, now_ns);
}

/* A child is dead: when is its place to be filled? */
static void bury(struct master *master, uint32_t index, int status, uint64_t now_ns)
{
	struct slot *slot = &master->slots[index];

	if (WIFSIGNALED(status))
		log_error("child %d was killed by signal %d (%s)", (int)slot->pid, WTERMSIG(status),
		    strsignal(WTERMSIG(status)));
	else if (!master->draining)
		log_warn("child %d ended with status %d", (int)slot->pid, WEXITSTATUS(status));
	slot->pid = 0;
	master->running--;
	atomic_store_explicit(&master->board->running, master->running, memory_order_relaxed);
	scoreboard_fold(master->board, index);
	if (master->draining)
		return;
	atomic_fetch_add_explicit(&master->board->respawns, 1, memory_order_relaxed);
	if (now_ns - slot->started_ns >= HEALTHY_NS)
		slot->backoff_ns = 0;
	slot->start_ns = now_ns + slot->backoff_ns;
	slot->backoff_ns = slot->backoff_ns ? slot->backoff_ns * 2 : RESPAWN_FIRST_NS;
	if (slot->backoff_ns > RESPAWN_MAX_NS)
		slot->backoff_ns = RESPAWN_MAX_NS;
}

static void reap(struct master *master, uint64_t now_ns)
{
	int   status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (uint32_t i = 0; i < master->count; i++)
			if (master->slots[i].pid == pid) { /* others were started by the program that executed this one */
				bury(master, i, status, now_ns);
				break;
			}
}

/* A child that hangs holds its connections, and may hold the one wake-up that a new connection gives (EPOLLEXCLUSIVE). */
static void kill_hung(struct master *master, uint64_t now_ns)
{
	uint64_t patience = (uint64_t)master->options.conf->front_watchdog_ms * CLOCK_NS_PER_MS;

	if (now_ns - master->looked_ns > 3 * LOOK_NS) /* everybody stood still, this process too: let them run first */
		master->look_after_ns = now_ns + 3 * LOOK_NS;
	master->looked_ns = now_ns;
	if (now_ns < master->look_after_ns)
		return;
	for (uint32_t i = 0; i < master->count; i++) {
		uint64_t beat_ns = atomic_load_explicit(&master->board->slots[i].beat_ns, memory_order_relaxed);
		if (master->slots[i].pid == 0 || now_ns < beat_ns + patience)
			continue;
		log_error("child %d has not come round for %llu ms: killed", (int)master->slots[i].pid,
		    (unsigned long long)((now_ns - beat_ns) / CLOCK_NS_PER_MS));
		kill(master->slots[i].pid, SIGKILL);
	}
}

static void signal_children(const struct master *master, int signal)
{
	for (uint32_t i = 0; i < master->count; i++)
		if (master->slots[i].pid > 0)
			kill(master->slots[i].pid, signal);
}

/* ---- signals --------------------------------------------------------------------------------------------------- */

static void begin_drain(struct master *master, uint64_t now_ns)
{
	if (master->draining)
		return;
	master->draining = true;
	master->kill_ns = now_ns + (uint64_t)master->options.conf->front_drain_timeout_ms * CLOCK_NS_PER_MS + GRACE_NS;
	log_info("draining %u children", master->running);
	notify("STOPPING=1");
	close(master->options.listen_fd); /* nobody accepts any more: better refused at once than kept waiting in the backlog */
	signal_children(master, SIGTERM);
}

static void reload_keys(struct master *master)
{
	struct error error;

	if (load_keys(master->options.load, &error))
		log_error("keys stay as they were: %s", error.message);
	signal_children(master, SIGHUP);
}

static void reopen_logs(struct master *master)
{
	struct error error;

	if (*master->options.conf->service_log_file && log_open(master->options.conf->service_log_file, &error))
		log_error("%s", error.message);
	signal_children(master, SIGUSR1);
}

/* Would the program at PATH start with these arguments?  Tried in a process of its own: load the model and the keys
 * that are there now, then let the program itself check its configuration. */
static bool would_start(const struct master *master, const char *path, char **argv, int argc)
{
	int   status;
	pid_t pid = fork();

	if (pid == 0) {
		struct load  load;
		struct error error;
		if (load_open(master->options.conf, &load, &error)) {
			log_error("%s", error.message);
			_exit(EXIT_FAILURE);
		}
		argv[argc] = (char[]){ "--check-config" };
		argv[argc + 1] = NULL;
		execv(path, argv);
		_exit(EXIT_FAILURE);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
}

/* Executes this program anew.  The socket goes along; the children's end of `life` reads end-of-file, so they drain. */
static void execute_anew(struct master *master)
{
	enum { ARGUMENTS_MAX = 256 };
	char   path[4096], number[16], *plain[ARGUMENTS_MAX];
	char **argv = master->options.argv;
	int    n = 0;

	ssize_t len = readlink("/proc/self/exe", path, sizeof path - 1);
	if (len < 0) {
		log_errno(LOG_LEVEL_ERROR, "cannot execute anew: /proc/self/exe");
		return;
	}
	path[len] = '\0';
	char *deleted = strstr(path, " (deleted)"); /* replaced by a new version under the same name */
	if (deleted)
		*deleted = '\0';
	for (; *argv && n < ARGUMENTS_MAX - 3; argv++) {
		if (!strcmp(*argv, "--listen-fd") && argv[1])
			argv++;
		else
			plain[n++] = *argv;
	}
	if (!would_start(master, path, plain, n)) {
		log_error("%s cannot be executed anew: it does not start with what is configured now", path);
		return;
	}
	snprintf(number, sizeof number, "%d", master->options.listen_fd);
	plain[n] = (char[]){ "--listen-fd" };
	plain[n + 1] = number;
	plain[n + 2] = NULL;
	log_info("executing %s anew", path);
	fcntl(master->options.listen_fd, F_SETFD, 0);
	execv(path, plain);
	log_errno(LOG_LEVEL_ERROR, "cannot execute %s", path);
	fcntl(master->options.listen_fd, F_SETFD, FD_CLOEXEC);
}

static void on_signals(struct master *master, uint64_t now_ns)
{
	struct signalfd_siginfo info;

	while (read(master->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
		switch (info.ssi_signo) {
		case SIGTERM:
		case SIGINT:
		case SIGQUIT:
			begin_drain(master, now_ns);
			break;
		case SIGHUP:
			reload_keys(master);
			break;
		case SIGUSR1:
			reopen_logs(master);
			break;
		case SIGUSR2:
			if (!master->draining)
				execute_anew(master);
			break;
		}
	}
	reap(master, now_ns); /* SIGCHLD signals merge: look whatever came */
}

/* A child was told of another vocabulary.  Loading anew helps when the file has changed; when it has not, the
 * configuration may have, but trying must not become a busy loop. */
static void on_mismatch(struct master *master, uint64_t now_ns)
{
	eventfd_t count;

	(void)!eventfd_read(master->mismatch_fd, &count);
	uint64_t age = now_ns - master->tried_ns;
	if (master->draining || age < CLOCK_NS_PER_S || (age < REEXECUTE_NS && !load_is_stale(master->options.load)))
		return;
	master->tried_ns = now_ns;
	execute_anew(master);
}

/* ---- loop ------------------------------------------------------------------------------------------------------ */

static int sleep_ms(const struct master *master, uint64_t now_ns)
{
	uint64_t next = now_ns + LOOK_NS;

	for (uint32_t i = 0; i < master->count && !master->draining; i++)
		if (master->slots[i].pid == 0 && master->slots[i].start_ns < next)
			next = master->slots[i].start_ns;
	if (master->draining && master->kill_ns < next)
		next = master->kill_ns;
	if (master->watchdog_ns && master->next_watchdog_ns < next)
		next = master->next_watchdog_ns;
	return next <= now_ns ? 0 : (int)((next - now_ns + CLOCK_NS_PER_MS - 1) / CLOCK_NS_PER_MS);
}

static void loop(struct master *master)
{
	struct pollfd fds[] = { { .fd = master->signal_fd, .events = POLLIN },
		{ .fd = master->mismatch_fd, .events = POLLIN } };

	while (!master->draining || master->running > 0) {
		uint64_t now_ns = clock_now_ns();
		int      n = poll(fds, 2, sleep_ms(master, now_ns));

		now_ns = clock_now_ns();
		if (n > 0 && fds[0].revents)
			on_signals(master, now_ns);
		if (n > 0 && fds[1].revents)
			on_mismatch(master, now_ns);
		start_due(master, now_ns);
		kill_hung(master, now_ns);
		if (master->draining && now_ns >= master->kill_ns) {
			log_warn("%u children did not end in time: killed", master->running);
			signal_children(master, SIGKILL);
			master->kill_ns = now_ns + GRACE_NS;
		}
		if (master->watchdog_ns && now_ns >= master->next_watchdog_ns) {
			notify("WATCHDOG=1");
			master->next_watchdog_ns = now_ns + master->watchdog_ns;
		}
	}
}

static enum status set_up(struct master *master, struct error *error)
{
	sigset_t signals;

	sigfillset(&signals);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	sigemptyset(&signals);
	const int taken[] = { SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD };
	for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
		sigaddset(&signals, taken[i]);
	master->signal_fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
	master->mismatch_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (master->signal_fd < 0 || master->mismatch_fd < 0 || pipe2(master->life, O_CLOEXEC | O_NONBLOCK))
		return error_set(error, STATUS_IO, "signalfd, eventfd or pipe: %s", strerror(errno));
	master->slots = calloc(master->count, sizeof *master->slots);
	if (!master->slots)
		return error_set(error, STATUS_NOMEM, "no memory for %u children", master->count);
#ifdef HAVE_SYSTEMD
	uint64_t watchdog_us = 0;
	if (sd_watchdog_enabled(0, &watchdog_us) > 0)
		master->watchdog_ns = watchdog_us * 1000 / 2;
#endif
	return scoreboard_create(master->count, &master->board, error);
}

enum status master_run(const struct master_options *options, struct error *error)
{
	struct master master = { .options = *options,
		.count = (uint32_t)conf_children(options->conf),
		.tried_ns = clock_now_ns(),
		.signal_fd = -1,
		.mismatch_fd = -1,
		.life = { -1, -1 } };
	enum status   status = set_up(&master, error);

	if (!status) {
		start_due(&master, clock_now_ns());
		log_info("%u children serve %s, %lld requests each", master.running, options->load->api.model_name,
		    (long long)options->conf->front_streams_per_front);
		notify("READY=1");
		loop(&master);
		log_info("ended");
	}
	const int fds[] = { master.signal_fd, master.mismatch_fd, master.life[0], master.life[1] };
	for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	free(master.slots);
	scoreboard_free(master.board);
	return status;
}
