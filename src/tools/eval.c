/* eval.c: `penstock eval`: a checkpoint against reference outputs of another implementation, and the same outputs of our
 * own as a file.
 *
 * golden.safetensors holds for each prompt K = 0, 1, 2, …: ids.K I32 [n], and for decoders at.K I32 [p], the positions
 * whose logits are given, logits.K F32 [p, vocab], greedy.K I32 [m], the greedy continuation, and margin.K F32 [m], the
 * gap between the best and the second logit at each of its steps; for encoders embedding.K F32 [width]; and for checkpoints
 * that ask for rounded inputs of linear layers logits_aq.K, the logits with that done.  Everything but ids and at may be
 * missing.  Greedy is compared teacher-forced: the reference's tokens go in, and each step whose
 * margin is above the bound must choose the next of them.
 *
 * Invariant: what is written with --dump does not depend on what the golden file says beyond ids and at.
 */
#include "cpu/cpu_backend.h"
#include "file/safetensors.h"
#include "tools/backend.h"
#include "tools/run.h"
#include "tools/tool.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDED_BOUND 1e-4
enum { PROMPTS_MAX = 4096, GREEDY_STEPS = 24, PATH_BYTES = 4096, ITEM_NAME_MAX = 32, ITEMS_EACH = 2 };

static const char help[] =
    "usage: penstock eval --golden DIR [OPTION…]\n"
    "\n"
    "Runs the checkpoint in DIR on the prompts of DIR/golden.safetensors and compares with the logits, greedy tokens or\n"
    "embeddings there.  Exit status 0 means that all are within the bounds of the arithmetic:\n"
    "  float32     logits 5e-5 of the prompt's largest; greedy steps of margin > 0.001; embeddings 1e-5\n"
    "              with inputs rounded as the checkpoint asks: 1e-4 at four of ten positions\n"
    "  bfloat16    norm of a position's error over its logits: median 0.025, largest 0.05; greedy steps of margin > 0.2\n"
    "\n"
    "  --model PATH       the checkpoint or GGUF file, where it is not DIR\n"
    "  --dump FILE        write logits.K, greedy.K (24 tokens, not ended by an end-of-sequence token) or embedding.K of\n"
    "                     our own as safetensors, also when the golden file has none of them or the comparison fails\n"
    "  --backend NAME     cpu (default), cuda\n"
    "  --dtype T          arithmetic of the backend: float32, bfloat16 (default: the backend's own)\n"
    "  --threads N        threads of the CPU backend (default: one per core this process may use)\n"
    "  --backend-dir DIR  where loadable backends are\n";

struct job {
	const char *golden, *model, *dump, *backend, *dtype, *backend_dir;
	int64_t     threads;
};

/* One prompt of the golden file, and what came out for it. */
struct prompt {
	uint32_t     count, at_count, greedy_count; /* tokens; positions with logits; reference greedy steps, 0 = none */
	int32_t     *ids;     /* [count + greedy_count]: the reference's continuation follows */
	uint32_t    *at;      /* [at_count] */
	float       *logits;  /* reference [at_count, vocab], NULL = none */
	float       *rounded; /* the same with inputs rounded */
	float       *margins; /* [greedy_count] */
	float       *embedding; /* reference [width], NULL = none */
	float       *own;     /* logits [at_count, vocab], or an embedding [width] */
	uint32_t    *choices; /* [greedy_count]: our best token where the reference's were put in */
	int32_t      own_greedy[GREEDY_STEPS];
};

struct eval {
	const struct job   *job;
	struct safetensors *golden;
	struct model_source source;
	struct tool_backend backend;
	struct model       *model;
	const struct model_info *info;
	struct tool_run     run;
	struct prompt      *prompts;
	uint32_t            prompt_count, longest; /* tokens of a sequence at most */
	float               margin;                /* above which a greedy step counts */
	/* Results. */
	double   worst, *norms; /* [norm_count] */
	size_t   norm_count;
	uint32_t greedy_right, greedy_counted, greedy_skipped, compared;
	uint32_t rounded_right, rounded_count; /* positions */
	bool     failed, has_rounded;
};

/* ---- the golden file ---------------------------------------------------------------------------------------------- */

/* Tensor NAME.K of the given kind; *ret stays NULL when there is none.  ROWS = 0: any number of them, for one-dimensional
 * tensors (columns 0) too. */
static enum status find(const struct eval *eval, const char *name, uint32_t k, enum safetensors_dtype dtype, uint64_t rows,
    uint64_t columns, const struct safetensors_tensor **ret, struct error *error)
{
	char                             full[ITEM_NAME_MAX];
	const struct safetensors_tensor *tensor;
	unsigned                         n_dims = columns ? 2 : 1;

	snprintf(full, sizeof full, "%s.%u", name, k);
	tensor = safetensors_find(eval->golden, full);
	*ret = tensor;
	if (!tensor)
		return STATUS_OK;
	if (tensor->dtype != dtype || tensor->n_dims != n_dims || tensor->dims[0] < 1 || tensor->dims[0] > INT32_MAX ||
	    (rows && tensor->dims[0] != rows) || (columns && tensor->dims[1] != columns))
		return error_set(error, STATUS_INVALID, "golden.safetensors: %s is %s [%llu, %llu], %s of %u dimension(s) is needed%s",
		    full, safetensors_dtype_name(tensor->dtype), (unsigned long long)tensor->dims[0],
		    (unsigned long long)tensor->dims[1], safetensors_dtype_name(dtype), n_dims,
		    rows || columns ? ", as long as its neighbours and the model's vocabulary or width" : "");
	return STATUS_OK;
}

/* Copies whole numbers in [0, LIMIT). */
static enum status copy_i32(const struct safetensors_tensor *tensor, uint32_t limit, int32_t *ret, struct error *error)
{
	memcpy(ret, tensor->data, tensor->bytes);
	for (uint64_t i = 0; i < tensor->dims[0]; i++)
		if (ret[i] < 0 || (uint32_t)ret[i] >= limit)
			return error_set(error, STATUS_INVALID, "golden.safetensors: %s[%llu] = %d is outside 0…%u", tensor->name,
			    (unsigned long long)i, ret[i], limit - 1);
	return STATUS_OK;
}

static enum status no_memory(struct error *error) { return error_set(error, STATUS_NOMEM, "out of memory for the prompts"); }

/* A copy of a tensor's values, which may lie at any address; NULL for no tensor. */
static enum status copy_f32(const struct safetensors_tensor *tensor, float **ret, struct error *error)
{
	if (!tensor)
		return STATUS_OK;
	*ret = malloc(tensor->bytes);
	if (!*ret)
		return no_memory(error);
	memcpy(*ret, tensor->data, tensor->bytes);
	return STATUS_OK;
}

static enum status read_at(const struct eval *eval, uint32_t k, struct prompt *prompt, struct error *error)
{
	const struct safetensors_tensor *at;
	enum status                      status = find(eval, "at", k, SAFETENSORS_I32, 0, 0, &at, error);

	if (status || !at)
		return status;
	prompt->at = calloc(at->dims[0], sizeof *prompt->at);
	if (!prompt->at)
		return no_memory(error);
	prompt->at_count = (uint32_t)at->dims[0];
	return copy_i32(at, prompt->count, (int32_t *)prompt->at, error);
}

static enum status read_decoder(struct eval *eval, uint32_t k, const struct safetensors_tensor *greedy,
    struct prompt *prompt, struct error *error)
{
	const struct safetensors_tensor *logits = NULL, *rounded = NULL, *margins = NULL;
	enum status                      status = read_at(eval, k, prompt, error);

	if (!status && prompt->at_count)
		status = find(eval, "logits", k, SAFETENSORS_F32, prompt->at_count, eval->info->vocab, &logits, error);
	if (!status && prompt->at_count)
		status = find(eval, "logits_aq", k, SAFETENSORS_F32, prompt->at_count, eval->info->vocab, &rounded, error);
	if (!status && greedy)
		status = copy_i32(greedy, eval->info->vocab, prompt->ids + prompt->count, error);
	if (!status && greedy)
		status = find(eval, "margin", k, SAFETENSORS_F32, greedy->dims[0], 0, &margins, error);
	if (!status && greedy && !margins)
		status = error_set(error, STATUS_INVALID, "golden.safetensors: greedy.%u is there, margin.%u is missing", k, k);
	if (status || (status = copy_f32(logits, &prompt->logits, error)) ||
	    (status = copy_f32(rounded, &prompt->rounded, error)) || (status = copy_f32(margins, &prompt->margins, error)))
		return status;
	eval->has_rounded |= rounded != NULL;
	prompt->greedy_count = greedy ? (uint32_t)greedy->dims[0] : 0;
	prompt->choices = calloc(prompt->greedy_count + 1, sizeof *prompt->choices);
	prompt->own = calloc((size_t)prompt->at_count + 1, eval->info->vocab * sizeof *prompt->own);
	return prompt->choices && prompt->own ? STATUS_OK : no_memory(error);
}

static enum status read_prompt(struct eval *eval, uint32_t k, struct prompt *prompt, struct error *error)
{
	const struct safetensors_tensor *ids, *greedy = NULL, *embedding = NULL;
	uint64_t                         length, steps = GREEDY_STEPS;
	enum status                      status = find(eval, "ids", k, SAFETENSORS_I32, 0, 0, &ids, error);

	if (!status && !eval->info->encoder)
		status = find(eval, "greedy", k, SAFETENSORS_I32, 0, 0, &greedy, error);
	if (status)
		return status;
	if (greedy && greedy->dims[0] > steps)
		steps = greedy->dims[0];
	/* The last token of a continuation is never put in. */
	length = ids->dims[0] + (eval->info->encoder ? 0 : steps - 1);
	if (length > eval->info->max_context)
		return error_set(error, STATUS_CONTEXT_LENGTH, "prompt %u has %llu tokens with its continuation, the model's context %u",
		    k, (unsigned long long)length, eval->info->max_context);
	eval->longest = length > eval->longest ? (uint32_t)length : eval->longest;
	prompt->count = (uint32_t)ids->dims[0];
	prompt->ids = calloc(prompt->count + (greedy ? greedy->dims[0] : 0), sizeof *prompt->ids);
	if (!prompt->ids)
		return no_memory(error);
	status = copy_i32(ids, eval->info->vocab, prompt->ids, error);
	if (status || !eval->info->encoder)
		return status ? status : read_decoder(eval, k, greedy, prompt, error);
	status = find(eval, "embedding", k, SAFETENSORS_F32, eval->info->width, 0, &embedding, error);
	if (!status)
		status = copy_f32(embedding, &prompt->embedding, error);
	prompt->own = calloc(eval->info->width, sizeof *prompt->own);
	return status || prompt->own ? status : no_memory(error);
}

static enum status read_golden(struct eval *eval, struct error *error)
{
	char        name[ITEM_NAME_MAX];
	size_t      positions = 0;
	enum status status = STATUS_OK;

	for (uint32_t k = 0;; k++) {
		snprintf(name, sizeof name, "ids.%u", k);
		if (!safetensors_find(eval->golden, name))
			break;
		if (k == PROMPTS_MAX)
			return error_set(error, STATUS_LIMIT, "golden.safetensors: over %d prompts", PROMPTS_MAX);
		eval->prompt_count = k + 1;
	}
	if (!eval->prompt_count)
		return error_set(error, STATUS_INVALID, "golden.safetensors has no ids.0");
	eval->prompts = calloc(eval->prompt_count, sizeof *eval->prompts);
	if (!eval->prompts)
		return no_memory(error);
	for (uint32_t k = 0; k < eval->prompt_count && !status; k++) {
		status = read_prompt(eval, k, &eval->prompts[k], error);
		positions += eval->prompts[k].at_count;
	}
	eval->norms = calloc(positions + 1, sizeof *eval->norms);
	return status || eval->norms ? status : no_memory(error);
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

static uint32_t best_of(const float *logits, uint32_t vocab)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

/* Our own greedy continuation; the prompt's tokens are in the cache already. */
static enum status continue_greedily(struct eval *eval, struct prompt *prompt, const float *last, struct error *error)
{
	static const uint32_t first = 0;
	uint32_t              vocab = eval->info->vocab;
	float                *logits = calloc(vocab, sizeof *logits);
	enum status           status = logits ? STATUS_OK : no_memory(error);

	for (uint32_t i = 0; i < GREEDY_STEPS && !status; i++) {
		prompt->own_greedy[i] = (int32_t)best_of(i ? logits : last, vocab);
		if (i + 1 < GREEDY_STEPS)
			status = tool_run_logits(&eval->run, &prompt->own_greedy[i], prompt->count + i, 1, &first, 1, logits, error);
	}
	free(logits);
	return status;
}

/* One pass over the prompt and the reference's continuation: logits at the given positions, and our choice at each step.
 * CONTINUED: our own continuation too. */
static enum status run_decoder(struct eval *eval, struct prompt *prompt, bool continued, struct error *error)
{
	uint32_t    vocab = eval->info->vocab, steps = prompt->greedy_count ? prompt->greedy_count : 1;
	uint32_t    total = prompt->count + steps - 1, n = 0;
	uint32_t   *wanted = calloc(total, sizeof *wanted), *place = calloc(total, sizeof *place); /* of a position in wanted */
	float      *logits = NULL;
	enum status status = wanted && place ? STATUS_OK : no_memory(error);

	for (uint32_t i = 0; i < prompt->at_count && !status; i++)
		place[prompt->at[i]] = 1;
	for (uint32_t position = 0; position < total && !status; position++)
		if (place[position] || position + 1 >= prompt->count) {
			place[position] = n;
			wanted[n++] = position;
		}
	if (!status && !(logits = calloc(n, vocab * sizeof *logits)))
		status = no_memory(error);
	if (!status)
		status = tool_run_logits(&eval->run, prompt->ids, 0, total, wanted, n, logits, error);
	for (uint32_t i = 0; i < prompt->at_count && !status; i++)
		memcpy(prompt->own + (size_t)i * vocab, logits + (size_t)place[prompt->at[i]] * vocab, vocab * sizeof *logits);
	for (uint32_t i = 0; i < prompt->greedy_count && !status; i++)
		prompt->choices[i] = best_of(logits + (size_t)place[prompt->count - 1 + i] * vocab, vocab);
	if (!status && continued)
		status = continue_greedily(eval, prompt, logits + (size_t)place[prompt->count - 1] * vocab, error);
	free(wanted);
	free(place);
	free(logits);
	return status;
}

/* ---- comparing ---------------------------------------------------------------------------------------------------- */

/* The largest error relative to the largest reference value; infinity for what is no number. */
static double largest_error(const float *own, const float *reference, size_t count)
{
	double largest = 0, error = 0;

	for (size_t i = 0; i < count; i++) {
		double difference = fabs((double)own[i] - (double)reference[i]);

		if (!isfinite(own[i]))
			return INFINITY;
		largest = fmax(largest, fabs((double)reference[i]));
		error = fmax(error, difference);
	}
	return largest > 0 ? error / largest : error > 0 ? INFINITY : 0;
}

static double norm_error(const float *own, const float *reference, size_t count)
{
	double squares = 0, error = 0;

	for (size_t i = 0; i < count; i++) {
		double difference = (double)own[i] - (double)reference[i];

		squares += (double)reference[i] * (double)reference[i];
		error += difference * difference;
	}
	error = squares > 0 ? sqrt(error / squares) : sqrt(error);
	return isfinite(error) ? error : INFINITY;
}

static void compare_decoder(struct eval *eval, const struct prompt *prompt)
{
	uint32_t vocab = eval->info->vocab, right = 0, skipped = 0;

	if (prompt->logits) {
		double error = largest_error(prompt->own, prompt->logits, (size_t)prompt->at_count * vocab);

		eval->worst = fmax(eval->worst, error);
		for (uint32_t i = 0; i < prompt->at_count; i++)
			eval->norms[eval->norm_count++] = norm_error(prompt->own + (size_t)i * vocab, prompt->logits + (size_t)i * vocab,
			    vocab);
		printf(", logit error %.2e at %u positions", error, prompt->at_count);
	}
	for (uint32_t i = 0; i < prompt->greedy_count; i++) {
		bool same = prompt->choices[i] == (uint32_t)prompt->ids[prompt->count + i];

		if (!(prompt->margins[i] > eval->margin))
			skipped++;
		else
			right += same;
	}
	if (prompt->greedy_count)
		printf(", greedy %u of %u", right, prompt->greedy_count - skipped);
	if (skipped)
		printf(" (%u below the margin)", skipped);
	eval->greedy_right += right;
	eval->greedy_counted += prompt->greedy_count - skipped;
	eval->greedy_skipped += skipped;
	eval->compared += prompt->logits || prompt->greedy_count;
}

static enum status run_prompt(struct eval *eval, uint32_t k, struct error *error)
{
	struct prompt *prompt = &eval->prompts[k];
	enum status    status;

	if (eval->info->encoder)
		status = tool_run_embedding(&eval->run, prompt->ids, prompt->count, prompt->own, error);
	else
		status = run_decoder(eval, prompt, eval->job->dump != NULL, error);
	if (status)
		return status;
	printf("prompt %u: %u tokens", k, prompt->count);
	if (prompt->embedding) {
		double difference = largest_error(prompt->own, prompt->embedding, eval->info->width);

		printf(", embedding error %.2e", difference);
		eval->worst = fmax(eval->worst, difference);
		eval->compared++;
	} else if (!eval->info->encoder)
		compare_decoder(eval, prompt);
	printf("\n");
	return STATUS_OK;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* The verdict by the bounds of the arithmetic. */
static void judge(struct eval *eval)
{
	bool   exact = strcmp(eval->job->dtype, "bfloat16") != 0;
	double bound = eval->info->encoder ? 1e-5 : 5e-5, median, largest;

	if (!eval->compared) {
		printf("nothing to compare\n");
		eval->failed = !eval->job->dump;
		return;
	}
	/* One rounding that falls the other way changes all that follows: not every position can be asked for. */
	eval->failed = eval->greedy_right != eval->greedy_counted || 10 * eval->rounded_right < 4 * eval->rounded_count;
	if (exact) {
		eval->failed = eval->failed || !(eval->worst <= bound);
		printf("%s: largest error %.2e of the largest value, allowed %.0e", eval->failed ? "FAILED" : "passed", eval->worst, bound);
	} else {
		qsort(eval->norms, eval->norm_count, sizeof *eval->norms, compare_doubles);
		median = eval->norm_count ? eval->norms[eval->norm_count / 2] : 0;
		largest = eval->norm_count ? eval->norms[eval->norm_count - 1] : 0;
		eval->failed = eval->failed || !(median <= 2.5e-2) || !(largest <= 5e-2);
		printf("%s: norms of error, median %.2e, allowed 2.5e-02, largest %.2e, allowed 5e-02",
		    eval->failed ? "FAILED" : "passed", median, largest);
	}
	if (eval->greedy_counted + eval->greedy_skipped)
		printf("; greedy %u of %u", eval->greedy_right, eval->greedy_counted);
	if (eval->rounded_count)
		printf("; inputs rounded, %u of %u positions within %.0e", eval->rounded_right, eval->rounded_count, ROUNDED_BOUND);
	printf("\n");
}

/* ---- the dump ----------------------------------------------------------------------------------------------------- */

static enum status write_dump(const struct eval *eval, struct error *error)
{
	struct safetensors_item *items = calloc((size_t)eval->prompt_count * ITEMS_EACH, sizeof *items);
	char                   (*names)[ITEM_NAME_MAX] = calloc((size_t)eval->prompt_count * ITEMS_EACH, sizeof *names);
	size_t                   n = 0;
	enum status              status;

	if (!items || !names) {
		free(items);
		free(names);
		return no_memory(error);
	}
	for (uint32_t k = 0; k < eval->prompt_count; k++) {
		const struct prompt *prompt = &eval->prompts[k];
		bool                 encoder = eval->info->encoder;

		if (encoder || prompt->at_count) {
			snprintf(names[n], sizeof names[n], "%s.%u", encoder ? "embedding" : "logits", k);
			items[n] = (struct safetensors_item){ .name = names[n], .dtype = SAFETENSORS_F32, .n_dims = encoder ? 1 : 2,
				.dims = { encoder ? eval->info->width : prompt->at_count, eval->info->vocab }, .data = prompt->own };
			n++;
		}
		if (encoder)
			continue;
		snprintf(names[n], sizeof names[n], "greedy.%u", k);
		items[n] = (struct safetensors_item){ .name = names[n], .dtype = SAFETENSORS_I32, .n_dims = 1,
			.dims = { GREEDY_STEPS }, .data = prompt->own_greedy };
		n++;
	}
	status = safetensors_write(eval->job->dump, items, n, error);
	free(items);
	free(names);
	return status;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------- */

static void close_model(struct eval *eval)
{
	tool_run_close(&eval->run);
	model_free(eval->model);
	eval->model = NULL;
	tool_backend_close(&eval->backend);
	model_source_close(&eval->source);
}

static void close_all(struct eval *eval)
{
	for (uint32_t k = 0; eval->prompts && k < eval->prompt_count; k++) {
		free(eval->prompts[k].ids);
		free(eval->prompts[k].at);
		free(eval->prompts[k].logits);
		free(eval->prompts[k].rounded);
		free(eval->prompts[k].margins);
		free(eval->prompts[k].embedding);
		free(eval->prompts[k].own);
		free(eval->prompts[k].choices);
	}
	free(eval->prompts);
	free(eval->norms);
	close_model(eval);
	safetensors_close(eval->golden);
}

/* The model, once with float inputs and once with them rounded as the checkpoint asks. */
static enum status open_model(struct eval *eval, bool round_inputs, struct error *error)
{
	const struct job *job = eval->job;
	enum status       status = model_source_open(job->model ? job->model : job->golden, &eval->source, error);

	if (status)
		return status;
	eval->source.round_inputs = round_inputs;
	if ((status = tool_backend_open(job->backend, job->dtype, job->backend_dir, (unsigned)job->threads, &eval->backend,
	        error)) ||
	    (status = model_load(&eval->source, eval->backend.backend, &eval->model, error)))
		return status;
	eval->info = model_info(eval->model);
	return STATUS_OK;
}

/* Logits at the given positions once more; each counts by its own error. */
static enum status run_rounded(struct eval *eval, uint32_t k, struct error *error)
{
	struct prompt *prompt = &eval->prompts[k];
	uint32_t       vocab = eval->info->vocab, right = 0;
	double         largest = 0;
	enum status    status;

	if (!prompt->rounded)
		return STATUS_OK;
	prompt->greedy_count = 0;
	status = run_decoder(eval, prompt, false, error);
	if (status)
		return status;
	for (size_t i = 0; i < (size_t)prompt->at_count * vocab; i++)
		largest = fmax(largest, fabs((double)prompt->rounded[i]));
	for (uint32_t i = 0; i < prompt->at_count; i++) {
		const float *reference = prompt->rounded + (size_t)i * vocab;
		double       own = 0, error_here = largest_error(prompt->own + (size_t)i * vocab, reference, vocab);

		for (uint32_t v = 0; v < vocab; v++)
			own = fmax(own, fabs((double)reference[v]));
		right += error_here * own <= ROUNDED_BOUND * largest;
	}
	printf("prompt %u, inputs rounded: %u of %u positions within %.0e\n", k, right, prompt->at_count, ROUNDED_BOUND);
	eval->rounded_right += right;
	eval->rounded_count += prompt->at_count;
	return STATUS_OK;
}

static enum status evaluate(struct eval *eval, struct error *error)
{
	const struct job *job = eval->job;
	bool              exact = strcmp(job->dtype, "bfloat16") != 0;
	char              path[PATH_BYTES];
	enum status       status;

	if (snprintf(path, sizeof path, "%s/golden.safetensors", job->golden) >= (int)sizeof path)
		return error_set(error, STATUS_LIMIT, "--golden: a path over %d bytes", PATH_BYTES);
	eval->margin = exact ? 1e-3f : 0.2f;
	if ((status = safetensors_open(path, &eval->golden, error)) || (status = open_model(eval, false, error)) ||
	    (status = read_golden(eval, error)) ||
	    (status = tool_run_open(eval->backend.backend, eval->model, eval->longest, &eval->run, error)))
		return status;
	printf("%s: %u layers, width %u, on %s\n", eval->info->architecture, eval->info->layers, eval->info->width,
	    eval->backend.backend->ops->describe(eval->backend.backend));
	for (uint32_t k = 0; k < eval->prompt_count && !status; k++)
		status = run_prompt(eval, k, error);
	if (!status && job->dump)
		status = write_dump(eval, error);
	if (!status && eval->has_rounded && exact) {
		close_model(eval);
		status = open_model(eval, true, error);
		if (!status)
			status = tool_run_open(eval->backend.backend, eval->model, eval->longest, &eval->run, error);
		for (uint32_t k = 0; k < eval->prompt_count && !status; k++)
			status = run_rounded(eval, k, error);
	}
	if (!status)
		judge(eval);
	return status;
}

enum { OPTION_GOLDEN = 256, OPTION_MODEL, OPTION_DUMP, OPTION_BACKEND, OPTION_DTYPE, OPTION_THREADS, OPTION_BACKEND_DIR };

int tool_eval(int argc, char **argv)
{
	static const struct option options[] = {
		{ "golden", required_argument, NULL, OPTION_GOLDEN },
		{ "model", required_argument, NULL, OPTION_MODEL },
		{ "dump", required_argument, NULL, OPTION_DUMP },
		{ "backend", required_argument, NULL, OPTION_BACKEND },
		{ "dtype", required_argument, NULL, OPTION_DTYPE },
		{ "threads", required_argument, NULL, OPTION_THREADS },
		{ "backend-dir", required_argument, NULL, OPTION_BACKEND_DIR },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct job   job = { .backend = "cpu", .dtype = "" };
	struct eval  eval = { .job = &job };
	struct error error;
	enum status  status;
	int          c;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (c) {
		case OPTION_GOLDEN: job.golden = optarg; break;
		case OPTION_MODEL: job.model = optarg; break;
		case OPTION_DUMP: job.dump = optarg; break;
		case OPTION_BACKEND: job.backend = optarg; break;
		case OPTION_DTYPE: job.dtype = optarg; break;
		case OPTION_BACKEND_DIR: job.backend_dir = optarg; break;
		case OPTION_THREADS:
			if (!tool_int("eval", "--threads", optarg, 0, CPU_THREADS_MAX, &job.threads))
				return TOOL_USAGE;
			break;
		case 'h':
			fputs(help, stdout);
			return TOOL_OK;
		default:
			return tool_usage("eval", "wrong option");
		}
	}
	if (optind < argc)
		return tool_usage("eval", "unexpected argument %s", argv[optind]);
	if (!job.golden)
		return tool_usage("eval", "--golden DIR is needed");
	if (*job.dtype && strcmp(job.dtype, "float32") != 0 && strcmp(job.dtype, "bfloat16") != 0)
		return tool_usage("eval", "--dtype %s: float32 or bfloat16 is needed", job.dtype);
	status = evaluate(&eval, &error);
	close_all(&eval);
	if (status)
		return tool_fail("eval", &error);
	return eval.failed ? TOOL_FAILED : TOOL_OK;
}
