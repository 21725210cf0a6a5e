/* convert.cuh: between float32 and the types that activations and weights have. */
#ifndef PENSTOCK_GPU_CONVERT_CUH
#define PENSTOCK_GPU_CONVERT_CUH

#include "gpu/device.cuh"

__host__ __device__ static inline float to_float(float x) { return x; }
__host__ __device__ static inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__host__ __device__ static inline float to_float(__half x) { return __half2float(x); }

template <class T> __host__ __device__ static inline T from_float(float x);
template <> __host__ __device__ inline float from_float<float>(float x) { return x; }
template <> __host__ __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16(x); }
/* The largest half stands for what is larger: an infinity would make a NaN of the next norm. */
template <> __host__ __device__ inline __half from_float<__half>(float x)
{
	return __float2half(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x);
}

/* silu(gate) · up, as silu_kernel (rows.cuh) has it. */
__device__ static inline float silu_times(float gate, float up) { return gate / (1 + expf(-gate)) * up; }

#endif
