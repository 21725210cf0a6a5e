/* output.h: what a model writes, taken apart: its thought, its text, its tool calls, as they come.
 *
 * One machine per answer is fed with pieces of text and says what they are through a sink.  The outcome depends on the text
 * alone (and on which markers came as special tokens), never on how it was cut into pieces: bytes that may still turn out to
 * be a marker are held, nothing else is, and what was said is never taken back.  So:
 *
 *  - A call is announced once its name and the beginning of its arguments are there.  What breaks off before that is content,
 *    byte for byte.  What breaks off later is closed into valid JSON, and the bytes that were not delivered are content.
 *  - Arguments are passed on as they come.  Those of JSON formats keep the model's spelling (raw control characters in strings
 *    are escaped).  Those of GLM's <arg_key>, <arg_value> get their types from the tool's schema: strings are passed on byte
 *    for byte while they come, other values when they are complete, as written if they are JSON and as strings if not.
 *  - White space at the edges of a thought, before the text that follows a thought, and at the end of text that a call
 *    follows, is dropped.
 *
 * Markers that the vocabulary has as tokens count when they come as those, and also when they are spelled, until the first one
 * of their family came as a token: from then on spelled ones are text.
 */
#ifndef PENSTOCK_API_OUTPUT_H
#define PENSTOCK_API_OUTPUT_H

#include "api/json_scan.h"
#include "base/buf.h"
#include "text/chat.h"
#include "vocab/vocab.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	OUTPUT_NAME_MAX = 256,     /* bytes of a function's name */
	OUTPUT_MARKER_MAX = 32,    /* of a marker */
	OUTPUT_RAW_MAX = 1 << 20,  /* held of one call before it is one, or of one value that is not a string */
	OUTPUT_SCHEMA_DEPTH = 8    /* of anyOf, oneOf, allOf, $ref of a property */
};

/* ---- formats ------------------------------------------------------------------------------------------------------- */

enum output_call_format {
	OUTPUT_CALLS_NONE,
	OUTPUT_CALLS_GLM4,     /* a line with a name, then JSON */
	OUTPUT_CALLS_GLM45,    /* <tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value>…</tool_call>, with newlines or not */
	OUTPUT_CALLS_HERMES,   /* <tool_call>{"name": …, "arguments": {…}}</tool_call> (Qwen) */
	OUTPUT_CALLS_LLAMA3,   /* {"name": …, "parameters": {…}}, alone or behind <|python_tag|>, several parted by ; */
	OUTPUT_CALLS_MISTRAL,  /* [TOOL_CALLS][{"name": …, "arguments": {…}}, …], or [TOOL_CALLS]name[ARGS]{…} */
	OUTPUT_CALLS_DEEPSEEK, /* V3: <|tool_call_begin|>function<|tool_sep|>name, fenced JSON; V3.1: name<|tool_sep|>JSON */
	OUTPUT_CALLS_COUNT
};
enum output_thought_format { OUTPUT_THOUGHT_NONE, OUTPUT_THOUGHT_THINK, OUTPUT_THOUGHT_MISTRAL, OUTPUT_THOUGHT_COUNT };

enum output_marker {
	OUTPUT_THINK_OPEN, OUTPUT_THINK_CLOSE, OUTPUT_CALLS_OPEN, OUTPUT_CALLS_CLOSE, OUTPUT_CALL_OPEN, OUTPUT_CALL_CLOSE,
	OUTPUT_KEY_OPEN, OUTPUT_KEY_CLOSE, OUTPUT_VALUE_OPEN, OUTPUT_VALUE_CLOSE, OUTPUT_SEPARATOR, OUTPUT_CALL_ID, OUTPUT_TURN,
	OUTPUT_MARKER_COUNT
};

/* How a model writes; found once at load, shared by all answers. */
struct output_format {
	enum output_call_format    calls;
	enum output_thought_format thought;
	struct output_mark {
		const char *text; /* a literal; NULL: the format has none */
		size_t      len;
		int32_t     id;   /* of the token; −1: it is always spelled */
	} marks[OUTPUT_MARKER_COUNT];
};

/* TOOL_PARSER and REASONING_PARSER are the words of front.tool_parser and front.reasoning_parser: "auto" looks at the template
 * and at the tokens that the vocabulary has (each may be NULL).  STATUS_INVALID for a word that is neither. */
enum status output_format_detect(const struct chat_template *chat, const struct vocab *vocab, const char *tool_parser,
    const char *reasoning_parser, struct output_format *ret, struct error *error);
const char *output_format_calls_name(const struct output_format *format);
const char *output_format_thought_name(const struct output_format *format);

/* The marker that token ID is; OUTPUT_MARKER_COUNT: none. */
static inline enum output_marker output_format_marker(const struct output_format *format, int32_t id)
{
	enum output_marker m = 0;

	while (m < OUTPUT_MARKER_COUNT && (!format->marks[m].text || format->marks[m].id != id))
		m++;
	return m;
}

/* ---- the request's tools -------------------------------------------------------------------------------------------- */

enum output_type {
	OUTPUT_TYPE_STRING = 1 << 0, OUTPUT_TYPE_NUMBER = 1 << 1, OUTPUT_TYPE_BOOLEAN = 1 << 2, OUTPUT_TYPE_NULL = 1 << 3,
	OUTPUT_TYPE_ARRAY = 1 << 4, OUTPUT_TYPE_OBJECT = 1 << 5
};

/* Names, and types of parameters; knows nothing else of the schemas.  Shared by all answers to a request. */
struct output_tools;

/* From the request's `tools`, whose shape was checked; nothing of it is kept. */
enum status output_tools_create(const json_t *tools, struct output_tools **ret);
void        output_tools_free(struct output_tools *tools);
bool        output_tools_has(const struct output_tools *tools, const char *name, size_t len);
bool        output_tools_begin(const struct output_tools *tools, const char *prefix, size_t len); /* a name begins so */
/* Set of enum output_type; 0: nothing is known of it. */
unsigned    output_tools_type(const struct output_tools *tools, const char *name, size_t len, const char *key, size_t key_len);

/* ---- the machine ---------------------------------------------------------------------------------------------------- */

/* All may be called many times; bytes are whatever came, perhaps a part of a character.  TOKENS: tokens of the answer up to the
 * one that brought the bytes. */
struct output_sink {
	void *context;
	enum status (*thought)(void *context, const char *bytes, size_t len);
	enum status (*thought_end)(void *context);
	enum status (*content)(void *context, const char *bytes, size_t len, uint32_t tokens);
	/* Something that is not content came in between, up to TOKENS. */
	enum status (*gap)(void *context, uint32_t tokens);
	enum status (*call)(void *context, const char *name, size_t len);
	enum status (*arguments)(void *context, const char *bytes, size_t len);
	enum status (*call_end)(void *context, uint32_t tokens);
};

struct output {
	const struct output_format *format; /* borrowed, as tools */
	const struct output_tools  *tools;  /* NULL: calls are not looked for */
	struct output_sink          sink;
	enum status                 status; /* the first failure; nothing happens after it */
	unsigned                    state, substate;
	uint32_t                    spelled; /* bit per marker: it may be spelled */
	uint32_t                    tokens;  /* so far */

	char     held[OUTPUT_MARKER_MAX];        /* a proper beginning of a marker */
	uint32_t held_tokens[OUTPUT_MARKER_MAX];
	unsigned held_len;

	/* Text: */
	bool     trim, content_begun, line_start;
	uint32_t thought_tokens, thought_last; /* tokens that brought any of the thought; the last of them */
	bool     thought_begun, thought_said; /* in this thought, in any */

	/* The call under way: */
	struct buf         raw;   /* what it took and did not deliver */
	struct buf         marks; /* struct raw_mark: which token brought it */
	struct buf         arguments; /* before it is announced: what is to be delivered */
	struct buf         value; /* JSON: not delivered yet, since it may break off; GLM: a value that is not a string */
	struct json_scan   scan, other;
	struct json_unescape unescape;
	char               name[OUTPUT_NAME_MAX], key[OUTPUT_NAME_MAX];
	unsigned           name_len, key_len, types;
	bool               named, announced, ready, array, any_argument, has_arguments, fence;
	unsigned           calls; /* announced so far */
};

/* TOOLS NULL: calls are text.  Without a thought format thoughts are.  START: where the prompt left off. */
void output_init(struct output *output, const struct output_format *format, const struct output_tools *tools,
    enum chat_reasoning start, const struct output_sink *sink);
void output_free(struct output *output);

/* The token number TOKENS (from 1) brought text; or a marker of the format, as a token of its own. */
enum status output_feed(struct output *output, const char *bytes, size_t len, uint32_t tokens);
enum status output_feed_marker(struct output *output, enum output_marker marker, uint32_t tokens);

/* The answer has ended; STOPPED: by itself, so that a call that was not closed is closed now.  Otherwise it stays cut. */
enum status output_finish(struct output *output, bool stopped);

/* Is the answer inside its thought now? */
bool output_thinks(const struct output *output);

#endif
