/* linear_own.cu: owns the launches of our own kernels of linear layers.  Does not own the choice among them and cuBLASLt
 * (linear.cu).  Invariant: a product that a kernel does not suit is refused before anything is launched. */
#include "gpu/launch.cuh"
#include "gpu/linear_own.h"
#include "gpu/linear_portable.cuh"
#include "gpu/linear_skinny.cuh"
#include "gpu/types.cuh"

typedef void skinny_function(const tensor_map, const tensor_map, const skinny_args);

/* NULL: that size is not built. */
template <class T, bool GATED> static skinny_function *skinny_of(const struct skinny_plan *plan)
{
#define SKINNY_CASE(count, group_count, tile_count)                                                                \
	if (plan->tokens == count && plan->groups == group_count && plan->tiles == tile_count)                     \
		return skinny_kernel<T, count, group_count, tile_count, GATED>;
	SKINNY_EACH_SIZE(SKINNY_CASE)
	return NULL;
}

enum status linear_skinny(struct cuda_backend *cuda, const struct linear_job *job, const struct skinny_variant *variant)
{
	const struct backend_weight *w = job->w;
	enum tensor_type             type = cuda->dtype == DTYPE_BF16 ? TENSOR_BF16 : TENSOR_F16;
	int                          form = job->gated ? SKINNY_GATED : job->heads ? SKINNY_HEADS : SKINNY_PLAIN;
	struct skinny_plan           plan;
	skinny_function             *kernel;
	tensor_map                   weights, inputs;

	if (cuda->major != 9 || cuda->dtype == DTYPE_F32 || (form != SKINNY_PLAIN && job->to_float) ||
	    !skinny_layout(&plan, variant, type, w->data, w->rows, w->columns, w->stride, job->x, job->rows, job->x_stride, form))
		return STATUS_UNSUPPORTED;
	if (type == TENSOR_BF16)
		kernel = job->gated ? skinny_of<__nv_bfloat16, true>(&plan) : skinny_of<__nv_bfloat16, false>(&plan);
	else
		kernel = job->gated ? skinny_of<__half, true>(&plan) : skinny_of<__half, false>(&plan);
	if (!kernel || tensor_map_encode(&plan.weights, &weights) || tensor_map_encode(&plan.inputs, &inputs))
		return STATUS_UNSUPPORTED;
	plan.args.y = job->y;
	plan.args.y_stride = job->y_stride;
	plan.args.to_float = job->to_float;
	if (job->heads)
		plan.args.heads = *job->heads;
	plan.args.mark = cuda->marks_device ? &cuda->marks_device->begun : NULL;
	plan.args.mark_value = fault_mark(FAULT_LINEAR, cuda->step.launches);
	if (allow_shared(cuda, kernel, SKINNY_SHARED_MAX, "shared memory of a linear layer"))
		return cuda->fault;
	return launch(cuda, "linear", job->dependent, kernel, plan.blocks, plan.threads, plan.shared_bytes, weights, inputs, plan.args);
}

template <class T> static enum status portable_run(struct cuda_backend *cuda, const struct portable_args &args, uint32_t tokens)
{
	dim3 grid((args.n + PORTABLE_ROWS - 1) / PORTABLE_ROWS, (args.rows + tokens - 1) / tokens);

	if (tokens == 8)
		return launch(cuda, "linear", 0, portable_kernel<T, 8>, grid, PORTABLE_THREADS, portable_ring<8>::bytes, args);
	if (tokens == 16)
		return launch(cuda, "linear", 0, portable_kernel<T, 16>, grid, PORTABLE_THREADS, portable_ring<16>::bytes, args);
	return launch(cuda, "linear", 0, portable_kernel<T, 64>, grid, PORTABLE_THREADS, portable_ring<64>::bytes, args);
}

enum status linear_portable(struct cuda_backend *cuda, const struct linear_job *job)
{
	const struct backend_weight *w = job->w;
	struct portable_args         args = { w->data, job->x, job->y, w->stride, job->x_stride, job->y_stride, w->rows, w->columns,
		job->rows, job->to_float, cuda->marks_device ? &cuda->marks_device->begun : NULL,
		fault_mark(FAULT_LINEAR, cuda->step.launches) };
	uint32_t tokens = job->rows <= 8 ? 8 : job->rows <= 16 ? 16 : 64;

	if (cuda->dtype == DTYPE_F32 || job->gated || job->heads || job->rows > 65535 * 64)
		return STATUS_UNSUPPORTED;
	return cuda->dtype == DTYPE_BF16 ? portable_run<__nv_bfloat16>(cuda, args, tokens) : portable_run<__half>(cuda, args, tokens);
}
