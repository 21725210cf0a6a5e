/* fmt_byte_load.cuh: how a stack of weights of one byte lies on the device, and what brings stored bytes and scales there.
 *
 *      values   [rows of the stack][stride] bytes, a row padded with zeroes to 128; wide ones in the order of byte_place
 *      scales   float32, one for each row, or [granules][scale_stride ≥ groups of 128 inputs] (fmt_byte.cuh)
 *
 * A granule never spans two scales of the file: it divides what parts of the stack, windows and blocks begin at.  e4m3 has two
 * patterns that are no number: a scale over one of them becomes NaN, so that every product with it is, as the file means it;
 * of a granule that is more than the one row.
 *
 * Invariant: what is taken here has the very values of the file; anything else is for the layout of rows. */
#ifndef PENSTOCK_GPU_FMT_BYTE_LOAD_CUH
#define PENSTOCK_GPU_FMT_BYTE_LOAD_CUH

#include "gpu/decode.cuh"
#include "gpu/fmt_byte.cuh"

enum { BYTE_LOAD_THREADS = 256, BYTE_LOAD_PACK = 16 /* bytes of a thread */, BYTE_PIECE_ROWS = 128 /* the largest granule */ };

struct byte_layout {
	enum byte_kind kind;
	uint32_t rows, columns, stride;
	uint32_t granule, scale_stride; /* granule 0: a scale for each row */
	uint64_t value_bytes, scale_count;
};

/* ---- Host ---- */

/* The largest power of two ≤ 128 that divides AT. */
static inline uint32_t byte_divisor(uint64_t at)
{
	uint32_t granule = BYTE_PIECE_ROWS;

	while (at % granule)
		granule /= 2;
	return granule;
}

/* The kind of weights of FORMAT whose inputs are rounded like INPUT; false: none.  BFLOAT: that is what activations are. */
static inline bool byte_kind_of(enum weight_format format, enum weight_input input, bool bfloat, enum byte_kind *ret)
{
	bool f8 = format == WEIGHT_F8_E4M3;

	if ((!f8 && format != WEIGHT_I8) || (input == WEIGHT_INPUT_FLOAT && !bfloat))
		return false;
	if (input != WEIGHT_INPUT_FLOAT && f8 != (input == WEIGHT_INPUT_F8_TOKEN || input == WEIGHT_INPUT_F8_GROUP))
		return false;
	*ret = input == WEIGHT_INPUT_FLOAT ? f8 ? BYTE_F8_WIDE : BYTE_I8_WIDE : f8 ? BYTE_F8 : BYTE_I8;
	return true;
}

/* How the stack of PARTS, which passed weight_check, lies; false where it cannot lie so.  Reads no values. */
static inline bool byte_layout_of(const struct weight_desc *parts, uint32_t count, bool bfloat, struct byte_layout *ret)
{
	struct byte_layout  layout = {};
	struct byte_product product = {};
	bool                by_group = false;

	if (!byte_kind_of(parts[0].format, parts[0].input, bfloat, &layout.kind))
		return false;
	layout.columns = (uint32_t)parts[0].columns;
	layout.stride = byte_round_up(layout.columns, BYTE_ALIGN);
	layout.granule = BYTE_PIECE_ROWS;
	for (uint32_t i = 0; i < count; i++) {
		const struct weight_desc *w = &parts[i];
		uint64_t block = w->scales.block_columns;
		bool     groups = block && w->first_column / block != (w->first_column + w->columns - 1) / block;

		if (w->format != parts[0].format || w->input != parts[0].input || w->group_index)
			return false;
		if (groups && (block % BYTE_GROUP || w->first_column % BYTE_GROUP))
			return false;
		by_group = by_group || groups;
		layout.rows += (uint32_t)w->rows;
	}
	layout.scale_stride = byte_scale_stride((layout.columns + BYTE_GROUP - 1) / BYTE_GROUP);
	for (uint32_t i = 0, at = 0; i < count && by_group; at += (uint32_t)parts[i++].rows) {
		const struct weight_desc *w = &parts[i];
		uint64_t block = w->scales.block_rows;
		/* Blocks begin at row m · block − first_row of the part. */
		uint32_t granule = byte_divisor(at), other = block ? byte_divisor(block) : (uint32_t)BYTE_PIECE_ROWS;

		granule = other < granule ? other : granule;
		other = block ? byte_divisor(at + block - w->first_row % block) : (uint32_t)BYTE_PIECE_ROWS;
		granule = other < granule ? other : granule;
		layout.granule = granule < layout.granule ? granule : layout.granule;
	}
	if (!by_group)
		layout.granule = 0;
	layout.value_bytes = (uint64_t)layout.rows * layout.stride;
	layout.scale_count = by_group ? (uint64_t)((layout.rows + layout.granule - 1) / layout.granule) * layout.scale_stride :
	    layout.rows;
	product.n = layout.rows;
	product.k = layout.columns;
	product.rows = 1;
	product.granule = layout.granule;
	product.x_scale_stride = parts[0].input == WEIGHT_INPUT_F8_GROUP ? 4 : 0;
	if (!byte_cut(layout.kind, 1, &product)) /* there is one for any number of rows, or none */
		return false;
	*ret = layout;
	return true;
}

/* ---- Device ---- */

/* Scales of a piece, which begins at a granule: a thread for each. */
static __global__ void __launch_bounds__(BYTE_LOAD_THREADS) byte_scales_kernel(struct stored_piece p, float *scales,
    uint32_t granule,
    uint32_t scale_stride)
{
	uint64_t at = (uint64_t)blockIdx.x * BYTE_LOAD_THREADS + threadIdx.x;
	uint32_t each = granule ? granule : 1, count = granule ? scale_stride : 1;
	uint32_t row = (uint32_t)(at / count) * each, group = (uint32_t)(at % count), column = group * BYTE_GROUP;

	if (row >= p.rows)
		return;
	column = column < p.columns ? column : p.columns - 1; /* behind the last group: whatever is finite */
	scales[(uint64_t)((p.stack_row + p.first_row + row) / each) * count + group] = decode_scale(p, p.corner_row + p.first_row + row,
	    decode_group(p, p.corner_column + column));
}

/* Sixteen bytes of a row of the piece a thread, behind the kernel above. */
static __global__ void __launch_bounds__(BYTE_LOAD_THREADS) byte_place_kernel(struct stored_piece p, uint8_t *values,
    uint32_t stride,
    float *scales, uint32_t granule, uint32_t scale_stride, int wide)
{
	uint64_t       at = (uint64_t)blockIdx.x * BYTE_LOAD_THREADS + threadIdx.x;
	uint32_t       packs = stride / BYTE_LOAD_PACK, row = (uint32_t)(at / packs), first = (uint32_t)(at % packs) * BYTE_LOAD_PACK;
	uint32_t       stack_row = p.stack_row + p.first_row + row, stored_row = p.corner_row + p.first_row + row;
	const uint8_t *from;
	uint8_t       *to = values + (uint64_t)stack_row * stride + first;
	bool           nan = false;

	if (row >= p.rows)
		return;
	from = p.values + (stored_row - p.first_line) * p.pitch + (p.corner_column - p.first_unit + first);
	for (uint32_t i = 0; i < BYTE_LOAD_PACK; i++) {
		uint32_t k = wide ? byte_place(i) : i;
		uint8_t  byte = first + k < p.columns ? from[k] : 0;

		nan = nan || (p.format == WEIGHT_F8_E4M3 && (byte & 0x7f) == 0x7f);
		to[i] = byte;
	}
	if (nan)
		scales[granule ? (uint64_t)(stack_row / granule) * scale_stride + first / BYTE_GROUP : stack_row] =
		    __uint_as_float(0x7fc00000);
}

/* ---- Values again ---- */

/* Value K of a row at ROW of the layout's values, without its scale. */
__device__ static inline float byte_value_at(enum byte_kind kind, const uint8_t *row, uint32_t k)
{
	uint32_t at = k % 16;
	uint8_t  byte;

	if (byte_wide(kind)) /* where byte_place put it */
		at = at % 8 / 2 * 4 + at % 2 + at / 8 * 2;
	byte = row[k / 16 * 16 + at];
	return kind == BYTE_F8 || kind == BYTE_F8_WIDE ? decode_e4m3(byte) : (float)(int8_t)byte;
}

#endif
