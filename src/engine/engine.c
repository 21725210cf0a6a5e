/* engine.c: owns sequences, their tokens and blocks, and the body of one step.  Does not own policy (sched.c decides who
 * runs), lanes or threads (the sink does), nor the mathematics (model and backend).
 *
 * One step:
 *
 *   poll ──► plan ──► launch forward ──► launch sample ──► wait ──► publish
 *   │        │        model_forward      one draw per      │        token() or end()
 *   │        sched    rows of all        sequence whose    │
 *   controls,         sequences          last row is in    ids come back
 *   deadlines,                           the batch
 *   credit
 *
 * Invariants: an accepted request gets exactly one end(), after its last token(), and its blocks are free by then; a
 * sequence is in `active` exactly while it is accepted and not ended; blocks are freed only here, after `wait`, so that no
 * step that names them is under way; nothing is allocated in a step but the block table of a sequence that starts. */
#include "engine/engine.h"

#include "base/checked.h"
#include "base/clock.h"
#include "engine/kv.h"
#include "engine/sched.h"

#include <stdlib.h>
#include <string.h>

struct sequence {
	uint64_t id, tag, arrival_ns, deadline_ns;
	uint64_t paused_since_ns; /* while paused */
	int32_t *tokens;          /* the prompt, then what was generated; room for prompt_tokens + max_tokens */
	uint32_t prompt_tokens, generated, max_tokens;
	uint32_t active_at;       /* its place in engine.active */
	bool     started, paused, ignore_eos;
	struct sample_params sampling;
	struct kv_table      table;
};

struct engine {
	struct model         *model;
	struct backend       *backend;
	struct engine_options options;
	struct engine_sink    sink;
	struct metrics       *metrics; /* may be NULL */
	struct sched         *sched;
	struct kv_pool       *pool;
	uint32_t              max_context, vocab_limit, kv_groups, capacity, paused;

	struct sequence *sequences; /* [capacity]; the index is the scheduler's handle */
	uint32_t        *active;    /* [capacity] handles of accepted requests in no particular order, then the unused ones */
	uint32_t         active_count;

	/* One step's batch, filled anew each time. */
	int32_t               *tokens, *positions, *kv_slots; /* [step_tokens] */
	struct batch_sequence *parts;                         /* [max_running] */
	int32_t               *logit_rows, *ids;              /* [max_running] */
	struct sample_row     *samples;                       /* [max_running] */
};

static void count(struct engine *engine, enum metric id, uint64_t n)
{
	if (engine->metrics)
		metrics_add(engine->metrics, id, n);
}

static void gauge(struct engine *engine, enum metric id, uint64_t n)
{
	if (engine->metrics)
		metrics_set(engine->metrics, id, n);
}

/* ---- start: the memory plan ------------------------------------------------------------------------------------- */

/* Decides how many KV blocks there are.  Everything the process will ever take is known here: weights are loaded, scratch
 * is computed for the largest step, and the rest is shared out by cache_share. */
static enum status plan_memory(struct engine *engine, struct engine_plan *plan, struct error *error)
{
	const struct engine_options *o = &engine->options;
	const struct model_info     *info = model_info(engine->model);
	const struct backend_ops    *ops = engine->backend->ops;
	struct backend_memory        memory;
	uint64_t                     block_bytes = 0, room, limit, blocks;
	enum status                  status = ops->memory(engine->backend, &memory);

	if (status)
		return error_set(error, status, "backend %s cannot say how much memory there is", ops->name);
	for (uint32_t g = 0; g < info->kv_group_count; g++) {
		struct kv_group_desc group = info->kv_groups[g];
		group.block_size = o->block_size;
		if (!checked_add_u64(block_bytes, ops->kv_bytes(engine->backend, &group), &block_bytes))
			return error_set(error, STATUS_LIMIT, "a KV block has more than 2^64 bytes");
	}
	if (block_bytes == 0 || info->vocab == 0 || info->max_context == 0)
		return error_set(error, STATUS_UNSUPPORTED, "architecture %s has no KV cache, vocabulary or context to serve",
		    info->architecture);
	if (o->max_context > info->max_context)
		return error_set_param(error, STATUS_INVALID, "max_context", "max_context = %u: the model was trained for %u tokens",
		    o->max_context, info->max_context);
	engine->max_context = o->max_context ? o->max_context : info->max_context;
	plan->weight_bytes = info->weight_bytes;
	plan->memory_available = memory.available;
	plan->scratch_bytes = model_scratch_bytes(engine->model, o->step_tokens, o->max_running);
	room = memory.available > plan->scratch_bytes ? memory.available - plan->scratch_bytes : 0;

	/* More than every running sequence at full length can never be used. */
	limit = (uint64_t)o->max_running * (((uint64_t)engine->max_context + o->block_size - 1) / o->block_size);
	if (limit > INT32_MAX / o->block_size)
		limit = INT32_MAX / o->block_size;
	if (o->kv_tokens) {
		blocks = o->kv_tokens / o->block_size + (o->kv_tokens % o->block_size != 0);
		if (blocks > limit)
			blocks = limit;
		if (blocks > room / block_bytes)
			return error_set_param(error, STATUS_NOMEM, "kv_tokens",
			    "kv_tokens = %llu needs %llu MiB, but of the %llu MiB left after the weights %llu MiB are for scratch; "
			    "lower kv_tokens or step_tokens",
			    (unsigned long long)o->kv_tokens, (unsigned long long)(blocks * block_bytes >> 20),
			    (unsigned long long)(memory.available >> 20), (unsigned long long)(plan->scratch_bytes >> 20));
	} else {
		blocks = (uint64_t)((double)room * o->cache_share) / block_bytes;
		if (blocks > limit)
			blocks = limit;
		if (blocks == 0)
			return error_set(error, STATUS_NOMEM,
			    "no memory for one KV block of %llu KiB: %llu MiB are left after the weights, scratch takes %llu MiB, "
			    "and the cache's share of the rest is %g; lower step_tokens or max_running",
			    (unsigned long long)(block_bytes >> 10), (unsigned long long)(memory.available >> 20),
			    (unsigned long long)(plan->scratch_bytes >> 20), o->cache_share);
	}
	plan->blocks = (uint32_t)blocks;
	plan->kv_bytes = blocks * block_bytes;
	plan->kv_tokens = blocks * o->block_size;
	if (engine->max_context > plan->kv_tokens)
		engine->max_context = (uint32_t)plan->kv_tokens;
	plan->max_context = engine->max_context;
	return STATUS_OK;
}

static enum status allocate(struct engine *engine, uint32_t blocks)
{
	const struct engine_options *o = &engine->options;
	enum status                  status;

	engine->sequences = calloc(engine->capacity, sizeof *engine->sequences);
	engine->active = calloc(engine->capacity, sizeof *engine->active);
	engine->tokens = calloc(o->step_tokens, sizeof *engine->tokens);
	engine->positions = calloc(o->step_tokens, sizeof *engine->positions);
	engine->kv_slots = calloc(o->step_tokens, sizeof *engine->kv_slots);
	engine->parts = calloc(o->max_running, sizeof *engine->parts);
	engine->logit_rows = calloc(o->max_running, sizeof *engine->logit_rows);
	engine->ids = calloc(o->max_running, sizeof *engine->ids);
	engine->samples = calloc(o->max_running, sizeof *engine->samples);
	if (!engine->sequences || !engine->active || !engine->tokens || !engine->positions || !engine->kv_slots ||
	    !engine->parts || !engine->logit_rows || !engine->ids || !engine->samples)
		return STATUS_NOMEM;
	for (uint32_t i = 0; i < engine->capacity; i++)
		engine->active[i] = i;
	status = kv_pool_create(blocks, o->block_size, &engine->pool);
	if (status)
		return status;
	return sched_create(&(struct sched_options){ engine->capacity, o->max_running, o->step_tokens }, &engine->sched);
}

enum status engine_create(struct model *model, struct backend *backend, const struct engine_options *options,
    const struct engine_sink *sink, struct metrics *metrics, struct engine **ret, struct engine_plan *ret_plan,
    struct error *error)
{
	const struct model_info *info = model_info(model);
	struct engine_plan       plan = { 0 };
	struct engine           *engine;
	enum status              status;

	if (options->max_running == 0 || options->step_tokens < options->max_running || options->block_size == 0 ||
	    options->max_waiting > UINT32_MAX - options->max_running - 1)
		return error_set(error, STATUS_INVALID,
		    "max_running = %u, max_waiting = %u, step_tokens = %u, block_size = %u: step_tokens must be at least max_running, "
		    "and none but max_waiting 0",
		    options->max_running, options->max_waiting, options->step_tokens, options->block_size);
	if (info->encoder)
		return error_set(error, STATUS_UNSUPPORTED, "%s is an encoder: it gives embeddings, no tokens", info->architecture);
	engine = calloc(1, sizeof *engine);
	if (!engine)
		return error_set(error, STATUS_NOMEM, "no memory for the engine");
	engine->model = model;
	engine->backend = backend;
	engine->options = *options;
	engine->sink = *sink;
	engine->metrics = metrics;
	engine->kv_groups = info->kv_group_count;
	engine->capacity = options->max_running + options->max_waiting;
	engine->vocab_limit = options->vocab_limit && options->vocab_limit < info->vocab ? options->vocab_limit : info->vocab;

	status = plan_memory(engine, &plan, error);
	if (status)
		goto fail;
	status = allocate(engine, plan.blocks);
	if (status) {
		error_set(error, status, "no memory for the tables of %u requests and %u KV blocks", engine->capacity, plan.blocks);
		goto fail;
	}
	status = model_plan(model, options->step_tokens, options->max_running, options->block_size, plan.blocks, error);
	if (status)
		goto fail;
	gauge(engine, METRIC_kv_blocks_total, plan.blocks);
	*ret = engine;
	if (ret_plan)
		*ret_plan = plan;
	return STATUS_OK;
fail:
	engine_destroy(engine);
	return status;
}

void engine_destroy(struct engine *engine)
{
	if (!engine)
		return;
	for (uint32_t i = 0; i < engine->active_count; i++) {
		struct sequence *sequence = &engine->sequences[engine->active[i]];
		kv_table_free(engine->pool, &sequence->table);
		free(sequence->tokens);
	}
	sched_destroy(engine->sched);
	kv_pool_destroy(engine->pool);
	free(engine->sequences);
	free(engine->active);
	free(engine->tokens);
	free(engine->positions);
	free(engine->kv_slots);
	free(engine->parts);
	free(engine->logit_rows);
	free(engine->ids);
	free(engine->samples);
	free(engine);
}

/* ---- requests come and go --------------------------------------------------------------------------------------- */

static enum status check_request(const struct engine *engine, const struct engine_request *request, struct error *error)
{
	if (request->prompt_tokens == 0)
		return error_set_param(error, STATUS_INVALID, "messages", "the prompt has no tokens; at least one is needed");
	if (request->prompt_tokens >= engine->max_context)
		return error_set_param(error, STATUS_CONTEXT_LENGTH, "messages",
		    "the prompt has %u tokens, but prompt and answer together may have %u", request->prompt_tokens,
		    engine->max_context);
	if (request->max_tokens > engine->max_context - request->prompt_tokens)
		return error_set_param(error, STATUS_CONTEXT_LENGTH, "max_tokens",
		    "prompt of %u tokens + max_tokens = %u is %llu, but prompt and answer together may have %u", request->prompt_tokens,
		    request->max_tokens, (unsigned long long)request->prompt_tokens + request->max_tokens, engine->max_context);
	for (uint32_t i = 0; i < request->prompt_tokens; i++)
		if (request->prompt[i] < 0 || (uint32_t)request->prompt[i] >= engine->vocab_limit)
			return error_set_param(error, STATUS_INVALID, "messages", "token %u of the prompt is id %d, allowed are 0…%u", i,
			    request->prompt[i], engine->vocab_limit - 1);
	if (engine->active_count == engine->capacity)
		return error_set(error, STATUS_FULL, "%u requests are running or waiting, no more are taken", engine->capacity);
	return STATUS_OK;
}

enum status engine_submit(struct engine *engine, struct engine_request *request, uint64_t now_ns, struct error *error)
{
	enum status      status = check_request(engine, request, error);
	int32_t         *prompt = request->prompt, *tokens;
	uint32_t         handle, max_tokens;
	struct sequence *sequence;

	request->prompt = NULL;
	count(engine, METRIC_requests_total, 1);
	if (status)
		goto fail;
	max_tokens = request->max_tokens ? request->max_tokens : engine->max_context - request->prompt_tokens;
	tokens = realloc(prompt, ((size_t)request->prompt_tokens + max_tokens) * sizeof *tokens);
	if (!tokens) {
		status = error_set(error, STATUS_NOMEM, "no memory for %u tokens", request->prompt_tokens + max_tokens);
		goto fail;
	}
	handle = engine->active[engine->active_count];
	sequence = &engine->sequences[handle];
	*sequence = (struct sequence){
		.id = request->id,
		.tag = request->tag,
		.arrival_ns = now_ns,
		.deadline_ns = request->deadline_ns,
		.tokens = tokens,
		.prompt_tokens = request->prompt_tokens,
		.max_tokens = max_tokens,
		.ignore_eos = request->ignore_eos,
		.sampling = request->sampling,
		.active_at = engine->active_count++,
	};
	sched_add(engine->sched, handle,
	    &(struct sched_job){
	        .length = sequence->prompt_tokens,
	        .blocks = kv_pool_blocks_for(engine->pool, (uint64_t)sequence->prompt_tokens + max_tokens),
	        .arrival_ns = now_ns,
	    });
	return STATUS_OK;
fail:
	free(prompt);
	count(engine, METRIC_requests_failed_total, 1);
	return status;
}

static void set_gauges(struct engine *engine)
{
	gauge(engine, METRIC_sequences_running, sched_running(engine->sched));
	gauge(engine, METRIC_sequences_waiting, sched_waiting(engine->sched));
	gauge(engine, METRIC_sequences_paused, engine->paused);
	gauge(engine, METRIC_kv_blocks_used, kv_pool_total_blocks(engine->pool) - kv_pool_free_blocks(engine->pool));
}

/* The one place where a request ends.  COMPLETION tokens are its own, of those generated.  The gauges are right before
 * anybody learns of the end. */
static void end_request(struct engine *engine, uint32_t handle, enum wire_finish finish, enum status status,
    uint32_t completion)
{
	struct sequence  *sequence = &engine->sequences[handle];
	uint64_t          tag = sequence->tag;
	uint32_t          seq = sequence->generated, last;
	struct engine_end end = { finish, status, sequence->prompt_tokens, completion };

	kv_table_free(engine->pool, &sequence->table);
	sched_remove(engine->sched, handle);
	free(sequence->tokens);
	last = engine->active[--engine->active_count];
	engine->active[sequence->active_at] = last;
	engine->sequences[last].active_at = sequence->active_at;
	engine->active[engine->active_count] = handle;
	*sequence = (struct sequence){ 0 };

	count(engine,
	    finish == WIRE_FINISH_ERROR           ? METRIC_requests_failed_total
	        : finish == WIRE_FINISH_CANCELLED ? METRIC_requests_cancelled_total
	                                          : METRIC_requests_finished_total,
	    1);
	set_gauges(engine);
	engine->sink.end(engine->sink.context, tag, seq, &end);
}

void engine_cancel_all(struct engine *engine, enum status status)
{
	bool error = status != STATUS_CANCELLED;

	while (engine->active_count > 0) {
		uint32_t handle = engine->active[engine->active_count - 1];
		end_request(engine, handle, error ? WIRE_FINISH_ERROR : WIRE_FINISH_CANCELLED, error ? status : STATUS_OK,
		    engine->sequences[handle].generated);
	}
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

/* What the world says about one request since the last step; may end it. */
static void poll_request(struct engine *engine, uint32_t handle, uint64_t now_ns)
{
	const struct engine_sink *sink = &engine->sink;
	struct sequence          *sequence = &engine->sequences[handle];
	uint32_t                  keep = 0;

	switch (sink->control(sink->context, sequence->tag, &keep)) {
	case ENGINE_CONTROL_CANCEL:
		end_request(engine, handle, WIRE_FINISH_CANCELLED, STATUS_OK, sequence->generated);
		return;
	case ENGINE_CONTROL_STOP:
		if (keep > sequence->generated)
			keep = sequence->generated;
		count(engine, METRIC_overshoot_tokens_total, sequence->generated - keep);
		end_request(engine, handle, WIRE_FINISH_STOP, STATUS_OK, keep);
		return;
	case ENGINE_CONTROL_NONE:
		break;
	}
	if (sequence->deadline_ns && now_ns >= sequence->deadline_ns) {
		end_request(engine, handle, WIRE_FINISH_ERROR, STATUS_TIMEOUT, sequence->generated);
		return;
	}
	if (!sequence->started && now_ns - sequence->arrival_ns >= engine->options.max_queue_wait_ns) {
		end_request(engine, handle, WIRE_FINISH_ERROR, STATUS_UNAVAILABLE, sequence->generated);
		return;
	}
	if (sink->may_publish(sink->context, sequence->tag, 1)) {
		sequence->paused = false;
	} else if (!sequence->paused) {
		sequence->paused = true;
		sequence->paused_since_ns = now_ns;
	} else if (now_ns - sequence->paused_since_ns >= engine->options.slow_client_timeout_ns) {
		count(engine, METRIC_slow_clients_total, 1);
		end_request(engine, handle, WIRE_FINISH_ERROR, STATUS_SLOW_CLIENT, sequence->generated);
		return;
	}
	sched_set_paused(engine->sched, handle, sequence->paused);
	engine->paused += sequence->paused;
}

/* Gives and takes blocks as the plan says.  A policy that admits what does not fit is a fault of this program. */
static enum status apply_plan(struct engine *engine, const struct sched_plan *plan, struct error *error)
{
	for (uint32_t i = 0; i < plan->evicted_count; i++)
		kv_table_free(engine->pool, &engine->sequences[plan->evicted[i]].table);
	for (uint32_t i = 0; i < plan->count; i++) {
		struct sequence *sequence = &engine->sequences[plan->items[i].handle];
		enum status      status;

		if (!plan->items[i].admitted)
			continue;
		sequence->started = true;
		status = kv_table_grow(engine->pool, &sequence->table, (uint64_t)sequence->prompt_tokens + sequence->max_tokens);
		if (status)
			return error_set(error, status == STATUS_FULL ? STATUS_INTERNAL : status,
			    "request %llu was admitted without room for %u tokens: %u KV blocks are free", (unsigned long long)sequence->id,
			    sequence->prompt_tokens + sequence->max_tokens, kv_pool_free_blocks(engine->pool));
	}
	return STATUS_OK;
}

/* Fills the arrays of the step: rows of a sequence lie together, sequences in the order of the plan. */
static void fill_batch(struct engine *engine, const struct sched_plan *plan, struct batch *ret)
{
	struct batch batch = {
		.rows = plan->rows,
		.sequence_count = plan->count,
		.tokens = engine->tokens,
		.positions = engine->positions,
		.sequences = engine->parts,
		.logit_rows = engine->logit_rows,
	};
	uint32_t row = 0;

	for (uint32_t i = 0; i < plan->count; i++) {
		const struct sched_item *item = &plan->items[i];
		const struct sequence   *sequence = &engine->sequences[item->handle];
		struct batch_sequence   *part = &engine->parts[i];

		*part = (struct batch_sequence){
			.first_row = row, .rows = item->rows, .context = item->start + item->rows, .blocks = sequence->table.count
		};
		for (uint32_t g = 0; g < engine->kv_groups; g++)
			part->block_table[g] = sequence->table.blocks;
		for (uint32_t position = item->start; position < item->start + item->rows; position++, row++) {
			engine->tokens[row] = sequence->tokens[position];
			engine->positions[row] = (int32_t)position;
			engine->kv_slots[row] = kv_table_slot(engine->pool, &sequence->table, position);
		}
		if (!item->sampled)
			continue;
		engine->logit_rows[batch.logit_row_count] = (int32_t)row - 1;
		engine->samples[batch.logit_row_count] = (struct sample_row){
			.logit_row = batch.logit_row_count,
			.position = item->start + item->rows,
			.generated = sequence->generated,
			.tag = sequence->id,
			.params = sequence->sampling,
		};
		batch.logit_row_count++;
	}
	for (uint32_t g = 0; g < engine->kv_groups; g++)
		batch.kv_slots[g] = engine->kv_slots;
	*ret = batch;
}

static enum status run_batch(struct engine *engine, const struct batch *batch, struct error *error)
{
	const struct backend_ops *ops = engine->backend->ops;
	enum status               status;

	status = model_forward(engine->model, batch);
	if (!status && batch->logit_row_count)
		status = ops->sample(engine->backend, engine->samples, batch->logit_row_count, engine->vocab_limit);
	if (status)
		return error_set(error, status, "backend %s failed to launch a step of %u rows: %s", ops->name, batch->rows,
		    status_text(status));
	return ops->wait(engine->backend, batch->logit_row_count ? engine->ids : NULL, batch->logit_row_count, error);
}

enum status engine_warm_up(struct engine *engine, uint32_t rows, uint64_t *ret_row_ns, struct error *error)
{
	struct kv_table       table = { 0 };
	struct batch_sequence part = { 0 };
	struct batch          batch = { .sequence_count = 1, .tokens = engine->tokens, .positions = engine->positions,
		.sequences = &part };
	uint64_t              begin = clock_now_ns();
	enum status           status;

	rows = rows < engine->options.step_tokens ? rows : engine->options.step_tokens;
	rows = rows < engine->max_context ? rows : engine->max_context;
	status = kv_table_grow(engine->pool, &table, rows);
	if (status)
		return error_set(error, status, "no KV blocks for a warm-up of %u rows", rows);
	for (uint32_t i = 0; i < rows; i++) {
		engine->tokens[i] = 0;
		engine->positions[i] = (int32_t)i;
		engine->kv_slots[i] = kv_table_slot(engine->pool, &table, i);
	}
	batch.rows = part.rows = part.context = rows;
	part.blocks = table.count;
	for (uint32_t g = 0; g < engine->kv_groups; g++) {
		part.block_table[g] = table.blocks;
		batch.kv_slots[g] = engine->kv_slots;
	}
	status = run_batch(engine, &batch, error);
	kv_table_free(engine->pool, &table);
	if (!status)
		*ret_row_ns = (clock_now_ns() - begin) / rows;
	return status;
}

static bool is_eos(const struct engine *engine, int32_t id)
{
	for (size_t i = 0; i < engine->options.eos_count; i++)
		if (engine->options.eos[i] == id)
			return true;
	return false;
}

/* One id came back for HANDLE.  Returns the number of tokens the sequence grew by. */
static uint32_t take_id(struct engine *engine, uint32_t handle, int32_t id)
{
	struct sequence *sequence = &engine->sequences[handle];

	if (id < 0 || (uint32_t)id >= engine->vocab_limit) { /* its logits were not finite */
		end_request(engine, handle, WIRE_FINISH_ERROR, STATUS_INTERNAL, sequence->generated);
		return 0;
	}
	if (!sequence->ignore_eos && is_eos(engine, id)) {
		end_request(engine, handle, WIRE_FINISH_STOP, STATUS_OK, sequence->generated);
		return 0;
	}
	count(engine, METRIC_generated_tokens_total, 1);
	sequence->tokens[sequence->prompt_tokens + sequence->generated] = id;
	sched_confirm(engine->sched, handle, 1);
	engine->sink.token(engine->sink.context, sequence->tag, sequence->generated++, id);
	if (sequence->generated == sequence->max_tokens)
		end_request(engine, handle, WIRE_FINISH_LENGTH, STATUS_OK, sequence->generated);
	return 1;
}

/* Counters first: whoever hears of an end finds them right. */
static uint32_t publish(struct engine *engine, const struct sched_plan *plan)
{
	uint32_t sampled = 0, tokens = 0;

	for (uint32_t i = 0; i < plan->count; i++) {
		const struct sched_item *item = &plan->items[i];
		uint32_t                 prompt_tokens = engine->sequences[item->handle].prompt_tokens;

		if (item->start < prompt_tokens) {
			uint32_t rest = prompt_tokens - item->start;
			count(engine, METRIC_prompt_tokens_total, rest < item->rows ? rest : item->rows);
		}
		if (item->sampled)
			tokens += take_id(engine, item->handle, engine->ids[sampled++]);
		else
			sched_confirm(engine->sched, item->handle, 0);
	}
	return tokens;
}

enum status engine_step(struct engine *engine, uint64_t now_ns, struct engine_step_stats *ret, struct error *error)
{
	uint64_t          begin = clock_now_ns(), launched, waited;
	struct sched_plan plan;
	struct batch      batch;
	uint32_t          tokens;
	enum status       status;

	engine->paused = 0;
	for (uint32_t i = engine->active_count; i-- > 0;) /* backwards: an end moves the last one into the gap */
		poll_request(engine, engine->active[i], now_ns);
	sched_plan(engine->sched, kv_pool_free_blocks(engine->pool), now_ns, &plan);
	status = apply_plan(engine, &plan, error);
	if (status)
		return status;
	if (plan.count == 0) {
		set_gauges(engine);
		return STATUS_AGAIN;
	}
	fill_batch(engine, &plan, &batch);
	if (engine->sink.launch)
		engine->sink.launch(engine->sink.context, batch.rows);
	launched = clock_now_ns();
	status = run_batch(engine, &batch, error);
	if (status)
		return status;
	waited = clock_now_ns();
	tokens = publish(engine, &plan);
	set_gauges(engine);
	*ret = (struct engine_step_stats){
		.rows = plan.rows,
		.sequences = plan.count,
		.tokens = tokens,
		.model_ns = waited - launched,
		.overhead_ns = clock_now_ns() - begin - (waited - launched),
	};
	return STATUS_OK;
}

uint32_t engine_running(const struct engine *engine) { return sched_running(engine->sched); }
uint32_t engine_waiting(const struct engine *engine) { return sched_waiting(engine->sched); }
uint32_t engine_paused(const struct engine *engine) { return engine->paused; }
