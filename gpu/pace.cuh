/* pace.cuh: when a product asks for the weights that it wants in shared memory before its inputs are there.
 *
 * Small kernels between two products live on round trips to L2, and each of these waits behind what all multiprocessors have asked
 * the memory for: behind the rings of all blocks, 24 MB, for 5 microseconds, where alone it takes less than one.  So while kernels
 * before it run a block asks for weights at three quarters of the speed at which the memory brings them to all blocks: it is hardly
 * ever idle, and hardly anybody waits for it.  When inputs are there they are asked for first, and then all weights that have room.
 *
 * Invariant: this decides when something is asked for, never what. */
#ifndef PENSTOCK_GPU_PACE_CUH
#define PENSTOCK_GPU_PACE_CUH

#include "gpu/device.cuh"

enum { PACE_BYTES_PER_NS = 3400 }; /* of all blocks; an H200 reads 4,500 to 4,600, and 3,000 to 3,800 are as good */

/* Nanoseconds for 2¹⁶ bytes of each of BLOCKS. */
static inline uint32_t pace_of(uint32_t blocks) { return (uint32_t)(((uint64_t)blocks << 16) / PACE_BYTES_PER_NS); }

/* Of the thread that asks. */
struct pace {
	mbarrier *there; /* its first phase completes when inputs have been asked for */
	uint64_t  due;   /* when the next copy may be */
	uint32_t  each;  /* nanoseconds for 2¹⁶ bytes; 0: no pace */
	bool      over;

	__device__ pace(mbarrier *barrier, uint32_t rate) : there(barrier), due(rate ? device_clock() : 0), each(rate), over(!rate) {}

	/* Before BYTES, at most 2¹⁸, are asked for. */
	__device__ void wait(uint32_t bytes)
	{
		while (!over && (int64_t)(device_clock() - due) < 0)
			over = barrier_test(there, 0);
		due += bytes * each >> 16;
	}
};

#endif
