/* messages.c: owns what a message may be and how it is turned into what the model's chat template takes.  Does not own the other
 * chat fields (chat_fields.c), nor what templates take (text/chat_probe.c).
 *
 * Invariant: what leaves here has known members only, none of them null where the template does not need it, and contents and
 * arguments in the shape that was probed; a conversation that clients of the reference API may send is never refused for its
 * shape alone. */
#include "api/messages.h"

#include "api/json_text.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

/* One request on its way. */
struct reader {
	const struct chat_template *chat; /* may be NULL */
	const struct chat_traits   *traits;
	size_t                      max_depth;
	json_t                     *messages; /* what is built */
	bool                        calls;    /* there was a call or a result */
	struct error               *error;
};

static enum status no_memory(struct error *error) { return error_set(error, STATUS_NOMEM, "out of memory"); }

/* Errors inside messages: PATH is messages[INDEX] and what follows it, FACT a sentence about it. */
#define message_error(error, status, index, rest, ...) \
	params_error_item(error, status, "messages", index, rest, __VA_ARGS__)

/* Takes VALUE over, NULL too. */
static enum status set_new(struct reader *r, json_t *object, const char *name, json_t *value)
{
	return value && !json_object_set_new(object, name, value) ? STATUS_OK : no_memory(r->error);
}

/* ---- role ---------------------------------------------------------------------------------------------------------- */

static enum status read_role(struct reader *r, const json_t *role, size_t index, enum chat_role *ret, const char **ret_name)
{
	static const struct {
		const char    *name;
		enum chat_role role;
	} roles[] = { { "system", CHAT_ROLE_SYSTEM }, { "developer", CHAT_ROLE_SYSTEM }, { "user", CHAT_ROLE_USER },
		{ "assistant", CHAT_ROLE_ASSISTANT }, { "tool", CHAT_ROLE_TOOL } };

	if (!role)
		return message_error(r->error, STATUS_INVALID, index, ".role", ": this field is required");
	if (!json_is_string(role))
		return message_error(r->error, STATUS_INVALID, index, ".role", ": a string is expected, not %s", json_text_type(role));
	for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
		if (!json_text_equals(role, roles[i].name))
			continue;
		*ret = roles[i].role;
		*ret_name = json_text_equals(role, "developer") && !r->traits->developer ? "system" : roles[i].name;
		return STATUS_OK;
	}
	if (json_text_equals(role, "function"))
		return message_error(r->error, STATUS_UNSUPPORTED, index, ".role", " = function: not supported; its newer form is tool");
	return message_error(r->error, STATUS_INVALID, index, ".role",
	    " = %.80s: allowed are system, developer, user, assistant, tool", json_string_value(role));
}

/* ---- content ------------------------------------------------------------------------------------------------------- */

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
	if (!json_text_equals(type, "text"))
		return message_error(error, STATUS_UNSUPPORTED, index, rest, ": type %.80s is not supported, only text is",
		    json_string_value(type));
	if (!json_is_string(text))
		return message_error(error, STATUS_INVALID, index, rest, ": a text part needs a text, which is a string");
	return STATUS_OK;
}

/* The texts of an array of parts with nothing between them, as a new string. */
static enum status join_parts(const json_t *parts, size_t index, json_t **ret, struct error *error)
{
	size_t count = json_array_size(parts), len = 0, done = 0;
	char  *joined;

	for (size_t i = 0; i < count; i++)
		if (!checked_add_size(len, json_string_length(json_object_get(json_array_get(parts, i), "text")), &len))
			return message_error(error, STATUS_LIMIT, index, ".content", ": too long");
	joined = malloc(len + 1);
	if (!joined)
		return no_memory(error);
	for (size_t i = 0; i < count; i++) {
		const json_t *text = json_object_get(json_array_get(parts, i), "text");

		memcpy(joined + done, json_string_value(text), json_string_length(text));
		done += json_string_length(text);
	}
	*ret = json_stringn_nocheck(joined, len);
	free(joined);
	return *ret ? STATUS_OK : no_memory(error);
}

static json_t *new_part(json_t *text) { return text ? json_pack("{s:s, s:O}", "type", "text", "text", text) : NULL; }

/* A new array of the parts, without members that are none of ours. */
static enum status copy_parts(const json_t *parts, json_t **ret, struct error *error)
{
	json_t *list = json_array();

	for (size_t i = 0; i < json_array_size(parts); i++)
		if (json_array_append_new(list, new_part(json_object_get(json_array_get(parts, i), "text")))) {
			json_decref(list);
			return no_memory(error);
		}
	*ret = list;
	return list ? STATUS_OK : no_memory(error);
}

/* CONTENT (a string, or an array that was checked) in the shape of ROLE, a new reference. */
static enum status shape_content(struct reader *r, json_t *content, size_t index, enum chat_role role, json_t **ret)
{
	if (r->traits->parts[role]) {
		if (json_is_array(content))
			return copy_parts(content, ret, r->error);
		*ret = json_pack("[o]", new_part(content));
		return *ret ? STATUS_OK : no_memory(r->error);
	}
	if (json_is_array(content))
		return join_parts(content, index, ret, r->error);
	*ret = json_incref(content);
	return STATUS_OK;
}

/* Sets target.content.  HAS_CALLS: the message has tool calls, and may be without a text. */
static enum status read_content(struct reader *r, json_t *content, size_t index, enum chat_role role, bool has_calls,
    json_t *target)
{
	size_t      parts = json_array_size(content);
	json_t     *shaped = NULL, *none = NULL;
	enum status status = STATUS_OK;

	if (json_is_array(content) && (parts == 0 || parts > MESSAGES_PARTS_MAX))
		return message_error(r->error, STATUS_INVALID, index, ".content", ": %zu parts, 1…%d are allowed", parts,
		    MESSAGES_PARTS_MAX);
	for (size_t i = 0; i < parts && !status; i++)
		status = check_part(json_array_get(content, i), index, i, r->error);
	if (status)
		return status;
	if (json_text_present(content) && !json_is_array(content) && !json_is_string(content))
		return message_error(r->error, STATUS_INVALID, index, ".content",
		    ": a string or an array of parts is expected, not %s", json_text_type(content));
	/* an assistant's turn without text is a turn all the same, and so is an empty result */
	if (!json_text_present(content) && role != CHAT_ROLE_ASSISTANT && role != CHAT_ROLE_TOOL)
		return message_error(r->error, STATUS_INVALID, index, ".content", ": this field is required");
	if (has_calls && r->traits->empty != CHAT_EMPTY_TEXT && !json_is_array(content) && json_string_length(content) == 0)
		return r->traits->empty == CHAT_EMPTY_ABSENT ? STATUS_OK : set_new(r, target, "content", json_null());
	if (!json_text_present(content))
		content = none = json_string("");
	status = content ? shape_content(r, content, index, role, &shaped) : no_memory(r->error);
	json_decref(none);
	return status ? status : set_new(r, target, "content", shaped);
}

/* ---- names and ids --------------------------------------------------------------------------------------------------- */

/* Checks that MESSAGE.NAME is a short string where it is there. */
static enum status check_short(struct reader *r, const json_t *message, const char *name, const char *rest, size_t index)
{
	const json_t *value = json_object_get(message, name);

	if (!json_text_present(value) || (json_is_string(value) && json_string_length(value) <= MESSAGES_NAME_MAX))
		return STATUS_OK;
	return message_error(r->error, STATUS_INVALID, index, rest, ": a string of at most %d bytes is expected", MESSAGES_NAME_MAX);
}

/* The id of a call, shortened to its last nine letters and digits where the template takes no other; a new reference. */
static json_t *shape_id(const struct reader *r, json_t *id)
{
	char        nine[] = "000000000";
	const char *text = json_string_value(id);
	size_t      at = sizeof nine - 1;

	if (!r->traits->short_ids)
		return json_incref(id);
	for (size_t i = strlen(text); i > 0 && at > 0; i--)
		if ((text[i - 1] >= '0' && text[i - 1] <= '9') || ((text[i - 1] | 32) >= 'a' && (text[i - 1] | 32) <= 'z'))
			nine[--at] = text[i - 1];
	return json_string(nine);
}

/* The tool whose call has this ID, the latest one; NULL where none has. */
static json_t *called_tool(const struct reader *r, const json_t *id)
{
	for (size_t i = json_array_size(r->messages); i > 0; i--) {
		const json_t *calls = json_object_get(json_array_get(r->messages, i - 1), "tool_calls");

		for (size_t k = 0; k < json_array_size(calls); k++) {
			const json_t *call = json_array_get(calls, k);

			if (json_equal(json_object_get(call, "id"), id))
				return json_object_get(json_object_get(call, "function"), "name");
		}
	}
	return NULL;
}

static enum status read_result(struct reader *r, json_t *message, size_t index, json_t *target)
{
	json_t     *id = json_object_get(message, "tool_call_id"), *name;
	enum status status = check_short(r, message, "tool_call_id", ".tool_call_id", index);

	r->calls = true;
	if (!status && json_text_present(id))
		status = set_new(r, target, "tool_call_id", shape_id(r, id));
	if (status || json_text_present(json_object_get(message, "name")) || !r->traits->result_names)
		return status;
	name = called_tool(r, json_object_get(target, "tool_call_id"));
	return name && json_object_set(target, "name", name) ? no_memory(r->error) : STATUS_OK;
}

/* ---- the assistant's calls and reasoning ------------------------------------------------------------------------------ */

/* Arguments as an object: of a string the JSON in it; "" and "null" are an empty object (R31, R32).  A model may have
 * written a key twice, and its client, which sends back what it got, cannot help that. */
static enum status arguments_object(struct reader *r, json_t *arguments, size_t index, const char *path, json_t **ret)
{
	struct error why = { .message = "" };
	size_t       len = json_string_length(arguments);
	const char  *text = json_string_value(arguments);
	enum status  status;

	if (json_is_object(arguments)) {
		*ret = json_incref(arguments);
		return STATUS_OK;
	}
	if (!text || strspn(text, " \t\r\n") == len || json_text_equals(arguments, "null")) {
		*ret = json_object();
		return *ret ? STATUS_OK : no_memory(r->error);
	}
	status = json_text_load_last(text, len, r->max_depth, ret, &why);
	if (!status || status == STATUS_NOMEM)
		return status;
	return message_error(r->error, STATUS_INVALID, index, path, ": no JSON object: %s", why.message);
}

/* Arguments as a string of JSON: a client's own spelling, an object as templates write it (R34). */
static enum status arguments_text(struct reader *r, json_t *arguments, json_t **ret)
{
	char       *text;
	size_t      len;
	enum status status;

	if (json_is_string(arguments) && json_string_length(arguments) > 0 && !json_text_equals(arguments, "null")) {
		*ret = json_incref(arguments);
		return STATUS_OK;
	}
	if (!json_is_object(arguments) || json_object_size(arguments) == 0) {
		*ret = json_string("{}");
		return *ret ? STATUS_OK : no_memory(r->error);
	}
	status = chat_json_text(r->chat, arguments, &text, &len, r->error);
	if (status)
		return status;
	*ret = json_stringn(text, len);
	free(text);
	return *ret ? STATUS_OK : no_memory(r->error);
}

/* One {id, type: "function", function: {name, arguments}} → a new object. */
static enum status read_call(struct reader *r, json_t *call, size_t index, size_t at, json_t **ret)
{
	json_t     *function = json_object_get(call, "function"), *type = json_object_get(call, "type");
	json_t     *name = json_object_get(function, "name"), *arguments = json_object_get(function, "arguments"), *shaped = NULL;
	json_t     *id = json_object_get(call, "id"), *made;
	char        path[64];
	enum status status;

	snprintf(path, sizeof path, ".tool_calls[%zu]", at);
	if (!json_is_object(call))
		return message_error(r->error, STATUS_INVALID, index, path, ": an object is expected, not %s", json_text_type(call));
	if (json_text_present(type) && !json_text_equals(type, "function"))
		return message_error(r->error, STATUS_UNSUPPORTED, index, path, ": type %.80s is not supported, only function is",
		    json_is_string(type) ? json_string_value(type) : json_text_type(type));
	if (json_text_present(id) && (!json_is_string(id) || json_string_length(id) > MESSAGES_NAME_MAX))
		return message_error(r->error, STATUS_INVALID, index, path, ".id: a string of at most %d bytes is expected",
		    MESSAGES_NAME_MAX);
	if (!json_is_string(name) || json_string_length(name) == 0 || json_string_length(name) > MESSAGES_NAME_MAX)
		return message_error(r->error, STATUS_INVALID, index, path, ".function.name: a string of 1…%d bytes is expected",
		    MESSAGES_NAME_MAX);
	if (json_text_present(arguments) && !json_is_string(arguments) && !json_is_object(arguments))
		return message_error(r->error, STATUS_INVALID, index, path,
		    ".function.arguments: a string of JSON or an object is expected, not %s", json_text_type(arguments));
	snprintf(path, sizeof path, ".tool_calls[%zu].function.arguments", at);
	status = r->traits->arguments_text ? arguments_text(r, arguments, &shaped)
	                                   : arguments_object(r, arguments, index, path, &shaped);
	if (status)
		return status;
	made = json_object();
	status = made && json_text_present(id) ? set_new(r, made, "id", shape_id(r, id)) : STATUS_OK;
	if (!status)
		status = set_new(r, made, "type", json_string("function"));
	if (!status)
		status = set_new(r, made, "function", json_pack("{s:O, s:O}", "name", name, "arguments", shaped));
	json_decref(shaped);
	if (status)
		json_decref(made);
	else
		*ret = made;
	return status;
}

static enum status read_calls(struct reader *r, json_t *calls, size_t index, json_t *target)
{
	size_t      count = json_array_size(calls);
	json_t     *list;
	enum status status = STATUS_OK;

	if (!json_is_array(calls))
		return message_error(r->error, STATUS_INVALID, index, ".tool_calls", ": an array is expected, not %s",
		    json_text_type(calls));
	if (count > MESSAGES_CALLS_MAX)
		return message_error(r->error, STATUS_INVALID, index, ".tool_calls", ": %zu calls, at most %d are allowed", count,
		    MESSAGES_CALLS_MAX);
	list = json_array();
	for (size_t i = 0; i < count && !status; i++) {
		json_t *made = NULL;

		status = read_call(r, json_array_get(calls, i), index, i, &made);
		if (!status && json_array_append_new(list, made))
			status = no_memory(r->error);
	}
	r->calls = true;
	if (!status)
		return set_new(r, target, "tool_calls", list);
	json_decref(list);
	return status;
}

/* Reasoning has three names; templates read one of them. */
static enum status read_reasoning(struct reader *r, const json_t *message, size_t index, json_t *target)
{
	static const char *const names[] = { "reasoning_content", "reasoning", "thinking" };
	json_t                  *text = NULL;

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		json_t *value = json_object_get(message, names[i]);

		if (!json_text_present(value))
			continue;
		if (!json_is_string(value)) {
			char rest[32];

			snprintf(rest, sizeof rest, ".%s", names[i]);
			return message_error(r->error, STATUS_INVALID, index, rest, ": a string is expected, not %s", json_text_type(value));
		}
		if (!text)
			text = value;
	}
	for (size_t i = 0; text && i < sizeof names / sizeof *names; i++)
		if (json_object_set(target, names[i], text))
			return no_memory(r->error);
	return STATUS_OK;
}

/* ---- messages ------------------------------------------------------------------------------------------------------- */

static enum status read_message(struct reader *r, json_t *message, size_t index, json_t *target)
{
	json_t        *calls = json_object_get(message, "tool_calls"), *name = json_object_get(message, "name");
	enum chat_role role = CHAT_ROLE_USER;
	const char    *role_name = "";
	bool           has_calls = json_text_present(calls) && !(json_is_array(calls) && json_array_size(calls) == 0);
	enum status    status;

	if (!json_is_object(message))
		return message_error(r->error, STATUS_INVALID, index, "", ": an object is expected, not %s", json_text_type(message));
	status = read_role(r, json_object_get(message, "role"), index, &role, &role_name);
	if (!status)
		status = check_short(r, message, "name", ".name", index);
	if (status)
		return status;
	if (json_text_present(json_object_get(message, "function_call")))
		return message_error(r->error, STATUS_UNSUPPORTED, index, ".function_call",
		    ": not supported; its newer form is tool_calls");
	if (has_calls && role != CHAT_ROLE_ASSISTANT)
		return message_error(r->error, STATUS_INVALID, index, ".tool_calls", ": only an assistant calls tools, not role %s",
		    role_name);
	status = set_new(r, target, "role", json_string(role_name));
	if (!status)
		status = read_content(r, json_object_get(message, "content"), index, role, has_calls, target);
	if (!status && json_text_present(name) && json_object_set(target, "name", name))
		status = no_memory(r->error);
	if (!status && role == CHAT_ROLE_ASSISTANT)
		status = read_reasoning(r, message, index, target);
	if (!status && has_calls)
		status = read_calls(r, calls, index, target);
	if (!status && role == CHAT_ROLE_TOOL)
		status = read_result(r, message, index, target);
	return status;
}

static enum status read_messages(struct reader *r, const json_t *messages)
{
	size_t count = json_array_size(messages);

	if (!json_is_array(messages))
		return error_set_param(r->error, STATUS_INVALID, "messages", "messages: an array is expected, not %s",
		    json_text_type(messages));
	if (count == 0 || count > MESSAGES_MAX)
		return error_set_param(r->error, STATUS_INVALID, "messages", "messages: %zu messages, 1…%d are allowed", count,
		    MESSAGES_MAX);
	for (size_t i = 0; i < count; i++) {
		json_t     *target = json_object();
		enum status status = target ? read_message(r, json_array_get(messages, i), i, target) : no_memory(r->error);

		if (!status && json_array_append(r->messages, target))
			status = no_memory(r->error);
		json_decref(target);
		if (status)
			return status;
	}
	return STATUS_OK;
}

/* The end of the prompt.  The generation prompt is the default, and gives way to a message that is to be continued (R38). */
static enum status read_end(const struct params *params, struct chat_conversation *target, struct error *error)
{
	static const char name[] = "continue_final_message";
	size_t            count = json_array_size(target->messages);
	const json_t     *last = json_array_get(target->messages, count - 1);

	target->continue_final = params->continue_final_message.value;
	target->add_generation_prompt = params->add_generation_prompt.value && !target->continue_final;
	if (!target->continue_final)
		return STATUS_OK;
	if (params->add_generation_prompt.set && params->add_generation_prompt.value)
		return error_set_param(error, STATUS_INVALID, name,
		    "%s: not together with add_generation_prompt = true: an answer is a new turn or the rest of the last one", name);
	if (!json_text_equals(json_object_get(last, "role"), "assistant"))
		return error_set_param(error, STATUS_INVALID, name, "%s: the last message is not the assistant's", name);
	if (json_object_get(last, "tool_calls"))
		return error_set_param(error, STATUS_INVALID, name, "%s: the last message has tool calls, which are complete", name);
	return STATUS_OK;
}

enum status messages_read(const struct chat_template *chat, const struct params *params, size_t max_depth, bool strict,
    struct chat_conversation *ret, struct params_ignored *ignored, struct error *error)
{
	static const struct chat_traits plainest = { .tools = true, .tool_calls = true };
	struct chat_conversation        conversation = { .messages = json_array() };
	struct reader r = { .chat = chat, .traits = &plainest, .max_depth = max_depth, .messages = conversation.messages,
		.error = error };
	enum status   status = conversation.messages ? STATUS_OK : no_memory(error);

	if (!status)
		status = chat_fields_read(chat, params, strict, &conversation, ignored, error);
	if (chat)
		r.traits = chat_template_traits(chat, conversation.tools != NULL);
	if (!status)
		status = read_messages(&r, params->messages);
	if (!status)
		status = read_end(params, &conversation, error);
	if (!status && r.calls && !r.traits->tool_calls)
		status = chat_fields_ignore("tool_calls", strict, ignored, error);
	if (status)
		messages_free(&conversation);
	else
		*ret = conversation;
	return status;
}

void messages_free(struct chat_conversation *conversation)
{
	json_decref(conversation->messages);
	json_decref(conversation->tools);
	json_decref(conversation->documents);
	json_decref(conversation->kwargs);
	*conversation = (struct chat_conversation){ 0 };
}
