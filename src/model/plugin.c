/* plugin.c: owns the handle of one loadable backend object.  Does not own the instances it makes.  Invariant: an open
 * plugin has an entry of exactly our BACKEND_VERSION. */
#include "model/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct plugin {
	void                      *handle;
	const struct plugin_entry *entry;
};

enum status plugin_open(const char *path, struct plugin **ret, struct error *error)
{
	struct plugin         *plugin;
	plugin_entry_function *enter;
	enum status            status;

	if (access(path, R_OK))
		return error_set(error, STATUS_NOT_FOUND, "%s: no such file (was penstock built with --with-cuda?)", path);
	plugin = calloc(1, sizeof *plugin);
	if (!plugin)
		return error_set(error, STATUS_NOMEM, "%s: out of memory", path);
	plugin->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!plugin->handle) {
		status = error_set(error, STATUS_INVALID, "cannot load %s: %s", path, dlerror());
		goto fail;
	}
	*(void **)&enter = dlsym(plugin->handle, PLUGIN_ENTRY);
	if (!enter) {
		status = error_set(error, STATUS_INVALID, "%s has no %s: it was built for another version of penstock", path, PLUGIN_ENTRY);
		goto fail;
	}
	plugin->entry = enter();
	if (!plugin->entry || plugin->entry->backend_version != BACKEND_VERSION) {
		status = error_set(error, STATUS_INVALID, "%s has backend version %u, this program needs %d", path,
		    plugin->entry ? plugin->entry->backend_version : 0, BACKEND_VERSION);
		goto fail;
	}
	*ret = plugin;
	return STATUS_OK;
fail:
	plugin_close(plugin);
	return status;
}

void plugin_close(struct plugin *plugin)
{
	if (!plugin)
		return;
	if (plugin->handle)
		dlclose(plugin->handle);
	free(plugin);
}

const struct plugin_entry *plugin_entry_of(const struct plugin *plugin) { return plugin->entry; }

enum status plugin_create(const char *directory, const char *name, const struct plugin_options *options,
    struct plugin **ret, struct backend **ret_backend, struct error *error)
{
	struct plugin *plugin;
	char          *path;
	enum status    status;

	if (asprintf(&path, "%s/penstock-%s.so", directory, name) < 0)
		return error_set(error, STATUS_NOMEM, "backend %.40s: out of memory", name);
	status = plugin_open(path, &plugin, error);
	free(path);
	if (status)
		return status;
	status = plugin->entry->create(options, ret_backend, error);
	if (status) {
		plugin_close(plugin);
		return status;
	}
	*ret = plugin;
	return STATUS_OK;
}
