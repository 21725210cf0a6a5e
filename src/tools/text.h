/* text.h: the text side of a model file, for the commands that need it: vocabulary, tokenizer, chat template. */
#ifndef PENSTOCK_TOOLS_TEXT_H
#define PENSTOCK_TOOLS_TEXT_H

#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "vocab/vocab.h"

enum { TOOL_TOKENS_MAX = 1 << 26 }; /* of a plain text: more than a server takes in a prompt */

struct tool_text {
	struct vocab         *vocab;
	struct tokenizer     *tokenizer;
	struct chat_template *chat; /* NULL unless asked for */
};

/* Opens PATH, anything token_file_open takes; WITH_CHAT also reads the chat template, which fails for one that is not known. */
enum status tool_text_open(const char *path, bool with_chat, struct tool_text *ret, struct error *error);
void        tool_text_close(struct tool_text *text);

/* Text, or MESSAGES as of a chat request, rendered with the chat template, → ids.  SPECIAL: special tokens spelled in a plain
 * text count as such.  FRAME: the tokens that the model wants before and behind a text stand there. */
enum status tool_text_encode(const struct tool_text *text, const char *bytes, size_t len, bool special, bool frame,
    struct token_list *ret, struct error *error);
enum status tool_text_encode_chat(const struct tool_text *text, json_t *messages, struct token_list *ret,
    struct error *error);

#endif
