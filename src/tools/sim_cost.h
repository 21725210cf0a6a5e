/* sim_cost.h: what a step costs in the simulator, and the limits the scheduler works under: the machine and its
 * configuration, invented.
 *
 *   step = fixed + prefill · (rows of prompts) + decode · (decoding sequences) + context · (tokens attended to / 1,000)
 *
 * A sequence in the step attends once to all tokens it has up to its last row, whether it decodes or not.
 */
#ifndef PENSTOCK_TOOLS_SIM_COST_H
#define PENSTOCK_TOOLS_SIM_COST_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct sim_cost {
	double   fixed_us, prefill_us_per_token, decode_us_per_seq, context_us_per_ktoken;
	uint32_t kv_tokens, block, max_batch, step_tokens, long_prompt_tokens; /* long: 0 = no prompt is */
	double   max_queue_wait_s, itl_target_ms; /* 0 = no limit, no target */
};

/* A JSON object with the fields of struct sim_cost; kv_tokens and the two costs per token must be there, anything unknown
 * is refused.  LABEL begins every message. */
enum status sim_cost_parse(const char *label, const void *bytes, size_t size, struct sim_cost *ret, struct error *error);
enum status sim_cost_open(const char *path, struct sim_cost *ret, struct error *error);

/* Nanoseconds of a step, at least 1,000. */
uint64_t sim_cost_step_ns(const struct sim_cost *cost, uint64_t prefill_rows, uint64_t decodes, uint64_t context_tokens);

#endif
