/* stored.h: a stored matrix on its way to the device, in pieces.
 *
 * A matrix of a file is a row of lines of equal size: the rows of floats, bytes and blocks; for int4 the rows of words, or,
 * where they are transposed, GPTQ's rows of eight columns and AWQ's columns.  A piece is so many of the lines that the
 * window (struct weight_desc) needs, cut off on both sides to what the window needs of them, and packed tightly; scales,
 * zero points and the index of groups are small and go before the first piece, as the file has them.  A piece covers whole
 * rows of the window, or, of transposed int4, whole columns.  Kernels read it by weight.h's meaning (decode.cuh).
 *
 * Plain C, compiled for tests too.
 */
#ifndef PENSTOCK_GPU_STORED_H
#define PENSTOCK_GPU_STORED_H

#include "model/backend.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { STORED_ALIGN = 256 };

enum stored_side { STORED_SCALES, STORED_ZEROS, STORED_INDEX, STORED_SIDES };

/* What a kernel needs to know; pointers are the device's. */
struct stored_piece {
	enum weight_format       format, scale_type;
	enum weight_packing      packing;
	enum weight_zero_packing zero_packing;
	uint32_t zero_add;
	/* What of the window it covers, and the row of the stack of parts that the window's first row is. */
	uint32_t first_row, rows, first_column, columns, stack_row;
	uint32_t window_rows, window_columns;
	/* The window's corner in the stored matrix, and how large that is. */
	uint32_t corner_row, corner_column, stored_rows, stored_columns;
	/* Lines from FIRST_LINE on, PITCH bytes each, which begin at word or block FIRST_UNIT of the stored line. */
	const uint8_t *values;
	uint64_t       pitch;
	uint32_t       first_line, first_unit;
	/* As struct weight_scales and weight_zeros; NULL: none. */
	const uint8_t *scales, *zeros, *index;
	float          scale_common;
	uint32_t       scale_block_rows, scale_block_columns, scale_row_blocks, scale_column_blocks;
	int32_t        scales_transposed;
};

/* Bytes of a file that lie ROWS times ROW_BYTES, STRIDE apart, and go to the device tightly. */
struct stored_bytes {
	const uint8_t    *from;
	const struct map *map; /* as in struct weight_desc */
	uint64_t rows, row_bytes, stride;
};

/* How a matrix is cut. */
struct stored_cut {
	const struct weight_desc *w;
	uint64_t each;   /* rows, or columns, of a piece */
	uint64_t pieces;
	int      by_columns;
	uint64_t side_at[STORED_SIDES], side_bytes[STORED_SIDES], side_total; /* from the beginning of the side's memory */
};

/* Cuts W, which passed weight_check, into pieces of at most PIECE_BYTES that begin at multiples of ROW_UNIT rows or
 * COLUMN_UNIT columns.  STATUS_LIMIT when not even a unit fits. */
enum status stored_plan(const struct weight_desc *w, uint64_t piece_bytes, uint32_t row_unit, uint32_t column_unit,
    struct stored_cut *ret, struct error *error);
/* Piece INDEX, but for its pointers and stack_row; RET_BYTES is where it comes from. */
void stored_piece_of(const struct stored_cut *cut, uint64_t index, struct stored_piece *ret, struct stored_bytes *ret_bytes);
/* Where a side comes from; no rows where there is none. */
struct stored_bytes stored_side_of(const struct stored_cut *cut, enum stored_side side);
/* With the side's memory at SIDES on the device. */
void stored_set_sides(const struct stored_cut *cut, const uint8_t *sides, struct stored_piece *ret);

#ifdef __cplusplus
}
#endif
#endif
