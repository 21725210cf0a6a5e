/* blocks.c: owns what the quantised blocks of GGUF files mean: rows of them in float32.  Does not own how a backend lays
 * them out.  Invariant: a value is computed with the operations, and in the order, that the format's definition has, so
 * that every reader gets the same bits. */
#include "base/floats.h"
#include "model/weight.h"

#include <string.h>

enum { SMALL = 32, SUPER = 256 }; /* columns of a block */

const int8_t weight_iq4_values[16] = {
	-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
};

void weight_k_scales(const uint8_t *scales, unsigned group, uint8_t *ret_scale, uint8_t *ret_minimum)
{
	if (group < 4) {
		*ret_scale = scales[group] & 0x3f;
		*ret_minimum = scales[group + 4] & 0x3f;
	} else {
		*ret_scale = (uint8_t)((scales[group + 4] & 0xf) | scales[group - 4] >> 6 << 4);
		*ret_minimum = (uint8_t)(scales[group + 4] >> 4 | scales[group] >> 6 << 4);
	}
}

static float half_at(const uint8_t *at)
{
	uint16_t bits;

	memcpy(&bits, at, 2);
	return floats_from_half(bits);
}

/* Nibble of column K of 32: low halves first. */
static unsigned nibble(const uint8_t *nibbles, unsigned k)
{
	return k < SMALL / 2 ? nibbles[k] & 0xf : nibbles[k - SMALL / 2] >> 4;
}

/* ---- Blocks of 32 ---- */

static void read_q8_0(const uint8_t *block, float *ret)
{
	float d = half_at(block);

	for (unsigned k = 0; k < SMALL; k++)
		ret[k] = d * (float)(int8_t)block[2 + k];
}

static void read_q4(const uint8_t *block, float *ret, bool with_minimum)
{
	float          d = half_at(block), m = with_minimum ? half_at(block + 2) : 0;
	const uint8_t *nibbles = block + (with_minimum ? 4 : 2);

	for (unsigned k = 0; k < SMALL; k++)
		ret[k] = with_minimum ? d * (float)nibble(nibbles, k) + m : d * (float)((int)nibble(nibbles, k) - 8);
}

static void read_q5(const uint8_t *block, float *ret, bool with_minimum)
{
	float          d = half_at(block), m = with_minimum ? half_at(block + 2) : 0;
	const uint8_t *bits = block + (with_minimum ? 4 : 2), *nibbles = bits + 4;
	uint32_t       fifth;

	memcpy(&fifth, bits, 4);
	for (unsigned k = 0; k < SMALL; k++) {
		float q = (float)(nibble(nibbles, k) | (fifth >> k & 1) << 4);
		ret[k] = with_minimum ? d * q + m : d * (q - 16);
	}
}

static void read_iq4_nl(const uint8_t *block, float *ret)
{
	float d = half_at(block);

	for (unsigned k = 0; k < SMALL; k++)
		ret[k] = d * (float)weight_iq4_values[nibble(block + 2, k)];
}

/* ---- Blocks of 256 ---- */

/* Q2_K and Q3_K: in each half, column 32j + l is in bits 2j, 2j + 1 of byte l of the half's 32. */
static unsigned pair_at(const uint8_t *pairs, unsigned column)
{
	return pairs[32 * (column / 128) + column % 32] >> 2 * (column % 128 / 32) & 3;
}

static void read_q2_k(const uint8_t *block, float *ret)
{
	float d = half_at(block + 80), minimum = half_at(block + 82);

	for (unsigned k = 0; k < SUPER; k++) {
		float scale = d * (float)(block[k / 16] & 0xf), offset = minimum * (float)(block[k / 16] >> 4);
		ret[k] = scale * (float)pair_at(block + 16, k) - offset;
	}
}

static void read_q3_k(const uint8_t *block, float *ret)
{
	const uint8_t *scales = block + 96;
	float          d = half_at(block + 108);

	for (unsigned k = 0; k < SUPER; k++) {
		unsigned group = k / 16, low = group < 8 ? scales[group] & 0xf : scales[group - 8] >> 4;
		int      s = (int)(low | (scales[8 + group % 4] >> 2 * (group / 4) & 3u) << 4) - 32;
		int      q = (int)(pair_at(block + 32, k) | (block[k % 32] >> k / 32 & 1u) << 2) - 4;

		ret[k] = d * (float)s * (float)q;
	}
}

/* Q4_K, and with fifth bits Q5_K. */
static void read_q45_k(const uint8_t *block, float *ret, bool fifth)
{
	const uint8_t *bits = block + 16, *nibbles = bits + (fifth ? 32 : 0);
	float          d = half_at(block), minimum = half_at(block + 2);

	for (unsigned g = 0; g < SUPER / SMALL; g++) {
		uint8_t s, m;
		float   scale, offset;

		weight_k_scales(block + 4, g, &s, &m);
		scale = d * (float)s;
		offset = minimum * (float)m;
		for (unsigned l = 0; l < SMALL; l++) {
			unsigned q = nibbles[SMALL * (g / 2) + l] >> 4 * (g % 2) & 0xf;

			if (fifth)
				q |= (bits[l] >> g & 1u) << 4;
			ret[SMALL * g + l] = scale * (float)q - offset;
		}
	}
}

static void read_q6_k(const uint8_t *block, float *ret)
{
	float d = half_at(block + 208);

	for (unsigned k = 0; k < SUPER; k++) {
		unsigned       half = k / 128, c = k % 128 / 32, l = k % 32;
		const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
		int            q = (low[l + 32 * (c % 2)] >> (c < 2 ? 0 : 4) & 0xf) | (high[l] >> 2 * c & 3) << 4;

		ret[k] = d * (float)(int8_t)block[192 + k / 16] * (float)(q - 32);
	}
}

static void read_iq4_xs(const uint8_t *block, float *ret)
{
	float    d = half_at(block);
	uint16_t high;

	memcpy(&high, block + 2, 2);
	for (unsigned k = 0; k < SUPER; k++) {
		unsigned g = k / SMALL;
		int      s = ((block[4 + g / 2] >> 4 * (g % 2) & 0xf) | (high >> 2 * g & 3) << 4) - 32;

		ret[k] = d * (float)s * (float)weight_iq4_values[nibble(block + 8 + 16 * g, k % SMALL)];
	}
}

bool weight_read_blocks(enum weight_format format, const uint8_t *blocks, uint64_t columns, float *ret)
{
	uint32_t width, bytes;

	if (!weight_format_block(format, &width, &bytes) || width < SMALL)
		return false;
	for (uint64_t k = 0; k < columns; k += width, blocks += bytes) {
		switch (format) {
		case WEIGHT_Q8_0: read_q8_0(blocks, ret + k); break;
		case WEIGHT_Q4_0: read_q4(blocks, ret + k, false); break;
		case WEIGHT_Q4_1: read_q4(blocks, ret + k, true); break;
		case WEIGHT_Q5_0: read_q5(blocks, ret + k, false); break;
		case WEIGHT_Q5_1: read_q5(blocks, ret + k, true); break;
		case WEIGHT_IQ4_NL: read_iq4_nl(blocks, ret + k); break;
		case WEIGHT_Q2_K: read_q2_k(blocks, ret + k); break;
		case WEIGHT_Q3_K: read_q3_k(blocks, ret + k); break;
		case WEIGHT_Q4_K: read_q45_k(blocks, ret + k, false); break;
		case WEIGHT_Q5_K: read_q45_k(blocks, ret + k, true); break;
		case WEIGHT_Q6_K: read_q6_k(blocks, ret + k); break;
		case WEIGHT_IQ4_XS: read_iq4_xs(blocks, ret + k); break;
		default: return false;
		}
	}
	return true;
}
