/* attention.c: owns the KV pools, rotary embedding and paged attention.  Does not own block tables: they come with a
 * step.  Invariant: a row's result depends on its position and on the keys and values before it, never on block size,
 * on where blocks lie, on how a prompt was cut into steps, on other rows, or on threads.
 *
 * Order of sums.  Positions are cut into chunks of 256, at multiples of 256:
 *
 *      in a chunk    score[t] = scale · Σ q[d] · k[t][d], d ascending; m = max; p[t] = exp(score[t] − m); s = Σ p;
 *                    o = Σ p[t] · v[t], t ascending
 *      over chunks   ascending: (m, s, o) ← (m, s, o) ⊕ (m', s', o')     as in online softmax (Milakov 2018)
 *
 * Sharing out.  An item is up to 16 rows of one sequence at one KV head.  With too few items for the team (a decode
 * step of few long sequences) their chunks are shared out too, as in Flash-Decoding: partial results go to scratch,
 * and a second job merges them in the same ascending order, so the bits are the same either way.
 */
#include "cpu/cpu.h"

#include "base/checked.h"
#include "base/floats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARTIAL_FLOATS = 1 << 21, ITEMS_PER_THREAD = 4, ROTATE_ALONE = 2 /* rows */ };

/* ---- KV pools ---- */

/* Rows of KV_ROWS lie where keys do, one after the other. */
static bool kv_sizes(const struct kv_group_desc *desc, uint32_t blocks, uint64_t *ret_keys, uint64_t *ret_values)
{
	uint64_t stride = ((uint64_t)desc->block_size + KV_KEYS - 1) / KV_KEYS * KV_KEYS, rows;

	if (desc->type != KV_FLOAT)
		return checked_mul_u64((uint64_t)desc->layers * desc->kv_heads, desc->head_dim + sizeof(float), &rows) &&
		       checked_mul_u64(rows, desc->block_size, &rows) && checked_mul_u64(rows, blocks, ret_keys) &&
		       checked_mul_u64(rows, blocks, ret_values);

	if (desc->kind == KV_ROWS) {
		*ret_values = 0;
		return checked_mul_u64((uint64_t)desc->layers * desc->block_size, sizeof(float), &rows) &&
		       checked_mul_u64(rows, desc->head_dim, &rows) && checked_mul_u64(rows, blocks, ret_keys);
	}
	return checked_mul_u64((uint64_t)desc->layers * desc->kv_heads, sizeof(float), &rows) &&
	       checked_mul_u64(rows, desc->head_dim, &rows) && checked_mul_u64(rows, blocks, &rows) &&
	       checked_mul_u64(rows, stride, ret_keys) && checked_mul_u64(rows, desc->block_size, ret_values);
}

uint64_t cpu_kv_bytes(const struct backend *b, const struct kv_group_desc *group)
{
	uint64_t keys, values;

	(void)b;
	return kv_sizes(group, 1, &keys, &values) ? keys + values : UINT64_MAX;
}

enum status cpu_kv_alloc(struct backend *b, uint32_t group, const struct kv_group_desc *desc, struct error *error)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct cpu_kv       kv = { .desc = *desc };
	uint64_t            keys, values;
	unsigned            threads = team_threads(cpu->team);

	if (group >= BACKEND_KV_GROUPS_MAX || cpu->kv[group].keys)
		return error_set(error, STATUS_INVALID, "KV group %u is taken or outside 0…%d", group,
		    BACKEND_KV_GROUPS_MAX - 1);
	if (desc->block_size < 1 || desc->block_size > ATTENTION_CHUNK || ATTENTION_CHUNK % desc->block_size)
		return error_set(error, STATUS_INVALID, "block_size = %u: the CPU backend needs a power of two up to %d",
		    desc->block_size, ATTENTION_CHUNK);
	if (desc->layers < 1 || desc->kv_heads < 1 || desc->head_dim < 1 ||
	    desc->head_dim > (desc->kind == KV_ROWS ? CPU_LATENT_MAX : CPU_HEAD_DIM_MAX) || desc->blocks < 1 ||
	    (desc->kind == KV_ROWS && desc->kv_heads != 1))
		return error_set(error, STATUS_INVALID,
		    "KV group of %u layers, %u heads of %u, %u blocks: all must be positive, heads ≤ %d",
		    desc->layers, desc->kv_heads, desc->head_dim, desc->blocks, CPU_HEAD_DIM_MAX);
	if (desc->kind == KV_ROWS && desc->type != KV_FLOAT)
		return error_set(error, STATUS_UNSUPPORTED, "KV group %u: rows for all heads are kept in float32", group);
	if ((uint64_t)desc->blocks * desc->block_size > INT32_MAX || !kv_sizes(desc, desc->blocks, &keys, &values))
		return error_set(error, STATUS_LIMIT, "%u blocks of %u tokens are more than slots can number", desc->blocks,
		    desc->block_size);
	kv.key_stride = (desc->block_size + KV_KEYS - 1) / KV_KEYS * KV_KEYS;
	kv.key_bytes = keys;
	kv.value_bytes = values;
	kv.keys = cpu_pages_alloc(keys, cpu->prefault);
	kv.values = kv.keys && values ? cpu_pages_alloc(values, cpu->prefault) : NULL;
	if (desc->type != KV_FLOAT) {
		kv.decoded_floats = (size_t)desc->head_dim * (ATTENTION_CHUNK / desc->block_size * kv.key_stride + ATTENTION_CHUNK);
		kv.decoded_bytes = threads * kv.decoded_floats * sizeof(float);
		kv.decoded = kv.keys ? cpu_pages_alloc(kv.decoded_bytes, cpu->prefault) : NULL;
	}
	if (!kv.keys || (values && !kv.values) || (kv.decoded_bytes && !kv.decoded)) {
		cpu_kv_free(&kv);
		return error_set(error, STATUS_NOMEM, "out of memory for a KV cache of %llu bytes",
		    (unsigned long long)(keys + values));
	}
	cpu->kv[group] = kv;
	return STATUS_OK;
}

void cpu_kv_free(struct cpu_kv *kv)
{
	cpu_pages_free(kv->keys, kv->key_bytes);
	cpu_pages_free(kv->values, kv->value_bytes);
	cpu_pages_free(kv->decoded, kv->decoded_bytes);
	kv->keys = kv->values = kv->decoded = NULL;
}

/* [head_dim][key_stride] and [block_size][head_dim] of one block, layer and head. */
static inline float *kv_keys(const struct cpu_kv *kv, uint32_t layer, uint32_t block, uint32_t head)
{
	size_t index = ((size_t)block * kv->desc.layers + layer) * kv->desc.kv_heads + head;
	return kv->keys + index * kv->desc.head_dim * kv->key_stride;
}

static inline float *kv_values(const struct cpu_kv *kv, uint32_t layer, uint32_t block, uint32_t head)
{
	size_t index = ((size_t)block * kv->desc.layers + layer) * kv->desc.kv_heads + head;
	return kv->values + index * kv->desc.head_dim * kv->desc.block_size;
}

/* ---- One byte each ---- */

/* Scales and bytes of one block, layer and head in POOL. */
static inline uint8_t *kv_narrow(const struct cpu_kv *kv, float *pool, uint32_t layer, uint32_t block, uint32_t head)
{
	size_t index = ((size_t)block * kv->desc.layers + layer) * kv->desc.kv_heads + head;
	return (uint8_t *)pool + index * kv->desc.block_size * (kv->desc.head_dim + sizeof(float));
}

/* X [head_dim] to place OFFSET of UNIT.  A scale that is no number keeps what is none. */
static void narrow_write(const struct cpu_kv *kv, uint8_t *unit, uint32_t offset, const float *x)
{
	uint32_t dim = kv->desc.head_dim;
	bool     f8 = kv->desc.type == KV_F8;
	uint8_t *to = unit + kv->desc.block_size * sizeof(float) + (size_t)offset * dim;
	float    largest = 0, none = 0, scale;

	for (uint32_t d = 0; d < dim; d++) {
		largest = fmaxf(largest, fabsf(x[d]));
		none += x[d] - x[d];
	}
	scale = none == 0 ? largest / (f8 ? 448.0f : 127.0f) : NAN;
	memcpy(unit + offset * sizeof(float), &scale, sizeof scale);
	for (uint32_t d = 0; d < dim; d++) {
		float value = scale > 0 ? x[d] / scale : 1;

		if (f8)
			to[d] = floats_to_e4m3(value);
		else
			to[d] = (uint8_t)(int8_t)fmaxf(-127, fminf(127, rintf(value)));
	}
}

/* Of e4m3 without NaN: its bits as those of a float32 are the value times 2⁻¹²⁰. */
static inline float narrow_value(bool f8, uint8_t byte)
{
	if (f8)
		return floats_from_bits((uint32_t)(byte & 0x80) << 24 | (uint32_t)(byte & 0x7f) << 20) * 0x1p120f;
	return (float)(int8_t)byte;
}

/* COUNT keys of a unit to [head_dim][key_stride], or values to [count][head_dim]. */
static void narrow_read(const struct cpu_kv *kv, const uint8_t *unit, uint32_t count, bool keys, float *ret)
{
	uint32_t       dim = kv->desc.head_dim;
	bool           f8 = kv->desc.type == KV_F8;
	const uint8_t *from = unit + kv->desc.block_size * sizeof(float);
	size_t         by_token = keys ? 1 : dim, by_dim = keys ? kv->key_stride : 1;

	for (uint32_t t = 0; t < count; t++) {
		float scale;

		memcpy(&scale, unit + t * sizeof scale, sizeof scale);
		for (uint32_t d = 0; d < dim; d++)
			ret[t * by_token + d * by_dim] = narrow_value(f8, from[(size_t)t * dim + d]) * scale;
	}
}

float *cpu_kv_row(const struct cpu_kv *kv, uint32_t layer, uint32_t block, uint32_t offset)
{
	return kv->keys + (((size_t)block * kv->desc.layers + layer) * kv->desc.block_size + offset) * kv->desc.head_dim;
}

const struct cpu_kv *cpu_kv_of(const struct cpu_backend *cpu, uint32_t group, uint32_t layer, enum kv_kind kind)
{
	const struct cpu_kv *kv = group < BACKEND_KV_GROUPS_MAX ? &cpu->kv[group] : NULL;

	return kv && kv->keys && kv->desc.kind == kind && layer < kv->desc.layers ? kv : NULL;
}

enum status cpu_kv_copy(struct backend *b, uint32_t group, const int32_t *from, const int32_t *to, uint32_t count)
{
	struct cpu_backend  *cpu = (struct cpu_backend *)b;
	const struct cpu_kv *kv;
	size_t               keys, values;

	if (group >= BACKEND_KV_GROUPS_MAX || !cpu->kv[group].keys)
		return STATUS_INVALID;
	kv = &cpu->kv[group];
	keys = kv->key_bytes / kv->desc.blocks;
	values = kv->value_bytes / kv->desc.blocks;
	for (uint32_t i = 0; i < count; i++)
		if ((uint32_t)from[i] >= kv->desc.blocks || (uint32_t)to[i] >= kv->desc.blocks)
			return STATUS_INVALID;
	for (uint32_t i = 0; i < count; i++) {
		if (from[i] != to[i]) {
			memcpy((uint8_t *)kv->keys + (uint32_t)to[i] * keys, (uint8_t *)kv->keys + (uint32_t)from[i] * keys, keys);
			if (values)
				memcpy((uint8_t *)kv->values + (uint32_t)to[i] * values, (uint8_t *)kv->values + (uint32_t)from[i] * values,
				    values);
		}
	}
	return STATUS_OK;
}

/* ---- Rotary embedding and KV write ---- */

struct rotate_job {
	struct cpu_backend *cpu;
	const struct cpu_kv *kv;
	const struct rope_desc *rope;
	const int32_t *slots;
	float   *qkv;
	uint32_t width, layer, q_heads;
};

/* Cosines and sines of every row's position.  The angle is a float32 product, as the models were trained with. */
static void rotation_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct rotate_job *job = context;
	uint32_t                 pairs = job->rope->dims / 2;

	(void)thread;
	for (uint32_t row = first; row < first + count; row++) {
		float *cosines = job->cpu->scratch.rotation + (size_t)row * job->cpu->scratch.limits.head_dim;
		float *sines = cosines + pairs;

		for (uint32_t i = 0; i < pairs; i++) {
			float angle = (float)job->cpu->batch->positions[row] * job->rope->frequencies[i];
			cosines[i] = cosf(angle) * job->rope->scale;
			sines[i] = sinf(angle) * job->rope->scale;
		}
	}
}

static bool same_rotation(const struct rope_desc *a, const struct rope_desc *b)
{
	return a->frequencies == b->frequencies && a->dims == b->dims && a->scale == b->scale;
}

enum status cpu_rotation(struct cpu_backend *cpu, const struct rope_desc *rope)
{
	struct rotate_job job = { .cpu = cpu, .rope = rope };

	if (rope->dims % 2 || rope->dims > cpu->scratch.limits.head_dim)
		return STATUS_INVALID;
	if (same_rotation(&cpu->rotation_of, rope))
		return STATUS_OK;
	team_run(cpu->team, rotation_rows, &job, cpu->batch->rows);
	cpu->rotation_of = *rope;
	return STATUS_OK;
}

static void rotate_head(float *head, const float *cosines, uint32_t dims, enum rope_style style)
{
	uint32_t     pairs = dims / 2;
	const float *sines = cosines + pairs;
	uint32_t     step = style == ROPE_HALF ? 1 : 2, apart = style == ROPE_HALF ? pairs : 1;

	for (uint32_t i = 0; i < pairs; i++) {
		float a = head[i * step], b = head[i * step + apart];

		head[i * step] = a * cosines[i] - b * sines[i];
		head[i * step + apart] = b * cosines[i] + a * sines[i];
	}
}

void cpu_rotate(const struct cpu_backend *cpu, uint32_t row, const struct rope_desc *rope, float *head)
{
	rotate_head(head, cpu->scratch.rotation + (size_t)row * cpu->scratch.limits.head_dim, rope->dims, rope->style);
}

static void rotate_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct rotate_job *job = context;
	const struct cpu_kv     *kv = job->kv;
	uint32_t                 dim = kv->desc.head_dim, kv_heads = kv->desc.kv_heads;

	(void)thread;
	for (uint32_t row = first; row < first + count; row++) {
		const float *cosines = job->cpu->scratch.rotation + (size_t)row * job->cpu->scratch.limits.head_dim;
		float       *q = job->qkv + (size_t)row * job->width, *k = q + (size_t)job->q_heads * dim;
		float       *v = k + (size_t)kv_heads * dim;
		int32_t      slot = job->slots[row];
		uint32_t     block = (uint32_t)slot / kv->desc.block_size, offset = (uint32_t)slot % kv->desc.block_size;

		for (uint32_t h = 0; job->rope && h < job->q_heads + kv_heads; h++)
			rotate_head(q + (size_t)h * dim, cosines, job->rope->dims, job->rope->style);
		for (uint32_t h = 0; slot >= 0 && h < kv_heads; h++) {
			float *keys;

			if (kv->desc.type != KV_FLOAT) {
				narrow_write(kv, kv_narrow(kv, kv->keys, job->layer, block, h), offset, k + (size_t)h * dim);
				narrow_write(kv, kv_narrow(kv, kv->values, job->layer, block, h), offset, v + (size_t)h * dim);
				continue;
			}
			keys = kv_keys(kv, job->layer, block, h) + offset;

			for (uint32_t d = 0; d < dim; d++)
				keys[(size_t)d * kv->key_stride] = k[(size_t)h * dim + d];
			memcpy(kv_values(kv, job->layer, block, h) + (size_t)offset * dim, v + (size_t)h * dim, dim * sizeof *v);
		}
	}
}

enum status cpu_rope_kv_write(struct backend *b, struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, const struct rope_desc *rope)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct rotate_job   job = { .cpu = cpu, .rope = rope, .qkv = qkv->data, .width = qkv->width, .layer = layer,
	    .q_heads = q_heads };
	uint32_t            rows;

	if (!cpu->batch || !(job.kv = cpu_kv_of(cpu, group, layer, KV_PAIRS)))
		return STATUS_INVALID;
	job.slots = cpu->batch->kv_slots[group];
	rows = cpu->batch->rows;
	if ((rope && rope->dims > job.kv->desc.head_dim) || rows > qkv->rows ||
	    qkv->width != ((uint64_t)q_heads + 2 * job.kv->desc.kv_heads) * job.kv->desc.head_dim)
		return STATUS_INVALID;
	if (rope && cpu_rotation(cpu, rope))
		return STATUS_INVALID;
	if (rows <= ROTATE_ALONE)
		rotate_rows(&job, 0, 0, rows);
	else
		team_run(cpu->team, rotate_rows, &job, rows);
	return STATUS_OK;
}

/* ---- Attention ---- */

struct attention_job {
	struct cpu_backend *cpu;
	const struct cpu_kv *kv;
	const float *q;
	float   *y;
	size_t   q_stride, y_stride;
	uint32_t group, layer, q_heads, heads_per_kv, items;
	float    scale;
	bool     full; /* every row sees its whole sequence */
};

/* What a row and head know after some chunks: [max, sum, o[head_dim]]. */
static inline size_t partial_floats(uint32_t head_dim) { return (size_t)head_dim + 2; }

/* Scratch of a thread: scores of ATTENTION_HEADS heads (a block's keys are read KV_KEYS at a time, so the last register
 * may reach past the chunk), then a state for each row and head of a pass, then one chunk's. */
enum { SCORE_FLOATS = ATTENTION_CHUNK + KV_KEYS };

size_t cpu_attention_thread_floats(uint32_t head_dim)
{
	size_t states = ATTENTION_ROWS * ATTENTION_HEADS + ATTENTION_HEADS;
	size_t floats = ATTENTION_HEADS * SCORE_FLOATS + states * partial_floats(head_dim);
	return (floats + 15) / 16 * 16;
}

size_t cpu_attention_partial_floats(void) { return PARTIAL_FLOATS; }

/* Tokens that ROW sees. */
static inline uint32_t row_tokens(const struct attention_job *job, const struct batch_sequence *sequence, uint32_t row)
{
	return job->full ? sequence->context : sequence->context - sequence->rows + (row - sequence->first_row) + 1;
}

/* What ITEM's last row sees of a chunk, decoded for THREAD; NULL where keys and values are floats. */
static const float *open_chunk(const struct attention_job *job, const struct attention_item *item, uint32_t chunk, unsigned thread)
{
	const struct cpu_kv         *kv = job->kv;
	const struct batch_sequence *sequence = &job->cpu->batch->sequences[item->sequence];
	uint32_t       dim = kv->desc.head_dim, size = kv->desc.block_size;
	const int32_t *table = sequence->block_table[job->group] + chunk * (ATTENTION_CHUNK / size);
	uint32_t       left = row_tokens(job, sequence, item->first_row + item->rows - 1) - chunk * ATTENTION_CHUNK;
	uint32_t       tokens = left < ATTENTION_CHUNK ? left : ATTENTION_CHUNK;
	float         *keys = kv->decoded + thread * kv->decoded_floats;
	float         *values = keys + (size_t)ATTENTION_CHUNK / size * dim * kv->key_stride;

	if (kv->desc.type == KV_FLOAT)
		return NULL;
	for (uint32_t at = 0; at < tokens; at += size) {
		uint32_t block = (uint32_t)table[at / size], count = tokens - at < size ? tokens - at : size;

		narrow_read(kv, kv_narrow(kv, kv->keys, job->layer, block, item->kv_head), count, true,
		    keys + (size_t)at / size * dim * kv->key_stride);
		narrow_read(kv, kv_narrow(kv, kv->values, job->layer, block, item->kv_head), count, false, values + (size_t)at * dim);
	}
	return keys;
}

/* Keys or values of block INDEX of a chunk. */
static inline const float *block_keys(const struct attention_job *job, const struct attention_item *item, const float *decoded,
    const int32_t *table, uint32_t index)
{
	return decoded ? decoded + (size_t)index * job->kv->desc.head_dim * job->kv->key_stride :
	    kv_keys(job->kv, job->layer, (uint32_t)table[index], item->kv_head);
}

static inline const float *block_values(const struct attention_job *job, const struct attention_item *item, const float *decoded,
    const int32_t *table, uint32_t index)
{
	const struct kv_group_desc *desc = &job->kv->desc;

	return decoded ? decoded + (size_t)desc->head_dim * (ATTENTION_CHUNK / desc->block_size * job->kv->key_stride +
	    index * desc->block_size) : kv_values(job->kv, job->layer, (uint32_t)table[index], item->kv_head);
}

/* One chunk, opened, for one row and HEADS heads: state[h] = (max, sum, o). */
static void attend_chunk(const struct attention_job *job, const struct attention_item *item, uint32_t row, uint32_t head,
    unsigned heads, uint32_t chunk, const float *decoded, float *scores, float *const state[ATTENTION_HEADS])
{
	const struct cpu_kv         *kv = job->kv;
	const struct batch_sequence *sequence = &job->cpu->batch->sequences[item->sequence];
	const struct cpu_kernels    *kernels = job->cpu->kernels;
	const int32_t *table = sequence->block_table[job->group] + chunk * (ATTENTION_CHUNK / kv->desc.block_size);
	uint32_t       dim = kv->desc.head_dim, size = kv->desc.block_size;
	uint32_t       left = row_tokens(job, sequence, row) - chunk * ATTENTION_CHUNK;
	uint32_t       tokens = left < ATTENTION_CHUNK ? left : ATTENTION_CHUNK;
	const float   *q[ATTENTION_HEADS] = { NULL };
	float         *score[ATTENTION_HEADS] = { NULL }, *o[ATTENTION_HEADS] = { NULL };

	for (unsigned h = 0; h < heads; h++)
		q[h] = job->q + row * job->q_stride + (size_t)(head + h) * dim;
	for (uint32_t at = 0; at < tokens; at += size) {
		for (unsigned h = 0; h < heads; h++)
			score[h] = scores + h * SCORE_FLOATS + at;
		kernels->scores(q, heads, block_keys(job, item, decoded, table, at / size), kv->key_stride,
		    tokens - at < size ? tokens - at : size, dim, score);
	}
	for (unsigned h = 0; h < heads; h++) {
		score[h] = scores + h * SCORE_FLOATS;
		o[h] = state[h] + 2;
		kernels->softmax(score[h], tokens, job->scale, &state[h][0], &state[h][1]);
		memset(o[h], 0, dim * sizeof(float));
	}
	for (uint32_t at = 0; at < tokens; at += size) {
		const float *p[ATTENTION_HEADS] = { NULL };

		for (unsigned h = 0; h < heads; h++)
			p[h] = score[h] + at;
		kernels->values(p, heads, block_values(job, item, decoded, table, at / size),
		    tokens - at < size ? tokens - at : size, dim, o);
	}
}

/* into ⊕= chunk */
static void merge(float *into, const float *chunk, uint32_t head_dim)
{
	float max = into[0] > chunk[0] ? into[0] : chunk[0];
	float a = expf(into[0] - max), b = expf(chunk[0] - max);

	into[0] = max;
	into[1] = into[1] * a + chunk[1] * b;
	for (uint32_t d = 0; d < head_dim; d++)
		into[2 + d] = into[2 + d] * a + chunk[2 + d] * b;
}

static void finish(const struct attention_job *job, uint32_t row, uint32_t head, const float *state)
{
	uint32_t dim = job->kv->desc.head_dim;
	float   *y = job->y + row * job->y_stride + (size_t)head * dim;

	for (uint32_t d = 0; d < dim; d++)
		y[d] = state[2 + d] / state[1];
}

static inline uint32_t row_chunks(const struct attention_job *job, const struct attention_item *item, uint32_t row)
{
	return (row_tokens(job, &job->cpu->batch->sequences[item->sequence], row) - 1) / ATTENTION_CHUNK + 1;
}

/* Whole items: chunks in the outer loop, so that a chunk's keys and values serve all rows while they are cached. */
static void attend_items(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct attention_job *job = context;
	size_t   floats = partial_floats(job->kv->desc.head_dim);
	float   *scores = job->cpu->scratch.threads[thread].attention;
	float   *states = scores + ATTENTION_HEADS * SCORE_FLOATS;
	float   *fresh = states + ATTENTION_ROWS * ATTENTION_HEADS * floats;

	for (uint32_t i = first; i < first + count; i++) {
		const struct attention_item *item = &job->cpu->scratch.items[i];

		for (uint32_t done = 0; done < job->heads_per_kv; done += ATTENTION_HEADS) {
			uint32_t head = item->kv_head * job->heads_per_kv + done;
			unsigned heads = job->heads_per_kv - done < ATTENTION_HEADS ? job->heads_per_kv - done : ATTENTION_HEADS;

			for (uint32_t chunk = 0; chunk < item->chunks; chunk++) {
				const float *decoded = open_chunk(job, item, chunk, thread);

				for (uint32_t r = 0; r < item->rows; r++) {
					float *state[ATTENTION_HEADS] = { NULL };

					if (chunk >= row_chunks(job, item, item->first_row + r))
						continue;
					for (unsigned h = 0; h < heads; h++)
						state[h] = chunk == 0 ? states + (r * ATTENTION_HEADS + h) * floats : fresh + h * floats;
					attend_chunk(job, item, item->first_row + r, head, heads, chunk, decoded, scores, state);
					for (unsigned h = 0; chunk > 0 && h < heads; h++)
						merge(states + (r * ATTENTION_HEADS + h) * floats, state[h], job->kv->desc.head_dim);
				}
			}
			for (uint32_t r = 0; r < item->rows; r++)
				for (unsigned h = 0; h < heads; h++)
					finish(job, item->first_row + r, head + h, states + (r * ATTENTION_HEADS + h) * floats);
		}
	}
}

/* Partial results of an item: [rows][heads_per_kv][chunks]. */
static inline float *partial_at(const struct attention_job *job, const struct attention_item *item, uint32_t r,
    uint32_t h, uint32_t chunk)
{
	size_t index = ((size_t)r * job->heads_per_kv + h) * item->chunks + chunk;
	return job->cpu->scratch.partials + item->partial + index * partial_floats(job->kv->desc.head_dim);
}

/* Single chunks of items, into partial results. */
static void attend_chunks(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct attention_job  *job = context;
	const struct attention_item *item = job->cpu->scratch.items;

	for (uint32_t i = first; i < first + count; i++) {
		const float *decoded;
		uint32_t     chunk;

		while (i >= item->first_chunk + item->chunks)
			item++;
		chunk = i - item->first_chunk;
		decoded = open_chunk(job, item, chunk, thread);
		for (uint32_t r = 0; r < item->rows; r++) {
			if (chunk >= row_chunks(job, item, item->first_row + r))
				continue;
			for (uint32_t done = 0; done < job->heads_per_kv; done += ATTENTION_HEADS) {
				unsigned left = job->heads_per_kv - done, heads = left < ATTENTION_HEADS ? left : ATTENTION_HEADS;
				float   *state[ATTENTION_HEADS] = { NULL };

				for (unsigned h = 0; h < heads; h++)
					state[h] = partial_at(job, item, r, done + h, chunk);
				attend_chunk(job, item, item->first_row + r, item->kv_head * job->heads_per_kv + done, heads, chunk, decoded,
				    job->cpu->scratch.threads[thread].attention, state);
			}
		}
	}
}

static void merge_items(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct attention_job *job = context;

	(void)thread;
	for (uint32_t i = first; i < first + count; i++) {
		const struct attention_item *item = &job->cpu->scratch.items[i];

		for (uint32_t r = 0; r < item->rows; r++) {
			for (uint32_t h = 0; h < job->heads_per_kv; h++) {
				float *state = partial_at(job, item, r, h, 0);

				for (uint32_t chunk = 1; chunk < row_chunks(job, item, item->first_row + r); chunk++)
					merge(state, partial_at(job, item, r, h, chunk), job->kv->desc.head_dim);
				finish(job, item->first_row + r, item->kv_head * job->heads_per_kv + h, state);
			}
		}
	}
}

/* Lists the items; rows of no sequence (padding) get zeroes.  Returns the floats all partial results would take. */
static uint64_t list_items(struct attention_job *job, uint32_t *ret_chunks)
{
	const struct batch    *batch = job->cpu->batch;
	struct attention_item *items = job->cpu->scratch.items;
	uint64_t               partial = 0;
	uint32_t               chunks = 0, next_row = 0;

	job->items = 0;
	for (uint32_t s = 0; s <= batch->sequence_count; s++) {
		const struct batch_sequence *sequence = s < batch->sequence_count ? &batch->sequences[s] : NULL;
		uint32_t                     end = sequence ? sequence->first_row : batch->rows;

		for (; next_row < end; next_row++)
			memset(job->y + next_row * job->y_stride, 0, (size_t)job->q_heads * job->kv->desc.head_dim * sizeof(float));
		if (!sequence)
			break;
		next_row = end + sequence->rows;
		for (uint32_t head = 0; head < job->kv->desc.kv_heads; head++) {
			for (uint32_t done = 0; done < sequence->rows; done += ATTENTION_ROWS) {
				struct attention_item *item = &items[job->items++];

				item->sequence = s;
				item->kv_head = head;
				item->first_row = sequence->first_row + done;
				item->rows = sequence->rows - done < ATTENTION_ROWS ? sequence->rows - done : ATTENTION_ROWS;
				item->chunks = row_chunks(job, item, item->first_row + item->rows - 1);
				item->first_chunk = chunks;
				item->partial = partial;
				chunks += item->chunks;
				partial += (uint64_t)item->rows * job->heads_per_kv * item->chunks * partial_floats(job->kv->desc.head_dim);
			}
		}
	}
	*ret_chunks = chunks;
	return partial;
}

static enum status attend(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, float scale, bool full, struct activation *y)
{
	struct cpu_backend  *cpu = (struct cpu_backend *)b;
	struct attention_job job = { .cpu = cpu, .q = qkv->data, .y = y->data, .q_stride = qkv->width, .y_stride = y->width,
		.group = group, .layer = layer, .q_heads = q_heads, .scale = scale, .full = full };
	uint32_t             chunks, threads = team_threads(cpu->team);
	uint64_t             partial;

	if (!cpu->batch || !(job.kv = cpu_kv_of(cpu, group, layer, KV_PAIRS)))
		return STATUS_INVALID;
	if (q_heads % job.kv->desc.kv_heads || q_heads > cpu->scratch.limits.q_heads ||
	    job.kv->desc.head_dim > cpu->scratch.limits.head_dim || cpu->batch->rows > qkv->rows ||
	    cpu->batch->rows > y->rows || y->width != (uint64_t)q_heads * job.kv->desc.head_dim || qkv->width < y->width)
		return STATUS_INVALID;
	job.heads_per_kv = q_heads / job.kv->desc.kv_heads;
	partial = list_items(&job, &chunks);
	if (job.items < ITEMS_PER_THREAD * threads && threads > 1 && chunks > job.items && partial <= PARTIAL_FLOATS) {
		team_run(cpu->team, attend_chunks, &job, chunks);
		team_run(cpu->team, merge_items, &job, job.items);
	} else {
		team_run(cpu->team, attend_items, &job, job.items);
	}
	return STATUS_OK;
}

enum status cpu_attention(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, float scale, struct activation *y)
{
	return attend(b, qkv, group, layer, q_heads, scale, false, y);
}

enum status cpu_attention_full(struct backend *b, const struct activation *qkv, uint32_t group, uint32_t layer,
    uint32_t q_heads, float scale, struct activation *y)
{
	return attend(b, qkv, group, layer, q_heads, scale, true, y);
}
