/* byte_round.cuh: the rounding of activations to bytes, e4m3 or int8, with a scale for each row or for each 128 values of it.
 * Kernels that write rows which a product with weights of one byte reads next round them on the way (struct byte_target).
 * Invariant: whoever rounds, the bytes and scales of a row are the same, and depend on that row alone. */
#ifndef PENSTOCK_GPU_BYTE_ROUND_CUH
#define PENSTOCK_GPU_BYTE_ROUND_CUH

#include "gpu/device.cuh"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
	BYTE_GROUP = 128, /* inputs of a scale, and of what a product takes at once */
	BYTE_ALIGN = 128  /* rows of weights and of rounded activations are padded to it, with zeros */
};

/* Where rows are rounded to, besides being stored as they are; Q of NULL: nowhere. */
struct byte_target {
	uint8_t *q;      /* [rows][q_stride] */
	float   *scales; /* [groups][scale_stride], or with a stride of 0 one for each row */
	uint32_t q_stride, scale_stride;
	bool     i8;
};

__host__ __device__ static inline uint32_t byte_round_up(uint32_t x, uint32_t to) { return (x + to - 1) / to * to; }

/* ---- Numbers ---- */

/* The nearest e4m3, ties to even, at most 448.  NaN has no place here. */
__host__ __device__ static inline uint8_t byte_from_f8(float x)
{
	uint32_t bits, up;
	float    size;

	memcpy(&bits, &x, 4);
	up = bits & 0x7fffffff;
	memcpy(&size, &up, 4);
	if (size < 0x1p-6f) { /* steps of 2⁻⁹: the last place of 2¹⁴ */
		float sum = size + 0x1p14f;

		memcpy(&up, &sum, 4);
		up &= 0xff;
	} else {
		up = size < 448 ? ((up + 0x7ffff + (up >> 20 & 1)) >> 20) - (120 << 3) : 0x7e;
	}
	return (uint8_t)((bits >> 24 & 0x80) | up);
}

__host__ __device__ static inline uint8_t byte_from_i8(float x)
{
	float q = rintf(x);
	return (uint8_t)(int8_t)(q < -128 ? -128 : q > 127 ? 127 : q);
}

__device__ static inline float byte_value(float x) { return x; }
__device__ static inline float byte_value(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ static inline float byte_value(__half x) { return __half2float(x); }

__device__ static inline bool byte_finite(float x) { return fabsf(x) <= 3.402823466e38f; }

/* The scale of values whose largest is AMAX; NaN where they have none. */
__device__ static inline float byte_scale_of(bool i8, float amax, float fixed)
{
	float scale = amax / (i8 ? 127.0f : 448.0f);

	if (fixed > 0)
		return isnan(amax) ? amax : fixed;
	return !byte_finite(amax) ? amax - amax : scale < 1e-12f ? 1e-12f : scale;
}

/* The larger one; NaN if either is. */
__device__ static inline float byte_larger(float a, float b) { return a > b || isnan(a) ? a : b; }

/* Of the LANES that lie together, all of the warp taking part. */
template <int LANES> __device__ static inline float byte_lanes_amax(float amax)
{
#pragma unroll
	for (int o = LANES / 2; o; o >>= 1)
		amax = byte_larger(amax, __shfl_xor_sync(~0u, amax, o));
	return amax;
}

/* Of the block; SHARED has a float for each warp, which nobody uses meanwhile. */
__device__ static inline float byte_block_amax(float amax, float *shared)
{
	amax = byte_lanes_amax<32>(amax);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		shared[threadIdx.x / 32] = amax;
	__syncthreads();
	amax = 0;
	for (uint32_t i = 0; i < (blockDim.x + 31) / 32; i++)
		amax = byte_larger(shared[i], amax);
	return amax;
}

__device__ static inline uint8_t byte_rounded(bool i8, float x, float scale)
{
	if (isnan(scale))
		return 0;
	return i8 ? byte_from_i8(x / scale) : byte_from_f8(x / scale);
}

__device__ static inline float byte_largest(const float v[4])
{
	return byte_larger(byte_larger(fabsf(v[0]), fabsf(v[1])), byte_larger(fabsf(v[2]), fabsf(v[3])));
}

/* Four bytes as byte_from_f8 gives them, by the hardware where it can. */
__device__ static inline uint32_t byte_word_f8(const float v[4])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
	uint16_t low, high;

	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
	return low | (uint32_t)high << 16;
#else
	return byte_from_f8(v[0]) | (uint32_t)byte_from_f8(v[1]) << 8 | (uint32_t)byte_from_f8(v[2]) << 16 |
	    (uint32_t)byte_from_f8(v[3]) << 24;
#endif
}

__device__ static inline void byte_put(bool i8, uint8_t *q, uint32_t k, const float v[4], float scale)
{
	uint32_t word = 0;

	if (!i8 && !isnan(scale)) {
		const float each[4] = { v[0] / scale, v[1] / scale, v[2] / scale, v[3] / scale };

		*(uint32_t *)(q + k) = byte_word_f8(each);
		return;
	}
	for (int i = 0; i < 4; i++)
		word |= (uint32_t)byte_rounded(i8, v[i], scale) << 8 * i;
	*(uint32_t *)(q + k) = word;
}

/* Rounds PACKS packs of COUNT values of row R, of which this thread has those from AT[p] on: all threads of the block, which have
 * the whole row, padding of BYTE_ALIGN included, in the order of threads.  SHARED as for byte_block_amax. */
template <int COUNT, int PACKS> __device__ static inline void byte_round_packs(const struct byte_target &to, uint32_t r,
    const float *v, const uint32_t *at, float *shared)
{
	constexpr int lanes = BYTE_GROUP / COUNT;
	uint8_t      *q = to.q + (size_t)r * to.q_stride;
	float         scale[PACKS], amax = 0;

	static_assert(lanes <= 32 && COUNT % 4 == 0, "a group is of one warp");
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		scale[p] = 0;
#pragma unroll
		for (int i = 0; i < COUNT; i += 4)
			scale[p] = byte_larger(byte_largest(v + p * COUNT + i), scale[p]);
		amax = byte_larger(scale[p], amax);
	}
	if (to.scale_stride == 0) {
		amax = byte_scale_of(to.i8, byte_block_amax(amax, shared), 0);
		if (threadIdx.x == 0)
			to.scales[r] = amax;
	}
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		scale[p] = to.scale_stride ? byte_scale_of(to.i8, byte_lanes_amax<lanes>(scale[p]), 0) : amax;
		if (at[p] >= to.q_stride)
			continue;
#pragma unroll
		for (int i = 0; i < COUNT; i += 4)
			byte_put(to.i8, q, at[p] + i, v + p * COUNT + i, scale[p]);
		if (to.scale_stride && at[p] % BYTE_GROUP == 0)
			to.scales[(size_t)(at[p] / BYTE_GROUP) * to.scale_stride + r] = scale[p];
	}
}

#endif
