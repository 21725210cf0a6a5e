/* weights.h: random weights in the formats that say everything themselves, and what they mean in double precision,
 * written from the formats' definition and not from the code under test. */
#ifndef PENSTOCK_TESTS_WEIGHTS_H
#define PENSTOCK_TESTS_WEIGHTS_H

#include "model/backend.h"
#include "support/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WEIGHTS_FORMATS = WEIGHT_Q6_K + 1 };

static const struct {
	enum weight_format format;
	uint32_t columns, bytes; /* of a block */
} weights_blocks[WEIGHTS_FORMATS] = {
	{ WEIGHT_F32, 1, 4 }, { WEIGHT_F16, 1, 2 }, { WEIGHT_BF16, 1, 2 }, { WEIGHT_Q8_0, 32, 34 }, { WEIGHT_Q4_0, 32, 18 },
	{ WEIGHT_Q4_1, 32, 20 }, { WEIGHT_Q6_K, 256, 210 },
};

/* A finite half of magnitude below 2, subnormals and zeros among them. */
static inline uint16_t weights_random_half(struct random *random)
{
	uint16_t half = (uint16_t)random_u64(random);
	return random_below(random, 50) ? (uint16_t)((half & 0x83ff) | (10 + random_below(random, 6)) << 10) : half &
	    0x83ff;
}

static inline double weights_half_value(const uint8_t *at)
{
	uint16_t half = (uint16_t)(at[0] | at[1] << 8);
	int      exponent = half >> 10 & 31, fraction = half & 1023;
	double   value = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);

	return half & 0x8000 ? -value : value;
}

static inline size_t weights_row_bytes(enum weight_format format, uint32_t columns)
{
	return (size_t)columns / weights_blocks[format].columns * weights_blocks[format].bytes;
}

static inline struct weight_desc weights_desc(const char *name, enum weight_format format, uint64_t rows,
    uint64_t columns,
    const void *data, size_t bytes)
{
	struct weight_desc desc = { .name = name, .format = format, .rows = rows, .columns = columns, .data = data,
	    .bytes = bytes };
	return desc;
}

/* ROWS × COLUMNS random weights; the caller frees them. */
static inline uint8_t *weights_make(struct random *random, enum weight_format format, uint32_t rows, uint32_t columns)
{
	size_t   bytes = rows * weights_row_bytes(format, columns), step = weights_blocks[format].bytes;
	uint8_t *data = malloc(bytes);

	for (size_t i = 0; i < bytes; i++)
		data[i] = (uint8_t)random_u64(random);
	for (size_t at = 0; at < bytes; at += step) {
		uint16_t half = weights_random_half(random), minimum = weights_random_half(random);
		float    value = random_float(random);

		if (format == WEIGHT_F32)
			memcpy(data + at, &value, 4);
		else if (format == WEIGHT_BF16)
			memcpy(data + at, (uint8_t *)&value + 2, 2);
		else
			memcpy(data + at + (format == WEIGHT_Q6_K ? 208 : 0), &half, 2);
		if (format == WEIGHT_Q4_1)
			memcpy(data + at + 2, &minimum, 2);
	}
	return data;
}

static inline double weights_value(enum weight_format format, const uint8_t *data, uint32_t columns, uint32_t row,
    uint32_t column)
{
	const uint8_t *block = data + row * weights_row_bytes(format, columns) +
	                       (size_t)(column / weights_blocks[format].columns) * weights_blocks[format].bytes;
	uint32_t at = column % weights_blocks[format].columns, bits = 0;
	float    value;

	switch (format) {
	case WEIGHT_F32: memcpy(&value, block, 4); return (double)value;
	case WEIGHT_BF16:
		bits = (uint32_t)(block[0] | block[1] << 8) << 16;
		memcpy(&value, &bits, 4);
		return (double)value;
	case WEIGHT_F16: return weights_half_value(block);
	case WEIGHT_Q8_0: return weights_half_value(block) * (int8_t)block[2 + at];
	case WEIGHT_Q4_0: return weights_half_value(block) * ((at < 16 ? block[2 + at] & 15 : block[2 + at - 16] >> 4) - 8);
	case WEIGHT_Q4_1:
		return weights_half_value(block) * (at < 16 ? block[4 + at] & 15 : block[4 + at - 16] >> 4) +
		    weights_half_value(block + 2);
	default: { /* Q6_K: ql[128], qh[64], int8 scales[16], d */
		uint32_t half = at / 128, in = at % 128, quarter = in / 32, l = in % 32;
		uint32_t low = block[64 * half + l + (quarter & 1 ? 32 : 0)], high = block[128 + 32 * half +
		    l] >> 2 * quarter & 3;
		int      q = (int)((quarter < 2 ? low & 15 : low >> 4) | high << 4) - 32;

		return weights_half_value(block + 208) * (int8_t)block[192 + at / 16] * q;
	}
	}
}

#endif
