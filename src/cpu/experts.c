/* experts.c: owns mixtures of experts: the choice of a token's experts, and their products.  Does not own the products
 * themselves (linear.c).  Invariant: what a row gets depends on the row alone: its experts are chosen from its own scores, each
 * multiplies it as a plain linear layer would, and the results are added in the order of experts' numbers.
 *
 *      chosen by row      row 0: 5 2    row 1: 2 7    row 2: 5 2
 *      sorted by expert   2: 0 1 2      5: 0 2        7: 1                each run is one product of so many rows
 *
 * Weights of experts that nobody chose are not touched. */
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { ALONE = 8192 /* floats of row-wise work that one thread does faster than it shares out */ };

/* ---- The choice ---- */

struct route_job {
	const struct cpu_backend *cpu;
	const struct router_desc *router;
	const float *bias; /* NULL = none */
};

/* The best of COUNT that is not taken: the lowest number among equals, and with NaN among them. */
static uint32_t best_of(const float *scores, const uint8_t *taken, uint32_t count)
{
	uint32_t best = count;

	for (uint32_t i = 0; i < count; i++)
		if (!taken[i] && (best == count || scores[i] > scores[best]))
			best = i;
	return best;
}

/* Takes all experts that are not in the best groups.  SUMS [groups], KEEP [groups]. */
static void leave_groups_out(const struct router_desc *router, const float *scores, uint8_t *taken, float *sums, uint8_t *keep)
{
	uint32_t each = router->experts / router->groups;

	for (uint32_t g = 0; g < router->groups; g++) {
		uint32_t first = best_of(scores + g * each, taken + g * each, each), second;

		taken[g * each + first] = 1;
		second = best_of(scores + g * each, taken + g * each, each);
		taken[g * each + first] = 0;
		sums[g] = scores[g * each + first] + scores[g * each + second];
	}
	memset(keep, 0, router->groups);
	for (uint32_t i = 0; i < router->top_groups; i++)
		keep[best_of(sums, keep, router->groups)] = 1;
	for (uint32_t g = 0; g < router->groups; g++)
		memset(taken + g * each, !keep[g], each);
}

static void route_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct route_job   *job = context;
	const struct router_desc *router = job->router;
	const struct cpu_scratch *scratch = &job->cpu->scratch;
	float                    *scores = scratch->threads[thread].routing, *sums = scores + router->experts;
	uint8_t                  *taken = (uint8_t *)(sums + router->experts), *keep = taken + router->experts;

	for (uint32_t row = first; row < first + count; row++) {
		float    *s = scratch->router + (size_t)row * router->experts, total = 0;
		uint32_t *chosen = scratch->chosen + (size_t)row * router->top_k;
		float    *weights = scratch->chosen_weights + (size_t)row * router->top_k;

		for (uint32_t e = 0; e < router->experts; e++) {
			s[e] = 1 / (1 + expf(-s[e]));
			scores[e] = s[e] + (job->bias ? job->bias[e] : 0);
		}
		memset(taken, 0, router->experts);
		if (router->groups > 1)
			leave_groups_out(router, scores, taken, sums, keep);
		for (uint32_t k = 0; k < router->top_k; k++) {
			chosen[k] = best_of(scores, taken, router->experts);
			taken[chosen[k]] = 1;
			weights[k] = s[chosen[k]];
			total += weights[k];
		}
		for (uint32_t k = 0; k < router->top_k; k++)
			weights[k] = (router->normalise ? weights[k] / (total + 1e-20f) : weights[k]) * router->scale;
	}
}

size_t cpu_routing_thread_floats(uint32_t experts) { return (size_t)experts * 3; }

enum status cpu_route(struct backend *b, const struct backend_weight *w, const struct backend_weight *bias,
    const struct router_desc *router, const struct activation *x)
{
	struct cpu_backend          *cpu = (struct cpu_backend *)b;
	const struct backend_limits *limits = &cpu->scratch.limits;
	struct route_job             job = { .cpu = cpu, .router = router, .bias = bias ? bias->vector : NULL };
	uint32_t                     rows;
	enum status                  status;

	if (!cpu->batch || router->experts < 1 || router->experts > limits->experts || router->top_k < 1 ||
	    router->top_k > limits->top_k || router->groups < 1 || router->experts % router->groups ||
	    (router->groups > 1 && (router->experts / router->groups < 2 || router->top_groups < 1 ||
	    router->top_groups > router->groups || router->top_k > router->experts / router->groups * router->top_groups)) ||
	    router->top_k > router->experts || w->rows != router->experts || w->columns != x->width || cpu->batch->rows > x->rows ||
	    (bias && (!bias->vector || bias->columns != router->experts)))
		return STATUS_INVALID;
	rows = cpu->batch->rows;
	status = cpu_linear(cpu, w, NULL, x->data, x->width, rows, cpu->scratch.router, router->experts);
	if (status)
		return status;
	if ((uint64_t)rows * router->experts * router->top_k <= ALONE)
		route_rows(&job, 0, 0, rows);
	else
		team_run(cpu->team, route_rows, &job, rows);
	cpu->routed = *router;
	return STATUS_OK;
}

/* ---- The products ---- */

/* Rows of the batch sorted by expert: those of expert FIRST + i are expert_rows[expert_starts[i] … expert_starts[i + 1]), each
 * with its weight. */
static void sort_rows(struct cpu_backend *cpu, const struct expert_desc *experts)
{
	struct cpu_scratch *scratch = &cpu->scratch;
	uint32_t           *starts = scratch->expert_starts, top_k = cpu->routed.top_k, pairs = cpu->batch->rows * top_k;

	memset(starts, 0, ((size_t)experts->count + 2) * sizeof *starts);
	for (uint32_t i = 0; i < pairs; i++)
		if (scratch->chosen[i] - experts->first < experts->count)
			starts[scratch->chosen[i] - experts->first + 2]++;
	for (uint32_t e = 2; e < experts->count + 2; e++)
		starts[e] += starts[e - 1];
	/* starts[e + 1] is where the next one of expert e goes, and in the end where those of e + 1 begin. */
	for (uint32_t i = 0; i < pairs; i++) {
		uint32_t at, e = scratch->chosen[i] - experts->first;

		if (e >= experts->count)
			continue;
		at = starts[e + 1]++;
		scratch->expert_rows[at] = i / top_k;
		scratch->expert_weights[at] = scratch->chosen_weights[i];
	}
}

struct expert_job {
	const struct cpu_backend *cpu;
	const uint32_t *rows;
	const float    *weights, *x;
	float          *y;
	size_t          x_stride, y_stride;
	uint32_t        width; /* of the inner activation */
};

static void gather_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct expert_job *job = context;

	(void)thread;
	for (uint32_t i = first; i < first + count; i++)
		memcpy(job->cpu->scratch.expert_in + i * job->x_stride, job->x + job->rows[i] * job->x_stride,
		    job->x_stride * sizeof *job->x);
}

static void gate_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct expert_job *job = context;

	(void)thread;
	for (uint32_t i = first; i < first + count; i++) {
		const float *gate = job->cpu->scratch.expert_gated + (size_t)i * 2 * job->width;

		job->cpu->kernels->silu(gate, gate + job->width, job->width, job->cpu->scratch.expert_activated + (size_t)i * job->width);
	}
}

static void add_rows(void *context, unsigned thread, uint32_t first, uint32_t count)
{
	const struct expert_job *job = context;

	(void)thread;
	for (uint32_t i = first; i < first + count; i++) {
		const float *out = job->cpu->scratch.expert_out + i * job->y_stride;
		float       *y = job->y + job->rows[i] * job->y_stride;

		for (size_t k = 0; k < job->y_stride; k++)
			y[k] += job->weights[i] * out[k];
	}
}

static void run(const struct cpu_backend *cpu, team_function *function, struct expert_job *job, uint32_t rows, size_t width)
{
	if (rows * width <= ALONE)
		function(job, 0, 0, rows);
	else
		team_run(cpu->team, function, job, rows);
}

static bool fits(const struct cpu_backend *cpu, const struct backend_weight *gate_up, const struct backend_weight *down,
    const struct activation *x, const struct activation *y)
{
	return gate_up && down && gate_up->columns == x->width && gate_up->rows % 2 == 0 && down->columns == gate_up->rows / 2 &&
	       down->rows == y->width && down->columns <= cpu->scratch.limits.expert_width;
}

enum status cpu_experts(struct backend *b, const struct expert_desc *experts, const struct activation *x, struct activation *y)
{
	struct cpu_backend *cpu = (struct cpu_backend *)b;
	struct cpu_scratch *scratch = &cpu->scratch;
	struct expert_job   job = { .cpu = cpu, .x = x->data, .y = y->data, .x_stride = x->width, .y_stride = y->width };

	if (!cpu->batch || !cpu->routed.experts || experts->first > cpu->routed.experts ||
	    experts->count > cpu->routed.experts - experts->first || x->width > scratch->limits.stream ||
	    y->width > scratch->limits.stream || cpu->batch->rows > x->rows || cpu->batch->rows > y->rows)
		return STATUS_INVALID;
	sort_rows(cpu, experts);
	for (uint32_t e = 0; e < experts->count; e++) {
		const struct backend_weight *gate_up = experts->gate_up[e], *down = experts->down[e];
		uint32_t    start = scratch->expert_starts[e], rows = scratch->expert_starts[e + 1] - start;
		enum status status;

		if (!rows)
			continue;
		if (!fits(cpu, gate_up, down, x, y))
			return STATUS_INVALID;
		job.rows = scratch->expert_rows + start;
		job.weights = scratch->expert_weights + start;
		job.width = down->columns;
		run(cpu, gather_rows, &job, rows, x->width);
		status = cpu_linear(cpu, gate_up, NULL, scratch->expert_in, x->width, rows, scratch->expert_gated, gate_up->rows);
		if (status)
			return status;
		run(cpu, gate_rows, &job, rows, gate_up->rows);
		status = cpu_linear(cpu, down, NULL, scratch->expert_activated, down->columns, rows, scratch->expert_out, y->width);
		if (status)
			return status;
		run(cpu, add_rows, &job, rows, y->width);
		cpu->work.experts++;
		cpu->work.expert_rows += rows;
	}
	return STATUS_OK;
}
