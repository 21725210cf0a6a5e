/* output_parts.h: the inside of the reader of answers, shared by output.c (bytes, markers, text) and output_call.c (calls). */
#ifndef PENSTOCK_API_OUTPUT_PARTS_H
#define PENSTOCK_API_OUTPUT_PARTS_H

#include "api/output.h"

enum output_state {
	OUTPUT_STATE_START,   /* nothing but white space came: a thought may begin */
	OUTPUT_STATE_THOUGHT,
	OUTPUT_STATE_CONTENT,
	/* Calls, until they are announced: what they take is in `raw`. */
	OUTPUT_STATE_LINE,    /* GLM-4: a line that may be a name */
	OUTPUT_STATE_BRACE,   /* GLM-4: a name was there, { follows */
	OUTPUT_STATE_TAG,     /* behind <tool_call> */
	OUTPUT_STATE_NAME, OUTPUT_STATE_NAME_END, OUTPUT_STATE_KEY, OUTPUT_STATE_BEFORE_VALUE, OUTPUT_STATE_VALUE,
	OUTPUT_STATE_AFTER_VALUE, /* these six: <arg_key> and its kind; also after it was announced */
	OUTPUT_STATE_OBJECT,  /* {"name": …}; the place in it is the substate */
	OUTPUT_STATE_ARGUMENTS, /* the object of a call whose name is known */
	OUTPUT_STATE_LIST,    /* behind [TOOL_CALLS] */
	OUTPUT_STATE_LIST_NAME, OUTPUT_STATE_LIST_ID,
	OUTPUT_STATE_BEGIN,   /* DeepSeek: behind the mark of all calls */
	OUTPUT_STATE_HEAD, OUTPUT_STATE_HEAD_NAME, OUTPUT_STATE_FENCE,
	/* Behind a call: */
	OUTPUT_STATE_OBJECT_END, OUTPUT_STATE_TAIL, OUTPUT_STATE_NEXT
};

/* What a piece of `raw` was brought by: from byte AT on token number TOKENS. */
struct output_raw_mark {
	uint32_t at, tokens;
};

static inline bool output_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* output.c */
void output_fail(struct output *p, enum status status); /* notes the first failure */
void output_content(struct output *p, const char *bytes, size_t len, uint32_t tokens);
void output_text(struct output *p, const char *bytes, size_t len, uint32_t tokens); /* no markers are looked for */
void output_marker(struct output *p, enum output_marker marker, uint32_t tokens);

/* output_call.c.  Text and markers in a state from LINE on; text returns the bytes taken, at least one. */
size_t   output_call_text(struct output *p, const char *bytes, size_t len, uint32_t tokens);
void     output_call_marker(struct output *p, enum output_marker marker, uint32_t tokens);
bool     output_call_begins(const struct output *p, enum output_marker marker);
void     output_call_begin(struct output *p, enum output_marker marker, uint32_t tokens);
void     output_call_begin_bare(struct output *p, enum output_state state); /* without a marker: the next byte is its first */
void     output_call_finish(struct output *p, bool stopped);
uint32_t output_call_mask(const struct output *p); /* markers that may be spelled here */

#endif
