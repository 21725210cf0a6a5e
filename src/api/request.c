/* request.c: owns the way from body bytes to a job: fields, rules across fields, messages, prompt.  Does not write responses.
 * Invariant: a job exists only when every field was checked, and its prompt and answer fit the context. */
#include "api/call.h"
#include "api/json_text.h"

#include "base/checked.h"

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 64 }; /* of a message's name */

static bool equals(const json_t *string, const char *text)
{
	return json_string_length(string) == strlen(text) && !memcmp(json_string_value(string), text, strlen(text));
}

static bool present(const json_t *value) { return value && !json_is_null(value); }

/* Errors inside messages: PATH is messages[INDEX] and what follows it, FACT a sentence about it. */
static enum status __attribute__((format(printf, 5, 6)))
message_error(struct error *error, enum status status, size_t index, const char *rest, const char *format, ...)
{
	char    path[ERROR_PARAM_MAX], fact[ERROR_MESSAGE_MAX - ERROR_PARAM_MAX];
	va_list args;

	snprintf(path, sizeof path, "messages[%zu]%s", index, rest);
	va_start(args, format);
	vsnprintf(fact, sizeof fact, format, args);
	va_end(args);
	return error_set_param(error, status, path, "%s%s", path, fact);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static enum status parse_role(const json_t *role, size_t index, const char **ret, struct error *error)
{
	if (!role)
		return message_error(error, STATUS_INVALID, index, ".role", ": this field is required");
	if (!json_is_string(role))
		return message_error(error, STATUS_INVALID, index, ".role", ": a string is expected, not %s", json_text_type(role));
	if (equals(role, "system") || equals(role, "developer")) /* the newer name of the same thing */
		*ret = "system";
	else if (equals(role, "user"))
		*ret = "user";
	else if (equals(role, "assistant"))
		*ret = "assistant";
	else if (equals(role, "tool") || equals(role, "function"))
		return message_error(error, STATUS_UNSUPPORTED, index, ".role", " = %s: tools are not supported",
		    json_string_value(role));
	else
		return message_error(error, STATUS_INVALID, index, ".role", " = %.80s: allowed are system, developer, user, assistant",
		    json_string_value(role));
	return STATUS_OK;
}

/* One {type: "text", text} of an array of parts. */
static enum status check_part(const json_t *part, size_t index, size_t at, struct error *error)
{
	const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
	char          rest[40];

	snprintf(rest, sizeof rest, ".content[%zu]", at);
	if (!json_is_object(part))
		return message_error(error, STATUS_INVALID, index, rest, ": an object is expected, not %s", json_text_type(part));
	if (!json_is_string(type))
		return message_error(error, STATUS_INVALID, index, rest, ": a part needs a type, which is a string");
	if (!equals(type, "text"))
		return message_error(error, STATUS_UNSUPPORTED, index, rest, ": type %.80s is not supported, only text is",
		    json_string_value(type));
	if (!json_is_string(text))
		return message_error(error, STATUS_INVALID, index, rest, ": a text part needs a text, which is a string");
	return STATUS_OK;
}

/* Joins the texts of an array of parts, with nothing between them, as chat templates do. */
static enum status join_parts(const json_t *parts, size_t index, char **ret, size_t *ret_len, struct error *error)
{
	size_t count = json_array_size(parts), len = 0, done = 0;
	char  *joined;

	if (count == 0 || count > API_PARTS_MAX)
		return message_error(error, STATUS_INVALID, index, ".content", ": %zu parts, 1…%d are allowed", count, API_PARTS_MAX);
	for (size_t i = 0; i < count; i++) {
		enum status status = check_part(json_array_get(parts, i), index, i, error);

		if (status)
			return status;
		if (!checked_add_size(len, json_string_length(json_object_get(json_array_get(parts, i), "text")), &len))
			return message_error(error, STATUS_LIMIT, index, ".content", ": too long");
	}
	joined = malloc(len + 1);
	if (!joined)
		return error_set(error, STATUS_NOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		const json_t *text = json_object_get(json_array_get(parts, i), "text");

		memcpy(joined + done, json_string_value(text), json_string_length(text));
		done += json_string_length(text);
	}
	*ret = joined;
	*ret_len = len;
	return STATUS_OK;
}

static enum status parse_message(const json_t *message, size_t index, struct chat_message *target, char **joined,
    struct error *error)
{
	const json_t *content = json_object_get(message, "content"), *name = json_object_get(message, "name");
	const char   *calls[] = { "tool_calls", "function_call" };
	enum status   status;

	if (!json_is_object(message))
		return message_error(error, STATUS_INVALID, index, "", ": an object is expected, not %s", json_text_type(message));
	status = parse_role(json_object_get(message, "role"), index, &target->role, error);
	if (status)
		return status;
	if (present(name) && (!json_is_string(name) || json_string_length(name) > NAME_MAX_BYTES))
		return message_error(error, STATUS_INVALID, index, ".name", ": a string of at most %d bytes is expected",
		    NAME_MAX_BYTES);
	for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
		const json_t *value = json_object_get(message, calls[i]);

		if (present(value) && !(json_is_array(value) && json_array_size(value) == 0))
			return message_error(error, STATUS_UNSUPPORTED, index, "", ".%s: tools are not supported", calls[i]);
	}
	if (json_is_string(content)) {
		target->content = json_string_value(content);
		target->content_len = json_string_length(content);
		return STATUS_OK;
	}
	if (json_is_array(content)) {
		status = join_parts(content, index, joined, &target->content_len, error);
		target->content = *joined;
		return status;
	}
	if (present(content))
		return message_error(error, STATUS_INVALID, index, ".content", ": a string or an array of parts is expected, not %s",
		    json_text_type(content));
	if (strcmp(target->role, "assistant")) /* an assistant's turn without text is a turn all the same */
		return message_error(error, STATUS_INVALID, index, ".content", ": this field is required");
	target->content = "";
	target->content_len = 0;
	return STATUS_OK;
}

static enum status parse_messages(struct api_call *call, struct error *error)
{
	const json_t *messages = call->params.messages;
	size_t        count = json_array_size(messages);

	if (!json_is_array(messages))
		return error_set_param(error, STATUS_INVALID, "messages", "messages: an array is expected, not %s",
		    json_text_type(messages));
	if (count == 0 || count > API_MESSAGES_MAX)
		return error_set_param(error, STATUS_INVALID, "messages", "messages: %zu messages, 1…%d are allowed", count,
		    API_MESSAGES_MAX);
	call->messages = calloc(count, sizeof *call->messages);
	call->joined = calloc(count, sizeof *call->joined);
	if (!call->messages || !call->joined)
		return error_set(error, STATUS_NOMEM, "out of memory");
	call->message_count = count;
	for (size_t i = 0; i < count; i++) {
		enum status status =
		    parse_message(json_array_get(messages, i), i, &call->messages[i], &call->joined[i], error);

		if (status)
			return status;
	}
	return STATUS_OK;
}

/* ---- fields ------------------------------------------------------------------------------------------------------- */

static enum status check_model(const struct api_call *call, struct error *error)
{
	const struct param_text *model = &call->params.model;
	const char              *served = call->api->model_name;

	if (model->len == strlen(served) && !memcmp(model->bytes, served, model->len))
		return STATUS_OK;
	return error_set_param(error, STATUS_MODEL_NOT_FOUND, "model", "model = %.100s: no such model; served: %s", model->bytes,
	    served);
}

static enum status add_stop(struct api_call *call, const json_t *string, struct error *error)
{
	if (!json_is_string(string))
		return error_set_param(error, STATUS_INVALID, "stop", "stop: strings are expected, not %s", json_text_type(string));
	switch (stop_add(&call->stop, json_string_value(string), json_string_length(string))) {
	case STATUS_OK:
		return STATUS_OK;
	case STATUS_INVALID:
		return error_set_param(error, STATUS_INVALID, "stop", "stop: a string of %zu bytes, 1…%d are allowed",
		    json_string_length(string), STOP_BYTES_MAX);
	case STATUS_LIMIT:
		return error_set_param(error, STATUS_INVALID, "stop", "stop: more than %d strings", STOP_STRINGS_MAX);
	default:
		return error_set(error, STATUS_NOMEM, "out of memory");
	}
}

static enum status parse_stop(struct api_call *call, struct error *error)
{
	const json_t *stop = call->params.stop;
	enum status   status = STATUS_OK;

	if (!stop)
		return STATUS_OK;
	if (json_is_string(stop))
		return add_stop(call, stop, error);
	if (!json_is_array(stop))
		return error_set_param(error, STATUS_INVALID, "stop", "stop: a string or an array of strings is expected, not %s",
		    json_text_type(stop));
	for (size_t i = 0; i < json_array_size(stop) && !status; i++)
		status = add_stop(call, json_array_get(stop, i), error);
	return status;
}

static enum status parse_stream_options(struct api_call *call, struct error *error)
{
	const json_t *options = call->params.stream_options, *usage = json_object_get(options, "include_usage");

	if (!options)
		return STATUS_OK;
	if (!json_is_object(options))
		return error_set_param(error, STATUS_INVALID, "stream_options", "stream_options: an object is expected, not %s",
		    json_text_type(options));
	if (!call->params.stream.value)
		return error_set_param(error, STATUS_INVALID, "stream_options", "stream_options: allowed only with stream = true");
	if (present(usage) && !json_is_boolean(usage))
		return error_set_param(error, STATUS_INVALID, "stream_options.include_usage",
		    "stream_options.include_usage: a boolean is expected, not %s", json_text_type(usage));
	call->include_usage = json_is_true(usage);
	return STATUS_OK;
}

/* The sampler's (0, 1]: a top_p of zero, or one that a float cannot hold, keeps the most likely token alone. */
static float positive(double value) { return (float)value >= FLT_MIN ? (float)value : FLT_MIN; }

static void fill_job(struct api_call *call)
{
	const struct params    *p = &call->params;
	const struct param_int *limit = p->max_completion_tokens.set ? &p->max_completion_tokens : &p->max_tokens;

	call->job = (struct api_job){
		.max_tokens = limit->set ? (uint32_t)limit->value : 0,
		.choices = (uint32_t)p->n.value,
		.stream = p->stream.value,
		.ignore_eos = p->ignore_eos.value,
		.key = call->key,
		.sampling = {
			.temperature = (float)p->temperature.value,
			.top_p = positive(p->top_p.value),
			.min_p = (float)p->min_p.value,
			.top_k = p->top_k.value > 0 && p->top_k.value < vocab_size(call->api->vocab) ? (int32_t)p->top_k.value : 0,
			.seed = p->seed.set ? (uint64_t)p->seed.value : call->seed,
		},
	};
}

enum status api_call_parse(struct api_call *call, const char *body, size_t len, struct error *error)
{
	const struct conf *conf = call->api->conf;
	enum status        status;

	if (!api_call_wants_body(call) || call->root || call->job.choices)
		return error_set(error, STATUS_INTERNAL, "a body was parsed where none is expected");
	if (len > (uint64_t)conf->front_max_body)
		return error_set(error, STATUS_TOO_LARGE, "the body has %zu bytes, at most %" PRId64 " are allowed", len,
		    conf->front_max_body);
	if (call->content_length >= 0 && (uint64_t)call->content_length != len)
		return error_set(error, STATUS_INVALID, "the body has %zu bytes, Content-Length says %" PRId64, len,
		    call->content_length);
	status = json_text_load(body, len, (size_t)conf->front_max_json_depth, &call->root, error);
	if (!status)
		status = params_parse(call->root, PARAMS_CHAT, conf->front_strict_fields, &call->params, &call->ignored, error);
	if (!status)
		status = check_model(call, error);
	if (!status)
		status = parse_stop(call, error);
	if (!status)
		status = parse_stream_options(call, error);
	if (!status)
		status = parse_messages(call, error);
	if (!status)
		fill_job(call);
	return status;
}

/* ---- prompt ------------------------------------------------------------------------------------------------------- */

void call_release_request(struct api_call *call)
{
	for (size_t i = 0; i < call->message_count; i++)
		free(call->joined[i]);
	free(call->joined);
	free(call->messages);
	json_decref(call->root);
	call->joined = NULL;
	call->messages = NULL;
	call->message_count = 0;
	call->root = NULL;
	call->params.messages = call->params.stop = call->params.stream_options = NULL;
	call->params.model = call->params.user = call->params.safety_identifier = call->params.prompt_cache_key =
	    (struct param_text){ 0 };
}

/* At least one token of answer must fit; an explicit max_tokens must fit whole, as the reference API has it. */
static enum status check_context(struct api_call *call, struct error *error)
{
	uint64_t context = call->max_context, prompt = call->prompt.count;

	if (prompt == 0)
		return error_set_param(error, STATUS_INVALID, "messages", "messages: the prompt has no tokens");
	if (context == 0)
		return STATUS_OK;
	if (prompt >= context)
		return error_set_param(error, STATUS_CONTEXT_LENGTH, "messages",
		    "the prompt has %" PRIu64 " tokens, the context of this model holds %" PRIu64 " for prompt and answer", prompt,
		    context);
	if (call->job.max_tokens == 0)
		call->job.max_tokens = (uint32_t)(context - prompt);
	if (prompt + call->job.max_tokens > context)
		return error_set_param(error, STATUS_CONTEXT_LENGTH,
		    call->params.max_completion_tokens.set ? "max_completion_tokens" : "max_tokens",
		    "the prompt has %" PRIu64 " tokens and %" PRIu32 " are asked for, together %" PRIu64
		    "; the context of this model holds %" PRIu64,
		    prompt, call->job.max_tokens, prompt + call->job.max_tokens, context);
	return STATUS_OK;
}

enum status api_call_tokenize(struct api_call *call, struct error *error)
{
	struct chat_prompt prompt = { 0 };
	struct error       why = { 0 };
	enum status        status;

	if (!call->messages)
		return error_set(error, STATUS_INTERNAL, "there is nothing to tokenise");
	if (!call->api->chat)
		return error_set(error, STATUS_UNSUPPORTED, "the model %s has no chat template", call->api->model_name);
	status = chat_render(call->api->chat, call->messages, call->message_count, &prompt, &why);
	if (!status)
		status = tokenizer_encode(call->api->tokenizer, prompt.spans, prompt.span_count, WIRE_PROMPT_TOKENS_MAX, &call->prompt,
		    &why);
	chat_prompt_free(&prompt);
	if (status == STATUS_LIMIT) /* no context is that long: clients know what to do about this code */
		return error_set_param(error, STATUS_CONTEXT_LENGTH, "messages",
		    "the prompt has more than %d tokens, the context of this model holds %" PRIu32 " for prompt and answer",
		    WIRE_PROMPT_TOKENS_MAX, call->max_context);
	if (status)
		return error_set_param(error, status, *why.param ? why.param : "messages", "%s",
		    *why.message ? why.message : status_text(status));
	status = check_context(call, error);
	if (status)
		return status;
	call_release_request(call);
	call->job.prompt = call->prompt.ids;
	call->job.prompt_tokens = (uint32_t)call->prompt.count;
	return STATUS_OK;
}
