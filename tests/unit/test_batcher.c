/* Tests of penstockd as a process: real daemon, script backend, minimal lane clients (tests/support).
 *
 * PENSTOCK_TEST_DISCONNECTS (default 200) is the number of random disconnects, PENSTOCK_TEST_HOSTILE (default 60) that of
 * hostile attachments; both were run with 1000 and more by hand. */
#include "config.h"

#include "support/daemon.h"
#include "support/lane_client.h"

#include "base/clock.h"
#include "batcher/intake.h"
#include "batcher/lanes.h"
#include "batcher/sink.h"

#include <check.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seeds choose scripts by their order. */
enum { SHORT, FOREVER, SLOW, NOT_FINITE, FAULT, LONG, HANG, STUCK, METRONOME };

static const char script[] =
    "prefill 3000\n"
    "script short\npace 500\nids 10 11 12 13\n"
    "script forever\npace 500\nids 20 21 22\nrepeat 0\n"
    "script slow\npace 10000\nids 30\nrepeat 0\n"
    "script not-finite\npace 500\nids 40 nan\n"
    "script fault\npace 500\nids 50 51 fault\n"
    "script long\npace 0\nids 60 61 62 63 64 65 66 67 68 69\nrepeat 200\n"
    "script hang\npace 500\nids 70 71\ndelay 4000000\nids 72\n"
    "script stuck\npace 500\nids 80\ndelay 600000000\nids 81\n"
    "script metronome\npace 0\nids 90\ndelay 1500000\nids 91\ndelay 1500000\nids 92\ndelay 1500000\nids 93\n";

static struct daemon      d;
static struct lane_client a, b;

static void begin(const char *const *sets)
{
	daemon_make(&d, script, sets);
	daemon_start(&d);
}

static void attach(struct lane_client *c)
{
	struct error error;
	ck_assert_msg(lane_client_attach(c, &d, 0, 0, &error) == STATUS_OK, "%s", error.message);
}

static void setup(void)
{
	a.fd = a.wait_fd = b.fd = b.wait_fd = -1;
}

static void teardown(void)
{
	lane_client_close(&a);
	lane_client_close(&b);
	daemon_free(&d);
}

/* Nothing is left in use. */
static void check_idle(void)
{
	ck_assert(daemon_wait_metric(&d, METRIC_slots_in_use, 0));
	ck_assert(daemon_wait_metric(&d, METRIC_kv_blocks_used, 0));
	ck_assert(daemon_wait_metric(&d, METRIC_reservations, 0));
	ck_assert(daemon_wait_metric(&d, METRIC_sequences_running, 0));
	ck_assert(daemon_wait_metric(&d, METRIC_sequences_waiting, 0));
	ck_assert(daemon_wait_metric(&d, METRIC_lanes_attached, (uint64_t)(a.fd >= 0) + (b.fd >= 0)));
}

static void check_end(const struct lane_client *c, uint32_t slot, enum wire_finish finish, enum status status)
{
	ck_assert_uint_eq(c->slots[slot].ends, 1);
	ck_assert_uint_eq(c->slots[slot].end.finish, finish);
	ck_assert_uint_eq(c->slots[slot].end.status, status);
}

/* The ids of script LONG. */
static void check_long(const struct lane_client *c, uint32_t slot, uint32_t count)
{
	ck_assert_uint_eq(c->slots[slot].count, count);
	ck_assert(!c->slots[slot].wrong);
	for (uint32_t i = 0; i < count; i++)
		if (c->slots[slot].ids[i] != 60 + (int32_t)(i % 10))
			ck_abort_msg("id %u is %d", i, c->slots[slot].ids[i]);
}

/* ---- time between tokens -------------------------------------------------------------------------------------------- */

START_TEST(tokens_of_a_step_share_its_time)
{
	struct metrics         metrics = { .shared = calloc(1, sizeof *metrics.shared) };
	struct sink_gap        gap = { 0 };
	struct metrics_reading r;

	sink_gap_add(&gap, 100 * CLOCK_NS_PER_MS, &metrics);
	sink_gap_end(&gap, &metrics);
	metrics_read(&metrics, HISTOGRAM_inter_token_latency_seconds, &r);
	ck_assert_uint_eq(r.total, 0); /* before the first token there is none */
	for (int i = 0; i < 4; i++)
		sink_gap_add(&gap, 120 * CLOCK_NS_PER_MS + 3, &metrics); /* 5 ms each, the last one of the parts 3 ns more */
	sink_gap_add(&gap, 150 * CLOCK_NS_PER_MS, &metrics);
	metrics_read(&metrics, HISTOGRAM_inter_token_latency_seconds, &r);
	ck_assert_uint_eq(r.total, 4);
	ck_assert_uint_eq(r.sum, 20 * CLOCK_NS_PER_MS + 3);
	ck_assert_uint_eq(r.counts[5], 4); /* 4 … 6 ms */
	sink_gap_end(&gap, &metrics);
	sink_gap_end(&gap, &metrics); /* nothing is left */
	metrics_read(&metrics, HISTOGRAM_inter_token_latency_seconds, &r);
	ck_assert_uint_eq(r.total, 5);
	ck_assert_uint_eq(r.sum, 50 * CLOCK_NS_PER_MS);
	free(metrics.shared);
}
END_TEST

/* ---- the plain case ------------------------------------------------------------------------------------------------- */

START_TEST(exact_ids)
{
	static const int32_t expected[] = { 10, 11, 12, 13 };
	uint32_t             value = 77;

	begin(NULL);
	attach(&a);
	ck_assert_uint_eq(a.welcome.slots, 8);
	ck_assert_uint_eq(a.welcome.epoch, d.header.shared->epoch);
	ck_assert_int_eq(lane_client_reserve(&a, 3, 100, 20, &value), LANE_REPLY_ACCEPT);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_slots_in_use), 1);
	ck_assert(daemon_wait_metric(&d, METRIC_reservations, 1));
	lane_client_submit(&a, 3, 7, 20, SHORT);
	ck_assert(lane_client_wait_end(&a, 3));
	check_end(&a, 3, WIRE_FINISH_STOP, STATUS_OK);
	ck_assert_uint_eq(a.slots[3].count, 4);
	ck_assert_int_eq(memcmp(a.slots[3].ids, expected, sizeof expected), 0);
	ck_assert_uint_eq(a.slots[3].end.prompt_tokens, 7);
	ck_assert_uint_eq(a.slots[3].end.completion_tokens, 4);
	/* Everything was given back before the end was told. */
	ck_assert_uint_eq(daemon_metric(&d, METRIC_slots_in_use), 0);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_kv_blocks_used), 0);

	lane_client_start(&a, 3, 1, 3, LONG); /* the same slot again */
	ck_assert(lane_client_wait_end(&a, 3));
	check_end(&a, 3, WIRE_FINISH_LENGTH, STATUS_OK);
	check_long(&a, 3, 3);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_requests_total), 2);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_requests_finished_total), 2);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_generated_tokens_total), 7);
	check_idle();
	lane_client_close(&a);
	check_idle();
	ck_assert_int_eq(daemon_end(&d, SIGTERM), 0);
}
END_TEST

/* More streams than run at a time, on two lanes, with prompts in several records and chunks. */
START_TEST(many_streams)
{
	static const char *const sets[] = { "batcher.max_queued=12", "batcher.kv_tokens=65536", NULL };

	begin(sets);
	attach(&a);
	attach(&b);
	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t s = 0; s < 8; s++) {
			lane_client_start(&a, s, 1 + s * 250, 90 + s, LONG);
			lane_client_start(&b, s, 10 + s, 150 + s, LONG);
		}
		for (uint32_t s = 0; s < 8; s++) {
			ck_assert(lane_client_wait_end(&a, s));
			ck_assert(lane_client_wait_end(&b, s));
			check_long(&a, s, 90 + s);
			check_long(&b, s, 150 + s);
		}
	}
	check_idle();
}
END_TEST

START_TEST(queue_answers)
{
	static const char *const sets[] = { "batcher.max_running=1", "batcher.max_queued=2", NULL };
	uint32_t                 value = 0;

	begin(sets);
	attach(&a);
	ck_assert_int_eq(lane_client_reserve(&a, 0, 10, 10, &value), LANE_REPLY_ACCEPT);
	lane_client_submit(&a, 0, 4, 0, SLOW);
	ck_assert_int_eq(lane_client_reserve(&a, 1, 10, 10, &value), LANE_REPLY_WAIT);
	ck_assert_uint_eq(value, 0);
	ck_assert_int_eq(lane_client_reserve(&a, 2, 10, 10, &value), LANE_REPLY_WAIT);
	ck_assert_uint_eq(value, 1);
	ck_assert_int_eq(lane_client_reserve(&a, 3, 10, 10, &value), LANE_REPLY_REJECT);
	ck_assert_uint_ge(value, 1);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_requests_rejected_total), 1);

	/* A SUBMIT that did not ask is told the same way. */
	a.slots[4].generation = lane_front_open_slot(&a.lane, 4);
	lane_client_submit(&a, 4, 4, 10, SHORT);
	ck_assert(lane_client_wait_end(&a, 4));
	check_end(&a, 4, WIRE_FINISH_ERROR, STATUS_FULL);
	ck_assert_uint_ge(a.slots[4].end.retry_after_s, 1);

	/* Reservations return when they are cancelled, and when the slot is used anew. */
	lane_client_cancel(&a, 1);
	ck_assert(daemon_wait_metric(&d, METRIC_slots_in_use, 2));
	ck_assert_int_eq(lane_client_reserve(&a, 2, 10, 10, &value), LANE_REPLY_WAIT);
	ck_assert(daemon_wait_metric(&d, METRIC_slots_in_use, 2));
	lane_client_cancel(&a, 0);
	lane_client_cancel(&a, 2);
	ck_assert(lane_client_wait_end(&a, 0));
	check_idle();
}
END_TEST

/* ---- cancel and stop ------------------------------------------------------------------------------------------------ */

/* A decode, a prompt of 119 chunks beside it and a waiting request, all cancelled in steps that last 1.5 s each, so that it
 * is known how many can have run: the first, at most two more, and none that began after the cancel.  False when this
 * process came too late to know. */
static bool cancel_three(void)
{
	uint64_t began = daemon_now_ms(), steps = daemon_metric(&d, METRIC_steps_total);
	uint64_t prompts = daemon_metric(&d, METRIC_prompt_tokens_total), cancelled;

	lane_client_start(&a, 0, 4, 0, METRONOME);
	ck_assert(lane_client_wait_count(&a, 0, 1));
	lane_client_start(&a, 1, 1900, 100, FOREVER);
	lane_client_start(&a, 2, 4, 10, FOREVER);
	ck_assert(lane_client_wait_count(&a, 0, 2));
	lane_client_cancel(&a, 2); /* queued */
	lane_client_cancel(&a, 1); /* prefill */
	lane_client_cancel(&a, 0); /* decode */
	cancelled = daemon_now_ms();
	for (uint32_t s = 0; s < 3; s++)
		ck_assert(lane_client_wait_end(&a, s));
	if (cancelled - began >= 2900) /* the third step may have ended before the cancel */
		return false;
	for (uint32_t s = 0; s < 3; s++) {
		check_end(&a, s, WIRE_FINISH_CANCELLED, STATUS_OK);
		ck_assert_uint_le(a.slots[s].count, s == 0 ? 3 : 0);
		ck_assert_uint_eq(a.slots[s].end.completion_tokens, a.slots[s].count);
	}
	ck_assert_uint_le(daemon_metric(&d, METRIC_steps_total) - steps, 3);
	ck_assert_uint_le(daemon_metric(&d, METRIC_prompt_tokens_total) - prompts, 4 + 2 * 15);
	return true;
}

START_TEST(cancel_in_every_phase)
{
	static const char *const sets[] = { "batcher.max_running=2", "batcher.policy=fcfs", NULL };

	begin(sets);
	attach(&a);
	for (int tries = 0; !cancel_three(); tries++)
		ck_assert_int_lt(tries, 20);
	check_idle();
}
END_TEST

START_TEST(stop_keeps)
{
	begin(NULL);
	attach(&a);
	lane_client_start(&a, 0, 4, 0, FOREVER);
	ck_assert(lane_client_wait_count(&a, 0, 10));
	lane_client_stop(&a, 0, 7);
	ck_assert(lane_client_wait_end(&a, 0));
	check_end(&a, 0, WIRE_FINISH_STOP, STATUS_OK);
	ck_assert_uint_eq(a.slots[0].end.completion_tokens, 7);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_overshoot_tokens_total), a.slots[0].count - 7);
	check_idle();
}
END_TEST

/* ---- bad requests ----------------------------------------------------------------------------------------------------- */

START_TEST(submit_ranges)
{
	const struct wire_submit good = { .choices = 1, .prompt_tokens = 10, .max_tokens = 10, .top_p = 1, .temperature = 1 };
	struct wire_submit       s;

	ck_assert_int_eq(intake_check_submit(&good, 640, 2048), STATUS_OK);
#define REFUSED(field, value, status) \
	s = good; \
	s.field = value; \
	ck_assert_int_eq(intake_check_submit(&s, 640, 2048), status)
	REFUSED(choices, 0, STATUS_INVALID);
	REFUSED(choices, WIRE_CHOICES_MAX + 1, STATUS_INVALID);
	REFUSED(flags, 2, STATUS_INVALID);
	REFUSED(reserved, 1, STATUS_INVALID);
	REFUSED(prompt_tokens, 0, STATUS_INVALID);
	REFUSED(prompt_tokens, 2048, STATUS_CONTEXT_LENGTH);
	REFUSED(prompt_tokens, UINT32_MAX, STATUS_INVALID);
	REFUSED(max_tokens, 2039, STATUS_CONTEXT_LENGTH);
	REFUSED(max_tokens, UINT32_MAX, STATUS_CONTEXT_LENGTH);
	REFUSED(temperature, NAN, STATUS_INVALID);
	REFUSED(temperature, -0.1f, STATUS_INVALID);
	REFUSED(temperature, INFINITY, STATUS_INVALID);
	REFUSED(top_p, 0, STATUS_INVALID);
	REFUSED(top_p, 1.1f, STATUS_INVALID);
	REFUSED(top_p, NAN, STATUS_INVALID);
	REFUSED(min_p, -1, STATUS_INVALID);
	REFUSED(min_p, NAN, STATUS_INVALID);
	REFUSED(top_k, -1, STATUS_INVALID);
	REFUSED(top_k, 641, STATUS_INVALID);
	REFUSED(repetition, NAN, STATUS_INVALID);
	REFUSED(repetition, -1, STATUS_INVALID);
	REFUSED(presence, INFINITY, STATUS_INVALID);
	REFUSED(frequency, -101, STATUS_INVALID);
	REFUSED(logprobs, WIRE_TOP_MAX + 2, STATUS_INVALID);
	REFUSED(bias_count, WIRE_BIAS_MAX + 1, STATUS_INVALID);
	REFUSED(stop_count, WIRE_STOP_IDS_MAX + 1, STATUS_INVALID);
	REFUSED(allowed_count, WIRE_ALLOWED_IDS_MAX + 1, STATUS_INVALID);
#undef REFUSED
}
END_TEST

static bool write_list(struct lane_client *c, uint32_t slot, enum wire_list_kind kind, const void *words, uint32_t count)
{
	struct wire_list list = { .header.type = WIRE_LIST, .req = c->slots[slot].req, .generation = c->slots[slot].generation,
		.slot = (uint16_t)slot, .kind = (uint16_t)kind, .count = count };

	return lane_client_write(c, &list, sizeof list, words, count);
}

static void write_prompt(struct lane_client *c, uint32_t slot, uint32_t count)
{
	struct wire_tokens tokens = { .header.type = WIRE_TOKENS, .req = c->slots[slot].req, .generation = c->slots[slot].generation,
		.slot = (uint16_t)slot, .count = count };
	int32_t            ids[16] = { 0 };

	ck_assert(lane_client_write(c, &tokens, sizeof tokens, ids, count));
}

/* Lists come between SUBMIT and TOKENS, each once and as long as announced; a stop id ends the scripted answer, and every token
 * has its log probabilities. */
START_TEST(lists_of_a_request)
{
	const struct sample_bias good[2] = { { 3, 1 }, { 639, -100 } }, unordered[2] = { { 3, 1 }, { 3, 1 } }, large = { 3, 101 },
	                         beyond = { 640, 1 };
	const int32_t            stops[2] = { 600, 12 }, none[2] = { 1, 640 };
	const struct {
		enum wire_list_kind kind;
		const void         *words;
		uint32_t            count;
	} bad[] = {
		{ WIRE_LIST_BIAS, unordered, 4 }, { WIRE_LIST_BIAS, &large, 2 }, { WIRE_LIST_BIAS, &beyond, 2 },
		{ WIRE_LIST_BIAS, good, 2 }, { WIRE_LIST_STOP_IDS, none, 2 }, { WIRE_LIST_STOP_IDS, stops, 1 },
		{ WIRE_LIST_ALLOWED_IDS, stops, 2 },
	};
	struct wire_submit submit;
	uint32_t           value;

	begin(NULL);
	attach(&a);
	for (unsigned i = 0; i <= sizeof bad / sizeof *bad; i++) {
		bool fine = i == sizeof bad / sizeof *bad;

		ck_assert_int_eq(lane_client_reserve(&a, 0, 10, 10, &value), LANE_REPLY_ACCEPT);
		submit = lane_client_submit_record(&a, 0, 10, 10, SHORT);
		submit.presence = 1;
		submit.logprobs = 3;
		submit.bias_count = i == 1 || i == 2 ? 1 : 2;
		submit.stop_count = 2;
		ck_assert(lane_client_write(&a, &submit, sizeof submit, NULL, 0));
		if (!fine) {
			ck_assert(write_list(&a, 0, bad[i].kind, bad[i].words, bad[i].count));
			ck_assert(lane_client_wait_end(&a, 0));
			check_end(&a, 0, WIRE_FINISH_ERROR, STATUS_INVALID);
			continue;
		}
		ck_assert(write_list(&a, 0, WIRE_LIST_BIAS, good, 4));
		ck_assert(write_list(&a, 0, WIRE_LIST_STOP_IDS, stops, 2));
		write_prompt(&a, 0, 10);
		ck_assert(lane_client_wait_end(&a, 0));
		check_end(&a, 0, WIRE_FINISH_STOP, STATUS_OK);
		ck_assert_uint_eq(a.slots[0].count, 2); /* 10 11, and 12 is a stop id */
		ck_assert_uint_eq(a.slots[0].end.completion_tokens, 2);
		ck_assert_uint_eq(a.slots[0].with_logprobs, 2);
	}
	/* A prompt before its lists, and a list after the prompt began. */
	for (int early = 0; early < 2; early++) {
		ck_assert_int_eq(lane_client_reserve(&a, 1, 10, 10, &value), LANE_REPLY_ACCEPT);
		submit = lane_client_submit_record(&a, 1, 10, 10, SHORT);
		submit.stop_count = early ? 2 : 0;
		ck_assert(lane_client_write(&a, &submit, sizeof submit, NULL, 0));
		write_prompt(&a, 1, early ? 10 : 5);
		if (!early)
			ck_assert(write_list(&a, 1, WIRE_LIST_STOP_IDS, stops, 2));
		ck_assert(lane_client_wait_end(&a, 1));
		check_end(&a, 1, WIRE_FINISH_ERROR, STATUS_INVALID);
	}
	check_idle();
}
END_TEST

/* What is wrong with a request ends that request, with words; the lane and its neighbour go on. */
START_TEST(bad_requests_end_alone)
{
	static const struct { uint32_t offset, count; int32_t id; } pieces[] = {
		{ 1, 5, 7 }, { 0, 11, 7 }, { 0, 10, 640 }, { 0, 10, -1 }
	};
	struct wire_submit submit;
	uint32_t           value;

	begin(NULL);
	attach(&a);
	lane_client_start(&a, 7, 4, 0, FOREVER);
	for (unsigned i = 0; i < sizeof pieces / sizeof *pieces; i++) {
		struct wire_tokens tokens = { .header.type = WIRE_TOKENS, .offset = pieces[i].offset, .count = pieces[i].count };
		int32_t            ids[16];

		ck_assert_int_eq(lane_client_reserve(&a, 0, 10, 10, &value), LANE_REPLY_ACCEPT);
		submit = lane_client_submit_record(&a, 0, 10, 10, SHORT);
		ck_assert(lane_client_write(&a, &submit, sizeof submit, NULL, 0));
		tokens.req = submit.req;
		tokens.generation = submit.generation;
		for (unsigned k = 0; k < pieces[i].count; k++)
			ids[k] = k + 1 == pieces[i].count ? pieces[i].id : 3;
		ck_assert(lane_client_write(&a, &tokens, sizeof tokens, ids, pieces[i].count));
		ck_assert(lane_client_wait_end(&a, 0));
		check_end(&a, 0, WIRE_FINISH_ERROR, STATUS_INVALID);
		ck_assert(lane_client_write(&a, &tokens, sizeof tokens, ids, pieces[i].count)); /* what follows is ignored */
	}
	ck_assert_int_eq(lane_client_reserve(&a, 1, 10, 10, &value), LANE_REPLY_ACCEPT);
	submit = lane_client_submit_record(&a, 1, 10, 10, SHORT);
	submit.temperature = NAN;
	ck_assert(lane_client_write(&a, &submit, sizeof submit, NULL, 0));
	ck_assert(lane_client_wait_end(&a, 1));
	check_end(&a, 1, WIRE_FINISH_ERROR, STATUS_INVALID);
	ck_assert_int_eq(lane_client_reserve(&a, 2, 10, 10, &value), LANE_REPLY_ACCEPT);
	lane_client_submit(&a, 2, 2048, 10, SHORT);
	ck_assert(lane_client_wait_end(&a, 2));
	check_end(&a, 2, WIRE_FINISH_ERROR, STATUS_CONTEXT_LENGTH);
	lane_client_start(&a, 3, 5, 10, NOT_FINITE);
	ck_assert(lane_client_wait_end(&a, 3));
	check_end(&a, 3, WIRE_FINISH_ERROR, STATUS_INTERNAL);
	ck_assert_uint_eq(a.slots[3].count, 1);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_records_invalid_total), 5);

	ck_assert_uint_eq(a.slots[7].ends, 0);
	ck_assert(lane_client_wait_count(&a, 7, a.slots[7].count + 10));
	lane_client_cancel(&a, 7);
	ck_assert(lane_client_wait_end(&a, 7));
	check_idle();
}
END_TEST

/* An entry whose lane is gone stays taken while the old child's connection is open: closing that connection must not
 * close the next child's lane. */
START_TEST(entry_is_not_reused_while_a_connection_points_at_it)
{
	static struct lanes  lanes;
	struct lane_geometry geometry;
	struct lanes_entry  *first, *second, *third;
	struct error         error;

	lanes_init(&lanes);
	ck_assert_int_eq(lane_geometry_plan(4, 4096, &geometry), STATUS_OK);
	ck_assert_int_eq(lanes_make(&lanes, &geometry, 1, &first, &error), STATUS_OK);
	lanes_open(&lanes, first);
	ck_assert(lanes_close(first));
	ck_assert(!lanes_close(first));
	lanes_let_go(first);
	lanes_retire(first);
	lanes_recycle(first);
	ck_assert_int_eq(lanes_make(&lanes, &geometry, 2, &second, &error), STATUS_OK);
	ck_assert_ptr_ne(first, second);
	first->held = false;
	ck_assert_int_eq(lanes_make(&lanes, &geometry, 3, &third, &error), STATUS_OK);
	ck_assert_ptr_eq(first, third);
	lanes_recycle(second);
	lanes_recycle(third);
	lanes_free(&lanes);
}
END_TEST

/* ---- lanes die -------------------------------------------------------------------------------------------------------- */

/* A process that attaches, starts STREAMS endless streams, says so, and then only reads. */
static pid_t spawn_child(uint32_t streams)
{
	int   said[2];
	char  byte;
	pid_t pid;

	ck_assert_int_eq(pipe(said), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		static struct lane_client c;
		struct error              error;

		if (lane_client_attach(&c, &d, 0, 0, &error))
			_exit(1);
		for (uint32_t s = 0; s < streams; s++)
			lane_client_start(&c, s, 20, 0, SLOW);
		if (!lane_client_wait_count(&c, 0, 1) || write(said[1], "x", 1) != 1)
			_exit(2);
		for (;;)
			lane_client_pump(&c, 1000);
	}
	close(said[1]);
	ck_assert_int_eq(read(said[0], &byte, 1), 1);
	close(said[0]);
	return pid;
}

START_TEST(killed_child_frees_everything)
{
	static const char *const sets[] = { "batcher.kv_tokens=65536", NULL };
	pid_t                    pid;

	begin(sets);
	attach(&a);
	lane_client_start(&a, 0, 4, 2000, LONG);
	pid = spawn_child(3);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_lanes_attached), 2);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_slots_in_use), 4);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	ck_assert(daemon_wait_metric(&d, METRIC_lanes_attached, 1));
	ck_assert_uint_eq(daemon_metric(&d, METRIC_requests_cancelled_total), 3);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_lanes_reset_total), 1);
	ck_assert(lane_client_wait_end(&a, 0)); /* the neighbour lost nothing */
	check_long(&a, 0, 2000);
	attach(&b); /* the lane serves again */
	ck_assert_uint_eq(b.welcome.lane, 1);
	lane_client_start(&b, 0, 4, 10, LONG);
	ck_assert(lane_client_wait_end(&b, 0));
	check_idle();
}
END_TEST

static uint32_t environment(const char *name, uint32_t value)
{
	const char *text = getenv(name);
	return text ? (uint32_t)strtoul(text, NULL, 10) : value;
}

/* Clients that come, do a few things and leave without a word, at any moment. */
START_TEST(random_disconnects)
{
	uint32_t count = environment("PENSTOCK_TEST_DISCONNECTS", 200), value;
	unsigned seed = 4711;

	begin(NULL);
	attach(&a);
	lane_client_start(&a, 0, 4, 0, FOREVER);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t things = (uint32_t)rand_r(&seed) % 12;

		attach(&b);
		for (uint32_t t = 0; t < things; t++) {
			uint32_t slot = (uint32_t)rand_r(&seed) % b.welcome.slots;
			switch (rand_r(&seed) % 8) {
			case 0:
			case 1:
			case 2: {
				enum lane_reply reply = lane_client_reserve(&b, slot, 100, 50, &value);
				if ((reply == LANE_REPLY_ACCEPT || reply == LANE_REPLY_WAIT) && rand_r(&seed) % 4)
					lane_client_submit(&b, slot, 1 + (uint32_t)rand_r(&seed) % 300, 50, (uint32_t)rand_r(&seed) % 2);
				break;
			}
			case 3: { /* half a request */
				struct wire_submit submit;
				lane_client_reserve(&b, slot, 100, 50, &value);
				submit = lane_client_submit_record(&b, slot, 100, 50, SHORT);
				lane_client_write(&b, &submit, sizeof submit, NULL, 0);
				break;
			}
			case 4: lane_client_cancel(&b, slot); break;
			case 5: lane_client_stop(&b, slot, (uint32_t)rand_r(&seed) % 5); break;
			default: lane_client_pump(&b, rand_r(&seed) % 3);
			}
		}
		for (uint32_t s = 0; s < b.welcome.slots; s++)
			ck_assert(!b.slots[s].wrong);
		lane_client_close(&b);
		lane_client_pump(&a, 0);
	}
	ck_assert(!a.slots[0].wrong);
	ck_assert(daemon_wait_metric(&d, METRIC_lanes_attached, 1));
	ck_assert_uint_le(daemon_metric(&d, METRIC_slots_in_use), 1); /* it may have reached the context by now */
	lane_client_cancel(&a, 0);
	ck_assert(lane_client_wait_end(&a, 0));
	check_idle();
	ck_assert_uint_eq(daemon_metric(&d, METRIC_lanes_reset_total), count);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_requests_total), daemon_metric(&d, METRIC_requests_finished_total) +
	    daemon_metric(&d, METRIC_requests_cancelled_total) + daemon_metric(&d, METRIC_requests_failed_total));
	ck_assert_int_eq(daemon_end(&d, SIGTERM), 0);
}
END_TEST

/* Writes anything into a lane: random bytes for records, for indices, for every shared word. */
static void misbehave(struct lane_client *c, unsigned *seed)
{
	struct lane_shared *shared = c->lane.shared;
	unsigned char      *ring = (unsigned char *)(shared + 1);
	union {
		struct wire_header header;
		struct wire_reserve reserve;
		struct wire_submit submit;
		struct wire_list   list;
		struct wire_tokens tokens;
		unsigned char      bytes[256];
	} record;
	uint32_t value;

	switch (rand_r(seed) % 6) {
	case 0: /* random bytes, published by a random tail */
		for (uint32_t i = 0; i < 4096; i++)
			ring[i] = (unsigned char)rand_r(seed);
		atomic_store(&shared->records.tail, (uint32_t)rand_r(seed) & (rand_r(seed) % 2 ? 0x3f8u : ~0u));
		break;
	case 1: /* well-shaped records with random fields */
		for (int i = 0; i < 30; i++) {
			static const size_t sizes[] = { sizeof record.reserve, sizeof record.submit, sizeof record.tokens,
				sizeof record.list };
			unsigned            kind = (unsigned)rand_r(seed) % 4;
			int32_t             ids[WIRE_TOKENS_MAX];

			for (size_t k = 0; k < sizeof record; k++)
				record.bytes[k] = (unsigned char)(rand_r(seed) % 3 ? 0 : rand_r(seed));
			record.header.type = kind == 0 ? WIRE_RESERVE : kind == 1 ? WIRE_SUBMIT : kind == 2 ? WIRE_TOKENS : WIRE_LIST;
			record.header.reserved = 0;
			for (int k = 0; k < WIRE_TOKENS_MAX; k++)
				ids[k] = rand_r(seed);
			if (kind == 0)
				record.reserve.slot %= 8;
			if (kind == 1)
				record.submit.slot %= 8;
			if (kind == 2) {
				record.tokens.slot %= 8;
				record.tokens.reserved = 0;
				record.tokens.count = (uint32_t)rand_r(seed) % 100;
			}
			if (kind == 3) {
				record.list.slot %= 8;
				record.list.kind %= WIRE_LIST_COUNT;
				record.list.reserved = 0;
				record.list.count = (uint32_t)rand_r(seed) % 100;
			}
			if (rand_r(seed) % 2) { /* as the current generation of the slot */
				if (kind == 0)
					record.reserve.generation = lane_front_open_slot(&c->lane, record.reserve.slot);
				if (kind == 1)
					record.submit.generation = lane_front_open_slot(&c->lane, record.submit.slot);
				if (kind == 2)
					record.tokens.generation = lane_front_open_slot(&c->lane, record.tokens.slot);
				if (kind == 3)
					record.list.generation = lane_front_open_slot(&c->lane, record.list.slot);
			}
			if (lane_front_write(&c->lane, &record, sizes[kind], ids,
			        kind == 2 ? record.tokens.count : kind == 3 ? record.list.count : 0))
				break;
		}
		break;
	case 2: /* indices of both rings */
		atomic_store(&shared->events.head, (uint32_t)rand_r(seed));
		atomic_store(&shared->records.tail, (uint32_t)rand_r(seed));
		break;
	case 3: /* every control and credit word */
		for (unsigned i = 0; i < LANE_SLOTS_MAX; i++) {
			atomic_store(&shared->slots[i].control, (uint64_t)rand_r(seed) << 32 | (uint64_t)rand_r(seed));
			atomic_store(&shared->slots[i].consumed, (uint64_t)rand_r(seed) << 32 | (uint64_t)rand_r(seed));
		}
		break;
	case 4: /* many requests at once, nothing read */
		for (uint32_t s = 0; s < c->welcome.slots * 4; s++)
			if (lane_client_reserve(c, s % c->welcome.slots, 100, 100, &value) != LANE_REPLY_REJECT)
				lane_client_submit(c, s % c->welcome.slots, 10, 100, FOREVER);
		break;
	default: /* the whole object */
		for (size_t i = 0; i < sizeof *shared; i++)
			((unsigned char *)shared)[i] = (unsigned char)rand_r(seed);
	}
	_Atomic uint32_t *bell = (_Atomic uint32_t *)(void *)c->bell.shared;
	for (size_t i = 0; i < sizeof *c->bell.shared / sizeof *bell; i++)
		atomic_store(&bell[i], (uint32_t)rand_r(seed));
	doorbell_ring(&c->bell, (int)c->welcome.lane);
}

START_TEST(hostile_lanes_hurt_nobody_else)
{
	static const char *const sets[] = { "batcher.max_queued=400", "front.streams_per_front=64", NULL };
	uint32_t                 rounds = environment("PENSTOCK_TEST_HOSTILE", 60);

	begin(sets);
	attach(&a);
	for (uint32_t round = 0; round < rounds; round++) {
		pid_t pid = fork(); /* it may hurt itself */
		ck_assert_int_ge(pid, 0);
		if (pid == 0) {
			static struct lane_client c;
			struct error              error;
			unsigned                  seed = round + 1;

			if (lane_client_attach(&c, &d, 8, 0, &error))
				_exit(1);
			alarm(20);
			misbehave(&c, &seed);
			misbehave(&c, &seed);
			poll(&(struct pollfd){ .fd = c.fd, .events = POLLIN }, 1, 20); /* dropped, or not worth it */
			_exit(0);
		}
		lane_client_start(&a, 0, 30, 40, LONG);
		ck_assert(lane_client_wait_end(&a, 0));
		check_long(&a, 0, 40);
		waitpid(pid, NULL, 0);
	}
	check_idle();
	ck_assert_int_eq(daemon_end(&d, SIGTERM), 0);
}
END_TEST

/* A front that attaches again and again took the lanes of all others, and half a megabyte with each. */
START_TEST(one_process_cannot_take_all_lanes)
{
	static struct lane_client more[4];
	struct error              error;
	enum status               status;
	pid_t                     pid;
	int                       result;

	begin(NULL);
	attach(&a);
	for (int i = 0; i < 3; i++)
		attach(&more[i]);
	ck_assert_int_eq(lane_client_attach(&more[3], &d, 0, 0, &error), STATUS_LIMIT);
	ck_assert_ptr_nonnull(strstr(error.message, "as many as one process may have"));
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		_exit(lane_client_attach(&b, &d, 0, 0, &error) ? 1 : 0);
	waitpid(pid, &result, 0);
	ck_assert_int_eq(result, 0);
	lane_client_close(&more[0]);
	while ((status = lane_client_attach(&more[3], &d, 0, 0, &error)) == STATUS_LIMIT) /* until it is seen to be gone */
		daemon_nap();
	ck_assert_int_eq(status, STATUS_OK);
	for (int i = 1; i < 4; i++)
		lane_client_close(&more[i]);
	check_idle();
	ck_assert_int_eq(daemon_end(&d, SIGTERM), 0);
}
END_TEST

/* ---- slow readers ----------------------------------------------------------------------------------------------------- */

/* In these tests the window is 32 KB, that is some 900 events: a stream of 800 never pauses, however late its reader is. */
static void start_slow(struct lane_client *c, uint32_t slot)
{
	uint32_t        value;
	enum lane_reply reply = lane_client_reserve(c, slot, 16, 1900, &value);

	ck_assert(reply == LANE_REPLY_ACCEPT || reply == LANE_REPLY_WAIT);
	c->slots[slot].slow = true; /* its events are drained, its client reads nothing */
	lane_client_submit(c, slot, 4, 1900, LONG);
}

static void check_slow(const struct lane_client *c, uint32_t slot)
{
	check_end(c, slot, WIRE_FINISH_ERROR, STATUS_SLOW_CLIENT);
	ck_assert_uint_le(c->slots[slot].bytes, 32768);
	ck_assert_uint_ge(c->slots[slot].count, 900);
	check_long(c, slot, c->slots[slot].count);
}

START_TEST(slow_client_is_ended)
{
	static const char *const sets[] = { "batcher.slow_client_timeout_ms=300", "batcher.kv_tokens=16384", NULL };

	begin(sets);
	attach(&a);
	start_slow(&a, 1);
	lane_client_start(&a, 0, 4, 800, LONG);
	ck_assert(lane_client_wait_end(&a, 0));
	check_long(&a, 0, 800); /* the neighbour on the same lane lost nothing */
	ck_assert(lane_client_wait_end(&a, 1));
	check_slow(&a, 1);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_slow_clients_total), 1);
	check_idle();
}
END_TEST

START_TEST(slow_client_that_reads_again_goes_on)
{
	begin(NULL);
	attach(&a);
	start_slow(&a, 2);
	while (daemon_metric(&d, METRIC_sequences_paused) == 0) {
		ck_assert(!a.slots[2].ends);
		lane_client_pump(&a, 10);
	}
	a.slots[2].slow = false;
	lane_front_consumed(&a.lane, 2, a.slots[2].bytes);
	ck_assert(lane_client_wait_end(&a, 2));
	check_long(&a, 2, 1900);
	check_idle();
}
END_TEST

/* A child that is stopped: nothing is read from its ring.  Its streams end, the others go on, and when it wakes up it
 * finds every event it is owed. */
START_TEST(stopped_child)
{
	static const char *const sets[] = { "batcher.slow_client_timeout_ms=300", "batcher.kv_tokens=16384", NULL };

	begin(sets);
	attach(&a);
	attach(&b);
	for (uint32_t s = 0; s < 3; s++)
		start_slow(&b, s); /* and then b is not pumped */
	lane_client_start(&a, 0, 4, 800, LONG);
	ck_assert(lane_client_wait_end(&a, 0));
	check_long(&a, 0, 800);
	ck_assert(daemon_wait_metric(&d, METRIC_slow_clients_total, 3));
	check_idle();
	for (uint32_t s = 0; s < 3; s++) {
		ck_assert(lane_client_wait_end(&b, s));
		check_slow(&b, s);
	}
}
END_TEST

/* ---- the daemon's own life -------------------------------------------------------------------------------------------- */

START_TEST(drain_finishes_what_runs)
{
	struct lane_client other;
	struct error       error;
	uint32_t           value;

	begin(NULL);
	attach(&a);
	lane_client_start(&a, 0, 4, 60, FOREVER);
	ck_assert(lane_client_wait_count(&a, 0, 1));
	ck_assert_int_eq(lane_client_reserve(&a, 2, 10, 10, &value), LANE_REPLY_ACCEPT);
	kill(d.pid, SIGTERM);
	while (atomic_load(&d.header.shared->state) != HEADER_DRAINING)
		daemon_nap();
	ck_assert_int_eq(lane_client_reserve(&a, 1, 10, 10, &value), LANE_REPLY_REJECT);
	ck_assert_int_eq(lane_client_attach(&other, &d, 0, 0, &error), STATUS_UNAVAILABLE);
	lane_client_submit(&a, 2, 4, 10, SHORT); /* was promised */
	ck_assert(lane_client_wait_end(&a, 0));
	check_end(&a, 0, WIRE_FINISH_LENGTH, STATUS_OK);
	ck_assert_uint_eq(a.slots[0].count, 60);
	ck_assert(lane_client_wait_end(&a, 2));
	check_end(&a, 2, WIRE_FINISH_STOP, STATUS_OK);
	ck_assert_int_eq(daemon_end(&d, 0), 0);
}
END_TEST

START_TEST(drain_has_an_end)
{
	static const char *const sets[] = { "batcher.drain_timeout_ms=100", NULL };

	begin(sets);
	attach(&a);
	lane_client_start(&a, 0, 4, 0, SLOW);
	ck_assert(lane_client_wait_count(&a, 0, 1));
	kill(d.pid, SIGTERM);
	ck_assert(lane_client_wait_end(&a, 0));
	check_end(&a, 0, WIRE_FINISH_ERROR, STATUS_DRAINED);
	ck_assert_int_eq(daemon_end(&d, 0), 0);
}
END_TEST

/* Not even a step that never ends keeps the process from ending. */
START_TEST(drain_leaves_a_stuck_step)
{
	static const char *const sets[] = { "batcher.drain_timeout_ms=100", "batcher.watchdog_ms=1000", NULL };
	struct header            header;
	int                      status;

	begin(sets);
	attach(&a);
	lane_client_start(&a, 0, 4, 0, STUCK);
	ck_assert(lane_client_wait_count(&a, 0, 1));
	status = daemon_end(&d, SIGTERM);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	ck_assert_int_eq(header_open(d.instance, &header, NULL), STATUS_UNAVAILABLE);
	ck_assert(!lane_client_wait_end(&a, 0));
	ck_assert(a.gone);
}
END_TEST

/* What the service manager hears. */
START_TEST(service_manager)
{
#ifdef HAVE_SYSTEMD
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char               heard[8192] = "", text[512];
	int                fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t          size = sizeof(sa_family_t);
	ssize_t            n;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, size), 0); /* autobind: an abstract name */
	size = sizeof address;
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &size), 0);
	snprintf(text, sizeof text, "@%.*s", (int)(size - sizeof(sa_family_t) - 1), address.sun_path + 1);
	setenv("NOTIFY_SOCKET", text, 1);
	setenv("WATCHDOG_USEC", "400000", 1);
	begin(NULL);
	while (!strstr(heard, "WATCHDOG=1")) {
		n = recv(fd, text, sizeof text - 1, 0);
		ck_assert_int_gt(n, 0);
		text[n] = '\0';
		ck_assert_uint_lt(strlen(heard) + (size_t)n, sizeof heard);
		memcpy(heard + strlen(heard), text, (size_t)n + 1);
	}
	ck_assert_ptr_nonnull(strstr(heard, "READY=1"));
	ck_assert_ptr_nonnull(strstr(heard, "STATUS=serving tiny"));
	ck_assert_int_eq(daemon_end(&d, SIGTERM), 0);
	while ((n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT)) > 0) {
		text[n] = '\0';
		ck_assert_uint_lt(strlen(heard) + (size_t)n, sizeof heard);
		memcpy(heard + strlen(heard), text, (size_t)n + 1);
	}
	ck_assert_ptr_nonnull(strstr(heard, "STOPPING=1"));
	close(fd);
#endif
}
END_TEST

START_TEST(second_start_is_refused)
{
	struct daemon second;
	char          log[4096];
	int           status;

	begin(NULL);
	second = d;
	daemon_spawn(&second);
	status = daemon_end(&second, 0);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	daemon_log(&d, log, sizeof log);
	ck_assert_ptr_nonnull(strstr(log, "another penstockd"));
	attach(&a); /* and the first was not disturbed */
	lane_client_start(&a, 0, 4, 10, SHORT);
	ck_assert(lane_client_wait_end(&a, 0));
}
END_TEST

START_TEST(restart_over_stale_objects)
{
	uint64_t epoch;

	begin(NULL);
	attach(&a);
	lane_client_start(&a, 0, 4, 0, FOREVER);
	ck_assert(lane_client_wait_count(&a, 0, 3));
	epoch = d.header.shared->epoch;
	daemon_end(&d, SIGKILL);
	ck_assert(!lane_client_wait_end(&a, 0)); /* the connection ends, nothing else comes */
	ck_assert(a.gone);
	lane_client_close(&a);
	daemon_start(&d);
	ck_assert_uint_ne(d.header.shared->epoch, epoch);
	attach(&a);
	ck_assert_uint_ne(a.welcome.epoch, epoch);
	lane_client_start(&a, 0, 4, 20, SHORT);
	ck_assert(lane_client_wait_end(&a, 0));
	ck_assert_uint_eq(daemon_metric(&d, METRIC_requests_total), 1);
	check_idle();
}
END_TEST

START_TEST(backend_fault_ends_the_process)
{
	char log[8192];
	int  status;

	begin(NULL);
	attach(&a);
	lane_client_start(&a, 0, 4, 0, SLOW);
	lane_client_start(&a, 1, 4, 20, FAULT);
	ck_assert(lane_client_wait_end(&a, 1));
	check_end(&a, 1, WIRE_FINISH_ERROR, STATUS_INTERNAL);
	ck_assert(lane_client_wait_end(&a, 0));
	check_end(&a, 0, WIRE_FINISH_ERROR, STATUS_INTERNAL);
	status = daemon_end(&d, 0);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	daemon_log(&d, log, sizeof log);
	ck_assert_ptr_nonnull(strstr(log, "script fault says fault"));
}
END_TEST

/* A step that hangs: the heartbeat goes stale, and comes back. */
START_TEST(hanging_step_shows)
{
	static const char *const sets[] = { "batcher.watchdog_ms=1000", NULL };
	uint64_t                 watchdog = 1000 * CLOCK_NS_PER_MS;

	begin(sets);
	attach(&a);
	lane_client_start(&a, 0, 4, 20, HANG);
	ck_assert(lane_client_wait_count(&a, 0, 2));
	while (header_ready(d.header.shared, clock_now_ns(), watchdog)) {
		ck_assert_uint_lt(a.slots[0].count, 3);
		lane_client_pump(&a, 10);
	}
	ck_assert(lane_client_wait_end(&a, 0));
	ck_assert_uint_eq(a.slots[0].count, 3);
	while (!header_ready(d.header.shared, clock_now_ns(), watchdog))
		daemon_nap();
}
END_TEST

START_TEST(other_vocabulary_is_refused)
{
	struct control_message hello = { .vocab_fingerprint = 0x1234, .pid = 1 }, answer;
	char                   path[128], ours[40];
	int                    fd, fds[CONTROL_FDS_MAX], count;
	struct error           error;
	enum status            status;

	begin(NULL);
	snprintf(path, sizeof path, "%s/control.sock", d.dir);
	ck_assert_int_eq(control_attach(path, &hello, 5000, &fd, &answer, fds, &error), STATUS_INVALID);
	snprintf(ours, sizeof ours, "%016llx", (unsigned long long)d.header.shared->vocab_fingerprint);
	ck_assert_ptr_nonnull(strstr(error.message, ours));
	ck_assert_ptr_nonnull(strstr(error.message, "0000000000001234"));

	/* The refusal says which one it is, for the front to load. */
	ck_assert_int_eq(control_connect(path, 5000, &fd, &error), STATUS_OK);
	ck_assert_int_eq(control_send(fd, &hello, CONTROL_HELLO, NULL, 0), STATUS_OK);
	do
		poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 100);
	while ((status = control_receive(fd, &answer, fds, &count, &error)) == STATUS_AGAIN);
	ck_assert_int_eq(status, STATUS_OK);
	ck_assert_uint_eq(answer.type, CONTROL_REFUSE);
	ck_assert_uint_eq(answer.vocab_fingerprint, d.header.shared->vocab_fingerprint);
	close(fd);
	check_idle();
}
END_TEST

START_TEST(status_and_drain_by_socket)
{
	struct control_message answer;
	struct error           error;
	char                   path[128];

	begin(NULL);
	snprintf(path, sizeof path, "%s/control.sock", d.dir);
	ck_assert_int_eq(control_ask(path, CONTROL_STATUS, 5000, &answer, &error), STATUS_OK);
	ck_assert_ptr_nonnull(strstr(answer.text, "ready: running 0, waiting 0"));
	ck_assert_int_eq(control_ask(path, CONTROL_DRAIN, 5000, &answer, &error), STATUS_OK);
	ck_assert_ptr_nonnull(strstr(answer.text, "draining"));
	ck_assert_int_eq(daemon_end(&d, 0), 0);
}
END_TEST

/* Another user may look, but not end the service.  Needs root, to become somebody else. */
START_TEST(drain_is_for_the_owner)
{
	char  path[128];
	int   status;
	pid_t pid;

	if (geteuid() != 0)
		return;
	begin(NULL);
	snprintf(path, sizeof path, "%s/control.sock", d.dir);
	ck_assert_int_eq(chmod(path, 0666), 0);
	ck_assert_int_eq(chmod(d.dir, 0755), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct control_message answer;
		struct error           error;

		if (setgid(65534) || setuid(65534) || control_ask(path, CONTROL_STATUS, 5000, &answer, &error))
			_exit(1);
		_exit(control_ask(path, CONTROL_DRAIN, 5000, &answer, &error) == STATUS_FORBIDDEN ? 0 : 2);
	}
	waitpid(pid, &status, 0);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(atomic_load(&d.header.shared->state), HEADER_READY);
	check_idle();
}
END_TEST

/* No room in /dev/shm: one line that says so, and no start.  Needs root, for a mount of its own. */
START_TEST(full_shared_memory)
{
	char  log[4096];
	int   status;
	pid_t pid;

	daemon_make(&d, script, NULL);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		    mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=4k"))
			_exit(77);
		daemon_spawn(&d);
		status = daemon_end(&d, 0);
		_exit(WIFEXITED(status) && WEXITSTATUS(status) == 1 ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		return;
	ck_assert_int_eq(status, 0);
	daemon_log(&d, log, sizeof log);
	ck_assert_ptr_nonnull(strstr(log, "/dev/shm full"));
}
END_TEST

static size_t occurrences(const char *text, const char *what)
{
	size_t n = 0;
	for (; (text = strstr(text, what)); text++)
		n++;
	return n;
}

/* Out of descriptors with a connection in the backlog: the server thread went round and round and filled the log. */
START_TEST(no_descriptor_for_a_connection_is_no_busy_loop)
{
	static char            log[1 << 20];
	struct control_message answer;
	struct rlimit          old, none = { 3, 3 };
	struct error           error;
	char                   path[128];

	begin(NULL);
	attach(&a);
	snprintf(path, sizeof path, "%s/control.sock", d.dir);
	ck_assert_int_eq(prlimit(d.pid, RLIMIT_NOFILE, NULL, &old), 0);
	none.rlim_max = old.rlim_max;
	ck_assert_int_eq(prlimit(d.pid, RLIMIT_NOFILE, &none, NULL), 0);
	ck_assert_int_eq(control_ask(path, CONTROL_STATUS, 500, &answer, &error), STATUS_TIMEOUT);
	lane_client_start(&a, 0, 10, 3, LONG); /* those inside are served */
	ck_assert(lane_client_wait_end(&a, 0));
	ck_assert_int_eq(prlimit(d.pid, RLIMIT_NOFILE, &old, NULL), 0);
	ck_assert_int_eq(control_ask(path, CONTROL_STATUS, 5000, &answer, &error), STATUS_OK);
	daemon_log(&d, log, sizeof log);
	ck_assert_uint_ge(occurrences(log, "cannot accept"), 1);
	ck_assert_uint_le(occurrences(log, "cannot accept"), 200); /* it was some ten thousand a second */
	check_idle();
	ck_assert_int_eq(daemon_end(&d, SIGTERM), 0);
}
END_TEST

START_TEST(log_is_opened_again)
{
	char old[128], now[128], log[4096];

	begin(NULL);
	snprintf(now, sizeof now, "%s/log", d.dir);
	snprintf(old, sizeof old, "%s/log.1", d.dir);
	ck_assert_int_eq(rename(now, old), 0);
	kill(d.pid, SIGHUP);
	kill(d.pid, SIGUSR1);
	while (access(now, F_OK))
		daemon_nap();
	kill(d.pid, SIGHUP);
	do {
		daemon_nap();
		daemon_log(&d, log, sizeof log);
	} while (!strstr(log, "HUP"));
	unlink(old);
	ck_assert_int_eq(daemon_end(&d, SIGTERM), 0);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("batcher");
	TCase   *tcase = tcase_create("process");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 600);
	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, tokens_of_a_step_share_its_time);
	tcase_add_test(tcase, exact_ids);
	tcase_add_test(tcase, many_streams);
	tcase_add_test(tcase, queue_answers);
	tcase_add_test(tcase, cancel_in_every_phase);
	tcase_add_test(tcase, stop_keeps);
	tcase_add_test(tcase, submit_ranges);
	tcase_add_test(tcase, lists_of_a_request);
	tcase_add_test(tcase, bad_requests_end_alone);
	tcase_add_test(tcase, entry_is_not_reused_while_a_connection_points_at_it);
	tcase_add_test(tcase, killed_child_frees_everything);
	tcase_add_test(tcase, random_disconnects);
	tcase_add_test(tcase, hostile_lanes_hurt_nobody_else);
	tcase_add_test(tcase, one_process_cannot_take_all_lanes);
	tcase_add_test(tcase, slow_client_is_ended);
	tcase_add_test(tcase, slow_client_that_reads_again_goes_on);
	tcase_add_test(tcase, stopped_child);
	tcase_add_test(tcase, drain_finishes_what_runs);
	tcase_add_test(tcase, drain_has_an_end);
	tcase_add_test(tcase, drain_leaves_a_stuck_step);
	tcase_add_test(tcase, service_manager);
	tcase_add_test(tcase, second_start_is_refused);
	tcase_add_test(tcase, restart_over_stale_objects);
	tcase_add_test(tcase, backend_fault_ends_the_process);
	tcase_add_test(tcase, hanging_step_shows);
	tcase_add_test(tcase, other_vocabulary_is_refused);
	tcase_add_test(tcase, status_and_drain_by_socket);
	tcase_add_test(tcase, drain_is_for_the_owner);
	tcase_add_test(tcase, full_shared_memory);
	tcase_add_test(tcase, no_descriptor_for_a_connection_is_no_busy_loop);
	tcase_add_test(tcase, log_is_opened_again);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
