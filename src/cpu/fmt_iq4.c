/* fmt_iq4.c: owns IQ4_NL and IQ4_XS: four-bit indices into a table t of 16 values that lie closer together near 0.
 *
 *      IQ4_NL  weight = d · t[q]               file block (18 bytes), 32 weights     d: f16 | nibbles[16]
 *      IQ4_XS  weight = d · (s − 32) · t[q]    file block (136 bytes), 256 weights   d: f16 | high pairs of s: u16 |
 *                                                                                   low nibbles of s[4] | nibbles[128]
 *
 * In both the low nibble of byte i of a group's 16 is column i, the high one column 16 + i.  In a tile words are
 * those of fmt_q4.c:
 *
 *      IQ4_NL group (576 bytes)          d: f16[32 rows] | q: u32[4 slices][32 rows]
 *      IQ4_XS super-block (4416 bytes)   d: f16[32 rows] | 8 × ( s − 32: int8[32 rows] | q: u32[4 slices][32 rows] )
 */
#include "cpu/format.h"
#include "model/weight.h"

enum {
	COLUMNS = 32, SLICES = COLUMNS / 8, Q_BYTES = SLICES * FORMAT_TILE * 4, HALVES = 2 * FORMAT_TILE,
	NL_BLOCK_BYTES = 18, NL_GROUP_BYTES = HALVES + Q_BYTES,
	XS_COLUMNS = 256, XS_GROUPS = XS_COLUMNS / COLUMNS, XS_BLOCK_BYTES = 136, XS_GROUP_BYTES = FORMAT_TILE + Q_BYTES,
	XS_SUPER_BYTES = HALVES + XS_GROUPS * XS_GROUP_BYTES
};

static void pack_nibbles(uint8_t *words, unsigned lane, const uint8_t *nibbles)
{
	for (unsigned s = 0; s < SLICES; s++) {
		uint32_t word = 0;

		for (unsigned p = 0; p < 8; p++) {
			unsigned k = 8 * s + p;
			word |= (uint32_t)(k < 16 ? nibbles[k] & 0xf : nibbles[k - 16] >> 4) << 4 * p;
		}
		memcpy(words + (s * FORMAT_TILE + lane) * 4, &word, 4);
	}
}

static inline float value_at(const uint8_t *words, unsigned k, unsigned lane)
{
	return weight_iq4_values[format_word_at(words, k / 8, lane) >> 4 * (k % 8) & 0xf];
}

static size_t tile_bytes_nl(uint32_t columns) { return (size_t)(columns / COLUMNS) * NL_GROUP_BYTES; }
static size_t tile_bytes_xs(uint32_t columns) { return (size_t)(columns / XS_COLUMNS) * XS_SUPER_BYTES; }

static void pack_nl(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns)
{
	for (uint32_t g = 0; g < columns / COLUMNS; g++, tile += NL_GROUP_BYTES) {
		for (unsigned i = 0; i < FORMAT_TILE; i++) {
			if (!rows[i])
				continue;
			memcpy(tile + 2 * i, rows[i] + (size_t)g * NL_BLOCK_BYTES, 2);
			pack_nibbles(tile + HALVES, i, rows[i] + (size_t)g * NL_BLOCK_BYTES + 2);
		}
	}
}

static void pack_xs(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns)
{
	for (uint32_t b = 0; b < columns / XS_COLUMNS; b++, tile += XS_SUPER_BYTES) {
		for (unsigned i = 0; i < FORMAT_TILE; i++) {
			const uint8_t *block;
			uint16_t       high;

			if (!rows[i])
				continue;
			block = rows[i] + (size_t)b * XS_BLOCK_BYTES;
			memcpy(&high, block + 2, 2);
			memcpy(tile + 2 * i, block, 2);
			for (unsigned g = 0; g < XS_GROUPS; g++) {
				uint8_t *group = tile + HALVES + g * XS_GROUP_BYTES;
				int      s = (block[4 + g / 2] >> 4 * (g % 2) & 0xf) | (high >> 2 * g & 3) << 4;

				group[i] = (uint8_t)(s - 32);
				pack_nibbles(group + FORMAT_TILE, i, block + 8 + 16 * g);
			}
		}
	}
}

/* Words of the group of COLUMN; *ret_scale is the factor of lane LANE. */
static const uint8_t *words_nl(const uint8_t *tile, uint32_t column, unsigned lane, float *ret_scale)
{
	const uint8_t *group = tile + (size_t)(column / COLUMNS) * NL_GROUP_BYTES;

	*ret_scale = format_half_at(group, lane);
	return group + HALVES;
}

static const uint8_t *words_xs(const uint8_t *tile, uint32_t column, unsigned lane, float *ret_scale)
{
	const uint8_t *super = tile + (size_t)(column / XS_COLUMNS) * XS_SUPER_BYTES;
	const uint8_t *group = super + HALVES + column % XS_COLUMNS / COLUMNS * XS_GROUP_BYTES;

	*ret_scale = format_half_at(super, lane) * (int8_t)group[lane];
	return group + FORMAT_TILE;
}

/* A byte masked where it stands in its word is 256^b times too large, except the highest, which is shifted down. */
#define BYTES_OF_A_WORD 1, 1, 0x1p-8f, 0x1p-8f, 0x1p-16f, 0x1p-16f, 1, 1
static const float prescale[FORMAT_PRESCALE] = { BYTES_OF_A_WORD, BYTES_OF_A_WORD, BYTES_OF_A_WORD, BYTES_OF_A_WORD };

#define IQ4_FORMAT(type, label, columns_of_block, bytes_of_block)                                                    \
	static void expand_##type(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret)   \
	{                                                                                                            \
		(void)columns;                                                                                       \
		for (unsigned i = 0; i < FORMAT_TILE; i++) {                                                         \
			const uint8_t *words = words_##type(tile, group * COLUMNS, i, &ret->scale[i]);               \
                                                                                                                     \
			ret->offset[i] = 0;                                                                          \
			for (unsigned k = 0; k < COLUMNS; k++)                                                       \
				ret->q[k][i] = value_at(words, k, i);                                                \
		}                                                                                                    \
	}                                                                                                            \
	static void row_##type(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret)                     \
	{                                                                                                            \
		for (uint32_t k = 0; k < columns; k++) {                                                             \
			float          scale;                                                                        \
			const uint8_t *words = words_##type(tile, k, lane, &scale);                                  \
			ret[k] = scale * value_at(words, k % COLUMNS, lane);                                         \
		}                                                                                                    \
	}                                                                                                            \
	const struct format format_iq4_##type = {                                                                    \
		.name = label, .block_columns = columns_of_block, .block_bytes = bytes_of_block, .group = COLUMNS,   \
		.scaled = true, .tile_bytes = tile_bytes_##type, .pack = pack_##type, .expand = expand_##type,       \
		.row = row_##type, .linear = FORMAT_SIMD(format_iq4_##type), .prescale = prescale,  \
	}

IQ4_FORMAT(nl, "IQ4_NL", COLUMNS, NL_BLOCK_BYTES);
IQ4_FORMAT(xs, "IQ4_XS", XS_COLUMNS, XS_BLOCK_BYTES);
