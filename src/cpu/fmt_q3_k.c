/* fmt_q3_k.c: owns Q3_K: super-blocks of 256 weights in 16 groups of 16, weight = d · (s − 32) · (q − 4), q in 0…7, s
 * in 0…63.
 *
 *      file block (110 bytes)           third bits[32] | bit pairs[64] | s: six bits[16 groups] in 12 bytes | d: f16
 *      tile super-block (3648 bytes)    d: f16[32 rows] |
 *                                       8 × ( s − 32: int8[2 groups][32 rows] | q: u32[3 words][32 rows] )
 *
 * In the file bit pairs lie as in Q2_K; the third bit of column 32j + l is bit j of byte l; s has its low nibbles in
 * the first eight bytes and its high pairs in the last four.
 *
 * In a tile two groups, 32 columns, fill three words: column 10a + i in bits 3i…3i + 2 of word a (i < 10), and the
 * six bits left at the top are columns 30 and 31, lowest bits in the lowest word. */
#include "cpu/format.h"

enum {
	COLUMNS = 256, BLOCK_BYTES = 110, GROUP = 16, GROUPS = COLUMNS / GROUP, WORDS = 3, FIELDS = 10,
	D_BYTES = 2 * FORMAT_TILE, PAIR = 2 * GROUP, PAIR_BYTES = 2 * FORMAT_TILE + WORDS * FORMAT_TILE * 4,
	SUPER_BYTES = D_BYTES + GROUPS / 2 * PAIR_BYTES
};

static size_t tile_bytes(uint32_t columns) { return (size_t)(columns / COLUMNS) * SUPER_BYTES; }

static uint32_t file_value(const uint8_t *block, unsigned column)
{
	unsigned half = column / 128, j = column % 128 / 32, l = column % 32;
	return (block[32 + 32 * half + l] >> 2 * j & 3) | (uint32_t)(block[l] >> column / 32 & 1) << 2;
}

static int8_t file_scale(const uint8_t *block, unsigned group)
{
	const uint8_t *scales = block + 96;
	unsigned       low = group < 8 ? scales[group] & 0xf : scales[group - 8] >> 4;

	return (int8_t)((int)(low | (scales[8 + group % 4] >> 2 * (group / 4) & 3u) << 4) - 32);
}

static void pack(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns)
{
	for (uint32_t b = 0; b < columns / COLUMNS; b++, tile += SUPER_BYTES) {
		for (unsigned i = 0; i < FORMAT_TILE; i++) {
			const uint8_t *block;

			if (!rows[i])
				continue;
			block = rows[i] + (size_t)b * BLOCK_BYTES;
			memcpy(tile + 2 * i, block + 108, 2);
			for (unsigned g = 0; g < GROUPS; g += 2) {
				uint8_t *pair = tile + D_BYTES + g / 2 * PAIR_BYTES;
				uint32_t top = file_value(block, GROUP * g + 30) | file_value(block, GROUP * g + 31) << 3;

				pair[i] = (uint8_t)file_scale(block, g);
				pair[FORMAT_TILE + i] = (uint8_t)file_scale(block, g + 1);
				for (unsigned a = 0; a < WORDS; a++) {
					uint32_t word = (top >> 2 * a & 3) << 30;

					for (unsigned p = 0; p < FIELDS; p++)
						word |= file_value(block, GROUP * g + FIELDS * a + p) << 3 * p;
					memcpy(pair + 2 * FORMAT_TILE + (a * FORMAT_TILE + i) * 4, &word, 4);
				}
			}
		}
	}
}

/* q − 4 of lane LANE at COLUMN; *ret_scale = d · (s − 32). */
static float value_at(const uint8_t *tile, uint32_t column, unsigned lane, float *ret_scale)
{
	const uint8_t *super = tile + (size_t)(column / COLUMNS) * SUPER_BYTES;
	const uint8_t *pair = super + D_BYTES + column % COLUMNS / PAIR * PAIR_BYTES, *words = pair + 2 * FORMAT_TILE;
	unsigned       k = column % PAIR;
	uint32_t       top = 0;

	*ret_scale = format_half_at(super, lane) * (int8_t)pair[k / GROUP * FORMAT_TILE + lane];
	if (k < 30)
		return (float)(format_word_at(words, k / FIELDS, lane) >> 3 * (k % FIELDS) & 7) - 4;
	for (unsigned a = 0; a < WORDS; a++)
		top |= format_word_at(words, a, lane) >> 30 << 2 * a;
	return (float)(k == 30 ? top & 7 : top >> 3) - 4;
}

static void expand(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret)
{
	(void)columns;
	for (unsigned k = 0; k < GROUP; k++)
		for (unsigned i = 0; i < FORMAT_TILE; i++)
			ret->q[k][i] = value_at(tile, group * GROUP + k, i, &ret->scale[i]);
	memset(ret->offset, 0, sizeof ret->offset);
}

static void row(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret)
{
	for (uint32_t k = 0; k < columns; k++) {
		float scale, q = value_at(tile, k, lane, &scale);
		ret[k] = scale * q;
	}
}

/* As format_nibble_prescale: a field masked where it stands is 8^(column % 10) times too large; the last two columns
 * are put together apart. */
#define FIELDS_OF_A_WORD 1, 0x1p-3f, 0x1p-6f, 0x1p-9f, 0x1p-12f, 0x1p-15f, 0x1p-18f, 0x1p-21f, 0x1p-24f, 0x1p-27f
static const float prescale[FORMAT_PRESCALE] = { FIELDS_OF_A_WORD, FIELDS_OF_A_WORD, FIELDS_OF_A_WORD, 1, 1 };

const struct format format_q3_k = {
	.name = "Q3_K", .block_columns = COLUMNS, .block_bytes = BLOCK_BYTES, .group = GROUP, .scaled = true,
	.tile_bytes = tile_bytes, .pack = pack, .expand = expand, .row = row,
	.linear = FORMAT_SIMD(format_q3_k), .prescale = prescale,
};
