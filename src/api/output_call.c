/* output_call.c: owns the reading of tool calls, in every format.  Bytes and markers are output.c's.
 *
 * Invariants: until a call is announced, `raw` is all that it took, so that it can still become content; what is announced ends in
 * call_end with valid JSON, unless the answer was cut; a byte is delivered as an argument or as content, never as both. */
#include "api/output_parts.h"

#include <string.h>

#define BIT(m) (UINT32_C(1) << (m))

/* Places in the object of a call. */
enum { OBJECT_OPEN, OBJECT_FIRST_KEY, OBJECT_NEXT_KEY, OBJECT_KEY, OBJECT_COLON, OBJECT_VALUE, OBJECT_NAME, OBJECT_ARGUMENTS,
	OBJECT_ENCODED, OBJECT_OTHER, OBJECT_AFTER };

/* What a byte or marker did to the call. */
enum step { STEP_ON, STEP_BROKEN };

/* ---- delivering ------------------------------------------------------------------------------------------------------ */

static void deliver(struct output *p, const char *bytes, size_t len)
{
	if (len == 0 || p->status)
		return;
	output_fail(p, p->announced ? p->sink.arguments(p->sink.context, bytes, len) : buf_append(&p->arguments, bytes, len));
}

static void deliver_text(struct output *p, const char *text) { deliver(p, text, strlen(text)); }

/* Bytes of a string. */
static void deliver_escaped(struct output *p, const char *bytes, size_t len)
{
	char       room[512];
	struct buf escaped = { .data = room, .capacity = sizeof room, .max = sizeof room - 1 }; /* never grows */

	while (len && !p->status) {
		size_t piece = len < sizeof room / 8 ? len : sizeof room / 8;

		escaped.len = 0;
		output_fail(p, json_scan_escape(&escaped, bytes, piece));
		deliver(p, room, escaped.len);
		bytes += piece;
		len -= piece;
	}
}

static void clear_raw(struct output *p)
{
	buf_clear(&p->raw);
	buf_clear(&p->marks);
}

static void announce(struct output *p)
{
	if (p->announced || p->status)
		return;
	output_fail(p, p->sink.gap(p->sink.context, p->tokens));
	output_fail(p, p->sink.call(p->sink.context, p->name, p->name_len));
	p->announced = true;
	p->calls++;
	if (p->arguments.len)
		deliver(p, p->arguments.data, p->arguments.len);
	buf_clear(&p->arguments);
	clear_raw(p);
}

/* A new call from here on. */
static void reset(struct output *p)
{
	clear_raw(p);
	buf_clear(&p->arguments);
	buf_clear(&p->value);
	json_scan_init(&p->scan);
	json_scan_init(&p->other);
	p->unescape = (struct json_unescape){ 0 };
	p->name_len = p->key_len = 0;
	p->named = p->announced = p->ready = p->any_argument = p->has_arguments = p->fence = false;
}

static void end_call(struct output *p, enum output_state state)
{
	announce(p);
	if (!p->status)
		output_fail(p, p->sink.call_end(p->sink.context, p->tokens));
	output_fail(p, p->sink.gap(p->sink.context, p->tokens));
	reset(p);
	p->trim = p->line_start = true;
	p->state = state;
	p->substate = OBJECT_OPEN;
}

/* ---- raw ------------------------------------------------------------------------------------------------------------- */

static bool tagged(const struct output *p) { return p->state >= OUTPUT_STATE_NAME && p->state <= OUTPUT_STATE_AFTER_VALUE; }

/* Are bytes taken in this state held, in case the call breaks off? */
static bool collects(const struct output *p)
{
	if (p->state >= OUTPUT_STATE_OBJECT_END)
		return false;
	return !p->announced || (tagged(p) && p->state != OUTPUT_STATE_VALUE);
}

/* False when there is no room: then this is no call. */
static bool collect(struct output *p, const char *bytes, size_t len, uint32_t tokens)
{
	struct output_raw_mark last = { 0, 0 }, mark = { (uint32_t)p->raw.len, tokens };
	enum status            status = STATUS_OK;

	if (p->marks.len >= sizeof last)
		memcpy(&last, p->marks.data + p->marks.len - sizeof last, sizeof last);
	if (last.tokens != tokens)
		status = buf_append(&p->marks, &mark, sizeof mark);
	if (!status)
		status = buf_append(&p->raw, bytes, len);
	if (status == STATUS_NOMEM)
		output_fail(p, status);
	return !status;
}

/* The first LEN bytes of raw become content, each piece with the token that brought it. */
static void raw_to_content(struct output *p, size_t len)
{
	size_t count = p->marks.len / sizeof(struct output_raw_mark);

	for (size_t i = 0; i < count && !p->status; i++) {
		struct output_raw_mark mark, next = { (uint32_t)len, 0 };

		memcpy(&mark, p->marks.data + i * sizeof mark, sizeof mark);
		if (i + 1 < count)
			memcpy(&next, p->marks.data + (i + 1) * sizeof next, sizeof next);
		if (next.at > len)
			next.at = (uint32_t)len;
		if (mark.at < next.at)
			output_content(p, p->raw.data + mark.at, next.at - mark.at, mark.tokens);
	}
	clear_raw(p);
}

/* ---- arguments that are JSON ----------------------------------------------------------------------------------------- */

static void flush_value(struct output *p)
{
	deliver(p, p->value.data, p->value.len);
	buf_clear(&p->value);
}

static bool in_number(const struct json_scan *s) { return s->state >= JSON_SCAN_MINUS && s->state <= JSON_SCAN_EXPONENT; }

static bool hold(struct output *p, char c)
{
	bool        raw_control = (unsigned char)c < 0x20 && (p->scan.state == JSON_SCAN_KEY || p->scan.state == JSON_SCAN_KEY_ESCAPE);
	enum status status = raw_control ? json_scan_escape(&p->value, &c, 1) : buf_append(&p->value, &c, 1);

	if (status == STATUS_NOMEM)
		output_fail(p, status);
	return !status;
}

/* One byte of the arguments' object.  What may still break off (a key, its colon, a number) is held in `value`; so what was
 * delivered can always be closed. */
static enum json_scan_result arguments_byte(struct output *p, char c)
{
	struct json_scan     *s = &p->scan;
	enum json_scan_state  before = s->state;
	bool                  number = in_number(s);
	enum json_scan_result result;

	if (before == JSON_SCAN_VALUE && s->depth == 0) { /* an object, and nothing else */
		if (output_blank(c))
			return JSON_SCAN_MORE;
		if (c != '{')
			return JSON_SCAN_ERROR;
	}
	result = json_scan_byte(s, c);
	if (result == JSON_SCAN_ERROR)
		return result;
	if (before == JSON_SCAN_STRING && s->state == JSON_SCAN_STRING) {
		deliver_escaped(p, &c, 1);
		return result;
	}
	if (number && !in_number(s))
		flush_value(p);
	if (!hold(p, c))
		return JSON_SCAN_ERROR;
	if (s->state == JSON_SCAN_STRING || s->state == JSON_SCAN_FIRST_KEY || s->state == JSON_SCAN_FIRST_ITEM ||
	    s->state == JSON_SCAN_AFTER || s->state == JSON_SCAN_END) {
		flush_value(p);
		p->ready = p->ready || s->depth != 1 || s->state != JSON_SCAN_FIRST_KEY;
	}
	return result;
}

/* Arguments broke off: closes what was delivered; what was not becomes content. */
static void close_arguments(struct output *p)
{
	struct buf rest;

	if (p->scan.state == JSON_SCAN_END || p->scan.depth == 0)
		return;
	if (json_scan_number_ends(&p->scan))
		flush_value(p);
	buf_init(&rest, JSON_SCAN_DEPTH_MAX + 2);
	output_fail(p, json_scan_close(&p->scan, &rest));
	deliver(p, rest.data, rest.len);
	buf_free(&rest);
}

/* ---- arguments as <arg_key>, <arg_value> ----------------------------------------------------------------------------- */

static bool streams(const struct output *p) { return (p->types & OUTPUT_TYPE_STRING) && !(p->types & OUTPUT_TYPE_NULL); }

static void deliver_key(struct output *p)
{
	deliver_text(p, p->any_argument ? ", \"" : "{\"");
	deliver_escaped(p, p->key, p->key_len);
	deliver_text(p, "\": ");
	p->any_argument = true;
}

static void begin_value(struct output *p)
{
	while (p->key_len && output_blank(p->key[p->key_len - 1]))
		p->key_len--;
	p->types = output_tools_type(p->tools, p->name, p->name_len, p->key, p->key_len);
	if (streams(p)) {
		deliver_key(p);
		deliver_text(p, "\"");
	}
	announce(p);
	clear_raw(p);
	buf_clear(&p->value);
	p->state = OUTPUT_STATE_VALUE;
}

static void value_text(struct output *p, const char *bytes, size_t len)
{
	enum status status;

	if (!streams(p)) {
		status = buf_append(&p->value, bytes, len);
		if (status == STATUS_NOMEM)
			output_fail(p, status);
		if (!status)
			return;
		p->types = OUTPUT_TYPE_STRING; /* too long for anything else */
		deliver_key(p);
		deliver_text(p, "\"");
		deliver_escaped(p, p->value.data, p->value.len);
		buf_clear(&p->value);
	}
	deliver_escaped(p, bytes, len);
}

static bool same(const char *text, size_t len, const char *word) { return len == strlen(word) && !memcmp(text, word, len); }

/* The value as JSON that may be written as it is; NULL: it has to be a string. */
static const char *plain_value(const struct output *p, size_t *ret_len)
{
	const char *text = p->value.data ? p->value.data : "";
	size_t      len = p->value.len;

	while (len && output_blank(text[len - 1]))
		len--;
	while (len && output_blank(*text)) {
		text++;
		len--;
	}
	*ret_len = len;
	if (p->types & OUTPUT_TYPE_STRING)
		return same(text, len, "null") ? text : NULL;
	if (json_scan_valid(text, len))
		return text;
	*ret_len = 4;
	if (same(text, len, "None") && (p->types == 0 || p->types & OUTPUT_TYPE_NULL)) /* Python's words for the same */
		return "null";
	if (same(text, len, "True") && (p->types == 0 || p->types & OUTPUT_TYPE_BOOLEAN))
		return "true";
	*ret_len = 5;
	return same(text, len, "False") && (p->types == 0 || p->types & OUTPUT_TYPE_BOOLEAN) ? "false" : NULL;
}

/* As it is written, but for control characters inside strings. */
static void deliver_json(struct output *p, const char *text, size_t len)
{
	struct json_scan scan;
	size_t           from = 0;

	json_scan_init(&scan);
	for (size_t i = 0; i < len; i++) {
		bool inside = scan.state == JSON_SCAN_STRING || scan.state == JSON_SCAN_KEY;

		json_scan_byte(&scan, text[i]);
		if (!inside || (unsigned char)text[i] >= 0x20)
			continue;
		deliver(p, text + from, i - from);
		deliver_escaped(p, text + i, 1);
		from = i + 1;
	}
	deliver(p, text + from, len - from);
}

static void end_value(struct output *p)
{
	size_t      len;
	const char *plain;

	p->state = OUTPUT_STATE_AFTER_VALUE;
	if (streams(p)) {
		deliver_text(p, "\"");
		return;
	}
	plain = plain_value(p, &len);
	deliver_key(p);
	if (plain) {
		deliver_json(p, plain, len);
	} else {
		deliver_text(p, "\"");
		deliver_escaped(p, p->value.data, p->value.len);
		deliver_text(p, "\"");
	}
	buf_clear(&p->value);
}

static void end_tagged(struct output *p, enum output_state state)
{
	deliver_text(p, p->any_argument ? "}" : "{}");
	end_call(p, state);
}

/* ---- states ---------------------------------------------------------------------------------------------------------- */

static bool add(char *text, unsigned *len, char c)
{
	if (*len == OUTPUT_NAME_MAX)
		return false;
	text[(*len)++] = c;
	return true;
}

/* Names are made of anything but what would be markup or JSON. */
static bool name_byte(struct output *p, char c)
{
	return (unsigned char)c > 0x20 && !strchr("<>{}()\"\\,;", c) && add(p->name, &p->name_len, c);
}

static enum step go(struct output *p, enum output_state state)
{
	p->state = state;
	return STEP_ON;
}

static enum step go_if(struct output *p, bool good, enum output_state state) { return good ? go(p, state) : STEP_BROKEN; }

static enum step object_go(struct output *p, unsigned place)
{
	p->substate = place;
	return STEP_ON;
}

/* The object of a call is complete. */
static enum step object_end(struct output *p)
{
	if (!p->named)
		return STEP_BROKEN;
	if (!p->has_arguments)
		deliver_text(p, "{}");
	end_call(p, OUTPUT_STATE_OBJECT_END);
	return STEP_ON;
}

static enum step arguments_begin(struct output *p, unsigned place)
{
	if (p->has_arguments)
		return STEP_BROKEN;
	p->has_arguments = true;
	return object_go(p, place);
}

static enum step object_value(struct output *p, char c)
{
	bool arguments = same(p->key, p->key_len, "arguments") || same(p->key, p->key_len, "parameters");

	if (output_blank(c))
		return STEP_ON;
	if (same(p->key, p->key_len, "name")) {
		p->name_len = 0;
		return c == '"' && !p->named ? object_go(p, OBJECT_NAME) : STEP_BROKEN;
	}
	if (arguments && c == '{') {
		arguments_byte(p, c);
		return arguments_begin(p, OBJECT_ARGUMENTS);
	}
	if (arguments && c == '"')
		return arguments_begin(p, OBJECT_ENCODED);
	if (arguments && c != 'n') /* null: none */
		return STEP_BROKEN;
	json_scan_init(&p->other);
	return json_scan_byte(&p->other, c) == JSON_SCAN_ERROR ? STEP_BROKEN : object_go(p, OBJECT_OTHER);
}

/* A byte of arguments that are a string with JSON in it. */
static enum step encoded_byte(struct output *p, char c)
{
	char     bytes[8];
	unsigned len;

	if (c == '"' && p->unescape.state == 0) {
		if (p->scan.state == JSON_SCAN_VALUE && p->scan.depth == 0)
			deliver_text(p, "{}"); /* an empty string */
		else if (p->scan.state != JSON_SCAN_END)
			return STEP_BROKEN;
		return object_go(p, OBJECT_AFTER);
	}
	if (!json_unescape_byte(&p->unescape, c, bytes, &len))
		return STEP_BROKEN;
	for (unsigned i = 0; i < len; i++)
		if (p->scan.state == JSON_SCAN_END ? !output_blank(bytes[i]) : arguments_byte(p, bytes[i]) == JSON_SCAN_ERROR)
			return STEP_BROKEN;
	return STEP_ON;
}

static enum step object_other(struct output *p, char c);

static enum step object_after(struct output *p, char c)
{
	if (output_blank(c))
		return STEP_ON;
	return c == ',' ? object_go(p, OBJECT_NEXT_KEY) : c == '}' ? object_end(p) : STEP_BROKEN;
}

static enum step object_other(struct output *p, char c)
{
	switch (json_scan_byte(&p->other, c)) {
	case JSON_SCAN_ERROR:
		return STEP_BROKEN;
	case JSON_SCAN_DONE:
		return object_go(p, OBJECT_AFTER);
	case JSON_SCAN_BEFORE:
		p->substate = OBJECT_AFTER;
		return object_after(p, c);
	default:
		return STEP_ON;
	}
}

/* In Llama's format nothing but the names of the tools tells a call from any other object. */
static enum step object_name(struct output *p, char c)
{
	if (c != '"')
		return name_byte(p, c) ? STEP_ON : STEP_BROKEN;
	p->named = p->name_len > 0;
	if (!p->named || (p->format->calls == OUTPUT_CALLS_LLAMA3 && !output_tools_has(p->tools, p->name, p->name_len)))
		return STEP_BROKEN;
	return object_go(p, OBJECT_AFTER);
}

static enum step object_byte(struct output *p, char c)
{
	switch (p->substate) {
	case OBJECT_OPEN:
		if (c == '[' && !p->array) {
			p->array = true;
			return STEP_ON;
		}
		return output_blank(c) ? STEP_ON : c == '{' ? object_go(p, OBJECT_FIRST_KEY) : STEP_BROKEN;
	case OBJECT_FIRST_KEY:
	case OBJECT_NEXT_KEY:
		if (output_blank(c))
			return STEP_ON;
		p->key_len = 0;
		return c == '"' ? object_go(p, OBJECT_KEY) : STEP_BROKEN;
	case OBJECT_KEY:
		if (c == '"')
			return object_go(p, OBJECT_COLON);
		return c != '\\' && add(p->key, &p->key_len, c) ? STEP_ON : STEP_BROKEN;
	case OBJECT_COLON:
		return output_blank(c) ? STEP_ON : c == ':' ? object_go(p, OBJECT_VALUE) : STEP_BROKEN;
	case OBJECT_VALUE:
		return object_value(p, c);
	case OBJECT_NAME:
		return object_name(p, c);
	case OBJECT_ARGUMENTS:
		switch (arguments_byte(p, c)) {
		case JSON_SCAN_ERROR:
			return STEP_BROKEN;
		case JSON_SCAN_DONE:
			return object_go(p, OBJECT_AFTER);
		default:
			return STEP_ON;
		}
	case OBJECT_ENCODED:
		return encoded_byte(p, c);
	case OBJECT_OTHER:
		return object_other(p, c);
	default:
		return object_after(p, c);
	}
}

static enum step object_step(struct output *p, char c)
{
	enum step step = object_byte(p, c);

	if (step == STEP_ON && p->state == OUTPUT_STATE_OBJECT && p->named && p->ready)
		announce(p);
	return step;
}

static enum step arguments_step(struct output *p, char c)
{
	static const enum output_state behind[OUTPUT_CALLS_COUNT] = { [OUTPUT_CALLS_GLM4] = OUTPUT_STATE_CONTENT,
		[OUTPUT_CALLS_GLM45] = OUTPUT_STATE_OBJECT_END, [OUTPUT_CALLS_MISTRAL] = OUTPUT_STATE_CONTENT,
		[OUTPUT_CALLS_DEEPSEEK] = OUTPUT_STATE_TAIL };

	switch (arguments_byte(p, c)) {
	case JSON_SCAN_ERROR:
		return STEP_BROKEN;
	case JSON_SCAN_DONE:
		end_call(p, behind[p->format->calls]);
		return STEP_ON;
	default:
		if (p->ready)
			announce(p);
		return STEP_ON;
	}
}

/* Takes C for the first byte of STATE. */
static enum step again(struct output *p, enum output_state state, char c);

static enum step step(struct output *p, char c)
{
	bool blank = output_blank(c);

	switch (p->state) {
	case OUTPUT_STATE_LINE:
		if (blank)
			return go_if(p, output_tools_has(p->tools, p->name, p->name_len),
			    c == '\n' ? OUTPUT_STATE_BRACE : OUTPUT_STATE_NAME_END);
		return add(p->name, &p->name_len, c) && output_tools_begin(p->tools, p->name, p->name_len) ? STEP_ON : STEP_BROKEN;
	case OUTPUT_STATE_BRACE:
		return blank ? STEP_ON : c == '{' ? again(p, OUTPUT_STATE_ARGUMENTS, c) : STEP_BROKEN;
	case OUTPUT_STATE_TAG:
		if (blank)
			return STEP_ON;
		if (c == '{' || c == '[')
			return again(p, OUTPUT_STATE_OBJECT, c);
		return p->format->calls == OUTPUT_CALLS_GLM45 ? again(p, OUTPUT_STATE_NAME, c) : STEP_BROKEN;
	case OUTPUT_STATE_NAME:
		return blank ? go(p, OUTPUT_STATE_NAME_END) : c == '{' ? again(p, OUTPUT_STATE_ARGUMENTS, c) :
		    name_byte(p, c)                                    ? STEP_ON :
		                                                         STEP_BROKEN;
	case OUTPUT_STATE_NAME_END:
		if (p->format->calls == OUTPUT_CALLS_GLM4)
			return c == '\n' ? go(p, OUTPUT_STATE_BRACE) : blank ? STEP_ON : STEP_BROKEN;
		return blank ? STEP_ON : c == '{' ? again(p, OUTPUT_STATE_ARGUMENTS, c) : STEP_BROKEN;
	case OUTPUT_STATE_KEY:
		return (blank && p->key_len == 0) || add(p->key, &p->key_len, c) ? STEP_ON : STEP_BROKEN;
	case OUTPUT_STATE_BEFORE_VALUE:
		if (!blank) { /* no <arg_value> */
			begin_value(p);
			value_text(p, &c, 1);
		}
		return STEP_ON;
	case OUTPUT_STATE_AFTER_VALUE:
		return blank ? STEP_ON : STEP_BROKEN;
	case OUTPUT_STATE_OBJECT:
		return object_step(p, c);
	case OUTPUT_STATE_ARGUMENTS:
		return arguments_step(p, c);
	case OUTPUT_STATE_LIST:
		return blank ? STEP_ON : again(p, c == '{' || c == '[' ? OUTPUT_STATE_OBJECT : OUTPUT_STATE_LIST_NAME, c);
	case OUTPUT_STATE_LIST_NAME:
		return blank ? STEP_ON : c == '{' && p->name_len ? again(p, OUTPUT_STATE_ARGUMENTS, c) :
		    name_byte(p, c)                              ? STEP_ON :
		                                                   STEP_BROKEN;
	case OUTPUT_STATE_LIST_ID:
		return c != '{' ? STEP_ON : STEP_BROKEN;
	case OUTPUT_STATE_HEAD:
		return blank || name_byte(p, c) ? STEP_ON : STEP_BROKEN;
	case OUTPUT_STATE_HEAD_NAME:
		return c == '\n' ? go_if(p, p->name_len > 0, OUTPUT_STATE_FENCE) : blank || name_byte(p, c) ? STEP_ON : STEP_BROKEN;
	case OUTPUT_STATE_FENCE:
		if (c == '{')
			return again(p, OUTPUT_STATE_ARGUMENTS, c);
		p->fence = p->fence || c == '`';
		return blank || c == '`' || (p->fence && strchr("json", c)) ? STEP_ON : STEP_BROKEN;
	case OUTPUT_STATE_OBJECT_END:
		if (c == '{') {
			collect(p, &c, 1, p->tokens);
			return again(p, OUTPUT_STATE_OBJECT, c);
		}
		if (c == ']' && p->array) {
			p->array = false;
			return STEP_ON;
		}
		return blank || c == ',' || c == ';' ? STEP_ON : STEP_BROKEN;
	case OUTPUT_STATE_TAIL:
		return blank || c == '`' ? STEP_ON : STEP_BROKEN;
	default: /* BEGIN, NEXT */
		return blank ? STEP_ON : STEP_BROKEN;
	}
}

static enum step again(struct output *p, enum output_state state, char c)
{
	p->state = state;
	return step(p, c);
}

/* ---- breaking off ---------------------------------------------------------------------------------------------------- */

/* What came so far is no call, or no longer one.  LAST bytes of raw are not part of it. */
static void break_off(struct output *p, size_t last)
{
	bool   announced = p->announced;
	size_t len = p->raw.len > last ? p->raw.len - last : 0;

	if (announced && tagged(p)) {
		deliver_text(p, "}");
	} else if (announced) {
		close_arguments(p);
		buf_clear(&p->raw);
		buf_clear(&p->marks);
		if (collect(p, p->value.data ? p->value.data : "", p->value.len, p->tokens))
			len = p->value.len;
	}
	if (announced) {
		output_fail(p, p->sink.call_end(p->sink.context, p->tokens));
		output_fail(p, p->sink.gap(p->sink.context, p->tokens));
		p->trim = true;
	}
	p->state = OUTPUT_STATE_CONTENT;
	raw_to_content(p, len);
	reset(p);
	p->array = false;
}

static bool in_string(const struct output *p)
{
	if (p->state == OUTPUT_STATE_ARGUMENTS || (p->state == OUTPUT_STATE_OBJECT && p->substate == OBJECT_ARGUMENTS))
		return p->scan.state == JSON_SCAN_STRING || p->scan.state == JSON_SCAN_KEY || p->scan.state == JSON_SCAN_ESCAPE ||
		    p->scan.state == JSON_SCAN_KEY_ESCAPE;
	if (p->state != OUTPUT_STATE_OBJECT)
		return false;
	return p->substate == OBJECT_NAME || p->substate == OBJECT_KEY || p->substate == OBJECT_ENCODED ||
	    (p->substate == OBJECT_OTHER && (p->other.state == JSON_SCAN_STRING || p->other.state == JSON_SCAN_KEY));
}

/* The inside of an announced string, up to what ends it. */
static size_t string_run(struct output *p, const char *bytes, size_t len)
{
	size_t n = 0;

	if (!p->announced || p->scan.state != JSON_SCAN_STRING || !in_string(p) || p->substate == OBJECT_ENCODED)
		return 0;
	while (n < len && bytes[n] != '"' && bytes[n] != '\\' && (unsigned char)bytes[n] >= 0x20)
		n++;
	deliver(p, bytes, n);
	return n;
}

/* What came does not go on with the calls: between two calls of a list they are over, inside one it breaks off. */
static void end_list(struct output *p, size_t collected)
{
	if (p->state >= OUTPUT_STATE_OBJECT_END) {
		p->state = OUTPUT_STATE_CONTENT;
		reset(p);
		p->array = false;
	} else {
		break_off(p, collected);
	}
}

size_t output_call_text(struct output *p, const char *bytes, size_t len, uint32_t tokens)
{
	size_t run = p->state == OUTPUT_STATE_VALUE ? len : string_run(p, bytes, len);
	bool   collected = false;
	char   c = *bytes;

	if (p->state == OUTPUT_STATE_VALUE)
		value_text(p, bytes, len);
	if (run)
		return run;
	if (collects(p)) {
		collected = collect(p, &c, 1, tokens);
		if (!collected) {
			break_off(p, 0);
			output_text(p, &c, 1, tokens);
			return 1;
		}
	}
	if (step(p, c) == STEP_BROKEN && !p->status) {
		end_list(p, collected);
		output_text(p, &c, 1, tokens);
	}
	return 1;
}

/* ---- markers --------------------------------------------------------------------------------------------------------- */

bool output_call_begins(const struct output *p, enum output_marker m)
{
	return p->tools && (m == OUTPUT_CALL_OPEN || m == OUTPUT_CALLS_OPEN);
}

static enum output_state first_state(const struct output *p, enum output_marker m)
{
	switch (p->format->calls) {
	case OUTPUT_CALLS_LLAMA3:
		return OUTPUT_STATE_OBJECT;
	case OUTPUT_CALLS_MISTRAL:
		return OUTPUT_STATE_LIST;
	case OUTPUT_CALLS_DEEPSEEK:
		return m == OUTPUT_CALLS_OPEN ? OUTPUT_STATE_BEGIN : OUTPUT_STATE_HEAD;
	default:
		return OUTPUT_STATE_TAG;
	}
}

void output_call_begin(struct output *p, enum output_marker m, uint32_t tokens)
{
	const struct output_mark *mark = &p->format->marks[m];

	output_call_begin_bare(p, first_state(p, m));
	collect(p, mark->text, mark->len, tokens);
}

void output_call_begin_bare(struct output *p, enum output_state state)
{
	reset(p);
	p->array = false;
	p->state = state;
	p->substate = OBJECT_OPEN;
}

static enum step key_open(struct output *p)
{
	p->key_len = 0;
	return go(p, OUTPUT_STATE_KEY);
}

/* Markers between <tool_call> and </tool_call> of GLM.  A missing </arg_key>, <arg_value>, </arg_value> or </tool_call> does no
 * harm where the next marker says as much. */
static enum step tagged_marker(struct output *p, enum output_marker m)
{
	switch (p->state) {
	case OUTPUT_STATE_NAME:
	case OUTPUT_STATE_NAME_END:
		if (m == OUTPUT_CALL_CLOSE) {
			end_tagged(p, OUTPUT_STATE_CONTENT);
			return STEP_ON;
		}
		return m == OUTPUT_KEY_OPEN ? key_open(p) : STEP_BROKEN;
	case OUTPUT_STATE_KEY:
		if (m == OUTPUT_VALUE_OPEN && p->key_len)
			begin_value(p);
		else if (m != OUTPUT_KEY_CLOSE || !p->key_len)
			return STEP_BROKEN;
		return m == OUTPUT_VALUE_OPEN ? STEP_ON : go(p, OUTPUT_STATE_BEFORE_VALUE);
	case OUTPUT_STATE_BEFORE_VALUE:
		if (m != OUTPUT_VALUE_OPEN && m != OUTPUT_VALUE_CLOSE)
			return STEP_BROKEN;
		begin_value(p);
		if (m == OUTPUT_VALUE_CLOSE)
			end_value(p);
		return STEP_ON;
	default: /* behind a value */
		if (m == OUTPUT_KEY_OPEN) {
			clear_raw(p);
			collect(p, p->format->marks[m].text, p->format->marks[m].len, p->tokens);
			return key_open(p);
		}
		if (m != OUTPUT_CALL_CLOSE && m != OUTPUT_CALL_OPEN)
			return STEP_BROKEN;
		end_tagged(p, OUTPUT_STATE_CONTENT);
		if (m == OUTPUT_CALL_OPEN)
			output_call_begin(p, m, p->tokens);
		return STEP_ON;
	}
}

static enum step marker_step(struct output *p, enum output_marker m)
{
	switch (p->state) {
	case OUTPUT_STATE_NAME:
	case OUTPUT_STATE_NAME_END:
	case OUTPUT_STATE_KEY:
	case OUTPUT_STATE_BEFORE_VALUE:
	case OUTPUT_STATE_AFTER_VALUE:
		return p->format->calls == OUTPUT_CALLS_GLM45 ? tagged_marker(p, m) : STEP_BROKEN;
	case OUTPUT_STATE_LIST_NAME:
	case OUTPUT_STATE_LIST_ID:
		if (m == OUTPUT_CALL_ID && p->state == OUTPUT_STATE_LIST_NAME && p->name_len)
			return go(p, OUTPUT_STATE_LIST_ID);
		return m == OUTPUT_SEPARATOR && p->name_len ? go(p, OUTPUT_STATE_ARGUMENTS) : STEP_BROKEN;
	case OUTPUT_STATE_BEGIN:
		return go_if(p, m == OUTPUT_CALL_OPEN, OUTPUT_STATE_HEAD);
	case OUTPUT_STATE_NEXT:
	case OUTPUT_STATE_TAIL:
		if (m == OUTPUT_CALL_OPEN)
			output_call_begin(p, m, p->tokens);
		else if (m == OUTPUT_CALL_CLOSE && p->state == OUTPUT_STATE_TAIL)
			p->state = OUTPUT_STATE_NEXT;
		else if (m == OUTPUT_CALLS_CLOSE)
			p->state = OUTPUT_STATE_CONTENT;
		else
			return STEP_BROKEN;
		return STEP_ON;
	case OUTPUT_STATE_HEAD:
		if (m != OUTPUT_SEPARATOR || !p->name_len)
			return STEP_BROKEN;
		if (!same(p->name, p->name_len, "function"))
			return go(p, OUTPUT_STATE_FENCE);
		p->name_len = 0;
		return go(p, OUTPUT_STATE_HEAD_NAME);
	case OUTPUT_STATE_OBJECT_END:
		if (m == OUTPUT_CALL_OPEN)
			output_call_begin(p, m, p->tokens);
		else if (m == OUTPUT_CALL_CLOSE)
			p->state = OUTPUT_STATE_CONTENT;
		return m == OUTPUT_CALL_OPEN || m == OUTPUT_CALL_CLOSE ? STEP_ON : STEP_BROKEN;
	default:
		return STEP_BROKEN;
	}
}

void output_call_marker(struct output *p, enum output_marker m, uint32_t tokens)
{
	const struct output_mark *mark = &p->format->marks[m];
	uint32_t                  ends = BIT(OUTPUT_VALUE_CLOSE) | BIT(OUTPUT_KEY_OPEN) | BIT(OUTPUT_CALL_CLOSE) |
	    BIT(OUTPUT_CALL_OPEN);
	size_t                    collected = 0;

	if (in_string(p) || (p->state == OUTPUT_STATE_VALUE && !(ends & BIT(m)))) {
		output_text(p, mark->text, mark->len, tokens);
		return;
	}
	if (p->state == OUTPUT_STATE_VALUE) {
		end_value(p);
		if (m == OUTPUT_VALUE_CLOSE)
			return;
	}
	if (collects(p) && collect(p, mark->text, mark->len, tokens))
		collected = mark->len;
	if (marker_step(p, m) == STEP_ON || p->status)
		return;
	end_list(p, collected);
	/* A marker that ends a broken call has nothing to say any more, unless the call is content: then so is its end. */
	output_marker(p, m, tokens);
}

uint32_t output_call_mask(const struct output *p)
{
	uint32_t calls = BIT(OUTPUT_CALL_OPEN) | BIT(OUTPUT_CALL_CLOSE);

	if (in_string(p))
		return 0;
	switch (p->state) {
	case OUTPUT_STATE_VALUE:
		return calls | BIT(OUTPUT_VALUE_CLOSE) | BIT(OUTPUT_KEY_OPEN);
	case OUTPUT_STATE_OBJECT:
	case OUTPUT_STATE_ARGUMENTS:
	case OUTPUT_STATE_LIST:
		return p->format->calls == OUTPUT_CALLS_MISTRAL ? 0 : calls; /* whose marks begin like an array */
	default:
		return ~(uint32_t)(BIT(OUTPUT_THINK_OPEN) | BIT(OUTPUT_THINK_CLOSE));
	}
}

void output_call_finish(struct output *p, bool stopped)
{
	if (!p->announced) {
		if (p->state < OUTPUT_STATE_OBJECT_END)
			break_off(p, 0);
		return;
	}
	if (!stopped)
		return; /* cut: it must not look complete */
	if (p->state == OUTPUT_STATE_VALUE)
		end_value(p);
	break_off(p, 0);
}
