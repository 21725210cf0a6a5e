/* chat_source.c: owns the search for a model's chat template.  Does not own its language (jinja.h).  A template is never taken
 * from a request. */
#include "text/chat_source.h"

#include "base/bytes.h"
#include "file/jsonfile.h"
#include "file/map.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- built in ----------------------------------------------------------------- */

static const struct builtin {
	const char *name, *text;
} builtins[] = {
#include "text/chat_templates.inc"
};

static enum status open_builtin(const char *name, struct jinja_template **ret, struct error *error)
{
	char   names[256] = "";
	size_t used = 0;

	for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++) {
		if (strcmp(builtins[i].name, name) == 0)
			return jinja_compile(builtins[i].text, strlen(builtins[i].text), name, ret, error);
		used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", builtins[i].name);
	}
	return error_set(error, STATUS_NOT_FOUND, "builtin:%.60s: there is no such template, only %s", name, names);
}

/* The built-in template of the model that CONFIG describes; NULL when there is none. */
static const char *family(const json_t *config)
{
	static const struct {
		const char *model_type, *name;
	} families[] = { { "glm", "glm-4-9b-chat" }, { "glm4", "glm-4-0414" }, { "glm4_moe", "glm-4.5" }, { "glm4_moe_lite",
	    "glm-4.7" } };
	const char   *type = json_string_value(json_object_get(config, "model_type"));
	const char   *name = json_string_value(json_object_get(config, "_name_or_path"));
	const json_t *shared = json_object_get(config, "index_topk_freq");

	if (!type)
		return NULL;
	for (size_t i = 0; i < sizeof families / sizeof *families; i++)
		if (strcmp(families[i].model_type, type) == 0)
			return families[i].name;
	if (strcmp(type, "chatglm") == 0) /* the vocabulary tells GLM-4 from its predecessors, only the name those from each other */
		return json_integer_value(json_object_get(config, "padded_vocab_size")) > 100000 ? "glm-4-9b-chat"
		    : name && strstr(name, "chatglm2")                                           ? "chatglm2"
		                                                                                 : "chatglm3";
	if (strcmp(type, "glm_moe_dsa") == 0) /* layers that share an index came with 5.2 */
		return shared || json_object_get(config, "indexer_types") ? "glm-5.2" : "glm-4.7";
	return NULL;
}

/* ---- of a model ----------------------------------------------------------------- */

/* PATH, or DIRECTORY/FILE. */
static enum status join(const char *directory, const char *file, char ret[PATH_MAX], struct error *error)
{
	if (snprintf(ret, PATH_MAX, "%s/%s", directory, file) >= PATH_MAX)
		return error_set(error, STATUS_LIMIT, "%s/%s: the path is longer than %d bytes", directory, file, PATH_MAX - 1);
	return STATUS_OK;
}

static enum status open_file(const char *path, struct jinja_template **ret, struct error *error)
{
	struct map  map;
	enum status status = map_open(path, JINJA_SOURCE_MAX, &map, error);

	if (status)
		return status;
	status = jinja_compile((const char *)map.bytes, map.size, path, ret, error);
	map_close(&map);
	return status;
}

static enum status from_json(const char *path, const json_t *config, const char *name, struct jinja_template **ret,
    struct error *error)
{
	const json_t *template = json_object_get(config, "chat_template"), *item;

	if (json_is_string(template) && !name)
		return jinja_compile(json_string_value(template), json_string_length(template), path, ret, error);
	for (size_t i = 0; i < json_array_size(template); i++) {
		const char *called;

		item = json_array_get(template, i);
		called = json_string_value(json_object_get(item, "name"));
		item = json_object_get(item, "template");
		if (called && json_is_string(item) && strcmp(called, name ? name : "default") == 0)
			return jinja_compile(json_string_value(item), json_string_length(item), path, ret, error);
	}
	return error_set(error, STATUS_NOT_FOUND, "%s: no chat_template%s%s", path, name ? " called " : "", name ? name : "");
}

/* For a model that ships no template. */
static enum status open_family(const char *path, struct jinja_template **ret, struct error *error)
{
	char        file[PATH_MAX];
	json_t     *config;
	const char *name;
	enum status status = join(path, "config.json", file, error);

	if (!status)
		status = jsonfile_open(file, &config, error);
	if (status == STATUS_NOT_FOUND)
		return error_set(error, status, "%s: no chat template, and no config.json that says what model it is", path);
	if (status)
		return status;
	name = family(config);
	status = name ? open_builtin(name, ret, error) : error_set(error, STATUS_NOT_FOUND, "%s: the model ships no chat template",
	    path);
	json_decref(config);
	return status;
}

static enum status open_directory(const char *path, const char *name, struct jinja_template **ret, struct error *error)
{
	char        file[PATH_MAX], named[NAME_MAX + 1] = "chat_template.jinja";
	json_t     *config;
	enum status status;

	if (name && (strchr(name, '/') || snprintf(named, sizeof named, "additional_chat_templates/%s.jinja",
	    name) >= (int)sizeof named))
		return error_set(error, STATUS_INVALID, "%s: no name of a chat template", name);
	if ((status = join(path, named, file, error)) || (status = open_file(file, ret, error)) != STATUS_NOT_FOUND)
		return status;
	if ((status = join(path, "tokenizer_config.json", file, error)))
		return status;
	status = jsonfile_open(file, &config, error);
	if (status && status != STATUS_NOT_FOUND)
		return status;
	if (!status) {
		status = from_json(file, config, name, ret, error);
		json_decref(config);
	}
	return status == STATUS_NOT_FOUND && !name ? open_family(path, ret, error) : status;
}

enum status chat_source_gguf(const struct gguf *gguf, const char *label, const char *name, struct jinja_template **ret,
    struct error *error)
{
	char        key[256];
	const char *text;
	size_t      len;
	enum status status;

	if (snprintf(key, sizeof key, "tokenizer.chat_template%s%s", name ? "." : "", name ? name : "") >= (int)sizeof key)
		return error_set(error, STATUS_INVALID, "%.60s…: no name of a chat template", name);
	status = gguf_get_string(gguf, key, &text, &len, error);
	return status ? status : jinja_compile(text, len, label, ret, error);
}

enum status chat_source_open(const char *path, const char *name, struct jinja_template **ret, struct error *error)
{
	struct stat  info;
	struct gguf *gguf;
	size_t       len = strlen(path);
	enum status  status;

	if (strncmp(path, "builtin:", 8) == 0)
		return open_builtin(path + 8, ret, error);
	if (stat(path, &info))
		return error_set(error, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s: %s", path, strerror(errno));
	if (S_ISDIR(info.st_mode))
		return open_directory(path, name, ret, error);
	if (len < 5 || strcmp(path + len - 5, ".gguf") != 0)
		return open_file(path, ret, error);
	status = gguf_open(path, &gguf, error);
	if (status)
		return status;
	status = chat_source_gguf(gguf, path, name, ret, error);
	gguf_close(gguf);
	return status;
}
