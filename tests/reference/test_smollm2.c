/* The default model against transformers and llama.cpp (smollm2.ref, made by make_smollm2.py).
 *
 * Runs when PENSTOCK_TEST_MODEL names the model file, else it is skipped.  Criteria: logits within 2e-3 of
 * transformers in float32; transformers' greedy tokens wherever our two best logits differ by more than 4e-3; and, fed
 * llama.cpp's own tokens, our best token is its choice at every step where our two best logits differ by at least 0.5,
 * which must be at least half of the steps.  llama.cpp quantises activations to 8 bits, hence the margin. */
#include "support/model_runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 1 << 17, IDS_MAX = 2048, BLOCK = 32, SKIPPED = 77, STREAMS = 8, ANSWER = 32 };

struct state {
	struct runner runner;
	int32_t  prompt[IDS_MAX], next[IDS_MAX];
	uint32_t prompt_count;
	int32_t  streams[STREAMS][IDS_MAX], answers[2][STREAMS][ANSWER];
	uint32_t stream_counts[STREAMS];
	float   *logits, *at;
	unsigned prompts, failures, compared, transformers_steps, steps, sure;
	double   worst;
};

static uint32_t read_ids(char *text, int32_t *ret)
{
	uint32_t n = 0;

	for (char *end; n < IDS_MAX; text = end, n++) {
		ret[n] = (int32_t)strtol(text, &end, 10);
		if (end == text)
			break;
	}
	return n;
}

static void fail(struct state *state, const char *text) { printf("prompt %u: %s\n", state->prompts,
    text); state->failures++; }

static void step(struct state *state, const int32_t *tokens, uint32_t count, uint32_t logits)
{
	struct runner_piece piece = { 0, tokens, count, logits };

	if (runner_step(&state->runner, &piece, 1)) {
		printf("a step of %u tokens failed\n", count);
		exit(1);
	}
}

/* "at POSITION ID VALUE …" */
static void compare_logits(struct state *state, char *text)
{
	uint32_t position = (uint32_t)strtoul(text, &text, 10), at = state->prompt_count;
	char    *end;

	if (position >= at) {
		fail(state, "a position outside the prompt");
		return;
	}
	runner_reset(&state->runner, 0);
	step(state, state->prompt, position + 1, 1);
	runner_logits(&state->runner, 0, state->logits);
	for (;;) {
		unsigned long id = strtoul(text, &end, 10);
		double        value, difference;

		if (end == text)
			return;
		value = strtod(end, &text);
		difference = fabs((double)state->logits[id] - value);
		state->worst = difference > state->worst ? difference : state->worst;
		state->compared++;
		if (!(difference <= 2e-3)) {
			printf("prompt %u, position %u, id %lu: %.6f, transformers has %.6f\n", state->prompts, position, id,
			    (double)state->logits[id], value);
			state->failures++;
		}
	}
}

/* Our best id at the last position and how far it leads. */
static int32_t best_and_margin(struct state *state, float *ret_margin)
{
	uint32_t vocab = state->runner.info->vocab;
	int32_t  best;
	float    top;

	runner_logits(&state->runner, 0, state->logits);
	best = runner_best(state->logits, vocab);
	top = state->logits[best];
	state->logits[best] = -INFINITY;
	*ret_margin = top - state->logits[runner_best(state->logits, vocab)];
	return best;
}

static void compare_tokens(struct state *state, char *text, bool transformers)
{
	uint32_t count = read_ids(text, state->next);

	runner_reset(&state->runner, 0);
	for (uint32_t i = 0; i < count; i++) {
		float   margin;
		int32_t best;

		step(state, i ? &state->next[i - 1] : state->prompt, i ? 1 : state->prompt_count, 1);
		best = best_and_margin(state, &margin);
		state->transformers_steps += transformers;
		state->steps += !transformers;
		state->sure += !transformers && margin >= 0.5f;
		if (best != state->next[i] && margin >= (transformers ? 4e-3f : 0.5f)) {
			printf("prompt %u, %s step %u: we take %d by %.3f, it has %d\n", state->prompts,
			    transformers ? "transformers" : "llama.cpp", i, best, (double)margin, state->next[i]);
			state->failures++;
		}
	}
}

/* Answers the MEMBERS streams from FIRST on together; *ret_sum takes in every bit of the logits. */
static void answer(struct state *state, uint32_t first, uint32_t members, int32_t ret[STREAMS][ANSWER],
    uint64_t ret_sum[STREAMS])
{
	struct runner_piece pieces[STREAMS];
	uint32_t            vocab = state->runner.info->vocab;

	for (uint32_t m = 0; m < members; m++) {
		runner_reset(&state->runner, first + m);
		pieces[m] = (struct runner_piece){ first + m, state->streams[first + m], state->stream_counts[first + m], 1 };
	}
	for (uint32_t t = 0; t < ANSWER; t++) {
		if (runner_step(&state->runner, pieces, members))
			fail(state, "a step of several streams failed");
		for (uint32_t m = 0; m < members; m++) {
			uint32_t stream = first + m;

			runner_logits(&state->runner, m, state->logits);
			for (uint32_t i = 0; i < vocab; i++) {
				uint32_t bits;
				memcpy(&bits, &state->logits[i], sizeof bits);
				ret_sum[stream] = (ret_sum[stream] ^ bits) * UINT64_C(0x100000001B3);
			}
			ret[stream][t] = runner_best(state->logits, vocab);
			pieces[m] = (struct runner_piece){ stream, &ret[stream][t], 1, 1 };
		}
	}
}

static void compare_streams(struct state *state)
{
	uint64_t sums[2][STREAMS] = { { 0 } };

	for (uint32_t s = 0; s < STREAMS; s++)
		answer(state, s, 1, state->answers[0], sums[0]);
	answer(state, 0, STREAMS, state->answers[1], sums[1]);
	if (memcmp(state->answers[0], state->answers[1], sizeof state->answers[0]) != 0 || memcmp(sums[0], sums[1],
	    sizeof sums[0]) != 0)
		fail(state, "eight streams at once answer differently from each alone");
}

int main(void)
{
	const char  *path = getenv("PENSTOCK_TEST_MODEL"), *source = getenv("abs_top_srcdir");
	struct runner_options options = { .threads = 0, .max_rows = 1024, .block_size = BLOCK, .sequences = STREAMS,
	    .max_context = 2048 };
	struct state *state = calloc(1, sizeof *state);
	struct gguf  *gguf;
	struct error  error;
	char         *line = malloc(LINE_MAX_BYTES), name[4096];
	FILE         *file;
	bool          failed;

	if (!path || !*path) {
		puts("PENSTOCK_TEST_MODEL names no model file: skipped");
		free(state);
		free(line);
		return SKIPPED;
	}
	snprintf(name, sizeof name, "%s/tests/reference/smollm2.ref", source ? source : ".");
	file = fopen(name, "r");
	if (!state || !line || !file || gguf_open(path, &gguf, &error) || runner_open(gguf, &options, &state->runner,
	    &error)) {
		printf("cannot begin: %s\n", file ? error.message : name);
		return 1;
	}
	state->logits = calloc(state->runner.info->vocab, sizeof *state->logits);
	while (fgets(line, LINE_MAX_BYTES, file)) {
		if (strncmp(line, "prompt ", 7) == 0) {
			state->prompts++;
			state->prompt_count = read_ids(line + 7, state->prompt);
			if (state->prompts <= STREAMS) {
				memcpy(state->streams[state->prompts - 1], state->prompt, sizeof state->prompt);
				state->stream_counts[state->prompts - 1] = state->prompt_count;
			}
		} else if (strncmp(line, "at ", 3) == 0) {
			compare_logits(state, line + 3);
		} else if (strncmp(line, "greedy ", 7) == 0) {
			compare_tokens(state, line + 7, true);
		} else if (strncmp(line, "llama ", 6) == 0) {
			compare_tokens(state, line + 6, false);
		}
	}
	compare_streams(state);
	printf("%s; %u prompts\n", state->runner.backend->ops->describe(state->runner.backend), state->prompts);
	printf("transformers: %u logits, worst difference %.2e, %u greedy steps\n", state->compared, state->worst,
	    state->transformers_steps);
	printf("llama.cpp: %u steps, %u with a margin ≥ 0.5\n", state->steps, state->sure);
	if (state->prompts < 10 || 2 * state->sure < state->steps || state->steps < 10 * 64)
		fail(state, "too few prompts or sure steps");
	runner_close(&state->runner);
	gguf_close(gguf);
	fclose(file);
	free(line);
	free(state->logits);
	failed = state->failures > 0;
	free(state);
	return failed;
}
