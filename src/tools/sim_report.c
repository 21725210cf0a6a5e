/* sim_report.c: owns how results are written.  Invariant: the fields of the JSON object and their order are an interface;
 * new ones come last. */
#include "tools/sim_report.h"

#include "api/json_text.h"
#include "base/buf.h"

#include <inttypes.h>
#include <string.h>

enum { REPORT_MAX = 256 << 20, TABLE_KEYS_MAX = 20, GROUP_NAME_MAX = SIM_NAME_MAX + 16 };

static const char *const policies[] = { [SCHED_FCFS] = "fcfs", [SCHED_PRIORITY] = "priority", [SCHED_FAIR] = "fair" };

const char *sim_policy_name(enum sched_policy policy) { return policies[policy]; }

bool sim_policy_parse(const char *name, enum sched_policy *ret)
{
	for (unsigned i = 0; i < sizeof policies / sizeof policies[0]; i++)
		if (strcmp(policies[i], name) == 0) {
			*ret = (enum sched_policy)i;
			return true;
		}
	return false;
}

static const char *group_name(char ret[GROUP_NAME_MAX], const struct sim_group *group)
{
	switch (group->kind) {
	case SIM_GROUP_SHORT:
		return "short";
	case SIM_GROUP_LONG:
		return "long";
	case SIM_GROUP_KEY:
		snprintf(ret, GROUP_NAME_MAX, "key:%s", group->key);
		break;
	case SIM_GROUP_CLASS:
		snprintf(ret, GROUP_NAME_MAX, "class:%d", group->class);
		break;
	}
	return ret;
}

static double seconds(uint64_t ns) { return (double)ns / 1e9; }

enum status sim_report_json(const struct sim_result *r, FILE *stream)
{
	struct buf  out;
	char        name[GROUP_NAME_MAX];
	enum status status;

	buf_init(&out, REPORT_MAX);
	status = buf_append_format(&out,
	    "{\"policy\":\"%s\",\"finished\":%" PRIu64 ",\"rejected\":%" PRIu64 ",\"cancelled\":%" PRIu64 ",\"throughput_tok_s\":%.3f,"
	    "\"prefill_tokens\":%" PRIu64 ",\"cached_tokens\":0,\"preempted_tokens\":%" PRIu64 ",\"jain\":%.6f,"
	    "\"step_cpu_us_p50\":%.3f,\"step_cpu_us_p99\":%.3f,\"groups\":[",
	    sim_policy_name(r->policy), r->finished, r->rejected, r->cancelled, r->throughput_tok_s, r->prefill_tokens,
	    r->preempted_tokens, r->jain, (double)r->step_cpu_p50_ns / 1e3, (double)r->step_cpu_p99_ns / 1e3);
	for (uint32_t i = 0; i < r->group_count && !status; i++) {
		const struct sim_group *g = &r->groups[i];
		const char             *group = group_name(name, g);

		status = buf_append_string(&out, i ? ",{\"group\":" : "{\"group\":");
		if (!status)
			status = json_text_append_string(&out, group, strlen(group));
		if (!status)
			status = buf_append_format(&out,
			    ",\"requests\":%" PRIu64 ",\"finished\":%" PRIu64 ",\"rejected\":%" PRIu64 ",\"ttft_p50_s\":%.9f,"
			    "\"ttft_p99_s\":%.9f,\"itl_p99_s\":%.9f,\"wait_max_s\":%.9f,\"service_tokens\":%" PRIu64 "}",
			    g->requests, g->finished, g->rejected, seconds(g->ttft_p50_ns), seconds(g->ttft_p99_ns), seconds(g->itl_p99_ns),
			    seconds(g->wait_max_ns), g->service_tokens);
	}
	if (!status)
		status = buf_append_format(&out,
		    "],\"generated_tokens\":%" PRIu64 ",\"duration_s\":%.9f,\"steps\":%" PRIu64 ",\"kv_peak_tokens\":%" PRIu64 "}\n",
		    r->generated_tokens, r->duration_s, r->steps, r->kv_peak_tokens);
	if (!status)
		fwrite(out.data, 1, out.len, stream);
	buf_free(&out);
	return status;
}

void sim_report_table(const struct sim_result *r, FILE *stream)
{
	char     name[GROUP_NAME_MAX];
	uint32_t keys = 0;

	fprintf(stream, "policy            %s\n", sim_policy_name(r->policy));
	fprintf(stream, "requests          %" PRIu64 " finished, %" PRIu64 " rejected, %" PRIu64 " cancelled\n", r->finished,
	    r->rejected, r->cancelled);
	fprintf(stream, "throughput        %.1f tokens/s: %" PRIu64 " tokens in %.3f s, %" PRIu64 " steps\n", r->throughput_tok_s,
	    r->generated_tokens, r->duration_s, r->steps);
	fprintf(stream, "prompt tokens     %" PRIu64 " computed, 0 cached\n", r->prefill_tokens);
	fprintf(stream, "preempted tokens  %" PRIu64 " (%.2f %% of all)\n", r->preempted_tokens,
	    r->preempted_tokens ? 100.0 * (double)r->preempted_tokens / (double)(r->prefill_tokens + r->generated_tokens) : 0.0);
	fprintf(stream, "KV cache          %" PRIu64 " tokens at the peak\n", r->kv_peak_tokens);
	fprintf(stream, "fairness          %.4f (Jain's index over keys)\n", r->jain);
	fprintf(stream, "scheduler         %.2f us a step, %.2f us in one of a hundred (this machine's time)\n\n",
	    (double)r->step_cpu_p50_ns / 1e3, (double)r->step_cpu_p99_ns / 1e3);
	fprintf(stream, "%-16s %9s %9s %9s %11s %11s %11s %11s %13s\n", "group", "requests", "finished", "rejected", "TTFT p50 s",
	    "TTFT p99 s", "ITL p99 s", "wait max s", "service");
	for (uint32_t i = 0; i < r->group_count; i++) {
		const struct sim_group *g = &r->groups[i];

		if (g->kind == SIM_GROUP_KEY && ++keys > TABLE_KEYS_MAX)
			continue;
		fprintf(stream, "%-16s %9" PRIu64 " %9" PRIu64 " %9" PRIu64 " %11.4f %11.4f %11.4f %11.4f %13" PRIu64 "\n",
		    group_name(name, g), g->requests, g->finished, g->rejected, seconds(g->ttft_p50_ns), seconds(g->ttft_p99_ns),
		    seconds(g->itl_p99_ns), seconds(g->wait_max_ns), g->service_tokens);
	}
	if (keys > TABLE_KEYS_MAX)
		fprintf(stream, "and %u more keys (--json shows them)\n", keys - TABLE_KEYS_MAX);
}
