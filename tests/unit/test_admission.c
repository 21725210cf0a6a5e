/* Tests of admission: the counts and a key's limits with invented time, then a real penstockd whose queue, keys and deadlines
 * are tried by many real processes: no request is lost, and every count returns to zero. */
#include "config.h"

#include "support/daemon.h"
#include "support/lane_client.h"

#include "base/clock.h"
#include "batcher/admission.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seeds choose scripts by their order. */
enum { SHORT, FOREVER, SLOW };

static const char script[] =
    "prefill 3000\n"
    "script short\npace 200\nids 10 11 12 13\n"
    "script forever\npace 500\nids 20 21 22\nrepeat 0\n"
    "script slow\npace 10000\nids 30\nrepeat 0\n";

enum { PROCESSES = 8, ROUNDS = 60, KEYS = 3 };

static struct metrics     metrics;
static struct admission   admission;
static struct daemon      d;
static struct lane_client a, b;

/* ---- invented time -------------------------------------------------------------------------------------------------- */

static void open_admission(void)
{
	metrics = (struct metrics){ .shared = calloc(1, sizeof *metrics.shared) };
	ck_assert_int_eq(admission_init(&admission, &metrics,
	                     &(struct admission_limits){ .max_running = 2, .max_queued = 3, .max_queued_tokens = 1000 }), STATUS_OK);
	admission.kv_tokens = 500;
	admission.max_context = 2000;
}

static void close_admission(void)
{
	ck_assert_uint_eq(admission_inside(&admission), 0);
	ck_assert_uint_eq(admission.tokens, 0);
	ck_assert_uint_eq(metrics_get(&metrics, METRIC_slots_in_use), 0);
	ck_assert_uint_eq(metrics_get(&metrics, METRIC_tokens_inside), 0);
	admission_free(&admission);
	free(metrics.shared);
}

static enum status reserve(const struct admission_ask *ask, uint64_t now_ns, struct admission_ticket *ret, uint32_t *ret_seconds)
{
	uint32_t value = 0;

	if (admission_reserve(&admission, ask, now_ns, ret, &value) != LANE_REPLY_REJECT)
		return STATUS_OK;
	*ret_seconds = lane_rejection_seconds(value);
	return lane_rejection_status(value);
}

START_TEST(requests_and_tokens_have_limits)
{
	const struct admission_ask small = { .prompt_tokens = 10, .max_tokens = 10, .choices = 1 };
	const struct admission_ask large = { .prompt_tokens = 1400, .max_tokens = 200, .choices = 1 };
	struct admission_ticket    tickets[6];
	uint32_t                   value, seconds = 0;

	open_admission();
	ck_assert_int_eq(admission_reserve(&admission, &small, 1, &tickets[0], &value), LANE_REPLY_ACCEPT);
	admission_drained(&admission, 100, CLOCK_NS_PER_S); /* 100 tokens/s */
	ck_assert_int_eq(reserve(&large, 1, &tickets[1], &seconds), STATUS_QUEUE_TOKENS);
	ck_assert_uint_eq(seconds, (1400 + 200 + 20 - 1500 + 99) / 100);
	admission_release(&admission, &tickets[0], 0, 1);
	ck_assert_int_eq(reserve(&large, 1, &tickets[1], &seconds), STATUS_OK); /* alone it may be larger than the queue */
	admission_release(&admission, &tickets[1], 0, 1);

	for (int i = 0; i < 5; i++) {
		enum lane_reply reply = admission_reserve(&admission, &small, 1, &tickets[i], &value);
		ck_assert_int_eq(reply, i < 2 ? LANE_REPLY_ACCEPT : LANE_REPLY_WAIT);
		ck_assert_uint_eq(value, i < 2 ? 0 : (uint32_t)i - 2);
	}
	ck_assert_int_eq(reserve(&small, 1, &tickets[5], &seconds), STATUS_FULL);
	ck_assert_uint_eq(seconds, 1);
	ck_assert_uint_eq(metrics_get(&metrics, METRIC_requests_rejected_total), 2);
	ck_assert_uint_eq(metrics_get(&metrics, METRIC_rejections_queue), 1);
	ck_assert_uint_eq(metrics_get(&metrics, METRIC_rejections_queue_tokens), 1);
	for (int i = 0; i < 5; i++)
		admission_release(&admission, &tickets[i], 0, 1);
	close_admission();
}
END_TEST

/* Answers are counted with what such answers took before, and the true prompt replaces the guess. */
START_TEST(answers_are_estimated)
{
	struct admission_ask    ask = { .prompt_tokens = 10, .max_tokens = 400, .choices = 2 };
	struct admission_ticket ticket;
	uint32_t                seconds;

	open_admission();
	for (int i = 0; i < 2000; i++) {
		ck_assert_int_eq(reserve(&ask, 1, &ticket, &seconds), STATUS_OK);
		admission_learn(&admission, 30);
		admission_release(&admission, &ticket, 40, 1);
	}
	ck_assert_int_eq(reserve(&ask, 1, &ticket, &seconds), STATUS_OK);
	ck_assert_uint_ge(ticket.answer, 2 * 20);
	ck_assert_uint_le(ticket.answer, 2 * 45);
	ask.prompt_tokens = 77;
	admission_correct(&admission, &ask, 1, &ticket);
	ck_assert_uint_eq(ticket.prompt, 77);
	ck_assert_uint_eq(admission.tokens, ticket.prompt + ticket.answer);
	admission_release(&admission, &ticket, 0, 1);
	close_admission();
}
END_TEST

START_TEST(keys_have_limits)
{
	struct admission_ask    ask = { .key = 7, .key_requests = 2, .prompt_tokens = 10, .max_tokens = 10, .choices = 1 };
	struct admission_ask    metered = { .key = 8, .key_tokens = 600, .prompt_tokens = 390, .max_tokens = 10, .choices = 1 };
	struct admission_ticket first, second, third;
	uint64_t                now = 1000 * CLOCK_NS_PER_S;
	uint32_t                seconds = 0;

	open_admission();
	ck_assert_int_eq(reserve(&ask, now, &first, &seconds), STATUS_OK);
	ck_assert_int_eq(reserve(&ask, now, &second, &seconds), STATUS_OK);
	ck_assert_int_eq(reserve(&ask, now, &third, &seconds), STATUS_KEY_REQUESTS);
	admission_release(&admission, &second, 0, now);
	ck_assert_int_eq(reserve(&ask, now, &third, &seconds), STATUS_OK);
	admission_release(&admission, &first, 0, now);
	admission_release(&admission, &third, 0, now);

	/* 600 tokens a minute are 10 a second. */
	ck_assert_int_eq(reserve(&metered, now, &first, &seconds), STATUS_OK);
	ck_assert_int_eq(reserve(&metered, now, &second, &seconds), STATUS_KEY_TOKENS);
	ck_assert_uint_ge(seconds, 20);
	ck_assert_uint_le(seconds, 21);
	admission_release(&admission, &first, 400, now);
	ck_assert_int_eq(reserve(&metered, now + 19 * CLOCK_NS_PER_S, &second, &seconds), STATUS_KEY_TOKENS);
	ck_assert_int_eq(reserve(&metered, now + 21 * CLOCK_NS_PER_S, &second, &seconds), STATUS_OK);
	admission_release(&admission, &second, 0, now + 21 * CLOCK_NS_PER_S); /* it used nothing */
	ck_assert_int_eq(reserve(&metered, now + 21 * CLOCK_NS_PER_S, &second, &seconds), STATUS_OK);
	admission_release(&admission, &second, 0, now + 21 * CLOCK_NS_PER_S);
	/* What alone exceeds a minute goes when the minute is whole, and is paid for afterwards. */
	metered.prompt_tokens = 1190;
	admission.limits.max_queued_tokens = 0;
	ck_assert_int_eq(reserve(&metered, now + 22 * CLOCK_NS_PER_S, &second, &seconds), STATUS_KEY_TOKENS);
	now += 200 * CLOCK_NS_PER_S;
	ck_assert_int_eq(reserve(&metered, now, &second, &seconds), STATUS_OK);
	admission_release(&admission, &second, 1200, now);
	metered.prompt_tokens = 1;
	ck_assert_int_eq(reserve(&metered, now + 59 * CLOCK_NS_PER_S, &second, &seconds), STATUS_KEY_TOKENS);
	ck_assert_int_eq(reserve(&metered, now + 63 * CLOCK_NS_PER_S, &second, &seconds), STATUS_OK);
	admission_release(&admission, &second, 0, now + 63 * CLOCK_NS_PER_S);
	/* A limit that is taken away is gone. */
	metered.key_tokens = 0;
	ck_assert_int_eq(reserve(&metered, now, &second, &seconds), STATUS_OK);
	admission_release(&admission, &second, 0, now);
	close_admission();
}
END_TEST

/* As many keys as no honest front has: those in use keep their accounts, the others make room. */
START_TEST(more_keys_than_accounts)
{
	struct admission_ask    ask = { .key = 1, .key_requests = 1, .prompt_tokens = 1, .max_tokens = 1, .choices = 1 };
	struct admission_ticket held, other;
	uint32_t                seconds;

	open_admission();
	ck_assert_int_eq(reserve(&ask, 1, &held, &seconds), STATUS_OK);
	for (uint64_t key = 2; key < 3 * (uint64_t)ACCOUNTS_MAX; key++) {
		ask.key = key;
		ck_assert_int_eq(reserve(&ask, 1, &other, &seconds), STATUS_OK);
		admission_release(&admission, &other, 0, 1);
	}
	ask.key = 1;
	ck_assert_int_eq(reserve(&ask, 1, &other, &seconds), STATUS_KEY_REQUESTS);
	admission_release(&admission, &held, 0, 1);
	close_admission();
}
END_TEST

/* ---- processes ------------------------------------------------------------------------------------------------------ */

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

static void setup(void) { a.fd = a.wait_fd = b.fd = b.wait_fd = -1; }

static void teardown(void)
{
	lane_client_close(&a);
	lane_client_close(&b);
	daemon_free(&d);
}

static void check_idle(void)
{
	ck_assert(daemon_wait_metric(&d, METRIC_slots_in_use, 0));
	ck_assert(daemon_wait_metric(&d, METRIC_tokens_inside, 0));
	ck_assert(daemon_wait_metric(&d, METRIC_kv_blocks_used, 0));
	ck_assert(daemon_wait_metric(&d, METRIC_reservations, 0));
}

/* The limit of a key holds over all fronts. */
START_TEST(a_key_on_two_lanes)
{
	const struct wire_reserve fields = { .key = 99, .key_requests = 2, .prompt_bytes = 40, .max_tokens = 10 };
	uint32_t                  value = 0;

	begin(NULL);
	attach(&a);
	attach(&b);
	ck_assert_int_ne(lane_client_reserve_as(&a, 0, &fields, &value), LANE_REPLY_REJECT);
	ck_assert_int_ne(lane_client_reserve_as(&b, 0, &fields, &value), LANE_REPLY_REJECT);
	ck_assert_int_eq(lane_client_reserve_as(&b, 1, &fields, &value), LANE_REPLY_REJECT);
	ck_assert_int_eq(lane_rejection_status(value), STATUS_KEY_REQUESTS);
	ck_assert_uint_ge(lane_rejection_seconds(value), 1);
	lane_client_submit(&a, 0, 4, 10, SHORT);
	ck_assert(lane_client_wait_end(&a, 0));
	ck_assert_int_ne(lane_client_reserve_as(&b, 1, &fields, &value), LANE_REPLY_REJECT);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_rejections_key_requests), 1);
	lane_client_close(&b); /* with two reservations */
	check_idle();
	ck_assert_int_ne(lane_client_reserve_as(&a, 0, &fields, &value), LANE_REPLY_REJECT);
	lane_client_cancel(&a, 0);
	check_idle();
}
END_TEST

/* A record that is not what was reserved, or out of range, ends its request and nothing else. */
START_TEST(reservations_bind)
{
	struct wire_reserve fields = { .key = 5, .priority = 3, .prompt_bytes = 40, .max_tokens = 10 };
	uint32_t            value = 0;

	begin(NULL);
	attach(&a);
	for (uint32_t slot = 0; slot < 3; slot++) {
		ck_assert_int_ne(lane_client_reserve_as(&a, slot, &fields, &value), LANE_REPLY_REJECT);
		a.slots[slot].key += slot == 1;
		a.slots[slot].priority = (int16_t)(a.slots[slot].priority - (slot == 2));
		lane_client_submit(&a, slot, 4, 10, SHORT);
		ck_assert(lane_client_wait_end(&a, slot));
		ck_assert_uint_eq(a.slots[slot].end.status, slot ? STATUS_INVALID : STATUS_OK);
	}
	fields.priority = 101;
	a.slots[3].ends = 0;
	fields.header.type = WIRE_RESERVE;
	fields.generation = lane_front_open_slot(&a.lane, 3);
	a.slots[3].generation = fields.generation;
	a.slots[3].req = fields.req = 4242;
	fields.slot = 3;
	fields.choices = 1;
	ck_assert(lane_client_write(&a, &fields, sizeof fields, NULL, 0));
	ck_assert(lane_client_wait_end(&a, 3));
	ck_assert_uint_eq(a.slots[3].end.status, STATUS_INVALID);
	check_idle();
}
END_TEST

/* The deadline of a request ends it while it waits, and while it is decoded. */
START_TEST(deadlines)
{
	static const char *const sets[] = { "batcher.max_running=1", NULL };
	int32_t                  ids[4] = { 1, 2, 3, 4 };
	uint32_t                 value;

	begin(sets);
	attach(&a);
	for (uint32_t slot = 0; slot < 2; slot++) {
		ck_assert_int_ne(lane_client_reserve(&a, slot, 10, 0, &value), LANE_REPLY_REJECT);
		struct wire_submit submit = lane_client_submit_record(&a, slot, 4, 0, slot ? SHORT : FOREVER);
		struct wire_tokens tokens = { .header.type = WIRE_TOKENS, .req = submit.req, .generation = submit.generation,
			.slot = submit.slot, .count = 4 };

		submit.deadline_ns = clock_now_ns() + (slot ? 50 : 300) * CLOCK_NS_PER_MS;
		ck_assert(lane_client_write(&a, &submit, sizeof submit, NULL, 0));
		ck_assert(lane_client_write(&a, &tokens, sizeof tokens, ids, 4));
	}
	for (uint32_t slot = 0; slot < 2; slot++) {
		ck_assert(lane_client_wait_end(&a, slot));
		ck_assert_uint_eq(a.slots[slot].end.finish, WIRE_FINISH_ERROR);
		ck_assert_uint_eq(a.slots[slot].end.status, STATUS_TIMEOUT);
	}
	ck_assert_uint_eq(daemon_metric(&d, METRIC_expired_deadline), 2);
	check_idle();
}
END_TEST

/* What one process saw. */
struct tally {
	uint32_t submitted, rejected, wrong;
};

/* A new request in SLOT.  True when its END is due. */
static bool use_slot(struct lane_client *c, uint32_t slot, unsigned *seed, struct tally *tally)
{
	struct wire_reserve fields = { .key = 1 + (uint64_t)rand_r(seed) % KEYS, .key_requests = 6, .key_tokens = 4000000,
		.priority = (int16_t)(rand_r(seed) % 5 - 2), .prompt_bytes = (uint32_t)rand_r(seed) % 400, .max_tokens = 20 };
	uint32_t            value = 0;

	if (lane_client_reserve_as(c, slot, &fields, &value) == LANE_REPLY_REJECT) {
		enum status status = lane_rejection_status(value);
		tally->rejected++;
		tally->wrong += (status != STATUS_FULL && status != STATUS_KEY_REQUESTS) || lane_rejection_seconds(value) == 0;
		return false;
	}
	if (rand_r(seed) % 8 == 0) {
		lane_client_cancel(c, slot);
		return false;
	}
	tally->submitted++;
	lane_client_submit(c, slot, 1 + (uint32_t)rand_r(seed) % 60, 20, rand_r(seed) % 2 ? SHORT : FOREVER);
	if (rand_r(seed) % 8)
		return true;
	lane_client_cancel(c, slot); /* an END comes only if it was the engine's by then */
	return false;
}

/* One front: rounds of four requests at a time, every END that is due awaited. */
static struct tally be_a_front(unsigned seed)
{
	struct lane_client c = { .fd = -1, .wait_fd = -1 };
	struct tally       tally = { 0 };
	struct error       error;

	if (lane_client_attach(&c, &d, 4, 0, &error))
		return (struct tally){ .wrong = 1 };
	for (int round = 0; round < ROUNDS; round++) {
		bool due[4];

		for (uint32_t slot = 0; slot < 4; slot++)
			due[slot] = use_slot(&c, slot, &seed, &tally);
		for (uint32_t slot = 0; slot < 4; slot++)
			tally.wrong += due[slot] && (!lane_client_wait_end(&c, slot) || c.slots[slot].ends != 1 || c.slots[slot].wrong ||
			                                c.slots[slot].end.finish == WIRE_FINISH_ERROR);
	}
	lane_client_close(&c);
	return tally;
}

START_TEST(many_processes)
{
	static const char *const sets[] = { "batcher.max_running=4", "batcher.max_queued=12", NULL };
	struct tally             sum = { 0 };
	int                      pipes[2];

	begin(sets);
	ck_assert_int_eq(pipe(pipes), 0);
	for (unsigned i = 0; i < PROCESSES; i++) {
		pid_t pid = fork();
		ck_assert_int_ge(pid, 0);
		if (pid == 0) {
			struct tally tally = be_a_front(i + 1);
			_exit(write(pipes[1], &tally, sizeof tally) != (ssize_t)sizeof tally);
		}
	}
	for (unsigned i = 0; i < PROCESSES; i++) {
		struct tally tally;
		int          status;

		ck_assert_int_eq(read(pipes[0], &tally, sizeof tally), (ssize_t)sizeof tally);
		sum.submitted += tally.submitted;
		sum.rejected += tally.rejected;
		sum.wrong += tally.wrong;
		ck_assert_int_gt(wait(&status), 0);
		ck_assert_int_eq(status, 0);
	}
	close(pipes[0]);
	close(pipes[1]);
	ck_assert_uint_eq(sum.wrong, 0);
	ck_assert_uint_gt(sum.submitted, 0);
	ck_assert_uint_gt(sum.rejected, 0); /* 32 at a time knock at 16 places */
	check_idle();
	ck_assert_uint_eq(daemon_metric(&d, METRIC_requests_rejected_total), sum.rejected);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_rejections_queue) + daemon_metric(&d, METRIC_rejections_key_requests), sum.rejected);
	/* A request that was cancelled before its last record was never the engine's. */
	ck_assert_uint_le(daemon_metric(&d, METRIC_requests_total), sum.submitted);
	ck_assert_uint_eq(daemon_metric(&d, METRIC_requests_total), daemon_metric(&d, METRIC_requests_finished_total) +
	    daemon_metric(&d, METRIC_requests_cancelled_total) + daemon_metric(&d, METRIC_requests_failed_total));
	ck_assert_uint_eq(daemon_metric(&d, METRIC_requests_failed_total), 0);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("admission");
	TCase   *pure = tcase_create("pure"), *process = tcase_create("process");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(pure, 60);
	tcase_add_test(pure, requests_and_tokens_have_limits);
	tcase_add_test(pure, answers_are_estimated);
	tcase_add_test(pure, keys_have_limits);
	tcase_add_test(pure, more_keys_than_accounts);
	suite_add_tcase(suite, pure);
	tcase_set_timeout(process, 600);
	tcase_add_checked_fixture(process, setup, teardown);
	tcase_add_test(process, a_key_on_two_lanes);
	tcase_add_test(process, reservations_bind);
	tcase_add_test(process, deadlines);
	tcase_add_test(process, many_processes);
	suite_add_tcase(suite, process);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
