/* cpu_backend.h: the CPU backend: plain reference and embedded default.
 *
 * Activations and the KV cache are float32 and are never quantised, so logits match a float32 evaluation of the stored
 * weights.  Operations compute at once on a team of threads; nothing waits.  Kernels are chosen at run time.
 */
#ifndef PENSTOCK_CPU_CPU_BACKEND_H
#define PENSTOCK_CPU_CPU_BACKEND_H

#include "model/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CPU_THREADS_MAX = 256 };

enum cpu_isa { CPU_ISA_BEST, CPU_ISA_GENERIC, CPU_ISA_AVX2 };

/* THREADS, the calling one included; 0 = as many as the process may run on.  All operations are called from one thread
 * at a time.  *ret is freed with ret->ops->destroy. */
enum status cpu_backend_create(unsigned threads, struct backend **ret, struct error *error);
/* The same with a given instruction set (tests, benchmarks); STATUS_UNSUPPORTED when this CPU lacks it. */
enum status cpu_backend_create_isa(unsigned threads, enum cpu_isa isa, struct backend **ret, struct error *error);

#ifdef __cplusplus
}
#endif
#endif
