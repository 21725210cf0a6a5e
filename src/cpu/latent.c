/* latent.c: owns latent attention: one cached row [c | k] of a token serves all heads.  Does not own which tokens a row sees
 * (indexer.c) nor the cache (attention.c).  Invariant: as in attention.c, a row's result depends on its position and on the
 * rows before it, never on block size, on how a prompt was cut into steps, on other rows, or on threads.
 *
 * Two forms of the same (DeepSeek-V2 2024), Wk and Wv being the rows of the weight that make a head's key and value of c:
 *
 *      expanded    score = q_nope · (Wk c) + q_rope · k        o = Σ p · (Wv c)
 *      absorbed    score = (q_nope Wk) · c + q_rope · k        o = Wv (Σ p · c)
 *
 * The absorbed one never makes a head's keys and values, and is what models compute with; the other is there to hold it
 * against.
 *
 * Order of sums: what a row sees, by ascending position, is cut into chunks of 256; each is copied together out of its
 * blocks, then treated as attention.c treats a chunk.  A row that sees all before it, and one that chose all, have the same
 * chunks and so the same bits. */
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

enum {
	LATENT_ROWS = 8,   /* query rows of one item: they share copies of chunks where they see the same */
	LATENT_HEADS = 16, /* heads of one item */
	SCORES = ATTENTION_CHUNK + KV_KEYS
};

static inline uint32_t padded(uint32_t count) { return (count + KV_KEYS - 1) / KV_KEYS * KV_KEYS; }

struct latent_job {
	struct cpu_backend          *cpu;
	const struct cpu_kv         *kv;
	const struct latent_desc    *latent;
	const struct backend_weight *w; /* NULL: absorbed */
	const float *q;
	float       *y;
	size_t       q_stride, y_stride;
	uint32_t     group, layer, items;
	uint32_t     key, value; /* dimensions of a head's keys and values in this form */
};

/* ---- Scratch of a thread ---- */

/* A chunk's rows and the same transposed; scores of ATTENTION_HEADS heads; states [max, sum, o[value]] of an item's rows and
 * heads, then of one chunk; expanded: a head's keys and values of a chunk, and rows of the weight.  The products before and
 * after attention use the whole for one head's part of the weight, and results of ATTENTION_HEADS rows. */
struct latent_memory {
	float *rows, *columns, *scores, *states, *fresh, *keys, *values, *weight;
};

static size_t memory_floats(uint32_t latent, uint32_t head_dim, uint32_t value, float *start, struct latent_memory *ret)
{
	size_t state = (size_t)(latent > value ? latent : value) + 2, at = 0;
	size_t sizes[8] = { (size_t)ATTENTION_CHUNK * latent, (size_t)ATTENTION_CHUNK * latent, ATTENTION_HEADS * SCORES,
		LATENT_ROWS * LATENT_HEADS * state, ATTENTION_HEADS * state, (size_t)ATTENTION_CHUNK * head_dim,
		(size_t)ATTENTION_CHUNK * value, (size_t)ATTENTION_HEADS * latent };
	float **places[8] = { &ret->rows, &ret->columns, &ret->scores, &ret->states, &ret->fresh, &ret->keys, &ret->values,
		&ret->weight };

	for (unsigned i = 0; i < 8; i++) {
		if (start)
			*places[i] = start + at;
		at += (sizes[i] + KV_KEYS - 1) / KV_KEYS * KV_KEYS;
	}
	return at;
}

/* One head's part of the weight, as keys of `scores`: [inputs][outputs, padded]; then results. */
static size_t product_floats(uint32_t inputs, uint32_t outputs)
{
	return ((size_t)inputs + ATTENTION_HEADS) * padded(outputs) + padded(inputs > outputs ? inputs : outputs);
}

size_t cpu_latent_thread_floats(const struct backend_limits *limits)
{
	size_t floats, query, value;

	if (!limits->latent)
		return 0;
	floats = memory_floats(limits->latent, limits->head_dim, limits->latent_value, NULL, &(struct latent_memory){ NULL });
	query = product_floats(limits->head_dim, limits->latent);
	value = product_floats(limits->latent, limits->latent_value);
	floats = query > floats ? query : floats;
	return value > floats ? value : floats;
}

static bool fits(const struct cpu_backend *cpu, const struct latent_desc *latent)
{
	const struct backend_limits *limits = &cpu->scratch.limits;

	return cpu->batch && latent->heads >= 1 && latent->heads <= limits->q_heads && latent->latent >= 1 && latent->rope >= 2 &&
	       latent->nope >= 1 && latent->value >= 1 && (uint64_t)latent->latent + latent->rope <= limits->latent &&
	       (uint64_t)latent->nope + latent->rope <= limits->head_dim && latent->value <= limits->latent_value;
}

static bool weight_fits(const struct latent_desc *latent, const struct backend_weight *w)
{
	if (w->vector || w->columns != latent->latent || w->rows != (uint64_t)latent->heads * (latent->nope + latent->value))
		return false;
	for (uint32_t i = 0; i < w->count; i++)
		if (w->parts[i].input->order)
			return false; /* its rows lie in another order */
	return true;
}

/* ---- Writing ---- */

struct write_job {
	struct cpu_backend       *cpu;
	const struct cpu_kv      *kv;
	const struct latent_desc *latent;
	const struct rope_desc   *rope;
	const float   *norm;
	const int32_t *slots;
	float         *q, *rows;
	size_t         q_stride;
	uint32_t       layer;
	float          eps;
};

static void write_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct write_job   *job = context;
	const struct latent_desc *latent = job->latent;
	uint32_t                  width = latent->latent + latent->rope, head = latent->nope + latent->rope;

	(void)thread;
	for (uint32_t r = first; r < first + count; r++) {
		float   *row = job->rows + (size_t)r * width;
		int32_t  slot = job->slots[r];
		uint32_t size = job->kv->desc.block_size;

		job->cpu->kernels->norm(row, NULL, job->norm, latent->latent, job->eps, row);
		cpu_rotate(job->cpu, r, job->rope, row + latent->latent);
		for (uint32_t h = 0; h < latent->heads; h++)
			cpu_rotate(job->cpu, r, job->rope, job->q + r * job->q_stride + (size_t)h * head + latent->nope);
		if (slot >= 0)
			memcpy(cpu_kv_row(job->kv, job->layer, (uint32_t)slot / size, (uint32_t)slot % size), row, width * sizeof *row);
	}
}

enum status cpu_latent_write(struct backend *b, struct activation *q, struct activation *kv,
    const struct backend_weight *norm, float eps, uint32_t group, uint32_t layer, const struct latent_desc *latent,
    const struct rope_desc *rope)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct write_job    job = { .cpu = cpu, .latent = latent, .rope = rope, .norm = norm->vector, .q = q->data, .rows = kv->data,
		.q_stride = q->width, .layer = layer, .eps = eps };

	if (!fits(cpu, latent) || !(job.kv = cpu_kv_of(cpu, group, layer, KV_ROWS)) || !job.norm ||
	    norm->columns != latent->latent || kv->width != latent->latent + latent->rope || job.kv->desc.head_dim != kv->width ||
	    rope->dims != latent->rope || q->width != (uint64_t)latent->heads * (latent->nope + latent->rope) ||
	    cpu->batch->rows > q->rows || cpu->batch->rows > kv->rows || cpu_rotation(cpu, rope))
		return STATUS_INVALID;
	job.slots = cpu->batch->kv_slots[group];
	team_run(cpu->team, write_rows, &job, cpu->batch->rows);
	return STATUS_OK;
}

/* ---- Products with one head's part of the weight ---- */

struct product_job {
	struct cpu_backend          *cpu;
	const struct backend_weight *w;
	const struct latent_desc    *latent;
	const float *x;
	float       *y;
	size_t       x_stride, y_stride;
	bool         query; /* else of values */
};

/* y[row] = x[row] · KEYS [inputs][outputs, padded] for all rows, several at a time. */
static void multiply_rows(const struct product_job *job, const float *keys, uint32_t inputs, uint32_t outputs, float *results,
    size_t x_at, size_t y_at)
{
	uint32_t rows = job->cpu->batch->rows, stride = padded(outputs);

	for (uint32_t done = 0; done < rows; done += ATTENTION_HEADS) {
		const float *x[ATTENTION_HEADS] = { NULL };
		float       *out[ATTENTION_HEADS] = { NULL };
		unsigned     count = rows - done < ATTENTION_HEADS ? rows - done : ATTENTION_HEADS;

		for (unsigned i = 0; i < count; i++) {
			x[i] = job->x + (done + i) * job->x_stride + x_at;
			out[i] = results + (size_t)i * stride;
		}
		job->cpu->kernels->scores(x, count, keys, stride, outputs, inputs, out);
		for (unsigned i = 0; i < count; i++)
			memcpy(job->y + (done + i) * job->y_stride + y_at, out[i], outputs * sizeof(float));
	}
}

static void query_head(const struct product_job *job, uint32_t head, float *memory)
{
	const struct latent_desc *latent = job->latent;
	uint32_t                  stride = padded(latent->latent), row = head * (latent->nope + latent->value);
	size_t                    x_at = (size_t)head * (latent->nope + latent->rope);
	size_t                    y_at = (size_t)head * (latent->latent + latent->rope);

	for (uint32_t i = 0; i < latent->nope; i++)
		cpu_weight_row(job->w, row + i, memory + (size_t)i * stride);
	multiply_rows(job, memory, latent->nope, latent->latent, memory + (size_t)latent->nope * stride, x_at, y_at);
	for (uint32_t r = 0; r < job->cpu->batch->rows; r++)
		memcpy(job->y + r * job->y_stride + y_at + latent->latent, job->x + r * job->x_stride + x_at + latent->nope,
		    latent->rope * sizeof(float));
}

static void value_head(const struct product_job *job, uint32_t head, float *memory)
{
	const struct latent_desc *latent = job->latent;
	uint32_t                  stride = padded(latent->value), row = head * (latent->nope + latent->value) + latent->nope;
	float                    *results = memory + (size_t)latent->latent * stride;
	float                    *line = results + (size_t)ATTENTION_HEADS * stride;

	for (uint32_t i = 0; i < latent->value; i++) {
		cpu_weight_row(job->w, row + i, line);
		for (uint32_t k = 0; k < latent->latent; k++)
			memory[(size_t)k * stride + i] = line[k];
	}
	multiply_rows(job, memory, latent->latent, latent->value, results, (size_t)head * latent->latent,
	    (size_t)head * latent->value);
}

static void product_heads(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct product_job *job = context;
	float                    *memory = job->cpu->scratch.threads[thread].latent;

	for (uint32_t head = first; head < first + count; head++) {
		if (job->query)
			query_head(job, head, memory);
		else
			value_head(job, head, memory);
	}
}

static enum status multiply_heads(struct backend *b, const struct activation *x, const struct backend_weight *w,
    const struct latent_desc *latent, bool query, struct activation *y)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct product_job  job = { .cpu = cpu, .w = w, .latent = latent, .x = x->data, .y = y->data, .x_stride = x->width,
		.y_stride = y->width, .query = query };
	uint64_t            from = query ? latent->nope + latent->rope : latent->latent;
	uint64_t            to = query ? latent->latent + latent->rope : latent->value;

	if (!fits(cpu, latent) || !weight_fits(latent, w) || x->width != latent->heads * from || y->width != latent->heads * to ||
	    cpu->batch->rows > x->rows || cpu->batch->rows > y->rows)
		return STATUS_INVALID;
	team_run(cpu->team, product_heads, &job, latent->heads);
	return STATUS_OK;
}

enum status cpu_latent_query(struct backend *b, const struct activation *q, const struct backend_weight *w,
    const struct latent_desc *latent, struct activation *y)
{
	return multiply_heads(b, q, w, latent, true, y);
}

enum status cpu_latent_value(struct backend *b, const struct activation *x, const struct backend_weight *w,
    const struct latent_desc *latent, struct activation *y)
{
	return multiply_heads(b, x, w, latent, false, y);
}

/* ---- Attention ---- */

void cpu_latent_gather(const struct cpu_kv *kv, uint32_t layer, const int32_t *table, const uint32_t *positions,
    uint32_t first, uint32_t count, float *rows, float *columns)
{
	uint32_t size = kv->desc.block_size, dim = kv->desc.head_dim;

	for (uint32_t done = 0; done < count; done += KV_KEYS) {
		const float *from[KV_KEYS];
		uint32_t     n = count - done < KV_KEYS ? count - done : KV_KEYS;

		for (uint32_t i = 0; i < n; i++) {
			uint32_t position = positions ? positions[done + i] : first + done + i;

			from[i] = cpu_kv_row(kv, layer, (uint32_t)table[position / size], position % size);
			if (rows)
				memcpy(rows + (size_t)(done + i) * dim, from[i], dim * sizeof *rows);
		}
		for (uint32_t i = n; i < KV_KEYS; i++)
			from[i] = from[0]; /* read along, and not used */
		for (uint32_t d = 0; d < dim; d++)
			for (uint32_t i = 0; i < KV_KEYS; i++)
				columns[(size_t)d * ATTENTION_CHUNK + done + i] = from[i][d];
	}
}

/* Keys and values of HEAD made of a chunk's COUNT rows: keys [key][ATTENTION_CHUNK], values [count][value]. */
static void expand_head(const struct latent_job *job, const struct latent_memory *memory, uint32_t head, uint32_t count)
{
	const struct latent_desc *latent = job->latent;
	uint32_t                  first = head * (latent->nope + latent->value), outputs = latent->nope + latent->value;

	for (uint32_t done = 0; done < outputs; done += ATTENTION_HEADS) {
		const float *weights[ATTENTION_HEADS] = { NULL };
		float       *made[ATTENTION_HEADS] = { NULL };
		unsigned     n = outputs - done < ATTENTION_HEADS ? outputs - done : ATTENTION_HEADS;

		for (unsigned i = 0; i < n; i++) {
			cpu_weight_row(job->w, first + done + i, memory->weight + (size_t)i * latent->latent);
			weights[i] = memory->weight + (size_t)i * latent->latent;
			made[i] = memory->scores + i * SCORES;
		}
		job->cpu->kernels->scores(weights, n, memory->columns, ATTENTION_CHUNK, count, latent->latent, made);
		for (unsigned i = 0; i < n; i++) {
			uint32_t output = done + i;

			if (output < latent->nope)
				memcpy(memory->keys + (size_t)output * ATTENTION_CHUNK, made[i], count * sizeof(float));
			for (uint32_t t = 0; output >= latent->nope && t < count; t++)
				memory->values[(size_t)t * latent->value + output - latent->nope] = made[i][t];
		}
	}
	memcpy(memory->keys + (size_t)latent->nope * ATTENTION_CHUNK, memory->columns + (size_t)latent->latent * ATTENTION_CHUNK,
	    (size_t)latent->rope * ATTENTION_CHUNK * sizeof(float));
}

/* into ⊕= chunk */
static void merge(float *into, const float *chunk, uint32_t dim)
{
	float max = into[0] > chunk[0] ? into[0] : chunk[0];
	float a = expf(into[0] - max), b = expf(chunk[0] - max);

	into[0] = max;
	into[1] = into[1] * a + chunk[1] * b;
	for (uint32_t d = 0; d < dim; d++)
		into[2 + d] = into[2 + d] * a + chunk[2 + d] * b;
}

/* What a row sees. */
struct view {
	const uint32_t *positions; /* ascending; NULL: 0, 1, 2, … */
	uint32_t        count;
};

/* Never more than the tokens up to the row itself, whoever chose. */
static struct view view_of(const struct latent_job *job, const struct batch_sequence *sequence, uint32_t row)
{
	const struct cpu_scratch *scratch = &job->cpu->scratch;
	struct view               view = { NULL, sequence->context - sequence->rows + (row - sequence->first_row) + 1 };
	uint32_t                  entry, count;

	if (!job->latent->sparse)
		return view;
	entry = scratch->selection_of[row];
	count = scratch->selected_counts[entry];
	if (!count) {
		view.count = scratch->selected_prefixes[entry] < view.count ? scratch->selected_prefixes[entry] : view.count;
		return view;
	}
	view.positions = scratch->selected + (size_t)entry * scratch->limits.index_top_k;
	while (count && view.positions[count - 1] >= view.count)
		count--;
	view.count = count;
	return view;
}

/* COUNT rows of a sequence from ROW on, which see the same but for the end, at HEADS heads. */
static void attend_rows(const struct latent_job *job, const struct batch_sequence *sequence, uint32_t row, uint32_t count,
    uint32_t head, uint32_t heads, const struct latent_memory *memory)
{
	const struct cpu_kernels *kernels = job->cpu->kernels;
	size_t                    state = (size_t)job->value + 2;
	uint32_t                  step = job->w ? 1 : ATTENTION_HEADS;
	struct view               views[LATENT_ROWS];

	for (uint32_t r = 0; r < count; r++)
		views[r] = view_of(job, sequence, row + r);
	for (uint32_t at = 0; at < views[count - 1].count; at += ATTENTION_CHUNK) {
		uint32_t left = views[count - 1].count - at, tokens = left < ATTENTION_CHUNK ? left : ATTENTION_CHUNK;

		cpu_latent_gather(job->kv, job->layer, sequence->block_table[job->group],
		    views[0].positions ? views[0].positions + at : NULL, at, tokens, memory->rows, memory->columns);
		for (uint32_t h = 0; h < heads; h += step) {
			unsigned n = heads - h < step ? heads - h : step;

			if (job->w)
				expand_head(job, memory, head + h, tokens);
			for (uint32_t r = 0; r < count; r++) {
				const float *q[ATTENTION_HEADS] = { NULL }, *p[ATTENTION_HEADS] = { NULL };
				float       *scores[ATTENTION_HEADS] = { NULL }, *o[ATTENTION_HEADS] = { NULL };
				uint32_t     seen = views[r].count > at ? views[r].count - at : 0;

				seen = seen < tokens ? seen : tokens;
				if (!seen)
					continue;
				for (unsigned i = 0; i < n; i++) {
					q[i] = job->q + (row + r) * job->q_stride + (size_t)(head + h + i) * job->key;
					p[i] = scores[i] = memory->scores + i * SCORES;
					o[i] = at ? memory->fresh + i * state : memory->states + ((size_t)r * LATENT_HEADS + h + i) * state;
					memset(o[i] + 2, 0, job->value * sizeof(float));
				}
				kernels->scores(q, n, job->w ? memory->keys : memory->columns, ATTENTION_CHUNK, seen, job->key, scores);
				for (unsigned i = 0; i < n; i++) {
					kernels->softmax(scores[i], seen, job->latent->scale, &o[i][0], &o[i][1]);
					o[i] += 2;
				}
				kernels->values(p, n, job->w ? memory->values : memory->rows, seen, job->value, o);
				for (unsigned i = 0; at && i < n; i++)
					merge(memory->states + ((size_t)r * LATENT_HEADS + h + i) * state, o[i] - 2, job->value);
			}
		}
	}
	for (uint32_t r = 0; r < count; r++) {
		uint32_t wanted = job->w ? job->latent->value : job->latent->latent;

		for (uint32_t h = 0; h < heads; h++) {
			const float *from = memory->states + ((size_t)r * LATENT_HEADS + h) * state;
			float       *y = job->y + (row + r) * job->y_stride + (size_t)(head + h) * wanted;

			for (uint32_t d = 0; d < wanted; d++)
				y[d] = views[r].count ? from[2 + d] / from[1] : 0;
		}
	}
}

static void attend_items(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct latent_job     *job = context;
	const struct backend_limits *limits = &job->cpu->scratch.limits;
	struct latent_memory         memory = { NULL };

	memory_floats(limits->latent, limits->head_dim, limits->latent_value, job->cpu->scratch.threads[thread].latent, &memory);
	for (uint32_t i = first; i < first + count; i++) {
		const struct attention_item *item = &job->cpu->scratch.items[i];
		const struct batch_sequence *sequence = &job->cpu->batch->sequences[item->sequence];
		uint32_t                     left = job->latent->heads - item->kv_head;
		uint32_t                     heads = left < LATENT_HEADS ? left : LATENT_HEADS;

		/* Rows that chose share nothing. */
		for (uint32_t done = 0, n; done < item->rows; done += n) {
			n = job->latent->sparse ? 1 : item->rows;
			attend_rows(job, sequence, item->first_row + done, n, item->kv_head, heads, &memory);
		}
	}
}

/* Lists the items and counts what they will read; rows of no sequence (padding) get zeroes. */
static void list_items(struct latent_job *job)
{
	const struct batch    *batch = job->cpu->batch;
	struct attention_item *items = job->cpu->scratch.items;
	uint32_t               next_row = 0;

	for (uint32_t s = 0; s <= batch->sequence_count; s++) {
		const struct batch_sequence *sequence = s < batch->sequence_count ? &batch->sequences[s] : NULL;
		uint32_t                     end = sequence ? sequence->first_row : batch->rows;

		for (; next_row < end; next_row++)
			memset(job->y + next_row * job->y_stride, 0, job->y_stride * sizeof(float));
		if (!sequence)
			break;
		next_row = end + sequence->rows;
		for (uint32_t r = 0; r < sequence->rows; r++)
			job->cpu->work.attended += view_of(job, sequence, end + r).count;
		for (uint32_t done = 0; done < sequence->rows; done += LATENT_ROWS)
			for (uint32_t head = 0; head < job->latent->heads; head += LATENT_HEADS)
				items[job->items++] = (struct attention_item){ .sequence = s, .kv_head = head, .first_row = end + done,
					.rows = sequence->rows - done < LATENT_ROWS ? sequence->rows - done : LATENT_ROWS };
	}
}

static enum status attend(struct latent_job *job, const struct activation *q, const struct activation *y)
{
	const struct cpu_backend *cpu = job->cpu;
	uint64_t                  wanted = job->w ? job->latent->value : job->latent->latent;

	if (!job->kv || job->kv->desc.head_dim != job->latent->latent + job->latent->rope ||
	    q->width != (uint64_t)job->latent->heads * job->key || y->width != job->latent->heads * wanted ||
	    cpu->batch->rows > q->rows || cpu->batch->rows > y->rows ||
	    (job->latent->sparse && cpu->selection_rows < cpu->batch->rows))
		return STATUS_INVALID;
	list_items(job);
	team_run(cpu->team, attend_items, job, job->items);
	return STATUS_OK;
}

enum status cpu_latent_attention(struct backend *b, const struct activation *q, uint32_t group, uint32_t layer,
    const struct latent_desc *latent, struct activation *y)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct latent_job   job = { .cpu = cpu, .kv = cpu_kv_of(cpu, group, layer, KV_ROWS), .latent = latent, .q = q->data,
		.y = y->data, .q_stride = q->width, .y_stride = y->width, .group = group, .layer = layer,
		.key = latent->latent + latent->rope, .value = latent->latent + latent->rope };

	return fits(cpu, latent) ? attend(&job, q, y) : STATUS_INVALID;
}

enum status cpu_latent_expanded(struct backend *b, const struct activation *q, const struct backend_weight *w,
    uint32_t group, uint32_t layer, const struct latent_desc *latent, struct activation *y)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct latent_job   job = { .cpu = cpu, .kv = cpu_kv_of(cpu, group, layer, KV_ROWS), .latent = latent, .w = w, .q = q->data,
		.y = y->data, .q_stride = q->width, .y_stride = y->width, .group = group, .layer = layer,
		.key = latent->nope + latent->rope, .value = latent->value };

	return fits(cpu, latent) && weight_fits(latent, w) ? attend(&job, q, y) : STATUS_INVALID;
}
