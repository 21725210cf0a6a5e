/* messages.h: the chat fields of a request → the conversation that a chat template sees: checked, and in the shapes that this
 * template takes (struct chat_traits). */
#ifndef PENSTOCK_API_MESSAGES_H
#define PENSTOCK_API_MESSAGES_H

#include "api/params.h"
#include "text/chat.h"

#include <stdio.h>

enum messages_limits {
	MESSAGES_MAX = 4096,               /* messages of one request */
	MESSAGES_PARTS_MAX = 1024,         /* content parts of one message */
	MESSAGES_CALLS_MAX = 128,          /* tool calls of one message */
	MESSAGES_NAME_MAX = 256,           /* bytes of a name in a message, and of the id of a tool call */
	MESSAGES_TOOLS_MAX = 128,          /* tools of one request */
	MESSAGES_TOOL_NAME_MAX = 64,       /* bytes of a defined tool's name */
	MESSAGES_TOOLS_BYTES_MAX = 1 << 20, /* of all definitions together, as compact JSON */
	MESSAGES_DOCUMENTS_MAX = 128,      /* documents of one request */
	MESSAGES_KWARG_MAX = 256,          /* bytes of a text in chat_template_kwargs */
	MESSAGES_KWARG_TEXTS_MAX = 16,     /* elements of a list there */
	MESSAGES_KWARG_INT_MAX = 1 << 20
};

/* Checks messages, tools, tool_choice, documents, chat_template_kwargs, reasoning_effort and their neighbours in PARAMS, and builds
 * what CHAT is to see; CHAT may be NULL, then in the plainest shape.  Fields that the template does not look at are added to
 * *IGNORED, or refused with STRICT.  MAX_DEPTH bounds the JSON in arguments of tool calls.  *ret is the caller's to give to
 * messages_free; it shares values with the request's JSON. */
enum status messages_read(const struct chat_template *chat, const struct params *params, size_t max_depth, bool strict,
    struct chat_conversation *ret, struct params_ignored *ignored, struct error *error);
void        messages_free(struct chat_conversation *conversation);

/* Writes the table of chat_template_kwargs (Markdown). */
void messages_document(FILE *stream);

/* ---- shared by messages.c and chat_fields.c ----------------------------------------------------------------- */

/* What of the chat fields is not the messages: tools, documents and kwargs of *ret (new references). */
enum status chat_fields_read(const struct chat_template *chat, const struct params *params, bool strict,
    struct chat_conversation *ret, struct params_ignored *ignored, struct error *error);
/* NAME is a field that the template does not look at. */
enum status chat_fields_ignore(const char *name, bool strict, struct params_ignored *ignored, struct error *error);

#endif
