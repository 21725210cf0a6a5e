/* log.c: owns the log descriptor, level and program name of this process.  Does not rotate (USR1 → log_open again)
 * and never fails its caller: a line that cannot be written is dropped.  Invariant: one line, one write(2). */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
	int            fd;
	enum log_level level;
	char           program[32];
} state = { STDERR_FILENO, LOG_LEVEL_INFO, "penstock" };

static const char *const level_names[] = { "error", "warn", "info", "debug" };

void log_init(const char *program, enum log_level level)
{
	snprintf(state.program, sizeof state.program, "%s", program);
	state.level = level;
}

enum status log_open(const char *path, struct error *error)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
	if (fd < 0)
		return error_set(error, STATUS_IO, "cannot open the log %s: %s", path, strerror(errno));
	if (state.fd == STDERR_FILENO) {
		state.fd = fd;
	} else { /* keep the number: another thread may be writing */
		dup3(fd, state.fd, O_CLOEXEC);
		close(fd);
	}
	return STATUS_OK;
}

void log_write(enum log_level level, int system_errno, const char *format, ...)
{
	char            line[LOG_LINE_MAX];
	struct timespec now;
	struct tm       utc;
	size_t          used, head;
	va_list         args;
	int             n;

	if (level > state.level)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &utc);
	used = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
	n = snprintf(line + used, sizeof line - used, ".%03dZ %s %s[%d]: ", (int)(now.tv_nsec / 1000000),
	    level_names[level], state.program, (int)getpid());
	used += (size_t)n;
	head = used;

	va_start(args, format);
	n = vsnprintf(line + used, sizeof line - used, format, args);
	va_end(args);
	if (n > 0)
		used += (size_t)n < sizeof line - used ? (size_t)n : sizeof line - used - 1;
	if (system_errno && used < sizeof line - 1) {
		n = snprintf(line + used, sizeof line - used, ": %s (errno %d)", strerror(system_errno), system_errno);
		used += (size_t)n < sizeof line - used ? (size_t)n : sizeof line - used - 1;
	}
	for (size_t i = head; i < used; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	if (used == sizeof line)
		used--;
	line[used++] = '\n';
	while (write(state.fd, line, used) < 0 && errno == EINTR)
		;
}
