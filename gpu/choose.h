/* choose.h: which device an instance runs on.  Queries of the driver go through a table, so that tests can be a machine
 * without a device, with an old driver, or with several devices. */
#ifndef PENSTOCK_GPU_CHOOSE_H
#define PENSTOCK_GPU_CHOOSE_H

#include "base/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CHOOSE_NAME_MAX = 64, CHOOSE_UUID_MAX = 48, CHOOSE_DEVICES_MAX = 64 };

struct choose_device {
	char name[CHOOSE_NAME_MAX], uuid[CHOOSE_UUID_MAX]; /* "GPU-01234567-89ab-…" */
	int  major, minor, multiprocessors;
};

/* Every function returns 0, or what FAILED says in words. */
struct choose_driver {
	int (*versions)(int *ret_driver, int *ret_runtime); /* 13000 = 13.0; a driver of 0: there is none */
	int (*count)(int *ret);
	int (*device)(int index, struct choose_device *ret);
	int (*memory)(int index, uint64_t *ret_free, uint64_t *ret_total);
	int (*usable)(int index); /* 0 when a kernel of this object runs there */
	const char *(*failed)(int code);
};

/* WANTED is a UUID (or a beginning of one that is enough), an index, or "" for the first.  BUILD names the architectures
 * of this object, NEEDED are bytes that must be free.  Errors name what is missing, with both numbers. */
enum status choose_device(const struct choose_driver *driver, const char *wanted, const char *build, uint64_t needed,
    int *ret_index, struct choose_device *ret, struct error *error);

extern const struct choose_driver choose_cuda; /* the real one, driver.cu */

#ifdef __cplusplus
}
#endif
#endif
