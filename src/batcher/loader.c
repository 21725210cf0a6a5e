/* loader.c: owns the order in which file, vocabulary, backend and model are made and undone.  The only place that knows
 * backends by name.  Invariant: nothing is left open when it fails. */
#include "batcher/loader.h"

#include "base/clock.h"
#include "cpu/cpu_backend.h"
#include "engine/script_backend.h"

#include <string.h>

static enum status open_backend(struct loader *loader, const struct conf *conf, const char *directory, struct error *error)
{
	const char *name = conf->batcher_backend;

	if (!strcmp(name, "cpu"))
		return cpu_backend_create((unsigned)conf->batcher_threads, &loader->backend, error);
	if (!strcmp(name, "script")) {
		size_t                eos_count;
		const int32_t        *eos = vocab_eos(loader->vocab, &eos_count);
		struct script_options options = { .vocab = vocab_size(loader->vocab), .eos = eos_count ? eos[0] : -1 };
		return script_backend_open(conf->batcher_script_file, &options, &loader->backend, error);
	}
	return plugin_create(directory, name, &(struct plugin_options){ .device = "", .dtype = "" }, &loader->plugin, &loader->backend,
	    error);
}

enum status loader_open(struct loader *loader, const struct conf *conf, const char *backend_objects, struct error *error)
{
	enum status status;

	*loader = (struct loader){ .vocab = NULL };
	if (!*conf->model_path)
		return error_set_param(error, STATUS_INVALID, "path", "model.path is not set: name a GGUF file");
	status = model_source_open(conf->model_path, &loader->source, error);
	if (!status && loader->source.config)
		status = error_set_param(error, STATUS_UNSUPPORTED, "path",
		    "%.200s holds no vocabulary that is known here: serving needs a GGUF file", conf->model_path);
	if (!status)
		status = vocab_from_gguf(checkpoint_gguf(loader->source.checkpoint), &loader->vocab, error);
	if (!status)
		status = open_backend(loader, conf, backend_objects, error);
	if (!status)
		status = model_load(&loader->source, loader->backend, &loader->model, error);
	if (status)
		loader_close(loader);
	return status;
}

void loader_close(struct loader *loader)
{
	model_free(loader->model);
	if (loader->backend)
		loader->backend->ops->destroy(loader->backend);
	plugin_close(loader->plugin);
	vocab_free(loader->vocab);
	model_source_close(&loader->source);
	*loader = (struct loader){ .vocab = NULL };
}

struct engine_options loader_engine_options(const struct loader *loader, const struct conf *conf)
{
	struct engine_options options = {
		.max_running = (uint32_t)conf->batcher_max_running,
		.max_waiting = (uint32_t)conf->batcher_max_queued,
		.step_tokens = (uint32_t)conf->batcher_step_tokens,
		.block_size = (uint32_t)conf->batcher_block_size,
		.max_context = (uint32_t)conf->model_max_context,
		.kv_tokens = (uint64_t)conf->batcher_kv_tokens,
		.cache_share = conf->batcher_cache_max_entry_count,
		.slow_client_timeout_ns = (uint64_t)conf->batcher_slow_client_timeout_ms * CLOCK_NS_PER_MS,
		.max_queue_wait_ns = (uint64_t)conf->batcher_max_queue_wait_ms * CLOCK_NS_PER_MS,
		.vocab_limit = vocab_size(loader->vocab),
	};

	options.eos = vocab_eos(loader->vocab, &options.eos_count);
	return options;
}
