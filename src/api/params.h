/* params.h: request fields as params.def lists them: struct, parser, table. */
#ifndef PENSTOCK_API_PARAMS_H
#define PENSTOCK_API_PARAMS_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Bits of a row's `endpoints`. */
enum params_endpoint { PARAMS_CHAT = 1 << 0 };

struct param_text {
	bool        set;
	const char *bytes; /* borrowed from the parsed body, terminated; may hold NUL characters */
	size_t      len;
};
struct param_int {
	bool    set;
	int64_t value; /* the default where not set */
};
struct param_real {
	bool   set;
	double value;
};
struct param_bool {
	bool set, value;
};

/* One member per supported row. */
struct params {
#define PARAM_TEXT(endpoints, name, need, max, doc)          struct param_text name;
#define PARAM_INT(endpoints, name, initial, min, max, doc)   struct param_int name;
#define PARAM_REAL(endpoints, name, initial, min, max, doc)  struct param_real name;
#define PARAM_BOOL(endpoints, name, initial, doc)            struct param_bool name;
#define PARAM_JSON(endpoints, name, need, shape, doc)        const json_t *name; /* borrowed; NULL where not set */
#define PARAM_NEUTRAL(endpoints, name, values, doc)
#include "api/params.def"
#undef PARAM_TEXT
#undef PARAM_INT
#undef PARAM_REAL
#undef PARAM_BOOL
#undef PARAM_JSON
#undef PARAM_NEUTRAL
};

/* Unknown fields for X-Penstock-Ignored: "a,b,+2" names two fields and counts two more. */
enum { PARAMS_IGNORED_MAX = 8, PARAMS_NAME_MAX = 40, PARAMS_IGNORED_BYTES = PARAMS_IGNORED_MAX * (PARAMS_NAME_MAX + 1) + 16 };
struct params_ignored {
	unsigned named, rest;
	char     names[PARAMS_IGNORED_MAX][PARAMS_NAME_MAX + 1];
};

/* One more, once: a field that is known and has no effect here. */
void params_ignore(struct params_ignored *ignored, const char *name);

/* Drops what was borrowed from the body: texts and JSON are absent from now on, numbers stay. */
void params_forget(struct params *params);

/* Reads the fields of OBJECT that belong to ENDPOINT over the defaults.  Errors name field, value and allowed range; with
 * STRICT so do unknown fields.  Outputs are untouched on failure. */
enum status params_parse(const json_t *object, enum params_endpoint endpoint, bool strict, struct params *ret,
    struct params_ignored *ret_ignored, struct error *error);

/* Error about what lies in LIST[INDEX] of a request: LIST[INDEX]REST is the parameter, FORMAT goes on after it. */
enum status __attribute__((format(printf, 6, 7)))
params_error_item(struct error *error, enum status status, const char *list, size_t index, const char *rest, const char *format,
    ...);

/* Text of the header; "" when nothing was ignored.  Only [A-Za-z0-9_,+] whatever the body held. */
void params_ignored_text(const struct params_ignored *ignored, char ret[PARAMS_IGNORED_BYTES]);

/* The table itself, for tests and documentation. */
enum param_kind { PARAM_KIND_TEXT, PARAM_KIND_INT, PARAM_KIND_REAL, PARAM_KIND_BOOL, PARAM_KIND_JSON, PARAM_KIND_NEUTRAL };
struct param {
	const char     *name;
	enum param_kind kind;
	unsigned        endpoints;
	bool            required;
	size_t          offset; /* in struct params */
	int64_t         int_initial, int_min, int_max; /* BOOL: initial; TEXT: int_max is the most bytes */
	double          real_initial, real_min, real_max;
	const char     *shape; /* JSON: what it must be; NEUTRAL: the values that pass, a JSON array */
	const char     *doc;
};
const struct param *params_table(size_t *ret_count);
const struct param *params_find(const char *name); /* NULL where there is none */

/* Writes the tables of docs/api.md (Markdown). */
void params_document(FILE *stream);

#endif
