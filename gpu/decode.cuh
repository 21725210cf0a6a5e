/* decode.cuh: stored matrices, as files have them, to rows of the backend's type, on the device.
 *
 * A value is computed with the operations, and in the order, of weight_read_row and blocks.c (multiplications and additions
 * that must not become one are marked), then rounded once: so that weights have the same bits whoever decodes them.
 *
 * A thread makes PACK columns of a row.  Neighbours take what lies together in the file: the next columns, or, of int4 that is
 * stored transposed, the next rows. */
#ifndef PENSTOCK_GPU_DECODE_CUH
#define PENSTOCK_GPU_DECODE_CUH

#include "gpu/convert.cuh"
#include "gpu/stored.h"

enum { DECODE_THREADS = 256, DECODE_PACK = 8 };

/* ---- Numbers ---- */

__device__ static inline uint32_t decode_u16(const uint8_t *at) { return *(const uint16_t *)at; }
__device__ static inline uint32_t decode_u32(const uint8_t *at) { return *(const uint32_t *)at; }
__device__ static inline float decode_bits(uint32_t bits) { return __uint_as_float(bits); }
__device__ static inline float decode_f16(const uint8_t *at) { return __half2float(*(const __half *)at); }
__device__ static inline float decode_bf16(const uint8_t *at) { return decode_bits(decode_u16(at) << 16); }

__device__ static inline float decode_e4m3(uint32_t byte)
{
	uint32_t sign = (byte & 0x80) << 24, exponent = byte >> 3 & 0xf, fraction = byte & 7;

	if ((byte & 0x7f) == 0x7f)
		return decode_bits(sign | 0x7fc00000);
	if (exponent)
		return decode_bits(sign | (exponent + 120) << 23 | fraction << 20);
	return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-9f;
}

/* 0, ½, 1, 1½, 2, 3, 4, 6, and the same negative. */
__device__ static inline float decode_e2m1(uint32_t nibble)
{
	float size = (float)(0xc8643210u >> 4 * (nibble & 7) & 0xf) * 0.5f;
	return nibble & 8 ? -size : size;
}

/* What the indices of IQ4_NL and IQ4_XS mean: −127, −104, −83, −65, −49, −35, −22, −10, 1, 13, 25, 38, 53, 69, 89, 113. */
__device__ static inline float decode_iq4(uint32_t index)
{
	uint64_t half = index < 8 ? UINT64_C(0xf6eaddcfbfad9881) : UINT64_C(0x7159453526190d01);
	return (float)(int8_t)(half >> 8 * (index & 7));
}

/* ---- Blocks of GGUF: the value of column K of one ---- */

/* Nibble of column K of 32: low halves first. */
__device__ static inline uint32_t decode_nibble(const uint8_t *nibbles, uint32_t k)
{
	return k < 16 ? nibbles[k] & 0xf : nibbles[k - 16] >> 4;
}

/* Q2_K and Q3_K. */
__device__ static inline uint32_t decode_pair(const uint8_t *pairs, uint32_t k)
{
	return pairs[32 * (k / 128) + k % 32] >> 2 * (k % 128 / 32) & 3;
}

__device__ static inline float decode_q4(const uint8_t *block, uint32_t k, bool minimum)
{
	float d = decode_f16(block), q = (float)decode_nibble(block + (minimum ? 4 : 2), k);
	return minimum ? __fadd_rn(__fmul_rn(d, q), decode_f16(block + 2)) : d * (q - 8);
}

__device__ static inline float decode_q5(const uint8_t *block, uint32_t k, bool minimum)
{
	const uint8_t *bits = block + (minimum ? 4 : 2);
	float          d = decode_f16(block), q = (float)(decode_nibble(bits + 4, k) | (uint32_t)(bits[k / 8] >> k % 8 & 1) << 4);

	return minimum ? __fadd_rn(__fmul_rn(d, q), decode_f16(block + 2)) : d * (q - 16);
}

__device__ static inline float decode_q2_k(const uint8_t *block, uint32_t k)
{
	float scale = decode_f16(block + 80) * (float)(block[k / 16] & 0xf);
	float offset = decode_f16(block + 82) * (float)(block[k / 16] >> 4);

	return __fadd_rn(__fmul_rn(scale, (float)decode_pair(block + 16, k)), -offset);
}

__device__ static inline float decode_q3_k(const uint8_t *block, uint32_t k)
{
	const uint8_t *scales = block + 96;
	uint32_t       group = k / 16, low = group < 8 ? scales[group] & 0xf : scales[group - 8] >> 4;
	int32_t        s = (int32_t)(low | (scales[8 + group % 4] >> 2 * (group / 4) & 3u) << 4) - 32;
	int32_t        q = (int32_t)(decode_pair(block + 32, k) | (block[k % 32] >> k / 32 & 1u) << 2) - 4;

	return decode_f16(block + 108) * (float)s * (float)q;
}

/* Q4_K, and with fifth bits Q5_K. */
__device__ static inline float decode_q45_k(const uint8_t *block, uint32_t k, bool fifth)
{
	const uint8_t *scales = block + 4, *bits = block + 16, *nibbles = bits + (fifth ? 32 : 0);
	uint32_t       g = k / 32, l = k % 32, s, m, q = nibbles[32 * (g / 2) + l] >> 4 * (g % 2) & 0xf;
	float          scale, offset;

	if (g < 4) {
		s = scales[g] & 0x3f;
		m = scales[g + 4] & 0x3f;
	} else {
		s = (scales[g + 4] & 0xf) | scales[g - 4] >> 6 << 4;
		m = scales[g + 4] >> 4 | scales[g] >> 6 << 4;
	}
	if (fifth)
		q |= (bits[l] >> g & 1u) << 4;
	scale = decode_f16(block) * (float)s;
	offset = decode_f16(block + 2) * (float)m;
	return __fadd_rn(__fmul_rn(scale, (float)q), -offset);
}

__device__ static inline float decode_q6_k(const uint8_t *block, uint32_t k)
{
	uint32_t half = k / 128, c = k % 128 / 32, l = k % 32;
	uint32_t q = (block[64 * half + l + 32 * (c % 2)] >> (c < 2 ? 0 : 4) & 0xf) | (block[128 + 32 * half + l] >> 2 * c & 3u) << 4;

	return decode_f16(block + 208) * (float)(int8_t)block[192 + k / 16] * (float)((int32_t)q - 32);
}

__device__ static inline float decode_iq4_xs(const uint8_t *block, uint32_t k)
{
	uint32_t g = k / 32;
	int32_t  s = (int32_t)((block[4 + g / 2] >> 4 * (g % 2) & 0xf) | (decode_u16(block + 2) >> 2 * g & 3) << 4) - 32;

	return decode_f16(block) * (float)s * decode_iq4(decode_nibble(block + 8 + 16 * g, k % 32));
}

/* ---- Scales and zero points ---- */

/* The group whose scale and zero point a stored column has. */
__device__ static inline uint32_t decode_group(const struct stored_piece &p, uint32_t column)
{
	if (p.index)
		return decode_u32(p.index + 4 * (size_t)column);
	return p.scale_block_columns ? column / p.scale_block_columns : 0;
}

/* Its number among the scales. */
__device__ static inline size_t decode_scale_at(const struct stored_piece &p, uint32_t row, uint32_t group)
{
	size_t block = p.scale_block_rows ? row / p.scale_block_rows : 0;

	return p.scales_transposed ? (size_t)group * p.scale_row_blocks + block : block * p.scale_column_blocks + group;
}

__device__ static inline float decode_scale(const struct stored_piece &p, uint32_t row, uint32_t group)
{
	size_t at = decode_scale_at(p, row, group);
	float  scale;

	if (!p.scales)
		return 1;
	switch (p.scale_type) {
	case WEIGHT_F16: scale = decode_f16(p.scales + 2 * at); break;
	case WEIGHT_BF16: scale = decode_bf16(p.scales + 2 * at); break;
	case WEIGHT_F8_E4M3: scale = decode_e4m3(p.scales[at]); break;
	default: scale = decode_bits(decode_u32(p.scales + 4 * at));
	}
	return p.scale_common > 0 ? scale * p.scale_common : scale;
}

/* Where in its word AWQ puts row 8j + r. */
__device__ static inline uint32_t decode_awq_shift(uint32_t r) { return 4 * (0x73625140u >> 4 * (r % 8) & 0xf); }

__device__ static inline uint32_t decode_zero(const struct stored_piece &p, uint32_t row, uint32_t group)
{
	size_t   words = (p.stored_rows + 7) / 8, groups = p.scale_column_blocks;
	uint32_t value;

	switch (p.zero_packing) {
	case WEIGHT_ZEROS_ROWS: value = decode_u32(p.zeros + 4 * (row / 8 * groups + group)) >> 4 * (row % 8); break;
	case WEIGHT_ZEROS_GPTQ: value = decode_u32(p.zeros + 4 * (group * words + row / 8)) >> 4 * (row % 8); break;
	case WEIGHT_ZEROS_AWQ: value = decode_u32(p.zeros + 4 * (group * words + row / 8)) >> decode_awq_shift(row); break;
	case WEIGHT_ZEROS_I8: value = p.zeros[row * groups + group] + 8u; break;
	default: return 8;
	}
	return (value + p.zero_add) & 0xf;
}

/* ---- Values ---- */

/* q of WEIGHT_I4 at a stored row and column. */
__device__ static inline uint32_t decode_int4(const struct stored_piece &p, uint32_t row, uint32_t column)
{
	switch (p.packing) {
	case WEIGHT_PACKED_GPTQ:
		return decode_u32(p.values + (column / 8 - p.first_line) * p.pitch + 4 * (size_t)(row - p.first_unit)) >>
		    4 * (column % 8) & 0xf;
	case WEIGHT_PACKED_AWQ:
		return decode_u32(p.values + (column - p.first_line) * p.pitch + 4 * (size_t)(row / 8 - p.first_unit)) >>
		    decode_awq_shift(row) & 0xf;
	default:
		return decode_u32(p.values + (row - p.first_line) * p.pitch + 4 * (size_t)(column / 8 - p.first_unit)) >>
		    4 * (column % 8) & 0xf;
	}
}

/* A block of BYTES for COLUMNS; the column that is wanted in it is column % COLUMNS. */
__device__ static inline const uint8_t *decode_block(const struct stored_piece &p, uint32_t row, uint32_t column, uint32_t columns,
    uint32_t bytes)
{
	return p.values + (row - p.first_line) * p.pitch + (size_t)(column / columns - p.first_unit) * bytes;
}

/* The value at a stored row and column; SCALE and ZERO are those of its group, where the format has any. */
__device__ static inline float decode_value(const struct stored_piece &p, uint32_t row, uint32_t column, float scale, uint32_t zero)
{
	switch (p.format) {
	case WEIGHT_F32: return decode_bits(decode_u32(decode_block(p, row, column, 1, 4)));
	case WEIGHT_F16: return decode_f16(decode_block(p, row, column, 1, 2));
	case WEIGHT_BF16: return decode_bf16(decode_block(p, row, column, 1, 2));
	case WEIGHT_F8_E4M3: return decode_e4m3(*decode_block(p, row, column, 1, 1)) * scale;
	case WEIGHT_I8: return (float)(int8_t)*decode_block(p, row, column, 1, 1) * scale;
	case WEIGHT_F4_E2M1: return decode_e2m1(*decode_block(p, row, column, 2, 1) >> 4 * (column % 2) & 0xf) * scale;
	case WEIGHT_I4: return ((float)decode_int4(p, row, column) - (float)zero) * scale;
	case WEIGHT_Q8_0: {
		const uint8_t *block = decode_block(p, row, column, 32, 34);
		return decode_f16(block) * (float)(int8_t)block[2 + column % 32];
	}
	case WEIGHT_Q4_0: return decode_q4(decode_block(p, row, column, 32, 18), column % 32, false);
	case WEIGHT_Q4_1: return decode_q4(decode_block(p, row, column, 32, 20), column % 32, true);
	case WEIGHT_Q5_0: return decode_q5(decode_block(p, row, column, 32, 22), column % 32, false);
	case WEIGHT_Q5_1: return decode_q5(decode_block(p, row, column, 32, 24), column % 32, true);
	case WEIGHT_IQ4_NL: {
		const uint8_t *block = decode_block(p, row, column, 32, 18);
		return decode_f16(block) * decode_iq4(decode_nibble(block + 2, column % 32));
	}
	case WEIGHT_Q2_K: return decode_q2_k(decode_block(p, row, column, 256, 84), column % 256);
	case WEIGHT_Q3_K: return decode_q3_k(decode_block(p, row, column, 256, 110), column % 256);
	case WEIGHT_Q4_K: return decode_q45_k(decode_block(p, row, column, 256, 144), column % 256, false);
	case WEIGHT_Q5_K: return decode_q45_k(decode_block(p, row, column, 256, 176), column % 256, true);
	case WEIGHT_Q6_K: return decode_q6_k(decode_block(p, row, column, 256, 210), column % 256);
	case WEIGHT_IQ4_XS: return decode_iq4_xs(decode_block(p, row, column, 256, 136), column % 256);
	default: return 0;
	}
}

__device__ static inline bool decode_is_scaled(enum weight_format format)
{
	return format == WEIGHT_F8_E4M3 || format == WEIGHT_I8 || format == WEIGHT_I4 || format == WEIGHT_F4_E2M1;
}

/* ---- The kernel ---- */

template <class T> struct alignas(16) decode_pack {
	T v[DECODE_PACK];
};

/* Packs of the piece: blocks of the grid are DECODE_THREADS of them. */
__host__ __device__ static inline uint64_t decode_packs(const struct stored_piece &p)
{
	return (uint64_t)p.rows * ((p.columns + DECODE_PACK - 1) / DECODE_PACK);
}

/* The piece, whose first column is a multiple of DECODE_PACK, to its rows of TO [rows of the stack][STRIDE]; behind the last
 * column of the window zeroes up to STRIDE, which is its next multiple of DECODE_PACK. */
template <class T> __global__ void __launch_bounds__(DECODE_THREADS) decode_kernel(struct stored_piece p, T *to, uint32_t stride)
{
	uint64_t       at = (uint64_t)blockIdx.x * DECODE_THREADS + threadIdx.x;
	uint32_t       packs = (p.columns + DECODE_PACK - 1) / DECODE_PACK, row, first, group = UINT32_MAX, zero = 0;
	bool           scaled = decode_is_scaled(p.format);
	float          scale = 1;
	decode_pack<T> out;

	if (at >= (uint64_t)p.rows * packs)
		return;
	if (p.format == WEIGHT_I4 && p.packing != WEIGHT_PACKED_COLUMNS) {
		row = (uint32_t)(at % p.rows);
		first = (uint32_t)(at / p.rows) * DECODE_PACK;
	} else {
		row = (uint32_t)(at / packs);
		first = (uint32_t)(at % packs) * DECODE_PACK;
	}
	for (uint32_t i = 0; i < DECODE_PACK; i++) {
		uint32_t stored_row = p.corner_row + p.first_row + row, column = p.corner_column + p.first_column + first + i;

		if (first + i >= p.columns) {
			out.v[i] = from_float<T>(0);
			continue;
		}
		if (scaled && decode_group(p, column) != group) {
			group = decode_group(p, column);
			scale = decode_scale(p, stored_row, group);
			zero = p.format == WEIGHT_I4 ? decode_zero(p, stored_row, group) : 0;
		}
		out.v[i] = from_float<T>(decode_value(p, stored_row, column, scale, zero));
	}
	*(decode_pack<T> *)(to + (size_t)(p.stack_row + p.first_row + row) * stride + p.first_column + first) = out;
}

#endif
