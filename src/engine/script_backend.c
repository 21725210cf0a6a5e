/* script_backend.c: owns the scripts and the pace of a step.  Does not know prompts, lanes or time beyond the step it is in:
 * which id comes is a function of (seed, generated) alone, so every stream is reproducible whatever runs beside it.
 *
 * Invariant: every id of a parsed script is inside the vocabulary or one of the two marks below. */
#include "engine/script_backend.h"

#include "base/buf.h"
#include "base/clock.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Marks among the ids. */
enum { ID_NAN = -1, ID_FAULT = -2, NO_ID = -3 };
enum { WORD_MAX = 64 };
enum { MEMORY_BYTES = 1 << 30 }; /* pretended, so that a plan from cache_share is the same everywhere */

struct delay {
	uint32_t at; /* index of the id */
	uint64_t ns;
};

/* A log probability in the place of an id. */
struct likely {
	uint32_t at; /* index of the id */
	int32_t  id;
	float    logprob;
};

struct script {
	char          name[SCRIPT_NAME_MAX + 1];
	int32_t      *ids;
	uint32_t      count, capacity;
	struct delay *delays; /* ascending */
	uint32_t      delay_count, delay_capacity;
	struct likely *likely; /* ascending in `at`, each place's in the order of struct sample_logprobs; drawn ids among them */
	uint32_t      likely_count, likely_capacity;
	uint64_t      repeat, pace_ns;
	int32_t       eos;
};

/* Weights have no bytes: every handle is this one. */
struct backend_weight {
	char nothing;
};

struct script_backend {
	struct backend        base; /* first */
	struct backend_weight weight;
	struct script        *scripts;
	uint32_t              count;
	uint64_t              prefill_ns;
	char                  text[80]; /* for describe */

	struct backend_ops    ops; /* the table, with what the file says of overlap */

	/* A device with a queue: a step begins when it was enqueued, or when the one before it ends. */
	uint64_t             idle_ns;             /* when the steps that are complete end */
	uint64_t             begin_ns, length_ns; /* the step that is being enqueued */
	bool                 open;                /* there is one */
	uint64_t             samples, waited;     /* enqueued, and given out: number n is in draws[n % BACKEND_SAMPLES_MAX] */
	uint32_t             ids_capacity;
	struct draw {
		int32_t             *ids;
		uint64_t             end_ns;
		const struct script *fault; /* that said fault, NULL = none */
		struct sample_logprobs *logprobs; /* [ids_capacity]; count is UINT32_MAX where none are wanted */
	} draws[BACKEND_SAMPLES_MAX];
};

static struct script_backend *of(struct backend *b) { return (struct script_backend *)b; }

/* ---- the file ---------------------------------------------------------------------------------------------------- */

struct reader {
	const char                  *at, *end, *label;
	unsigned                     line;
	const struct script_options *options;
	struct script_backend       *backend;
	struct script               *script; /* being filled, NULL before the first */
	bool                         delayed;
	uint64_t                     delay_ns; /* of the next id, when `delayed` */
	bool                         likely;   /* the last entries of script->likely are the next id's */
	struct error                *error;
};

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* The next word of the line; false at its end.  An over-long word is cut to WORD_MAX − 1 bytes: no statement has one. */
static bool next_word(struct reader *r, char ret[WORD_MAX])
{
	size_t n = 0;

	while (r->at < r->end && blank(*r->at))
		r->at++;
	if (r->at == r->end || *r->at == '\n' || *r->at == '#')
		return false;
	for (; r->at < r->end && !blank(*r->at) && *r->at != '\n' && *r->at != '#'; r->at++)
		if (n < WORD_MAX - 1)
			ret[n++] = *r->at >= ' ' && *r->at < 127 ? *r->at : '?';
	ret[n] = '\0';
	return true;
}

static enum status fail(struct reader *r, const char *what, const char *value)
{
	return error_set(r->error, STATUS_INVALID, "%s:%u: %s, not \"%s\"", r->label, r->line, what, value);
}

static bool number(const char *word, uint64_t max, uint64_t *ret)
{
	uint64_t value = 0;

	if (!*word || strlen(word) > 18)
		return false;
	for (; *word; word++) {
		if (*word < '0' || *word > '9')
			return false;
		value = value * 10 + (uint64_t)(*word - '0');
	}
	if (value > max)
		return false;
	*ret = value;
	return true;
}

/* One number 0…MAX and then the end of the line. */
static enum status one_number(struct reader *r, const char *statement, uint64_t max, uint64_t *ret)
{
	char word[WORD_MAX] = "", what[96];

	snprintf(what, sizeof what, "%s takes one number 0…%llu", statement, (unsigned long long)max);
	if (!next_word(r, word) || !number(word, max, ret))
		return fail(r, what, word);
	return next_word(r, word) ? fail(r, what, word) : STATUS_OK;
}

/* Makes room for one more element of SIZE bytes. */
static enum status grow(struct reader *r, void **array, uint32_t count, uint32_t *capacity, uint32_t max, size_t size)
{
	uint32_t more;
	void    *bigger;

	if (count < *capacity)
		return STATUS_OK;
	if (count == max)
		return error_set(r->error, STATUS_LIMIT, "%s:%u: more than %u of these are not allowed", r->label, r->line, max);
	more = *capacity ? *capacity * 2 : 16;
	if (more > max)
		more = max;
	bigger = realloc(*array, more * size);
	if (!bigger)
		return error_set(r->error, STATUS_NOMEM, "%s:%u: no memory for the script", r->label, r->line);
	*array = bigger;
	*capacity = more;
	return STATUS_OK;
}

/* Puts LIKELY among those of its place: falling, lower ids first among equals. */
static enum status add_likely(struct reader *r, struct likely likely)
{
	struct script *s = r->script;
	uint32_t       at = s->likely_count;
	enum status    status = grow(r, (void **)&s->likely, at, &s->likely_capacity, SCRIPT_LIKELY_MAX, sizeof *s->likely);

	if (status)
		return status;
	for (; at > 0 && s->likely[at - 1].at == likely.at; at--) {
		const struct likely *before = &s->likely[at - 1];

		if (before->logprob > likely.logprob || (before->logprob == likely.logprob && before->id < likely.id))
			break;
		s->likely[at] = *before;
	}
	s->likely[at] = likely;
	s->likely_count++;
	return STATUS_OK;
}

/* The next id's own has no id yet: NO_ID. */
static enum status on_likely(struct reader *r)
{
	char        word[WORD_MAX] = "", what[96];
	uint64_t    number_of, id = 0;
	bool        own = true;
	enum status status;

	if (r->likely)
		return fail(r, "one likely for an id", "likely");
	do {
		snprintf(what, sizeof what, own ? "likely begins with a number 0…%u" : "likely has pairs of an id 0…%u and a number",
		    own ? SCRIPT_MILLINATS_MAX : r->options->vocab - 1);
		if (!own && !number(word, r->options->vocab - 1, &id))
			return fail(r, what, word);
		*word = '\0';
		if (!next_word(r, word) || !number(word, SCRIPT_MILLINATS_MAX, &number_of))
			return fail(r, what, word);
		status = add_likely(r, (struct likely){ r->script->count, own ? NO_ID : (int32_t)id, -(float)number_of / 1000 });
		own = false;
	} while (!status && next_word(r, word));
	r->likely = true;
	return status;
}

/* The id that `likely` was waiting for. */
static void name_likely(struct script *s, int32_t id)
{
	for (uint32_t i = s->likely_count; i-- > 0 && s->likely[i].at == s->count;)
		if (s->likely[i].id == NO_ID)
			s->likely[i].id = id;
}

static enum status on_script(struct reader *r, uint32_t *capacity)
{
	struct script_backend *b = r->backend;
	char                   word[WORD_MAX] = "", more[WORD_MAX];
	enum status            status;

	if (!next_word(r, word) || strlen(word) > SCRIPT_NAME_MAX ||
	    word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")] != '\0')
		return fail(r, "script takes a name of 1 to 40 letters, digits, '.', '_' and '-'", word);
	if (next_word(r, more))
		return fail(r, "script takes one name", more);
	for (uint32_t i = 0; i < b->count; i++)
		if (!strcmp(b->scripts[i].name, word))
			return fail(r, "script names are unique", word);
	if (r->delayed || r->likely)
		return fail(r, "a delay or likely is followed by ids", "script");
	status = grow(r, (void **)&b->scripts, b->count, capacity, SCRIPT_COUNT_MAX, sizeof *b->scripts);
	if (status)
		return status;
	r->script = &b->scripts[b->count++];
	*r->script = (struct script){ .repeat = 1, .pace_ns = 1000 * 1000, .eos = r->options->eos };
	memcpy(r->script->name, word, strlen(word) + 1);
	return STATUS_OK;
}

static enum status on_ids(struct reader *r)
{
	struct script *s = r->script;
	char           word[WORD_MAX], what[64];
	uint64_t       id;
	enum status    status;
	bool           any = false;

	snprintf(what, sizeof what, "ids are 0…%u, nan or fault", r->options->vocab - 1);
	while (next_word(r, word)) {
		if (!strcmp(word, "nan"))
			id = (uint64_t)(int64_t)ID_NAN;
		else if (!strcmp(word, "fault"))
			id = (uint64_t)(int64_t)ID_FAULT;
		else if (!number(word, r->options->vocab - 1, &id))
			return fail(r, what, word);
		status = grow(r, (void **)&s->ids, s->count, &s->capacity, SCRIPT_IDS_MAX, sizeof *s->ids);
		if (!status && r->delayed)
			status = grow(r, (void **)&s->delays, s->delay_count, &s->delay_capacity, SCRIPT_DELAYS_MAX, sizeof *s->delays);
		if (status)
			return status;
		if (r->delayed)
			s->delays[s->delay_count++] = (struct delay){ s->count, r->delay_ns };
		r->delayed = false;
		if (r->likely)
			name_likely(s, (int32_t)(int64_t)id);
		r->likely = false;
		s->ids[s->count++] = (int32_t)(int64_t)id;
		any = true;
	}
	return any ? STATUS_OK : fail(r, "ids takes at least one id", "");
}

static enum status on_statement(struct reader *r, const char *statement, uint32_t *capacity)
{
	enum status status;
	uint64_t    value;

	if (!strcmp(statement, "script"))
		return on_script(r, capacity);
	if (!strcmp(statement, "overlap")) {
		char more[WORD_MAX];
		if (r->script || next_word(r, more))
			return fail(r, "overlap stands alone before the first script", statement);
		r->backend->ops.overlaps = 1;
		return STATUS_OK;
	}
	if (!strcmp(statement, "prefill")) {
		if (r->script)
			return fail(r, "prefill stands before the first script", statement);
		status = one_number(r, statement, SCRIPT_PACE_MAX, &value);
		if (!status)
			r->backend->prefill_ns = value * 1000;
		return status;
	}
	if (!r->script)
		return fail(r, "the first statement is script (or prefill)", statement);
	if (!strcmp(statement, "ids"))
		return on_ids(r);
	if (!strcmp(statement, "pace")) {
		status = one_number(r, statement, SCRIPT_PACE_MAX, &value);
		if (!status)
			r->script->pace_ns = value * 1000;
		return status;
	}
	if (!strcmp(statement, "delay")) {
		status = one_number(r, statement, SCRIPT_DELAY_MAX, &value);
		if (!status) {
			r->delayed = true;
			r->delay_ns = value * 1000;
		}
		return status;
	}
	if (!strcmp(statement, "likely"))
		return on_likely(r);
	if (!strcmp(statement, "repeat"))
		return one_number(r, statement, UINT32_MAX, &r->script->repeat);
	if (!strcmp(statement, "eos")) {
		status = one_number(r, statement, r->options->vocab - 1, &value);
		if (!status)
			r->script->eos = (int32_t)value;
		return status;
	}
	return fail(r, "a statement is script, pace, ids, delay, likely, repeat, eos, prefill or overlap", statement);
}

static enum status read_all(struct reader *r)
{
	uint32_t capacity = 0;
	char     word[WORD_MAX];

	for (r->line = 1; r->at < r->end; r->line++) {
		enum status status = next_word(r, word) ? on_statement(r, word, &capacity) : STATUS_OK;
		if (status)
			return status;
		while (r->at < r->end && *r->at != '\n') /* the comment */
			r->at++;
		if (r->at < r->end)
			r->at++;
	}
	if (r->delayed || r->likely)
		return fail(r, "a delay or likely is followed by ids", "");
	if (!r->script)
		return fail(r, "a file has at least one script", "");
	for (uint32_t i = 0; i < r->backend->count; i++) {
		struct script *script = &r->backend->scripts[i];
		if (script->count == 0 && script->repeat == 0)
			return fail(r, "a script that repeats for ever has ids", script->name);
		if (script->eos < 0)
			return fail(r, "this model has no end-of-sequence id, so a script needs eos", script->name);
	}
	return STATUS_OK;
}

/* ---- operations --------------------------------------------------------------------------------------------------- */

static void script_destroy(struct backend *b)
{
	struct script_backend *s = of(b);

	if (!s)
		return;
	for (uint32_t i = 0; i < s->count; i++) {
		free(s->scripts[i].ids);
		free(s->scripts[i].delays);
		free(s->scripts[i].likely);
	}
	free(s->scripts);
	for (int i = 0; i < BACKEND_SAMPLES_MAX; i++) {
		free(s->draws[i].ids);
		free(s->draws[i].logprobs);
	}
	free(s);
}

static enum status script_memory(struct backend *b, struct backend_memory *ret)
{
	(void)b;
	*ret = (struct backend_memory){ MEMORY_BYTES, MEMORY_BYTES };
	return STATUS_OK;
}

static const char *script_describe(struct backend *b) { return of(b)->text; }

static enum status weight_load(struct backend *b, const struct weight_desc *parts, uint32_t count, struct backend_weight **ret,
    struct error *error)
{
	(void)parts, (void)count, (void)error;
	*ret = &of(b)->weight;
	return STATUS_OK;
}

static void weight_free(struct backend *b, struct backend_weight *w) { (void)b, (void)w; }

static uint64_t weight_bytes(const struct backend *b, const struct backend_weight *w)
{
	(void)b, (void)w;
	return 0;
}

static uint64_t activation_bytes(const struct backend *b, uint32_t rows, uint32_t width)
{
	(void)b, (void)rows, (void)width;
	return 0;
}

static enum status activation_alloc(struct backend *b, uint32_t rows, uint32_t width, struct activation *ret)
{
	(void)b;
	*ret = (struct activation){ NULL, rows, width };
	return STATUS_OK;
}

static void activation_free(struct backend *b, struct activation *a)
{
	(void)b;
	*a = (struct activation){ 0 };
}

/* What a half-precision cache would take, so that plans look real. */
static uint64_t kv_bytes(const struct backend *b, const struct kv_group_desc *g)
{
	(void)b;
	return (uint64_t)g->layers * g->kv_heads * g->head_dim * g->block_size * 2 * sizeof(uint16_t);
}

static enum status kv_alloc(struct backend *b, uint32_t group, const struct kv_group_desc *desc, struct error *error)
{
	(void)b, (void)group, (void)desc, (void)error;
	return STATUS_OK;
}

static uint64_t scratch_bytes(const struct backend *b, const struct backend_limits *limits)
{
	(void)b;
	return (uint64_t)limits->logit_rows * (sizeof(int32_t) + sizeof(struct sample_logprobs)) * BACKEND_SAMPLES_MAX;
}

static enum status scratch_alloc(struct backend *b, const struct backend_limits *limits, struct error *error)
{
	struct script_backend *s = of(b);

	for (int i = 0; i < BACKEND_SAMPLES_MAX; i++) {
		uint32_t                rows = limits->logit_rows ? limits->logit_rows : 1;
		int32_t                *ids = realloc(s->draws[i].ids, rows * sizeof *ids);
		struct sample_logprobs *logprobs;

		if (ids)
			s->draws[i].ids = ids;
		logprobs = realloc(s->draws[i].logprobs, rows * sizeof *logprobs);
		if (logprobs)
			s->draws[i].logprobs = logprobs;
		if (!ids || !logprobs)
			return error_set(error, STATUS_NOMEM, "no memory for %u ids", limits->logit_rows);
	}
	s->ids_capacity = limits->logit_rows;
	return STATUS_OK;
}

/* The step that was being enqueued is complete: nothing more comes to it. */
static void close_step(struct script_backend *s)
{
	if (!s->open)
		return;
	s->idle_ns = (s->begin_ns > s->idle_ns ? s->begin_ns : s->idle_ns) + s->length_ns;
	s->open = false;
}

static enum status step_begin(struct backend *b, const struct batch *batch)
{
	struct script_backend *s = of(b);

	close_step(s);
	s->open = true;
	s->begin_ns = clock_now_ns();
	s->length_ns = batch->logit_row_count ? 0 : s->prefill_ns;
	return STATUS_OK;
}

static enum status embed(struct backend *b, const struct backend_weight *w, struct activation *y)
{
	(void)b, (void)w, (void)y;
	return STATUS_OK;
}

static enum status rms_norm(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *w, float eps, struct activation *y)
{
	(void)b, (void)x, (void)residual_in, (void)w, (void)eps, (void)y;
	return STATUS_OK;
}

static enum status head_norm(struct backend *b, struct activation *qkv, uint32_t q_heads, uint32_t kv_heads,
    const struct backend_weight *q_weight, const struct backend_weight *k_weight, float eps)
{
	(void)b, (void)qkv, (void)q_heads, (void)kv_heads, (void)q_weight, (void)k_weight, (void)eps;
	return STATUS_OK;
}

static enum status linear(struct backend *b, const struct backend_weight *w, const struct backend_weight *bias,
    const struct activation *x, struct activation *y)
{
	(void)b, (void)w, (void)bias, (void)x, (void)y;
	return STATUS_OK;
}

static enum status rope_kv_write(struct backend *b, struct activation *qkv, uint32_t group, uint32_t layer, uint32_t q_heads,
    const struct rope_desc *rope)
{
	(void)b, (void)qkv, (void)group, (void)layer, (void)q_heads, (void)rope;
	return STATUS_OK;
}

static enum status attention(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer, uint32_t q_heads,
    float scale, struct activation *y)
{
	(void)b, (void)qkv, (void)group, (void)layer, (void)q_heads, (void)scale, (void)y;
	return STATUS_OK;
}

static enum status silu_gate(struct backend *b, const struct activation *gate_up, struct activation *y)
{
	(void)b, (void)gate_up, (void)y;
	return STATUS_OK;
}

static enum status logits(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *norm, float eps, const struct backend_weight *w)
{
	(void)b, (void)x, (void)residual_in, (void)norm, (void)eps, (void)w;
	return STATUS_OK;
}

static enum status kv_copy(struct backend *b, uint32_t group, const int32_t *from, const int32_t *to, uint32_t count)
{
	(void)b, (void)group, (void)from, (void)to, (void)count;
	return STATUS_OK;
}

/* Id number GENERATED of SCRIPT and how long its step takes. */
static int32_t draw(const struct script *script, uint64_t generated, uint64_t *ret_ns)
{
	*ret_ns = script->pace_ns;
	if (script->count == 0 || (script->repeat && generated / script->count >= script->repeat))
		return script->eos;
	for (uint32_t i = 0; i < script->delay_count; i++)
		if (script->delays[i].at == generated)
			*ret_ns += script->delays[i].ns;
	return script->ids[generated % script->count];
}

/* What the script says of the place of id number GENERATED, the K most likely ids of it. */
static void tell_logprobs(const struct script *s, uint64_t generated, int32_t id, uint32_t k, struct sample_logprobs *ret)
{
	uint32_t at = s->count ? (uint32_t)(generated % s->count) : 0;
	bool     over = s->count == 0 || (s->repeat && generated / s->count >= s->repeat); /* it is the end */

	*ret = (struct sample_logprobs){ .drawn = 0 };
	for (uint32_t i = 0; i < s->likely_count && !over; i++) {
		if (s->likely[i].at != at)
			continue;
		if (s->likely[i].id == id)
			ret->drawn = s->likely[i].logprob;
		if (ret->count == k)
			continue;
		ret->top[ret->count].id = s->likely[i].id;
		ret->top[ret->count++].logprob = s->likely[i].logprob;
	}
	if (ret->count == 0 && k > 0) {
		ret->top[0].id = id;
		ret->count = 1;
	}
}

static enum status sample_slot(struct backend *b, uint32_t slot, const struct sample_slot *from)
{
	(void)from;
	return slot < of(b)->ids_capacity ? STATUS_OK : STATUS_INVALID;
}

/* The lowest id that MASK has; OTHERWISE when it has none. */
static int32_t lowest(const uint32_t *mask, uint32_t vocab, int32_t otherwise)
{
	for (uint32_t id = 0; id < vocab; id++)
		if (mask[id / 32] >> id % 32 & 1)
			return (int32_t)id;
	return otherwise;
}

static enum status sample(struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit)
{
	struct script_backend *s = of(b);
	struct draw           *to = &s->draws[s->samples % BACKEND_SAMPLES_MAX];

	if (count > s->ids_capacity || s->samples - s->waited == BACKEND_SAMPLES_MAX)
		return STATUS_LIMIT;
	to->fault = NULL;
	for (uint32_t i = 0; i < count; i++) {
		const struct script *script = &s->scripts[rows[i].params.seed % s->count];
		uint64_t             ns;

		to->ids[i] = draw(script, rows[i].generated, &ns);
		if (rows[i].mask && to->ids[i] >= 0 && !(rows[i].mask[to->ids[i] / 32] >> to->ids[i] % 32 & 1))
			to->ids[i] = lowest(rows[i].mask, vocab_limit, to->ids[i]);
		to->logprobs[i].count = UINT32_MAX;
		if (rows[i].params.logprobs && to->ids[i] >= 0)
			tell_logprobs(script, rows[i].generated, to->ids[i], rows[i].params.logprobs - 1, &to->logprobs[i]);
		if (to->ids[i] == ID_FAULT)
			to->fault = script;
		if (ns > s->length_ns)
			s->length_ns = ns;
	}
	close_step(s);
	to->end_ns = s->idle_ns;
	s->samples++;
	return STATUS_OK;
}

static void sleep_until(uint64_t ns)
{
	struct timespec time = { (time_t)(ns / CLOCK_NS_PER_S), (long)(ns % CLOCK_NS_PER_S) };

	if (ns > clock_now_ns())
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
			;
}

static enum status wait(struct backend *b, int32_t *ret_ids, uint32_t count, struct error *error)
{
	struct script_backend *s = of(b);
	const struct draw     *from = &s->draws[s->waited % BACKEND_SAMPLES_MAX];
	const struct script   *fault = NULL;

	close_step(s);
	if (!ret_ids) {
		sleep_until(s->idle_ns);
		for (; s->waited < s->samples; s->waited++)
			if (s->draws[s->waited % BACKEND_SAMPLES_MAX].fault)
				fault = s->draws[s->waited % BACKEND_SAMPLES_MAX].fault;
	} else {
		if (count > s->ids_capacity || s->waited == s->samples)
			return error_set(error, STATUS_LIMIT, "script: %u ids are wanted of %llu samples, room is for %u", count,
			    (unsigned long long)(s->samples - s->waited), s->ids_capacity);
		sleep_until(from->end_ns);
		fault = from->fault;
		if (!fault)
			memcpy(ret_ids, from->ids, count * sizeof *ret_ids);
		s->waited++;
	}
	return fault ? error_set(error, STATUS_IO, "script %s says fault", fault->name) : STATUS_OK;
}

static enum status read_logprobs(struct backend *b, uint32_t index, struct sample_logprobs *ret)
{
	const struct script_backend *s = of(b);
	const struct draw           *from = &s->draws[(s->waited + BACKEND_SAMPLES_MAX - 1) % BACKEND_SAMPLES_MAX];

	if (s->waited == 0 || index >= s->ids_capacity || from->logprobs[index].count > SAMPLE_TOP_MAX)
		return STATUS_INVALID;
	*ret = from->logprobs[index];
	return STATUS_OK;
}

static enum status read_logits(struct backend *b, uint32_t index, float *ret, uint32_t vocab)
{
	(void)b, (void)index, (void)ret, (void)vocab;
	return STATUS_UNSUPPORTED;
}

static const struct backend_ops script_ops = {
	.version = BACKEND_VERSION,
	.name = "script",
	.destroy = script_destroy,
	.memory = script_memory,
	.describe = script_describe,
	.weight_load = weight_load,
	.weight_free = weight_free,
	.weight_bytes = weight_bytes,
	.activation_bytes = activation_bytes,
	.activation_alloc = activation_alloc,
	.activation_free = activation_free,
	.kv_bytes = kv_bytes,
	.kv_alloc = kv_alloc,
	.scratch_bytes = scratch_bytes,
	.scratch_alloc = scratch_alloc,
	.step_begin = step_begin,
	.embed = embed,
	.rms_norm = rms_norm,
	.head_norm = head_norm,
	.linear = linear,
	.rope_kv_write = rope_kv_write,
	.attention = attention,
	.silu_gate = silu_gate,
	.logits = logits,
	.kv_copy = kv_copy,
	.sample_slot = sample_slot,
	.sample = sample,
	.wait = wait,
	.read_logprobs = read_logprobs,
	.read_logits = read_logits,
};

/* ---- making one --------------------------------------------------------------------------------------------------- */

enum status script_backend_parse(const char *text, size_t len, const char *label, const struct script_options *options,
    struct backend **ret, struct error *error)
{
	struct script_backend *s = calloc(1, sizeof *s);
	struct reader          reader = {
		.at = text, .end = text + len, .label = label, .options = options, .backend = s, .error = error
	};
	enum status status;

	if (!s)
		return error_set(error, STATUS_NOMEM, "no memory for the script backend");
	s->ops = script_ops;
	s->base.ops = &s->ops;
	if (options->vocab == 0)
		status = error_set(error, STATUS_INVALID, "%s: a script needs a vocabulary", label);
	else
		status = read_all(&reader);
	if (status) {
		script_destroy(&s->base);
		return status;
	}
	snprintf(s->text, sizeof s->text, "%u script(s), no mathematics", s->count);
	*ret = &s->base;
	return STATUS_OK;
}

enum status script_backend_open(const char *path, const struct script_options *options, struct backend **ret,
    struct error *error)
{
	FILE       *file = fopen(path, "re");
	struct buf  text;
	char        piece[1 << 14];
	size_t      n;
	enum status status = STATUS_OK;

	if (!file)
		return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
	buf_init(&text, SCRIPT_FILE_MAX);
	while (!status && (n = fread(piece, 1, sizeof piece, file)) > 0)
		status = buf_append(&text, piece, n);
	if (status)
		error_set(error, status, "%s: scripts have at most %d bytes", path, SCRIPT_FILE_MAX);
	else if (ferror(file))
		status = error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
	if (!status)
		status = script_backend_parse(text.data ? text.data : "", text.len, path, options, ret, error);
	fclose(file);
	buf_free(&text);
	return status;
}
