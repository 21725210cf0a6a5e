/* format.c: owns the table of stored formats and the kernel that is the same for all.  Does not own any format's
 * layout: that is in its fmt_*.c.  Invariant: the generic kernel sums in the order of format.h, so its rows do not
 * depend on how many there are. */
#include "cpu/format.h"

#include <string.h>

const struct format *format_find(enum weight_format format)
{
	static const struct format *const table[WEIGHT_FORMAT_COUNT] = {
		[WEIGHT_F32] = &format_f32, [WEIGHT_F16] = &format_f16, [WEIGHT_BF16] = &format_bf16,
		[WEIGHT_Q8_0] = &format_q8_0, [WEIGHT_Q4_0] = &format_q4_0, [WEIGHT_Q4_1] = &format_q4_1,
		[WEIGHT_Q6_K] = &format_q6_k, [WEIGHT_Q5_0] = &format_q5_0, [WEIGHT_Q5_1] = &format_q5_1,
		[WEIGHT_Q4_K] = &format_q4_k, [WEIGHT_Q5_K] = &format_q5_k, [WEIGHT_Q2_K] = &format_q2_k,
		[WEIGHT_Q3_K] = &format_q3_k, [WEIGHT_IQ4_NL] = &format_iq4_nl, [WEIGHT_IQ4_XS] = &format_iq4_xs,
		[WEIGHT_F8_E4M3] = &format_f8_e4m3, [WEIGHT_I8] = &format_i8, [WEIGHT_I4] = &format_i4,
		[WEIGHT_F4_E2M1] = &format_f32, /* unpacked */
	};
	return (unsigned)format < WEIGHT_FORMAT_COUNT ? table[format] : NULL;
}

#define NIBBLES_OF_A_WORD 1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1
const float format_nibble_prescale[FORMAT_PRESCALE] = {
	NIBBLES_OF_A_WORD, NIBBLES_OF_A_WORD, NIBBLES_OF_A_WORD, NIBBLES_OF_A_WORD,
};

void format_linear_generic(const struct format *format, const uint8_t *tile, uint32_t columns,
    const struct format_input *input, unsigned rows, float out[FORMAT_ROWS][FORMAT_TILE])
{
	unsigned            stride = rows == 1 ? 1 : FORMAT_ROWS;
	uint32_t            groups = (columns + format->group - 1) / format->group;
	struct format_group group;

	memset(out, 0, rows * sizeof out[0]);
	for (uint32_t g = 0; g < groups; g++) {
		uint32_t first = g * format->group;
		uint32_t width = columns - first < format->group ? columns - first : format->group;

		format->expand(tile, columns, g, &group);
		for (unsigned r = 0; r < rows; r++) {
			float sum[FORMAT_TILE] = { 0 };

			for (uint32_t k = 0; k < width; k++) {
				float x = input->x[(size_t)(first + k) * stride + r];
				for (unsigned i = 0; i < FORMAT_TILE; i++)
					sum[i] += group.q[k][i] * x;
			}
			if (format->scaled) {
				float total = input->sums[(size_t)g * stride + r];
				for (unsigned i = 0; i < FORMAT_TILE; i++)
					out[r][i] += group.scale[i] * sum[i] + group.offset[i] * total;
			} else {
				for (unsigned i = 0; i < FORMAT_TILE; i++)
					out[r][i] += sum[i];
			}
		}
	}
}
