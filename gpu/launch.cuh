/* launch.cuh: launches, with or without programmatic dependence (PDL).
 *
 * A kernel that is launched with DEPENDENT begins while the one before it still runs, once all blocks of that one have ended or
 * called dependents_launch().  So, of whoever is launched so:
 *
 *   - it calls dependency_wait() in every thread that touches memory which any kernel writes, before it does, and on every path:
 *     a kernel that ends without having waited breaks the chain, since those behind it wait for it alone;
 *   - before that it reads only what was there when the step's first kernel began: weights, the launch's parameters, and what
 *     `take` placed (struct step_arrays).  Launches are dependent only in recorded steps (step.cu), and those begin when `take`,
 *     which is launched plainly before them, has ended; the next `take` begins when all of them have.  And a draw is dependent
 *     on the sampler's scan before it: its jobs are there when the scan begins;
 *   - its mark (fault.h) is stored after the wait, else a fault would be blamed on a kernel that has not begun.
 *
 * A kernel without dependency_wait() is launched plainly: then it begins when everything before it has ended, whatever was
 * launched how.  dependents_launch() may stand at the top of any kernel: it promises nothing, it only lets the next one begin.
 *
 * Invariant: what a step computes does not depend on DEPENDENT, which is why a rung may choose it by time (step.cu). */
#ifndef PENSTOCK_GPU_LAUNCH_CUH
#define PENSTOCK_GPU_LAUNCH_CUH

#include "gpu/cuda.h"

/* What goes wrong is CUDA's last error too, which cuda_launched looks at. */
template <class... P, class... A> static inline cudaError_t launch_kernel(const struct cuda_backend *cuda, int dependent,
    void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A &&...args)
{
	cudaLaunchConfig_t  config = {};
	cudaLaunchAttribute attribute = {};

	config.gridDim = grid;
	config.blockDim = block;
	config.dynamicSmemBytes = shared_bytes;
	config.stream = cuda->stream;
	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	config.attrs = &attribute;
	config.numAttrs = dependent && cuda->major >= 9 ? 1 : 0;
	return cudaLaunchKernelEx(&config, kernel, static_cast<A &&>(args)...);
}

template <class... P, class... A> static inline enum status launch(struct cuda_backend *cuda, const char *what, int dependent,
    void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A &&...args)
{
	return cuda_check(cuda, launch_kernel(cuda, dependent, kernel, grid, block, shared_bytes, static_cast<A &&>(args)...), what);
}

/* Lets KERNEL be launched with up to MOST bytes of dynamic shared memory.  MOST is the same for every launch of a kernel: the
 * limit belongs to the kernel, and one that was lowered for one shape might refuse what was recorded before for another. */
template <class... P> static inline enum status allow_shared(struct cuda_backend *cuda, void (*kernel)(P...), int most,
    const char *what)
{
	return cuda_check(cuda, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), what);
}

#endif
