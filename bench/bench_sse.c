/* bench_sse.c: CPU time the API layer takes per generated token (detokenizer, stop strings, JSON, events), and per request.
 *
 *     bench/bench_sse MODEL.gguf
 *
 * The ids are those of an English text; OUT is emptied after every call as the front does after a write.
 */
#include "support/api_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOKENS = 2000, ROUNDS = 100 };

static const char text[] =
    "The gate is opened a little and the water runs down the channel to the wheel. \"How much is left?\" asks the keeper, "
    "and nobody knows: it hasn't rained for weeks — the river is low, the caf\xc3\xa9 is closed.\n";

static double cpu_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void fail(const char *what)
{
	fprintf(stderr, "%s\n", what);
	exit(EXIT_FAILURE);
}

static struct api_call *start(const struct api_fixture *f, const char *fields)
{
	static const unsigned char seed[16] = { 1 };
	struct api_http            http = { .method = "POST", .path = "/v1/chat/completions", .now = 1764500000 };
	struct api_call           *call;
	struct error               error;
	char                       body[600];

	snprintf(body, sizeof body, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"Tell me.\"}]%s}", fields);
	if (api_call_create(&f->api, &http, seed, &call, &error) || api_call_parse(call, body, strlen(body), &error) ||
	    api_call_tokenize(call, &error))
		fail(error.message);
	return call;
}

static void measure(const struct api_fixture *f, const char *name, const char *fields, const int32_t *ids, size_t count,
    size_t piece)
{
	struct buf      out;
	struct wire_end end = { .finish = WIRE_FINISH_LENGTH, .completion_tokens = TOKENS };
	double          start_ns, requests_ns = 0, tokens_ns = 0;
	size_t          bytes = 0;

	buf_init(&out, 64 << 20);
	for (int round = 0; round < ROUNDS; round++) {
		struct api_call *call;

		start_ns = cpu_ns();
		call = start(f, fields);
		requests_ns += cpu_ns() - start_ns;
		start_ns = cpu_ns();
		for (size_t at = 0; at < TOKENS; at += piece) {
			bool     stop;
			uint32_t keep;

			if (api_call_tokens(call, 0, ids + at % (count - piece), piece, &out, &stop, &keep) || stop)
				fail("the answer ended");
			bytes += out.len;
			buf_clear(&out);
		}
		tokens_ns += cpu_ns() - start_ns;
		start_ns = cpu_ns();
		if (api_call_end(call, &end, &out))
			fail("no end");
		bytes += out.len;
		buf_clear(&out);
		api_call_free(call);
		requests_ns += cpu_ns() - start_ns;
	}
	printf("%-28s %2zu per call: %6.0f ns/token, %5.0f bytes/token; request without its tokens %6.1f us\n", name, piece,
	    tokens_ns / ROUNDS / TOKENS, (double)bytes / ROUNDS / TOKENS, requests_ns / ROUNDS * 1e-3);
	buf_free(&out);
}

int main(int argc, char **argv)
{
	struct api_fixture f;
	struct error       error;
	struct text_span   span = { text, sizeof text - 1, false };
	struct token_list  ids = { 0 };

	if (argc != 2)
		fail("usage: bench_sse MODEL.gguf");
	if (api_fixture_load(NULL, argv[1], &f, &error))
		fail(error.message);
	for (int i = 0; i < 40; i++)
		if (tokenizer_encode(f.tokenizer, &span, 1, 1 << 20, &ids, &error))
			fail(error.message);
	measure(&f, "stream", ",\"stream\":true", ids.ids, ids.count, 1);
	measure(&f, "stream", ",\"stream\":true", ids.ids, ids.count, 4);
	measure(&f, "stream", ",\"stream\":true", ids.ids, ids.count, 16);
	measure(&f, "stream, 1 stop string", ",\"stream\":true,\"stop\":\"the reservoir\"", ids.ids, ids.count, 1);
	measure(&f, "stream, 16 stop strings",
	    ",\"stream\":true,\"stop\":[\"th1\",\"th2\",\"th3\",\"th4\",\"th5\",\"th6\",\"th7\",\"th8\",\"a1\",\"a2\",\"a3\","
	    "\"a4\",\"a5\",\"a6\",\"a7\",\"a8\"]", ids.ids, ids.count, 1);
	measure(&f, "whole", "", ids.ids, ids.count, 1);
	token_list_free(&ids);
	api_fixture_free(&f);
	return EXIT_SUCCESS;
}
