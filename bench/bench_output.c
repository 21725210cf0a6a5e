/* bench_output.c: CPU time that taking answers apart takes per token (marks, thought, calls, stop strings), and what it allocates.
 *
 *     bench/bench_output
 *
 * Answers of some 4,000 tokens of four bytes each, taken away after every token as a stream does.  Allocations are counted by
 * the linker's --wrap: an answer and a call have theirs, a token has none. */
#include "api/answer.h"
#include "support/output_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 200, TOKEN_BYTES = 4, TEXT_MAX = 64 << 10 };

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);

static unsigned long allocations;

void *__wrap_malloc(size_t size)
{
	allocations++;
	return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
	allocations++;
	return __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
	allocations++;
	return __real_realloc(memory, size);
}

static double cpu_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static const struct sample {
	const char *name, *calls, *thought;
	const char *head, *repeat, *tail; /* REPEAT until there is enough */
	unsigned    stops;
} samples[] = {
	{ "text, nothing looked for", "none", "none", "", "The gate is opened and 1 < 2. ", "", 0 },
	{ "text, thought and calls looked for", "glm45", "think", "", "The gate is opened and 1 < 2. ", "", 0 },
	{ "text and 4 stop strings", "glm45", "think", "", "The gate is opened and 1 < 2. ", "", 4 },
	{ "a thought", "glm45", "think", "<think>", "The gate is opened <b>and</b> 1 < 2. ", "</think>Yes.", 0 },
	{ "GLM-4, lines of text", "glm4", "none", "", "The gate\nnow it is opened\n", "", 0 },
	{ "GLM-4.5, one long string", "glm45", "none", "<tool_call>fx\n<arg_key>path</arg_key>\n<arg_value>",
	    "if (a < \"b\") {\n\tc();\n} ",
	    "</arg_value>\n</tool_call>", 0 },
	{ "GLM-4.7, one long array", "glm45", "none", "<tool_call>get_weather<arg_key>tags</arg_key><arg_value>[", "\"word\", 12.50, ",
	    "1]</arg_value></tool_call>", 0 },
	{ "Hermes, one long string", "hermes", "none", "<tool_call>\n{\"name\": \"fx\", \"arguments\": {\"path\": \"",
	    "if (a < b) {\\n\\tc();\\n} ",
	    "\"}}\n</tool_call>", 0 },
	{ "Hermes, many values", "hermes", "none", "<tool_call>\n{\"name\": \"fx\", \"arguments\": {\"a\": [", "12.50, {\"k\": true}, ",
	    "1]}}\n</tool_call>", 0 },
	{ "Mistral, many values", "mistral", "mistral", "[TOOL_CALLS][{\"name\": \"fx\", \"arguments\": {\"a\": [",
	    "12.50, {\"k\": true}, ", "1]}}]", 0 },
};

static size_t fill(const struct sample *s, char *text)
{
	size_t len = strlen(s->head), more = strlen(s->repeat), tail = strlen(s->tail);

	memcpy(text, s->head, len);
	while (len + more + tail < 4000 * TOKEN_BYTES) {
		memcpy(text + len, s->repeat, more);
		len += more;
	}
	memcpy(text + len, s->tail, tail);
	return len + tail;
}

static void measure(const struct sample *s, const struct output_tools *tools)
{
	static char          text[TEXT_MAX];
	struct output_format format;
	struct error         error;
	size_t               len = fill(s, text), said = 0;
	uint32_t             tokens = 0;
	double               start_ns;
	unsigned long        before;

	if (output_format_detect(NULL, NULL, s->calls, s->thought, &format, &error))
		exit(EXIT_FAILURE);
	before = allocations;
	start_ns = cpu_ns();
	for (int round = 0; round < ROUNDS; round++) {
		struct answer a;

		tokens = 0;
		answer_init(&a, 1 << 20);
		for (unsigned i = 0; i < s->stops; i++)
			stop_add(&a.stop, &"\n\nQ:</s>STOP"[2 * i], 3);
		answer_begin(&a, &format, tools, CHAT_REASONING_NONE, true);
		for (size_t at = 0; at < len; at += TOKEN_BYTES) {
			if (answer_text(&a, text + at, len - at < TOKEN_BYTES ? len - at : TOKEN_BYTES, ++tokens))
				exit(EXIT_FAILURE);
			said += answer_has_news(&a);
			answer_taken(&a);
		}
		if (answer_finish(&a, true))
			exit(EXIT_FAILURE);
		answer_free(&a);
	}
	printf("%-36s %6.1f ns per token, %5.1f allocations per answer of %u tokens, %zu %% of the tokens said something at once\n",
	    s->name, (cpu_ns() - start_ns) / ROUNDS / tokens, (double)(allocations - before) / ROUNDS, tokens,
	    said * 100 / ROUNDS / tokens);
}

int main(void)
{
	json_t              *list = json_loads(OUTPUT_CASE_TOOLS, 0, NULL);
	struct output_tools *tools;

	if (output_tools_create(list, &tools))
		return EXIT_FAILURE;
	for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
		measure(&samples[i], tools);
	output_tools_free(tools);
	json_decref(list);
	return EXIT_SUCCESS;
}
