/* engine_draft.c: owns the guesses of sequences and what became of them.  Does not own the search for them, nor the choice of
 * how many (speculate.c), nor who is planned (sched.c).
 *
 * A decode of token t at position p computes one row.  With guesses g1 … gk at what follows it computes k + 1, all of whose
 * logits are drawn from, as if the guesses before them were what the sequence has:
 *
 *      row        t      g1     g2     g3
 *      position   p      p + 1  p + 2  p + 3
 *      draw       y1     y2     y3     y4         y1 = g1, y2 = g2, y3 ≠ g3: the sequence grows by y1 y2 y3
 *                                                 and y4, which came after a wrong guess, is thrown away
 *
 * Why this is right.  The sampler draws y1 from the model's own distribution p, with the random number of (seed, position,
 * choice), whatever was guessed: a guess is accepted if it happens to be what was drawn.  That is with probability p(g1), and
 * when it is not, y1 is distributed as p without g1, renormalised: the rule of rejection sampling (Leviathan et al. 2023)
 * for a guess without a distribution of its own.  More than that holds: y1 is the very token that would have been drawn
 * without guesses, since neither p (a row's bits do not depend on the batch) nor the random number know of them.  So
 * speculation changes no answer, greedy or sampled, and a guess may be made in any way and dropped at any time.
 *
 * Rows of wrong guesses have written keys and values behind the sequence's end.  Nobody reads them: attention ends at the
 * context that a step names, and the next rows of the sequence overwrite them.  The blocks stay with the sequence, which
 * grows into them.
 *
 * Guesses are looked up in every step, also when none is taken: what is drawn says whether the first of them would have
 * been right, so how often guesses are right is known for nothing, and speculation begins when a text begins to repeat itself.
 *
 * Invariant: `draft` of a sequence holds guesses at the tokens after its last one from a plan until the step of that plan has
 * come back; `computed` never counts a row of a guess that was not drawn. */
#include "base/clock.h"
#include "engine/engine_internal.h"

#include <stdlib.h>
#include <string.h>

enum { TRY_STEPS = 256 }; /* after so many steps without guesses some are tried: times may have changed */

bool engine_speculation_parse(const char *word, enum engine_speculation *ret)
{
	static const char *const words[] = { "off", "ngram", "mtp", "auto" };

	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (!strcmp(word, words[i])) {
			*ret = (enum engine_speculation)i;
			return true;
		}
	return false;
}

enum status engine_drafts_alloc(struct engine *engine)
{
	if (engine->draft_tokens == 0)
		return STATUS_OK;
	engine->offers = calloc(engine->options.max_running, sizeof *engine->offers);
	engine->offered = calloc(engine->options.max_running, sizeof *engine->offered);
	if (!engine->offers || !engine->offered)
		return STATUS_NOMEM;
	if (!engine->mtp)
		return STATUS_OK;
	engine->hidden_rows = calloc(engine->options.step_tokens, sizeof *engine->hidden_rows);
	return engine->hidden_rows ? engine_step_alloc(engine, &engine->ahead) : STATUS_NOMEM;
}

void engine_drafts_free(struct engine *engine)
{
	free(engine->offers);
	free(engine->offered);
	free(engine->hidden_rows);
	engine_step_free(&engine->ahead);
}

/* Will a plan that names it compute the row of its last token, and no other? */
static bool decodes(const struct request *request, const struct sequence *sequence)
{
	return !request->paused && sequence->in_flight == 0 && sequence->generated > 0 && sequence->table.count > 0 &&
	    request->prompt_tokens + sequence->generated - sequence->computed == 1;
}

static float rate_of(const struct engine *engine, const struct sequence *sequence, const struct draft *draft)
{
	return speculate_rate_among(&sequence->rates[draft->kind], &engine->rates[draft->kind][draft->grade]);
}

/* How many of its guesses are right, probably. */
static float worth(const struct engine *engine, const struct sequence *sequence, const struct draft *draft)
{
	float rate = rate_of(engine, sequence, draft), probability = 1, sum = 0;

	for (unsigned i = 0; i < draft->count; i++)
		sum += probability *= rate;
	return sum;
}

/* Guesses that SEQUENCE may make use of. */
static uint32_t wanted(const struct engine *engine, const struct request *request, const struct sequence *sequence)
{
	uint32_t left = request->max_tokens - sequence->generated - 1;

	if (!request->may_draft)
		return 0;
	return left < engine->draft_tokens ? left : engine->draft_tokens;
}

/* Looks for what followed the latest tokens before; what the model has guessed stays unless that is better. */
static bool guess(const struct engine *engine, const struct request *request, struct sequence *sequence)
{
	struct speculate_history history = { request->prompt, sequence->ids, request->prompt_tokens, sequence->generated };
	uint32_t                 want = wanted(engine, request, sequence), grade = 0;
	struct draft             draft = { .count = (uint8_t)want, .kind = SPECULATE_NGRAM };

	if (sequence->draft.kind != SPECULATE_MTP)
		sequence->draft.count = 0;
	if (sequence->draft.count > want)
		sequence->draft.count = (uint8_t)want;
	if (want > 0 && engine->options.speculation != ENGINE_SPECULATION_MTP)
		grade = speculate_ngram(&history, engine->options.ngram_least, engine->options.ngram_most, want, draft.ids);
	draft.grade = (uint8_t)grade;
	if (grade > 0 && worth(engine, sequence, &draft) > worth(engine, sequence, &sequence->draft))
		sequence->draft = draft;
	return sequence->draft.count > 0;
}

/* How many of the COUNT offers are taken: all, or those that pay beside DECODES decodes. */
static void choose(struct engine *engine, uint32_t decoding, uint32_t count, double make_ns)
{
	uint32_t taken = 0;

	if (engine->options.speculation != ENGINE_SPECULATION_AUTO) {
		for (uint32_t i = 0; i < count; i++)
			engine->offers[i].take = engine->offers[i].most;
		return;
	}
	speculate_choose(&engine->cost, decoding, engine->prompt_rows, make_ns, engine->offers, count, engine->draft_rows);
	for (uint32_t i = 0; i < count; i++)
		taken += engine->offers[i].take;
	if (taken > 0) {
		engine->unused_drafts = 0;
	} else if (++engine->unused_drafts == TRY_STEPS) {
		engine->unused_drafts = 0;
		engine->offers[0].take = engine->offers[0].most;
	}
}

void engine_propose(struct engine *engine)
{
	uint32_t decoding = 0, count = 0;

	for (uint32_t i = 0; i < engine->active_count; i++) {
		const struct request *request = &engine->requests[engine->active[i]];

		for (uint32_t h = request->first; h != ENGINE_NONE; h = engine->sequences[h].next_choice) {
			struct sequence *sequence = &engine->sequences[h];

			if (!decodes(request, sequence))
				continue;
			decoding++;
			if (!guess(engine, request, sequence))
				continue;
			engine->offered[count] = h;
			engine->offers[count++] = (struct speculate_offer){ .rate = rate_of(engine, sequence, &sequence->draft),
				.most = sequence->draft.count };
		}
	}
	if (count == 0)
		return;
	choose(engine, decoding, count, 0);
	for (uint32_t i = 0; i < count; i++)
		if (engine->offers[i].take)
			sched_trace_set_drafts(engine->record, engine->sched, engine->offered[i], engine->offers[i].take);
}

uint32_t engine_verify(struct engine *engine, const struct step_item *item, const int32_t *ids)
{
	static const enum metric accepted[SPECULATE_KINDS][SPECULATE_MOST] = {
		{ METRIC_ngram_accepted_1, METRIC_ngram_accepted_2, METRIC_ngram_accepted_3, METRIC_ngram_accepted_4,
		    METRIC_ngram_accepted_5, METRIC_ngram_accepted_6, METRIC_ngram_accepted_7 },
		{ METRIC_mtp_accepted_1, METRIC_mtp_accepted_2, METRIC_mtp_accepted_3, METRIC_mtp_accepted_4,
		    METRIC_mtp_accepted_5, METRIC_mtp_accepted_6, METRIC_mtp_accepted_7 },
	};
	struct sequence    *sequence = &engine->sequences[item->handle];
	const struct draft *draft = &sequence->draft;
	bool                mtp = draft->kind == SPECULATE_MTP;
	uint32_t            given = 1, right, checked;

	while (given <= item->drafts && ids[given - 1] == draft->ids[given - 1])
		engine_count(engine, accepted[draft->kind][given++ - 1], 1);
	if (item->drafts) {
		engine_count(engine, mtp ? METRIC_mtp_drafts : METRIC_ngram_drafts, 1);
		engine_count(engine, mtp ? METRIC_mtp_draft_tokens : METRIC_ngram_draft_tokens, item->drafts);
	}
	if (draft->count == 0)
		return given;
	/* Whatever was drawn after right guesses says whether the next one was right, taken along or not. */
	checked = given < draft->count ? given : draft->count;
	right = checked - (ids[checked - 1] != draft->ids[checked - 1]);
	speculate_rate_add(&sequence->rates[draft->kind], right, checked);
	speculate_rate_add(&engine->rates[draft->kind][draft->grade], right, checked);
	sequence->draft.count = 0;
	return given;
}

/* ---- the model's own guesses ------------------------------------------------------------------------------------------
 *
 * The drafting layer has a cache of its own.  Its entry at position p is made of the hidden state at p and of the token at
 * p + 1, so it is made after the step that computed p has come back, for every row that stayed, guesses that were wrong
 * left out: one call with all of these (FIRST), which also guesses the token after the newest one.  Further calls, a row
 * for each sequence, go on from their own hidden states; what they write is overwritten by the next FIRST.
 *
 *      forward   rows p − 2, p − 1, p       draws token p + 1
 *      first     the same rows, with the tokens p − 1, p, p + 1       guesses p + 2
 *      second    a row at p + 1 with the guess at p + 2               guesses p + 3
 *
 * Guesses are drawn as tokens are, with the random numbers of their positions: where model and drafting layer are of one
 * mind, they agree in what they draw, too.  Penalties and biases, which slots hold, are left out. */

/* Adds a row of SEQUENCE at POSITION to the step AHEAD. */
static void add_row(struct engine *engine, const struct sequence *sequence, uint32_t position, int32_t token, uint32_t hidden_row)
{
	struct step *ahead = &engine->ahead;
	uint32_t     row = ahead->rows++;

	ahead->tokens[row] = token;
	ahead->positions[row] = (int32_t)position;
	ahead->kv_slots[row] = kv_table_slot(engine->pool, &sequence->table, position);
	engine->hidden_rows[row] = (int32_t)hidden_row;
}

/* The last ROWS rows are those of HANDLE, and its context ends there. */
static void add_part(struct engine *engine, uint32_t handle, uint32_t rows, uint32_t context)
{
	const struct sequence *sequence = &engine->sequences[handle];
	struct batch_sequence *part = &engine->ahead.parts[engine->ahead.count++];

	*part = (struct batch_sequence){ .first_row = engine->ahead.rows - rows, .rows = rows, .context = context,
		.blocks = sequence->table.count };
	for (uint32_t g = 0; g < engine->kv_groups; g++)
		part->block_table[g] = sequence->table.blocks;
}

/* The last row is to guess the token at POSITION for HANDLE. */
static void add_draw(struct engine *engine, uint32_t handle, uint32_t position)
{
	const struct sequence *sequence = &engine->sequences[handle];
	const struct request  *request = &engine->requests[sequence->request];
	struct step           *ahead = &engine->ahead;
	uint32_t               draw = ahead->draws++;

	ahead->items[draw] = (struct step_item){ .handle = handle, .start = position };
	ahead->logit_rows[draw] = (int32_t)ahead->rows - 1;
	ahead->samples[draw] = (struct sample_row){ .logit_row = draw, .choice = sequence->choice, .position = position,
		.generated = position - request->prompt_tokens, .tag = request->id, .mask = request->mask, .params = request->sampling };
	ahead->samples[draw].params.logprobs = 0;
}

static void begin_ahead(struct engine *engine) { engine->ahead.rows = engine->ahead.count = engine->ahead.draws = 0; }

/* Lets the model draft the step AHEAD; what it drew is in its ids. */
static enum status run_ahead(struct engine *engine, bool first, struct error *error)
{
	const struct backend_ops *ops = engine->backend->ops;
	struct step              *ahead = &engine->ahead;
	enum status               status;

	ahead->batch = (struct batch){ .rows = ahead->rows, .sequence_count = ahead->count, .tokens = ahead->tokens,
		.positions = ahead->positions, .sequences = ahead->parts, .logit_row_count = ahead->draws,
		.logit_rows = ahead->logit_rows };
	for (uint32_t g = 0; g < engine->kv_groups; g++)
		ahead->batch.kv_slots[g] = ahead->kv_slots;
	status = model_draft(engine->model, &ahead->batch, engine->hidden_rows, first);
	if (!status && ahead->draws)
		status = ops->sample(engine->backend, ahead->samples, ahead->draws, engine->vocab_limit);
	if (!status)
		return ops->wait(engine->backend, ahead->draws ? ahead->ids : NULL, ahead->draws, error);
	if (ops->wait(engine->backend, NULL, 0, error) == STATUS_OK)
		error_set(error, status, "backend %s failed to draft %u rows: %s", ops->name, ahead->rows, status_text(status));
	return status;
}

/* All rows of STEP that stayed.  Those who go on are offered as many guesses as they want. */
static void fill_first(struct engine *engine, const struct step *step, uint32_t *ret_decoding)
{
	uint32_t row = 0, decoding = 0, count = 0;

	begin_ahead(engine);
	for (uint32_t i = 0; i < step->count; row += step->items[i++].rows) {
		const struct step_item *item = &step->items[i];
		struct sequence        *sequence = &engine->sequences[item->handle];
		const struct request   *request;

		if (!item->stays || sequence->computed <= item->start)
			continue;
		request = &engine->requests[sequence->request];
		for (uint32_t p = item->start; p < sequence->computed; p++)
			add_row(engine, sequence, p, engine_token_at(request, sequence, p + 1), row + p - item->start);
		add_part(engine, item->handle, sequence->computed - item->start, sequence->computed);
		sequence->draft.count = 0;
		if (item->draws == 0)
			continue;
		decoding++;
		if (wanted(engine, request, sequence) == 0)
			continue;
		engine->offered[count] = item->handle;
		engine->offers[count++] = (struct speculate_offer){ .rate = rate_of(engine, sequence,
			    &(struct draft){ .kind = SPECULATE_MTP }), .most = wanted(engine, request, sequence) };
		add_draw(engine, item->handle, sequence->computed + 1);
	}
	*ret_decoding = decoding;
}

/* Of the COUNT draws of a first step only those are made whose offers were taken. */
static void drop_draws(struct engine *engine, uint32_t count)
{
	struct step *ahead = &engine->ahead;

	ahead->draws = 0;
	for (uint32_t i = 0; i < count; i++) {
		engine->sequences[ahead->items[i].handle].draft.most = (uint8_t)engine->offers[i].take;
		if (engine->offers[i].take == 0)
			continue;
		ahead->items[ahead->draws] = ahead->items[i];
		ahead->logit_rows[ahead->draws] = ahead->logit_rows[i];
		ahead->samples[ahead->draws] = ahead->samples[i];
		ahead->samples[ahead->draws].logit_row = ahead->draws;
		ahead->draws++;
	}
}

/* The guesses that came back; those of a sequence whose offer was taken further, and that has a block for it, get another row. */
static void take_guesses(struct engine *engine)
{
	struct step *ahead = &engine->ahead;
	uint32_t     draws = ahead->draws;

	begin_ahead(engine);
	for (uint32_t i = 0; i < draws; i++) { /* what is added overwrites what was read */
		const struct step_item item = ahead->items[i];
		struct sequence       *sequence = &engine->sequences[item.handle];
		struct draft          *draft = &sequence->draft;
		uint32_t               hidden_row = (uint32_t)ahead->logit_rows[i];
		int32_t                id = ahead->ids[i];

		if (id < 0 || (uint32_t)id >= engine->vocab_limit)
			continue;
		draft->kind = SPECULATE_MTP;
		draft->grade = 0;
		draft->ids[draft->count++] = id;
		if (draft->count >= draft->most || item.start - 1 >= sequence->table.count * engine->options.block_size)
			continue;
		add_row(engine, sequence, item.start - 1, id, hidden_row);
		add_part(engine, item.handle, 1, item.start);
		add_draw(engine, item.handle, item.start + 1);
	}
}

enum status engine_draft_ahead(struct engine *engine, const struct step *step, struct error *error)
{
	uint32_t    decoding, count;
	enum status status = STATUS_OK;

	fill_first(engine, step, &decoding);
	count = engine->ahead.draws;
	if (count)
		choose(engine, decoding, count, engine->ahead_ns);
	drop_draws(engine, count);
	for (bool first = true; !status && engine->ahead.rows > 0; first = false) {
		uint64_t begun = clock_now_ns(), took;

		status = run_ahead(engine, first, error);
		took = clock_now_ns() - begun;
		if (!first)
			engine->ahead_ns += ((double)took - engine->ahead_ns) / (engine->ahead_ns > 0 ? 8 : 1);
		if (!status)
			take_guesses(engine);
	}
	return status;
}
