/* linear_wide.cu: owns the launches of linear_wide.cuh.  Does not own the choice of it (linear.cu).  Invariant: a product that it
 * does not suit is refused before anything is launched. */
#include "gpu/launch.cuh"
#include "gpu/linear_own.h"
#include "gpu/linear_wide.cuh"
#include "gpu/types.cuh"

/* J's product with the kernel of one size. */
template <class T, int TILES, int N> static enum status wide_run(struct cuda_backend *cuda, const struct linear_job *j)
{
	const struct backend_weight *w = j->w;
	const enum tensor_type       type = cuda->dtype == DTYPE_BF16 ? TENSOR_BF16 : TENSOR_F16;
	const uint32_t      clusters = (uint32_t)cuda->multiprocessors / WIDE_CLUSTER, shared = wide_shared_bytes(TILES, N);
	struct wide_product p = wide_cut(w->rows / 2, w->columns, j->rows, TILES, N, WIDE_CLUSTER);
	struct tensor_layout weights, inputs;
	tensor_map           w_map, x_map;
	auto                *kernel = wide_kernel<T, WIDE_CLUSTER, TILES, N>;

	skinny_matrix(&weights, type, w->data, w->rows, w->columns, w->stride, N / 2, 1, SKINNY_WHOLE);
	skinny_matrix(&inputs, type, j->x, j->rows, w->columns, j->x_stride, wide_rows(TILES) / WIDE_CLUSTER, 1, SKINNY_WHOLE);
	if (tensor_map_encode(&weights, &w_map) || tensor_map_encode(&inputs, &x_map))
		return STATUS_UNSUPPORTED;
	p.y = j->y;
	p.y_stride = j->y_stride;
	p.mark = cuda->marks_device ? &cuda->marks_device->begun : NULL;
	p.mark_value = fault_mark(FAULT_LINEAR, cuda->step.launches);
	if (allow_shared(cuda, kernel, (int)shared, "shared memory of a linear layer"))
		return cuda->fault;
	return launch(cuda, "linear with silu", j->dependent, kernel, (p.tiles < clusters ? p.tiles : clusters) * WIDE_CLUSTER,
	    WIDE_THREADS, shared, w_map, x_map, p);
}

template <class T> static enum status wide_of_size(struct cuda_backend *cuda, const struct linear_job *j)
{
	const struct wide_size size = wide_choose(j->w->rows / 2, j->rows, (uint32_t)cuda->multiprocessors / WIDE_CLUSTER);

	if (size.tiles == 1)
		return size.n == 208 ? wide_run<T, 1, 208>(cuda, j) : wide_run<T, 1, 176>(cuda, j);
	return size.n == 208 ? wide_run<T, 2, 208>(cuda, j) : wide_run<T, 2, 176>(cuda, j);
}

enum status linear_wide(struct cuda_backend *cuda, const struct linear_job *j)
{
	if (cuda->major != 9 || cuda->dtype == DTYPE_F32 || !j->gated || j->to_float || j->rows <= LINEAR_SKINNY_ROWS ||
	    !wide_takes(j->w->rows / 2, j->w->columns, j->w->stride, j->x_stride, j->y, j->y_stride))
		return STATUS_UNSUPPORTED;
	return cuda->dtype == DTYPE_BF16 ? wide_of_size<__nv_bfloat16>(cuda, j) : wide_of_size<__half>(cuda, j);
}
