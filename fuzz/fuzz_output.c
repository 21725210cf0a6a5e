/* fuzz_output.c: hostile text of a model through the reader of answers: what it says must not depend on where the text is cut,
 * every byte is accounted for, and calls of an answer that was not cut have arguments that are JSON.
 *
 * Input: a byte of formats, a byte of switches, a byte that seeds the cuts, then the text; 0xff and a byte in it are a marker that
 * came as a token.  Tokens are five bytes long.
 *
 *   ./configure CC=clang --enable-fuzz --with-cuda=no CFLAGS='-g -O1 -fsanitize=address,undefined,fuzzer-no-link'
 *   make && ./fuzz/fuzz_output -dict=tests/corpus/output.dict -max_len=1024 CORPUS tests/corpus/output
 *
 * make check replays tests/corpus/output through the same function (fuzz/replay.c). */
#include "base/random.h"
#include "support/output_cases.h"
#include "support/output_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { SWITCH_CUT = 1, SWITCH_STOP = 2, SWITCH_ONE_CALL = 4, SWITCH_INCLUDE = 8, TOKEN = 5 };

static void require(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

static const struct output_tools *tools(void)
{
	static struct output_tools *made;

	if (!made) {
		json_t *list = json_loads(OUTPUT_CASE_TOOLS, 0, NULL);

		require(!output_tools_create(list, &made), "no memory");
		json_decref(list);
	}
	return made;
}

struct outcome {
	struct output_said said;
	uint32_t           keep, thought_tokens;
	bool               stopped;
};

static void run(const unsigned char *data, size_t size, struct random *random, struct outcome *o)
{
	static const char *const calls[] = { "none", "glm4", "glm45", "hermes", "llama3", "mistral", "deepseek" };
	static const char *const thoughts[] = { "none", "think", "mistral" };
	const unsigned char     *text = data + 3, *end = data + size;
	struct output_format     format;
	struct answer            a;
	struct error             error;

	require(!output_format_detect(NULL, NULL, calls[data[0] % 7], thoughts[data[0] / 7 % 3], &format, &error), "no format");
	output_said_init(&o->said);
	answer_init(&a, 1 << 20);
	a.stop.include = data[1] & SWITCH_INCLUDE;
	if (data[1] & SWITCH_STOP)
		require(!stop_add(&a.stop, "aba", 3) && !stop_add(&a.stop, "</", 2), "no stop strings");
	answer_begin(&a, &format, data[1] & 0x80 ? NULL : tools(), data[0] / 21 % 3, !(data[1] & SWITCH_ONE_CALL));
	while (text < end) {
		uint32_t    token = (uint32_t)((text - data) / TOKEN + 1);
		size_t      len = (size_t)(data + (size_t)token * TOKEN - text), left = (size_t)(end - text);
		const void *marker = memchr(text, 0xff, len < left ? len : left);
		enum status status = STATUS_OK;

		if (marker == text) {
			enum output_marker m = left > 1 ? text[1] % OUTPUT_MARKER_COUNT : 0;

			if (format.marks[m].text)
				status = answer_marker(&a, m, token);
			text += left > 1 ? 2 : 1;
		} else {
			len = marker ? (size_t)((const unsigned char *)marker - text) : len < left ? len : left;
			if (random)
				len = 1 + random_below(random, (uint32_t)len);
			status = answer_text(&a, (const char *)text, len, token);
			text += len;
		}
		require(!status, "text was refused");
		if (random && random_below(random, 2))
			require(!output_said_take(&o->said, &a), "a stream says it wrong");
	}
	require(!answer_finish(&a, !(data[1] & SWITCH_CUT)), "the end was refused");
	require(!output_said_take(&o->said, &a), "a stream says it wrong");
	output_said_end(&o->said);
	o->keep = answer_ended(&a) ? a.keep : 0;
	o->thought_tokens = a.output.thought_tokens;
	o->stopped = a.stop.matched;
	answer_free(&a);
}

static bool same(const struct buf *a, const struct buf *b) { return a->len == b->len && !memcmp(a->data, b->data, a->len); }

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct outcome whole, cut;
	struct random  random = { size > 2 ? data[2] : 0 };

	if (size < 4 || size > 1 << 16)
		return 0;
	run(data, size, NULL, &whole);
	run(data, size, &random, &cut);
	require(same(&whole.said.thought, &cut.said.thought), "the thought depends on the cuts");
	require(same(&whole.said.content, &cut.said.content), "the content depends on the cuts");
	require(same(&whole.said.calls, &cut.said.calls), "the calls depend on the cuts");
	require(whole.keep == cut.keep && whole.thought_tokens == cut.thought_tokens, "token counts depend on the cuts");
	require(whole.stopped == cut.stopped, "the stop depends on the cuts");
	require(whole.said.valid || (data[1] & (SWITCH_CUT | SWITCH_STOP)), "arguments are no JSON");
	require(whole.keep <= size / TOKEN + 1, "more tokens kept than there are");
	output_said_free(&whole.said);
	output_said_free(&cut.said);
	return 0;
}
