/* vocab.c: owns the bytes and kinds of all token ids.  Does not split text (text/tokenizer.h) and keeps no pointer into
 * the description it was made from.
 *
 * Invariant: every id below `size` has bytes (possibly none) and a kind; special tokens (control, user) are not empty, at
 * most VOCAB_SPECIAL_MAX bytes long and distinct; bos and eos ids are below `size`.
 */
#include "vocab/vocab.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "vocab/decoder.h"

#include <stdlib.h>
#include <string.h>

struct special {
	const char *bytes;
	uint32_t    len, id;
};

/* Bytes per id. */
struct table {
	uint32_t *offsets; /* [size + 1] into bytes */
	char     *bytes;
};

/* A special token that is shown otherwise than its spelling says. */
struct shown {
	uint32_t   id;
	struct buf first, rest;
};

struct vocab {
	uint32_t        size;
	unsigned char  *kinds; /* [size] */
	struct table    rest, first; /* first.offsets is NULL when the first token of a text reads like the others */
	struct decoder  decoder;
	struct shown   *shown; /* ascending ids */
	size_t          shown_count;
	char           *special_bytes; /* as they are spelled in text */
	struct special *specials;      /* sorted by bytes */
	size_t          special_count;
	int32_t         eos[VOCAB_EOS_MAX];
	size_t          eos_count;
	int32_t         bos;
	bool            add_bos;
	uint64_t        fingerprint;
};

static enum vocab_kind kind_of(enum token_kind kind)
{
	switch (kind) {
	case TOKEN_CONTROL: return VOCAB_CONTROL;
	case TOKEN_USER: return VOCAB_USER;
	case TOKEN_ABSENT:
	case TOKEN_PADDING: return VOCAB_UNUSED;
	default: return VOCAB_NORMAL;
	}
}

static enum status fill_table(const struct token_file *file, const struct decoder *decoder, bool first, struct table *table,
    struct error *error)
{
	struct buf  all, one;
	enum status status = STATUS_OK;
	size_t      len;

	table->offsets = malloc((file->size + (size_t)1) * sizeof *table->offsets);
	if (!table->offsets)
		return error_set(error, STATUS_NOMEM, "no memory for a vocabulary of %u tokens", file->size);
	buf_init(&all, UINT32_MAX);
	buf_init(&one, TOKEN_FILE_TEXT_MAX);
	status = buf_reserve(&one, 1); /* a decoder changes the text of nothing too */
	for (uint32_t id = 0; !status && id < file->size; id++) {
		const char *spelling = token_file_spelling(file, id, &len);
		table->offsets[id] = (uint32_t)all.len;
		if (!spelling || (!len && file->kinds[id] <= TOKEN_PADDING))
			continue;
		status = decoder_apply(decoder, spelling, len, first, &one);
		if (!status && one.len)
			status = buf_append(&all, one.data, one.len);
	}
	table->offsets[file->size] = (uint32_t)all.len;
	buf_free(&one);
	table->bytes = all.len ? malloc(all.len) : NULL; /* without the room that growing left over: it stays for good */
	if (table->bytes)
		memcpy(table->bytes, all.data, all.len);
	else if (all.len)
		status = STATUS_NOMEM;
	buf_free(&all);
	return status ? error_set(error, status, "the bytes of %u tokens do not fit", file->size) : STATUS_OK;
}

static int compare_specials(const void *a, const void *b)
{
	const struct special *x = a, *y = b;
	return bytes_compare(x->bytes, x->len, y->bytes, y->len);
}

/* Control and user tokens by their spelling.  Control tokens that are no added tokens may share one: the first id counts. */
static enum status index_specials(const struct token_file *file, struct vocab *vocab, struct error *error)
{
	size_t count = 0, bytes = 0, len;

	for (uint32_t id = 0; id < vocab->size; id++)
		if (vocab->kinds[id] == VOCAB_CONTROL || vocab->kinds[id] == VOCAB_USER) {
			token_file_spelling(file, id, &len);
			bytes += len;
			count++;
		}
	vocab->specials = calloc(count + 1, sizeof *vocab->specials);
	vocab->special_bytes = malloc(bytes + 1);
	if (!vocab->specials || !vocab->special_bytes)
		return error_set(error, STATUS_NOMEM, "no memory for %zu special tokens", count);
	bytes = 0;
	for (uint32_t id = 0; id < vocab->size; id++)
		if (vocab->kinds[id] == VOCAB_CONTROL || vocab->kinds[id] == VOCAB_USER) {
			const char *spelling = token_file_spelling(file, id, &len);
			if (len)
				memcpy(vocab->special_bytes + bytes, spelling, len);
			vocab->specials[vocab->special_count++] = (struct special){ vocab->special_bytes + bytes, (uint32_t)len, id };
			bytes += len;
		}
	qsort(vocab->specials, vocab->special_count, sizeof *vocab->specials, compare_specials);
	return STATUS_OK;
}

static uint64_t fingerprint(const struct vocab *vocab)
{
	uint64_t sum = hash_fnv1a(HASH_FNV1A_START, &vocab->size, sizeof vocab->size);

	sum = hash_fnv1a(sum, vocab->kinds, vocab->size);
	sum = hash_fnv1a(sum, vocab->rest.offsets, (vocab->size + (size_t)1) * sizeof *vocab->rest.offsets);
	sum = hash_fnv1a(sum, vocab->rest.bytes, vocab->rest.offsets[vocab->size]);
	return hash_fnv1a(sum, vocab->eos, vocab->eos_count * sizeof *vocab->eos);
}

enum status vocab_from_file(const struct token_file *file, struct vocab **ret, struct error *error)
{
	struct vocab *vocab = calloc(1, sizeof *vocab);
	enum status   status;

	if (!vocab)
		return error_set(error, STATUS_NOMEM, "no memory for a vocabulary");
	vocab->size = file->size;
	vocab->bos = file->bos;
	vocab->add_bos = file->add_bos;
	vocab->eos_count = file->eos_count;
	memcpy(vocab->eos, file->eos, sizeof vocab->eos);
	vocab->kinds = malloc(file->size);
	status = vocab->kinds ? decoder_init(&vocab->decoder, file->decoder, file->sentencepiece, error) :
	    error_set(error, STATUS_NOMEM, "no memory for a vocabulary of %u tokens", file->size);
	if (!status) {
		for (uint32_t id = 0; id < file->size; id++)
			vocab->kinds[id] = (unsigned char)kind_of((enum token_kind)file->kinds[id]);
		status = fill_table(file, &vocab->decoder, false, &vocab->rest, error);
	}
	if (!status && vocab->decoder.first_differs)
		status = fill_table(file, &vocab->decoder, true, &vocab->first, error);
	if (!status)
		status = index_specials(file, vocab, error);
	if (status) {
		vocab_free(vocab);
		return status;
	}
	vocab->fingerprint = fingerprint(vocab);
	*ret = vocab;
	return STATUS_OK;
}

enum status vocab_open(const char *path, struct vocab **ret, struct error *error)
{
	struct token_file file;
	enum status       status = token_file_open(path, &file, error);

	if (status)
		return status;
	status = vocab_from_file(&file, ret, error);
	token_file_free(&file);
	return status;
}

enum status vocab_from_gguf(const struct gguf *gguf, struct vocab **ret, struct error *error)
{
	struct token_file file;
	enum status       status = token_file_from_gguf(gguf, true, &file, error);

	if (status)
		return status;
	status = vocab_from_file(&file, ret, error);
	token_file_free(&file);
	return gguf_error_prefix(gguf, status, error);
}

void vocab_free(struct vocab *vocab)
{
	if (!vocab)
		return;
	free(vocab->kinds);
	free(vocab->rest.offsets);
	free(vocab->rest.bytes);
	free(vocab->first.offsets);
	free(vocab->first.bytes);
	free(vocab->specials);
	free(vocab->special_bytes);
	for (size_t i = 0; i < vocab->shown_count; i++) {
		buf_free(&vocab->shown[i].first);
		buf_free(&vocab->shown[i].rest);
	}
	free(vocab->shown);
	free(vocab);
}

static int compare_shown(const void *a, const void *b)
{
	const struct shown *x = a, *y = b;
	return (x->id > y->id) - (x->id < y->id);
}

enum status vocab_respell(struct vocab *vocab, uint32_t id, const char *spelling, size_t len, struct error *error)
{
	struct shown *list = realloc(vocab->shown, (vocab->shown_count + 1) * sizeof *list), *shown;
	enum status   status = STATUS_NOMEM;

	if (list) {
		vocab->shown = list;
		shown = &list[vocab->shown_count++];
		*shown = (struct shown){ .id = id };
		buf_init(&shown->first, TOKEN_FILE_TEXT_MAX);
		buf_init(&shown->rest, TOKEN_FILE_TEXT_MAX);
		status = decoder_apply(&vocab->decoder, spelling, len, true, &shown->first);
		if (!status)
			status = decoder_apply(&vocab->decoder, spelling, len, false, &shown->rest);
		qsort(vocab->shown, vocab->shown_count, sizeof *vocab->shown, compare_shown);
	}
	return status ? error_set(error, status, "no memory for the token %u", id) : STATUS_OK;
}

static const struct buf *find_shown(const struct vocab *vocab, uint32_t id, bool first)
{
	struct shown        key = { .id = id };
	const struct shown *shown = vocab->shown_count ?
	    bsearch(&key, vocab->shown, vocab->shown_count, sizeof key, compare_shown) : NULL;

	return !shown ? NULL : first ? &shown->first : &shown->rest;
}

uint32_t vocab_size(const struct vocab *vocab) { return vocab->size; }
int32_t  vocab_bos(const struct vocab *vocab) { return vocab->bos; }
bool     vocab_add_bos(const struct vocab *vocab) { return vocab->add_bos; }
uint64_t vocab_fingerprint(const struct vocab *vocab) { return vocab->fingerprint; }

enum vocab_kind vocab_kind(const struct vocab *vocab, uint32_t id)
{
	return id < vocab->size ? (enum vocab_kind)vocab->kinds[id] : VOCAB_UNUSED;
}

static const char *bytes_of(const struct vocab *vocab, uint32_t id, bool first, size_t *ret_len)
{
	const struct table *table = first && vocab->first.offsets ? &vocab->first : &vocab->rest;
	const struct buf   *shown = find_shown(vocab, id, first);

	if (id >= vocab->size) {
		*ret_len = 0;
		return NULL;
	}
	if (shown) {
		*ret_len = shown->len;
		return shown->len ? shown->data : "";
	}
	*ret_len = table->offsets[id + 1] - table->offsets[id];
	return table->bytes ? table->bytes + table->offsets[id] : "";
}

const char *vocab_bytes(const struct vocab *vocab, uint32_t id, size_t *ret_len)
{
	return bytes_of(vocab, id, false, ret_len);
}

const char *vocab_bytes_first(const struct vocab *vocab, uint32_t id, size_t *ret_len)
{
	return bytes_of(vocab, id, true, ret_len);
}

char vocab_strip(const struct vocab *vocab, unsigned *ret_max)
{
	*ret_max = vocab->decoder.strip_max;
	return vocab->decoder.strip;
}

bool vocab_first_lasts(const struct vocab *vocab) { return vocab->decoder.first_lasts; }

const char *vocab_joined(const struct vocab *vocab, const char **ret_content)
{
	*ret_content = vocab->decoder.joined_content;
	return *vocab->decoder.joined ? vocab->decoder.joined : NULL;
}

int32_t vocab_special(const struct vocab *vocab, const char *text, size_t len)
{
	size_t low = 0, high = vocab->special_count;

	while (low < high) {
		size_t                middle = low + (high - low) / 2;
		const struct special *special = &vocab->specials[middle];
		int                   order = bytes_compare(text, len, special->bytes, special->len);
		if (order == 0)
			return (int32_t)special->id;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return -1;
}

const int32_t *vocab_eos(const struct vocab *vocab, size_t *ret_count)
{
	*ret_count = vocab->eos_count;
	return vocab->eos;
}
