/* choose.c: owns the choice of a device and the words when there is none.  Does not own the queries (driver.cu).
 * Invariant: a device that was returned exists, has a kernel that runs on it, and the memory that was asked for. */
#include "gpu/choose.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LIST_MAX = 320 };

static enum status fail(const struct choose_driver *driver, int code, const char *what, struct error *error)
{
	return error_set(error, STATUS_UNAVAILABLE, "%s: %s", what, driver->failed(code));
}

/* "0: NVIDIA H200 GPU-…, 1: …" */
static void list_devices(const struct choose_driver *driver, int count, char ret[LIST_MAX])
{
	size_t at = 0;

	ret[0] = '\0';
	for (int i = 0; i < count && at < LIST_MAX; i++) {
		struct choose_device device;
		int                  n;

		if (driver->device(i, &device))
			continue;
		n = snprintf(ret + at, LIST_MAX - at, "%s%d: %s %s", at ? ", " : "", i, device.name, device.uuid);
		at += n > 0 ? (size_t)n : 0;
	}
}

static bool is_index(const char *text, long *ret)
{
	char *end;

	errno = 0;
	*ret = strtol(text, &end, 10);
	return *text && *end == '\0' && !errno && strlen(text) < 4;
}

/* The one device whose UUID begins with WANTED, with or without "GPU-". */
static int find_uuid(const struct choose_driver *driver, const char *wanted, int count, int *ret_matches)
{
	int found = -1;

	*ret_matches = 0;
	for (int i = 0; i < count; i++) {
		struct choose_device device;
		const char          *uuid = device.uuid;

		if (driver->device(i, &device))
			continue;
		if (strncasecmp(wanted, "GPU-", 4) != 0 && strncmp(uuid, "GPU-", 4) == 0)
			uuid += 4;
		if (strncasecmp(uuid, wanted, strlen(wanted)) == 0) {
			found = i;
			++*ret_matches;
		}
	}
	return found;
}

static enum status check_driver(const struct choose_driver *driver, int *ret_count, struct error *error)
{
	int had = 0, needed = 0, code = driver->versions(&had, &needed);

	if (code)
		return fail(driver, code, "the CUDA driver cannot be asked for its version", error);
	if (had == 0)
		return error_set(error, STATUS_UNAVAILABLE, "no CUDA driver on this machine; set batcher.backend = cpu, or install the "
		    "NVIDIA driver");
	if (had / 1000 < needed / 1000)
		return error_set(error, STATUS_UNAVAILABLE, "the CUDA driver supports CUDA %d.%d, this object was built for %d.%d: install "
		    "a newer driver", had / 1000, had % 1000 / 10, needed / 1000, needed % 1000 / 10);
	code = driver->count(ret_count);
	if (code)
		return fail(driver, code, "the CUDA driver cannot count its devices", error);
	if (*ret_count < 1)
		return error_set(error, STATUS_UNAVAILABLE, "no CUDA device on this machine; set batcher.backend = cpu");
	if (*ret_count > CHOOSE_DEVICES_MAX)
		*ret_count = CHOOSE_DEVICES_MAX;
	return STATUS_OK;
}

enum status choose_device(const struct choose_driver *driver, const char *wanted, const char *build, uint64_t needed,
    int *ret_index, struct choose_device *ret, struct error *error)
{
	struct choose_device device;
	char                 list[LIST_MAX];
	uint64_t             available = 0, total = 0;
	long                 index = 0;
	int                  count = 0, matches = 1, code;
	enum status          status = check_driver(driver, &count, error);

	if (status)
		return status;
	if (*wanted && !is_index(wanted, &index))
		index = find_uuid(driver, wanted, count, &matches);
	if (index < 0 || index >= count || matches != 1) {
		list_devices(driver, count, list);
		return error_set(error, STATUS_NOT_FOUND, "device %.60s: %s; there are %s", wanted,
		    matches > 1 ? "several UUIDs begin so" : "no such device", list);
	}
	code = driver->device((int)index, &device);
	if (code)
		return fail(driver, code, "the CUDA driver cannot describe the device", error);
	code = driver->usable((int)index);
	if (code)
		return error_set(error, STATUS_UNSUPPORTED, "%s has compute capability %d.%d; this object was built for %s: %s",
		    device.name,
		    device.major, device.minor, build, driver->failed(code));
	code = driver->memory((int)index, &available, &total);
	if (code)
		return fail(driver, code, "the CUDA driver cannot say how much memory is free", error);
	if (available < needed)
		return error_set(error, STATUS_NOMEM, "%s: %llu MiB of %llu MiB are free, %llu MiB are needed before any weight",
		    device.name,
		    (unsigned long long)(available >> 20), (unsigned long long)(total >> 20), (unsigned long long)(needed >> 20));
	*ret_index = (int)index;
	*ret = device;
	return STATUS_OK;
}
