/* stored.c: owns the cutting of stored matrices into pieces: which bytes of a file hold which rows and columns.  Does not own
 * what the bytes mean (decode.cuh, model/weight.c) nor their way (upload.c).  Invariant: the pieces of a cut cover every value
 * of the window once, and every value of a piece lies in its bytes. */
#include "gpu/stored.h"

#include "model/weight.h"

#include <string.h>

/* The lines of a stored matrix. */
struct lines {
	uint64_t pitch;                 /* stored bytes of a line */
	uint32_t unit_bytes;            /* of a block or word in it */
	uint32_t per_line, per_unit;    /* rows or columns that share a line; columns or rows that share a unit */
	int      by_columns;            /* lines follow each other along the columns */
};

static struct lines lines_of(const struct weight_desc *w)
{
	uint64_t n = weight_stored_rows(w), k = weight_stored_columns(w);
	uint32_t columns = 1, bytes = 1;

	if (w->format != WEIGHT_I4) {
		weight_format_block(w->format, &columns, &bytes);
		return (struct lines){ k / columns * bytes, bytes, 1, columns, 0 };
	}
	switch (w->packing) {
	case WEIGHT_PACKED_GPTQ: return (struct lines){ n * 4, 4, 8, 1, 1 };
	case WEIGHT_PACKED_AWQ: return (struct lines){ n / 8 * 4, 4, 1, 8, 1 };
	default: return (struct lines){ (k + 7) / 8 * 4, 4, 1, 8, 0 };
	}
}

/* The first unit that COUNT rows or columns from FIRST on lie in, EACH to a unit, and how many there are. */
static uint64_t units_of(uint64_t first, uint64_t count, uint32_t each, uint64_t *ret_first)
{
	*ret_first = first / each;
	return (first + count - 1) / each - first / each + 1;
}

enum status stored_plan(const struct weight_desc *w, uint64_t piece_bytes, uint32_t row_unit, uint32_t column_unit,
    struct stored_cut *ret, struct error *error)
{
	struct lines      lines = lines_of(w);
	uint64_t          across = lines.by_columns ? w->rows : w->columns, along = lines.by_columns ? w->columns : w->rows;
	uint64_t          first, unit = lines.by_columns ? column_unit : row_unit;
	uint64_t          line_bytes = units_of(lines.by_columns ? w->first_row : w->first_column, across, lines.per_unit, &first) *
	    lines.unit_bytes;
	uint64_t          fit = piece_bytes / line_bytes;
	struct stored_cut cut = { .w = w, .by_columns = lines.by_columns };
	const size_t      sides[STORED_SIDES] = { w->scales.data ? w->scales.bytes : 0,
		w->zeros.packing == WEIGHT_ZEROS_NONE ? 0 : w->zeros.bytes, w->group_index ? 4 * weight_stored_columns(w) : 0 };

	/* A window may begin inside a line that holds several columns, so that one line more is needed. */
	cut.each = lines.per_line == 1 ? fit : fit > 1 ? (fit - 1) * lines.per_line : 0;
	cut.each = cut.each / unit * unit;
	if (cut.each == 0)
		return error_set(error, STATUS_LIMIT, "%s: %llu %s of %llu bytes in a piece of %llu bytes", w->name,
		    (unsigned long long)unit, lines.by_columns ? "columns" : "rows", (unsigned long long)line_bytes,
		    (unsigned long long)piece_bytes);
	cut.pieces = (along + cut.each - 1) / cut.each;
	for (int s = 0; s < STORED_SIDES; s++) {
		cut.side_at[s] = cut.side_total;
		cut.side_bytes[s] = sides[s];
		cut.side_total += (sides[s] + STORED_ALIGN - 1) / STORED_ALIGN * STORED_ALIGN;
	}
	*ret = cut;
	return STATUS_OK;
}

void stored_piece_of(const struct stored_cut *cut, uint64_t index, struct stored_piece *ret, struct stored_bytes *ret_bytes)
{
	const struct weight_desc *w = cut->w;
	struct lines              lines = lines_of(w);
	uint64_t first = index * cut->each, left = (lines.by_columns ? w->columns : w->rows) - first;
	uint64_t line, unit, line_count, unit_count, count = left < cut->each ? left : cut->each;
	struct stored_piece piece = { .format = w->format, .packing = w->packing, .window_rows = (uint32_t)w->rows,
		.window_columns = (uint32_t)w->columns, .corner_row = (uint32_t)w->first_row, .corner_column = (uint32_t)w->first_column,
		.stored_rows = (uint32_t)weight_stored_rows(w), .stored_columns = (uint32_t)weight_stored_columns(w) };

	if (lines.by_columns) {
		piece.first_column = (uint32_t)first;
		piece.columns = (uint32_t)count;
		piece.rows = (uint32_t)w->rows;
		line_count = units_of(w->first_column + first, count, lines.per_line, &line);
		unit_count = units_of(w->first_row, w->rows, lines.per_unit, &unit);
	} else {
		piece.first_row = (uint32_t)first;
		piece.rows = (uint32_t)count;
		piece.columns = (uint32_t)w->columns;
		line_count = units_of(w->first_row + first, count, lines.per_line, &line);
		unit_count = units_of(w->first_column, w->columns, lines.per_unit, &unit);
	}
	piece.first_line = (uint32_t)line;
	piece.first_unit = (uint32_t)unit;
	piece.pitch = unit_count * lines.unit_bytes;
	*ret_bytes = (struct stored_bytes){ (const uint8_t *)w->data + line * lines.pitch + unit * lines.unit_bytes, w->map, line_count,
		piece.pitch, lines.pitch };
	if (piece.pitch == lines.pitch)
		*ret_bytes = (struct stored_bytes){ ret_bytes->from, w->map, 1, line_count * piece.pitch, line_count * piece.pitch };
	*ret = piece;
}

struct stored_bytes stored_side_of(const struct stored_cut *cut, enum stored_side side)
{
	const struct weight_desc *w = cut->w;
	const void               *from[STORED_SIDES] = { w->scales.data, w->zeros.data, w->group_index };
	uint64_t                  bytes = cut->side_bytes[side];

	return (struct stored_bytes){ (const uint8_t *)from[side], w->map, bytes ? 1 : 0, bytes, bytes };
}

void stored_set_sides(const struct stored_cut *cut, const uint8_t *sides, struct stored_piece *ret)
{
	const struct weight_scales *s = &cut->w->scales;

	if (cut->side_bytes[STORED_SCALES]) {
		ret->scales = sides + cut->side_at[STORED_SCALES];
		ret->scale_type = s->type;
		ret->scale_common = s->common;
		ret->scale_block_rows = (uint32_t)s->block_rows;
		ret->scale_block_columns = (uint32_t)s->block_columns;
		ret->scale_row_blocks = (uint32_t)s->row_blocks;
		ret->scale_column_blocks = (uint32_t)s->column_blocks;
		ret->scales_transposed = s->transposed != 0;
	}
	if (cut->side_bytes[STORED_ZEROS]) {
		ret->zeros = sides + cut->side_at[STORED_ZEROS];
		ret->zero_packing = cut->w->zeros.packing;
		ret->zero_add = cut->w->zeros.add;
	}
	if (cut->side_bytes[STORED_INDEX])
		ret->index = sides + cut->side_at[STORED_INDEX];
}
