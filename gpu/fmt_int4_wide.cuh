/* fmt_int4_wide.cuh: products of four-bit weights with more rows than mma.sync takes at the speed of memory: wgmma, whose first
 * operand, 64 rows of the weight, is decoded into registers, and whose second one, the inputs, lies in shared memory.
 *
 * The slab and the order of every sum are those of fmt_int4.cuh: eight steps of a unit into fresh sums, these times their scales
 * onto those of a share of units, the shares after each other.
 *
 * Two or three warpgroups multiply.  Four tiles are a warpgroup's 64 rows; panels of more than four tiles are divided among them,
 * of smaller ones each of two takes half of the shares.  One more warpgroup gives up its registers; one thread of it copies, or
 * four. */
#ifndef PENSTOCK_GPU_FMT_INT4_WIDE_CUH
#define PENSTOCK_GPU_FMT_INT4_WIDE_CUH

#include "gpu/fmt_int4.cuh"

enum { INT4_WIDE_TILES = 4 };

/* Warpgroups that multiply panels of so many tiles. */
static constexpr uint32_t int4_wide_groups(uint32_t tiles) { return tiles > INT4_LARGE_TILES ? 3 : 2; }
static inline uint32_t int4_wide_threads(const struct int4_task *t) { return (int4_wide_groups(int4_panel_tiles(t->w)) + 1) * 128; }

/* Units in the order in which a warpgroup takes them: shares [share, end), each from its first unit on. */
struct int4_walk {
	uint32_t share, end, unit;
};
__device__ static inline struct int4_walk int4_walk_of(const struct int4_task &t, uint32_t half, uint32_t halves)
{
	uint32_t middle = (t.split.k_warps + 1) / 2, first = half ? middle : 0;

	return { first, halves > 1 && !half ? middle : t.split.k_warps, first };
}
__device__ static inline void int4_walk_on(const struct int4_task &t, struct int4_walk *walk)
{
	walk->unit += t.split.k_warps;
	if (walk->unit >= t.units)
		walk->unit = ++walk->share;
}

/* Shared memory: stages of a unit (inputs | weights), then what the second half of the shares sums, barriers. */
static inline uint32_t int4_wide_size(struct int4_task *t, uint32_t rows)
{
	uint32_t halves = int4_halves_of(&t->w);

	t->split = int4_split_of(&t->w);
	t->stage_units = 1;
	t->stages = 0;
	int4_size(t, rows);
	t->sum_bytes = halves > 1 ? (uint32_t)INT4_WIDE_TILES * INT4_TILE * rows * 4 : 0;
	t->stages = (INT4_SHARED_MOST - t->sum_bytes) / (t->stage_bytes + 2 * (uint32_t)sizeof(mbarrier));
	t->stages = t->stages < INT4_STAGES_MAX ? t->stages : (uint32_t)INT4_STAGES_MAX;
	t->stages = t->stages / halves * halves; /* a stage is always the same half's */
	t->ahead = t->stages < 2 ? t->stages : 2;
	return t->stages * (t->stage_bytes + 2 * (uint32_t)sizeof(mbarrier)) + t->sum_bytes;
}

/* What a thread copies.  Of panels without halves one copies all; each half has two, for one was slower than their warpgroups. */
enum int4_copies { INT4_COPIES_WEIGHTS, INT4_COPIES_INPUTS, INT4_COPIES_BOTH };

/* A thread that copies all units, or those of a half: weights as soon as there is room, inputs once the kernel before is done. */
template <enum int4_copies WHAT> __device__ static inline void int4_wide_copy(const struct int4_task &t, const tensor_map *map,
    uint8_t *shared, uint32_t rows, uint32_t half, uint32_t halves, mbarrier *full, mbarrier *empty)
{
	constexpr bool WEIGHTS = WHAT != INT4_COPIES_INPUTS, INPUTS = WHAT != INT4_COPIES_WEIGHTS;
	const uint64_t once = cache_evict_first(), again = cache_evict_last();
	uint32_t       stage = half, phase = 1, count = 0;
	bool           ready = false;

	if (!WEIGHTS)
		dependency_wait();
	for (uint32_t panel = blockIdx.x; panel < t.w.panels; panel += gridDim.x) {
		const uint32_t first = int4_panel_first(t.w, panel), unit_bytes = (int4_panel_first(t.w, panel + 1) - first) * t.tile_bytes;
		const uint8_t *from = t.w.data + (uint64_t)first * t.units * t.tile_bytes;
		struct int4_walk walk = int4_walk_of(t, half, halves);

		while (walk.share < walk.end) {
			uint8_t *at = shared + stage * t.stage_bytes;

			if (count * halves >= t.stages)
				barrier_wait(&empty[stage], phase);
			barrier_expect(&full[stage], (WEIGHTS ? unit_bytes : 0) + (INPUTS ? t.input_bytes : 0));
			if (WEIGHTS)
				bulk_copy(at + t.input_bytes, from + (uint64_t)walk.unit * unit_bytes, unit_bytes, &full[stage],
				    blockIdx.y + 1 == gridDim.y ? once : again);
			count++;
			if (INPUTS && (!WEIGHTS || ready))
				int4_fetch_inputs(t, map, at, rows, walk.unit, &full[stage], again);
			int4_walk_on(t, &walk);
			if (WEIGHTS && !ready && (count == t.ahead || (walk.share >= walk.end && panel + gridDim.x >= t.w.panels))) {
				struct int4_walk before = int4_walk_of(t, half, halves);

				dependency_wait();
				ready = true;
				for (uint32_t k = 0; INPUTS && k < count; k++) { /* the inputs of all so far */
					int4_fetch_inputs(t, map, shared + k * t.stage_bytes, rows, before.unit, &full[k], again);
					int4_walk_on(t, &before);
					if (before.share >= before.end)
						before = int4_walk_of(t, half, halves);
				}
			}
			stage += halves;
			if (stage >= t.stages) {
				stage -= t.stages;
				phase ^= 1;
			}
		}
	}
}

/* int4_zeros_of and int4_scales_of without branches, which wgmma's few warps wait for: all three kinds of scales are computed.  A z
 * has four bits: with the upper half of the base it is a number. */
template <class T> __device__ static inline void int4_zeros_straight(const struct int4_task &t, const struct int4_raw &raw,
    uint32_t zero[2])
{
	const uint32_t z = t.zero_bytes ? raw.zeros : 0x0808;

	zero[0] = __byte_perm(z, int4_type<T>::base, 0x5050);
	zero[1] = __byte_perm(z, int4_type<T>::base, 0x5151);
}
__device__ static inline void int4_scales_straight(const struct int4_task &t, const struct int4_raw &raw, float s[2])
{
	const bool  wide = t.w.scales == INT4_F32, half = t.w.scales == INT4_F16;
	const float halves[2] = { int4_from_half(raw.scales[0]), int4_from_half(raw.scales[0] >> 16) };
	const float others[2] = { __uint_as_float(raw.scales[0] << (wide ? 0 : 16)), __uint_as_float(raw.scales[1] & (wide ? ~0u :
	    0xffff0000)) };

	s[0] = half ? halves[0] : others[0];
	s[1] = half ? halves[1] : others[1];
}

/* A lane's words of a tile's group, and what it has beside them. */
template <int GROUP> struct int4_wide_words {
	uint2           words[GROUP / 32];
	struct int4_raw raw;
};
template <int GROUP> __device__ static inline void int4_wide_load(const struct int4_task &t, const uint8_t *tile, uint32_t group,
    uint32_t lane, struct int4_wide_words<GROUP> &to)
{
#pragma unroll
	for (int i = 0; i < GROUP / 32; i++)
		to.words[i] = *(const uint2 *)(tile + (group * (GROUP / 32) + i) * (INT4_WORDS_BYTES / 4) + lane * 8);
	to.raw = int4_fetch(t, tile, group, lane / 4 * 2);
}

/* SUMS += EACH times 64 rows of a unit, of which this warp's 16 lie at BLOCK in it, times the inputs at X.  Two steps are decoded
 * while the two before are multiplied; a group's first two before its predecessor is through. */
template <class T, int ROWS, int EACH, int GROUP> __device__ static inline void int4_wide_unit(const struct int4_task &t,
    const uint8_t *unit, const uint32_t *block, uint32_t x, uint32_t lane, float (&sums)[EACH][ROWS / 2])
{
	constexpr int  PIECES = GROUP / 32, GROUPS = INT4_UNIT / GROUP, COUNT = EACH * GROUPS;
	const uint64_t inputs = wgmma_descriptor(x, 16, 1024, SWIZZLE_128);
	uint32_t       a[4][2][4], zero[2];
	float          g[ROWS / 2], s[2][2];
	struct int4_wide_words<GROUP> now;

	int4_wide_load<GROUP>(t, unit + block[0], 0, lane, now);
#pragma unroll
	for (int i = 0; i <= COUNT; i++) {
		const int group = i % GROUPS, before = (i - 1) / GROUPS;

#pragma unroll
		for (int piece = 0; piece < PIECES; piece++) {
			uint32_t(&operands)[2][4] = a[(i * PIECES + piece) % 4];

			if (i < COUNT) {
				if (piece == 0) {
					if (i > 0)
						wgmma_wait<PIECES - 1>(); /* the last one of these registers */
					int4_zeros_straight<T>(t, now.raw, zero);
					int4_scales_straight(t, now.raw, s[i % 2]);
				}
				int4_operand<T>(now.words[piece].x, zero, operands[0]);
				int4_operand<T>(now.words[piece].y, zero, operands[1]);
			}
			if (i > 0 && piece == 0) {
				wgmma_wait<0>();
				wgmma_settle(g);
#pragma unroll
				for (int k = 0; k < ROWS / 2; k++)
					sums[before][k] = fmaf(s[(i - 1) % 2][k / 2 % 2], g[k], sums[before][k]);
			}
			if (i == COUNT)
				break;
			if (i + 1 < COUNT && piece + 1 == PIECES)
				int4_wide_load<GROUP>(t, unit + block[(i + 1) / GROUPS], (i + 1) % GROUPS, lane, now);
			wgmma_fence();
#pragma unroll
			for (int step = 0; step < 2; step++) {
				const int at = (group * PIECES + piece) * 2 + step;

				wgmma_rs<T, ROWS>(g, operands[step], inputs + (at / 4 * (ROWS * INT4_BOX * 2) + at % 4 * 32) / 16, piece + step >
				    0);
			}
			wgmma_commit();
		}
	}
}

/* The same group by group: with many rows the other warpgroups' products cover what one decodes, and registers are few. */
template <class T, int ROWS, int EACH, int GROUP> __device__ static inline void int4_wide_plain(const struct int4_task &t,
    const uint8_t *unit, const uint32_t *block, uint32_t x, uint32_t lane, float (&sums)[EACH][ROWS / 2])
{
	constexpr int  STEPS = GROUP / 16;
	const uint64_t inputs = wgmma_descriptor(x, 16, 1024, SWIZZLE_128);

#pragma unroll
	for (int i = 0; i < EACH * (INT4_UNIT / GROUP); i++) {
		const int group = i % (INT4_UNIT / GROUP), r = i / (INT4_UNIT / GROUP);
		struct int4_wide_words<GROUP> now;
		uint32_t zero[2], a[STEPS][4];
		float    g[ROWS / 2], s[2];

		int4_wide_load<GROUP>(t, unit + block[r], group, lane, now);
		int4_zeros_straight<T>(t, now.raw, zero);
#pragma unroll
		for (int step = 0; step < STEPS; step++)
			int4_operand<T>(step % 2 ? now.words[step / 2].y : now.words[step / 2].x, zero, a[step]);
		wgmma_fence();
#pragma unroll
		for (int step = 0; step < STEPS; step++) {
			const int at = group * STEPS + step;

			wgmma_rs<T, ROWS>(g, a[step], inputs + (at / 4 * (ROWS * INT4_BOX * 2) + at % 4 * 32) / 16, step > 0);
		}
		wgmma_commit();
		int4_scales_straight(t, now.raw, s);
		wgmma_wait<0>();
		wgmma_settle(g);
#pragma unroll
		for (int k = 0; k < ROWS / 2; k++)
			sums[r][k] = fmaf(s[k / 2 % 2], g[k], sums[r][k]);
	}
}

/* Y = X · Wᵀ for ROWS rows of X a block; panels of up to 4 · GROUPS · EACH tiles, of up to 4 where there are HALVES; SHARES:
 * the split's k_warps are more than one. */
template <class T, int ROWS, int EACH, int GROUPS, bool HALVES, bool SHARES, int GROUP> __global__ void
    __launch_bounds__((GROUPS + 1) * 128, 1) int4_wide(const __grid_constant__ tensor_map inputs,
        const __grid_constant__ struct int4_task t)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	constexpr uint32_t halves = HALVES ? 2 : 1;
	uint8_t       *shared = (uint8_t *)shared_memory();
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp / 4;
	float         *partial = (float *)(shared + t.stages * t.stage_bytes);
	mbarrier      *full = (mbarrier *)((uint8_t *)partial + t.sum_bytes), *empty = full + t.stages;

	dependents_launch();
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < t.stages; i++) {
			barrier_init(&full[i], HALVES ? 2 : 1);
			barrier_init(&empty[i], HALVES ? 4 : 4 * GROUPS);
		}
		fence_barrier_init();
	}
	__syncthreads();
	if (warp >= 4 * GROUPS) {
		registers_lower<GROUPS == 3 ? 32 : 40>();
		if (lane == 0 && HALVES && warp % 2 == 0)
			int4_wide_copy<INT4_COPIES_WEIGHTS>(t, &inputs, shared, ROWS, warp / 2 % 2, halves, full, empty);
		else if (lane == 0 && HALVES)
			int4_wide_copy<INT4_COPIES_INPUTS>(t, &inputs, shared, ROWS, warp / 2 % 2, halves, full, empty);
		else if (lane == 0 && warp == 4 * GROUPS)
			int4_wide_copy<INT4_COPIES_BOTH>(t, &inputs, shared, ROWS, 0, 1, full, empty);
		return;
	}
	registers_raise<GROUPS == 3 ? 160 : 232>();
	uint32_t stage = HALVES ? half : 0, phase = 0;

	dependency_wait();
	for (uint32_t panel = blockIdx.x; panel < t.w.panels; panel += gridDim.x) {
		const uint32_t   first = int4_panel_first(t.w, panel), tiles = int4_panel_first(t.w, panel + 1) - first;
		struct int4_walk walk = int4_walk_of(t, HALVES ? half : 0, halves);
		float            sums[EACH][ROWS / 2], totals[SHARES ? EACH : 1][ROWS / 2];
		uint32_t         block[EACH];

#pragma unroll
		for (int r = 0; r < EACH; r++) { /* a tile that is not there computes the last one once more */
			uint32_t tile = (HALVES ? 0 : half * 4) + r * GROUPS * 4 + warp % 4;

			block[r] = (tile < tiles ? tile : tiles - 1) * t.tile_bytes;
#pragma unroll
			for (int i = 0; i < ROWS / 2; i++) {
				sums[r][i] = 0;
				totals[SHARES ? r : 0][i] = 0;
			}
		}
		while (walk.share < walk.end) {
			const uint8_t *at = shared + stage * t.stage_bytes;
			/* By way of lane 0 what differs between warpgroups: what is known to be the same in all lanes stays in uniform
			 * registers, where wgmma wants it. */
			const uint32_t x = HALVES ? __shfl_sync(~0u, shared_address(at), 0) : shared_address(at);

			barrier_wait(&full[stage], phase);
			if constexpr (ROWS <= 32)
				int4_wide_unit<T, ROWS, EACH, GROUP>(t, at + t.input_bytes, block, x, lane, sums);
			else
				int4_wide_plain<T, ROWS, EACH, GROUP>(t, at + t.input_bytes, block, x, lane, sums);
			__syncwarp();
			if (lane == 0)
				barrier_arrive(&empty[stage]);
			stage += halves;
			if (stage >= t.stages) {
				stage -= t.stages;
				phase ^= 1;
			}
			const uint32_t share = walk.share;

			int4_walk_on(t, &walk);
			if (SHARES && walk.share != share) {
#pragma unroll
				for (int r = 0; r < EACH; r++)
#pragma unroll
					for (int i = 0; i < ROWS / 2; i++) {
						totals[SHARES ? r : 0][i] += sums[r][i];
						sums[r][i] = 0;
					}
			}
		}
		if (HALVES) { /* the second one's sums come to the first one */
#pragma unroll
			for (int i = 0; i < ROWS / 2; i++)
				if (half)
					partial[i * 128 + threadIdx.x % 128] = (SHARES ? totals : sums)[0][i];
			named_barrier_sync(1, 256);
#pragma unroll
			for (int i = 0; i < ROWS / 2; i++)
				if (!half)
					(SHARES ? totals : sums)[0][i] += partial[i * 128 + threadIdx.x];
		}
#pragma unroll
		for (int r = 0; r < EACH; r++) {
			uint32_t tile = (HALVES ? 0 : half * 4) + r * GROUPS * 4 + warp % 4;

			if (tile < tiles && !(HALVES && half))
#pragma unroll
				for (int j = 0; j < ROWS / 8; j++)
					int4_store<T>(t, (first + tile) * INT4_TILE, blockIdx.y * ROWS + j * 8, lane, &(SHARES ? totals :
					    sums)[r][4 * j]);
		}
	}
#endif
}

/* Whether it multiplies W: offsets would take sums of the inputs beside the others, and codes have four bits. */
static inline bool int4_wide_takes(const struct int4_slab *w)
{
	return !int4_has_offsets(*w) && !w->eight;
}
/* And whether it is the faster one for ROWS. */
static inline bool int4_wide_suits(const struct int4_slab *w, uint32_t rows)
{
	const uint32_t least = int4_panel_tiles(*w) > INT4_LARGE_TILES ? 8 : int4_takes_32(*w) ? 2 * INT4_NARROW_ROWS :
	    INT4_NARROW_ROWS;

	return int4_wide_takes(w) && rows > least;
}

/* LAUNCH(kernel, rows of a block) for the instance that multiplies T. */
template <class T, int ROWS, int GROUP, class L> static inline auto int4_wide_instance_of(const struct int4_task &t, L launch)
{
	const uint32_t tiles = int4_panel_tiles(t.w);

	if (tiles <= 4)
		return launch(int4_wide<T, ROWS, 1, 2, true, true, GROUP>, (uint32_t)ROWS);
	if (tiles <= 8)
		return launch(int4_wide<T, ROWS, 1, 2, false, true, GROUP>, (uint32_t)ROWS);
	if (tiles <= INT4_LARGE_TILES)
		return launch(int4_wide<T, ROWS, 2, 2, false, true, GROUP>, (uint32_t)ROWS);
	return launch(int4_wide<T, ROWS, 2, 3, false, false, GROUP>, (uint32_t)ROWS);
}
template <class T, class L> static inline auto int4_wide_instance(const struct int4_task &t, L launch)
{
	if (t.rows <= 16 && int4_panel_tiles(t.w) > INT4_LARGE_TILES)
		return t.w.group == INT4_GROUP_MIN ? launch(int4_wide<T, 16, 2, 3, false, false, INT4_GROUP_MIN>, 16u) :
		    launch(int4_wide<T, 16, 2, 3, false, false, INT4_UNIT>, 16u);
	if (t.w.group == INT4_GROUP_MIN)
		return t.rows <= 32 ? int4_wide_instance_of<T, 32, INT4_GROUP_MIN>(t, launch) :
		    int4_wide_instance_of<T, 64, INT4_GROUP_MIN>(t, launch);
	return t.rows <= 32 ? int4_wide_instance_of<T, 32, INT4_UNIT>(t, launch) : int4_wide_instance_of<T, 64, INT4_UNIT>(t, launch);
}

#endif
