/* keys.h: API keys: generation, the digest file, and the check.
 *
 * A key is "sk-" and 43 characters of base64url (256 random bits).  The file holds one key per line:
 *   ID SHA256HEX CREATED [NAME]
 * never the key itself; empty lines and lines that start with '#' are kept and mean nothing.  Checking hashes the
 * presented key once and compares the digest with every line in constant time, without leaving early.  The file is
 * replaced atomically under a lock (write, fsync, rename), mode 0640, owner and group kept.
 */
#ifndef PENSTOCK_API_KEYS_H
#define PENSTOCK_API_KEYS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
	KEYS_MAX = 65536,        /* keys in one file */
	KEY_TEXT_MAX = 64,       /* a generated key with its NUL */
	KEY_PRESENTED_MAX = 512, /* bytes of a presented key that are worth hashing */
	KEY_ID_MAX = 16,
	KEY_NAME_MAX = 64,
	KEY_LINE_MAX = 256       /* bytes of a line of the file */
};

struct keys; /* opaque, immutable */

/* A malformed line is an error naming file and line; a file that others may write is one too.  An empty file is none: it
 * means that every key is refused. */
enum status keys_load(const char *path, struct keys **ret, struct error *error);
void        keys_free(struct keys *keys);
size_t      keys_count(const struct keys *keys);

/* STATUS_OK and the key's id hash (never 0), or STATUS_UNAUTHORIZED. PRESENTED is the text after "Bearer ". */
enum status keys_check(const struct keys *keys, const char *presented, size_t len, uint64_t *ret_id);

/* The tool's side: appends a new key (the text is returned once, never stored), removes one by id (STATUS_NOT_FOUND
 * when there is none), lists to STREAM one line each: id, creation time, name.  keys_new makes the file if needed. */
enum status keys_new(const char *path, const char *name, char ret_key[KEY_TEXT_MAX], char ret_id[KEY_ID_MAX + 1],
    struct error *error);
enum status keys_revoke(const char *path, const char *id, struct error *error);
enum status keys_list(const char *path, FILE *stream, struct error *error);

#endif
