/* json_pull.h: reads JSON (RFC 8259) piece by piece, for files whose lists are too long for a tree of objects: the
 * vocabulary and merges of a tokenizer.json are half a million strings.
 *
 * The text is borrowed.  After an error the reader stays where it was and every further call fails; json_pull_error says
 * what is wrong at which byte.  Nesting is limited; strings must be UTF-8, a surrogate without its partner is an error.
 *
 *     if (json_pull_enter(&r, '{'))
 *         while (json_pull_key(&r, &key, &len))
 *             … read or skip exactly one value …
 *     if (json_pull_failed(&r)) …
 */
#ifndef PENSTOCK_FILE_JSON_PULL_H
#define PENSTOCK_FILE_JSON_PULL_H

#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_PULL_DEPTH_MAX = 64, JSON_PULL_STRING_MAX = 1 << 24 };

struct json_pull {
	const char *start, *at, *end;
	const char *wrong;    /* what was found to be wrong, a literal; NULL while all is well */
	bool        fresh;    /* just behind the opening bracket of an object or list */
	unsigned    depth;
	struct buf  unescaped; /* the last string that had escapes */
};

void json_pull_init(struct json_pull *reader, const char *bytes, size_t len);
void json_pull_free(struct json_pull *reader);
bool json_pull_failed(const struct json_pull *reader);
/* STATUS_INVALID with LABEL, what is wrong and where. */
enum status json_pull_error(const struct json_pull *reader, const char *label, struct error *error);
/* Makes the reader fail with WHAT, a literal: the caller met a value that it cannot use. */
void json_pull_refuse(struct json_pull *reader, const char *what);

/* The first character of the next value: one of { [ " t f n - 0…9, or 0 at an error. */
char json_pull_peek(struct json_pull *reader);
/* Steps into an object '{' or a list '['; false (and failed) when something else stands here. */
bool json_pull_enter(struct json_pull *reader, char bracket);
/* The next key of the object, false at its end, which is stepped over.  The bytes hold until the next string is read. */
bool json_pull_key(struct json_pull *reader, const char **ret, size_t *ret_len);
/* Is there another element in the list?  At its end false, and the bracket is stepped over. */
bool json_pull_element(struct json_pull *reader);

/* Values.  False and failed when another kind stands here.  String bytes hold until the next string is read. */
bool json_pull_string(struct json_pull *reader, const char **ret, size_t *ret_len);
bool json_pull_integer(struct json_pull *reader, int64_t min, int64_t max, int64_t *ret);
bool json_pull_number(struct json_pull *reader, double *ret);
bool json_pull_bool(struct json_pull *reader, bool *ret);
/* Steps over null; false, without failing, when something else stands here. */
bool json_pull_null(struct json_pull *reader);
/* Steps over any value; its bytes. */
bool json_pull_skip(struct json_pull *reader, const char **ret, size_t *ret_len);

/* Steps over white space; true at the end of the text. */
bool json_pull_at_end(struct json_pull *reader);

#endif
