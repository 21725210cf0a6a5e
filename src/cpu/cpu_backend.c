/* cpu_backend.c: owns an instance of the CPU backend: its operation table, its scratch and the choice of kernels.
 * Does not own the operations with arithmetic of their own (linear.c, attention.c, sampler.c).  Invariant: after
 * scratch_alloc and kv_alloc no operation takes memory. */
#include "cpu/cpu.h"

#include "base/checked.h"
#include "model/batch.h"

#if defined __x86_64__
#include <cpuid.h>
#endif
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_ALONE = 8192 /* floats of row-wise work that one thread does faster than it shares out */ };

/* ---- Scratch ---- */

/* One entry of scratch: where its pointer is kept and how much it takes. */
struct scratch_field {
	size_t at; /* offset of the pointer in struct cpu_scratch */
	uint64_t bytes;
};

enum { SCRATCH_FIELDS = 28, THREAD_FIELDS = 9, SCRATCH_ALIGN = 64 };

static bool scratch_fields(const struct backend_limits *limits, uint32_t ranks, struct scratch_field ret[SCRATCH_FIELDS])
{
	uint64_t rows = limits->rows > limits->logit_rows ? limits->rows : limits->logit_rows;
	uint64_t pairs = (uint64_t)limits->rows * limits->top_k, expert_rows = limits->experts ? limits->rows : 0;
	uint64_t indexed_rows = limits->index_top_k ? limits->rows : 0;
	struct scratch_field fields[SCRATCH_FIELDS] = {
		{ offsetof(struct cpu_scratch, input), sizeof(float) * cpu_linear_input_floats((uint32_t)rows, limits->width) },
		{ offsetof(struct cpu_scratch, sums), sizeof(float) * cpu_linear_sum_floats((uint32_t)rows, limits->width) },
		{ offsetof(struct cpu_scratch, amax),
		    sizeof(float) * cpu_linear_amax_floats((uint32_t)rows, limits->width, ranks) },
		{ offsetof(struct cpu_scratch, normed), sizeof(float) * (uint64_t)limits->logit_rows * limits->width },
		{ offsetof(struct cpu_scratch, logits), sizeof(float) * (uint64_t)limits->logit_rows * limits->vocab },
		{ offsetof(struct cpu_scratch, rotation), sizeof(float) * (uint64_t)limits->rows * limits->head_dim },
		{ offsetof(struct cpu_scratch, partials), sizeof(float) * cpu_attention_partial_floats() },
		{ offsetof(struct cpu_scratch, ids), sizeof(int32_t) * BACKEND_SAMPLES_MAX * (uint64_t)limits->logit_rows },
		{ offsetof(struct cpu_scratch, tokens), sizeof(int32_t) * (uint64_t)limits->rows },
		{ offsetof(struct cpu_scratch, items),
		    sizeof(struct attention_item) * (uint64_t)limits->rows * limits->q_heads },
		{ offsetof(struct cpu_scratch, counts), sizeof(uint16_t) * (uint64_t)limits->logit_rows * limits->vocab },
		{ offsetof(struct cpu_scratch, slots), sizeof(struct cpu_slot) * (uint64_t)limits->logit_rows },
		{ offsetof(struct cpu_scratch, logprobs),
		    sizeof(struct sample_logprobs) * BACKEND_SAMPLES_MAX * (uint64_t)limits->logit_rows },
		{ offsetof(struct cpu_scratch, router), sizeof(float) * (uint64_t)limits->rows * limits->experts },
		{ offsetof(struct cpu_scratch, chosen), sizeof(uint32_t) * pairs },
		{ offsetof(struct cpu_scratch, chosen_weights), sizeof(float) * pairs },
		{ offsetof(struct cpu_scratch, expert_starts), limits->experts ? sizeof(uint32_t) * ((uint64_t)limits->experts + 2) : 0 },
		{ offsetof(struct cpu_scratch, expert_rows), sizeof(uint32_t) * pairs },
		{ offsetof(struct cpu_scratch, expert_weights), sizeof(float) * pairs },
		{ offsetof(struct cpu_scratch, expert_in), sizeof(float) * expert_rows * limits->stream },
		{ offsetof(struct cpu_scratch, expert_gated), sizeof(float) * expert_rows * 2 * limits->expert_width },
		{ offsetof(struct cpu_scratch, expert_activated), sizeof(float) * expert_rows * limits->expert_width },
		{ offsetof(struct cpu_scratch, expert_out), sizeof(float) * expert_rows * limits->stream },
		{ offsetof(struct cpu_scratch, selected), sizeof(uint32_t) * indexed_rows * limits->index_top_k },
		{ offsetof(struct cpu_scratch, selected_counts), sizeof(uint32_t) * indexed_rows },
		{ offsetof(struct cpu_scratch, selected_prefixes), sizeof(uint32_t) * indexed_rows },
		{ offsetof(struct cpu_scratch, selection_of), sizeof(uint32_t) * indexed_rows },
		{ offsetof(struct cpu_scratch, selection_new), sizeof(uint32_t) * indexed_rows },
	};

	/* Products of three 32-bit numbers stay below 2⁶⁴ only when the numbers are sane. */
	if (limits->rows > 1 << 20 || limits->logit_rows > 1 << 20 || limits->width > 1 << 24 || limits->vocab > 1 << 24 ||
	    limits->head_dim > CPU_HEAD_DIM_MAX || limits->q_heads > 1 << 12 || limits->experts > 1 << 16 ||
	    limits->top_k > limits->experts || limits->expert_width > 1 << 24 || limits->stream > 1 << 24 ||
	    limits->latent > CPU_LATENT_MAX || limits->latent_value > CPU_LATENT_MAX || limits->index_top_k > 1 << 20)
		return false;
	memcpy(ret, fields, sizeof fields);
	return true;
}

static void thread_fields(const struct cpu_backend *cpu, const struct backend_limits *limits,
    struct scratch_field ret[THREAD_FIELDS])
{
	ret[0] = (struct scratch_field){ offsetof(struct cpu_thread, attention),
	    sizeof(float) * cpu_attention_thread_floats(limits->head_dim) };
	ret[1] = (struct scratch_field){ offsetof(struct cpu_thread, candidates),
	    sizeof(struct sample_candidate) * (uint64_t)limits->vocab };
	ret[2] = (struct scratch_field){ offsetof(struct cpu_thread, weights), sizeof(float) * (uint64_t)limits->vocab };
	ret[3] = (struct scratch_field){ offsetof(struct cpu_thread, rows),
	    sizeof(float) * FORMAT_ROWS * (uint64_t)cpu_input_padded(limits->width) };
	ret[4] = (struct scratch_field){ offsetof(struct cpu_thread, routing),
	    sizeof(float) * cpu_routing_thread_floats(limits->experts) };
	ret[5] = (struct scratch_field){ offsetof(struct cpu_thread, latent), sizeof(float) * cpu_latent_thread_floats(limits) };
	ret[6] = (struct scratch_field){ offsetof(struct cpu_thread, collected),
	    sizeof(uint64_t) * cpu_index_thread_keys(limits->index_top_k) };
	ret[7] = (struct scratch_field){ offsetof(struct cpu_thread, tile), cpu->mapped_tile };
	ret[8] = (struct scratch_field){ offsetof(struct cpu_thread, adjusted), sizeof(float) * (uint64_t)limits->vocab };
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

	if (!scratch_fields(limits, cpu->seat.ranks, fields))
		return UINT64_MAX;
	thread_fields(cpu, limits, per_thread);
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
	if (cpu->chunk && !cpu->prefault) /* weights come before scratch; the last huge page may be almost empty */
		cpu_pages_trim(cpu->chunk->data, cpu->chunk->used, cpu->chunk->bytes);
	scratch->pages = cpu_pages_alloc(bytes, cpu->prefault);
	if (!scratch->pages)
		return error_set(error, STATUS_NOMEM, "out of memory for %llu bytes of scratch", (unsigned long long)bytes);
	scratch->bytes = bytes;
	scratch->limits = *limits;
	scratch_fields(limits, cpu->seat.ranks, fields);
	thread_fields(cpu, limits, per_thread);
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
	void *data = cpu_pages_alloc(activation_bytes(b, rows, width), ((struct cpu_backend *)b)->prefault);

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

static enum status activation_put(struct backend *b, struct activation *a, const float *values, uint32_t rows)
{
	(void)b;
	if (rows > a->rows)
		return STATUS_INVALID;
	memcpy(a->data, values, sizeof *values * rows * a->width);
	return STATUS_OK;
}

static enum status activation_get(struct backend *b, const struct activation *a, float *ret, uint32_t rows)
{
	(void)b;
	if (rows > a->rows)
		return STATUS_INVALID;
	memcpy(ret, a->data, sizeof *ret * rows * a->width);
	return STATUS_OK;
}

/* ---- A step ---- */

/* The engine's plan is checked whole here, so that no operation reads or writes outside its pools. */
static enum status step_begin(struct backend *b, const struct batch *batch)
{
	struct cpu_backend         *cpu = (struct cpu_backend *)b;
	const struct kv_group_desc *groups[BACKEND_KV_GROUPS_MAX];

	cpu->batch = NULL;
	cpu->wanted = 0;
	for (uint32_t g = 0; g < BACKEND_KV_GROUPS_MAX; g++)
		groups[g] = cpu->kv[g].keys ? &cpu->kv[g].desc : NULL;
	if (!cpu->scratch.pages || !batch_is_valid(batch, &cpu->scratch.limits, groups))
		return STATUS_INVALID;
	cpu->batch = batch;
	cpu->wanted = batch->logit_row_count;
	cpu->logits_vocab = 0;
	cpu->pooled_width = 0;
	cpu->routed.experts = 0;
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

/* Tokens of the step, those of the last sample put in; one that could not be drawn counts as 0. */
static bool take_tokens(struct cpu_backend *cpu, const struct batch *batch)
{
	uint32_t       part = (uint32_t)((cpu->samples + BACKEND_SAMPLES_MAX - 1) % BACKEND_SAMPLES_MAX);
	const int32_t *ids = cpu->scratch.ids + (size_t)part * cpu->scratch.limits.logit_rows;

	for (uint32_t row = 0; row < batch->rows; row++) {
		int32_t token = batch->tokens[row];

		if (token < 0) {
			uint32_t at = (uint32_t)(-1 - token);

			if (!cpu->samples || at >= cpu->sampled[part])
				return false;
			token = ids[at] < 0 ? 0 : ids[at];
		}
		cpu->scratch.tokens[row] = token;
	}
	return true;
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
	if (!take_tokens(cpu, cpu->batch))
		return STATUS_INVALID;
	for (uint32_t r = 0; r < cpu->batch->rows; r++)
		if ((uint32_t)cpu->scratch.tokens[r] >= w->rows)
			return STATUS_INVALID;
	job.ids = cpu->scratch.tokens;
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
	uint32_t            rows, first = 0, vocab = w->rows, each;
	bool                part = cpu->seat.group && w->rows != cpu->scratch.limits.vocab;
	enum status         status;

	if (!cpu->batch || !norm->vector || norm->columns != x->width || w->columns != x->width ||
	    x->width > cpu->scratch.limits.width ||
	    w->rows > cpu->scratch.limits.vocab || (residual_in && residual_in->width != x->width))
		return STATUS_INVALID;
	each = (cpu->scratch.limits.vocab + cpu->seat.ranks - 1) / cpu->seat.ranks;
	if (part) {
		vocab = cpu->scratch.limits.vocab;
		first = cpu->seat.rank * each;
		if (first >= vocab || w->rows != (vocab - first < each ? vocab - first : each))
			return STATUS_INVALID;
	}
	rows = cpu->batch->logit_row_count;
	job.ids = cpu->batch->logit_rows;
	run_rows(cpu, norm_rows, &job, rows, x->width);
	status = cpu_linear(cpu, w, NULL, cpu->scratch.normed, x->width, rows, cpu->scratch.logits + first, vocab);
	if (status == STATUS_OK && part)
		status = cpu_group_gather(&cpu->seat, cpu->scratch.logits, rows, vocab, each);
	if (status == STATUS_OK)
		cpu->logits_vocab = vocab;
	return status;
}

struct draft_job {
	const struct cpu_kernels *kernels;
	float         *x, *hidden, *y;
	const int32_t *rows;
	const float   *w, *hidden_w;
	uint32_t       width;
	float          eps;
};

static void draft_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct draft_job *job = context;

	(void)thread;
	for (uint32_t r = first; r < first + count; r++) {
		float *y = job->y + (size_t)r * 2 * job->width;

		job->kernels->norm(job->x + (size_t)r * job->width, NULL, job->w, job->width, job->eps, y);
		job->kernels->norm(job->hidden + (size_t)job->rows[r] * job->width, NULL, job->hidden_w, job->width, job->eps,
		    y + job->width);
	}
}

static enum status draft_input(struct backend *b, const struct activation *x, const struct backend_weight *w,
    const struct activation *hidden, const int32_t *rows, const struct backend_weight *hidden_w, float eps,
    struct activation *y)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct draft_job    job = { .kernels = cpu->kernels, .x = x->data, .hidden = hidden->data, .y = y->data, .rows = rows,
		.w = w->vector, .hidden_w = hidden_w->vector, .width = x->width, .eps = eps };

	if (!cpu->batch || !job.w || !job.hidden_w || w->columns != x->width || hidden_w->columns != x->width ||
	    hidden->width != x->width || y->width != 2 * (uint64_t)x->width || cpu->batch->rows > x->rows ||
	    cpu->batch->rows > y->rows)
		return STATUS_INVALID;
	for (uint32_t r = 0; r < cpu->batch->rows; r++)
		if ((uint32_t)rows[r] >= hidden->rows)
			return STATUS_INVALID;
	if ((uint64_t)cpu->batch->rows * y->width <= ROWS_ALONE)
		draft_rows(&job, 0, 0, cpu->batch->rows);
	else
		team_run(cpu->team, draft_rows, &job, cpu->batch->rows);
	return STATUS_OK;
}

static enum status all_reduce(struct backend *b, struct activation *x)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;

	if (!cpu->batch || cpu->batch->rows > x->rows)
		return STATUS_INVALID;
	return cpu->seat.group ? cpu_group_sum(&cpu->seat, x->data, (size_t)cpu->batch->rows * x->width) : STATUS_OK;
}

static enum status wait_step(struct backend *b, int32_t *ret_ids, uint32_t count, struct error *error)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	uint32_t            part = (uint32_t)(cpu->waited % BACKEND_SAMPLES_MAX);

	if (!ret_ids) { /* what was drawn and not asked for is not wanted any more */
		cpu->waited = cpu->samples;
		return STATUS_OK;
	}
	if (cpu->waited == cpu->samples || count > cpu->sampled[part])
		return error_set(error, STATUS_INVALID, "%u ids wanted, %u sampled", count,
		    cpu->waited == cpu->samples ? 0 : cpu->sampled[part]);
	memcpy(ret_ids, cpu->scratch.ids + (size_t)part * cpu->scratch.limits.logit_rows, count * sizeof *ret_ids);
	cpu->waited++;
	return STATUS_OK;
}

static enum status read_logits(struct backend *b, uint32_t index, float *ret, uint32_t vocab)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;

	if (index >= cpu->wanted || vocab > cpu->logits_vocab)
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
	.read_pooled = cpu_read_pooled, .kv_copy = cpu_kv_copy, .sample_slot = cpu_sample_slot, .sample = cpu_sample,
	.wait = wait_step, .read_logprobs = cpu_read_logprobs, .read_logits = read_logits,
	.activation_put = activation_put, .activation_get = activation_get, .all_reduce = all_reduce,
	.weight_map = cpu_weight_map, .route = cpu_route, .experts = cpu_experts,
	.latent_write = cpu_latent_write, .latent_query = cpu_latent_query, .latent_attention = cpu_latent_attention,
	.latent_value = cpu_latent_value, .latent_expanded = cpu_latent_expanded, .index_write = cpu_index_write,
	.index_select = cpu_index_select, .index_follow = cpu_index_follow, .draft_input = draft_input,
};

static const struct cpu_kernels *const kernel_tables[CPU_ISA_COUNT] = {
	[CPU_ISA_GENERIC] = &cpu_kernels_generic,
#if defined __x86_64__
	[CPU_ISA_AVX2] = &cpu_kernels_avx2, [CPU_ISA_AVX512] = &cpu_kernels_avx512,
#endif
};

#if defined __x86_64__
/* AVX2 with FMA and F16C; AVX-512 with what Skylake's servers began with. */
static bool has_vectors(enum cpu_isa isa)
{
	enum { F16C = 1 << 29 }; /* in ecx of leaf 1; not every compiler's builtin knows its name */
	unsigned eax, ebx, ecx = 0, edx;

	if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__get_cpuid(1, &eax, &ebx, &ecx, &edx) ||
	    !(ecx & F16C))
		return false;
	return isa == CPU_ISA_AVX2 || (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"));
}

static bool has_integers(void) { return __builtin_cpu_supports("avx512vnni"); }
#else
static bool has_integers(void) { return false; }

static bool has_vectors(enum cpu_isa isa)
{
	(void)isa;
	return false;
}
#endif

const char *cpu_isa_name(enum cpu_isa isa)
{
	static const char *const names[CPU_ISA_COUNT] = { "best", "generic", "avx2", "avx512" };
	return names[isa];
}

bool cpu_isa_available(enum cpu_isa isa) { return isa <= CPU_ISA_GENERIC || has_vectors(isa); }

/* Processors this process may run on. */
static unsigned processors(void)
{
	cpu_set_t set;
	int       count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;

	return count < 1 ? 1 : count > CPU_THREADS_MAX ? CPU_THREADS_MAX : (unsigned)count;
}

enum status cpu_backend_create_rank(unsigned threads, enum cpu_isa isa, struct cpu_group *group, uint32_t rank,
    struct backend **ret, struct error *error)
{
	struct cpu_backend *cpu;
	uint32_t            ranks = group ? cpu_group_ranks(group) : 1;
	enum status         status;

	if (rank >= ranks)
		return error_set(error, STATUS_INVALID, "rank = %u is outside 0…%u", rank, ranks - 1);
	if (threads > CPU_THREADS_MAX)
		return error_set(error, STATUS_INVALID, "threads = %u is outside 0…%d", threads, CPU_THREADS_MAX);
	if (!cpu_isa_available(isa))
		return error_set(error, STATUS_UNSUPPORTED, "this processor has not all that the %s kernels need",
		    cpu_isa_name(isa));
	if (isa == CPU_ISA_BEST)
		for (isa = CPU_ISA_COUNT - 1; !cpu_isa_available(isa);)
			isa--;
	cpu = calloc(1, sizeof *cpu);
	if (!cpu)
		return error_set(error, STATUS_NOMEM, "out of memory for the CPU backend");
	cpu->base = (struct backend){ .ops = &operations, .rank = rank, .ranks = ranks };
	cpu->seat = (struct cpu_seat){ .group = ranks > 1 ? group : NULL, .rank = rank, .ranks = ranks };
	cpu->isa = isa;
	cpu->kernels = kernel_tables[isa];
	cpu->integers = isa == CPU_ISA_AVX512 && has_integers();
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

enum status cpu_backend_create_isa(unsigned threads, enum cpu_isa isa, struct backend **ret, struct error *error)
{
	return cpu_backend_create_rank(threads, isa, NULL, 0, ret, error);
}

void cpu_backend_work(const struct backend *b, struct cpu_work *ret) { *ret = ((const struct cpu_backend *)b)->work; }

void cpu_backend_set_prefault(struct backend *b, bool prefault) { ((struct cpu_backend *)b)->prefault = prefault; }

enum status cpu_backend_create(unsigned threads, struct backend **ret, struct error *error)
{
	return cpu_backend_create_isa(threads, CPU_ISA_BEST, ret, error);
}
