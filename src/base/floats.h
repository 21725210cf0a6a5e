/* floats.h: narrow floating-point numbers in plain C: IEEE half precision, bfloat16, and float8 e4m3 (four exponent
 * bits, three of fraction, no infinity, largest 448; Micikevicius et al. 2022). */
#ifndef PENSTOCK_BASE_FLOATS_H
#define PENSTOCK_BASE_FLOATS_H

#include <stdint.h>
#include <string.h>

static inline float floats_from_bits(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

static inline uint32_t floats_to_bits(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static inline float floats_from_half(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;

	if (exponent == 0x1f) /* infinity, NaN */
		return floats_from_bits(sign | 0x7f800000 | fraction << 13);
	if (exponent)
		return floats_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
	return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f; /* zero, subnormal */
}

static inline float floats_from_bfloat(uint16_t bits) { return floats_from_bits((uint32_t)bits << 16); }

static inline float floats_from_e4m3(uint8_t bits)
{
	uint32_t sign = (uint32_t)(bits & 0x80) << 24, exponent = bits >> 3 & 0xf, fraction = bits & 7;

	if ((bits & 0x7f) == 0x7f)
		return floats_from_bits(sign | 0x7fc00000);
	if (exponent)
		return floats_from_bits(sign | (exponent + 120) << 23 | fraction << 20);
	return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-9f;
}

/* The nearest number that e4m3 has, ties to even, at most 448; NaN stays NaN. */
static inline float floats_round_e4m3(float value)
{
	uint32_t bits = floats_to_bits(value), sign = bits & 0x80000000;
	float    size = floats_from_bits(bits ^ sign), rounded;

	if (size < 0x1p-6f) { /* steps of 2⁻⁹: the last place of 2¹⁴ */
		rounded = size + 0x1p14f;
		rounded -= 0x1p14f;
	} else {
		uint32_t up = (bits ^ sign) + 0x7ffff + (bits >> 20 & 1);
		rounded = size < 448 ? floats_from_bits(up & ~0xfffffu) : size > 448 ? 448 : size;
	}
	return floats_from_bits(floats_to_bits(rounded) | sign);
}

/* The nearest bfloat16, ties to even; NaN stays NaN. */
static inline uint16_t floats_to_bfloat(float value)
{
	uint32_t bits = floats_to_bits(value);

	if ((bits & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The nearest half, ties to even; infinity beyond 65,519; NaN stays NaN. */
static inline uint16_t floats_to_half(float value)
{
	uint32_t bits = floats_to_bits(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;

	if (size > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (size >= 0x477ff000)
		return (uint16_t)(sign | 0x7c00);
	if (size < 0x38800000) /* subnormal: steps of 2⁻²⁴, the last place of ½ in float32 */
		return (uint16_t)(sign | (floats_to_bits(floats_from_bits(size) + 0.5f) - 0x3f000000));
	return (uint16_t)(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}

/* The bits of floats_round_e4m3(value). */
static inline uint8_t floats_to_e4m3(float value)
{
	uint32_t bits = floats_to_bits(floats_round_e4m3(value)), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;

	if (size > 0x7f800000)
		return (uint8_t)(sign | 0x7f);
	if (size < 0x3c800000) /* below 2⁻⁶: steps of 2⁻⁹ */
		return (uint8_t)(sign | (uint32_t)(floats_from_bits(size) * 0x1p9f));
	return (uint8_t)(sign | (size - 0x3c000000) >> 20);
}

#endif
