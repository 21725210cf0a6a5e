/* sched_cost.c: owns what a step is believed to cost: time = step + rows · row + sequences · sequence, fitted to the steps
 * that were measured by least squares with forgetting.  Does not know who is in a step, nor contexts: what attention over
 * long contexts costs shows in the recent steps that the fit follows.
 *
 * Invariant: the three costs are never negative, and the rows it allows are bounded by its caller. */
#include "engine/sched_internal.h"

enum {
	STEPS_KNOWN = 8,           /* before so many steps nothing is said */
	TOKEN_NS = 1000 * 1000,    /* what a token is worth in waiting time while nothing is known */
	TOKEN_NS_LEAST = 50 * 1000,
	TOKEN_NS_MOST = 20 * 1000 * 1000,
	AGEING = 16                /* a token of work is worth this many times its own cost in waiting */
};

static const double FORGETTING = 0.98; /* half of what is known is from the last 34 steps */

void sched_cost_init(struct sched_cost *cost) { *cost = (struct sched_cost){ .ratio = 1 }; }

/* Least squares over the columns A and B (indices into the normal equations) with nothing else. */
static void fit_two(const struct sched_cost *c, int a, int b, double ret[3])
{
	double determinant = c->sums[a][a] * c->sums[b][b] - c->sums[a][b] * c->sums[a][b];

	if (determinant <= 1e-9 * c->sums[a][a] * c->sums[b][b]) { /* steps all alike: everything is in one coefficient */
		ret[b] = c->sums[b][b] > 0 ? c->products[b] / c->sums[b][b] : 0;
		return;
	}
	ret[a] = (c->products[a] * c->sums[b][b] - c->products[b] * c->sums[a][b]) / determinant;
	ret[b] = (c->products[b] * c->sums[a][a] - c->products[a] * c->sums[a][b]) / determinant;
	if (ret[a] < 0) {
		ret[a] = 0;
		ret[b] = c->products[b] / c->sums[b][b];
	} else if (ret[b] < 0) {
		ret[b] = 0;
		ret[a] = c->products[a] / c->sums[a][a];
	}
}

static double determinant3(const double m[3][3])
{
	return m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1]) - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0]) +
	    m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0]);
}

/* All three by Cramer's rule; when one comes out negative or the steps do not tell them apart, without the sequences. */
static void fit(struct sched_cost *c)
{
	double x[3] = { 0, 0, 0 }, whole = determinant3(c->sums);
	bool   good = whole > 1e-9 * c->sums[0][0] * c->sums[1][1] * c->sums[2][2];

	for (int column = 0; good && column < 3; column++) {
		double m[3][3];
		for (int i = 0; i < 3; i++)
			for (int j = 0; j < 3; j++)
				m[i][j] = j == column ? c->products[i] : c->sums[i][j];
		x[column] = determinant3(m) / whole;
		good = x[column] >= 0;
	}
	if (!good) {
		x[0] = x[1] = x[2] = 0;
		fit_two(c, 0, 1, x);
	}
	c->step = x[0];
	c->row = x[1];
	c->sequence = x[2];
}

static double predict(const struct sched_cost *c, double rows, double sequences)
{
	return c->step + rows * c->row + sequences * c->sequence;
}

void sched_cost_add(struct sched_cost *cost, uint32_t rows, uint32_t sequences, uint64_t step_ns)
{
	double x[3] = { 1, rows, sequences }, y = (double)step_ns;

	if (rows == 0)
		return;
	if (cost->steps >= STEPS_KNOWN) {
		double expected = predict(cost, rows, sequences), ratio = expected > 0 ? y / expected : 1;
		ratio = ratio < 0.5 ? 0.5 : ratio > 2 ? 2 : ratio;
		cost->ratio += (ratio - cost->ratio) / 8;
		y = y > 8 * expected && expected > 0 ? 8 * expected : y; /* one step that hung is no reason to stop prompts */
	}
	for (int i = 0; i < 3; i++) {
		for (int j = 0; j < 3; j++)
			cost->sums[i][j] = cost->sums[i][j] * FORGETTING + x[i] * x[j];
		cost->products[i] = cost->products[i] * FORGETTING + x[i] * y;
	}
	cost->steps++;
	fit(cost);
}

uint32_t sched_cost_rows(const struct sched_cost *cost, uint32_t decodes, uint64_t target_ns)
{
	double room;

	if (cost->steps < STEPS_KNOWN || cost->row <= 0)
		return UINT32_MAX;
	room = (double)target_ns / (cost->ratio > 1 ? cost->ratio : 1) - predict(cost, decodes, decodes);
	if (room <= 0)
		return 0;
	room /= cost->row;
	return room >= (double)UINT32_MAX ? UINT32_MAX : (uint32_t)room;
}

uint32_t sched_cost_beside(const struct sched_cost *cost, uint32_t decodes, uint32_t part, uint32_t most)
{
	enum { LEAST = 16 };
	double rows;

	if (cost->steps < STEPS_KNOWN || cost->row <= 0)
		return most;
	rows = predict(cost, decodes, decodes) / (part * cost->row);
	if (rows < LEAST)
		rows = LEAST;
	return rows < most ? (uint32_t)rows : most;
}

uint64_t sched_cost_token_ns(const struct sched_cost *cost)
{
	double ns = AGEING * cost->row;

	if (cost->steps < STEPS_KNOWN)
		return TOKEN_NS;
	return ns < TOKEN_NS_LEAST ? TOKEN_NS_LEAST : ns > TOKEN_NS_MOST ? TOKEN_NS_MOST : (uint64_t)ns;
}

uint64_t sched_cost_least_ns(const struct sched_cost *cost, uint32_t rows)
{
	if (cost->steps < STEPS_KNOWN)
		return 0;
	return (uint64_t)(cost->row * rows / 2); /* half of it: what is refused must be hopeless */
}
