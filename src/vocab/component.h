/* component.h: typed reading of the components of a tokenizer.json, from their JSON trees.  Every message names the
 * component; a value that is absent or null takes the fallback. */
#ifndef PENSTOCK_VOCAB_COMPONENT_H
#define PENSTOCK_VOCAB_COMPONENT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t; /* jansson's */

enum { COMPONENT_DEPTH_MAX = 8, COMPONENT_STEPS_MAX = 64, COMPONENT_TEXT_MAX = 1 << 16 };

/* The value of "type"; "" when there is none. */
const char *component_type(const struct json_t *component);
/* STATUS_UNSUPPORTED "the KIND "TYPE" is not known here". */
enum status component_unknown(const struct json_t *component, const char *kind, struct error *error);

enum status component_bool(const struct json_t *component, const char *key, bool fallback, bool *ret, struct error *error);
enum status component_size(const struct json_t *component, const char *key, size_t max, size_t fallback, size_t *ret,
    struct error *error);
/* FALLBACK NULL: the key is needed.  The string belongs to the tree and may hold NULs. */
enum status component_string(const struct json_t *component, const char *key, const char *fallback, const char **ret,
    size_t *ret_len, struct error *error);
/* One of WORDS, ended by NULL. */
enum status component_word(const struct json_t *component, const char *key, const char *const *words, unsigned fallback,
    unsigned *ret, struct error *error);
/* {"String": "…"} or {"Regex": "…"} under "pattern".  An expression without operators is a String; the String "", which stands
 * between all characters, is an expression. */
enum status component_pattern(const struct json_t *component, bool *ret_regex, const char **ret, size_t *ret_len,
    struct error *error);
/* The steps of a Sequence: STATUS_LIMIT when there are too many or DEPTH is too great. */
enum status component_steps(const struct json_t *component, const char *key, unsigned depth, size_t *ret_count,
    struct error *error);
const struct json_t *component_step(const struct json_t *component, const char *key, size_t index);

#endif
