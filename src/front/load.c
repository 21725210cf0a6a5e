/* load.c: owns the order of loading and the identity of the file that was loaded.  Does not own what is in the file.
 * Invariant: after load_open nothing in struct load refers to the mapped file: it may be replaced on disk at any
 * time. */
#include "front/load.h"

#include "api/keys.h"
#include "file/gguf.h"
#include "file/hf_config.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { PATH_BYTES = 4096 };

/* The context the model was trained for, which penstockd corrects once it is there; 0 when the file does not say. */
static uint32_t trained_context(const struct gguf *gguf)
{
	const char *architecture;
	char        key[GGUF_NAME_MAX];
	size_t      len;
	uint64_t    value;

	if (gguf_get_string(gguf, "general.architecture", &architecture, &len, NULL) || len > 64)
		return 0;
	snprintf(key, sizeof key, "%.*s.context_length", (int)len, architecture);
	return gguf_get_u64(gguf, key, &value, NULL) || value > UINT32_MAX ? 0 : (uint32_t)value;
}

/* The same for a directory. */
static uint32_t configured_context(const char *directory)
{
	char             path[PATH_BYTES];
	struct hf_config config, text;
	uint32_t         context = 0;

	if ((size_t)snprintf(path, sizeof path, "%s/config.json", directory) >= sizeof path || hf_config_open(path, &config, NULL))
		return 0;
	if (!hf_config_text(&config, &text, NULL) &&
	    (hf_config_u32_or(&text, "max_position_embeddings", 1, UINT32_MAX, 0, &context, NULL) || !context))
		hf_config_u32_or(&text, "seq_length", 1, UINT32_MAX, 0, &context, NULL);
	hf_config_close(&config);
	return context;
}

enum status load_open(const struct conf *conf, struct load *ret, struct error *error)
{
	struct load       load = { .api.conf = conf, .api.created = (int64_t)time(NULL) };
	struct token_file file;
	struct gguf      *gguf = NULL;
	bool              directory;
	enum status       status;

	if (!*conf->model_path)
		return error_set(error, STATUS_INVALID, "model.path is not set: which model's vocabulary is to be loaded?");
	if (stat(conf->model_path, &load.file))
		return error_set(error, STATUS_IO, "%s: %s", conf->model_path, strerror(errno));
	directory = S_ISDIR(load.file.st_mode);
	status = directory ? STATUS_OK : gguf_open(conf->model_path, &gguf, error);
	if (!status)
		status = directory ? token_file_open(conf->model_path, &file, error) : token_file_from_gguf(gguf, false, &file, error);
	if (!status) {
		status = vocab_from_file(&file, &load.vocab, error);
		if (!status)
			status = tokenizer_from_file(&file, &load.tokenizer, error);
		if (!status)
			status = tokenizer_respell(load.tokenizer, &file, load.vocab, error);
		token_file_free(&file);
	}
	if (!status)
		status = directory ? chat_template_from_directory(conf->model_path, conf->model_chat_template, &load.chat, error) :
		    chat_template_from_gguf(gguf, conf->model_chat_template, &load.chat, error);
	if (status == STATUS_NOT_FOUND && directory && load.tokenizer && !*conf->model_chat_template)
		status = STATUS_OK; /* no template: chats are refused in words */
	if (!status)
		status = load_keys(&load, error);
	if (!status)
		status = output_format_detect(load.chat, load.vocab, conf->front_tool_parser, conf->front_reasoning_parser,
		    &load.api.output, error);
	if (!status) {
		conf_model_name(conf, load.api.model_name, sizeof load.api.model_name);
		load.api.vocab = load.vocab;
		load.api.tokenizer = load.tokenizer;
		load.api.chat = load.chat;
		load.api.max_context = conf->model_max_context ? (uint32_t)conf->model_max_context :
		    directory ? configured_context(conf->model_path) : trained_context(gguf);
	}
	gguf_close(gguf);
	if (status) {
		load_close(&load);
		return status;
	}
	*ret = load;
	return STATUS_OK;
}

void load_close(struct load *load)
{
	if (!load)
		return;
	keys_free(load->api.keys);
	chat_template_free(load->chat);
	tokenizer_free(load->tokenizer);
	vocab_free(load->vocab);
	memset(load, 0, sizeof *load);
}

enum status load_keys(struct load *load, struct error *error)
{
	struct keys *keys = NULL;

	if (!*load->api.conf->front_keys_file)
		return STATUS_OK;
	enum status status = keys_load(load->api.conf->front_keys_file, &keys, error);
	if (status)
		return status;
	keys_free(load->api.keys);
	load->api.keys = keys;
	return STATUS_OK;
}

bool load_is_stale(const struct load *load)
{
	struct stat now;

	if (stat(load->api.conf->model_path, &now))
		return false; /* nothing there to load instead */
	return now.st_dev != load->file.st_dev || now.st_ino != load->file.st_ino || now.st_size != load->file.st_size ||
	    now.st_mtim.tv_sec != load->file.st_mtim.tv_sec || now.st_mtim.tv_nsec != load->file.st_mtim.tv_nsec;
}
