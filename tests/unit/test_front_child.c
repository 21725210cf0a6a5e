/* A front child against a penstockd that this test plays, so that it can do what a good one never does: break the rules of
 * the lane, grow stale, answer late, come back as another one.  The child is a real process with a real socket. */
#include "base/clock.h"
#include "front/child.h"
#include "front/listen.h"
#include "front/load.h"
#include "ipc/metrics.h"
#include "ipc/wake.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 4, WINDOW = 4096, DEADLINE_S = 60 };

static const char model[] = "tests/data/tiny.gguf";

struct world {
	char               dir[64], socket[100], control[100];
	struct conf        conf;
	struct load        load;
	struct scoreboard *board;
	int                listen_fd, life[2], mismatch_fd;
	pid_t              child;
	/* The penstockd played here. */
	uint64_t           epoch;
	struct header      header;
	struct doorbell    doorbell;
	int                control_fd, connection;
	struct lane        lane;
	struct wake        wake;
};

static uint64_t deadline(void) { return clock_now_ns() + DEADLINE_S * CLOCK_NS_PER_S; }

static void nap(void) { usleep(500); }

/* ---- the world ------------------------------------------------------------------------------------------------------ */

static void world_open(struct world *w, void (*configure)(struct conf *))
{
	struct error error = { 0 };
	const char  *root = getenv("abs_top_srcdir");

	memset(w, 0, sizeof *w);
	w->control_fd = w->connection = -1;
	snprintf(w->dir, sizeof w->dir, "/tmp/penstock-test-child-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(w->dir));
	snprintf(w->socket, sizeof w->socket, "%s/front.sock", w->dir);
	snprintf(w->control, sizeof w->control, "%s/control.sock", w->dir);
	conf_defaults(&w->conf);
	snprintf(w->conf.service_run_dir, sizeof w->conf.service_run_dir, "%s", w->dir);
	snprintf(w->conf.service_instance, sizeof w->conf.service_instance, "test-child-%d", (int)getpid());
	snprintf(w->conf.model_path, sizeof w->conf.model_path, "%.100s/%s", root ? root : ".", model);
	w->conf.front_streams_per_front = SLOTS;
	w->conf.front_stream_window = WINDOW;
	w->conf.front_drain_timeout_ms = 100;
	if (configure)
		configure(&w->conf);
	ck_assert_msg(load_open(&w->conf, &w->load, &error) == STATUS_OK, "%s", error.message);
	ck_assert_msg(listen_open(w->socket, 16, &w->listen_fd, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(scoreboard_create(1, &w->board, &error), STATUS_OK);
	ck_assert_int_eq(pipe(w->life), 0);
	w->mismatch_fd = eventfd(0, EFD_NONBLOCK);
	w->child = fork();
	if (w->child == 0) {
		struct child_options options = { &w->conf, &w->load.api, w->board, 0, w->listen_fd, w->life[0], w->mismatch_fd };
		close(w->life[1]);
		_exit(child_run(&options));
	}
}

static void daemon_start(struct world *w)
{
	struct error error = { 0 };

	ck_assert_msg(header_create(w->conf.service_instance, -1, &w->header, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(doorbell_create(w->conf.service_instance, -1, &w->doorbell, &error), STATUS_OK);
	w->header.shared->epoch = w->epoch = 1000 + w->epoch;
	w->header.shared->max_context = 8192;
	header_beat(&w->header, clock_now_ns());
	header_set_state(&w->header, HEADER_READY);
	ck_assert_msg(control_listen(w->control, -1, &w->control_fd, &error) == STATUS_OK, "%s", error.message);
}

static void daemon_stop(struct world *w)
{
	if (w->connection >= 0) {
		close(w->connection);
		lane_close(&w->lane);
		wake_close(&w->wake);
	}
	if (w->control_fd >= 0) {
		close(w->control_fd);
		doorbell_close(&w->doorbell);
		header_close(&w->header);
		unlink(w->control);
	}
	w->control_fd = w->connection = -1;
}

/* Waits for the child's HELLO. */
static void daemon_hello(struct world *w, struct control_message *hello)
{
	struct error error = { 0 };
	int          fds[CONTROL_FDS_MAX], fd_count;
	uint64_t     end = deadline();
	enum status  status = STATUS_AGAIN;

	while ((status = control_accept(w->control_fd, &w->connection, &error)) == STATUS_AGAIN && clock_now_ns() < end)
		nap();
	ck_assert_int_eq(status, STATUS_OK);
	while ((status = control_receive(w->connection, hello, fds, &fd_count, &error)) == STATUS_AGAIN && clock_now_ns() < end)
		nap();
	ck_assert_msg(status == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(hello->type, CONTROL_HELLO);
}

static void daemon_welcome(struct world *w)
{
	struct control_message hello, welcome = { .epoch = w->epoch, .lane = 7 };
	struct lane_geometry   geometry;
	struct error           error = { 0 };

	daemon_hello(w, &hello);
	ck_assert_uint_eq(hello.slots, SLOTS);
	ck_assert_uint_eq(hello.stream_window, WINDOW);
	ck_assert_uint_eq(hello.pid, (unsigned)w->child);
	ck_assert_uint_eq(hello.vocab_fingerprint, vocab_fingerprint(w->load.vocab));
	ck_assert_int_eq(lane_geometry_plan(hello.slots, hello.stream_window, &geometry), STATUS_OK);
	ck_assert_int_eq(lane_create(&geometry, &w->lane, &error), STATUS_OK);
	ck_assert_int_eq(wake_create(&w->wake, &error), STATUS_OK);
	welcome.vocab_fingerprint = hello.vocab_fingerprint;
	welcome.slots = hello.slots;
	welcome.stream_window = hello.stream_window;
	ck_assert_int_eq(control_send(w->connection, &welcome, CONTROL_WELCOME, (int[]){ w->lane.fd, w->wake.wait_fd }, 2), STATUS_OK);
}

/* True once the child has closed its end. */
static bool daemon_left(struct world *w)
{
	struct pollfd p = { .fd = w->connection, .events = POLLIN };
	char          byte;
	return poll(&p, 1, DEADLINE_S * 1000) == 1 && recv(w->connection, &byte, 1, MSG_DONTWAIT) == 0;
}

static void world_close(struct world *w)
{
	int status;

	kill(w->child, SIGTERM);
	ck_assert_int_eq(waitpid(w->child, &status, 0), w->child);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == CHILD_DONE, "child ended with %x", status);
	daemon_stop(w);
	close(w->listen_fd);
	close(w->life[0]);
	close(w->life[1]);
	close(w->mismatch_fd);
	scoreboard_free(w->board);
	load_close(&w->load);
	unlink(w->socket);
	rmdir(w->dir);
}

static void await_counter(const struct world *w, enum counter id, uint64_t value)
{
	uint64_t end = deadline();
	while (scoreboard_sum(w->board, id) != value && clock_now_ns() < end)
		nap();
	ck_assert_uint_eq(scoreboard_sum(w->board, id), value);
}

/* ---- penstockd's side of a lane ------------------------------------------------------------------------------------- */

static union record {
	struct wire_header  header;
	struct wire_reserve reserve;
	struct wire_submit  submit;
	struct wire_tokens  tokens;
	unsigned char       bytes[WIRE_RECORD_MAX];
} record;

static void next_record(struct world *w, enum wire_type type)
{
	size_t      bytes;
	enum status status;
	uint64_t    end = deadline();

	while ((status = lane_batcher_read(&w->lane, &record, sizeof record, &bytes)) == STATUS_AGAIN && clock_now_ns() < end)
		nap();
	ck_assert_int_eq(status, STATUS_OK);
	ck_assert_uint_eq(record.header.type, type);
	if (lane_batcher_take_room_waiting(&w->lane))
		wake_send(&w->wake);
}

static void wake(struct world *w)
{
	if (lane_batcher_take_waiting(&w->lane))
		wake_send(&w->wake);
}

struct job {
	uint64_t req;
	uint32_t generation, prompt_tokens, seq, published;
	uint16_t slot;
	int32_t *prompt; /* the ids that came */
};

static void expect_reserve(struct world *w, struct job *ret)
{
	next_record(w, WIRE_RESERVE);
	*ret = (struct job){ .req = record.reserve.req, .generation = record.reserve.generation, .slot = record.reserve.slot };
	ck_assert_uint_gt(record.reserve.prompt_bytes, 0);
}

static void reply(struct world *w, const struct job *job, enum lane_reply kind, uint32_t value)
{
	lane_batcher_reply(&w->lane, job->slot, job->generation, kind, value);
	wake(w);
}

static void expect_submit(struct world *w, struct job *job)
{
	next_record(w, WIRE_SUBMIT);
	ck_assert_uint_eq(record.submit.req, job->req);
	ck_assert_uint_eq(record.submit.generation, job->generation);
	ck_assert_uint_eq(record.submit.slot, job->slot);
	job->prompt_tokens = record.submit.prompt_tokens;
}

static void expect_prompt(struct world *w, struct job *job)
{
	uint32_t at = 0;

	job->prompt = calloc(job->prompt_tokens, sizeof *job->prompt);
	while (at < job->prompt_tokens) {
		next_record(w, WIRE_TOKENS);
		ck_assert_uint_eq(record.tokens.req, job->req);
		ck_assert_uint_eq(record.tokens.offset, at);
		memcpy(job->prompt + at, record.bytes + sizeof record.tokens, record.tokens.count * sizeof *job->prompt);
		at += record.tokens.count;
	}
}

static void admit(struct world *w, struct job *ret)
{
	expect_reserve(w, ret);
	reply(w, ret, LANE_REPLY_ACCEPT, 0);
	expect_submit(w, ret);
	expect_prompt(w, ret);
}

static void send_tokens(struct world *w, struct job *job, const int32_t *ids, uint32_t count)
{
	struct wire_token event = { .header.type = WIRE_TOKEN, .req = job->req, .generation = job->generation, .slot = job->slot,
		.seq = job->seq++, .count = count };
	ck_assert_int_eq(lane_batcher_write(&w->lane, &event, sizeof event, ids, count), STATUS_OK);
	job->published += event.header.bytes;
	wake(w);
}

static void send_end(struct world *w, struct job *job, enum wire_finish finish, enum status status)
{
	struct wire_end event = { .header.type = WIRE_END, .req = job->req, .generation = job->generation, .slot = job->slot,
		.seq = job->seq, .finish = finish, .status = status, .prompt_tokens = job->prompt_tokens, .completion_tokens = job->seq };
	ck_assert_int_eq(lane_batcher_write(&w->lane, &event, sizeof event, NULL, 0), STATUS_OK);
	job->published += event.header.bytes;
	wake(w);
}

static void await_consumed(const struct world *w, const struct job *job, uint32_t bytes)
{
	uint64_t end = deadline();
	while (lane_batcher_consumed(&w->lane, job->slot, job->generation) != bytes && clock_now_ns() < end)
		nap();
	ck_assert_uint_eq(lane_batcher_consumed(&w->lane, job->slot, job->generation), bytes);
}

/* Waits until the control word of JOB says FLAGS, or its generation is over. */
static uint64_t await_control(const struct world *w, const struct job *job, uint32_t flags)
{
	uint64_t end = deadline(), word;
	do
		word = lane_batcher_control(&w->lane, job->slot);
	while (lane_control_generation(word) == job->generation && !(lane_control_flags(word) & flags) && clock_now_ns() < end &&
	    (nap(), true));
	ck_assert_msg(lane_control_generation(word) != job->generation || (lane_control_flags(word) & flags), "control %jx",
	    (uintmax_t)word);
	return word;
}

/* Ids of TEXT; the caller frees them. */
static int32_t *encode(struct world *w, const char *text, uint32_t *ret_count)
{
	struct token_list list = { 0 };
	struct text_span  span = { text, strlen(text), false };
	struct error      error;

	ck_assert_int_eq(tokenizer_encode(w->load.tokenizer, &span, 1, 1000, &list, &error), STATUS_OK);
	*ret_count = (uint32_t)list.count;
	return list.ids;
}

/* ---- clients ---------------------------------------------------------------------------------------------------------- */

struct client {
	int        fd;
	struct buf raw, out; /* bytes that came, content of STDOUT */
	bool       ended, closed;
};

static void put_pair(struct buf *buf, const char *name, const char *value)
{
	unsigned char lengths[2] = { (unsigned char)strlen(name), (unsigned char)strlen(value) };
	buf_append(buf, lengths, 2);
	buf_append_string(buf, name);
	buf_append_string(buf, value);
}

static void put_record(struct buf *buf, enum records_type type, const void *content, size_t len)
{
	unsigned char header[RECORDS_HEADER];
	records_put_header(header, type, 1, len);
	buf_append(buf, header, sizeof header);
	buf_append(buf, content, len);
}

static void client_connect(const struct world *w, struct client *c)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval     limit = { .tv_sec = DEADLINE_S };

	*c = (struct client){ .fd = socket(AF_UNIX, SOCK_STREAM, 0) };
	buf_init(&c->raw, 1 << 24);
	buf_init(&c->out, 1 << 24);
	snprintf(address.sun_path, sizeof address.sun_path, "%s", w->socket);
	setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	ck_assert_int_eq(connect(c->fd, (struct sockaddr *)&address, sizeof address), 0);
}

static void client_send(struct client *c, const struct buf *bytes)
{
	size_t at = 0;
	while (at < bytes->len) {
		ssize_t n = send(c->fd, bytes->data + at, bytes->len - at, MSG_NOSIGNAL);
		ck_assert_msg(n > 0, "send: %s", strerror(errno));
		at += (size_t)n;
	}
}

/* A chat request with BODY. */
static void client_ask_body(const struct world *w, struct client *c, const char *body, size_t len)
{
	struct buf    bytes, params;
	unsigned char begin[8] = { 0, 1 };
	char          length[20];

	buf_init(&bytes, 1 << 24);
	buf_init(&params, 1 << 16);
	snprintf(length, sizeof length, "%zu", len);
	put_pair(&params, "REQUEST_METHOD", "POST");
	put_pair(&params, "DOCUMENT_URI", "/v1/chat/completions");
	put_pair(&params, "CONTENT_TYPE", "application/json");
	put_pair(&params, "CONTENT_LENGTH", length);
	put_record(&bytes, RECORDS_BEGIN, begin, sizeof begin);
	put_record(&bytes, RECORDS_PARAMS, params.data, params.len);
	put_record(&bytes, RECORDS_PARAMS, "", 0);
	for (size_t at = 0; at < len; at += 60000)
		put_record(&bytes, RECORDS_STDIN, body + at, len - at < 60000 ? len - at : 60000);
	put_record(&bytes, RECORDS_STDIN, "", 0);
	client_connect(w, c);
	client_send(c, &bytes);
	buf_free(&params);
	buf_free(&bytes);
}

static void client_ask(const struct world *w, struct client *c, const char *more)
{
	char body[512];
	int  n = snprintf(body, sizeof body, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]%s}", more);
	client_ask_body(w, c, body, (size_t)n);
}

/* One read; false at the end. */
static bool client_read(struct client *c)
{
	char    bytes[65536];
	ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);

	if (n <= 0) {
		ck_assert_msg(n == 0 || errno == ECONNRESET, "recv: %s", strerror(errno));
		c->closed = true;
		return false;
	}
	buf_append(&c->raw, bytes, (size_t)n);
	for (;;) {
		const unsigned char *b = (unsigned char *)c->raw.data;
		if (c->raw.len < RECORDS_HEADER)
			break;
		size_t content = (size_t)b[4] << 8 | b[5], whole = RECORDS_HEADER + content + b[6];
		if (c->raw.len < whole)
			break;
		if (b[1] == RECORDS_STDOUT)
			buf_append(&c->out, b + RECORDS_HEADER, content);
		c->ended |= b[1] == RECORDS_END;
		buf_consume(&c->raw, whole);
	}
	return true;
}

static const char *client_out(const struct client *c) { return c->out.data ? c->out.data : ""; }

static void client_until(struct client *c, const char *text)
{
	while (!strstr(client_out(c), text) && !c->ended)
		if (!client_read(c))
			break;
	ck_assert_msg(strstr(client_out(c), text) != NULL, "no \"%s\" in \"%s\"", text, client_out(c));
}

static void client_until_end(struct client *c)
{
	while (!c->ended && client_read(c))
		;
}

static void client_close(struct client *c)
{
	close(c->fd);
	buf_free(&c->raw);
	buf_free(&c->out);
}

static void client_expect(struct client *c, const char *status, const char *text)
{
	client_until_end(c);
	ck_assert_msg(c->ended, "no END_REQUEST; out: %s", client_out(c));
	ck_assert_msg(!strncmp(client_out(c), status, strlen(status)), "got \"%.60s\", wanted %s", client_out(c), status);
	ck_assert_msg(strstr(client_out(c), text) != NULL, "no \"%s\" in \"%s\"", text, client_out(c));
	client_close(c);
}

/* ---- tests -------------------------------------------------------------------------------------------------------------- */

static struct world world;

START_TEST(streams_and_credit)
{
	struct world *w = &world;
	struct client c;
	struct job    job;
	uint32_t      count;

	world_open(w, NULL);
	daemon_start(w);
	daemon_welcome(w);
	int32_t *ids = encode(w, "Hello world", &count);
	client_ask(w, &c, ",\"stream\":true");
	admit(w, &job);
	for (uint32_t i = 0; i < count; i++)
		send_tokens(w, &job, ids + i, 1);
	await_consumed(w, &job, job.published); /* all of it is written, though the client has read nothing */
	send_end(w, &job, WIRE_FINISH_STOP, STATUS_OK);
	client_expect(&c, "Status: 200", "data: [DONE]\n\n");
	free(job.prompt);

	client_ask(w, &c, ""); /* a whole answer: its events are consumed at once */
	admit(w, &job);
	send_tokens(w, &job, ids, count);
	await_consumed(w, &job, job.published);
	send_end(w, &job, WIRE_FINISH_LENGTH, STATUS_OK);
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

	world_open(w, NULL);
	daemon_start(w);
	daemon_welcome(w);
	client_ask(w, &c, "");
	expect_reserve(w, &job);
	reply(w, &job, LANE_REPLY_REJECT, 17);
	client_expect(&c, "Status: 429", "Retry-After: 17\r\n");

	client_ask(w, &c, "");
	expect_reserve(w, &job);
	lane_batcher_reply(&w->lane, job.slot, job.generation - 1, LANE_REPLY_REJECT, 1); /* to an earlier use of the slot */
	wake(w);
	reply(w, &job, LANE_REPLY_WAIT, 3); /* admitted all the same */
	expect_submit(w, &job);
	send_end(w, &job, WIRE_FINISH_ERROR, STATUS_CONTEXT_LENGTH); /* before the prompt was read */
	client_expect(&c, "Status: 400", "context_length_exceeded");
	await_counter(w, COUNTER_GENERATING, 0);
	world_close(w);
}
END_TEST

START_TEST(foreign_events_are_dropped)
{
	struct world *w = &world;
	struct client c;
	struct job    job, old;
	uint32_t      count, bads;

	world_open(w, NULL);
	daemon_start(w);
	daemon_welcome(w);
	int32_t *ids = encode(w, "good", &count), *bad = encode(w, "evil", &bads);
	client_ask(w, &c, "");
	expect_reserve(w, &job); /* the slot's first generation, so that the next one has a predecessor */
	reply(w, &job, LANE_REPLY_REJECT, 1);
	client_expect(&c, "Status: 429", "");
	client_ask(w, &c, "");
	admit(w, &job);
	old = job;
	old.generation--;
	send_tokens(w, &old, bad, bads);
	old = job;
	old.req++;
	send_tokens(w, &old, bad, bads);
	send_end(w, &old, WIRE_FINISH_STOP, STATUS_OK);
	old = job;
	old.slot = (uint16_t)((job.slot + 1) % SLOTS); /* nobody's */
	send_tokens(w, &old, bad, bads);
	send_tokens(w, &job, ids, count);
	send_end(w, &job, WIRE_FINISH_STOP, STATUS_OK);
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

/* Each way of breaking the lane's rules costs the tie, not the child: its clients get an error, then it attaches anew. */
START_TEST(broken_rules)
{
	struct world *w = &world;
	struct client c;
	struct job    job;
	int32_t       id = 300;

	world_open(w, NULL);
	daemon_start(w);
	for (int way = 0; way < 4; way++) {
		daemon_welcome(w);
		client_ask(w, &c, way % 2 ? ",\"stream\":true" : "");
		admit(w, &job);
		struct wire_token event = { .header.type = WIRE_TOKEN, .req = job.req, .generation = job.generation, .slot = job.slot,
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
			send_end(w, &job, WIRE_FINISH_CANCELLED, STATUS_OK);
			client_expect(&c, "Status: 503", "unavailable");
			client_ask(w, &c, "");
			free(job.prompt);
			admit(w, &job);
			event.header.type = WIRE_TOKEN;
			event.req = job.req;
			event.generation = job.generation;
			event.slot = SLOTS; /* a slot the lane does not have */
			ck_assert_int_eq(lane_batcher_write(&w->lane, &event, sizeof event, &id, 1), STATUS_OK);
		}
		wake(w);
		ck_assert(daemon_left(w));
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

/* More events than the window allows while the client does not read: the child's memory is not the batcher's to fill. */
START_TEST(credit_overrun)
{
	struct world *w = &world;
	struct client c;
	struct job    job;
	uint32_t      count;

	world_open(w, NULL);
	daemon_start(w);
	daemon_welcome(w);
	int32_t *ids = encode(w, " some words that make text", &count);
	client_ask(w, &c, ",\"stream\":true");
	admit(w, &job);
	struct pollfd gone = { .fd = w->connection, .events = POLLIN };
	for (int i = 0; i < 100000 && poll(&gone, 1, 0) == 0; i++) {
		struct wire_token event = { .header.type = WIRE_TOKEN, .req = job.req, .generation = job.generation, .slot = job.slot,
			.seq = job.seq, .count = count };
		if (lane_batcher_write(&w->lane, &event, sizeof event, ids, count) == STATUS_OK)
			job.seq++;
		else
			nap();
		wake(w);
	}
	ck_assert(daemon_left(w));
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

	world_open(w, NULL);
	client_ask(w, &later, "");
	client_expect(&later, "Status: 503", "Retry-After: ");
	daemon_start(w);
	daemon_welcome(w);
	int32_t *ids = encode(w, "Hello", &count);
	client_ask(w, &streaming, ",\"stream\":true");
	admit(w, &first);
	send_tokens(w, &first, ids, 1);
	client_until(&streaming, "data: ");
	client_ask(w, &whole, "");
	admit(w, &second);
	send_tokens(w, &second, ids, 1);
	client_ask(w, &waiting, "");
	expect_reserve(w, &third);
	daemon_stop(w);
	client_expect(&streaming, "Status: 200", "\"error\"");
	client_expect(&whole, "Status: 503", "unavailable");
	client_expect(&waiting, "Status: 503", "unavailable");

	daemon_start(w); /* another epoch: served again by the same child */
	daemon_welcome(w);
	await_counter(w, COUNTER_ATTACHED, 1);
	client_ask(w, &later, "");
	free(second.prompt);
	admit(w, &second);
	ck_assert_uint_ne(second.req, first.req);
	send_tokens(w, &second, ids, 1);
	send_end(w, &second, WIRE_FINISH_STOP, STATUS_OK);
	client_expect(&later, "Status: 200", "finish_reason");
	free(first.prompt);
	free(second.prompt);
	free(ids);
	world_close(w);
}
END_TEST

static void short_watchdog(struct conf *conf) { conf->batcher_watchdog_ms = 1000; }

/* Hung is not dead: the control socket is open, the heartbeat stands still. */
START_TEST(stale_heartbeat)
{
	struct world *w = &world;
	struct client c;
	struct job    job;

	world_open(w, short_watchdog);
	daemon_start(w);
	daemon_welcome(w);
	client_ask(w, &c, "");
	admit(w, &job);
	client_expect(&c, "Status: 503", "unavailable");
	ck_assert(daemon_left(w));
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

	world_open(w, NULL);
	daemon_start(w);
	daemon_hello(w, &hello);
	ck_assert_int_eq(control_send(w->connection, &refuse, CONTROL_REFUSE, NULL, 0), STATUS_OK);
	ck_assert(daemon_left(w));
	close(w->connection);

	daemon_hello(w, &hello);
	ck_assert_int_eq(lane_geometry_plan(SLOTS, WINDOW, &geometry), STATUS_OK);
	ck_assert_int_eq(lane_create(&geometry, &w->lane, &error), STATUS_OK);
	ck_assert_int_eq(wake_create(&w->wake, &error), STATUS_OK);
	stale.epoch = w->epoch - 1;
	stale.slots = SLOTS;
	stale.vocab_fingerprint = hello.vocab_fingerprint;
	ck_assert_int_eq(control_send(w->connection, &stale, CONTROL_WELCOME, (int[]){ w->lane.fd, w->wake.wait_fd }, 2), STATUS_OK);
	ck_assert(daemon_left(w));
	lane_close(&w->lane);
	wake_close(&w->wake);
	close(w->connection);
	w->connection = -1;
	ck_assert_uint_eq(scoreboard_sum(w->board, COUNTER_ATTACHES), 0);
	daemon_welcome(w);
	await_counter(w, COUNTER_ATTACHES, 1);
	world_close(w);
}
END_TEST

START_TEST(another_vocabulary)
{
	struct world          *w = &world;
	struct control_message hello, refuse = { .status = STATUS_INVALID, .text = "another vocabulary" };
	struct pollfd          told = { .events = POLLIN };

	world_open(w, NULL);
	daemon_start(w);
	daemon_hello(w, &hello);
	refuse.vocab_fingerprint = hello.vocab_fingerprint + 1;
	ck_assert_int_eq(control_send(w->connection, &refuse, CONTROL_REFUSE, NULL, 0), STATUS_OK);
	told.fd = w->mismatch_fd;
	ck_assert_int_eq(poll(&told, 1, DEADLINE_S * 1000), 1);
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

	world_open(w, NULL);
	daemon_start(w);
	daemon_welcome(w);
	int32_t *ids = encode(w, "Hello", &count);
	for (int state = 0; state < 4; state++) {
		client_ask(w, &c, state == 3 ? ",\"stream\":true" : "");
		expect_reserve(w, &job);
		if (state >= 1) {
			reply(w, &job, LANE_REPLY_ACCEPT, 0);
			expect_submit(w, &job);
			expect_prompt(w, &job);
			free(job.prompt);
		}
		if (state >= 2)
			send_tokens(w, &job, ids, 1);
		if (state == 3)
			client_until(&c, "data: ");
		client_close(&c);
		await_control(w, &job, LANE_CONTROL_CANCEL);
		await_counter(w, COUNTER_OPEN, 0);
		if (state > 0) { /* what was on its way is not given to anybody */
			send_tokens(w, &job, ids, 1);
			send_end(w, &job, WIRE_FINISH_CANCELLED, STATUS_OK);
		}
	}
	await_counter(w, COUNTER_CLIENTS_GONE, 4);
	await_counter(w, COUNTER_GENERATING, 0);
	free(ids);
	world_close(w);
}
END_TEST

/* A prompt many times the record ring, taken slowly: every id once and in order, and the child waits without spinning. */
START_TEST(long_prompt_in_pieces)
{
	struct world *w = &world;
	struct client c;
	struct job    job;
	struct buf    body;

	world_open(w, NULL);
	daemon_start(w);
	w->header.shared->max_context = 1 << 20;
	daemon_welcome(w);
	buf_init(&body, 1 << 24);
	buf_append_string(&body, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < 100000; i++)
		buf_append_format(&body, "%d ", i % 977);
	buf_append_string(&body, "\"}]}");
	await_counter(w, COUNTER_ATTACHED, 1);
	client_ask_body(w, &c, body.data, body.len);
	expect_reserve(w, &job);
	ck_assert_uint_eq(record.reserve.prompt_bytes, body.len);
	reply(w, &job, LANE_REPLY_ACCEPT, 0);
	expect_submit(w, &job);
	ck_assert_uint_gt(job.prompt_tokens, 2 * LANE_RECORD_RING / 4);
	expect_prompt(w, &job);
	struct token_list list = { 0 };
	struct error      error;
	struct text_span  span = { strstr(body.data, "0 1 2"), 0, false };
	span.len = (size_t)(strstr(body.data, "\"}]}") - span.bytes);
	ck_assert_int_eq(tokenizer_encode(w->load.tokenizer, &span, 1, 1 << 20, &list, &error), STATUS_OK);
	uint32_t at = 0; /* the content stands somewhere in the template */
	while (at + list.count <= job.prompt_tokens && memcmp(job.prompt + at, list.ids, list.count * sizeof *list.ids))
		at++;
	ck_assert_uint_le(at + list.count, job.prompt_tokens);
	send_end(w, &job, WIRE_FINISH_STOP, STATUS_OK);
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

	world_open(w, NULL);
	daemon_start(w);
	daemon_welcome(w);
	int32_t *ids = encode(w, "one two three", &count);
	client_ask(w, &c, ",\"stop\":[\"two\"]");
	admit(w, &job);
	for (uint32_t i = 0; i < count; i++)
		send_tokens(w, &job, ids + i, 1);
	uint64_t word = await_control(w, &job, LANE_CONTROL_STOP);
	ck_assert_uint_eq(lane_control_generation(word), job.generation);
	ck_assert_uint_le(lane_control_keep(word), count);
	send_end(w, &job, WIRE_FINISH_STOP, STATUS_OK);
	client_until_end(&c);
	ck_assert_ptr_null(strstr(client_out(&c), "three"));
	client_expect(&c, "Status: 200", "one ");
	free(job.prompt);
	free(ids);
	world_close(w);
}
END_TEST

static void short_keepalive(struct conf *conf) { conf->front_keepalive_ms = 100; }

/* While nothing comes a stream gets comments, first the headers with them; a whole answer gets nothing. */
START_TEST(keepalive)
{
	struct world *w = &world;
	struct client stream, whole;
	struct job    job, other;

	world_open(w, short_keepalive);
	daemon_start(w);
	daemon_welcome(w);
	client_ask(w, &whole, "");
	admit(w, &other);
	client_ask(w, &stream, ",\"stream\":true");
	expect_reserve(w, &job); /* already while it waits for admission */
	client_until(&stream, ": ping\n\n: ping\n\n");
	ck_assert(!strncmp(client_out(&stream), "Status: 200", 11));
	reply(w, &job, LANE_REPLY_REJECT, 5); /* too late for its own status */
	client_expect(&stream, "Status: 200", "\"error\"");
	send_end(w, &other, WIRE_FINISH_ERROR, STATUS_INTERNAL);
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

	world_open(w, NULL);
	daemon_start(w);
	daemon_welcome(w);
	int32_t *ids = encode(w, " some words that make text", &count);
	client_ask(w, &slow, ",\"stream\":true");
	admit(w, &a);
	client_ask(w, &quick, ",\"stream\":true");
	admit(w, &b);
	uint64_t end = deadline();
	for (;;) { /* keeps to the credit of both */
		uint32_t free_a = WINDOW - (a.published - lane_batcher_consumed(&w->lane, a.slot, a.generation));
		uint32_t free_b = WINDOW - (b.published - lane_batcher_consumed(&w->lane, b.slot, b.generation));
		ck_assert_int_le(clock_now_ns() < end ? 0 : 1, 0);
		if (free_a >= 256)
			send_tokens(w, &a, ids, count);
		if (free_b >= 256) {
			send_tokens(w, &b, ids, count);
			client_read(&quick);
		}
		if (free_a < 256 && b.seq > a.seq + 500)
			break; /* the neighbour went far beyond */
	}
	ck_assert_uint_gt(a.published, lane_batcher_consumed(&w->lane, a.slot, a.generation));
	send_end(w, &a, WIRE_FINISH_ERROR, STATUS_SLOW_CLIENT);
	await_counter(w, COUNTER_OPEN, 1);
	while (client_read(&slow))
		;
	ck_assert(!slow.ended);
	ck_assert_ptr_null(strstr(client_out(&slow), "[DONE]"));
	send_end(w, &b, WIRE_FINISH_STOP, STATUS_OK);
	client_expect(&quick, "Status: 200", "[DONE]");
	client_close(&slow);
	free(a.prompt);
	free(b.prompt);
	free(ids);
	world_close(w);
}
END_TEST

static void longer_drain(struct conf *conf) { conf->front_drain_timeout_ms = 300; }

/* TERM: what runs may end within the time-out; afterwards streams get an error event. */
START_TEST(drain)
{
	struct world *w = &world;
	struct client done, cut;
	struct job    a, b;
	uint32_t      count;

	world_open(w, longer_drain);
	daemon_start(w);
	daemon_welcome(w);
	int32_t *ids = encode(w, "Hello", &count);
	client_ask(w, &done, "");
	admit(w, &a);
	client_ask(w, &cut, ",\"stream\":true");
	admit(w, &b);
	send_tokens(w, &b, ids, 1);
	client_until(&cut, "data: ");
	kill(w->child, SIGTERM);
	send_tokens(w, &a, ids, 1);
	send_end(w, &a, WIRE_FINISH_STOP, STATUS_OK);
	client_expect(&done, "Status: 200", "finish_reason");
	client_expect(&cut, "Status: 200", "shutting down");
	ck_assert(daemon_left(w));
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

	tcase_set_timeout(tcase, 2 * DEADLINE_S);
	tcase_add_test(tcase, streams_and_credit);
	tcase_add_test(tcase, answers_to_reserve);
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
