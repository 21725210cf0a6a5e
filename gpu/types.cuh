/* types.cuh: what files with launches include: the backend, and what kernels share. */
#ifndef PENSTOCK_GPU_TYPES_CUH
#define PENSTOCK_GPU_TYPES_CUH

#include "gpu/block.cuh"
#include "gpu/cuda.h"

/* Runs a statement with T as the backend's element type. */
#define FOR_DTYPE(cuda, T, ...)                                              \
	do {                                                                 \
		switch ((cuda)->dtype) {                                     \
		case DTYPE_F32: { typedef float T; __VA_ARGS__; break; }      \
		case DTYPE_BF16: { typedef __nv_bfloat16 T; __VA_ARGS__; break; } \
		case DTYPE_F16: { typedef __half T; __VA_ARGS__; break; }     \
		}                                                            \
	} while (0)

#endif
