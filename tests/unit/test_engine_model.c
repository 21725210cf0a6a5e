/* The engine on real mathematics: what a request answers does not depend on what happened to it or around it.  Answers of
 * requests that ran alone, one after another, are compared with those of the same requests under small and large chunks,
 * steps that overlap, a pool that is far too small, choices that share a prompt, storms of cancelled neighbours, and guesses
 * that are checked beside the decodes.  Small checkpoints of every kind are tried, some with keys and values of one byte,
 * and the model that PENSTOCK_TEST_MODEL names. */
#include "cpu/cpu_backend.h"
#include "engine/engine.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 12, CHOICES = 3, TOKENS = 14, PROMPT_MAX = 70 };

struct answer {
	int32_t  ids[TOKENS];
	float    logprobs[TOKENS];
	uint32_t count, ends;
	enum engine_control control;
};

struct world {
	const char     *name, *kv; /* what keys and values are kept in */
	struct model   *model;
	struct backend *backend;
	struct answer   alone[REQUESTS][CHOICES], now[2 * REQUESTS][CHOICES]; /* the second half of `now` is cancelled */
	struct metrics_shared *counts;
	uint32_t        steps, failures, drafts; /* drafts: its layers that draft */
	uint64_t        preempted;
};

static enum engine_control control(void *context, uint64_t tag, uint32_t choice, uint32_t *ret_keep)
{
	struct world *w = context;
	(void)choice, (void)ret_keep;
	return w->now[tag][0].control;
}

static bool may_publish(void *context, uint64_t tag, uint32_t events)
{
	(void)context, (void)tag, (void)events;
	return true;
}

static void token(void *context, uint64_t tag, uint32_t choice, uint32_t seq, int32_t id,
    const struct sample_logprobs *logprobs)
{
	struct answer *a = &((struct world *)context)->now[tag][choice];

	if (seq != a->count || a->count == TOKENS)
		return;
	a->logprobs[a->count] = logprobs ? logprobs->drawn : 0;
	a->ids[a->count++] = id;
}

static void end(void *context, uint64_t tag, uint32_t seq, const struct engine_end *e)
{
	(void)seq;
	((struct world *)context)->now[tag][e->choice].ends++;
}

static uint32_t prompt_length(uint32_t i) { return 1 + i * 29 % PROMPT_MAX; }

static uint32_t choices_of(uint32_t i) { return i % 4 == 1 ? CHOICES : 1; }

/* Request number I, the same every time; CHOICES more than one draw as many answers. */
static enum status submit(struct engine *engine, struct world *w, uint32_t tag, uint32_t i, uint64_t now_ns, struct error *error)
{
	struct engine_request request = { .id = 100 + tag, .tag = tag, .prompt_tokens = prompt_length(i), .max_tokens = TOKENS,
		.choices = choices_of(i), .ignore_eos = true, .priority = (int32_t)(i % 3), .key = i % 2,
		.sampling = { .temperature = i % 2 ? 0.9f : 0, .top_p = i % 3 ? 1 : 0.9f, .seed = i * 77,
			.repetition = i % 4 == 1 ? 1.3f : 0, .presence = i % 5 == 2 ? 0.7f : 0, .frequency = i % 5 == 3 ? 0.4f : 0,
			.logprobs = i % 3 } };
	uint32_t vocab = model_info(w->model)->vocab;

	request.prompt = malloc(request.prompt_tokens * sizeof *request.prompt);
	for (uint32_t k = 0; request.prompt && k < request.prompt_tokens; k++)
		request.prompt[k] = (int32_t)((i * 7919 + k * 104729 + k * k * 31) % vocab);
	return request.prompt ? engine_submit(engine, &request, now_ns, error) : STATUS_NOMEM;
}

static enum status run_engine(struct world *w, const struct engine_options *options, bool alone, bool storm,
    struct error *error)
{
	struct engine_sink       sink = { .context = w, .control = control, .may_publish = may_publish, .token = token, .end = end };
	struct engine           *engine = NULL;
	struct engine_step_stats stats;
	struct sched_stats       decisions;
	struct engine_plan       plan;
	unsigned                 seed = 3;
	uint32_t                 submitted = 0;
	struct metrics           metrics = { .shared = w->counts };
	enum status              status = engine_create(w->model, w->backend, options, &sink, &metrics, &engine, &plan, error);

	memset(w->now, 0, sizeof w->now);
	for (uint64_t now = 1; !status; now++) {
		while (!status && submitted < REQUESTS && (!alone || engine_running(engine) + engine_waiting(engine) == 0) &&
		    (alone || rand_r(&seed) % 2)) {
			status = submit(engine, w, submitted, submitted, now, error);
			if (!status && storm)
				status = submit(engine, w, REQUESTS + submitted, (submitted + 5) % REQUESTS, now, error);
			submitted++;
		}
		for (uint32_t i = REQUESTS; storm && i < REQUESTS + submitted; i++)
			if (rand_r(&seed) % 6 == 0)
				w->now[i][0].control = ENGINE_CONTROL_CANCEL;
		if (!status)
			status = engine_step(engine, now, &stats, error);
		if (status == STATUS_AGAIN) {
			status = STATUS_OK;
			if (submitted == REQUESTS && engine_running(engine) + engine_waiting(engine) == 0)
				break;
		}
	}
	if (engine) {
		engine_sched_stats(engine, &decisions);
		w->preempted += decisions.preempted;
		w->failures += !status && engine_free_blocks(engine) != plan.blocks;
	}
	engine_destroy(engine);
	return status;
}

/* The engine plans a model's memory once, so each run has a model of its own. */
static enum status run(struct world *w, const struct engine_options *options, bool alone, bool storm, struct error *error)
{
	struct model_source source = { .checkpoint = NULL };
	enum status         status = model_source_open(w->name, &source, error);

	w->model = NULL;
	w->backend = NULL;
	if (!status)
		status = cpu_backend_create(2, &w->backend, error);
	if (!status)
		status = model_load(&source, w->backend, &w->model, error);
	if (!status)
		status = model_set_kv_type(w->model, w->kv, error);
	if (!status)
		w->drafts = model_info(w->model)->draft_layers;
	if (!status)
		status = run_engine(w, options, alone, storm, error);
	model_free(w->model);
	if (w->backend)
		w->backend->ops->destroy(w->backend);
	model_source_close(&source);
	return status;
}

static void compare(struct world *w, const char *what)
{
	for (uint32_t i = 0; i < REQUESTS; i++)
		for (uint32_t c = 0; c < choices_of(i); c++)
			if (w->now[i][c].ends != 1 || w->now[i][c].count != TOKENS ||
			    memcmp(w->now[i][c].ids, w->alone[i][c].ids, sizeof w->alone[i][c].ids) ||
			    memcmp(w->now[i][c].logprobs, w->alone[i][c].logprobs, sizeof w->alone[i][c].logprobs)) {
				printf("%s: %s: choice %u of request %u: %u tokens, %u ends, not what it is alone\n", w->name, what, c, i,
				    w->now[i][c].count, w->now[i][c].ends);
				w->failures++;
			}
}

static enum status try_all(struct world *w, struct error *error)
{
	struct engine_options plain = { .max_running = 4, .max_waiting = 30, .step_tokens = 64, .block_size = 16,
		.max_context = 100, .kv_tokens = 1600, .cache_share = 0.5, .slow_client_timeout_ns = UINT64_MAX / 2,
		.max_queue_wait_ns = UINT64_MAX / 2, .depth = 1 };
	static const struct {
		const char       *what;
		uint32_t          running, rows, depth, tokens, longer;
		enum sched_policy policy;
		bool              storm;
		uint32_t          drafts;
		enum engine_speculation kind; /* with drafts */
	} cases[] = {
		{ "chunks of a few rows", 4, 5, 1, 1600, 0, SCHED_FCFS, false, 0, ENGINE_SPECULATION_OFF },
		{ "everything in one step", 16, 256, 1, 1600, 0, SCHED_FAIR, false, 0, ENGINE_SPECULATION_OFF },
		{ "steps that overlap", 6, 24, 2, 1600, 20, SCHED_FAIR, false, 0, ENGINE_SPECULATION_OFF },
		{ "a tiny pool", 6, 24, 1, 128, 20, SCHED_PRIORITY, false, 0, ENGINE_SPECULATION_OFF },
		{ "a tiny pool, steps that overlap", 6, 24, 2, 128, 0, SCHED_FAIR, false, 0, ENGINE_SPECULATION_OFF },
		{ "a storm of cancels", 5, 16, 1, 240, 30, SCHED_FAIR, true, 0, ENGINE_SPECULATION_OFF },
		{ "a storm of cancels, steps that overlap", 5, 16, 2, 240, 0, SCHED_FCFS, true, 0, ENGINE_SPECULATION_OFF },
		{ "guesses", 4, 64, 1, 1600, 0, SCHED_FAIR, false, 7, ENGINE_SPECULATION_NGRAM },
		{ "guesses, everything in one step", 16, 256, 1, 1600, 0, SCHED_FCFS, false, 3, ENGINE_SPECULATION_NGRAM },
		{ "guesses, a tiny pool", 6, 24, 1, 128, 20, SCHED_PRIORITY, false, 7, ENGINE_SPECULATION_NGRAM },
		{ "guesses, a storm of cancels", 5, 16, 1, 240, 30, SCHED_FAIR, true, 5, ENGINE_SPECULATION_NGRAM },
		{ "guesses that pay", 4, 64, 1, 1600, 0, SCHED_FAIR, false, 7, ENGINE_SPECULATION_AUTO },
		{ "the model's guesses", 4, 64, 1, 1600, 0, SCHED_FAIR, false, 5, ENGINE_SPECULATION_MTP },
		{ "the model's guesses, a tiny pool", 6, 24, 1, 128, 20, SCHED_PRIORITY, false, 7, ENGINE_SPECULATION_MTP },
		{ "the model's guesses, a storm of cancels", 5, 16, 1, 240, 30, SCHED_FAIR, true, 3, ENGINE_SPECULATION_MTP },
	};
	enum status status = run(w, &plain, true, false, error);

	memcpy(w->alone, w->now, sizeof w->alone);
	if (!status)
		compare(w, "alone"); /* is whole */
	for (size_t k = 0; k < sizeof cases / sizeof *cases && !status; k++) {
		struct engine_options options = plain;

		options.max_running = cases[k].running;
		options.step_tokens = cases[k].rows;
		options.depth = cases[k].depth;
		options.kv_tokens = cases[k].tokens;
		options.policy = cases[k].policy;
		options.long_prompt_tokens = cases[k].longer;
		options.draft_tokens = cases[k].drafts;
		options.speculation = cases[k].drafts ? cases[k].kind : ENGINE_SPECULATION_OFF;
		if (options.speculation == ENGINE_SPECULATION_MTP && !w->drafts)
			continue;
		options.ngram_least = 1;
		options.ngram_most = 4;
		status = run(w, &options, false, cases[k].storm, error);
		if (!status)
			compare(w, cases[k].what);
	}
	return status;
}

static uint64_t count(const struct world *w, enum metric id)
{
	struct metrics metrics = { .shared = w->counts };
	return metrics_get(&metrics, id);
}

/* REPEATS: what it answers is known, and that guesses of n-grams are right now and then. */
static uint32_t try_model(const char *path, const char *kv, bool repeats)
{
	struct world *w = calloc(1, sizeof *w);
	struct error  error = { 0 };
	enum status   status;
	uint32_t      failures = 1;
	uint64_t      guessed, right;

	if (w)
		w->counts = calloc(1, sizeof *w->counts);
	if (!w || !w->counts) {
		free(w);
		return 1;
	}
	w->name = path;
	w->kv = kv;
	status = try_all(w, &error);
	guessed = count(w, METRIC_ngram_draft_tokens);
	right = count(w, METRIC_ngram_accepted_1);
	if (status)
		printf("%s: %s\n", path, error.message);
	else
		failures = w->failures + (w->preempted == 0) + (repeats && (guessed <= right || right == 0));
	failures += w->drafts && count(w, METRIC_mtp_draft_tokens) == 0;
	printf("%s: %llu preemptions; %llu guesses, the first of %llu was right, %llu and %llu of the model's; %u failures\n", path,
	    (unsigned long long)w->preempted, (unsigned long long)guessed, (unsigned long long)right,
	    (unsigned long long)count(w, METRIC_mtp_draft_tokens), (unsigned long long)count(w, METRIC_mtp_accepted_1), failures);
	free(w->counts);
	free(w);
	return failures;
}

int main(void)
{
	static const char *const small[] = { "moe/glm_moe_dsa-pattern", "tiny.gguf", "dense/llama", "dense/qwen2-int8", "dense/glm4",
		"dense/qwen3-fp8", "moe/glm4_moe", "moe/glm4_moe-fused", "moe/glm4_moe-int4", "moe/glm4_moe-nvfp4", "moe/glm4_moe_lite",
		"moe/deepseek_v3", "moe/glm_moe_dsa" };
	static const struct {
		const char *name, *kv;
	} narrow[] = { { "tiny.gguf", "int8" }, { "dense/llama", "fp8" }, { "moe/glm4_moe", "int8" } };
	const char              *root = getenv("srcdir"), *large = getenv("PENSTOCK_TEST_MODEL");
	uint32_t                 failures = 0;
	char                     path[400];

	for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
		snprintf(path, sizeof path, "%.300s/tests/data/%s", root ? root : ".", small[i]);
		failures += try_model(path, "auto", i > 0); /* the first one never repeats itself */
	}
	for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
		snprintf(path, sizeof path, "%.300s/tests/data/%s", root ? root : ".", narrow[i].name);
		failures += try_model(path, narrow[i].kv, false);
	}
	if (large && *large)
		failures += try_model(large, "auto", false);
	return failures != 0;
}
