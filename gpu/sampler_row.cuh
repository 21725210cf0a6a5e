/* sampler_row.cuh: a row of logits as the kernels of the sampler read it: as it is filtered, in keys that sort and in weights.
 * Bias, penalties, bans and masks are applied here, where a logit is read. */
#ifndef PENSTOCK_GPU_SAMPLER_ROW_CUH
#define PENSTOCK_GPU_SAMPLER_ROW_CUH

#include "gpu/block.cuh"

#include "model/sampling.h"

#include <math.h>

enum { PIECE = SAMPLE_PIECE };

typedef unsigned long long word;

#define KEY_LEAST 0x00800000u /* of −FLT_MAX */
#define KEY_ZERO  0x80000000u /* of 0 */
#define UNIT      0x1p44f     /* of weights, in a weight of 1 */

/* A row as its kernel sees it. */
struct row {
	const float *logits;
	uint32_t     count, pieces;
	float        top;     /* the largest logit */
	float        scale;   /* log2(e) / T */
	float       *most;    /* of each piece: its largest logit; NaN: one is not finite */
	word        *sums;    /* of each piece: weights, of sample_scan by its own largest one; later of what is kept, by TOP */
	word        *list;    /* in shared memory: key of a logit, ~id; so larger words come first */
	uint32_t     room;    /* of the list */
	/* Of a row that is adjusted: */
	const struct sample_params *params;
	const uint16_t             *table; /* NULL = no slot */
	const struct sample_bias   *bias;
	const uint32_t             *mask;  /* NULL = none */
	const int32_t              *guesses;
	uint32_t                    bias_count, guess_count;
	int                         bans;
};

/* What the kernels read and write beside the jobs. */
struct sample_arrays {
	const float              *logits;   /* [rows][stride] */
	uint16_t                 *tables;   /* [slots][table_stride] */
	const struct sample_bias *bias;     /* [slots][SAMPLE_BIAS_MAX] */
	const uint32_t           *masks;    /* [rows with one][mask_words] */
	int32_t                  *ids, *host_ids;
	struct sample_logprobs   *logprobs; /* the host's */
	float                    *most;     /* [2][rows][pieces]: of logits as they are filtered, and as they are */
	word                     *sums;     /* likewise */
	uint32_t                  stride, table_stride, mask_words, pieces, rows;
	uint32_t                  room;     /* ≤ LIST_ROOM */
};

/* ---- Reading logits ---- */

/* What a row's slot and mask say of four logits in each of GROUPS, as it lies in memory: loads that nothing waits for. */
template <uint32_t groups> struct changes {
	uint64_t entries[groups];
	uint32_t words[groups]; /* of the mask */
};

/* The word of the row's mask that has ID; there is one of each that the row has not. */
static __device__ inline uint32_t mask_word(const struct row *row, uint32_t id)
{
	return row->mask && id < row->count ? row->mask[id / 32] : ~0u;
}

/* Of logits FIRST … FIRST + 3, and with two groups those GAP further on; FIRST and GAP are multiples of 4. */
template <uint32_t groups> static __device__ inline struct changes<groups> load_changes(const struct row *row, uint32_t first,
    uint32_t gap)
{
	struct changes<groups> ret;

#pragma unroll
	for (uint32_t g = 0; g < groups; g++) {
		uint32_t id = first + g * gap;

		ret.entries[g] = row->table && id < row->count ? *(const uint64_t *)(row->table + id) : 0;
		ret.words[g] = mask_word(row, id);
	}
	return ret;
}

/* Entries of ids FIRST … FIRST + 3 once the row's guesses are counted as drawn: of rows that have some, which are few. */
static DEVICE_NOINLINE __device__ uint64_t count_guesses(const int32_t *guesses, uint32_t count, uint32_t first, uint64_t entries)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t shift = (uint32_t)guesses[i] % 4 * 16;

		if ((uint32_t)guesses[i] / 4 == first / 4)
			entries = (entries & ~((uint64_t)0xffff << shift)) | (uint64_t)sampling_count((uint16_t)(entries >> shift)) << shift;
	}
	return entries;
}

struct eight {
	float v[8];
};

/* Logits X, of FIRST … FIRST + 3 and those GAP further on, by entries LOW and HIGH, of which some are not 0.  Few logits have one:
 * this is kept out of the loops, and lanes look at their next ones at the same time. */
static DEVICE_NOINLINE __device__ struct eight adjust_some(const struct sample_params *params, const struct sample_bias *bias,
    uint32_t bias_count, int bans, uint32_t first, uint32_t gap, uint64_t low, uint64_t high, struct eight x)
{
	uint32_t touched = 0;

#pragma unroll
	for (uint32_t i = 0; i < 8; i++)
		touched |= (i < 4 ? low : high) >> i % 4 * 16 & 0xffff ? 1u << i : 0;
	for (; touched; touched &= touched - 1) {
		uint32_t at = (uint32_t)__ffs((int)touched) - 1, id = first + at / 4 * gap + at % 4;
		uint16_t entry = (uint16_t)((at < 4 ? low : high) >> at % 4 * 16);
		float    logit = x.v[0];

		if (!sampling_touches(entry, bans))
			continue;
#pragma unroll
		for (uint32_t i = 1; i < 8; i++)
			logit = at == i ? x.v[i] : logit;
		logit = sampling_adjust(logit, entry, entry & SAMPLING_BIASED ? sampling_bias(bias, bias_count, (int32_t)id) : 0, bans,
		    params);
#pragma unroll
		for (uint32_t i = 0; i < 8; i++)
			x.v[i] = at == i ? logit : x.v[i];
	}
	return x;
}

/* Those logits V as they are filtered. */
template <uint32_t groups> static __device__ inline void adjust(const struct row *row, uint32_t first, uint32_t gap,
    struct changes<groups> changes, float v[4 * groups])
{
#pragma unroll
	for (uint32_t g = 0; g < groups; g++) {
		uint32_t id = first + g * gap;

		if (id + 4 > row->count) { /* none, or not all are there */
			changes.entries[g] &= id < row->count ? ~(~(uint64_t)0 << (row->count - id) * 16) : 0;
			changes.words[g] |= id < row->count ? ~0u << (row->count - id + id % 32) : ~0u;
		}
		if (row->guess_count)
			changes.entries[g] = count_guesses(row->guesses, row->guess_count, id, changes.entries[g]);
	}
	if (changes.entries[0] | changes.entries[groups - 1]) {
		struct eight x = {};

#pragma unroll
		for (uint32_t i = 0; i < 4 * groups; i++)
			x.v[i] = v[i];
		x = adjust_some(row->params, row->bias, row->bias_count, row->bans, first, gap, changes.entries[0],
		    groups > 1 ? changes.entries[groups - 1] : 0, x);
#pragma unroll
		for (uint32_t i = 0; i < 4 * groups; i++)
			v[i] = x.v[i];
	}
	if (row->mask)
#pragma unroll
		for (uint32_t g = 0; g < groups; g++) {
			uint32_t allowed = changes.words[g] >> (first + g * gap) % 32;

#pragma unroll
			for (uint32_t i = 0; i < 4; i++)
				v[g * 4 + i] = allowed & 1u << i ? v[g * 4 + i] : SAMPLE_BANNED;
		}
}

/* Logits FIRST … FIRST + 3 as they are; −INFINITY where there is none. */
static __device__ inline void load4_plain(const struct row *row, uint32_t first, float v[4])
{
	if (first + 4 <= row->count) {
		struct pack<float> p = *(const struct pack<float> *)(row->logits + first);

		for (int j = 0; j < 4; j++)
			v[j] = p.v[j];
	} else {
		for (uint32_t j = 0; j < 4; j++)
			v[j] = first + j < row->count ? row->logits[first + j] : -INFINITY;
	}
}

template <bool adjusted> static __device__ inline void load4(const struct row *row, uint32_t first, float v[4])
{
	load4_plain(row, first, v);
	if (adjusted)
		adjust<1>(row, first, 0, load_changes<1>(row, first, 0), v);
}

/* A lane's eight logits of piece P as they are: four in each half. */
static __device__ inline void load_piece(const struct row *row, uint32_t p, float v[8])
{
	uint32_t first = p * PIECE + threadIdx.x % 32 * 4;

	if ((p + 1) * PIECE <= row->count) {
		struct pack<float> low = *(const struct pack<float> *)(row->logits + first);
		struct pack<float> high = *(const struct pack<float> *)(row->logits + first + PIECE / 2);

		for (int j = 0; j < 4; j++) {
			v[j] = low.v[j];
			v[4 + j] = high.v[j];
		}
	} else {
		load4_plain(row, first, v);
		load4_plain(row, first + PIECE / 2, v + 4);
	}
}

static __device__ inline struct changes<2> load_piece_changes(const struct row *row, uint32_t p)
{
	return load_changes<2>(row, p * PIECE + threadIdx.x % 32 * 4, PIECE / 2);
}

static __device__ inline void adjust_piece(const struct row *row, uint32_t p, const struct changes<2> &changes, float v[8])
{
	adjust<2>(row, p * PIECE + threadIdx.x % 32 * 4, PIECE / 2, changes, v);
}

/* Larger floats have larger keys. */
static __device__ inline uint32_t key_of(float x)
{
	uint32_t bits = __float_as_uint(x == 0 ? 0.0f : x); /* −0 equals 0 */
	return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

static __device__ inline float logit_of(uint32_t key)
{
	return __uint_as_float(key & 0x80000000 ? key & 0x7fffffff : ~key);
}

static __device__ inline float share_of(float logit, float top, float scale)
{
	return exp2_approximate((logit - top) * scale);
}

static __device__ inline word weight_of(float logit, float top, float scale)
{
	return (word)(share_of(logit, top, scale) * UNIT);
}

/* log2(e) / T; finite, so that the weight of the largest logit is 1. */
static __device__ inline float scale_of(float temperature)
{
	return fminf(1 / temperature * 1.44269504f, 3e38f);
}

static __device__ inline bool is_greedy(const struct sample_params *p)
{
	return !(p->temperature > 0) || !isfinite(1 / p->temperature) || p->top_k == 1;
}

static __device__ inline bool cuts_number(const struct sample_params *p, uint32_t count)
{
	return p->top_k > 0 && (uint32_t)p->top_k < count;
}

/* Does the draw need the sum of all weights? */
static __device__ inline bool wants_sums(const struct sample_params *p, uint32_t count)
{
	return !is_greedy(p) && !cuts_number(p, count);
}

static __device__ struct row row_of(const struct sample_job *job, uint32_t index, const struct sample_arrays *arrays,
    uint32_t count)
{
	struct row row = {};

	row.logits = arrays->logits + (size_t)job->logit_row * arrays->stride;
	row.count = count;
	row.pieces = (count + PIECE - 1) / PIECE;
	row.scale = scale_of(job->params.temperature);
	row.most = arrays->most + (size_t)index * arrays->pieces;
	row.sums = arrays->sums + (size_t)index * arrays->pieces;
	row.room = arrays->room;
	return row;
}

/* The same, for statistics of logits as they are. */
static __device__ inline void make_plain(struct row *row, const struct sample_arrays *arrays)
{
	row->most += (size_t)arrays->rows * arrays->pieces;
	row->sums += (size_t)arrays->rows * arrays->pieces;
	row->scale = 1.44269504f;
}

static __device__ inline void adjust_by(struct row *row, const struct sample_job *job, const struct sample_arrays *arrays)
{
	row->params = &job->params;
	row->table = job->slot ? arrays->tables + (size_t)(job->slot - 1) * arrays->table_stride : NULL;
	row->bias = job->slot ? arrays->bias + (size_t)(job->slot - 1) * SAMPLE_BIAS_MAX : NULL;
	row->bias_count = job->bias_count;
	row->mask = job->mask >= 0 ? arrays->masks + (size_t)job->mask * arrays->mask_words : NULL;
	row->bans = job->bans;
	row->guesses = job->guesses;
	row->guess_count = job->slot ? job->guess_count : 0;
}

#endif
