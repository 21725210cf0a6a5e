/* text.h: the text side of a model file, for the commands that need it: vocabulary, tokenizer, chat template. */
#ifndef PENSTOCK_TOOLS_TEXT_H
#define PENSTOCK_TOOLS_TEXT_H

#include "file/gguf.h"
#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "vocab/vocab.h"

struct tool_text {
	struct gguf          *gguf;
	struct vocab         *vocab;
	struct tokenizer     *tokenizer;
	struct chat_template *chat; /* NULL unless asked for */
};

/* Opens PATH; WITH_CHAT also reads the chat template, which fails for one that is not known. */
enum status tool_text_open(const char *path, bool with_chat, struct tool_text *ret, struct error *error);
void        tool_text_close(struct tool_text *text);

/* Text, or one user message rendered with the chat template, → ids.  SPECIAL: special tokens spelled in a plain text count
 * as such.  The model's beginning-of-sequence id comes first where the model wants one. */
enum status tool_text_encode(const struct tool_text *text, const char *bytes, size_t len, bool special, struct token_list *ret,
    struct error *error);
enum status tool_text_encode_chat(const struct tool_text *text, const struct chat_message *messages, size_t count,
    struct token_list *ret, struct error *error);

#endif
