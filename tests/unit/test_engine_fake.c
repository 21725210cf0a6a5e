/* The fakes of test_engine_fake.h. */
#include "test_engine_fake.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct fake_backend *of(struct backend *b) { return (struct fake_backend *)b; }

static void __attribute__((format(printf, 2, 3))) complain(struct fake_backend *f, const char *format, ...)
{
	va_list args;

	if (*f->complaint)
		return;
	va_start(args, format);
	vsnprintf(f->complaint, sizeof f->complaint, format, args);
	va_end(args);
}

/* ---- mathematics --------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
	return h ^ h >> 29;
}

static int32_t hash_id(uint64_t h, uint64_t seed) { return (int32_t)((mix(h, seed + 1) >> 17) % FAKE_VOCAB); }

/* The id after PERIOD earlier ones, but now and then, as H says, another: an answer that guesses can follow for a while. */
static int32_t repeat_id(uint64_t h, int32_t earlier, uint64_t seed)
{
	return (mix(h, 77) >> 33) % 12 ? earlier : hash_id(h, seed);
}

int32_t fake_next(const int32_t *tokens, uint32_t count, uint64_t seed)
{
	uint64_t h = 0;

	for (uint32_t i = 0; i < count; i++)
		h = mix(h, (uint64_t)tokens[i]);
	return seed & FAKE_REPEATS && count >= FAKE_PERIOD ? repeat_id(h, tokens[count - FAKE_PERIOD], seed) : hash_id(h, seed);
}

uint32_t fake_answer(const int32_t *prompt, uint32_t prompt_tokens, uint64_t seed, uint32_t max, bool ignore_eos,
    int32_t *ret_ids, enum wire_finish *ret_finish)
{
	int32_t  tokens[2 * FAKE_CONTEXT];
	uint32_t n = 0;

	memcpy(tokens, prompt, prompt_tokens * sizeof *tokens);
	*ret_finish = WIRE_FINISH_LENGTH;
	for (; n < max; n++) {
		int32_t id = fake_next(tokens, prompt_tokens + n, seed);
		if (id == FAKE_EOS && !ignore_eos) {
			*ret_finish = WIRE_FINISH_STOP;
			break;
		}
		ret_ids[n] = tokens[prompt_tokens + n] = id;
	}
	return n;
}

/* ---- model ---------------------------------------------------------------------------------------------------------- */

const struct model_info *model_info(const struct model *model) { return &model->info; }

uint64_t model_scratch_bytes(const struct model *model, uint32_t max_rows, uint32_t max_logit_rows)
{
	(void)model;
	return (uint64_t)max_rows * 10 + max_logit_rows;
}

enum status model_plan(struct model *model, uint32_t max_rows, uint32_t max_logit_rows, uint32_t block_size, uint32_t blocks,
    struct error *error)
{
	struct fake_backend *f = model->backend;

	(void)error;
	f->rows_max = max_rows;
	ck_assert_uint_le(max_logit_rows, sizeof f->samples[0].ids / sizeof *f->samples[0].ids);
	f->block_size = block_size;
	f->slots = blocks * block_size;
	f->cache = malloc(f->slots * sizeof *f->cache);
	ck_assert_ptr_nonnull(f->cache);
	memset(f->cache, 0xff, f->slots * sizeof *f->cache);
	f->draft_cache = malloc(f->slots * sizeof *f->draft_cache);
	ck_assert_ptr_nonnull(f->draft_cache);
	memset(f->draft_cache, 0xff, f->slots * sizeof *f->draft_cache);
	return STATUS_OK;
}

/* What a row computes: an id, or a draw of the last sample, which nobody has asked for yet perhaps. */
static int32_t token_of(struct fake_backend *f, int32_t token)
{
	const struct fake_sample *last = &f->samples[(f->sampled + FAKE_SAMPLES - 1) % FAKE_SAMPLES];

	if (token >= 0)
		return token;
	if (f->sampled == 0 || (uint32_t)(-1 - token) >= last->count) {
		complain(f, "token %d of %u draws", token, f->sampled ? last->count : 0);
		return 0;
	}
	f->tokens_ahead++;
	token = last->ids[-1 - token];
	return token < 0 ? 0 : token;
}

static void check_sequence(struct fake_backend *f, const struct batch *batch, const struct batch_sequence *s, uint32_t row)
{
	if (s->first_row != row || s->rows == 0 || s->rows > s->context)
		complain(f, "sequence has rows %u + %u of context %u, expected to begin at %u", s->first_row, s->rows, s->context, row);
	if ((uint64_t)s->blocks * f->block_size < s->context)
		complain(f, "%u blocks for a context of %u", s->blocks, s->context);
	for (uint32_t i = 0; i < s->rows && !*f->complaint; i++) {
		uint32_t position = s->context - s->rows + i;
		int32_t  slot = s->block_table[0][position / f->block_size] * (int32_t)f->block_size + (int32_t)(position % f->block_size);

		if (batch->positions[row + i] != (int32_t)position || batch->kv_slots[0][row + i] != slot || slot < 0 ||
		    (uint32_t)slot >= f->slots)
			complain(f, "row %u: position %d slot %d, expected %u and %d", row + i, batch->positions[row + i],
			    batch->kv_slots[0][row + i], position, slot);
		else
			f->cache[slot] = token_of(f, batch->tokens[row + i]);
	}
}

static void run_forward(struct fake_backend *f, const struct batch *batch)
{
	uint32_t row = 0;

	f->steps++;
	f->batch = *batch;
	f->drafting = false;
	f->kept_rows[0] = batch->rows;
	for (uint32_t i = 0; i < batch->rows; i++) {
		f->kept[0][i] = batch->positions[i];
		f->kept_slots[i] = batch->kv_slots[0][i];
	}
	if (batch->rows == 0 || batch->rows > f->rows_max)
		complain(f, "a step of %u rows", batch->rows);
	for (uint32_t s = 0; s < batch->sequence_count; s++) {
		check_sequence(f, batch, &batch->sequences[s], row);
		row += batch->sequences[s].rows;
	}
	if (row != batch->rows)
		complain(f, "sequences have %u rows, the batch %u", row, batch->rows);
}

/* The drafting layer: its entry at a position is the token after it, of a row whose hidden state is the one of that position. */
enum status model_draft(struct model *model, const struct batch *batch, const int32_t *hidden_rows, bool first)
{
	struct fake_backend *f = model->backend;
	uint32_t             row = 0;

	f->batch = *batch;
	f->drafting = true;
	for (uint32_t i = 0; i < batch->rows && !*f->complaint; i++) {
		int32_t from = hidden_rows[i], slot = batch->kv_slots[0][i];

		if (from < 0 || (uint32_t)from >= f->kept_rows[first ? 0 : 1] || slot < 0 || (uint32_t)slot >= f->slots)
			complain(f, "draft row %u: hidden row %d, slot %d", i, from, slot);
		else if (first ? f->kept[0][from] != batch->positions[i] || f->kept_slots[from] != slot
		               : f->kept[1][from] + 1 != batch->positions[i])
			complain(f, "draft row %u: the hidden state of row %d is not its own", i, from);
		else
			f->draft_cache[slot] = batch->tokens[i];
	}
	for (uint32_t s = 0; s < batch->sequence_count && !*f->complaint; s++) {
		const struct batch_sequence *part = &batch->sequences[s];

		if (part->first_row != row || batch->positions[row + part->rows - 1] + 1 != (int32_t)part->context)
			complain(f, "draft sequence %u: rows %u + %u, context %u", s, part->first_row, part->rows, part->context);
		row += part->rows;
	}
	for (uint32_t i = 0; i < batch->rows; i++)
		f->kept[1][i] = batch->positions[i];
	f->kept_rows[1] = batch->rows;
	return row == batch->rows ? STATUS_OK : STATUS_INVALID;
}

/* Mostly what the model would say, had it the tokens of the drafting layer's cache. */
static int32_t draft_id(struct fake_backend *f, const struct batch_sequence *s, const struct sample_row *row)
{
	int32_t tokens[2 * FAKE_CONTEXT];

	f->drafts++;
	tokens[0] = f->cache[(uint32_t)s->block_table[0][0] * f->block_size];
	for (uint32_t p = 0; p < s->context; p++)
		tokens[p + 1] = f->draft_cache[(uint32_t)s->block_table[0][p / f->block_size] * f->block_size + p % f->block_size];
	if (row->position != s->context + 1 || row->slot)
		complain(f, "a draft for position %llu, context %u, slot %u", (unsigned long long)row->position, s->context, row->slot);
	return mix(row->position, 5) % 7 ? fake_next(tokens, s->context + 1, FAKE_SEED(row->params.seed, row->choice)) : 0;
}

/* ---- backend -------------------------------------------------------------------------------------------------------- */

static enum status memory(struct backend *b, struct backend_memory *ret)
{
	*ret = (struct backend_memory){ of(b)->memory, of(b)->memory };
	return STATUS_OK;
}

static uint64_t kv_bytes(const struct backend *b, const struct kv_group_desc *group)
{
	(void)b;
	return (uint64_t)group->block_size * 100;
}

/* The history of a row with a slot, read from the cache, is what its slot has counted, then its guesses. */
static void check_slot(struct fake_backend *f, const struct sample_row *rows, uint32_t at, const struct batch_sequence *s)
{
	const struct sample_row *row = &rows[at];
	const struct fake_slot  *slot = row->slot ? &f->sampler_slots[row->slot - 1] : NULL;

	if (sample_params_need_slot(&row->params) != !!slot || row->slot > FAKE_SLOTS)
		complain(f, "a row with frequency %g has slot %u", (double)row->params.frequency, row->slot);
	for (uint32_t i = 0; i < at && slot; i++)
		if (rows[i].slot == row->slot && rows[i].guess_count + (at - i) != row->guess_count)
			complain(f, "two rows have slot %u", row->slot);
	if (!slot || slot->lost || *f->complaint)
		return;
	if (slot->count + row->guess_count != row->position)
		complain(f, "slot %u has %u tokens, %u are guessed, the position is %llu", row->slot, slot->count, row->guess_count,
		    (unsigned long long)row->position);
	for (uint32_t p = 0; p < row->position && !*f->complaint; p++)
		if (f->cache[(uint32_t)s->block_table[0][p / f->block_size] * f->block_size + p % f->block_size] !=
		    (p < slot->count ? slot->tokens[p] : row->guesses[p - slot->count]))
			complain(f, "slot %u has another token at %u", row->slot, p);
}

/* Draws are added to slots: of one slot, up to the first that the next row did not guess. */
static void count_draws(struct fake_backend *f, const struct sample_row *rows, uint32_t count, const int32_t *ids)
{
	bool counts = true;

	for (uint32_t i = 0; i < count; i++) {
		struct fake_slot *slot = rows[i].slot ? &f->sampler_slots[rows[i].slot - 1] : NULL;

		counts = rows[i].guess_count == 0 || (counts && ids[i - 1] == rows[i].guesses[rows[i].guess_count - 1]);
		if (!slot || !counts)
			continue;
		slot->lost = slot->lost || ids[i] < 0;
		if (!slot->lost)
			slot->tokens[slot->count++] = ids[i];
	}
}

static void run_slot(struct fake_backend *f, struct fake_op *op)
{
	struct fake_slot *slot = &f->sampler_slots[op->slot];

	memcpy(slot->tokens, op->tokens, op->tokens_count * sizeof *op->tokens);
	slot->count = op->tokens_count;
	slot->lost = false;
	f->slots_set++;
	free(op->tokens);
	op->tokens = NULL;
}

static void run_sample(struct fake_backend *f, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit)
{
	const struct batch *batch = &f->batch;
	struct fake_sample *to = &f->samples[f->sampled++ % FAKE_SAMPLES];

	to->count = count;
	if (count > sizeof to->ids / sizeof *to->ids)
		complain(f, "%u draws", count);
	if (count != batch->logit_row_count || vocab_limit != FAKE_VOCAB)
		complain(f, "%u draws for %u rows of logits", count, batch->logit_row_count);
	for (uint32_t i = 0; i < count && !*f->complaint; i++) {
		const struct batch_sequence *s = batch->sequences;
		uint32_t                     row = (uint32_t)batch->logit_rows[rows[i].logit_row];
		uint64_t                     h = 0, seed = FAKE_SEED(rows[i].params.seed, rows[i].choice);
		int32_t                      id, earlier = 0;

		while (s->first_row + s->rows <= row)
			s++;
		if (f->drafting) {
			to->ids[i] = draft_id(f, s, &rows[i]);
			continue;
		}
		if (row - s->first_row + s->context - s->rows + 1 != rows[i].position)
			complain(f, "draw at position %llu of row %u, context %u", (unsigned long long)rows[i].position, row, s->context);
		f->guesses += row != s->first_row + s->rows - 1;
		for (uint32_t p = 0; p < rows[i].position; p++) {
			int32_t token = f->cache[(uint32_t)s->block_table[0][p / f->block_size] * f->block_size + p % f->block_size];

			h = mix(h, (uint64_t)token);
			earlier = p + FAKE_PERIOD == rows[i].position ? token : earlier;
		}
		id = seed & FAKE_REPEATS && rows[i].position >= FAKE_PERIOD ? repeat_id(h, earlier, seed) : hash_id(h, seed);
		to->ids[i] = rows[i].params.seed == f->nan_seed ? -1 : id;
		to->logprobs[i] = rows[i].params.logprobs;
		check_slot(f, rows, i, s);
	}
	if (!*f->complaint && !f->drafting)
		count_draws(f, rows, count, to->ids);
}

static void run_copy(struct fake_backend *f, int32_t from, int32_t to)
{
	f->copies++;
	for (uint32_t i = 0; i < f->block_size; i++)
		f->cache[(uint32_t)to * f->block_size + i] = f->cache[(uint32_t)from * f->block_size + i];
}

/* ---- the queue: what was enqueued runs when somebody waits for it, or at once --------------------------------------- */

static void run_one(struct fake_backend *f)
{
	struct fake_op *op = &f->queue[f->done++ % FAKE_QUEUE];

	switch (op->kind) {
	case FAKE_FORWARD:
		run_forward(f, &op->batch);
		break;
	case FAKE_SAMPLE:
		run_sample(f, op->rows, op->count, op->vocab_limit);
		break;
	case FAKE_COPY:
		run_copy(f, op->from, op->to);
		break;
	case FAKE_SLOT:
		run_slot(f, op);
		break;
	}
}

static void enqueue(struct fake_backend *f, const struct fake_op *op)
{
	if (f->enqueued - f->done == FAKE_QUEUE)
		complain(f, "more than %d operations are under way", FAKE_QUEUE);
	f->queue[f->enqueued++ % FAKE_QUEUE] = *op;
	f->draws_enqueued += op->kind == FAKE_SAMPLE;
	if (f->draws_enqueued - f->waited > BACKEND_SAMPLES_MAX)
		complain(f, "%u samples are under way", f->draws_enqueued - f->waited);
	while (!f->late && f->done < f->enqueued)
		run_one(f);
}

enum status model_forward(struct model *model, const struct batch *batch)
{
	enqueue(model->backend, &(struct fake_op){ .kind = FAKE_FORWARD, .batch = *batch });
	return STATUS_OK;
}

static enum status sample(struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit)
{
	enqueue(of(b), &(struct fake_op){ .kind = FAKE_SAMPLE, .rows = rows, .count = count, .vocab_limit = vocab_limit });
	return STATUS_OK;
}

static enum status sample_slot(struct backend *b, uint32_t slot, const struct sample_slot *from)
{
	uint32_t count = from->prompt_tokens + from->drawn_tokens;
	int32_t *tokens = malloc((count ? count : 1) * sizeof *tokens);

	ck_assert(tokens && slot < FAKE_SLOTS && count <= 2 * FAKE_CONTEXT);
	memcpy(tokens, from->prompt, from->prompt_tokens * sizeof *tokens);
	if (from->drawn_tokens)
		memcpy(tokens + from->prompt_tokens, from->drawn, from->drawn_tokens * sizeof *tokens);
	enqueue(of(b), &(struct fake_op){ .kind = FAKE_SLOT, .slot = slot, .tokens = tokens, .tokens_count = count });
	return STATUS_OK;
}

/* Made from the id alone, so that the sink can tell. */
static enum status read_logprobs(struct backend *b, uint32_t index, struct sample_logprobs *ret)
{
	const struct fake_sample *last = &of(b)->samples[(of(b)->waited + FAKE_SAMPLES - 1) % FAKE_SAMPLES];

	if (of(b)->waited == 0 || index >= last->count || last->logprobs[index] == 0)
		return STATUS_INVALID;
	ret->drawn = (float)-last->ids[index];
	ret->count = last->logprobs[index] - 1;
	for (uint32_t i = 0; i < ret->count; i++) {
		ret->top[i].id = last->ids[index] + (int32_t)i;
		ret->top[i].logprob = (float)-i;
	}
	return STATUS_OK;
}

static enum status kv_copy(struct backend *b, uint32_t group, const int32_t *from, const int32_t *to, uint32_t count)
{
	if (group != 0)
		complain(of(b), "a copy in group %u", group);
	for (uint32_t i = 0; i < count; i++)
		enqueue(of(b), &(struct fake_op){ .kind = FAKE_COPY, .from = from[i], .to = to[i] });
	return STATUS_OK;
}

static enum status wait(struct backend *b, int32_t *ret_ids, uint32_t count, struct error *error)
{
	struct fake_backend *f = of(b);

	if (f->broken)
		return error_set(error, STATUS_IO, "the fake device failed");
	if (!ret_ids) {
		while (f->done < f->enqueued)
			run_one(f);
		f->waited = f->sampled;
		return STATUS_OK;
	}
	while (f->sampled == f->waited && f->done < f->enqueued)
		run_one(f);
	if (f->sampled == f->waited || f->samples[f->waited % FAKE_SAMPLES].count != count)
		complain(f, "%u ids are wanted, %u were drawn", count,
		    f->sampled == f->waited ? 0 : f->samples[f->waited % FAKE_SAMPLES].count);
	memcpy(ret_ids, f->samples[f->waited++ % FAKE_SAMPLES].ids, count * sizeof *ret_ids);
	return STATUS_OK;
}

static const struct backend_ops ops = {
	.version = BACKEND_VERSION,
	.name = "fake",
	.memory = memory,
	.kv_bytes = kv_bytes,
	.kv_copy = kv_copy,
	.sample_slot = sample_slot,
	.sample = sample,
	.wait = wait,
	.read_logprobs = read_logprobs,
};

void fake_init(struct fake_backend *backend, struct model *model)
{
	*backend = (struct fake_backend){ .base.ops = &ops, .memory = 1 << 20, .nan_seed = UINT64_MAX };
	*model = (struct model){ .backend = backend };
	snprintf(model->info.architecture, sizeof model->info.architecture, "fake");
	model->info.vocab = FAKE_VOCAB;
	model->info.max_context = FAKE_CONTEXT;
	model->info.kv_group_count = 1;
	model->info.kv_groups[0] = (struct kv_group_desc){ .layers = 1, .kv_heads = 1, .head_dim = 1 };
}

void fake_free(struct fake_backend *backend)
{
	for (uint32_t i = 0; i < FAKE_QUEUE; i++)
		free(backend->queue[i].tokens);
	free(backend->cache);
	free(backend->draft_cache);
}

/* ---- sink ----------------------------------------------------------------------------------------------------------- */

/* As ck_assert, which writes to a file every time it holds: too slow for what is called so often. */
#define must(condition) \
	do { \
		if (!(condition)) \
			ck_abort_msg("%s", #condition); \
	} while (0)

static struct fake_record *record(void *context, uint64_t tag)
{
	struct fake_sink *sink = context;

	must(tag < FAKE_TAGS);
	return &sink->records[tag];
}

static enum engine_control control(void *context, uint64_t tag, uint32_t choice, uint32_t *ret_keep)
{
	struct fake_record *r = record(context, tag);

	(void)choice;
	if (r->control == ENGINE_CONTROL_STOP)
		*ret_keep = r->keep;
	return r->control;
}

/* With steps under way, a token that was granted may come after the credit has gone. */
static bool may_publish(void *context, uint64_t tag, uint32_t events)
{
	struct fake_record *r = record(context, tag);

	must(events >= 1);
	r->granted = r->no_credit ? r->granted : events;
	return !r->no_credit;
}

static void token(void *context, uint64_t tag, uint32_t choice, uint32_t seq, int32_t id, const struct sample_logprobs *logprobs)
{
	struct fake_record *r = record(context, tag + choice);

	must(!logprobs || (logprobs->drawn == (float)-id && (logprobs->count == 0 || logprobs->top[0].id == id)));
	r->with_logprobs += logprobs != NULL;
	must(r->ends == 0);
	must(record(context, tag)->granted > 0);
	record(context, tag)->granted--;
	must(seq == r->count);
	r->ids[r->count++] = id;
}

static void end(void *context, uint64_t tag, uint32_t seq, const struct engine_end *e)
{
	struct fake_sink   *sink = context;
	struct fake_record *r = record(context, tag + e->choice);

	must(r->ends++ == 0);
	must(record(context, tag)->told_last == 0);
	record(context, tag)->told_last = e->last;
	must(seq == r->count);
	r->end = *e;
	sink->blocks_used_at_end = metrics_get(&sink->metrics, METRIC_kv_blocks_used);
}

static void launch(void *context, uint32_t rows)
{
	struct fake_sink *sink = context;
	sink->launches += rows > 0;
}

void fake_sink_init(struct fake_sink *sink)
{
	*sink = (struct fake_sink){ 0 };
	sink->records = calloc(FAKE_TAGS, sizeof *sink->records);
	sink->shared = calloc(1, sizeof *sink->shared);
	ck_assert(sink->records && sink->shared);
	sink->metrics.shared = sink->shared;
	sink->sink = (struct engine_sink){
		.context = sink, .control = control, .may_publish = may_publish, .token = token, .end = end, .launch = launch
	};
}

void fake_sink_free(struct fake_sink *sink)
{
	free(sink->records);
	free(sink->shared);
}

/* ---- engine --------------------------------------------------------------------------------------------------------- */

struct engine_options fake_options(void)
{
	static const int32_t eos[] = { FAKE_EOS };

	return (struct engine_options){
		.max_running = 4,
		.max_waiting = 8,
		.step_tokens = 16,
		.block_size = 4,
		.kv_tokens = 200,
		.cache_share = 0.5,
		.slow_client_timeout_ns = 1000,
		.max_queue_wait_ns = 5000,
		.vocab_limit = FAKE_VOCAB,
		.eos = eos,
		.eos_count = 1,
	};
}

struct engine *fake_engine(struct fake_backend *backend, struct model *model, struct fake_sink *sink,
    const struct engine_options *options)
{
	struct engine_options defaults = fake_options();
	struct engine        *engine = NULL;
	struct error          error = { 0 };
	enum status           status;

	status = engine_create(model, &backend->base, options ? options : &defaults, &sink->sink, &sink->metrics, &engine, NULL,
	    &error);
	ck_assert_msg(status == STATUS_OK, "%s", error.message);
	return engine;
}

enum status fake_submit(struct engine *engine, uint32_t tag, uint32_t prompt_tokens, uint32_t max_tokens, uint64_t seed,
    uint64_t now_ns, int32_t *ret_prompt)
{
	return fake_submit_choices(engine, tag, prompt_tokens, max_tokens, 1, seed, now_ns, ret_prompt);
}

enum status fake_submit_choices(struct engine *engine, uint32_t tag, uint32_t prompt_tokens, uint32_t max_tokens,
    uint32_t choices, uint64_t seed, uint64_t now_ns, int32_t *ret_prompt)
{
	int32_t              *prompt = malloc((prompt_tokens ? prompt_tokens : 1) * sizeof *prompt);
	struct error          error;
	struct engine_request request = {
		.id = 1000 + tag,
		.tag = tag,
		.prompt = prompt,
		.prompt_tokens = prompt_tokens,
		.max_tokens = max_tokens,
		.choices = choices,
		.sampling = { .top_p = 1, .seed = seed, .frequency = seed % 4 == 1 ? 0.5f : 0, .logprobs = (uint32_t)seed % 3 },
	};

	ck_assert_ptr_nonnull(prompt);
	for (uint32_t i = 0; i < prompt_tokens; i++)
		prompt[i] = (int32_t)(mix(seed, i) % (FAKE_VOCAB - 1));
	if (ret_prompt)
		memcpy(ret_prompt, prompt, prompt_tokens * sizeof *prompt);
	return engine_submit(engine, &request, now_ns, &error);
}
