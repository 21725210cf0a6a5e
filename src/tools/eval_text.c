/* eval_text.c: `penstock eval --text`: owns windows of a text, the models that read them, and the file an interrupted run goes
 * on from.  Does not own the arithmetic (eval_stats.c).
 *
 * Two conventions, both the field's.  Without a stride windows of `context` tokens follow each other and the tokens of their
 * second half count, so that each was told from at least context / 2 others (llama.cpp's perplexity tool; a rest shorter than
 * a window is left out; tokens that the tokenizer puts before a text stand at the beginning of every window, instead of the
 * text's).  With a stride a window begins every `stride` tokens and those count that no window before had (the sliding
 * window of the transformers documentation; tokens before the text stand there once).  The first token of a window is told
 * from nothing and never counts.
 *
 * Memory: the models, a window's ids, and EVAL_ROWS rows of logits of each model, whatever the text.
 *
 * Invariant: the sums of a run that was interrupted and went on have the bits of those of a run that was not. */
#include "tools/eval_text.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "file/hf_config.h"
#include "file/map.h"
#include "tools/eval_stats.h"
#include "tools/run.h"
#include "tools/text.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EVAL_ROWS = TOOL_RUN_LOGITS, SAMPLE_BYTES = 256, HEAD_BYTES = 1 << 16, ID_TEXT = 17, OPTIONS_TEXT = 320, STATE_VERSION = 1 };

/* A model that reads the text. */
struct side {
	const char              *path;
	struct tool_ranks        ranks;
	struct tool_run          run;
	const struct model_info *info;
	float                   *logits; /* [EVAL_ROWS][vocab] */
	char                     identity[ID_TEXT];
};

struct window {
	size_t   begin, first; /* its first token, and the first one that counts */
	uint32_t count;
};

struct run {
	const struct eval_text_options *options;
	struct token_list               tokens; /* of the text, with what the tokenizer puts before one */
	size_t                          before; /* how many that are */
	struct side                     sides[2]; /* the model, the base */
	unsigned                        side_count;
	int32_t                        *window; /* [context] */
	uint64_t                        windows, total_windows, done;
	char                            text_identity[ID_TEXT], token_identity[ID_TEXT], how[OPTIONS_TEXT];
	struct eval_sums                sums;
	uint64_t                        began, told, done_before; /* times; windows that the state file had */
};

static void spell_identity(uint64_t hash, char ret[ID_TEXT]) { snprintf(ret, ID_TEXT, "%016" PRIx64, hash); }

/* ---- the text ----------------------------------------------------------------------------------------------------- */

static enum status encode(const char *path, const struct map *map, struct token_list *ret, size_t *ret_before, struct error *error)
{
	struct tool_text text;
	size_t           behind;
	enum status      status = tool_text_open(path, false, &text, error);

	if (status)
		return status;
	tokenizer_before(text.tokenizer, ret_before);
	tokenizer_behind(text.tokenizer, &behind);
	status = tool_text_encode(&text, (const char *)map->bytes, map->size, false, true, ret, error);
	if (!status)
		ret->count -= behind;
	tool_text_close(&text);
	return status;
}

/* The text's ids by the model's tokenizer; the base must have the same. */
static enum status read_text(struct run *run, struct error *error)
{
	const struct eval_text_options *options = run->options;
	struct map                      map;
	struct token_list               other = { NULL, 0, 0 };
	size_t                          before, at;
	enum status                     status = map_open(options->text, EVAL_TEXT_BYTES_MAX, &map, error);

	if (status)
		return status;
	if (!utf8_valid((const char *)map.bytes, map.size, &at)) {
		map_close(&map);
		return error_set(error, STATUS_INVALID, "%.200s is not UTF-8 from byte %zu on", options->text, at);
	}
	spell_identity(hash_fnv1a(HASH_FNV1A_START, map.bytes, map.size), run->text_identity);
	status = encode(options->tokenizer ? options->tokenizer : options->model, &map, &run->tokens, &run->before, error);
	if (!status && options->against && !options->tokenizer)
		status = encode(options->against, &map, &other, &before, error);
	map_close(&map);
	if (!status && options->against && !options->tokenizer) {
		at = 0;
		while (at < other.count && at < run->tokens.count && other.ids[at] == run->tokens.ids[at])
			at++;
		if (at < other.count || at < run->tokens.count)
			status = error_set(error, STATUS_INVALID, "%.120s and %.120s have different tokenizers: the text becomes %zu and %zu "
			    "tokens, which differ from token %zu on", options->model, options->against, run->tokens.count, other.count, at);
	}
	if (!status)
		spell_identity(hash_fnv1a(HASH_FNV1A_START, run->tokens.ids, run->tokens.count * sizeof *run->tokens.ids),
		    run->token_identity);
	token_list_free(&other);
	return status;
}

static enum status count_windows(struct run *run, struct error *error)
{
	const struct eval_text_options *options = run->options;
	size_t                          tokens = run->tokens.count, context = options->context, stride = options->stride;

	if (tokens < (stride ? 2 : context))
		return error_set(error, STATUS_INVALID, "%.200s has %zu tokens: %zu are needed%s", options->text, tokens,
		    stride ? (size_t)2 : context, stride ? "" : ", one window (--context)");
	if (!stride && run->before > context / 2)
		return error_set(error, STATUS_INVALID, "--context %zu: the model wants %zu tokens before a text, half a window", context,
		    run->before);
	run->total_windows = !stride ? tokens / context : tokens <= context ? 1 : 1 + (tokens - context + stride - 1) / stride;
	run->windows = options->windows && options->windows < run->total_windows ? options->windows : run->total_windows;
	return STATUS_OK;
}

static struct window window_at(const struct run *run, uint64_t index)
{
	size_t        context = run->options->context, stride = run->options->stride, tokens = run->tokens.count;
	struct window window = { .begin = index * (stride ? stride : context) };
	size_t        end = window.begin + context < tokens ? window.begin + context : tokens;

	window.count = (uint32_t)(end - window.begin);
	if (!stride)
		window.first = window.begin + context / 2 + 1;
	else
		window.first = index && stride < context ? window.begin - stride + context : window.begin + 1;
	return window;
}

/* Tokens that count in the first WINDOWS windows. */
static uint64_t counted(const struct run *run, uint64_t windows)
{
	uint64_t count = 0;

	for (uint64_t i = 0; i < windows; i++) {
		struct window window = window_at(run, i);

		count += window.begin + window.count - window.first;
	}
	return count;
}

/* ---- models ------------------------------------------------------------------------------------------------------- */

/* A fingerprint of a checkpoint of any size: its configuration, what its tensors are, and three pieces of each. */
static enum status identify(const char *path, char ret[ID_TEXT], struct error *error)
{
	struct model_source source = { .checkpoint = NULL };
	struct map          map;
	uint64_t            hash = HASH_FNV1A_START;
	enum status         status = model_source_open(path, &source, error);

	if (status)
		return status;
	if (source.config) {
		char *text = json_dumps(source.config->object, JSON_COMPACT | JSON_SORT_KEYS);

		hash = text ? hash_fnv1a(hash, text, strlen(text)) : 0;
		status = text ? STATUS_OK : error_set(error, STATUS_NOMEM, "%.160s: no memory", path);
		free(text);
	} else if ((status = map_open(path, SIZE_MAX, &map, error)) == STATUS_OK) {
		hash = hash_fnv1a(hash, map.bytes, map.size < HEAD_BYTES ? map.size : HEAD_BYTES);
		map_close(&map);
	}
	for (size_t i = 0; i < checkpoint_count(source.checkpoint) && !status; i++) {
		const struct checkpoint_tensor *tensor = checkpoint_at(source.checkpoint, i);
		size_t                          piece = tensor->bytes < SAMPLE_BYTES ? tensor->bytes : SAMPLE_BYTES;

		hash = hash_fnv1a(hash, tensor->name, strlen(tensor->name));
		hash = hash_fnv1a(hash, &tensor->dtype, sizeof tensor->dtype);
		hash = hash_fnv1a(hash, tensor->dims, sizeof tensor->dims);
		for (size_t part = 0; part < 3 && piece; part++)
			hash = hash_fnv1a(hash, (const char *)tensor->data + (tensor->bytes - piece) / 2 * part, piece);
	}
	model_source_close(&source);
	if (!status)
		spell_identity(hash, ret);
	return status;
}

static enum status open_side(const struct run *run, bool base, struct side *side, struct error *error)
{
	const struct eval_text_options *options = run->options;
	const struct tool_ranks_options from = { .path = base ? options->against : options->model,
		.backend = base ? options->against_backend : options->backend, .dtype = base ? options->against_dtype : options->dtype,
		.kernels = base ? options->against_kernels : options->kernels, .backend_dir = options->backend_dir,
		.kv_dtype = base ? options->against_kv_dtype : options->kv_dtype, .threads = options->threads, .ranks = options->ranks,
		.round_inputs = options->round_inputs, .check_weights = options->check_weights, .map_weights = options->map_weights };
	enum status status;

	side->path = from.path;
	if ((status = identify(from.path, side->identity, error)) || (status = tool_ranks_open(&from, &side->ranks, error)))
		return status;
	side->info = model_info(side->ranks.models[0]);
	if (side->info->encoder)
		return error_set(error, STATUS_UNSUPPORTED, "%.160s gives embeddings: it has no perplexity", from.path);
	if (options->context > side->info->max_context)
		return error_set(error, STATUS_CONTEXT_LENGTH, "--context %u: the context of %.160s is %u", options->context, from.path,
		    side->info->max_context);
	for (size_t i = 0; i < run->tokens.count; i++)
		if ((uint32_t)run->tokens.ids[i] >= side->info->vocab)
			return error_set(error, STATUS_INVALID, "the text has token %d, %.160s has %u of them", run->tokens.ids[i], from.path,
			    side->info->vocab);
	side->logits = calloc(EVAL_ROWS, side->info->vocab * sizeof *side->logits);
	if (!side->logits)
		return error_set(error, STATUS_NOMEM, "out of memory for %d rows of logits", EVAL_ROWS);
	return tool_run_open(&side->ranks, options->context, &side->run, error);
}

static enum status open_sides(struct run *run, struct error *error)
{
	enum status status = STATUS_OK;

	run->side_count = run->options->against ? 2 : 1;
	for (unsigned i = 0; i < run->side_count && !status; i++)
		status = open_side(run, i == 1, &run->sides[i], error);
	if (!status && run->side_count == 2 && run->sides[0].info->vocab != run->sides[1].info->vocab)
		status = error_set(error, STATUS_INVALID, "%.160s has a vocabulary of %u, %.160s of %u: they cannot be compared",
		    run->sides[0].path, run->sides[0].info->vocab, run->sides[1].path, run->sides[1].info->vocab);
	return status;
}

/* ---- the state file ----------------------------------------------------------------------------------------------- */

/* The sums by name, as the file has them. */
static const struct sum_field {
	const char *name;
	size_t      offset;
} sum_fields[] = {
	{ "nll", offsetof(struct eval_sums, nll) }, { "nll2", offsetof(struct eval_sums, nll2) },
	{ "base", offsetof(struct eval_sums, base) }, { "base2", offsetof(struct eval_sums, base2) },
	{ "change", offsetof(struct eval_sums, change) }, { "change2", offsetof(struct eval_sums, change2) },
	{ "kl", offsetof(struct eval_sums, kl) }, { "kl2", offsetof(struct eval_sums, kl2) },
	{ "kl_max", offsetof(struct eval_sums, kl_max) },
};
enum { SUM_FIELDS = sizeof sum_fields / sizeof *sum_fields };

static double *sum_field(struct eval_sums *sums, unsigned i) { return (double *)((char *)sums + sum_fields[i].offset); }

/* What must be the same for a run to go on. */
static void spell_options(struct run *run)
{
	const struct eval_text_options *o = run->options;

	snprintf(run->how, sizeof run->how, "context %u, stride %u, backend %s %s %s %s, against %s %s %s %s, ranks %u%s",
	    o->context, o->stride, o->backend, o->dtype, o->kernels, o->kv_dtype ? o->kv_dtype : "auto", o->against_backend,
	    o->against_dtype, o->against_kernels, o->against_kv_dtype ? o->against_kv_dtype : "auto", o->ranks,
	    o->round_inputs ? ", inputs rounded" : "");
}

static enum status write_state(struct run *run, struct error *error)
{
	const char *path = run->options->state;
	json_t     *sums = json_object(), *state;
	char        number[40], *temporary = NULL;
	int         failed;

	for (unsigned i = 0; i < SUM_FIELDS; i++) {
		snprintf(number, sizeof number, "%a", *sum_field(&run->sums, i));
		json_object_set_new(sums, sum_fields[i].name, json_string(number));
	}
	state = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:o}", "version", STATE_VERSION, "model",
	    run->sides[0].identity, "against", run->sides[1].identity, "text", run->text_identity, "tokens", run->token_identity,
	    "options", run->how, "windows", (json_int_t)run->done, "count", (json_int_t)run->sums.count, "agree",
	    (json_int_t)run->sums.agree, "sums", sums);
	if (!state || asprintf(&temporary, "%s.new", path) < 0) {
		json_decref(state);
		return error_set(error, STATUS_NOMEM, "out of memory for %.160s", path);
	}
	failed = json_dump_file(state, temporary, JSON_INDENT(1)) || rename(temporary, path);
	json_decref(state);
	if (failed) {
		int why = errno;

		remove(temporary);
		free(temporary);
		return error_set(error, STATUS_IO, "%.200s: cannot write: %s", path, strerror(why));
	}
	free(temporary);
	return STATUS_OK;
}

static enum status stale(const struct run *run, const char *what, struct error *error)
{
	return error_set(error, STATUS_INVALID, "%.200s is of another run: its %s is not this one's; remove it, or name another file",
	    run->options->state, what);
}

/* Takes over the sums of a run like this one. */
static enum status read_state(struct run *run, struct error *error)
{
	const struct {
		const char *name, *own;
	} same[] = { { "model", run->sides[0].identity }, { "against", run->sides[1].identity }, { "text", run->text_identity },
		{ "tokens", run->token_identity }, { "options", run->how } };
	const char *path = run->options->state;
	json_error_t why;
	json_t      *state, *sums;
	json_int_t   windows = 0, count = 0, agree = 0;
	int          version = 0;
	enum status  status = STATUS_OK;

	if (access(path, F_OK) && errno == ENOENT)
		return STATUS_OK;
	state = json_load_file(path, 0, &why);
	if (!state || json_unpack(state, "{s:i, s:I, s:I, s:I, s:o}", "version", &version, "windows", &windows, "count", &count,
	    "agree", &agree, "sums", &sums) || version != STATE_VERSION || windows < 0 || count < 0 || agree < 0 || agree > count) {
		json_decref(state);
		return error_set(error, STATUS_INVALID, "%.200s is no state file of penstock eval; remove it, or name another file", path);
	}
	for (size_t i = 0; i < sizeof same / sizeof *same && !status; i++) {
		const char *said = json_string_value(json_object_get(state, same[i].name));

		if (!said || strcmp(said, same[i].own) != 0)
			status = stale(run, same[i].name, error);
	}
	if (!status && (uint64_t)windows > run->windows)
		status = stale(run, "number of windows", error);
	if (!status && (uint64_t)count != counted(run, (uint64_t)windows))
		status = stale(run, "number of tokens", error);
	for (unsigned i = 0; i < SUM_FIELDS && !status; i++) {
		const char *said = json_string_value(json_object_get(sums, sum_fields[i].name));
		char       *end = NULL;
		double      value = said ? strtod(said, &end) : 0;

		if (!said || end == said || *end || !isfinite(value))
			status = stale(run, sum_fields[i].name, error);
		else
			*sum_field(&run->sums, i) = value;
	}
	json_decref(state);
	if (status)
		return status;
	run->sums.count = (uint64_t)count;
	run->sums.agree = (uint64_t)agree;
	run->done = run->done_before = (uint64_t)windows;
	return STATUS_OK;
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

/* Rows [ROW, ROW + COUNT) of the window through all models; each tells the token after it. */
static enum status run_rows(struct run *run, uint64_t index, uint32_t row, uint32_t count, struct error *error)
{
	uint32_t    wanted[EVAL_ROWS], vocab = run->sides[0].info->vocab;
	enum status status = STATUS_OK;

	for (uint32_t i = 0; i < count; i++)
		wanted[i] = i;
	for (unsigned s = 0; s < run->side_count && !status; s++)
		status = tool_run_logits(&run->sides[s].run, run->window + row, row, count, wanted, count, run->sides[s].logits, error);
	for (uint32_t i = 0; i < count && !status; i++) {
		const float         *base = run->side_count == 2 ? run->sides[1].logits + (size_t)i * vocab : NULL;
		struct eval_position position;

		if (!eval_position(run->sides[0].logits + (size_t)i * vocab, base, vocab, (uint32_t)run->window[row + i + 1], &position))
			return error_set(error, STATUS_INVALID, "window %llu, position %u: the logits are not all finite",
			    (unsigned long long)index, row + i);
		eval_sums_add(&run->sums, &position);
	}
	return status;
}

static enum status run_window(struct run *run, uint64_t index, struct error *error)
{
	struct window window = window_at(run, index);
	uint32_t      row = (uint32_t)(window.first - window.begin) - 1; /* the first that tells something */
	enum status   status = STATUS_OK;

	memcpy(run->window, run->tokens.ids + window.begin, window.count * sizeof *run->window);
	if (!run->options->stride)
		memcpy(run->window, run->tokens.ids, run->before * sizeof *run->window);
	for (unsigned s = 0; s < run->side_count && row && !status; s++)
		status = tool_run_logits(&run->sides[s].run, run->window, 0, row, NULL, 0, NULL, error);
	for (uint32_t count; row + 1 < window.count && !status; row += count) {
		count = window.count - 1 - row < EVAL_ROWS ? window.count - 1 - row : EVAL_ROWS;
		status = run_rows(run, index, row, count, error);
	}
	return status;
}

static void tell_progress(struct run *run)
{
	uint64_t           now = clock_now_ns();
	struct eval_report report;
	double             left;

	if (run->options->quiet || (run->done < run->windows && now - run->told < CLOCK_NS_PER_S))
		return;
	run->told = now;
	eval_report(&run->sums, &report);
	left = (double)(now - run->began) / 1e9 / (double)(run->done - run->done_before) * (double)(run->windows - run->done);
	fprintf(stderr, "window %llu of %llu: perplexity %.4f", (unsigned long long)run->done, (unsigned long long)run->windows,
	    report.perplexity.mean);
	if (run->side_count == 2)
		fprintf(stderr, ", KL %.6f", report.kl.mean);
	fprintf(stderr, ", %.0f s left\n", left);
}

/* ---- results ------------------------------------------------------------------------------------------------------ */

static void print_text(struct run *run, const struct eval_report *r)
{
	struct backend *backend = tool_ranks_backend(&run->sides[0].ranks);
	const struct eval_text_options *o = run->options;

	printf("%s: %s, %u layers, width %u, on %s\n", o->model, run->sides[0].info->architecture, run->sides[0].info->layers,
	    run->sides[0].info->width, backend->ops->describe(backend));
	printf("%s: %zu tokens, %llu of %llu windows of %u, ", o->text, run->tokens.count, (unsigned long long)run->windows,
	    (unsigned long long)run->total_windows, o->context);
	if (o->stride)
		printf("one every %u; ", o->stride);
	else
		printf("of which the second half counts; ");
	printf("%llu tokens count\n", (unsigned long long)run->sums.count);
	printf("perplexity %.4f ± %.4f (nll %.5f ± %.5f)\n", r->perplexity.mean, r->perplexity.error, r->nll.mean, r->nll.error);
	if (run->side_count < 2)
		return;
	printf("against %s: perplexity %.4f ± %.4f\n", o->against, r->base_perplexity.mean, r->base_perplexity.error);
	printf("  perplexity ratio    %.5f ± %.5f (nll %+.5f ± %.5f)\n", r->ratio.mean, r->ratio.error, r->change.mean,
	    r->change.error);
	printf("  KL divergence       %.6f ± %.6f, largest %.4f\n", r->kl.mean, r->kl.error, r->kl_max);
	printf("  same top token      %.3f %% ± %.3f\n", 100 * r->agree.mean, 100 * r->agree.error);
}

/* JSON has no infinity: null. */
static json_t *number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *mean_json(struct eval_mean mean)
{
	return json_pack("{s:o, s:o}", "mean", number(mean.mean), "error", number(mean.error));
}

static enum status print_json(struct run *run, const struct eval_report *r, struct error *error)
{
	const struct eval_text_options *o = run->options;
	json_t *out = json_pack("{s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:I, s:o, s:o}", "model", o->model, "text", o->text,
	    "text_tokens", (json_int_t)run->tokens.count, "windows", (json_int_t)run->windows, "all_windows",
	    (json_int_t)run->total_windows, "context", (int)o->context, "stride", (int)o->stride, "tokens",
	    (json_int_t)run->sums.count, "nll", mean_json(r->nll), "perplexity", mean_json(r->perplexity));

	if (out && o->against)
		json_object_set_new(out, "against", json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "model", o->against, "nll",
		    mean_json(r->base_nll), "perplexity", mean_json(r->base_perplexity), "nll_change", mean_json(r->change),
		    "perplexity_ratio", mean_json(r->ratio), "kl", mean_json(r->kl), "kl_largest", number(r->kl_max), "same_top",
		    mean_json(r->agree)));
	if (!out || (o->against && !json_object_get(out, "against"))) {
		json_decref(out);
		return error_set(error, STATUS_NOMEM, "out of memory for the results");
	}
	json_dumpf(out, stdout, JSON_INDENT(1));
	printf("\n");
	json_decref(out);
	return STATUS_OK;
}

/* Before a run of hours: what print_json will have to spell. */
static enum status check_names(const struct eval_text_options *options, struct error *error)
{
	const char *const names[] = { options->text, options->model, options->against };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i] && !utf8_valid(names[i], strlen(names[i]), NULL))
			return error_set(error, STATUS_INVALID, "--json: %.200s is not UTF-8, which JSON needs", names[i]);
	return STATUS_OK;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------- */

static enum status run_all(struct run *run, struct error *error)
{
	struct eval_report report;
	enum status        status;

	spell_options(run);
	if (run->options->json && (status = check_names(run->options, error)))
		return status;
	if ((status = read_text(run, error)) || (status = count_windows(run, error)) || (status = open_sides(run, error)))
		return status;
	if (run->options->state && (status = read_state(run, error)))
		return status;
	run->window = calloc(run->options->context, sizeof *run->window);
	if (!run->window)
		return error_set(error, STATUS_NOMEM, "out of memory for a window of %u tokens", run->options->context);
	run->began = run->told = clock_now_ns();
	while (run->done < run->windows) {
		if ((status = run_window(run, run->done, error)))
			return status;
		run->done++;
		if (run->options->state && (status = write_state(run, error)))
			return status;
		tell_progress(run);
	}
	eval_report(&run->sums, &report);
	if (run->options->json)
		return print_json(run, &report, error);
	print_text(run, &report);
	return STATUS_OK;
}

enum status eval_text(const struct eval_text_options *options, struct error *error)
{
	struct run  run = { .options = options };
	enum status status = run_all(&run, error);

	for (unsigned i = 0; i < 2; i++) {
		tool_run_close(&run.sides[i].run);
		tool_ranks_close(&run.sides[i].ranks);
		free(run.sides[i].logits);
	}
	token_list_free(&run.tokens);
	free(run.window);
	return status;
}
