/* fmt_byte_large.cu: owns the launch of fmt_byte_large.cuh.  Does not own which products go there (fmt_byte.cu). */
#include "gpu/fmt_byte_large.cuh"
#include "gpu/launch.cuh"
#include "gpu/linear_own.h"

enum status byte_large(struct cuda_backend *cuda, const struct backend_weight *w, const struct byte_product *product,
    const uint8_t *q, uint32_t q_stride)
{
	struct large_product p = {};
	struct tensor_layout layouts[3];
	tensor_map           maps[3];
	uint32_t             clusters = (uint32_t)cuda->multiprocessors / LARGE_CLUSTER;

	p.w_scales = product->w_scales;
	p.x_scales = product->x_scales;
	p.y = product->y;
	p.output = product->output;
	p.n = product->n;
	p.rows = product->rows;
	p.y_stride = product->y_stride;
	p.mark = product->mark;
	p.mark_value = product->mark_value;
	large_cut(product->k, clusters, LARGE_CLUSTER, &p);
	layouts[0] = large_weight_map(&p, w->byte.values, w->stride);
	layouts[1] = large_input_map(&p, LARGE_CLUSTER, q, q_stride);
	layouts[2] = large_output_map(&p);
	for (int i = 0; i < 3; i++)
		if (tensor_map_encode(&layouts[i], &maps[i]))
			return cuda_check(cuda, cudaErrorInvalidValue, "the tensor map of a linear layer");
	if (allow_shared(cuda, large_kernel<LARGE_CLUSTER>, LARGE_SHARED, "shared memory of a linear layer"))
		return cuda->fault;
	return launch(cuda, "linear", cuda->step.dependent, large_kernel<LARGE_CLUSTER>,
	    LARGE_CLUSTER * (p.tiles < clusters ? p.tiles : clusters), (LARGE_WARPGROUPS + 1) * 128, LARGE_SHARED, maps[0], maps[1],
	    maps[2], p);
}
