/* fmt_q8_0.c: owns Q8_0: blocks of 32 weights, weight = d · q, q in −128…127.
 *
 *      file block (34 bytes)   d: f16 | q: int8[32]
 *      tile group (1088 bytes) d: f16[32 rows] | q: int8[32 columns][32 rows]
 */
#include "cpu/format.h"

#include <string.h>

enum { COLUMNS = 32, BLOCK_BYTES = 34, GROUP_BYTES = 2 * FORMAT_TILE + COLUMNS * FORMAT_TILE, Q_AT = 2 * FORMAT_TILE };

static size_t tile_bytes(uint32_t columns) { return (size_t)(columns / COLUMNS) * GROUP_BYTES; }

static void pack(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns)
{
	for (uint32_t g = 0; g < columns / COLUMNS; g++, tile += GROUP_BYTES) {
		for (unsigned i = 0; i < FORMAT_TILE; i++) {
			const uint8_t *block = rows[i] + (size_t)g * BLOCK_BYTES;

			if (!rows[i])
				continue;
			memcpy(tile + 2 * i, block, 2);
			for (unsigned k = 0; k < COLUMNS; k++)
				tile[Q_AT + FORMAT_TILE * k + i] = block[2 + k];
		}
	}
}

static void expand(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret)
{
	(void)columns;
	tile += (size_t)group * GROUP_BYTES;
	for (unsigned k = 0; k < COLUMNS; k++)
		for (unsigned i = 0; i < FORMAT_TILE; i++)
			ret->q[k][i] = (int8_t)tile[Q_AT + FORMAT_TILE * k + i];
	for (unsigned i = 0; i < FORMAT_TILE; i++) {
		ret->scale[i] = format_half_at(tile, i);
		ret->offset[i] = 0;
	}
}

static void row(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret)
{
	for (uint32_t k = 0; k < columns; k++) {
		const uint8_t *group = tile + (size_t)(k / COLUMNS) * GROUP_BYTES;
		ret[k] = format_half_at(group, lane) * (float)(int8_t)group[Q_AT + FORMAT_TILE * (k % COLUMNS) + lane];
	}
}

const struct format format_q8_0 = {
	.name = "Q8_0", .block_columns = COLUMNS, .block_bytes = BLOCK_BYTES, .group = COLUMNS, .scaled = true,
	.tile_bytes = tile_bytes, .pack = pack, .expand = expand, .row = row,
	.linear = FORMAT_SIMD(format_q8_0),
};
