/* weight.c: owns the reading of stored weights: sizes, windows, scales, zero points, 4-bit packings.  Does not own how a
 * backend lays them out, nor the block formats of GGUF (each backend decodes those).  Invariant: a reader touches only
 * bytes whose presence weight_check has verified. */
#include "model/weight.h"

#include "base/checked.h"
#include "base/floats.h"

#include <inttypes.h>
#include <string.h>

struct format_row {
	const char *name;
	uint16_t    columns, bytes;
	bool        scales;
};

static const struct format_row formats[WEIGHT_FORMAT_COUNT] = {
	[WEIGHT_F32] = { "F32", 1, 4, false },       [WEIGHT_F16] = { "F16", 1, 2, false },
	[WEIGHT_BF16] = { "BF16", 1, 2, false },     [WEIGHT_Q8_0] = { "Q8_0", 32, 34, false },
	[WEIGHT_Q4_0] = { "Q4_0", 32, 18, false },   [WEIGHT_Q4_1] = { "Q4_1", 32, 20, false },
	[WEIGHT_Q6_K] = { "Q6_K", 256, 210, false }, [WEIGHT_Q5_0] = { "Q5_0", 32, 22, false },
	[WEIGHT_Q5_1] = { "Q5_1", 32, 24, false },   [WEIGHT_Q4_K] = { "Q4_K", 256, 144, false },
	[WEIGHT_Q5_K] = { "Q5_K", 256, 176, false }, [WEIGHT_Q2_K] = { "Q2_K", 256, 84, false },
	[WEIGHT_Q3_K] = { "Q3_K", 256, 110, false }, [WEIGHT_IQ4_NL] = { "IQ4_NL", 32, 18, false },
	[WEIGHT_IQ4_XS] = { "IQ4_XS", 256, 136, false }, [WEIGHT_F8_E4M3] = { "F8_E4M3", 1, 1, true },
	[WEIGHT_I8] = { "I8", 1, 1, true },          [WEIGHT_I4] = { "I4", 2, 1, true },
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

static unsigned scale_bytes(enum weight_format type) { return type == WEIGHT_F32 ? 4 : 2; }

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
		return w->format == WEIGHT_I4 ? error_set(error, STATUS_INVALID, "%s: I4 without scales", w->name) : STATUS_OK;
	if (!weight_format_has_scales(w->format))
		return error_set(error, STATUS_INVALID, "%s: scales beside %s", w->name, formats[w->format].name);
	if (s->type != WEIGHT_F32 && s->type != WEIGHT_F16 && s->type != WEIGHT_BF16)
		return error_set(error, STATUS_UNSUPPORTED, "%s: scales must be F32, F16 or BF16", w->name);
	if (s->row_blocks != blocks_of(weight_stored_rows(w), s->block_rows) || s->column_blocks < 1 ||
	    (!w->group_index && s->column_blocks != blocks_of(weight_stored_columns(w), s->block_columns)))
		return error_set(error, STATUS_INVALID, "%s: %" PRIu64 " × %" PRIu64 " scales for blocks of %" PRIu64 " × %" PRIu64
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
		    ") on are outside %" PRIu64 " × %" PRIu64, w->name, w->rows, w->columns, w->first_row, w->first_column, n, k);
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

	return s->type == WEIGHT_F32 ? load_32(s->data, at) : load_16(s->data, at);
}

float weight_scale_at(const struct weight_desc *w, uint64_t row, uint64_t group)
{
	if (!w->scales.data)
		return 1;
	switch (w->scales.type) {
	case WEIGHT_F16: return floats_from_half((uint16_t)weight_scale_bits(w, row, group));
	case WEIGHT_BF16: return floats_from_bfloat((uint16_t)weight_scale_bits(w, row, group));
	default: return floats_from_bits(weight_scale_bits(w, row, group));
	}
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

void weight_read_row(const struct weight_desc *w, uint64_t row, float *ret)
{
	const uint8_t *values = w->format == WEIGHT_I4 ? NULL : weight_row(w, row);
	uint64_t       group = UINT64_MAX;
	float          scale = 1, zero = 0;
	uint8_t        q;

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
		case WEIGHT_I4:
			weight_read_column(w, row, 1, k, &q);
			ret[k] = ((float)q - zero) * scale;
			break;
		default: ret[k] = floats_from_bits(load_32(values, k));
		}
	}
}
