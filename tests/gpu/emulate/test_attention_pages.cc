/* test_attention_pages.cc: attention of prompts, of decodes and of everything else (gpu/attention_prefill.cuh, _decode.cuh,
 * _plain.cuh) against a softmax in double.  Pages lie anywhere; what no token was written to holds NaN, and so do outputs.  A
 * sequence's bits must be the same alone and among others, and of a prompt however it is cut.  Pages hold T or bytes, whose
 * scales are NaN where no token was written. */
#include "expect.h"
#include "gpu/attention_decode.cuh"
#include "gpu/attention_plain.cuh"
#include "gpu/attention_prefill.cuh"
#include "gpu/byte_round.cuh"

#include <algorithm>
#include <type_traits>

struct sequence {
	uint32_t rows, context;
};

struct shape {
	uint32_t group, kv_heads, block_size;
	int      full;
	uint32_t swizzle = 0; /* of the pools (struct cuda_kv) */
};

template <class T> static double error_of(void);
template <> double error_of<float>(void) { return 1e-5; }
template <> double error_of<__nv_bfloat16>(void) { return 7e-3; }
template <> double error_of<__half>(void) { return 1.5e-3; }

/* Values are a function of what they belong to, so that a sequence has the same ones in every batch. */
static float value(uint32_t kind, uint32_t context, uint32_t token, uint32_t head, uint32_t d)
{
	uint64_t state = (((uint64_t)kind * 1009 + context) * 100003 + token) * 10007 + head * 521 + d;

	return random_value(&state);
}

/* Of a key (KIND 0) or value (1) of a token and head. */
template <class E> static float scale_of(uint32_t kind, uint32_t context, uint32_t token, uint32_t head)
{
	uint64_t state = ((uint64_t)kind * 31 + context) * 100003 + token * 17 + head;
	uint32_t word = random_word(&state);

	return kv_is_byte<E> ? ldexpf(1 + (float)(word & 0xffff) / 65536, -8 + (int)(word >> 16) % 3) : 1;
}

/* As a page holds it. */
template <class E> static E element(uint32_t kind, uint32_t context, uint32_t token, uint32_t head, uint32_t d)
{
	float x = value(kind, context, token, head, d);

	if constexpr (!kv_is_byte<E>) {
		return from_float<E>(x);
	} else {
		x /= scale_of<E>(kind, context, token, head);
		return { std::is_same_v<E, kv_f8> ? byte_from_f8(x) : (uint8_t)(int8_t)fmaxf(-127, fminf(127, rintf(x))) };
	}
}

template <class E> static double stored(uint32_t kind, uint32_t context, uint32_t token, uint32_t head, uint32_t d)
{
	return (double)kv_value(element<E>(kind, context, token, head, d)) * (double)scale_of<E>(kind, context, token, head);
}

template <class E> static E nothing(void)
{
	if constexpr (kv_is_byte<E>)
		return { 0x7e }; /* the largest: bytes of pages are numbers */
	else
		return from_float<E>(NAN);
}

/* Everything that a launch reads and writes. */
template <class T, int DIM, class E = T> struct world {
	struct shape               shape;
	std::vector<sequence>      sequences;
	std::vector<E>             keys, values;
	std::vector<T>             qkv, y;
	std::vector<float>         scales;
	std::vector<int32_t>       tables, row_sequence, arrived, counts;
	std::vector<step_sequence> entries;
	std::vector<step_item>     items;
	std::vector<step_tile>     tiles;
	std::vector<float>         partials, sums;
	std::vector<emulate_range> fresh; /* what kernels before this one read and write */
	uint32_t                   rows, stride, mark = 0;
	struct attention_job       job = {};

	world(const struct shape &shape_, std::vector<sequence> sequences_, uint32_t padding, uint64_t seed);
	uint32_t heads() const { return shape.group * shape.kv_heads; }
	/* From a block's head to the next in a pool, in elements, and in scales.  Where chunks of bytes are swapped there is something
	 * in between. */
	size_t unit() const { return shape.block_size * DIM + (kv_is_byte<E> && shape.swizzle ? 48 : 0); }
	size_t scale_unit() const { return 2 * shape.block_size + (kv_is_byte<E> && shape.swizzle ? 12 : 0); }
	uint32_t swapped(uint32_t token, uint32_t d) const
	{
		return kv_is_byte<E> ? d ^ (token * DIM / 128 & shape.swizzle) << 4 : d ^ (token & shape.swizzle) << 3;
	}
	void     check(const char *what) const;
	std::vector<T> rows_of(size_t s) const
	{
		const T *first = &y[(size_t)entries[s].first_row * stride];
		return std::vector<T>(first, first + (size_t)entries[s].rows * stride);
	}
};

template <class T, int DIM, class E> world<T, DIM, E>::world(const struct shape &shape_, std::vector<sequence> sequences_,
    uint32_t padding, uint64_t seed) : shape(shape_), sequences(sequences_), rows(padding)
{
	uint32_t blocks = 3, block = 0, partial = 0;
	uint64_t random = seed + 7;
	std::vector<int32_t> order;

	for (const sequence &s : sequences) {
		rows += s.rows;
		blocks += (s.context + shape.block_size - 1) / shape.block_size;
	}
	stride = heads() * DIM + 16;
	for (uint32_t i = 0; i < blocks; i++)
		order.push_back((int32_t)i);
	for (uint32_t i = blocks; i > 1; i--)
		std::swap(order[i - 1], order[random_word(&random) % i]);
	keys.assign((size_t)blocks * shape.kv_heads * unit(), nothing<E>());
	values = keys;
	scales.assign((size_t)blocks * shape.kv_heads * scale_unit(), NAN);
	qkv.assign((size_t)rows * stride, from_float<T>(NAN));
	y = qkv;
	row_sequence.assign(rows, -1);
	arrived.assign((size_t)rows * heads(), 0);
	for (uint32_t s = 0, row = 0; s < sequences.size(); row += sequences[s++].rows) {
		struct step_sequence entry = {};
		uint32_t             context = sequences[s].context, run = attention_run(context);

		entry.first_row = (int32_t)row;
		entry.rows = (int32_t)sequences[s].rows;
		entry.context = (int32_t)context;
		entry.table[1] = (int32_t)tables.size();
		entry.first_item = (int32_t)items.size();
		entry.items = (int32_t)((context + run - 1) / run);
		for (uint32_t begin = 0; begin < context; begin += run, partial += sequences[s].rows * heads())
			items.push_back({ (int32_t)s, (int32_t)begin, (int32_t)std::min(begin + run, context), (int32_t)partial });
		for (uint32_t first = 0; first < sequences[s].rows; first += CUDA_TILE)
			tiles.push_back({ (int32_t)s, (int32_t)first });
		for (uint32_t t = 0; t < context; t++) {
			if (t % shape.block_size == 0)
				tables.push_back(order[block++]);
			for (uint32_t h = 0; h < shape.kv_heads; h++) {
				size_t its = (size_t)tables.back() * shape.kv_heads + h, at = its * scale_unit() + t % shape.block_size;
				size_t place = its * unit() + t % shape.block_size * DIM;

				scales[at] = scale_of<E>(0, context, t, h);
				scales[at + shape.block_size] = scale_of<E>(1, context, t, h);
				for (uint32_t d = 0; d < DIM; d++) {
					keys[place + swapped(t, d)] = element<E>(0, context, t, h, d);
					values[place + swapped(t, d)] = element<E>(1, context, t, h, d);
				}
				if (t >= context - sequences[s].rows) {
					fresh.push_back({ &keys[place], DIM * sizeof(E) });
					fresh.push_back({ &values[place], DIM * sizeof(E) });
					fresh.push_back({ &scales[at], sizeof(float) });
					fresh.push_back({ &scales[at + shape.block_size], sizeof(float) });
				}
			}
		}
		for (uint32_t r = 0; r < sequences[s].rows; r++) {
			row_sequence[row + r] = (int32_t)s;
			for (uint32_t i = 0; i < heads() * DIM; i++)
				qkv[(size_t)(row + r) * stride + i] = from_float<T>(value(2, context, context - sequences[s].rows + r, i / DIM,
				    i % DIM));
		}
		entries.push_back(entry);
	}
	counts = { (int32_t)items.size(), (int32_t)tiles.size(), (int32_t)sequences.size(), (int32_t)rows };
	partials.assign((size_t)partial * DIM, NAN);
	sums.assign((size_t)partial * 2, NAN);
	for (std::vector<T> *v : { &qkv, &y })
		fresh.push_back({ v->data(), v->size() * sizeof(T) });
	for (std::vector<float> *v : { &partials, &sums })
		fresh.push_back({ v->data(), v->size() * sizeof(float) });
	fresh.push_back({ arrived.data(), arrived.size() * sizeof(int32_t) });
	job.qkv = qkv.data();
	job.keys = keys.data();
	job.values = values.data();
	job.scales = scales.data();
	job.y = y.data();
	job.sequences = entries.data();
	job.items = items.data();
	job.tiles = tiles.data();
	job.tables = tables.data();
	job.row_sequence = row_sequence.data();
	job.counts = counts.data();
	job.partials = partials.data();
	job.sums = sums.data();
	job.arrived = arrived.data();
	job.stride = job.y_stride = stride;
	job.q_heads = job.partial_heads = heads();
	job.kv_heads = shape.kv_heads;
	job.group = shape.group;
	job.head_dim = DIM;
	while (1u << job.block_shift < shape.block_size)
		job.block_shift++;
	job.kv_group = 1;
	job.swizzle = shape.swizzle;
	job.unit = (uint32_t)unit();
	job.scale_unit = (uint32_t)scale_unit();
	job.scale = 0.4f / sqrtf(DIM);
	job.full = shape.full;
	job.mark = { &mark, 4 };
}

template <class T, int DIM, class E> void world<T, DIM, E>::check(const char *what) const
{
	std::vector<double> weights, sum(DIM);

	expect(mark == 4, "mark");
	expect(std::count(arrived.begin(), arrived.end(), 0) == (long)arrived.size(), "%s: counters are not back at 0", what);
	for (uint32_t row = 0; row < rows; row++) {
		int32_t s = row_sequence[row];

		for (uint32_t i = heads() * DIM; i < stride; i++)
			expect(isnan(to_float(y[(size_t)row * stride + i])), "%s: padding of a row was written", what);
		for (uint32_t h = 0; h < heads() && s >= 0; h++) {
			const sequence &its = sequences[(size_t)s];
			uint32_t before = its.context - its.rows + row - (uint32_t)entries[(size_t)s].first_row;
			uint32_t limit = shape.full ? its.context : before + 1;
			double   total = 0, worst = 0;

			weights.assign(limit, 0);
			std::fill(sum.begin(), sum.end(), 0);
			for (uint32_t t = 0; t < limit; t++) {
				for (uint32_t d = 0; d < DIM; d++)
					weights[t] += (double)to_float(from_float<T>(value(2, its.context, before, h, d))) *
					    stored<E>(0, its.context, t, h / shape.group, d);
				weights[t] = exp(weights[t] * (double)job.scale);
				total += weights[t];
			}
			for (uint32_t t = 0; t < limit; t++)
				for (uint32_t d = 0; d < DIM; d++)
					sum[d] += weights[t] / total * stored<E>(1, its.context, t, h / shape.group, d);
			for (uint32_t d = 0; d < DIM; d++) {
				double got = (double)to_float(y[(size_t)row * stride + h * DIM + d]);

				worst = got == got ? std::max(worst, fabs(got - sum[d])) : INFINITY;
			}
			/* A weight times a scale is rounded even where the weight is 1. */
			expect(worst <= error_of<T>() * (kv_is_byte<E> ? 2 : 1), "%s: row %u (%u at %u) head %u: %g off", what, row, its.rows,
			    its.context, h, worst);
		}
	}
}

template <class T> static bool same_bits(const std::vector<T> &a, const std::vector<T> &b)
{
	return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/* ---- Decodes ---- */

template <class T, int DIM, class E> static void run_decode(world<T, DIM, E> *w, uint32_t blocks, uint64_t seed)
{
	uint32_t most = 0;

	for (const sequence &s : w->sequences)
		most = std::max(most, s.rows);
	w->job.row_tiles = (most * w->shape.group + 15) / 16;
	expect_runs(emulate(blocks, DECODE_THREADS, decode_shared<E, DIM>(), { .seed = seed, .before = w->fresh },
	    [&] { decode_kernel<T, DIM, E>(w->job); }),
	    seed);
}

template <class T, int DIM, class E = T> static void test_decode(const struct shape &shape, std::vector<sequence> sequences,
    uint64_t seed)
{
	world<T, DIM, E> w(shape, sequences, 2, seed);

	run_decode(&w, 5, seed);
	w.check("decode");
	for (uint32_t r = w.rows - 2; r < w.rows; r++)
		for (uint32_t i = 0; i < w.heads() * DIM; i++)
			expect(to_float(w.y[(size_t)r * w.stride + i]) == 0, "decode: a row of padding is not zero");
	for (size_t s = 0; s < sequences.size(); s += 2) {
		world<T, DIM, E> alone(shape, { sequences[s] }, 0, seed + 1);

		run_decode(&alone, 3, seed + 2);
		expect(same_bits(alone.rows_of(0), w.rows_of(s)), "decode: a row of a context of %u differs alone", sequences[s].context);
	}
}

/* ---- Prompts ---- */

template <class T, int DIM, class E> static void run_prefill(world<T, DIM, E> *w, uint64_t seed)
{
	expect_runs(emulate(dim3(w->heads(), (uint32_t)w->tiles.size()), PREFILL_THREADS, prefill_shared<E, DIM>(), { .seed = seed },
	    [&] { prefill_kernel<T, DIM, E>(w->job); }), seed);
}

template <class T, int DIM, class E = T> static void test_prefill(const struct shape &shape, std::vector<sequence> sequences,
    uint64_t seed)
{
	world<T, DIM, E> w(shape, sequences, 0, seed);

	run_prefill(&w, seed);
	w.check("prefill");
}

/* The last rows of a context in a piece of their own: the same bits as in one piece. */
template <class T, int DIM, class E = T> static void test_pieces(void)
{
	const struct shape shape = { 2, 1, 16, 0 };
	world<T, DIM, E>   whole(shape, { { 100, 100 } }, 0, 1), piece(shape, { { 37, 100 }, { 9, 70 } }, 0, 2);
	std::vector<T>     a, b;

	run_prefill(&whole, 3);
	run_prefill(&piece, 4);
	a = whole.rows_of(0);
	b = piece.rows_of(0);
	expect(same_bits(std::vector<T>(a.end() - (long)b.size(), a.end()), b), "prefill: a prompt cut in two has other bits");
}

/* ---- Everything else ---- */

template <class T, int DIM, class E = T> static void test_plain(const struct shape &shape, std::vector<sequence> sequences,
    uint64_t seed)
{
	world<T, DIM, E> w(shape, sequences, 1, seed);

	expect_runs(emulate(dim3(w.rows, w.heads()), 32 * PLAIN_WARPS, 0, { .seed = seed }, [&] { plain_kernel<T, E>(w.job); }), seed);
	w.check("plain");
	for (uint32_t i = 0; i < w.heads() * DIM; i++)
		expect(to_float(w.y[(size_t)(w.rows - 1) * w.stride + i]) == 0, "plain: a row of padding is not zero");
}

/* ---- Bytes ---- */

/* Every byte at each place of a word: exactly its value, but for the factor. */
template <class T, class E> static void test_pairs(void)
{
	for (uint32_t byte = 0; byte < 256; byte++)
		for (uint32_t place = 0; place < 4; place++) {
			uint32_t got[2] = { 0, 0 }, others = 0x26c15b8e & ~(0xffu << 8 * place);
			E        e = { (uint8_t)byte };
			uint16_t half;
			T        t;

			if (std::is_same_v<E, kv_f8> && (byte & 0x7f) == 0x7f)
				continue;
			kv_pairs<T, E>::widen(others | byte << 8 * place, &got[0], &got[1]);
			half = (uint16_t)(got[place % 2] >> 16 * (place / 2));
			memcpy(&t, &half, 2);
			expect(to_float(t) * (kv_pairs<T, E>::factor) == kv_value(e), "byte %02x at %u is %g, not %g", byte, place, to_float(t),
			    kv_value(e));
		}
}

/* The sixteen-byte chunks of a tile: each once, and those that ldmatrix reads at once in different banks. */
template <int DIM> static void test_places(void)
{
	std::vector<int> chunks(64 * DIM / 16);

	for (uint32_t row = 0; row < 64; row += 8)
		for (uint32_t chunk = 0; chunk < DIM / 16; chunk++) {
			uint32_t banks = 0;

			for (uint32_t r = row; r < row + 8; r++) {
				chunks.at(byte_tile_at<DIM>(r, chunk) / 16)++;
				banks |= 1u << byte_tile_at<DIM>(r, chunk) / 16 % 8;
			}
			expect(banks == 0xff, "heads of %d: two rows' chunks in one bank", DIM);
		}
	expect(std::count(chunks.begin(), chunks.end(), 1) == (long)chunks.size(), "places of %d", DIM);
}

template <class E> static void test_byte_pages(void)
{
	test_pairs<__nv_bfloat16, E>();
	test_pairs<__half, E>();
	test_decode<__nv_bfloat16, 64, E>({ 4, 2, 16, 0 }, { { 1, 1 }, { 1, 63 }, { 1, 64 }, { 1, 65 }, { 1, 130 } }, 21);
	test_decode<__half, 128, E>({ 12, 1, 64, 0 }, { { 1, 300 }, { 4, 129 }, { 2, 2 } }, 22);
	test_decode<__nv_bfloat16, 128, E>({ 5, 2, 4, 0 }, { { 8, 8 }, { 3, 257 } }, 23);
	test_decode<__half, 64, E>({ 2, 1, 64, 1 }, { { 8, 70 }, { 1, 1 } }, 24);
	test_decode<__nv_bfloat16, 128, E>({ 1, 1, 64, 0 }, { { 1, 2300 } }, 25);
	test_prefill<__nv_bfloat16, 64, E>({ 2, 1, 16, 0 }, { { 1, 1 }, { 65, 65 }, { 9, 140 } }, 26);
	test_prefill<__half, 128, E>({ 1, 2, 64, 0 }, { { 70, 133 }, { 16, 16 } }, 27);
	test_prefill<__half, 64, E>({ 3, 1, 32, 1 }, { { 40, 40 }, { 7, 7 } }, 28);
	test_prefill<__nv_bfloat16, 128, E>({ 1, 1, 64, 0 }, { { 64, 64 } }, 29);
	test_decode<__half, 128, E>({ 4, 2, 64, 0, 7 }, { { 1, 70 }, { 2, 129 } }, 33);
	test_prefill<__nv_bfloat16, 128, E>({ 2, 2, 64, 0, 7 }, { { 20, 85 }, { 3, 70 } }, 34);
	test_prefill<__half, 64, E>({ 2, 1, 64, 0, 3 }, { { 20, 85 } }, 35);
	test_pieces<__nv_bfloat16, 128, E>();
	test_pieces<__half, 64, E>();
	test_plain<float, 40, E>({ 3, 1, 16, 0 }, { { 1, 1 }, { 5, 70 } }, 30);
	test_plain<__nv_bfloat16, 256, E>({ 1, 2, 64, 0 }, { { 2, 67 } }, 31);
	test_plain<__half, 72, E>({ 2, 1, 2, 1 }, { { 9, 9 } }, 32);
}

int main(void)
{
	SKIP_UNDER_THREAD_SANITIZER;
	test_decode<__nv_bfloat16, 64>({ 4, 2, 16, 0 }, { { 1, 1 }, { 1, 63 }, { 1, 64 }, { 1, 65 }, { 1, 130 } }, 1);
	test_decode<__half, 128>({ 12, 1, 64, 0 }, { { 1, 300 }, { 4, 129 }, { 2, 2 } }, 2);
	test_decode<__nv_bfloat16, 128>({ 5, 2, 32, 0 }, { { 8, 8 }, { 3, 257 } }, 3);
	test_decode<__half, 64>({ 2, 1, 64, 1 }, { { 8, 70 }, { 1, 1 } }, 4);
	test_decode<__nv_bfloat16, 64>({ 1, 1, 64, 0 }, { { 1, 2300 } }, 5);
	test_prefill<__nv_bfloat16, 64>({ 2, 1, 16, 0 }, { { 1, 1 }, { 65, 65 }, { 9, 140 } }, 6);
	test_prefill<__half, 128>({ 1, 2, 64, 0 }, { { 70, 133 }, { 16, 16 } }, 7);
	test_prefill<__half, 64>({ 3, 1, 32, 1 }, { { 40, 40 }, { 7, 7 } }, 8);
	test_prefill<__nv_bfloat16, 128>({ 1, 1, 64, 0 }, { { 64, 64 } }, 9);
	test_prefill<__nv_bfloat16, 128>({ 1, 1, 64, 0, 7 }, { { 20, 85 } }, 13);
	test_prefill<__half, 64>({ 2, 1, 64, 0, 7 }, { { 20, 85 } }, 14);
	test_decode<__nv_bfloat16, 64>({ 2, 1, 64, 0, 7 }, { { 3, 85 } }, 15);
	test_pieces<__nv_bfloat16, 64>();
	test_pieces<__half, 128>();
	test_plain<float, 40>({ 3, 1, 16, 0 }, { { 1, 1 }, { 5, 70 } }, 10);
	test_plain<__nv_bfloat16, 256>({ 1, 2, 64, 0 }, { { 2, 67 } }, 11);
	test_plain<__half, 72>({ 2, 1, 32, 1 }, { { 9, 9 } }, 12);
	test_places<64>();
	test_places<128>();
	test_byte_pages<kv_f8>();
	test_byte_pages<kv_i8>();
	return finish("attention over pages");
}
