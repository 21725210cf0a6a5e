/* eval.c: `penstock eval`: a checkpoint against reference outputs of another implementation, and the same outputs of our
 * own as a file.  With --text it is eval_text.c's: perplexity, and divergence from another checkpoint.
 *
 * golden.safetensors holds for each prompt K = 0, 1, 2, …: ids.K I32 [n], and for decoders at.K I32 [p], the positions
 * whose logits are given, logits.K F32 [p, vocab], greedy.K I32 [m], the greedy continuation, and margin.K F32 [m], the
 * gap between the best and the second logit at each of its steps, and for models with a layer that drafts mtp_at.K and
 * mtp_logits.K, its logits where it sees the hidden state at a position and the token after it; for encoders embedding.K F32
 * [width]; and for checkpoints that ask for rounded inputs of linear layers logits_aq.K, the logits with that done.  Everything
 * but ids and at may be missing.  Greedy is compared teacher-forced: the reference's tokens go in, and each step whose margin
 * is above the bound must choose the next of them.
 *
 * Invariant: what is written with --dump does not depend on what the golden file says beyond ids, at and mtp_at.
 */
#include "cpu/cpu_backend.h"
#include "file/safetensors.h"
#include "tools/eval_stats.h"
#include "tools/eval_text.h"
#include "tools/run.h"
#include "tools/tool.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDED_BOUND 1e-4
enum { PROMPTS_MAX = 4096, GREEDY_STEPS = 24, PATH_BYTES = 4096, ITEM_NAME_MAX = 32, ITEMS_EACH = 6 };

static const char help[] =
    "usage: penstock eval --golden DIR [OPTION…]\n"
    "       penstock eval --text FILE --model PATH [--against PATH] [OPTION…]\n"
    "\n"
    "Runs the checkpoint in DIR on the prompts of DIR/golden.safetensors and compares with the logits, greedy tokens or\n"
    "embeddings there.  Exit status 0 means that all are within the bounds of the arithmetic:\n"
    "  float32     logits 5e-5 of the prompt's largest; greedy steps of margin > 0.001; embeddings 1e-5\n"
    "              with inputs rounded as the checkpoint asks: 1e-4 at four of ten positions\n"
    "  bfloat16    norm of a position's error over its logits: median 0.025, largest 0.05; greedy steps of margin > 0.2\n"
    "  float16     the same: median 0.004, largest 0.01; greedy steps of margin > 0.05\n"
    "\n"
    "  --model PATH       the checkpoint or GGUF file, where it is not DIR\n"
    "  --dump FILE        write logits.K, greedy.K (24 tokens, not ended by an end-of-sequence token), mtp_logits.K where\n"
    "                     mtp_at.K asks for it, or embedding.K of our own as safetensors, also when the golden file has none\n"
    "                     of them or the comparison fails;\n"
    "                     where there is no golden file, a whole one for prompts of our own\n"
    "  --backend NAME     cpu (default), cuda\n"
    "  --dtype T          arithmetic of the backend: float32, bfloat16, float16 (default: the backend's own)\n"
    "  --kernels K        kernels of the backend cuda: auto (default), library, own, portable\n"
    "  --threads N        threads of the CPU backend (default: one per core this process may use)\n"
    "  --ranks N          divide the model among N ranks in this process (tensor parallelism; CPU backend only)\n"
    "  --map-weights      leave matrices in their files and read them as they are needed, as is done with what does not fit\n"
    "                     into memory (CPU backend only)\n"
    "  --check-weights    first look for NaN and infinity in every weight; the first one ends it\n"
    "  --backend-dir DIR  where loadable backends are\n"
    "\n"
    "With --text: the perplexity of a model on a text (UTF-8, up to 16 MiB and 1,048,576 tokens), and against another one with\n"
    "the same tokenizer the Kullback-Leibler divergence KL(other ‖ model) of the next token, and how often both find the same\n"
    "one most likely; means over tokens with standard errors.  The options above hold, but for --golden and --dump, and:\n"
    "\n"
    "  --against PATH         the other model; both are in memory at a time\n"
    "  --against-backend NAME, --against-dtype T, --against-kernels WORD  of the other model, where they are not the first's\n"
    "  --kv-dtype T, --against-kv-dtype T  what keys and values are kept in: auto (default for either), fp8, int8\n"
    "  --tokenizer PATH       for both models, instead of their own\n"
    "  --context N            tokens of a window (default 512)\n"
    "  --stride N             a window every N tokens, and the tokens count that were in none before, as in the documentation\n"
    "                         of transformers; without it windows follow each other, and the tokens of their second half\n"
    "                         count, as with llama.cpp's perplexity tool\n"
    "  --windows N            no more than N windows\n"
    "  --round-inputs         inputs of linear layers are rounded as the checkpoints ask (fp8, int8)\n"
    "  --state FILE           keep the sums there after each window, and go on from them\n"
    "  --json, --quiet        results as one JSON object; no progress on standard error\n";

struct job {
	const char *golden, *model, *dump, *backend, *dtype, *kernels, *backend_dir;
	int64_t     threads, ranks;
	bool        check_weights, map_weights;
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
	uint32_t     draft_count; /* positions with logits of the layer that drafts */
	uint32_t    *draft_at;
	float       *drafts, *own_drafts; /* [draft_count, vocab], the reference's NULL = none */
	float       *own;     /* logits [at_count, vocab], or an embedding [width] */
	uint32_t    *choices; /* [greedy_count]: our best token where the reference's were put in */
	int32_t      own_greedy[GREEDY_STEPS];
	float        own_margins[GREEDY_STEPS]; /* of the best logit over the second */
};

struct eval {
	const struct job   *job;
	struct safetensors *golden;
	struct tool_ranks   ranks;
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

/* Positions NAME.K, below LIMIT. */
static enum status read_at(const struct eval *eval, const char *name, uint32_t k, uint32_t limit, uint32_t **ret,
    uint32_t *ret_count, struct error *error)
{
	const struct safetensors_tensor *at;
	enum status                      status = find(eval, name, k, SAFETENSORS_I32, 0, 0, &at, error);

	if (status || !at)
		return status;
	*ret = calloc(at->dims[0], sizeof **ret);
	if (!*ret)
		return no_memory(error);
	*ret_count = (uint32_t)at->dims[0];
	return copy_i32(at, limit, (int32_t *)*ret, error);
}

static enum status read_drafts(const struct eval *eval, uint32_t k, struct prompt *prompt, struct error *error)
{
	const struct safetensors_tensor *logits = NULL;
	enum status status = read_at(eval, "mtp_at", k, prompt->count - 1, &prompt->draft_at, &prompt->draft_count, error);

	if (!status && prompt->draft_count)
		status = find(eval, "mtp_logits", k, SAFETENSORS_F32, prompt->draft_count, eval->info->vocab, &logits, error);
	if (!status)
		status = copy_f32(logits, &prompt->drafts, error);
	prompt->own_drafts = calloc((size_t)prompt->draft_count + 1, eval->info->vocab * sizeof *prompt->own_drafts);
	return status || prompt->own_drafts ? status : no_memory(error);
}

static enum status read_decoder(struct eval *eval, uint32_t k, const struct safetensors_tensor *greedy,
    struct prompt *prompt, struct error *error)
{
	const struct safetensors_tensor *logits = NULL, *rounded = NULL, *margins = NULL;
	enum status status = read_at(eval, "at", k, prompt->count, &prompt->at, &prompt->at_count, error);

	if (!status && eval->info->draft_layers && prompt->count > 1)
		status = read_drafts(eval, k, prompt, error);
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
	uint64_t                         length, steps = eval->job->dump ? GREEDY_STEPS : 1;
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
		positions += (size_t)eval->prompts[k].at_count + eval->prompts[k].draft_count;
	}
	eval->norms = calloc(positions + 1, sizeof *eval->norms);
	return status || eval->norms ? status : no_memory(error);
}

/* ---- prompts of our own ------------------------------------------------------------------------------------------- */

/* LENGTH ids that look like nothing, and three positions of them. */
static enum status make_prompt(struct eval *eval, uint32_t k, uint32_t length, struct error *error)
{
	enum { SPECIALS = 3 }; /* ids that are padding or an end in many vocabularies */
	const struct model_info *info = eval->info;
	struct prompt           *prompt = &eval->prompts[k];
	uint32_t                 first = info->vocab > SPECIALS ? SPECIALS : 0, at[] = { 0, length / 3, length - 1 };

	prompt->count = length;
	prompt->ids = calloc(length, sizeof *prompt->ids);
	prompt->at = calloc(3, sizeof *prompt->at);
	prompt->choices = calloc(1, sizeof *prompt->choices);
	prompt->own = calloc(info->encoder ? 1 : 3, (info->encoder ? info->width : info->vocab) * sizeof *prompt->own);
	if (!prompt->ids || !prompt->at || !prompt->choices || !prompt->own)
		return no_memory(error);
	for (uint32_t i = 0; i < length; i++)
		prompt->ids[i] = (int32_t)(first + (i * 2654435761u + k * 40503u) % (info->vocab - first));
	for (uint32_t i = 0; i < 3 && !info->encoder; i++)
		if (i == 0 || at[i] > at[i - 1])
			prompt->at[prompt->at_count++] = at[i];
	return STATUS_OK;
}

/* Without a golden file there is still something to dump. */
static enum status make_prompts(struct eval *eval, struct error *error)
{
	static const uint32_t lengths[] = { 1, 9, 40, 290 };
	uint32_t              more = eval->info->encoder ? 0 : GREEDY_STEPS - 1, room = eval->info->max_context;
	enum status           status = STATUS_OK;

	if (room <= more)
		return error_set(error, STATUS_CONTEXT_LENGTH, "a prompt has %u tokens with its continuation, the model's context %u",
		    1 + more, room);
	eval->prompt_count = sizeof lengths / sizeof lengths[0];
	eval->prompts = calloc(eval->prompt_count, sizeof *eval->prompts);
	eval->norms = calloc(1, sizeof *eval->norms);
	if (!eval->prompts || !eval->norms)
		return no_memory(error);
	for (uint32_t k = 0; k < eval->prompt_count && !status; k++) {
		uint32_t length = lengths[k] < room - more ? lengths[k] : room - more;

		status = make_prompt(eval, k, length, error);
		eval->longest = length + more;
	}
	return status;
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

static float margin_of(const float *logits, uint32_t vocab, uint32_t best)
{
	float second = -INFINITY;

	for (uint32_t i = 0; i < vocab; i++)
		if (i != best && logits[i] > second)
			second = logits[i];
	return logits[best] - second;
}

/* Our own greedy continuation; the prompt's tokens are in the cache already. */
static enum status continue_greedily(struct eval *eval, struct prompt *prompt, const float *last, struct error *error)
{
	static const uint32_t first = 0;
	uint32_t              vocab = eval->info->vocab;
	float                *logits = calloc(vocab, sizeof *logits);
	enum status           status = logits ? STATUS_OK : no_memory(error);

	for (uint32_t i = 0; i < GREEDY_STEPS && !status; i++) {
		const float *these = i ? logits : last;

		prompt->own_greedy[i] = (int32_t)eval_best(these, vocab);
		prompt->own_margins[i] = margin_of(these, vocab, (uint32_t)prompt->own_greedy[i]);
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
		prompt->choices[i] = eval_best(logits + (size_t)place[prompt->count - 1 + i] * vocab, vocab);
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
	if (prompt->drafts) {
		double error = largest_error(prompt->own_drafts, prompt->drafts, (size_t)prompt->draft_count * vocab);

		eval->worst = fmax(eval->worst, error);
		for (uint32_t i = 0; i < prompt->draft_count; i++)
			eval->norms[eval->norm_count++] = norm_error(prompt->own_drafts + (size_t)i * vocab,
			    prompt->drafts + (size_t)i * vocab, vocab);
		printf(", of drafts %.2e at %u", error, prompt->draft_count);
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
	if (!status && prompt->draft_count)
		status = tool_run_drafts(&eval->run, prompt->ids, prompt->count, prompt->draft_at, prompt->draft_count,
		    prompt->own_drafts, error);
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

/* What arithmetic of 16 bits may make of a position's logits. */
static const struct bounds {
	const char *dtype;
	double      median, largest;
	float       margin;
} bounds16[] = { { "bfloat16", 2.5e-2, 5e-2, 0.2f }, { "float16", 4e-3, 1e-2, 0.05f } };

/* Of float32: NULL. */
static const struct bounds *bounds_of(const char *dtype)
{
	for (size_t i = 0; i < sizeof bounds16 / sizeof *bounds16; i++)
		if (!strcmp(dtype, bounds16[i].dtype))
			return &bounds16[i];
	return NULL;
}

/* The verdict by the bounds of the arithmetic. */
static void judge(struct eval *eval)
{
	const struct bounds *bounds = bounds_of(eval->job->dtype);
	double bound = eval->info->encoder ? 1e-5 : 5e-5, median, largest;

	if (!eval->compared) {
		printf("nothing to compare\n");
		eval->failed = !eval->job->dump;
		return;
	}
	/* One rounding that falls the other way changes all that follows: not every position can be asked for. */
	eval->failed = eval->greedy_right != eval->greedy_counted || 10 * eval->rounded_right < 4 * eval->rounded_count;
	if (!bounds) {
		eval->failed = eval->failed || !(eval->worst <= bound);
		printf("%s: largest error %.2e of the largest value, allowed %.0e", eval->failed ? "FAILED" : "passed", eval->worst, bound);
	} else {
		qsort(eval->norms, eval->norm_count, sizeof *eval->norms, compare_doubles);
		median = eval->norm_count ? eval->norms[eval->norm_count / 2] : 0;
		largest = eval->norm_count ? eval->norms[eval->norm_count - 1] : 0;
		eval->failed = eval->failed || !(median <= bounds->median) || !(largest <= bounds->largest);
		printf("%s: norms of error, median %.2e, allowed %.1e, largest %.2e, allowed %.0e",
		    eval->failed ? "FAILED" : "passed", median, bounds->median, largest, bounds->largest);
	}
	if (eval->greedy_counted + eval->greedy_skipped)
		printf("; greedy %u of %u", eval->greedy_right, eval->greedy_counted);
	if (eval->rounded_count)
		printf("; inputs rounded, %u of %u positions within %.0e", eval->rounded_right, eval->rounded_count, ROUNDED_BOUND);
	printf("\n");
}

/* ---- the dump ----------------------------------------------------------------------------------------------------- */

/* Appends NAME.K, [rows] or [rows, columns]. */
static void add_item(struct safetensors_item *items, char (*names)[ITEM_NAME_MAX], size_t *count, const char *name, uint32_t k,
    enum safetensors_dtype dtype, uint64_t rows, uint64_t columns, const void *data)
{
	size_t n = (*count)++;

	snprintf(names[n], sizeof names[n], "%s.%u", name, k);
	items[n] = (struct safetensors_item){ .name = names[n], .dtype = dtype, .n_dims = columns ? 2 : 1, .dims = { rows, columns },
		.data = data };
}

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

		if (!eval->golden)
			add_item(items, names, &n, "ids", k, SAFETENSORS_I32, prompt->count, 0, prompt->ids);
		if (!eval->golden && prompt->at_count)
			add_item(items, names, &n, "at", k, SAFETENSORS_I32, prompt->at_count, 0, prompt->at);
		if (encoder)
			add_item(items, names, &n, "embedding", k, SAFETENSORS_F32, eval->info->width, 0, prompt->own);
		else if (prompt->at_count)
			add_item(items, names, &n, "logits", k, SAFETENSORS_F32, prompt->at_count, eval->info->vocab, prompt->own);
		if (prompt->draft_count)
			add_item(items, names, &n, "mtp_logits", k, SAFETENSORS_F32, prompt->draft_count, eval->info->vocab,
			    prompt->own_drafts);
		if (!encoder)
			add_item(items, names, &n, "greedy", k, SAFETENSORS_I32, GREEDY_STEPS, 0, prompt->own_greedy);
		if (!encoder && !eval->golden)
			add_item(items, names, &n, "margin", k, SAFETENSORS_F32, GREEDY_STEPS, 0, prompt->own_margins);
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
	tool_ranks_close(&eval->ranks);
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
		free(eval->prompts[k].draft_at);
		free(eval->prompts[k].drafts);
		free(eval->prompts[k].own_drafts);
	}
	free(eval->prompts);
	free(eval->norms);
	close_model(eval);
	safetensors_close(eval->golden);
}

/* The model, once with float inputs and once with them rounded as the checkpoint asks. */
static enum status open_model(struct eval *eval, bool round_inputs, struct error *error)
{
	const struct job               *job = eval->job;
	const struct tool_ranks_options options = { .path = job->model ? job->model : job->golden, .backend = job->backend,
		.dtype = job->dtype, .kernels = job->kernels, .backend_dir = job->backend_dir,
		.threads = (unsigned)job->threads, .ranks = (uint32_t)job->ranks,
		.round_inputs = round_inputs, .check_weights = job->check_weights,
		.map_weights = job->map_weights };
	enum status status = tool_ranks_open(&options, &eval->ranks, error);

	if (status)
		return status;
	eval->info = model_info(eval->ranks.models[0]);
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
	bool              exact = !bounds_of(job->dtype);
	char              path[PATH_BYTES];
	enum status       status;

	if (snprintf(path, sizeof path, "%s/golden.safetensors", job->golden) >= (int)sizeof path)
		return error_set(error, STATUS_LIMIT, "--golden: a path over %d bytes", PATH_BYTES);
	eval->margin = exact ? 1e-3f : bounds_of(job->dtype)->margin;
	status = safetensors_open(path, &eval->golden, error);
	if (status && !(status == STATUS_NOT_FOUND && job->dump))
		return status;
	if ((status = open_model(eval, false, error)) ||
	    (status = eval->golden ? read_golden(eval, error) : make_prompts(eval, error)) ||
	    (status = tool_run_open(&eval->ranks, eval->longest, &eval->run, error)))
		return status;
	printf("%s: %u layers, width %u, on %s", eval->info->architecture, eval->info->layers, eval->info->width,
	    tool_ranks_backend(&eval->ranks)->ops->describe(tool_ranks_backend(&eval->ranks)));
	if (eval->ranks.count > 1)
		printf(" on each of %u ranks", eval->ranks.count);
	printf("\n");
	for (uint32_t k = 0; k < eval->prompt_count && !status; k++)
		status = run_prompt(eval, k, error);
	if (!status && job->dump)
		status = write_dump(eval, error);
	if (!status && eval->has_rounded && exact) {
		close_model(eval);
		status = open_model(eval, true, error);
		if (!status)
			status = tool_run_open(&eval->ranks, eval->longest, &eval->run, error);
		for (uint32_t k = 0; k < eval->prompt_count && !status; k++)
			status = run_rounded(eval, k, error);
	}
	if (!status)
		judge(eval);
	return status;
}

enum { OPTION_GOLDEN = 256, OPTION_MODEL, OPTION_DUMP, OPTION_BACKEND, OPTION_DTYPE, OPTION_KERNELS, OPTION_THREADS, OPTION_RANKS,
    OPTION_CHECK_WEIGHTS, OPTION_MAP_WEIGHTS, OPTION_BACKEND_DIR, OPTION_TEXT, OPTION_AGAINST, OPTION_AGAINST_BACKEND,
    OPTION_AGAINST_DTYPE, OPTION_AGAINST_KERNELS, OPTION_KV_DTYPE, OPTION_AGAINST_KV_DTYPE, OPTION_TOKENIZER,
    OPTION_CONTEXT, OPTION_STRIDE, OPTION_WINDOWS, OPTION_ROUND_INPUTS, OPTION_STATE, OPTION_JSON, OPTION_QUIET };

static bool known_dtype(const char *option, const char *dtype)
{
	if (!*dtype || strcmp(dtype, "float32") == 0 || bounds_of(dtype))
		return true;
	tool_usage("eval", "%s %s: float32, bfloat16 or float16 is needed", option, dtype);
	return false;
}

static int run_text(const struct job *job, struct eval_text_options *text)
{
	struct error error;

	if (job->golden || job->dump)
		return tool_usage("eval", "--text and %s: one of them is needed", job->golden ? "--golden" : "--dump");
	if (!job->model)
		return tool_usage("eval", "--text: --model PATH is needed");
	if (text->stride > text->context)
		return tool_usage("eval", "--stride %u: at most --context, %u, is possible", text->stride, text->context);
	if (!text->against && (text->against_backend || text->against_dtype || text->against_kernels || text->against_kv_dtype))
		return tool_usage("eval", "--against-backend, -dtype, -kernels and -kv-dtype need --against PATH");
	text->model = job->model;
	text->backend = job->backend;
	text->dtype = job->dtype;
	text->kernels = job->kernels;
	text->backend_dir = job->backend_dir;
	text->threads = (unsigned)job->threads;
	text->ranks = (uint32_t)job->ranks;
	text->check_weights = job->check_weights;
	text->map_weights = job->map_weights;
	text->against_backend = text->against_backend ? text->against_backend : text->backend;
	text->against_dtype = text->against_dtype ? text->against_dtype : text->dtype;
	text->against_kernels = text->against_kernels ? text->against_kernels : text->kernels;
	return !known_dtype("--against-dtype", text->against_dtype) ? TOOL_USAGE : eval_text(text, &error) ? tool_fail("eval",
	    &error) : TOOL_OK;
}

/* An option of --text with a number; false after it complained. */
static bool text_number(int option, const char *argument, struct eval_text_options *text)
{
	int64_t     number = 0;
	const char *name = option == OPTION_CONTEXT ? "--context" : option == OPTION_STRIDE ? "--stride" : "--windows";

	if (!tool_int("eval", name, argument, option == OPTION_CONTEXT ? EVAL_CONTEXT_MIN : 1, EVAL_CONTEXT_MAX, &number))
		return false;
	*(option == OPTION_CONTEXT ? &text->context : option == OPTION_STRIDE ? &text->stride : &text->windows) = (uint32_t)number;
	return true;
}

int tool_eval(int argc, char **argv)
{
	static const struct option options[] = {
		{ "text", required_argument, NULL, OPTION_TEXT },
		{ "against", required_argument, NULL, OPTION_AGAINST },
		{ "against-backend", required_argument, NULL, OPTION_AGAINST_BACKEND },
		{ "against-dtype", required_argument, NULL, OPTION_AGAINST_DTYPE },
		{ "against-kernels", required_argument, NULL, OPTION_AGAINST_KERNELS },
		{ "kv-dtype", required_argument, NULL, OPTION_KV_DTYPE },
		{ "against-kv-dtype", required_argument, NULL, OPTION_AGAINST_KV_DTYPE },
		{ "tokenizer", required_argument, NULL, OPTION_TOKENIZER },
		{ "context", required_argument, NULL, OPTION_CONTEXT },
		{ "stride", required_argument, NULL, OPTION_STRIDE },
		{ "windows", required_argument, NULL, OPTION_WINDOWS },
		{ "round-inputs", no_argument, NULL, OPTION_ROUND_INPUTS },
		{ "state", required_argument, NULL, OPTION_STATE },
		{ "json", no_argument, NULL, OPTION_JSON },
		{ "quiet", no_argument, NULL, OPTION_QUIET },
		{ "golden", required_argument, NULL, OPTION_GOLDEN },
		{ "model", required_argument, NULL, OPTION_MODEL },
		{ "dump", required_argument, NULL, OPTION_DUMP },
		{ "backend", required_argument, NULL, OPTION_BACKEND },
		{ "dtype", required_argument, NULL, OPTION_DTYPE },
		{ "kernels", required_argument, NULL, OPTION_KERNELS },
		{ "threads", required_argument, NULL, OPTION_THREADS },
		{ "ranks", required_argument, NULL, OPTION_RANKS },
		{ "check-weights", no_argument, NULL, OPTION_CHECK_WEIGHTS },
		{ "map-weights", no_argument, NULL, OPTION_MAP_WEIGHTS },
		{ "backend-dir", required_argument, NULL, OPTION_BACKEND_DIR },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct job   job = { .backend = "cpu", .dtype = "", .kernels = "", .ranks = 1 };
	struct eval  eval = { .job = &job };
	struct eval_text_options text = { .context = EVAL_CONTEXT_DEFAULT };
	bool         for_text = false; /* an option that only --text has */
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
		case OPTION_KERNELS: job.kernels = optarg; break;
		case OPTION_CHECK_WEIGHTS: job.check_weights = true; break;
		case OPTION_MAP_WEIGHTS: job.map_weights = true; break;
		case OPTION_BACKEND_DIR: job.backend_dir = optarg; break;
		case OPTION_THREADS:
			if (!tool_int("eval", "--threads", optarg, 0, CPU_THREADS_MAX, &job.threads))
				return TOOL_USAGE;
			break;
		case OPTION_RANKS:
			if (!tool_int("eval", "--ranks", optarg, 1, CPU_RANKS_MAX, &job.ranks))
				return TOOL_USAGE;
			break;
		case OPTION_TEXT: text.text = optarg; break;
		case OPTION_AGAINST: text.against = optarg; break;
		case OPTION_AGAINST_BACKEND: text.against_backend = optarg; break;
		case OPTION_AGAINST_DTYPE: text.against_dtype = optarg; break;
		case OPTION_AGAINST_KERNELS: text.against_kernels = optarg; break;
		case OPTION_KV_DTYPE: text.kv_dtype = optarg; break;
		case OPTION_AGAINST_KV_DTYPE: text.against_kv_dtype = optarg; break;
		case OPTION_TOKENIZER: text.tokenizer = optarg; break;
		case OPTION_ROUND_INPUTS: text.round_inputs = true; break;
		case OPTION_STATE: text.state = optarg; break;
		case OPTION_JSON: text.json = true; break;
		case OPTION_QUIET: text.quiet = true; break;
		case OPTION_CONTEXT:
		case OPTION_STRIDE:
		case OPTION_WINDOWS:
			if (!text_number(c, optarg, &text))
				return TOOL_USAGE;
			break;
		case 'h':
			fputs(help, stdout);
			return TOOL_OK;
		default:
			return tool_usage("eval", "wrong option");
		}
		for_text = for_text || c >= OPTION_TEXT;
	}
	if (optind < argc)
		return tool_usage("eval", "unexpected argument %s", argv[optind]);
	if (!known_dtype("--dtype", job.dtype))
		return TOOL_USAGE;
	if (text.text)
		return run_text(&job, &text);
	if (!job.golden)
		return tool_usage("eval", "--golden DIR or --text FILE is needed");
	if (for_text)
		return tool_usage("eval", "an option of --text FILE without it");
	status = evaluate(&eval, &error);
	close_all(&eval);
	if (status)
		return tool_fail("eval", &error);
	return eval.failed ? TOOL_FAILED : TOOL_OK;
}
