/* api.h: one API request from body bytes to response bytes.  Pure: no sockets, no lanes, no clock of its own.
 *
 * The front owns connections and lanes and moves bytes; everything about JSON, fields, keys, prompts, text and response
 * shapes is here.  Output is what a FastCGI responder writes to STDOUT: CGI header lines ("Status: 200 OK"), an empty
 * line, the body.
 *
 *   api_call_create     route, method, key, content type and length
 *   api_call_answer     what needs nothing else  → the whole response (OPTIONS, models)
 *   api_call_parse      body → fields            (pure and thread-safe: may run on the helper thread)
 *   api_call_tokenize   messages → prompt → ids  (likewise)
 *   api_call_tokens     generated ids            → response bytes, perhaps "stop now, N tokens kept"
 *   api_call_end        the END event            → last bytes
 *   api_call_fail       any error                → an error response, or an error event when headers are out
 */
#ifndef PENSTOCK_API_API_H
#define PENSTOCK_API_API_H

#include "api/output.h"
#include "base/buf.h"
#include "base/conf.h"
#include "ipc/wire.h"
#include "model/backend.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "vocab/vocab.h"

#include <stdbool.h>

/* What the master loads once and children share copy-on-write; immutable but for keys (replaced whole on HUP). */
struct api {
	const struct conf          *conf;
	const struct vocab         *vocab;
	const struct tokenizer     *tokenizer;
	const struct chat_template *chat;
	struct output_format        output;      /* how the model writes thoughts and calls */
	struct keys                *keys;        /* NULL: no keys asked for */
	char                        model_name[CONF_TEXT_MAX + 1];
	uint32_t                    max_context; /* the batcher's, once known; the conf's or model's before */
	int64_t                     created;     /* Unix time shown by /v1/models */
};

/* The FastCGI parameters the API looks at; borrowed, terminated, NULL when absent. */
struct api_http {
	const char *method, *path; /* path decoded, without the query string (DOCUMENT_URI) */
	const char *authorization, *content_type, *content_length, *request_id, *remote_address;
	const char *request_timeout; /* X-Request-Timeout */
	int64_t     now;           /* Unix time of the request, shown as `created` */
};

/* One value per row of routes.def.  OPTIONS on any of them is API_ROUTE_OPTIONS. */
enum api_route {
	API_ROUTE_NONE,
	API_ROUTE_OPTIONS,
#define ROUTE(NAME, match, path, method, key) API_ROUTE_##NAME,
#include "api/routes.def"
#undef ROUTE
	API_ROUTE_COUNT
};

enum {
	API_ERROR_BODY_MAX = 4096,           /* an error body is smaller, whatever the request held */
	API_ANSWER_MAX = 16 << 20,           /* bytes of text of a whole (not streamed) answer */
	API_LOGPROBS_MAX = 64 << 20          /* bytes of its log probabilities, as JSON */
};

struct api_call; /* opaque: one request */

/* What the batcher must be asked for, owned by the call: everything but the prompt is valid after api_call_parse (for
 * RESERVE; max_tokens 0 = up to the context), all of it after api_call_tokenize. */
struct api_job {
	const int32_t       *prompt;
	uint32_t             prompt_tokens, max_tokens, choices;
	bool                 stream, ignore_eos;
	int32_t              priority;                /* lower is served first */
	uint64_t             timeout_ns;              /* from the request's arrival; 0 = none */
	uint64_t             key;                     /* hash of the API key's id; 0 = none */
	uint32_t             key_requests, key_tokens; /* most of this key at a time, and a minute; 0 = no limit */
	struct sample_params sampling;
	const struct sample_bias *bias;               /* in the order of ids, each once */
	const int32_t            *stop_ids, *allowed_ids;
	uint32_t                  bias_count, stop_count, allowed_count;
	const int32_t            *think_open, *think_close; /* what opens and closes a thought, for its budget; after tokenize */
	uint32_t                  think_open_count, think_close_count, think_budget;
};

/* Checks route, method, key (constant-time over all keys), content type and declared length.  On an error *ret is still
 * a call, so that api_call_fail can answer with the request id; only STATUS_NOMEM leaves it NULL.  REQUEST_ID_SEED are
 * random bytes: they make the completion's id, the sampling seed where the client gave none, and the request id when the
 * client sent none (or sent one with other characters than [A-Za-z0-9._-], or longer than 64).  HTTP is not kept. */
enum status api_call_create(const struct api *api, const struct api_http *http, const unsigned char request_id_seed[16],
    struct api_call **ret, struct error *error);
void        api_call_free(struct api_call *call);

enum api_route api_call_route(const struct api_call *call);
const char    *api_call_request_id(const struct api_call *call);
uint64_t       api_call_key(const struct api_call *call);        /* as api_job.key; valid after create */
bool           api_call_wants_body(const struct api_call *call); /* the chat route with POST */

/* Answers what needs neither a body nor the front's knowledge: OPTIONS and the models routes.  STATUS_INVALID and no
 * bytes for any other. */
enum status api_call_answer(struct api_call *call, struct buf *out);

/* Parses and checks the whole body; BODY may be freed afterwards.  Then renders and tokenises the messages.  Nothing is
 * submitted to the batcher before both succeeded. */
enum status           api_call_parse(struct api_call *call, const char *body, size_t len, struct error *error);
enum status           api_call_tokenize(struct api_call *call, struct error *error);
const struct api_job *api_call_job(const struct api_call *call);

/* Takes note of the log probabilities of the ids that the next call of api_call_tokens brings; for a job that asked for
 * them, without fail.  STATUS_LIMIT: the answer has too many. */
enum status api_call_logprobs(struct api_call *call, uint32_t choice, const int32_t *ids, const struct sample_logprobs *logprobs,
    size_t count);
/* Appends response bytes for generated ids of CHOICE (none for a whole answer before its end).  *ret_stop is set when
 * these ids completed a stop string, or the only call that may be made: the answer is cut, *ret_keep tokens count, and the front
 * must post STOP; later tokens of the choice are ignored, the END event is still awaited.
 * api_call_tokens, _end and _ping leave OUT as it was when they fail (STATUS_LIMIT: OUT is full; STATUS_NOMEM); the
 * call can then only be failed. */
enum status api_call_tokens(struct api_call *call, uint32_t choice, const int32_t *ids, size_t count, struct buf *out,
    bool *ret_stop, uint32_t *ret_keep);
enum status api_call_end(struct api_call *call, const struct wire_end *end, struct buf *out);

/* A keep-alive comment for streams (": ping"); it opens the response with 200 if nothing was sent yet. Nothing for
 * whole answers. */
enum status api_call_ping(struct api_call *call, struct buf *out);

/* Answers with ERROR: the real HTTP status while nothing was sent; an error event (and no [DONE]) afterwards; nothing
 * further for a whole answer that has begun.  RETRY_AFTER_S > 0 adds the header. */
enum status api_call_fail(struct api_call *call, const struct error *error, uint32_t retry_after_s, struct buf *out);

/* Whole answer of /livez, /readyz and /metrics: BODY is made by the front, CONTENT_TYPE is a literal of its own. */
enum status api_call_text(struct api_call *call, enum status status, const char *content_type, const char *body,
    size_t len, struct buf *out);

/* For the log line: what was answered so far. */
bool     api_call_headers_sent(const struct api_call *call);
bool     api_call_done(const struct api_call *call); /* the last byte of the response was appended */
int      api_call_http_status(const struct api_call *call);

#endif
