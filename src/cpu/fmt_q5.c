/* fmt_q5.c: owns Q5_0, Q5_1 and Q5_K: five-bit weights, q in 0…31, in groups of 32.
 *
 *      Q5_0  weight = d · (q − 16)          file block (22 bytes)   d: f16 | fifth bits: u32 | nibbles[16]
 *      Q5_1  weight = d · q + m             file block (24 bytes)   d: f16 | m: f16 | fifth bits: u32 | nibbles[16]
 *      Q5_K  weight = d · s · q − dmin · m  file block (176 bytes)  d: f16 | dmin: f16 | s, m: six bits[8 groups] |
 *                                                                   fifth bits[32] | nibbles[128]
 *
 * In Q5_0 and Q5_1 the low nibble of byte i is column i, the high one column 16 + i, and bit k of the fifth bits is
 * column k.  In Q5_K nibbles and scales lie as in Q4_K; bit g of byte l of the fifth bits is column l of group g.
 *
 * In a tile the 32 values of a row's group fill five 32-bit words: column 6a + i in bits 5i…5i + 4 of word a (i < 6);
 * the ten bits left at the top are columns 30 and 31, five bits each, lowest bits in the lowest word:
 *
 *      Q5_0, Q5_1 group (704 or 768 bytes)    d: f16[32 rows] | Q5_1: m: f16[32 rows] | q: u32[5 words][32 rows]
 *      Q5_K super-block (5760 bytes)          d: f16[32 rows] | dmin: f16[32 rows] |
 *                                             8 × ( s: u8[32 rows] | m: u8[32 rows] | q: u32[5 words][32 rows] )
 */
#include "cpu/format.h"
#include "model/weight.h"

enum {
	COLUMNS = 32, WORDS = 5, FIELDS = 6, Q_BYTES = WORDS * FORMAT_TILE * 4, HALVES = 2 * FORMAT_TILE,
	K_COLUMNS = 256, K_GROUPS = K_COLUMNS / COLUMNS, K_BLOCK_BYTES = 176, K_GROUP_BYTES = 2 * FORMAT_TILE + Q_BYTES,
	K_SUPER_BYTES = 2 * HALVES + K_GROUPS * K_GROUP_BYTES
};

/* ---- Five-bit values ---- */

static void pack_values(uint8_t *words, unsigned lane, const uint8_t q[COLUMNS])
{
	for (unsigned a = 0; a < WORDS; a++) {
		uint32_t top = (q[30] | (uint32_t)q[31] << 5) >> 2 * a & 3, word = top << 30;

		for (unsigned i = 0; i < FIELDS; i++)
			word |= (uint32_t)q[FIELDS * a + i] << 5 * i;
		memcpy(words + (a * FORMAT_TILE + lane) * 4, &word, 4);
	}
}

static float value_at(const uint8_t *words, unsigned k, unsigned lane)
{
	uint32_t top = 0;

	if (k < 30)
		return (float)(format_word_at(words, k / FIELDS, lane) >> 5 * (k % FIELDS) & 0x1f);
	for (unsigned a = 0; a < WORDS; a++)
		top |= format_word_at(words, a, lane) >> 30 << 2 * a;
	return (float)(k == 30 ? top & 0x1f : top >> 5);
}

/* ---- Q5_0 and Q5_1 ---- */

/* Bytes before the fifth bits of a file block, before the words of a tile group; bytes of a tile group. */
static inline unsigned head_of(bool with_minimum) { return with_minimum ? 4 : 2; }
static inline unsigned halves_of(bool with_minimum) { return with_minimum ? 2 * HALVES : HALVES; }
static inline size_t   group_bytes_of(bool with_minimum) { return halves_of(with_minimum) + Q_BYTES; }

static void pack_any(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns, bool with_minimum)
{
	for (uint32_t g = 0; g < columns / COLUMNS; g++, tile += group_bytes_of(with_minimum)) {
		for (unsigned i = 0; i < FORMAT_TILE; i++) {
			const uint8_t *block, *nibbles;
			uint8_t        q[COLUMNS];
			uint32_t       fifth;

			if (!rows[i])
				continue;
			block = rows[i] + (size_t)g * (head_of(with_minimum) + 4 + COLUMNS / 2);
			nibbles = block + head_of(with_minimum) + 4;
			memcpy(&fifth, nibbles - 4, 4);
			memcpy(tile + 2 * i, block, 2);
			if (with_minimum)
				memcpy(tile + HALVES + 2 * i, block + 2, 2);
			for (unsigned k = 0; k < COLUMNS; k++)
				q[k] = (uint8_t)((k < 16 ? nibbles[k] & 0xf : nibbles[k - 16] >> 4) | (fifth >> k & 1) << 4);
			pack_values(tile + halves_of(with_minimum), i, q);
		}
	}
}

static void expand_any(const uint8_t *group, struct format_group *ret, bool with_minimum)
{
	for (unsigned k = 0; k < COLUMNS; k++)
		for (unsigned i = 0; i < FORMAT_TILE; i++)
			ret->q[k][i] = value_at(group + halves_of(with_minimum), k, i) - (with_minimum ? 0 : 16);
	for (unsigned i = 0; i < FORMAT_TILE; i++) {
		ret->scale[i] = format_half_at(group, i);
		ret->offset[i] = with_minimum ? format_half_at(group + HALVES, i) : 0;
	}
}

static void row_any(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret, bool with_minimum)
{
	for (uint32_t k = 0; k < columns; k++) {
		const uint8_t *group = tile + k / COLUMNS * group_bytes_of(with_minimum);
		float          q = value_at(group + halves_of(with_minimum), k % COLUMNS, lane);

		ret[k] = with_minimum ? format_half_at(group, lane) * q + format_half_at(group + HALVES, lane)
		                      : format_half_at(group, lane) * (q - 16);
	}
}

/* ---- Q5_K ---- */

static size_t tile_bytes_q5_k(uint32_t columns) { return (size_t)(columns / K_COLUMNS) * K_SUPER_BYTES; }

static void pack_q5_k(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns)
{
	for (uint32_t b = 0; b < columns / K_COLUMNS; b++, tile += K_SUPER_BYTES) {
		for (unsigned i = 0; i < FORMAT_TILE; i++) {
			const uint8_t *block;

			if (!rows[i])
				continue;
			block = rows[i] + (size_t)b * K_BLOCK_BYTES;
			memcpy(tile + 2 * i, block, 2);
			memcpy(tile + HALVES + 2 * i, block + 2, 2);
			for (unsigned g = 0; g < K_GROUPS; g++) {
				uint8_t       *group = tile + 2 * HALVES + g * K_GROUP_BYTES, q[COLUMNS];
				const uint8_t *fifth = block + 16, *nibbles = block + 48 + g / 2 * COLUMNS;

				weight_k_scales(block + 4, g, &group[i], &group[FORMAT_TILE + i]);
				for (unsigned k = 0; k < COLUMNS; k++)
					q[k] = (uint8_t)((nibbles[k] >> 4 * (g % 2) & 0xf) | (fifth[k] >> g & 1) << 4);
				pack_values(group + 2 * FORMAT_TILE, i, q);
			}
		}
	}
}

/* The group of COLUMN; *ret_scale = d · s and *ret_minimum = dmin · m of lane LANE. */
static const uint8_t *group_at(const uint8_t *tile, uint32_t column, unsigned lane, float *ret_scale,
    float *ret_minimum)
{
	const uint8_t *super = tile + (size_t)(column / K_COLUMNS) * K_SUPER_BYTES;
	const uint8_t *group = super + 2 * HALVES + column % K_COLUMNS / COLUMNS * K_GROUP_BYTES;

	*ret_scale = format_half_at(super, lane) * group[lane];
	*ret_minimum = format_half_at(super + HALVES, lane) * group[FORMAT_TILE + lane];
	return group;
}

static void expand_q5_k(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret)
{
	(void)columns;
	for (unsigned i = 0; i < FORMAT_TILE; i++) {
		float          minimum;
		const uint8_t *values = group_at(tile, group * COLUMNS, i, &ret->scale[i], &minimum);

		ret->offset[i] = -minimum;
		for (unsigned k = 0; k < COLUMNS; k++)
			ret->q[k][i] = value_at(values + 2 * FORMAT_TILE, k, i);
	}
}

static void row_q5_k(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret)
{
	for (uint32_t k = 0; k < columns; k++) {
		float          scale, minimum;
		const uint8_t *group = group_at(tile, k, lane, &scale, &minimum);
		ret[k] = scale * value_at(group + 2 * FORMAT_TILE, k % COLUMNS, lane) - minimum;
	}
}

/* ---- Tables ---- */

/* As format_nibble_prescale: a field masked where it stands is 32^(column % 6) times too large; the last two columns
 * are put together apart. */
#define FIELDS_OF_A_WORD 1, 0x1p-5f, 0x1p-10f, 0x1p-15f, 0x1p-20f, 0x1p-25f
static const float prescale[FORMAT_PRESCALE] = {
	FIELDS_OF_A_WORD, FIELDS_OF_A_WORD, FIELDS_OF_A_WORD, FIELDS_OF_A_WORD, FIELDS_OF_A_WORD, 1, 1,
};

#define Q5_FORMAT(type, label, with_minimum)                                                                         \
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
		.name = label, .block_columns = COLUMNS, .block_bytes = with_minimum ? 24 : 22, .group = COLUMNS,    \
		.scaled = true, .tile_bytes = tile_bytes_##type, .pack = pack_##type, .expand = expand_##type,       \
		.row = row_##type, .linear = FORMAT_SIMD(format_##type), .prescale = prescale,      \
	}

Q5_FORMAT(q5_0, "Q5_0", false);
Q5_FORMAT(q5_1, "Q5_1", true);

const struct format format_q5_k = {
	.name = "Q5_K", .block_columns = K_COLUMNS, .block_bytes = K_BLOCK_BYTES, .group = COLUMNS, .scaled = true,
	.tile_bytes = tile_bytes_q5_k, .pack = pack_q5_k, .expand = expand_q5_k, .row = row_q5_k,
	.linear = FORMAT_SIMD(format_q5_k), .prescale = prescale,
};
