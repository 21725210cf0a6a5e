/* cpu_backend.h: the CPU backend: plain reference and embedded default.
 *
 * Activations and the KV cache are float32 and are never quantised, so logits match a float32 evaluation of the stored
 * weights.  Operations compute at once on a team of threads; nothing waits.  Kernels are chosen at run time.
 */
#ifndef PENSTOCK_CPU_CPU_BACKEND_H
#define PENSTOCK_CPU_CPU_BACKEND_H

#include "model/backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CPU_THREADS_MAX = 256, CPU_RANKS_MAX = 16 };

enum cpu_isa { CPU_ISA_BEST, CPU_ISA_GENERIC, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_ISA_COUNT };

/* THREADS, the calling one included; 0 = as many as the process may run on.  All operations are called from one thread
 * at a time.  *ret is freed with ret->ops->destroy. */
enum status cpu_backend_create(unsigned threads, struct backend **ret, struct error *error);
/* The same with a given instruction set (tests, benchmarks); STATUS_UNSUPPORTED when this CPU lacks it. */
enum status cpu_backend_create_isa(unsigned threads, enum cpu_isa isa, struct backend **ret, struct error *error);
const char *cpu_isa_name(enum cpu_isa isa); /* "avx2" */
bool        cpu_isa_available(enum cpu_isa isa);
/* Memory is reserved when it is allocated and becomes resident when it is first written, so that a start is quick and a
 * cache that is not full costs nothing.  With PREFAULT all that is allocated from now on is resident at once, and no other
 * program can have taken it when it is needed. */
void cpu_backend_set_prefault(struct backend *b, bool prefault);

/* What was done since the backend was made, for tests of what is not done. */
struct cpu_work {
	uint64_t experts, expert_rows; /* experts read, and rows they multiplied */
	uint64_t attended;             /* rows of latent caches that latent attention read, counted for each query row */
	uint64_t indexed;              /* keys that an indexer scored, counted for each query row */
	uint64_t tiles;                /* made of weights that stay in their files */
};
void cpu_backend_work(const struct backend *b, struct cpu_work *ret);

/* Ranks of one model in one process: one backend each, driven by a thread each through the same steps.  The group outlives
 * them. */
struct cpu_group; /* opaque */
enum status cpu_group_create(uint32_t ranks, struct cpu_group **ret, struct error *error);
void        cpu_group_destroy(struct cpu_group *group);
uint32_t    cpu_group_ranks(const struct cpu_group *group);
/* For a rank that cannot go on: those that wait for it, now or later, get STATUS_UNAVAILABLE instead of waiting for ever. */
void        cpu_group_break(struct cpu_group *group);
enum status cpu_backend_create_rank(unsigned threads, enum cpu_isa isa, struct cpu_group *group, uint32_t rank,
    struct backend **ret, struct error *error);

#ifdef __cplusplus
}
#endif
#endif
