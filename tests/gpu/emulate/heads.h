/* heads.h: for tests of products that do what the kernel of kv.cuh does (heads.cuh): places for keys and values, a table of
 * rotations, a bias, and that kernel to compare with, which test_kv.cc compares with formulas. */
#ifndef PENSTOCK_EMULATE_HEADS_H
#define PENSTOCK_EMULATE_HEADS_H

#include "expect.h"
#include "gpu/kv.cuh"

#include <string.h>

struct head_shape {
	uint32_t q_heads, kv_heads, dim, block_size, pairs;
	bool     bias, swizzled;

	uint32_t heads(void) const { return q_heads + 2 * kv_heads; }
	uint32_t width(void) const { return heads() * dim; }
};

/* Pools hold NaN where nobody wrote. */
template <class T> struct head_world {
	enum { BLOCKS = 9 };
	std::vector<T>       keys, values;
	std::vector<float>   bias;
	std::vector<float2>  rotation;
	std::vector<int32_t> slots;
	struct head_target   to;

	head_world(const struct head_shape &s, uint32_t rows)
	    : keys((size_t)BLOCKS * s.kv_heads * s.block_size * s.dim, from_float<T>(NAN)), values(keys), bias(s.width()),
	      rotation(rows * (s.pairs + 1), { NAN, NAN }), slots(rows)
	{
		struct rope_frequencies frequencies;
		std::vector<int32_t>    positions(rows);
		uint64_t                random = 5;

		(void)copy_kernel;
		for (float &b : bias)
			b = random_value(&random);
		for (float &f : frequencies.f)
			f = random_value(&random);
		for (uint32_t r = 0; r < rows; r++) { /* rows of padding among them; the first and the last place of a block; none twice */
			slots[r] = r % 5 == 2 ? -1 : (int32_t)((r * 7 + (r % 2 ? s.block_size - 1 : 0)) % (BLOCKS * s.block_size));
			positions[r] = (int32_t)(r * 3);
			for (uint32_t o = 0; o < r; o++)
				slots[r] = slots[r] == slots[o] ? -1 : slots[r];
		}
		expect_runs(emulate(rows, 32, 0, {},
		    [&] { rotation_kernel(frequencies, positions.data(), 1.5f, s.pairs, s.pairs + 1, rotation.data()); }));
		to = { keys.data(), values.data(), slots.data(), s.pairs ? rotation.data() : NULL, s.bias ? bias.data() : NULL, s.q_heads,
			s.kv_heads, s.dim, s.block_size, s.pairs, s.pairs + 1, s.swizzled ? 7u : 0u };
	}
	head_world(const head_world &) = delete;

	/* The kernel, after a product. */
	void run(T *qkv, uint32_t stride)
	{
		struct head_job job = {};
		uint32_t        heads = to.q_heads + 2 * to.kv_heads;

		job.qkv = qkv;
		job.to = to;
		job.stride = stride;
		job.interleaved = true;
		job.type = KV_FLOAT;

		expect_runs(emulate(dim3((uint32_t)slots.size(), (heads + HEAD_WARPS - 1) / HEAD_WARPS), 32 * HEAD_WARPS, 0, {},
		    [&] { head_kernel<T>(job); }));
	}

	bool equals(const head_world &other) const
	{
		return memcmp(keys.data(), other.keys.data(), keys.size() * sizeof(T)) == 0 &&
		    memcmp(values.data(), other.values.data(), values.size() * sizeof(T)) == 0;
	}
};

#endif
