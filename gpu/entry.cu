/* entry.cu: the versioned entry point of penstock-cuda.so.  Owns no device state. */
#include "model/plugin.h"

#define BUILD "CUDA toolkit " PENSTOCK_CUDART_VERSION " for " PENSTOCK_CUDA_ARCHS

extern "C" enum status cuda_backend_create(const struct plugin_options *options, const char *build, struct backend **ret,
    struct error *error);

static enum status create(const struct plugin_options *options, struct backend **ret, struct error *error)
{
	return cuda_backend_create(options, BUILD, ret, error);
}

static const struct plugin_entry entry = { BACKEND_VERSION, "cuda", BUILD, create };

extern "C" const struct plugin_entry *penstock_backend_entry_v2(void) { return &entry; }
