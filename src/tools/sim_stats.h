/* sim_stats.h: what a simulation counts, by group: short and long prompts, every key, every class.
 *
 * Requests that agree in key, class and length share a cell; a group is the sum of its cells.
 *
 * Fairness.  A key is backlogged in a step when, after the step was planned, requests of it still wait.  Service counts
 * while at least two keys of a class are backlogged at once, and only theirs: a key that gets everything it asks for says
 * nothing about fairness, however little it is.  In such a step every backlogged key is owed an equal part of the tokens
 * computed for all of them.  Jain's index is over keys of service ÷ what they were owed.
 */
#ifndef PENSTOCK_TOOLS_SIM_STATS_H
#define PENSTOCK_TOOLS_SIM_STATS_H

#include "tools/sim_histogram.h"
#include "tools/sim_trace.h"

enum { SIM_CELLS_MAX = 1 << 18, SIM_CLASSES_MAX = 256 };

struct sim_stats; /* opaque */

enum sim_group_kind { SIM_GROUP_SHORT, SIM_GROUP_LONG, SIM_GROUP_KEY, SIM_GROUP_CLASS };

struct sim_group {
	enum sim_group_kind kind;
	const char *key;   /* of SIM_GROUP_KEY, borrowed from the trace */
	int32_t     class; /* of SIM_GROUP_CLASS */
	uint64_t    requests, finished, rejected, service_tokens;
	uint64_t    ttft_p50_ns, ttft_p99_ns, itl_p99_ns, wait_max_ns;
};

/* Sorts the requests of TRACE (borrowed) into cells; *ret_cells [count] is the caller's to free. */
enum status sim_stats_create(const struct sim_trace *trace, uint32_t long_prompt_tokens, struct sim_stats **ret,
    uint32_t **ret_cells, struct error *error);
void        sim_stats_destroy(struct sim_stats *stats);

/* A request of CELL begins or ends to wait for its (next) first step. */
void sim_stats_wait(struct sim_stats *stats, uint32_t cell);
void sim_stats_wait_over(struct sim_stats *stats, uint32_t cell);
/* The first wait of a request took so long. */
void sim_stats_waited(struct sim_stats *stats, uint32_t cell, uint64_t ns);
void sim_stats_served(struct sim_stats *stats, uint32_t cell, uint32_t tokens);
void sim_stats_step_over(struct sim_stats *stats);
/* False when there is no memory. */
bool sim_stats_first_token(struct sim_stats *stats, uint32_t cell, uint64_t ttft_ns);
bool sim_stats_next_token(struct sim_stats *stats, uint32_t cell, uint64_t gap_ns);

enum sim_end { SIM_FINISHED, SIM_REJECTED, SIM_CANCELLED };
void sim_stats_end(struct sim_stats *stats, uint32_t cell, enum sim_end end);

/* 1 when no two keys were ever backlogged at once.  Keys owed less than a twentieth of what the most patient key was owed
 * are left out: a handful of steps proves nothing. */
double sim_stats_jain(const struct sim_stats *stats);

/* The groups in the order of their kinds; keys in the order of the trace, classes ascending.  The caller frees. */
enum status sim_stats_groups(const struct sim_stats *stats, struct sim_group **ret, uint32_t *ret_count);

#endif
