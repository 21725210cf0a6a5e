/* output.c: owns the way from pieces of text to bytes and markers, and what is thought and content.  Calls are output_call.c's.
 *
 * Invariants: `held` is a proper beginning of a marker that counts in this state, and everything before it was passed on, so that
 * what is said depends on the bytes alone and not on where they were cut; every byte is passed on once, or dropped as the
 * header says; nothing is allocated for a token (buffers grow and are kept). */
#include "api/output_parts.h"

#include <string.h>

#define BIT(m) (UINT32_C(1) << (m))
enum { THINK_MARKS = 1 << OUTPUT_THINK_OPEN | 1 << OUTPUT_THINK_CLOSE };

void output_init(struct output *output, const struct output_format *format, const struct output_tools *tools,
    enum chat_reasoning start, const struct output_sink *sink)
{
	*output = (struct output){ .format = format, .tools = format->calls == OUTPUT_CALLS_NONE ? NULL : tools, .sink = *sink,
		.line_start = true };
	for (int m = 0; m < OUTPUT_MARKER_COUNT; m++)
		if (format->marks[m].text && m != OUTPUT_TURN)
			output->spelled |= BIT(m);
	output->state = OUTPUT_STATE_CONTENT;
	if (format->thought != OUTPUT_THOUGHT_NONE) {
		output->state = start == CHAT_REASONING_OPEN ? OUTPUT_STATE_THOUGHT :
		    start == CHAT_REASONING_CLOSED           ? OUTPUT_STATE_CONTENT :
		                                               OUTPUT_STATE_START;
		output->trim = start == CHAT_REASONING_CLOSED;
	}
	buf_init(&output->raw, OUTPUT_RAW_MAX);
	buf_init(&output->marks, OUTPUT_RAW_MAX * sizeof(struct output_raw_mark));
	buf_init(&output->arguments, OUTPUT_RAW_MAX * 2);
	buf_init(&output->value, OUTPUT_RAW_MAX);
}

void output_free(struct output *output)
{
	if (!output)
		return;
	buf_free(&output->raw);
	buf_free(&output->marks);
	buf_free(&output->arguments);
	buf_free(&output->value);
}

bool output_thinks(const struct output *output) { return output->state == OUTPUT_STATE_THOUGHT; }

void output_fail(struct output *p, enum status status)
{
	if (!p->status)
		p->status = status;
}

/* ---- thought and content ------------------------------------------------------------------------------------------------ */

static size_t blanks(const char *bytes, size_t len)
{
	size_t n = 0;

	while (n < len && output_blank(bytes[n]))
		n++;
	return n;
}

static void thought(struct output *p, const char *bytes, size_t len, uint32_t tokens)
{
	if (tokens != p->thought_last) {
		p->thought_last = tokens;
		p->thought_tokens++;
	}
	if (!p->thought_begun) {
		size_t skip = blanks(bytes, len);

		bytes += skip;
		len -= skip;
		p->thought_begun = len > 0;
		if (len && p->thought_said) /* thoughts of their own are lines of their own */
			output_fail(p, p->sink.thought(p->sink.context, "\n", 1));
		p->thought_said = p->thought_said || len > 0;
	}
	if (len)
		output_fail(p, p->sink.thought(p->sink.context, bytes, len));
}

static void begin_thought(struct output *p)
{
	buf_clear(&p->raw);
	buf_clear(&p->marks);
	p->thought_begun = false;
	p->state = OUTPUT_STATE_THOUGHT;
}

static void end_thought(struct output *p, uint32_t tokens)
{
	p->state = OUTPUT_STATE_CONTENT;
	p->trim = p->line_start = true;
	output_fail(p, p->sink.thought_end(p->sink.context));
	output_fail(p, p->sink.gap(p->sink.context, tokens));
}

void output_content(struct output *p, const char *bytes, size_t len, uint32_t tokens)
{
	size_t skip = p->content_begun ? 0 : blanks(bytes, len);

	if (len == 0)
		return;
	p->line_start = bytes[len - 1] == '\n';
	p->content_begun = p->content_begun || skip < len;
	if (p->trim && skip) {
		output_fail(p, p->sink.gap(p->sink.context, tokens));
		bytes += skip;
		len -= skip;
	}
	if (len && !p->status)
		output_fail(p, p->sink.content(p->sink.context, bytes, len, tokens));
}

/* Content, or the beginning of a call that no marker announces.  Returns the bytes taken, perhaps none. */
static size_t content_text(struct output *p, const char *bytes, size_t len, uint32_t tokens)
{
	const char *newline;

	if (p->tools && p->format->calls == OUTPUT_CALLS_LLAMA3 && !p->content_begun) {
		size_t skip = blanks(bytes, len);

		if (skip < len && bytes[skip] == '{') {
			output_content(p, bytes, skip, tokens);
			output_call_begin_bare(p, OUTPUT_STATE_OBJECT);
			return skip;
		}
	}
	if (p->tools && p->format->calls == OUTPUT_CALLS_GLM4) {
		if (p->line_start && output_tools_begin(p->tools, bytes, 1)) {
			output_call_begin_bare(p, OUTPUT_STATE_LINE);
			return 0;
		}
		newline = memchr(bytes, '\n', len);
		len = newline ? (size_t)(newline - bytes) + 1 : len;
	}
	output_content(p, bytes, len, tokens);
	return len;
}

/* White space before the first word: whether it is dropped depends on what the word is. */
static size_t start_text(struct output *p, const char *bytes, size_t len, uint32_t tokens)
{
	size_t skip = blanks(bytes, len);

	if (skip) {
		output_fail(p, buf_append(&p->raw, bytes, skip));
		return skip;
	}
	p->state = OUTPUT_STATE_CONTENT;
	output_content(p, p->raw.data, p->raw.len, tokens);
	buf_clear(&p->raw);
	return 0;
}

void output_text(struct output *p, const char *bytes, size_t len, uint32_t tokens)
{
	for (size_t at = 0; at < len && !p->status;) {
		switch (p->state) {
		case OUTPUT_STATE_START:
			at += start_text(p, bytes + at, len - at, tokens);
			break;
		case OUTPUT_STATE_THOUGHT:
			thought(p, bytes + at, len - at, tokens);
			return;
		case OUTPUT_STATE_CONTENT:
			at += content_text(p, bytes + at, len - at, tokens);
			break;
		default:
			at += output_call_text(p, bytes + at, len - at, tokens);
		}
	}
}

/* ---- markers -------------------------------------------------------------------------------------------------------------- */

void output_marker(struct output *p, enum output_marker m, uint32_t tokens)
{
	const struct output_mark *mark = &p->format->marks[m];

	switch (p->state) {
	case OUTPUT_STATE_THOUGHT:
		if (m == OUTPUT_THINK_CLOSE) {
			end_thought(p, tokens);
		} else if (m == OUTPUT_THINK_OPEN && !p->thought_begun) {
			break; /* the prompt had opened it already */
		} else if (output_call_begins(p, m)) { /* only as a token: a model that forgot to close its thought */
			end_thought(p, tokens);
			output_call_begin(p, m, tokens);
		} else {
			thought(p, mark->text, mark->len, tokens);
		}
		break;
	case OUTPUT_STATE_START:
	case OUTPUT_STATE_CONTENT:
		if (m == OUTPUT_THINK_OPEN) {
			begin_thought(p);
		} else if (m == OUTPUT_THINK_CLOSE) {
			buf_clear(&p->raw); /* one too many: nobody wants to see it */
			p->state = OUTPUT_STATE_CONTENT;
			p->trim = true;
		} else if (output_call_begins(p, m)) {
			output_call_begin(p, m, tokens);
		} else if (m == OUTPUT_TURN) {
			p->line_start = true;
		} else {
			output_text(p, mark->text, mark->len, tokens);
		}
		break;
	default:
		output_call_marker(p, m, tokens);
	}
}

/* Markers that count when they are spelled, as things are. */
static uint32_t spelled_here(const struct output *p)
{
	uint32_t calls = p->tools ? BIT(OUTPUT_CALL_OPEN) | BIT(OUTPUT_CALLS_OPEN) : 0;

	switch (p->state) {
	case OUTPUT_STATE_START:
		return p->spelled & (BIT(OUTPUT_THINK_OPEN) | calls);
	case OUTPUT_STATE_THOUGHT:
		return p->spelled & (BIT(OUTPUT_THINK_CLOSE) | (p->thought_begun ? 0 : BIT(OUTPUT_THINK_OPEN)));
	case OUTPUT_STATE_CONTENT:
		return p->spelled & calls;
	default:
		return p->spelled & output_call_mask(p);
	}
}

/* Is what is held a marker of MASK (returned), the beginning of one (*ret_partial), or neither? */
static enum output_marker held_marker(const struct output *p, uint32_t mask, bool *ret_partial)
{
	*ret_partial = false;
	for (int m = 0; m < OUTPUT_MARKER_COUNT; m++) {
		const struct output_mark *mark = &p->format->marks[m];

		if (!(mask & BIT(m)) || mark->len < p->held_len || memcmp(mark->text, p->held, p->held_len))
			continue;
		if (mark->len == p->held_len)
			return (enum output_marker)m;
		*ret_partial = true;
	}
	return OUTPUT_MARKER_COUNT;
}

/* Passes on the first of the held bytes: it begins no marker. */
static void release_one(struct output *p)
{
	char     c = p->held[0];
	uint32_t tokens = p->held_tokens[0];

	p->held_len--;
	memmove(p->held, p->held + 1, p->held_len);
	memmove(p->held_tokens, p->held_tokens + 1, p->held_len * sizeof *p->held_tokens);
	output_text(p, &c, 1, tokens);
}

static void settle(struct output *p)
{
	while (p->held_len && !p->status) {
		bool               partial;
		uint32_t           tokens = p->held_tokens[p->held_len - 1];
		enum output_marker m = held_marker(p, spelled_here(p), &partial);

		if (m != OUTPUT_MARKER_COUNT) {
			p->held_len = 0;
			output_marker(p, m, tokens);
		} else if (partial) {
			return;
		} else {
			release_one(p);
		}
	}
}

/* Bytes before the first one that a marker of this state begins with. */
static size_t plain_run(const struct output *p, const char *bytes, size_t len)
{
	uint32_t    mask = spelled_here(p);
	const char *found;
	char        seen = '\0';

	for (int m = 0; mask >> m; m++) {
		if (!(mask >> m & 1) || p->format->marks[m].text[0] == seen)
			continue;
		seen = p->format->marks[m].text[0];
		found = memchr(bytes, seen, len);
		len = found ? (size_t)(found - bytes) : len;
	}
	return len;
}

enum status output_feed(struct output *p, const char *bytes, size_t len, uint32_t tokens)
{
	p->tokens = tokens;
	for (size_t at = 0; at < len && !p->status;) {
		size_t run = 0;

		if (p->held_len == 0) {
			/* Calls change their state, and with it what counts as a marker, within a run. */
			size_t look = p->state > OUTPUT_STATE_CONTENT && p->state != OUTPUT_STATE_VALUE ? 1 : len - at;

			run = plain_run(p, bytes + at, look);
		}
		if (run && p->state == OUTPUT_STATE_CONTENT) {
			at += content_text(p, bytes + at, run, tokens);
		} else if (run && p->state == OUTPUT_STATE_START) {
			at += start_text(p, bytes + at, run, tokens);
		} else if (run && p->state > OUTPUT_STATE_CONTENT) {
			at += output_call_text(p, bytes + at, p->state == OUTPUT_STATE_VALUE ? run : len - at, tokens);
		} else if (run) {
			thought(p, bytes + at, run, tokens);
			at += run;
		} else {
			p->held[p->held_len] = bytes[at++];
			p->held_tokens[p->held_len++] = tokens;
			settle(p);
		}
	}
	return p->status;
}

enum status output_feed_marker(struct output *p, enum output_marker m, uint32_t tokens)
{
	while (p->held_len && !p->status)
		release_one(p);
	p->tokens = tokens;
	p->spelled &= m <= OUTPUT_THINK_CLOSE ? ~(uint32_t)THINK_MARKS : (uint32_t)THINK_MARKS;
	if (!p->status)
		output_marker(p, m, tokens);
	return p->status;
}

enum status output_finish(struct output *p, bool stopped)
{
	while (p->held_len && !p->status)
		release_one(p);
	if (p->status)
		return p->status;
	if (p->state == OUTPUT_STATE_START)
		output_content(p, p->raw.data, p->raw.len, p->tokens);
	else if (p->state == OUTPUT_STATE_THOUGHT)
		output_fail(p, p->sink.thought_end(p->sink.context));
	else if (p->state > OUTPUT_STATE_CONTENT)
		output_call_finish(p, stopped);
	if (p->state <= OUTPUT_STATE_CONTENT || stopped)
		p->state = OUTPUT_STATE_CONTENT;
	return p->status;
}
