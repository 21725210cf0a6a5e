/* lane_client.c: see lane_client.h. */
#include "lane_client.h"

#include "ipc/wake.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Any event, aligned. */
union event {
	struct wire_header header;
	struct wire_token  token;
	struct wire_end    end;
	unsigned char      bytes[WIRE_EVENT_MAX];
};

enum status lane_client_attach(struct lane_client *c, const struct daemon *daemon, uint32_t slots, uint32_t window,
    struct error *error)
{
	struct control_message hello = {
		.vocab_fingerprint = daemon->header.shared->vocab_fingerprint, .slots = slots, .stream_window = window,
		.pid = (uint32_t)getpid()
	};
	char        path[128];
	int         fds[CONTROL_FDS_MAX];
	enum status status;

	memset(c, 0, sizeof *c);
	c->fd = c->wait_fd = -1;
	snprintf(path, sizeof path, "%s/control.sock", daemon->dir);
	status = control_attach(path, &hello, DAEMON_DEADLINE_MS, &c->fd, &c->welcome, fds, error);
	if (status)
		return status;
	c->wait_fd = fds[CONTROL_FD_WAKE];
	status = lane_attach(fds[CONTROL_FD_LANE], &c->lane, error);
	if (!status)
		status = doorbell_attach(fds[CONTROL_FD_DOORBELL], &c->bell, error);
	close(fds[CONTROL_FD_LANE]);
	close(fds[CONTROL_FD_DOORBELL]);
	if (status)
		lane_client_close(c);
	c->next_req = (uint64_t)getpid() << 32;
	return status;
}

void lane_client_close(struct lane_client *c)
{
	if (c->fd >= 0)
		close(c->fd);
	if (c->wait_fd >= 0)
		close(c->wait_fd);
	lane_close(&c->lane);
	doorbell_close(&c->bell);
	for (unsigned i = 0; i < LANE_SLOTS_MAX; i++)
		free(c->slots[i].ids);
	memset(c, 0, sizeof *c);
	c->fd = c->wait_fd = -1;
}

/* ---- waiting ------------------------------------------------------------------------------------------------------ */

/* Waits for a wake, the end of the connection, or the time. */
static void sleep_once(struct lane_client *c, int timeout_ms)
{
	struct pollfd fds[2] = { { .fd = c->wait_fd, .events = POLLIN }, { .fd = c->fd, .events = POLLIN } };

	if (lane_front_prepare_wait(&c->lane) && poll(fds, 2, timeout_ms) > 0 && fds[1].revents)
		c->gone = true;
	lane_front_end_wait(&c->lane);
	wake_drain(c->wait_fd);
}

static void take_event(struct lane_client *c, const union event *e, size_t bytes)
{
	uint32_t                 index = e->header.type == WIRE_TOKEN ? e->token.slot : e->end.slot;
	struct lane_client_slot *slot = &c->slots[index];
	const int32_t           *ids = (const int32_t *)(const void *)(e->bytes + sizeof e->token);

	if ((e->header.type == WIRE_TOKEN ? e->token.generation : e->end.generation) != slot->generation)
		return; /* stale */
	if ((e->header.type == WIRE_TOKEN ? e->token.req : e->end.req) != slot->req || slot->ends ||
	    (e->header.type == WIRE_TOKEN ? e->token.seq : e->end.seq) != slot->count)
		slot->wrong = true; /* one id per event here, so seq counts ids */
	slot->bytes += (uint32_t)bytes;
	if (e->header.type == WIRE_END) {
		slot->ends++;
		slot->end = e->end;
	} else {
		if (!slot->ids)
			slot->ids = malloc(LANE_CLIENT_IDS_MAX * sizeof *slot->ids);
		for (uint32_t i = 0; i < e->token.count && slot->count < LANE_CLIENT_IDS_MAX; i++)
			slot->ids[slot->count++] = ids[i * wire_token_words(e->token.logprobs)];
		slot->with_logprobs += e->token.logprobs ? e->token.count : 0;
	}
	if (!slot->slow)
		lane_front_consumed(&c->lane, index, slot->bytes);
}

bool lane_client_pump(struct lane_client *c, int timeout_ms)
{
	union event event;
	size_t      bytes;
	bool        any = false;

	for (int pass = 0; pass < 2; pass++) {
		enum status status;
		while ((status = lane_front_read(&c->lane, &event, sizeof event, &bytes)) == STATUS_OK) {
			take_event(c, &event, bytes);
			any = true;
		}
		if (status == STATUS_INVALID)
			c->gone = true;
		if (any || pass == 1 || c->gone || timeout_ms == 0)
			break;
		sleep_once(c, timeout_ms);
	}
	return any;
}

bool lane_client_wait_count(struct lane_client *c, uint32_t slot, uint32_t count)
{
	uint64_t until = daemon_now_ms() + DAEMON_DEADLINE_MS;

	while (c->slots[slot].count < count && !c->slots[slot].ends) {
		bool gone = c->gone;
		if (lane_client_pump(c, 100))
			until = daemon_now_ms() + DAEMON_DEADLINE_MS;
		else if (gone || daemon_now_ms() > until)
			return false;
	}
	return true;
}

bool lane_client_wait_end(struct lane_client *c, uint32_t slot)
{
	return lane_client_wait_count(c, slot, UINT32_MAX) && c->slots[slot].ends == 1 && !c->slots[slot].wrong;
}

/* ---- records ------------------------------------------------------------------------------------------------------ */

bool lane_client_write(struct lane_client *c, void *record, size_t bytes, const int32_t *ids, size_t count)
{
	enum status status;

	while ((status = lane_front_write(&c->lane, record, bytes, ids, count)) == STATUS_FULL) {
		doorbell_ring(&c->bell, (int)c->welcome.lane);
		lane_client_pump(c, 0);
		sleep_once(c, 1000);
		if (c->gone)
			return false;
	}
	doorbell_ring(&c->bell, (int)c->welcome.lane);
	return status == STATUS_OK;
}

static void open_slot(struct lane_client *c, uint32_t slot)
{
	struct lane_client_slot *s = &c->slots[slot];
	int32_t                 *ids = s->ids;

	*s = (struct lane_client_slot){ .req = ++c->next_req, .ids = ids, .generation = lane_front_open_slot(&c->lane, slot) };
}

enum lane_reply lane_client_reserve(struct lane_client *c, uint32_t slot, uint32_t bytes, uint32_t max_tokens, uint32_t *ret_value)
{
	return lane_client_reserve_as(c, slot, &(struct wire_reserve){ .prompt_bytes = bytes, .max_tokens = max_tokens }, ret_value);
}

enum lane_reply lane_client_reserve_as(struct lane_client *c, uint32_t slot, const struct wire_reserve *fields, uint32_t *ret_value)
{
	uint64_t            until = daemon_now_ms() + DAEMON_DEADLINE_MS;
	struct wire_reserve record = *fields;
	enum lane_reply     reply;

	open_slot(c, slot);
	record.header.type = WIRE_RESERVE;
	record.req = c->slots[slot].req;
	record.generation = c->slots[slot].generation;
	record.slot = (uint16_t)slot;
	record.choices = record.choices ? record.choices : 1;
	c->slots[slot].key = record.key;
	c->slots[slot].priority = record.priority;
	lane_client_write(c, &record, sizeof record, NULL, 0);
	while ((reply = lane_front_reply(&c->lane, slot, ret_value)) == LANE_REPLY_NONE && !c->gone && daemon_now_ms() < until) {
		lane_client_pump(c, 0);
		if (lane_front_reply(&c->lane, slot, ret_value) == LANE_REPLY_NONE)
			sleep_once(c, 1000);
	}
	return reply;
}

struct wire_submit lane_client_submit_record(struct lane_client *c, uint32_t slot, uint32_t prompt_tokens, uint32_t max_tokens,
    uint64_t seed)
{
	return (struct wire_submit){
		.header.type = WIRE_SUBMIT, .req = c->slots[slot].req, .seed = seed, .generation = c->slots[slot].generation,
		.slot = (uint16_t)slot, .choices = 1, .prompt_tokens = prompt_tokens, .max_tokens = max_tokens, .top_p = 1,
		.key = c->slots[slot].key, .priority = c->slots[slot].priority
	};
}

static void submit_with(struct lane_client *c, uint32_t slot, uint32_t prompt_tokens, uint32_t max_tokens, uint64_t seed,
    uint32_t flags)
{
	struct wire_submit submit = lane_client_submit_record(c, slot, prompt_tokens, max_tokens, seed);
	int32_t            ids[WIRE_TOKENS_MAX];

	submit.flags = flags;
	if (!lane_client_write(c, &submit, sizeof submit, NULL, 0))
		return;
	for (uint32_t at = 0; at < prompt_tokens;) {
		uint32_t           left = prompt_tokens - at, count = left < WIRE_TOKENS_MAX ? left : WIRE_TOKENS_MAX;
		struct wire_tokens tokens = {
			.header.type = WIRE_TOKENS, .req = submit.req, .generation = submit.generation, .slot = submit.slot,
			.offset = at, .count = count
		};
		for (uint32_t i = 0; i < count; i++)
			ids[i] = (int32_t)((at + i) % 200);
		if (!lane_client_write(c, &tokens, sizeof tokens, ids, count))
			return;
		at += count;
	}
}

void lane_client_submit(struct lane_client *c, uint32_t slot, uint32_t prompt_tokens, uint32_t max_tokens, uint64_t seed)
{
	submit_with(c, slot, prompt_tokens, max_tokens, seed, 0);
}

void lane_client_submit_ignoring_eos(struct lane_client *c, uint32_t slot, uint32_t prompt_tokens, uint32_t max_tokens,
    uint64_t seed)
{
	submit_with(c, slot, prompt_tokens, max_tokens, seed, WIRE_FLAG_IGNORE_EOS);
}

void lane_client_start(struct lane_client *c, uint32_t slot, uint32_t prompt_tokens, uint32_t max_tokens, uint64_t seed)
{
	uint32_t        value;
	enum lane_reply reply = lane_client_reserve(c, slot, prompt_tokens * 4, max_tokens, &value);

	if (reply != LANE_REPLY_ACCEPT && reply != LANE_REPLY_WAIT) {
		fprintf(stderr, "slot %u: reply %d\n", slot, (int)reply);
		abort();
	}
	lane_client_submit(c, slot, prompt_tokens, max_tokens, seed);
}

void lane_client_cancel(struct lane_client *c, uint32_t slot)
{
	lane_front_cancel(&c->lane, slot);
	doorbell_ring(&c->bell, (int)c->welcome.lane);
}

void lane_client_stop(struct lane_client *c, uint32_t slot, uint32_t keep)
{
	lane_front_stop(&c->lane, slot, 0, keep);
	doorbell_ring(&c->bell, (int)c->welcome.lane);
}
