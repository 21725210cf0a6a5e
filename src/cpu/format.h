/* format.h: stored weight formats of the CPU backend: how each is re-packed, read and multiplied.
 *
 * Re-packed layout.  A weight [rows N, columns K] becomes tiles of 32 rows.  Inside a tile the columns come in groups
 * (32, for Q6_K 16), and inside a group the values of the 32 rows lie beside each other:
 *
 *      tile 0: rows 0…31                tile 1: rows 32…63
 *      ┌─────────┬─────────┬───┬──────┐ ┌─────────┬──
 *      │ group 0 │ group 1 │ … │      │ │ group 0 │ …        group = [scales of 32 rows | values, lane = row]
 *      └─────────┴─────────┴───┴──────┘ └─────────┴──
 *
 * so that one vector register holds eight outputs at one column.  One activation is broadcast against it; no sum ever
 * crosses lanes; a weight is decoded once for all (up to eight) rows of activations; and memory is read strictly
 * forward.  Missing rows of the last tile are zero.
 *
 * Order of a sum, the same for 1 row or 8, whatever the batch:
 *
 *      group:  a = Σ q[k] · x[k], k ascending, from 0        y = y + scale · a (+ offset · Σ x[k])
 *
 * with groups ascending.  The file's bits per weight are kept; the scales too, so a value decodes to what the file
 * means.
 */
#ifndef PENSTOCK_CPU_FORMAT_H
#define PENSTOCK_CPU_FORMAT_H

#include "model/backend.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	FORMAT_TILE = 32,       /* rows of weights in a tile */
	FORMAT_GROUP_MAX = 32,  /* columns that share a scale */
	FORMAT_ROWS = 8,        /* rows of activations one kernel call handles at most */
	FORMAT_ALIGN = 64
};

/* Activations of up to FORMAT_ROWS rows as kernels read them: column-major with stride 1 (one row) or FORMAT_ROWS. */
struct format_input {
	const float *x;    /* [columns][stride], times prescale[column % 16] */
	const float *sums; /* [groups][stride], sum of the unscaled x of each group; NULL when the format needs none */
};

/* out[r][i] = row (32 · tile + i) of the weight times activation row r, r < ROWS ≤ FORMAT_ROWS. */
typedef void format_linear_function(const uint8_t *tile, uint32_t columns, const struct format_input *input,
    unsigned rows, float out[FORMAT_ROWS][FORMAT_TILE]);

/* One group of a tile in plain numbers: weight = scale · q + offset. */
struct format_group {
	float q[FORMAT_GROUP_MAX][FORMAT_TILE];
	float scale[FORMAT_TILE], offset[FORMAT_TILE];
};

/* A stored format.  A new one is a file fmt_NAME.c with such a table, and its line in format.c. */
struct format {
	const char *name;
	uint16_t    block_columns, block_bytes; /* of the file: 32 weights in 20 bytes */
	uint16_t    group;                      /* columns that share a scale after re-packing */
	bool        scaled;                     /* groups have scale and offset; else weight = q */
	size_t (*tile_bytes)(uint32_t columns);
	/* ROWS[i] is row i of the tile in the file's layout, NULL for a missing row. */
	void (*pack)(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns);
	void (*expand)(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret);
	/* Row LANE of the tile as float32, exactly as the file defines it. */
	void (*row)(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret);
	/* AVX2 + FMA + F16C; NULL where not built.  It wants activations times avx2_prescale[column % 16] (powers of two;
	 * NULL = 1): fields are masked out of a word where they stand, which leaves powers of two in the values. */
	format_linear_function *avx2_linear;
	const float            *avx2_prescale;
};

/* By enum weight_format. */
const struct format *format_find(enum weight_format format);

extern const struct format format_f32, format_f16, format_bf16, format_q8_0, format_q4_0, format_q4_1, format_q6_k;

/* Half precision and bfloat16 in plain C. */
float format_half_to_float(uint16_t half);
static inline float format_bfloat_to_float(uint16_t bits)
{
	union { uint32_t u; float f; } value = { .u = (uint32_t)bits << 16 };
	return value.f;
}

/* The plain kernel: any format through its expand(). */
void format_linear_generic(const struct format *format, const uint8_t *tile, uint32_t columns,
    const struct format_input *input, unsigned rows, float out[FORMAT_ROWS][FORMAT_TILE]);

#if defined __x86_64__
#define FORMAT_AVX2(name) name
format_linear_function format_f32_avx2, format_f16_avx2, format_bf16_avx2, format_q8_0_avx2, format_q4_0_avx2,
    format_q4_1_avx2, format_q6_k_avx2;
#else
#define FORMAT_AVX2(name) NULL
#endif

#endif
