/* emulate.h: gpu/device.cuh for tests on a machine without a device: kernels compiled by g++ run on the host's processor.
 *
 * A block's threads are fibers, blocks run one after another, both in an order that the seed decides.  What a device does
 * later or elsewhere happens here at a moment that the seed picks between the earliest and the latest allowed: copies arrive
 * late and leave poison until then, wgmma reads its operands between its issue and the wait and shows its sums only after the
 * wait, warps stall.  So one kernel run with a few seeds meets the orders in which a missing wait, fence or barrier shows.
 *
 *      const char *error = emulate(grid, block, shared_bytes, { .seed = 7 }, [&] { kernel<T, 64>(job); });
 *
 * NULL, or what is wrong with the words of the thread that did it; the first error ends the launch.  Errors: masks that name
 * an ended lane or disagree, part of a warp at a barrier, an mbarrier that was not begun, was overwritten or had too many
 * arrivals, a wait that missed a phase (a parity cannot tell it from the next one), misaligned or overlong copies, operands of
 * wgmma that no fence made visible, accumulators touched in flight, shared memory written beyond its end, writes before
 * dependency_wait, and a deadlock, with what every thread waits for.
 *
 * What it does not do: clusters, several blocks at a time (a block must not wait for a later one), the time anything takes,
 * memory orders between blocks.  Static shared variables are static variables: not poisoned between blocks, and not checked;
 * tiles of ldmatrix, wgmma and bulk copies lie in dynamic shared memory.
 *
 * Arithmetic.  Conversions round as a device does.  Of a matrix instruction products are exact, and the accumulator and they
 * are added in double in ascending k, then rounded once to float32: more exact than a device, whose order within an instruction
 * is not documented and which sums fp8 in fewer bits.  So tests compare with tolerances, but results here do not depend on the
 * seed. */
#ifndef PENSTOCK_TESTS_GPU_EMULATE_H
#define PENSTOCK_TESTS_GPU_EMULATE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <vector>

/* ---- The language ---- */

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define DEVICE_NOINLINE __attribute__((noinline))
#define DYNAMIC_SHARED(name) char *name = shared_memory()

struct uint3 {
	uint32_t x, y, z;
};
struct dim3 {
	uint32_t x, y, z;
	dim3(uint32_t x_ = 1, uint32_t y_ = 1, uint32_t z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* Of the fiber that runs. */
extern uint3 threadIdx, blockIdx;
extern dim3  blockDim, gridDim;

#define EMULATE_VECTOR(type, scalar)                                                        \
	struct alignas(2 * sizeof(scalar)) type##2 {                                        \
		scalar x, y;                                                                \
	};                                                                                  \
	struct alignas(4 * sizeof(scalar)) type##4 {                                        \
		scalar x, y, z, w;                                                          \
	};                                                                                  \
	static inline type##2 make_##type##2(scalar x, scalar y) { return { x, y }; }       \
	static inline type##4 make_##type##4(scalar x, scalar y, scalar z, scalar w) { return { x, y, z, w }; }
EMULATE_VECTOR(float, float)
EMULATE_VECTOR(uint, uint32_t)
EMULATE_VECTOR(int, int32_t)
EMULATE_VECTOR(ushort, uint16_t)
EMULATE_VECTOR(uchar, uint8_t)

/* ---- Running ---- */

struct emulate_range {
	void  *at;
	size_t bytes;
};

struct emulate_options {
	uint64_t seed = 0;
	/* What the kernels before this one read and write: in each block it holds poison until a thread has come through
	 * dependency_wait, also for copies that were started before, and must not be written until then. */
	std::vector<emulate_range> before = {};
	bool     skips_phases = false; /* threads may leave out phases of an mbarrier, since something else orders them */
};

const char *emulate_blocks(dim3 grid, dim3 block, size_t shared_bytes, const emulate_options &options, void (*body)(void *),
    void *context);

template <class F> static inline const char *emulate(dim3 grid, dim3 block, size_t shared_bytes, const emulate_options &options,
    F body)
{
	return emulate_blocks(grid, block, shared_bytes, options, [](void *context) { (*(F *)context)(); }, &body);
}

/* For wrappers below: ends the launch with words. */
[[noreturn]] void emulate_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Lets others run. */
void emulate_yield(void);

/* The lanes of MASK meet; the last one applies APPLY to what all bring.  WHAT and KEY must agree. */
typedef void emulate_apply(void *const args[32], uint32_t mask, uint32_t key);
void emulate_warp(const char *what, uint32_t key, uint32_t mask, void *arg, emulate_apply *apply);
uint32_t emulate_lane(void);

/* COUNT threads, 0 = all that have not ended; VALUE is summed over them. */
uint32_t emulate_barrier(uint32_t id, uint32_t count, uint32_t value, bool waits);

/* ---- Types and conversions ---- */

static inline uint32_t __float_as_uint(float x)
{
	uint32_t ret;
	memcpy(&ret, &x, 4);
	return ret;
}
static inline float __uint_as_float(uint32_t x)
{
	float ret;
	memcpy(&ret, &x, 4);
	return ret;
}
static inline int32_t __float_as_int(float x) { return (int32_t)__float_as_uint(x); }
static inline float   __int_as_float(int32_t x) { return __uint_as_float((uint32_t)x); }

struct __nv_bfloat16 {
	uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
	__nv_bfloat16 x, y;
};
struct __half {
	uint16_t bits;
};
struct alignas(4) __half2 {
	__half x, y;
};

static inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
static inline __nv_bfloat16 __float2bfloat16(float x)
{
	uint32_t bits = __float_as_uint(x);

	return { (uint16_t)(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16) };
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __float2bfloat16(x); }

static inline float __half2float(__half x)
{
	uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;

	if (exponent == 0)
		return __uint_as_float(__float_as_uint((float)fraction * 0x1p-24f) | sign);
	return __uint_as_float(sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | fraction << 13);
}
static inline __half __float2half(float x)
{
	uint32_t bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;

	if (size > 0x7f800000)
		return { 0x7fff };
	if (size >= 0x47800000)
		return { (uint16_t)(sign | 0x7c00) };
	if (size < 0x38800000)
		return { (uint16_t)(sign | (uint32_t)lrintf(__uint_as_float(size) * 0x1p24f)) };
	return { (uint16_t)(sign | (((size + 0xfff + (size >> 13 & 1)) >> 13) - (112 << 10))) };
}
static inline __half __float2half_rn(float x) { return __float2half(x); }

/* Of a value that a 16-bit operation computes exactly: rounded once. */
static inline float emulate_odd(double x)
{
	float f = (float)x;

	if ((double)f != x && !(__float_as_uint(f) & 1)) /* an odd last bit remembers that something was cut off */
		f = __uint_as_float(__float_as_uint(f) + ((fabs((double)f) < fabs(x)) ? 1 : -1));
	return f;
}

#define EMULATE_PAIRS(pair, to_float, from_float, from_two, low, high)                                               \
	static inline pair  from_two(float x, float y) { return { from_float(x), from_float(y) }; }                           \
	static inline float low(pair v) { return to_float(v.x); }                                                             \
	static inline float high(pair v) { return to_float(v.y); }                                                            \
	static inline pair  __hadd2(pair a, pair b) { return from_two(low(a) + low(b), high(a) + high(b)); }                   \
	static inline pair  __hsub2(pair a, pair b) { return from_two(low(a) - low(b), high(a) - high(b)); }                   \
	static inline pair  __hmul2(pair a, pair b) { return from_two(low(a) * low(b), high(a) * high(b)); }                   \
	static inline pair  __hfma2(pair a, pair b, pair c)                                                                   \
	{                                                                                                                     \
		return from_two(emulate_odd((double)low(a) * low(b) + low(c)), emulate_odd((double)high(a) * high(b) + high(c))); \
	}
EMULATE_PAIRS(__nv_bfloat162, __bfloat162float, __float2bfloat16, __floats2bfloat162_rn, __low2float, __high2float)
EMULATE_PAIRS(__half2, __half2float, __float2half, __floats2half2_rn, __low2float, __high2float)
static inline __nv_bfloat162 __float2bfloat162_rn(float x) { return __floats2bfloat162_rn(x, x); }
static inline __half2        __float2half2_rn(float x) { return __floats2half2_rn(x, x); }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return { __low2float(v), __high2float(v) }; }
static inline float2 __half22float2(__half2 v) { return { __low2float(v), __high2float(v) }; }
static inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
static inline uint16_t __half_as_ushort(__half x) { return x.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t x) { return { x }; }
static inline __half        __ushort_as_half(uint16_t x) { return { x }; }

/* e4m3: no infinities; what is too large becomes 448. */
struct __nv_fp8_e4m3 {
	uint8_t __x;

	__nv_fp8_e4m3() = default;
	explicit __nv_fp8_e4m3(float x)
	{
		uint32_t bits = __float_as_uint(x), size = bits & 0x7fffffff, ret;

		if (size > 0x7f800000)
			ret = 0x7f;
		else if (size < 0x3c800000) /* 2⁻⁶ */
			ret = (uint32_t)lrintf(__uint_as_float(size) * 512);
		else
			ret = size >= 0x43e80000 ? 0x7e : ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
		__x = (uint8_t)((ret > 0x7e && size <= 0x7f800000 ? 0x7e : ret) | (bits >> 24 & 0x80));
	}
	explicit operator float() const
	{
		uint32_t exponent = __x >> 3 & 15, fraction = __x & 7;
		float    size = exponent ? ldexpf((float)(8 + fraction), (int)exponent - 10) : (float)fraction / 512;

		if ((__x & 0x7f) == 0x7f)
			return NAN;
		return __x & 0x80 ? -size : size;
	}
};

/* ---- Arithmetic ---- */

#define EMULATE_LEAST(type)                                                    \
	static inline type min(type a, type b) { return a < b ? a : b; }       \
	static inline type max(type a, type b) { return a > b ? a : b; }
EMULATE_LEAST(int)
EMULATE_LEAST(unsigned)
EMULATE_LEAST(long)
EMULATE_LEAST(unsigned long)
EMULATE_LEAST(unsigned long long)
EMULATE_LEAST(float)

static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
#define __expf(x) expf(x) /* the C library has declared these names */
#define __logf(x) logf(x)
static inline float exp2_approximate(float x) { return exp2f(x); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1 / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __saturatef(float a) { return a > 0 ? a < 1 ? a : 1 : 0; }
static inline int   __float2int_rn(float a) { return (int)lrintf(a); }
static inline float __int2float_rn(int a) { return (float)a; }
static inline int   __popc(uint32_t x) { return __builtin_popcount(x); }
static inline int   __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int   __ffs(int x) { return __builtin_ffs(x); }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }

static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t select)
{
	uint64_t all = (uint64_t)b << 32 | a;
	uint32_t ret = 0;

	for (int i = 0; i < 4; i++) {
		uint32_t which = select >> 4 * i & 15, byte = (uint32_t)(all >> 8 * (which & 7)) & 0xff;
		ret |= (which & 8 ? (byte & 0x80 ? 0xffu : 0) : byte) << 8 * i;
	}
	return ret;
}

static inline int32_t __dp4a(int32_t a, int32_t b, int32_t c)
{
	for (int i = 0; i < 4; i++)
		c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
	return c;
}

template <int TABLE> static inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t ret = 0;

	for (int i = 0; i < 32; i++)
		ret |= (uint32_t)(TABLE >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i;
	return ret;
}

/* ---- Memory ---- */

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T, class V> static inline T atomicAdd(T *p, V v)
{
	T old = *p;
	*p = (T)(old + v);
	return old;
}
template <class T, class V> static inline T atomicMax(T *p, V v)
{
	T old = *p;
	*p = (T)v > old ? (T)v : old;
	return old;
}
template <class T, class V> static inline T atomicMin(T *p, V v)
{
	T old = *p;
	*p = (T)v < old ? (T)v : old;
	return old;
}
template <class T, class V> static inline T atomicOr(T *p, V v)
{
	T old = *p;
	*p = (T)(old | v);
	return old;
}
template <class T, class V> static inline T atomicAnd(T *p, V v)
{
	T old = *p;
	*p = (T)(old & v);
	return old;
}
template <class T, class V> static inline T atomicExch(T *p, V v)
{
	T old = *p;
	*p = (T)v;
	return old;
}
template <class T, class V, class W> static inline T atomicCAS(T *p, V compare, W v)
{
	T old = *p;
	if (old == (T)compare)
		*p = (T)v;
	return old;
}
static inline void __threadfence(void) {}
static inline void __threadfence_block(void) {}
static inline void __threadfence_system(void) {}

static inline uint32_t load_acquire(const uint32_t *p)
{
	emulate_yield();
	return *(const volatile uint32_t *)p;
}
static inline void store_release(uint32_t *p, uint32_t value) { *(volatile uint32_t *)p = value; }
static inline void add_release(uint32_t *p, uint32_t value) { *p += value; }
unsigned long long device_clock(void);

/* Addresses are offsets in a window that begins at 1024, as a device's do.  Limit: 227 KiB. */
char    *shared_memory(void);
uint32_t shared_address(const void *p);
/* BYTES at ADDRESS, aligned to ALIGN: checked. */
char    *emulate_shared(const char *what, uint32_t address, size_t bytes, size_t align);

/* ---- Warps and blocks ---- */

struct emulate_shuffle {
	uint64_t value;
	uint32_t argument, width;
};
void emulate_apply_shuffle(void *const args[32], uint32_t mask, uint32_t key);
void emulate_apply_vote(void *const args[32], uint32_t mask, uint32_t key);
void emulate_apply_reduce(void *const args[32], uint32_t mask, uint32_t key);
void emulate_apply_nothing(void *const args[32], uint32_t mask, uint32_t key);

enum { EMULATE_INDEX, EMULATE_UP, EMULATE_DOWN, EMULATE_XOR };
template <class T> static inline T emulate_shuffled(const char *what, uint32_t kind, uint32_t mask, T value, uint32_t argument,
    uint32_t width)
{
	emulate_shuffle shuffle = { 0, argument, width };

	static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
	memcpy(&shuffle.value, &value, sizeof value);
	emulate_warp(what, kind, mask, &shuffle, emulate_apply_shuffle);
	memcpy(&value, &shuffle.value, sizeof value);
	return value;
}
template <class T> static inline T __shfl_sync(uint32_t mask, T v, int lane, int width = 32)
{
	return emulate_shuffled("__shfl_sync", EMULATE_INDEX, mask, v, (uint32_t)lane, (uint32_t)width);
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T v, uint32_t by, int width = 32)
{
	return emulate_shuffled("__shfl_up_sync", EMULATE_UP, mask, v, by, (uint32_t)width);
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T v, uint32_t by, int width = 32)
{
	return emulate_shuffled("__shfl_down_sync", EMULATE_DOWN, mask, v, by, (uint32_t)width);
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T v, int with, int width = 32)
{
	return emulate_shuffled("__shfl_xor_sync", EMULATE_XOR, mask, v, (uint32_t)with, (uint32_t)width);
}

enum { EMULATE_BALLOT, EMULATE_MATCH };
static inline uint32_t __ballot_sync(uint32_t mask, int v)
{
	uint64_t word = v != 0;
	emulate_warp("__ballot_sync", EMULATE_BALLOT, mask, &word, emulate_apply_vote);
	return (uint32_t)word;
}
static inline int __any_sync(uint32_t mask, int v) { return __ballot_sync(mask, v) != 0; }
static inline int __all_sync(uint32_t mask, int v) { return __ballot_sync(mask, !v) == 0; }
template <class T> static inline uint32_t __match_any_sync(uint32_t mask, T v)
{
	uint64_t word = 0;
	memcpy(&word, &v, sizeof v);
	emulate_warp("__match_any_sync", EMULATE_MATCH, mask, &word, emulate_apply_vote);
	return (uint32_t)word;
}

enum { EMULATE_ADD, EMULATE_MIN, EMULATE_MAX, EMULATE_AND, EMULATE_OR, EMULATE_SXOR, EMULATE_SMIN, EMULATE_SMAX };
static inline uint32_t emulate_reduced(uint32_t kind, uint32_t mask, uint32_t v)
{
	emulate_warp("__reduce_sync", kind, mask, &v, emulate_apply_reduce);
	return v;
}
static inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t v) { return emulate_reduced(EMULATE_ADD, mask, v); }
static inline int32_t  __reduce_add_sync(uint32_t mask, int32_t v)
{
	return (int32_t)emulate_reduced(EMULATE_ADD, mask, (uint32_t)v);
}
static inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t v) { return emulate_reduced(EMULATE_MIN, mask, v); }
static inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t v) { return emulate_reduced(EMULATE_MAX, mask, v); }
static inline int32_t  __reduce_min_sync(uint32_t mask, int32_t v)
{
	return (int32_t)emulate_reduced(EMULATE_SMIN, mask, (uint32_t)v);
}
static inline int32_t  __reduce_max_sync(uint32_t mask, int32_t v)
{
	return (int32_t)emulate_reduced(EMULATE_SMAX, mask, (uint32_t)v);
}
static inline uint32_t __reduce_and_sync(uint32_t mask, uint32_t v) { return emulate_reduced(EMULATE_AND, mask, v); }
static inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t v) { return emulate_reduced(EMULATE_OR, mask, v); }
static inline uint32_t __reduce_xor_sync(uint32_t mask, uint32_t v) { return emulate_reduced(EMULATE_SXOR, mask, v); }

static inline void __syncwarp(uint32_t mask = ~0u) { emulate_warp("__syncwarp", 0, mask, NULL, emulate_apply_nothing); }
static inline void __syncthreads(void) { emulate_barrier(0, 0, 0, true); }
static inline int  __syncthreads_count(int v) { return (int)emulate_barrier(0, 0, v != 0, true); }
static inline int  __syncthreads_or(int v) { return emulate_barrier(0, 0, v != 0, true) != 0; }
static inline int  __syncthreads_and(int v) { return emulate_barrier(0, 0, v == 0, true) == 0; }
static inline void named_barrier_sync(uint32_t id, uint32_t threads) { emulate_barrier(id, threads, 0, true); }
static inline void named_barrier_arrive(uint32_t id, uint32_t threads) { emulate_barrier(id, threads, 0, false); }

/* ---- mbarriers ---- */

void barrier_init(mbarrier *b, uint32_t count);
void barrier_expect(mbarrier *b, uint32_t bytes);
void barrier_expect_more(mbarrier *b, uint32_t bytes);
void barrier_arrive(mbarrier *b);
/* Of a cluster of one block. */
static inline void barrier_arrive_cluster(mbarrier *b, uint32_t) { barrier_arrive(b); }
static inline void cluster_sync(void) { emulate_barrier(0, 0, 0, true); }
void barrier_wait(mbarrier *b, uint32_t parity);
bool barrier_test(mbarrier *b, uint32_t parity);
static inline void fence_barrier_init(void) {}
void fence_async_proxy(void);

/* ---- Copies ---- */

struct tensor_map {
	uint64_t             valid;
	struct tensor_layout layout;
	uint32_t             element; /* bytes */
};

static inline uint64_t cache_evict_first(void) { return 1; }
static inline uint64_t cache_evict_last(void) { return 2; }
void bulk_copy(void *smem, const void *global, uint32_t bytes, mbarrier *b, uint64_t policy = 0);
void bulk_prefetch(const void *global, uint32_t bytes);
void bulk_store(void *global, const void *smem, uint32_t bytes);
void tma_store_2d(const tensor_map *map, int32_t x, int32_t y, const void *smem);
void bulk_store_commit(void);
void emulate_store_wait(uint32_t groups, bool read);
template <int N> static inline void bulk_store_wait(void) { emulate_store_wait(N, false); }
template <int N> static inline void bulk_store_wait_read(void) { emulate_store_wait(N, true); }

void emulate_tensor_load(void *smem, const tensor_map *map, uint32_t rank, const int32_t at[5], mbarrier *b);
static inline void tma_load_2d(void *smem, const tensor_map *map, int32_t x, int32_t y, mbarrier *b, uint64_t policy = 0)
{
	const int32_t at[5] = { x, y, 0, 0, 0 };
	(void)policy;
	emulate_tensor_load(smem, map, 2, at, b);
}
static inline void tma_load_3d(void *smem, const tensor_map *map, int32_t x, int32_t y, int32_t z, mbarrier *b, uint64_t policy = 0)
{
	const int32_t at[5] = { x, y, z, 0, 0 };
	(void)policy;
	emulate_tensor_load(smem, map, 3, at, b);
}
/* Of a cluster of one block. */
static inline void tma_load_3d_multicast(void *smem, const tensor_map *map, int32_t x, int32_t y, int32_t z, mbarrier *b, uint16_t,
    uint64_t policy)
{
	tma_load_3d(smem, map, x, y, z, b, policy);
}
static inline void tma_load_4d(void *smem, const tensor_map *map, int32_t x, int32_t y, int32_t z, int32_t w, mbarrier *b,
    uint64_t policy = 0)
{
	const int32_t at[5] = { x, y, z, w, 0 };
	(void)policy;
	emulate_tensor_load(smem, map, 4, at, b);
}
static inline void tma_load_5d(void *smem, const tensor_map *map, int32_t x, int32_t y, int32_t z, int32_t w, int32_t v,
    mbarrier *b, uint64_t policy = 0)
{
	const int32_t at[5] = { x, y, z, w, v };
	(void)policy;
	emulate_tensor_load(smem, map, 5, at, b);
}
static inline void tma_prefetch_map(const tensor_map *) {}

void cp_async_16(uint32_t smem, const void *global, uint32_t bytes_valid);
void cp_async_16(void *smem, const void *global, uint32_t bytes_valid);
void cp_async_commit(void);
void emulate_copy_wait(uint32_t groups);
template <int N> static inline void cp_async_wait(void) { emulate_copy_wait(N); }

/* ---- Matrices ---- */

void ldmatrix_x4(uint32_t r[4], uint32_t smem);
void ldmatrix_x4_trans(uint32_t r[4], uint32_t smem);
void ldmatrix_x2(uint32_t r[2], uint32_t smem);
void stmatrix_x4_trans(uint32_t smem, const uint32_t r[4]);
static inline void ldmatrix_x4(uint32_t r[4], const void *smem) { ldmatrix_x4(r, shared_address(smem)); }
static inline void ldmatrix_x4_trans(uint32_t r[4], const void *smem) { ldmatrix_x4_trans(r, shared_address(smem)); }
static inline void ldmatrix_x2(uint32_t r[2], const void *smem) { ldmatrix_x2(r, shared_address(smem)); }

enum emulate_type { EMULATE_BF16, EMULATE_F16, EMULATE_E4M3, EMULATE_S8 };
template <class T> struct emulate_type_of;
template <> struct emulate_type_of<__nv_bfloat16> {
	static constexpr enum emulate_type value = EMULATE_BF16;
};
template <> struct emulate_type_of<__half> {
	static constexpr enum emulate_type value = EMULATE_F16;
};
template <> struct emulate_type_of<__nv_fp8_e4m3> {
	static constexpr enum emulate_type value = EMULATE_E4M3;
};
template <> struct emulate_type_of<int8_t> {
	static constexpr enum emulate_type value = EMULATE_S8;
};

void emulate_mma(enum emulate_type type, void *c, const uint32_t a[4], const uint32_t b[2]);
template <class T> static inline void mma_m16n8k16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	static_assert(sizeof(T) == 2, "16-bit types");
	emulate_mma(emulate_type_of<T>::value, c, a, b);
}
static inline void mma_m16n8k32_s8(int32_t c[4], const uint32_t a[4], const uint32_t b[2]) { emulate_mma(EMULATE_S8, c, a, b); }
static inline void mma_m16n8k32_e4m3(float c[4], const uint32_t a[4], const uint32_t b[2]) { emulate_mma(EMULATE_E4M3, c, a, b); }

/* ---- wgmma ---- */

template <class T> struct wgmma_sum {
	typedef float type;
};
template <> struct wgmma_sum<int8_t> {
	typedef int32_t type;
};

struct emulate_wgmma_call {
	enum emulate_type type;
	uint32_t n;
	int      trans_a, trans_b, keep, a_in_registers;
	uint64_t desc_a, desc_b;
	uint32_t a[4];
	void    *acc;
};
void emulate_wgmma(struct emulate_wgmma_call *call);
void wgmma_fence(void);
void wgmma_commit(void);
void emulate_wgmma_wait(uint32_t groups);
void emulate_wgmma_settle(const void *acc, size_t bytes);
template <int N> static inline void wgmma_wait(void) { emulate_wgmma_wait(N); }
template <int COUNT, class A> static inline void wgmma_settle(A *acc) { emulate_wgmma_settle(acc, COUNT * sizeof *acc); }
template <class A, int COUNT> static inline void wgmma_settle(A (&acc)[COUNT]) { emulate_wgmma_settle(acc, sizeof acc); }

static inline uint64_t wgmma_descriptor(uint32_t smem, uint32_t lbo, uint32_t sbo, enum swizzle swizzle)
{
	if (smem % 16 || lbo % 16 || sbo % 16 || lbo >= 1 << 18 || sbo >= 1 << 18)
		emulate_fail("wgmma_descriptor: address %u, LBO %u, SBO %u: multiples of 16 below 2^18", smem, lbo, sbo);
	return (uint64_t)((smem & 0x3ffff) >> 4) | (uint64_t)(lbo >> 4) << 16 | (uint64_t)(sbo >> 4) << 32 | (uint64_t)swizzle << 62;
}
static inline uint64_t wgmma_descriptor(const void *smem, uint32_t lbo, uint32_t sbo, enum swizzle swizzle)
{
	return wgmma_descriptor(shared_address(smem), lbo, sbo, swizzle);
}

template <class T, int N, int TRANS_A = 0, int TRANS_B = 0> static inline void wgmma_ss(typename wgmma_sum<T>::type *acc,
    uint64_t desc_a, uint64_t desc_b, int keep_acc)
{
	emulate_wgmma_call call = { emulate_type_of<T>::value, N, TRANS_A, TRANS_B, keep_acc != 0, 0, desc_a, desc_b, {}, acc };

	static_assert(wgmma_width<N>, "no such wgmma here: add it to WGMMA_EACH");
	static_assert(sizeof(T) == 2 || (!TRANS_A && !TRANS_B), "8-bit operands are K-major");
	emulate_wgmma(&call);
}

template <class T, int N, int TRANS_B = 0> static inline void wgmma_rs(typename wgmma_sum<T>::type *acc, const uint32_t a[4],
    uint64_t desc_b, int keep_acc)
{
	emulate_wgmma_call call = { emulate_type_of<T>::value, N, 0, TRANS_B, keep_acc != 0, 1, 0, desc_b, { a[0], a[1], a[2], a[3] },
		acc };

	static_assert(wgmma_width<N>, "no such wgmma here: add it to WGMMA_EACH");
	static_assert(sizeof(T) == 2 || !TRANS_B, "8-bit operands are K-major");
	emulate_wgmma(&call);
}

template <int N> static inline void registers_raise(void)
{
	static_assert(N % 8 == 0 && N >= 24 && N <= 256, "multiples of 8 from 24 to 256");
	emulate_warp("setmaxnreg", N, ~0u, NULL, emulate_apply_nothing);
}
template <int N> static inline void registers_lower(void)
{
	static_assert(N % 8 == 0 && N >= 24 && N <= 256, "multiples of 8 from 24 to 256");
	emulate_warp("setmaxnreg", N, ~0u, NULL, emulate_apply_nothing);
}

/* Kernels run one after another, each whole: emulate_options.before says what must wait nevertheless. */
void dependency_wait(void);
static inline void dependents_launch(void) {}

#endif
