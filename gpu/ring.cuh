/* ring.cuh: what kernels share whose threads fill a ring of stages in shared memory while others multiply what lies in it. */
#ifndef PENSTOCK_GPU_RING_CUH
#define PENSTOCK_GPU_RING_CUH

#include "gpu/device.cuh"

/* A place in a ring, and the parity of the phase that is waited for there: who reads begins with { 0, 0 }, who fills with { 0, 1 },
 * since a ring is empty at first. */
struct ring_place {
	uint32_t slot, parity;

	__device__ void advance(uint32_t slots)
	{
		if (++slot == slots) {
			slot = 0;
			parity ^= 1;
		}
	}
};

/* This warp has read all of a stage: says so to all C blocks of the cluster that copy into it. */
template <int C> __device__ static inline void ring_release(mbarrier *empty, uint32_t lane)
{
	__syncwarp();
	if (lane < C)
		barrier_arrive_cluster(empty, lane);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900 /* which have no clusters, and empty kernels */
#define CLUSTER_OF(c)
#else
#define CLUSTER_OF(c) __cluster_dims__(c, 1, 1)
#endif

#endif
