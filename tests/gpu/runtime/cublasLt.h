/* cublasLt.h: the types of it that gpu/cuda.h names, for tests without a toolkit. */
#ifndef PENSTOCK_TESTS_CUBLASLT_H
#define PENSTOCK_TESTS_CUBLASLT_H

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtDesc    *cublasLtMatmulDesc_t;
typedef struct cublasLtLayout  *cublasLtMatrixLayout_t;
typedef struct {
	unsigned char bytes[64];
} cublasLtMatmulAlgo_t;

#endif
