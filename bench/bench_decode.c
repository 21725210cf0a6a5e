/* bench_decode: how fast a model runs on the CPU backend, without an engine around it.
 *
 *   bench_decode MODEL [THREADS [CONTEXT [STEPS]]]        default: all processors, 128 tokens of context, 40 steps
 *
 * For 1, 2, 4, 8 and 16 sequences: STEPS decode steps (forward, greedy sample, wait), each after CONTEXT tokens of
 * prompt; the median step and the fastest one; then a prompt of 512 tokens at once; then the shares of the operations.
 * The same run measures how fast the threads can read memory: weights · steps cannot go faster than that with one
 * sequence. */
#include "support/model_runner.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STEPS_MAX = 1000, BATCH_MAX = 16, PROMPT = 512, BLOCK = 64, ROUNDS = 3, READ_ROUNDS = 5 };

/* ---- Time of each operation: a table around the backend's own ---- */

#define OPERATIONS(X) X(embed) X(rms_norm) X(linear) X(rope_kv_write) X(attention) X(silu_gate) X(logits) X(sample)
enum {
#define X(name) OP_##name,
	OPERATIONS(X)
#undef X
	OP_COUNT
};

static const char *const op_names[] = {
#define X(name) #name,
	OPERATIONS(X)
#undef X
};

static const struct backend_ops *inner;
static struct backend_ops        outer;
static uint64_t                  op_ns[OP_COUNT];

#define TIMED(name, parameters, arguments)                  \
	static enum status timed_##name parameters          \
	{                                                   \
		uint64_t    began = clock_now_ns();         \
		enum status status = inner->name arguments; \
		op_ns[OP_##name] += clock_now_ns() - began; \
		return status;                              \
	}
TIMED(embed, (struct backend *b, const struct backend_weight *w, struct activation *y), (b, w, y))
TIMED(rms_norm, (struct backend *b, struct activation *x, const struct activation *residual,
    const struct backend_weight *w, float eps, struct activation *y), (b, x, residual, w, eps, y))
TIMED(linear, (struct backend *b, const struct backend_weight *w, const struct backend_weight *bias,
    const struct activation *x, struct activation *y), (b, w, bias, x, y))
TIMED(rope_kv_write, (struct backend *b, struct activation *qkv, uint32_t group, uint32_t layer, uint32_t heads,
    const struct rope_desc *rope), (b, qkv, group, layer, heads, rope))
TIMED(attention, (struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer, uint32_t heads,
    float scale, struct activation *y), (b, qkv, group, layer, heads, scale, y))
TIMED(silu_gate, (struct backend *b, const struct activation *x, struct activation *y), (b, x, y))
TIMED(logits, (struct backend *b, struct activation *x, const struct activation *residual,
    const struct backend_weight *norm, float eps, const struct backend_weight *w), (b, x, residual, norm, eps, w))
TIMED(sample, (struct backend *b, const struct sample_row *rows, uint32_t count, uint32_t limit), (b, rows, count,
    limit))

static void wrap(struct backend *b)
{
	inner = b->ops;
	outer = *inner;
#define X(name) outer.name = timed_##name;
	OPERATIONS(X)
#undef X
	b->ops = &outer;
}

static void print_shares(const char *label)
{
	uint64_t total = 0;

	for (int i = 0; i < OP_COUNT; i++)
		total += op_ns[i];
	printf("  %s:", label);
	for (int i = 0; i < OP_COUNT; i++)
		printf(" %s %.1f%%", op_names[i], 100.0 * (double)op_ns[i] / (double)(total ? total : 1));
	printf("\n");
	memset(op_ns, 0, sizeof op_ns);
}

/* ---- Reading memory ---- */

struct reader {
	const uint64_t *from;
	size_t          words;
	uint64_t        sum;
};

static void *read_words(void *argument)
{
	struct reader *reader = argument;
	uint64_t       sum[8] = { 0 };

	for (size_t i = 0; i + 8 <= reader->words; i += 8)
		for (int k = 0; k < 8; k++)
			sum[k] ^= reader->from[i + (size_t)k];
	for (int k = 0; k < 8; k++)
		reader->sum ^= sum[k];
	return NULL;
}

/* Bytes per second of THREADS threads over BYTES of memory, the best of some rounds. */
static double read_bandwidth(unsigned threads, size_t bytes)
{
	struct reader readers[CPU_THREADS_MAX];
	pthread_t     ids[CPU_THREADS_MAX];
	uint64_t     *area, best = UINT64_MAX, junk = 0;

	bytes = (bytes + (2 << 20) - 1) / (2 << 20) * (2 << 20);
	area = aligned_alloc(2 << 20, bytes);
	if (!area)
		return 0;
	madvise(area, bytes, MADV_HUGEPAGE);
	memset(area, 1, bytes);
	for (int round = 0; round < READ_ROUNDS; round++) {
		uint64_t began = clock_now_ns(), took;

		for (unsigned t = 0; t < threads; t++) {
			readers[t] = (struct reader){ area + bytes / 8 / threads * t, bytes / 8 / threads, 0 };
			pthread_create(&ids[t], NULL, read_words, &readers[t]);
		}
		for (unsigned t = 0; t < threads; t++) {
			pthread_join(ids[t], NULL);
			junk ^= readers[t].sum;
		}
		took = clock_now_ns() - began;
		best = took < best ? took : best;
	}
	free(area);
	return junk == 1 ? 0 : (double)bytes * 1e9 / (double)best;
}

/* ---- Steps ---- */

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static void die(const char *text)
{
	fprintf(stderr, "bench_decode: %s\n", text);
	exit(1);
}

static void prefill(struct runner *runner, uint32_t sequence, uint32_t tokens)
{
	int32_t             ids[PROMPT];
	struct runner_piece piece = { sequence, ids, tokens, 1 };

	for (uint32_t i = 0; i < tokens; i++)
		ids[i] = (int32_t)((i * 7919 + sequence * 104729) % runner->info->vocab);
	runner_reset(runner, sequence);
	if (runner_step(runner, &piece, 1))
		die("a prompt failed");
}

/* Median and fastest step of BATCH sequences, nanoseconds. */
static void decode(struct runner *runner, uint32_t batch, uint32_t context, uint32_t steps, uint64_t *ret_median,
    uint64_t *ret_best)
{
	const struct backend_ops *ops = runner->backend->ops;
	uint64_t            times[STEPS_MAX];
	int32_t             ids[BATCH_MAX] = { 0 };
	struct runner_piece pieces[BATCH_MAX];
	struct sample_row   rows[BATCH_MAX];

	for (uint32_t s = 0; s < batch; s++) {
		prefill(runner, s, context);
		ids[s] = (int32_t)s;
		pieces[s] = (struct runner_piece){ s, &ids[s], 1, 1 };
		rows[s] = (struct sample_row){ .logit_row = s };
	}
	memset(op_ns, 0, sizeof op_ns);
	for (uint32_t i = 0; i < steps; i++) {
		uint64_t began = clock_now_ns();

		if (runner_step(runner, pieces, batch) || ops->sample(runner->backend, rows, batch, runner->info->vocab) ||
		    ops->wait(runner->backend, ids, batch, NULL))
			die("a step failed");
		times[i] = clock_now_ns() - began;
	}
	qsort(times, steps, sizeof *times, compare_u64);
	*ret_median = times[steps / 2];
	*ret_best = times[0];
}

int main(int argc, char **argv)
{
	static struct runner  runner;
	struct runner_options options = { .threads = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0, .max_rows =
	    PROMPT,
		.block_size = BLOCK, .sequences = BATCH_MAX };
	uint32_t     context = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 128;
	uint32_t     steps = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 40;
	struct gguf *gguf;
	struct error error;
	double       bandwidth, floor_ms, single = 0;
	unsigned     threads;
	const char  *words;

	if (argc < 2 || steps < 1 || steps > STEPS_MAX || context < 1 || context > PROMPT) {
		fprintf(stderr, "usage: bench_decode MODEL [THREADS [CONTEXT (1…%d) [STEPS (1…%d)]]]\n", PROMPT, STEPS_MAX);
		return 2;
	}
	options.max_context = PROMPT + STEPS_MAX;
	if (gguf_open(argv[1], &gguf, &error) || runner_open(gguf, &options, &runner, &error))
		die(error.message);
	words = runner.backend->ops->describe(runner.backend);
	threads = options.threads;
	if (threads == 0)
		sscanf(words, "cpu: %*s kernels, %u", &threads);
	wrap(runner.backend);
	printf("%s; %.1f M parameters, %.1f MB of weights\n", words, (double)runner.info->parameters / 1e6,
	    (double)runner.info->weight_bytes / 1e6);
	bandwidth = read_bandwidth(threads, 256 << 20);
	floor_ms = (double)runner.info->weight_bytes / bandwidth * 1e3;
	printf("memory is read at %.1f GB/s: no step below %.2f ms (%.0f tokens/s for one stream)\n", bandwidth / 1e9,
	    floor_ms, 1e3 / floor_ms);
	for (uint32_t batch = 1; batch <= BATCH_MAX; batch *= 2) {
		uint64_t median, best, least_median = UINT64_MAX, least_best = UINT64_MAX;

		for (int round = 0; round < ROUNDS; round++) {
			decode(&runner, batch, context, steps, &median, &best);
			least_median = median < least_median ? median : least_median;
			least_best = best < least_best ? best : least_best;
		}
		single = batch == 1 ? 1e9 / (double)least_median : single;
		printf("decode %2u: median %.2f ms, %.1f tokens/s, %.2f times one stream (best step %.2f ms, %.1f tokens/s)\n",
		    batch,
		    (double)least_median / 1e6, 1e9 * batch / (double)least_median, 1e9 * batch / (double)least_median / single,
		    (double)least_best / 1e6, 1e9 * batch / (double)least_best);
		print_shares("shares");
	}
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t began = clock_now_ns();

		prefill(&runner, 0, PROMPT);
		printf("prefill %d: %.1f tokens/s\n", PROMPT, PROMPT * 1e9 / (double)(clock_now_ns() - began));
	}
	print_shares("shares");
	runner.backend->ops = inner;
	runner_close(&runner);
	gguf_close(gguf);
	return 0;
}
