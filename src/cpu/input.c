/* input.c: owns what happens to activations between a layer and the product with some weights: rounding to float8 or
 * int8 where the checkpoint asks for it, the order of the columns, and padding to whole groups.  Does not own the
 * shape kernels read (prepare, in kernels_*.c).  Invariant: a row's result depends on that row only. */
#include "base/floats.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { QUANTISED_GROUP = 128 };

bool cpu_input_is_plain(const struct cpu_input *input, uint32_t columns)
{
	return input->columns == columns && !input->order && input->quantise == WEIGHT_INPUT_FLOAT;
}

bool cpu_input_equal(const struct cpu_input *a, const struct cpu_input *b, uint32_t columns)
{
	return a->columns == b->columns && a->quantise == b->quantise && a->scale == b->scale && a->scales == b->scales &&
	       a->first == b->first && !a->order == !b->order &&
	       (!a->order || memcmp(a->order, b->order, columns * sizeof *a->order) == 0);
}

uint32_t cpu_input_scales(enum weight_input quantise, uint32_t columns)
{
	switch (quantise) {
	case WEIGHT_INPUT_F8_GROUP: return columns / QUANTISED_GROUP + (columns % QUANTISED_GROUP != 0);
	case WEIGHT_INPUT_FLOAT: return 0;
	default: return 1;
	}
}

static float amax_of(const float *x, uint32_t count)
{
	float amax = 0;

	for (uint32_t k = 0; k < count; k++)
		amax = fabsf(x[k]) > amax || isnan(x[k]) ? fabsf(x[k]) : amax;
	return amax;
}

/* Columns from COLUMN on that have one scale; *RET is its number in the whole row. */
static uint32_t columns_of_scale(const struct cpu_input *input, uint32_t column, uint32_t columns, uint32_t *ret)
{
	uint32_t left = columns - column, place = input->first + column, count = QUANTISED_GROUP - place % QUANTISED_GROUP;

	*ret = input->quantise == WEIGHT_INPUT_F8_GROUP ? place / QUANTISED_GROUP : 0;
	return input->quantise == WEIGHT_INPUT_F8_GROUP && count < left ? count : left;
}

void cpu_input_amax(const struct cpu_input *input, const float *x, uint32_t columns, float *ret)
{
	uint32_t scale;

	memset(ret, 0, input->scales * sizeof *ret);
	for (uint32_t k = 0, count; k < columns; k += count) {
		count = columns_of_scale(input, k, columns, &scale);
		ret[scale] = amax_of(x + k, count);
	}
}

/* AMAX / LARGEST, kept away from 0. */
static float scale_of(float amax, float largest)
{
	float scale = amax / largest;
	return scale < 1e-12f ? 1e-12f : scale;
}

static void round_f8(float *x, uint32_t count, float scale)
{
	for (uint32_t k = 0; k < count; k++)
		x[k] = floats_round_e4m3(x[k] / scale) * scale;
}

static inline float rounded_i8(float x, float scale)
{
	float q = rintf(x / scale);
	return q < -128 ? -128 : q > 127 ? 127 : q;
}

static void round_i8(float *x, uint32_t count, float scale)
{
	for (uint32_t k = 0; k < count; k++)
		x[k] = rounded_i8(x[k], scale) * scale;
}

void cpu_input_bytes(const struct cpu_input *input, const float *x, uint32_t columns, const float *amax, unsigned stride,
    uint8_t *ret, float *ret_scale)
{
	float scale = input->scale > 0 ? input->scale : scale_of(input->scales ? *amax : amax_of(x, columns), 127);
	float result = scale;

	for (uint32_t k = 0; k < input->columns; k++) {
		float q = k < columns ? rounded_i8(x[k], scale) : 0;

		if (isnan(q)) {
			q = 0;
			result = NAN;
		}
		ret[(size_t)(k / 4) * 4 * stride + k % 4] = (uint8_t)((int)q + 128);
	}
	*ret_scale = result;
}

void cpu_input_row(const struct cpu_input *input, const float *x, uint32_t columns, const float *amax, float *ret)
{
	for (uint32_t k = 0; k < columns; k++)
		ret[k] = x[input->order ? input->order[k] : k];
	memset(ret + columns, 0, (input->columns - columns) * sizeof *ret);
	if (input->quantise == WEIGHT_INPUT_FLOAT)
		return;
	/* Weights whose inputs have several scales have no order of their own. */
	for (uint32_t k = 0, count, number; k < columns; k += count) {
		float largest = input->quantise == WEIGHT_INPUT_I8_TOKEN ? 127 : 448, scale = input->scale;

		count = columns_of_scale(input, k, columns, &number);
		if (!(scale > 0))
			scale = scale_of(input->scales ? amax[number] : amax_of(ret + k, count), largest);
		if (input->quantise == WEIGHT_INPUT_I8_TOKEN)
			round_i8(ret + k, count, scale);
		else
			round_f8(ret + k, count, scale);
	}
}
