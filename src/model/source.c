/* source.c: owns the pair of a checkpoint and its configuration.  Does not own what they say.  Invariant: a source that
 * was opened has a configuration unless its checkpoint is a GGUF file. */
#include "file/hf_config.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_NAME "config.json"

/* config.json in the directory PATH, or beside the file PATH. */
static enum status open_config(const char *path, struct hf_config *ret, struct error *error)
{
	const char *slash = strrchr(path, '/');
	struct stat info;
	bool        directory = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
	char       *name = NULL;
	enum status status;

	if (directory ? asprintf(&name, "%s/" CONFIG_NAME, path) < 0 :
	    asprintf(&name, "%.*s" CONFIG_NAME, slash ? (int)(slash + 1 - path) : 0, path) < 0)
		return error_set(error, STATUS_NOMEM, "%.160s: no memory", path);
	status = hf_config_open(name, ret, error);
	if (status == STATUS_NOT_FOUND)
		status = error_set(error, STATUS_NOT_FOUND, "%.200s is missing: safetensors need it", name);
	free(name);
	return status;
}

enum status model_source_open(const char *path, struct model_source *ret, struct error *error)
{
	struct model_source source = { .checkpoint = NULL };
	enum status         status = checkpoint_open(path, &source.checkpoint, error);

	if (status)
		return status;
	if (!checkpoint_gguf(source.checkpoint)) {
		source.config = calloc(1, sizeof *source.config);
		status = source.config ? open_config(path, source.config, error) :
		    error_set(error, STATUS_NOMEM, "%.160s: no memory", path);
	}
	if (status) {
		model_source_close(&source);
		return status;
	}
	*ret = source;
	return STATUS_OK;
}

enum status model_source_open_dummy(const char *path, struct model_source *ret, struct error *error)
{
	struct model_source source = { .config = calloc(1, sizeof *source.config), .dummy = true };
	enum status         status = source.config ? open_config(path, source.config, error) :
	    error_set(error, STATUS_NOMEM, "%.160s: no memory", path);

	if (status) {
		model_source_close(&source);
		return status;
	}
	*ret = source;
	return STATUS_OK;
}

const char *model_source_dtype(const struct model_source *source)
{
	struct hf_config text;
	const char      *dtype = "";

	if (!source->config || hf_config_text(source->config, &text, NULL) || hf_config_dtype(&text, &dtype, NULL))
		return "";
	return strcmp(dtype, "float16") ? "" : "float16";
}

void model_source_close(struct model_source *source)
{
	checkpoint_close(source->checkpoint);
	hf_config_close(source->config);
	free(source->config);
	*source = (struct model_source){ .checkpoint = NULL };
}
