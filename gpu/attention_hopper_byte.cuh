/* attention_hopper_byte.cuh: own decode attention over pages of bytes (attention_hopper.cuh) with scales.
 *
 * Units, the clerk, the ring and how results of units become y are those of pages of T.  What differs is what a warp does: bytes
 * take more instructions than 16 bits, so that what a pass costs is not memory but how well warps are kept busy.  Warps have pages
 * of their own and wait for no other one until a run ends:
 *
 *      warps 2j, 2j + 1   pages j, j + 4, … of the ring: s = q kᵀ ─► p = 2^(s − m) in registers ─► o += p v, all of a page;
 *                         in a pass of one tile: half of the columns each, of two: a tile each
 *      run                (m, l, o) of the four sets of pages in their order, through shared memory ─► put together with the
 *                         runs of the group before it
 *
 * So the two warps of a scheduler have different pages, and the one multiplies while the other one is at its softmax.
 *
 * Sets count from the run's first page, whichever warps have it.  So a row's bits are the same with one tile and with two.
 *
 * A page of a head is one record in the pool, brought by one copy, whole: keys [64][DIM], values [64][DIM], scales of keys [64],
 * of values [64].  Chunks of 16 bytes are swapped as byte_tile_at says.  Rows behind the context are masked: bytes are numbers,
 * whatever was there before, and the scales are not used.
 *
 * Bytes become halves, exactly; q is brought by a power of two into their range, each row by its own, and so are the weights,
 * by the largest scale of the values that a row's set has seen. */
#ifndef PENSTOCK_GPU_ATTENTION_HOPPER_BYTE_CUH
#define PENSTOCK_GPU_ATTENTION_HOPPER_BYTE_CUH

#include "gpu/attention_byte.cuh"
#include "gpu/attention_hopper.cuh"

#include <type_traits>

enum {
	BYTE_SETS = 4,              /* of pages of a run; warps 2j and 2j + 1 have one each */
	BYTE_TILES = ATTENTION_PAGE / 8,
	BYTE_AT_ONCE = 4,           /* tiles of 8 tokens whose products are under way: what registers are there for */
	BYTE_Q_UP = 14,             /* the largest of a row of q is below 2^(BYTE_Q_UP + 1), weights times scales are below that, too */
	BYTE_EXPONENT = 23          /* where the exponent lies in a float32 */
};
static_assert(HOPPER_WARPS == 2 * BYTE_SETS, "two warps for a set");

/* Bytes. */
template <class T, int DIM, int TILES> struct hopper_byte_sizes {
	static constexpr uint32_t page = 2 * ATTENTION_PAGE * (DIM + (uint32_t)sizeof(float)); /* of a KV head: a record */
	/* A multiple of the sets: a warp sees every phase of the stages that it waits for. */
	static constexpr uint32_t stages = (136 << 10) / page / BYTE_SETS * BYTE_SETS;
	static constexpr uint32_t slot = hopper_sizes<T, DIM, TILES>::slot;
	static constexpr uint32_t row = DIM + 16; /* of results of sets, in floats: rows g and g + 1 lie in different banks */
	static constexpr uint32_t results = BYTE_SETS * 16 * (row + 2) * sizeof(float); /* of a tile */
	static constexpr uint32_t totals = TILES * (DIM / 16 + 2) * HOPPER_CONSUMERS * sizeof(float); /* o, m, l of each thread */
	static constexpr uint32_t shared = stages * page + HOPPER_SLOTS * slot + results + totals +
	    (2 * stages + 2 * HOPPER_SLOTS + 4) * sizeof(mbarrier) + 16;
};

template <class T, int DIM, int TILES> __device__ static inline struct hopper_shared_parts hopper_byte_parts(char *shared)
{
	typedef hopper_byte_sizes<T, DIM, TILES> sizes;
	struct hopper_shared_parts               parts;

	parts.ring = shared;
	parts.slots = parts.ring + sizes::stages * sizes::page;
	parts.weights = NULL;
	parts.sums = (float *)(parts.slots + HOPPER_SLOTS * sizes::slot); /* results: [set][row], o, then (m, l) */
	parts.maxima = parts.sums + BYTE_SETS * 16 * sizes::row;
	parts.totals = parts.sums + sizes::results / sizeof(float);
	parts.full = (mbarrier *)(parts.totals + sizes::totals / sizeof(float));
	parts.empty = parts.full + sizes::stages;
	parts.known = parts.empty + sizes::stages;
	parts.forgotten = parts.known + HOPPER_SLOTS;
	parts.stored = parts.forgotten + HOPPER_SLOTS;
	parts.decided = parts.stored + 2;
	parts.last = (int32_t *)(parts.decided + 2);
	return parts;
}

/* ---- Numbers ---- */

__device__ static inline uint32_t byte_pair(float low, float high) { return pair_bits(__floats2half2_rn(low, high)); }

/* Bytes of a word as pairs of halves: 0 and 1, 2 and 3. */
template <class E> __device__ static inline void byte_halves(uint32_t word, uint32_t *low, uint32_t *high)
{
	if constexpr (std::is_same_v<E, kv_i8>) { /* 1024 + (128 + byte), less 1152 */
		uint32_t biased = word ^ 0x80808080;

		*low = pair_bits(__hsub2(bits_pair<__half2>(__byte_perm(biased, 0x64646464, 0x4140)), bits_pair<__half2>(0x64806480)));
		*high = pair_bits(__hsub2(bits_pair<__half2>(__byte_perm(biased, 0x64646464, 0x4342)), bits_pair<__half2>(0x64806480)));
	} else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
		asm("{\n\t.reg .b16 a, b;\n\tmov.b32 {a, b}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, a;\n\tcvt.rn.f16x2.e4m3x2 %1, b;\n\t}"
		    : "=r"(*low), "=r"(*high) : "r"(word));
#else
		*low = byte_pair(kv_value(kv_f8{ (uint8_t)word }), kv_value(kv_f8{ (uint8_t)(word >> 8) }));
		*high = byte_pair(kv_value(kv_f8{ (uint8_t)(word >> 16) }), kv_value(kv_f8{ (uint8_t)(word >> 24) }));
#endif
	}
}

/* 2^(of an exponent that lies in place). */
__device__ static inline float byte_power(int32_t exponent) { return __int_as_float(exponent); }

enum : int32_t {
	BYTE_ONE = 127 << BYTE_EXPONENT,
	BYTE_UP = BYTE_Q_UP << BYTE_EXPONENT,
	BYTE_LEAST = (BYTE_Q_UP + 1) << BYTE_EXPONENT /* what is smaller counts as 2^−112: its inverse, times 2^14, is a number */
};

/* The exponent of X ≥ 0, in place; NaN is X of 0. */
__device__ static inline int32_t byte_exponent(float x)
{
	int32_t exponent = __float_as_int(x) & 0xff << BYTE_EXPONENT;

	return exponent > BYTE_LEAST ? exponent : BYTE_LEAST;
}

/* ---- The producer ---- */

template <class T, int DIM, int TILES> __device__ static inline void hopper_byte_produce(const struct hopper_job *job,
    const struct hopper_shared_parts &shared)
{
	typedef hopper_byte_sizes<T, DIM, TILES> sizes;
	uint32_t              lane = threadIdx.x % 32, brought = 0;
	uint64_t              policy = cache_evict_first(); /* partial results stay in L2 */
	bool                  waited = false;
	struct attention_unit unit = hopper_first(job), next;
	int32_t               mine, ahead = hopper_blocks(job, &unit, 0);

	for (; unit.results; unit = next) {
		uint32_t pages = (uint32_t)(unit.end - unit.begin + ATTENTION_PAGE - 1) / ATTENTION_PAGE;
		int32_t  old = (unit.context - unit.rows - unit.begin) / ATTENTION_PAGE; /* pages that no row of the step is in */

		next = unit;
		hopper_next(job, &next);
		mine = ahead;
		for (uint32_t p = 0; p < pages; p++, brought++) {
			int32_t page;

			if (p % 32 == 0 && p > 0)
				mine = hopper_blocks(job, &unit, p);
			page = __shfl_sync(~0u, mine, (int)(p % 32));
			if (p + 1 == pages && next.results) /* what `next` is has come meanwhile, unless there is one page */
				ahead = hopper_blocks(job, &next, 0);
			if (!waited && (int32_t)p >= old) {
				dependency_wait();
				waited = true;
			}
			if (lane == 0) {
				uint32_t stage = brought % sizes::stages;
				size_t   at = ((size_t)page * job->kv_heads + unit.head) * sizes::page;
				char    *to = shared.ring + stage * sizes::page;

				if (brought >= sizes::stages)
					barrier_wait(&shared.empty[stage], (brought / sizes::stages + 1) % 2);
				barrier_expect(&shared.full[stage], sizes::page);
				bulk_copy(to, (const char *)job->keys + at, sizes::page, &shared.full[stage], policy);
			}
			__syncwarp();
		}
	}
}

/* ---- Consumers ---- */

template <int DIM> constexpr uint32_t byte_q_row = hopper_sizes<__half, DIM, 1>::q_row; /* as that of T */

/* The order of q in a row, so that ldmatrix gives a lane what belongs to four bytes of a key: of each 16 dimensions the first two
 * of four, then the last two. */
__device__ static inline uint32_t byte_q_at(uint32_t d) { return d / 16 * 16 + d % 4 / 2 * 8 + d % 16 / 4 * 2; }

/* q of a slot, ROWS of it, become halves in that order, in their place; behind a row, what its scores are to be multiplied with.
 * By all consumers. */
template <class T, int DIM, int ROWS> __device__ static inline void byte_query(char *q, float scale)
{
	constexpr uint32_t lanes = HOPPER_CONSUMERS / ROWS, each = DIM / lanes; /* of a row; dimensions of a lane */
	uint32_t           first = threadIdx.x % lanes * each;
	T                 *row = (T *)(q + threadIdx.x / lanes * byte_q_row<DIM>);
	float              x[each], most = 0, up = 1;
	int32_t            exponent;

	static_assert(each % 4 == 0 && lanes <= 32, "a row is of one warp");
#pragma unroll
	for (uint32_t i = 0; i < each; i++) {
		x[i] = to_float(row[first + i]);
		most = fmaxf(most, fabsf(x[i]));
	}
	if (!std::is_same_v<T, __half>) {
		for (uint32_t i = 1; i < lanes; i *= 2)
			most = fmaxf(most, __shfl_xor_sync(~0u, most, (int)i));
		exponent = byte_exponent(fmaxf(most, 0x1p-62f));
		up = byte_power(BYTE_ONE + BYTE_UP - (exponent - BYTE_ONE));
		scale *= byte_power(exponent - BYTE_UP);
	}
	__syncwarp();
#pragma unroll
	for (uint32_t i = 0; i < each; i += 2)
		*(uint32_t *)(row + byte_q_at(first + i)) = byte_pair(x[i] * up, x[i + 1] * up);
	if (first == 0)
		*(float *)(row + DIM) = scale;
	named_barrier_sync(1, HOPPER_CONSUMERS);
}

/* What a warp knows of a unit, for one tile: its rows' q, and its columns of the results of a set.  m and l are those of rows g and
 * g + 8; sums l are of each lane's own tokens.  o is times 2^14 / 2^of. */
template <int DIM, int COLUMNS> struct byte_state {
	uint32_t at, q[DIM / 16][4]; /* where q lies; in a pass of one tile it is in registers, of two there are not enough */
	float    o[COLUMNS / 8][4], m[2], l[2], factor[2]; /* of scores */
	int32_t  of[2], limit[2];                          /* tokens of the run that a row sees end there */
};

template <int DIM, int COLUMNS> __device__ static inline void byte_load_query(const struct byte_state<DIM, COLUMNS> *state,
    uint32_t k, uint32_t ret[4])
{
	uint32_t lane = threadIdx.x % 32;

	ldmatrix_x4(ret, state->at + lane % 16 * byte_q_row<DIM> + (2 * k + lane / 16) * 16);
}

/* Q: the tile's first row in a slot. */
template <int DIM, int COLUMNS> __device__ static inline void byte_begin(const char *q, struct byte_state<DIM, COLUMNS> *state)
{
	state->at = shared_address(q);
#pragma unroll
	for (uint32_t r = 0; r < 2; r++)
		state->factor[r] = *(const float *)(q + (threadIdx.x % 32 / 4 + 8 * r) * byte_q_row<DIM> + 2 * DIM);
#pragma unroll
	for (uint32_t k = 0; k < DIM / 16 && COLUMNS < DIM; k++)
		byte_load_query(state, k, state->q[k]);
}

/* ROWS: the tile's. */
template <int DIM, int COLUMNS> __device__ static inline void byte_begin_run(const struct hopper_row *rows, int32_t end,
    struct byte_state<DIM, COLUMNS> *state)
{
#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		state->limit[r] = min(rows[threadIdx.x % 32 / 4 + 8 * r].limit, end);
		state->m[r] = -INFINITY;
		state->l[r] = 0;
		state->of[r] = BYTE_LEAST;
	}
#pragma unroll
	for (uint32_t d = 0; d < COLUMNS / 8; d++)
		for (uint32_t i = 0; i < 4; i++)
			state->o[d][i] = 0;
}

/* s = q · kᵀ of a page, without scales. */
template <class E, int DIM, int COLUMNS> __device__ static inline void byte_scores(const struct byte_state<DIM, COLUMNS> *state,
    uint32_t keys, float s[BYTE_TILES][4])
{
	uint32_t lane = threadIdx.x % 32;

#pragma unroll
	for (uint32_t j = 0; j < BYTE_TILES; j++)
		for (uint32_t i = 0; i < 4; i++)
			s[j][i] = 0;
#pragma unroll
	for (uint32_t at = 0; at < BYTE_TILES * DIM / 64; at += BYTE_AT_ONCE) {
		uint32_t words[BYTE_AT_ONCE][4], b[2], c = at / BYTE_TILES * 4;

#pragma unroll
		for (uint32_t j = 0; j < BYTE_AT_ONCE; j++)
			ldmatrix_x4(words[j], keys + byte_tile_at<DIM>(8 * (at % BYTE_TILES + j) + lane % 8, c + lane / 8));
#pragma unroll
		for (uint32_t i = 0; i < 4; i++) {
			uint32_t        more[4];
			const uint32_t *q = COLUMNS < DIM ? state->q[c + i] : more;

			if (COLUMNS == DIM)
				byte_load_query(state, c + i, more);
#pragma unroll
			for (uint32_t j = 0; j < BYTE_AT_ONCE; j++) {
				byte_halves<E>(words[j][i], &b[0], &b[1]);
				mma_m16n8k16<__half>(s[at % BYTE_TILES + j], q, b);
			}
		}
	}
}

/* The online softmax over a page whose first token is FIRST: scores, without scales, become weights times the scales of values, as
 * fragments of halves.  ALL: every row sees the whole page, and both rows' weights have the same power of two. */
template <bool ALL, int DIM, int COLUMNS> __device__ static inline void byte_weigh(struct byte_state<DIM, COLUMNS> *state,
    const float *scales, int32_t first, float s[BYTE_TILES][4], uint32_t p[BYTE_TILES][2])
{
	uint32_t t = threadIdx.x % 4 * 2;
	int32_t  left[2];
	float    most[2] = { -INFINITY, -INFINITY }, largest[2] = { 0, 0 }, factor[2], base[2], up[2];

#pragma unroll
	for (uint32_t r = 0; r < 2; r++) /* from this lane's first token on */
		left[r] = state->limit[r] - first - (int32_t)t;
#pragma unroll
	for (uint32_t j = 0; j < BYTE_TILES; j++) {
		float2 k = *(const float2 *)(scales + 8 * j + t), v = *(const float2 *)(scales + ATTENTION_PAGE + 8 * j + t);

#pragma unroll
		for (uint32_t r = 0; r < 2; r++)
#pragma unroll
			for (uint32_t i = 0; i < 2; i++) {
				bool there = ALL || left[r] > (int32_t)(8 * j + i);

				s[j][2 * r + i] = there ? s[j][2 * r + i] * (i ? k.y : k.x) : -INFINITY;
				most[r] = fmaxf(most[r], s[j][2 * r + i]);
				if (!ALL || r == 0)
					largest[r] = fmaxf(largest[r], there ? i ? v.y : v.x : 0);
			}
	}
	if (ALL)
		largest[1] = largest[0];
#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		int32_t before = state->of[r], shift;
		float   larger;

		most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
		most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
		if (!ALL || r == 0) {
			largest[r] = fmaxf(largest[r], __shfl_xor_sync(~0u, largest[r], 1));
			largest[r] = fmaxf(largest[r], __shfl_xor_sync(~0u, largest[r], 2));
			state->of[r] = max(before, byte_exponent(largest[r]));
		} else {
			state->of[r] = state->of[0];
		}
		shift = BYTE_ONE - (state->of[r] - before);
		up[r] = byte_power(BYTE_ONE + BYTE_UP - (state->of[r] - BYTE_ONE));
		larger = fmaxf(state->m[r], most[r] * state->factor[r]);
		/* A row that has seen nothing yet keeps weights of 0, not exp2(−∞ + ∞). */
		base[r] = larger == -INFINITY ? 0 : larger;
		factor[r] = exp2_approximate(state->m[r] - base[r]);
		state->m[r] = larger;
		state->l[r] *= factor[r];
		factor[r] *= byte_power(shift > 0 ? shift : 0);
	}
	if (__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
		for (uint32_t d = 0; d < COLUMNS / 8; d++)
#pragma unroll
			for (uint32_t i = 0; i < 4; i++)
				state->o[d][i] *= factor[i / 2];
	}
#pragma unroll
	for (uint32_t j = 0; j < BYTE_TILES; j++) {
		float2 v = *(const float2 *)(scales + ATTENTION_PAGE + 8 * j + t);

		if (ALL) {
			v.x *= up[0];
			v.y *= up[0];
		}
#pragma unroll
		for (uint32_t r = 0; r < 2; r++) {
			float low = exp2_approximate(__fmaf_rn(s[j][2 * r], state->factor[r], -base[r]));
			float high = exp2_approximate(__fmaf_rn(s[j][2 * r + 1], state->factor[r], -base[r]));

			state->l[r] += low + high;
			if (ALL)
				p[j][r] = byte_pair(low * v.x, high * v.y);
			else /* what a row does not see has no weight, whatever the scale beside it */
				p[j][r] = byte_pair(left[r] > (int32_t)(8 * j) ? low * (v.x * up[r]) : 0,
				    left[r] > (int32_t)(8 * j + 1) ? high * (v.y * up[r]) : 0);
		}
	}
}

/* o += p · v for chunks of columns from CHUNK on. */
template <class E, int DIM, int COLUMNS> __device__ static inline void byte_values(struct byte_state<DIM, COLUMNS> *state,
    uint32_t values, uint32_t chunk, const uint32_t p[BYTE_TILES][2])
{
	uint32_t lane = threadIdx.x % 32;

#pragma unroll
	for (uint32_t i = 0; i < ATTENTION_PAGE / 16; i++) {
		const uint32_t a[4] = { p[2 * i][0], p[2 * i][1], p[2 * i + 1][0], p[2 * i + 1][1] };
		uint32_t       words[COLUMNS / 32][4];

#pragma unroll
		for (uint32_t c = 0; c < COLUMNS / 32; c++)
			ldmatrix_x4_trans(words[c], values + byte_tile_at<DIM>(16 * i + lane % 16, chunk + 2 * c + lane / 16));
#pragma unroll
		for (uint32_t c = 0; c < COLUMNS / 16; c++) {
			uint32_t even[2], odd[2];

#pragma unroll
			for (uint32_t n = 0; n < 2; n++) /* of a column of two tokens each */
				byte_halves<E>(__byte_perm(words[c / 2][c % 2 * 2 + n], 0, 0x3120), &even[n], &odd[n]);
			mma_m16n8k16<__half>(state->o[2 * c], a, even);
			mma_m16n8k16<__half>(state->o[2 * c + 1], a, odd);
		}
	}
}

/* Pages of a run as they come: those of the warp's set.  BROUGHT counts pages of all units. */
template <class E, int DIM, int STAGES, int COLUMNS> __device__ static inline void byte_run(
    const struct hopper_shared_parts &shared, struct byte_state<DIM, COLUMNS> *state, uint32_t chunk, int32_t begin, int32_t end,
    uint32_t brought)
{
	constexpr uint32_t page_bytes = 2 * ATTENTION_PAGE * (DIM + (uint32_t)sizeof(float));
	uint32_t pages = (uint32_t)(end - begin + ATTENTION_PAGE - 1) / ATTENTION_PAGE;
	bool     blind = !__any_sync(~0u, max(state->limit[0], state->limit[1]) > begin); /* no row sees any of it, if there is one */

	for (uint32_t page = (threadIdx.x / 64 - brought) % BYTE_SETS; page < pages; page += BYTE_SETS) {
		uint32_t     number = brought + page, stage = number % STAGES;
		int32_t      first = begin + (int32_t)page * ATTENTION_PAGE;
		const char  *keys = shared.ring + stage * page_bytes;
		const float *scales = (const float *)(keys + 2 * ATTENTION_PAGE * DIM);

		barrier_wait(&shared.full[stage], number / STAGES % 2);
		if (!blind) {
			float    s[BYTE_TILES][4];
			uint32_t p[BYTE_TILES][2];

			byte_scores<E>(state, shared_address(keys), s);
			if (__all_sync(~0u, min(state->limit[0], state->limit[1]) - first >= ATTENTION_PAGE && state->of[0] == state->of[1]))
				byte_weigh<true>(state, scales, first, s, p);
			else
				byte_weigh<false>(state, scales, first, s, p);
			byte_values<E>(state, shared_address(keys + ATTENTION_PAGE * DIM), chunk, p);
		}
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			barrier_arrive(&shared.empty[stage]);
	}
}

/* A set's results of a tile to shared memory. */
template <int DIM, int COLUMNS> __device__ static inline void byte_leave(const struct hopper_shared_parts &shared,
    const struct byte_state<DIM, COLUMNS> *state, uint32_t set, uint32_t chunk)
{
	constexpr uint32_t row = DIM + 16;
	uint32_t           lane = threadIdx.x % 32;

#pragma unroll
	for (uint32_t r = 0; r < 2; r++) {
		uint32_t     mine = set * 16 + lane / 4 + 8 * r;
		float        l = state->l[r], down = byte_power(state->of[r] - BYTE_UP);
		const float *o = &state->o[0][2 * r];

		l += __shfl_xor_sync(~0u, l, 1);
		l += __shfl_xor_sync(~0u, l, 2);
		if (chunk == 0 && lane % 4 == 0)
			*(float2 *)(shared.maxima + 2 * mine) = make_float2(state->m[r], l);
#pragma unroll
		for (uint32_t c = 0; c < COLUMNS / 16; c++, o += 8)
			*(float4 *)(shared.sums + mine * row + (chunk + c) * 16 + lane % 4 * 4) =
			    make_float4(o[0] * down, o[4] * down, o[1] * down, o[5] * down);
	}
}

/* What a thread has of a tile's results, once sets have been put together: of row threadIdx.x / 16, four columns of each 64. */
template <int DIM> struct byte_result {
	float m, l, o[DIM / 16];
};

template <int DIM> __device__ static inline struct byte_result<DIM> byte_result_of(const struct hopper_shared_parts &shared,
    uint32_t set)
{
	uint32_t                row = set * 16 + threadIdx.x / 16;
	float2                  sum = *(const float2 *)(shared.maxima + 2 * row);
	struct byte_result<DIM> ret;

	ret.m = sum.x;
	ret.l = sum.y;
#pragma unroll
	for (uint32_t i = 0; i < DIM / 64; i++) {
		float4 o = *(const float4 *)(shared.sums + row * (DIM + 16) + 64 * i + threadIdx.x % 16 * 4);

		ret.o[4 * i] = o.x;
		ret.o[4 * i + 1] = o.y;
		ret.o[4 * i + 2] = o.z;
		ret.o[4 * i + 3] = o.w;
	}
	return ret;
}

/* RESULT comes before OTHER. */
template <int DIM> __device__ static inline void byte_put_together(struct byte_result<DIM> *result,
    const struct byte_result<DIM> &other)
{
	float a, b;

	hopper_factors(&result->m, other.m, &a, &b);
	result->l = hopper_sum(result->l, a, other.l, b);
#pragma unroll
	for (uint32_t i = 0; i < DIM / 16; i++)
		result->o[i] = hopper_sum(result->o[i], a, other.o[i], b);
}

/* The SETS of a run of tile TILE, then those of the group before it: FIRST, LAST: it is the first, or the last one of the unit. */
template <int DIM> __device__ static inline struct byte_result<DIM> byte_gather(const struct hopper_shared_parts &shared,
    uint32_t tile, uint32_t sets, bool first, bool last)
{
	float                  *total = shared.totals + tile * (DIM / 16 + 2) * HOPPER_CONSUMERS + threadIdx.x;
	struct byte_result<DIM> result = byte_result_of<DIM>(shared, 0);

#pragma unroll
	for (uint32_t set = 1; set < BYTE_SETS; set++)
		if (set < sets)
			byte_put_together(&result, byte_result_of<DIM>(shared, set));
	if (!first) {
		struct byte_result<DIM> before;

		before.m = total[0];
		before.l = total[HOPPER_CONSUMERS];
#pragma unroll
		for (uint32_t i = 0; i < DIM / 16; i++)
			before.o[i] = total[(2 + i) * HOPPER_CONSUMERS];
		byte_put_together(&before, result);
		result = before;
	}
	if (!last) {
		total[0] = result.m;
		total[HOPPER_CONSUMERS] = result.l;
#pragma unroll
		for (uint32_t i = 0; i < DIM / 16; i++)
			total[(2 + i) * HOPPER_CONSUMERS] = result.o[i];
	}
	return result;
}

/* The result of a unit's tile: y if it is the only one, else a partial result. */
template <class T, int DIM> __device__ static inline void byte_store(const struct hopper_job *job, const struct hopper_unit *unit,
    uint32_t tile, const struct byte_result<DIM> &result)
{
	const struct hopper_row *rows = (const struct hopper_row *)((const char *)unit + 64);
	uint32_t                 mine = 16 * tile + threadIdx.x / 16, column = threadIdx.x % 16 * 4;
	size_t                   at = unit->at + mine;
	float                    part = 1 / result.l;

	if (rows[mine].limit == 0)
		return;
#pragma unroll
	for (uint32_t i = 0; i < DIM / 64; i++) {
		const float *o = result.o + 4 * i;

		if (unit->unit.results == 1)
			*(uint2 *)((T *)job->y + rows[mine].y + 64 * i + column) =
			    make_uint2(pair_of<T>(o[0] * part, o[1] * part), pair_of<T>(o[2] * part, o[3] * part));
		else
			*(float4 *)(job->partials + at * DIM + 64 * i + column) = make_float4(o[0], o[1], o[2], o[3]);
	}
	if (unit->unit.results > 1 && column == 0)
		*(float2 *)(job->sums + 2 * at) = make_float2(result.m, result.l);
}

template <class T, int DIM, int TILES, class E> struct hopper_byte_pages {
	template <int WIDTH> __device__ static inline void consume(const struct hopper_job *job, const struct hopper_unit *unit,
	    const struct hopper_shared_parts &shared, uint32_t *brought);
};

template <class T, int DIM, int TILES, class E> template <int WIDTH> __device__ inline void
hopper_byte_pages<T, DIM, TILES, E>::consume(const struct hopper_job *job, const struct hopper_unit *unit,
    const struct hopper_shared_parts &shared, uint32_t *brought)
{
	constexpr int      columns = WIDTH == 1 ? DIM / 2 : DIM;
	char       *slot = (char *)unit, *q = slot + hopper_sizes<T, DIM, TILES>::q;
	uint32_t    half = threadIdx.x / 32 % 2, tile = WIDTH == 1 ? 0 : half, chunk = WIDTH == 1 ? half * (DIM / 32) : 0;
	int32_t     first = unit->unit.begin, last = unit->unit.end, run = (int32_t)unit->run;
	struct byte_state<DIM, columns> state;

	byte_query<T, DIM, 16 * WIDTH>(q, job->scale * 1.44269504088896f);
	byte_begin(q + 16 * tile * byte_q_row<DIM>, &state);
	for (int32_t begin = first; begin < last; begin += run) {
		int32_t  end = last - begin < run ? last : begin + run;
		uint32_t pages = (uint32_t)(end - begin + ATTENTION_PAGE - 1) / ATTENTION_PAGE;
		uint32_t set = (threadIdx.x / 64 - *brought) % BYTE_SETS;

		byte_begin_run((const struct hopper_row *)(slot + 64) + 16 * tile, end, &state);
		byte_run<E, DIM, hopper_byte_sizes<T, DIM, TILES>::stages>(shared, &state, chunk, begin, end, *brought);
		*brought += pages;
#pragma unroll
		for (uint32_t t = 0; t < WIDTH; t++) {
			struct byte_result<DIM> result;

			if (WIDTH == 1 || t == tile)
				byte_leave(shared, &state, set, chunk);
			named_barrier_sync(1, HOPPER_CONSUMERS);
			result = byte_gather<DIM>(shared, t, pages, begin == first, end == last);
			if (end == last)
				byte_store<T, DIM>(job, unit, t, result);
			named_barrier_sync(1, HOPPER_CONSUMERS); /* the place of the results is free again */
		}
	}
}

/* As many blocks as `units` were planned for. */
template <class T, int DIM, int TILES, class E> static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_byte_kernel(struct hopper_job job)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	struct hopper_shared_parts shared = hopper_byte_parts<T, DIM, TILES>(shared_memory());

	hopper_init(shared, hopper_byte_sizes<T, DIM, TILES>::stages, 2);
	dependents_launch();
	if (threadIdx.x < HOPPER_CONSUMERS) {
		registers_raise<HOPPER_REGISTERS>();
		hopper_consume<T, DIM, TILES, hopper_byte_pages<T, DIM, TILES, E>>(&job, shared);
		return;
	}
	registers_lower<HOPPER_REGISTERS_OTHERS>();
	if (threadIdx.x / 32 == HOPPER_WARPS)
		hopper_byte_produce<T, DIM, TILES>(&job, shared);
	else
		hopper_serve<T, DIM, TILES>(&job, shared);
#endif
}

/* attention_byte.cu */
struct cuda_backend;
enum status attention_byte_launch(struct cuda_backend *cuda, const struct hopper_job *job, uint32_t dim, uint32_t tiles,
    enum kv_type type);
enum status attention_byte_prepare(struct cuda_backend *cuda);

#endif
