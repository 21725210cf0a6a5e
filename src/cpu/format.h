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

#include "base/floats.h"
#include "model/backend.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
	FORMAT_TILE = 32,       /* rows of weights in a tile */
	FORMAT_GROUP_MAX = 32,  /* columns that share a scale */
	FORMAT_ROWS = 8,        /* rows of activations one kernel call handles at most */
	FORMAT_ALIGN = 64,
	FORMAT_PRESCALE = 32,   /* columns after which prescales repeat */
	FORMAT_LAYOUT_BYTES = 64
};

/* Activations of up to FORMAT_ROWS rows as kernels read them: column-major with stride 1 (one row) or FORMAT_ROWS. */
struct format_input {
	const float *x;    /* [columns][stride], times prescale[column % 32] */
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

/* Quantised checkpoints choose how many columns share a scale, so tiles of their formats begin with this, in
 * FORMAT_LAYOUT_BYTES. */
struct format_layout {
	uint64_t tile_bytes;
	uint32_t columns;    /* of the tile, padded with zeros to a multiple of 32 */
	uint32_t group;      /* columns that share a scale, a multiple of 32; the last group may be shorter */
	uint32_t scale_type; /* enum weight_format of the scales */
	uint32_t zeros;      /* 1: there are zero points; 0: all are the format's middle */
};

static inline struct format_layout format_layout_of(const uint8_t *tile)
{
	struct format_layout layout;
	memcpy(&layout, tile, sizeof layout);
	return layout;
}

/* Bytes of scales and zero points before a group of I4. */
static inline uint32_t format_i4_head_bytes(const struct format_layout *layout)
{
	return FORMAT_TILE * ((layout->scale_type == WEIGHT_F32 ? 4 : 2) + layout->zeros);
}

/* A stored format.  A new one is a file fmt_NAME.c with such a table, and its line in format.c. */
struct format {
	const char *name;
	uint16_t    block_columns, block_bytes; /* of the file: 32 weights in 20 bytes */
	uint16_t    group;                      /* columns that share a scale after re-packing */
	bool        scaled;                     /* groups have scale and offset; else weight = q */
	size_t (*tile_bytes)(uint32_t columns);
	/* ROWS[i] is row i of the tile in the file's layout, NULL for a missing row. */
	void (*pack)(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns);
	/* Formats with a layout have these instead.  ORDER[k] is the column of the weight that is column k of the tile (NULL:
	 * k); ROWS ≤ FORMAT_TILE rows from FIRST_ROW on, the tile holds zeros before. */
	size_t (*layout_bytes)(const struct format_layout *layout);
	void (*pack_from)(uint8_t *tile, const struct format_layout *layout, const struct weight_desc *w, const uint32_t *order,
	    uint64_t first_row, uint32_t rows);
	void (*expand)(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret);
	/* Row LANE of the tile as float32, exactly as the file defines it. */
	void (*row)(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret);
	/* AVX2 + FMA + F16C; NULL where not built.  It wants activations times avx2_prescale[column % 32] (powers of two;
	 * NULL = 1): fields are masked out of a word where they stand, which leaves powers of two in the values. */
	format_linear_function *avx2_linear;
	const float            *avx2_prescale;
};

/* By enum weight_format. */
const struct format *format_find(enum weight_format format);

extern const struct format format_f32, format_f16, format_bf16, format_q8_0, format_q4_0, format_q4_1, format_q6_k,
    format_q5_0, format_q5_1, format_q4_k, format_q5_k, format_q2_k, format_q3_k, format_iq4_nl, format_iq4_xs,
    format_f8_e4m3, format_i8, format_i4;

/* The half, or the word, of row LANE in an array of them. */
static inline float format_half_at(const uint8_t *halves, unsigned lane)
{
	uint16_t half;
	memcpy(&half, halves + 2 * lane, 2);
	return floats_from_half(half);
}

static inline uint32_t format_word_at(const uint8_t *words, unsigned a, unsigned lane)
{
	uint32_t word;
	memcpy(&word, words + (a * FORMAT_TILE + lane) * 4, 4);
	return word;
}

/* Words of eight nibbles: a nibble that is masked out of its half of the word where it stands is 16^(column % 4) times too
 * large.  A power of two moves between factors without changing a bit of their product. */
extern const float format_nibble_prescale[FORMAT_PRESCALE];

/* s and m of group GROUP < 8 from the twelve bytes of Q4_K and Q5_K. */
void format_k_scales(const uint8_t *scales, unsigned group, uint8_t *ret_scale, uint8_t *ret_minimum);

/* What the indices of IQ4_NL and IQ4_XS mean. */
extern const int8_t format_iq4_values[16];

/* The plain kernel: any format through its expand(). */
void format_linear_generic(const struct format *format, const uint8_t *tile, uint32_t columns,
    const struct format_input *input, unsigned rows, float out[FORMAT_ROWS][FORMAT_TILE]);

#if defined __x86_64__
#define FORMAT_AVX2(name) name
format_linear_function format_f32_avx2, format_f16_avx2, format_bf16_avx2, format_q8_0_avx2, format_q4_0_avx2,
    format_q4_1_avx2, format_q6_k_avx2, format_f8_e4m3_avx2, format_i8_avx2, format_i4_avx2, format_q5_0_avx2,
    format_q5_1_avx2, format_q4_k_avx2, format_q5_k_avx2, format_q2_k_avx2, format_q3_k_avx2, format_iq4_nl_avx2,
    format_iq4_xs_avx2;
#else
#define FORMAT_AVX2(name) NULL
#endif

#endif
