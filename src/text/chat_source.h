/* chat_source.h: where a model's chat template is found. */
#ifndef PENSTOCK_TEXT_CHAT_SOURCE_H
#define PENSTOCK_TEXT_CHAT_SOURCE_H

#include "file/gguf.h"
#include "text/jinja.h"

/* PATH is "builtin:NAME", one of src/text/templates; a Jinja file; a GGUF file; or a model directory, with chat_template.jinja
 * (or additional_chat_templates/NAME.jinja) or the member chat_template of tokenizer_config.json, a string or a list of {name,
 * template}.  NAME is the wanted one of several, NULL for "default".  A directory of a GLM model that ships none gets the
 * built-in one of its family.  STATUS_NOT_FOUND when there is none (of that name). */
enum status chat_source_open(const char *path, const char *name, struct jinja_template **ret, struct error *error);
/* The same of a GGUF file that is open: tokenizer.chat_template or tokenizer.chat_template.NAME.  LABEL is for messages. */
enum status chat_source_gguf(const struct gguf *gguf, const char *label, const char *name, struct jinja_template **ret,
    struct error *error);

#endif
