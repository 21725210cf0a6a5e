/* stepper.c: owns the model, the engine and the heartbeat.  Does not own records, sockets or signals.
 *
 * Each turn: take what the queue holds (asleep for at most a tick while there is nothing to do), beat, step, wake the
 * children.  The heartbeat and the service manager's watchdog are fed from here and nowhere else, so that a device that
 * hangs is seen; a step that is known to be long announces itself first.
 *
 * Invariant: only this thread touches engine, sink and event rings; the phase it stores last is STOPPED or FAILED. */
#include "batcher/stepper.h"

#include "base/clock.h"
#include "base/log.h"
#include "batcher/loader.h"
#include "batcher/service.h"
#include "batcher/sink.h"
#include "engine/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	IDLE_MS = 90,   /* below the 100 ms the heartbeat promises */
	PAUSED_MS = 10, /* how soon a paused sequence sees that its client reads again */
	CENSUS_MS = 200,
	LONG_FACTOR = 4, /* a step may take this many times its estimate */
	WARM_UP_ROWS = 64
};

struct worker {
	struct batcher *b;
	struct loader   loaded;
	struct sink     sink;
	struct engine  *engine;
	uint64_t        watchdog_ns; /* the fronts' */
	uint64_t        service_watchdog_us, service_beat_ns;
	uint64_t        row_ns; /* what a row may cost, from recent steps */
	uint64_t        plan_ns, warm_ns; /* of the start */
	bool            long_step;
	uint64_t        census_ns; /* when the last one was taken */
};

/* ---- start -------------------------------------------------------------------------------------------------------- */

static void set_phase(struct batcher *b, enum batcher_phase phase)
{
	atomic_store_explicit(&b->phase, phase, memory_order_release);
	batcher_wake_control(b);
}

static void log_plan(const struct worker *w, const struct engine_plan *plan)
{
	const struct model_info *info = model_info(w->loaded.model);
	const struct backend_ops *ops = w->loaded.backend->ops;

	log_info("model: %s, %llu parameters, vocabulary %u, trained context %u", info->architecture,
	    (unsigned long long)info->parameters, vocab_size(w->loaded.vocab), info->max_context);
	log_info("backend: %s: %s", ops->name, ops->describe(w->loaded.backend));
	if (w->loaded.dtype)
		log_info("dtype = %s: %s", w->b->conf.batcher_dtype, strcmp(w->b->conf.batcher_dtype, "auto") ? "as the option says" :
		    *w->loaded.dtype ? "float16, because config.json says float16" :
		    "bfloat16, because no config.json says float16");
	for (uint32_t i = 0; ops->notes; i++) {
		const char *note = ops->notes(w->loaded.backend, i);

		if (!note)
			break;
		log_debug("backend: %s", note);
	}
	log_info("memory: weights %llu MiB; of the %llu MiB left: KV cache %llu MiB (%u blocks, %llu tokens), scratch %llu MiB",
	    (unsigned long long)(plan->weight_bytes >> 20), (unsigned long long)(plan->memory_available >> 20),
	    (unsigned long long)(plan->kv_bytes >> 20), plan->blocks, (unsigned long long)plan->kv_tokens,
	    (unsigned long long)(plan->scratch_bytes >> 20));
	if (info->mapped_bytes)
		log_info("memory: %llu MiB of the weights do not fit and stay in their files, to be read as they are needed",
		    (unsigned long long)(info->mapped_bytes >> 20));
	log_info("limits: %lld running, %lld queued, %lld tokens in a step, context %u", (long long)w->b->conf.batcher_max_running,
	    (long long)w->b->conf.batcher_max_queued, (long long)w->b->conf.batcher_step_tokens, plan->max_context);
	if (strcmp(w->b->conf.batcher_speculation, "off") && plan->depth > 1)
		log_info("speculation = %s: off, because steps of backend %s overlap", w->b->conf.batcher_speculation, ops->name);
	else if (plan->draft_rows)
		log_info("speculation = %s: up to %lld guesses for an answer, %u in a step%s", w->b->conf.batcher_speculation,
		    (long long)w->b->conf.batcher_draft_tokens, plan->draft_rows, plan->mtp ? "; the model drafts" : "");
}

static void announce(struct worker *w, const struct engine_plan *plan)
{
	struct batcher       *b = w->b;
	struct header_shared *h = b->header.shared;
	const struct backend_ops *ops = w->loaded.backend->ops;
	const char           *words = ops->load_words ? ops->load_words(w->loaded.backend) : NULL;

	b->model = (struct batcher_model){
		.fingerprint = vocab_fingerprint(w->loaded.vocab),
		.kv_tokens = plan->kv_tokens,
		.vocab = vocab_size(w->loaded.vocab),
		.max_context = plan->max_context,
	};
	b->blackbox.shared->blocks = plan->blocks;
	b->blackbox.shared->block_size = (uint32_t)b->conf.batcher_block_size;
	b->blackbox.shared->max_running = (uint32_t)b->conf.batcher_max_running;
	b->blackbox.shared->step_tokens = (uint32_t)b->conf.batcher_step_tokens;
	b->admission.kv_tokens = plan->kv_tokens; /* intake reads them once the phase is READY */
	b->admission.max_context = plan->max_context;
	h->vocab_fingerprint = b->model.fingerprint;
	h->vocab_size = b->model.vocab;
	h->max_context = plan->max_context;
	h->kv_tokens = plan->kv_tokens;
	h->max_running = (uint32_t)b->conf.batcher_max_running;
	h->max_queued = (uint32_t)b->conf.batcher_max_queued;
	h->stream_window = (uint32_t)b->conf.front_stream_window;
	h->slots_per_lane = (uint32_t)b->conf.front_streams_per_front;
	conf_model_name(&b->conf, h->model_name, sizeof h->model_name);
	snprintf(h->architecture, sizeof h->architecture, "%s", model_info(w->loaded.model)->architecture);
	header_beat(&b->header, clock_now_ns());
	header_set_state(&b->header, HEADER_READY);
	set_phase(b, BATCHER_READY);
	service_notify("READY=1\nSTATUS=serving %s", h->model_name);
	log_info("ready: %s; seconds for files and vocabulary %.2f, backend %.2f, weights %.2f%s%s%s, plan and rehearsal %.2f, "
	    "first steps %.2f", h->model_name, (double)w->loaded.stage_ns[LOADER_VOCAB] * 1e-9,
	    (double)w->loaded.stage_ns[LOADER_BACKEND] * 1e-9, (double)w->loaded.stage_ns[LOADER_WEIGHTS] * 1e-9,
	    words ? " (" : "", words ? words : "", words ? ")" : "", (double)w->plan_ns * 1e-9, (double)w->warm_ns * 1e-9);
}

static void on_launch(void *context, uint32_t rows);
static void on_planned(void *context, const struct sched_plan *plan);

static enum status load(struct worker *w, const char *backend_objects, struct error *error)
{
	struct engine_options options;
	struct engine_plan    plan;
	struct engine_sink    callbacks;
	uint64_t              at;
	enum status           status = loader_open(&w->loaded, &w->b->conf, backend_objects, error);

	if (!status)
		status = sink_init(&w->sink, w->b, error);
	if (status)
		return status;
	w->sink.launch = on_launch;
	w->sink.planned = on_planned;
	w->sink.step_context = w;
	callbacks = sink_callbacks(&w->sink);
	options = loader_engine_options(&w->loaded, &w->b->conf);
	at = clock_now_ns();
	status = engine_create(w->loaded.model, w->loaded.backend, &options, &callbacks, &w->b->metrics, &w->engine, &plan, error);
	w->plan_ns = clock_now_ns() - at;
	if (!status)
		status = engine_warm_up(w->engine, WARM_UP_ROWS, &w->row_ns, error);
	if (status)
		return status;
	w->warm_ns = clock_now_ns() - at - w->plan_ns;
	w->watchdog_ns = (uint64_t)w->b->conf.batcher_watchdog_ms * CLOCK_NS_PER_MS;
	w->service_watchdog_us = service_watchdog_us();
	log_plan(w, &plan);
	announce(w, &plan);
	return STATUS_OK;
}

/* ---- heartbeat ---------------------------------------------------------------------------------------------------- */

static void beat(struct worker *w)
{
	uint64_t now = clock_now_ns();

	header_beat(&w->b->header, now);
	if (w->long_step) { /* after the beat that ends it (H3) */
		header_announce_long_step(&w->b->header, 0);
		w->long_step = false;
		if (w->service_watchdog_us)
			service_notify("WATCHDOG_USEC=%llu\nWATCHDOG=1", (unsigned long long)w->service_watchdog_us);
	}
	if (w->service_watchdog_us && (now - w->service_beat_ns) / 1000 >= w->service_watchdog_us / 4) {
		service_notify("WATCHDOG=1");
		w->service_beat_ns = now;
	}
}

/* The engine is about to launch ROWS rows: says so if that may last. */
static void on_launch(void *context, uint32_t rows)
{
	struct worker *w = context;
	uint64_t       expected_ns = rows * w->row_ns, until_ns;

	if (expected_ns < w->watchdog_ns / LONG_FACTOR)
		return;
	until_ns = expected_ns * LONG_FACTOR + w->watchdog_ns;
	header_announce_long_step(&w->b->header, clock_now_ns() + until_ns);
	w->long_step = true;
	if (w->service_watchdog_us && until_ns / 1000 > w->service_watchdog_us)
		service_notify("WATCHDOG_USEC=%llu\nWATCHDOG=1", (unsigned long long)(until_ns / 1000));
}

/* ---- black box and census ------------------------------------------------------------------------------------------ */

static void keep_item(struct blackbox_plan *plan, const struct blackbox_item *item)
{
	if (plan->item_count < BLACKBOX_ITEMS)
		plan->items[plan->item_count++] = *item;
}

static void keep_handles(struct worker *w, struct blackbox_plan *plan, const uint32_t *handles, uint32_t count,
    enum blackbox_kind kind)
{
	for (uint32_t i = 0; i < count && plan->item_count < BLACKBOX_ITEMS; i++)
		keep_item(plan, &(struct blackbox_item){ .request = engine_request_id(w->engine, handles[i]), .kind = (uint8_t)kind });
}

/* The scheduler has decided: into the black box, before anything is done about it. */
static void on_planned(void *context, const struct sched_plan *plan)
{
	struct worker       *w = context;
	struct timespec      now;
	struct blackbox_plan kept = { .rows = plan->rows, .sequences = plan->count, .sampled = plan->sampled,
		.evicted = plan->evicted_count, .expired = plan->expired_count, .running = engine_running(w->engine),
		.waiting = engine_waiting(w->engine),
		.paused = engine_paused(w->engine), .free_blocks = engine_free_blocks(w->engine) };

	clock_gettime(CLOCK_REALTIME, &now);
	kept.time_ns = (uint64_t)now.tv_sec * CLOCK_NS_PER_S + (uint64_t)now.tv_nsec;
	keep_handles(w, &kept, plan->evicted, plan->evicted_count, BLACKBOX_EVICTED);
	keep_handles(w, &kept, plan->expired, plan->expired_count, BLACKBOX_EXPIRED);
	for (uint32_t i = 0; i < plan->count; i++) {
		const struct sched_item *item = &plan->items[i];
		bool                     decode = item->rows == 1 + item->drafts && item->sampled && !item->admitted;

		kept.decodes += decode;
		kept.prefills += !decode;
		kept.admitted += item->admitted;
		if (kept.item_count < BLACKBOX_ITEMS)
			keep_item(&kept,
			    &(struct blackbox_item){ .request = engine_request_id(w->engine, item->handle), .start = item->start,
			        .rows = item->rows < UINT16_MAX ? (uint16_t)item->rows : UINT16_MAX,
			        .kind = decode ? BLACKBOX_DECODE : BLACKBOX_PREFILL,
			        .flags = (uint8_t)((item->admitted ? BLACKBOX_ADMITTED : 0) | (item->sampled ? BLACKBOX_SAMPLED : 0)) });
	}
	blackbox_write(&w->b->blackbox, &kept, plan->count > 0);
}

struct counting {
	const struct sink *sink;
	struct census      census;
};

static void count_one(void *context, uint64_t tag, bool running)
{
	struct counting *counting = context;
	sink_count(counting->sink, tag, running, &counting->census);
}

static void take_census(struct worker *w, uint64_t now_ns)
{
	struct counting counting = { .sink = &w->sink };

	if (now_ns - w->census_ns < CENSUS_MS * CLOCK_NS_PER_MS)
		return;
	w->census_ns = now_ns;
	engine_census(w->engine, count_one, &counting);
	census_write(&w->b->metrics.shared->census, &counting.census);
}

/* ---- one turn ----------------------------------------------------------------------------------------------------- */

static void on_submit(struct worker *w, struct queue_message *m)
{
	struct error error;
	uint64_t     tag;
	uint32_t     prompt_tokens = m->request.prompt_tokens;
	enum status  status = sink_begin(&w->sink, m, &tag);

	if (status) { /* cannot be: admission lets no more in than there are handles */
		log_error("no handle for request %llu", (unsigned long long)m->req);
		admission_release(&w->b->admission, &m->ticket, 0, clock_now_ns());
		engine_request_clear(&m->request);
		m->status = status;
		sink_refuse(&w->sink, m);
		return;
	}
	m->request.tag = tag;
	status = engine_submit(w->engine, &m->request, clock_now_ns(), &error);
	if (status) {
		log_debug("request %llu refused: %s", (unsigned long long)m->req, error.message);
		sink_fail(&w->sink, tag, status, prompt_tokens);
	}
}

static void apply(struct worker *w, struct queue_message *list)
{
	struct queue_message *next;

	for (struct queue_message *m = list; m; m = next) {
		next = m->next;
		if (m->kind == QUEUE_FAREWELL) { /* part of its entry, which may be gone after this */
			sink_farewell(&w->sink, m->lane);
			continue;
		}
		atomic_fetch_sub_explicit(&m->lane->queued, 1, memory_order_relaxed);
		if (m->kind == QUEUE_SUBMIT)
			on_submit(w, m);
		else
			sink_refuse(&w->sink, m);
		free(m);
	}
}

static void count_step(struct worker *w, const struct engine_step_stats *stats, uint64_t time_ns)
{
	struct metrics    *m = &w->b->metrics;
	struct sched_stats sched;
	uint64_t           row_ns = stats->rows ? stats->model_ns / stats->rows : 0;

	w->row_ns -= w->row_ns / 16;
	if (row_ns >= w->row_ns)
		w->row_ns = row_ns + 1;
	for (uint32_t i = 0; i < stats->retired; i++)
		blackbox_finish(&w->b->blackbox, time_ns);
	engine_sched_stats(w->engine, &sched);
	metrics_set(m, METRIC_preemptions_total, sched.preempted);
	metrics_set(m, METRIC_preempted_tokens_total, sched.preempted_tokens);
	metrics_add(m, METRIC_step_time_ns_total, time_ns);
	if (stats->rows == 0)
		return; /* the last step came back, and none was launched */
	metrics_add(m, METRIC_steps_total, 1);
	metrics_add(m, METRIC_overhead_time_ns_total, time_ns - stats->model_ns);
	metrics_observe(m, HISTOGRAM_step_time_seconds, time_ns);
	metrics_observe(m, HISTOGRAM_step_sequences, stats->sequences);
	metrics_observe(m, HISTOGRAM_step_tokens, stats->rows);
	metrics_observe(m, HISTOGRAM_step_budget_ratio, (uint64_t)stats->rows * 100 / (uint64_t)w->b->conf.batcher_step_tokens);
	admission_drained(&w->b->admission, stats->rows, time_ns);
	atomic_store_explicit(&w->b->header.shared->steps, metrics_get(m, METRIC_steps_total), memory_order_relaxed);
	atomic_store_explicit(&w->b->header.shared->step_time_ns, time_ns, memory_order_relaxed);
}

static uint32_t wish(const struct worker *w) { return atomic_load_explicit(&w->b->wish, memory_order_acquire); }

/* True when the thread should end. */
static bool drained(struct worker *w)
{
	uint32_t wanted = wish(w);

	if (wanted >= BATCHER_DRAIN && batcher_phase(w->b) == BATCHER_READY) {
		header_set_state(&w->b->header, HEADER_DRAINING);
		set_phase(w->b, BATCHER_DRAINING);
		service_notify("STOPPING=1\nSTATUS=draining %u requests", admission_inside(&w->b->admission));
		log_info("draining: %u requests inside", admission_inside(&w->b->admission));
	}
	return batcher_phase(w->b) == BATCHER_DRAINING && (admission_inside(&w->b->admission) == 0 || wanted == BATCHER_STOP);
}

/* Steps until there is a reason to end; that of a failure is in *ERROR. */
static enum status serve(struct worker *w, struct error *error)
{
	uint64_t idle_ns = 0;

	for (;;) {
		struct queue_message    *messages = queue_take(&w->b->queue, idle_ns);
		uint64_t                 began = clock_now_ns();
		struct engine_step_stats stats;
		enum status              status;

		apply(w, messages);
		beat(w);
		if (drained(w))
			return STATUS_OK;
		status = engine_step(w->engine, clock_now_ns(), &stats, error);
		sink_flush(&w->sink);
		take_census(w, began);
		if (status && status != STATUS_AGAIN)
			return status;
		if (!status)
			count_step(w, &stats, clock_now_ns() - began);
		idle_ns = !status ? 0 : (engine_paused(w->engine) ? PAUSED_MS : IDLE_MS) * CLOCK_NS_PER_MS;
	}
}

static void *run(void *context)
{
	struct stepper *stepper = context;
	struct worker   w = { .b = stepper->batcher };
	struct error   *failure = &w.b->failure;
	enum status     status = load(&w, stepper->backend_objects, failure);

	if (!status)
		status = serve(&w, failure);
	if (w.engine) {
		apply(&w, queue_take(&w.b->queue, 0));
		engine_cancel_all(w.engine, status ? STATUS_INTERNAL : STATUS_DRAINED);
		sink_flush(&w.sink);
	}
	header_set_state(&w.b->header, HEADER_STOPPED);
	engine_destroy(w.engine);
	sink_free(&w.sink);
	loader_close(&w.loaded);
	set_phase(w.b, status ? BATCHER_FAILED : BATCHER_STOPPED);
	return NULL;
}

enum status stepper_start(struct stepper *stepper, struct batcher *batcher, const char *backend_objects, struct error *error)
{
	*stepper = (struct stepper){ .batcher = batcher, .backend_objects = backend_objects };
	if (pthread_create(&stepper->thread, NULL, run, stepper))
		return error_set(error, STATUS_NOMEM, "cannot start the step thread");
	stepper->started = true;
	return STATUS_OK;
}

void stepper_join(struct stepper *stepper)
{
	if (stepper->started)
		pthread_join(stepper->thread, NULL);
	stepper->started = false;
}
