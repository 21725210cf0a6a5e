/* attention_hopper_byte.cuh: own decode attention over pages of bytes (attention_hopper.cuh) with scales.
 *
 * Units, the clerk, the ring and how results of units become y are those of pages of T.  What differs is what a warp does: bytes
 * take more instructions than 16 bits, so that what a pass costs is not memory but how well warps are kept busy.  Two warps have
 * pages of their own and wait for no others until a run ends:
 *
 *      warps 2j, 2j + 1   pages j, j + 4, … of the ring, half of the tokens each: s = k qᵀ ─► maxima
 *                         (barrier of the two) ─► p = 2^(s − m), to shared memory
 *                         (barrier of the two) ─► half of the columns each: o += vᵀ p over all of the page's tokens
 *      run                (m, l, o) of the four sets of pages in their order, through shared memory ─► put together with the
 *                         runs of the group before it
 *
 * So no byte is widened twice, and the two warps of a scheduler have different pages: the one multiplies while the other one is at
 * its softmax.  Bytes are the first operand of mma, the pass's rows the second, in parts of eight.
 *
 * Sets count from the run's first page, whichever warps have it.  So a row's bits are the same with any number of parts.
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
	BYTE_Q_UP = 14,             /* the largest of a row of q is below 2^(BYTE_Q_UP + 1), weights times scales are below that, too */
	BYTE_EXPONENT = 23          /* where the exponent lies in a float32 */
};
static_assert(HOPPER_WARPS == 2 * BYTE_SETS, "two warps for a set");

/* Of results of sets, in floats: rows 2t lie in different banks. */
template <int DIM> constexpr uint32_t byte_row = DIM + 8;

/* Bytes. */
template <class T, int DIM, int PARTS> struct hopper_byte_sizes {
	static constexpr int held = PARTS + PARTS % 2; /* parts of eight rows that a slot holds: whole tiles */
	static constexpr uint32_t page = 2 * ATTENTION_PAGE * (DIM + (uint32_t)sizeof(float)); /* of a KV head: a record */
	/* A multiple of the sets: a warp sees every phase of the stages that it waits for. */
	static constexpr uint32_t stages = (136 << 10) / page / BYTE_SETS * BYTE_SETS;
	static constexpr uint32_t slot = hopper_sizes<T, DIM, held>::slot;
	static constexpr uint32_t results = BYTE_SETS * 16 * (byte_row<DIM> + 3) * sizeof(float); /* of a tile */
	static constexpr uint32_t totals = held / 2 * (DIM / 16 + 2) * HOPPER_CONSUMERS * sizeof(float); /* o, m, l of each thread */
	static constexpr uint32_t shared = stages * page + HOPPER_SLOTS * slot + results + totals +
	    (2 * stages + 2 * HOPPER_SLOTS + 4) * sizeof(mbarrier) + 8 + sizeof(struct attention_unit);
};

template <class T, int DIM, int PARTS> __device__ static inline struct hopper_shared_parts hopper_byte_parts(char *shared)
{
	typedef hopper_byte_sizes<T, DIM, PARTS> sizes;
	struct hopper_shared_parts               parts;

	parts.ring = shared;
	parts.slots = parts.ring + sizes::stages * sizes::page;
	parts.weights = NULL;
	parts.sums = (float *)(parts.slots + HOPPER_SLOTS * sizes::slot); /* results: [set][row], o, then (m, l) */
	parts.maxima = parts.sums + BYTE_SETS * 16 * byte_row<DIM>;
	parts.totals = parts.sums + sizes::results / sizeof(float);
	hopper_place_barriers(&parts, parts.totals + sizes::totals / sizeof(float), sizes::stages);
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

/* ---- Consumers ---- */

template <int DIM> constexpr uint32_t byte_q_row = hopper_q_row<__half, DIM>; /* as that of T */

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

/* What a warp knows of a unit.  Tokens, then columns of values, are the 16 rows of a tile, and the pass's rows its columns, in
 * parts of eight.  m, `of` and `factor` are those of row `lane`, o and sums those of rows 2t and 2t + 1 of each part, sums of a
 * lane's own tokens, o of columns 2g and 2g + 1.  o is times 2^14 / 2^of. */
template <int DIM, int PARTS> struct byte_state {
	uint32_t at, q[DIM / 16][PARTS][2]; /* where this lane's q lies; two parts of it are in registers, more are too many */
	float    o[DIM / 32][PARTS][4], sums[PARTS][2], m, factor; /* of scores */
	int32_t  of, least;                 /* tokens that every row sees end at `least` */
	const struct hopper_row *rows;
};

template <int DIM, int PARTS> __device__ static inline void byte_load_query(const struct byte_state<DIM, PARTS> *state, uint32_t k,
    uint32_t (*ret)[2])
{
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p += 2) {
		uint32_t b[4];

		ldmatrix_x4(b, state->at + 8 * p * byte_q_row<DIM> + 32 * k);
#pragma unroll
		for (uint32_t n = 0; n < 4; n++)
			if (p + n / 2 < PARTS)
				ret[p + n / 2][n % 2] = b[n];
	}
}

/* Q: the first row in a slot. */
template <int DIM, int PARTS> __device__ static inline void byte_begin(const struct hopper_job *job, const struct hopper_unit *unit,
    const char *q, struct byte_state<DIM, PARTS> *state)
{
	uint32_t lane = threadIdx.x % 32;

	state->at = shared_address(q) + (lane / 16 * 8 + lane % 8) * byte_q_row<DIM> + lane / 8 % 2 * 16;
	state->rows = (const struct hopper_row *)((const char *)unit + 64);
	state->least = job->full ? unit->unit.context : unit->unit.context - (int32_t)unit->unit.rows + 1;
	state->factor = *(const float *)(q + lane % (PARTS == 2 ? 16 : 32) * byte_q_row<DIM> + 2 * DIM);
#pragma unroll
	for (uint32_t k = 0; k < DIM / 16 && PARTS < 3; k++)
		byte_load_query(state, k, state->q[k]);
}

template <int DIM, int PARTS> __device__ static inline void byte_begin_run(struct byte_state<DIM, PARTS> *state)
{
	state->m = -INFINITY;
	state->of = BYTE_LEAST;
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++) {
		state->sums[p][0] = state->sums[p][1] = 0;
#pragma unroll
		for (uint32_t c = 0; c < DIM / 32; c++)
			for (uint32_t i = 0; i < 4; i++)
				state->o[c][p][i] = 0;
	}
}

/* s = k · qᵀ of the warp's tokens, 32 from FIRST on, of a page, without scales. */
template <class E, int DIM, int PARTS> __device__ static inline void byte_scores(const struct byte_state<DIM, PARTS> *state,
    uint32_t keys, uint32_t first, float s[2][PARTS][4])
{
	uint32_t lane = threadIdx.x % 32;

#pragma unroll
	for (uint32_t t = 0; t < 2; t++)
#pragma unroll
		for (uint32_t p = 0; p < PARTS; p++)
			for (uint32_t i = 0; i < 4; i++)
				s[t][p][i] = 0;
#pragma unroll (PARTS < 4 ? 4 : 1) /* or registers spill */
	for (uint32_t c = 0; c < DIM / 16; c += 2) {
		uint32_t words[2][4];

#pragma unroll
		for (uint32_t t = 0; t < 2; t++)
			ldmatrix_x4(words[t], keys + byte_tile_at<DIM>(first + 16 * t + lane % 16, c + lane / 16));
#pragma unroll
		for (uint32_t i = 0; i < 2; i++) {
			uint32_t more[PARTS][2];
			const uint32_t(*q)[2] = PARTS < 3 ? state->q[c + i] : more;

			if (PARTS > 2)
				byte_load_query(state, c + i, more);
#pragma unroll
			for (uint32_t t = 0; t < 2; t++) {
				uint32_t a[4];

				byte_halves<E>(words[t][2 * i], &a[0], &a[2]);
				byte_halves<E>(words[t][2 * i + 1], &a[1], &a[3]);
#pragma unroll
				for (uint32_t p = 0; p < PARTS; p++)
					mma_m16n8k16<__half>(s[t][p], a, q[p]);
			}
		}
	}
}

/* Where the two warps of a set leave maxima of rows, the largest scales, and weights: [2][32], [2][32], [64][32]. */
struct byte_exchange {
	float *maxima, *largest;
	char  *weights;
};

/* The online softmax over a page whose first token is FIRST, of which the warp's begin at OWN: scores, without scales, become
 * weights times the scales of values, halves in shared memory.  ALL: every row sees the whole page, and all rows' weights have the
 * same power of two. */
template <bool ALL, int DIM, int PARTS> __device__ static inline void byte_weigh(struct byte_state<DIM, PARTS> *state,
    const struct byte_exchange &exchange, const float *scales, int32_t first, uint32_t own, int32_t end, float s[2][PARTS][4])
{
	uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = own + lane / 4; /* mine, + 8, + 16, + 24 */
	float    v[4], most[PARTS][2], most_scale[PARTS][2], larger, base, factor, up, largest = 0;
	int32_t  before = state->of, shift, left[PARTS][2];
	bool     grown;

#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
		for (uint32_t e = 0; e < 2; e++) {
			int32_t limit = ALL ? 0 : state->rows[8 * p + lane % 4 * 2 + e].limit;

			/* From this lane's first token on.  Rows that are not there see all. */
			left[p][e] = (limit && limit < end ? limit : end) - first - (int32_t)mine;
			most[p][e] = -INFINITY;
			most_scale[p][e] = 0;
		}
#pragma unroll
	for (uint32_t i = 0; i < 4; i++) {
		float k = scales[mine + 8 * i];

		v[i] = scales[ATTENTION_PAGE + mine + 8 * i];
		if (ALL)
			largest = fmaxf(largest, v[i]);
#pragma unroll
		for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
			for (uint32_t e = 0; e < 2; e++) {
				float *score = &s[i / 2][p][i % 2 * 2 + e];
				bool   there = ALL || left[p][e] > (int32_t)(8 * i);

				*score = there ? *score * k : -INFINITY;
				most[p][e] = fmaxf(most[p][e], *score);
				if (!ALL)
					most_scale[p][e] = fmaxf(most_scale[p][e], there ? v[i] : 0);
			}
	}
	exchange.maxima[warp % 2 * 32 + hopper_row_kept()] =
	    hopper_keep<PARTS>(most, -INFINITY, [](float x, float y) { return fmaxf(x, y); });
	if (ALL) {
		for (uint32_t i = 4; i < 32; i *= 2)
			largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, (int)i));
		exchange.largest[warp % 2 * 32 + lane] = largest;
	} else {
		exchange.largest[warp % 2 * 32 + hopper_row_kept()] =
		    hopper_keep<PARTS>(most_scale, 0, [](float x, float y) { return fmaxf(x, y); });
	}
	named_barrier_sync(2 + warp / 2, 64);
	larger = fmaxf(state->m, fmaxf(exchange.maxima[lane], exchange.maxima[32 + lane]) * state->factor);
	state->of = max(before, byte_exponent(fmaxf(exchange.largest[lane], exchange.largest[32 + lane])));
	shift = BYTE_ONE - (state->of - before);
	up = byte_power(BYTE_ONE + BYTE_UP - (state->of - BYTE_ONE));
	/* A row that has seen nothing yet keeps weights of 0, not exp2(−∞ + ∞). */
	base = larger == -INFINITY ? 0 : larger;
	factor = exp2_approximate(state->m - base);
	shift = shift > 0 ? shift : 0;
	grown = larger > state->m;
	state->m = larger;
	if (__any_sync(~0u, grown || shift != BYTE_ONE)) {
		float with = factor * byte_power(shift);

#pragma unroll
		for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
			for (uint32_t e = 0; e < 2; e++) {
				float its = hopper_spread(with, p, e);

				state->sums[p][e] *= hopper_spread(factor, p, e);
#pragma unroll
				for (uint32_t c = 0; c < DIM / 32; c++) {
					state->o[c][p][e] *= its;
					state->o[c][p][2 + e] *= its;
				}
			}
	}
#pragma unroll
	for (uint32_t i = 0; i < 4 && ALL; i++)
		v[i] *= up;
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++) {
		float weight[4][2];

#pragma unroll
		for (uint32_t e = 0; e < 2; e++) {
			float its = hopper_spread(base, p, e), its_factor = hopper_spread(state->factor, p, e);
			float its_up = ALL ? 1 : hopper_spread(up, p, e);

#pragma unroll
			for (uint32_t i = 0; i < 4; i++)
				weight[i][e] = exp2_approximate(__fmaf_rn(s[i / 2][p][i % 2 * 2 + e], its_factor, -its));
			state->sums[p][e] += (weight[0][e] + weight[1][e]) + (weight[2][e] + weight[3][e]);
#pragma unroll
			for (uint32_t i = 0; i < 4; i++)
				if (ALL)
					weight[i][e] *= v[i];
				else /* what a row does not see has no weight, whatever the scale beside it */
					weight[i][e] = left[p][e] > (int32_t)(8 * i) ? weight[i][e] * (v[i] * its_up) : 0;
		}
#pragma unroll
		for (uint32_t i = 0; i < 4; i++)
			*(uint32_t *)(exchange.weights + hopper_weight_at(mine + 8 * i, p) + lane % 4 * 4) =
			    byte_pair(weight[i][0], weight[i][1]);
	}
	named_barrier_sync(2 + warp / 2, 64);
}

/* o += v · p for chunks of columns from CHUNK on. */
template <class E, int DIM, int PARTS> __device__ static inline void byte_values(struct byte_state<DIM, PARTS> *state,
    uint32_t values, uint32_t chunk, uint32_t weights)
{
	uint32_t lane = threadIdx.x % 32;

#pragma unroll (PARTS < 4 ? 2 : 1) /* or registers spill */
	for (uint32_t i = 0; i < ATTENTION_PAGE / 16; i += 2) {
		uint32_t b[2][2 * PARTS];

		hopper_fetch_weights<PARTS>(weights, 16 * i, b);
#pragma unroll
		for (uint32_t n = 0; n < 2; n++)
#pragma unroll
			for (uint32_t c = 0; c < DIM / 32; c += 2) {
				uint32_t words[4];

				ldmatrix_x4_trans(words, values + byte_tile_at<DIM>(16 * (i + n) + lane % 16, chunk + c + lane / 16));
#pragma unroll
				for (uint32_t j = 0; j < 2; j++) {
					uint32_t a[4]; /* of columns 2g, and 2g + 1 */

					byte_halves<E>(__byte_perm(words[2 * j], 0, 0x3120), &a[0], &a[1]);
					byte_halves<E>(__byte_perm(words[2 * j + 1], 0, 0x3120), &a[2], &a[3]);
#pragma unroll
					for (uint32_t p = 0; p < PARTS; p++)
						mma_m16n8k16<__half>(state->o[c + j][p], a, b[n] + 2 * p);
				}
			}
	}
}

/* Pages of a run as they come: those of the warp's set.  BROUGHT counts pages of all units. */
template <class E, int DIM, int STAGES, int PARTS> __device__ static inline void byte_run(
    const struct hopper_shared_parts &shared, struct byte_state<DIM, PARTS> *state, int32_t begin, int32_t end, uint32_t brought)
{
	constexpr uint32_t page_bytes = 2 * ATTENTION_PAGE * (DIM + (uint32_t)sizeof(float));
	uint32_t pages = (uint32_t)(end - begin + ATTENTION_PAGE - 1) / ATTENTION_PAGE, pair = threadIdx.x / 64;
	uint32_t own = threadIdx.x / 32 % 2;
	char    *place = (char *)(shared.sums + pair * 16 * byte_row<DIM>); /* where the set's results will be */
	struct byte_exchange exchange = { (float *)(place + ATTENTION_PAGE * 64), (float *)(place + ATTENTION_PAGE * 64) + 64, place };

	for (uint32_t page = (pair - brought) % BYTE_SETS; page < pages; page += BYTE_SETS) {
		uint32_t     number = brought + page, stage = number % STAGES;
		int32_t      first = begin + (int32_t)page * ATTENTION_PAGE;
		const char  *keys = shared.ring + stage * page_bytes;
		const float *scales = (const float *)(keys + 2 * ATTENTION_PAGE * DIM);
		float        s[2][PARTS][4];

		barrier_wait(&shared.full[stage], number / STAGES % 2);
		byte_scores<E, DIM, PARTS>(state, shared_address(keys), 32 * own, s);
		if (first + ATTENTION_PAGE <= min(end, state->least) && __all_sync(~0u, state->of == __shfl_sync(~0u, state->of, 0)))
			byte_weigh<true, DIM, PARTS>(state, exchange, scales, first, 32 * own, end, s);
		else
			byte_weigh<false, DIM, PARTS>(state, exchange, scales, first, 32 * own, end, s);
		byte_values<E, DIM, PARTS>(state, shared_address(keys + ATTENTION_PAGE * DIM), own * (DIM / 32),
		    shared_address(exchange.weights));
		__syncwarp();
		if (threadIdx.x % 32 == 0)
			barrier_arrive(&shared.empty[stage]);
	}
}

/* The results of a warp's set, of tile TILE of rows, to shared memory: [warp / 2][16 rows][DIM]; m, then l of both warps. */
template <int DIM, int PARTS> __device__ static inline void byte_leave(const struct hopper_shared_parts &shared,
    const struct byte_state<DIM, PARTS> *state, uint32_t tile)
{
	uint32_t lane = threadIdx.x % 32, own = threadIdx.x / 32 % 2, pair = threadIdx.x / 64, row = hopper_row_kept();
	float    down = byte_power(state->of - BYTE_UP);
	float    l = hopper_keep<PARTS>(state->sums, 0, [](float x, float y) { return x + y; });
	float   *sums = shared.maxima + pair * 3 * 16;

	if (row / 16 == tile)
		sums[16 + 16 * own + row % 16] = l;
	if (own == 0 && lane / 16 == tile)
		sums[lane % 16] = state->m;
#pragma unroll
	for (uint32_t p = 0; p < PARTS; p++)
#pragma unroll
		for (uint32_t e = 0; e < 2; e++) {
			float its = hopper_spread(down, p, e);

			if (p / 2 != tile)
				continue;
#pragma unroll
			for (uint32_t c = 0; c < DIM / 32; c++)
				*(float2 *)(shared.sums + (pair * 16 + p % 2 * 8 + lane % 4 * 2 + e) * byte_row<DIM> + (own * (DIM / 32) + c) * 16 +
				    lane / 4 * 2) = make_float2(state->o[c][p][e] * its, state->o[c][p][2 + e] * its);
		}
}

/* What a thread has of a tile's results, once sets have been put together: of row threadIdx.x / 16, four columns of each 64. */
template <int DIM> struct byte_result {
	float m, l, o[DIM / 16];
};

template <int DIM> __device__ static inline struct byte_result<DIM> byte_result_of(const struct hopper_shared_parts &shared,
    uint32_t pair)
{
	uint32_t                row = pair * 16 + threadIdx.x / 16;
	const float            *sums = shared.maxima + pair * 3 * 16 + threadIdx.x / 16;
	struct byte_result<DIM> ret;

	ret.m = sums[0];
	ret.l = sums[16] + sums[32];
#pragma unroll
	for (uint32_t i = 0; i < DIM / 64; i++) {
		float4 o = *(const float4 *)(shared.sums + row * byte_row<DIM> + 64 * i + threadIdx.x % 16 * 4);

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

/* The SETS of a run of tile TILE, of which the first is that of warps 2 · PAIR and 2 · PAIR + 1, then those of the group before it:
 * FIRST, LAST: it is the first, or the last one of the unit. */
template <int DIM> __device__ static inline struct byte_result<DIM> byte_gather(const struct hopper_shared_parts &shared,
    uint32_t tile, uint32_t pair, uint32_t sets, bool first, bool last)
{
	float                  *total = shared.totals + tile * (DIM / 16 + 2) * HOPPER_CONSUMERS + threadIdx.x;
	struct byte_result<DIM> result = byte_result_of<DIM>(shared, pair % BYTE_SETS);

#pragma unroll
	for (uint32_t set = 1; set < BYTE_SETS; set++)
		if (set < sets)
			byte_put_together(&result, byte_result_of<DIM>(shared, (pair + set) % BYTE_SETS));
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

/* A unit's result. */
template <class T, int DIM, int PARTS, class E, int WIDTH> __device__ static inline void byte_unit(const struct hopper_job *job,
    const struct hopper_unit *unit, const struct hopper_shared_parts &shared, uint32_t *brought)
{
	constexpr uint32_t tiles = (WIDTH + 1) / 2;
	char   *q = (char *)unit + hopper_sizes<T, DIM, hopper_byte_sizes<T, DIM, PARTS>::held>::q;
	int32_t first = unit->unit.begin, last = unit->unit.end, run = (int32_t)unit->run;
	struct byte_state<DIM, WIDTH> state;

	byte_query<T, DIM, 16 * tiles>(q, job->scale * 1.44269504088896f);
	byte_begin(job, unit, q, &state);
	for (int32_t begin = first; begin < last; begin += run) {
		int32_t  end = last - begin < run ? last : begin + run;
		uint32_t pages = (uint32_t)(end - begin + ATTENTION_PAGE - 1) / ATTENTION_PAGE;

		byte_begin_run(&state);
		byte_run<E, DIM, hopper_byte_sizes<T, DIM, PARTS>::stages, WIDTH>(shared, &state, begin, end, *brought);
		named_barrier_sync(2 + threadIdx.x / 64, 64); /* both have done with weights, where results come now */
#pragma unroll
		for (uint32_t t = 0; t < tiles; t++) {
			byte_leave(shared, &state, t);
			named_barrier_sync(1, HOPPER_CONSUMERS);
			if (t * 2 + threadIdx.x / 128 < WIDTH) {
				struct byte_result<DIM> result = byte_gather<DIM>(shared, t, *brought, pages, begin == first, end == last);

				if (end == last)
					byte_store<T, DIM>(job, unit, t, result);
			}
			named_barrier_sync(1, HOPPER_CONSUMERS); /* the place of the results is free again */
		}
		*brought += pages;
	}
}

template <class T, int DIM, int PARTS, class E> struct hopper_byte_pages {
	typedef hopper_byte_sizes<T, DIM, PARTS> sizes;
	static constexpr int      parts = PARTS;
	static constexpr uint32_t stages = sizes::stages;
	__device__ static inline void bring(const struct hopper_job *job, const struct hopper_shared_parts &shared, uint32_t stage,
	    size_t unit, uint32_t, uint64_t policy)
	{
		barrier_expect(&shared.full[stage], sizes::page);
		bulk_copy(shared.ring + stage * sizes::page, (const char *)job->keys + unit * sizes::page, sizes::page, &shared.full[stage],
		    policy);
	}
	template <int WIDTH> __device__ static inline void consume(const struct hopper_job *job, const struct hopper_unit *unit,
	    const struct hopper_shared_parts &shared, uint32_t *brought)
	{
		byte_unit<T, DIM, PARTS, E, WIDTH>(job, unit, shared, brought);
	}
};

/* As many blocks as `units` were planned for, in passes of up to 8 · PARTS rows. */
template <class T, int DIM, int PARTS, class E> static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    hopper_byte_kernel(struct hopper_job job)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	constexpr int              held = hopper_byte_sizes<T, DIM, PARTS>::held;
	struct hopper_shared_parts shared = hopper_byte_parts<T, DIM, PARTS>(shared_memory());

	hopper_init(shared, hopper_byte_sizes<T, DIM, PARTS>::stages, 2);
	dependents_launch();
	if (threadIdx.x < HOPPER_CONSUMERS) {
		registers_raise<HOPPER_REGISTERS>();
		hopper_consume<T, DIM, held, hopper_byte_pages<T, DIM, PARTS, E>>(&job, shared);
		return;
	}
	registers_lower<HOPPER_REGISTERS_OTHERS>();
	if (threadIdx.x / 32 == HOPPER_WARPS)
		hopper_produce<hopper_byte_pages<T, DIM, PARTS, E>>(&job, shared);
	else
		hopper_serve<T, DIM, held>(&job, shared);
#endif
}

/* attention_byte.cu */
struct cuda_backend;
enum status attention_byte_launch(struct cuda_backend *cuda, const struct hopper_job *job, uint32_t dim, uint32_t parts,
    enum kv_type type);
enum status attention_byte_prepare(struct cuda_backend *cuda);

#endif
