/* small_models.c: see small_models.h.  Owns how the small checkpoints are opened and the checks of bits that all of them must
 * pass; does not own their names, nor what only one architecture has. */
#include "support/small_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void small_model_path(const char *name, const char *file, char ret[512])
{
	const char *root = getenv("abs_top_srcdir");
	snprintf(ret, 512, "%s/tests/data/%s%s", root ? root : "..", name, file);
}

struct runner *small_model_open(const char *name, unsigned flags, const struct runner_options *options)
{
	struct runner      *runner = calloc(1, sizeof *runner);
	struct model_source source;
	struct error        error;
	char                path[512];

	ck_assert_ptr_nonnull(runner);
	small_model_path(name, "", path);
	ck_assert_msg(model_source_open(path, &source, &error) == STATUS_OK, "%s", error.message);
	source.map_weights = flags & MAPPED;
	source.expand_latent = flags & EXPANDED;
	source.skip_draft = flags & WITHOUT_DRAFT;
	ck_assert_msg(runner_open_source(&source, options, runner, &error) == STATUS_OK, "%s: %s", name, error.message);
	model_source_close(&source); /* what stays in its file must not need it */
	ck_assert_uint_eq(runner->info->vocab, VOCAB);
	return runner;
}

void small_model_close(struct runner *runner)
{
	runner_close(runner);
	free(runner);
}

void small_model_prompt(int32_t *ret, uint32_t seed)
{
	for (uint32_t i = 0; i < PROMPT; i++)
		ret[i] = (int32_t)(3 + (i * 2654435761u + seed * 40503u) % (VOCAB - 3));
}

void small_model_run(struct runner *runner, uint32_t sequence, const int32_t *tokens, uint32_t count, float *ret)
{
	struct runner_piece piece = { sequence, tokens, count, ret ? 1 : 0 };

	ck_assert_int_eq(runner_step(runner, &piece, 1), STATUS_OK);
	if (ret)
		runner_logits(runner, 0, ret);
}

struct runner_options small_model_whole_options(enum cpu_isa isa)
{
	return (struct runner_options){ .threads = 1, .isa = isa, .max_rows = PROMPT, .block_size = 64, .sequences = 1,
		.max_context = 512 };
}

void small_model_whole(const char *name, unsigned flags, enum cpu_isa isa, const int32_t *prompt, float *ret)
{
	struct runner_options options = small_model_whole_options(isa);
	struct runner        *runner = small_model_open(name, flags, &options);

	small_model_run(runner, 0, prompt, PROMPT, ret);
	small_model_close(runner);
}

void small_model_check_pieces(const char *name, enum cpu_isa isa)
{
	struct runner_options options = { .threads = 3, .isa = isa, .max_rows = 128, .block_size = BLOCK, .sequences = 2,
		.max_context = 512, .scattered = true };
	struct runner        *runner = small_model_open(name, 0, &options);
	static const uint32_t sizes[] = { 1, 7, 64, 3, 128, 1, 1 };
	int32_t               prompt[PROMPT];
	float                 expected[VOCAB], logits[VOCAB];
	uint32_t              done = 0;

	small_model_prompt(prompt, 1);
	small_model_whole(name, 0, isa, prompt, expected);
	for (size_t i = 0; done < PROMPT; i++) {
		uint32_t left = PROMPT - done, size = sizes[i % (sizeof sizes / sizeof sizes[0])];

		size = size < left ? size : left;
		small_model_run(runner, 1, prompt + done, size, done + size == PROMPT ? logits : NULL);
		done += size;
	}
	ck_assert_msg(memcmp(logits, expected, sizeof logits) == 0, "%s: a prompt in pieces", name);
	small_model_close(runner);
}

void small_model_check_batch(const char *name, enum cpu_isa isa)
{
	struct runner_options options = { .threads = 1, .isa = isa, .max_rows = PROMPT, .block_size = BLOCK,
		.sequences = BATCH, .max_context = 512 };
	struct runner        *runner = small_model_open(name, 0, &options);
	struct runner_piece   pieces[BATCH];
	int32_t               prompt[BATCH][PROMPT];
	float                 expected[VOCAB], logits[VOCAB];

	for (uint32_t s = 0; s < BATCH; s++) { /* all but the last token, at eight different lengths */
		small_model_prompt(prompt[s], s);
		small_model_run(runner, s, prompt[s], 200 + 10 * s, NULL);
		pieces[s] = (struct runner_piece){ s, prompt[s] + 200 + 10 * s, 1, 1 };
	}
	ck_assert_int_eq(runner_step(runner, pieces, BATCH), STATUS_OK);
	for (uint32_t s = 0; s < BATCH; s += 3) { /* a few of them are enough */
		struct runner_options alone = small_model_whole_options(isa);
		struct runner        *other = small_model_open(name, 0, &alone);

		runner_logits(runner, s, logits);
		small_model_run(other, 0, prompt[s], 200 + 10 * s, NULL);
		small_model_run(other, 0, prompt[s] + 200 + 10 * s, 1, expected);
		ck_assert_msg(memcmp(logits, expected, sizeof logits) == 0, "%s: sequence %u of a batch", name, s);
		small_model_close(other);
	}
	small_model_close(runner);
}
