/* engine.c: owns requests and their choices from submit to end, and the memory plan.  engine_step.c has the step.  Neither
 * owns policy (sched.c decides who runs), lanes or threads (the sink does), nor the mathematics (model and backend).
 *
 *      request ──┬── sequence, choice 0     computes the prompt; when that has been done, the request forks:
 *      (prompt)  ├── sequence, choice 1     shares its blocks, has its own copy of the last if that is not full, and
 *                └── …                      computes only the last token of the prompt again, for its own first draw
 *
 * A sequence that ends while a step names it is told to the sink at once, but keeps its blocks and its number until that
 * step has come back: what is drawn for it there is thrown away.
 *
 * Invariants: an accepted request gets exactly one end() for each choice, after its last token(); a request is in `active`
 * exactly while one of its choices has not ended; a block is freed only when no step that names it is under way, and only
 * through engine_release or the loss of its sequence's blocks. */
#include "engine/engine_internal.h"

#include "base/checked.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void engine_count(struct engine *engine, enum metric id, uint64_t n)
{
	if (engine->metrics)
		metrics_add(engine->metrics, id, n);
}

static void gauge(struct engine *engine, enum metric id, uint64_t n)
{
	if (engine->metrics)
		metrics_set(engine->metrics, id, n);
}

void engine_set_gauges(struct engine *engine)
{
	gauge(engine, METRIC_sequences_running, sched_running(engine->sched));
	gauge(engine, METRIC_sequences_waiting, sched_waiting(engine->sched));
	gauge(engine, METRIC_sequences_paused, engine->paused);
	gauge(engine, METRIC_kv_blocks_used, kv_pool_total_blocks(engine->pool) - kv_pool_free_blocks(engine->pool));
}

enum {
	CHOICES_SHARE = 4, /* sequences that further choices may have, per running one */
	DRAFT_ROWS = 64    /* of a step: with more streams than that guesses do not pay */
};

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
	plan->scratch_bytes = model_scratch_bytes(engine->model, o->step_tokens, engine->draws_max);
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
	plan->depth = engine->depth;
	plan->draft_rows = engine->draft_rows;
	plan->mtp = engine->mtp;
	return STATUS_OK;
}

static struct sched_options sched_options(const struct engine *engine, uint32_t blocks)
{
	const struct engine_options *o = &engine->options;

	return (struct sched_options){
		.policy = o->policy,
		.capacity = engine->sequence_count,
		.max_running = o->max_running,
		.step_tokens = o->step_tokens,
		.block_size = o->block_size,
		.blocks = blocks,
		.depth = engine->depth,
		.long_prompt_tokens = o->long_prompt_tokens,
		.max_queue_wait_ns = o->max_queue_wait_ns,
		.itl_target_ns = o->itl_target_ns,
		.draft_rows = engine->draft_rows,
	};
}

/* Choices that have ended may wait for two steps; each request has at least one, and running ones some more. */
static enum status allocate(struct engine *engine, uint32_t blocks)
{
	struct sched_options         sched;
	const struct engine_options *o = &engine->options;
	uint64_t                     sequences = (uint64_t)engine->request_count + (uint64_t)o->max_running * CHOICES_SHARE;
	enum status                  status;

	if (sequences > UINT32_MAX / 2)
		return STATUS_LIMIT;
	engine->promised = 0;
	engine->sequence_count = (uint32_t)sequences + o->max_running * SCHED_DEPTH_MAX;
	engine->requests = calloc(engine->request_count, sizeof *engine->requests);
	engine->active = calloc(engine->request_count, sizeof *engine->active);
	engine->sequences = calloc(engine->sequence_count, sizeof *engine->sequences);
	if (!engine->requests || !engine->active || !engine->sequences)
		return STATUS_NOMEM;
	for (uint32_t i = 0; i < engine->request_count; i++)
		engine->active[i] = i;
	engine->unused = ENGINE_NONE;
	for (uint32_t i = engine->sequence_count; i-- > 0;) {
		engine->sequences[i].next_choice = engine->unused;
		engine->unused = i;
	}
	status = engine_steps_alloc(engine);
	if (!status)
		status = engine_slots_alloc(engine);
	if (!status)
		status = engine_drafts_alloc(engine);
	if (!status)
		status = kv_pool_create(blocks, o->block_size, &engine->pool);
	if (status)
		return status;
	sched = sched_options(engine, blocks);
	return sched_create(&sched, &engine->sched);
}

static enum status begin_record(struct engine *engine, uint32_t blocks, struct error *error)
{
	struct sched_options sched = sched_options(engine, blocks);
	FILE                *stream = fopen(engine->options.record, "we");
	enum status          status;

	if (!stream)
		return error_set(error, STATUS_IO, "cannot write the recording %s: %s", engine->options.record, strerror(errno));
	status = sched_trace_create(stream, ENGINE_RECORD_MAX, &sched, &engine->record);
	return status ? error_set(error, status, "cannot begin the recording %s: %s", engine->options.record, status_text(status))
	              : STATUS_OK;
}

/* Guesses need what was drawn before them, so there are none where steps overlap. */
static void plan_drafts(struct engine *engine)
{
	const struct engine_options *o = &engine->options;
	uint64_t                     rows = (uint64_t)o->max_running * o->draft_tokens;

	if (o->speculation != ENGINE_SPECULATION_OFF && engine->depth == 1) {
		engine->draft_tokens = o->draft_tokens;
		engine->draft_rows = rows < DRAFT_ROWS ? (uint32_t)rows : DRAFT_ROWS;
		engine->mtp = model_info(engine->model)->draft_layers > 0 && o->speculation != ENGINE_SPECULATION_NGRAM && rows > 0;
	}
	engine->draws_max = o->max_running + engine->draft_rows;
	if (engine->draws_max > o->step_tokens)
		engine->draws_max = o->step_tokens;
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
	    options->max_waiting > UINT32_MAX - options->max_running - 1 || options->depth > SCHED_DEPTH_MAX)
		return error_set(error, STATUS_INVALID,
		    "max_running = %u, max_waiting = %u, step_tokens = %u, block_size = %u, depth = %u: step_tokens must be at least "
		    "max_running, depth at most %d, and only max_waiting and depth may be 0",
		    options->max_running, options->max_waiting, options->step_tokens, options->block_size, options->depth, SCHED_DEPTH_MAX);
	if (options->speculation != ENGINE_SPECULATION_OFF && (options->draft_tokens > SPECULATE_MOST ||
	    options->ngram_least == 0 || options->ngram_least > options->ngram_most || options->ngram_most > SPECULATE_NGRAM_MOST))
		return error_set(error, STATUS_INVALID,
		    "draft_tokens = %u, ngram_min = %u, ngram_max = %u: at most %d drafts, 1 ≤ ngram_min ≤ ngram_max ≤ %d",
		    options->draft_tokens, options->ngram_least, options->ngram_most, SPECULATE_MOST, SPECULATE_NGRAM_MOST);
	if (options->speculation == ENGINE_SPECULATION_MTP && !info->draft_layers)
		return error_set_param(error, STATUS_UNSUPPORTED, "speculation", "speculation = mtp: this %s has no layer that drafts",
		    info->architecture);
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
	engine->request_count = options->max_running + options->max_waiting;
	engine->depth = options->depth ? options->depth : backend->ops->overlaps ? SCHED_DEPTH_MAX : 1;
	engine->vocab_limit = options->vocab_limit && options->vocab_limit < info->vocab ? options->vocab_limit : info->vocab;

	plan_drafts(engine);

	status = plan_memory(engine, &plan, error);
	if (status)
		goto fail;
	status = allocate(engine, plan.blocks);
	if (status) {
		error_set(error, status, "no memory for the tables of %u requests and %u KV blocks", engine->request_count, plan.blocks);
		goto fail;
	}
	status = model_plan(model, options->step_tokens, engine->draws_max, options->block_size, plan.blocks, error);
	if (!status && options->record && *options->record)
		status = begin_record(engine, plan.blocks, error);
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

static void free_lists(struct engine_lists *lists)
{
	free(lists->bias);
	free(lists->stop_ids);
	free(lists->allowed_ids);
	free(lists->think_open);
	free(lists->think_close);
	*lists = (struct engine_lists){ 0 };
}

void engine_request_clear(struct engine_request *request)
{
	free(request->prompt);
	free_lists(&request->lists);
	request->prompt = NULL;
}

static void drop_request(struct request *request)
{
	free(request->prompt);
	free(request->mask);
	free(request->think_masks);
	free_lists(&request->lists);
	*request = (struct request){ 0 };
}

void engine_destroy(struct engine *engine)
{
	if (!engine)
		return;
	engine_steps_abandon(engine);
	for (uint32_t i = 0; i < engine->active_count; i++)
		drop_request(&engine->requests[engine->active[i]]);
	for (uint32_t i = 0; engine->sequences && i < engine->sequence_count; i++) {
		if (engine->pool)
			kv_table_free(engine->pool, &engine->sequences[i].table);
		free(engine->sequences[i].ids);
	}
	sched_trace_destroy(engine->record);
	sched_destroy(engine->sched);
	kv_pool_destroy(engine->pool);
	engine_steps_free(engine);
	engine_slots_free(engine);
	engine_drafts_free(engine);
	free(engine->requests);
	free(engine->active);
	free(engine->sequences);
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
	if (request->choices > engine->options.max_running)
		return error_set_param(error, STATUS_LIMIT, "n", "n = %u: at most %u answers are computed at a time", request->choices,
		    engine->options.max_running);
	if (engine->active_count == engine->request_count ||
	    (request->choices ? request->choices : 1) >
	        engine->sequence_count - engine->options.max_running * SCHED_DEPTH_MAX - engine->promised)
		return error_set(error, STATUS_FULL, "%u requests with %u answers are running or waiting, no more are taken",
		    engine->active_count, engine->promised);
	return engine_slots_check(engine, request, error);
}

/* A sequence for the next choice of request INDEX, known to the scheduler from now on, with the first CACHED tokens of its
 * prompt in TABLE, which it takes over. */
static enum status begin_choice(struct engine *engine, uint32_t index, struct kv_table *table, uint32_t cached)
{
	struct request  *request = &engine->requests[index];
	uint32_t         handle = engine->unused;
	struct sequence *sequence = &engine->sequences[handle];
	int32_t         *ids = malloc(request->max_tokens * sizeof *ids);

	if (!ids)
		return STATUS_NOMEM;
	engine->unused = sequence->next_choice;
	*sequence = (struct sequence){ .request = index, .choice = request->forked++, .next_choice = request->first, .ids = ids,
		.computed = cached };
	if (table)
		sequence->table = *table;
	request->first = handle;
	sched_trace_add(engine->record, engine->sched, handle,
	    &(struct sched_job){
	        .length = request->prompt_tokens,
	        .max_new = request->max_tokens,
	        .cached = cached,
	        .begun = request->forked > 1,
	        .class = request->priority,
	        .key = request->key,
	        .arrival_ns = request->arrival_ns,
	        .deadline_ns = request->deadline_ns,
	    });
	return STATUS_OK;
}

enum status engine_submit(struct engine *engine, struct engine_request *request, uint64_t now_ns, struct error *error)
{
	enum status     status = check_request(engine, request, error);
	struct request  given = { .prompt = request->prompt, .lists = request->lists };
	uint32_t        index;
	struct request *accepted;

	request->prompt = NULL;
	request->lists = (struct engine_lists){ 0 };
	engine_count(engine, METRIC_requests_total, 1);
	if (status)
		goto fail;
	index = engine->active[engine->active_count];
	accepted = &engine->requests[index];
	*accepted = (struct request){
		.id = request->id,
		.tag = request->tag,
		.arrival_ns = now_ns,
		.deadline_ns = request->deadline_ns,
		.key = request->key,
		.priority = request->priority,
		.prompt = given.prompt,
		.lists = given.lists,
		.prompt_tokens = request->prompt_tokens,
		.max_tokens = request->max_tokens ? request->max_tokens : engine->max_context - request->prompt_tokens,
		.choices = request->choices ? request->choices : 1,
		.first = ENGINE_NONE,
		.ignore_eos = request->ignore_eos,
		.sampling = request->sampling,
		.active_at = engine->active_count,
	};
	status = engine_slots_mask(engine, accepted);
	given.mask = accepted->mask;
	if (!status)
		status = engine_think_masks(engine, accepted);
	given.think_masks = accepted->think_masks;
	if (!status)
		status = begin_choice(engine, index, NULL, 0);
	if (status) {
		error_set(error, status, "no memory for %u tokens", accepted->max_tokens);
		goto fail;
	}
	engine->active_count++;
	engine->promised += accepted->choices;
	return STATUS_OK;
fail:
	drop_request(&given);
	engine_count(engine, METRIC_requests_failed_total, 1);
	return status;
}

static struct engine_request_stats request_stats(const struct request *request, const struct sequence *sequence)
{
	struct engine_request_stats stats = { .cached_tokens = request->cached };

	if (request->planned_ns)
		stats.queue_ns = request->planned_ns - request->arrival_ns;
	if (!sequence)
		return stats;
	stats.preemptions = sequence->preemptions;
	stats.preempted_tokens = sequence->preempted_tokens;
	if (sequence->first_ns) {
		stats.prefill_ns = sequence->first_ns - request->planned_ns;
		stats.decode_ns = sequence->last_ns - sequence->first_ns;
	}
	return stats;
}

void engine_release(struct engine *engine, uint32_t handle)
{
	struct sequence *sequence = &engine->sequences[handle];

	kv_table_free(engine->pool, &sequence->table);
	free(sequence->ids);
	*sequence = (struct sequence){ .next_choice = engine->unused };
	engine->unused = handle;
}

/* The last choice of request INDEX has ended: nothing is left of it but what the caller holds. */
static void forget_request(struct engine *engine, uint32_t index)
{
	struct request *request = &engine->requests[index];
	uint32_t        last = engine->active[--engine->active_count];

	engine->active[request->active_at] = last;
	engine->requests[last].active_at = request->active_at;
	engine->active[engine->active_count] = index;
	engine->promised -= request->choices;
	drop_request(request);
}

/* Everything is given back, and counters and gauges are right, before anybody learns of the end.  SEQUENCE is a copy. */
static void tell_end(struct engine *engine, uint32_t index, const struct sequence *sequence, struct engine_end *end)
{
	struct request *request = &engine->requests[index];
	uint64_t        tag = request->tag;

	end->prompt_tokens = request->prompt_tokens;
	end->stats = request_stats(request, sequence);
	end->step = engine->bad_step;
	end->last = ++request->ended == request->choices;
	if (end->last) {
		engine_count(engine,
		    end->finish == WIRE_FINISH_ERROR           ? METRIC_requests_failed_total
		        : end->finish == WIRE_FINISH_CANCELLED ? METRIC_requests_cancelled_total
		                                               : METRIC_requests_finished_total,
		    1);
		forget_request(engine, index);
	}
	engine_set_gauges(engine);
	engine->sink.end(engine->sink.context, tag, sequence ? sequence->generated : 0, end);
}

/* Without memory for a choice, that one ends with an error, and its neighbours go on. */
void engine_fork(struct engine *engine, uint32_t handle)
{
	struct request *request = &engine->requests[engine->sequences[handle].request];
	uint32_t        index = engine->sequences[handle].request;

	sched_trace_share(engine->record, engine->sched, handle, request->prompt_tokens - 1);
	while (request->forked < request->choices) {
		struct kv_table table = { 0 };
		uint32_t        cached = request->prompt_tokens - 1;
		enum status     status = kv_table_reserve(engine->pool, &table, (uint64_t)request->prompt_tokens + request->max_tokens);

		if (!status)
			status = kv_table_share(engine->pool, &engine->sequences[handle].table, cached, &table);
		if (!status)
			status = begin_choice(engine, index, &table, cached);
		if (!status) {
			request->cached += cached;
			continue;
		}
		kv_table_free(engine->pool, &table);
		tell_end(engine, index, NULL,
		    &(struct engine_end){ .finish = WIRE_FINISH_ERROR, .status = status, .choice = request->forked++ });
	}
}

void engine_end_choice(struct engine *engine, uint32_t handle, enum wire_finish finish, enum status status,
    uint32_t completion)
{
	struct sequence  *sequence = &engine->sequences[handle], copy = *sequence;
	struct engine_end end = { .finish = finish, .status = status, .choice = copy.choice, .completion_tokens = completion };
	uint32_t         *at = &engine->requests[copy.request].first;

	while (*at != handle)
		at = &engine->sequences[*at].next_choice;
	*at = copy.next_choice;
	if (finish == WIRE_FINISH_STOP || finish == WIRE_FINISH_LENGTH)
		sched_trace_learn(engine->record, engine->sched, copy.generated);
	sched_trace_remove(engine->record, engine->sched, handle);
	engine_slots_leave(engine, sequence);
	sequence->ended = true;
	if (sequence->in_flight == 0)
		engine_release(engine, handle);
	tell_end(engine, copy.request, &copy, &end);
}

void engine_end_request(struct engine *engine, uint32_t index, enum wire_finish finish, enum status status)
{
	struct request *request = &engine->requests[index];
	uint32_t        unborn = request->choices - request->forked, live = 0;

	for (uint32_t h = request->first; h != ENGINE_NONE; h = engine->sequences[h].next_choice)
		live++;
	for (; unborn > 0; unborn--) { /* a live sequence exists, so the request is not forgotten here */
		struct engine_end end = { .finish = finish, .status = status, .choice = request->forked++ };
		tell_end(engine, index, NULL, &end);
	}
	for (; live > 0; live--)
		engine_end_choice(engine, request->first, finish, status, engine->sequences[request->first].generated);
}

void engine_cancel_all(struct engine *engine, enum status status)
{
	bool error = status != STATUS_CANCELLED;

	engine_steps_abandon(engine);
	while (engine->active_count > 0)
		engine_end_request(engine, engine->active[engine->active_count - 1],
		    error ? WIRE_FINISH_ERROR : WIRE_FINISH_CANCELLED, error ? status : STATUS_OK);
}

uint32_t engine_running(const struct engine *engine) { return sched_running(engine->sched); }
uint32_t engine_waiting(const struct engine *engine) { return sched_waiting(engine->sched); }
uint32_t engine_paused(const struct engine *engine) { return engine->paused; }
uint32_t engine_free_blocks(const struct engine *engine) { return kv_pool_free_blocks(engine->pool); }
void     engine_sched_stats(const struct engine *engine, struct sched_stats *ret) { sched_stats(engine->sched, ret); }

uint64_t engine_request_id(const struct engine *engine, uint32_t handle)
{
	return engine->requests[engine->sequences[handle].request].id;
}

void engine_census(const struct engine *engine, void (*visit)(void *context, uint64_t tag, bool running), void *context)
{
	for (uint32_t i = 0; i < engine->active_count; i++) {
		const struct request *request = &engine->requests[engine->active[i]];
		bool                  running = false;

		for (uint32_t h = request->first; h != ENGINE_NONE; h = engine->sequences[h].next_choice)
			running = running || engine->sequences[h].table.count > 0;
		visit(context, request->tag, running);
	}
}
