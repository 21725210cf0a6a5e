/* fmt_int4_folded.cuh: products of slabs with so many rows that arithmetic takes the time: wgmma, whose first operand,
 * rows of the weight, is decoded into registers as int4_decode and octet_decode do, scale and rounding included.
 *
 * A sum is one chain over ascending columns, sixteen at a time, of weights rounded to T: the bits of decoding the slab and
 * multiplying by a kernel that does not divide the columns, as cuBLASLt's that linear.cu allows, which tests/gpu/invariance
 * checks.  So a step may take one or the other.
 *
 * A block takes tiles of 64 · GROUPS rows of the weight and TOKENS rows of the input, one after the other.  GROUPS warpgroups
 * multiply; one more gives up its registers: a warp of it copies weights, a lane what lies together, and a thread of another one
 * inputs, each into a ring of its own, also for the next tile while results are written.
 *
 * Uneven tiles.  Where tiles of 64 · (GROUPS − 1) leave few rows of the weight once every multiprocessor has one, a second round
 * would take as long as the first.  Then the last warpgroup multiplies 64 of these by NARROW rows of the input, beside the others,
 * and blocks have one tile each.
 *
 * On an H200 neither memory nor L2 is what takes the time (copies alone take a third of it), but what a multiplying warp executes,
 * which wgmma covers badly: so sixteen columns are decoded while the sixteen before are multiplied; scales are computed a unit
 * ahead; and addresses of inputs are in uniform registers. */
#ifndef PENSTOCK_GPU_FMT_INT4_FOLDED_CUH
#define PENSTOCK_GPU_FMT_INT4_FOLDED_CUH

#include "gpu/fmt_int4.cuh"
#include "gpu/ring.cuh"

/* Size of a tile of the product.  NARROW: rows of the input that the last warpgroup multiplies, 0 for all of them. */
struct int4_tiling {
	uint32_t tokens, groups, narrow;
};
__host__ __device__ static constexpr uint32_t int4_tiling_tiles(const struct int4_tiling &s) { return 4 * s.groups; }
static inline uint32_t int4_folded_threads(const struct int4_tiling &s) { return (s.groups + 1) * 128; }

/* Registers of a thread that copies, and of one that multiplies, out of those that the kernel is launched with. */
enum { INT4_COPY_REGISTERS = 32 };
__host__ __device__ static constexpr int int4_folded_registers(int groups)
{
	const int each = 65536 / ((groups + 1) * 128) / 8 * 8;
	const int most = (each * (groups + 1) - INT4_COPY_REGISTERS) / groups / 8 * 8;

	return most < 240 ? most : 240;
}
/* The same beside a warpgroup that multiplies few rows, and of that one. */
enum { INT4_NARROW_REGISTERS = 88 };
__host__ __device__ static constexpr int int4_folded_wide_registers(int groups)
{
	const int each = 65536 / ((groups + 1) * 128) / 8 * 8;

	return (each * (groups + 1) - INT4_COPY_REGISTERS - INT4_NARROW_REGISTERS) / (groups - 1) / 8 * 8;
}

/* Tiles of the product.  Those that share weights follow each other. */
__host__ __device__ static inline uint32_t int4_folded_across(const struct int4_task &t, uint32_t tokens)
{
	return (t.rows + tokens - 1) / tokens;
}
__host__ __device__ static inline uint32_t int4_folded_count(const struct int4_task &t, uint32_t tokens, uint32_t tiles)
{
	return int4_folded_across(t, tokens) * ((int4_tiles(t.w) + tiles - 1) / tiles);
}
/* Blocks that take a tile each, of which the last warpgroup's is one of NARROW rows of the input: so few that the others leave no
 * more tiles than it can take. */
static inline uint32_t int4_narrow_blocks(uint32_t tiles, const struct int4_tiling &s)
{
	const uint32_t parts = s.tokens / s.narrow, high = (tiles + 3) / 4;

	return (parts * high + parts * (s.groups - 1)) / (parts * (s.groups - 1) + 1);
}
static inline dim3 int4_folded_grid(const struct int4_task *t, const struct int4_tiling &s, uint32_t multiprocessors)
{
	if (s.narrow)
		return dim3(int4_narrow_blocks(int4_tiles(t->w), s));
	uint32_t count = int4_folded_count(*t, s.tokens, int4_tiling_tiles(s));

	return dim3(count < multiprocessors ? count : multiprocessors);
}

enum {
	INT4_OUT_TOKENS = 32, INT4_OUT_BYTES = INT4_OUT_TOKENS * INT4_TILE * 2, /* that a warp turns at once: 16 outputs of them */
	INT4_WEIGHTS_BYTES = 40 << 10, INT4_WEIGHTS_LEAST = 3, INT4_WEIGHTS_MOST = 8 /* in flight; stages */
};
/* Boxes of 64 columns in a stage of inputs; a unit has two.  Of 256 rows there is room for few stages. */
__host__ __device__ static constexpr uint32_t int4_folded_boxes(uint32_t tokens) { return tokens > 128 ? 1 : 2; }

/* Shared memory: `stages` of inputs, `ahead` stages of a unit of weights, what is turned, barriers.  Returns its size. */
static inline uint32_t int4_folded_size(struct int4_task *t, const struct int4_tiling &s)
{
	const uint32_t barriers = 2 * (uint32_t)sizeof(mbarrier), out = 4 * s.groups * INT4_OUT_BYTES;

	t->split = {};
	t->stage_units = 1;
	t->stages = 0;
	int4_size(t, s.tokens);
	t->input_bytes = int4_folded_boxes(s.tokens) * s.tokens * INT4_BOX * 2;
	t->stage_bytes = int4_tiling_tiles(s) * t->tile_bytes;
	t->ahead = INT4_WEIGHTS_BYTES / t->stage_bytes;
	t->ahead = t->ahead < INT4_WEIGHTS_LEAST ? (uint32_t)INT4_WEIGHTS_LEAST : t->ahead;
	t->ahead = t->ahead < INT4_WEIGHTS_MOST ? t->ahead : (uint32_t)INT4_WEIGHTS_MOST;
	t->stages = (INT4_SHARED_MOST - out - t->ahead * (t->stage_bytes + barriers)) / (t->input_bytes + barriers);
	t->stages = t->stages < INT4_STAGES_MAX ? t->stages : (uint32_t)INT4_STAGES_MAX;
	return t->stages * (t->input_bytes + barriers) + t->ahead * (t->stage_bytes + barriers) + out;
}
/* Where these lie. */
struct int4_folded_room {
	uint8_t  *inputs, *weights, *out;
	mbarrier *inputs_full, *inputs_empty, *weights_full, *weights_empty;
};
__device__ static inline struct int4_folded_room int4_folded_room_of(const struct int4_task &t, uint8_t *shared, uint32_t warps)
{
	struct int4_folded_room room;

	room.inputs = shared;
	room.weights = room.inputs + t.stages * t.input_bytes;
	room.out = room.weights + t.ahead * t.stage_bytes;
	room.inputs_full = (mbarrier *)(room.out + warps * INT4_OUT_BYTES);
	room.inputs_empty = room.inputs_full + t.stages;
	room.weights_full = room.inputs_empty + t.stages;
	room.weights_empty = room.weights_full + t.ahead;
	return room;
}

/* Tiles of the weight that a block takes at a time: TILES from FIRST on; and then, with a narrow last warpgroup, LAST_TILES from
 * LAST on, of which it multiplies rows of the input from TOKEN on.  If there are any, TILES is as many as there can be. */
struct int4_share {
	uint32_t first, tiles, last, last_tiles, token;
};
__device__ static inline uint32_t int4_few(uint32_t all, uint32_t first, uint32_t most)
{
	return first >= all ? 0 : all - first < most ? all - first : most;
}
template <int TOKENS, int GROUPS, int NARROW> __device__ static inline struct int4_share int4_share_of(const struct int4_task &t,
    uint32_t number, uint32_t across)
{
	const uint32_t all = int4_tiles(t.w), most = 4 * (NARROW ? GROUPS - 1 : GROUPS), first = number / across * most;
	struct int4_share part = { first, int4_few(all, first, most), 0, 0, 0 };

	if constexpr (NARROW > 0) {
		part.last = gridDim.x * most + number / (TOKENS / NARROW) * 4;
		part.last_tiles = int4_few(all, part.last, 4);
		part.token = number % (TOKENS / NARROW) * NARROW;
	}
	return part;
}

/* Tiles of the product; with a narrow last warpgroup there is one for each block. */
template <int TOKENS, int GROUPS, int NARROW> __device__ static inline uint32_t int4_folded_tiles_of(const struct int4_task &t)
{
	return NARROW ? gridDim.x : int4_folded_count(t, TOKENS, 4 * GROUPS);
}

/* What a lane, at place AT of TILES from FIRST on, copies of every unit: a run of tiles of one panel, which lie behind each other;
 * of no bytes for most lanes. */
struct int4_run {
	const uint8_t *from;
	uint32_t       unit_bytes, bytes;
};
__device__ static inline struct int4_run int4_run_of(const struct int4_task &t, uint32_t first, uint32_t tiles, uint32_t at)
{
	const uint32_t tile = first + (at < tiles ? at : tiles - 1);
	const uint32_t panel = (uint32_t)((((uint64_t)tile + 1) * t.w.panels - 1) / int4_tiles(t.w));
	const uint32_t begin = int4_panel_first(t.w, panel), lane = threadIdx.x % 32;
	const uint32_t heads = __ballot_sync(~0u, at < tiles && (at == 0 || tile == begin)), later = heads >> 1 >> lane;

	return { t.w.data + ((uint64_t)begin * t.units + (tile - begin)) * t.tile_bytes,
		(int4_panel_first(t.w, panel + 1) - begin) * t.tile_bytes,
		heads >> lane & 1 ? (later ? (uint32_t)__ffs((int)later) : tiles - at) * t.tile_bytes : 0 };
}

/* The warp that copies weights: load-time constants. */
template <int TOKENS, int GROUPS, int NARROW> __device__ static inline void int4_folded_copy_weights(const struct int4_task &t,
    const struct int4_folded_room &room)
{
	constexpr uint32_t WIDE = 4 * (NARROW ? GROUPS - 1 : GROUPS);
	const uint32_t lane = threadIdx.x % 32, across = NARROW ? 1 : int4_folded_across(t, TOKENS);
	const uint32_t count = int4_folded_tiles_of<TOKENS, GROUPS, NARROW>(t);
	const uint64_t again = cache_evict_last();
	struct ring_place at = { 0, 1 };

	for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
		const struct int4_share part = int4_share_of<TOKENS, GROUPS, NARROW>(t, i, across);
		const bool             last = NARROW && lane >= WIDE;
		const struct int4_run  run = int4_run_of(t, last ? part.last : part.first, last ? part.last_tiles : part.tiles, last ?
		    lane - WIDE : lane);

		for (uint32_t unit = 0; unit < t.units; unit++) {
			barrier_wait(&room.weights_empty[at.slot], at.parity);
			if (lane == 0)
				barrier_expect(&room.weights_full[at.slot], (part.tiles + part.last_tiles) * t.tile_bytes);
			__syncwarp();
			if (run.bytes)
				bulk_copy(room.weights + at.slot * t.stage_bytes + lane * t.tile_bytes, run.from + (uint64_t)unit * run.unit_bytes,
				    run.bytes, &room.weights_full[at.slot], again);
			at.advance(t.ahead);
		}
	}
}

/* The thread that copies inputs, once the kernel before is done. */
__device__ static inline void int4_folded_copy_inputs(const struct int4_task &t, const struct int4_folded_room &room,
    const tensor_map *map, uint32_t tokens, uint32_t count)
{
	const uint32_t across = int4_folded_across(t, tokens);
	const uint32_t boxes = int4_folded_boxes(tokens);
	const uint64_t again = cache_evict_last();
	struct ring_place at = { 0, 1 };

	dependency_wait();
	for (uint32_t i = blockIdx.x; i < count; i += gridDim.x)
		for (uint32_t box = 0; box < t.units * (INT4_UNIT / INT4_BOX); box += boxes) {
			barrier_wait(&room.inputs_empty[at.slot], at.parity);
			barrier_expect(&room.inputs_full[at.slot], t.input_bytes);
			for (uint32_t b = 0; b < boxes; b++)
				tma_load_2d(room.inputs + at.slot * t.input_bytes + b * tokens * INT4_BOX * 2, map, (int32_t)((box + b) *
				    INT4_BOX), (int32_t)(i % across * tokens), &room.inputs_full[at.slot], again);
			at.advance(t.stages);
		}
}

/* How a weight is scaled and rounded to T, once; of four bits from an exact integer q − z. */
enum int4_fold {
	INT4_FOLD_SAME,         /* s is a T: a product */
	INT4_FOLD_SPLIT,        /* T is bfloat16, s a half = h + l, both bfloat16: (q − z) · h + (q − z) · l, the last exact */
	INT4_FOLD_OFFSETS,      /* s · q + o in float32, and then rounded */
	INT4_FOLD_EIGHT,        /* codes of eight bits: s · q in float32, and then rounded */
	INT4_FOLD_EIGHT_OFFSETS /* s · q + o */
};
__device__ static inline void int4_pair_of(float low, float high, __nv_bfloat162 *ret) { *ret = __floats2bfloat162_rn(low, high); }
__device__ static inline void int4_pair_of(float low, float high, __half2 *ret) { *ret = __floats2half2_rn(low, high); }

template <class T, enum int4_fold FOLD> struct int4_folder {
	typedef typename int4_type<T>::pair pair;
	static constexpr bool bfloat = int4_type<T>::base == int4_type<__nv_bfloat16>::base;
	static constexpr bool SPREADS = FOLD == INT4_FOLD_SPLIT; /* numbers are as int4_spread makes them, scales the larger */
	uint32_t zero[2];       /* of a lane's two rows, as int4_operand or int4_spread wants them */
	float    s[2], o[2];    /* OFFSETS, EIGHT */
	pair     high[2], low[2]; /* else */

	__device__ void set(const float scales[2], const float offsets[2])
	{
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const float scale = SPREADS ? scales[i] * (i ? int4_type<T>::back / 16 : int4_type<T>::back) : scales[i];
			const T     h = from_float<T>(scale), l = from_float<T>(to_float(h) == scale ? 0 : scale - to_float(h));

			s[i] = scale;
			o[i] = offsets[i];
			high[i] = { h, h };
			low[i] = { l, l };
		}
	}
	/* Two values of row I of a lane's two. */
	__device__ uint32_t of(uint32_t word, int i) const
	{
		pair x;

		memcpy(&x, &word, sizeof x);
		if constexpr (FOLD == INT4_FOLD_SAME)
			x = __hmul2(x, high[i]);
		else if constexpr (FOLD == INT4_FOLD_SPLIT)
			x = __hfma2(x, high[i], __hmul2(x, low[i]));
		else
			x = { from_float<T>(fmaf(bfloat ? __uint_as_float(word << 16) : int4_from_half(word), s[i], o[i])),
				from_float<T>(fmaf(bfloat ? __uint_as_float(word & 0xffff0000) : int4_from_half(word >> 16), s[i], o[i])) };
		memcpy(&word, &x, sizeof x);
		return word;
	}
	/* The first operand: of one or the other step of a part, whose words of four bits are these. */
	__device__ void operand(const uint2 &words, int step, uint32_t a[4]) const
	{
		const uint32_t word = step ? words.y : words.x;

		if constexpr (SPREADS)
			int4_spread<T>(word, zero, a);
		else
			int4_operand<T>(word, zero, a);
#pragma unroll
		for (int f = 0; f < 4; f++)
			a[f] = of(a[f], f & 1);
	}
	/* Of eight bits: a code without its sign is put behind 2²³. */
	__device__ void operand(const uint4 &four, int step, uint32_t a[4]) const
	{
		const uint32_t words[2] = { (step ? four.z : four.x) ^ 0x80808080, (step ? four.w : four.y) ^ 0x80808080 };

#pragma unroll
		for (int f = 0; f < 4; f++) {
			const int row = f & 1;
			float     v[2];
			pair      x;

#pragma unroll
			for (int i = 0; i < 2; i++) {
				float q = __uint_as_float(__byte_perm(words[f / 2], 0x4b000000, 0x7440u + (uint32_t)(2 * i + row))) - 8388736;

				v[i] = FOLD == INT4_FOLD_EIGHT_OFFSETS ? fmaf(q, s[row], o[row]) : q * s[row];
			}
			int4_pair_of(v[0], v[1], &x);
			memcpy(&a[f], &x, sizeof x);
		}
	}
};

/* What a lane loads of two steps. */
template <bool EIGHT> struct int4_words {
	typedef uint2 type;
};
template <> struct int4_words<true> {
	typedef uint4 type;
};

/* What a lane decodes the weights of the tile at BLOCK with, from column COLUMN of the unit on. */
template <class T, int GROUP, enum int4_fold FOLD> __device__ static inline void int4_folded_scales(const struct int4_task &t,
    const uint8_t *block, int column, uint32_t lane, struct int4_folder<T, FOLD> &fold)
{
	constexpr bool BFLOAT = int4_folder<T, FOLD>::bfloat, OFFSETS = FOLD == INT4_FOLD_OFFSETS || FOLD == INT4_FOLD_EIGHT_OFFSETS;
	const uint32_t group = (uint32_t)(column / GROUP), place = lane / 4 * 2;
	float          s[2], o[2] = { 0, 0 };

	if constexpr (FOLD >= INT4_FOLD_EIGHT) {
		octet_scales_of<GROUP, OFFSETS>(t.w, block + 2 * INT4_WORDS_BYTES, group, place, fold.s, fold.o);
		return;
	} else if constexpr (OFFSETS) {
		fold.zero[0] = fold.zero[1] = int4_type<T>::base * 0x10001;
		int4_scales_of<true>(t.w, block + INT4_WORDS_BYTES, group, place, s, o);
	} else {
		constexpr int         KIND = FOLD == INT4_FOLD_SAME && BFLOAT ? INT4_BF16 : INT4_F16;
		const struct int4_raw raw = int4_fetch<KIND>(t, block, group, place);

		int4_scales_of<KIND>(t, raw, s);
		if constexpr (int4_folder<T, FOLD>::SPREADS)
			int4_minus_of<T>(t, raw, fold.zero);
		else
			int4_zeros_of<T>(t, raw, fold.zero);
	}
	fold.set(s, o);
}

/* Inputs that lie BACK places before STAGE may be overwritten. */
__device__ static inline void int4_folded_release(mbarrier *empty, uint32_t stage, uint32_t stages, uint32_t back)
{
	barrier_arrive(&empty[stage >= back ? stage - back : stage + stages - back]);
}

/* Where the lower or upper eight of 16 outputs of a row lie: rows four apart are in other banks. */
__device__ static inline uint8_t *int4_turned(uint8_t *out, uint32_t row, uint32_t upper)
{
	return out + row * (INT4_TILE * 2) + (upper ^ (row / 4 % 2)) * 16;
}

/* Writes eight results of a row, at AT of its outputs. */
template <class T> __device__ static inline void int4_eight_out(const struct int4_task &t, uint32_t row, uint32_t at, const T *from,
    bool whole)
{
	T *to = (T *)t.y + (size_t)row * t.y_stride + at;

	if (whole)
		*(uint4 *)to = *(const uint4 *)from;
	else
#pragma unroll 1
		for (uint32_t i = 0; i < 8 && (t.gated || at + i < t.w.rows); i++)
			to[i] = from[i];
}

/* Writes what a warp has of 16 outputs from N on for TOKENS rows from ROW on; OUT: its room in shared memory. */
template <class T, int TOKENS> __device__ static inline void int4_folded_store(const struct int4_task &t, uint8_t *out, uint32_t n,
    uint32_t row, uint32_t lane, const float (&sums)[TOKENS / 2])
{
	const bool aligned = (uintptr_t)t.y % 16 == 0 && t.y_stride % 8 == 0;

	if (t.to_float) {
		for (uint32_t h = 0; h < 2; h++) {
			const uint32_t at = int4_stack_row(t.w, n + lane / 4 + 8 * h), first = row + lane % 4 * 2;
			float         *to = (float *)t.y + (size_t)first * t.y_stride + at;

#pragma unroll
			for (int i = 0; i < TOKENS / 4; i++)
				if (at < t.w.rows && first + i / 2 * 8 + i % 2 < t.rows)
					to[(size_t)(i / 2 * 8 + i % 2) * t.y_stride] = h ? sums[i / 2 * 4 + 2 + i % 2] : sums[i / 2 * 4 + i % 2];
		}
		return;
	}
#pragma unroll
	for (int part = 0; part < TOKENS / INT4_OUT_TOKENS; part++, row += INT4_OUT_TOKENS) {
#pragma unroll
		for (int i = 0; i < INT4_OUT_TOKENS / 16; i++) { /* for 16 rows: four matrices */
			uint32_t four[4];

#pragma unroll
			for (int m = 0; m < 4; m++) { /* rows of eight, and their upper or lower outputs */
				const int j = 4 * (part * (INT4_OUT_TOKENS / 8) + i * 2 + m / 2) + m % 2 * 2;
				typename int4_type<T>::pair two;

				int4_pair_of(sums[j], sums[j + 1], &two);
				memcpy(&four[m], &two, sizeof two);
			}
			stmatrix_x4_trans(shared_address(int4_turned(out, i * 16 + lane / 16 * 8 + lane % 8, lane / 8 % 2)), four);
		}
		__syncwarp();
		if (t.gated) {
			const pack<T> gate = *(const pack<T> *)int4_turned(out, lane, 0), up = *(const pack<T> *)int4_turned(out, lane, 1);
			pack<T>       results;

#pragma unroll
			for (int i = 0; i < 8; i++) {
				float g = to_float(gate.v[i]);

				results.v[i] = from_float<T>(g / (1 + expf(-g)) * to_float(up.v[i]));
			}
			if (row + lane < t.rows)
				int4_eight_out<T>(t, row + lane, n / 2, results.v, aligned);
		} else {
#pragma unroll
			for (uint32_t i = lane; i < 2 * INT4_OUT_TOKENS; i += 32) {
				uint32_t at = int4_stack_row(t.w, n + i % 2 * 8);

				if (row + i / 2 < t.rows && at < t.w.rows)
					int4_eight_out<T>(t, row + i / 2, at, (const T *)int4_turned(out, i / 2, i % 2), aligned && at + 8 <=
					    t.w.rows);
			}
		}
		__syncwarp();
	}
}

/* What a warpgroup that multiplies does, N rows of the input at a time. */
template <class T, int TOKENS, int GROUPS, int NARROW, int N, int GROUP, enum int4_fold FOLD> __device__ static inline void
    int4_folded_multiply(const struct int4_task &t, const struct int4_folded_room &room)
{
	typedef struct int4_folder<T, FOLD> folder;
	typedef typename int4_words<(FOLD >= INT4_FOLD_EIGHT)>::type two_steps;
	constexpr uint32_t BOXES = int4_folded_boxes(TOKENS);
	constexpr int  PARTS = 4; /* of a unit; a part's operands are the same registers in every unit */
	constexpr bool WHOLE = GROUP == INT4_UNIT; /* else what is multiplied ends with a unit, or the compiler serialises it */
	constexpr bool FEW = NARROW > 0; /* registers: there is no room for scales of two units */
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, across = NARROW ? 1 : int4_folded_across(t, TOKENS);
	const uint32_t count = int4_folded_tiles_of<TOKENS, GROUPS, NARROW>(t);
	uint32_t       a[PARTS][2][4];
	two_steps      words[2]; /* of a part and the next one */
	float          sums[N / 2];
	folder         fold;
	struct ring_place of_inputs = { 0, 0 }, of_weights = { 0, 0 };

	dependency_wait();
#pragma unroll 1
	for (uint32_t number = blockIdx.x; number < count; number += gridDim.x) {
		const struct int4_share part = int4_share_of<TOKENS, GROUPS, NARROW>(t, number, across);
		const bool             last = NARROW && N == NARROW;
		const uint32_t         from = last ? 4 * (GROUPS - 1) : 0, there = last ? part.last_tiles : part.tiles;
		/* A tile that is not there computes another once more. */
		const uint32_t mine = (warp - from < there ? warp : 0) * t.tile_bytes;
		const uint8_t *block = room.weights + of_weights.slot * t.stage_bytes + mine;

		barrier_wait(&room.weights_full[of_weights.slot], of_weights.parity);
		words[0] = ((const two_steps *)block)[lane];
		if constexpr (WHOLE)
			int4_folded_scales<T, GROUP>(t, block, 0, lane, fold);
#pragma unroll 1
		for (uint32_t unit = 0; unit < t.units; unit++) {
			const bool      more = unit + 1 < t.units;
			mbarrier *const decoded = &room.weights_empty[of_weights.slot];
			const uint8_t  *next = block;
			folder          next_fold;
			uint64_t        x[2];

			of_weights.advance(t.ahead);
			if (more) {
				barrier_wait(&room.weights_full[of_weights.slot], of_weights.parity);
				next = room.weights + of_weights.slot * t.stage_bytes + mine;
			}
#pragma unroll
			for (uint32_t h = 0; h < 2; h += BOXES) {
				barrier_wait(&room.inputs_full[of_inputs.slot], of_inputs.parity);
				/* By way of lane 0: what is known to be the same in all lanes stays in uniform registers. */
				const uint32_t smem = __shfl_sync(~0u, shared_address(room.inputs + of_inputs.slot * t.input_bytes + (last ?
				    part.token * (INT4_BOX * 2) : 0)), 0);

				for (uint32_t b = 0; b < BOXES; b++)
					x[h + b] = wgmma_descriptor(smem + b * (TOKENS * INT4_BOX * 2), 16, 1024, SWIZZLE_128);
				of_inputs.advance(t.stages);
			}
#pragma unroll
			for (int i = 0; i < PARTS; i++) {
				words[(i + 1) % 2] = ((const two_steps *)(i + 1 < PARTS ? block : next))[(i + 1) % PARTS * 32 + lane];
				if (!WHOLE && i * 32 % GROUP == 0)
					int4_folded_scales<T, GROUP>(t, block, i * 32, lane, fold);
				if constexpr (WHOLE) {
					wgmma_wait<2>(); /* what the parts before the last one took was multiplied */
					if (i == 1 && unit > 0 && lane == 0)
						int4_folded_release(room.inputs_empty, of_inputs.slot, t.stages, 1 + 2 / BOXES);
					if (i == 3 && BOXES == 1 && lane == 0)
						int4_folded_release(room.inputs_empty, of_inputs.slot, t.stages, 2);
					if (i + 1 == PARTS && !FEW)
						int4_folded_scales<T, GROUP>(t, next, 0, lane, next_fold);
				}
#pragma unroll
				for (int step = 0; step < 2; step++) { /* one is decoded while the other is multiplied */
					if (GROUP == 16 && step)
						int4_folded_scales<T, GROUP>(t, block, i * 32 + 16, lane, fold);
					fold.operand(words[i % 2], step, a[i][step]);
					if (i + 1 == PARTS && step == 1) {
						__syncwarp();
						if (lane == 0)
							barrier_arrive(decoded);
					}
					wgmma_fence();
					wgmma_rs<T, N>(sums, a[i][step], x[i / 2] + (i % 2 * 2 + step) * 2, unit > 0 || i + step > 0);
					wgmma_commit();
				}
			}
			block = next;
			if constexpr (WHOLE && FEW) /* of the last unit once more: nothing is copied over it */
				int4_folded_scales<T, GROUP>(t, next, 0, lane, fold);
			else if constexpr (WHOLE)
				fold = next_fold;
			else {
				wgmma_wait<0>();
				if (lane == 0)
					for (uint32_t back = 1; back <= 2 / BOXES; back++)
						int4_folded_release(room.inputs_empty, of_inputs.slot, t.stages, back);
			}
		}
		wgmma_wait<0>();
		wgmma_settle(sums);
		if (WHOLE && lane == 0)
			int4_folded_release(room.inputs_empty, of_inputs.slot, t.stages, 1);
		if (warp - from < there)
			int4_folded_store<T, N>(t, room.out + warp * INT4_OUT_BYTES, ((last ? part.last : part.first) + warp - from) *
			    INT4_TILE, number % across * TOKENS + (last ? part.token : 0), lane, sums);
		if constexpr (NARROW > 0)
			break; /* a block has one tile */
	}
}

/* Y = X · Wᵀ, by blocks that take tiles of TOKENS rows of X and 64 · GROUPS rows of W one after the other; of NARROW rows of X for
 * the last 64 of W, if it is not 0. */
template <class T, int TOKENS, int GROUPS, int GROUP, enum int4_fold FOLD, int NARROW> __global__ void
    __launch_bounds__((GROUPS + 1) * 128, 1) int4_folded(const __grid_constant__ tensor_map inputs,
        const __grid_constant__ struct int4_task t)
{
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const struct int4_folded_room room = int4_folded_room_of(t, (uint8_t *)shared_memory(), 4 * GROUPS);

	dependents_launch();
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < t.stages; i++) {
			barrier_init(&room.inputs_full[i], 1);
			barrier_init(&room.inputs_empty[i], 4 * GROUPS);
		}
		for (uint32_t i = 0; i < t.ahead; i++) {
			barrier_init(&room.weights_full[i], 1);
			barrier_init(&room.weights_empty[i], 4 * GROUPS);
		}
		fence_barrier_init();
	}
	__syncthreads();
	if (warp >= 4 * GROUPS) {
		if constexpr (GROUPS > 1)
			registers_lower<INT4_COPY_REGISTERS>();
		if (warp == 4 * GROUPS)
			int4_folded_copy_weights<TOKENS, GROUPS, NARROW>(t, room);
		else if (warp == 4 * GROUPS + 1 && lane == 0)
			int4_folded_copy_inputs(t, room, &inputs, TOKENS, int4_folded_tiles_of<TOKENS, GROUPS, NARROW>(t));
		return;
	}
	if constexpr (NARROW > 0) {
		if (warp >= 4 * (GROUPS - 1)) {
			registers_lower<INT4_NARROW_REGISTERS>();
			int4_folded_multiply<T, TOKENS, GROUPS, NARROW, NARROW, GROUP, FOLD>(t, room);
			return;
		}
		registers_raise<int4_folded_wide_registers(GROUPS)>();
	} else if constexpr (GROUPS > 1)
		registers_raise<int4_folded_registers(GROUPS)>();
	int4_folded_multiply<T, TOKENS, GROUPS, NARROW, TOKENS, GROUP, FOLD>(t, room);
#endif
}

/* Tiles of the product that there are, and nanoseconds that a block takes for one: lines through what was measured on an H200 with
 * weights of 4,096 and 13,696 columns; of the uneven one what three and a quarter of the steps of others would take.  Most take
 * longer than their wgmma alone would. */
static constexpr struct int4_choice {
	struct int4_tiling tiling;
	uint32_t           ends, columns; /* first and last of all; sixteen columns */
} int4_choices[] = { { { 64, 1 }, 3400, 59 }, { { 128, 1 }, 4300, 63 }, { { 128, 2 }, 4300, 99 }, { { 128, 3 }, 4300, 139 },
	{ { 256, 1 }, 4700, 91 }, { { 256, 2 }, 5600, 147 }, { { 128, 4, 32 }, 4300, 152 } };

/* Whether a product of W and ROWS rows of the input can be cut so. */
static inline bool int4_tiling_suits(const struct int4_tiling &s, const struct int4_slab *w, uint32_t rows)
{
	return !s.narrow || (!w->eight && !int4_has_offsets(*w) && w->group != INT4_GROUP_MIN && rows <= s.tokens);
}

/* The one that ends first on MULTIPROCESSORS. */
static inline struct int4_tiling int4_tiling_for(const struct int4_slab *w, uint32_t rows, uint32_t multiprocessors)
{
	struct int4_tiling best = {};
	uint64_t           least = UINT64_MAX;

	for (const struct int4_choice &c : int4_choices) {
		const uint64_t tiles = int4_tiling_tiles(c.tiling), across = (rows + c.tiling.tokens - 1) / c.tiling.tokens;
		const uint64_t count = c.tiling.narrow ? int4_narrow_blocks(int4_tiles(*w), c.tiling) :
		    across * ((int4_tiles(*w) + tiles - 1) / tiles);
		uint64_t ns;

		if (!int4_tiling_suits(c.tiling, w, rows) || (c.tiling.narrow && count > multiprocessors))
			continue;
		ns = (count + multiprocessors - 1) / multiprocessors * (c.ends + (uint64_t)w->columns * c.columns / 16);
		if (ns < least) {
			least = ns;
			best = c.tiling;
		}
	}
	return best;
}

/* LAUNCH(kernel) for the instance of that tiling. */
template <class T, int GROUP, enum int4_fold FOLD, class L> static inline auto int4_folded_instance_of(const struct int4_tiling &s,
    L launch)
{
	if (s.tokens == 64)
		return launch(int4_folded<T, 64, 1, GROUP, FOLD, 0>);
	if (s.tokens == 256)
		return s.groups == 1 ? launch(int4_folded<T, 256, 1, GROUP, FOLD, 0>) : launch(int4_folded<T, 256, 2, GROUP, FOLD, 0>);
	if (s.groups == 1)
		return launch(int4_folded<T, 128, 1, GROUP, FOLD, 0>);
	if constexpr (GROUP == INT4_UNIT)
		if (s.narrow)
			return launch(int4_folded<T, 128, 4, GROUP, FOLD, 32>);
	return s.groups == 2 ? launch(int4_folded<T, 128, 2, GROUP, FOLD, 0>) : launch(int4_folded<T, 128, 3, GROUP, FOLD, 0>);
}
template <class T, class L> static inline auto int4_folded_instance(const struct int4_slab &w, const struct int4_tiling &s,
    L launch)
{
	constexpr bool bfloat = int4_type<T>::base == int4_type<__nv_bfloat16>::base;
	constexpr enum int4_fold fold = bfloat ? INT4_FOLD_SPLIT : INT4_FOLD_SAME;

	if (w.eight && int4_has_offsets(w))
		return int4_folded_instance_of<T, 32, INT4_FOLD_EIGHT_OFFSETS>(s, launch);
	if (w.eight)
		return w.group == 16 ? int4_folded_instance_of<T, 16, INT4_FOLD_EIGHT>(s, launch) :
		    int4_folded_instance_of<T, 32, INT4_FOLD_EIGHT>(s, launch);
	if (int4_has_offsets(w))
		return int4_folded_instance_of<T, INT4_GROUP_MIN, INT4_FOLD_OFFSETS>(s, launch);
	if (bfloat && w.scales == INT4_BF16)
		return w.group == INT4_GROUP_MIN ? int4_folded_instance_of<T, INT4_GROUP_MIN, INT4_FOLD_SAME>(s, launch) :
		    int4_folded_instance_of<T, INT4_UNIT, INT4_FOLD_SAME>(s, launch);
	return w.group == INT4_GROUP_MIN ? int4_folded_instance_of<T, INT4_GROUP_MIN, fold>(s, launch) :
	    int4_folded_instance_of<T, INT4_UNIT, fold>(s, launch);
}

/* Whether there is one that multiplies W by activations of type T. */
template <class T> static inline bool int4_folded_takes(const struct int4_slab &w)
{
	const bool bfloat = int4_type<T>::base == int4_type<__nv_bfloat16>::base;

	return w.eight || int4_has_offsets(w) || w.scales == INT4_F16 || (bfloat && w.scales == INT4_BF16);
}

static inline struct tensor_layout int4_folded_inputs(const struct int4_task *t, enum tensor_type type, const void *x,
    uint32_t stride, const struct int4_tiling &s)
{
	return { type, 2, x, { t->w.columns, t->rows }, { 0, (uint64_t)stride * 2 }, { INT4_BOX, s.tokens }, SWIZZLE_128 };
}

#endif
