/* cpu_backend.c: owns an instance of the CPU backend: its operation table, its scratch and the choice of kernels.
 * Does not own the operations with arithmetic of their own (linear.c, attention.c, sampler.c).  Invariant: after
 * scratch_alloc and kv_alloc no operation takes memory. */
#include "cpu/cpu.h"

#include "base/checked.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_ALONE = 32768 /* floats of row-wise work that one thread does faster than it shares out */ };

/* ---- Scratch ---- */

/* One entry of scratch: where its pointer is kept and how much it takes. */
struct scratch_field {
	size_t at; /* offset of the pointer in struct cpu_scratch */
	uint64_t bytes;
};

enum { SCRATCH_FIELDS = 8, THREAD_FIELDS = 4, SCRATCH_ALIGN = 64 };

static bool scratch_fields(const struct backend_limits *limits, struct scratch_field ret[SCRATCH_FIELDS])
{
	uint64_t rows = limits->rows > limits->logit_rows ? limits->rows : limits->logit_rows;
	struct scratch_field fields[SCRATCH_FIELDS] = {
		{ offsetof(struct cpu_scratch, input), sizeof(float) * cpu_linear_input_floats((uint32_t)rows, limits->width) },
		{ offsetof(struct cpu_scratch, sums), sizeof(float) * cpu_linear_sum_floats((uint32_t)rows, limits->width) },
		{ offsetof(struct cpu_scratch, normed), sizeof(float) * (uint64_t)limits->logit_rows * limits->width },
		{ offsetof(struct cpu_scratch, logits), sizeof(float) * (uint64_t)limits->logit_rows * limits->vocab },
		{ offsetof(struct cpu_scratch, rotation), sizeof(float) * (uint64_t)limits->rows * limits->head_dim },
		{ offsetof(struct cpu_scratch, partials), sizeof(float) * cpu_attention_partial_floats() },
		{ offsetof(struct cpu_scratch, ids), sizeof(int32_t) * (uint64_t)limits->logit_rows },
		{ offsetof(struct cpu_scratch, items),
		    sizeof(struct attention_item) * (uint64_t)limits->rows * limits->q_heads },
	};

	/* Products of three 32-bit numbers stay below 2⁶⁴ only when the numbers are sane. */
	if (limits->rows > 1 << 20 || limits->logit_rows > 1 << 20 || limits->width > 1 << 24 || limits->vocab > 1 << 24 ||
	    limits->head_dim > CPU_HEAD_DIM_MAX || limits->q_heads > 1 << 12)
		return false;
	memcpy(ret, fields, sizeof fields);
	return true;
}

static void thread_fields(const struct backend_limits *limits, struct scratch_field ret[THREAD_FIELDS])
{
	ret[0] = (struct scratch_field){ offsetof(struct cpu_thread, attention),
	    sizeof(float) * cpu_attention_thread_floats(limits->head_dim) };
	ret[1] = (struct scratch_field){ offsetof(struct cpu_thread, candidates),
	    sizeof(struct sample_candidate) * (uint64_t)limits->vocab };
	ret[2] = (struct scratch_field){ offsetof(struct cpu_thread, weights), sizeof(float) * (uint64_t)limits->vocab };
	ret[3] = (struct scratch_field){ offsetof(struct cpu_thread, rows),
	    sizeof(float) * FORMAT_ROWS * (uint64_t)cpu_input_padded(limits->width) };
}

/* Bytes of all fields; with START, also places them. */
static uint64_t scratch_place(const struct scratch_field *fields, unsigned count, void *pointers, uint8_t *start)
{
	uint64_t at = 0;

	for (unsigned i = 0; i < count; i++) {
		if (start)
			*(void **)((uint8_t *)pointers + fields[i].at) = start + at;
		at += (fields[i].bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
	}
	return at;
}

static uint64_t scratch_bytes(const struct backend *b, const struct backend_limits *limits)
{
	const struct cpu_backend *cpu = (const struct cpu_backend *)b;
	struct scratch_field      fields[SCRATCH_FIELDS], per_thread[THREAD_FIELDS];

	if (!scratch_fields(limits, fields))
		return UINT64_MAX;
	thread_fields(limits, per_thread);
	return cpu_pages_round(scratch_place(fields, SCRATCH_FIELDS, NULL, NULL) +
	                       team_threads(cpu->team) * scratch_place(per_thread, THREAD_FIELDS, NULL, NULL));
}

static enum status scratch_alloc(struct backend *b, const struct backend_limits *limits, struct error *error)
{
	struct cpu_backend  *cpu = (struct cpu_backend *)b;
	struct cpu_scratch  *scratch = &cpu->scratch;
	struct scratch_field fields[SCRATCH_FIELDS], per_thread[THREAD_FIELDS];
	uint64_t             bytes = scratch_bytes(b, limits);
	uint8_t             *at;

	if (scratch->pages)
		return error_set(error, STATUS_INVALID, "scratch is taken once");
	if (bytes == UINT64_MAX)
		return error_set(error, STATUS_LIMIT,
		    "a step of %u rows, %u logits, width %u, vocabulary %u, %u heads of %u is too large",
		    limits->rows, limits->logit_rows, limits->width, limits->vocab, limits->q_heads, limits->head_dim);
	scratch->pages = cpu_pages_alloc(bytes, true);
	if (!scratch->pages)
		return error_set(error, STATUS_NOMEM, "out of memory for %llu bytes of scratch", (unsigned long long)bytes);
	scratch->bytes = bytes;
	scratch->limits = *limits;
	scratch_fields(limits, fields);
	thread_fields(limits, per_thread);
	at = scratch->pages;
	at += scratch_place(fields, SCRATCH_FIELDS, scratch, at);
	for (unsigned t = 0; t < team_threads(cpu->team); t++)
		at += scratch_place(per_thread, THREAD_FIELDS, &scratch->threads[t], at);
	return STATUS_OK;
}

static uint64_t activation_bytes(const struct backend *b, uint32_t rows, uint32_t width)
{
	(void)b;
	return cpu_pages_round(sizeof(float) * (uint64_t)rows * width);
}

static enum status activation_alloc(struct backend *b, uint32_t rows, uint32_t width, struct activation *ret)
{
	void *data = cpu_pages_alloc(activation_bytes(b, rows, width), true);

	if (!data)
		return STATUS_NOMEM;
	*ret = (struct activation){ .data = data, .rows = rows, .width = width };
	return STATUS_OK;
}

static void activation_free(struct backend *b, struct activation *a)
{
	cpu_pages_free(a->data, activation_bytes(b, a->rows, a->width));
	a->data = NULL;
}

/* ---- A step ---- */

static bool sequence_is_valid(const struct cpu_backend *cpu, const struct batch *batch,
    const struct batch_sequence *sequence, uint32_t next_row)
{
	if (sequence->first_row < next_row || sequence->first_row > batch->rows ||
	    sequence->rows > batch->rows - sequence->first_row || sequence->rows < 1 || sequence->context < sequence->rows)
		return false;
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++) {
		const struct kv_group_desc *desc = &cpu->kv[g].desc;

		if (!cpu->kv[g].keys)
			continue;
		if ((uint64_t)sequence->blocks * desc->block_size < sequence->context)
			return false;
		for (uint32_t i = 0; i < (sequence->context + desc->block_size - 1) / desc->block_size; i++)
			if ((uint32_t)sequence->block_table[g][i] >= desc->blocks)
				return false;
	}
	return true;
}

/* The engine's plan is checked whole here, so that no operation reads or writes outside its pools. */
static enum status step_begin(struct backend *b, const struct batch *batch)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	uint32_t            next_row = 0;

	cpu->batch = NULL;
	if (!cpu->scratch.pages || batch->rows > cpu->scratch.limits.rows ||
	    batch->logit_row_count > cpu->scratch.limits.logit_rows)
		return STATUS_INVALID;
	for (uint32_t s = 0; s < batch->sequence_count; s++) {
		if (!sequence_is_valid(cpu, batch, &batch->sequences[s], next_row))
			return STATUS_INVALID;
		next_row = batch->sequences[s].first_row + batch->sequences[s].rows;
	}
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++) {
		int64_t slots = (int64_t)cpu->kv[g].desc.blocks * cpu->kv[g].desc.block_size;

		for (uint32_t row = 0; cpu->kv[g].keys && row < batch->rows; row++)
			if (batch->kv_slots[g][row] < -1 || batch->kv_slots[g][row] >= slots)
				return STATUS_INVALID;
	}
	for (uint32_t i = 0; i < batch->logit_row_count; i++)
		if ((uint32_t)batch->logit_rows[i] >= batch->rows)
			return STATUS_INVALID;
	cpu->batch = batch;
	cpu->sampled = 0;
	cpu->logits_vocab = 0;
	cpu->pooled_width = 0;
	cpu->rotation_of = (struct rope_desc){ 0 };
	return STATUS_OK;
}

/* Work on whole rows, alone when there is little of it. */
struct rows_job {
	const struct cpu_backend    *cpu;
	const struct backend_weight *w;
	float       *x, *y;
	const float *residual;
	size_t       x_stride, y_stride;
	const int32_t *ids; /* rows of the weight, or rows of x; NULL = 0, 1, 2, … */
	float        eps;
};

static void run_rows(struct cpu_backend *cpu, team_function *function, struct rows_job *job, uint32_t rows,
    uint32_t width)
{
	if ((uint64_t)rows * width <= ROWS_ALONE)
		function(job, 0, 0, rows);
	else
		team_run(cpu->team, function, job, rows);
}

static void embed_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct rows_job *job = context;

	(void)thread;
	for (uint32_t r = first; r < first + count; r++)
		cpu_weight_row(job->w, (uint32_t)job->ids[r], job->y + r * job->y_stride);
}

static enum status embed(struct backend *b, const struct backend_weight *w, struct activation *y)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct rows_job     job = { .cpu = cpu, .w = w, .y = y->data, .y_stride = y->width };

	if (!cpu->batch || w->vector || w->columns != y->width || cpu->batch->rows > y->rows)
		return STATUS_INVALID;
	for (uint32_t i = 0; i < w->count; i++)
		if (w->parts[i].input->order)
			return STATUS_UNSUPPORTED; /* its rows lie in another order */
	for (uint32_t r = 0; r < cpu->batch->rows; r++)
		if ((uint32_t)cpu->batch->tokens[r] >= w->rows)
			return STATUS_INVALID;
	job.ids = cpu->batch->tokens;
	run_rows(cpu, embed_rows, &job, cpu->batch->rows, w->columns);
	return STATUS_OK;
}

static void norm_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct rows_job *job = context;

	(void)thread;
	for (uint32_t r = first; r < first + count; r++) {
		size_t row = job->ids ? (size_t)job->ids[r] : r;
		const float *residual = job->residual ? job->residual + row * job->x_stride : NULL;

		job->cpu->kernels->norm(job->x + row * job->x_stride, residual, job->w->vector, job->w->columns, job->eps,
		    job->y + r * job->y_stride);
	}
}

static enum status rms_norm(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *w, float eps, struct activation *y)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct rows_job     job = { .cpu = cpu, .w = w, .x = x->data, .residual = residual_in ? residual_in->data : NULL,
	    .y = y->data,
		.x_stride = x->width, .y_stride = y->width, .eps = eps };

	if (!cpu->batch || !w->vector || w->columns != x->width || y->width != x->width || cpu->batch->rows > x->rows ||
	    cpu->batch->rows > y->rows || (residual_in && (residual_in->width != x->width ||
	    residual_in->rows < cpu->batch->rows)))
		return STATUS_INVALID;
	run_rows(cpu, norm_rows, &job, cpu->batch->rows, x->width);
	return STATUS_OK;
}

struct head_norm_job {
	const struct cpu_kernels *kernels;
	float       *qkv;
	const float *q_weight, *k_weight;
	uint32_t     width, q_heads, kv_heads, head_dim;
	float        eps;
};

static void head_norm_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct head_norm_job *job = context;

	(void)thread;
	for (uint32_t r = first; r < first + count; r++) {
		for (uint32_t h = 0; h < job->q_heads + job->kv_heads; h++) {
			float *head = job->qkv + (size_t)r * job->width + (size_t)h * job->head_dim;

			job->kernels->norm(head, NULL, h < job->q_heads ? job->q_weight : job->k_weight, job->head_dim, job->eps,
			    head);
		}
	}
}

static enum status head_norm(struct backend *b, struct activation *qkv, uint32_t q_heads, uint32_t kv_heads,
    const struct backend_weight *q_weight, const struct backend_weight *k_weight, float eps)
{
	struct cpu_backend  *cpu = (struct cpu_backend *)b;
	struct head_norm_job job = { .kernels = cpu->kernels, .qkv = qkv->data, .q_weight = q_weight->vector,
	    .k_weight = k_weight->vector, .width = qkv->width, .q_heads = q_heads, .kv_heads = kv_heads, .eps = eps };

	if (!cpu->batch || !job.q_weight || !job.k_weight || q_weight->columns != k_weight->columns ||
	    cpu->batch->rows > qkv->rows || qkv->width != ((uint64_t)q_heads + 2 * (uint64_t)kv_heads) * q_weight->columns)
		return STATUS_INVALID;
	job.head_dim = q_weight->columns;
	if ((uint64_t)cpu->batch->rows * qkv->width <= ROWS_ALONE)
		head_norm_rows(&job, 0, 0, cpu->batch->rows);
	else
		team_run(cpu->team, head_norm_rows, &job, cpu->batch->rows);
	return STATUS_OK;
}

static enum status linear(struct backend *b, const struct backend_weight *w, const struct backend_weight *bias,
    const struct activation *x, struct activation *y)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;

	if (!cpu->batch || w->columns != x->width || w->rows != y->width || cpu->batch->rows > x->rows ||
	    cpu->batch->rows > y->rows || (bias && (!bias->vector || bias->columns != w->rows)))
		return STATUS_INVALID;
	return cpu_linear(cpu, w, bias ? bias->vector : NULL, x->data, x->width, cpu->batch->rows, y->data, y->width);
}

static void silu_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct rows_job *job = context;

	(void)thread;
	for (uint32_t r = first; r < first + count; r++) {
		const float *gate = job->x + r * job->x_stride;
		job->cpu->kernels->silu(gate, gate + job->y_stride, (uint32_t)job->y_stride, job->y + r * job->y_stride);
	}
}

static enum status silu_gate(struct backend *b, const struct activation *gate_up, struct activation *y)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct rows_job     job = { .cpu = cpu, .x = gate_up->data, .y = y->data, .x_stride = gate_up->width,
	    .y_stride = y->width };

	if (!cpu->batch || gate_up->width != 2 * (uint64_t)y->width || cpu->batch->rows > gate_up->rows ||
	    cpu->batch->rows > y->rows)
		return STATUS_INVALID;
	run_rows(cpu, silu_rows, &job, cpu->batch->rows, gate_up->width);
	return STATUS_OK;
}

static enum status logits(struct backend *b, struct activation *x, const struct activation *residual_in,
    const struct backend_weight *norm, float eps, const struct backend_weight *w)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct rows_job     job = { .cpu = cpu, .w = norm, .x = x->data, .residual = residual_in ? residual_in->data : NULL,
		.y = cpu->scratch.normed, .x_stride = x->width, .y_stride = x->width, .eps = eps };
	enum status         status;

	if (!cpu->batch || !norm->vector || norm->columns != x->width || w->columns != x->width ||
	    x->width > cpu->scratch.limits.width ||
	    w->rows > cpu->scratch.limits.vocab || (residual_in && residual_in->width != x->width))
		return STATUS_INVALID;
	job.ids = cpu->batch->logit_rows;
	run_rows(cpu, norm_rows, &job, cpu->batch->logit_row_count, x->width);
	status = cpu_linear(cpu, w, NULL, cpu->scratch.normed, x->width, cpu->batch->logit_row_count, cpu->scratch.logits,
	    w->rows);
	if (status == STATUS_OK)
		cpu->logits_vocab = w->rows;
	return status;
}

static enum status wait_step(struct backend *b, int32_t *ret_ids, uint32_t count, struct error *error)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;

	if (ret_ids && count > cpu->sampled)
		return error_set(error, STATUS_INVALID, "%u ids wanted, %u sampled", count, cpu->sampled);
	if (ret_ids)
		memcpy(ret_ids, cpu->scratch.ids, count * sizeof *ret_ids);
	return STATUS_OK;
}

static enum status read_logits(struct backend *b, uint32_t index, float *ret, uint32_t vocab)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;

	if (!cpu->batch || index >= cpu->batch->logit_row_count || vocab > cpu->logits_vocab)
		return STATUS_INVALID;
	memcpy(ret, cpu->scratch.logits + (size_t)index * cpu->logits_vocab, vocab * sizeof *ret);
	return STATUS_OK;
}

/* ---- The instance ---- */

static enum status memory(struct backend *b, struct backend_memory *ret)
{
	(void)b;
	return cpu_memory_read(ret);
}

static const char *describe(struct backend *b) { return ((struct cpu_backend *)b)->description; }

static void destroy(struct backend *b)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;

	if (!cpu)
		return;
	team_destroy(cpu->team);
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		cpu_kv_free(&cpu->kv[g]);
	cpu_pages_free(cpu->scratch.pages, cpu->scratch.bytes);
	free(cpu);
}

static const struct backend_ops operations = {
	.version = BACKEND_VERSION, .name = "cpu", .destroy = destroy, .memory = memory, .describe = describe,
	.weight_load = cpu_weight_load, .weight_size = cpu_weight_size, .weight_free = cpu_weight_free,
	.weight_bytes = cpu_weight_bytes,
	.activation_bytes = activation_bytes, .activation_alloc = activation_alloc, .activation_free = activation_free,
	.kv_bytes = cpu_kv_bytes, .kv_alloc = cpu_kv_alloc, .scratch_bytes = scratch_bytes, .scratch_alloc = scratch_alloc,
	.step_begin = step_begin, .embed = embed, .rms_norm = rms_norm, .head_norm = head_norm, .linear = linear,
	.rope_kv_write = cpu_rope_kv_write,
	.attention = cpu_attention, .silu_gate = silu_gate, .logits = logits, .embed_add = cpu_embed_add,
	.layer_norm = cpu_layer_norm, .attention_full = cpu_attention_full, .gelu = cpu_gelu, .pool = cpu_pool,
	.read_pooled = cpu_read_pooled, .kv_copy = cpu_kv_copy, .sample = cpu_sample,
	.wait = wait_step, .read_logits = read_logits,
};

static bool cpu_has_avx2(void)
{
#if defined __x86_64__
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
	return false;
#endif
}

static void choose_kernels(struct cpu_backend *cpu, enum cpu_isa isa)
{
	cpu->kernels = &cpu_kernels_generic;
#if defined __x86_64__
	cpu->avx2 = isa != CPU_ISA_GENERIC && cpu_has_avx2();
	if (cpu->avx2)
		cpu->kernels = &cpu_kernels_avx2;
#else
	(void)isa;
#endif
}

/* Processors this process may run on. */
static unsigned processors(void)
{
	cpu_set_t set;
	int       count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;

	return count < 1 ? 1 : count > CPU_THREADS_MAX ? CPU_THREADS_MAX : (unsigned)count;
}

enum status cpu_backend_create_isa(unsigned threads, enum cpu_isa isa, struct backend **ret, struct error *error)
{
	struct cpu_backend *cpu;
	enum status         status;

	if (threads > CPU_THREADS_MAX)
		return error_set(error, STATUS_INVALID, "threads = %u is outside 0…%d", threads, CPU_THREADS_MAX);
	if (isa == CPU_ISA_AVX2 && !cpu_has_avx2())
		return error_set(error, STATUS_UNSUPPORTED, "this processor has no AVX2 with FMA and F16C");
	cpu = calloc(1, sizeof *cpu);
	if (!cpu)
		return error_set(error, STATUS_NOMEM, "out of memory for the CPU backend");
	cpu->base.ops = &operations;
	choose_kernels(cpu, isa);
	status = team_create(threads ? threads : processors(), &cpu->team, error);
	if (status) {
		destroy(&cpu->base);
		return status;
	}
	snprintf(cpu->description, sizeof cpu->description, "cpu: %s kernels, %u threads", cpu->kernels->name,
	    team_threads(cpu->team));
	*ret = &cpu->base;
	return STATUS_OK;
}

enum status cpu_backend_create(unsigned threads, struct backend **ret, struct error *error)
{
	return cpu_backend_create_isa(threads, CPU_ISA_BEST, ret, error);
}
