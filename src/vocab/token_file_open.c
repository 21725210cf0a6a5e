/* token_file_open.c: owns the choice of reader by content, and what the neighbours of a tokenizer in a model directory add:
 * the ids that end a sequence, the frame of a text, ids without a spelling in text, the split of rank files.  Reads no format
 * itself; special tokens are token_file_special.c's.
 *
 * Invariant: eos ids are the union of what config.json, generation_config.json and tokenizer_config.json say. */
#include "base/bytes.h"
#include "file/hf_config.h"
#include "file/map.h"
#include "vocab/token_file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_MAX_BYTES = 4096 };

/* DIRECTORY/NAME, if it exists. */
static enum status open_config(const char *directory, const char *name, struct hf_config *ret, struct error *error)
{
	char        path[PATH_MAX_BYTES];
	enum status status;

	*ret = (struct hf_config){ .object = NULL };
	if ((size_t)snprintf(path, sizeof path, "%s/%s", directory, name) >= sizeof path)
		return error_set(error, STATUS_LIMIT, "%.160s: the path is too long", directory);
	status = hf_config_open(path, ret, error);
	return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

static int32_t find(const struct token_file *file, const char *text)
{
	size_t want = strlen(text), len;

	for (uint32_t id = file->size; want && id-- > 0;) {
		const char *spelling = token_file_spelling(file, id, &len);
		if (spelling && len == want && memcmp(spelling, text, len) == 0)
			return (int32_t)id;
	}
	return -1;
}

static enum status read_ends(struct token_file *file, const char *directory, const struct hf_config *config, struct error *error)
{
	struct hf_generation generation;
	enum status          status = hf_generation_read(directory, config, TOKEN_FILE_IDS_MAX, &generation, error);

	if (status)
		return status;
	for (size_t i = 0; !status && i < generation.eos_count; i++)
		status = token_file_add_eos(file, generation.eos[i], error);
	if (!status && *generation.eos_text && find(file, generation.eos_text) >= 0)
		status = token_file_add_eos(file, find(file, generation.eos_text), error);
	return status;
}

/* The ids BEFORE a text, and EOS behind it if WITH_EOS. */
static enum status frame(struct token_file *file, const int32_t *before, size_t count, bool with_eos, int32_t eos,
    struct error *error)
{
	json_t *special = json_object(), *steps = json_array();
	char    name[16];

	for (size_t i = 0; i < count + with_eos; i++) {
		int32_t id = i < count ? before[i] : eos;
		snprintf(name, sizeof name, "%d", id);
		json_object_set_new(special, name, json_pack("{s:s, s:[i]}", "id", name, "ids", (int)id));
		if (i == count)
			json_array_append_new(steps, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
		json_array_append_new(steps, json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", name, "type_id", 0));
	}
	if (!with_eos)
		json_array_append_new(steps, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
	json_decref(file->post_processor);
	file->post_processor = json_pack("{s:s, s:o, s:o}", "type", "TemplateProcessing", "single", steps, "special_tokens", special);
	return file->post_processor ? STATUS_OK : error_set(error, STATUS_NOMEM, "no memory for a post-processor");
}

/* The ids of ChatGLM2's and 3's special tokens, which text never spells: what added_tokens_decoder says where it does, else the
 * places behind the pieces in this order, as the code beside the checkpoint numbers them. */
static enum status add_chatglm(struct token_file *file, const struct hf_config *tokenizer, struct error *error)
{
	static const char *const names[] = { "[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "<|system|>", "<|user|>", "<|assistant|>",
		"<|observation|>" };
	int32_t     before[2];
	uint32_t    base = file->size;
	enum status status = token_file_add_stated(file, json_object_get(tokenizer->object, "added_tokens_decoder"), error);

	for (uint32_t i = 0; !status && i < sizeof names / sizeof names[0]; i++)
		if (find(file, names[i]) < 0)
			status = token_file_add(file, base + i, names[i], strlen(names[i]), TOKEN_CONTROL, error);
	before[0] = find(file, "[gMASK]");
	before[1] = find(file, "sop");
	return status ? status : frame(file, before, 2, false, 0, error);
}

/* The first GLM-4 begin every text like this; the code beside the checkpoint does it, no file says so. */
static enum status frame_glm4(struct token_file *file, const char *class, struct error *error)
{
	int32_t before[2] = { find(file, "[gMASK]"), find(file, "<sop>") };

	if (file->post_processor || strcmp(class, "ChatGLM4Tokenizer") != 0 || before[0] < 0 || before[1] < 0)
		return STATUS_OK;
	return frame(file, before, 2, false, 0, error);
}

/* The first Qwen number their special tokens after the ranks; the code beside the checkpoint does it, no file says so. */
static enum status add_qwen(struct token_file *file, struct error *error)
{
	enum { EXTRAS = 205 };
	static const char *const names[] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };
	char                     name[32];
	enum status              status = STATUS_OK;

	for (unsigned i = 0; !status && i < 3 + EXTRAS; i++) {
		struct token_added added = { .id = file->size, .special = true };
		if (i < 3)
			snprintf(name, sizeof name, "%s", names[i]);
		else
			snprintf(name, sizeof name, "<|extra_%u|>", i - 3);
		status = token_file_add(file, added.id, name, strlen(name), TOKEN_CONTROL, error);
		if (!status)
			status = token_file_add_added(file, &added, error);
	}
	return status;
}

/* SentencePiece models begin with bos, unless add_bos_token says no.  A tokenizer.json has its own frame, whatever those keys say,
 * as in the reference. */
static enum status frame_sentencepiece(struct token_file *file, const struct hf_config *tokenizer, int32_t eos, struct error *error)
{
	bool        before, behind;
	enum status status = hf_config_bool_or(tokenizer, "add_bos_token", file->bos >= 0, &before, error);

	if (!status)
		status = hf_config_bool_or(tokenizer, "add_eos_token", false, &behind, error);
	return status ? status : frame(file, &file->bos, before && file->bos >= 0, behind && eos >= 0, eos, error);
}

struct neighbours {
	struct hf_config config, tokenizer, special, added;
	const char      *model_type, *tokenizer_class;
};

static enum status open_neighbours(const char *directory, struct neighbours *ret, struct error *error)
{
	enum status status = open_config(directory, "config.json", &ret->config, error);

	if (!status)
		status = open_config(directory, "tokenizer_config.json", &ret->tokenizer, error);
	if (!status)
		status = open_config(directory, "special_tokens_map.json", &ret->special, error);
	if (!status)
		status = open_config(directory, "added_tokens.json", &ret->added, error);
	if (!status)
		status = hf_config_string_or(&ret->config, "model_type", "", &ret->model_type, error);
	return status ? status : hf_config_string_or(&ret->tokenizer, "tokenizer_class", "", &ret->tokenizer_class, error);
}

static void close_neighbours(struct neighbours *n)
{
	hf_config_close(&n->config);
	hf_config_close(&n->tokenizer);
	hf_config_close(&n->special);
	hf_config_close(&n->added);
}

/* What N says of the way a rank file's text is split, in the words of tokenizer.ggml.pre; "" when it says nothing known. */
static const char *split_of(const struct neighbours *n)
{
	static const struct {
		const char *name, *split; /* of a tokenizer_class or a model_type */
	} known[] = {
		{ "ChatGLM4Tokenizer", "glm4" }, { "QWenTokenizer", "qwen2" }, { "TikTokenTokenizer", "kimi-k2" },
		{ "WhisperTokenizer", "gpt-2" }, { "GPT2Tokenizer", "gpt-2" }, { "Phi3SmallTokenizer", "dbrx" },
		{ "chatglm", "glm4" }, { "glm", "glm4" }, { "glm4", "glm4" }, { "glm4v", "glm4" }, { "glm4_moe", "glm4" },
		{ "qwen", "qwen2" }, { "qwen2", "qwen2" }, { "llama", "llama-bpe" }, { "mllama", "llama-bpe" }, { "llama4_text", "llama4" },
		{ "llama4", "llama4" }, { "gpt_oss", "gpt-4o" }, { "kimi_k2", "kimi-k2" }, { "kimi_vl", "kimi-k2" },
		{ "kimi_k25", "kimi-k2" }, { "kimi_linear", "kimi-k2" }, { "whisper", "gpt-2" }, { "gpt2", "gpt-2" }, { "dbrx", "dbrx" },
		{ "phi3small", "dbrx" },
	};
	const char *const names[] = { n->tokenizer_class, n->model_type };

	for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
		for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
			if (strcmp(names[k], known[i].name) == 0)
				return known[i].split;
	return "";
}

/* N: what lies beside the file. */
static enum status open_file(const char *path, const struct neighbours *n, struct token_file *ret, struct error *error)
{
	struct map   map;
	struct gguf *gguf;
	enum status  status = map_open(path, SIZE_MAX, &map, error);
	size_t       at = 0;

	if (status)
		return status;
	if (map.size >= 4 && memcmp(map.bytes, "GGUF", 4) == 0) {
		map_close(&map);
		status = gguf_open(path, &gguf, error);
		if (status)
			return status;
		status = token_file_from_gguf(gguf, false, ret, error);
		gguf_close(gguf);
		return status;
	}
	while (at < map.size && strchr(" \t\r\n", map.bytes[at]) && map.bytes[at])
		at++;
	if (map.size > TOKEN_FILE_BYTES_MAX)
		status = error_set(error, STATUS_LIMIT, "%.160s: the file has %zu bytes, the limit is %d", path, map.size,
		    TOKEN_FILE_BYTES_MAX);
	else if (at < map.size && map.bytes[at] == '{')
		status = token_file_from_json((const char *)map.bytes, map.size, path, ret, error);
	else if (token_file_is_tiktoken((const char *)map.bytes, map.size))
		status = token_file_from_tiktoken((const char *)map.bytes, map.size, path, split_of(n), ret, error);
	else if (map.size && map.bytes[0] == 0x0a) /* field 1 of a message: the first piece */
		status = token_file_from_spm((const char *)map.bytes, map.size, path, ret, error);
	else
		status = error_set(error, STATUS_UNSUPPORTED,
		    "%.160s: neither a GGUF file, nor a tokenizer.json, nor a SentencePiece model, nor a rank file of tiktoken", path);
	map_close(&map);
	return status;
}

/* How many ids the model has rows for; no limit where its configuration does not say. */
static uint32_t rows_of(const struct hf_config *config)
{
	static const char *const keys[] = { "padded_vocab_size", "vocab_size" };
	struct hf_config         text;

	if (hf_config_text(config, &text, NULL))
		return TOKEN_FILE_IDS_MAX;
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
		json_int_t rows = json_integer_value(json_object_get(text.object, keys[i]));
		if (rows > 0 && rows <= TOKEN_FILE_IDS_MAX)
			return (uint32_t)rows;
	}
	return TOKEN_FILE_IDS_MAX;
}

static enum status add_neighbours(struct token_file *file, const char *directory, const struct neighbours *n, struct error *error)
{
	struct token_names names = { .bos = -1, .eos = -1 };
	enum status        status = STATUS_OK;

	if (file->sentencepiece && strcmp(n->model_type, "chatglm") == 0) {
		status = add_chatglm(file, &n->tokenizer, error);
	} else {
		if (strcmp(n->tokenizer_class, "QWenTokenizer") == 0 && file->merges_by_score && !file->sentencepiece &&
		    hf_config_kind(&n->tokenizer, "added_tokens_decoder") == HF_ABSENT)
			status = add_qwen(file, error);
		if (!status)
			status = token_file_merge_special(file, n->tokenizer.object, n->special.object, n->added.object,
			    rows_of(&n->config), &names, error);
		if (!status && !file->sentencepiece && !file->post_processor)
			status = frame_glm4(file, n->tokenizer_class, error);
		if (!status && names.bos >= 0)
			file->bos = names.bos;
		if (!status && file->sentencepiece && !file->post_processor)
			status = frame_sentencepiece(file, &n->tokenizer, names.eos >= 0 ? names.eos : file->eos_count ? file->eos[0] : -1,
			    error);
	}
	if (!status)
		status = read_ends(file, directory, &n->config, error);
	return status || names.eos < 0 ? status : token_file_add_eos(file, names.eos, error);
}

static enum status open_directory(const char *directory, struct token_file *ret, struct error *error)
{
	static const char *const names[] = { "tokenizer.json", "tokenizer.model", "tiktoken.model", "qwen.tiktoken" };
	struct neighbours        n = { .model_type = "", .tokenizer_class = "" };
	char                     path[PATH_MAX_BYTES];
	struct stat              info;
	struct token_file        file;
	enum status              status = open_neighbours(directory, &n, error);
	size_t                   i;

	for (i = 0; !status && i < sizeof names / sizeof names[0]; i++) {
		if ((size_t)snprintf(path, sizeof path, "%s/%s", directory, names[i]) >= sizeof path)
			status = error_set(error, STATUS_LIMIT, "%.160s: the path is too long", directory);
		else if (stat(path, &info) == 0)
			break;
	}
	if (!status && i == sizeof names / sizeof names[0])
		status = error_set(error, STATUS_NOT_FOUND, "%.160s holds neither tokenizer.json nor tokenizer.model", directory);
	if (!status)
		status = open_file(path, &n, &file, error);
	if (!status) {
		status = add_neighbours(&file, directory, &n, error);
		if (status)
			token_file_free(&file);
		else
			*ret = file;
	}
	close_neighbours(&n);
	return status;
}

/* A file alone; only a rank file asks what lies beside it. */
static enum status open_alone(const char *path, const char *directory, struct token_file *ret, struct error *error)
{
	struct neighbours n = { .model_type = "", .tokenizer_class = "" };
	char              head[64];
	FILE             *file = fopen(path, "rb");
	size_t            len = file ? fread(head, 1, sizeof head, file) : 0;
	enum status       status = STATUS_OK;

	if (file)
		fclose(file);
	if (token_file_is_tiktoken(head, len))
		status = open_neighbours(directory, &n, error);
	if (!status)
		status = open_file(path, &n, ret, error);
	close_neighbours(&n);
	return status;
}

enum status token_file_open(const char *path, struct token_file *ret, struct error *error)
{
	static const char weights[] = ".safetensors";
	struct stat       info;
	size_t            len = strlen(path);
	const char       *slash = strrchr(path, '/');
	char              directory[PATH_MAX_BYTES];

	if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
		return open_directory(path, ret, error);
	if ((size_t)snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path) + (slash == path) : 1,
	        slash ? path : ".") >= sizeof directory)
		return error_set(error, STATUS_LIMIT, "%.160s: the path is too long", path);
	if (len > sizeof weights && strcmp(path + len - (sizeof weights - 1), weights) == 0) /* its tokenizer lies beside it */
		return open_directory(directory, ret, error);
	return open_alone(path, directory, ret, error);
}
