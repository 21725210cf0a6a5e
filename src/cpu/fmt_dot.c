/* fmt_dot.c: owns int8 weights whose inputs the checkpoint rounds to int8 too, for processors that multiply bytes (VNNI):
 * y = scale · input scale · Σ q · x, a sum of integers, exact in any order.  Does not own the rounding (input.c).
 *
 *      tile   layout (64 bytes) | scales: f32[32 rows] | −128 · Σ q: i32[32 rows] | q: i8[columns / 4][32 rows][4]
 *
 * The instruction multiplies unsigned bytes with signed ones, so inputs are stored with 128 added, and sums begin at
 * −128 · Σ q.  Modulo 2³² that is exact as long as the true sum fits: 65536 columns are at most 2³⁰. */
#include "cpu/format.h"
#include "model/weight.h"

#include <string.h>

enum { FOUR = 4, OFFSET = 128 };

static size_t layout_bytes(const struct format_layout *layout)
{
	return FORMAT_LAYOUT_BYTES + FORMAT_DOT_HEAD_BYTES + (size_t)layout->columns * FORMAT_TILE;
}

static void pack_from(uint8_t *tile, const struct format_layout *layout, const struct weight_desc *w,
    const uint32_t *order, uint64_t first_row, uint32_t rows)
{
	uint8_t *head = tile + FORMAT_LAYOUT_BYTES, *values = head + FORMAT_DOT_HEAD_BYTES;

	(void)order; /* weights with an order are of another format */
	memcpy(tile, layout, sizeof *layout);
	for (uint32_t i = 0; i < rows; i++) {
		const uint8_t *from = weight_row(w, first_row + i);
		float          scale = weight_scale_at(w, first_row + i, 0);
		int32_t        start = 0;

		for (uint32_t k = 0; k < w->columns; k++) {
			values[(size_t)(k / FOUR) * FORMAT_TILE * FOUR + i * FOUR + k % FOUR] = from[k];
			start -= OFFSET * (int8_t)from[k];
		}
		memcpy(head + 4 * i, &scale, 4);
		memcpy(head + 4 * FORMAT_TILE + 4 * i, &start, 4);
	}
}

static float scale_at(const uint8_t *tile, unsigned lane)
{
	float scale;
	memcpy(&scale, tile + FORMAT_LAYOUT_BYTES + 4 * lane, 4);
	return scale;
}

static inline int value_at(const uint8_t *tile, uint32_t column, unsigned lane)
{
	const uint8_t *values = tile + FORMAT_LAYOUT_BYTES + FORMAT_DOT_HEAD_BYTES;
	return (int8_t)values[(size_t)(column / FOUR) * FORMAT_TILE * FOUR + lane * FOUR + column % FOUR];
}

static void row(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret)
{
	for (uint32_t k = 0; k < columns; k++)
		ret[k] = (float)value_at(tile, k, lane) * scale_at(tile, lane);
}

/* The reference of the others. */
static void linear_plain(const uint8_t *tile, uint32_t columns, const struct format_input *input, unsigned rows,
    float out[FORMAT_ROWS][FORMAT_TILE])
{
	const uint8_t *x = (const uint8_t *)input->x;
	unsigned       stride = rows == 1 ? 1 : FORMAT_ROWS;

	for (unsigned r = 0; r < rows; r++) {
		for (unsigned i = 0; i < FORMAT_TILE; i++) {
			int32_t sum = 0;

			for (uint32_t k = 0; k < columns; k++)
				sum += value_at(tile, k, i) * ((int)x[((size_t)(k / FOUR) * stride + r) * FOUR + k % FOUR] - OFFSET);
			out[r][i] = (float)sum * input->sums[r] * scale_at(tile, i);
		}
	}
}

const struct format format_i8_dot = {
	.name = "I8", .block_columns = 1, .block_bytes = 1, .group = FORMAT_GROUP_MAX, .scaled = true, .integers = true,
	.layout_bytes = layout_bytes, .pack_from = pack_from, .row = row,
	.linear = { [CPU_ISA_GENERIC] = linear_plain, [CPU_ISA_AVX2] = linear_plain,
#if defined __x86_64__
		[CPU_ISA_AVX512] = format_i8_dot_avx512,
#else
		[CPU_ISA_AVX512] = linear_plain,
#endif
	},
};
