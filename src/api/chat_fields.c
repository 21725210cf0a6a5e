/* chat_fields.c: owns the chat fields beside the messages: tools, documents, variables of the template, reasoning.  Does not own
 * messages (messages.c), nor what a template makes of them.
 *
 * Invariant: a template sees no variable that is not in chat_kwargs.def or set here, so that a request cannot take the place of
 * messages, tools or special tokens, or reach an option of the program. */
#include "api/json_text.h"
#include "api/messages.h"

#include <string.h>

enum kwarg_kind { KWARG_BOOL, KWARG_INT, KWARG_TEXT, KWARG_TEXTS };

static const struct kwarg {
	const char     *name;
	enum kwarg_kind kind;
	const char     *doc;
} kwargs[] = {
#define KWARG(name, kind, doc) { #name, KWARG_##kind, doc },
#include "api/chat_kwargs.def"
#undef KWARG
};
enum { KWARG_COUNT = sizeof kwargs / sizeof *kwargs };

static enum status no_memory(struct error *error) { return error_set(error, STATUS_NOMEM, "out of memory"); }

enum status chat_fields_ignore(const char *name, bool strict, struct params_ignored *ignored, struct error *error)
{
	if (strict)
		return error_set_param(error, STATUS_UNSUPPORTED, name,
		    "%s: the chat template of this model does not look at it (front.strict_fields is on)", name);
	params_ignore(ignored, name);
	return STATUS_OK;
}

/* ---- tools ------------------------------------------------------------------------------------------------------------ */

#define tool_error(error, status, index, rest, ...) \
	params_error_item(error, status, "tools", index, rest, __VA_ARGS__)

static bool good_name(const json_t *name)
{
	size_t len = json_string_length(name);

	return len > 0 && len <= MESSAGES_TOOL_NAME_MAX &&
	    strspn(json_string_value(name), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == len;
}

static enum status check_tool(const json_t *tool, size_t index, struct error *error)
{
	const json_t *type = json_object_get(tool, "type"), *function = json_object_get(tool, "function");
	const json_t *name = json_object_get(function, "name"), *parameters = json_object_get(function, "parameters");
	const json_t *description = json_object_get(function, "description"), *strict = json_object_get(function, "strict");

	if (!json_is_object(tool))
		return tool_error(error, STATUS_INVALID, index, "", ": an object is expected, not %s", json_text_type(tool));
	if (!json_is_string(type))
		return tool_error(error, STATUS_INVALID, index, ".type", ": this field is required, and a string");
	if (!json_text_equals(type, "function"))
		return tool_error(error, STATUS_UNSUPPORTED, index, ".type", " = %.80s: only function is supported",
		    json_string_value(type));
	if (!json_is_object(function))
		return tool_error(error, STATUS_INVALID, index, ".function", ": this field is required, and an object");
	if (!good_name(name))
		return tool_error(error, STATUS_INVALID, index, ".function.name",
		    " = %.80s: 1…%d letters, digits, underscores and hyphens are expected",
		    json_is_string(name) ? json_string_value(name) : name ? json_text_type(name) : "nothing", MESSAGES_TOOL_NAME_MAX);
	if (json_text_present(description) && !json_is_string(description))
		return tool_error(error, STATUS_INVALID, index, ".function.description", ": a string is expected, not %s",
		    json_text_type(description));
	if (json_text_present(parameters) && !json_is_object(parameters))
		return tool_error(error, STATUS_INVALID, index, ".function.parameters", ": an object is expected, not %s",
		    json_text_type(parameters));
	if (json_text_present(strict) && !json_is_boolean(strict))
		return tool_error(error, STATUS_INVALID, index, ".function.strict", ": a boolean is expected, not %s",
		    json_text_type(strict));
	return STATUS_OK;
}

static enum status check_tools(const json_t *tools, struct error *error)
{
	size_t      count = json_array_size(tools), bytes;
	json_t     *names;
	enum status status = STATUS_OK;

	if (!json_is_array(tools))
		return error_set_param(error, STATUS_INVALID, "tools", "tools: an array is expected, not %s", json_text_type(tools));
	if (count > MESSAGES_TOOLS_MAX)
		return error_set_param(error, STATUS_INVALID, "tools", "tools: %zu tools, at most %d are allowed", count,
		    MESSAGES_TOOLS_MAX);
	bytes = json_dumpb(tools, NULL, 0, JSON_COMPACT);
	if (bytes > MESSAGES_TOOLS_BYTES_MAX)
		return error_set_param(error, STATUS_INVALID, "tools", "tools: %zu bytes of definitions, at most %d are allowed", bytes,
		    MESSAGES_TOOLS_BYTES_MAX);
	names = json_object();
	for (size_t i = 0; i < count && !status; i++) {
		const char *name;

		status = check_tool(json_array_get(tools, i), i, error);
		if (status)
			break;
		name = json_string_value(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"));
		if (json_object_get(names, name))
			status = tool_error(error, STATUS_INVALID, i, ".function.name", " = %.80s: there are two tools of this name", name);
		else if (json_object_set_new(names, name, json_true()))
			status = no_memory(error);
	}
	json_decref(names);
	return status;
}

/* *ret_none: the model is to know of no tools. */
static enum status check_choice(const json_t *choice, bool *ret_none, struct error *error)
{
	*ret_none = json_text_equals(choice, "none");
	if (!choice || *ret_none || json_text_equals(choice, "auto"))
		return STATUS_OK;
	if (json_text_equals(choice, "required") || json_is_object(choice))
		return error_set_param(error, STATUS_UNSUPPORTED, "tool_choice",
		    "tool_choice = %s: not supported, since answers are not held to a grammar; supported are auto and none",
		    json_is_object(choice) ? "a named tool" : "required");
	return error_set_param(error, STATUS_INVALID, "tool_choice", "tool_choice: auto or none is expected, not %.80s",
	    json_is_string(choice) ? json_string_value(choice) : json_text_type(choice));
}

static enum status read_tools(const struct chat_template *chat, const struct params *params, bool strict,
    struct chat_conversation *target, struct params_ignored *ignored, struct error *error)
{
	bool        none;
	enum status status = check_choice(params->tool_choice, &none, error);

	if (!status && params->tools)
		status = check_tools(params->tools, error);
	if (status || none || json_array_size(params->tools) == 0)
		return status;
	target->tools = json_incref((json_t *)(uintptr_t)params->tools); /* shared with the request, and not changed */
	if (chat && !chat_template_traits(chat, true)->tools)
		return chat_fields_ignore("tools", strict, ignored, error);
	return STATUS_OK;
}

static enum status read_documents(const struct chat_template *chat, const struct params *params, bool strict,
    struct chat_conversation *target, struct params_ignored *ignored, struct error *error)
{
	const json_t *documents = params->documents;
	size_t        count = json_array_size(documents);

	if (!documents)
		return STATUS_OK;
	if (!json_is_array(documents))
		return error_set_param(error, STATUS_INVALID, "documents", "documents: an array is expected, not %s",
		    json_text_type(documents));
	if (count > MESSAGES_DOCUMENTS_MAX)
		return error_set_param(error, STATUS_INVALID, "documents", "documents: %zu documents, at most %d are allowed", count,
		    MESSAGES_DOCUMENTS_MAX);
	for (size_t i = 0; i < count; i++)
		if (!json_is_object(json_array_get(documents, i)))
			return error_set_param(error, STATUS_INVALID, "documents",
			    "documents[%zu]: an object, as {title, text}, is expected, not %s", i,
			    json_text_type(json_array_get(documents, i)));
	if (count == 0)
		return STATUS_OK;
	target->documents = json_incref((json_t *)(uintptr_t)documents); /* as tools */
	if (chat && !chat_template_reads(chat, target->tools != NULL, "documents"))
		return chat_fields_ignore("documents", strict, ignored, error);
	return STATUS_OK;
}

/* ---- variables of the template ------------------------------------------------------------------------------------------ */

static const struct kwarg *find_kwarg(const char *name)
{
	for (size_t i = 0; i < KWARG_COUNT; i++)
		if (strcmp(kwargs[i].name, name) == 0)
			return &kwargs[i];
	return NULL;
}

static bool good_text(const json_t *value) { return json_is_string(value) && json_string_length(value) <= MESSAGES_KWARG_MAX; }

static bool good_kwarg(const struct kwarg *row, const json_t *value)
{
	switch (row->kind) {
	case KWARG_BOOL:
		return json_is_boolean(value);
	case KWARG_INT:
		return json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= MESSAGES_KWARG_INT_MAX;
	case KWARG_TEXT:
		return good_text(value);
	case KWARG_TEXTS:
		for (size_t i = 0; i < json_array_size(value); i++)
			if (!good_text(json_array_get(value, i)))
				return false;
		return json_is_array(value) && json_array_size(value) <= MESSAGES_KWARG_TEXTS_MAX;
	}
	return false;
}

static void describe_kind(enum kwarg_kind kind, char *ret, size_t size)
{
	switch (kind) {
	case KWARG_BOOL:
		snprintf(ret, size, "a boolean");
		break;
	case KWARG_INT:
		snprintf(ret, size, "a whole number in 0…%d", MESSAGES_KWARG_INT_MAX);
		break;
	case KWARG_TEXT:
		snprintf(ret, size, "a string of at most %d bytes", MESSAGES_KWARG_MAX);
		break;
	case KWARG_TEXTS:
		snprintf(ret, size, "an array of at most %d strings of at most %d bytes", MESSAGES_KWARG_TEXTS_MAX, MESSAGES_KWARG_MAX);
		break;
	}
}

static enum status set_kwarg(struct chat_conversation *target, const char *name, json_t *value, struct error *error)
{
	return json_object_set_new(target->kwargs, name, value) ? no_memory(error) : STATUS_OK;
}

static enum status read_kwargs(const struct chat_template *chat, const json_t *object, bool strict,
    struct chat_conversation *target, struct params_ignored *ignored, struct error *error)
{
	static const char field[] = "chat_template_kwargs";
	const char       *name;
	json_t           *value;

	if (object && !json_is_object(object))
		return error_set_param(error, STATUS_INVALID, field, "%s: an object is expected, not %s", field, json_text_type(object));
	json_object_foreach((json_t *)(uintptr_t)object, name, value) { /* the macro takes no const, and changes nothing */
		const struct kwarg *row = find_kwarg(name);
		char                path[ERROR_PARAM_MAX], kind[96];
		enum status         status;

		snprintf(path, sizeof path, "%s.%.40s", field, name);
		if (!row)
			return error_set_param(error, STATUS_INVALID, path, "%s: requests may not set this variable of the chat template",
			    path);
		if (json_is_null(value))
			continue;
		describe_kind(row->kind, kind, sizeof kind);
		if (!good_kwarg(row, value))
			return error_set_param(error, STATUS_INVALID, path, "%s: %s is expected", path, kind);
		status = set_kwarg(target, name, json_incref(value), error);
		if (!status && chat && !chat_template_reads(chat, target->tools != NULL, name))
			status = chat_fields_ignore(name, strict, ignored, error);
		if (status)
			return status;
	}
	return STATUS_OK;
}

/* ---- reasoning ------------------------------------------------------------------------------------------------------------ */

/* {type: "enabled" or "disabled", clear_thinking}: how another API spells enable_thinking and clear_thinking. */
static enum status read_thinking(const json_t *thinking, struct param_bool *enable, struct param_bool *clear, struct error *error)
{
	const json_t *type = json_object_get(thinking, "type"), *clears = json_object_get(thinking, "clear_thinking");

	if (!thinking)
		return STATUS_OK;
	if (!json_text_equals(type, "enabled") && !json_text_equals(type, "disabled"))
		return error_set_param(error, STATUS_INVALID, "thinking",
		    "thinking: an object is expected whose type is enabled or disabled");
	if (json_text_present(clears) && !json_is_boolean(clears))
		return error_set_param(error, STATUS_INVALID, "thinking", "thinking.clear_thinking: a boolean is expected, not %s",
		    json_text_type(clears));
	if (!enable->set)
		*enable = (struct param_bool){ true, json_text_equals(type, "enabled") };
	if (json_text_present(clears) && !clear->set)
		*clear = (struct param_bool){ true, json_is_true(clears) };
	return STATUS_OK;
}

static enum status set_effort(const struct chat_template *chat, const struct param_text *field, bool strict,
    struct chat_conversation *target, struct params_ignored *ignored, struct error *error)
{
	const struct chat_traits *traits = chat_template_traits(chat, target->tools != NULL);
	bool                      tools = target->tools != NULL, used = traits->effort || traits->thinking;
	enum chat_effort          effort = CHAT_EFFORT_NONE;
	enum status               status = STATUS_OK;

	while (effort < CHAT_EFFORT_COUNT && strcmp(chat_effort_name(effort), field->bytes) != 0)
		effort++;
	if (traits->efforts[effort] && !json_object_get(target->kwargs, "reasoning_effort"))
		status = set_kwarg(target, "reasoning_effort", json_string(traits->efforts[effort]), error);
	if (!status && traits->thinking && !json_object_get(target->kwargs, traits->thinking))
		status = set_kwarg(target, traits->thinking, json_boolean(effort > CHAT_EFFORT_MINIMAL), error);
	if (!status && effort == CHAT_EFFORT_LOW && chat_template_reads(chat, tools, "low_effort"))
		status = set_kwarg(target, "low_effort", json_true(), error);
	if (!status && effort == CHAT_EFFORT_MEDIUM && chat_template_reads(chat, tools, "medium_effort"))
		status = set_kwarg(target, "medium_effort", json_true(), error);
	if (!status && !used && effort != CHAT_EFFORT_NONE)
		status = chat_fields_ignore("reasoning_effort", strict, ignored, error);
	return status;
}

static enum status check_effort(const struct param_text *field, struct error *error)
{
	for (int i = 0; i < CHAT_EFFORT_COUNT && field->set; i++)
		if (strlen(chat_effort_name(i)) == field->len && !memcmp(chat_effort_name(i), field->bytes, field->len))
			return STATUS_OK;
	if (!field->set)
		return STATUS_OK;
	return error_set_param(error, STATUS_INVALID, "reasoning_effort",
	    "reasoning_effort = %.40s: none, minimal, low, medium, high, xhigh or max is expected", field->bytes);
}

/* What is said closest to the template wins: chat_template_kwargs, then the switches, then the effort. */
static enum status read_reasoning(const struct chat_template *chat, const struct params *params, bool strict,
    struct chat_conversation *target, struct params_ignored *ignored, struct error *error)
{
	struct param_bool enable = params->enable_thinking, clear = params->clear_thinking;
	const char       *variable = "enable_thinking";
	enum status       status = read_thinking(params->thinking, &enable, &clear, error);

	if (!status)
		status = check_effort(&params->reasoning_effort, error);
	if (status || !chat)
		return status;
	if (chat_template_traits(chat, target->tools != NULL)->thinking)
		variable = chat_template_traits(chat, target->tools != NULL)->thinking;
	if (enable.set && !json_object_get(target->kwargs, variable))
		status = set_kwarg(target, variable, json_boolean(enable.value), error);
	if (!status && enable.set && !chat_template_reads(chat, target->tools != NULL, variable))
		status = chat_fields_ignore("enable_thinking", strict, ignored, error);
	if (!status && clear.set && !json_object_get(target->kwargs, "clear_thinking"))
		status = set_kwarg(target, "clear_thinking", json_boolean(clear.value), error);
	if (!status && clear.set && !chat_template_reads(chat, target->tools != NULL, "clear_thinking"))
		status = chat_fields_ignore("clear_thinking", strict, ignored, error);
	if (!status && params->reasoning_effort.set)
		status = set_effort(chat, &params->reasoning_effort, strict, target, ignored, error);
	return status;
}

enum status chat_fields_read(const struct chat_template *chat, const struct params *params, bool strict,
    struct chat_conversation *ret, struct params_ignored *ignored, struct error *error)
{
	enum status status;

	ret->kwargs = json_object();
	if (!ret->kwargs)
		return no_memory(error);
	status = read_tools(chat, params, strict, ret, ignored, error);
	if (!status)
		status = read_documents(chat, params, strict, ret, ignored, error);
	if (!status)
		status = read_kwargs(chat, params->chat_template_kwargs, strict, ret, ignored, error);
	if (!status)
		status = read_reasoning(chat, params, strict, ret, ignored, error);
	return status;
}

void messages_document(FILE *stream)
{
	char kind[96];

	fputs("| variable | value | meaning |\n|---|---|---|\n", stream);
	for (size_t i = 0; i < KWARG_COUNT; i++) {
		describe_kind(kwargs[i].kind, kind, sizeof kind);
		fprintf(stream, "| `%s` | %s | %s |\n", kwargs[i].name, kind, kwargs[i].doc);
	}
}
