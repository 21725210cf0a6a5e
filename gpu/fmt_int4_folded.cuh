/* fmt_int4_folded.cuh: products of slabs with so many rows that arithmetic takes the time: wgmma, whose first operand,
 * rows of the weight, is decoded into registers as int4_decode and octet_decode do, scale and rounding included.
 *
 * A sum is one chain over ascending columns, sixteen at a time, of weights rounded to T: the bits of decoding the slab and
 * multiplying by a kernel that does not divide the columns, as cuBLASLt's that linear.cu allows, which tests/gpu/invariance
 * checks.  So a step may take one or the other.
 *
 * A block computes 64 · GROUPS rows of the weight for TOKENS rows of the input.  GROUPS warpgroups multiply; one more gives up its
 * registers, and a warp of it copies: a lane a tile of the weight. */
#ifndef PENSTOCK_GPU_FMT_INT4_FOLDED_CUH
#define PENSTOCK_GPU_FMT_INT4_FOLDED_CUH

#include "gpu/fmt_int4.cuh"

/* Size of a block. */
struct int4_tiling {
	uint32_t tokens, groups;
};
__host__ __device__ static constexpr uint32_t int4_tiling_tiles(const struct int4_tiling &s) { return 4 * s.groups; }

static inline uint32_t int4_folded_threads(const struct int4_tiling &s) { return (s.groups + 1) * 128; }
static inline dim3 int4_folded_grid(const struct int4_task *t, const struct int4_tiling &s)
{
	return dim3((t->rows + s.tokens - 1) / s.tokens, (int4_tiles(t->w) + int4_tiling_tiles(s) - 1) / int4_tiling_tiles(s));
}

/* Shared memory: stages of a unit (inputs | tiles of weights), barriers.  Returns its size. */
static inline uint32_t int4_folded_size(struct int4_task *t, const struct int4_tiling &s)
{
	uint32_t each;

	t->split = {};
	t->stage_units = 1;
	t->stages = 0;
	int4_size(t, s.tokens);
	t->stage_bytes = (t->input_bytes + int4_tiling_tiles(s) * t->tile_bytes + 1023) / 1024 * 1024;
	each = t->stage_bytes + 2 * (uint32_t)sizeof(mbarrier);
	t->stages = INT4_SHARED_MOST / each < INT4_STAGES_MAX ? INT4_SHARED_MOST / each : (uint32_t)INT4_STAGES_MAX;
	return t->stages * each;
}

/* The warp that copies.  TILES from FIRST on. */
__device__ static inline void int4_folded_copy(const struct int4_task &t, const tensor_map *map, uint8_t *shared, uint32_t tokens,
    uint32_t first, uint32_t tiles, mbarrier *full, mbarrier *empty)
{
	const uint32_t lane = threadIdx.x % 32, row = blockIdx.x * tokens, bytes = tiles * t.tile_bytes + t.input_bytes;
	const uint64_t again = cache_evict_last();
	const uint8_t *from = NULL;
	uint32_t       unit_bytes = 0, stage = 0, phase = 1;

	if (lane < tiles) {
		from = int4_block_at(t.w, first + lane, 0).words;
		unit_bytes = (uint32_t)(t.units > 1 ? int4_block_at(t.w, first + lane, 1).words - from : 0);
	}
	auto inputs = [&](uint32_t unit, uint32_t to) {
		for (uint32_t i = 0; i < INT4_UNIT / INT4_BOX; i++)
			tma_load_2d(shared + to * t.stage_bytes + i * tokens * INT4_BOX * 2, map, (int32_t)(unit * INT4_UNIT + i * INT4_BOX),
			    (int32_t)row, &full[to], again);
	};
	for (uint32_t unit = 0; unit < t.units; unit++) {
		if (unit >= t.stages)
			barrier_wait(&empty[stage], phase);
		if (lane == 0)
			barrier_expect(&full[stage], bytes);
		__syncwarp();
		if (lane < tiles)
			bulk_copy(shared + stage * t.stage_bytes + t.input_bytes + lane * t.tile_bytes, from + (uint64_t)unit * unit_bytes,
			    t.tile_bytes, &full[stage], again);
		if (unit >= t.stages && lane == 0)
			inputs(unit, stage);
		if (unit + 1 == t.stages || (unit < t.stages && unit + 1 == t.units)) { /* the inputs of all so far */
			dependency_wait();
			for (uint32_t u = 0; lane == 0 && u <= unit; u++)
				inputs(u, u);
		}
		if (++stage == t.stages) {
			stage = 0;
			phase ^= 1;
		}
	}
}

/* How a weight is scaled and rounded to T, once; of four bits from an exact integer q − z. */
enum int4_fold {
	INT4_FOLD_SAME,         /* s is a T: a product */
	INT4_FOLD_SPLIT,        /* T is bfloat16, s of 16 bits = h + l, both bfloat16: (q − z) · h + (q − z) · l, the last exact */
	INT4_FOLD_OFFSETS,      /* s · q + o in float32, and then rounded */
	INT4_FOLD_EIGHT,        /* codes of eight bits: s · q in float32, and then rounded */
	INT4_FOLD_EIGHT_OFFSETS /* s · q + o */
};
__device__ static inline void int4_pair_of(float low, float high, __nv_bfloat162 *ret) { *ret = __floats2bfloat162_rn(low, high); }
__device__ static inline void int4_pair_of(float low, float high, __half2 *ret) { *ret = __floats2half2_rn(low, high); }

template <class T, enum int4_fold FOLD> struct int4_folder {
	typedef typename int4_type<T>::pair pair;
	static constexpr bool bfloat = int4_type<T>::base == int4_type<__nv_bfloat16>::base;
	float s[2], o[2];       /* OFFSETS */
	pair  high[2], low[2];  /* else */

	__device__ void set(const float scales[2], const float offsets[2])
	{
#pragma unroll
		for (int i = 0; i < 2; i++) {
			T h = from_float<T>(scales[i]), l = from_float<T>(to_float(h) == scales[i] ? 0 : scales[i] - to_float(h));

			s[i] = scales[i];
			o[i] = offsets[i];
			high[i] = { h, h };
			low[i] = { l, l };
		}
	}
	/* Two values of row I of a lane's two. */
	__device__ uint32_t of(uint32_t word, int i) const
	{
		pair x;

		memcpy(&x, &word, sizeof x);
		if constexpr (FOLD == INT4_FOLD_SAME)
			x = __hmul2(x, high[i]);
		else if constexpr (FOLD == INT4_FOLD_SPLIT)
			x = __hfma2(x, high[i], __hmul2(x, low[i]));
		else
			x = { from_float<T>(fmaf(bfloat ? __uint_as_float(word << 16) : int4_from_half(word), s[i], o[i])),
				from_float<T>(fmaf(bfloat ? __uint_as_float(word & 0xffff0000) : int4_from_half(word >> 16), s[i], o[i])) };
		memcpy(&word, &x, sizeof x);
		return word;
	}
	/* Words of eight bits as the first operand: a code without its sign is put behind 2²³. */
	__device__ void eight(uint32_t first, uint32_t second, uint32_t a[4]) const
	{
		const uint32_t words[2] = { first ^ 0x80808080, second ^ 0x80808080 };

#pragma unroll
		for (int f = 0; f < 4; f++) {
			const int row = f & 1;
			float     v[2];
			pair      x;

#pragma unroll
			for (int i = 0; i < 2; i++) {
				float q = __uint_as_float(__byte_perm(words[f / 2], 0x4b000000, 0x7440u + (uint32_t)(2 * i + row))) - 8388736;

				v[i] = FOLD == INT4_FOLD_EIGHT_OFFSETS ? fmaf(q, s[row], o[row]) : q * s[row];
			}
			int4_pair_of(v[0], v[1], &x);
			memcpy(&a[f], &x, sizeof x);
		}
	}
};

/* What a lane loads of two steps. */
template <bool EIGHT> struct int4_words {
	typedef uint2 type;
};
template <> struct int4_words<true> {
	typedef uint4 type;
};

/* Y = X · Wᵀ for TOKENS rows of X (blockIdx.x) and a block's rows of W (blockIdx.y). */
template <class T, int TOKENS, int GROUPS, int GROUP, enum int4_fold FOLD> __global__ void
    __launch_bounds__((GROUPS + 1) * 128, 1) int4_folded(const __grid_constant__ tensor_map inputs,
        const __grid_constant__ struct int4_task t)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	constexpr uint32_t TILES = 4 * GROUPS;
	constexpr int  PARTS = 4; /* of a unit; a part's operands are the same registers in every unit */
	constexpr bool EIGHT = FOLD >= INT4_FOLD_EIGHT, OFFSETS = FOLD == INT4_FOLD_OFFSETS || FOLD == INT4_FOLD_EIGHT_OFFSETS;
	constexpr bool DRAINS = GROUP != INT4_UNIT; /* what is multiplied ends with a unit: else the compiler serialises it */
	uint8_t       *shared = (uint8_t *)shared_memory();
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.y * TILES;
	const uint32_t tiles = int4_tiles(t.w) - first < TILES ? int4_tiles(t.w) - first : TILES;
	mbarrier      *full = (mbarrier *)(shared + t.stages * t.stage_bytes), *empty = full + t.stages;

	dependents_launch();
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < t.stages; i++) {
			barrier_init(&full[i], 1);
			barrier_init(&empty[i], 4 * GROUPS);
		}
		fence_barrier_init();
	}
	__syncthreads();
	if (warp >= 4 * GROUPS) {
		if constexpr (GROUPS > 1)
			registers_lower<24>();
		if (warp == 4 * GROUPS)
			int4_folded_copy(t, &inputs, shared, TOKENS, first, tiles, full, empty);
		return;
	}
	if constexpr (GROUPS > 1)
		registers_raise<GROUPS == 3 ? 160 : 240>();
	/* A tile that is not there computes the last one once more. */
	const uint32_t place = lane / 4 * 2, block = t.input_bytes + (warp < tiles ? warp : tiles - 1) * t.tile_bytes;
	uint32_t       stage = 0, phase = 0, zero[2], a[PARTS][2][4];
	typename int4_words<EIGHT>::type words[PARTS];
	float          sums[TOKENS / 2];
	struct int4_folder<T, FOLD> folder;

	dependency_wait();
#pragma unroll 1
	for (uint32_t unit = 0; unit < t.units; unit++) {
		const uint8_t *weights = shared + stage * t.stage_bytes + block;
		const uint32_t x = shared_address(shared + stage * t.stage_bytes);

		barrier_wait(&full[stage], phase);
#pragma unroll
		for (int i = 0; i < PARTS; i++)
			words[i] = ((const typename int4_words<EIGHT>::type *)weights)[i * 32 + lane];
#pragma unroll
		for (int i = 0; i < PARTS; i++) {
			if (i * 32 % GROUP == 0) {
				float s[2], o[2] = { 0, 0 };

				if constexpr (EIGHT) {
					octet_scales_of<GROUP, OFFSETS>(t.w, weights + 2 * INT4_WORDS_BYTES, (uint32_t)(i * 32 / GROUP), place,
					    folder.s, folder.o);
				} else if constexpr (OFFSETS) {
					zero[0] = zero[1] = int4_type<T>::base * 0x10001;
					int4_scales_of<true>(t.w, weights + INT4_WORDS_BYTES, (uint32_t)(i * 32 / GROUP), place, s, o);
				} else {
					const struct int4_raw raw = int4_fetch(t, weights, (uint32_t)(i * 32 / GROUP), place);

					int4_zeros_of<T>(t, raw, zero);
					int4_scales_of(t, raw, s);
				}
				if constexpr (!EIGHT)
					folder.set(s, o);
			}
			if constexpr (!DRAINS) {
				wgmma_wait<PARTS - 1>();
				if (i == PARTS - 1 && unit > 0 && lane == 0) /* what the unit before took was multiplied */
					barrier_arrive(&empty[stage ? stage - 1 : t.stages - 1]);
			}
#pragma unroll
			for (int step = 0; step < 2; step++) {
				if constexpr (EIGHT) {
					if (GROUP == 16 && step)
						octet_scales_of<GROUP, OFFSETS>(t.w, weights + 2 * INT4_WORDS_BYTES, (uint32_t)(2 * i + step), place,
						    folder.s, folder.o);
					folder.eight(step ? words[i].z : words[i].x, step ? words[i].w : words[i].y, a[i][step]);
				} else {
					int4_operand<T>(step ? words[i].y : words[i].x, zero, a[i][step]);
#pragma unroll
					for (int f = 0; f < 4; f++)
						a[i][step][f] = folder.of(a[i][step][f], f & 1);
				}
			}
			wgmma_fence();
#pragma unroll
			for (int step = 0; step < 2; step++)
				wgmma_rs<T, TOKENS>(sums, a[i][step], wgmma_descriptor(x + i / 2 * (TOKENS * INT4_BOX * 2) + (i % 2 * 2 + step) *
				    32, 16, 1024, SWIZZLE_128), unit > 0 || i + step > 0);
			wgmma_commit();
		}
		if constexpr (DRAINS) {
			wgmma_wait<0>();
			if (lane == 0)
				barrier_arrive(&empty[stage]);
		}
		if (++stage == t.stages) {
			stage = 0;
			phase ^= 1;
		}
	}
	wgmma_wait<0>();
	wgmma_settle(sums);
	if (warp < tiles)
#pragma unroll
		for (int j = 0; j < TOKENS / 8; j++)
			int4_store<T>(t, (first + warp) * INT4_TILE, blockIdx.x * TOKENS + j * 8, lane, &sums[4 * j]);
#endif
}

/* Sizes of blocks that there are. */
static constexpr struct int4_tiling int4_tilings[] = { { 128, 1 }, { 128, 2 }, { 128, 3 }, { 256, 1 }, { 256, 2 } };

/* The one that ends first on BLOCKS multiprocessors: rounds of blocks times the cycles that sixteen columns take, a line through
 * what was measured on an H200. */
static inline struct int4_tiling int4_tiling_for(const struct int4_slab *w, uint32_t rows, uint32_t blocks)
{
	struct int4_tiling best = {};
	uint64_t           least = UINT64_MAX;

	for (const struct int4_tiling &s : int4_tilings) {
		uint64_t count = (uint64_t)((rows + s.tokens - 1) / s.tokens) * ((int4_tiles(*w) + int4_tiling_tiles(s) - 1) /
		    int4_tiling_tiles(s));
		uint64_t cost = (count + blocks - 1) / blocks * (75 + s.groups * (s.tokens / 2 + 15));

		if (cost < least) {
			least = cost;
			best = s;
		}
	}
	return best;
}

/* LAUNCH(kernel) for the instance of that tiling. */
template <class T, int GROUP, enum int4_fold FOLD, class L> static inline auto int4_folded_instance_of(const struct int4_tiling &s,
    L launch)
{
	if (s.tokens == 256)
		return s.groups == 1 ? launch(int4_folded<T, 256, 1, GROUP, FOLD>) : launch(int4_folded<T, 256, 2, GROUP, FOLD>);
	if (s.groups == 1)
		return launch(int4_folded<T, 128, 1, GROUP, FOLD>);
	return s.groups == 2 ? launch(int4_folded<T, 128, 2, GROUP, FOLD>) : launch(int4_folded<T, 128, 3, GROUP, FOLD>);
}
template <class T, class L> static inline auto int4_folded_instance(const struct int4_slab &w, const struct int4_tiling &s,
    L launch)
{
	constexpr enum int4_fold fold = int4_type<T>::base == int4_type<__nv_bfloat16>::base ? INT4_FOLD_SPLIT : INT4_FOLD_SAME;

	if (w.eight && int4_has_offsets(w))
		return int4_folded_instance_of<T, 32, INT4_FOLD_EIGHT_OFFSETS>(s, launch);
	if (w.eight)
		return w.group == 16 ? int4_folded_instance_of<T, 16, INT4_FOLD_EIGHT>(s, launch) :
		    int4_folded_instance_of<T, 32, INT4_FOLD_EIGHT>(s, launch);
	if (int4_has_offsets(w))
		return int4_folded_instance_of<T, INT4_GROUP_MIN, INT4_FOLD_OFFSETS>(s, launch);
	return w.group == INT4_GROUP_MIN ? int4_folded_instance_of<T, INT4_GROUP_MIN, fold>(s, launch) :
	    int4_folded_instance_of<T, INT4_UNIT, fold>(s, launch);
}

/* Whether there is one that multiplies W by activations of type T. */
template <class T> static inline bool int4_folded_takes(const struct int4_slab &w)
{
	const bool bfloat = int4_type<T>::base == int4_type<__nv_bfloat16>::base;

	return w.eight || int4_has_offsets(w) || w.scales == INT4_F16 || (bfloat && w.scales == INT4_BF16);
}

static inline struct tensor_layout int4_folded_inputs(const struct int4_task *t, enum tensor_type type, const void *x,
    uint32_t stride, const struct int4_tiling &s)
{
	return { type, 2, x, { t->w.columns, t->rows }, { 0, (uint64_t)stride * 2 }, { INT4_BOX, s.tokens }, SWIZZLE_128 };
}

#endif
