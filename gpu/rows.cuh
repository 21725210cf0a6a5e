/* rows.cuh: kernels on whole rows: gather, norms, gates, pooling, rounding.  Invariant: a row's sums are taken by one block
 * whose shape depends on the row's width only, in a fixed order, so its bits depend on nothing but the row. */
#ifndef PENSTOCK_GPU_ROWS_CUH
#define PENSTOCK_GPU_ROWS_CUH

#include "gpu/byte_round.cuh"
#include "gpu/norm.cuh"

#include <math.h>

enum { NORM_THREADS_MAX = 1024, PLAIN_THREADS = 256 };

/* ---- Gather ---- */

template <class T, class Y> static __global__ void embed_kernel(const T *w, uint32_t w_stride, const int32_t *tokens,
    uint32_t vocab, Y *y, uint32_t y_stride, uint32_t width, struct step_mark mark)
{
	uint32_t row = blockIdx.x, token = (uint32_t)tokens[row];
	const T *from = w + (size_t)(token < vocab ? token : 0) * w_stride;

	mark_begin(mark);
	for (uint32_t k = threadIdx.x; k < width; k += blockDim.x)
		y[(size_t)row * y_stride + k] = from_float<Y>(to_float(from[k]));
}

template <class T> static __global__ void narrow_kernel(const float *x, uint32_t x_stride, T *y, uint32_t y_stride, uint32_t width)
{
	for (uint32_t k = threadIdx.x; k < width; k += blockDim.x)
		y[(size_t)blockIdx.x * y_stride + k] = from_float<T>(x[(size_t)blockIdx.x * x_stride + k]);
}

/* y[r] += W[offset + positions[r]]; W may be a float vector. */
template <class T, class Y> static __global__ void embed_add_kernel(const T *w, const float *vector, uint32_t w_stride,
    const int32_t *positions, uint32_t offset, uint32_t w_rows, Y *y, uint32_t y_stride, uint32_t width)
{
	uint32_t row = blockIdx.x, at = offset + (positions ? (uint32_t)positions[row] : 0);

	at = at < w_rows ? at : 0;
	for (uint32_t k = threadIdx.x; k < width; k += blockDim.x) {
		float add = vector ? vector[k] : to_float(w[(size_t)at * w_stride + k]);
		Y    *to = y + (size_t)row * y_stride + k;

		*to = from_float<Y>(to_float(*to) + add);
	}
}

/* ---- Norms ---- */

struct norm_job {
	const void *x;             /* [rows][x_stride] */
	void       *sum;           /* likewise: where the sum with the residual goes; NULL: nowhere */
	const void *residual;      /* may be NULL */
	void       *y;
	const int32_t *chosen;     /* rows of x; NULL: 0, 1, 2, … */
	const float *w, *bias;     /* of the norm; bias: of LayerNorm */
	const float *inner_bias, *inner_norm; /* what was postponed for the residual; either may be NULL */
	float    inner_eps, eps;
	uint32_t width, x_stride, residual_stride, y_stride;
	int      x_is_wide; /* float32, whatever the backend's type */
	struct step_mark mark;
	struct byte_target round; /* what y is rounded to; not of LayerNorm */
};

/* X is the type of what is normed: T, or float for the stream of layers. */
template <class T, class X, int PACKS, bool LAYER> static __global__ void __launch_bounds__(NORM_THREADS_MAX)
    norm_kernel(struct norm_job job)
{
	constexpr int count = pack<T>::count;
	alignas(16) __shared__ float shared[3][NORM_LINES_MAX];
	const struct norm_team team = { threadIdx.x, blockDim.x, 0 };
	norm_row<count, PACKS> row(team, job.width), delta(team, job.width);
	size_t                 r = job.chosen ? (size_t)job.chosen[blockIdx.x] : blockIdx.x; /* of `take`: before the wait, too */
	float                  mean = 0, factor;

	dependents_launch();
	norm_vector<count, PACKS> w(job.w, team, job.width), inner(job.residual ? job.inner_norm : NULL, team, job.width);
	dependency_wait();
	mark_begin(job.mark);
	row.load((const X *)job.x + r * job.x_stride);
	/* Both at once: a load under a condition would wait for those before it. */
	delta.load(job.residual ? (const T *)job.residual + r * job.residual_stride :
	    (const T *)((const X *)job.x + r * job.x_stride));
	if (job.residual) {
		if (job.inner_bias)
			delta.add(job.inner_bias);
		if (job.inner_norm)
			row.add_scaled(delta, delta.factor(delta.squares(0, shared[0]), job.inner_eps), inner);
		else
			row.add(delta);
		if (job.sum)
			row.store((X *)job.sum + r * job.x_stride);
	}
	if (LAYER)
		mean = row.sum(shared[1]) / (float)job.width;
	factor = row.factor(row.squares(mean, shared[2]), job.eps);
	if (LAYER) {
#pragma unroll
		for (int i = 0; i < row.each; i++)
			row.v[i] -= mean;
	}
	row.scale(factor, w);
	if (LAYER)
		row.add(job.bias);
	row.store((T *)job.y + (size_t)blockIdx.x * job.y_stride);
	if (!LAYER && job.round.q) {
		uint32_t at[PACKS];

#pragma unroll
		for (int p = 0; p < PACKS; p++)
			at[p] = row.index(p * count);
#pragma unroll
		for (int i = 0; i < row.each; i++)
			row.v[i] = row.index(i) < job.width ? to_float(from_float<T>(row.v[i])) : 0;
		byte_round_packs<count, PACKS>(job.round, blockIdx.x, row.v, at, shared[0]);
	}
}

template <class T> static __global__ void bias_kernel(T *x, uint32_t stride, const float *bias, uint32_t width)
{
	for (uint32_t k = threadIdx.x; k < width; k += blockDim.x) {
		T *to = x + (size_t)blockIdx.x * stride + k;
		*to = from_float<T>(to_float(*to) + bias[k]);
	}
}

/* ---- Gates ---- */

/* y = silu(gate) · up.  ROUND: of rows of a multiple of BYTE_GROUP, with scales by group. */
template <class T> static __global__ void __launch_bounds__(PLAIN_THREADS) silu_kernel(const T *x, uint32_t x_stride, T *y,
    uint32_t y_stride, uint32_t width, struct byte_target round, struct step_mark mark)
{
	constexpr int count = pack<T>::count;
	uint32_t k = (blockIdx.x * PLAIN_THREADS + threadIdx.x) * count;
	const T *gate = x + (size_t)blockIdx.y * x_stride + k, *up = gate + width;
	T       *to = y + (size_t)blockIdx.y * y_stride + k;
	float    v[count] = {};

	dependents_launch();
	dependency_wait();
	mark_begin(mark);
	if (k + count <= width && width % count == 0) {
		pack<T> a = *(const pack<T> *)gate, b = *(const pack<T> *)up, c;

#pragma unroll
		for (int i = 0; i < count; i++) {
			float g = to_float(a.v[i]);
			c.v[i] = from_float<T>(g / (1 + expf(-g)) * to_float(b.v[i]));
			v[i] = to_float(c.v[i]);
		}
		*(pack<T> *)to = c;
	} else {
		for (int i = 0; i < count && k + (uint32_t)i < width; i++) {
			float g = to_float(gate[i]);
			to[i] = from_float<T>(g / (1 + expf(-g)) * to_float(up[i]));
		}
	}
	if (round.q)
		byte_round_packs<count, 1>(round, blockIdx.y, v, &k, NULL);
}

template <class T> static __global__ void __launch_bounds__(PLAIN_THREADS) gelu_kernel(T *x, uint32_t stride, const float *bias,
    uint32_t width, struct step_mark mark)
{
	uint32_t k = blockIdx.x * PLAIN_THREADS + threadIdx.x;

	mark_begin(mark);
	if (k < width) {
		T    *at = x + (size_t)blockIdx.y * stride + k;
		float v = to_float(*at) + (bias ? bias[k] : 0);

		*at = from_float<T>(v * 0.5f * (1 + erff(v * 0.70710678118654752f)));
	}
}

/* ---- Pooling ---- */

template <class T> static __global__ void __launch_bounds__(PLAIN_THREADS) pool_kernel(const T *x, uint32_t stride,
    const int32_t *chosen, float *ret, uint32_t width, struct step_mark mark)
{
	__shared__ float shared[PLAIN_THREADS / 32];
	const T *row = x + (size_t)chosen[blockIdx.x] * stride;
	float    sum = 0;

	mark_begin(mark);
	for (uint32_t k = threadIdx.x; k < width; k += PLAIN_THREADS)
		sum += to_float(row[k]) * to_float(row[k]);
	sum = block_sum(sum, shared);
	for (uint32_t k = threadIdx.x; k < width; k += PLAIN_THREADS) /* a row of zeroes stays one */
		ret[(size_t)blockIdx.x * width + k] = sum > 0 ? to_float(row[k]) / sqrtf(sum) : to_float(row[k]);
}

/* ---- Inputs that a checkpoint wants rounded ---- */

static __device__ float round_f8(float x)
{
	uint32_t bits = __float_as_uint(x), sign = bits & 0x80000000;
	float    size = __uint_as_float(bits ^ sign), rounded;

	if (size < 0x1p-6f) { /* steps of 2⁻⁹: the last place of 2¹⁴ */
		rounded = __fadd_rn(size, 0x1p14f);
		rounded = __fadd_rn(rounded, -0x1p14f);
	} else {
		uint32_t up = (bits ^ sign) + 0x7ffff + (bits >> 20 & 1);
		rounded = size < 448 ? __uint_as_float(up & ~0xfffffu) : size > 448 ? 448 : size;
	}
	return __uint_as_float(__float_as_uint(rounded) | sign);
}

/* A block for a group of a row: x = round(x / s) · s, s = amax / largest or FIXED. */
template <class T> static __global__ void __launch_bounds__(PLAIN_THREADS) round_kernel(const T *x, T *y, uint32_t stride,
    uint32_t width,
    uint32_t group, float largest, float fixed, struct step_mark mark)
{
	__shared__ float shared[PLAIN_THREADS / 32];
	uint32_t first = blockIdx.x * group, count = width - first < group ? width - first : group;
	const T *from = x + (size_t)blockIdx.y * stride + first;
	T       *to = y + (size_t)blockIdx.y * stride + first;
	float    amax = 0, scale = fixed;

	mark_begin(mark);
	for (uint32_t k = threadIdx.x; k < count; k += PLAIN_THREADS)
		amax = fmaxf(amax, fabsf(to_float(from[k])));
	for (int o = 16; o; o >>= 1)
		amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, o));
	if (threadIdx.x % 32 == 0)
		shared[threadIdx.x / 32] = amax;
	__syncthreads();
	for (int i = 0; i < PLAIN_THREADS / 32; i++)
		amax = fmaxf(amax, shared[i]);
	if (!(scale > 0))
		scale = fmaxf(__fdiv_rn(amax, largest), 1e-12f);
	for (uint32_t k = threadIdx.x; k < count; k += PLAIN_THREADS) {
		float q = __fdiv_rn(to_float(from[k]), scale);

		q = largest == 448 ? round_f8(q) : fminf(fmaxf(rintf(q), -128), 127);
		to[k] = from_float<T>(q * scale);
	}
}

#endif
