/* request.c: owns the way from body bytes to a job: fields, rules across fields, messages, prompt.  Does not write responses.
 * Invariant: a job exists only when every field was checked, and its prompt and answer fit the context. */
#include "api/call.h"
#include "api/json_text.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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

/* Everything that exists once per answer. */
static enum status make_choices(struct api_call *call, struct error *error)
{
	uint32_t count = (uint32_t)call->params.n.value;
	int64_t  most = call->api->conf->batcher_max_running;

	if (count > most)
		return error_set_param(error, STATUS_INVALID, "n",
		    "n = %" PRIu32 ": this server computes at most %" PRId64 " answers at a time", count, most);
	call->choices = calloc(count, sizeof *call->choices);
	if (!call->choices)
		return error_set(error, STATUS_NOMEM, "out of memory");
	call->job.choices = count;
	for (uint32_t i = 0; i < count; i++) {
		detokenizer_init(&call->choices[i].detokenizer, call->api->vocab);
		answer_init(&call->choices[i].answer, API_ANSWER_MAX / count);
		logprobs_init(&call->choices[i].logprobs, API_LOGPROBS_MAX / count);
	}
	return STATUS_OK;
}

static enum status add_stop(struct api_call *call, const json_t *string, struct error *error)
{
	enum status status = STATUS_OK;

	if (!json_is_string(string))
		return error_set_param(error, STATUS_INVALID, "stop", "stop: strings are expected, not %s", json_text_type(string));
	for (uint32_t i = 0; i < call->job.choices && !status; i++)
		status = stop_add(&call->choices[i].answer.stop, json_string_value(string), json_string_length(string));
	switch (status) {
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

	for (uint32_t i = 0; i < call->job.choices; i++)
		call->choices[i].answer.stop.include = call->params.include_stop_str_in_output.value;
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
	if (json_text_present(usage) && !json_is_boolean(usage))
		return error_set_param(error, STATUS_INVALID, "stream_options.include_usage",
		    "stream_options.include_usage: a boolean is expected, not %s", json_text_type(usage));
	call->include_usage = json_is_true(usage);
	return STATUS_OK;
}

/* Without the field the key's own class; with it anything up to the key's ceiling. */
static enum status check_priority(const struct api_call *call, struct error *error)
{
	const struct param_int *priority = &call->params.priority;

	if (!priority->set || priority->value >= call->limits.ceiling)
		return STATUS_OK;
	return error_set_param(error, STATUS_FORBIDDEN, "priority",
	    "priority = %" PRId64 " is more important than this key may ask for; the lowest number it may use is %" PRId64,
	    priority->value, call->limits.ceiling);
}

/* Whoever may write control tokens may end turns and open others: the operator says whether clients are trusted that far. */
static enum status check_special(const struct api_call *call, struct error *error)
{
	if (!call->params.allow_special_in_content.value || call->api->conf->front_allow_special_in_content)
		return STATUS_OK;
	return error_set_param(error, STATUS_UNSUPPORTED, "allow_special_in_content",
	    "allow_special_in_content = true: not allowed by this server (front.allow_special_in_content is off)");
}

/* The earlier one of field and header: whoever stands between client and server may shorten, not lengthen. */
static uint64_t timeout_ns(const struct api_call *call)
{
	double seconds = call->params.timeout.set ? call->params.timeout.value : 0;

	if (call->timeout_s > 0 && (seconds == 0 || call->timeout_s < seconds))
		seconds = call->timeout_s;
	return (uint64_t)(seconds * 1e9);
}

static void fill_job(struct api_call *call)
{
	const struct params    *p = &call->params;
	const struct param_int *limit = p->max_completion_tokens.set ? &p->max_completion_tokens : &p->max_tokens;

	call->hide_reasoning = !p->include_reasoning.value;
	call->job = (struct api_job){
		.max_tokens = limit->set ? (uint32_t)limit->value : 0,
		.choices = call->job.choices,
		.stream = p->stream.value,
		.ignore_eos = p->ignore_eos.value,
		.priority = (int32_t)(p->priority.set ? p->priority.value : call->limits.priority),
		.timeout_ns = timeout_ns(call),
		.key = call->key,
		.key_requests = (uint32_t)call->limits.max_requests,
		.key_tokens = (uint32_t)call->limits.tokens_per_minute,
	};
	call_fill_sampling(call, &call->job);
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
		status = check_priority(call, error);
	if (!status)
		status = check_special(call, error);
	if (!status)
		status = make_choices(call, error);
	if (!status)
		status = parse_stop(call, error);
	if (!status)
		status = call_parse_sampling(call, error);
	if (!status)
		status = parse_stream_options(call, error);
	if (!status)
		status = messages_read(call->api->chat, &call->params, (size_t)conf->front_max_json_depth, conf->front_strict_fields,
		    &call->conversation, &call->ignored, error);
	if (!status && call->conversation.tools && output_tools_create(call->conversation.tools, &call->tools))
		status = error_set(error, STATUS_NOMEM, "out of memory");
	if (!status)
		fill_job(call);
	return status;
}

/* ---- prompt ------------------------------------------------------------------------------------------------------- */

void call_release_request(struct api_call *call)
{
	messages_free(&call->conversation);
	json_decref(call->root);
	call->root = NULL;
	params_forget(&call->params);
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

/* The ids that MARK is made of. */
static enum status mark_ids(const struct api_call *call, enum output_marker mark, struct token_list *ret, struct error *error)
{
	const struct output_mark *m = &call->api->output.marks[mark];
	const struct text_span    span = { .bytes = m->text, .len = m->len, .literal = true };

	return tokenizer_encode(call->api->tokenizer, &span, 1, WIRE_THINK_IDS_MAX, ret, error);
}

/* A prompt that closed the thought leaves nothing to be bounded. */
static enum status set_think_budget(struct api_call *call, struct error *error)
{
	const struct param_int *budget = &call->params.thinking_token_budget;
	enum status             status = STATUS_OK;

	if (!budget->set || call->reasoning == CHAT_REASONING_CLOSED)
		return STATUS_OK;
	if (call->api->output.thought == OUTPUT_THOUGHT_NONE)
		return error_set_param(error, STATUS_UNSUPPORTED, "thinking_token_budget",
		    "thinking_token_budget: this model does not mark its reasoning");
	if (call->reasoning == CHAT_REASONING_NONE)
		status = mark_ids(call, OUTPUT_THINK_OPEN, &call->think_open, error);
	if (!status)
		status = mark_ids(call, OUTPUT_THINK_CLOSE, &call->think_close, error);
	if (status)
		return status;
	call->job.think_budget = (uint32_t)budget->value;
	call->job.think_open = call->think_open.ids;
	call->job.think_open_count = (uint32_t)call->think_open.count;
	call->job.think_close = call->think_close.ids;
	call->job.think_close_count = (uint32_t)call->think_close.count;
	return STATUS_OK;
}

/* The prompt is known, and with it where the answers begin. */
static void begin_answers(struct api_call *call)
{
	for (uint32_t i = 0; i < call->job.choices; i++)
		answer_begin(&call->choices[i].answer, &call->api->output, call->tools, call->reasoning,
		    call->params.parallel_tool_calls.value);
}

enum status api_call_tokenize(struct api_call *call, struct error *error)
{
	struct chat_prompt prompt = { 0 };
	struct error       why = { 0 };
	enum status        status;

	if (!call->conversation.messages)
		return error_set(error, STATUS_INTERNAL, "there is nothing to tokenise");
	if (!call->api->chat)
		return error_set(error, STATUS_UNSUPPORTED, "the model %s has no chat template", call->api->model_name);
	status = chat_render(call->api->chat, &call->conversation, &prompt, &why);
	if (status) /* what a template rejects, or cannot do, is a fault of the request */
		return error_set_param(error, status, *why.param ? why.param : "messages", "%s", why.message);
	for (size_t i = 0; i < prompt.span_count && call->params.allow_special_in_content.value; i++)
		prompt.spans[i].literal = true;
	status = tokenizer_encode(call->api->tokenizer, prompt.spans, prompt.span_count, WIRE_PROMPT_TOKENS_MAX, &call->prompt,
	    &why);
	call->reasoning = prompt.reasoning;
	chat_prompt_free(&prompt);
	if (status == STATUS_LIMIT) /* no context is that long: clients know what to do about this code */
		return error_set_param(error, STATUS_CONTEXT_LENGTH, "messages",
		    "the prompt has more than %d tokens, the context of this model holds %" PRIu32 " for prompt and answer",
		    WIRE_PROMPT_TOKENS_MAX, call->max_context);
	if (status)
		return error_set_param(error, status, *why.param ? why.param : "messages", "%s",
		    *why.message ? why.message : status_text(status));
	status = check_context(call, error);
	if (!status)
		status = set_think_budget(call, error);
	if (status)
		return status;
	begin_answers(call);
	call_release_request(call);
	call->job.prompt = call->prompt.ids;
	call->job.prompt_tokens = (uint32_t)call->prompt.count;
	return STATUS_OK;
}
