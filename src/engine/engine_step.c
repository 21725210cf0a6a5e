/* engine_step.c: owns the body of one step.  Does not own requests (engine.c), policy (sched.c) nor the mathematics.
 *
 *   poll ──► plan ──► launch forward ──► launch sample ──► wait ──► publish
 *   │        │        model_forward      one draw per      │        token() or end()
 *   │        sched    rows of all        sequence whose    │
 *   controls,         sequences          last row is in    ids come back
 *   slow clients,                        the batch
 *   credit
 *
 * With a depth of 2 the wait is for the step before, so that the device always has one to do:
 *
 *   device   ├──── N − 1 ────┼────── N ──────┼──── N + 1 ────┤
 *   host     plan N │ publish N − 2 │ plan N + 1 │ publish N − 1 │ plan N + 2
 *                   └ launch N                   └ launch N + 1
 *
 * What step N draws is not known when N + 1 is planned.  So a decode in N + 1 names the draw instead of an id (backend.h),
 * and counts as one more token wherever counts matter.  A sequence that ends with the draw has a row too many in N + 1:
 * its answer is dropped when it comes, and blocks that N + 1 names are not given away before.
 *
 * Invariants: the steps of the ring are under way from `oldest` on, in order; a sequence's in_flight is the number of them
 * that name it; the arrays of a step and the block tables it points to stay as they are until it has come back; nothing is
 * allocated in a step but the block table of a sequence that starts. */
#include "base/clock.h"
#include "engine/engine_internal.h"

#include <stdlib.h>

/* ---- the ring of steps ---------------------------------------------------------------------------------------------- */

enum status engine_step_alloc(const struct engine *engine, struct step *step)
{
	size_t rows = engine->options.step_tokens, sequences = engine->options.max_running, draws = engine->draws_max;

	step->items = calloc(sequences, sizeof *step->items);
	step->tokens = calloc(rows, sizeof *step->tokens);
	step->positions = calloc(rows, sizeof *step->positions);
	step->kv_slots = calloc(rows, sizeof *step->kv_slots);
	step->parts = calloc(sequences, sizeof *step->parts);
	step->logit_rows = calloc(draws, sizeof *step->logit_rows);
	step->ids = calloc(draws, sizeof *step->ids);
	step->samples = calloc(draws, sizeof *step->samples);
	step->fresh = calloc(sequences, sizeof *step->fresh);
	step->copy_from = calloc(sequences, sizeof *step->copy_from);
	step->copy_to = calloc(sequences, sizeof *step->copy_to);
	return step->items && step->tokens && step->positions && step->kv_slots && step->parts && step->logit_rows && step->ids &&
	    step->samples && step->fresh && step->copy_from && step->copy_to ? STATUS_OK : STATUS_NOMEM;
}

void engine_step_free(struct step *step)
{
	free(step->items);
	free(step->tokens);
	free(step->positions);
	free(step->kv_slots);
	free(step->parts);
	free(step->logit_rows);
	free(step->ids);
	free(step->samples);
	free(step->fresh);
	free(step->copy_from);
	free(step->copy_to);
}

enum status engine_steps_alloc(struct engine *engine)
{
	enum status status = STATUS_OK;

	for (uint32_t i = 0; i < engine->depth && !status; i++)
		status = engine_step_alloc(engine, &engine->steps[i]);
	return status;
}

void engine_steps_free(struct engine *engine)
{
	for (uint32_t i = 0; i < SCHED_DEPTH_MAX; i++)
		engine_step_free(&engine->steps[i]);
}

/* A step that names HANDLE has come back or was given up. */
static void land(struct engine *engine, uint32_t handle, uint32_t draws)
{
	struct sequence *sequence = &engine->sequences[handle];

	sequence->drawing -= draws;
	if (--sequence->in_flight > 0)
		return;
	if (sequence->ended) {
		engine_release(engine, handle);
	} else if (sequence->lost) {
		kv_table_free(engine->pool, &sequence->table);
		sequence->lost = false;
	}
}

void engine_steps_abandon(struct engine *engine)
{
	struct error ignored;

	if (engine->outstanding > 0) /* a fault has been told, or will be in vain */
		engine->backend->ops->wait(engine->backend, NULL, 0, &ignored);
	for (; engine->outstanding > 0; engine->outstanding--, engine->oldest = (engine->oldest + 1) % engine->depth) {
		const struct step *step = &engine->steps[engine->oldest];
		for (uint32_t i = 0; i < step->count; i++)
			land(engine, step->items[i].handle, step->items[i].draws);
	}
}

/* ---- poll ------------------------------------------------------------------------------------------------------------ */

/* Ends what the driver wants ended.  False when that was the whole request. */
static bool poll_controls(struct engine *engine, uint32_t index)
{
	const struct engine_sink *sink = &engine->sink;
	struct request           *request = &engine->requests[index];
	uint32_t                  keep = 0, generated, live = 0, next;

	for (uint32_t h = request->first; h != ENGINE_NONE; h = next) {
		struct sequence *sequence = &engine->sequences[h];

		next = sequence->next_choice;
		switch (sink->control(sink->context, request->tag, sequence->choice, &keep)) {
		case ENGINE_CONTROL_CANCEL:
			engine_end_request(engine, index, WIRE_FINISH_CANCELLED, STATUS_OK);
			return false;
		case ENGINE_CONTROL_STOP:
			if (request->forked < request->choices) { /* nothing was drawn yet, and the others would wait for this one */
				engine_end_request(engine, index, WIRE_FINISH_STOP, STATUS_OK);
				return false;
			}
			generated = sequence->generated;
			keep = keep < generated ? keep : generated;
			engine_count(engine, METRIC_overshoot_tokens_total, generated - keep);
			engine_end_choice(engine, h, WIRE_FINISH_STOP, STATUS_OK, keep);
			continue;
		case ENGINE_CONTROL_NONE:
			live++;
		}
	}
	return live > 0;
}

/* What the world says about one request since the last step; may end it. */
static void poll_request(struct engine *engine, uint32_t index, uint64_t now_ns)
{
	const struct engine_sink *sink = &engine->sink;
	struct request           *request = &engine->requests[index];
	uint32_t                  events = 0, live = 0;

	if (!poll_controls(engine, index))
		return;
	for (uint32_t h = request->first; h != ENGINE_NONE; h = engine->sequences[h].next_choice, live++)
		events += engine->sequences[h].drawing + 1; /* on their way, and the next */
	request->may_draft = engine->draft_tokens &&
	    sink->may_publish(sink->context, request->tag, events + live * engine->draft_tokens);
	if (request->may_draft || sink->may_publish(sink->context, request->tag, events)) {
		request->paused = false;
	} else if (!request->paused) {
		request->paused = true;
		request->paused_since_ns = now_ns;
	} else if (now_ns - request->paused_since_ns >= engine->options.slow_client_timeout_ns) {
		engine_count(engine, METRIC_slow_clients_total, 1);
		engine_end_request(engine, index, WIRE_FINISH_ERROR, STATUS_SLOW_CLIENT);
		return;
	}
	for (uint32_t h = request->first; h != ENGINE_NONE; h = engine->sequences[h].next_choice) {
		sched_trace_set_paused(engine->record, engine->sched, h, request->paused);
		engine->paused += request->paused;
	}
}

/* ---- plan ------------------------------------------------------------------------------------------------------------ */

/* What waited too long was never served: unavailable; anything else that expires is too late for its deadline. */
static void expire(struct engine *engine, uint32_t handle, uint64_t now_ns)
{
	const struct sequence *sequence = &engine->sequences[handle];
	const struct request  *request = &engine->requests[sequence->request];
	bool                   late = request->deadline_ns && (request->planned_ns || now_ns >= request->deadline_ns ||
	                              now_ns - request->arrival_ns < engine->options.max_queue_wait_ns);
	enum status            status = late ? STATUS_TIMEOUT : STATUS_UNAVAILABLE;

	if (request->forked < request->choices)
		engine_end_request(engine, sequence->request, WIRE_FINISH_ERROR, status);
	else
		engine_end_choice(engine, handle, WIRE_FINISH_ERROR, status, sequence->generated);
}

static void evict(struct engine *engine, uint32_t handle)
{
	struct sequence *sequence = &engine->sequences[handle];

	if (sequence->in_flight)
		sequence->lost = true;
	else
		kv_table_free(engine->pool, &sequence->table);
	engine_slots_leave(engine, sequence);
	sequence->preemptions++;
	sequence->preempted_tokens += sequence->computed;
	sequence->computed = 0;
}

/* Gives HANDLE the blocks of ITEM; a last one that it shares is copied before the step. */
static enum status take_blocks(struct engine *engine, struct step *step, const struct sched_item *item, uint32_t *copies)
{
	struct sequence      *sequence = &engine->sequences[item->handle];
	const struct request *request = &engine->requests[sequence->request];
	uint64_t              tokens = (uint64_t)item->blocks * engine->options.block_size;
	int32_t               from = -1, to = -1;
	enum status           status;

	status = kv_table_reserve(engine->pool, &sequence->table, (uint64_t)request->prompt_tokens + request->max_tokens);
	if (!status && item->admitted && item->start % engine->options.block_size != 0)
		status = kv_table_own_last(engine->pool, &sequence->table, &from, &to);
	if (!status)
		status = kv_table_grow(engine->pool, &sequence->table, tokens);
	if (from == to)
		return status;
	step->copy_from[*copies] = from;
	step->copy_to[(*copies)++] = to;
	return status;
}

/* Carries out the plan in tables and blocks.  A plan that takes more than there is is a fault of this program. */
static enum status apply_plan(struct engine *engine, struct step *step, const struct sched_plan *plan, uint64_t now_ns,
    struct error *error)
{
	uint32_t    copies = 0;
	enum status status;

	for (uint32_t i = 0; i < plan->evicted_count; i++)
		evict(engine, plan->evicted[i]);
	for (uint32_t i = 0; i < plan->expired_count; i++)
		expire(engine, plan->expired[i], now_ns);
	for (uint32_t i = 0; i < plan->count; i++) {
		const struct sched_item *item = &plan->items[i];
		struct sequence         *sequence = &engine->sequences[item->handle];
		struct request          *request = &engine->requests[sequence->request];

		if (!request->planned_ns)
			request->planned_ns = now_ns ? now_ns : 1;
		status = take_blocks(engine, step, item, &copies);
		if (status)
			return error_set(error, status == STATUS_FULL ? STATUS_INTERNAL : status,
			    "request %llu is to have %u KV blocks: it has %u, and %u are free", (unsigned long long)request->id, item->blocks,
			    sequence->table.count, kv_pool_free_blocks(engine->pool));
	}
	for (uint32_t g = 0; g < engine->kv_groups && copies > 0; g++) {
		status = engine->backend->ops->kv_copy(engine->backend, g, step->copy_from, step->copy_to, copies);
		if (status)
			return error_set(error, status, "backend %s failed to copy %u KV blocks", engine->backend->ops->name, copies);
	}
	return STATUS_OK;
}

/* ---- launch ---------------------------------------------------------------------------------------------------------- */

int32_t engine_token_at(const struct request *request, const struct sequence *sequence, uint32_t position)
{
	if (position < request->prompt_tokens)
		return request->prompt[position];
	position -= request->prompt_tokens;
	return position < sequence->generated ? sequence->ids[position] : -1 - (int32_t)sequence->drawn_at;
}

/* The last 1 + drafts rows of ITEM, which end before row END of the step, are to draw a token each. */
static void add_draws(struct engine *engine, struct step *step, const struct sched_item *item, uint32_t end, uint32_t *draws)
{
	struct sequence      *sequence = &engine->sequences[item->handle];
	const struct request *request = &engine->requests[sequence->request];
	uint32_t              slot = engine_slots_take(engine, item->handle, step);

	for (uint32_t i = 0; i <= item->drafts; i++) {
		uint32_t draw = (*draws)++, after = item->drafts - i, position = item->start + item->rows - after;

		step->logit_rows[draw] = (int32_t)(end - 1 - after);
		step->samples[draw] = (struct sample_row){
			.logit_row = draw,
			.choice = sequence->choice,
			.position = position,
			.generated = position - request->prompt_tokens,
			.tag = request->id,
			.slot = slot,
			.mask = engine_think_mask(engine, sequence, position - request->prompt_tokens, i),
			.guesses = sequence->draft.ids,
			.guess_count = i,
			.params = request->sampling,
		};
		sequence->drawn_at = draw;
	}
	sequence->drawing += 1 + item->drafts;
}

/* Fills the arrays of the step: rows of a sequence lie together, sequences in the order of the plan. */
static void fill_step(struct engine *engine, struct step *step, const struct sched_plan *plan)
{
	struct batch batch = {
		.rows = plan->rows,
		.sequence_count = plan->count,
		.tokens = step->tokens,
		.positions = step->positions,
		.sequences = step->parts,
		.logit_rows = step->logit_rows,
	};
	uint32_t row = 0;

	step->fresh_count = 0;
	for (uint32_t i = 0; i < plan->count; i++) {
		const struct sched_item *item = &plan->items[i];
		struct sequence         *sequence = &engine->sequences[item->handle];
		const struct request    *request = &engine->requests[sequence->request];
		uint32_t                 end = item->start + item->rows, guessed = end - item->drafts;

		step->items[i] = (struct step_item){ item->handle, item->start, item->rows, item->sampled ? 1 + item->drafts : 0,
			item->drafts, false };
		step->parts[i] = (struct batch_sequence){
			.first_row = row, .rows = item->rows, .context = end, .blocks = sequence->table.count
		};
		for (uint32_t g = 0; g < engine->kv_groups; g++)
			step->parts[i].block_table[g] = sequence->table.blocks;
		for (uint32_t position = item->start; position < end; position++, row++) {
			step->tokens[row] = position >= guessed ? sequence->draft.ids[position - guessed]
			                                        : engine_token_at(request, sequence, position);
			step->positions[row] = (int32_t)position;
			step->kv_slots[row] = kv_table_slot(engine->pool, &sequence->table, position);
		}
		sequence->in_flight++;
		if (item->sampled)
			add_draws(engine, step, item, row, &batch.logit_row_count);
	}
	for (uint32_t g = 0; g < engine->kv_groups; g++)
		batch.kv_slots[g] = step->kv_slots;
	step->batch = batch;
	step->count = plan->count;
	step->rows = plan->rows;
	step->draws = batch.logit_row_count;
}

static enum status launch(struct engine *engine, struct step *step, struct error *error)
{
	const struct backend_ops *ops = engine->backend->ops;
	enum status               status;

	step->launched_ns = clock_now_ns();
	status = model_forward(engine->model, &step->batch);
	if (!status && step->fresh_count)
		status = engine_slots_fill(engine, step);
	if (!status && step->draws)
		status = ops->sample(engine->backend, step->samples, step->draws, engine->vocab_limit);
	/* A backend that failed for good says why when it is waited for. */
	if (status && ops->wait(engine->backend, NULL, 0, error) == STATUS_OK)
		error_set(error, status, "backend %s failed to launch a step of %u rows: %s", ops->name, step->rows,
		    status_text(status));
	return status;
}

/* ---- publish --------------------------------------------------------------------------------------------------------- */

static bool is_eos(const struct engine *engine, int32_t id)
{
	for (size_t i = 0; i < engine->options.eos_count; i++)
		if (engine->options.eos[i] == id)
			return true;
	return false;
}

/* COUNT ids came back for HANDLE, which has not ended, as draws number DRAW and later of their step.  Returns the number of
 * tokens the sequence grew by. */
static uint32_t take_ids(struct engine *engine, uint32_t handle, const int32_t *ids, uint32_t count, uint32_t draw)
{
	struct sequence       *sequence = &engine->sequences[handle];
	const struct request  *request = &engine->requests[sequence->request];
	struct sample_logprobs logprobs[1 + SPECULATE_MOST];
	bool                   has_logprobs = request->sampling.logprobs > 0;
	enum wire_finish       finish = WIRE_FINISH_COUNT; /* it goes on */
	uint32_t               tokens = 0;
	bool                   bad = false; /* a row of logits was not finite */

	while (tokens < count && finish == WIRE_FINISH_COUNT) {
		int32_t id = ids[tokens];

		if (id < 0 || (uint32_t)id >= engine->vocab_limit) { /* its logits were not finite */
			finish = WIRE_FINISH_ERROR;
			bad = true;
		} else if ((!request->ignore_eos && is_eos(engine, id)) || engine_slots_is_stop(request, id)) {
			finish = WIRE_FINISH_STOP;
		} else if (has_logprobs && engine->backend->ops->read_logprobs(engine->backend, draw + tokens, &logprobs[tokens])) {
			finish = WIRE_FINISH_ERROR;
		} else if (sequence->generated + ++tokens == request->max_tokens) {
			finish = WIRE_FINISH_LENGTH;
		}
	}
	if (tokens > 0) {
		engine_count(engine, METRIC_generated_tokens_total, tokens);
		sequence->last_ns = engine->computed_ns;
		if (sequence->generated == 0)
			sequence->first_ns = engine->computed_ns;
		sched_trace_confirm(engine->record, engine->sched, handle, tokens);
	}
	for (uint32_t i = 0; i < tokens; i++) {
		sequence->ids[sequence->generated] = ids[i];
		engine_think_take(request, &sequence->think, sequence->generated, ids[i]);
		engine->sink.token(engine->sink.context, request->tag, sequence->choice, sequence->generated++, ids[i],
		    has_logprobs ? &logprobs[i] : NULL);
	}
	engine_count(engine, METRIC_logits_not_finite_total, bad);
	engine->bad_step = bad ? engine->retired : 0;
	if (finish != WIRE_FINISH_COUNT)
		engine_end_choice(engine, handle, finish, finish == WIRE_FINISH_ERROR ? STATUS_INTERNAL : STATUS_OK,
		    sequence->generated);
	engine->bad_step = 0;
	return tokens;
}

static void count_prompt(struct engine *engine, struct request *request, uint32_t end)
{
	end = end < request->prompt_tokens ? end : request->prompt_tokens;
	if (end > request->counted) {
		engine_count(engine, METRIC_prompt_tokens_total, end - request->counted);
		request->counted = end;
	}
}

/* Counters first: whoever hears of an end finds them right.  A request forks before its first choice may end. */
static uint32_t publish(struct engine *engine, struct step *step)
{
	uint32_t drawn = 0, tokens = 0;

	for (uint32_t i = 0; i < step->count; i++) {
		struct step_item       *item = &step->items[i];
		struct sequence        *sequence = &engine->sequences[item->handle];
		const int32_t          *ids = step->ids + drawn;
		uint32_t                end = item->start + item->rows, draw = drawn, given;

		drawn += item->draws;
		if (!sequence->ended) {
			struct request *request = &engine->requests[sequence->request];

			given = item->draws ? engine_verify(engine, item, ids) : 0;
			end -= item->draws - given; /* guesses that were wrong */
			count_prompt(engine, request, end);
			if (!sequence->lost)
				sequence->computed = end;
			if (request->forked < request->choices && end >= request->prompt_tokens && (given == 0 || ids[0] >= 0))
				engine_fork(engine, item->handle);
			if (given == 0)
				sched_trace_confirm(engine->record, engine->sched, item->handle, 0);
			else
				tokens += take_ids(engine, item->handle, ids, given, draw);
		}
		item->stays = !sequence->ended && !sequence->lost;
		land(engine, item->handle, item->draws);
	}
	return tokens;
}

/* Waits for the oldest step under way, and for those after it that the backend cannot tell from it, and publishes them. */
static enum status retire(struct engine *engine, struct engine_step_stats *stats, struct error *error)
{
	const struct backend_ops *ops = engine->backend->ops;
	uint32_t                  steps = 0, rows = 0, sequences = 0;
	struct step              *step;
	uint64_t                  begun, now, ended;
	enum status               status;

	/* Only draws can be waited for one by one; what comes before one is done when it is. */
	do {
		step = &engine->steps[(engine->oldest + steps++) % engine->depth];
	} while (step->draws == 0 && steps < engine->outstanding);
	status = ops->wait(engine->backend, step->draws ? step->ids : NULL, step->draws, error);
	if (status)
		return status;
	now = clock_now_ns();
	step = &engine->steps[engine->oldest];
	begun = step->launched_ns > engine->computed_ns ? step->launched_ns : engine->computed_ns;
	engine->computed_ns = now;
	if (steps == 1)
		speculate_cost_add(&engine->cost, step->rows, now - begun);
	for (; steps > 0; steps--) {
		step = &engine->steps[engine->oldest];
		engine->oldest = (engine->oldest + 1) % engine->depth;
		engine->outstanding--;
		engine->retired++;
		rows += step->rows;
		sequences += step->count;
		stats->tokens += publish(engine, step);
		stats->retired++;
	}
	ended = now;
	if (engine->mtp) { /* one step at a time: its arrays are as they were */
		status = engine_draft_ahead(engine, step, error);
		ended = clock_now_ns();
		stats->model_ns += ended - now;
	}
	sched_trace_feedback(engine->record, engine->sched, rows, sequences, ended - begun);
	return status;
}

/* ---- the step -------------------------------------------------------------------------------------------------------- */

static uint32_t plan_prompt_rows(const struct sched_plan *plan)
{
	uint32_t rows = plan->rows;

	for (uint32_t i = 0; i < plan->count; i++)
		rows -= plan->items[i].sampled ? 1 + plan->items[i].drafts : 0;
	return rows;
}

/* Plans and launches a step if there is something to do. */
static enum status start_step(struct engine *engine, uint64_t now_ns, struct engine_step_stats *stats, struct error *error)
{
	struct step      *step = &engine->steps[(engine->oldest + engine->outstanding) % engine->depth];
	struct sched_plan plan;
	uint64_t          begun;
	enum status       status;

	if (engine->draft_tokens)
		engine_propose(engine);
	sched_trace_plan(engine->record, engine->sched, kv_pool_free_blocks(engine->pool), now_ns, &plan);
	if (engine->sink.planned && (plan.count > 0 || plan.evicted_count > 0 || plan.expired_count > 0))
		engine->sink.planned(engine->sink.context, &plan);
	status = apply_plan(engine, step, &plan, now_ns, error);
	if (status || plan.count == 0)
		return status;
	fill_step(engine, step, &plan);
	engine->prompt_rows = plan_prompt_rows(&plan);
	if (engine->sink.launch)
		engine->sink.launch(engine->sink.context, step->rows);
	begun = clock_now_ns();
	status = launch(engine, step, error);
	stats->model_ns += clock_now_ns() - begun;
	stats->rows = step->rows;
	stats->sequences = step->count;
	engine->outstanding++;
	return status;
}

enum status engine_step(struct engine *engine, uint64_t now_ns, struct engine_step_stats *ret, struct error *error)
{
	uint64_t                 begin = clock_now_ns(), waited;
	struct engine_step_stats stats = { 0 };
	uint32_t                 before = engine->outstanding;
	enum status              status;

	engine->paused = 0;
	for (uint32_t i = engine->active_count; i-- > 0;) /* backwards: an end moves the last one into the gap */
		poll_request(engine, engine->active[i], now_ns);
	status = start_step(engine, now_ns, &stats, error);
	if (status)
		return status;
	if (engine->outstanding == 0) {
		engine_set_gauges(engine);
		return STATUS_AGAIN;
	}
	if (engine->outstanding == engine->depth || engine->outstanding == before) {
		waited = clock_now_ns();
		status = retire(engine, &stats, error);
		if (status)
			return status;
		stats.model_ns += engine->computed_ns - waited;
	}
	engine_set_gauges(engine);
	stats.overhead_ns = clock_now_ns() - begin - stats.model_ns;
	*ret = stats;
	return STATUS_OK;
}

/* ---- warm-up --------------------------------------------------------------------------------------------------------- */

/* The first row of STEP draws with all that a sampler can do, the chunk itself being the prompt. */
static enum status warm_sampler(struct engine *engine, struct step *step)
{
	const struct backend_ops *ops = engine->backend->ops;
	struct sample_slot        slot = { .prompt = step->tokens, .prompt_tokens = step->batch.rows };

	if (!ops->sample_slot || !ops->read_logprobs)
		return STATUS_OK;
	step->samples[0].slot = 1;
	step->samples[0].params.presence = 1;
	step->samples[0].params.logprobs = 2;
	return ops->sample_slot(engine->backend, 0, &slot);
}

/* A step that belongs to nobody: SEQUENCES parts of ROWS rows each, which all end at CONTEXT and have the one TABLE: what they
 * write is the same. */
static enum status warm_step(struct engine *engine, const struct kv_table *table, uint32_t sequences, uint32_t rows,
    uint32_t context, struct error *error)
{
	struct step *step = &engine->steps[engine->oldest];
	uint64_t     begin;
	enum status  status;

	step->batch = (struct batch){ .rows = sequences * rows, .sequence_count = sequences, .tokens = step->tokens,
		.positions = step->positions, .sequences = step->parts, .logit_row_count = sequences, .logit_rows = step->logit_rows };
	for (uint32_t s = 0; s < sequences; s++) {
		step->parts[s] = (struct batch_sequence){ .first_row = s * rows, .rows = rows, .context = context,
			.blocks = table->count };
		for (uint32_t g = 0; g < engine->kv_groups; g++)
			step->parts[s].block_table[g] = table->blocks;
		for (uint32_t i = 0; i < rows; i++) {
			step->tokens[s * rows + i] = 0;
			step->positions[s * rows + i] = (int32_t)(context - rows + i);
			step->kv_slots[s * rows + i] = kv_table_slot(engine->pool, table, context - rows + i);
		}
		step->logit_rows[s] = (int32_t)((s + 1) * rows - 1);
		step->samples[s] = (struct sample_row){ .logit_row = s, .position = context,
			.params = { .temperature = 1, .top_p = 0.9f } };
	}
	for (uint32_t g = 0; g < engine->kv_groups; g++)
		step->batch.kv_slots[g] = step->kv_slots;
	step->rows = sequences * rows;
	step->draws = sequences;
	step->fresh_count = 0;
	begin = clock_now_ns();
	status = rows == context ? warm_sampler(engine, step) : STATUS_OK;
	if (!status)
		status = launch(engine, step, error);
	if (!status)
		status = engine->backend->ops->wait(engine->backend, step->ids, sequences, error);
	if (!status)
		speculate_cost_add(&engine->cost, step->rows, clock_now_ns() - begin);
	return status;
}

/* A chunk of a prompt, then decodes of one, of a few and of as many sequences as may run. */
enum status engine_warm_up(struct engine *engine, uint32_t rows, uint64_t *ret_row_ns, struct error *error)
{
	const uint32_t  few = 8, most = engine->options.max_running, decodes[] = { 1, few < most ? few : 0, most > 1 ? most : 0 };
	struct kv_table table = { 0 };
	uint64_t        begin = clock_now_ns(), chunk_ns;
	enum status     status;

	rows = rows < engine->options.step_tokens ? rows : engine->options.step_tokens;
	rows = rows < engine->max_context ? rows : engine->max_context;
	status = kv_table_grow(engine->pool, &table, rows);
	if (status)
		return error_set(error, status, "no KV blocks for a warm-up of %u rows", rows);
	status = warm_step(engine, &table, 1, rows, rows, error);
	chunk_ns = clock_now_ns() - begin;
	for (size_t i = 0; i < sizeof decodes / sizeof *decodes && !status; i++)
		if (decodes[i])
			status = warm_step(engine, &table, decodes[i], 1, rows, error);
	if (!status && engine->draft_tokens && engine->draft_tokens < rows)
		status = warm_step(engine, &table, 1, 1 + engine->draft_tokens, rows, error);
	kv_table_free(engine->pool, &table);
	if (!status)
		*ret_row_ns = chunk_ns / rows;
	return status;
}
