/* nvml.c: owns the loaded library and the prototypes of the few functions of it that are used, so that no header of it is
 * needed to build.  Invariant: a function is called only if it was found, and NULL is a device that says nothing. */
#include "tools/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { NVML_SUCCESS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2, UUID_MAX = 64 };

struct nvml {
	void *library, *device;
	int (*shutdown)(void);
	int (*energy)(void *device, unsigned long long *ret_millijoules);
	int (*clock)(void *device, unsigned type, unsigned *ret_mhz);
	int (*power)(void *device, unsigned *ret_milliwatts);
};

/* ISO C has no conversion from an object pointer to a function; POSIX says that this one works. */
static bool find(void *library, const char *name, void *ret)
{
	void *symbol = dlsym(library, name);

	memcpy(ret, &symbol, sizeof symbol);
	return symbol != NULL;
}

static bool find_uuid(const char *description, char ret[UUID_MAX])
{
	const char *begin = strstr(description, "GPU-");
	size_t      length = begin ? strspn(begin, "GPU-0123456789abcdefABCDEF") : 0;

	if (length < 8 || length >= UUID_MAX)
		return false;
	memcpy(ret, begin, length);
	ret[length] = '\0';
	return true;
}

struct nvml *nvml_open(const char *description)
{
	struct nvml *nvml;
	char         uuid[UUID_MAX];
	int (*init)(void);
	int (*by_uuid)(const char *uuid, void **ret_device);

	if (!find_uuid(description, uuid) || !(nvml = calloc(1, sizeof *nvml)))
		return NULL;
	nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!nvml->library || !find(nvml->library, "nvmlInit_v2", &init) ||
	    !find(nvml->library, "nvmlDeviceGetHandleByUUID", &by_uuid) || init() != NVML_SUCCESS)
		goto fail;
	(void)find(nvml->library, "nvmlShutdown", &nvml->shutdown);
	(void)find(nvml->library, "nvmlDeviceGetTotalEnergyConsumption", &nvml->energy);
	(void)find(nvml->library, "nvmlDeviceGetClockInfo", &nvml->clock);
	(void)find(nvml->library, "nvmlDeviceGetPowerUsage", &nvml->power);
	if (by_uuid(uuid, &nvml->device) == NVML_SUCCESS)
		return nvml;
fail:
	nvml_close(nvml);
	return NULL;
}

void nvml_close(struct nvml *nvml)
{
	if (!nvml)
		return;
	if (nvml->shutdown)
		nvml->shutdown();
	if (nvml->library)
		dlclose(nvml->library);
	free(nvml);
}

bool nvml_energy(const struct nvml *nvml, double *ret)
{
	unsigned long long millijoules;

	if (!nvml || !nvml->energy || nvml->energy(nvml->device, &millijoules) != NVML_SUCCESS)
		return false;
	*ret = (double)millijoules * 1e-3;
	return true;
}

void nvml_clocks(const struct nvml *nvml, unsigned *ret_sm, unsigned *ret_memory, double *ret_watts)
{
	unsigned milliwatts = 0;

	*ret_sm = *ret_memory = 0;
	if (nvml && nvml->clock && nvml->clock(nvml->device, NVML_CLOCK_SM, ret_sm) != NVML_SUCCESS)
		*ret_sm = 0;
	if (nvml && nvml->clock && nvml->clock(nvml->device, NVML_CLOCK_MEM, ret_memory) != NVML_SUCCESS)
		*ret_memory = 0;
	if (nvml && nvml->power && nvml->power(nvml->device, &milliwatts) != NVML_SUCCESS)
		milliwatts = 0;
	*ret_watts = milliwatts * 1e-3;
}
