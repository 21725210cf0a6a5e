/* block.cuh: the few helpers that every kernel shares. */
#ifndef PENSTOCK_GPU_BLOCK_CUH
#define PENSTOCK_GPU_BLOCK_CUH

#include "gpu/convert.cuh"
#include "gpu/metadata.h"

/* First thing in a kernel: one thread says that it began.  The store is not waited for. */
__device__ static inline void mark_begin(const struct step_mark &mark)
{
	if (mark.at && (threadIdx.x | blockIdx.x | blockIdx.y) == 0)
		*(volatile uint32_t *)mark.at = mark.value;
}

/* Sixteen bytes of elements. */
template <class T> struct alignas(16) pack {
	static constexpr int count = 16 / sizeof(T);
	T v[count];
};

/* Sum over the block, the same order always; every thread gets it.  SHARED has a float for each warp. */
__device__ static inline float block_sum(float x, float *shared)
{
	int warps = (blockDim.x + 31) / 32, warp = threadIdx.x / 32;

	for (int o = 16; o; o >>= 1)
		x += __shfl_xor_sync(~0u, x, o);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		shared[warp] = x;
	__syncthreads();
	x = 0;
	for (int i = 0; i < warps; i += 4) { /* loads that do not wait for the sum */
		float v[4];

#pragma unroll
		for (int j = 0; j < 4; j++)
			v[j] = i + j < warps ? shared[i + j] : 0;
#pragma unroll
		for (int j = 0; j < 4; j++)
			x += v[j];
	}
	return x;
}

#endif
