/* child.h: the inside of one front child, shared by child.c (event loop), request.c (connections) and generate.c
 * (lanes).
 *
 * One epoll set holds everything a child waits for:
 *
 *   listen socket   EPOLLEXCLUSIVE, and only while a slot is free
 *   signals         TERM drains, HUP reads the keys anew, USR1 re-opens the log
 *   master's pipe   end-of-file: the master is dead, drain
 *   control socket  WELCOME, end-of-file (attach.h)
 *   lane wake-up    events or replies are there, or room for records
 *   helper          a parsed or tokenised body is back
 *   clients         one descriptor per request
 */
#ifndef PENSTOCK_FRONT_CHILD_H
#define PENSTOCK_FRONT_CHILD_H

#include "api/api.h"
#include "front/attach.h"
#include "front/fcgi.h"
#include "front/helper.h"
#include "front/scoreboard.h"

enum {
	CHILD_LARGE_BODY = 65536,    /* bodies beyond it are parsed and tokenised by the helper thread */
	CHILD_OUT_MAX = 64 << 20,    /* bytes of one response not yet written (a stream never holds more than about 8 KB) */
	CHILD_RENDER_BYTES = FCGI_WRITE_MAX, /* a stream renders more events only below this many unwritten bytes */
	CHILD_EVENT_SLACK = 8192,    /* event bytes beyond the window that END events may add */
	CHILD_PIECES = 8             /* TOKENS records of one request per turn of the loop */
};

enum child_status { CHILD_DONE = 0, CHILD_FAILED = 1 };

/* What the master gives a child. */
struct child_options {
	const struct conf *conf;
	const struct api  *api;         /* copied; what it points to is shared copy-on-write */
	struct scoreboard *board;
	uint32_t           slot;        /* of the scoreboard */
	int                listen_fd;   /* shared by all children */
	int                master_fd;   /* end-of-file when the master is dead */
	int                mismatch_fd; /* eventfd: written when penstockd speaks another vocabulary */
};

struct child;

/*       accept       head        body         parsed        admitted         tokenised       all sent
 *   FREE ─────► HEAD ─────► BODY ───────► PARSE ──────► RESERVE ──────► TOKENIZE ───────► SUBMIT ──────► STREAM
 *                │           │ small routes, │ errors from any state                                      │ all
 *                ▼           ▼ errors        ▼                                                            ▼ ended
 *               FREE        FLUSH ◄──────────┴────────────────────────────────────────────────────────────┘
 *                             └──► LINGER (a body nobody wants is still coming) ──► FREE
 *
 * A client that leaves frees its request from any state, but for PARSE and TOKENIZE in the helper's hands: those wait
 * in ABANDONED for the helper. */
enum request_state {
	REQUEST_FREE, REQUEST_HEAD, REQUEST_BODY, REQUEST_PARSE, REQUEST_RESERVE, REQUEST_TOKENIZE, REQUEST_SUBMIT,
	REQUEST_STREAM, REQUEST_FLUSH, REQUEST_LINGER, REQUEST_ABANDONED
};

struct request {
	struct child      *child;
	enum request_state state;
	uint16_t           index;  /* in child->requests */
	uint32_t           serial; /* of this use: events of an earlier use in the same batch are recognised */
	struct fcgi       *connection;
	struct api_call   *call;   /* NULL before the head */
	uint32_t           armed;  /* epoll events asked for */
	const char        *outcome; /* for the access log, a literal */

	uint64_t accepted_ns, deadline_ns; /* deadline: HEAD, BODY, LINGER */
	uint64_t progress_ns;              /* last byte written, or since when there are bytes to write */
	uint64_t answer_by_ns;             /* the client's own deadline, once parsed; 0 = none */

	/* Body. */
	struct buf   body;
	uint64_t     body_bytes, declared;
	bool         has_declared, large;
	struct error failure; /* status not OK: the answer once the body has been read to its end */
	uint32_t     retry_after_s;

	/* Parse and tokenise, perhaps in the helper's hands. */
	struct helper_job job;
	bool              in_helper;
	enum status       job_status;
	struct error      job_error;

	/* The lane's slot, −1 = none. */
	int32_t  slot;
	uint32_t generation;
	uint64_t id;
	bool     reserved, submitted; /* RESERVE, SUBMIT written */
	uint32_t sent;                /* prompt tokens written */
	uint32_t lists;               /* the job's lists written, of WIRE_LIST_COUNT */
	uint32_t choices;             /* the job's, which is the helper's while it tokenises */
	uint32_t ends_due;            /* choices whose END has not been received */
	uint32_t choices_open;        /* choices whose END has not been rendered */

	/* The answer: events wait here until the client can take their text. */
	struct buf events;
	size_t     events_at;         /* bytes already rendered */
	uint32_t   received, rendered, consumed; /* event bytes, running totals */
	struct buf out;
	size_t     out_at;            /* bytes already written */
	uint64_t   first_token_ns;
	uint32_t   prompt_tokens, answer_tokens;
};

struct child {
	struct child_options options;
	const struct conf   *conf;
	struct api           api; /* this child's copy: keys and context length change */
	struct scoreboard_slot *counters;
	int                  epoll, signal_fd;
	struct attach        attach;
	struct helper        helper;
	uint32_t             request_count, requests_open;
	struct request      *requests;                    /* [request_count] */
	struct request      *slot_owner[LANE_SLOTS_MAX];  /* request of a lane's slot; NULL = free */
	uint32_t             serial, turn;
	bool                 listening, draining;
	bool                 lane_broken; /* its other side wrote what it must not: give it up */
	bool                 ring_full;   /* a record found no room in this turn */
	bool                 more; /* records that could go at once are left: do not sleep */
	bool                 trim; /* a large body has passed: give its memory back */
	uint64_t             started_ns, listen_after_ns, drain_deadline_ns;
	unsigned char        scratch[RECORDS_HEAD_MAX]; /* holds nothing between calls */
};

/* child.c: runs until drained; the process then exits with the returned value. */
enum child_status child_run(const struct child_options *options);

/* request.c */
void request_open(struct child *child, struct fcgi *connection, uint64_t now_ns);
void request_on_ready(struct request *request, uint32_t epoll_events, uint64_t now_ns);
void request_on_job(struct request *request, uint64_t now_ns);
void request_on_time(struct request *request, uint64_t now_ns);
/* When request_on_time has something to do; UINT64_MAX = never. */
uint64_t request_next_time(const struct request *request);
/* Writes what can be written now. */
void request_flush(struct request *request, uint64_t now_ns);
/* Answers with ERROR (or ends a stream with it); nothing further is generated. */
void request_fail(struct request *request, const struct error *error, uint32_t retry_after_s, uint64_t now_ns);
/* Ends it without a word: the client is gone or must not be waited for.  OUTCOME is a literal. */
void request_drop(struct request *request, const char *outcome);

/* generate.c */
void generate_begin(struct request *request, uint64_t now_ns); /* the body is complete */
void generate_on_job(struct request *request, uint64_t now_ns);
void generate_expire(struct request *request, uint64_t now_ns); /* its deadline came before it was submitted */
/* Looks at replies and writes the records that wait for room. */
void generate_pump(struct child *child, uint64_t now_ns);
/* Takes all events.  STATUS_INVALID: the lane is broken. */
enum status generate_drain(struct child *child, uint64_t now_ns);
void generate_render(struct request *request, uint64_t now_ns); /* events → bytes in `out` */
void generate_written(struct request *request); /* all of `out` has been written: publishes the credit */
void generate_release(struct request *request); /* gives the slot back, cancelling what runs in it */
void generate_lost(struct child *child, const struct error *error, uint64_t now_ns); /* penstockd has gone */

#endif
