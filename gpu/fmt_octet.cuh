/* fmt_octet.cuh: slabs (fmt_int4.cuh) whose codes have eight bits: GGUF's Q8_0, Q5_0, Q5_1, Q5_K and Q6_K.
 *
 * Tiles, units, panels, the ring of a product and the order of its sums are those of four bits; this says what differs.  A code q
 * is a signed byte.  A value is s · q, with s in float16 for 32 columns (Q8_0, Q5_0) or, for 16, the product of a half of the
 * super-block and a signed byte (Q6_K: INT4_SIX), or s · q + o with both as in Q4_1 and Q4_K (Q5_1, Q5_K).
 *
 * Bytes of one word are rows g, g + 8, g, g + 8 (g = lane / 4) of columns 2t, 2t, 2t + 1, 2t + 1 (t = lane % 4); a second one has
 * those eight columns on.  Words [32 columns of the unit][lane][step of 16 columns][second]: a lane loads four at once.
 *
 * q = m − 128 · b, where b is the topmost bit and m the others.  Or-ed into the mantissa of 128 (bfloat16) or 1024 (float16) m and
 * 128 · b are numbers whose difference is q, exactly. */
#ifndef PENSTOCK_GPU_FMT_OCTET_CUH
#define PENSTOCK_GPU_FMT_OCTET_CUH

#include "gpu/fmt_int4.cuh"

enum { OCTET_WORDS = INT4_TILE * INT4_UNIT / 4, OCTET_PAIR_BYTES = INT4_TILE * 32 };

/* ---- Values ---- */

/* Of place PLACE of group GROUP of the unit. */
__device__ static inline void octet_scale_of(const struct int4_slab &w, const uint8_t *scales, uint32_t group, uint32_t place,
    float *s, float *o)
{
	float two[2], offsets[2] = { 0, 0 };

	if (int4_has_offsets(w))
		int4_scales_of<true>(w, scales, group, place & ~1u, two, offsets);
	else
		int4_scales_of<false>(w, scales, group, place & ~1u, two, offsets);
	*s = two[place & 1];
	*o = offsets[place & 1];
}

/* One value, the bits that a reader of the file gets. */
__device__ static inline float octet_value(const struct int4_slab &w, uint32_t row, uint32_t column)
{
	uint32_t at = int4_slab_row(w, row), in_tile = at % INT4_TILE, k = column % INT4_UNIT, lane = in_tile % 8 * 4 + k % 8 / 2;
	struct int4_block block = int4_block_at(w, at / INT4_TILE, column / INT4_UNIT);
	float    q = (float)(int8_t)block.words[k / 32 * OCTET_PAIR_BYTES + lane * 16 + k % 32 / 8 * 4 + k % 2 * 2 + in_tile / 8];
	float    s, o;

	octet_scale_of(w, block.scales, k / w.group, int4_place(in_tile), &s, &o);
	return int4_has_offsets(w) ? s * q + o : s * q; /* before an addition the product is exact: fused or not */
}

/* ---- From stored formats ---- */

/* A stored code in eight bits. */
__device__ static inline uint32_t octet_stored_q(const struct stored_piece &p, uint32_t row, uint32_t column)
{
	const uint32_t k = column % 256, l = column % 32;
	const uint8_t *block;
	uint32_t       q;

	switch (p.format) {
	case WEIGHT_Q8_0: return decode_block(p, row, column, 32, 34)[2 + l];
	case WEIGHT_Q5_0:
	case WEIGHT_Q5_1:
		block = decode_block(p, row, column, 32, p.format == WEIGHT_Q5_0 ? 22 : 24) + (p.format == WEIGHT_Q5_0 ? 2 : 4);
		q = decode_nibble(block + 4, l) | (block[l / 8] >> l % 8 & 1u) << 4;
		return (p.format == WEIGHT_Q5_0 ? q - 16 : q) & 0xff;
	case WEIGHT_Q5_K:
		block = decode_block(p, row, column, 256, 176) + 16;
		return (block[32 + k / 64 * 32 + l] >> k % 64 / 32 * 4 & 0xf) | (block[l] >> k / 32 & 1u) << 4;
	default: /* Q6_K */
		block = decode_block(p, row, column, 256, 210);
		q = block[64 * (k / 128) + k % 64] >> k % 128 / 64 * 4 & 0xf;
		return ((q | (block[128 + 32 * (k / 128) + l] >> k % 128 / 32 * 2 & 3u) << 4) - 32) & 0xff;
	}
}

/* As int4_pack. */
__global__ static void __launch_bounds__(INT4_PACK_THREADS) octet_pack(const struct int4_slab slab, const struct stored_piece p,
    uint32_t first_unit, uint32_t first_tile)
{
	uint32_t tile = first_tile + blockIdx.y, unit = first_unit + blockIdx.x;
	struct int4_block block = int4_block_at(slab, tile, unit);

	for (uint32_t i = threadIdx.x; i < OCTET_WORDS; i += INT4_PACK_THREADS) {
		uint32_t lane = i % 128 / 4, word = 0;

#pragma unroll 1
		for (uint32_t byte = 0; byte < 4; byte++) {
			uint32_t row = int4_stack_row(slab, tile * INT4_TILE + lane / 4 + byte % 2 * 8) - p.stack_row;
			uint32_t column = unit * INT4_UNIT + i / 128 * 32 + i % 4 * 8 + lane % 4 * 2 + byte / 2;

			if (column < slab.columns && row - p.first_row < p.rows && column - p.first_column < p.columns)
				word |= octet_stored_q(p, p.corner_row + row, p.corner_column + column) << 8 * byte;
		}
		((uint32_t *)block.words)[i] |= word;
	}
	if (threadIdx.x < INT4_TILE * (INT4_UNIT / slab.group)) {
		uint32_t group = threadIdx.x / INT4_TILE;
		uint32_t row = int4_stack_row(slab, tile * INT4_TILE + threadIdx.x % INT4_TILE) - p.stack_row;
		uint32_t column = unit * INT4_UNIT + group * slab.group;

		if (column < slab.columns && row - p.first_row < p.rows && column - p.first_column < p.columns)
			int4_pack_scale(slab, p, p.corner_row + row, p.corner_column + column, block, group,
			    int4_place(threadIdx.x % INT4_TILE));
	}
}

/* ---- Decoding ---- */

/* As int4_decode, with its grid. */
template <class T> __global__ void __launch_bounds__(INT4_DECODE_THREADS) octet_decode(const struct int4_slab w, uint32_t first,
    uint32_t rows, T *to, uint32_t stride)
{
	constexpr uint32_t COLUMNS = 8, PACKS = INT4_UNIT / COLUMNS;
	static_assert(INT4_TILE * PACKS == INT4_DECODE_THREADS);
	struct alignas(16) eight {
		T v[COLUMNS];
	};
	__shared__ struct int4_strip strips[2];
	const uint32_t units = int4_units(w), unit = blockIdx.x * INT4_DECODE_UNITS;
	const uint32_t at = threadIdx.x % PACKS * COLUMNS, row = blockIdx.y * INT4_TILE + threadIdx.x / PACKS;

	if (threadIdx.x < 2) /* divisions are slow */
		strips[threadIdx.x] = int4_strip_of(w, first + blockIdx.y * INT4_TILE + 8 * threadIdx.x, unit);
	__syncthreads();
	const struct int4_strip &strip = strips[row / 8 % 2];
	const uint32_t in_tile = row % 8 + 8 * strip.second;

	if (row >= rows)
		return;
	for (uint32_t u = 0; u < INT4_DECODE_UNITS && unit + u < units; u++) {
		struct int4_block block = int4_block_in(w, strip.at(u));
		const uint8_t    *codes = block.words + at / 32 * OCTET_PAIR_BYTES + in_tile % 8 * 64 + at % 32 / 8 * 4 + in_tile / 8;
		uint32_t          column = (unit + u) * INT4_UNIT + at;
		float             s, o;
		struct eight      out;

		if (column >= stride)
			return;
		octet_scale_of(w, block.scales, at / w.group, int4_place(in_tile), &s, &o);
#pragma unroll
		for (uint32_t i = 0; i < COLUMNS; i++) {
			float q = (float)(int8_t)codes[i / 2 * 16 + i % 2 * 2], value = int4_has_offsets(w) ? s * q + o : s * q;

			out.v[i] = from_float<T>(column + i < w.columns ? value : 0);
		}
		if constexpr (sizeof out == 16)
			*(struct eight *)(to + (size_t)row * stride + column) = out;
		else
			for (uint32_t i = 0; i < COLUMNS; i++)
				to[(size_t)row * stride + column + i] = out.v[i];
	}
}

/* ---- Products ---- */

/* Two codes, each in the lower byte of a half, as exact integers. */
template <class T> __device__ static inline uint32_t octet_pair(uint32_t codes)
{
	const uint32_t base = int4_type<T>::base * 0x10001;

	return int4_subtract<T>(lop3<0xea>(codes, 0x007f007f, base), lop3<0xea>(codes, 0x00800080, base));
}

/* Of places PLACE and PLACE + 1 in group GROUP of the unit: 16 columns are Q6_K's, 32 those of one half or, with OFFSETS, any. */
template <int GROUP, bool OFFSETS> __device__ static inline void octet_scales_of(const struct int4_slab &w, const uint8_t *scales,
    uint32_t group, uint32_t place, float s[2], float o[2])
{
	const uint32_t at = group * INT4_TILE + place;

	if constexpr (OFFSETS) {
		int4_scales_of<true>(w, scales, group, place, s, o);
	} else {
		uint32_t halves = *(const uint32_t *)(scales + 2 * (GROUP == 16 ? place : at));

		s[0] = int4_from_half(halves);
		s[1] = int4_from_half(halves >> 16);
		if constexpr (GROUP == 16) {
			uint32_t bytes = *(const uint16_t *)(scales + 2 * INT4_TILE + at);

			s[0] *= (float)(int8_t)bytes;
			s[1] *= (float)(int8_t)(bytes >> 8);
		}
	}
}

/* As int4_unit; GROUP is 16 or 32. */
template <class T, int ROWS, int COUNT, int GROUP, bool OFFSETS> __device__ static inline void octet_unit(const struct int4_task &t,
    const uint8_t *unit, const uint32_t *block, auto x, uint32_t lane, float (*sums)[int4_eights<ROWS>][4])
{
	constexpr int  TILES = int4_eights<ROWS>;
	[[maybe_unused]] constexpr int UNROLL = TILES == 1 ? 2 : 1; /* as registers allow */
	const uint32_t ones[4] = { int4_type<T>::one * 0x10001, int4_type<T>::one * 0x10001, int4_type<T>::one * 0x10001,
		int4_type<T>::one * 0x10001 };
	const uint32_t place = lane / 4 * 2;
#pragma unroll UNROLL
	for (int at = 0; at < INT4_UNIT / 32; at++) {
		float    of_group[COUNT][TILES][4], of_inputs[OFFSETS ? TILES : 1][4];
		uint32_t b[2][TILES][2], a[4];
		uint4    codes[COUNT];

#pragma unroll
		for (int r = 0; r < COUNT; r++)
			codes[r] = *(const uint4 *)(unit + block[r] + at * OCTET_PAIR_BYTES + lane * 16);
		int4_load<ROWS>(x, lane, at, b);
#pragma unroll
		for (int step = 0; step < 2; step++) {
			const bool begins = GROUP == 16 || step == 0, ends = GROUP == 16 || step == 1;

#pragma unroll
			for (int r = 0; r < COUNT; r++) {
				const uint32_t low = step ? codes[r].z : codes[r].x, high = step ? codes[r].w : codes[r].y;

				a[0] = octet_pair<T>(low);
				a[1] = octet_pair<T>(low >> 8);
				a[2] = octet_pair<T>(high);
				a[3] = octet_pair<T>(high >> 8);
#pragma unroll
				for (int j = 0; j < TILES; j++) {
#pragma unroll
					for (int h = 0; h < 4 && begins; h++)
						of_group[r][j][h] = 0;
					mma_m16n8k16<T>(of_group[r][j], a, b[step][j]);
				}
			}
			if (OFFSETS) {
#pragma unroll
				for (int j = 0; j < TILES; j++) {
#pragma unroll
					for (int h = 0; h < 4 && begins; h++)
						of_inputs[OFFSETS ? j : 0][h] = 0;
					mma_m16n8k16<T>(of_inputs[OFFSETS ? j : 0], ones, b[step][j]);
				}
			}
#pragma unroll
			for (int r = 0; r < COUNT && ends; r++) {
				const uint32_t group = (uint32_t)(GROUP == 16 ? 2 * at + step : at);
				float          s[2], o[2];

				octet_scales_of<GROUP, OFFSETS>(t.w, unit + block[r] + 2 * INT4_WORDS_BYTES, group, place, s, o);
				int4_add_group<TILES, OFFSETS>(s, of_group[r], o, of_inputs, sums[r]);
			}
		}
	}
}

/* LAUNCH(kernel, rows of a block) for the instance that multiplies T. */
template <class T, int ROWS, class L> static inline auto octet_instance_of(const struct int4_task &t, L launch)
{
	if (int4_has_offsets(t.w))
		return launch(int4_multiply<T, ROWS, 2, 32, true, true>, (uint32_t)ROWS);
	return t.w.scales == INT4_SIX ? launch(int4_multiply<T, ROWS, 2, 16, false, true>, (uint32_t)ROWS) :
	    launch(int4_multiply<T, ROWS, 2, 32, false, true>, (uint32_t)ROWS);
}
template <class T, class L> static inline auto octet_instance(const struct int4_task &t, L launch)
{
	if (t.rows > 16 && !int4_has_offsets(t.w) && t.w.scales != INT4_SIX)
		return launch(int4_multiply<T, 32, 2, 32, false, true>, 32u);
	if (t.rows == 1)
		return octet_instance_of<T, 1>(t, launch);
	return t.rows <= 8 ? octet_instance_of<T, 8>(t, launch) : octet_instance_of<T, 16>(t, launch);
}

#endif
