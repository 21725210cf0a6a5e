/* tensor.cu: owns the way to the driver's cuTensorMapEncodeTiled, which is looked up once: the object does not link libcuda.
 * Invariant: a layout that the driver refuses is an error, never a map.
 *
 * Promotion to 128 bytes in L2: with 256 the other half of a row's 256 bytes is brought before it is wanted; weights of 16 bits
 * were read 3 to 6 % slower (H200). */
#include "gpu/device.cuh"

typedef CUresult encode_function(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
    const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
    CUtensorMapFloatOOBfill);

static encode_function *find_encode(void)
{
	void                          *found = NULL;
	cudaDriverEntryPointQueryResult state;

	if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &state) != cudaSuccess ||
	    state != cudaDriverEntryPointSuccess) {
		cudaGetLastError();
		return NULL;
	}
	return (encode_function *)found;
}

int tensor_map_encode(const struct tensor_layout *layout, tensor_map *ret)
{
	static encode_function *const encode = find_encode();
	static const CUtensorMapDataType types[] = { CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT16,
		CU_TENSOR_MAP_DATA_TYPE_UINT32, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
		CU_TENSOR_MAP_DATA_TYPE_FLOAT32 };
	static const CUtensorMapSwizzle swizzles[] = { CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
		CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_32B };
	static const cuuint32_t steps[5] = { 1, 1, 1, 1, 1 };
	cuuint64_t              dims[5], strides[5];
	cuuint32_t              box[5];

	if (!encode)
		return CUDA_ERROR_NOT_FOUND;
	for (uint32_t i = 0; i < layout->rank; i++) {
		dims[i] = layout->dims[i];
		strides[i] = layout->strides[i];
		box[i] = layout->box[i];
	}
	return encode(ret, types[layout->type], layout->rank, (void *)layout->address, dims, strides + 1, box, steps,
	    CU_TENSOR_MAP_INTERLEAVE_NONE, swizzles[layout->swizzle], CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
	    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}
