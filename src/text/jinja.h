/* jinja.h: the Jinja2 of chat templates (Pallets Jinja 3.1, as Hugging Face transformers sets it up: trim_blocks,
 * lstrip_blocks, loop controls, `generation` blocks, an immutable sandbox).
 *
 * A template is compiled once and rendered by any number of threads.  It sees the variables handed to jinja_render and
 * nothing else: no files, no network, no attribute that is not data.  What it may spend is bounded by the size of what it
 * was given, so a hostile template ends with an error after some tens of milliseconds.
 *
 * Provenance.  Every byte of every string is either literal (written by the template or by the server) or data (written by
 * a client), through all operations; the result is spans of both, so that the tokenizer can refuse control tokens to data.
 */
#ifndef PENSTOCK_TEXT_JINJA_H
#define PENSTOCK_TEXT_JINJA_H

#include "base/status.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <time.h>

enum jinja_limits {
	JINJA_SOURCE_MAX = 1 << 20,   /* bytes of a template */
	JINJA_NODES_MAX = 1 << 17,    /* of its syntax tree */
	JINJA_NESTING_MAX = 128,      /* of its expressions and blocks */
	JINJA_DEPTH_MAX = 1600,       /* of evaluation: nesting, macros within macros, values within values */
	JINJA_ARGUMENTS_MAX = 64,     /* of a call, a macro, an unpacking */
	JINJA_RANGE_MAX = 100000,     /* of range(), as in the reference */
	JINJA_STEPS = 1000000,        /* evaluations, and 16 for each byte of the variables */
	JINJA_MEMORY = 16 << 20       /* bytes, and 48 for each byte of the variables */
};

struct jinja_template; /* opaque, immutable */

/* SOURCE is copied.  What the language has and this does not is refused here, as LABEL:LINE:COLUMN with the name of the
 * construct: STATUS_UNSUPPORTED; what is no template at all: STATUS_INVALID. */
enum status jinja_compile(const char *source, size_t len, const char *label, struct jinja_template **ret,
    struct error *error);
void        jinja_free(struct jinja_template *jinja);
bool        jinja_mentions(const struct jinja_template *jinja, const char *text); /* is TEXT anywhere in the source? */
bool        jinja_reads(const struct jinja_template *jinja, const char *name);    /* a variable or attribute of this NAME? */

/* What a template sees.  Objects of variables; those of DATA win.  Strings of SERVER are literal, those of DATA are data
 * unless LITERAL (may be NULL) says otherwise of the value of a member KEY (a role from a fixed list). */
struct jinja_variables {
	const json_t *server, *data; /* either may be NULL */
	bool (*literal)(const char *key, const char *value);
	time_t now;                  /* strftime_now, local time */
};

struct jinja_result {
	char             *text;  /* owned */
	size_t            len;
	struct text_span *spans; /* owned; they lie in text */
	size_t            span_count;
};
void jinja_result_free(struct jinja_result *result);

/* STATUS_INVALID with the template's own words (raise_exception), or with line and fact where it cannot go on;
 * STATUS_LIMIT when it spends too much. */
enum status jinja_render(const struct jinja_template *jinja, const struct jinja_variables *variables,
    struct jinja_result *ret, struct error *error);

#endif
