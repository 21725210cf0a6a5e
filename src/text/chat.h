/* chat.h: messages → the prompt a chat model was trained on, by the template that the model ships, as spans with provenance.
 */
#ifndef PENSTOCK_TEXT_CHAT_H
#define PENSTOCK_TEXT_CHAT_H

#include "base/status.h"
#include "file/gguf.h"
#include "text/tokenizer.h"

#include <jansson.h>

struct chat_template; /* opaque, immutable */

/* What a template sees, besides the model's special tokens.  All of it is data of a client: its spans are not literal.
 * Borrowed. */
struct chat_conversation {
	json_t *messages;  /* array of objects in the shape that the template wants, see chat_traits */
	json_t *tools;     /* array, or NULL: none */
	json_t *documents; /* likewise */
	json_t *kwargs;    /* object of further variables, or NULL */
	bool    add_generation_prompt; /* open the assistant's turn at the end */
	bool    continue_final;        /* leave the last message's text open, so that the answer continues it */
};

/* What the prompt's last bytes leave to the model: nothing was said of reasoning, so that the model may open it itself; it was
 * opened (the answer begins inside it); it was opened and closed (there will be none). */
enum chat_reasoning { CHAT_REASONING_NONE, CHAT_REASONING_OPEN, CHAT_REASONING_CLOSED };

/* A rendered prompt: spans point into `text`. */
struct chat_prompt {
	struct text_span   *spans; /* owned */
	size_t              span_count;
	char               *text;  /* owned, terminated */
	size_t              len;
	const char         *tail; /* in text: what the template wrote itself at its end, "" when it ends with a client's text */
	size_t              tail_len;
	enum chat_reasoning reasoning;
};
void chat_prompt_free(struct chat_prompt *prompt);

enum chat_role { CHAT_ROLE_SYSTEM, CHAT_ROLE_USER, CHAT_ROLE_ASSISTANT, CHAT_ROLE_TOOL, CHAT_ROLE_COUNT };
/* What an assistant's message with tool calls and without text must have as its content. */
enum chat_empty { CHAT_EMPTY_TEXT, CHAT_EMPTY_ABSENT, CHAT_EMPTY_NULL };
/* reasoning_effort of a request, from none to max. */
enum chat_effort { CHAT_EFFORT_NONE, CHAT_EFFORT_MINIMAL, CHAT_EFFORT_LOW, CHAT_EFFORT_MEDIUM, CHAT_EFFORT_HIGH, CHAT_EFFORT_XHIGH,
	CHAT_EFFORT_MAX, CHAT_EFFORT_COUNT };
const char *chat_effort_name(enum chat_effort effort); /* "none", … */

/* What a template does with what it is given, found out by rendering small conversations when it is loaded. */
struct chat_traits {
	bool            parts[CHAT_ROLE_COUNT]; /* contents of this role must be arrays of parts: strings are not shown */
	bool            arguments_text;         /* arguments of tool calls must be JSON in a string: objects are not shown well */
	enum chat_empty empty;
	bool            tools;        /* definitions of tools are shown */
	bool            tool_calls;   /* tool calls and their results are shown */
	bool            short_ids;    /* ids of tool calls must be nine letters or digits */
	bool            result_names; /* results must name their tool */
	bool            developer;    /* the role developer is known */
	const char     *thinking;     /* the variable that switches reasoning, NULL where there is none */
	bool            effort;       /* reasoning_effort is read … */
	const char     *efforts[CHAT_EFFORT_COUNT]; /* … with these values for what a request may say; NULL: best left away */
};

/* A template and the special tokens of its model.  SOURCE is anything chat_source_open takes and is used instead of the
 * model's own template; NULL or "": its own.  A template that the model has for tools (tool_use) is used for conversations with
 * tools.  What is not supported of the language is refused here, with line and column.  STATUS_NOT_FOUND when there is none. */
enum status chat_template_from_gguf(const struct gguf *gguf, const char *source, struct chat_template **ret, struct error *error);
enum status chat_template_from_directory(const char *directory, const char *source, struct chat_template **ret,
    struct error *error);
/* The template alone, or with the tokens of the model that SOURCE is. */
enum status chat_template_from_source(const char *source, struct chat_template **ret, struct error *error);
void        chat_template_free(struct chat_template *chat);

/* Traits of the template that conversations with (without) tools get. */
const struct chat_traits *chat_template_traits(const struct chat_template *chat, bool with_tools);
/* Is there a variable or attribute of this NAME in that template? */
bool chat_template_reads(const struct chat_template *chat, bool with_tools, const char *name);
/* Is TEXT anywhere in the template's source?  Tells models apart by the tags that they were trained with. */
bool chat_template_mentions(const struct chat_template *chat, const char *text);
/* A JSON value as templates write it (tojson), to be freed by the caller; for arguments of tool calls. */
enum status chat_json_text(const struct chat_template *chat, json_t *value, char **ret, size_t *ret_len, struct error *error);

/* STATUS_INVALID with the words of the template where it rejects the conversation, or with line and fact where it cannot go on;
 * STATUS_LIMIT when it spends too much. */
enum status chat_render(const struct chat_template *chat, const struct chat_conversation *conversation,
    struct chat_prompt *ret, struct error *error);

#endif
