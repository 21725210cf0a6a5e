/* vocab.c: owns the bytes and kinds of all token ids.  Does not split text (text/tokenizer.h) and keeps no pointer into
 * the GGUF file, which may be closed afterwards.
 *
 * Invariant: every id below `size` has bytes (possibly none) and a kind; special tokens (control, user) are not empty, at
 * most VOCAB_SPECIAL_MAX bytes long and distinct; bos and eos ids are below `size`.
 */
#include "vocab/vocab.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "vocab/bytelevel.h"

#include <stdlib.h>
#include <string.h>

/* Token types of tokenizer.ggml.token_type. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5 };

struct special {
	const char *bytes;
	uint32_t    len, id;
};

struct vocab {
	uint32_t        size;
	unsigned char  *kinds;   /* [size] */
	uint32_t       *offsets; /* [size + 1] into bytes */
	char           *bytes;
	size_t          bytes_max, bytes_len;
	struct special *specials; /* sorted by bytes */
	size_t          special_count;
	int32_t         eos[VOCAB_EOS_MAX];
	size_t          eos_count;
	int32_t         bos;
	bool            add_bos;
	uint64_t        fingerprint;
};

struct load {
	struct vocab *vocab;
	int32_t      *types;
	struct error *error;
};

static enum status check_model(const struct gguf *gguf, struct error *error)
{
	const char *model;
	size_t      len;
	char        quoted[BYTES_QUOTE_MAX];
	enum status status = gguf_get_string(gguf, "tokenizer.ggml.model", &model, &len, error);

	if (status)
		return status;
	if (len != 4 || memcmp(model, "gpt2", 4) != 0)
		return error_set(error, STATUS_UNSUPPORTED, "tokenizer.ggml.model is %s; only \"gpt2\" (byte-level BPE) is supported",
		    bytes_quote(quoted, model, len));
	return STATUS_OK;
}

static enum status measure(void *context, size_t index, const char *string, size_t len)
{
	struct load *load = context;
	char         quoted[BYTES_QUOTE_MAX];

	if (len > VOCAB_TOKEN_MAX)
		return error_set(load->error, STATUS_LIMIT, "token %zu %s has %zu bytes, the limit is %d", index,
		    bytes_quote(quoted, string, len), len, VOCAB_TOKEN_MAX);
	load->vocab->bytes_max += len;
	return STATUS_OK;
}

static enum status kind_of(int32_t type, enum vocab_kind *ret)
{
	switch (type) {
	case TYPE_NORMAL: *ret = VOCAB_NORMAL; return STATUS_OK;
	case TYPE_UNKNOWN:
	case TYPE_CONTROL: *ret = VOCAB_CONTROL; return STATUS_OK;
	case TYPE_USER:   *ret = VOCAB_USER; return STATUS_OK;
	case TYPE_UNUSED: *ret = VOCAB_UNUSED; return STATUS_OK;
	default: return STATUS_INVALID;
	}
}

/* Appends the bytes a NORMAL token stands for.  A token with a character outside the mapping stands for itself as a
 * whole: so do the byte-level decoders of the reference implementations. */
static void add_normal(struct vocab *vocab, const char *string, size_t len)
{
	size_t start = vocab->bytes_len;

	for (size_t at = 0; at < len;) {
		uint32_t code = 0;
		int      n = utf8_decode(string + at, len - at, &code);
		int      byte = n > 0 ? bytelevel_byte(code) : -1;
		if (byte < 0) {
			memcpy(vocab->bytes + start, string, len);
			vocab->bytes_len = start + len;
			return;
		}
		vocab->bytes[vocab->bytes_len++] = (char)byte;
		at += (size_t)n;
	}
}

static enum status add_token(void *context, size_t index, const char *string, size_t len)
{
	struct load    *load = context;
	struct vocab   *vocab = load->vocab;
	enum vocab_kind kind;
	char            quoted[BYTES_QUOTE_MAX];

	if (kind_of(load->types[index], &kind))
		return error_set(load->error, STATUS_INVALID, "token %zu %s has type %d, which a byte-level vocabulary does not have",
		    index, bytes_quote(quoted, string, len), load->types[index]);
	vocab->kinds[index] = (unsigned char)kind;
	vocab->offsets[index] = (uint32_t)vocab->bytes_len;
	if (kind == VOCAB_NORMAL) {
		add_normal(vocab, string, len);
	} else {
		if (len)
			memcpy(vocab->bytes + vocab->bytes_len, string, len);
		vocab->bytes_len += len;
	}
	if (kind == VOCAB_CONTROL || kind == VOCAB_USER) {
		if (len == 0 || len > VOCAB_SPECIAL_MAX)
			return error_set(load->error, STATUS_INVALID, "special token %zu %s has %zu bytes, allowed are 1 to %d", index,
			    bytes_quote(quoted, string, len), len, VOCAB_SPECIAL_MAX);
		vocab->special_count++;
	}
	return STATUS_OK;
}

static int compare_specials(const void *a, const void *b)
{
	const struct special *x = a, *y = b;
	int                   order = bytes_compare(x->bytes, x->len, y->bytes, y->len);
	return order ? order : (x->id > y->id) - (x->id < y->id);
}

static enum status index_specials(struct vocab *vocab, struct error *error)
{
	size_t count = 0;
	char   quoted[BYTES_QUOTE_MAX];

	vocab->specials = calloc(vocab->special_count + 1, sizeof *vocab->specials);
	if (!vocab->specials)
		return error_set(error, STATUS_NOMEM, "no memory for %zu special tokens", vocab->special_count);
	for (uint32_t id = 0; id < vocab->size; id++)
		if (vocab->kinds[id] == VOCAB_CONTROL || vocab->kinds[id] == VOCAB_USER)
			vocab->specials[count++] = (struct special){ vocab->bytes + vocab->offsets[id],
				vocab->offsets[id + 1] - vocab->offsets[id], id };
	qsort(vocab->specials, count, sizeof *vocab->specials, compare_specials);
	for (size_t i = 1; i < count; i++) {
		const struct special *x = &vocab->specials[i - 1], *y = &vocab->specials[i];
		if (bytes_compare(x->bytes, x->len, y->bytes, y->len) == 0)
			return error_set(error, STATUS_INVALID, "special tokens %u and %u are both spelled %s", x->id, y->id,
			    bytes_quote(quoted, x->bytes, x->len));
	}
	return STATUS_OK;
}

/* An id of the metadata: −1 when the key is absent, an error when it is no id. */
static enum status read_id(const struct gguf *gguf, const char *key, uint32_t size, int32_t *ret, struct error *error)
{
	uint64_t    id = 0;
	enum status status = gguf_get_u64(gguf, key, &id, error);

	if (status == STATUS_NOT_FOUND) {
		*ret = -1;
		return STATUS_OK;
	}
	if (status)
		return status;
	if (id >= size)
		return error_set(error, STATUS_INVALID, "%s is %llu, but the vocabulary has %u tokens", key, (unsigned long long)id, size);
	*ret = (int32_t)id;
	return STATUS_OK;
}

static enum status read_ids(const struct gguf *gguf, struct vocab *vocab, struct error *error)
{
	static const char *const ends[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
		"tokenizer.ggml.eom_token_id" };
	static const char *const others[] = { "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id",
		"tokenizer.ggml.seperator_token_id" /* the format's own spelling */ };
	enum status status = STATUS_OK;
	int32_t     id = -1;

	for (size_t i = 0; !status && i < sizeof ends / sizeof ends[0]; i++) {
		bool known = false;
		status = read_id(gguf, ends[i], vocab->size, &id, error);
		if (status || id < 0)
			continue;
		for (size_t k = 0; k < vocab->eos_count; k++)
			known = known || vocab->eos[k] == id;
		if (!known)
			vocab->eos[vocab->eos_count++] = id;
	}
	for (size_t i = 0; !status && i < sizeof others / sizeof others[0]; i++)
		status = read_id(gguf, others[i], vocab->size, &id, error);
	if (!status)
		status = read_id(gguf, "tokenizer.ggml.bos_token_id", vocab->size, &vocab->bos, error);
	if (!status) {
		status = gguf_get_bool(gguf, "tokenizer.ggml.add_bos_token", &vocab->add_bos, error);
		if (status == STATUS_NOT_FOUND)
			status = STATUS_OK;
	}
	if (!status && vocab->add_bos && vocab->bos < 0)
		status = error_set(error, STATUS_INVALID,
		    "tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id");
	return status;
}

static uint64_t fingerprint(const struct vocab *vocab)
{
	uint64_t sum = hash_fnv1a(HASH_FNV1A_START, &vocab->size, sizeof vocab->size);

	sum = hash_fnv1a(sum, vocab->kinds, vocab->size);
	sum = hash_fnv1a(sum, vocab->offsets, (vocab->size + (size_t)1) * sizeof *vocab->offsets);
	sum = hash_fnv1a(sum, vocab->bytes, vocab->bytes_len);
	return hash_fnv1a(sum, vocab->eos, vocab->eos_count * sizeof *vocab->eos);
}

static enum status read_tokens(const struct gguf *gguf, struct load *load)
{
	struct vocab *vocab = load->vocab;
	size_t        count = 0;
	enum status   status = gguf_array_count(gguf, "tokenizer.ggml.tokens", &count, load->error);

	if (status)
		return status;
	if (count == 0 || count > VOCAB_SIZE_MAX)
		return error_set(load->error, STATUS_LIMIT, "tokenizer.ggml.tokens has %zu elements, allowed are 1 to %d", count,
		    VOCAB_SIZE_MAX);
	status = gguf_array_strings(gguf, "tokenizer.ggml.tokens", measure, load, load->error);
	if (status)
		return status;
	if (vocab->bytes_max > UINT32_MAX)
		return error_set(load->error, STATUS_LIMIT, "the tokens have %zu bytes, the limit is %u", vocab->bytes_max, UINT32_MAX);
	vocab->size = (uint32_t)count;
	vocab->kinds = malloc(count);
	vocab->offsets = malloc((count + 1) * sizeof *vocab->offsets);
	vocab->bytes = malloc(vocab->bytes_max + 1);
	load->types = malloc(count * sizeof *load->types);
	if (!vocab->kinds || !vocab->offsets || !vocab->bytes || !load->types)
		return error_set(load->error, STATUS_NOMEM, "no memory for a vocabulary of %zu tokens", count);
	status = gguf_array_i32(gguf, "tokenizer.ggml.token_type", load->types, count, load->error);
	if (!status)
		status = gguf_array_strings(gguf, "tokenizer.ggml.tokens", add_token, load, load->error);
	if (!status)
		vocab->offsets[count] = (uint32_t)vocab->bytes_len;
	return status;
}

enum status vocab_from_gguf(const struct gguf *gguf, struct vocab **ret, struct error *error)
{
	struct load load = { .vocab = calloc(1, sizeof *load.vocab), .error = error };
	enum status status;

	if (!load.vocab)
		return error_set(error, STATUS_NOMEM, "no memory for a vocabulary");
	status = check_model(gguf, error);
	if (!status)
		status = read_tokens(gguf, &load);
	free(load.types);
	if (!status)
		status = index_specials(load.vocab, error);
	if (!status)
		status = read_ids(gguf, load.vocab, error);
	if (status)
		goto fail;
	load.vocab->fingerprint = fingerprint(load.vocab);
	*ret = load.vocab;
	return STATUS_OK;
fail:
	vocab_free(load.vocab);
	return gguf_error_prefix(gguf, status, error);
}

void vocab_free(struct vocab *vocab)
{
	if (!vocab)
		return;
	free(vocab->kinds);
	free(vocab->offsets);
	free(vocab->bytes);
	free(vocab->specials);
	free(vocab);
}

uint32_t vocab_size(const struct vocab *vocab) { return vocab->size; }
int32_t  vocab_bos(const struct vocab *vocab) { return vocab->bos; }
bool     vocab_add_bos(const struct vocab *vocab) { return vocab->add_bos; }
uint64_t vocab_fingerprint(const struct vocab *vocab) { return vocab->fingerprint; }

enum vocab_kind vocab_kind(const struct vocab *vocab, uint32_t id)
{
	return id < vocab->size ? (enum vocab_kind)vocab->kinds[id] : VOCAB_UNUSED;
}

const char *vocab_bytes(const struct vocab *vocab, uint32_t id, size_t *ret_len)
{
	if (id >= vocab->size) {
		*ret_len = 0;
		return NULL;
	}
	*ret_len = vocab->offsets[id + 1] - vocab->offsets[id];
	return vocab->bytes + vocab->offsets[id];
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
