/* test_int4.cc: slabs of four and eight bits, on the host's processor: their values against the reader of stored formats, bit
 * for bit; products against sums in double; a row's bits against the same row in other company. */
#include "expect.h"
#include "heads.h"
#include "gpu/fmt_int4_folded.cuh"
#include "gpu/fmt_int4_wide.cuh"
#include "gpu/int4_choose.h"
#include "gpu/rows.cuh"

static uint64_t state = 1;

static uint32_t draw(void) { return random_word(&state); }
static uint32_t below(uint32_t n) { return draw() % n; }
static float    uniform(void) { return (float)(draw() >> 8) / 8388608.0f - 1; }

/* ---- Stored weights ---- */

/* What a file holds, at addresses as aligned as a device's copies. */
struct stored {
	std::vector<uint64_t> values, scales, zeros, index;
	struct weight_desc    desc = {};
};

static uint8_t *room(std::vector<uint64_t> *v, size_t bytes)
{
	v->assign((bytes + 7) / 8, 0);
	for (uint64_t &word : *v)
		word = (uint64_t)draw() << 32 | draw();
	return (uint8_t *)v->data();
}

/* SIZE: 0 ordinary, 1 one in eight is zero, 2 as large and as small as a half can be, and still a weight in float16. */
static float scale(int size)
{
	float s = 0.01f * (1.5f + uniform());

	if (size == 1 && below(8) == 0)
		return 0;
	return size == 2 ? s * (below(2) ? 1e5f : 1e-5f) : s;
}

static uint16_t half_of(float x) { return __half_as_ushort(__float2half(x)); }
static void     put_16(uint8_t *to, uint16_t bits) { memcpy(to, &bits, 2); }

struct spec {
	const char        *name;
	enum weight_format format;
	enum weight_packing packing;
	enum weight_zero_packing zeros;
	enum weight_format scale_type;
	uint32_t group; /* 0: one scale a row */
	int      transposed, ordered, size;
	unsigned add;
};

static void make_i4(struct stored *s, const struct spec *spec, uint64_t n, uint64_t k)
{
	struct weight_desc *w = &s->desc;
	uint64_t groups = spec->group ? (k + spec->group - 1) / spec->group : 1, words = (k + 7) / 8, row_words = (n + 7) / 8;
	size_t   each = spec->scale_type == WEIGHT_F32 ? 4 : 2;
	uint8_t *scales = room(&s->scales, n * groups * each);

	w->packing = spec->packing;
	w->bytes = spec->packing == WEIGHT_PACKED_AWQ ? k * (n / 8) * 4 : words * n * 4;
	w->data = room(&s->values, w->bytes);
	w->scales = { scales, n * groups * each, spec->scale_type, 0, 1, spec->group, n, groups, spec->transposed };
	for (uint64_t i = 0; i < n * groups; i++) {
		float x = scale(spec->size);

		if (spec->scale_type == WEIGHT_F32)
			memcpy(scales + 4 * i, &x, 4);
		else
			put_16(scales + 2 * i, spec->scale_type == WEIGHT_F16 ? half_of(x) : __bfloat16_as_ushort(__float2bfloat16(x)));
	}
	w->zeros.packing = spec->zeros;
	w->zeros.add = spec->add;
	w->zeros.bytes = spec->zeros == WEIGHT_ZEROS_NONE ? 0 : spec->zeros == WEIGHT_ZEROS_I8 ? n * groups : row_words * groups * 4;
	if (w->zeros.bytes)
		w->zeros.data = room(&s->zeros, w->zeros.bytes);
	for (size_t i = 0; spec->zeros == WEIGHT_ZEROS_I8 && i < w->zeros.bytes; i++)
		((int8_t *)w->zeros.data)[i] = (int8_t)(below(16)) - 8;
	if (spec->ordered) {
		int32_t *index = (int32_t *)room(&s->index, k * 4);

		for (uint64_t i = 0; i < k; i++)
			index[i] = (int32_t)(i / spec->group);
		for (uint64_t i = k - 1; i > 0; i--) {
			uint64_t j = below((uint32_t)i + 1);
			int32_t  t = index[i];

			index[i] = index[j];
			index[j] = t;
		}
		w->group_index = index;
	}
}

/* Super-blocks with minima. */
static bool is_k(enum weight_format format) { return format == WEIGHT_Q4_K || format == WEIGHT_Q5_K; }

static void make_blocks(struct stored *s, const struct spec *spec, uint64_t n, uint64_t k)
{
	uint32_t columns, bytes;

	weight_format_block(spec->format, &columns, &bytes);
	s->desc.bytes = n * (k / columns) * bytes;
	uint8_t *data = room(&s->values, s->desc.bytes);
	for (uint64_t i = 0; i < n * (k / columns); i++, data += bytes) {
		put_16(data + (spec->format == WEIGHT_Q6_K ? 208 : 0), half_of(scale(spec->size)));
		if (spec->format == WEIGHT_Q4_1 || spec->format == WEIGHT_Q5_1 || is_k(spec->format))
			put_16(data + 2, half_of(scale(spec->size) * 4 * uniform()));
	}
	s->desc.data = s->values.data();
}

/* A matrix of N × K in memory, of which the weight is the window from (FIRST_ROW, FIRST_COLUMN) on. */
static void make(struct stored *s, const struct spec *spec, uint64_t n, uint64_t k, uint64_t first_row, uint64_t first_column)
{
	struct error error;

	s->desc.name = spec->name;
	s->desc.format = spec->format;
	s->desc.stored_rows = n;
	s->desc.stored_columns = k;
	s->desc.first_row = first_row;
	s->desc.first_column = first_column;
	s->desc.rows = n - first_row;
	s->desc.columns = k - first_column;
	if (spec->format == WEIGHT_I4)
		make_i4(s, spec, n, k);
	else
		make_blocks(s, spec, n, k);
	expect(weight_check(&s->desc, &error) == STATUS_OK, "%s: %s", spec->name, error.message);
}

/* ---- Slabs ---- */

struct slab {
	struct int4_slab       w;
	std::vector<uint64_t>  data;
	int32_t               *order = NULL;
	std::vector<float>     values; /* [rows][columns] of the file */

	~slab() { free(order); }
};

/* Copies what BYTES names, tightly. */
static void take(const struct stored_bytes *bytes, uint8_t *to)
{
	for (uint64_t i = 0; i < bytes->rows; i++)
		memcpy(to + i * bytes->row_bytes, bytes->from + i * bytes->stride, bytes->row_bytes);
}

/* A part on its way in pieces, as load.cu brings them. */
static void place(const struct int4_slab *slab, const struct weight_desc *part, uint32_t stack_row, uint64_t seed)
{
	struct stored_cut     cut;
	struct error          error;
	std::vector<uint64_t> values((part->bytes + 15) / 8), sides;
	/* A third of the values at once, or whatever units need. */
	uint64_t              most = part->bytes / 3;
	enum status           status;

	while ((status = stored_plan(part, most, INT4_TILE, INT4_UNIT, &cut, &error)) == STATUS_LIMIT && most < part->bytes)
		most += 64;
	expect(!status, "%s: %s", part->name, status ? error.message : "");
	if (status)
		return;
	sides.resize(cut.side_total / 8 + 1);
	for (int i = 0; i < STORED_SIDES; i++) {
		struct stored_bytes bytes = stored_side_of(&cut, (enum stored_side)i);

		take(&bytes, (uint8_t *)sides.data() + cut.side_at[i]);
	}
	for (uint64_t i = 0; i < cut.pieces; i++) {
		struct stored_piece piece;
		struct stored_bytes bytes;
		struct int4_range   range;

		stored_piece_of(&cut, i, &piece, &bytes);
		stored_set_sides(&cut, (const uint8_t *)sides.data(), &piece);
		std::fill(values.begin(), values.end(), draw());
		take(&bytes, (uint8_t *)values.data());
		piece.values = (const uint8_t *)values.data();
		piece.stack_row = stack_row;
		range = int4_range_of(slab, &piece);
		expect_runs(emulate(dim3(range.units, range.tiles), INT4_PACK_THREADS, 0, { .seed = seed },
		    [&] { (slab->eight ? octet_pack : int4_pack)(*slab, piece, range.first_unit, range.first_tile); }));
	}
}

static bool lay(struct slab *slab, const std::vector<struct weight_desc> &parts, uint32_t blocks, uint64_t seed)
{
	const char *why = int4_choose(parts.data(), (uint32_t)parts.size(), blocks, &slab->w, &slab->order);
	uint32_t    first = 0;

	expect(!why, "%s: %s", parts[0].name, why);
	if (why)
		return false;
	slab->data.assign((int4_bytes(slab->w) + 7) / 8, 0);
	slab->w.data = (uint8_t *)slab->data.data();
	slab->w.order = slab->order;
	slab->values.resize((size_t)slab->w.rows * slab->w.columns);
	for (const struct weight_desc &part : parts) {
		place(&slab->w, &part, first, seed);
		for (uint64_t r = 0; r < part.rows; r++)
			weight_read_row(&part, r, &slab->values[(first + r) * slab->w.columns]);
		first += (uint32_t)part.rows;
	}
	return true;
}

/* Every value has the bits that the file's reader gets, by all ways that read slabs. */
static void check_values(const struct slab *slab, const char *name)
{
	const struct int4_slab &w = slab->w;
	uint32_t           stride = (w.columns + 7) / 8 * 8, first = w.rows > 16 ? 16 : 0, rows = w.rows - first, wrong = 0;
	std::vector<float> decoded((size_t)rows * stride, NAN), taken((size_t)3 * w.columns, NAN);
	const int32_t      index[3] = { (int32_t)w.rows - 1, -1, 0 };
	const char        *error = emulate(int4_decode_grid(rows, stride), INT4_DECODE_THREADS, 0, {}, [&] {
		(w.eight ? octet_decode<float> : int4_decode<float>)(w, first, rows, decoded.data(), stride); });

	expect(!error, "%s: %s", name, error);
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t k = 0; k < stride; k++) {
			float expected = k < w.columns ? slab->values[(size_t)(first + r) * w.columns + (slab->order ? slab->order[k] : k)] : 0;

			wrong += memcmp(&expected, &decoded[(size_t)r * stride + k], 4) != 0;
		}
	expect(wrong == 0, "%s: %u values of %u × %u differ from the file's", name, wrong, rows, w.columns);
	error = emulate(dim3(3), 256, 0, {}, [&] { int4_rows<float>(w, index, 0, 0, taken.data(), w.columns); });
	expect(!error, "%s: %s", name, error);
	for (uint32_t i = 0; i < 3; i++)
		expect(memcmp(&taken[(size_t)i * w.columns], &slab->values[(size_t)(i == 0 ? w.rows - 1 : 0) * w.columns],
		    w.columns * sizeof(float)) == 0, "%s: row %d differs from the file's", name, index[i]);
	error = emulate(dim3(1), 256, 0, {}, [&] { int4_rows<float>(w, NULL, w.rows - 1, 1, taken.data(), w.columns); });
	for (uint32_t k = 0; k < w.columns; k++)
		wrong += taken[k] != 2 * slab->values[(size_t)(w.rows - 1) * w.columns + k];
	expect(!error && wrong == 0, "%s: a row that is added: %u of %u differ", name, wrong, w.columns);
}

/* ---- Products ---- */

/* Y [rows][y_stride] = rows of X · Wᵀ on BLOCKS blocks; float32, or T widened.  GATED: silu of the first half times the second. */
template <class T> static std::vector<float> multiply(const struct slab *slab, const std::vector<T> &x, uint32_t x_stride,
    uint32_t rows, uint32_t blocks, int wide, uint64_t seed, bool wide_kernel = false, int gated = 0,
    const struct norm_prologue *norm = NULL, const struct head_target *heads = NULL)
{
	uint32_t           columns = gated ? slab->w.half : slab->w.rows, y_stride = columns + (heads ? 4 : 3);
	std::vector<float> y((size_t)rows * y_stride, NAN), ret((size_t)rows * columns);
	std::vector<T>     narrow((size_t)rows * y_stride, from_float<T>(NAN)), ordered;
	struct int4_task   task = {};
	const char        *error;

	task.w = slab->w;
	if (slab->order) {
		ordered.assign(x.size(), from_float<T>(NAN));
		error = emulate(dim3(rows), 256, 0, {}, [&] {
			int4_reorder<T>(slab->w.order, slab->w.columns, x.data(), x_stride, ordered.data(), x_stride); });
		expect(!error, "%s", error);
	}
	task.y = wide ? (void *)y.data() : (void *)narrow.data();
	task.y_stride = y_stride;
	task.rows = rows;
	task.to_float = wide;
	task.gated = gated;
	const std::vector<T> &in = slab->order ? ordered : x;

	task.x = in.data();
	if (norm)
		task.norm = *norm;
	if (heads)
		task.heads = *heads;
	std::vector<emulate_range> before = { { task.y, (size_t)rows * y_stride * (wide ? sizeof(float) : sizeof(T)) },
		{ (void *)in.data(), in.size() * sizeof(T) } };

	if (heads && heads->rotation)
		before.push_back({ (void *)heads->rotation, (size_t)rows * heads->rotation_stride * sizeof(float2) });
	if (norm)
		before.insert(before.end(), { { (void *)norm->x, norm->width * sizeof(float) }, { norm->sum, norm->width * sizeof(float) },
		    { (void *)norm->delta, norm->width * sizeof(T) } });

	auto launch = [&](void (*kernel)(const tensor_map, const struct int4_task), uint32_t each) {
		uint32_t             shared = wide_kernel ? int4_wide_size(&task, each) : int4_choose_stages(&task, each);
		uint32_t             threads = wide_kernel ? int4_wide_threads(&task) : int4_threads(&task, each);
		bool                 bfloat = from_float<T>(1.00390625f).bits == from_float<T>(1).bits;
		struct tensor_layout layout = int4_inputs(&task, bfloat ? TENSOR_BF16 : TENSOR_F16, in.data(), x_stride, each);
		tensor_map           map = {};

		if (!task.whole_bytes && tensor_map_encode(&layout, &map))
			return "the inputs' map";
		return emulate(dim3(slab->w.panels < blocks ? slab->w.panels : blocks, (rows + each - 1) / each), threads, shared,
		    { .seed = seed, .before = before }, [&] { kernel(map, task); });
	};

	error = wide_kernel ? int4_wide_instance<T>(task, launch) : task.w.eight ? octet_instance<T>(task, launch) :
	    int4_instance<T>(task, launch);
	expect(!error, "%u × %u, %u rows: %s", slab->w.rows, slab->w.columns, rows, error);
	for (uint32_t r = 0; r < rows; r++) {
		for (uint32_t n = 0; n < columns; n++)
			ret[(size_t)r * columns + n] = wide ? y[(size_t)r * y_stride + n] : to_float(narrow[(size_t)r * y_stride + n]);
		for (uint32_t n = columns; n < y_stride; n++)
			expect(isnan(wide ? y[(size_t)r * y_stride + n] : to_float(narrow[(size_t)r * y_stride + n])),
			    "row %u: column %u beyond the last one was written", r, n);
	}
	return ret;
}

/* Padding of X holds what would show. */
template <class T> static std::vector<T> inputs(uint32_t rows, uint32_t columns, uint32_t stride)
{
	std::vector<T> x((size_t)rows * stride, from_float<T>(NAN));

	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t k = 0; k < columns; k++)
			x[(size_t)r * stride + k] = from_float<T>(uniform());
	return x;
}

template <class T> static void check_product(const struct slab *slab, const char *name, uint32_t rows, uint32_t blocks, int wide,
    uint64_t seed, bool wide_kernel = false)
{
	uint32_t           k_count = slab->w.columns, stride = (k_count + 7) / 8 * 8 + 8;
	std::vector<T>     x = inputs<T>(rows, k_count, stride);
	std::vector<float> y = multiply<T>(slab, x, stride, rows, blocks, wide, seed, wide_kernel);
	double             worst = 0, rounding = wide ? 0 : sizeof(T) == 2 && from_float<T>(1.00390625f).bits == from_float<T>(1).bits ?
	    1.0 / 256 : 1.0 / 2048;

	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t n = 0; n < slab->w.rows; n++) {
			double sum = 0, size = 0, error;

			for (uint32_t k = 0; k < k_count; k++) {
				double product = (double)slab->values[(size_t)n * k_count + k] * to_float(x[(size_t)r * stride + k]);
				sum += product;
				size += fabs(product);
			}
			/* Offsets: s · q and o are summed apart, each larger than their sum. */
			error = fabs(y[(size_t)r * slab->w.rows + n] - sum) / (rounding * fabs(sum) + (int4_has_offsets(slab->w) ? 8e-6 :
			    1e-6) * size + 1e-30);
			worst = error > worst || error != error ? error : worst;
		}
	expect(worst <= 1, "%s: %u × %u, %u rows: %.3g of the error that is allowed", name, slab->w.rows, k_count, rows, worst);
	if (!wide_kernel && rows > 1 && int4_wide_takes(&slab->w))
		check_product<T>(slab, name, rows, blocks, wide, seed, true);
}

/* Products of weights that are rounded to T, by blocks of every size: sums in double, and the same bits of all. */
template <class T> static void check_folded(const struct slab *slab, const char *name, uint32_t rows, uint32_t blocks, int wide,
    uint64_t seed)
{
	const bool         bfloat = from_float<T>(1.00390625f).bits == from_float<T>(1).bits;
	uint32_t           k_count = slab->w.columns, n_count = slab->w.rows, stride = (k_count + 7) / 8 * 8 + 8;
	uint32_t           y_stride = seed % 2 ? n_count + 3 : (n_count + 7) / 8 * 8; /* rows whose parts are not aligned, or are */
	std::vector<T>     x = inputs<T>(rows, k_count, stride), narrow, first;
	std::vector<float> y, wide_first;

	expect(int4_folded_takes<T>(slab->w), "%s is not taken", name);
	for (const struct int4_choice &choice : int4_choices) {
		const struct int4_tiling tiling = choice.tiling;
		struct int4_task task = {};
		double           worst = 0;
		uint32_t         beyond = 0;

		if (!int4_tiling_suits(tiling, &slab->w, rows))
			continue;
		y.assign((size_t)rows * y_stride, NAN);
		narrow.assign((size_t)rows * y_stride, from_float<T>(NAN));
		task.w = slab->w;
		task.y = wide ? (void *)y.data() : (void *)narrow.data();
		task.y_stride = y_stride;
		task.rows = rows;
		task.to_float = wide;
		auto launch = [&](void (*kernel)(const tensor_map, const struct int4_task)) {
			uint32_t             shared = int4_folded_size(&task, tiling);
			struct tensor_layout layout = int4_folded_inputs(&task, bfloat ? TENSOR_BF16 : TENSOR_F16, x.data(), stride, tiling);
			tensor_map           map;

			if (tensor_map_encode(&layout, &map))
				return "the inputs' map";
			return emulate(int4_folded_grid(&task, tiling, blocks), int4_folded_threads(tiling), shared, { .seed = seed, .before =
			    { { task.y, (size_t)rows * y_stride * (wide ? sizeof(float) : sizeof(T)) }, { (void *)x.data(), x.size() *
			        sizeof(T) } } }, [&] { kernel(map, task); });
		};
		const char    *error = int4_folded_instance<T>(slab->w, tiling, launch);
		uint32_t       half = slab->w.half, other = 0;
		std::vector<T> gated((size_t)rows * y_stride, from_float<T>(NAN));

		expect(!error, "%s: %u × %u, %u rows, blocks of %u: %s", name, n_count, k_count, rows, tiling.tokens, error);
		for (uint32_t r = 0; r < rows; r++)
			for (uint32_t n = 0; n < y_stride; n++) {
				double value = wide ? y[(size_t)r * y_stride + n] : to_float(narrow[(size_t)r * y_stride + n]), sum = 0, size = 0;

				if (n >= n_count) {
					beyond += !isnan(value);
					continue;
				}
				for (uint32_t k = 0; k < k_count; k++) {
					double product = (double)to_float(from_float<T>(slab->values[(size_t)n * k_count + k])) *
					    to_float(x[(size_t)r * stride + k]);

					sum += product;
					size += fabs(product);
				}
				value = fabs(value - sum) / ((wide ? 0 : bfloat ? 1.0 / 256 : 1.0 / 2048) * fabs(sum) + 1e-6 * size + 1e-30);
				worst = value > worst || value != value ? value : worst;
			}
		expect(worst <= 1 && !beyond, "%s: %u × %u, %u rows, %u × %u: %.3g of the error that is allowed, %u beyond", name,
		    n_count, k_count, rows, tiling.tokens, tiling.groups, worst, beyond);
		if (half && !wide) { /* silu of the one part times the other has the bits of both kernels */
			task.y = gated.data();
			task.gated = 1;
			error = int4_folded_instance<T>(slab->w, tiling, launch);
			for (uint32_t r = 0; r < rows; r++)
				for (uint32_t n = 0; n < half; n++) {
					const T *two = &narrow[(size_t)r * y_stride + n];
					float    gate = to_float(two[0]);

					other += gated[(size_t)r * y_stride + n].bits != from_float<T>(gate / (1 + expf(-gate)) * to_float(
					    two[half])).bits;
				}
			expect(!error && other == 0, "%s: %u gated outputs by blocks of %u × %u have other bits", name, other,
			    tiling.tokens, tiling.groups);
		}
		if (wide_first.empty()) {
			wide_first = y;
			first = narrow;
		}
		expect(memcmp(wide_first.data(), y.data(), y.size() * sizeof(float)) == 0 && memcmp(first.data(), narrow.data(),
		    first.size() * sizeof(T)) == 0, "%s: blocks of %u × %u have other bits", name, tiling.tokens, tiling.groups);
	}
}

/* A row alone, at other places, and among other numbers of rows. */
template <class T> static void check_invariance(const struct slab *slab, const char *name, uint32_t blocks)
{
	static const uint32_t counts[] = { 1, 2, 8, 9, 16, 17, 32, 33, 64 };
	uint32_t              stride = (slab->w.columns + 7) / 8 * 8;
	std::vector<T>        row = inputs<T>(1, slab->w.columns, stride);
	std::vector<float>    alone = multiply<T>(slab, row, stride, 1, blocks, 1, 0);

	for (uint32_t rows : counts) {
		std::vector<T>     x = inputs<T>(rows, slab->w.columns, stride);
		uint32_t           at = below(rows);
		std::vector<float> y;

		for (uint32_t k = 0; rows > 1 && k < slab->w.columns; k++) /* a neighbour that spoils what it touches */
			x[(size_t)(at + 1) % rows * stride + k] = from_float<T>(NAN);
		memcpy(&x[(size_t)at * stride], row.data(), stride * sizeof(T));
		y = multiply<T>(slab, x, stride, rows, blocks, 1, rows);
		expect(memcmp(&y[(size_t)at * slab->w.rows], alone.data(), slab->w.rows * sizeof(float)) == 0,
		    "%s: row %u of %u has other bits than alone", name, at, rows);
		if (rows < 16 || !int4_wide_takes(&slab->w))
			continue;
		y = multiply<T>(slab, x, stride, rows, blocks, 1, rows, true);
		expect(memcmp(&y[(size_t)at * slab->w.rows], alone.data(), slab->w.rows * sizeof(float)) == 0,
		    "%s: row %u of %u by wgmma has other bits than alone by mma", name, at, rows);
	}
}

/* ---- Cases ---- */

static const struct spec specs[] = {
	{ "Q4_0", WEIGHT_Q4_0, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_F16, 32, 0, 0, 0, 0 },
	{ "Q4_1", WEIGHT_Q4_1, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_F16, 32, 0, 0, 0, 0 },
	{ "Q4_K", WEIGHT_Q4_K, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_F16, 32, 0, 0, 0, 0 },
	{ "Q4_1, zero scales", WEIGHT_Q4_1, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_F16, 32, 0, 0, 1, 0 },
	{ "AWQ", WEIGHT_I4, WEIGHT_PACKED_AWQ, WEIGHT_ZEROS_AWQ, WEIGHT_F16, 128, 1, 0, 0, 0 },
	{ "AWQ of 64", WEIGHT_I4, WEIGHT_PACKED_AWQ, WEIGHT_ZEROS_AWQ, WEIGHT_F16, 64, 1, 0, 1, 0 },
	{ "GPTQ", WEIGHT_I4, WEIGHT_PACKED_GPTQ, WEIGHT_ZEROS_GPTQ, WEIGHT_F16, 128, 1, 0, 0, 1 },
	{ "GPTQ, act-order", WEIGHT_I4, WEIGHT_PACKED_GPTQ, WEIGHT_ZEROS_GPTQ, WEIGHT_F16, 32, 1, 1, 0, 1 },
	{ "GPTQ, extreme scales", WEIGHT_I4, WEIGHT_PACKED_GPTQ, WEIGHT_ZEROS_NONE, WEIGHT_BF16, 64, 1, 0, 2, 0 },
	{ "compressed-tensors", WEIGHT_I4, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_BF16, 128, 0, 0, 0, 0 },
	{ "compressed-tensors, zeros", WEIGHT_I4, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_ROWS, WEIGHT_BF16, 32, 0, 0, 0, 0 },
	{ "compressed-tensors, int8 zeros", WEIGHT_I4, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_I8, WEIGHT_F32, 32, 0, 0, 0, 0 },
	{ "compressed-tensors, by row", WEIGHT_I4, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_F32, 0, 0, 0, 2, 0 },
	{ "Q8_0", WEIGHT_Q8_0, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_F16, 32, 0, 0, 0, 0 },
	{ "Q5_0", WEIGHT_Q5_0, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_F16, 32, 0, 0, 1, 0 },
	{ "Q5_1", WEIGHT_Q5_1, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_F16, 32, 0, 0, 0, 0 },
	{ "Q5_K", WEIGHT_Q5_K, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_F16, 32, 0, 0, 0, 0 },
	{ "Q6_K", WEIGHT_Q6_K, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_F16, 32, 0, 0, 0, 0 },
};
enum { SPEC_Q8_0 = 13, SPEC_Q5_K = 16, SPEC_Q6_K = 17 };

static void test_formats(void)
{
	uint64_t seed = 1;

	for (const struct spec &spec : specs) {
		uint32_t      k = is_k(spec.format) || spec.format == WEIGHT_Q6_K ? 512 : spec.group == 32 || !spec.group ? 288 : 320;
		uint32_t      n = spec.packing == WEIGHT_PACKED_AWQ ? 56 : 53;
		struct stored stored;
		struct slab   slab;

		make(&stored, &spec, n, k, 0, 0);
		if (!lay(&slab, { stored.desc }, 2, seed++))
			continue;
		check_values(&slab, spec.name);
		check_product<__nv_bfloat16>(&slab, spec.name, 1, 2, 0, seed++);
		check_product<__nv_bfloat16>(&slab, spec.name, 3, 2, 1, seed++);
		check_product<__nv_bfloat16>(&slab, spec.name, 19, 2, 0, seed++);
		check_product<__half>(&slab, spec.name, 11, 2, 1, seed++);
		if (slab.w.eight)
			check_product<__half>(&slab, spec.name, 35, 2, 1, seed++);
	}
}

/* Ends that are not whole: columns of a word, of a group, of a unit; windows. */
static void test_ends(void)
{
	static const struct spec plain = { "odd columns", WEIGHT_I4, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_ROWS, WEIGHT_BF16, 32, 0, 0,
	    0, 0 };
	static const struct spec gptq = { "window", WEIGHT_I4, WEIGHT_PACKED_GPTQ, WEIGHT_ZEROS_GPTQ, WEIGHT_F16, 64, 1, 0, 0, 1 };
	static const struct spec blocks = { "window of blocks", WEIGHT_Q4_1, WEIGHT_PACKED_COLUMNS, WEIGHT_ZEROS_NONE, WEIGHT_F16, 32,
	    0, 0, 0, 0 };

	for (uint32_t k : { 7u, 31u, 129u, 203u }) {
		struct stored stored;
		struct slab   slab;

		make(&stored, &plain, 21, k, 0, 0);
		if (!lay(&slab, { stored.desc }, 3, k))
			continue;
		check_values(&slab, plain.name);
		check_product<__nv_bfloat16>(&slab, plain.name, 1, 3, 1, k);
		check_product<__nv_bfloat16>(&slab, plain.name, 5, 3, 1, k);
		check_product<__nv_bfloat16>(&slab, plain.name, 17, 3, 1, k);
	}
	for (const struct spec *spec : { &gptq, &blocks }) {
		struct stored stored;
		struct slab   slab;

		make(&stored, spec, 48, 256, 11, 64);
		if (!lay(&slab, { stored.desc }, 3, 5))
			continue;
		check_values(&slab, spec->name);
		check_product<__half>(&slab, spec->name, 4, 3, 1, 5);
	}
}

/* Parts whose rows share a tile, with zeros in one of them only. */
static void test_stack(void)
{
	static const struct spec first = { "stack", WEIGHT_I4, WEIGHT_PACKED_GPTQ, WEIGHT_ZEROS_NONE, WEIGHT_F16, 128, 1, 0, 0, 0 };
	static const struct spec second = { "stack", WEIGHT_I4, WEIGHT_PACKED_GPTQ, WEIGHT_ZEROS_GPTQ, WEIGHT_F16, 64, 1, 0, 0, 1 };
	struct stored a, b, c;
	struct slab   slab;

	make(&a, &first, 21, 256, 0, 0);
	make(&b, &second, 5, 256, 0, 0);
	make(&c, &first, 30, 256, 0, 0);
	if (!lay(&slab, { a.desc, b.desc, c.desc }, 4, 9))
		return;
	expect(slab.w.group == 32 && slab.w.zeros, "a stack's group is %u, zeros %d", slab.w.group, slab.w.zeros);
	check_values(&slab, "stack");
	check_product<__nv_bfloat16>(&slab, "stack", 6, 4, 1, 9);
}

/* Two parts whose rows alternate; silu of the one times the other has the bits of both kernels. */
template <class T> static void check_gated(const struct slab *slab, uint32_t rows, uint32_t blocks, bool wide_kernel)
{
	uint32_t           stride = (slab->w.columns + 7) / 8 * 8, half = slab->w.half, wrong = 0;
	std::vector<T>     x = inputs<T>(rows, slab->w.columns, stride);
	std::vector<float> two = multiply<T>(slab, x, stride, rows, blocks, 0, 1, wide_kernel);
	std::vector<float> one = multiply<T>(slab, x, stride, rows, blocks, 0, 2, wide_kernel, 1);

	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t n = 0; n < half; n++) {
			float gate = two[(size_t)r * 2 * half + n], up = two[(size_t)r * 2 * half + half + n];

			wrong += one[(size_t)r * half + n] != to_float(from_float<T>(gate / (1 + expf(-gate)) * up));
		}
	expect(wrong == 0, "%u rows: %u gated outputs have other bits", rows, wrong);
}

static void test_gate_up(void)
{
	static const struct {
		int      spec;
		uint32_t rows, columns, blocks;
	} cases[] = { { 4, 48, 320, 2 }, { 5, 160, 256, 1 }, { 2, 32, 512, 3 }, { 7, 272, 288, 1 }, { 9, 80, 203, 2 },
		{ SPEC_Q8_0, 64, 288, 1 }, { SPEC_Q6_K, 16, 512, 2 } };

	for (const auto &c : cases) {
		const struct spec *spec = &specs[c.spec];
		struct stored      a, b;
		struct slab        slab;

		make(&a, spec, c.rows, c.columns, 0, 0);
		make(&b, spec, c.rows, c.columns, 0, 0);
		if (spec->ordered) { /* a stack has one order */
			b.index = a.index;
			b.desc.group_index = (const int32_t *)b.index.data();
		}
		if (!lay(&slab, { a.desc, b.desc }, c.blocks, c.rows))
			continue;
		expect(slab.w.half == c.rows, "%s: parts of %u rows do not alternate", spec->name, c.rows);
		check_values(&slab, spec->name);
		check_product<__nv_bfloat16>(&slab, spec->name, 1, c.blocks, 1, 3);
		check_product<__nv_bfloat16>(&slab, spec->name, 19, c.blocks, 0, 4);
		for (uint32_t rows : { 1u, 3u, 16u })
			check_gated<__nv_bfloat16>(&slab, rows, c.blocks, false);
		check_gated<__half>(&slab, 1, c.blocks, false);
		if (int4_wide_takes(&slab.w))
			check_gated<__nv_bfloat16>(&slab, 21, c.blocks, true);
		if (int4_folded_takes<__nv_bfloat16>(slab.w) && !slab.order)
			for (uint64_t seed : { 5, 6 })
				check_folded<__nv_bfloat16>(&slab, spec->name, 67, c.blocks, 0, seed);
	}
}

/* Every division of a panel among warps, several panels to a block, and a row's bits in all of them. */
static void test_shapes(void)
{
	static const struct {
		uint32_t rows, columns, blocks;
	} shapes[] = { { 16, 1024, 1 }, { 40, 640, 1 }, { 72, 256, 1 }, { 136, 384, 1 }, { 279, 192, 1 }, { 1064, 128, 2 } };
	static const struct int4_split splits[] = { { 1, 1, 8 }, { 1, 3, 5 }, { 1, 5, 2 }, { 2, 5, 3 }, { 2, 9, 1 }, { 2, 9, 1 } };

	for (int i = 0; i < 6; i++) {
		struct spec   spec = specs[i % 2 ? 4 : 1]; /* AWQ, Q4_1 */
		struct stored stored;
		struct slab   slab;

		make(&stored, &spec, i % 2 ? shapes[i].rows / 8 * 8 : shapes[i].rows, shapes[i].columns, 0, 0);
		if (!lay(&slab, { stored.desc }, shapes[i].blocks, 3))
			continue;
		struct int4_split split = int4_split_of(&slab.w);

		expect(split.each == splits[i].each && split.row_warps == splits[i].row_warps && split.k_warps == splits[i].k_warps,
		    "%u rows in %u panels: %u tiles of %u warps, %u beside each other", slab.w.rows, slab.w.panels, split.each,
		    split.row_warps, split.k_warps);
		check_product<__nv_bfloat16>(&slab, spec.name, 1, shapes[i].blocks, 1, (uint64_t)i);
		check_product<__nv_bfloat16>(&slab, spec.name, 2, shapes[i].blocks, 1, (uint64_t)i);
		check_invariance<__nv_bfloat16>(&slab, spec.name, shapes[i].blocks);
	}
}

/* The same of eight bits; a stack, and a window of it. */
static void test_eight(void)
{
	static const struct {
		int      spec;
		uint32_t rows, columns, blocks;
	} shapes[] = { { SPEC_Q8_0, 40, 640, 1 }, { SPEC_Q6_K, 72, 512, 1 }, { SPEC_Q5_K, 136, 256, 1 }, { SPEC_Q8_0, 279, 192, 1 },
		{ SPEC_Q6_K, 1064, 256, 2 } };
	struct stored a, b, c;
	struct slab   stack;

	for (const auto &shape : shapes) {
		const struct spec *spec = &specs[shape.spec];
		struct stored      stored;
		struct slab        slab;

		make(&stored, spec, shape.rows, shape.columns, 0, 0);
		if (!lay(&slab, { stored.desc }, shape.blocks, 3))
			continue;
		check_product<__nv_bfloat16>(&slab, spec->name, 2, shape.blocks, 1, shape.rows);
		check_invariance<__nv_bfloat16>(&slab, spec->name, shape.blocks);
	}
	make(&a, &specs[SPEC_Q8_0], 21, 256, 0, 0);
	make(&b, &specs[SPEC_Q8_0 + 1], 53, 256, 0, 0);
	make(&c, &specs[SPEC_Q8_0], 41, 352, 11, 96);
	if (!lay(&stack, { a.desc, b.desc, c.desc }, 4, 9))
		return;
	check_values(&stack, "a stack of Q8_0 and Q5_0");
	check_product<__nv_bfloat16>(&stack, "a stack of Q8_0 and Q5_0", 6, 4, 1, 9);
}

/* Rows and columns that end inside a block, a unit and a group; scales of each type. */
static void test_folded(void)
{
	static const struct {
		int      spec;
		uint32_t rows, columns, blocks, count;
		int      wide;
	} cases[] = { { 4, 280, 640, 3, 70, 1 }, { 9, 197, 203, 2, 66, 0 }, { 10, 70, 416, 4, 131, 1 }, { 5, 40, 288, 1, 65, 0 },
	    { 1, 53, 288, 2, 67, 0 }, { 2, 37, 512, 1, 65, 1 }, { SPEC_Q8_0, 280, 640, 3, 70, 1 }, { SPEC_Q8_0 + 1, 53, 288, 2, 35, 0 },
	    { SPEC_Q8_0 + 2, 70, 416, 1, 33, 1 }, { SPEC_Q8_0 + 3, 37, 512, 4, 66, 0 }, { SPEC_Q8_0 + 4, 197, 256, 2, 131, 1 },
	    { 4, 808, 128, 2, 123, 0 }, { 4, 848, 256, 3, 68, 1 } }; /* of which the narrow warpgroups multiply some */

	for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct stored stored;
		struct slab   slab;

		make(&stored, &specs[cases[i].spec], cases[i].rows, cases[i].columns, 0, 0);
		if (!lay(&slab, { stored.desc }, cases[i].blocks, (uint64_t)i))
			continue;
		check_folded<__nv_bfloat16>(&slab, specs[cases[i].spec].name, cases[i].count, 1, cases[i].wide, (uint64_t)i);
		if (i == 0 || i == 3 || i >= 5)
			check_folded<__half>(&slab, specs[cases[i].spec].name, cases[i].count, 1, 0, 7);
	}
}

/* A norm that the product does itself, in every block: the bits of norm_kernel and a product. */
template <class T> static void check_norm(const struct slab *slab, uint32_t blocks, bool inner)
{
	const uint32_t     width = slab->w.columns, packs = width / pack<T>::count;
	std::vector<float> x(width), sum(width, NAN), sum_alone(width, NAN), w(width), inner_norm(width);
	std::vector<T>     delta(width), normed(width, from_float<T>(NAN)), normed_alone = normed;

	for (uint32_t k = 0; k < width; k++) {
		x[k] = uniform();
		delta[k] = from_float<T>(uniform());
		w[k] = 1 + 0.5f * uniform();
		inner_norm[k] = 1 + 0.5f * uniform();
	}
	struct norm_job job = { .x = x.data(), .sum = sum.data(), .residual = delta.data(), .y = normed.data(), .w = w.data(),
		.inner_norm = inner ? inner_norm.data() : NULL, .inner_eps = 1e-6f, .eps = 1e-5f, .width = width, .x_is_wide = 1 };
	struct norm_prologue norm = { x.data(), sum_alone.data(), delta.data(), normed_alone.data(), w.data(), job.inner_norm, 1e-6f,
		1e-5f, width };

	expect(int4_one_takes_norm(slab->w), "%u columns are not taken", width);
	expect_runs(emulate(1, (packs + 31) / 32 * 32, 0, { .seed = width }, [&] { norm_kernel<T, float, 1, false>(job); }));
	std::vector<float> y = multiply<T>(slab, normed, width, 1, blocks, 1, 1);
	std::vector<float> y_alone = multiply<T>(slab, normed_alone, width, 1, blocks, 1, 2, false, 0, &norm);

	expect(y == y_alone, "a product with its norm differs from both");
	expect(memcmp(sum.data(), sum_alone.data(), width * sizeof(float)) == 0, "the sum differs");
	expect(memcmp(normed.data(), normed_alone.data(), width * sizeof(T)) == 0, "the norm differs");
}

static void test_norm(void)
{
	static const struct {
		int      spec;
		uint32_t rows, columns, blocks;
	} cases[] = { { 4, 48, 1280, 2 }, { 0, 300, 384, 1 }, { 0, 300, 5248, 1 },
		{ 0, 48, 5248, 1 }, { SPEC_Q8_0, 40, 640, 3 } };

	for (const auto &c : cases) {
		struct stored stored;
		struct slab   slab;

		make(&stored, &specs[c.spec], c.rows, c.columns, 0, 0);
		if (!lay(&slab, { stored.desc }, c.blocks, 3))
			continue;
		check_norm<__nv_bfloat16>(&slab, c.blocks, true);
		check_norm<__half>(&slab, c.blocks, false);
	}
}

/* Bias, rotation and the write of k and v in the epilogue: the bits of two kernels, however tiles and panels cut heads. */
template <class T> static void check_heads(const struct slab *slab, const struct head_shape &shape, uint32_t rows, uint32_t blocks)
{
	const uint32_t     stride = (slab->w.columns + 7) / 8 * 8;
	const std::vector<T> x = inputs<T>(rows, slab->w.columns, stride);
	head_world<T>      one(shape, rows), two(shape, rows);
	std::vector<float> product = multiply<T>(slab, x, stride, rows, blocks, 0, 1);
	std::vector<T>     want, got;

	expect(int4_takes_heads(slab->w, rows), "%u outputs in %u panels, %u rows: heads are not taken", slab->w.rows, slab->w.panels,
	    rows);
	for (float y : product)
		want.push_back(from_float<T>(y));
	two.run(want.data(), slab->w.rows);
	for (float y : multiply<T>(slab, x, stride, rows, blocks, 0, 2, false, 0, NULL, &one.to))
		got.push_back(from_float<T>(y));
	expect(memcmp(want.data(), got.data(), want.size() * sizeof(T)) == 0 && one.equals(two),
	    "%u and %u heads of %u, %u rows: not the bits of two kernels", shape.q_heads, shape.kv_heads, shape.dim, rows);
}

static void test_heads(void)
{
	static const struct {
		struct head_shape heads;
		int               spec;
		uint32_t          columns, blocks;
	} cases[] = { { { 4, 1, 16, 4, 4, true, false }, 4, 320, 5 }, { { 3, 2, 64, 64, 16, false, true }, 0, 288, 7 },
		{ { 5, 1, 22, 2, 11, true, false }, 9, 203, 3 }, { { 2, 1, 64, 64, 32, true, true }, SPEC_Q8_0, 640, 4 },
		{ { 3, 2, 64, 64, 0, true, true }, 2, 512, 9 },
		{ { 5, 2, 64, 64, 32, true, true }, 0, 64, 9 } }; /* more pairs of outputs in a panel than threads bring the row */

	for (const auto &c : cases) {
		struct stored stored;
		struct slab   slab;

		make(&stored, &specs[c.spec], c.heads.width(), c.columns, 0, 0);
		if (!lay(&slab, { stored.desc }, c.blocks, 3))
			continue;
		for (uint32_t rows : { 1u, 2u, 8u, 13u })
			check_heads<__nv_bfloat16>(&slab, c.heads, rows, c.blocks);
		check_heads<__half>(&slab, c.heads, 1, c.blocks);
	}
}

/* Many orders of events. */
static void test_orders(void)
{
	struct stored stored;
	struct slab   slab;

	make(&stored, &specs[7], 33, 2080, 0, 0);
	if (!lay(&slab, { stored.desc }, 1, 3))
		return;
	for (uint64_t seed = 100; seed < 108; seed++)
		check_product<__nv_bfloat16>(&slab, "orders", 9, 1, 1, seed);
}

/* What has no slab says why. */
static void test_refusals(void)
{
	struct spec      spec = specs[9];
	struct int4_slab slab;
	int32_t         *order;
	struct stored    a, b, c, d;
	const char      *why;

	spec.group = 48;
	make(&a, &spec, 16, 96, 0, 0);
	why = int4_choose(&a.desc, 1, 1, &slab, &order);
	expect(why && strstr(why, "multiples of 32") && !order, "groups of 48: %s", why ? why : "accepted");
	make(&b, &specs[9], 16, 256, 0, 0);
	make(&c, &specs[0], 16, 256, 0, 0);
	std::vector<struct weight_desc> mixed = { b.desc, c.desc };
	why = int4_choose(mixed.data(), 2, 1, &slab, &order);
	expect(why && strstr(why, "different ways"), "I4 beside Q4_0: %s", why ? why : "accepted");
	make(&d, &specs[7], 16, 256, 0, 0);
	((int32_t *)d.desc.group_index)[0] ^= 1; /* groups of other sizes than 32 */
	why = int4_choose(&d.desc, 1, 1, &slab, &order);
	expect(why && !order, "uneven groups: %s", why ? why : "accepted");
	d.desc.format = WEIGHT_Q3_K;
	why = int4_choose(&d.desc, 1, 1, &slab, &order);
	expect(why && strstr(why, "format"), "Q3_K: %s", why ? why : "accepted");
	mixed[1].format = WEIGHT_Q8_0;
	mixed[0].format = WEIGHT_Q4_0;
	why = int4_choose(mixed.data(), 2, 1, &slab, &order);
	expect(why && strstr(why, "different ways"), "Q4_0 beside Q8_0: %s", why ? why : "accepted");
}

int main(void)
{
	SKIP_UNDER_THREAD_SANITIZER;
	test_formats();
	test_ends();
	test_stack();
	test_gate_up();
	test_norm();
	test_heads();
	test_shapes();
	test_eight();
	test_folded();
	test_orders();
	test_refusals();
	return finish("int4");
}
