/* attention_byte.cuh: what a warp does to a tile of keys and values of one byte: addresses, fragments, products.
 *
 * Tiles in shared memory are [64 tokens][DIM] bytes; the 16-byte chunks of a row are swapped (byte_tile_at).  To ldmatrix two
 * bytes are an element of 16 bits; what it gives a lane becomes pairs of T in registers, exactly but for a power of two, by a few
 * operations on whole words.  Which columns an operand has is free as long as both have the same:
 *
 *      q kᵀ   step c, lane 4g + t: dimensions 16c + 4t, … + 3 of token g, those of bytes 0 and 2 before 1 and 3: load_query_bytes
 *             gives q the same order
 *      p v    transposed, lane 4g + t: dimensions 16c + 2g and 16c + 2g + 1 of tokens 2t and 2t + 1: column g of sum 2c is the
 *             first of these, that of sum 2c + 1 the other
 *
 * The scale of a key belongs to a column of scores, that of a value to a column of weights; the powers of two go with them. */
#ifndef PENSTOCK_GPU_ATTENTION_BYTE_CUH
#define PENSTOCK_GPU_ATTENTION_BYTE_CUH

#include "gpu/attention_tile.cuh"

/* Elements of pages: T itself, or one of these. */
struct kv_f8 {
	uint8_t bits; /* e4m3 without NaN */
};
struct kv_i8 {
	uint8_t bits;
};

template <class E> constexpr bool kv_is_byte = sizeof(E) == 1;

/* ---- Numbers ---- */

template <class T> __device__ static inline float kv_value(T x) { return to_float(x); }
template <> __device__ inline float kv_value<kv_i8>(kv_i8 x) { return (float)(int8_t)x.bits; }
/* The bits of e4m3 as those of a float32 are the value times 2⁻¹²⁰. */
template <> __device__ inline float kv_value<kv_f8>(kv_f8 x)
{
	return __uint_as_float((uint32_t)(x.bits & 0x80) << 24 | (uint32_t)(x.bits & 0x7f) << 20) * 0x1p120f;
}

/* Two elements in a word. */
template <class P> __device__ static inline uint32_t pair_bits(P pair)
{
	union {
		P        pair;
		uint32_t bits;
	} both = { pair };

	return both.bits;
}
template <class P> __device__ static inline P bits_pair(uint32_t bits)
{
	union {
		uint32_t bits;
		P        pair;
	} both = { bits };

	return both.pair;
}

/* Bytes 0 and 2, 1 and 3 of a word as pairs of T, times 1 / FACTOR. */
template <class T, class E> struct kv_pairs;

template <> struct kv_pairs<__nv_bfloat16, kv_f8> {
	static constexpr float factor = 1;

	__device__ static inline void widen(uint32_t word, uint32_t *even, uint32_t *odd)
	{
		const __nv_bfloat162 up = bits_pair<__nv_bfloat162>(0x7b807b80); /* 2¹²⁰ */
		uint32_t low = (word << 8 & 0x80008000) | (word & 0x007f007f) << 4;
		uint32_t high = (word & 0x80008000) | (word & 0x7f007f00) >> 4;

		*even = pair_bits(__hmul2(bits_pair<__nv_bfloat162>(low), up));
		*odd = pair_bits(__hmul2(bits_pair<__nv_bfloat162>(high), up));
	}
};

template <> struct kv_pairs<__half, kv_f8> {
	static constexpr float factor = 256;

	__device__ static inline void widen(uint32_t word, uint32_t *even, uint32_t *odd)
	{
		*even = (word << 8 & 0x80008000) | (word & 0x007f007f) << 7;
		*odd = (word & 0x80008000) | (word & 0x7f007f00) >> 1;
	}
};

/* 128 + the low seven bits, less 128 or 256: numbers of eight bits, which bfloat16 has. */
template <> struct kv_pairs<__nv_bfloat16, kv_i8> {
	static constexpr float factor = 1;

	__device__ static inline uint32_t half(uint32_t word)
	{
		return pair_bits(__hsub2(bits_pair<__nv_bfloat162>((word & 0x007f007f) | 0x43004300),
		    bits_pair<__nv_bfloat162>((word & 0x00800080) | 0x43004300)));
	}

	__device__ static inline void widen(uint32_t word, uint32_t *even, uint32_t *odd)
	{
		*even = half(word);
		*odd = half(word >> 8);
	}
};

/* 8 + (128 + byte) / 128, less 9. */
template <> struct kv_pairs<__half, kv_i8> {
	static constexpr float factor = 128;

	__device__ static inline uint32_t half(uint32_t word)
	{
		return pair_bits(__hsub2(bits_pair<__half2>((word & 0x00ff00ff) | 0x48004800), bits_pair<__half2>(0x48804880)));
	}

	__device__ static inline void widen(uint32_t word, uint32_t *even, uint32_t *odd)
	{
		*even = half(word ^ 0x80808080);
		*odd = half((word ^ 0x80808080) >> 8);
	}
};

/* ---- Tiles ---- */

/* Byte offset of 16-byte chunk CHUNK of row ROW: eight rows' chunks lie in different banks. */
template <int DIM> __device__ static inline uint32_t byte_tile_at(uint32_t row, uint32_t chunk)
{
	static_assert(DIM == 64 || DIM == 128, "heads of 64 or 128");
	return row * DIM + (chunk ^ (row * DIM / 128 & (DIM / 16 - 1))) * 16;
}

/* As load_query, in the order of multiply_byte_keys. */
template <class T, int DIM> __device__ static inline void load_query_bytes(const T *low, const T *high, uint32_t ret[DIM / 16][4])
{
#pragma unroll
	for (int c = 0; c < DIM / 16; c++) {
		uint32_t at = (uint32_t)c * 16 + threadIdx.x % 4 * 4;
		uint2    a = low ? *(const uint2 *)(low + at) : make_uint2(0, 0), b = high ? *(const uint2 *)(high + at) : make_uint2(0, 0);

		ret[c][0] = __byte_perm(a.x, a.y, 0x5410);
		ret[c][1] = __byte_perm(b.x, b.y, 0x5410);
		ret[c][2] = __byte_perm(a.x, a.y, 0x7632);
		ret[c][3] = __byte_perm(b.x, b.y, 0x7632);
	}
}

/* s [16, 16] = q · kᵀ / FACTOR for tokens [TOKEN, TOKEN + 16) of a tile of keys, without their scales. */
template <class T, class E, int DIM> __device__ static inline void multiply_byte_keys(const uint32_t q[DIM / 16][4], uint32_t keys,
    uint32_t token, float s[2][4])
{
	uint32_t lane = threadIdx.x % 32, row = token + lane / 16 * 8 + lane % 8;

	for (int i = 0; i < 8; i++)
		s[i / 4][i % 4] = 0;
#pragma unroll
	for (int c = 0; c < DIM / 16; c += 2) {
		uint32_t words[4], b[2];

		ldmatrix_x4(words, keys + byte_tile_at<DIM>(row, (uint32_t)c + lane / 8 % 2));
#pragma unroll
		for (int i = 0; i < 4; i++) {
			kv_pairs<T, E>::widen(words[i], &b[0], &b[1]);
			mma_m16n8k16<T>(s[i / 2], q[c + i % 2], b);
		}
	}
}

/* o [16, DIM] += p [16, 16] · v / FACTOR for tokens [TOKEN, TOKEN + 16) of a tile of values; scales are in P. */
template <class T, class E, int DIM> __device__ static inline void multiply_byte_values(const uint32_t p[4], uint32_t values,
    uint32_t token, float o[DIM / 8][4])
{
	uint32_t lane = threadIdx.x % 32, row = token + lane / 8 % 2 * 8 + lane % 8;

#pragma unroll
	for (int c = 0; c < DIM / 16; c += 2) {
		uint32_t words[4], even[4], odd[4];

		ldmatrix_x4_trans(words, values + byte_tile_at<DIM>(row, (uint32_t)c + lane / 16));
#pragma unroll
		for (int i = 0; i < 4; i++)
			kv_pairs<T, E>::widen(words[i], &even[i], &odd[i]);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			mma_m16n8k16<T>(o[2 * (c + i)], p, even + 2 * i);
			mma_m16n8k16<T>(o[2 * (c + i) + 1], p, odd + 2 * i);
		}
	}
}

/* ---- Sums of either kind ---- */

/* Of a lane's columns of o, pair J of DIM / 8: the dimension of its first one, and both for row g (R of 0) or g + 8. */
template <class E> __device__ static inline uint32_t sum_place(int j)
{
	uint32_t t = threadIdx.x % 4;

	return kv_is_byte<E> ? (uint32_t)j / 2 * 16 + t * 4 + (uint32_t)j % 2 * 2 : (uint32_t)j * 8 + t * 2;
}
template <class E, int DIM> __device__ static inline float2 sum_pair(const float o[DIM / 8][4], int j, int r)
{
	int c = j / 2, e = j % 2;

	return kv_is_byte<E> ? make_float2(o[2 * c][2 * r + e], o[2 * c + 1][2 * r + e]) : make_float2(o[j][2 * r], o[j][2 * r + 1]);
}

#endif
