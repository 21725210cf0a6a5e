/* answer.c: owns the texts that an answer is made of, between the machine that tells them apart (output.h) and the bytes of a
 * response.  Invariant: what is ready never changes any more; nothing is added once the answer has ended. */
#include "api/answer.h"

#include <stdlib.h>
#include <string.h>

void answer_init(struct answer *a, size_t max_bytes)
{
	*a = (struct answer){ 0 };
	stop_init(&a->stop);
	buf_init(&a->thought, max_bytes);
	buf_init(&a->content, max_bytes);
}

void answer_free(struct answer *a)
{
	if (!a)
		return;
	for (unsigned i = 0; i < a->call_count; i++) {
		free(a->calls[i].name);
		buf_free(&a->calls[i].arguments);
	}
	free(a->calls);
	a->calls = NULL;
	a->call_count = 0;
	output_free(&a->output);
	stop_free(&a->stop);
	buf_free(&a->thought);
	buf_free(&a->content);
}

/* ---- the sink --------------------------------------------------------------------------------------------------------- */

static size_t without_blanks(const struct buf *text)
{
	size_t len = text->len;

	while (len && strchr(" \n\r\t", text->data[len - 1]))
		len--;
	return len;
}

/* White space between the content and a call, or at the end of an answer with calls, belongs to nothing. */
static void drop_blanks(struct answer *a)
{
	if (!a->content.data)
		return;
	a->content.len = without_blanks(&a->content);
	a->content.data[a->content.len] = '\0';
}

static enum status take_thought(void *context, const char *bytes, size_t len)
{
	struct answer *a = context;
	enum status    status;

	if (answer_ended(a))
		return STATUS_OK;
	status = buf_append(&a->thought, bytes, len);
	a->thought_ready = without_blanks(&a->thought);
	return status;
}

static enum status end_thought(void *context)
{
	struct answer *a = context;

	if (answer_ended(a) || !a->thought.data)
		return STATUS_OK;
	a->thought.len = a->thought_ready;
	a->thought.data[a->thought.len] = '\0';
	return STATUS_OK;
}

/* Content that a call may follow ends in white space only once something else came. */
static void set_ready(struct answer *a)
{
	a->content_ready = a->output.tools && !a->stop.matched ? without_blanks(&a->content) : a->content.len;
}

static enum status take_content(void *context, const char *bytes, size_t len, uint32_t tokens)
{
	struct answer *a = context;
	enum status    status;

	if (answer_ended(a))
		return STATUS_OK;
	status = stop_feed(&a->stop, bytes, len, tokens, &a->content, &a->keep);
	set_ready(a);
	return status;
}

static enum status take_gap(void *context, uint32_t tokens)
{
	struct answer *a = context;
	enum status    status;

	if (answer_ended(a))
		return STATUS_OK;
	status = stop_gap(&a->stop, tokens, &a->content);
	set_ready(a);
	return status;
}

static enum status take_call(void *context, const char *name, size_t len)
{
	struct answer      *a = context;
	struct answer_call *calls, *added;

	if (answer_ended(a))
		return STATUS_OK;
	calls = realloc(a->calls, (a->call_count + 1) * sizeof *calls);
	if (!calls)
		return STATUS_NOMEM;
	a->calls = calls;
	added = &calls[a->call_count];
	*added = (struct answer_call){ .name = malloc(len + 1), .name_len = len };
	if (!added->name)
		return STATUS_NOMEM;
	memcpy(added->name, name, len);
	added->name[len] = '\0';
	buf_init(&added->arguments, a->content.max);
	a->call_count++;
	return STATUS_OK;
}

static enum status take_arguments(void *context, const char *bytes, size_t len)
{
	struct answer *a = context;

	return answer_ended(a) ? STATUS_OK : buf_append(&a->calls[a->call_count - 1].arguments, bytes, len);
}

static enum status end_call(void *context, uint32_t tokens)
{
	struct answer *a = context;

	if (!answer_ended(a) && a->call_count == a->calls_max) {
		drop_blanks(a);
		a->cut = true;
		a->keep = tokens;
	}
	return STATUS_OK;
}

/* ---- feeding ------------------------------------------------------------------------------------------------------------ */

void answer_begin(struct answer *a, const struct output_format *format, const struct output_tools *tools,
    enum chat_reasoning start, bool parallel)
{
	struct output_sink sink = { .context = a, .thought = take_thought, .thought_end = end_thought, .content = take_content,
		.gap = take_gap, .call = take_call, .arguments = take_arguments, .call_end = end_call };

	a->calls_max = parallel ? ANSWER_CALLS_MAX : 1;
	output_init(&a->output, format, tools, start, &sink);
}

enum status answer_text(struct answer *a, const char *bytes, size_t len, uint32_t tokens)
{
	return answer_ended(a) || len == 0 ? STATUS_OK : output_feed(&a->output, bytes, len, tokens);
}

enum status answer_marker(struct answer *a, enum output_marker marker, uint32_t tokens)
{
	return answer_ended(a) ? STATUS_OK : output_feed_marker(&a->output, marker, tokens);
}

enum status answer_finish(struct answer *a, bool stopped)
{
	enum status status;

	if (answer_ended(a))
		return STATUS_OK;
	status = output_finish(&a->output, stopped);
	if (!status && !answer_ended(a))
		status = stop_finish(&a->stop, &a->content);
	if (a->call_count && !a->stop.matched)
		drop_blanks(a);
	a->content_ready = a->content.len;
	return status;
}

/* ---- streams ------------------------------------------------------------------------------------------------------------ */

void answer_taken(struct answer *a)
{
	buf_consume(&a->thought, a->thought_ready);
	buf_consume(&a->content, a->content_ready);
	a->thought_ready = a->content_ready = 0;
	for (unsigned i = a->first_open; i < a->call_count; i++) {
		a->calls[i].sent = true;
		if (i + 1 < a->call_count)
			buf_free(&a->calls[i].arguments);
		else
			buf_clear(&a->calls[i].arguments);
	}
	a->first_open = a->call_count ? a->call_count - 1 : 0;
}

bool answer_has_news(const struct answer *a)
{
	if (a->thought_ready || a->content_ready)
		return true;
	for (unsigned i = a->first_open; i < a->call_count; i++)
		if (!a->calls[i].sent || a->calls[i].arguments.len)
			return true;
	return false;
}
