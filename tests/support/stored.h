/* stored.h: random stored matrices of every format, as files hold them: windows, scales, zero points, indices of groups, at odd
 * addresses.  Their meaning is weight_read_row's.  C and C++. */
#ifndef PENSTOCK_TESTS_STORED_H
#define PENSTOCK_TESTS_STORED_H

#include "model/weight.h"
#include "support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is 0 is absent or whole. */
struct stored_case {
	enum weight_format       format;
	uint32_t                 rows, columns, more_rows, more_columns, first_row, first_column; /* stored: rows + more_rows */
	enum weight_packing      packing;
	enum weight_zero_packing zeros;
	unsigned                 add;
	int                      index;
	enum weight_format       scale_type;
	uint32_t                 block_rows, block_columns;
	int                      transposed, unscaled;
	float                    common;
};

static const struct stored_case stored_cases[] = {
	{ .format = WEIGHT_F32, .rows = 7, .columns = 16 }, { .format = WEIGHT_F32, .rows = 5, .columns = 13 },
	{ .format = WEIGHT_F16, .rows = 9, .columns = 24 }, { .format = WEIGHT_F16, .rows = 3, .columns = 7 },
	{ .format = WEIGHT_BF16, .rows = 33, .columns = 64 }, { .format = WEIGHT_BF16, .rows = 2, .columns = 1 },
	{ .format = WEIGHT_BF16, .rows = 6, .columns = 21, .more_rows = 5, .more_columns = 11, .first_row = 3,
		.first_column = 9 },
	{ .format = WEIGHT_F16, .rows = 4, .columns = 16, .more_rows = 1, .more_columns = 8, .first_row = 1,
		.first_column = 8 },
	{ .format = WEIGHT_Q8_0, .rows = 3, .columns = 96 }, { .format = WEIGHT_Q4_0, .rows = 5, .columns = 64 },
	{ .format = WEIGHT_Q4_1, .rows = 2, .columns = 160 }, { .format = WEIGHT_Q5_0, .rows = 4, .columns = 96 },
	{ .format = WEIGHT_Q5_1, .rows = 3, .columns = 32 }, { .format = WEIGHT_IQ4_NL, .rows = 3, .columns = 64 },
	{ .format = WEIGHT_Q2_K, .rows = 3, .columns = 512 }, { .format = WEIGHT_Q3_K, .rows = 2, .columns = 768 },
	{ .format = WEIGHT_Q4_K, .rows = 3, .columns = 256 }, { .format = WEIGHT_Q5_K, .rows = 2, .columns = 512 },
	{ .format = WEIGHT_Q6_K, .rows = 3, .columns = 512 }, { .format = WEIGHT_IQ4_XS, .rows = 2, .columns = 512 },
	{ .format = WEIGHT_Q4_0, .rows = 3, .columns = 64, .more_rows = 4, .more_columns = 96, .first_row = 2,
		.first_column = 32 },
	{ .format = WEIGHT_Q6_K, .rows = 2, .columns = 256, .more_rows = 1, .more_columns = 512, .first_row = 1,
		.first_column = 256 },
	/* float8: no scales, one, one for each row, for blocks that fit and that do not. */
	{ .format = WEIGHT_F8_E4M3, .rows = 9, .columns = 40, .unscaled = 1 },
	{ .format = WEIGHT_F8_E4M3, .rows = 5, .columns = 33, .scale_type = WEIGHT_F32 },
	{ .format = WEIGHT_F8_E4M3, .rows = 17, .columns = 24, .scale_type = WEIGHT_BF16, .block_rows = 1 },
	{ .format = WEIGHT_F8_E4M3, .rows = 37, .columns = 75, .scale_type = WEIGHT_F32, .block_rows = 16,
		.block_columns = 32 },
	{ .format = WEIGHT_F8_E4M3, .rows = 20, .columns = 40, .more_rows = 13, .more_columns = 50, .first_row = 7,
		.first_column = 19, .scale_type = WEIGHT_F32, .block_rows = 8, .block_columns = 16 },
	/* int8 and four-bit floats */
	{ .format = WEIGHT_I8, .rows = 11, .columns = 48, .scale_type = WEIGHT_F32, .block_rows = 1 },
	{ .format = WEIGHT_I8, .rows = 8, .columns = 31, .scale_type = WEIGHT_F16, .block_rows = 1, .block_columns = 8 },
	{ .format = WEIGHT_F4_E2M1, .rows = 6, .columns = 64, .scale_type = WEIGHT_F8_E4M3, .block_rows = 1,
		.block_columns = 16, .common = 0.037f },
	{ .format = WEIGHT_F4_E2M1, .rows = 5, .columns = 34, .more_rows = 3, .more_columns = 30, .first_row = 2,
		.first_column = 14, .scale_type = WEIGHT_F8_E4M3, .block_rows = 1, .block_columns = 16, .common = 1.5f },
	/* compressed-tensors */
	{ .format = WEIGHT_I4, .rows = 13, .columns = 64, .scale_type = WEIGHT_BF16, .block_rows = 1, .block_columns = 32 },
	{ .format = WEIGHT_I4, .rows = 19, .columns = 77, .zeros = WEIGHT_ZEROS_ROWS, .scale_type = WEIGHT_F16,
		.block_rows = 1, .block_columns = 32 },
	{ .format = WEIGHT_I4, .rows = 9, .columns = 48, .zeros = WEIGHT_ZEROS_I8, .index = 1, .scale_type = WEIGHT_F32,
		.block_rows = 1, .block_columns = 16 },
	{ .format = WEIGHT_I4, .rows = 8, .columns = 29, .more_rows = 9, .more_columns = 60, .first_row = 5,
		.first_column = 13, .zeros = WEIGHT_ZEROS_ROWS, .scale_type = WEIGHT_BF16, .block_rows = 1, .block_columns = 16 },
	/* GPTQ, both conventions of zero points, and act-order */
	{ .format = WEIGHT_I4, .rows = 24, .columns = 64, .packing = WEIGHT_PACKED_GPTQ, .zeros = WEIGHT_ZEROS_GPTQ,
		.add = 1, .scale_type = WEIGHT_F16, .block_rows = 1, .block_columns = 32, .transposed = 1 },
	{ .format = WEIGHT_I4, .rows = 10, .columns = 60, .packing = WEIGHT_PACKED_GPTQ, .zeros = WEIGHT_ZEROS_GPTQ,
		.index = 1, .scale_type = WEIGHT_F16, .block_rows = 1, .block_columns = 16, .transposed = 1 },
	{ .format = WEIGHT_I4, .rows = 7, .columns = 37, .more_rows = 8, .more_columns = 40, .first_row = 3,
		.first_column = 21, .packing = WEIGHT_PACKED_GPTQ, .zeros = WEIGHT_ZEROS_GPTQ, .add = 1,
		.scale_type = WEIGHT_F16, .block_rows = 1, .block_columns = 8, .transposed = 1 },
	/* AWQ */
	{ .format = WEIGHT_I4, .rows = 40, .columns = 64, .packing = WEIGHT_PACKED_AWQ, .zeros = WEIGHT_ZEROS_AWQ,
		.scale_type = WEIGHT_F16, .block_rows = 1, .block_columns = 32, .transposed = 1 },
	{ .format = WEIGHT_I4, .rows = 16, .columns = 50, .packing = WEIGHT_PACKED_AWQ, .scale_type = WEIGHT_BF16,
		.block_rows = 1, .block_columns = 16, .transposed = 1 },
	{ .format = WEIGHT_I4, .rows = 13, .columns = 41, .more_rows = 11, .more_columns = 23, .first_row = 6,
		.first_column = 17, .packing = WEIGHT_PACKED_AWQ, .zeros = WEIGHT_ZEROS_AWQ,
		.scale_type = WEIGHT_F16, .block_rows = 1, .block_columns = 8, .transposed = 1 },
};
enum { STORED_CASES = sizeof stored_cases / sizeof stored_cases[0] };

/* A matrix; BYTES hold all of it. */
struct stored_matrix {
	struct weight_desc w;
	uint8_t *bytes;
	size_t   size;
};

static inline uint64_t stored_blocks(uint64_t length, uint64_t block) { return block ? (length + block - 1) / block : 1; }

/* A finite half, as scales are. */
static inline uint16_t stored_half(struct random *random)
{
	uint16_t half = (uint16_t)random_u64(random);
	return random_below(random, 50) ? (uint16_t)((half & 0x83ff) | (10 + random_below(random, 6)) << 10) : half & 0x83ff;
}

/* Bytes of halves of BLOCKS that would be NaN or infinite are made finite ones. */
static inline void stored_mend_halves(struct random *random, enum weight_format format, uint8_t *blocks, size_t count, size_t step)
{
	static const struct {
		enum weight_format format;
		unsigned           at, halves;
	} rows[] = {
		{ WEIGHT_F16, 0, 1 }, { WEIGHT_Q8_0, 0, 1 }, { WEIGHT_Q4_0, 0, 1 }, { WEIGHT_Q4_1, 0, 2 },
		{ WEIGHT_Q6_K, 208, 1 }, { WEIGHT_Q5_0, 0, 1 }, { WEIGHT_Q5_1, 0, 2 }, { WEIGHT_Q4_K, 0, 2 },
		{ WEIGHT_Q5_K, 0, 2 }, { WEIGHT_Q2_K, 80, 2 }, { WEIGHT_Q3_K, 108, 1 }, { WEIGHT_IQ4_NL, 0, 1 },
		{ WEIGHT_IQ4_XS, 0, 1 }
	};

	for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
		for (size_t i = 0; i < count && rows[r].format == format; i++)
			for (unsigned h = 0; h < rows[r].halves; h++) {
				uint16_t half = stored_half(random);
				memcpy(blocks + i * step + rows[r].at + 2 * h, &half, 2);
			}
	}
}

static inline struct stored_matrix stored_make(const struct stored_case *c, uint64_t seed)
{
	struct random        random = { seed };
	struct stored_matrix m;
	struct weight_desc   w;
	uint64_t n = (uint64_t)c->rows + c->more_rows, k = (uint64_t)c->columns + c->more_columns, count;
	uint32_t columns = 1, bytes = 1, scale_bytes = c->scale_type == WEIGHT_F32 ? 4 : c->scale_type == WEIGHT_F8_E4M3 ? 1 : 2;
	size_t   at[4];

	memset(&w, 0, sizeof w);
	w.name = "w";
	w.format = c->format;
	w.rows = c->rows;
	w.columns = c->columns;
	if (n != c->rows || k != c->columns) {
		w.stored_rows = n;
		w.stored_columns = k;
		w.first_row = c->first_row;
		w.first_column = c->first_column;
	}
	w.packing = c->packing;
	weight_format_block(c->format, &columns, &bytes);
	w.bytes = k / columns * bytes * n;
	if (c->format == WEIGHT_I4)
		w.bytes = c->packing == WEIGHT_PACKED_AWQ ? k * (n / 8) * 4 : (k + 7) / 8 * n * 4;
	if (weight_format_has_scales(c->format) && !c->unscaled) {
		w.scales.type = c->scale_type;
		w.scales.block_rows = c->block_rows;
		w.scales.block_columns = c->block_columns;
		w.scales.row_blocks = stored_blocks(n, c->block_rows);
		w.scales.column_blocks = stored_blocks(k, c->block_columns);
		w.scales.transposed = c->transposed;
		w.scales.common = c->common;
		w.scales.bytes = w.scales.row_blocks * w.scales.column_blocks * scale_bytes;
	}
	w.zeros.packing = c->zeros;
	w.zeros.add = c->add;
	w.zeros.bytes = c->zeros == WEIGHT_ZEROS_NONE ? 0 : c->zeros == WEIGHT_ZEROS_I8 ? n * w.scales.column_blocks :
	    (n + 7) / 8 * w.scales.column_blocks * 4;
	at[0] = 3; /* odd */
	at[1] = at[0] + w.bytes + 2;
	at[2] = at[1] + w.scales.bytes + 1;
	at[3] = at[2] + w.zeros.bytes + 1;
	m.size = at[3] + 4 * k + 1;
	m.bytes = (uint8_t *)malloc(m.size);
	for (size_t i = 0; i < m.size; i++)
		m.bytes[i] = (uint8_t)random_u64(&random);
	count = w.bytes / bytes;
	stored_mend_halves(&random, c->format, m.bytes + at[0], c->format == WEIGHT_I4 ? 0 : count, bytes);
	for (size_t i = 0; i < count && (c->format == WEIGHT_F32 || c->format == WEIGHT_BF16); i++) {
		float value = random_float(&random) * (i % 7 ? 1 : 1e-3f);
		memcpy(m.bytes + at[0] + i * bytes, (uint8_t *)&value + 4 - bytes, bytes);
	}
	for (size_t i = 0; i < w.bytes && c->format == WEIGHT_F8_E4M3; i++)
		if ((m.bytes[at[0] + i] & 0x7f) == 0x7f)
			m.bytes[at[0] + i] ^= 1;
	for (size_t i = 0; i < w.scales.bytes / scale_bytes; i++) {
		float    value = random_float(&random);
		uint16_t half = stored_half(&random);
		uint8_t  small = (uint8_t)random_below(&random, 0x70);

		memcpy(m.bytes + at[1] + i * scale_bytes, c->scale_type == WEIGHT_F16 ? (uint8_t *)&half : scale_bytes == 1 ? &small :
		    (uint8_t *)&value + 4 - scale_bytes, scale_bytes);
	}
	for (uint64_t i = 0; i < k && c->index; i++) {
		int32_t group = (int32_t)random_below(&random, (uint32_t)w.scales.column_blocks);
		memcpy(m.bytes + at[3] + 4 * i, &group, 4);
	}
	w.data = m.bytes + at[0];
	w.scales.data = w.scales.bytes ? m.bytes + at[1] : NULL;
	w.zeros.data = w.zeros.bytes ? m.bytes + at[2] : NULL;
	w.group_index = c->index ? m.bytes + at[3] : NULL;
	m.w = w;
	return m;
}

/* "Q4_0 3 x 64 of 7 x 160" */
static inline const char *stored_name(const struct stored_case *c, char ret[96])
{
	snprintf(ret, 96, "%s %u x %u of %u x %u, packing %d, zeros %d%s", weight_format_name(c->format), c->rows, c->columns,
	    c->rows + c->more_rows, c->columns + c->more_columns, (int)c->packing, (int)c->zeros, c->index ? ", index" : "");
	return ret;
}

#endif
