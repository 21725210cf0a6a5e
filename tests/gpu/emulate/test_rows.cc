/* test_rows.cc: the kernels of gpu/rows.cuh against plain sums in double: embeddings, norms with all that they take along, gates,
 * pooling, rounding of inputs; odd widths, padded rows, outputs that hold NaN before.  What a kernel must not touch is looked
 * at, too. */
#include "expect.h"
#include "gpu/fmt_byte.cuh"
#include "gpu/rows.cuh"

#include <algorithm>

template <class T> static double error_of(void);
template <> double error_of<float>(void) { return 3e-6; }
template <> double error_of<__nv_bfloat16>(void) { return 4e-3; }
template <> double error_of<__half>(void) { return 6e-4; }

/* [rows][stride], of which WIDTH are random and the rest NaN. */
template <class T> static std::vector<pack<T>> matrix(uint32_t rows, uint32_t width, uint32_t stride, uint64_t *random, bool poison)
{
	std::vector<pack<T>> ret((size_t)rows * stride / pack<T>::count);

	for (size_t i = 0; i < (size_t)rows * stride; i++)
		ret[i / pack<T>::count].v[i % pack<T>::count] = from_float<T>(poison || i % stride >= width ? NAN : random_value(random));
	return ret;
}
template <class T> static T *data_of(std::vector<pack<T>> &m) { return m[0].v; }

static std::vector<float> vector(uint32_t count, uint64_t *random)
{
	std::vector<float> ret(count);

	for (float &x : ret)
		x = 1 + random_value(random) / 4;
	return ret;
}

template <class T> static bool is_nan(T x) { return to_float(x) != to_float(x); }

/* ---- Norms ---- */

struct norm_case {
	uint32_t width;
	bool     residual, inner_bias, inner_norm, chosen, layer;
};

static void run_norm(const struct norm_case *c, const std::vector<double> &values, const float *w, const float *bias,
    std::vector<double> *ret)
{
	double mean = 0, squares = 0;

	for (uint32_t k = 0; k < c->width; k++)
		mean += c->layer ? values[k] / c->width : 0;
	for (uint32_t k = 0; k < c->width; k++)
		squares += (values[k] - mean) * (values[k] - mean) / c->width;
	for (uint32_t k = 0; k < c->width; k++)
		(*ret)[k] = (values[k] - mean) / sqrt(squares + 1e-5) * w[k] + (c->layer ? bias[k] : 0);
}

template <class T, class X, int PACKS, bool LAYER> static void test_norm(const struct norm_case *c, uint64_t seed)
{
	constexpr uint32_t rows = 3;
	uint32_t stride = (c->width + 7) / 8 * 8, packs = (c->width + pack<T>::count - 1) / pack<T>::count;
	uint32_t threads = ((packs + PACKS - 1) / PACKS + 31) / 32 * 32, mark = 0;
	uint64_t random = seed + c->width;
	std::vector<pack<X>> x = matrix<X>(rows, c->width, stride, &random, false), before = x;
	std::vector<pack<T>> residual = matrix<T>(rows, c->width, stride, &random, false);
	std::vector<pack<T>> y = matrix<T>(rows, 0, stride, &random, true);
	std::vector<float>   w = vector(c->width, &random), bias = vector(c->width, &random);
	std::vector<float>   inner_bias = vector(c->width, &random), inner_norm = vector(c->width, &random);
	static const int32_t chosen[rows] = { 2, 0, 2 };
	std::vector<double>  values(c->width), delta(c->width), want(c->width);
	struct norm_job      job = { data_of(x), c->residual && !c->chosen ? data_of(x) : NULL,
		c->residual ? data_of(residual) : NULL, data_of(y), c->chosen ? chosen : NULL,
		w.data(), bias.data(), c->inner_bias ? inner_bias.data() : NULL, c->inner_norm ? inner_norm.data() : NULL, 1e-5f, 1e-5f,
		c->width, stride, stride, stride, sizeof(X) != sizeof(T), { &mark, 3 } };

	expect_runs(emulate(rows, threads, 0, { .seed = seed }, [&] { norm_kernel<T, X, PACKS, LAYER>(job); }), c->width, PACKS);
	expect(mark == 3, "mark");
	for (uint32_t r = 0; r < rows; r++) {
		uint32_t from = c->chosen ? (uint32_t)chosen[r] : r;
		double   squares = 0;

		for (uint32_t k = 0; k < c->width; k++) {
			delta[k] = c->residual ? (double)to_float(data_of(residual)[from * stride + k]) : 0;
			delta[k] += c->residual && c->inner_bias ? (double)inner_bias[k] : 0;
			squares += delta[k] * delta[k] / c->width;
		}
		for (uint32_t k = 0; k < c->width; k++) {
			if (c->residual && c->inner_norm)
				delta[k] *= inner_norm[k] / sqrt(squares + 1e-5);
			values[k] = (double)to_float(data_of(before)[from * stride + k]) + delta[k];
		}
		run_norm(c, values, w.data(), bias.data(), &want);
		for (uint32_t k = 0; k < c->width; k++) {
			double got = (double)to_float(data_of(y)[r * stride + k]), sum = (double)to_float(data_of(x)[from * stride + k]);

			expect(is_close(got, want[k], error_of<T>() * 2, error_of<T>()),
			    "norm of %zu and %zu bytes, width %u: [%u][%u] is %g, not %g", sizeof(T), sizeof(X), c->width, r, k, got, want[k]);
			if (c->residual && !c->chosen)
				expect(is_close(sum, values[k], error_of<X>(), error_of<X>()), "the sum with the residual at [%u][%u]", r,
				    k);
			else
				expect(sum == (double)to_float(data_of(before)[from * stride + k]), "what was normed was written at [%u][%u]", r,
				    k);
		}
	}
}

static void test_norms(void)
{
	static const struct norm_case cases[] = { { 1, false, false, false, false, false }, { 37, true, false, false, false, false },
		{ 64, true, true, true, false, false }, { 250, true, false, true, true, false }, { 96, false, false, false, true, false },
		{ 513, true, true, false, false, false } };
	uint64_t seed = 0;

	for (const struct norm_case &c : cases) {
		struct norm_case layer = c;

		layer.layer = true;
		test_norm<__nv_bfloat16, float, 1, false>(&c, ++seed);
		test_norm<__nv_bfloat16, __nv_bfloat16, 2, false>(&c, ++seed);
		test_norm<__half, float, 4, false>(&c, ++seed);
		test_norm<float, float, 1, false>(&c, ++seed);
		test_norm<__half, __half, 8, true>(&layer, ++seed);
		test_norm<float, float, 2, true>(&layer, ++seed);
	}
}

/* ---- A norm in the prologue of a product ---- */

template <class T, int PACKS> static void alone_kernel(struct norm_prologue job, float *y)
{
	alignas(16) static float     shared[norm_alone<T, PACKS>::shared_floats];
	const struct norm_team       team = { threadIdx.x % 256, blockDim.x < 256 ? blockDim.x : 256, blockDim.x > 256 ? 3u : 0 };

	if (threadIdx.x >= 256) /* who has something else to do */
		return;
	norm_alone<T, PACKS> norm(job, team, shared);
	dependency_wait();
	norm.load();
	norm.run();
	for (int p = 0; p < PACKS; p++)
		for (uint32_t i = 0; i < norm.count && norm.index(p) < job.width; i++)
			y[blockIdx.x * job.width + norm.index(p) + i] = to_float(norm.y[p].v[i]);
}

/* However many threads do it, in however many blocks: norm_kernel's bits, in each block. */
template <class T, int PACKS> static void test_alone(uint32_t width, uint32_t threads, uint32_t blocks, bool inner)
{
	uint32_t             stride = (width + 7) / 8 * 8, packs = (width + pack<T>::count - 1) / pack<T>::count;
	uint64_t             random = width + threads;
	std::vector<pack<float>> x = matrix<float>(1, width, stride, &random, false);
	std::vector<pack<float>> sum = matrix<float>(1, 0, stride, &random, true), sum_alone = sum;
	std::vector<pack<T>> delta = matrix<T>(1, width, stride, &random, false), y = matrix<T>(1, 0, stride, &random, true), z = y;
	std::vector<float>   w = vector(width, &random), inner_norm = vector(width, &random), each(blocks * width, NAN);
	struct norm_job      job = { .x = data_of(x), .sum = data_of(sum), .residual = data_of(delta), .y = data_of(y), .w = w.data(),
		.inner_norm = inner ? inner_norm.data() : NULL, .inner_eps = 1e-6f, .eps = 1e-5f, .width = width, .x_is_wide = 1 };
	struct norm_prologue alone = { data_of(x), data_of(sum_alone), data_of(delta), data_of(z), w.data(), job.inner_norm, 1e-6f,
		1e-5f, width };
	const std::vector<emulate_range> before = { { data_of(x), stride * 4 }, { data_of(delta), stride * sizeof(T) },
		{ data_of(z), stride * sizeof(T) }, { data_of(sum_alone), stride * 4 } };

	if (width > norm_alone<T, PACKS>::width_max(threads < 256 ? threads : 256))
		expect(false, "%u are too many", width);
	expect_runs(emulate(1, ((packs + 1) / 2 + 31) / 32 * 32, 0, { .seed = width }, [&] { norm_kernel<T, float, 2, false>(job); }));
	expect_runs(emulate(blocks, threads, 0, { .seed = threads, .before = before }, [&] {
		alone_kernel<T, PACKS>(alone, each.data());
	}));
	expect(memcmp(data_of(y), data_of(z), width * sizeof(T)) == 0, "the norm of %u by %u threads differs", width, threads);
	expect(memcmp(data_of(sum), data_of(sum_alone), width * 4) == 0, "the sum of %u by %u threads differs", width, threads);
	for (uint32_t i = 0; i < blocks * width; i++)
		expect(each[i] == to_float(data_of(y)[i % width]), "block %u has another %u", i / width, i % width);
}

static void test_alones(void)
{
	test_alone<__nv_bfloat16, 2>(3072, 192, 2, true);
	test_alone<__nv_bfloat16, 2>(4096, 256, 3, true);
	test_alone<__nv_bfloat16, 2>(2944, 288, 2, false);
	test_alone<__nv_bfloat16, 1>(248, 32, 5, true);
	test_alone<__half, 2>(3072, 224, 2, true);
	test_alone<__half, 1>(2048, 544, 2, false);
	test_alone<__half, 2>(72, 64, 4, true);
}

/* ---- Rounding on the way ---- */

/* What a kernel rounded besides writing y, against byte_round_kernel of y. */
struct rounded_rows {
	std::vector<uint8_t> q;
	std::vector<float>   scales;
	struct byte_target   to;

	rounded_rows(uint32_t rows, uint32_t width, bool by_group, bool i8)
	    : q(rows * byte_round_up(width, BYTE_ALIGN), 0xa5), scales(by_group ? (width + 127) / 128 * 4 : rows, 77)
	{
		to = { q.data(), scales.data(), byte_round_up(width, BYTE_ALIGN), by_group ? 4u : 0u, i8 };
	}
};

template <class T> static void expect_rounded(const struct rounded_rows &got, const T *y, uint32_t rows, uint32_t width,
    uint32_t stride)
{
	struct rounded_rows  want(rows, width, got.to.scale_stride != 0, got.to.i8);
	struct byte_rounding job = { y, want.q.data(), want.scales.data(), rows, width, stride, want.to.q_stride,
		want.to.scale_stride, 0, NULL, 0 };
	const dim3 grid(rows, byte_round_blocks(&job));

	if (want.to.i8)
		expect_runs(emulate(grid, byte_round_threads(&job), 0, { .seed = width }, [&] { byte_round_kernel<T, true>(job); }));
	else
		expect_runs(emulate(grid, byte_round_threads(&job), 0, { .seed = width }, [&] { byte_round_kernel<T, false>(job); }));
	expect(memcmp(want.q.data(), got.q.data(), want.q.size()) == 0, "bytes of %u values, rounded on the way, differ", width);
	expect(memcmp(want.scales.data(), got.scales.data(), want.scales.size() * sizeof(float)) == 0,
	    "scales of %u values, rounded on the way, differ", width);
}

template <class T, int PACKS> static void test_round(uint32_t width, bool by_group, bool i8)
{
	constexpr uint32_t   rows = 3;
	uint32_t             stride = (width + 7) / 8 * 8, packs = (width + pack<T>::count - 1) / pack<T>::count;
	uint32_t             threads = ((packs + PACKS - 1) / PACKS + 31) / 32 * 32;
	uint64_t             random = width;
	std::vector<pack<T>> x = matrix<T>(rows, width, stride, &random, false), y = matrix<T>(rows, 0, stride, &random, true);
	std::vector<float>   w = vector(width, &random);
	struct rounded_rows  rounded(rows, width, by_group, i8);
	struct norm_job      job = { .x = data_of(x), .y = data_of(y), .w = w.data(), .eps = 1e-5f, .width = width, .x_stride = stride,
		.y_stride = stride, .round = rounded.to };

	for (uint32_t k = 0; k < width; k++) /* a row of zeroes, and one that is not finite */
		data_of(x)[stride + k] = from_float<T>(0);
	data_of(x)[2 * stride + width / 2] = from_float<T>(NAN);
	expect_runs(emulate(rows, threads, 0, { .seed = width }, [&] { norm_kernel<T, T, PACKS, false>(job); }));
	expect_rounded(rounded, data_of(y), rows, width, stride);
}

template <class T> static void test_round_gate(uint32_t width)
{
	constexpr uint32_t   rows = 2;
	uint64_t             random = width;
	std::vector<pack<T>> x = matrix<T>(rows, 2 * width, 2 * width, &random, false), y = matrix<T>(rows, 0, width, &random, true);
	struct rounded_rows  rounded(rows, width, true, false);

	expect_runs(emulate(dim3((width + PLAIN_THREADS * pack<T>::count - 1) / (PLAIN_THREADS * pack<T>::count), rows), PLAIN_THREADS,
	    0, { .seed = width }, [&] { silu_kernel<T>(data_of(x), 2 * width, data_of(y), width, width, rounded.to, {}); }));
	expect_rounded(rounded, data_of(y), rows, width, width);
}

static void test_rounding(void)
{
	for (int i8 = 0; i8 < 2; i8++) {
		test_round<__nv_bfloat16, 1>(600, false, i8);
		test_round<__half, 2>(1000, false, i8);
		test_round<float, 2>(77, false, i8);
	}
	test_round<__nv_bfloat16, 1>(600, true, false);
	test_round<__nv_bfloat16, 2>(1300, true, false);
	test_round<float, 4>(513, true, false);
	test_round_gate<__nv_bfloat16>(2176);
	test_round_gate<__half>(128);
	test_round_gate<float>(1152);
}

/* ---- The rest ---- */

template <class T> static void test_embed(void)
{
	constexpr uint32_t   width = 41, stride = 48, vocab = 7, rows = 4;
	uint64_t             random = 6;
	std::vector<pack<T>> w = matrix<T>(vocab, width, stride, &random, false), y = matrix<T>(rows, 0, stride, &random, true);
	std::vector<float>   wide(rows * stride, NAN), v = vector(width, &random);
	int32_t              tokens[rows] = { 6, 0, -1, 3 }, positions[rows] = { 0, 2, 1, 5 };

	expect_runs(emulate(rows, 32, 0, { .seed = 1 }, [&] {
		embed_kernel<T, T>(data_of(w), stride, tokens, vocab, data_of(y), stride, width, {});
	}));
	expect_runs(emulate(rows, 32, 0, { .seed = 2 }, [&] {
		embed_kernel<T, float>(data_of(w), stride, tokens, vocab, wide.data(), stride, width, {});
	}));
	expect_runs(emulate(rows, 32, 0, { .seed = 3 }, [&] {
		embed_add_kernel<T, float>(data_of(w), NULL, stride, positions, 1, vocab, wide.data(), stride, width);
	}));
	expect_runs(emulate(rows, 32, 0, { .seed = 4 }, [&] {
		embed_add_kernel<T, T>(data_of(w), v.data(), 0, NULL, 0, 1, data_of(y), stride, width);
	}));
	for (uint32_t r = 0; r < rows; r++) {
		for (uint32_t k = 0; k < stride; k++) {
			float token = k < width ? to_float(data_of(w)[(tokens[r] < 0 ? 0 : tokens[r]) * stride + k]) : NAN;
			float place = k < width ? to_float(data_of(w)[(positions[r] + 1) * stride + k]) : NAN;

			if (k >= width) {
				expect(is_nan(wide[r * stride + k]) && is_nan(data_of(y)[r * stride + k]), "the padding of a row was written");
				continue;
			}
			expect(wide[r * stride + k] == token + place, "embedding [%u][%u]", r, k);
			expect(to_float(data_of(y)[r * stride + k]) == to_float(from_float<T>(token + v[k])),
			    "embedding and vector [%u][%u]", r, k);
		}
	}
}

template <class T> static void test_gates(uint32_t width)
{
	constexpr uint32_t   rows = 2;
	uint32_t             stride = (2 * width + 15) / 8 * 8;
	uint64_t             random = width;
	std::vector<pack<T>> x = matrix<T>(rows, 2 * width, stride, &random, false), z = x;
	std::vector<pack<T>> y = matrix<T>(rows, 0, stride, &random, true);
	std::vector<float>   bias = vector(2 * width, &random);

	expect_runs(emulate(dim3((width + PLAIN_THREADS * pack<T>::count - 1) / (PLAIN_THREADS * pack<T>::count), rows), PLAIN_THREADS,
	    0, { .seed = width }, [&] { silu_kernel<T>(data_of(x), stride, data_of(y), stride, width, {}, {}); }));
	expect_runs(emulate(dim3((2 * width + PLAIN_THREADS - 1) / PLAIN_THREADS, rows), PLAIN_THREADS, 0, { .seed = width + 1 },
	    [&] { gelu_kernel<T>(data_of(z), stride, bias.data(), 2 * width, {}); }));
	for (uint32_t r = 0; r < rows; r++) {
		for (uint32_t k = 0; k < 2 * width; k++) {
			double gate = (double)to_float(data_of(x)[r * stride + k]), v = gate + bias[k];
			double up = k < width ? (double)to_float(data_of(x)[r * stride + width + k]) : 0;

			if (k < width)
				expect(is_close((double)to_float(data_of(y)[r * stride + k]), gate / (1 + exp(-gate)) * up, 1e-5, error_of<T>()),
				    "silu of %zu bytes, width %u, [%u][%u]", sizeof(T), width, r, k);
			if (k >= width)
				expect(is_nan(data_of(y)[r * stride + k]), "silu writes beyond its width");
			expect(is_close((double)to_float(data_of(z)[r * stride + k]), v * 0.5 * (1 + erf(v * sqrt(0.5))), 1e-5, error_of<T>()),
			    "gelu [%u][%u]", r, k);
		}
	}
}

template <class T> static void test_pool(void)
{
	constexpr uint32_t   width = 300, stride = 304;
	uint64_t             random = 12;
	std::vector<pack<T>> x = matrix<T>(3, width, stride, &random, false);
	std::vector<float>   ret(2 * width, NAN);
	int32_t              chosen[2] = { 2, 1 };

	for (uint32_t k = 0; k < width; k++)
		data_of(x)[stride + k] = from_float<T>(0);
	expect_runs(emulate(2, PLAIN_THREADS, 0, { .seed = 5 },
	    [&] { pool_kernel<T>(data_of(x), stride, chosen, ret.data(), width, {}); }));
	for (uint32_t k = 0; k < width; k++) {
		double sum = 0;

		for (uint32_t i = 0; i < width; i++)
			sum += pow((double)to_float(data_of(x)[2 * stride + i]), 2);
		expect(is_close((double)ret[k], (double)to_float(data_of(x)[2 * stride + k]) / sqrt(sum), 1e-6, 1e-5), "pooled [%u]", k);
		expect(ret[width + k] == 0, "a row of zeroes");
	}
}

/* To eight bits and back, by the conversion that the emulator's own test has checked. */
template <class T> static void test_round(float largest, float fixed, uint32_t group)
{
	constexpr uint32_t   width = 200, stride = 208, rows = 2;
	uint64_t             random = group;
	std::vector<pack<T>> x = matrix<T>(rows, width, stride, &random, false), y = matrix<T>(rows, 0, stride, &random, true);

	for (uint32_t k = 0; k < group; k++)
		data_of(x)[k] = from_float<T>(0); /* a group of zeroes */
	expect_runs(emulate(dim3((width + group - 1) / group, rows), PLAIN_THREADS, 0, { .seed = 6 },
	    [&] { round_kernel<T>(data_of(x), data_of(y), stride, width, group, largest, fixed, {}); }));
	for (uint32_t r = 0; r < rows; r++) {
		for (uint32_t k = 0; k < width; k++) {
			uint32_t first = k / group * group;
			float    most = 0, scale, q;

			for (uint32_t i = first; i < width && i < first + group; i++)
				most = fmaxf(most, fabsf(to_float(data_of(x)[r * stride + i])));
			scale = fixed > 0 ? fixed : fmaxf(most / largest, 1e-12f);
			q = to_float(data_of(x)[r * stride + k]) / scale;
			q = largest == 448 ? (float)__nv_fp8_e4m3(q) : fminf(fmaxf(nearbyintf(q), -128), 127);
			expect(to_float(data_of(y)[r * stride + k]) == to_float(from_float<T>(q * scale)),
			    "rounded to %g: [%u][%u] is %g, not %g", (double)largest, r, k, (double)to_float(data_of(y)[r * stride + k]),
			    (double)(q * scale));
		}
	}
}

template <class T> static void test_small(void)
{
	constexpr uint32_t   width = 50, stride = 56;
	uint64_t             random = 14;
	std::vector<pack<T>> x = matrix<T>(2, width, stride, &random, false), before = x, y = matrix<T>(2, 0, stride, &random, true);
	std::vector<float>   bias = vector(width, &random), wide(2 * stride);

	for (float &v : wide)
		v = random_value(&random);
	expect_runs(emulate(2, 32, 0, { .seed = 7 }, [&] { bias_kernel<T>(data_of(x), stride, bias.data(), width); }));
	expect_runs(emulate(2, 32, 0, { .seed = 8 }, [&] { narrow_kernel<T>(wide.data(), stride, data_of(y), stride, width); }));
	for (uint32_t i = 0; i < 2 * stride; i++) {
		if (i % stride >= width) {
			expect(is_nan(data_of(x)[i]) && is_nan(data_of(y)[i]), "the padding of a row was written");
			continue;
		}
		expect(to_float(data_of(x)[i]) == to_float(from_float<T>(to_float(data_of(before)[i]) + bias[i % stride])), "bias");
		expect(to_float(data_of(y)[i]) == to_float(from_float<T>(wide[i])), "narrowing");
	}
}

int main(void)
{
	SKIP_UNDER_THREAD_SANITIZER;
	test_norms();
	test_alones();
	test_rounding();
	test_embed<float>();
	test_embed<__nv_bfloat16>();
	test_embed<__half>();
	for (uint32_t width : { 8, 40, 2304 }) {
		test_gates<float>(width);
		test_gates<__nv_bfloat16>(width);
		test_gates<__half>(width);
	}
	test_gates<float>(7);
	test_gates<__nv_bfloat16>(13);
	test_pool<__half>();
	test_pool<float>();
	test_round<__nv_bfloat16>(448, 0, 128);
	test_round<float>(448, 0.01f, 200);
	test_round<__half>(127, 0, 200);
	test_small<__nv_bfloat16>();
	test_small<__half>();
	return finish("rows");
}
