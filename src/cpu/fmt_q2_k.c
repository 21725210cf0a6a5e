/* fmt_q2_k.c: owns Q2_K: super-blocks of 256 weights in 16 groups of 16, weight = d · s · q − dmin · m, q in 0…3, s
 * and m in 0…15.
 *
 *      file block (84 bytes)            low nibble s, high nibble m[16 groups] | bit pairs[64] | d: f16 | dmin: f16
 *      tile super-block (2688 bytes)    d: f16[32 rows] | dmin: f16[32 rows] |
 *                                       16 × ( s, m: u8[32 rows] | q: u32[32 rows] )
 *
 * In the file, in each half (128 columns), column 32j + l is in bits 2j, 2j + 1 of byte l of the half's 32.  In a
 * tile a word holds the 16 columns of a group, column k in bits 2k, 2k + 1. */
#include "cpu/format.h"

enum {
	COLUMNS = 256, BLOCK_BYTES = 84, GROUP = 16, GROUPS = COLUMNS / GROUP, HALVES = 2 * FORMAT_TILE,
	GROUP_BYTES = FORMAT_TILE + 4 * FORMAT_TILE, SUPER_BYTES = 2 * HALVES + GROUPS * GROUP_BYTES
};

static size_t tile_bytes(uint32_t columns) { return (size_t)(columns / COLUMNS) * SUPER_BYTES; }

static uint32_t file_value(const uint8_t *block, unsigned column)
{
	unsigned half = column / 128, j = column % 128 / 32, l = column % 32;
	return block[16 + 32 * half + l] >> 2 * j & 3;
}

static void pack(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns)
{
	for (uint32_t b = 0; b < columns / COLUMNS; b++, tile += SUPER_BYTES) {
		for (unsigned i = 0; i < FORMAT_TILE; i++) {
			const uint8_t *block;

			if (!rows[i])
				continue;
			block = rows[i] + (size_t)b * BLOCK_BYTES;
			memcpy(tile + 2 * i, block + 80, 2);
			memcpy(tile + HALVES + 2 * i, block + 82, 2);
			for (unsigned g = 0; g < GROUPS; g++) {
				uint8_t *group = tile + 2 * HALVES + g * GROUP_BYTES;
				uint32_t word = 0;

				group[i] = block[g];
				for (unsigned k = 0; k < GROUP; k++)
					word |= file_value(block, GROUP * g + k) << 2 * k;
				memcpy(group + FORMAT_TILE + 4 * i, &word, 4);
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

	*ret_scale = format_half_at(super, lane) * (float)(group[lane] & 0xf);
	*ret_minimum = format_half_at(super + HALVES, lane) * (float)(group[lane] >> 4);
	return group;
}

static inline float value_at(const uint8_t *group, unsigned k, unsigned lane)
{
	return (float)(format_word_at(group + FORMAT_TILE, 0, lane) >> 2 * k & 3);
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

/* As format_nibble_prescale: a field masked where it stands in its half of the word is 4^(column % 8) times too
 * large. */
#define FIELDS_OF_A_HALF 1, 0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-10f, 0x1p-12f, 0x1p-14f
static const float prescale[FORMAT_PRESCALE] = {
	FIELDS_OF_A_HALF, FIELDS_OF_A_HALF, FIELDS_OF_A_HALF, FIELDS_OF_A_HALF,
};

const struct format format_q2_k = {
	.name = "Q2_K", .block_columns = COLUMNS, .block_bytes = BLOCK_BYTES, .group = GROUP, .scaled = true,
	.tile_bytes = tile_bytes, .pack = pack, .expand = expand, .row = row,
	.linear = FORMAT_SIMD(format_q2_k), .prescale = prescale,
};
