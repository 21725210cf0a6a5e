/* weight.h: reading a weight as the file stores it: what backends re-pack from and what tools look at.
 *
 * A struct weight_desc (backend.h) says where values, scales and zero points lie.  weight_check finds every
 * inconsistency between its sizes and its pointers once; after that the readers below need no checks.  Rows and
 * columns are those of the window; a group is a column of scales. */
#ifndef PENSTOCK_MODEL_WEIGHT_H
#define PENSTOCK_MODEL_WEIGHT_H

#include "model/backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "Q4_K", "F8_E4M3"; "?" outside the table. */
const char *weight_format_name(enum weight_format format);
/* Columns that lie together and the bytes they take; 2 columns in 1 byte for WEIGHT_I4, whatever its packing.  False
 * outside the table. */
bool weight_format_block(enum weight_format format, uint32_t *ret_columns, uint32_t *ret_bytes);
/* F8_E4M3, I8, I4, F4_E2M1: the value alone says nothing. */
bool weight_format_has_scales(enum weight_format format);

static inline uint64_t weight_stored_rows(const struct weight_desc *w)
{
	return w->stored_rows ? w->stored_rows : w->rows;
}
static inline uint64_t weight_stored_columns(const struct weight_desc *w)
{
	return w->stored_columns ? w->stored_columns : w->columns;
}

/* STATUS_INVALID, STATUS_LIMIT or STATUS_UNSUPPORTED, naming the weight and what does not fit. */
enum status weight_check(const struct weight_desc *w, struct error *error);

/* Formats whose rows are contiguous (all but WEIGHT_I4): where row ROW of the window begins. */
const uint8_t *weight_row(const struct weight_desc *w, uint64_t row);

/* Values of a weight that are NaN or infinite, its scales taken into account. */
struct weight_fault {
	uint64_t row, column; /* of the first one, in the stored matrix */
	uint64_t count;       /* of the window */
	bool     nan, scale;  /* what the first one is, and whether it is the scale that makes it so */
};
/* False when all are finite. */
bool weight_find_fault(const struct weight_desc *w, struct weight_fault *ret);

/* The rest is for formats with scales. */

/* The group whose scale and zero point COLUMN has. */
uint64_t weight_group_of(const struct weight_desc *w, uint64_t column);
/* The scale, 1 where there are none; its bits as stored, without what is common to all, where there are some. */
uint32_t weight_scale_bits(const struct weight_desc *w, uint64_t row, uint64_t group);
float    weight_scale_at(const struct weight_desc *w, uint64_t row, uint64_t group);
unsigned weight_zero_at(const struct weight_desc *w, uint64_t row, uint64_t group); /* of WEIGHT_I4: 0…15 */
/* WEIGHT_I4: the stored q (0…15) of COUNT rows from ROW on, at one column. */
void     weight_read_column(const struct weight_desc *w, uint64_t row, uint32_t count, uint64_t column, uint8_t *ret);
/* The same for eight columns from COLUMN on, column i in bits 4i…4i + 3; those beyond the last one are 0. */
void     weight_read_words(const struct weight_desc *w, uint64_t row, uint32_t count, uint64_t column, uint32_t *ret);

/* Row ROW in float32, [columns], of any format. */
void weight_read_row(const struct weight_desc *w, uint64_t row, float *ret);

/* blocks.c: COLUMNS values (whole blocks) of a quantised format of GGUF; false for other formats. */
bool weight_read_blocks(enum weight_format format, const uint8_t *blocks, uint64_t columns, float *ret);
/* s and m of group GROUP < 8 from the twelve bytes of Q4_K and Q5_K; what the indices of IQ4_NL and IQ4_XS mean. */
void                weight_k_scales(const uint8_t *scales, unsigned group, uint8_t *ret_scale, uint8_t *ret_minimum);
extern const int8_t weight_iq4_values[16];

#ifdef __cplusplus
}
#endif
#endif
