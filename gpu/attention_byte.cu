/* attention_byte.cu: launches of own decode attention over pages of bytes (attention_hopper_byte.cuh), for attention.cu. */
#include "gpu/attention_hopper_byte.cuh"
#include "gpu/launch.cuh"

template <class T, int DIM, int TILES, class E> static enum status launch_tiles(struct cuda_backend *cuda,
    const struct hopper_job *job)
{
	return launch(cuda, "own attention of decodes", cuda->step.dependent, hopper_byte_kernel<T, DIM, TILES, E>,
	    (uint32_t)cuda->multiprocessors, HOPPER_THREADS, hopper_byte_sizes<T, DIM, TILES>::shared, *job);
}

template <class T, int DIM> static enum status launch_dim(struct cuda_backend *cuda, const struct hopper_job *job, uint32_t tiles,
    enum kv_type type)
{
	if (type == KV_F8)
		return tiles == 1 ? launch_tiles<T, DIM, 1, kv_f8>(cuda, job) : launch_tiles<T, DIM, 2, kv_f8>(cuda, job);
	return tiles == 1 ? launch_tiles<T, DIM, 1, kv_i8>(cuda, job) : launch_tiles<T, DIM, 2, kv_i8>(cuda, job);
}

enum status attention_byte_launch(struct cuda_backend *cuda, const struct hopper_job *job, uint32_t dim, uint32_t tiles,
    enum kv_type type)
{
	if (cuda->dtype == DTYPE_BF16)
		return dim == 64 ? launch_dim<__nv_bfloat16, 64>(cuda, job, tiles, type) :
		                   launch_dim<__nv_bfloat16, 128>(cuda, job, tiles, type);
	return dim == 64 ? launch_dim<__half, 64>(cuda, job, tiles, type) : launch_dim<__half, 128>(cuda, job, tiles, type);
}

template <class T, int DIM, int TILES> static enum status allow_tiles(struct cuda_backend *cuda)
{
	int         most = (int)hopper_byte_sizes<T, DIM, TILES>::shared;
	enum status status = allow_shared(cuda, hopper_byte_kernel<T, DIM, TILES, kv_f8>, most, "cudaFuncSetAttribute");

	return status ? status : allow_shared(cuda, hopper_byte_kernel<T, DIM, TILES, kv_i8>, most, "cudaFuncSetAttribute");
}

template <class T> static enum status allow_type(struct cuda_backend *cuda)
{
	enum status status;

	(status = allow_tiles<T, 64, 1>(cuda)) || (status = allow_tiles<T, 64, 2>(cuda)) ||
	    (status = allow_tiles<T, 128, 1>(cuda)) || (status = allow_tiles<T, 128, 2>(cuda));
	return status;
}

enum status attention_byte_prepare(struct cuda_backend *cuda)
{
	enum status status = allow_type<__nv_bfloat16>(cuda);

	return status ? status : allow_type<__half>(cuda);
}
