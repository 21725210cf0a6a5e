/* conf.h: penstock.conf, read once at start.
 *
 * INI file parsed by libinih (ini_parse_stream) through a reader of our own that counts lines and refuses what inih
 * would cut silently: lines over 190 bytes, section names over 48.  Unknown sections, unknown options, duplicate
 * options and out-of-range values are errors that name file, line, option, value and the allowed range.
 */
#ifndef PENSTOCK_BASE_CONF_H
#define PENSTOCK_BASE_CONF_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { CONF_TEXT_MAX = 160, CONF_LINE_MAX = 190, CONF_SECTION_MAX = 48 };

/* One member per row of options.def, named section_option. */
struct conf {
#define OPTION_INT(section, name, value, min, max, unit, doc)  int64_t section##_##name;
#define OPTION_REAL(section, name, value, min, max, unit, doc) double  section##_##name;
#define OPTION_BOOL(section, name, value, doc)                 bool    section##_##name;
#define OPTION_TEXT(section, name, value, doc)                 char    section##_##name[CONF_TEXT_MAX + 1];
#define OPTION_ENUM(section, name, value, words, doc)          char    section##_##name[CONF_TEXT_MAX + 1];
#include "base/options.def"
#undef OPTION_INT
#undef OPTION_REAL
#undef OPTION_BOOL
#undef OPTION_TEXT
#undef OPTION_ENUM
};

/* Fills *ret with the defaults of options.def. */
void conf_defaults(struct conf *ret);

/* Reads PATH over the defaults.  STATUS_OK, or STATUS_INVALID / STATUS_IO with "FILE:LINE: …" in *error; *ret is
 * untouched on failure. */
enum status conf_load(const char *path, struct conf *ret, struct error *error);

/* Sets one option from text ("section.name", "value"), as --set on the command line does. */
enum status conf_set(struct conf *conf, const char *name, const char *value, struct error *error);

/* Rules that span options: the capacity arithmetic (children × streams ≥ max_running + max_queued + 10 %), block sizes,
 * names.  Also called by conf_load. */
enum status conf_check(const struct conf *conf, struct error *error);

/* Derived values, so that every program computes them alike. */
int64_t conf_children(const struct conf *conf);                  /* front children after resolving 0 */
void    conf_model_name(const struct conf *conf, char *ret, size_t size); /* served model name */
void    conf_front_socket(const struct conf *conf, char *ret, size_t size);
void    conf_control_socket(const struct conf *conf, char *ret, size_t size);

/* Writes every option with its value (--dump-config; loads back to the same values), or the commented sample with
 * defaults and ranges. */
void conf_dump(const struct conf *conf, FILE *stream);
void conf_sample(FILE *stream);

#endif
