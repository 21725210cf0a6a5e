/* fmt_int4_wide.cuh: products of four-bit weights with more rows than mma.sync takes at the speed of memory: wgmma, whose first
 * operand, 64 rows of the weight, is decoded into registers, and whose second one, the inputs, lies in shared memory.
 *
 * The slab and the order of every sum are those of fmt_int4.cuh: eight steps of a unit into fresh sums, these times their scales
 * onto those of a share of units, the shares after each other.
 *
 * Two or three warpgroups multiply.  Four tiles are a warpgroup's 64 rows; panels of more than four tiles are divided among them,
 * of smaller ones each of two takes half of the shares.  One more warpgroup gives up its registers; one thread of it copies. */
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

/* What a block's stages hold, one after the other: units of its panels, where there are halves alternately theirs. */
struct int4_feed {
	uint32_t         panel;
	struct int4_walk next, other;
};
__device__ static inline struct int4_feed int4_feed_of(const struct int4_task &t, uint32_t panel, uint32_t halves)
{
	return { panel, int4_walk_of(t, 0, halves), int4_walk_of(t, halves > 1, halves) };
}
__device__ static inline bool int4_feed_holds(const struct int4_feed &feed) { return feed.next.share < feed.next.end; }
__device__ static inline void int4_feed_on(const struct int4_task &t, uint32_t halves, struct int4_feed *feed)
{
	if (int4_feed_holds(*feed))
		int4_walk_on(t, &feed->next);
	if (halves > 1) {
		struct int4_walk walk = feed->next;

		feed->next = feed->other;
		feed->other = walk;
	}
	if (feed->next.share >= feed->next.end && (halves == 1 || feed->other.share >= feed->other.end))
		*feed = int4_feed_of(t, feed->panel + gridDim.x, halves);
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

/* The thread that copies: weights as soon as there is room, inputs once the kernel before is done. */
__device__ static inline void int4_wide_copy(const struct int4_task &t, const tensor_map *map, uint8_t *shared, uint32_t rows,
    uint32_t halves, mbarrier *full, mbarrier *empty)
{
	const uint64_t   once = cache_evict_first(), again = cache_evict_last();
	struct int4_feed feed = int4_feed_of(t, blockIdx.x, halves);
	uint32_t         stage = 0, phase = 1, panel = blockIdx.x - gridDim.x, unit_bytes = 0; /* of no panel yet */
	const uint8_t   *from = NULL;

	for (uint32_t i = 0; feed.panel < t.w.panels; i++) {
		if (feed.panel != panel) {
			uint32_t first = int4_panel_first(t.w, feed.panel);

			panel = feed.panel;
			unit_bytes = (int4_panel_first(t.w, panel + 1) - first) * t.tile_bytes;
			from = t.w.data + (uint64_t)first * t.units * t.tile_bytes;
		}
		if (int4_feed_holds(feed)) {
			uint8_t *at = shared + stage * t.stage_bytes;

			if (i >= t.stages)
				barrier_wait(&empty[stage], phase);
			barrier_expect(&full[stage], unit_bytes + t.input_bytes);
			bulk_copy(at + t.input_bytes, from + (uint64_t)feed.next.unit * unit_bytes, unit_bytes, &full[stage],
			    blockIdx.y + 1 == gridDim.y ? once : again);
			if (i >= t.ahead)
				int4_fetch_inputs(t, map, at, rows, feed.next.unit, &full[stage], again);
		}
		int4_feed_on(t, halves, &feed);
		if (i + 1 == t.ahead || (i < t.ahead && feed.panel >= t.w.panels)) { /* the inputs of all so far */
			struct int4_feed before = int4_feed_of(t, blockIdx.x, halves);

			dependency_wait();
			for (uint32_t k = 0; k <= i; k++) {
				if (int4_feed_holds(before))
					int4_fetch_inputs(t, map, shared + k * t.stage_bytes, rows, before.next.unit, &full[k], again);
				int4_feed_on(t, halves, &before);
			}
		}
		if (++stage == t.stages) {
			stage = 0;
			phase ^= 1;
		}
	}
}

/* SUMS += EACH times 64 rows of a unit, of which this warp's 16 lie at BLOCK in it, times the inputs at X.  In pieces of up
 * to MOST steps: while one is multiplied the next one is decoded, into the other registers. */
template <class T, int ROWS, int EACH, int GROUP, int MOST> __device__ static inline void int4_wide_unit(const struct int4_task &t,
    const uint8_t *unit, const uint32_t *block, uint32_t x, uint32_t lane, float (&sums)[EACH][ROWS / 2])
{
	constexpr int  PIECE = GROUP / 16 < MOST ? GROUP / 16 : MOST, PIECES = GROUP / 16 / PIECE, GROUPS = INT4_UNIT / GROUP;
	constexpr int  COUNT = EACH * GROUPS * PIECES;
	const uint32_t place = lane / 4 * 2;
	uint32_t       a[2][PIECE][4], zero[2];
	float          g[2][ROWS / 2], s[2][2];

#pragma unroll
	for (int i = 0; i < COUNT + 2; i++) {
		const int r = i / PIECES / GROUPS, group = i / PIECES % GROUPS, piece = i % PIECES, now = i / PIECES % 2;
		const int done = i - 2, before = done / PIECES % 2;

		if (i >= 2) {
			if (i <= COUNT)
				wgmma_wait<1>();
			else
				wgmma_wait<0>();
		}
		if (i >= 2 && done % PIECES == PIECES - 1) {
			wgmma_settle(g[before]);
#pragma unroll
			for (int k = 0; k < ROWS / 2; k++)
				sums[done / PIECES / GROUPS][k] = fmaf(s[before][k / 2 % 2], g[before][k], sums[done / PIECES / GROUPS][k]);
		}
		if (i >= COUNT)
			continue;
		if (piece == 0) {
			const struct int4_raw raw = int4_fetch(t, unit + block[r], group, place);

			int4_zeros_of<T>(t, raw, zero);
			int4_scales_of(t, raw, s[now]);
		}
#pragma unroll
		for (int step = 0; step < PIECE; step += 2) {
			const int at = group * (GROUP / 16) + piece * PIECE + step;
			uint2     two = *(const uint2 *)(unit + block[r] + at * (INT4_WORDS_BYTES / 8) + lane * 8);

			int4_operand<T>(two.x, zero, a[i % 2][step]);
			int4_operand<T>(two.y, zero, a[i % 2][step + 1]);
		}
		wgmma_fence();
#pragma unroll
		for (int step = 0; step < PIECE; step++) {
			const int at = group * (GROUP / 16) + piece * PIECE + step;

			wgmma_rs<T, ROWS>(g[now], a[i % 2][step], wgmma_descriptor(x + at / 4 * (ROWS * INT4_BOX * 2) + at % 4 * 32, 16, 1024,
			    SWIZZLE_128), piece + step > 0);
		}
		wgmma_commit();
	}
}

/* The same of one time 64 rows after the other, with half the registers. */
template <class T, int ROWS, int EACH, int GROUP> __device__ static inline void int4_wide_plain(const struct int4_task &t,
    const uint8_t *unit, const uint32_t *block, uint32_t x, uint32_t lane, float (&sums)[EACH][ROWS / 2])
{
	constexpr int  STEPS = GROUP / 16;
	const uint32_t place = lane / 4 * 2;

#pragma unroll
	for (int i = 0; i < EACH * (INT4_UNIT / GROUP); i++) {
		const int group = i % (INT4_UNIT / GROUP), r = i / (INT4_UNIT / GROUP);
		const struct int4_raw raw = int4_fetch(t, unit + block[r], group, place);
		uint32_t zero[2], a[STEPS][4];
		float    g[ROWS / 2], s[2];

		int4_zeros_of<T>(t, raw, zero);
#pragma unroll
		for (int step = 0; step < STEPS; step += 2) {
			uint2 two = *(const uint2 *)(unit + block[r] + (group * STEPS + step) * (INT4_WORDS_BYTES / 8) + lane * 8);

			int4_operand<T>(two.x, zero, a[step]);
			int4_operand<T>(two.y, zero, a[step + 1]);
		}
		wgmma_fence();
#pragma unroll
		for (int step = 0; step < STEPS; step++) {
			const int at = group * STEPS + step;

			wgmma_rs<T, ROWS>(g, a[step], wgmma_descriptor(x + at / 4 * (ROWS * INT4_BOX * 2) + at % 4 * 32, 16, 1024, SWIZZLE_128),
			    step > 0);
		}
		wgmma_commit();
		int4_scales_of(t, raw, s);
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
			barrier_init(&full[i], 1);
			barrier_init(&empty[i], HALVES ? 4 : 4 * GROUPS);
		}
		fence_barrier_init();
	}
	__syncthreads();
	if (warp >= 4 * GROUPS) {
		registers_lower<24>();
		if (threadIdx.x == GROUPS * 128)
			int4_wide_copy(t, &inputs, shared, ROWS, halves, full, empty);
		return;
	}
	registers_raise<GROUPS == 3 ? 160 : 240>();
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

			barrier_wait(&full[stage], phase);
			if constexpr (EACH == 1)
				int4_wide_unit<T, ROWS, EACH, GROUP, 4>(t, at + t.input_bytes, block, shared_address(at), lane, sums);
			else
				int4_wide_plain<T, ROWS, EACH, GROUP>(t, at + t.input_bytes, block, shared_address(at), lane, sums);
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
	return int4_wide_takes(w) && rows > (int4_panel_tiles(*w) > INT4_LARGE_TILES ? 8u : (uint32_t)INT4_NARROW_ROWS);
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
