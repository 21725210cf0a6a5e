/* keys.c: owns the key file and the only places where a key's text exists (the caller's buffer in keys_new, the presented
 * bytes in keys_check).  Does not know HTTP.  Invariant: neither the run time of keys_check nor anything written to disk
 * depends on the text of a key other than through its SHA-256. */
#include "api/keys.h"

#include "base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	DIGEST_BYTES = 32,
	KEY_BYTES = 32,
	ID_CHARS = 12,       /* of a generated id: the head of the digest in hex */
	LOCK_ATTEMPTS = 100, /* how often the file may be replaced under our feet before we give up */
	FILE_BYTES_MAX = KEYS_MAX * KEY_LINE_MAX
};

struct keys {
	size_t    count;
	uint64_t *ids;                        /* [count] hashes of the ids, never 0 */
	unsigned char (*digests)[DIGEST_BYTES]; /* [count] */
	struct key_limits *limits;            /* [count] */
};

/* One line of the file. */
struct entry {
	char          id[KEY_ID_MAX + 1], name[KEY_NAME_MAX + 1];
	unsigned char digest[DIGEST_BYTES];
	int64_t       created;
	struct key_limits limits;
};

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static const struct key_setting settings[] = {
#define KEY_SETTING(name, option, initial, min, max, doc) { #name, option, doc, initial, min, max },
#include "api/key_settings.def"
#undef KEY_SETTING
};

static const size_t offsets[] = {
#define KEY_SETTING(name, option, initial, min, max, doc) offsetof(struct key_limits, name),
#include "api/key_settings.def"
#undef KEY_SETTING
};

const struct key_setting *keys_setting(unsigned index) { return index < KEY_SETTING_COUNT ? &settings[index] : NULL; }

static int64_t *limit_at(struct key_limits *limits, unsigned index)
{
	return (int64_t *)(void *)((char *)limits + offsets[index]);
}

int64_t keys_limit(const struct key_limits *limits, unsigned index)
{
	return *(const int64_t *)(const void *)((const char *)limits + offsets[index]);
}

static void set_defaults(struct key_limits *limits)
{
	for (unsigned i = 0; i < KEY_SETTING_COUNT; i++)
		*limit_at(limits, i) = settings[i].initial;
}

/* Reads ";NAME=NUMBER" at *AT and moves on.  Returns NULL, or what is wrong. */
static const char *parse_setting(const char **at, struct key_limits *limits)
{
	const char *name = *at + 1;
	size_t      len = strcspn(name, "=; ");
	unsigned    i = 0;
	long long   value;
	char       *end;

	while (i < KEY_SETTING_COUNT && (strlen(settings[i].name) != len || memcmp(settings[i].name, name, len)))
		i++;
	if (i == KEY_SETTING_COUNT)
		return "there is no such setting";
	if (name[len] != '=' || !strchr("-0123456789", name[len + 1]) || name[len + 1] == '\0')
		return "a setting reads NAME=NUMBER";
	errno = 0;
	value = strtoll(name + len + 1, &end, 10);
	if (errno || end == name + len + 1 || (*end != ';' && *end != ' ' && *end != '\0'))
		return "a setting reads NAME=NUMBER";
	if (value != settings[i].initial && (value < settings[i].min || value > settings[i].max))
		return "the number of a setting is out of its range (`penstock key --help`)";
	*limit_at(limits, i) = value;
	*at = end;
	return NULL;
}

/* The settings that differ from the default, as the file has them. */
static enum status write_settings(const struct key_limits *limits, struct buf *out)
{
	enum status status = STATUS_OK;

	for (unsigned i = 0; i < KEY_SETTING_COUNT && !status; i++)
		if (keys_limit(limits, i) != settings[i].initial)
			status = buf_append_format(out, ";%s=%lld", settings[i].name, (long long)keys_limit(limits, i));
	return status;
}

static enum status change_settings(const struct key_changes *changes, struct key_limits *limits, struct error *error)
{
	for (unsigned i = 0; changes && i < KEY_SETTING_COUNT; i++) {
		const struct key_setting *s = &settings[i];

		if (!changes->set[i])
			continue;
		if (changes->value[i] != s->initial && (changes->value[i] < s->min || changes->value[i] > s->max))
			return error_set_param(error, STATUS_INVALID, s->name, "%s = %lld: outside the allowed range %lld…%lld", s->name,
			    (long long)changes->value[i], (long long)s->min, (long long)s->max);
		*limit_at(limits, i) = changes->value[i];
	}
	if (limits->ceiling != KEY_CEILING_OWN && limits->ceiling > limits->priority)
		return error_set_param(error, STATUS_INVALID, "ceiling",
		    "ceiling = %lld, priority = %lld: the key's own priority would be above its ceiling (lower is more important)",
		    (long long)limits->ceiling, (long long)limits->priority);
	return STATUS_OK;
}

/* ---- lines ------------------------------------------------------------------------------------------------------ */

static bool is_alphanumeric(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

static bool name_allowed(const char *name)
{
	size_t len = strlen(name);

	for (size_t i = 0; i < len; i++)
		if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
			return false;
	return len <= KEY_NAME_MAX && (len == 0 || (name[0] != ' ' && name[len - 1] != ' '));
}

/* Parses a line without its newline.  Returns NULL, or what is wrong with it. */
static const char *parse_entry(const char *line, struct entry *ret)
{
	struct entry entry = { 0 };
	size_t       id_len = strcspn(line, " ");
	const char  *at = line + id_len;

	if (id_len == 0 || id_len > KEY_ID_MAX)
		return "the id must have 1 to 16 letters and digits";
	for (size_t i = 0; i < id_len; i++)
		if (!is_alphanumeric(line[i]))
			return "the id must have 1 to 16 letters and digits";
	memcpy(entry.id, line, id_len);
	if (*at++ != ' ' || strcspn(at, " ") != 2 * DIGEST_BYTES)
		return "the digest must have 64 lower-case hex digits";
	for (size_t i = 0; i < DIGEST_BYTES; i++) {
		int high = hex_value(at[2 * i]), low = hex_value(at[2 * i + 1]);
		if (high < 0 || low < 0)
			return "the digest must have 64 lower-case hex digits";
		entry.digest[i] = (unsigned char)(high << 4 | low);
	}
	at += 2 * DIGEST_BYTES;
	if (*at++ != ' ')
		return "the creation time is missing";
	size_t digits = strspn(at, "0123456789");
	if (digits == 0 || digits > 12 || (at[digits] != '\0' && at[digits] != ' ' && at[digits] != ';'))
		return "the creation time must be seconds since 1970";
	entry.created = strtoll(at, NULL, 10);
	at += digits;
	set_defaults(&entry.limits);
	while (*at == ';') {
		const char *wrong = parse_setting(&at, &entry.limits);
		if (wrong)
			return wrong;
	}
	if (change_settings(NULL, &entry.limits, NULL))
		return "the ceiling is below the key's priority (lower is more important)";
	if (*at == ' ' && (at[1] == '\0' || !name_allowed(at + 1)))
		return "the name must have 1 to 64 bytes without control characters";
	if (*at == ' ')
		memcpy(entry.name, at + 1, strlen(at + 1) + 1);
	*ret = entry;
	return NULL;
}

/* FNV-1a of the id; 0 is taken by "no key". */
uint64_t keys_hash(const char *id)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (; *id; id++)
		hash = (hash ^ (unsigned char)*id) * UINT64_C(0x100000001b3);
	return hash ? hash : 1;
}

/* Calls VISIT with every line (ENTRY is NULL for comments and empty lines) until it fails. */
typedef enum status visit_line(void *context, const char *line, unsigned number, const struct entry *entry);

static enum status for_each_line(FILE *file, const char *path, visit_line *visit, void *context, struct error *error)
{
	char        line[KEY_LINE_MAX + 2];
	unsigned    number = 0;
	size_t      keys = 0;
	enum status status;

	while (fgets(line, sizeof line, file)) {
		struct entry entry;
		size_t       len = strlen(line);
		const char  *wrong;

		number++;
		if (len > 0 && line[len - 1] == '\n')
			line[--len] = '\0';
		else if (!feof(file))
			return error_set(error, STATUS_INVALID, "%s:%u: the line is longer than %d bytes or holds a NUL byte", path,
			    number, KEY_LINE_MAX);
		if (line[0] == '\0' || line[0] == '#') {
			status = visit(context, line, number, NULL);
		} else {
			wrong = parse_entry(line, &entry);
			if (wrong)
				return error_set(error, STATUS_INVALID,
				    "%s:%u: %s (a line reads ID SHA256HEX CREATED[;SETTING=NUMBER…] [NAME])", path, number, wrong);
			if (++keys > KEYS_MAX)
				return error_set(error, STATUS_LIMIT, "%s:%u: more than %d keys", path, number, KEYS_MAX);
			status = visit(context, line, number, &entry);
		}
		if (status)
			return status;
	}
	if (ferror(file))
		return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
	return STATUS_OK;
}

/* A file that others may write would let them make keys. */
static enum status check_file(int fd, const char *path, struct stat *ret, struct error *error)
{
	struct stat info;

	if (fstat(fd, &info))
		return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
	if (!S_ISREG(info.st_mode))
		return error_set(error, STATUS_INVALID, "%s: not a regular file", path);
	if (info.st_mode & (S_IWGRP | S_IWOTH))
		return error_set(error, STATUS_INVALID, "%s: mode %04o lets others write keys; use chmod 0640", path,
		    (unsigned)info.st_mode & 07777);
	*ret = info;
	return STATUS_OK;
}

/* ---- loading and checking ---------------------------------------------------------------------------------------- */

struct loading {
	const char   *path;
	struct keys  *keys;
	size_t        capacity;
	struct error *error;
};

static enum status load_line(void *context, const char *line, unsigned number, const struct entry *entry)
{
	struct loading *loading = context;
	struct keys    *keys = loading->keys;

	(void)line;
	(void)number;
	if (!entry)
		return STATUS_OK;
	if (keys->count == loading->capacity) {
		size_t    capacity = loading->capacity ? loading->capacity * 2 : 16;
		uint64_t *ids = realloc(keys->ids, capacity * sizeof *ids);
		void     *digests, *limits;

		if (!ids)
			return error_set(loading->error, STATUS_NOMEM, "%s: out of memory", loading->path);
		keys->ids = ids;
		digests = realloc(keys->digests, capacity * sizeof *keys->digests);
		if (!digests)
			return error_set(loading->error, STATUS_NOMEM, "%s: out of memory", loading->path);
		keys->digests = digests;
		limits = realloc(keys->limits, capacity * sizeof *keys->limits);
		if (!limits)
			return error_set(loading->error, STATUS_NOMEM, "%s: out of memory", loading->path);
		keys->limits = limits;
		loading->capacity = capacity;
	}
	keys->ids[keys->count] = keys_hash(entry->id);
	memcpy(keys->digests[keys->count], entry->digest, DIGEST_BYTES);
	keys->limits[keys->count] = entry->limits;
	if (entry->limits.ceiling == KEY_CEILING_OWN)
		keys->limits[keys->count].ceiling = entry->limits.priority;
	keys->count++;
	return STATUS_OK;
}

enum status keys_load(const char *path, struct keys **ret, struct error *error)
{
	struct loading loading = { .path = path, .error = error };
	struct stat    info;
	enum status    status;
	FILE          *file = fopen(path, "re");

	if (!file)
		return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
	loading.keys = calloc(1, sizeof *loading.keys);
	status = loading.keys ? check_file(fileno(file), path, &info, error)
	                      : error_set(error, STATUS_NOMEM, "%s: out of memory", path);
	if (!status)
		status = for_each_line(file, path, load_line, &loading, error);
	fclose(file);
	if (status) {
		keys_free(loading.keys);
		return status;
	}
	*ret = loading.keys;
	return STATUS_OK;
}

void keys_free(struct keys *keys)
{
	if (!keys)
		return;
	free(keys->ids);
	free(keys->digests);
	free(keys->limits);
	free(keys);
}

size_t keys_count(const struct keys *keys) { return keys->count; }

static bool digest_of(const void *bytes, size_t len, unsigned char ret[DIGEST_BYTES])
{
	return EVP_Digest(bytes, len, ret, NULL, EVP_sha256(), NULL) == 1;
}

enum status keys_check(const struct keys *keys, const char *presented, size_t len, uint64_t *ret_id, struct key_limits *ret_limits)
{
	unsigned char digest[DIGEST_BYTES];
	uint64_t      id = 0, at = 0;

	if (len > KEY_PRESENTED_MAX || !digest_of(presented, len, digest))
		return STATUS_UNAUTHORIZED;
	for (size_t i = 0; i < keys->count; i++) {
		/* All ones where the digests are equal, without a branch. */
		uint64_t equal = (uint64_t)(CRYPTO_memcmp(digest, keys->digests[i], DIGEST_BYTES) != 0) - 1;
		id = (id & ~equal) | (keys->ids[i] & equal);
		at = (at & ~equal) | (i & equal);
	}
	OPENSSL_cleanse(digest, sizeof digest);
	if (id == 0)
		return STATUS_UNAUTHORIZED;
	*ret_id = id;
	*ret_limits = keys->limits[at];
	return STATUS_OK;
}

/* ---- changing the file -------------------------------------------------------------------------------------------- */

/* Opens the file and locks it.  The lock is on an inode, and whoever held it before us has put a new file in place: we
 * wait until the file we locked is the file of that name.  Returns a descriptor or −1 with *error set. */
static int open_locked(const char *path, int flags, struct stat *ret, struct error *error)
{
	for (int attempt = 0; attempt < LOCK_ATTEMPTS; attempt++) {
		struct stat named;
		int         fd = open(path, O_RDWR | O_CLOEXEC | flags, 0640);

		if (fd < 0 || flock(fd, LOCK_EX)) {
			error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
			if (fd >= 0)
				close(fd);
			return -1;
		}
		if (check_file(fd, path, ret, error)) {
			close(fd);
			return -1;
		}
		if (!stat(path, &named) && named.st_dev == ret->st_dev && named.st_ino == ret->st_ino)
			return fd;
		close(fd);
	}
	error_set(error, STATUS_IO, "%s: it is replaced all the time; is another tool changing it?", path);
	return -1;
}

static bool write_all(int fd, const char *bytes, size_t len)
{
	while (len > 0) {
		ssize_t n = write(fd, bytes, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		bytes += n;
		len -= (size_t)n;
	}
	return true;
}

/* Makes the rename itself durable. */
static void sync_directory(const char *path)
{
	const char *slash = strrchr(path, '/');
	char       *directory = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
	int         fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

	if (fd >= 0) {
		fsync(fd);
		close(fd);
	}
	free(directory);
}

/* Puts TEXT in place of the file at PATH, whose owner and group are those of OLD. */
static enum status replace_file(const char *path, const struct stat *old, const struct buf *text, struct error *error)
{
	char temporary[4096];
	int  fd, saved;

	if ((size_t)snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= sizeof temporary)
		return error_set(error, STATUS_INVALID, "the path of the key file has more than %zu bytes", sizeof temporary - 8);
	fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return error_set(error, STATUS_IO, "%s: %s", temporary, strerror(errno));
	/* Only root can keep a foreign owner; the group matters to whoever reads the file. */
	if (fchown(fd, old->st_uid, old->st_gid) && fchown(fd, (uid_t)-1, old->st_gid))
		goto fail;
	if (fchmod(fd, 0640) || !write_all(fd, text->data, text->len) || fsync(fd) || rename(temporary, path))
		goto fail;
	close(fd);
	sync_directory(path);
	return STATUS_OK;
fail:
	saved = errno;
	close(fd);
	unlink(temporary);
	return error_set(error, STATUS_IO, "%s: cannot replace it: %s", path, strerror(saved));
}

struct rewriting {
	struct buf  text;
	const char *id; /* lines with it are left out, or changed */
	const struct key_changes *changes; /* NULL: left out */
	struct error *error;
	size_t      count, found;
};

static enum status append_entry(struct buf *out, const struct entry *entry)
{
	char        hex[2 * DIGEST_BYTES + 1];
	enum status status;

	for (size_t i = 0; i < DIGEST_BYTES; i++)
		snprintf(hex + 2 * i, 3, "%02x", entry->digest[i]);
	status = buf_append_format(out, "%s %s %lld", entry->id, hex, (long long)entry->created);
	if (!status)
		status = write_settings(&entry->limits, out);
	return status ? status : buf_append_format(out, "%s%s\n", *entry->name ? " " : "", entry->name);
}

static enum status copy_line(void *context, const char *line, unsigned number, const struct entry *entry)
{
	struct rewriting *rewriting = context;
	enum status       status;

	(void)number;
	rewriting->count += entry != NULL;
	if (entry && rewriting->changes && (!strcmp(entry->id, rewriting->id) || !strcmp(entry->name, rewriting->id))) {
		struct entry changed = *entry;

		rewriting->found++;
		status = change_settings(rewriting->changes, &changed.limits, rewriting->error);
		return status ? status : append_entry(&rewriting->text, &changed);
	}
	if (entry && !rewriting->changes && !strcmp(entry->id, rewriting->id)) {
		rewriting->found++;
		return STATUS_OK;
	}
	status = buf_append_string(&rewriting->text, line);
	return status ? status : buf_append(&rewriting->text, "\n", 1);
}

/* Opens, locks and copies the file into rewriting->text.  The caller closes *ret_file, which holds the lock. */
static enum status begin_rewrite(const char *path, int flags, struct rewriting *rewriting, FILE **ret_file,
    struct stat *ret_info, struct error *error)
{
	enum status status;
	FILE       *file;
	int         fd;

	buf_init(&rewriting->text, FILE_BYTES_MAX);
	fd = open_locked(path, flags, ret_info, error);
	if (fd < 0)
		return error ? error->status : STATUS_IO;
	file = fdopen(fd, "r");
	if (!file) {
		close(fd);
		return error_set(error, STATUS_NOMEM, "%s: out of memory", path);
	}
	*error = (struct error){ 0 };
	rewriting->error = error;
	status = for_each_line(file, path, copy_line, rewriting, error);
	if (status && !error->status)
		error_set(error, status, "%s: %s", path, status_text(status));
	*ret_file = file;
	return status;
}

/* 256 random bits as "sk-" and 43 characters of base64url (RFC 4648, no padding). */
static bool make_key(char ret_key[KEY_TEXT_MAX])
{
	static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	unsigned char     random[KEY_BYTES + 1] = { 0 };
	char             *to = ret_key;

	if (RAND_bytes(random, KEY_BYTES) != 1)
		return false;
	memcpy(to, "sk-", 3);
	to += 3;
	for (size_t bit = 0; bit < KEY_BYTES * 8; bit += 6) {
		unsigned pair = (unsigned)random[bit / 8] << 8 | random[bit / 8 + 1];
		*to++ = alphabet[pair >> (10 - bit % 8) & 63];
	}
	*to = '\0';
	OPENSSL_cleanse(random, sizeof random);
	return true;
}

enum status keys_new(const char *path, const char *name, const struct key_changes *changes, char ret_key[KEY_TEXT_MAX],
    char ret_id[KEY_ID_MAX + 1], struct error *error)
{
	struct rewriting rewriting = { 0 };
	struct entry     entry = { .created = (int64_t)time(NULL) };
	struct error     unused;
	struct stat      info;
	FILE            *file = NULL;
	char             key[KEY_TEXT_MAX];
	enum status      status;

	if (!error)
		error = &unused;
	if (!name_allowed(name))
		return error_set_param(error, STATUS_INVALID, "name",
		    "the name of a key has at most %d bytes, no control characters, no blanks at its ends", KEY_NAME_MAX);
	set_defaults(&entry.limits);
	status = change_settings(changes, &entry.limits, error);
	if (status)
		return status;
	if (!make_key(key) || !digest_of(key, strlen(key), entry.digest))
		return error_set(error, STATUS_INTERNAL, "no random bytes or no SHA-256 from libcrypto");
	memcpy(entry.name, name, strlen(name) + 1);
	for (size_t i = 0; i < ID_CHARS / 2; i++)
		snprintf(entry.id + 2 * i, 3, "%02x", entry.digest[i]);
	rewriting.id = entry.id;
	status = begin_rewrite(path, O_CREAT, &rewriting, &file, &info, error);
	if (!status && rewriting.found)
		status = error_set(error, STATUS_INTERNAL, "%s: the new key's id %s is there already", path, entry.id);
	if (!status && rewriting.count >= KEYS_MAX)
		status = error_set(error, STATUS_LIMIT, "%s: it holds %d keys, no more are allowed", path, KEYS_MAX);
	if (!status && append_entry(&rewriting.text, &entry))
		status = error_set(error, STATUS_NOMEM, "%s: out of memory", path);
	if (!status)
		status = replace_file(path, &info, &rewriting.text, error);
	if (!status) {
		memcpy(ret_key, key, strlen(key) + 1);
		memcpy(ret_id, entry.id, sizeof entry.id);
	}
	OPENSSL_cleanse(key, sizeof key);
	buf_free(&rewriting.text);
	if (file)
		fclose(file);
	return status;
}

enum status keys_revoke(const char *path, const char *id, struct error *error)
{
	struct rewriting rewriting = { .id = id };
	struct error     unused;
	struct stat      info;
	FILE            *file = NULL;
	enum status      status;

	if (!error)
		error = &unused;
	status = begin_rewrite(path, 0, &rewriting, &file, &info, error);
	if (!status && !rewriting.found)
		status = error_set_param(error, STATUS_NOT_FOUND, "id", "%s: no key has the id %.40s", path, id);
	if (!status)
		status = replace_file(path, &info, &rewriting.text, error);
	buf_free(&rewriting.text);
	if (file)
		fclose(file);
	return status;
}

enum status keys_set(const char *path, const char *id_or_name, const struct key_changes *changes, struct error *error)
{
	struct rewriting rewriting = { .id = id_or_name, .changes = changes };
	struct error     unused;
	struct stat      info;
	FILE            *file = NULL;
	enum status      status;

	if (!error)
		error = &unused;
	if (!*id_or_name) /* every key without a name */
		return error_set_param(error, STATUS_INVALID, "id", "an id or a name is needed");
	status = begin_rewrite(path, 0, &rewriting, &file, &info, error);
	if (!status && rewriting.found == 0)
		status = error_set_param(error, STATUS_NOT_FOUND, "id", "%s: no key has the id or name %.64s", path, id_or_name);
	if (!status && rewriting.found > 1)
		status = error_set_param(error, STATUS_INVALID, "id", "%s: %zu keys are named %.64s: give an id", path,
		    rewriting.found, id_or_name);
	if (!status)
		status = replace_file(path, &info, &rewriting.text, error);
	buf_free(&rewriting.text);
	if (file)
		fclose(file);
	return status;
}

static enum status print_line(void *context, const char *line, unsigned number, const struct entry *entry)
{
	char      when[32] = "?";
	struct tm parts;
	time_t    created;

	(void)line;
	(void)number;
	if (!entry)
		return STATUS_OK;
	created = (time_t)entry->created;
	if (gmtime_r(&created, &parts))
		strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &parts);
	if (fprintf(context, "%-*s  %s  %s", ID_CHARS, entry->id, when, entry->name) < 0)
		return STATUS_IO;
	for (unsigned i = 0; i < KEY_SETTING_COUNT; i++)
		if (keys_limit(&entry->limits, i) != settings[i].initial &&
		    fprintf(context, "  %s=%lld", settings[i].name, (long long)keys_limit(&entry->limits, i)) < 0)
			return STATUS_IO;
	return fputc('\n', context) == EOF ? STATUS_IO : STATUS_OK;
}

enum status keys_list(const char *path, FILE *stream, struct error *error)
{
	struct stat info;
	enum status status;
	FILE       *file = fopen(path, "re");

	if (!file)
		return error_set(error, STATUS_IO, "%s: %s", path, strerror(errno));
	status = check_file(fileno(file), path, &info, error);
	if (!status)
		status = for_each_line(file, path, print_line, stream, error);
	fclose(file);
	return status;
}

struct naming {
	uint64_t hash;
	char     name[KEY_NAME_MAX + 1];
};

static enum status name_line(void *context, const char *line, unsigned number, const struct entry *entry)
{
	struct naming *naming = context;

	(void)line;
	(void)number;
	if (entry && keys_hash(entry->id) == naming->hash)
		memcpy(naming->name, *entry->name ? entry->name : entry->id, strlen(*entry->name ? entry->name : entry->id) + 1);
	return STATUS_OK;
}

enum status keys_name(const char *path, uint64_t hash, char ret[KEY_NAME_MAX + 1])
{
	struct naming naming = { .hash = hash };
	struct error  error;
	enum status   status;
	FILE         *file = fopen(path, "re");

	if (!file)
		return STATUS_IO;
	status = for_each_line(file, path, name_line, &naming, &error);
	fclose(file);
	if (!status && !*naming.name)
		status = STATUS_NOT_FOUND;
	if (!status)
		memcpy(ret, naming.name, sizeof naming.name);
	return status;
}
