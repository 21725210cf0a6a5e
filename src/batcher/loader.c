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

	if (!strcmp(name, "cpu")) {
		enum status status = cpu_backend_create((unsigned)conf->batcher_threads, &loader->backend, error);

		if (!status)
			cpu_backend_set_prefault(loader->backend, conf->batcher_prefault);
		return status;
	}
	if (!strcmp(name, "script")) {
		size_t                eos_count;
		const int32_t        *eos = vocab_eos(loader->vocab, &eos_count);
		struct script_options options = { .vocab = vocab_size(loader->vocab), .eos = eos_count ? eos[0] : -1 };
		return script_backend_open(conf->batcher_script_file, &options, &loader->backend, error);
	}
	loader->dtype = strcmp(conf->batcher_dtype, "auto") ? conf->batcher_dtype : model_source_dtype(&loader->source);
	return plugin_create(directory, name,
	    &(struct plugin_options){ .device = conf->batcher_device, .dtype = loader->dtype,
	        .kernels = conf->batcher_kernels },
	    &loader->plugin, &loader->backend, error);
}

/* Nanoseconds since *AT, which becomes now. */
static uint64_t lap(uint64_t *at)
{
	uint64_t before = *at;

	*at = clock_now_ns();
	return *at - before;
}

enum status loader_open(struct loader *loader, const struct conf *conf, const char *backend_objects, struct error *error)
{
	uint64_t    at = clock_now_ns();
	enum status status;

	*loader = (struct loader){ .vocab = NULL };
	if (!*conf->model_path)
		return error_set_param(error, STATUS_INVALID, "path", "model.path is not set: name a GGUF file or a model directory");
	status = strcmp(conf->model_load_format, "dummy") ? model_source_open(conf->model_path, &loader->source, error) :
	    model_source_open_dummy(conf->model_path, &loader->source, error);
	if (!status && loader->source.config)
		status = vocab_open(conf->model_path, &loader->vocab, error);
	else if (!status)
		status = vocab_from_gguf(checkpoint_gguf(loader->source.checkpoint), &loader->vocab, error);
	loader->stage_ns[LOADER_VOCAB] = lap(&at);
	if (!status)
		status = open_backend(loader, conf, backend_objects, error);
	loader->stage_ns[LOADER_BACKEND] = lap(&at);
	loader->source.check_weights = conf->model_check_weights;
	loader->source.round_inputs = conf->model_round_inputs;
	loader->source.skip_draft = strcmp(conf->batcher_backend, "cpu") != 0 || !strcmp(conf->batcher_speculation, "off") ||
	    !strcmp(conf->batcher_speculation, "ngram");
	if (!status)
		status = model_load(&loader->source, loader->backend, &loader->model, error);
	if (!status)
		status = model_set_kv_type(loader->model, conf->batcher_kv_dtype, error);
	loader->stage_ns[LOADER_WEIGHTS] = lap(&at);
	/* A row too many is padding; an id without a row could never be looked up. */
	if (!status && vocab_size(loader->vocab) > model_info(loader->model)->vocab)
		status = error_set_param(error, STATUS_INVALID, "path", "%s: the tokenizer has %u ids, the model %u rows for them",
		    conf->model_path, vocab_size(loader->vocab), model_info(loader->model)->vocab);
	if (status)
		loader_close(loader);
	else
		model_source_close(&loader->source); /* all of it was copied: the file's pages are the system's again */
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
		.policy = !strcmp(conf->batcher_policy, "fcfs") ? SCHED_FCFS
			: !strcmp(conf->batcher_policy, "priority") ? SCHED_PRIORITY : SCHED_FAIR,
		.long_prompt_tokens = (uint32_t)conf->batcher_long_prompt_tokens,
		.itl_target_ns = (uint64_t)conf->batcher_itl_target_ms * CLOCK_NS_PER_MS,
		.draft_tokens = (uint32_t)conf->batcher_draft_tokens,
		.ngram_least = (uint32_t)conf->batcher_ngram_min,
		.ngram_most = (uint32_t)conf->batcher_ngram_max,
		.record = conf->batcher_record,
		.vocab_limit = vocab_size(loader->vocab),
	};

	(void)engine_speculation_parse(conf->batcher_speculation, &options.speculation); /* options.def has the same words */
	if (options.speculation == ENGINE_SPECULATION_AUTO && !strcmp(conf->batcher_backend, "script"))
		options.speculation = ENGINE_SPECULATION_OFF; /* a script's pace is that of its tokens */
	options.eos = vocab_eos(loader->vocab, &options.eos_count);
	return options;
}
