/* sim_report.h: the result of a simulation, for people and for programs. */
#ifndef PENSTOCK_TOOLS_SIM_REPORT_H
#define PENSTOCK_TOOLS_SIM_REPORT_H

#include "tools/sim_run.h"

#include <stdio.h>

/* "fcfs", "priority", "fair". */
const char *sim_policy_name(enum sched_policy policy);
bool        sim_policy_parse(const char *name, enum sched_policy *ret);

/* One JSON object and a line end.  STATUS_NOMEM. */
enum status sim_report_json(const struct sim_result *result, FILE *stream);
void        sim_report_table(const struct sim_result *result, FILE *stream);

#endif
