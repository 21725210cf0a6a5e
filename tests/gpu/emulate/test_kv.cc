/* test_kv.cc: the kernels of gpu/kv.cuh against the formulas in double: bias, norm, rotation in both orders and the write into
 * pages, plain, swapped and in bytes; rows of padding; copies of blocks.  What must not be touched holds NaN and is looked at. */
#include "base/floats.h"
#include "expect.h"
#include "gpu/kv.cuh"

struct head_case {
	uint32_t q_heads, kv_heads, dim, block_size, pairs, swizzle;
	bool     bias, norm, interleaved, writes;
};

template <class T> static double error_of(void);
template <> double error_of<float>(void) { return 2e-6; }
template <> double error_of<__nv_bfloat16>(void) { return 4e-3; }
template <> double error_of<__half>(void) { return 5e-4; }

template <class T> static void test_heads(const struct head_case *c, uint64_t seed)
{
	constexpr uint32_t  rows = 4, blocks = 5;
	static const float  frequencies[] = { 1, 0.5f, 0.25f, 0.1f, 0.03f, 0.01f, 0.003f, 0.001f };
	uint32_t            heads = c->q_heads + 2 * c->kv_heads, width = heads * c->dim, stride = width + 8, mark = 0;
	uint64_t            random = seed;
	std::vector<T>      qkv(rows * stride, from_float<T>(NAN));
	std::vector<T>      keys(blocks * c->kv_heads * c->block_size * c->dim, from_float<T>(NAN));
	std::vector<float>  bias(width), q_norm(c->dim), k_norm(c->dim);
	std::vector<float2> rotation(rows * 8, { NAN, NAN });
	int32_t             slots[rows] = { 7, -1, (int32_t)(blocks * c->block_size - 1), 0 }, positions[rows] = { 11, 0, 1000, 3 };
	struct rope_frequencies table = {};

	for (uint32_t i = 0; i < rows * stride; i++)
		if (i % stride < width)
			qkv[i] = from_float<T>(random_value(&random));
	for (std::vector<float> *v : { &bias, &q_norm, &k_norm })
		for (float &x : *v)
			x = 1 + random_value(&random) / 4;
	memcpy(table.f, frequencies, sizeof frequencies);
	expect_runs(emulate(rows, 32, 0, { .seed = seed },
	    [&] { rotation_kernel(table, positions, 1.5f, c->pairs, 8, rotation.data()); }));

	std::vector<T>  before = qkv, values = keys;
	struct head_job job = { qkv.data(), { c->writes ? keys.data() : NULL, c->writes ? values.data() : NULL, slots,
		c->pairs ? rotation.data() : NULL, c->bias ? bias.data() : NULL, c->q_heads, c->kv_heads, c->dim, c->block_size, c->pairs,
		8, c->swizzle }, NULL, c->norm ? q_norm.data() : NULL, c->norm ? k_norm.data() : NULL, 1e-5f, stride, 0, 0,
		c->interleaved, KV_FLOAT,
		{ &mark, 2 } };

	expect_runs(emulate(dim3(rows, (heads + HEAD_WARPS - 1) / HEAD_WARPS), 32 * HEAD_WARPS, 0,
	    { .seed = seed, .before = { { qkv.data(), qkv.size() * sizeof(T) } } }, [&] { head_kernel<T>(job); }), seed);
	expect(mark == 2, "mark");

	uint64_t written = 0, expected = 0;

	for (uint32_t r = 0; r < rows; r++) {
		for (uint32_t h = 0; h < heads; h++) {
			std::vector<double> x(c->dim);
			bool                is_v = h >= c->q_heads + c->kv_heads, is_q = h < c->q_heads;
			double              squares = 0;

			for (uint32_t d = 0; d < c->dim; d++) {
				x[d] = (double)to_float(before[r * stride + h * c->dim + d]);
				x[d] += c->bias && (c->writes || !is_v) ? (double)bias[h * c->dim + d] : 0;
				squares += x[d] * x[d] / c->dim;
			}
			for (uint32_t d = 0; c->norm && !is_v && d < c->dim; d++)
				x[d] *= (double)(is_q ? q_norm : k_norm)[d] / sqrt(squares + 1e-5);
			for (uint32_t i = 0; !is_v && i < c->pairs; i++) {
				uint32_t at = c->interleaved ? 2 * i : i, other = c->interleaved ? 2 * i + 1 : i + c->pairs;
				double   angle = (double)((float)positions[r] * frequencies[i]), a = x[at], b = x[other];

				x[at] = 1.5 * (a * cos(angle) - b * sin(angle));
				x[other] = 1.5 * (b * cos(angle) + a * sin(angle));
			}
			for (uint32_t d = 0; d < c->dim; d++) {
				double got = (double)to_float(qkv[r * stride + h * c->dim + d]);

				expect(is_close(got, x[d], error_of<T>() * 2, error_of<T>()), "row %u head %u [%u] is %g, not %g", r, h, d, got,
				    x[d]);
				if (slots[r] < 0 || is_q || !c->writes)
					continue;
				uint32_t        slot = (uint32_t)slots[r], kv_head = (h - c->q_heads) % c->kv_heads;
				size_t          at = (slot / c->block_size * c->kv_heads + kv_head) * c->block_size + slot % c->block_size;
				uint32_t        chunk = d / 8 ^ (slot & c->swizzle);
				std::vector<T> &pool = is_v ? values : keys;

				expected++;
				expect((double)to_float(pool[at * c->dim + chunk * 8 + d % 8]) == got, "row %u head %u [%u] in its page", r, h, d);
			}
		}
		for (uint32_t k = width; k < stride; k++)
			expect(isnan(to_float(qkv[r * stride + k])), "the padding of a row was written");
	}
	for (size_t i = 0; i < keys.size(); i++)
		written += (uint64_t)!isnan(to_float(keys[i])) + (uint64_t)!isnan(to_float(values[i]));
	expect(written == expected, "%llu elements of the pools were written, not %llu", (unsigned long long)written,
	    (unsigned long long)expected);
}

/* Bytes and scales as src/cpu/attention.c makes them of what the kernel leaves in qkv.  Row 0 holds no number in a key, a subnormal
 * value and one of zeroes.  Where chunks of a row are swapped, heads of a block do not lie side by side. */
template <class T> static void test_bytes(uint32_t dim, uint32_t block_size, bool rotated, enum kv_type type, uint64_t seed,
    uint32_t swizzle = 0)
{
	constexpr uint32_t   rows = 5, blocks = 4, q_heads = 1, kv_heads = 3;
	uint32_t             heads = q_heads + 2 * kv_heads, stride = heads * dim + 4, mark = 0, gap = swizzle ? 32 : 0;
	uint64_t             random = seed;
	std::vector<T>       qkv(rows * stride, from_float<T>(0));
	std::vector<uint8_t> keys(blocks * kv_heads * (block_size * dim + gap), 0xaa), values = keys;
	std::vector<float>   scales(blocks * kv_heads * (2 * block_size + gap), -7);
	std::vector<float2>  rotation(rows * dim / 2);
	std::vector<bool>    touched(scales.size());
	int32_t              slots[rows] = { 1, (int32_t)(blocks * block_size - 1), -1, 0, (int32_t)block_size };

	for (uint32_t i = 0; i < rows * stride; i++) /* of all sizes that T has */
		qkv[i] = from_float<T>(ldexpf(random_value(&random), (int)(i / dim % 11) - 5));
	qkv[(q_heads + 1) * dim + dim / 2] = from_float<T>(NAN);
	for (uint32_t d = 0; d < dim; d++) {
		qkv[(q_heads + kv_heads) * dim + d] = from_float<T>((float)d * (sizeof(T) == 4 ? 1e-40f : 1e-7f));
		qkv[(q_heads + kv_heads + 1) * dim + d] = from_float<T>(0);
	}
	for (float2 &r : rotation) {
		float angle = random_value(&random) * 3;
		r = { cosf(angle), sinf(angle) };
	}

	struct head_job job = { qkv.data(), { keys.data(), values.data(), slots, rotated ? rotation.data() : NULL, NULL, q_heads,
		kv_heads, dim, block_size, rotated ? dim / 2 - 1 : 0, dim / 2, swizzle }, scales.data(), NULL, NULL, 1e-5f, stride,
		gap + block_size * dim, gap + 2 * block_size, false, type,
		{ &mark, 2 } };

	expect_runs(emulate(dim3(rows, (heads + HEAD_WARPS - 1) / HEAD_WARPS), 32 * HEAD_WARPS, 0,
	    { .seed = seed, .before = { { qkv.data(), qkv.size() * sizeof(T) } } }, [&] { head_kernel<T>(job); }), seed);
	for (uint32_t r = 0; r < rows; r++) {
		for (uint32_t h = 0; h < 2 * kv_heads && slots[r] >= 0; h++) {
			uint32_t slot = (uint32_t)slots[r], unit = slot / block_size * kv_heads + h % kv_heads, offset = slot % block_size;
			size_t   at = unit * (2 * block_size + gap) + h / kv_heads * block_size + offset;
			const T *x = &qkv[r * stride + (q_heads + h) * dim];
			const uint8_t *bytes = &(h < kv_heads ? keys : values)[unit * (block_size * dim + gap) + offset * dim];
			uint32_t swap = (slot * dim / 128 & swizzle) * 16;
			float    largest = 0, none = 0, scale;

			for (uint32_t d = 0; d < dim; d++) {
				largest = fmaxf(largest, fabsf(to_float(x[d])));
				none += to_float(x[d]) - to_float(x[d]);
			}
			scale = none == 0 ? largest / (type == KV_F8 ? 448.0f : 127.0f) : __uint_as_float(0x7fc00000);
			touched[at] = true;
			expect(memcmp(&scale, &scales[at], 4) == 0, "row %u head %u: scale %g, not %g", r, h, scales[at], scale);
			for (uint32_t d = 0; d < dim; d++) {
				float   value = scale > 0 ? to_float(x[d]) / scale : 1;
				uint8_t want = type == KV_F8 ? floats_to_e4m3(value) : (uint8_t)(int8_t)fmaxf(-127, fminf(127, rintf(value)));

				expect(bytes[d ^ swap] == want, "row %u head %u [%u]: %g is %02x, not %02x", r, h, d, value, bytes[d ^ swap], want);
			}
		}
	}
	for (size_t i = 0; i < scales.size(); i++)
		expect(touched[i] || scales[i] == -7, "a scale was written that is nobody's");
	for (size_t i = 0; i < keys.size(); i++) {
		size_t unit = i / (block_size * dim + gap), in = i % (block_size * dim + gap) / dim;
		size_t at = unit * (2 * block_size + gap) + in;

		if (in >= block_size) {
			expect(keys[i] == 0xaa && values[i] == 0xaa, "a byte between heads was written");
			continue;
		}
		expect(touched[at] || keys[i] == 0xaa, "a byte of a key was written that is nobody's");
		expect(touched[at + block_size] || values[i] == 0xaa, "a byte of a value was written that is nobody's");
	}
}

static void test_copies(uint32_t block_bytes)
{
	constexpr uint32_t blocks = 6, layers = 2;
	uint32_t           scale_bytes = block_bytes / 32 * 4; /* of heads of 64 */
	std::vector<char>  keys(blocks * layers * block_bytes), values(keys.size()), scales(blocks * layers * scale_bytes), want;
	struct copy_pairs  pairs = {};

	for (size_t i = 0; i < keys.size(); i++) {
		keys[i] = (char)(i * 7 + i / block_bytes);
		values[i] = (char)(i * 5 + i / block_bytes);
	}
	for (size_t i = 0; i < scales.size(); i++)
		scales[i] = (char)(i * 3 + i / scale_bytes);
	pairs.from[0] = 4;
	pairs.to[0] = 1;
	pairs.from[1] = 0;
	pairs.to[1] = 5;
	for (std::vector<char> *pool : { &keys, &values, &scales }) {
		uint32_t bytes = pool == &scales ? scale_bytes : block_bytes;

		want.insert(want.end(), pool->begin(), pool->end());
		for (uint32_t l = 0; l < layers; l++)
			for (int p = 0; p < 2; p++)
				memcpy(&want[want.size() - pool->size() + (l * blocks + (uint32_t)pairs.to[p]) * bytes],
				    &(*pool)[(l * blocks + (uint32_t)pairs.from[p]) * bytes], bytes);
	}

	struct copy_pools pools = { { keys.data(), values.data(), scales.data() }, { block_bytes, block_bytes, scale_bytes } };

	expect_runs(emulate(dim3(2, layers), COPY_THREADS, 0, { .seed = block_bytes }, [&] { copy_kernel(pairs, pools, blocks); }));
	keys.insert(keys.end(), values.begin(), values.end());
	keys.insert(keys.end(), scales.begin(), scales.end());
	expect(keys == want, "copies of blocks of %u bytes", block_bytes);
}

int main(void)
{
	static const struct head_case cases[] = { { 2, 1, 16, 4, 0, 0, false, false, false, true },
		{ 3, 1, 64, 16, 8, 7, true, false, false, true }, { 4, 2, 32, 8, 5, 0, true, true, true, true },
		{ 2, 2, 40, 4, 8, 0, false, true, false, true }, { 1, 1, 64, 64, 3, 7, true, true, true, true } };
	uint64_t seed = 0;

	SKIP_UNDER_THREAD_SANITIZER;
	for (const struct head_case &c : cases) {
		test_heads<float>(&c, ++seed);
		test_heads<__nv_bfloat16>(&c, ++seed);
		test_heads<__half>(&c, ++seed);
	}
	for (enum kv_type type : { KV_F8, KV_I8 }) {
		test_bytes<float>(64, 16, true, type, ++seed);
		test_bytes<__nv_bfloat16>(128, 64, true, type, ++seed);
		test_bytes<__half>(64, 4, false, type, ++seed);
		test_bytes<float>(36, 8, true, type, ++seed);
		test_bytes<__nv_bfloat16>(256, 2, false, type, ++seed);
		test_bytes<__nv_bfloat16>(128, 64, true, type, ++seed, 7);
		test_bytes<__half>(64, 64, false, type, ++seed, 3);
	}
	test_copies(4096);
	test_copies(100);
	return finish("kv");
}
