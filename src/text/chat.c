/* chat.c: owns the way from a conversation to a prompt by the model's own chat template.  Does not own the template language
 * (jinja.h), where templates are found (chat_source.h), what shapes they take (chat_probe.c), or tokens.
 *
 * Invariant: everything of a conversation is data in the prompt; only the template, the special tokens of the vocabulary and
 * role names from a fixed list are literal, so nothing that a client writes can become a control token. */
#include "text/chat.h"

#include "file/hf_config.h"
#include "text/chat_parts.h"
#include "text/chat_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Stands behind the text that is to be continued while the template is rendered: characters of private use, so that no template
 * changes them, and a blank, which shows whether the template trims. */
#define CONTINUE_MARK "\xee\x80\x80penstock:here\xee\x80\x81"

/* ---- loading ------------------------------------------------------------------------------------------------------------- */

static enum status no_memory(struct error *error) { return error_set(error, STATUS_NOMEM, "no memory for the chat template"); }

/* tools and documents are there, and none, where a request has none: as the reference has it. */
static struct chat_template *new_chat(struct error *error)
{
	static const char     json[] = "{{ value|tojson }}";
	struct chat_template *chat = calloc(1, sizeof *chat);

	if (chat)
		chat->server = json_pack("{s:s, s:s, s:n, s:n}", "bos_token", "", "eos_token", "", "tools", "documents");
	if (chat && chat->server && !jinja_compile(json, sizeof json - 1, "tojson", &chat->json, error))
		return chat;
	chat_template_free(chat);
	no_memory(error);
	return NULL;
}

struct token_search {
	uint64_t wanted;
	json_t  *found;
};

static enum status look_at(void *context, size_t index, const char *string, size_t len)
{
	struct token_search *search = context;

	if (index == search->wanted)
		search->found = json_stringn(string, len);
	return STATUS_OK;
}

/* The text of the token whose id is the value of KEY, where there is one. */
static enum status add_token(const struct gguf *gguf, json_t *server, const char *name, const char *key, struct error *error)
{
	struct token_search search = { 0 };
	enum status         status = gguf_get_u64(gguf, key, &search.wanted, error);

	if (!status)
		status = gguf_array_strings(gguf, "tokenizer.ggml.tokens", look_at, &search, error);
	if (status)
		return status == STATUS_NOT_FOUND ? STATUS_OK : status;
	return search.found && json_object_set_new(server, name, search.found) ? no_memory(error) : STATUS_OK;
}

static enum status add_gguf_tokens(const struct gguf *gguf, json_t *server, struct error *error)
{
	static const char *const tokens[][2] = { { "bos_token", "tokenizer.ggml.bos_token_id" },
		{ "eos_token", "tokenizer.ggml.eos_token_id" }, { "unk_token", "tokenizer.ggml.unknown_token_id" },
		{ "pad_token", "tokenizer.ggml.padding_token_id" } };
	enum status              status = STATUS_OK;

	for (size_t i = 0; i < sizeof tokens / sizeof *tokens && !status; i++)
		status = add_token(gguf, server, tokens[i][0], tokens[i][1], error);
	return status;
}

/* tokenizer_config.json names them: "bos_token" is a string, or an object with the string under "content". */
static enum status add_named_tokens(const char *directory, json_t *server, struct error *error)
{
	static const char *const names[] = { "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token",
		"mask_token" };
	struct hf_config         config = { .object = NULL };
	char                    *path;
	enum status              status;

	if (asprintf(&path, "%s/tokenizer_config.json", directory) < 0)
		return no_memory(error);
	status = hf_config_open(path, &config, error);
	free(path);
	if (status == STATUS_NOT_FOUND)
		return STATUS_OK; /* chat_template.jinja stands alone */
	for (size_t i = 0; i < sizeof names / sizeof *names && !status; i++) {
		json_t *value = json_object_get(config.object, names[i]);

		if (json_is_object(value))
			value = json_object_get(value, "content");
		if (json_is_string(value) && json_object_set(server, names[i], value))
			status = no_memory(error);
	}
	hf_config_close(&config);
	return status;
}

/* Templates from SOURCE, or where that is NULL from GGUF, and what they want. */
static enum status open_templates(struct chat_template *chat, const char *source, const struct gguf *gguf, struct error *error)
{
	struct error none;
	enum status  status = source ? chat_source_open(source, NULL, &chat->plain.jinja, error)
	                             : chat_source_gguf(gguf, "tokenizer.chat_template", NULL, &chat->plain.jinja, error);

	if (status)
		return status;
	status = source ? chat_source_open(source, "tool_use", &chat->tools.jinja, &none)
	                : chat_source_gguf(gguf, "tokenizer.chat_template.tool_use", "tool_use", &chat->tools.jinja, &none);
	if (status == STATUS_NOT_FOUND)
		status = STATUS_OK;
	else if (status)
		return error_set(error, status, "%s", none.message);
	status = chat_probe(&chat->plain, chat->server, error);
	if (!status && chat->tools.jinja)
		status = chat_probe(&chat->tools, chat->server, error);
	return status;
}

static enum status finish(struct chat_template *chat, enum status status, struct chat_template **ret)
{
	if (status)
		chat_template_free(chat);
	else
		*ret = chat;
	return status;
}

enum status chat_template_from_gguf(const struct gguf *gguf, const char *source, struct chat_template **ret, struct error *error)
{
	struct chat_template *chat = new_chat(error);
	bool                  own = !source || !*source;
	enum status           status;

	if (!chat)
		return STATUS_NOMEM;
	status = add_gguf_tokens(gguf, chat->server, error);
	if (!status)
		status = open_templates(chat, own ? NULL : source, gguf, error);
	if (status && own)
		gguf_error_prefix(gguf, status, error);
	return finish(chat, status, ret);
}

enum status chat_template_from_directory(const char *directory, const char *source, struct chat_template **ret,
    struct error *error)
{
	struct chat_template *chat = new_chat(error);
	enum status           status;

	if (!chat)
		return STATUS_NOMEM;
	status = add_named_tokens(directory, chat->server, error);
	if (!status)
		status = open_templates(chat, source && *source ? source : directory, NULL, error);
	return finish(chat, status, ret);
}

enum status chat_template_from_source(const char *source, struct chat_template **ret, struct error *error)
{
	struct stat           info;
	size_t                len = strlen(source);
	struct gguf          *gguf = NULL;
	struct chat_template *chat;
	enum status           status;

	if (stat(source, &info) == 0 && S_ISDIR(info.st_mode))
		return chat_template_from_directory(source, NULL, ret, error);
	if (len >= 5 && strcmp(source + len - 5, ".gguf") == 0) {
		status = gguf_open(source, &gguf, error);
		if (!status)
			status = chat_template_from_gguf(gguf, NULL, ret, error);
		gguf_close(gguf);
		return status;
	}
	chat = new_chat(error);
	return chat ? finish(chat, open_templates(chat, source, NULL, error), ret) : STATUS_NOMEM;
}

void chat_template_free(struct chat_template *chat)
{
	if (!chat)
		return;
	jinja_free(chat->plain.jinja);
	jinja_free(chat->tools.jinja);
	jinja_free(chat->json);
	json_decref(chat->server);
	free(chat);
}

static const struct chat_variant *variant(const struct chat_template *chat, bool with_tools)
{
	return with_tools && chat->tools.jinja ? &chat->tools : &chat->plain;
}

const struct chat_traits *chat_template_traits(const struct chat_template *chat, bool with_tools)
{
	return &variant(chat, with_tools)->traits;
}

bool chat_template_reads(const struct chat_template *chat, bool with_tools, const char *name)
{
	return jinja_reads(variant(chat, with_tools)->jinja, name);
}

bool chat_template_mentions(const struct chat_template *chat, const char *text)
{
	return jinja_mentions(chat->plain.jinja, text) || (chat->tools.jinja && jinja_mentions(chat->tools.jinja, text));
}

/* ---- rendering ------------------------------------------------------------------------------------------------------------- */

void chat_prompt_free(struct chat_prompt *prompt)
{
	if (!prompt)
		return;
	free(prompt->spans);
	free(prompt->text);
	*prompt = (struct chat_prompt){ 0 };
}

static bool ends_with(const char *bytes, size_t len, const char *end)
{
	return len >= strlen(end) && memcmp(bytes + len - strlen(end), end, strlen(end)) == 0;
}

/* The tail and what it says.  A client's text never opens reasoning, whatever it spells. */
static void read_tail(struct chat_prompt *prompt)
{
	static const char *const tags[][2] = { { "<think>", "</think>" }, { "[THINK]", "[/THINK]" },
		{ "<seed:think>", "</seed:think>" }, { "<|START_THINKING|>", "<|END_THINKING|>" } };
	const struct text_span *last = prompt->span_count ? &prompt->spans[prompt->span_count - 1] : NULL;
	size_t                  len = last && last->literal ? last->len : 0;

	prompt->tail = prompt->text + prompt->len - len;
	prompt->tail_len = len;
	while (len && strchr(" \n", prompt->tail[len - 1]))
		len--;
	for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
		if (ends_with(prompt->tail, len, tags[i][0]))
			prompt->reasoning = CHAT_REASONING_OPEN;
		if (ends_with(prompt->tail, len, tags[i][1]))
			prompt->reasoning = CHAT_REASONING_CLOSED;
	}
}

static bool literal_role(const char *key, const char *value)
{
	static const char *const roles[] = { "system", "developer", "user", "assistant", "tool" };

	for (size_t i = 0; strcmp(key, "role") == 0 && i < sizeof roles / sizeof roles[0]; i++)
		if (strcmp(value, roles[i]) == 0)
			return true;
	return false;
}

json_t *chat_variables(const struct chat_conversation *conversation)
{
	json_t *data = conversation->kwargs ? json_copy(conversation->kwargs) : json_object();
	int     failed = !data || json_object_set(data, "messages", conversation->messages) ||
	    json_object_set_new(data, "add_generation_prompt", json_boolean(conversation->add_generation_prompt));

	if (!failed && conversation->tools)
		failed = json_object_set(data, "tools", conversation->tools);
	if (!failed && conversation->documents)
		failed = json_object_set(data, "documents", conversation->documents);
	if (!failed)
		return data;
	json_decref(data);
	return NULL;
}

/* OBJECT's text NAME gets the mark behind it. */
static bool mark_text(json_t *object, const char *name)
{
	const json_t *text = json_object_get(object, name);

	return json_is_string(text) &&
	    !json_object_set_new(object, name, json_pack("s%+", json_string_value(text), json_string_length(text), CONTINUE_MARK " "));
}

/* Is reasoning begun and not ended in TEXT? */
static bool thinks(const json_t *text)
{
	const char *bytes = json_string_value(text), *open = bytes ? strstr(bytes, "<think>") : NULL;

	while (open && strstr(open + 1, "<think>"))
		open = strstr(open + 1, "<think>");
	return open && !strstr(open, "</think>");
}

/* MESSAGE with the mark behind the text that is to be continued: its content, the last part of it that is a text, or its
 * reasoning (under all its names) where it has no content.  A new object; NULL when there is no text, or no memory. */
static json_t *mark_message(json_t *message, bool *ret_thinks)
{
	static const char *const names[] = { "reasoning_content", "reasoning", "thinking" };
	json_t                  *copy = json_deep_copy(message), *content = json_object_get(copy, "content");
	bool                     done = false, empty = !json_is_array(content) && json_string_length(content) == 0;

	*ret_thinks = thinks(content);
	for (size_t i = json_array_size(content); i > 0 && !done; i--) {
		*ret_thinks = thinks(json_object_get(json_array_get(content, i - 1), "text"));
		done = mark_text(json_array_get(content, i - 1), "text");
	}
	for (size_t i = 0; empty && i < sizeof names / sizeof *names; i++)
		if (json_string_length(json_object_get(copy, names[i])) > 0)
			*ret_thinks = done = mark_text(copy, names[i]);
	if (done || mark_text(copy, "content")) /* an empty content too: then the answer follows the beginning of the turn */
		return copy;
	json_decref(copy);
	return NULL;
}

/* A new array. */
static json_t *mark_last(json_t *messages, bool *ret_thinks)
{
	json_t *copy = json_copy(messages);
	size_t  count = json_array_size(copy);
	json_t *message = count ? mark_message(json_array_get(copy, count - 1), ret_thinks) : NULL;

	if (message && !json_array_set_new(copy, count - 1, message))
		return copy;
	json_decref(copy);
	return NULL;
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Cuts the prompt where the mark stands; where its blank was trimmed, so is the text before it. */
static enum status cut_at_mark(struct chat_prompt *prompt, struct error *error)
{
	static const char mark[] = CONTINUE_MARK;
	const char       *at = NULL;
	size_t            len;

	for (const char *from = prompt->text, *found; (found = memmem(from, prompt->len - (size_t)(from - prompt->text), mark,
	    sizeof mark - 1)); from = found + 1)
		at = found;
	if (!at)
		return error_set_param(error, STATUS_INVALID, "continue_final_message",
		    "continue_final_message: the chat template does not show the text of the last message");
	len = (size_t)(at - prompt->text);
	if (at[sizeof mark - 1] != ' ')
		while (len && is_space(prompt->text[len - 1]))
			len--;
	prompt->len = len;
	prompt->text[len] = '\0';
	while (prompt->span_count && prompt->spans[prompt->span_count - 1].bytes >= prompt->text + len)
		prompt->span_count--;
	if (prompt->span_count) {
		struct text_span *last = &prompt->spans[prompt->span_count - 1];

		if (last->bytes + last->len > prompt->text + len)
			last->len = (size_t)(prompt->text + len - last->bytes);
	}
	return STATUS_OK;
}

enum status chat_json_text(const struct chat_template *chat, json_t *value, char **ret, size_t *ret_len, struct error *error)
{
	struct jinja_variables variables = { .data = NULL };
	struct jinja_result    result;
	json_t                *data = json_pack("{s:O}", "value", value);
	enum status            status;

	if (!data)
		return no_memory(error);
	variables.data = data;
	status = jinja_render(chat->json, &variables, &result, error);
	json_decref(data);
	if (status)
		return status;
	free(result.spans);
	*ret = result.text;
	*ret_len = result.len;
	return STATUS_OK;
}

enum status chat_render(const struct chat_template *chat, const struct chat_conversation *conversation,
    struct chat_prompt *ret, struct error *error)
{
	struct jinja_variables   variables = { .server = chat->server, .literal = literal_role, .now = time(NULL) };
	struct chat_conversation marked_conversation = *conversation;
	struct jinja_result      result;
	struct chat_prompt       prompt;
	json_t                  *data;
	bool                     thinks_on = false;
	enum status              status = STATUS_OK;

	if (conversation->continue_final) {
		marked_conversation.messages = mark_last(conversation->messages, &thinks_on);
		if (!marked_conversation.messages)
			return error_set_param(error, STATUS_INVALID, "continue_final_message",
			    "continue_final_message: the last message has no text to continue");
	}
	variables.data = data = chat_variables(&marked_conversation);
	if (conversation->continue_final)
		json_decref(marked_conversation.messages);
	if (!data)
		return no_memory(error);
	status = jinja_render(variant(chat, conversation->tools != NULL)->jinja, &variables, &result, error);
	json_decref(data);
	if (status)
		return status;
	prompt = (struct chat_prompt){ .spans = result.spans, .span_count = result.span_count, .text = result.text,
		.len = result.len };
	if (conversation->continue_final)
		status = cut_at_mark(&prompt, error);
	if (status) {
		chat_prompt_free(&prompt);
		return status;
	}
	read_tail(&prompt);
	if (thinks_on)
		prompt.reasoning = CHAT_REASONING_OPEN;
	*ret = prompt;
	return STATUS_OK;
}
