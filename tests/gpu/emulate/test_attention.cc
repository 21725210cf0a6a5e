/* test_attention.cc: own decode attention against a plain double sum, in the emulator.
 *
 * Pages lie anywhere in the pool; what no token of a context has written holds NaN, and so do all outputs before.  Whatever
 * rows of this step write becomes readable only when a block waits for the kernels before it: until then it is NaN, too.  A
 * sequence's bits must be the same alone, among others, over any number of blocks, cut into units of any kind, and with passes of
 * 16, 24 or 32 rows.  Of
 * pages of bytes what no token has written is the largest byte, and scales of NaN. */
#include "expect.h"

#include "gpu/attention_hopper_byte.cuh"
#include "gpu/byte_round.cuh"

#include <type_traits>
#include <typeinfo>

enum { PAGE = ATTENTION_PAGE, PADDED = 2 };

struct sequence {
	uint32_t rows, context;
};

struct test_case {
	const char *name;
	uint32_t    group, kv_heads;
	bool        full;
	std::vector<sequence> sequences;
	bool        extreme = false; /* scales of bytes of all sizes, zeroes among them, and rows of q */
};

static uint64_t random_state = 1;

/* All that a launch reads and writes, for the sequences of a case or one of them.  E: what pages hold, T or bytes. */
template <class T, int DIM, class E = T> struct world {
	const test_case           *c;
	std::vector<T>             q;            /* as it is written: [rows][q_heads · DIM] */
	std::vector<E>             keys, values; /* likewise; of bytes, records of a head are in keys */
	std::vector<int32_t>       tables;
	std::vector<uint32_t>      first_row, table;
	std::vector<emulate_range> before; /* rows of keys and values that this step writes */
	uint32_t                   rows = 0;

	uint32_t heads() const { return c->group * c->kv_heads; }
	uint32_t width() const { return heads() * DIM; }
	static constexpr size_t record = 2 * PAGE * (DIM + sizeof(float));
	size_t unit(uint32_t s, uint32_t token, uint32_t head) const
	{
		return (size_t)tables[table[s] + token / PAGE] * c->kv_heads + head;
	}
	/* Of a key (KIND 0) or a value (1). */
	const E *element(int kind, uint32_t s, uint32_t token, uint32_t head, uint32_t d) const
	{
		uint32_t row = token % PAGE;

		if constexpr (kv_is_byte<E>)
			return &keys[unit(s, token, head) * record + (size_t)kind * PAGE * DIM + byte_tile_at<DIM>(row, d / 16) + d % 16];
		else
			return &(kind ? values : keys)[(unit(s, token, head) * PAGE + row) * DIM + (d ^ (row & 7) << 3)];
	}
	const float *scale(int kind, uint32_t s, uint32_t token, uint32_t head) const
	{
		return (const float *)&keys[unit(s, token, head) * record + 2 * PAGE * DIM] + kind * PAGE + token % PAGE;
	}
	/* Of a row's element 0 from where the row begins. */
	static size_t offset(uint32_t token)
	{
		return kv_is_byte<E> ? byte_tile_at<DIM>(token % PAGE, 0) - token % PAGE * DIM : (token & 7) << 3;
	}
	double number(int kind, uint32_t s, uint32_t token, uint32_t head, uint32_t d) const
	{
		double x = kv_value(*element(kind, s, token, head, d));
		return kv_is_byte<E> ? x * *scale(kind, s, token, head) : x;
	}
};

template <class T> static T not_a_number(void)
{
	T ret;

	ret.bits = 0x7fff;
	return ret;
}

/* A byte of X, as pages hold it. */
template <class E> static E rounded(float x)
{
	if constexpr (kv_is_byte<E>)
		return { std::is_same_v<E, kv_f8> ? byte_from_f8(x) : (uint8_t)(int8_t)fmaxf(-127, fminf(127, rintf(x))) };
	else
		return from_float<E>(x);
}

/* Scales of bytes are of all sizes, those of a context's later tokens larger. */
template <class T, int DIM, class E> static world<T, DIM, E> make_world(const test_case &c)
{
	world<T, DIM, E> w;
	uint32_t         pages = 0;

	w.c = &c;
	for (const sequence &s : c.sequences) {
		w.first_row.push_back(w.rows);
		w.table.push_back((uint32_t)w.tables.size());
		w.rows += s.rows;
		for (uint32_t p = 0; p < (s.context + PAGE - 1) / PAGE; p++)
			w.tables.push_back((int32_t)pages++);
	}
	for (uint32_t i = pages; i > 1; i--) /* anywhere */
		std::swap(w.tables[i - 1], w.tables[random_word(&random_state) % i]);
	if constexpr (kv_is_byte<E>) {
		w.keys.assign((pages + 1) * c.kv_heads * w.record, { 0x7e });
		for (uint32_t u = 0; u < (pages + 1) * c.kv_heads; u++)
			memset(&w.keys[u * w.record + 2 * PAGE * DIM], 0xff, 2 * PAGE * sizeof(float));
	} else {
		w.keys.assign((size_t)(pages + 1) * c.kv_heads * PAGE * DIM, not_a_number<E>());
		w.values = w.keys;
	}
	w.q.resize((size_t)(w.rows + PADDED) * w.width());
	for (T &x : w.q)
		x = from_float<T>(random_value(&random_state));
	for (size_t i = 0; i < w.q.size() && c.extreme; i++)
		w.q[i] = from_float<T>(ldexpf(to_float(w.q[i]), -(int)(i / DIM * 29 % 90)));
	for (uint32_t s = 0; s < c.sequences.size(); s++)
		for (uint32_t t = 0; t < c.sequences[s].context; t++)
			for (uint32_t h = 0; h < c.kv_heads; h++)
				for (int kind = 0; kind < 2; kind++) {
					bool  is_new = t >= c.sequences[s].context - c.sequences[s].rows;
					float scale = 1;

					if (kv_is_byte<E>) {
						scale = ldexpf(1 + fabsf(random_value(&random_state)) / 2, c.extreme && kind ? (int)(t * 31 % 150) - 100 :
						    -9 + (int)(t / 150) % 3);
						if (c.extreme && t % 5 == 3)
							scale = 0;
						*(float *)w.scale(kind, s, t, h) = scale;
						if (is_new)
							w.before.push_back({ (void *)w.scale(kind, s, t, h), sizeof(float) });
					}
					for (uint32_t d = 0; d < DIM; d++)
						*(E *)w.element(kind, s, t, h, d) = rounded<E>(c.extreme && kind ? 100 * random_value(&random_state) :
						    scale > 0 ? (random_value(&random_state) + 0.25f * (float)kind) / scale : 1);
					if (is_new) /* the whole row */
						w.before.push_back({ (void *)(w.element(kind, s, t, h, 0) - w.offset(t)), DIM * sizeof(E) });
				}
	w.before.push_back({ w.q.data(), w.q.size() * sizeof(T) });
	return w;
}

/* Row by row in double. */
template <class T, int DIM, class E> static std::vector<double> expected(const world<T, DIM, E> &w, float scale)
{
	std::vector<double> y((size_t)w.rows * w.width()), weights;

	for (uint32_t s = 0; s < w.c->sequences.size(); s++)
		for (uint32_t r = 0; r < w.c->sequences[s].rows; r++)
			for (uint32_t h = 0; h < w.heads(); h++) {
				uint32_t context = w.c->sequences[s].context, kv = h / w.c->group;
				uint32_t limit = w.c->full ? context : context - w.c->sequences[s].rows + r + 1;
				size_t   row = (size_t)(w.first_row[s] + r) * w.width() + (size_t)h * DIM;
				double   most = -INFINITY, sum = 0;

				weights.assign(limit, 0);
				for (uint32_t t = 0; t < limit; t++) {
					for (uint32_t d = 0; d < DIM; d++)
						weights[t] += (double)to_float(w.q[row + d]) * w.number(0, s, t, kv, d);
					weights[t] *= scale;
					most = fmax(most, weights[t]);
				}
				for (uint32_t t = 0; t < limit; t++) {
					double weight = exp(weights[t] - most);

					sum += weight;
					for (uint32_t d = 0; d < DIM; d++)
						y[row + d] += weight * w.number(1, s, t, kv, d);
				}
				for (uint32_t d = 0; d < DIM; d++)
					y[row + d] /= sum;
			}
	return y;
}

/* Attention of the sequences [FIRST, END) by BLOCKS blocks: rows of y, those of padding too.  WHOLE: units may be whole contexts,
 * of what pages of bytes are not asked. */
template <class T, int DIM, int PARTS, class E> static std::vector<T> run(const char *name, world<T, DIM, E> &w, uint32_t first,
    uint32_t end, uint32_t blocks, uint64_t seed, float scale, bool whole = false)
{
	const test_case              &c = *w.c;
	uint32_t                      heads = w.heads(), partial = 0, rows = w.rows + PADDED, partial_heads = heads + 3;
	struct attention_planner     *planner;
	struct attention_part        *parts;
	struct attention_shape        shape = { blocks, c.kv_heads, c.group, PARTS == 2 ? 16 : 32, whole && !kv_is_byte<E> };
	std::vector<attention_unit>   units(1 << 14);
	std::vector<int32_t>          owner(rows, -1);
	std::vector<T>                y((size_t)rows * w.width(), not_a_number<T>());
	std::vector<float>            partials, sums;
	std::vector<int32_t>          arrived;
	const char                   *error;
	int32_t                       count = (int32_t)rows;

	if (attention_planner_create(end - first, &planner))
		exit(2);
	parts = attention_planner_parts(planner);
	for (uint32_t s = first; s < end; s++) {
		uint32_t run = attention_run_own(c.sequences[s].context);

		parts[s - first] = { (int32_t)w.first_row[s], (int32_t)c.sequences[s].rows, (int32_t)c.sequences[s].context,
			(int32_t)partial, (int32_t)w.table[s] };
		partial += (c.sequences[s].context + run - 1) / run * c.sequences[s].rows * partial_heads;
		for (uint32_t r = 0; r < c.sequences[s].rows; r++)
			owner[w.first_row[s] + r] = (int32_t)s;
	}
	units.resize(attention_plan(planner, &shape, end - first, units.data(), (uint32_t)units.size()));
	attention_planner_destroy(planner);
	partials.assign((size_t)partial * DIM, NAN);
	sums.assign((size_t)partial * 2, NAN);
	arrived.assign(partial, 0);
	hopper_job job = {};
	job.qkv = w.q.data();
	job.keys = w.keys.data();
	job.values = w.values.data();
	job.y = y.data();
	job.units = units.data();
	job.tables = w.tables.data();
	job.row_sequence = owner.data();
	job.rows = &count;
	job.partials = partials.data();
	job.sums = sums.data();
	job.arrived = arrived.data();
	job.stride = job.y_stride = w.width();
	job.q_heads = heads;
	job.kv_heads = c.kv_heads;
	job.group = c.group;
	job.partial_heads = partial_heads;
	job.scale = scale;
	job.full = c.full;
	emulate_options options;
	options.seed = seed;
	options.before = w.before;
	options.before.push_back({ y.data(), y.size() * sizeof(T) });
	options.before.push_back({ partials.data(), partials.size() * sizeof(float) });
	options.before.push_back({ sums.data(), sums.size() * sizeof(float) });
	options.before.push_back({ arrived.data(), arrived.size() * sizeof(int32_t) });
	if constexpr (kv_is_byte<E>)
		error = emulate(blocks, HOPPER_THREADS, hopper_byte_sizes<T, DIM, PARTS>::shared, options,
		    [&] { hopper_byte_kernel<T, DIM, PARTS, E>(job); });
	else
		error = emulate(blocks, HOPPER_THREADS, hopper_sizes<T, DIM, PARTS>::shared, options,
		    [&] { hopper_kernel<T, DIM, PARTS>(job); });
	expect(!error, "%s: %s", name, error);
	for (int32_t a : arrived)
		expect(a == 0, "%s: a counter is %d", name, a);
	return y;
}

/* Rows of sequences [FIRST, END): differing words. */
template <class T, int DIM, class E> static size_t differing(const world<T, DIM, E> &w, const std::vector<T> &a,
    const std::vector<T> &b, uint32_t first, uint32_t end)
{
	size_t from = (size_t)w.first_row[first] * w.width(), count = 0;
	size_t to = (size_t)(w.first_row[end - 1] + w.c->sequences[end - 1].rows) * w.width();

	for (size_t i = from; i < to; i++)
		count += a[i].bits != b[i].bits;
	return count;
}

template <class T, int DIM, class E = T> static void check(const test_case &c, double tolerance)
{
	world<T, DIM, E>    w = make_world<T, DIM, E>(c);
	float               scale = 1 / sqrtf((float)DIM);
	uint32_t            count = (uint32_t)c.sequences.size();
	std::vector<double> want = expected(w, scale);
	std::vector<T>      y, other;
	char                name[200];
	double              worst = 0;

	snprintf(name, sizeof name, "%s, %u heads over %u of %d, %s", c.name, w.heads(), c.kv_heads, DIM, typeid(E).name());
	y = run<T, DIM, 4, E>(name, w, 0, count, 3, 1, scale);
	for (size_t row = 0; row < (size_t)w.rows * w.heads(); row++) {
		double error = 0, size = 0;

		for (uint32_t d = 0; d < DIM; d++) {
			double x = want[row * DIM + d], difference = to_float(y[row * DIM + d]) - x;

			error += difference * difference;
			size += x * x;
		}
		error = sqrt(error / size);
		if (!isnan(worst) && !(error <= worst))
			worst = error;
	}
	expect(worst <= tolerance, "%s: error %.2e, allowed %.0e", name, worst, tolerance);
	for (size_t i = (size_t)w.rows * w.width(); i < y.size(); i++)
		expect(y[i].bits == 0, "%s: word %zu of padding is %04x", name, i, (unsigned)y[i].bits);
	other = run<T, DIM, 2, E>(name, w, 0, count, 2, 5, scale, true);
	expect(!differing(w, y, other, 0, count), "%s: other bits with another seed, two blocks and passes of 16 rows", name);
	for (uint32_t s = 0; s < count && count > 1; s++) {
		/* With so many blocks units are runs, with three they were groups of runs. */
		other = c.sequences[s].rows * c.group <= 24 ?
		    run<T, DIM, 3, E>(name, w, s, s + 1, c.sequences[s].context > 256 ? 61 : 1 + s % 4, 11 + s, scale) :
		    run<T, DIM, 4, E>(name, w, s, s + 1, c.sequences[s].context > 256 ? 61 : 1 + s % 4, 11 + s, scale);
		expect(!differing(w, y, other, s, s + 1), "%s: sequence %u alone has other bits than among others", name, s);
		if (c.sequences[s].context > 1024 && !kv_is_byte<E>) { /* more than a group of runs */
			other = c.sequences[s].rows * c.group <= 24 ? run<T, DIM, 3, E>(name, w, s, s + 1, 1, 7 + s, scale, true) :
			                                              run<T, DIM, 4, E>(name, w, s, s + 1, 1, 7 + s, scale, true);
			expect(!differing(w, y, other, s, s + 1), "%s: sequence %u as one unit has other bits", name, s);
		}
		if (c.sequences[s].context <= 4096)
			continue;
		/* Runs again, and several of those that all blocks put together to a block. */
		other = run<T, DIM, 4, E>(name, w, s, s + 1, 5, 3 + s, scale);
		expect(!differing(w, y, other, s, s + 1), "%s: sequence %u by five blocks has other bits", name, s);
	}
}

template <class E> static void test_bytes(const test_case *cases, size_t count, const test_case &fans)
{
	for (size_t i = 0; i < count; i++) {
		check<__nv_bfloat16, 128, E>(cases[i], 6e-3);
		check<__nv_bfloat16, 64, E>(cases[i], 6e-3);
		check<__half, 64, E>(cases[i], 8e-4);
	}
	const test_case extremes = { "extremes", 6, 1, false, { { 1, 300 }, { 3, 70 }, { 1, 4 }, { 2, 515 } }, true };

	check<__nv_bfloat16, 128, E>(extremes, 6e-3);
	check<__half, 128, E>(cases[0], 8e-4);
	check<__half, 128, E>(cases[2], 8e-4);
	check<__nv_bfloat16, 128, E>(fans, 6e-3);
}

int main(void)
{
	SKIP_UNDER_THREAD_SANITIZER;
	const test_case cases[] = {
		{ "short contexts", 16, 2, false, { { 1, 1 }, { 1, 63 }, { 1, 64 }, { 1, 65 }, { 1, 256 }, { 1, 257 }, { 1, 200 } } },
		{ "queries", 4, 2, false, { { 8, 8 }, { 3, 66 }, { 8, 259 }, { 2, 65 }, { 1, 40 }, { 7, 263 } } },
		{ "many queries", 24, 1, false, { { 8, 300 }, { 1, 1 } } },
		{ "odd groups", 5, 3, false, { { 1, 190 }, { 4, 193 }, { 1, 70 } } },
		{ "no groups", 1, 4, false, { { 1, 100 }, { 8, 257 } } },
		{ "every row sees all", 3, 1, true, { { 5, 5 }, { 8, 8 }, { 1, 1 } } },
	};
	const test_case runs = { "runs", 12, 1, false, { { 1, 2047 }, { 1, 777 }, { 2, 2050 } } };
	const test_case fans = { "runs of runs", 4, 1, false, { { 1, 17000 }, { 1, 4096 }, { 8, 4100 } } };

	for (const test_case &c : cases) {
		check<__nv_bfloat16, 128>(c, 6e-3);
		check<__nv_bfloat16, 64>(c, 6e-3);
		check<__half, 64>(c, 8e-4);
	}
	check<__half, 128>(cases[0], 8e-4);
	check<__half, 128>(cases[2], 8e-4);
	check<__nv_bfloat16, 128>(runs, 6e-3);
	check<__nv_bfloat16, 128>(fans, 6e-3);
	check<__nv_bfloat16, 64>(fans, 6e-3);
	test_bytes<kv_f8>(cases, sizeof cases / sizeof *cases, fans);
	test_bytes<kv_i8>(cases, sizeof cases / sizeof *cases, fans);
	return finish("own attention of decodes");
}
