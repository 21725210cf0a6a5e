/* linear_own.h: our own kernels of linear layers (linear_skinny.cuh, linear_wide.cuh, linear_portable.cuh), as linear.cu launches
 * them. */
#ifndef PENSTOCK_GPU_LINEAR_OWN_H
#define PENSTOCK_GPU_LINEAR_OWN_H

#include "gpu/cuda.h"

enum {
	LINEAR_SKINNY_ROWS = 64, /* of x: for more, weights are not what takes the time */
	LINEAR_ROTATE_MAX = 8    /* weights that a trial goes over, so that none is found in a cache */
};

/* y [rows][y_stride] = x · Wᵀ, or with GATED silu(gate · x) · (up · x), W = gate | up, or with HEADS what heads.cuh makes of it. */
struct linear_job {
	const struct backend_weight *w;
	const void *x;
	void       *y;
	uint32_t    x_stride, rows, y_stride;
	int         to_float, gated;
	int         dependent; /* launched as launch.cuh says */
	const struct head_target *heads;
};

/* STATUS_UNSUPPORTED where there is no such kernel for the product, or for this variant of it, or for this device. */
struct skinny_variant;
enum status linear_skinny(struct cuda_backend *cuda, const struct linear_job *job, const struct skinny_variant *variant);
enum status linear_portable(struct cuda_backend *cuda, const struct linear_job *job);
enum status linear_wide(struct cuda_backend *cuda, const struct linear_job *job); /* gated, of more rows */

/* fmt_byte_large.cu: the product P with the weights of W and rounded rows Q. */
struct byte_product;
enum status byte_large(struct cuda_backend *cuda, const struct backend_weight *w, const struct byte_product *p, const uint8_t *q,
    uint32_t q_stride);

/* ---- Trials at start (linear.cu) ---- */

/* Microseconds of one of LAUNCHES launches, LAUNCH(context, 0), LAUNCH(context, 1), …, which say whether they could be: the median
 * of some replays of a graph of them; 0 when one fails. */
typedef bool linear_launch(void *context, uint32_t i);
float linear_time(struct cuda_backend *cuda, uint32_t launches, linear_launch *launch, void *context);

template <class F> static inline float time_launches(struct cuda_backend *cuda, uint32_t launches, F launch)
{
	return linear_time(cuda, launches, [](void *context, uint32_t i) -> bool { return (*(F *)context)(i); }, &launch);
}

/* W and others that lie like it; returns how many. */
uint32_t linear_same_shape(const struct cuda_backend *cuda, const struct backend_weight *w,
    const struct backend_weight *ret[LINEAR_ROTATE_MAX]);
/* Launches of a trial with so many rows. */
static inline uint32_t linear_launches(uint32_t rows) { return rows <= 128 ? 12 : rows <= 1024 ? 4 : 2; }

#endif
