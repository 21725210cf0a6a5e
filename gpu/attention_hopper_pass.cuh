/* attention_hopper_pass.cuh: what a warp does with two pages in own decode attention (attention_hopper.cuh): scores, weights and
 * products of values, in passes of 16 rows and of up to 32, which have the same functions. */
#ifndef PENSTOCK_GPU_ATTENTION_HOPPER_PASS_CUH
#define PENSTOCK_GPU_ATTENTION_HOPPER_PASS_CUH

#include "gpu/attention_hopper_unit.cuh"

/* Fragments of the warp's columns of a page of values, 16 · 128 / DIM tokens each; COLUMNS: columns are the rows of products. */
template <int DIM> constexpr uint32_t hopper_fragments = ATTENTION_PAGE * DIM / 128 / 16;
template <int DIM, bool COLUMNS> __device__ static inline void hopper_fetch(uint32_t values, uint32_t ret[hopper_fragments<DIM>][4])
{
	constexpr uint32_t tokens = 16 * 128 / DIM;
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = lane % tokens, chunk = warp;

	if (DIM == 128) {
		token = COLUMNS ? lane / 16 * 8 + lane % 8 : token;
		chunk = warp * 2 + (COLUMNS ? lane / 8 % 2 : lane / 16);
	}
#pragma unroll
	for (uint32_t i = 0; i < hopper_fragments<DIM>; i++)
		ldmatrix_x4_trans(ret[i], values + tile_at<DIM>(token, chunk) + i * tokens * DIM * 2);
}

/* Rows [FROM, 64) of the values of a page become zeroes, each by the warp that has the token: WARP of four.  Their weights are
 * 0, but 0 · NaN is NaN. */
template <class T, int DIM> __device__ static inline void hopper_clear(char *values, uint32_t warp, uint32_t from)
{
	for (uint32_t i = threadIdx.x % 32; i < 16 * DIM / 8; i += 32)
		if (warp * 16 + i / (DIM / 8) >= from)
			*(uint4 *)(values + (warp * 16 * (DIM / 8) + i) * 16) = make_uint4(0, 0, 0, 0);
	fence_async_proxy(); /* before the next page comes to this place */
}

/* ---- Passes of 16 rows: rows are the first operand's ---- */

/* What a warp knows of a unit: all rows' scores of its tokens, and its columns of the results.  m is that of rows g and g + 8;
 * sums l are those of tokens 2t and 2t + 8, and of 2t + 1 and 2t + 9, that a lane has. */
template <int DIM> struct hopper_narrow {
	static constexpr uint32_t parts = 2; /* of scores: eight tokens each */
	static constexpr bool     columns = false;
	uint32_t q[DIM / 16][4];
	float    o[2][DIM / 64][4], m[2], l[2][2]; /* o of first pages, and of second ones */
	struct {
		float o[DIM / 64][4], m[2], l[2];
	} group, whole;                      /* of a group's runs so far, and of the groups before it */
	int32_t  limit[2];                   /* tokens that a row sees end here */
};

template <class T, int DIM> __device__ static inline void hopper_begin(const struct hopper_job *job,
    const struct hopper_unit *unit, uint32_t q, struct hopper_narrow<DIM> *state)
{
	const struct hopper_row *rows = (const struct hopper_row *)((const char *)unit + 64);
	uint32_t                 lane = threadIdx.x % 32;

	(void)job;
	state->limit[0] = rows[lane / 4].limit;
	state->limit[1] = rows[lane / 4 + 8].limit;
#pragma unroll
	for (uint32_t k = 0; k < DIM / 16; k++)
		ldmatrix_x4(state->q[k], q + lane % 16 * hopper_q_row<T, DIM> + (2 * k + lane / 16) * 16);
}

template <int DIM> __device__ static inline void hopper_begin_run(struct hopper_narrow<DIM> *state)
{
	for (uint32_t r = 0; r < 2; r++) {
		state->m[r] = -INFINITY;
		state->l[r][0] = state->l[r][1] = 0;
	}
#pragma unroll
	for (uint32_t d = 0; d < DIM / 64; d++)
		for (uint32_t i = 0; i < 4; i++)
			state->o[0][d][i] = state->o[1][d][i] = 0;
}

/* s, without its scale, of the warp's 16 tokens, of which FIRST is the context's token that lies 16 · warp before, those before
 * END; KEYS: their page, 0: there is none.  Maxima go to shared memory. */
template <class T, int DIM> __device__ static inline void hopper_scores(const struct hopper_shared_parts &shared,
    const struct hopper_narrow<DIM> *state, uint32_t keys, int32_t first, int32_t end, float scale, float s[2][4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = warp % 4 * 16 + lane / 16 * 8 + lane % 8;

#pragma unroll
	for (uint32_t i = 0; i < 8; i++)
		s[i / 4][i % 4] = 0;
	if (keys) { /* sums over both halves of the dimensions: twice as many products are under way */
		uint32_t b[DIM / 16][4];
		float    other[2][4] = {};

#pragma unroll
		for (uint32_t k = 0; k < DIM / 16; k++)
			ldmatrix_x4(b[k], keys + tile_at<DIM>(token, k % 4 * 2 + lane / 8 % 2) + k / 4 * 128);
#pragma unroll
		for (uint32_t i = 0; i < DIM / 16; i++) {
			uint32_t k = i % 2 * (DIM / 32) + i / 2;

			mma_m16n8k16<T>(k < DIM / 32 ? s[0] : other[0], state->q[k], b[k]);
			mma_m16n8k16<T>(k < DIM / 32 ? s[1] : other[1], state->q[k], b[k] + 2);
		}
#pragma unroll
		for (uint32_t i = 0; i < 8; i++)
			s[i / 4][i % 4] += other[i / 4][i % 4];
	}
#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		int32_t limit = state->limit[r] < end ? state->limit[r] : end;
		int32_t left = limit - first - (int32_t)(warp * 16 + lane % 4 * 2); /* from this lane's first token on */
		float   most = -INFINITY;

#pragma unroll
		for (uint32_t i = 0; i < 4; i++) {
			float *score = &s[i / 2][2 * r + i % 2];

			*score = left > (int32_t)(i / 2 * 8 + i % 2) ? *score : -INFINITY;
			most = fmaxf(most, *score);
		}
		most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
		most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
		if (lane % 4 == 0)
			shared.maxima[(lane / 4 + 8 * r) * HOPPER_WARPS + warp] = most * scale;
	}
}

/* The online softmax: scores become weights in shared memory, by all warps' maxima; O is brought to the new ones. */
template <class T, int DIM> __device__ static inline void hopper_weigh(const struct hopper_shared_parts &shared,
    struct hopper_narrow<DIM> *state, float scale, const float s[2][4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float    factor[2];

#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		uint32_t mine = lane / 4 + 8 * r;
		float4   a = *(const float4 *)(shared.maxima + mine * HOPPER_WARPS);
		float4   b = *(const float4 *)(shared.maxima + mine * HOPPER_WARPS + 4);
		float    larger, base, weight[4];

		larger = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
		larger = fmaxf(larger, state->m[r]);
		/* A row that has seen nothing yet keeps weights of 0, not exp2(−∞ + ∞). */
		base = larger == -INFINITY ? 0 : larger;
		factor[r] = exp2_approximate(state->m[r] - base);
		state->m[r] = larger;
#pragma unroll
		for (uint32_t i = 0; i < 4; i++)
			weight[i] = exp2_approximate(__fmaf_rn(s[i / 2][2 * r + i % 2], scale, -base));
#pragma unroll
		for (uint32_t j = 0; j < 2; j++) {
			*(uint32_t *)(shared.weights + tile_at<HOPPER_TOKENS>(mine, warp * 2 + j) + lane % 4 * 4) =
			    pair_of<T>(weight[2 * j], weight[2 * j + 1]);
			state->l[r][j] = __fadd_rn(__fmul_rn(state->l[r][j], factor[r]), __fadd_rn(weight[j], weight[j + 2]));
		}
	}
#pragma unroll
	for (uint32_t d = 0; d < DIM / 64; d++)
#pragma unroll
		for (uint32_t i = 0; i < 4; i++) {
			state->o[0][d][i] *= factor[i / 2];
			state->o[1][d][i] *= factor[i / 2];
		}
}

/* o += p · v for a page whose values are V, and whose tokens' weights those from token FIRST on. */
template <class T, int DIM> __device__ static inline void hopper_values(const struct hopper_shared_parts &shared, uint32_t first,
    const uint32_t v[hopper_fragments<DIM>][4], struct hopper_narrow<DIM> *state)
{
	constexpr uint32_t parts = 128 / DIM; /* of 16 tokens */
	uint32_t lane = threadIdx.x % 32, weights = shared_address(shared.weights);
	float  (*o)[4] = state->o[first / ATTENTION_PAGE];

#pragma unroll
	for (uint32_t i = 0; i < ATTENTION_PAGE / 16; i++) {
		const uint32_t *b = v[i / parts] + 2 * (i % parts);
		uint32_t        p[4];

		ldmatrix_x4(p, weights + tile_at<HOPPER_TOKENS>(lane % 16, first / 8 + 2 * i + lane / 16));
		mma_m16n8k16<T>(o[0], p, b);
		if (parts == 1)
			mma_m16n8k16<T>(o[DIM / 64 - 1], p, b + 2);
	}
}

/* The result becomes one with that of what was BEFORE, unless it is the FIRST. */
template <int DIM, class BEFORE> __device__ static inline void hopper_fold(struct hopper_narrow<DIM> *state, BEFORE *before,
    bool first)
{
#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		float *m = &state->m[r], *l = &state->l[r][0], a, b;

		if (!first) {
			float mine = *m;

			*m = before->m[r];
			hopper_factors(m, mine, &a, &b);
			*l = hopper_sum(before->l[r], a, *l, b);
#pragma unroll
			for (uint32_t d = 0; d < DIM / 64; d++)
				for (uint32_t i = 2 * r; i < 2 * r + 2; i++)
					state->o[0][d][i] = hopper_sum(before->o[d][i], a, state->o[0][d][i], b);
		}
		before->m[r] = *m;
		before->l[r] = *l;
	}
#pragma unroll
	for (uint32_t d = 0; d < DIM / 64; d++)
		for (uint32_t i = 0; i < 4; i++)
			before->o[d][i] = state->o[0][d][i];
}

/* The sums of all warps.  The run is put together with those of the group before it, unless it is the FIRST. */
template <int DIM> __device__ static inline void hopper_end_run(const struct hopper_shared_parts &shared,
    struct hopper_narrow<DIM> *state, bool first)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		float l = state->l[r][0] + state->l[r][1];

		l += __shfl_xor_sync(~0u, l, 1);
		l += __shfl_xor_sync(~0u, l, 2);
		if (lane % 4 == 0)
			shared.sums[(lane / 4 + 8 * r) * HOPPER_WARPS + warp] = l;
	}
	named_barrier_sync(1, HOPPER_CONSUMERS);
#pragma unroll
	for (uint32_t d = 0; d < DIM / 64; d++)
		for (uint32_t i = 0; i < 4; i++)
			state->o[0][d][i] += state->o[1][d][i];
#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		const float *sums = shared.sums + (lane / 4 + 8 * r) * HOPPER_WARPS;

		state->l[r][0] = 0;
#pragma unroll
		for (uint32_t w = 0; w < HOPPER_WARPS; w++)
			state->l[r][0] += sums[w];
	}
	hopper_fold(state, &state->group, first);
}

/* The group is put together with those of the unit before it, unless it is the FIRST. */
template <int DIM> __device__ static inline void hopper_end_group(const struct hopper_shared_parts &,
    struct hopper_narrow<DIM> *state, bool first)
{
	hopper_fold(state, &state->whole, first);
}

/* The result of a unit: y if it is the only one, else a partial result. */
template <class T, int DIM> __device__ static inline void hopper_store(const struct hopper_job *job,
    const struct hopper_unit *unit, const struct hopper_narrow<DIM> *state)
{
	const struct hopper_row *rows = (const struct hopper_row *)((const char *)unit + 64);
	uint32_t lane = threadIdx.x % 32, column = threadIdx.x / 32 * (DIM / 8) + lane % 4 * 2;

#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		uint32_t     mine = lane / 4 + 8 * r;
		const float *o = &state->o[0][0][2 * r], l = state->l[r][0], part = 1 / l;
		size_t       at = unit->at + mine;

		if (state->limit[r] == 0)
			continue;
		if (unit->unit.results == 1) {
			T *y = (T *)job->y + rows[mine].y + column;

#pragma unroll
			for (uint32_t d = 0; d < DIM / 64; d++)
				*(uint32_t *)(y + 8 * d) = pair_of<T>(o[4 * d] * part, o[4 * d + 1] * part);
			continue;
		}
#pragma unroll
		for (uint32_t d = 0; d < DIM / 64; d++)
			*(float2 *)(job->partials + at * DIM + column + 8 * d) = make_float2(o[4 * d], o[4 * d + 1]);
		if (column == 0)
			*(float2 *)(job->sums + 2 * at) = make_float2(state->m[r], l);
	}
}

/* ---- Passes of up to 32 rows: rows are the second operand's ---- */

/* The same numbers with the same bits, but tokens, then columns of values, are the 16 rows of a tile, and rows its columns, which
 * come in parts of eight: 24 heads take three of them, where tiles of 16 rows would be two.  m and l, of the run and of those
 * before it in its group, are those of row `lane`; sums and o those of rows 2t and 2t + 1 of each part, sums of tokens g and g + 8,
 * o of columns g and g + 8. */
template <int DIM, int PARTS> struct hopper_wide {
	static constexpr uint32_t parts = PARTS;
	static constexpr bool     columns = true;
	uint32_t at, q[DIM / 16][PARTS][2]; /* where this lane's q lies; three parts of it are in registers, four are too many */
	float    o[2][PARTS][4], sums[PARTS][2], m, l; /* o of first pages, and of second ones */
	struct {
		float o[PARTS][4], m, l;
	} group, whole; /* of a group's runs so far, and of the groups before it; o of them partly in shared memory: hopper_total */
	const struct hopper_row *rows;
	int32_t  least; /* tokens that every row sees end here */
};

/* Of values [PARTS][2] of each lane, for rows 2t and 2t + 1 of each part, lanes keep one each, put together over all of a row, NONE
 * where there is no such part: that of row hopper_row_kept. */
template <int PARTS, class OP> __device__ static inline float hopper_keep(const float (*x)[2], float none, OP op)
{
	uint32_t lane = threadIdx.x % 32;
	bool     odd = lane & 4, upper = lane & 8, second = lane & 16;
	float    y[4] = { none, none, none, none }, z[2];

#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
		y[p] = op(odd ? x[p][1] : x[p][0], __shfl_xor_sync(~0u, odd ? x[p][0] : x[p][1], 4));
#pragma unroll
	for (uint32_t i = 0; i < 2; i++)
		z[i] = op(upper ? y[2 + i] : y[i], __shfl_xor_sync(~0u, upper ? y[i] : y[2 + i], 8));
	return op(second ? z[1] : z[0], __shfl_xor_sync(~0u, second ? z[0] : z[1], 16));
}

__device__ static inline uint32_t hopper_row_kept(void)
{
	uint32_t lane = threadIdx.x % 32;

	return (lane / 8 % 2 * 2 + lane / 16) * 8 + lane % 4 * 2 + lane / 4 % 2;
}

/* X of row `lane` for row E of this lane's in part P. */
__device__ static inline float hopper_spread(float x, uint32_t p, uint32_t e)
{
	return __shfl_sync(~0u, x, (int)(8 * p + threadIdx.x % 4 * 2 + e));
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_query(const struct hopper_wide<DIM, PARTS> *state,
    uint32_t k, uint32_t (*ret)[2])
{
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p += 2) {
		uint32_t b[4];

		ldmatrix_x4(b, state->at + 8 * p * hopper_q_row<T, DIM> + 32 * k);
#pragma unroll
		for (uint32_t n = 0; n < 4; n++)
			if (p + n / 2 < PARTS)
				ret[p + n / 2][n % 2] = b[n];
	}
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_begin(const struct hopper_job *job,
    const struct hopper_unit *unit, uint32_t q, struct hopper_wide<DIM, PARTS> *state)
{
	uint32_t lane = threadIdx.x % 32;

	state->at = q + (lane / 16 * 8 + lane % 8) * hopper_q_row<T, DIM> + lane / 8 % 2 * 16;
	state->rows = (const struct hopper_row *)((const char *)unit + 64);
	state->least = job->full ? unit->unit.context : unit->unit.context - (int32_t)unit->unit.rows + 1;
#pragma unroll
	for (uint32_t k = 0; k < DIM / 16 && PARTS < 4; k++)
		hopper_query<T>(state, k, state->q[k]);
}

template <int DIM, int PARTS> __device__ static inline void hopper_begin_run(struct hopper_wide<DIM, PARTS> *state)
{
	state->m = -INFINITY;
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++) {
		state->sums[p][0] = state->sums[p][1] = 0;
		for (uint32_t i = 0; i < 4; i++)
			state->o[0][p][i] = state->o[1][p][i] = 0;
	}
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_scores(const struct hopper_shared_parts &shared,
    const struct hopper_wide<DIM, PARTS> *state, uint32_t keys, int32_t first, int32_t end, float scale, float (*s)[4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float    most[PARTS][2];

#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
		for (uint32_t i = 0; i < 4; i++)
			s[p][i] = 0;
	if (keys) {
		uint32_t a[DIM / 16][4];
		float    other[PARTS][4] = {};

#pragma unroll
		for (uint32_t k = 0; k < DIM / 16; k++)
			ldmatrix_x4(a[k], keys + tile_at<DIM>(warp % 4 * 16 + lane % 16, k % 4 * 2 + lane / 16) + k / 4 * 128);
#pragma unroll
		for (uint32_t i = 0; i < DIM / 16; i++) {
			uint32_t k = i % 2 * (DIM / 32) + i / 2, more[PARTS][2];
			const uint32_t(*q)[2] = PARTS < 4 ? state->q[k] : more;

			if (PARTS == 4)
				hopper_query<T>(state, k, more);
#pragma unroll
			for (uint32_t p = 0; p < PARTS; p++)
				mma_m16n8k16<T>(k < DIM / 32 ? s[p] : other[p], a[k], q[p]);
		}
#pragma unroll
		for (uint32_t p = 0; p < PARTS; p++)
			for (uint32_t i = 0; i < 4; i++)
				s[p][i] += other[p][i];
	}
	if (first + HOPPER_TOKENS > min(end, state->least)) {
#pragma unroll
		for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
			for (uint32_t i = 0; i < 4; i++) {
				int32_t limit = min(state->rows[8 * p + lane % 4 * 2 + i % 2].limit, end);

				s[p][i] = limit - first > (int32_t)(warp * 16 + lane / 4 + i / 2 * 8) ? s[p][i] : -INFINITY;
			}
	}
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
		for (uint32_t e = 0; e < 2; e++)
			most[p][e] = fmaxf(s[p][e], s[p][2 + e]);
	shared.maxima[warp * 32 + hopper_row_kept()] =
	    scale * hopper_keep<PARTS>(most, -INFINITY, [](float x, float y) { return fmaxf(x, y); });
}

/* Where the weights of TOKEN for a part lie in shared memory: [HOPPER_TOKENS][32], chunks swapped so that those of eight tokens
 * lie in different banks. */
__device__ static inline uint32_t hopper_weight_at(uint32_t token, uint32_t part)
{
	return token * 64 + (part ^ token / 2 % 4) * 16;
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_weigh(const struct hopper_shared_parts &shared,
    struct hopper_wide<DIM, PARTS> *state, float scale, const float (*s)[4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float    larger = state->m, base, factor;
	bool     grown;

#pragma unroll
	for (uint32_t w = 0; w < HOPPER_WARPS; w++)
		larger = fmaxf(larger, shared.maxima[w * 32 + lane]);
	base = larger == -INFINITY ? 0 : larger;
	factor = exp2_approximate(state->m - base);
	grown = __any_sync(~0u, larger > state->m); /* else all factors are 1, or of what is 0 */
	state->m = larger;
	if (grown) {
#pragma unroll
		for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
			for (uint32_t e = 0; e < 2; e++) {
				float its = hopper_spread(factor, p, e);

				state->sums[p][e] = __fmul_rn(state->sums[p][e], its);
#pragma unroll
				for (uint32_t n = 0; n < 2; n++) {
					state->o[n][p][e] *= its;
					state->o[n][p][2 + e] *= its;
				}
			}
	}
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++) {
		float weight[4];

#pragma unroll
		for (uint32_t e = 0; e < 2; e++) {
			float its = hopper_spread(base, p, e);

			weight[e] = exp2_approximate(__fmaf_rn(s[p][e], scale, -its));
			weight[2 + e] = exp2_approximate(__fmaf_rn(s[p][2 + e], scale, -its));
			state->sums[p][e] = __fadd_rn(state->sums[p][e], __fadd_rn(weight[e], weight[2 + e]));
		}
#pragma unroll
		for (uint32_t j = 0; j < 2; j++)
			*(uint32_t *)(shared.weights + hopper_weight_at(warp * 16 + 8 * j + lane / 4, p) + lane % 4 * 4) =
			    pair_of<T>(weight[2 * j], weight[2 * j + 1]);
	}
}

/* Weights of 32 tokens from TOKEN on, of 16 each: a part's two words after the other's. */
template <int PARTS> __device__ static inline void hopper_fetch_weights(uint32_t weights, uint32_t token,
    uint32_t ret[2][2 * PARTS])
{
	uint32_t lane = threadIdx.x % 32;

#pragma unroll
	for (uint32_t p = 0; p + 1 < PARTS; p += 2)
#pragma unroll
		for (uint32_t n = 0; n < 2; n++)
			ldmatrix_x4_trans(ret[n] + 2 * p, weights + hopper_weight_at(token + 16 * n + lane % 16, p + lane / 16));
	if (PARTS % 2) { /* the last one of all 32 */
		uint32_t both[4];

		ldmatrix_x4_trans(both, weights + hopper_weight_at(token + lane, PARTS - 1));
		for (uint32_t n = 0; n < 4; n++)
			ret[n / 2][2 * PARTS - 2 + n % 2] = both[n];
	}
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_values(const struct hopper_shared_parts &shared,
    uint32_t first, const uint32_t v[hopper_fragments<DIM>][4], struct hopper_wide<DIM, PARTS> *state)
{
#pragma unroll
	for (uint32_t i = 0; i < ATTENTION_PAGE / 16; i += 2) {
		uint32_t b[2][2 * PARTS];

		hopper_fetch_weights<PARTS>(shared_address(shared.weights), first + 16 * i, b);
#pragma unroll
		for (uint32_t n = 0; n < 2; n++) {
			const uint32_t *from = DIM == 128 ? v[i + n] : v[i / 2] + 2 * n;
			/* Heads of 64 fill eight rows. */
			const uint32_t a[4] = { from[0], DIM == 128 ? from[1] : 0, DIM == 128 ? from[2] : from[1], DIM == 128 ? from[3] : 0 };

#pragma unroll
			for (uint32_t p = 0; p < PARTS; p++)
				mma_m16n8k16<T>(state->o[first / ATTENTION_PAGE][p], a, b[n] + 2 * p);
		}
	}
}

/* Where o of the group's runs so far is, or of the groups before it: of four parts the former is in shared memory, of three the
 * last part of the latter. */
template <bool WHOLE, int DIM, int PARTS> __device__ static inline float *hopper_total(const struct hopper_shared_parts &shared,
    struct hopper_wide<DIM, PARTS> *state, uint32_t p, uint32_t i)
{
	if (PARTS == 4 && !WHOLE)
		return shared.totals + (4 * p + i) * HOPPER_CONSUMERS + threadIdx.x;
	if (PARTS == 3 && WHOLE && p == 2)
		return shared.totals + i * HOPPER_CONSUMERS + threadIdx.x;
	return WHOLE ? &state->whole.o[p][i] : &state->group.o[p][i];
}

/* As of passes of 16 rows. */
template <bool WHOLE, int DIM, int PARTS> __device__ static inline void hopper_fold(const struct hopper_shared_parts &shared,
    struct hopper_wide<DIM, PARTS> *state, bool first)
{
	float *m = WHOLE ? &state->whole.m : &state->group.m, *l = WHOLE ? &state->whole.l : &state->group.l;

	if (!first) {
		float a, b, mine = state->m;

		state->m = *m;
		hopper_factors(&state->m, mine, &a, &b);
		state->l = hopper_sum(*l, a, state->l, b);
#pragma unroll
		for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
			for (uint32_t e = 0; e < 2; e++) {
				float its_a = hopper_spread(a, p, e), its_b = hopper_spread(b, p, e);

#pragma unroll
				for (uint32_t i = e; i < 4; i += 2)
					state->o[0][p][i] = hopper_sum(*hopper_total<WHOLE>(shared, state, p, i), its_a, state->o[0][p][i], its_b);
			}
	}
	*m = state->m;
	*l = state->l;
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
		for (uint32_t i = 0; i < 4; i++)
			*hopper_total<WHOLE>(shared, state, p, i) = state->o[0][p][i];
}

template <int DIM, int PARTS> __device__ static inline void hopper_end_run(const struct hopper_shared_parts &shared,
    struct hopper_wide<DIM, PARTS> *state, bool first)
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

	shared.sums[warp * 32 + hopper_row_kept()] = hopper_keep<PARTS>(state->sums, 0, [](float x, float y) { return x + y; });
	named_barrier_sync(1, HOPPER_CONSUMERS);
	state->l = 0;
#pragma unroll
	for (uint32_t w = 0; w < HOPPER_WARPS; w++)
		state->l += shared.sums[w * 32 + lane];
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
		for (uint32_t i = 0; i < 4; i++)
			state->o[0][p][i] += state->o[1][p][i];
	hopper_fold<false>(shared, state, first);
}

template <int DIM, int PARTS> __device__ static inline void hopper_end_group(const struct hopper_shared_parts &shared,
    struct hopper_wide<DIM, PARTS> *state, bool first)
{
	hopper_fold<true>(shared, state, first);
}

template <class T, int DIM, int PARTS> __device__ static inline void hopper_store(const struct hopper_job *job,
    const struct hopper_unit *unit, const struct hopper_wide<DIM, PARTS> *state)
{
	uint32_t lane = threadIdx.x % 32, column = threadIdx.x / 32 * (DIM / 8) + lane / 4;
	float    part = 1 / state->l;

#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
		for (uint32_t e = 0; e < 2; e++) {
			uint32_t          mine = 8 * p + lane % 4 * 2 + e;
			float             its_part = hopper_spread(part, p, e);
			struct hopper_row row = state->rows[mine];

			if (row.limit == 0)
				continue;
#pragma unroll
			for (uint32_t d = 0; d < DIM / 64; d++)
				if (unit->unit.results == 1)
					((T *)job->y)[row.y + column + 8 * d] = from_float<T>(state->o[0][p][2 * d + e] * its_part);
				else
					job->partials[(unit->at + mine) * DIM + column + 8 * d] = state->o[0][p][2 * d + e];
		}
	if (unit->unit.results > 1 && threadIdx.x < 8 * PARTS && state->rows[lane].limit)
		*(float2 *)(job->sums + 2 * (unit->at + lane)) = make_float2(state->m, state->l);
}

#endif
