/* norm.cuh: the norm of a row by any number of warps: what norm_kernel (rows.cuh) and products that do a postponed norm themselves
 * (postponed.h) share.  Invariant: the bits are the same however many warps do it.
 *
 * A row is cut into packs of 16 bytes of T, 32 packs are a line.  Line l belongs to warp l % warps, pack by pack to its lanes.  A
 * sum over the row goes over the values of a pack in order, over the lanes of a line as a butterfly, and over lines by fours: that
 * order does not depend on who has which line.
 *
 * In a product (sm_90a, one row, launched as launch.cuh says), all threads of the team alike:
 *
 *      struct norm_team team = { thread, threads, barrier };
 *      norm_alone<T, PACKS> norm(job, team);   // before the wait: weights of the norm
 *      dependency_wait();
 *      norm.load();                            // all loads at once, nothing waits for them
 *      …                                       // ask for more of the product's own weights, behind them
 *      norm.run(floats);                       // norm.row.v[p * count + i] is y at norm.row.index(p * count) + i, to T's bits
 */
#ifndef PENSTOCK_GPU_NORM_CUH
#define PENSTOCK_GPU_NORM_CUH

#include "gpu/block.cuh"
#include "gpu/postponed.h"

enum { NORM_LINES_MAX = 256 };

/* THREADS of the block, whole warps, of which this one is number THREAD; they meet at BARRIER (0: all of the block). */
struct norm_team {
	uint32_t thread, threads, barrier;

	__device__ void meet() const
	{
		if (barrier)
			named_barrier_sync(barrier, threads);
		else
			__syncthreads();
	}
};

/* COUNT values at a time, from either type. */
template <int COUNT, class S> static __device__ inline void load_values(const S *from, float *ret)
{
#pragma unroll
	for (int p = 0; p < COUNT / pack<S>::count; p++) {
		pack<S> values = ((const pack<S> *)from)[p];

#pragma unroll
		for (int i = 0; i < pack<S>::count; i++)
			ret[p * pack<S>::count + i] = to_float(values.v[i]);
	}
}

template <int COUNT, class S> static __device__ inline void store_values(S *to, const float *from)
{
#pragma unroll
	for (int p = 0; p < COUNT / pack<S>::count; p++) {
		pack<S> values;

#pragma unroll
		for (int i = 0; i < pack<S>::count; i++)
			values.v[i] = from_float<S>(from[p * pack<S>::count + i]);
		((pack<S> *)to)[p] = values;
	}
}

/* Where value I of a thread's PACKS of COUNT lies in the row. */
template <int COUNT> static __device__ inline uint32_t norm_index(const struct norm_team &team, int i)
{
	return (team.thread + (uint32_t)(i / COUNT) * team.threads) * COUNT + (uint32_t)(i % COUNT);
}

/* A vector of the norm: of few packs in registers, fetched before the row is there.  WHOLE: no pack is there in part. */
template <int COUNT, int PACKS, bool WHOLE = false> struct norm_vector {
	static constexpr bool early = PACKS <= 2;
	const float *from;
	float        v[early ? PACKS * COUNT : 1];

	__device__ norm_vector(const float *vector, const struct norm_team &team, uint32_t width) : from(vector)
	{
		if constexpr (early) {
#pragma unroll
			for (int p = 0; p < PACKS; p++) {
				uint32_t at = norm_index<COUNT>(team, p * COUNT);

				if (vector && at + COUNT <= width) {
					load_values<COUNT>(vector + at, v + p * COUNT);
					continue;
				}
#pragma unroll
				for (int i = 0; i < COUNT; i++)
					v[p * COUNT + i] = !WHOLE && vector && at + (uint32_t)i < width ? vector[at + (uint32_t)i] : 0;
			}
		}
	}
	/* Value I of this thread, which is number INDEX of the row. */
	__device__ float at(int i, uint32_t index, uint32_t width) const
	{
		if constexpr (early)
			return v[i];
		return index < width ? from[index] : 0;
	}
};

/* PACKS × COUNT values of a row in registers of each thread.  WHOLE as above: those of packs that are not there are zeros. */
template <int COUNT, int PACKS, bool WHOLE = false> struct norm_row {
	static constexpr int each = PACKS * COUNT;
	struct norm_team team;
	uint32_t         width;
	float            v[each];

	__device__ norm_row(const struct norm_team &by, uint32_t of) : team(by), width(of) {}

	__device__ uint32_t index(int i) const { return norm_index<COUNT>(team, i); }

	template <class S> __device__ void load(const S *row)
	{
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
#pragma unroll
			for (int i = 0; i < COUNT; i++)
				v[p * COUNT + i] = 0;
			if (index(p * COUNT) < width) /* may read the padding of a row */
				load_values<COUNT>(row + index(p * COUNT), v + p * COUNT);
		}
		clear_padding();
	}

	__device__ void clear_padding()
	{
#pragma unroll
		for (int i = 0; i < each && !WHOLE; i++)
			v[i] = index(i) < width ? v[i] : 0;
	}

	template <class S> __device__ void store(S *row) const
	{
#pragma unroll
		for (int p = 0; p < PACKS; p++)
			if (index(p * COUNT) < width)
				store_values<COUNT>(row + index(p * COUNT), v + p * COUNT);
	}

	/* Of a row that all blocks have: this one's packs of it. */
	template <class S> __device__ void store_share(S *row) const
	{
#pragma unroll
		for (int p = 0; p < PACKS; p++)
			if (index(p * COUNT) < width && index(p * COUNT) / COUNT % gridDim.x == blockIdx.x)
				store_values<COUNT>(row + index(p * COUNT), v + p * COUNT);
	}

	__device__ void add(const float *vector)
	{
#pragma unroll
		for (int i = 0; i < each; i++)
			v[i] += index(i) < width ? vector[index(i)] : 0;
	}

	/* Of DELTA · FACTOR · W, or, without FACTOR, of DELTA. */
	__device__ void add(const norm_row &delta) { for (int i = 0; i < each; i++) v[i] += delta.v[i]; }
	__device__ void add_scaled(const norm_row &delta, float factor, const norm_vector<COUNT, PACKS, WHOLE> &w)
	{
#pragma unroll
		for (int i = 0; i < each; i++)
			v[i] = fmaf(delta.v[i], factor * w.at(i, index(i), width), v[i]);
	}

	__device__ void scale(float factor, const norm_vector<COUNT, PACKS, WHOLE> &w)
	{
#pragma unroll
		for (int i = 0; i < each; i++)
			v[i] *= factor * w.at(i, index(i), width);
	}

	/* Sums over the row: every thread gets them.  SHARED, [NORM_LINES_MAX] at a multiple of 16 bytes, is not used by anybody until
	 * the team has met once more. */
	__device__ float sum(float *shared) const
	{
		float packs[PACKS] = {};

#pragma unroll
		for (int i = 0; i < each; i++)
			packs[i / COUNT] += v[i];
		return sum_packs(packs, shared);
	}
	__device__ float squares(float mean, float *shared) const
	{
		float packs[PACKS] = {};

#pragma unroll
		for (int i = 0; i < each; i++) {
			float x = WHOLE || index(i) < width ? v[i] - mean : 0; /* WHOLE: of mean 0 */

			packs[i / COUNT] = fmaf(x, x, packs[i / COUNT]);
		}
		return sum_packs(packs, shared);
	}
	__device__ float sum_packs(float *packs, float *shared) const
	{
		uint32_t lines = (width + 32 * COUNT - 1) / (32 * COUNT);
		float    sums[4] = {};

#pragma unroll
		for (int o = 16; o; o >>= 1)
#pragma unroll
			for (int p = 0; p < PACKS; p++)
				packs[p] += __shfl_xor_sync(~0u, packs[p], o);
		if (team.thread % 32 == 0)
#pragma unroll
			for (int p = 0; p < PACKS; p++)
				if (index(p * COUNT) < width)
					shared[index(p * COUNT) / (32 * COUNT)] = packs[p];
		team.meet();
		for (uint32_t i = 0; i < lines; i += 4) { /* loads do not wait for sums */
			pack<float> four = *(const pack<float> *)(shared + i);

#pragma unroll
			for (uint32_t j = 0; j < 4; j++)
				sums[j] += i + j < lines ? four.v[j] : 0;
		}
		return (sums[0] + sums[1]) + (sums[2] + sums[3]);
	}
	__device__ float factor(float squares, float eps) const { return rsqrtf(squares / (float)width + eps); }
};

/* A postponed norm of the row that a product is alone with, whose width is a multiple of a pack's. */
template <class T, int PACKS> struct norm_alone {
	static constexpr int count = pack<T>::count;
	static constexpr uint32_t shared_floats = 2 * NORM_LINES_MAX;
	const struct norm_prologue  &job;
	norm_row<count, PACKS, true> row;
	norm_vector<count, PACKS, true> w, inner;
	pack<float>                  x[PACKS * count / 4];
	pack<T>                      delta[PACKS];

	/* The widest row that a team of so many threads has registers for. */
	static __host__ __device__ constexpr uint32_t width_max(uint32_t threads) { return threads * PACKS * count; }

	__device__ norm_alone(const struct norm_prologue &of, const struct norm_team &team)
	    : job(of), row(team, of.width), w(of.w, team, of.width), inner(of.inner_norm, team, of.width)
	{
	}

	__device__ void load()
	{
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			uint32_t at = row.index(p * count);

			if (at < job.width) {
#pragma unroll
				for (int i = 0; i < count / 4; i++)
					x[p * (count / 4) + i] = *(const pack<float> *)(job.x + at + 4 * i);
				delta[p] = *(const pack<T> *)((const T *)job.delta + at);
			} else {
				x[p * (count / 4)] = x[p * (count / 4) + count / 4 - 1] = {};
				delta[p] = {};
			}
		}
	}

	/* FLOATS [shared_floats] as for norm_row::sum. */
	__device__ void run(float *floats)
	{
		norm_row<count, PACKS, true> add(row.team, job.width);

#pragma unroll
		for (int i = 0; i < row.each; i++) {
			row.v[i] = x[i / 4].v[i % 4];
			add.v[i] = to_float(delta[i / count].v[i % count]);
		}
		if (job.inner_norm)
			row.add_scaled(add, add.factor(add.squares(0, floats), job.inner_eps), inner);
		else
			row.add(add);
		row.store_share(job.sum);
		row.scale(row.factor(row.squares(0, floats + NORM_LINES_MAX), job.eps), w);
#pragma unroll
		for (int i = 0; i < row.each; i++)
			row.v[i] = to_float(from_float<T>(row.v[i]));
		row.store_share((T *)job.y);
	}
};

#endif
