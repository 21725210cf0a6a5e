/* log.h: one line per event on a file descriptor, for programs only (library code returns a status).
 *
 * A line is `2026-11-30T12:00:00.123Z LEVEL program[pid]: text`, written with one write(2) so that lines of several
 * processes do not mix.  Control characters in the text are replaced by '?'; text beyond LOG_LINE_MAX bytes is cut.
 * The only mutable file-scope state of penstock lives in log.c (descriptor, level, program name): a log has no
 * context to travel in.
 */
#ifndef PENSTOCK_BASE_LOG_H
#define PENSTOCK_BASE_LOG_H

#include "base/status.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
enum { LOG_LINE_MAX = 1024 };

/* Names the program; the log goes to standard error until log_open. */
void log_init(const char *program, enum log_level level);

/* Appends to the file at PATH from now on (created 0640); called again on USR1 to re-open after rotation. */
enum status log_open(const char *path, struct error *error);

/* Writes one line.  SYSTEM_ERRNO, when not 0, is appended as ": strerror (errno N)". */
void log_write(enum log_level level, int system_errno, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define log_error(...) log_write(LOG_LEVEL_ERROR, 0, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_LEVEL_WARN, 0, __VA_ARGS__)
#define log_info(...)  log_write(LOG_LEVEL_INFO, 0, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, 0, __VA_ARGS__)
#define log_errno(level, ...) log_write(level, errno, __VA_ARGS__)

#endif
