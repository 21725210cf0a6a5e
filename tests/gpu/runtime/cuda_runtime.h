/* cuda_runtime.h: as much of CUDA's runtime as the host side of loading calls, without a device, for tests.
 *
 * A stream is a list of what was enqueued.  Of all that streams and events allow, what runs next is up to chance, and nothing runs
 * before it has to or chance wants it: so a missing wait shows, as bytes that are overwritten before they were read or read before
 * they came, whichever of the two orders a device would have taken.  Device memory is host memory, poisoned when it is taken. */
#ifndef PENSTOCK_TESTS_CUDA_RUNTIME_H
#define PENSTOCK_TESTS_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include <functional>

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorUnknown };
enum cudaMemcpyKind { cudaMemcpyHostToDevice };
enum { cudaEventDisableTiming = 2, cudaEventBlockingSync = 1, cudaHostAllocPortable = 1 };

typedef struct runtime_stream *cudaStream_t;
typedef struct runtime_event  *cudaEvent_t;
typedef struct runtime_graph  *cudaGraphExec_t;

cudaError_t cudaSetDevice(int device);
cudaError_t cudaPeekAtLastError(void);
cudaError_t cudaGetLastError(void);
cudaError_t cudaMalloc(void **ret, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t *ret);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ret, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

/* ---- What tests ask ---- */

cudaStream_t runtime_stream_make(void);
/* KERNEL runs in the order of STREAM. */
void runtime_launch(cudaStream_t stream, std::function<void()> kernel);
/* The next choices; the COUNTth call from now that can fail fails with CODE (0: none). */
void runtime_reset(uint64_t seed, unsigned count, cudaError_t code);
/* Allocations and events that were not given back; calls that cannot be right (copies from or to memory that is gone). */
unsigned runtime_leaks(void);
unsigned runtime_errors(void);

#endif
