/* lane_client.h: the smallest thing that can hold a lane: what a front child does, without HTTP.  For C tests and
 * benchmarks of penstockd. */
#ifndef PENSTOCK_TESTS_LANE_CLIENT_H
#define PENSTOCK_TESTS_LANE_CLIENT_H

#include "daemon.h"
#include "ipc/control.h"
#include "ipc/doorbell.h"
#include "ipc/lane.h"

/* What came for the current generation of a slot. */
struct lane_client_slot {
	uint64_t        req, key;
	int16_t         priority; /* as reserved */
	uint32_t        generation;
	int32_t        *ids; /* kept up to LANE_CLIENT_IDS_MAX */
	uint32_t        count, bytes, ends, with_logprobs;
	struct wire_end end;
	bool            slow;  /* does not publish what it consumed */
	bool            wrong; /* an event out of order or for another request */
};

enum { LANE_CLIENT_IDS_MAX = 1 << 17 };

struct lane_client {
	int                    fd, wait_fd;
	struct lane            lane;
	struct doorbell        bell;
	struct control_message welcome;
	uint64_t               next_req;
	bool                   gone; /* the batcher closed the connection */
	struct lane_client_slot slots[LANE_SLOTS_MAX];
};

/* STATUS_OK or what control_attach says.  SLOTS and WINDOW 0 = whatever is granted. */
enum status lane_client_attach(struct lane_client *client, const struct daemon *daemon, uint32_t slots, uint32_t window,
    struct error *error);
void        lane_client_close(struct lane_client *client);

/* Begins a new use of SLOT and asks for admission; waits for the answer. */
enum lane_reply lane_client_reserve(struct lane_client *client, uint32_t slot, uint32_t bytes, uint32_t max_tokens,
    uint32_t *ret_value);
/* The same with the priority, key and limits of FIELDS. */
enum lane_reply lane_client_reserve_as(struct lane_client *client, uint32_t slot, const struct wire_reserve *fields,
    uint32_t *ret_value);
/* A SUBMIT with sensible fields for the current generation of SLOT. */
struct wire_submit lane_client_submit_record(struct lane_client *client, uint32_t slot, uint32_t prompt_tokens,
    uint32_t max_tokens, uint64_t seed);
/* Writes a record, waiting for room.  False when the connection ended. */
bool lane_client_write(struct lane_client *client, void *record, size_t bytes, const int32_t *ids, size_t count);
/* SUBMIT and TOKENS for a prompt of PROMPT_TOKENS small ids. */
void lane_client_submit(struct lane_client *client, uint32_t slot, uint32_t prompt_tokens, uint32_t max_tokens, uint64_t seed);
/* The same for a request that only ends with its MAX_TOKENS. */
void lane_client_submit_ignoring_eos(struct lane_client *client, uint32_t slot, uint32_t prompt_tokens, uint32_t max_tokens,
    uint64_t seed);
/* Both: reserve (which must not be rejected) and submit. */
void lane_client_start(struct lane_client *client, uint32_t slot, uint32_t prompt_tokens, uint32_t max_tokens, uint64_t seed);

void lane_client_cancel(struct lane_client *client, uint32_t slot);
void lane_client_stop(struct lane_client *client, uint32_t slot, uint32_t keep);

/* Reads what is there; then waits for more up to TIMEOUT_MS if nothing was.  True when anything came. */
bool lane_client_pump(struct lane_client *client, int timeout_ms);
/* Pumps until SLOT has COUNT ids or an end; false when nothing comes for the deadline or the connection ends before. */
bool lane_client_wait_count(struct lane_client *client, uint32_t slot, uint32_t count);
bool lane_client_wait_end(struct lane_client *client, uint32_t slot);

#endif
