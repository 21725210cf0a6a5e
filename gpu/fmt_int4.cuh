/* fmt_int4.cuh: owns four-bit weights on the device: how they lie, how stored formats become that, and products with them.
 * Does not own launches (fmt_int4.cu).  Invariant: a row of a product has the same bits whatever rows are computed with it,
 * and a value of the slab is exactly the one that the file describes.
 *
 * Slab.  A weight [rows, columns] is cut into tiles of 16 rows and units of 128 columns; rows and columns that are missing
 * at the ends are there as zeros.  Neighbouring tiles form panels, as many as there are multiprocessors or a multiple, and a
 * panel is what one block multiplies: units one after the other, each contiguous, so that a stage of the ring is one copy.
 *
 *      panel 0: tiles 0…T − 1                               panel 1
 *      ┌────────┬────────┬───┐                              ┌────────┬──
 *      │ unit 0 │ unit 1 │ … │  unit = T × words[256]       │ unit 0 │ …
 *      └────────┴────────┴───┘       | T × scales | T × zeros└────────┴──
 *
 * One word is what a lane needs of a tile's 16 × 16 values as the first operand of mma.m16n8k16: with g = lane / 4, t =
 * lane % 4, nibble f of its low half is row g + 8 · (f & 1), column 2t + 8 · (f >> 1), that of its high half the next column.
 * Word [half of the unit][lane][step of 16 columns in the half]: a lane loads four at once.
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
 * columns after the other inside a group, groups ascending, and over units u with equal u % K_WARPS first, K_WARPS being a
 * property of the weight's shape.
 *
 * Columns may lie in another order than in the file (GPTQ with act-order): `order` says which column of the input a column of
 * the slab multiplies, and the input is brought into that order first. */
#ifndef PENSTOCK_GPU_FMT_INT4_CUH
#define PENSTOCK_GPU_FMT_INT4_CUH

#include "gpu/decode.cuh"

#include <string.h>

enum {
	INT4_TILE = 16, INT4_UNIT = 128, INT4_WORDS_BYTES = INT4_TILE * INT4_UNIT / 2,
	INT4_GROUP_MIN = 32,
	INT4_WARPS = 16,           /* that multiply; one more copies */
	INT4_THREADS = 32 * (INT4_WARPS + 1),
	INT4_PANEL_TILES = 32,     /* at most: two to a warp */
	INT4_STAGES_MAX = 16, INT4_STAGES_LEAST = 3,
	INT4_STAGE_BYTES = 16 << 10, /* of weights at least, where so many columns fit: smaller copies are slow */
	INT4_SHARED_MOST = 227 << 10 /* of a block, sm_90 */
};

enum int4_scales {
	INT4_F16, INT4_BF16, INT4_F32, /* s · (q − z) */
	INT4_F16_PAIR,                 /* s, o as halves */
	INT4_K                         /* halves d, m of the super-block, and bytes a, b: s = d · a, o = −m · b */
};

struct int4_slab {
	uint8_t       *data;
	const int32_t *order;       /* [columns]; NULL: as in the file */
	uint32_t rows, columns;
	uint32_t group;             /* 32, 64 or 128 columns have a scale */
	uint32_t panels;
	enum int4_scales scales;
	int      zeros;             /* they are stored */
};

/* ---- Where things lie ---- */

__host__ __device__ static inline uint32_t int4_tiles(const struct int4_slab &w) { return (w.rows + INT4_TILE - 1) / INT4_TILE; }
__host__ __device__ static inline uint32_t int4_units(const struct int4_slab &w) { return (w.columns + INT4_UNIT - 1) / INT4_UNIT; }
__host__ __device__ static inline int int4_has_offsets(const struct int4_slab &w) { return w.scales >= INT4_F16_PAIR; }

/* Bytes of a tile's scales, and of its zeros, in a unit. */
__host__ __device__ static inline uint32_t int4_scale_bytes(const struct int4_slab &w)
{
	uint32_t groups = INT4_UNIT / w.group;

	return w.scales == INT4_K ? INT4_TILE * (4 + 2 * groups) :
	    INT4_TILE * groups * (w.scales == INT4_F32 || w.scales == INT4_F16_PAIR ? 4 : 2);
}
__host__ __device__ static inline uint32_t int4_zero_bytes(const struct int4_slab &w)
{
	return w.zeros ? INT4_TILE * (INT4_UNIT / w.group) : 0;
}
__host__ __device__ static inline uint32_t int4_tile_bytes(const struct int4_slab &w)
{
	return INT4_WORDS_BYTES + int4_scale_bytes(w) + int4_zero_bytes(w);
}
__host__ __device__ static inline uint64_t int4_bytes(const struct int4_slab &w)
{
	return (uint64_t)int4_tiles(w) * int4_units(w) * int4_tile_bytes(w);
}
__host__ __device__ static inline uint32_t int4_panel_first(const struct int4_slab &w, uint32_t panel)
{
	return (uint32_t)((uint64_t)int4_tiles(w) * panel / w.panels);
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
/* Warps beside each other over a panel's tiles; the others share its units.  A property of the weight, never of the rows that
 * are multiplied with it. */
__host__ __device__ static inline uint32_t int4_row_warps(const struct int4_slab &w)
{
	uint32_t tiles = int4_panel_tiles(w), warps = 1;

	while (warps < tiles && warps < INT4_WARPS)
		warps *= 2;
	return warps;
}

/* Position of ROW < 16 among a group's. */
__host__ __device__ static inline uint32_t int4_place(uint32_t row) { return row % 8 * 2 + row / 8; }

/* The parts of a tile's unit. */
struct int4_block {
	const uint8_t *words, *scales, *zeros;
};
__host__ __device__ static inline struct int4_block int4_block_in(const struct int4_slab &w, const uint8_t *unit, uint32_t tiles,
    uint32_t tile)
{
	const uint8_t *scales = unit + tiles * INT4_WORDS_BYTES, *zeros = scales + tiles * int4_scale_bytes(w);

	return { unit + tile * INT4_WORDS_BYTES, scales + tile * int4_scale_bytes(w), zeros + tile * int4_zero_bytes(w) };
}
__host__ __device__ static inline struct int4_block int4_block_at(const struct int4_slab &w, uint32_t tile, uint32_t unit)
{
	uint32_t panel = (uint32_t)((((uint64_t)tile + 1) * w.panels - 1) / int4_tiles(w));
	uint32_t first = int4_panel_first(w, panel), tiles = int4_panel_first(w, panel + 1) - first;
	uint64_t at = ((uint64_t)first * int4_units(w) + (uint64_t)unit * tiles) * int4_tile_bytes(w);

	return int4_block_in(w, w.data + at, tiles, tile - first);
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
	} else if (!OFFSETS) {
		uint32_t pair = words[at / 2];

		s[0] = w.scales == INT4_F16 ? int4_from_half(pair) : int4_from_bfloat(pair);
		s[1] = w.scales == INT4_F16 ? int4_from_half(pair >> 16) : int4_from_bfloat(pair >> 16);
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
	struct int4_block block = int4_block_at(w, row / INT4_TILE, column / INT4_UNIT);
	uint32_t in_tile = row % INT4_TILE, k = column % INT4_UNIT, group = k / w.group, place = int4_place(in_tile);
	uint32_t lane = in_tile % 8 * 4 + k % 8 / 2, nibble = in_tile / 8 + k % 16 / 8 * 2 + k % 2 * 4;
	uint32_t word = ((const uint32_t *)block.words)[k / 64 * 128 + lane * 4 + k % 64 / 16];
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
	case WEIGHT_Q4_1:
		from = decode_block(p, row, column, 32, 20);
		halves[2 * at] = (uint16_t)decode_u16(from);
		halves[2 * at + 1] = (uint16_t)decode_u16(from + 2);
		return;
	case WEIGHT_Q4_K:
		from = decode_block(p, row, column, 256, 144);
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
	uint32_t half = thread / 128, lane = thread % 128 / 4, step = 4 * half + thread % 4, word = 0;
	struct int4_block block = int4_block_at(slab, tile, unit);

	for (uint32_t nibble = 0; nibble < 8; nibble++) {
		uint32_t row = tile * INT4_TILE + lane / 4 + nibble % 2 * 8 - p.stack_row;
		uint32_t k = unit * INT4_UNIT + step * 16 + lane % 4 * 2 + nibble % 4 / 2 * 8 + nibble / 4;
		uint32_t column = k < slab.columns && slab.order ? (uint32_t)slab.order[k] : k;

		if (k < slab.columns && row - p.first_row < p.rows && column - p.first_column < p.columns)
			word |= int4_stored_q(p, p.corner_row + row, p.corner_column + column) << 4 * nibble;
	}
	((uint32_t *)block.words)[thread] |= word;
	if (thread < INT4_TILE * (INT4_UNIT / slab.group)) {
		uint32_t group = thread / INT4_TILE, row = tile * INT4_TILE + thread % INT4_TILE - p.stack_row;
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
	struct int4_range range = { 0, int4_units(*slab), first / INT4_TILE, 0 };

	range.tiles = (end + INT4_TILE - 1) / INT4_TILE - range.first_tile;
	if (!slab->order) {
		range.first_unit = p->first_column / INT4_UNIT;
		range.units = (p->first_column + p->columns + INT4_UNIT - 1) / INT4_UNIT - range.first_unit;
	}
	return range;
}

/* ---- Decoding ---- */

/* ROWS rows of the slab from FIRST on as a plain matrix [rows][stride] in the slab's order of columns, zeros beyond them.  A
 * block a unit and sixteen rows. */
template <class T> __global__ void __launch_bounds__(INT4_UNIT) int4_decode(const struct int4_slab w, uint32_t first,
    uint32_t rows, T *to, uint32_t stride)
{
	uint32_t column = blockIdx.x * INT4_UNIT + threadIdx.x;

	for (uint32_t i = 0; i < INT4_TILE && column < stride; i++) {
		uint32_t row = blockIdx.y * INT4_TILE + i;

		if (row < rows)
			to[(size_t)row * stride + column] = from_float<T>(column < w.columns ? int4_value(w, first + row, column) : 0);
	}
}

/* Row OFFSET + INDEX[i], or OFFSET alone without an index, or row 0 for those that are not there: in the file's order, rounded to
 * T as if the weight were, at TO + i · STRIDE, or added to what is there.  A block a row. */
template <class T, class Y> __global__ void __launch_bounds__(256) int4_rows(const struct int4_slab w, const int32_t *index,
    uint32_t offset, int add, Y *to, uint32_t stride)
{
	uint32_t row = offset + (index ? (uint32_t)index[blockIdx.x] : 0);

	row = row < w.rows ? row : 0;
	for (uint32_t k = threadIdx.x; k < w.columns; k += blockDim.x) {
		Y *at = to + (size_t)blockIdx.x * stride + (w.order ? (uint32_t)w.order[k] : k);

		float value = to_float(from_float<T>(int4_value(w, row, k)));

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

/* What a launch needs.  Blocks: x over panels, y over ROWS of the input each. */
struct int4_task {
	struct int4_slab w;
	const void *x; /* [rows][x_stride], 16-byte aligned, x_stride a multiple of 8 */
	void       *y; /* [rows][y_stride], float32 when TO_FLOAT */
	uint32_t    x_stride, y_stride, rows;
	int         to_float;
	uint32_t    stage_units, stages;
	/* int4_size: what follows from these.  Kernels read it as constants. */
	uint32_t units, row_warps, k_warps, group_shift, tile_bytes, scale_bytes, zero_bytes;
	uint32_t pitch, weight_bytes, stage_bytes, sum_bytes; /* of shared memory: a row of inputs; a stage's weights, a stage */
};

/* Shared memory: stages of (units of weights | rows of inputs), partial sums, barriers.  Returns its size for blocks of ROWS. */
static inline uint32_t int4_size(struct int4_task *t, uint32_t rows)
{
	uint32_t each;

	t->units = int4_units(t->w);
	t->row_warps = int4_row_warps(t->w);
	t->k_warps = INT4_WARPS / t->row_warps;
	t->group_shift = t->w.group == 32 ? 5 : t->w.group == 64 ? 6 : 7;
	t->tile_bytes = int4_tile_bytes(t->w);
	t->scale_bytes = int4_scale_bytes(t->w);
	t->zero_bytes = int4_zero_bytes(t->w);
	t->pitch = t->stage_units * INT4_UNIT * 2 + 16; /* sixteen bytes more: rows begin in different banks */
	t->weight_bytes = t->stage_units * int4_panel_tiles(t->w) * t->tile_bytes;
	t->stage_bytes = (t->weight_bytes + rows * t->pitch + 127) / 128 * 128;
	each = (int4_panel_tiles(t->w) + t->row_warps - 1) / t->row_warps;
	t->sum_bytes = (t->k_warps - 1) * t->row_warps * each * INT4_TILE * rows * 4;
	return t->stages * t->stage_bytes + t->sum_bytes + 2 * t->stages * (uint32_t)sizeof(mbarrier);
}

/* Cuts shared memory into stages for blocks of ROWS; returns its size. */
static inline uint32_t int4_choose_stages(struct int4_task *t, uint32_t rows)
{
	uint32_t each = int4_panel_tiles(t->w) * int4_tile_bytes(t->w), units = int4_units(t->w);

	t->stages = 1;
	t->stage_units = 1;
	while (t->stage_units < units && t->stage_units * each < INT4_STAGE_BYTES) {
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

template <class T> struct int4_type;
template <> struct int4_type<__nv_bfloat16> {
	typedef __nv_bfloat162 pair;
	static constexpr uint32_t base = 0x4300, one = 0x3f80; /* 128, 1 */
};
template <> struct int4_type<__half> {
	typedef __half2 pair;
	static constexpr uint32_t base = 0x6400, one = 0x3c00; /* 1024, 1 */
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
		a[f] = int4_subtract<T>((word >> 4 * f & 0x000f000f) | int4_type<T>::base * 0x10001, zero[f & 1]);
}

template <class T, int ROWS> struct int4_consumer {
	static constexpr int TILES = ROWS / 8;

	/* A load brings two operands: two steps of the same eight rows where there are no more, or the same step of sixteen.
	 * Matrices of ldmatrix are the halves of a step; this is where a lane's row begins. */
	static constexpr bool WIDE = TILES == 1;
	__device__ static uint32_t row_of(uint32_t lane, uint32_t pitch)
	{
		return WIDE ? lane % 8 * pitch + lane / 8 * 16 : (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16;
	}

	/* Inputs from COLUMN on, those from END on as zeros. */
	__device__ static void load(uint32_t x, uint32_t lane, uint32_t column, uint32_t end, uint32_t b[2][2])
	{
		uint32_t r[4];

		ldmatrix_x4(r, x);
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i / 2][i % 2] = r[i];
		if (column + (WIDE ? 32 : 16) <= end)
			return;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint32_t k = column + (WIDE ? i : i % 2) * 8 + lane % 4 * 2;

			b[i / 2][i % 2] &= k >= end ? 0 : k + 1 >= end ? 0xffff : ~0u;
		}
	}

	/* SUMS += a tile times a unit; the unit begins at COLUMN, X are its inputs. */
	template <bool OFFSETS>
	__device__ static void unit(const struct int4_task &t, const struct int4_block &block, uint32_t x, uint32_t lane,
	    uint32_t column, float sums[TILES][4])
	{
		const uint32_t ones[4] = { int4_type<T>::one * 0x10001, int4_type<T>::one * 0x10001, int4_type<T>::one * 0x10001,
			int4_type<T>::one * 0x10001 };
		const uint32_t place = lane / 4 * 2;
		float    of_group[TILES][4], of_inputs[OFFSETS ? TILES : 1][4];
		uint32_t zero[2] = { 0, 0 }, b[2][2], a[4];

#pragma unroll 1
		for (int half = 0; half < 2; half++) {
			const uint4    four = *(const uint4 *)(block.words + half * (INT4_WORDS_BYTES / 2) + lane * 16);
			const uint32_t words[4] = { four.x, four.y, four.z, four.w };

#pragma unroll
			for (int part = 0; part < 2; part++) {
				const uint32_t at = half * 64 + part * 32, group = at >> t.group_shift;

				if ((at & (t.w.group - 1)) == 0) {
#pragma unroll
					for (int j = 0; j < TILES; j++)
#pragma unroll
						for (int h = 0; h < 4; h++) {
							of_group[j][h] = 0;
							of_inputs[OFFSETS ? j : 0][h] = 0;
						}
#pragma unroll
					for (int i = 0; i < 2; i++)
						zero[i] = (int4_type<T>::base + (OFFSETS ? 0 : t.w.zeros ? block.zeros[group * INT4_TILE + place + i] :
						    8)) * 0x10001;
				}
#pragma unroll
				for (int step = 0; step < 2; step++) {
					const uint32_t from = at + step * 16;

					int4_operand<T>(words[part * 2 + step], zero, a);
					if (WIDE && step == 0)
						load(x + from * 2, lane, column + from, t.w.columns, b);
#pragma unroll
					for (int j = 0; j < TILES; j++) {
						if (!WIDE && j % 2 == 0)
							load(x + j * 8 * t.pitch + from * 2, lane, column + from, t.w.columns, b);
						mma_m16n8k16<T>(of_group[j], a, b[WIDE ? step : j % 2]);
						if (OFFSETS)
							mma_m16n8k16<T>(of_inputs[OFFSETS ? j : 0], ones, b[WIDE ? step : j % 2]);
					}
				}
				if (((at + 32) & (t.w.group - 1)) == 0) {
					float s[2], o[2];

					int4_scales_of<OFFSETS>(t.w, block.scales, group, place, s, o);
#pragma unroll
					for (int j = 0; j < TILES; j++)
#pragma unroll
						for (int h = 0; h < 4; h++) {
							sums[j][h] = fmaf(s[h / 2], of_group[j][h], sums[j][h]);
							if (OFFSETS)
								sums[j][h] = fmaf(o[h / 2], of_inputs[OFFSETS ? j : 0][h], sums[j][h]);
						}
				}
			}
		}
	}
};

/* The warp that copies: weights as soon as there is room, inputs once the kernel before is done. */
template <int ROWS> __device__ static inline void int4_copy(const struct int4_task &t, uint8_t *shared, mbarrier *full,
    mbarrier *empty, uint32_t lane)
{
	const uint32_t units = t.units, steps = (units + t.stage_units - 1) / t.stage_units;
	const uint32_t panels = (t.w.panels - blockIdx.x + gridDim.x - 1) / gridDim.x, count = panels * steps;
	const uint32_t first_row = blockIdx.y * ROWS, left = t.rows - first_row, rows = left < ROWS ? left : ROWS;
	const uint32_t before = count < t.stages ? count : t.stages;
	const uint64_t once = cache_evict_first(), again = cache_evict_last();
	const uint32_t end = (t.w.columns + 7) / 8 * 8;
	uint32_t       stage = 0, phase = 1;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t panel = blockIdx.x + i / steps * gridDim.x, unit = i % steps * t.stage_units;
		uint32_t first = int4_panel_first(t.w, panel), tiles = int4_panel_first(t.w, panel + 1) - first;
		uint32_t some = units - unit < t.stage_units ? units - unit : t.stage_units;
		uint32_t bytes = some * tiles * t.tile_bytes;
		uint32_t columns = end - unit * INT4_UNIT < some * INT4_UNIT ? end - unit * INT4_UNIT : some * INT4_UNIT;

		if (lane == 0) {
			if (i >= t.stages)
				barrier_wait(&empty[stage], phase);
			barrier_expect(&full[stage], bytes + rows * columns * 2);
			bulk_copy(shared + stage * t.stage_bytes, t.w.data + ((uint64_t)first * units + (uint64_t)unit * tiles) * t.tile_bytes,
			    bytes, &full[stage], blockIdx.y + 1 == gridDim.y ? once : again);
		}
		__syncwarp();
		if (i + 1 == before)
			dependency_wait();
		/* The inputs of this stage; when the wait is over, of all before. */
		for (uint32_t k = i + 1 == before ? 0 : i; k <= i && i + 1 >= before; k++) {
			uint32_t s = k % t.stages, from = k % steps * t.stage_units, these = units - from < t.stage_units ? units - from :
			    t.stage_units;
			uint32_t wide = end - from * INT4_UNIT < these * INT4_UNIT ? end - from * INT4_UNIT : these * INT4_UNIT;

			if (lane < rows)
				bulk_copy(shared + s * t.stage_bytes + t.weight_bytes + lane * t.pitch,
				    (const uint8_t *)t.x + ((size_t)(first_row + lane) * t.x_stride + from * INT4_UNIT) * 2, wide * 2, &full[s],
				    again);
		}
		if (++stage == t.stages) {
			stage = 0;
			phase ^= 1;
		}
	}
}

/* Y = X · Wᵀ for ROWS ≤ 32 rows of X a block; EACH tiles a warp; OFFSETS as the slab has them. */
template <class T, int ROWS, int EACH, bool OFFSETS> __global__ void __launch_bounds__(INT4_THREADS, 1) int4_multiply(
    const struct int4_task t)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	typedef int4_consumer<T, ROWS> consumer;
	constexpr int  TILES = ROWS / 8;
	uint8_t       *shared = (uint8_t *)shared_memory();
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	float4        *partial = (float4 *)(shared + t.stages * t.stage_bytes);
	mbarrier      *full = (mbarrier *)((uint8_t *)partial + t.sum_bytes), *empty = full + t.stages;

	dependents_launch();
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < t.stages; i++) {
			barrier_init(&full[i], 1);
			barrier_init(&empty[i], INT4_WARPS);
		}
		fence_barrier_init();
	}
	__syncthreads();
	if (warp == INT4_WARPS) {
		int4_copy<ROWS>(t, shared, full, empty, lane);
		return;
	}
	const uint32_t mine = warp % t.row_warps, share = warp / t.row_warps;
	uint32_t       stage = 0, phase = 0;

	dependency_wait();
	for (uint32_t panel = blockIdx.x; panel < t.w.panels; panel += gridDim.x) {
		const uint32_t first = int4_panel_first(t.w, panel), tiles = int4_panel_first(t.w, panel + 1) - first;
		float          sums[EACH][TILES][4];

#pragma unroll
		for (int r = 0; r < EACH; r++)
#pragma unroll
			for (int j = 0; j < TILES; j++)
#pragma unroll
				for (int h = 0; h < 4; h++)
					sums[r][j][h] = 0;
		for (uint32_t unit = 0; unit < t.units; unit += t.stage_units) {
			const uint8_t *at = shared + stage * t.stage_bytes;
			const uint32_t inputs = shared_address(at) + t.weight_bytes + consumer::row_of(lane, t.pitch);

			barrier_wait(&full[stage], phase);
#pragma unroll 1
			for (uint32_t i = 0; i < t.stage_units && unit + i < t.units; i++) {
				if (((unit + i) & (t.k_warps - 1)) != share) /* a power of two */
					continue;
#pragma unroll
				for (int r = 0; r < EACH; r++) {
					const uint32_t tile = mine + r * t.row_warps;
					const uint8_t *words = at + i * tiles * t.tile_bytes, *scales = words + tiles * INT4_WORDS_BYTES;

					if (tile < tiles)
						consumer::template unit<OFFSETS>(t, { words + tile * INT4_WORDS_BYTES, scales + tile * t.scale_bytes,
						    scales + tiles * t.scale_bytes + tile * t.zero_bytes }, inputs + i * INT4_UNIT * 2, lane,
						    (unit + i) * INT4_UNIT, sums[r]);
				}
			}
			__syncwarp();
			if (lane == 0)
				barrier_arrive(&empty[stage]);
			if (++stage == t.stages) {
				stage = 0;
				phase ^= 1;
			}
		}
		/* The shares of units, in their order. */
		if (t.k_warps > 1) {
#pragma unroll
			for (int r = 0; r < EACH; r++)
#pragma unroll
				for (int j = 0; j < TILES; j++)
					if (share > 0)
						partial[((((share - 1) * t.row_warps + mine) * EACH + r) * TILES + j) * 32 + lane] =
						    make_float4(sums[r][j][0], sums[r][j][1], sums[r][j][2], sums[r][j][3]);
			named_barrier_sync(1, 32 * INT4_WARPS);
#pragma unroll
			for (int r = 0; r < EACH; r++)
#pragma unroll
				for (int j = 0; j < TILES; j++)
					for (uint32_t s = 1; s < t.k_warps && share == 0; s++) {
						float4 more = partial[((((s - 1) * t.row_warps + mine) * EACH + r) * TILES + j) * 32 + lane];

						sums[r][j][0] += more.x;
						sums[r][j][1] += more.y;
						sums[r][j][2] += more.z;
						sums[r][j][3] += more.w;
					}
			named_barrier_sync(1, 32 * INT4_WARPS);
		}
		if (share > 0)
			continue;
#pragma unroll
		for (int r = 0; r < EACH; r++)
#pragma unroll
			for (int j = 0; j < TILES; j++)
#pragma unroll
				for (int h = 0; h < 4; h++) {
					uint32_t tile = mine + r * t.row_warps, n = (first + tile) * INT4_TILE + lane / 4 + h / 2 * 8;
					uint32_t row = blockIdx.y * ROWS + j * 8 + lane % 4 * 2 + h % 2;

					if (tile >= tiles || n >= t.w.rows || row >= t.rows)
						continue;
					if (t.to_float)
						((float *)t.y)[(size_t)row * t.y_stride + n] = sums[r][j][h];
					else
						((T *)t.y)[(size_t)row * t.y_stride + n] = from_float<T>(sums[r][j][h]);
				}
	}
#else
	(void)t; /* written for sm_90a, as backend.cu says */
#endif
}

/* LAUNCH(kernel, rows of a block) for the instance that multiplies T.  Slabs with offsets have none of 32 rows: their sums would
 * not fit into registers. */
template <class T, class L> static inline auto int4_instance(const struct int4_task &t, L launch)
{
	bool two = int4_panel_tiles(t.w) > int4_row_warps(t.w);

	if (int4_has_offsets(t.w) && t.rows <= 8)
		return two ? launch(int4_multiply<T, 8, 2, true>, 8u) : launch(int4_multiply<T, 8, 1, true>, 8u);
	if (int4_has_offsets(t.w))
		return two ? launch(int4_multiply<T, 16, 2, true>, 16u) : launch(int4_multiply<T, 16, 1, true>, 16u);
	if (t.rows <= 8)
		return two ? launch(int4_multiply<T, 8, 2, false>, 8u) : launch(int4_multiply<T, 8, 1, false>, 8u);
	if (t.rows <= 16)
		return two ? launch(int4_multiply<T, 16, 2, false>, 16u) : launch(int4_multiply<T, 16, 1, false>, 16u);
	return two ? launch(int4_multiply<T, 32, 2, false>, 32u) : launch(int4_multiply<T, 32, 1, false>, 32u);
}

#endif
