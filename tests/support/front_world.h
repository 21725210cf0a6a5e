/* front_world.h: a front child as a real process with a real socket, a penstockd that the test plays, and clients.  For
 * what a good penstockd never does, and for measuring the child alone. */
#ifndef PENSTOCK_TESTS_FRONT_WORLD_H
#define PENSTOCK_TESTS_FRONT_WORLD_H

#include "front/child.h"
#include "front/load.h"
#include "ipc/wake.h"

#include <stdio.h>
#include <stdlib.h>

enum { WORLD_DEADLINE_S = 60 };

/* Ends the test with words; under Check the process of the failed test ends. */
#define must_msg(condition, ...) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not %s: ", __FILE__, __LINE__, #condition); \
			fprintf(stderr, __VA_ARGS__); \
			fputc('\n', stderr); \
			abort(); \
		} \
	} while (0)
#define must(condition) must_msg(condition, "see above")

struct world {
	char               dir[64], socket[100], control[100];
	struct conf        conf;
	struct load        load;
	struct scoreboard *board;
	int                listen_fd, life[2], mismatch_fd;
	pid_t              child;
	/* The penstockd that is played. */
	uint64_t           epoch;
	struct header      header;
	struct doorbell    doorbell;
	int                control_fd, connection;
	struct lane        lane;
	struct wake        wake;
	union {
		struct wire_header  header;
		struct wire_reserve reserve;
		struct wire_submit  submit;
		struct wire_tokens  tokens;
		unsigned char       bytes[WIRE_RECORD_MAX];
	} record; /* the last one read */
};

/* Forks the child; CONFIGURE (may be NULL) changes the configuration before.  The drain time-out is 100 ms by
 * default. */
void     world_open(struct world *w, void (*configure)(struct conf *));
void     world_close(struct world *w); /* TERM, and the child must end well */
uint64_t world_deadline(void);
void     world_nap(void);
void     world_await_counter(const struct world *w, enum counter id, uint64_t value);
int32_t *world_encode(struct world *w, const char *text, uint32_t *ret_count); /* ids of TEXT; the caller frees them */

/* penstockd: objects and control socket; HELLO of the child; HELLO and WELCOME; an end without farewell. */
void played_start(struct world *w);
void played_stop(struct world *w);
void played_hello(struct world *w, struct control_message *hello);
void played_welcome(struct world *w);
bool played_left(struct world *w);                         /* true once the child has closed its end */
void played_record(struct world *w, enum wire_type type);  /* waits for the next record, of TYPE, into w->record */
void played_wake(struct world *w);                         /* wakes the child if it wants to be */

/* One request as penstockd sees it. */
struct job {
	uint64_t req;
	uint32_t generation, prompt_tokens, seq, published;
	uint16_t slot;
	int32_t *prompt; /* the ids that came; the caller frees them */
};

void     job_expect_reserve(struct world *w, struct job *ret);
void     job_reply(struct world *w, const struct job *job, enum lane_reply kind, uint32_t value);
void     job_expect_submit(struct world *w, struct job *job);
void     job_expect_prompt(struct world *w, struct job *job);
void     job_admit(struct world *w, struct job *ret); /* all four */
void     job_send_tokens(struct world *w, struct job *job, const int32_t *ids, uint32_t count);
void     job_send_end(struct world *w, struct job *job, enum wire_finish finish, enum status status);
void     job_await_consumed(const struct world *w, const struct job *job, uint32_t bytes);
/* Waits until the control word of JOB says FLAGS, or its generation is over. */
uint64_t job_await_control(const struct world *w, const struct job *job, uint32_t flags);

struct client {
	int        fd;
	struct buf raw, out; /* bytes that came, content of STDOUT */
	bool       ended, closed;
};

void        client_connect(const struct world *w, struct client *c);
void        client_send(struct client *c, const struct buf *bytes);
void        client_request(struct buf *ret, const char *body, size_t len); /* the bytes of a chat request */
void        client_ask_body(const struct world *w, struct client *c, const char *body, size_t len);
/* A short question with MORE fields. */
void        client_ask(const struct world *w, struct client *c, const char *more);
bool        client_read(struct client *c); /* one read; false at the end */
const char *client_out(const struct client *c);
void        client_until(struct client *c, const char *text);
void        client_until_end(struct client *c);
void        client_expect(struct client *c, const char *status, const char *text); /* reads to the end and closes */
void        client_close(struct client *c);

#endif
