/* keys.h: API keys: generation, the digest file, what a key may do, and the check.
 *
 * A key is "sk-" and 43 characters of base64url (256 random bits).  The file holds one key per line:
 *   ID SHA256HEX CREATED[;SETTING=NUMBER…] [NAME]
 * never the key itself.  A setting is a row of key_settings.def; one that is absent has its default.  Empty lines and lines
 * that start with '#' are kept and mean nothing.  Checking hashes the presented key once and compares the digest with every
 * line in constant time, without leaving early.  The file is replaced atomically under a lock (write, fsync, rename), mode
 * 0640, owner and group kept.
 */
#ifndef PENSTOCK_API_KEYS_H
#define PENSTOCK_API_KEYS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
	KEYS_MAX = 65536,        /* keys in one file */
	KEY_TEXT_MAX = 64,       /* a generated key with its NUL */
	KEY_PRESENTED_MAX = 512, /* bytes of a presented key that are worth hashing */
	KEY_ID_MAX = 16,
	KEY_NAME_MAX = 64,
	KEY_LINE_MAX = 256,      /* bytes of a line of the file */
	KEY_CEILING_OWN = 101    /* no ceiling is set */
};

/* What a key may do.  Whole numbers, one member per row of key_settings.def. */
struct key_limits {
#define KEY_SETTING(name, option, initial, min, max, doc) int64_t name;
#include "api/key_settings.def"
#undef KEY_SETTING
};
enum {
#define KEY_SETTING(name, option, initial, min, max, doc) KEY_SETTING_##name,
#include "api/key_settings.def"
#undef KEY_SETTING
	KEY_SETTING_COUNT
};

/* The table itself, for the tool.  NULL after the last. */
struct key_setting {
	const char *name, *option, *doc; /* in the file, on the command line, in words */
	int64_t     initial, min, max;
};
const struct key_setting *keys_setting(unsigned index);
/* Value of a setting, by its index. */
int64_t keys_limit(const struct key_limits *limits, unsigned index);

/* What `penstock key new` and `set` change. */
struct key_changes {
	bool    set[KEY_SETTING_COUNT];
	int64_t value[KEY_SETTING_COUNT];
};

struct keys; /* opaque, immutable */

/* A malformed line is an error naming file and line; a file that others may write is one too.  An empty file is none: it
 * means that every key is refused. */
enum status keys_load(const char *path, struct keys **ret, struct error *error);
void        keys_free(struct keys *keys);
size_t      keys_count(const struct keys *keys);

/* STATUS_OK, the key's id hash (never 0) and its limits, or STATUS_UNAUTHORIZED. PRESENTED is the text after "Bearer ". */
enum status keys_check(const struct keys *keys, const char *presented, size_t len, uint64_t *ret_id,
    struct key_limits *ret_limits);
/* The hash that keys_check returns for ID. */
uint64_t    keys_hash(const char *id);

/* The tool's side: appends a new key (the text is returned once, never stored), changes settings of one by id or name,
 * removes one by id (STATUS_NOT_FOUND when there is none; STATUS_INVALID when a name is that of several), lists to STREAM
 * one line each: id, creation time, name, settings.  keys_new makes the file if needed.  CHANGES may be NULL. */
enum status keys_new(const char *path, const char *name, const struct key_changes *changes, char ret_key[KEY_TEXT_MAX],
    char ret_id[KEY_ID_MAX + 1], struct error *error);
enum status keys_set(const char *path, const char *id_or_name, const struct key_changes *changes, struct error *error);
enum status keys_revoke(const char *path, const char *id, struct error *error);
/* The name (or, where there is none, the id) of the key with this hash; STATUS_NOT_FOUND. */
enum status keys_name(const char *path, uint64_t hash, char ret[KEY_NAME_MAX + 1]);
enum status keys_list(const char *path, FILE *stream, struct error *error);

#endif
