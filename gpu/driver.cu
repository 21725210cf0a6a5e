/* driver.cu: owns the real queries behind choose.h.  Nothing but calls of the runtime. */
#include "gpu/choose.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

static __global__ void nothing(void) {}

static int versions(int *ret_driver, int *ret_runtime)
{
	cudaError_t code = cudaDriverGetVersion(ret_driver);
	return code ? code : cudaRuntimeGetVersion(ret_runtime);
}

static int count(int *ret)
{
	cudaError_t code = cudaGetDeviceCount(ret);

	if (code == cudaErrorNoDevice) {
		cudaGetLastError();
		*ret = 0;
		return 0;
	}
	return code;
}

static int device(int index, struct choose_device *ret)
{
	struct cudaDeviceProp properties;
	cudaError_t           code = cudaGetDeviceProperties(&properties, index);
	const unsigned char  *u = (const unsigned char *)properties.uuid.bytes;

	if (code)
		return code;
	memset(ret, 0, sizeof *ret);
	snprintf(ret->name, sizeof ret->name, "%.63s", properties.name);
	snprintf(ret->uuid, sizeof ret->uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
	    u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
	ret->major = properties.major;
	ret->minor = properties.minor;
	ret->multiprocessors = properties.multiProcessorCount;
	return 0;
}

static int memory(int index, uint64_t *ret_free, uint64_t *ret_total)
{
	size_t      available, total;
	cudaError_t code = cudaSetDevice(index);

	if (!code)
		code = cudaMemGetInfo(&available, &total);
	if (code)
		return code;
	*ret_free = available;
	*ret_total = total;
	return 0;
}

/* A binary for the device is found when a kernel's attributes are. */
static int usable(int index)
{
	struct cudaFuncAttributes attributes;
	cudaError_t               code = cudaSetDevice(index);

	if (!code)
		code = cudaFuncGetAttributes(&attributes, nothing);
	if (code)
		cudaGetLastError();
	return code;
}

static const char *failed(int code) { return cudaGetErrorString((cudaError_t)code); }

const struct choose_driver choose_cuda = { versions, count, device, memory, usable, failed };
