/* call.h: the inside of struct api_call, shared by call.c, request.c and respond.c only. */
#ifndef PENSTOCK_API_CALL_H
#define PENSTOCK_API_CALL_H

#include "api/answer.h"
#include "api/api.h"
#include "api/keys.h"
#include "api/logprobs.h"
#include "api/messages.h"
#include "api/params.h"
#include "text/detokenizer.h"

enum { CALL_REQUEST_ID_MAX = 64, CALL_ID_CHARS = 32 };

/* One of the n answers. */
struct call_choice {
	struct detokenizer detokenizer;
	struct answer      answer;
	struct logprobs    logprobs;          /* of tokens that were not written yet */
	uint32_t           tokens;            /* generated so far, not counted after its end */
	uint32_t           completion_tokens; /* valid once it has ended */
	const char        *finish;            /* its finish_reason, NULL before its end */
	bool               role_sent;
};

struct api_call {
	/* From create. */
	const struct api *api; /* borrowed */
	enum api_route    route;
	enum api_route    matched; /* the row that OPTIONS or a wrong method met */
	bool              accepted, head;
	char              request_id[CALL_REQUEST_ID_MAX + 1];
	char              id[CALL_ID_CHARS + 1]; /* of the completion, without "chatcmpl-" */
	uint64_t          key, seed;
	struct key_limits limits;              /* of the key, or what everybody may where there are no keys */
	double            timeout_s;           /* of the header; 0 = none */
	int64_t           now, content_length; /* −1 = not declared */
	uint32_t          max_context;         /* 0 = unknown */

	/* From parse; root and conversation live until tokenize. */
	json_t                *root;
	struct params          params;
	struct params_ignored  ignored;
	struct chat_conversation conversation; /* what the chat template sees */
	bool                   include_usage, hide_reasoning;
	struct sample_bias    *bias;          /* job.bias and so on: owned; NULL where there is none */
	int32_t               *stop_ids, *allowed_ids;
	struct token_list      think_open, think_close; /* from tokenize, where thoughts have a budget */
	struct call_choice    *choices; /* [job.choices] */
	struct output_tools   *tools;   /* NULL: calls are not looked for */
	struct token_list      prompt;    /* from tokenize */
	enum chat_reasoning    reasoning; /* of the prompt's end, likewise */
	struct api_job         job;

	/* The answer. */
	struct buf  text;       /* scratch: the text of one token */
	struct buf  chunk_head; /* streams: what every chunk begins with */
	bool        headers_sent, done;
	int         http_status;
};

/* sampling.c: the fields that say how tokens are drawn, checked, and as a job has them.  Biases and ids belong to the call. */
enum status call_parse_sampling(struct api_call *call, struct error *error);
void        call_fill_sampling(const struct api_call *call, struct api_job *job);

/* request.c: what parse made is released once the prompt is tokenised. */
void call_release_request(struct api_call *call);

/* respond.c: all of them append to OUT and restore it on failure. */
enum status respond_whole(struct api_call *call, int http_status, const char *content_type, const char *body, size_t len,
    struct buf *out);
enum status respond_options(struct api_call *call, struct buf *out);
enum status respond_models(struct api_call *call, struct buf *out);
enum status respond_error(struct api_call *call, const struct error *error, uint32_t retry_after_s, struct buf *out);
enum status respond_ping(struct api_call *call, struct buf *out);
/* One chunk with the choice's text (none when it is empty); headers and role first where they are due. */
enum status respond_delta(struct api_call *call, struct call_choice *choice, struct buf *out);
/* A choice has ended (its finish is set): its last chunk; with the last of them the end of the stream, or the whole answer. */
enum status respond_finish(struct api_call *call, struct call_choice *choice, struct buf *out);

#endif
