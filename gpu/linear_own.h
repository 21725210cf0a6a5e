/* linear_own.h: our own kernels of linear layers (linear_skinny.cuh, linear_portable.cuh), as linear.cu launches them. */
#ifndef PENSTOCK_GPU_LINEAR_OWN_H
#define PENSTOCK_GPU_LINEAR_OWN_H

#include "gpu/cuda.h"

enum { LINEAR_SKINNY_ROWS = 64 }; /* of x: for more, weights are not what takes the time */

/* y [rows][y_stride] = x · Wᵀ, or with GATED silu(gate · x) · (up · x), W = gate | up. */
struct linear_job {
	const struct backend_weight *w;
	const void *x;
	void       *y;
	uint32_t    x_stride, rows, y_stride;
	int         to_float, gated;
	int         dependent; /* launched as launch.cuh says */
};

/* Both: STATUS_UNSUPPORTED where there is no such kernel for the product, or for this variant of it, or for this device. */
struct skinny_variant;
enum status linear_skinny(struct cuda_backend *cuda, const struct linear_job *job, const struct skinny_variant *variant);
enum status linear_portable(struct cuda_backend *cuda, const struct linear_job *job);

#endif
