/* fmt_byte_large.cuh: products of many rows rounded to int8 with weights of int8: what fmt_byte.cuh computes, to the bit, since
 * sums are exact.
 * Owns the kernel, how a product is cut, and the order of tiles.  Does not own the layout of weights, rounding, nor which product
 * goes through it (fmt_byte.cu).
 *
 * Two blocks are a cluster: they have the same 256 rows and 128 outputs each, and each brings half of the rows for both.  Without
 * products a stage of 128 inputs arrives every 0.49 us so, every 0.69 us where each block brings all of its own (H200); the tensor
 * cores want one every 0.55 to 0.7 us, at the clock that the device's power leaves them.
 *
 *      stage    weights [128][128] bytes, 128-byte swizzle │ rows [256][128], of which the other block brings half
 *
 * One producer thread; two warpgroups of 64 outputs × 256 rows each, the widest wgmma there is, which reads the fewest bytes of
 * shared memory for what it multiplies.  A stage is free when both blocks have read it.  Results go through shared memory to copies
 * that nobody waits for.
 *
 * The order of tiles.  Whole tiles: LARGE_GROUP neighbouring tiles of rows with all outputs one after the other, so that what runs
 * at a time shares weights and rows in L2.  Then halves, of 128 rows: of rows that are no whole tile, and of the whole tiles of the
 * last round if they are so few that all halves together are no more than there are clusters.
 *
 * Where this has run: on an H200, and on the host under the emulator, which knows no clusters: there one of one block. */
#ifndef PENSTOCK_GPU_FMT_BYTE_LARGE_CUH
#define PENSTOCK_GPU_FMT_BYTE_LARGE_CUH

#include "gpu/fmt_byte.cuh"

enum {
	LARGE_CLUSTER = 2,     /* blocks */
	LARGE_WARPGROUPS = 2,
	LARGE_OUTPUTS = 64 * LARGE_WARPGROUPS, /* of a block's tile */
	LARGE_TOKENS = 256,    /* rows of a tile */
	LARGE_HALF = LARGE_TOKENS / 2,
	LARGE_GROUP = 16,
	LARGE_ROWS_LEAST = LARGE_HALF + 1, /* of a product: fewer are bound by the weights' way from memory */
	LARGE_STAGES = 4,
	/* Bytes. */
	LARGE_WEIGHTS = LARGE_OUTPUTS * 128, /* of a stage */
	LARGE_STAGE = LARGE_WEIGHTS + LARGE_TOKENS * 128,
	LARGE_OUT = BYTE_OUT_TOKENS * 128,   /* 64 results of those rows */
	LARGE_OUTS = LARGE_STAGES * LARGE_STAGE,
	LARGE_SCALES = LARGE_OUTS + LARGE_WARPGROUPS * 2 * LARGE_OUT,
	LARGE_BARRIERS = LARGE_SCALES + LARGE_WARPGROUPS * (LARGE_TOKENS + 64) * 4,
	LARGE_SHARED = LARGE_BARRIERS + 2 * LARGE_STAGES * 8
};

struct large_product {
	const float *w_scales, *x_scales;
	void        *y;
	enum byte_output output; /* of 16 bits */
	uint32_t n, rows, y_stride;
	/* Cut. */
	uint32_t steps;             /* of 128 inputs */
	uint32_t row_tiles, halves; /* of a cluster's outputs; of LARGE_HALF rows */
	uint32_t whole, tiles;      /* tiles that are not cut in two, and all */
	uint32_t *mark;             /* as in struct byte_product */
	uint32_t  mark_value;
};

/* Whether results can be copied so. */
static inline bool large_takes(enum byte_output output, const void *y, uint32_t y_stride)
{
	return output != BYTE_OUT_F32 && y_stride % 8 == 0 && ((uintptr_t)y & 15) == 0;
}

/* Fills the cut of P, whose sizes are there, for CLUSTERS of so many BLOCKS. */
static inline void large_cut(uint32_t k, uint32_t clusters, uint32_t blocks, struct large_product *p)
{
	uint32_t all, odd, rest;

	p->steps = (k + BYTE_GROUP - 1) / BYTE_GROUP;
	p->row_tiles = (p->n + LARGE_OUTPUTS * blocks - 1) / (LARGE_OUTPUTS * blocks);
	p->halves = (p->rows + LARGE_HALF - 1) / LARGE_HALF;
	all = p->halves / 2 * p->row_tiles;
	odd = p->halves % 2 * p->row_tiles;
	rest = all % clusters;
	rest = 2 * rest + odd <= clusters ? rest : 0;
	p->whole = all - rest;
	p->tiles = p->whole + 2 * rest + odd;
}

/* Weights, rows in halves of a tile's half that BLOCKS share, and results. */
static inline struct tensor_layout large_weight_map(const struct large_product *p, const void *values, uint32_t stride)
{
	return { TENSOR_U8, 3, values, { BYTE_GROUP, p->n, stride / BYTE_GROUP }, { 0, stride, BYTE_GROUP },
		{ BYTE_GROUP, LARGE_OUTPUTS, 1 }, SWIZZLE_128 };
}
static inline struct tensor_layout large_input_map(const struct large_product *p, uint32_t blocks, const void *q, uint32_t stride)
{
	return { TENSOR_U8, 3, q, { BYTE_GROUP, p->rows, stride / BYTE_GROUP }, { 0, stride, BYTE_GROUP },
		{ BYTE_GROUP, LARGE_HALF / blocks, 1 }, SWIZZLE_128 };
}
static inline struct tensor_layout large_output_map(const struct large_product *p)
{
	return { TENSOR_U16, 2, p->y, { p->n, p->rows }, { 0, p->y_stride * (uint64_t)2 }, { 64, BYTE_OUT_TOKENS }, SWIZZLE_128 };
}

/* A cluster's tile: ROW in tiles of outputs, TOKEN in halves. */
struct large_tile {
	uint32_t row, token;
	bool     half;
};

__device__ static inline struct large_tile large_tile_of(const struct large_product *p, uint32_t t)
{
	uint32_t whole = p->halves / 2, all = LARGE_GROUP * p->row_tiles, h = 0, first, wide;
	bool     half = t >= p->whole;

	if (half) {
		h = t - p->whole;
		t = p->whole + h / 2;
		if (t >= whole * p->row_tiles)
			return { h - 2 * (whole * p->row_tiles - p->whole), p->halves - 1, true };
	}
	first = t / all * LARGE_GROUP;
	wide = whole - first < LARGE_GROUP ? whole - first : (uint32_t)LARGE_GROUP;
	t %= all;
	return { t / wide, (first + t % wide) * 2 + h % 2, half };
}

/* The producer's thread: all stages of all tiles, weights of the first ones before rows are there. */
template <int C> __device__ static void large_produce(const tensor_map *w_map, const tensor_map *x_map,
    const struct large_product *p, char *shared, mbarrier *full, mbarrier *empty)
{
	constexpr uint32_t box = LARGE_HALF / C; /* rows */
	const uint32_t     rank = blockIdx.x % C, cluster = blockIdx.x / C, clusters = gridDim.x / C;
	const uint32_t     total = (p->tiles - cluster - 1) / clusters * p->steps + p->steps;
	const uint32_t     ahead = total < LARGE_STAGES ? total : (uint32_t)LARGE_STAGES;
	const uint64_t     keep = cache_evict_last();

	for (uint32_t pass = 0; pass < 2; pass++) {
		struct ring_place at = { 0, 1 };
		struct large_tile         tile = {};

		if (pass) {
			dependency_wait();
			byte_mark(p->mark, p->mark_value);
		}
		for (uint32_t i = 0; i < (pass ? total : ahead); i++, at.advance(LARGE_STAGES)) {
			char          *stage = shared + at.slot * LARGE_STAGE;
			const uint32_t step = i % p->steps;

			if (step == 0)
				tile = large_tile_of(p, cluster + i / p->steps * clusters);
			const uint32_t boxes = tile.half ? 1 : 2;

			if (!pass || i >= ahead) {
				if (pass)
					barrier_wait(&empty[at.slot], at.parity);
				barrier_expect(&full[at.slot], LARGE_WEIGHTS + boxes * LARGE_HALF * BYTE_GROUP);
				tma_load_3d(stage, w_map, 0, (int)((tile.row * C + rank) * LARGE_OUTPUTS), (int)step, &full[at.slot], keep);
			}
			for (uint32_t b = 0; pass && b < boxes; b++) {
				uint32_t first = (rank * boxes + b) * box;
				int      token = (int)(tile.token * LARGE_HALF + first);

				tma_load_3d_multicast(stage + LARGE_WEIGHTS + first * BYTE_GROUP, x_map, 0, token, (int)step, &full[at.slot],
				    (1 << C) - 1, keep);
			}
		}
	}
}

/* The sums of a tile of N rows: of 64 weights at W in the first stage, and of the rows at X. */
template <int C, int N> __device__ static inline void large_multiply(int32_t *sum, const char *w, const char *x,
    uint32_t steps, struct ring_place *at, mbarrier *full, mbarrier *empty)
{
	const uint32_t lane = threadIdx.x % 32;

	for (uint32_t step = 0; step < steps; step++) {
		const uint32_t stage = at->slot * LARGE_STAGE;

		barrier_wait(&full[at->slot], at->parity);
		wgmma_fence();
#pragma unroll
		for (int i = 0; i < 4; i++)
			wgmma_ss<int8_t, N>(sum, wgmma_descriptor(w + stage + i * 32, 16, 1024, SWIZZLE_128),
			    wgmma_descriptor(x + stage + i * 32, 16, 1024, SWIZZLE_128), i > 0 || step > 0);
		wgmma_commit();
		wgmma_wait<1>();
		if (step)
			ring_release<C>(&empty[(at->slot + LARGE_STAGES - 1) % LARGE_STAGES], lane);
		at->advance(LARGE_STAGES);
	}
	wgmma_wait<0>();
	wgmma_settle<N / 2>(sum);
	ring_release<C>(&empty[(at->slot + LARGE_STAGES - 1) % LARGE_STAGES], lane);
}

/* Stores what a warpgroup has in SUM: outputs from ROW on, rows from TOKEN on, with scales [LARGE_TOKENS] of rows and [64] of
 * outputs at SCALES, through the two buffers at OUT. */
__device__ static inline void large_store(const struct large_product *p, const tensor_map *y_map, const int32_t *sum, char *out,
    const float *scales, uint32_t group, uint32_t row, uint32_t token, bool half)
{
	const uint32_t thread = threadIdx.x % 128, lane = thread % 32, mine = thread / 32 * 16 + lane / 4;
	const float    w[2] = { scales[LARGE_TOKENS + mine], scales[LARGE_TOKENS + mine + 8] };

#pragma unroll
	for (int part = 0; part < LARGE_TOKENS / BYTE_OUT_TOKENS; part++) {
		char *to = out + part % 2 * LARGE_OUT;

		if (part == LARGE_HALF / BYTE_OUT_TOKENS && half)
			break;
		if (thread == 0)
			bulk_store_wait_read<1>();
		named_barrier_sync(2 + group, 128);
#pragma unroll
		for (int i = 0; i < BYTE_OUT_TOKENS / 16; i++) { /* 16 of the 64 outputs for 16 rows: four matrices */
			const int32_t *s = sum + (part * (BYTE_OUT_TOKENS / 16) + i) * 8;
			uint32_t       four[4];

#pragma unroll
			for (int m = 0; m < 4; m++) {
				const int    j = m / 2 * 4 + m % 2 * 2; /* rows of eight, and their upper or lower outputs */
				const float2 x = *(const float2 *)(scales + part * BYTE_OUT_TOKENS + i * 16 + m / 2 * 8 + lane % 4 * 2);

				four[m] = byte_short(p->output, byte_scaled(s[j], x.x, w[m % 2])) |
				    (uint32_t)byte_short(p->output, byte_scaled(s[j + 1], x.y, w[m % 2])) << 16;
			}
			stmatrix_x4_trans(shared_address(to + (i * 16 + lane / 16 * 8 + lane % 8) * 128 +
			    ((thread / 32 * 2 + lane / 8 % 2) ^ lane % 8) * 16), four);
		}
		fence_async_proxy();
		named_barrier_sync(2 + group, 128);
		if (thread == 0) {
			tma_store_2d(y_map, (int)row, (int)(token + part * BYTE_OUT_TOKENS), to);
			bulk_store_commit();
		}
	}
}

/* A grid of clusters of C blocks, at most as many as there are tiles. */
template <int C> __global__ void CLUSTER_OF(C) __launch_bounds__((LARGE_WARPGROUPS + 1) * 128, 1)
    large_kernel(const __grid_constant__ tensor_map w_map, const __grid_constant__ tensor_map x_map,
        const __grid_constant__ tensor_map y_map, const struct large_product p)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	char          *shared = shared_memory();
	mbarrier      *full = (mbarrier *)(shared + LARGE_BARRIERS), *empty = full + LARGE_STAGES;
	const uint32_t group = threadIdx.x / 128, thread = threadIdx.x % 128;

	dependents_launch();
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < LARGE_STAGES; i++) {
			barrier_init(&full[i], 1);
			barrier_init(&empty[i], 4 * LARGE_WARPGROUPS * C);
		}
		fence_barrier_init();
	}
	cluster_sync();
	if (group == LARGE_WARPGROUPS) {
		registers_lower<40>();
		if (thread == 0)
			large_produce<C>(&w_map, &x_map, &p, shared, full, empty);
		__syncwarp();
	} else {
		char       *out = shared + LARGE_OUTS + group * 2 * LARGE_OUT;
		float      *scales = (float *)(shared + LARGE_SCALES) + group * (LARGE_TOKENS + 64);
		const char *weights = shared + group * 64 * BYTE_GROUP, *rows = shared + LARGE_WEIGHTS;
		struct ring_place at = { 0, 0 };

		registers_raise<232>();
		dependency_wait();
		for (uint32_t t = blockIdx.x / C; t < p.tiles; t += gridDim.x / C) {
			const struct large_tile tile = large_tile_of(&p, t);
			const uint32_t          row = (tile.row * C + blockIdx.x % C) * LARGE_OUTPUTS + group * 64;
			const uint32_t          token = tile.token * LARGE_HALF;
			int32_t                 sum[LARGE_TOKENS / 2];

			/* Nobody of this warpgroup reads those of the tile before: it has met since. */
			for (uint32_t i = thread; i < LARGE_TOKENS; i += 128)
				scales[i] = p.x_scales[token + i < p.rows ? token + i : p.rows - 1];
			if (thread < 64)
				scales[LARGE_TOKENS + thread] = p.w_scales[row + thread < p.n ? row + thread : p.n - 1];
			if (tile.half)
				large_multiply<C, LARGE_HALF>(sum, weights, rows, p.steps, &at, full, empty);
			else
				large_multiply<C, LARGE_TOKENS>(sum, weights, rows, p.steps, &at, full, empty);
			named_barrier_sync(2 + group, 128);
			large_store(&p, &y_map, sum, out, scales, group, row, token, tile.half);
		}
		if (thread == 0)
			bulk_store_wait<0>();
		__syncwarp();
	}
	cluster_sync(); /* nobody ends while another block may still copy to it or arrive at its barriers */
#else
	(void)p;
#endif
}

#endif
