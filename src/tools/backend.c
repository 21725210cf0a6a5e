/* backend.c: owns nothing but the choice between the built-in backend and the loadable ones.  Invariant: see the
 * header. */
#include "tools/backend.h"

#include "cpu/cpu_backend.h"

#include <string.h>

enum status tool_backend_open(const char *name, const char *dtype, const char *kernels, const char *directory, unsigned threads,
    struct tool_backend *ret, struct error *error)
{
	struct plugin_options options = { .device = "", .dtype = dtype, .kernels = kernels };
	struct tool_backend   made = { NULL, NULL };
	enum status           status;

	if (strcmp(name, "cpu") != 0)
		status = plugin_create(directory ? directory : BACKEND_OBJECTS, name, &options, &made.plugin, &made.backend, error);
	else if (*dtype && strcmp(dtype, "float32") != 0)
		status = error_set(error, STATUS_UNSUPPORTED, "the backend cpu computes in float32, not in %.40s", dtype);
	else if (*kernels && strcmp(kernels, "auto") != 0)
		status = error_set(error, STATUS_UNSUPPORTED, "the backend cpu has no choice of kernels: kernels %.40s is for cuda",
		    kernels);
	else
		status = cpu_backend_create(threads, &made.backend, error);
	if (!status)
		*ret = made;
	return status;
}

const char *tool_backend_dtype(const char *name, const char *dtype, const struct model_source *source)
{
	return *dtype || strcmp(name, "cpu") == 0 ? dtype : model_source_dtype(source);
}

void tool_backend_close(struct tool_backend *backend)
{
	if (backend->backend)
		backend->backend->ops->destroy(backend->backend);
	plugin_close(backend->plugin);
	*backend = (struct tool_backend){ NULL, NULL };
}
