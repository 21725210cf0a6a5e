/* jsonfile.h: reads a file, or bytes, that must hold one JSON object (RFC 8259), by jansson. */
#ifndef PENSTOCK_FILE_JSONFILE_H
#define PENSTOCK_FILE_JSONFILE_H

#include "base/status.h"

#include <stddef.h>

struct json_t; /* jansson's; the caller json_decrefs it */

enum { JSONFILE_MAX = 64 << 20 }; /* bytes of a file; the index of a checkpoint of 120,000 tensors has 12 MB */

/* Duplicate keys, anything but one object, NUL characters and numbers out of range are refused; the message begins with
 * LABEL and says line and column. */
enum status jsonfile_parse(const char *label, const void *bytes, size_t size, struct json_t **ret, struct error *error);
/* STATUS_NOT_FOUND when there is no such file. */
enum status jsonfile_open(const char *path, struct json_t **ret, struct error *error);

#endif
