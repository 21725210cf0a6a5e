/* text.c: owns opening a model file for its text side.  Knows no formats: those are file/, vocab/ and text/. */
#include "tools/text.h"

#include "api/json_text.h"
#include "api/messages.h"
#include "ipc/wire.h"

#include <string.h>

enum status tool_text_open(const char *path, bool with_chat, struct tool_text *ret, struct error *error)
{
	struct tool_text  text = { NULL, NULL, NULL };
	struct token_file file;
	enum status       status = token_file_open(path, &file, error);

	if (status)
		return status;
	status = vocab_from_file(&file, &text.vocab, error);
	if (!status)
		status = tokenizer_from_file(&file, &text.tokenizer, error);
	if (!status)
		status = tokenizer_respell(text.tokenizer, &file, text.vocab, error);
	token_file_free(&file);
	if (!status && with_chat)
		status = chat_template_from_source(path, &text.chat, error);
	if (status)
		tool_text_close(&text);
	else
		*ret = text;
	return status;
}

void tool_text_close(struct tool_text *text)
{
	chat_template_free(text->chat);
	tokenizer_free(text->tokenizer);
	vocab_free(text->vocab);
	memset(text, 0, sizeof *text);
}

static enum status add_all(struct token_list *list, const int32_t *ids, size_t count)
{
	enum status status = STATUS_OK;

	for (size_t i = 0; i < count && !status; i++)
		status = token_list_add(list, TOOL_TOKENS_MAX, ids[i]);
	return status;
}

enum status tool_text_encode(const struct tool_text *text, const char *bytes, size_t len, bool special, bool frame,
    struct token_list *ret, struct error *error)
{
	struct text_span  span = { .bytes = bytes, .len = len, .literal = special };
	struct token_list list = { NULL, 0, 0 };
	size_t            before, behind;
	const int32_t    *first = tokenizer_before(text->tokenizer, &before), *last = tokenizer_behind(text->tokenizer, &behind);
	enum status       status = frame ? add_all(&list, first, before) : STATUS_OK;

	if (!status)
		status = tokenizer_encode(text->tokenizer, &span, 1, TOOL_TOKENS_MAX, &list, error);
	else
		error_set(error, status, "no memory for the special tokens of a text");
	if (!status && frame && add_all(&list, last, behind))
		status = error_set(error, STATUS_LIMIT, "the text has more than %d tokens", TOOL_TOKENS_MAX);
	if (status)
		token_list_free(&list);
	else
		*ret = list;
	return status;
}

enum status tool_text_encode_chat(const struct tool_text *text, json_t *messages, struct token_list *ret, struct error *error)
{
	json_t                  *body = json_pack("{s:s, s:O}", "model", "", "messages", messages);
	struct params            params;
	struct params_ignored    ignored = { 0 };
	struct chat_conversation conversation = { 0 };
	struct chat_prompt       prompt = { 0 };
	struct token_list        list = { NULL, 0, 0 };
	enum status              status;

	if (!body)
		return error_set(error, STATUS_NOMEM, "no memory for messages");
	status = params_parse(body, PARAMS_CHAT, false, &params, &ignored, error);
	if (!status)
		status = messages_read(text->chat, &params, JSON_TEXT_DEPTH_MAX, false, &conversation, &ignored, error);
	if (!status)
		status = chat_render(text->chat, &conversation, &prompt, error);
	if (!status)
		status = tokenizer_encode(text->tokenizer, prompt.spans, prompt.span_count, WIRE_PROMPT_TOKENS_MAX, &list, error);
	chat_prompt_free(&prompt);
	messages_free(&conversation);
	json_decref(body);
	if (status)
		token_list_free(&list);
	else
		*ret = list;
	return status;
}
