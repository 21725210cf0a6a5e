/* weight.h: reading a weight as the file stores it: what backends re-pack from and what tools look at.
 *
 * A struct weight_desc (backend.h) says where values, scales and zero points lie.  weight_check finds every inconsistency
 * between its sizes and its pointers once; after that the readers below need no checks.  Rows and columns are those of
 * the window; a group is a column of scales.
 */
#ifndef PENSTOCK_MODEL_WEIGHT_H
#define PENSTOCK_MODEL_WEIGHT_H

#include "model/backend.h"

#include <stdbool.h>

/* "Q4_K", "F8_E4M3"; "?" outside the table. */
const char *weight_format_name(enum weight_format format);
/* Columns that lie together and the bytes they take; 2 columns in 1 byte for WEIGHT_I4, whatever its packing.  False
 * outside the table. */
bool weight_format_block(enum weight_format format, uint32_t *ret_columns, uint32_t *ret_bytes);
/* F8_E4M3, I8, I4: the value alone says nothing. */
bool weight_format_has_scales(enum weight_format format);

static inline uint64_t weight_stored_rows(const struct weight_desc *w) { return w->stored_rows ? w->stored_rows : w->rows; }
static inline uint64_t weight_stored_columns(const struct weight_desc *w)
{
	return w->stored_columns ? w->stored_columns : w->columns;
}

/* STATUS_INVALID, STATUS_LIMIT or STATUS_UNSUPPORTED, naming the weight and what does not fit. */
enum status weight_check(const struct weight_desc *w, struct error *error);

/* Formats whose rows are contiguous (all but WEIGHT_I4): where row ROW of the window begins. */
const uint8_t *weight_row(const struct weight_desc *w, uint64_t row);

/* The rest is for formats with scales. */

/* The group whose scale and zero point COLUMN has. */
uint64_t weight_group_of(const struct weight_desc *w, uint64_t column);
uint32_t weight_scale_bits(const struct weight_desc *w, uint64_t row, uint64_t group); /* as stored; there must be scales */
float    weight_scale_at(const struct weight_desc *w, uint64_t row, uint64_t group);
unsigned weight_zero_at(const struct weight_desc *w, uint64_t row, uint64_t group); /* of WEIGHT_I4: 0…15 */
/* WEIGHT_I4: the stored q (0…15) of COUNT rows from ROW on, at one column. */
void     weight_read_column(const struct weight_desc *w, uint64_t row, uint32_t count, uint64_t column, uint8_t *ret);

/* Row ROW in float32, [columns]: F32, F16, BF16 and the formats with scales. */
void weight_read_row(const struct weight_desc *w, uint64_t row, float *ret);

#endif
