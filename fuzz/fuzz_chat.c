/* fuzz_chat.c: one chat request from hostile body bytes to the last response byte, with hostile ids in between.  The only
 * thing that may come of it is a response that obeys every rule of tests/support/api_fixture.c.
 *
 * Input: one byte of switches, the body, and after the first byte 0xff (which no valid body holds) one byte per id.
 *
 *   ./configure CC=clang --enable-fuzz --with-cuda=no CFLAGS='-g -O1 -fsanitize=address,undefined,fuzzer-no-link'
 *   make && ./fuzz/fuzz_chat -dict=tests/corpus/chat.dict -max_len=4096 CORPUS tests/corpus/chat
 *
 * make check replays tests/corpus/chat through the same function (fuzz/replay.c).
 */
#include "support/api_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { SWITCH_STRICT = 1, SWITCH_FAIL = 2, SWITCH_PING = 4, SWITCH_LENGTH = 8, SWITCH_PIECE = 0xf0 };
enum { IDS_MAX = 64 };

static const struct api_fixture *fixture(void)
{
	static struct api_fixture loaded;
	const char               *root = getenv("abs_top_srcdir");
	struct error              error;

	if (!loaded.vocab && api_fixture_load(root ? root : ".", NULL, &loaded, &error)) {
		fprintf(stderr, "%s (run in the source tree, or set abs_top_srcdir)\n", error.message);
		abort();
	}
	return &loaded;
}

static void require(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

static void check_response(const struct buf *out, bool partial, bool want_error)
{
	struct api_response response;
	const char         *problem = api_response_read(out->data, out->len, false, partial, &response);

	if (problem)
		fprintf(stderr, "%s in:\n%s\n", problem, out->data);
	require(!problem, "the response breaks a rule");
	require(!want_error || response.error, "an error was not answered as one");
	api_response_free(&response);
}

static void generate(struct api_call *call, const unsigned char *ids, size_t count, unsigned switches, struct buf *out)
{
	struct wire_end end = { .finish = switches & SWITCH_LENGTH ? WIRE_FINISH_LENGTH : WIRE_FINISH_STOP,
		.completion_tokens = (uint32_t)count };
	struct error    error;
	size_t          piece = 1 + (switches >> 4), pieces = 0;
	bool            stopped = false;

	for (size_t at = 0; at < count && !stopped; at += piece) {
		int32_t  batch[16];
		size_t   n = count - at < piece ? count - at : piece;
		uint32_t keep = UINT32_MAX;

		for (size_t i = 0; i < n; i++)
			batch[i] = ids[at + i] * 3 - 4; /* some below 0, some beyond the vocabulary */
		require(!api_call_tokens(call, 0, batch, n, out, &stopped, &keep), "tokens failed");
		require(!stopped || keep <= at + n, "more tokens are kept than there were");
		if (switches & SWITCH_PING)
			require(!api_call_ping(call, out), "ping failed");
		pieces++;
		if (out->len && (pieces & (pieces - 1)) == 0) /* every one would cost the square of the answer */
			check_response(out, true, false);
	}
	if (switches & SWITCH_FAIL) {
		error_set(&error, STATUS_UNAVAILABLE, "gone");
		require(!api_call_fail(call, &error, 1, out), "fail failed");
	} else {
		require(!api_call_end(call, &end, out), "end failed");
	}
	check_response(out, false, (switches & SWITCH_FAIL) && !stopped);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static const unsigned char seed[16] = { 1 };
	struct api_fixture         f = *fixture();
	struct api_http            http = { .method = "POST", .path = "/v1/chat/completions", .now = 1 };
	struct api_call           *call = NULL;
	struct buf                 out;
	struct error               error = { 0 };
	const unsigned char       *end;
	enum status                status;
	size_t                     len, count;

	if (size < 1)
		return 0;
	f.conf.front_strict_fields = data[0] & SWITCH_STRICT;
	f.conf.front_allow_special_in_content = true; /* for bodies that ask for it */
	f.api.conf = &f.conf;
	end = memchr(data + 1, 0xff, size - 1);
	len = end ? (size_t)(end - data - 1) : size - 1;
	count = size - len - 1 - (end != NULL);
	buf_init(&out, 64 << 20);
	require(!api_call_create(&f.api, &http, seed, &call, &error), "create failed");
	status = api_call_parse(call, (const char *)data + 1, len, &error);
	if (!status)
		status = api_call_tokenize(call, &error);
	if (status) {
		require(status == error.status && status_http(status) >= 400 && status_http(status) < 500, "no error of the client");
		require(!api_call_fail(call, &error, 0, &out), "fail failed");
		check_response(&out, false, true);
	} else {
		generate(call, end ? end + 1 : data, count < IDS_MAX ? count : IDS_MAX, data[0], &out);
	}
	require(api_call_done(call), "the call is not done");
	api_call_free(call);
	buf_free(&out);
	return 0;
}
