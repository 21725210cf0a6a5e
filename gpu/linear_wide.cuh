/* linear_wide.cuh: gate and up of 65 to 256 rows and more, with silu(gate) · up in the epilogue, on sm_90a: where arithmetic takes
 * as long as reading W, and a matrix has so few tiles that the last round of a kernel with tiles of 128 or 256 outputs leaves a
 * part of the multiprocessors idle (GLM-4-9B: 214 tiles of 128 outputs for 132, so a fifth).
 * Owns the kernel and how a product is cut; linear_wide.cu launches it.
 *
 * Rows of x lie on the side of wgmma that has 64, W on the side whose width may be any multiple of 8: a tile is as wide as a
 * block's share of W, 104 outputs (208 rows of W) or 88.  Two blocks are a cluster: they take neighbouring tiles, and each
 * brings half of x for both.
 *
 *      a stage   gate [OUTPUTS][64 k] │ up [OUTPUTS][64 k] │ x [128 · TILES][64 k], 128-byte swizzle
 *
 * One thread fetches W, one x; two warpgroups multiply TILES · 64 rows of x each.  A thread holds gate and up of its outputs.
 * They are rounded to T before silu, as silu_gate finds them.  Sums are chains over ascending k, as those of linear_skinny.
 *
 * Where this has run: on an H200, and on the host under the emulator, which knows no clusters: there one of one block. */
#ifndef PENSTOCK_GPU_LINEAR_WIDE_CUH
#define PENSTOCK_GPU_LINEAR_WIDE_CUH

#include "gpu/linear_skinny.cuh"
#include "gpu/ring.cuh"

enum {
	WIDE_CLUSTER = 2,    /* blocks */
	WIDE_WARPGROUPS = 2, /* that multiply */
	WIDE_STAGES_MAX = 8, WIDE_BARRIER_BYTES = 2 * WIDE_STAGES_MAX * 8,
	WIDE_THREADS = (WIDE_WARPGROUPS + 1) * 128
};

struct wide_product {
	void    *y;
	uint32_t outputs, rows, y_stride;
	/* Cut. */
	uint32_t steps;  /* of 64 k */
	uint32_t row_tiles; /* of x: those that share W follow each other */
	uint32_t tiles;     /* all, of a cluster's outputs */
	uint32_t *mark;  /* where to say that the kernel began; NULL = nowhere */
	uint32_t  mark_value;
};

/* Sizes for TILES of 64 rows of a warpgroup and N rows of W. */
__host__ __device__ static constexpr uint32_t wide_rows(int tiles) { return WIDE_WARPGROUPS * 64 * (uint32_t)tiles; }
__host__ __device__ static constexpr uint32_t wide_weight_bytes(int n) { return (uint32_t)n * SKINNY_PANEL_BYTES; }
__host__ __device__ static constexpr uint32_t wide_stage_bytes(int tiles, int n)
{
	return wide_weight_bytes(n) + wide_rows(tiles) * SKINNY_PANEL_BYTES;
}
__host__ __device__ static constexpr uint32_t wide_stages(int tiles, int n)
{
	const uint32_t fit = (SKINNY_SHARED_MAX - WIDE_BARRIER_BYTES) / wide_stage_bytes(tiles, n);

	return fit < WIDE_STAGES_MAX ? fit : (uint32_t)WIDE_STAGES_MAX;
}

static inline uint32_t wide_shared_bytes(int tiles, int n)
{
	return wide_stages(tiles, n) * wide_stage_bytes(tiles, n) + WIDE_BARRIER_BYTES;
}

/* The cut of a product of N rows of W a block, for clusters of BLOCKS. */
static inline struct wide_product wide_cut(uint32_t outputs, uint32_t k, uint32_t rows, int tiles, int n, uint32_t blocks)
{
	struct wide_product p = {};
	const uint32_t      each = (uint32_t)n / 2 * blocks;

	p.outputs = outputs;
	p.rows = rows;
	p.steps = k / SKINNY_PANEL;
	p.row_tiles = (rows + wide_rows(tiles) - 1) / wide_rows(tiles);
	p.tiles = p.row_tiles * ((outputs + each - 1) / each);
	return p;
}

/* Size of a tile: TILES of 64 rows of a warpgroup, N rows of W a block. */
struct wide_size {
	int tiles, n;
};

/* That of which a cluster multiplies least, of CLUSTERS that run at once. */
static inline struct wide_size wide_choose(uint32_t outputs, uint32_t rows, uint32_t clusters)
{
	static const int widths[] = { 208, 176 };
	struct wide_size ret = { rows <= wide_rows(1) ? 1 : 2, 0 };
	uint64_t         least = 0;

	for (int n : widths) {
		const uint32_t tiles = wide_cut(outputs, SKINNY_PANEL, rows, ret.tiles, n, WIDE_CLUSTER).tiles;
		const uint64_t work = (tiles + clusters - 1) / clusters * (uint64_t)n;

		if (!ret.n || work < least) {
			ret.n = n;
			least = work;
		}
	}
	return ret;
}

/* Whether there is such a kernel for silu(gate) · up of two matrices [OUTPUTS][k]. */
static inline bool wide_takes(uint32_t outputs, uint32_t k, uint32_t w_stride, uint32_t x_stride, const void *y, uint32_t y_stride)
{
	return outputs && outputs % 8 == 0 && k && k % SKINNY_PANEL == 0 && w_stride % 8 == 0 && x_stride % 8 == 0 &&
	    y_stride % 2 == 0 && ((uintptr_t)y & 3) == 0;
}

/* F(at, tile, step) for all stages of all tiles of this cluster, when they are free. */
template <int C, int TILES, int N, class F> __device__ static inline void wide_each_stage(const struct wide_product *p,
    mbarrier *empty, F f)
{
	struct ring_place at = { 0, 1 };

#pragma unroll 1
	for (uint32_t tile = blockIdx.x / C; tile < p->tiles; tile += gridDim.x / C)
#pragma unroll 1
		for (uint32_t step = 0; step < p->steps; step++, at.advance(wide_stages(TILES, N))) {
			barrier_wait(&empty[at.slot], at.parity);
			f(at.slot, tile, (int)step);
		}
}

/* One thread: W, which was there before the kernel began. */
template <int C, int TILES, int N> __device__ static inline void wide_fetch_weights(const struct wide_product *p,
    const tensor_map *map, char *ring, mbarrier *full, mbarrier *empty)
{
	const uint64_t once = cache_evict_first();

	wide_each_stage<C, TILES, N>(p, empty, [&](uint32_t at, uint32_t tile, int step) {
		char     *stage = ring + at * wide_stage_bytes(TILES, N);
		const int output = (int)((tile / p->row_tiles * C + blockIdx.x % C) * (N / 2));

		barrier_expect(&full[at], wide_weight_bytes(N));
		tma_load_3d(stage, map, 0, output, step, &full[at], once);
		tma_load_3d(stage + wide_weight_bytes(N / 2), map, 0, (int)p->outputs + output, step, &full[at], once);
	});
}

/* One thread: this block's part of x, for all blocks of the cluster. */
template <int C, int TILES, int N> __device__ static inline void wide_fetch_inputs(const struct wide_product *p,
    const tensor_map *map, char *ring, mbarrier *full, mbarrier *empty)
{
	constexpr uint32_t PART = wide_rows(TILES) / C;
	const uint64_t     often = cache_evict_last();
	const uint32_t     rank = blockIdx.x % C;

	wide_each_stage<C, TILES, N>(p, empty, [&](uint32_t at, uint32_t tile, int step) {
		char     *stage = ring + at * wide_stage_bytes(TILES, N) + wide_weight_bytes(N);
		const int row = (int)(tile % p->row_tiles * wide_rows(TILES) + rank * PART);

		barrier_expect(&full[at], wide_rows(TILES) * SKINNY_PANEL_BYTES);
		tma_load_3d_multicast(stage + rank * PART * SKINNY_PANEL_BYTES, map, 0, row, step, &full[at], (1 << C) - 1, often);
	});
}

/* A warpgroup's sums of a tile. */
template <class T, int C, int TILES, int N> __device__ static inline void wide_multiply(float (&sum)[TILES][N / 2], uint32_t ring,
    uint32_t steps, struct ring_place *at, mbarrier *full, mbarrier *empty)
{
	constexpr uint32_t STAGES = wide_stages(TILES, N), TILE_BYTES = 64 * SKINNY_PANEL_BYTES;
	const uint32_t     group = threadIdx.x / 128;

	for (uint32_t step = 0; step < steps; step++) {
		/* By way of lane 0: uniform registers, as in linear_skinny.cuh. */
		const uint32_t w_at = __shfl_sync(~0u, ring + at->slot * wide_stage_bytes(TILES, N), 0);
		const uint32_t x_at = __shfl_sync(~0u, w_at + wide_weight_bytes(N) + group * TILES * TILE_BYTES, 0);

		barrier_wait(&full[at->slot], at->parity);
		wgmma_fence();
#pragma unroll
		for (uint32_t i = 0; i < 4; i++)
#pragma unroll
			for (int m = 0; m < TILES; m++)
				wgmma_ss<T, N>(sum[m], wgmma_descriptor(x_at + m * TILE_BYTES + i * 32, 16, 1024, SWIZZLE_128),
				    wgmma_descriptor(w_at + i * 32, 16, 1024, SWIZZLE_128), i > 0 || step > 0);
		wgmma_commit();
		wgmma_wait<1>();
		if (step)
			ring_release<C>(&empty[(at->slot + STAGES - 1) % STAGES], threadIdx.x % 32);
		at->advance(STAGES);
	}
	wgmma_wait<0>();
#pragma unroll
	for (int m = 0; m < TILES; m++)
		wgmma_settle(sum[m]);
	ring_release<C>(&empty[(at->slot + STAGES - 1) % STAGES], threadIdx.x % 32);
}

/* Neighbouring outputs, stored at once. */
template <class T> struct alignas(4) wide_pair {
	T first, second;
};

/* silu(gate) · up of 64 rows, from ROW on for this thread. */
template <class T, int N> __device__ static inline void wide_store(const struct wide_product *p, const float (&sum)[N / 2],
    uint32_t row, uint32_t output)
{
	const uint32_t lane = threadIdx.x % 32;

#pragma unroll
	for (int h = 0; h < 2; h++) {
		const uint32_t at = row + lane / 4 + 8 * h;
		T             *y = (T *)p->y + (size_t)at * p->y_stride + output + lane % 4 * 2;

#pragma unroll
		for (int j = 0; j < N / 16; j++) {
			float two[2];

#pragma unroll
			for (int e = 0; e < 2; e++) {
				const float gate = to_float(from_float<T>(sum[4 * j + 2 * h + e]));
				const float up = to_float(from_float<T>(sum[4 * (j + N / 16) + 2 * h + e]));

				two[e] = silu_times(gate, up);
			}
			if (at < p->rows && output + 8 * j < p->outputs)
				*(struct wide_pair<T> *)(y + 8 * j) = { from_float<T>(two[0]), from_float<T>(two[1]) };
		}
	}
}

/* A grid of clusters of C blocks, at most as many as there are tiles. */
template <class T, int C, int TILES, int N> static __global__ void CLUSTER_OF(C) __launch_bounds__(WIDE_THREADS, 1)
    wide_kernel(const __grid_constant__ tensor_map w_map, const __grid_constant__ tensor_map x_map,
        const __grid_constant__ struct wide_product p)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	constexpr uint32_t STAGES = wide_stages(TILES, N);
	char          *ring = shared_memory();
	mbarrier      *full = (mbarrier *)(ring + STAGES * wide_stage_bytes(TILES, N)), *empty = full + STAGES;
	const uint32_t group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;

	dependents_launch();
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < STAGES; i++) {
			barrier_init(&full[i], 2);
			barrier_init(&empty[i], 4 * WIDE_WARPGROUPS * C);
		}
		fence_barrier_init();
	}
	cluster_sync();
	if (group == WIDE_WARPGROUPS) {
		registers_lower<24>();
		if (threadIdx.x % 128 == 0)
			wide_fetch_weights<C, TILES, N>(&p, &w_map, ring, full, empty);
		if (threadIdx.x % 128 == 32) {
			dependency_wait();
			if (p.mark && blockIdx.x == 0)
				*(volatile uint32_t *)p.mark = p.mark_value;
			wide_fetch_inputs<C, TILES, N>(&p, &x_map, ring, full, empty);
		}
		__syncwarp();
	} else {
		struct ring_place at = { 0, 0 };

		registers_raise<240>();
		dependency_wait();
		for (uint32_t tile = blockIdx.x / C; tile < p.tiles; tile += gridDim.x / C) {
			const uint32_t output = (tile / p.row_tiles * C + blockIdx.x % C) * (N / 2);
			const uint32_t row = tile % p.row_tiles * wide_rows(TILES) + group * TILES * 64 + warp * 16;
			float          sum[TILES][N / 2];

			wide_multiply<T, C, TILES, N>(sum, shared_address(ring), p.steps, &at, full, empty);
#pragma unroll
			for (int m = 0; m < TILES; m++)
				wide_store<T, N>(&p, sum[m], row + m * 64, output);
		}
	}
	cluster_sync(); /* nobody ends while another block may still copy to it or arrive at its barriers */
#endif
}

#endif
