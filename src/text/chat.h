/* chat.h: messages → the prompt a chat model was trained on, as spans with provenance.
 *
 * Until the template interpreter exists only ChatML is built in, recognised by comparing the model's own template with
 * the known ChatML templates; any other template is a clear error at load, not a guess.
 */
#ifndef PENSTOCK_TEXT_CHAT_H
#define PENSTOCK_TEXT_CHAT_H

#include "base/status.h"
#include "file/gguf.h"
#include "text/tokenizer.h"

struct chat_template; /* opaque, immutable */

struct chat_message {
	const char *role;    /* terminated: system, user, assistant, … */
	const char *content; /* not terminated */
	size_t      content_len;
};

/* A rendered prompt: spans point into `text` (owned) or into the messages' contents (borrowed: they must live as long). */
struct chat_prompt {
	struct text_span *spans; /* owned */
	size_t            span_count;
	char             *text;  /* owned */
};
void chat_prompt_free(struct chat_prompt *prompt);

enum status chat_template_from_gguf(const struct gguf *gguf, struct chat_template **ret, struct error *error);
void        chat_template_free(struct chat_template *chat);

/* Renders MESSAGES with the generation prompt (the opened assistant turn) at the end.  A role the template cannot render
 * is STATUS_INVALID naming message index and role. */
enum status chat_render(const struct chat_template *chat, const struct chat_message *messages, size_t count,
    struct chat_prompt *ret, struct error *error);

#endif
