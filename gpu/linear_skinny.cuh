/* linear_skinny.cuh: y = x · Wᵀ for up to 64 rows of x, on sm_90a: what a decode step does, where nothing counts but the speed
 * at which W is read.  Owns the kernel and how a product is laid out; linear_own.cu launches it.
 *
 * W lies on the side of wgmma that has 64 rows, x on the side that has 8 to 64.  A block owns rows/blocks rows of W (± 1) and
 * the whole k: no k is split, one float32 accumulator takes it in ascending order, so a row of y has the same bits whatever
 * stands beside it, on however many blocks.  One thread fetches stages of boxes with 128-byte swizzle, as far ahead as shared
 * memory holds; W and x stay row-major, as cuBLASLt reads them too:
 *
 *      a stage   W: [panels][pitch rows][64 k]   x: [panels][TOKENS][64 k]      a panel is 64 k, 128 bytes of a row
 *
 * A block whose rows are more than its accumulators hold takes them in passes, each with all blocks side by side in W: that reads
 * up to 10 % faster than blocks that stay far from each other (H200).  Tiles are of 64 rows: the last one of a pass may reach into
 * what lies behind its panel, always within the stage; those outputs are computed and dropped.
 *
 * Gated: W is gate | up, and y = silu(gate) · up.  Eight rows of gate and eight of up alternate in shared memory, by the box's
 * order alone, so that a thread holds both.  They are rounded to T before, as silu_gate finds them.
 *
 * Heads: W is that of q, k and v, and what the kernel of kv.cuh would do with y is done here, with the same bits (heads.cuh).
 * A block owns whole pairs of rows then.
 *
 * Under programmatic dependent launch W of the first stages is fetched before dependency_wait(), at the pace of pace.cuh, by one
 * thread; x, by another one, and y are touched after it.
 *
 * Invariant: producer and consumers count the same stages: passes × ceil(panels of k / panels of a stage). */
#ifndef PENSTOCK_GPU_LINEAR_SKINNY_CUH
#define PENSTOCK_GPU_LINEAR_SKINNY_CUH

#include "gpu/heads.cuh"
#include "gpu/pace.cuh"

#include <string.h>

enum { SKINNY_TOKENS_MAX = 64, SKINNY_PANEL = 64, SKINNY_PANEL_BYTES = 128, SKINNY_TILE = 64, SKINNY_ATOM = 8,
	SKINNY_BARRIER_BYTES = 1024, SKINNY_STAGES_MAX = SKINNY_BARRIER_BYTES / 16 - 1, SKINNY_SHARED_MAX = 232448,
	SKINNY_BOX_MAX = 256, SKINNY_VARIANTS_MAX = 24,
	SKINNY_FETCHERS = 64 }; /* threads: a warp that fetches W, and one that fetches x */

/* What measurement decides. */
struct skinny_variant {
	uint32_t groups, tiles; /* warpgroups that multiply, tiles of each: (1, 1), (2, 1), (2, 2) or (2, 3) */
	uint32_t panels;        /* of a stage: 1, 2, 4 or 8 */
	uint32_t blocks;        /* at most */
	uint32_t stages;        /* at most; 0 = what shared memory holds */
	int      exact;         /* boxes of just the block's rows, a copy for each panel; else rows are rounded up to eight */
};

/* What is made of the product; SKINNY_HEADS is said by args.heads too. */
enum skinny_form { SKINNY_PLAIN, SKINNY_GATED, SKINNY_HEADS };

/* How a box is fetched: one for a stage, one for each panel, or one whose rows go in groups of eight. */
enum skinny_box { SKINNY_WHOLE, SKINNY_EACH, SKINNY_GROUPED };

struct skinny_args {
	uint32_t rows, units;          /* of x; outputs: rows of W, or pairs of them */
	uint32_t k_panels;             /* of the whole k */
	uint32_t steps;                /* stages of it */
	uint32_t passes, pass_units;   /* of a block; outputs of a pass at most */
	uint32_t grain, even, odd;     /* every pass of every block has EVEN times GRAIN outputs, the first ODD of them GRAIN more */
	uint32_t box_units, pitch;     /* a box's outputs; rows of shared memory they take */
	uint32_t pace;                 /* of W while kernels before this one run: pace_of; 0: none */
	uint32_t panels, stages, stage_bytes, weight_bytes, copied_bytes, input_bytes; /* weight_bytes: where x lies; copied: of W */
	int      weight_box, input_box; /* enum skinny_box */
	int      to_float;
	void    *y;
	uint32_t y_stride;
	struct head_target heads;      /* without keys: none */
	uint32_t *mark;                /* where to say that the kernel began; NULL = nowhere */
	uint32_t  mark_value;
};

struct skinny_plan {
	struct skinny_args   args; /* all but y, y_stride, to_float, heads, mark */
	struct tensor_layout weights, inputs;
	uint32_t tokens, groups, tiles, blocks, threads, shared_bytes;
};

static inline uint32_t skinny_up(uint32_t x, uint32_t to) { return (x + to - 1) / to * to; }

/* The variant that is taken unless a better one was measured: tiles for all of a block's rows at once, if they have room, and
 * stages of 16 KB or more. */
static inline struct skinny_variant skinny_default(uint32_t n, uint32_t blocks, int gated)
{
	uint32_t units = gated ? n / 2 : n, most = (units + blocks - 1) / blocks, rows = skinny_up(most, SKINNY_ATOM) * (gated ? 2 : 1);
	uint32_t tiles = (rows + SKINNY_TILE - 1) / SKINNY_TILE, passes = (tiles + 5) / 6, each = (tiles + passes - 1) / passes;
	struct skinny_variant ret = { each > 1 ? 2u : 1u, each > 4 ? 3u : each > 2 ? 2u : 1u, 1, blocks, 0, 0 };

	while (ret.panels < 8 && ret.panels * rows / passes * SKINNY_PANEL_BYTES < 16384)
		ret.panels *= 2;
	return ret;
}

static inline void skinny_matrix(struct tensor_layout *ret, enum tensor_type type, const void *data, uint64_t rows, uint64_t k,
    uint64_t stride, uint32_t box_rows, uint32_t box_panels, enum skinny_box box)
{
	struct tensor_layout whole = { type, 3, data, { SKINNY_PANEL, rows, k / SKINNY_PANEL }, { 0, stride * 2, SKINNY_PANEL_BYTES },
		{ SKINNY_PANEL, box_rows, box_panels }, SWIZZLE_128 };
	struct tensor_layout each = { type, 2, data, { k, rows }, { 0, stride * 2 }, { SKINNY_PANEL, box_rows }, SWIZZLE_128 };

	*ret = box == SKINNY_EACH ? each : whole;
}

/* Outputs of each pass at most, where all blocks have PASSES. */
static inline uint32_t skinny_pass_units(const struct skinny_args *a, uint32_t blocks, uint32_t passes)
{
	uint32_t shares = a->units / a->grain, each = blocks * passes;

	return (shares + each - 1) / each * a->grain;
}

/* False: this product, or this variant of it, does not suit the kernel.  FORM: enum skinny_form. */
static inline bool skinny_layout(struct skinny_plan *ret, const struct skinny_variant *v, enum tensor_type type, const void *w,
    uint32_t n, uint32_t k, uint32_t w_stride, const void *x, uint32_t rows, uint32_t x_stride, int form)
{
	struct skinny_args *a = &ret->args;
	bool     gated = form == SKINNY_GATED;
	uint32_t parts = gated ? 2 : 1, room = v->groups * v->tiles * SKINNY_TILE / parts, most, stages, spill;
	bool     ragged = k % SKINNY_PANEL != 0;

	*ret = {};
	if (!n || !k || !rows || rows > SKINNY_TOKENS_MAX || !v->blocks || !v->panels || v->panels > 8 || (type != TENSOR_BF16 &&
	    type != TENSOR_F16) || (uint64_t)n * w_stride > INT32_MAX * (uint64_t)SKINNY_PANEL)
		return false;
	if ((gated && (ragged || n % (2 * SKINNY_ATOM) || v->exact)) || (form == SKINNY_HEADS && n % 2))
		return false;
	a->rows = rows;
	a->units = n / parts;
	a->grain = form == SKINNY_HEADS ? 2 : 1;
	a->k_panels = (k + SKINNY_PANEL - 1) / SKINNY_PANEL;
	ret->blocks = v->blocks < a->units / a->grain ? v->blocks : a->units / a->grain;
	most = skinny_pass_units(a, ret->blocks, 1);
	a->passes = (most + room - 1) / room;
	a->pass_units = skinny_pass_units(a, ret->blocks, a->passes);
	a->box_units = skinny_up(a->pass_units, SKINNY_ATOM);
	if (!gated && a->box_units > SKINNY_BOX_MAX && (ragged || a->box_units > a->units)) { /* no group may begin past the end */
		a->passes = (most + SKINNY_BOX_MAX - 1) / SKINNY_BOX_MAX;
		a->pass_units = skinny_pass_units(a, ret->blocks, a->passes);
		a->box_units = skinny_up(a->pass_units, SKINNY_ATOM);
	}
	a->even = a->units / a->grain / (ret->blocks * a->passes);
	a->odd = a->units / a->grain % (ret->blocks * a->passes);
	if (a->box_units > room || (v->exact && a->box_units > SKINNY_BOX_MAX))
		return false;
	a->pitch = a->box_units * parts;
	if (v->exact)
		a->box_units = a->pass_units;
	a->panels = v->panels < a->k_panels ? v->panels : a->k_panels;
	a->steps = (a->k_panels + a->panels - 1) / a->panels;
	a->weight_box = gated || a->box_units > SKINNY_BOX_MAX ? SKINNY_GROUPED : ragged || v->exact ? SKINNY_EACH : SKINNY_WHOLE;
	a->input_box = ragged ? SKINNY_EACH : SKINNY_WHOLE;
	ret->tokens = rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
	ret->groups = v->groups;
	ret->tiles = v->tiles;
	ret->threads = v->groups * 128 + SKINNY_FETCHERS;
	a->weight_bytes = a->panels * a->pitch * SKINNY_PANEL_BYTES;
	a->input_bytes = a->panels * ret->tokens * SKINNY_PANEL_BYTES;
	a->copied_bytes = a->panels * a->box_units * parts * SKINNY_PANEL_BYTES;
	spill = (skinny_up(a->pitch, SKINNY_TILE) - a->pitch) * SKINNY_PANEL_BYTES;
	a->stage_bytes = a->weight_bytes + (spill > a->input_bytes ? spill : a->input_bytes);
	stages = (SKINNY_SHARED_MAX - SKINNY_BARRIER_BYTES) / a->stage_bytes;
	stages = v->stages && v->stages < stages ? v->stages : stages;
	a->stages = stages < SKINNY_STAGES_MAX ? stages : (uint32_t)SKINNY_STAGES_MAX;
	/* A stage is given back when the next one is read; what a phase counts. */
	if (a->stages < 2 || a->copied_bytes + a->input_bytes >= 1 << 20)
		return false;
	ret->shared_bytes = SKINNY_BARRIER_BYTES + a->stages * a->stage_bytes;
	a->pace = pace_of(ret->blocks);
	skinny_matrix(&ret->inputs, type, x, rows, k, x_stride, ret->tokens, a->panels, (enum skinny_box)a->input_box);
	if (a->weight_box == SKINNY_GROUPED)
		ret->weights = { type, 5, w, { SKINNY_PANEL, a->units, parts, a->units / SKINNY_ATOM, a->k_panels },
			{ 0, (uint64_t)w_stride * 2, (uint64_t)a->units * w_stride * 2, (uint64_t)SKINNY_ATOM * w_stride * 2,
			    SKINNY_PANEL_BYTES },
			{ SKINNY_PANEL, SKINNY_ATOM, parts, a->box_units / SKINNY_ATOM, a->panels }, SWIZZLE_128 };
	else
		skinny_matrix(&ret->weights, type, w, n, k, w_stride, a->box_units, a->panels, (enum skinny_box)a->weight_box);
	return true;
}

/* Variants worth a trial for a product, the default first.  RET has room for SKINNY_VARIANTS_MAX; returns how many. */
static inline uint32_t skinny_variants(uint32_t n, uint32_t k, uint32_t rows, uint32_t blocks, int gated,
    struct skinny_variant *ret)
{
	static const uint32_t sizes[][2] = { { 1, 1 }, { 2, 1 }, { 2, 2 }, { 2, 3 } };
	static const char     data[16] = "";
	uint32_t              stride = skinny_up(k, 8), count = 1;

	ret[0] = skinny_default(n, blocks, gated);
	for (uint32_t i = 0; i < 4 * 4 * 2 && count < SKINNY_VARIANTS_MAX; i++) {
		struct skinny_variant v = { sizes[i % 4][0], sizes[i % 4][1], 1u << i / 4 % 4, blocks, 0, (int)(i / 16) };
		struct skinny_plan    plan;
		uint32_t              tiles;

		if (memcmp(&v, ret, sizeof v) == 0 || !skinny_layout(&plan, &v, TENSOR_BF16, data, n, k, stride, data, rows, stride, gated))
			continue;
		tiles = (plan.args.pitch + SKINNY_TILE - 1) / SKINNY_TILE;
		if (tiles <= (v.groups == 1 ? 0 : v.tiles == 1 ? 1 : v.tiles == 2 ? 2 : 4)) /* a smaller size does the same */
			continue;
		if (plan.args.stages >= 3 && plan.args.weight_bytes >= 8192 && plan.args.weight_bytes <= 65536)
			ret[count++] = v;
	}
	return count;
}

/* ---- The kernel ---- */

/* The first output of this block in PASS: in a pass all blocks together go over one stretch of W, side by side. */
__device__ static inline uint32_t skinny_edge(const skinny_args &a, uint32_t pass)
{
	uint32_t tile = pass * gridDim.x + blockIdx.x;

	return (tile * a.even + (tile < a.odd ? tile : a.odd)) * a.grain;
}

/* The first output of whoever comes after it. */
__device__ static inline uint32_t skinny_stop(const skinny_args &a, uint32_t pass)
{
	return skinny_edge(a, pass) + (a.even + (pass * gridDim.x + blockIdx.x < a.odd)) * a.grain;
}

/* Where the boxes of a pass begin: no group of eight may begin past the end. */
__device__ static inline uint32_t skinny_begin(const skinny_args &a, uint32_t pass)
{
	uint32_t unit = skinny_edge(a, pass), last = a.units - a.box_units;

	return a.weight_box == SKINNY_GROUPED && unit > last ? last : unit;
}

__device__ static inline void skinny_fetch_weights(const skinny_args &a, const tensor_map *map, char *stage, uint32_t pass,
    uint32_t panel, mbarrier *full, uint64_t policy)
{
	int32_t unit = (int32_t)skinny_begin(a, pass);

	if (a.weight_box == SKINNY_GROUPED)
		tma_load_5d(stage, map, 0, unit, 0, 0, (int32_t)panel, full, policy);
	else if (a.weight_box == SKINNY_WHOLE)
		tma_load_3d(stage, map, 0, unit, (int32_t)panel, full, policy);
	else
		for (uint32_t p = 0; p < a.panels; p++)
			tma_load_2d(stage + p * a.pitch * SKINNY_PANEL_BYTES, map, (int32_t)((panel + p) * SKINNY_PANEL), unit, full, policy);
}

__device__ static inline void skinny_fetch_inputs(const skinny_args &a, const tensor_map *map, char *stage, uint32_t tokens,
    uint32_t panel, mbarrier *full, uint64_t policy)
{
	if (a.input_box == SKINNY_WHOLE)
		tma_load_3d(stage + a.weight_bytes, map, 0, 0, (int32_t)panel, full, policy);
	else
		for (uint32_t p = 0; p < a.panels; p++)
			tma_load_2d(stage + a.weight_bytes + p * tokens * SKINNY_PANEL_BYTES, map, (int32_t)((panel + p) * SKINNY_PANEL), 0,
			    full, policy);
}

/* One thread: all stages in order.  How far it is, counted rather than divided: between two kernels each instruction counts. */
struct skinny_at {
	uint32_t stage, panel, pass, parity;
	bool     again; /* the ring was filled once */

	/* Until the stage is free. */
	__device__ void wait(mbarrier *empty) const
	{
		if (again)
			barrier_wait(&empty[stage], parity ^ 1);
	}
	__device__ void next(const skinny_args &a)
	{
		panel += a.panels;
		if (panel >= a.k_panels) {
			panel = 0;
			pass++;
		}
		if (++stage == a.stages) {
			stage = 0;
			parity ^= 1;
			again = true;
		}
	}
};

/* W, which was there before the kernel began: with pace until x is THERE. */
__device__ static inline void skinny_produce_weights(const skinny_args &a, const tensor_map *weights, char *ring, mbarrier *full,
    mbarrier *empty, mbarrier *there)
{
	const uint64_t once = cache_evict_first();
	struct pace    pace(there, a.pace);

	for (skinny_at at = {}; at.pass < a.passes; at.next(a)) {
		at.wait(empty);
		pace.wait(a.copied_bytes);
		barrier_expect(&full[at.stage], a.copied_bytes);
		skinny_fetch_weights(a, weights, ring + (size_t)at.stage * a.stage_bytes, at.pass, at.panel, &full[at.stage], once);
	}
}

/* x, which the kernel before has written.  THERE is told when all has been asked for that finds room at once. */
__device__ static inline void skinny_produce_inputs(const skinny_args &a, const tensor_map *inputs, char *ring, mbarrier *full,
    mbarrier *empty, mbarrier *there, uint32_t tokens)
{
	const uint64_t often = cache_evict_last();
	skinny_at      at = {};
	bool           told = false;

	while (at.pass < a.passes) {
		mbarrier *arrival = &full[at.stage];

		at.wait(empty);
		barrier_expect(arrival, a.input_bytes);
		skinny_fetch_inputs(a, inputs, ring + (size_t)at.stage * a.stage_bytes, tokens, at.panel, arrival, often);
		at.next(a);
		if (!told && (at.again || at.pass == a.passes)) {
			barrier_arrive(there);
			told = true;
		}
	}
}

/* One output of a row. */
template <class T> __device__ static inline void skinny_put(const skinny_args &a, uint32_t row, uint32_t unit, float value)
{
	size_t at = (size_t)row * a.y_stride + unit;

	if (a.to_float)
		((float *)a.y)[at] = value;
	else
		((T *)a.y)[at] = from_float<T>(value);
}

/* What a thread has of a tile whose first row of shared memory, for its warp, is LINE; outputs of this pass are [BEGIN, END). */
template <class T, int TOKENS, bool GATED> __device__ static inline void skinny_store(const skinny_args &a, const float *acc,
    uint32_t line, uint32_t from, uint32_t begin, uint32_t end)
{
	uint32_t lane = threadIdx.x % 32, unit = from + (GATED ? line / 2 : line) + lane / 4;

#pragma unroll
	for (int j = 0; j < TOKENS / 8; j++) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			uint32_t row = (uint32_t)j * 8 + lane % 4 * 2 + (uint32_t)h;
			float    low = acc[4 * j + h], high = acc[4 * j + 2 + h];

			if (row >= a.rows)
				continue;
			if (GATED) {
				float gate = to_float(from_float<T>(low)), up = to_float(from_float<T>(high));

				if (unit >= begin && unit < end)
					skinny_put<T>(a, row, unit, silu_times(gate, up));
			} else {
				if (unit >= begin && unit < end)
					skinny_put<T>(a, row, unit, low);
				if (unit + 8 >= begin && unit + 8 < end)
					skinny_put<T>(a, row, unit + 8, high);
			}
		}
	}
}

/* F(i, row, unit, mine) for every pair of outputs, UNIT and the next of a row, that a thread gets of the tile which begins in W at
 * AT for its warp; MINE: they are this block's. */
template <int TOKENS, class F> __device__ static inline void skinny_each_pair(const skinny_args &a, uint32_t at, uint32_t begin,
    uint32_t end, F f)
{
	uint32_t lane = threadIdx.x % 32, unit = at + head_unit(lane);

#pragma unroll
	for (int i = 0; i < TOKENS / 4; i++) {
		uint32_t row = (uint32_t)i / 2 * 8 + lane % 4 * 2 + (uint32_t)i % 2;

		f(i, row, unit, row < a.rows && unit >= begin && unit < end);
	}
}

/* A warpgroup: its tiles of every pass. */
template <class T, int TOKENS, int GROUPS, int TILES, bool GATED> __device__ static inline void skinny_consume(const skinny_args &a,
    char *ring, mbarrier *full, mbarrier *empty)
{
	uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4, stage = 0, parity = 0;
	uint32_t tiles = (a.pitch + SKINNY_TILE - 1) / SKINNY_TILE;
	uint32_t ring_at = shared_address(ring);
	float    acc[TILES][TOKENS / 2];
	uint32_t tile_at[TILES], line[TILES]; /* LINE: the tile's first row for this warp; past the pitch where there is no tile */
	constexpr bool AHEAD = !GATED && TOKENS <= 16; /* what heads need is read while W is on its way, if registers have room */
	head_pair      with[AHEAD ? TILES : 1][AHEAD ? TOKENS / 4 : 1];

#pragma unroll
	for (int j = 0; j < TILES; j++) { /* one that is not there computes the last one once more */
		uint32_t tile = group + (uint32_t)(GROUPS * j);

		tile_at[j] = (tile < tiles ? tile : tiles - 1) * SKINNY_TILE * SKINNY_PANEL_BYTES;
		line[j] = tile * SKINNY_TILE + warp % 4 * 16;
	}
	for (uint32_t pass = 0; pass < a.passes; pass++) {
		uint32_t from = skinny_begin(a, pass), begin = skinny_edge(a, pass), end = skinny_stop(a, pass), previous = 0;

#pragma unroll
		for (int j = 0; j < TILES; j++)
#pragma unroll
			for (int i = 0; i < TOKENS / 2; i++)
				acc[j][i] = 0;
		if constexpr (AHEAD)
#pragma unroll
			for (int j = 0; j < TILES && a.heads.keys; j++)
				skinny_each_pair<TOKENS>(a, from + line[j], begin, end, [&](int i, uint32_t row, uint32_t unit, bool mine) {
					if (mine)
						with[j][i] = head_fetch(a.heads, row, unit);
				});
		for (uint32_t step = 0; step < a.steps; step++) {
			/* By way of lane 0: what the compiler knows to be the same in all lanes it keeps in uniform registers, where wgmma
			 * wants its descriptors.  Moves for each wgmma took longer than a wgmma of few tokens. */
			uint32_t at = ring_at + stage * a.stage_bytes, x_at = __shfl_sync(~0u, at + a.weight_bytes, 0);
			uint64_t w[TILES], x = wgmma_descriptor(x_at, 16, 1024, SWIZZLE_128);

#pragma unroll
			for (int j = 0; j < TILES; j++)
				w[j] = wgmma_descriptor(__shfl_sync(~0u, at + tile_at[j], 0), 16, 1024, SWIZZLE_128);
			barrier_wait(&full[stage], parity);
			wgmma_fence();
#pragma unroll (TILES == 1 ? 4 : 1)
			for (uint32_t p = 0; p < a.panels; p++) { /* beyond k lie zeroes; a count that varied would serialise wgmma */
#pragma unroll
				for (uint32_t i = 0; i < SKINNY_PANEL_BYTES; i += 32)
#pragma unroll
					for (int j = 0; j < TILES; j++)
						wgmma_ss<T, TOKENS>(acc[j], w[j] + i / 16, x + i / 16, 1);
#pragma unroll
				for (int j = 0; j < TILES; j++)
					w[j] += a.pitch * (SKINNY_PANEL_BYTES / 16);
				x += TOKENS * (SKINNY_PANEL_BYTES / 16);
			}
			wgmma_commit();
			wgmma_wait<1>();
			if (step && lane == 0) /* the step before has been read */
				barrier_arrive(&empty[previous]);
			previous = stage;
			if (++stage == a.stages) {
				stage = 0;
				parity ^= 1;
			}
		}
		wgmma_wait<0>();
#pragma unroll
		for (int j = 0; j < TILES; j++)
			wgmma_settle(acc[j]);
		if (lane == 0)
			barrier_arrive(&empty[previous]);
#pragma unroll
		for (int j = 0; j < TILES; j++) {
			if (group + (uint32_t)(GROUPS * j) >= tiles)
				continue;
			if (GATED || !a.heads.keys) {
				skinny_store<T, TOKENS, GATED>(a, acc[j], line[j], from, begin, end);
				continue;
			}
			skinny_each_pair<TOKENS>(a, from + line[j], begin, end, [&](int i, uint32_t row, uint32_t unit, bool mine) {
				float2 two = head_gather(acc[j][4 * (i / 2) + i % 2], acc[j][4 * (i / 2) + 2 + i % 2]);

				if (mine)
					head_put(a.heads, AHEAD ? with[j][i] : head_fetch(a.heads, row, unit),
					    (T *)a.y + (size_t)row * a.y_stride, unit, two);
			});
		}
	}
}

template <class T, int TOKENS, int GROUPS, int TILES, bool GATED> static __global__ void __launch_bounds__(GROUPS * 128 +
    SKINNY_FETCHERS, 1) skinny_kernel(const __grid_constant__ tensor_map weights, const __grid_constant__ tensor_map inputs,
        const __grid_constant__ skinny_args a)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	char     *shared = shared_memory(), *ring = shared + SKINNY_BARRIER_BYTES;
	mbarrier *full = (mbarrier *)shared, *empty = full + SKINNY_STAGES_MAX, *there = empty + SKINNY_STAGES_MAX;
	const uint32_t warp = threadIdx.x / 32, threads = GROUPS * 128 + SKINNY_FETCHERS;

	dependents_launch();
	if (warp == GROUPS * 4) { /* the others know of barriers by barrier 1 */
		if (threadIdx.x % 32 == 0) {
			for (uint32_t s = 0; s < a.stages; s++) {
				barrier_init(&full[s], 2);
				barrier_init(&empty[s], GROUPS * 4);
			}
			barrier_init(there, 1);
			fence_barrier_init();
		}
		__syncwarp();
		named_barrier_arrive(1, threads);
		if (threadIdx.x % 32 == 0)
			skinny_produce_weights(a, &weights, ring, full, empty, there);
		return;
	}
	if (threadIdx.x == GROUPS * 128 + 32)
		tma_prefetch_map(&inputs);
	__syncwarp();
	named_barrier_sync(1, threads);
	dependency_wait();
	if (warp > GROUPS * 4) {
		if (threadIdx.x % 32)
			return;
		if (a.mark && blockIdx.x == 0)
			*(volatile uint32_t *)a.mark = a.mark_value;
		skinny_produce_inputs(a, &inputs, ring, full, empty, there, TOKENS);
		return;
	}
	skinny_consume<T, TOKENS, GROUPS, TILES, GATED>(a, ring, full, empty);
#endif
}

/* CALL(TOKENS, GROUPS, TILES) for every size that is built. */
#define SKINNY_EACH_TILES(call, tokens) call(tokens, 1, 1) call(tokens, 2, 1) call(tokens, 2, 2) call(tokens, 2, 3)
#define SKINNY_EACH_SIZE(call)                                   \
	SKINNY_EACH_TILES(call, 8) SKINNY_EACH_TILES(call, 16) \
	SKINNY_EACH_TILES(call, 32) SKINNY_EACH_TILES(call, 64)

#endif
