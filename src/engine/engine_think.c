/* engine_think.c: owns the budget of a thought: when it is used up, the ids that close the thought are drawn, whatever the logits
 * say.  Does not know text: thoughts begin and end with lists of ids that the request brings.
 *
 * A draw is forced by a mask that leaves one id, made when the request comes, so that nothing is allocated in a step and a backend
 * needs to know nothing of it.  Which id it is depends on the number of the token alone, so a draw that is lost is drawn again.
 *
 * Steps overlap: with a depth of 2 the token before the one that is planned may not have come back.  A thought that closes by
 * itself with the very last token of its budget may therefore be closed once more; a front drops the second mark.
 *
 * Guesses of a draft are taken for what they say: behind one that closes the thought nothing is forced.
 *
 * Invariant: a thought lasts from `from` until `closed`; `forced` is set at most once. */
#include "engine/engine_internal.h"

#include <stdlib.h>

static size_t mask_words(const struct engine *engine) { return ((size_t)engine->vocab_limit + 31) / 32; }

enum status engine_think_masks(const struct engine *engine, struct request *request)
{
	const struct engine_lists *lists = &request->lists;
	size_t                     words = mask_words(engine);

	if (lists->think_close_count == 0)
		return STATUS_OK;
	request->think_masks = calloc(lists->think_close_count, words * sizeof *request->think_masks);
	if (!request->think_masks)
		return STATUS_NOMEM;
	for (uint32_t i = 0; i < lists->think_close_count; i++)
		request->think_masks[i * words + (uint32_t)lists->think_close[i] / 32] = UINT32_C(1) << lists->think_close[i] % 32;
	return STATUS_OK;
}

/* Is ID the last of LIST, whose ids before it came already? */
static bool complete(uint32_t *matched, const int32_t *list, uint32_t count, int32_t id)
{
	if (list[*matched] != id)
		*matched = 0;
	*matched += list[*matched] == id;
	if (*matched < count)
		return false;
	*matched = 0;
	return true;
}

void engine_think_take(const struct request *request, struct think *think, uint32_t generated, int32_t id)
{
	const struct engine_lists *lists = &request->lists;

	if (lists->think_close_count == 0 || think->closed)
		return;
	if (think->begun || lists->think_open_count == 0) {
		think->closed = complete(&think->matched, lists->think_close, lists->think_close_count, id);
	} else if (complete(&think->matched, lists->think_open, lists->think_open_count, id)) {
		think->begun = true;
		think->from = generated + 1;
	}
}

const uint32_t *engine_think_mask(const struct engine *engine, struct sequence *sequence, uint32_t generated, uint32_t guesses)
{
	const struct request      *request = &engine->requests[sequence->request];
	const struct engine_lists *lists = &request->lists;
	struct think               think = sequence->think;
	uint32_t                   index;

	if (lists->think_close_count == 0 || think.closed)
		return request->mask;
	for (uint32_t i = 0; i < guesses; i++)
		engine_think_take(request, &think, generated - guesses + i, sequence->draft.ids[i]);
	if (think.closed || (!think.begun && lists->think_open_count))
		return request->mask;
	if (!think.forced && generated >= think.from + lists->think_budget) {
		think.forced = 1 + (guesses ? think.from + lists->think_budget : generated);
		if (guesses == 0)
			sequence->think.forced = think.forced;
	}
	if (!think.forced || generated + 1 < think.forced)
		return request->mask;
	index = generated + 1 - think.forced;
	return index < lists->think_close_count ? request->think_masks + index * mask_words(engine) : request->mask;
}
