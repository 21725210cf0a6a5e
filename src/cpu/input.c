/* input.c: owns what happens to activations between a layer and the product with some weights: rounding to float8 or int8
 * where the checkpoint asks for it, the order of the columns, and padding to whole groups.  Does not own the shape kernels
 * read (prepare, in kernels_*.c).  Invariant: a row's result depends on that row only. */
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
	return a->columns == b->columns && a->quantise == b->quantise && a->scale == b->scale && !a->order == !b->order &&
	       (!a->order || memcmp(a->order, b->order, columns * sizeof *a->order) == 0);
}

/* amax(|x|) / LARGEST, kept away from 0. */
static float scale_of(const float *x, uint32_t count, float largest)
{
	float amax = 0, scale;

	for (uint32_t k = 0; k < count; k++)
		amax = fabsf(x[k]) > amax || isnan(x[k]) ? fabsf(x[k]) : amax;
	scale = amax / largest;
	return scale < 1e-12f ? 1e-12f : scale;
}

static void round_f8(float *x, uint32_t count, float scale)
{
	for (uint32_t k = 0; k < count; k++)
		x[k] = floats_round_e4m3(x[k] / scale) * scale;
}

static void round_i8(float *x, uint32_t count, float scale)
{
	for (uint32_t k = 0; k < count; k++) {
		float q = rintf(x[k] / scale);
		x[k] = (q < -128 ? -128 : q > 127 ? 127 : q) * scale;
	}
}

void cpu_input_row(const struct cpu_input *input, const float *x, uint32_t columns, float *ret)
{
	for (uint32_t k = 0; k < columns; k++)
		ret[k] = x[input->order ? input->order[k] : k];
	memset(ret + columns, 0, (input->columns - columns) * sizeof *ret);
	switch (input->quantise) {
	case WEIGHT_INPUT_FLOAT: return;
	case WEIGHT_INPUT_F8_TOKEN:
		round_f8(ret, columns, input->scale > 0 ? input->scale : scale_of(ret, columns, 448));
		return;
	case WEIGHT_INPUT_F8_GROUP: /* weights with such inputs have no order of their own */
		for (uint32_t k = 0; k < columns; k += QUANTISED_GROUP) {
			uint32_t count = columns - k < QUANTISED_GROUP ? columns - k : QUANTISED_GROUP;
			round_f8(ret + k, count, input->scale > 0 ? input->scale : scale_of(ret + k, count, 448));
		}
		return;
	case WEIGHT_INPUT_I8_TOKEN:
		round_i8(ret, columns, input->scale > 0 ? input->scale : scale_of(ret, columns, 127));
	}
}
