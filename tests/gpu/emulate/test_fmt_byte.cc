/* test_fmt_byte.cc: products with weights of one byte and the rounding of activations (gpu/fmt_byte.cuh) on the emulator,
 * against plain references in double, with poison in every output. */
#include "base/floats.h"
#include "heads.h"
#include "gpu/fmt_byte_large.cuh"
#include "gpu/fmt_byte_load.cuh"
#include "model/weight.h"
#include "support/random.h"

#include <math.h>
#include <string.h>

#include <type_traits>

static unsigned checks;

/* As expect, but where one thing is wrong for thousands of values not all of them are told. */
#define CHECK(condition, ...)                                      \
	do {                                                       \
		checks++;                                          \
		if (!(condition) && failures++ < 20) {             \
			printf("%s:%d: ", __FILE__, __LINE__);     \
			printf(__VA_ARGS__);                       \
			printf("\n");                              \
		}                                                  \
	} while (0)

static const char *const kind_names[] = { "e4m3", "int8", "e4m3 wide", "int8 wide" };

/* ---- Rounding ---- */

/* What src/cpu/input.c does to a row, or a group of it: the values q · scale. */
static void reference_round(const float *x, uint32_t count, bool i8, float fixed, float *ret, float *ret_scale)
{
	float amax = 0, scale;

	for (uint32_t k = 0; k < count; k++)
		amax = fabsf(x[k]) > amax || isnan(x[k]) ? fabsf(x[k]) : amax;
	scale = amax / (i8 ? 127 : 448);
	scale = fixed > 0 ? fixed : scale < 1e-12f ? 1e-12f : scale;
	for (uint32_t k = 0; k < count; k++) {
		float q = x[k] / scale;

		q = i8 ? rintf(q) : floats_round_e4m3(q);
		ret[k] = (i8 ? q < -128 ? -128 : q > 127 ? 127 : q : q) * scale;
	}
	*ret_scale = scale;
}

template <class T> static T rounded_to(float x);
template <> float rounded_to<float>(float x) { return x; }
template <> __nv_bfloat16 rounded_to<__nv_bfloat16>(float x) { return __float2bfloat16(x); }
template <> __half rounded_to<__half>(float x) { return __float2half(x); }

template <class T, bool I8> static void case_rounding(const char *name, uint32_t rows, uint32_t width, bool by_group, float fixed,
    uint64_t seed)
{
	struct random random = { seed };
	uint32_t      x_stride = (width + 11) / 4 * 4, q_stride = byte_round_up(width, BYTE_ALIGN), groups = (width + 127) / 128,
	    stride =
	    4 * ((rows + 3) / 4);
	uint32_t      scales = by_group ? groups * stride : rows;
	std::vector<T>       x((size_t)rows * x_stride);
	std::vector<uint8_t> q((size_t)rows * q_stride + 16, 0xa5);
	std::vector<float>   scale(scales + 4, 77), values(width), expected(width); /* poison */
	const char          *error;

	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t k = 0; k < x_stride; k++) {
			float v = random_float(&random);

			switch (r % 8) {
			case 1: v = 0; break;                                        /* a row of zeroes */
			case 2: v *= ldexpf(1, (int)(random_u64(&random) % 40) - 30); break; /* subnormal results */
			case 3: v = ldexpf((float)(random_u64(&random) % 64), (int)(random_u64(&random) % 12) - 10); break; /* ties */
			case 4: v *= 1e-30f; break;
			case 5: v *= 1e30f; break;
			case 6: v = k == width / 2 ? (seed % 2 ? INFINITY : NAN) : v; break;
			}
			x[(size_t)r * x_stride + k] = rounded_to<T>(v);
		}
	struct byte_rounding job = { x.data(), q.data(), scale.data(), rows, width, x_stride, q_stride, by_group ? stride : 0, fixed,
	    NULL, 0 };
	const std::vector<emulate_range> before = { { x.data(), x.size() * sizeof(T) }, { q.data(), q.size() },
		{ scale.data(), scale.size() * sizeof(float) } };
	error = emulate(dim3(rows, byte_round_blocks(&job)), dim3(byte_round_threads(&job)), 0, { .seed = seed, .before = before },
	    [&] { byte_round_kernel<T,
	    I8>(job); });
	CHECK(!error, "rounding %s: %s", name, error ? error : "");
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t first = 0; first < width; first += by_group ? 128 : width) {
			uint32_t count = by_group && width - first > 128 ? 128 : width - first;
			float    s, got = scale[by_group ? first / 128 * stride + r : r];
			bool     finite = true;

			for (uint32_t k = 0; k < count; k++) {
				values[k] = byte_value(x[(size_t)r * x_stride + first + k]);
				finite = finite && !isnan(values[k]) && (fixed > 0 || !isinf(values[k]));
			}
			reference_round(values.data(), count, I8, fixed, expected.data(), &s);
			if (!finite) { /* the CPU has NaN in that row or group, and so has every product with it */
				CHECK(isnan(got), "rounding %s: row %u has the scale %g, not NaN", name, r, (double)got);
				continue;
			}
			CHECK(memcmp(&got, &s, 4) == 0, "rounding %s: row %u has the scale %g, not %g", name, r, (double)got, (double)s);
			for (uint32_t k = 0; k < count; k++) {
				uint8_t byte = q[(size_t)r * q_stride + first + k];
				float   v = (I8 ? (float)(int8_t)byte : floats_from_e4m3(byte)) * s;

				CHECK(v == expected[k], "rounding %s: row %u, column %u: %g becomes %g, not %g", name, r, first + k,
				    (double)values[k], (double)v, (double)expected[k]);
			}
		}
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t k = width; k < q_stride; k++)
			CHECK(q[(size_t)r * q_stride + k] == 0, "rounding %s: row %u is not padded with zeroes", name, r);
	for (int i = 0; i < 4; i++)
		CHECK(scale[scales + i] == 77 && q[(size_t)rows * q_stride + i] == 0xa5, "rounding %s: writes behind its end", name);
}

/* Every e4m3 number and all halfway points between two. */
static void case_numbers(void)
{
	for (int i = 0; i < 0x7f; i++) {
		float x = floats_from_e4m3((uint8_t)i), next = i < 0x7e ? floats_from_e4m3((uint8_t)(i + 1)) : 480, middle = (x + next) / 2;
		const float tries[] = { x, middle, nextafterf(middle, 0), nextafterf(middle, INFINITY), nextafterf(x, 0), nextafterf(next,
		    0) };

		for (size_t t = 0; t < sizeof tries / sizeof *tries; t++)
			for (int sign = 0; sign < 2; sign++) {
				float    v = sign ? -tries[t] : tries[t], e = floats_round_e4m3(v), got = floats_from_e4m3(byte_from_f8(v));

				CHECK(memcmp(&e, &got, 4) == 0, "e4m3 of %a is %g, not %g", (double)v, (double)got, (double)e);
			}
	}
	for (int i = 0; i < 256; i++) {
		uint32_t four = (uint32_t)i * 0x01000001u | (uint32_t)((i + 1) & 255) << 8 | (uint32_t)((i * 7) & 255) << 16;

		for (int half = 0; half < 2; half++) {
			uint32_t f8 = byte_to_pair<BYTE_F8_WIDE>(four, half), i8 = byte_to_pair<BYTE_I8_WIDE>(four, half);

			for (int k = 0; k < 2; k++) {
				uint8_t byte = (uint8_t)(four >> (16 * half + 8 * k));
				float   v = floats_from_bfloat((uint16_t)(f8 >> 16 * k)), w = floats_from_bfloat((uint16_t)(i8 >> 16 * k));

				CHECK((byte & 0x7f) == 0x7f || v == floats_from_e4m3(byte), "byte %02x is %g in bfloat16", byte, (double)v);
				CHECK(w == (float)(int8_t)byte, "byte %d is %g in bfloat16", (int8_t)byte, (double)w);
			}
		}
	}
	CHECK(byte_from_f8(INFINITY) == 0x7e && byte_from_f8(-1e9f) == 0xfe && byte_from_i8(-1e9f) == 0x80 && byte_from_i8(INFINITY) ==
	    127,
	    "what is too large is not the largest");
}

/* ---- Products ---- */

/* A product's inputs, and its exact result. */
struct world {
	enum byte_kind kind;
	uint32_t       n, k, rows, stride, granule, x_scale_stride;
	std::vector<uint8_t>       w, w_placed, x;
	std::vector<__nv_bfloat16> x_wide;
	std::vector<float>         w_scales, x_scales;
	std::vector<double>        exact, size; /* [rows][n]; sums of absolute values */
};

static float element(enum byte_kind kind, uint8_t byte)
{
	return kind == BYTE_F8 || kind == BYTE_F8_WIDE ? floats_from_e4m3(byte) : (float)(int8_t)byte;
}

static uint8_t random_byte(struct random *random, enum byte_kind kind)
{
	uint8_t byte = (uint8_t)random_u64(random);
	return (kind == BYTE_F8 || kind == BYTE_F8_WIDE) && (byte & 0x7f) == 0x7f ? 0 : byte;
}

/* EXTREME: scales from 1e-20 to 1e20, of which some are 0. */
static struct world make_world(enum byte_kind kind, uint32_t n, uint32_t k, uint32_t rows, uint32_t granule, bool by_group,
    bool extreme,
    uint64_t seed)
{
	struct random random = { seed };
	struct world  world = { kind, n, k, rows, byte_round_up(k, BYTE_ALIGN), granule, by_group ? (rows + 3) / 4 * 4 : 0, {}, {}, {},
	    {},
		{}, {}, {}, {} };
	uint32_t groups = (k + 127) / 128, granules = granule ? (n + granule - 1) / granule : n;
	bool     wide = byte_wide(kind);

	world.w.assign((size_t)n * world.stride, 0);
	world.w_placed = world.w;
	world.x.assign((size_t)rows * world.stride, 0);
	world.x_wide.assign((size_t)rows * world.stride, __float2bfloat16(0));
	world.w_scales.resize(granule ? (size_t)granules * byte_scale_stride(groups) : n);
	world.x_scales.assign(by_group ? (size_t)groups * world.x_scale_stride : rows, 1);
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t c = 0; c < k; c++)
			world.w[(size_t)r * world.stride + c] = random_byte(&random, kind);
	byte_order(world.w.data(), world.w.size(), world.w_placed.data());
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t c = 0; c < k; c++) {
			world.x[(size_t)r * world.stride + c] = random_byte(&random, kind);
			world.x_wide[(size_t)r * world.stride + c] = __float2bfloat16(random_float(&random));
		}
	for (float &s : world.w_scales)
		s = extreme ? random_u64(&random) % 5 == 0 ? 0 : ldexpf(1 + random_float(&random) / 2,
		    (int)(random_u64(&random) % 128) - 64)
		            : 0.01f * (1.5f + random_float(&random));
	for (size_t i = 0; i < world.x_scales.size(); i++)
		world.x_scales[i] = extreme ? ldexpf(1, (int)(random_u64(&random) % 8)) : 0.02f * (1.5f + random_float(&random));
	world.exact.assign((size_t)rows * n, 0);
	world.size = world.exact;
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t o = 0; o < n; o++)
			for (uint32_t c = 0; c < k; c++) {
				double sw = world.w_scales[granule ? (size_t)(o / granule) * byte_scale_stride(groups) + c / 128 : o];
				double sx = wide ? 1 : world.x_scales[by_group ? (size_t)(c / 128) * world.x_scale_stride + r : r];
				double x = wide ? __bfloat162float(world.x_wide[(size_t)r * world.stride + c]) : element(kind,
				    world.x[(size_t)r * world.stride + c]);
				double v = sw * sx * x * element(kind, world.w[(size_t)o * world.stride + c]);

				world.exact[(size_t)r * n + o] += v;
				world.size[(size_t)r * n + o] += fabs(v);
			}
	return world;
}

template <enum byte_kind KIND> static const char *run_kernel(const struct byte_product &p, uint32_t blocks,
    const tensor_map maps[3], const std::vector<emulate_range> &before, uint64_t seed)
{
	dim3            block((p.warpgroups + 1) * 128);
	emulate_options options = { .seed = seed, .before = before };

#define RUN(MT, T) \
	if (p.token_tile == MT && p.tiles == T) \
		return emulate(dim3(blocks), block, p.shared_bytes, options, \
		    [&] { byte_kernel<KIND, MT, T>(maps[0], maps[1], maps[2], p); });
	RUN(8, 1) RUN(8, 3) RUN(16, 1) RUN(16, 3) RUN(32, 1) RUN(32, 3) RUN(64, 1) RUN(64, 3) RUN(128, 1)
	RUN(128, 2)
#undef RUN
	return "no such instance";
}

/* Rows FIRST … FIRST + ROWS of the world's product: y [rows][n], or what is wrong. */
static std::vector<float> run(const struct world &world, uint32_t first, uint32_t rows, uint32_t multiprocessors, uint64_t seed,
    enum byte_output output = BYTE_OUT_F32, uint32_t y_stride = 0, const struct head_target *heads = NULL)
{
	uint32_t            groups = (world.k + 127) / 128;
	bool                wide = byte_wide(world.kind), narrow = output != BYTE_OUT_F32;
	std::vector<float>  y, result((size_t)rows * world.n), x_scales;
	struct byte_product p = {};
	struct tensor_layout layouts[3];
	tensor_map          maps[3];
	const char         *error;

	y_stride = y_stride ? y_stride : world.n + 5;
	y.assign((size_t)rows * y_stride, 12345);
	/* Scales of those rows alone. */
	p.x_scale_stride = world.x_scale_stride ? (rows + 3) / 4 * 4 : 0;
	if (p.x_scale_stride) {
		x_scales.assign((size_t)groups * p.x_scale_stride, 1);
		for (uint32_t g = 0; g < groups; g++)
			for (uint32_t r = 0; r < rows; r++)
				x_scales[(size_t)g * p.x_scale_stride + r] = world.x_scales[(size_t)g * world.x_scale_stride + first + r];
	} else {
		x_scales.assign(world.x_scales.begin() + first, world.x_scales.begin() + first + rows);
	}
	p.w_scales = world.w_scales.data();
	p.x_scales = wide ? NULL : x_scales.data();
	p.y = y.data();
	p.output = output;
	p.n = world.n;
	p.k = world.k;
	p.rows = rows;
	p.y_stride = y_stride;
	p.granule = world.granule;
	if (heads)
		p.heads = *heads;
	if (!byte_cut(world.kind, multiprocessors, &p)) {
		CHECK(false, "%s %u × %u: no cut", kind_names[world.kind], world.n, world.k);
		return result;
	}
	if (seed % 3) /* so slow that it is seen with few weights */
		p.pace = 1 << 10;
	layouts[0] = byte_weight_map(&p, (wide ? world.w_placed : world.w).data(), world.stride);
	layouts[1] = wide ? byte_input_map(world.kind, &p, world.x_wide.data() + (size_t)first * world.stride, world.stride * 2) :
	    byte_input_map(world.kind, &p, world.x.data() + (size_t)first * world.stride, world.stride);
	layouts[2] = p.x_scale_stride ? byte_scale_map(&p) : layouts[1];
	for (int i = 0; i < 3; i++)
		CHECK(tensor_map_encode(&layouts[i], &maps[i]) == 0, "map %d", i);
	uint32_t blocks = byte_blocks(&p, multiprocessors);
	/* Activations and their scales are what the kernel before has written; it may still read what lies where y will. */
	std::vector<emulate_range> before = { { y.data(), y.size() * sizeof(float) }, { x_scales.data(),
	    x_scales.size() * sizeof(float) } };
	if (wide)
		before.push_back({ (void *)&world.x_wide[(size_t)first * world.stride], (size_t)rows * world.stride * 2 });
	else
		before.push_back({ (void *)&world.x[(size_t)first * world.stride], (size_t)rows * world.stride });
	switch (world.kind) {
	case BYTE_F8: error = run_kernel<BYTE_F8>(p, blocks, maps, before, seed); break;
	case BYTE_I8: error = run_kernel<BYTE_I8>(p, blocks, maps, before, seed); break;
	case BYTE_F8_WIDE: error = run_kernel<BYTE_F8_WIDE>(p, blocks, maps, before, seed); break;
	default: error = run_kernel<BYTE_I8_WIDE>(p, blocks, maps, before, seed);
	}
	CHECK(!error, "%s %u × %u, %u rows, seed %llu: %s", kind_names[world.kind], world.n, world.k, rows, (unsigned long long)seed,
	    error ? error : "");
	for (uint32_t r = 0; r < rows && narrow; r++) {
		const uint16_t *row = (const uint16_t *)y.data() + (size_t)r * y_stride;

		for (uint32_t o = world.n; o < y_stride; o++)
			CHECK(row[o] == ((const uint16_t *)&y.back())[((size_t)r * y_stride + o) % 2],
			    "%s: row %u of 16 bits is written behind its end", kind_names[world.kind], r);
		for (uint32_t o = 0; o < world.n; o++)
			result[(size_t)r * world.n + o] = output == BYTE_OUT_BF16 ? __bfloat162float(((const __nv_bfloat16 *)row)[o]) :
			    __half2float(((const __half *)row)[o]);
	}
	for (uint32_t r = 0; r < rows && !narrow; r++) {
		for (uint32_t o = world.n; o < y_stride; o++)
			CHECK(y[(size_t)r * y_stride + o] == 12345, "%s: row %u is written behind its end", kind_names[world.kind], r);
		memcpy(&result[(size_t)r * world.n], &y[(size_t)r * y_stride], world.n * sizeof(float));
	}
	return result;
}

static void compare(const struct world &world, uint32_t first, uint32_t rows, const std::vector<float> &y)
{
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t o = 0; o < world.n; o++) {
			double exact = world.exact[(size_t)(first + r) * world.n + o], size = world.size[(size_t)(first + r) * world.n + o];
			double got = y[(size_t)r * world.n + o];

			CHECK(fabs(got - exact) <= 1e-6 * size, "%s %u × %u, %u rows: row %u, output %u: %g, not %g",
			    kind_names[world.kind], world.n, world.k, rows, first + r, o, got, exact);
		}
}

/* What the kernel makes of heads: the bits of the product and the kernel of kv.cuh. */
template <class T> static void case_heads(enum byte_kind kind, const struct head_shape &shape, uint32_t k, uint32_t rows,
    uint32_t granule, bool by_group, uint32_t multiprocessors)
{
	enum byte_output   output = std::is_same_v<T, __half> ? BYTE_OUT_F16 : BYTE_OUT_BF16;
	uint32_t           n = shape.width(), different = 0;
	struct world       world = make_world(kind, n, k, rows, granule, by_group, false, n * 31 + k);
	std::vector<float> want = run(world, 0, rows, multiprocessors, 1, output, n + 8), got;
	std::vector<T>     qkv;
	head_world<T>      one(shape, rows), two(shape, rows);

	for (float value : want)
		qkv.push_back(from_float<T>(value));
	two.run(qkv.data(), n);
	got = run(world, 0, rows, multiprocessors, 2, output, n + 8, &one.to);
	for (uint32_t i = 0; i < rows * n; i++)
		different += to_float(qkv[i]) != got[i];
	CHECK(different == 0 && one.equals(two), "%s: heads of %u, %u rows: %u values are not those of two kernels", kind_names[kind],
	    shape.dim, rows, different);
}

static void case_product(enum byte_kind kind, uint32_t n, uint32_t k, uint32_t rows, uint32_t granule, bool by_group, bool extreme,
    uint32_t multiprocessors, unsigned seeds)
{
	struct world world = make_world(kind, n, k, rows, granule, by_group, extreme, n * 31 + k * 7 + rows);

	for (unsigned seed = 1; seed <= seeds; seed++)
		compare(world, 0, rows, run(world, 0, rows, multiprocessors, seed));
}

/* A row alone, with neighbours, and in tiles of every size: the same bits. */
static void case_invariance(enum byte_kind kind, uint32_t n, uint32_t k, uint32_t granule, bool by_group, uint32_t multiprocessors)
{
	static const uint32_t counts[] = { 8, 9, 31, 64, 70, 150 };
	struct world          world = make_world(kind, n, k, 150, granule, by_group, false, 99);
	std::vector<float>    alone[3];
	static const uint32_t which[] = { 0, 5, 7 };

	for (int i = 0; i < 3; i++)
		alone[i] = run(world, which[i], 1, multiprocessors, 3);
	for (uint32_t count : counts) {
		std::vector<float> y = run(world, 0, count, multiprocessors, count);

		for (int i = 0; i < 3; i++)
			CHECK(memcmp(&y[(size_t)which[i] * n], alone[i].data(), n * sizeof(float)) == 0,
			    "%s %u × %u: row %u has other bits among %u",
			    kind_names[kind], n, k, which[i], count);
	}
}

/* Results of 16 bits, also where they go through shared memory: those of float32, rounded. */
static void case_narrow(enum byte_kind kind, uint32_t n, uint32_t k, uint32_t rows, uint32_t granule, bool by_group,
    uint32_t y_stride)
{
	struct world       world = make_world(kind, n, k, rows, granule, by_group, false, 7);
	std::vector<float> exact = run(world, 0, rows, 2, 1);

	for (int half = 0; half < 2; half++) {
		std::vector<float> y = run(world, 0, rows, 2, 2 + (uint64_t)half, half ? BYTE_OUT_F16 : BYTE_OUT_BF16, y_stride);

		for (size_t i = 0; i < y.size(); i++) {
			float cut = exact[i] > 65504 ? 65504 : exact[i] < -65504 ? -65504 : exact[i];
			float want = half ? __half2float(__float2half(cut)) : __bfloat162float(__float2bfloat16(exact[i]));

			CHECK(memcmp(&y[i], &want, sizeof want) == 0, "%s %u × %u, %u rows: row %zu, output %zu is %g in 16 bits, not %g",
			    kind_names[kind], n, k, rows, i / n, i % n, y[i], want);
		}
	}
}

/* Many rows, on MULTIPROCESSORS: the bits of the other kernel. */
static void case_large(uint32_t n, uint32_t k, uint32_t rows, uint32_t y_stride, uint32_t multiprocessors)
{
	struct world world = make_world(BYTE_I8, n, k, rows, 0, false, false, n + rows);

	for (int half = 0; half < 2; half++) {
		enum byte_output      output = half ? BYTE_OUT_F16 : BYTE_OUT_BF16;
		std::vector<float>    want = run(world, 0, rows, 2, 2 + (uint64_t)half, output, y_stride);
		std::vector<uint16_t> y((size_t)rows * y_stride, 0x7777);
		struct large_product  p = {};
		struct tensor_layout  layouts[3];
		tensor_map            maps[3];
		const char           *error;

		p.w_scales = world.w_scales.data();
		p.x_scales = world.x_scales.data();
		p.y = y.data();
		p.output = output;
		p.n = n;
		p.rows = rows;
		p.y_stride = y_stride;
		CHECK(large_takes(output, p.y, y_stride), "results of %u values a row are not taken", y_stride);
		large_cut(k, multiprocessors, 1, &p);
		layouts[0] = large_weight_map(&p, world.w.data(), world.stride);
		layouts[1] = large_input_map(&p, 1, world.x.data(), world.stride);
		layouts[2] = large_output_map(&p);
		for (int i = 0; i < 3; i++)
			CHECK(tensor_map_encode(&layouts[i], &maps[i]) == 0, "map %d", i);
		const std::vector<emulate_range> before = { { y.data(), y.size() * 2 }, { world.x_scales.data(),
		    world.x_scales.size() * 4 }, { world.x.data(), world.x.size() } };
		error = emulate(dim3(p.tiles < multiprocessors ? p.tiles : multiprocessors), dim3((LARGE_WARPGROUPS + 1) * 128),
		    LARGE_SHARED, { .seed = rows + (uint64_t)half, .before = before },
		    [&] { large_kernel<1>(maps[0], maps[1], maps[2], p); });
		CHECK(!error, "int8 %u × %u, %u rows: %s", n, k, rows, error ? error : "");
		for (uint32_t r = 0; r < rows; r++)
			for (uint32_t o = 0; o < y_stride; o++) {
				uint16_t bits = y[(size_t)r * y_stride + o];
				float    got = half ? __half2float({ bits }) : __bfloat162float({ bits });

				CHECK(o < n ? got == want[(size_t)r * n + o] : bits == 0x7777,
				    "int8 %u × %u, %u rows: row %u, output %u is %g, not %g", n, k, rows, r, o, (double)got,
				    o < n ? (double)want[(size_t)r * n + o] : 0);
			}
	}
}

/* Every half of the rows of every tile of outputs is computed once. */
static void case_large_cut(void)
{
	for (uint32_t n = 8; n < 60000; n = n * 7 / 4)
		for (uint32_t rows = 1; rows < 9000; rows = rows * 3 / 2 + 1) {
			struct large_product p = {};
			std::vector<int>     seen;

			p.n = n;
			p.rows = rows;
			large_cut(6144, 66, 2, &p);
			seen.assign((size_t)p.row_tiles * p.halves, 0);
			for (uint32_t t = 0; t < p.tiles; t++) {
				struct large_tile tile = large_tile_of(&p, t);

				for (uint32_t h = 0; h < (tile.half ? 1 : 2); h++)
					if (tile.row < p.row_tiles && tile.token + h < p.halves)
						seen[(size_t)tile.row * p.halves + tile.token + h]++;
					else
						CHECK(false, "%u outputs, %u rows: tile %u is %u, %u", n, rows, t, tile.row, tile.token);
			}
			for (int times : seen)
				CHECK(times == 1, "%u outputs, %u rows: a tile is computed %d times", n, rows, times);
			CHECK((uint64_t)p.row_tiles * 2 * LARGE_OUTPUTS >= n && p.halves * LARGE_HALF >= rows, "%u outputs, %u rows", n, rows);
		}
}

/* ---- Loading ---- */

/* A stored matrix of bytes with scales in blocks, and a window of it. */
struct stored_matrix {
	std::vector<uint8_t> bytes;
	std::vector<float>   scales;
	struct weight_desc   desc;
};

static void make_stored(struct stored_matrix *m, struct random *random, enum weight_format format, enum weight_input input,
    uint64_t rows,
    uint64_t columns, uint64_t block_rows, uint64_t block_columns, uint64_t first_row, uint64_t first_column, uint64_t window_rows,
    uint64_t window_columns)
{
	struct weight_desc w = {};

	w.name = "w";
	w.format = format;
	w.input = input;
	w.rows = window_rows;
	w.columns = window_columns;
	w.stored_rows = rows;
	w.stored_columns = columns;
	w.first_row = first_row;
	w.first_column = first_column;
	w.scales.type = WEIGHT_F32;
	w.scales.block_rows = block_rows;
	w.scales.block_columns = block_columns;
	w.scales.row_blocks = block_rows ? (rows + block_rows - 1) / block_rows : 1;
	w.scales.column_blocks = block_columns ? (columns + block_columns - 1) / block_columns : 1;
	m->bytes.resize(rows * columns);
	for (uint8_t &byte : m->bytes)
		byte = random_byte(random, format == WEIGHT_F8_E4M3 ? BYTE_F8 : BYTE_I8);
	m->scales.resize(w.scales.row_blocks * w.scales.column_blocks);
	for (float &scale : m->scales)
		scale = 1.5f + random_float(random);
	w.data = m->bytes.data();
	w.bytes = m->bytes.size();
	w.scales.data = m->scales.data();
	w.scales.bytes = m->scales.size() * sizeof(float);
	m->desc = w;
}

/* Loads the stack of COUNT parts, in pieces, and holds what lies there against weight_read_row.  NAN_AT: that value of the first
 * part's window is no number. */
static void case_load(struct stored_matrix *parts, uint32_t count, enum byte_kind kind, uint32_t granule, int64_t nan_row)
{
	struct weight_desc   descs[4];
	struct byte_layout   layout;
	struct error         error;
	std::vector<uint8_t> values;
	std::vector<float>   scales, row;
	uint32_t             at = 0;

	if (nan_row >= 0)
		parts[0].bytes[(parts[0].desc.first_row + (uint64_t)nan_row) * parts[0].desc.stored_columns + parts[0].desc.first_column] =
		    0xff;
	for (uint32_t i = 0; i < count; i++) {
		descs[i] = parts[i].desc;
		CHECK(weight_check(&descs[i], &error) == STATUS_OK, "%s", error.message);
	}
	if (!byte_layout_of(descs, count, true, &layout)) {
		CHECK(false, "a stack of %u parts has no layout", count);
		return;
	}
	CHECK(layout.kind == kind && layout.granule == granule, "a stack of %u parts: kind %d, granule %u, not %d, %u", count,
	    layout.kind,
	    layout.granule, kind, granule);
	values.assign(layout.value_bytes, 0xa5);
	scales.assign(layout.scale_count, 77);
	for (uint32_t i = 0; i < count; i++) {
		struct stored_cut cut;

		CHECK(stored_plan(&descs[i], 200 * descs[i].columns, BYTE_PIECE_ROWS, 1, &cut, &error) == STATUS_OK, "%s", error.message);
		for (uint64_t k = 0; k < cut.pieces; k++) {
			struct stored_piece  piece;
			struct stored_bytes  from, side = stored_side_of(&cut, STORED_SCALES);
			std::vector<uint8_t> bytes, sides(cut.side_total + 1);
			uint64_t             threads;
			const char          *wrong;

			stored_piece_of(&cut, k, &piece, &from);
			bytes.resize(from.rows * from.row_bytes);
			for (uint64_t r = 0; r < from.rows; r++)
				memcpy(&bytes[r * from.row_bytes], from.from + r * from.stride, from.row_bytes);
			for (uint64_t r = 0; r < side.rows; r++)
				memcpy(&sides[cut.side_at[STORED_SCALES] + r * side.row_bytes], side.from + r * side.stride, side.row_bytes);
			stored_set_sides(&cut, sides.data(), &piece);
			piece.values = bytes.data();
			piece.stack_row = at;
			threads = layout.granule ? (uint64_t)(piece.rows + layout.granule - 1) / layout.granule * layout.scale_stride :
			    piece.rows;
			wrong = emulate(dim3((uint32_t)((threads + BYTE_LOAD_THREADS - 1) / BYTE_LOAD_THREADS)), dim3(BYTE_LOAD_THREADS), 0,
			    { .seed = k }, [&] { byte_scales_kernel(piece, scales.data(), layout.granule, layout.scale_stride); });
			CHECK(!wrong, "scales: %s", wrong ? wrong : "");
			threads = (uint64_t)piece.rows * (layout.stride / BYTE_LOAD_PACK);
			wrong = emulate(dim3((uint32_t)((threads + BYTE_LOAD_THREADS - 1) / BYTE_LOAD_THREADS)), dim3(BYTE_LOAD_THREADS), 0,
			    { .seed = k }, [&] { byte_place_kernel(piece, values.data(), layout.stride, scales.data(), layout.granule,
			    layout.scale_stride, byte_wide(layout.kind)); });
			CHECK(!wrong, "values: %s", wrong ? wrong : "");
		}
		at += (uint32_t)descs[i].rows;
	}
	row.resize(layout.columns);
	at = 0;
	for (uint32_t i = 0; i < count; i++)
		for (uint64_t r = 0; r < descs[i].rows; r++, at++) {
			weight_read_row(&descs[i], r, row.data());
			for (uint32_t k = 0; k < layout.stride; k++) {
				float scale = scales[layout.granule ? at / layout.granule * layout.scale_stride + k / BYTE_GROUP : at];
				float got = byte_value_at(layout.kind, &values[(size_t)at * layout.stride], k) * scale;
				bool  poisoned = nan_row >= 0 && (layout.granule ? at / layout.granule == nan_row / layout.granule && k < BYTE_GROUP
				    : at == nan_row);

				if (poisoned)
					CHECK(isnan(got), "part %u, row %llu, column %u is %g beside what is no number", i, (unsigned long long)r, k,
					    (double)got);
				else
					CHECK(k < layout.columns ? got == row[k] : got == 0, "part %u, row %llu, column %u is %g, not %g", i,
					    (unsigned long long)r, k, (double)got, k < layout.columns ? (double)row[k] : 0);
			}
		}
}

static void case_layouts(void)
{
	struct random        random = { 5 };
	struct stored_matrix m[4];
	struct byte_layout   layout;
	struct weight_desc   desc;

	/* Blocks of 128 × 128, of which the second part begins in the middle of one of the stack: 576 rows. */
	make_stored(&m[0], &random, WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_GROUP, 576, 300, 128, 128, 0, 0, 576, 300);
	make_stored(&m[1], &random, WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_GROUP, 200, 300, 128, 128, 0, 0, 200, 300);
	case_load(m, 2, BYTE_F8, 64, -1);
	case_load(m, 1, BYTE_F8, 128, 130);
	/* A window whose rows begin inside a block, and whose columns begin at one. */
	make_stored(&m[0], &random, WEIGHT_F8_E4M3, WEIGHT_INPUT_FLOAT, 300, 500, 128, 128, 32, 128, 250, 260);
	case_load(m, 1, BYTE_F8_WIDE, 32, -1);
	/* A scale for all of one part, one for each row of the other. */
	make_stored(&m[0], &random, WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_TOKEN, 70, 77, 0, 0, 0, 0, 70, 77);
	make_stored(&m[1], &random, WEIGHT_F8_E4M3, WEIGHT_INPUT_F8_TOKEN, 33, 77, 1, 0, 0, 0, 33, 77);
	case_load(m, 2, BYTE_F8, 0, 3);
	make_stored(&m[0], &random, WEIGHT_I8, WEIGHT_INPUT_I8_TOKEN, 257, 130, 1, 0, 100, 7, 150, 111);
	case_load(m, 1, BYTE_I8, 0, -1);
	make_stored(&m[0], &random, WEIGHT_I8, WEIGHT_INPUT_FLOAT, 257, 130, 1, 0, 100, 7, 150, 111);
	case_load(m, 1, BYTE_I8_WIDE, 0, -1);
	/* What has no such layout. */
	desc = m[0].desc;
	CHECK(!byte_layout_of(&desc, 1, false, &layout), "int8 with float16 or float32 activations");
	desc.input = WEIGHT_INPUT_F8_TOKEN;
	CHECK(!byte_layout_of(&desc, 1, true, &layout), "int8 with float8 activations");
	make_stored(&m[0], &random, WEIGHT_I8, WEIGHT_INPUT_FLOAT, 64, 256, 1, 32, 0, 0, 64, 256);
	CHECK(!byte_layout_of(&m[0].desc, 1, true, &layout), "groups of 32 inputs");
	make_stored(&m[0], &random, WEIGHT_I8, WEIGHT_INPUT_I8_TOKEN, 64, 256, 128, 128, 0, 0, 64, 256);
	CHECK(!byte_layout_of(&m[0].desc, 1, true, &layout), "int8 in blocks with int8 activations");
	make_stored(&m[0], &random, WEIGHT_F8_E4M3, WEIGHT_INPUT_FLOAT, 64, 500, 128, 128, 0, 100, 64, 300);
	CHECK(!byte_layout_of(&m[0].desc, 1, true, &layout), "columns that begin inside a block");
	make_stored(&m[0], &random, WEIGHT_F8_E4M3, WEIGHT_INPUT_FLOAT, 64, 500, 1, 128, 0, 0, 64, 500);
	CHECK(!byte_layout_of(&m[0].desc, 1, true, &layout), "a scale for each row and group");
	desc = m[0].desc;
	desc.format = WEIGHT_Q8_0;
	CHECK(!byte_layout_of(&desc, 1, true, &layout), "another format");
}

/* What cannot be is refused, whatever the numbers. */
static void case_refused(void)
{
	struct byte_product p = {};

	p.n = 64, p.k = 1 << 17, p.rows = 1;
	CHECK(!byte_cut(BYTE_I8, 132, &p), "sums that do not fit into int32");
	CHECK(byte_cut(BYTE_F8, 132, &p) && p.shared_bytes <= BYTE_SHARED_MAX, "as many inputs of e4m3");
	p.granule = 12;
	CHECK(!byte_cut(BYTE_F8, 132, &p), "a granule of 12");
	p.granule = 8, p.n = 6144;
	CHECK(!byte_cut(BYTE_F8, 132, &p), "more scales than there is room for");
	p.granule = 0, p.rows = 0;
	CHECK(!byte_cut(BYTE_F8, 132, &p), "no rows");
	for (uint32_t n = 1; n < 160000; n = n * 5 / 3 + 1)
		for (uint32_t rows = 1; rows < 5000; rows = rows * 2 + 1)
			for (int kind = 0; kind < 4; kind++) {
				struct byte_product q = {};

				q.n = n, q.k = 6144, q.rows = rows, q.granule = kind == BYTE_I8 ? 0 : 128, q.x_scale_stride = kind == BYTE_F8 ?
				    4 * ((rows + 3) / 4) : 0;
				CHECK(byte_cut((enum byte_kind)kind, 132, &q), "%s, %u outputs, %u rows", kind_names[kind], n, rows);
				CHECK(q.tile_rows % 8 == 0 && q.tile_rows / q.boxes <= 256 && (uint64_t)q.row_tiles * q.tile_rows >= n &&
				    q.token_tiles * q.token_tile >= rows && q.stages >= 2 && q.steps * q.panels >= q.groups &&
				    q.steps % byte_round((enum byte_kind)kind, q.token_tile, q.tiles) == 0 &&
				    q.tile_rows <= 64 * q.tiles * q.warpgroups && q.shared_bytes <= BYTE_SHARED_MAX &&
				    (q.stages - 1) * byte_shared_of((enum byte_kind)kind, &q).stage_bytes + ((q.panels - 1) * q.tile_rows +
				    (q.tile_rows + 63) / 64 * 64) * BYTE_GROUP + 1024 <= q.shared_bytes, "the cut of %u outputs, %u rows", n, rows);
			}
}

/* Scales of few rows and of many inputs: what has a cut for one row on one multiprocessor has one for all. */
static void case_many_scales(void)
{
	for (uint32_t granule = 8; granule <= 128; granule *= 2)
		for (uint32_t k = 1000; k < 130000; k = k * 9 / 8) {
			struct byte_product p = {};
			bool                fine;

			p.n = p.rows = 1, p.k = k, p.granule = granule, p.x_scale_stride = 4;
			fine = byte_cut(BYTE_F8, 1, &p);
			for (uint32_t n = 8; n < 60000; n = n * 7 / 5)
				for (uint32_t rows = 1; rows < 3000; rows = rows * 3)
					for (uint32_t processors = 1; processors < 200; processors = processors * 11 / 2 + 3) {
						p.n = n, p.rows = rows, p.x_scale_stride = (rows + 3) / 4 * 4;
						CHECK(byte_cut(BYTE_F8, processors, &p) == fine && (!fine || ((p.tile_rows / granule + 2) *
						    byte_scale_stride(p.groups) * 4 <= BYTE_SCALES_MAX && (uint64_t)p.row_tiles * p.tile_rows >= n)),
						    "scales of %u rows, %u × %u, %u rows on %u multiprocessors", granule, n, k, rows, processors);
					}
		}
}

int main(void)
{
	SKIP_UNDER_THREAD_SANITIZER;
	case_large_cut();
	case_large(150, 330, 131, 160, 2);
	case_large(501, 200, 300, 504, 3); /* whole tiles and halves of rows */
	case_large(128, 1100, 520, 128, 2);
	case_large(500, 130, 520, 504, 3);  /* the last round's whole tiles in halves */
	case_large(70, 130, 4300, 72, 3);   /* two groups of tiles of rows */
	case_large(100, 77, 129, 104, 4);
	case_numbers();
	for (uint64_t seed = 1; seed <= 2; seed++) {
		case_rounding<__nv_bfloat16, false>("bfloat16 to e4m3 by row", 9, 576, false, 0, seed);
		case_rounding<__nv_bfloat16, false>("bfloat16 to e4m3 by group", 9, 1300, true, 0, seed);
		case_rounding<float, false>("float32 to e4m3 by group", 8, 77, true, 0, seed);
		case_rounding<float, false>("float32 to e4m3, fixed", 8, 300, false, 0.01f, seed);
		case_rounding<__nv_bfloat16, true>("bfloat16 to int8, many rows", 130, 1302, false, 0, seed); /* fewer threads than packs */
		case_rounding<float, false>("float32 to e4m3, many rows", 131, 77, false, 0, seed);
		case_rounding<__half, true>("float16 to int8", 8, 1000, false, 0, seed);
		case_rounding<float, true>("float32 to int8", 8, 129, false, 0, seed);
		case_rounding<__nv_bfloat16, true>("bfloat16 to int8, fixed", 8, 129, false, 0.5f, seed);
	}
	case_refused();
	case_many_scales();
	case_layouts();
	for (int kind = 0; kind < 4; kind++) {
		enum byte_kind k = (enum byte_kind)kind;
		bool           blocks = k != BYTE_I8, groups = k == BYTE_F8;

		case_product(k, 1, 1, 1, 0, false, false, 3, 2);
		case_product(k, 77, 576, 3, 0, false, false, 3, 3);
		case_product(k, 77, 576, 3, 0, false, true, 3, 3);
		case_product(k, 200, 200, 17, blocks ? 64 : 0, groups, false, 2, 2);
		case_product(k, 200, 1100, 33, blocks ? 128 : 0, groups, true, 2, 2);
		case_product(k, 530, 300, 64, blocks ? 16 : 0, groups, false, 2, 2);   /* three tiles a warpgroup, two boxes */
		case_product(k, 410, 260, 12, blocks ? 128 : 0, false, false, 2, 1);
		case_product(k, 150, 330, 131, blocks ? 128 : 0, groups, false, 2, 1); /* tiles of 128 rows */
		case_product(k, 500, 330, 131, blocks ? 128 : 0, groups, false, 4, 2); /* of 256 outputs */
		case_product(k, 150, 330, 70, 0, false, false, 2, 1);
		case_product(k, 100, 700, 100, blocks ? 32 : 0, groups, false, 3, 2); /* tiles of 40 outputs */
		case_narrow(k, 150, 330, 131, blocks ? 128 : 0, groups, 160);
		case_narrow(k, 60, 700, 121, 0, false, 64);
		case_narrow(k, 501, 200, 140, 0, false, 504);
		case_narrow(k, 77, 200, 90, 0, false, 83); /* rows that do not begin at 16 bytes */
		case_narrow(k, 77, 200, 9, 0, false, 80);
		case_product(k, 24, 3072, 1, 0, false, false, 3, 1);  /* 64 rows are read of the last panel's 8 */
		case_product(k, 144, 3072, 1, 0, false, false, 2, 1); /* and of 72 the second 64 */
		case_invariance(k, 137, 576, blocks ? 64 : 0, groups, 2);
		case_invariance(k, 137, 1100, blocks ? 128 : 0, groups, 2);
		case_invariance(k, 300, 200, 0, false, 1);
		case_heads<__nv_bfloat16>(k, { 3, 1, 64, 64, 16, true, true }, 200, 1, blocks ? 128 : 0, groups, 3);
		case_heads<__half>(k, { 4, 2, 24, 4, 12, false, false }, 130, 16, 0, false, 2);
		case_heads<__nv_bfloat16>(k, { 6, 1, 128, 64, 32, true, true }, 128, 12, blocks ? 64 : 0, false, 1);
	}
	case_product(BYTE_F8, 90, 400, 5, 0, true, false, 2, 2); /* scales by output and by group */
	case_product(BYTE_F8, 90, 400, 5, 32, false, false, 2, 2); /* by block and by row */
	printf("%u checks\n", checks);
	return finish("test_fmt_byte");
}
