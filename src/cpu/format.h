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
 * so that a vector register holds eight or sixteen outputs at one column.  One activation is broadcast against it; no sum ever
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
#include "cpu/cpu_backend.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
	FORMAT_TILE = 32,       /* rows of weights in a tile */
	FORMAT_GROUP_MAX = 32,  /* columns that share a scale */
	FORMAT_ROWS = 8,        /* rows of activations one kernel call handles at most */
	FORMAT_ALIGN = 64,
	FORMAT_PRESCALE = 32,   /* columns after which prescales repeat */
	FORMAT_LIMB_COLUMNS = 32, /* columns of activations in limbs that share a scale */
	FORMAT_LAYOUT_BYTES = 64,
	FORMAT_DOT_HEAD_BYTES = 2 * 4 * FORMAT_TILE, /* see fmt_dot.c */
	FORMAT_DOT_COLUMNS_MAX = 65536
};

/* Activations of up to FORMAT_ROWS rows as kernels read them: column-major with stride 1 (one row) or FORMAT_ROWS. */
struct format_input {
	const float *x;    /* [columns][stride], times prescale[column % 32] */
	const float *sums; /* [groups][stride], sum of the unscaled x of each group; NULL when the format needs none */
	/* Of formats that multiply integers: x is uint8_t [columns / 4][stride][4], the rounded inputs + 128, and sums is
	 * [stride], their scales.  Of kernels that read limbs: x is struct format_limbs [columns / 32][stride], without sums. */
};

/* 32 columns of a row of activations as integers of 24 bits in three signed bytes each, least significant first, times a
 * power of two: x[k] = scale · X[k], X = 65536 · h + 256 · m + l.  A word holds one limb of four columns: of 8s, 8s + 2, 8s +
 * 4, 8s + 6 in words[s][0], of the odd ones in words[s][1].  It takes the place of as many floats.  A scale that is not a
 * number stands for a column that is not finite. */
struct format_limbs {
	int32_t words[FORMAT_LIMB_COLUMNS / 8][2][3];
	float   scale;
	float   high, rest; /* scale · Σ h, and scale · Σ (256 · m + l) */
	float   sum;        /* Σ x */
	float   unused[4];
};

_Static_assert(sizeof(struct format_limbs) == FORMAT_LIMB_COLUMNS * sizeof(float), "limbs take the place of floats");

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
	bool        integers;                   /* multiplies rounded inputs as integers */
	size_t (*tile_bytes)(uint32_t columns);
	/* ROWS[i] is row i of the tile in the file's layout, NULL for a missing row. */
	void (*pack)(uint8_t *tile, const uint8_t *const rows[FORMAT_TILE], uint32_t columns);
	/* Formats with a layout have these instead.  ORDER[k] is the column of the weight that is column k of the tile
	 * (NULL: k); ROWS ≤ FORMAT_TILE rows from FIRST_ROW on, the tile holds zeros before. */
	size_t (*layout_bytes)(const struct format_layout *layout);
	void (*pack_from)(uint8_t *tile, const struct format_layout *layout, const struct weight_desc *w,
	    const uint32_t *order, uint64_t first_row, uint32_t rows);
	void (*expand)(const uint8_t *tile, uint32_t columns, uint32_t group, struct format_group *ret);
	/* Row LANE of the tile as float32, exactly as the file defines it. */
	void (*row)(const uint8_t *tile, uint32_t columns, unsigned lane, float *ret);
	/* By instruction set; NULL: the generic kernel, or not built.  Vector kernels want activations times prescale[column
	 * % 32] (powers of two; NULL = 1): fields are masked out of a word where they stand, which leaves powers of two in
	 * the values. */
	format_linear_function *linear[CPU_ISA_COUNT];
	const float            *prescale;
	bool                    limbs[CPU_ISA_COUNT]; /* by instruction set: the kernel reads struct format_limbs */
};

/* By enum weight_format. */
const struct format *format_find(enum weight_format format);

extern const struct format format_f32, format_f16, format_bf16, format_q8_0, format_q4_0, format_q4_1, format_q6_k,
    format_q5_0, format_q5_1, format_q4_k, format_q5_k, format_q2_k, format_q3_k, format_iq4_nl, format_iq4_xs,
    format_f8_e4m3, format_i8, format_i4;
extern const struct format format_i8_dot; /* I8 again, chosen by weight.c where it can be used */

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

/* Words of eight nibbles: one that is masked out of the word where it stands is 16^(column % 8) times too large, except
 * the highest, which is shifted down.  A power of two moves between factors without changing a bit of their product. */
extern const float format_nibble_prescale[FORMAT_PRESCALE];

/* The plain kernel: any format through its expand(). */
void format_linear_generic(const struct format *format, const uint8_t *tile, uint32_t columns,
    const struct format_input *input, unsigned rows, float out[FORMAT_ROWS][FORMAT_TILE]);

/* What *_simd.c define for FORMAT_SIMD's formats. */
#if defined __x86_64__
#define FORMAT_SIMD(name) { [CPU_ISA_AVX2] = name##_avx2, [CPU_ISA_AVX512] = name##_avx512 }
#define FORMAT_SIMD_DECLARE(name) format_linear_function name##_avx2, name##_avx512
FORMAT_SIMD_DECLARE(format_f32);
FORMAT_SIMD_DECLARE(format_f16);
FORMAT_SIMD_DECLARE(format_bf16);
FORMAT_SIMD_DECLARE(format_q8_0);
FORMAT_SIMD_DECLARE(format_q4_0);
FORMAT_SIMD_DECLARE(format_q4_1);
FORMAT_SIMD_DECLARE(format_q6_k);
FORMAT_SIMD_DECLARE(format_q5_0);
FORMAT_SIMD_DECLARE(format_q5_1);
FORMAT_SIMD_DECLARE(format_q4_k);
FORMAT_SIMD_DECLARE(format_q5_k);
FORMAT_SIMD_DECLARE(format_q2_k);
FORMAT_SIMD_DECLARE(format_q3_k);
FORMAT_SIMD_DECLARE(format_iq4_nl);
FORMAT_SIMD_DECLARE(format_iq4_xs);
FORMAT_SIMD_DECLARE(format_f8_e4m3);
FORMAT_SIMD_DECLARE(format_i8);
FORMAT_SIMD_DECLARE(format_i4);
format_linear_function format_i8_dot_avx512;
#else
#define FORMAT_SIMD(name) { NULL }
#endif

#endif
