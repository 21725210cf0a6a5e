/* bench_sched.c: what a scheduling step costs: plan and confirmations, over the number of running sequences and of those that
 * wait.  Every step one sequence ends and one request arrives, so that admission is in the figure, too. */
#include "base/clock.h"
#include "engine/sched.h"

#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 2000, KEYS = 64, PROMPT = 200, ANSWER = 4000 };

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static void add(struct sched *sched, uint32_t handle, unsigned *seed, uint64_t now_ns)
{
	sched_add(sched, handle,
	    &(struct sched_job){ .length = 1 + (uint32_t)rand_r(seed) % (2 * PROMPT), .max_new = ANSWER, .expected = ANSWER / 2,
	        .class = (int32_t)((uint32_t)rand_r(seed) % 3), .key = (uint64_t)rand_r(seed) % KEYS, .arrival_ns = now_ns });
}

/* Median and 99th percentile of a step, in µs. */
static int measure(enum sched_policy policy, uint32_t running, uint32_t waiting, double *ret_p50, double *ret_p99)
{
	static uint64_t      times[STEPS];
	struct sched_options options = { .policy = policy, .capacity = running + waiting + 1, .max_running = running,
		.step_tokens = running + 1024, .block_size = 64, .blocks = 1 << 22, .long_prompt_tokens = 8192 };
	struct sched_plan    plan;
	struct sched        *sched;
	unsigned             seed = 1;
	uint32_t             ended = UINT32_MAX;

	if (sched_create(&options, &sched))
		return 1;
	for (uint32_t h = 0; h < running + waiting; h++)
		add(sched, h, &seed, h);
	for (int step = -2000; step < STEPS; step++) {
		uint64_t begin;

		if (ended != UINT32_MAX)
			add(sched, ended, &seed, (uint64_t)(step + 4000) * 1000000);
		ended = UINT32_MAX;
		begin = clock_now_ns();
		sched_plan(sched, options.blocks - running * 100, (uint64_t)(step + 4000) * 1000000, &plan);
		for (uint32_t i = 0; i < plan.count; i++) {
			if (step >= -1 && i == (uint32_t)step % plan.count) {
				ended = plan.items[i].handle;
				sched_remove(sched, ended);
			} else {
				sched_confirm(sched, plan.items[i].handle, plan.items[i].sampled);
			}
		}
		if (step >= 0)
			times[step] = clock_now_ns() - begin;
	}
	qsort(times, STEPS, sizeof *times, compare);
	*ret_p50 = (double)times[STEPS / 2] / 1000;
	*ret_p99 = (double)times[STEPS * 99 / 100] / 1000;
	sched_destroy(sched);
	return 0;
}

int main(void)
{
	static const uint32_t     points[][2] = { { 32, 4096 }, { 128, 4096 }, { 512, 4096 }, { 512, 64 }, { 512, 65536 } };
	static const char *const  names[] = { "fcfs", "priority", "fair" };

	printf("policy    running  waiting   p50 us   p99 us\n");
	for (int policy = SCHED_FCFS; policy <= SCHED_FAIR; policy++)
		for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
			double p50, p99;
			if (measure((enum sched_policy)policy, points[i][0], points[i][1], &p50, &p99))
				return 1;
			printf("%-8s %8u %8u %8.2f %8.2f\n", names[policy], points[i][0], points[i][1], p50, p99);
		}
	return 0;
}
