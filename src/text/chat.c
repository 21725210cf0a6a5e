/* chat.c: owns the built-in ChatML renderer and the recognition of the templates that mean it.  Does not tokenise.
 *
 * A model's template is compared with this text, character by character; [ ] marks what may be absent:
 *
 *     {% for message in messages %}
 *     [{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nDEFAULT<|im_end|>\n' }}{% endif %}]
 *     {{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}
 *     {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
 *
 * (without the line breaks of this comment; \n is written as a line feed or as the escape).  DEFAULT is any text without
 * quotes, backslashes, braces, "<" and control characters and becomes the system message of a conversation that has none.
 * Whatever is spelled otherwise may mean something else and is refused.
 *
 * Invariant: role names come from a fixed list and message contents are never literal, so only the renderer itself can
 * write control tokens.
 */
#include "text/chat.h"
#include "base/bytes.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

enum { CHAT_MESSAGES_MAX = 1 << 16 };

struct chat_template {
	char *system; /* default system message, terminated; NULL: none */
};

struct reader {
	const char *at;
	size_t      left;
};

/* Steps over TEXT when it stands here; a '\n' of TEXT matches a line feed or the two characters \n. */
static bool accept(struct reader *reader, const char *text)
{
	struct reader r = *reader;

	for (; *text; text++) {
		size_t n = 1;
		if (r.left >= 2 && *text == '\n' && r.at[0] == '\\' && r.at[1] == 'n')
			n = 2;
		else if (r.left == 0 || r.at[0] != *text)
			return false;
		r.at += n;
		r.left -= n;
	}
	*reader = r;
	return true;
}

/* Length of the default system message that stands here. */
static size_t default_length(const struct reader *reader)
{
	size_t n = 0;

	while (n < reader->left && (unsigned char)reader->at[n] >= 0x20 && !strchr("'\"\\{}<", reader->at[n]))
		n++;
	return n;
}

/* True when TEMPLATE is ChatML; the default system message, if it has one, is inside it. */
static bool recognise(const char *template, size_t len, const char **ret_system, size_t *ret_system_len)
{
	struct reader r = { template, len };
	const char   *system = NULL;
	size_t        system_len = 0;

	if (!accept(&r, "{% for message in messages %}"))
		return false;
	if (accept(&r, "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n")) {
		system = r.at;
		system_len = default_length(&r);
		r.at += system_len;
		r.left -= system_len;
		if (!accept(&r, "<|im_end|>\n' }}{% endif %}"))
			return false;
	}
	if (!accept(&r, "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
	                "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}") || r.left)
		return false;
	*ret_system = system;
	*ret_system_len = system_len;
	return true;
}

struct search {
	const int32_t *types;
	size_t         count;
	bool           start, end;
};

static enum status look_at(void *context, size_t index, const char *string, size_t len)
{
	struct search *search = context;

	if (search->types[index] == 3 /* control */) {
		search->start = search->start || (len == 12 && memcmp(string, "<|im_start|>", 12) == 0);
		search->end = search->end || (len == 10 && memcmp(string, "<|im_end|>", 10) == 0);
	}
	return STATUS_OK;
}

/* Without its markers as control tokens the prompt would be spelled out as text. */
static enum status check_markers(const struct gguf *gguf, struct error *error)
{
	struct search search = { 0 };
	int32_t      *types = NULL;
	size_t        count;
	enum status   status = gguf_array_count(gguf, "tokenizer.ggml.tokens", &count, error);

	if (status)
		return status;
	types = calloc(count + 1, sizeof *types);
	if (!types)
		return error_set(error, STATUS_NOMEM, "no memory for %zu token types", count);
	search.types = types;
	status = gguf_array_i32(gguf, "tokenizer.ggml.token_type", types, count, error);
	if (!status)
		status = gguf_array_strings(gguf, "tokenizer.ggml.tokens", look_at, &search, error);
	free(types);
	if (!status && (!search.start || !search.end))
		status = error_set(error, STATUS_INVALID, "the chat template is ChatML, but %s is no control token of the vocabulary",
		    search.start ? "<|im_end|>" : "<|im_start|>");
	return status;
}

static enum status load(const struct gguf *gguf, struct chat_template *chat, struct error *error)
{
	const char *template, *system = NULL;
	size_t      len, system_len = 0;
	char        quoted[BYTES_QUOTE_MAX];
	enum status status = gguf_get_string(gguf, "tokenizer.chat_template", &template, &len, error);

	if (status)
		return status;
	if (!recognise(template, len, &system, &system_len))
		return error_set(error, STATUS_UNSUPPORTED, "tokenizer.chat_template (%zu bytes, %s) is not one of the ChatML templates "
		    "this version can render", len, bytes_quote(quoted, template, len));
	if (system) {
		chat->system = strndup(system, system_len);
		if (!chat->system)
			return error_set(error, STATUS_NOMEM, "no memory for the chat template");
	}
	return check_markers(gguf, error);
}

enum status chat_template_from_gguf(const struct gguf *gguf, struct chat_template **ret, struct error *error)
{
	struct chat_template *chat = calloc(1, sizeof *chat);
	enum status           status;

	if (!chat)
		return error_set(error, STATUS_NOMEM, "no memory for the chat template");
	status = load(gguf, chat, error);
	if (status)
		goto fail;
	*ret = chat;
	return STATUS_OK;
fail:
	chat_template_free(chat);
	return gguf_error_prefix(gguf, status, error);
}

void chat_template_free(struct chat_template *chat)
{
	if (!chat)
		return;
	free(chat->system);
	free(chat);
}

void chat_prompt_free(struct chat_prompt *prompt)
{
	if (!prompt)
		return;
	free(prompt->spans);
	free(prompt->text);
	*prompt = (struct chat_prompt){ 0 };
}

static bool known_role(const char *role)
{
	static const char *const roles[] = { "system", "user", "assistant", "tool" };

	for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
		if (strcmp(role, roles[i]) == 0)
			return true;
	return false;
}

/* Writes literal text into the room allotted for it and adds a span over it. */
static void add_literal(struct chat_prompt *prompt, size_t *at, const char *a, const char *b, const char *c)
{
	const char *parts[] = { a, b, c };
	size_t      start = *at;

	for (size_t i = 0; i < 3; i++) {
		size_t len = strlen(parts[i]);
		memcpy(prompt->text + *at, parts[i], len);
		*at += len;
	}
	prompt->spans[prompt->span_count++] = (struct text_span){ prompt->text + start, *at - start, true };
}

enum status chat_render(const struct chat_template *chat, const struct chat_message *messages, size_t count,
    struct chat_prompt *ret, struct error *error)
{
	struct chat_prompt prompt = { 0 };
	size_t             at = 0, text = sizeof "<|im_start|>system\n<|im_end|>\n<|im_start|>assistant\n";
	bool               system;
	char               quoted[BYTES_QUOTE_MAX];

	if (count == 0 || count > CHAT_MESSAGES_MAX)
		return error_set_param(error, STATUS_INVALID, "messages", "messages has %zu elements, allowed are 1 to %d", count,
		    CHAT_MESSAGES_MAX);
	for (size_t i = 0; i < count; i++) {
		if (!known_role(messages[i].role))
			return error_set_param(error, STATUS_INVALID, "messages", "messages[%zu].role is %s; this model's template takes "
			    "system, user, assistant and tool", i, bytes_quote(quoted, messages[i].role, strlen(messages[i].role)));
		text += sizeof "<|im_start|>\n<|im_end|>\n" + strlen(messages[i].role);
	}
	system = chat->system && strcmp(messages[0].role, "system") != 0;
	if (system)
		text += strlen(chat->system);
	prompt.text = malloc(text);
	prompt.spans = calloc(3 * count + 2, sizeof *prompt.spans);
	if (!prompt.text || !prompt.spans) {
		chat_prompt_free(&prompt);
		return error_set(error, STATUS_NOMEM, "no memory for a prompt of %zu messages", count);
	}
	if (system)
		add_literal(&prompt, &at, "<|im_start|>system\n", chat->system, "<|im_end|>\n");
	for (size_t i = 0; i < count; i++) {
		add_literal(&prompt, &at, "<|im_start|>", messages[i].role, "\n");
		prompt.spans[prompt.span_count++] = (struct text_span){ messages[i].content, messages[i].content_len, false };
		add_literal(&prompt, &at, "<|im_end|>\n", "", "");
	}
	add_literal(&prompt, &at, "<|im_start|>assistant\n", "", "");
	*ret = prompt;
	return STATUS_OK;
}
