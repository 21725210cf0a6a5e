/* fmt_q4.c: owns Q4_0 and Q4_1: blocks of 32 weights, q in 0…15.
 *
 *      Q4_0  weight = d · (q − 8)      file block (18 bytes)  d: f16 | nibbles[16]
 *      Q4_1  weight = d · q + m        file block (20 bytes)  d: f16 | m: f16 | nibbles[16]
 *
 * In the file the low nibble of byte i is column i, the high one column 16 + i.  In a tile a 32-bit word holds eight
 * consecutive columns of one row, column 8s + p in bits 4p…4p + 3:
 *
 *      tile group (576 or 640 bytes)   d: f16[32 rows] | Q4_1: m: f16[32 rows] | q: u32[4 slices s][32 rows]
 */
#include "cpu/format.h"

#include <string.h>

enum { COLUMNS = 32, SLICES = 4, Q_BYTES = SLICES * FORMAT_TILE * 4, HALVES = 2 * FORMAT_TILE };

/* Bytes before the nibbles: of a file block, of a tile group. */
static inline unsigned head_of(bool with_minimum) { return with_minimum ? 4 : 2; }
static inline unsigned halves_of(bool with_minimum) { return with_minimum ? 2 * HALVES : HALVES; }
static inline size_t   group_bytes_of(bool with_minimum) { return halves_of(with_minimum) + Q_BYTES; }

static void pack_any(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns, bool with_minimum)
{
	for (uint32_t g = 0; g < columns / COLUMNS; g++, tile += group_bytes_of(with_minimum)) {
		for (unsigned i = 0; i < FORMAT_TILE; i++) {
			const uint8_t *block, *nibbles;

			if (!rows[i])
				continue;
			block = rows[i] + (size_t)g * (head_of(with_minimum) + COLUMNS / 2);
			nibbles = block + head_of(with_minimum);
			memcpy(tile + 2 * i, block, 2);
			if (with_minimum)
				memcpy(tile + HALVES + 2 * i, block + 2, 2);
			for (unsigned s = 0; s < SLICES; s++) {
				uint32_t word = 0;

				for (unsigned p = 0; p < 8; p++) {
					unsigned k = 8 * s + p;
					uint32_t q = k < 16 ? nibbles[k] & 0xf : nibbles[k - 16] >> 4;
					word |= q << 4 * p;
				}
				memcpy(tile + halves_of(with_minimum) + (s * FORMAT_TILE + i) * 4, &word, 4);
			}
		}
	}
}

static inline int nibble_at(const uint8_t *words, unsigned k, unsigned lane)
{
	return format_word_at(words, k / 8, lane) >> 4 * (k % 8) & 0xf;
}

static void expand_any(const uint8_t *group, struct format_group *ret, bool with_minimum)
{
	for (unsigned k = 0; k < COLUMNS; k++)
		for (unsigned i = 0; i < FORMAT_TILE; i++)
			ret->q[k][i] = (float)(nibble_at(group + halves_of(with_minimum), k, i) - (with_minimum ? 0 : 8));
	for (unsigned i = 0; i < FORMAT_TILE; i++) {
		ret->scale[i] = format_half_at(group, i);
		ret->offset[i] = with_minimum ? format_half_at(group + HALVES, i) : 0;
	}
}

static void row_any(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret, bool with_minimum)
{
	for (uint32_t k = 0; k < columns; k++) {
		const uint8_t *group = tile + k / COLUMNS * group_bytes_of(with_minimum);
		int            q = nibble_at(group + halves_of(with_minimum), k % COLUMNS, lane);

		ret[k] = with_minimum ? format_half_at(group, lane) * (float)q + format_half_at(group + HALVES, lane)
		                      : format_half_at(group, lane) * (float)(q - 8);
	}
}

#define Q4_FORMAT(type, label, with_minimum)                                                                         \
	static size_t tile_bytes_##type(uint32_t columns) { return columns / COLUMNS * group_bytes_of(with_minimum); } \
	static void   pack_##type(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns)           \
	{                                                                                                            \
		pack_any(tile, rows, columns, with_minimum);                                                         \
	}                                                                                                            \
	static void expand_##type(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret)   \
	{                                                                                                            \
		(void)columns;                                                                                       \
		expand_any(tile + group * group_bytes_of(with_minimum), ret, with_minimum);                          \
	}                                                                                                            \
	static void row_##type(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret)                     \
	{                                                                                                            \
		row_any(tile, columns, lane, ret, with_minimum);                                                     \
	}                                                                                                            \
	const struct format format_##type = {                                                                        \
		.name = label, .block_columns = COLUMNS, .block_bytes = with_minimum ? 20 : 18, .group = COLUMNS,    \
		.scaled = true, .tile_bytes = tile_bytes_##type, .pack = pack_##type, .expand = expand_##type,       \
		.row = row_##type, .linear = FORMAT_SIMD(format_##type), .prescale = format_nibble_prescale,         \
		.limbs = { [CPU_ISA_AVX2] = true },                                                                  \
	}

Q4_FORMAT(q4_0, "Q4_0", false);
Q4_FORMAT(q4_1, "Q4_1", true);
