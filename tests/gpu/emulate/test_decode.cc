/* Every stored format, cut into pieces as loading cuts them, through the kernel that decodes on the device: bit for bit what the
 * host reads (weight_read_row) and rounds, rows padded with zeroes, nothing else touched. */
#include "expect.h"
#include "gpu/decode.cuh"
#include "support/stored.h"

enum { GUARD = 16, STACK_ROW = 3, POISON = 0xa5 };

template <class T> static const char *name_of(void);
template <> const char *name_of<float>() { return "float32"; }
template <> const char *name_of<__nv_bfloat16>() { return "bfloat16"; }
template <> const char *name_of<__half>() { return "float16"; }

/* What BYTES is from, tightly, as copies bring it; the end of the memory is the end of the bytes. */
static std::vector<uint8_t> bring(const struct stored_bytes &bytes)
{
	std::vector<uint8_t> ret(bytes.rows * bytes.row_bytes);

	for (uint64_t r = 0; r < bytes.rows; r++)
		memcpy(ret.data() + r * bytes.row_bytes, bytes.from + r * bytes.stride, bytes.row_bytes);
	return ret;
}

/* W in pieces of PIECE_BYTES, which may be too few for it. */
template <class T> static void decode(const struct stored_case &c, const struct weight_desc &w, size_t piece_bytes)
{
	uint32_t             stride = (uint32_t)(w.columns + 7) / 8 * 8;
	size_t               rows = STACK_ROW + w.rows + 1;
	std::vector<T>       out(rows * stride + GUARD);
	std::vector<float>   row(w.columns);
	struct stored_cut    cut;
	struct error         error;
	char                 name[96];
	unsigned             different = 0, touched = 0, padding = 0;

	stored_name(&c, name);
	if (stored_plan(&w, piece_bytes, 1, DECODE_PACK, &cut, &error)) {
		expect(piece_bytes < 4096, "%s: %s", name, error.message);
		return;
	}
	std::vector<uint8_t> sides(cut.side_total + 1, POISON);
	for (int s = 0; s < STORED_SIDES; s++) {
		std::vector<uint8_t> side = bring(stored_side_of(&cut, (enum stored_side)s));
		if (!side.empty())
			memcpy(sides.data() + cut.side_at[s], side.data(), side.size());
	}
	memset((void *)out.data(), POISON, out.size() * sizeof(T));
	for (uint64_t i = 0; i < cut.pieces; i++) {
		struct stored_piece piece;
		struct stored_bytes from;

		stored_piece_of(&cut, i, &piece, &from);
		std::vector<uint8_t> values = bring(from);
		piece.stack_row = STACK_ROW;
		piece.values = values.data();
		stored_set_sides(&cut, sides.data(), &piece);
		const char *said = emulate((uint32_t)((decode_packs(piece) + DECODE_THREADS - 1) / DECODE_THREADS), DECODE_THREADS, 0,
		    { .seed = i }, [&] { decode_kernel<T>(piece, out.data(), stride); });
		expect(!said, "%s: %s", name, said);
	}
	for (uint32_t r = 0; r < w.rows; r++) {
		const T *got = out.data() + (STACK_ROW + r) * (size_t)stride, zero = from_float<T>(0);

		weight_read_row(&w, r, row.data());
		for (uint32_t k = 0; k < stride; k++) {
			T wanted = k < w.columns ? from_float<T>(row[k]) : zero;
			bool same = memcmp(&got[k], &wanted, sizeof wanted) == 0;

			different += k < w.columns && !same;
			padding += k >= w.columns && !same;
		}
	}
	for (size_t i = 0; i < out.size() * sizeof(T); i++) {
		size_t at = i / sizeof(T) / stride;
		touched += (at < STACK_ROW || at >= STACK_ROW + w.rows) && ((uint8_t *)out.data())[i] != POISON;
	}
	expect(!different && !touched && !padding, "%s to %s in pieces of %zu: %u values differ, %u of the padding, %u bytes beside it",
	    name, name_of<T>(), piece_bytes, different, padding, touched);
}

/* All patterns of a byte or half, infinities and NaNs as well (whichever NaN it is). */
template <class T> static void patterns(enum weight_format format, size_t bytes)
{
	uint32_t             columns = bytes == 1 ? 256 : 65536;
	std::vector<uint8_t> data(columns * bytes);
	std::vector<float>   row(columns);
	std::vector<T>       out(columns);
	struct weight_desc   w = {};
	struct stored_cut    cut;
	struct stored_piece  piece;
	struct stored_bytes  from;
	unsigned             different = 0;

	for (uint32_t i = 0; i < columns; i++)
		memcpy(&data[i * bytes], &i, bytes);
	w.name = "w";
	w.format = format;
	w.rows = 1;
	w.columns = columns;
	w.data = data.data();
	w.bytes = data.size();
	expect(stored_plan(&w, data.size(), 1, 8, &cut, NULL) == STATUS_OK, "cut");
	stored_piece_of(&cut, 0, &piece, &from);
	piece.values = data.data();
	expect_runs(emulate((columns / DECODE_PACK + DECODE_THREADS - 1) / DECODE_THREADS, DECODE_THREADS, 0, {},
	    [&] { decode_kernel<T>(piece, out.data(), columns); }));
	weight_read_row(&w, 0, row.data());
	for (uint32_t k = 0; k < columns; k++) {
		float wanted = to_float(from_float<T>(row[k])), got = to_float(out[k]);
		different += memcmp(&wanted, &got, 4) != 0 && !(wanted != wanted && got != got);
	}
	expect(!different, "%s to %s: %u patterns differ", weight_format_name(format), name_of<T>(), different);
}

template <class T> static void all(void)
{
	static const size_t sizes[] = { 1 << 16, 1200, 500 };

	for (unsigned i = 0; i < STORED_CASES; i++) {
		struct stored_matrix m = stored_make(&stored_cases[i], 100 + i);
		struct error         error;

		expect(weight_check(&m.w, &error) == STATUS_OK, "%s", error.message);
		for (size_t bytes : sizes)
			decode<T>(stored_cases[i], m.w, bytes);
		free(m.bytes);
	}
	patterns<T>(WEIGHT_F8_E4M3, 1);
	patterns<T>(WEIGHT_I8, 1);
	patterns<T>(WEIGHT_F16, 2);
	patterns<T>(WEIGHT_BF16, 2);
}

int main(void)
{
	SKIP_UNDER_THREAD_SANITIZER;
	all<float>();
	all<__nv_bfloat16>();
	all<__half>();
	return finish("decode");
}
