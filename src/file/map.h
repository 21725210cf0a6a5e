/* map.h: a whole file, mapped read-only. */
#ifndef PENSTOCK_FILE_MAP_H
#define PENSTOCK_FILE_MAP_H

#include "base/status.h"

#include <stddef.h>

struct map {
	const unsigned char *bytes; /* never NULL while open */
	size_t               size;
	int                  fd; /* the same file, for pread; −1: none, nor where SIZE is 0 */
};

/* Maps PATH, a regular file of at most MAX bytes.  STATUS_NOT_FOUND when there is no such file. */
enum status map_open(const char *path, size_t max, struct map *ret, struct error *error);
void        map_close(struct map *map); /* leaves it empty; NULL and empty ones are fine */
/* Lets the pages that lie wholly inside BYTES of a map leave memory; reading them brings them back. */
void map_release(const void *bytes, size_t size);

#endif
