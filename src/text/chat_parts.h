/* chat_parts.h: what chat.c and chat_probe.c share; included by them only. */
#ifndef PENSTOCK_TEXT_CHAT_PARTS_H
#define PENSTOCK_TEXT_CHAT_PARTS_H

#include "text/chat.h"
#include "text/jinja.h"

struct chat_variant {
	struct jinja_template *jinja; /* owned */
	struct chat_traits     traits;
};

struct chat_template {
	struct chat_variant    plain, tools; /* tools.jinja is NULL where one template serves both */
	struct jinja_template *json;         /* {{ value|tojson }} */
	json_t                *server;       /* the special tokens, and what is none where a request does not say */
};

/* The variables of CONVERSATION for a template; a new object, NULL when memory is short. */
json_t *chat_variables(const struct chat_conversation *conversation);

/* chat_probe.c: fills variant->traits. */
enum status chat_probe(struct chat_variant *variant, const json_t *server, struct error *error);

#endif
