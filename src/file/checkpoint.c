/* checkpoint.c: owns the open files of a checkpoint, the rules between an index and its shards, and the ledger of tensors
 * taken.  Does not own the rules inside one file (safetensors.c, gguf.c) and does not know what a tensor is for.
 *
 * Invariant: entries are sorted by name and the names are unique; with an index, its weight_map and the entries hold the
 * same names, each in the same shard.
 */
#include "file/checkpoint.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "file/gguf.h"
#include "file/jsonfile.h"
#include "file/map.h"
#include "file/safetensors.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

_Static_assert((int)CHECKPOINT_DIMENSIONS_MAX >= (int)SAFETENSORS_DIMENSIONS_MAX &&
        (int)CHECKPOINT_DIMENSIONS_MAX >= (int)GGUF_DIMENSIONS_MAX, "a tensor of either format must fit");

/* −1: the format has no such type. */
static const struct {
	const char *name;
	int         safetensors, gguf;
} dtypes[CHECKPOINT_DTYPE_COUNT] = {
	[CHECKPOINT_F32] = { "F32", SAFETENSORS_F32, GGUF_F32 },
	[CHECKPOINT_F16] = { "F16", SAFETENSORS_F16, GGUF_F16 },
	[CHECKPOINT_BF16] = { "BF16", SAFETENSORS_BF16, GGUF_BF16 },
	[CHECKPOINT_F8_E4M3] = { "F8_E4M3", SAFETENSORS_F8_E4M3, -1 },
	[CHECKPOINT_F8_E5M2] = { "F8_E5M2", SAFETENSORS_F8_E5M2, -1 },
	[CHECKPOINT_I8] = { "I8", SAFETENSORS_I8, -1 },
	[CHECKPOINT_U8] = { "U8", SAFETENSORS_U8, -1 },
	[CHECKPOINT_I32] = { "I32", SAFETENSORS_I32, -1 },
	[CHECKPOINT_I64] = { "I64", SAFETENSORS_I64, -1 },
	[CHECKPOINT_Q4_0] = { "Q4_0", -1, GGUF_Q4_0 },
	[CHECKPOINT_Q4_1] = { "Q4_1", -1, GGUF_Q4_1 },
	[CHECKPOINT_Q5_0] = { "Q5_0", -1, GGUF_Q5_0 },
	[CHECKPOINT_Q5_1] = { "Q5_1", -1, GGUF_Q5_1 },
	[CHECKPOINT_Q8_0] = { "Q8_0", -1, GGUF_Q8_0 },
	[CHECKPOINT_Q2_K] = { "Q2_K", -1, GGUF_Q2_K },
	[CHECKPOINT_Q3_K] = { "Q3_K", -1, GGUF_Q3_K },
	[CHECKPOINT_Q4_K] = { "Q4_K", -1, GGUF_Q4_K },
	[CHECKPOINT_Q5_K] = { "Q5_K", -1, GGUF_Q5_K },
	[CHECKPOINT_Q6_K] = { "Q6_K", -1, GGUF_Q6_K },
	[CHECKPOINT_IQ4_NL] = { "IQ4_NL", -1, GGUF_IQ4_NL },
	[CHECKPOINT_IQ4_XS] = { "IQ4_XS", -1, GGUF_IQ4_XS },
};

struct shard {
	char               *name; /* of the file, without directories */
	struct safetensors *file;
};

struct entry {
	struct checkpoint_tensor tensor;
	bool                     taken;
};

struct checkpoint {
	char         *path;
	struct shard *shards; /* sorted by name; one without file, for a GGUF */
	size_t        shard_count;
	struct gguf  *gguf_owned; /* the one below, unless it is borrowed */
	const struct gguf *gguf;
	struct entry *entries; /* sorted by name */
	size_t        count;
	unsigned      more_users; /* who must close it, too */
};

static enum status bad(const struct checkpoint *checkpoint, struct error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum status bad(const struct checkpoint *checkpoint, struct error *error, const char *format, ...)
{
	char    text[340];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	return error_set(error, STATUS_INVALID, "%.160s: %s", checkpoint->path, text);
}

static enum status no_memory(const struct checkpoint *checkpoint, struct error *error)
{
	return error_set(error, STATUS_NOMEM, "%.160s: no memory", checkpoint->path);
}

static const char *quote(char ret_text[BYTES_QUOTE_MAX], const char *name) { return bytes_quote(ret_text, name, strlen(name)); }

/* Adds a shard to the (unsorted) list. */
static enum status add_shard(struct checkpoint *checkpoint, const char *name, struct error *error)
{
	struct shard *more = reallocarray(checkpoint->shards, checkpoint->shard_count + 1, sizeof *more);

	if (!more)
		return no_memory(checkpoint, error);
	checkpoint->shards = more;
	more[checkpoint->shard_count] = (struct shard){ .name = strdup(name) };
	if (!more[checkpoint->shard_count].name)
		return no_memory(checkpoint, error);
	checkpoint->shard_count++;
	return STATUS_OK;
}

static int compare_strings(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static int compare_entries(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->tensor.name, ((const struct entry *)b)->tensor.name);
}

static struct entry *find(const struct checkpoint *checkpoint, const char *name)
{
	const struct entry key = { .tensor.name = name };
	return bsearch(&key, checkpoint->entries, checkpoint->count, sizeof key, compare_entries);
}

/* ---- the view over the open files --------------------------------------------------------------------------------- */

/* CHECKPOINT_DTYPE_COUNT when the table has no such row. */
static enum checkpoint_dtype dtype_of(int safetensors, int gguf)
{
	for (unsigned i = 0; i < CHECKPOINT_DTYPE_COUNT; i++)
		if (safetensors >= 0 ? dtypes[i].safetensors == safetensors : dtypes[i].gguf == gguf)
			return (enum checkpoint_dtype)i;
	return CHECKPOINT_DTYPE_COUNT;
}

static struct checkpoint_tensor view_safetensors(const struct safetensors_tensor *from, const char *shard, const struct map *map)
{
	struct checkpoint_tensor to = { .name = from->name, .shard = shard, .dtype = dtype_of((int)from->dtype, -1),
		.n_dims = from->n_dims, .data = from->data, .bytes = from->bytes, .map = map };

	for (unsigned i = 0; i < CHECKPOINT_DIMENSIONS_MAX; i++)
		to.dims[i] = i < from->n_dims ? from->dims[i] : 1;
	return to;
}

static struct checkpoint_tensor view_gguf(const struct gguf_tensor *from, const char *shard, const struct map *map)
{
	struct checkpoint_tensor to = { .name = from->name, .shard = shard, .dtype = dtype_of(-1, (int)from->type),
		.n_dims = from->n_dims, .data = from->data, .bytes = from->bytes, .map = map };

	for (unsigned i = 0; i < CHECKPOINT_DIMENSIONS_MAX; i++)
		to.dims[i] = i < from->n_dims ? from->dims[from->n_dims - 1 - i] : 1;
	return to;
}

static enum status collect(struct checkpoint *checkpoint, struct error *error)
{
	size_t total = checkpoint->gguf ? gguf_tensor_count(checkpoint->gguf) : 0;
	char   quoted[BYTES_QUOTE_MAX];

	for (size_t s = 0; s < checkpoint->shard_count; s++)
		total += checkpoint->shards[s].file ? safetensors_count(checkpoint->shards[s].file) : 0; /* ≤ 2^12 · 2^20 */
	if (total == 0)
		return bad(checkpoint, error, "there is no tensor in it");
	checkpoint->entries = calloc(total, sizeof *checkpoint->entries);
	if (!checkpoint->entries)
		return no_memory(checkpoint, error);
	for (size_t i = 0; checkpoint->gguf && i < total; i++)
		checkpoint->entries[checkpoint->count++].tensor =
		    view_gguf(gguf_tensor_at(checkpoint->gguf, i), checkpoint->shards[0].name, gguf_map(checkpoint->gguf));
	for (size_t s = 0; s < checkpoint->shard_count; s++) {
		const struct shard *shard = &checkpoint->shards[s];
		for (size_t i = 0; shard->file && i < safetensors_count(shard->file); i++)
			checkpoint->entries[checkpoint->count++].tensor = view_safetensors(safetensors_at(shard->file, i), shard->name,
			    safetensors_map(shard->file));
	}
	for (size_t i = 0; i < checkpoint->count; i++)
		if (checkpoint->entries[i].tensor.dtype == CHECKPOINT_DTYPE_COUNT)
			return error_set(error, STATUS_UNSUPPORTED, "%.160s: tensor %s: its type is not supported", checkpoint->path,
			    quote(quoted, checkpoint->entries[i].tensor.name));
	qsort(checkpoint->entries, checkpoint->count, sizeof *checkpoint->entries, compare_entries);
	for (size_t i = 1; i < checkpoint->count; i++) {
		const struct checkpoint_tensor *x = &checkpoint->entries[i - 1].tensor, *y = &checkpoint->entries[i].tensor;
		if (strcmp(x->name, y->name) == 0)
			return bad(checkpoint, error, "tensor %s is both in %.64s and in %.64s", quote(quoted, x->name), x->shard,
			    y->shard);
	}
	return STATUS_OK;
}

/* ---- index and shards --------------------------------------------------------------------------------------------- */

/* "model.safetensors" or "model-00001-of-00030.safetensors": what the loaders of this format look for. */
static bool is_shard_name(const char *name)
{
	const char *at = name;

	if (strcmp(name, SINGLE_NAME) == 0)
		return true;
	if (strncmp(at, "model-", 6) != 0)
		return false;
	at += 6;
	while (isdigit((unsigned char)*at))
		at++;
	if (strncmp(at, "-of-", 4) != 0)
		return false;
	at += 4;
	while (isdigit((unsigned char)*at))
		at++;
	return strcmp(at, ".safetensors") == 0;
}

/* The directory's files as far as they concern a checkpoint. */
struct listing {
	bool   has_index, has_single;
	char   other[BYTES_QUOTE_MAX]; /* a weight file of another kind, for the message; "" for none */
	char **shards;                 /* names of files that look like shards, sorted */
	size_t shard_count;
};

static void listing_free(struct listing *listing)
{
	for (size_t i = 0; i < listing->shard_count; i++)
		free(listing->shards[i]);
	free(listing->shards);
}

static enum status listing_add(struct listing *listing, const char *path, const char *name, struct error *error)
{
	char **more = NULL;

	if (listing->shard_count == CHECKPOINT_SHARDS_MAX)
		return error_set(error, STATUS_LIMIT, "%.160s: over %d shards, the limit", path, CHECKPOINT_SHARDS_MAX);
	more = reallocarray(listing->shards, listing->shard_count + 1, sizeof *more);
	if (more) {
		listing->shards = more;
		more[listing->shard_count] = strdup(name);
	}
	if (!more || !more[listing->shard_count])
		return error_set(error, STATUS_NOMEM, "%.160s: no memory", path);
	listing->shard_count++;
	return STATUS_OK;
}

static enum status listing_read(const char *path, struct listing *listing, struct error *error)
{
	DIR           *dir = opendir(path);
	struct dirent *item;
	enum status    status = STATUS_OK;

	if (!dir)
		return error_set(error, STATUS_IO, "%.160s: cannot read the directory: %s", path, strerror(errno));
	while (!status && (item = readdir(dir))) {
		const char *dot = strrchr(item->d_name, '.');
		if (strcmp(item->d_name, INDEX_NAME) == 0)
			listing->has_index = true;
		else if (is_shard_name(item->d_name)) {
			listing->has_single |= strcmp(item->d_name, SINGLE_NAME) == 0;
			status = listing_add(listing, path, item->d_name, error);
		} else if (dot && (strcmp(dot, ".bin") == 0 || strcmp(dot, ".gguf") == 0 || strcmp(dot, ".pt") == 0))
			quote(listing->other, item->d_name);
	}
	closedir(dir);
	if (!status && listing->shard_count)
		qsort(listing->shards, listing->shard_count, sizeof *listing->shards, compare_strings);
	return status;
}

static enum status open_shards(struct checkpoint *checkpoint, struct error *error)
{
	for (size_t s = 0; s < checkpoint->shard_count; s++) {
		struct shard *shard = &checkpoint->shards[s];
		char         *path;
		enum status   status;
		if (asprintf(&path, "%s/%s", checkpoint->path, shard->name) < 0)
			return no_memory(checkpoint, error);
		status = safetensors_open(path, &shard->file, error);
		free(path);
		if (status == STATUS_NOT_FOUND)
			return bad(checkpoint, error, "%.128s is missing, " INDEX_NAME " names it", shard->name);
		if (status)
			return status;
	}
	return STATUS_OK;
}

/* A name of letters, digits, '.', '_' and '-', so that an index cannot reach out of its directory. */
static bool is_plain_name(const char *name)
{
	size_t len = strlen(name), suffix = strlen(".safetensors");

	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
			return false;
	return len > suffix && len <= 128 && strcmp(name + len - suffix, ".safetensors") == 0;
}

/* The distinct file names of weight_map become the shards. */
static enum status list_shards(struct checkpoint *checkpoint, json_t *weight_map, struct error *error)
{
	size_t       count = json_object_size(weight_map), at = 0;
	const char **files = calloc(count + 1, sizeof *files), *name;
	json_t      *value;
	char         quoted[BYTES_QUOTE_MAX], quoted_file[BYTES_QUOTE_MAX];
	enum status  status = STATUS_OK;

	if (!files)
		return no_memory(checkpoint, error);
	json_object_foreach(weight_map, name, value) {
		const char *file = json_string_value(value);
		if (!file || !is_plain_name(file))
			status = bad(checkpoint, error, INDEX_NAME ": weight_map: tensor %s is in %s, no file name *.safetensors",
			    quote(quoted, name), file ? quote(quoted_file, file) : "no string");
		if (status)
			break;
		files[at++] = file;
	}
	qsort(files, at, sizeof *files, compare_strings);
	for (size_t i = 0; !status && i < at; i++) {
		if (i && strcmp(files[i], files[i - 1]) == 0)
			continue;
		if (checkpoint->shard_count == CHECKPOINT_SHARDS_MAX)
			status = error_set(error, STATUS_LIMIT, "%.160s/" INDEX_NAME ": over %d shards, the limit", checkpoint->path,
			    CHECKPOINT_SHARDS_MAX);
		else
			status = add_shard(checkpoint, files[i], error);
	}
	free(files);
	return status;
}

/* Both directions: what lies in the shards is what the index says. */
static enum status check_index(const struct checkpoint *checkpoint, json_t *weight_map, struct error *error)
{
	const char *name;
	json_t     *value;
	char        quoted[BYTES_QUOTE_MAX];

	for (size_t i = 0; i < checkpoint->count; i++) {
		const struct checkpoint_tensor *tensor = &checkpoint->entries[i].tensor;
		const char                     *file = json_string_value(json_object_get(weight_map, tensor->name));
		if (!file)
			return bad(checkpoint, error, "tensor %s of %.64s is not in " INDEX_NAME ": they are not of one save",
			    quote(quoted, tensor->name), tensor->shard);
		if (strcmp(file, tensor->shard) != 0)
			return bad(checkpoint, error, "tensor %s is in %.64s, " INDEX_NAME " says %.64s", quote(quoted, tensor->name),
			    tensor->shard, file);
	}
	json_object_foreach(weight_map, name, value)
		if (!find(checkpoint, name))
			return bad(checkpoint, error, "tensor %s is not in %.64s, where " INDEX_NAME " says it is", quote(quoted, name),
			    json_string_value(value));
	return STATUS_OK;
}

static enum status open_indexed(struct checkpoint *checkpoint, const struct listing *listing, struct error *error)
{
	json_t     *index = NULL, *weight_map;
	char       *path;
	enum status status;

	if (asprintf(&path, "%s/" INDEX_NAME, checkpoint->path) < 0)
		return no_memory(checkpoint, error);
	status = jsonfile_open(path, &index, error);
	if (status)
		goto out;
	weight_map = json_object_get(index, "weight_map");
	if (json_object_size(weight_map) == 0) { /* 0 for what is no object, too */
		status = bad(checkpoint, error, INDEX_NAME ": weight_map is missing, empty or no object");
		goto out;
	}
	status = list_shards(checkpoint, weight_map, error);
	for (size_t i = 0; !status && i < listing->shard_count; i++) {
		bool listed = false;
		for (size_t s = 0; !listed && s < checkpoint->shard_count; s++)
			listed = strcmp(checkpoint->shards[s].name, listing->shards[i]) == 0;
		if (!listed)
			status = bad(checkpoint, error, "%.128s is not in " INDEX_NAME ": a stray shard, or a stale index", listing->shards[i]);
	}
	if (!status)
		status = open_shards(checkpoint, error);
	if (!status)
		status = collect(checkpoint, error);
	if (!status)
		status = check_index(checkpoint, weight_map, error);
out:
	json_decref(index);
	free(path);
	return status;
}

static enum status open_directory(struct checkpoint *checkpoint, struct error *error)
{
	struct listing listing = { 0 };
	enum status    status = listing_read(checkpoint->path, &listing, error);

	if (!status && listing.has_index)
		status = open_indexed(checkpoint, &listing, error);
	else if (!status && listing.has_single && listing.shard_count > 1)
		status = bad(checkpoint, error, SINGLE_NAME " and %.128s are there without " INDEX_NAME
		    ": remove what does not belong to the model", listing.shards[0]); /* '-' sorts before '.' */
	else if (!status && listing.has_single) {
		status = add_shard(checkpoint, SINGLE_NAME, error);
		if (!status)
			status = open_shards(checkpoint, error);
		if (!status)
			status = collect(checkpoint, error);
	} else if (!status && listing.shard_count)
		status = bad(checkpoint, error, "%.128s is there, " INDEX_NAME " is missing", listing.shards[0]);
	else if (!status)
		status = error_set(error, STATUS_NOT_FOUND, "%.160s: neither " SINGLE_NAME " nor " INDEX_NAME " is there%s%s%s",
		    checkpoint->path, *listing.other ? " (there is " : "", listing.other,
		    *listing.other ? ": convert it to safetensors, or name a .gguf file itself)" : "");
	listing_free(&listing);
	return status;
}

static enum status open_file(struct checkpoint *checkpoint, struct error *error)
{
	const char *slash = strrchr(checkpoint->path, '/');
	struct map  map;
	bool        is_gguf;
	enum status status = map_open(checkpoint->path, SIZE_MAX, &map, error);

	if (status)
		return status;
	is_gguf = map.size >= 4 && memcmp(map.bytes, "GGUF", 4) == 0;
	map_close(&map);
	status = add_shard(checkpoint, slash ? slash + 1 : checkpoint->path, error);
	if (status)
		return status;
	status = is_gguf ? gguf_open(checkpoint->path, &checkpoint->gguf_owned, error) :
	    safetensors_open(checkpoint->path, &checkpoint->shards[0].file, error);
	checkpoint->gguf = checkpoint->gguf_owned;
	return status ? status : collect(checkpoint, error);
}

/* ---- the interface ------------------------------------------------------------------------------------------------ */

enum status checkpoint_open(const char *path, struct checkpoint **ret, struct error *error)
{
	struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
	struct stat        info;
	enum status        status;

	if (!checkpoint || !(checkpoint->path = strdup(path))) {
		free(checkpoint);
		return error_set(error, STATUS_NOMEM, "%.160s: no memory", path);
	}
	if (stat(path, &info) < 0)
		status = error_set(error, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%.160s: %s", path, strerror(errno));
	else
		status = S_ISDIR(info.st_mode) ? open_directory(checkpoint, error) : open_file(checkpoint, error);
	if (status) {
		checkpoint_close(checkpoint);
		return status;
	}
	*ret = checkpoint;
	return STATUS_OK;
}

enum status checkpoint_from_gguf(const struct gguf *gguf, struct checkpoint **ret, struct error *error)
{
	struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
	enum status        status;

	if (!checkpoint || !(checkpoint->path = strdup("the GGUF file"))) {
		free(checkpoint);
		return error_set(error, STATUS_NOMEM, "the GGUF file: no memory");
	}
	checkpoint->gguf = gguf;
	status = add_shard(checkpoint, checkpoint->path, error);
	if (!status)
		status = collect(checkpoint, error);
	if (status) {
		checkpoint_close(checkpoint);
		return status;
	}
	*ret = checkpoint;
	return STATUS_OK;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
	if (!checkpoint || checkpoint->more_users) {
		if (checkpoint)
			checkpoint->more_users--;
		return;
	}
	for (size_t s = 0; s < checkpoint->shard_count; s++) {
		safetensors_close(checkpoint->shards[s].file);
		free(checkpoint->shards[s].name);
	}
	gguf_close(checkpoint->gguf_owned);
	free(checkpoint->shards);
	free(checkpoint->entries);
	free(checkpoint->path);
	free(checkpoint);
}

struct checkpoint *checkpoint_share(struct checkpoint *checkpoint)
{
	checkpoint->more_users++;
	return checkpoint;
}

size_t checkpoint_count(const struct checkpoint *checkpoint) { return checkpoint->count; }

const struct checkpoint_tensor *checkpoint_at(const struct checkpoint *checkpoint, size_t index)
{
	return index < checkpoint->count ? &checkpoint->entries[index].tensor : NULL;
}

const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *checkpoint, const char *name)
{
	const struct entry *entry = find(checkpoint, name);
	return entry ? &entry->tensor : NULL;
}

enum status checkpoint_take(struct checkpoint *checkpoint, const char *name, const struct checkpoint_tensor **ret,
    struct error *error)
{
	struct entry *entry = find(checkpoint, name);
	char          quoted[BYTES_QUOTE_MAX];

	if (!entry)
		return error_set(error, STATUS_NOT_FOUND, "%.160s: tensor %s is missing", checkpoint->path, quote(quoted, name));
	if (entry->taken)
		return bad(checkpoint, error, "tensor %s is used twice", quote(quoted, name));
	entry->taken = true;
	*ret = &entry->tensor;
	return STATUS_OK;
}

bool checkpoint_taken(const struct checkpoint *checkpoint, size_t index)
{
	return index < checkpoint->count && checkpoint->entries[index].taken;
}

void checkpoint_release(const struct checkpoint *checkpoint, const void *data, size_t bytes)
{
	/* A borrowed handle may lie over memory that is no map of a file, whose pages would be lost. */
	if (checkpoint->gguf == checkpoint->gguf_owned)
		map_release(data, bytes);
}

enum status checkpoint_finish(const struct checkpoint *checkpoint, struct error *error)
{
	const struct checkpoint_tensor *first = NULL;
	size_t                          left = 0;
	char                            quoted[BYTES_QUOTE_MAX];

	for (size_t i = 0; i < checkpoint->count; i++) {
		if (checkpoint->entries[i].taken)
			continue;
		left++;
		if (!first)
			first = &checkpoint->entries[i].tensor;
	}
	if (!left)
		return STATUS_OK;
	return bad(checkpoint, error, "tensor %s (%s) is not part of this architecture; %zu of %zu tensors are unused",
	    quote(quoted, first->name), checkpoint_dtype_name(first->dtype), left, checkpoint->count);
}

static const char *format_shape(char *ret_text, size_t size, const uint64_t *dims, unsigned n_dims)
{
	size_t at = (size_t)snprintf(ret_text, size, "[");

	for (unsigned i = 0; i < n_dims && at < size; i++)
		at += (size_t)snprintf(ret_text + at, size - at, i ? ", %llu" : "%llu", (unsigned long long)dims[i]);
	if (at < size)
		snprintf(ret_text + at, size - at, "]");
	return ret_text;
}

enum status checkpoint_check_shape(const struct checkpoint_tensor *tensor, const uint64_t *dims, unsigned n_dims,
    struct error *error)
{
	char quoted[BYTES_QUOTE_MAX], is[CHECKPOINT_DIMENSIONS_MAX * 22 + 3], needed[sizeof is];

	if (tensor->n_dims == n_dims && (n_dims == 0 || memcmp(tensor->dims, dims, n_dims * sizeof *dims) == 0))
		return STATUS_OK;
	return error_set(error, STATUS_INVALID, "%.128s: tensor %s has the shape %s, %s is needed", tensor->shard,
	    quote(quoted, tensor->name), format_shape(is, sizeof is, tensor->dims, tensor->n_dims),
	    format_shape(needed, sizeof needed, dims, n_dims));
}

const struct gguf *checkpoint_gguf(const struct checkpoint *checkpoint) { return checkpoint->gguf; }

const char *checkpoint_dtype_name(enum checkpoint_dtype dtype)
{
	return (unsigned)dtype < CHECKPOINT_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}
