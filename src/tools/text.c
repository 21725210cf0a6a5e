/* text.c: owns opening a model file for its text side.  Knows no formats: those are file/, vocab/ and text/. */
#include "tools/text.h"

#include "ipc/wire.h"

#include <stdlib.h>
#include <string.h>

enum status tool_text_open(const char *path, bool with_chat, struct tool_text *ret, struct error *error)
{
	struct tool_text text = { NULL, NULL, NULL, NULL };
	enum status      status;

	status = gguf_open(path, &text.gguf, error);
	if (!status)
		status = vocab_from_gguf(text.gguf, &text.vocab, error);
	if (!status)
		status = tokenizer_from_gguf(text.gguf, text.vocab, &text.tokenizer, error);
	if (!status && with_chat)
		status = chat_template_from_gguf(text.gguf, &text.chat, error);
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
	gguf_close(text->gguf);
	memset(text, 0, sizeof *text);
}

/* A list that already holds the beginning-of-sequence id, if there is to be one. */
static enum status begin(const struct tool_text *text, struct token_list *list, struct error *error)
{
	memset(list, 0, sizeof *list);
	if (!vocab_add_bos(text->vocab) || vocab_bos(text->vocab) < 0)
		return STATUS_OK;
	list->ids = malloc(sizeof *list->ids);
	if (!list->ids)
		return error_set(error, STATUS_NOMEM, "out of memory");
	list->ids[0] = vocab_bos(text->vocab);
	list->count = list->capacity = 1;
	return STATUS_OK;
}

enum status tool_text_encode(const struct tool_text *text, const char *bytes, size_t len, bool special, struct token_list *ret,
    struct error *error)
{
	struct text_span  span = { .bytes = bytes, .len = len, .literal = special };
	struct token_list list;
	enum status       status = begin(text, &list, error);

	if (!status)
		status = tokenizer_encode(text->tokenizer, &span, 1, WIRE_PROMPT_TOKENS_MAX, &list, error);
	if (status)
		token_list_free(&list);
	else
		*ret = list;
	return status;
}

enum status tool_text_encode_chat(const struct tool_text *text, const struct chat_message *messages, size_t count,
    struct token_list *ret, struct error *error)
{
	struct chat_prompt prompt;
	struct token_list  list = { NULL, 0, 0 };
	enum status        status = chat_render(text->chat, messages, count, &prompt, error);

	if (status)
		return status;
	status = tokenizer_encode(text->tokenizer, prompt.spans, prompt.span_count, WIRE_PROMPT_TOKENS_MAX, &list, error);
	chat_prompt_free(&prompt);
	if (status)
		token_list_free(&list);
	else
		*ret = list;
	return status;
}
