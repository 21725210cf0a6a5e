/* heads.cuh: what becomes of the heads of q, k and v on their way from a product: bias, rotation, and the place of k and v in a
 * page.  The kernel that does all of it (kv.cuh) and the epilogues of products that do it in passing share it, so that both give
 * the same bits. */
#ifndef PENSTOCK_GPU_HEADS_CUH
#define PENSTOCK_GPU_HEADS_CUH

#include "gpu/convert.cuh"

/* Where the heads of a row go, beside the row itself. */
struct head_target {
	void          *keys, *values; /* pools of the layer; NULL: nothing is written there */
	const int32_t *slots;
	const float2  *rotation;      /* [rows][rotation_stride]; NULL: none */
	const float   *bias;          /* of all outputs of the product; NULL: none */
	uint32_t q_heads, kv_heads, head_dim, block_size;
	uint32_t pairs, rotation_stride; /* of dimensions that are rotated, in each head of q and k */
	uint32_t swizzle;             /* of the pools (struct cuda_kv) */
};

/* The row of a pool that belongs to SLOT and KV_HEAD; a block size is a power of two. */
__device__ static inline size_t head_row(const head_target &to, uint32_t slot, uint32_t kv_head)
{
	uint32_t in_block = slot & (to.block_size - 1);

	return (size_t)(slot - in_block) * to.kv_heads + (size_t)kv_head * to.block_size + in_block;
}

template <class T> __device__ static inline float head_biased(T x, const float *bias, uint32_t at)
{
	return bias ? to_float(x) + bias[at] : to_float(x);
}

/* Both of a pair, turned by R; written out, lest compilers fuse it here and there in different ways. */
__device__ static inline float2 head_rotate(float2 r, float a, float b)
{
	return make_float2(__fmaf_rn(a, r.x, -__fmul_rn(b, r.y)), __fmaf_rn(b, r.x, __fmul_rn(a, r.y)));
}

/* ---- In an epilogue: dimensions of a pair are neighbours ---- */

template <class T> struct alignas(2 * sizeof(T)) head_two {
	T first, second;
};

/* What is read for a pair of outputs of a row, UNIT, which is even, and UNIT + 1: early where registers allow, it is far away. */
struct head_pair {
	float2  rotation, bias;
	int32_t slot;
};

/* Whether the pair is rotated. */
__device__ static inline bool head_rotates(const head_target &to, uint32_t unit)
{
	return to.rotation && unit % to.head_dim / 2 < to.pairs && unit < (to.q_heads + to.kv_heads) * to.head_dim;
}

__device__ static inline head_pair head_fetch(const head_target &to, uint32_t row, uint32_t unit)
{
	head_pair ret = { { 1, 0 }, { 0, 0 }, -1 };

	if (head_rotates(to, unit))
		ret.rotation = to.rotation[(size_t)row * to.rotation_stride + unit % to.head_dim / 2];
	if (to.bias)
		ret.bias = make_float2(to.bias[unit], to.bias[unit + 1]);
	if (unit >= to.q_heads * to.head_dim)
		ret.slot = to.slots[row];
	return ret;
}

/* The product's outputs UNIT and UNIT + 1 of the row at Y, aligned to two of them, WITH what was fetched for them. */
template <class T> __device__ static inline void head_put(const head_target &to, const head_pair &with, T *y, uint32_t unit,
    float2 outputs)
{
	uint32_t    head = unit / to.head_dim, d = unit % to.head_dim;
	float       a = to_float(from_float<T>(outputs.x)), b = to_float(from_float<T>(outputs.y));
	head_two<T> two;

	if (to.bias) {
		a += with.bias.x;
		b += with.bias.y;
	}
	if (head_rotates(to, unit)) {
		float2 turned = head_rotate(with.rotation, a, b);

		a = turned.x;
		b = turned.y;
	}
	two = { from_float<T>(a), from_float<T>(b) };
	*(head_two<T> *)(y + unit) = two;
	if (with.slot >= 0) {
		bool     is_key = head < to.q_heads + to.kv_heads;
		uint32_t kv_head = head - to.q_heads - (is_key ? 0 : to.kv_heads);
		T       *page = (T *)(is_key ? to.keys : to.values) + head_row(to, (uint32_t)with.slot, kv_head) * to.head_dim;

		*(head_two<T> *)(page + (d ^ ((uint32_t)with.slot & to.swizzle) << 3)) = two;
	}
}

/* Accumulators of tensor cores lie in fragments of sixteen outputs: of a row of y a lane has output lane / 4 and the one eight
 * behind it, the thread that is APART from this one has their neighbours: lane ^ 4.  All lanes of a warp call: each gets one of the
 * two pairs, which begins at head_unit. */
__device__ static inline uint32_t head_unit(uint32_t lane) { return lane & 4 ? lane / 4 + 7 : lane / 4; }

__device__ static inline float2 head_gather(float low, float high, uint32_t apart = 4)
{
	bool  odd = threadIdx.x & apart;
	float other = __shfl_xor_sync(~0u, odd ? low : high, (int)apart);

	return odd ? make_float2(other, high) : make_float2(low, other);
}

#endif
