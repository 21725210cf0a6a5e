/* fmt_int4.cuh: owns four-bit weights on the device: how they lie, how stored formats become that, and products with them.
 * Does not own launches (fmt_int4.cu).  Invariant: a row of a product has the same bits whatever rows are computed with it,
 * and a value of the slab is exactly the one that the file describes.
 *
 * Slab.  A weight [rows, columns] is cut into tiles of 16 rows and units of 128 columns; rows and columns that are missing
 * at the ends are there as zeros.  Neighbouring tiles form panels, as many as there are multiprocessors or a multiple, and a
 * panel is what one block multiplies: units one after the other, each contiguous, so that a stage of the ring is one copy.
 *
 *      panel 0: tiles 0…T − 1                     panel 1
 *      ┌────────┬────────┬───┐                    ┌────────┬──
 *      │ unit 0 │ unit 1 │ … │                    │ unit 0 │ …    unit = T × (words[256] | scales | zeros)
 *      └────────┴────────┴───┘                    └────────┴──
 *
 * One word is what a lane needs of a tile's 16 × 16 values as the first operand of mma.m16n8k16: with g = lane / 4, t =
 * lane % 4, nibble f of its low half is row g + 8 · (f & 1), column 2t + 8 · (f >> 1), that of its high half the next column.
 * Word [quarter of the unit][lane][step of 16 columns in the quarter]: a lane loads two at once.
 *
 * Scales and zeros lie group after group, and of a group's 16 rows in the order 0, 8, 1, 9, …: the two that a lane needs are
 * neighbours.  A value is
 *
 *      s · (q − z)       s in float16, bfloat16 or float32 as stored, z = 8 where no zeros are stored   (AWQ, GPTQ,
 *                        compressed-tensors, Q4_0)
 *      s · q + o         s, o in float16 (Q4_1); or products of a half of the super-block and six bits of the group, computed
 *                        when they are needed, which float32 holds exactly (Q4_K)
 *
 * A q becomes a half-width float by or-ing it into the mantissa of 128 (bfloat16) or 1024 (float16) and subtracting 128 + z:
 * no rounding.  A group's products are summed in float32, and only that sum is scaled.  So the order of a sum is: sixteen
 * columns after the other inside a group; groups ascending inside a share, which is every k_warps-th unit; the shares one after
 * the other, where a panel is small in two halves.  k_warps is a property of the weight's shape.  That a group's sum has the same
 * bits by mma.sync and by wgmma (fmt_int4_wide.cuh) is a fact about sm_90 that tests/gpu/invariance checks.
 *
 * Of a stack of two parts with as many rows each, gate and up of a feed-forward, a tile's rows 0…7 are eight of the first part
 * and 8…15 the same of the second one: a lane has both of an output, and silu(gate) · up may be written instead (int4_put).
 * What follows q, k and v (heads.cuh) is done in passing too, up to 16 rows.
 *
 * Kernels of few rows are short: how much code lies before and behind the products shows in their times.  So what warps summed
 * goes through shared memory, also where there is one share, to a loop with one copy of what stores a value.
 *
 * Slabs whose codes have eight bits share all of this but words and codes: fmt_octet.cuh.
 *
 * Columns may lie in another order than in the file (GPTQ with act-order): `order` says which column of the input a column of
 * the slab multiplies, and the input is brought into that order first. */
#ifndef PENSTOCK_GPU_FMT_INT4_CUH
#define PENSTOCK_GPU_FMT_INT4_CUH

#include "gpu/block.cuh"
#include "gpu/decode.cuh"
#include "gpu/heads.cuh"
#include "gpu/norm.cuh"

#include <string.h>

enum {
	INT4_TILE = 16, INT4_UNIT = 128, INT4_WORDS_BYTES = INT4_TILE * INT4_UNIT / 2,
	INT4_GROUP_MIN = 32,
	INT4_WARPS = 16,           /* that multiply, at most; one more copies */
	INT4_THREADS = 32 * (INT4_WARPS + 1),
	INT4_NARROW_ROWS = 16,     /* of the input, at most, in a block of int4_multiply */
	INT4_EACH_MAX = 3,         /* tiles of a warp */
	INT4_PANEL_TILES = 24,     /* at most */
	INT4_PANELS_MAX = 1600,    /* whose cube has 32 bits */
	INT4_HEADS_TILES = 4,      /* of a panel at most, where the product does what follows q, k and v (heads.cuh) */
	INT4_BOX = 64,             /* columns of inputs that lie together in shared memory */
	INT4_STAGES_MAX = 16, INT4_STAGES_LEAST = 3,
	INT4_LARGE_TILES = 16,     /* panels of more have one share of units */
	INT4_STAGE_BYTES = 24 << 10, /* of weights at least, where so many columns fit: smaller copies are slow */
	INT4_AHEAD_BYTES = 32 << 10, /* of weights, that are on their way before any input */
	INT4_STAGE_ONE_BYTES = 48 << 10, /* as INT4_STAGE_BYTES where the input is one row */
	INT4_PACE_BYTES = 48 << 10,  /* of weights, at least, that are under way at once then until the ring is full */
	INT4_NORM_PACKS = 2,       /* of a thread, at most, where the product does the norm of its input */
	INT4_NORM_BYTES = 256,     /* of shared memory for that */
	INT4_SHARED_MOST = 227 << 10 /* of a block, sm_90 */
};

enum int4_scales {
	INT4_F16, INT4_BF16, INT4_F32, /* s · (q − z); of eight bits s · q, as all */
	INT4_SIX,                      /* s · q: half d of the super-block, and signed bytes a: s = d · a */
	INT4_F16_PAIR,                 /* s, o as halves */
	INT4_K                         /* halves d, m of the super-block, and bytes a, b: s = d · a, o = −m · b */
};

struct int4_slab {
	uint8_t       *data;
	const int32_t *order;       /* [columns]; NULL: as in the file */
	uint32_t rows, columns;
	uint32_t half;              /* not 0: rows of each of two parts that alternate in tiles */
	uint32_t group;             /* 32 or 128 columns have a scale; of eight bits 16 or 32 */
	uint32_t panels;
	uint32_t panel_each, panel_more, panel_scale; /* panels · each + more tiles; 2³² / panels, rounded up: divisions are slow */
	enum int4_scales scales;
	int      zeros;             /* they are stored */
	int      eight;             /* codes of eight bits, else of four */
};

/* ---- Where things lie ---- */

__host__ __device__ static inline uint32_t int4_tiles(const struct int4_slab &w) { return (w.rows + INT4_TILE - 1) / INT4_TILE; }
__host__ __device__ static inline uint32_t int4_units(const struct int4_slab &w) { return (w.columns + INT4_UNIT - 1) / INT4_UNIT; }
__host__ __device__ static inline int int4_has_offsets(const struct int4_slab &w) { return w.scales >= INT4_F16_PAIR; }

/* Bytes of a tile's codes, of its scales, and of its zeros, in a unit. */
__host__ __device__ static inline uint32_t int4_code_bytes(const struct int4_slab &w) { return INT4_WORDS_BYTES << !!w.eight; }
__host__ __device__ static inline uint32_t int4_scale_bytes(const struct int4_slab &w)
{
	uint32_t groups = INT4_UNIT / w.group;

	return w.scales == INT4_K ? INT4_TILE * (4 + 2 * groups) : w.scales == INT4_SIX ? INT4_TILE * (2 + groups) :
	    INT4_TILE * groups * (w.scales == INT4_F32 || w.scales == INT4_F16_PAIR ? 4 : 2);
}
__host__ __device__ static inline uint32_t int4_zero_bytes(const struct int4_slab &w)
{
	return w.zeros ? INT4_TILE * (INT4_UNIT / w.group) : 0;
}
__host__ __device__ static inline uint32_t int4_tile_bytes(const struct int4_slab &w)
{
	return int4_code_bytes(w) + int4_scale_bytes(w) + int4_zero_bytes(w);
}
__host__ __device__ static inline uint64_t int4_bytes(const struct int4_slab &w)
{
	return (uint64_t)int4_tiles(w) * int4_units(w) * int4_tile_bytes(w);
}
__host__ __device__ static inline uint32_t int4_panel_first(const struct int4_slab &w, uint32_t panel)
{
	/* Tiles · panel / panels.  Exact, since more and panel ≤ panels ≤ INT4_PANELS_MAX. */
	return panel * w.panel_each + (uint32_t)((uint64_t)(panel * w.panel_more) * w.panel_scale >> 32);
}
/* Tiles of the largest panel. */
__host__ __device__ static inline uint32_t int4_panel_tiles(const struct int4_slab &w)
{
	return (int4_tiles(w) + w.panels - 1) / w.panels;
}
/* Panels for so many blocks that run at once. */
__host__ __device__ static inline uint32_t int4_panels_for(uint32_t rows, uint32_t blocks)
{
	uint32_t tiles = (rows + INT4_TILE - 1) / INT4_TILE, most;

	if (tiles <= blocks)
		return tiles;
	most = (tiles + blocks - 1) / blocks;
	return blocks * ((most + INT4_PANEL_TILES - 1) / INT4_PANEL_TILES);
}
static inline void int4_divide(struct int4_slab *w, uint32_t panels)
{
	w->panels = panels;
	w->panel_each = int4_tiles(*w) / panels;
	w->panel_more = int4_tiles(*w) % panels;
	w->panel_scale = panels > 1 ? UINT32_MAX / panels + 1 : 0; /* of one panel there is no more */
}
/* Where a row of the stack lies, and the other way round. */
__host__ __device__ static inline uint32_t int4_slab_row(const struct int4_slab &w, uint32_t row)
{
	uint32_t second = w.half && row >= w.half, of_part = second ? row - w.half : row;

	return w.half ? of_part / 8 * INT4_TILE + of_part % 8 + 8 * second : row;
}
__host__ __device__ static inline uint32_t int4_stack_row(const struct int4_slab &w, uint32_t at)
{
	return w.half ? at / INT4_TILE * 8 + at % 8 + at % INT4_TILE / 8 * w.half : at;
}
/* Position of ROW < 16 among a group's. */
__host__ __device__ static inline uint32_t int4_place(uint32_t row) { return row % 8 * 2 + row / 8; }

/* The parts of a tile's unit. */
struct int4_block {
	const uint8_t *words, *scales, *zeros;
};
__host__ __device__ static inline struct int4_block int4_block_in(const struct int4_slab &w, const uint8_t *block)
{
	const uint8_t *scales = block + int4_code_bytes(w);

	return { block, scales, scales + int4_scale_bytes(w) };
}
__host__ __device__ static inline struct int4_block int4_block_at(const struct int4_slab &w, uint32_t tile, uint32_t unit)
{
	uint32_t panel = (uint32_t)((((uint64_t)tile + 1) * w.panels - 1) / int4_tiles(w));
	uint32_t first = int4_panel_first(w, panel), tiles = int4_panel_first(w, panel + 1) - first;
	uint64_t at = (uint64_t)first * int4_units(w) + (uint64_t)unit * tiles + tile - first;

	return int4_block_in(w, w.data + at * int4_tile_bytes(w));
}

/* ---- Scales ---- */

__device__ static inline float int4_from_half(uint32_t bits)
{
	return __half2float(__ushort_as_half((unsigned short)(bits & 0xffff)));
}
__device__ static inline float int4_from_bfloat(uint32_t bits) { return __uint_as_float(bits << 16); }

/* Of places PLACE and PLACE + 1 (PLACE is even) in group GROUP of the unit.  OFFSETS as the slab has them: o is set then. */
template <bool OFFSETS> __device__ static inline void int4_scales_of(const struct int4_slab &w, const uint8_t *scales,
    uint32_t group, uint32_t place, float s[2], float o[2])
{
	const uint32_t *words = (const uint32_t *)scales;
	uint32_t        at = group * INT4_TILE + place;

	if (!OFFSETS && w.scales == INT4_F32) {
		s[0] = __uint_as_float(words[at]);
		s[1] = __uint_as_float(words[at + 1]);
	} else if (!OFFSETS && w.scales == INT4_SIX) {
		const uint8_t *bytes = scales + 2 * INT4_TILE + at;

		s[0] = int4_from_half(words[place / 2]) * (float)(int8_t)bytes[0];
		s[1] = int4_from_half(words[place / 2] >> 16) * (float)(int8_t)bytes[1];
	} else if (!OFFSETS) {
		uint32_t pair = words[at / 2];
		bool     half = w.scales == INT4_F16;

		s[0] = half ? int4_from_half(pair) : int4_from_bfloat(pair);
		s[1] = half ? int4_from_half(pair >> 16) : int4_from_bfloat(pair >> 16);
	} else {
#pragma unroll
		for (uint32_t i = 0; i < 2; i++) {
			uint32_t       word = words[(w.scales == INT4_K ? place : at) + i];
			const uint8_t *bytes = scales + 4 * INT4_TILE + 2 * (at + i);

			s[i] = int4_from_half(word) * (w.scales == INT4_K ? (float)bytes[0] : 1);
			o[i] = int4_from_half(word >> 16) * (w.scales == INT4_K ? -(float)bytes[1] : 1);
		}
	}
}

/* One value, the bits that a reader of the file gets. */
__device__ static inline float int4_value(const struct int4_slab &w, uint32_t row, uint32_t column)
{
	uint32_t at = int4_slab_row(w, row), in_tile = at % INT4_TILE, k = column % INT4_UNIT, group = k / w.group;
	uint32_t place = int4_place(in_tile);
	struct int4_block block = int4_block_at(w, at / INT4_TILE, column / INT4_UNIT);
	uint32_t lane = in_tile % 8 * 4 + k % 8 / 2, nibble = in_tile / 8 + k % 16 / 8 * 2 + k % 2 * 4;
	uint32_t word = ((const uint32_t *)block.words)[k / 32 * 64 + lane * 2 + k % 32 / 16];
	float    q = (float)(word >> 4 * nibble & 0xf), s[2], o[2];

	if (int4_has_offsets(w)) {
		int4_scales_of<true>(w, block.scales, group, place & ~1u, s, o);
		return s[place & 1] * q + o[place & 1]; /* the product is exact: fused or not */
	}
	int4_scales_of<false>(w, block.scales, group, place & ~1u, s, o);
	return (q - (float)(w.zeros ? block.zeros[group * INT4_TILE + place] : 8)) * s[place & 1];
}

/* ---- From stored formats ---- */

__device__ static inline uint32_t int4_stored_q(const struct stored_piece &p, uint32_t row, uint32_t column)
{
	switch (p.format) {
	case WEIGHT_Q4_0: return decode_nibble(decode_block(p, row, column, 32, 18) + 2, column % 32);
	case WEIGHT_Q4_1: return decode_nibble(decode_block(p, row, column, 32, 20) + 4, column % 32);
	case WEIGHT_Q4_K:
		return decode_block(p, row, column, 256, 144)[16 + column % 256 / 64 * 32 + column % 32] >> column % 64 / 32 * 4 & 0xf;
	default: return decode_int4(p, row, column);
	}
}

/* The scale and zero of a stored row and column, to group GROUP, place PLACE of a unit's. */
__device__ static inline void int4_pack_scale(const struct int4_slab &slab, const struct stored_piece &p, uint32_t row,
    uint32_t column, const struct int4_block &block, uint32_t group, uint32_t place)
{
	uint32_t       at = group * INT4_TILE + place, index, eighth = column % 256 / 32;
	uint16_t      *halves = (uint16_t *)block.scales;
	uint8_t       *bytes = (uint8_t *)block.scales + 4 * INT4_TILE + 2 * at;
	const uint8_t *from;

	switch (p.format) {
	case WEIGHT_Q4_0: halves[at] = (uint16_t)decode_u16(decode_block(p, row, column, 32, 18)); return;
	case WEIGHT_Q5_0: halves[at] = (uint16_t)decode_u16(decode_block(p, row, column, 32, 22)); return;
	case WEIGHT_Q8_0: halves[at] = (uint16_t)decode_u16(decode_block(p, row, column, 32, 34)); return;
	case WEIGHT_Q4_1:
	case WEIGHT_Q5_1:
		from = decode_block(p, row, column, 32, p.format == WEIGHT_Q4_1 ? 20 : 24);
		halves[2 * at] = (uint16_t)decode_u16(from);
		halves[2 * at + 1] = (uint16_t)decode_u16(from + 2);
		return;
	case WEIGHT_Q6_K:
		from = decode_block(p, row, column, 256, 210);
		halves[place] = (uint16_t)decode_u16(from + 208);
		((uint8_t *)block.scales)[2 * INT4_TILE + at] = from[192 + column % 256 / 16];
		return;
	case WEIGHT_Q4_K:
	case WEIGHT_Q5_K:
		from = decode_block(p, row, column, 256, p.format == WEIGHT_Q4_K ? 144 : 176);
		halves[2 * place] = (uint16_t)decode_u16(from);
		halves[2 * place + 1] = (uint16_t)decode_u16(from + 2);
		from += 4;
		bytes[0] = (uint8_t)(eighth < 4 ? from[eighth] & 0x3f : (from[eighth + 4] & 0xf) | from[eighth - 4] >> 6 << 4);
		bytes[1] = (uint8_t)(eighth < 4 ? from[eighth + 4] & 0x3f : from[eighth + 4] >> 4 | from[eighth] >> 6 << 4);
		return;
	default: break;
	}
	index = decode_group(p, column);
	if (slab.scales == INT4_F32)
		((float *)block.scales)[at] = decode_scale(p, row, index);
	else
		halves[at] = (uint16_t)decode_u16(p.scales + 2 * decode_scale_at(p, row, index));
	if (slab.zeros)
		((uint8_t *)block.zeros)[at] = (uint8_t)decode_zero(p, row, index);
}

enum { INT4_PACK_THREADS = INT4_WORDS_BYTES / 4 };

/* Adds a piece to the slab, which holds zeros where it goes.  A block a unit and a tile, from FIRST_UNIT and FIRST_TILE on.
 * What these have of other pieces stays as it is. */
__global__ static void __launch_bounds__(INT4_PACK_THREADS) int4_pack(const struct int4_slab slab, const struct stored_piece p,
    uint32_t first_unit, uint32_t first_tile)
{
	uint32_t tile = first_tile + blockIdx.y, unit = first_unit + blockIdx.x, thread = threadIdx.x;
	uint32_t lane = thread % 64 / 2, step = thread / 64 * 2 + thread % 2, word = 0;
	struct int4_block block = int4_block_at(slab, tile, unit);

#pragma unroll 1 /* on sm_100 all eight at once spill */
	for (uint32_t nibble = 0; nibble < 8; nibble++) {
		uint32_t row = int4_stack_row(slab, tile * INT4_TILE + lane / 4 + nibble % 2 * 8) - p.stack_row;
		uint32_t k = unit * INT4_UNIT + step * 16 + lane % 4 * 2 + nibble % 4 / 2 * 8 + nibble / 4;
		uint32_t column = k < slab.columns && slab.order ? (uint32_t)slab.order[k] : k;

		if (k < slab.columns && row - p.first_row < p.rows && column - p.first_column < p.columns)
			word |= int4_stored_q(p, p.corner_row + row, p.corner_column + column) << 4 * nibble;
	}
	((uint32_t *)block.words)[thread] |= word;
	if (thread < INT4_TILE * (INT4_UNIT / slab.group)) {
		uint32_t group = thread / INT4_TILE, row = int4_stack_row(slab, tile * INT4_TILE + thread % INT4_TILE) - p.stack_row;
		uint32_t k = unit * INT4_UNIT + group * slab.group, column = k < slab.columns && slab.order ? (uint32_t)slab.order[k] : k;

		if (k < slab.columns && row - p.first_row < p.rows && column - p.first_column < p.columns)
			int4_pack_scale(slab, p, p.corner_row + row, p.corner_column + column, block, group, int4_place(thread % INT4_TILE));
	}
}

/* Where a piece goes. */
struct int4_range {
	uint32_t first_unit, units, first_tile, tiles;
};
static inline struct int4_range int4_range_of(const struct int4_slab *slab, const struct stored_piece *p)
{
	uint32_t          first = p->stack_row + p->first_row, end = first + p->rows;
	struct int4_range range = { 0, int4_units(*slab), int4_slab_row(*slab, first) / INT4_TILE, 0 };

	range.tiles = int4_slab_row(*slab, end - 1) / INT4_TILE + 1 - range.first_tile; /* a piece is of one part */
	if (!slab->order) {
		range.first_unit = p->first_column / INT4_UNIT;
		range.units = (p->first_column + p->columns + INT4_UNIT - 1) / INT4_UNIT - range.first_unit;
	}
	return range;
}

/* ---- Decoding ---- */

enum { INT4_DECODE_UNITS = 4 /* of a block */, INT4_DECODE_THREADS = INT4_PACK_THREADS };

/* Where eight rows of the stack lie: the first or the second ones of a tile, whose unit U from some unit on is at(U). */
struct int4_strip {
	const uint8_t *begin;
	uint32_t       unit_bytes, second;

	__device__ const uint8_t *at(uint32_t u) const { return begin + (size_t)u * unit_bytes; }
};
__device__ static inline struct int4_strip int4_strip_of(const struct int4_slab &w, uint32_t row, uint32_t unit)
{
	uint32_t at = int4_slab_row(w, row), tile = at / INT4_TILE;
	uint32_t unit_bytes = (uint32_t)(int4_units(w) > 1 ? int4_block_at(w, tile, 1).words - int4_block_at(w, tile, 0).words : 0);

	return { int4_block_at(w, tile, unit).words, unit_bytes, at / 8 % 2 };
}

/* ROWS rows of the stack from FIRST on, a multiple of 16, as a plain matrix [rows][stride] in the slab's order of columns, zeros
 * beyond them; STRIDE is a multiple of 8.  A block sixteen rows of INT4_DECODE_UNITS units: a thread a word of each, and then
 * sixteen bytes of a row. */
template <class T> __global__ void __launch_bounds__(INT4_DECODE_THREADS) int4_decode(const struct int4_slab w, uint32_t first,
    uint32_t rows, T *to, uint32_t stride)
{
	constexpr uint32_t UNITS = INT4_DECODE_UNITS, COLUMNS = UNITS * INT4_UNIT, PACKS = COLUMNS /
	    pack<T>::count;
	struct alignas(2 * sizeof(T)) two {
		T v[2];
	};
	alignas(16) __shared__ T values[INT4_TILE][COLUMNS + pack<T>::count];
	__shared__ struct int4_strip strips[2];
	const uint32_t unit = blockIdx.x * UNITS, units = int4_units(w);
	const uint32_t lane = threadIdx.x % 64 / 2, at = threadIdx.x / 64 * 32 + threadIdx.x % 2 * 16 + lane % 4 * 2;
	const uint32_t group = at / w.group, place = lane / 4 * 2;
	uint32_t       words[UNITS];

	if (threadIdx.x < 2) /* divisions are slow */
		strips[threadIdx.x] = int4_strip_of(w, first + blockIdx.y * INT4_TILE + 8 * threadIdx.x, unit);
	__syncthreads();
#pragma unroll
	for (uint32_t u = 0; u < UNITS; u++) {
		uint32_t low = unit + u < units ? ((const uint32_t *)strips[0].at(u))[threadIdx.x] : 0;
		uint32_t high = unit + u < units && w.half ? ((const uint32_t *)strips[1].at(u))[threadIdx.x] : low;

		words[u] = (low >> 4 * strips[0].second & 0x0f0f0f0f) | (high >> 4 * strips[1].second & 0x0f0f0f0f) << 4;
	}
#pragma unroll
	for (uint32_t u = 0; u < UNITS; u++) {
		float s[2], o[2] = { 0, 0 }, z[2] = { 8, 8 };

#pragma unroll
		for (uint32_t i = 0; i < 2; i++) {
			struct int4_block block = int4_block_in(w, strips[i].at(unit + u < units ? u : 0));
			float two[2], offsets[2] = { 0, 0 };

			if (int4_has_offsets(w)) {
				int4_scales_of<true>(w, block.scales, group, place, two, offsets);
				z[i] = 0;
			} else {
				int4_scales_of<false>(w, block.scales, group, place, two, offsets);
				if (w.zeros)
					z[i] = block.zeros[group * INT4_TILE + place + strips[i].second];
			}
			s[i] = strips[i].second ? two[1] : two[0];
			o[i] = strips[i].second ? offsets[1] : offsets[0];
		}

#pragma unroll
		for (uint32_t f = 0; f < 4; f++) {
			uint32_t   column = u * INT4_UNIT + at + f / 2 * 8;
			struct two pair;

#pragma unroll
			for (uint32_t i = 0; i < 2; i++) {
				float q = (float)(words[u] >> 4 * (f + 4 * i) & 0xf), value = (q - z[f & 1]) * s[f & 1];

				if (int4_has_offsets(w))
					value = s[f & 1] * q + o[f & 1]; /* the product is exact: fused or not */
				pair.v[i] = from_float<T>(unit * INT4_UNIT + column + i < w.columns ? value : 0);
			}
			*(struct two *)&values[lane / 4 + f % 2 * 8][column] = pair;
		}
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < INT4_TILE * PACKS; i += INT4_DECODE_THREADS) {
		uint32_t row = i / PACKS, column = unit * INT4_UNIT + i % PACKS * pack<T>::count;

		if (blockIdx.y * INT4_TILE + row < rows && column < stride)
			*(pack<T> *)(to + (size_t)(blockIdx.y * INT4_TILE + row) * stride + column) = *(const pack<T> *)&values[row][i % PACKS *
			    pack<T>::count];
	}
}

static inline dim3 int4_decode_grid(uint32_t rows, uint32_t stride)
{
	uint32_t columns = (uint32_t)INT4_DECODE_UNITS * INT4_UNIT;

	return dim3((stride + columns - 1) / columns, (rows + INT4_TILE - 1) / INT4_TILE);
}

__device__ static inline float octet_value(const struct int4_slab &w, uint32_t row, uint32_t column);

/* Row OFFSET + INDEX[i], or OFFSET alone without an index, or row 0 for those that are not there: in the file's order, rounded to
 * T as if the weight were, at TO + i · STRIDE, or added to what is there.  A block a row. */
template <class T, class Y> __global__ void __launch_bounds__(256) int4_rows(const struct int4_slab w, const int32_t *index,
    uint32_t offset, int add, Y *to, uint32_t stride)
{
	uint32_t row = offset + (index ? (uint32_t)index[blockIdx.x] : 0);

	row = row < w.rows ? row : 0;
	for (uint32_t k = threadIdx.x; k < w.columns; k += blockDim.x) {
		Y *at = to + (size_t)blockIdx.x * stride + (w.order ? (uint32_t)w.order[k] : k);

		float value = to_float(from_float<T>(w.eight ? octet_value(w, row, k) : int4_value(w, row, k)));

		*at = from_float<Y>(add ? to_float(*at) + value : value);
	}
}

/* Inputs [rows][x_stride] in the slab's order of columns, at TO [rows][to_stride].  A block a row. */
template <class T> __global__ void __launch_bounds__(256) int4_reorder(const int32_t *order, uint32_t columns, const T *x,
    uint32_t x_stride, T *to, uint32_t to_stride)
{
	for (uint32_t k = threadIdx.x; k < columns; k += blockDim.x)
		to[(size_t)blockIdx.x * to_stride + k] = x[(size_t)blockIdx.x * x_stride + (uint32_t)order[k]];
}

/* ---- Products ---- */

/* How a panel's tiles and units are divided among warps.  A property of the weight, never of the rows that are multiplied with
 * it: the order of sums follows from it. */
struct int4_split {
	uint32_t each;      /* tiles of a warp, at most INT4_EACH_MAX; those of one unit go through it side by side */
	uint32_t row_warps; /* beside each other over a panel's tiles: each · row_warps ≥ tiles */
	uint32_t k_warps;   /* warp share s of them takes units s, s + k_warps, … */
};

/* The fewest tiles after each other; of equals those with most tiles to a warp, which share what is loaded of the input. */
static inline struct int4_split int4_split_of(const struct int4_slab *w)
{
	uint32_t          tiles = int4_panel_tiles(*w), units = int4_units(*w);
	uint32_t          most = int4_has_offsets(*w) || w->eight ? 2 : INT4_EACH_MAX;
	struct int4_split best = {};

	for (uint32_t each = 1; each <= most && each <= tiles; each++) { /* offsets, and 32 rows, leave registers for two tiles */
		struct int4_split split = { each, (tiles + each - 1) / each, 0 };

		if (split.row_warps > INT4_WARPS)
			continue;
		split.k_warps = tiles > INT4_LARGE_TILES ? 1 : INT4_WARPS / split.row_warps;
		split.k_warps = split.k_warps < units ? split.k_warps : units;
		if (!best.each || split.each * best.k_warps <= best.each * split.k_warps)
			best = split;
	}
	return best;
}

/* Into how many parts the shares of units are divided; each is summed apart, then one after the other. */
__host__ __device__ static inline uint32_t int4_halves_of(const struct int4_slab *w) { return int4_panel_tiles(*w) <= 4 ? 2 : 1; }

/* Panel NUMBER: divisions, which are slow. */
struct int4_panel {
	uint32_t number, first, tiles;
};
__device__ static inline struct int4_panel int4_panel_of(const struct int4_slab &w, uint32_t number)
{
	uint32_t first = int4_panel_first(w, number);

	return { number, first, int4_panel_first(w, number + 1) - first };
}

/* What warps find out before the products, in shared memory: they need their registers. */
struct int4_notes {
	struct int4_panel panel; /* the block's first one */
	struct {
		uint32_t mine, share; /* which of row_warps, which of k_warps */
	} warps[32];
	struct head_pair pairs[INT4_HEADS_TILES * 8]; /* what is read for those of the one row */
};
static_assert(INT4_WARPS <= 32);

/* What a launch needs.  Blocks: x over panels, y over ROWS of the input each. */
struct int4_task {
	struct int4_slab w;
	void    *y; /* [rows][y_stride], float32 when TO_FLOAT */
	uint32_t y_stride, rows;
	int      to_float;
	int      gated; /* y = silu(first part) · second part, of a slab that has both; each is rounded to T before, as a product is */
	const void *x;  /* of products with one row, which need no map of it */
	struct norm_prologue norm; /* what that row is, where it is postponed */
	struct head_target heads;  /* without keys: none */
	struct int4_split split;
	uint32_t stage_units, stages;
	uint32_t ahead;       /* stages whose weights are fetched before the kernel before has ended: inputs queue behind them.  Of one
	    row: that are under way at once until all stages are */
	/* int4_size: what follows from these.  Kernels read it as constants. */
	uint32_t units, tile_bytes, scale_bytes, zero_bytes, halves;
	int      whole;                                /* one box brings a stage's inputs, else one for each 64 columns */
	uint32_t input_bytes, stage_bytes, sum_bytes;  /* of shared memory: a stage's inputs, a stage, partial sums */
	uint32_t whole_bytes; /* of shared memory for the whole input, when it is one row, which no stage has then; else 0 */
};

/* Shared memory: stages of (inputs | units of weights), partial sums, barriers.  Inputs lie as boxes of 64 columns with 128-byte
 * swizzle.  Returns its size for blocks of ROWS. */
static inline uint32_t int4_size(struct int4_task *t, uint32_t rows)
{
	t->units = int4_units(t->w);
	t->tile_bytes = int4_tile_bytes(t->w);
	t->scale_bytes = int4_scale_bytes(t->w);
	t->zero_bytes = int4_zero_bytes(t->w);
	t->halves = int4_halves_of(&t->w);
	t->whole = t->w.columns % INT4_BOX == 0;
	t->whole_bytes = rows == 1 ? (t->units + 2) * INT4_UNIT * 2 + INT4_NORM_BYTES : 0;
	t->input_bytes = t->whole_bytes ? 0 : t->stage_units * rows * INT4_UNIT * 2;
	t->ahead = (rows == 1 ? INT4_PACE_BYTES : INT4_AHEAD_BYTES) / (t->stage_units * int4_panel_tiles(t->w) * t->tile_bytes);
	t->ahead++;
	t->ahead = t->ahead < t->stages ? t->ahead : t->stages;
	t->stage_bytes = (t->input_bytes + t->stage_units * int4_panel_tiles(t->w) * t->tile_bytes + 1023) / 1024 * 1024;
	t->sum_bytes = t->split.k_warps * t->split.row_warps * t->split.each * INT4_TILE * rows * 4;
	return t->stages * (t->stage_bytes + 2 * (uint32_t)sizeof(mbarrier)) + t->whole_bytes + t->sum_bytes + (uint32_t)sizeof(
	    struct int4_notes);
}

/* Threads of a block: all warps bring the one row, also where fewer multiply it. */
static inline uint32_t int4_threads(const struct int4_task *t, uint32_t rows)
{
	return rows == 1 ? (uint32_t)INT4_THREADS : 32 * (t->split.row_warps * t->split.k_warps + 1);
}

/* Cuts shared memory into stages for blocks of ROWS; returns its size. */
static inline uint32_t int4_choose_stages(struct int4_task *t, uint32_t rows)
{
	uint32_t tiles = int4_panel_tiles(t->w), each = tiles * int4_tile_bytes(t->w), units = int4_units(t->w);
	uint32_t enough = rows == 1 ? INT4_STAGE_ONE_BYTES : tiles > INT4_LARGE_TILES ? 2 * INT4_STAGE_BYTES : INT4_STAGE_BYTES;

	t->split = int4_split_of(&t->w);
	t->stages = 1;
	t->stage_units = 1;
	while (t->stage_units < units && t->stage_units * each < enough) {
		struct int4_task more = *t;

		more.stage_units++;
		more.stages = INT4_STAGES_LEAST;
		if (int4_size(&more, rows) > INT4_SHARED_MOST)
			break;
		t->stage_units++;
	}
	while (t->stages < INT4_STAGES_MAX && t->stages * t->stage_units < units * 2) {
		struct int4_task more = *t;

		more.stages++;
		if (int4_size(&more, rows) > INT4_SHARED_MOST)
			break;
		t->stages++;
	}
	return int4_size(t, rows);
}

/* The inputs X [rows][stride] of a task that int4_choose_stages has seen, 16-byte aligned, STRIDE a multiple of 8: what is not
 * there reads as zeros. */
static inline struct tensor_layout int4_inputs(const struct int4_task *t, enum tensor_type type, const void *x, uint32_t stride,
    uint32_t rows)
{
	struct tensor_layout whole = { type, 3, x, { INT4_BOX, t->rows, t->w.columns / INT4_BOX }, { 0, (uint64_t)stride * 2,
		INT4_BOX * 2 }, { INT4_BOX, rows, t->stage_units * (INT4_UNIT / INT4_BOX) }, SWIZZLE_128 };
	struct tensor_layout each = { type, 2, x, { t->w.columns, t->rows }, { 0, (uint64_t)stride * 2 }, { INT4_BOX, rows },
		SWIZZLE_128 };

	return t->whole ? whole : each;
}

template <class T> struct int4_type;
template <> struct int4_type<__nv_bfloat16> {
	typedef __nv_bfloat162 pair;
	static constexpr uint32_t base = 0x4300, one = 0x3f80; /* 128, 1 */
	static constexpr uint32_t up = 0x7f00; /* 2¹²⁷ */
	static constexpr float    back = 64;   /* its product with the smallest number, 2⁻¹³³, times this is 1 */
};
template <> struct int4_type<__half> {
	typedef __half2 pair;
	static constexpr uint32_t base = 0x6400, one = 0x3c00; /* 1024, 1 */
	static constexpr uint32_t up = 0x7800; /* 2¹⁵ */
	static constexpr float    back = 512;  /* likewise of 2⁻²⁴ */
};

/* a − b of both halves. */
template <class T> __device__ static inline uint32_t int4_subtract(uint32_t a, uint32_t b)
{
	typename int4_type<T>::pair x, y;

	memcpy(&x, &a, sizeof x);
	memcpy(&y, &b, sizeof y);
	x = __hsub2(x, y);
	memcpy(&a, &x, sizeof a);
	return a;
}

/* WORD as the first operand: exact integers q − z; ZERO has base + z twice, of rows g and g + 8. */
template <class T> __device__ static inline void int4_operand(uint32_t word, const uint32_t zero[2], uint32_t a[4])
{
#pragma unroll
	for (int f = 0; f < 4; f++)
		a[f] = int4_subtract<T>(lop3<0xea>(word >> 4 * f, 0x000f000f, int4_type<T>::base * 0x10001), zero[f & 1]);
}

/* a · b + c of both halves. */
template <class T> __device__ static inline uint32_t int4_fma(uint32_t a, uint32_t b, uint32_t c)
{
	typename int4_type<T>::pair x, y, z;

	memcpy(&x, &a, sizeof x);
	memcpy(&y, &b, sizeof y);
	memcpy(&z, &c, sizeof z);
	x = __hfma2(x, y, z);
	memcpy(&a, &x, sizeof a);
	return a;
}

/* WORD as the first operand of mma: q − z, exactly, of row g divided by int4_type::back, of row g + 8 by a sixteenth of that.  The
 * lowest eight bits of a half are a number that is proportional to them: below the smallest normal number and just above it numbers
 * are equally far from each other.  So one shift brings all nibbles to where they are numbers.  MINUS has −z twice, divided so. */
template <class T> __device__ static inline void int4_spread(uint32_t word, const uint32_t minus[2], uint32_t a[4])
{
#pragma unroll
	for (int f = 0; f < 4; f++)
		a[f] = int4_fma<T>(word >> 4 * (f & 2) & (f & 1 ? 0x00f000f0 : 0x000f000f), int4_type<T>::up * 0x10001, minus[f & 1]);
}

/* What a lane needs of a tile's group beside its words, as it is stored: fetched before the products, used behind them, without
 * branches.  Of slabs without offsets. */
struct int4_raw {
	uint32_t scales[2], zeros;
};
/* KIND: of scales, where it is known; INT4_ANY: as the slab has them. */
enum { INT4_ANY = -1 };
template <int KIND = INT4_ANY> __device__ static inline struct int4_raw int4_fetch(const struct int4_task &t, const uint8_t *block,
    uint32_t group, uint32_t place)
{
	const uint32_t at = group * INT4_TILE + place, wide = (KIND == INT4_ANY ? (int)t.w.scales : KIND) == INT4_F32;
	const uint8_t *scales = block + INT4_WORDS_BYTES + (at << (wide + 1));

	return { { *(const uint32_t *)scales, *(const uint32_t *)(scales + 4 * wide) },
		*(const uint16_t *)(block + (t.zero_bytes ? INT4_WORDS_BYTES + t.scale_bytes + at : 0)) };
}
/* Base + z twice, of two rows. */
template <class T> __device__ static inline void int4_zeros_of(const struct int4_task &t, const struct int4_raw &raw,
    uint32_t zero[2])
{
	zero[0] = (int4_type<T>::base + (t.zero_bytes ? raw.zeros & 0xff : 8)) * 0x10001;
	zero[1] = (int4_type<T>::base + (t.zero_bytes ? raw.zeros >> 8 : 8)) * 0x10001;
}
/* −z for int4_spread. */
template <class T> __device__ static inline void int4_minus_of(const struct int4_task &t, const struct int4_raw &raw,
    uint32_t minus[2])
{
	constexpr uint32_t down = (int4_type<T>::up | 0x8000) * 0x10001, none = 0x80008000;

	minus[0] = int4_fma<T>((t.zero_bytes ? raw.zeros & 0xff : 8) * 0x10001, down, none);
	minus[1] = int4_fma<T>((t.zero_bytes ? raw.zeros >> 8 : 8) * 0x100010, down, none);
}
template <int KIND = INT4_ANY> __device__ static inline void int4_scales_of(const struct int4_task &t, const struct int4_raw &raw,
    float s[2])
{
	const int  kind = KIND == INT4_ANY ? (int)t.w.scales : KIND;
	const bool wide = kind == INT4_F32, half = kind == INT4_F16;

	s[0] = wide ? __uint_as_float(raw.scales[0]) : half ? int4_from_half(raw.scales[0]) : int4_from_bfloat(raw.scales[0]);
	s[1] = wide ? __uint_as_float(raw.scales[1]) : half ? int4_from_half(raw.scales[0] >> 16) :
	    int4_from_bfloat(raw.scales[0] >> 16);
}

/* Rows of the input in eights: one alone is computed as the first of eight, the others zeros. */
template <int ROWS> constexpr int int4_eights = ROWS < 8 ? 1 : ROWS / 8;

/* Inputs of columns 32 · AT … of the unit: B[step][tile of 8 rows].  X is the unit's shared address; of one row a pointer to what
 * this lane reads (int4_one_of). */
template <int ROWS> __device__ static inline void int4_load(auto x, uint32_t lane, int at, uint32_t b[2][int4_eights<ROWS>][2])
{
	const auto box = x + at / 2 * (ROWS * INT4_BOX * 2);
	uint32_t   r[4];

	if constexpr (ROWS == 1) {
		const uint4 four = *(const uint4 *)(x + at * 64);

		b[0][0][0] = four.x;
		b[0][0][1] = four.y;
		b[1][0][0] = four.z;
		b[1][0][1] = four.w;
	} else if constexpr (ROWS == 8) { /* matrices are the halves of two steps */
		ldmatrix_x4(r, box + lane % 8 * 128 + ((at % 2 * 4 + lane / 8) ^ lane % 8) * 16);
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i / 2][0][i % 2] = r[i];
	} else {
#pragma unroll
		for (int step = 0; step < 2; step++) /* the halves of a step of sixteen rows */
#pragma unroll
			for (int j = 0; j < ROWS / 8; j += 2) {
				ldmatrix_x4(r, box + (j * 8 + lane / 16 * 8 + lane % 8) * 128 + ((at % 2 * 4 + step * 2 + lane / 8 % 2) ^
				    lane % 8) * 16);
#pragma unroll
				for (int i = 0; i < 4; i++)
					b[step][j + i / 2][i % 2] = r[i];
			}
	}
}

/* SUMS += s · OF_GROUP, and with OFFSETS o · OF_INPUTS, of two rows' s and o. */
template <int TILES, bool OFFSETS> __device__ static inline void int4_add_group(const float s[2], const float (&of_group)[TILES][4],
    const float o[2], const float (*of_inputs)[4], float (&sums)[TILES][4])
{
#pragma unroll
	for (int j = 0; j < TILES; j++)
#pragma unroll
		for (int h = 0; h < 4; h++) {
			sums[j][h] = fmaf(s[h / 2], of_group[j][h], sums[j][h]);
			if (OFFSETS)
				sums[j][h] = fmaf(o[h / 2], of_inputs[j][h], sums[j][h]);
		}
}

/* SUMS += COUNT tiles of the UNIT, which lie at BLOCK in it, times its inputs, step by step side by side: what one tile waits
 * for, another one covers.  GROUP columns have a scale; OFFSETS as the slab has them. */
template <class T, int ROWS, int COUNT, int GROUP, bool OFFSETS, int KIND> __device__ static inline void int4_unit(
    const struct int4_task &t, const uint8_t *unit, const uint32_t *block, auto x, uint32_t lane,
    float (*sums)[int4_eights<ROWS>][4])
{
	constexpr int  TILES = int4_eights<ROWS>, PAIRS = GROUP / 32;
	constexpr bool SPREADS = TILES == 1; /* as registers allow */
	[[maybe_unused]] constexpr int UNROLL = TILES > 1 || OFFSETS ? 1 : ROWS == 1 && COUNT > 1 ? 2 : 4; /* as registers allow */
	[[maybe_unused]] constexpr int PAIRS_UNROLL = TILES <= 2 ? 4 : 1;
	const uint32_t ones[4] = { int4_type<T>::one * 0x10001, int4_type<T>::one * 0x10001, int4_type<T>::one * 0x10001,
		int4_type<T>::one * 0x10001 };
	const uint32_t place = lane / 4 * 2;
#pragma unroll UNROLL
	for (int group = 0; group < INT4_UNIT / GROUP; group++) {
		float    of_group[COUNT][TILES][4], of_inputs[OFFSETS ? TILES : 1][4];
		uint32_t zero[COUNT][2];
		struct int4_raw raw[COUNT];

#pragma unroll
		for (int r = 0; r < COUNT; r++) {
#pragma unroll
			for (int j = 0; j < TILES; j++)
#pragma unroll
				for (int h = 0; h < 4; h++) {
					of_group[r][j][h] = 0;
					of_inputs[OFFSETS ? j : 0][h] = 0;
				}
			if (OFFSETS) {
				zero[r][0] = zero[r][1] = SPREADS ? 0 : int4_type<T>::base * 0x10001;
			} else {
				raw[r] = int4_fetch<KIND>(t, unit + block[r], group, place);
				if constexpr (SPREADS)
					int4_minus_of<T>(t, raw[r], zero[r]);
				else
					int4_zeros_of<T>(t, raw[r], zero[r]);
			}
		}
#pragma unroll PAIRS_UNROLL
		for (int pair = 0; pair < PAIRS; pair++) {
			const int at = group * PAIRS + pair;
			uint32_t  b[2][TILES][2], a[4];
			uint2     two[COUNT];

#pragma unroll
			for (int r = 0; r < COUNT; r++)
				two[r] = *(const uint2 *)(unit + block[r] + at * (INT4_WORDS_BYTES / 4) + lane * 8);
			int4_load<ROWS>(x, lane, at, b);
#pragma unroll
			for (int step = 0; step < 2; step++) {
#pragma unroll
				for (int r = 0; r < COUNT; r++) {
					if constexpr (SPREADS)
						int4_spread<T>(step ? two[r].y : two[r].x, zero[r], a);
					else
						int4_operand<T>(step ? two[r].y : two[r].x, zero[r], a);
#pragma unroll
					for (int j = 0; j < TILES; j++)
						mma_m16n8k16<T>(of_group[r][j], a, b[step][j]);
				}
				if (OFFSETS) {
#pragma unroll
					for (int j = 0; j < TILES; j++)
						mma_m16n8k16<T>(of_inputs[OFFSETS ? j : 0], ones, b[step][j]);
				}
			}
		}
#pragma unroll
		for (int r = 0; r < COUNT; r++) {
			float s[2], o[2];

			if (OFFSETS)
				int4_scales_of<true>(t.w, unit + block[r] + INT4_WORDS_BYTES, group, place, s, o);
			else /* once more where registers are few */
				int4_scales_of<KIND>(t, TILES > 1 ? int4_fetch<KIND>(t, unit + block[r], group, place) : raw[r], s);
			s[0] *= SPREADS ? int4_type<T>::back : 1;
			s[1] *= SPREADS ? int4_type<T>::back / 16 : 1;
			int4_add_group<TILES, OFFSETS>(s, of_group[r], o, of_inputs, sums[r]);
		}
	}
}

/* The inputs of a stage that begins at unit UNIT. */
__device__ static inline void int4_fetch_inputs(const struct int4_task &t, const tensor_map *map, uint8_t *stage, uint32_t rows,
    uint32_t unit, mbarrier *full, uint64_t policy)
{
	const int32_t first_row = (int32_t)(blockIdx.y * rows);

	if (t.whole) {
		tma_load_3d(stage, map, 0, first_row, (int32_t)(unit * (INT4_UNIT / INT4_BOX)), full, policy);
		return;
	}
	for (uint32_t i = 0; i < t.stage_units * (INT4_UNIT / INT4_BOX); i++)
		tma_load_2d(stage + i * rows * INT4_BOX * 2, map, (int32_t)(unit * INT4_UNIT + i * INT4_BOX), first_row, full, policy);
}

/* The thread that copies, from PANEL on: weights as soon as there is room, inputs once the kernel before is done.  One row is not
 * for this thread to fetch; then few stages are under way at once until all are, for what the kernels around load queues behind
 * them, and memory is as busy.  What a stage takes it must take quickly: divisions are for panels. */
__device__ static inline void int4_copy(const struct int4_task &t, const tensor_map *map, uint8_t *shared, uint32_t rows,
    mbarrier *full, mbarrier *empty, struct int4_panel panel)
{
	const uint64_t once = cache_evict_first(), again = cache_evict_last();
	uint32_t       stage = 0, phase = 1, count = 0;
	bool           ready = rows == 1;

	for (; panel.number < t.w.panels; panel = int4_panel_of(t.w, panel.number + gridDim.x)) {
		const uint32_t unit_bytes = panel.tiles * t.tile_bytes;
		const uint8_t *from = t.w.data + (uint64_t)panel.first * t.units * t.tile_bytes;
		const bool     last = panel.number + gridDim.x >= t.w.panels;

		for (uint32_t unit = 0; unit < t.units; unit += t.stage_units) {
			uint32_t some = t.units - unit < t.stage_units ? t.units - unit : t.stage_units, bytes = some * unit_bytes;
			uint8_t *at = shared + stage * t.stage_bytes;

			if (count >= t.stages)
				barrier_wait(&empty[stage], phase);
			else if (rows == 1 && count >= t.ahead)
				barrier_wait(&full[count - t.ahead], 0);
			barrier_expect(&full[stage], bytes + t.input_bytes);
			bulk_copy(at + t.input_bytes, from, bytes, &full[stage], blockIdx.y + 1 == gridDim.y ? once : again);
			from += bytes;
			count++;
			if (ready && rows > 1)
				int4_fetch_inputs(t, map, at, rows, unit, &full[stage], again);
			if (rows > 1 && !ready && (count == t.ahead || (last && unit + t.stage_units >= t.units))) {
				dependency_wait();
				ready = true;
				for (uint32_t k = 0, u = 0; k < count; k++) {
					int4_fetch_inputs(t, map, shared + k * t.stage_bytes, rows, u, &full[k], again);
					u = u + t.stage_units < t.units ? u + t.stage_units : 0;
				}
			}
			if (++stage == t.stages) {
				stage = 0;
				phase ^= 1;
			}
		}
	}
}

/* A row's sums LOW and HIGH of the slab's rows N and N + 8. */
template <class T> __device__ static inline void int4_put(const struct int4_task &t, uint32_t n, uint32_t row, float low,
    float high)
{
	const uint32_t at[2] = { int4_stack_row(t.w, n), int4_stack_row(t.w, n + 8) };
	const size_t   begin = (size_t)row * t.y_stride;

	if (row >= t.rows)
		return;
	if (t.gated) {
		float gate = to_float(from_float<T>(low)), up = to_float(from_float<T>(high));

		((T *)t.y)[begin + at[0]] = from_float<T>(gate / (1 + expf(-gate)) * up);
		return;
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (at[i] >= t.w.rows)
			continue;
		if (t.to_float)
			((float *)t.y)[begin + at[i]] = i ? high : low;
		else
			((T *)t.y)[begin + at[i]] = from_float<T>(i ? high : low);
	}
}

/* What a lane has of 16 outputs from N on and 8 rows from ROW on. */
template <class T> __device__ static inline void int4_store(const struct int4_task &t, uint32_t n, uint32_t row, uint32_t lane,
    const float sums[4])
{
#pragma unroll
	for (int h = 0; h < 2; h++)
		int4_put<T>(t, n + lane / 4, row + lane % 4 * 2 + h, sums[h], sums[h + 2]);
}

/* The one row of the input in shared memory, at X: 64 bytes for 32 columns, 16 of lanes 0…3 each; then a unit of zeros, which
 * other lanes read, in other banks.  All threads of INT4_WARPS warps bring it, eight columns at a time: THREAD + i · threads.  A
 * word of these is stored at once with other words of other lanes, whose banks are others. */
struct int4_one_room {
	static constexpr uint32_t threads = 32 * INT4_WARPS;
	uint32_t *to[4];
	bool      odd, far;

	__device__ int4_one_room(uint8_t *x, uint32_t thread)
	{
		const uint32_t first = thread / 8 % 4;

#pragma unroll
		for (uint32_t i = 0; i < 4; i++)
			to[i] = (uint32_t *)(x + thread / 4 * 64 + thread % 4 * 4 + (first + i) % 4 * 16);
		odd = first & 1;
		far = first & 2;
	}
	/* Number I of the thread's. */
	__device__ void put(uint32_t i, const uint4 &v) const
	{
		const uint4 next = { odd ? v.y : v.x, odd ? v.z : v.y, odd ? v.w : v.z, odd ? v.x : v.w };

		to[0][i * (threads * 4)] = far ? next.z : next.x;
		to[1][i * (threads * 4)] = far ? next.w : next.y;
		to[2][i * (threads * 4)] = far ? next.x : next.z;
		to[3][i * (threads * 4)] = far ? next.y : next.w;
	}
};

/* Brings it when the kernel before is done; EARLY asks for something else then, which comes meanwhile.  May read the padding of a
 * row. */
template <class T> __device__ static inline void int4_one_load(const struct int4_task &t, uint8_t *x, uint32_t thread, auto early)
{
	constexpr uint32_t threads = int4_one_room::threads, MOST = 6; /* loads under way */
	const struct int4_one_room room(x, thread);
	const uint4   *from = (const uint4 *)t.x + thread;
	const uint32_t chunks = t.units * (INT4_UNIT / 8), there = (t.w.columns + 7) / 8, some = t.w.columns % 8;

	dependency_wait();
	for (uint32_t first = 0; first * threads + thread < chunks; first += MOST) {
		uint4 values[MOST] = {};

#pragma unroll
		for (uint32_t i = 0; i < MOST; i++)
			if ((first + i) * threads + thread < there)
				values[i] = from[(first + i) * threads];
		if (first == 0)
			early();
#pragma unroll
		for (uint32_t i = 0; i < MOST; i++)
			if ((first + i) * threads + thread < chunks)
				room.put(first + i, values[i]);
	}
	if (thread >= chunks) /* which brings nothing of the row */
		early();
	if (some && thread == (there - 1) % threads) { /* once more, without what is behind the last column */
		uint4 v = from[there - 1 - thread];

		v.x &= some > 1 ? ~0u : 0xffff;
		v.y &= some > 3 ? ~0u : some > 2 ? 0xffff : 0;
		v.z &= some > 5 ? ~0u : some > 4 ? 0xffff : 0;
		v.w &= some > 6 ? 0xffff : 0;
		room.put(there / threads - (there % threads == 0), v);
	}
}

/* The same where it is a norm that nobody has computed yet, of whole units. */
template <class T> __device__ static inline void int4_one_norm(const struct int4_task &t, uint8_t *x, uint32_t thread, auto early)
{
	const struct norm_team         team = { thread, int4_one_room::threads, 1 };
	const struct int4_one_room     room(x, thread);
	norm_alone<T, INT4_NORM_PACKS> norm(t.norm, team, (float *)(x + (t.units + 2) * (INT4_UNIT * 2)));

	static_assert(sizeof(float) * norm.shared_floats <= INT4_NORM_BYTES);
	dependency_wait();
	norm.load();
	early();
	norm.run();
#pragma unroll
	for (int p = 0; p < INT4_NORM_PACKS; p++) {
		uint4 values;

		memcpy(&values, &norm.y[p], sizeof values);
		if (norm.index(p) < t.w.columns)
			room.put((uint32_t)p, values);
	}
}
/* Whether a product with W may do that. */
static inline bool int4_one_takes_norm(const struct int4_slab &w)
{
	return !w.order && w.columns % INT4_UNIT == 0 && w.columns <= 32 * INT4_WARPS * INT4_NORM_PACKS * 8;
}

/* Whether the product of ROWS rows with W, by int4_multiply, does what follows q, k and v. */
static inline bool int4_takes_heads(const struct int4_slab &w, uint32_t rows)
{
	return rows <= INT4_NARROW_ROWS && !w.half && w.rows % 2 == 0 && int4_panel_tiles(w) <= INT4_HEADS_TILES;
}

/* Where a lane reads it. */
__device__ static inline const uint8_t *int4_one_of(const struct int4_task &t, const uint8_t *x, uint32_t unit, uint32_t lane)
{
	return lane < 4 ? x + unit * (INT4_UNIT * 2) + lane * 16 : x + t.units * (INT4_UNIT * 2) + 64;
}

template <class T, int ROWS, int COUNT, int GROUP, bool OFFSETS> __device__ static inline void octet_unit(const struct int4_task &t,
    const uint8_t *unit, const uint32_t *block, auto x, uint32_t lane, float (*sums)[int4_eights<ROWS>][4]);

/* Where inputs of a unit are, number AT of the stage's and NUMBER of all. */
template <int ROWS> __device__ static inline auto int4_input_of(const struct int4_task &t, const uint8_t *stage,
    const uint8_t *whole, uint32_t at, uint32_t number, uint32_t lane)
{
	if constexpr (ROWS == 1)
		return int4_one_of(t, whole, number, lane);
	else
		return shared_address(stage) + at * (ROWS * INT4_UNIT * 2);
}

/* The same by the slab's kind. */
template <class T, int ROWS, int COUNT, int GROUP, bool OFFSETS, bool EIGHT, int KIND> __device__ static inline void int4_any_unit(
    const struct int4_task &t, const uint8_t *unit, const uint32_t *block, auto x, uint32_t lane,
    float (*sums)[int4_eights<ROWS>][4])
{
	if constexpr (EIGHT)
		octet_unit<T, ROWS, COUNT, GROUP, OFFSETS>(t, unit, block, x, lane, sums);
	else
		int4_unit<T, ROWS, COUNT, GROUP, OFFSETS, KIND>(t, unit, block, x, lane, sums);
}

/* What is left of a tile and eight rows, or one, when warps have multiplied: sums of two outputs, eight apart, of a row. */
template <int ROWS> struct alignas(8) int4_part {
	static constexpr uint32_t COUNT = ROWS == 1 ? 8 : 64; /* of a tile; of more rows a lane has two, one behind the other */
	static constexpr uint32_t NEXT = ROWS == 1 ? 1 : 8;   /* from one to that of the next output */
	static constexpr uint32_t AT_ONCE = ROWS == 1 ? 8 : ROWS == 8 ? 4 : 2; /* are loaded, as registers allow */
	float low, high;

	/* A lane's, to where those of the tile are. */
	__device__ static void set(struct int4_part *tile, uint32_t lane, const float sums[4])
	{
		if (ROWS > 1)
			((float4 *)tile)[lane] = make_float4(sums[0], sums[2], sums[1], sums[3]);
		else if (lane % 4 == 0)
			tile[lane / 4] = { sums[0], sums[2] };
	}
	__device__ void add(const struct int4_part &more)
	{
		low += more.low;
		high += more.high;
	}
	/* The sum of COUNT of them from FROM on, STRIDE apart, one after the other. */
	__device__ static struct int4_part sum(const struct int4_part *from, uint32_t stride, uint32_t count)
	{
		struct int4_part ret = {};

#pragma unroll 1
		for (uint32_t s = 0; s < count; s += AT_ONCE) {
			struct int4_part more[AT_ONCE];

#pragma unroll
			for (uint32_t k = 0; k < AT_ONCE; k++, from += stride)
				more[k] = s + k < count ? *from : int4_part{};
#pragma unroll
			for (uint32_t k = 0; k < AT_ONCE; k++)
				ret.add(more[k]);
		}
		return ret;
	}
	/* Which output, of the first eight, and row number AT is of. */
	__device__ static uint32_t output(uint32_t at) { return at / NEXT; }
	__device__ static uint32_t row(uint32_t at) { return at % NEXT; }
};

/* A pair of outputs of q, k or v, out of line: compilers would begin its divisions before the products, and keep registers. */
template <class T> __device__ DEVICE_NOINLINE void int4_put_pair(const struct head_target &heads, T *y, uint32_t row,
    uint32_t unit, float2 outputs)
{
	head_put(heads, head_fetch(heads, row, unit), y, unit, outputs);
}

/* What follows q, k and v (heads.cuh), by all lanes of a warp, of which those without IS_THERE have nothing: output N of ROW and
 * the one eight behind it, whose neighbours the thread has that is NEXT apart.  WITH is the one row's. */
template <class T, int ROWS> __device__ static inline void int4_put_heads(const struct int4_task &t, uint32_t n, uint32_t row,
    bool is_there, const struct int4_part<ROWS> &sums, const struct head_pair &with)
{
	const float2   two = head_gather(sums.low, sums.high, int4_part<ROWS>::NEXT);
	const uint32_t unit = n % 2 ? n + 7 : n;
	T             *y = (T *)t.y + (size_t)row * t.y_stride;

	if (!is_there || row >= t.rows || unit >= t.w.rows)
		return;
	if constexpr (ROWS > 8)
		int4_put_pair<T>(t.heads, y, row, unit, two);
	else
		head_put(t.heads, ROWS == 1 ? with : head_fetch(t.heads, row, unit), y, unit, two);
}

/* Y = X · Wᵀ for ROWS ≤ 16 rows of X a block, of EIGHT bits ≤ 32; EACH tiles a warp, at least the split's.  One row lies in
 * shared memory as a whole, where all warps bring it, also those that have nothing to multiply. */
template <class T, int ROWS, int EACH, int GROUP, bool OFFSETS, bool EIGHT = false, int KIND = INT4_ANY> __global__ void
    __launch_bounds__(INT4_THREADS, 1) int4_multiply(const __grid_constant__ tensor_map inputs,
        const __grid_constant__ struct int4_task t)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	typedef struct int4_part<ROWS> part;
	constexpr int  TILES = int4_eights<ROWS>, SIDE = TILES > 1 ? 1 : EACH; /* side by side: as registers allow */
	uint8_t       *shared = (uint8_t *)shared_memory();
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, loaders = ROWS == 1 ? (uint32_t)INT4_WARPS : blockDim.x /
	    32 - 1;
	const uint32_t warps = ROWS == 1 ? t.split.row_warps * t.split.k_warps : loaders;
	uint8_t       *one = shared + t.stages * t.stage_bytes;
	part          *partial = (part *)(one + t.whole_bytes);
	mbarrier      *full = (mbarrier *)((uint8_t *)partial + t.sum_bytes), *empty = full + t.stages;
	struct int4_notes *notes = (struct int4_notes *)(empty + t.stages);

	dependents_launch();
	if (warp == loaders) { /* it has nothing else to do before its first copy */
		const struct int4_panel first = int4_panel_of(t.w, blockIdx.x);

		named_barrier_sync(3, 32 * (loaders + 1));
		if (lane == 0)
			int4_copy(t, &inputs, shared, ROWS, full, empty, first);
		return;
	}
	if (lane == 0) {
#pragma unroll 1
		for (uint32_t i = warp; i < t.stages; i += loaders) {
			barrier_init(&full[i], 1);
			barrier_init(&empty[i], warps);
		}
		fence_barrier_init();
	}
	__syncwarp();
	named_barrier_arrive(3, 32 * (loaders + 1));
	if (lane == 0) { /* the others read it behind barrier 2 */
		notes->warps[warp] = { warp % t.split.row_warps, warp / t.split.row_warps };
		if (warp == 0)
			notes->panel = int4_panel_of(t.w, blockIdx.x);
	}
	if constexpr (ROWS == 1) {
		for (uint32_t i = threadIdx.x; i < INT4_UNIT * 2 / 4; i += 32 * loaders)
			((uint32_t *)(one + t.units * (INT4_UNIT * 2) + 64))[i] = 0;
		const struct int4_panel own = int4_panel_of(t.w, blockIdx.x);
		const uint32_t unit = (own.first + threadIdx.x / 8) * INT4_TILE + threadIdx.x % 8 + (threadIdx.x % 2 ? 7 : 0);
		const bool     heads = t.heads.keys && threadIdx.x < own.tiles * 8 && unit < t.w.rows;
		struct head_pair with;
		const auto       early = [&] {
			if (heads)
				with = head_fetch(t.heads, 0, unit);
		};

		if (t.norm.x)
			int4_one_norm<T>(t, one, threadIdx.x, early);
		else
			int4_one_load<T>(t, one, threadIdx.x, early);
		if (heads)
			notes->pairs[threadIdx.x] = with;
		if (warp >= warps) {
			named_barrier_arrive(2, 32 * loaders);
			return;
		}
	} else {
		dependency_wait();
	}
	named_barrier_sync(2, 32 * loaders);
	/* With more rows what is loaded here would spill. */
	const uint32_t    mine = ROWS > 8 ? warp % t.split.row_warps : notes->warps[warp].mine;
	const uint32_t    share = ROWS > 8 ? warp / t.split.row_warps : notes->warps[warp].share;
	struct int4_panel panel = ROWS > 8 ? int4_panel_of(t.w, blockIdx.x) : notes->panel;
	/* Whether a stage is filled more than once; else nobody waits for its end, nor a warp for stages that it has nothing of. */
	const bool        refills = ROWS > 1 || t.stages * t.stage_units < t.units || gridDim.x < t.w.panels;
	uint32_t          stage = 0, phase = 0;

	for (; panel.number < t.w.panels; panel = int4_panel_of(t.w, panel.number + gridDim.x)) {
		const uint32_t first = panel.first, tiles = panel.tiles;
		float          sums[EACH][TILES][4];
		uint32_t       block[EACH], next = share; /* where in a unit the warp's tiles lie */

#pragma unroll
		for (int r = 0; r < EACH; r++) { /* one that is not there computes the last one once more */
			uint32_t tile = mine + r * t.split.row_warps;

			block[r] = (tile < tiles ? tile : tiles - 1) * t.tile_bytes;
#pragma unroll
			for (int j = 0; j < TILES; j++)
#pragma unroll
				for (int h = 0; h < 4; h++)
					sums[r][j][h] = 0;
		}
		for (uint32_t unit = 0; unit < t.units; unit += t.stage_units) {
			const uint8_t *at = shared + stage * t.stage_bytes;
			const uint32_t end = unit + t.stage_units < t.units ? unit + t.stage_units : t.units;

			if (next < end || refills)
				barrier_wait(&full[stage], phase);
#pragma unroll 1
			for (; next < end; next += t.split.k_warps) {
				const uint8_t *weights = at + t.input_bytes + (next - unit) * tiles * t.tile_bytes;
				const auto     x = int4_input_of<ROWS>(t, at, one, next - unit, next, lane);

#pragma unroll
				for (int r = 0; r + SIDE <= EACH; r += SIDE)
					int4_any_unit<T, ROWS, SIDE, GROUP, OFFSETS, EIGHT, KIND>(t, weights, &block[r], x, lane, &sums[r]);
				if constexpr (EACH % SIDE != 0)
					int4_any_unit<T, ROWS, EACH % SIDE, GROUP, OFFSETS, EIGHT, KIND>(t, weights, &block[EACH / SIDE * SIDE], x,
					    lane, &sums[EACH / SIDE * SIDE]);
			}
			if (refills) {
				__syncwarp();
				if (lane == 0)
					barrier_arrive(&empty[stage]);
			}
			if (++stage == t.stages) {
				stage = 0;
				phase ^= 1;
			}
		}
		/* The shares of units, in their order: [share][tile of the panel][eight rows][part].  Notes are read once more: places
		 * that are known before the products take registers. */
		const uint32_t parts = t.split.row_warps * t.split.each * TILES * part::COUNT;
		const uint32_t middle = t.halves > 1 ? (t.split.k_warps + 1) / 2 : 0;
		const auto     own = notes->warps[warp];

#pragma unroll
		for (int r = 0; r < EACH; r++)
#pragma unroll
			for (int j = 0; j < TILES; j++)
				if ((uint32_t)r < t.split.each)
					part::set(partial + own.share * parts + ((own.mine + r * t.split.row_warps) * TILES + j) * part::COUNT, lane,
					    sums[r][j]);
		named_barrier_sync(1, 32 * warps);
		for (uint32_t i = threadIdx.x; i < (parts + 31) / 32 * 32; i += 32 * warps) { /* whole warps */
			const uint32_t eight = i / part::COUNT % TILES, at = i % part::COUNT;
			const uint32_t n = (first + i / part::COUNT / TILES) * INT4_TILE + part::output(at);
			const uint32_t row = blockIdx.y * ROWS + eight * 8 + part::row(at);
			const bool     is_there = i < tiles * TILES * part::COUNT;
			const part    *from = partial + (is_there ? i : 0);
			part           sum = part::sum(from, parts, middle);

			sum.add(part::sum(from + middle * parts, parts, t.split.k_warps - middle));
			if (t.heads.keys)
				int4_put_heads<T>(t, n, row, is_there, sum, notes->pairs[i % (INT4_HEADS_TILES * 8)]);
			else if (is_there)
				int4_put<T>(t, n, row, sum.low, sum.high);
		}
		if (ROWS == 1 && panel.number + gridDim.x >= t.w.panels)
			break;
		named_barrier_sync(1, 32 * warps);
	}
#endif
}

/* LAUNCH(kernel, rows of a block) for the instance that multiplies T. */
template <class T, int ROWS, int GROUP, int KIND, class L> static inline auto int4_instance_of(const struct int4_task &t, L launch)
{
	return int4_split_of(&t.w).each > 2 ? launch(int4_multiply<T, ROWS, 3, GROUP, false, false, KIND>, (uint32_t)ROWS) :
	    launch(int4_multiply<T, ROWS, 2, GROUP, false, false, KIND>, (uint32_t)ROWS);
}
template <class T, int ROWS, int KIND, class L> static inline auto int4_instance_by_group(const struct int4_task &t, L launch)
{
	return t.w.group == INT4_GROUP_MIN ? int4_instance_of<T, ROWS, INT4_GROUP_MIN, KIND>(t, launch) :
	    int4_instance_of<T, ROWS, INT4_UNIT, KIND>(t, launch);
}
/* Whether W is multiplied with 17 to 32 rows in one block: a warp has registers for two tiles, and wgmma would compute four. */
static inline bool int4_takes_32(const struct int4_slab &w)
{
	return !w.eight && !int4_has_offsets(w) && int4_panel_tiles(w) <= 2;
}
template <class T, class L> static inline auto int4_instance(const struct int4_task &t, L launch)
{
	if (int4_has_offsets(t.w))
		return t.rows == 1 ? launch(int4_multiply<T, 1, 2, INT4_GROUP_MIN, true>, 1u) :
		    t.rows <= 8 ? launch(int4_multiply<T, 8, 2, INT4_GROUP_MIN, true>, 8u) :
		    launch(int4_multiply<T, 16, 2, INT4_GROUP_MIN, true>, 16u);
	if (t.rows == 1) /* where each instruction counts */
		return t.w.scales == INT4_F16 ? int4_instance_by_group<T, 1, INT4_F16>(t, launch) :
		    t.w.scales == INT4_BF16 ? int4_instance_by_group<T, 1, INT4_BF16>(t, launch) :
		    int4_instance_by_group<T, 1, INT4_F32>(t, launch);
	if (t.rows > INT4_NARROW_ROWS && int4_takes_32(t.w))
		return t.w.group == INT4_GROUP_MIN ? launch(int4_multiply<T, 32, 2, INT4_GROUP_MIN, false>, 32u) :
		    launch(int4_multiply<T, 32, 2, INT4_UNIT, false>, 32u);
	return t.rows <= 8 ? int4_instance_by_group<T, 8, INT4_ANY>(t, launch) : int4_instance_by_group<T, 16, INT4_ANY>(t, launch);
}

#include "gpu/fmt_octet.cuh"

#endif
