/* token_file_gguf.c: owns the reading of a GGUF file's tokenizer.ggml.* metadata and its translation into the components of
 * tokenizer.json.  A vocabulary type or a pre-tokenizer that is not known exactly is refused by name: a near miss would
 * give a model text it was not trained on.
 *
 * Invariant: the components made here are ones that the other side knows. */
#include "base/bytes.h"
#include "vocab/token_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Token types of tokenizer.ggml.token_type. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };
enum { ARCHITECTURES = 4, HEADING_SPACES = 64 };
enum kind { GPT2, LLAMA, BERT, T5 };

/* The splits that pre-tokenizers of byte-level vocabularies are made of. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K(numbers) CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
#define O200K(suffix, numbers) BEFORE UPPER "*" LOWER "+" suffix "|" BEFORE UPPER "+" LOWER "*" suffix "|" numbers \
	"| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES
#define DEEPSEEK_V3 "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" \
	"| ?[\\p{P}\\p{S}]+[\\r\\n]*" SPACES

#define NO_HAN(classes) "[" classes "&&[^\\p{Han}]]"
#define KIMI_UPPER NO_HAN("\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}")
#define KIMI_LOWER NO_HAN("\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}")
#define KIMI_K2 "[\\p{Han}]+|" BEFORE KIMI_UPPER "*" KIMI_LOWER "+" CONTRACTIONS "?|" BEFORE KIMI_UPPER "+" KIMI_LOWER "*" \
	CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES

enum split { SPLIT_GPT2, SPLIT_DIGITS_GPT2, SPLIT_CL100K_1, SPLIT_CL100K_3, SPLIT_O200K, SPLIT_TEKKEN, SPLIT_DEEPSEEK_V3,
	SPLIT_KIMI_K2 };
static const struct pre {
	const char *name;
	enum split  split;
	bool        ignore_merges;
} pres[] = {
	{ "gpt-2", SPLIT_GPT2, false }, { "phi-2", SPLIT_GPT2, false }, { "jina-es", SPLIT_GPT2, false }, { "jina-de", SPLIT_GPT2,
	    false },
	{ "roberta-bpe", SPLIT_GPT2, false }, { "olmo", SPLIT_GPT2, false }, { "gigachat", SPLIT_GPT2, false }, { "mpt", SPLIT_GPT2,
	    false },
	{ "smollm", SPLIT_DIGITS_GPT2, false }, { "starcoder", SPLIT_DIGITS_GPT2, false }, { "refact", SPLIT_DIGITS_GPT2, false },
	{ "command-r", SPLIT_DIGITS_GPT2, false }, { "codeshell", SPLIT_DIGITS_GPT2, false }, { "exaone", SPLIT_DIGITS_GPT2, false },
	{ "qwen2", SPLIT_CL100K_1, false }, { "deepseek-r1-qwen", SPLIT_CL100K_1, false }, { "stablelm2", SPLIT_CL100K_1, false },
	{ "megrez", SPLIT_CL100K_1, false },
	{ "glm4", SPLIT_CL100K_3, true }, { "chatglm-bpe", SPLIT_CL100K_3, true }, { "llama-bpe", SPLIT_CL100K_3, true },
	{ "llama3", SPLIT_CL100K_3, true }, { "llama-v3", SPLIT_CL100K_3, true }, { "dbrx", SPLIT_CL100K_3, false },
	{ "smaug-bpe", SPLIT_CL100K_3, false }, { "pixtral", SPLIT_CL100K_3, true },
	{ "gpt-4o", SPLIT_O200K, false }, { "llama4", SPLIT_O200K, false }, { "tekken", SPLIT_TEKKEN, true },
	{ "deepseek-v3", SPLIT_DEEPSEEK_V3, false }, { "kimi-k2", SPLIT_KIMI_K2, true },
};

static json_t *split_step(const char *expression)
{
	return json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", expression, "behavior", "Isolated", "invert",
	    0);
}

static json_t *byte_level(bool use_regex)
{
	return json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", (int)use_regex);
}

static json_t *sequence(const char *key, json_t *a, json_t *b, json_t *c, json_t *d)
{
	return json_pack("{s:s, s:[o*, o*, o*, o*]}", "type", "Sequence", key, a, b, c, d);
}

static json_t *pre_tokenizer(enum split split)
{
	switch (split) {
	case SPLIT_GPT2:
		return byte_level(true);
	case SPLIT_DIGITS_GPT2:
		return sequence("pretokenizers", json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1), byte_level(true), NULL,
		    NULL);
	case SPLIT_CL100K_1:
		return sequence("pretokenizers", split_step(CL100K("\\p{N}")), byte_level(false), NULL, NULL);
	case SPLIT_CL100K_3:
		return sequence("pretokenizers", split_step(CL100K("\\p{N}{1,3}")), byte_level(false), NULL, NULL);
	case SPLIT_O200K:
		return sequence("pretokenizers", split_step(O200K(CONTRACTIONS "?", "\\p{N}{1,3}")), byte_level(false), NULL, NULL);
	case SPLIT_TEKKEN:
		return sequence("pretokenizers", split_step(O200K("", "\\p{N}")), byte_level(false), NULL, NULL);
	case SPLIT_DEEPSEEK_V3:
		return sequence("pretokenizers", split_step("\\p{N}{1,3}"), split_step("[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f"
		    "\xe3\x82\xa0-\xe3\x83\xbf]+"), split_step(DEEPSEEK_V3), byte_level(false));
	case SPLIT_KIMI_K2:
		return sequence("pretokenizers", split_step(KIMI_K2), byte_level(false), NULL, NULL);
	}
	return NULL;
}

enum status token_file_set_split(struct token_file *file, const char *name, size_t len, struct error *error)
{
	size_t at;
	char   quoted[BYTES_QUOTE_MAX];

	for (at = 0; at < sizeof pres / sizeof pres[0]; at++)
		if (strlen(pres[at].name) == len && memcmp(pres[at].name, name, len) == 0)
			break;
	if (at == sizeof pres / sizeof pres[0])
		return error_set(error, STATUS_UNSUPPORTED, "tokenizer.ggml.pre is %s, which is not known here (known are gpt-2, smollm, "
		    "qwen2, glm4, llama-bpe, gpt-4o, deepseek-v3 and others)", bytes_quote(quoted, name, len));
	file->ignore_merges = pres[at].ignore_merges;
	file->pre_tokenizer = pre_tokenizer(pres[at].split);
	return file->pre_tokenizer ? STATUS_OK : error_set(error, STATUS_NOMEM, "no memory for a pre-tokenizer");
}

static enum status read_pre(const struct gguf *gguf, struct token_file *file, struct error *error)
{
	const char *name;
	size_t      len;
	enum status status = gguf_get_string(gguf, "tokenizer.ggml.pre", &name, &len, error);

	return status ? status : token_file_set_split(file, name, len, error);
}

struct load {
	struct token_file *file;
	enum kind          kind;
	int32_t           *types;
	struct error      *error;
	struct buf         scratch;
};

/* The spelling tokenizer.json would have: WordPiece vocabularies mark the beginnings of words here, not what continues. */
static enum status spell(struct load *load, int32_t type, const char **string, size_t *len)
{
	static const char mark[] = "\xe2\x96\x81"; /* U+2581 */
	bool              begins = *len >= 3 && memcmp(*string, mark, 3) == 0;
	enum status       status;

	if (load->kind != BERT || type != TYPE_NORMAL || (*len > 2 && (*string)[0] == '[' && (*string)[*len - 1] == ']'))
		return STATUS_OK;
	if (begins) {
		*string += 3;
		*len -= 3;
		return STATUS_OK;
	}
	buf_clear(&load->scratch);
	status = buf_append_string(&load->scratch, "##");
	if (!status)
		status = buf_append(&load->scratch, *string, *len);
	*string = load->scratch.data;
	*len = load->scratch.len;
	return status;
}

static enum status add_token(void *context, size_t index, const char *string, size_t len)
{
	struct load       *load = context;
	int32_t            type = load->types[index];
	struct token_added added = { .id = (uint32_t)index };
	enum token_kind    kind = TOKEN_NORMAL;
	char               quoted[BYTES_QUOTE_MAX];
	enum status        status;

	switch (type) {
	case TYPE_NORMAL:
		break;
	case TYPE_UNKNOWN:
	case TYPE_CONTROL:
		kind = TOKEN_CONTROL;
		added.special = true;
		break;
	case TYPE_USER:
		kind = TOKEN_USER;
		break;
	case TYPE_UNUSED:
		kind = TOKEN_PADDING;
		break;
	case TYPE_BYTE:
		if (load->kind == LLAMA || load->kind == T5) {
			kind = TOKEN_BYTE;
			break;
		}
		__attribute__((fallthrough));
	default:
		return error_set(load->error, STATUS_INVALID, "token %zu %s has type %d, which this vocabulary does not have", index,
		    bytes_quote(quoted, string, len), type);
	}
	if (len > TOKEN_FILE_TOKEN_MAX)
		return error_set(load->error, STATUS_LIMIT, "token %zu %s has %zu bytes, the limit is %d", index,
		    bytes_quote(quoted, string, len), len, TOKEN_FILE_TOKEN_MAX);
	if (spell(load, type, &string, &len))
		return error_set(load->error, STATUS_NOMEM, "no memory for token %zu", index);
	/* Padding rows are spelled too: what a vocabulary's padding is called is shown where ids are listed. */
	status = token_file_add(load->file, (uint32_t)index, string, len, kind, load->error);
	if (status || (type != TYPE_CONTROL && type != TYPE_UNKNOWN && type != TYPE_USER))
		return status;
	return token_file_add_added(load->file, &added, load->error);
}

static enum status read_tokens(const struct gguf *gguf, struct load *load)
{
	size_t      count = 0;
	enum status status = gguf_array_count(gguf, "tokenizer.ggml.tokens", &count, load->error);

	if (status)
		return status;
	if (count == 0 || count > TOKEN_FILE_IDS_MAX)
		return error_set(load->error, STATUS_LIMIT, "tokenizer.ggml.tokens has %zu elements, allowed are 1 to %d", count,
		    TOKEN_FILE_IDS_MAX);
	load->types = malloc(count * sizeof *load->types);
	if (!load->types)
		return error_set(load->error, STATUS_NOMEM, "no memory for a vocabulary of %zu tokens", count);
	status = gguf_array_i32(gguf, "tokenizer.ggml.token_type", load->types, count, load->error);
	if (!status)
		status = gguf_array_strings(gguf, "tokenizer.ggml.tokens", add_token, load, load->error);
	load->file->model_size = load->file->size;
	return status;
}

static enum status read_scores(const struct gguf *gguf, struct token_file *file, struct error *error)
{
	float      *scores = malloc(file->size * sizeof *scores);
	enum status status = STATUS_NOMEM;

	file->scores = malloc(file->size * sizeof *file->scores);
	if (scores && file->scores)
		status = gguf_array_f32(gguf, "tokenizer.ggml.scores", scores, file->size, error);
	else
		error_set(error, STATUS_NOMEM, "no memory for %u scores", file->size);
	for (uint32_t i = 0; !status && i < file->size; i++)
		file->scores[i] = (double)scores[i];
	free(scores);
	return status;
}

static enum status add_merge(void *context, size_t index, const char *string, size_t len)
{
	struct load *load = context;
	const char  *space = len > 1 ? memchr(string + 1, ' ', len - 1) : NULL;
	char         quoted[BYTES_QUOTE_MAX];

	bytes_quote(quoted, string, len);
	if (!space || string[0] == ' ' || space + 1 == string + len || memchr(space + 1, ' ', (size_t)(string + len - space - 1)))
		return error_set(load->error, STATUS_INVALID, "merge %zu %s is not two parts with one space between", index, quoted);
	return token_file_add_merge(load->file, string, (size_t)(space - string), space + 1, (size_t)(string + len - space - 1),
	    load->error);
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

/* FALLBACK when the key is absent. */
static enum status read_flag(const struct gguf *gguf, const char *key, bool fallback, bool *ret, struct error *error)
{
	enum status status = gguf_get_bool(gguf, key, ret, error);

	if (status != STATUS_NOT_FOUND)
		return status;
	*ret = fallback;
	return STATUS_OK;
}

static json_t *frame_token(const struct token_file *file, json_t *special, int32_t id)
{
	size_t      len;
	const char *bytes;

	if (id < 0)
		return NULL;
	bytes = token_file_spelling(file, (uint32_t)id, &len);
	if (!bytes) /* a padding row */
		bytes = "", len = 0;
	json_object_setn_new(special, bytes, len, json_pack("{s:s%, s:[i]}", "id", bytes, len, "ids", (int)id));
	return json_pack("{s:{s:s%, s:i}}", "SpecialToken", "id", bytes, len, "type_id", 0);
}

/* What stands before and behind a text that asks for special tokens. */
static enum status frame(struct token_file *file, int32_t before, int32_t behind, struct error *error)
{
	json_t *special = json_object(), *first = frame_token(file, special, before), *last = frame_token(file, special, behind);

	file->post_processor = json_pack("{s:s, s:[o*, {s:{s:s, s:i}}, o*], s:o}", "type", "TemplateProcessing", "single", first,
	    "Sequence", "id", "A", "type_id", 0, last, "special_tokens", special);
	return file->post_processor ? STATUS_OK : error_set(error, STATUS_NOMEM, "no memory for a post-processor");
}

static enum status read_ids(const struct gguf *gguf, struct token_file *file, enum kind kind, struct error *error)
{
	static const char *const ends[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
		"tokenizer.ggml.eom_token_id" };
	enum status status = STATUS_OK;
	int32_t     id = -1, pad, separator = -1, cls = -1, eos = -1;
	bool        add_eos = false;

	for (size_t i = 0; !status && i < sizeof ends / sizeof ends[0]; i++) {
		status = read_id(gguf, ends[i], file->size, &id, error);
		if (!status && i == 0)
			eos = id;
		if (!status && id >= 0)
			status = token_file_add_eos(file, id, error);
	}
	if (!status)
		status = read_id(gguf, "tokenizer.ggml.unknown_token_id", file->size, &id, error);
	if (!status && kind != GPT2)
		file->unk = id;
	if (!status)
		status = read_id(gguf, "tokenizer.ggml.padding_token_id", file->size, &pad, error);
	if (!status)
		status = read_id(gguf, "tokenizer.ggml.seperator_token_id" /* the format's own spelling */, file->size, &separator, error);
	if (!status)
		status = read_id(gguf, "tokenizer.ggml.cls_token_id", file->size, &cls, error);
	if (!status)
		status = read_id(gguf, "tokenizer.ggml.bos_token_id", file->size, &file->bos, error);
	if (!status)
		status = read_flag(gguf, "tokenizer.ggml.add_bos_token", kind == LLAMA && file->bos >= 0, &file->add_bos, error);
	if (!status)
		status = read_flag(gguf, "tokenizer.ggml.add_eos_token", kind == T5 && eos >= 0, &add_eos, error);
	if (status)
		return status;
	if (file->add_bos && file->bos < 0)
		return error_set(error, STATUS_INVALID,
		    "tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id");
	if (kind == BERT)
		return frame(file, cls >= 0 ? cls : file->bos, separator >= 0 ? separator : eos, error);
	return frame(file, file->add_bos ? file->bos : -1, add_eos ? eos : -1, error);
}

static enum status read_gpt2(const struct gguf *gguf, struct load *load)
{
	size_t      merges = 0;
	enum status status = gguf_array_count(gguf, "tokenizer.ggml.merges", &merges, load->error);

	if (!status && merges > TOKEN_FILE_MERGES_MAX)
		status = error_set(load->error, STATUS_LIMIT, "tokenizer.ggml.merges has %zu elements, the limit is %d", merges,
		    TOKEN_FILE_MERGES_MAX);
	return status ? status : gguf_array_strings(gguf, "tokenizer.ggml.merges", add_merge, load, load->error);
}

/* SentencePiece vocabularies: spaces become U+2581, one is put before the text. */
static enum status read_sentencepiece(const struct gguf *gguf, struct token_file *file, enum kind kind, struct error *error)
{
	size_t      count = 0;
	bool        prefix, collapse = false;
	enum status status = read_scores(gguf, file, error);

	if (!status)
		status = read_flag(gguf, "tokenizer.ggml.add_space_prefix", true, &prefix, error);
	if (!status)
		status = read_flag(gguf, "tokenizer.ggml.remove_extra_whitespaces", false, &collapse, error);
	if (!status && gguf_array_count(gguf, "tokenizer.ggml.precompiled_charsmap", &count, NULL) == STATUS_OK && count) {
		int32_t *bytes = malloc(count * sizeof *bytes);
		file->charsmap = malloc(count);
		status = bytes && file->charsmap ? gguf_array_i32(gguf, "tokenizer.ggml.precompiled_charsmap", bytes, count, error) :
		    error_set(error, STATUS_NOMEM, "no memory for %zu bytes of a normalizer", count);
		for (size_t i = 0; !status && i < count; i++)
			file->charsmap[i] = (char)bytes[i];
		file->charsmap_len = count;
		free(bytes);
	}
	if (status)
		return status;
	file->model = kind == T5 ? TOKEN_UNIGRAM : TOKEN_BPE;
	file->merges_by_score = kind == LLAMA;
	file->byte_fallback = kind == LLAMA;
	file->fuse_unk = true;
	file->sentencepiece = true;
	file->normalizer = json_pack("{s:s, s:b, s:b}", "type", "SentencePiece", "add_dummy_prefix", (int)prefix,
	    "remove_extra_whitespaces", (int)collapse);
	file->decoder = sequence("decoders", json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", "\xe2\x96\x81",
	    "content", " "), json_pack("{s:s}", "type", "ByteFallback"), json_pack("{s:s}", "type", "Fuse"),
	    prefix ? json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", collapse ? HEADING_SPACES : 1, "stop",
	    0) : NULL);
	return file->normalizer && file->decoder ? STATUS_OK : error_set(error, STATUS_NOMEM, "no memory for a normalizer");
}

/* The format does not say whether letters keep their case; the models that ship it (bge, all-MiniLM, e5) lower it. */
static enum status read_bert(struct token_file *file, struct error *error)
{
	file->model = TOKEN_WORDPIECE;
	file->max_word_chars = 100;
	memcpy(file->prefix, "##", 3);
	if (file->unk < 0)
		return error_set(error, STATUS_INVALID, "there is no tokenizer.ggml.unknown_token_id, which this vocabulary needs");
	file->normalizer = json_pack("{s:s, s:b, s:b, s:b}", "type", "BertNormalizer", "clean_text", 1, "handle_chinese_chars", 1,
	    "lowercase", 1);
	file->pre_tokenizer = json_pack("{s:s}", "type", "BertPreTokenizer");
	file->decoder = json_pack("{s:s, s:s, s:b}", "type", "WordPiece", "prefix", "##", "cleanup", 1);
	return file->normalizer && file->pre_tokenizer && file->decoder ? STATUS_OK :
	    error_set(error, STATUS_NOMEM, "no memory for a normalizer");
}

static enum status read_kind(const struct gguf *gguf, enum kind *ret, struct error *error)
{
	static const char *const names[ARCHITECTURES] = { "gpt2", "llama", "bert", "t5" };
	const char              *model;
	size_t                   len;
	char                     quoted[BYTES_QUOTE_MAX];
	enum status              status = gguf_get_string(gguf, "tokenizer.ggml.model", &model, &len, error);

	if (status)
		return status;
	for (int i = 0; i < ARCHITECTURES; i++)
		if (strlen(names[i]) == len && memcmp(model, names[i], len) == 0) {
			*ret = (enum kind)i;
			return STATUS_OK;
		}
	return error_set(error, STATUS_UNSUPPORTED, "tokenizer.ggml.model is %s; known are \"gpt2\", \"llama\", \"bert\" and \"t5\"",
	    bytes_quote(quoted, model, len));
}

enum status token_file_from_gguf(const struct gguf *gguf, bool vocabulary_only, struct token_file *ret, struct error *error)
{
	struct token_file file;
	struct load       load = { .file = &file, .error = error };
	enum status       status = read_kind(gguf, &load.kind, error);

	token_file_init(&file);
	buf_init(&load.scratch, TOKEN_FILE_TOKEN_MAX + 2);
	if (!status && load.kind == GPT2) {
		file.decoder = byte_level(true);
		if (!file.decoder)
			status = error_set(error, STATUS_NOMEM, "no memory for a decoder");
	}
	if (!status && load.kind == GPT2 && !vocabulary_only)
		status = read_pre(gguf, &file, error);
	if (!status)
		status = read_tokens(gguf, &load);
	if (!status)
		status = read_ids(gguf, &file, load.kind, error);
	if (!status && load.kind == GPT2)
		status = vocabulary_only ? STATUS_OK : read_gpt2(gguf, &load);
	else if (!status && load.kind == BERT)
		status = read_bert(&file, error);
	else if (!status)
		status = read_sentencepiece(gguf, &file, load.kind, error);
	if (!status)
		status = token_file_finish(&file, error);
	free(load.types);
	buf_free(&load.scratch);
	if (status) {
		token_file_free(&file);
		return gguf_error_prefix(gguf, status, error);
	}
	*ret = file;
	return STATUS_OK;
}
