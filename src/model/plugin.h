/* plugin.h: how a backend that lives in a loadable object (penstock-cuda.so) is found and entered.
 *
 * The object exports one C symbol, PLUGIN_ENTRY, whose name carries the version of this contract: an object built for
 * another version has no such symbol and is refused by name instead of crashing.  Compiles as C11 and C++17.
 */
#ifndef PENSTOCK_MODEL_PLUGIN_H
#define PENSTOCK_MODEL_PLUGIN_H

#include "model/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PLUGIN_ENTRY "penstock_backend_entry_v2"

struct plugin_options {
	const char *device; /* UUID or index; "" = the first one */
	const char *dtype;  /* of activations: "float32", "bfloat16"; "" = the backend's own choice */
	const char *kernels; /* "auto", "library", "own", "portable" (option batcher.kernels); "" or NULL = auto */
};

/* What the entry point returns; static data of the object. */
struct plugin_entry {
	uint32_t    backend_version; /* BACKEND_VERSION it was built with */
	const char *name;            /* "cuda" */
	const char *build;           /* toolkit and architectures, for the log */
	/* Makes an instance; on failure the words say what is missing and what would fit. */
	enum status (*create)(const struct plugin_options *options, struct backend **ret, struct error *error);
};
typedef const struct plugin_entry *plugin_entry_function(void);

struct plugin; /* opaque: an opened object */

/* Opens PATH.  STATUS_NOT_FOUND (no such file), STATUS_INVALID (no entry point or another version). The object stays open
 * until plugin_close, which must come after the last instance was destroyed. */
enum status                plugin_open(const char *path, struct plugin **ret, struct error *error);
void                       plugin_close(struct plugin *plugin);
const struct plugin_entry *plugin_entry_of(const struct plugin *plugin);
/* Opens DIRECTORY/penstock-NAME.so and makes an instance. */
enum status                plugin_create(const char *directory, const char *name, const struct plugin_options *options,
    struct plugin **ret, struct backend **ret_backend, struct error *error);

#ifdef __cplusplus
}
#endif
#endif
