/* token_file.c: owns the memory of a tokenizer's description and the rules that hold for every format.  Reads no format
 * itself.  Invariant: every id below `size` has a kind, and a spelling unless it is absent; added tokens ascend and exist. */
#include "vocab/token_file.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/utf8.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_IDS = 1024, FIRST_MERGES = 4096, FIRST_ADDED = 64 };

void token_file_init(struct token_file *file)
{
	*file = (struct token_file){ .unk = -1, .bos = -1 };
	buf_init(&file->text, TOKEN_FILE_TEXT_MAX);
}

void token_file_free(struct token_file *file)
{
	if (!file)
		return;
	buf_free(&file->text);
	free(file->spellings);
	free(file->kinds);
	free(file->scores);
	free(file->merges);
	free(file->added);
	token_index_free(&file->index);
	free(file->charsmap);
	json_decref(file->normalizer);
	json_decref(file->pre_tokenizer);
	json_decref(file->post_processor);
	json_decref(file->decoder);
	token_file_init(file);
}

enum status token_file_add_text(struct token_file *file, const char *bytes, size_t len, uint32_t *ret_at)
{
	size_t      at = file->text.len;
	enum status status = len ? buf_append(&file->text, bytes, len) : STATUS_OK;

	if (!status)
		*ret_at = (uint32_t)at;
	return status;
}

static enum status grow_ids(struct token_file *file, uint32_t id)
{
	uint32_t               capacity = file->ids_capacity ? file->ids_capacity : FIRST_IDS;
	struct token_spelling *spellings;
	unsigned char         *kinds;

	while (capacity <= id)
		capacity *= 2; /* id < TOKEN_FILE_IDS_MAX */
	spellings = realloc(file->spellings, capacity * sizeof *spellings);
	if (!spellings)
		return STATUS_NOMEM;
	file->spellings = spellings;
	kinds = realloc(file->kinds, capacity);
	if (!kinds)
		return STATUS_NOMEM;
	file->kinds = kinds;
	memset(spellings + file->ids_capacity, 0, (capacity - file->ids_capacity) * sizeof *spellings);
	memset(kinds + file->ids_capacity, TOKEN_ABSENT, capacity - file->ids_capacity);
	file->ids_capacity = capacity;
	return STATUS_OK;
}

enum status token_file_add(struct token_file *file, uint32_t id, const char *bytes, size_t len, enum token_kind kind,
    struct error *error)
{
	char quoted[BYTES_QUOTE_MAX];

	if (id >= TOKEN_FILE_IDS_MAX)
		return error_set(error, STATUS_LIMIT, "token %s has id %u, the limit is %d", bytes_quote(quoted, bytes, len), id,
		    TOKEN_FILE_IDS_MAX - 1);
	if (len > TOKEN_FILE_TOKEN_MAX)
		return error_set(error, STATUS_LIMIT, "token %u %s has %zu bytes, the limit is %d", id, bytes_quote(quoted, bytes, len),
		    len,
		    TOKEN_FILE_TOKEN_MAX);
	if (id >= file->ids_capacity && grow_ids(file, id))
		return error_set(error, STATUS_NOMEM, "no memory for %u tokens", id + 1);
	if (file->kinds[id] != TOKEN_ABSENT)
		return error_set(error, STATUS_INVALID, "id %u has two tokens, the second one is %s", id, bytes_quote(quoted, bytes, len));
	if (token_file_add_text(file, bytes, len, &file->spellings[id].at))
		return error_set(error, STATUS_LIMIT, "the tokens have more than %d bytes", TOKEN_FILE_TEXT_MAX);
	file->spellings[id].len = (uint32_t)len;
	file->kinds[id] = (unsigned char)kind;
	if (id >= file->size)
		file->size = id + 1;
	return STATUS_OK;
}

enum status token_file_add_merge(struct token_file *file, const char *left, size_t left_len, const char *right,
    size_t right_len, struct error *error)
{
	uint32_t at, ignored;

	if (file->merge_count == TOKEN_FILE_MERGES_MAX)
		return error_set(error, STATUS_LIMIT, "there are more than %d merges", TOKEN_FILE_MERGES_MAX);
	if (left_len > TOKEN_FILE_TOKEN_MAX || right_len > TOKEN_FILE_TOKEN_MAX)
		return error_set(error, STATUS_LIMIT, "merge %zu has %zu bytes, the limit is %d", file->merge_count, left_len + right_len,
		    TOKEN_FILE_TOKEN_MAX);
	if (file->merge_count == file->merge_capacity) {
		size_t              capacity = file->merge_capacity ? file->merge_capacity * 2 : FIRST_MERGES;
		struct token_merge *merges = realloc(file->merges, capacity * sizeof *merges);
		if (!merges)
			return error_set(error, STATUS_NOMEM, "no memory for %zu merges", capacity);
		file->merges = merges;
		file->merge_capacity = capacity;
	}
	if (token_file_add_text(file, left, left_len, &at) || token_file_add_text(file, right, right_len, &ignored))
		return error_set(error, STATUS_LIMIT, "tokens and merges have more than %d bytes", TOKEN_FILE_TEXT_MAX);
	if (!left_len)
		at = ignored;
	file->merges[file->merge_count++] = (struct token_merge){ at, (uint32_t)left_len, (uint32_t)right_len };
	return STATUS_OK;
}

enum status token_file_add_added(struct token_file *file, const struct token_added *added, struct error *error)
{
	if (file->added_count == TOKEN_FILE_ADDED_MAX)
		return error_set(error, STATUS_LIMIT, "there are more than %d added tokens", TOKEN_FILE_ADDED_MAX);
	if (file->added_count == file->added_capacity) {
		size_t              capacity = file->added_capacity ? file->added_capacity * 2 : FIRST_ADDED;
		struct token_added *list = realloc(file->added, capacity * sizeof *list);
		if (!list)
			return error_set(error, STATUS_NOMEM, "no memory for %zu added tokens", capacity);
		file->added = list;
		file->added_capacity = capacity;
	}
	file->added[file->added_count++] = *added;
	return STATUS_OK;
}

enum status token_file_add_eos(struct token_file *file, int64_t id, struct error *error)
{
	if (id < 0 || id >= file->size)
		return error_set(error, STATUS_INVALID, "the id %lld ends a sequence, but the vocabulary has %u tokens", (long long)id,
		    file->size);
	for (size_t i = 0; i < file->eos_count; i++)
		if (file->eos[i] == id)
			return STATUS_OK;
	if (file->eos_count == TOKEN_FILE_EOS_MAX)
		return error_set(error, STATUS_LIMIT, "more than %d ids end a sequence", TOKEN_FILE_EOS_MAX);
	file->eos[file->eos_count++] = (int32_t)id;
	return STATUS_OK;
}

const char *token_file_spelling(const struct token_file *file, uint32_t id, size_t *ret_len)
{
	if (id >= file->size || file->kinds[id] == TOKEN_ABSENT) {
		*ret_len = 0;
		return NULL;
	}
	*ret_len = file->spellings[id].len;
	return file->text.data ? file->text.data + file->spellings[id].at : "";
}

static bool has_type(json_t *component, const char *type)
{
	const char *name = json_string_value(json_object_get(component, "type"));
	return name && strcmp(name, type) == 0;
}

bool token_file_is_byte_level(const struct token_file *file)
{
	json_t *step = file->pre_tokenizer;

	for (int depth = 0; has_type(step, "Sequence") && depth < 8; depth++) {
		json_t *steps = json_object_get(step, "pretokenizers");
		step = json_array_get(steps, json_array_size(steps) - 1); /* NULL when it is empty */
	}
	return has_type(step, "ByteLevel");
}

static int by_id(const void *a, const void *b)
{
	const struct token_added *x = a, *y = b;
	return (x->id > y->id) - (x->id < y->id);
}

struct spelled {
	const char *bytes;
	uint32_t    len, id;
};

static int by_spelling(const void *a, const void *b)
{
	const struct spelled *x = a, *y = b;
	return bytes_compare(x->bytes, x->len, y->bytes, y->len);
}

/* Two added tokens of one spelling: which of them does the text mean? */
static enum status check_distinct(const struct token_file *file, struct error *error)
{
	struct spelled *list = malloc((file->added_count + 1) * sizeof *list);
	enum status     status = STATUS_OK;
	char            quoted[BYTES_QUOTE_MAX];

	if (!list)
		return error_set(error, STATUS_NOMEM, "no memory for %zu added tokens", file->added_count);
	for (size_t i = 0; i < file->added_count; i++) {
		size_t len;
		list[i].bytes = token_file_spelling(file, file->added[i].id, &len);
		list[i].len = (uint32_t)len;
		list[i].id = file->added[i].id;
	}
	qsort(list, file->added_count, sizeof *list, by_spelling);
	for (size_t i = 1; !status && i < file->added_count; i++)
		if (by_spelling(&list[i - 1], &list[i]) == 0) {
			uint32_t a = list[i - 1].id, b = list[i].id;
			status = error_set(error, STATUS_INVALID, "special tokens %u and %u are both spelled %s", a < b ? a : b, a < b ? b : a,
			    bytes_quote(quoted, list[i].bytes, list[i].len));
		}
	free(list);
	return status;
}

/* A special token that is a character of the model's own alphabet ("pad_token": "!") must stay text: as a control token it could
 * not be written in a message any more, nor be shown. */
static void keep_alphabet(struct token_file *file, struct token_added *added)
{
	uint32_t    code;
	size_t      len;
	const char *bytes = token_file_spelling(file, added->id, &len);

	if (!added->special || added->id >= file->model_size || file->kinds[added->id] != TOKEN_CONTROL ||
	    (size_t)utf8_decode(bytes, len, &code) != len)
		return;
	added->special = false;
	file->kinds[added->id] = TOKEN_USER;
}

enum status token_file_finish(struct token_file *file, struct error *error)
{
	char quoted[BYTES_QUOTE_MAX];

	if (file->size == 0)
		return error_set(error, STATUS_INVALID, "the vocabulary is empty");
	if (file->added_count)
		qsort(file->added, file->added_count, sizeof *file->added, by_id);
	for (size_t i = 0; i < file->added_count; i++) {
		size_t      len;
		uint32_t    id = file->added[i].id;
		const char *bytes = token_file_spelling(file, id, &len);
		if (!bytes || len == 0 || len > TOKEN_FILE_SPECIAL_MAX)
			return error_set(error, STATUS_INVALID, "special token %u %s has %zu bytes, allowed are 1 to %d", id,
			    bytes_quote(quoted, bytes ? bytes : "", len), len, TOKEN_FILE_SPECIAL_MAX);
		if (i && file->added[i - 1].id == id)
			return error_set(error, STATUS_INVALID, "the added token %u %s appears twice", id, bytes_quote(quoted, bytes, len));
		keep_alphabet(file, &file->added[i]);
	}
	if (file->unk >= 0 && ((uint32_t)file->unk >= file->size || file->kinds[file->unk] <= TOKEN_PADDING))
		return error_set(error, STATUS_INVALID, "the unknown token's id is %d, but no token has it", file->unk);
	return check_distinct(file, error);
}
