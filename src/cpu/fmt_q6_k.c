/* fmt_q6_k.c: owns Q6_K: super-blocks of 256 weights in 16 groups of 16, weight = d · s · (q − 32), q in 0…63.
 *
 *      file block (210 bytes)  low nibbles[128] | high bit pairs[64] | s: int8[16] | d: f16
 *
 * The file interleaves: in each half (128 columns) column 32c + l (c < 4, l < 32) has its low nibble in byte l + 32 (c
 * % 2) of the half's 64, low half of the byte for c < 2, and its high pair in bits 2c, 2c + 1 of byte l of the half's
 * 32.
 *
 * In a tile the 16 values of a row's group fill three 32-bit words exactly: column 5a + i in bits 6i…6i + 5 of word a
 * (i < 5), and column 15 in the two bits left at the top of each word, lowest pair in word 0:
 *
 *      tile super-block (6720 bytes)   d: f16[32 rows] | 16 × ( s: int8[32 rows] | q: u32[3 words][32 rows] )
 */
#include "cpu/format.h"

#include <string.h>

enum {
	COLUMNS = 256, BLOCK_BYTES = 210, GROUP = 16, GROUPS = COLUMNS / GROUP, WORDS = 3,
	D_BYTES = 2 * FORMAT_TILE, GROUP_BYTES = FORMAT_TILE + WORDS * FORMAT_TILE * 4,
	SUPER_BYTES = D_BYTES + GROUPS * GROUP_BYTES
};

static size_t tile_bytes(uint32_t columns) { return (size_t)(columns / COLUMNS) * SUPER_BYTES; }

static uint32_t file_value(const uint8_t *block, unsigned column)
{
	unsigned       half = column / 128, c = column % 128 / 32, l = column % 32;
	const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
	uint32_t       nibble = low[l + 32 * (c % 2)] >> (c < 2 ? 0 : 4) & 0xf;

	return nibble | (uint32_t)(high[l] >> 2 * c & 3) << 4;
}

static void pack(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns)
{
	for (uint32_t b = 0; b < columns / COLUMNS; b++, tile += SUPER_BYTES) {
		for (unsigned i = 0; i < FORMAT_TILE; i++) {
			const uint8_t *block = rows[i] + (size_t)b * BLOCK_BYTES;

			if (!rows[i])
				continue;
			memcpy(tile + 2 * i, block + 208, 2);
			for (unsigned g = 0; g < GROUPS; g++) {
				uint8_t *group = tile + D_BYTES + g * GROUP_BYTES;
				uint32_t last = file_value(block, GROUP * g + 15);

				group[i] = block[192 + g];
				for (unsigned a = 0; a < WORDS; a++) {
					uint32_t word = (last >> 2 * a & 3) << 30;

					for (unsigned p = 0; p < 5; p++)
						word |= file_value(block, GROUP * g + 5 * a + p) << 6 * p;
					memcpy(group + FORMAT_TILE + (a * FORMAT_TILE + i) * 4, &word, 4);
				}
			}
		}
	}
}

static inline int value_at(const uint8_t *group, unsigned k, unsigned lane)
{
	const uint8_t *words = group + FORMAT_TILE;
	uint32_t       top = 0;

	if (k < 15)
		return format_word_at(words, k / 5, lane) >> 6 * (k % 5) & 0x3f;
	for (unsigned a = 0; a < WORDS; a++)
		top |= format_word_at(words, a, lane) >> 30 << 2 * a;
	return (int)top;
}

static void expand(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret)
{
	const uint8_t *super = tile + (size_t)(group / GROUPS) * SUPER_BYTES;
	const uint8_t *values = super + D_BYTES + group % GROUPS * GROUP_BYTES;

	(void)columns;
	for (unsigned k = 0; k < GROUP; k++)
		for (unsigned i = 0; i < FORMAT_TILE; i++)
			ret->q[k][i] = (float)(value_at(values, k, i) - 32);
	for (unsigned i = 0; i < FORMAT_TILE; i++) {
		ret->scale[i] = format_half_at(super, i) * (float)(int8_t)values[i];
		ret->offset[i] = 0;
	}
}

static void row(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret)
{
	for (uint32_t k = 0; k < columns; k++) {
		const uint8_t *super = tile + (size_t)(k / COLUMNS) * SUPER_BYTES;
		const uint8_t *values = super + D_BYTES + k % COLUMNS / GROUP * GROUP_BYTES;

		ret[k] = format_half_at(super, lane) * (float)(int8_t)values[lane] *
		         (float)(value_at(values, k % GROUP, lane) - 32);
	}
}

/* As format_nibble_prescale: a field masked where it stands is 64^(column % 5) times too large. */
#define FIELDS_OF_A_WORD 1, 0x1p-6f, 0x1p-12f, 0x1p-18f, 0x1p-24f
#define COLUMNS_OF_A_GROUP FIELDS_OF_A_WORD, FIELDS_OF_A_WORD, FIELDS_OF_A_WORD, 1
static const float prescale[FORMAT_PRESCALE] = { COLUMNS_OF_A_GROUP, COLUMNS_OF_A_GROUP };

const struct format format_q6_k = {
	.name = "Q6_K", .block_columns = COLUMNS, .block_bytes = BLOCK_BYTES, .group = GROUP, .scaled = true,
	.tile_bytes = tile_bytes, .pack = pack, .expand = expand, .row = row,
	.linear = FORMAT_SIMD(format_q6_k), .prescale = prescale,
};
