/* weight.c: owns the reading of stored weights: sizes, windows, scales, zero points, 4-bit packings.  Does not own
 * how a backend lays them out, nor the block formats of GGUF (blocks.c).  Invariant: a reader touches only bytes whose
 * presence weight_check has verified. */
#include "model/weight.h"

#include "base/checked.h"
#include "base/floats.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct format_row {
	const char *name;
	uint16_t    columns, bytes;
	bool        scales;
	uint8_t     halves; /* of a block: half-precision numbers that scale its values, one after the other… */
	uint8_t     at;     /* …from this byte on */
};

static const struct format_row formats[WEIGHT_FORMAT_COUNT] = {
	[WEIGHT_F32] = { "F32", 1, 4, false, 0, 0 },
	[WEIGHT_F16] = { "F16", 1, 2, false, 0, 0 },
	[WEIGHT_BF16] = { "BF16", 1, 2, false, 0, 0 },
	[WEIGHT_Q8_0] = { "Q8_0", 32, 34, false, 1, 0 },
	[WEIGHT_Q4_0] = { "Q4_0", 32, 18, false, 1, 0 },
	[WEIGHT_Q4_1] = { "Q4_1", 32, 20, false, 2, 0 },
	[WEIGHT_Q6_K] = { "Q6_K", 256, 210, false, 1, 208 },
	[WEIGHT_Q5_0] = { "Q5_0", 32, 22, false, 1, 0 },
	[WEIGHT_Q5_1] = { "Q5_1", 32, 24, false, 2, 0 },
	[WEIGHT_Q4_K] = { "Q4_K", 256, 144, false, 2, 0 },
	[WEIGHT_Q5_K] = { "Q5_K", 256, 176, false, 2, 0 },
	[WEIGHT_Q2_K] = { "Q2_K", 256, 84, false, 2, 80 },
	[WEIGHT_Q3_K] = { "Q3_K", 256, 110, false, 1, 108 },
	[WEIGHT_IQ4_NL] = { "IQ4_NL", 32, 18, false, 1, 0 },
	[WEIGHT_IQ4_XS] = { "IQ4_XS", 256, 136, false, 1, 0 },
	[WEIGHT_F8_E4M3] = { "F8_E4M3", 1, 1, true, 0, 0 },
	[WEIGHT_I8] = { "I8", 1, 1, true, 0, 0 },
	[WEIGHT_I4] = { "I4", 2, 1, true, 0, 0 },
	[WEIGHT_F4_E2M1] = { "F4_E2M1", 2, 1, true, 0, 0 },
};

static const struct format_row *row_of(enum weight_format format)
{
	return (unsigned)format < WEIGHT_FORMAT_COUNT ? &formats[format] : NULL;
}

const char *weight_format_name(enum weight_format format)
{
	const struct format_row *row = row_of(format);
	return row ? row->name : "?";
}

bool weight_format_block(enum weight_format format, uint32_t *ret_columns, uint32_t *ret_bytes)
{
	const struct format_row *row = row_of(format);

	if (!row)
		return false;
	*ret_columns = row->columns;
	*ret_bytes = row->bytes;
	return true;
}

bool weight_format_has_scales(enum weight_format format)
{
	const struct format_row *row = row_of(format);
	return row && row->scales;
}

/* ---- Checks ---- */

static uint64_t blocks_of(uint64_t length, uint64_t block)
{
	return block == 0 ? 1 : length / block + (length % block != 0);
}

static unsigned scale_bytes(enum weight_format type) { return type == WEIGHT_F32 ? 4 : type == WEIGHT_F8_E4M3 ? 1 : 2; }

/* a · b · c, UINT64_MAX when that is too much. */
static uint64_t product(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t result;
	return checked_mul_u64(a, b, &result) && checked_mul_u64(result, c, &result) ? result : UINT64_MAX;
}

static enum status check_size(const struct weight_desc *w, const char *what, size_t bytes, uint64_t needed,
    struct error *error)
{
	if (bytes == needed)
		return STATUS_OK;
	return error_set(error, STATUS_INVALID, "%s: %zu bytes of %s for %" PRIu64 " × %" PRIu64 " values of %s, %" PRIu64
	    " are needed", w->name, bytes, what, weight_stored_rows(w), weight_stored_columns(w), formats[w->format].name,
	    needed);
}

static enum status check_values(const struct weight_desc *w, struct error *error)
{
	const struct format_row *format = &formats[w->format];
	uint64_t n = weight_stored_rows(w), k = weight_stored_columns(w);

	if (w->format == WEIGHT_I4) {
		switch (w->packing) {
		case WEIGHT_PACKED_COLUMNS:
		case WEIGHT_PACKED_GPTQ: return check_size(w, "values", w->bytes, product(blocks_of(k, 8), n, 4), error);
		case WEIGHT_PACKED_AWQ:
			if (n % 8)
				return error_set(error, STATUS_INVALID, "%s: %" PRIu64 " rows packed by eight", w->name, n);
			return check_size(w, "values", w->bytes, product(k, n / 8, 4), error);
		}
		return error_set(error, STATUS_UNSUPPORTED, "%s: packing %d is not known", w->name, (int)w->packing);
	}
	if (k % format->columns || w->columns % format->columns || w->first_column % format->columns)
		return error_set(error, STATUS_INVALID, "%s: columns %" PRIu64 "…%" PRIu64 " of %" PRIu64
		    " are no multiple of the %u of a %s block", w->name, w->first_column, w->first_column + w->columns, k,
		    format->columns, format->name);
	return check_size(w, "values", w->bytes, product(k / format->columns, format->bytes, n), error);
}

static enum status check_scales(const struct weight_desc *w, struct error *error)
{
	const struct weight_scales *s = &w->scales;

	if (!s->data)
		return w->format == WEIGHT_I4 || w->format == WEIGHT_F4_E2M1 ?
		    error_set(error, STATUS_INVALID, "%s: %s without scales", w->name, formats[w->format].name) : STATUS_OK;
	if (!weight_format_has_scales(w->format))
		return error_set(error, STATUS_INVALID, "%s: scales beside %s", w->name, formats[w->format].name);
	if (s->type != WEIGHT_F32 && s->type != WEIGHT_F16 && s->type != WEIGHT_BF16 &&
	    (s->type != WEIGHT_F8_E4M3 || w->format != WEIGHT_F4_E2M1))
		return error_set(error, STATUS_UNSUPPORTED, "%s: scales must be F32, F16 or BF16", w->name);
	if (s->row_blocks != blocks_of(weight_stored_rows(w), s->block_rows) || s->column_blocks < 1 ||
	    (!w->group_index && s->column_blocks != blocks_of(weight_stored_columns(w), s->block_columns)))
		return error_set(error, STATUS_INVALID,
		    "%s: %" PRIu64 " × %" PRIu64 " scales for blocks of %" PRIu64 " × %" PRIu64
		    " in %" PRIu64 " × %" PRIu64, w->name, s->row_blocks, s->column_blocks, s->block_rows, s->block_columns,
		    weight_stored_rows(w), weight_stored_columns(w));
	return check_size(w, "scales", s->bytes, product(s->row_blocks, s->column_blocks, scale_bytes(s->type)), error);
}

static enum status check_zeros(const struct weight_desc *w, struct error *error)
{
	uint64_t n = weight_stored_rows(w), groups = w->scales.column_blocks;

	if (w->format != WEIGHT_I4 && (w->zeros.packing != WEIGHT_ZEROS_NONE || w->group_index))
		return error_set(error, STATUS_INVALID, "%s: zero points or a group index beside %s", w->name,
		    formats[w->format].name);
	if (w->zeros.packing != WEIGHT_ZEROS_NONE && !w->zeros.data)
		return error_set(error, STATUS_INVALID, "%s: zero points are missing", w->name);
	switch (w->zeros.packing) {
	case WEIGHT_ZEROS_NONE: return STATUS_OK;
	case WEIGHT_ZEROS_ROWS:
	case WEIGHT_ZEROS_GPTQ:
		return check_size(w, "zero points", w->zeros.bytes, product(blocks_of(n, 8), groups, 4), error);
	case WEIGHT_ZEROS_AWQ:
		if (n % 8)
			return error_set(error, STATUS_INVALID, "%s: %" PRIu64 " rows packed by eight", w->name, n);
		return check_size(w, "zero points", w->zeros.bytes, product(n / 8, groups, 4), error);
	case WEIGHT_ZEROS_I8: return check_size(w, "zero points", w->zeros.bytes, product(n, groups, 1), error);
	}
	return error_set(error, STATUS_UNSUPPORTED, "%s: zero packing %d is not known", w->name, (int)w->zeros.packing);
}

static int32_t index_at(const struct weight_desc *w, uint64_t stored_column)
{
	int32_t index;
	memcpy(&index, (const uint8_t *)w->group_index + 4 * stored_column, 4);
	return index;
}

static enum status check_index(const struct weight_desc *w, struct error *error)
{
	for (uint64_t k = 0; w->group_index && k < weight_stored_columns(w); k++)
		if (index_at(w, k) < 0 || (uint64_t)index_at(w, k) >= w->scales.column_blocks)
			return error_set(error, STATUS_INVALID, "%s: group %d of column %" PRIu64 " is outside 0…%" PRIu64, w->name,
			    index_at(w, k), k, w->scales.column_blocks - 1);
	return STATUS_OK;
}

enum status weight_check(const struct weight_desc *w, struct error *error)
{
	uint64_t    n = weight_stored_rows(w), k = weight_stored_columns(w);
	enum status status;

	if (!row_of(w->format))
		return error_set(error, STATUS_UNSUPPORTED, "%s: weight format %d is not known", w->name, (int)w->format);
	if (w->rows < 1 || w->columns < 1 || n > INT32_MAX || k > INT32_MAX)
		return error_set(error, STATUS_INVALID, "%s: a weight of %" PRIu64 " × %" PRIu64 " of %" PRIu64 " × %" PRIu64,
		    w->name, w->rows, w->columns, n, k);
	if (w->first_row > n || w->rows > n - w->first_row || w->first_column > k || w->columns > k - w->first_column)
		return error_set(error, STATUS_INVALID, "%s: %" PRIu64 " × %" PRIu64 " values from (%" PRIu64 ", %" PRIu64
		    ") on are outside %" PRIu64 " × %" PRIu64, w->name, w->rows, w->columns, w->first_row, w->first_column,
		    n, k);
	if (!(w->input_scale >= 0))
		return error_set(error, STATUS_INVALID, "%s: input scale %g is negative", w->name, (double)w->input_scale);
	status = check_values(w, error);
	status = status ? status : check_scales(w, error);
	status = status ? status : check_zeros(w, error);
	return status ? status : check_index(w, error);
}

/* ---- Readers ---- */

const uint8_t *weight_row(const struct weight_desc *w, uint64_t row)
{
	const struct format_row *format = &formats[w->format];
	uint64_t                 row_blocks = weight_stored_columns(w) / format->columns;

	return (const uint8_t *)w->data +
	       ((w->first_row + row) * row_blocks + w->first_column / format->columns) * format->bytes;
}

uint64_t weight_group_of(const struct weight_desc *w, uint64_t column)
{
	uint64_t stored = w->first_column + column;

	if (w->group_index)
		return (uint64_t)index_at(w, stored);
	return w->scales.block_columns ? stored / w->scales.block_columns : 0;
}

static uint16_t load_16(const void *data, uint64_t at)
{
	uint16_t bits;
	memcpy(&bits, (const uint8_t *)data + 2 * at, 2);
	return bits;
}

static uint32_t load_32(const void *data, uint64_t at)
{
	uint32_t bits;
	memcpy(&bits, (const uint8_t *)data + 4 * at, 4);
	return bits;
}

uint32_t weight_scale_bits(const struct weight_desc *w, uint64_t row, uint64_t group)
{
	const struct weight_scales *s = &w->scales;
	uint64_t                    block = s->block_rows ? (w->first_row + row) / s->block_rows : 0;
	uint64_t                    at = s->transposed ? group * s->row_blocks + block : block * s->column_blocks + group;

	if (s->type == WEIGHT_F8_E4M3)
		return ((const uint8_t *)s->data)[at];
	return s->type == WEIGHT_F32 ? load_32(s->data, at) : load_16(s->data, at);
}

float weight_scale_at(const struct weight_desc *w, uint64_t row, uint64_t group)
{
	float scale;

	if (!w->scales.data)
		return 1;
	switch (w->scales.type) {
	case WEIGHT_F16: scale = floats_from_half((uint16_t)weight_scale_bits(w, row, group)); break;
	case WEIGHT_BF16: scale = floats_from_bfloat((uint16_t)weight_scale_bits(w, row, group)); break;
	case WEIGHT_F8_E4M3: scale = floats_from_e4m3((uint8_t)weight_scale_bits(w, row, group)); break;
	default: scale = floats_from_bits(weight_scale_bits(w, row, group));
	}
	return w->scales.common > 0 ? scale * w->scales.common : scale;
}

/* 0, ½, 1, 1½, 2, 3, 4, 6, and the same negative. */
static float from_e2m1(unsigned bits)
{
	static const float values[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
	return bits & 8 ? -values[bits & 7] : values[bits & 7];
}

/* Where in its word AWQ puts row 8j + r. */
static const uint8_t awq_nibble[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };

unsigned weight_zero_at(const struct weight_desc *w, uint64_t row, uint64_t group)
{
	const struct weight_zeros *z = &w->zeros;
	uint64_t stored = w->first_row + row, words = blocks_of(weight_stored_rows(w), 8), groups = w->scales.column_blocks;
	unsigned value;

	switch (z->packing) {
	case WEIGHT_ZEROS_ROWS: value = load_32(z->data, stored / 8 * groups + group) >> 4 * (stored % 8); break;
	case WEIGHT_ZEROS_GPTQ: value = load_32(z->data, group * words + stored / 8) >> 4 * (stored % 8); break;
	case WEIGHT_ZEROS_AWQ: value = load_32(z->data, group * words + stored / 8) >> 4 * awq_nibble[stored % 8]; break;
	case WEIGHT_ZEROS_I8: value = ((const uint8_t *)z->data)[stored * groups + group] + 8u; break;
	default: return 8;
	}
	return (value + z->add) & 0xf;
}

void weight_read_column(const struct weight_desc *w, uint64_t row, uint32_t count, uint64_t column, uint8_t *ret)
{
	uint64_t n = weight_stored_rows(w), k = w->first_column + column;
	uint64_t first = w->first_row + row, row_words = blocks_of(weight_stored_columns(w), 8);

	switch (w->packing) {
	case WEIGHT_PACKED_COLUMNS:
		for (uint32_t i = 0; i < count; i++)
			ret[i] = load_32(w->data, (first + i) * row_words + k / 8) >> 4 * (k % 8) & 0xf;
		return;
	case WEIGHT_PACKED_GPTQ:
		for (uint32_t i = 0; i < count; i++)
			ret[i] = load_32(w->data, k / 8 * n + first + i) >> 4 * (k % 8) & 0xf;
		return;
	case WEIGHT_PACKED_AWQ:
		for (uint32_t i = 0; i < count; i++)
			ret[i] = load_32(w->data, k * (n / 8) + (first + i) / 8) >> 4 * awq_nibble[(first + i) % 8] & 0xf;
	}
}

/* Row by row of the eight that share a word. */
static void read_awq_words(const struct weight_desc *w, uint64_t first, uint32_t count, uint64_t column,
    uint32_t columns, uint32_t *ret)
{
	uint64_t row_words = weight_stored_rows(w) / 8;

	memset(ret, 0, count * sizeof *ret);
	for (uint32_t p = 0; p < columns; p++) {
		uint64_t at = (w->first_column + column + p) * row_words + first / 8;

		for (uint32_t i = 0; i < count; i += 8, at++) {
			uint32_t word = load_32(w->data, at);

			for (uint32_t r = 0; r < 8 && i + r < count; r++)
				ret[i + r] |= (word >> 4 * awq_nibble[r] & 0xf) << 4 * p;
		}
	}
}

void weight_read_words(const struct weight_desc *w, uint64_t row, uint32_t count, uint64_t column, uint32_t *ret)
{
	uint64_t n = weight_stored_rows(w), k = w->first_column + column, first = w->first_row + row;
	uint64_t row_words = blocks_of(weight_stored_columns(w), 8);
	uint32_t columns = w->columns - column < 8 ? (uint32_t)(w->columns - column) : 8;
	uint32_t mask = columns == 8 ? UINT32_MAX : (1u << 4 * columns) - 1;

	if (w->packing == WEIGHT_PACKED_AWQ && first % 8 == 0) {
		read_awq_words(w, first, count, column, columns, ret);
		return;
	}
	if (w->packing == WEIGHT_PACKED_AWQ || k % 8) {
		uint8_t q;

		for (uint32_t i = 0; i < count; i++) {
			ret[i] = 0;
			for (uint32_t p = 0; p < columns; p++) {
				weight_read_column(w, row + i, 1, column + p, &q);
				ret[i] |= (uint32_t)q << 4 * p;
			}
		}
		return;
	}
	for (uint32_t i = 0; i < count; i++)
		ret[i] = load_32(w->data, w->packing == WEIGHT_PACKED_GPTQ ? k / 8 * n + first + i :
		    (first + i) * row_words + k / 8) & mask;
}

void weight_read_row(const struct weight_desc *w, uint64_t row, float *ret)
{
	const uint8_t *values = w->format == WEIGHT_I4 ? NULL : weight_row(w, row);
	uint64_t       group = UINT64_MAX;
	float          scale = 1, zero = 0;
	uint8_t        q;

	if (weight_read_blocks(w->format, values, w->columns, ret))
		return;
	for (uint64_t k = 0; k < w->columns; k++) {
		if (weight_format_has_scales(w->format) && weight_group_of(w, k) != group) {
			group = weight_group_of(w, k);
			scale = weight_scale_at(w, row, group);
			zero = w->format == WEIGHT_I4 ? (float)weight_zero_at(w, row, group) : 0;
		}
		switch (w->format) {
		case WEIGHT_F16: ret[k] = floats_from_half(load_16(values, k)); break;
		case WEIGHT_BF16: ret[k] = floats_from_bfloat(load_16(values, k)); break;
		case WEIGHT_F8_E4M3: ret[k] = floats_from_e4m3(values[k]) * scale; break;
		case WEIGHT_I8: ret[k] = (float)(int8_t)values[k] * scale; break;
		case WEIGHT_F4_E2M1: ret[k] = from_e2m1(values[k / 2] >> 4 * (k % 2) & 0xf) * scale; break;
		case WEIGHT_I4:
			weight_read_column(w, row, 1, k, &q);
			ret[k] = ((float)q - zero) * scale;
			break;
		default: ret[k] = floats_from_bits(load_32(values, k));
		}
	}
}

/* ---- Values that are no numbers ---- */

/* COUNT values at COLUMN of ROW are VALUE, or are made so by the scale VALUE. */
static void note_fault(const struct weight_desc *w, uint64_t row, uint64_t column, uint64_t count, float value, bool scale,
    struct weight_fault *fault)
{
	if (fault->count == 0)
		*fault = (struct weight_fault){ .row = w->first_row + row, .column = w->first_column + column, .nan = isnan(value),
			.scale = scale };
	fault->count += count;
}

static void find_in_floats(const struct weight_desc *w, uint64_t row, struct weight_fault *fault)
{
	const uint8_t *values = weight_row(w, row);

	for (uint64_t k = 0; k < w->columns; k++) {
		float value = w->format == WEIGHT_F32 ? floats_from_bits(load_32(values, k)) :
		    w->format == WEIGHT_F16 ? floats_from_half(load_16(values, k)) : floats_from_bfloat(load_16(values, k));

		if (!isfinite(value))
			note_fault(w, row, k, 1, value, false, fault);
	}
}

/* A block's values are its scales times small whole numbers: finite when the scales are. */
static void find_in_blocks(const struct weight_desc *w, uint64_t row, struct weight_fault *fault)
{
	const struct format_row *format = &formats[w->format];
	const uint8_t           *block = weight_row(w, row);

	for (uint64_t k = 0; k < w->columns; k += format->columns, block += format->bytes) {
		float scale = floats_from_half(load_16(block + format->at, 0));

		if (isfinite(scale) && format->halves > 1)
			scale = floats_from_half(load_16(block + format->at, 1));
		if (!isfinite(scale))
			note_fault(w, row, k, format->columns, scale, true, fault);
	}
}

/* Columns that have one scale, from COLUMN on. */
static uint64_t columns_of_scale(const struct weight_desc *w, uint64_t column)
{
	uint64_t block = w->scales.block_columns, left = w->columns - column, run = left;

	if (w->group_index)
		return 1;
	if (block)
		run = block - (w->first_column + column) % block;
	return run < left ? run : left;
}

static void find_in_scaled(const struct weight_desc *w, uint64_t row, struct weight_fault *fault)
{
	/* No value is larger, so that no product is infinite while this one is finite. */
	const float    largest = w->format == WEIGHT_F8_E4M3 ? 448 : w->format == WEIGHT_I8 ? 128 : w->format == WEIGHT_I4 ? 15 : 6;
	const uint8_t *values = w->format == WEIGHT_F8_E4M3 ? weight_row(w, row) : NULL;

	for (uint64_t k = 0, run; k < w->columns; k += run) {
		float scale = weight_scale_at(w, row, weight_group_of(w, k));

		run = columns_of_scale(w, k);
		if (!isfinite(scale * largest)) {
			note_fault(w, row, k, run, scale, true, fault);
			continue;
		}
		for (uint64_t i = 0; values && i < run; i++)
			if ((values[k + i] & 0x7f) == 0x7f)
				note_fault(w, row, k + i, 1, NAN, false, fault);
	}
}

bool weight_find_fault(const struct weight_desc *w, struct weight_fault *ret)
{
	struct weight_fault fault = { 0 };

	for (uint64_t row = 0; row < w->rows; row++) {
		if (formats[w->format].halves)
			find_in_blocks(w, row, &fault);
		else if (formats[w->format].scales)
			find_in_scaled(w, row, &fault);
		else
			find_in_floats(w, row, &fault);
	}
	if (fault.count)
		*ret = fault;
	return fault.count > 0;
}
