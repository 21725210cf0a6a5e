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

static int32_t hash_id(uint64_t h, uint64_t seed) { return (int32_t)(mix(h, seed + 1) >> 17) % FAKE_VOCAB; }

int32_t fake_next(const int32_t *tokens, uint32_t count, uint64_t seed)
{
	uint64_t h = 0;
	int32_t  id;

	for (uint32_t i = 0; i < count; i++)
		h = mix(h, (uint64_t)tokens[i]);
	id = hash_id(h, seed);
	return id < 0 ? id + FAKE_VOCAB : id;
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
	ck_assert_uint_le(max_logit_rows, sizeof f->ids / sizeof *f->ids);
	f->block_size = block_size;
	f->slots = blocks * block_size;
	f->cache = malloc(f->slots * sizeof *f->cache);
	ck_assert_ptr_nonnull(f->cache);
	memset(f->cache, 0xff, f->slots * sizeof *f->cache);
	return STATUS_OK;
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
			f->cache[slot] = batch->tokens[row + i];
	}
}

enum status model_forward(struct model *model, const struct batch *batch)
{
	struct fake_backend *f = model->backend;
	uint32_t             row = 0;

	f->steps++;
	f->batch = batch;
	if (batch->rows == 0 || batch->rows > f->rows_max)
		complain(f, "a step of %u rows", batch->rows);
	for (uint32_t s = 0; s < batch->sequence_count; s++) {
		check_sequence(f, batch, &batch->sequences[s], row);
		row += batch->sequences[s].rows;
	}
	if (row != batch->rows)
		complain(f, "sequences have %u rows, the batch %u", row, batch->rows);
	return STATUS_OK;
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

static enum status sample(struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit)
{
	struct fake_backend *f = of(b);
	const struct batch  *batch = f->batch;

	if (count != batch->logit_row_count || vocab_limit != FAKE_VOCAB)
		complain(f, "%u draws for %u rows of logits", count, batch->logit_row_count);
	for (uint32_t i = 0; i < count && !*f->complaint; i++) {
		const struct batch_sequence *s = batch->sequences;
		uint32_t                     row = (uint32_t)batch->logit_rows[rows[i].logit_row];
		uint64_t                     h = 0;
		int32_t                      id;

		while (s->first_row + s->rows <= row)
			s++;
		if (row != s->first_row + s->rows - 1 || rows[i].position != s->context)
			complain(f, "draw at position %llu of row %u, context %u", (unsigned long long)rows[i].position, row, s->context);
		for (uint32_t p = 0; p < s->context; p++)
			h = mix(h, (uint64_t)f->cache[(uint32_t)s->block_table[0][p / f->block_size] * f->block_size + p % f->block_size]);
		id = hash_id(h, rows[i].params.seed);
		f->ids[i] = rows[i].params.seed == f->nan_seed ? -1 : id < 0 ? id + FAKE_VOCAB : id;
	}
	return STATUS_OK;
}

static enum status wait(struct backend *b, int32_t *ret_ids, uint32_t count, struct error *error)
{
	struct fake_backend *f = of(b);

	if (f->broken)
		return error_set(error, STATUS_IO, "the fake device failed");
	if (ret_ids)
		memcpy(ret_ids, f->ids, count * sizeof *ret_ids);
	return STATUS_OK;
}

static const struct backend_ops ops = {
	.version = BACKEND_VERSION,
	.name = "fake",
	.memory = memory,
	.kv_bytes = kv_bytes,
	.sample = sample,
	.wait = wait,
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

void fake_free(struct fake_backend *backend) { free(backend->cache); }

/* ---- sink ----------------------------------------------------------------------------------------------------------- */

static struct fake_record *record(void *context, uint64_t tag)
{
	struct fake_sink *sink = context;

	ck_assert_uint_lt(tag, FAKE_TAGS);
	return &sink->records[tag];
}

static enum engine_control control(void *context, uint64_t tag, uint32_t *ret_keep)
{
	struct fake_record *r = record(context, tag);

	if (r->control == ENGINE_CONTROL_STOP)
		*ret_keep = r->keep;
	return r->control;
}

static bool may_publish(void *context, uint64_t tag, uint32_t events)
{
	ck_assert_uint_ge(events, 1);
	return !record(context, tag)->no_credit;
}

static void token(void *context, uint64_t tag, uint32_t seq, int32_t id)
{
	struct fake_record *r = record(context, tag);

	ck_assert_uint_eq(r->ends, 0);
	ck_assert(!r->no_credit);
	ck_assert_uint_eq(seq, r->count);
	r->ids[r->count++] = id;
}

static void end(void *context, uint64_t tag, uint32_t seq, const struct engine_end *e)
{
	struct fake_sink   *sink = context;
	struct fake_record *r = record(context, tag);

	ck_assert_uint_eq(r->ends++, 0);
	ck_assert_uint_eq(seq, r->count);
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
	int32_t              *prompt = malloc((prompt_tokens ? prompt_tokens : 1) * sizeof *prompt);
	struct error          error;
	struct engine_request request = {
		.id = 1000 + tag,
		.tag = tag,
		.prompt = prompt,
		.prompt_tokens = prompt_tokens,
		.max_tokens = max_tokens,
		.sampling = { .top_p = 1, .seed = seed },
	};

	ck_assert_ptr_nonnull(prompt);
	for (uint32_t i = 0; i < prompt_tokens; i++)
		prompt[i] = (int32_t)(mix(seed, i) % (FAKE_VOCAB - 1));
	if (ret_prompt)
		memcpy(ret_prompt, prompt, prompt_tokens * sizeof *prompt);
	return engine_submit(engine, &request, now_ns, &error);
}
