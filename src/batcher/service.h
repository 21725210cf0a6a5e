/* service.h: what the service manager hears, and the lock.  Without libsystemd, or
 * outside a service, the notifications do nothing.
 */
#ifndef PENSTOCK_BATCHER_SERVICE_H
#define PENSTOCK_BATCHER_SERVICE_H

#include "base/status.h"

#include <stdint.h>

/* As sd_notify(3): "READY=1", "STATUS=…", … */
void service_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Microseconds between WATCHDOG=1 that the service manager demands; 0 = none. */
uint64_t service_watchdog_us(void);

/* Takes the lock of RUN_DIR (RUN_DIR/penstockd.lock, holding the process id).  A dying predecessor gets a second.
 * STATUS_FULL names the holder. */
enum status service_lock(const char *run_dir, int *ret_fd, struct error *error);

#endif
