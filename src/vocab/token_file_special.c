/* token_file_special.c: owns the merging of what a model directory says of added and special tokens into what the tokenizer's
 * own file says of them, in the way of transformers 5: added_tokens_decoder of tokenizer_config.json goes first; where there is
 * none, special_tokens_map.json names special tokens before tokenizer_config.json does, and added_tokens.json adds tokens.  A
 * token that is only named ("pad_token": "<pad>") becomes a special token; one that no file gives an id gets the next one.
 * Opens no files (token_file_open.c).
 *
 * Invariant: a file never moves a token: an id or a spelling that belongs to another one is refused. */
#include "base/bytes.h"
#include "vocab/token_file.h"
#include "vocab/token_index.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { LABEL_MAX = 64, NAMED_MAX = 256 };

struct merging {
	struct token_file *file;
	struct token_index index; /* made when a token is not where it should be */
	size_t             known; /* added tokens that were there before: they ascend */
	uint32_t           rows;  /* ids without a place of their own are below it */
	struct error      *error;
};

static bool read_id(const char *text, uint32_t *ret)
{
	uint32_t id = 0;

	for (const char *c = text; *c; c++) {
		if (*c < '0' || *c > '9' || id >= TOKEN_FILE_IDS_MAX)
			return false;
		id = id * 10 + (uint32_t)(*c - '0');
	}
	*ret = id;
	return *text && id < TOKEN_FILE_IDS_MAX;
}

static struct token_added *find_added(const struct merging *m, uint32_t id)
{
	size_t low = 0, high = m->known;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (m->file->added[middle].id == id)
			return &m->file->added[middle];
		if (m->file->added[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	for (size_t i = m->known; i < m->file->added_count; i++)
		if (m->file->added[i].id == id)
			return &m->file->added[i];
	return NULL;
}

static struct token_added *find_added_text(const struct merging *m, const char *text, size_t len)
{
	for (size_t i = 0; i < m->file->added_count; i++) {
		size_t      there_len;
		const char *there = token_file_spelling(m->file, m->file->added[i].id, &there_len);
		if (there && there_len == len && memcmp(there, text, len) == 0)
			return &m->file->added[i];
	}
	return NULL;
}

/* The id of TEXT in the vocabulary, −1 when it has none.  Tokens that were added since the index was made are not in it. */
static enum status find_id(struct merging *m, const char *text, size_t len, int32_t *ret)
{
	enum status status = STATUS_OK;
	int32_t     other;

	if (!m->index.entries) {
		if (token_index_init(&m->index, m->file->size, m->file->text.data))
			return error_set(m->error, STATUS_NOMEM, "no memory for an index of %u tokens", m->file->size);
		for (uint32_t id = 0; id < m->file->size && status != STATUS_LIMIT; id++)
			if (m->file->kinds[id] > TOKEN_PADDING && m->file->spellings[id].len)
				status = token_index_add(&m->index, m->file->spellings[id].at, m->file->spellings[id].len, (int32_t)id, &other);
		if (status == STATUS_LIMIT)
			return error_set(m->error, STATUS_LIMIT, "too many spellings collide; the vocabulary looks crafted");
	}
	m->index.text = m->file->text.data;
	*ret = token_index_find(&m->index, text, len);
	return STATUS_OK;
}

/* TOKEN, whose id is certain, and its flags.  SentencePiece's own symbols are found behind its normalizer, what a directory adds
 * is found before it. */
static enum status put_added(struct merging *m, struct token_added token)
{
	struct token_added *known = find_added(m, token.id);

	token.normalized = token.normalized && !m->file->sentencepiece;
	token.special = token.special || (known && known->special); /* what was special stays so, as in the library */
	m->file->kinds[token.id] = token.special ? TOKEN_CONTROL : TOKEN_USER;
	if (!known)
		return token_file_add_added(m->file, &token, m->error);
	*known = token;
	return STATUS_OK;
}

/* TOKEN is spelled TEXT; SOURCE says so.  Is it a new one, or does the directory contradict itself? */
static enum status put_stated(struct merging *m, const char *source, const struct token_added *token, const char *text, size_t len)
{
	char        quoted[BYTES_QUOTE_MAX];
	size_t      there_len;
	const char *there = token_file_spelling(m->file, token->id, &there_len);
	int32_t     other = -1;
	enum status status = STATUS_OK;

	if (!there || there_len != len || memcmp(there, text, len) != 0) {
		status = find_id(m, text, len, &other);
		if (!status && (other >= 0 || there))
			return error_set(m->error, STATUS_INVALID, "%s says that %s has id %u, %s", source, bytes_quote(quoted, text, len),
			    token->id, other >= 0 ? "in the vocabulary it has another" : "which belongs to another token");
		if (!status)
			status = token_file_add(m->file, token->id, text, len, TOKEN_USER, m->error);
	}
	return status ? status : put_added(m, *token);
}

static struct token_added read_flags(const json_t *value)
{
	return (struct token_added){ .special = json_is_true(json_object_get(value, "special")),
		.single_word = json_is_true(json_object_get(value, "single_word")),
		.lstrip = json_is_true(json_object_get(value, "lstrip")), .rstrip = json_is_true(json_object_get(value, "rstrip")),
		.normalized = json_is_true(json_object_get(value, "normalized")) };
}

static enum status merge_decoder(struct merging *m, const json_t *decoder)
{
	static const char source[] = "tokenizer_config.json: added_tokens_decoder";
	json_t           *value;
	const char       *key;
	char              quoted[BYTES_QUOTE_MAX];
	enum status       status = STATUS_OK;

	json_object_foreach((json_t *)decoder, key, value) {
		const json_t      *content = json_object_get(value, "content");
		struct token_added token = read_flags(value);
		if (!read_id(key, &token.id) || !json_is_string(content))
			return error_set(m->error, STATUS_INVALID, "%s: %s is not an id with its content", source,
			    bytes_quote(quoted, key, strlen(key)));
		if (json_string_length(content)) /* the library passes over empty ones */
			status = put_stated(m, source, &token, json_string_value(content), json_string_length(content));
		if (status)
			return status;
	}
	return STATUS_OK;
}

/* What is named. */

static const char *const attributes[] = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
	"mask_token" };
enum { ATTRIBUTES = sizeof attributes / sizeof attributes[0], BOS = 0, EOS = 1 };

struct names {
	const json_t *values[NAMED_MAX]; /* the attributes' in their order (NULL: not named), a model's own, then further ones */
	size_t        own_count, count;  /* the ones before own_count have a role */
};

static const json_t *content_of(const json_t *value)
{
	return json_is_object(value) ? json_object_get(value, "content") : value;
}

static enum status add_name(struct merging *m, struct names *names, const json_t *value)
{
	if (!json_string_length(content_of(value)))
		return STATUS_OK;
	if (names->count == NAMED_MAX)
		return error_set(m->error, STATUS_LIMIT, "the configuration names more than %d special tokens", NAMED_MAX);
	names->values[names->count++] = value;
	return STATUS_OK;
}

static bool is_attribute(const char *key)
{
	for (size_t i = 0; i < ATTRIBUTES; i++)
		if (strcmp(key, attributes[i]) == 0)
			return true;
	return false;
}

static bool is_token_key(const char *key)
{
	size_t len = strlen(key);
	return len > 6 && strcmp(key + len - 6, "_token") == 0;
}

/* "image_token": a model's own.  Not those of BEFORE; a string that OVER says goes before. */
static enum status add_own_names(struct merging *m, struct names *names, const json_t *object, const json_t *before,
    const json_t *over)
{
	json_t     *value;
	const char *key;
	enum status status = STATUS_OK;

	json_object_foreach((json_t *)object, key, value) {
		const json_t *said = json_is_string(json_object_get(over, key)) ? json_object_get(over, key) : value;
		if (is_token_key(key) && !is_attribute(key) && !json_object_get(before, key))
			status = add_name(m, names, said);
		if (status)
			break;
	}
	return status;
}

static enum status add_extra_names(struct merging *m, struct names *names, const json_t *list)
{
	enum status status = STATUS_OK;

	for (size_t i = 0; !status && i < json_array_size(list); i++)
		status = add_name(m, names, json_array_get(list, i));
	return status;
}

/* SPECIAL, special_tokens_map.json, may be NULL. */
static enum status collect_names(struct merging *m, const json_t *tokenizer, const json_t *special, struct names *names)
{
	const json_t *extra = json_object_get(tokenizer, "extra_special_tokens");
	enum status   status;

	for (size_t i = 0; i < ATTRIBUTES; i++) {
		const json_t *value = json_object_get(special, attributes[i]);
		if (!value)
			value = json_object_get(tokenizer, attributes[i]);
		names->values[names->count++] = json_string_length(content_of(value)) ? value : NULL;
	}
	status = add_own_names(m, names, special, NULL, tokenizer);
	if (!status)
		status = add_own_names(m, names, tokenizer, special, NULL);
	if (!status && json_is_object(extra)) /* {"image_token": "<image>"} */
		status = add_own_names(m, names, extra, special, NULL);
	names->own_count = names->count;
	if (!status)
		status = add_extra_names(m, names, extra);
	if (!json_array_size(extra) && !json_object_size(extra)) {
		extra = json_object_get(tokenizer, "additional_special_tokens");
		if (!json_array_size(extra))
			extra = json_object_get(special, "additional_special_tokens");
		if (!status)
			status = add_extra_names(m, names, extra);
	}
	return status ? status : add_extra_names(m, names, json_object_get(special, "extra_special_tokens"));
}

/* For added_tokens.json: the library looks before it has read tokenizer_config.json's {"__type": "AddedToken", …}. */
static bool is_named(const struct names *names, const char *text)
{
	for (size_t i = 0; i < names->count; i++) {
		const json_t *value = i < ATTRIBUTES || i >= names->own_count ? names->values[i] : NULL;
		if (value && !json_object_get(value, "__type") && strcmp(json_string_value(content_of(value)), text) == 0)
			return true;
	}
	return false;
}

/* added_tokens.json: {"text": id}; what the tokenizer's own file says of the same id goes before. */
static enum status merge_added(struct merging *m, const json_t *added, const struct names *names)
{
	json_t     *value;
	const char *key;
	char        quoted[BYTES_QUOTE_MAX];
	enum status status = STATUS_OK;

	json_object_foreach((json_t *)added, key, value) {
		json_int_t         id = json_integer_value(value);
		bool               special = is_named(names, key);
		struct token_added token = { .special = special, .normalized = !special };
		if (!json_is_integer(value) || id < 0 || id >= TOKEN_FILE_IDS_MAX)
			return error_set(m->error, STATUS_INVALID, "added_tokens.json: the id of %s is not one in 0…%d",
			    bytes_quote(quoted, key, strlen(key)), TOKEN_FILE_IDS_MAX - 1);
		token.id = (uint32_t)id;
		if (*key && !find_added(m, token.id))
			status = put_stated(m, "added_tokens.json", &token, key, strlen(key));
		if (status)
			return status;
	}
	return STATUS_OK;
}

/* A named token is special, unless it has no role and is known as another one.  One that has no id yet gets the next; where the
 * model has no row for that, it stays unknown. */
static enum status merge_name(struct merging *m, const json_t *value, bool role, int32_t *ret_id)
{
	const json_t       *content = content_of(value);
	const char         *text = json_string_value(content);
	size_t              len = json_string_length(content);
	struct token_added *known = find_added_text(m, text, len), token = read_flags(value);
	int32_t             id;
	enum status         status;

	token.special = true;
	if (known) {
		*ret_id = (int32_t)known->id;
		known->special = known->special || role;
		m->file->kinds[known->id] = known->special ? TOKEN_CONTROL : TOKEN_USER;
		return STATUS_OK;
	}
	status = find_id(m, text, len, &id);
	if (!status && id < 0) {
		if (m->file->size >= m->rows)
			return STATUS_OK;
		id = (int32_t)m->file->size;
		status = token_file_add(m->file, (uint32_t)id, text, len, TOKEN_CONTROL, m->error);
	}
	token.id = (uint32_t)id;
	if (!status)
		status = put_added(m, token);
	if (!status)
		*ret_id = id;
	return status;
}

enum status token_file_merge_special(struct token_file *file, const json_t *tokenizer, const json_t *special, const json_t *added,
    uint32_t rows, struct token_names *ret, struct error *error)
{
	const json_t  *decoder = json_object_get(tokenizer, "added_tokens_decoder");
	struct merging m = { .file = file, .known = file->added_count, .rows = rows, .error = error };
	struct names   names = { .count = 0 };
	int32_t        ids[ATTRIBUTES], other;
	enum status    status;

	for (size_t i = 0; i < ATTRIBUTES; i++)
		ids[i] = -1;
	if (json_is_object(decoder))
		special = added = NULL;
	status = collect_names(&m, tokenizer, special, &names);
	if (!status)
		status = merge_decoder(&m, decoder);
	if (!status)
		status = merge_added(&m, added, &names);
	for (size_t i = 0; !status && i < names.count; i++)
		if (names.values[i])
			status = merge_name(&m, names.values[i], i < names.own_count, i < ATTRIBUTES ? &ids[i] : &other);
	token_index_free(&m.index);
	if (!status)
		status = token_file_finish(file, error);
	if (!status)
		*ret = (struct token_names){ .bos = ids[BOS], .eos = ids[EOS] };
	return status;
}

enum status token_file_add_stated(struct token_file *file, const json_t *decoder, struct error *error)
{
	json_t     *value;
	const char *key;
	char        quoted[BYTES_QUOTE_MAX];
	enum status status = STATUS_OK;

	json_object_foreach((json_t *)decoder, key, value) {
		const json_t *content = json_object_get(value, "content");
		uint32_t      id;
		size_t        len = json_string_length(content), there_len;
		const char   *there;
		if (!read_id(key, &id) || !len)
			return error_set(error, STATUS_INVALID, "tokenizer_config.json: added_tokens_decoder: %s is not an id with its content",
			    bytes_quote(quoted, key, strlen(key)));
		there = token_file_spelling(file, id, &there_len);
		if (there && there_len == len && memcmp(there, json_string_value(content), len) == 0)
			continue;
		status = token_file_add(file, id, json_string_value(content), len, TOKEN_CONTROL, error);
		if (status)
			break;
	}
	return status;
}
