/* fuzz_jinja.c: hostile chat templates over fixed variables.  What compiles either renders, to UTF-8 whose spans cover it, or
 * is refused in words; both inside the budgets.
 *
 *   ./configure CC=clang --enable-fuzz --with-cuda=no CFLAGS='-g -O1 -fsanitize=address,undefined,fuzzer-no-link'
 *   make && ./fuzz/fuzz_jinja -dict=tests/corpus/jinja.dict -max_len=4096 CORPUS tests/corpus/jinja
 *
 * make check replays tests/corpus/jinja through the same function (fuzz/replay.c).
 */
#include "base/utf8.h"
#include "text/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void require(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

static json_t *make_variables(void)
{
	static const char text[] =
	    "{\"s\": \"Hello W\xc3\xb6rld \xf0\x9f\x98\x80\\n\", \"n\": null, \"t\": true, \"i\": 7, \"x\": 2.5, \"l\": [3, 1, 2],"
		"\"d\": {\"b\": 1, \"a\": \"x\", \"items\": 5}, \"rows\": [{\"k\": \"v2\", \"n\": 2}, {\"k\": \"V1\"}], \"messages\": ["
		"{\"role\": \"user\", \"content\": \" q \"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\":"
		"{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"c\"}]}}}]}], \"add_generation_prompt\": true}";

	return json_loads(text, 0, NULL);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	json_t                *json = make_variables();
	struct jinja_variables variables = { .data = json, .now = 1000000000 };
	struct jinja_template *jinja = NULL;
	struct jinja_result    result;
	struct error           error = { .message = "" };
	size_t                 covered = 0;

	require(json, "the variables are no JSON");
	if (jinja_compile((const char *)data, size, "input", &jinja, &error)) {
		require(*error.message && !jinja, "a bad refusal");
	} else if (jinja_render(jinja, &variables, &result, &error)) {
		require(*error.message, "a bad error");
	} else {
		require(utf8_valid(result.text, result.len, NULL), "the text is not UTF-8");
		for (size_t i = 0; i < result.span_count; i++) {
			require(result.spans[i].bytes == result.text + covered && result.spans[i].len > 0, "spans do not follow each other");
			require(i == 0 || result.spans[i].literal != result.spans[i - 1].literal, "two spans are one");
			covered += result.spans[i].len;
		}
		require(covered == result.len, "spans do not cover the text");
		jinja_result_free(&result);
	}
	jinja_free(jinja);
	json_decref(json);
	return 0;
}
