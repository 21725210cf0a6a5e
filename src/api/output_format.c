/* output_format.c: owns the formats in which models write thoughts and calls, and the choice among them.  Does not read answers.
 * Invariant: a marker's text is a literal of this file, at most OUTPUT_MARKER_MAX bytes, and begins with '<' or '['. */
#include "api/output.h"

#include <string.h>

/* The bar and the underscore of DeepSeek's markers: U+FF5C, U+2581. */
#define BAR   "\xef\xbd\x9c"
#define UNDER "\xe2\x96\x81"
#define DEEPSEEK(words) "<" BAR "tool" UNDER words BAR ">"

static const char *const call_marks[OUTPUT_CALLS_COUNT][OUTPUT_MARKER_COUNT] = {
	[OUTPUT_CALLS_GLM4] = { [OUTPUT_TURN] = "<|assistant|>" },
	[OUTPUT_CALLS_GLM45] = { [OUTPUT_CALL_OPEN] = "<tool_call>", [OUTPUT_CALL_CLOSE] = "</tool_call>",
	    [OUTPUT_KEY_OPEN] = "<arg_key>", [OUTPUT_KEY_CLOSE] = "</arg_key>", [OUTPUT_VALUE_OPEN] = "<arg_value>",
	    [OUTPUT_VALUE_CLOSE] = "</arg_value>" },
	[OUTPUT_CALLS_HERMES] = { [OUTPUT_CALL_OPEN] = "<tool_call>", [OUTPUT_CALL_CLOSE] = "</tool_call>" },
	[OUTPUT_CALLS_LLAMA3] = { [OUTPUT_CALL_OPEN] = "<|python_tag|>" },
	[OUTPUT_CALLS_MISTRAL] = { [OUTPUT_CALL_OPEN] = "[TOOL_CALLS]", [OUTPUT_SEPARATOR] = "[ARGS]",
	    [OUTPUT_CALL_ID] = "[CALL_ID]" },
	[OUTPUT_CALLS_DEEPSEEK] = { [OUTPUT_CALLS_OPEN] = DEEPSEEK("calls" UNDER "begin"),
	    [OUTPUT_CALLS_CLOSE] = DEEPSEEK("calls" UNDER "end"), [OUTPUT_CALL_OPEN] = DEEPSEEK("call" UNDER "begin"),
	    [OUTPUT_CALL_CLOSE] = DEEPSEEK("call" UNDER "end"), [OUTPUT_SEPARATOR] = DEEPSEEK("sep") },
};

static const char *const thought_marks[OUTPUT_THOUGHT_COUNT][OUTPUT_THINK_CLOSE + 1] = {
	[OUTPUT_THOUGHT_THINK] = { "<think>", "</think>" },
	[OUTPUT_THOUGHT_MISTRAL] = { "[THINK]", "[/THINK]" },
};

static const char *const call_names[] = { "none", "glm4", "glm45", "hermes", "llama3", "mistral", "deepseek" };
static const char *const thought_names[] = { "none", "think", "mistral" };
_Static_assert(sizeof call_names / sizeof *call_names == OUTPUT_CALLS_COUNT, "a name for each format of calls");
_Static_assert(sizeof thought_names / sizeof *thought_names == OUTPUT_THOUGHT_COUNT, "a name for each format of thoughts");

const char *output_format_calls_name(const struct output_format *format) { return call_names[format->calls]; }
const char *output_format_thought_name(const struct output_format *format) { return thought_names[format->thought]; }

static int find_name(const char *const *names, int count, const char *word)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(names[i], word))
			return i;
	return -1;
}

static bool says(const struct chat_template *chat, const char *text) { return chat && chat_template_mentions(chat, text); }

static bool has_token(const struct vocab *vocab, const char *text)
{
	return vocab && vocab_special(vocab, text, strlen(text)) >= 0;
}

/* By what only this format's template says.  Hermes, whose marks are the most common, is what is left. */
static enum output_call_format detect_calls(const struct chat_template *chat, const struct vocab *vocab)
{
	if (says(chat, "<arg_key>"))
		return OUTPUT_CALLS_GLM45;
	if (says(chat, DEEPSEEK("call" UNDER "begin")))
		return OUTPUT_CALLS_DEEPSEEK;
	if (says(chat, "[TOOL_CALLS]"))
		return OUTPUT_CALLS_MISTRAL;
	if (says(chat, "<tool_call>"))
		return says(chat, "<function=") ? OUTPUT_CALLS_NONE : OUTPUT_CALLS_HERMES; /* Qwen3-Coder's is another one */
	if (says(chat, "<|python_tag|>") || (says(chat, "<|start_header_id|>") && says(chat, "tools")))
		return OUTPUT_CALLS_LLAMA3;
	if (says(chat, "<|observation|>"))
		return OUTPUT_CALLS_GLM4;
	if (has_token(vocab, "<arg_key>"))
		return OUTPUT_CALLS_GLM45;
	if (has_token(vocab, DEEPSEEK("call" UNDER "begin")))
		return OUTPUT_CALLS_DEEPSEEK;
	if (has_token(vocab, "[TOOL_CALLS]"))
		return OUTPUT_CALLS_MISTRAL;
	return OUTPUT_CALLS_HERMES;
}

static enum output_thought_format detect_thought(const struct chat_template *chat, const struct vocab *vocab)
{
	if (says(chat, "think>") || has_token(vocab, "</think>"))
		return OUTPUT_THOUGHT_THINK;
	return says(chat, "[THINK]") || has_token(vocab, "[THINK]") ? OUTPUT_THOUGHT_MISTRAL : OUTPUT_THOUGHT_NONE;
}

enum status output_format_detect(const struct chat_template *chat, const struct vocab *vocab, const char *tool_parser,
    const char *reasoning_parser, struct output_format *ret, struct error *error)
{
	struct output_format format = { .calls = OUTPUT_CALLS_NONE };
	bool                 auto_calls = !strcmp(tool_parser, "auto"), auto_thought = !strcmp(reasoning_parser, "auto");
	int                  calls = auto_calls ? (int)detect_calls(chat, vocab) :
	                     find_name(call_names, OUTPUT_CALLS_COUNT, tool_parser);
	int                  thought = auto_thought ? (int)detect_thought(chat, vocab) :
	                     find_name(thought_names, OUTPUT_THOUGHT_COUNT, reasoning_parser);

	if (calls < 0)
		return error_set(error, STATUS_INVALID, "front.tool_parser = %.40s: there is no such parser", tool_parser);
	if (thought < 0)
		return error_set(error, STATUS_INVALID, "front.reasoning_parser = %.40s: there is no such parser", reasoning_parser);
	format.calls = (enum output_call_format)calls;
	format.thought = (enum output_thought_format)thought;
	for (int m = 0; m < OUTPUT_MARKER_COUNT; m++) {
		const char *text = m <= OUTPUT_THINK_CLOSE ? thought_marks[thought][m] : call_marks[calls][m];
		size_t      len = text ? strlen(text) : 0;

		format.marks[m] = (struct output_mark){ text, len, text && vocab ? vocab_special(vocab, text, len) : -1 };
	}
	*ret = format;
	return STATUS_OK;
}
