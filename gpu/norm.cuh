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
 *      norm_alone<T, PACKS> norm(job, team, floats); // before the wait: weights of the norm
 *      dependency_wait();
 *      norm.load();                            // all loads at once, nothing waits for them
 *      …                                       // ask for what else is needed, behind them
 *      norm.run();                             // norm.y[p] is y at norm.index(p), of those packs that are there
 */
#ifndef PENSTOCK_GPU_NORM_CUH
#define PENSTOCK_GPU_NORM_CUH

#include "gpu/block.cuh"
#include "gpu/postponed.h"

#include <string.h>

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

/* A vector of the norm: of few packs in registers, fetched before the row is there.  WHOLE: no pack is there in part, and OTHERWISE
 * is where no vector is. */
template <int COUNT, int PACKS, bool WHOLE = false> struct norm_vector {
	static constexpr bool early = PACKS <= 2;
	const float *from;
	float        v[early ? PACKS * COUNT : 1];

	__device__ norm_vector(const float *vector, const struct norm_team &team, uint32_t width, float otherwise = 0) : from(vector)
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
					v[p * COUNT + i] = WHOLE ? otherwise : vector && at + (uint32_t)i < width ? vector[at + (uint32_t)i] : 0;
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

/* A postponed norm of the row that a product is alone with, whose width is a multiple of a pack's.  How many instructions are
 * between the wait and y shows in a step's time: a warp skips lines that it does not have, and what can be known before the wait
 * is. */
template <class T, int PACKS> struct norm_alone {
	static_assert(PACKS <= 2); /* vectors are in registers */
	static constexpr int count = pack<T>::count;
	static constexpr uint32_t lines_max = 32, shared_floats = 2 * lines_max;
	const struct norm_prologue     &job;
	const struct norm_team          team;
	float                          *shared;
	norm_vector<count, PACKS, true> w, inner;
	float    v[PACKS * count]; /* x, and then the sum */
	uint4    delta[PACKS];     /* as loaded: who takes it to pieces waits for it */
	pack<T>  y[PACKS];
	bool     line[PACKS], mine[PACKS]; /* the warp has it; this block stores the thread's */
	float    inverse;          /* 1 / width */

	/* The widest row that a team of so many threads, at most 1024 / PACKS, has registers for. */
	static __host__ __device__ constexpr uint32_t width_max(uint32_t threads) { return threads * PACKS * count; }

	__device__ uint32_t index(int p) const { return norm_index<count>(team, p * count); }

	/* FLOATS [shared_floats] are not used by anybody until the team has met once more. */
	__device__ norm_alone(const struct norm_prologue &of, const struct norm_team &by, float *floats)
	    : job(of), team(by), shared(floats), w(of.w, by, of.width), inner(of.inner_norm, by, of.width, 1)
	{
		const uint32_t lines = (job.width + 32 * count - 1) / (32 * count);

		inverse = 1 / (float)job.width;
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			line[p] = index(p) - team.thread % 32 * count < job.width;
			mine[p] = index(p) < job.width && index(p) / count % gridDim.x == blockIdx.x;
		}
		if (team.thread >= lines && team.thread < lines_max)
			shared[team.thread] = shared[lines_max + team.thread] = 0;
	}

	/* In place of packs that are not there, the first one: without conditions. */
	__device__ void load()
	{
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			const uint32_t from = index(p) < job.width ? index(p) : 0;

			load_values<count>(job.x + from, v + p * count);
			delta[p] = ((const uint4 *)job.delta)[from / count];
		}
	}

	/* norm_row::factor of norm_row::sum_packs, with each chain of every fourth line in lanes of its own, and the quotient, rounded
	 * as a division rounds it, by the inverse that is there. */
	__device__ float factor(float *packs, float *floats, float eps) const
	{
		float sum = 0;

#pragma unroll
		for (int p = 0; p < PACKS; p++)
			packs[p] = index(p) < job.width ? packs[p] : 0;
#pragma unroll
		for (int o = 16; o; o >>= 1)
#pragma unroll
			for (int p = 0; p < PACKS; p++)
				packs[p] += __shfl_xor_sync(~0u, packs[p], o);
		if (team.thread % 32 == 0)
#pragma unroll
			for (int p = 0; p < PACKS; p++)
				if (line[p])
					floats[index(p) / (32 * count)] = packs[p];
		team.meet();
#pragma unroll
		for (uint32_t i = 0; i < lines_max; i += 4)
			sum += floats[i + team.thread % 4];
		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		const float about = sum * inverse, rest = fmaf(-about, (float)job.width, sum);

		return rsqrtf(fmaf(rest == rest ? rest : 0, inverse, about) + eps); /* of infinity there is no rest */
	}

	__device__ float delta_of(int p, int i) const
	{
		pack<T> values;

		static_assert(sizeof values == sizeof delta[p]);
		memcpy(&values, &delta[p], sizeof values);
		return to_float(values.v[i]);
	}

	__device__ void run()
	{
		float packs[PACKS] = {}, by = 1;

		if (job.inner_norm) {
#pragma unroll
			for (int p = 0; p < PACKS; p++) {
				if (!line[p])
					continue;
#pragma unroll
				for (int i = 0; i < count; i++) {
					float x = delta_of(p, i);

					packs[p] = fmaf(x, x, packs[p]);
				}
			}
			by = factor(packs, shared, job.inner_eps);
		}
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			packs[p] = 0;
			if (!line[p])
				continue;
#pragma unroll
			for (int i = 0; i < count; i++) {
				float &sum = v[p * count + i];

				sum = fmaf(delta_of(p, i), by * inner.v[p * count + i], sum); /* · 1: a sum */
				packs[p] = fmaf(sum, sum, packs[p]);
			}
			if (mine[p])
				store_values<count>(job.sum + index(p), v + p * count);
		}
		by = factor(packs, shared + lines_max, job.eps);
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			if (!line[p])
				continue;
#pragma unroll
			for (int i = 0; i < count; i++)
				y[p].v[i] = from_float<T>(v[p * count + i] * (by * w.v[p * count + i]));
			if (mine[p])
				((pack<T> *)job.y)[index(p) / count] = y[p];
		}
	}
};

#endif
