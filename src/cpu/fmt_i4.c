/* fmt_i4.c: owns four-bit weights with scales and zero points in tensors of their own (AWQ, GPTQ, compressed-tensors),
 * weight = scale · (q − zero), q and zero in 0…15.
 *
 *      tile   layout (64 bytes) | groups of `layout.group` columns:
 *             ( scales: f16, bf16 or f32[32 rows] | zeros: u8[32 rows], if any | q: u32[columns / 8][32 rows] )
 *
 * A word holds eight consecutive columns of one row, column 8s + p in bits 4p…4p + 3, as in fmt_q4.c.  Where the file
 * gives every column a group of its own choosing (g_idx), columns lie here group by group, and the activations are
 * brought into the same order before the product (input.c).
 */
#include "cpu/format.h"
#include "model/weight.h"

#include <string.h>

enum { WORDS = 4 * FORMAT_TILE /* bytes of eight columns */ };

static size_t layout_bytes(const struct format_layout *layout)
{
	size_t groups = (layout->columns + layout->group - 1) / layout->group;

	return FORMAT_LAYOUT_BYTES + groups * format_i4_head_bytes(layout) + (size_t)layout->columns / 8 * WORDS;
}

/* The file's bits of a scale. */
static void store_scale(uint8_t *scales, unsigned lane, const struct format_layout *layout, uint32_t bits)
{
	uint16_t half = (uint16_t)bits;

	if (layout->scale_type == WEIGHT_F32)
		memcpy(scales + 4 * lane, &bits, 4);
	else
		memcpy(scales + 2 * lane, &half, 2);
}

/* Eight columns in their new order. */
static void pack_words(uint8_t *words, const struct weight_desc *w, const uint32_t *order, uint64_t first_row,
    uint32_t rows, uint32_t column)
{
	uint32_t packed[FORMAT_TILE] = { 0 };
	uint8_t  q[FORMAT_TILE];

	if (!order && column < w->columns)
		weight_read_words(w, first_row, rows, column, packed);
	for (uint32_t p = 0; order && p < 8 && column + p < w->columns; p++) {
		weight_read_column(w, first_row, rows, order[column + p], q);
		for (uint32_t i = 0; i < rows; i++)
			packed[i] |= (uint32_t)q[i] << 4 * p;
	}
	memcpy(words, packed, sizeof packed);
}

static void pack_from(uint8_t *tile, const struct format_layout *layout, const struct weight_desc *w,
    const uint32_t *order, uint64_t first_row, uint32_t rows)
{
	size_t   head = format_i4_head_bytes(layout);
	uint8_t *at = tile + FORMAT_LAYOUT_BYTES;

	memcpy(tile, layout, sizeof *layout);
	for (uint32_t k = 0; k < layout->columns; k += 8, at += WORDS) {
		if (k % layout->group == 0) {
			uint64_t group = weight_group_of(w, order ? order[k] : k);

			for (uint32_t i = 0; i < rows; i++) {
				store_scale(at, i, layout, weight_scale_bits(w, first_row + i, group));
				if (layout->zeros)
					at[head - FORMAT_TILE + i] = (uint8_t)weight_zero_at(w, first_row + i, group);
			}
			at += head;
		}
		pack_words(at, w, order, first_row, rows, k);
	}
}

static float scale_at(const uint8_t *scales, const struct format_layout *layout, unsigned lane)
{
	uint16_t bits;
	float    scale;

	if (layout->scale_type == WEIGHT_F32) {
		memcpy(&scale, scales + 4 * lane, 4);
		return scale;
	}
	memcpy(&bits, scales + 2 * lane, 2);
	return layout->scale_type == WEIGHT_BF16 ? floats_from_bfloat(bits) : floats_from_half(bits);
}

/* Scale of lane LANE, and q − zero, at COLUMN. */
static float value_at(const uint8_t *tile, const struct format_layout *layout, uint32_t column, unsigned lane,
    float *ret_scale)
{
	size_t         head = format_i4_head_bytes(layout), group_bytes = head + layout->group / 8 * WORDS;
	const uint8_t *group = tile + FORMAT_LAYOUT_BYTES + column / layout->group * group_bytes;
	uint32_t       word;

	memcpy(&word, group + head + column % layout->group / 8 * WORDS + 4 * lane, 4);
	*ret_scale = scale_at(group, layout, lane);
	return (float)(word >> 4 * (column % 8) & 0xf) - (layout->zeros ? group[head - FORMAT_TILE + lane] : 8);
}

static void expand(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret)
{
	struct format_layout layout = format_layout_of(tile);

	(void)columns;
	for (unsigned k = 0; k < FORMAT_GROUP_MAX; k++)
		for (unsigned i = 0; i < FORMAT_TILE; i++)
			ret->q[k][i] = value_at(tile, &layout, group * FORMAT_GROUP_MAX + k, i, &ret->scale[i]);
	memset(ret->offset, 0, sizeof ret->offset);
}

static void row(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret)
{
	struct format_layout layout = format_layout_of(tile);

	for (uint32_t k = 0; k < columns; k++) {
		float scale, q = value_at(tile, &layout, k, lane, &scale);
		ret[k] = q * scale;
	}
}

const struct format format_i4 = {
	.name = "I4", .block_columns = 2, .block_bytes = 1, .group = FORMAT_GROUP_MAX, .scaled = true,
	.layout_bytes = layout_bytes, .pack_from = pack_from, .expand = expand, .row = row,
	.linear = FORMAT_SIMD(format_i4), .prescale = format_nibble_prescale, .limbs = { [CPU_ISA_AVX2] = true },
};
