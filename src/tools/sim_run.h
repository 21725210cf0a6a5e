/* sim_run.h: the real scheduler and block pool, driven with invented time. */
#ifndef PENSTOCK_TOOLS_SIM_RUN_H
#define PENSTOCK_TOOLS_SIM_RUN_H

#include "engine/sched.h"
#include "tools/sim_cost.h"
#include "tools/sim_stats.h"

enum { SIM_LIVE_MAX = 1 << 20 }; /* requests waiting or running at once; a request beyond them is rejected */

#define SIM_RECORD_MAX (UINT64_C(1) << 40) /* bytes */

struct sim_options {
	const struct sim_cost *cost;
	enum sched_policy      policy;
	double                 time_scale; /* arrivals at so many times their time; 0 = all at once */
	FILE                  *record;     /* NULL, or where a recording (engine/sched_trace.h) goes; sim_run closes it */
};

struct sim_result {
	enum sched_policy policy;
	uint64_t finished, rejected, cancelled;
	uint64_t steps, prefill_tokens, generated_tokens, preempted_tokens, kv_peak_tokens;
	double   duration_s, throughput_tok_s, jain; /* from the first arrival to the last end */
	uint64_t step_cpu_p50_ns, step_cpu_p99_ns;   /* measured, not invented: differs from run to run */
	struct sim_group *groups;                    /* owned; keys borrowed from the trace */
	uint32_t          group_count;
};

/* Runs TRACE to the end of its last request.  STATUS_INTERNAL says that the scheduler broke its contract. */
enum status sim_run(const struct sim_trace *trace, const struct sim_options *options, struct sim_result *ret, struct error *error);
void        sim_result_free(struct sim_result *result);

#endif
