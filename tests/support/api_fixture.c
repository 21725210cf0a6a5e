/* api_fixture.c: owns the rules every response obeys, as a client sees them.  Does not know what was asked. */
#include "support/api_fixture.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

enum status api_fixture_load(const char *root, const char *path, struct api_fixture *ret, struct error *error)
{
	struct api_fixture f = { 0 };
	char               name[4096];
	enum status        status;

	snprintf(name, sizeof name, "%s%s", root ? root : path, root ? "/tests/data/tiny.gguf" : "");
	status = gguf_open(name, &f.gguf, error);
	if (!status)
		status = vocab_from_gguf(f.gguf, &f.vocab, error);
	if (!status)
		status = tokenizer_from_gguf(f.gguf, f.vocab, &f.tokenizer, error);
	if (!status)
		status = chat_template_from_gguf(f.gguf, NULL, &f.chat, error);
	if (status) {
		api_fixture_free(&f);
		return status;
	}
	conf_defaults(&f.conf);
	status = output_format_detect(f.chat, f.vocab, f.conf.front_tool_parser, f.conf.front_reasoning_parser, &f.api.output, error);
	if (status) {
		api_fixture_free(&f);
		return status;
	}
	*ret = f;
	ret->api = (struct api){ .conf = &ret->conf, .vocab = f.vocab, .tokenizer = f.tokenizer, .chat = f.chat, .model_name = "tiny",
		.output = f.api.output,
		.max_context = 2048, .created = 1700000000 };
	return STATUS_OK;
}

void api_fixture_free(struct api_fixture *f)
{
	chat_template_free(f->chat);
	tokenizer_free(f->tokenizer);
	vocab_free(f->vocab);
	gguf_close(f->gguf);
	*f = (struct api_fixture){ 0 };
}

void api_response_free(struct api_response *response)
{
	buf_free(&response->content);
	buf_free(&response->reasoning);
	buf_free(&response->calls);
}

/* ---- header lines ------------------------------------------------------------------------------------------------- */

static const char *const header_names[] = { "Status", "Content-Type", "Content-Length", "X-Request-Id", "Cache-Control",
	"Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers",
	"Access-Control-Max-Age", "X-Penstock-Ignored", "X-Accel-Buffering", "WWW-Authenticate", "Allow", "Retry-After" };
enum { HEADER_NAMES = sizeof header_names / sizeof header_names[0] };

/* Checks one line without its CR LF; SEEN marks names. */
static const char *check_header(const char *line, size_t len, bool seen[HEADER_NAMES])
{
	const char *colon = memchr(line, ':', len);

	for (size_t i = 0; i < len; i++)
		if ((unsigned char)line[i] < 0x20 || (unsigned char)line[i] >= 0x7f)
			return "a header line holds other characters than printable ASCII";
	if (!colon || colon + 2 > line + len || colon[1] != ' ')
		return "a header line is not NAME: VALUE";
	for (size_t i = 0; i < HEADER_NAMES; i++) {
		if (strlen(header_names[i]) != (size_t)(colon - line) || memcmp(header_names[i], line, (size_t)(colon - line)))
			continue;
		if (seen[i])
			return "a header line is there twice";
		seen[i] = true;
		return NULL;
	}
	return "a header line has an unknown name";
}

static const char *read_headers(const char *bytes, size_t len, struct api_response *r)
{
	bool        seen[HEADER_NAMES] = { false };
	const char *end = memmem(bytes, len, "\r\n\r\n", 4);

	if (!end)
		return "the header lines do not end";
	r->headers = bytes;
	r->headers_len = (size_t)(end - bytes) + 2;
	r->body = end + 4;
	r->body_len = len - (size_t)(end + 4 - bytes);
	for (const char *line = bytes; line < end + 2;) {
		const char *line_end = memmem(line, (size_t)(end + 2 - line), "\r\n", 2);
		const char *problem = check_header(line, (size_t)(line_end - line), seen);

		if (problem)
			return problem;
		line = line_end + 2;
	}
	if (sscanf(bytes, "Status: %d ", &r->status) != 1)
		return "the first line is not the status";
	return NULL;
}

bool api_response_header(const struct api_response *response, const char *name, char *ret, size_t size)
{
	const char *end = response->headers + response->headers_len;

	for (const char *line = response->headers; line < end;) {
		const char *line_end = memmem(line, (size_t)(end - line), "\r\n", 2);
		size_t      len = strlen(name);

		if (!strncmp(line, name, len) && line[len] == ':') {
			snprintf(ret, size, "%.*s", (int)(line_end - line - (int)len - 2), line + len + 2);
			return true;
		}
		line = line_end + 2;
	}
	return false;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------- */

static const char *read_error(const json_t *root, struct api_response *r)
{
	const json_t *error = json_object_get(root, "error"), *param = json_object_get(error, "param");
	const json_t *message = json_object_get(error, "message"), *code = json_object_get(error, "code");

	if (json_object_size(root) != 1 || json_object_size(error) != 4)
		return "an error is not {error: {message, type, param, code}}";
	if (!json_string_length(message) || !json_string_length(code) || !json_string_length(json_object_get(error, "type")))
		return "an error lacks its message, type or code";
	if (!json_is_null(param) && !json_string_length(param))
		return "an error's param is neither null nor a name";
	r->error = true;
	snprintf(r->message, sizeof r->message, "%s", json_string_value(message));
	snprintf(r->code, sizeof r->code, "%s", json_string_value(code));
	snprintf(r->param, sizeof r->param, "%s", json_is_null(param) ? "" : json_string_value(param));
	return NULL;
}

static const char *read_usage(const json_t *usage, struct api_response *r)
{
	const json_t *details = json_object_get(usage, "completion_tokens_details");

	r->prompt_tokens = json_integer_value(json_object_get(usage, "prompt_tokens"));
	r->completion_tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
	r->usage = true;
	r->reasoning_tokens = details ? json_integer_value(json_object_get(details, "reasoning_tokens")) : -1;
	if (json_object_size(usage) != (details ? 4 : 3) || r->prompt_tokens <= 0 ||
	    json_integer_value(json_object_get(usage, "total_tokens")) != r->prompt_tokens + r->completion_tokens)
		return "usage does not add up";
	return NULL;
}

static const char *check_answer_head(const json_t *root, const char *object)
{
	const char *kind = json_string_value(json_object_get(root, "object"));

	if (!kind || strcmp(kind, object))
		return "an answer has the wrong object";
	if (!json_string_length(json_object_get(root, "id")) || !json_string_length(json_object_get(root, "model")) ||
	    !json_is_integer(json_object_get(root, "created")) || !json_is_array(json_object_get(root, "choices")))
		return "an answer lacks id, model, created or choices";
	return NULL;
}

/* Thought and calls of a message or a delta; a call's index counts up by one. */
static const char *read_extras(const json_t *from, bool delta, struct api_response *r, unsigned *calls)
{
	const json_t *reasoning = json_object_get(from, "reasoning"), *list = json_object_get(from, "tool_calls");

	if (!json_equal((json_t *)(uintptr_t)reasoning, json_object_get(from, "reasoning_content")) && reasoning)
		return "reasoning has not the same text under both names";
	if (reasoning && !json_string_length(reasoning))
		return "a reasoning is no text";
	buf_append(&r->reasoning, reasoning ? json_string_value(reasoning) : "", json_string_length(reasoning));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *call = json_array_get(list, i), *function = json_object_get(call, "function");
		const json_t *id = json_object_get(call, "id"), *arguments = json_object_get(function, "arguments");

		if (!json_is_string(arguments) || (delta && !json_is_integer(json_object_get(call, "index"))))
			return "a call lacks its arguments or its index";
		if (id && (!json_string_length(json_object_get(function, "name")) || !json_is_string(json_object_get(call, "type"))))
			return "a call begins without name or type";
		if (delta && json_integer_value(json_object_get(call, "index")) != (json_int_t)*calls - !id)
			return "the indices of calls do not count up";
		if (id) {
			snprintf(r->call_ids[1], sizeof r->call_ids[1], "%s", json_string_value(id));
			if (*calls == 0)
				snprintf(r->call_ids[0], sizeof r->call_ids[0], "%s", json_string_value(id));
			buf_append_format(&r->calls, "%s%s ", *calls ? "\n" : "", json_string_value(json_object_get(function, "name")));
			++*calls;
		} else if (!delta) {
			return "a call has no id";
		}
		buf_append(&r->calls, json_string_value(arguments), json_string_length(arguments));
	}
	return json_is_array(list) && json_array_size(list) == 0 ? "an empty list of calls" : NULL;
}

static const char *read_whole(const json_t *root, struct api_response *r)
{
	const json_t *choice = json_array_get(json_object_get(root, "choices"), 0), *message = json_object_get(choice, "message");
	const json_t *content = json_object_get(message, "content"), *finish = json_object_get(choice, "finish_reason");
	unsigned      calls = 0;
	const char   *problem = check_answer_head(root, "chat.completion");

	if (!problem)
		problem = read_extras(message, false, r, &calls);
	if (problem)
		return problem;
	if ((!json_is_string(content) && !(json_is_null(content) && calls)) || !json_is_string(finish) ||
	    !json_is_integer(json_object_get(choice, "index")) ||
	    !json_is_null(json_object_get(choice, "logprobs")) || !json_is_null(json_object_get(message, "refusal")) ||
	    strcmp(json_string_value(json_object_get(message, "role")), "assistant"))
		return "a choice has the wrong shape";
	buf_append(&r->content, calls && json_is_null(content) ? "" : json_string_value(content), json_string_length(content));
	snprintf(r->finish_reason, sizeof r->finish_reason, "%s", json_string_value(finish));
	r->done = true;
	return read_usage(json_object_get(root, "usage"), r);
}

/* State of a stream beside *r. */
struct chunks {
	unsigned count, null_usages, calls;
	char     id[64];
};

static const char *read_chunk(const json_t *root, struct api_response *r, struct chunks *chunks)
{
	const json_t *choices = json_object_get(root, "choices"), *choice = json_array_get(choices, 0);
	const json_t *delta = json_object_get(choice, "delta"), *finish = json_object_get(choice, "finish_reason");
	const json_t *role = json_object_get(delta, "role"), *content = json_object_get(delta, "content");
	const json_t *usage = json_object_get(root, "usage");
	const char   *problem = check_answer_head(root, "chat.completion.chunk");

	if (problem)
		return problem;
	if (chunks->count++ == 0)
		snprintf(chunks->id, sizeof chunks->id, "%s", json_string_value(json_object_get(root, "id")));
	else if (strcmp(chunks->id, json_string_value(json_object_get(root, "id"))))
		return "the chunks of a stream differ in their id";
	chunks->null_usages += json_is_null(usage);
	if (json_array_size(choices) == 0) {
		if (!*r->finish_reason || r->usage || chunks->null_usages != chunks->count - 1)
			return "the usage chunk is not the last, or the others lack their null";
		return read_usage(usage, r);
	}
	if (usage && !json_is_null(usage))
		return "a chunk before the last has a usage";
	if (*r->finish_reason)
		return "a chunk follows the finish_reason";
	if (json_array_size(choices) != 1 || !json_is_object(delta) || !finish || !json_is_null(json_object_get(choice, "logprobs")))
		return "a chunk has the wrong shape";
	if ((chunks->count == 1) != json_is_string(role))
		return "the role is not in the first chunk, or in a later one";
	if (json_is_string(finish))
		snprintf(r->finish_reason, sizeof r->finish_reason, "%s", json_string_value(finish));
	else if (!json_is_null(finish))
		return "a finish_reason is neither null nor a string";
	if (content && !json_is_string(content))
		return "a delta's content is no string";
	if (chunks->count > 1 && !json_is_string(finish) && json_string_length(content) == 0 && !json_object_get(delta, "reasoning") &&
	    !json_object_get(delta, "tool_calls"))
		return "a chunk says nothing";
	problem = read_extras(delta, true, r, &chunks->calls);
	if (problem)
		return problem;
	buf_append(&r->content, content ? json_string_value(content) : "", json_string_length(content));
	return NULL;
}

static const char *read_event(const char *event, size_t len, struct api_response *r, struct chunks *chunks)
{
	const char *problem;
	json_t     *root;

	if (r->done || r->error)
		return "an event follows the last one";
	if (event[0] == ':')
		return memchr(event, '\n', len) ? "a comment has two lines" : NULL;
	if (len < 6 || memcmp(event, "data: ", 6) || memchr(event, '\n', len))
		return "an event is not one line of data";
	if (len == 12 && !memcmp(event + 6, "[DONE]", 6)) {
		r->done = true;
		return *r->finish_reason ? NULL : "[DONE] without a finish_reason";
	}
	root = json_loadb(event + 6, len - 6, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	if (!root)
		return "an event's data is not JSON";
	problem = json_object_get(root, "error") ? read_error(root, r) : read_chunk(root, r, chunks);
	json_decref(root);
	return problem;
}

static const char *read_stream(struct api_response *r, bool partial)
{
	struct chunks chunks = { 0 };
	const char   *at = r->body, *end = r->body + r->body_len;

	if (r->body_len == 0)
		return "a stream's header lines left without a body byte";
	while (at < end) {
		const char *event_end = memmem(at, (size_t)(end - at), "\n\n", 2);
		const char *problem;

		if (!event_end)
			return "an event does not end";
		problem = read_event(at, (size_t)(event_end - at), r, &chunks);
		if (problem)
			return problem;
		at = event_end + 2;
	}
	if (!partial && !r->done && !r->error)
		return "a stream ends without [DONE] and without an error";
	return NULL;
}

static const char *read_body(struct api_response *r, bool head)
{
	char        length[32], type[64] = "";
	json_t     *root;
	const char *problem;

	if (!api_response_header(r, "Content-Length", length, sizeof length))
		return r->status == 204 && r->body_len == 0 ? NULL : "a whole response lacks its length";
	if (head)
		return r->body_len == 0 ? NULL : "an answer to HEAD has a body";
	if (strtoull(length, NULL, 10) != r->body_len)
		return "Content-Length is not the length of the body";
	if (r->status >= 400 && r->body_len >= API_ERROR_BODY_MAX)
		return "an error body has 4 KB or more";
	if (!api_response_header(r, "Content-Type", type, sizeof type) || strcmp(type, "application/json"))
		return NULL;
	root = json_loadb(r->body, r->body_len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	if (!root)
		return "a body is not JSON";
	problem = json_object_get(root, "error")     ? read_error(root, r)
	          : r->status >= 400                 ? "an error status without an error body"
	          : json_object_get(root, "choices") ? read_whole(root, r)
	                                             : NULL;
	json_decref(root);
	return problem;
}

const char *api_response_read(const char *bytes, size_t len, bool head, bool partial, struct api_response *ret)
{
	struct api_response r = { 0 };
	char                type[64] = "";
	const char         *problem;

	buf_init(&r.content, API_ANSWER_MAX);
	buf_init(&r.reasoning, API_ANSWER_MAX);
	buf_init(&r.calls, API_ANSWER_MAX);
	problem = read_headers(bytes, len, &r);
	if (!problem && !utf8_valid(bytes, len, NULL))
		problem = "a response is not UTF-8";
	if (!problem) {
		api_response_header(&r, "Content-Type", type, sizeof type);
		r.stream = !strcmp(type, "text/event-stream");
		problem = r.stream ? read_stream(&r, partial) : read_body(&r, head);
	}
	*ret = r;
	return problem;
}
