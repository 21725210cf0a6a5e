/* backend.h: a backend by its name, for the commands that compute. */
#ifndef PENSTOCK_TOOLS_BACKEND_H
#define PENSTOCK_TOOLS_BACKEND_H

#include "model/model.h"
#include "model/plugin.h"

struct tool_backend {
	struct plugin  *plugin; /* NULL for a built-in one */
	struct backend *backend;
};

/* NAME is cpu or that of a loadable object in DIRECTORY (NULL: where they are installed).  DTYPE of activations: float32,
 * bfloat16, or "" for the backend's own choice.  KERNELS: as in struct plugin_options.  THREADS is for cpu; 0 = as many as the
 * process may run on. */
enum status tool_backend_open(const char *name, const char *dtype, const char *kernels, const char *directory, unsigned threads,
    struct tool_backend *ret, struct error *error);
/* DTYPE, or where that is "" what suits SOURCE best on the backend NAME. */
const char *tool_backend_dtype(const char *name, const char *dtype, const struct model_source *source);
void        tool_backend_close(struct tool_backend *backend); /* leaves it empty; empty ones are fine */

#endif
