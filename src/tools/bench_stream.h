/* bench_stream.h: one streamed answer of an OpenAI-style server, as a client measures it.
 *
 * Bytes go in with the time they arrived; out come the time to first token, the gaps between pieces of text and the counts.
 * Knows no network, so that every cut of the bytes can be tested.
 *
 * Definitions, those of `vllm bench serve` but for the first: the first token is the first event that carries text (of the
 * answer, of its reasoning, or of a tool call; a chunk with the role alone is not a token); an inter-token latency is the gap
 * between two events that carry text, however many tokens each holds; the end is the last event before [DONE].
 */
#ifndef PENSTOCK_TOOLS_BENCH_STREAM_H
#define PENSTOCK_TOOLS_BENCH_STREAM_H

#include "tools/bench_sse.h"

#include <stdint.h>

enum {
	BENCH_STREAM_DEPTH_MAX = 32,        /* nesting of an event's JSON */
	BENCH_STREAM_EVENTS_MAX = 1 << 21,  /* events of one answer */
	BENCH_STREAM_TOKENS_MAX = 1 << 30   /* a count beyond this is not believed */
};

struct bench_stream {
	struct bench_sse sse;
	uint64_t         first_ns, last_text_ns, last_ns; /* 0 = not yet */
	uint64_t         now_ns;                          /* of the push in progress */
	uint32_t         events, chunks;                  /* all; those with text */
	uint32_t         prompt_tokens, output_tokens, cached_tokens;
	bool             has_usage, finished, done; /* usage came; a finish reason came; [DONE] came */
	bool             refused;                   /* the failure is an error event: the server's own words */
	double          *itl_s;                     /* owned; chunks − 1 gaps */
	uint32_t         itl_capacity;
};

void bench_stream_init(struct bench_stream *stream);
void bench_stream_free(struct bench_stream *stream);

/* STATUS_UNAVAILABLE: an error event; STATUS_LIMIT, STATUS_BAD_JSON, STATUS_INVALID: no stream of this protocol;
 * STATUS_NOMEM.  What comes after [DONE] is ignored. */
enum status bench_stream_push(struct bench_stream *stream, const char *bytes, size_t len, uint64_t now_ns, struct error *error);

/* The message in a JSON error body, "" when there is none: {"error": {"message": …}}, {"error": …}, {"message": …} or
 * {"detail": …}. */
void bench_stream_error_text(const char *body, size_t len, char *ret_text, size_t size);

#endif
