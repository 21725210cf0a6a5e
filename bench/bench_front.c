/* bench_front.c: what a front child adds, measured alone: this program plays penstockd and the clients.  Run by hand
 * from the source directory: bench/bench_front [MILLISECONDS].
 *
 *   byte     from an event in the ring to its text at the client, one stream, events 5 ms apart (bar: under 5 ms)
 *   streams  the same with 15 streams that get an event every 2 ms each, all with one wake
 *   prompt   the same while a 4 MB prompt is read, parsed, tokenised and sent (bar: no gap over 20 ms more)
 *   memory   private memory of the child before and after the prompt (bar: 1 MB)
 *
 * The child runs for real; events are written and text is read by one thread here, so the figures contain its own turn.
 * A 4 MB answer is never made: the prompt's request ends as soon as its last id has arrived. */
#include "base/clock.h"
#include "support/front_world.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { STREAMS = 15, PROMPT_WORDS = 1000000, PERIOD_US = 2000 };

struct stream {
	struct client client;
	struct job    job;
	uint64_t      sent_ns, last_ns; /* of the event on its way, 0 = none; of the last text */
};

struct figures {
	uint64_t *samples; /* ns from event to text */
	size_t    count, max;
	uint64_t  gap_ns;  /* largest time between two texts of one stream */
};

static struct world  world;
static struct stream streams[STREAMS + 1];

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static void print(const char *what, struct figures *f)
{
	qsort(f->samples, f->count, sizeof *f->samples, compare);
	printf("%-8s %7zu texts: p50 %6.0f us, p99 %6.0f us, max %6.0f us; largest gap %6.2f ms\n", what, f->count,
	    (double)f->samples[f->count / 2] / 1e3, (double)f->samples[f->count * 99 / 100] / 1e3,
	    (double)f->samples[f->count - 1] / 1e3, (double)f->gap_ns / 1e6);
}

static unsigned private_kb(pid_t pid)
{
	char     path[64], line[256];
	unsigned kb = 0;

	snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
	FILE *file = fopen(path, "re");
	must(file);
	while (fgets(line, sizeof line, file))
		if (sscanf(line, "Private_Dirty: %u", &kb) == 1)
			break;
	fclose(file);
	return kb;
}

/* Takes what COUNT clients have been written; waits for all of it, or only until NOW when WAIT is false. */
static void take_texts(size_t count, struct figures *f, bool wait)
{
	for (;;) {
		struct pollfd fds[STREAMS + 1];
		size_t        due = 0;

		for (size_t i = 0; i < count; i++) {
			fds[i] = (struct pollfd){ .fd = streams[i].client.fd, .events = POLLIN };
			due += streams[i].sent_ns != 0;
		}
		if (due == 0 || poll(fds, count, wait ? 1000 : 0) <= 0)
			return;
		uint64_t now = clock_now_ns();
		for (size_t i = 0; i < count; i++) {
			struct stream *s = &streams[i];
			if (!fds[i].revents)
				continue;
			must(client_read(&s->client));
			buf_clear(&s->client.out);
			if (s->sent_ns && f->count < f->max) {
				f->samples[f->count++] = now - s->sent_ns;
				if (s->last_ns && now - s->last_ns > f->gap_ns)
					f->gap_ns = now - s->last_ns;
			}
			s->last_ns = now;
			s->sent_ns = 0;
		}
	}
}

/* One event to each of COUNT streams that has none on its way, one wake for all. */
static void send_events(struct world *w, size_t count, int32_t id)
{
	uint64_t now = clock_now_ns();

	for (size_t i = 0; i < count; i++) {
		struct stream *s = &streams[i];
		if (s->sent_ns)
			continue;
		struct wire_token event = { .header.type = WIRE_TOKEN, .req = s->job.req, .generation = s->job.generation,
			.slot = s->job.slot, .seq = s->job.seq++, .count = 1 };
		must(lane_batcher_write(&w->lane, &event, sizeof event, &id, 1) == STATUS_OK);
		s->sent_ns = now;
	}
	played_wake(w);
	header_beat(&w->header, now);
}

/* The large request: how much of it has been sent to the child, and how much of its prompt has come back. */
struct prompt {
	struct buf    bytes;
	size_t        sent;
	struct client client;
	struct job    job;
	uint32_t      received;
	bool          reserved, submitted, done;
};

static void serve_prompt(struct world *w, struct prompt *p)
{
	size_t bytes;

	if (p->sent < p->bytes.len) {
		ssize_t n = send(p->client.fd, p->bytes.data + p->sent, p->bytes.len - p->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
		p->sent += n > 0 ? (size_t)n : 0;
	}
	for (int i = 0; i < 16 && lane_batcher_read(&w->lane, &w->record, sizeof w->record, &bytes) == STATUS_OK; i++) {
		switch (w->record.header.type) {
		case WIRE_RESERVE:
			p->job = (struct job){ .req = w->record.reserve.req, .generation = w->record.reserve.generation,
				.slot = w->record.reserve.slot };
			job_reply(w, &p->job, LANE_REPLY_ACCEPT, 0);
			break;
		case WIRE_SUBMIT:
			p->job.prompt_tokens = w->record.submit.prompt_tokens;
			break;
		case WIRE_TOKENS:
			must(w->record.tokens.offset == p->received);
			p->received += w->record.tokens.count;
			if (p->received == p->job.prompt_tokens) {
				job_send_end(w, &p->job, WIRE_FINISH_STOP, STATUS_OK);
				p->done = true;
			}
			break;
		}
	}
	if (lane_batcher_take_room_waiting(&w->lane))
		wake_send(&w->wake);
}

/* COUNT streams for DURATION_NS, or until PROMPT is done. */
static void run(struct world *w, const char *what, size_t count, uint64_t period_us, uint64_t duration_ns,
    struct prompt *prompt, int32_t id)
{
	struct figures f = { .max = 1 << 22 };
	uint64_t       begin = clock_now_ns(), next = begin;

	f.samples = malloc(f.max * sizeof *f.samples);
	must(f.samples);
	for (size_t i = 0; i < count; i++)
		streams[i].last_ns = 0;
	while (prompt ? !prompt->done : clock_now_ns() - begin < duration_ns) {
		send_events(w, count, id);
		next += period_us * 1000;
		if (prompt) {
			while (clock_now_ns() < next) {
				serve_prompt(w, prompt);
				take_texts(count, &f, false);
				usleep(50); /* the cores belong to the child and its helper */
			}
		} else {
			take_texts(count, &f, true);
			struct timespec until = { .tv_sec = (time_t)(next / CLOCK_NS_PER_S),
				.tv_nsec = (long)(next % CLOCK_NS_PER_S) };
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		}
	}
	take_texts(count, &f, true);
	print(what, &f);
	if (prompt)
		printf("         the prompt took %.0f ms for %u tokens\n", (double)(clock_now_ns() - begin) / 1e6,
		    prompt->job.prompt_tokens);
	free(f.samples);
}

static void configure(struct conf *conf)
{
	conf->front_streams_per_front = STREAMS + 1;
	conf->service_log_level[0] = '\0';
}

int main(int argc, char **argv)
{
	struct world *w = &world;
	struct prompt prompt = { 0 };
	uint64_t      duration = (argc > 1 ? strtoul(argv[1], NULL, 10) : 3000) * CLOCK_NS_PER_MS;
	uint32_t      count;

	world_open(w, configure);
	played_start(w);
	w->header.shared->max_context = 1 << 20;
	played_welcome(w);
	int32_t *ids = world_encode(w, " the", &count);
	for (size_t i = 0; i < STREAMS; i++) {
		client_ask(w, &streams[i].client, ",\"stream\":true");
		job_admit(w, &streams[i].job);
		free(streams[i].job.prompt);
		job_send_tokens(w, &streams[i].job, ids, 1);
		client_until(&streams[i].client, "data: ");
	}
	run(w, "byte", 1, 5000, duration, NULL, ids[0]);
	run(w, "streams", STREAMS, PERIOD_US, duration, NULL, ids[0]);
	unsigned before = private_kb(w->child);

	struct buf body;
	buf_init(&body, 1 << 24);
	buf_append_string(&body, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < PROMPT_WORDS; i++)
		buf_append_string(&body, " the");
	buf_append_string(&body, "\"}]}");
	client_request(&prompt.bytes, body.data, body.len);
	client_connect(w, &prompt.client);
	run(w, "prompt", STREAMS, PERIOD_US, 0, &prompt, ids[0]);
	client_expect(&prompt.client, "Status: 200", "finish_reason");
	world_await_counter(w, COUNTER_OPEN, STREAMS);
	run(w, "after", STREAMS, PERIOD_US, duration / 4, NULL, ids[0]);
	printf("memory   %u KB private before the prompt, %u KB afterwards\n", before, private_kb(w->child));
	free(ids);
	buf_free(&body);
	buf_free(&prompt.bytes);
	world_close(w);
	return 0;
}
