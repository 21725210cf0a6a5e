/* engine_slots.c: owns which sequence has which of the sampler's slots, and what a slot is told when it changes hands.  Does
 * not own what slots hold (model/backend.h) nor penalties.
 *
 * A slot goes with the right to run: a sequence takes one when it first draws, and leaves it when it ends or is preempted;
 * so max_running of them are enough.  One that draws again after a preemption tells its new slot all that it drew before:
 * it has come back by then, because the scheduler readmits nobody whom a step under way names.  In between the backend
 * counts by itself.
 *
 * Invariants: no two sequences that have not ended have the same slot; a sequence has one only if its request needs it. */
#include "engine/engine_internal.h"

#include <math.h>
#include <stdlib.h>

enum status engine_slots_alloc(struct engine *engine)
{
	uint32_t count = engine->options.max_running;

	engine->unused_slots = calloc(count, sizeof *engine->unused_slots);
	if (!engine->unused_slots)
		return STATUS_NOMEM;
	for (uint32_t i = 0; i < count; i++)
		engine->unused_slots[i] = count - i; /* as in sample_row, the lowest first */
	engine->unused_slot_count = count;
	return STATUS_OK;
}

void engine_slots_free(struct engine *engine) { free(engine->unused_slots); }

static bool needs_slot(const struct sample_params *sampling, const struct engine_lists *lists)
{
	return sample_params_need_slot(sampling) || lists->bias_count > 0;
}

bool engine_slots_is_stop(const struct request *request, int32_t id)
{
	for (uint32_t i = 0; i < request->lists.stop_count; i++)
		if (request->lists.stop_ids[i] == id)
			return true;
	return false;
}

/* ---- a request's lists ------------------------------------------------------------------------------------------------ */

static enum status check_id(const struct engine *engine, const char *field, int32_t id, struct error *error)
{
	if (id >= 0 && (uint32_t)id < engine->vocab_limit)
		return STATUS_OK;
	return error_set_param(error, STATUS_INVALID, field, "%s: id %d, allowed are 0…%u", field, id, engine->vocab_limit - 1);
}

enum status engine_slots_check(const struct engine *engine, const struct engine_request *request, struct error *error)
{
	const struct engine_lists *lists = &request->lists;
	const struct backend_ops  *ops = engine->backend->ops;
	enum status                status = STATUS_OK;

	if (request->sampling.logprobs > SAMPLE_TOP_MAX + 1)
		return error_set_param(error, STATUS_INVALID, "top_logprobs", "top_logprobs = %u, at most %d are given",
		    request->sampling.logprobs - 1, SAMPLE_TOP_MAX);
	if (lists->bias_count > SAMPLE_BIAS_MAX || lists->stop_count > WIRE_STOP_IDS_MAX ||
	    lists->allowed_count > WIRE_ALLOWED_IDS_MAX || lists->think_open_count > WIRE_THINK_IDS_MAX ||
	    lists->think_close_count > WIRE_THINK_IDS_MAX)
		return error_set(error, STATUS_LIMIT, "%u biases, %u stop ids and %u allowed ids, at most %d, %d and %d are taken",
		    lists->bias_count, lists->stop_count, lists->allowed_count, SAMPLE_BIAS_MAX, WIRE_STOP_IDS_MAX, WIRE_ALLOWED_IDS_MAX);
	if ((!ops->sample_slot && needs_slot(&request->sampling, lists)) || (!ops->read_logprobs && request->sampling.logprobs))
		return error_set(error, STATUS_UNSUPPORTED, "backend %s draws without penalties, biases and log probabilities", ops->name);
	for (uint32_t i = 0; i < lists->bias_count && !status; i++) {
		status = check_id(engine, "logit_bias", lists->bias[i].id, error);
		if (!status && !isfinite(lists->bias[i].add))
			status = error_set_param(error, STATUS_INVALID, "logit_bias", "logit_bias of id %d is not finite", lists->bias[i].id);
	}
	for (uint32_t i = 0; i < lists->stop_count && !status; i++)
		status = check_id(engine, "stop_token_ids", lists->stop_ids[i], error);
	for (uint32_t i = 0; i < lists->allowed_count && !status; i++)
		status = check_id(engine, "allowed_token_ids", lists->allowed_ids[i], error);
	for (uint32_t i = 0; i < lists->think_open_count && !status; i++)
		status = check_id(engine, "thinking_token_budget", lists->think_open[i], error);
	for (uint32_t i = 0; i < lists->think_close_count && !status; i++)
		status = check_id(engine, "thinking_token_budget", lists->think_close[i], error);
	return status;
}

enum status engine_slots_mask(const struct engine *engine, struct request *request)
{
	size_t words = ((size_t)engine->vocab_limit + 31) / 32;

	if (request->lists.allowed_count == 0)
		return STATUS_OK;
	request->mask = calloc(words, sizeof *request->mask);
	if (!request->mask)
		return STATUS_NOMEM;
	for (uint32_t i = 0; i < request->lists.allowed_count; i++)
		request->mask[request->lists.allowed_ids[i] / 32] |= UINT32_C(1) << request->lists.allowed_ids[i] % 32;
	return STATUS_OK;
}

/* ---- slots ------------------------------------------------------------------------------------------------------------ */

uint32_t engine_slots_take(struct engine *engine, uint32_t handle, struct step *step)
{
	struct sequence      *sequence = &engine->sequences[handle];
	const struct request *request = &engine->requests[sequence->request];

	if (sequence->slot || !needs_slot(&request->sampling, &request->lists))
		return sequence->slot;
	sequence->slot = engine->unused_slots[--engine->unused_slot_count];
	step->fresh[step->fresh_count++] = handle;
	return sequence->slot;
}

void engine_slots_leave(struct engine *engine, struct sequence *sequence)
{
	if (sequence->slot)
		engine->unused_slots[engine->unused_slot_count++] = sequence->slot;
	sequence->slot = 0;
}

/* What min_tokens bans: the model's eos ids as far as there is room, and the request's own. */
static uint32_t list_bans(const struct engine *engine, const struct request *request, int32_t ret[SAMPLE_BANS_MAX])
{
	uint32_t count = 0;

	if (request->sampling.min_tokens == 0)
		return 0;
	for (size_t i = 0; i < engine->options.eos_count && count < SAMPLE_BANS_MAX - WIRE_STOP_IDS_MAX; i++)
		if (engine->options.eos[i] >= 0 && (uint32_t)engine->options.eos[i] < engine->vocab_limit)
			ret[count++] = engine->options.eos[i];
	for (uint32_t i = 0; i < request->lists.stop_count; i++)
		ret[count++] = request->lists.stop_ids[i];
	return count;
}

enum status engine_slots_fill(struct engine *engine, const struct step *step)
{
	enum status status = STATUS_OK;

	for (uint32_t i = 0; i < step->fresh_count && !status; i++) {
		const struct sequence *sequence = &engine->sequences[step->fresh[i]];
		const struct request  *request = &engine->requests[sequence->request];
		int32_t                bans[SAMPLE_BANS_MAX];
		struct sample_slot     slot = {
			.prompt = request->prompt, .prompt_tokens = request->prompt_tokens,
			.drawn = sequence->ids, .drawn_tokens = sequence->generated,
			.bias = request->lists.bias, .bias_count = request->lists.bias_count,
			.bans = bans, .ban_count = list_bans(engine, request, bans),
		};

		status = engine->backend->ops->sample_slot(engine->backend, sequence->slot - 1, &slot);
	}
	return status;
}
