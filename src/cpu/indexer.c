/* indexer.c: owns the choice of what sparse attention sees.  Does not own attention over it (latent.c).  Invariant: what a row
 * chooses depends on its own query and on the keys up to its position, never on other rows, blocks, steps or threads; memory
 * for it is bounded by top_k, whatever the context.
 *
 * A position is a whole number that sorts as it should: its score, mapped so that larger floats are larger numbers, above the
 * complement of its position, so that of equal scores the lower position is the larger number.  No two are equal.  They are
 * collected by chunks of 256 positions until there are 2 · top_k of them; then all but the top_k largest are dropped, and
 * from there on only larger ones than the least of these are taken.
 *
 * The scale of scores (dim^−½, heads^−½) is left out: it is positive and changes no choice. */
#include "cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_ROWS = 8 /* query rows that share a pass over keys */, SCORES = ATTENTION_CHUNK + KV_KEYS };

/* ---- Writing ---- */

struct write_job {
	struct cpu_backend      *cpu;
	const struct cpu_kv     *kv;
	const struct index_desc *index;
	const struct rope_desc  *rope;
	const int32_t *slots;
	float         *q, *k;
	uint32_t       layer;
};

static void write_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct write_job *job = context;
	uint32_t                dim = job->index->dim, size = job->kv->desc.block_size;

	(void)thread;
	for (uint32_t r = first; r < first + count; r++) {
		float  *k = job->k + (size_t)r * dim;
		int32_t slot = job->slots[r];

		for (uint32_t h = 0; h < job->index->heads; h++)
			cpu_rotate(job->cpu, r, job->rope, job->q + ((size_t)r * job->index->heads + h) * dim);
		cpu_rotate(job->cpu, r, job->rope, k);
		if (slot >= 0)
			memcpy(cpu_kv_row(job->kv, job->layer, (uint32_t)slot / size, (uint32_t)slot % size), k, dim * sizeof *k);
	}
}

static bool fits(const struct cpu_backend *cpu, const struct index_desc *index, const struct cpu_kv *kv)
{
	const struct backend_limits *limits = &cpu->scratch.limits;

	return cpu->batch && kv && index->heads >= 1 && index->heads <= limits->index_heads && index->top_k >= 1 &&
	       index->top_k <= limits->index_top_k && index->dim <= limits->latent && kv->desc.head_dim == index->dim;
}

enum status cpu_index_write(struct backend *b, struct activation *q, struct activation *k, uint32_t group, uint32_t layer,
    const struct index_desc *index, const struct rope_desc *rope)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct write_job    job = { .cpu = cpu, .kv = cpu_kv_of(cpu, group, layer, KV_ROWS), .index = index, .rope = rope,
		.q = q->data, .k = k->data, .layer = layer };

	if (!fits(cpu, index, job.kv) || q->width != (uint64_t)index->heads * index->dim || k->width != index->dim ||
	    rope->dims > index->dim || cpu->batch->rows > q->rows || cpu->batch->rows > k->rows || cpu_rotation(cpu, rope))
		return STATUS_INVALID;
	job.slots = cpu->batch->kv_slots[group];
	team_run(cpu->team, write_rows, &job, cpu->batch->rows);
	return STATUS_OK;
}

/* ---- Choosing ---- */

struct select_job {
	struct cpu_backend      *cpu;
	const struct cpu_kv     *kv;
	const struct index_desc *index;
	const float *q, *weights;
	uint32_t     group, layer, items;
};

/* What one row has collected. */
struct collection {
	uint64_t *keys; /* [capacity] */
	uint64_t  least; /* taken are larger ones only */
	uint32_t  count, tokens; /* tokens: how many there are to see; 0 = it sees all */
};

static uint32_t collection_capacity(uint32_t top_k) { return 2 * top_k + ATTENTION_CHUNK; }

size_t cpu_index_thread_keys(uint32_t top_k) { return top_k ? (size_t)INDEX_ROWS * collection_capacity(top_k) : 0; }

/* Larger scores give larger keys; −0 is 0, and what is no number is less than all. */
static uint64_t key_of(float score, uint32_t position)
{
	uint32_t bits;

	score = isnan(score) ? -INFINITY : score + 0.0f;
	bits = floats_to_bits(score);
	bits = bits & UINT32_C(0x80000000) ? ~bits : bits | UINT32_C(0x80000000);
	return (uint64_t)bits << 32 | (uint32_t)~position;
}

/* The RANK-th largest of COUNT ≥ RANK ≥ 1 different keys, byte by byte from the highest. */
static uint64_t find_largest(const uint64_t *keys, uint32_t count, uint32_t rank)
{
	uint64_t prefix = 0, mask = 0;

	for (int shift = 56; shift >= 0; shift -= 8) {
		uint32_t of_byte[256] = { 0 }, byte = 255;

		for (uint32_t i = 0; i < count; i++)
			if ((keys[i] & mask) == prefix)
				of_byte[keys[i] >> shift & 0xff]++;
		for (; of_byte[byte] < rank; byte--)
			rank -= of_byte[byte];
		prefix |= (uint64_t)byte << shift;
		mask |= UINT64_C(0xff) << shift;
	}
	return prefix;
}

/* Keeps the top_k largest. */
static void drop_smaller(struct collection *collection, uint32_t top_k)
{
	uint32_t kept = 0;

	if (collection->count <= top_k)
		return;
	collection->least = find_largest(collection->keys, collection->count, top_k);
	for (uint32_t i = 0; i < collection->count; i++)
		if (collection->keys[i] >= collection->least)
			collection->keys[kept++] = collection->keys[i];
	collection->count = kept;
}

static int compare_positions(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return x < y ? -1 : x > y;
}

/* Scores of COUNT positions from FIRST on, whose keys are COLUMNS, for ROW. */
static void collect(const struct select_job *job, uint32_t row, uint32_t first, uint32_t count, const float *columns,
    float *scores, struct collection *collection)
{
	const struct index_desc *index = job->index;
	const float             *q = job->q + (size_t)row * index->heads * index->dim;
	const float             *weights = job->weights + (size_t)row * index->heads;
	float                   *sums = scores + (size_t)ATTENTION_HEADS * SCORES;

	memset(sums, 0, count * sizeof *sums);
	for (uint32_t head = 0; head < index->heads; head += ATTENTION_HEADS) {
		const float *of_head[ATTENTION_HEADS] = { NULL };
		float       *to[ATTENTION_HEADS] = { NULL };
		unsigned     n = index->heads - head < ATTENTION_HEADS ? index->heads - head : ATTENTION_HEADS;

		for (unsigned h = 0; h < n; h++) {
			of_head[h] = q + (size_t)(head + h) * index->dim;
			to[h] = scores + (size_t)h * SCORES;
		}
		job->cpu->kernels->scores(of_head, n, columns, ATTENTION_CHUNK, count, index->dim, to);
		for (unsigned h = 0; h < n; h++)
			for (uint32_t t = 0; t < count; t++)
				sums[t] += weights[head + h] * (to[h][t] > 0 ? to[h][t] : 0);
	}
	for (uint32_t t = 0; t < count; t++) {
		uint64_t key = key_of(sums[t], first + t);

		if (key > collection->least)
			collection->keys[collection->count++] = key;
	}
	if (collection->count > 2 * index->top_k)
		drop_smaller(collection, index->top_k);
}

/* What ROW chose goes to its place. */
static void keep(const struct select_job *job, uint32_t row, struct collection *collection)
{
	struct cpu_scratch *scratch = &job->cpu->scratch;
	uint32_t           *selected = scratch->selected + (size_t)row * scratch->limits.index_top_k;

	drop_smaller(collection, job->index->top_k);
	for (uint32_t i = 0; i < collection->count; i++)
		selected[i] = ~(uint32_t)collection->keys[i];
	qsort(selected, collection->count, sizeof *selected, compare_positions);
	scratch->selected_counts[row] = collection->count;
}

static void select_items(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct select_job *job = context;
	const struct cpu_thread *memory = &job->cpu->scratch.threads[thread];
	uint32_t                 capacity = collection_capacity(job->index->top_k);
	float                   *columns = memory->latent, *scores = columns + (size_t)ATTENTION_CHUNK * job->index->dim;

	for (uint32_t i = first; i < first + count; i++) {
		const struct attention_item *item = &job->cpu->scratch.items[i];
		const struct batch_sequence *sequence = &job->cpu->batch->sequences[item->sequence];
		struct collection            collections[INDEX_ROWS];
		uint32_t                     longest = 0;

		for (uint32_t r = 0; r < item->rows; r++) {
			uint32_t tokens = sequence->context - sequence->rows + (item->first_row + r - sequence->first_row) + 1;

			collections[r] = (struct collection){ .keys = memory->collected + (size_t)r * capacity,
				.tokens = tokens > job->index->top_k ? tokens : 0 };
			longest = collections[r].tokens > longest ? collections[r].tokens : longest;
		}
		for (uint32_t at = 0; at < longest; at += ATTENTION_CHUNK) {
			uint32_t tokens = longest - at < ATTENTION_CHUNK ? longest - at : ATTENTION_CHUNK;

			cpu_latent_gather(job->kv, job->layer, sequence->block_table[job->group], NULL, at, tokens, NULL, columns);
			for (uint32_t r = 0; r < item->rows; r++) {
				uint32_t left = collections[r].tokens > at ? collections[r].tokens - at : 0;

				if (left)
					collect(job, item->first_row + r, at, left < tokens ? left : tokens, columns, scores, &collections[r]);
			}
		}
		for (uint32_t r = 0; r < item->rows; r++)
			if (collections[r].tokens)
				keep(job, item->first_row + r, &collections[r]);
	}
}

/* Rows that see no more than top_k need no scores. */
static void list_items(struct select_job *job)
{
	const struct batch *batch = job->cpu->batch;
	struct cpu_scratch *scratch = &job->cpu->scratch;

	for (uint32_t row = 0; row < batch->rows; row++) {
		scratch->selection_of[row] = row;
		scratch->selected_counts[row] = scratch->selected_prefixes[row] = 0;
	}
	for (uint32_t s = 0; s < batch->sequence_count; s++) {
		const struct batch_sequence *sequence = &batch->sequences[s];

		for (uint32_t r = 0; r < sequence->rows; r++) {
			uint32_t tokens = sequence->context - sequence->rows + r + 1;

			scratch->selected_prefixes[sequence->first_row + r] = tokens;
			job->cpu->work.indexed += tokens > job->index->top_k ? tokens : 0;
		}
		for (uint32_t done = 0; sequence->context > job->index->top_k && done < sequence->rows; done += INDEX_ROWS)
			scratch->items[job->items++] = (struct attention_item){ .sequence = s, .first_row = sequence->first_row + done,
				.rows = sequence->rows - done < INDEX_ROWS ? sequence->rows - done : INDEX_ROWS };
	}
}

enum status cpu_index_select(struct backend *b, const struct activation *q, const struct activation *weights,
    uint32_t group, uint32_t layer, const struct index_desc *index)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct select_job   job = { .cpu = cpu, .kv = cpu_kv_of(cpu, group, layer, KV_ROWS), .index = index, .q = q->data,
		.weights = weights->data, .group = group, .layer = layer };

	if (!fits(cpu, index, job.kv) || q->width != (uint64_t)index->heads * index->dim || weights->width != index->heads ||
	    cpu->batch->rows > q->rows || cpu->batch->rows > weights->rows)
		return STATUS_INVALID;
	list_items(&job);
	if (job.items)
		team_run(cpu->team, select_items, &job, job.items);
	cpu->selection_rows = cpu->batch->rows;
	return STATUS_OK;
}

enum status cpu_index_follow(struct backend *b, const int32_t *rows)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct cpu_scratch *scratch = &cpu->scratch;

	if (!cpu->batch || !scratch->limits.index_top_k)
		return STATUS_INVALID;
	for (uint32_t r = 0; r < cpu->batch->rows; r++)
		if ((uint32_t)rows[r] >= cpu->selection_rows)
			return STATUS_INVALID;
	for (uint32_t r = 0; r < cpu->batch->rows; r++)
		scratch->selection_new[r] = scratch->selection_of[rows[r]];
	memcpy(scratch->selection_of, scratch->selection_new, cpu->batch->rows * sizeof *scratch->selection_of);
	cpu->selection_rows = cpu->batch->rows;
	return STATUS_OK;
}
