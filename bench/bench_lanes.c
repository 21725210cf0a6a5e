/* bench_lanes: a model through the real path below HTTP: requests written into a lane, penstockd's scheduler and step
 * thread, tokens read from the lane.
 *
 *   bench_lanes MODEL BACKEND STREAMS,… PROMPT,… OUTPUT,… [SECTION.OPTION=VALUE…]
 *
 * Starts a penstockd of its own (abs_top_builddir and abs_top_srcdir as for the tests), and for every combination holds
 * STREAMS requests at once, at most 64; batcher.max_running below STREAMS lets the others wait.  With model.load_format=dummy
 * MODEL is a directory with a config.json and a tokenizer.
 * Prints the mean time to the first token, tokens per second from there on, and what a step took, and took beside the
 * model, by penstockd's own counters. */
#include "support/daemon.h"
#include "support/lane_client.h"

#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES_MAX = 16, SETS = 9, MORE_MAX = DAEMON_SETS_MAX - SETS - 1 };

struct sizes {
	unsigned count, values[SIZES_MAX], most;
};

static int read_sizes(const char *text, unsigned limit, struct sizes *ret)
{
	*ret = (struct sizes){ .count = 0 };
	while (ret->count < SIZES_MAX) {
		char         *end;
		unsigned long value = strtoul(text, &end, 10);

		if (end == text || value < 1 || value > limit || (*end && *end != ','))
			return 0;
		ret->values[ret->count++] = (unsigned)value;
		ret->most = value > ret->most ? (unsigned)value : ret->most;
		if (!*end)
			return 1;
		text = end + 1;
	}
	return 0;
}

static double seconds(uint64_t from, uint64_t to) { return (double)(to - from) * 1e-9; }

/* One line of the table; false when an answer is not whole. */
static int measure(struct daemon *daemon, struct lane_client *client, unsigned streams, unsigned prompt, unsigned output)
{
	uint64_t steps = daemon_metric(daemon, METRIC_steps_total), step_ns = daemon_metric(daemon, METRIC_step_time_ns_total);
	uint64_t beside_ns = daemon_metric(daemon, METRIC_overhead_time_ns_total), begin = clock_now_ns(), last_first = begin, end;
	double   first_sum = 0;
	unsigned begun = 0, ended = 0, count[LANE_SLOTS_MAX] = { 0 }, bad = 0;
	int      done[LANE_SLOTS_MAX] = { 0 };
	uint64_t decoded = 0;

	for (unsigned s = 0; s < streams; s++) {
		uint32_t        value;
		enum lane_reply reply = lane_client_reserve(client, s, 4 * prompt, output, &value);

		bad += reply != LANE_REPLY_ACCEPT && reply != LANE_REPLY_WAIT; /* the second when fewer run at once */
		lane_client_submit_ignoring_eos(client, s, prompt, output, s);
	}
	while (ended < streams && !client->gone && seconds(begin, clock_now_ns()) < 120) {
		uint64_t now;

		lane_client_pump(client, 100);
		now = clock_now_ns();
		for (unsigned s = 0; s < streams; s++) {
			if (!count[s] && client->slots[s].count) {
				first_sum += seconds(begin, now);
				last_first = now;
				begun++;
			}
			count[s] = client->slots[s].count;
			if (!done[s] && client->slots[s].ends) {
				done[s] = 1;
				ended++;
			}
		}
		if (begun == streams && !decoded) /* from here on there are decodes only */
			for (unsigned s = 0; s < streams; s++)
				decoded += output - count[s];
	}
	end = clock_now_ns();
	for (unsigned s = 0; s < streams; s++)
		bad += client->slots[s].count != output || client->slots[s].wrong;
	steps = daemon_metric(daemon, METRIC_steps_total) - steps;
	printf("%8u %8u %8u %10.1f %10.1f %10.1f %8llu %10.3f %12.2f%s\n", streams, prompt, output, first_sum * 1e3 / streams,
	    (double)decoded / (seconds(last_first, end) + 1e-9), (double)streams * output / seconds(begin, end),
	    (unsigned long long)steps,
	    steps ? (double)(daemon_metric(daemon, METRIC_step_time_ns_total) - step_ns) * 1e-6 / (double)steps : 0,
	    steps ? (double)(daemon_metric(daemon, METRIC_overhead_time_ns_total) - beside_ns) * 1e-3 / (double)steps : 0,
	    bad ? "  INCOMPLETE" : "");
	fflush(stdout);
	return bad == 0;
}

int main(int argc, char **argv)
{
	struct sizes              streams, prompts, outputs;
	char                      model[1024], backend[64], running[40], queued[40], slots[40], cache[64];
	const char               *sets[DAEMON_SETS_MAX] = { model, backend, running, queued, slots, cache, "service.log_level=debug",
		                          "batcher.block_size=64", "batcher.step_tokens=2048" };
	static struct lane_client client;
	struct daemon             daemon;
	struct error              error;
	int                       fine = 1;

	if (argc < 6 || argc - 6 > MORE_MAX || !read_sizes(argv[3], LANE_SLOTS_MAX, &streams) ||
	    !read_sizes(argv[4], 1 << 18, &prompts) || !read_sizes(argv[5], 1 << 16, &outputs)) {
		fprintf(stderr, "usage: bench_lanes MODEL BACKEND STREAMS,… PROMPT,… OUTPUT,… [SECTION.OPTION=VALUE…]\n"
		    "at most %d streams\n", (int)LANE_SLOTS_MAX);
		return 2;
	}
	snprintf(model, sizeof model, "model.path=%s", argv[1]);
	snprintf(backend, sizeof backend, "batcher.backend=%s", argv[2]);
	snprintf(running, sizeof running, "batcher.max_running=%u", streams.most);
	snprintf(queued, sizeof queued, "batcher.max_queued=%u", streams.most);
	snprintf(slots, sizeof slots, "front.streams_per_front=%d", (int)LANE_SLOTS_MAX);
	snprintf(cache, sizeof cache, "batcher.kv_tokens=%u", streams.most * ((prompts.most + outputs.most) / 64 + 2) * 64);
	for (int i = 6; i < argc; i++)
		sets[SETS + i - 6] = argv[i];
	daemon_make(&daemon, "script none\nids 1\n", sets);
	daemon_start(&daemon);
	if (lane_client_attach(&client, &daemon, streams.most, 0, &error)) {
		fprintf(stderr, "%s\n", error.message);
		daemon_free(&daemon);
		return 1;
	}
	printf("%8s %8s %8s %10s %10s %10s %8s %10s %12s\n", "streams", "prompt", "output", "first ms", "tok/s", "overall", "steps",
	    "step ms", "beside us");
	for (unsigned p = 0; p < prompts.count; p++)
		for (unsigned o = 0; o < outputs.count; o++)
			for (unsigned s = 0; s < streams.count; s++)
				fine = measure(&daemon, &client, streams.values[s], prompts.values[p], outputs.values[o]) && fine;
	lane_client_close(&client);
	daemon_end(&daemon, SIGTERM);
	if (!fine) {
		char log[8192];

		daemon_log(&daemon, log, sizeof log);
		fputs(log, stderr);
	}
	daemon_free(&daemon);
	return fine ? 0 : 1;
}
