/* bench_batcher: what a step costs beside the model: scheduling, lanes, wake-ups (overhead_time_ns_total of penstockd).
 *
 *   bench_batcher [STREAMS [TOKENS [PACE_US [MODEL]]]]        default 8 streams of 1000 tokens, pace 10000, script backend
 *
 * Starts a penstockd of its own (abs_top_builddir and abs_top_srcdir as for the tests), holds one lane, runs STREAMS
 * streams at once.  With PACE_US = 0 the steps are nothing but overhead: its absolute cost.  With MODEL the CPU backend
 * runs that file and PACE_US does not count. */
#include "support/daemon.h"
#include "support/lane_client.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned number(int argc, char **argv, int at, unsigned value)
{
	return argc > at ? (unsigned)strtoul(argv[at], NULL, 10) : value;
}

int main(int argc, char **argv)
{
	unsigned                  streams = number(argc, argv, 1, 8), tokens = number(argc, argv, 2, 1000);
	unsigned                  pace = number(argc, argv, 3, 10000), bad = 0;
	char                      script[200], running[40], queued[40], slots[40], cache[40], model[300];
	const char               *sets[] = { running, queued, slots, "batcher.step_tokens=256", cache, "service.log_level=info", NULL,
		                          NULL, NULL };
	struct daemon             daemon;
	static struct lane_client client;
	struct error              error;
	uint64_t                  began, ended, steps, step_ns, overhead_ns;

	if (streams < 1 || streams > LANE_SLOTS_MAX || tokens < 1 || tokens > 1900) {
		fprintf(stderr, "usage: bench_batcher [STREAMS [TOKENS [PACE_US [MODEL]]]], at most 64 streams of 1900 tokens\n");
		return 2;
	}
	snprintf(script, sizeof script, "script bench\npace %u\nids 10 11 12 13 14 15 16 17\nrepeat 0\n", pace);
	snprintf(running, sizeof running, "batcher.max_running=%u", streams);
	snprintf(queued, sizeof queued, "batcher.max_queued=%u", streams);
	snprintf(slots, sizeof slots, "front.streams_per_front=%u", LANE_SLOTS_MAX);
	snprintf(cache, sizeof cache, "batcher.kv_tokens=%u", streams * 2048);
	if (argc > 4) {
		snprintf(model, sizeof model, "model.path=%s", argv[4]);
		sets[6] = model;
		sets[7] = "batcher.backend=cpu";
	}
	daemon_make(&daemon, script, sets);
	daemon_start(&daemon);
	if (lane_client_attach(&client, &daemon, streams, 0, &error)) {
		fprintf(stderr, "%s\n", error.message);
		daemon_free(&daemon);
		return 1;
	}
	began = daemon_now_ms();
	for (unsigned s = 0; s < streams; s++) {
		uint32_t value;
		lane_client_reserve(&client, s, 64, tokens, &value);
		lane_client_submit_ignoring_eos(&client, s, 16, tokens, s);
	}
	for (unsigned s = 0; s < streams; s++)
		bad += !lane_client_wait_end(&client, s) || client.slots[s].count != tokens;
	ended = daemon_now_ms();
	steps = daemon_metric(&daemon, METRIC_steps_total);
	step_ns = daemon_metric(&daemon, METRIC_step_time_ns_total);
	overhead_ns = daemon_metric(&daemon, METRIC_overhead_time_ns_total);
	printf("streams %u, tokens %u each, %s: %.1f tokens/s, %llu steps of %.1f us, overhead %.2f us a step = %.3f %%, "
	       "%llu wakes%s\n",
	    streams, tokens, argc > 4 ? argv[4] : "script", (double)streams * tokens * 1000 / (double)(ended - began + 1),
	    (unsigned long long)steps, (double)step_ns / 1e3 / (double)steps, (double)overhead_ns / 1e3 / (double)steps,
	    100.0 * (double)overhead_ns / (double)step_ns, (unsigned long long)daemon_metric(&daemon, METRIC_wakeups_total),
	    bad ? "  INCOMPLETE" : "");
	lane_client_close(&client);
	daemon_end(&daemon, SIGTERM);
	daemon_free(&daemon);
	return bad != 0;
}
