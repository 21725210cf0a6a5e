/* entry.cu: the versioned entry point of penstock-cuda.so.  Owns no device state.  So far the object finds the device and
 * says that it has no kernels: the loader, the build rules and the refusal are what is proved here. */
#include "model/plugin.h"

#include <cuda_runtime.h>

static enum status create(const struct plugin_options *options, struct backend **ret, struct error *error)
{
	int         devices = 0;
	cudaError_t code = cudaGetDeviceCount(&devices);

	(void)options;
	(void)ret;
	if (code != cudaSuccess)
		return error_set(error, STATUS_UNAVAILABLE, "cudaGetDeviceCount: %s (%s)", cudaGetErrorString(code),
		    cudaGetErrorName(code));
	if (devices == 0)
		return error_set(error, STATUS_UNAVAILABLE, "no CUDA device on this machine");
	return error_set(error, STATUS_UNSUPPORTED,
	    "no kernels yet: %d CUDA device(s) found, but this version computes on the CPU only; set batcher.backend = cpu", devices);
}

static const struct plugin_entry entry = { BACKEND_VERSION, "cuda", "CUDA toolkit " PENSTOCK_CUDART_VERSION, create };

extern "C" const struct plugin_entry *penstock_backend_entry_v1(void) { return &entry; }
