/* device.cuh: the instructions that kernels use beyond the language: one small inline function each, inline PTX under nvcc.
 *
 * Kernels that are tested without a device include this file and plain headers only.  Under any other compiler the same names
 * come from the tests' emulator (tests/gpu/emulate/emulate.h, on the include path of those tests), which has every function
 * below and checks what a device does not: alignment, masks, phases, what is read before it arrived.  A name that is added
 * here is added there.
 *
 * Pointers to shared memory are ordinary (generic) pointers; an overload with a 32-bit address (shared_address) is there where
 * loops compute addresses.  What needs sm_90 says so: such a function must not be called in code compiled for less.
 *
 * What kernels here use has run on an H200, in tests/gpu/run.  Not so wgmma with MN-major operands or 32- and 64-byte swizzles,
 * which no kernel uses: the emulator takes their layouts from the PTX manual.
 *
 * Invariant: every wrapper that touches memory is volatile with a "memory" clobber, so that the compiler keeps the order of
 * the program around it; wgmma has none, wgmma_fence and wgmma_wait stand around it. */
#ifndef PENSTOCK_GPU_DEVICE_CUH
#define PENSTOCK_GPU_DEVICE_CUH

#include <stddef.h>
#include <stdint.h>

/* An mbarrier in shared memory, 8-byte aligned. */
typedef uint64_t mbarrier;

/* Swizzle of shared memory, as descriptors of wgmma encode it: 16-byte chunks of an address are xored with its bits from 7 on. */
enum swizzle { SWIZZLE_NONE, SWIZZLE_128, SWIZZLE_64, SWIZZLE_32 };

/* What a tensor map describes: RANK dimensions, the innermost first, strides in bytes from the second on.  Elements beyond
 * a dimension read as zeroes.  Limits: address and strides multiples of 16, box ≤ 256, a row of the box a multiple of 16 bytes
 * and ≤ the span of the swizzle. */
enum tensor_type { TENSOR_U8, TENSOR_U16, TENSOR_U32, TENSOR_BF16, TENSOR_F16, TENSOR_F32 };
struct tensor_layout {
	enum tensor_type type;
	uint32_t rank;
	const void *address;
	uint64_t dims[5], strides[5]; /* strides[0] is not used */
	uint32_t box[5];
	enum swizzle swizzle;
};

/* Columns of wgmma that there are here (WGMMA_EACH). */
template <int N>
static constexpr bool wgmma_width = N == 8 || N == 16 || N == 32 || N == 64 || N == 128 || N == 176 || N == 208 || N == 256;

#ifdef __CUDACC__

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

typedef CUtensorMap tensor_map;

#define DEVICE_NOINLINE __noinline__
/* A kernel's dynamic shared memory under a name, aligned to 16. */
#define DYNAMIC_SHARED(name) extern __shared__ char name[]

/* ---- Shared memory ---- */

/* The block's dynamic shared memory, aligned to 1024 in kernels that have no static shared variables; others that need it
 * round up themselves. */
__device__ static inline char *shared_memory(void)
{
	extern __shared__ __align__(1024) char device_shared[];
	return device_shared;
}

__device__ static inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* ---- Barriers of a block ---- */

/* Whole warps only.  Barrier 0 is __syncthreads. */
__device__ static inline void named_barrier_sync(uint32_t id, uint32_t threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ static inline void named_barrier_arrive(uint32_t id, uint32_t threads)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- mbarriers (sm_90) ---- */

/* Built with RING_STALL (make stall/penstock-cuda.so) a warp comes late, one time in eight and by up to 4 µs, to each mbarrier
 * that it waits for or arrives at.  The clock says when: no two launches are alike, what is right owes nothing to luck. */
__device__ static inline void ring_stall(void)
{
#ifdef RING_STALL
	uint32_t h = ((uint32_t)clock64() ^ blockIdx.x << 5 ^ threadIdx.x / 32) * 0x9E3779B1;

	h = (h ^ h >> 15) * 0x85EBCA6B;
	h ^= h >> 13;
	__nanosleep(h % 8 ? 0 : h >> 20);
#endif
}

__device__ static inline void barrier_init(mbarrier *b, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}

/* After barrier_init, by the thread that did it, before __syncthreads. */
__device__ static inline void fence_barrier_init(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/* Arrives, and the phase also waits for BYTES that copies bring. */
__device__ static inline void barrier_expect(mbarrier *b, uint32_t bytes)
{
	ring_stall();
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}

/* The phase also waits for BYTES; does not arrive. */
__device__ static inline void barrier_expect_more(mbarrier *b, uint32_t bytes)
{
	asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}

__device__ static inline void barrier_arrive(mbarrier *b)
{
	ring_stall();
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

/* Until the phase of PARITY has completed: 0 is the first one; of a fresh barrier, that of 1 counts as completed. */
__device__ static inline void barrier_wait(mbarrier *b, uint32_t parity)
{
	ring_stall();
	asm volatile("{\n\t.reg .pred done;\nPENSTOCK_WAIT_%=:\n\t"
	    "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
	    "@done bra PENSTOCK_DONE_%=;\n\tbra PENSTOCK_WAIT_%=;\nPENSTOCK_DONE_%=:\n\t}" ::"r"(shared_address(b)), "r"(parity)
	    : "memory");
}

/* Whether it has; does not wait for it. */
__device__ static inline bool barrier_test(mbarrier *b, uint32_t parity)
{
	uint32_t done;

	asm volatile("{\n\t.reg .pred done;\n\tmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
	    "selp.b32 %0, 1, 0, done;\n\t}" : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
	return done;
}

/* Arrives at the same barrier of block RANK of the cluster; says nothing about what this thread wrote (ordered among blocks, it
 * would wait for the whole device at each arrival). */
__device__ static inline void barrier_arrive_cluster(mbarrier *b, uint32_t rank)
{
	ring_stall();
	asm volatile("{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
	    "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(shared_address(b)), "r"(rank) : "memory");
}

/* All threads of all blocks of the cluster meet. */
__device__ static inline void cluster_sync(void)
{
	asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* What this thread wrote to shared memory with ordinary stores is seen by wgmma and by copies that read shared memory. */
__device__ static inline void fence_async_proxy(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- Copies ---- */

/* Cache hints of copies (sm_80). */
__device__ static inline uint64_t cache_evict_first(void)
{
	uint64_t policy;

	asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
	return policy;
}

__device__ static inline uint64_t cache_evict_last(void)
{
	uint64_t policy;

	asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
	return policy;
}

/* BYTES from global to shared memory, all a multiple of 16; B gets them (sm_90). */
__device__ static inline void bulk_copy(void *smem, const void *global, uint32_t bytes, mbarrier *b)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
	    shared_address(smem)), "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(b)) : "memory");
}

__device__ static inline void bulk_copy(void *smem, const void *global, uint32_t bytes, mbarrier *b, uint64_t policy)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
	    "r"(shared_address(smem)), "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(b)), "l"(policy)
	    : "memory");
}

/* Into L2 only; multiples of 16 (sm_90). */
__device__ static inline void bulk_prefetch(const void *global, uint32_t bytes)
{
	asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(global)), "r"(bytes) : "memory");
}

/* BYTES from shared to global memory; in groups, as cp_async (sm_90).  After fence_async_proxy of those who wrote them. */
__device__ static inline void bulk_store(void *global, const void *smem, uint32_t bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(global)),
	    "r"(shared_address(smem)), "r"(bytes) : "memory");
}

/* A box from shared memory, where it lies as a load would have put it; what is beyond the tensor is not written (sm_90). */
__device__ static inline void tma_store_2d(const tensor_map *map, int32_t x, int32_t y, const void *smem)
{
	asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y),
	    "r"(shared_address(smem)) : "memory");
}

__device__ static inline void bulk_store_commit(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Until all but the last N groups have been written. */
template <int N> __device__ static inline void bulk_store_wait(void)
{
	asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

/* Until all but the last N groups have been read from shared memory. */
template <int N> __device__ static inline void bulk_store_wait_read(void)
{
	asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* Boxes of a tensor (sm_90): X is the innermost coordinate.  The box lies at SMEM, aligned to 128, with a swizzle to its
 * whole pattern (1024 for SWIZZLE_128); B gets the bytes of the whole box, whatever of it lies beyond the tensor. */
__device__ static inline void tma_load_2d(void *smem, const tensor_map *map, int32_t x, int32_t y, mbarrier *b)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
	    "r"(shared_address(smem)), "l"(map), "r"(x), "r"(y), "r"(shared_address(b)) : "memory");
}

__device__ static inline void tma_load_2d(void *smem, const tensor_map *map, int32_t x, int32_t y, mbarrier *b, uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
	    "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(smem)), "l"(map), "r"(x), "r"(y), "r"(shared_address(b)),
	    "l"(policy) : "memory");
}

__device__ static inline void tma_load_3d(void *smem, const tensor_map *map, int32_t x, int32_t y, int32_t z, mbarrier *b)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
	    "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(smem)), "l"(map), "r"(x), "r"(y), "r"(z),
	    "r"(shared_address(b)) : "memory");
}

__device__ static inline void tma_load_3d(void *smem, const tensor_map *map, int32_t x, int32_t y, int32_t z, mbarrier *b,
    uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
	    "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(smem)), "l"(map), "r"(x), "r"(y), "r"(z),
	    "r"(shared_address(b)), "l"(policy) : "memory");
}

/* Into the same place of every block of the cluster that MASK names; the barrier B of each gets the bytes. */
__device__ static inline void tma_load_3d_multicast(void *smem, const tensor_map *map, int32_t x, int32_t y, int32_t z, mbarrier *b,
    uint16_t mask, uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
	    ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(shared_address(smem)), "l"(map), "r"(x), "r"(y), "r"(z),
	    "r"(shared_address(b)), "h"(mask), "l"(policy) : "memory");
}

__device__ static inline void tma_load_4d(void *smem, const tensor_map *map, int32_t x, int32_t y, int32_t z, int32_t w,
    mbarrier *b)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
	    "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(smem)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w),
	    "r"(shared_address(b)) : "memory");
}

__device__ static inline void tma_load_4d(void *smem, const tensor_map *map, int32_t x, int32_t y, int32_t z, int32_t w,
    mbarrier *b, uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
	    "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(smem)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w),
	    "r"(shared_address(b)), "l"(policy) : "memory");
}

__device__ static inline void tma_load_5d(void *smem, const tensor_map *map, int32_t x, int32_t y, int32_t z, int32_t w, int32_t v,
    mbarrier *b)
{
	asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
	    "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_address(smem)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v),
	    "r"(shared_address(b)) : "memory");
}

__device__ static inline void tma_load_5d(void *smem, const tensor_map *map, int32_t x, int32_t y, int32_t z, int32_t w, int32_t v,
    mbarrier *b, uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
	    "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(smem)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w),
	    "r"(v), "r"(shared_address(b)), "l"(policy) : "memory");
}

__device__ static inline void tma_prefetch_map(const tensor_map *map)
{
	asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* 16 bytes, of which BYTES_VALID (0…16) are read and the rest zeroes (sm_80). */
__device__ static inline void cp_async_16(uint32_t smem, const void *global, uint32_t bytes_valid)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem), "l"(__cvta_generic_to_global(global)),
	    "r"(bytes_valid) : "memory");
}

__device__ static inline void cp_async_16(void *smem, const void *global, uint32_t bytes_valid)
{
	cp_async_16(shared_address(smem), global, bytes_valid);
}

__device__ static inline void cp_async_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until all but this thread's last N groups have arrived. */
template <int N> __device__ static inline void cp_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- Matrices of a warp ---- */

/* Four 8 × 8 matrices of 16 bits: lanes 8i…8i + 7 point to the rows of matrix i. */
__device__ static inline void ldmatrix_x4(uint32_t r[4], uint32_t smem)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem) : "memory");
}

__device__ static inline void ldmatrix_x4_trans(uint32_t r[4], uint32_t smem)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem) : "memory");
}

__device__ static inline void ldmatrix_x2(uint32_t r[2], uint32_t smem)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(smem) : "memory");
}

/* The other way (sm_90): R are fragments of four matrices; column I of matrix M becomes the row to which lane 8 · M + I points. */
__device__ static inline void stmatrix_x4_trans(uint32_t smem, const uint32_t r[4])
{
#if __CUDA_ARCH__ >= 900
	asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(r[0]), "r"(r[1]),
	    "r"(r[2]), "r"(r[3])
	    : "memory");
#endif
}

__device__ static inline void ldmatrix_x4(uint32_t r[4], const void *smem) { ldmatrix_x4(r, shared_address(smem)); }
__device__ static inline void ldmatrix_x4_trans(uint32_t r[4], const void *smem) { ldmatrix_x4_trans(r, shared_address(smem)); }
__device__ static inline void ldmatrix_x2(uint32_t r[2], const void *smem) { ldmatrix_x2(r, shared_address(smem)); }

/* c [16, 8] += a [16, 16] · b [16, 8]; with g = lane / 4, t = lane % 4:
 *      a: rows g, g + 8, g, g + 8 at k = 2t, 2t, 2t + 8, 2t + 8; b: column g at k = 2t, 2t + 8; c: rows g, g + 8 at 2t, 2t + 1 */
template <class T> __device__ static inline void mma_m16n8k16(float c[4], const uint32_t a[4], const uint32_t b[2]);
template <> __device__ inline void mma_m16n8k16<__nv_bfloat16>(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
	    "{%0, %1, %2, %3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <> __device__ inline void mma_m16n8k16<__half>(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
	    "{%0, %1, %2, %3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Likewise with k of 32: four bytes a word, at k = 4t and 4t + 16. */
__device__ static inline void mma_m16n8k32_s8(int32_t c[4], const uint32_t a[4], const uint32_t b[2])
{
	asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
	    "{%0, %1, %2, %3};"
	    : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* sm_89. */
__device__ static inline void mma_m16n8k32_e4m3(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
	    "{%0, %1, %2, %3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ---- wgmma: matrices of a warpgroup (sm_90a) ----
 *
 * acc [64, N] (+)= a [64, K] · b [K, N], K = 16 for 16-bit types, 32 for 8-bit ones.  Warp w of the four has rows 16w…16w + 15;
 * of N / 2 values, 4j, 4j + 1 are row g at columns 8j + 2t, 8j + 2t + 1, and 4j + 2, 4j + 3 the same of row g + 8.  Fragments
 * of a in registers are those of mma.  The order is
 *
 *      wgmma_fence ─► wgmma_… ─► wgmma_commit ─► wgmma_wait<0> ─► wgmma_settle(acc)
 *
 * with a fence whenever registers of acc or a were written; neither may be touched until the wait.  KEEP = 0: acc is not read.
 * wgmma must not stand under a condition that the compiler cannot resolve: it serialises those (C7520). */
__device__ static inline void wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ static inline void wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ static inline void wgmma_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps reads of accumulators behind the wait. */
template <int COUNT> __device__ static inline void wgmma_settle(float *acc)
{
#pragma unroll
	for (int i = 0; i < COUNT; i++)
		asm volatile("" : "+f"(acc[i])::"memory");
}
template <int COUNT> __device__ static inline void wgmma_settle(int32_t *acc)
{
#pragma unroll
	for (int i = 0; i < COUNT; i++)
		asm volatile("" : "+r"(acc[i])::"memory");
}
template <class A, int COUNT> __device__ static inline void wgmma_settle(A (&acc)[COUNT]) { wgmma_settle<COUNT>(&acc[0]); }

/* What lies at SMEM.  A chunk is 16 bytes; rows are those of a, or columns of b:
 *      K-major, no swizzle:   8 rows of one chunk lie together (128 bytes); LBO to the next chunk along k, SBO to the next 8 rows
 *      K-major, swizzle of S: rows of S bytes, SBO (8 · S) to the next 8 rows; LBO is not used; next k: SMEM + bytes of k
 *      MN-major (TRANS), no swizzle: 8 k of one chunk of rows lie together; SBO to the next chunk of rows, LBO to the next 8 k
 *      MN-major, swizzle of S: lines of S bytes of rows, one for each k; SBO (8 · S) to the next 8 k, LBO to the next S bytes
 * Swizzled tiles begin at multiples of 8 · S.  MN-major is for 16-bit types. */
__device__ static inline uint64_t wgmma_descriptor(uint32_t smem, uint32_t lbo, uint32_t sbo, enum swizzle swizzle)
{
	return (uint64_t)((smem & 0x3ffff) >> 4) | (uint64_t)((lbo & 0x3ffff) >> 4) << 16 | (uint64_t)((sbo & 0x3ffff) >> 4) << 32 |
	    (uint64_t)swizzle << 62;
}
__device__ static inline uint64_t wgmma_descriptor(const void *smem, uint32_t lbo, uint32_t sbo, enum swizzle swizzle)
{
	return wgmma_descriptor(shared_address(smem), lbo, sbo, swizzle);
}

template <class T> struct wgmma_sum {
	typedef float type;
};
template <> struct wgmma_sum<int8_t> {
	typedef int32_t type;
};

/* Names of the accumulators in an instruction, and the operands they are. */
#define WGMMA_NAMES_8 "%0, %1, %2, %3"
#define WGMMA_NAMES_16 WGMMA_NAMES_8 ", %4, %5, %6, %7"
#define WGMMA_NAMES_32 WGMMA_NAMES_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_64 WGMMA_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_128                                                                                                         \
	WGMMA_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
	"%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_256                                                                                                           \
	WGMMA_NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "  \
	"%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "    \
	"%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
	"%126, %127"
#define WGMMA_NAMES_176                                                                                                           \
	WGMMA_NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "  \
	"%84, %85, %86, %87"
#define WGMMA_NAMES_208                                                                                                           \
	WGMMA_NAMES_176 ", %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_FOUR(c, d, i) c(d[i]), c(d[(i) + 1]), c(d[(i) + 2]), c(d[(i) + 3])
#define WGMMA_SIXTEEN(c, d, i) WGMMA_FOUR(c, d, i), WGMMA_FOUR(c, d, (i) + 4), WGMMA_FOUR(c, d, (i) + 8), WGMMA_FOUR(c, d, (i) + 12)
#define WGMMA_SUMS_8(c, d) WGMMA_FOUR(c, d, 0)
#define WGMMA_SUMS_16(c, d) WGMMA_FOUR(c, d, 0), WGMMA_FOUR(c, d, 4)
#define WGMMA_SUMS_32(c, d) WGMMA_SIXTEEN(c, d, 0)
#define WGMMA_SUMS_64(c, d) WGMMA_SIXTEEN(c, d, 0), WGMMA_SIXTEEN(c, d, 16)
#define WGMMA_SUMS_128(c, d) WGMMA_SUMS_64(c, d), WGMMA_SIXTEEN(c, d, 32), WGMMA_SIXTEEN(c, d, 48)
#define WGMMA_SUMS_176(c, d) WGMMA_SUMS_128(c, d), WGMMA_SIXTEEN(c, d, 64), WGMMA_FOUR(c, d, 80), WGMMA_FOUR(c, d, 84)
#define WGMMA_SUMS_208(c, d) WGMMA_SUMS_176(c, d), WGMMA_SIXTEEN(c, d, 88)
#define WGMMA_SUMS_256(c, d)                                                                                          \
	WGMMA_SUMS_128(c, d), WGMMA_SIXTEEN(c, d, 64), WGMMA_SIXTEEN(c, d, 80), WGMMA_SIXTEEN(c, d, 96), WGMMA_SIXTEEN(c, d, 112)

/* CASE for each N, with the numbers of the operands behind the accumulators. */
#define WGMMA_EACH(CASE, c, types)                                              \
	CASE(c, types, 8, "%4", "%5", "%6", "%7", "%8", "%9", "%10")            \
	CASE(c, types, 16, "%8", "%9", "%10", "%11", "%12", "%13", "%14")       \
	CASE(c, types, 32, "%16", "%17", "%18", "%19", "%20", "%21", "%22")     \
	CASE(c, types, 64, "%32", "%33", "%34", "%35", "%36", "%37", "%38")     \
	CASE(c, types, 128, "%64", "%65", "%66", "%67", "%68", "%69", "%70")    \
	CASE(c, types, 176, "%88", "%89", "%90", "%91", "%92", "%93", "%94")    \
	CASE(c, types, 208, "%104", "%105", "%106", "%107", "%108", "%109", "%110") \
	CASE(c, types, 256, "%128", "%129", "%130", "%131", "%132", "%133", "%134")

/* a and b in shared memory. */
#define WGMMA_SS(c, types, n, a, b, keep, tail)                                                                                   \
	if constexpr (N == n)                                                                                                     \
		asm volatile("{\n\t.reg .pred keeps;\n\tsetp.ne.b32 keeps, " keep ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #n  \
		    types " {" WGMMA_NAMES_##n "}, " a ", " b ", keeps" tail ";\n\t}"                                             \
		    : WGMMA_SUMS_##n(c, acc) : "l"(desc_a), "l"(desc_b), "r"(keep_acc), "n"(TRANS_A), "n"(TRANS_B));
#define WGMMA_SS_16BIT(c, types, n, i0, i1, i2, i3, i4, i5, i6) WGMMA_SS(c, "k16" types, n, i0, i1, i2, ", 1, 1, " i3 ", " i4)
#define WGMMA_SS_F8(c, types, n, i0, i1, i2, i3, i4, i5, i6) WGMMA_SS(c, "k32" types, n, i0, i1, i2, ", 1, 1")
#define WGMMA_SS_S8(c, types, n, i0, i1, i2, i3, i4, i5, i6) WGMMA_SS(c, "k32" types, n, i0, i1, i2, "")

/* a in registers. */
#define WGMMA_RS(c, types, n, i0, i1, i2, i3, b, keep, tail)                                                                      \
	if constexpr (N == n)                                                                                                     \
		asm volatile("{\n\t.reg .pred keeps;\n\tsetp.ne.b32 keeps, " keep ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #n  \
		    types " {" WGMMA_NAMES_##n "}, {" i0 ", " i1 ", " i2 ", " i3 "}, " b ", keeps" tail ";\n\t}"                  \
		    : WGMMA_SUMS_##n(c, acc)                                                                                      \
		    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b), "r"(keep_acc), "n"(TRANS_B));
#define WGMMA_RS_16BIT(c, types, n, i0, i1, i2, i3, i4, i5, i6) WGMMA_RS(c, "k16" types, n, i0, i1, i2, i3, i4, i5, ", 1, 1, " i6)
#define WGMMA_RS_F8(c, types, n, i0, i1, i2, i3, i4, i5, i6) WGMMA_RS(c, "k32" types, n, i0, i1, i2, i3, i4, i5, ", 1, 1")
#define WGMMA_RS_S8(c, types, n, i0, i1, i2, i3, i4, i5, i6) WGMMA_RS(c, "k32" types, n, i0, i1, i2, i3, i4, i5, "")

template <class A, class B> struct wgmma_same {
	static constexpr bool value = false;
};
template <class A> struct wgmma_same<A, A> {
	static constexpr bool value = true;
};

template <class T, int N, int TRANS_A = 0, int TRANS_B = 0> __device__ static inline void wgmma_ss(
    typename wgmma_sum<T>::type *acc, uint64_t desc_a, uint64_t desc_b, int keep_acc)
{
	static_assert(wgmma_width<N>, "no such wgmma here: add it to WGMMA_EACH");
	static_assert(sizeof(T) == 2 || (!TRANS_A && !TRANS_B), "8-bit operands are K-major");
	if constexpr (wgmma_same<T, __nv_bfloat16>::value) {
		WGMMA_EACH(WGMMA_SS_16BIT, "+f", ".f32.bf16.bf16")
	} else if constexpr (wgmma_same<T, __half>::value) {
		WGMMA_EACH(WGMMA_SS_16BIT, "+f", ".f32.f16.f16")
	} else if constexpr (wgmma_same<T, __nv_fp8_e4m3>::value) {
		WGMMA_EACH(WGMMA_SS_F8, "+f", ".f32.e4m3.e4m3")
	} else {
		static_assert(wgmma_same<T, int8_t>::value, "types: bf16, half, fp8 e4m3, int8");
		WGMMA_EACH(WGMMA_SS_S8, "+r", ".s32.s8.s8")
	}
}

template <class T, int N, int TRANS_B = 0> __device__ static inline void wgmma_rs(typename wgmma_sum<T>::type *acc,
    const uint32_t a[4], uint64_t desc_b, int keep_acc)
{
	static_assert(wgmma_width<N>, "no such wgmma here: add it to WGMMA_EACH");
	static_assert(sizeof(T) == 2 || !TRANS_B, "8-bit operands are K-major");
	if constexpr (wgmma_same<T, __nv_bfloat16>::value) {
		WGMMA_EACH(WGMMA_RS_16BIT, "+f", ".f32.bf16.bf16")
	} else if constexpr (wgmma_same<T, __half>::value) {
		WGMMA_EACH(WGMMA_RS_16BIT, "+f", ".f32.f16.f16")
	} else if constexpr (wgmma_same<T, __nv_fp8_e4m3>::value) {
		WGMMA_EACH(WGMMA_RS_F8, "+f", ".f32.e4m3.e4m3")
	} else {
		static_assert(wgmma_same<T, int8_t>::value, "types: bf16, half, fp8 e4m3, int8");
		WGMMA_EACH(WGMMA_RS_S8, "+r", ".s32.s8.s8")
	}
}

/* A warpgroup's share of registers: multiples of 8 from 24 to 256; the kernel has __launch_bounds__ (sm_90a). */
template <int N> __device__ static inline void registers_raise(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ static inline void registers_lower(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- Programmatic dependent launch ---- */

/* Until the kernels before this one have ended and what they wrote is seen (sm_90; else a launch waits for them anyway). */
__device__ static inline void dependency_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel may begin when all blocks have come here. */
__device__ static inline void dependents_launch(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- Arithmetic and words ---- */

__device__ static inline float exp2_approximate(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Any function of three bits, for each bit: bit (4a + 2b + c) of TABLE. */
template <int TABLE> __device__ static inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t ret;

	asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(ret) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
	return ret;
}

/* Words that blocks hand to each other through global memory. */
__device__ static inline uint32_t load_acquire(const uint32_t *p)
{
	uint32_t ret;

	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ret) : "l"(__cvta_generic_to_global(p)) : "memory");
	return ret;
}
__device__ static inline void store_release(uint32_t *p, uint32_t value)
{
	asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "r"(value) : "memory");
}
__device__ static inline void add_release(uint32_t *p, uint32_t value)
{
	asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "r"(value) : "memory");
}

/* Nanoseconds of the device's clock. */
__device__ static inline unsigned long long device_clock(void)
{
	unsigned long long ns;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
	return ns;
}

#else
#include "emulate.h" /* on the include path of emulated tests */
#endif

/* Host: 0, or a driver's error code. */
int tensor_map_encode(const struct tensor_layout *layout, tensor_map *ret);

#endif
