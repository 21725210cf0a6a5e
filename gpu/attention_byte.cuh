/* attention_byte.cuh: what a warp does to a tile of keys and values of one byte: addresses, fragments, products.
 *
 * Tiles in shared memory are [64 tokens][DIM] bytes, 16-byte chunks of every 128 bytes swapped (byte_tile_at).  Bytes become pairs
 * of T in registers, exactly but for a power of two, by a few operations on whole words; products are those of 16 bits.  Which
 * columns an operand has is free as long as both have the same, so that a lane takes what lies together:
 *
 *      q kᵀ   lane 4g + t has dimensions [t · DIM / 4, (t + 1) · DIM / 4) of token g: load_query_bytes gives q the same order
 *      p v    it has dimensions [g · DIM / 8, (g + 1) · DIM / 8) of four tokens: column g of sum j is dimension g · DIM / 8 + j
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

/* Byte offset of 16-byte chunk CHUNK of row ROW: what a quarter of a warp reads below lies in different banks. */
template <int DIM> __device__ static inline uint32_t byte_tile_at(uint32_t row, uint32_t chunk)
{
	static_assert(DIM == 64 || DIM == 128, "heads of 64 or 128");
	return DIM == 128 ? (row * 8 + (chunk ^ (row & 7))) * 16 : (row / 2 * 8 + (((row & 1) * 4 + chunk) ^ (row & 6))) * 16;
}

/* As load_query, in the order of multiply_byte_keys. */
template <class T, int DIM> __device__ static inline void load_query_bytes(const T *low, const T *high, uint32_t ret[DIM / 16][4])
{
	uint32_t first = threadIdx.x % 4 * (DIM / 4);

#pragma unroll
	for (int k = 0; k < DIM / 16; k++) {
		uint2 a = low ? *(const uint2 *)(low + first + k * 4) : make_uint2(0, 0);
		uint2 b = high ? *(const uint2 *)(high + first + k * 4) : make_uint2(0, 0);

		ret[k][0] = __byte_perm(a.x, a.y, 0x5410);
		ret[k][1] = __byte_perm(b.x, b.y, 0x5410);
		ret[k][2] = __byte_perm(a.x, a.y, 0x7632);
		ret[k][3] = __byte_perm(b.x, b.y, 0x7632);
	}
}

/* s [16, 16] = q · kᵀ / FACTOR for tokens [TOKEN, TOKEN + 16) of a tile of keys, without their scales. */
template <class T, class E, int DIM> __device__ static inline void multiply_byte_keys(const uint32_t q[DIM / 16][4],
    const char *keys, uint32_t token, float s[2][4])
{
	uint32_t lane = threadIdx.x % 32;

#pragma unroll
	for (int j = 0; j < 2; j++) {
		for (int i = 0; i < 4; i++)
			s[j][i] = 0;
#pragma unroll
		for (uint32_t c = 0; c < DIM / 64; c++) {
			uint32_t at = byte_tile_at<DIM>(token + (uint32_t)j * 8 + lane / 4, lane % 4 * (DIM / 64) + c);
			uint4    chunk = *(const uint4 *)(keys + at);
			uint32_t words[4] = { chunk.x, chunk.y, chunk.z, chunk.w };

#pragma unroll
			for (int w = 0; w < 4; w++) {
				uint32_t b[2];

				kv_pairs<T, E>::widen(words[w], &b[0], &b[1]);
				mma_m16n8k16<T>(s[j], q[c * 4 + w], b);
			}
		}
	}
}

/* o [16, DIM] += p [16, 16] · v / FACTOR for tokens [TOKEN, TOKEN + 16) of a tile of values; scales are in P. */
template <class T, class E, int DIM> __device__ static inline void multiply_byte_values(const uint32_t p[4], const char *values,
    uint32_t token, float o[DIM / 8][4])
{
	uint32_t lane = threadIdx.x % 32, words[4][DIM / 32];

#pragma unroll
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t    row = token + i / 2 * 8 + lane % 4 * 2 + i % 2, byte = lane / 4 * (DIM / 8);
		const char *from = values + byte_tile_at<DIM>(row, byte / 16) + byte % 16;

		if constexpr (DIM == 128) {
			uint4 chunk = *(const uint4 *)from;

			words[i][0] = chunk.x, words[i][1] = chunk.y, words[i][2] = chunk.z, words[i][3] = chunk.w;
		} else {
			uint2 chunk = *(const uint2 *)from;

			words[i][0] = chunk.x, words[i][1] = chunk.y;
		}
	}
#pragma unroll
	for (int w = 0; w < DIM / 32; w++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			uint32_t select = half ? 0x7632 : 0x5410, even[2], odd[2];

#pragma unroll
			for (int i = 0; i < 2; i++)
				kv_pairs<T, E>::widen(__byte_perm(words[2 * i][w], words[2 * i + 1][w], select), &even[i], &odd[i]);
			mma_m16n8k16<T>(o[4 * w + 2 * half], p, even);
			mma_m16n8k16<T>(o[4 * w + 2 * half + 1], p, odd);
		}
	}
}

/* ---- Sums of either kind ---- */

/* Of a lane's columns of o, pair J of DIM / 8: the dimension of its first one, and both for row g (R of 0) or g + 8. */
template <class E, int DIM> __device__ static inline uint32_t sum_place(int j)
{
	uint32_t t = threadIdx.x % 4;

	return kv_is_byte<E> ? (2 * t + (uint32_t)j / (DIM / 16)) * (DIM / 8) + (uint32_t)j % (DIM / 16) * 2 : (uint32_t)j * 8 + t * 2;
}
template <class E, int DIM> __device__ static inline float2 sum_pair(const float o[DIM / 8][4], int j, int r)
{
	int i = j / (DIM / 16), first = j % (DIM / 16) * 2;

	return kv_is_byte<E> ? make_float2(o[first][2 * r + i], o[first + 1][2 * r + i]) : make_float2(o[j][2 * r], o[j][2 * r + 1]);
}

#endif
