/* call.h: the inside of struct api_call, shared by call.c, request.c and respond.c only. */
#ifndef PENSTOCK_API_CALL_H
#define PENSTOCK_API_CALL_H

#include "api/api.h"
#include "api/params.h"
#include "api/stop.h"
#include "text/detokenizer.h"

enum { CALL_REQUEST_ID_MAX = 64, CALL_ID_CHARS = 32 };

struct api_call {
	/* From create. */
	const struct api *api; /* borrowed */
	enum api_route    route;
	enum api_route    matched; /* the row that OPTIONS or a wrong method met */
	bool              accepted, head;
	char              request_id[CALL_REQUEST_ID_MAX + 1];
	char              id[CALL_ID_CHARS + 1]; /* of the completion, without "chatcmpl-" */
	uint64_t          key, seed;
	int64_t           now, content_length; /* −1 = not declared */
	uint32_t          max_context;         /* 0 = unknown */

	/* From parse; root and messages live until tokenize. */
	json_t                *root;
	struct params          params;
	struct params_ignored  ignored;
	struct chat_message   *messages; /* contents are borrowed from root or from joined[] */
	char                 **joined;   /* [message_count] contents made of several parts, else NULL */
	size_t                 message_count;
	bool                   include_usage;
	struct stop_matcher    stop;
	struct token_list      prompt; /* from tokenize */
	struct api_job         job;

	/* The answer. */
	struct detokenizer detokenizer;
	struct buf         text;       /* scratch: the text of one token */
	struct buf         answer;     /* whole: the text so far; streams: the text of one chunk */
	struct buf         chunk_head; /* streams: what every chunk begins with */
	uint32_t           tokens;     /* generated so far, not counted after a stop string */
	uint32_t           keep;       /* valid once stop.matched */
	bool               headers_sent, role_sent, done;
	int                http_status;
};

/* request.c: what parse made is released once the prompt is tokenised. */
void call_release_request(struct api_call *call);

/* respond.c: all of them append to OUT and restore it on failure. */
enum status respond_whole(struct api_call *call, int http_status, const char *content_type, const char *body, size_t len,
    struct buf *out);
enum status respond_options(struct api_call *call, struct buf *out);
enum status respond_models(struct api_call *call, struct buf *out);
enum status respond_error(struct api_call *call, const struct error *error, uint32_t retry_after_s, struct buf *out);
enum status respond_ping(struct api_call *call, struct buf *out);
/* One chunk with the text in call->answer (none when it is empty); headers and role first where they are due. */
enum status respond_delta(struct api_call *call, struct buf *out);
enum status respond_finish(struct api_call *call, const char *finish_reason, uint32_t completion_tokens, struct buf *out);

#endif
