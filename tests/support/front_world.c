/* front_world.c: see front_world.h.  Every wait has a deadline that only gives up a hung test. */
#include "support/front_world.h"

#include "base/clock.h"
#include "front/listen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

uint64_t world_deadline(void) { return clock_now_ns() + WORLD_DEADLINE_S * CLOCK_NS_PER_S; }

void world_nap(void) { usleep(500); }

/* ---- the world ------------------------------------------------------------------------------------------------- */

void world_open(struct world *w, void (*configure)(struct conf *))
{
	struct error error = { 0 };
	const char  *root = getenv("abs_top_srcdir");

	memset(w, 0, sizeof *w);
	w->control_fd = w->connection = -1;
	snprintf(w->dir, sizeof w->dir, "/tmp/penstock-test-child-XXXXXX");
	must(mkdtemp(w->dir));
	snprintf(w->socket, sizeof w->socket, "%s/front.sock", w->dir);
	snprintf(w->control, sizeof w->control, "%s/control.sock", w->dir);
	conf_defaults(&w->conf);
	snprintf(w->conf.service_run_dir, sizeof w->conf.service_run_dir, "%s", w->dir);
	snprintf(w->conf.service_instance, sizeof w->conf.service_instance, "test-child-%d", (int)getpid());
	snprintf(w->conf.model_path, sizeof w->conf.model_path, "%.100s/%s", root ? root : ".", "tests/data/tiny.gguf");
	w->conf.front_drain_timeout_ms = 100;
	if (configure)
		configure(&w->conf);
	must_msg(load_open(&w->conf, &w->load, &error) == STATUS_OK, "%s", error.message);
	must_msg(listen_open(w->socket, 16, &w->listen_fd, &error) == STATUS_OK, "%s", error.message);
	must(scoreboard_create(1, &w->board, &error) == STATUS_OK);
	must(pipe(w->life) == 0);
	w->mismatch_fd = eventfd(0, EFD_NONBLOCK);
	w->child = fork();
	if (w->child == 0) {
		struct child_options options = { &w->conf, &w->load.api, w->board, 0, w->listen_fd, w->life[0],
			w->mismatch_fd };
		close(w->life[1]);
		_exit(child_run(&options));
	}
}

void played_start(struct world *w)
{
	struct error error = { 0 };

	must_msg(header_create(w->conf.service_instance, -1, &w->header, &error) == STATUS_OK, "%s", error.message);
	must(doorbell_create(&w->doorbell, &error) == STATUS_OK);
	w->header.shared->epoch = w->epoch = 1000 + w->epoch;
	w->header.shared->max_context = 8192;
	header_beat(&w->header, clock_now_ns());
	header_set_state(&w->header, HEADER_READY);
	must_msg(control_listen(w->control, -1, &w->control_fd, &error) == STATUS_OK, "%s", error.message);
}

void played_stop(struct world *w)
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
void played_hello(struct world *w, struct control_message *hello)
{
	struct error error = { 0 };
	int          fds[CONTROL_FDS_MAX], fd_count;
	uint64_t     end = world_deadline();
	enum status  status = STATUS_AGAIN;

	while ((status = control_accept(w->control_fd, &w->connection, &error)) == STATUS_AGAIN && clock_now_ns() < end)
		world_nap();
	must(status == STATUS_OK);
	while ((status = control_receive(w->connection, hello, fds, &fd_count, &error)) == STATUS_AGAIN &&
	    clock_now_ns() < end)
		world_nap();
	must_msg(status == STATUS_OK, "%s", error.message);
	must(hello->type == CONTROL_HELLO);
}

void played_welcome(struct world *w)
{
	struct control_message hello, welcome = { .epoch = w->epoch, .lane = 7 };
	struct lane_geometry   geometry;
	struct error           error = { 0 };

	played_hello(w, &hello);
	must(hello.slots == (uint64_t)w->conf.front_streams_per_front);
	must(hello.stream_window == (uint64_t)w->conf.front_stream_window);
	must(hello.pid == (unsigned)w->child);
	must(hello.vocab_fingerprint == vocab_fingerprint(w->load.vocab));
	must(lane_geometry_plan(hello.slots, hello.stream_window, &geometry) == STATUS_OK);
	must(lane_create(&geometry, &w->lane, &error) == STATUS_OK);
	must(wake_create(&w->wake, &error) == STATUS_OK);
	welcome.vocab_fingerprint = hello.vocab_fingerprint;
	welcome.slots = hello.slots;
	welcome.stream_window = hello.stream_window;
	must(control_send(w->connection, &welcome, CONTROL_WELCOME,
	         (int[CONTROL_FDS_MAX]){ w->lane.fd, w->wake.wait_fd, w->doorbell.fd }, CONTROL_FDS_MAX) == STATUS_OK);
}

bool played_left(struct world *w)
{
	struct pollfd p = { .fd = w->connection, .events = POLLIN };
	char          byte;
	return poll(&p, 1, WORLD_DEADLINE_S * 1000) == 1 && recv(w->connection, &byte, 1, MSG_DONTWAIT) == 0;
}

void world_close(struct world *w)
{
	int status;

	kill(w->child, SIGTERM);
	must(waitpid(w->child, &status, 0) == w->child);
	must_msg(WIFEXITED(status) && WEXITSTATUS(status) == CHILD_DONE, "child ended with %x", status);
	played_stop(w);
	close(w->listen_fd);
	close(w->life[0]);
	close(w->life[1]);
	close(w->mismatch_fd);
	scoreboard_free(w->board);
	load_close(&w->load);
	unlink(w->socket);
	rmdir(w->dir);
}

void world_await_counter(const struct world *w, enum counter id, uint64_t value)
{
	uint64_t end = world_deadline();
	while (scoreboard_sum(w->board, id) != value && clock_now_ns() < end)
		world_nap();
	must(scoreboard_sum(w->board, id) == value);
}

/* ---- penstockd's side of a lane -------------------------------------------------------------------------------- */

void played_record(struct world *w, enum wire_type type)
{
	size_t      bytes;
	enum status status;
	uint64_t    end = world_deadline();

	while ((status = lane_batcher_read(&w->lane, &w->record, sizeof w->record, &bytes)) == STATUS_AGAIN &&
	    clock_now_ns() < end)
		world_nap();
	must(status == STATUS_OK);
	must(w->record.header.type == type);
	if (lane_batcher_take_room_waiting(&w->lane))
		wake_send(&w->wake);
}

void played_wake(struct world *w)
{
	if (lane_batcher_take_waiting(&w->lane))
		wake_send(&w->wake);
}

void job_expect_reserve(struct world *w, struct job *ret)
{
	played_record(w, WIRE_RESERVE);
	*ret = (struct job){ .req = w->record.reserve.req, .generation = w->record.reserve.generation,
		.slot = w->record.reserve.slot };
	must(w->record.reserve.prompt_bytes > 0);
}

void job_reply(struct world *w, const struct job *job, enum lane_reply kind, uint32_t value)
{
	lane_batcher_reply(&w->lane, job->slot, job->generation, kind, value);
	played_wake(w);
}

void job_expect_submit(struct world *w, struct job *job)
{
	played_record(w, WIRE_SUBMIT);
	must(w->record.submit.req == job->req);
	must(w->record.submit.generation == job->generation);
	must(w->record.submit.slot == job->slot);
	job->prompt_tokens = w->record.submit.prompt_tokens;
}

void job_expect_prompt(struct world *w, struct job *job)
{
	uint32_t at = 0;

	job->prompt = calloc(job->prompt_tokens, sizeof *job->prompt);
	while (at < job->prompt_tokens) {
		played_record(w, WIRE_TOKENS);
		must(w->record.tokens.req == job->req);
		must(w->record.tokens.offset == at);
		memcpy(job->prompt + at, w->record.bytes + sizeof w->record.tokens,
		    w->record.tokens.count * sizeof *job->prompt);
		at += w->record.tokens.count;
	}
}

void job_admit(struct world *w, struct job *ret)
{
	job_expect_reserve(w, ret);
	job_reply(w, ret, LANE_REPLY_ACCEPT, 0);
	job_expect_submit(w, ret);
	job_expect_prompt(w, ret);
}

void job_send_tokens(struct world *w, struct job *job, const int32_t *ids, uint32_t count)
{
	struct wire_token event = { .header.type = WIRE_TOKEN,
		.req = job->req,
		.generation = job->generation,
		.slot = job->slot,
		.seq = job->seq++,
		.count = count };
	must(lane_batcher_write(&w->lane, &event, sizeof event, ids, count) == STATUS_OK);
	job->published += event.header.bytes;
	played_wake(w);
}

void job_send_end(struct world *w, struct job *job, enum wire_finish finish, enum status status)
{
	struct wire_end event = { .header.type = WIRE_END,
		.req = job->req,
		.generation = job->generation,
		.slot = job->slot,
		.seq = job->seq,
		.finish = finish,
		.status = status,
		.prompt_tokens = job->prompt_tokens,
		.completion_tokens = job->seq };
	must(lane_batcher_write(&w->lane, &event, sizeof event, NULL, 0) == STATUS_OK);
	job->published += event.header.bytes;
	played_wake(w);
}

void job_await_consumed(const struct world *w, const struct job *job, uint32_t bytes)
{
	uint64_t end = world_deadline();
	while (lane_batcher_consumed(&w->lane, job->slot, job->generation) != bytes && clock_now_ns() < end)
		world_nap();
	must(lane_batcher_consumed(&w->lane, job->slot, job->generation) == bytes);
}

uint64_t job_await_control(const struct world *w, const struct job *job, uint32_t flags)
{
	uint64_t end = world_deadline(), word;
	do
		word = lane_batcher_control(&w->lane, job->slot);
	while (lane_control_generation(word) == job->generation && !(lane_control_flags(word) & flags) &&
	    clock_now_ns() < end && (world_nap(), true));
	must_msg(lane_control_generation(word) != job->generation || (lane_control_flags(word) & flags), "control %jx",
	    (uintmax_t)word);
	return word;
}

int32_t *world_encode(struct world *w, const char *text, uint32_t *ret_count)
{
	struct token_list list = { 0 };
	struct text_span  span = { text, strlen(text), false };
	struct error      error;

	must(tokenizer_encode(w->load.tokenizer, &span, 1, 1000, &list, &error) == STATUS_OK);
	*ret_count = (uint32_t)list.count;
	return list.ids;
}

/* ---- clients --------------------------------------------------------------------------------------------------- */

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

void client_connect(const struct world *w, struct client *c)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval     limit = { .tv_sec = WORLD_DEADLINE_S };

	*c = (struct client){ .fd = socket(AF_UNIX, SOCK_STREAM, 0) };
	buf_init(&c->raw, 1 << 24);
	buf_init(&c->out, 1 << 24);
	snprintf(address.sun_path, sizeof address.sun_path, "%s", w->socket);
	setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	must(connect(c->fd, (struct sockaddr *)&address, sizeof address) == 0);
}

void client_send(struct client *c, const struct buf *bytes)
{
	size_t at = 0;
	while (at < bytes->len) {
		ssize_t n = send(c->fd, bytes->data + at, bytes->len - at, MSG_NOSIGNAL);
		must_msg(n > 0, "send: %s", strerror(errno));
		at += (size_t)n;
	}
}

void client_request(struct buf *ret, const char *body, size_t len)
{
	struct buf    params;
	unsigned char begin[8] = { 0, 1 };
	char          length[20];

	buf_init(ret, 1 << 24);
	buf_init(&params, 1 << 16);
	snprintf(length, sizeof length, "%zu", len);
	put_pair(&params, "REQUEST_METHOD", "POST");
	put_pair(&params, "DOCUMENT_URI", "/v1/chat/completions");
	put_pair(&params, "CONTENT_TYPE", "application/json");
	put_pair(&params, "CONTENT_LENGTH", length);
	put_record(ret, RECORDS_BEGIN, begin, sizeof begin);
	put_record(ret, RECORDS_PARAMS, params.data, params.len);
	put_record(ret, RECORDS_PARAMS, "", 0);
	for (size_t at = 0; at < len; at += 60000)
		put_record(ret, RECORDS_STDIN, body + at, len - at < 60000 ? len - at : 60000);
	put_record(ret, RECORDS_STDIN, "", 0);
	buf_free(&params);
}

void client_ask_body(const struct world *w, struct client *c, const char *body, size_t len)
{
	struct buf bytes;

	client_request(&bytes, body, len);
	client_connect(w, c);
	client_send(c, &bytes);
	buf_free(&bytes);
}

void client_ask(const struct world *w, struct client *c, const char *more)
{
	char body[512];
	int n = snprintf(body, sizeof body,
	    "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]%s}", more);
	client_ask_body(w, c, body, (size_t)n);
}

bool client_read(struct client *c)
{
	char    bytes[65536];
	ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);

	if (n <= 0) {
		must_msg(n == 0 || errno == ECONNRESET, "recv: %s", strerror(errno));
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

const char *client_out(const struct client *c) { return c->out.data ? c->out.data : ""; }

void client_until(struct client *c, const char *text)
{
	while (!strstr(client_out(c), text) && !c->ended)
		if (!client_read(c))
			break;
	must_msg(strstr(client_out(c), text) != NULL, "no \"%s\" in \"%s\"", text, client_out(c));
}

void client_until_end(struct client *c)
{
	while (!c->ended && client_read(c))
		;
}

void client_close(struct client *c)
{
	close(c->fd);
	buf_free(&c->raw);
	buf_free(&c->out);
}

void client_expect(struct client *c, const char *status, const char *text)
{
	client_until_end(c);
	must_msg(c->ended, "no END_REQUEST; out: %s", client_out(c));
	must_msg(!strncmp(client_out(c), status, strlen(status)), "got \"%.60s\", wanted %s", client_out(c), status);
	must_msg(strstr(client_out(c), text) != NULL, "no \"%s\" in \"%s\"", text, client_out(c));
	client_close(c);
}
