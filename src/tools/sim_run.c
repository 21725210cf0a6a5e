/* sim_run.c: owns invented time and the life of requests in it.  Does not own policy (engine/sched), blocks (engine/kv) or
 * what is counted (sim_stats).
 *
 * It does what the engine does, in the engine's order:
 *
 *   arrivals and cancels up to now ──► plan ──► blocks taken and given back ──► now += cost ──► confirm, tokens, ends
 *
 * and what the engine tells the scheduler, no more: output_tokens is not known to it before the last token is there.  A
 * request comes with max_new = what the context (here the pool) leaves; how long its answer will be, the scheduler has to
 * learn from the requests that finished before.
 *
 * Invariants: time never goes back; every request of the trace ends exactly once; a handle in use has its request in `live`,
 * and its blocks are what the scheduler's items asked for; a run never loops without either a step or time going on. */
#include "tools/sim_run.h"

#include "base/clock.h"
#include "engine/kv.h"
#include "engine/sched_trace.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Without a plan though requests wait, the engine looks again after a beat; a minute of this is a fault. */
enum { BEAT_NS = 100000000, BARREN_BEATS_MAX = 600 };

struct live {
	uint32_t request;  /* in the trace */
	uint32_t generated, output; /* output: what it will generate */
	uint32_t computed; /* the most tokens that were ever in the cache */
	bool     started, waiting;
	uint64_t token_ns; /* of the last token */
	struct kv_table table;
};

struct cancel {
	uint64_t at_ns;
	uint32_t handle, request;
};

struct run {
	const struct sim_trace   *trace;
	const struct sim_options *options;
	const struct sim_cost    *cost;
	struct sched     *sched;
	FILE             *record_to; /* until the recorder owns it */
	struct sched_trace *record;  /* may be NULL */
	struct kv_pool   *pool;
	struct sim_stats *stats;
	uint32_t         *cells; /* [count] of requests */
	struct live      *live;  /* [capacity] by handle */
	uint32_t         *free;  /* [capacity], the first free_count are unused handles */
	uint32_t          capacity, free_count, next; /* next: request that has not arrived yet */
	struct cancel    *cancels; /* heap by at_ns, then request */
	uint32_t          cancel_count, cancel_capacity;
	struct sim_histogram step_cpu;
	uint64_t          now_ns, end_ns, peak_blocks;
	struct sim_result result;
};


static uint32_t cell_of(const struct run *run, uint32_t handle) { return run->cells[run->live[handle].request]; }

static uint64_t arrival_of(const struct run *run, uint32_t request)
{
	double scale = run->options->time_scale;
	uint64_t ns = run->trace->requests[request].arrival_ns;

	return scale == 1 ? ns : (uint64_t)llround((double)ns * scale);
}

/* ---- cancels: a heap ----------------------------------------------------------------------------------------------- */

static bool sooner(const struct cancel *a, const struct cancel *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->request < b->request;
}

static enum status push_cancel(struct run *run, struct cancel cancel)
{
	uint32_t at = run->cancel_count;

	if (at == run->cancel_capacity) {
		uint32_t       capacity = at ? 2 * at : 256;
		struct cancel *grown = realloc(run->cancels, capacity * sizeof *grown);

		if (!grown)
			return STATUS_NOMEM;
		run->cancels = grown;
		run->cancel_capacity = capacity;
	}
	run->cancel_count++;
	for (; at > 0 && sooner(&cancel, &run->cancels[(at - 1) / 2]); at = (at - 1) / 2)
		run->cancels[at] = run->cancels[(at - 1) / 2];
	run->cancels[at] = cancel;
	return STATUS_OK;
}

static struct cancel pop_cancel(struct run *run)
{
	struct cancel first = run->cancels[0], last = run->cancels[--run->cancel_count];
	uint32_t      at = 0, child;

	while ((child = 2 * at + 1) < run->cancel_count) {
		child += child + 1 < run->cancel_count && sooner(&run->cancels[child + 1], &run->cancels[child]);
		if (!sooner(&run->cancels[child], &last))
			break;
		run->cancels[at] = run->cancels[child];
		at = child;
	}
	run->cancels[at] = last;
	return first;
}

/* ---- requests come and go ------------------------------------------------------------------------------------------ */

/* The scheduler has forgotten HANDLE already. */
static void end_request(struct run *run, uint32_t handle, enum sim_end end)
{
	struct live *live = &run->live[handle];
	uint32_t     cell = cell_of(run, handle);

	if (live->waiting)
		sim_stats_wait_over(run->stats, cell);
	if (!live->started)
		sim_stats_waited(run->stats, cell, run->now_ns - arrival_of(run, live->request));
	sim_stats_end(run->stats, cell, end);
	kv_table_free(run->pool, &live->table);
	*(end == SIM_FINISHED ? &run->result.finished : end == SIM_REJECTED ? &run->result.rejected : &run->result.cancelled) += 1;
	run->free[run->free_count++] = handle;
	run->end_ns = run->now_ns;
}

static enum status submit(struct run *run, uint32_t number, struct error *error)
{
	const struct sim_request *request = &run->trace->requests[number];
	uint64_t                  arrival = arrival_of(run, number);
	uint64_t                  context = (uint64_t)kv_pool_total_blocks(run->pool) * run->cost->block;
	uint32_t                  handle, max_new;

	if (request->prompt_tokens >= context || run->free_count == 0) { /* 400, 429 */
		sim_stats_end(run->stats, run->cells[number], SIM_REJECTED);
		run->result.rejected++;
		run->end_ns = run->now_ns;
		return STATUS_OK;
	}
	handle = run->free[--run->free_count];
	max_new = (uint32_t)(context - request->prompt_tokens);
	run->live[handle] = (struct live){ .request = number, .waiting = true,
		.output = request->output_tokens < max_new ? request->output_tokens : max_new };
	sched_trace_add(run->record, run->sched, handle,
	    &(struct sched_job){
	        .length = request->prompt_tokens,
	        .max_new = max_new,
	        .class = request->class,
	        .key = request->key,
	        .arrival_ns = arrival,
	    });
	sim_stats_wait(run->stats, run->cells[number]);
	if (request->cancel_ns != SIM_NEVER && push_cancel(run, (struct cancel){ arrival + request->cancel_ns, handle, number }))
		return error_set(error, STATUS_NOMEM, "no memory for %u cancellations", run->cancel_count + 1);
	return STATUS_OK;
}

/* The cancel that comes next, if its request is still there. */
static const struct cancel *next_cancel(struct run *run)
{
	while (run->cancel_count) {
		const struct cancel *cancel = &run->cancels[0];
		const struct live   *live = &run->live[cancel->handle];

		if (live->request == cancel->request && live->generated < live->output)
			return cancel;
		pop_cancel(run);
	}
	return NULL;
}

/* Everything the outside world did until now. */
static enum status catch_up(struct run *run, struct error *error)
{
	const struct cancel *cancel;

	for (; run->next < run->trace->count && arrival_of(run, run->next) <= run->now_ns; run->next++) {
		enum status status = submit(run, run->next, error);
		if (status)
			return status;
	}
	while ((cancel = next_cancel(run)) && cancel->at_ns <= run->now_ns) {
		uint32_t handle = pop_cancel(run).handle;

		sched_trace_remove(run->record, run->sched, handle);
		end_request(run, handle, SIM_CANCELLED);
		run->live[handle].generated = run->live[handle].output; /* over */
	}
	return STATUS_OK;
}

/* ---- one step ------------------------------------------------------------------------------------------------------ */

/* What of a plan costs time. */
struct work {
	uint64_t prefill, decodes, context;
};

/* Blocks as the plan says; timed as part of the scheduler's work. */
static enum status take_blocks(struct run *run, const struct sched_plan *plan, struct error *error)
{
	for (uint32_t i = 0; i < plan->evicted_count; i++)
		kv_table_free(run->pool, &run->live[plan->evicted[i]].table);
	for (uint32_t i = 0; i < plan->expired_count; i++)
		kv_table_free(run->pool, &run->live[plan->expired[i]].table);
	for (uint32_t i = 0; i < plan->count; i++) {
		const struct sched_item *item = &plan->items[i];
		struct live             *live = &run->live[item->handle];
		enum status              status;

		if (item->blocks <= live->table.count)
			continue;
		status = kv_table_grow(run->pool, &live->table, (uint64_t)item->blocks * run->cost->block);
		if (status)
			return error_set(error, status == STATUS_FULL ? STATUS_INTERNAL : status,
			    "step %llu: request %u was planned with %u KV blocks, but it has %u and %u are free",
			    (unsigned long long)run->result.steps, live->request, item->blocks, live->table.count,
			    kv_pool_free_blocks(run->pool));
	}
	return STATUS_OK;
}

/* Who waits and who runs after this plan; what each item computes. */
static struct work account(struct run *run, const struct sched_plan *plan)
{
	struct work work = { 0 };
	uint64_t    used;

	for (uint32_t i = 0; i < plan->evicted_count; i++) {
		struct live *live = &run->live[plan->evicted[i]];

		if (!live->waiting)
			sim_stats_wait(run->stats, cell_of(run, plan->evicted[i]));
		live->waiting = true;
	}
	for (uint32_t i = 0; i < plan->count; i++) {
		struct live *live = &run->live[plan->items[i].handle];
		uint32_t     cell = run->cells[live->request];

		if (live->waiting)
			sim_stats_wait_over(run->stats, cell);
		live->waiting = false;
		if (!live->started)
			sim_stats_waited(run->stats, cell, run->now_ns - arrival_of(run, live->request));
		live->started = true;
	}
	for (uint32_t i = 0; i < plan->count; i++) {
		const struct sched_item *item = &plan->items[i];
		struct live             *live = &run->live[item->handle];
		uint32_t                 prompt = run->trace->requests[live->request].prompt_tokens, end = item->start + item->rows;

		if (item->rows == 1 && item->start >= prompt)
			work.decodes++;
		else
			work.prefill += item->rows;
		work.context += end;
		if (end > live->computed) { /* not for the second time */
			uint32_t fresh = end - live->computed, own = live->computed < prompt ? prompt - live->computed : 0;

			run->result.prefill_tokens += fresh < own ? fresh : own;
			sim_stats_served(run->stats, run->cells[live->request], fresh);
			live->computed = end;
		}
	}
	sim_stats_step_over(run->stats);
	used = kv_pool_total_blocks(run->pool) - kv_pool_free_blocks(run->pool);
	if (used > run->peak_blocks)
		run->peak_blocks = used;
	return work;
}

/* Tells the scheduler what the step gave; timed. */
static void confirm(struct run *run, const struct sched_plan *plan, uint64_t step_ns)
{
	for (uint32_t i = 0; i < plan->count; i++) {
		uint32_t     handle = plan->items[i].handle;
		struct live *live = &run->live[handle];

		live->generated += plan->items[i].sampled;
		if (plan->items[i].sampled && live->generated == live->output) {
			sched_trace_remove(run->record, run->sched, handle);
			kv_table_free(run->pool, &live->table);
		} else {
			sched_trace_confirm(run->record, run->sched, handle, plan->items[i].sampled);
		}
	}
	sched_trace_feedback(run->record, run->sched, plan->rows, plan->count, step_ns);
}

static enum status publish(struct run *run, const struct sched_plan *plan, struct error *error)
{
	for (uint32_t i = 0; i < plan->count; i++) {
		uint32_t     handle = plan->items[i].handle, cell = cell_of(run, handle);
		struct live *live = &run->live[handle];
		bool         good;

		if (!plan->items[i].sampled)
			continue;
		run->result.generated_tokens++;
		good = live->generated == 1
		    ? sim_stats_first_token(run->stats, cell, run->now_ns - arrival_of(run, live->request))
		    : sim_stats_next_token(run->stats, cell, run->now_ns - live->token_ns);
		if (!good)
			return error_set(error, STATUS_NOMEM, "no memory for the statistics of %u groups", cell);
		live->token_ns = run->now_ns;
		if (live->generated < live->output)
			continue;
		sched_trace_learn(run->record, run->sched, live->generated);
		end_request(run, handle, SIM_FINISHED);
	}
	return STATUS_OK;
}

/* Nothing was planned: on to what happens next.  STATUS_AGAIN when nothing ever will. */
static enum status skip_idle(struct run *run, uint32_t *barren, struct error *error)
{
	const struct cancel *cancel = next_cancel(run);
	uint64_t             next = UINT64_MAX;

	if (run->next < run->trace->count)
		next = arrival_of(run, run->next);
	if (cancel && cancel->at_ns < next)
		next = cancel->at_ns;
	if (run->free_count < run->capacity) {
		if (++*barren > BARREN_BEATS_MAX)
			return error_set(error, STATUS_INTERNAL, "the scheduler plans nothing: %u wait, %u run, %u of %u KV blocks are free",
			    sched_waiting(run->sched), sched_running(run->sched), kv_pool_free_blocks(run->pool),
			    kv_pool_total_blocks(run->pool));
		if (next > run->now_ns + BEAT_NS)
			next = run->now_ns + BEAT_NS;
	}
	if (next == UINT64_MAX)
		return STATUS_AGAIN;
	if (next > run->now_ns)
		run->now_ns = next;
	return STATUS_OK;
}

static enum status step(struct run *run, uint32_t *barren, struct error *error)
{
	uint64_t          begin = clock_now_ns(), planned, ran;
	struct sched_plan plan;
	struct work       work;
	uint64_t          step_ns;
	enum status       status;

	sched_trace_plan(run->record, run->sched, kv_pool_free_blocks(run->pool), run->now_ns, &plan);
	status = take_blocks(run, &plan, error);
	if (status)
		return status;
	planned = clock_now_ns();
	for (uint32_t i = 0; i < plan.expired_count; i++) {
		uint32_t handle = plan.expired[i];

		sched_trace_remove(run->record, run->sched, handle);
		end_request(run, handle, SIM_REJECTED);
		run->live[handle].generated = run->live[handle].output; /* over */
	}
	work = account(run, &plan);
	if (plan.count == 0)
		return plan.expired_count || plan.evicted_count ? STATUS_OK : skip_idle(run, barren, error);
	*barren = 0;
	step_ns = sim_cost_step_ns(run->cost, work.prefill, work.decodes, work.context);
	run->now_ns += step_ns;
	ran = clock_now_ns();
	confirm(run, &plan, step_ns);
	if (!sim_histogram_add(&run->step_cpu, clock_now_ns() - ran + planned - begin))
		return error_set(error, STATUS_NOMEM, "no memory for the statistics of steps");
	run->result.steps++;
	return publish(run, &plan, error);
}

/* ---- the run ------------------------------------------------------------------------------------------------------- */

static enum status create(struct run *run, struct error *error)
{
	const struct sim_cost *cost = run->cost;
	uint32_t               blocks = cost->kv_tokens / cost->block + (cost->kv_tokens % cost->block != 0);
	struct sched_options   sched;
	enum status            status;

	run->capacity = run->trace->count < SIM_LIVE_MAX ? run->trace->count : SIM_LIVE_MAX;
	if (run->capacity < cost->max_batch)
		run->capacity = cost->max_batch;
	run->live = calloc(run->capacity, sizeof *run->live);
	run->free = malloc(run->capacity * sizeof *run->free);
	if (!run->live || !run->free)
		return error_set(error, STATUS_NOMEM, "no memory for %u requests", run->capacity);
	for (uint32_t i = 0; i < run->capacity; i++)
		run->free[i] = run->capacity - 1 - i;
	run->free_count = run->capacity;
	status = sim_stats_create(run->trace, cost->long_prompt_tokens, &run->stats, &run->cells, error);
	if (status)
		return status;
	status = kv_pool_create(blocks, cost->block, &run->pool);
	if (status)
		return error_set(error, status, "no pool of kv_tokens = %u in blocks of %u: %s", cost->kv_tokens, cost->block,
		    status_text(status));
	sched = (struct sched_options){
		.policy = run->options->policy,
		.capacity = run->capacity,
		.max_running = cost->max_batch,
		.step_tokens = cost->step_tokens,
		.block_size = cost->block,
		.blocks = blocks,
		.depth = 1,
		.long_prompt_tokens = cost->long_prompt_tokens,
		.max_queue_wait_ns = (uint64_t)llround(cost->max_queue_wait_s * 1e9),
		.itl_target_ns = (uint64_t)llround(cost->itl_target_ms * 1e6),
	};
	status = sched_create(&sched, &run->sched);
	if (status)
		return error_set(error, status, "no scheduler for %u requests: %s", run->capacity, status_text(status));
	if (!run->record_to)
		return STATUS_OK;
	status = sched_trace_create(run->record_to, SIM_RECORD_MAX, &sched, &run->record);
	run->record_to = NULL;
	return status ? error_set(error, status, "cannot begin the recording: %s", status_text(status)) : STATUS_OK;
}

static void destroy(struct run *run)
{
	for (uint32_t i = 0; run->pool && i < run->capacity; i++)
		kv_table_free(run->pool, &run->live[i].table);
	if (run->record_to)
		fclose(run->record_to);
	sched_destroy(run->sched);
	kv_pool_destroy(run->pool);
	sim_stats_destroy(run->stats);
	sim_histogram_free(&run->step_cpu);
	free(run->cells);
	free(run->live);
	free(run->free);
	free(run->cancels);
}

static enum status summarize(struct run *run, struct sim_result *ret, struct error *error)
{
	struct sim_result *result = &run->result;
	struct sched_stats sched;
	uint64_t           begin = run->trace->count ? arrival_of(run, 0) : 0;

	sched_stats(run->sched, &sched);
	result->policy = run->options->policy;
	result->preempted_tokens = sched.preempted_tokens;
	result->kv_peak_tokens = run->peak_blocks * run->cost->block;
	result->duration_s = run->end_ns > begin ? (double)(run->end_ns - begin) / 1e9 : 0;
	result->throughput_tok_s = result->duration_s > 0 ? (double)result->generated_tokens / result->duration_s : 0;
	result->jain = sim_stats_jain(run->stats);
	result->step_cpu_p50_ns = sim_histogram_percentile(&run->step_cpu, 0.50);
	result->step_cpu_p99_ns = sim_histogram_percentile(&run->step_cpu, 0.99);
	if (sim_stats_groups(run->stats, &result->groups, &result->group_count))
		return error_set(error, STATUS_NOMEM, "no memory for the result's groups");
	*ret = *result;
	return STATUS_OK;
}

enum status sim_run(const struct sim_trace *trace, const struct sim_options *options, struct sim_result *ret, struct error *error)
{
	struct run  run = { .trace = trace, .options = options, .cost = options->cost, .record_to = options->record };
	uint32_t    barren = 0;
	enum status status = create(&run, error);

	while (!status) {
		status = catch_up(&run, error);
		if (!status)
			status = step(&run, &barren, error);
	}
	if (status == STATUS_AGAIN)
		status = summarize(&run, ret, error);
	if (run.record && sched_trace_destroy(run.record) && !status)
		status = error_set(error, STATUS_IO, "the recording could not be written: %s", strerror(errno));
	destroy(&run);
	return status;
}

void sim_result_free(struct sim_result *result) { free(result->groups); }
