/* service.c: owns the process's relations with the system: service manager, limits, lock.  Nothing about models. */
#include "batcher/service.h"

#include "base/clock.h"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

enum { LOCK_PATIENCE_MS = 1000, LOCK_POLL_MS = 20, NOTIFY_MAX = 512 };

void service_notify(const char *format, ...)
{
	char    text[NOTIFY_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
#ifdef HAVE_SYSTEMD
	sd_notify(0, text);
#endif
}

uint64_t service_watchdog_us(void)
{
	uint64_t us = 0;
#ifdef HAVE_SYSTEMD
	if (sd_watchdog_enabled(0, &us) <= 0)
		us = 0;
#endif
	return us;
}

enum status service_lock(const char *run_dir, int *ret_fd, struct error *error)
{
	char     path[256], text[32] = "";
	uint64_t until = clock_now_ns() + LOCK_PATIENCE_MS * CLOCK_NS_PER_MS;
	int      fd, n;

	snprintf(path, sizeof path, "%s/penstockd.lock", run_dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return error_set(error, STATUS_IO,
		    "cannot open the lock %s: %s; does service.run_dir exist, and may this user write there?", path, strerror(errno));
	while (flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR) {
			error_set(error, STATUS_IO, "cannot lock %s: %s", path, strerror(errno));
			close(fd);
			return STATUS_IO;
		}
		if (clock_now_ns() >= until) {
			ssize_t got = pread(fd, text, sizeof text - 1, 0);
			text[got > 0 ? got : 0] = '\0';
			text[strcspn(text, "\n")] = '\0';
			close(fd);
			return error_set(error, STATUS_FULL,
			    "another penstockd (process %s) runs in %s: it holds %s; stop it, or set service.run_dir and service.instance",
			    *text ? text : "unknown", run_dir, path);
		}
		nanosleep(&(struct timespec){ 0, LOCK_POLL_MS * 1000000L }, NULL);
	}
	n = snprintf(text, sizeof text, "%d\n", (int)getpid());
	if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n) {
		error_set(error, STATUS_IO, "cannot write %s: %s", path, strerror(errno));
		close(fd);
		return STATUS_IO;
	}
	*ret_fd = fd;
	return STATUS_OK;
}
