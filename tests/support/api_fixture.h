/* api_fixture.h: what tests, fuzzer and benchmark of the API share: a struct api on a model file's vocabulary, and a reader
 * of responses that says what is wrong with one. */
#ifndef PENSTOCK_TESTS_API_FIXTURE_H
#define PENSTOCK_TESTS_API_FIXTURE_H

#include "api/api.h"

#include <jansson.h>

struct api_fixture {
	struct gguf          *gguf;
	struct vocab         *vocab;
	struct tokenizer     *tokenizer;
	struct chat_template *chat;
	struct conf           conf;
	struct api            api; /* model "tiny", context 2048, no keys */
};

/* tests/data/tiny.gguf of the source tree ROOT, or the file PATH when ROOT is NULL. */
enum status api_fixture_load(const char *root, const char *path, struct api_fixture *ret, struct error *error);
void        api_fixture_free(struct api_fixture *fixture);

/* A response taken apart; everything points into the bytes it was read from, but for content and the two strings. */
struct api_response {
	int         status;
	const char *headers, *body; /* headers: lines with CR LF, without the empty one */
	size_t      headers_len, body_len;
	bool        stream;
	/* Of an error body or event: */
	bool error;
	char code[64], message[1024], param[128];
	/* Of an answer, whole or streamed: */
	struct buf content, reasoning;
	struct buf calls;      /* of each choice's calls "NAME ARGUMENTS\n", as they came */
	char       call_ids[2][64]; /* of the first and of the last call */
	int64_t    reasoning_tokens; /* -1: usage does not say */
	char       finish_reason[16]; /* "" = none */
	bool       usage, done;       /* done: a whole answer, or [DONE] */
	int64_t    prompt_tokens, completion_tokens;
};

/* Reads a response and checks what holds for all: header lines, lengths, error shape, shape and order of chunks, UTF-8.
 * HEAD: there must be no body.  PARTIAL: a stream may go on.  Returns NULL or what is wrong. */
const char *api_response_read(const char *bytes, size_t len, bool head, bool partial, struct api_response *ret);
void        api_response_free(struct api_response *response);

/* Value of a header line, copied; false when there is none. */
bool api_response_header(const struct api_response *response, const char *name, char *ret, size_t size);

#endif
