/* pace.cuh: when a product asks for the weights that it wants in shared memory before its inputs are there.
 *
 * Small kernels between two products live on round trips to L2, and each of these waits behind what all multiprocessors have asked
 * the memory for: behind the rings of all blocks, 24 MB, for 5 microseconds, where alone it takes less than one.  So while kernels
 * before it run a block asks for weights no faster than the memory brings them to all blocks: it has always something to do, and
 * hardly anybody waits for it.  When inputs are there they are asked for first, and then all weights that have room.
 *
 * Invariant: this decides when something is asked for, never what. */
#ifndef PENSTOCK_GPU_PACE_CUH
#define PENSTOCK_GPU_PACE_CUH

#include "gpu/device.cuh"

enum {
	PACE_BYTES_PER_NS = 4200,   /* of all blocks; an H200 reads 4,500 */
	PACE_FIRST_BYTES = 32 << 10
};

/* How fast a block asks. */
struct pace_rate {
	uint32_t first; /* bytes that it asks for at once */
	uint32_t each;  /* nanoseconds for 2¹⁶ bytes more; 0: no pace */
};

static inline struct pace_rate pace_of(uint32_t blocks)
{
	return { PACE_FIRST_BYTES, (uint32_t)(((uint64_t)blocks << 16) / PACE_BYTES_PER_NS) };
}

/* Of the thread that asks. */
struct pace {
	mbarrier *there; /* its first phase completes when inputs have been asked for */
	uint64_t  due;   /* when the next copy may be */
	uint32_t  each;
	bool      over;

	__device__ pace(mbarrier *barrier, const struct pace_rate &rate)
	    : there(barrier), due(rate.each ? device_clock() - (rate.first * rate.each >> 16) : 0), each(rate.each), over(!rate.each)
	{
	}

	/* Before BYTES, at most 2¹⁸, are asked for. */
	__device__ void wait(uint32_t bytes)
	{
		while (!over && (int64_t)(device_clock() - due) < 0)
			over = barrier_test(there, 0);
		due += bytes * each >> 16;
	}
};

#endif
