/* fmt_float.c: owns weights stored as float32, float16 and bfloat16.  Tile: [column][32 rows], no scales. */
#include "cpu/format.h"

#include <string.h>

static size_t tile_bytes_4(uint32_t columns) { return (size_t)columns * FORMAT_TILE * 4; }
static size_t tile_bytes_2(uint32_t columns) { return (size_t)columns * FORMAT_TILE * 2; }

static void pack_4(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns)
{
	for (unsigned i = 0; i < FORMAT_TILE; i++)
		for (uint32_t k = 0; rows[i] && k < columns; k++)
			memcpy(tile + ((size_t)k * FORMAT_TILE + i) * 4, rows[i] + (size_t)k * 4, 4);
}

static void pack_2(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns)
{
	for (unsigned i = 0; i < FORMAT_TILE; i++)
		for (uint32_t k = 0; rows[i] && k < columns; k++)
			memcpy(tile + ((size_t)k * FORMAT_TILE + i) * 2, rows[i] + (size_t)k * 2, 2);
}

static inline float value_f32(const uint8_t *tile, size_t at)
{
	float value;
	memcpy(&value, tile + at * 4, 4);
	return value;
}

static inline uint16_t bits_2(const uint8_t *tile, size_t at)
{
	uint16_t bits;
	memcpy(&bits, tile + at * 2, 2);
	return bits;
}

static inline float value_f16(const uint8_t *tile, size_t at) { return floats_from_half(bits_2(tile, at)); }
static inline float value_bf16(const uint8_t *tile, size_t at) { return floats_from_bfloat(bits_2(tile, at)); }

/* The three differ only in how one value is read. */
#define FLOAT_FORMAT(type, label, size)                                                                              \
	static void expand_##type(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret)   \
	{                                                                                                            \
		uint32_t first = group * FORMAT_GROUP_MAX;                                                           \
		for (uint32_t k = 0; k < FORMAT_GROUP_MAX && first + k < columns; k++)                               \
			for (unsigned i = 0; i < FORMAT_TILE; i++)                                                   \
				ret->q[k][i] = value_##type(tile, (size_t)(first + k) * FORMAT_TILE + i);            \
	}                                                                                                            \
	static void row_##type(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret)                     \
	{                                                                                                            \
		for (uint32_t k = 0; k < columns; k++)                                                               \
			ret[k] = value_##type(tile, (size_t)k * FORMAT_TILE + lane);                                 \
	}                                                                                                            \
	const struct format format_##type = {                                                                        \
		.name = label, .block_columns = 1, .block_bytes = size, .group = FORMAT_GROUP_MAX, .scaled = false,  \
		.tile_bytes = tile_bytes_##size, .pack = pack_##size, .expand = expand_##type, .row = row_##type,    \
		.linear = FORMAT_SIMD(format_##type),                                                    \
	}

FLOAT_FORMAT(f32, "F32", 4);
FLOAT_FORMAT(f16, "F16", 2);
FLOAT_FORMAT(bf16, "BF16", 2);
