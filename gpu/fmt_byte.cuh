/* fmt_byte.cuh: products with weights of one byte, float8 e4m3 and int8, and the rounding of activations to such bytes, where
 * nothing before them did it (byte_round.cuh).
 * Owns the kernels, how a product is cut, and how values and scales lie.  Does not own memory, launches or which product
 * goes through them (fmt_byte.cu).  Invariant: a row's bits do not depend on how many rows are multiplied with it.
 *
 * y [rows][n] = x · Wᵀ.  Weights are the M side of wgmma (64 outputs), rows of activations its N side (8 … 128), so that
 * few rows waste little.  Two threads fill a ring of stages, one copy for all weights of a stage and one for all of its
 * activations, since a thread begins only so many copies a second; one or two warpgroups multiply:
 *
 *      stage    weights [panels][tile_rows][128] bytes, 128-byte swizzle │ activations [panels][token_tile][128], bytes or
 *               bfloat16 │ scales [panels][token_tile]
 *
 * A tile of outputs goes over all inputs in one block.  Each panel of 128 inputs makes a sum of its own, which is then added
 * to the total with its scales, total += sum · (w · x), in float32 and in the order of inputs: the tensor cores' own sums of
 * e4m3 keep too few bits for more.  Sums of int8 are int32 and exact: there is but one over all inputs.
 *
 * Kinds.  Activations that the checkpoint wants rounded (enum weight_input) meet the weights as bytes.  Where it does not,
 * weights become bfloat16 in registers, exactly, and activations stay as they are ("wide"); to be found there with one load
 * of four bytes, the sixteen inputs of a k16 step of a wide weight lie in the order of byte_place.
 *
 * Scales of weights: one for each output, which is applied at the end, or for each granule of outputs and 128 inputs, as
 * [granules][groups, a multiple of 4], which is what cuBLASLt reads too where granules are of 128; a granule is a power of two,
 * at least 8, so that blocks of 128 × 128 in a stack of parts whose sizes are no multiples of 128 are told by smaller granules.
 * Scales of activations: one for each row, or [groups][rows].
 *
 * Values that are not finite.  A row (or its group) whose largest value is not finite has a scale of NaN, and so has all
 * that is computed from it; with a fixed scale infinity is the largest value that there is, and NaN makes the scale NaN.
 * e4m3 weights with patterns that are no number have scales of NaN (fmt_byte_load.cuh).
 *
 * Where this has run: on an H200, where f8 in blocks and by rows has cuBLASLt's bits, and on the host under the emulator of
 * tests/gpu/emulate. */
#ifndef PENSTOCK_GPU_FMT_BYTE_CUH
#define PENSTOCK_GPU_FMT_BYTE_CUH

#include "gpu/byte_round.cuh"
#include "gpu/heads.cuh"
#include "gpu/pace.cuh"
#include "gpu/ring.cuh"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum byte_kind {
	BYTE_F8,      /* e4m3 · e4m3 */
	BYTE_I8,      /* int8 · int8 */
	BYTE_F8_WIDE, /* e4m3 · bfloat16 */
	BYTE_I8_WIDE  /* int8 · bfloat16 */
};
enum byte_output { BYTE_OUT_F32, BYTE_OUT_BF16, BYTE_OUT_F16 };

enum {
	BYTE_WARPGROUPS = 2,     /* at most */
	BYTE_STAGES_MAX = 24,
	BYTE_TOKENS_MAX = 128,   /* of a tile */
	BYTE_TALL_TILES = 3,     /* of 64 outputs that a warpgroup has at most, up to 64 rows */
	BYTE_LARGE_TILES = 2,    /* the same for more rows */
	BYTE_GRANULE_LEAST = 8,
	BYTE_SCALES_MAX = 16 << 10, /* bytes of weight scales of a tile in shared memory */
	BYTE_I8_INPUTS_MAX = 1 << 17, /* 128 · 128 · 2¹⁷ = 2³¹: more would not fit into int32 */
	BYTE_SHARED_MAX = 227 << 10,
	BYTE_FEW_TOKENS = 8,  /* of a token tile, at most, for which tiles of BYTE_F8 have at most so many outputs: */
	BYTE_FEW_ROWS = 128,  /* blocks side by side in the weights read faster than those far from each other */
	BYTE_SPARE = 4, /* multiprocessors that products of few rows leave to the small kernels around them */
	BYTE_HEADS_TOKENS = 16, /* of a token tile, at most, whose results go to heads without another kernel */
	BYTE_OUT_TOKENS = 64, /* rows of results that a warpgroup turns over in shared memory at once */
	BYTE_OUT_PITCH = 64 * 2 + 16, /* bytes of a row there: of 64 results, and so many more that banks differ */
	BYTE_ROUND_GROUPS = 8, /* of a block, each by a warp */
	BYTE_ROUND_VALUES = BYTE_ROUND_GROUPS * 128,
	BYTE_ROUND_THREADS_MAX = 1024,
	BYTE_ROUND_KEPT = 6, /* packs of four that a thread loads at once, and keeps while it looks for the largest value of a row */
	BYTE_ROUND_FEW = 128 /* rows: blocks of more have fewer threads, so that several run on a multiprocessor */
};

__host__ __device__ static inline constexpr bool byte_wide(enum byte_kind kind) { return kind == BYTE_F8_WIDE || kind ==
    BYTE_I8_WIDE; }

/* ---- How a product is cut ---- */

/* What a kernel is told. */
struct byte_product {
	const float *w_scales, *x_scales; /* x_scales: NULL for wide kinds */
	void        *y;
	enum byte_output output;
	uint32_t n, k, rows, y_stride;
	uint32_t granule;        /* outputs of a row of w_scales, a power of two; 0: one scale for each output */
	uint32_t groups;         /* of 128 inputs */
	uint32_t x_scale_stride; /* of groups; 0: one scale for each row.  Multiple of 4 */
	/* Cut. */
	uint32_t tile_rows;      /* outputs of a block, a multiple of 8 */
	uint32_t boxes;          /* of which they are loaded, one below the other */
	uint32_t warpgroups;
	uint32_t panels;         /* of a stage */
	uint32_t steps;          /* stages of a tile; behind the last group there are zeros */
	uint32_t stages;         /* of the ring, at least two */
	uint32_t pace;           /* of weights while kernels before this one run: pace_of; 0: none */
	uint32_t late;           /* the next kernel may begin when one stage is left to ask for, not at once */
	uint32_t whole_x;        /* a copy brings all activations of a stage, else each 64 of them (of bfloat16) has its own */
	uint32_t row_tiles, token_tiles;
	uint32_t shared_bytes;
	/* Which instance of the kernel. */
	uint32_t token_tile, tiles;
	struct head_target heads; /* what is made of y; without keys: nothing.  Of token tiles to BYTE_HEADS_TOKENS */
	uint32_t *mark; /* where to say that it began, and what; NULL: nowhere */
	uint32_t  mark_value;
};

/* Panels of a stage: copies of 16 KiB and more. */
__host__ __device__ static inline constexpr uint32_t byte_panels(enum byte_kind kind, uint32_t token_tile, uint32_t tiles)
{
	return tiles > 1 || token_tile == BYTE_TOKENS_MAX ? 1 : byte_wide(kind) && token_tile == 64 ? 2 : 4;
}

/* Sums in registers: while one is added those behind it are multiplied, so that few rows do not wait for every 128 inputs. */
__host__ __device__ static inline constexpr int byte_sums(enum byte_kind kind, uint32_t token_tile, uint32_t tiles)
{
	return byte_wide(kind) ? token_tile * tiles >= BYTE_TOKENS_MAX ? 1 : 2 :
	    token_tile <= 16 ? tiles > 1 ? 6 : 8 :
	    token_tile <= 32 ? 4 :
	    token_tile == 64 && tiles == 1 ? 4 :
	    token_tile == BYTE_TOKENS_MAX && tiles > 1 ? 1 : 2;
}

/* Decoded wide weights in registers: with two of them one is decoded while the tensor cores have the other. */
__host__ __device__ static inline constexpr int byte_buffers(uint32_t token_tile, uint32_t tiles)
{
	return token_tile == BYTE_TOKENS_MAX && tiles > 1 ? 1 : 2;
}

/* Stages that are multiplied in one go. */
__host__ __device__ static inline constexpr uint32_t byte_round(enum byte_kind kind, uint32_t token_tile, uint32_t tiles)
{
	return byte_wide(kind) ? byte_panels(kind, token_tile, tiles) == 1 ? 2 : 1 :
	    byte_panels(kind, token_tile, tiles) == 1 ? byte_sums(kind, token_tile, tiles) > 1 ? 2 : 1 : token_tile <= 16 ? 2 : 1;
}

/* Scales of a granule. */
__host__ __device__ static inline uint32_t byte_scale_stride(uint32_t groups) { return byte_round_up(groups, 4); }

/* Bytes of a panel's activations. */
__host__ __device__ static inline uint32_t byte_x_bytes(enum byte_kind kind, uint32_t token_tile)
{
	return token_tile * (uint32_t)BYTE_GROUP * (byte_wide(kind) ? 2 : 1);
}

/* Whether results go through shared memory, so that they are stored by 16 bytes: of many rows that would else take long. */
__host__ __device__ static inline bool byte_turns(const struct byte_product *p)
{
	return p->token_tile == BYTE_TOKENS_MAX && p->output != BYTE_OUT_F32 && p->y_stride % 8 == 0 && ((uintptr_t)p->y & 15) == 0 &&
	    p->tile_rows % 8 == 0;
}

/* Where things lie in shared memory, from an address that is a multiple of 1024 on. */
struct byte_shared {
	uint32_t activations, stage_bytes; /* of a stage: where its activations begin, and its length */
	uint32_t x_scales, x_scale_bytes;  /* of a stage */
	uint32_t ones, w_scales, barriers, out, end;
};

__host__ __device__ static inline struct byte_shared byte_shared_of(enum byte_kind kind, const struct byte_product *p)
{
	struct byte_shared s;
	uint32_t           granules = p->granule ? p->tile_rows / p->granule + 2 : 0, panel = p->tile_rows * (uint32_t)BYTE_GROUP, read;

	s.activations = p->panels * panel;
	s.stage_bytes = s.activations + p->panels * byte_x_bytes(kind, p->token_tile);
	/* Tiles are of 64 rows: those that a panel lacks are read from what lies behind it, behind the last stage from nothing. */
	read = s.stage_bytes * (p->stages - 1) + (p->panels - 1) * panel + byte_round_up(p->tile_rows, 64) * (uint32_t)BYTE_GROUP;
	s.x_scales = s.stage_bytes * p->stages > read ? s.stage_bytes * p->stages : read;
	s.x_scale_bytes = p->x_scale_stride ? byte_round_up(p->panels * p->token_tile * 4, 128) : 0;
	s.ones = s.x_scales + p->stages * s.x_scale_bytes;
	s.w_scales = s.ones + p->token_tile * 4;
	s.barriers = s.w_scales + granules * byte_scale_stride(p->groups) * 4;
	s.out = byte_round_up(s.barriers + (2 * p->stages + 1) * 8, 16);
	s.end = s.out + (byte_turns(p) ? p->warpgroups * (uint32_t)(BYTE_OUT_TOKENS * BYTE_OUT_PITCH) : 0);
	return s;
}

/* What tiles of ROWS outputs by BYTE_TOKENS_MAX rows cost: cycles of the tensor cores, or of 48 bytes from L2, for 128 inputs. */
static inline uint64_t byte_cost(enum byte_kind kind, uint32_t rows)
{
	uint32_t multiply = (rows + 63) / 64 * (byte_wide(kind) ? 512 : 256);
	uint32_t load = (rows * (uint32_t)BYTE_GROUP + byte_x_bytes(kind, BYTE_TOKENS_MAX)) / 48;

	return multiply > load ? multiply : load;
}

/* Outputs of a tile at most: MOST, or as many as their scales have room for; 0: fewer than a multiplication takes. */
static inline uint32_t byte_tile_most(const struct byte_product *p, uint32_t most)
{
	uint32_t granules = (uint32_t)BYTE_SCALES_MAX / (byte_scale_stride(p->groups) * 4), rows;

	if (!p->granule)
		return most;
	rows = granules > 2 ? (granules - 2) * p->granule : 0; /* a tile may begin and end within a granule */
	return rows >= most ? most : rows >= 64 ? rows / 16 * 16 : 0;
}

/* Outputs of a tile, of at most MOST, for tiles that go to MULTIPROCESSORS in rounds. */
static inline uint32_t byte_tile_rows(enum byte_kind kind, const struct byte_product *p, uint32_t multiprocessors, uint32_t most)
{
	uint64_t row_tiles = (p->n + most - 1) / most, best = UINT64_MAX;
	uint32_t first = (uint32_t)((row_tiles * p->token_tiles + multiprocessors - 1) / multiprocessors), ret = most;

	for (uint32_t rounds = first; rounds < first + 4; rounds++) {
		uint64_t tiles = (uint64_t)rounds * multiprocessors / p->token_tiles;
		uint32_t rows = tiles ? byte_round_up((uint32_t)((p->n + tiles - 1) / tiles), 8) : most + 1;

		if (rows <= most && rounds * byte_cost(kind, rows) < best) {
			best = rounds * byte_cost(kind, rows);
			ret = rows;
		}
	}
	return ret;
}

/* Fills the cut of P, whose sizes, granule and x_scale_stride are there, for MULTIPROCESSORS; false where there is none, which does
 * not depend on outputs, rows or MULTIPROCESSORS unless one of them is 0. */
static inline bool byte_cut(enum byte_kind kind, uint32_t multiprocessors, struct byte_product *p)
{
	bool     large = p->rows > 64;
	uint32_t tiles = large ? (uint32_t)BYTE_LARGE_TILES : (uint32_t)BYTE_TALL_TILES, most, passes;

	if (p->n == 0 || p->k == 0 || p->rows == 0 || multiprocessors == 0 || (p->granule && p->granule < BYTE_GRANULE_LEAST) ||
	    (p->granule & (p->granule - 1)) || p->x_scale_stride % 4 || (kind == BYTE_I8 && p->k >= BYTE_I8_INPUTS_MAX) ||
	    (kind == BYTE_I8 && (p->granule || p->x_scale_stride)))
		return false;
	p->groups = (p->k + BYTE_GROUP - 1) / BYTE_GROUP;
	p->token_tile = p->rows <= 8 ? 8 : p->rows <= 16 ? 16 : p->rows <= 32 ? 32 : p->rows <= 64 ? 64 : BYTE_TOKENS_MAX;
	p->token_tiles = (p->rows + p->token_tile - 1) / p->token_tile;
	most = byte_tile_most(p, tiles * 64 * BYTE_WARPGROUPS);
	if (most == 0)
		return false;
	if (!large && multiprocessors > 16 * BYTE_SPARE)
		multiprocessors -= BYTE_SPARE;
	p->late = kind == BYTE_F8 && p->token_tile <= BYTE_FEW_TOKENS;
	if (p->late && most > BYTE_FEW_ROWS)
		most = BYTE_FEW_ROWS;
	passes = (p->n + multiprocessors * most - 1) / (multiprocessors * most);
	p->tile_rows = large ? byte_tile_rows(kind, p, multiprocessors, most) :
	    (p->n + multiprocessors * passes - 1) / (multiprocessors * passes);
	p->boxes = p->tile_rows > 256 ? 2 : 1;
	p->tile_rows = byte_round_up(p->tile_rows, 8 * p->boxes);
	p->warpgroups = p->tile_rows <= 64 ? 1 : 2;
	p->tiles = p->tile_rows <= 64 * p->warpgroups ? 1 : tiles;
	p->panels = byte_panels(kind, p->token_tile, p->tiles);
	p->steps = byte_round_up((p->groups + p->panels - 1) / p->panels, byte_round(kind, p->token_tile, p->tiles));
	p->whole_x = !byte_wide(kind) || p->k % 64 == 0;
	p->row_tiles = (p->n + p->tile_rows - 1) / p->tile_rows;
	p->pace = pace_of(p->row_tiles * p->token_tiles < multiprocessors ? p->row_tiles * p->token_tiles : multiprocessors);
	for (p->stages = BYTE_STAGES_MAX; p->stages >= 2; p->stages--) {
		p->shared_bytes = byte_shared_of(kind, p).end + 1024; /* to begin at a multiple of it */
		if (p->shared_bytes <= BYTE_SHARED_MAX)
			return true;
	}
	return false;
}

/* Blocks of the kernel that is cut so: of `late` ones no more than have as many tiles each. */
static inline uint32_t byte_blocks(const struct byte_product *p, uint32_t multiprocessors)
{
	const uint32_t tiles = p->row_tiles * p->token_tiles, rounds = (tiles + multiprocessors - 1) / multiprocessors;

	return p->late ? (tiles + rounds - 1) / rounds : tiles < multiprocessors ? tiles : multiprocessors;
}

/* The maps of a product: weights as [panels][rows][128 bytes], activations likewise or, where WHOLE_X is not set, [rows][inputs],
 * and their scales by group, [groups][rows]; X is read from STRIDE bytes to STRIDE bytes. */
static inline struct tensor_layout byte_weight_map(const struct byte_product *p, const void *values, uint32_t stride)
{
	return { TENSOR_U8, 3, values, { BYTE_GROUP, p->n, stride / BYTE_GROUP }, { 0, stride, BYTE_GROUP },
		{ BYTE_GROUP, p->tile_rows / p->boxes, p->panels }, SWIZZLE_128 };
}
static inline struct tensor_layout byte_input_map(enum byte_kind kind, const struct byte_product *p, const void *x, uint32_t stride)
{
	if (!byte_wide(kind))
		return { TENSOR_U8, 3, x, { BYTE_GROUP, p->rows, stride / BYTE_GROUP }, { 0, stride, BYTE_GROUP },
			{ BYTE_GROUP, p->token_tile, p->panels }, SWIZZLE_128 };
	if (p->whole_x)
		return { TENSOR_BF16, 3, x, { 64, p->rows, p->k / 64 }, { 0, stride, 128 }, { 64, p->token_tile, 2 * p->panels },
			SWIZZLE_128 };
	return { TENSOR_BF16, 2, x, { p->k, p->rows }, { 0, stride }, { 64, p->token_tile }, SWIZZLE_128 };
}
static inline struct tensor_layout byte_scale_map(const struct byte_product *p)
{
	return { TENSOR_F32, 2, p->x_scales, { p->x_scale_stride, p->groups }, { 0, p->x_scale_stride * (uint64_t)4 },
		{ p->token_tile, p->panels }, SWIZZLE_NONE };
}

/* ---- How weights lie ---- */

/* Of sixteen inputs of a wide weight: which one byte I holds.  Thread t of four has bytes 4t … 4t + 3, which are the inputs
 * 2t, 2t + 1, 2t + 8, 2t + 9 of the fragments of a k16 step. */
__host__ __device__ static inline uint32_t byte_place(uint32_t i) { return i / 4 * 2 + i % 2 + i / 2 % 2 * 8; }

/* COUNT bytes (a multiple of 16) in that order. */
static inline void byte_order(const uint8_t *from, size_t count, uint8_t *to)
{
	for (size_t k = 0; k < count; k++)
		to[k] = from[k / 16 * 16 + byte_place((uint32_t)(k % 16))];
}

/* ---- Numbers ---- */

/* Total · output's scale · row's scale: in cuBLASLt's order. */
template <class S> __host__ __device__ static inline float byte_scaled(S total, float x, float w) { return (float)total * w * x; }

/* ---- Rounding of activations ---- */

struct byte_rounding {
	const void *x;
	uint8_t    *q;
	float      *scales;
	uint32_t    rows, width, x_stride, q_stride; /* multiples of 4 elements and of BYTE_ALIGN; zeros behind width */
	uint32_t    scale_stride; /* of groups of 128 inputs; 0: one scale for a row */
	float       fixed;        /* the scale; 0: amax / largest */
	uint32_t   *mark;         /* as in struct byte_product */
	uint32_t    mark_value;
};

/* Bytes of rounded rows and their scales, and where the scales begin: of rows by fours, which cuBLASLt reads. */
__host__ __device__ static inline uint64_t byte_rounded_scales(uint64_t rows, uint32_t width)
{
	return ((rows + 3) / 4 * 4 * byte_round_up(width, BYTE_ALIGN) + 255) / 256 * 256;
}
__host__ __device__ static inline uint64_t byte_rounded_bytes(uint64_t rows, uint32_t width)
{
	return byte_rounded_scales(rows, width) + (width + BYTE_GROUP - 1) / BYTE_GROUP * ((rows + 3) / 4 * 4) * 4;
}

/* Threads of byte_round_kernel, and its blocks along y. */
__host__ __device__ static inline uint32_t byte_round_threads(const struct byte_rounding *r)
{
	uint32_t packs = (r->width + 3) / 4, each = r->rows > BYTE_ROUND_FEW ? BYTE_ROUND_KEPT : 1;
	uint32_t threads = byte_round_up((packs + each - 1) / each, 32);

	return r->scale_stride ? BYTE_ROUND_GROUPS * 32 : threads < BYTE_ROUND_THREADS_MAX ? threads : (uint32_t)BYTE_ROUND_THREADS_MAX;
}

__host__ __device__ static inline uint32_t byte_round_blocks(const struct byte_rounding *r)
{
	return r->scale_stride ? (r->width + BYTE_ROUND_VALUES - 1) / BYTE_ROUND_VALUES : 1;
}

/* By one thread of block 0. */
__device__ static inline void byte_mark(uint32_t *mark, uint32_t value)
{
	if (mark && blockIdx.x == 0)
		*(volatile uint32_t *)mark = value;
}

/* Four elements that lie together. */
template <class T> struct alignas(4 * sizeof(T)) byte_four {
	T v[4];
};

template <class T> __device__ static inline void byte_values(const byte_four<T> &four, float ret[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		ret[i] = byte_value(four.v[i]);
}

/* Elements K … K + 3 of a row, zeroes behind its end. */
template <class T> __device__ static inline void byte_load(const T *x, uint32_t k, uint32_t width, float ret[4])
{
	if (k + 4 <= width) {
		const byte_four<T> four = *(const byte_four<T> *)(x + k);

		byte_values(four, ret);
	} else {
		for (int i = 0; i < 4; i++)
			ret[i] = k + i < width ? byte_value(x[k + i]) : 0;
	}
}

/* Blocks (row, y): y counts BYTE_ROUND_GROUPS groups where scales are by group, else it is 0. */
template <class T, bool I8> __global__ void __launch_bounds__(BYTE_ROUND_THREADS_MAX) byte_round_kernel(
    const struct byte_rounding r)
{
	__shared__ float shared[BYTE_ROUND_THREADS_MAX / 32];
	const uint32_t row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, stride = blockDim.x * 4;
	const T       *x = (const T *)r.x + (size_t)row * r.x_stride;
	uint8_t       *q = r.q + (size_t)row * r.q_stride;
	float          amax = 0, v[4];
	byte_four<T>   kept[BYTE_ROUND_KEPT] = {};

	dependents_launch();
	dependency_wait();
	if ((threadIdx.x | blockIdx.y) == 0)
		byte_mark(r.mark, r.mark_value);
	if (r.scale_stride) { /* a warp for each group */
		uint32_t group = blockIdx.y * BYTE_ROUND_GROUPS + warp, k = group * BYTE_GROUP + lane * 4;
		float    scale;

		if (group * BYTE_GROUP >= r.width)
			return;
		byte_load(x, k, r.width, v);
		scale = byte_scale_of(I8, byte_lanes_amax<32>(byte_largest(v)), r.fixed);
		byte_put(I8, q, k, v, scale);
		if (lane == 0)
			r.scales[(size_t)group * r.scale_stride + row] = scale;
		return;
	}
#pragma unroll
	for (uint32_t p = 0; p < BYTE_ROUND_KEPT; p++) /* nothing else in the way: all begin before one is waited for */
		if (p * stride + threadIdx.x * 4 + 4 <= r.width)
			kept[p] = *(const byte_four<T> *)(x + p * stride + threadIdx.x * 4);
#pragma unroll
	for (uint32_t p = 0; p < BYTE_ROUND_KEPT; p++) {
		uint32_t k = p * stride + threadIdx.x * 4;

		if (k < r.width && k + 4 > r.width)
			for (uint32_t i = 0; i < 3; i++)
				if (k + i < r.width)
					kept[p].v[i] = x[k + i];
		byte_values(kept[p], v);
		amax = byte_larger(byte_largest(v), amax);
	}
	for (uint32_t k = BYTE_ROUND_KEPT * stride + threadIdx.x * 4; k < r.width; k += stride) {
		byte_load(x, k, r.width, v);
		amax = byte_larger(byte_largest(v), amax);
	}
	amax = byte_scale_of(I8, byte_block_amax(amax, shared), r.fixed);
#pragma unroll
	for (uint32_t p = 0; p < BYTE_ROUND_KEPT; p++) {
		byte_values(kept[p], v);
		if (p * stride + threadIdx.x * 4 < r.q_stride)
			byte_put(I8, q, p * stride + threadIdx.x * 4, v, amax);
	}
	for (uint32_t k = BYTE_ROUND_KEPT * stride + threadIdx.x * 4; k < r.q_stride; k += stride) {
		byte_load(x, k, r.width, v);
		byte_put(I8, q, k, v, amax);
	}
	if (threadIdx.x == 0)
		r.scales[row] = amax;
}

/* ---- Products ---- */

template <enum byte_kind KIND> struct byte_types;
template <> struct byte_types<BYTE_F8> { typedef __nv_fp8_e4m3 element; typedef float sum; };
template <> struct byte_types<BYTE_I8> { typedef int8_t element; typedef int32_t sum; };
template <> struct byte_types<BYTE_F8_WIDE> { typedef __nv_bfloat16 element; typedef float sum; };
template <> struct byte_types<BYTE_I8_WIDE> { typedef __nv_bfloat16 element; typedef float sum; };

/* Two bfloat16 in a word. */
union byte_pair {
	uint32_t       bits;
	__nv_bfloat162 v;
};

/* Two of the four bytes of V as bfloat16, to the bit: the first two or the last two. */
template <enum byte_kind KIND> __device__ static inline uint32_t byte_to_pair(uint32_t v, bool last)
{
	if (KIND == BYTE_F8_WIDE) {
		/* The exponent where that of bfloat16 is, which counts from 127 instead of 7: times 2¹²⁰. */
		uint32_t        spread = __byte_perm(v, 0, last ? 0x3424 : 0x1404);
		union byte_pair small = { (spread & 0x80008000) | (spread & 0x7f007f00) >> 4 }, factor = { 0x7b807b80 };

		small.v = __hmul2(small.v, factor.v);
		return small.bits;
	} else {
		/* Of v = low − sign · 128: (128 + low) − (128 + sign · 128). */
		uint32_t        spread = __byte_perm(v, 0, last ? 0x4342 : 0x4140);
		union byte_pair low = { (spread & 0x007f007f) | 0x43004300 }, sign = { (spread & 0x00800080) | 0x43004300 };

		low.v = __hsub2(low.v, sign.v);
		return low.bits;
	}
}

/* Parts of a panel that are begun for themselves, as wide weights are decoded: fewer inputs where registers are scarce. */
__host__ __device__ static inline constexpr int byte_parts(enum byte_kind kind, uint32_t token_tile, uint32_t tiles)
{
	return !byte_wide(kind) ? 1 : byte_buffers(token_tile, tiles) == 1 ? 4 : 2;
}

/* Wide weights of part PART of H of a panel, 64 outputs at W (row 0 of the tile), as fragments of k16. */
template <enum byte_kind KIND, int H> __device__ static inline void byte_decode(uint32_t (*a)[4], const char *w, int part)
{
	const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;

#pragma unroll
	for (int q = 0; q < 8 / H; q += 2) {
		uint32_t r[4]; /* upper and lower eight rows of k16 q, the same of k16 q + 1 */

		ldmatrix_x4(r, w + row * BYTE_GROUP + (((8 / H * part + q + lane / 16) ^ row % 8) << 4));
#pragma unroll
		for (int i = 0; i < 4; i++) {
			a[q + i / 2][i % 2] = byte_to_pair<KIND>(r[i], false);
			a[q + i / 2][i % 2 + 2] = byte_to_pair<KIND>(r[i], true);
		}
	}
}

/* Begins part PART of H of a sum of 128 inputs: weights at W or decoded in A, MT rows at X.  Who reads SUM or writes A waits
 * first. */
template <enum byte_kind KIND, int MT, int H> __device__ static inline void byte_multiply(typename byte_types<KIND>::sum *sum,
    const uint32_t (*a)[4], const char *w, const char *x, int part)
{
	typedef typename byte_types<KIND>::element E;

	wgmma_fence();
#pragma unroll
	for (int q = 0; q < (byte_wide(KIND) ? 8 / H : 4); q++)
		if constexpr (byte_wide(KIND)) {
			const int k16 = 8 / H * part + q;

			wgmma_rs<E, MT>(sum, a[q], wgmma_descriptor(x + k16 / 4 * (MT * 128) + k16 % 4 * 32, 16, 1024, SWIZZLE_128),
			    k16 > 0);
		} else
			wgmma_ss<E, MT>(sum, wgmma_descriptor(w + 32 * q, 16, 1024, SWIZZLE_128), wgmma_descriptor(x + 32 * q, 16, 1024,
			    SWIZZLE_128), q > 0);
	wgmma_commit();
}

/* total += sum · (w · x): W0 and W1 for the upper and the lower eight rows of a warp's sixteen, X for this thread's columns;
 * of wide weights that is 1. */
template <bool WIDE, int MT> __device__ static inline void byte_promote(float *total, const float *sum, float w0, float w1,
    const float *x)
{
#pragma unroll
	for (int j = 0; j < MT / 8; j++) {
		float2 both = WIDE ? float2{ 1, 1 } : *(const float2 *)(x + 8 * j);

		total[4 * j] = fmaf(sum[4 * j], w0 * both.x, total[4 * j]);
		total[4 * j + 1] = fmaf(sum[4 * j + 1], w0 * both.y, total[4 * j + 1]);
		total[4 * j + 2] = fmaf(sum[4 * j + 2], w1 * both.x, total[4 * j + 2]);
		total[4 * j + 3] = fmaf(sum[4 * j + 3], w1 * both.y, total[4 * j + 3]);
	}
}

/* The bits of VALUE as the 16-bit type of OUTPUT. */
__device__ static inline uint16_t byte_short(enum byte_output output, float value)
{
	union {
		__nv_bfloat16 b;
		__half        h;
		uint16_t      bits;
	} u = {};

	if (output == BYTE_OUT_BF16)
		u.b = __float2bfloat16(value);
	else /* the largest half stands for what is larger */
		u.h = __float2half(value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value);
	return u.bits;
}

__device__ static inline void byte_store(const struct byte_product *p, uint32_t token, uint32_t row, float value)
{
	size_t at = (size_t)token * p->y_stride + row;

	if (p->output == BYTE_OUT_F32)
		((float *)p->y)[at] = value;
	else
		((uint16_t *)p->y)[at] = byte_short(p->output, value);
}

/* Stores 64 outputs of MT rows, which warpgroup GROUP has in TOTAL: outputs FIRST_ROW + ROW …, rows FIRST_TOKEN …. */
template <int MT, class S> __device__ static inline void byte_turn(const struct byte_product *p, char *shared, uint32_t group,
    const S *total, uint32_t row, uint32_t first_row, uint32_t first_token)
{
	const uint32_t thread = threadIdx.x % 128, lane = thread % 32, mine = thread / 32 * 16 + lane / 4;
	char          *out = shared + group * (BYTE_OUT_TOKENS * BYTE_OUT_PITCH);
	float          w[2] = { 1, 1 };

	if (!p->granule)
		for (uint32_t h = 0; h < 2; h++) {
			uint32_t at = first_row + row + mine + 8 * h;

			w[h] = p->w_scales[at < p->n ? at : p->n - 1];
		}
#pragma unroll
	for (int part = 0; part < MT / BYTE_OUT_TOKENS; part++) {
		const uint32_t token = first_token + part * BYTE_OUT_TOKENS;
		float          x[BYTE_OUT_TOKENS / 4]; /* of this thread's columns */

		if (token >= p->rows) /* the same for all */
			return;
#pragma unroll
		for (int i = 0; i < BYTE_OUT_TOKENS / 4; i++) {
			uint32_t at = token + i / 2 * 8 + lane % 4 * 2 + i % 2;

			x[i] = p->x_scales && !p->x_scale_stride ? p->x_scales[at < p->rows ? at : p->rows - 1] : 1;
		}
#pragma unroll
		for (int i = 0; i < BYTE_OUT_TOKENS / 16; i++) { /* 16 of the 64 outputs for 16 rows: four matrices */
			const S *sum = total + (part * (BYTE_OUT_TOKENS / 16) + i) * 8;
			uint32_t four[4];

#pragma unroll
			for (int m = 0; m < 4; m++) {
				const int j = m / 2 * 4 + m % 2 * 2; /* rows of eight, and their upper or lower outputs */

				four[m] = byte_short(p->output, byte_scaled(sum[j], x[4 * i + m / 2 * 2], w[m % 2])) |
				    (uint32_t)byte_short(p->output, byte_scaled(sum[j + 1], x[4 * i + m / 2 * 2 + 1], w[m % 2])) << 16;
			}
			stmatrix_x4_trans(shared_address(out + (i * 16 + lane / 16 * 8 + lane % 8) * BYTE_OUT_PITCH +
			    (thread / 32 * 16 + lane / 8 % 2 * 8) * 2), four);
		}
		named_barrier_sync(2 + group, 128);
#pragma unroll
		for (uint32_t i = thread; i < BYTE_OUT_TOKENS * 8; i += 128) {
			uint32_t at = i / 8, eight = i % 8 * 8;

			if (token + at < p->rows && row + eight < p->tile_rows && first_row + row + eight < p->n) {
				uint16_t      *to = (uint16_t *)p->y + (size_t)(token + at) * p->y_stride + first_row + row + eight;
				const uint16_t *from = (const uint16_t *)(out + at * BYTE_OUT_PITCH + eight * 2);

				if (first_row + row + eight + 8 <= p->n)
					*(uint4 *)to = *(const uint4 *)from;
				else
					for (uint32_t j = 0; first_row + row + eight + j < p->n; j++)
						to[j] = from[j];
			}
		}
		named_barrier_sync(2 + group, 128);
	}
}

/* This warp has read all of a stage. */
__device__ static inline void byte_release(mbarrier *empty, uint32_t lane)
{
	__syncwarp();
	if (lane == 0)
		barrier_arrive(empty);
}

/* The stages of all tiles of this block, one after the other. */
struct byte_walk {
	const struct byte_product *p;
	uint32_t tile, first_row, first_token, step, left; /* left: stages, this one included */
	struct ring_place at;
	bool     again; /* the ring was filled once */

	__device__ byte_walk(const struct byte_product *of) : p(of), step(0), at({ 0, 1 }), again(false)
	{
		uint32_t tiles = p->row_tiles * p->token_tiles;

		left = blockIdx.x < tiles ? ((tiles - blockIdx.x - 1) / gridDim.x + 1) * p->steps : 0;
		enter(blockIdx.x);
	}
	__device__ void enter(uint32_t number)
	{
		tile = number;
		first_row = tile / p->token_tiles * p->tile_rows;
		first_token = tile % p->token_tiles * p->token_tile;
	}
	/* Until the stage is free. */
	__device__ void wait(mbarrier *empty) const
	{
		if (again)
			barrier_wait(&empty[at.slot], at.parity);
	}
	__device__ void next()
	{
		left--;
		at.advance(p->stages);
		again = again || at.slot == 0;
		if (++step == p->steps) {
			step = 0;
			enter(tile + gridDim.x);
		}
	}
};

/* The thread that asks for weights, which were there before the kernel began: at the pace of pace.cuh until inputs are THERE. */
template <enum byte_kind KIND> __device__ static void byte_fetch_weights(const tensor_map *map, const struct byte_product *p,
    const struct byte_shared *s, char *shared, mbarrier *full, mbarrier *empty, mbarrier *there)
{
	const uint32_t box_rows = p->tile_rows / p->boxes;
	/* Read once, unless tiles of rows follow. */
	const uint64_t policy = p->token_tiles > 1 ? cache_evict_last() : cache_evict_first();
	struct pace    pace(there, p->pace);

	for (struct byte_walk walk(p); walk.left; walk.next()) {
		char *stage = shared + walk.at.slot * s->stage_bytes;

		walk.wait(empty);
		barrier_expect(&full[walk.at.slot], s->activations);
		for (uint32_t b = 0; b < p->boxes; b++) {
			pace.wait(s->activations / p->boxes);
			tma_load_3d(stage + b * box_rows * BYTE_GROUP, map, 0, (int)(walk.first_row + b * box_rows),
			    (int)(walk.step * p->panels), &full[walk.at.slot], policy);
		}
		if (p->late && walk.left == 1)
			dependents_launch();
	}
}

/* The thread that asks for inputs and their scales, which every block reads.  THERE is told when all of those have been asked for
 * that find room without anything being multiplied. */
template <enum byte_kind KIND, int MT> __device__ static void byte_fetch_inputs(const tensor_map *map, const tensor_map *scale_map,
    const struct byte_product *p, const struct byte_shared *s, char *shared, mbarrier *full, mbarrier *empty, mbarrier *there)
{
	const uint32_t bytes = s->stage_bytes - s->activations + (p->x_scale_stride ? p->panels * MT * 4 : 0);
	const uint32_t halves = byte_wide(KIND) ? 2 * p->panels : p->panels;
	const uint64_t policy = cache_evict_last();
	bool           told = false;

	tma_prefetch_map(map);
	if (p->x_scale_stride)
		tma_prefetch_map(scale_map);
	dependency_wait();
	byte_mark(p->mark, p->mark_value);
	for (struct byte_walk walk(p); walk.left; walk.next()) {
		mbarrier *arrival = &full[walk.at.slot];
		char     *to = shared + walk.at.slot * s->stage_bytes + s->activations;

		walk.wait(empty);
		barrier_expect(arrival, bytes);
		if (p->whole_x)
			tma_load_3d(to, map, 0, (int)walk.first_token, (int)(walk.step * halves), arrival, policy);
		else
			for (uint32_t half = 0; half < halves; half++)
				tma_load_2d(to + half * MT * 128, map, (int)((walk.step * halves + half) * 64), (int)walk.first_token, arrival,
				    policy);
		if (p->x_scale_stride)
			tma_load_2d(shared + s->x_scales + walk.at.slot * s->x_scale_bytes, scale_map, (int)walk.first_token,
			    (int)(walk.step * p->panels), arrival, policy);
		if (!told && (walk.left == 1 || walk.at.slot == p->stages - 1)) {
			barrier_arrive(there);
			told = true;
		}
	}
}

/* What a consumer's warp needs to know of its block. */
struct byte_consumer {
	const struct byte_product *p;
	const struct byte_shared  *s;
	char     *shared;
	mbarrier *full, *empty;
	uint32_t  lane;
	struct ring_place at;
};

/* Sums of int8 over all inputs: T tiles at W_AT. */
template <enum byte_kind KIND, int MT, int T> __device__ static inline void byte_sum(struct byte_consumer *c,
    typename byte_types<KIND>::sum (*total)[MT / 2], const uint32_t *w_at)
{
	constexpr int P = byte_panels(KIND, MT, T);
	const uint32_t panel = c->p->tile_rows * BYTE_GROUP;
	uint32_t       before = 0;

	for (uint32_t step = 0; step < c->p->steps; step++) {
		const char *stage = c->shared + c->at.slot * c->s->stage_bytes, *x = stage + c->s->activations;

		barrier_wait(&c->full[c->at.slot], c->at.parity);
		wgmma_fence();
#pragma unroll
		for (int i = 0; i < 4 * P; i++)
#pragma unroll
			for (int t = 0; t < T; t++)
				wgmma_ss<typename byte_types<KIND>::element, MT>(total[t],
				    wgmma_descriptor(stage + i / 4 * panel + w_at[t] + i % 4 * 32, 16, 1024, SWIZZLE_128),
				    wgmma_descriptor(x + i / 4 * (MT * BYTE_GROUP) + i % 4 * 32, 16, 1024, SWIZZLE_128), 1);
		wgmma_commit();
		wgmma_wait<1>();
		if (step)
			byte_release(&c->empty[before], c->lane);
		before = c->at.slot;
		c->at.advance(c->p->stages);
	}
	wgmma_wait<0>();
#pragma unroll
	for (int t = 0; t < T; t++)
		wgmma_settle<MT / 2>(total[t]);
	byte_release(&c->empty[before], c->lane);
}

/* Until at most PENDING multiplications have not ended: a constant, when loops are unrolled. */
__device__ static inline void byte_wait(int pending)
{
	switch (pending) {
	case 0: wgmma_wait<0>(); break;
	case 1: wgmma_wait<1>(); break;
	case 2: wgmma_wait<2>(); break;
	case 3: wgmma_wait<3>(); break;
	case 4: wgmma_wait<4>(); break;
	case 5: wgmma_wait<5>(); break;
	case 6: wgmma_wait<6>(); break;
	default: wgmma_wait<7>();
	}
}

/* Totals of panels' sums; W0 and W1: where in words scales of the upper and lower eight rows of a warp's sixteen are, at ONES if
 * nothing has any. */
template <enum byte_kind KIND, int MT, int T> __device__ static inline void byte_total(struct byte_consumer *c,
    float (*total)[MT / 2], const uint32_t *w_at, const uint32_t *w0, const uint32_t *w1)
{
	constexpr int P = byte_panels(KIND, MT, T), S = byte_round(KIND, MT, T), H = byte_parts(KIND, MT, T), COUNT = S * P * T * H;
	constexpr int SUMS = byte_sums(KIND, MT, T) < COUNT ? byte_sums(KIND, MT, T) : COUNT, BUFFERS = byte_buffers(MT, T);
	constexpr int BEHIND = byte_wide(KIND) || SUMS == 1 ? 1 : SUMS - 1; /* so much later a multiplication is waited for */
	const struct byte_product *p = c->p;
	const float   *words = (const float *)c->shared;
	const uint32_t panel = p->tile_rows * BYTE_GROUP, x_bytes = byte_x_bytes(KIND, MT), x_step = p->x_scale_stride ? MT : 0;
	float          sum[SUMS][MT / 2];
	uint32_t       a[BUFFERS][8 / H < 4 ? 8 / H : 4][4];

	for (uint32_t step = 0; step < p->steps; step += S) {
		uint32_t slot[S] = {}, x_scales[S] = {};

		/* A round of stages, in which the tensor cores need not wait for a sum to be added if there are two, nor for weights to
		 * be decoded.  Nothing reaches into the next round: the compiler would not see which registers are in use. */
#pragma unroll
		for (int j = 0; j < COUNT + BEHIND; j++) {
			const int   h = j / (P * T * H), q = j / (T * H) % P, t = j / H % T;
			const bool  early = j < COUNT && BUFFERS == 2 && (SUMS > 1 || j % H); /* what is before it need not have ended */
			const char *w, *x;

			if (j < COUNT && j % (P * T * H) == 0) {
				slot[h] = c->at.slot;
				x_scales[h] = (p->x_scale_stride ? c->s->x_scales + c->at.slot * c->s->x_scale_bytes : c->s->ones) / 4 +
				    c->lane % 4 * 2;
				barrier_wait(&c->full[c->at.slot], c->at.parity);
				c->at.advance(p->stages);
			}
			w = c->shared + slot[j < COUNT ? h : 0] * c->s->stage_bytes + q * panel + w_at[t];
			x = c->shared + slot[j < COUNT ? h : 0] * c->s->stage_bytes + c->s->activations + q * x_bytes;
			if (byte_wide(KIND) && BUFFERS == 2 && j < COUNT)
				byte_decode<KIND, H>(a[j % BUFFERS], w, j % H);
			if (early)
				byte_multiply<KIND, MT, H>(sum[j / H % SUMS], a[j % BUFFERS], w, x, j % H);
			if (j >= BEHIND) {
				const int i = j - BEHIND, stage = i / (P * T * H), at = i / H % T; /* of what is waited for */
				uint32_t  g = (step + stage) * P + i / (T * H) % P;

				byte_wait((j < COUNT ? early ? j : j - 1 : COUNT - 1) - i);
				if (i % H == H - 1) {
					wgmma_settle<MT / 2>(sum[i / H % SUMS]);
					g = p->granule ? g < p->groups ? g : p->groups - 1 : 0; /* behind the last group there are only zeros */
					byte_promote<byte_wide(KIND), MT>(total[at], sum[i / H % SUMS], words[w0[at] + g], words[w1[at] + g],
					    words + x_scales[stage] + i / (T * H) % P * x_step);
				}
				if (i % (P * T * H) == P * T * H - 1)
					byte_release(&c->empty[slot[stage]], c->lane);
			}
			if (byte_wide(KIND) && BUFFERS == 1 && j < COUNT)
				byte_decode<KIND, H>(a[0], w, j % H);
			if (j < COUNT && !early)
				byte_multiply<KIND, MT, H>(sum[j / H % SUMS], a[j % BUFFERS], w, x, j % H);
		}
	}
}

/* What heads.cuh makes of a warp's sixteen outputs from ROW of the tile on. */
template <int MT, class S> __device__ static inline void byte_store_heads(const struct byte_product *p, const S *total,
    uint32_t row, uint32_t first_row, uint32_t first_token, uint32_t lane)
{
	const uint32_t low = row + lane / 4, at = row + head_unit(lane);
	const bool     scaled = p->x_scales && !p->x_scale_stride;
	float          w[2];

	for (uint32_t i = 0; i < 2; i++)
		w[i] = !p->granule && low + 8 * i < p->tile_rows && first_row + low + 8 * i < p->n ?
		    p->w_scales[first_row + low + 8 * i] : 1;
#pragma unroll
	for (int i = 0; i < MT / 4; i++) {
		uint32_t token = first_token + i / 2 * 8 + lane % 4 * 2 + i % 2;
		float    x = scaled && token < p->rows ? p->x_scales[token] : 1;
		float2   two = head_gather(byte_scaled(total[i / 2 * 4 + i % 2], x, w[0]),
		    byte_scaled(total[i / 2 * 4 + 2 + i % 2], x, w[1]));

		if (token >= p->rows || at >= p->tile_rows || first_row + at >= p->n)
			continue;
		head_pair with = head_fetch(p->heads, token, first_row + at);

		if (p->output == BYTE_OUT_BF16)
			head_put(p->heads, with, (__nv_bfloat16 *)p->y + (size_t)token * p->y_stride, first_row + at, two);
		else
			head_put(p->heads, with, (__half *)p->y + (size_t)token * p->y_stride, first_row + at, two);
	}
}

template <enum byte_kind KIND, int MT, int T> __global__ void __launch_bounds__((BYTE_WARPGROUPS + 1) * 128, 1)
    byte_kernel(const __grid_constant__ tensor_map w_map, const __grid_constant__ tensor_map x_map,
        const __grid_constant__ tensor_map scale_map, const struct byte_product p)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	typedef typename byte_types<KIND>::sum S;
	const struct byte_shared s = byte_shared_of(KIND, &p);
	char      *shared = shared_memory() + (1024 - shared_address(shared_memory()) % 1024) % 1024;
	mbarrier  *full = (mbarrier *)(shared + s.barriers), *empty = full + p.stages, *there = empty + p.stages;
	float     *words = (float *)shared, *ones = words + s.ones / 4, *w_scales = words + s.w_scales / 4;
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = threadIdx.x / 128, consumers = p.warpgroups * 128;
	const uint32_t scale_stride = byte_scale_stride(p.groups);
	struct byte_consumer consumer = { &p, &s, shared, full, empty, lane, { 0, 0 } };

	if (!p.late)
		dependents_launch();
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < p.stages; i++) {
			barrier_init(&full[i], 2);
			barrier_init(&empty[i], 4 * p.warpgroups);
		}
		barrier_init(there, 1);
		fence_barrier_init();
	}
	for (uint32_t i = threadIdx.x; i < MT; i += blockDim.x)
		ones[i] = 1;
	__syncthreads();
	if (group == p.warpgroups) {
		registers_lower<40>();
		if (threadIdx.x % 128 == 0)
			byte_fetch_weights<KIND>(&w_map, &p, &s, shared, full, empty, there);
		if (threadIdx.x % 128 == 32)
			byte_fetch_inputs<KIND, MT>(&x_map, &scale_map, &p, &s, shared, full, empty, there);
		return;
	}
	registers_raise<232>();
	for (uint32_t tile = blockIdx.x; tile < p.row_tiles * p.token_tiles; tile += gridDim.x) {
		const uint32_t first_row = tile / p.token_tiles * p.tile_rows, first_token = tile % p.token_tiles * MT;
		const uint32_t first_granule = p.granule ? first_row / p.granule : 0;
		S            total[T][MT / 2];
		uint32_t     w0[T], w1[T], w_at[T]; /* where scales and values of this warp's rows are */

		/* Scales of this tile's weights, which were there before the kernel began. */
		if (p.granule) {
			uint32_t last = (first_row + p.tile_rows < p.n ? first_row + p.tile_rows : p.n) - 1;
			uint32_t count = (last / p.granule - first_granule + 1) * scale_stride;

			named_barrier_sync(1, consumers); /* nobody reads those of the tile before */
			for (uint32_t i = threadIdx.x; i < count; i += consumers)
				w_scales[i] = p.w_scales[(size_t)first_granule * scale_stride + i];
			named_barrier_sync(1, consumers);
		}
#pragma unroll
		for (int t = 0; t < T; t++) {
			uint32_t row = 64 * (group + p.warpgroups * t), last = (p.n - 1) / (p.granule ? p.granule : 1);
			uint32_t upper, lower;

			row = row < p.tile_rows ? row : 0; /* there are no such rows: any others, and nothing is stored */
			w_at[t] = row * BYTE_GROUP;
			row += first_row + warp % 4 * 16;
			upper = p.granule ? row / p.granule : 0;
			lower = p.granule ? (row + 8) / p.granule : 0;
			w0[t] = p.granule ? s.w_scales / 4 + ((upper < last ? upper : last) - first_granule) * scale_stride : s.ones / 4;
			w1[t] = p.granule ? s.w_scales / 4 + ((lower < last ? lower : last) - first_granule) * scale_stride : s.ones / 4;
#pragma unroll
			for (int i = 0; i < MT / 2; i++)
				total[t][i] = 0;
		}
		if constexpr (KIND == BYTE_I8)
			byte_sum<KIND, MT, T>(&consumer, total, w_at);
		else
			byte_total<KIND, MT, T>(&consumer, total, w_at, w0, w1);
		dependency_wait(); /* another thread has waited, but not for what follows here */
		if constexpr (MT == BYTE_TOKENS_MAX)
			if (byte_turns(&p)) {
#pragma unroll
				for (int t = 0; t < T; t++)
					byte_turn<MT>(&p, shared + s.out, group, total[t], 64 * (group + p.warpgroups * t), first_row, first_token);
				continue;
			}
		if constexpr (MT <= BYTE_HEADS_TOKENS)
			if (p.heads.keys) {
#pragma unroll
				for (int t = 0; t < T; t++)
					byte_store_heads<MT>(&p, total[t], 64 * (group + p.warpgroups * t) + warp % 4 * 16, first_row,
					    first_token, lane);
				continue;
			}
#pragma unroll
		for (int t = 0; t < T; t++) {
			uint32_t row = 64 * (group + p.warpgroups * t) + warp % 4 * 16 + lane / 4;

#pragma unroll
			for (int i = 0; i < MT / 2; i++) {
				uint32_t token = first_token + i / 4 * 8 + lane % 4 * 2 + i % 2, r = row + i / 2 % 2 * 8;

				if (token < p.rows && r < p.tile_rows && first_row + r < p.n)
					byte_store(&p, token, first_row + r, byte_scaled(total[t][i], p.x_scales && !p.x_scale_stride ?
					    p.x_scales[token] : 1,
					    p.granule ? 1 : p.w_scales[first_row + r]));
			}
		}
	}
#else
	(void)p; /* written for sm_90a; byte_cut's caller knows */
#endif
}

#endif
