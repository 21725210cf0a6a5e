/* bench_engine.c: `penstock bench engine`: prefill and decode steps of a model, for some numbers of sequences, prompts and
 * outputs, against what the device's memory and arithmetic allow.  Steps are enqueued as the engine does it: step N + 1 while
 * N runs, its tokens those that N draws.  What the device did between steps is read off its own clock afterwards.
 *
 * Invariant: every time is that of a step among many, never of one that was waited for alone. */
#include "tools/bench_engine.h"

#include "base/clock.h"
#include "model/model.h"
#include "tools/backend.h"
#include "tools/nvml.h"
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES_MAX = 32, BATCH_MAX = 1024, BLOCK = 64, STEP_ROWS = 2048, AHEAD = BACKEND_SAMPLES_MAX, WARM_STEPS = 4,
	PROBE_WIDTH = 8192, PROBE_ROWS = 4096 /* of the product whose speed counts as that of arithmetic */ };

static const char help[] =
    "usage: penstock bench engine --model PATH [OPTION…]\n"
    "\n"
    "Times steps of a model: a prompt for each sequence, then decode steps with one token each.  The floor is a sum over\n"
    "operations, at the bandwidth and the speed of a large product that the same run measures: products read their weights or do\n"
    "their arithmetic, whichever takes longer, attention reads the KV cache, the draw the logits.  gap: from the last kernel of a\n"
    "step to the first of the next; busy: the share of the time between the first step and the last in which the device was\n"
    "within a step; draw: of the tokens.\n"
    "\n"
    "  --dummy            PATH is a directory with config.json: random weights of that size; on cuda quantised as\n"
    "                     its quantization_config says\n"
    "  --round-inputs     round inputs of products to 8 bits where the checkpoint asks for it\n"
    "  --batch N,N,…      numbers of sequences (default 1,16)\n"
    "  --prompt N,N,…     tokens of each prompt (default 200)\n"
    "  --output N,N,…     decode steps (default 64)\n"
    "  --notes            what the backend chose at start\n"
    "  --backend NAME     cpu, cuda (default)\n"
    "  --dtype T          arithmetic of the backend (default: its own)\n"
    "  --kernels K        kernels of the backend cuda: auto (default), library, own, portable\n"
    "  --kv-dtype T       what keys and values are kept in: auto (default), fp8, int8\n"
    "  --threads N        threads of the CPU backend (default: one per core this process may use)\n"
    "  --backend-dir DIR  where loadable backends are\n";

struct job {
	const char *model, *backend, *dtype, *kernels, *backend_dir, *kv_dtype;
	int64_t     threads;
	struct sizes {
		uint32_t values[SIZES_MAX], count, most;
	} batch, prompt, output;
	bool        dummy, notes, round_inputs;
};

/* One line of the table. */
struct shape {
	uint32_t batch, prompt, output;
};

/* Arrays of a step; the backend borrows them until it was waited for. */
struct step {
	struct batch          batch;
	struct batch_sequence sequences[BATCH_MAX];
	struct sample_row     samples[BATCH_MAX];
	int32_t               tokens[STEP_ROWS], positions[STEP_ROWS], slots[STEP_ROWS], logit_rows[BATCH_MAX];
};

struct bench {
	const struct job   *job;
	struct tool_backend backend;
	struct model_source source;
	struct model       *model;
	struct step        *steps; /* [AHEAD + 1] */
	int32_t            *table; /* blocks of all sequences */
	uint32_t            blocks_each;
	struct nvml        *nvml;
	double              bandwidth, arithmetic, kv_token_bytes, *times;
};

static void begin_step(struct bench *bench, struct step *step)
{
	step->batch = (struct batch){ .tokens = step->tokens, .positions = step->positions, .sequences = step->sequences,
		.logit_rows = step->logit_rows };
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		step->batch.kv_slots[g] = step->slots;
	(void)bench;
}

/* ROWS tokens of sequence S from position FROM on; TOKEN for each of them. */
static void add_rows(struct bench *bench, struct step *step, uint32_t s, uint32_t from, uint32_t rows, int32_t token, bool drawn)
{
	struct batch          *batch = &step->batch;
	struct batch_sequence *sequence = &step->sequences[batch->sequence_count++];
	const int32_t         *table = bench->table + (size_t)s * bench->blocks_each;

	*sequence = (struct batch_sequence){ .first_row = batch->rows, .rows = rows, .context = from + rows,
	    .blocks = bench->blocks_each };
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		sequence->block_table[g] = table;
	for (uint32_t r = 0; r < rows; r++, batch->rows++) {
		uint32_t position = from + r;

		step->tokens[batch->rows] = rows == 1 ? token : (int32_t)((position * 7 + s) % 100);
		step->positions[batch->rows] = (int32_t)position;
		step->slots[batch->rows] = table[position / BLOCK] * BLOCK + (int32_t)(position % BLOCK);
	}
	if (!drawn)
		return;
	step->logit_rows[batch->logit_row_count] = (int32_t)batch->rows - 1;
	step->samples[batch->logit_row_count] = (struct sample_row){ .logit_row = batch->logit_row_count, .position = from + rows,
		.params = { .temperature = 0, .top_p = 1 } };
	batch->logit_row_count++;
}

static enum status enqueue(struct bench *bench, struct step *step, struct error *error)
{
	struct backend *backend = bench->backend.backend;
	enum status     status = model_forward(bench->model, &step->batch);

	if (!status && step->batch.logit_row_count)
		status = backend->ops->sample(backend, step->samples, step->batch.logit_row_count, model_info(bench->model)->vocab);
	if (status && backend->ops->wait(backend, NULL, 0, error) == STATUS_OK)
		error_set(error, status, "a step of %u rows: %s", step->batch.rows, status_text(status));
	return status;
}

/* The prompts; *ret_seconds for all. */
static enum status prefill(struct bench *bench, const struct shape *shape, double *ret_seconds, struct error *error)
{
	struct backend *backend = bench->backend.backend;
	uint32_t        prompt = shape->prompt, count = shape->batch, s = 0, done = 0;
	uint64_t        begin = clock_now_ns();
	enum status     status = STATUS_OK;

	while (s < count && !status) {
		struct step *step = &bench->steps[0];

		begin_step(bench, step);
		while (s < count && step->batch.rows < STEP_ROWS) {
			uint32_t room = STEP_ROWS - step->batch.rows, rows = prompt - done < room ? prompt - done : room;

			add_rows(bench, step, s, done, rows, 1, false);
			done += rows;
			if (done == prompt) {
				s++;
				done = 0;
			}
		}
		status = enqueue(bench, step, error);
		if (!status)
			status = backend->ops->wait(backend, NULL, 0, error);
	}
	*ret_seconds = (double)(clock_now_ns() - begin) * 1e-9;
	return status;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* Decode steps; *ret is the median of the seconds between two of them. */
static enum status decode(struct bench *bench, const struct shape *shape, double *ret, struct error *error)
{
	struct backend *backend = bench->backend.backend;
	uint32_t        steps = shape->output + WARM_STEPS, count = shape->batch;
	int32_t         ids[BATCH_MAX];
	uint64_t        last = 0;
	enum status     status = STATUS_OK;

	for (uint32_t i = 0; i <= steps && !status; i++) {
		if (i < steps) {
			struct step *step = &bench->steps[i % (AHEAD + 1)];

			begin_step(bench, step);
			for (uint32_t s = 0; s < count; s++)
				add_rows(bench, step, s, shape->prompt + i, 1, i ? -1 - (int32_t)s : 1, true);
			status = enqueue(bench, step, error);
		}
		if (i == 0 || status)
			continue;
		status = backend->ops->wait(backend, ids, count, error);
		bench->times[i - 1] = (double)(clock_now_ns() - last) * 1e-9;
		last = clock_now_ns();
	}
	qsort(bench->times + WARM_STEPS, steps - WARM_STEPS, sizeof *bench->times, compare_doubles);
	*ret = bench->times[WARM_STEPS + (steps - WARM_STEPS) / 2];
	return status;
}

/* What the device's clock says of the last steps: microseconds between one and the next, of a draw, and the share of the time
 * in which it was busy.  Nothing of a backend without a clock. */
struct clocks {
	bool   known;
	double gap_us, gap_most_us, draw_us, busy;
};

static struct clocks read_clocks(const struct bench *bench, const struct shape *shape)
{
	struct backend           *backend = bench->backend.backend;
	struct backend_step_times times[BACKEND_TIMES_MAX];
	struct clocks             clocks = { .known = false };
	uint32_t                  count = 0, first;
	double                    busy = 0, all;

	if (!backend->ops->step_times || backend->ops->step_times(backend, times, &count) || count < 3)
		return clocks;
	first = count > shape->output ? count - shape->output : 0; /* of the decode steps, without the warm ones */
	for (uint32_t i = first; i < count; i++) {
		double gap = i > first ? ((double)times[i].begin - (double)times[i - 1].end) * 1e-3 : 0;

		clocks.gap_us += gap;
		clocks.gap_most_us = gap > clocks.gap_most_us ? gap : clocks.gap_most_us;
		clocks.draw_us += (double)(times[i].end - times[i].computed) * 1e-3;
		busy += (double)(times[i].end - times[i].begin);
	}
	all = (double)(times[count - 1].end - times[first].begin);
	if (count - first < 2 || all <= 0)
		return clocks;
	clocks.known = true;
	clocks.gap_us /= count - first - 1;
	clocks.draw_us /= count - first;
	clocks.busy = busy / all;
	return clocks;
}

static void print_shape(const struct bench *bench, const struct shape *shape, double prompts, double step, double joules)
{
	const struct model_info *info = model_info(bench->model);
	double        context = shape->prompt + shape->output / 2.0, floor = 0, products, tokens = (double)shape->batch * shape->output;
	double        others = shape->batch * (context * bench->kv_token_bytes + (double)info->vocab * sizeof(float)); /* bytes */
	struct clocks clocks = read_clocks(bench, shape);
	unsigned      sm = 0, memory = 0;
	double        watts = 0;

	/* Of the weights that a step reads; those that are only looked up are not multiplied. */
	products = info->weight_bytes ? 2 * (double)info->parameters * ((double)info->read_bytes / (double)info->weight_bytes) : 0;
	if (bench->bandwidth > 0)
		floor = (double)info->read_bytes / bench->bandwidth;
	if (bench->arithmetic > 0 && products * shape->batch / bench->arithmetic > floor)
		floor = products * shape->batch / bench->arithmetic;
	if (bench->bandwidth > 0)
		floor += others / bench->bandwidth;
	printf("%7u %7u %7u %12.0f", shape->batch, shape->prompt, shape->output, (double)shape->prompt * shape->batch / prompts);
	if (bench->arithmetic > 0)
		printf(" %6.1f %%", 100 * products * shape->prompt * shape->batch / bench->arithmetic / prompts);
	else
		printf(" %8s", "-");
	printf(" %9.3f %9.1f", step * 1e3, shape->batch / step);
	if (floor > 0)
		printf(" %9.3f %5.1f %%", floor * 1e3, 100 * floor / step);
	else
		printf(" %9s %7s", "-", "-");
	if (clocks.known)
		printf(" %7.1f %7.1f %8.1f %5.1f %%", clocks.gap_us, clocks.gap_most_us, clocks.draw_us, 100 * clocks.busy);
	else
		printf(" %7s %7s %8s %7s", "-", "-", "-", "-");
	nvml_clocks(bench->nvml, &sm, &memory, &watts);
	if (joules > 0)
		printf(" %9.3f", joules / tokens);
	else
		printf(" %9s", "-");
	if (sm)
		printf(" %5u %4.0f\n", sm, watts);
	else
		printf(" %5s %4s\n", "-", "-");
}

static enum status measure(struct bench *bench, const struct shape *shape, struct error *error)
{
	double      prompts = 0, step = 0, before = 0, after = 0;
	enum status status = prefill(bench, shape, &prompts, error);
	bool        counted = nvml_energy(bench->nvml, &before);

	if (!status)
		status = decode(bench, shape, &step, error);
	if (status)
		return status;
	counted = counted && nvml_energy(bench->nvml, &after);
	print_shape(bench, shape, prompts, step, counted ? (after - before) * shape->output / (shape->output + WARM_STEPS) : 0);
	fflush(stdout);
	return STATUS_OK;
}

/* Floating-point operations per second of a large product, by the library that comes with the device. */
static void measure_arithmetic(struct bench *bench)
{
	struct weight_desc     desc = { .name = "probe", .format = WEIGHT_BF16, .rows = PROBE_WIDTH, .columns = PROBE_WIDTH };
	struct backend        *b = bench->backend.backend;
	struct backend_weight *probe;
	double                 seconds;

	if (!b->ops->library || !b->ops->weight_dummy || b->ops->weight_dummy(b, &desc, 1, &probe, NULL))
		return;
	if (b->ops->library(b, probe, PROBE_ROWS, 0, &seconds) == STATUS_OK && seconds > 0)
		bench->arithmetic = 2.0 * PROBE_WIDTH * PROBE_WIDTH * PROBE_ROWS / seconds;
	b->ops->weight_free(b, probe);
	if (bench->arithmetic > 0)
		printf("multiplies at %.0f TFLOP/s\n", bench->arithmetic * 1e-12);
}

static enum status open_all(struct bench *bench, struct error *error)
{
	const struct job         *job = bench->job;
	const struct backend_ops *ops;
	const struct model_info  *info;
	uint64_t                  begin = clock_now_ns(), loaded,
	    tokens = (uint64_t)job->prompt.most + job->output.most + WARM_STEPS + 1;
	enum status               status;

	status = job->dummy ? model_source_open_dummy(job->model, &bench->source, error) :
	    model_source_open(job->model, &bench->source, error);
	bench->source.round_inputs = job->round_inputs;
	if (status || (status = tool_backend_open(job->backend, tool_backend_dtype(job->backend, job->dtype, &bench->source),
	        job->kernels, job->backend_dir, (unsigned)job->threads, &bench->backend, error)))
		return status;
	ops = bench->backend.backend->ops;
	printf("%s\n", ops->describe(bench->backend.backend));
	bench->nvml = nvml_open(ops->describe(bench->backend.backend));
	if (ops->read_bandwidth && !ops->read_bandwidth(bench->backend.backend, &bench->bandwidth))
		printf("reads %.2f TB/s\n", bench->bandwidth * 1e-12);
	if ((status = model_load(&bench->source, bench->backend.backend, &bench->model, error)) ||
	    (status = model_set_kv_type(bench->model, job->kv_dtype, error)))
		return status;
	loaded = clock_now_ns();
	info = model_info(bench->model);
	if (info->encoder)
		return error_set(error, STATUS_UNSUPPORTED, "%s is an encoder: it has no decode steps", info->architecture);
	if (tokens > info->max_context)
		return error_set(error, STATUS_CONTEXT_LENGTH, "prompt and output are %llu tokens, the model's context %u",
		    (unsigned long long)tokens, info->max_context);
	bench->blocks_each = (uint32_t)((tokens + BLOCK - 1) / BLOCK);
	for (uint32_t g = 0; g < info->kv_group_count; g++) {
		struct kv_group_desc group = info->kv_groups[g];

		group.block_size = BLOCK;
		bench->kv_token_bytes += (double)ops->kv_bytes(bench->backend.backend, &group) / BLOCK;
	}
	status = model_plan(bench->model, STEP_ROWS, job->batch.most, BLOCK, bench->blocks_each * job->batch.most, error);
	if (status)
		return status;
	bench->table = calloc((size_t)bench->blocks_each * job->batch.most, sizeof *bench->table);
	bench->steps = calloc(AHEAD + 1, sizeof *bench->steps);
	bench->times = calloc((size_t)job->output.most + WARM_STEPS, sizeof *bench->times);
	if (!bench->table || !bench->steps || !bench->times)
		return error_set(error, STATUS_NOMEM, "out of memory");
	for (uint32_t i = 0; i < bench->blocks_each * job->batch.most; i++)
		bench->table[i] = (int32_t)i;
	printf("%s, %u layers, width %u: %.2f GB of weights, %.2f GB read by a step; loaded in %.1f s, "
	    "planned and rehearsed in %.1f s\n",
	    info->architecture, info->layers, info->width, (double)info->weight_bytes * 1e-9, (double)info->read_bytes * 1e-9,
	    (double)(loaded - begin) * 1e-9, (double)(clock_now_ns() - loaded) * 1e-9);
	measure_arithmetic(bench);
	return STATUS_OK;
}

static enum status run(const struct job *job, struct error *error)
{
	struct bench bench = { .job = job };
	enum status  status = open_all(&bench, error);

	for (uint32_t i = 0; !status && job->notes && bench.backend.backend->ops->notes; i++) {
		const char *note = bench.backend.backend->ops->notes(bench.backend.backend, i);

		if (!note)
			break;
		printf("%s\n", note);
	}
	if (!status)
		printf("%7s %7s %7s %12s %8s %9s %9s %9s %7s %7s %7s %8s %7s %9s %5s %4s\n", "streams", "prompt", "output", "prompt tok/s",
		    "share", "step ms", "tok/s", "floor ms", "share", "gap us", "most", "draw us", "busy", "J/token", "MHz", "W");
	for (uint32_t p = 0; p < job->prompt.count; p++)
		for (uint32_t o = 0; o < job->output.count; o++)
			for (uint32_t b = 0; b < job->batch.count && !status; b++)
				status = measure(&bench, &(struct shape){ job->batch.values[b], job->prompt.values[p], job->output.values[o] },
				    error);
	free(bench.table);
	free(bench.steps);
	free(bench.times);
	nvml_close(bench.nvml);
	model_free(bench.model);
	tool_backend_close(&bench.backend);
	model_source_close(&bench.source);
	return status;
}

/* "1,8,16" */
static bool read_sizes(const char *name, const char *text, uint32_t limit, struct sizes *ret)
{
	struct sizes sizes = { .count = 0 };

	for (const char *c = text; sizes.count < SIZES_MAX;) {
		char         *end;
		unsigned long value = strtoul(c, &end, 10);

		if (end == c || value < 1 || value > limit || (*end && *end != ','))
			break;
		sizes.values[sizes.count++] = (uint32_t)value;
		sizes.most = value > sizes.most ? (uint32_t)value : sizes.most;
		if (!*end) {
			*ret = sizes;
			return true;
		}
		c = end + 1;
	}
	tool_usage("bench engine", "%s %.64s: up to %d numbers in 1…%u", name, text, (int)SIZES_MAX, limit);
	return false;
}

int bench_engine(int argc, char **argv)
{
	enum { OPTION_DUMMY = 256, OPTION_ROUND_INPUTS, OPTION_BATCH, OPTION_PROMPT, OPTION_OUTPUT, OPTION_NOTES, OPTION_BACKEND,
	    OPTION_DTYPE, OPTION_KERNELS, OPTION_THREADS, OPTION_BACKEND_DIR, OPTION_KV_DTYPE };
	static const struct option options[] = {
		{ "model", required_argument, NULL, 'm' }, { "dummy", no_argument, NULL, OPTION_DUMMY },
		{ "round-inputs", no_argument, NULL, OPTION_ROUND_INPUTS },
		{ "notes", no_argument, NULL, OPTION_NOTES },
		{ "batch", required_argument, NULL, OPTION_BATCH }, { "prompt", required_argument, NULL, OPTION_PROMPT },
		{ "output", required_argument, NULL, OPTION_OUTPUT }, { "backend", required_argument, NULL, OPTION_BACKEND },
		{ "dtype", required_argument, NULL, OPTION_DTYPE }, { "kernels", required_argument, NULL, OPTION_KERNELS },
		{ "threads", required_argument, NULL, OPTION_THREADS }, { "kv-dtype", required_argument, NULL, OPTION_KV_DTYPE },
		{ "backend-dir", required_argument, NULL, OPTION_BACKEND_DIR }, { "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 },
	};
	struct job   job = { .backend = "cuda", .dtype = "", .kernels = "", .kv_dtype = "auto", .prompt = { { 200 }, 1, 200 },
	    .output = { { 64 }, 1, 64 },
		.batch = { { 1, 16 }, 2, 16 } };
	struct error error;
	bool         fine = true;
	int          c;

	while (fine && (c = getopt_long(argc, argv, "m:h", options, NULL)) != -1) {
		switch (c) {
		case 'm': job.model = optarg; break;
		case OPTION_DUMMY: job.dummy = true; break;
		case OPTION_ROUND_INPUTS: job.round_inputs = true; break;
		case OPTION_NOTES: job.notes = true; break;
		case OPTION_BATCH: fine = read_sizes("--batch", optarg, BATCH_MAX, &job.batch); break;
		case OPTION_PROMPT: fine = read_sizes("--prompt", optarg, 1 << 20, &job.prompt); break;
		case OPTION_OUTPUT: fine = read_sizes("--output", optarg, 1 << 16, &job.output); break;
		case OPTION_BACKEND: job.backend = optarg; break;
		case OPTION_DTYPE: job.dtype = optarg; break;
		case OPTION_KERNELS: job.kernels = optarg; break;
		case OPTION_THREADS: fine = tool_int("bench engine", "--threads", optarg, 0, 256, &job.threads); break;
		case OPTION_BACKEND_DIR: job.backend_dir = optarg; break;
		case OPTION_KV_DTYPE: job.kv_dtype = optarg; break;
		case 'h': fputs(help, stdout); return TOOL_OK;
		default: return tool_usage("bench engine", "wrong option");
		}
	}
	if (!fine)
		return TOOL_USAGE;
	if (optind < argc)
		return tool_usage("bench engine", "unexpected argument %s", argv[optind]);
	if (!job.model)
		return tool_usage("bench engine", "--model PATH is needed");
	return run(&job, &error) ? tool_fail("bench engine", &error) : TOOL_OK;
}
