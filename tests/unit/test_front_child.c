/* A front child against a penstockd that this test plays, so that it can do what a good one never does: break the rules
 * of the lane, grow stale, answer late, come back as another one.  The child is a real process with a real socket. */
#include "base/clock.h"
#include "support/front_world.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 4, WINDOW = 4096 };

static void small(struct conf *conf)
{
	conf->front_streams_per_front = SLOTS;
	conf->front_stream_window = WINDOW;
}

static struct world world;

START_TEST(streams_and_credit)
{
	struct world *w = &world;
	struct client c;
	struct job    job;
	uint32_t      count;

	world_open(w, small);
	played_start(w);
	played_welcome(w);
	int32_t *ids = world_encode(w, "Hello world", &count);
	client_ask(w, &c, ",\"stream\":true");
	job_admit(w, &job);
	for (uint32_t i = 0; i < count; i++)
		job_send_tokens(w, &job, ids + i, 1);
	job_await_consumed(w, &job, job.published); /* all of it is written, though the client has read nothing */
	job_send_end(w, &job, WIRE_FINISH_STOP, STATUS_OK);
	client_expect(&c, "Status: 200", "data: [DONE]\n\n");
	free(job.prompt);

	client_ask(w, &c, ""); /* a whole answer: its events are consumed at once */
	job_admit(w, &job);
	job_send_tokens(w, &job, ids, count);
	job_await_consumed(w, &job, job.published);
	job_send_end(w, &job, WIRE_FINISH_LENGTH, STATUS_OK);
	client_expect(&c, "Status: 200", "Hello world");
	free(job.prompt);
	free(ids);
	world_close(w);
}
END_TEST

START_TEST(answers_to_reserve)
{
	struct world *w = &world;
	struct client c;
	struct job    job;

	world_open(w, small);
	played_start(w);
	played_welcome(w);
	client_ask(w, &c, "");
	job_expect_reserve(w, &job);
	job_reply(w, &job, LANE_REPLY_REJECT, LANE_REJECTION(STATUS_FULL, 17));
	client_expect(&c, "Status: 429", "Retry-After: 17\r\n");

	/* The reason has words and a code of its own. */
	static const struct {
		enum status status;
		const char *line, *code;
	} reasons[] = {
		{ STATUS_KEY_REQUESTS, "Status: 429", "\"key_requests_exceeded\"" },
		{ STATUS_KEY_TOKENS, "Status: 429", "\"key_tokens_exceeded\"" },
		{ STATUS_QUEUE_TOKENS, "Status: 429", "\"overloaded\"" },
		{ STATUS_UNAVAILABLE, "Status: 503", "\"unavailable\"" },
	};
	for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
		client_ask(w, &c, ",\"priority\":7,\"timeout\":5000");
		job_expect_reserve(w, &job);
		ck_assert_int_eq(w->record.reserve.priority, 7);
		ck_assert_uint_eq(w->record.reserve.choices, 1);
		job_reply(w, &job, LANE_REPLY_REJECT, LANE_REJECTION(reasons[i].status, 3));
		client_expect(&c, reasons[i].line, reasons[i].code);
	}

	client_ask(w, &c, "");
	job_expect_reserve(w, &job);
	/* To an earlier use of the slot. */
	lane_batcher_reply(&w->lane, job.slot, job.generation - 1, LANE_REPLY_REJECT, 1);
	played_wake(w);
	job_reply(w, &job, LANE_REPLY_WAIT, 3); /* admitted all the same */
	job_expect_submit(w, &job);
	job_send_end(w, &job, WIRE_FINISH_ERROR, STATUS_CONTEXT_LENGTH); /* before the prompt was read */
	client_expect(&c, "Status: 400", "context_length_exceeded");
	world_await_counter(w, COUNTER_GENERATING, 0);
	world_close(w);
}
END_TEST

/* The client's deadline: in the SUBMIT, and kept by the front itself as long as there is none. */
START_TEST(deadline)
{
	struct world *w = &world;
	struct client c;
	struct job    job;
	uint64_t      before = clock_now_ns();

	world_open(w, small);
	played_start(w);
	played_welcome(w);
	client_ask(w, &c, ",\"timeout\":3600,\"priority\":-3");
	job_expect_reserve(w, &job);
	job_reply(w, &job, LANE_REPLY_ACCEPT, 0);
	job_expect_submit(w, &job);
	ck_assert_uint_gt(w->record.submit.deadline_ns, before + 3600 * CLOCK_NS_PER_S);
	ck_assert_uint_lt(w->record.submit.deadline_ns, clock_now_ns() + 3600 * CLOCK_NS_PER_S);
	ck_assert_int_eq(w->record.submit.priority, -3);
	job_expect_prompt(w, &job);
	job_send_end(w, &job, WIRE_FINISH_ERROR, STATUS_TIMEOUT);
	client_expect(&c, "Status: 504", "\"timeout\"");

	free(job.prompt);

	client_ask(w, &c, ",\"timeout\":0.05"); /* no reply: nobody but the front can end it */
	job_expect_reserve(w, &job);
	client_expect(&c, "Status: 504", "nothing was generated");
	world_await_counter(w, COUNTER_GENERATING, 0);
	world_close(w);
}
END_TEST

START_TEST(foreign_events_are_dropped)
{
	struct world *w = &world;
	struct client c;
	struct job    job, old;
	uint32_t      count, bads;

	world_open(w, small);
	played_start(w);
	played_welcome(w);
	int32_t *ids = world_encode(w, "good", &count), *bad = world_encode(w, "evil", &bads);
	client_ask(w, &c, "");
	job_expect_reserve(w, &job); /* the slot's first generation, so that the next one has a predecessor */
	job_reply(w, &job, LANE_REPLY_REJECT, 1);
	client_expect(&c, "Status: 429", "");
	client_ask(w, &c, "");
	job_admit(w, &job);
	old = job;
	old.generation--;
	job_send_tokens(w, &old, bad, bads);
	old = job;
	old.req++;
	job_send_tokens(w, &old, bad, bads);
	job_send_end(w, &old, WIRE_FINISH_STOP, STATUS_OK);
	old = job;
	old.slot = (uint16_t)((job.slot + 1) % SLOTS); /* nobody's */
	job_send_tokens(w, &old, bad, bads);
	job_send_tokens(w, &job, ids, count);
	job_send_end(w, &job, WIRE_FINISH_STOP, STATUS_OK);
	client_until_end(&c);
	ck_assert_ptr_null(strstr(client_out(&c), "evil"));
	client_expect(&c, "Status: 200", "\"good\"");
	ck_assert_uint_eq(scoreboard_sum(w->board, COUNTER_STALE_EVENTS), 4);
	free(job.prompt);
	free(ids);
	free(bad);
	world_close(w);
}
END_TEST

/* Each way of breaking the lane's rules costs the tie, not the child: its clients get an error, then it attaches
 * anew. */
START_TEST(broken_rules)
{
	struct world *w = &world;
	struct client c;
	struct job    job;
	int32_t       id = 300;

	world_open(w, small);
	played_start(w);
	for (int way = 0; way < 4; way++) {
		played_welcome(w);
		client_ask(w, &c, way % 2 ? ",\"stream\":true" : "");
		job_admit(w, &job);
		struct wire_token event = { .header.type = WIRE_TOKEN,
			.req = job.req,
			.generation = job.generation,
			.slot = job.slot,
			.count = 1 };
		if (way == 0) { /* a choice that was not asked for */
			event.choice = 1;
			ck_assert_int_eq(lane_batcher_write(&w->lane, &event, sizeof event, &id, 1), STATUS_OK);
		} else if (way == 1) { /* an event of another type */
			event.header.type = WIRE_SUBMIT;
			ck_assert_int_eq(lane_batcher_write(&w->lane, &event, sizeof event, &id, 1), STATUS_OK);
		} else if (way == 2) { /* an impossible index */
			atomic_store(&w->lane.shared->events.tail, 0x80000000u);
		} else { /* twice the END */
			job_send_end(w, &job, WIRE_FINISH_CANCELLED, STATUS_OK);
			client_expect(&c, "Status: 503", "unavailable");
			client_ask(w, &c, "");
			free(job.prompt);
			job_admit(w, &job);
			event.header.type = WIRE_TOKEN;
			event.req = job.req;
			event.generation = job.generation;
			event.slot = SLOTS; /* a slot the lane does not have */
			ck_assert_int_eq(lane_batcher_write(&w->lane, &event, sizeof event, &id, 1), STATUS_OK);
		}
		played_wake(w);
		ck_assert(played_left(w));
		client_expect(&c, "Status: 503", "unavailable");
		free(job.prompt);
		close(w->connection);
		lane_close(&w->lane);
		wake_close(&w->wake);
		w->connection = -1;
	}
	ck_assert_uint_eq(scoreboard_sum(w->board, COUNTER_DETACHES), 4);
	world_close(w);
}
END_TEST

/* More events than the window allows while the client does not read: the child's memory is not the batcher's to
 * fill. */
START_TEST(credit_overrun)
{
	struct world *w = &world;
	struct client c;
	struct job    job;
	uint32_t      count;

	world_open(w, small);
	played_start(w);
	played_welcome(w);
	int32_t *ids = world_encode(w, " some words that make text", &count);
	client_ask(w, &c, ",\"stream\":true");
	job_admit(w, &job);
	struct pollfd gone = { .fd = w->connection, .events = POLLIN };
	for (int i = 0; i < 100000 && poll(&gone, 1, 0) == 0; i++) {
		struct wire_token event = { .header.type = WIRE_TOKEN,
			.req = job.req,
			.generation = job.generation,
			.slot = job.slot,
			.seq = job.seq,
			.count = count };
		if (lane_batcher_write(&w->lane, &event, sizeof event, ids, count) == STATUS_OK)
			job.seq++;
		else
			world_nap();
		played_wake(w);
	}
	ck_assert(played_left(w));
	client_until_end(&c); /* what was written before, then the error as an event */
	ck_assert_ptr_nonnull(strstr(client_out(&c), "\"error\""));
	ck_assert_ptr_null(strstr(client_out(&c), "[DONE]"));
	client_close(&c);
	free(job.prompt);
	free(ids);
	world_close(w);
}
END_TEST

START_TEST(death_of_penstockd)
{
	struct world *w = &world;
	struct client streaming, whole, waiting, later;
	struct job    first, second, third;
	uint32_t      count;

	world_open(w, small);
	client_ask(w, &later, "");
	client_expect(&later, "Status: 503", "Retry-After: ");
	played_start(w);
	played_welcome(w);
	int32_t *ids = world_encode(w, "Hello", &count);
	client_ask(w, &streaming, ",\"stream\":true");
	job_admit(w, &first);
	job_send_tokens(w, &first, ids, 1);
	client_until(&streaming, "data: ");
	client_ask(w, &whole, "");
	job_admit(w, &second);
	job_send_tokens(w, &second, ids, 1);
	client_ask(w, &waiting, "");
	job_expect_reserve(w, &third);
	played_stop(w);
	client_expect(&streaming, "Status: 200", "\"error\"");
	client_expect(&whole, "Status: 503", "unavailable");
	client_expect(&waiting, "Status: 503", "unavailable");

	played_start(w); /* another epoch: served again by the same child */
	played_welcome(w);
	world_await_counter(w, COUNTER_ATTACHED, 1);
	client_ask(w, &later, "");
	free(second.prompt);
	job_admit(w, &second);
	ck_assert_uint_ne(second.req, first.req);
	job_send_tokens(w, &second, ids, 1);
	job_send_end(w, &second, WIRE_FINISH_STOP, STATUS_OK);
	client_expect(&later, "Status: 200", "finish_reason");
	free(first.prompt);
	free(second.prompt);
	free(ids);
	world_close(w);
}
END_TEST

static void short_watchdog(struct conf *conf)
{
	small(conf);
	conf->batcher_watchdog_ms = 1000;
}

/* Hung is not dead: the control socket is open, the heartbeat stands still. */
START_TEST(stale_heartbeat)
{
	struct world *w = &world;
	struct client c;
	struct job    job;

	world_open(w, short_watchdog);
	played_start(w);
	played_welcome(w);
	client_ask(w, &c, "");
	job_admit(w, &job);
	client_expect(&c, "Status: 503", "unavailable");
	ck_assert(played_left(w));
	free(job.prompt);
	world_close(w);
}
END_TEST

/* A start that is loading, then a welcome of an epoch that is over: neither is believed. */
START_TEST(refusals_and_retries)
{
	struct world          *w = &world;
	struct control_message hello, refuse = { .status = STATUS_UNAVAILABLE, .text = "loading" }, stale = { 0 };
	struct lane_geometry   geometry;
	struct error           error;

	world_open(w, small);
	played_start(w);
	played_hello(w, &hello);
	ck_assert_int_eq(control_send(w->connection, &refuse, CONTROL_REFUSE, NULL, 0), STATUS_OK);
	ck_assert(played_left(w));
	close(w->connection);

	played_hello(w, &hello);
	ck_assert_int_eq(lane_geometry_plan(SLOTS, WINDOW, &geometry), STATUS_OK);
	ck_assert_int_eq(lane_create(&geometry, &w->lane, &error), STATUS_OK);
	ck_assert_int_eq(wake_create(&w->wake, &error), STATUS_OK);
	stale.epoch = w->epoch - 1;
	stale.slots = SLOTS;
	stale.vocab_fingerprint = hello.vocab_fingerprint;
	ck_assert_int_eq(control_send(w->connection, &stale, CONTROL_WELCOME, (int[]){ w->lane.fd, w->wake.wait_fd }, 2),
	    STATUS_OK);
	ck_assert(played_left(w));
	lane_close(&w->lane);
	wake_close(&w->wake);
	close(w->connection);
	w->connection = -1;
	ck_assert_uint_eq(scoreboard_sum(w->board, COUNTER_ATTACHES), 0);
	played_welcome(w);
	world_await_counter(w, COUNTER_ATTACHES, 1);
	world_close(w);
}
END_TEST

START_TEST(another_vocabulary)
{
	struct world          *w = &world;
	struct control_message hello, refuse = { .status = STATUS_INVALID, .text = "another vocabulary" };
	struct pollfd          told = { .events = POLLIN };

	world_open(w, small);
	played_start(w);
	played_hello(w, &hello);
	refuse.vocab_fingerprint = hello.vocab_fingerprint + 1;
	ck_assert_int_eq(control_send(w->connection, &refuse, CONTROL_REFUSE, NULL, 0), STATUS_OK);
	told.fd = w->mismatch_fd;
	ck_assert_int_eq(poll(&told, 1, WORLD_DEADLINE_S * 1000), 1);
	ck_assert_uint_eq(scoreboard_sum(w->board, COUNTER_ATTACHES), 0);
	world_close(w);
}
END_TEST

/* A client that leaves: in every state the control word says CANCEL at once. */
START_TEST(client_leaves)
{
	struct world *w = &world;
	struct client c;
	struct job    job;
	uint32_t      count;

	world_open(w, small);
	played_start(w);
	played_welcome(w);
	int32_t *ids = world_encode(w, "Hello", &count);
	for (int state = 0; state < 4; state++) {
		client_ask(w, &c, state == 3 ? ",\"stream\":true" : "");
		job_expect_reserve(w, &job);
		if (state >= 1) {
			job_reply(w, &job, LANE_REPLY_ACCEPT, 0);
			job_expect_submit(w, &job);
			job_expect_prompt(w, &job);
			free(job.prompt);
		}
		if (state >= 2)
			job_send_tokens(w, &job, ids, 1);
		if (state == 3)
			client_until(&c, "data: ");
		client_close(&c);
		job_await_control(w, &job, LANE_CONTROL_CANCEL);
		world_await_counter(w, COUNTER_OPEN, 0);
		if (state > 0) { /* what was on its way is not given to anybody */
			job_send_tokens(w, &job, ids, 1);
			job_send_end(w, &job, WIRE_FINISH_CANCELLED, STATUS_OK);
		}
	}
	world_await_counter(w, COUNTER_CLIENTS_GONE, 4);
	world_await_counter(w, COUNTER_GENERATING, 0);
	free(ids);
	world_close(w);
}
END_TEST

/* A prompt many times the record ring, taken slowly: every id once and in order, and the child waits without
 * spinning. */
START_TEST(long_prompt_in_pieces)
{
	struct world *w = &world;
	struct client c;
	struct job    job;
	struct buf    body;

	world_open(w, small);
	played_start(w);
	w->header.shared->max_context = 1 << 20;
	played_welcome(w);
	buf_init(&body, 1 << 24);
	buf_append_string(&body, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < 100000; i++)
		buf_append_format(&body, "%d ", i % 977);
	buf_append_string(&body, "\"}]}");
	world_await_counter(w, COUNTER_ATTACHED, 1);
	client_ask_body(w, &c, body.data, body.len);
	job_expect_reserve(w, &job);
	ck_assert_uint_eq(w->record.reserve.prompt_bytes, body.len);
	job_reply(w, &job, LANE_REPLY_ACCEPT, 0);
	job_expect_submit(w, &job);
	ck_assert_uint_gt(job.prompt_tokens, 2 * LANE_RECORD_RING / 4);
	job_expect_prompt(w, &job);
	struct token_list list = { 0 };
	struct error      error;
	struct text_span  span = { strstr(body.data, "0 1 2"), 0, false };
	span.len = (size_t)(strstr(body.data, "\"}]}") - span.bytes);
	ck_assert_int_eq(tokenizer_encode(w->load.tokenizer, &span, 1, 1 << 20, &list, &error), STATUS_OK);
	uint32_t at = 0; /* the content stands somewhere in the template */
	while (at + list.count <= job.prompt_tokens && memcmp(job.prompt + at, list.ids, list.count * sizeof *list.ids))
		at++;
	ck_assert_uint_le(at + list.count, job.prompt_tokens);
	job_send_end(w, &job, WIRE_FINISH_STOP, STATUS_OK);
	client_expect(&c, "Status: 200", "finish_reason");
	token_list_free(&list);
	free(job.prompt);
	buf_free(&body);
	world_close(w);
}
END_TEST

START_TEST(stop_string)
{
	struct world *w = &world;
	struct client c;
	struct job    job;
	uint32_t      count;

	world_open(w, small);
	played_start(w);
	played_welcome(w);
	int32_t *ids = world_encode(w, "one two three", &count);
	client_ask(w, &c, ",\"stop\":[\"two\"]");
	job_admit(w, &job);
	for (uint32_t i = 0; i < count; i++)
		job_send_tokens(w, &job, ids + i, 1);
	uint64_t word = job_await_control(w, &job, LANE_CONTROL_STOP);
	ck_assert_uint_eq(lane_control_generation(word), job.generation);
	ck_assert_uint_le(lane_control_keep(word), count);
	job_send_end(w, &job, WIRE_FINISH_STOP, STATUS_OK);
	client_until_end(&c);
	ck_assert_ptr_null(strstr(client_out(&c), "three"));
	client_expect(&c, "Status: 200", "one ");
	free(job.prompt);
	free(ids);
	world_close(w);
}
END_TEST

static void short_keepalive(struct conf *conf)
{
	small(conf);
	conf->front_keepalive_ms = 100;
}

/* While nothing comes a stream gets comments, first the headers with them; a whole answer gets nothing. */
START_TEST(keepalive)
{
	struct world *w = &world;
	struct client stream, whole;
	struct job    job, other;

	world_open(w, short_keepalive);
	played_start(w);
	played_welcome(w);
	client_ask(w, &whole, "");
	job_admit(w, &other);
	client_ask(w, &stream, ",\"stream\":true");
	job_expect_reserve(w, &job); /* already while it waits for admission */
	client_until(&stream, ": ping\n\n: ping\n\n");
	ck_assert(!strncmp(client_out(&stream), "Status: 200", 11));
	job_reply(w, &job, LANE_REPLY_REJECT, 5); /* too late for its own status */
	client_expect(&stream, "Status: 200", "\"error\"");
	job_send_end(w, &other, WIRE_FINISH_ERROR, STATUS_INTERNAL);
	client_until_end(&whole);
	ck_assert_ptr_null(strstr(client_out(&whole), "ping"));
	client_expect(&whole, "Status: 500", "internal_error");
	free(other.prompt);
	world_close(w);
}
END_TEST

/* One client stops reading: its credit stops, its neighbour's does not; SLOW_CLIENT ends it. */
START_TEST(slow_client)
{
	struct world *w = &world;
	struct client slow, quick;
	struct job    a, b;
	uint32_t      count;

	world_open(w, small);
	played_start(w);
	played_welcome(w);
	int32_t *ids = world_encode(w, " some words that make text", &count);
	client_ask(w, &slow, ",\"stream\":true");
	job_admit(w, &a);
	client_ask(w, &quick, ",\"stream\":true");
	job_admit(w, &b);
	uint64_t end = world_deadline();
	for (;;) { /* keeps to the credit of both */
		uint32_t free_a = WINDOW - (a.published - lane_batcher_consumed(&w->lane, a.slot, a.generation));
		uint32_t free_b = WINDOW - (b.published - lane_batcher_consumed(&w->lane, b.slot, b.generation));
		ck_assert_int_le(clock_now_ns() < end ? 0 : 1, 0);
		if (free_a >= 256)
			job_send_tokens(w, &a, ids, count);
		if (free_b >= 256) {
			job_send_tokens(w, &b, ids, count);
			client_read(&quick);
		}
		if (free_a < 256 && b.seq > a.seq + 500)
			break; /* the neighbour went far beyond */
	}
	ck_assert_uint_gt(a.published, lane_batcher_consumed(&w->lane, a.slot, a.generation));
	job_send_end(w, &a, WIRE_FINISH_ERROR, STATUS_SLOW_CLIENT);
	world_await_counter(w, COUNTER_OPEN, 1);
	while (client_read(&slow))
		;
	ck_assert(!slow.ended);
	ck_assert_ptr_null(strstr(client_out(&slow), "[DONE]"));
	job_send_end(w, &b, WIRE_FINISH_STOP, STATUS_OK);
	client_expect(&quick, "Status: 200", "[DONE]");
	client_close(&slow);
	free(a.prompt);
	free(b.prompt);
	free(ids);
	world_close(w);
}
END_TEST

static void longer_drain(struct conf *conf)
{
	small(conf);
	conf->front_drain_timeout_ms = 300;
}

/* TERM: what runs may end within the time-out; afterwards streams get an error event. */
START_TEST(drain)
{
	struct world *w = &world;
	struct client done, cut;
	struct job    a, b;
	uint32_t      count;

	world_open(w, longer_drain);
	played_start(w);
	played_welcome(w);
	int32_t *ids = world_encode(w, "Hello", &count);
	client_ask(w, &done, "");
	job_admit(w, &a);
	client_ask(w, &cut, ",\"stream\":true");
	job_admit(w, &b);
	job_send_tokens(w, &b, ids, 1);
	client_until(&cut, "data: ");
	kill(w->child, SIGTERM);
	job_send_tokens(w, &a, ids, 1);
	job_send_end(w, &a, WIRE_FINISH_STOP, STATUS_OK);
	client_expect(&done, "Status: 200", "finish_reason");
	client_expect(&cut, "Status: 200", "shutting down");
	ck_assert(played_left(w));
	free(a.prompt);
	free(b.prompt);
	free(ids);
	world_close(w);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("front child");
	TCase   *tcase = tcase_create("child");
	SRunner *runner = srunner_create(suite);

	tcase_set_timeout(tcase, 2 * WORLD_DEADLINE_S);
	tcase_add_test(tcase, streams_and_credit);
	tcase_add_test(tcase, answers_to_reserve);
	tcase_add_test(tcase, deadline);
	tcase_add_test(tcase, foreign_events_are_dropped);
	tcase_add_test(tcase, broken_rules);
	tcase_add_test(tcase, credit_overrun);
	tcase_add_test(tcase, death_of_penstockd);
	tcase_add_test(tcase, stale_heartbeat);
	tcase_add_test(tcase, refusals_and_retries);
	tcase_add_test(tcase, another_vocabulary);
	tcase_add_test(tcase, client_leaves);
	tcase_add_test(tcase, long_prompt_in_pieces);
	tcase_add_test(tcase, stop_string);
	tcase_add_test(tcase, keepalive);
	tcase_add_test(tcase, slow_client);
	tcase_add_test(tcase, drain);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
