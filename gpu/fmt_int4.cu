/* fmt_int4.cu: owns weights of four bits, and of eight with scales of 16 or 32 columns, on the device: which lie there as
 * slabs, their way there, and the launches of what fmt_int4.cuh and fmt_octet.cuh compute.  Invariant: a weight is a slab only
 * with kernels = own and activations of 16 bits; every operation that takes a weight takes slabs too.
 *
 * Products.  Up to SLAB_ROWS rows the slab is multiplied as it is, by mma.sync or by wgmma, and a group's sum is scaled.  Above,
 * each weight is scaled and rounded to 16 bits: on the way into wgmma's registers, or, of more than FOLDED_ROWS and where there is
 * no such kernel, in slices of the slab that are decoded into a workspace for cuBLASLt.  These two have the same bits.  So a row
 * has the same bits in all steps of up to SLAB_ROWS rows, and in all larger ones.
 *
 * Gate and up.  Of a slab of both (int4_slab.half) silu(gate) · up is written by the product itself, with the bits of two kernels,
 * except where it is decoded into memory.  Products of few rows do what follows q, k and v as well. */
#include "gpu/fmt_int4_folded.cuh"
#include "gpu/fmt_int4_wide.cuh"
#include "gpu/int4_choose.h"
#include "gpu/launch.cuh"
#include "gpu/types.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	WORKSPACE_BYTES = 64 << 20, /* slices of decoded weights: about what L2 keeps */
	GRID_Y = 65535
};

size_t int4_workspace_bytes(const struct cuda_backend *cuda)
{
	return cuda->kernels == KERNELS_OWN && cuda->dtype != DTYPE_F32 ? WORKSPACE_BYTES : 0;
}

/* NULL and the slab of a stack, or why it has none.  *ret_order is to be freed. */
static const char *choose_slab(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count,
    struct int4_slab *ret, int32_t **ret_order)
{
	*ret_order = NULL;
	if (cuda->kernels != KERNELS_OWN)
		return "kernels is not own";
	if (cuda->dtype == DTYPE_F32)
		return "activations are float32";
	if ((uint64_t)INT4_TILE * stride_of((uint32_t)parts[0].columns) * 2 > WORKSPACE_BYTES)
		return "its rows are too long";
	return int4_choose(parts, count, (uint32_t)cuda->multiprocessors, ret, ret_order);
}

static uint64_t order_at(const struct int4_slab *slab) { return (int4_bytes(*slab) + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN; }

static int takes(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count)
{
	struct int4_slab slab;
	int32_t         *order;
	bool             taken = !choose_slab(cuda, parts, count, &slab, &order);

	free(order);
	return taken;
}

static uint64_t bytes(const struct cuda_backend *cuda, const struct weight_desc *parts, uint32_t count)
{
	struct int4_slab slab;
	int32_t         *order;
	uint64_t         ret = UINT64_MAX;

	if (!choose_slab(cuda, parts, count, &slab, &order))
		ret = order_at(&slab) + (order ? slab.columns * sizeof *order : 0);
	free(order);
	return ret;
}

/* ---- Loading ---- */

static enum status set(struct cuda_backend *cuda, struct backend_weight *w, const struct weight_desc *parts, uint32_t count)
{
	struct int4_slab slab;
	int32_t         *order;

	if (choose_slab(cuda, parts, count, &slab, &order) || !(w->int4 = (struct int4_slab *)malloc(sizeof slab))) {
		free(order);
		return STATUS_NOMEM;
	}
	w->data = w->block.data;
	w->stride = stride_of(w->columns);
	slab.data = (uint8_t *)w->data;
	cuda_check(cuda, cudaMemsetAsync(slab.data, 0, int4_bytes(slab), cuda->stream), "clearing a weight");
	if (order) {
		slab.order = (const int32_t *)(slab.data + order_at(&slab));
		cuda_check(cuda, cudaMemcpyAsync((void *)slab.order, order, slab.columns * sizeof *order, cudaMemcpyHostToDevice,
		    cuda->stream), "loading the order of a weight's columns");
		cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "loading the order of a weight's columns");
	}
	free(order);
	*w->int4 = slab;
	return cuda->fault;
}

static cudaError_t place(struct cuda_backend *cuda, struct backend_weight *w, const struct stored_piece *piece)
{
	struct int4_range range = int4_range_of(w->int4, piece);

	for (uint32_t done = 0, tiles; done < range.tiles; done += tiles) {
		tiles = range.tiles - done < GRID_Y ? range.tiles - done : (uint32_t)GRID_Y;
		(w->int4->eight ? octet_pack : int4_pack)<<<dim3(range.units, tiles), INT4_PACK_THREADS, 0, cuda->stream>>>(*w->int4,
		    *piece, range.first_unit, range.first_tile + done);
	}
	return cudaPeekAtLastError();
}

/* Values that look like weights: words at random, scales around 1 / (4 √columns), zeros and minima around the middle. */
static __global__ void random_kernel(const struct int4_slab w, uint32_t first_tile, uint64_t seed, float scale)
{
	uint32_t          tile = first_tile + blockIdx.y;
	struct int4_block block = int4_block_at(w, tile, blockIdx.x);
	uint64_t          z = ((uint64_t)tile * gridDim.x + blockIdx.x + seed) * INT4_PACK_THREADS + threadIdx.x;
	uint32_t          place = threadIdx.x % INT4_TILE, group = threadIdx.x / INT4_TILE;

	z *= 0x9E3779B97F4A7C15ull;
	z = (z ^ z >> 32) * 0xD6E8FEB86659FD93ull;
	z ^= z >> 32;
	((uint32_t *)block.words)[threadIdx.x] = (uint32_t)z;
	if (w.eight) { /* of bytes the root of the mean of squares is 16 times that of nibbles around their middle */
		((uint32_t *)block.words)[threadIdx.x + INT4_PACK_THREADS] = (uint32_t)(z >> 32) * 0x9E3779B9u;
		scale /= 16;
	}
	if (group >= INT4_UNIT / w.group)
		return;
	scale *= 0.75f + (float)(z >> 40) / 33554432.0f;
	if (w.zeros)
		((uint8_t *)block.zeros)[group * INT4_TILE + place] = (uint8_t)(6 + (z >> 32) % 4);
	uint8_t *scales = (uint8_t *)block.scales;
	uint32_t at = group * INT4_TILE + place;

	if (w.scales == INT4_F32) {
		((float *)scales)[at] = scale;
	} else if (w.scales == INT4_BF16) {
		((__nv_bfloat16 *)scales)[at] = __float2bfloat16(scale);
	} else if (w.scales == INT4_F16) {
		((__half *)scales)[at] = __float2half(scale);
	} else if (w.scales == INT4_SIX) {
		((__half *)scales)[place] = __float2half(scale / 32);
		scales[2 * INT4_TILE + at] = 32;
	} else if (w.scales == INT4_F16_PAIR) {
		((__half2 *)scales)[at] = __floats2half2_rn(scale, w.eight ? 0 : -7.5f * scale);
	} else {
		((__half2 *)scales)[place] = __floats2half2_rn(scale / 32, w.eight ? 0 : 7.5f * scale / 32);
		scales[4 * INT4_TILE + 2 * at] = scales[4 * INT4_TILE + 2 * at + 1] = 32;
	}
}

static enum status fill(struct cuda_backend *cuda, struct backend_weight *w)
{
	const struct int4_slab *slab = w->int4;

	for (uint32_t tile = 0; tile < int4_tiles(*slab); tile += GRID_Y) {
		uint32_t left = int4_tiles(*slab) - tile;

		random_kernel<<<dim3(int4_units(*slab), left < GRID_Y ? left : (uint32_t)GRID_Y), INT4_PACK_THREADS, 0, cuda->stream>>>(
		    *slab, tile, (uint64_t)(uintptr_t)slab->data, 0.25f / sqrtf((float)w->columns));
	}
	return cuda_launched(cuda, "random weights");
}

const struct weight_layout layout_int4 = { "slab", INT4_TILE, INT4_UNIT, takes, bytes, set, place, NULL, fill };

/* Values of formats that slabs have, whatever becomes of them. */
static bool is_for_slabs(const struct weight_desc *w)
{
	switch (w->format) {
	case WEIGHT_I4: case WEIGHT_Q4_0: case WEIGHT_Q4_1: case WEIGHT_Q4_K: case WEIGHT_Q5_0: case WEIGHT_Q5_1: case WEIGHT_Q5_K:
	case WEIGHT_Q6_K: case WEIGHT_Q8_0: return true;
	default: return false;
	}
}

void int4_note(struct cuda_backend *cuda, const struct backend_weight *w, const struct weight_desc *parts, uint32_t count)
{
	struct int4_slab slab;
	int32_t         *order = NULL;
	const char      *why;

	if (w->int4)
		cuda->int4.slabs++;
	if (w->int4 || !is_for_slabs(&parts[0]) || cuda->kernels != KERNELS_OWN)
		return;
	why = choose_slab(cuda, parts, count, &slab, &order);
	free(order);
	if (cuda->int4.decoded++ == 0)
		snprintf(cuda->int4.why, sizeof cuda->int4.why, "%.64s: %s", parts[0].name, why ? why : "");
}

/* ---- Products ---- */

enum {
	SLAB_ROWS = 64,     /* at most, that are multiplied with sums of groups: one number, whatever the step */
	FOLDED_ROWS = 1024  /* at most, that are multiplied without decoding the slab into memory: measured on an H200 */
};

/* WIDE: by the kernel of fmt_int4_wide.cuh. */
template <class T> static enum status multiply(struct cuda_backend *cuda, struct int4_task *t, const T *x, uint32_t x_stride,
    bool wide)
{
	auto run = [=](void (*kernel)(const tensor_map, const struct int4_task), uint32_t rows) {
		uint32_t             shared = wide ? int4_wide_size(t, rows) : int4_choose_stages(t, rows);
		uint32_t             threads = wide ? int4_wide_threads(t) : int4_threads(t, rows);
		uint32_t             most = (uint32_t)cuda->multiprocessors;
		struct tensor_layout layout = int4_inputs(t, cuda->dtype == DTYPE_BF16 ? TENSOR_BF16 : TENSOR_F16, x, x_stride, rows);
		tensor_map           inputs = {};

		if (!t->whole_bytes && tensor_map_encode(&layout, &inputs))
			return cuda_check(cuda, cudaErrorInvalidValue, "the inputs of a four-bit product");
		if (allow_shared(cuda, kernel, INT4_SHARED_MOST, "shared memory of a four-bit product"))
			return cuda->fault;
		return launch(cuda, "four-bit product", cuda->step.dependent, kernel, dim3(t->w.panels < most ? t->w.panels : most,
		    (t->rows + rows - 1) / rows), dim3(threads), shared, inputs, *t);
	};

	return wide ? int4_wide_instance<T>(*t, run) : t->w.eight ? octet_instance<T>(*t, run) : int4_instance<T>(*t, run);
}

/* By the kernel of fmt_int4_folded.cuh: the same bits as multiply_decoded. */
template <class T> static enum status multiply_folded(struct cuda_backend *cuda, struct int4_task *t, const T *x,
    uint32_t x_stride)
{
	const struct int4_tiling tiling = int4_tiling_for(&t->w, t->rows, (uint32_t)cuda->multiprocessors);
	auto run = [=](void (*kernel)(const tensor_map, const struct int4_task)) {
		uint32_t             shared = int4_folded_size(t, tiling);
		struct tensor_layout layout = int4_folded_inputs(t, cuda->dtype == DTYPE_BF16 ? TENSOR_BF16 : TENSOR_F16, x, x_stride,
		    tiling);
		tensor_map           inputs;

		if (tensor_map_encode(&layout, &inputs))
			return cuda_check(cuda, cudaErrorInvalidValue, "the inputs of a four-bit product");
		if (allow_shared(cuda, kernel, INT4_SHARED_MOST, "shared memory of a four-bit product"))
			return cuda->fault;
		return launch(cuda, "four-bit product", cuda->step.dependent, kernel, int4_folded_grid(t, tiling,
		    (uint32_t)cuda->multiprocessors), dim3(int4_folded_threads(tiling)), shared, inputs, *t);
	};

	return int4_folded_instance<T>(t->w, tiling, run);
}

/* The slab in slices, each decoded and multiplied by cuBLASLt. */
template <class T> static enum status multiply_decoded(struct cuda_backend *cuda, const struct int4_slab *slab, const T *x,
    uint32_t x_stride, uint32_t rows, void *y, uint32_t y_stride, int to_float)
{
	uint32_t    stride = stride_of(slab->columns), most = WORKSPACE_BYTES / (stride * (uint32_t)sizeof(T)) / INT4_TILE * INT4_TILE;
	enum status status = STATUS_OK;

	for (uint32_t first = 0; first < slab->rows && !status; first += most) {
		struct backend_weight slice = {};
		uint32_t              left = slab->rows - first;

		slice.rows = left < most ? left : most;
		slice.columns = slab->columns;
		slice.stride = stride;
		slice.data = cuda->scratch.int4;
		(slab->eight ? octet_decode<T> : int4_decode<T>)<<<int4_decode_grid(slice.rows, stride), INT4_DECODE_THREADS, 0,
		    cuda->stream>>>(*slab, first, slice.rows, (T *)slice.data, stride);
		status = cuda_launched(cuda, "decoding a weight");
		if (!status)
			status = linear_run(cuda, &slice, x, x_stride, rows, (char *)y + (size_t)first * (to_float ? sizeof(float) : sizeof(T)),
			    y_stride, to_float);
	}
	return status;
}

/* Without being decoded into memory. */
template <class T> static bool is_multiplied(const struct int4_slab *slab, uint32_t rows)
{
	return rows <= SLAB_ROWS || (rows <= FOLDED_ROWS && int4_folded_takes<T>(*slab));
}

template <class T> static enum status run(struct cuda_backend *cuda, const struct int4_slab *slab, const T *x, uint32_t x_stride,
    uint32_t rows, void *y, uint32_t y_stride, int to_float, int gated)
{
	if (slab->order) {
		int4_reorder<T><<<rows, 256, 0, cuda->stream>>>(slab->order, slab->columns, x, x_stride, (T *)cuda->scratch.rounded,
		    x_stride);
		if (cuda_launched(cuda, "reordering of inputs"))
			return cuda->fault;
		x = (const T *)cuda->scratch.rounded;
	}
	if (!is_multiplied<T>(slab, rows))
		return multiply_decoded<T>(cuda, slab, x, x_stride, rows, y, y_stride, to_float);
	const struct head_target *heads = to_float ? NULL : heads_wanted(cuda, y, slab->rows);
	const bool       wide = int4_wide_suits(slab, rows);
	struct int4_task task = {};

	task.w = *slab;
	task.y = y;
	task.y_stride = y_stride;
	task.rows = rows;
	task.to_float = to_float;
	task.gated = gated;
	task.x = x;
	if (rows == 1)
		norm_take(cuda, x, &task.norm);
	if (heads && !wide && int4_takes_heads(*slab, rows)) {
		task.heads = *heads;
		cuda->step.heads = NULL;
	}
	cuda->step.launches++;
	if (rows > SLAB_ROWS)
		return multiply_folded<T>(cuda, &task, x, x_stride);
	return multiply<T>(cuda, &task, x, x_stride, wide);
}

enum status int4_run(struct cuda_backend *cuda, const struct backend_weight *w, const void *x, uint32_t x_stride, uint32_t rows,
    void *y, uint32_t y_stride, int to_float, int gated)
{
	if (w->int4->order && w->columns > cuda->scratch.limits.width)
		return STATUS_INVALID;
	if (cuda->dtype == DTYPE_BF16)
		return run<__nv_bfloat16>(cuda, w->int4, (const __nv_bfloat16 *)x, x_stride, rows, y, y_stride, to_float, gated);
	return run<__half>(cuda, w->int4, (const __half *)x, x_stride, rows, y, y_stride, to_float, gated);
}

bool int4_takes_norm(const struct cuda_backend *cuda, const struct backend_weight *w)
{
	return cuda->step.rows == 1 && w->input == WEIGHT_INPUT_FLOAT && int4_one_takes_norm(*w->int4);
}

bool int4_is_gated(const struct cuda_backend *cuda, const struct backend_weight *w, uint32_t rows)
{
	return w->int4->half && (cuda->dtype == DTYPE_BF16 ? is_multiplied<__nv_bfloat16>(w->int4, rows) :
	    is_multiplied<__half>(w->int4, rows));
}

enum status int4_embed(struct cuda_backend *cuda, const struct backend_weight *w, const int32_t *index, uint32_t offset, int add,
    struct cuda_rows *to)
{
	uint32_t rows = cuda->step.rows;

	cuda->step.launches++;
	FOR_DTYPE(cuda, T, if (to->wide)
		int4_rows<T, float><<<rows, 256, 0, cuda->stream>>>(*w->int4, index, offset, add, to->wide, cuda->scratch.stream_stride);
	else
		int4_rows<T, T><<<rows, 256, 0, cuda->stream>>>(*w->int4, index, offset, add, (T *)to->data, to->stride));
	return cuda_launched(cuda, "rows of a four-bit weight");
}
