/* postponed.h: the norm of one row that the product which reads it next does in its own prologue: a plain struct, for the host, for
 * kernels and for emulated tests. */
#ifndef PENSTOCK_GPU_POSTPONED_H
#define PENSTOCK_GPU_POSTPONED_H

#include <stdint.h>

/* sum = x + delta · inner_norm / rms(delta), y = sum · w / rms(sum), all [width].  Each block of the product makes all of y for
 * itself, and stores its share of y and of the sum; the sum has a place of its own, since other blocks still read x. */
struct norm_prologue {
	const float *x;          /* the stream of layers; NULL: there is nothing to do */
	float       *sum;
	const void  *delta;      /* as y: of the backend's type */
	void        *y;
	const float *w, *inner_norm; /* INNER_NORM may be NULL: delta is added as it is */
	float        inner_eps, eps;
	uint32_t     width;
};

#endif
