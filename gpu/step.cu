/* step.cu: owns the metadata of steps, their way to the device, recorded steps, and the wait for samples.  Does not own
 * the operations.  Invariant: a staging buffer is written only after the kernel that read it last has run, and arrays with
 * fixed places only by `take`, in the order of steps; so a step may be prepared while the last one runs. */
#include "gpu/types.cuh"
#include "model/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLES_MAX = 1 << 20, TAKE_THREADS = 256, TAKE_BLOCKS = 16, COUNT_WORDS = 4, FEW_ROWS = 32 };

static const uint32_t rung_rows[] = { 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160,
	192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024 };
enum { RUNG_ROWS = sizeof rung_rows / sizeof *rung_rows };

/* ---- Memory ---- */

static uint64_t words_of(uint64_t bytes) { return (bytes + 3) / 4; }

/* Words of each section at most. */
static void section_words(const struct cuda_backend *cuda, uint64_t ret[SECTION_COUNT])
{
	const struct backend_limits *limits = &cuda->scratch.limits;
	uint64_t items = cuda->scratch.partial_rows / (limits->q_heads ? limits->q_heads : 1) + 1;

	ret[SECTION_COUNTS] = COUNT_WORDS;
	ret[SECTION_TOKENS] = ret[SECTION_POSITIONS] = ret[SECTION_ROW_SEQUENCE] = limits->rows;
	ret[SECTION_LOGIT_ROWS] = limits->logit_rows;
	ret[SECTION_SEQUENCES] = words_of(limits->rows * sizeof(struct step_sequence));
	ret[SECTION_ITEMS] = words_of(items * sizeof(struct step_item));
	ret[SECTION_TILES] = words_of(limits->rows * sizeof(struct step_tile));
	ret[SECTION_TABLES] = cuda->tables_max;
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++) {
		ret[SECTION_SLOTS + g] = limits->rows;
		ret[SECTION_UNITS + g] = words_of((uint64_t)cuda->units_max[g] * sizeof(struct attention_unit));
	}
}

/* Units that a step can have in group G: one for each 16 partial results, and one for each KV head of an item. */
static uint32_t units_of(const struct cuda_backend *cuda, int g)
{
	uint64_t partials = cuda->scratch.partial_rows, heads = cuda->scratch.limits.q_heads ? cuda->scratch.limits.q_heads : 1;
	uint64_t units = (uint64_t)cuda->multiprocessors + partials / 16 + (partials / heads + 1) * cuda->kv[g].desc.kv_heads;

	return !cuda->kv[g].swizzle ? 0 : units < INT32_MAX ? (uint32_t)units : (uint32_t)INT32_MAX;
}

/* Places the arrays; with NULL only counts the words. */
static uint64_t place_arrays(struct cuda_backend *cuda, int32_t *start)
{
	struct step_arrays *a = &cuda->arrays;
	uint64_t            words[SECTION_COUNT], at[SECTION_COUNT], total = 0;

	section_words(cuda, words);
	for (int s = 0; s < SECTION_COUNT; s++) {
		at[s] = total;
		total += (words[s] + CUDA_ALIGN / 4 - 1) / (CUDA_ALIGN / 4) * (CUDA_ALIGN / 4);
	}
	if (!start)
		return total;
	a->counts = start + at[SECTION_COUNTS];
	a->tokens = start + at[SECTION_TOKENS];
	a->positions = start + at[SECTION_POSITIONS];
	a->row_sequence = start + at[SECTION_ROW_SEQUENCE];
	a->logit_rows = start + at[SECTION_LOGIT_ROWS];
	a->sequences = (struct step_sequence *)(start + at[SECTION_SEQUENCES]);
	a->items = (struct step_item *)(start + at[SECTION_ITEMS]);
	a->tiles = (struct step_tile *)(start + at[SECTION_TILES]);
	a->tables = start + at[SECTION_TABLES];
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++) {
		a->slots[g] = start + at[SECTION_SLOTS + g];
		a->units[g] = (struct attention_unit *)(start + at[SECTION_UNITS + g]);
	}
	return total;
}

static enum status alloc_slots(struct cuda_backend *cuda)
{
	enum status status = STATUS_OK;

	for (int i = 0; i < CUDA_SLOT_STAGES && !status; i++) {
		struct slot_staging *s = &cuda->slot_staging[i];

		status = cuda_check(cuda, cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming), "cudaEventCreate");
		status = status ? status : cuda_check(cuda, cudaEventCreateWithFlags(&s->taken, cudaEventDisableTiming), "cudaEventCreate");
		status = status ? status : cuda_check(cuda, cudaHostAlloc((void **)&s->host, CUDA_SLOT_WORDS * sizeof *s->host, 0),
		    "cudaHostAlloc");
		status = status ? status : cuda_check(cuda, cudaMalloc((void **)&s->device, CUDA_SLOT_WORDS * sizeof *s->device),
		    "cudaMalloc");
	}
	cuda->slot_biases = (uint16_t *)calloc(cuda->scratch.limits.logit_rows + 1, sizeof *cuda->slot_biases);
	return status ? status : cuda->slot_biases ? STATUS_OK : cuda_check(cuda, cudaErrorMemoryAllocation, "sampler slots");
}

/* Events and pinned memory of samples; metadata follows with the first step, when KV pools are known. */
enum status step_alloc(struct cuda_backend *cuda, struct error *error)
{
	size_t      count = cuda->scratch.limits.logit_rows;
	enum status status = STATUS_OK;

	for (int i = 0; i < BACKEND_SAMPLES_MAX && !status; i++) {
		struct sample_staging *s = &cuda->samples[i];

		status = cuda_check(cuda, cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming), "cudaEventCreate");
		status = status ? status : cuda_check(cuda, cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming), "cudaEventCreate");
		status = status ? status : cuda_check(cuda, cudaHostAlloc((void **)&s->host, count * sizeof *s->host, 0), "cudaHostAlloc");
		status = status ? status : cuda_check(cuda, cudaMalloc((void **)&s->device, count * sizeof *s->device), "cudaMalloc");
		status = status ? status : cuda_check(cuda, cudaHostAlloc((void **)&s->ids, count * sizeof *s->ids, cudaHostAllocMapped),
		    "cudaHostAlloc");
		status = status ? status : cuda_check(cuda, cudaHostAlloc((void **)&s->logprobs, count * sizeof *s->logprobs,
		    cudaHostAllocMapped), "cudaHostAlloc");
		status = status ? status : cuda_check(cuda, cudaHostAlloc((void **)&s->masks,
		    count * cuda->scratch.mask_words * sizeof *s->masks, 0), "cudaHostAlloc");
	}
	status = status ? status : cuda_check(cuda, cudaHostAlloc((void **)&cuda->marks, sizeof *cuda->marks, cudaHostAllocMapped),
	    "cudaHostAlloc");
	if (!status) {
		*cuda->marks = {};
		status = cuda_check(cuda, cudaHostGetDevicePointer((void **)&cuda->marks_device, cuda->marks, 0),
		    "cudaHostGetDevicePointer");
	}
	status = status ? status : cuda_check(cuda, cudaMalloc((void **)&cuda->times, BACKEND_TIMES_MAX * sizeof *cuda->times),
	    "cudaMalloc");
	status = status ? status : cuda_check(cuda, cudaMemsetAsync(cuda->times, 0, BACKEND_TIMES_MAX * sizeof *cuda->times,
	    cuda->stream), "clearing clocks");
	status = status ? status : alloc_slots(cuda);
	status = status ? status : sample_prepare(cuda);
	for (size_t i = 0; i < RUNG_ROWS && rung_rows[i] < cuda->scratch.limits.logit_rows; i++)
		cuda->rungs[cuda->rung_count++].rows = rung_rows[i];
	cuda->rungs[cuda->rung_count++].rows = cuda->scratch.limits.logit_rows;
	if (status)
		*error = cuda->fault_error;
	return status;
}

static enum status alloc_arrays(struct cuda_backend *cuda)
{
	uint64_t    tables = 0, words;
	int32_t    *arrays;
	enum status status;

	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++) {
		tables += cuda->kv[g].keys ? (uint64_t)cuda->scratch.limits.rows * cuda->kv[g].desc.blocks : 0;
		cuda->units_max[g] = units_of(cuda, g);
		if (cuda->units_max[g] && !cuda->planner && attention_planner_create(cuda->scratch.limits.rows, &cuda->planner))
			return cuda_check(cuda, cudaErrorMemoryAllocation, "the plan of decode attention");
	}
	cuda->tables_max = (uint32_t)(tables < TABLES_MAX ? tables : (uint64_t)TABLES_MAX);
	words = place_arrays(cuda, NULL);
	status = cuda_check(cuda, cudaMalloc((void **)&arrays, words * 4), "cudaMalloc of a step's metadata");
	if (status)
		return status;
	place_arrays(cuda, arrays);
	status = cuda_check(cuda, cudaMemsetAsync(arrays, 0, words * 4, cuda->stream), "clearing a step's metadata");
	for (int i = 0; i < CUDA_SLOTS && !status; i++) {
		struct step_staging *s = &cuda->staging[i];

		status = cuda_check(cuda, cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming), "cudaEventCreate");
		status = status ? status : cuda_check(cuda, cudaEventCreateWithFlags(&s->taken, cudaEventDisableTiming), "cudaEventCreate");
		status = status ? status : cuda_check(cuda, cudaHostAlloc((void **)&s->host, words * 4, 0), "cudaHostAlloc");
		status = status ? status : cuda_check(cuda, cudaMalloc((void **)&s->device, words * 4), "cudaMalloc");
	}
	return status;
}

void step_free(struct cuda_backend *cuda)
{
	for (int i = 0; i < BACKEND_SAMPLES_MAX; i++) {
		struct sample_staging *s = &cuda->samples[i];

		if (s->copied)
			cudaEventDestroy(s->copied);
		if (s->done)
			cudaEventDestroy(s->done);
		cudaFreeHost(s->host);
		cudaFree(s->device);
		cudaFreeHost(s->ids);
		cudaFreeHost(s->logprobs);
		cudaFreeHost(s->masks);
	}
	for (int i = 0; i < CUDA_SLOT_STAGES; i++) {
		struct slot_staging *s = &cuda->slot_staging[i];

		if (s->copied)
			cudaEventDestroy(s->copied);
		if (s->taken)
			cudaEventDestroy(s->taken);
		cudaFreeHost(s->host);
		cudaFree(s->device);
	}
	free(cuda->slot_biases);
	for (int i = 0; i < CUDA_SLOTS; i++) {
		struct step_staging *s = &cuda->staging[i];

		if (s->copied)
			cudaEventDestroy(s->copied);
		if (s->taken)
			cudaEventDestroy(s->taken);
		cudaFreeHost(s->host);
		cudaFree(s->device);
	}
	attention_planner_destroy(cuda->planner);
	cudaFree(cuda->arrays.counts);
	cudaFree(cuda->times);
	cudaFreeHost(cuda->marks);
	cuda->marks = NULL;
	for (uint32_t r = 0; r < cuda->rung_count; r++)
		for (int m = 0; m < CUDA_MODELS_MAX; m++)
			if (cuda->rungs[r].recorded[m].graph)
				cudaGraphExecDestroy(cuda->rungs[r].recorded[m].graph);
}

/* ---- The take ---- */

struct take_notes {
	struct fault_marks        *marks;
	uint32_t                   step, mark;
	struct backend_step_times *times;
};

/* Staged words to their places.  IDS are those of the last sample; one that could not be drawn counts as 0. */
static __global__ void __launch_bounds__(TAKE_THREADS) take(struct step_sections sections, const int32_t *from, const int32_t *ids,
    struct take_notes notes)
{
	uint32_t thread = blockIdx.x * TAKE_THREADS + threadIdx.x, threads = TAKE_THREADS * gridDim.x;

	if (thread == 0) {
		*(volatile uint32_t *)&notes.marks->step = notes.step;
		*(volatile uint32_t *)&notes.marks->begun = notes.mark;
		notes.times->begin = device_clock();
		notes.times->end = 0;
	}
	for (int s = 0; s < SECTION_COUNT; s++) {
		for (uint32_t i = thread; i < sections.words[s]; i += threads) {
			int32_t word = from[sections.at[s] + i];

			if (s == SECTION_TOKENS && word < 0) {
				word = ids[-1 - word];
				word = word < 0 ? 0 : word;
			}
			sections.to[s][i] = word;
		}
	}
	if (thread == 0)
		notes.times->ready = device_clock();
}

#ifdef STEP_TRAP
/* A build for tests: in step STEP_TRAP the device fails, a moment after it said where it is. */
static __global__ void trap_kernel(struct step_mark mark)
{
	unsigned long long begin = device_clock();

	mark_begin(mark);
	while (device_clock() - begin < 100000)
		continue;
	__trap();
}
#endif

/* ---- Filling ---- */

struct filler {
	int32_t             *words;
	struct step_sections sections;
	uint32_t             next;
};

/* COUNT more words, as section SECTION with its place TO. */
static int32_t *add_section(struct filler *filler, int section, int32_t *to, uint32_t count)
{
	int32_t *words = filler->words + filler->next;

	filler->sections.to[section] = to;
	filler->sections.at[section] = filler->next;
	filler->sections.words[section] = count;
	filler->next += count;
	return words;
}

static void fill_rows(struct cuda_backend *cuda, const struct batch *batch, struct filler *filler)
{
	struct step *step = &cuda->step;
	int32_t *tokens = add_section(filler, SECTION_TOKENS, cuda->arrays.tokens, step->rows);
	int32_t *positions = add_section(filler, SECTION_POSITIONS, cuda->arrays.positions, step->rows);
	int32_t *owner = add_section(filler, SECTION_ROW_SEQUENCE, cuda->arrays.row_sequence, step->rows);
	int32_t *logit_rows = add_section(filler, SECTION_LOGIT_ROWS, cuda->arrays.logit_rows, step->logit_rows);

	for (uint32_t r = 0; r < step->rows; r++) {
		tokens[r] = r < batch->rows && batch->tokens ? batch->tokens[r] : 0;
		positions[r] = r < batch->rows && batch->positions ? batch->positions[r] : 0;
		owner[r] = -1;
	}
	step->uncovered = step->rows;
	for (uint32_t s = 0; s < batch->sequence_count; s++) {
		for (uint32_t r = 0; r < batch->sequences[s].rows; r++)
			owner[batch->sequences[s].first_row + r] = (int32_t)s;
		step->uncovered -= batch->sequences[s].rows;
	}
	for (uint32_t i = 0; i < step->logit_rows; i++)
		logit_rows[i] = i < batch->logit_row_count ? batch->logit_rows[i] : (int32_t)i;
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++) {
		int32_t *slots;

		if (!cuda->kv[g].keys)
			continue;
		slots = add_section(filler, SECTION_SLOTS + g, cuda->arrays.slots[g], step->rows);
		for (uint32_t r = 0; r < step->rows; r++)
			slots[r] = r < batch->rows ? batch->kv_slots[g][r] : -1;
	}
}

/* What each block does of own decode attention in group G.  Passes are of 16 rows, or of 32 where those do not hold a sequence's,
 * of those heads that the largest layer has.  The kernel of pages of bytes takes no more than a group of runs at once. */
static enum status fill_units(struct cuda_backend *cuda, const struct batch *batch, const struct step_sequence *sequences,
    const struct step_item *items, int g, struct filler *filler)
{
	struct step           *step = &cuda->step;
	uint32_t               group = cuda->scratch.limits.q_heads / cuda->kv[g].desc.kv_heads, parts = 0, units, most;
	struct attention_shape shape = { 0, cuda->kv[g].desc.kv_heads, group, 0, cuda->kv[g].desc.type == KV_FLOAT };
	struct attention_part *part = attention_planner_parts(cuda->planner);

	for (uint32_t s = 0; s < batch->sequence_count; s++)
		if (sequences[s].items)
			part[parts++] = { sequences[s].first_row, sequences[s].rows, sequences[s].context,
				items[sequences[s].first_item].partial, sequences[s].table[g] };
	most = (step->decode_rows_max ? step->decode_rows_max : 1) * group;
	step->pass_parts[g] = most <= 16 ? 2 : most <= 24 ? 3 : 4;
	shape.blocks = (uint32_t)cuda->multiprocessors;
	shape.pass_rows = most <= 16 ? 16 : 32;
	units = attention_plan(cuda->planner, &shape, parts, (struct attention_unit *)(filler->words + filler->next),
	    cuda->units_max[g]);
	if (!units)
		return STATUS_LIMIT;
	add_section(filler, SECTION_UNITS + g, (int32_t *)cuda->arrays.units[g],
	    units * (uint32_t)(sizeof(struct attention_unit) / 4));
	return STATUS_OK;
}

/* Block tables, and what decode and prefill attention have to do.  Sequences of few rows go to decode attention as long
 * as its partial results have room. */
static enum status fill_sequences(struct cuda_backend *cuda, const struct batch *batch, struct filler *filler, int32_t *counts)
{
	struct step          *step = &cuda->step;
	uint32_t              words = batch->sequence_count * (uint32_t)(sizeof(struct step_sequence) / 4), heads, tables = 0;
	struct step_sequence *sequences = (struct step_sequence *)add_section(filler, SECTION_SEQUENCES,
	    (int32_t *)cuda->arrays.sequences,
	    words);
	struct step_item     *items = (struct step_item *)(filler->words + filler->next);
	struct step_tile     *tiles;
	uint64_t              partial = 0;
	uint32_t              item_count = 0, tile_count = 0;

	heads = cuda->scratch.limits.q_heads;
	step->decode_rows_max = 0;
	for (uint32_t s = 0; s < batch->sequence_count; s++) {
		const struct batch_sequence *from = &batch->sequences[s];
		uint32_t run = attention_run(from->context), runs = (from->context + run - 1) / run;

		sequences[s] = { (int32_t)from->first_row, (int32_t)from->rows, (int32_t)from->context, {}, (int32_t)item_count, 0 };
		if (from->rows > CUDA_DECODE_ROWS || partial + (uint64_t)runs * from->rows * heads > cuda->scratch.partial_rows)
			continue;
		step->decode_rows_max = from->rows > step->decode_rows_max ? from->rows : step->decode_rows_max;
		sequences[s].items = (int32_t)runs;
		for (uint32_t i = 0; i < runs; i++) {
			uint32_t end = (i + 1) * run < from->context ? (i + 1) * run : from->context;

			items[item_count++] = { (int32_t)s, (int32_t)(i * run), (int32_t)end, (int32_t)partial };
			partial += (uint64_t)from->rows * heads;
		}
	}
	add_section(filler, SECTION_ITEMS, (int32_t *)cuda->arrays.items, item_count * (uint32_t)(sizeof *items / 4));
	tiles = (struct step_tile *)(filler->words + filler->next);
	for (uint32_t s = 0; s < batch->sequence_count; s++) {
		if (sequences[s].items)
			continue;
		/* The last rows see most: they go first. */
		for (int32_t r = (sequences[s].rows - 1) / CUDA_TILE * CUDA_TILE; r >= 0; r -= CUDA_TILE)
			tiles[tile_count++] = { (int32_t)s, r };
	}
	add_section(filler, SECTION_TILES, (int32_t *)cuda->arrays.tiles, tile_count * (uint32_t)(sizeof *tiles / 4));
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++) {
		for (uint32_t s = 0; cuda->kv[g].keys && s < batch->sequence_count; s++) {
			uint32_t size = cuda->kv[g].desc.block_size, blocks = (batch->sequences[s].context + size - 1) / size;

			if (blocks > cuda->tables_max - tables)
				return STATUS_LIMIT;
			sequences[s].table[g] = (int32_t)tables;
			memcpy(filler->words + filler->next + tables, batch->sequences[s].block_table[g], blocks * sizeof(int32_t));
			tables += blocks;
		}
	}
	add_section(filler, SECTION_TABLES, cuda->arrays.tables, tables);
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		if (cuda->units_max[g] && fill_units(cuda, batch, sequences, items, g, filler))
			return STATUS_LIMIT;
	counts[0] = (int32_t)item_count;
	counts[1] = (int32_t)tile_count;
	counts[2] = (int32_t)batch->sequence_count;
	counts[3] = (int32_t)step->rows;
	step->tiles = tile_count;
	step->work_max = item_count;
	return STATUS_OK;
}

/* ---- A step ---- */

/* One token for each sequence, and its logits: what is recorded. */
static int is_decode(const struct batch *batch)
{
	if (batch->sequence_count != batch->rows || batch->logit_row_count != batch->rows)
		return 0;
	for (uint32_t i = 0; i < batch->rows; i++)
		if (batch->logit_rows[i] != (int32_t)i || batch->sequences[i].rows != 1)
			return 0;
	return 1;
}

static void choose_size(struct cuda_backend *cuda, const struct batch *batch)
{
	struct step *step = &cuda->step;

	step->rows = batch->rows;
	step->logit_rows = batch->logit_row_count;
	step->rung = CUDA_RUNGS_MAX;
	if (!is_decode(batch))
		return;
	for (uint32_t i = 0; i < cuda->rung_count; i++) {
		if (cuda->rungs[i].rows < batch->rows || !(cuda->rehearsing || cuda->rungs[i].seen))
			continue;
		step->rung = i;
		step->rows = step->logit_rows = cuda->rungs[i].rows;
		return;
	}
}

enum status cuda_step_begin(struct backend *b, const struct batch *batch)
{
	struct cuda_backend        *cuda = cuda_of(b);
	struct step                *step = &cuda->step;
	struct step_staging        *staging = &cuda->staging[cuda->steps % CUDA_SLOTS];
	const struct kv_group_desc *groups[BACKEND_KV_GROUPS_MAX];
	struct filler               filler = {};
	uint32_t                    last = 0;
	struct take_notes           notes;
	int32_t                    *counts;
	enum status                 status;

	if (cuda->fault)
		return cuda->fault;
	step->batch = NULL;
	step->wanted = 0;
	for (int g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		groups[g] = cuda->kv[g].keys ? &cuda->kv[g].desc : NULL;
	if (!cuda->scratch.block.data || batch->rows == 0 || !batch_is_valid(batch, &cuda->scratch.limits, groups))
		return STATUS_INVALID;
	if (cuda->sampled)
		last = cuda->samples[(cuda->sampled - 1) % BACKEND_SAMPLES_MAX].count;
	for (uint32_t r = 0; batch->tokens && r < batch->rows; r++)
		if (batch->tokens[r] < 0 && (uint32_t)(-1 - batch->tokens[r]) >= last)
			return STATUS_INVALID;
	status = cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice");
	if (!status && !cuda->arrays.counts)
		status = alloc_arrays(cuda);
	if (!status && staging->used) /* two steps ago: long done, unless the host runs away */
		status = cuda_check(cuda, cudaEventSynchronize(staging->taken), "waiting for a step's metadata");
	if (status)
		return status;
	choose_size(cuda, batch);
	filler.words = staging->host;
	counts = add_section(&filler, SECTION_COUNTS, cuda->arrays.counts, COUNT_WORDS);
	fill_rows(cuda, batch, &filler);
	status = fill_sequences(cuda, batch, &filler, counts);
	if (status)
		return status;
	step->batch = batch;
	step->wanted = batch->logit_row_count;
	step->number = cuda->steps++;
	step->vocab = step->pooled_width = 0;
	step->rotation_ready = 0;
	step->product.w = NULL;
	cuda->rounded = NULL;
	cuda->postponed = NULL;
	step->recording = step->dependent = step->own = 0;
	step->launches = 0;
	cuda->history[step->number % FAULT_STEPS] = { step->number, step->rows, batch->sequence_count };
	notes = { cuda->marks_device, (uint32_t)step->number, mark_next(cuda, FAULT_TAKE).value,
		cuda->times + step->number % BACKEND_TIMES_MAX };
	if (cuda_check(cuda, cudaMemcpyAsync(staging->device, staging->host, (size_t)filler.next * 4, cudaMemcpyHostToDevice,
	    cuda->copies),
	        "uploading a step's metadata") ||
	    cuda_check(cuda, cudaEventRecord(staging->copied, cuda->copies), "cudaEventRecord") ||
	    cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, staging->copied, 0), "cudaStreamWaitEvent"))
		return cuda->fault;
	take<<<filler.next > TAKE_THREADS * 4 ? TAKE_BLOCKS : 2, TAKE_THREADS, 0, cuda->stream>>>(filler.sections, staging->device,
	    cuda->scratch.ids, notes);
	if (cuda_launched(cuda, "take") || cuda_check(cuda, cudaEventRecord(staging->taken, cuda->stream), "cudaEventRecord"))
		return cuda->fault;
	staging->used = 1;
#ifdef STEP_TRAP
	if (step->number == STEP_TRAP)
		trap_kernel<<<1, 1, 0, cuda->stream>>>(mark_next(cuda, FAULT_TRAP));
#endif
	return STATUS_OK;
}

/* ---- Recorded steps ---- */

/* Ways in which a rung is recorded: those of CUDA_RECORD_WAYS that may differ. */
static uint32_t record_ways(const struct cuda_backend *cuda)
{
	return cuda->kernels != KERNELS_OWN ? 1 : cuda->fastest ? 3 : 2;
}

/* Prompts of every size for which linear layers choose anew, then every rung: once to choose kernels, and once to record in each
 * way.  Rungs above FEW_ROWS come from the largest down: several share a choice (bucket_of in linear.cu), and what was chosen for
 * the most rows serves fewer, while of tiles that just hold 80 rows 96 take twice as many. */
int cuda_rehearsal(struct backend *b, uint32_t index, uint32_t *ret_rows, uint32_t *ret_sequences)
{
	struct cuda_backend *cuda = cuda_of(b);
	uint32_t             size = 16, prompts = 0, max = cuda->scratch.limits.rows, times = 1 + record_ways(cuda);
	uint32_t             few = 0, rungs = 0, rung;

	cuda->rehearsing = 1;
	while (size < max && prompts < index) {
		size *= 2;
		prompts++;
	}
	if (index == prompts) {
		*ret_rows = size < max ? size : max;
		*ret_sequences = 1;
		return 1;
	}
	index -= prompts + 1;
	for (; rungs < cuda->rung_count && cuda->rungs[rungs].rows <= max; rungs++)
		few += cuda->rungs[rungs].rows <= FEW_ROWS;
	rung = index / times;
	if (rung < rungs) {
		*ret_rows = *ret_sequences = cuda->rungs[rung < few ? rung : rungs - 1 - (rung - few)].rows;
		return 1;
	}
	cuda->rehearsing = 0;
	return 0;
}

enum status cuda_forward_begin(struct backend *b, const void *model, int *ret_done)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct step         *step = &cuda->step;
	struct rung         *rung = &cuda->rungs[step->rung % CUDA_RUNGS_MAX];

	*ret_done = 0;
	if (step->rung == CUDA_RUNGS_MAX)
		return STATUS_OK;
	for (int i = 0; i < CUDA_MODELS_MAX; i++) {
		if (!rung->recorded[i].model && cuda->rehearsing) {
			rung->recorded[i].model = model; /* recorded at its second time, when all is chosen */
			return STATUS_OK;
		}
		if (rung->recorded[i].model != model)
			continue;
		if (rung->recorded[i].graph && !(cuda->rehearsing && rung->recorded[i].ways < record_ways(cuda))) {
			if (cuda_check(cuda, cudaGraphLaunch(rung->recorded[i].graph, cuda->stream), "cudaGraphLaunch"))
				return cuda->fault;
			step->vocab = rung->recorded[i].vocab;
			step->pooled_width = rung->recorded[i].pooled_width;
			*ret_done = 1;
		} else if (cuda->rehearsing) {
			step->recording = i + 1;
			step->dependent = rung->recorded[i].ways > 0;
			step->own = rung->recorded[i].ways > 1;
			return cuda_check(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal),
			    "cudaStreamBeginCapture");
		}
		return STATUS_OK;
	}
	return STATUS_OK;
}

/* Microseconds of a replay of EXEC, the better of two; 0 when it fails. */
static float time_replay(struct cuda_backend *cuda, cudaGraphExec_t exec)
{
	cudaEvent_t begin = NULL, end = NULL;
	float       least = 0;

	cuda_check(cuda, cudaEventCreate(&begin), "cudaEventCreate");
	cuda_check(cuda, cudaEventCreate(&end), "cudaEventCreate");
	for (int i = 0; i < 3 && !cuda->fault; i++) { /* the first one warms up */
		float ms = 0;

		cuda_check(cuda, cudaEventRecord(begin, cuda->stream), "timing a recorded step");
		cuda_check(cuda, cudaGraphLaunch(exec, cuda->stream), "timing a recorded step");
		cuda_check(cuda, cudaEventRecord(end, cuda->stream), "timing a recorded step");
		cuda_check(cuda, cudaEventSynchronize(end), "timing a recorded step");
		cuda_check(cuda, cudaEventElapsedTime(&ms, begin, end), "timing a recorded step");
		least = i == 1 || ms * 1000 < least ? ms * 1000 : least;
	}
	if (begin)
		cudaEventDestroy(begin);
	if (end)
		cudaEventDestroy(end);
	return cuda->fault ? 0 : least;
}

/* The faster of the recording that is there and EXEC, of the next way; the other one is dropped.  Returns which. */
static cudaGraphExec_t keep_faster(struct cuda_backend *cuda, struct rung *rung, int index, cudaGraphExec_t exec)
{
	cudaGraphExec_t there = rung->recorded[index].graph, kept, dropped;
	uint32_t        way = rung->recorded[index].ways;
	float          *us = rung->recorded[index].us, least;

	if (way == 1)
		us[0] = time_replay(cuda, there);
	us[way] = exec ? time_replay(cuda, exec) : 0;
	least = us[0];
	for (uint32_t i = 1; i < way; i++)
		least = us[i] > 0 && us[i] < least ? us[i] : least;
	kept = us[way] > 0 && us[way] < least ? exec : there;
	dropped = kept == exec ? there : exec;
	if (dropped)
		cudaGraphExecDestroy(dropped);
	return kept;
}

const char *step_note(struct cuda_backend *cuda, uint32_t index)
{
	for (uint32_t r = 0; r < cuda->rung_count; r++)
		for (int m = 0; m < CUDA_MODELS_MAX; m++) {
			const float *us = cuda->rungs[r].recorded[m].us;
			int          dependent = us[1] > 0 && us[1] < us[0], own = us[2] > 0 && us[2] < us[dependent];
			char         third[64] = "";

			if (cuda->rungs[r].recorded[m].ways < 2 || index--)
				continue;
			if (cuda->rungs[r].recorded[m].ways > 2)
				snprintf(third, sizeof third, ", and all products by own kernels %.1f us", (double)us[2]);
			snprintf(cuda->note, sizeof cuda->note, "steps of %u rows: %.1f us, with dependent launches %.1f us%s: the %s is taken",
			    cuda->rungs[r].rows, (double)us[0], (double)us[1], third, own ? "third" : dependent ? "second" : "first");
			return cuda->note;
		}
	return NULL;
}

enum status cuda_forward_end(struct backend *b, enum status status)
{
	struct cuda_backend *cuda = cuda_of(b);
	struct step         *step = &cuda->step;
	struct rung         *rung = &cuda->rungs[step->rung % CUDA_RUNGS_MAX];
	cudaGraph_t          graph = NULL;
	cudaGraphExec_t      exec = NULL;
	cudaError_t          code;

	status = status ? status : norm_settle(cuda);
	if (step->rung == CUDA_RUNGS_MAX)
		return status;
	rung->seen = 1;
	if (!step->recording)
		return status;
	code = cudaStreamEndCapture(cuda->stream, &graph);
	if (!code && !status && !cuda->fault)
		code = cudaGraphInstantiate(&exec, graph, 0);
	if (!code && exec)
		code = cudaGraphUpload(exec, cuda->stream);
	if (graph)
		cudaGraphDestroy(graph);
	if (code && step->dependent) { /* the recording that launches plainly serves */
		cudaGetLastError();
		if (exec)
			cudaGraphExecDestroy(exec);
		exec = NULL;
	} else {
		cuda_check(cuda, code, "recording a step");
	}
	if (!status && !cuda->fault)
		cuda_check(cuda, cudaGraphLaunch(exec ? exec : rung->recorded[step->recording - 1].graph, cuda->stream), "cudaGraphLaunch");
	if (rung->recorded[step->recording - 1].graph)
		exec = keep_faster(cuda, rung, step->recording - 1, exec);
	rung->recorded[step->recording - 1].graph = exec;
	rung->recorded[step->recording - 1].ways++;
	rung->recorded[step->recording - 1].vocab = step->vocab;
	rung->recorded[step->recording - 1].pooled_width = step->pooled_width;
	step->recording = step->dependent = step->own = 0;
	return status ? status : cuda->fault;
}

/* ---- Waiting ---- */

enum status cuda_wait(struct backend *b, int32_t *ret_ids, uint32_t count, struct error *error)
{
	struct cuda_backend   *cuda = cuda_of(b);
	struct sample_staging *sample = &cuda->samples[cuda->waited % BACKEND_SAMPLES_MAX];
	enum status            status = cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice");

	if (ret_ids && (cuda->waited == cuda->sampled || count > sample->count))
		return error_set(error, STATUS_INVALID, "%u ids wanted, %u sampled", count,
		    cuda->waited == cuda->sampled ? 0 : sample->count);
	if (!status && !ret_ids)
		status = cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "the operations before `wait`");
	else if (!status)
		status = cuda_check(cuda, cudaEventSynchronize(sample->done), "the operations before a sample");
	if (status) {
		if (error)
			*error = cuda->fault_error;
		return status;
	}
	if (ret_ids) {
		memcpy(ret_ids, sample->ids, count * sizeof *ret_ids);
		cuda->waited++;
	}
	return STATUS_OK;
}

/* ---- Clocks ---- */

enum status cuda_step_times(struct backend *b, struct backend_step_times *ret, uint32_t *ret_count)
{
	struct cuda_backend      *cuda = cuda_of(b);
	struct backend_step_times ring[BACKEND_TIMES_MAX];
	uint64_t                  first = cuda->steps > BACKEND_TIMES_MAX ? cuda->steps - BACKEND_TIMES_MAX : 0;
	uint32_t                  count = 0;
	enum status               status = cuda_check(cuda, cudaSetDevice(cuda->device), "cudaSetDevice");

	if (!cuda->times)
		return STATUS_INVALID;
	status = status ? status : cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "reading clocks");
	status = status ? status : cuda_check(cuda, cudaMemcpy(ring, cuda->times, sizeof ring, cudaMemcpyDeviceToHost),
	    "reading clocks");
	if (status)
		return status;
	for (uint64_t step = first; step < cuda->steps; step++)
		if (ring[step % BACKEND_TIMES_MAX].end) /* it drew something */
			ret[count++] = ring[step % BACKEND_TIMES_MAX];
	*ret_count = count;
	return STATUS_OK;
}
