/* Speculation on real mathematics.
 *
 * Bits: the logits of tokens that are computed eight at a time behind a context are those of the same tokens computed one by
 * one: so a guess that was right leaves what a decode would have left.
 *
 * Distribution: four thousand sampled answers with guesses and as many without, from other seeds, are compared by a
 * chi-square test over pairs of tokens.  Seeds are fixed, so the result is always the same.
 *
 * Power: the same test refuses answers of an engine that is told now and then that a wrong guess was drawn. */
#include "engine/engine.h"
#include "support/model_runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 300, QUERIES = 8, ANSWERS = 4000, GENEROUS = 4, TOKENS = 9, RUNNING = 16, KINDS = 4096 };

/* ---- bits ---- */

static int check_context(struct runner *runner, uint32_t context, const int32_t *ids)
{
	uint32_t            vocab = runner->info->vocab;
	float              *single = malloc(QUERIES * vocab * sizeof *single), *logits = malloc(vocab * sizeof *logits);
	struct runner_piece prompt = { 0, ids, context, 1 }, guesses = { 0, ids + context, QUERIES, QUERIES };
	int                 failures = !single || !logits;

	runner_reset(runner, 0);
	failures += !failures && runner_step(runner, &prompt, 1) != STATUS_OK;
	for (uint32_t i = 0; i < QUERIES && !failures; i++) {
		struct runner_piece decode = { 0, ids + context + i, 1, 1 };

		failures += runner_step(runner, &decode, 1) != STATUS_OK;
		runner_logits(runner, 0, single + i * vocab);
	}
	runner_reset(runner, 0);
	failures += !failures && (runner_step(runner, &prompt, 1) || runner_step(runner, &guesses, 1));
	for (uint32_t i = 0; i < QUERIES && !failures; i++) {
		runner_logits(runner, i, logits);
		if (memcmp(logits, single + i * vocab, vocab * sizeof *logits)) {
			printf("context %u: token %u has other bits beside guesses than alone\n", context, i);
			failures++;
		}
	}
	free(single);
	free(logits);
	return failures;
}

static int check_bits(const char *name, enum cpu_isa isa, unsigned threads)
{
	static const uint32_t contexts[] = { 1, 7, 15, 16, 60, 249, 255, 256, 290 };
	struct runner_options options = { .threads = threads, .isa = isa, .max_rows = PROMPT, .block_size = 16, .sequences = 1,
		.max_context = PROMPT, .scattered = true };
	static struct runner  runner;
	struct model_source   source = { .checkpoint = NULL };
	struct error          error = { 0 };
	int32_t               ids[PROMPT + QUERIES];
	int                   failures = 0;

	if (model_source_open(name, &source, &error) || runner_open_source(&source, &options, &runner, &error)) {
		printf("%s: %s\n", name, error.message);
		model_source_close(&source);
		return 1;
	}
	for (uint32_t i = 0; i < PROMPT + QUERIES; i++)
		ids[i] = (int32_t)((i * 7919 + i * i * 31) % runner.info->vocab);
	for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++)
		if (contexts[i] + QUERIES <= runner.info->max_context)
			failures += check_context(&runner, contexts[i], ids);
	runner_close(&runner);
	model_source_close(&source);
	if (failures)
		printf("%s, instruction set %d, %u threads: %d failures\n", name, (int)isa, threads, failures);
	return failures;
}

/* ---- distribution ---- */

struct sampled {
	int32_t  ids[ANSWERS][TOKENS];
	uint32_t count[ANSWERS], ended;
};

static enum engine_control control(void *context, uint64_t tag, uint32_t choice, uint32_t *ret_keep)
{
	(void)context, (void)tag, (void)choice, (void)ret_keep;
	return ENGINE_CONTROL_NONE;
}

static bool may_publish(void *context, uint64_t tag, uint32_t events)
{
	(void)context, (void)tag, (void)events;
	return true;
}

static void token(void *context, uint64_t tag, uint32_t choice, uint32_t seq, int32_t id,
    const struct sample_logprobs *logprobs)
{
	struct sampled *s = context;

	(void)choice, (void)seq, (void)logprobs;
	if (s->count[tag] < TOKENS)
		s->ids[tag][s->count[tag]++] = id;
}

static void end(void *context, uint64_t tag, uint32_t seq, const struct engine_end *e)
{
	(void)tag, (void)seq, (void)e;
	((struct sampled *)context)->ended++;
}

static enum status submit(struct engine *engine, uint64_t tag, uint64_t seed, struct error *error)
{
	static const int32_t  prompt[] = { 3, 9, 5, 7, 9, 5, 8, 9, 5, 7, 9, 5 };
	struct engine_request request = { .id = tag, .tag = tag, .prompt_tokens = sizeof prompt / sizeof *prompt, .max_tokens = TOKENS,
		.ignore_eos = true, .sampling = { .temperature = 0.8f, .top_p = 1, .top_k = 3, .seed = seed } };

	request.prompt = malloc(sizeof prompt);
	if (!request.prompt)
		return STATUS_NOMEM;
	memcpy(request.prompt, prompt, sizeof prompt);
	return engine_submit(engine, &request, 0, error);
}

/* A backend's draws, of which some become what was guessed in their place: a rule that accepts too much. */
static struct {
	struct backend_ops        ops;  /* of the backend, but for two */
	const struct backend_ops *plain; /* its own */
	int32_t                   guesses[256]; /* of each draw of the step, −1 = none */
	uint32_t                  every, wrong; /* of so many wrong guesses one is accepted; wrong guesses so far */
} generous;

static enum status generous_sample(struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t vocab_limit)
{
	for (uint32_t i = 0; i < count && i < 256; i++) {
		bool more = i + 1 < count && rows[i + 1].guess_count == rows[i].guess_count + 1;
		generous.guesses[i] = more ? rows[i + 1].guesses[rows[i].guess_count] : -1;
	}
	return generous.plain->sample(b, rows, count, vocab_limit);
}

static enum status generous_wait(struct backend *b, int32_t *ret_ids, uint32_t count, struct error *error)
{
	enum status status = generous.plain->wait(b, ret_ids, count, error);

	for (uint32_t i = 0; i < count && i < 256 && ret_ids && !status; i++)
		if (generous.guesses[i] >= 0 && ret_ids[i] != generous.guesses[i] && ++generous.wrong % generous.every == 0)
			ret_ids[i] = generous.guesses[i];
	return status;
}

static void make_generous(struct backend *b, uint32_t every)
{
	generous.plain = b->ops;
	generous.ops = *b->ops;
	generous.ops.sample = generous_sample;
	generous.ops.wait = generous_wait;
	generous.every = every;
	generous.wrong = 0;
	b->ops = &generous.ops;
}

/* ANSWERS answers from seeds FIRST on.  EVERY: one of so many wrong guesses is accepted; 0 = none, as it should be. */
static enum status sample(const char *name, enum engine_speculation speculation, uint32_t every, uint64_t first,
    struct metrics *metrics, struct sampled *ret, struct error *error)
{
	struct engine_options options = { .max_running = RUNNING, .max_waiting = RUNNING, .step_tokens = 256, .block_size = 16,
		.kv_tokens = RUNNING * 32, .max_context = 32, .cache_share = 0.5, .slow_client_timeout_ns = UINT64_MAX / 2,
		.depth = 1, .speculation = speculation, .draft_tokens = 3, .ngram_least = 1, .ngram_most = 3 };
	struct engine_sink       sink = { .context = ret, .control = control, .may_publish = may_publish, .token = token, .end = end };
	struct model_source      source = { .checkpoint = NULL };
	struct backend          *backend = NULL;
	struct model            *model = NULL;
	struct engine           *engine = NULL;
	struct engine_step_stats stats;
	uint64_t                 submitted = 0;
	enum status              status = model_source_open(name, &source, error);

	memset(ret, 0, sizeof *ret);
	if (!status)
		status = cpu_backend_create(2, &backend, error);
	if (!status && every)
		make_generous(backend, every);
	if (!status)
		status = model_load(&source, backend, &model, error);
	if (!status)
		status = engine_create(model, backend, &options, &sink, metrics, &engine, NULL, error);
	while (!status && ret->ended < ANSWERS) {
		for (; !status && submitted < ANSWERS && submitted < ret->ended + RUNNING; submitted++)
			status = submit(engine, submitted, first + submitted, error);
		if (!status)
			status = engine_step(engine, 0, &stats, error);
	}
	engine_destroy(engine);
	model_free(model);
	if (backend)
		backend->ops->destroy(backend);
	model_source_close(&source);
	return status;
}

/* Two samples of the same size: are they of one distribution?  Kinds that are rare in both together are one. */
static int compare(const uint32_t *a, const uint32_t *b, const char *what)
{
	double statistic = 0, rest_a = 0, rest_b = 0, freedom = -1, critical;

	for (int i = 0; i <= KINDS; i++) {
		double x = i < KINDS ? a[i] : rest_a, y = i < KINDS ? b[i] : rest_b;

		if (i < KINDS && x + y < 10) {
			rest_a += x;
			rest_b += y;
		} else if (x + y > 0) {
			statistic += (x - y) * (x - y) / (x + y);
			freedom++;
		}
	}
	if (freedom < 1) {
		printf("%s: all answers are alike\n", what);
		return 1;
	}
	/* Once in a thousand (Wilson and Hilferty 1931). */
	critical = freedom * pow(1 - 2 / (9 * freedom) + 3.09 * sqrt(2 / (9 * freedom)), 3);
	printf("%s: chi-square %.1f, %g degrees of freedom, bound %.1f\n", what, statistic, freedom, critical);
	return statistic > critical;
}

/* How many pairs of neighbouring tokens are not distributed as in PLAIN. */
static int compare_pairs(const struct sampled *plain, const struct sampled *guessed)
{
	static uint32_t a[KINDS], b[KINDS];
	int             failures = 0;

	for (int at = 0; at + 1 < TOKENS; at++) { /* the tokens at AT and after it */
		char what[64];

		memset(a, 0, sizeof a);
		memset(b, 0, sizeof b);
		for (int i = 0; i < ANSWERS; i++) {
			a[(plain->ids[i][at] * 331 + plain->ids[i][at + 1]) % KINDS]++;
			b[(guessed->ids[i][at] * 331 + guessed->ids[i][at + 1]) % KINDS]++;
		}
		snprintf(what, sizeof what, "tokens %d and %d", at, at + 1);
		failures += compare(a, b, what);
	}
	return failures;
}

static int check_distribution(const char *name)
{
	static struct sampled plain, guessed, wrong;
	struct metrics        metrics = { .shared = calloc(1, sizeof *metrics.shared) };
	struct error          error = { 0 };
	enum status           status = metrics.shared ? STATUS_OK : STATUS_NOMEM;
	uint64_t              checked, right = 0;
	int                   failures = 0;

	if (!status)
		status = sample(name, ENGINE_SPECULATION_OFF, 0, 1, &metrics, &plain, &error);
	if (!status)
		status = sample(name, ENGINE_SPECULATION_NGRAM, 0, 1000001, &metrics, &guessed, &error);
	if (status) {
		printf("%s: %s\n", name, error.message);
		free(metrics.shared);
		return 1;
	}
	checked = metrics_get(&metrics, METRIC_ngram_draft_tokens);
	for (int i = 0; i < 3; i++)
		right += metrics_get(&metrics, (enum metric)(METRIC_ngram_accepted_1 + i));
	status = sample(name, ENGINE_SPECULATION_NGRAM, GENEROUS, 2000001, &metrics, &wrong, &error);
	free(metrics.shared);
	printf("%llu guesses, %llu right\n", (unsigned long long)checked, (unsigned long long)right);
	failures += right < ANSWERS / 20 || checked - right < ANSWERS / 20; /* both happen */
	failures += compare_pairs(&plain, &guessed);
	if (status || compare_pairs(&plain, &wrong) == 0) {
		printf("a rule that accepts one of %d wrong guesses passes\n", GENEROUS);
		failures++;
	}
	return failures;
}

int main(void)
{
	static const char *const names[] = { "tiny.gguf", "dense/llama", "dense/glm4", "dense/qwen3" };
	const char              *root = getenv("srcdir");
	char                     path[400];
	int                      failures = 0;

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%.300s/tests/data/%s", root ? root : ".", names[i]);
		for (unsigned threads = 1; threads <= 2; threads++)
			failures += check_bits(path, CPU_ISA_BEST, threads);
		failures += check_bits(path, CPU_ISA_GENERIC, 2);
	}
	snprintf(path, sizeof path, "%.300s/tests/data/dense/qwen3", root ? root : ".");
	failures += check_distribution(path);
	return failures != 0;
}
