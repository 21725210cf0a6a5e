/* test_linear.cc: our own kernels of linear layers under the emulator: linear_skinny.cuh in every size that is built and in many
 * variants, linear_wide.cuh, linear_portable.cuh, on odd shapes, against sums in double.  What pads rows is NaN, what lies beyond
 * an output must stay as it was, and row 0 has the same bits whatever stands beside it, on however many blocks. */
#include "heads.h"

#include "gpu/linear_portable.cuh"
#include "gpu/linear_skinny.cuh"
#include "gpu/linear_wide.cuh"

#include <type_traits>

enum { SEEDS = 2, PAD = 3 };

static uint64_t state = 1;

/* Rows of k values, each with NaN up to the stride. */
template <class T> struct matrix {
	uint32_t       rows, k, stride;
	std::vector<T> values;

	matrix(uint32_t rows_, uint32_t k_) : rows(rows_), k(k_), stride((k_ + 7) / 8 * 8), values((size_t)rows_ * stride)
	{
		for (uint32_t r = 0; r < rows; r++)
			for (uint32_t i = 0; i < stride; i++)
				values[(size_t)r * stride + i] = from_float<T>(i < k ? random_value(&state) : NAN);
	}
	float at(uint32_t r, uint32_t i) const { return to_float(values[(size_t)r * stride + i]); }
	/* Global memory is aligned as the device's. */
	const T *data(void) const { return (const T *)values.data(); }
};

template <class T> static constexpr enum tensor_type type_of(void)
{
	return sizeof(T) == 2 && std::is_same_v<T, __half> ? TENSOR_F16 : TENSOR_BF16;
}

template <class T> static double ulp(void) { return std::is_same_v<T, __half> ? 0x1p-11 : 0x1p-8; }

/* An output with NaN everywhere and columns behind each row that nobody may write. */
template <class T> struct output {
	uint32_t             rows, n, stride;
	bool                 wide;
	std::vector<T>       narrow;
	std::vector<float>   floats;

	output(uint32_t rows_, uint32_t n_, bool wide_) : rows(rows_), n(n_), stride(n_ + PAD), wide(wide_),
	    narrow(wide_ ? 0 : (size_t)rows_ * (n_ + PAD), from_float<T>(NAN)), floats(wide_ ? (size_t)rows_ * (n_ + PAD) : 0, NAN)
	{
	}
	void *data(void) { return wide ? (void *)floats.data() : (void *)narrow.data(); }
	emulate_range range(void) { return { data(), wide ? floats.size() * sizeof(float) : narrow.size() * sizeof(T) }; }
	float at(uint32_t r, uint32_t i) const
	{
		return wide ? floats[(size_t)r * stride + i] : to_float(narrow[(size_t)r * stride + i]);
	}
};

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Against the sum in double; GATED: W is gate | up. */
template <class T> static void compare(const char *name, const matrix<T> &w, const matrix<T> &x, const output<T> &y, bool gated)
{
	for (uint32_t r = 0; r < y.rows; r++) {
		for (uint32_t o = 0; o < y.n + PAD; o++) {
			double sum[2] = { 0, 0 }, sizes[2] = { 0, 0 }, want, allowed;

			if (o >= y.n) {
				expect(isnan(y.at(r, o)), "%s: row %u wrote beyond its end, at %u", name, r, o);
				continue;
			}
			for (int part = 0; part < (gated ? 2 : 1); part++)
				for (uint32_t i = 0; i < w.k; i++) {
					double product = (double)w.at(o + (uint32_t)part * y.n, i) * x.at(r, i);

					sum[part] += product;
					sizes[part] += fabs(product);
				}
			want = gated ? sum[0] * sigmoid(sum[0]) * sum[1] : sum[0];
			allowed = (y.wide ? 0 : ulp<T>() * fabs(want)) + 1e-6 * sizes[0];
			if (gated) /* gate and up are rounded before */
				allowed += 3 * ulp<T>() * (fabs(want) + fabs(sum[0] * sum[1])) +
				    1e-5 * (sizes[0] * fabs(sum[1]) + sizes[1] * fabs(sum[0]));
			expect(fabs((double)y.at(r, o) - want) <= allowed, "%s: row %u, output %u is %g, not %g", name, r, o,
			    (double)y.at(r, o), want);
		}
	}
}

/* ---- linear_skinny ---- */

static const uint32_t test_pace = 1 << 10; /* so slow that it is seen with few weights */

template <class T, bool GATED> static const char *run_skinny(const struct skinny_plan &plan,
    const std::vector<emulate_range> &before, uint64_t seed)
{
	tensor_map weights, inputs;

	if (tensor_map_encode(&plan.weights, &weights) || tensor_map_encode(&plan.inputs, &inputs))
		return "a tensor map was refused";
#define RUN(count, group_count, tile_count)                                                                             \
	if (plan.tokens == count && plan.groups == group_count && plan.tiles == tile_count)                             \
		return emulate(plan.blocks, plan.threads, plan.shared_bytes, { .seed = seed, .before = before },        \
		    [&] { skinny_kernel<T, count, group_count, tile_count, GATED>(weights, inputs, plan.args); });
	SKINNY_EACH_SIZE(RUN)
	return "no such size";
}

/* Row 0 of what V computes. */
template <class T, bool GATED> static std::vector<float> skinny(const char *name, const matrix<T> &w, const matrix<T> &x,
    const struct skinny_variant &v, bool wide, uint64_t seed)
{
	uint32_t           n = GATED ? w.rows / 2 : w.rows, mark = 0;
	output<T>          y(x.rows, n, wide);
	struct skinny_plan plan;
	const char        *error;
	std::vector<float> row;

	expect(skinny_layout(&plan, &v, type_of<T>(), w.data(), w.rows, w.k, w.stride, x.data(), x.rows, x.stride, GATED),
	    "%s: no layout", name);
	plan.args.y = y.data();
	plan.args.y_stride = y.stride;
	plan.args.to_float = wide;
	plan.args.mark = &mark;
	plan.args.mark_value = 77;
	plan.args.pace = seed % 3 ? test_pace : plan.args.pace;
	error = run_skinny<T, GATED>(plan, { { (void *)x.data(), x.values.size() * sizeof(T) }, y.range() }, seed);
	expect(!error, "%s: %s", name, error);
	expect(mark == 77, "%s: no mark", name);
	compare(name, w, x, y, GATED);
	for (uint32_t o = 0; o < n; o++)
		row.push_back(y.at(0, o));
	return row;
}

struct shape {
	uint32_t              n, k, rows;
	struct skinny_variant v;
	int                   wide, gated;
};

template <class T> static void run_shape(const struct shape &s)
{
	matrix<T>          w(s.n, s.k), x(s.rows, s.k);
	char               name[160];
	std::vector<float> first;

	snprintf(name, sizeof name, "skinny %u x %u, %u rows, (%u, %u), %u panels, %u blocks, %u stages%s%s%s", s.n, s.k, s.rows,
	    s.v.groups, s.v.tiles, s.v.panels, s.v.blocks, s.v.stages, s.v.exact ? ", exact" : "", s.wide ? ", to float" : "",
	    s.gated ? ", gated" : "");
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		std::vector<float> row = s.gated ? skinny<T, true>(name, w, x, s.v, s.wide, seed) :
		    skinny<T, false>(name, w, x, s.v, s.wide, seed);

		if (seed == 0)
			first = row;
		expect(memcmp(first.data(), row.data(), row.size() * sizeof row[0]) == 0, "%s: the bits depend on the seed", name);
	}
}

static const struct shape shapes[] = {
	{ 1, 1, 1, { 1, 1, 1, 132, 0, 0 }, 0, 0 },
	{ 3, 5, 2, { 1, 1, 4, 132, 0, 0 }, 1, 0 },
	{ 2, 64, 64, { 1, 1, 2, 1, 2, 1 }, 0, 0 },
	{ 17, 33, 5, { 1, 1, 2, 3, 0, 0 }, 0, 0 },
	{ 47, 200, 9, { 1, 1, 1, 1, 2, 1 }, 0, 0 },
	{ 70, 72, 33, { 2, 1, 1, 1, 0, 0 }, 1, 0 },
	{ 100, 320, 1, { 1, 1, 2, 2, 3, 0 }, 0, 0 },
	{ 100, 320, 8, { 1, 1, 2, 3, 2, 1 }, 0, 0 },
	{ 129, 128, 64, { 2, 1, 1, 1, 2, 0 }, 0, 0 }, /* two passes */
	{ 200, 192, 17, { 2, 2, 1, 1, 2, 0 }, 1, 0 },
	{ 300, 128, 7, { 2, 3, 1, 1, 2, 0 }, 0, 0 },  /* more rows than a box of 256: grouped, but not past the end */
	{ 304, 128, 16, { 2, 3, 2, 1, 0, 0 }, 0, 0 },
	{ 700, 64, 3, { 2, 3, 1, 2, 0, 0 }, 0, 0 },   /* grouped, the last block begins earlier */
	{ 301, 70, 3, { 2, 3, 1, 1, 2, 0 }, 0, 0 },   /* passes of 256 at most: k is no multiple of a panel */
	{ 900, 64, 2, { 2, 3, 4, 1, 0, 0 }, 1, 0 },   /* three passes */
	{ 64, 640, 12, { 1, 1, 8, 1, 2, 0 }, 0, 0 },  /* ten panels by eight */
	{ 905, 64, 3, { 2, 1, 2, 3, 0, 1 }, 0, 0 },       /* three passes of three blocks, side by side */
	{ 16, 64, 1, { 1, 1, 1, 132, 0, 0 }, 0, 1 },
	{ 48, 192, 9, { 1, 1, 2, 2, 2, 0 }, 0, 1 },
	{ 208, 128, 33, { 2, 1, 1, 1, 2, 0 }, 0, 1 }, /* two passes */
	{ 176, 320, 64, { 2, 2, 2, 1, 2, 0 }, 0, 1 },
	{ 336, 64, 5, { 2, 3, 1, 5, 0, 0 }, 0, 1 },
	{ 96, 384, 5, { 1, 1, 1, 2, 3, 0 }, 0, 1 },
};

/* The same row among others, on other numbers of blocks, by other tiles and stages: the same bits. */
template <class T> static void row_alone_and_among(void)
{
	static const uint32_t              rows[] = { 1, 8, 16, 32, 64 };
	static const struct skinny_variant variants[] = { { 1, 1, 1, 4, 0, 0 }, { 2, 1, 2, 1, 2, 0 }, { 2, 2, 1, 1, 3, 0 } };
	matrix<T>                          w(120, 328), all(64, 328);
	std::vector<float>                 first;

	for (uint32_t m : rows) {
		matrix<T> x(m, 328);

		memcpy((void *)x.values.data(), all.values.data(), x.values.size() * sizeof(T));
		for (const struct skinny_variant &v : variants) {
			std::vector<float> row = skinny<T, false>("a row among others", w, x, v, false, m);

			if (first.empty())
				first = row;
			expect(memcmp(first.data(), row.data(), row.size() * sizeof row[0]) == 0,
			    "row 0 among %u by (%u, %u) on %u blocks: other bits", m, v.groups, v.tiles, v.blocks);
		}
	}
}

/* What gated computes is what silu_gate makes of the product: the same bits. */
template <class T> static void gated_as_two_kernels(void)
{
	matrix<T>             w(96, 128), x(5, 128);
	struct skinny_variant v = { 1, 1, 2, 2, 0, 0 };
	std::vector<float>    product = skinny<T, false>("gate, up", w, x, v, false, 1);
	std::vector<float>    gated = skinny<T, true>("gated", w, x, v, false, 2);

	for (uint32_t o = 0; o < 48; o++) {
		float g = product[o], want = to_float(from_float<T>(g / (1 + expf(-g)) * product[48 + o]));

		expect(want == gated[o], "gated output %u: %g, of two kernels %g", o, (double)gated[o], (double)want);
	}
}

/* ---- Heads in the epilogue ---- */

/* Rows of q, k and v, padding included. */
template <class T> static std::vector<T> run_heads(const matrix<T> &w, const matrix<T> &x, const struct skinny_variant &v,
    const struct head_target *heads, uint64_t seed)
{
	std::vector<T>     y((size_t)x.rows * (w.rows + 8), from_float<T>(NAN));
	struct skinny_plan plan;
	const char        *error;

	expect(skinny_layout(&plan, &v, type_of<T>(), w.data(), w.rows, w.k, w.stride, x.data(), x.rows, x.stride,
	    heads ? SKINNY_HEADS : SKINNY_PLAIN), "no layout");
	plan.args.y = y.data();
	plan.args.y_stride = w.rows + 8;
	if (heads)
		plan.args.heads = *heads;
	error = run_skinny<T, false>(plan, {}, seed);
	expect(!error, "heads: %s", error);
	return y;
}

/* Bits are those of two kernels, however blocks, passes and tiles cut heads and pairs. */
template <class T> static void heads_as_two_kernels(void)
{
	static const struct {
		struct head_shape     heads;
		uint32_t              k, rows;
		struct skinny_variant v;
	} cases[] = {
		{ { 4, 1, 16, 4, 4, true, false }, 64, 1, { 1, 1, 1, 7, 0, 0 } },
		{ { 3, 2, 64, 64, 16, false, true }, 72, 5, { 1, 1, 2, 11, 0, 0 } },
		{ { 2, 1, 66, 2, 33, true, false }, 128, 9, { 2, 1, 1, 3, 2, 1 } },
		{ { 5, 3, 24, 16, 5, true, true }, 64, 16, { 1, 1, 1, 2, 2, 0 } },
		{ { 6, 1, 128, 64, 32, true, true }, 64, 12, { 2, 3, 1, 4, 0, 0 } },
		{ { 7, 2, 64, 64, 0, true, true }, 64, 3, { 2, 2, 1, 3, 0, 0 } },
		{ { 5, 1, 128, 64, 64, false, true }, 64, 2, { 2, 3, 2, 1, 0, 0 } }, /* three passes */
		{ { 4, 2, 32, 8, 16, true, false }, 192, 33, { 2, 2, 1, 1, 2, 0 } },
		{ { 9, 2, 32, 64, 8, false, true }, 64, 64, { 1, 1, 1, 5, 2, 1 } },
		{ { 3, 1, 2, 1, 1, true, false }, 64, 20, { 1, 1, 1, 132, 0, 0 } },
	};

	for (const auto &c : cases) {
		matrix<T>      w(c.heads.width(), c.k), x(c.rows, c.k);
		head_world<T>  two(c.heads, c.rows);
		std::vector<T> want = run_heads<T>(w, x, c.v, NULL, 1);

		two.run(want.data(), w.rows + 8);
		for (uint64_t seed = 2; seed < 2 + SEEDS; seed++) {
			head_world<T>  one(c.heads, c.rows);
			std::vector<T> got = run_heads<T>(w, x, c.v, &one.to, seed);

			expect(memcmp(want.data(), got.data(), want.size() * sizeof(T)) == 0 && one.equals(two),
			    "%u and %u heads of %u, %u rows: not the bits of two kernels", c.heads.q_heads, c.heads.kv_heads, c.heads.dim,
			    c.rows);
		}
	}
}

/* Sizes of models: what the default lays out fits a block, and every output belongs to one pass of one block. */
static void layouts(void)
{
	static const struct {
		uint32_t n, k;
		int      gated;
	} sizes[] = { { 4096, 4096, 0 }, { 4608, 4096, 0 }, { 27392, 4096, 0 }, { 27392, 4096, 1 }, { 4096, 13696, 0 },
		{ 6144, 6144, 0 }, { 6656, 6144, 0 }, { 46080, 6144, 0 }, { 46080, 6144, 1 }, { 6144, 23040, 0 }, { 151552, 4096, 0 },
		{ 151552, 6144, 0 }, { 1, 1, 0 }, { 131, 64, 0 }, { 133, 100, 0 }, { 16, 64, 1 }, { 576, 576, 0 }, { 49152, 576, 0 } };
	static const char data[16] = "";

	for (const auto &s : sizes)
		for (uint32_t rows = 1; rows <= SKINNY_TOKENS_MAX; rows++)
			for (uint32_t blocks = 132; blocks >= 78; blocks -= 54) {
				struct skinny_variant v = skinny_default(s.n, blocks, s.gated);
				struct skinny_plan    plan;
				uint32_t stride = (s.k + 7) / 8 * 8;
				bool     fine = skinny_layout(&plan, &v, TENSOR_BF16, data, s.n, s.k, stride, data, rows, stride, s.gated);
				uint32_t most = fine ? (plan.args.units + plan.blocks - 1) / plan.blocks : 0;

				expect(fine, "%u x %u, %u rows: no layout", s.n, s.k, rows);
				expect(plan.shared_bytes <= SKINNY_SHARED_MAX && plan.args.stages >= 2 && plan.args.stages <= SKINNY_STAGES_MAX,
				    "%u x %u, %u rows: %u bytes in %u stages", s.n, s.k, rows, plan.shared_bytes, plan.args.stages);
				expect(plan.args.passes * plan.args.pass_units >= most && (plan.args.passes - 1) * plan.args.pass_units < most,
				    "%u x %u: %u passes of %u for %u", s.n, s.k, plan.args.passes, plan.args.pass_units, most);
				expect(plan.args.pitch <= plan.groups * plan.tiles * SKINNY_TILE, "%u x %u: %u rows in %u tiles", s.n, s.k,
				    plan.args.pitch, plan.groups * plan.tiles);
				expect(plan.args.copied_bytes >= 16384 || plan.args.panels == 8 || plan.args.panels == plan.args.k_panels,
				    "%u x %u: stages of %u bytes", s.n, s.k, plan.args.copied_bytes);
			}
}

/* What is tried at start: all of it has a layout, and nothing is tried twice. */
static void trials(void)
{
	static const struct {
		uint32_t n, k;
		int      gated;
	} sizes[] = { { 4096, 4096, 0 }, { 27392, 4096, 1 }, { 6144, 23040, 0 }, { 46080, 6144, 1 }, { 151552, 6144, 0 }, { 1, 1, 0 },
		{ 133, 100, 0 }, { 16, 64, 1 } };
	static const char data[16] = "";

	for (const auto &s : sizes)
		for (uint32_t rows = 1; rows <= SKINNY_TOKENS_MAX; rows *= 4) {
			struct skinny_variant v[SKINNY_VARIANTS_MAX];
			uint32_t count = skinny_variants(s.n, s.k, rows, 132, s.gated, v), stride = (s.k + 7) / 8 * 8;

			expect(count >= (s.n >= 4096 ? 4 : 1) && count <= SKINNY_VARIANTS_MAX, "%u x %u, %u rows: %u variants", s.n, s.k, rows,
			    count);
			for (uint32_t i = 0; i < count; i++) {
				struct skinny_plan plan;
				bool fine = skinny_layout(&plan, &v[i], TENSOR_BF16, data, s.n, s.k, stride, data, rows, stride, s.gated);

				expect(fine && plan.shared_bytes <= SKINNY_SHARED_MAX, "%u x %u, %u rows: variant %u", s.n, s.k, rows, i);
				for (uint32_t j = 0; j < i; j++)
					expect(memcmp(&v[i], &v[j], sizeof v[i]) != 0, "%u x %u, %u rows: variant %u twice", s.n, s.k, rows, i);
			}
		}
}

static void refusals(void)
{
	static const char     data[16] = "";
	struct skinny_plan    plan;
	struct skinny_variant v = { 1, 1, 1, 132, 0, 0 }, one_stage = { 1, 1, 1, 132, 1, 0 }, exact = { 1, 1, 1, 132, 0, 1 };

#define REFUSED(variant, n, k, rows, gated, why) \
	expect(!skinny_layout(&plan, &variant, TENSOR_BF16, data, n, k, (k + 7) / 8 * 8, data, rows, (k + 7) / 8 * 8, gated), "%s", why)
	REFUSED(v, 64, 64, 65, 0, "65 rows");
	REFUSED(v, 64, 64, 0, 0, "no rows");
	REFUSED(v, 0, 64, 1, 0, "no outputs");
	REFUSED(v, 64, 0, 1, 0, "no inputs");
	REFUSED(one_stage, 64, 128, 1, 0, "one stage: its reader would wait for the next");
	REFUSED(exact, 64, 64, 1, 1, "gated needs groups of eight");
	REFUSED(v, 64, 72, 1, 1, "gated with a part of a panel");
	REFUSED(v, 40, 64, 1, 1, "gated with outputs that are no groups of eight");
	REFUSED(v, 41, 64, 1, SKINNY_HEADS, "half a pair");
	expect(!skinny_layout(&plan, &v, TENSOR_F32, data, 64, 64, 64, data, 1, 64, 0), "float32");
}

/* ---- linear_portable ---- */

template <class T> static std::vector<float> portable(const matrix<T> &w, const matrix<T> &x, uint32_t tokens, bool wide,
    uint64_t seed)
{
	output<T>            y(x.rows, w.rows, wide);
	uint32_t             mark = 0;
	struct portable_args args = { w.data(), x.data(), y.data(), w.stride, x.stride, y.stride, w.rows, w.k, x.rows, wide, &mark,
		78 };
	dim3                 grid((w.rows + PORTABLE_ROWS - 1) / PORTABLE_ROWS, (x.rows + tokens - 1) / tokens);
	char                 name[100];
	const char          *error = NULL;
	std::vector<float>   row;

	snprintf(name, sizeof name, "portable %u x %u, %u rows by %u%s", w.rows, w.k, x.rows, tokens, wide ? ", to float" : "");
	if (tokens == 8)
		error = emulate(grid, PORTABLE_THREADS, portable_ring<8>::bytes, { .seed = seed }, [&] { portable_kernel<T, 8>(args); });
	else if (tokens == 16)
		error = emulate(grid, PORTABLE_THREADS, portable_ring<16>::bytes, { .seed = seed }, [&] { portable_kernel<T, 16>(args); });
	else
		error = emulate(grid, PORTABLE_THREADS, portable_ring<64>::bytes, { .seed = seed }, [&] { portable_kernel<T, 64>(args); });
	expect(!error, "%s: %s", name, error);
	expect(mark == 78, "%s: no mark", name);
	compare(name, w, x, y, false);
	for (uint32_t o = 0; o < w.rows; o++)
		row.push_back(y.at(0, o));
	return row;
}

template <class T> static void portable_shapes(void)
{
	static const struct {
		uint32_t n, k, rows;
		bool     wide;
	} cases[] = { { 1, 1, 1, false }, { 3, 5, 2, true }, { 17, 33, 5, false }, { 64, 64, 8, false }, { 129, 77, 9, true },
		{ 70, 300, 33, false }, { 65, 576, 70, false }, { 200, 72, 130, true } };
	matrix<T>          w(90, 328), all(80, 328);
	std::vector<float> first;

	for (const auto &c : cases) {
		matrix<T> a(c.n, c.k), b(c.rows, c.k);

		for (uint64_t seed = 0; seed < SEEDS; seed++)
			portable(a, b, c.rows <= 8 ? 8 : c.rows <= 16 ? 16 : 64, c.wide, seed);
	}
	for (uint32_t m : { 1, 8, 16, 32, 64, 80 }) {
		matrix<T>          x(m, 328);
		std::vector<float> row;

		memcpy((void *)x.values.data(), all.values.data(), x.values.size() * sizeof(T));
		row = portable(w, x, m <= 8 ? 8 : m <= 16 ? 16 : 64, false, m);
		if (first.empty())
			first = row;
		expect(memcmp(first.data(), row.data(), row.size() * sizeof row[0]) == 0, "portable: row 0 among %u has other bits", m);
	}
}

/* ---- linear_wide ---- */

/* y of the product on BLOCKS, against sums and against what linear_skinny makes of the first rows. */
template <class T, int TILES, int N> static void wide(uint32_t outputs, uint32_t k, uint32_t rows, uint32_t blocks)
{
	const matrix<T>      w(2 * outputs, k), x(rows, k);
	struct tensor_layout weights, inputs;
	const uint32_t       few = rows < SKINNY_TOKENS_MAX ? rows : (uint32_t)SKINNY_TOKENS_MAX;
	struct wide_product  p = wide_cut(outputs, k, rows, TILES, N, 1);
	struct skinny_variant v = { 2, 2, 1, 2, 0, 0 };
	matrix<T>            first(few, k);
	output<T>            y(rows, outputs, false);
	uint32_t             mark = 0;
	tensor_map           w_map, x_map;
	const char          *error;
	char                 name[100];
	std::vector<float>   row;

	snprintf(name, sizeof name, "wide, %d tiles of %d, %u x %u, %u rows, %u blocks", TILES, N, outputs, k, rows, blocks);
	skinny_matrix(&weights, type_of<T>(), w.data(), w.rows, k, w.stride, N / 2, 1, SKINNY_WHOLE);
	skinny_matrix(&inputs, type_of<T>(), x.data(), rows, k, x.stride, wide_rows(TILES), 1, SKINNY_WHOLE);
	y.stride = outputs + PAD + 1; /* even */
	y.narrow.assign((size_t)rows * y.stride, from_float<T>(NAN));
	p.y = y.data();
	p.y_stride = y.stride;
	p.mark = &mark;
	p.mark_value = 78;
	expect(wide_takes(outputs, k, w.stride, x.stride, y.data(), y.stride), "%s: refused", name);
	expect(!tensor_map_encode(&weights, &w_map) && !tensor_map_encode(&inputs, &x_map), "%s: a tensor map was refused", name);
	error = emulate(blocks < p.tiles ? blocks : p.tiles, WIDE_THREADS, wide_shared_bytes(TILES, N),
	    { .seed = rows + k, .before = { { (void *)x.data(), x.values.size() * sizeof(T) }, y.range() } },
	    [&] { wide_kernel<T, 1, TILES, N>(w_map, x_map, p); });
	expect(!error, "%s: %s", name, error);
	expect(mark == 78, "%s: no mark", name);
	compare(name, w, x, y, true);
	memcpy(first.values.data(), x.values.data(), first.values.size() * sizeof(T));
	row = skinny<T, true>(name, w, first, v, false, 4);
	for (uint32_t o = 0; o < outputs; o++)
		expect(row[o] == y.at(0, o), "%s: output %u is %g, of linear_skinny %g", name, o, (double)y.at(0, o), (double)row[o]);
}

static void wide_sizes(void)
{
	struct wide_size size = wide_choose(13696, 256, 66);

	wide<__nv_bfloat16, 1, 176>(88, 64, 70, 2);
	wide<__nv_bfloat16, 1, 208>(112, 320, 128, 1);
	wide<__nv_bfloat16, 2, 176>(360, 192, 130, 3);
	wide<__nv_bfloat16, 2, 208>(208, 128, 300, 2);
	wide<__half, 1, 176>(184, 128, 90, 2);
	wide<__half, 2, 208>(16, 448, 256, 1);
	expect(size.tiles == 2 && size.n == 208, "GLM-4-9B takes tiles of %d", size.n);
	size = wide_choose(23040, 65, 66);
	expect(size.tiles == 1 && size.n == 176, "GLM-4-32B takes tiles of %d", size.n);
	expect(!wide_takes(100, 64, 64, 64, NULL, 8) && !wide_takes(8, 72, 72, 72, NULL, 8) && !wide_takes(8, 64, 64, 64, NULL, 9),
	    "outputs, inputs and strides that have no kernel are taken");
}

int main(void)
{
	SKIP_UNDER_THREAD_SANITIZER;
	for (const struct shape &s : shapes) {
		run_shape<__nv_bfloat16>(s);
		if (s.rows < 20)
			run_shape<__half>(s);
	}
	row_alone_and_among<__nv_bfloat16>();
	row_alone_and_among<__half>();
	gated_as_two_kernels<__nv_bfloat16>();
	gated_as_two_kernels<__half>();
	heads_as_two_kernels<__nv_bfloat16>();
	heads_as_two_kernels<__half>();
	layouts();
	trials();
	refusals();
	wide_sizes();
	portable_shapes<__nv_bfloat16>();
	portable_shapes<__half>();
	return finish("linear");
}
