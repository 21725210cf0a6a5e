/* attention_byte.cu: launches of own decode attention over pages of bytes (attention_hopper_byte.cuh), for attention.cu. */
#include "gpu/attention_hopper_byte.cuh"
#include "gpu/launch.cuh"

template <class T, int DIM, int PARTS, class E> static enum status launch_parts(struct cuda_backend *cuda,
    const struct hopper_job *job)
{
	return launch(cuda, "own attention of decodes", cuda->step.dependent, hopper_byte_kernel<T, DIM, PARTS, E>,
	    (uint32_t)cuda->multiprocessors, HOPPER_THREADS, hopper_byte_sizes<T, DIM, PARTS>::shared, *job);
}

template <class T, int DIM, class E> static enum status launch_type(struct cuda_backend *cuda, const struct hopper_job *job,
    uint32_t parts)
{
	switch (parts) {
	case 2: return launch_parts<T, DIM, 2, E>(cuda, job);
	case 3: return launch_parts<T, DIM, 3, E>(cuda, job);
	default: return launch_parts<T, DIM, 4, E>(cuda, job);
	}
}

template <class T, int DIM> static enum status launch_dim(struct cuda_backend *cuda, const struct hopper_job *job, uint32_t parts,
    enum kv_type type)
{
	return type == KV_F8 ? launch_type<T, DIM, kv_f8>(cuda, job, parts) : launch_type<T, DIM, kv_i8>(cuda, job, parts);
}

enum status attention_byte_launch(struct cuda_backend *cuda, const struct hopper_job *job, uint32_t dim, uint32_t parts,
    enum kv_type type)
{
	if (cuda->dtype == DTYPE_BF16)
		return dim == 64 ? launch_dim<__nv_bfloat16, 64>(cuda, job, parts, type) :
		                   launch_dim<__nv_bfloat16, 128>(cuda, job, parts, type);
	return dim == 64 ? launch_dim<__half, 64>(cuda, job, parts, type) : launch_dim<__half, 128>(cuda, job, parts, type);
}

template <class T, int DIM, int PARTS> static enum status allow_parts(struct cuda_backend *cuda)
{
	int         most = (int)hopper_byte_sizes<T, DIM, PARTS>::shared;
	enum status status = allow_shared(cuda, hopper_byte_kernel<T, DIM, PARTS, kv_f8>, most, "cudaFuncSetAttribute");

	return status ? status : allow_shared(cuda, hopper_byte_kernel<T, DIM, PARTS, kv_i8>, most, "cudaFuncSetAttribute");
}

template <class T> static enum status allow_type(struct cuda_backend *cuda)
{
	enum status status;

	(status = allow_parts<T, 64, 2>(cuda)) || (status = allow_parts<T, 64, 3>(cuda)) || (status = allow_parts<T, 64, 4>(cuda)) ||
	    (status = allow_parts<T, 128, 2>(cuda)) || (status = allow_parts<T, 128, 3>(cuda)) ||
	    (status = allow_parts<T, 128, 4>(cuda));
	return status;
}

enum status attention_byte_prepare(struct cuda_backend *cuda)
{
	enum status status = allow_type<__nv_bfloat16>(cuda);

	return status ? status : allow_type<__half>(cuda);
}
