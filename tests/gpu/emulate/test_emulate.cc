/* test_emulate.cc: the emulator against plain formulas: conversions, shuffles, fragments of ldmatrix, mma and wgmma, layouts of
 * descriptors and tensor maps; and kernels with one mistake each, which it must find. */
#include "expect.h"

#include <string>

enum { SEEDS = 24 };

/* ---- Conversions ---- */

/* The value of a small float of EXPONENT and FRACTION bits, by its definition. */
static double value_of(uint32_t bits, int exponent_bits, int fraction_bits)
{
	int    bias = (1 << (exponent_bits - 1)) - 1, exponent = (int)(bits >> fraction_bits & ((1u << exponent_bits) - 1));
	double fraction = (double)(bits & ((1u << fraction_bits) - 1)) / (double)(1u << fraction_bits);
	double size = exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);

	return bits >> (exponent_bits + fraction_bits) & 1 ? -size : size;
}

/* RESULT is the nearest to X of finite values, an even one if two are. */
static bool is_nearest(float x, uint32_t result, uint32_t largest, int exponent_bits, int fraction_bits)
{
	uint32_t sign = 1u << (exponent_bits + fraction_bits), size = result & (sign - 1);
	double   error = fabs(value_of(result, exponent_bits, fraction_bits) - (double)x);

	if ((result & sign) != (x < 0 ? sign : 0) && x != 0)
		return false;
	for (int step = -1; step <= 1; step += 2) {
		uint32_t other = (uint32_t)((int)size + step) | (result & sign);
		double   its;

		if ((int)size + step < 0 || (uint32_t)((int)size + step) > largest)
			continue;
		its = fabs(value_of(other, exponent_bits, fraction_bits) - (double)x);
		if (its < error || (its == error && (size & 1)))
			return false;
	}
	return true;
}

static void test_conversions(void)
{
	uint64_t random = 1;

	for (uint32_t i = 0; i < 1 << 16; i++) {
		__nv_bfloat16 b = __ushort_as_bfloat16((uint16_t)i);
		__half        h = __ushort_as_half((uint16_t)i);

		if ((i & 0x7f80) != 0x7f80)
			expect((double)__bfloat162float(b) == value_of(i, 8, 7) && __float2bfloat16(__bfloat162float(b)).bits == i, "bf16 %x",
			    i);
		if ((i & 0x7c00) != 0x7c00)
			expect((double)__half2float(h) == value_of(i, 5, 10) && __float2half(__half2float(h)).bits == i, "half %x", i);
		if (i < 256 && (i & 0x7f) != 0x7f) {
			__nv_fp8_e4m3 f;

			f.__x = (uint8_t)i;
			expect((double)(float)f == value_of(i, 4, 3) && __nv_fp8_e4m3((float)f).__x == i, "e4m3 %x", i);
		}
	}
	for (int i = 0; i < 200000; i++) {
		float x = ldexpf((float)(int32_t)random_word(&random) * 0x1p-31f, (int)(random_word(&random) % 48) - 28);

		if (i % 3 == 0) /* halfway between two */
			x = __uint_as_float(__float_as_uint(x) & ~((1u << (i % 9 == 0 ? 19 : i % 9 == 3 ? 15 : 12)) - 1));
		expect(is_nearest(x, __float2bfloat16(x).bits, 0x7f7f, 8, 7), "bf16 of %a", (double)x);
		if (fabsf(x) < 65519)
			expect(is_nearest(x, __float2half(x).bits, 0x7bff, 5, 10), "half of %a", (double)x);
		expect(is_nearest(x, __nv_fp8_e4m3(x).__x, 0x7e, 4, 3), "e4m3 of %a", (double)x);
	}
	expect(__float2half(65519.9f).bits == 0x7bff && __float2half(65520).bits == 0x7c00 && __float2half(-INFINITY).bits == 0xfc00,
	    "the largest halves");
	expect(__float2bfloat16(NAN).bits == 0x7fff && __float2half(NAN).bits == 0x7fff && __nv_fp8_e4m3(NAN).__x == 0x7f, "NaN");
	expect(__byte_perm(0x33221100, 0x77665544, 0x7250) == 0x77225500 && lop3<0xea>(0xf0f0f0f0, 0x000f000f, 0x43004300) ==
	    ((0xf0f0f0f0u & 0x000f000f) | 0x43004300), "__byte_perm, lop3");
}

/* ---- Collectives ---- */

static void test_warps(void)
{
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		expect_runs(emulate(2, 96, 0, { .seed = seed }, [] {
			uint32_t lane = threadIdx.x % 32, half = lane / 16;

			expect(__shfl_xor_sync(~0u, lane, 5) == (lane ^ 5), "xor");
			expect(__shfl_up_sync(~0u, lane, 3) == (lane < 3 ? lane : lane - 3), "up");
			expect(__shfl_down_sync(~0u, lane, 30, 32) == (lane < 2 ? lane + 30 : lane), "down");
			expect(__shfl_sync(~0u, (double)lane, 18, 16) == half * 16 + 2, "by index in halves");
			expect(__ballot_sync(~0u, lane % 3 == 0) == 0x49249249, "ballot");
			expect(__any_sync(~0u, lane == 9) && !__all_sync(~0u, lane != 9), "any, all");
			expect(__match_any_sync(~0u, lane / 8) == 0xffu << lane / 8 * 8, "match");
			expect(__reduce_add_sync(~0u, lane) == 496 && __reduce_max_sync(~0u, -(int)lane) == 0, "reduce");
			if (lane < 16) /* halves of a warp go their own ways */
				expect(__shfl_xor_sync(0xffffu, lane, 1) == (lane ^ 1), "half a warp");
			__syncwarp();
			expect(__syncthreads_count(threadIdx.x < 40) == 40 && __syncthreads_or(threadIdx.x == 77), "counts");
			expect(!__syncthreads_and(threadIdx.x != 77), "and");
		}), seed);
	}
}

/* ---- Fragments, by the formulas of the PTX manual: element number I of a lane ---- */

/* Of a, with K columns of BYTES: four words of 4 / BYTES elements. */
static void place_a(uint32_t lane, uint32_t i, uint32_t bytes, uint32_t *row, uint32_t *column)
{
	uint32_t group = lane >> 2, quad = lane % 4;

	if (bytes == 2) {
		*row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
		*column = quad * 2 + (i & 1) + (i >= 4 ? 8 : 0);
	} else {
		*row = i < 4 || (i >= 8 && i < 12) ? group : group + 8;
		*column = quad * 4 + (i & 3) + (i >= 8 ? 16 : 0);
	}
}

static void place_b(uint32_t lane, uint32_t i, uint32_t bytes, uint32_t *row, uint32_t *column)
{
	*column = lane >> 2;
	*row = bytes == 2 ? lane % 4 * 2 + (i & 1) + (i >= 2 ? 8 : 0) : lane % 4 * 4 + (i & 3) + (i >= 4 ? 16 : 0);
}

/* Of d of wgmma, or with one group of eight columns of mma. */
static void place_d(uint32_t thread, uint32_t i, uint32_t *row, uint32_t *column)
{
	*row = thread / 32 % 4 * 16 + thread % 32 / 4 + (i & 2 ? 8 : 0);
	*column = i / 4 * 8 + thread % 4 * 2 + (i & 1);
}

template <class T> static T small_value(uint64_t *random);
template <> __nv_bfloat16 small_value(uint64_t *random) { return __float2bfloat16(random_value(random)); }
template <> __half small_value(uint64_t *random) { return __float2half(random_value(random)); }
template <> __nv_fp8_e4m3 small_value(uint64_t *random) { return __nv_fp8_e4m3(random_value(random)); }
template <> int8_t small_value(uint64_t *random) { return (int8_t)random_word(random); }
static double number(__nv_bfloat16 x) { return (double)__bfloat162float(x); }
static double number(__half x) { return (double)__half2float(x); }
static double number(__nv_fp8_e4m3 x) { return (double)(float)x; }
static double number(int8_t x) { return x; }

static void run_mma(float *c, const uint32_t *a, const uint32_t *b, __nv_bfloat16) { mma_m16n8k16<__nv_bfloat16>(c, a, b); }
static void run_mma(float *c, const uint32_t *a, const uint32_t *b, __half) { mma_m16n8k16<__half>(c, a, b); }
static void run_mma(float *c, const uint32_t *a, const uint32_t *b, __nv_fp8_e4m3) { mma_m16n8k32_e4m3(c, a, b); }
static void run_mma(int32_t *c, const uint32_t *a, const uint32_t *b, int8_t) { mma_m16n8k32_s8(c, a, b); }

template <class T> static void test_mma(void)
{
	enum { K = 32 / sizeof(T) };
	uint64_t random = 3;
	T        a[16][K], b[K][8];

	for (int k = 0; k < K; k++) {
		for (int i = 0; i < 16; i++)
			a[i][k] = small_value<T>(&random);
		for (int i = 0; i < 8; i++)
			b[k][i] = small_value<T>(&random);
	}
	expect_runs(emulate(1, 32, 0, { .seed = 5 }, [&] {
		typename wgmma_sum<T>::type c[4] = { 1, 2, 3, 4 };
		union {
			T        v[4 * 4 / sizeof(T)];
			uint32_t words[4];
		} left, right;
		uint32_t row, column;

		for (uint32_t i = 0; i < 16 / sizeof(T); i++) {
			place_a(threadIdx.x, i, sizeof(T), &row, &column);
			left.v[i] = a[row][column];
		}
		for (uint32_t i = 0; i < 8 / sizeof(T); i++) {
			place_b(threadIdx.x, i, sizeof(T), &row, &column);
			right.v[i] = b[row][column];
		}
		run_mma(c, left.words, right.words, T());
		for (uint32_t i = 0; i < 4; i++) {
			double sum = i + 1;

			place_d(threadIdx.x, i, &row, &column);
			for (int k = 0; k < K; k++)
				sum += number(a[row][k]) * number(b[k][column]);
			expect(is_close((double)c[i], sum, 0, 1e-6), "mma of %zu bytes: [%u][%u] is %g, not %g", sizeof(T), row, column,
			    (double)c[i], sum);
		}
	}));
}

static void test_ldmatrix(void)
{
	expect_runs(emulate(1, 32, 4096, { .seed = 2 }, [] {
		uint32_t  lane = threadIdx.x, r[4], place = lane * 5 % 32; /* rows lie in some order */
		uint16_t *at = (uint16_t *)shared_memory() + place * 16;

		for (uint32_t i = 0; i < 8; i++)
			at[i] = (uint16_t)(lane / 8 * 1000 + lane % 8 * 10 + i); /* matrix, row, column */
		__syncwarp();
		ldmatrix_x4(r, at);
		for (uint32_t m = 0; m < 4; m++)
			for (uint32_t h = 0; h < 2; h++)
				expect((r[m] >> 16 * h & 0xffff) == m * 1000 + lane / 4 * 10 + lane % 4 * 2 + h, "ldmatrix");
		ldmatrix_x4_trans(r, at);
		for (uint32_t m = 0; m < 4; m++)
			for (uint32_t h = 0; h < 2; h++)
				expect((r[m] >> 16 * h & 0xffff) == m * 1000 + (lane % 4 * 2 + h) * 10 + lane / 4, "ldmatrix transposed");
		for (uint32_t m = 0; m < 4; m++)
			r[m] += 0x00070007;
		stmatrix_x4_trans(shared_address(at), r);
		__syncwarp();
		for (uint32_t i = 0; i < 8; i++)
			expect(at[i] == lane / 8 * 1000 + lane % 8 * 10 + i + 7, "stmatrix transposed");
	}));
}

/* ---- wgmma ---- */

enum layout { K_PLAIN, K_128, K_64, K_32, MN_PLAIN, MN_128, MN_64, MN_32 };

static enum swizzle swizzle_of(enum layout layout)
{
	static const enum swizzle modes[] = { SWIZZLE_NONE, SWIZZLE_128, SWIZZLE_64, SWIZZLE_32 };
	return modes[layout % 4];
}

/* A tile of ROWS × K elements of BYTES (of b: columns × K): where one lies, as the chunks of the manual's figures: of 16 bytes,
 * in rows of SPAN, eight rows a pattern, chunk numbers xored with the row's number in units of 128 bytes. */
static uint32_t place(enum layout layout, uint32_t bytes, uint32_t rows, uint32_t row, uint32_t k)
{
	uint32_t chunks = layout % 4 == 1 ? 8 : layout % 4 == 2 ? 4 : layout % 4 == 3 ? 2 : 1; /* of a line of the pattern */
	uint32_t major = (layout < MN_PLAIN ? k : row) * bytes, line = layout < MN_PLAIN ? row : k, chunk = major / 16, patterns, at;

	if (chunks == 1) /* 8 lines of one chunk together; patterns of neighbours along lines follow each other */
		return ((layout < MN_PLAIN ? chunk * (rows / 8) + line / 8 : line / 8 * (rows * bytes / 16) + chunk) * 8 + line % 8) * 16 +
		    major % 16;
	/* Patterns [8 lines][chunks], those along lines first. */
	patterns = layout < MN_PLAIN ? rows / 8 : 32 / bytes / 8;
	at = ((chunk / chunks * patterns + line / 8) * 8 + line % 8) * chunks * 16;
	return at + ((chunk % chunks ^ at / 128 % chunks) * 16 + major % 16);
}

static uint64_t descriptor(enum layout layout, const char *smem, uint32_t bytes, uint32_t rows)
{
	uint32_t span = layout % 4 == 1 ? 128 : layout % 4 == 2 ? 64 : 32;

	if (layout == K_PLAIN)
		return wgmma_descriptor(smem, rows * 16, 128, SWIZZLE_NONE);
	if (layout == MN_PLAIN)
		return wgmma_descriptor(smem, rows * bytes / 16 * 128, 128, SWIZZLE_NONE);
	if (layout < MN_PLAIN)
		return wgmma_descriptor(smem, 16, 8 * span, swizzle_of(layout));
	return wgmma_descriptor(smem, 2 * 8 * span, 8 * span, swizzle_of(layout));
}

/* Two products into one accumulator, the second with other tiles; by both ways of a. */
template <class T, int N, layout A, layout B> static void test_wgmma(uint64_t seed)
{
	enum { K = 32 / sizeof(T), TILE = 32768 };
	uint64_t       random = 100 + seed;
	std::vector<T> a(2 * 64 * K), b(2 * N * K);

	for (T &x : a)
		x = small_value<T>(&random);
	for (T &x : b)
		x = small_value<T>(&random);
	expect_runs(emulate(1, 256, 4 * TILE, { .seed = seed }, [&] {
		char    *s = shared_memory();
		typename wgmma_sum<T>::type acc[N / 2], other[N / 2];
		uint32_t group = threadIdx.x / 128, words[4], row, column;

		for (uint32_t t = 0; t < 2; t++) {
			for (uint32_t i = threadIdx.x; i < 64 * K; i += 256)
				*(T *)(s + t * TILE + place(A, sizeof(T), 64, i / K, i % K)) = a[t * 64 * K + i];
			for (uint32_t i = threadIdx.x; i < N * K; i += 256)
				*(T *)(s + (2 + t) * TILE + place(B, sizeof(T), N, i / K, i % K)) = b[t * N * K + i];
		}
		fence_async_proxy();
		__syncthreads();
		for (int i = 0; i < N / 2; i++)
			acc[i] = other[i] = 7;
		wgmma_fence();
		wgmma_ss<T, N, A >= MN_PLAIN, B >= MN_PLAIN>(acc, descriptor(A, s, sizeof(T), 64),
		    descriptor(B, s + 2 * TILE, sizeof(T), N), 0);
		wgmma_ss<T, N, A >= MN_PLAIN, B >= MN_PLAIN>(acc, descriptor(A, s + TILE, sizeof(T), 64),
		    descriptor(B, s + 3 * TILE, sizeof(T), N), 1);
		wgmma_commit();
		for (uint32_t i = 0; i < 16 / sizeof(T); i++) {
			place_a(threadIdx.x % 32, i, sizeof(T), &row, &column);
			memcpy((char *)words + i * sizeof(T), &a[(threadIdx.x / 32 % 4 * 16 + row) * K + column], sizeof(T));
		}
		wgmma_rs<T, N, B >= MN_PLAIN>(other, words, descriptor(B, s + (2 + group) * TILE, sizeof(T), N), 1);
		wgmma_commit();
		wgmma_wait<1>();
		wgmma_settle(acc);
		for (uint32_t i = 0; i < N / 2; i++) {
			double sum = 0;

			place_d(threadIdx.x, i, &row, &column);
			for (int k = 0; k < 2 * K; k++)
				sum += number(a[k / K * 64 * K + row * K + k % K]) * number(b[k / K * N * K + column * K + k % K]);
			expect(is_close((double)acc[i], sum, 1e-5, 1e-5), "wgmma %zu bytes N %d layouts %d %d: [%u][%u] is %g, not %g",
			    sizeof(T), N, A, B, row, column, (double)acc[i], sum);
		}
		wgmma_wait<0>();
		wgmma_settle(other);
		for (uint32_t i = 0; i < N / 2; i++) {
			double sum = 7;

			place_d(threadIdx.x, i, &row, &column);
			for (int k = 0; k < K; k++)
				sum += number(a[row * K + k]) * number(b[group * N * K + column * K + k]);
			expect(is_close((double)other[i], sum, 1e-5, 1e-5), "wgmma from registers, %zu bytes N %d layout %d", sizeof(T), N, B);
		}
	}), seed);
}

static void test_wgmmas(void)
{
	for (uint64_t seed = 0; seed < 4; seed++) {
		test_wgmma<__nv_bfloat16, 8, K_PLAIN, K_PLAIN>(seed);
		test_wgmma<__nv_bfloat16, 64, K_128, K_128>(seed);
		test_wgmma<__half, 32, K_64, K_32>(seed);
		test_wgmma<__nv_fp8_e4m3, 16, K_128, K_PLAIN>(seed);
		test_wgmma<int8_t, 64, K_PLAIN, K_128>(seed);
	}
	test_wgmma<__nv_bfloat16, 16, K_PLAIN, MN_PLAIN>(4);
	test_wgmma<__nv_bfloat16, 128, MN_128, MN_128>(5);
	test_wgmma<__half, 256, K_128, MN_128>(6);
	test_wgmma<__nv_bfloat16, 64, MN_PLAIN, MN_64>(7);
	test_wgmma<__half, 32, MN_32, MN_32>(8);
	test_wgmma<__nv_bfloat16, 256, K_32, K_64>(9);
	test_wgmma<__nv_fp8_e4m3, 128, K_64, K_32>(10);
	test_wgmma<int8_t, 8, K_32, K_64>(11);
}

/* ---- Tensor maps ---- */

static void test_tensors(void)
{
	enum { X = 40, Y = 9, Z = 3, PITCH = 48 };
	alignas(16) static uint16_t data[Z][Y][PITCH];
	static const enum swizzle modes[] = { SWIZZLE_NONE, SWIZZLE_128, SWIZZLE_64, SWIZZLE_32 };
	static const uint32_t     widths[] = { 24, 64, 32, 16 };
	struct tensor_layout layout = { TENSOR_BF16, 3, data, { X, Y, Z }, { 0, PITCH * 2, Y * PITCH * 2 }, { 0, 16, 1 },
		SWIZZLE_NONE };
	tensor_map map;

	for (int z = 0; z < Z; z++)
		for (int y = 0; y < Y; y++)
			for (int x = 0; x < PITCH; x++)
				data[z][y][x] = (uint16_t)(1 + z * 10000 + y * 100 + x);
	for (int mode = 0; mode < 4; mode++) {
		layout.swizzle = modes[mode];
		layout.box[0] = widths[mode];
		expect(tensor_map_encode(&layout, &map) == 0, "encoding");
		expect_runs(emulate(1, 64, 8192, { .seed = (uint64_t)mode + 1 }, [&, map] {
			mbarrier *b = (mbarrier *)(shared_memory() + 8184);
			uint32_t  bytes = widths[mode] * 16 * 2;

			if (threadIdx.x == 0) {
				barrier_init(b, 1);
				barrier_expect(b, 2 * bytes);
				tma_load_3d(shared_memory(), &map, 20, -3, 1, b);
				tma_load_3d(shared_memory() + 4096, &map, -5, 4, 2, b);
			}
			__syncthreads();
			barrier_wait(b, 0);
			for (uint32_t t = 0; t < 2; t++)
				for (uint32_t i = threadIdx.x; i < widths[mode] * 16; i += 64) {
					int32_t  x = (int32_t)(i % widths[mode]) + (t ? -5 : 20), y = (int32_t)(i / widths[mode]) + (t ? 4 : -3);
					uint32_t line = i / widths[mode], at = i * 2;
					uint16_t want = x >= 0 && x < X && y >= 0 && y < Y ? data[1 + t][y][x] : 0;

					if (mode == 1)
						at = line * 128 + ((i % 64 / 8) ^ (line % 8)) * 16 + i % 8 * 2;
					else if (mode == 2)
						at = line * 64 + ((i % 32 / 8) ^ (line / 2 % 4)) * 16 + i % 8 * 2;
					else if (mode == 3)
						at = line * 32 + ((i % 16 / 8) ^ (line / 4 % 2)) * 16 + i % 8 * 2;
					expect(*(uint16_t *)(shared_memory() + 4096 * t + at) == want, "box in swizzle %d at %d, %d", mode, x, y);
				}
		}), mode);
	}
	layout.box[0] = 65;
	layout.swizzle = SWIZZLE_128;
	expect(tensor_map_encode(&layout, &map) != 0, "a row of 130 bytes");
	layout.box[0] = 64;
	layout.strides[1] = 90;
	expect(tensor_map_encode(&layout, &map) != 0, "a stride of 90 bytes");
}

/* ---- A ring, whole and with mistakes ---- */

enum mistake { NONE, NO_FULL_WAIT, NO_EMPTY_WAIT, WRONG_PARITY, SKIPPED_PHASES, NO_ARRIVAL, TWO_ARRIVALS, FEWER_BYTES };
enum { RING = 3, PIECES = 17, PIECE = 512 };

/* One warp copies pieces, two warps sum their words: all of them, each its half of every piece. */
static void ring_kernel(const uint32_t *data, uint32_t *sums, enum mistake mistake)
{
	char     *s = shared_memory();
	mbarrier *full = (mbarrier *)(s + RING * PIECE), *empty = full + RING;
	uint32_t  warp = threadIdx.x / 32, lane = threadIdx.x % 32, sum = 0;

	if (threadIdx.x == 0) {
		for (int i = 0; i < RING; i++) {
			barrier_init(full + i, 1);
			barrier_init(empty + i, mistake == SKIPPED_PHASES ? 1 : 2);
		}
		fence_barrier_init();
	}
	__syncthreads();
	if (warp == 2) {
		for (uint32_t i = 0; lane == 0 && i < PIECES; i++) {
			if (i >= RING && mistake != NO_EMPTY_WAIT)
				barrier_wait(empty + i % RING, (i / RING & 1) ^ 1);
			barrier_expect(full + i % RING, mistake == FEWER_BYTES && i == 5 ? PIECE - 16 : PIECE);
			bulk_copy(s + i % RING * PIECE, data + i * PIECE / 4, PIECE, full + i % RING);
		}
		return;
	}
	for (uint32_t i = 0; i < PIECES; i++) {
		const uint32_t *piece = (const uint32_t *)(s + i % RING * PIECE);

		if (mistake == SKIPPED_PHASES && i % 2 != warp) /* a piece a warp: it does not see every phase */
			continue;
		if (mistake != NO_FULL_WAIT)
			barrier_wait(full + i % RING, (i / RING & 1) ^ (mistake == WRONG_PARITY));
		for (uint32_t k = lane; k < PIECE / 4; k += 32)
			sum += mistake == SKIPPED_PHASES || k / 64 == warp ? piece[k] : 0;
		__syncwarp();
		if (lane == 0 && !(mistake == NO_ARRIVAL && i == 8 && warp == 0))
			barrier_arrive(empty + i % RING);
		if (lane == 0 && mistake == TWO_ARRIVALS && i % 4 == 1)
			barrier_arrive(empty + i % RING);
	}
	atomicAdd(sums, sum);
}

/* Runs with each seed: how many found something, and whether words came with it. */
static uint32_t run_ring(enum mistake mistake, std::string *ret_words)
{
	alignas(16) static uint32_t data[PIECES * PIECE / 4];
	uint32_t found = 0, want = 0;
	uint64_t random = 9;

	for (uint32_t &x : data)
		want += x = random_word(&random);
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		uint32_t    sum = 0;
		const char *error = emulate(1, 96, RING * PIECE + 2 * RING * 8, { .seed = seed },
		    [&] { ring_kernel(data, &sum, mistake); });

		found += error || sum != want;
		if (error)
			*ret_words = error;
	}
	return found;
}

static bool has(const std::string &words, const char *part) { return words.find(part) != std::string::npos; }

static void test_ring(void)
{
	std::string words;

	expect(run_ring(NONE, &words) == 0, "a ring without mistakes: %s", words.c_str());
	expect(run_ring(NO_FULL_WAIT, &words) == SEEDS, "no wait for data");
	expect(run_ring(NO_EMPTY_WAIT, &words) >= SEEDS / 2, "no wait for room");
	expect(run_ring(WRONG_PARITY, &words) == SEEDS, "parity turned round");
	expect(run_ring(SKIPPED_PHASES, &words) >= SEEDS / 2 && has(words, "a parity tells only two apart"), "phases left out: %s",
	    words.c_str());
	expect(run_ring(NO_ARRIVAL, &words) == SEEDS && has(words, "deadlock") && has(words, "threads 64 to 64 wait for parity") &&
	    has(words, "lacks 1 arrivals and 0 bytes"), "an arrival missing: %s", words.c_str());
	expect(run_ring(TWO_ARRIVALS, &words) >= SEEDS / 2, "an arrival too many");
	expect(run_ring(FEWER_BYTES, &words) == SEEDS && has(words, "deadlock"), "other bytes than expected: %s", words.c_str());
}

/* ---- Other mistakes ---- */

/* BODY by 128 threads with 4 KiB must be found with WORDS, by all seeds or LEAST of them. */
template <class F> static void expect_found(const char *words, F body, int least = SEEDS)
{
	std::string other = "no error";
	int         found = 0;

	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		const char *error = emulate(1, 128, 4096, { .seed = seed }, body);

		if (error && strstr(error, words))
			found++;
		else if (error)
			other = error;
	}
	expect(found >= least, "'%s' was found by %d seeds of %d; another said: %s", words, found, SEEDS, other.c_str());
}

static void product(char *s, float *acc) /* of tiles of zeroes */
{
	wgmma_ss<__nv_bfloat16, 8>(acc, wgmma_descriptor(s, 1024, 128, SWIZZLE_NONE),
	    wgmma_descriptor(s + 2048, 128, 128, SWIZZLE_NONE), 1);
}

static void clear(void)
{
	for (uint32_t i = threadIdx.x; i < 1024; i += 128)
		((uint32_t *)shared_memory())[i] = 0;
}

static void test_wgmma_mistakes(void)
{
	expect_found("without fence_async_proxy", [] {
		float acc[4] = {};

		clear();
		__syncthreads();
		wgmma_fence();
		product(shared_memory(), acc);
		wgmma_commit();
		wgmma_wait<0>();
	});
	expect_found("without wgmma_fence", [] {
		float acc[4] = {};

		clear();
		fence_async_proxy();
		__syncthreads();
		product(shared_memory(), acc);
	});
	expect_found("in flight", [] {
		float acc[4] = {};

		clear();
		fence_async_proxy();
		__syncthreads();
		wgmma_fence();
		product(shared_memory(), acc);
		wgmma_commit();
		wgmma_settle(acc);
		wgmma_wait<0>();
	});
	expect_found("were written before the wait", [] {
		float acc[4] = {};

		clear();
		fence_async_proxy();
		__syncthreads();
		wgmma_fence();
		product(shared_memory(), acc);
		wgmma_commit();
		acc[1] = 1;
		wgmma_wait<0>();
	});
	expect_found("ends while wgmma is in flight", [] {
		float acc[4] = {};

		clear();
		fence_async_proxy();
		__syncthreads();
		wgmma_fence();
		product(shared_memory(), acc);
		wgmma_wait<0>(); /* nothing was committed */
	});
	expect_found("differs from that of another warp", [] {
		float acc[4] = {};

		clear();
		fence_async_proxy();
		__syncthreads();
		wgmma_fence();
		product(shared_memory() + (threadIdx.x < 32 ? 16 : 0), acc);
		wgmma_commit();
		wgmma_wait<0>();
	});
	for (uint64_t seed = 0; seed < SEEDS; seed++) /* before the wait sums are NaN */
		expect_runs(emulate(1, 128, 4096, { .seed = seed }, [] {
			float acc[4] = {};

			clear();
			fence_async_proxy();
			__syncthreads();
			wgmma_fence();
			product(shared_memory(), acc);
			wgmma_commit();
			expect(acc[0] != acc[0], "a sum that can be read before the wait");
			wgmma_wait<0>();
			expect(acc[0] == 0, "a sum that cannot be read after the wait");
		}));
}

static void test_mistakes(void)
{
	alignas(16) static char data[4096];

	expect_found("names lanes 00000001, which have ended", [] {
		if (threadIdx.x % 32 == 0)
			return;
		__syncthreads_count(1);
		__shfl_xor_sync(~0u, 1, 1);
	});
	expect_found("takes no part", [] {
		if (threadIdx.x < 16)
			__shfl_sync(0xffff, 1, 20);
	});
	expect_found("does not name the lane itself", [] { __ballot_sync(0x0000ffff, 1); });
	expect_found("but lane", [] {
		if (threadIdx.x % 2)
			__ballot_sync(~0u, 1);
		else
			__shfl_xor_sync(~0u, 1, 1);
	});
	expect_found("deadlock", [] {
		if (threadIdx.x < 32)
			named_barrier_sync(1, 64);
	});
	expect_found("a warp comes whole", [] {
		named_barrier_sync(threadIdx.x % 32 < 16 ? 1 : 2, 64);
	});
	expect_found("others are there for one of", [] { named_barrier_sync(1, threadIdx.x < 96 ? 128 : 64); });
#if !defined(__SANITIZE_ADDRESS__) /* which ends the program there */
	expect_found("beyond its end: 4", [] { ((volatile char *)shared_memory())[4096 + 4] = 1; });
#endif
	expect_found("was not begun", [] { barrier_wait((mbarrier *)shared_memory(), 0); });
	expect_found("was overwritten", [] {
		mbarrier *b = (mbarrier *)shared_memory();

		if (threadIdx.x == 0)
			barrier_init(b, 128);
		__syncthreads();
		if (threadIdx.x == 127)
			memset(shared_memory(), 0, 16);
		__syncthreads();
		barrier_arrive(b);
	});
	expect_found("has its 2 arrivals, and waits for 16 bytes", [] {
		mbarrier *b = (mbarrier *)shared_memory();

		if (threadIdx.x == 0) {
			barrier_init(b, 2);
			barrier_expect_more(b, 16);
			for (int i = 0; i < 3; i++)
				barrier_arrive(b);
		}
	});
	expect_found("multiples of 16", [] {
		mbarrier *b = (mbarrier *)shared_memory();

		if (threadIdx.x == 0) {
			barrier_init(b, 1);
			bulk_copy(shared_memory() + 64, data + 8, 32, b);
		}
	});
	expect_found("is not a multiple of 16", [] { cp_async_16(shared_memory() + 8, data, 16); });
	expect_found("but shared memory has 4096", [] { cp_async_16(shared_memory() + 4096, data, 16); });
	expect_found("on their way", [] {
		mbarrier *b = (mbarrier *)shared_memory();

		if (threadIdx.x == 0) {
			barrier_init(b, 1);
			barrier_expect(b, 32);
			bulk_copy(shared_memory() + 64, data, 32, b);
		}
	}, SEEDS / 2);
	expect_found("written without fence_async_proxy", [] {
		if (threadIdx.x == 0) {
			memset(shared_memory(), 1, 32);
			bulk_store(data, shared_memory(), 32);
			bulk_store_commit();
			bulk_store_wait<0>();
		}
	});
}

/* A cp.async that is not waited for must be seen by some seeds; with its wait by none.  So must a missing __syncwarp. */
static void test_small_copies(void)
{
	alignas(16) static uint32_t data[512];
	uint32_t wrong[3] = {};

	for (uint32_t i = 0; i < 512; i++)
		data[i] = i + 1;
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		for (int kind = 0; kind < 3; kind++) {
			bool bad = false;

			expect_runs(emulate(1, 128, 4096, { .seed = seed }, [&] {
				uint32_t *s = (uint32_t *)shared_memory(), t = threadIdx.x;

				cp_async_16(s + t * 4, data + t * 4, 12);
				cp_async_commit();
				cp_async_16(s + 512 + t * 4, data + t * 4, 0);
				cp_async_commit();
				if (kind == 1)
					cp_async_wait<2>();
				else
					cp_async_wait<1>();
				if (kind == 2)
					__syncwarp(1u << t % 32);
				else
					__syncthreads();
				t ^= 1;
				bad = bad || s[t * 4] != t * 4 + 1 || s[t * 4 + 3] != 0;
				cp_async_wait<0>();
				t ^= 1;
				bad = bad || s[512 + t * 4] != 0;
			}));
			wrong[kind] += bad;
		}
	}
	expect(wrong[0] == 0, "cp.async with its wait went wrong %u times", wrong[0]);
	expect(wrong[1] == SEEDS, "cp.async without its wait was right %u times", SEEDS - wrong[1]);
	expect(wrong[2] >= SEEDS / 2, "a neighbour's words without a barrier were right %u times", SEEDS - wrong[2]);
}

static void test_stores(void)
{
	alignas(16) static uint32_t data[64];

	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		memset(data, 0, sizeof data);
		expect_runs(emulate(3, 64, 4096, { .seed = seed }, [&] {
			uint32_t *s = (uint32_t *)shared_memory();

			s[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
			fence_async_proxy();
			__syncthreads();
			if (threadIdx.x == 0 && blockIdx.x == 2) {
				bulk_store(data, s, 256);
				bulk_store_commit();
				bulk_store_wait<0>();
				expect(data[63] == 263, "a store that was waited for");
			}
		}));
	}
}

/* Boxes that leave the tensor at its end and at its beginning: what lies in it is written, nothing else. */
static void test_box_stores(void)
{
	enum { X = 40, Y = 9, PITCH = 48, BOX_X = 64, BOX_Y = 8 };
	alignas(16) static uint16_t data[Y][PITCH];
	static const int32_t at[2][2] = { { 20, 4 }, { -30, -3 } };
	struct tensor_layout layout = { TENSOR_BF16, 2, data, { X, Y }, { 0, PITCH * 2 }, { BOX_X, BOX_Y }, SWIZZLE_128 };
	tensor_map map;

	expect(tensor_map_encode(&layout, &map) == 0, "encoding");
	for (uint64_t seed = 0; seed < SEEDS; seed++)
		for (int which = 0; which < 2; which++) {
			memset(data, 0, sizeof data);
			expect_runs(emulate(1, 64, 4096, { .seed = seed }, [&, map] {
				for (uint32_t i = threadIdx.x; i < BOX_X * BOX_Y; i += 64) {
					uint32_t line = i / BOX_X;

					*(uint16_t *)(shared_memory() + line * 128 + ((i % 64 / 8) ^ line) * 16 + i % 8 * 2) = (uint16_t)(i + 1);
				}
				fence_async_proxy();
				__syncthreads();
				if (threadIdx.x == 0) {
					tma_store_2d(&map, at[which][0], at[which][1], shared_memory());
					bulk_store_commit();
					bulk_store_wait<0>();
				}
			}));
			for (int y = 0; y < Y; y++)
				for (int x = 0; x < PITCH; x++) {
					int      u = x - at[which][0], v = y - at[which][1];
					uint16_t want = (uint16_t)(x < X && u >= 0 && u < BOX_X && v >= 0 && v < BOX_Y ? v * BOX_X + u + 1 : 0);

					expect(data[y][x] == want, "a stored box at %d, %d: %u, not %u", x, y, data[y][x], want);
				}
		}
}

/* What kernels before this one wrote, read and written in time and too early: by threads, by copies. */
static void test_dependency(void)
{
	alignas(16) static uint32_t x[128], y[128];
	uint32_t found[5] = {};

	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		for (int kind = 0; kind < 5; kind++) {
			const char *error;
			bool        right = true;

			for (uint32_t i = 0; i < 128; i++)
				x[i] = i;
			error = emulate(2, 128, 4096, { .seed = seed, .before = { { x, sizeof x }, { y, sizeof y } } }, [&] {
				mbarrier *b = (mbarrier *)(shared_memory() + 2048);
				uint32_t  t = threadIdx.x, early = x[t];

				if (t == 0) {
					barrier_init(b, 1);
					barrier_expect(b, sizeof x);
					if (kind == 1)
						bulk_copy(shared_memory(), x, sizeof x, b);
				}
				if (kind == 2)
					cp_async_16(shared_memory() + t * 16, x + t / 4 * 4, 16);
				if (kind == 3)
					y[t] = 1;
				dependency_wait();
				if (t == 0 && kind != 1)
					bulk_copy(shared_memory(), x, sizeof x, b);
				cp_async_commit();
				__syncthreads();
				barrier_wait(b, 0);
				cp_async_wait<0>();
				__syncthreads();
				if (kind == 2)
					early = ((uint32_t *)shared_memory())[t * 4 + t % 4];
				right = right && (kind == 2 || kind == 4 ? early : ((uint32_t *)shared_memory())[t]) == t && x[t] == t;
				y[t] = t;
			});
			found[kind] += error || !right || y[9] != 9;
		}
	}
	expect(found[0] == 0, "reads after dependency_wait went wrong %u times", found[0]);
	for (int kind = 1; kind < 5; kind++)
		expect(found[kind] >= SEEDS * 3 / 4, "too early, kind %d: found %u times of %d", kind, found[kind], SEEDS);
}

int main(void)
{
	SKIP_UNDER_THREAD_SANITIZER;
	test_conversions();
	test_warps();
	test_ldmatrix();
	test_mma<__nv_bfloat16>();
	test_mma<__half>();
	test_mma<__nv_fp8_e4m3>();
	test_mma<int8_t>();
	test_wgmmas();
	test_tensors();
	test_ring();
	test_wgmma_mistakes();
	test_mistakes();
	test_small_copies();
	test_stores();
	test_box_stores();
	test_dependency();
	return finish("emulator");
}
