/* token_file_json.c: owns the reading of tokenizer.json (the format of the tokenizers library).  Knows no component: it
 * keeps their JSON for those who do.
 *
 * Vocabulary and merges are half a million strings: a tree of JSON objects costs four times what this pass costs (350 ms
 * for an 11 MB file on the machine of BENCHMARKS.md), so they are pulled; the small rest goes through jansson.
 *
 * Invariant: what the file contradicts itself in is refused: an id or a spelling that appears twice, a merge of unknown
 * parts (text/tokenizer_load.c), an added token whose id the vocabulary gives to another spelling.
 */
#include "base/bytes.h"
#include "file/json_pull.h"
#include "vocab/token_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct span {
	const char *bytes;
	size_t      len;
};

struct reading {
	struct token_file *file;
	struct json_pull   pull;
	const char        *label;
	struct error      *error;
	struct buf         left; /* the first part of a merge */
	struct span        added, type, unk;
	bool               has_merges, has_scores, has_prefix, has_max;
	char               type_name[16], unk_token[TOKEN_FILE_SPECIAL_MAX + 1];
	size_t             unk_len;
	int64_t            unk_id;
};

static bool key_is(const char *key, size_t len, const char *name) { return strlen(name) == len && memcmp(key, name, len) == 0; }

/* Puts the label before a message of token_file. */
static enum status prefixed(struct reading *reading, enum status status)
{
	char message[ERROR_MESSAGE_MAX];

	if (!status || !reading->error)
		return status;
	memcpy(message, reading->error->message, sizeof message);
	return error_set(reading->error, status, "%.160s: %s", reading->label, message);
}

static enum status bad(struct reading *reading) { return json_pull_error(&reading->pull, reading->label, reading->error); }

/* The object under KEY as a tree; null is none. */
static enum status read_tree(struct reading *reading, const char *key, json_t **ret)
{
	const char  *bytes;
	size_t       len;
	json_error_t why;

	if (json_pull_null(&reading->pull))
		return STATUS_OK;
	if (!json_pull_skip(&reading->pull, &bytes, &len))
		return bad(reading);
	if (*ret)
		return error_set(reading->error, STATUS_INVALID, "%.160s: %s appears twice", reading->label, key);
	*ret = json_loadb(bytes, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
	if (!*ret || !json_is_object(*ret))
		return error_set(reading->error, STATUS_INVALID, "%.160s: %s is not a JSON object that can be used", reading->label, key);
	return STATUS_OK;
}

static enum status read_vocab_object(struct reading *reading)
{
	struct json_pull *pull = &reading->pull;
	const char       *key;
	size_t            len;
	int64_t           id;
	enum status       status = STATUS_OK;

	if (!json_pull_enter(pull, '{'))
		return bad(reading);
	while (!status && json_pull_key(pull, &key, &len)) {
		/* The key may lie in the reader's scratch, which a number does not touch. */
		if (!json_pull_integer(pull, 0, TOKEN_FILE_IDS_MAX - 1, &id))
			return bad(reading);
		status = prefixed(reading, token_file_add(reading->file, (uint32_t)id, key, len, TOKEN_NORMAL, reading->error));
	}
	return status ? status : json_pull_failed(pull) ? bad(reading) : STATUS_OK;
}

/* Unigram: [["piece", score], …], ids in order. */
static enum status read_vocab_list(struct reading *reading)
{
	struct json_pull *pull = &reading->pull;
	const char       *piece;
	size_t            len, capacity = 0;
	double            score;
	uint32_t          id = 0;
	enum status       status = STATUS_OK;

	reading->has_scores = true;
	if (!json_pull_enter(pull, '['))
		return bad(reading);
	while (!status && json_pull_element(pull)) {
		if (!json_pull_enter(pull, '[') || !json_pull_element(pull) || !json_pull_string(pull, &piece, &len))
			return bad(reading);
		status = prefixed(reading, token_file_add(reading->file, id, piece, len, TOKEN_NORMAL, reading->error));
		if (status)
			return status;
		if (!json_pull_element(pull) || !json_pull_number(pull, &score))
			return bad(reading);
		if (json_pull_element(pull))
			json_pull_refuse(pull, "a piece and its score are needed");
		if (id == capacity) {
			double *scores;
			capacity = capacity ? capacity * 2 : 1024;
			scores = realloc(reading->file->scores, capacity * sizeof *scores);
			if (!scores)
				return error_set(reading->error, STATUS_NOMEM, "%.160s: no memory for %zu scores", reading->label, capacity);
			reading->file->scores = scores;
		}
		reading->file->scores[id++] = score;
	}
	return status ? status : json_pull_failed(pull) ? bad(reading) : STATUS_OK;
}

static enum status read_merge(struct reading *reading)
{
	static const char version[] = "#version";
	struct json_pull *pull = &reading->pull;
	const char       *bytes, *space;
	size_t            len;
	char              quoted[BYTES_QUOTE_MAX];

	if (json_pull_peek(pull) == '"') {
		if (!json_pull_string(pull, &bytes, &len))
			return bad(reading);
		if (len >= sizeof version - 1 && memcmp(bytes, version, sizeof version - 1) == 0)
			return STATUS_OK; /* the first line of a merges.txt: the library passes over it */
		space = len ? memchr(bytes, ' ', len) : NULL;
		if (!space || memchr(space + 1, ' ', (size_t)(bytes + len - space - 1)))
			return error_set(reading->error, STATUS_INVALID, "%.160s: merge %zu %s is not two parts with one space between",
			    reading->label, reading->file->merge_count, bytes_quote(quoted, bytes, len));
		return prefixed(reading, token_file_add_merge(reading->file, bytes, (size_t)(space - bytes), space + 1,
		    (size_t)(bytes + len - space - 1), reading->error));
	}
	if (!json_pull_enter(pull, '[') || !json_pull_element(pull) || !json_pull_string(pull, &bytes, &len))
		return bad(reading);
	buf_clear(&reading->left);
	if (buf_append(&reading->left, bytes, len))
		return error_set(reading->error, STATUS_LIMIT, "%.160s: merge %zu has more than %d bytes", reading->label,
		    reading->file->merge_count, TOKEN_FILE_TOKEN_MAX);
	if (!json_pull_element(pull) || !json_pull_string(pull, &bytes, &len))
		return bad(reading);
	if (json_pull_element(pull))
		json_pull_refuse(pull, "a merge has two parts");
	if (json_pull_failed(pull))
		return bad(reading);
	return prefixed(reading,
	    token_file_add_merge(reading->file, reading->left.data, reading->left.len, bytes, len, reading->error));
}

static enum status read_merges(struct reading *reading)
{
	enum status status = STATUS_OK;

	reading->has_merges = true;
	if (!json_pull_enter(&reading->pull, '['))
		return bad(reading);
	while (!status && json_pull_element(&reading->pull))
		status = read_merge(reading);
	return status ? status : json_pull_failed(&reading->pull) ? bad(reading) : STATUS_OK;
}

/* A short string, or null for "". */
static enum status read_name(struct reading *reading, const char *key, char *ret, size_t size, size_t *ret_len)
{
	const char *bytes = "";
	size_t      len = 0;

	if (!json_pull_null(&reading->pull) && !json_pull_string(&reading->pull, &bytes, &len))
		return bad(reading);
	if (len >= size || memchr(bytes, '\0', len))
		return error_set(reading->error, STATUS_LIMIT, "%.160s: model.%s has %zu bytes or a NUL, the limit is %zu", reading->label,
		    key, len, size - 1);
	memcpy(ret, bytes, len);
	ret[len] = '\0';
	if (ret_len)
		*ret_len = len;
	return STATUS_OK;
}

static enum status read_flag(struct reading *reading, bool *ret)
{
	*ret = false;
	return json_pull_null(&reading->pull) || json_pull_bool(&reading->pull, ret) ? STATUS_OK : bad(reading);
}

static enum status read_model_key(struct reading *reading, const char *key, size_t len)
{
	struct token_file *file = reading->file;
	const char        *bytes;
	size_t             skipped;
	int64_t            number;
	char               quoted[BYTES_QUOTE_MAX];

	if (key_is(key, len, "vocab"))
		return json_pull_peek(&reading->pull) == '[' ? read_vocab_list(reading) : read_vocab_object(reading);
	if (key_is(key, len, "merges"))
		return read_merges(reading);
	if (key_is(key, len, "type"))
		return read_name(reading, "type", reading->type_name, sizeof reading->type_name, NULL);
	if (key_is(key, len, "unk_token"))
		return read_name(reading, "unk_token", reading->unk_token, sizeof reading->unk_token, &reading->unk_len);
	if (key_is(key, len, "continuing_subword_prefix")) {
		reading->has_prefix = true;
		return read_name(reading, "continuing_subword_prefix", file->prefix, sizeof file->prefix, NULL);
	}
	if (key_is(key, len, "end_of_word_suffix"))
		return read_name(reading, "end_of_word_suffix", file->suffix, sizeof file->suffix, NULL);
	if (key_is(key, len, "byte_fallback"))
		return read_flag(reading, &file->byte_fallback);
	if (key_is(key, len, "fuse_unk"))
		return read_flag(reading, &file->fuse_unk);
	if (key_is(key, len, "ignore_merges"))
		return read_flag(reading, &file->ignore_merges);
	if (key_is(key, len, "unk_id"))
		return json_pull_null(&reading->pull) || json_pull_integer(&reading->pull, 0, TOKEN_FILE_IDS_MAX - 1, &reading->unk_id) ?
		    STATUS_OK : bad(reading);
	if (key_is(key, len, "max_input_chars_per_word")) {
		if (!json_pull_integer(&reading->pull, 0, TOKEN_FILE_TOKEN_MAX, &number))
			return bad(reading);
		reading->has_max = true;
		file->max_word_chars = (size_t)number;
		return STATUS_OK;
	}
	if (key_is(key, len, "dropout")) /* of training */
		return json_pull_skip(&reading->pull, &bytes, &skipped) ? STATUS_OK : bad(reading);
	return error_set(reading->error, STATUS_UNSUPPORTED, "%.160s: the model's %s is not known here", reading->label,
	    bytes_quote(quoted, key, len));
}

static enum status read_model(struct reading *reading)
{
	static const char *const names[] = { "BPE", "WordPiece", "Unigram", "WordLevel" };
	const char              *key;
	size_t                   len, type;
	char                     quoted[BYTES_QUOTE_MAX];
	enum status              status = STATUS_OK;

	if (reading->file->size)
		return error_set(reading->error, STATUS_INVALID, "%.160s: model appears twice", reading->label);
	if (!json_pull_enter(&reading->pull, '{'))
		return bad(reading);
	while (!status && json_pull_key(&reading->pull, &key, &len))
		status = read_model_key(reading, key, len);
	if (!status && json_pull_failed(&reading->pull))
		status = bad(reading);
	if (status)
		return status;
	if (!*reading->type_name) /* files of old: told by what they have */
		snprintf(reading->type_name, sizeof reading->type_name, "%s", reading->has_merges ? "BPE" : reading->has_scores ?
		    "Unigram" :
		    reading->has_prefix || reading->has_max ? "WordPiece" : "WordLevel");
	for (type = 0; type < 4 && strcmp(names[type], reading->type_name) != 0; type++)
		;
	if (type == 4)
		return error_set(reading->error, STATUS_UNSUPPORTED, "%.160s: the model %s is not known here", reading->label,
		    bytes_quote(quoted, reading->type_name, strlen(reading->type_name)));
	reading->file->model = (enum token_model)type;
	reading->file->model_size = reading->file->size;
	if ((type == TOKEN_UNIGRAM) != reading->has_scores)
		return error_set(reading->error, STATUS_INVALID, "%.160s: the vocabulary of a model of type %s is %s", reading->label,
		    names[type], type == TOKEN_UNIGRAM ? "a list of pieces and scores" : "an object");
	if (type == TOKEN_WORDPIECE && !reading->has_prefix)
		memcpy(reading->file->prefix, "##", 3);
	if (type == TOKEN_WORDPIECE && !reading->has_max)
		reading->file->max_word_chars = 100;
	return STATUS_OK;
}

/* Every spelling of the model, each once. */
static enum status index_model(struct reading *reading)
{
	struct token_file  *file = reading->file;
	struct token_index *index = &file->index;
	char                quoted[BYTES_QUOTE_MAX];

	if (token_index_init(index, file->size, file->text.data))
		return error_set(reading->error, STATUS_NOMEM, "%.160s: no memory for an index", reading->label);
	for (uint32_t i = 0; i < file->size; i++) {
		uint32_t    id = file->model == TOKEN_UNIGRAM ? file->size - 1 - i : i; /* of equal pieces the last one counts there */
		size_t      len;
		const char *bytes = token_file_spelling(file, id, &len);
		int32_t     other = -1;
		enum status status;
		if (!bytes || !len)
			continue;
		status = token_index_add(index, file->spellings[id].at, len, (int32_t)id, &other);
		if (status == STATUS_INVALID && file->model == TOKEN_UNIGRAM)
			continue;
		if (status == STATUS_INVALID)
			return error_set(reading->error, status, "%.160s: tokens %d and %u are both spelled %s", reading->label, other, id,
			    bytes_quote(quoted, bytes, len));
		if (status)
			return error_set(reading->error, status, "%.160s: token %u: too many spellings collide; the vocabulary looks crafted",
			    reading->label, id);
	}
	return STATUS_OK;
}

static enum status read_added_flags(struct reading *reading, struct token_added *added, struct span *content, struct buf *copy)
{
	struct json_pull *pull = &reading->pull;
	const char       *key, *bytes;
	size_t            len, skipped;
	int64_t           id = -1;
	const struct {
		const char *name;
		bool       *flag;
	} flags[] = { { "special", &added->special }, { "single_word", &added->single_word }, { "lstrip", &added->lstrip },
		{ "rstrip", &added->rstrip }, { "normalized", &added->normalized } };

	added->normalized = true;
	if (!json_pull_enter(pull, '{'))
		return bad(reading);
	while (json_pull_key(pull, &key, &len)) {
		size_t i;
		if (key_is(key, len, "id")) {
			if (!json_pull_integer(pull, 0, TOKEN_FILE_IDS_MAX - 1, &id))
				return bad(reading);
			continue;
		}
		if (key_is(key, len, "content")) {
			buf_clear(copy);
			if (!json_pull_string(pull, &bytes, &len))
				return bad(reading);
			if (buf_append(copy, bytes, len))
				return error_set(reading->error, STATUS_LIMIT, "%.160s: an added token has more than %d bytes", reading->label,
				    TOKEN_FILE_TOKEN_MAX);
			*content = (struct span){ copy->data, copy->len };
			continue;
		}
		for (i = 0; i < sizeof flags / sizeof flags[0] && !key_is(key, len, flags[i].name); i++)
			;
		if (i < sizeof flags / sizeof flags[0] ? !json_pull_bool(pull, flags[i].flag) : !json_pull_skip(pull, &bytes, &skipped))
			return bad(reading);
	}
	if (json_pull_failed(pull))
		return bad(reading);
	if (id < 0 || !content->bytes)
		return error_set(reading->error, STATUS_INVALID, "%.160s: an added token lacks its %s", reading->label,
		    id < 0 ? "id" : "content");
	added->id = (uint32_t)id;
	return STATUS_OK;
}

static enum status add_added(struct reading *reading, struct buf *copy)
{
	struct token_file *file = reading->file;
	struct token_added added = { 0 };
	struct span        content = { NULL, 0 };
	const char        *spelling;
	int32_t            known;
	size_t             len;
	char               quoted[BYTES_QUOTE_MAX];
	enum status        status = read_added_flags(reading, &added, &content, copy);

	if (status)
		return status;
	if (content.len == 0)
		return STATUS_OK; /* the library passes over it */
	file->index.text = file->text.data;
	known = token_index_find(&file->index, content.bytes, content.len);
	if (known >= 0 && (uint32_t)known != added.id)
		return error_set(reading->error, STATUS_INVALID, "%.160s: the added token %s has id %u, in the vocabulary it has %d",
		    reading->label, bytes_quote(quoted, content.bytes, content.len), added.id, known);
	spelling = token_file_spelling(file, added.id, &len);
	if (known < 0 && spelling && len == content.len && memcmp(spelling, content.bytes, len) == 0)
		return error_set(reading->error, STATUS_INVALID, "%.160s: the added token %u %s appears twice", reading->label, added.id,
		    bytes_quote(quoted, content.bytes, content.len));
	if (known < 0 && spelling)
		return error_set(reading->error, STATUS_INVALID, "%.160s: the added token %s has id %u, which belongs to another token",
		    reading->label, bytes_quote(quoted, content.bytes, content.len), added.id);
	if (known < 0)
		status = token_file_add(file, added.id, content.bytes, content.len, TOKEN_USER, reading->error);
	if (!status && added.special)
		file->kinds[added.id] = TOKEN_CONTROL;
	else if (!status)
		file->kinds[added.id] = TOKEN_USER;
	if (!status)
		status = token_file_add_added(file, &added, reading->error);
	return prefixed(reading, status);
}

static enum status read_added(struct reading *reading)
{
	struct buf  copy;
	enum status status = STATUS_OK;

	if (!reading->added.bytes)
		return STATUS_OK;
	json_pull_free(&reading->pull);
	json_pull_init(&reading->pull, reading->added.bytes, reading->added.len);
	buf_init(&copy, TOKEN_FILE_TOKEN_MAX);
	if (!json_pull_enter(&reading->pull, '['))
		status = bad(reading);
	while (!status && json_pull_element(&reading->pull))
		status = add_added(reading, &copy);
	if (!status && json_pull_failed(&reading->pull))
		status = bad(reading);
	buf_free(&copy);
	return status;
}

/* Of the format; there has been one so far. */
static enum status read_version(struct reading *reading)
{
	const char *bytes;
	size_t      len;
	char        quoted[BYTES_QUOTE_MAX];

	if (!json_pull_string(&reading->pull, &bytes, &len))
		return bad(reading);
	return key_is(bytes, len, "1.0") ? STATUS_OK : error_set(reading->error, STATUS_UNSUPPORTED,
	    "%.160s: the version %s of the format is not known here", reading->label, bytes_quote(quoted, bytes, len));
}

static enum status read_top(struct reading *reading)
{
	struct token_file *file = reading->file;
	struct json_pull  *pull = &reading->pull;
	const char        *key, *bytes;
	size_t             len, skipped;
	char               quoted[BYTES_QUOTE_MAX];
	enum status        status = STATUS_OK;

	if (!json_pull_enter(pull, '{'))
		return bad(reading);
	while (!status && json_pull_key(pull, &key, &len)) {
		if (key_is(key, len, "model"))
			status = read_model(reading);
		else if (key_is(key, len, "normalizer"))
			status = read_tree(reading, "normalizer", &file->normalizer);
		else if (key_is(key, len, "pre_tokenizer"))
			status = read_tree(reading, "pre_tokenizer", &file->pre_tokenizer);
		else if (key_is(key, len, "post_processor"))
			status = read_tree(reading, "post_processor", &file->post_processor);
		else if (key_is(key, len, "decoder"))
			status = read_tree(reading, "decoder", &file->decoder);
		else if (key_is(key, len, "added_tokens"))
			status = json_pull_skip(pull, &reading->added.bytes, &reading->added.len) ? STATUS_OK : bad(reading);
		else if (key_is(key, len, "version"))
			status = read_version(reading);
		else if (key_is(key, len, "truncation") || key_is(key, len, "padding")) /* for training batches */
			status = json_pull_skip(pull, &bytes, &skipped) ? STATUS_OK : bad(reading);
		else
			status = error_set(reading->error, STATUS_UNSUPPORTED, "%.160s: the tokenizer's %s is not known here", reading->label,
			    bytes_quote(quoted, key, len));
	}
	if (!status && (json_pull_failed(pull) || !json_pull_at_end(pull))) {
		json_pull_refuse(pull, "something follows the JSON object");
		status = bad(reading);
	}
	if (!status && !*reading->type_name)
		status = error_set(reading->error, STATUS_INVALID, "%.160s: there is no model", reading->label);
	return status;
}

/* Without one, what is unknown is left out, where the reference fails: a text may never need it. */
static void find_unk(struct reading *reading)
{
	struct token_file *file = reading->file;

	file->unk = (int32_t)reading->unk_id;
	if (file->model == TOKEN_UNIGRAM || (!reading->unk_len && file->model == TOKEN_BPE))
		return;
	if (!reading->unk_len)
		memcpy(reading->unk_token, "[UNK]", reading->unk_len = 5);
	file->unk = token_index_find(&file->index, reading->unk_token, reading->unk_len);
}

enum status token_file_from_json(const char *bytes, size_t len, const char *label, struct token_file *ret, struct error *error)
{
	struct token_file file;
	struct reading    reading = { .file = &file, .label = label, .error = error, .unk_id = -1 };
	enum status       status;

	token_file_init(&file);
	json_pull_init(&reading.pull, bytes, len);
	buf_init(&reading.left, TOKEN_FILE_TOKEN_MAX);
	status = read_top(&reading);
	if (!status)
		status = index_model(&reading);
	if (!status) {
		find_unk(&reading);
		status = read_added(&reading);
	}
	if (!status)
		status = prefixed(&reading, token_file_finish(&file, error));
	json_pull_free(&reading.pull);
	buf_free(&reading.left);
	if (status)
		token_file_free(&file);
	else
		*ret = file;
	return status;
}
