/* bench_decode: how fast a model runs on the CPU backend, without an engine around it.
 *
 *   bench_decode [-k KERNELS] [-b BATCH] MODEL [THREADS [CONTEXT [STEPS]]]
 *
 * MODEL is a GGUF file or a checkpoint directory (make_random_model.py makes one).  For 1, 2, 4, 8, … BATCH (default 16)
 * sequences: STEPS (40) decode steps (forward, greedy sample, wait), each after CONTEXT (128) tokens of prompt; the median
 * step and the fastest one; then a prompt of 512 tokens at once; then the shares of the operations.  The same run measures
 * how fast the threads can read memory: no step can go faster than that over the weights it reads.  KERNELS: generic,
 * avx2, avx512; default the best. */
#include "read_memory.h"
#include "support/model_runner.h"

#include <stdlib.h>
#include <unistd.h>

enum { STEPS_MAX = 1000, BATCH_MAX = 16, PROMPT = 512, BLOCK = 64, ROUNDS = 3, LARGE_WEIGHT = 4 << 20 };

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
static uint64_t                  read_bytes; /* of weights, in the step */
static double                    best_product; /* bytes per second, of a large weight */

static void count_product(struct backend *b, const struct backend_weight *w, uint64_t began)
{
	uint64_t took = clock_now_ns() - began, bytes = inner->weight_bytes(b, w);

	read_bytes += bytes;
	if (bytes >= LARGE_WEIGHT && (double)bytes * 1e9 / (double)took > best_product)
		best_product = (double)bytes * 1e9 / (double)took;
}

#define TIMED_AND(name, parameters, arguments, and)         \
	static enum status timed_##name parameters          \
	{                                                   \
		uint64_t    began = clock_now_ns();         \
		enum status status = inner->name arguments; \
		op_ns[OP_##name] += clock_now_ns() - began; \
		and;                                        \
		return status;                              \
	}
#define TIMED(name, parameters, arguments) TIMED_AND(name, parameters, arguments, (void)0)
TIMED(embed, (struct backend *b, const struct backend_weight *w, struct activation *y), (b, w, y))
TIMED(rms_norm, (struct backend *b, struct activation *x, const struct activation *residual,
    const struct backend_weight *w, float eps, struct activation *y), (b, x, residual, w, eps, y))
TIMED_AND(linear, (struct backend *b, const struct backend_weight *w, const struct backend_weight *bias,
    const struct activation *x, struct activation *y), (b, w, bias, x, y), count_product(b, w, began))
TIMED(rope_kv_write, (struct backend *b, struct activation *qkv, uint32_t group, uint32_t layer, uint32_t heads,
    const struct rope_desc *rope), (b, qkv, group, layer, heads, rope))
TIMED(attention, (struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer, uint32_t heads,
    float scale, struct activation *y), (b, qkv, group, layer, heads, scale, y))
TIMED(silu_gate, (struct backend *b, const struct activation *x, struct activation *y), (b, x, y))
TIMED_AND(logits, (struct backend *b, struct activation *x, const struct activation *residual,
    const struct backend_weight *norm, float eps, const struct backend_weight *w), (b, x, residual, norm, eps, w),
    count_product(b, w, began))
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

		read_bytes = 0;
		if (runner_step(runner, pieces, batch) || ops->sample(runner->backend, rows, batch, runner->info->vocab) ||
		    ops->wait(runner->backend, ids, batch, NULL))
			die("a step failed");
		times[i] = clock_now_ns() - began;
	}
	qsort(times, steps, sizeof *times, compare_u64);
	*ret_median = times[steps / 2];
	*ret_best = times[0];
}

/* Microseconds per row of some sampling settings, on the logits of the last step of BATCH sequences. */
static void print_sampling(struct runner *runner, uint32_t batch)
{
	static const struct {
		const char          *label;
		struct sample_params params;
	} settings[] = {
		{ "greedy", { .top_p = 1 } },
		{ "greedy, log probability", { .top_p = 1, .logprobs = 1 } },
		{ "and of the top 20", { .top_p = 1, .logprobs = 1 + SAMPLE_TOP_MAX } },
		{ "greedy, penalties", { .top_p = 1, .repetition = 1.1f, .presence = 0.5f, .frequency = 0.5f } },
		{ "temperature 0.8", { .temperature = 0.8f, .top_p = 1 } },
		{ "top_p 0.95", { .temperature = 0.8f, .top_p = 0.95f } },
		{ "top_k 40", { .temperature = 0.8f, .top_p = 1, .top_k = 40 } },
		{ "all filters", { .temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .top_k = 40 } },
		{ "temperature 5, top_p 0.99", { .temperature = 5, .top_p = 0.99f } },
	};
	struct sample_row rows[BATCH_MAX];

	printf("sampling %u rows, µs per row:", batch);
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
		uint64_t best = UINT64_MAX;

		for (uint32_t r = 0; r < batch; r++)
			rows[r] = (struct sample_row){ .logit_row = r, .position = r, .params = settings[i].params,
				.slot = sample_params_need_slot(&settings[i].params) ? 1 + r : 0 };
		for (int round = 0; round < 10; round++) {
			uint64_t began = clock_now_ns(), took;

			if (inner->sample(runner->backend, rows, batch, runner->info->vocab))
				die("a draw failed");
			took = clock_now_ns() - began;
			best = took < best ? took : best;
		}
		printf("%s %s %.0f", i ? "," : "", settings[i].label, (double)best / 1e3 / batch);
	}
	printf("\n");
}

static void usage(void)
{
	fprintf(stderr, "usage: bench_decode [-k KERNELS] [-b BATCH (1…%d)] MODEL [THREADS [CONTEXT (1…%d) [STEPS (1…%d)]]]\n",
	    BATCH_MAX, PROMPT, STEPS_MAX);
	exit(2);
}

static enum cpu_isa find_isa(const char *name)
{
	for (int isa = 0; isa < CPU_ISA_COUNT; isa++)
		if (strcmp(name, cpu_isa_name((enum cpu_isa)isa)) == 0)
			return (enum cpu_isa)isa;
	usage();
	return CPU_ISA_BEST;
}

static void decode_batches(struct runner *runner, uint32_t batch_max, uint32_t context, uint32_t steps, double bandwidth,
    const char *pattern)
{
	double single = 0;

	for (uint32_t batch = 1; batch <= batch_max; batch *= 2) {
		uint64_t median, best, least_median = UINT64_MAX, least_best = UINT64_MAX;

		for (int round = 0; round < ROUNDS; round++) {
			decode(runner, batch, context, steps, &median, &best);
			least_median = median < least_median ? median : least_median;
			least_best = best < least_best ? best : least_best;
		}
		single = batch == 1 ? 1e9 / (double)least_median : single;
		printf("decode %2u: median %.2f ms, %.1f tokens/s, %.2f times one stream (best step %.2f ms, %.1f tokens/s)\n",
		    batch, (double)least_median / 1e6, 1e9 * batch / (double)least_median,
		    1e9 * batch / (double)least_median / single, (double)least_best / 1e6, 1e9 * batch / (double)least_best);
		if (batch == 1) {
			ceiling_raise(&bandwidth, best_product, &pattern, "a product");
			printf("  %.1f MB of weights in a median step: %.1f GB/s, %.0f %% of the %.1f GB/s that %s reads\n",
			    (double)read_bytes / 1e6, (double)read_bytes / (double)least_median,
			    100e9 * (double)read_bytes / (double)least_median / bandwidth, bandwidth / 1e9, pattern);
		}
		print_shares("shares");
	}
}

int main(int argc, char **argv)
{
	static struct runner  runner;
	struct runner_options options = { .max_rows = PROMPT, .block_size = BLOCK, .sequences = BATCH_MAX };
	uint32_t            context = 128, steps = 40, batch_max = BATCH_MAX;
	struct model_source source;
	struct error        error;
	double              bandwidth;
	const char         *pattern = "nothing";

	for (int option; (option = getopt(argc, argv, "k:b:")) != -1;) {
		switch (option) {
		case 'k': options.isa = find_isa(optarg); break;
		case 'b': batch_max = (uint32_t)strtoul(optarg, NULL, 10); break;
		default: usage();
		}
	}
	argv += optind;
	argc -= optind;
	options.threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	context = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : context;
	steps = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : steps;
	if (argc < 1 || steps < 1 || steps > STEPS_MAX || context < 1 || context > PROMPT || batch_max < 1 || batch_max > BATCH_MAX)
		usage();
	options.max_context = PROMPT + STEPS_MAX;
	if (model_source_open(argv[0], &source, &error) || runner_open_source(&source, &options, &runner, &error))
		die(error.message);
	model_source_close(&source);
	printf("%s; %.1f M parameters, %.1f MB of weights\n", runner.backend->ops->describe(runner.backend),
	    (double)runner.info->parameters / 1e6, (double)runner.info->weight_bytes / 1e6);
	bandwidth = read_memory((struct cpu_backend *)runner.backend, 256 << 20, &pattern);
	printf("memory is read at %.1f GB/s (%s)\n", bandwidth / 1e9, pattern);
	wrap(runner.backend);
	decode_batches(&runner, batch_max, context, steps, bandwidth, pattern);
	print_sampling(&runner, batch_max);
	for (int round = 0; round < (batch_max < BATCH_MAX ? 1 : ROUNDS); round++) {
		uint64_t began = clock_now_ns();

		prefill(&runner, 0, PROMPT);
		printf("prefill %d: %.1f tokens/s\n", PROMPT, PROMPT * 1e9 / (double)(clock_now_ns() - began));
	}
	print_shares("shares");
	runner.backend->ops = inner;
	runner_close(&runner);
	return 0;
}
