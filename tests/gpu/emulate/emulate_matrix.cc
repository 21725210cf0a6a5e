/* emulate_matrix.cc: owns ldmatrix, stmatrix, mma and wgmma.  Invariant: what a lane holds of a matrix is written once, in the
 * formulas of fragments below, which tests/gpu/emulate/test_emulate.cc checks against plain ones.
 *
 * wgmma is taken warp by warp, as a device does: a warp multiplies its 16 rows of a by all of b.  An operation waits in its
 * warp's queue until a moment that the seed picks, at the latest the wait; from its issue to the wait its accumulators hold
 * poison in the kernel's arrays.  The four warps of a warpgroup must issue the same operations in the same order. */
#include "machine.h"

/* ---- ldmatrix ---- */

struct load_call {
	uint32_t *r, count;
	const char *row;
};

/* KEY: transposed. */
static void apply_load(void *const args[32], uint32_t mask, uint32_t key)
{
	uint16_t matrix[8][8];
	uint32_t count = ((const load_call *)args[0])->count;

	if (mask != ~0u)
		emulate_fail("ldmatrix by lanes %08x: whole warps", mask);
	for (uint32_t m = 0; m < count; m++) {
		for (uint32_t i = 0; i < 8; i++)
			memcpy(matrix[i], ((const load_call *)args[8 * m + i])->row, 16);
		for (uint32_t lane = 0; lane < 32; lane++) {
			uint32_t i = lane / 4, j = lane % 4 * 2;
			uint32_t low = key ? matrix[j][i] : matrix[i][j], high = key ? matrix[j + 1][i] : matrix[i][j + 1];

			((const load_call *)args[lane])->r[m] = low | high << 16;
		}
	}
}

static void load(const char *what, uint32_t *r, uint32_t count, uint32_t smem, uint32_t transposed)
{
	load_call call = { r, count, NULL };

	if (emulate_lane() < 8 * count) /* addresses of the other lanes are not used */
		call.row = emulate_shared(what, smem, 16, 16);
	emulate_warp(what, transposed, ~0u, &call, apply_load);
}

void ldmatrix_x4(uint32_t r[4], uint32_t smem) { load("ldmatrix_x4", r, 4, smem, 0); }
void ldmatrix_x4_trans(uint32_t r[4], uint32_t smem) { load("ldmatrix_x4_trans", r, 4, smem, 1); }
void ldmatrix_x2(uint32_t r[2], uint32_t smem) { load("ldmatrix_x2", r, 2, smem, 0); }

struct store_call {
	const uint32_t *r;
	char *row;
};

static void apply_store(void *const args[32], uint32_t mask, uint32_t key)
{
	(void)key;
	if (mask != ~0u)
		emulate_fail("stmatrix by lanes %08x: whole warps", mask);
	for (uint32_t lane = 0; lane < 32; lane++)
		for (uint32_t m = 0; m < 4; m++)
			for (uint32_t h = 0; h < 2; h++) {
				uint16_t value = (uint16_t)(((const store_call *)args[lane])->r[m] >> 16 * h);

				memcpy(((const store_call *)args[8 * m + lane % 4 * 2 + h])->row + lane / 4 * 2, &value, 2);
			}
}

void stmatrix_x4_trans(uint32_t smem, const uint32_t r[4])
{
	store_call call = { r, emulate_shared("stmatrix_x4_trans", smem, 16, 16) };

	emulate_warp("stmatrix_x4_trans", 0, ~0u, &call, apply_store);
}

/* ---- Elements ---- */

static uint32_t bytes_of(enum emulate_type type) { return type <= EMULATE_F16 ? 2 : 1; }

static double element_at(enum emulate_type type, const void *p)
{
	switch (type) {
	case EMULATE_BF16: return (double)__bfloat162float(*(const __nv_bfloat16 *)p);
	case EMULATE_F16: return (double)__half2float(*(const __half *)p);
	case EMULATE_E4M3: return (double)(float)*(const __nv_fp8_e4m3 *)p;
	default: return (double)*(const int8_t *)p;
	}
}

/* Rows [16][k] of a from the fragments of a warp's lanes. */
static void gather_a(enum emulate_type type, const uint32_t *const a[32], double ret[16][32])
{
	uint32_t each = 4 / bytes_of(type); /* elements of a word */

	for (uint32_t lane = 0; lane < 32; lane++)
		for (uint32_t i = 0; i < 4; i++)
			for (uint32_t e = 0; e < each; e++)
				ret[lane / 4 + i % 2 * 8][(lane % 4 + i / 2 * 4) * each + e] =
				    element_at(type, (const char *)&a[lane][i] + e * bytes_of(type));
}

/* One element of c: the accumulator and products in ascending k in double, rounded once.  Whole numbers wrap. */
static void multiply(enum emulate_type type, uint32_t *c, bool keep, const double *a, const double *b, uint32_t k)
{
	double sum = 0;

	if (keep)
		sum = type == EMULATE_S8 ? (double)(int32_t)*c : (double)__uint_as_float(*c);
	for (uint32_t i = 0; i < k; i++)
		sum += a[i] * b[i];
	*c = type == EMULATE_S8 ? (uint32_t)(int64_t)sum : __float_as_uint((float)sum);
}

/* ---- mma ---- */

struct mma_call {
	uint32_t       *c;
	const uint32_t *a, *b;
};

static void apply_mma(void *const args[32], uint32_t mask, uint32_t key)
{
	enum emulate_type type = (enum emulate_type)key;
	const uint32_t   *a[32];
	double            rows[16][32], columns[8][32];
	uint32_t          k = 32 / bytes_of(type), each = 4 / bytes_of(type);

	if (mask != ~0u)
		emulate_fail("mma by lanes %08x: whole warps", mask);
	for (uint32_t lane = 0; lane < 32; lane++)
		a[lane] = ((const mma_call *)args[lane])->a;
	gather_a(type, a, rows);
	for (uint32_t lane = 0; lane < 32; lane++)
		for (uint32_t i = 0; i < 2; i++)
			for (uint32_t e = 0; e < each; e++)
				columns[lane / 4][(lane % 4 + i * 4) * each + e] =
				    element_at(type, (const char *)&((const mma_call *)args[lane])->b[i] + e * bytes_of(type));
	for (uint32_t lane = 0; lane < 32; lane++)
		for (uint32_t i = 0; i < 4; i++)
			multiply(type, &((const mma_call *)args[lane])->c[i], true, rows[lane / 4 + i / 2 * 8], columns[lane % 4 * 2 + i % 2],
			    k);
}

void emulate_mma(enum emulate_type type, void *c, const uint32_t a[4], const uint32_t b[2])
{
	mma_call call = { (uint32_t *)c, a, b };

	emulate_warp("mma", type, ~0u, &call, apply_mma);
}

/* ---- wgmma ---- */

void warp_begin(struct warp *warp)
{
	warp->fenced = false;
	warp->issued = warp->groups = 0;
	warp->operations.clear();
	warp->flights.clear();
}

void warp_end(struct warp *warp)
{
	if (!warp->flights.empty())
		emulate_fail("ends while wgmma is in flight: wgmma_wait<0> is missing");
}

/* ROWS rows of a (columns of b) from FIRST on, chunk by chunk; each is checked against what ordinary stores wrote. */
static void read_operand(enum emulate_type type, uint64_t descriptor, bool mn_major, uint32_t first, uint32_t rows,
    double ret[][32])
{
	uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, lbo = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
	uint32_t sbo = (uint32_t)(descriptor >> 32 & 0x3fff) << 4, mode = (uint32_t)(descriptor >> 62), size = bytes_of(type);
	uint32_t span = mode == SWIZZLE_128 ? 128 : mode == SWIZZLE_64 ? 64 : mode == SWIZZLE_32 ? 32 : 16, each = 16 / size;
	uint32_t row_step = mn_major ? each : 1, k_step = mn_major ? 1 : each;

	if (descriptor & ~0xc0003fff3fff3fffull)
		emulate_fail("wgmma: descriptor %016llx has bits that are not encoded here", (unsigned long long)descriptor);
	for (uint32_t r = first; r < first + rows; r += row_step) {
		for (uint32_t k = 0; k < 32 / size; k += k_step) {
			uint32_t    at, kb = k * size, rb = r * size;
			const char *written, *seen;

			if (!mn_major && mode == SWIZZLE_NONE)
				at = start + r / 8 * sbo + r % 8 * 16 + kb / 16 * lbo;
			else if (!mn_major)
				at = start + r / 8 * sbo + r % 8 * span + kb;
			else if (mode == SWIZZLE_NONE)
				at = start + rb / 16 * sbo + k / 8 * lbo + k % 8 * 16;
			else
				at = start + rb / span * lbo + k / 8 * sbo + k % 8 * span + rb % span;
			at ^= (at >> 7 & (span / 16 - 1)) << 4;
			written = emulate_shared("wgmma", at, 16, 16);
			seen = machine.view + (written - machine.shared);
			if (memcmp(written, seen, 16))
				emulate_fail("wgmma reads shared address %u, which was written without fence_async_proxy, or while it was read",
				    at);
			for (uint32_t i = 0; i < each; i++)
				ret[r - first + (mn_major ? i : 0)][k + (mn_major ? 0 : i)] = element_at(type, seen + i * size);
		}
	}
}

static flight *flight_of(struct warp *warp, const void *lane0)
{
	for (flight &one : warp->flights)
		if (one.pointers[0] == lane0)
			return &one;
	return NULL;
}

/* The next operation of the queue, on the values that are kept in its flight. */
static void execute(struct warp *warp, const wgmma_operation *operation)
{
	static double rows[16][32], columns[256][32];
	const struct emulate_wgmma_call *call = &operation->call;
	flight  *one = flight_of(warp, operation->acc);
	uint32_t quarter = (uint32_t)(warp - machine.warp) % 4 * 16, k = 32 / bytes_of(call->type);

	if (call->a_in_registers) {
		const uint32_t *a[32];

		for (uint32_t lane = 0; lane < 32; lane++)
			a[lane] = operation->a[lane];
		gather_a(call->type, a, rows);
	} else {
		read_operand(call->type, call->desc_a, call->trans_a, quarter, 16, rows);
	}
	read_operand(call->type, call->desc_b, call->trans_b, 0, call->n, columns);
	for (uint32_t lane = 0; lane < 32; lane++)
		for (uint32_t i = 0; i < call->n / 2; i++)
			multiply(call->type, &one->values[lane * one->count + i], call->keep, rows[lane / 4 + i % 4 / 2 * 8],
			    columns[i / 4 * 8 + lane % 4 * 2 + i % 2], k);
}

/* Operations of the queue below LAST. */
static void execute_until(struct warp *warp, uint32_t last)
{
	size_t count = 0;

	while (count < warp->operations.size() && warp->operations[count].number < last)
		execute(warp, &warp->operations[count++]);
	warp->operations.erase(warp->operations.begin(), warp->operations.begin() + (ptrdiff_t)count);
}

static bool same_call(const emulate_wgmma_call *a, const emulate_wgmma_call *b)
{
	return a->type == b->type && a->n == b->n && a->trans_a == b->trans_a && a->trans_b == b->trans_b && a->keep == b->keep &&
	    a->a_in_registers == b->a_in_registers && a->desc_a == b->desc_a && a->desc_b == b->desc_b;
}

/* Accumulators go into a flight: the kernel's arrays hold poison until the wait. */
static void take_off(struct warp *warp, void *const args[32])
{
	const emulate_wgmma_call *call = (const emulate_wgmma_call *)args[0];
	uint32_t                  count = call->n / 2;

	for (const flight &other : warp->flights) {
		const char *a = (const char *)other.pointers[0], *b = (const char *)call->acc;

		if (a < b + 4 * count && b < a + 4 * other.count)
			emulate_fail("wgmma: accumulators overlap those of another one in flight");
	}
	warp->flights.push_back({});
	warp->flights.back().count = count;
	for (uint32_t lane = 0; lane < 32; lane++) {
		uint32_t *acc = (uint32_t *)((const emulate_wgmma_call *)args[lane])->acc;

		warp->flights.back().pointers[lane] = acc;
		warp->flights.back().values.insert(warp->flights.back().values.end(), acc, acc + count);
		memset(acc, 0xff, count * 4);
	}
}

static void apply_wgmma(void *const args[32], uint32_t mask, uint32_t)
{
	const emulate_wgmma_call *call = (const emulate_wgmma_call *)args[0];
	struct warp              *warp = &machine.warp[machine.current->warp];
	std::vector<wgmma_operation> &group = machine.groups[machine.current->warp / 4];
	flight *one;

	if (mask != ~0u)
		emulate_fail("wgmma by lanes %08x: whole warps", mask);
	if (machine.warps / 4 <= machine.current->warp / 4)
		emulate_fail("wgmma in a warpgroup of fewer than four warps");
	for (uint32_t lane = 1; lane < 32; lane++)
		if (!same_call(call, (const emulate_wgmma_call *)args[lane]))
			emulate_fail("wgmma: lanes 0 and %u differ in shape or descriptors", lane);
	if (warp->issued < group.size() ? !same_call(call, &group[warp->issued].call) : false)
		emulate_fail("wgmma: number %u of this warp differs from that of another warp of the warpgroup", warp->issued);
	if (warp->issued >= group.size()) {
		group.push_back({});
		group.back().call = *call;
	}
	one = flight_of(warp, call->acc);
	if (!one && !warp->fenced)
		emulate_fail("wgmma without wgmma_fence since its accumulators were in the hands of the program");
	if (!one)
		take_off(warp, args);
	else if (one->count != call->n / 2)
		emulate_fail("wgmma of %u columns on accumulators that are in flight with %u", call->n, one->count * 2);
	one = flight_of(warp, call->acc);
	one->group = warp->groups;
	warp->operations.push_back({});
	warp->operations.back().call = *call;
	warp->operations.back().acc = call->acc;
	warp->operations.back().group = warp->groups;
	warp->operations.back().number = warp->issued++;
	for (uint32_t lane = 0; lane < 32; lane++)
		memcpy(warp->operations.back().a[lane], ((const emulate_wgmma_call *)args[lane])->a, sizeof call->a);
	if (random_below(3) == 0)
		execute_until(warp, warp->issued);
}

void emulate_wgmma(struct emulate_wgmma_call *call) { emulate_warp("wgmma", call->n, ~0u, call, apply_wgmma); }

static void apply_fence(void *const *, uint32_t, uint32_t) { machine.warp[machine.current->warp].fenced = true; }

static void apply_commit(void *const *, uint32_t, uint32_t)
{
	struct warp *warp = &machine.warp[machine.current->warp];

	warp->groups++;
	if (random_below(3) == 0)
		execute_until(warp, warp->issued);
}

/* KEY: groups that may stay in flight. */
static void apply_wait(void *const *, uint32_t, uint32_t key)
{
	struct warp *warp = &machine.warp[machine.current->warp];
	uint32_t     first_kept = warp->issued;

	for (const wgmma_operation &operation : warp->operations)
		if (operation.group + key >= warp->groups && operation.number < first_kept)
			first_kept = operation.number;
	execute_until(warp, first_kept);
	/* Accumulators of groups that may run on stay in flight, whether they were executed or not. */
	for (size_t i = 0; i < warp->flights.size();) {
		flight *one = &warp->flights[i];

		if (one->group + key >= warp->groups) {
			i++;
			continue;
		}
		for (uint32_t lane = 0; lane < 32; lane++) {
			for (uint32_t j = 0; j < one->count; j++)
				if (((const uint32_t *)one->pointers[lane])[j] != UINT32_MAX)
					emulate_fail("wgmma: accumulators of lane %u were written before the wait", lane);
			memcpy(one->pointers[lane], &one->values[lane * one->count], one->count * 4);
		}
		warp->flights.erase(warp->flights.begin() + (ptrdiff_t)i);
	}
	warp->fenced = false;
}

void wgmma_fence(void) { emulate_warp("wgmma_fence", 0, ~0u, NULL, apply_fence); }
void wgmma_commit(void) { emulate_warp("wgmma_commit", 0, ~0u, NULL, apply_commit); }
void emulate_wgmma_wait(uint32_t groups) { emulate_warp("wgmma_wait", groups, ~0u, NULL, apply_wait); }

void emulate_wgmma_settle(const void *acc, size_t bytes)
{
	const struct warp *warp = &machine.warp[machine.current->warp];

	for (const flight &one : warp->flights) {
		const char *from = (const char *)one.pointers[machine.current->lane];

		if ((const char *)acc < from + 4 * one.count && from < (const char *)acc + bytes)
			emulate_fail("wgmma_settle of accumulators that are in flight: the wait is missing, or lets their group run on");
	}
}
