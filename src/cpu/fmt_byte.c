/* fmt_byte.c: owns weights of one byte with scales in a tensor of their own: float8 e4m3 and int8, weight = scale · q.
 *
 *      tile   layout (64 bytes) | groups of `layout.group` columns:
 *             ( scales: f32[32 rows] | q: byte[columns][32 rows] )
 *
 * One scale per output or for the whole matrix makes one group; blocks of 128 × 128 make groups of 128 columns.  e4m3
 * has two patterns that are not a number; a group of a row that holds one gets NaN for its scale, so that every sum
 * over it is NaN, as the file means it, without a test per value. */
#include "cpu/format.h"
#include "model/weight.h"

#include <math.h>
#include <string.h>

enum { SCALES = 4 * FORMAT_TILE };

static size_t layout_bytes(const struct format_layout *layout)
{
	size_t groups = (layout->columns + layout->group - 1) / layout->group;
	return FORMAT_LAYOUT_BYTES + groups * SCALES + (size_t)layout->columns * FORMAT_TILE;
}

static void pack_row(uint8_t *tile, const struct format_layout *layout, const struct weight_desc *w, uint64_t row,
    unsigned lane)
{
	const uint8_t *from = weight_row(w, row);
	uint8_t       *at = tile + FORMAT_LAYOUT_BYTES;

	for (uint32_t k = 0; k < w->columns; k += layout->group) {
		uint32_t end = w->columns - k < layout->group ? (uint32_t)w->columns : k + layout->group;
		float    scale = weight_scale_at(w, row, weight_group_of(w, k));

		for (uint32_t i = k; i < end; i++) {
			if (w->format == WEIGHT_F8_E4M3 && (from[i] & 0x7f) == 0x7f)
				scale = NAN;
			at[SCALES + (size_t)(i - k) * FORMAT_TILE + lane] = from[i];
		}
		memcpy(at + 4 * lane, &scale, 4);
		at += SCALES + (size_t)layout->group * FORMAT_TILE;
	}
}

static void pack_from(uint8_t *tile, const struct format_layout *layout, const struct weight_desc *w,
    const uint32_t *order, uint64_t first_row, uint32_t rows)
{
	(void)order; /* groups lie in the order of the columns */
	memcpy(tile, layout, sizeof *layout);
	for (uint32_t i = 0; i < rows; i++)
		pack_row(tile, layout, w, first_row + i, i);
}

/* Where the scales of the group of COLUMN lie; *ret_values is where the column's values do. */
static const uint8_t *find_column(const uint8_t *tile, uint32_t column, const uint8_t **ret_values)
{
	struct format_layout layout = format_layout_of(tile);
	const uint8_t       *group = tile + FORMAT_LAYOUT_BYTES +
	                       column / layout.group * (SCALES + (size_t)layout.group * FORMAT_TILE);

	*ret_values = group + SCALES + (size_t)(column % layout.group) * FORMAT_TILE;
	return group;
}

static float scale_at(const uint8_t *scales, unsigned lane)
{
	float scale;
	memcpy(&scale, scales + 4 * lane, 4);
	return scale;
}

static inline float value_f8_e4m3(uint8_t bits) { return floats_from_e4m3(bits); }
static inline float value_i8(uint8_t bits) { return (int8_t)bits; }

/* The two differ only in how a byte is read. */
#define BYTE_FORMAT(type, label)                                                                                     \
	static void expand_##type(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret)   \
	{                                                                                                            \
		const uint8_t *values, *scales = find_column(tile, group * FORMAT_GROUP_MAX, &values);               \
                                                                                                                     \
		(void)columns;                                                                                       \
		for (unsigned k = 0; k < FORMAT_GROUP_MAX; k++)                                                      \
			for (unsigned i = 0; i < FORMAT_TILE; i++)                                                   \
				ret->q[k][i] = value_##type(values[FORMAT_TILE * k + i]);                            \
		for (unsigned i = 0; i < FORMAT_TILE; i++) {                                                         \
			ret->scale[i] = scale_at(scales, i);                                                         \
			ret->offset[i] = 0;                                                                          \
		}                                                                                                    \
	}                                                                                                            \
	static void row_##type(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret)                     \
	{                                                                                                            \
		for (uint32_t k = 0; k < columns; k++) {                                                             \
			const uint8_t *values, *scales = find_column(tile, k, &values);                              \
			ret[k] = value_##type(values[lane]) * scale_at(scales, lane);                                \
		}                                                                                                    \
	}                                                                                                            \
	const struct format format_##type = {                                                                        \
		.name = label, .block_columns = 1, .block_bytes = 1, .group = FORMAT_GROUP_MAX, .scaled = true,      \
		.layout_bytes = layout_bytes, .pack_from = pack_from, .expand = expand_##type, .row = row_##type,    \
		.linear = FORMAT_SIMD(format_##type),                                                    \
	}

BYTE_FORMAT(f8_e4m3, "F8_E4M3");
BYTE_FORMAT(i8, "I8");
