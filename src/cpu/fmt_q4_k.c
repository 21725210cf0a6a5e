/* fmt_q4_k.c: owns Q4_K: super-blocks of 256 weights in 8 groups of 32, weight = d · s · q − dmin · m, q in 0…15.
 *
 *      file block (144 bytes)           d: f16 | dmin: f16 | s, m: six bits[8 groups] in 12 bytes | nibbles[128]
 *      tile super-block (4736 bytes)    d: f16[32 rows] | dmin: f16[32 rows] |
 *                                       8 × ( s: u8[32 rows] | m: u8[32 rows] | q: u32[4 slices][32 rows] )
 *
 * In the file the low nibbles of 32 bytes are one group, the high ones the next.  Words of the tile as in fmt_q4.c.
 */
#include "cpu/format.h"
#include "model/weight.h"

enum {
	COLUMNS = 256, BLOCK_BYTES = 144, GROUP = 32, GROUPS = COLUMNS / GROUP, SLICES = GROUP / 8,
	HALVES = 2 * FORMAT_TILE, HEAD = 2 * FORMAT_TILE, GROUP_BYTES = HEAD + SLICES * FORMAT_TILE * 4,
	SUPER_BYTES = 2 * HALVES + GROUPS * GROUP_BYTES
};

static size_t tile_bytes(uint32_t columns) { return (size_t)(columns / COLUMNS) * SUPER_BYTES; }

static void pack(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns)
{
	for (uint32_t b = 0; b < columns / COLUMNS; b++, tile += SUPER_BYTES) {
		for (unsigned i = 0; i < FORMAT_TILE; i++) {
			const uint8_t *block;

			if (!rows[i])
				continue;
			block = rows[i] + (size_t)b * BLOCK_BYTES;
			memcpy(tile + 2 * i, block, 2);
			memcpy(tile + HALVES + 2 * i, block + 2, 2);
			for (unsigned g = 0; g < GROUPS; g++) {
				uint8_t       *group = tile + 2 * HALVES + g * GROUP_BYTES;
				const uint8_t *nibbles = block + 16 + g / 2 * GROUP;

				weight_k_scales(block + 4, g, &group[i], &group[FORMAT_TILE + i]);
				for (unsigned s = 0; s < SLICES; s++) {
					uint32_t word = 0;

					for (unsigned p = 0; p < 8; p++)
						word |= (uint32_t)(nibbles[8 * s + p] >> 4 * (g % 2) & 0xf) << 4 * p;
					memcpy(group + HEAD + (s * FORMAT_TILE + i) * 4, &word, 4);
				}
			}
		}
	}
}

/* The group of COLUMN; *ret_scale = d · s and *ret_minimum = dmin · m of lane LANE. */
static const uint8_t *group_at(const uint8_t *tile, uint32_t column, unsigned lane, float *ret_scale,
    float *ret_minimum)
{
	const uint8_t *super = tile + (size_t)(column / COLUMNS) * SUPER_BYTES;
	const uint8_t *group = super + 2 * HALVES + column % COLUMNS / GROUP * GROUP_BYTES;

	*ret_scale = format_half_at(super, lane) * group[lane];
	*ret_minimum = format_half_at(super + HALVES, lane) * group[FORMAT_TILE + lane];
	return group;
}

static inline float value_at(const uint8_t *group, unsigned k, unsigned lane)
{
	return (float)(format_word_at(group + HEAD, k / 8, lane) >> 4 * (k % 8) & 0xf);
}

static void expand(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret)
{
	(void)columns;
	for (unsigned i = 0; i < FORMAT_TILE; i++) {
		float          minimum;
		const uint8_t *values = group_at(tile, group * GROUP, i, &ret->scale[i], &minimum);

		ret->offset[i] = -minimum;
		for (unsigned k = 0; k < GROUP; k++)
			ret->q[k][i] = value_at(values, k, i);
	}
}

static void row(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret)
{
	for (uint32_t k = 0; k < columns; k++) {
		float          scale, minimum;
		const uint8_t *group = group_at(tile, k, lane, &scale, &minimum);
		ret[k] = scale * value_at(group, k % GROUP, lane) - minimum;
	}
}

const struct format format_q4_k = {
	.name = "Q4_K", .block_columns = COLUMNS, .block_bytes = BLOCK_BYTES, .group = GROUP, .scaled = true,
	.tile_bytes = tile_bytes, .pack = pack, .expand = expand, .row = row,
	.linear = FORMAT_SIMD(format_q4_k), .prescale = format_nibble_prescale,
};
